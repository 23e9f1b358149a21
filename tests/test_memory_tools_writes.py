"""Behaviours 58 and 62 over a recording host: what changes by id carry, and what goes to the outbox."""

from __future__ import annotations

from typing import Any

import pytest

from scopelog.clients.memory.errors import HttpError
from scopelog.clients.memory.tools import TOOLS
from scopelog.errors import InvalidInput

from .memory_tools_rig import (
    ARGUMENTS,
    COMPARE,
    FakeHost,
    asks,
    http_error,
    use,
)

# --- changes --------------------------------------------------------------------------------------


def test_an_update_carries_the_expected_project() -> None:
    """Behaviour 62."""
    fields = {"title": "t", "content": "c", "type": "decision", "scope": "personal", "topic_key": "a/b"}
    sent = asks("mem_update", id=7, **fields, project="other", find="x")
    assert sent == ("PATCH", "/observations/7", {"expected_project": "demo"}, fields)


@pytest.mark.parametrize("fields", [{}, {"project": "x"}, {"type": ""}, {"title": " "}, {"title": "t", "content": ""}])
def test_an_update_of_nothing_is_refused(fields: dict[str, Any]) -> None:
    host = FakeHost()
    with pytest.raises(InvalidInput, match="mem_update"):
        use(host, "mem_update", id=7, **fields)
    assert not host.asked


def test_a_delete_is_hard_only_when_asked() -> None:
    """Behaviours 58 and 62."""
    soft = ("DELETE", "/observations/7", {"expected_project": "demo"}, None)
    assert asks("mem_delete", id=7) == asks("mem_delete", id=7, hard_delete=False) == soft
    hard = asks("mem_delete", id=7, hard_delete=True)
    assert hard == ("DELETE", "/observations/7", {"expected_project": "demo", "hard": True}, None)


@pytest.mark.parametrize("name", ["mem_update", "mem_delete", "mem_pin", "mem_judge", "mem_compare"])
@pytest.mark.parametrize("status", [400, 401, 404, 409])
def test_a_refusal_is_reported_and_nothing_else_is_tried(name: str, status: int) -> None:
    """Behaviours 58 and 62."""
    host = FakeHost(http_error(status, error="no"))
    with pytest.raises(HttpError) as caught:
        use(host, name, **ARGUMENTS[name])
    assert caught.value.status == status and len(host.asked) == 1


def test_pins_and_judgments_carry_no_project() -> None:
    assert asks("mem_pin", id=7) == ("PUT", "/observations/7/pin", {}, None)
    assert asks("mem_unpin", id=7) == ("DELETE", "/observations/7/pin", {}, None)
    judged = {"judgment_id": "rel-1", "relation": "supersedes", "reason": "r", "evidence": "e", "confidence": 0.5}
    assert asks("mem_judge", **judged, project="x") == ("POST", "/conflicts/judge", {}, judged)
    assert asks("mem_compare", **COMPARE, model="m") == ("POST", "/conflicts/compare", {}, {**COMPARE, "model": "m"})
    with pytest.raises(InvalidInput, match="itself"):
        use(FakeHost(), "mem_compare", **{**COMPARE, "memory_id_b": 1})


# --- writes ---------------------------------------------------------------------------------------


SUMMARY = {"title": "Session summary", "type": "session_summary", "scope": "project", "content": "c"}


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "payload"),
    [
        ("mem_save", {}, "save", {"title": "t", "content": "c", "type": "manual", "scope": "project"}),
        (
            "mem_save",
            {"type": "decision", "scope": "personal", "topic_key": "a/b"},
            "save",
            {"title": "t", "content": "c", "type": "decision", "scope": "personal", "topic_key": "a/b"},
        ),
        ("mem_session_summary", {}, "summary", SUMMARY),
        ("mem_capture_passive", {}, "learning", {"content": "c", "source": "dsh-tool"}),
        ("mem_capture_passive", {"source": "bash"}, "learning", {"content": "c", "source": "bash"}),
        ("mem_save_prompt", {}, "prompt", {"content": "c"}),
    ],
)
def test_writes_go_through_the_outbox(name: str, arguments: dict[str, Any], kind: str, payload: dict[str, Any]) -> None:
    host = FakeHost()
    answer = use(host, name, **ARGUMENTS[name], **arguments, project="other", session_id="other")
    assert answer == {"status": "delivered", "entry": "e1"}
    assert host.submitted == [(kind, payload)] and not host.asked


def test_private_blocks_never_reach_the_outbox() -> None:
    hidden = " x <private>hunter2 <private>a</private> b</private> < Private >hunter2"
    for name in ("mem_save", "mem_session_summary", "mem_capture_passive", "mem_save_prompt"):
        host = FakeHost()
        use(host, name, **{field: hidden for field, spec in TOOLS[name].schema["properties"].items() if spec})
        assert "hunter2" not in str(host.submitted) and "x [REDACTED]" in str(host.submitted)
    host = FakeHost()
    use(host, "mem_session_end", summary=hidden)
    assert host.ended == ["x [REDACTED] [REDACTED]"]
    with pytest.raises(InvalidInput, match="mem_save_prompt"):
        use(host, "mem_save_prompt", content="</private>")  # nothing is left of it


def test_start_and_end_are_the_hosts() -> None:
    host = FakeHost()
    assert use(host, "mem_session_start") == {"session_id": "agent-1"}
    assert use(host, "mem_session_end") == use(host, "mem_session_end", summary="done") == {"ended": True}
    assert (host.started, host.ended, host.asked) == (1, [None, "done"], [])
