"""The bridge: agent sessions of a harness on one side, one Engram server on the other.

Only HTTP touches the memory store, and only this machine's own instance is spoken to, unless ENGRAM_URL says otherwise.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Self, TypeAlias

from scopelog.aio import AsyncSession
from scopelog.errors import HandleClosed, InvalidInput
from scopelog.session import Session, given_as

from .capture import PROTOCOL
from .config import MemoryConfig, load_config
from .server import ServerKeeper
from .sessions import Host, MemorySession
from .transport import Transport

Json: TypeAlias = Any


class MemoryBridge:
    """Connects agent sessions to the memory server, from one event loop. ``async with`` closes it.

    Nothing is injected at the start of a session: what a harness adds to its system prompt is :attr:`protocol`, a
    static text, and after a compaction :meth:`MemorySession.take_notice`.
    """

    protocol: Final = PROTOCOL

    def __init__(
        self,
        config: MemoryConfig | Mapping[str, Json] | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """``config``: settings of a file, over which the environment counts (:func:`load_config`), or a config.

        Raises :class:`ConfigInvalid`. ``clock`` (monotonic seconds), ``sleep`` and ``new_id`` are seams for tests.
        """
        self.config = config if isinstance(config, MemoryConfig) else load_config(config, environ)
        self._transport = Transport(self.config, environ=environ, sleep=sleep)
        self._keeper = ServerKeeper(self.config, self._transport, environ=environ, clock=clock, sleep=sleep)
        self._transport.heal = self._keeper.heal
        self._host = Host(self.config, self._transport, self.ready, clock, sleep, new_id)
        self._sessions: dict[tuple[int, str], MemorySession] = {}
        self._closed = False

    async def session(self, session: AsyncSession | Session, agent_id: str, cwd: str | None) -> MemorySession:
        """The agent session of that id, which keeps its outbox in ``session``. ``cwd``: its own working directory,
        absolute; without one nothing is read or written ('the session reported no working directory').

        ``agent_id`` names the row on the server: no other agent of any store that uses this server may have it.

        The same id in the same session gives the same object until it is released; then a new one, with the same key
        and row. What an earlier process has left in the outbox is delivered from now on.

        Raises :class:`InvalidInput` for an id or a directory that cannot be used, a relative one among them, or another
        directory than that in which the agent is at work.
        """
        if self._closed:
            raise HandleClosed("the memory bridge is closed", "make a new one")
        face = AsyncSession(session) if isinstance(session, Session) else session
        if not isinstance(face, AsyncSession):
            raise InvalidInput(f"{given_as(session)} is no session", "pass a Session or an AsyncSession")
        place = id(face.sync), agent_id
        while (known := self._sessions.get(place)) is not None:
            if not known.released:
                if known.cwd != cwd:
                    raise InvalidInput(
                        f"the agent {agent_id!r} is at work in {known.cwd!r}", "pass that cwd, or release it first"
                    )
                return known
            await known.hand_over()  # one task delivers an outbox
            if self._sessions.get(place) is known:  # nobody was faster
                del self._sessions[place]
        if self._closed:
            raise HandleClosed("the memory bridge is closed", "make a new one")
        for where, one in list(self._sessions.items()):
            if one.settled:
                del self._sessions[where]
                await one.aclose()
        if self._closed:
            raise HandleClosed("the memory bridge is closed", "make a new one")
        if (known := self._sessions.get(place)) is not None:  # made meanwhile
            return known
        made = self._sessions[place] = MemorySession(self._host, face, agent_id, cwd)
        return made

    async def ready(self) -> None:
        """Return once the server runs and is ours; starts it if need be.

        Raises :class:`ServerRefused`, :class:`ServerUnavailable`.
        """
        await self._keeper.ensure()

    async def aclose(self) -> None:
        """Stop delivering and let go of the connections. Ends no row, and begins no request: one that is under way is
        waited for, up to the request timeout, for cut short its outcome would be unknown. The server runs on."""
        self._closed = True
        await self._keeper.aclose()  # first: what waits for a heal is refused, which is proof that it was not sent
        await asyncio.gather(*(session.hand_over() for session in list(self._sessions.values())))
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
