"""What must hold after every end-to-end test, whatever the fault script did."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, unquote_plus

from .model import Model
from .record import Exchange
from .state import Observation, Prompt

BEFORE_IT_COULD_KNOW = 60.0

# An agent's rotated keys, or how many rotations it may have had where the test does not know the keys.
Agents = Mapping[str, Sequence[str] | int]


@dataclass(frozen=True)
class Entry:
    """One outbox entry as the test knows it. ``key`` is its operation_id or source_inbox_id, ``content`` its text.

    A learning has no key: ``content`` is one item, found by the server's content dedupe.
    """

    content: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if not self.key and not self.content:
            raise ValueError("an entry is known by its key or its content")


def violations(
    model: Model,
    requests: Sequence[Exchange],
    *,
    agents: Agents | None = None,
    projects: Mapping[str, str] | None = None,
    readers: Iterable[str] = (),
    secrets: Iterable[str] = (),
    ends: Iterable[str] = (),
    entries: Iterable[Entry] = (),
    late_writes: bool = False,
) -> list[str]:
    """Every broken invariant as one line; empty when all is well. See ``EngramServer.check_invariants``."""
    agents = agents or {}
    return [
        *(f"a read named no project: {read}" for read in model.unscoped),
        *_secrets(requests, secrets),
        *_ends(requests, ends),
        *_health(requests),
        *_session_rows(model, agents, readers),
        *_projects(model, agents, projects or {}),
        *([] if late_writes else _late(model)),
        *_delivery(model, requests, entries),
    ]


def _secrets(requests: Sequence[Exchange], secrets: Iterable[str]) -> Iterable[str]:
    """Raw and decoded: a secret that is percent-encoded or escaped is still a secret."""
    for request in requests:
        decoded = json.dumps(request.body, ensure_ascii=False)
        raw = request.raw.decode("utf-8", "replace")
        seen = "\n".join([request.target, unquote_plus(request.target), *request.headers.values(), raw, decoded])
        for secret in secrets:
            if secret in seen or json.dumps(secret, ensure_ascii=False)[1:-1] in seen:
                yield f"request {request.order} ({request.method} {request.route}) carries a secret"


def _ends(requests: Sequence[Exchange], ends: Iterable[str]) -> Iterable[str]:
    """Only announced ends, and each applied once at most."""
    announced, applied = Counter(ends), Counter[str]()
    for request in requests:
        if request.route == "POST /sessions/{id}/end":
            key = unquote(request.path.split("/")[2])
            applied[key] += request.applied
            if key not in announced:
                yield f"request {request.order} ends {key}, which nobody asked for"
    for key, count in applied.items():
        if key in announced and count > announced[key]:
            yield f"{key} was ended {count} times, asked {announced[key]} times"


def _health(requests: Sequence[Exchange]) -> Iterable[str]:
    for request in requests:
        if request.path == "/health" and "authorization" in request.headers:
            yield f"request {request.order} sends Authorization to /health"


def _session_rows(model: Model, agents: Agents, readers: Iterable[str]) -> Iterable[str]:
    """Each row is an agent's own or a rotated key of one; a session that only read has none."""
    rows = {key for key, row in model.rows.sessions.items() if not row.seeded}
    for agent in readers:
        if agent in rows:
            yield f"{agent} only read, and has a row"
    if not agents:
        return
    owned = {key for agent in agents for key in _keys(agents, agent)}
    spare = sum(keys for keys in agents.values() if isinstance(keys, int))
    others = sorted(rows - owned)
    if len(others) > spare:
        yield f"rows of no agent and no rotation ({spare} allowed): {', '.join(others)}"


def _keys(agents: Agents, agent: str) -> tuple[str, ...]:
    keys = agents.get(agent, ())
    return (agent,) if isinstance(keys, int) else (agent, *keys)


def _projects(model: Model, agents: Agents, projects: Mapping[str, str]) -> Iterable[str]:
    wanted = {key: project for agent, project in projects.items() for key in _keys(agents, agent)}
    rows: list[Observation | Prompt] = [*model.rows.observations.values(), *model.rows.prompts.values()]
    for row in rows:
        if row.session_id in wanted and row.project != wanted[row.session_id]:
            yield f"{type(row).__name__} {row.id} of {row.session_id} lies in project {row.project}"


def _late(model: Model) -> Iterable[str]:
    """A row ended behind the bridge's back may take writes for 60 s, no longer."""
    for effect in model.rows.effects:
        if effect.session_ended_at is not None and effect.at - effect.session_ended_at > BEFORE_IT_COULD_KNOW:
            yield f"{effect.kind} {effect.row} was written to {effect.session_id} long after it had ended"


def _delivery(model: Model, requests: Sequence[Exchange], entries: Iterable[Entry]) -> Iterable[str]:
    for entry in entries:
        name = entry.key or f"content of {len(entry.content)} characters"
        if model.generation.operation_ids:
            effects = [
                e for e in model.rows.effects if (e.key == entry.key if entry.key else e.content == entry.content)
            ]
            made = [effect for effect in effects if entry.key or effect.what == "created"]
            if len(made) != 1:
                yield f"entry {name} took effect {len(made)} times"
        else:
            yield from _not_repeated(requests, entry, name)


def _not_repeated(requests: Sequence[Exchange], entry: Entry, name: str) -> Iterable[str]:
    """Without the feature an unknown outcome is final: the entry is never sent again."""
    unknown = False
    for request in requests:
        body = request.body if request.method == "POST" and isinstance(request.body, dict) else {}
        by_key = entry.key and entry.key in (body.get("operation_id"), body.get("source_inbox_id"))
        carries = by_key or (entry.content and entry.content in str(body.get("content", "")))
        if carries and unknown:
            yield f"entry {name} was sent again (request {request.order}) after an unknown outcome"
        unknown = unknown or bool(carries and request.unknown)
