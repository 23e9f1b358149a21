"""The pure state model of the stand-in: no sockets, injected clock. One call in, one reply out.

Rules come from the HTTP contract of the memory server (sections 3 to 7); nothing of the server's own code is used.
Not thread-safe: the HTTP skin holds one lock around every call and every change behind the bridge's back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from . import relations, routes, scoping
from .state import (
    BAD_JSON,
    GENERATIONS,
    LEASE_SECONDS,
    Call,
    Clock,
    Effect,
    Generation,
    ManualClock,
    Observation,
    Refused,
    Relation,
    Reply,
    Rows,
    Session,
)


class Model:
    """``generation`` is a name ("old", "2.0", "2.1", "3") or a ``Generation`` of the test's own."""

    def __init__(
        self,
        generation: str | Generation = "3",
        *,
        clock: Clock | None = None,
        instance_id: str = "0" * 32,
        token: str | None = None,
        directory: str = "/srv/memory-server",
        process_project: str = "",
        rows: Rows | None = None,
    ) -> None:
        self.generation = GENERATIONS[generation] if isinstance(generation, str) else generation
        self.clock: Clock = clock or ManualClock()
        self.instance_id = instance_id
        self.token = token or ""
        self.directory = directory
        self.process_project = process_project
        self.rows = rows or Rows()
        self.resolutions: dict[str, dict[str, Any]] = {}
        self.unscoped: list[str] = []  # reads that named no project: the bridge must never make one
        self.sick = False

    # -- answering

    def answer(self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        """``target`` is the raw path with its query; ``body`` bytes, or data for a test that has no bytes."""
        path, _, query = target.partition("?")
        route, parameters, known = routes.find(method, path)
        if route is None and known:
            return Reply(405, "Method Not Allowed\n")
        if route is None:
            return Reply(404, "404 page not found\n")
        lower = {name.lower(): value for name, value in (headers or {}).items()}
        pairs = tuple(parse_qsl(query, keep_blank_values=True))
        call = Call(method, path, parameters, pairs, parse(body), lower)
        try:
            if route.guarded:
                relations.check_token(self, call)
            return route.handler(self, call)
        except Refused as refusal:
            return refusal.reply

    # -- helpers of the handlers

    def live(self, number: int) -> Observation | None:
        row = self.rows.observations.get(number)
        return row if row is not None and row.deleted_at is None else None

    def listing(self, items: Sequence[Any]) -> list[Any] | None:
        """An empty list is null on the old generation."""
        return None if not items and self.generation.empty_is_null else list(items)

    def known_projects(self) -> list[str]:
        """Every project that any row mentions, sorted."""
        names = {row.project for row in self.rows.sessions.values()}
        names |= {row.project for row in self.rows.observations.values()}
        names |= {row.project for row in self.rows.prompts.values()}
        return sorted(names - {""})

    def note(self, kind: str, what: str, row: int, session_id: str, key: str, content: str) -> None:
        session = self.rows.sessions.get(session_id)
        ended = session.ended_at if session else None
        self.rows.effects.append(Effect(kind, what, row, session_id, key, content, self.clock.now(), ended))

    def add_judgment(self, first: int, second: int) -> str:
        """A relation that waits for a verdict; its id is what ``POST /conflicts/judge`` takes."""
        key = f"rel-{self.rows.next_id():08x}"
        self.rows.relations[key] = Relation(key, first, second)
        return key

    # -- what tests ask and change

    def live_candidates(self, project: str, directory: str) -> list[Session]:
        """Rows an MCP writer without a session id could be bound to: not ended, and the lease lies in the future."""
        now = self.clock.now()
        return [
            row
            for row in self.rows.sessions.values()
            if (row.project, row.directory) == (project, directory)
            and row.ended_at is None
            and row.lease_expires_at > now
        ]

    def add_session(self, key: str, project: str, directory: str = "", *, ended: bool = False) -> Session:
        """A row that was there before the bridge; the invariants do not count it."""
        now = self.clock.now()
        row = Session(key, project, directory, now, "project_owned", lease_expires_at=now + LEASE_SECONDS, seeded=True)
        if ended:
            row.ended_at = now
        self.rows.sessions[key] = row
        return row

    def end_session(self, key: str, summary: str | None = None) -> None:
        row = self.rows.sessions[key]
        row.ended_at, row.summary = self.clock.now(), summary

    def drop_session(self, key: str) -> None:
        """The row and all that hangs on it."""
        del self.rows.sessions[key]
        self.rows.observations = {n: o for n, o in self.rows.observations.items() if o.session_id != key}
        self.rows.prompts = {n: p for n, p in self.rows.prompts.items() if p.session_id != key}

    def set_project(self, key: str, project: str) -> None:
        """The session row alone moves; its observations keep the project they were written under."""
        self.rows.sessions[key].project = project

    def wipe(self) -> None:
        """All rows gone, as after a lost data directory; numbers are still never used twice."""
        self.rows = Rows(last_id=self.rows.last_id)

    def resolve_to(self, cwd: str, project: str, source: str = "config", **extra: Any) -> None:
        """What ``/project/current`` answers for ``cwd``; ``extra`` sets or overwrites fields of the envelope."""
        self.resolutions[cwd] = scoping.envelope(cwd, project, source, cwd) | extra

    def resolve_ambiguous(self, cwd: str, candidates: Sequence[str]) -> None:
        self.resolutions[cwd] = scoping.ambiguous(cwd, list(candidates))


def parse(body: Any) -> Any:
    """Bytes to data: nothing is ``None``, what does not parse is ``BAD_JSON``; data passes through."""
    if not isinstance(body, bytes):
        return body
    if not body:
        return BAD_JSON
    try:
        return json.loads(body, parse_constant=_no_constant)
    except ValueError:
        return BAD_JSON


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
