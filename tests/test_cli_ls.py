"""ls, stat, describe and index on the command line: what is shown of sessions, which of them, and what if not all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from scopelog import ManualClock, Store, ephemeral, list_of, value
from scopelog.cli.options import moment_given
from scopelog_engine.layout import INDEX_DIR

from .cli_rig import call, fill, flip, objects, refused, started

MESSAGES = list_of("chat", "messages")
START = 1_764_547_200_000  # 2025-12-01, where a manual clock starts


@pytest.fixture
def stored(store_path: Path) -> Path:
    """Sessions a to e: a second apart, each with one more element than the one before, some with name and labels."""
    clock = ManualClock()
    with Store.open(store_path, clock=clock) as store:
        for number, session_id in enumerate("abcde"):
            with store.session(session_id) as session:
                session.commit([value("chat", "state").set(0), *(MESSAGES.append("x" * 90) for _ in range(number))])
                clock.advance(1)
        with store.session("a") as session:
            session.describe(name="Rome [2]", labels={"team": "travel", "n": 2, "done": True})
        with store.session("b") as session:
            session.describe(name="Paris", labels={"team": "food", "n": "2"})
        with store.session("c") as session:
            session.describe(labels={"deep": {"a": [1, None]}})
    return store_path


def ids(store: Path, *options: object) -> str:
    result = call("ls", store, *options)
    assert result.exit_code == 0, result.output
    return "".join(result.stdout.split())


def test_a_list_of_all_that_is_known(stored: Path) -> None:
    result = call("ls", stored, "-l")
    assert result.exit_code == 0
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[0] for row in rows] == list("abcde")
    assert rows[0][1:6] == ["Rome [2]", "2025-12-01T00:00:00.000Z", "2025-12-01T00:00:05.000Z", "2", "0"]
    assert json.loads(rows[0][7]) == {"team": "travel", "n": 2, "done": True}
    assert rows[4][1:6] == ["", "2025-12-01T00:00:04.000Z", "2025-12-01T00:00:04.000Z", "1", "4"]
    assert rows[4][7] == ""
    assert [int(row[6]) for row in rows] == [(stored / f"{i}.session" / "main.zst").stat().st_size for i in "abcde"]

    found = objects(call("ls", stored, "--long", "--json").stdout_bytes)
    assert found[1] == {
        "session": "b",
        "name": "Paris",
        "labels": {"team": "food", "n": "2"},
        "created_ms": START + 1000,
        "updated_ms": START + 5000,
        "commits": 2,
        "elements": 1,
        "frames": 2,
        "syncs": 2,
        "bytes": int(rows[1][6]),
    }
    assert objects(call("ls", stored, "--json").stdout_bytes) == [{"session": i} for i in "abcde"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--id", "[b-d]"], "bcd"),
        (["--id", "b"], "b"),
        (["--id", "B"], ""),
        (["--name", "o"], "a"),
        (["--name", "R*"], "a"),
        (["--name", "*i*"], "b"),
        (["--name", "paris"], ""),
        (["--label", "team"], "ab"),
        (["--label", "team=food"], "b"),
        (["--label", "n=2"], "ab"),  # a number or its text
        (["--label", 'n="2"'], "b"),
        (["--label", "done=true"], "a"),
        (["--label", "done=1"], ""),
        (["--label", 'deep={"a":[1,null]}'], "c"),
        (["--label", "team", "--label", "n=2", "--label", "done"], "a"),
        (["--label", "absent"], ""),
        (["--created-since", "2025-12-01T00:00:02"], "cde"),
        (["--created-until", "2025-12-01T00:00:02Z"], "ab"),
        (["--created-since", START + 1000, "--created-until", START + 3000], "bc"),
        (["--created-since", "2025-12-01T01:00:03+01:00"], "de"),
        (["--updated-since", "2025-12-01T00:00:04"], "abce"),
        (["--updated-until", START + 4000], "d"),
        (["--created-since", "2025-11-30"], "abcde"),
        (["--min-elements", 3], "de"),
        (["--max-elements", 1], "ab"),
        (["--min-elements", 1, "--max-elements", 2], "bc"),
        (["--max-bytes", 1], ""),
        (["--min-bytes", 1, "--id", "[ab]"], "ab"),
        (["--reverse"], "edcba"),
        (["--limit", 2], "ab"),
        (["--limit", 0], ""),
        (["-r", "-n", 2], "ed"),
        (["--sort", "elements", "-r"], "edcba"),
        (["--sort", "name"], "cdeba"),
        (["--sort", "created", "-n", 3], "abc"),
        (["--sort", "updated"], "deabc"),
        (["--sort", "commits", "-n", 2], "de"),
        (["--sort", "elements", "-n", 1, "-r", "--label", "team"], "b"),
    ],
)
def test_which_sessions_and_in_which_order(stored: Path, options: list[Any], expected: str) -> None:
    assert ids(stored, *options) == expected
    assert "".join(row["session"] for row in objects(call("ls", stored, "--json", *options).stdout_bytes)) == expected
    long = call("ls", stored, "-l", *options).stdout.splitlines()
    assert "".join(row.split("\t")[0] for row in long) == expected


def test_options_that_mean_nothing_are_refused(stored: Path) -> None:
    for options in (
        ["--created-since", "yesterday"],
        ["--updated-until", "2025-13-01"],
        ["--min-bytes", "-1"],
        ["--sort", "size"],
        ["--limit", "few"],
    ):
        result = call("ls", stored, *options)
        assert result.exit_code == 2 and "Error" in result.stderr


def test_times_as_users_give_them() -> None:
    def given(text: str | None) -> int | None:
        return moment_given(None, None, text)  # type: ignore[arg-type]

    assert given(None) is None
    assert given("-5") == -5
    assert given("1764547200000") == given("2025-12-01") == given("2025-12-01T00:00Z") == START
    assert given("2025-12-01T00:00:00.25+00:00") == START + 250


def test_a_list_of_many_sessions_is_the_same_with_and_without_an_index(store_path: Path) -> None:
    with Store.open(store_path) as store:
        for number in range(70):
            with store.session(f"s{number:02}") as session:
                session.commit([MESSAGES.append(number)])
    assert (store_path / INDEX_DIR).exists()
    with_index = call("ls", store_path, "-l").stdout
    assert call("index", "discard", store_path).stdout == "removed\n"
    assert not any((store_path / INDEX_DIR).glob("*.mdb"))
    assert call("ls", store_path, "-l").stdout == with_index
    assert len(with_index.splitlines()) == 70


def test_a_list_into_a_pipe_that_is_closed_is_quiet(store_path: Path) -> None:
    with Store.open(store_path) as store:
        for number in range(300):
            with store.session(f"{number:03}" + "x" * 170) as session:
                session.describe(labels={"text": "y" * 400})
    with started("ls", store_path, "-l") as (running, _, stdout, stderr):
        stdout.readline()
        stdout.close()
        assert stderr.read() == b""
        assert running.wait(timeout=60) == 141


@pytest.mark.damages
def test_a_damaged_session_is_named_where_it_is_met(stored: Path) -> None:
    main = stored / "b.session" / "main.zst"
    flip(main, 40)  # its header
    assert ids(stored) == "abcde"
    result = call("ls", stored, "-l")
    refused(result, 2, str(main))
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == list("acde")
    flip(stored / "d.session" / "main.zst", 40)
    result = call("ls", stored, "--min-elements", 0)
    assert result.exit_code == 2 and result.stdout.split() == list("ace")
    assert f"note: {stored / 'd.session' / 'main.zst'}: " in result.stderr


# --- stat -------------------------------------------------------------------------------------------


def test_stat_tells_sizes_counts_and_the_index(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        for number in range(3):
            session.commit([MESSAGES.append(number), MESSAGES.append(number)])
        session.append(MESSAGES, "a window")
        session.append(MESSAGES, "of two")
        session.flush()
        session.describe(name="stat me")
        session.commit([ephemeral("op-1").list_of("n", "k").append("x" * 500)])
        session.commit([ephemeral("op-2").value("n", "k").set(1)])
    [found] = objects(call("stat", store_path, "s", "--json").stdout_bytes)
    assert (found["name"], found["labels"], found["scopes"]) == ("stat me", {}, ["op-1", "op-2"])
    assert (found["frames"], found["commits"], found["elements"], found["syncs"]) == (5, 5, 8, 5)
    sizes = found["scope_bytes"]
    assert sizes.keys() == {"op-1", "op-2"}
    assert found["log_bytes"] == found["main_bytes"] + sum(sizes.values())
    assert found["main_bytes"] == (store_path / "s.session" / "main.zst").stat().st_size
    assert (found["index_covers"], found["index_behind"]) == (0, found["main_bytes"])
    plain = dict(line.split("\t") for line in call("stat", store_path, "s").stdout.splitlines())
    assert plain["name"] == "stat me" and plain["scopes"] == "op-1 op-2" and plain["elements"] == "8"
    assert plain["updated"].endswith("Z") and json.loads(plain["scope_bytes"]) == sizes
    [whole] = objects(call("stat", store_path, "--json").stdout_bytes)
    assert whole["sessions"] == [found]
    assert whole["index"]["present"] is False
    [row] = call("stat", store_path).stdout.splitlines()
    assert row.split("\t")[5:7] == ["5", "8"]


# --- describe ---------------------------------------------------------------------------------------


def test_describe_changes_what_is_mentioned(store_path: Path) -> None:
    fill(store_path, 1)

    def told() -> tuple[str | None, dict[str, Any]]:
        [row] = objects(call("ls", store_path, "-l", "--json").stdout_bytes)
        return row["name"], row["labels"]

    def describe(*options: str) -> None:
        result = call("describe", store_path, "s", *options)
        assert result.exit_code == 0, result.output

    describe("--name", "a name", "--label", "team=x", "--label", "n=2", "--label", "t=a=b")
    assert told() == ("a name", {"team": "x", "n": 2, "t": "a=b"})
    describe("--unlabel", "team", "--unlabel", "absent", "--label", 'n="2"')
    assert told() == ("a name", {"n": "2", "t": "a=b"})
    describe("--no-name")
    assert told() == (None, {"n": "2", "t": "a=b"})
    for options in ([], ["--name", "a", "--no-name"], ["--label", "no value"], ["--name", ""]):
        assert call("describe", store_path, "s", *options).exit_code == 2
    refused(call("describe", store_path, "nobody", "--name", "a"), 2, "there is no session")
    refused(call("describe", store_path / "nowhere", "s", "--name", "a"), 2, "is not a scopelog store")
    assert told() == (None, {"n": "2", "t": "a=b"})


# --- index ------------------------------------------------------------------------------------------


def long_session(path: Path, session_id: str) -> None:
    with Store.open(path) as store, store.session(session_id) as session:
        for number in range(60):
            session.commit([MESSAGES.append({"n": number, "text": os.urandom(2000).hex()})])


def test_an_index_is_made_on_demand(store_path: Path) -> None:
    for session_id in ("long", "other"):
        long_session(store_path, session_id)
    fill(store_path, 1, session="short")
    assert not (store_path / INDEX_DIR).exists()
    [before] = objects(call("index", "stat", store_path, "--json").stdout_bytes)
    assert before["present"] is False and before["entries"] == before["sessions"] == 0

    result = call("index", "rebuild", store_path, "--json")
    assert result.exit_code == 0, result.output
    *each, last = objects(result.stdout_bytes)
    assert [row["session"] for row in each] == ["long", "other", "short"]
    assert each[0]["bytes"] > each[0]["covered_bytes"] > 64 * 1024 and each[2]["covered_bytes"] == 0
    assert last["done"] is True and last["log_bytes"] == sum(row["bytes"] for row in each)
    assert last["index"]["present"] is True
    assert (last["index"]["sessions"], last["index"]["entries"]) == (2, 3)
    assert last["index"]["covered_bytes"] == sum(row["covered_bytes"] for row in each)

    [found] = objects(call("stat", store_path, "long", "--json").stdout_bytes)
    assert found["index_covers"] == each[0]["covered_bytes"]
    assert found["index_covers"] + found["index_behind"] == found["main_bytes"]

    plain = call("index", "rebuild", store_path, "long", "short")
    assert plain.exit_code == 0
    first, second = plain.stdout.splitlines()
    assert first.startswith("long: ") and second.startswith("2 sessions, ")
    rows = dict(line.split("\t") for line in call("index", "stat", store_path).stdout.splitlines())
    assert (rows["sessions"], rows["entries"], rows["dropped"]) == ("2", "3", "")

    assert call("index", "discard", store_path).exit_code == 0
    assert objects(call("index", "stat", store_path, "--json").stdout_bytes)[0]["present"] is False
    assert ids(store_path) == "longothershort"


def test_an_index_of_what_is_not_there(store_path: Path) -> None:
    for command in (["rebuild"], ["stat"], ["discard"]):
        refused(call("index", *command, store_path), 2, "is not a scopelog store")
    fill(store_path, 1)
    refused(call("index", "rebuild", store_path, "s", "nobody"), 2, "there is no session")
    refused(call("index", "rebuild", store_path, ""), 2, "the session id is empty")
    assert call("index", "discard", store_path).exit_code == 0


@pytest.mark.damages
def test_a_damaged_session_does_not_keep_the_others_from_the_index(store_path: Path) -> None:
    for session_id in ("a", "b", "c"):
        long_session(store_path, session_id)
    flip(store_path / "b.session" / "main.zst", 40)
    result = call("index", "rebuild", store_path, "--json")
    refused(result, 2, "b.session")
    *each, last = objects(result.stdout_bytes)
    assert [row["session"] for row in each] == ["a", "c"]
    assert (last["index"]["sessions"], last["index"]["entries"]) == (2, 2)
