"""Conflict judgments, and the few administrative routes whose guard matters more than their work."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from .observations import as_json
from .sessions import as_json as session_json
from .state import BAD_JSON, Call, Refused, Reply, fields

if TYPE_CHECKING:
    from .model import Model

RELATIONS = ("related", "compatible", "scoped", "conflicts_with", "supersedes", "not_conflict")
UNAUTHORIZED = {"WWW-Authenticate": 'Bearer realm="engram"'}


def judge(model: Model, call: Call) -> Reply:
    if call.body is BAD_JSON:
        raise Refused(400, "invalid json")
    asked = fields(call.body, judgment_id=str, relation=str, reason=str, evidence=str, confidence=float, session_id=str)
    row = model.rows.relations.get(asked["judgment_id"])
    if row is None:
        raise Refused(400, "unknown judgment_id")
    if asked["relation"] not in RELATIONS:
        raise Refused(400, "invalid relation")
    row.relation, row.reason = asked["relation"], asked["reason"]
    row.confidence = asked["confidence"] if call.body.get("confidence") is not None else None
    shown = {"id": row.id, "source_id": row.memory_id_a, "target_id": row.memory_id_b, "relation": row.relation}
    return Reply(200, {"relation": shown}, applied=True)


def compare(model: Model, call: Call) -> Reply:
    if call.body is BAD_JSON:
        raise Refused(400, "invalid json")
    asked = fields(
        call.body, memory_id_a=int, memory_id_b=int, relation=str, confidence=float, reasoning=str, model=str
    )
    first, second = asked["memory_id_a"], asked["memory_id_b"]
    if first <= 0 or second <= 0 or first == second:
        raise Refused(400, "two different memory ids are required")
    if asked["relation"] not in RELATIONS:
        raise Refused(400, "invalid relation")
    if not 0 <= asked["confidence"] <= 1 or call.body.get("confidence") is None:
        raise Refused(400, "confidence must be between 0 and 1")
    if not asked["reasoning"].strip():
        raise Refused(400, "reasoning is required")
    if model.live(first) is None or model.live(second) is None:
        raise Refused(404, "observation not found")
    key = model.add_judgment(first, second)
    row = model.rows.relations[key]
    row.relation, row.reason, row.confidence = asked["relation"], asked["reasoning"], asked["confidence"]
    return Reply(200, {"sync_id": key}, applied=True)


def check_token(model: Model, call: Call) -> None:
    """The guard of the protected routes; open while the server has no token. Compared byte by byte, never trimmed."""
    if not model.token:
        return
    scheme, _, given = call.headers.get("authorization", "").partition(" ")
    if scheme != "Bearer" or not given:
        raise Refused(401, "authorization required", headers=UNAUTHORIZED)
    if not hmac.compare_digest(given.encode("utf-8", "replace"), model.token.encode("utf-8", "replace")):
        raise Refused(401, "invalid token", headers=UNAUTHORIZED)


def rescue_ownership(model: Model, call: Call) -> Reply:
    """Needs a token on the server's side: 503 without one."""
    if not model.token:
        raise Refused(503, "this route needs a configured token")
    check_token(model, call)
    return Reply(200, {"status": "ok"})


def export(model: Model, call: Call) -> Reply:
    return Reply(
        200,
        {
            "version": model.generation.version,
            "sessions": [session_json(row) for row in model.rows.sessions.values()],
            "observations": [as_json(row) for row in model.rows.observations.values()],
        },
    )


def import_nothing(model: Model, call: Call) -> Reply:
    """Accepts the body and keeps nothing of it."""
    if not isinstance(call.body, dict):
        raise Refused(400, "invalid json")
    return Reply(200, {"status": "imported", "sessions": 0, "observations": 0})
