"""Lanes: what listeners and replicas see, how streams are stored, and who may change what."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuzz.simdisk import SimDisk
from scopelog import InvalidElement, InvalidInput, ManualClock, Session, Store, WriteFailed, list_of
from scopelog.clients.messages import (
    Fenced,
    InvalidFrame,
    Lane,
    fold,
    parse_streaming_json,
    recover,
    reducing,
    streams,
    viewing,
)
from scopelog.clients.messages.places import assistant_output, tool_output
from scopelog.delta import UNDEFINED, Decoder, apply
from scopelog_engine import compacting
from tests.test_messages_recovery import Rig, frames_of, message_of, text_of


class Replica:
    """The other side of a transport."""

    def __init__(self) -> None:
        self.value: Any = UNDEFINED
        self.sizes: list[int] = []
        self._decoder = Decoder()

    def __call__(self, batch: Any) -> None:
        text = json.dumps(batch)
        self.sizes.append(len(text))
        self.value = apply(self.value, self._decoder.decode(json.loads(text)))


def delta(text: str, index: int = 0) -> dict[str, Any]:
    return {"type": "text_delta", "contentIndex": index, "delta": text}


def stored(session: Session, target: Any) -> list[Any]:
    return [element.element for element in session.read(target)]


# --- listeners and replicas -------------------------------------------------------------------------


def test_listeners_get_frames_and_the_settled_message_once() -> None:
    rig = Rig()
    events: list[Any] = []
    stop = rig.lane.on(events.append)
    response = rig.lane.begin("op-7").response("e1")
    frames = frames_of("Hi!")
    for frame in frames:
        response.take(frame)
    assert [event["type"] for event in events] == ["message_start"] + ["message_update"] * 4
    assert events[0] == {
        "type": "message_start",
        "runId": "op-7",
        "entryId": "e1",
        "message": fold(frames[:1]),
    }
    assert events[1:] == [
        {"type": "message_update", "runId": "op-7", "entryId": "e1", "frame": frame} for frame in frames[1:]
    ]
    response.settle(message_of("Hi!"))
    assert events[5:] == [{"type": "message_end", "runId": "op-7", "entryId": "e1", "message": message_of("Hi!")}]
    assert fold([e.get("frame") or {"type": "start", "partial": e["message"]} for e in events[:5]]) == fold(frames)
    stop()
    rig.lane.operation.end()  # type: ignore[union-attr]
    assert len(events) == 6


def test_an_update_never_grows_with_the_message() -> None:
    """Bytes of events and of what crosses a transport, delta by delta, in a message of 200 and one of 20,000."""
    rig = Rig()
    sizes: list[int] = []
    replica = Replica()
    rig.lane.on(lambda event: sizes.append(len(json.dumps(event))))
    rig.lane.replicate(replica)
    response = rig.lane.begin("op").response("e")
    for frame in frames_of(""):
        response.take(frame)
    at = len(sizes), len(replica.sizes)
    for number in range(20_000):
        response.take(delta(" word"))
        if number % 100 == 0:
            rig.clock.advance(0.1)
    assert set(sizes[at[0] :]) == {sizes[-1]} and len(sizes) - at[0] == 20_000
    updates = replica.sizes[at[1] + 2 :]  # the path is spelled out, then defined
    assert set(updates) == {updates[-1]} and updates[-1] < 30
    assert text_of(replica.value["operation"]["streamingMessage"]) == " word" * 20_000
    elements = [len(json.dumps(batch)) for batch in stored(rig.session, assistant_output("op", "e"))]
    assert max(elements[1:]) < 100 * 5 + 200


def test_ops_take_less_than_frames() -> None:
    """200 text deltas of an ordinary length: encoded ops, bases included, at most 0.70 of the frames' JSON."""
    rig = Rig()
    replica = Replica()
    rig.lane.replicate(replica)
    response = rig.lane.begin("op").response("e")
    frames = frames_of("")
    before = sum(replica.sizes)
    frames += [delta(f"{'and so the story went on, ' * 3}"[: 30 + n % 57]) for n in range(200)]
    for frame in frames:
        response.take(frame)
    ratio = (sum(replica.sizes) - before) / sum(len(json.dumps(frame)) for frame in frames)
    assert ratio <= 0.70, ratio


def test_replicas_follow_everything_from_any_moment_on() -> None:
    rig = Rig()
    replicas: list[tuple[int, Replica, Callable[[], None]]] = []

    def join() -> None:
        replica = Replica()
        replicas.append((len(replicas), replica, rig.lane.replicate(replica)))
        for _, one, _ in replicas:
            assert one.value == rig.lane.state

    join()
    operation = rig.lane.begin("op")
    join()
    response = operation.response("e")
    tool = operation.tool("call", max_bytes=25)
    for number, frame in enumerate(frames_of("some text")):
        response.take(frame)
        tool.write(f"{number} \ud83d\ude00\n")
        if number == 5:
            tool.detail({"n": [1, {"deep": None}]})
        join()
    response.settle(message_of("some text"))
    join()
    tool.settle()
    join()
    operation.end()
    join()
    assert replicas[0][1].value == {"operation": None}
    replicas[0][2]()
    rig.lane.begin("op-2")
    assert replicas[0][1].value == {"operation": None} and replicas[1][1].value["operation"]["id"] == "op-2"


def test_a_listener_or_replica_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    replica = Replica()
    failing = 0

    def fail(_: object) -> None:
        nonlocal failing
        failing += 1
        raise RuntimeError("secret words")

    rig.lane.on(fail)
    rig.lane.replicate(fail)
    rig.lane.replicate(replica)
    response = rig.lane.begin("op").response("e")
    for frame in frames_of("abc"):
        response.take(frame)
    assert failing == 1 + 5 and replica.value == rig.lane.state
    assert response.message == fold(frames_of("abc"))


def test_the_view_is_current_without_parsing_at_every_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def counted(text: Any) -> Any:
        parsed.append(text)
        return parse_streaming_json(text)

    for module in (reducing, viewing):
        monkeypatch.setattr(module, "parse_streaming_json", counted)
    rig = Rig()
    response = rig.lane.begin("op").response("e")
    response.take(frames_of("")[0])
    view = response.view
    call = {"type": "toolCall", "id": "c", "name": "n", "arguments": {}}
    response.take({"type": "toolcall_start", "contentIndex": 0, "toolCall": call})
    for text in ('{"path": "a', "b", 'c", "x"', ": 1"):
        response.take({"type": "toolcall_delta", "contentIndex": 0, "delta": text})
        assert view.message["content"][0]["arguments"] == {} and parsed == []
    assert view.refresh()["content"][0]["arguments"] == {"path": "abc", "x": 1} and len(parsed) == 1
    response.take({"type": "toolcall_delta", "contentIndex": 0, "delta": "2}"})
    assert view.message["content"][0]["arguments"] == {"path": "abc", "x": 1}
    end = {"type": "toolcall_end", "contentIndex": 0, "id": "c", "name": "n", "arguments": {"path": "abc", "x": 12}}
    response.take(end)
    assert view.message == response.message and view is response.view and len(parsed) == 1


# --- how a stream is stored -------------------------------------------------------------------------


def test_a_window_becomes_one_element(store_path: Path) -> None:
    rig = Rig()
    response = rig.lane.begin("op").response("e")
    for frame in frames_of("0123456789"):
        response.take(frame)
        rig.clock.advance(0.03)
    rig.session.flush()
    elements = rig.session.read(assistant_output("op", "e"))
    assert [element.tag for element in elements] == ["base"] + [None] * (len(elements) - 1)
    assert len(elements) <= 6
    decoder = Decoder()
    value: Any = UNDEFINED
    for element in elements:
        value = apply(value, decoder.decode(element.element))
    assert value == {"streamingMessage": response.message, "frameState": [{"kind": "text", "ended": False}]}


def test_a_stream_is_rebased_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base once the bytes since the last exceed the least and eight times that base; reading begins there."""
    monkeypatch.setattr(streams, "REBASE_BYTES", 2000)
    monkeypatch.setattr(streams.Stream, "_rotate", lambda stream, base: None)  # else nothing stands before the last
    rig = Rig()
    response = rig.lane.begin("op").response("e")
    for frame in frames_of(""):
        response.take(frame)
    for number in range(3000):
        response.take(delta(f" {number}" * 12))
        if number % 5 == 0:
            rig.clock.advance(0.1)
    rig.session.flush()
    sizes = [(e.tag, len(json.dumps(e.element))) for e in rig.session.read(assistant_output("op", "e"))]
    bases = [at for at, (tag, _) in enumerate(sizes) if tag == "base"]
    assert len(bases) >= 3 and bases[0] == 0
    for base, following in pairwise(bases):
        between = sum(size for _, size in sizes[base + 1 : following])
        assert between > 0.9 * max(2000, 8 * sizes[base][1])  # the first ops spell out their paths
    spent = sum(size for tag, size in sizes if tag == "base")
    assert spent < sum(size for _, size in sizes) / 2
    (found,) = recover(rig.session)
    assert found.response is not None and found.response.fold == response.message


def test_an_operation_that_streams_for_long_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands before the last base is trimmed, and the log compacted when it has grown; a crash costs nothing."""
    monkeypatch.setattr(streams, "REBASE_BYTES", 2000)
    monkeypatch.setattr(compacting, "ROTATE_BYTES", 20_000)
    calls: list[Callable[[], None]] = []
    monkeypatch.setattr(compacting, "COMPACTORS", SimpleNamespace(submit=calls.append))
    rig = Rig()
    sink = rig.lane.begin("op").tool("call", max_bytes=1000)
    longest = rotated = 0
    for number in range(6000):
        sink.write(f"line {number} of the output\n")
        if number % 3 == 0:
            rig.clock.advance(0.1)
        while calls:
            calls.pop()()
            rotated += 1
        if number % 100 == 0:
            with rig.store.reader("s") as reader:
                longest = max(longest, reader.stats()["log_bytes"])
    rig.session.flush()
    assert rotated > 3 and longest < 60_000
    elements = rig.session.read(tool_output("op", "call"))
    assert elements[0].tag == "base" and [e.tag for e in elements].count("base") == 1
    (found,) = recover(rig.session)
    assert found.tools[0].output["text"] == sink.text


def test_a_failed_append_is_made_good_by_a_base() -> None:
    """Disk full: the frame is folded, the failure raised once; whatever comes next carries everything."""
    rig = Rig()
    response = rig.lane.begin("op").response("e")
    frames = frames_of("abcdef")
    for frame in frames[:4]:
        response.take(frame)
    rig.session.flush()
    failed = 0
    for frame in frames[4:]:
        rig.disk.fail("pwrite", 1, 28, "scope")
        try:
            response.take(frame)
        except WriteFailed:
            failed += 1
        rig.clock.advance(0.2)
        rig.disk.heal()
    assert failed
    rig.clock.advance(10)
    response.take(delta("!"))
    rig.session.flush()
    assert response.message == fold([*frames, delta("!")])
    assert recover(rig.session)[0].response.fold == response.message  # type: ignore[union-attr]
    rig.kill()
    assert recover(rig.session)[0].response.fold == fold([*frames, delta("!")])  # type: ignore[union-attr]


def test_non_finite_numbers_are_stored_as_null() -> None:
    rig = Rig()
    response = rig.lane.begin("op").response("e")
    frames: list[Any] = [frames_of("")[0]]
    call = {"type": "toolCall", "id": "c", "name": "n", "arguments": {"x": float("nan"), "y": [float("-inf")]}}
    frames.append({"type": "toolcall_start", "contentIndex": 0, "toolCall": call})
    frames.append({"type": "toolcall_delta", "contentIndex": 0, "delta": '{"x": Infinity, "y": [NaN'})
    for frame in frames:
        response.take(frame)
    rig.session.flush()
    (found,) = recover(rig.session)
    assert found.response is not None
    assert found.response.fold["content"][0]["arguments"]["x"] == float("inf")
    assert found.response.message["content"][0]["arguments"] == {"x": None, "y": [None]}
    response.settle({**found.response.fold, "stopReason": "error"})
    (entry,) = stored(rig.session, rig.lane.entries)
    assert entry["message"]["content"][0]["arguments"] == {"x": None, "y": [None]}


def test_lone_surrogates_come_back(store_path: Path) -> None:
    rig = Rig()
    response = rig.lane.begin("op").response("e")
    for frame in [*frames_of("a"), delta("\ud83d")]:
        response.take(frame)
    rig.session.flush()
    rig_found = recover(rig.session)[0].response
    assert rig_found is not None and text_of(rig_found.fold) == "a\ud83d"
    assert rig_found.sendable is not None and text_of(rig_found.sendable) == "a"
    response.take(delta("\ude00\udfff"))
    rig.session.flush()
    rig_found = recover(rig.session)[0].response
    assert rig_found is not None and text_of(rig_found.fold) == "a\U0001f600\udfff"
    assert rig_found.sendable is not None and text_of(rig_found.sendable) == "a\U0001f600\ufffd"


# --- who may do what --------------------------------------------------------------------------------


def test_refusals_change_nothing() -> None:
    rig = Rig()
    wrong: Any = "session"
    with pytest.raises(InvalidInput):
        Lane(wrong)
    operation = rig.lane.begin("op", [list_of("chat", "prompts").append("Hi")])
    assert stored(rig.session, list_of("chat", "prompts")) == ["Hi"]
    for call in (lambda: rig.lane.begin("op-2"), lambda: rig.lane.resume("op"), rig.lane.recover):
        with pytest.raises(InvalidInput, match="'op' runs"):
            call()
    response = operation.response("e")
    with pytest.raises(InvalidFrame, match="before the start"):
        response.take(delta("x"))
    with pytest.raises(InvalidInput, match="no message to settle"):
        response.settle()
    before = rig.session.stats()["sequence"]
    frames: list[Any] = [None, [], {"type": "text_delta"}, {"type": "start", "partial": 5}]
    for frame in frames:
        with pytest.raises(InvalidInput):
            response.take(frame)
    assert rig.session.stats()["sequence"] == before
    tool = operation.tool("t")
    with pytest.raises(InvalidInput, match="has a sink"):
        operation.tool("t")
    with pytest.raises(InvalidElement):
        tool.detail({"x": {1, 2}})
    with pytest.raises(InvalidInput):
        tool.write(wrong_bytes())
    caps: list[Any] = [{"keep": "middle"}, {"max_bytes": 0}, {"max_lines": True}]
    for options in caps:
        with pytest.raises(InvalidInput):
            operation.tool("u", **options)
    tool.write("x")
    with pytest.raises(InvalidInput, match="'op' is alive"):
        Lane(rig.session, "other").begin("op")
    with pytest.raises(InvalidInput, match="not a list of writes"):
        operation.end(list_of("chat", "prompts").append("Hi"))  # type: ignore[arg-type]
    messages: list[Any] = ["x", {"role": "user"}, {**message_of(""), "stopReason": "pending"}]
    for message in messages:
        with pytest.raises(InvalidInput):
            response.settle(message)
    operation.response("e2")
    with pytest.raises(Fenced):
        response.take(frames_of("")[0])
    operation.end()
    for late in (lambda: tool.write("x"), operation.end, lambda: operation.response("e3"), tool.settle):
        with pytest.raises(Fenced):
            late()
    assert rig.session.scopes() == []


def wrong_bytes() -> Any:
    return b"bytes"


def test_lanes_are_apart() -> None:
    rig = Rig()
    other = Lane(rig.session, "other")
    first, second = rig.lane.begin("op-1").response("e"), other.begin("op-2").response("e")
    for frame in frames_of("main"):
        first.take(frame)
    for frame in frames_of("other"):
        second.take(frame)
    second.settle(message_of("other"), end=True)
    assert stored(rig.session, rig.lane.entries) == [] and len(stored(rig.session, other.entries)) == 1
    rig.kill()
    assert Lane(rig.session, "other").recover() == []
    (found,) = rig.lane.recover()
    assert found.id == "op-1" and found.lane == "main"


def test_an_unreadable_stream_is_reported_and_the_rest_comes_back() -> None:
    rig = Rig()
    operation = rig.lane.begin("op")
    response, tool = operation.response("e"), operation.tool("t")
    response.take(frames_of("")[0])
    tool.write("fine")
    rig.session.commit([tool_output("op", "broken").append([["a", 5, "no such id"]], "base")])
    rig.session.commit([assistant_output("op", "no base").append([["s", ["x"], 1]])])
    rig.session.commit([assistant_output("op", "no message").append([["r", {"frameState": 5}]], "base")])
    rig.kill()
    (found,) = recover(rig.session)
    assert found.response is not None and found.response.entry_id == "e"
    assert {tool.invocation_id: tool.output for tool in found.tools}["t"] == {"text": "fine"}
    assert len(found.problems) == 2
    rig.lane.recover()
    assert rig.session.scopes() == []


def test_threads_of_tools_report_at_once() -> None:
    with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store, store.session("s") as session:
        lane = Lane(session)
        replica = Replica()
        lane.replicate(replica)
        operation = lane.begin("op")
        response = operation.response("e")
        response.take(frames_of("")[0])
        failures: list[BaseException] = []

        def run(number: int) -> None:
            try:
                tool = operation.tool(f"t{number}", max_bytes=1000)
                for turn in range(100):
                    tool.write(f"{number}:{turn}\n")
                    if turn % 10 == 0:
                        tool.checkpoint({"turn": turn})
            except BaseException as error:  # noqa: BLE001 - handed to the test
                failures.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not failures, failures
        assert replica.value == lane.state
        (found,) = recover(session)
        assert {tool.invocation_id: tool.output["text"] for tool in found.tools} == {
            f"t{n}": "".join(f"{n}:{turn}\n" for turn in range(100))[-1000:] for n in range(4)
        } and all(tool.memos == {"turn": 90} for tool in found.tools)
