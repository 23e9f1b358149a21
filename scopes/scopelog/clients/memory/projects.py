"""Which project a session belongs to, asked of the server for the session's own working directory. Fails closed.

No working directory, a hint or warning instead of a project, a name that is none, a source that is unknown: each is a
failure, and without a project nothing is written and nothing is read. The server's own directory never stands in.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeGuard

from .errors import HttpError, ProjectUnresolved, RequestRefused, TransportFailed, strings
from .flight import SharedFlight
from .redaction import redact
from .spelling import Query

Json: TypeAlias = Any
State: TypeAlias = Literal["unset", "resolved", "failed", "pending"]

ATTEMPTS: Final = 5
BETWEEN: Final = 0.2  # seconds between them
FAILURE_KEPT: Final = 30.0  # seconds until a failure is tried again
SOURCES: Final = frozenset({"config", "git_remote", "git_root", "git_child", "dir_basename", "process_override"})
CONFIG_FILE: Final = os.path.join(".engram", "config.json")
_CONFIG_LIMIT: Final = 64 * 1024  # bytes
_NO_NAME: Final = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]")

_log = logging.getLogger(__name__)


class Asker(Protocol):
    """What is asked of a transport."""

    async def request(self, method: str, path: str, *, query: Query) -> Json:
        """The decoded answer."""


@dataclass(frozen=True)
class Resolution:
    """The outcome of asking.

    ``unset``: the server could not be asked; ``resolved``: ``project`` and ``source`` hold; ``failed``: the server, or
    the directory itself, says no; ``pending``: nobody says anything. ``reason`` tells why it is not resolved,
    ``candidates`` what the server would choose from. ``located``: whether there is a directory to speak of, ``cwd``.
    """

    state: State
    project: str = ""
    source: str = ""
    reason: str = ""
    candidates: tuple[str, ...] = ()
    located: bool = True
    cwd: str = ""

    def error(self) -> ProjectUnresolved:
        """What to raise where a project is needed."""
        what = f"the directory {self.cwd!r}" if self.located and self.cwd else "this session"
        cause = f"{what} has no memory project: {self.reason or 'nothing was resolved yet'}"
        if self.candidates:
            cause += f" (candidates: {', '.join(self.candidates)})"
        if self.located:
            remedy = f"name it as project_name in {CONFIG_FILE} at the root of the repository"
        else:  # a file cannot help a session that is nowhere
            remedy = "start the session in an absolute working directory"
        return ProjectUnresolved(cause, remedy, reason=self.reason, candidates=self.candidates)


async def resolve_project(
    transport: Asker, cwd: str | None, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> Resolution:
    """Ask the server which project ``cwd`` is, up to 5 times 200 ms apart; a server without the route leaves it to
    ``.engram/config.json`` in ``cwd`` or above. Without an absolute ``cwd`` it fails without asking.

    :raises RequestRefused: nobody listened, at the last try: nothing is known about the project.
    """
    if cwd is None or not cwd.strip():
        return Resolution("failed", reason="the session reported no working directory", located=False)
    if not os.path.isabs(cwd) or redact(cwd) != cwd:
        # relative, the server would resolve it from its own directory; with a private block, another one's
        reason = "the session's working directory is not absolute, or holds a private block"
        return Resolution("failed", reason=reason, located=False)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            envelope = await transport.request("GET", "/project/current", query={"cwd": cwd})
        except HttpError as error:
            if error.status == 404:
                return await asyncio.to_thread(resolve_from_file, cwd)
            outcome = Resolution("failed", reason=error.message, candidates=error.available_projects)
        except RequestRefused:
            if attempt == ATTEMPTS:
                raise
        except TransportFailed as error:
            outcome = Resolution("failed", reason=error.cause)
        else:
            return judge_envelope(envelope)
        if attempt < ATTEMPTS:
            await sleep(BETWEEN)
    return outcome


def judge_envelope(envelope: Json) -> Resolution:
    """What a 200 of /project/current amounts to; with a hint it is a failure, whatever else it says."""
    fields: dict[str, Json] = envelope if isinstance(envelope, dict) else {}
    project, source = fields.get("project"), fields.get("project_source")
    # fail closed: whatever stands in the hint is one
    hint, warning = _hinted(fields.get("error_hint")), _said(fields.get("warning"))
    candidates = strings(fields.get("available_projects"))
    if _names_a_project(project) and not hint and (source is None or (type(source) is str and source in SOURCES)):
        if source == "process_override":
            _log.warning("the memory server's own ENGRAM_PROJECT decides: every session's project is %r", project)
        return Resolution("resolved", project=project, source=source or "")
    if hint or warning or _said(project):
        reason = hint or warning or f"the server names no usable project (source {_said(source) or 'none'!r})"
        return Resolution("failed", reason=reason, candidates=candidates)
    return Resolution("pending", reason="the server names no project for this directory", candidates=candidates)


def resolve_from_file(cwd: str) -> Resolution:
    """The project_name of the nearest ``.engram/config.json`` in ``cwd`` or above that has one. Blocks on the disk."""
    folder = os.path.normpath(cwd)
    while True:
        path = os.path.join(folder, CONFIG_FILE)
        try:
            name = _project_name(path)
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("%s could not be read (%s)", path, type(error).__name__)
            return Resolution("pending", reason=f"{path} cannot be read")
        if name:
            if _names_a_project(name):
                return Resolution("resolved", project=name, source="config")
            return Resolution("failed", reason=f"the project_name in {path} is none")
        above = os.path.dirname(folder)
        if above == folder:
            reason = f"the server cannot resolve projects, and no {CONFIG_FILE} names one"
            return Resolution("pending", reason=reason)
        folder = above


class ProjectGate:
    """One session's project: asked for when it is first needed, final once resolved, a failure kept for 30 s.

    ``ready`` (a ServerKeeper's ``ensure``) runs before the server is asked; what it raises leaves the gate unset, to be
    tried again by the next call. One event loop; concurrent callers share one resolution.
    """

    def __init__(
        self,
        transport: Asker,
        cwd: str | None,
        *,
        ready: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.cwd = cwd
        self._transport = transport
        self._ready = ready
        self._clock = clock
        self._sleep = sleep
        self._resolution = Resolution("unset")
        self._since = 0.0
        self._asking: SharedFlight[Resolution] = SharedFlight()

    @property
    def resolution(self) -> Resolution:
        """What is known, without asking."""
        return self._resolution

    async def resolve(self) -> Resolution:
        """What is known, asking where nothing is, or where a failure is 30 s old.

        :raises EngramError: the server could not be asked; the gate is unset again.
        """
        known = self._resolution
        if known.state == "resolved":  # final: a session never changes its project
            return known
        if known.state != "unset" and self._clock() - self._since < FAILURE_KEPT:
            return known
        return await self._asking.join(self._ask)

    async def require(self) -> str:
        """The project, for any write and any scoped read; without it nothing may be sent.

        :raises ProjectUnresolved: there is none.
        :raises EngramError: the server could not be asked.
        """
        resolution = await self.resolve()
        if resolution.state != "resolved":
            raise resolution.error()
        return resolution.project

    async def aclose(self) -> None:
        """Give up a resolution in flight."""
        await self._asking.abandon()

    async def _ask(self) -> Resolution:
        self._resolution = Resolution("unset")  # what the server cannot be asked about is not known
        located = self.cwd is not None and bool(self.cwd.strip())
        if self._ready is not None and located:  # a session that is nowhere needs no server to be told so
            await self._ready()
        resolution = await resolve_project(self._transport, self.cwd, sleep=self._sleep)
        resolution = replace(resolution, cwd=self.cwd or "")
        self._resolution, self._since = resolution, self._clock()
        return resolution


def _names_a_project(value: Json) -> TypeGuard[str]:
    if not isinstance(value, str) or not value.strip():
        return False
    return value.strip().lower() != "unknown" and not _NO_NAME.search(value)


def _hinted(value: Json) -> str:
    if value is None or value == "":
        return ""
    return _said(value) or "the server hints at an error"


def _said(value: Json) -> str:
    return value.strip() if isinstance(value, str) else ""


def _project_name(path: str) -> str:
    """The file's project_name, '' where there is no file or no name in it."""
    try:
        with open(path, "rb") as file:
            text = file.read(_CONFIG_LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if len(text) > _CONFIG_LIMIT:
        raise ValueError("too large")
    fields = json.loads(text.decode("utf-8"))
    if not isinstance(fields, dict):
        raise ValueError("no object")
    return _said(fields.get("project_name"))
