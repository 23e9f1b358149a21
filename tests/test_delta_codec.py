"""Ops to the wire and back: the vectors, recovery at a base, what an encoder forgets, wire batches that mean harm."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopelog.delta import UNDEFINED, Decoder, Encoder, InvalidOp, PathError, UnsafePathError, apply, is_base
from tests.delta_vectors import ERRORS, REFUSALS, case_id, cases, hostile_ops, same, streams


@pytest.mark.parametrize("case", cases("delta_codec"), ids=case_id)
def test_vectors(case: dict[str, Any]) -> None:
    encoder, decoder = Encoder(), Decoder()
    for batch, wire in zip(case["batches"], case["wire"], strict=True):
        if case["group"] != "decode_only":
            assert same(encoder.encode(copy.deepcopy(batch)), wire)
        assert same(decoder.decode(copy.deepcopy(wire)), batch)


@pytest.mark.parametrize("case", cases("delta_codec"), ids=case_id)
def test_vectors_from_the_middle(case: dict[str, Any]) -> None:
    batches, wire = case["batches"], case["wire"]
    if case["group"] != "decode_only":
        assert [at for at, batch in enumerate(wire) if is_base(batch)] == case["base_indexes"]
    for start in case.get("base_indexes", []):
        decoder = Decoder()
        assert same([decoder.decode(batch) for batch in wire[start:]], batches[start:])
    for start, expected in case.get("fresh_decoder_from", {}).items():
        decoder = Decoder()
        if expected == "same":
            assert same([decoder.decode(batch) for batch in wire[int(start) :]], batches[int(start) :])
        elif "error" in expected:
            with pytest.raises(ERRORS[expected["error"]["name"]]):
                for batch in wire[int(start) :]:
                    decoder.decode(batch)
        else:  # succeeds by luck, with other ops
            assert same([decoder.decode(batch) for batch in wire[int(start) :]], expected.get("batches", expected))


@pytest.mark.parametrize("case", cases("delta_decode_errors"), ids=case_id)
def test_vectors_of_errors(case: dict[str, Any]) -> None:
    decoder = Decoder()
    good = case["wire"][: case["error_batch"]]
    assert same([decoder.decode(batch) for batch in good], case["decoded_before"])
    with pytest.raises(ERRORS[case["error"]["name"]]) as caught:
        decoder.decode(case["wire"][case["error_batch"]])
    assert type(caught.value) is ERRORS[case["error"]["name"]]


@pytest.mark.parametrize(
    "case",
    [case for case in cases("delta_roundtrip") if "wire" in case and "described" not in case],
    ids=case_id,
)
def test_vectors_of_trackers(case: dict[str, Any]) -> None:
    encoder, decoder = Encoder(), Decoder()
    value: Any = UNDEFINED
    for flush, wire in zip(case["flushes"], case["wire"], strict=True):
        assert same(encoder.encode(copy.deepcopy(flush["ops"])), wire)
        value = apply(value, decoder.decode(copy.deepcopy(wire)))
        if case["converged"]:
            assert same(value, flush["value"])
    assert same(value, case["replica_final"])


def test_a_number_and_its_text_are_two_paths_and_one_number_is_one() -> None:
    encoder = Encoder()
    wire = [encoder.encode([["s", path, None]]) for path in (["l", 0], ["l", "0"], ["l", 0.0], ["l", "0"], ["l", -0.0])]
    assert wire == [
        [["s", ["l", 0], None]],
        [["s", ["l", "0"], None]],
        [["#", 0, ["l", 0]], ["s", 0, None]],
        [["#", 1, ["l", "0"]], ["s", 1, None]],
        [["s", 0, None]],
    ]


@pytest.mark.parametrize(
    "bad",
    [
        [["s", [True], 1]],
        [["s", ["a"], 1], ["s", ["__proto__"], 1]],
        [["s", ["b"], 1], ["s", ["a"], 1], ["s", ["b"], 1], ["a", ["a"], 5]],
        [["r", {}], ["x"]],
        [["r", {}], ["#", 0, ["a"]]],
        [["s", ["a"], 1], ["s", 2]],
        [["s", [], 1]],
        None,
        [["s", ["new"], 1], None],
    ],
)
def test_a_refused_batch_leaves_the_encoder_as_it_was(bad: Any) -> None:
    good = [["s", ["a"], 1], ["s", ["c"], 1], ["s", ["a"], 1]]
    after = [["s", ["c"], 1], ["s", ["a"], 2], ["s", ["b"], 1], ["s", ["new"], 1], ["s", [1], 1]]
    encoder, twin = Encoder(), Encoder()
    assert encoder.encode(good) == twin.encode(good)
    with pytest.raises((InvalidOp, UnsafePathError)):
        encoder.encode(bad)
    assert encoder.encode(after) == twin.encode(after)


def test_encoding_changes_nothing_of_its_input() -> None:
    ops: list[Any] = [
        ["p", ["l"], 0, 1, [{"a": 1}]],
        ["p", ["l"], 0, 1, []],
        ["s", ["x"], {}],
        ["d", ["l"]],
        ["d", ["x"]],
    ]
    kept = copy.deepcopy(ops)
    encoder = Encoder()
    decoder = Decoder()
    for _ in range(3):
        assert decoder.decode(encoder.encode(ops)) == kept
        assert ops == kept


def test_a_path_sent_once_is_kept_once() -> None:
    path = ["x"] * 1000
    ops = Decoder().decode([["#", 0, path], *[["d", 0] for _ in range(100)]])
    assert all(op[1] is path for op in ops)


@pytest.mark.parametrize("wire", [None, {}, "r", 3, (["r", 1],)])
def test_a_batch_is_a_list(wire: Any) -> None:
    with pytest.raises(InvalidOp):
        Decoder().decode(wire)


@pytest.mark.parametrize("ref", [True, None, float("nan"), float("inf"), 10**400])
def test_a_path_id_is_an_integer(ref: Any) -> None:
    for op in (["s", ref, 1], ["#", ref, ["a"]]):
        with pytest.raises(InvalidOp):
            Decoder().decode([["#", 1, ["a"]], op])


def test_errors_tell_the_position_and_nothing_of_the_op() -> None:
    reserved = ["s", ["__proto__", "SECRET"], "SECRET"]
    faults: list[list[Any]] = [["SECRET"], ["a", "SECRET"], reserved, ["s", 7, "SECRET"], ["t", "SECRET"]]
    for bad in faults:
        with pytest.raises(REFUSALS) as caught:
            Decoder().decode([["r", 1], bad])
        assert "op 1 " in str(caught.value)
        assert "SECRET" not in str(caught.value) and "__proto__" not in str(caught.value)


def test_nesting_is_no_danger() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert Decoder().decode([["s", ["a"], deep]])[0][2] is deep
    assert Encoder().encode([["s", ["a"], deep]])[0][2] is deep
    bad: list[Any] = [["s", [deep], 1], [deep], deep, ["s", deep, 1], ["#", deep, []], ["#", 0, deep], ["m", deep]]
    for op in [*bad, ["p", deep, deep, deep]]:
        with pytest.raises(REFUSALS):
            Decoder().decode([op])
        with pytest.raises(REFUSALS):
            Encoder().encode([op])


@given(streams())
def test_round_trip_and_recovery_at_every_base(stream: tuple[Any, list[list[Any]]]) -> None:
    batches = [[["r", stream[0]]], *stream[1]]
    encoder, decoder = Encoder(), Decoder()
    wire = [encoder.encode(batch) for batch in batches]
    assert same([decoder.decode(batch) for batch in wire], batches)
    for start, batch in enumerate(batches):
        if is_base(batch):
            late = Decoder()
            assert same([late.decode(later) for later in wire[start:]], batches[start:])


@given(st.lists(st.lists(hostile_ops, max_size=3), max_size=3))
def test_hostile_batches_are_refused_or_decoded(wire: list[list[Any]]) -> None:
    decoder, encoder = Decoder(), Encoder()
    for batch in wire:
        try:
            ops = decoder.decode(batch)
        except REFUSALS:
            break
        encoder.encode(ops)  # what a decoder lets through has the right shape


@given(st.lists(hostile_ops, max_size=3))
def test_hostile_ops_are_refused_or_encoded(ops: list[Any]) -> None:
    try:
        wire = Encoder().encode(ops)
    except (InvalidOp, UnsafePathError):
        return
    assert same(Decoder().decode(wire), ops)


def test_an_id_without_a_definition_and_a_path_left_out_first() -> None:
    batches: list[list[Any]] = [[["s", 0, 1]], [["s", 1]], [["#", 0, []], ["d", 0]], [["r", 1], ["d"]]]
    for wire in batches:
        with pytest.raises(PathError):
            Decoder().decode(wire)
