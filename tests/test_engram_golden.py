"""Golden exchanges: the stand-in answers as the contract says, and so does a real server that ENGRAM_URL names."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.engram import EngramServer, golden


def variables(cwd: Path) -> dict[str, Any]:
    """Names of this run alone, so that a real server's other rows stay out of sight."""
    run = uuid.uuid4().hex[:12]
    cwd.mkdir(exist_ok=True)
    return {
        "project": f"scopelog-golden-{run}",
        "session": f"golden session {run}",
        "operation": str(uuid.uuid4()),
        "cwd": str(cwd),
    }


@pytest.mark.parametrize("token", ["", "s3cret token"])
def test_the_stand_in_answers_as_the_table_says(tmp_path: Path, token: str) -> None:
    with EngramServer("3", token=token or None) as server:
        assert golden.replay(server.url, variables(tmp_path / "work"), token) == []
        assert not server.model.unscoped


def test_a_real_server_answers_as_the_table_says(tmp_path: Path) -> None:
    url = os.environ.get("ENGRAM_URL", "").strip()
    if not url:
        pytest.skip("ENGRAM_URL names no server; the rows of a run go to a project of their own, scopelog-golden-*")
    assert golden.replay(url, variables(tmp_path / "work"), os.environ.get("ENGRAM_HTTP_TOKEN", "")) == []


def test_a_wrong_answer_is_seen(tmp_path: Path) -> None:
    """The older generations differ from the table exactly where they should."""
    with EngramServer("2.0") as server:
        wrong = {line.split(":")[0] for line in golden.replay(server.url, variables(tmp_path / "work"))}
    assert {"health", "a lookup after the save", "projects", "register an ended session", "resume"} <= wrong
    assert "register" not in wrong


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        ("int", 3, True),
        ("number", -0.0, "0"),
        ("text", "404", {"error": "x"}),
        ({"$is": 1}, 1, True),
        ({"$list": "str"}, None, {}),
        ({"$list": "str"}, ["a"], [1]),
        ({"a": "str", "b?": "int"}, {"a": "x", "c": 1}, {"b": 1}),
        ({"a": {"b": "bool"}}, {"a": {"b": False}}, {"a": None}),
    ],
)
def test_shapes_tell_good_from_bad(shape: Any, good: Any, bad: Any) -> None:
    assert golden.differences(shape, good) == []
    assert golden.differences(shape, bad) != []
