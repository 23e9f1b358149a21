"""record --from: events and frames through the reducer, settled as each message ends, and whatever ends them."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from scopelog import Durability, Session, Store
from scopelog.cli.streaming import EARLY
from scopelog.clients.messages import Lane, fold

from .cli_rig import call, lines_file, objects, refused, spawn, started
from .conftest import SHARED, shared
from .messages_rig import CALL, START, TEXT, call_start, delta
from .streams_rig import (
    as_lines,
    done,
    events_of,
    folded,
    interrupted,
    left_over,
    messages,
    responses,
    sample,
    settled,
)

FIRST, SECOND = responses(sample())
TEXT_END = {"type": "text_end", "contentIndex": 0, "content": "whole"}
CALL_END = {"type": "toolcall_end", "contentIndex": 0, "id": "c", "name": "bash", "arguments": {}}
STREAMS = sorted((SHARED / "corpus" / "streams").glob("*/*.events.jsonl"))[::12]


def record(store: Path, tmp_path: Path, kind: str, elements: list[Any], *options: object) -> list[dict[str, Any]]:
    """Records well; returns its reports."""
    result = call("record", store, "s", lines_file(tmp_path, *as_lines(elements)), "--json", "--from", kind, *options)
    assert result.exit_code == 0, result.stderr
    return objects(result.stdout_bytes)


def test_frames_settle_at_the_next_start_and_at_the_end(store_path: Path, tmp_path: Path) -> None:
    last = record(store_path, tmp_path, "frames", [None, *sample(), None])[-1]
    assert (last["lines"], last["written"], last["recovered"]) == (len(sample()) + 2, len(sample()) + 2, 0)
    assert messages(store_path) == [folded(FIRST, "toolUse"), folded(SECOND, "stop")]
    first, second = settled(store_path)
    assert [first["entryId"], second["entryId"]] == ["record-1.1", "record-1.2"]
    assert left_over(store_path) == []


def test_the_last_message_and_the_end_of_its_operation_are_one_commit(store_path: Path, tmp_path: Path) -> None:
    """The input ends right after done: there is no moment at which one is stored without the other."""
    for kind, elements in (("events", [*events_of(FIRST), done(FIRST)]), ("frames", FIRST)):
        record(store_path, tmp_path, kind, elements)
        with Store.open(store_path) as store, store.reader("s") as reader:
            *_, append, delete, retire = reader.records()
        assert [append.op, delete.op, retire.op] == ["append", "delete", "retire"]
        assert append.time == delete.time == retire.time
        assert [append.seq + 1, delete.seq + 1] == [delete.seq, retire.seq]


def test_events_settle_with_the_message_that_ends_them(store_path: Path, tmp_path: Path) -> None:
    ends = [done(FIRST), {"type": "error", "reason": "aborted", "error": folded(SECOND, "aborted", errorMessage="no")}]
    reports = record(store_path, tmp_path, "events", [*events_of(FIRST), ends[0], *events_of(SECOND), ends[1]])
    assert reports[-1]["written"] == reports[-1]["lines"] == len(sample()) + 2
    assert messages(store_path) == [ends[0]["message"], ends[1]["error"]]
    assert left_over(store_path) == []


def test_an_error_may_be_all_there_is(store_path: Path, tmp_path: Path) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": [], "stopReason": "error", "x": None}
    assert record(store_path, tmp_path, "events", [{"type": "error", "error": message}])[-1]["written"] == 1
    assert messages(store_path) == [message]
    assert left_over(store_path) == []


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([START, TEXT, TEXT_END], "stop"),
        ([START, call_start(), CALL_END], "toolUse"),
        ([START, TEXT, TEXT_END, {**call_start(), "contentIndex": 1}, {**CALL_END, "contentIndex": 1}], "toolUse"),
        ([{**START, "partial": {**START["partial"], "content": [CALL]}}], "toolUse"),
        ([START, TEXT, delta("whole", kind="text")], "error"),
        ([START, call_start(), delta('{"a":1}')], "error"),
        ([START, TEXT, {**call_start(), "contentIndex": 1}, {**CALL_END, "contentIndex": 1}], "error"),
        ([START], "error"),
    ],
)
@pytest.mark.parametrize("kind", ["events", "frames"])
def test_a_stream_without_an_end_settles_as_what_it_is(
    store_path: Path, tmp_path: Path, kind: str, frames: list[Any], reason: str
) -> None:
    if kind == "events" and frames[0]["partial"]["content"]:
        frames = [START, call_start(), CALL_END]  # an encoder makes no start frame with content
    record(store_path, tmp_path, kind, frames if kind == "frames" else events_of(frames))
    (message,) = messages(store_path)
    assert message == folded(frames, reason, **({"errorMessage": EARLY} if reason == "error" else {}))
    assert left_over(store_path) == []


def test_no_line_begins_no_operation(store_path: Path, tmp_path: Path) -> None:
    for kind, elements in (("events", []), ("frames", [None, None])):
        reports = record(store_path, tmp_path, kind, elements)
        assert (reports[-1]["lines"], reports[-1]["written"]) == (len(elements), 0)
    assert call("cat", store_path, "s").stdout == ""


@pytest.mark.timeout(60)
def test_a_line_without_a_change_counts_with_the_next(store_path: Path) -> None:
    """Standard input stays open, so that nothing but the window can have stored what is reported."""
    options = ("--from", "frames", "--json", "--window", 0)
    with started("record", store_path, "s", *options) as (child, stdin, stdout, _):
        for frames, written in (([START, TEXT], 2), ([delta("", kind="text"), None, delta("a", kind="text")], 5)):
            stdin.write(b"".join(line + b"\n" for line in as_lines(frames)))
            stdin.flush()
            while json.loads(stdout.readline())["written"] < written:
                pass
        (operation,) = interrupted(store_path)  # the session is live: recover takes no lock
        assert operation.response and operation.response.fold == fold([START, TEXT, delta("a", kind="text")])
        stdin.close()
        assert json.loads(stdout.readlines()[-1])["written"] == 5
        assert child.wait(timeout=60) == 0
    assert left_over(store_path) == []


@pytest.mark.timeout(60)
def test_a_message_settles_though_the_input_stays_open(store_path: Path) -> None:
    events = [*events_of(FIRST), done(FIRST)]
    with started("record", store_path, "s", "--from", "events", "--json") as (child, stdin, stdout, _):
        for number in (1, 2):
            stdin.write(b"".join(line + b"\n" for line in as_lines(events)))
            stdin.flush()
            while json.loads(stdout.readline())["written"] < number * len(events):
                pass
            assert messages(store_path) == [events[-1]["message"]] * number
        assert [operation.id for operation in interrupted(store_path)] == ["record-1"]  # a third may follow
        stdin.close()
        assert child.wait(timeout=60) == 0
    assert len(messages(store_path)) == 2
    assert left_over(store_path) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_settles_what_there_is(store_path: Path, number: signal.Signals, code: int) -> None:
    options = ("--from", "frames", "--json", "--window", 20)
    with started("record", store_path, "s", *options) as (child, stdin, stdout, stderr):
        stdin.write(b"".join(line + b"\n" for line in as_lines(SECOND[:40])))
        stdin.flush()
        while json.loads(stdout.readline())["written"] < 40:
            pass
        child.send_signal(number)
        report = json.loads(stdout.readlines()[-1])
        assert stderr.read() == b""
        assert child.wait(timeout=60) == code
    assert (report["stopped"], report["written"]) == (number.name, 40)
    (message,) = messages(store_path)
    assert number.name in message["errorMessage"]
    assert message == folded(SECOND[:40], "error", errorMessage=message["errorMessage"])
    assert left_over(store_path) == []


@pytest.mark.timeout(60)
def test_a_signal_leaves_a_message_that_has_ended_as_it_is(store_path: Path) -> None:
    with started("record", store_path, "s", "--from", "events", "--json") as (child, stdin, stdout, _):
        stdin.write(b"".join(line + b"\n" for line in as_lines([*events_of(FIRST), done(FIRST)])))
        stdin.flush()
        while json.loads(stdout.readline())["written"] < len(FIRST) + 1:
            pass
        child.terminate()
        stdout.read()
        assert child.wait(timeout=60) == 143
    assert messages(store_path) == [done(FIRST)["message"]]
    assert left_over(store_path) == []


OPEN = [START, TEXT, delta("kept", kind="text")]


@pytest.mark.parametrize(
    ("kind", "bad", "cause"),
    [
        ("frames", b'{"secret":', "line 4 is not JSON"),
        ("frames", b"[]", "line 4 was refused: the frame is a list"),
        ("frames", as_lines([delta("secret", 3, "text")])[0], "line 4 was refused: text_delta is about index 3"),
        ("frames", as_lines([delta(1, kind="text")])[0], "line 4 was refused: the delta of text_delta"),
        ("events", b"null", "line 4 was refused: the event is a NoneType"),
        ("events", as_lines([events_of([START])[0]])[0], "line 4 was refused: the stream has more than one start"),
        ("events", b'{"type":"text_end","contentIndex":0,"content":"secret"}', "line 4 was refused: the partial of"),
        ("events", b'{"type":"done","message":"secret"}', "line 4 was refused: the message of done is no message"),
        ("events", b'{"type":"error"}', "line 4 was refused: the error of error is no message"),
    ],
)
def test_a_line_that_is_refused_settles_what_came_before(
    store_path: Path, tmp_path: Path, kind: str, bad: bytes, cause: str
) -> None:
    lines = as_lines(OPEN if kind == "frames" else events_of(OPEN))
    file = lines_file(tmp_path, *lines, bad, *lines)
    result = call("record", store_path, "s", file, "--from", kind, "--json")
    refused(result, 2, cause)
    report = objects(result.stdout_bytes)[-1]
    assert (report["stopped"], report["lines"], report["written"]) == ("error", 3, 3)
    (message,) = messages(store_path)
    assert "line 4" in message["errorMessage"] and "secret" not in json.dumps(message) + result.stderr
    assert message == folded(OPEN, "error", errorMessage=message["errorMessage"])
    assert left_over(store_path) == []


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("frames", TEXT),
        ("frames", {"type": "start", "partial": []}),
        ("frames", 1),
        ("events", {**TEXT, "partial": {}}),
        ("events", {"type": "done", "message": {}}),
    ],
)
def test_a_first_line_that_is_refused_leaves_nothing(store_path: Path, tmp_path: Path, kind: str, bad: Any) -> None:
    refused(call("record", store_path, "s", lines_file(tmp_path, *as_lines([bad])), "--from", kind), 2, "line 1 was")
    with Store.open(store_path) as store:
        made = store.sessions()
    assert not made or (messages(store_path) == [] and left_over(store_path) == [])


def test_a_line_after_the_end_leaves_what_had_ended(store_path: Path, tmp_path: Path) -> None:
    lines = as_lines([*events_of(FIRST), done(FIRST), delta("late", kind="text")])
    result = call("record", store_path, "s", lines_file(tmp_path, *lines), "--from", "events")
    refused(result, 2, f"line {len(lines)} was refused")
    assert messages(store_path) == [done(FIRST)["message"]]
    assert left_over(store_path) == []


def test_numbers_that_json_does_not_know_become_null(store_path: Path, tmp_path: Path) -> None:
    ends = (b'{"type":"done","message":{"role":"assistant","content":[],"stopReason":"stop","cost":1e999}}',)
    file = lines_file(tmp_path, *as_lines(events_of([START])), *ends)
    assert call("record", store_path, "s", file, "--from", "events").exit_code == 0
    assert messages(store_path)[0]["cost"] is None


def test_what_an_earlier_recording_left_is_settled_first(store_path: Path, tmp_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        response = Lane(session).begin("killed").response("entry")
        for frame in OPEN:
            response.take(frame)
    (operation,) = interrupted(store_path)
    assert record(store_path, tmp_path, "frames", FIRST)[-1]["recovered"] == 1
    assert operation.response
    assert messages(store_path) == [operation.response.message, folded(FIRST, "toolUse")]
    result = call("record", store_path, "s", lines_file(tmp_path, *as_lines(FIRST)), "--from", "frames")
    assert "settled" not in result.stdout
    assert len({entry["entryId"] for entry in settled(store_path)}) == 3


def test_the_number_of_settled_operations_is_said(store_path: Path, tmp_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        Lane(session).begin("killed")
    result = call("record", store_path, "s", lines_file(tmp_path), "--from", "events")
    assert result.stdout.startswith("settled 1 operation that an earlier recording had left\n0 lines read")


def test_lists_and_scopes_mean_nothing_with_messages(store_path: Path) -> None:
    for option in (("--scope", "x"), ("--list", "record/lines")):
        result = call("record", store_path, "s", "--from", "events", *option)
        assert result.exit_code == 2
        assert f"{option[0]} means nothing with --from" in result.stderr
    assert not store_path.exists()


def test_durability_is_that_of_what_streams(store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has settled is on disk in any case."""
    given: list[Any] = []
    original = Store.session

    def session(self: Store, *args: Any, **keywords: Any) -> Session:
        given.append(keywords)
        return original(self, *args, **keywords)

    monkeypatch.setattr(Store, "session", session)
    record(store_path, tmp_path, "frames", FIRST, "--durability", "power")
    record(store_path, tmp_path, "frames", FIRST)
    assert given == [{"scope_durability": Durability.POWER}, {"scope_durability": None}]


def test_a_disk_that_takes_no_more_leaves_what_was_written_to_recovery(store_path: Path) -> None:
    """A limit on the file's size: the stream cannot be stored on, nor settled; it comes back and is settled later."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    frames = [START, TEXT, *(delta(os.urandom(500).hex(), kind="text") for _ in range(200))]
    options = ("--from", "frames", "--json", "--window", 0)
    for attempt in range(
        20
    ):  # how much comes in one read is the system's affair: more than fits, and nothing is stored
        store_path = store_path.with_name(f"store-{attempt}")
        result = spawn("record", store_path, "s", *options, stdin=b"\n".join(as_lines(frames)), preexec_fn=limit)
        assert result.returncode == 3, result.stderr
        assert b"error: " in result.stderr and b"hint: " in result.stderr and b"Traceback" not in result.stderr
        report = objects(result.stdout)[-1]
        assert report["stopped"] == "error" and report["written"] < len(frames)
        (operation,) = interrupted(store_path)
        if report["written"]:
            break
    assert operation.response
    assert any(operation.response.fold == fold(frames[:n]) for n in range(report["written"], len(frames) + 1))
    assert objects(spawn("record", store_path, "s", *options).stdout)[-1]["recovered"] == 1
    assert messages(store_path) == [operation.response.message]


@pytest.mark.parametrize("kind", ["events", "frames"])
@pytest.mark.parametrize("path", STREAMS or [Path("none")], ids=lambda path: path.name.removesuffix(".events.jsonl"))
def test_real_streams_settle(store_path: Path, path: Path, kind: str) -> None:
    """With their own message, or as the real fold of their frames."""
    shared("corpus/streams")
    base = str(path).removesuffix(".events.jsonl")
    golden = json.loads(Path(f"{base}.message.json").read_text(encoding="utf-8"))
    result = call("record", store_path, "s", f"{base}.{kind}.jsonl", "--from", kind, "--json")
    assert result.exit_code == 0, result.stderr
    (message,) = messages(store_path)
    if kind == "events":
        assert message == golden["final"]
    else:
        ends = {field: message.pop(field, None) for field in ("stopReason", "errorMessage")}
        assert {**golden["fold"], **ends} == {**message, **ends}
        assert ends["stopReason"] in ("stop", "toolUse", "error")
    assert left_over(store_path) == []
