"""The coalescer: what it makes of runs, and that no decoder can tell the difference, whatever it knew before."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopelog import Store, ephemeral
from scopelog.delta import UNDEFINED, Decoder, Encoder, apply, join_batches
from scopelog.delta.joining import JOINED_CHARS
from tests.delta_vectors import REFUSALS, hostile_ops, same, streams, texts

PATH = ["operation", "text"]


@pytest.mark.parametrize(
    ("run", "joined"),
    [
        # the stream of an answer: known id, then first, second and third use within the run
        ([[["a", 0, "x"]], [["a", 0, "y"]], [["a", 0, "z"]]], [["a", 0, "xyz"]]),
        ([[["a", PATH, "x"]], [["#", 0, PATH], ["a", 0, "y"]], [["a", 0, "z"]]], [["#", 0, PATH], ["a", 0, "xyz"]]),
        ([[["a", 0, "x"], ["a", "y"]], [["a", 0, "z"]]], [["a", 0, "xyz"]]),
        ([[["#", 0, PATH], ["a", 0, "x"]], [["a", PATH, "y"]]], [["#", 0, PATH], ["a", 0, "xy"]]),
        ([[["#", 0, PATH], ["a", PATH, "x"]], [["a", 0, "y"]]], [["#", 0, PATH], ["a", 0, "xy"]]),
        ([[["a", 0, "\ud83d"]], [["a", 0, "\ude00"]]], [["a", 0, "\U0001f600"]]),
        ([[["a", 0, "\ud83d"]], [["a", 0, ""]], [["a", 0, "\ude00\ud83d"]]], [["a", 0, "\U0001f600\ud83d"]]),
        ([[["a", 0, ""]], [["a", 0, ""]]], [["a", 0, ""]]),
        # other ops on one path: the path is left out
        ([[["t", 0, 2], ["a", "x"]], [["t", 0, 1]]], [["t", 0, 2], ["a", "x"], ["t", 1]]),
        ([[["t", 0, 2]], [["t", 0, 3]]], [["t", 0, 5]]),
        ([[["t", 0, 10**300]], [["t", 0, 1]]], [["t", 0, 2**53 - 1]]),
        ([[["d", 0]], [["d", 0]]], [["d", 0], ["d"]]),
        ([[["p", 0, 0, 0, [1]]], [["p", 0, 0, 1, []]]], [["p", 0, 0, 0, [1]], ["p", 0, 1, []]]),
        ([[["m", 0, [1, 0]]], [["m", 0, [1, 0]]]], [["m", 0, [1, 0]], ["m", [1, 0]]]),
        # sets
        ([[["s", 0, 1]], [["s", 0, 2]]], [["s", 0, 2]]),
        ([[["a", 0, "x"]], [["s", 0, [2]]]], [["s", 0, [2]]]),
        ([[["t", 0, 1]], [["s", 0, None]]], [["s", 0, None]]),
        ([[["s", 0, "x"]], [["a", 0, "y"]], [["a", 0, "z"]]], [["s", 0, "xyz"]]),
        ([[["s", 0, "x"]], [["a", 0, "y"]], [["s", 0, 3]]], [["s", 0, 3]]),
        ([[["d", 0]], [["s", 0, 2]]], [["d", 0], ["s", 2]]),
        ([[["s", ["l", 0], 1]], [["s", ["l", "0"], 1]]], [["s", ["l", 0], 1], ["s", ["l", "0"], 1]]),
        # nothing moves across another op
        ([[["a", 0, "x"]], [["a", 1, "y"]], [["a", 0, "z"]]], [["a", 0, "x"], ["a", 1, "y"], ["a", 0, "z"]]),
        # an id of before the run and a path are not known to be the same
        ([[["a", 0, "x"]], [["a", ["t"], "y"]]], [["a", 0, "x"], ["a", ["t"], "y"]]),
        # definitions stay in order; one that changes the meaning of the op's own id stays behind it
        ([[["s", ["a"], 1], ["#", 7, ["b"]]], [["s", ["a"], 2]]], [["s", ["a"], 2], ["#", 7, ["b"]]]),
        ([[["s", 0, 1], ["#", 0, ["b"]]], [["a", 0, "x"]]], [["s", 0, 1], ["#", 0, ["b"]], ["a", 0, "x"]]),
        ([[["s", 0, 1], ["#", 0, ["b"]], ["a", "x"]], []], [["s", 0, 1], ["#", 0, ["b"]], ["a", "x"]]),
        ([[["s", 0, "1"], ["#", 0, ["b"]], ["a", "x"]], []], [["s", 0, "1x"], ["#", 0, ["b"]]]),
        # a base: all that precedes it goes
        (
            [[["#", 0, ["a"]], ["s", 0, 1]], [["s", ["b"], 1], ["r", {}]], [["s", ["a"], 2]]],
            [["r", {}], ["s", ["a"], 2]],
        ),
        ([[["r", 1]], [["r", 2]]], [["r", 2]]),
        ([[], [["a", 0, "x"]], []], [["a", 0, "x"]]),
        ([[], []], []),
    ],
)
def test_what_becomes_of_a_run(run: list[Any], joined: list[Any]) -> None:
    kept = copy.deepcopy(run)
    assert join_batches(run) == [(joined, len(run))]
    assert run == kept


@pytest.mark.parametrize(
    "bad",
    [
        None,
        {},
        "text",
        ["op"],
        [["x"]],
        [["a", "y"]],
        [["s", ["__proto__"], 1]],
        [["s", [], 1]],
        [["#", 0, []], ["d", 0]],
        [["r", 1], ["d", 0]],
        [["a", True, "x"]],
        [["m", 0, [0, 0]]],
    ],
)
def test_a_run_it_does_not_understand_comes_back(bad: Any) -> None:
    run = [[["a", 0, "x"]], [["a", 0, "x"]], bad, [["a", 0, "x"]]]
    assert join_batches(run) == [(batch, 1) for batch in run]


def test_short_runs() -> None:
    assert join_batches([]) == []
    assert join_batches([{"not": "ops"}]) == [({"not": "ops"}, 1)]


def test_a_joined_batch_has_a_size() -> None:
    text = "x" * (JOINED_CHARS // 4)
    result = join_batches([[["a", 0, text]] for _ in range(10)])
    assert [count for _, count in result] == [3, 3, 3, 1]
    assert [batch for batch, _ in result] == [[["a", 0, text * count]] for _, count in result]
    larger = [["a", 0, "x" * (2 * JOINED_CHARS)]]
    assert join_batches([larger, larger]) == [(larger, 1), (larger, 1)]
    nested = [["s", 0, {"k": [text, text]}]]
    assert [count for _, count in join_batches([nested, [["a", 1, text + text]], nested])] == [1, 1, 1]
    assert join_batches([nested] * 5 + [[["r", 1]]]) == [([["r", 1]], 6)]
    small = [["d", 0]]
    assert len(join_batches([small] * 50_000)) > 1


def test_a_set_makes_room_for_what_it_replaces() -> None:
    batch = [["s", 0, "x" * (JOINED_CHARS // 3)]]
    assert join_batches([batch] * 9) == [(batch, 9)]


def test_nesting_is_no_danger() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert len(join_batches([[["s", 0, deep]], [["s", 0, 1]]])) == 1
    for op in (["s", [deep], 1], [deep], deep, ["s", deep, 1], ["#", deep, []], ["#", 0, deep]):
        assert len(join_batches([[["d", 0]], [op]])) == 2


def fold(value: Any, decoder: Decoder, batches: list[Any]) -> Any:
    for batch in batches:
        value = apply(value, decoder.decode([copy.deepcopy(op) for op in batch]))  # ops may share a payload
    return value


def joined(run: list[Any]) -> list[Any]:
    """The run joined; the run itself unharmed, and every original accounted for."""
    kept = copy.deepcopy(run)
    result = join_batches(run)
    assert same(run, kept)
    assert sum(count for _, count in result) == len(run)
    assert all(count > 0 for _, count in result)
    return [batch for batch, _ in result]


@given(streams(), st.data())
def test_no_decoder_can_tell(stream: tuple[Any, list[list[Any]]], data: st.DataObject) -> None:
    """A stream cut into runs at random, joined once and twice: the same values after each run and the same ids."""
    encoder = Encoder()
    wire = [encoder.encode(batch) for batch in [[["r", stream[0]]], *stream[1]]]
    decoders = [Decoder() for _ in range(3)]
    start = data.draw(st.integers(0, len(wire)))
    results = [fold(UNDEFINED, decoder, wire[:start]) for decoder in decoders]
    rest = wire[start:]
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        run, rest = rest[:size], rest[size:]
        once = joined(run)
        half = size // 2
        twice = joined(joined(run[:half]) + joined(run[half:]))
        results = [
            fold(result, decoder, batches)
            for result, decoder, batches in zip(results, decoders, (run, once, twice), strict=True)
        ]
        assert same(results[1], results[0]) and same(results[2], results[0])
        assert ids(decoders[1]) == ids(decoders[0]) and ids(decoders[2]) == ids(decoders[0])


def ids(decoder: Decoder) -> dict[int, str]:
    return {key: repr(path) for key, path in decoder._paths.items()}


PATHS = (["t"], ["o", "t"], ["o", "l", 0], ["o", "n"])
refs = st.one_of(st.sampled_from(PATHS), st.integers(0, 2))
strange_ops = st.one_of(
    st.tuples(st.just("#"), st.integers(0, 2), st.sampled_from(PATHS)),
    st.tuples(st.just("a"), refs, texts),
    st.tuples(st.just("a"), texts),
    st.tuples(st.just("t"), refs, st.integers(0, 2)),
    st.tuples(st.just("t"), st.integers(0, 2)),
    st.tuples(st.just("s"), refs, texts),
    st.tuples(st.just("s"), texts),
    st.tuples(st.just("r"), st.just({"t": "T", "o": {"t": "O", "l": ["L"], "n": "N"}})),
).map(list)


@given(st.lists(st.lists(strange_ops, max_size=5), max_size=5))
def test_streams_of_a_strange_encoder(run: list[Any]) -> None:
    """Ids used before and redefined at will, short forms anywhere: what decodes at all decodes to the same."""
    defined = [[["r", {"t": "T", "o": {"t": "O", "l": ["L"], "n": "N"}}], *(["#", n, PATHS[n]] for n in range(3))]]
    plain, other = Decoder(), Decoder()
    first, second = fold(UNDEFINED, plain, defined), fold(UNDEFINED, other, defined)
    result = joined(run)
    try:
        first = fold(first, plain, run)
    except REFUSALS:
        return
    assert len(result) <= 1
    second = fold(second, other, result)
    assert same(first, second)
    assert ids(plain) == ids(other)


@given(st.lists(st.one_of(hostile_ops, st.lists(hostile_ops, max_size=3)), max_size=4))
def test_hostile_runs_never_raise(run: list[Any]) -> None:
    joined(run)


def test_in_a_store(tmp_path: Any) -> None:
    encoder = Encoder()
    text = ["message", "text"]
    batches: list[Any] = [
        [["r", {"message": {"text": ""}}]],
        *([["a", text, token]] for token in ("He", "l", "lo", "!")),
    ]
    with Store.open(tmp_path / "store") as store, store.session("s") as session:
        pending = ephemeral("op").list_of("chat", "pending", coalescer=join_batches)
        for batch in batches[:3]:
            session.append(pending, encoder.encode(batch))
        session.flush()
        for batch in batches[3:]:
            session.append(pending, encoder.encode(batch))
        session.flush()
        elements = [entry.element for entry in session.read(pending)]
    assert elements == [
        [["r", {"message": {"text": ""}}], ["#", 0, text], ["a", 0, "Hel"]],
        [["a", 0, "lo!"]],
    ]
    assert fold(UNDEFINED, Decoder(), elements) == {"message": {"text": "Hello!"}}
