"""This machine's own Engram server: whose it is, joined where it runs, started where it does not, healed later.

With a configured url none of this happens: no identity is read or judged, nothing is started or healed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from scopelog.errors import HandleClosed

from .config import MemoryConfig
from .errors import EngramError, ServerRefused, ServerUnavailable
from .flight import SharedFlight
from .processes import Child, EngramProcess, ask
from .replies import INSTANCE, PROBE_TIMEOUT, Probe

POLL: Final = 0.1  # seconds between two looks at a server that starts
BACKOFF: Final = 1.0  # seconds a failed start is remembered, doubled up to the next
MAX_BACKOFF: Final = 60.0
HEAL_EVERY: Final = 30.0  # seconds between two healing starts
TRUSTED: Final = 60.0  # seconds for which a look at the server is believed, unless a request fails
LOOK_AGAIN: Final = 1.0  # seconds between two looks at a server that gives no healthy answer

Spawn = Callable[[Sequence[str], Mapping[str, str]], Child]
Ask = Callable[[Sequence[str], Mapping[str, str], float], Awaitable[tuple[int, bytes]]]

_log = logging.getLogger(__name__)


class Prober(Protocol):
    """What is asked of a transport."""

    failures: int

    async def probe(self, expected_instance: str | None, *, timeout: float = ...) -> Probe:
        """One look at /health."""


class ServerKeeper:
    """Sees to it that the server at the configured port runs and is this machine's own.

    One event loop. ``clock`` counts monotonic seconds. The identity is read once and kept. A server that was started
    outlives this object; a child that did not become the server is terminated.
    """

    def __init__(
        self,
        config: MemoryConfig,
        prober: Prober,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        spawn: Spawn = EngramProcess,
        ask: Ask = ask,
        heal_every: float = HEAL_EVERY,
    ) -> None:
        self.config = config
        self._prober = prober
        self._environ = environ
        self._clock = clock
        self._sleep = sleep
        self._spawn = spawn
        self._ask = ask
        self._heal_every = heal_every
        self._instance: str | None = None
        self._ready = False
        self._closed = False
        self._failure: EngramError | None = None
        self._again_at = 0.0  # a failed start is not repeated before
        self._backoff = BACKOFF
        self._heal_at = 0.0  # no healing start before
        self._starts: SharedFlight[None] = SharedFlight()
        self._heals: SharedFlight[bool] = SharedFlight()
        self._looks: SharedFlight[None] = SharedFlight()
        self._judged = -1  # the transport's failures up to which the last look tells
        self._look_at = 0.0  # without a failure the server is looked at again from then on
        self._children: list[Child] = []  # to be reaped

    @property
    def instance(self) -> str | None:
        """This machine's instance id, once it was read; None before, and always with a url."""
        return self._instance

    async def ensure(self) -> None:
        """Return once the server runs and is ours. Concurrent callers share one start; a good one is final until a
        heal fails. A failed start is raised again, without another try, for 1 s, doubled up to 60 s.

        After a request that failed, and once a minute, the server is looked at again: another one may have taken the
        port, or an older build the place of a newer. With a url its capabilities are asked for, and nothing judged.

        :raises ServerRefused: another instance's server, or an identity that cannot be read.
        :raises ServerUnavailable: nothing could be started, or not in time.
        """
        if self._ready or self.config.url is not None:
            for _ in range(2):  # a look that was joined may have begun before the failure that it is to be for
                if self._judged == self._prober.failures and self._clock() < self._look_at:
                    break
                self._refuse_closed()
                await self._looks.join(self._look_anew)
            return
        self._refuse_closed()
        if self._failure is not None and not self._starts.running and self._clock() < self._again_at:
            raise self._failure.again() from self._failure
        await self._starts.join(self._start)

    async def heal(self) -> bool:
        """Whether the server is back after a refused connection; for ``Transport.heal``.

        Starts it again at most once each ``heal_every`` seconds, shared by all who ask. In between only a look tells:
        it may be back through somebody else's heal. A heal that fails makes the next :meth:`ensure` start anew.
        """
        # before a good start, and so always with a url: a start is ensure's business, at most its outcome is waited for
        if self._closed:
            return False
        try:
            if not self._heals.running and not self._ready:
                return self._starts.running and await self._restarted()
            if not self._heals.running and self._clock() < self._heal_at:
                return await self._probe(PROBE_TIMEOUT) == "ready"
            return await self._heals.join(self._heal)
        except HandleClosed:  # given up: a request that waits for it is told that it was refused
            return False

    async def aclose(self) -> None:
        """Give up a start in flight and terminate its child; none is begun any more. A server that was started lives
        on."""
        self._closed = True
        await self._looks.abandon()
        await self._heals.abandon()
        await self._starts.abandon()
        self._reap()

    async def _look_anew(self) -> None:
        # whatever else is wrong with it the request will tell, and heal
        if await self._probe(PROBE_TIMEOUT) == "foreign" and self.config.url is None:
            self._look_at = self._clock()  # it is looked at again by the next who asks
            raise self._foreign()

    async def _probe(self, timeout: float) -> str:
        """One look, and for how long it is believed. A failure while it is under way is none that it tells of."""
        before = self._prober.failures
        state = (await self._prober.probe(self._instance, timeout=timeout)).state
        if state == "ready":
            self._judged, self._look_at = before, self._clock() + TRUSTED
        else:
            self._judged, self._look_at = self._prober.failures, self._clock() + LOOK_AGAIN
        return state

    def _refuse_closed(self) -> None:
        if self._closed:
            raise HandleClosed("the memory bridge was closed", "make a new one")

    # --- one start --------------------------------------------------------------------------------

    async def _heal(self) -> bool:
        self._heal_at = self._clock() + self._heal_every
        self._ready = False  # until proved otherwise nobody may take this port for ours
        return await self._restarted()

    async def _restarted(self) -> bool:
        try:
            await self._starts.join(self._start)
        except EngramError as error:
            _log.warning("the memory server could not be brought back: %s", error.cause)
            return False
        return True

    async def _start(self) -> None:
        self._reap()
        try:
            await self._establish(self._clock() + self.config.startup_timeout_ms / 1000)
        except EngramError as error:
            self._failure = error
            self._again_at = self._clock() + self._backoff
            self._backoff = min(2 * self._backoff, MAX_BACKOFF)
            raise
        self._failure = None
        self._backoff = BACKOFF
        self._ready = True

    async def _establish(self, deadline: float) -> None:
        if self._instance is None:
            self._instance = await self._identity(deadline)
        first = await self._look(deadline)
        if first == "ready":
            return
        failed = await self._serve(deadline)
        if failed is None:
            return
        if first == "indeterminate" or failed.waited_for:
            # somebody listens who may yet turn out to be ours; a refusal gets no such grace
            while self._clock() < deadline:
                await self._sleep(POLL)
                if await self._look(deadline) == "ready":
                    return
        raise await self._explain(failed.error)

    async def _serve(self, deadline: float) -> _Failed | None:
        """Start a child and wait until it, or whoever was quicker, is ready; else why not."""
        argv = [self.config.binary, "serve", str(self.config.port)]
        # with ENGRAM_SOCKET the child would have no port, and the bridge speaks to no socket
        environ = {name: value for name, value in self._environ.items() if name != "ENGRAM_SOCKET"}
        environ["ENGRAM_PORT"] = str(self.config.port)  # a port from the file is unknown to the child otherwise
        try:
            child = self._spawn(argv, environ)
        except (OSError, ValueError) as error:
            return _Failed(self._unavailable(f"{self.config.binary!r} could not be started ({_why(error)})"))
        kept = False
        self._children.append(child)
        try:
            while True:
                await self._sleep(POLL)
                if await self._look(deadline) == "ready":
                    kept = True
                    return None
                status = child.poll()
                if status is not None:
                    # once more after the exit: two that start together find one port, and the loser ends
                    state = await self._look(deadline)
                    if state == "ready":
                        return None
                    if state == "indeterminate":
                        what = f"something listens at {self.config.base_url}, but gives no healthy answer; "
                        ended = self._unavailable(f"{what}the server that was started ended with status {status}")
                        return _Failed(ended, waited_for=True)
                    ended = self._unavailable(f"the memory server ended with status {status} before it was ready")
                    return _Failed(ended)
                if self._clock() >= deadline:
                    limit = self.config.startup_timeout_ms
                    return _Failed(self._unavailable(f"the memory server was not ready within {limit} ms"))
        finally:
            # on every way out but success, a cancellation included: no child is left behind that nobody uses
            if not kept:
                child.terminate()

    async def _look(self, deadline: float) -> str:
        """The state a probe finds; a server that is not ours ends the start at once."""
        timeout = min(PROBE_TIMEOUT, max(deadline - self._clock(), 0.05))
        state = await self._probe(timeout)
        if state == "foreign":
            raise self._foreign()
        return state

    def _unavailable(self, cause: str) -> ServerUnavailable:
        command = f"`{self.config.binary} serve {self.config.port}`"
        return ServerUnavailable(cause, f"run {command} to see why, or set ENGRAM_URL to a server that runs")

    def _unreadable(self, why: str) -> ServerRefused:
        command = f"`{self.config.binary} instance-id`"
        return ServerRefused(
            f"the identity of this machine's Engram instance could not be read with {command} ({why})",
            "install a current engram, set ENGRAM_BIN to it, or set ENGRAM_URL to use a server without this check",
        )

    def _foreign(self) -> ServerRefused:
        return ServerRefused(
            f"the server at {self.config.base_url} is not this machine's Engram instance (ownership mismatch)",
            "stop it, choose another port, give both one ENGRAM_DATA_DIR, or set ENGRAM_URL to use it as it is",
        )

    async def _identity(self, deadline: float) -> str:
        environ = {**self._environ, "ENGRAM_NO_UPDATE_CHECK": "1"}
        limit = max(deadline - self._clock(), 0.0)
        try:
            status, said = await self._ask([self.config.binary, "instance-id"], environ, limit)
        except TimeoutError:
            raise self._unreadable("it did not end in time") from None
        except (OSError, ValueError) as error:
            raise self._unreadable(_why(error)) from error
        if status != 0:
            raise self._unreadable(f"exit status {status}")
        text = said.decode("ascii", "replace").strip()
        if not INSTANCE.fullmatch(text):
            raise self._unreadable("it printed something else than 32 lower-case hex digits")
        return text

    async def _explain(self, error: ServerUnavailable) -> ServerUnavailable:
        """The failure, or that a server is there after all, at a socket, which the bridge does not speak to."""
        path = self._environ.get("ENGRAM_SOCKET", "").strip()
        if not path or not await _listens(path):
            return error
        better = ServerUnavailable(
            f"a memory server listens at the socket {path!r} only, and {error.cause}",
            "start it with a TCP port instead of ENGRAM_SOCKET, or set ENGRAM_URL to one that has a port",
        )
        better.__cause__ = error
        return better

    def _reap(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]


class _Failed:
    """Why no child became the server; ``waited_for``: somebody else was at the port, and did not answer yet."""

    def __init__(self, error: ServerUnavailable, *, waited_for: bool = False) -> None:
        self.error = error
        self.waited_for = waited_for


def _why(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__


async def _listens(path: str) -> bool:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            _, writer = await asyncio.open_unix_connection(path)
    except (OSError, ValueError):
        return False
    writer.close()
    return True
