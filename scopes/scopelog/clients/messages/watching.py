"""Watching a lane: its value as it is, then every change, as ops.

The base is what the lane shows in memory, never what is stored: the write-behind window delays what is stored, not
what is shown. One copy of the value serves all who watch: it stands at some batch of the feed, and is brought forward
by the batches behind it, without the lane's lock. Only once the feed has lost those is the lane itself looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from scopelog_engine.elements import Json
from scopelog_engine.feeds import LOST, Batch, Feed

from ...aio_watching import AsyncSource
from ...delta import Encoder, apply, is_base
from ...delta.ops import Op
from ...watching import BlockingSource, Cursor
from .copying import finite

if TYPE_CHECKING:
    from .lane import Lane


class Ops(NamedTuple):
    """A batch of a lane's watch: ``apply(value, ops)`` takes it in; encoded, the decoder comes before.

    ``base``: whether it replaces the whole value; the first batch does. ``ops`` are nobody else's.
    """

    position: str
    ops: list[Any]
    base: bool

    @property
    def kind(self) -> str:
        return "base" if self.base else "batch"

    def data(self) -> Json:
        """The event as JSON, its position left out."""
        return {"ops": self.ops}


class Shown(NamedTuple):
    """The lane's value as it was at a batch of its feed; not to be changed."""

    feed: Feed
    number: int
    value: Json


class LaneSource(BlockingSource[Ops]):
    """A lane's value, for one watch. ``encoded``: an encoder of its own, which begins anew with each base."""

    def __init__(self, lane: Lane, limit: int, encoded: bool) -> None:
        super().__init__(limit)
        self._lane = lane
        self._encoder = Encoder() if encoded else None
        self.keeps_state = encoded

    def begin(self, watcher: object, after: tuple[str, int] | None) -> Cursor[Ops]:
        lane = self._lane
        with lane._lock:
            feed = lane._feed_for(watcher, self.limit)
            if after is not None and after[0] == feed.token and feed.holds_after(after[1], self.limit):
                return Cursor(feed, after[1], None)
        return self._based(feed)

    def base(self, feed: Feed) -> Cursor[Ops] | None:
        return self._based(feed) if feed.ended is None else None

    def event(self, batch: Batch, position: str) -> Ops:
        return self._ops(position, finite(batch.content))

    def stop(self, watcher: object, feed: Feed) -> None:
        self._lane._stop_watching(watcher, feed)

    def _based(self, feed: Feed) -> Cursor[Ops]:
        shown = self._lane._shown_at(feed)
        ops = [["r", finite(shown.value)]]
        return Cursor(feed, shown.number, self._ops(feed.position(shown.number), ops))

    def _ops(self, position: str, ops: list[Op]) -> Ops:
        return Ops(position, ops if self._encoder is None else self._encoder.encode(ops), is_base(ops))


class AsyncLaneSource(AsyncSource[Ops]):
    """The same for a task; it never waits for longer than the lane is held."""

    def __init__(self, lane: Lane, limit: int, encoded: bool) -> None:
        super().__init__(limit)
        self._source = LaneSource(lane, limit, encoded)
        self.keeps_state = encoded

    async def begin(self, watcher: object, after: tuple[str, int] | None) -> Cursor[Ops]:
        return self._source.begin(watcher, after)

    async def base(self, feed: Feed) -> Cursor[Ops] | None:
        return self._source.base(feed)

    def event(self, batch: Batch, position: str) -> Ops:
        return self._source.event(batch, position)

    def stop(self, watcher: object, feed: Feed) -> None:
        self._source.stop(watcher, feed)


def brought_forward(shown: Shown) -> Shown | None:
    """The value as it is at the newest batch; None if the feed does not hold all that came behind it."""
    number, ops = shown.number, []
    while (batch := shown.feed.after(number)) is not None:
        if batch is LOST:
            return None
        assert isinstance(batch, Batch)
        ops += finite(batch.content)
        number = batch.number
    return Shown(shown.feed, number, apply(finite(shown.value), ops)) if ops else shown
