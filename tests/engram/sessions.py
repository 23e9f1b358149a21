"""Session rows: registration with its lease, the ended and ownership checks, resume, end and delete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import scoping
from .state import BAD_JSON, LEASE_SECONDS, Call, Refused, Reply, Session, fields, stamp
from .text import normalise_name, strip_private

if TYPE_CHECKING:
    from .model import Model

OWNERSHIP_MODES = ("", "shared", "project_owned")


def as_json(row: Session) -> dict[str, Any]:
    """A row as the server shows it: columns without a value are left out, the lease never appears."""
    shown: dict[str, Any] = {"id": row.id, "project": row.project}
    if row.ownership_mode:
        shown["ownership_mode"] = row.ownership_mode
    shown |= {"directory": row.directory, "started_at": stamp(row.started_at)}
    if row.ended_at is not None:
        shown["ended_at"] = stamp(row.ended_at)
    if row.summary is not None:
        shown["summary"] = row.summary
    return shown


def worktree_root(directory: str) -> str:
    """The git work tree that holds ``directory``, or the directory itself."""
    path = Path(directory)
    for candidate in (path, *path.parents):
        if (candidate / ".git").exists():
            return str(candidate)
    return directory


def register(model: Model, call: Call) -> Reply:
    """Create or renew. A renewal moves the lease and nothing else: project, directory and ownership are kept."""
    if call.body is BAD_JSON:
        raise Refused(400, "invalid json")
    asked = fields(call.body, id=str, project=str, directory=str, ownership_mode=str, resume=bool, isolated=bool)
    key, project = asked["id"], normalise_name(asked["project"])
    resume = asked["resume"] and model.generation.resume
    isolated = asked["isolated"] and model.generation.resume
    if not key or not asked["project"]:
        raise Refused(400, "id and project are required")
    if asked["ownership_mode"] not in OWNERSHIP_MODES:
        raise Refused(400, "invalid ownership_mode")
    if isolated and (asked["ownership_mode"] != "project_owned" or asked["directory"].strip()):
        raise Refused(400, "an isolated session needs project_owned and no directory")
    if not key.strip() or not project:
        raise Refused(500, "session id and project must not be blank")

    row, resumed_from = model.rows.sessions.get(key), None
    _check_identity(row, project, asked["ownership_mode"], isolated)
    if row is not None and row.ended_at is not None and model.generation.ended_check:
        if not resume:
            raise Refused(409, "session has already ended", code="session_already_ended", session_id=key)
        resumed_from, key = key, _continuation(model, key)
        row = model.rows.sessions.get(key)
        _check_identity(row, project, asked["ownership_mode"], isolated)

    if row is None:
        directory = "" if isolated else worktree_root(asked["directory"].strip() or model.directory)
        row = Session(key, project, directory, model.clock.now(), asked["ownership_mode"])
        model.rows.sessions[key] = row
    row.lease_expires_at = model.clock.now() + LEASE_SECONDS
    answer = {"id": key, "status": "created"}
    if resumed_from is not None:
        answer["resumed_from"] = resumed_from
    return Reply(201, answer, applied=True)


def _check_identity(row: Session | None, project: str, mode: str, isolated: bool) -> None:
    """Ownership is judged before the ended check, so a foreign ended row reads as a project conflict."""
    if row is None:
        return
    if mode == "project_owned" and row.project != project:
        raise Refused(
            409,
            "session belongs to another project",
            code="session_project_conflict",
            session_id=row.id,
            owner_project=row.project,
            requested_project=project,
        )
    if isolated and row.directory:
        raise Refused(409, "session is not isolated", code="session_isolation_conflict", session_id=row.id)


def _continuation(model: Model, root: str) -> str:
    """The lowest live ``<root>:resume:N``, or the next N from 2 when none is live."""
    pattern = re.compile(re.escape(root) + r":resume:(\d+)")
    numbers: dict[int, str] = {}
    for key in model.rows.sessions:
        match = pattern.fullmatch(key)
        if match and int(match[1]) >= 2:
            numbers[int(match[1])] = key
    live = [n for n, key in numbers.items() if model.rows.sessions[key].ended_at is None]
    if live:
        return numbers[min(live)]
    return f"{root}:resume:{max(numbers, default=1) + 1}"


def get(model: Model, call: Call) -> Reply:
    row = model.rows.sessions.get(call.parameters["id"])
    if row is None:
        raise Refused(404, "session not found")
    return Reply(200, as_json(row))


def end(model: Model, call: Call) -> Reply:
    """200 also for an unknown id. Time and summary are overwritten each time, which makes a double end visible."""
    key = call.parameters["id"]
    body = call.body if isinstance(call.body, dict) else {}
    summary = body.get("summary")
    row = model.rows.sessions.get(key)
    if row is not None:
        row.ended_at = model.clock.now()
        row.summary = (strip_private(summary) or None) if isinstance(summary, str) else None
    return Reply(200, {"id": key, "status": "completed"}, applied=row is not None)


def delete(model: Model, call: Call) -> Reply:
    key = call.parameters["id"]
    if key not in model.rows.sessions:
        raise Refused(404, "session not found")
    if any(o.session_id == key and o.deleted_at is None for o in model.rows.observations.values()):
        raise Refused(409, "session has observations")
    model.drop_session(key)
    return Reply(200, {"id": key, "status": "deleted"}, applied=True)


def recent(model: Model, call: Call) -> Reply:
    project = scoping.scope(model, call)
    limit = scoping.integer(call, "limit", 5)
    rows = [row for row in model.rows.sessions.values() if project is None or row.project == project]
    rows.sort(key=lambda row: (-row.started_at, row.id))
    return Reply(200, model.listing([as_json(row) for row in rows[:limit]]))
