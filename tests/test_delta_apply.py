"""Ops onto values: the vectors of the other implementation, UTF-16, both appliers against each other, hostile ops."""

from __future__ import annotations

import copy
import tracemalloc
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopelog.delta import UNDEFINED, InvalidOp, PathError, UnsafePathError, apply, apply_immutable, is_base
from scopelog.errors import InvalidInput, ScopelogError
from tests.delta_vectors import (
    ERRORS,
    REFUSALS,
    case_id,
    cases,
    hostile_ops,
    same,
    spoiled_ops,
    streams,
    valid_ops,
    values,
)


def fresh(case: dict[str, Any]) -> tuple[Any, list[Any]]:
    target = UNDEFINED if case.get("target_undefined") else copy.deepcopy(case["target"])
    return target, copy.deepcopy(case["ops"])


@pytest.mark.parametrize("case", cases("delta_apply"), ids=case_id)
def test_vectors_in_place(case: dict[str, Any]) -> None:
    target, ops = fresh(case)
    if "error" not in case:
        assert same(apply(target, ops), case["result"])
        return
    with pytest.raises(ERRORS[case["error"]["name"]]) as caught:
        apply(target, ops)
    assert type(caught.value) is ERRORS[case["error"]["name"]]
    if "target_after_error" in case:
        assert same(target, case["target_after_error"])


@pytest.mark.parametrize("case", cases("delta_apply"), ids=case_id)
def test_vectors_immutable(case: dict[str, Any]) -> None:
    target, ops = fresh(case)
    expected = case.get("immutable", case)
    if "error" in expected:
        with pytest.raises(ERRORS[expected["error"]["name"]]) as caught:
            apply_immutable(target, ops)
        assert type(caught.value) is ERRORS[expected["error"]["name"]]
    else:
        assert same(apply_immutable(target, ops), expected["result"])
    assert same(target, fresh(case)[0])
    assert same(ops, case["ops"])


def test_errors_have_their_places_in_the_tree() -> None:
    for error, kind in ((InvalidOp, TypeError), (UnsafePathError, ValueError), (PathError, LookupError)):
        assert issubclass(error, kind) and issubclass(error, InvalidInput) and issubclass(error, ScopelogError)


@pytest.mark.parametrize(
    ("target", "bad"),
    [
        ({"a": 1}, ["a", ["a"], "SECRET"]),
        ({"a": 1}, ["SECRET", ["a"], 1]),
        ({"a": 1}, ["s", ["SECRET", "SECRET"], "SECRET"]),
        ({"a": 1}, ["t", ["a"], "SECRET"]),
        ([1], ["s", ["SECRET"], "SECRET"]),
        ({"a": []}, ["m", ["a"], ["SECRET"]]),
    ],
)
def test_errors_tell_the_position_and_nothing_of_the_op(target: Any, bad: list[Any]) -> None:
    for function in (apply, apply_immutable):
        with pytest.raises(REFUSALS) as caught:
            function(copy.deepcopy(target), [["r", copy.deepcopy(target)], bad])
        assert isinstance(caught.value, ScopelogError)
        assert "op 1 " in caught.value.cause
        assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("batch", [None, {}, "r", 3, (["r", 1],)])
def test_a_batch_is_a_list(batch: Any) -> None:
    for function in (apply, apply_immutable):
        with pytest.raises(InvalidOp):
            function({}, batch)


def test_undefined_is_no_value() -> None:
    assert not UNDEFINED
    assert repr(UNDEFINED) == "UNDEFINED"
    assert copy.deepcopy(UNDEFINED) is UNDEFINED
    assert apply(UNDEFINED, []) is UNDEFINED
    assert apply(UNDEFINED, [["r", None]]) is None


@pytest.mark.parametrize(
    ("batch", "base"),
    [
        ([["r", 1]], True),
        ([["r", 1], ["s", ["a"], 1]], True),
        ([["s", ["a"], 1], ["r", 1]], False),
        ([["#", 0, ["a"]], ["r", 1]], False),
        ([], False),
        ([[]], False),
        (["r"], False),
        ([3], False),
        (None, False),
    ],
)
def test_a_base_begins_with_a_replacement(batch: Any, base: bool) -> None:
    assert is_base(batch) is base


def test_payload_containers_become_part_of_the_value() -> None:
    payload: dict[str, Any] = {"l": []}
    value = apply(UNDEFINED, [["r", payload]])
    assert value is payload
    item: list[Any] = []
    apply(value, [["p", ["l"], 0, 0, [item]], ["s", ["l", 1], item]])
    assert payload["l"][0] is item and payload["l"][1] is item


def test_immutable_copies_the_path_once_a_batch_and_nothing_else() -> None:
    before: dict[str, Any] = {"a": {"t": "x"}, "b": {"c": []}}
    ops: list[Any] = [
        ["a", ["a", "t"], "y"],
        ["a", ["a", "t"], "z"],
        ["s", ["a", "n"], {"k": 1}],
        ["s", ["a", "n", "k"], 2],
    ]
    kept = copy.deepcopy(ops)
    after = apply_immutable(before, ops)
    assert before == {"a": {"t": "x"}, "b": {"c": []}}
    assert ops == kept
    assert after == {"a": {"t": "xyz", "n": {"k": 2}}, "b": {"c": []}}
    assert after["b"] is before["b"]


@pytest.mark.parametrize(
    ("segment", "key"),
    [(7, "7"), (7.0, "7"), (10**21 - 1, "999999999999999999999"), (10**21, "1e+21"), (1e300, "1e+300"), (-0.0, "0")],
)
def test_a_number_names_the_key_that_javascript_would_make_of_it(segment: Any, key: str) -> None:
    assert apply({}, [["s", [segment], 1]]) == {key: 1}
    assert apply_immutable({key: {}}, [["s", [segment, "a"], 1]]) == {key: {"a": 1}}


def test_an_integer_that_javascript_reads_as_infinite_is_none() -> None:
    for number in (10**400, float("inf"), float("nan"), 10**5000):
        with pytest.raises(UnsafePathError):
            apply({}, [["s", [number], 1]])
        with pytest.raises(InvalidOp):
            apply({"t": ""}, [["t", ["t"], number]])


def test_appending_does_not_copy_what_is_there() -> None:
    size = 8 << 20
    value: dict[str, Any] = {"t": "", "l": [""]}
    for _ in range(100):  # until the interpreter has settled how it runs the append
        apply(value, [["a", ["t"], "x"], ["a", ["l", 0], "x"]])
    tracemalloc.start()
    try:
        apply(value, [["a", ["t"], "y" * size]])
        tracemalloc.reset_peak()
        for _ in range(100):
            apply(value, [["a", ["t"], "z"]])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(value["t"]) == size + 200
    assert peak < size * 3 // 2


class Name(StrEnum):
    TEXT = "t"
    BAD = "constructor"


def test_a_key_of_a_subclass_of_str_is_a_key() -> None:
    assert apply({"t": ""}, [["a", [Name.TEXT], "x"]]) == {"t": "x"}
    with pytest.raises(UnsafePathError):
        apply({}, [["s", [Name.BAD], 1]])


def test_the_payload_of_an_append_or_cut_is_checked_before_its_path() -> None:
    payload_first: list[list[Any]] = [["a", ["__proto__"], 5], ["t", ["__proto__"], "5"], ["a", [], 5]]
    for op in payload_first:
        with pytest.raises(InvalidOp):
            apply({}, [op])
    path_first: list[list[Any]] = [
        ["p", ["__proto__"], "0", 0, []],
        ["m", ["__proto__"], [1]],
        ["a", ["__proto__"], "5"],
    ]
    for op in path_first:
        with pytest.raises(UnsafePathError):
            apply({}, [op])


class Keyed(dict[str, Any]):
    """A dict of a subclass is a container like any other."""


def test_subclasses_of_containers() -> None:
    value = Keyed(t="\ud83d")
    apply(value, [["a", ["t"], "\ude00"], ["s", ["k"], 1]])
    assert value == {"t": "\U0001f600", "k": 1}


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def test_nesting_is_no_danger() -> None:
    depth = 100_000
    deep = nested(depth)
    assert len(apply({}, [["s", ["a"], [deep]], ["p", ["a"], 0, 0, [deep]]])["a"]) == 2
    for op in (["s", [deep], 1], [deep], deep, ["s", deep, 1], ["a", ["a"], deep], ["m", ["a"], deep]):
        for function in (apply, apply_immutable):
            with pytest.raises(REFUSALS):
                function({"a": []}, [op])
    path = [0] * depth
    changed = apply_immutable(deep, [["s", path, "y"]])
    apply(deep, [["s", path, "z"]])
    for value, end in ((changed, "y"), (deep, "z")):
        while isinstance(value, list):
            value = value[0]
        assert value == end


@given(streams())
def test_both_appliers_agree_and_one_changes_nothing(stream: tuple[Any, list[list[Any]]]) -> None:
    first, batches = stream
    value = copy.deepcopy(first)
    revision = copy.deepcopy(first)
    for batch in batches:
        kept, ops = copy.deepcopy(revision), copy.deepcopy(batch)
        after = apply_immutable(revision, batch)
        assert same(revision, kept) and same(batch, ops)
        value = apply(value, ops)
        assert same(after, value)
        revision = after


def refused_or_applied(target: Any, ops: list[Any]) -> None:
    """Both appliers refuse, or both apply to the same effect; one leaves its target alone."""
    kept = copy.deepcopy(target)
    results = []
    for function, value in ((apply_immutable, target), (apply, copy.deepcopy(target))):
        try:
            results.append(function(value, copy.deepcopy(ops)))
        except REFUSALS:
            results.append("refused")
    assert same(target, kept)
    assert same(results[0], results[1])


@given(values, st.lists(hostile_ops, max_size=3))
def test_hostile_ops_are_refused_or_applied(target: Any, ops: list[Any]) -> None:
    refused_or_applied(target, ops)


@given(st.data())
def test_spoiled_ops_are_refused_or_applied(data: st.DataObject) -> None:
    target = data.draw(st.one_of(values, st.just({"a": "", "b": ["x", {"a": "y"}]})))
    op = data.draw(valid_ops(target))
    value = apply(copy.deepcopy(target), [copy.deepcopy(op)])
    refused_or_applied(target, [op, data.draw(spoiled_ops(value))])
