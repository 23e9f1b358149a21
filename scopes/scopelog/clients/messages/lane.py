"""A lane: one line of work in a session, what it shows while it runs, and those who look on.

All that the lane shows stands in one tracked value::

    {"operation": None | {
        "id": ..., "entryId": None | ...,          # of the response that streams
        "streamingMessage": None | message, "frameState": [...],
        "toolOutputs": {invocation id: {"text": ..., "details": ..., ...}},
    }}

Each change gives ops. They go to replicas as encoded batches, and, with their path cut to what is below it, to the
streams from which a recovery rebuilds the value. Listeners in the process get events that hold one frame each.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from scopelog_engine.elements import Json

from ...addresses import SessionScope, Write
from ...delta import Encoder, Tracker, track
from ...delta.ops import Op
from ...errors import InvalidInput
from ...session import Session, given_as
from .copying import finite
from .fencing import ended
from .operations import Operation
from .places import OPERATIONS, entries, running
from .recovering import RecoveredOperation, recover
from .streams import Stream

_log = logging.getLogger(__name__)

Event: TypeAlias = dict[str, Json]
Listener: TypeAlias = Callable[[Event], object]
Send: TypeAlias = Callable[[list[Json]], object]

_RESPONSE: Final = ("streamingMessage", "frameState")


class Lane:
    """One line of work in a session: at most one operation runs in it at a time.

    Thread-safe: tools may report from other threads. Listeners and replicas are called in the thread that made the
    change, in order, while the lane is held: they must be quick, and must not change the lane.
    """

    def __init__(self, session: Session, name: str = "main") -> None:
        """``name``: up to 1,024 bytes of UTF-8."""
        if not isinstance(session, Session):
            raise InvalidInput(f"{given_as(session)} is no Session", "pass the Session that the lane is recorded in")
        self.session: Final = session
        self.name: Final = name
        self.entries: Final = entries(name)
        """The list of the lane's settled messages: ``{"entryId", "runId", "message"}``."""
        self.operation: Operation | None = None
        """The operation that runs."""
        self._entering: str | None = None  # the id of one that is about to
        self.lock: Final = threading.RLock()
        """Held by whoever changes the lane."""
        self._tracker: Tracker = track({"operation": None})
        self._tracker.flush()
        self._response: Stream | None = None
        self._tools: dict[str, Stream] = {}
        self._torn = False  # whether a flush was interrupted: nobody knows then who has got what
        self._listeners: list[Listener] = []
        self._replicas: list[_Replica] = []

    # --- operations -------------------------------------------------------------------------------

    def begin(self, operation_id: str, writes: Iterable[Write[SessionScope]] = ()) -> Operation:
        """Begin an operation, in one commit of the session scope that holds ``writes`` too (the prompt, say).

        ``operation_id``: an id of an ephemeral scope (see :func:`scopelog.ephemeral`). Raises :class:`InvalidInput`
        if an operation runs in the lane, or one of that id in the session (then :meth:`resume` or :meth:`recover`),
        and what :meth:`Session.commit` raises.
        """
        with self.beginning(operation_id, writes) as (operation, commit):
            operation.began = self.session.commit(commit).last
        return operation

    @contextmanager
    def beginning(
        self, operation_id: str, writes: Iterable[Write[SessionScope]]
    ) -> Iterator[tuple[Operation, list[Write[SessionScope]]]]:
        """The operation and what to commit; it runs once the block has ended well."""
        with self.entering(operation_id) as operation:
            if self.session.get(running(operation_id)) is not None:
                raise _runs(operation_id)
            yield operation, [*writes, running(operation_id).set({"lane": self.name})]

    @contextmanager
    def entering(self, operation_id: str) -> Iterator[Operation]:
        """An operation that no other can come before; it runs in the lane once the block has ended well."""
        with self.lock:
            if self._entering is not None or self.operation is not None:
                raise _runs(self._entering or self.operation.id if self.operation else operation_id)
            operation = Operation(self, operation_id)
            self._entering = operation_id
        try:
            yield operation
            self._enter(operation)
        finally:
            self._entering = None

    def resume(self, operation_id: str) -> Operation:
        """Go on with an operation that a crash has interrupted; its tools find their output again.

        Raises :class:`Fenced` if it does not run: it has ended, or was never begun.
        """
        with self.entering(operation_id) as operation:
            found = self.session.scan(OPERATIONS, operation_id)
            began = next((entry for entry in found if entry.key == operation_id), None)
            if began is None or began.value != {"lane": self.name}:
                raise ended(operation_id)
            operation.began, operation.resumed = began.seq, True
            operation.read_settled()
        return operation

    def recover(self) -> list[RecoveredOperation]:
        """Settle what a crash has interrupted in this lane, and return it.

        Each operation takes one commit, which holds the recovered message (stopReason ``error``), an answer to each
        tool call that has none, and the end of the operation. Listeners get ``message_start`` and ``message_end`` of
        each entry, with ``recovery: True``. If all had ended there is nothing to settle. What cannot be read is
        reported in ``problems`` and retired all the same: :func:`recover` looks without touching.

        Raises what :meth:`Session.commit` and reads raise, and :class:`InvalidInput` while an operation runs.
        """
        found = self.interrupted()
        for operation in found:
            with self.recovering(operation) as commit:
                self.session.commit(commit)
        return found

    def interrupted(self) -> list[RecoveredOperation]:
        """What :meth:`recover` settles. Raises :class:`InvalidInput` while an operation runs in the lane."""
        with self.lock:
            if self.operation is not None:
                raise _runs(self.operation.id)
            return [one for one in recover(self.session) if one.lane == self.name]

    @contextmanager
    def recovering(self, operation: RecoveredOperation) -> Iterator[list[Write[SessionScope]]]:
        """What to commit for an interrupted operation; the listeners are told once the block has ended well."""
        settled = operation.settlement()
        yield [*(self.entries.append(entry) for entry in settled), *operation.end()]
        with self.lock:
            events: list[Event] = []
            for entry in settled:
                event = {"runId": operation.id, "entryId": entry["entryId"], "message": entry["message"]}
                events += [{"type": kind, **event, "recovery": True} for kind in ("message_start", "message_end")]
            self.emit(events, self.audience())

    def _enter(self, operation: Operation) -> None:
        with self.changing():
            self.state["operation"] = {
                "id": operation.id,
                "entryId": None,
                "streamingMessage": None,
                "frameState": [],
                "toolOutputs": {},
            }
            self.flush()
            self.operation = operation

    def leave(self, operation: Operation) -> None:
        """The operation has ended."""
        with self.changing():
            if self.operation is operation:
                self._response = None
                self._tools.clear()
                self.state["operation"] = None
                self.flush()
                self.operation = None

    # --- the value --------------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The tracked value, to read. The lane's operations alone change it."""
        return self._tracker.state

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lane while its value is changed."""
        with self.lock:
            try:
                yield
            except InvalidInput:  # refused before anything was changed
                raise
            except BaseException:
                self.distrust()
                raise

    def response_stream(self, stream: Stream | None) -> None:
        """From now on what happens to the streaming message goes to this stream."""
        self._response = stream

    def has_tool(self, invocation: str, stream: Stream | None = None) -> bool:
        """Whether the tool has a stream, or this one."""
        found = self._tools.get(invocation)
        return found is not None and (stream is None or found is stream)

    def tool_stream(self, invocation: str, stream: Stream | None) -> None:
        """From now on what happens to the tool's output goes to this stream."""
        if stream is None:
            self._tools.pop(invocation, None)
        else:
            self._tools[invocation] = stream

    def flush(self) -> None:
        """Hand the ops of all changes since the last time to the streams and replicas they concern."""
        torn, self._torn = self._torn, True
        ops = self._tracker.flush()
        if torn:
            self._lose()
            for replica in tuple(self._replicas):
                replica.rebase()
        elif ops:
            for op in ops:
                self._route(op)
            if self._replicas:
                for replica in tuple(self._replicas):
                    replica.send(ops)
        self._torn = False

    def distrust(self) -> None:
        """A change was interrupted: what it did is in the value, but maybe not in the ops."""
        self._torn = True
        self._tracker.rebase()

    def _route(self, op: Op) -> None:
        if op[0] == "r" or len(op[1]) < 2:
            self._lose()
            return
        path = op[1]
        if path[1] in _RESPONSE:
            if self._response is not None:
                self._response.add([op[0], path[1:], *op[2:]])
        elif len(path) == 2:
            if path[1] == "toolOutputs":
                self._lose()
        elif path[2] in self._tools:
            self._tools[path[2]].add([op[0], path[3:], *op[2:]])

    def _lose(self) -> None:
        for stream in (self._response, *self._tools.values()):
            if stream is not None:
                stream.lose()

    # --- those who look on ------------------------------------------------------------------------

    def on(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with every event from now on; returns what ends that.

        Events are dicts: ``message_start {type, runId, entryId, message}``, ``message_update {type, runId, entryId,
        frame}``, ``message_end {type, runId, entryId, message}``, the last with the settled message and once it is
        stored; those of a recovery carry ``recovery: True``. They are the listener's to keep, not to change. What a
        listener raises is logged and otherwise without effect.
        """
        with self.lock:
            self._listeners.append(listener)
        return lambda: self._remove(self._listeners, listener)

    def replicate(self, send: Send) -> Callable[[], None]:
        """Call ``send`` with encoded op batches (lists of JSON): first, at once, with a base of the whole value, then
        with every change. Returns what ends that.

        This is what crosses a transport; :class:`scopelog.delta.Decoder` and :func:`scopelog.delta.apply` read it.
        What ``send`` raises ends the replica and is logged: its other side has missed a batch.
        """
        with self.lock:
            replica = _Replica(self, send)
            self._replicas.append(replica)
            replica.rebase()
        return lambda: self._remove(self._replicas, replica)

    def _remove(self, those: list[Any], one: object) -> None:
        with self.lock:
            those[:] = [other for other in those if other is not one]

    @property
    def listened(self) -> bool:
        """Whether there are listeners."""
        return bool(self._listeners)

    def audience(self) -> list[Listener]:
        """Who is to be told, the first one last."""
        return self._listeners[::-1]

    def emit(self, events: Sequence[Event], audience: list[Listener]) -> None:
        """Tell the listeners, who are taken out of ``audience`` one by one: nobody is told twice."""
        while audience:
            listener = audience.pop()
            for event in events:
                try:
                    listener(event)
                except Exception:  # noqa: BLE001 - a listener's own: what it looks on at goes on
                    _log.exception("a listener failed at %s", event["type"])

    def give_up(self, replica: _Replica) -> None:
        """The replica has failed."""
        self._remove(self._replicas, replica)


class _Replica:
    def __init__(self, lane: Lane, send: Send) -> None:
        self._lane = lane
        self._send = send
        self._encoder = Encoder()

    def rebase(self) -> None:
        self.send([["r", finite(self._lane.state)]])

    def send(self, ops: list[Op]) -> None:
        batch = self._encoder.encode(ops)
        try:
            self._send(batch)
        except Exception:  # noqa: BLE001 - the transport's own: what it looks on at goes on
            _log.exception("a replica failed and is given up")
            self._lane.give_up(self)


def _runs(operation_id: str) -> InvalidInput:
    return InvalidInput(f"the operation {operation_id!r} runs", "end it first, or go on with it: Lane.resume")
