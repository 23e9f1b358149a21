"""Writes of observations: validation order, ownership, the operation ledger, topic upsert and dedupe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .state import BAD_JSON, DEDUPE_SECONDS, Call, Observation, Operation, Refused, Reply, fields, stamp
from .text import learnings, normalise_name, normalised_hash, stored, strip_private

if TYPE_CHECKING:
    from .model import Model

REVIEW_SECONDS = {"decision": 90 * 86400, "policy": 90 * 86400}


def as_json(row: Observation) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": row.id,
        "sync_id": f"obs-{row.id:08x}",
        "session_id": row.session_id,
        "type": row.type,
        "title": row.title,
        "content": row.content,
        "scope": row.scope,
        "revision_count": row.revision_count,
        "duplicate_count": row.duplicate_count,
        "created_at": stamp(row.created_at),
        "updated_at": stamp(row.updated_at),
    }
    optional = {"tool_name": row.tool_name, "project": row.project, "topic_key": row.topic_key}
    shown |= {name: value for name, value in optional.items() if value}
    times = {"last_seen_at": row.last_seen_at, "review_after": row.review_after, "deleted_at": row.deleted_at}
    return shown | {name: stamp(value) for name, value in times.items() if value is not None}


def owner(model: Model, session_id: str, project: str) -> str:
    """The project a write goes to, or the refusal. An ended row takes writes: only registration refuses it."""
    row = model.rows.sessions.get(session_id)
    if row is None and model.generation.foreign_key_500:
        raise Refused(500, "FOREIGN KEY constraint failed")
    if row is None and project:
        raise Refused(404, "session not found")
    if row is None:
        raise Refused(
            409,
            "the session's project is not known",
            code="project_ownership_required",
            remedy="register the session with its project first",
        )
    if project and project != row.project:
        raise Refused(
            400,
            "the session belongs to another project",
            code="session_project_mismatch",
            session_id=session_id,
            session_project=row.project,
            project=project,
        )
    return row.project


def add(model: Model, call: Call) -> Reply:
    if call.body is BAD_JSON:
        raise Refused(400, "invalid json")
    names = ("session_id", "title", "content", "type", "tool_name", "project", "scope", "topic_key", "operation_id")
    asked = fields(call.body, **dict.fromkeys(names, str))
    if not asked["title"].strip():
        raise Refused(400, "title is required")
    if not asked["session_id"] or not asked["content"]:
        raise Refused(400, "session_id and content are required")

    # A known operation skips the session and project checks: its row may have been rotated away since.
    operation_id = asked["operation_id"] if model.generation.operation_ids else ""
    known = model.rows.operations.get(operation_id) if operation_id else None
    project = normalise_name(asked["project"])
    if known is None:
        project = owner(model, asked["session_id"], project)
    title = strip_private(asked["title"])
    content = stored(asked["content"], model.generation.content_limit)
    if not title or not content:
        raise Refused(400, "title and content must not be blank")
    payload = {
        "session_id": asked["session_id"],
        "type": asked["type"].strip() or "manual",
        "title": title,
        "content": content,
        "tool_name": asked["tool_name"],
        "project": project or _project_of(model, asked["session_id"]),
        "scope": asked["scope"].strip().lower() or "project",
        "topic_key": asked["topic_key"].strip().lower(),
    }
    fingerprint = json.dumps(payload, sort_keys=True)
    if known is not None:
        return _replay(model, known, fingerprint)
    row = write(model, "observation", payload, key=operation_id)
    if operation_id:
        model.rows.operations[operation_id] = Operation(fingerprint, row.id)
    return Reply(201, {"id": row.id, "status": "saved"}, applied=True)


def _project_of(model: Model, session_id: str) -> str:
    row = model.rows.sessions.get(session_id)
    return row.project if row else ""


def _replay(model: Model, known: Operation, fingerprint: str) -> Reply:
    if known.fingerprint != fingerprint:
        raise Refused(409, "operation_id was used for another payload")
    if model.live(known.observation_id) is None:
        raise Refused(410, "the observation of this operation_id is gone")
    return Reply(201, {"id": known.observation_id, "status": "saved"})


def write(model: Model, kind: str, payload: dict[str, str], *, key: str = "") -> Observation:
    """Upsert by topic key, else bump an equal item of the last 15 minutes, else a new row."""
    now = model.clock.now()
    place = (payload["project"], payload["scope"])
    live = [row for row in model.rows.observations.values() if row.deleted_at is None]
    same_place = [row for row in live if (row.project, row.scope) == place]
    if payload["topic_key"]:
        for row in same_place:
            if row.topic_key == payload["topic_key"]:
                row.type, row.title, row.content = payload["type"], payload["title"], payload["content"]
                row.tool_name = payload["tool_name"] or row.tool_name
                row.revision_count += 1
                row.updated_at = row.last_seen_at = now
                model.note(kind, "updated", row.id, payload["session_id"], key, payload["content"])
                return row
    else:
        for row in same_place:
            equal = (row.content, row.title, row.type) == (payload["content"], payload["title"], payload["type"])
            if equal and now - row.created_at <= DEDUPE_SECONDS:
                row.duplicate_count += 1
                row.updated_at = row.last_seen_at = now
                model.note(kind, "duplicate", row.id, payload["session_id"], key, payload["content"])
                return row
    row = Observation(
        id=model.rows.next_id(),
        session_id=payload["session_id"],
        type=payload["type"],
        title=payload["title"],
        content=payload["content"],
        created_at=now,
        updated_at=now,
        tool_name=payload["tool_name"],
        project=payload["project"],
        scope=payload["scope"],
        topic_key=payload["topic_key"],
    )
    if row.type in REVIEW_SECONDS:
        row.review_after = now + REVIEW_SECONDS[row.type]
    model.rows.observations[row.id] = row
    model.note(kind, "created", row.id, row.session_id, key, row.content)
    return row


def save_result(model: Model, call: Call) -> Reply:
    """What became of an operation. Without the feature the path is an observation with a bad id."""
    if not model.generation.operation_ids:
        raise Refused(400, "invalid observation id")
    operation_id = call.value("operation_id")
    if not operation_id:
        raise Refused(400, "operation_id is required")
    known = model.rows.operations.get(operation_id)
    if known is None and model.generation.typed_not_found:
        # Both texts are what clients compare before they replay.
        raise Refused(404, "no committed result found for operation_id", code="observation_save_result_not_found")
    if known is None:
        raise Refused(404, "not found")
    if model.live(known.observation_id) is None:
        raise Refused(410, "the observation of this operation_id is gone")
    return Reply(200, {"id": known.observation_id, "status": "committed"})


def passive(model: Model, call: Call) -> Reply:
    """Learnings out of a text; an item equal, by its normalised hash, to a live one of the project is a duplicate."""
    if call.body is BAD_JSON:
        raise Refused(400, "invalid json")
    asked = fields(call.body, session_id=str, content=str, project=str, source=str)
    if not asked["session_id"] or not asked["content"]:
        raise Refused(400, "session_id and content are required")
    project = owner(model, asked["session_id"], normalise_name(asked["project"]))
    items = learnings(strip_private(asked["content"]))
    saved = 0
    for item in items:
        content = stored(item, model.generation.content_limit)
        digest = normalised_hash(content)
        rows = (row for row in model.rows.observations.values() if row.deleted_at is None and row.project == project)
        twin = next((row for row in rows if normalised_hash(row.content) == digest), None)
        if twin is not None:
            model.note("passive", "duplicate", twin.id, asked["session_id"], "", content)
            continue
        payload = {
            "session_id": asked["session_id"],
            "type": "passive",
            "title": content[:60],
            "content": content,
            "tool_name": asked["source"],
            "project": project,
            "scope": "project",
            "topic_key": "",
        }
        write(model, "passive", payload)
        saved += 1
    answer = {"extracted": len(items), "saved": saved, "duplicates": len(items) - saved}
    return Reply(200, answer, applied=bool(items))


def row_id(call: Call) -> int:
    text = call.parameters["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Refused(400, "invalid observation id")
    return int(text)


def get(model: Model, call: Call) -> Reply:
    row = model.live(row_id(call))
    if row is None:
        raise Refused(404, "observation not found")
    return Reply(200, as_json(row))
