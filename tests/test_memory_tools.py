"""Behaviours 45 to 50, 56, 57 and 61 over a recording host: the surface, and what the reading tools ask."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from pathlib import Path
from typing import Any

import pytest

from scopelog.clients.memory.errors import DeliveryUnknown, EngramError, HttpError, ProjectUnresolved, RequestFailed
from scopelog.clients.memory.tools import RELATIONS, TOOLS, call
from scopelog.errors import InvalidInput

from .memory_tools_rig import (
    ARGUMENTS,
    CONTRACT,
    EMPTY,
    OUTBOX,
    SCOPED,
    UNGATED,
    FakeHost,
    asks,
    http_error,
    use,
)

# --- the surface ----------------------------------------------------------------------------------


def test_the_tools_are_those_of_the_contract() -> None:
    assert set(TOOLS) == set(CONTRACT) and len(TOOLS) == 22
    for name, tool in TOOLS.items():
        kind, required, optional = CONTRACT[name]
        assert (tool.name, tool.kind, tool.schema["type"]) == (name, kind, "object")
        assert set(tool.schema["required"]) == required
        assert set(tool.schema["properties"]) == required | optional
        assert "additionalProperties" not in tool.schema
        assert tool.description.endswith(".") and all(p["description"] for p in tool.schema["properties"].values())
        json.dumps(tool.schema)


def test_no_tool_takes_a_project() -> None:
    """Behaviour 57; the functions behind the schemas neither."""
    for tool in TOOLS.values():
        assert not [name for name in tool.schema["properties"] if "project" in name and name != "all_projects"]
        parameters = inspect.signature(tool.run).parameters
        assert len(parameters) == len(tool.schema["properties"]) + 1  # the host, and what is declared
        assert not [name for name in parameters if "project" in name and name != "all_projects"]


def test_the_schemas_tell_what_is_allowed() -> None:
    compare = TOOLS["mem_compare"].schema["properties"]
    assert compare["relation"]["enum"] == list(RELATIONS)
    assert RELATIONS == ("related", "compatible", "scoped", "conflicts_with", "supersedes", "not_conflict")
    assert (compare["confidence"]["minimum"], compare["confidence"]["maximum"]) == (0, 1)
    save = TOOLS["mem_save"].schema["properties"]
    assert (save["type"]["default"], save["scope"]["default"]) == ("manual", "project")


BAD: list[tuple[str, str, Any]] = [
    ("mem_save", "title", None),
    ("mem_save", "title", "  "),
    ("mem_save", "content", 5),
    ("mem_save", "topic_key", ["a"]),
    ("mem_search", "query", ""),
    ("mem_search", "limit", True),
    ("mem_search", "limit", 0),
    ("mem_search", "limit", 5.0),
    ("mem_search", "limit", "5"),
    ("mem_search", "match_mode", "some"),
    ("mem_search", "all_projects", "true"),
    ("mem_search", "all_projects", 1),
    ("mem_timeline", "observation_id", -1),
    ("mem_timeline", "before", -1),
    ("mem_get_observation", "id", True),
    ("mem_delete", "id", None),
    ("mem_delete", "hard_delete", "false"),
    ("mem_judge", "relation", "equal"),
    ("mem_judge", "confidence", False),
    ("mem_compare", "confidence", 1.01),
    ("mem_compare", "confidence", math.nan),
    ("mem_compare", "confidence", "0.5"),
    ("mem_compare", "reasoning", " "),
    ("mem_review", "action", ""),
    ("mem_review", "action", "delete"),
]


@pytest.mark.parametrize(("name", "argument", "value"), BAD)
def test_bad_arguments_are_refused_before_anything_is_sent(name: str, argument: str, value: Any) -> None:
    host = FakeHost()
    with pytest.raises(InvalidInput) as caught:
        use(host, name, **{**ARGUMENTS[name], argument: value})
    assert name in caught.value.cause and argument in caught.value.cause
    assert not host.asked and not host.submitted


def test_an_unknown_tool_is_refused() -> None:
    with pytest.raises(InvalidInput, match="mem_forget"):
        use(FakeHost(), "mem_forget")
    with pytest.raises(InvalidInput, match="no object"):
        asyncio.run(call(FakeHost(), "mem_stats", ["all_projects"]))  # type: ignore[arg-type]


def test_what_is_not_meant_is_not_sent() -> None:
    """None and empty values are as not given, in queries and in bodies."""
    nothing: dict[str, Any] = {"type": None, "scope": "", "limit": None, "match_mode": "", "all_projects": None}
    assert asks("mem_search", query="cache", **nothing) == ("GET", "/search", {"q": "cache", "project": "demo"}, None)
    body = asks("mem_judge", judgment_id="rel-1", relation="scoped", reason="", evidence=None, confidence=0)[3]
    assert body == {"judgment_id": "rel-1", "relation": "scoped", "confidence": 0}
    assert asks("mem_update", id=1, title="t", type="", topic_key="")[3] == {"title": "t"}


# --- reads ----------------------------------------------------------------------------------------


def test_a_search_names_the_sessions_project() -> None:
    """Behaviours 45 and 46: an extra project argument changes nothing."""
    full = {"query": "a b", "type": "decision", "scope": "personal", "limit": 3, "match_mode": "any"}
    sent = {"q": "a b", "type": "decision", "scope": "personal", "limit": 3, "match_mode": "any", "project": "demo"}
    assert asks("mem_search", **full) == ("GET", "/search", sent, None)
    assert asks("mem_search", **full, project="other", cwd="/x") == ("GET", "/search", sent, None)
    assert asks("mem_context", scope="project", project="other") == (
        "GET",
        "/context",
        {"scope": "project", "project": "demo"},
        None,
    )


@pytest.mark.parametrize(
    ("name", "path"), [("mem_search", "/search"), ("mem_stats", "/stats"), ("mem_review", "/review")]
)
@pytest.mark.parametrize("project", ["demo", None])
def test_all_projects_replaces_the_project(name: str, path: str, project: str | None) -> None:
    """Behaviour 47: also when the session has none."""
    host = FakeHost([] if name == "mem_search" else {}, project=project)
    use(host, name, **ARGUMENTS[name], all_projects=True)
    ((method, asked, query, _),) = host.asked
    assert (method, asked, query.pop("all_projects")) == ("GET", path, True)
    assert "project" not in query


@pytest.mark.parametrize("name", ["mem_timeline", "mem_context", "mem_doctor"])
def test_all_projects_is_nothing_to_the_others(name: str) -> None:
    """Behaviour 47: an undeclared argument is ignored."""
    query = asks(name, **ARGUMENTS[name], all_projects=True)[2]
    assert query["project"] == "demo" and "all_projects" not in query


@pytest.mark.parametrize("name", sorted(set(TOOLS) - UNGATED - OUTBOX))
def test_without_a_project_nothing_is_asked(name: str) -> None:
    """Behaviour 48; and reads and changes by id are gated too."""
    host = FakeHost(project=None)
    with pytest.raises(ProjectUnresolved):
        use(host, name, **ARGUMENTS[name])
    assert not host.asked and not host.submitted


def test_a_project_without_a_name_is_none() -> None:
    """It would fall out of the query, and the server would answer for its own directory."""
    for name in SCOPED:
        host = FakeHost(project=" ")
        with pytest.raises(ProjectUnresolved):
            use(host, name, **ARGUMENTS[name])
        assert not host.asked


def test_a_timeline_sends_its_range_and_the_project() -> None:
    """Behaviour 49; 0 is a value."""
    query = {"observation_id": 7, "before": 0, "after": 2, "project": "demo"}
    assert asks("mem_timeline", observation_id=7, before=0, after=2) == ("GET", "/timeline", query, None)


def test_the_review_list_and_the_mark() -> None:
    """Behaviour 50."""
    assert asks("mem_review", action="list", limit=4) == ("GET", "/review", {"limit": 4, "project": "demo"}, None)
    marked = ("POST", "/review/mark_reviewed", {"project": "demo"}, {"observation_id": 7})
    assert asks("mem_review", action="mark_reviewed", observation_id=7, all_projects=True) == marked
    host = FakeHost(project=None)
    with pytest.raises(ProjectUnresolved):
        use(host, "mem_review", action="mark_reviewed", observation_id=7, all_projects=True)
    with pytest.raises(InvalidInput, match="observation_id"):
        use(FakeHost(), "mem_review", action="mark_reviewed")
    assert not host.asked


@pytest.mark.parametrize("name", SCOPED)
def test_an_unknown_project_reads_as_empty(name: str) -> None:
    """Behaviour 61: for the session's own project and this code alone."""
    unknown = http_error(404, error="unknown project", code="unknown_project", available_projects=["other"])
    host = FakeHost(unknown)
    assert use(host, name, **ARGUMENTS[name]) == EMPTY[name]
    assert len(host.asked) == 1
    for other in (http_error(404), http_error(404, code="other"), http_error(409, code="unknown_project")):
        with pytest.raises(HttpError):
            use(FakeHost(other), name, **ARGUMENTS[name])


def test_an_unknown_project_is_an_error_elsewhere() -> None:
    """Behaviour 61: where all projects were asked about, or something was to be changed."""
    unknown = http_error(404, error="unknown project", code="unknown_project")
    for name in ("mem_search", "mem_stats", "mem_review"):
        with pytest.raises(HttpError):
            use(FakeHost(unknown), name, **ARGUMENTS[name], all_projects=True)
    with pytest.raises(HttpError):
        use(FakeHost(unknown), "mem_review", action="mark_reviewed", observation_id=1)


@pytest.mark.parametrize(
    ("name", "nulls"),
    [
        ("mem_stats", {"projects": None}),
        ("mem_timeline", {"before": None, "after": None}),
        ("mem_review", {"observations": None}),
        ("mem_doctor", {"checks": None}),
        ("mem_list_projects", {"projects": None}),
        ("mem_current_project", {"available_projects": None}),
    ],
)
def test_null_lists_of_old_servers_become_lists(name: str, nulls: dict[str, Any]) -> None:
    answer = use(FakeHost({**nulls, "count": 0}), name, **ARGUMENTS[name])
    assert answer == {**{name: [] for name in nulls}, "count": 0}
    assert use(FakeHost(None), "mem_search", query="cache") == []


@pytest.mark.parametrize("name", sorted(set(TOOLS) - OUTBOX))
def test_an_answer_of_another_shape_is_an_error(name: str) -> None:
    change = CONTRACT[name][0] == "change" and name != "mem_review"
    expected = DeliveryUnknown if change or name == "mem_suggest_topic_key" else RequestFailed
    with pytest.raises(expected):
        use(FakeHost("text"), name, **ARGUMENTS[name])


def test_a_single_observation_is_asked_for_by_its_id_alone() -> None:
    """The route knows no project; another project's observation is reported as the server gives it."""
    assert asks("mem_get_observation", id=7, project="x") == ("GET", "/observations/7", {}, None)
    assert use(FakeHost({"id": 7, "project": "other"}), "mem_get_observation", id=7)["project"] == "other"
    with pytest.raises(HttpError):
        use(FakeHost(http_error(404)), "mem_get_observation", id=7)


def test_a_topic_key_is_suggested_from_words() -> None:
    body = {"title": "The cache", "type": "bugfix"}
    assert asks("mem_suggest_topic_key", **body) == ("POST", "/topic-keys/suggest", {}, body)
    host = FakeHost(project=None)
    with pytest.raises(InvalidInput, match="title or content"):
        use(host, "mem_suggest_topic_key", title=" ", type="bugfix")
    assert not host.asked


def test_the_current_project_of_a_directory() -> None:
    """Behaviour 56."""
    assert asks("mem_current_project") == ("GET", "/project/current", {"cwd": "/w"}, None)
    assert asks("mem_current_project", cwd="/x y") == ("GET", "/project/current", {"cwd": "/x y"}, None)
    host = FakeHost({}, project=None, cwd=None)
    use(host, "mem_current_project", cwd="/x")
    assert len(host.asked) == 1


@pytest.mark.parametrize("own", [None, "", "  ", "w", "./w", "/w/<private>x</private>"])
def test_without_a_directory_there_is_no_current_project(own: str | None) -> None:
    """Behaviour 56: zero requests, and the message names the directory, never the file."""
    host = FakeHost(cwd=own)
    with pytest.raises(ProjectUnresolved, match="working directory") as caught:
        use(host, "mem_current_project")
    assert not host.asked and "config" not in str(caught.value)


@pytest.mark.parametrize("cwd", ["", " ", "w", "./w", "../w", "~/w", "/w/<private>x</private>"])
def test_a_directory_that_is_not_absolute_is_refused(cwd: str) -> None:
    """Behaviour 56: the session's own directory does not stand in."""
    host = FakeHost()
    with pytest.raises(InvalidInput, match="cwd"):
        use(host, "mem_current_project", cwd=cwd)
    assert not host.asked


def test_an_old_server_leaves_the_directory_to_the_file(tmp_path: Path) -> None:
    host = FakeHost(http_error(404), cwd=str(tmp_path))
    answer = use(host, "mem_current_project")
    assert answer["project"] == "" and "no .engram/config.json" in answer["error_hint"]
    (tmp_path / ".engram").mkdir()
    (tmp_path / ".engram" / "config.json").write_text('{"project_name": "demo"}')
    answer = use(host, "mem_current_project")
    assert (answer["project"], answer["project_source"]) == ("demo", "config") and "error_hint" not in answer
    with pytest.raises(HttpError):
        use(FakeHost(http_error(500)), "mem_current_project")


def test_projects_are_listed_where_the_server_has_the_route() -> None:
    assert asks("mem_list_projects") == ("GET", "/projects", {}, None)
    with pytest.raises(EngramError, match=r"older than 2\.1\.0"):
        use(FakeHost(http_error(404)), "mem_list_projects")
    with pytest.raises(HttpError):
        use(FakeHost(http_error(500)), "mem_list_projects")
