"""Prompts: unique by session and inbox id where the server knows inbox ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import scoping
from .observations import owner, row_id
from .state import BAD_JSON, Call, Prompt, Refused, Reply, fields, stamp
from .text import normalise_name, stored

if TYPE_CHECKING:
    from .model import Model


def as_json(row: Prompt) -> dict[str, Any]:
    shown = {"id": row.id, "session_id": row.session_id, "content": row.content, "created_at": stamp(row.created_at)}
    return shown | ({"project": row.project} if row.project else {})


def add(model: Model, call: Call) -> Reply:
    if call.body is BAD_JSON:
        raise Refused(400, "invalid json")
    asked = fields(call.body, session_id=str, content=str, project=str, source_inbox_id=str)
    if not asked["session_id"] or not asked["content"]:
        raise Refused(400, "session_id and content are required")
    project = owner(model, asked["session_id"], normalise_name(asked["project"]))
    content = stored(asked["content"], model.generation.content_limit)
    if not content:
        raise Refused(400, "content must not be blank")
    inbox = asked["source_inbox_id"] if model.generation.operation_ids else ""
    for row in model.rows.prompts.values():
        if inbox and (row.session_id, row.source_inbox_id) == (asked["session_id"], inbox):
            if row.deleted:
                raise Refused(409, "the prompt of this source_inbox_id was deleted")
            return Reply(201, {"id": row.id, "status": "saved"})
    row = Prompt(model.rows.next_id(), asked["session_id"], content, project, model.clock.now(), inbox)
    model.rows.prompts[row.id] = row
    model.note("prompt", "created", row.id, row.session_id, inbox, content)
    return Reply(201, {"id": row.id, "status": "saved"}, applied=True)


def _listed(model: Model, call: Call) -> list[Prompt]:
    project = scoping.scope(model, call)
    rows = [row for row in model.rows.prompts.values() if not row.deleted and project in (None, row.project)]
    return sorted(rows, key=lambda row: -row.id)


def recent(model: Model, call: Call) -> Reply:
    rows = _listed(model, call)[: scoping.integer(call, "limit", 20)]
    return Reply(200, model.listing([as_json(row) for row in rows]))


def search(model: Model, call: Call) -> Reply:
    words = call.value("q").lower().split()
    if not words:
        raise Refused(400, "q is required")
    rows = [row for row in _listed(model, call) if all(word in row.content.lower() for word in words)]
    return Reply(200, model.listing([as_json(row) for row in rows[: scoping.integer(call, "limit", 10)]]))


def delete(model: Model, call: Call) -> Reply:
    row = model.rows.prompts.get(row_id(call))
    if row is None or row.deleted:
        raise Refused(404, "prompt not found")
    row.deleted = True  # kept as a tombstone: its inbox id must answer 409
    return Reply(200, {"id": row.id, "status": "deleted"}, applied=True)
