"""Watches as server-sent events: bytes for any ASGI server, which is not imported.

Each event of the watch is one of the stream: ``id:`` its position, which a client that comes back sends as
``Last-Event-ID`` and a server passes on as ``after``; ``event:`` base, batch or end; ``data:`` JSON on one line.
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

from .aio_watching import AsyncWatch
from .errors import InvalidInput
from .session import given_as

__all__ = ["HEADERS", "server_sent_events"]

HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
)
"""What a response of this kind says of itself, as ASGI spells it."""

_HEARTBEAT: Final = b":\n\n"
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode  # escapes all but ASCII, so also newlines


class _Event(Protocol):
    @property
    def position(self) -> str: ...

    @property
    def kind(self) -> str: ...

    def data(self) -> Any: ...


T = TypeVar("T", bound=_Event)


async def server_sent_events(
    watch: AsyncWatch[T],
    *,
    heartbeat: float = 15.0,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncIterator[bytes]:
    """The watch as the body of a ``text/event-stream`` response, event by event; it ends with the watch.

    A comment is sent once nothing else was for ``heartbeat`` seconds, so that proxies keep the connection and a client
    that has gone is noticed. Cancelled or closed, it stops the watch. ``sleep`` is a seam for tests.
    """
    if not isinstance(watch, AsyncWatch):
        raise InvalidInput(f"{given_as(watch)} is no AsyncWatch", "pass await AsyncSession.watch(...)")
    if type(heartbeat) not in (int, float) or not 0 < heartbeat < float("inf"):
        raise InvalidInput(f"heartbeat is {heartbeat!r}", "pass a number of seconds above 0")
    coming: asyncio.Future[Any] | None = None
    pause: asyncio.Future[object] | None = None
    try:
        while watch.ended is None:
            coming = coming or asyncio.ensure_future(watch.next())
            pause = asyncio.ensure_future(sleep(heartbeat))
            await asyncio.wait((coming, pause), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                pause.result()
                yield _HEARTBEAT
                continue
            event, coming = coming.result(), None
            pause.cancel()
            yield rendered(event)
    finally:
        for task in (coming, pause):
            if task is not None:
                task.cancel()
        watch.stop()


def rendered(event: _Event) -> bytes:
    """One event of the stream."""
    return f"id: {event.position}\nevent: {event.kind}\ndata: {_encode(event.data())}\n\n".encode("ascii")
