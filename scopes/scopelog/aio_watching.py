"""Watching for tasks: see :mod:`scopelog.watching`."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Self, cast

from scopelog_engine.awaiting import AsyncWriter
from scopelog_engine.errors import ScopelogError
from scopelog_engine.feeds import LOST, Batch, Feed, Lost
from scopelog_engine.watching import Looked, Wanted

from .watching import (
    Cursor,
    E,
    Ended,
    Following,
    SessionEvent,
    Source,
    base_of,
    check_position,
    event_of,
)


class AsyncSource(Source[E]):
    """A source for tasks."""

    @abstractmethod
    async def begin(self, watcher: object, after: tuple[str, int] | None) -> Cursor[E]:
        """See :meth:`BlockingSource.begin`."""

    @abstractmethod
    async def base(self, feed: Feed) -> Cursor[E] | None:
        """See :meth:`BlockingSource.base`."""


class AsyncWatch(Following[E]):
    """A live view for one task: for ``async for``, or :meth:`next`. Made by :meth:`AsyncSession.watch`.

    See :class:`scopelog.Watch`. Cancelled, it has delivered nothing: the next call goes on.
    """

    def __init__(self, source: AsyncSource[E]) -> None:
        super().__init__(source)
        self._awaited = source

    async def _begin(self, after: str | None) -> Self:
        self._at = await self._awaited.begin(self, check_position(after))
        return self

    async def next(self, timeout: float | None = None) -> E | Ended | None:
        """Wait for the next event, for at most ``timeout`` seconds; None if there was none. Once the watch has ended
        it is always its last event."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        mark = self._mark()
        try:
            while True:
                event = self._take()
                if event is LOST:
                    event = await self._take_base()
                if event is not None:
                    return cast("E | Ended", event)
                if not await self._news(loop, until):
                    return None
        except BaseException:
            if self._at is not mark[0] or self._ended is not mark[2]:
                self._roll_back(mark)
            raise

    async def _news(self, loop: asyncio.AbstractEventLoop, until: float | None) -> bool:
        """Wait until there is something; False if there was not until then."""
        feed = self._at.feed
        future = feed.expect(loop)
        timer: asyncio.TimerHandle | None = None
        try:
            if self._ready():
                return True
            if until is not None:
                if loop.time() >= until:
                    return False
                timer = loop.call_at(until, _resolve, future)
            await future
            return True
        finally:
            feed.forget(loop, future)
            if timer is not None:
                timer.cancel()

    async def _take_base(self) -> E | Ended | Lost | None:
        try:
            found = await self._awaited.base(self._at.feed)
        except ScopelogError as error:
            return self._fail(error)
        if found is not None:
            self._at = found
        return self._take()

    def __aiter__(self) -> AsyncIterator[E | Ended]:
        return self

    async def __anext__(self) -> E | Ended:
        if self._ended is not None:
            raise StopAsyncIteration
        event = await self.next()
        assert event is not None
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()


class AsyncSessionSource(AsyncSource[SessionEvent]):
    """A value or a list of a session."""

    def __init__(self, writer: AsyncWriter, wanted: Wanted) -> None:
        super().__init__(wanted.limit)
        self._writer = writer
        self._wanted = wanted

    async def begin(self, watcher: object, after: tuple[str, int] | None) -> Cursor[SessionEvent]:
        found = await self._writer.watch(watcher, self._wanted, after)
        if isinstance(found, Looked):
            return base_of(self._wanted, found, await self._writer.records(found, self._wanted))
        return Cursor(*found, None)

    async def base(self, feed: Feed) -> Cursor[SessionEvent] | None:
        looked = await self._writer.base(feed, self._wanted)
        if looked is None:
            return None
        return base_of(self._wanted, looked, await self._writer.records(looked, self._wanted))

    def event(self, batch: Batch, position: str) -> SessionEvent:
        return event_of(batch, position)

    def stop(self, watcher: object, feed: Feed) -> None:
        self._writer.stop_watching(watcher, feed)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
