"""The tools that change what is stored, by its id. They register no row, and there is no outbox behind them.

The session must have a project all the same. Where the server can compare it, it goes along, so that nothing of another
project is touched; a mismatch is reported, and nothing else is tried.
"""

from __future__ import annotations

from typing import Final

from scopelog.errors import InvalidInput

from .tools_host import (
    RELATIONS,
    SCOPE,
    TYPE,
    Object,
    Tool,
    ToolHost,
    ask_object,
    flag,
    given,
    kept,
    own_project,
    schema,
    share,
    text,
    whole,
)
from .tools_read import list_due

_ID: Final = "Id of the entry."
_RELATION: Final = "How the first entry relates to the second."


async def mem_update(
    host: ToolHost,
    observation_id: int,
    *,
    title: str | None = None,
    content: str | None = None,
    kind: str | None = None,
    scope: str | None = None,
    topic_key: str | None = None,
) -> Object:
    """Change fields of an observation of the session's project; the observation afterwards. An empty type, scope or
    topic key is as not given.

    :raises InvalidInput: no field, or a blank title or content; nothing was sent.
    :raises HttpError: 409, it belongs to another project; nothing else is tried.
    """
    changes: Object = given(type=kind, scope=scope, topic_key=topic_key)
    for name, value in (("title", title), ("content", content)):
        if value is not None:
            changes[name] = kept("mem_update", name, value)
    if not changes:
        raise InvalidInput("mem_update has nothing to change", "pass title, content, type, scope or topic_key")
    # expected_project: current servers refuse to change anything without it, or anything of another project
    expected = await own_project(host)
    path = ("observations", str(observation_id))
    return await ask_object(host, "PATCH", path, query={"expected_project": expected}, body=changes)


async def mem_delete(host: ToolHost, observation_id: int, *, hard_delete: bool = False) -> Object:
    """Hide an observation of the session's project, or with ``hard_delete`` remove it for good.

    :raises HttpError: 404, there is none; 409, it belongs to another project; 401, the server's token is missing.
    """
    expected = await own_project(host)
    query = {"expected_project": expected, "hard": True if hard_delete else None}
    return await ask_object(host, "DELETE", ("observations", str(observation_id)), query=query)


async def mem_pin(host: ToolHost, observation_id: int) -> Object:
    """Pin an observation, which puts it first in the context."""
    await own_project(host)
    return await ask_object(host, "PUT", ("observations", str(observation_id), "pin"))


async def mem_unpin(host: ToolHost, observation_id: int) -> Object:
    """Take the pin off an observation."""
    await own_project(host)
    return await ask_object(host, "DELETE", ("observations", str(observation_id), "pin"))


async def mem_judge(
    host: ToolHost,
    judgment_id: str,
    relation: str,
    *,
    reason: str | None = None,
    evidence: str | None = None,
    confidence: float | None = None,
) -> Object:
    """Settle a pending judgment: ``relation`` as stored."""
    await own_project(host)
    body = given(judgment_id=judgment_id, relation=relation, reason=reason, evidence=evidence, confidence=confidence)
    return await ask_object(host, "POST", "/conflicts/judge", body=body)


async def mem_compare(
    host: ToolHost,
    memory_id_a: int,
    memory_id_b: int,
    relation: str,
    confidence: float,
    reasoning: str,
    *,
    model: str | None = None,
) -> Object:
    """Record how two observations relate: ``sync_id`` of the relation."""
    if memory_id_a == memory_id_b:
        raise InvalidInput("mem_compare cannot compare an entry with itself", "pass two different ids")
    await own_project(host)
    body = given(
        memory_id_a=memory_id_a,
        memory_id_b=memory_id_b,
        relation=relation,
        confidence=confidence,
        reasoning=reasoning,
        model=model,
    )
    return await ask_object(host, "POST", "/conflicts/compare", body=body)


async def mem_review(
    host: ToolHost,
    action: str,
    *,
    observation_id: int | None = None,
    limit: int | None = None,
    all_projects: bool = False,
) -> Object:
    """``list``: what is due for a review. ``mark_reviewed``: one observation of the session's project, as it is then.

    :raises InvalidInput: mark_reviewed without an observation_id; nothing was sent.
    """
    if action == "list":
        return await list_due(host, limit=limit, all_projects=all_projects)
    if observation_id is None:
        raise InvalidInput("mem_review needs observation_id to mark one reviewed", "pass observation_id")
    # all_projects widens a list, never a change
    project = await own_project(host)
    body = {"observation_id": observation_id}
    return await ask_object(host, "POST", "/review/mark_reviewed", query={"project": project}, body=body)


CHANGES: Final = (
    Tool(
        "mem_update",
        "Change an entry of this session's project. Only the fields given are changed.",
        schema(
            "id",
            id=whole(_ID),
            title=text("New title."),
            content=text("New content, whole."),
            type=text(TYPE),
            scope=text(SCOPE),
            topic_key=text("New topic key."),
        ),
        "change",
        mem_update,
    ),
    Tool(
        "mem_delete",
        "Hide an entry of this session's project from the memory, or remove it for good.",
        schema("id", id=whole(_ID), hard_delete=flag("Remove it for good.")),
        "change",
        mem_delete,
    ),
    Tool(
        "mem_pin",
        "Pin an entry, so that it is always part of the overview.",
        schema("id", id=whole(_ID)),
        "change",
        mem_pin,
    ),
    Tool("mem_unpin", "Take the pin off an entry.", schema("id", id=whole(_ID)), "change", mem_unpin),
    Tool(
        "mem_judge",
        "Settle a pending judgment between two entries that seem to conflict.",
        schema(
            "judgment_id",
            "relation",
            judgment_id=text("Id of the judgment."),
            relation=text(_RELATION, *RELATIONS),
            reason=text("Why."),
            evidence=text("What it rests on."),
            confidence=share("How sure you are."),
        ),
        "change",
        mem_judge,
    ),
    Tool(
        "mem_compare",
        "Record how two entries relate, after you have read both.",
        schema(
            "memory_id_a",
            "memory_id_b",
            "relation",
            "confidence",
            "reasoning",
            memory_id_a=whole("Id of the first entry."),
            memory_id_b=whole("Id of the second entry."),
            relation=text(_RELATION, *RELATIONS),
            confidence=share("How sure you are."),
            reasoning=text("Why."),
            model=text("The model that judged."),
        ),
        "change",
        mem_compare,
    ),
    Tool(
        "mem_review",
        "List entries that are due for a review, or mark one of this session's project as reviewed.",
        schema(
            "action",
            action=text("What to do.", "list", "mark_reviewed"),
            observation_id=whole("Id of the entry to mark."),
            limit=whole("Most entries to list; the server's default is 10."),
            all_projects=flag("List those of all projects; not for mark_reviewed."),
        ),
        "change",
        mem_review,
    ),
)
