"""The tracker: Chord's vectors, the interface of dict and list, what is refused, and what an append costs."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import sys
import tracemalloc
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from scopelog.delta import utf16
from scopelog.delta.applying import UNDEFINED, apply
from scopelog.delta.errors import InvalidOp, UnsafePathError
from scopelog.delta.overlap import overlap
from scopelog.delta.recording import MAX_RECORDS
from scopelog.delta.textbuffer import TextBuffer
from scopelog.delta.texts import append_text, drop_text
from scopelog.delta.tracked import TrackedDict, TrackedList
from scopelog.delta.tracker import Tracker, track
from scopelog.errors import InvalidElement, LimitExceeded

CASES = json.loads((Path(__file__).parent / "vectors" / "delta_roundtrip.json").read_text())["cases"]
STEPPED = [case for case in CASES if "steps" in case]
OTHERWISE: dict[str, list[Any]] = {  # shorter than Chord's: a slot has one record, whatever moved in between
    "edit before an insert keeps its own op": [["s", ["l", 1, "n"], 21], ["p", ["l"], 0, 0, [{"n": 0}]]],
    "nested arrays": [["p", ["l", 1], 1, 0, [3, 4]], ["p", ["l"], 0, 0, [[0]]]],
}
NOT_DIRTY = "container assignment: equal value emits nothing but is dirty"  # here it is not even dirty


class Replica:
    """What a reader of the batches has; fed by JSON text, so that nothing is shared with the tracker."""

    def __init__(self) -> None:
        self.value: Any = UNDEFINED

    def feed(self, ops: list[Any]) -> None:
        self.value = apply(self.value, json.loads(json.dumps(ops, allow_nan=False)))


def tracked(value: Any, **settings: Any) -> tuple[Tracker, Replica]:
    """A tracker whose base has gone to the replica."""
    tracker, replica = track(value, **settings), Replica()
    replica.feed(tracker.flush())
    return tracker, replica


def at(tracker: Tracker, path: list[Any]) -> Any:
    node = tracker.state
    for segment in path:
        node = node[segment]
    return node


def play(tracker: Tracker, step: dict[str, Any], held: dict[str, Any], *, by_buffer: bool) -> None:
    """One step of a vector, as Python says it."""
    do, path = step["do"], step.get("path", [])
    if do in ("root", "rebase", "discard"):
        if do == "root":
            tracker.state = copy.deepcopy(step["value"])
        else:
            getattr(tracker, do)()
        return
    if do == "hold":
        held[step["as"]] = at(tracker, path)
        return
    if do == "heldset":
        held[step["as"]][step["key"]] = step["value"]
        return
    if do in ("set", "append", "delete", "undef", "slice"):
        play_slot(at(tracker, path[:-1]), path[-1], step, by_buffer=by_buffer)
    else:
        play_list(at(tracker, path), step)


def play_slot(node: Any, key: Any, step: dict[str, Any], *, by_buffer: bool) -> None:
    match step["do"]:
        case "set" if isinstance(node, TrackedList) and key == len(node):
            node.append(step["value"])
        case "set":
            node[key] = copy.deepcopy(step["value"])
        case "append" if by_buffer:
            append_text(node, key, step["text"])
        case "append":
            node[key] += step["text"]
        case "slice":
            node[key] = utf16.join(utf16.drop(node[key], step["drop"]), step.get("text", ""))
        case _:
            node.pop(key, None)


def play_list(node: Any, step: dict[str, Any]) -> None:
    size, args = len(node), step.get("args", [])
    match step["do"]:
        case "push":
            node.extend(step["items"])
        case "unshift":
            node[0:0] = step["items"]
        case "pop" | "shift" if not size:
            pass
        case "pop":
            node.pop()
        case "shift":
            node.pop(0)
        case "splice" if args:
            start = max(0, size + args[0]) if args[0] < 0 else min(args[0], size)
            count = args[1] if len(args) > 1 else size
            node[start : start + max(0, count)] = args[2:]
        case "splice":
            pass
        case "length" if step["value"] <= size:
            del node[step["value"] :]
        case "length":
            node.extend([None] * (step["value"] - size))
        case "fill":
            node[:] = [*node[: args[1]], *[args[0]] * (size - args[1])]
        case "copyWithin":
            node[:] = [*node[args[1] :], *node[size - args[1] :]]
        case other:
            getattr(node, other)()


def run(case: dict[str, Any], *, by_buffer: bool) -> list[tuple[list[Any], bool]]:
    """Play a case; its flushes, and whether the tracker was dirty before each. Checks convergence on the way."""
    scan = case.get("options", {}).get("maxOverlapScan", 65_536)
    tracker, replica = track(copy.deepcopy(case["initial"]), max_overlap_scan=scan), Replica()
    held: dict[str, Any] = {}
    flushes: list[tuple[list[Any], bool]] = []
    for number, step in enumerate(case["steps"]):
        if step["do"] == "flush":
            dirty = tracker.dirty
            ops = tracker.flush()
            assert json.loads(json.dumps(tracker.target)) == case["flushes"][len(flushes)]["value"]
            replica.feed(ops)
            assert not case["converged"] or replica.value == tracker.target
            flushes.append((ops, dirty))
        elif str(number) not in case["step_errors"]:
            play(tracker, step, held, by_buffer=by_buffer)
        elif case["name"] not in ("undefined element throws", "delete element throws"):  # Python says neither so
            with pytest.raises((UnsafePathError, IndexError, TypeError)):
                play(tracker, step, held, by_buffer=by_buffer)
    assert not tracker.dirty
    return flushes


@pytest.mark.parametrize("by_buffer", [False, True])
@pytest.mark.parametrize("case", STEPPED, ids=lambda case: case["name"])
def test_vector(case: dict[str, Any], by_buffer: bool) -> None:
    flushes = run(case, by_buffer=by_buffer)
    if case["group"] == "random":
        return
    name = case["name"]
    for (ops, dirty), expected in zip(flushes, case["flushes"], strict=True):
        assert ops == (OTHERWISE.get(name, expected["ops"]) if ops[:1] != [["r", case["initial"]]] else expected["ops"])
        assert dirty == (expected["dirty_before"] and (name != NOT_DIRTY or bool(ops)))


@pytest.mark.parametrize("case", [case for case in CASES if case["group"] == "overlap"], ids=lambda case: case["a"][:9])
def test_overlap_vector(case: dict[str, Any]) -> None:
    assert overlap(case["a"], case["b"], case["scan"]) == case["result"]


@pytest.mark.parametrize("case", [case for case in CASES if case["group"] == "collapse"], ids=lambda case: case["name"])
def test_collapse_vector(case: dict[str, Any]) -> None:
    tracker, replica = tracked({"m": {}})
    for number in range(int(case["name"].split()[0])):
        tracker.state["m"][f"k{number}"] = number
    ops = tracker.flush()
    assert (len(ops), ops[0][0] == "r") == (case["op_count"], case["flush_is_base"])
    replica.feed(ops)
    assert replica.value == tracker.target


# What the search for an overlap costs.


def test_overlap_looks_at_the_end_of_long_texts_only() -> None:
    long = "0123456789" * 100_000 + "END"
    assert overlap(long, "END" + long, 64) == 3
    assert overlap("😀" * 100_000 + "END", "END" + "😀" * 100_000, 64) == 3
    assert overlap(long, long, 65_536) == 0  # the head stands in the tail more than eight times before
    assert overlap("\u4241" * 70_000, "\u4142" * 70_000) == 0  # found across two units only


# Text under construction.


class Written:
    """Stands for the module ``io``: counts the characters that buffers are given and give."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written = self.read = 0
        outer = self

        class Counting(io.StringIO):
            def write(self, text: str) -> int:
                outer.written += len(text)
                return super().write(text)

            def getvalue(self) -> str:
                value = super().getvalue()
                outer.read += len(value)
                return value

        self.StringIO = Counting
        monkeypatch.setattr("scopelog.delta.textbuffer.io", self)


def test_an_append_copies_the_delta_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flush hands out the window's text; what is there is copied once, when the first delta comes."""
    counted = Written(monkeypatch)
    tracker, _ = tracked({"t": "x" * 100_000})
    for number in range(1000):
        tracker.state.append_text("t", "abcd")
        assert tracker.flush() == [["a", ["t"], "abcd"]], number
    assert counted.written <= 100_000 + 4000
    assert counted.read == 0
    for _ in range(1000):
        tracker.state.append_text("t", "efgh")
    [[verb, path, text]] = tracker.flush()
    assert (verb, path, text) == ("a", ["t"], "efgh" * 1000)
    assert counted.written <= 100_000 + 8000 + 4000  # the window's own text is another buffer
    assert counted.read == 4000
    assert tracker.state["t"] == "x" * 100_000 + "abcd" * 1000 + "efgh" * 1000
    reads = counted.read
    assert tracker.state["t"] is tracker.state["t"]
    assert counted.read == reads


def calls(action: Callable[[], object]) -> int:
    """How many calls, of Python and of C, an action makes."""
    count = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def test_append_and_flush_take_the_same_steps_in_a_large_tree() -> None:
    def steps(others: int, length: int) -> int:
        leaf = {"text": "x" * length}
        tracker, _ = tracked({"rest": [{"n": [n]} for n in range(others)], "a": {"b": [{"c": {}}] * others + [leaf]}})
        node = tracker.state["a"]["b"][-1]

        def action() -> None:
            node.append_text("text", "abcd")
            assert tracker.flush() == [["a", ["a", "b", others, "text"], "abcd"]]

        action()
        return calls(action)

    assert steps(1, 1) == steps(2000, 200_000) < 30


def test_many_small_deltas_are_not_kept_as_strings() -> None:
    tracker, _ = tracked({"t": ""})
    state = tracker.state
    tracemalloc.start()
    try:
        for number in range(50_000):
            state.append_text("t", f"{number % 10_000:04}")
        kept, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4 * 200_000  # the text and the window's copy, with what they have in reserve; as strings 2.6 MB
    assert tracker.flush()[0][2] == tracker.target["t"]


@pytest.mark.parametrize(
    "deltas", [("\ud83d", "\ude00"), ("\ud83d", "x"), ("\ud83d",), ("\ud83d\ude00",), ("\ude00", "é")]
)
@pytest.mark.parametrize("start", ["", "x", "x\ud83d"])
@pytest.mark.parametrize("flushes", [False, True])
def test_halves_meet_and_lone_ones_stay(start: str, deltas: tuple[str, ...], flushes: bool) -> None:
    tracker = track({"t": start})
    value: Any = apply(UNDEFINED, tracker.flush())
    expected = start
    for delta in deltas:
        append_text(tracker.state, "t", delta)
        expected = utf16.rejoined(expected + delta)
        if flushes:
            value = apply(value, copy.deepcopy(tracker.flush()))
    value = apply(value, tracker.flush())  # as ops, not as JSON text, whose reader would join halves too
    assert value["t"] == tracker.state["t"] == expected


def test_a_text_whose_last_half_got_another_partner_is_no_append() -> None:
    tracker, replica = tracked({"t": "x\ud83d"})
    tracker.state["t"] = "x\U00010000"
    replica.feed(tracker.flush())
    assert replica.value == {"t": "x\U00010000"}


def test_a_buffer_gives_back_every_kind_of_line_end() -> None:
    buffer = TextBuffer("a\r")
    for delta in ("\nb\r\n", "\r", "", "é", "\ud83d"):
        buffer.append(delta)
    assert buffer.text() == "a\r\nb\r\n\ré\ud83d"


def test_text_in_a_run_that_is_closed_stays_what_it_was() -> None:
    tracker, replica = tracked({"l": ["a", "b", "c"]})
    rows = tracker.state["l"]
    rows.append("x")
    rows.append_text(3, "y")
    rows.insert(0, "first")  # closes the run
    rows.append_text(4, "z")
    replica.feed(tracker.flush())
    assert replica.value == {"l": ["first", "a", "b", "c", "xyz"]}


def test_assignment_and_appending_may_be_mixed() -> None:
    tracker, _ = tracked({"t": "0123456789"})
    state = tracker.state
    append_text(state, "t", "ab")
    state["t"] += "cd"
    append_text(state, "t", "ef")
    assert tracker.flush() == [["a", ["t"], "abcdef"]]
    append_text(state, "t", "gh")
    state["t"] = state["t"][8:]
    append_text(state, "t", "ij")
    assert tracker.flush() == [["t", ["t"], 8], ["a", ["t"], "ghij"]]


@pytest.mark.parametrize(("key", "text"), [("n", "x"), ("t", 1), ("t", None), ("l", "x"), ("t", b"x")])
def test_only_str_is_appended_and_only_to_str(key: str, text: Any) -> None:
    tracker, _ = tracked({"t": "a", "n": 1, "l": []})
    for _ in range(2):
        with pytest.raises(TypeError):
            append_text(tracker.state, key, text)
        assert not tracker.dirty
        assert tracker.target == {"t": "a", "n": 1, "l": []}
        tracker.state.append_text("t", "")
    with pytest.raises(KeyError):
        append_text(tracker.state, "nothing", "x")
    with pytest.raises(IndexError):
        append_text(tracker.state["l"], 0, "x")


# Views.


def test_reading_gives_views_and_plain_values() -> None:
    tracker, _ = tracked({"o": {"l": [1, [2], "x"]}, "t": "x", "n": None})
    state = tracker.state
    assert isinstance(state, TrackedDict)
    assert isinstance(state["o"]["l"], TrackedList)
    assert state["o"] is state["o"]
    assert type(state["t"]) is str
    assert state["o"]["l"][-1] == "x"
    assert state["o"]["l"][0:2] == [1, [2]]
    assert [type(item) for item in state["o"]["l"]] == [int, TrackedList, str]
    assert state == {"o": {"l": [1, [2], "x"]}, "t": "x", "n": None} == state
    assert state != {"o": {}}
    assert state["o"]["l"] == [1, [2], "x"]
    assert repr(state["o"]) == "TrackedDict({'l': [1, [2], 'x']})"
    assert repr(state["o"]["l"]) == "TrackedList([1, [2], 'x'])"
    assert list(state) == list(state.keys()) == ["o", "t", "n"]
    assert list(reversed(state)) == ["n", "t", "o"]
    assert dict(state.items())["n"] is None
    assert "t" in state and "z" not in state and [2] in state["o"]["l"] and 7 not in state["o"]["l"]
    assert state["o"]["l"].index(state["o"]["l"][1]) == state["o"]["l"].count([2]) == 1
    assert (len(state), len(state["o"]["l"]), bool(state)) == (3, 3, True)
    with pytest.raises(TypeError):
        hash(state)


def test_text_under_construction_is_seen_everywhere() -> None:
    tracker, _ = tracked({"o": {"t": "a"}, "l": [["a"]]})
    state = tracker.state
    looks: list[Callable[[], bool]] = [
        lambda: state == {"o": {"t": "ab"}, "l": [["ab"]]},
        lambda: {"o": {"t": "ab"}, "l": [["ab"]]} == state,  # noqa: SIM300
        lambda: "'ab'" in repr(state["o"]) and "'ab'" in repr(state["l"]),
        lambda: tracker.target == {"o": {"t": "ab"}, "l": [["ab"]]},
        lambda: ["ab"] in state["l"] and "ab" in state["l"][0],
        lambda: list(state["o"].values()) == ["ab"] == list(state["l"][0]) == state["l"][0][:],
        lambda: state["o"].get("t") == state["o"].pop("t") == state["l"][0].pop(),
        lambda: copy.deepcopy(state) == copy.copy(state) == state.copy() == {"o": {"t": "ab"}, "l": [["ab"]]},
        lambda: pickle.loads(pickle.dumps(state)) == {"o": {"t": "ab"}, "l": [["ab"]]},
        lambda: state["o"] | {} == {"t": "ab"} == {} | state["o"] and state["l"] + [1] == [["ab"], 1],
        lambda: tracker.flush() == [["r", {"o": {"t": "ab"}, "l": [["ab"]]}]],
    ]
    for look in looks:
        tracker.state = {"o": {"t": "a"}, "l": [["a"]]}
        state = tracker.state
        state["o"].append_text("t", "b")
        state["l"][0].append_text(-1, "b")
        assert look()


def test_a_view_assigned_elsewhere_is_copied() -> None:
    tracker, replica = tracked({"a": {"n": 1}, "l": []})
    state = tracker.state
    state["b"] = state["a"]
    state["l"].extend([state["a"], [state["b"]]])
    state["a"]["n"] = 2
    replica.feed(tracker.flush())
    assert replica.value == tracker.target == {"a": {"n": 2}, "b": {"n": 1}, "l": [{"n": 1}, [{"n": 1}]]}


def test_what_is_given_is_copied_and_what_is_given_out_is() -> None:
    shared: dict[str, Any] = {"n": [1]}
    root = {"a": shared, "b": shared}
    tracker = track(root)
    batch = tracker.flush()
    tracker.state["a"]["n"].append(2)
    tracker.state["c"] = shared
    shared["n"] = object()
    assert tracker.target is root
    assert root == {"a": {"n": [1, 2]}, "b": {"n": [1]}, "c": {"n": [1]}}
    assert batch == [["r", {"a": {"n": [1]}, "b": {"n": [1]}}]]
    ops = tracker.flush()
    tracker.state["c"]["n"].append(3)
    assert ops == [["p", ["a", "n"], 1, 0, [2]], ["s", ["c"], {"n": [1]}]]


def test_a_view_can_be_tracked_elsewhere() -> None:
    tracker, _ = tracked({"a": [1]})
    other = track(tracker.state["a"])
    other.state.append(2)
    assert (other.flush(), tracker.flush()) == ([["r", [1, 2]]], [])


def test_removed_views_live_on_and_nobody_hears_of_it() -> None:
    tracker, replica = tracked({"o": {"l": [[1], {"t": "x"}]}, "s": [1]})
    state = tracker.state
    o, rows, inner, item, s = state["o"], state["o"]["l"], state["o"]["l"][0], state["o"]["l"][1], state["s"]
    assert rows.pop(0) is inner
    assert state.pop("o") is o
    state["s"] = 5
    ops = tracker.flush()
    assert ops == [["d", ["o"]], ["s", ["s"], 5]]
    replica.feed(ops)
    inner.append(2)
    item.append_text("t", "y")
    item["z"] = {}
    item["z"]["k"] = rows
    o.clear()
    s.sort()
    with pytest.raises(InvalidElement):
        inner.append(object())
    assert (inner, item, o, s) == ([1, 2], {"t": "xy", "z": {"k": [{"t": "xy", "z": {}}]}}, {}, [1])
    assert not tracker.dirty
    old = state
    tracker.state = {"new": 1}
    replica.feed(tracker.flush())
    old["new"] = 2
    assert not tracker.dirty
    assert replica.value == tracker.target == {"new": 1}


def test_held_elements_follow_renumbering() -> None:
    tracker, replica = tracked([{"n": number} for number in range(5)])
    rows = tracker.state
    last, first = rows[4], rows[0]
    del rows[1:3]
    last["n"] = "last"
    rows.insert(0, None)
    first["n"] = "first"
    rows.reverse()
    last["more"] = 1
    replica.feed(tracker.flush())
    last["again"] = first["again"] = 1
    assert tracker.flush() == [["s", [0, "again"], 1], ["s", [3 - 1, "again"], 1]]
    assert replica.value == [{"n": "last", "more": 1}, {"n": 3}, {"n": "first"}, None]


def test_paths_are_found_again_after_a_window_that_told_nothing_of_moves() -> None:
    tracker, _ = tracked({"l": [{"n": 0}, {"n": 1}]})
    item = tracker.state["l"][0]
    item["n"] = 5
    tracker.flush()
    tracker.rebase()
    tracker.state["l"].reverse()
    tracker.flush()
    item["n"] = 6
    assert tracker.flush() == [["s", ["l", 1, "n"], 6]]


def test_splices_do_not_join_over_a_path_that_would_change() -> None:
    tracker, replica = tracked({"l": [{}, {}, {}], "m": []})
    rows = tracker.state["l"]
    rows.pop(0)
    rows[1]["n"] = 1
    tracker.state["m"].append(0)  # fixes the path of the record before
    rows.pop(0)
    ops = tracker.flush()
    assert [op[0] for op in ops] == ["p", "s", "p", "p"]
    replica.feed(ops)
    assert replica.value == tracker.target


def test_a_scalar_of_another_type_is_a_change() -> None:
    tracker, _ = tracked({"x": 1, "l": [0, [1]]})
    tracker.state["x"] = True
    tracker.state["l"] = [False, [True]]
    assert repr(tracker.flush()) == repr([["s", ["x"], True], ["s", ["l", 0], False], ["s", ["l", 1, 0], True]])


def test_dict_interface() -> None:
    tracker, replica = tracked({"a": 1})
    state = tracker.state
    assert state.setdefault("a", 2) == 1
    assert isinstance(state.setdefault("l", []), TrackedList)
    state["l"] += [1, 2]
    state["l"] *= 2
    state |= {"b": 2}
    state.update([("c", 3)], d={"e": 4})
    assert state.popitem() == ("d", {"e": 4})
    assert state.pop("c") == 3 and state.pop("c", None) is None and state.get("c", 7) == 7
    assert state | {"z": 1} == {"a": 1, "l": [1, 2, 1, 2], "b": 2, "z": 1} == {"z": 1} | state
    missing: list[Callable[[], object]] = [
        lambda: state.pop("c"),
        lambda: state["c"],
        lambda: state.__delitem__("c"),
    ]
    for action in missing:
        with pytest.raises(KeyError):
            action()
    replica.feed(tracker.flush())
    assert replica.value == tracker.target == {"a": 1, "l": [1, 2, 1, 2], "b": 2}
    tracker.state |= {"a": 5}
    assert tracker.flush() == [["s", ["a"], 5]]
    state.clear()
    with pytest.raises(KeyError):
        state.popitem()
    replica.feed(tracker.flush())
    assert replica.value == {}


def test_list_interface() -> None:
    tracker, replica = tracked({"l": [3, 1, 2]})
    rows = tracker.state["l"]
    model = [3, 1, 2]
    actions: list[Callable[[Any], object]] = [
        lambda one: one.append(5),
        lambda one: one.insert(-1, 7),
        lambda one: one.insert(99, 8),
        lambda one: one.sort(),
        lambda one: one.sort(key=lambda item: -item, reverse=True),
        lambda one: one.reverse(),
        lambda one: one.remove(7),
        lambda one: one.pop(-2),
        lambda one: one.__setitem__(-1, 9),
        lambda one: one.__setitem__(slice(1, 2), [4, 4]),
        lambda one: one.__setitem__(slice(None, None, 2), [6] * len(one[::2])),
        lambda one: one.__delitem__(slice(None, None, -2)),
        lambda one: one.__delitem__(-1),
        lambda one: one.extend(n for n in (1, 2)),
        lambda one: one.extend(one),
        lambda one: one.__imul__(2),
        lambda one: one.__setitem__(slice(5, 1), [0]),
        lambda one: one.__imul__(0),
        lambda one: one.clear(),
    ]
    for number, action in enumerate(actions):
        assert action(rows) == action(model) or number in (15,)
        assert rows == model, number
        replica.feed(tracker.flush())
        assert replica.value == {"l": model}, number
    assert rows * 2 == 2 * rows == [] and rows + [1] == [1]  # noqa: RUF005


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (lambda rows: rows[9], IndexError),
        (lambda rows: rows[-9], IndexError),
        (lambda rows: rows.__setitem__(2, 1), IndexError),
        (lambda rows: rows.__setitem__(-3, 1), IndexError),
        (lambda rows: rows.__delitem__(2), IndexError),
        (lambda rows: rows.pop(2), IndexError),
        (lambda rows: rows.append_text(2, "x"), IndexError),
        (lambda rows: rows.remove(77), ValueError),
        (lambda rows: rows.__setitem__(True, 1), InvalidOp),
        (lambda rows: rows.insert(False, 1), InvalidOp),
        (lambda rows: rows[False], InvalidOp),
        (lambda rows: rows["0"], TypeError),
        (lambda rows: rows.__setitem__("0", 1), TypeError),
        (lambda rows: rows.__setitem__(slice(None, None, 2), []), ValueError),
        (lambda rows: rows.__setitem__(slice(0, 1), 5), TypeError),
        (lambda rows: rows.sort(), TypeError),
        (lambda rows: rows.sort(key=lambda item: item["no"]), (TypeError, KeyError)),
        (lambda rows: rows.extend([1, (2,)]), InvalidElement),
        (lambda rows: rows.__setitem__(slice(0, 2), [1, {1: 1}]), InvalidOp),
    ],
)
def test_a_list_refuses_before_it_changes(action: Callable[[Any], object], error: type[Exception]) -> None:
    tracker, _ = tracked({"l": [{}, "x"]})
    with pytest.raises(error):
        action(tracker.state["l"])
    assert not tracker.dirty
    assert tracker.target == {"l": [{}, "x"]}


class Colour(StrEnum):
    RED = "red"


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append({"v": value})
    return value


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ((1,), InvalidElement),
        ({1}, InvalidElement),
        (b"x", InvalidElement),
        (object(), InvalidElement),
        (math.nan, InvalidElement),
        (-math.inf, InvalidElement),
        (OrderedDict(a=1), InvalidElement),
        (Counter("a"), InvalidElement),
        (Colour.RED, InvalidElement),
        ([{"a": [object()]}], InvalidElement),
        ({"\ud83d\ude00": 1}, InvalidElement),
        ({1: 2}, InvalidOp),
        ({"a": {None: 2}}, InvalidOp),
        (cyclic(), LimitExceeded),
        (nested(256), LimitExceeded),
    ],
)
def test_a_value_that_is_not_json_is_refused_before_anything_changes(value: Any, error: type[Exception]) -> None:
    tracker, _ = tracked({"a": 1, "l": [1, 2]})
    rows = tracker.state["l"]
    actions: list[Callable[[], object]] = [
        lambda: tracker.state.__setitem__("a", value),
        lambda: tracker.state.setdefault("b", value),
        lambda: tracker.state.update(b=1, c=value),
        lambda: rows.__setitem__(0, value),
        lambda: rows.append(value),
        lambda: rows.insert(0, value),
        lambda: rows.extend([1, value]),
        lambda: rows.__setitem__(slice(0, 1), [1, value]),
        lambda: setattr(tracker, "state", [value]),
        lambda: track({"a": value}),
    ]
    for action in actions:
        with pytest.raises(error) as caught:
            action()
        assert caught.value.remedy  # type: ignore[attr-defined]
    assert not tracker.dirty
    assert tracker.target == {"a": 1, "l": [1, 2]}


def test_nesting_up_to_the_limit_works() -> None:
    tracker, replica = tracked({"a": None})
    tracker.state["a"] = nested(255)
    replica.feed(tracker.flush())
    deepest = tracker.state["a"]
    while deepest:
        deepest = deepest[0]
    deepest.append("x")
    assert [op[0] for op in tracker.flush()] == ["p"]
    with pytest.raises(LimitExceeded):
        deepest.append([])
    with pytest.raises(InvalidOp):
        track("text")  # type: ignore[arg-type]
    with pytest.raises(InvalidOp):
        tracker.state = None


@pytest.mark.parametrize("name", ["__proto__", "constructor", "prototype"])
def test_reserved_names_cannot_be_addressed(name: str) -> None:
    tracker, _ = tracked({"a": {name: {"x": 1, "l": ["t"]}, "k": 1}})
    a = tracker.state["a"]
    inner = a[name]
    actions: list[Callable[[], object]] = [
        lambda: a.__setitem__(name, 1),
        lambda: a.__delitem__(name),
        lambda: a.update({"k": 2, name: 1}),
        lambda: a.clear(),
        lambda: a.setdefault(name + "", 1) and a.pop(name),
        lambda: inner.__setitem__("x", 2),
        lambda: inner.append_text("l", "x"),
        lambda: inner["l"].append_text(0, "x"),
        lambda: inner["l"].append(1),
        lambda: inner["l"].__setitem__(0, 1),
        lambda: inner["l"].sort(),
        lambda: inner["l"].pop(),
    ]
    for action in actions:
        with pytest.raises(UnsafePathError):
            action()
    assert not tracker.dirty
    assert inner["l"][0] == "t"  # reading is free
    tracker.state["a"] = {name: 2}
    assert tracker.flush() == [["s", ["a"], {name: 2}]]


@pytest.mark.parametrize("key", [1, None, True, b"a", ("a",)])
def test_a_key_that_is_no_str_is_refused(key: Any) -> None:
    tracker, _ = tracked({"a": 1})
    with pytest.raises(InvalidOp):
        tracker.state[key] = 1
    with pytest.raises(InvalidOp):
        tracker.state.update({"b": 1, key: 2})
    assert key not in tracker.state
    assert not tracker.dirty


# The window.


def test_more_changes_than_are_kept_become_a_base() -> None:
    tracker, replica = tracked({"l": [], "m": {}})
    rows, m = tracker.state["l"], tracker.state["m"]
    for number in range(3 * MAX_RECORDS):
        rows.append(number)
        m["last"] = number  # one record each, however often
    assert [op[0] for op in tracker.flush()] == ["p", "s"]
    replica = Replica()
    tracker.rebase()
    replica.feed(tracker.flush())
    for number in range(MAX_RECORDS):  # a ring: every append and every removal is a splice of its own
        rows.append(number)
        rows.pop(0)
    assert [op[0] for op in tracker.flush()] == ["r"]


def test_rebase_and_discard() -> None:
    tracker = track({"a": 1})
    assert tracker.dirty
    tracker.discard()
    assert tracker.flush() == [["r", {"a": 1}]]
    tracker.state["a"] = 2
    tracker.discard()
    assert not tracker.dirty
    assert tracker.flush() == []
    tracker.rebase()
    tracker.state["a"] = 3
    assert tracker.flush() == [["r", {"a": 3}]]
    tracker.state["l"] = [{"n": 1}]
    tracker.discard()
    tracker.state["l"][0]["n"] = 2  # no longer carried by a pending record
    assert tracker.flush() == [["s", ["l", 0, "n"], 2]]


def test_a_dropped_front_is_a_cut_whatever_the_rest_looks_like() -> None:
    """Repetitive text, which a search for overlaps gives up on, is cut and appended to all the same."""
    tracker = track({"t": "ab" * 20_000, "plain": 1})
    replica = apply(UNDEFINED, tracker.flush())
    for _ in range(3):
        append_text(tracker.state, "t", "ab" * 50)
        drop_text(tracker.state, "t", 60)
        drop_text(tracker.state, "t", 40)
    ops = tracker.flush()
    assert ops == [["t", ["t"], 300], ["a", ["t"], "ab" * 150]]
    replica = apply(replica, ops)
    assert replica == tracker.target
    drop_text(tracker.state, "t", 10)
    assert tracker.flush() == [["t", ["t"], 10]]
    drop_text(tracker.state, "t", 10**9)
    assert tracker.state["t"] == "" and apply(replica, [["t", ["t"], 10], *tracker.flush()])["t"] == ""
    drop_text(tracker.state, "t", 1)
    assert tracker.flush() == []
    append_text(tracker.state, "t", "\U0001f600x")
    tracker.flush()
    drop_text(tracker.state, "t", 1)
    append_text(tracker.state, "t", "y")
    drop_text(tracker.state, "t", 3)  # into what was added
    assert tracker.state["t"] == "" and tracker.flush() == [["s", ["t"], ""]]


def test_drop_text_refuses_what_it_cannot_do() -> None:
    tracker = track({"t": "abc", "n": 1})
    tracker.flush()
    for key, units in (("n", 1), ("t", -1), ("t", True), ("t", 1.0)):
        with pytest.raises(InvalidOp):
            drop_text(tracker.state, key, units)  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        drop_text(tracker.state, "none", 1)
    assert tracker.flush() == [] and tracker.target == {"t": "abc", "n": 1}
    plain = {"t": "a\U0001f600b"}
    drop_text(plain, "t", 2)
    assert plain == {"t": "\ude00b"}
    with pytest.raises(TypeError):
        drop_text(plain, "t", -1)
