"""Events to frames and frames to a message: golden cases, hostile input, and what a delta costs."""

from __future__ import annotations

import copy
import functools
import json
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scopelog import InvalidInput
from scopelog.clients.messages import (
    FrameEncoder,
    InvalidEvent,
    InvalidFrame,
    MessageView,
    apply_frame,
    current_message,
    fold,
    join_frames,
    parse_streaming_json,
)

from .messages_rig import (
    CALL,
    OPEN,
    START,
    STATES,
    TEXT,
    Replicated,
    SpiedMapping,
    Tally,
    call_start,
    delta,
    spelled,
    state_of,
    taken,
)

VECTORS: Final = Path(__file__).parent / "vectors"


def load(name: str) -> Any:
    """The cases of a file; the only value in them that JSON cannot hold is undefined."""
    text = (VECTORS / name).read_text(encoding="utf-8")
    return json.loads(text, object_hook=lambda found: None if found.keys() == {"$js"} else found)["cases"]


FOLDS: Final = load("frames_fold.json")
ENCODED: Final = load("frames_encode.json")


def named(case: Any) -> str:
    return str(case["name"])


def content_after(frames: list[Any]) -> Any:
    """What the vectors say of a prefix: the content, None, or an error."""
    try:
        message = fold(frames)
    except InvalidFrame:
        return InvalidFrame
    return message and message["content"]


# -- golden cases


@pytest.mark.parametrize("case", FOLDS, ids=named)
def test_golden_folds(case: Any) -> None:
    before = spelled(case["frames"])
    if "error" in case:
        with pytest.raises(InvalidFrame):
            fold(case["frames"])
    else:
        assert spelled(fold(case["frames"])) == spelled(case["result"])
    for number, expected in enumerate(case.get("prefixes", ()), 1):
        if isinstance(expected, dict):
            expected = InvalidFrame
        found = content_after(case["frames"][:number])
        assert found is expected if expected is InvalidFrame else spelled(found) == spelled(expected)
    assert spelled(case["frames"]) == before


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("case", FOLDS, ids=named)
def test_the_step_stands_where_the_fold_does(case: Any, kind: str) -> None:
    state = state_of(kind)
    for number, frame in enumerate(case["frames"], 1):
        expected = content_after(case["frames"][:number])
        if expected is InvalidFrame:
            with pytest.raises(InvalidFrame):
                apply_frame(state, frame)
            return
        assert apply_frame(state, frame) is state
        message = current_message(state)
        assert spelled(message and message["content"]) == spelled(expected)
        if isinstance(state, Replicated):
            state.replicate()
            assert spelled(state.replica) == spelled(state.tracker.target)
            assert spelled(current_message(state.replica)) == spelled(message)


@pytest.mark.parametrize("case", ENCODED, ids=named)
def test_golden_encoding(case: Any) -> None:
    encoder = FrameEncoder()
    frames: list[Any] = []
    for number, event in enumerate(case["events"]):
        if number == case.get("error_event"):
            with pytest.raises(InvalidEvent):
                encoder.encode(event)
            break
        frames.append(encoder.encode(event))
    assert json.dumps(frames) == json.dumps(case["frames"])
    kept = [frame for frame in frames if frame is not None]
    if "fold_error" in case:
        with pytest.raises(InvalidFrame):
            fold(kept)
    else:
        assert spelled(fold(kept)) == spelled(case["folded"])


# -- the encoder


class Untouchable(dict[str, Any]):
    """A live message that nobody may look at."""

    def __getitem__(self, key: str) -> Any:
        raise AssertionError(key)

    get = items = keys = values = __iter__ = __len__ = __getitem__  # type: ignore[assignment]


def begun(*blocks: dict[str, Any]) -> FrameEncoder:
    encoder = FrameEncoder()
    partial = {**START["partial"], "content": list(blocks)}
    encoder.encode({"type": "start", "partial": partial})
    names = {"text": "text_start", "thinking": "thinking_start", "toolCall": "toolcall_start"}
    for index, block in enumerate(blocks):
        encoder.encode({"type": names[block["type"]], "contentIndex": index, "partial": partial})
    return encoder


def test_a_delta_does_not_look_at_the_message() -> None:
    encoder = begun({"type": "text", "text": ""}, {"type": "thinking", "thinking": ""}, copy.deepcopy(CALL))
    for _ in range(3):
        for index, kind in enumerate(("text", "thinking", "toolcall")):
            frame = encoder.encode({**delta("more", index, kind), "partial": Untouchable()})
            assert frame == delta("more", index, kind)
            assert encoder.encode(delta("x", index, kind)) == delta("x", index, kind)  # it need not be there


def test_frames_share_nothing_with_the_live_message() -> None:
    block = {**CALL, "arguments": {"a": ["x"]}}
    partial = {"usage": {"input": 1}, "diagnostics": [{"a": 1}], "content": [block], "unknown": 1}
    encoder = FrameEncoder()
    frames = [encoder.encode({"type": "start", "partial": partial})]
    frames.append(encoder.encode({"type": "toolcall_start", "contentIndex": 0, "partial": partial}))
    frames.append(encoder.encode({"type": "toolcall_end", "contentIndex": 0, "partial": partial, "toolCall": block}))
    before = spelled(frames)
    partial["usage"]["input"] = 2  # type: ignore[index]
    partial["diagnostics"][0]["a"] = 2  # type: ignore[index]
    block["arguments"]["a"].append("y")
    assert spelled(frames) == before
    assert "unknown" not in before


def test_coverage_is_counted_in_utf16_units() -> None:
    encoder = begun({"type": "text", "text": "a\ud83d"})  # the message was ahead, and cut inside a pair
    assert encoder.encode(delta("a", 0, "text")) is None
    assert encoder.encode(delta("😀b", 0, "text")) == delta("\ude00b", 0, "text")
    started = taken([START, {**TEXT, "content": {"type": "text", "text": "a\ud83d"}}], {})
    message = current_message(apply_frame(started, delta("\ude00b", 0, "text")))
    assert message and message["content"][0]["text"] == "a😀b"


def test_a_tool_call_ahead_of_its_deltas_is_parsed_only_once_they_may_have_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[int] = []

    def counting(text: str) -> Any:
        parsed.append(len(text))
        return parse_streaming_json(text)

    monkeypatch.setattr("scopelog.clients.messages.encoding.parse_streaming_json", counting)
    text = json.dumps({"command": "x" * 2000})
    encoder = begun({**CALL, "arguments": {"command": "x" * 1000}})
    frames = [encoder.encode(delta(text[at : at + 4])) for at in range(0, len(text), 4)]
    assert frames[:250] == [None] * 250
    checkpoint, *later = [frame for frame in frames if frame is not None]
    assert checkpoint["type"] == "toolcall_checkpoint"
    assert {frame["type"] for frame in later} == {"toolcall_delta"}
    assert checkpoint["json"] + "".join(frame["delta"] for frame in later) == text
    assert len(parsed) <= 5


@pytest.mark.parametrize(
    ("snapshot", "text", "caught_up"),
    [
        ({"a": 1}, '{"a":1.0', True),
        ({"a": True}, '{"a":1', False),
        ({"a": 1}, '{"a":true', False),
        ({"a": float("inf")}, '{"a":1e400', True),
        ({"a": float("inf"), "b": "x"}, '{"a":1e400,"b":"xy', False),  # a prefix is told by values, null is not ∞
        ({"a": {"b": []}}, '{"c":0,"a":{"b":[1', True),
        ({"a": ["x", "y"]}, '{"a":["x"', False),
        ({"a": None}, '{"a":nul', True),
        ([], "[1", True),
        ("ab", '"abc', True),
    ],
)
def test_catching_up_is_by_json_prefix(snapshot: Any, text: str, caught_up: bool) -> None:
    encoder = begun({**CALL, "arguments": snapshot})
    frame = encoder.encode(delta(text))
    assert frame == ({"type": "toolcall_checkpoint", "contentIndex": 0, "json": text} if caught_up else None)


def test_a_rejected_event_leaves_the_encoder_as_it_was() -> None:
    encoder = FrameEncoder()
    for bad in ({}, {"type": "start"}, {"type": "start", "partial": {"usage": {1: 2}}}, {"type": "done"}):
        with pytest.raises(InvalidEvent):
            encoder.encode(bad)
    message = {"content": [{"type": "text", "text": "ab"}]}
    assert encoder.encode({"type": "start", "partial": message}) is not None
    broken = {"content": [{"type": "text", "text": "ab", "textSignature": object()}]}
    for partial in ({}, {"content": [{"type": "text"}]}, {"content": [None]}, broken):
        with pytest.raises(InvalidEvent):
            encoder.encode({"type": "text_start", "contentIndex": 0, "partial": partial})
    assert encoder.encode({"type": "text_start", "contentIndex": 0.0, "partial": message}) is not None
    with pytest.raises(InvalidEvent):
        encoder.encode(delta(None, 0, "text"))
    assert encoder.encode(delta("abc", 0, "text")) == delta("c", 0, "text")
    for content in (None, 1):
        with pytest.raises(InvalidEvent):
            encoder.encode({"type": "text_end", "contentIndex": 0, "content": content, "partial": message})
    end = {"type": "text_end", "contentIndex": 0, "content": "abc"}
    assert encoder.encode({**end, "partial": message}) == end
    assert encoder.encode({"type": "of tomorrow"}) is None
    assert encoder.encode({"type": "error", "reason": "aborted"}) is None
    with pytest.raises(InvalidEvent):
        encoder.encode({"type": "error"})


# -- the reducer


def test_it_reduces() -> None:
    frames: list[dict[str, Any]] = [START, TEXT, delta("a", 0, "text"), delta("b", 0.0, "text")]
    empty: dict[str, Any] = {}
    state = functools.reduce(apply_frame, frames, empty)
    assert state["streamingMessage"]["content"] == [{"type": "text", "text": "ab"}]
    assert state["frameState"] == [{"kind": "text", "ended": False}]


def test_frames_before_the_start_do_harm_only_if_it_comes() -> None:
    state: dict[str, Any] = {}
    apply_frame(state, delta(object()))
    apply_frame(state, TEXT)
    assert current_message(state) is None and state == {"frameState": [{"early": "toolcall_delta"}]}
    with pytest.raises(InvalidFrame, match="toolcall_delta comes before the start"):
        apply_frame(state, START)
    assert MessageView(state).message is None


@pytest.mark.parametrize("kind", STATES)
def test_deltas_and_checkpoints_never_write_arguments(kind: str) -> None:
    state = state_of(kind)
    apply_frame(state, START)
    apply_frame(state, call_start(arguments={"a": 1}))

    def arguments() -> tuple[Any, Any]:
        block = state["streamingMessage"]["content"][0]
        return dict(block["arguments"]), (current_message(state) or {})["content"][0]["arguments"]

    assert arguments() == ({"a": 1}, {"a": 1}) and "json" not in state["frameState"][0]
    apply_frame(state, delta(""))
    assert arguments() == ({"a": 1}, {"a": 1}) and "json" not in state["frameState"][0]
    apply_frame(state, delta('{"b":'))
    assert arguments() == ({"a": 1}, {})
    apply_frame(state, delta("2"))
    assert arguments() == ({"a": 1}, {"b": 2}) and state["frameState"][0]["json"] == '{"b":2'
    apply_frame(state, {"type": "toolcall_checkpoint", "contentIndex": 0, "json": ""})
    assert arguments() == ({"a": 1}, {}) and state["frameState"][0]["json"] == ""
    apply_frame(state, delta("["))
    assert arguments() == ({"a": 1}, [])
    end = {"type": "toolcall_end", "contentIndex": 0, "id": "d", "name": "read", "arguments": {"c": 3}}
    apply_frame(state, end)
    assert arguments() == ({"c": 3}, {"c": 3})  # authoritative, whatever the text says
    assert state["frameState"][0]["ended"] is True


def test_nothing_of_a_frame_is_shared_with_the_state() -> None:
    frames: list[Any] = copy.deepcopy([START, call_start(arguments={"a": [1]})])
    frames.append({"type": "toolcall_end", "contentIndex": 0, "id": "c", "name": "n", "arguments": {"a": [2]}})
    before = spelled(frames)
    state: dict[str, Any] = {}
    for frame in frames:
        apply_frame(state, frame)
        for block in state["streamingMessage"]["content"]:
            block["arguments"]["a"].append("changed")
    assert spelled(frames) == before
    message = current_message(state)
    assert message and message["content"][0]["arguments"] == {"a": [2, "changed"]}
    message["content"].clear()
    assert state["streamingMessage"]["content"]


def test_nesting_that_only_a_plain_state_can_hold() -> None:
    deep: Any = {}
    for _ in range(300):
        deep = [deep]
    end = {"type": "toolcall_end", "contentIndex": 0, "id": "d", "name": "new", "arguments": deep}
    assert fold([START, call_start(), end]) is not None
    state = Replicated()
    for frame in (START, call_start()):
        apply_frame(state, frame)
    state.replicate()
    for frame in (end, {**call_start(arguments=deep), "contentIndex": 1}):
        with pytest.raises(InvalidInput):
            apply_frame(state, frame)
        assert state.replicate() == []


@pytest.mark.parametrize("kind", STATES)
def test_values_that_cannot_be_held_are_refused_untouched(kind: str) -> None:
    deep: Any = []
    for _ in range(20_000):
        deep = [deep]
    state = taken([START, call_start()], state_of(kind))
    before = spelled(current_message(state)), len(state["frameState"])
    end = {"type": "toolcall_end", "contentIndex": 0, "id": "new", "name": "new", "thoughtSignature": "s"}
    for arguments in (deep, {1: 2}, object(), (1,)):
        for frame in ({**end, "arguments": arguments}, {**call_start(arguments=arguments), "contentIndex": 1}):
            with pytest.raises(InvalidInput):
                apply_frame(state, frame)
            assert (spelled(current_message(state)), len(state["frameState"])) == before
    while deep:
        deep = deep.pop()


def test_numbers_that_json_cannot_hold_are_none_in_frames_and_states() -> None:
    frames: list[Any] = [START, call_start(arguments={"a": float("inf")})]
    message = fold(frames)
    assert message and message["content"][0]["arguments"] == {"a": None}
    message = fold([*frames, delta('{"a":1e999')])
    assert message and message["content"][0]["arguments"] == {"a": float("inf")}  # derived, and still in memory


def test_errors_name_frame_and_index_and_no_bodies() -> None:
    secret = "do not tell"
    state = taken([START, TEXT], {})
    bad: list[dict[str, Any]] = [
        delta(secret, 3, "text"),
        delta([secret], 0, "text"),
        delta(secret, secret, "text"),
        {"type": "text_end", "contentIndex": 0, "content": {secret: secret}},
        {"type": "thinking_start", "contentIndex": 0, "content": {"type": secret}},
    ]
    for frame in bad:
        with pytest.raises(InvalidFrame) as caught:
            apply_frame(state, frame)
        assert secret not in str(caught.value) and caught.value.remedy
        assert frame["type"] in caught.value.cause


# -- hostile input

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text(max_size=3) | st.builds(object),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from(
    [f"{kind}_{part}" for kind in ("text", "thinking", "toolcall") for part in ("start", "delta", "end")]
    + ["start", "toolcall_checkpoint", "done", "error", "of tomorrow"]
)
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "toolCall"])},
    optional={
        "text": st.text(max_size=3) | JUNK,
        "thinking": st.text(max_size=3) | JUNK,
        "arguments": JUNK,
        "id": st.just("i") | JUNK,
        "name": st.just("n") | JUNK,
        "textSignature": JUNK,
    },
)
HOSTILE = st.fixed_dictionaries(
    {"type": NAMES},
    optional={
        "contentIndex": st.integers(0, 4) | JUNK,
        "delta": st.text(max_size=3) | JUNK,
        "json": st.text(max_size=3) | JUNK,
        "content": st.text(max_size=3) | BLOCKS | JUNK,
        "toolCall": BLOCKS | JUNK,
        "partial": st.fixed_dictionaries({"content": st.lists(BLOCKS, max_size=5) | JUNK}) | JUNK,
        "arguments": JUNK,
        "id": st.just("i") | JUNK,
        "name": st.just("n") | JUNK,
        "thoughtSignature": JUNK,
        "redacted": JUNK,
    },
)


@given(st.lists(HOSTILE | JUNK, max_size=5), st.integers(0, 4), st.sampled_from(STATES))
@settings(max_examples=400)
def test_hostile_frames_are_refused_with_the_state_untouched(hostile: Any, begun_with: int, kind: str) -> None:
    state = taken(OPEN[:begun_with], state_of(kind))
    for frame in hostile:
        if isinstance(state, Replicated):
            state.replicate()
            before = spelled(state.replica)
        else:
            before = spelled(state)
        try:
            apply_frame(state, frame)
        except InvalidFrame:
            if isinstance(state, Replicated):
                assert state.replicate() == []
            assert spelled(state.replica if isinstance(state, Replicated) else state) == before
        spelled(current_message(state))


@given(st.lists(HOSTILE | JUNK, max_size=5))
@settings(max_examples=300)
def test_hostile_events_raise_nothing_but_the_typed_error(hostile: Any) -> None:
    encoder = begun({"type": "text", "text": "ab"}, {"type": "thinking", "thinking": ""}, copy.deepcopy(CALL))
    for event in hostile:
        try:
            frame = encoder.encode(event)
        except InvalidEvent:
            continue
        json.dumps(frame, allow_nan=False)


# -- joining

CHUNKS = st.text(st.sampled_from('ab{}":1,[]😀水\ud83d\ude00\\'), max_size=6)
PROGRAMS = st.lists(st.tuples(st.integers(0, 2), CHUNKS), max_size=12)


def stream_of(program: list[tuple[int, str]], cuts: list[int] | None = None) -> list[Any]:
    """The open blocks and their deltas; with cuts, each delta in pieces, which may run through a surrogate pair."""
    frames: list[Any] = list(OPEN)
    for number, (index, text) in enumerate(program):
        units = text.encode("utf-16-le", "surrogatepass")
        at = 0
        kind = ("text", "thinking", "toolcall")[index]
        while cuts and at < len(units):
            size = 2 * cuts[(number + at) % len(cuts)]
            frames.append(delta(units[at : at + size].decode("utf-16-le", "surrogatepass"), index, kind))
            at += size
        if not cuts:
            frames.append(delta(text, index, kind))
    return frames


@given(PROGRAMS, st.lists(st.integers(1, 3), min_size=1, max_size=5))
@example([(0, "😀"), (0, "\ud83d"), (0, "\ude00")], [1])
@settings(max_examples=300)
def test_how_deltas_are_cut_and_joined_does_not_change_the_fold(program: Any, cuts: list[int]) -> None:
    whole, pieces = stream_of(program), stream_of(program, cuts)
    expected = spelled(fold(whole))
    for frames in (pieces, whole):
        before = spelled(frames)
        joined = list(join_frames(frames))
        assert spelled(frames) == before
        assert sum(count for _, count in joined) == len(frames)
        kept = [frame for frame, _ in joined]
        assert spelled(fold(kept)) == expected
        places = [(frame["type"], frame.get("contentIndex")) for frame in kept]
        assert all(a != b for a, b in pairwise(places))  # nothing is left to join
    assert spelled(fold(pieces)) == expected


def test_halves_that_come_in_one_delta_are_a_character() -> None:
    message = fold([*OPEN, delta("\ud83d\ude00", 0, "text"), delta('["\ud83d\ude00', 2)])
    assert message and message["content"][0]["text"] == "😀"
    assert message["content"][2]["arguments"] == ["😀"]
    assert message["content"] == (fold([*OPEN, delta("😀", 0, "text"), delta('["😀', 2)]) or {})["content"]


def test_deltas_of_two_blocks_are_not_joined() -> None:
    frames = [delta(text, index, "text") for text, index in (("a", 0), ("b", 0), ("c", 1), ("d", 0))]
    assert list(join_frames(frames)) == [(delta("ab", 0, "text"), 2), (frames[2], 1), (frames[3], 1)]


def test_joining_meets_halves_and_keeps_order() -> None:
    frames = [delta("\ud83d", 0, "text"), delta("", 0, "text"), delta("\ude00", 0, "text"), TEXT, delta("x", 0, "text")]
    assert list(join_frames(frames)) == [(delta("😀", 0, "text"), 3), (TEXT, 1), (delta("x", 0, "text"), 1)]
    assert list(join_frames([])) == []


@given(st.lists(HOSTILE | JUNK | st.just(delta("a")) | st.just(delta("b", True)) | st.just(delta(1)), max_size=8))
@settings(max_examples=200)
def test_what_is_unknown_passes_the_joiner_as_it_is(frames: list[Any]) -> None:
    joined = list(join_frames(frames))
    assert sum(count for _, count in joined) == len(frames)
    at = 0
    for frame, count in joined:
        if count == 1:
            assert frame is frames[at]
        at += count


# -- the view


def test_a_view_refreshes_arguments_at_start_checkpoint_end_and_on_demand() -> None:
    state: dict[str, Any] = {}
    view = MessageView(state)
    assert view.message is None and view.refresh() is None
    view.apply(START)
    message: Any = view.message

    def arguments() -> Any:
        assert view.message is message
        return view.message["content"][0]["arguments"]

    view.apply(call_start(arguments={"a": 1}))
    assert arguments() == {"a": 1}
    view.apply(delta('{"b":2'))
    assert arguments() == {"a": 1}
    assert view.refresh()["content"][0]["arguments"] == {"b": 2}
    view.apply({"type": "toolcall_checkpoint", "contentIndex": 0, "json": '{"c":3'})
    assert arguments() == {"c": 3}
    with pytest.raises(InvalidFrame):
        view.apply(TEXT)
    view.apply({"type": "toolcall_end", "contentIndex": 0, "id": "c", "name": "n", "arguments": {"d": 4}})
    assert arguments() == {"d": 4} and view.message == current_message(state)
    assert MessageView(state).message == view.message


def test_a_view_of_a_tracked_state_begins_in_the_middle() -> None:
    state = taken([*OPEN, delta('{"a":', 2)], state_of("tracked"))
    view = MessageView(state)
    view.apply(delta("1", 2))
    view.apply(delta("text", 0, "text"))
    assert spelled(view.refresh()) == spelled(current_message(state))
    assert view.message["content"][2]["arguments"] == {"a": 1}


# -- what a delta costs


@pytest.mark.parametrize(("index", "kind"), [(0, "text"), (1, "thinking"), (2, "toolcall")])
def test_a_delta_touches_what_it_brings_however_long_the_message(index: int, kind: str) -> None:
    tally = Tally()
    state = taken(OPEN, SpiedMapping(tally, {}))
    apply_frame(state, delta("x", index, kind))
    costs = set()
    for size in (0, 100_000, 1_000_000):
        if size:
            apply_frame(state, delta("x" * size, index, kind))
        tally.take()
        apply_frame(state, delta("four", index, kind))
        costs.add(tally.take())
    ((read, written, appended),) = costs
    assert appended == 4 and written == 0
    assert read < 20  # a kind


def test_an_update_of_a_tracked_state_never_grows_with_the_message() -> None:
    state = Replicated()
    taken(OPEN, state)
    sizes: list[set[int]] = [set(), set(), set()]
    for _ in range(50):
        for index, kind in enumerate(("text", "thinking", "toolcall")):
            state.replicate()
            apply_frame(state, delta("word " * 20, index, kind))
            sizes[index].add(len(json.dumps(state.replicate())))
    assert max(max(part) for part in sizes) < 250
    message = current_message(state)
    assert spelled(current_message(state.replica)) == spelled(message)
