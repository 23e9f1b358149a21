"""Scoped reads, health and project detection: small, but true in shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import scoping
from .mutations import review_item
from .observations import as_json
from .sessions import as_json as session_json
from .state import BAD_JSON, Call, Observation, Refused, Reply, fields, stamp
from .text import topic_key

if TYPE_CHECKING:
    from .model import Model

NOT_FOUND = Reply(404, "404 page not found\n")


def health(model: Model, call: Call) -> Reply:
    if model.sick:
        raise Refused(500, "health check failed")
    body: dict[str, Any] = {"status": "ok", "service": "engram", "version": model.generation.version}
    if model.generation.instance_id:
        body["instance_id"] = model.instance_id
    if model.generation.capabilities is not None:
        body["capabilities"] = dict(model.generation.capabilities)
    return Reply(200, body)


def current_project(model: Model, call: Call) -> Reply:
    if not model.generation.project_current:
        return NOT_FOUND
    cwd = call.value("cwd")
    if not cwd.strip():
        model.unscoped.append(f"{call.method} {call.path}")
    return Reply(200, scoping.resolve(model, cwd if cwd.strip() else model.directory))


def projects(model: Model, call: Call) -> Reply:
    if not model.generation.list_projects:
        return NOT_FOUND
    rows = []
    for name in model.known_projects():
        rows.append(
            {
                "name": name,
                "session_count": sum(row.project == name for row in model.rows.sessions.values()),
                "observation_count": len(_live(model, name)),
                "prompt_count": sum(row.project == name and not row.deleted for row in model.rows.prompts.values()),
            }
        )
    return Reply(200, {"projects": rows, "count": len(rows)})


def _live(model: Model, project: str | None) -> list[Observation]:
    """Live observations of the scope, newest first."""
    rows = [o for o in model.rows.observations.values() if o.deleted_at is None and project in (None, o.project)]
    return sorted(rows, key=lambda row: -row.id)


def recent_observations(model: Model, call: Call) -> Reply:
    rows = _live(model, scoping.scope(model, call))[: scoping.integer(call, "limit", 20)]
    return Reply(200, model.listing([as_json(row) for row in rows]))


def search(model: Model, call: Call) -> Reply:
    """Words joined by AND or OR. Rank is minus the number of words in the title, so it can be -0; then newest first."""
    words = call.value("q").lower().split()
    if not words:
        raise Refused(400, "q is required")
    mode = call.value("match_mode") or "all"
    if mode not in ("all", "any"):
        raise Refused(400, "match_mode must be all or any")
    project = scoping.scope(model, call)
    found = []
    for row in _live(model, project):
        text = f"{row.title}\n{row.content}".lower()
        hits = [word in text for word in words]
        wanted = all(hits) if mode == "all" else any(hits)
        if wanted and call.value("type") in ("", row.type) and call.value("scope") in ("", row.scope):
            found.append({**as_json(row), "rank": -float(sum(word in row.title.lower() for word in words))})
    found.sort(key=lambda item: item["rank"])  # stable, so newer rows stay first among equals
    return Reply(200, model.listing(found[: scoping.integer(call, "limit", 10)]))


def context(model: Model, call: Call) -> Reply:
    """Text with a block of the recent sessions, five rows unless told: empty rows crowd out useful ones."""
    project = scoping.scope(model, call)
    sessions = sorted(
        (row for row in model.rows.sessions.values() if project in (None, row.project)),
        key=lambda row: (-row.started_at, row.id),
    )[: scoping.integer(call, "sessions", 5)]
    prompts = [row for row in model.rows.prompts.values() if not row.deleted and project in (None, row.project)]
    prompts = prompts[::-1][: scoping.integer(call, "prompts", 10)]
    rows = [row for row in _live(model, project) if call.value("scope") in ("", row.scope)]
    lines = ["## Recent sessions"]
    lines += [f"- {row.project} ({stamp(row.started_at)}): {row.summary or ''}".rstrip() for row in sessions]
    lines += ["## Recent prompts", *(f"- {row.content}" for row in prompts)]
    lines += ["## Pinned", *(f"- [{row.type}] {row.title}" for row in rows if row.pinned)]
    shown = rows[: scoping.integer(call, "observations", 20)]
    lines += ["## Recent observations", *(f"- [{row.type}] {row.title}: {row.content}" for row in shown)]
    text = "\n".join(lines) if sessions or prompts or rows else ""
    limit = scoping.integer(call, "max_bytes", 0)
    return Reply(200, {"context": text.encode()[:limit].decode("utf-8", "ignore") if limit else text})


def compaction(model: Model, call: Call) -> Reply:
    key = call.value("session_id")
    if not key:
        raise Refused(400, "session_id is required")
    if key not in model.rows.sessions:
        raise Refused(404, "session not found")
    rows = [row for row in _live(model, None) if row.session_id == key]
    return Reply(200, {"context": "\n".join(f"- [{row.type}] {row.title}" for row in rows)})


def stats(model: Model, call: Call) -> Reply:
    project = scoping.scope(model, call)
    names = [project] if project is not None else model.known_projects()
    return Reply(
        200,
        {
            "total_sessions": sum(row.project in names for row in model.rows.sessions.values()),
            "total_observations": len(_live(model, project)),
            "total_prompts": sum(row.project in names and not row.deleted for row in model.rows.prompts.values()),
            "projects": model.listing(names),
        },
    )


def timeline(model: Model, call: Call) -> Reply:
    """The focus's neighbours within its session; a focus of another project is not found."""
    text = call.value("observation_id")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Refused(400, "observation_id is required")
    project = scoping.scope(model, call)
    focus = model.live(int(text))
    if focus is None or (project is not None and focus.project != project):
        raise Refused(404, "observation not found")
    rows = sorted((row for row in _live(model, None) if row.session_id == focus.session_id), key=lambda row: row.id)
    at = rows.index(focus)
    before = rows[max(0, at - scoping.integer(call, "before", 5)) : at]
    after = rows[at + 1 : at + 1 + scoping.integer(call, "after", 5)]
    session = model.rows.sessions.get(focus.session_id)
    return Reply(
        200,
        {
            "focus": as_json(focus),
            "before": [as_json(row) for row in before] or None,
            "after": [as_json(row) for row in after] or None,
            "session_info": session_json(session) if session else None,
            "total_in_range": len(before) + len(after) + 1,
        },
    )


def suggest(model: Model, call: Call) -> Reply:
    if call.body is BAD_JSON:
        raise Refused(400, "invalid json")
    asked = fields(call.body, type=str, title=str, content=str)
    if not asked["title"].strip() and not asked["content"].strip():
        raise Refused(400, "title or content is required")
    return Reply(200, {"topic_key": topic_key(asked["type"].strip(), asked["title"], asked["content"])})


def review(model: Model, call: Call) -> Reply:
    rows = _live(model, scoping.scope(model, call))
    due = [row for row in rows if row.review_after is not None and row.review_after <= model.clock.now()]
    items = [review_item(model, row) for row in due[: scoping.integer(call, "limit", 10)]]
    return Reply(200, {"observations": model.listing(items), "count": len(items)})


CHECKS = ("store", "projects", "sessions")


def doctor(model: Model, call: Call) -> Reply:
    """A report also when the check is unknown: the status of the envelope tells."""
    project = scoping.scope(model, call)
    asked = call.value("check")
    if asked and asked not in CHECKS:
        return Reply(200, {"status": "error", "project": project or "", "checks": [], "error": f"no check {asked}"})
    checks = [{"check_id": name, "result": "ok", "message": ""} for name in CHECKS if asked in ("", name)]
    return Reply(200, {"status": "ok", "project": project or "", "checks": checks})
