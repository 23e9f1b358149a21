"""One piece of work at a time, shared by everybody who asks for it while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from scopelog.errors import HandleClosed

Result = TypeVar("Result")


class SharedFlight(Generic[Result]):
    """Callers join the work in flight. Cancelling one caller neither stops it nor reaches the others."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Result] | None = None

    @property
    def running(self) -> bool:
        """Whether work is in flight that a caller would join."""
        return self._task is not None

    async def join(self, start: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The outcome of the work in flight, which ``start`` begins if there is none.

        Raises :class:`HandleClosed` if it is abandoned: whoever waits has not been cancelled.
        """
        task = self._task
        if task is None:
            task = self._task = asyncio.get_running_loop().create_task(start())
            task.add_done_callback(self._landed)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not task.cancelled() or (caller is not None and caller.cancelling()):
                raise
        raise HandleClosed("the memory bridge was closed", "make a new one")

    async def abandon(self) -> None:
        """Cancel the work in flight and wait until it has cleaned up."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _landed(self, task: asyncio.Task[Result]) -> None:
        # in the task's own callback, not in a caller: all callers may be gone
        self._task = None
        if not task.cancelled():
            task.exception()  # seen, also when nobody waits any more
