"""The stand-in's reads: scoping, project detection on a disk, shapes; random sequences keep the model sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engram import ManualClock, Model
from tests.engram.state import Observation, Prompt

READS = ("/search?q=x", "/context?a=b", "/stats?a=b", "/review?a=b", "/doctor?a=b", "/observations/recent?a=b")


@pytest.fixture
def model() -> Model:
    made = Model("3", clock=ManualClock())
    made.add_session("a", "p", "/w")
    made.add_session("b", "q", "/v")
    return made


def save(model: Model, key: str, title: str, content: str = "content", **extra: Any) -> int:
    body = {"session_id": key, "title": title, "content": content} | extra
    number: int = model.answer("POST", "/observations", body).body["id"]
    return number


@pytest.mark.parametrize("path", READS)
def test_the_scope_of_a_read(model: Model, path: str) -> None:
    def code(query: str) -> tuple[int, str]:
        reply = model.answer("GET", f"{path}&{query}")
        return reply.status, reply.body.get("code", "") if isinstance(reply.body, dict) else ""

    assert code("project=%20P%20") == (200, "")
    assert code("all_projects=true") == (200, "")
    assert code("project=p&all_projects=true") == (400, "invalid_project")
    assert code("project=p&project=p") == (400, "invalid_project")
    assert code("project=") == (400, "invalid_project")
    assert code("project=a%2Fb") == (400, "invalid_project")
    assert code("project=a%01") == (400, "invalid_project")
    assert code("project=unseen") == (404, "unknown_project")
    assert model.unscoped == []
    assert code("c=d") == (200, "")
    assert model.unscoped == [f"GET {path.partition('?')[0]}"]


def test_an_unknown_project_lists_the_known_ones(model: Model) -> None:
    assert model.answer("GET", "/stats?project=z").body["available_projects"] == ["p", "q"]


def test_an_unscoped_read_answers_for_the_server_itself(model: Model) -> None:
    save(model, "b", "walrus")
    model.process_project = "q"
    assert [row["title"] for row in model.answer("GET", "/search?q=walrus").body] == ["walrus"]
    model.process_project = ""
    model.resolve_ambiguous("/v", ["q", "r"])
    reply = model.answer("GET", "/search?q=walrus&cwd=/v")
    assert reply.status == 409 and reply.body["available_projects"] == ["q", "r"]
    assert len(model.unscoped) == 2


def test_search_is_ordered_and_scoped(model: Model) -> None:
    high = save(model, "a", "walrus", "harbour")
    low = save(model, "a", "other", "walrus and harbour")
    save(model, "b", "walrus harbour")
    found = model.answer("GET", "/search?q=Walrus+harbour&project=p").body
    assert [(row["id"], row["rank"]) for row in found] == [(high, -1.0), (low, -0.0)]
    assert str(found[1]["rank"]) == "-0.0"
    assert len(model.answer("GET", "/search?q=walrus+zeppelin&project=p&match_mode=any").body) == 2
    assert model.answer("GET", "/search?q=walrus+zeppelin&project=p").body == []
    assert len(model.answer("GET", "/search?q=walrus&all_projects=true&limit=2").body) == 2
    assert model.answer("GET", "/search?q=walrus&project=p&type=decision").body == []


def test_empty_lists_by_generation() -> None:
    for generation in ("old", "2.0", "2.1", "3"):
        model = Model(generation)
        model.add_session("a", "p")
        expected: list[Any] | None = None if generation == "old" else []
        assert model.answer("GET", "/search?q=x&project=p").body == expected
        assert model.answer("GET", "/review?project=p").body["observations"] == expected


def test_timeline_stays_in_its_project(model: Model) -> None:
    numbers = [save(model, "a", f"t{n}") for n in range(5)]
    body = model.answer("GET", f"/timeline?observation_id={numbers[2]}&project=p&before=1&after=9").body
    assert [row["id"] for row in body["before"]] == [numbers[1]]
    assert [row["id"] for row in body["after"]] == numbers[3:]
    assert (body["focus"]["id"], body["total_in_range"], body["session_info"]["id"]) == (numbers[2], 4, "a")
    assert model.answer("GET", f"/timeline?observation_id={numbers[0]}&project=q").status == 404
    assert model.answer("GET", "/timeline?observation_id=x&project=p").status == 400
    assert model.answer("GET", f"/timeline?observation_id={numbers[0]}&project=p").body["before"] is None


def test_empty_rows_crowd_the_context(model: Model) -> None:
    model.end_session("a", "the one useful summary")
    assert "useful" in model.answer("GET", "/context?project=p").body["context"]
    assert isinstance(model.clock, ManualClock)
    model.clock.advance(1)
    for n in range(5):
        model.add_session(f"empty-{n}", "p")
    assert "useful" not in model.answer("GET", "/context?project=p").body["context"]
    assert "useful" in model.answer("GET", "/context?project=p&sessions=6").body["context"]
    assert len(model.answer("GET", "/context?project=p&max_bytes=20").body["context"]) == 20


def test_review_lists_what_is_due(model: Model) -> None:
    number = save(model, "a", "d", type="decision")
    assert model.answer("GET", "/review?project=p").body == {"observations": [], "count": 0}
    assert isinstance(model.clock, ManualClock)
    model.clock.advance(91 * 86400)
    assert model.answer("GET", "/review?project=p").body["observations"][0]["state"] == "needs_review"
    assert model.answer("POST", "/review/mark_reviewed?project=q", {"observation_id": number}).status == 404
    assert model.answer("POST", "/review/mark_reviewed?project=p", {}).status == 400
    assert model.answer("POST", "/review/mark_reviewed?project=p", {"id": number}).body["state"] == "active"


def test_judgments(model: Model) -> None:
    first, second = save(model, "a", "x"), save(model, "a", "y")
    key = model.add_judgment(first, second)
    verdict = {"judgment_id": key, "relation": "supersedes", "confidence": 1}
    assert model.answer("POST", "/conflicts/judge", verdict | {"relation": "likes"}).status == 400
    assert model.answer("POST", "/conflicts/judge", verdict).body["relation"]["relation"] == "supersedes"
    pair = {"memory_id_a": first, "memory_id_b": second, "relation": "related", "confidence": 0, "reasoning": "r"}
    assert model.answer("POST", "/conflicts/compare", pair).status == 200
    assert model.answer("POST", "/conflicts/compare", pair | {"confidence": 1.5}).status == 400
    assert model.answer("POST", "/conflicts/compare", pair | {"confidence": True}).status == 400
    assert model.answer("POST", "/conflicts/compare", pair | {"memory_id_b": 999}).status == 404


def test_projects_and_doctor(model: Model) -> None:
    body = model.answer("GET", "/projects").body
    assert body["count"] == 2 and body["projects"][0] == {
        "name": "p",
        "session_count": 1,
        "observation_count": 0,
        "prompt_count": 0,
    }
    assert Model("2.0").answer("GET", "/projects").body == "404 page not found\n"
    assert model.answer("GET", "/doctor?project=p&check=teeth").body["status"] == "error"
    assert len(model.answer("GET", "/doctor?project=p&check=store").body["checks"]) == 1


# -- detection


def current(model: Model, path: Path | str) -> Any:
    return model.answer("GET", f"/project/current?cwd={path}").body


def test_detection_walks_its_order(model: Model, tmp_path: Path) -> None:
    root = tmp_path / "Tree"
    (root / "deep").mkdir(parents=True)
    assert current(model, root)["project_source"] == "dir_basename"
    (root / "one" / ".git").mkdir(parents=True)
    assert (current(model, root)["project"], current(model, root)["project_source"]) == ("one", "git_child")
    (root / "two" / ".git").mkdir(parents=True)
    body = current(model, root)
    assert (body["project"], body["project_source"], body["available_projects"]) == ("", "ambiguous", ["one", "two"])
    assert body["error_hint"]
    (root / ".git").mkdir()
    assert (current(model, root / "deep")["project"], current(model, root)["project_source"]) == ("tree", "git_root")
    (root / ".git" / "config").write_text('[remote "origin"]\n\turl = git@example.org:team/Boat.git\n')
    assert (current(model, root)["project"], current(model, root)["project_source"]) == ("boat", "git_remote")
    (root / ".engram").mkdir()
    (root / ".engram" / "config.json").write_text('{"project_name": "Named"}')
    assert (current(model, root / "deep")["project"], current(model, root)["project_source"]) == ("named", "config")
    model.process_project = "everything"
    assert current(model, root)["project_source"] == "process_override"


def test_a_config_outside_git_is_not_looked_for_in_parents(model: Model, tmp_path: Path) -> None:
    (tmp_path / ".engram").mkdir()
    (tmp_path / ".engram" / "config.json").write_text('{"project_name": "named"}')
    (tmp_path / "below").mkdir()
    assert current(model, tmp_path)["project"] == "named"
    assert current(model, tmp_path / "below")["project"] == "below"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"project_name": " "}', '{"project_name": 1}'])
def test_a_broken_config_is_an_error(model: Model, tmp_path: Path, text: str) -> None:
    (tmp_path / ".engram").mkdir()
    (tmp_path / ".engram" / "config.json").write_text(text)
    reply = model.answer("GET", f"/project/current?cwd={tmp_path}")
    assert (reply.status, reply.body["code"]) == (500, "project_resolution_failed")


def test_the_table_beats_the_disk(model: Model, tmp_path: Path) -> None:
    model.resolve_to(str(tmp_path), "a/b", "git_root", warning="odd name", available_projects=["a"])
    assert current(model, tmp_path)["project"] == "a/b" and current(model, tmp_path)["warning"] == "odd name"
    assert Model("old").answer("GET", f"/project/current?cwd={tmp_path}").body == "404 page not found\n"
    assert model.unscoped == []
    model.answer("GET", "/project/current")
    assert model.unscoped == ["GET /project/current"]


# -- random sequences

KEYS = st.sampled_from(["a", "b", "c"])
PROJECTS = st.sampled_from(["p", "q", " P "])
TEXTS = st.sampled_from(
    ["one text", "ONE text", "two", "<private>x</private> three", "## Learnings\n- one long learned item\n"]
)
CALLS = st.one_of(
    st.builds(
        lambda key, project, mode, resume: (
            "POST",
            "/sessions",
            {"id": key, "project": project, "directory": "/w", "ownership_mode": mode, "resume": resume},
        ),
        KEYS,
        PROJECTS,
        st.sampled_from(["project_owned", "shared", "", "bad"]),
        st.booleans(),
    ),
    st.builds(lambda key: ("POST", f"/sessions/{key}/end", {}), KEYS),
    st.builds(lambda key: ("DELETE", f"/sessions/{key}", None), KEYS),
    st.builds(
        lambda key, project, content, topic, operation: (
            "POST",
            "/observations",
            {
                "session_id": key,
                "title": "t",
                "content": content,
                "project": project,
                "topic_key": topic,
                "operation_id": operation,
            },
        ),
        KEYS,
        PROJECTS,
        TEXTS,
        st.sampled_from(["", "", "k"]),
        st.sampled_from(["", "op-1", "op-2"]),
    ),
    st.builds(
        lambda route, key, content, inbox: (
            "POST",
            route,
            {"session_id": key, "content": content, "source_inbox_id": inbox},
        ),
        st.sampled_from(["/prompts", "/observations/passive"]),
        KEYS,
        TEXTS,
        st.sampled_from(["", "i-1", "i-2"]),
    ),
    st.builds(
        lambda number, hard: ("DELETE", f"/observations/{number}?expected_project=p&hard={hard}", None),
        st.integers(1, 12),
        st.sampled_from(["true", "false"]),
    ),
    st.builds(lambda number: ("DELETE", f"/prompts/{number}", None), st.integers(1, 12)),
    st.builds(lambda seconds: ("wait", "", seconds), st.sampled_from([1, 59, 600, 1900])),
)


@settings(max_examples=150)
@given(st.sampled_from(["old", "2.0", "2.1", "3"]), st.lists(CALLS, max_size=40))
def test_random_sequences_keep_the_model_sound(generation: str, calls: list[tuple[str, str, Any]]) -> None:
    clock = ManualClock()
    model = Model(generation, clock=clock)
    highest = 0
    for method, path, body in calls:
        if method == "wait":
            clock.advance(body)
            continue
        before = model.rows.to_json()
        ended = {key: row.ended_at for key, row in model.rows.sessions.items() if row.ended_at is not None}
        reply = model.answer(method, path, body)
        rows = model.rows
        # A refusal changes nothing, and neither does an answer that says it was not applied.
        if not reply.applied:
            assert reply.status >= 400 or method in ("GET", "POST")
            kept = json.loads(rows.to_json()) | {"effects": None}
            assert kept == json.loads(before) | {"effects": None}
        else:
            assert reply.status < 300
        # Numbers only grow; an id is never given to a second row.
        assert rows.last_id >= highest
        highest = rows.last_id
        # No row without its session, and none in another project than its session's.
        written: list[Observation | Prompt] = [*rows.observations.values(), *rows.prompts.values()]
        for row in written:
            assert row.project == rows.sessions[row.session_id].project
        # There is no un-end: an ended row stays ended, or is deleted.
        assert all(rows.sessions[key].ended_at is not None for key in ended if key in rows.sessions)
        inbox = [(p.session_id, p.source_inbox_id) for p in rows.prompts.values() if p.source_inbox_id]
        assert len(inbox) == len(set(inbox))
        topics = [
            (o.project, o.scope, o.topic_key) for o in rows.observations.values() if o.topic_key and not o.deleted_at
        ]
        assert len(topics) == len(set(topics))
        json.dumps(reply.body)
    keys = [effect.key for effect in model.rows.effects if effect.kind == "observation" and effect.key]
    assert len(keys) == len(set(keys))  # one effect an operation, whatever was replayed
