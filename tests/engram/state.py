"""What a stand-in memory server holds: rows, the four server generations, the injected clock, and the reply shape."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

LEASE_SECONDS = 30 * 60
DEDUPE_SECONDS = 15 * 60
BAD_JSON = object()  # stands for a body that did not parse

START = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC).timestamp()


class Clock(Protocol):
    """Seconds since the epoch, as a float."""

    def now(self) -> float: ...


class ManualClock:
    """A clock that moves when a test says so."""

    def __init__(self, start: float = START) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self._now += seconds


class SystemClock:
    def now(self) -> float:
        return time.time()


@dataclass(frozen=True)
class Generation:
    """What a server of one age can do. Source: the contract, sections 3, 4, 5 and 7.

    ``dataclasses.replace`` makes a variant, for instance a generation 3 whose lookups answer an untyped 404.
    """

    name: str
    version: str
    instance_id: bool = True
    capabilities: Mapping[str, bool] | None = None
    project_current: bool = True
    empty_is_null: bool = False
    ended_check: bool = True
    resume: bool = False
    operation_ids: bool = False
    typed_not_found: bool = False
    expected_project: bool = False
    list_projects: bool = True
    foreign_key_500: bool = False
    content_limit: int = 100_000


GENERATIONS = {
    "old": Generation(
        "old",
        "1.4.0",
        instance_id=False,
        project_current=False,
        empty_is_null=True,
        ended_check=False,
        list_projects=False,
        foreign_key_500=True,
        content_limit=2000,
    ),
    "2.0": Generation("2.0", "2.0.0", ended_check=False, list_projects=False),
    "2.1": Generation("2.1", "2.1.0", capabilities={}),
    "3": Generation(
        "3",
        "3.0.0",
        capabilities={"isolated_session_registration": True, "root_session_resume": True},
        resume=True,
        operation_ids=True,
        typed_not_found=True,
        expected_project=True,
    ),
}


@dataclass
class Session:
    id: str
    project: str
    directory: str
    started_at: float
    ownership_mode: str = ""
    ended_at: float | None = None
    summary: str | None = None
    lease_expires_at: float = 0.0
    seeded: bool = False  # put there by a test, not by a request


@dataclass
class Observation:
    id: int
    session_id: str
    type: str
    title: str
    content: str
    created_at: float
    updated_at: float
    tool_name: str = ""
    project: str = ""
    scope: str = "project"
    topic_key: str = ""
    revision_count: int = 1
    duplicate_count: int = 1
    last_seen_at: float | None = None
    review_after: float | None = None
    deleted_at: float | None = None
    pinned: bool = False


@dataclass
class Prompt:
    id: int
    session_id: str
    content: str
    project: str
    created_at: float
    source_inbox_id: str = ""
    deleted: bool = False


@dataclass
class Relation:
    id: str
    memory_id_a: int
    memory_id_b: int
    relation: str = "pending"
    reason: str = ""
    confidence: float | None = None


@dataclass
class Operation:
    """One entry of the ledger: the payload's fingerprint and the row it made (the row may be gone since)."""

    fingerprint: str
    observation_id: int


@dataclass(frozen=True)
class Effect:
    """One write that took hold: ``what`` is created, updated or duplicate. Evidence for the end-of-test invariants."""

    kind: str
    what: str
    row: int
    session_id: str
    key: str
    content: str
    at: float
    session_ended_at: float | None


@dataclass
class Rows:
    """All state that outlives a restart."""

    sessions: dict[str, Session] = field(default_factory=dict)
    observations: dict[int, Observation] = field(default_factory=dict)
    prompts: dict[int, Prompt] = field(default_factory=dict)
    relations: dict[str, Relation] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    last_id: int = 0

    def next_id(self) -> int:
        self.last_id += 1  # never taken back: an id names one row for ever
        return self.last_id

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Rows:
        raw = json.loads(text)
        return cls(
            sessions={key: Session(**row) for key, row in raw["sessions"].items()},
            observations={int(key): Observation(**row) for key, row in raw["observations"].items()},
            prompts={int(key): Prompt(**row) for key, row in raw["prompts"].items()},
            relations={key: Relation(**row) for key, row in raw["relations"].items()},
            operations={key: Operation(**row) for key, row in raw["operations"].items()},
            effects=[Effect(**row) for row in raw["effects"]],
            last_id=raw["last_id"],
        )


@dataclass(frozen=True)
class Call:
    """One request as the model sees it: decoded path parameters, every query pair, and the parsed body."""

    method: str
    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    query: tuple[tuple[str, str], ...] = ()
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.query if key == name]

    def value(self, name: str) -> str:
        found = self.values(name)
        return found[0] if found else ""


@dataclass(frozen=True)
class Reply:
    """``body`` is JSON data, or a ``str`` for the plain-text answers. ``applied``: the request changed the rows."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    applied: bool = False


class Refused(Exception):
    """Carries the error reply out of a handler; never seen outside the model."""

    def __init__(self, status: int, error: str, *, headers: Mapping[str, str] | None = None, **extra: Any) -> None:
        super().__init__(error)
        self.reply = Reply(status, {"error": error, **extra}, headers or {})


def stamp(seconds: float) -> str:
    """UTC text with a resolution of one second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def fields(body: Any, **kinds: type) -> dict[str, Any]:
    """The named fields of a JSON object; absent and null become the zero value, another type is a 400."""
    if not isinstance(body, dict):
        raise Refused(400, "invalid json: expected an object")
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = body.get(name)
        if value is None:
            values[name] = kind()
        elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            values[name] = float(value)
        elif type(value) is kind:
            values[name] = value
        else:
            raise Refused(400, f"invalid json: {name} has the wrong type")
    return values
