"""recover: what was interrupted, for people and as JSON, without the lock and without a change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scopelog import Session, Store
from scopelog.cli import interrupted, output
from scopelog.clients.messages import Lane, Operation, fold
from scopelog.clients.messages.places import assistant_output

from .cli_rig import call, fill, flip, objects, refused
from .messages_rig import START, TEXT, call_start, delta
from .streams_rig import interrupted as found

THINKING = {"type": "thinking_start", "contentIndex": 1, "content": {"type": "thinking", "thinking": ""}}
FRAMES: list[Any] = [
    START,
    TEXT,
    delta("One line,\n\tand \x1b[31mhalf\u202e a wor\ud800", 0, "text"),
    THINKING,
    delta("Hm.\r\n", 1, "thinking"),
    {"type": "thinking_end", "contentIndex": 1, "content": "Hm.\r\n"},
    {**call_start(), "contentIndex": 2},
    delta('{"command": "ls \\u001b]', 2),
]


def interrupt(session: Session, operation: str = "op", lane: str = "main", frames: list[Any] = FRAMES) -> Operation:
    """An operation that is begun, streams, and is left behind."""
    begun = Lane(session, lane).begin(operation)
    response = begun.response(f"{operation}.1")
    for frame in frames:
        response.take(frame)
    return begun


def contents(store: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in store.rglob("*") if path.is_file()}


def test_a_message_is_shown_as_far_as_it_came(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        operation = interrupt(session)
        tool = operation.tool("c")
        tool.write("".join(f"line {n}\n" for n in range(1, 26)) + "\x07par")
    before = contents(store_path)
    result = call("recover", store_path)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == (
        "s: operation op, lane main, entry op.1\n"
        "  text (unfinished)\n"
        "    One line,\n"
        "        and \\u001b[31mhalf\\u202e a wor\\ud800\n"
        "  thinking\n"
        "    Hm.\\u000d\n"
        "  tool call c: bash (unfinished)\n"
        '    {"command":"ls \\u001b]"}\n'
        "  output of tool call c (unfinished), the last 10 of 26 lines\n"
        + "".join(f"    line {n}\n" for n in range(17, 26))
        + "    \\u0007par\n"
    )
    assert call("recover", store_path, "s").stdout == result.stdout
    assert contents(store_path) == before


def test_json_says_what_the_library_says(store_path: Path) -> None:
    with Store.open(store_path) as store:
        for name in ("s", "t"):
            with store.session(name) as session:
                interrupt(session)
                interrupt(session, "other", "side", [START])
    lines = objects(call("recover", store_path, "--json").stdout_bytes)
    assert [(line["session"], line["operation"], line["lane"]) for line in lines] == [
        (name, *where) for name in ("s", "t") for where in (("op", "main"), ("other", "side"))
    ]
    for line in lines:
        (expected,) = (one for one in found(store_path, line["session"]) if one.id == line["operation"])
        assert line == {"session": line["session"], **json.loads(json.dumps(expected.as_json()))}
    assert lines[0]["response"]["fold"] == fold(FRAMES)
    assert objects(call("recover", store_path, "t", "--json").stdout_bytes) == lines[2:]


def test_numbers_that_json_does_not_know_are_null_in_json(store_path: Path) -> None:
    """Of a call that streams the arguments are parsed with them; a lone surrogate takes the slow way to JSON."""
    frames = [START, call_start(), delta('{"a": "\ud800", "b": [-Infinity, NaN')]
    with Store.open(store_path) as store, store.session("s") as session:
        interrupt(session, frames=frames)
    (line,) = call("recover", store_path, "--json").stdout.splitlines()
    read = json.loads(line, parse_constant=pytest.fail)
    assert read["response"]["fold"]["content"][0]["arguments"]["b"] == [None, None]


def test_it_works_beside_a_writer(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        operation = interrupt(session)
        session.flush()
        assert objects(call("recover", store_path, "--json").stdout_bytes)[0]["response"]["fold"] == fold(FRAMES)
        operation.end()
        assert call("recover", store_path).stdout == "nothing to recover\n"
        assert call("recover", store_path, "--json").stdout == ""


def test_an_operation_without_a_message(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        begun = Lane(session).begin("op")
        response = begun.response("first")
        response.take(START)
        response.settle({"role": "assistant", "content": []})
    assert call("recover", store_path).stdout == (
        "s: operation op, lane main\n  1 message of it had settled\n  no message was streaming\n"
    )
    with Store.open(store_path) as store, store.session("t") as session:
        interrupt(session, frames=[START])
    assert call("recover", store_path, "t").stdout == (
        "t: operation op, lane main, entry op.1\n  nothing of the message had come\n"
    )


def test_on_a_terminal_nothing_is_acted_on(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Styles are escapes of our own; those of the message are spelled out, markup of rich's included."""
    with Store.open(store_path) as store, store.session("s") as session:
        interrupt(session, frames=[START, TEXT, delta("[red]\x1b[2J", kind="text")])
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    interrupted.recover(str(store_path), None, as_json=False)
    shown = capfd.readouterr().out
    assert "\x1b[1ms: operation op" in shown
    assert "[red]\\u001b[2J" in shown and "\x1b[2J" not in shown


def test_what_is_not_there_is_refused(store_path: Path) -> None:
    refused(call("recover", store_path), 2, "is not a scopelog store")
    assert not store_path.exists()
    fill(store_path, 1)
    assert call("recover", store_path).stdout == "nothing to recover\n"
    refused(call("recover", store_path, "other"), 2, "there is no session 'other'")


def test_a_stream_that_cannot_be_read_is_a_problem_of_its_own(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        interrupt(session, frames=[START, TEXT])
        broken = interrupt(session, "broken", "side")
        session.append(assistant_output("broken", "broken.1"), "no batch")
        assert broken.id == "broken"
    for option in ((), ("--json",)):
        result = call("recover", store_path, *option)
        refused(result, 2, "")
        assert "op.1" in result.stdout and "broken" in result.stdout
    found = objects(call("recover", store_path, "--json").stdout_bytes)
    assert [bool(one["problems"]) for one in found] == [False, True]
    assert "problem: " in call("recover", store_path).stdout


@pytest.mark.damages
def test_a_damaged_session_does_not_hide_the_others(store_path: Path) -> None:
    main = fill(store_path, 1, session="a")
    with Store.open(store_path) as store, store.session("s") as session:
        interrupt(session)
    fill(store_path, 1, session="t")
    for path in (main, store_path / "t.session" / "main.zst"):
        flip(path, 40)  # its header
    result = call("recover", store_path)
    refused(result, 2, str(main))
    assert "s: operation op" in result.stdout
    assert f"note: {store_path / 't.session' / 'main.zst'}" in result.stderr
    refused(call("recover", store_path, "a"), 2, str(main))


@pytest.mark.damages
def test_what_could_not_be_read_is_said(store_path: Path) -> None:
    main = fill(store_path, *range(20))
    assert call("recover", store_path).stderr == ""
    flip(main, main.stat().st_size - 40)  # in the last batch before the closing frame
    result = call("recover", store_path)
    assert result.exit_code == 0 and "could not be read" in result.stderr
