"""Following a session, for tasks. See :mod:`.follow`."""

from __future__ import annotations

import asyncio
from typing import Self

from scopelog_engine.awaiting import in_thread
from scopelog_engine.position import Position

from .follow import FollowEvent, SessionFollower


class AsyncSessionFollower:
    """Follows one session, for one task at a time: ``async for event in follower``. ``sync``: the same follower.

    It reads in threads, and waits in the loop: nothing is held while there is nothing new.
    """

    def __init__(self, follower: SessionFollower) -> None:
        self.sync = follower

    @property
    def id(self) -> str:
        return self.sync.id

    @property
    def position(self) -> Position | None:
        """See :attr:`SessionFollower.position`."""
        return self.sync.position

    @property
    def ended(self) -> bool:
        """See :attr:`SessionFollower.ended`."""
        return self.sync.ended

    async def poll(self) -> list[FollowEvent]:
        """See :meth:`SessionFollower.poll`. Cancelled, it has taken no event."""
        return await in_thread(self.sync.poll, undo=self.sync._put_back)

    async def next(self, timeout: float | None = None) -> FollowEvent | None:
        """See :meth:`SessionFollower.next`. Cancelled, it has taken no event."""
        loop = asyncio.get_running_loop()
        follower, watch = self.sync, self.sync._watch
        deadline = None if timeout is None else loop.time() + timeout
        while not follower.ended:
            watch.drain()
            event = await in_thread(follower._next_there_is, undo=follower._put_one_back)
            if event is not None:
                return event
            pause = watch.pause
            if deadline is not None and deadline - loop.time() <= pause:
                pause = deadline - loop.time()
                if pause <= 0:
                    break
            await self._wake(loop, pause)
        return None

    async def _wake(self, loop: asyncio.AbstractEventLoop, pause: float) -> None:
        """Wait until it is worth looking: ``pause`` seconds at most."""
        woken = asyncio.Event()
        descriptors = self.sync._watch.descriptors
        for descriptor in descriptors:
            loop.add_reader(descriptor, woken.set)
        try:
            async with asyncio.timeout(pause):
                await woken.wait()
        except TimeoutError:
            pass
        finally:
            for descriptor in descriptors:
                loop.remove_reader(descriptor)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FollowEvent:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def close(self) -> None:
        """End the iteration, also one that another task waits in."""
        self.sync.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
