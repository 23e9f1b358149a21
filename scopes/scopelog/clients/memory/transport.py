"""HTTP to one Engram server: one request, its timeout, what may be sent again, and which error says what.

Nothing else of the bridge touches the memory store: no MCP, no database, no unix socket.

What is sent again, and no more: a read and POST /sessions after any transport failure but a timeout, with 250 ms x 2^n
between attempts; and anything whose connection was refused, once, after a successful heal, within the same attempt. A
whole answer is never asked for again, whatever its status.

stamina is not used here: its pauses cannot be injected, they carry jitter, and a second send within one attempt is
nothing it knows.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final

from scopelog.errors import HandleClosed, InvalidInput, MissingExtra

from .config import MemoryConfig
from .errors import (
    ConfigInvalid,
    DeliveryUnknown,
    EngramError,
    HttpError,
    RequestFailed,
    RequestRefused,
    RequestTimedOut,
    TransportFailed,
)
from .replies import MAX_HEALTH, MAX_REPLY, PROBE_TIMEOUT, Json, Probe, Undecodable, decode, judge, read_capped
from .spelling import Query, spell_body, spell_path, spell_query

if TYPE_CHECKING:
    import httpx2

BACKOFF: Final = 0.25  # seconds before the second attempt, doubled before each later one

# Connection: close, a new one for each request: one that the server has closed meanwhile would make a write's outcome
# unknown, and after a restart the refusal that proves non-delivery would not be seen
_HEADERS: Final = ((b"Accept", b"application/json"), (b"Accept-Encoding", b"identity"), (b"Connection", b"close"))

Sleep = Callable[[float], Awaitable[None]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reply:
    """``data`` of a request that was answered; else ``timed_out`` is the method of the one that was not."""

    data: Json
    timed_out: str | None = None


@dataclass(frozen=True)
class _Request:
    method: str
    path: str  # without private blocks, percent-encoded, without the query
    url: str
    body: bytes | None

    @property
    def replayable(self) -> bool:
        return self.method == "GET" or (self.method, self.path) == ("POST", "/sessions")


class Transport:
    """Requests to the server of ``config``. One event loop, any number of requests at a time.

    ``heal`` is called once at most for a request, when its connection was refused; it answers whether the server is
    back. ENGRAM_HTTP_TOKEN is read from ``environ`` for each request. ``capabilities`` are those of the last probe
    that was ready, None before. ``failures`` counts what failed in transport: after each another server may listen.
    """

    def __init__(
        self,
        config: MemoryConfig,
        *,
        environ: Mapping[str, str] = os.environ,
        sleep: Sleep = asyncio.sleep,
        heal: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.config = config
        self.heal = heal
        self.capabilities: frozenset[str] | None = None
        self.failures = 0
        self._failures_then = 0  # at the last probe that was ready
        self._environ = environ
        self._sleep = sleep
        self._wire: httpx2.AsyncHTTPTransport | None = None
        self._closed = False

    @property
    def doubted(self) -> bool:
        """Whether nobody knows which server listens now: none was ready yet, or a request has failed since."""
        return self.capabilities is None or self.failures != self._failures_then

    async def request(
        self, method: str, path: str | Sequence[str], *, query: Query | None = None, body: Json = None
    ) -> Json:
        """The decoded JSON of a successful answer.

        ``path``: its segments as plain text, or one text that starts with a slash and may be percent-encoded. Private
        blocks are taken out of it, of the query's values and of the body. None and '' are left out of the query.

        :raises RequestRefused: proved undelivered.
        :raises RequestTimedOut: no whole answer within ``request_timeout_ms``.
        :raises DeliveryUnknown: a write whose reply was lost, cut short, or cannot be read.
        :raises RequestFailed: a read that failed, after its retries.
        :raises HttpError: any answer but success.
        :raises InvalidInput: the request cannot be spelled; nothing was sent.
        :raises ConfigInvalid: the token cannot be sent in a header; nothing was sent.
        :raises MissingExtra: httpx2 is not installed.
        """
        request = self._spell(method, path, query, body)
        healed = False
        attempt = 0
        while True:
            failure: TransportFailed
            try:
                return await self._attempt(request)
            except RequestRefused as refused:
                failure = refused
            except (DeliveryUnknown, RequestFailed) as lost:
                failure = lost
            # outside of the handlers: nothing below may carry an earlier refusal as its context
            if isinstance(failure, RequestRefused) and self.heal is not None and not healed:
                healed = True  # once for a request, also when later attempts are refused
                if await self._healed():
                    # a refusal proves that nothing arrived: even a write goes out again, in the same attempt
                    try:
                        return await self._attempt(request)
                    except (RequestRefused, DeliveryUnknown, RequestFailed) as again:
                        failure = again
            attempt += 1
            if not request.replayable or failure.answered or attempt >= self.config.fetch_max_attempts:
                raise failure
            _log.debug("%s %s failed, attempt %d", request.method, request.path, attempt)
            await self._sleep(BACKOFF * 2 ** (attempt - 1))

    async def request_result(
        self, method: str, path: str | Sequence[str], *, query: Query | None = None, body: Json = None
    ) -> Reply:
        """As :meth:`request`, but a timeout is an answer too: no data, and the method that timed out."""
        try:
            return Reply(await self.request(method, path, query=query, body=body))
        except RequestTimedOut as error:
            return Reply(None, error.method)

    async def probe(self, expected_instance: str | None, *, timeout: float = PROBE_TIMEOUT) -> Probe:
        """One look at /health, without the token; never raises for what the server does. ``timeout`` in seconds.

        Without an ``expected_instance`` (ENGRAM_URL) the identity is not judged.
        """
        httpx2 = require_httpx2()
        before = self.failures
        found = Probe("indeterminate")
        try:
            async with (
                asyncio.timeout(timeout),
                self._exchange("GET", f"{self.config.base_url}/health") as response,
            ):
                if response.is_success:
                    try:
                        body = await _body(response, MAX_HEALTH)
                    except Undecodable:
                        found = Probe("foreign")
                    else:
                        found = judge(body, expected_instance)
        except TimeoutError:
            pass
        except httpx2.InvalidURL:
            raise ConfigInvalid("the url of the memory server cannot be used", "set ENGRAM_URL to another") from None
        except httpx2.RequestError as error:
            if is_refusal(error):
                found = Probe("refused")
        if found.state == "ready":
            self.capabilities, self._failures_then = found.capabilities, before
        else:
            self.failures += 1
        return found

    async def aclose(self) -> None:
        """Close the connections; requests afterwards raise ``HandleClosed``. Sends nothing."""
        self._closed = True
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.aclose()

    async def _healed(self) -> bool:
        try:
            return self.heal is not None and await self.heal()
        except EngramError as error:
            _log.warning("the memory server could not be brought back: %s", error.cause)
            return False

    # --- one request ------------------------------------------------------------------------------

    def _spell(self, method: str, path: str | Sequence[str], query: Query | None, body: Json) -> _Request:
        spelled = spell_path(path)
        url = self.config.base_url + spelled + spell_query(query)
        return _Request(method.upper(), spelled, url, spell_body(body))

    def _headers(self, request: _Request) -> list[tuple[bytes, bytes]]:
        headers = []
        if request.body is not None:
            headers.append((b"Content-Type", b"application/json"))
        # read anew for each request, so that a new token needs no restart; not trimmed: the server compares bytes
        token = self._environ.get("ENGRAM_HTTP_TOKEN", "")
        if token:
            if re.search(r"[\x00-\x08\x0a-\x1f\x7f]|[ \t]\Z", token):
                raise ConfigInvalid(
                    "ENGRAM_HTTP_TOKEN holds a line break, a control character or a space at its end",
                    "set it to a token that fits in a header, on the server and here",
                )
            headers.append((b"Authorization", b"Bearer " + token.encode("utf-8", "surrogateescape")))
        return headers

    async def _attempt(self, request: _Request) -> Json:
        try:
            return await self._ask(request)
        except TransportFailed:
            self.failures += 1
            raise

    async def _ask(self, request: _Request) -> Json:
        httpx2 = require_httpx2()
        method, path, limit = request.method, request.path, self.config.request_timeout_ms
        headers = self._headers(request)
        try:
            # a cancellation from outside passes through as itself: only this limit becomes a TimeoutError
            async with (
                asyncio.timeout(limit / 1000),
                self._exchange(method, request.url, request.body, headers) as response,
            ):
                try:
                    data = decode(await _body(response, MAX_REPLY))
                except Undecodable as error:
                    if response.is_success:
                        raise _lost(request, str(error), answered=True) from None
                    data = None
                if not response.is_success:
                    raise HttpError(method=method, path=path, status=response.status_code, body=data)
                return data
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise RequestTimedOut(method=method, path=path, limit_ms=limit) from error
        except httpx2.InvalidURL:
            raise InvalidInput("the request's URL is too long", "shorten the query") from None
        except httpx2.RequestError as error:
            if is_refusal(error):
                raise RequestRefused(method=method, path=path, url=self.config.base_url) from error
            # anything but a refusal may have come after the server had the request
            raise _lost(request, f"the connection failed ({type(error).__name__})") from error

    @asynccontextmanager
    async def _exchange(
        self, method: str, url: str, body: bytes | None = None, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> AsyncIterator[httpx2.Response]:
        wire = self._open()
        import httpx2

        request = httpx2.Request(method, url, content=body, headers=[*_HEADERS, *headers])
        response = await wire.handle_async_request(request)
        try:
            yield response
        finally:
            await response.aclose()

    def _open(self) -> httpx2.AsyncHTTPTransport:
        if self._closed:
            raise HandleClosed("the memory transport is closed", "make a new one")
        if self._wire is None:
            # without a client above it, which would log each URL with its query, keep cookies, follow redirects (they
            # would carry the token and the body elsewhere) and look for proxies
            self._wire = require_httpx2().AsyncHTTPTransport(
                trust_env=False,
                proxy=None,  # the loopback never goes through a proxy
                verify=not self.config.base_url.lower().startswith("http:"),  # loading certificates is slow
            )
        return self._wire


def require_httpx2() -> ModuleType:
    """The module httpx2, imported at the first use.

    :raises MissingExtra: it is not installed.
    """
    try:
        import httpx2
    except ImportError as error:
        raise MissingExtra(
            f"the memory bridge needs {error.name or 'httpx2'}, which is not installed",
            "run pip install '.[engram]' in a checkout of scopelog",
        ) from error
    return httpx2


def is_refusal(error: BaseException) -> bool:
    """Whether the failure is a refused connection, however deep its layers have put it, in groups and lists too.

    Only what the layers passed on is walked, never ``__context__``: that may be an older refusal which a caller was
    handling, and would pass a lost write off as undelivered.
    """
    todo: list[object] = [error]
    seen: set[int] = set()
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, ConnectionRefusedError):
            return True
        if isinstance(item, BaseException):
            todo += [item.__cause__, item.args]  # a group holds its members in its arguments
        elif isinstance(item, (list, tuple)):
            todo += item
    return False


def _lost(request: _Request, what: str, *, answered: bool = False) -> DeliveryUnknown | RequestFailed:
    kind = RequestFailed if request.method == "GET" else DeliveryUnknown
    return kind(method=request.method, path=request.path, what=what, answered=answered)


async def _body(response: httpx2.Response, limit: int) -> bytes:
    # identity was asked for; a small compressed body could unfold into any amount of memory
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise Undecodable("the reply is compressed")
    return await read_capped(response.aiter_raw(), response.headers.get("content-length"), limit)
