"""The command line where something cannot be read: that is neither damage nor silence, and it costs no certainty."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .children import child
from .cli_rig import call, fill, flip, refused
from .unprivileged import drop_powers, owned_by_nobody


@pytest.fixture
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with the sessions a and b, of an unprivileged user where the tests run as root."""

    def build(base: Path) -> Path:
        path = base / "store"
        for session in ("a", "b"):
            fill(path, 1, 2, session=session)
        return path

    with owned_by_nobody(tmp_path_factory.mktemp("unread"), build) as path:
        yield path


def seen(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command without root's powers."""

    def run() -> str:
        drop_powers()
        result = call(*arguments)
        return json.dumps([result.exit_code, result.stdout, result.stderr])

    with child(run) as answer:
        code, out, err = json.loads(answer)
        return code, out, err


def test_ls_and_stat_name_a_session_that_cannot_be_read(private: Path) -> None:
    (private / "a.session").chmod(0)
    code, out, err = seen("ls", private)
    assert (code, out) == (3, "b\n")
    assert f"note: {private / 'a.session'} could not be read" in err
    assert "error: 1 session could not be read\nhint: " in err
    code, out, err = seen("stat", private, "--json")
    assert code == 3
    assert [row["session"] for row in json.loads(out)["sessions"]] == ["b"]
    assert str(private / "a.session") in err


@pytest.mark.parametrize("part", ["a.session", "a.session/main.zst"])
def test_check_does_not_take_a_refusal_to_read_for_corruption(part: str, private: Path) -> None:
    (private / part).chmod(0)
    code, out, _ = seen("check", private, "--json")
    report = json.loads(out)
    assert (code, report["status"], report["verdict"]) == (3, 3, "unread")
    assert [(one["severity"], one["reason"]) for one in report["findings"]] == [("unread", "read")]
    code, out, _ = seen("check", private)
    assert code == 3
    assert out.startswith(f"unread: {private / part}: read: ") and out.endswith("\nunread\n")


@pytest.mark.damages
def test_check_reports_corruption_whatever_else_cannot_be_read(private: Path) -> None:
    (private / "a.session").chmod(0)
    main = private / "b.session" / "main.zst"
    flip(main, main.stat().st_size - 40)  # in the last batch, which the closing frame proves
    code, out, _ = seen("check", private, "--json")
    assert code == 2
    assert {one["severity"] for one in json.loads(out)["findings"]} == {"unread", "corrupt"}


def test_a_usage_error_of_check_is_no_corruption(store_path: Path) -> None:
    fill(store_path, 1)
    for arguments in ([], ["--bogus", store_path], [store_path, "s", "more"]):
        assert call("check", *arguments).exit_code == 3
        assert call("stat", *arguments).exit_code == 2
    assert call("check", store_path).exit_code == 0


def test_a_store_that_cannot_be_read_is_not_corrupt(private: Path) -> None:
    private.chmod(0)
    assert seen("check", private)[0] == 3


def test_refusals_of_commands_that_make_no_store_do_not_offer_an_empty_one(store_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for command in ("ls", "stat", "check"):
        result = call(command, store_path)
        assert "hint: name the store's directory\n" in result.stderr
        assert call(command, file).exit_code == (3 if command == "check" else 2)
    fill(store_path, 1)
    result = call("cat", store_path, "nobody")
    refused(result, 2, "there is no session")
    assert f"hint: scopelog ls {store_path} lists" in result.stderr


def test_rm_does_not_ask_about_a_session_that_is_not_there(store_path: Path) -> None:
    fill(store_path, 1)
    result = call("rm", store_path, "nobody", stdin="y\n")
    refused(result, 2, "there is no session")
    assert "Remove" not in result.output


def test_evidence_is_a_note_about_a_whole_file(store_path: Path) -> None:
    main = fill(store_path, 1)
    kept = main.with_name("main.zst.000000000123-00000000.torn")
    kept.write_bytes(b"cut once")
    assert call("check", store_path).stdout == f"note: {kept}: kept: evidence kept by an earlier recovery\nsound\n"
