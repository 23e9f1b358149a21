"""The route table: which handler answers which method and path. Fault scripts name routes by the same text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from . import mutations, observations, prompts, reads, relations, sessions
from .state import Call, Reply

if TYPE_CHECKING:
    from .model import Model

Handler = Callable[["Model", Call], Reply]


@dataclass(frozen=True)
class Route:
    """``name`` is the method and the pattern, for instance ``POST /sessions/{id}/end``."""

    name: str
    handler: Handler
    guarded: bool = False

    @property
    def method(self) -> str:
        return self.name.split(" ")[0]

    @property
    def pattern(self) -> str:
        return self.name.split(" ")[1]


# A literal path stands before the pattern that would also match it.
ROUTES = (
    Route("GET /health", reads.health),
    Route("GET /project/current", reads.current_project),
    Route("GET /projects", reads.projects),
    Route("POST /sessions", sessions.register),
    Route("GET /sessions/recent", sessions.recent),
    Route("GET /sessions/{id}", sessions.get),
    Route("DELETE /sessions/{id}", sessions.delete, guarded=True),
    Route("POST /sessions/{id}/end", sessions.end),
    Route("POST /observations", observations.add),
    Route("GET /observations", reads.recent_observations),
    Route("GET /observations/recent", reads.recent_observations),
    Route("GET /observations/save-result", observations.save_result),
    Route("POST /observations/passive", observations.passive),
    Route("GET /observations/{id}", observations.get),
    Route("PATCH /observations/{id}", mutations.update),
    Route("DELETE /observations/{id}", mutations.delete, guarded=True),
    Route("PUT /observations/{id}/pin", mutations.pin),
    Route("DELETE /observations/{id}/pin", mutations.unpin),
    Route("POST /prompts", prompts.add),
    Route("GET /prompts/recent", prompts.recent),
    Route("GET /prompts/search", prompts.search),
    Route("DELETE /prompts/{id}", prompts.delete, guarded=True),
    Route("GET /search", reads.search),
    Route("GET /context", reads.context),
    Route("GET /context/compaction", reads.compaction),
    Route("GET /stats", reads.stats),
    Route("GET /timeline", reads.timeline),
    Route("POST /topic-keys/suggest", reads.suggest),
    Route("GET /review", reads.review),
    Route("POST /review/mark_reviewed", mutations.mark_reviewed),
    Route("POST /conflicts/judge", relations.judge),
    Route("POST /conflicts/compare", relations.compare),
    Route("GET /doctor", reads.doctor),
    Route("GET /export", relations.export, guarded=True),
    Route("POST /import", relations.import_nothing, guarded=True),
    Route("POST /projects/rescue-ownership", relations.rescue_ownership),
    Route("POST /projects/migrate", relations.rescue_ownership),
)
NAMES = frozenset(route.name for route in ROUTES)


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(pattern)))


_TABLE = tuple((route, _compile(route.pattern)) for route in ROUTES)


def find(method: str, raw_path: str) -> tuple[Route | None, dict[str, str], bool]:
    """The route of a raw path (no query), its decoded parameters, and whether the path exists for another method.

    Parameters are matched before decoding, so that an encoded slash stays part of a key.
    """
    known = False
    for route, pattern in _TABLE:
        match = pattern.fullmatch(raw_path)
        if match:
            known = True
            if route.method == method:
                return route, {name: unquote(value) for name, value in match.groupdict().items()}, True
    return None, {}, known
