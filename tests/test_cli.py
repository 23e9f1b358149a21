"""The command line: what each command shows, plain and as JSON, its exit codes, and what it says when it refuses."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from scopelog import Durability, Store, ephemeral, list_of, value
from scopelog.cli.reference import reference

from .cli_rig import COMMAND, call, elements, fill, flip, lines_file, objects, refused, spawn, started

REFERENCE = Path(__file__).resolve().parents[1] / "scopes" / "CLI.md"


# --- record and cat -------------------------------------------------------------------------------


def test_lines_of_a_file_come_back_in_order(store_path: Path, tmp_path: Path) -> None:
    file = lines_file(tmp_path, b'{"a":1}', b"", b" [2] \r", b"null", b'"no newline at the end"')
    result = call("record", store_path, "s", file)
    assert result.exit_code == 0
    assert result.stdout.startswith("4 lines read, 4 written (sequence 4); ")
    assert elements(store_path) == [{"a": 1}, [2], None, "no newline at the end"]


def test_elements_that_other_tools_lose_survive(store_path: Path, tmp_path: Path) -> None:
    texts = [
        rb'"\ud800"',
        rb'{"\udfff":"a\u0000b"}',
        rb'{"__proto__":1}',
        b'"\xe2\x80\xa8 \xc2\x85"',
        b"1" * 60,
        b"-0.0",
        b"1e300",
    ]
    assert call("record", store_path, "s", lines_file(tmp_path, *texts)).exit_code == 0
    output = call("cat", store_path, "s", "--json").stdout_bytes
    assert len(output.decode("utf-8").splitlines()) == len(texts)  # also for readers that end lines at U+2028
    assert [repr(record["element"]) for record in objects(output)] == [repr(json.loads(text)) for text in texts]


def test_a_record_of_every_operation(store_path: Path) -> None:
    scope = ephemeral("op/1")
    with Store.open(store_path, scope_durability=Durability.POWER) as store, store.session("s") as session:
        session.commit(
            [list_of("n", "l").append({"x": 1}, tag="t"), value("n", "v").set([2]), value("n", "v").delete()]
        )
        session.commit([list_of("n", "l").trim(1), ephemeral("gone").retire()])
        session.commit([scope.list_of("n", "").append("in the scope")])
    records = objects(call("cat", store_path, "s", "--json").stdout_bytes)
    times = [record.pop("time") for record in records]
    assert times == sorted(times) and times[0] > 1_600_000_000_000
    main = {"scope": None, "namespace": "n"}
    nowhere = {"scope": None, "namespace": None, "key": None, "kind": None}
    assert records == [
        {"seq": 1, **main, "key": "l", "kind": "list", "op": "append", "element": {"x": 1}, "tag": "t"},
        {"seq": 2, **main, "key": "v", "kind": "value", "op": "set", "value": [2]},
        {"seq": 3, **main, "key": "v", "kind": "value", "op": "delete"},
        {"seq": 4, **main, "key": "l", "kind": "list", "op": "trim", "upto": 1},
        {"seq": 5, **nowhere, "op": "retire", "retired": "gone"},
        {
            "seq": 6,
            "scope": "op/1",
            "namespace": "n",
            "key": "",
            "kind": "list",
            "op": "append",
            "element": "in the scope",
        },
    ]
    plain = call("cat", store_path, "s").stdout.splitlines()
    assert [int(line.split()[0]) for line in plain] == [1, 2, 3, 4, 5, 6]
    assert plain[0].endswith('-  append [t] n/l  {"x":1}')
    assert plain[3].endswith("-  trim n/l  up to 1")
    assert plain[4].endswith("-  retire gone")


def test_cat_of_one_scope_and_of_one_list(store_path: Path, tmp_path: Path) -> None:
    file = lines_file(tmp_path, b"1", b"2")
    assert call("record", store_path, "s", file).exit_code == 0
    assert call("record", store_path, "s", file, "--scope", "op", "--list", "chat/parts", "--window", 0).exit_code == 0
    assert call("record", store_path, "s", file, "--list", "other").exit_code == 0

    def seen(*options: str) -> list[int]:
        return [record["seq"] for record in objects(call("cat", store_path, "s", "--json", *options).stdout_bytes)]

    assert seen() == [1, 2, 3, 4, 5, 6]
    assert seen("--scope", "op") == [3, 4]
    assert seen("--list", "chat/parts") == [3, 4]
    assert seen("--list", "other") == seen("--list", "record/other") == [5, 6]
    assert seen("--scope", "op", "--list", "lines") == []


def test_control_characters_do_not_reach_a_reader_of_plain_text(store_path: Path, tmp_path: Path) -> None:
    file = lines_file(tmp_path, '"\x7f\x9b31m\u202e"'.encode())
    assert call("record", store_path, "s", file).exit_code == 0
    assert call("cat", store_path, "s").stdout.rstrip().endswith(r'"\u007f\u009b31m\u202e"')


def test_cat_into_a_pipe_that_is_closed_is_quiet(store_path: Path, tmp_path: Path) -> None:
    file = lines_file(tmp_path, *([b'"%s"' % (b"x" * 1000)] * 500))
    assert call("record", store_path, "s", file).exit_code == 0
    with started("cat", store_path, "s") as (child, _, stdout, stderr):
        stdout.readline()
        stdout.close()
        assert stderr.read() == b""
        assert child.wait(timeout=60) == 141


# --- refusals -------------------------------------------------------------------------------------


def test_refusals_say_cause_and_remedy(store_path: Path, tmp_path: Path) -> None:
    file = lines_file(tmp_path, b"1")
    for command in ("cat", "rm"):
        refused(call(command, store_path, "s", *(["--yes"] if command == "rm" else [])), 2, "is not a scopelog store")
    for command in ("ls", "stat"):
        refused(call(command, store_path), 2, "is not a scopelog store")
    assert not store_path.exists()
    refused(call("record", tmp_path, "s", file), 2, "is not a scopelog store")
    refused(call("record", store_path, "s", file, "--scope", ""), 2, "the scope id is empty")
    refused(call("record", store_path, "", file), 2, "the session id is empty")
    refused(call("record", store_path, "s", file, "--list", "/key"), 2, "names no list")
    refused(call("cat", store_path, "../s"), 2, "there is no session")
    assert call("record", store_path, "s", tmp_path / "missing").exit_code == 2
    assert call("record", store_path, "s", file, "--window", "-1").exit_code == 2
    assert call("record", store_path, "s", file, "--durability", "hope").exit_code == 2


def test_a_missing_extra_names_what_to_install() -> None:
    for module in ("click", "rich"):
        code = (
            f"import sys; sys.modules[{module!r}] = None; import scopelog; from scopelog.cli import main; main(['ls'])"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
        assert result.returncode == 2
        assert f"needs {module}".encode() in result.stderr
        assert b"hint: run pip install '.[cli]' in a checkout of scopelog" in result.stderr
        assert b"Traceback" not in result.stderr


# --- ls, stat, rm ---------------------------------------------------------------------------------


def test_ls_and_stat(store_path: Path) -> None:
    main = fill(store_path, 1, 2, session="a")
    with Store.open(store_path) as store, store.session("b c") as session:
        session.commit([ephemeral("op").list_of("n", "k").append(1)])
    assert call("ls", store_path).stdout == "a\nb c\n"
    assert objects(call("ls", store_path, "--json").stdout_bytes) == [{"session": "a"}, {"session": "b c"}]
    (found,) = objects(call("stat", store_path, "a", "--json").stdout_bytes)
    assert found["log_bytes"] == found["main_bytes"] == main.stat().st_size
    assert (found["session"], found["last_seq"], found["durable_seq"], found["scopes"]) == ("a", 2, 2, [])
    (whole,) = objects(call("stat", store_path, "--json").stdout_bytes)
    assert [row["session"] for row in whole["sessions"]] == ["a", "b c"]
    assert whole["sessions"][1]["scopes"] == ["op"]
    assert whole["log_bytes"] == sum(row["log_bytes"] for row in whole["sessions"])
    assert [row.split("\t")[0] for row in call("stat", store_path).stdout.splitlines()] == ["a", "b c"]
    assert call("stat", store_path).stdout.splitlines()[0].split("\t")[1:5] == [str(found["log_bytes"]), "0", "0", "2"]
    assert "scopes\top\n" in call("stat", store_path, "b c").stdout


def test_rm_asks_first(store_path: Path) -> None:
    fill(store_path, 1)
    assert call("rm", store_path, "s", stdin="n\n").exit_code == 1
    assert call("ls", store_path).stdout == "s\n"
    assert call("rm", store_path, "s", stdin="y\n").exit_code == 0
    assert call("ls", store_path).stdout == ""
    refused(call("rm", store_path, "s", "--yes"), 2, "there is no session")


# --- check ----------------------------------------------------------------------------------------


def test_check_of_a_sound_store(store_path: Path) -> None:
    fill(store_path, 1, 2, 3)
    result = call("check", store_path)
    assert (result.exit_code, result.stdout) == (0, "sound\n")
    assert objects(call("check", store_path, "s", "--json").stdout_bytes) == [
        {"verdict": "sound", "status": 0, "findings": []}
    ]


def test_check_of_a_torn_tail_and_after_its_repair(store_path: Path, tmp_path: Path) -> None:
    main = fill(store_path, 1, 2)
    end = main.stat().st_size
    with main.open("ab") as file:
        file.write(b"half a frame")
    before = main.read_bytes()
    result = call("check", store_path, "--json")
    assert result.exit_code == 1
    (report,) = objects(result.stdout_bytes)
    (finding,) = report["findings"]
    assert report["verdict"] == finding["severity"] == "torn"
    assert (finding["path"], finding["offset"], finding["sequence"]) == (str(main), end, 2)
    plain = call("check", store_path)
    assert plain.exit_code == 1
    assert f"torn: {main}: offset {end}, after sequence 2" in plain.stdout
    assert main.read_bytes() == before  # check changes nothing

    recorded = call("record", store_path, "s", lines_file(tmp_path, b"3"), "--json")
    assert objects(recorded.stdout_bytes)[-1]["torn_bytes"] == len(b"half a frame")
    assert elements(store_path) == [1, 2, 3]
    again = call("check", store_path, "--json")
    assert again.exit_code == 0  # the evidence that is kept aside is a note, no fault
    assert [finding["severity"] for finding in objects(again.stdout_bytes)[0]["findings"]] == ["note"]


@pytest.mark.damages
def test_check_of_corruption(store_path: Path) -> None:
    main = fill(store_path, 1, 2, 3, 4)
    flip(main, main.stat().st_size - 60)  # in the last batch, which the closing frame proves
    result = call("check", store_path, "--json")
    assert result.exit_code == 2
    (report,) = objects(result.stdout_bytes)
    assert report["verdict"] == "corrupt" and report["status"] == 2
    (finding,) = [finding for finding in report["findings"] if finding["severity"] == "corrupt"]
    assert finding["path"] == str(main) and 0 < finding["offset"] < main.stat().st_size
    assert finding["sequence"] in (2, 3) and finding["reason"]
    assert f"corrupt: {main}: offset {finding['offset']}, after sequence" in call("check", store_path).stdout
    refused(call("record", store_path, "s", REFERENCE), 2, "is damaged at offset")


@pytest.mark.damages
def test_cat_prints_the_good_prefix_of_a_damaged_log(store_path: Path) -> None:
    """Long enough for index frames, so that opening does not meet the damage and reading on from the header does."""
    with Store.open(store_path) as store, store.session("s") as session:
        for _ in range(60):
            session.commit([list_of("record", "lines").append(os.urandom(5000).hex())])
    main = next(store_path.glob("*/main.zst"))
    flip(main, 30_000)
    result = call("cat", store_path, "s", "--json")
    refused(result, 2, "is damaged at offset")
    records = objects(result.stdout_bytes)
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert 1 <= len(records) <= 10


@pytest.mark.damages
def test_check_of_a_damaged_store_file(store_path: Path) -> None:
    fill(store_path, 1)
    flip(store_path / "store.zst", 50)
    result = call("check", store_path, "--json")
    assert result.exit_code == 2
    (finding,) = objects(result.stdout_bytes)[0]["findings"]
    assert finding["path"] == str(store_path / "store.zst")


def test_check_that_cannot_look(store_path: Path) -> None:
    refused(call("check", store_path), 3, "is not a scopelog store")
    fill(store_path, 1)
    refused(call("check", store_path, "nobody"), 3, "there is no session")


# --- terminals and documents ----------------------------------------------------------------------


def on_terminal(*arguments: object, **environment: str) -> bytes:
    """What a command shows on a terminal."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # Linux says so when the last writer has gone
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert child.wait(timeout=60) == 0
    return shown


def test_styles_are_for_terminals(store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    file = lines_file(tmp_path, b'{"a":"[bold]no markup[/bold]"}')
    shown = on_terminal("record", store_path, "s", file, "--scope", "op")
    assert b"\x1b[" in shown and b"1 line read, 1 written" in shown
    shown = on_terminal("cat", store_path, "s")
    assert b"\x1b[36mop" in shown and b'{"a":"[bold]no markup[/bold]"}' in shown
    assert b"\x1b[36m" not in on_terminal("cat", store_path, "s", NO_COLOR="1")
    assert b"last_seq" in on_terminal("stat", store_path)
    assert b"\x1b" not in spawn("cat", store_path, "s", env={**os.environ, "FORCE_COLOR": "1"}).stdout


def test_the_reference_has_not_drifted() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == reference(), "python -m scopelog.cli.reference > scopes/CLI.md"


@pytest.mark.damages
def test_cat_says_what_it_could_not_read(store_path: Path) -> None:
    main = fill(store_path, *range(20))
    assert "note" not in call("cat", store_path, "s").stderr
    flip(main, main.stat().st_size - 40)  # in the last batch before the closing frame
    result = call("cat", store_path, "s")
    assert result.exit_code == 0
    assert "bytes follow that are no whole frame" in result.stderr
    assert call("check", store_path).exit_code == 2
