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
from typing import Any, Final, Self, TypeAlias, cast

from scopelog_engine.elements import Json
from scopelog_engine.feeds import Feed

from ...addresses import List, SessionScope, Write, check_name
from ...delta import Encoder, Tracker, track
from ...delta.joining import size_of
from ...delta.ops import Op
from ...errors import InvalidInput
from ...session import Session, given_as
from ...watching import LIMIT, Watch
from .copying import finite
from .fencing import ended
from .operations import Operation
from .places import OPERATIONS, entries, running, running_operation
from .reading import Entry, history
from .recovering import RecoveredOperation, recover
from .settling import list_of_writes
from .streams import Stream
from .watching import LaneSource, Ops, Shown, brought_forward

_log = logging.getLogger(__name__)

Event: TypeAlias = dict[str, Json]
Listener: TypeAlias = Callable[[Event], object]
Send: TypeAlias = Callable[[list[Json]], object]

_MAKING: Final = threading.Lock()
_RESPONSE: Final = ("streamingMessage", "frameState")


class Lane:
    """One line of work in a session: at most one operation runs in it at a time.

    Thread-safe: tools may report from other threads. Listeners and replicas are called in the thread that made the
    change, in order, while the lane is held: they must be quick, and must not change the lane.
    """

    session: Session
    name: str
    entries: List[SessionScope]
    """The list of the lane's settled messages: ``{"entryId", "message"}``."""
    operation: Operation | None
    """The operation that runs."""

    def __new__(cls, session: Session, name: str = "main") -> Self:
        """The lane of that name: the same object for as long as the session is open. ``name``: up to 1,024 bytes of
        UTF-8."""
        if not isinstance(session, Session):
            raise InvalidInput(f"{given_as(session)} is no Session", "pass a Session, or use AsyncLane")
        with _MAKING:
            lane = session._lanes.get(name)
            if lane is None:
                lane = super().__new__(cls)
                lane._open(session, name)
                session._lanes[name] = lane
            return cast("Self", lane)

    def _open(self, session: Session, name: str) -> None:
        self.entries = entries(name)  # refuses what is no name
        self.session = session
        self.name = name
        self.operation = None
        self._coming = ""  # what keeps operations from beginning: one that is about to, or a recovery
        self._lock = threading.RLock()  # held by whoever changes the lane
        self._tracker: Tracker = track({"operation": None})
        self._tracker.flush()
        self._response: Stream | None = None
        self._tools: dict[str, Stream] = {}
        self._telling = False  # listeners or replicas: they must not change what they are told
        self._torn = False  # whether a flush was interrupted: nobody knows then who has got what
        self._listeners: list[Listener] = []
        self._replicas: list[_Replica] = []
        self._feed: Feed | None = None  # of those who watch
        self._shown: Shown | None = None  # the last base of theirs

    # --- operations -------------------------------------------------------------------------------

    def begin(self, operation_id: str, writes: Iterable[Write[SessionScope]] = ()) -> Operation:
        """Begin an operation, in one commit of the session scope that holds ``writes`` too (the prompt, say).

        ``operation_id``: an id of an ephemeral scope (see :func:`scopelog.ephemeral`). Raises :class:`InvalidInput`
        if an operation runs in the lane, or was interrupted in it (then :meth:`resume` or :meth:`recover`), or if a
        scope of that id is alive; and what :meth:`Session.commit` raises.
        """
        with self._beginning(operation_id, writes) as (operation, commit):
            operation.began = self.session.commit(commit).last
        return operation

    @contextmanager
    def _beginning(
        self, operation_id: str, writes: Iterable[Write[SessionScope]]
    ) -> Iterator[tuple[Operation, list[Write[SessionScope]]]]:
        """The operation and what to commit; it runs once the block has ended well."""
        commit = list_of_writes(writes)
        with self._coming_in(operation_id) as operation:
            left = running_operation(self.session.get(running(self.name)))
            if left is not None:
                raise InvalidInput(
                    f"the operation {left!r} was interrupted in this lane",
                    "settle it by Lane.recover, or go on with it by Lane.resume",
                )
            if operation_id in self.session.scopes():
                raise InvalidInput(
                    f"the scope {operation_id!r} is alive: another lane, or somebody else, uses that id",
                    "choose an id that is unique in the session",
                )
            yield operation, [*commit, running(self.name).set(operation_id)]

    @contextmanager
    def _coming_in(self, operation_id: str) -> Iterator[Operation]:
        """An operation that no other can come before; it runs in the lane once the block has ended well."""
        with self._claim(f"the operation {operation_id!r}"):
            operation = Operation(self, operation_id)
            yield operation
            self._enter(operation)

    @contextmanager
    def _claim(self, what: str) -> Iterator[None]:
        """Nothing else begins, resumes or recovers until the block has ended."""
        with self._lock:
            self._check_not_telling()
            before = self._coming or (f"the operation {self.operation.id!r}" if self.operation is not None else "")
            if before:
                raise InvalidInput(f"{before} runs", "end it first")
            self._coming = what
        try:
            yield
        finally:
            self._coming = ""

    def resume(self, operation_id: str) -> Operation:
        """Go on with an operation that a crash has interrupted. Its tools find their output again; a response begins
        anew (what one had streamed is in :func:`recover`).

        Raises :class:`Fenced` if it does not run in this lane: it has ended, or was never begun.
        """
        with self._coming_in(operation_id) as operation:
            found = next((one for one in self.session.scan(OPERATIONS, self.name) if one.key == self.name), None)
            if found is None or running_operation(found.value) != operation_id:
                raise ended(operation_id)
            operation.began, operation.resumed = found.seq, True
            operation._read_settled()
        return operation

    def recover(self) -> list[RecoveredOperation]:
        """Settle what a crash has interrupted in this lane, and return it.

        Each operation takes one commit, which holds the recovered message (stopReason ``error``), an answer to each
        tool call that has none, and the end of the operation. Listeners get ``message_start`` and ``message_end`` of
        each entry, with ``recovery: True``. If all had ended there is nothing to settle. What cannot be read is
        reported in ``problems`` and retired all the same: :func:`recover` looks without touching.

        Raises what :meth:`Session.commit` and reads raise, and :class:`InvalidInput` while an operation runs.
        """
        with self._recovery() as found:
            for operation in found:
                with self._recovering(operation) as commit:
                    self.session.commit(commit)
            return found

    @contextmanager
    def _recovery(self) -> Iterator[list[RecoveredOperation]]:
        """What :meth:`recover` settles. Raises :class:`InvalidInput` while an operation runs in the lane."""
        with self._claim("a recovery"):
            yield self._unsettled()

    def _unsettled(self) -> list[RecoveredOperation]:
        return [one for one in recover(self.session) if one.lane == self.name]

    @contextmanager
    def _recovering(self, operation: RecoveredOperation) -> Iterator[list[Write[SessionScope]]]:
        """What to commit for an interrupted operation; the listeners are told once the block has ended well."""
        settled = operation.settlement()
        yield [*(self.entries.append(entry) for entry in settled), *operation.end_writes()]
        with self._lock:
            self._tell_recovered(operation, settled)

    def _tell_recovered(self, operation: RecoveredOperation, settled: Sequence[Entry]) -> None:
        events: list[Event] = []
        for entry in settled:
            event = {"runId": operation.id, "entryId": entry["entryId"], "message": entry["message"]}
            events += [{"type": kind, **event, "recovery": True} for kind in ("message_start", "message_end")]
        self._emit(events, self._audience_now())

    # --- history ------------------------------------------------------------------------------------

    def entry(self, entry_id: str, message: Json) -> Write[SessionScope]:
        """A write that appends a message of the harness's own (a prompt, say) to :attr:`entries`, for a commit:
        ``lane.begin("op-1", [lane.entry("prompt-1", {"role": "user", ...})])``."""
        check_name("entry's id", entry_id)
        return self.entries.append({"entryId": entry_id, "message": message})

    def history(self, *, limit: int | None = None) -> list[dict[str, Json]]:
        """The settled messages of the lane, oldest first (the last ``limit``), as providers take them: see
        :func:`history`."""
        return history(self.session, self.name, limit=limit)

    def _now(self) -> int:
        """Wall-clock time in ms, by the session's clock."""
        return self.session._writer.wall_ms()

    def _enter(self, operation: Operation) -> None:
        with self._changing():
            self.state["operation"] = {
                "id": operation.id,
                "entryId": None,
                "streamingMessage": None,
                "frameState": [],
                "toolOutputs": {},
            }
            self._hand_out()
            self.operation = operation

    def _leave(self, operation: Operation) -> None:
        """The operation has ended."""
        with self._changing():
            if self.operation is operation:
                self._response = None
                self._tools.clear()
                self.state["operation"] = None
                self._tracker.rebase()  # a base for the replicas: their codecs forget the operation's paths
                self._hand_out()
                self.operation = None

    # --- the value --------------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The tracked value, to read. The lane's operations alone change it."""
        return self._tracker.state

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lane while its value is changed."""
        with self._lock:
            try:
                yield
            except InvalidInput:  # refused before anything was changed
                raise
            except BaseException:
                self._distrust()
                raise

    def _follow_response(self, stream: Stream | None) -> None:
        """From now on what happens to the streaming message goes to this stream."""
        self._response = stream

    def _has_tool(self, invocation: str, stream: Stream | None = None) -> bool:
        """Whether the tool has a stream, or this one."""
        found = self._tools.get(invocation)
        return found is not None and (stream is None or found is stream)

    def _follow_tool(self, invocation: str, stream: Stream | None) -> None:
        """From now on what happens to the tool's output goes to this stream."""
        if stream is None:
            self._tools.pop(invocation, None)
        else:
            self._tools[invocation] = stream

    def _hand_out(self) -> None:
        """Hand the ops of all changes since the last time to the streams and replicas they concern."""
        torn, self._torn = self._torn, True
        ops = self._tracker.flush()
        if torn:
            self._lose()
            if self._feed is not None:
                self._feed.skip(self._feed.sequence + 1)
            for replica in tuple(self._replicas):
                replica.rebase()
        elif ops:
            for op in ops:
                self._route(op)
            if self._feed is not None:
                self._publish(self._feed, ops)
            if self._replicas:
                for replica in tuple(self._replicas):
                    replica.send(ops)
        self._torn = False

    def _distrust(self) -> None:
        """A change was interrupted: what it did is in the value, but maybe not in the ops."""
        self._torn = True
        self._tracker.rebase()

    def flush(self) -> None:
        """Barrier: when it returns, all that was taken before is stored, also what a failure had kept from it.

        Raises what :meth:`Session.flush` and :meth:`Session.append` raise.
        """
        self._write_all()
        self.session.flush()

    def _write_all(self) -> None:
        with self._lock:
            self._hand_out()
            for stream in (self._response, *self._tools.values()):
                if stream is not None:
                    stream.catch_up()

    def _check_not_telling(self) -> None:
        """Raise :class:`InvalidInput` in a call that a listener or a replica makes."""
        if self._telling:
            raise InvalidInput(
                "a listener or a replica calls the lane that tells it",
                "note what is to be done, and do it once the call that told it has returned",
            )

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
        with self._lock:
            self._listeners.append(listener)
        return lambda: self._remove(self._listeners, listener)

    def replicate(self, send: Send) -> Callable[[], None]:
        """Call ``send`` with encoded op batches (lists of JSON): first, at once, with a base of the whole value, then
        with every change. Returns what ends that.

        This is what crosses a transport; :class:`scopelog.delta.Decoder` and :func:`scopelog.delta.apply` read it.
        What ``send`` raises ends the replica and is logged: its other side has missed a batch.
        """
        with self._lock:
            replica = _Replica(self, send)
            self._replicas.append(replica)
            replica.rebase()
        return lambda: self._remove(self._replicas, replica)

    def watch(self, *, encoded: bool = False, limit: int = LIMIT, after: str | None = None) -> Watch[Ops]:
        """Watch the lane's value: :class:`Ops`, the first one a base, then one for every change, until
        :meth:`Watch.stop` or the session's close.

        ``encoded``: as they cross a transport, to a decoder that may be new or the one of the watch before. ``limit``
        and ``after``: see :meth:`Session.watch`. Who watches takes events in its own thread and time; nothing of it
        holds up the lane. Raises a kind of :class:`HandleUnusable` once the session is closed.
        """
        return Watch(LaneSource(self, limit, encoded), after)

    def _feed_for(self, watcher: object, limit: int) -> Feed:
        """The feed, with one more watcher. Holds the lane."""
        feed = self._feed
        if feed is None or feed.ended is not None:
            feed = Feed(0, limit)
            self.session._writer.adopt_feed(feed)
            self._shown = None
            self._feed = feed
        elif self._torn and not self._telling:
            self._hand_out()
        feed.limit = max(feed.limit, limit)
        feed.watchers.add(watcher)
        return feed

    def _publish(self, feed: Feed, ops: list[Op]) -> None:
        """Once for all who watch, however many they are."""
        size = sum(size_of(op) for op in ops)
        if feed.add(feed.sequence + 1, size, ops) and not feed.watchers:
            self._feed = self._shown = None
            self.session._writer.release_feed(feed)

    def _shown_at(self, feed: Feed) -> Shown:
        """The value at a batch of the feed, which holds all that came behind it."""
        shown = self._shown
        shown = brought_forward(shown) if shown is not None and shown.feed is feed else None
        if shown is None:
            with self._lock:
                if feed is self._feed and not self._telling:
                    self._hand_out()  # nothing, unless a change was interrupted
                shown = Shown(feed, feed.number, finite(self.state))
        self._shown = shown
        return shown

    def _stop_watching(self, watcher: object, feed: Feed) -> None:
        with self._lock:
            feed.watchers.discard(watcher)
            if not feed.watchers:
                self._shown = None  # it may be large

    def _remove(self, those: list[Any], one: object) -> None:
        with self._lock:
            those[:] = [other for other in those if other is not one]

    @property
    def _listened(self) -> bool:
        """Whether there are listeners."""
        return bool(self._listeners)

    def _audience_now(self) -> list[Listener]:
        """Who is to be told, the first one last."""
        return self._listeners[::-1]

    def _emit(self, events: Sequence[Event], audience: list[Listener]) -> None:
        """Tell the listeners, who are taken out of ``audience`` one by one: nobody is told twice."""
        before, self._telling = self._telling, True
        try:
            while audience:
                listener = audience.pop()
                for event in events:
                    try:
                        listener(event)
                    except Exception:  # noqa: BLE001 - a listener's own: what it looks on at goes on
                        _log.exception("a listener failed at %s", event["type"])
        finally:
            self._telling = before

    def _give_up(self, replica: _Replica) -> None:
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
        before, self._lane._telling = self._lane._telling, True
        try:
            self._send(batch)
        except Exception:  # noqa: BLE001 - the transport's own: what it looks on at goes on
            _log.exception("a replica failed and is given up")
            self._lane._give_up(self)
        finally:
            self._lane._telling = before
