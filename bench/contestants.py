"""Who writes a workload: scopelog and what people use in its place, each in a process of its own.

``python -m bench.contestants NAME WORKLOAD DIR WINDOW_MS`` records WORKLOAD (a file, ``synthetic:N`` or ``tools:N``)
into DIR in virtual time and exits. Rivals store the same: prompt and settled message durably, deltas at the end of
each window (or at once, for the ``row`` kinds); those that can delete, delete the deltas once the message has settled.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

import lmdb

from scopelog import ManualClock, Store

from .frames import text_message as message
from .op_rows import RocksRows, SqliteRows, record_op_rows
from .pi import Pi
from .workloads import TOOL_OUTPUT_KEPT, Record, read_workload, replay, synthetic, synthetic_tools


class Sink(Protocol):
    """What a hand-written recorder needs of its storage."""

    def settled(self, text: str) -> None:
        """Keep ``text`` for good, durably, and let go of the partial records before it."""

    def partial(self, texts: list[str]) -> None:
        """Keep one window of partial records."""

    def close(self) -> None: ...


class Jsonl:
    """One write and one fdatasync a window; nothing is ever deleted."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory / "log.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def settled(self, text: str) -> None:
        self.partial([text])

    def partial(self, texts: list[str]) -> None:
        os.write(self._fd, ("\n".join(texts) + "\n").encode())
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class Sqlite:
    """WAL; one transaction a window."""

    def __init__(self, directory: Path, synchronous: str) -> None:
        self._db = sqlite3.connect(directory / "log.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {synchronous}")
        self._db.execute("CREATE TABLE settled (id INTEGER PRIMARY KEY, body TEXT)")
        self._db.execute("CREATE TABLE partial (id INTEGER PRIMARY KEY, body TEXT)")

    def settled(self, text: str) -> None:
        self._db.execute("BEGIN")
        self._db.execute("INSERT INTO settled (body) VALUES (?)", (text,))
        self._db.execute("DELETE FROM partial")
        self._db.execute("COMMIT")

    def partial(self, texts: list[str]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO partial (body) VALUES (?)", [(text,) for text in texts])
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


class Lmdb:
    """One transaction a window."""

    def __init__(self, directory: Path) -> None:
        self._env = lmdb.open(str(directory / "log.lmdb"), map_size=1 << 30, max_dbs=2)
        self._settled = self._env.open_db(b"settled")
        self._partial = self._env.open_db(b"partial")
        self._count = 0

    def _key(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(8, "big")

    def settled(self, text: str) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.put(self._key(), text.encode(), db=self._settled, append=True)
            transaction.drop(self._partial, delete=False)

    def partial(self, texts: list[str]) -> None:
        with self._env.begin(write=True) as transaction:
            for text in texts:
                transaction.put(self._key(), text.encode(), db=self._partial, append=True)

    def close(self) -> None:
        self._env.close()


def by_hand(records: Sequence[Record], sink: Sink, window_ms: int, *, naive: bool = False) -> None:
    """What a harness without scopelog does. ``window_ms`` 0: no window, every record at once.

    ``naive``: each token writes the message so far, the event's copy of it, and the frame.
    """
    pending: list[str] = []
    deadline = 0
    text = output = ""

    def flush() -> None:
        if pending:
            sink.partial(pending)
            pending.clear()

    for record in records:
        if pending and record.t >= deadline:
            flush()
        staged: str | None = None
        if record.k == "op":
            text = ""
            sink.settled(json.dumps(message("user", record.prompt)))
        elif record.k == "delta":
            text += record.d
            frame = {"type": "text_delta", "contentIndex": 0, "delta": record.d}
            so_far = message("assistant", text)
            update = {"type": "message_update", "message": so_far, "event": {**frame, "partial": so_far}}
            staged = json.dumps(update if naive else {"op": record.op, "d": record.d})
        elif record.k == "ckpt":
            output = (output + record.out)[-TOOL_OUTPUT_KEPT:]
            staged = json.dumps({"tool": record.tool, "out": output if naive else record.out})
        elif record.k in ("msg", "toolend"):
            flush()
            sink.settled(json.dumps(message("assistant", text) if record.k == "msg" else message("tool", output)))
        elif record.k == "tool":
            output = ""
            sink.settled(json.dumps({"op": record.op, "tool": record.tool, "command": record.cmd}))
        elif record.k == "barrier":
            flush()
        if staged is not None:
            if not pending:
                deadline = record.t + window_ms
            pending.append(staged)
            if not window_ms:
                flush()
    flush()
    sink.close()


def scopelog(records: Sequence[Record], directory: Path, window_ms: int, *, whole: bool = False) -> None:
    clock = ManualClock()
    with Store.open(directory / "store", window_ms=window_ms, clock=clock) as store:
        session = store.session("bench-session")
        replay(records, session, clock, whole=whole)
        session.close()


def nothing(_records: Sequence[Record], _directory: Path, _window_ms: int) -> None:
    """The baseline: what the interpreter itself hands to the operating system."""


Contestant = Callable[[Sequence[Record], Path, int], None]

PI: Final = "Pi JSONL v4"
PI_SYNCED: Final = "Pi JSONL v4, synced"
SQLITE_OPS: Final = "sqlite NORMAL, op rows"
SQLITE_OPS_AT_ONCE: Final = "sqlite NORMAL, op rows at once"
ROCKS_OPS: Final = "rocksdict, op rows"
WHOLE: Final = "scopelog, whole messages"
CONTESTANTS: Final[dict[str, Contestant]] = {
    "scopelog": scopelog,
    WHOLE: lambda records, where, window: scopelog(records, where, window, whole=True),
    "nothing": nothing,
    PI: lambda records, where, _: Pi(where).record(records),
    PI_SYNCED: lambda records, where, _: Pi(where, synced=True).record(records),
    SQLITE_OPS: lambda records, where, window: record_op_rows(records, SqliteRows(where), window),
    SQLITE_OPS_AT_ONCE: lambda records, where, _: record_op_rows(records, SqliteRows(where), 0),
    "naive message_update": lambda records, where, _: by_hand(records, Jsonl(where), 0, naive=True),
    "JSONL + fdatasync": lambda records, where, window: by_hand(records, Jsonl(where), window),
    "sqlite FULL, rows": lambda records, where, _: by_hand(records, Sqlite(where, "FULL"), 0),
    "sqlite NORMAL, rows": lambda records, where, _: by_hand(records, Sqlite(where, "NORMAL"), 0),
    "sqlite FULL, windows": lambda records, where, window: by_hand(records, Sqlite(where, "FULL"), window),
    "sqlite NORMAL, windows": lambda records, where, window: by_hand(records, Sqlite(where, "NORMAL"), window),
    "lmdb, windows": lambda records, where, window: by_hand(records, Lmdb(where), window),
}
if find_spec("rocksdict") is not None:  # the extra `bench` brings it
    CONTESTANTS[ROCKS_OPS] = lambda records, where, window: record_op_rows(records, RocksRows(where), window)


def records_of(workload: str) -> list[Record]:
    """A workload by its path; ``synthetic:N``: one response of N deltas; ``tools:N``: N operations with a tool."""
    kind, _, number = workload.partition(":")
    if kind == "tools":
        return synthetic_tools(int(number))
    return synthetic(int(number)) if kind == "synthetic" else read_workload(Path(workload))


def main(arguments: Sequence[str]) -> None:
    name, workload, directory, window_ms = arguments
    CONTESTANTS[name](records_of(workload), Path(directory), int(window_ms))


if __name__ == "__main__":
    main(sys.argv[1:])
