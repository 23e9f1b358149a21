"""Changes of an observation by its id: update, delete, pin, review mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import scoping
from .observations import as_json, row_id
from .state import BAD_JSON, Call, Observation, Refused, Reply, fields, stamp
from .text import normalise_name, stored, strip_private

if TYPE_CHECKING:
    from .model import Model

EDITABLE = ("title", "content", "find", "replace", "type", "scope", "topic_key")
REVIEW_AGAIN_SECONDS = 90 * 86400


def _expected_project(model: Model, call: Call) -> str | None:
    """The guard against a change in another project; older generations do not know it."""
    if not model.generation.expected_project:
        return None
    given = call.values("expected_project")
    if len(given) != 1 or not given[0].strip():
        raise Refused(400, "expected_project is required")
    return normalise_name(given[0])


def _owned(model: Model, call: Call, expected: str | None) -> Observation:
    row = model.live(row_id(call))
    if row is None:
        raise Refused(404, "observation not found")
    if expected is not None and row.project != expected:
        raise Refused(409, "the observation belongs to another project", project=row.project)
    return row


def update(model: Model, call: Call) -> Reply:
    row_id(call)
    if call.body is BAD_JSON:
        raise Refused(400, "invalid json")
    asked = fields(call.body, **dict.fromkeys(EDITABLE, str))
    present = [name for name in EDITABLE if call.body.get(name) is not None]
    if not present:
        raise Refused(400, "no field to update")
    expected = _expected_project(model, call)
    if any(name in present and not strip_private(asked[name]) for name in ("title", "content")):
        raise Refused(400, "title and content must not be blank")
    pair = "find" in present or "replace" in present
    if pair and (not asked["find"] or "replace" not in present or "content" in present):
        raise Refused(400, "find and replace go together, without content")
    row = _owned(model, call, expected)
    content = asked["content"]
    if pair:
        if asked["find"] not in row.content:
            raise Refused(400, "the text to find is not in the observation")
        content = row.content.replace(asked["find"], asked["replace"])
        if not content.strip():
            raise Refused(400, "title and content must not be blank")
    if pair or "content" in present:
        row.content = stored(content, model.generation.content_limit)
    if "title" in present:
        row.title = strip_private(asked["title"])
    for name in ("type", "scope", "topic_key"):
        if name in present:
            setattr(row, name, asked[name].strip())
    row.revision_count += 1
    row.updated_at = model.clock.now()
    return Reply(200, as_json(row), applied=True)


def delete(model: Model, call: Call) -> Reply:
    """A soft delete hides the row; a hard one drops it. Either way its operation answers 410 from now on."""
    row_id(call)
    if call.value("hard") not in ("", "true", "false"):
        raise Refused(400, "hard must be true or false")
    hard = call.value("hard") == "true"
    row = _owned(model, call, _expected_project(model, call))
    if hard:
        del model.rows.observations[row.id]
    else:
        row.deleted_at = model.clock.now()
    return Reply(200, {"id": row.id, "status": "deleted", "hard_delete": hard}, applied=True)


def _set_pin(model: Model, call: Call, pinned: bool) -> Reply:
    row = _owned(model, call, None)
    row.pinned = pinned
    return Reply(200, {"id": row.id, "pinned": pinned}, applied=True)


def pin(model: Model, call: Call) -> Reply:
    return _set_pin(model, call, True)


def unpin(model: Model, call: Call) -> Reply:
    return _set_pin(model, call, False)


def review_item(model: Model, row: Observation) -> dict[str, Any]:
    due = row.review_after is not None and row.review_after <= model.clock.now()
    item: dict[str, Any] = {
        "id": row.id,
        "sync_id": f"obs-{row.id:08x}",
        "title": row.title,
        "type": row.type,
        "state": "needs_review" if due else "active",
    }
    if row.project:
        item["project"] = row.project
    if row.review_after is not None:
        item["review_after"] = stamp(row.review_after)
    return item


def mark_reviewed(model: Model, call: Call) -> Reply:
    if call.body is BAD_JSON:
        raise Refused(400, "invalid json")
    asked = fields(call.body, observation_id=int, id=int)
    number = asked["observation_id"] or asked["id"]
    if number <= 0:
        raise Refused(400, "observation_id is required")
    project = scoping.scope(model, call)
    row = model.live(number)
    if row is None or (project is not None and row.project != project):
        raise Refused(404, "observation not found")
    row.review_after = model.clock.now() + REVIEW_AGAIN_SECONDS
    return Reply(200, review_item(model, row), applied=True)
