"""scopelog memory: status beside a harness, drain, retry and drop under the lock, check; over a real server."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scopelog import Session, Store, ephemeral, list_of, value
from scopelog.aio import AsyncSession
from scopelog.clients.memory.outbox import Entry, Outbox

from .cli_rig import call, fill, flip, objects, refused, spawn, started
from .engram import GENERATIONS, EngramServer, faults, free_port, write_binary
from .memory_rig import head_of

SECRET = "the text of an entry"
AT = 1_700_000_000_000
ESCAPE = "\x1b[31mred\r\n"
SHOWN = "\\u001b[31mred\\u000d\\u000a"
# with one of these in the path the module cannot be imported, as if it were not installed
WITHOUT_HTTPX2 = "import sys; sys.modules['httpx2'] = None; from scopelog.cli import main; main(sys.argv[1:])"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ENGRAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ENGRAM_BIN", "/nonexistent/engram")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[EngramServer]:
    with EngramServer(getattr(request, "param", "3")) as made:
        monkeypatch.setenv("ENGRAM_URL", made.url)
        yield made


def a_project(folder: Path, name: str = "demo", server: EngramServer | None = None) -> str:
    """A working directory whose project every generation finds."""
    folder.mkdir(exist_ok=True)
    (folder / ".engram").mkdir(exist_ok=True)
    (folder / ".engram" / "config.json").write_text(json.dumps({"project_name": name}))
    if server is not None:
        server.model.resolve_to(str(folder), name)
    return str(folder)


def save(entry_id: str, cwd: str | None = "/w", at: int = AT) -> Entry:
    return Entry(
        entry_id, "save", cwd, {"title": entry_id, "content": SECRET, "type": "manual", "scope": "project"}, at
    )


def prompt(entry_id: str, cwd: str | None = "/w", at: int = AT) -> Entry:
    return Entry(entry_id, "prompt", cwd, {"content": SECRET}, at)


async def put(session: Session, agent: str, *entries: Entry) -> Outbox:
    outbox = Outbox(AsyncSession(session), agent)
    for entry in entries:
        assert await outbox.add(entry)
    return outbox


def admit(store_path: Path, *entries: Entry, agent: str = "agent-1", session: str = "s") -> None:
    with Store.open(store_path) as store, store.session(session) as writer:
        asyncio.run(put(writer, agent, *entries))


def set_aside(
    store_path: Path, *entries: Entry, agent: str = "agent-1", reason: str = "refused", state: Any = "parked"
) -> None:
    async def work(writer: Session) -> None:
        outbox = await put(writer, agent, *entries)
        for _ in entries:
            await outbox.set_aside(head_of(outbox), state, reason)

    with Store.open(store_path) as store, store.session("s") as writer:
        asyncio.run(work(writer))


def states(store_path: Path) -> dict[str, str]:
    """State by id, of all entries that are not done with."""
    boxes = objects(call("memory", "status", store_path, "--json").stdout_bytes)
    return {entry["id"]: entry["state"] for box in boxes for entry in box["entries"]}


# --- status ---------------------------------------------------------------------------------------


async def every_state(session: Session) -> None:
    outbox = await put(session, "agent-1", *(save(f"e{n}", at=AT + n) for n in range(5)), prompt("e5", at=0))
    await outbox.delivered(head_of(outbox))
    await outbox.set_aside(head_of(outbox), "unknown", "its outcome is unknown")
    await outbox.set_aside(head_of(outbox), "parked", ESCAPE)
    await outbox.rotate("key-2", "session_already_ended")
    await outbox.freeze(head_of(outbox), {"method": "POST", "path": "/observations", "body": {"content": SECRET}})


def test_status_shows_every_state_beside_a_running_harness(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:  # holds the lock
        asyncio.run(every_state(session))
        asyncio.run(put(session, f"b {ESCAPE}", save("only captured")))
        result = call("memory", "status", store_path, "s", "--json")
        assert result.exit_code == 0
        first, second = objects(result.stdout_bytes)
        ages = [entry.pop("age") for entry in first["entries"]]
        assert ages[2] is None and all(age > 0 for age in ages if age is not None)
        assert first == {
            "session": "s",
            "agent": "agent-1",
            "key": "key-2",
            "rotated": "session_already_ended",
            "waiting": 3,
            "unknown": 1,
            "parked": 1,
            "done": 1,
            "entries": [
                {"id": "e3", "kind": "save", "state": "in flight", "cwd": "/w", "at": AT + 3, "reason": None},
                {"id": "e4", "kind": "save", "state": "pending", "cwd": "/w", "at": AT + 4, "reason": None},
                {"id": "e5", "kind": "prompt", "state": "pending", "cwd": "/w", "at": None, "reason": None},
                {
                    "id": "e1",
                    "kind": "save",
                    "state": "unknown",
                    "cwd": "/w",
                    "at": AT + 1,
                    "reason": "its outcome is unknown",
                },
                {"id": "e2", "kind": "save", "state": "parked", "cwd": "/w", "at": AT + 2, "reason": ESCAPE},
            ],
        }
        assert (second["agent"], second["key"], second["rotated"]) == (f"b {ESCAPE}", f"b {ESCAPE}", None)
        text = call("memory", "status", store_path, "s").stdout
        assert SECRET not in text and SECRET not in result.stdout and "\x1b" not in text
        lines = text.splitlines()
        assert lines[0] == (
            "s: agent agent-1, key key-2 (rotated: session_already_ended): 3 waiting, 1 unknown, 1 parked, 1 done"
        )
        assert lines[1].split()[:4] == ["in", "flight", "save", "e3"] and lines[1].endswith(" d")
        assert lines[3] == "  pending    prompt    e5"
        assert lines[5].endswith(SHOWN) and f"b {SHOWN}" in lines[6]


def test_a_refused_request_that_is_frozen_is_said_not_to_have_arrived(store_path: Path) -> None:
    async def work(session: Session) -> None:
        outbox = await put(session, "agent-1", save("e"))
        await outbox.freeze(head_of(outbox), {"method": "POST", "path": "/observations", "body": {}}, unsent=True)

    with Store.open(store_path) as store, store.session("s") as session:
        asyncio.run(work(session))
    (box,) = objects(call("memory", "status", store_path, "--json").stdout_bytes)
    assert box["entries"][0]["reason"] == "the connection was refused: it has not arrived"


def test_an_agent_that_has_done_everything_or_only_set_aside_is_still_shown(store_path: Path) -> None:
    set_aside(store_path, save("e"), agent='quoted "agent", 1')
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([list_of("memory.outbox", "").append("of nobody"), list_of("memory.outbox", "c").append("none")])
        session.commit([value("memory.aside", key).set("none") for key in ("", "no JSON", "[1]", "[]")])
        aside = {"entry": save("e").stored(), "state": "parked", "reason": "refused", "request": None}
        session.commit([value("memory.aside", '["z","e"]').set(aside), value("memory.agents", "z").set(True)])
        session.commit([ephemeral("op").list_of("memory.outbox", "d").append("of another scope")])
        asyncio.run(done(session))
    first, second, alone = objects(call("memory", "status", store_path, "--json").stdout_bytes)
    assert (alone["agent"], alone["parked"]) == ("z", 1)
    assert (first["agent"], first["done"], first["entries"]) == ("agent-1", 1, [])
    assert (second["agent"], second["parked"]) == ('quoted "agent", 1', 1)


async def done(session: Session) -> None:
    outbox = await put(session, "agent-1", save("e"))
    await outbox.delivered(head_of(outbox))


def test_status_of_sessions_without_an_outbox(store_path: Path) -> None:
    fill(store_path, 1)
    assert call("memory", "status", store_path).stdout == "no agent session has an outbox\n"
    assert call("memory", "status", store_path, "s", "--json").stdout == ""
    refused(call("memory", "status", store_path, "nobody"), 2, "nobody")
    refused(call("memory", "status", store_path / "nowhere"), 2, "no")


@pytest.mark.damages
def test_a_damaged_session_does_not_hide_the_others(store_path: Path) -> None:
    log = fill(store_path, *range(30), session="a")
    admit(store_path, save("e"), session="b")
    flip(log, 40)  # its header
    result = call("memory", "status", store_path)
    assert result.exit_code == 2
    assert "b: agent agent-1" in result.stdout and "Traceback" not in result.stderr


# --- drain ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", sorted(GENERATIONS), indirect=True)
def test_drain_delivers_what_waits_in_order(store_path: Path, tmp_path: Path, server: EngramServer) -> None:
    first, second = a_project(tmp_path / "p", "demo", server), a_project(tmp_path / "q", "other", server)
    admit(store_path, save("e1", first), prompt("e2", first), save("e3", first))
    admit(store_path, save("f1", second), agent="agent-2")
    result = call("memory", "drain", store_path, "s", "--json")
    assert result.exit_code == 0, result.stderr
    assert objects(result.stdout_bytes) == [
        {"agent": agent, "entry": entry, "kind": kind, "state": "delivered", "reason": None}
        for agent, entry, kind in [
            ("agent-1", "e1", "save"),
            ("agent-1", "e2", "prompt"),
            ("agent-1", "e3", "save"),
            ("agent-2", "f1", "save"),
        ]
    ]
    titles = [(each.session_id, each.title) for each in server.model.rows.observations.values()]
    assert [title for agent, title in titles if agent == "agent-1"] == ["e1", "e3"]
    assert ("agent-2", "f1") in titles
    again = call("memory", "drain", store_path, "s")
    assert (again.exit_code, again.stdout) == (0, "nothing waits\n")
    server.check_invariants(
        agents={"agent-1": [], "agent-2": []}, projects={"agent-1": "demo", "agent-2": "other"}, secrets=["hunter2"]
    )


def test_drain_of_one_agent_leaves_the_others(store_path: Path, server: EngramServer) -> None:
    server.model.resolve_to("/w", "demo")
    admit(store_path, save("e1"))
    admit(store_path, save("f1"), agent="agent-2")
    result = call("memory", "drain", store_path, "s", "agent-2")
    assert (result.exit_code, result.stdout.split()) == (0, ["delivered", "save", "f1"])
    assert states(store_path) == {"e1": "pending"}
    refused(call("memory", "drain", store_path, "s", "agent-3"), 2, "no agent 'agent-3' has an outbox")
    assert call("memory", "drain", store_path, "s", "agent-2").stdout == "nothing waits\n"


def test_drain_names_who_holds_the_session(store_path: Path, server: EngramServer) -> None:
    admit(store_path, save("e1"))
    with Store.open(store_path) as store, store.session("s"):
        for command in (["drain", store_path, "s"], ["retry", store_path, "s", "e"], ["drop", store_path, "s", "e"]):
            refused(call("memory", *command), 4, str(os.getpid()))
    assert server.requests == []


def test_drain_of_no_session_makes_none(store_path: Path, server: EngramServer) -> None:
    fill(store_path, 1)
    for command in (["drain", store_path, "t"], ["retry", store_path, "t", "e"], ["drop", store_path, "t", "e"]):
        refused(call("memory", *command), 2, "'t'")
    assert sorted(path.name for path in store_path.glob("*.session")) == ["s.session"]


def test_what_cannot_be_delivered_in_time_waits_on(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    admit(store_path, save("e1"), save("e2"))
    with free_port() as port:
        monkeypatch.setenv("ENGRAM_URL", f"http://127.0.0.1:{port}")
        result = call("memory", "drain", store_path, "s", "--timeout", "0.1")
    refused(result, 3, "2 entries wait still")
    assert result.stdout.splitlines() == ["pending    save      e1", "pending    save      e2"]
    assert states(store_path) == {"e1": "pending", "e2": "pending"}


def test_what_the_server_refuses_for_good_is_set_aside(store_path: Path, server: EngramServer) -> None:
    server.model.resolve_to("/w", "demo")
    server.faults.on("POST /observations", faults.fail(400, ESCAPE + "no"))
    admit(store_path, save("e1"), save("e2"))
    result = call("memory", "drain", store_path, "s")
    refused(result, 3, "1 entry was not delivered, and set aside")
    assert result.stdout.splitlines() == [f"parked     save      e1  {SHOWN}no", "delivered  save      e2"]
    assert states(store_path) == {"e1": "parked"}


def test_an_entry_goes_to_the_project_of_its_own_directory(store_path: Path, server: EngramServer) -> None:
    server.model.resolve_to("/w", "demo")
    server.model.resolve_to("/v", "other")
    admit(store_path, save("e1", "/w"), save("e2", "/v"), save("e3", None))
    result = call("memory", "drain", store_path, "s")
    refused(result, 3, "1 entry was not delivered, and set aside")
    assert [(each.title, each.project) for each in server.model.rows.observations.values()] == [
        ("e1", "demo"),
        ("e2", "other"),
    ]
    assert states(store_path) == {"e3": "parked"}


def test_a_server_of_somebody_else_gets_nothing(
    store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = write_binary(tmp_path / "bin", data_dir=tmp_path / "data")
    admit(store_path, save("e1"))
    with EngramServer("3") as other:
        monkeypatch.setenv("ENGRAM_BIN", str(binary.path))
        monkeypatch.setenv("ENGRAM_PORT", str(other.port))
        left = call("memory", "drain", store_path, "s", "--json")
        refused(left, 3, "not this machine's Engram instance")
        assert [(one["entry"], one["state"]) for one in objects(left.stdout_bytes)] == [("e1", "pending")]
        told = call("memory", "check", tmp_path, "--json")
        refused(told, 3, "not this machine's Engram instance")
        (found,) = objects(told.stdout_bytes)
        assert found["instance"] == other.instance_id and found["expected"] not in (None, other.instance_id)
        assert {exchange.route for exchange in other.requests} == {"GET /health"}
    assert binary.invocations("serve") == []
    assert states(store_path) == {"e1": "pending"}


def test_drain_starts_the_server_and_check_says_so(
    store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = write_binary(tmp_path / "bin", data_dir=tmp_path / "data")
    where = a_project(tmp_path / "p")
    admit(store_path, save("e1", where))
    monkeypatch.setenv("ENGRAM_BIN", str(binary.path))
    with free_port() as port:
        monkeypatch.setenv("ENGRAM_PORT", str(port))
        try:
            refused(call("memory", "check", where), 3, "no server runs at")
            assert binary.invocations("serve") == []
            assert call("memory", "check", where, "--start").exit_code == 0
            assert len(binary.invocations("serve")) == 1
            assert call("memory", "drain", store_path, "s").exit_code == 0
            assert call("memory", "check", where).exit_code == 0
            assert len(binary.invocations("serve")) == 1
        finally:
            binary.kill()
    assert [line["target"] for line in binary.served() if line["method"] == "POST"] == ["/sessions", "/observations"]


@pytest.mark.parametrize(("server", "expected"), [("3", "delivered"), ("2.1", "unknown")], indirect=["server"])
def test_a_drain_that_is_killed_in_the_middle_of_a_request(
    store_path: Path, server: EngramServer, expected: str
) -> None:
    """The request was applied, its reply is never read: the next drain stores nothing twice."""
    server.model.resolve_to("/w", "demo")
    held = server.faults.hold("POST /observations", after_applying=True)
    admit(store_path, save("e1"), save("e2"))
    with started("memory", "drain", store_path, "s") as (child, *_):
        held.wait_held()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    held.release()
    assert states(store_path) == {"e1": "in flight", "e2": "pending"}
    result = call("memory", "drain", store_path, "s", "--json")
    assert [line["state"] for line in objects(result.stdout_bytes)] == [expected, "delivered"]
    assert sorted(each.title for each in server.model.rows.observations.values()) == ["e1", "e2"]


def test_drain_stopped_by_a_signal(store_path: Path, server: EngramServer) -> None:
    server.model.resolve_to("/w", "demo")
    held = server.faults.hold("POST /observations")
    admit(store_path, save("e1"))
    with started("memory", "drain", store_path, "s") as (child, _, _, stderr):
        held.wait_held()
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130
        assert b"Traceback" not in stderr.read()
    held.release()
    assert states(store_path) == {"e1": "in flight"}
    assert call("memory", "drain", store_path, "s").exit_code == 0
    assert [each.title for each in server.model.rows.observations.values()] == ["e1"]


# --- retry and drop -------------------------------------------------------------------------------


def test_retry_queues_again_and_drop_forgets(store_path: Path, server: EngramServer) -> None:
    server.model.resolve_to("/w", "demo")
    set_aside(store_path, save("e1"), prompt("e2"), save("e3"), state="unknown")
    result = call("memory", "retry", store_path, "s", "e3", "e1", "e3")
    assert (result.exit_code, result.stdout) == (0, "queued again: save e3\nqueued again: save e1\n")
    assert states(store_path) == {"e3": "pending", "e1": "pending", "e2": "unknown"}
    assert server.requests == []  # retry sends nothing
    result = call("memory", "drop", store_path, "s", "e2")
    assert (result.exit_code, result.stdout) == (0, "dropped: prompt e2\n")
    assert call("memory", "drain", store_path, "s").exit_code == 0
    assert [each.title for each in server.model.rows.observations.values()] == ["e3", "e1"]
    assert server.model.rows.prompts == {}
    assert states(store_path) == {}


@pytest.mark.parametrize("command", ["retry", "drop"])
def test_one_entry_that_is_not_there_leaves_all_as_they_were(store_path: Path, command: str) -> None:
    set_aside(store_path, save("e1"), save("twice"))
    set_aside(store_path, save("twice"), agent="agent-2")
    admit(store_path, save("waits"))
    before = call("cat", store_path, "s", "--json").stdout
    refused(call("memory", command, store_path, "s", "e1", f"e9{ESCAPE}"), 2, "e9")
    gone = {"retry": "'waits' is parked or unknown", "drop": "'done' is waiting, parked or unknown"}[command]
    refused(call("memory", command, store_path, "s", "e1", "waits" if command == "retry" else "done"), 2, gone)
    refused(call("memory", command, store_path, "s", "e1", "twice"), 2, "'agent-1', 'agent-2'")
    refused(call("memory", command, store_path, "s", "e1", "--agent", "agent-2"), 2, "e1")
    assert call("memory", command, store_path, "s").exit_code == 2  # no entry named
    assert call("cat", store_path, "s", "--json").stdout == before
    assert call("memory", command, store_path, "s", "twice", "--agent", "agent-2").exit_code == 0
    (first, second) = objects(call("memory", "status", store_path, "--json").stdout_bytes)
    assert (first["parked"], second["parked"]) == (2, 0)


# --- check ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", sorted(GENERATIONS), indirect=True)
def test_check_tells_what_a_server_can_do(tmp_path: Path, server: EngramServer) -> None:
    where = a_project(tmp_path / "p", "demo", server)
    result = call("memory", "check", where, "--json")
    assert result.exit_code == 0, result.stderr
    (found,) = objects(result.stdout_bytes)
    generation = server.model.generation
    capabilities = sorted(generation.capabilities or ())
    assert found == {
        "ok": True,
        "url": server.url,
        "configured": True,
        "expected": None,
        "instance": server.instance_id if generation.instance_id else None,
        "version": generation.version,
        "capabilities": capabilities,
        "repeats": "exact" if generation.operation_ids else "never repeated",
        "cwd": where,
        "project": "demo",
        "source": "config",
        "error": None,
    }
    text = call("memory", "check", where).stdout
    assert f"server: {server.url} (ENGRAM_URL: used as it is)\n" in text
    assert f"capabilities: {', '.join(capabilities) or 'none'}\n" in text
    assert ("everything arrives once" in text) == generation.operation_ids
    assert text.endswith("project: demo (config)\n")
    assert {exchange.method for exchange in server.requests} == {"GET"}  # nothing is written


def test_a_capability_that_says_nothing_of_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    generation = dataclasses.replace(GENERATIONS["2.1"], capabilities={"isolated_session_registration": True})
    with EngramServer(generation) as server:
        monkeypatch.setenv("ENGRAM_URL", server.url)
        (found,) = objects(call("memory", "check", "/", "--json").stdout_bytes)
    assert found["capabilities"] == ["isolated_session_registration"]
    assert found["repeats"] == "never repeated"


def test_check_resolves_the_directory_it_is_called_in(
    tmp_path: Path, server: EngramServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_project(tmp_path / "p", "demo", server)
    monkeypatch.chdir(tmp_path)
    for arguments in (["p"], ["./p/../p"]):
        assert call("memory", "check", *arguments).stdout.endswith("project: demo (config)\n")
    monkeypatch.chdir(tmp_path / "p")
    assert call("memory", "check").stdout.endswith("project: demo (config)\n")


def test_check_tells_why_a_project_is_refused(server: EngramServer) -> None:
    server.model.resolve_ambiguous("/", ["one", f"two{ESCAPE}"])
    result = call("memory", "check", "/", "--json")
    refused(result, 3, f"candidates: one, two{SHOWN}")
    (found,) = objects(result.stdout_bytes)
    assert (found["ok"], found["version"], found["project"]) == (False, server.model.generation.version, None)
    assert "two" in found["error"]["cause"] and "project_name" in found["error"]["remedy"]
    text = call("memory", "check", "/").stdout
    assert "version: 3" in text and "project:" not in text


@pytest.mark.parametrize(
    ("arrange", "cause"),
    [
        (lambda server: server.faults.refuse(), "nobody listens at"),
        (lambda server: server.faults.set_sick(True), "gives no healthy answer"),
        (lambda server: server.faults.on("GET /health", faults.not_json(), faults.not_json()), "is no memory server"),
    ],
    ids=["refused", "sick", "something else"],
)
def test_check_tells_why_a_server_cannot_be_used(server: EngramServer, arrange: Any, cause: str) -> None:
    arrange(server)
    result = call("memory", "check", "/", "--json")
    refused(result, 3, cause)
    (found,) = objects(result.stdout_bytes)
    assert (found["ok"], found["capabilities"], found["project"]) == (False, None, None)
    assert cause in found["error"]["cause"]


def test_check_tells_that_there_is_no_identity() -> None:
    refused(call("memory", "check", "/"), 3, "identity of this machine's Engram instance could not be read")


def test_check_of_a_directory_that_is_not_there(tmp_path: Path, server: EngramServer) -> None:
    """A mistyped one passed, for a server names a project after it."""
    result = call("memory", "check", tmp_path / "nowhere", "--json")
    assert (result.exit_code, result.stdout) == (2, "") and "does not exist" in result.stderr
    assert server.requests == []


def test_check_without_a_start_tells_a_silent_server_from_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: EngramServer
) -> None:
    binary = write_binary(tmp_path / "bin", data_dir=tmp_path / "data")
    monkeypatch.delenv("ENGRAM_URL")
    monkeypatch.setenv("ENGRAM_BIN", str(binary.path))
    monkeypatch.setenv("ENGRAM_PORT", str(server.port))
    server.faults.set_sick(True)
    refused(call("memory", "check", tmp_path), 3, "something listens at")
    server.faults.refuse()
    refused(call("memory", "check", tmp_path), 3, "no server runs at")
    assert binary.invocations("serve") == []


def test_waiting_entries_are_dropped(store_path: Path, server: EngramServer) -> None:
    """One of a directory that has no project holds up what is behind it, and could not be got rid of."""
    server.model.resolve_to("/w", "demo")
    server.model.resolve_ambiguous("/bad", ["one", "two"])
    admit(store_path, save("bad", "/bad"), save("good"), save("not wanted"))
    result = call("memory", "drain", store_path, "s", "--timeout", 0.3)
    refused(result, 3, "the directory '/bad' has no memory project")
    assert (
        call("memory", "drop", store_path, "s", "bad", "not wanted").stdout
        == "dropped: save bad\ndropped: save not wanted\n"
    )
    assert states(store_path) == {"good": "pending"}
    assert call("memory", "drain", store_path, "s").exit_code == 0
    assert [each.title for each in server.model.rows.observations.values()] == ["good"]
    (box,) = objects(call("memory", "status", store_path, "--json").stdout_bytes)
    assert (box["waiting"], box["done"]) == (0, 3)


def test_a_setting_that_cannot_be_used(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    admit(store_path, save("e1"))
    monkeypatch.setenv("ENGRAM_PORT", "none")
    for command in (["check"], ["drain", store_path, "s"]):
        refused(call("memory", *command), 2, "ENGRAM_PORT")


# --- without the extra ----------------------------------------------------------------------------


def test_only_what_talks_to_a_server_needs_the_extra(store_path: Path) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_HTTPX2, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    set_aside(store_path, save("e1"))
    assert "1 parked" in run("memory", "status", store_path).stdout
    assert run("memory", "retry", store_path, "s", "e1").stdout == "queued again: save e1\n"
    for command in (["check"], ["drain", store_path, "s"]):
        result = run("memory", *command)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == (
            "error: the memory bridge needs httpx2, which is not installed\n"
            "hint: run pip install '.[engram]' in a checkout of scopelog\n"
        )


def test_the_other_commands_do_not_load_the_bridge() -> None:
    code = "import sys; import scopelog.cli.commands; print([m for m in sys.modules if 'clients.memory' in m])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_is_logged_is_printed_as_a_note(store_path: Path, server: EngramServer) -> None:
    """The library logs what a server has said: escaped like everything else."""
    server.model.resolve_to("/w", "demo")
    server.faults.on("POST /observations", faults.fail(400, f"{ESCAPE}no"))
    admit(store_path, save("e1"))
    result = spawn("memory", "drain", store_path, "s")
    assert result.returncode == 3
    notes = [line for line in result.stderr.decode().splitlines() if line.startswith("note: ")]
    assert notes and notes[0].endswith(f"{SHOWN}no") and b"\x1b" not in result.stderr
