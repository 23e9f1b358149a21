"""What one would build on a database with our reducer and tracker at hand: a row for each encoded op batch of a window.

The settled messages are rows of their own; what was pending is deleted by the transaction that settles it. So the
difference to the product is the storage alone.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from scopelog.clients.messages import apply_frame
from scopelog.delta import Encoder, append_text, drop_text, join_batches, track

from .frames import opening, text_delta, text_message
from .workloads import TOOL_OUTPUT_KEPT, Record

with suppress(ImportError):  # the extra `bench` brings it
    import rocksdict

_COMPACT: Final = (",", ":")


class Rows(Protocol):
    """A database of settled bodies, and of pending rows by stream."""

    def settle(self, body: str, stream: str | None) -> None:
        """Keep ``body``, and delete the stream's rows, in one transaction."""

    def add(self, rows: Sequence[tuple[str, str]]) -> None:
        """Add rows, (stream, batch), in one transaction."""

    def close(self) -> None: ...


class SqliteRows:
    """WAL, synchronous NORMAL."""

    def __init__(self, directory: Path) -> None:
        self._db = sqlite3.connect(directory / "rows.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("CREATE TABLE settled (id INTEGER PRIMARY KEY, body TEXT)")
        self._db.execute("CREATE TABLE ops (id INTEGER PRIMARY KEY, stream TEXT, batch TEXT)")

    def settle(self, body: str, stream: str | None) -> None:
        self._db.execute("BEGIN")
        self._db.execute("INSERT INTO settled (body) VALUES (?)", (body,))
        if stream is not None:
            self._db.execute("DELETE FROM ops WHERE stream = ?", (stream,))
        self._db.execute("COMMIT")

    def add(self, rows: Sequence[tuple[str, str]]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO ops (stream, batch) VALUES (?, ?)", rows)
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


class RocksRows:
    """One write batch a transaction, into the log without a sync; its default options, LZ4 or Snappy as it chooses."""

    def __init__(self, directory: Path) -> None:
        self._db = rocksdict.Rdict(str(directory / "rows.rocks"), rocksdict.Options(raw_mode=True))
        self._count = 0
        self._keys: dict[str, list[bytes]] = {}

    def _key(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(8, "big")

    def settle(self, body: str, stream: str | None) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        batch[b"s" + self._key()] = body.encode()
        for key in self._keys.pop(stream or "", ()):
            batch.delete(key)
        self._db.write(batch)

    def add(self, rows: Sequence[tuple[str, str]]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for stream, row in rows:
            key = b"o" + stream.encode() + self._key()
            self._keys.setdefault(stream, []).append(key)
            batch[key] = row.encode()
        self._db.write(batch)

    def close(self) -> None:
        self._db.close()


class _Stream:
    """One stream's value, and its batches of the window that is open."""

    def __init__(self, name: str, value: dict[str, Any]) -> None:
        self.name = name
        self.tracker = track(value)
        self.batches: list[Any] = []
        self._encoder = Encoder()

    def staged(self) -> None:
        self.batches.append(self._encoder.encode(self.tracker.flush()))

    def rows(self) -> list[tuple[str, str]]:
        joined = join_batches(self.batches)
        self.batches = []
        return [(self.name, json.dumps(batch, ensure_ascii=False, separators=_COMPACT)) for batch, _ in joined]


def record_op_rows(records: Sequence[Record], rows: Rows, window_ms: int) -> None:
    """Record a workload, and close."""
    stream: _Stream | None = None
    deadline = 0

    def flush() -> None:
        if stream is not None and stream.batches:
            rows.add(stream.rows())

    for record in records:
        if stream is not None and stream.batches and record.t >= deadline:
            flush()
        if stream is not None and not stream.batches:
            deadline = record.t + window_ms
        if record.k == "op":
            rows.settle(_body(text_message("user", record.prompt)), None)
        elif record.k == "delta":
            if stream is None:
                stream, deadline = _response(record), record.t + window_ms
            apply_frame(stream.tracker.state, text_delta(record.d))
            stream.staged()
        elif record.k == "tool":
            stream, deadline = _Stream(f"t{record.op}.{record.tool}", {"text": ""}), record.t + window_ms
            rows.settle(_body({"op": record.op, "tool": record.tool, "command": record.cmd}), None)
        elif record.k == "ckpt":
            assert stream is not None
            _keep(stream.tracker.state, record.out)
            stream.staged()
        elif record.k in ("msg", "toolend"):
            assert stream is not None
            state = stream.tracker.target
            text = state["text"] if record.k == "toolend" else state["streamingMessage"]["content"][0]["text"]
            rows.settle(_body(text_message("assistant" if record.k == "msg" else "toolResult", text)), stream.name)
            stream = None
        elif record.k == "barrier":
            flush()
    flush()
    rows.close()


def _response(record: Record) -> _Stream:
    stream = _Stream(f"r{record.op}", {"streamingMessage": None, "frameState": []})
    for frame in opening(record.t):
        apply_frame(stream.tracker.state, frame)
        stream.staged()
    return stream


def _keep(state: Any, out: str) -> None:
    """The last characters of a tool's output, all of them ASCII."""
    over = len(state["text"]) + len(out) - TOOL_OUTPUT_KEPT
    if over > 0:
        drop_text(state, "text", over)
    append_text(state, "text", out)


def _body(message: Any) -> str:
    return json.dumps(message, ensure_ascii=False, separators=_COMPACT)
