"""Workloads: their reader, and their replay through a lane of a scopelog session in virtual time.

A workload is one JSON object a line; ``t`` is in virtual milliseconds and only moves forward. Kinds: ``op`` (an
operation starts with a prompt), ``delta`` (streamed text), ``msg`` (the message settles: all deltas of the operation,
joined), ``tool``, ``ckpt`` (new output of the tool; what is kept are its last 51,200 characters), ``toolend``,
``opend``, and ``barrier`` (all before it must be durable).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from scopelog import Json, ManualClock, Session, SessionScope, Write, value
from scopelog.clients.messages import Lane, Operation, Response, ToolSink

from .frames import opening, settled_whole, text_delta, text_message

TOOL_OUTPUT_KEPT: Final = 51_200  # characters
_ALL_LINES: Final = 10**9


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


def synthetic_tools(operations: int, *, deltas: int = 20, checkpoints: int = 30) -> list[Record]:
    """A workload whose operations are a response and a tool of 2,500 characters a checkpoint each: for small tests."""
    records: list[Record] = []
    t = 0
    for op in range(operations):
        records += [Record(t, "op", op, prompt="List."), Record(t, "barrier", op)]
        records += [Record(t + 20 * n, "delta", op, d=f" word{n * 7919 % 9973}") for n in range(1, deltas + 1)]
        t += 20 * deltas + 20
        records += [Record(t, "msg", op), Record(t, "barrier", op)]
        records += [Record(t, "tool", op, cmd=f"ls -l {op}"), Record(t, "barrier", op)]
        for n in range(1, checkpoints + 1):
            lines = (f"-rw-r--r-- 1 user user {k * 7919 % 99991:8} file{k}.txt\n" for k in range(n * 50, n * 50 + 60))
            records.append(Record(t + 240 * n, "ckpt", op, out="".join(lines)[:2_500]))
        t += 240 * checkpoints + 100
        records += [Record(t, "toolend", op), Record(t, "opend", op), Record(t, "barrier", op)]
    return records


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
    """Recording as a harness would: through the lane and its reducer, into the session.

    The prompt, each settled message and tool result, and the operation's state go to the session scope, committed at
    the barriers and settlements; what streams goes to the operation's ephemeral scope through the window. At any
    moment everything a crash would have to recover is recoverable, up to one window:
    :func:`scopelog.clients.messages.recover`.

    ``whole``: a settled message has all that a provider tells (model, usage, time and so on). Otherwise it is role
    and content, which is what rivals store.
    """

    def __init__(self, session: Session, *, whole: bool = False) -> None:
        self.session = session
        self.lane = Lane(session)
        self.commits = 0
        self._whole = whole
        self._due: Record | None = None  # an operation that begins with the next commit
        self._operation: Operation | None = None
        self._response: Response | None = None
        self._deltas = 0
        self._sink: ToolSink | None = None
        self._waiting: list[Write[SessionScope]] = []  # committed at the next barrier or settlement
        self._has_state = False

    def apply(self, record: Record, *, ends: bool) -> None:
        """Record one event. ``ends``: it is the last one of its operation, whose end then joins its commit."""
        kind = record.k
        if kind == "delta":
            self._deltas += 1
            self._streaming(record).take(text_delta(record.d))
        elif kind == "ckpt":
            self._tool().write(record.out)
        elif kind == "op":
            self._due, self._operation = record, None
        elif kind == "msg":
            self._settle_message(self._streaming(record), ends)
        elif kind == "tool":
            name = f"t{record.op}.{record.tool}"
            self._sink = self._running().tool(name, max_bytes=TOOL_OUTPUT_KEPT, max_lines=_ALL_LINES)
            self._state({"phase": "tool", "tool": record.tool, "command": record.cmd})
        elif kind == "toolend":
            self._settle_result(self._tool(), record, ends)
        elif kind == "opend" and self._operation is not None:
            self._operation.end(self._before_settling(ends=True))
            self._committed(ends=True)
        elif kind == "barrier":
            self._barrier()

    # --- operations -------------------------------------------------------------------------------

    def _running(self) -> Operation:
        if self._operation is None:
            due = self._due
            assert due is not None
            prompt = self.lane.entry(f"u{due.op}", text_message("user", due.prompt))
            self._operation = self.lane.begin(f"op-{due.op}", [prompt])
            self._due = None
            self.commits += 1
        return self._operation

    def _barrier(self) -> None:
        if self._due is not None:
            self._running()
        elif self._waiting:
            self.session.commit(self._waiting)
            self._committed(ends=False)
        else:
            self.session.flush()

    def _state(self, state: Json) -> None:
        """Of the operation, beyond that it runs, which the lane says."""
        self._waiting.append(value("pi", self._running().id).set(state))
        self._has_state = True

    def _before_settling(self, *, ends: bool) -> list[Write[SessionScope]]:
        if not ends:
            self._state({"phase": "settled"})
        elif self._has_state:
            self._waiting.append(value("pi", self._running().id).delete())
        return self._waiting

    def _committed(self, *, ends: bool) -> None:
        self.commits += 1
        self._waiting = []
        if ends:
            self._operation, self._has_state = None, False

    # --- what streams -----------------------------------------------------------------------------

    def _streaming(self, record: Record) -> Response:
        if self._response is None:
            self._response = self._running().response(f"r{record.op}")
            for frame in opening(record.t):
                self._response.take(frame)
        return self._response

    def _settle_message(self, response: Response, ends: bool) -> None:
        streamed = response.message
        message = settled_whole(streamed, self._deltas)
        if not self._whole:
            message = {"role": streamed["role"], "content": streamed["content"]}
        response.settle(message, writes=self._before_settling(ends=ends), end=ends)
        self._response, self._deltas = None, 0
        self._committed(ends=ends)

    def _tool(self) -> ToolSink:
        assert self._sink is not None
        return self._sink

    def _settle_result(self, sink: ToolSink, record: Record, ends: bool) -> None:
        message = None if self._whole else {**text_message("toolResult", sink.text), "tool": record.tool}
        sink.settle(message, writes=self._before_settling(ends=ends), end=ends)
        self._sink = None
        self._committed(ends=ends)


def steps(records: Sequence[Record], recorder: Recorder, clock: ManualClock) -> Iterator[Record]:
    """Record a workload, a record each time the next one is asked for. Time follows ``t``, so that batches are those
    of a stream in real time."""
    now = 0
    for record, following in zip(records, [*records[1:], None], strict=True):
        if record.t > now:
            clock.advance((record.t - now) / 1000)
            now = record.t
        recorder.apply(record, ends=following is not None and following.k == "opend")
        yield record


def replay(records: Sequence[Record], session: Session, clock: ManualClock, *, whole: bool = False) -> Recorder:
    """Record a whole workload; see :func:`steps`."""
    recorder = Recorder(session, whole=whole)
    for _ in steps(records, recorder, clock):
        pass
    return recorder
