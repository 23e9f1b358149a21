"""The mutants themselves: each still finds what it replaces, its tests are there, and the tool tells one that is caught
from one that is not. ``make mutants`` runs them all."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fuzz.matrix import ROWS
from fuzz.mutants import MUTANTS, NINE, Edit, Rotten, run
from fuzz.mutants.mutant import ROOT
from fuzz.mutants.run import ORDINARY, Ran, main, try_mutant
from scopelog import Durability, ManualClock, Store, ephemeral, list_of, value

CHAT = list_of("chat", "messages")
STATE = value("chat", "state")


def test_an_ordinary_life(store_path: Path) -> None:
    """What every mutant must get through, for one that fails here would be caught by any test: nothing goes wrong, and
    nothing is looked at twice."""
    clock = ManualClock()
    scope = ephemeral("op-1")
    text = scope.list_of("op", "text")
    with Store.open(store_path, clock=clock) as store:
        with store.session("s") as session:
            session.commit([CHAT.append({"n": 1}), STATE.set("busy")])
            session.append(text, "a window")
            session.append(CHAT, {"n": 2}, tag="t")
            clock.advance(0.2)
            session.commit([text.append("a commit")])
            session.commit([CHAT.append({"n": 3})])
            session.flush(Durability.POWER)
            assert [e.element for e in session.read(text)] == ["a window", "a commit"]
        with store.session("s") as session:
            assert session.scopes() == ["op-1"] and not session.recovery
            session.commit([STATE.set("idle"), scope.retire()])
            session.compact()
            session.commit([CHAT.append({"n": 4})])
            session.append(text, "a new life")
            session.flush()
        with store.reader("s") as reader:
            assert [e.element["n"] for e in reader.read(CHAT)] == [1, 2, 3, 4]
            assert [e.element for e in reader.read(text)] == ["a new life"]
            assert reader.get(STATE) == "idle"
        store.delete_session("s")
        assert store.sessions() == []


def test_every_mutant_finds_what_it_replaces() -> None:
    for name, mutant in MUTANTS.items():
        assert name == mutant.name and mutant.changed()
        assert mutant.breaks.endswith(".") and mutant.rule and mutant.tests


def test_there_is_one_for_each_that_must_be_there_and_for_each_row() -> None:
    assert len(NINE) == 9
    assert all(name in MUTANTS for names in NINE.values() for name in names)
    assert {row for mutant in MUTANTS.values() for row in mutant.rows} == set(ROWS)


@cache
def _functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_tests_they_name_are_there() -> None:
    """With which parameters is told by the tool, which runs them all before any mutant."""
    for test in {ORDINARY, *(test for mutant in MUTANTS.values() for test in mutant.tests)}:
        path, _, name = test.partition("::")
        assert name.partition("[")[0] in _functions(path), test


def test_a_mutant_whose_text_is_gone_has_rotted(tmp_path: Path) -> None:
    (one, *_) = MUTANTS.values()
    for edit in (
        Edit("frame.py", "no such text", ""),
        Edit("frame.py", "return", "pass"),
        Edit("frame.py", "def follows(", "def follows(("),
        Edit("nowhere.py", "", ""),
    ):
        rotten = replace(one, edits=(edit,))
        with pytest.raises(Rotten, match=one.name):
            rotten.changed()
        assert "ROTTED" in try_mutant(rotten, ROOT, tmp_path / "nothing").trouble
        assert not (tmp_path / "nothing").exists()


def test_one_is_run_and_caught(tmp_path: Path) -> None:
    """The working tree is left alone: this very process goes on with the engine as it is."""
    mutant = MUTANTS["epoch-may-fall"]
    caught = replace(mutant, tests=("tests/test_codecs.py::test_what_continues_a_chain",))
    before = {path: (ROOT / path).read_bytes() for path in caught.changed()}
    result = try_mutant(caught, ROOT, tmp_path / "copy")
    assert not result.trouble and result.caught_by == caught.tests, result.output
    assert before == {path: (ROOT / path).read_bytes() for path in before}
    assert all((tmp_path / "copy" / path).read_text("utf-8") == text for path, text in caught.changed().items())


@pytest.mark.parametrize(
    ("status", "failed", "trouble"),
    [
        (1, {"a.py::one": "E", "b.py::two[x y]": "E", "c.py::three": "E"}, ""),
        (0, {}, "SURVIVED a.py::one, b.py::two"),
        (1, {"a.py::one": "E", "b.py::two_and_a_half": "E"}, "SURVIVED b.py::two"),
        (1, {"a.py::one": "E", "b.py::two": "Failed: Timeout (>60.0s) from pytest-timeout."}, "HANGS"),
        (1, {ORDINARY: "E", "a.py::one": "E", "b.py::two": "E"}, "IS NO MUTANT"),
        (4, {"a.py::one": "E", "b.py::two": "E"}, "NOTHING RAN"),
        (-9, {}, "NOTHING RAN"),
    ],
)
def test_what_counts_as_caught(
    status: int, failed: dict[str, str], trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only tests that fail, each of those that are named, on an engine that otherwise works."""
    mutant = replace(MUTANTS["epoch-may-fall"], tests=("a.py::one", "b.py::two"))
    monkeypatch.setattr(run, "plant", lambda *_: None)
    monkeypatch.setattr(run, "run_tests", lambda *_: Ran(status, "", failed))
    for hangs in (False, True):
        result = try_mutant(replace(mutant, hangs=hangs), ROOT, tmp_path)
        assert result.trouble.startswith(trouble) if not (hangs and trouble == "HANGS") else not result.trouble
        assert bool(result.trouble) == bool(trouble) or (hangs and trouble == "HANGS")


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "no-sync"]) == 0
    told = capsys.readouterr().out
    assert "no-sync (F7, I1; rows: 3, 11)" in told and "tests/test_crash_points.py" in told
    with pytest.raises(SystemExit):
        main(["no such mutant"])
    assert "no such mutant" in capsys.readouterr().err
