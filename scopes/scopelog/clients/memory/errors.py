"""What the memory bridge raises. Each says one sentence of cause and one of remedy, none quotes a token.

::

    ConfigInvalid           before anything was tried: fix the file or the environment
    EngramError
    ├── ServerRefused       somebody else's server, or one whose owner cannot be told: nothing is sent to it
    ├── ServerUnavailable   no server, and none could be started in time
    ├── ProjectUnresolved   the working directory names no project: nothing was sent
    ├── HttpError           the server answered, and not with success
    └── TransportFailed     there was no usable answer
        ├── RequestRefused      proved undelivered
        ├── RequestTimedOut     a read failed, a write may have been applied
        ├── DeliveryUnknown     a write that may have been applied
        └── RequestFailed       a read that failed

A caller's cancellation is none of them: it stays ``asyncio.CancelledError``.
"""

from __future__ import annotations

from typing import Any, Final

from scopelog.errors import InvalidInput, ScopelogError

_SHOWN: Final = 500  # characters of a server's own message that an error repeats


class ConfigInvalid(InvalidInput):
    """A setting of the bridge, or a variable of the environment, that cannot be used; the cause names it."""


class EngramError(ScopelogError):
    """Base of what goes wrong between the bridge and an Engram server."""


class ServerRefused(EngramError):
    """The server at the port is not this machine's own instance, or its identity or ours cannot be read."""


class ServerUnavailable(EngramError):
    """No server answers and none could be started: the child failed, or the start-up timeout passed."""


class ProjectUnresolved(EngramError):
    """The session's working directory names no single project, so nothing was sent.

    ``reason`` is why, ``candidates`` are the projects the server would choose from, where it named any.
    """

    def __init__(self, cause: str, remedy: str, *, reason: str, candidates: tuple[str, ...] = ()) -> None:
        super().__init__(cause, remedy)
        self.reason = reason
        self.candidates = candidates


class TransportFailed(EngramError):
    """There was no usable answer. ``method`` and ``path`` (redacted, without the query) name the request.

    ``answered``: the server did answer with success, but not with JSON of a sane size; asking again is of no use.
    """

    def __init__(self, cause: str, remedy: str, *, method: str, path: str, answered: bool = False) -> None:
        super().__init__(cause, remedy)
        self.method = method
        self.path = path
        self.answered = answered

    @property
    def may_have_been_applied(self) -> bool:
        """Whether the server may have done what was asked: true for anything but reads and refused connections."""
        return self.method != "GET"


class RequestRefused(TransportFailed):
    """The connection was refused, which proves that nothing was delivered: it may be sent again."""

    def __init__(self, *, method: str, path: str, url: str = "") -> None:
        super().__init__(
            f"nobody listens at {url or 'the memory server'}: the connection for {method} {path} was refused",
            "nothing was delivered: try again once the server runs",
            method=method,
            path=path,
        )

    @property
    def may_have_been_applied(self) -> bool:
        """Never."""
        return False


class RequestTimedOut(TransportFailed):
    """No whole answer within ``limit_ms``. Never sent again by the transport, not even a read."""

    def __init__(self, *, method: str, path: str, limit_ms: int) -> None:
        if method == "GET":
            cause = f"{method} {path} timed out after {limit_ms} ms"
            remedy = "try again, or raise request_timeout_ms"
        else:
            cause = f"{method} {path} timed out after {limit_ms} ms and may have been applied"
            remedy = "verify first, with mem_search or mem_doctor; do not retry blindly"
        super().__init__(cause, remedy, method=method, path=path)
        self.limit_ms = limit_ms


class DeliveryUnknown(TransportFailed):
    """A write whose connection was reset, or whose reply was lost, cut short or unreadable: perhaps applied."""

    def __init__(self, *, method: str, path: str, what: str, answered: bool = False) -> None:
        super().__init__(
            f"{what} during {method} {path}, which may have been applied",
            "verify first, with mem_search or mem_doctor; do not retry blindly",
            method=method,
            path=path,
            answered=answered,
        )


class RequestFailed(TransportFailed):
    """A read without a usable answer, after the retries it may have."""

    def __init__(self, *, method: str, path: str, what: str, answered: bool = False) -> None:
        super().__init__(
            f"{what} during {method} {path}",
            "nothing was changed: try again once the server is healthy",
            method=method,
            path=path,
            answered=answered,
        )


class HttpError(EngramError):
    """The server answered, and not with success. Never sent again by the transport, whatever the status.

    ``status``; ``code``: the body's ``error_code``, else its ``code``, else ''; ``message``: the body's ``error``, else
    a generic text; ``body``: the decoded JSON, or None where it was none; ``available_projects`` as the body lists
    them.
    """

    def __init__(self, *, method: str, path: str, status: int, body: Any) -> None:
        fields: dict[str, Any] = body if isinstance(body, dict) else {}
        message = _text(fields.get("error")) or f"HTTP status {status}"
        super().__init__(
            f"the memory server answered {method} {path} with {status}: {message[:_SHOWN]}", _remedy(status)
        )
        self.method = method
        self.path = path
        self.status = status
        self.code = _text(fields.get("error_code")) or _text(fields.get("code"))
        self.message = message
        self.body = body
        self.available_projects = strings(fields.get("available_projects"))


def strings(value: Any) -> tuple[str, ...]:
    """The strings of a list that may be none; anything else is left out."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _remedy(status: int) -> str:
    if status == 401:
        return "set ENGRAM_HTTP_TOKEN to the server's own token"
    if status == 404:
        return "check that it exists and that the server has this route"
    if 300 <= status < 400:
        return "point ENGRAM_URL at the server itself: redirects are not followed"
    if status >= 500:
        return "look at the server's log, or run mem_doctor"
    return "fix the request: sent again unchanged it fails again"
