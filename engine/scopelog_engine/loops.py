"""What the engine asks of event loops, without importing asyncio: who uses it has imported it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future


def running_loop() -> AbstractEventLoop | None:
    """The event loop that runs on this thread, if any."""
    events = sys.modules.get("asyncio.events")
    return events._get_running_loop() if events is not None else None


def wake(futures: list[Future[None]]) -> None:
    """Resolve futures, each on its own loop; those of a closed loop are nobody's any more."""
    here = running_loop()
    far: dict[AbstractEventLoop, list[Future[Any]]] = {}
    for future in futures:
        loop = future.get_loop()
        if loop is not here:
            far.setdefault(loop, []).append(future)
        elif not future.done():
            future.set_result(None)
    for loop, of_loop in far.items():
        try:
            loop.call_soon_threadsafe(_finish_all, of_loop)
        except RuntimeError:
            continue


def _finish_all(futures: list[Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
