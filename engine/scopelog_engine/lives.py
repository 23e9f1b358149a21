"""Lives: which lives of a session's scopes a follower has shown, and what it knows of those that are over. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from .cursor import Cursor
from .position import LifePoint, mark_of

_REMEMBERED: Final = 4096  # retirements; older ones are looked up in main


class Ghost:
    """A life that was shown, and whose file is gone. ``explained``: main retires it, further on than was shown."""

    __slots__ = ("explained", "point")

    def __init__(self, point: LifePoint) -> None:
        self.point = point
        self.explained = False


class Lives:
    """``cursors``: of the lives that were shown and go on, by first sequence. ``since``: up to where main was shown."""

    def __init__(self, cursors: Iterable[Cursor] = (), ghosts: Iterable[LifePoint] = (), since: int = 0) -> None:
        self.cursors = {cursor.header.first: cursor for cursor in cursors}
        self._ghosts = {point.first: Ghost(point) for point in ghosts}
        self._alive = {cursor.header.scope: first for first, cursor in self.cursors.items()}  # ghosts too, once begun
        self._points = {first: _point_of(cursor) for first, cursor in self.cursors.items()}
        self._points.update((first, ghost.point) for first, ghost in self._ghosts.items())
        self._retired: OrderedDict[str, int] = OrderedDict()  # latest of each scope, complete above ``_since``
        self._since = since

    @property
    def scopes(self) -> dict[str, int]:
        """First sequences of those whose scopes are known."""
        return self._alive

    def points(self) -> tuple[LifePoint, ...]:
        """Up to where each was shown, in order of their first sequences."""
        return tuple(sorted(self._points.values()))

    def may_begin(self, cursor: Cursor) -> bool:
        """Whether none of its scope that was shown is alive."""
        scope = cursor.header.scope
        mark = mark_of(scope)
        return scope not in self._alive and all(ghost.point.mark != mark for ghost in self._ghosts.values())

    def begin(self, cursor: Cursor) -> None:
        self.cursors[cursor.header.first] = cursor
        self._alive[cursor.header.scope] = cursor.header.first

    def moved(self, cursor: Cursor) -> None:
        """It has taken a batch."""
        self._points[cursor.header.first] = _point_of(cursor)

    # --- ends -------------------------------------------------------------------------------------

    def haunted(self, first: int) -> bool:
        return first in self._ghosts

    def haunt(self, first: int) -> None:
        """Its file is gone: its retirement is still to be shown, or it was lost."""
        if self.cursors.pop(first, None) is not None:
            self._ghosts[first] = Ghost(self._points[first])

    def unexplained(self) -> list[Ghost]:
        return [ghost for ghost in self._ghosts.values() if not ghost.explained]

    def retire(self, scope: str, sequence: int) -> int:
        """Take note of a retirement. First sequence of the life that it ends, 0 if that is not known."""
        self._retired.pop(scope, None)
        self._retired[scope] = sequence
        while len(self._retired) > _REMEMBERED:
            self._since = max(self._since, self._retired.popitem(last=False)[1])
        mark = mark_of(scope)
        for other, ghost in [*self._ghosts.items()]:
            if ghost.point.mark == mark and other < sequence:
                del self._ghosts[other], self._points[other]
        first = self._alive.get(scope, 0)
        if not 0 < first < sequence:
            return 0
        del self._alive[scope]
        self.cursors.pop(first, None)
        self._points.pop(first, None)
        return first

    def retirement(self, scope: str, first: int) -> int | None:
        """The latest one shown of a scope, for a life of it; None if main must be asked."""
        known = self._retired.get(scope, 0)
        return known if known > first or first >= self._since else None


def _point_of(cursor: Cursor) -> LifePoint:
    return LifePoint(cursor.header.first, *cursor.point, mark_of(cursor.header.scope))
