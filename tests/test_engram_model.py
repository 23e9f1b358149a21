"""The stand-in's pure model: session rows, changes by id, guards, and what tells the generations apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engram import GENERATIONS, Generation, ManualClock, Model
from tests.engram.rig import ALL, clock, code, made, register, save
from tests.engram.state import Reply


@pytest.fixture
def model() -> Model:
    return Model("3", clock=ManualClock())


# -- sessions


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"id": "a"}, 400),
        ({"id": "a", "project": "p", "ownership_mode": "mine"}, 400),
        ({"id": "a", "project": "p", "isolated": True, "ownership_mode": "shared"}, 400),
        ({"id": "a", "project": "p", "isolated": True, "ownership_mode": "project_owned", "directory": "/w"}, 400),
        ({"id": "a", "project": "p", "resume": "yes"}, 400),
        ({"id": " ", "project": "p"}, 500),
        ({"id": "a", "project": "  "}, 500),
        ([], 400),
        (b"{", 400),
        (b'{"id": NaN}', 400),
        ({"id": "a", "project": "p"}, 201),
    ],
)
def test_registration_is_validated_in_order(model: Model, body: Any, status: int) -> None:
    assert model.answer("POST", "/sessions", body).status == status
    assert bool(model.rows.sessions) is (status == 201)


def test_a_renewal_moves_the_lease_and_nothing_else(model: Model) -> None:
    register(model, project="  P ")
    before = replace(model.rows.sessions["a"])
    assert before.project == "p"
    clock(model).advance(100)
    again = register(model, directory="/elsewhere")
    assert again == Reply(201, {"id": "a", "status": "created"}, applied=True)
    assert model.rows.sessions["a"] == replace(before, lease_expires_at=before.lease_expires_at + 100)
    assert register(model, project="q", ownership_mode="shared").status == 201
    assert model.rows.sessions["a"].project == "p"


def test_only_registration_renews_the_lease(model: Model) -> None:
    register(model)
    clock(model).advance(29 * 60)
    save(model)
    assert [row.id for row in model.live_candidates("p", "/w")] == ["a"]
    clock(model).advance(60)
    assert model.live_candidates("p", "/w") == []
    register(model)
    assert [row.id for row in model.live_candidates("p", "/w")] == ["a"]
    model.end_session("a")
    assert model.live_candidates("p", "/w") == []


def test_the_lease_is_never_shown_and_blank_columns_are_left_out(model: Model) -> None:
    register(model)
    shown = model.answer("GET", "/sessions/a").body
    assert set(shown) == {"id", "project", "ownership_mode", "directory", "started_at"}
    assert shown["started_at"] == "2026-12-01 12:00:00"


def test_the_directory_is_the_work_tree_and_never_blank(model: Model, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    register(model, directory=str(tmp_path / "deep" / "er"))
    register(model, key="b", directory=" ")
    assert model.rows.sessions["a"].directory == str(tmp_path)
    assert model.rows.sessions["b"].directory == model.directory


def test_a_project_conflict_is_seen_before_the_end(model: Model) -> None:
    register(model)
    model.end_session("a")
    reply = register(model, project="q")
    assert code(reply) == (409, "session_project_conflict")
    assert (reply.body["owner_project"], reply.body["requested_project"]) == ("p", "q")
    assert code(register(model)) == (409, "session_already_ended")


@pytest.mark.parametrize("generation", ALL)
def test_an_ended_row_by_generation(generation: str) -> None:
    model = Model(generation)
    register(model)
    model.end_session("a")
    assert register(model).status == (409 if generation in ("2.1", "3") else 201)
    assert model.rows.sessions["a"].ended_at is not None
    assert register(model, resume=True).status == {"old": 201, "2.0": 201, "2.1": 409, "3": 201}[generation]
    assert ("a:resume:2" in model.rows.sessions) is (generation == "3")


def test_resume_takes_the_lowest_live_row_or_the_next_number(model: Model) -> None:
    register(model)
    assert register(model, resume=True).body == {"id": "a", "status": "created"}
    model.end_session("a")
    assert register(model, resume=True).body == {"id": "a:resume:2", "status": "created", "resumed_from": "a"}
    assert register(model, resume=True).body["id"] == "a:resume:2"
    model.end_session("a:resume:2")
    assert register(model, resume=True).body["id"] == "a:resume:3"
    model.add_session("a:resume:7", "p", "/w")
    assert register(model, resume=True).body["id"] == "a:resume:3"
    model.end_session("a:resume:3")
    assert register(model, resume=True).body["id"] == "a:resume:7"


def test_isolated_rows(model: Model) -> None:
    assert register(model, key="i", directory="", isolated=True).status == 201
    assert model.rows.sessions["i"].directory == ""
    register(model)
    assert code(register(model, directory="", isolated=True)) == (409, "session_isolation_conflict")


def test_an_end_overwrites_and_an_unknown_one_is_fine(model: Model) -> None:
    register(model)
    assert model.answer("POST", "/sessions/a/end", {"summary": "done <private>x</private>"}).status == 200
    first = replace(model.rows.sessions["a"])
    assert first.summary == "done [REDACTED]"
    clock(model).advance(5)
    model.answer("POST", "/sessions/a/end")
    assert model.rows.sessions["a"].summary is None and model.rows.sessions["a"].ended_at != first.ended_at
    unknown = model.answer("POST", "/sessions/none/end", {})
    assert (unknown.status, unknown.body["status"], unknown.applied) == (200, "completed", False)


def test_a_session_with_observations_is_not_deleted(model: Model) -> None:
    register(model)
    number = made(model)
    assert model.answer("DELETE", "/sessions/a").status == 409
    model.answer("DELETE", f"/observations/{number}?expected_project=p")
    assert model.answer("DELETE", "/sessions/a").status == 200
    assert model.answer("DELETE", "/sessions/a").status == 404


# -- changes by id


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_the_expected_project_guards_changes(model: Model, method: str) -> None:
    register(model)
    number = made(model)
    body = {"title": "new"} if method == "PATCH" else None
    path = f"/observations/{number}"
    assert model.answer(method, path, body).status == 400
    assert model.answer(method, f"{path}?expected_project=%20", body).status == 400
    assert model.answer(method, f"{path}?expected_project=q", body).status == 409
    assert model.answer(method, "/observations/99?expected_project=p", body).status == 404
    assert model.answer(method, "/observations/x?expected_project=p", body).status == 400
    assert model.rows.observations[number].title == "t"
    assert model.answer(method, f"{path}?expected_project=P", body).status == 200
    old = Model("2.1")
    register(old)
    assert old.answer(method, f"/observations/{made(old)}", body).status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"title": " "}, 400),
        ({"content": ""}, 400),
        ({"find": "some"}, 400),
        ({"find": "absent", "replace": "x"}, 400),
        ({"find": "some", "replace": "x", "content": "y"}, 400),
        ({"find": "some content", "replace": ""}, 400),
        ({"find": "some", "replace": "other"}, 200),
        ({"type": "decision"}, 200),
    ],
)
def test_an_update_is_validated(model: Model, body: dict[str, str], status: int) -> None:
    register(model)
    number = made(model)
    reply = model.answer("PATCH", f"/observations/{number}?expected_project=p", body)
    assert reply.status == status
    assert model.rows.observations[number].revision_count == (2 if status == 200 else 1)


def test_a_hard_delete_drops_the_row(model: Model) -> None:
    register(model)
    number = made(model)
    assert model.answer("DELETE", f"/observations/{number}?expected_project=p&hard=maybe").status == 400
    reply = model.answer("DELETE", f"/observations/{number}?expected_project=p&hard=true")
    assert reply.body == {"id": number, "status": "deleted", "hard_delete": True}
    assert model.rows.observations == {}


def test_the_five_guarded_routes(model: Model) -> None:
    guarded = ["DELETE /sessions/a", "DELETE /observations/1", "DELETE /prompts/1", "GET /export", "POST /import"]
    for line in guarded:
        method, path = line.split()
        assert model.answer(method, path, {}).status != 401
        model.token = "s3cret "
        for header, error in (
            ({}, "authorization required"),
            ({"Authorization": "Basic s3cret "}, "authorization required"),
            ({"Authorization": "Bearer s3cret"}, "invalid token"),
        ):
            reply = model.answer(method, path, {}, header)
            assert (reply.status, reply.body, reply.headers["WWW-Authenticate"]) == (
                401,
                {"error": error},
                'Bearer realm="engram"',
            )
        assert model.answer(method, path, {}, {"authorization": "Bearer s3cret "}).status != 401
        model.token = ""
    assert model.answer("POST", "/projects/rescue-ownership", {}).status == 503
    model.token = "t"
    assert model.answer("POST", "/projects/migrate", {}).status == 401
    assert model.answer("DELETE", "/observations/1/pin").status == 404  # not guarded


def test_unknown_paths_and_methods_are_text(model: Model) -> None:
    assert model.answer("GET", "/nope").body == "404 page not found\n"
    assert code(model.answer("DELETE", "/search")) == (405, "text")


@pytest.mark.parametrize("generation", ALL)
def test_health_by_generation(generation: str) -> None:
    model = Model(generation)
    body = model.answer("GET", "/health").body
    assert ("instance_id" in body) is (generation != "old")
    assert body.get("capabilities", {}).get("root_session_resume", False) is (generation == "3")
    model.sick = True
    assert model.answer("GET", "/health") == Reply(500, {"error": "health check failed"})


def test_generations_are_told_apart_by_name() -> None:
    assert tuple(GENERATIONS) == ALL
    assert all(isinstance(each, Generation) and each.name == name for name, each in GENERATIONS.items())
