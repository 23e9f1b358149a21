"""The tools that read. None of them registers the session, and none reads without a scope.

A scoped read names the session's project, or all projects where the tool offers that and was asked to: with neither,
the server would answer for its own directory. A project that the server has never seen is one without memories.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from scopelog.errors import InvalidInput

from .errors import EngramError, HttpError
from .projects import Resolution, resolve_from_file
from .redaction import Json, redact
from .spelling import Scalar
from .tools_host import (
    SCOPE,
    TYPE,
    Object,
    Tool,
    ToolHost,
    as_object,
    ask_object,
    flag,
    given,
    own_project,
    schema,
    text,
    unusable,
    whole,
    with_lists,
)

CURRENT: Final = "/project/current"
_LOCATE: Final = "start the session in an absolute working directory, or pass cwd as an absolute path"


async def scoped(host: ToolHost, path: str, query: dict[str, Scalar], *, empty: Json, everywhere: bool = False) -> Json:
    """A read of the session's project, or of all; ``empty`` where the server does not know the project yet.

    :raises ProjectUnresolved: the session has none, and it is asked about; nothing was sent.
    """
    # one of the two, always: an unscoped read is answered from the server's own directory
    scope: dict[str, Scalar] = {"all_projects": True} if everywhere else {"project": await own_project(host)}
    try:
        return await host.request("GET", path, query={**query, **scope})
    except HttpError as error:
        if everywhere or error.status != 404 or error.code != "unknown_project":
            raise
        return empty  # nothing was written yet: this is no failure


async def mem_search(
    host: ToolHost,
    query: str,
    *,
    kind: str | None = None,
    scope: str | None = None,
    limit: int | None = None,
    match_mode: str | None = None,
    all_projects: bool = False,
) -> list[Json]:
    """Observations that match, best first, each with its ``rank``."""
    asked: dict[str, Scalar] = {
        "q": query,
        "type": kind,
        "scope": scope,
        "limit": limit,
        "match_mode": match_mode,
    }
    found = await scoped(host, "/search", asked, empty=[], everywhere=all_projects)
    if found is None:  # an old server's empty list
        return []
    if not isinstance(found, list):
        raise unusable("GET", "/search")
    return found


async def mem_context(host: ToolHost, *, scope: str | None = None) -> Object:
    """``context``: recent sessions, prompts and observations of the project as one text."""
    return as_object("GET", "/context", await scoped(host, "/context", {"scope": scope}, empty={"context": ""}))


async def mem_stats(host: ToolHost, *, all_projects: bool = False) -> Object:
    """Totals of sessions, observations and prompts, and the names of the projects counted."""
    empty: Object = {"total_sessions": 0, "total_observations": 0, "total_prompts": 0, "projects": []}
    data = await scoped(host, "/stats", {}, empty=empty, everywhere=all_projects)
    return with_lists(as_object("GET", "/stats", data), "projects")


async def mem_timeline(
    host: ToolHost, observation_id: int, *, before: int | None = None, after: int | None = None
) -> Object:
    """The observation (``focus``) between its neighbours. One of another project is not found."""
    asked: dict[str, Scalar] = {"observation_id": observation_id, "before": before, "after": after}
    empty: Object = {"focus": None, "before": [], "after": [], "session_info": None, "total_in_range": 0}
    data = await scoped(host, "/timeline", asked, empty=empty)
    return with_lists(as_object("GET", "/timeline", data), "before", "after")


async def mem_doctor(host: ToolHost, *, check: str | None = None) -> Object:
    """The server's report about itself and the project; an unknown check is told in it."""
    empty: Object = {"status": "ok", "project": await own_project(host), "checks": []}
    data = await scoped(host, "/doctor", {"check": check}, empty=empty)
    return with_lists(as_object("GET", "/doctor", data), "checks")


async def list_due(host: ToolHost, *, limit: int | None = None, all_projects: bool = False) -> Object:
    """``observations`` that are due for a review, and their ``count``; the list half of mem_review."""
    empty: Object = {"observations": [], "count": 0}
    data = await scoped(host, "/review", {"limit": limit}, empty=empty, everywhere=all_projects)
    return with_lists(as_object("GET", "/review", data), "observations")


async def mem_get_observation(host: ToolHost, observation_id: int) -> Object:
    """One observation in full. The session must have a project, but the route knows none: ``project`` of the answer
    tells whose it is, which may be another's."""
    await own_project(host)
    return await ask_object(host, "GET", ("observations", str(observation_id)))


async def mem_suggest_topic_key(
    host: ToolHost, *, title: str | None = None, kind: str | None = None, content: str | None = None
) -> Object:
    """``topic_key``, derived from the words alone: nothing is read or stored.

    :raises InvalidInput: neither a title nor a content.
    """
    if not (title or "").strip() and not (content or "").strip():
        raise InvalidInput("mem_suggest_topic_key needs title or content", "pass one of them")
    return await ask_object(host, "POST", "/topic-keys/suggest", body=given(type=kind, title=title, content=content))


async def mem_current_project(host: ToolHost, *, cwd: str | None = None) -> Object:
    """How the server resolves ``cwd``, an absolute path, or else the session's own directory. Changes nothing for the
    session.

    :raises InvalidInput: ``cwd`` is blank, relative, or holds a private block; nothing was sent.
    :raises ProjectUnresolved: no ``cwd``, and the session has no absolute directory; nothing was sent.
    """
    if cwd is None:
        cwd = host.cwd
        if cwd is None or not cwd.strip():
            raise Resolution("failed", reason="the session reported no working directory", located=False).error()
        if not _usable(cwd):
            reason = "the session's working directory is not absolute, or holds a private block"
            raise Resolution("failed", reason=reason, located=False).error()
    elif not _usable(cwd):
        raise InvalidInput("mem_current_project cannot use its argument cwd", f"{_LOCATE}, without private blocks")
    try:
        envelope = await ask_object(host, "GET", CURRENT, query={"cwd": cwd})
    except HttpError as error:
        if error.status != 404:
            raise
        return await _from_file(cwd)
    return with_lists(envelope, "available_projects")


def _usable(cwd: str) -> bool:
    # relative, the server would resolve it from its own directory; with a private block, another one's
    return os.path.isabs(cwd) and redact(cwd) == cwd


async def _from_file(cwd: str) -> Object:
    """What an old server cannot say, in the shape of the newer ones."""
    found = await asyncio.to_thread(resolve_from_file, cwd)
    answer: Object = {
        "project": found.project,
        "project_source": found.source,
        "project_path": "",
        "cwd": cwd,
        "available_projects": [],
    }
    return answer if found.state == "resolved" else {**answer, "error_hint": found.reason}


async def mem_list_projects(host: ToolHost) -> Object:
    """``projects`` with their numbers of sessions, observations and prompts, and their ``count``.

    :raises EngramError: the server is older than 2.1.0 and has no such list.
    """
    try:
        answer = await ask_object(host, "GET", "/projects")
    except HttpError as error:
        if error.status != 404:
            raise
        raise EngramError(
            "the memory server cannot list its projects: it is older than 2.1.0",
            "update it, or use mem_stats with all_projects",
        ) from error
    return with_lists(answer, "projects")


_ALL: Final = "Ask about the memories of all projects instead of this session's."

READS: Final = (
    Tool(
        "mem_search",
        "Search the memory of this session's project by words. Start here before work that may have a history.",
        schema(
            "query",
            query=text("Words to look for."),
            type=text(TYPE),
            scope=text(SCOPE),
            limit=whole("Most results to return; the server's default is 10."),
            match_mode=text("Whether all words must occur or any of them.", "all", "any"),
            all_projects=flag(_ALL),
        ),
        "read",
        mem_search,
    ),
    Tool(
        "mem_context",
        "An overview of the project's memory: recent sessions, prompts, pinned and recent entries, as one text.",
        schema(scope=text(SCOPE)),
        "read",
        mem_context,
    ),
    Tool(
        "mem_stats",
        "How many sessions, entries and prompts the memory holds.",
        schema(all_projects=flag(_ALL)),
        "read",
        mem_stats,
    ),
    Tool(
        "mem_timeline",
        "What was saved just before and after an entry, in the same session. Use it on a search result.",
        schema(
            "observation_id",
            observation_id=whole("Id of the entry in the middle."),
            before=whole("How many entries before it; the server's default is 5.", minimum=0),
            after=whole("How many entries after it; the server's default is 5.", minimum=0),
        ),
        "read",
        mem_timeline,
    ),
    Tool(
        "mem_get_observation",
        "One entry in full, by its id. It may belong to another project: look at its project.",
        schema("id", id=whole("Id of the entry.")),
        "read",
        mem_get_observation,
    ),
    Tool(
        "mem_suggest_topic_key",
        "Propose a stable topic_key for a matter that changes over time. Give a title or a content; nothing is saved.",
        schema(title=text("Title of the entry."), type=text(TYPE), content=text("Text of the entry.")),
        "read",
        mem_suggest_topic_key,
    ),
    Tool(
        "mem_current_project",
        "Which project a directory belongs to and why. Without cwd it tells about this session's own directory.",
        schema(cwd=text("Absolute path of a directory.")),
        "read",
        mem_current_project,
    ),
    Tool(
        "mem_doctor",
        "Check the health of the memory for this project. Use it when a tool failed or its outcome is unknown.",
        schema(check=text("Run this one check only.")),
        "read",
        mem_doctor,
    ),
    Tool(
        "mem_list_projects",
        "Every project the memory knows, with its numbers of sessions, entries and prompts.",
        schema(),
        "read",
        mem_list_projects,
    ),
)
