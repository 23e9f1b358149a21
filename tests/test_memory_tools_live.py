"""Behaviours 45, 47 to 50, 56, 58, 61, 62 and 86 over HTTP, on servers of every generation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from scopelog.clients.memory.errors import EngramError, HttpError, ProjectUnresolved
from scopelog.clients.memory.tools import TOOLS, call

from .engram import GENERATIONS, EngramServer
from .memory_tools_rig import (
    ARGUMENTS,
    COMPARE,
    EMPTY,
    SCOPED,
    LiveHost,
)
from .memory_wire import run

Live = Callable[[LiveHost, EngramServer], Awaitable[None]]


@pytest.fixture(params=sorted(GENERATIONS))
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Live], None]:
    """Runs a test over one server generation, its session in a directory of the project ``demo``."""
    pytest.importorskip("httpx2", reason="the extra engram is not installed")
    (tmp_path / ".engram").mkdir()
    (tmp_path / ".engram" / "config.json").write_text('{"project_name": "demo"}')

    def run_live(main: Live) -> None:
        with EngramServer(request.param, token="token") as server:

            async def whole() -> None:
                host = LiveHost(server, str(tmp_path))
                await main(host, server)
                await host._transport.aclose()

            run(whole)
            server.check_invariants(agents={"agent-1": []}, projects={"agent-1": "demo"}, ends=["agent-1"])

    return run_live


READING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mem_search", {"query": "cache"}),
    ("mem_search", {"query": "cache", "all_projects": True}),
    ("mem_context", {}),
    ("mem_stats", {}),
    ("mem_stats", {"all_projects": True}),
    ("mem_timeline", {"observation_id": 1}),
    ("mem_doctor", {}),
    ("mem_review", {"action": "list"}),
    ("mem_review", {"action": "list", "all_projects": True}),
    ("mem_suggest_topic_key", {"title": "The cache"}),
    ("mem_current_project", {}),
    ("mem_get_observation", {"id": 1}),
    ("mem_list_projects", {}),
)


def test_reading_leaves_no_row(live: Callable[[Live], None]) -> None:
    """Behaviours 61 and 86: a fresh project reads as empty with every tool, and nothing is stored for it."""
    assert {name for name, _ in READING} == {name for name in TOOLS if TOOLS[name].kind == "read"} | {"mem_review"}

    async def main(host: LiveHost, server: EngramServer) -> None:
        for name, arguments in READING:
            scoped = name in SCOPED and "all_projects" not in arguments
            try:
                answer = await call(host, name, arguments)
            except EngramError:
                older = name == "mem_list_projects" and not server.model.generation.list_projects
                assert older or name == "mem_get_observation"
                continue
            if scoped:
                assert answer == EMPTY[name], name
            if name == "mem_current_project":
                assert isinstance(answer, dict)
                assert (answer["project"], answer["project_source"]) == ("demo", "config")
        assert not server.model.rows.sessions and not server.model.rows.observations
        assert not [seen for seen in server.requests if seen.applied]
        server.check_invariants(readers=["agent-1"])

    live(main)


def test_every_tool_works_over_http(live: Callable[[Live], None]) -> None:
    """Behaviours 45, 47, 49, 50, 58 and 62 against each generation."""

    async def main(host: LiveHost, server: EngramServer) -> None:
        async def do(name: str, **arguments: Any) -> Any:
            return await call(host, name, arguments)

        other = server.model.add_session("other", "elsewhere")
        assert (await do("mem_session_start"))["project"] == "demo"
        first = (await do("mem_save", title="The cache", content="written first", type="decision"))["answer"]["id"]
        second = (await do("mem_session_summary", content="Cached and done"))["answer"]["id"]
        learned = "## Learnings\n\n- the cache is written before the index is"
        assert (await do("mem_capture_passive", content=learned))["answer"]["saved"] == 1
        assert (await do("mem_save_prompt", content="please look at the cache"))["status"] == "delivered"

        assert {row["id"] for row in await do("mem_search", query="written first")} == {first}
        assert {row["id"] for row in await do("mem_search", query="cache", type="decision")} == {first}
        assert len(await do("mem_search", query="cache done", match_mode="any", all_projects=True)) == 3
        assert "The cache" in (await do("mem_context"))["context"]
        assert (await do("mem_stats"))["projects"] == ["demo"]
        assert (await do("mem_stats", all_projects=True))["projects"] == ["demo", "elsewhere"]
        line = await do("mem_timeline", observation_id=first, before=2, after=1)
        assert (line["before"], [row["id"] for row in line["after"]]) == ([], [second])
        assert (await do("mem_doctor"))["project"] == "demo"
        assert (await do("mem_get_observation", id=first))["title"] == "The cache"
        assert (await do("mem_suggest_topic_key", title="The cache", type="bugfix"))["topic_key"] == "bug/the-cache"

        server.clock.advance(100 * 86400)
        assert [row["id"] for row in (await do("mem_review", action="list"))["observations"]] == [first]
        assert (await do("mem_review", action="mark_reviewed", observation_id=first))["state"] == "active"
        assert (await do("mem_review", action="list")) == EMPTY["mem_review"]
        assert (await do("mem_pin", id=first))["pinned"] is True
        assert (await do("mem_unpin", id=first))["pinned"] is False
        judgment = server.model.add_judgment(first, second)
        assert (await do("mem_judge", judgment_id=judgment, relation="scoped"))["relation"]["relation"] == "scoped"
        assert (await do("mem_compare", **{**COMPARE, "memory_id_a": first, "memory_id_b": second}))["sync_id"]

        assert (await do("mem_update", id=first, title="Caches"))["title"] == "Caches"
        assert (await do("mem_delete", id=second)) == {"id": second, "status": "deleted", "hard_delete": False}
        assert (await do("mem_delete", id=first, hard_delete=True))["hard_delete"] is True
        with pytest.raises(HttpError, match="404"):
            await do("mem_delete", id=first)
        assert (await do("mem_session_end", summary="done"))["status"] == "completed"
        assert other.ended_at is None

    live(main)


def test_another_projects_observation_is_not_changed(live: Callable[[Live], None]) -> None:
    """Behaviour 62: reported where the server compares, one request each; a timeline does not show it (49)."""

    async def main(host: LiveHost, server: EngramServer) -> None:
        server.model.add_session("other", "elsewhere")
        body = {"session_id": "other", "title": "theirs", "content": "not ours", "project": "elsewhere"}
        number = server.model.answer("POST", "/observations", body).body["id"]
        await call(host, "mem_save", {"title": "ours", "content": "not theirs"})
        with pytest.raises(HttpError, match="404"):
            await call(host, "mem_timeline", {"observation_id": number})
        found = await call(host, "mem_get_observation", {"id": number})
        assert isinstance(found, dict) and found["project"] == "elsewhere"
        server.forget()
        if server.model.generation.expected_project:
            for name, arguments in (("mem_update", {"title": "mine"}), ("mem_delete", {"hard_delete": True})):
                with pytest.raises(HttpError) as caught:
                    await call(host, name, {"id": number, **arguments})
                assert caught.value.status == 409
            row = server.model.live(number)
            assert row is not None and row.title == "theirs"
            assert [(seen.method, seen.query["expected_project"]) for seen in server.requests] == [
                ("PATCH", "demo"),
                ("DELETE", "demo"),
            ]

    live(main)


def test_a_session_that_is_nowhere_asks_nothing() -> None:
    """Behaviours 48 and 56 over HTTP."""
    pytest.importorskip("httpx2", reason="the extra engram is not installed")
    with EngramServer("3") as server:

        async def main() -> None:
            host = LiveHost(server, None)
            for name in (*SCOPED, "mem_current_project", "mem_get_observation", "mem_pin", "mem_update", "mem_delete"):
                with pytest.raises(ProjectUnresolved):
                    await call(host, name, ARGUMENTS[name])
            assert not server.requests
            await call(host, "mem_search", {"query": "cache", "all_projects": True})
            await host._transport.aclose()

        run(main)
        server.check_invariants(readers=["agent-1"])
