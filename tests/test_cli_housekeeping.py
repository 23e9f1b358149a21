"""compact, tidy, copy and salvage on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from scopelog import Json, Store, ephemeral, list_of, value

from .cli_rig import call, fill, flip, objects, refused

TITLE = value("chat", "title")
OUT = ephemeral("op-1").list_of("op", "out")


def elements(path: Path, name: str = "s") -> list[Json]:
    with Store.open(path) as store, store.reader(name) as reader:
        return [element.element for element in reader.read(list_of("record", "lines"))]


@pytest.fixture
def stored(store_path: Path) -> Path:
    """Sessions ``s`` and ``t`` with much that is void, and a living scope in ``s``."""
    for name in "st":
        fill(store_path, 1, 2, 3, session=name)
        with Store.open(store_path) as store, store.session(name) as session:
            for n in range(50):
                session.commit([TITLE.set(f"title {n}" * 10)])
            if name == "s":
                session.commit([OUT.append(n) for n in range(100)])
                session.commit([OUT.trim(session.read(OUT)[-2].seq)])
    return store_path


def test_a_store_is_compacted(stored: Path) -> None:
    before = elements(stored)
    result = call("compact", stored, "--json")
    assert result.exit_code == 0, result.stderr
    logs = objects(result.stdout_bytes)
    assert [(log["session"], log["scope"]) for log in logs] == [("s", None), ("s", "op-1"), ("t", None)]
    assert all(0 < log["after"] < log["before"] for log in logs)
    again = call("compact", stored, "s")
    assert again.exit_code == 0
    main, scope, total = again.stdout.splitlines()
    assert main.startswith("s: ") and scope.startswith("s scope op-1: ") and total.endswith("given back")
    assert elements(stored) == before
    with Store.open(stored) as store, store.reader("s") as reader:
        assert [e.element for e in reader.read(OUT)] == [99]
    assert call("check", stored, "--deep").exit_code == 0


@pytest.mark.damages
def test_one_that_is_in_use_or_damaged_does_not_stop_the_others(stored: Path) -> None:
    with Store.open(stored) as store, store.session("s"):
        result = call("compact", stored, "--json")
        refused(result, 4, "is held by process")
        assert [log["session"] for log in objects(result.stdout_bytes)] == ["t"]
        refused(call("compact", stored, "s"), 4, "is held by process")
    refused(call("compact", stored, "nobody"), 2, "no session 'nobody'")
    flip(stored / "t.session" / "main.zst", 300)
    result = call("compact", stored)
    assert result.exit_code == 2 and "s: " in result.stdout


@pytest.mark.damages
def test_evidence_is_removed(stored: Path) -> None:
    main = stored / "s.session" / "main.zst"
    main.write_bytes(main.read_bytes() + b"torn")
    with Store.open(stored) as store:
        store.session("s").close()
    assert "kept" in call("check", stored).stdout
    declined = call("tidy", stored, stdin="n\n")
    assert declined.exit_code == 1 and list(stored.rglob("*.torn"))
    result = call("tidy", stored, "--yes", "--json")
    (removed,) = objects(result.stdout_bytes)
    assert removed["session"] == "s" and removed["path"].endswith(".torn") and not list(stored.rglob("*.torn"))
    assert call("tidy", stored, "s", "--yes").stdout == "0 files removed\n"
    refused(call("tidy", stored, "nobody", "--yes"), 2, "no session 'nobody'")
    with Store.open(stored) as store, store.session("s"):
        refused(call("tidy", stored, "--yes"), 4, "is held by process")


def test_a_session_is_copied(stored: Path) -> None:
    result = call("copy", stored, "s", "new")
    assert result.exit_code == 0 and result.stdout.startswith("new: copied up to sequence ")
    assert elements(stored, "new") == elements(stored, "s")
    with Store.open(stored) as store, store.reader("s") as reader:
        seqs = [element.seq for element in reader.read(list_of("record", "lines"))]
    assert call("copy", stored, "s", "early", "--upto", seqs[1]).exit_code == 0
    assert elements(stored, "early") == elements(stored, "s")[:2]
    (told,) = objects(call("copy", stored, "s", "third", "--json").stdout_bytes)
    assert told["new"] == "third" and told["upto"] > seqs[1]
    refused(call("copy", stored, "s", "new"), 2, "a session 'new' already")
    refused(call("copy", stored, "s", "late", "--upto", 10**9), 2, "cannot be copied up to")
    refused(call("copy", stored, "nobody", "new2"), 2, "no session 'nobody'")


@pytest.mark.damages
def test_what_verifies_is_salvaged(stored: Path, tmp_path: Path) -> None:
    """Told first, then made; in this store or another; and what is missing is told, as text and as JSON."""
    sound = call("salvage", stored, "s")
    assert sound.exit_code == 0 and sound.stdout.splitlines()[-1] == "nothing is missing"
    main = stored / "s.session" / "main.zst"
    flip(main, 400)
    before = main.read_bytes()
    told = call("salvage", stored, "s", "--json")
    (report,) = objects(told.stdout_bytes)
    assert told.exit_code == 0 and report["new"] is None and len(report["missing"]) == 1
    made = call("salvage", stored, "s", "s2")
    lines = made.stdout.splitlines()
    assert "main log" in lines[0] and "scope op-1" in lines[1]
    assert lines[2].startswith(f"missing: {main}: ") and ": checksum: " in lines[2] and lines[2].endswith("(damage)")
    assert lines[3].startswith(f"unnamed: {main}: 49 writes to a value are under scopelog.salvaged/")
    assert lines[-1] == f"s2: salvaged up to sequence {report['last']}; something is missing or in doubt"
    refused(call("salvage", stored, "s", "--into", tmp_path / "third"), 2, "--into needs NEW")
    assert not (tmp_path / "third").exists()
    assert main.read_bytes() == before
    assert elements(stored, "s2") == [1, 2, 3]
    refused(call("salvage", stored, "s", "s2"), 2, "there is a session 's2' already")
    refused(call("salvage", stored, "nobody", "x"), 2, "no session 'nobody'")
    assert call("salvage", stored, "s", "s", "--into", tmp_path / "other").exit_code == 0
    assert elements(tmp_path / "other") == [1, 2, 3]
    assert call("check", stored, "s2", "--deep").exit_code == 0
