"""The records that Pi writes today (JSONL version 4), in their shape: a line a transaction, nothing is synced.

Each frame of a response is an element of a list; each checkpoint of a tool sets a value to the whole window; when a
response or a tool settles, one transaction holds its entry and deletes what was pending. Source:
the package itself, 0.87.1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from .frames import EPOCH_MS, opening, settled_whole, text_delta, text_message
from .workloads import TOOL_OUTPUT_KEPT, Record

_FRAMES: Final = "pi.pending.assistant_frame"
_OUTPUT: Final = "pi.pending.tool_output"


class Pi:
    """Records a workload. ``synced``: with an fdatasync after each line."""

    def __init__(self, directory: Path, *, synced: bool = False) -> None:
        self._fd = os.open(directory / "session.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._synced = synced
        self._seq = 0
        self._time = 0
        self._tip: str | None = None
        self._frames: list[Any] = []
        self._text: list[str] = []
        self._output = ""
        self._line({"kind": "header", "v": 4, "id": "bench", "cwd": "/", "storageVersion": 1, "createdAt": EPOCH_MS})

    def record(self, records: Sequence[Record]) -> None:
        """All of it, and close."""
        for record in records:
            self._time = EPOCH_MS + record.t
            self._apply(record)
        os.close(self._fd)

    def _apply(self, record: Record) -> None:
        operation = f"op-{record.op}"
        response, tool = f"{operation}:r{record.op}", f"{operation}:t{record.op}.{record.tool}"
        if record.k == "op":
            self._text = []
            prompt = self._entry(f"u{record.op}", text_message("user", record.prompt))
            meta = self._set("pi.op.meta", operation, {"lane": "main"})
            self._transaction(prompt, meta, self._state(operation, "model"))
        elif record.k == "delta":
            for frame in [*([] if self._text else opening(record.t)), text_delta(record.d)]:
                self._transaction(self._write("list", "append", _FRAMES, response, frame))
            self._text.append(record.d)
        elif record.k == "msg":
            message = settled_whole(opening(record.t)[0]["partial"], len(self._text))
            message["content"] = [{"type": "text", "text": "".join(self._text)}]
            settled = self._entry(f"r{record.op}", message), self._write("list", "delete", _FRAMES, response)
            self._transaction(*settled, self._state(operation, "settled"))
        elif record.k == "tool":
            self._output = ""
            self._transaction(self._state(operation, "tool", tool=record.tool, command=record.cmd))
        elif record.k == "ckpt":
            self._output += record.out
            self._transaction(self._set(_OUTPUT, tool, self._snapshot()))
        elif record.k == "toolend":
            result = text_message("toolResult", self._output[-TOOL_OUTPUT_KEPT:])
            settled = self._entry(tool, result), self._delete(_OUTPUT, tool)
            self._transaction(*settled, self._state(operation, "settled"))
        elif record.k == "opend":
            self._transaction(self._delete("pi.op.meta", operation), self._delete("pi.op.state", operation))

    def _snapshot(self) -> Any:
        """What a tool reports: the window, and once something was cut how much there was."""
        kept = self._output[-TOOL_OUTPUT_KEPT:]
        details: dict[str, Any] = {}
        if len(kept) < len(self._output):
            total, shown = ((text.count("\n"), len(text)) for text in (self._output, kept))
            cut = {"truncated": True, "truncatedBy": "bytes", "lastLinePartial": False, "firstLineExceedsLimit": False}
            sizes = {"totalLines": total[0], "totalBytes": total[1], "outputLines": shown[0], "outputBytes": shown[1]}
            details["truncation"] = {**cut, **sizes, "maxLines": 2_000, "maxBytes": TOOL_OUTPUT_KEPT}
            details["fullOutputPath"] = "/tmp/pi-bash-0123456789abcdef.log"
        return {"content": [{"type": "text", "text": kept}], "details": details}

    # --- records ----------------------------------------------------------------------------------

    def _write(self, kind: str, op: str, namespace: str, key: str, value: Any = None) -> Any:
        self._seq += 1
        written = {"kind": kind, "op": op, "seq": self._seq, "namespace": namespace, "key": key}
        return written if value is None else {**written, "value": value}

    def _set(self, namespace: str, key: str, value: Any) -> Any:
        return self._write("value", "set", namespace, key, value)

    def _delete(self, namespace: str, key: str) -> Any:
        return self._write("value", "delete", namespace, key)

    def _state(self, operation: str, phase: str, **more: Any) -> Any:
        return self._set("pi.op.state", operation, {"at": phase, **more})

    def _entry(self, name: str, message: Any) -> Any:
        self._seq += 1
        entry = {"kind": "entry", "seq": self._seq, "id": name, "parentId": self._tip, "type": "message"}
        self._tip = name
        return {**entry, "timestamp": self._time, "message": message}

    def _transaction(self, *writes: Any) -> None:
        self._line(writes[0] if len(writes) == 1 else writes)

    def _line(self, what: Any) -> None:
        os.write(self._fd, (json.dumps(what, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
        if self._synced:
            os.fdatasync(self._fd)
