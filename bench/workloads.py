"""Workloads: their reader, and their replay through the public API of scopelog in virtual time.

A workload is one JSON object a line; ``t`` is in virtual milliseconds and only moves forward. Kinds: ``op`` (an
operation starts with a prompt), ``delta`` (streamed text), ``msg`` (the message settles: all deltas of the operation,
joined), ``tool``, ``ckpt`` (new output of the tool; what is kept are its last 51,200 characters), ``toolend``,
``opend``, and ``barrier`` (all before it must be durable).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from scopelog import EphemeralScope, Json, List, ManualClock, Session, SessionScope, Write, ephemeral, list_of, value

TOOL_OUTPUT_KEPT: Final = 51_200  # characters
MESSAGES: Final = list_of("chat", "messages")


class Record(msgspec.Struct, frozen=True):
    """One line of a workload."""

    t: int
    k: str
    op: int
    prompt: str = ""
    d: str = ""
    tool: int = 0
    cmd: str = ""
    out: str = ""


_decoder: Final = msgspec.json.Decoder(Record)


def read_workload(path: Path) -> list[Record]:
    """The records of a workload file, in order. Raises ``msgspec.DecodeError`` for a line that is none."""
    return _decoder.decode_lines(path.read_bytes())


def synthetic(deltas: int, *, step_ms: int = 8) -> list[Record]:
    """A workload of one response with a delta each ``step_ms``: for growth, and for small tests."""
    end = step_ms * (deltas + 1)
    return [
        Record(0, "op", 0, prompt="Write."),
        Record(0, "barrier", 0),
        *(Record(step_ms * (n + 1), "delta", 0, d=f" word{n * 7919 % 9973}") for n in range(deltas)),
        Record(end, "msg", 0),
        Record(end, "opend", 0),
        Record(end, "barrier", 0),
    ]


def message(role: str, text: str) -> Json:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def join_text(run: Sequence[Json]) -> Iterable[tuple[Json, int]]:
    """Coalescer: adjacent ``{"d": text}`` elements become one; anything else stays as it is."""
    texts: list[str] = []
    for element in run:
        if isinstance(element, dict) and element.keys() == {"d"}:
            texts.append(element["d"])
            continue
        if texts:
            yield {"d": "".join(texts)}, len(texts)
            texts = []
        yield element, 1
    if texts:
        yield {"d": "".join(texts)}, len(texts)


class Recorder:
    """Plain recording: what is settled goes to the session scope, what an operation streams to its ephemeral scope.

    At any moment everything a crash would have to recover is recoverable, up to one window: a partial message from
    the deltas stored so far, a tool's last output from the checkpoints stored so far (each holds what is new).
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.commits = 0
        self._waiting: list[Write[SessionScope]] = []  # for the session scope: committed at the next barrier
        self._text: list[str] = []
        self._output = ""
        self._begin(0)

    def apply(self, record: Record, *, ends: bool) -> None:
        """Record one event. ``ends``: it is the last one of its operation, whose end then joins its commit."""
        kind = record.k
        if kind == "delta":
            self._text.append(record.d)
            self.session.append(self._partial, {"d": record.d})
        elif kind == "ckpt":
            self._output = (self._output + record.out)[-TOOL_OUTPUT_KEPT:]
            self.session.append(self._progress, {"tool": record.tool, "out": record.out})
        elif kind == "op":
            self._begin(record.op)
            self._waiting += [MESSAGES.append(message("user", record.prompt)), self._state({"phase": "model"})]
        elif kind == "msg":
            self._settle(message("assistant", "".join(self._text)), ends)
            self._text = []
        elif kind == "tool":
            self._output = ""
            self._waiting.append(self._state({"phase": "tool", "tool": record.tool, "command": record.cmd}))
        elif kind == "toolend":
            result = {"role": "toolResult", "tool": record.tool, "content": [{"type": "text", "text": self._output}]}
            self._settle(result, ends)
        elif kind == "opend" and self._alive:
            self._end()
            self._commit()
        elif kind == "barrier":
            if self._waiting:
                self._commit()
            else:
                self.session.flush()

    def _begin(self, operation: int) -> None:
        self._alive = True
        self._operation = operation
        self._scope: EphemeralScope = ephemeral(f"op-{operation}")
        self._partial: List[EphemeralScope] = self._scope.list_of("pi", "pendingAssistantOutput", coalescer=join_text)
        self._progress: List[EphemeralScope] = self._scope.list_of("pi", "pendingToolOutput")

    def _settle(self, settled: Json, ends: bool) -> None:
        self._waiting.append(MESSAGES.append(settled))
        if ends:
            self._end()
        else:
            self._waiting.append(self._state({"phase": "settled"}))
        self._commit()

    def _end(self) -> None:
        self._alive = False
        self._waiting += [self._state({"phase": "ended"}), self._scope.retire()]

    def _commit(self) -> None:
        writes, self._waiting = self._waiting, []
        self.session.commit(writes)
        self.commits += 1

    def _state(self, state: Json) -> Write[SessionScope]:
        return value("pi", f"op/{self._operation}").set(state)


def replay(records: Sequence[Record], session: Session, clock: ManualClock) -> Recorder:
    """Record a whole workload. Time follows ``t``, so that batches are those of a stream in real time."""
    recorder = Recorder(session)
    now = 0
    for record, following in zip(records, [*records[1:], None], strict=True):
        if record.t > now:
            clock.advance((record.t - now) / 1000)
            now = record.t
        recorder.apply(record, ends=following is not None and following.k == "opend")
    return recorder
