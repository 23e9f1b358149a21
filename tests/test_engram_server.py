"""The stand-in over real HTTP: recording, every fault as a raw client sees it, gates, restarts, invariants."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engram import EngramServer, faults
from tests.engram.golden import send
from tests.engram.rig import OBSERVATION, SESSION, Background, broken, get, post, saved


@pytest.fixture
def server() -> Iterator[EngramServer]:
    with EngramServer("3") as running:
        running.model.add_session("a", "p", "/w")
        yield running


# -- the skin


def test_requests_are_recorded_in_full(server: EngramServer) -> None:
    post(server, "/observations?x=1%202", OBSERVATION, Authorization="Bearer t ")
    get(server, "/nope")
    post(server, "/observations", b"{half", **{"X-A": "b"})
    first, second, third = server.requests
    assert (first.order, first.method, first.target, first.path) == (
        1,
        "POST",
        "/observations?x=1%202",
        "/observations",
    )
    assert (first.status, first.applied, first.body, first.query) == (201, True, OBSERVATION, {"x": "1 2"})
    assert first.headers["authorization"] == "Bearer t " and first.time == server.clock.now()
    assert (second.status, second.applied, second.route, second.body) == (404, False, None, None)
    assert (third.status, third.raw, third.body, third.headers["x-a"]) == (400, b"{half", None, "b")
    assert server.seen("POST /observations") == [first, third]
    server.forget()
    assert server.requests == []


def test_replies_look_like_the_real_ones(server: EngramServer) -> None:
    number = post(server, "/observations", OBSERVATION).body["id"]
    answer = get(server, f"/observations/{number}")
    assert answer.body["content"] == "content <b> & é"
    assert "\\u003cb\\u003e \\u0026 é" in answer.text and answer.text.endswith("\n")
    for path, status in (("/nope", 404), ("/prompts", 405)):
        answer = get(server, path)
        assert (answer.status, answer.body) == (status, None)
        assert answer.headers["content-type"].startswith("text/plain")


def test_a_connection_is_kept_and_keys_are_decoded(server: EngramServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        ports = set()
        for key in ("a b/c%", "a b/c%"):
            connection.request("POST", "/sessions", json.dumps(SESSION | {"id": key}))
            assert connection.getresponse().read()
            connection.request("GET", "/sessions/a%20b%2Fc%25")
            assert json.loads(connection.getresponse().read())["id"] == key
            assert connection.sock is not None
            ports.add(connection.sock.getsockname())
        assert len(ports) == 1
    finally:
        connection.close()


def test_the_token_is_changed_at_run_time(server: EngramServer) -> None:
    assert send(server.url, "DELETE", "/sessions/none").status == 404
    server.faults.change_token("t")
    answer = send(server.url, "DELETE", "/sessions/none")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer realm="engram"')
    assert send(server.url, "DELETE", "/sessions/none", headers={"Authorization": "Bearer t"}).status == 404


# -- faults: (action, what the client sees, applied?, the outcome is unknown)

WIRE = [
    (faults.ok(), "201", True, False),
    (faults.close_unread(), "reset", False, True),
    (faults.close_unapplied(), "disconnected", False, True),
    (faults.close_unapplied(reset=True), "reset", False, True),
    (faults.lose_reply(), "disconnected", True, True),
    (faults.lose_reply(reset=True), "reset", True, True),
    (faults.half_body(), "incomplete", True, True),
    (faults.half_body(apply=False), "incomplete", False, True),
    (faults.fail(500), "500", False, False),
    (faults.fail(503, applied=True), "503", True, False),
    (faults.unauthorized(), "401", False, False),
    (faults.conflict("session_already_ended"), "409", False, False),
    (faults.then_refuse(), "201", True, False),
    (faults.then_refuse(reply="lost"), "disconnected", True, True),
    (faults.then_refuse(reply="unapplied"), "disconnected", False, True),
]


@pytest.mark.parametrize(("action", "seen", "applied", "unknown"), WIRE)
def test_what_a_client_sees(
    server: EngramServer, action: faults.Action, seen: str, applied: bool, unknown: bool
) -> None:
    server.faults.on("POST /observations", action)
    assert broken(server) == seen
    exchange = server.requests[-1]
    assert (saved(server), exchange.applied, exchange.unknown) == (int(applied), applied, unknown)
    if seen == "incomplete":
        assert exchange.status == (201 if applied else 200)
    else:
        assert exchange.status == (int(seen) if seen.isdigit() else None)
    assert server.faults.pending == 0
    after = "refused" if action.then_refuse else "201"
    assert broken(server) == after
    server.faults.accept()
    assert broken(server) == "201"


def test_error_bodies(server: EngramServer) -> None:
    ambiguous = faults.conflict("ambiguous_project", available_projects=["x"])
    server.faults.on("GET /stats", ambiguous, faults.not_json(), faults.redirect("http://elsewhere/"))
    assert get(server, "/stats?project=p").body == {
        "error": "conflict",
        "code": "ambiguous_project",
        "available_projects": ["x"],
    }
    answer = get(server, "/stats?project=p")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, None, "text/html")
    moved = get(server, "/stats?project=p")
    assert (moved.status, moved.headers["location"]) == (302, "http://elsewhere/")
    assert server.model.unscoped == []


def test_health_faults(server: EngramServer) -> None:
    server.faults.on("GET /health", faults.foreign(), faults.foreign(None), faults.sick_health())
    assert get(server, "/health").body["instance_id"] == "f" * 32
    assert "instance_id" not in get(server, "/health").body
    assert get(server, "/health").status == 500
    assert get(server, "/health").body["instance_id"] == server.instance_id
    server.faults.set_sick(True)
    assert [get(server, "/health").status for _ in range(2)] == [500, 500]


def test_a_connection_can_be_closed_before_a_word(server: EngramServer) -> None:
    server.faults.on("connect", faults.close_unread(), nth=2)
    assert get(server, "/health").status == 200
    assert broken(server) in ("reset", "disconnected")
    assert (server.dropped, len(server.requests)) == (1, 1)
    assert get(server, "/health").status == 200


def test_a_script_counts_matches_of_its_route(server: EngramServer) -> None:
    server.faults.on("POST /prompts", faults.fail(500))
    server.faults.on("POST /observations", faults.fail(503), faults.ok(), faults.fail(502), nth=2)
    assert [broken(server) for _ in range(5)] == ["201", "503", "201", "502", "201"]
    assert server.faults.pending == 1
    server.faults.on("*", faults.fail(418), nth=2)
    assert [get(server, "/health").status for _ in range(3)] == [200, 418, 200]
    server.faults.clear()
    assert server.faults.pending == 0


def test_a_script_that_names_nothing_is_refused(server: EngramServer) -> None:
    for route, actions, nth in (
        ("POST /observation", (faults.ok(),), 1),
        ("POST /observations", (), 1),
        ("POST /observations", (faults.ok(),), 0),
        ("connect", (faults.lose_reply(),), 1),
    ):
        with pytest.raises(ValueError, match=r"no route|nth counts|closed unread"):
            server.faults.on(route, *actions, nth=nth)
    with pytest.raises(ValueError, match="no route"):
        server.faults.hold("/observations")


@pytest.mark.parametrize(("apply", "while_held", "after"), [("before", 1, 1), ("after", 0, 1), ("never", 0, 0)])
def test_a_delay_applies_when_told(server: EngramServer, apply: faults.Apply, while_held: int, after: int) -> None:
    action = server.faults.on("POST /observations", faults.delay(apply))
    client = Background(server)
    action.gate.wait_held()
    assert saved(server) == while_held
    action.gate.release()
    assert client.result() == ("disconnected" if apply == "never" else "201")
    assert saved(server) == after
    assert server.requests[0].unknown


def test_a_client_may_time_out_before_a_late_application(server: EngramServer) -> None:
    action = server.faults.on("POST /observations", faults.delay("after"))
    with pytest.raises(TimeoutError):
        send(server.url, "POST", "/observations", OBSERVATION, timeout=0.05)
    action.gate.wait_held()
    assert saved(server) == 0
    action.gate.release()
    server.close()  # waits for the thread of the late request
    assert saved(server) == 1


def test_a_delay_in_real_time_where_a_test_asks_for_it(server: EngramServer) -> None:
    server.faults.on("POST /observations", faults.delay("before", seconds=0.01))
    assert broken(server) == "201"


def test_closing_drops_what_is_held(server: EngramServer) -> None:
    gate = server.faults.hold("POST /observations")
    client = Background(server)
    gate.wait_held()
    server.restart()
    assert client.result() in ("disconnected", "reset")
    assert (saved(server), server.requests[0].unknown) == (0, True)
    assert broken(server) == "201"  # the gate went with the server


@pytest.mark.parametrize(("apply", "kept"), [("before", 1), ("after", 0)])
def test_closing_ends_a_delay(server: EngramServer, apply: faults.Apply, kept: int) -> None:
    action = server.faults.on("POST /observations", faults.delay(apply))
    client = Background(server)
    action.gate.wait_held()
    server.close()
    assert client.result() in ("disconnected", "reset")
    assert (saved(server), action.gate.held) == (kept, 0)


def test_a_gate_lets_go_one_by_one(server: EngramServer) -> None:
    gate = server.faults.hold("POST /prompts")
    prompts = [{"session_id": "a", "content": f"prompt {n}", "project": "p"} for n in range(3)]
    clients = [Background(server, "/prompts", body) for body in prompts]
    gate.wait_held(3)
    assert (gate.held, server.model.rows.prompts, broken(server)) == (3, {}, "201")
    gate.release_one()
    while not server.model.rows.prompts:
        gate.wait_held(2)
    assert gate.held == 2
    gate.release()
    assert [client.result() for client in clients] == ["201"] * 3
    with pytest.raises(AssertionError, match="0 held"):
        gate.wait_held(1, timeout=0.01)


def test_a_gate_behind_the_application(server: EngramServer) -> None:
    gate = server.faults.hold("POST /observations", after_applying=True)
    client = Background(server)
    gate.wait_held()
    assert saved(server) == 1
    server.faults.wipe()
    gate.release()
    assert (client.result(), saved(server)) == ("201", 0)


def test_rows_change_behind_the_back(server: EngramServer) -> None:
    server.faults.end("a", "closed")
    assert post(server, "/sessions", SESSION).body["code"] == "session_already_ended"
    server.faults.delete("a")
    assert get(server, "/sessions/a").status == 404
    post(server, "/sessions", SESSION)
    server.faults.set_project("a", "q")
    assert post(server, "/sessions", SESSION).body["code"] == "session_project_conflict"
    server.faults.wipe()
    assert get(server, "/sessions/a").status == 404
    server.faults.change_instance("e" * 32)
    assert get(server, "/health").body["instance_id"] == "e" * 32


def test_rows_change_within_a_request(server: EngramServer) -> None:
    """The race of a row that ends between the bridge's look and its write."""
    server.faults.on("GET /sessions/{id}", faults.change(after=lambda model: model.end_session("a")))
    assert "ended_at" not in get(server, "/sessions/a").body
    assert "ended_at" in get(server, "/sessions/a").body
    server.faults.on("POST /sessions", faults.change(lambda model: model.drop_session("a")))
    assert post(server, "/sessions", SESSION).status == 201


def test_refused_and_accepted_again(server: EngramServer) -> None:
    idle = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert idle.recv(12) == b"HTTP/1.1 200"
    server.faults.refuse()
    while idle.recv(65536):
        pass  # the rest of the reply, then the end: a pooled connection does not outlive its server
    idle.close()
    assert [broken(server), broken(server)] == ["refused", "refused"]
    url = server.url
    server.faults.accept()
    assert (server.url, broken(server)) == (url, "201")


def test_a_restart_keeps_rows_identity_and_script(server: EngramServer) -> None:
    broken(server)
    server.faults.on("POST /observations", faults.fail(503))
    identity = get(server, "/health").body["instance_id"]
    server.restart()
    assert get(server, "/health").body["instance_id"] == identity
    assert [broken(server), broken(server), saved(server)] == ["503", "201", 1]


def test_a_data_directory_outlives_the_server(tmp_path: Path) -> None:
    with EngramServer("3", data_dir=tmp_path) as first:
        post(first, "/sessions", SESSION)
        post(first, "/observations", OBSERVATION | {"operation_id": "op"})
        identity, port = first.instance_id, first.port
    with EngramServer("3", data_dir=tmp_path, port=port) as second:
        assert (second.instance_id, second.port) == (identity, port)
        assert get(second, "/observations/save-result?operation_id=op").status == 200
        assert post(second, "/observations", OBSERVATION | {"operation_id": "op"}).body["id"] == 1
        with pytest.raises(OSError, match="in use"):
            EngramServer("3", port=port)


def test_rows_of_an_agent(server: EngramServer) -> None:
    server.model.add_session("a:resume:2", "p")
    server.model.add_session("x", "p")
    server.model.add_session("ab", "p")
    assert [row.id for row in server.rows("a", ["x"])] == ["a", "a:resume:2", "x"]
    assert [row.id for row in server.live_candidates("p", "/w")] == ["a"]
