"""What runs in a lane: an operation, the responses it asks a model for, and the tools it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from scopelog_engine.writer import Receipt

from ...addresses import EphemeralScope, SessionScope, Write, check_name, ephemeral
from ...errors import InvalidInput
from .fencing import ended, settled
from .places import running
from .reading import entries_since, settled_name
from .responses import Response
from .retention import HEAD, TAIL, Kept, Retention
from .settling import Phase
from .tools import MAX_BYTES, MAX_LINES, ToolSink

if TYPE_CHECKING:
    from .lane import Lane


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
        self._settled: set[str] = set()

    def response(self, entry_id: str) -> Response:
        """Begin a response of the model, which takes the place of the one before; ``entry_id`` is its entry's.

        Raises :class:`Fenced` if an entry of that id is settled already, or if the operation has ended.
        """
        with self.lane.changing():
            self._check_new("response", entry_id)
            self.current = Response(self, entry_id)
            return self.current

    def tool(
        self, invocation_id: str, *, keep: Retention = TAIL, max_bytes: int = MAX_BYTES, max_lines: int = MAX_LINES
    ) -> ToolSink:
        """Begin a tool's output, or go on with it after a crash: it holds then what was stored of it.

        ``keep``: the ``"tail"`` or the ``"head"`` of a text that exceeds ``max_bytes`` of UTF-8 (50 KiB) or
        ``max_lines`` (2,000). Raises :class:`Fenced` as :meth:`response` does, and :class:`InvalidInput` for caps
        that mean nothing and for an invocation that has a sink.
        """
        if keep not in (HEAD, TAIL):
            raise InvalidInput(f"keep is {keep!r}", "pass 'head' or 'tail'")
        for name, cap in (("max_bytes", max_bytes), ("max_lines", max_lines)):
            if type(cap) is not int or cap < 1:
                raise InvalidInput(f"{name} is {cap!r}", "pass an int from 1 on")
        with self.lane.changing():
            self._check_new("tool", invocation_id)
            if self.lane.has_tool(invocation_id):
                raise InvalidInput(f"the tool {invocation_id!r} has a sink already", "go on with that one")
            return ToolSink(self, invocation_id, Kept(keep, max_bytes, max_lines))

    def end(self, writes: Iterable[Write[SessionScope]] = ()) -> Receipt | None:
        """End the operation in one commit that holds ``writes`` and retires its scope. What is not settled is dropped.

        Returns None if an earlier call that raised had stored that after all. Raises :class:`Fenced` if it has ended,
        and what :meth:`Session.commit` raises; it runs on then.
        """
        with self.ending(writes) as commit:
            return self.lane.session.commit(commit) if commit else None

    # --- for those who settle ---------------------------------------------------------------------

    @contextmanager
    def ending(self, writes: Iterable[Write[SessionScope]]) -> Iterator[list[Write[SessionScope]]]:
        """What to commit to end the operation, nothing if that is done; it has ended once the block has ended well."""
        with self.lane.lock:
            commit: list[Write[SessionScope]] = []
            if self.phase is not Phase.UNSURE or not self.is_over():
                self.check_open()
                commit = [*writes, *self.end_writes()]
            self.phase = Phase.SETTLING
        try:
            yield commit
            self.over()
        except BaseException:
            self.phase = Phase.UNSURE
            raise

    def end_writes(self) -> list[Write[SessionScope]]:
        """What ends the operation, in the commit that they are part of."""
        return [running(self.id).delete(), self.scope.retire()]

    def over(self) -> None:
        """The commit that ends it is stored."""
        self.lane.leave(self)
        self.phase = Phase.SETTLED

    def is_over(self) -> bool:
        """Whether the store says that it has ended."""
        return self.lane.session.get(running(self.id)) is None

    def check_open(self) -> None:
        """Raise :class:`Fenced` unless it runs."""
        if self.phase is Phase.UNSURE:
            if self.is_over():
                self.over()
            else:
                self.phase = Phase.OPEN
        if self.phase is not Phase.OPEN:
            raise ended(self.id)

    def _check_new(self, what: str, name: str) -> None:
        self.check_open()
        check_name(f"id of the {what}", name)
        if name in self._settled:
            raise settled(what, name)

    def settle(self, name: str) -> None:
        """An entry was settled."""
        self._settled.add(name)

    def is_settled(self, name: str) -> bool:
        """Whether the store has the entry."""
        self.read_settled()
        return name in self._settled

    def read_settled(self) -> None:
        """Learn from the store what this operation has settled."""
        for entry in entries_since(self.lane.session, self.lane.entries, self.began):
            if entry.get("runId") == self.id:
                self._settled.add(settled_name(entry))
