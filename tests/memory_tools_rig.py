"""Hosts for the memory tools: one that records, one over a real server; and what the contract says of each tool."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from scopelog.clients.memory.config import MemoryConfig
from scopelog.clients.memory.errors import HttpError
from scopelog.clients.memory.projects import ProjectGate, Resolution
from scopelog.clients.memory.spelling import Query
from scopelog.clients.memory.tools import TOOLS, ToolHost, call
from scopelog.clients.memory.transport import Transport

from .engram import EngramServer
from .memory_wire import Time

CONTRACT: dict[str, tuple[str, set[str], set[str]]] = {  # section 11: kind, required, optional
    "mem_save": ("write", {"title", "content"}, {"type", "scope", "topic_key"}),
    "mem_search": ("read", {"query"}, {"type", "scope", "limit", "match_mode", "all_projects"}),
    "mem_context": ("read", set(), {"scope"}),
    "mem_stats": ("read", set(), {"all_projects"}),
    "mem_timeline": ("read", {"observation_id"}, {"before", "after"}),
    "mem_session_summary": ("write", {"content"}, set()),
    "mem_session_start": ("write", set(), set()),
    "mem_session_end": ("change", set(), {"summary"}),
    "mem_get_observation": ("read", {"id"}, set()),
    "mem_suggest_topic_key": ("read", set(), {"title", "type", "content"}),
    "mem_capture_passive": ("write", {"content"}, {"source"}),
    "mem_save_prompt": ("write", {"content"}, set()),
    "mem_update": ("change", {"id"}, {"title", "content", "type", "scope", "topic_key"}),
    "mem_delete": ("change", {"id"}, {"hard_delete"}),
    "mem_current_project": ("read", set(), {"cwd"}),
    "mem_judge": ("change", {"judgment_id", "relation"}, {"reason", "evidence", "confidence"}),
    "mem_compare": (
        "change",
        {"memory_id_a", "memory_id_b", "relation", "confidence", "reasoning"},
        {"model"},
    ),
    "mem_doctor": ("read", set(), {"check"}),
    "mem_review": ("change", {"action"}, {"observation_id", "limit", "all_projects"}),
    "mem_pin": ("change", {"id"}, set()),
    "mem_unpin": ("change", {"id"}, set()),
    "mem_list_projects": ("read", set(), set()),
}
COMPARE: dict[str, Any] = {
    "memory_id_a": 1,
    "memory_id_b": 2,
    "relation": "related",
    "confidence": 1,
    "reasoning": "both are about the cache",
}
ARGUMENTS: dict[str, dict[str, Any]] = {  # a call of each tool that is in order
    **{name: {} for name in TOOLS},
    "mem_save": {"title": "t", "content": "c"},
    "mem_search": {"query": "cache"},
    "mem_timeline": {"observation_id": 1},
    "mem_session_summary": {"content": "c"},
    "mem_get_observation": {"id": 1},
    "mem_suggest_topic_key": {"title": "The cache"},
    "mem_capture_passive": {"content": "c"},
    "mem_save_prompt": {"content": "c"},
    "mem_update": {"id": 1, "title": "t"},
    "mem_delete": {"id": 1},
    "mem_judge": {"judgment_id": "rel-1", "relation": "related"},
    "mem_compare": COMPARE,
    "mem_review": {"action": "list"},
    "mem_pin": {"id": 1},
    "mem_unpin": {"id": 1},
}
SCOPED = ("mem_search", "mem_context", "mem_stats", "mem_timeline", "mem_doctor", "mem_review")
UNGATED = {"mem_suggest_topic_key", "mem_current_project", "mem_list_projects"}
OUTBOX = {name for name in TOOLS if CONTRACT[name][0] == "write"} | {"mem_session_end"}
EMPTY: dict[str, Any] = {
    "mem_search": [],
    "mem_context": {"context": ""},
    "mem_stats": {"total_sessions": 0, "total_observations": 0, "total_prompts": 0, "projects": []},
    "mem_timeline": {"focus": None, "before": [], "after": [], "session_info": None, "total_in_range": 0},
    "mem_doctor": {"status": "ok", "project": "demo", "checks": []},
    "mem_review": {"observations": [], "count": 0},
}


class FakeHost:
    """Records what it is asked for; ``answers`` are given in turn, the last one for ever."""

    def __init__(self, *answers: Any, project: str | None = "demo", cwd: str | None = "/w") -> None:
        self.answers = list(answers) or [{}]
        self.asked: list[tuple[str, str, dict[str, Any], Any]] = []
        self.submitted: list[tuple[str, dict[str, Any]]] = []
        self.ended: list[str | None] = []
        self.started = 0
        self._project = project
        self._cwd = cwd

    @property
    def agent_id(self) -> str:
        return "agent-1"

    @property
    def cwd(self) -> str | None:
        return self._cwd

    @property
    def key(self) -> str:
        return "agent-1"

    async def project(self) -> str:
        if self._project is None:
            raise Resolution("failed", reason="ambiguous").error()
        return self._project

    async def request(
        self, method: str, path: str | Sequence[str], *, query: Query | None = None, body: Any = None
    ) -> Any:
        sent = {name: value for name, value in (query or {}).items() if value is not None and value != ""}
        self.asked.append((method, path if isinstance(path, str) else "/" + "/".join(path), sent, body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def submit(self, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        self.submitted.append((kind, payload))
        return {"status": "delivered", "entry": "e1"}

    async def start(self) -> dict[str, Any]:
        self.started += 1
        return {"session_id": "agent-1"}

    async def end(self, summary: str | None) -> dict[str, Any]:
        self.ended.append(summary)
        return {"ended": True}


def use(host: ToolHost, name: str, **arguments: Any) -> Any:
    return asyncio.run(asyncio.wait_for(call(host, name, arguments), 20))


def asks(name: str, **arguments: Any) -> tuple[str, str, dict[str, Any], Any]:
    """The one request that a call makes."""
    host = FakeHost([] if name == "mem_search" else {})
    use(host, name, **arguments)
    assert len(host.asked) == 1 and not host.submitted
    return host.asked[0]


def http_error(status: int, **body: Any) -> HttpError:
    return HttpError(method="GET", path="/x", status=status, body=body or None)


class LiveHost:
    """A session of one server without an outbox: writes register the row, and go out at once."""

    def __init__(self, server: EngramServer, cwd: str | None, agent: str = "agent-1") -> None:
        config = MemoryConfig(url=server.url, fetch_max_attempts=1)
        self._transport = Transport(config, environ={"ENGRAM_HTTP_TOKEN": server.model.token})
        time = Time()
        self._gate = ProjectGate(self._transport, cwd, clock=time.clock, sleep=time.sleep)
        self._agent = agent

    @property
    def agent_id(self) -> str:
        return self._agent

    @property
    def key(self) -> str:
        return self._agent

    @property
    def cwd(self) -> str | None:
        return self._gate.cwd

    async def project(self) -> str:
        return await self._gate.require()

    async def request(
        self, method: str, path: str | Sequence[str], *, query: Query | None = None, body: Any = None
    ) -> Any:
        return await self._transport.request(method, path, query=query, body=body)

    async def submit(self, kind: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        started = await self.start()
        path = {"learning": "/observations/passive", "prompt": "/prompts"}.get(kind, "/observations")
        body = {**payload, "session_id": self.key, "project": started["project"]}
        answer = await self.request("POST", path, body=body)
        return {"status": "delivered", "entry": "e1", "answer": answer}

    async def start(self) -> dict[str, Any]:
        body = {"id": self.key, "project": await self.project(), "directory": self.cwd}
        await self.request("POST", "/sessions", body={**body, "ownership_mode": "project_owned"})
        return body

    async def end(self, summary: str | None) -> dict[str, Any]:
        answer = await self.request("POST", ("sessions", self.key, "end"), body={"summary": summary or ""})
        assert isinstance(answer, dict)
        return answer
