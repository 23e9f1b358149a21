"""Ops between two revisions: the vectors, what sharing containers means, when a base is cheaper."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopelog.delta import apply, apply_immutable, diff_revisions
from tests.delta_vectors import case_id, cases, same, streams, texts, values


def at(value: Any, path: list[Any]) -> Any:
    for segment in path:
        value = value[segment]
    return value


@pytest.mark.parametrize("case", [case for case in cases("delta_diff_revisions") if "ops" in case], ids=case_id)
def test_vectors(case: dict[str, Any]) -> None:
    before, after = copy.deepcopy(case["before"]), copy.deepcopy(case["after"])
    if case.get("by_reference"):
        moved = at(before, case["path"])
        after = copy.copy(before)
        at(after, case["path"][:-1])[case["path"][-1]] = [moved[index] for index in case["perm"]]
        if case["name"].startswith("duplicates"):  # equal scalars: which of them is which cannot be told
            after = copy.deepcopy(case["after"])
    assert same(after, case["after"])
    ops = diff_revisions(before, after)
    assert same(ops, case["ops"])
    assert same(apply_immutable(before, ops), after)
    assert same(before, case["before"]) and same(after, case["after"])


@pytest.mark.parametrize("case", cases("delta_diff_revisions", "limits"), ids=case_id)
def test_vectors_of_limits(case: dict[str, Any]) -> None:
    count = int(case["name"].split()[0])
    keys = [f"k{index}" for index in range(count)]
    ops = diff_revisions({"m": dict.fromkeys(keys, 0)}, {"m": dict.fromkeys(keys, 1)})
    assert (len(ops), ops[0][0]) == (case["op_count"], case["verb"])


def test_a_shared_container_is_not_looked_into() -> None:
    class Untouchable(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise AssertionError("looked into")

        def items(self) -> Any:
            raise AssertionError("looked into")

    shared = Untouchable(a=1)
    assert diff_revisions({"s": shared, "n": 1}, {"s": shared, "n": 2}) == [["s", ["n"], 2]]
    assert diff_revisions([shared, 1, 2], [shared, 2, 1]) == [["m", [], [0, 2, 1]]]


def test_true_is_not_one_and_a_float_is_the_number_it_equals() -> None:
    assert same(diff_revisions({"a": 1}, {"a": True}), [["s", ["a"], True]])
    assert same(diff_revisions({"a": False}, {"a": 0}), [["s", ["a"], 0]])
    assert diff_revisions({"a": 1, "b": [2.0]}, {"a": 1.0, "b": [2]}) == []
    assert same(diff_revisions([1, True], [True, 1]), [["m", [], [1, 0]]])
    assert same(diff_revisions([{"a": 1}, 0], [{"a": True}]), [["p", [], 0, 2, [{"a": True}]]])


def test_an_append_may_complete_a_character() -> None:
    assert diff_revisions({"t": "x\ud83d"}, {"t": "x\U0001f600y"}) == [["a", ["t"], "\ude00y"]]
    assert diff_revisions({"t": "\ud83d"}, {"t": "\U0001f900"}) == [["s", ["t"], "\U0001f900"]]
    assert diff_revisions(["x\ud83d\ud83d"], ["x\ud83d\U0001f600"]) == [["a", [0], "\ude00"]]


def test_a_reserved_key_on_either_side_replaces_its_object() -> None:
    for before, after in (({"constructor": 1, "a": 1}, {"a": 2}), ({"a": 1}, {"prototype": 1, "a": 2})):
        assert diff_revisions({"o": before}, {"o": after}) == [["s", ["o"], after]]
        assert diff_revisions(before, after) == [["r", after]]


@pytest.mark.parametrize(("misleading", "found"), [(0, True), (15, True), (16, False)])
def test_a_shift_is_looked_for_at_sixteen_places(misleading: int, found: bool) -> None:
    before = ["w", *[1, 5] * misleading, 1, 2]
    after = [1, 2, *["y"] * (len(before) - 2)]
    ops = diff_revisions(before, after)
    assert ([op[:4] for op in ops] == [["p", [], 0, len(before) - 2], ["p", [], 2, 0]]) is found
    assert same(apply_immutable(before, ops), after)


def test_a_large_delta_gives_way_to_a_base_that_is_no_larger() -> None:
    text = "x" * 70_000
    assert diff_revisions({"a": 1}, {"a": text}) == [["r", {"a": text}]]
    assert diff_revisions({"a": 1, "b": "kept"}, {"a": text, "b": "kept"}) == [["s", ["a"], text]]
    before = {f"k{index}": 0 for index in range(4000)}
    after = dict.fromkeys(before, 1)
    assert diff_revisions(before, after) == [["r", after]]
    kept = {**before, "text": text}
    assert len(diff_revisions(kept, {**after, "text": text})) == 4000


def test_numbers_of_any_size_have_a_cost() -> None:
    numbers = [10**5000, 1e300, 1e-7, -1, 0.5, None, True, False] * 3000
    assert diff_revisions({"a": []}, {"a": numbers, "b": ""})[0][0] in ("r", "p")


def test_nesting_is_no_danger() -> None:
    before: Any = "x"
    after: Any = "y"
    for _ in range(20_000):
        before, after = [before], [after]
    ops = diff_revisions({"a": before, "b": [before]}, {"a": after, "b": [after, 1]})
    assert [op[0] for op in ops] == ["s", "p"] or [op[0] for op in ops] == ["r"]


@given(values, values)
def test_ops_lead_from_one_to_the_other(before: Any, after: Any) -> None:
    kept = copy.deepcopy((before, after))
    ops = diff_revisions(before, after)
    assert same(apply_immutable(before, ops), after)
    assert same(apply(copy.deepcopy(before), copy.deepcopy(ops)), after)
    assert same([before, after], list(kept))
    if same(before, after):
        assert ops == []


@given(streams())
def test_ops_follow_a_history_of_revisions(stream: tuple[Any, list[list[Any]]]) -> None:
    revision, batches = stream
    replica = copy.deepcopy(revision)
    for batch in batches:
        after = apply_immutable(revision, batch)
        replica = apply(replica, copy.deepcopy(diff_revisions(revision, after)))
        assert same(replica, after)
        revision = after


@given(st.lists(st.one_of(values, texts), max_size=6), st.randoms(use_true_random=False))
def test_moved_elements_are_one_reordering(elements: list[Any], random: Any) -> None:
    after = random.sample(elements, len(elements))
    ops = diff_revisions({"l": elements}, {"l": after})
    assert same(apply_immutable({"l": elements}, ops), {"l": after})
    assert [op[0] for op in ops] in ([], ["m"])
