"""How a message settles: in one commit of the session scope, after which nothing of it is taken any more.

What comes late is refused from the moment the commit is begun, and what would end the operation meanwhile as well. If
the commit raises, the store alone knows what became of it; so it is asked whether the entry is there before anything
else is done. So a retry settles once, and what was not settled goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from scopelog_engine.elements import Json
from scopelog_engine.writer import Receipt

from ...addresses import SessionScope, Write
from ...errors import InvalidInput
from ...session import given_as
from .copying import finite
from .fencing import settled

if TYPE_CHECKING:
    from .lane import Listener
    from .operations import Operation


class Phase(Enum):
    """Of something that settles, or of an operation, which ends."""

    OPEN = "open"
    SETTLING = "settling"  # its commit is under way
    UNSURE = "unsure"  # its commit has raised
    SETTLED = "settled"


class Settling(ABC):
    """A response, or a tool's output."""

    kind: str

    def __init__(self, operation: Operation, name: str) -> None:
        self.operation = operation
        self.id = name
        self.phase = Phase.OPEN
        self._attempt: dict[str, Json] = {}  # the message of the last attempt to settle
        self._audience: list[Listener] | None = None  # who has not been told yet that it is settled
        self._lane = operation.lane
        operation._children[self.kind, name] = self

    def settle(
        self, message: Json = None, *, writes: Iterable[Write[SessionScope]] = (), end: bool = False
    ) -> Receipt | None:
        """Settle the message, in one commit of the session scope that holds its entry, and ``writes``.

        ``message``: the settled message; None takes the one that is at hand: of a response that of the event that
        ended it, of a tool one made of its output. ``end``: the operation ends with it, its scope retired by the same
        commit. Returns None if an earlier call that raised had stored the message after all (``writes`` with it).

        Raises :class:`Fenced` if it is settled, :class:`InvalidInput` if there is no message, or with ``end`` while
        something else of the operation is being stored, and what :meth:`Session.commit` raises: then it is not
        settled, or the next call finds that it was.
        """
        with self._settling(message, writes, end=end) as commit:
            return self._lane.session.commit(commit) if commit else None

    @contextmanager
    def _settling(
        self, message: Json, writes: Iterable[Write[SessionScope]], *, end: bool
    ) -> Iterator[list[Write[SessionScope]]]:
        """What to commit, nothing if that was done; the message is settled once the block has ended well."""
        operation = self.operation
        more = list_of_writes(writes)
        with self._lane._lock:
            done = self.phase is Phase.UNSURE and self._resolve()
            if not done:
                self._check_open()
                self._attempt = finite(self._message(message))
                commit = [self._lane.entries.append(self._entry(self._attempt)), *more]
                if end:
                    commit += operation._closing()
                    operation.phase = Phase.SETTLING
                self.phase = Phase.SETTLING
        if done:
            if end and operation.phase is not Phase.SETTLED:
                with operation._ending(()) as commit:
                    yield commit
            else:
                yield []
            return
        try:
            yield commit
            with self._lane._changing():
                self._finish(over=end)
        except BaseException:  # what of this is undone is done once the store was asked
            self.phase = Phase.UNSURE
            if end:
                operation.phase = Phase.UNSURE
            raise

    def _resolve(self) -> bool:
        """A commit has raised: ask the store whether it is settled, finish what is left to do then, or go on."""
        if not self.operation._is_settled(self.kind, self.id):
            self.phase = Phase.OPEN
            return False
        with self._lane._changing():
            self._finish(over=self.operation._is_over())
        return True

    def _finish(self, *, over: bool) -> None:
        """It is stored, and the operation over with it or not. May be done again, where it was interrupted."""
        operation = self.operation
        operation._mark_settled(self.kind, self.id)
        if over:
            operation._over()
        elif self._is_current():
            self._leave()
        if self._audience is None:
            self._audience = self._lane._audience_now()
        self._lane._emit(self._events(self._attempt), self._audience)
        operation._children.pop((self.kind, self.id), None)
        self.phase = Phase.SETTLED

    def _check_open(self) -> None:
        """Raise :class:`Fenced` if it is settled, or its operation has ended."""
        if self.phase is Phase.UNSURE:
            self._resolve()
        if self.phase is not Phase.OPEN or not self._is_current():
            raise settled(self.kind, self.id)
        self.operation._check_open()

    @abstractmethod
    def _is_current(self) -> bool:
        """Whether no other has taken its place."""

    @abstractmethod
    def _message(self, message: Json) -> Json:
        """The message to settle. Raises :class:`InvalidInput` if there is none."""

    @abstractmethod
    def _entry(self, message: Json) -> dict[str, Json]:
        """What is appended to the lane's entries."""

    @abstractmethod
    def _leave(self) -> None:
        """Take it out of what the lane shows."""

    @abstractmethod
    def _events(self, message: Json) -> list[dict[str, Json]]:
        """What the listeners are told when it is settled."""


def list_of_writes(writes: Iterable[Write[SessionScope]]) -> list[Write[SessionScope]]:
    """Raises :class:`InvalidInput` for what is no list of writes, before anything is done."""
    if isinstance(writes, Write) or not isinstance(writes, Iterable):
        raise InvalidInput(f"writes is {given_as(writes)}, not a list of writes", "put it into a list")
    return list(writes)
