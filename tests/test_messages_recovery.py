"""The partial message after a crash: for every cut of every recorded stream, and around every settlement."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz.simdisk import KeepAll, LoseAll, SimCrash, SimDisk
from scopelog import InvalidInput, Json, ManualClock, Session, Store
from scopelog.clients.messages import Fenced, Lane, fold, history, recover
from scopelog.clients.messages.outcomes import INTERRUPTED, no_usage
from tests.conftest import shared

SMALL = 60  # events of a stream whose every cut is tried
CUTS = 50


def streams() -> list[Path]:
    return sorted(shared("corpus/streams").glob("*/*.events.jsonl"))


def events_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Rig:
    """A store on a simulated disk, a clock that is turned by hand."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.open()

    def open(self) -> None:
        self.store = Store.open("store", fs=self.disk, clock=self.clock)
        self.session: Session = self.store.session("s")
        self.lane = Lane(self.session)

    def kill(self) -> None:
        """``kill -9``: what was handed to the operating system stays."""
        self.disk = self.disk.kill()
        self.open()

    def cut_power(self) -> None:
        """All that was not synced is lost."""
        self.disk = self.disk.crash(LoseAll())
        self.open()


def usage_free(message: Json) -> Json:
    return {k: v for k, v in message.items() if k not in ("usage", "stopReason", "errorMessage")}


def test_every_cut_of_every_stream_comes_back() -> None:
    """Killed after event i, what was flushed by then is what recovery finds: no frame more, none less."""
    chance = random.Random(4)
    cuts = reopened = 0
    for path in streams():
        events = events_of(path)
        tried = set(range(len(events)))
        if len(events) > SMALL:
            tried = set(chance.sample(range(len(events)), CUTS))
        rig = Rig()
        operation = rig.lane.begin("op")
        response = operation.response("e")
        frames: list[Any] = []
        sequences: list[int] = []
        staged = 0
        for at, event in enumerate(events):
            frame = response.feed(event)
            if frame is not None:
                frames.append(frame)
                staged = rig.session.stats()["sequence"]  # type: ignore[assignment]
                sequences.append(staged)
            rig.clock.advance(chance.choice((0.004, 0.03, 0.11)))
            if at in tried:
                stored = rig.session.durable_seq(operation.scope)
                flushed = [frame for frame, sequence in zip(frames, sequences, strict=True) if sequence <= stored]
                disk = rig.disk.copy().kill()
                wanted = fold(flushed)
                with Store.open("store", fs=disk, clock=ManualClock()) as store:
                    with store.reader("s") as reader:
                        (found,) = recover(reader)
                    if at % 7 == 0:
                        reopened += 1
                        with store.session("s") as session:
                            assert recover(session) == [found]
                assert (found.response.fold if found.response else None) == wanted, (path.name, at)
                if found.response is not None:
                    message = found.response.message
                    assert message["stopReason"] == "error" and message["errorMessage"] == INTERRUPTED
                    assert message["usage"] == no_usage()
                    assert usage_free(message) == usage_free(wanted)
                cuts += 1
    assert cuts > 1500 and reopened > 200


def play(rig: Rig, *, end: bool) -> Iterator[str]:
    """A response that settles, then another; yields what was acknowledged."""
    operation = rig.lane.begin("op")
    yield "begun"
    response = operation.response("e1")
    for frame in frames_of("Hello"):
        response.take(frame)
    rig.clock.advance(0.2)
    yield "streamed"
    response.take({"type": "text_delta", "contentIndex": 0, "delta": " there"})
    response.settle(message_of("Hello there"), end=end)
    yield "settled"
    if not end:
        second = operation.response("e2")
        for frame in frames_of("And more"):
            second.take(frame)
        rig.session.flush()
        yield "second streamed"
        operation.end()
    yield "ended"


def frames_of(text: str) -> list[dict[str, Any]]:
    partial = {"role": "assistant", "content": [], "api": "a", "provider": "p", "model": "m", "timestamp": 1}
    partial |= {"usage": no_usage(), "stopReason": "pending"}
    return [
        {"type": "start", "partial": partial},
        {"type": "text_start", "contentIndex": 0, "content": {"type": "text", "text": ""}},
        *({"type": "text_delta", "contentIndex": 0, "delta": char} for char in text),
    ]


def message_of(text: str) -> dict[str, Any]:
    message: Any = fold(frames_of(text))
    return {**message, "stopReason": "stop"}


def text_of(message: Json) -> str:
    return "".join(block["text"] for block in message["content"])


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("after", ["kill", "power"])
def test_settlement_is_whole_wherever_it_is_cut(end: bool, after: str) -> None:
    """Cut at every step of the disk: a message is in the history or comes back as pending, never both, never neither;
    what was acknowledged as settled is settled; what was retired stays so."""
    steps = 0
    while True:
        steps += 1
        rig = Rig()
        rig.disk.crash_at(rig.disk.steps + steps, "torn", steps % 23)
        said: list[str] = []
        try:
            for word in play(rig, end=end):
                said.append(word)
        except SimCrash:
            pass
        else:
            break
        rig.kill() if after == "kill" else rig.cut_power()
        _check_cut(rig, said, power=after == "power")
    assert steps > 12


def _check_cut(rig: Rig, said: list[str], *, power: bool) -> None:
    entries = [element.element for element in rig.session.read(rig.lane.entries)]
    ids = [entry["entryId"] for entry in entries]
    assert ids in ([], ["e1"]) and ("settled" not in said or ids == ["e1"])
    found = recover(rig.session)
    assert len(found) <= 1 and ("begun" not in said or "ended" in said or found or ids)
    for operation in found:
        pending = operation.response
        assert pending is None or pending.entry_id not in ids
        if pending is not None and pending.fold is not None:
            whole = "Hello there" if pending.entry_id == "e1" else "And more"
            assert whole.startswith(text_of(pending.fold))
        if "streamed" in said and "settled" not in said and not ids and not power:
            assert pending is not None and text_of(pending.fold).startswith("Hello")
    if "ended" in said:
        assert found == [] and rig.session.scopes() == []
    events: list[dict[str, Any]] = []
    rig.lane.on(events.append)
    rig.lane.recover()
    assert recover(rig.session) == [] and rig.session.scopes() == []
    after = [element.element["entryId"] for element in rig.session.read(rig.lane.entries)]
    pending_ids = [o.response.entry_id for o in found if o.response is not None]
    assert after == ids + pending_ids
    assert [(e["type"], e["entryId"]) for e in events] == [
        (kind, entry) for entry in pending_ids for kind in ("message_start", "message_end")
    ]
    assert all(event["recovery"] is True for event in events)
    rig.kill()
    assert rig.lane.recover() == []
    assert [element.element["entryId"] for element in rig.session.read(rig.lane.entries)] == after
    rig.lane.begin("op").response("e9").take(frames_of("")[0])  # a new life under the same id
    rig.session.flush()


def test_late_progress_is_fenced_across_a_crash() -> None:
    rig = Rig()
    operation = rig.lane.begin("op")
    response = operation.response("e1")
    for frame in frames_of("Hi"):
        response.take(frame)
    response.settle(message_of("Hi"))
    tool = operation.tool("call-1")
    tool.write("out")
    tool.settle()
    with pytest.raises(Fenced):
        response.take(frames_of("Hi")[-1])
    with pytest.raises(Fenced):
        tool.write("late")
    rig.session.flush()
    rig.kill()
    again = rig.lane.resume("op")
    for call in (lambda: again.response("e1"), lambda: again.tool("call-1")):
        with pytest.raises(Fenced, match="is settled"):
            call()
    again.response("e2")
    again.end()
    with pytest.raises(Fenced, match="does not run"):
        again.response("e3")
    rig.kill()
    with pytest.raises(Fenced, match="does not run"):
        rig.lane.resume("op")
    assert rig.session.scopes() == []


def test_a_response_that_goes_on_under_the_same_id_begins_with_a_base() -> None:
    rig = Rig()
    first = rig.lane.begin("op").response("e1")
    for frame in frames_of("lost half"):
        first.take(frame)
    rig.session.flush()
    rig.kill()
    again = rig.lane.resume("op").response("e1")
    for frame in frames_of("asked again"):
        again.take(frame)
    rig.session.flush()
    rig.kill()
    (found,) = recover(rig.session)
    assert found.response is not None and text_of(found.response.fold) == "asked again"
    target = operation_list(rig, found.id, "e1")
    assert [element.tag for element in rig.session.read(target)].count("base") == 2


def operation_list(rig: Rig, operation: str, entry: str) -> Any:
    from scopelog.clients.messages.places import assistant_output

    return assistant_output(operation, entry)


def test_tools_go_on_with_what_was_stored() -> None:
    rig = Rig()
    operation = rig.lane.begin("op")
    tool = operation.tool("call-1", max_bytes=40)
    tool.write("one\n")
    tool.detail({"at": 1, "of": 3})
    tool.checkpoint({"cursor": 17})
    tool.write("two, never stored\n")
    rig.kill()
    (found,) = recover(rig.session)
    (seen,) = found.tools
    assert seen.output == {"text": "one\n", "details": {"at": 1, "of": 3}} and seen.memos == {"cursor": 17}
    again = rig.lane.resume("op").tool("call-1", max_bytes=40)
    assert again.output == seen.output and again.memo("cursor") == 17 and again.memo("none", 5) == 5
    again.write("x" * 100 + "\n")
    assert again.text == "x" * 39 + "\n" and again.output["droppedBytes"] == 65
    again.checkpoint()
    rig.kill()
    (seen,) = recover(rig.session)[0].tools
    assert seen.output["text"] == "x" * 39 + "\n" and seen.output["droppedBytes"] == 65


def test_calls_without_a_result_are_answered() -> None:
    rig = Rig()
    operation = rig.lane.begin("op")
    calls = [{"type": "toolCall", "id": f"call-{n}", "name": "bash", "arguments": {"n": n}} for n in range(3)]
    operation.response("e1").settle({**message_of(""), "content": calls, "stopReason": "toolUse"})
    first, second = operation.tool("call-0"), operation.tool("call-1")
    first.write("done")
    first.settle()
    second.write("half of the out")
    rig.session.flush()
    rig.kill()
    (found,) = rig.lane.recover()
    assert found.response is None
    answers = found.answers()
    assert [answer["toolCallId"] for answer in answers] == ["call-1", "call-2"]
    assert answers[0]["content"][0]["text"].startswith("half of the out\n[interrupted")
    assert all(answer["isError"] and answer["role"] == "toolResult" for answer in answers)
    assert [m["role"] for m in found.sendable()] == ["assistant", "toolResult", "toolResult", "toolResult"]
    stored = [element.element for element in rig.session.read(rig.lane.entries)]
    assert [entry["entryId"] for entry in stored] == ["e1", "call-0", "call-1", "call-2"]
    assert [entry["message"] for entry in stored[2:]] == answers


@pytest.mark.parametrize("what", ["pwrite", "sync"])
@pytest.mark.parametrize("end", [True, False])
def test_a_settlement_that_fails_is_tried_again_once(what: str, end: bool) -> None:
    """A write that fails leaves the message open: it streams on, and settles once. After a failed sync nobody knows;
    the next process does."""
    rig = Rig()
    response = rig.lane.begin("op").response("e1")
    for frame in frames_of("Hello"):
        response.take(frame)
    rig.session.flush()
    events: list[Any] = []
    rig.lane.on(events.append)
    rig.disk.fail(what, 1, 5, "main")
    with pytest.raises(Exception, match=r"."):
        response.settle(message_of("Hello"), end=end)
    rig.disk.heal()
    assert not events
    if what == "pwrite":
        response.take({"type": "text_delta", "contentIndex": 0, "delta": "!"})
        response.settle(message_of("Hello!"), end=end)
        assert [event["type"] for event in events] == ["message_update", "message_end"]
        entries = [element.element["message"] for element in rig.session.read(rig.lane.entries)]
        assert entries == [message_of("Hello!")]
    rig.disk = rig.disk.crash(KeepAll())
    rig.open()
    entries = [element.element["entryId"] for element in rig.session.read(rig.lane.entries)]
    pending = [found.response for found in recover(rig.session) if found.response]
    assert len(entries) + len(pending) == 1


def test_arguments_that_no_element_can_hold_do_not_stop_a_recovery() -> None:
    """A call whose text opened more brackets than an element may nest could never be settled."""
    rig = Rig()
    response = rig.lane.begin("op").response("e")
    call = {"type": "toolCall", "id": "c", "name": "n", "arguments": {}}
    response.take(frames_of("")[0])
    response.take({"type": "toolcall_start", "contentIndex": 0, "toolCall": call})
    response.take({"type": "toolcall_delta", "contentIndex": 0, "delta": "[" * 300})
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    end = {"type": "toolcall_end", "contentIndex": 0, "id": "c", "name": "n", "arguments": deep}
    with pytest.raises(InvalidInput, match="nests deeper"):
        response.take(end)
    with pytest.raises(InvalidInput):
        response.settle({**response.message, "stopReason": "error"})
    response.take({"type": "toolcall_delta", "contentIndex": 0, "delta": "1"})
    rig.session.flush()
    rig.kill()
    (found,) = rig.lane.recover()
    assert found.response is not None and found.response.message["content"][0]["arguments"] == {}
    assert [element.element["entryId"] for element in rig.session.read(rig.lane.entries)] == ["e", "c"]
    assert recover(rig.session) == []


def test_answers_stand_behind_the_message_that_called() -> None:
    rig = Rig()
    operation = rig.lane.begin("op")
    call = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {}}
    operation.response("e1").settle({**message_of(""), "content": [call], "stopReason": "toolUse"})
    second = operation.response("e2")
    for frame in frames_of("and then"):
        second.take(frame)
    second.take({"type": "toolcall_start", "contentIndex": 1, "toolCall": {**call, "id": "c2"}})
    rig.session.flush()
    rig.kill()
    (found,) = rig.lane.recover()
    assert [(m["role"], m.get("toolCallId")) for m in found.sendable()] == [
        ("assistant", None),
        ("toolResult", "c1"),
        ("assistant", None),
        ("toolResult", "c2"),
    ]
    entries = [element.element["entryId"] for element in rig.session.read(rig.lane.entries)]
    assert entries == ["e1", "c1", "e2", "c2"]
    assert [answer["toolCallId"] for answer in found.answers()] == ["c1", "c2"]


def turn(thinking: str = "") -> list[dict[str, Any]]:
    """A response that thinks and is cut there."""
    frames = frames_of("")[:1]
    frames.append({"type": "thinking_start", "contentIndex": 0, "content": {"type": "thinking", "thinking": ""}})
    return [*frames, {"type": "thinking_delta", "contentIndex": 0, "delta": thinking}]


def test_history_after_a_recovery_is_what_providers_take() -> None:
    """Thinking that was cut has no signature: a provider would refuse it, in the entry as in what recovery returned."""
    rig = Rig()
    operation = rig.lane.begin("op", [rig.lane.entry("p1", {"role": "user", "content": "Hi"})])
    response = operation.response("e1")
    for frame in turn("let me see"):
        response.take(frame)
    rig.session.flush()
    rig.kill()
    rig.lane.recover()
    assert [entry.element["entryId"] for entry in rig.session.read(rig.lane.entries)] == ["p1", "e1"]
    assert rig.lane.history() == [{"role": "user", "content": "Hi"}]
    second = rig.lane.begin("op-2").response("e2")
    for frame in frames_of("Hello"):
        second.take(frame)
    second.settle(message_of("Hello"), end=True)
    assert [message["role"] for message in rig.lane.history()] == ["user", "assistant"]
    assert rig.lane.history(limit=1) == [message_of("Hello")]
    with rig.store.reader("s") as reader:
        assert history(reader) == rig.lane.history() and history(reader, "other") == []


def test_nothing_begins_before_what_was_interrupted_is_settled() -> None:
    rig = Rig()
    rig.lane.begin("op-1")
    rig.kill()
    with pytest.raises(InvalidInput, match="'op-1' was interrupted in this lane"):
        rig.lane.begin("op-2")
    with pytest.raises(Fenced):
        rig.lane.resume("op-2")
    rig.lane.recover()
    rig.lane.begin("op-2").end()


def test_ids_of_calls_may_be_used_again() -> None:
    """Some models count their calls from 0 in every message."""
    rig = Rig()
    operation = rig.lane.begin("op")
    call = {"type": "toolCall", "id": "call_0", "name": "bash", "arguments": {}}
    for number in range(3):
        operation.response(f"e{number}").settle({**message_of(""), "content": [call], "stopReason": "toolUse"})
        tool = operation.tool(f"e{number}.call_0", name="bash", call_id="call_0")
        tool.write(f"output {number}")
        if number < 2:
            tool.settle()
    rig.session.flush()
    rig.kill()
    (found,) = rig.lane.recover()
    results = [message for message in rig.lane.history() if message["role"] == "toolResult"]
    assert [result["toolCallId"] for result in results] == ["call_0"] * 3
    assert [result["isError"] for result in results] == [False, False, True]
    assert results[2]["content"][0]["text"].startswith("output 2\n[interrupted")
    assert {result["toolName"] for result in results} == {"bash"}
    assert all(result["timestamp"] > 0 for result in results)
    assert len(found.answers()) == 1
    with pytest.raises(Fenced):
        rig.lane.resume("op")


def test_a_call_and_a_response_may_have_one_name() -> None:
    rig = Rig()
    operation = rig.lane.begin("op")
    operation.response("x").settle(message_of("a"))
    tool = operation.tool("x")
    tool.fail()
    tool.settle()
    assert [e.element["message"]["role"] for e in rig.session.read(rig.lane.entries)] == ["assistant", "toolResult"]
    assert rig.session.read(rig.lane.entries)[1].element["message"]["isError"] is True
    operation.end()


def test_an_operation_is_aborted_as_it_is() -> None:
    rig = Rig()
    events: list[Any] = []
    rig.lane.on(events.append)
    operation = rig.lane.begin("op")
    response = operation.response("e1")
    for frame in frames_of("half"):
        response.take(frame)
    call = {"type": "toolCall", "id": "c", "name": "bash", "arguments": {}}
    response.take({"type": "toolcall_start", "contentIndex": 1, "toolCall": call})
    del events[:]
    found = operation.abort()
    assert [(m["role"], m.get("stopReason")) for m in rig.lane.history()] == [
        ("assistant", "aborted"),
        ("toolResult", None),
    ]
    assert found.response is not None and found.response.message["stopReason"] == "aborted"
    assert [e["type"] for e in events] == ["message_start", "message_end"] * 2
    assert recover(rig.session) == [] and rig.session.scopes() == [] and rig.lane.operation is None
    for late in (lambda: response.take(frames_of("x")[-1]), operation.abort, response.settle):
        with pytest.raises((Fenced, InvalidInput)):
            late()
