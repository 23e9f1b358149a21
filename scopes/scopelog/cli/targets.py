"""Where the lines of a recording go: to a list; or, in :mod:`.streaming`, through the reducer to a lane."""

from __future__ import annotations

from typing import Final, Protocol

from scopelog_engine.elements import Json

from ..addresses import SESSION, List, Scope, ephemeral
from ..session import Session


class Target(Protocol):
    """Takes the elements of lines one by one, and knows what of them is stored.

    Methods that return a sequence stage or store something under it: once :meth:`stored` has reached it, all lines
    taken by then are stored. None: the lines since the last one count with the next.
    """

    recovered: int
    """How many operations that an earlier recording left were settled."""

    @property
    def remedy(self) -> str:
        """What the user can do about a line that is refused."""

    @property
    def due(self) -> bool:
        """Whether :meth:`pause` has something to store that waits only for a line that may follow at once."""

    def open(self) -> None:
        """Make ready, before the first line."""

    def take(self, element: Json) -> int | None:
        """Take a line's element. Raises :class:`InvalidInput` for one that does not fit, and failures of writes."""

    def pause(self) -> int | None:
        """No line is at hand, though one may come."""

    def finish(self, cut: str | None, /) -> int | None:
        """No line will come. ``cut``: why the input was not read to its end, in a few words; None if it was."""

    def stored(self) -> int:
        """The sequence up to which all is stored."""


class ListTarget:
    """Appends each line to one list."""

    remedy: Final = "mend that line and record again from it on; the lines before it are stored"
    due: Final = False

    def __init__(self, session: Session, scope: str | None, namespace: str, key: str) -> None:
        """``scope`` None is the session scope."""
        self.recovered = 0
        self._session = session
        self._scope: Scope = SESSION
        self._list: List[Scope] = SESSION.list_of(namespace, key)
        if scope is not None:
            life = ephemeral(scope)
            self._scope, self._list = life, life.list_of(namespace, key)

    def open(self) -> None:
        pass

    def take(self, element: Json) -> int:
        return self._session.append(self._list, element)

    def pause(self) -> None:
        return None

    def finish(self, _cut: str | None, /) -> None:
        return None

    def stored(self) -> int:
        return self._session.durable_seq(self._scope)
