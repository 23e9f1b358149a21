"""What runs in a lane: an operation, the responses it asks a model for, and the tools it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from scopelog_engine.writer import Receipt

from ...addresses import EphemeralScope, SessionScope, Write, check_name, ephemeral
from ...errors import InvalidInput
from .fencing import ended, settled
from .places import running, running_operation
from .reading import entries_since, settled_name
from .recovering import RecoveredOperation
from .responses import Response
from .retention import HEAD, TAIL, Kept, Retention
from .settling import Phase, Settling, list_of_writes
from .tools import MAX_BYTES, MAX_LINES, ToolSink

if TYPE_CHECKING:
    from .lane import Lane

MAX_NAME_BYTES: Final = 512  # of the ids of responses and invocations
ABORTED: Final = "The response was aborted; what had been received is kept."


class Operation:
    """An operation that runs. Made by :meth:`Lane.begin` and :meth:`Lane.resume`.

    Its id is that of the ephemeral scope in which it keeps what a crash would have to recover.
    """

    def __init__(self, lane: Lane, operation_id: str) -> None:
        self.lane = lane
        self.scope: Final[EphemeralScope] = ephemeral(operation_id)
        self.id: Final = operation_id
        self.phase = Phase.OPEN
        self.began = 0
        """The sequence of the write that began it."""
        self.resumed = False
        """Whether another process, or another handle, began it."""
        self.current: Response | None = None
        """The response that streams."""
        self._settled: set[tuple[str, str]] = set()  # kinds and names
        self._children: dict[tuple[str, str], Settling] = {}  # what is not settled
        self._checkpoints = 0  # being stored

    def response(self, entry_id: str) -> Response:
        """Begin a response of the model, which takes the place of the one before; ``entry_id`` is its entry's.

        Raises :class:`Fenced` if an entry of that id is settled already, or if the operation has ended;
        :class:`InvalidInput` while the one before is being settled.
        """
        with self.lane._changing():
            self._check_new("response", entry_id)
            before = self.current
            if before is not None:
                if before.phase is Phase.SETTLING:
                    raise _under_way(f"the response {before.id!r} is being settled")
                before._supersede()
            self.current = Response(self, entry_id)
            return self.current

    def tool(
        self,
        invocation_id: str,
        *,
        name: str = "",
        call_id: str | None = None,
        keep: Retention = TAIL,
        max_bytes: int = MAX_BYTES,
        max_lines: int = MAX_LINES,
    ) -> ToolSink:
        """Begin a tool's output, or go on with it after a crash: it holds then what was stored of it.

        ``invocation_id`` is unique in the operation; ``call_id`` is the id of the tool call where that is another one
        (some models repeat theirs); ``name``: the tool's, for its result. ``keep``: the ``"tail"`` or the ``"head"`` of
        a text that exceeds ``max_bytes`` of UTF-8 (50 KiB) or ``max_lines`` (2,000).

        Raises :class:`Fenced` as :meth:`response` does, and :class:`InvalidInput` for caps that mean nothing and for an
        invocation that has a sink.
        """
        if keep not in (HEAD, TAIL):
            raise InvalidInput(f"keep is {keep!r}", "pass 'head' or 'tail'")
        for what, cap in (("max_bytes", max_bytes), ("max_lines", max_lines)):
            if type(cap) is not int or cap < 1:
                raise InvalidInput(f"{what} is {cap!r}", "pass an int from 1 on")
        with self.lane._changing():
            self._check_new("tool", invocation_id)
            if self.lane._has_tool(invocation_id):
                raise InvalidInput(f"the tool {invocation_id!r} has a sink already", "go on with that one")
            return ToolSink(self, invocation_id, name, call_id or invocation_id, Kept(keep, max_bytes, max_lines))

    def end(self, writes: Iterable[Write[SessionScope]] = ()) -> Receipt | None:
        """End the operation in one commit that holds ``writes`` and retires its scope. What is not settled is dropped.

        Returns None if an earlier call that raised had stored that after all. Raises :class:`Fenced` if it has ended,
        :class:`InvalidInput` while something of it is being stored, and what :meth:`Session.commit` raises; it runs on
        then.
        """
        with self._ending(writes) as commit:
            return self.lane.session.commit(commit) if commit else None

    def abort(self, reason: str = ABORTED) -> RecoveredOperation:
        """End the operation as it is, in one commit: the message that streams is settled with stopReason ``aborted``
        and ``reason`` as errorMessage, calls without a result are answered as interrupted, the scope is retired.

        Returns what it was; listeners are told as after a recovery. Raises :class:`Fenced` if it has ended, and what
        :meth:`Session.commit` raises; it runs on then.
        """
        with self._aborting(reason) as (found, commit):
            self.lane.session.commit(commit)
        return found

    # --- for those who settle ---------------------------------------------------------------------

    @contextmanager
    def _ending(self, writes: Iterable[Write[SessionScope]]) -> Iterator[list[Write[SessionScope]]]:
        """What to commit to end the operation, nothing if that is done; it has ended once the block has ended well."""
        more = list_of_writes(writes)
        with self.lane._lock:
            commit: list[Write[SessionScope]] = []
            if self.phase is not Phase.UNSURE or not self._is_over():
                self._check_open()
                commit = [*more, *self._closing()]
                self.phase = Phase.SETTLING
        try:
            yield commit
            self._over()
        except BaseException:
            self.phase = Phase.UNSURE
            raise

    @contextmanager
    def _aborting(self, reason: str) -> Iterator[tuple[RecoveredOperation, list[Write[SessionScope]]]]:
        """What the operation was, and what to commit to abort it."""
        with self.lane._lock:
            self._check_open()
            closing = self._closing()
            (found,) = self.lane._unsettled()
            found = found.ended_as("aborted", reason)
            entries = found.settlement()
            self.phase = Phase.SETTLING
        try:
            yield found, [*(self.lane.entries.append(entry) for entry in entries), *closing]
            with self.lane._lock:
                self._over()
                self.lane._tell_recovered(found, entries)
        except BaseException:
            if self.phase is not Phase.SETTLED:
                self.phase = Phase.UNSURE
            raise

    def _closing(self) -> list[Write[SessionScope]]:
        """What ends the operation; nothing of it may be stored behind that.

        Raises :class:`InvalidInput` while something of it is being stored.
        """
        self._resolve()
        for child in self._children.values():
            if child.phase is Phase.SETTLING:
                raise _under_way(f"the {child.kind} {child.id!r} is being settled")
        if self._checkpoints:
            raise _under_way("a checkpoint is being stored")
        return self._end_writes()

    def _resolve(self) -> None:
        """Finish what was stored though its commit raised."""
        for child in list(self._children.values()):
            if child.phase is Phase.UNSURE:
                child._resolve()

    def _end_writes(self) -> list[Write[SessionScope]]:
        """What ends the operation, in the commit that they are part of."""
        return [running(self.lane.name).delete(), self.scope.retire()]

    def _over(self) -> None:
        """The commit that ends it is stored."""
        self.lane._leave(self)
        self.phase = Phase.SETTLED

    def _is_over(self) -> bool:
        """Whether the store says that it has ended."""
        return running_operation(self.lane.session.get(running(self.lane.name))) != self.id

    def _check_open(self) -> None:
        """Raise :class:`Fenced` unless it runs, :class:`InvalidInput` in a listener's call."""
        self.lane._check_not_telling()
        if self.phase is Phase.UNSURE:
            if self._is_over():
                self._over()
            else:
                self.phase = Phase.OPEN
        if self.phase is not Phase.OPEN:
            raise ended(self.id)

    def _check_new(self, kind: str, name: str) -> None:
        self._check_open()
        self._resolve()
        check_name(f"id of the {kind}", name)
        if len(name.encode()) > MAX_NAME_BYTES:
            raise InvalidInput(f"the id of the {kind} takes over {MAX_NAME_BYTES} bytes", "use a shorter one")
        if (kind, name) in self._settled:
            raise settled(kind, name)

    def _mark_settled(self, kind: str, name: str) -> None:
        self._settled.add((kind, name))

    def _is_settled(self, kind: str, name: str) -> bool:
        """Whether the store has the entry."""
        self._read_settled()
        return (kind, name) in self._settled

    def _read_settled(self) -> None:
        """Learn from the store what this operation has settled: what stands behind its beginning in the lane."""
        found = entries_since(self.lane.session, self.lane.entries, self.began)
        self._settled.update(settled_name(entry) for _, entry in found)


def _under_way(what: str) -> InvalidInput:
    return InvalidInput(what, "wait until that call has returned, then call again")
