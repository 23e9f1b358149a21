"""Behaviours that other files prove on a scripted peer or on one server, here on servers of every generation."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import scopelog.clients.memory
from fuzz.simdisk import SimDisk
from scopelog import ManualClock, Store
from scopelog.aio import AsyncSession
from scopelog.clients.memory import TOOLS, MemorySession, Outcome, delivery
from scopelog.clients.memory.capture import prompt_text
from scopelog.clients.memory.config import MemoryConfig
from scopelog.clients.memory.errors import (
    DeliveryUnknown,
    EngramError,
    HttpError,
    ProjectUnresolved,
    RequestRefused,
    RequestTimedOut,
    ServerRefused,
    ServerUnavailable,
)
from scopelog.clients.memory.outbox import Outbox
from scopelog.clients.memory.server import ServerKeeper
from scopelog.clients.memory.spelling import Query
from scopelog.clients.memory.transport import Reply, Transport

from .engram import GENERATIONS, Action, EngramServer, faults, write_binary
from .memory_rig import AGENT, LONG, PROJECT, Rig, blocks, learnings, rig, run
from .memory_tools_rig import ARGUMENTS, OUTBOX, SCOPED, UNGATED
from .memory_wire import Time

pytest.importorskip("httpx2", reason="the extra engram is not installed")

ALL = sorted(GENERATIONS)
OWN = ["2.0", "2.1", "3"]  # generations that say who they are
ROW, POST, END = "GET /sessions/{id}", "POST /sessions", "POST /sessions/{id}/end"
HEALTH, CURRENT = "GET /health", "GET /project/current"
OBSERVATIONS, LOOKUP, PROMPTS = "POST /observations", "GET /observations/save-result", "POST /prompts"
SAVE = {"session_id": "a", "title": "t", "content": "some content", "project": PROJECT}
PACKAGE = Path(scopelog.clients.memory.__file__).parent

every = pytest.mark.parametrize("generation", ALL)
own = pytest.mark.parametrize("generation", OWN)


# --- 13 to 29: the transport ------------------------------------------------------------------------


class Wired:
    """A transport to a server that has a row ``a``; time is told, and the environment is the test's."""

    def __init__(self, server: EngramServer, limit: int, attempts: int) -> None:
        self.server = server
        self.time = Time()
        self.environ: dict[str, str] = {}
        self.config = MemoryConfig(port=server.port, request_timeout_ms=limit, fetch_max_attempts=attempts)
        self.transport = Transport(self.config, environ=self.environ, sleep=self.time.sleep)

    def saved(self) -> int:
        return len(self.server.model.rows.observations)


@asynccontextmanager
async def wired(generation: str, *, limit: int = 20_000, attempts: int = 3) -> AsyncIterator[Wired]:
    with EngramServer(generation, token="token") as server:
        server.model.add_session("a", PROJECT)
        made = Wired(server, limit, attempts)
        try:
            yield made
        finally:
            server.faults.clear()
            await made.transport.aclose()
        server.check_invariants()


@every
def test_what_timed_out_is_sent_once(generation: str) -> None:
    """13, 14, 18: a write may have been applied, and is; a read names its limit; as a result, the method."""

    async def main() -> None:
        async with wired(generation, limit=100) as made:
            made.server.faults.on(OBSERVATIONS, faults.delay())
            with pytest.raises(RequestTimedOut, match=r"may have been applied.*verify first.*do not retry"):
                await made.transport.request("POST", "/observations", body=SAVE)
            made.server.faults.on(ROW, faults.delay())
            with pytest.raises(RequestTimedOut, match=r"GET /sessions/a timed out after 100 ms"):
                await made.transport.request("GET", "/sessions/a")
            for method, path, route in (("GET", "/sessions/a", ROW), ("POST", "/observations", OBSERVATIONS)):
                made.server.faults.on(route, faults.delay("never"))
                body = SAVE if method == "POST" else None
                assert await made.transport.request_result(method, path, body=body) == Reply(None, method)
            assert (len(made.server.seen(OBSERVATIONS)), len(made.server.seen(ROW))) == (2, 2)
            assert made.saved() == 1 and made.time.slept == []

    run(main)


@pytest.mark.parametrize("back", [False, True])
@every
def test_what_was_refused(generation: str, back: bool) -> None:
    """15 to 17, 19 to 21: pauses for what may be sent again, none for a write; healed once, within the attempt."""

    async def main() -> None:
        async with wired(generation) as made:
            heals = 0

            async def heal() -> bool:
                nonlocal heals
                heals += 1
                if back:
                    made.server.faults.accept()
                return back

            for method, path, pauses in (
                ("GET", "/sessions/a", [0.25, 0.5]),
                ("POST", "/sessions", [0.25, 0.5]),
                ("POST", "/observations", []),
            ):
                body = {"id": "a", "project": PROJECT, "directory": "/w"} if path == "/sessions" else SAVE
                made.server.faults.refuse()
                made.server.forget()
                made.transport.heal, made.time.slept, heals = heal, [], 0
                if back:
                    assert await made.transport.request(method, path, body=body if method == "POST" else None)
                    assert (heals, len(made.server.requests), made.time.slept) == (1, 1, [])
                    continue
                with pytest.raises(RequestRefused):
                    await made.transport.request(method, path, body=body if method == "POST" else None)
                assert (heals, made.time.slept) == (1, pauses)
                made.transport.heal, made.time.slept = None, []
                with pytest.raises(RequestRefused):
                    await made.transport.request(method, path, body=body if method == "POST" else None)
                assert made.time.slept == pauses
            made.server.faults.accept()
            assert made.saved() == back

    run(main)


@every
def test_what_goes_over_the_wire(generation: str) -> None:
    """22 to 24, 29: nothing private in a body or a URL, no negative zero in a reply, errors that are plain text."""

    async def main() -> None:
        async with wired(generation) as made:
            hidden = "x <private>hunter2</private>"
            body = {**SAVE, "title": hidden, "nested": [{"<private>hunter2": [hidden, 1]}]}
            await made.transport.request("POST", "/observations", body=body)
            query: Query = {"q": hidden, "project": PROJECT, "limit": 3}
            made.server.faults.on("GET /search", faults.not_json('[{"rank": -0.0, "n": [[-0.0]]}]'))
            assert str(await made.transport.request("GET", "/search", query=query)) == "[{'rank': 0, 'n': [[0]]}]"
            save, search = made.server.requests
            assert save.body["title"] == "x [REDACTED]"
            assert save.body["nested"] == [{"[REDACTED]": ["x [REDACTED]", 1]}]
            assert search.target == f"/search?q=x%20%5BREDACTED%5D&project={PROJECT}&limit=3"
            for method, path, status in (("GET", "/nowhere", 404), ("PUT", "/health", 405)):
                with pytest.raises(HttpError, match=f"HTTP status {status}") as caught:
                    await made.transport.request(method, path)
                assert (caught.value.status, caught.value.body) == (status, None)
            made.server.check_invariants(secrets=["hunter2"])

    run(main)


@every
def test_what_a_probe_finds(generation: str) -> None:
    """25, 32, 33: an old server does not say who it is, and is nobody's."""

    async def main() -> None:
        async with wired(generation) as made:
            ours, probe = made.server.instance_id, made.transport.probe
            made.environ["ENGRAM_HTTP_TOKEN"] = "token"
            assert (await probe(ours)).state == ("ready" if generation in OWN else "foreign")
            assert (await probe("f" * 32)).state == "foreign"
            for action, state in (
                (faults.foreign(None), "foreign"),
                (faults.not_json(), "foreign"),
                (faults.sick_health(), "indeterminate"),
                (faults.close_unread(), "indeterminate"),
                (faults.half_body(), "indeterminate"),
                (faults.delay("never"), "indeterminate"),
            ):
                made.server.faults.on(HEALTH, action)
                assert (await probe(ours, timeout=0.2)).state == state, action
            made.server.faults.refuse()
            assert (await probe(ours)).state == "refused"

    run(main)


@every
def test_the_token_is_sent_as_it_is_set(generation: str) -> None:
    """26: absent when unset, read anew for each request, not trimmed."""

    async def main() -> None:
        async with wired(generation) as made:
            number = (await made.transport.request("POST", "/observations", body=SAVE))["id"]
            made.server.faults.change_token("  two")
            query: Query = {"expected_project": PROJECT}
            for token in (None, "two", "token"):
                made.environ.clear()
                if token is not None:
                    made.environ["ENGRAM_HTTP_TOKEN"] = token
                with pytest.raises(HttpError, match="401"):
                    await made.transport.request("DELETE", f"/observations/{number}", query=query)
            made.environ["ENGRAM_HTTP_TOKEN"] = "  two"
            assert (await made.transport.request("DELETE", f"/observations/{number}", query=query))["id"] == number
            sent = [one.headers.get("authorization") for one in made.server.seen("DELETE /observations/{id}")]
            assert sent == [None, "Bearer two", "Bearer token", "Bearer   two"]

    run(main)


@every
def test_a_cancelled_request_is_a_cancellation(generation: str) -> None:
    """27."""

    async def main() -> None:
        async with wired(generation) as made:
            held = made.server.faults.on(OBSERVATIONS, faults.delay())
            task = asyncio.create_task(made.transport.request("POST", "/observations", body=SAVE))
            await asyncio.to_thread(held.gate.wait_held)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(made.server.requests) == 1

    run(main)


@pytest.mark.parametrize(
    ("fault", "applied"),
    [
        (faults.close_unread(), 0),
        (faults.close_unapplied(reset=True), 0),
        (faults.lose_reply(), 1),
        (faults.lose_reply(reset=True), 1),
        (faults.half_body(), 1),
        (faults.not_json(apply=True), 1),
    ],
    ids=["reset unread", "reset unapplied", "lost", "reset", "half", "no JSON"],
)
@every
def test_a_write_without_its_reply_is_unknown(generation: str, fault: Action, applied: int) -> None:
    """28: sent once, whether it took effect or not."""

    async def main() -> None:
        async with wired(generation) as made:
            made.server.faults.on(OBSERVATIONS, fault)
            with pytest.raises(DeliveryUnknown, match="may have been applied"):
                await made.transport.request("POST", "/observations", body=SAVE)
            assert (made.saved(), len(made.server.requests), made.time.slept) == (applied, 1, [])

    run(main)


@every
def test_an_end_is_not_sent_again_by_the_transport(generation: str) -> None:
    """17, 28: of what is posted below /sessions only the registration is; a second end would overwrite the first."""

    async def main() -> None:
        with EngramServer(generation) as server:
            server.model.add_session("a", PROJECT)
            made = Wired(server, 20_000, 3)
            server.faults.on(END, faults.lose_reply())
            with pytest.raises(DeliveryUnknown):
                await made.transport.request("POST", ["sessions", "a", "end"], body={"summary": "done"})
            assert len(server.seen(END)) == 1 and made.time.slept == []
            await made.transport.aclose()

    run(main)


# --- 30 to 44: the server of this machine -----------------------------------------------------------


class Child:
    def __init__(self, status: int | None) -> None:
        self.status = status
        self.terminated = False

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.terminated = True


class Kept(Wired):
    """A keeper of that server; a start makes it listen where ``starts``, and the child's exit is ``status``."""

    def __init__(self, server: EngramServer, *, starts: bool = True, status: int | None = None) -> None:
        super().__init__(server, 20_000, 3)
        self.starts, self.status = starts, status
        self.asked: list[list[str]] = []
        self.spawned: list[tuple[list[str], Mapping[str, str]]] = []
        self.children: list[Child] = []
        self.identity = server.instance_id
        self.keeper = ServerKeeper(
            self.config,
            self.transport,
            environ={"ENGRAM_SOCKET": "/nowhere/engram.sock"},
            clock=self.time.clock,
            sleep=self.time.sleep,
            spawn=self.spawn,
            ask=self.ask,
        )
        self.transport.heal = self.keeper.heal

    async def ask(self, argv: Sequence[str], environ: Mapping[str, str], limit: float) -> tuple[int, bytes]:
        self.asked.append(list(argv))
        return 0, self.identity.encode()

    def spawn(self, argv: Sequence[str], environ: Mapping[str, str]) -> Child:
        self.spawned.append((list(argv), environ))
        if self.starts:
            self.server.faults.accept()
        self.children.append(Child(self.status))
        return self.children[-1]


@asynccontextmanager
async def kept(generation: str, **how: Any) -> AsyncIterator[Kept]:
    with EngramServer(generation) as server:
        made = Kept(server, **how)
        try:
            yield made
        finally:
            await made.keeper.aclose()
            await made.transport.aclose()
        server.check_invariants()


@every
def test_a_server_is_joined_or_refused(generation: str) -> None:
    """30 to 33: one look; the same id is joined, another, none or an unreadable one is refused; never a start."""

    async def main() -> None:
        for action in (None, faults.foreign(), faults.foreign(None), faults.not_json()):
            async with kept(generation) as made:
                if action is not None:
                    made.server.faults.on(HEALTH, action)
                if action is None and generation in OWN:
                    await made.keeper.ensure()
                else:
                    with pytest.raises(ServerRefused, match="ownership mismatch"):
                        await made.keeper.ensure()
                assert [one.route for one in made.server.requests] == [HEALTH] and made.spawned == []

    run(main)


@every
def test_a_start_is_one_child_without_the_socket(generation: str) -> None:
    """37, 42, 43: one identity, one child on the port, without ENGRAM_SOCKET; an old server is nobody's, its child
    is ended."""

    async def main() -> None:
        async with kept(generation) as made:
            made.server.faults.refuse()
            if generation in OWN:
                await made.keeper.ensure()
                await made.keeper.ensure()
            else:
                with pytest.raises(ServerRefused):
                    await made.keeper.ensure()
            port = str(made.server.port)
            assert made.asked == [["engram", "instance-id"]]
            assert made.spawned == [(["engram", "serve", port], {"ENGRAM_PORT": port})]
            assert [child.terminated for child in made.children] == [generation not in OWN]

    run(main)


@every
def test_a_start_that_fails_is_replayed_for_a_second(generation: str) -> None:
    """38, 39, 43: the time-out, its child's end, the same failure within 1 s without a child, and a new one after."""

    async def main() -> None:
        async with kept(generation, starts=False) as made:
            made.server.faults.refuse()
            for starts in (1, 2):
                for _ in range(2):
                    with pytest.raises(ServerUnavailable, match="not ready within 10000 ms"):
                        await made.keeper.ensure()
                    assert len(made.spawned) == starts
                made.time.now += 1.001
            assert all(child.terminated for child in made.children)

    run(main)


@own
def test_the_loser_of_a_start_joins(generation: str) -> None:
    """41: its child ends with 0, and whoever has the port is looked at once more."""

    async def main() -> None:
        async with kept(generation, status=0) as made:
            made.server.faults.refuse()
            await made.keeper.ensure()
            assert len(made.spawned) == 1

    run(main)


@own
def test_every_crash_is_healed_and_the_write_arrives_once(generation: str) -> None:
    """19, 44."""

    async def main() -> None:
        async with kept(generation) as made:
            made.server.model.add_session("a", PROJECT)
            await made.keeper.ensure()
            for crash in (1, 2, 3):
                made.server.faults.refuse()
                await made.transport.request("POST", "/observations", body={**SAVE, "content": f"crash {crash}"})
                assert (len(made.spawned), made.saved()) == (crash, crash)
                made.time.now += 30

    run(main)


@every
def test_a_foreign_server_gets_nothing_also_an_old_one(generation: str, tmp_path: Path) -> None:
    """31, 32: a bridge that meets another instance asks for its identity alone, for captures, reads and writes."""

    async def main() -> None:
        async with rig(generation, tmp_path, request_timeout_ms=300) as made:
            binary = write_binary(tmp_path / "bin", data_dir=tmp_path / "data", FAKE_ENGRAM_ID_OUTPUT="e" * 32)
            made.environ = {"ENGRAM_BIN": str(binary.path), "ENGRAM_PORT": str(made.server.port)}
            await made.restart()
            await made.prompt("one")
            assert "ownership mismatch" in await made.paused()
            for name in sorted(set(TOOLS) - OUTBOX):
                with pytest.raises(EngramError):
                    await made.session.call(name, ARGUMENTS[name])
            assert (await made.save("queued"))["status"] == "queued"
            assert {one.route for one in made.server.requests} == {HEALTH}
            assert binary.invocations("serve") == []
            made.admitted.clear()

    run(main)


@every
def test_with_a_url_nothing_is_run(generation: str, tmp_path: Path) -> None:
    """36, 40: no identity, no start, no heal, whatever the binary."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            binary = write_binary(tmp_path / "bin", data_dir=tmp_path / "data")
            made.environ = {"ENGRAM_BIN": str(binary.path), "ENGRAM_URL": made.server.url}
            await made.restart()
            assert (await made.save("to a server with an address"))["status"] == "delivered"
            made.server.faults.refuse()
            await made.prompt("one")
            assert "refused" in await made.paused()
            assert binary.invocations() == []
            made.server.faults.accept()
            await made.drained()

    run(main)


@own
def test_a_bridge_heals_its_own_server(generation: str, tmp_path: Path) -> None:
    """19, 44: through the bridge as it is put together: each refused write starts the server, and arrives once."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            ours = made.server.instance_id
            binary = write_binary(tmp_path / "bin", data_dir=tmp_path / "data", FAKE_ENGRAM_ID_OUTPUT=ours)
            made.environ = {"ENGRAM_BIN": str(binary.path), "ENGRAM_PORT": str(made.server.port)}
            await made.restart()
            spawned: list[Child] = []

            def spawn(argv: Sequence[str], environ: Mapping[str, str]) -> Child:
                made.server.faults.accept()
                spawned.append(Child(None))
                return spawned[-1]

            made.bridge._keeper._spawn = spawn
            await made.save("before the crashes")
            for crash in (1, 2):
                made.server.faults.refuse()
                assert (await made.save(f"after crash {crash}"))["status"] == "delivered"
                assert len(spawned) == crash
                made.advance(30)
            assert made.contents() == ["before the crashes", "after crash 1", "after crash 2"]

    run(main)


# --- 45 to 62: tools of a real session, and its project ---------------------------------------------


@every
def test_a_session_s_reads_are_scoped(generation: str, tmp_path: Path) -> None:
    """45 to 47, 49, 50, 57: its own project whatever else is passed, or all projects and none."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            for name in SCOPED:  # an unknown project reads as empty
                await made.session.call(name, ARGUMENTS[name])
            number = (await made.save("so that the project is known"))["id"]
            made.server.forget()
            theirs = {"project": "elsewhere", "cwd": "/elsewhere", "session_id": "other"}
            for name in SCOPED:
                given = {**ARGUMENTS[name], **theirs}
                if name == "mem_timeline":
                    given |= {"observation_id": number, "before": 2, "after": 1}
                await made.session.call(name, given)
            await made.session.call("mem_review", {**theirs, "action": "mark_reviewed", "observation_id": number})
            assert [one.query["project"] for one in made.server.requests] == [PROJECT] * 7
            assert not any("all_projects" in one.query for one in made.server.requests)
            (timeline,) = made.seen("GET /timeline")
            assert (timeline.query["observation_id"], timeline.query["before"], timeline.query["after"]) == (
                str(number),
                "2",
                "1",
            )
            made.server.forget()
            for name in ("mem_search", "mem_stats", "mem_review"):
                await made.session.call(name, {**ARGUMENTS[name], "all_projects": True})
            assert [(one.query["all_projects"], "project" in one.query) for one in made.server.requests] == [
                ("true", False)
            ] * 3
            made.admitted.clear()

    run(main)


@pytest.mark.parametrize("cwd", [None, " ", "\t\n"])
@every
def test_a_session_that_is_nowhere_sends_nothing(generation: str, cwd: str | None, tmp_path: Path) -> None:
    """48, 50, 51, 55, 56, 77: no tool that needs a project, and the message names the directory, not the file."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.restart(cwd=cwd)
            made.server.forget()
            calls = [(name, ARGUMENTS[name]) for name in sorted(set(TOOLS) - UNGATED - {"mem_session_end"})]
            calls += [("mem_current_project", {})]
            calls += [("mem_review", {"action": "mark_reviewed", "observation_id": 1, "all_projects": True})]
            for name, arguments in calls:
                with pytest.raises(ProjectUnresolved, match="working directory") as caught:
                    await made.session.call(name, arguments)
                assert "config" not in str(caught.value), name
            assert await made.session.archive("c1", "what was said") is Outcome.UNAVAILABLE
            assert not await made.session._registration.ensure("")
            assert {one.route for one in made.server.requests} <= {HEALTH}
            assert made.session.waiting == []
            await made.session.call("mem_search", {"query": "x", "all_projects": True})
            assert made.seen("GET /search")[0].query == {"q": "x", "all_projects": "true"}

    run(main)


UNUSABLE: dict[str, dict[str, Any]] = {
    "hint": {"project": PROJECT, "error_hint": "several"},
    "hint of another type": {"project": PROJECT, "error_hint": ["several"]},
    "ambiguous": {"project": "", "source": "ambiguous", "error_hint": "several", "available_projects": ["a", "b"]},
    "unknown": {"project": "Unknown"},
    "path": {"project": "../demo"},
    "control": {"project": "de\nmo"},
    "source": {"project": PROJECT, "source": "explicit_override"},
    "nothing": {"project": "", "source": ""},
}


@pytest.mark.parametrize("name", UNUSABLE)
@own
def test_a_200_that_names_no_project_closes_the_session(generation: str, name: str, tmp_path: Path) -> None:
    """48, 59, 60: no read, no write, no row, nothing stored of a tool; asked again after 30 s and not before; then
    never."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.model.resolve_to(made.cwd, **UNUSABLE[name])
            for tool in sorted(set(TOOLS) - UNGATED - {"mem_session_end"}):
                with pytest.raises(ProjectUnresolved):
                    await made.session.call(tool, ARGUMENTS[tool])
            assert {one.route for one in made.server.requests} <= {HEALTH, CURRENT}
            assert len(made.seen(CURRENT)) == 1 and made.session.waiting == []
            made.server.model.resolve_to(made.cwd, PROJECT)
            made.advance(29.9)
            with pytest.raises(ProjectUnresolved):
                await made.save("too early")
            made.advance(0.2)
            assert (await made.save("in time"))["status"] == "delivered"
            made.server.model.resolve_to(made.cwd, "elsewhere")
            made.advance(86_400)
            assert (await made.save("much later"))["status"] == "delivered"
            assert len(made.seen(CURRENT)) == 2
            assert {one.body["project"] for one in made.writes()} == {PROJECT}

    run(main)


def test_an_old_server_s_file_that_names_no_project_closes_the_session(tmp_path: Path) -> None:
    """54, 59, 60: the same where the file decides."""

    async def main() -> None:
        async with rig("old", tmp_path) as made:
            file = Path(made.cwd) / ".engram" / "config.json"
            for text in ('{"project_name": "../demo"}', '{"project_name": "unknown"}', "{"):
                file.write_text(text, encoding="utf-8")
                made.server.forget()
                for seconds in (29.9, 0.2):
                    with pytest.raises(ProjectUnresolved):
                        await made.save("of no project")
                    made.advance(seconds)
                assert len(made.seen(CURRENT)) == 1 and not made.writes()
            file.write_text(json.dumps({"project_name": PROJECT}), encoding="utf-8")
            assert (await made.save("of a project"))["status"] == "delivered"

    run(main)


@every
def test_the_project_is_asked_for_up_to_five_times(generation: str, tmp_path: Path) -> None:
    """52, 53, 54: resolved on the third try; given up after five with the last reason; a 404 is one call."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.faults.on(CURRENT, faults.fail(), faults.half_body())
            assert await made.session.project() == PROJECT
            assert len(made.seen(CURRENT)) == 3 and made.seen(CURRENT)[-1].query == {"cwd": made.cwd}
            await made.restart()
            made.server.forget()
            made.server.faults.on(CURRENT, *[faults.fail()] * 4, faults.fail(503, "the last reason"))
            with pytest.raises(ProjectUnresolved, match="the last reason"):
                await made.session.project()
            assert len(made.seen(CURRENT)) == 5

    run(main)


@every
def test_a_project_that_takes_long_delays_no_tool(generation: str, tmp_path: Path) -> None:
    """88: a write waits for its project no longer than for a request, and is kept."""

    async def main() -> None:
        async with rig(generation, tmp_path, request_timeout_ms=100) as made:
            made.server.faults.hold(CURRENT)
            assert (await made.save("kept meanwhile"))["status"] == "queued"
            assert not made.writes()

    run(main)


@every
def test_a_delete_of_a_session(generation: str, tmp_path: Path) -> None:
    """58, 62, 26: the query, with the token of the bridge's environment; a 404 is an error."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.environ = {"ENGRAM_URL": made.server.url, "ENGRAM_HTTP_TOKEN": "token"}
            made.server.faults.change_token("token")
            await made.restart()
            numbers = [(await made.save(f"the {n}. of them"))["id"] for n in (1, 2)]
            await made.session.call("mem_delete", {"id": numbers[0]})
            await made.session.call("mem_delete", {"id": numbers[1], "hard_delete": True})
            with pytest.raises(HttpError, match="404"):
                await made.session.call("mem_delete", {"id": numbers[1]})
            deletes = made.seen("DELETE /observations/{id}")
            expected = {"expected_project": PROJECT}
            assert [one.query for one in deletes] == [expected, {**expected, "hard": "true"}, expected]
            assert {one.headers["authorization"] for one in deletes} == {"Bearer token"}

    run(main)


# --- 70, and a caller that gives up -----------------------------------------------------------------


@pytest.mark.parametrize("code", ["session_already_ended", "session_project_conflict"])
@every
def test_one_conflict_rotates_once(
    generation: str, code: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """70, 71: exactly one more POST, with the project, and the warning names the code; also where a proxy says it."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.faults.on(POST, faults.conflict(code))
            assert (await made.session.start())["registered"] is True
            first, second = made.seen(POST)
            assert first.body["id"] == AGENT and second.body["project"] == PROJECT
            resumed = generation == "3" and code == "session_already_ended"
            assert made.session.key == (AGENT if resumed else "made-1")
            assert (second.body["id"], second.body.get("resume", False)) == (made.session.key, resumed)
            assert resumed or code in caplog.text
            made.agents[AGENT] = [made.session.key]
            for name in ("session_isolation_conflict", ""):  # says nothing of the key
                made.advance(60)
                made.server.faults.on(POST, faults.conflict(name))
                key = made.session.key
                assert (await made.session.start())["registered"] is True
                assert made.session.key == key

    run(main)


@every
def test_a_caller_that_gives_up_takes_nothing_along(generation: str, tmp_path: Path) -> None:
    """27: its cancellation is one; the entry is admitted, and delivered once."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            held = made.server.faults.on(OBSERVATIONS, faults.delay())
            call = asyncio.create_task(made.session.call("mem_save", {"title": "t", "content": "kept all the same"}))
            await asyncio.to_thread(held.gate.wait_held)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            held.gate.release()
            await made.drained()
            assert made.contents() == ["kept all the same"] and len(made.seen(OBSERVATIONS)) == 1

    run(main)


# --- 84, 97: the row after its end, and the key --------------------------------------------------------


@every
def test_the_next_write_after_an_end_rotates_at_once(generation: str, tmp_path: Path) -> None:
    """84: in the same process and the same minute."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            keys = [AGENT]
            for _ in range(2):
                assert (await made.save(f"under {keys[-1]}"))["status"] == "delivered"
                assert (await made.end())["ended"] is True
                assert (await made.save(f"behind the end of {keys[-1]}"))["status"] == "delivered"
                assert made.session.key not in keys and made.writes()[-1].body["session_id"] == made.session.key
                keys.append(made.session.key)
            made.agents[AGENT] = keys[1:]
            assert all(effect.session_ended_at is None for effect in made.server.model.rows.effects)

    run(main)


@every
def test_the_topic_of_an_archive_follows_the_key(generation: str, tmp_path: Path) -> None:
    """97: after a rotation it is the new key's, so that the archive of the ended row stays."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert await made.archive("c1", "the first summary") is Outcome.CONFIRMED
            made.server.faults.end(AGENT)
            made.advance(60)
            assert await made.archive("c2", "the second summary") is Outcome.CONFIRMED
            key = made.session.key
            assert key != AGENT
            made.agents[AGENT] = [key]
            topics = [one.body["topic_key"] for one in made.writes()]
            assert topics == [f"session/compaction-recovery/{AGENT}", f"session/compaction-recovery/{key}"]
            kept = [row.content for row in made.server.model.rows.observations.values()]
            assert kept == ["the first summary", "the second summary"]

    run(main)


@every
def test_an_end_of_no_project_leaves_the_queue_going(generation: str, tmp_path: Path) -> None:
    """No write without a project: it is parked, and the task that delivers goes on."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.save("something to keep")
            await made.restart(cwd=None)
            task = made.session._task
            assert (await made.end())["status"] == "parked"
            await made.prompt("one")
            await made.drained()
            assert made.session.state("one") == "parked" and made.session._task is task
            assert not made.seen(END)

    run(main)


def test_a_rotation_that_is_not_stored_is_not_used() -> None:
    """Its commit fails: the key is as it was, here and in a later process."""

    async def main() -> None:
        with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store:
            session = AsyncSession(store.session("s"))
            box = Outbox(session, AGENT)

            async def failing(*_: object, **__: object) -> Any:
                assert box.key == AGENT  # nobody may use it before it is stored
                raise EngramError("the disk is full", "make room")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(session, "commit", failing)
                with pytest.raises(EngramError):
                    await box.rotate("other", "session_already_ended")
            assert box.key == Outbox(session, AGENT).key == AGENT
            await box.rotate("other", "session_already_ended")
            assert box.key == Outbox(session, AGENT).key == "other"

    run(main)


def test_a_replay_that_is_refused_a_connection_stays_what_it_was(tmp_path: Path) -> None:
    """100: the refusal proves nothing about the first send, so the bytes stay, whatever rotated meanwhile."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            made.server.faults.on(OBSERVATIONS, faults.close_unapplied())
            made.server.faults.on(LOOKUP, faults.then_refuse())
            await made.put("save", "first")
            await made.paused()
            assert made.session.state("first") == "in flight"
            key = made.new_id()
            await made.session._outbox.rotate(key, "a rotation between two sends")
            made.server.faults.accept()
            await made.restart(kill=True)
            await made.drained()
            assert made.session.state("first") == "delivered" and len(made.contents()) == 1
            assert len({one.raw for one in made.seen(OBSERVATIONS)}) == 1

    run(main)


def test_a_long_private_block_does_not_use_up_a_prompt() -> None:
    """96: what is public behind it is kept; a cut that came first would take it for private."""
    assert prompt_text("user", blocks(f"<private>{'s' * 3000}</private> and the public rest")) == (
        "[REDACTED] and the public rest"
    )


# --- 86, 91, 92: nothing by itself ------------------------------------------------------------------


@every
def test_a_session_asks_for_nothing_by_itself(generation: str, tmp_path: Path) -> None:
    """86, 90, 92: at its start it is one task that waits; captures and archives send themselves and read nothing."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert made.session._task is not None
            assert asyncio.all_tasks() == {asyncio.current_task(), made.session._task}
            assert made.server.requests == []
            await made.prompt("one")
            await made.learn("two")
            assert await made.archive("c1") is Outcome.CONFIRMED
            assert made.session.take_notice()
            await made.drained()
            sent = {one.route for one in made.server.requests if one.path != "/project/current"}
            assert sent == {HEALTH, ROW, POST, PROMPTS, OBSERVATIONS, "POST /observations/passive"}

    run(main)


@every
def test_captures_that_are_switched_off(generation: str, tmp_path: Path) -> None:
    """2, 7: the two booleans of the configuration do what they say, each alone; the tools still write."""

    async def main() -> None:
        for off in ("capture_prompts", "capture_tool_results"):
            async with rig(generation, tmp_path / off, **{off: False}) as made:
                prompts = await made.session.capture_prompt("one", blocks("a prompt that is long enough"))
                results = await made.session.capture_tool_result("two", "bash", learnings("an item, long enough"))
                assert (prompts, results) == (off != "capture_prompts", off != "capture_tool_results")
                await made.drained()
                assert len(made.writes()) == 1
                assert (await made.save("by a tool"))["status"] == "delivered"

    run(main)


def test_the_bounds_are_those_of_the_contract() -> None:
    """88, 105: section 2, and the upstream client's recovery; other tests set them shorter."""
    assert inspect.signature(MemorySession.drain).parameters["limit"].default == 5.0
    assert delivery.RECOVERY_LIMIT == 7.5


# --- 99 to 105 on servers that tell no repeats ------------------------------------------------------


@pytest.mark.parametrize("receipt", ['{"id": 0, "status": "saved"}', '{"status": "saved"}', '{"id": true}', "[]"])
@pytest.mark.parametrize("generation", ["old", "2.0", "2.1"])
def test_a_receipt_without_an_id_on_older_servers(generation: str, receipt: str, tmp_path: Path) -> None:
    """101, 104: no success; the lookup is the legacy 400, so it is unknown, and not sent again."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.faults.on(OBSERVATIONS, faults.not_json(receipt, apply=True))
            await made.put("save", "first")
            await made.drained()
            assert made.session.state("first") == "unknown"
            assert (len(made.seen(OBSERVATIONS)), [one.status for one in made.seen(LOOKUP)]) == (1, [400])

    run(main)


@pytest.mark.parametrize("fault", ["closed", "half", "500", "hangs"])
@pytest.mark.parametrize("generation", ["old", "2.0", "2.1"])
def test_a_lookup_that_fails_on_older_servers(
    generation: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """105: nothing is believed of it, the queue pauses; the next lookup says the legacy 400: unknown, sent once."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            held = faults.delay("never")
            action = {"closed": faults.close_unread(), "half": faults.half_body(), "500": faults.fail(), "hangs": held}
            made.server.faults.on(OBSERVATIONS, faults.close_unapplied())
            made.server.faults.on(LOOKUP, action[fault])
            if fault == "hangs":
                monkeypatch.setattr(delivery, "RECOVERY_LIMIT", 0.05)
            await made.put("save", "first")
            await made.paused()
            assert made.session.state("first") == "in flight"
            monkeypatch.undo()
            held.gate.release()
            await made.restart(kill=True)
            await made.drained()
            assert made.session.state("first") == "unknown" and len(made.seen(OBSERVATIONS)) == 1

    run(main)


@pytest.mark.parametrize("generation", ["old", "2.0", "2.1"])
def test_an_abort_of_a_lookup_on_older_servers(generation: str, tmp_path: Path) -> None:
    """105: the process ends while it looks; the next one finds out that nobody knows, and sends nothing."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.faults.on(OBSERVATIONS, faults.lose_reply())
            held = made.server.faults.on(LOOKUP, faults.delay())
            await made.put("save", "first")
            await asyncio.to_thread(held.gate.wait_held)
            await made.restart(kill=True)
            held.gate.release()
            await made.drained()
            assert made.session.state("first") == "unknown"
            assert made.contents() == ["the save of entry first"] and len(made.seen(OBSERVATIONS)) == 1

    run(main)


# --- what the code itself must not do ---------------------------------------------------------------

LEAVING = """
import asyncio, sys
from scopelog import Store
from scopelog.clients.memory import BlockingMemoryBridge
store = Store.open(sys.argv[1])
bridge = BlockingMemoryBridge(environ={"ENGRAM_URL": sys.argv[2]})
session = bridge.session(store.session("chat"), "agent-1", sys.argv[3])
assert session.call("mem_save", {"title": "t", "content": "before the exit"})["status"] == "delivered"
print("saved", flush=True)
"""


@every
def test_a_process_that_just_ends_sends_nothing(generation: str, tmp_path: Path) -> None:
    """80: neither a close nor an exit handler ends the row."""
    cwd = Rig.workspace(tmp_path / "work", PROJECT)
    with EngramServer(generation) as server:
        command = [sys.executable, "-c", LEAVING, str(tmp_path / "store"), server.url, cwd]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONG * 3)
        assert done.stdout == "saved\n"
        assert server.requests[-1].route == OBSERVATIONS and not server.seen(END)
        assert server.model.rows.sessions[AGENT].ended_at is None
        server.check_invariants(agents={AGENT: []}, projects={AGENT: PROJECT})


def test_only_http_touches_the_memory_store() -> None:
    """No database, no data directory, no socket but the look whether one listens; HTTP in one module."""
    modules, names = set(), set()
    for path in PACKAGE.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules |= {(alias.name, path.stem) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules.add((node.module or "", path.stem))
            elif isinstance(node, ast.Attribute):
                names.add((node.attr, path.stem))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value != "ENGRAM_DATA_DIR" and not node.value.endswith(".db"), path
    others = ("sqlite3", "socket", "http.client", "urllib.request", "shelve", "dbm", "lmdb", "subprocess")
    assert not [name for name, _ in modules if name.startswith(others)]
    assert {where for name, where in modules if name == "httpx2"} == {"transport"}
    assert {where for name, where in names if name == "open_unix_connection"} == {"server"}
    assert {where for name, where in names if name.startswith(("posix_spawn", "create_subprocess"))} == {"processes"}


def test_a_row_is_ended_in_one_place() -> None:
    """The one path that ends a row is spelled once."""
    spelled = [
        path.stem
        for path in sorted(PACKAGE.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith("/end"))
        or (
            isinstance(node, ast.List | ast.Tuple)
            and {"sessions", "end"} <= {one.value for one in node.elts if isinstance(one, ast.Constant)}
        )
    ]
    assert spelled == ["delivery"]
