"""Faults of the messages client that were found once; each test tells the story."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fuzz.simdisk import SimDisk
from scopelog import InvalidInput, LimitExceeded, ManualClock, Store, WriteFailed, ephemeral, value
from scopelog.aio import AsyncSession
from scopelog.clients.messages import Fenced, InvalidFrame, Lane, fold, recover
from scopelog.clients.messages.aio import AsyncLane
from scopelog.clients.messages.places import MEMO, OPERATIONS, assistant_output
from tests.test_messages_lane import Replica, delta
from tests.test_messages_recovery import Rig, frames_of, message_of, text_of


def stream(response: Any, text: str) -> None:
    for frame in frames_of(text):
        response.take(frame)


def test_the_next_response_waits_for_the_settlement_of_the_one_before() -> None:
    """It was accepted while the commit was awaited; when that returned, the lane forgot the new response."""

    async def main() -> None:
        with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store:
            lane = AsyncLane(AsyncSession(store.session("s")))
            operation = await lane.begin("op")
            first = operation.response("a")
            stream(first, "one")
            task = asyncio.create_task(first.settle(message_of("one")))
            await asyncio.sleep(0)
            with pytest.raises(InvalidInput, match="being settled"):
                operation.response("b")
            for call in (operation.end, operation.abort):
                with pytest.raises(InvalidInput, match="being settled"):
                    await call()
            await task
            second = operation.response("b")
            stream(second, "two")
            await second.settle(message_of("two"), end=True)
            assert [text_of(message) for message in lane.history()] == ["one", "two"]

    asyncio.run(main())


def test_a_settlement_whose_commit_raised_is_finished_before_anything_else() -> None:
    """The entry was stored though ``settle`` raised. The next response was then undone by the retry, and listeners
    were told the retry's message, or nothing at all."""
    for follow in ("retry", "response", "end"):
        rig = Rig()
        events: list[Any] = []
        rig.lane.on(events.append)
        operation = rig.lane.begin("op")
        first = operation.response("a")
        stream(first, "one")
        commit = rig.session.commit

        def stored_but_raised(writes: Any, commit: Any = commit, **keywords: Any) -> Any:
            commit(writes, **keywords)
            raise KeyboardInterrupt

        rig.session.commit = stored_but_raised  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            first.settle(message_of("one"))
        rig.session.commit = commit  # type: ignore[method-assign]
        if follow == "retry":
            assert first.settle(message_of("another")) is None
        elif follow == "response":
            second = operation.response("b")
            stream(second, "two")
            with pytest.raises(Fenced):
                first.settle(message_of("another"))
            assert text_of(second.message) == "two"
        else:
            operation.end()
        ends = [text_of(event["message"]) for event in events if event["type"] == "message_end"]
        assert ends == ["one"], follow
        assert [text_of(message) for message in rig.lane.history()] == ["one"]


def test_a_checkpoint_does_not_outlive_its_operation() -> None:
    """Its commit came behind the one that had retired the scope: an orphan life with an old memo in it."""
    rig = Rig()
    operation = rig.lane.begin("op")
    tool = operation.tool("t")
    tool.write("x")
    seen: list[Any] = []
    commit = rig.session.commit

    def watched(writes: Any, **keywords: Any) -> Any:
        if not seen:
            seen.append(True)
            worker = threading.Thread(target=lambda: seen.append(_refusal(operation.end)))
            worker.start()
            worker.join(60)
        return commit(writes, **keywords)

    rig.session.commit = watched  # type: ignore[method-assign]
    tool.checkpoint({"m": 1})
    rig.session.commit = commit  # type: ignore[method-assign]
    assert isinstance(seen[1], InvalidInput) and "checkpoint" in str(seen[1])
    operation.end()
    with pytest.raises(Fenced):
        tool.checkpoint({"m": 2})
    assert rig.session.scopes() == []


def _refusal(call: Any) -> Any:
    try:
        return call()
    except InvalidInput as error:
        return error


def test_two_recoveries_settle_once() -> None:
    async def main() -> None:
        disk = SimDisk()
        with Store.open("store", fs=disk, clock=ManualClock()) as store:
            session = store.session("s")
            stream(Lane(session).begin("op").response("e"), "half")
            session.flush()
            disk = disk.copy().kill()
        with Store.open("store", fs=disk, clock=ManualClock()) as store:
            session = store.session("s")
            lanes = [AsyncLane(AsyncSession(session)) for _ in range(2)]
            assert lanes[0].sync is lanes[1].sync is Lane(session)
            outcomes = await asyncio.gather(*(lane.recover() for lane in lanes), return_exceptions=True)
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["InvalidInput", "list"]
            assert len(session.read(lanes[0].entries)) == 1

    asyncio.run(main())


def test_nothing_resumes_while_a_recovery_is_under_way() -> None:
    rig = Rig()
    rig.lane.begin("op")
    rig.kill()
    commit = rig.session.commit

    def watched(writes: Any, **keywords: Any) -> Any:
        with pytest.raises(InvalidInput, match="a recovery runs"):
            rig.lane.resume("op")
        with pytest.raises(InvalidInput, match="a recovery runs"):
            rig.lane.begin("op-2")
        return commit(writes, **keywords)

    rig.session.commit = watched  # type: ignore[method-assign]
    assert len(rig.lane.recover()) == 1


def test_a_response_that_was_given_up_does_not_come_back() -> None:
    """Another took its place and settled; recovery then found the first, and settled it behind the other."""
    for settled in (True, False):
        rig = Rig()
        operation = rig.lane.begin("op")
        stream(operation.response("a"), "given up")
        rig.session.flush()
        second = operation.response("b")
        stream(second, "taken")
        if settled:
            second.settle(message_of("taken"))
        else:
            rig.session.flush()
        rig.kill()
        (found,) = rig.lane.recover()
        if settled:
            assert found.response is None
        else:
            assert found.response is not None and found.response.entry_id == "b"
        assert [text_of(message) for message in rig.lane.history()] == ["taken"]


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "text_end", "contentIndex": 0, "content": "changed", "textSignature": "deep"},
        {"type": "text_start", "contentIndex": 1, "content": {"type": "text", "text": "", "extra": "deep"}},
        {"type": "text_start", "contentIndex": 1, "content": {"type": "text", "text": "", "extra": 10**5000}},
        {"type": "text_start", "contentIndex": 1, "content": {"type": "text", "text": "", "extra": (1, 2)}},
    ],
)
def test_a_refused_frame_has_no_effect_and_recording_goes_on(frame: dict[str, Any]) -> None:
    """Half of a frame was applied before the rest was refused; or a frame was accepted that no element could hold, and
    no base could be written any more."""
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    frame = {key: deep if item == "deep" else item for key, item in frame.items()}
    if frame.get("content") and isinstance(frame["content"], dict) and frame["content"]["extra"] == "deep":
        frame = {**frame, "content": {**frame["content"], "extra": deep}}
    rig = Rig()
    replica = Replica()
    rig.lane.replicate(replica)
    response = rig.lane.begin("op").response("e")
    stream(response, "abc")
    with pytest.raises(InvalidInput):
        response.take(frame)
    response._stream.lose()  # the next batch is a base
    response.take(delta("d"))
    rig.lane.flush()
    (found,) = recover(rig.session)
    assert found.response is not None and found.response.fold == response.message == fold([*frames_of("abcd")])
    assert replica.value == rig.lane.state


def test_a_message_that_grows_too_large_can_still_be_settled_and_recovered() -> None:
    rig = Rig()
    response = rig.lane.begin("op").response("e")
    stream(response, "")
    piece = "é\n" * (1 << 19)
    with pytest.raises(LimitExceeded):
        for _ in range(30):
            response.take(delta(piece))
    response._stream.lose()
    response.take(delta("."))
    rig.session.flush()
    rig.kill()
    (found,) = rig.lane.recover()
    assert found.response is not None and len(text_of(found.response.fold)) > 9_000_000
    (entry,) = rig.session.read(rig.lane.entries)
    assert entry.element["message"] == found.response.message


def test_what_no_element_can_hold_does_not_stop_a_recovery() -> None:
    """A stream of another release, or of somebody else's, whose message is larger than an element may be."""
    rig = Rig()
    rig.lane.begin("op")
    target = assistant_output("op", "e")
    message = {**message_of("x"), "stopReason": "pending"}
    state = {"streamingMessage": message, "frameState": [{"kind": "text", "ended": False}]}
    rig.session.commit([target.append([["r", state]], "base")])
    piece = "x" * (12 << 20)
    for _ in range(6):
        rig.session.commit([target.append([["a", ["streamingMessage", "content", 0, "text"], piece]])])
    rig.kill()
    (found,) = rig.lane.recover()
    assert found.response is not None and len(text_of(found.response.fold)) > 64 << 20
    (entry,) = rig.session.read(rig.lane.entries)
    assert entry.element["message"]["stopReason"] == "error" and entry.element["message"]["content"] == []
    assert recover(rig.session) == [] and rig.session.scopes() == []


@pytest.mark.parametrize(
    "state",
    [
        {"streamingMessage": {"content": [{"type": ["x"]}]}, "frameState": [None]},
        {"streamingMessage": {"content": [{"type": "text", "text": 5}]}, "frameState": [None]},
        {"streamingMessage": {"content": [{"type": "toolCall", "id": [1]}]}, "frameState": [None]},
        {"streamingMessage": {"content": []}, "frameState": [None]},
        {"streamingMessage": {"content": [{"type": "text"}]}, "frameState": [{"kind": 5, "ended": False}]},
        {"streamingMessage": 5, "frameState": 5},
    ],
)
def test_hostile_records_are_problems_of_their_own(state: Any) -> None:
    """One bad record had stopped the recovery of the whole session."""
    rig = Rig()
    rig.lane.begin("op").tool("fine").write("output")
    scope = ephemeral("op")
    rig.session.commit([assistant_output("op", "bad").append([["r", state]], "base")])
    rig.session.commit([scope.value(MEMO, key).set(1) for key in ("mine", '[["x"],2]', "[" * 500, '["fine","m"]')])
    rig.session.commit([value(OPERATIONS, "else").set("x" * 300), value(OPERATIONS, "odd").set(5)])
    (found,) = recover(rig.session)
    assert len(found.problems) == 1 and found.response is None
    assert [(tool.invocation_id, tool.memos) for tool in found.tools] == [("fine", {"m": 1})]
    rig.kill()
    rig.lane.recover()
    assert rig.session.scopes() == []


def test_flush_of_the_lane_stores_what_a_failure_had_kept() -> None:
    """``take`` had raised; the disk was healed, and no call stored the frame unless another came."""
    rig = Rig()
    response = rig.lane.begin("op").response("e")
    stream(response, "ab")
    rig.session.flush()
    failed = False
    for text in "cdefgh":
        rig.disk.fail("pwrite", 1, 28, "scope")
        try:
            response.take(delta(text))
        except WriteFailed:
            failed = True
            break
        rig.clock.advance(0.2)
    assert failed
    rig.disk.heal()
    rig.lane.flush()
    told = response.message
    rig.kill()
    assert recover(rig.session)[0].response.fold == told  # type: ignore[union-attr]


def test_replicas_do_not_grow_with_the_operations() -> None:
    """Each operation brought paths of its own into the codecs, for ever."""
    rig = Rig()
    replica = Replica()
    rig.lane.replicate(replica)
    for number in range(50):
        operation = rig.lane.begin(f"op-{number}")
        tool = operation.tool(f"t{number}")
        for _ in range(3):
            tool.write("x")
        operation.end()
        assert replica.value == {"operation": None}
    assert len(replica._decoder._paths) == 0
    assert all(len(one._encoder._ids) == 0 for one in rig.lane._replicas)


def test_writing_to_a_tool_does_not_look_at_what_is_kept() -> None:
    """Every write had made the text under construction a str again, at the cost of a copy."""
    rig = Rig()
    tool = rig.lane.begin("op").tool("t", max_bytes=1 << 30, max_lines=1 << 30)
    tool.write("line\n")  # with the base
    reads: list[str] = []
    node = type(tool._state)
    original = node.__getitem__

    def counted(self: Any, key: Any) -> Any:
        reads.append(key)
        return original(self, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "__getitem__", counted)
        for _ in range(100):
            tool.write("line\n")
    assert "text" not in reads
    assert tool.text == "line\n" * 101


def test_an_event_that_is_refused_may_be_sent_again_as_it_should_be() -> None:
    """The encoder had moved on before the reducer refused its frame."""
    rig = Rig()
    response = rig.lane.begin("op").response("e")
    partial = {**message_of(""), "stopReason": "pending", "content": []}
    response.feed({"type": "start", "partial": partial})
    block = {"type": "text", "text": ""}
    with pytest.raises(InvalidFrame):
        response.feed({"type": "text_start", "contentIndex": 1, "partial": {**partial, "content": [block, block]}})
    response.feed({"type": "text_start", "contentIndex": 0, "partial": {**partial, "content": [block]}})
    response.feed({"type": "text_start", "contentIndex": 1, "partial": {**partial, "content": [block, block]}})
    response.feed({"type": "text_delta", "contentIndex": 1, "delta": "x"})
    assert [one["text"] for one in response.message["content"]] == ["", "x"]


def test_an_error_that_is_the_only_event_begins_and_ends_a_message() -> None:
    rig = Rig()
    events: list[Any] = []
    rig.lane.on(events.append)
    response = rig.lane.begin("op").response("e")
    response.feed({"type": "error", "reason": "error", "error": {**message_of(""), "stopReason": "error"}})
    response.settle(end=True)
    assert [event["type"] for event in events] == ["message_start", "message_end"]


def test_a_listener_must_not_change_what_it_is_told() -> None:
    """Later listeners saw frames in another order, a replica the wrong text."""
    rig = Rig()
    refused: list[Any] = []
    response = rig.lane.begin("op").response("e")
    stream(response, "")

    def meddle(_: Any) -> None:
        for call in (
            lambda: response.take(delta("2")),
            lambda: response.settle(message_of("2")),
            rig.lane.operation.end,  # type: ignore[union-attr]
            lambda: rig.lane.operation.tool("t"),  # type: ignore[union-attr]
            rig.lane.recover,
        ):
            refused.append(_refusal(call))

    seen: list[Any] = []
    replica = Replica()
    rig.lane.on(meddle)
    rig.lane.on(seen.append)
    rig.lane.replicate(replica)
    stop = rig.lane.replicate(meddle)
    response.take(delta("1"))
    assert len(refused) == 15 and all(isinstance(error, InvalidInput) for error in refused)
    assert [event["frame"] for event in seen] == [delta("1")]
    assert replica.value == rig.lane.state and text_of(response.message) == "1"
    stop()
