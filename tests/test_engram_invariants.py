"""The end-of-test invariants: a sound run passes, and each is seen to fail once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engram import EngramServer, Entry, faults
from tests.engram.golden import send
from tests.engram.rig import OBSERVATION, SESSION, broken, get, post


@pytest.fixture
def server() -> Iterator[EngramServer]:
    with EngramServer("3") as running:
        running.model.add_session("a", "p", "/w")
        yield running


# -- invariants: each is broken once


def breach(server: EngramServer, **expected: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        server.check_invariants(**expected)
    return str(caught.value)


def test_a_sound_run_passes(server: EngramServer) -> None:
    post(server, "/sessions", SESSION | {"id": "agent"})
    post(server, "/observations", OBSERVATION | {"session_id": "agent", "operation_id": "op"})
    post(server, "/sessions/agent/end", {})
    server.check_invariants(
        agents={"agent": []},
        projects={"agent": "p"},
        readers=["reader"],
        secrets=["hidden"],
        ends=["agent"],
        entries=[Entry(key="op"), Entry("content <b> & é")],
    )


def test_each_invariant_is_looked_at(server: EngramServer) -> None:
    get(server, "/stats")
    assert breach(server) == "a read named no project: GET /stats"
    server.model.unscoped.clear()
    send(server.url, "GET", "/health", headers={"Authorization": "Bearer x"})
    assert "Authorization to /health" in breach(server)
    server.forget()
    post(server, "/sessions/a/end", {})
    assert "ends a, which nobody asked for" in breach(server)
    post(server, "/sessions/a/end", {})
    assert "a was ended 2 times, asked 1 times" in breach(server, ends=["a"])
    server.check_invariants(ends=["a", "a"])
    server.clock.advance(61)
    post(server, "/observations", OBSERVATION)
    assert "long after it had ended" in breach(server, ends=["a", "a"])
    server.check_invariants(ends=["a", "a"], late_writes=True)
    server.forget()
    server.model.rows.effects.clear()
    post(server, "/sessions", SESSION | {"id": "b"})
    assert "b only read, and has a row" in breach(server, readers=["b"])
    assert "rows of no agent and no rotation (0 allowed): b" in breach(server, agents={"agent": ["rotated"]})
    assert "(0 allowed): b" in breach(server, agents={"agent": 0})
    server.check_invariants(agents={"agent": ["b"]})
    server.check_invariants(agents={"agent": 1})
    assert "lies in project p" in breach(server, projects={"a": "q"})


@pytest.mark.parametrize("where", ["path", "query", "body", "escaped", "header"])
def test_a_secret_is_found_in_every_disguise(server: EngramServer, where: str) -> None:
    secret = 'pläin "secret"'
    quoted = "pl%C3%A4in%20%22secret%22"
    if where == "path":
        get(server, f"/sessions/{quoted}")
    elif where == "query":
        get(server, f"/search?project=p&q={quoted.replace('%20', '+')}")
    elif where == "header":
        send(server.url, "GET", "/health", headers={"X-Note": secret.encode("latin-1").decode("latin-1")})
    else:
        body = json.dumps({"deep": [{"x": f"see {secret}!"}]}, ensure_ascii=where == "escaped").encode()
        post(server, "/prompts", body)
    assert "carries a secret" in breach(server, secrets=[secret])
    server.check_invariants(secrets=["another"])


def test_delivery_is_counted_on_generation_3(server: EngramServer) -> None:
    assert "entry op took effect 0 times" in breach(server, entries=[Entry(key="op")])
    prompt = {"session_id": "a", "content": "what?", "project": "p", "source_inbox_id": "op"}
    server.faults.on("POST /prompts", faults.lose_reply())
    broken(server, "POST", "/prompts", prompt)
    post(server, "/prompts", prompt)
    server.check_invariants(entries=[Entry(key="op")])
    post(server, "/sessions", SESSION | {"id": "b"})
    post(server, "/prompts", prompt | {"session_id": "b"})
    assert "entry op took effect 2 times" in breach(server, entries=[Entry(key="op")])


@pytest.mark.parametrize("generation", ["old", "2.0", "2.1"])
def test_an_older_generation_sees_no_second_try(generation: str) -> None:
    with EngramServer(generation) as server:
        server.model.add_session("a", "p")
        server.faults.on("POST /observations", faults.fail(503), faults.lose_reply())
        broken(server)  # a received answer is a known outcome
        broken(server)
        server.check_invariants(entries=[Entry("content <b> & é")])
        broken(server)
        assert "was sent again (request 3)" in breach(server, entries=[Entry("content <b> & é")])
    with pytest.raises(ValueError, match="key or its content"):
        Entry()
