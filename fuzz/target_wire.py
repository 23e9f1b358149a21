"""Op batches on any JSON: what the decoder takes, what states made of ops come to, and what joining leaves of them.

Streams of ops that fit are told by plain steps, which find their place in the value as it is then. The naive second
reading here keeps strings as UTF-16 and knows no ids, no shared payloads and no shortcuts.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from fuzz.domains import Blob, Build, Domain, Either, Many, Mapped, Nested, Number, One, Text
from scopelog.delta import (
    UNDEFINED,
    Decoder,
    Encoder,
    InvalidOp,
    PathError,
    UnsafePathError,
    apply,
    apply_immutable,
    diff_revisions,
    join_batches,
    overlap,
    utf16,
)
from scopelog.delta.ops import SHORT_LENGTH

REFUSALS: Final = (InvalidOp, UnsafePathError, PathError)
_UNITS: Final = "utf-16-le"


class Step(NamedTuple):
    """An op to come: ``place`` picks a place in the value as it is then, the rest what happens there."""

    verb: str
    place: int
    key: str
    value: Any
    text: str
    number: int
    many: int


class Stream(NamedTuple):
    """``first``: the base. ``split``: how many batches are decoded before the rest of them is joined."""

    first: Any
    batches: list[list[Step]]
    split: int


class Hostile(NamedTuple):
    batches: list[Any]


TEXTS: Final = Text("ab\u6c34\U0001f600\ud83d\ude00", 6)
_KEYS: Final = One("a", "b", "0", "1e+21", "\U0001f600", "")
_SCALARS: Final = Either[Any](One(None, True, False, 1.0, 0.5), Number(-3, 3), TEXTS, TEXTS)
VALUES: Final = Nested(_SCALARS, _KEYS, depth=3, width=3)
_STEPS: Final = Build(
    Step,
    verb=One(*"aaaattssdpmr"),
    place=Number(0, 255),
    key=_KEYS,
    value=VALUES,
    text=TEXTS,
    number=Number(0, 4),
    many=Number(0, 4),
)
_ODD: Final = One[Any](
    -1, 0, 1, 2, 0.0, 1.0, 0.5, 2.0, 10**21, 10**400, -(10**400), 1e308, True, None, "__proto__", "constructor",
    "prototype", float("nan"), float("inf"), "a", [], {}, [[]],
)  # fmt: skip
_SEGMENTS: Final = Either[Any](_KEYS, Number(0, 3), _KEYS, _ODD)
_REFS: Final = Either[Any](Many(_SEGMENTS, 0, 3), Number(0, 2), Mapped(_KEYS, lambda key: [key]), _ODD)
_VERBS: Final = One(*"rsdatpm#x")
_WIRE_OPS: Final = Either[Any](
    Build(lambda verb, ref, value: [verb, ref, value], verb=_VERBS, ref=_REFS, value=Either[Any](VALUES, _ODD)),
    Build(lambda verb, value: [verb, value], verb=_VERBS, value=Either[Any](VALUES, _ODD, _REFS)),
    Build(lambda id_, path: ["#", id_, path], id_=Either[Any](Number(0, 2), _ODD), path=_REFS),
    Build(lambda ref, text: ["a", ref, text], ref=_REFS, text=TEXTS),
    Build(
        lambda ref, index, count, items: ["p", ref, index, count, items],
        ref=_REFS, index=Either[Any](Number(0, 4), _ODD), count=Either[Any](Number(0, 4), _ODD), items=VALUES,
    ),
    Build(lambda ref, order: ["m", ref, order], ref=_REFS, order=Many(Either[Any](Number(0, 2), _ODD), 0, 3)),
    VALUES,
    Many(_ODD, 0, 5),
)  # fmt: skip


def _spoken(data: bytes) -> Hostile:
    """Bytes as JSON, if they are."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return Hostile([])
    return Hostile(found if isinstance(found, list) else [found])


WIRES: Final[Domain[Stream | Hostile]] = Either[Stream | Hostile](
    Mapped(Blob(), _spoken),
    *[Build(Stream, first=VALUES, batches=Many(Many(_STEPS, 0, 3), 1, 8), split=Number(0, 8))] * 3,
    *[Build(Hostile, batches=Many(Either[Any](Many(_WIRE_OPS, 0, 4), _ODD), 1, 4))] * 2,
)


def check_wire(case: Stream | Hostile) -> None:
    if isinstance(case, Stream):
        _check_stream(case)
    else:
        _check_hostile(case.batches)


# --- a second reading -----------------------------------------------------------------------------


def same(left: Any, right: Any) -> bool:
    """Equal as JSON: 1 is 1.0 and not True, strings unit by unit."""
    if isinstance(left, bool) or isinstance(right, bool) or left is None or right is None:
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    return left is right or bool(left == right)


def _units(text: str) -> bytes:
    return text.encode(_UNITS, "surrogatepass")


def _joined(*pieces: bytes) -> str:
    return b"".join(pieces).decode(_UNITS, "surrogatepass")


def applied(value: Any, ops: Sequence[Any]) -> Any:
    """What valid ops make of a value, on copies."""
    value = copy.deepcopy(value)
    for op in copy.deepcopy(list(ops)):
        if op[0] == "r":
            value = op[1]
            continue
        *way, last = [None, *op[1]] if op[0] not in "pm" else [None, *op[1], None]
        node = value
        for segment in way[1:]:
            node = node[segment]
        match op[0]:
            case "s" if isinstance(node, list) and last == len(node):
                node.append(op[2])
            case "s":
                node[last] = op[2]
            case "d" if isinstance(node, dict):
                node.pop(last, None)
            case "d":
                del node[last]
            case "a":
                node[last] = _joined(_units(node[last]), _units(op[2]))
            case "t":
                node[last] = _joined(_units(node[last])[2 * op[2] :])
            case "p":
                node[op[2] : op[2] + op[3]] = op[4]
            case "m":
                node[:] = [node[index] for index in op[2]]
    return value


def _places(value: Any, path: list[Any]) -> list[tuple[list[Any], Any]]:
    found = [(path, value)]
    children: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        found += _places(child, [*path, key])
    return found


def op_of(value: Any, step: Step) -> list[Any]:
    """The op that a step comes to: its verb where that fits, else one that does."""
    verb, _, key, new, text, number, many = step
    places = _places(value, [])
    fitting = {"a": str, "t": str, "p": list, "m": list, "s": dict, "d": dict}.get(verb)
    chosen = [place for place in places if fitting and isinstance(place[1], fitting) and (verb not in "at" or place[0])]
    if not chosen:
        return ["r", new]
    path, found = chosen[step.place % len(chosen)]
    match verb:
        case "a":
            return ["a", path, text]
        case "t":
            return ["t", path, many]
        case "p":
            return ["p", path, number, many, [new, text][: many % 3]]
        case "m":
            return ["m", path, [*range(number % (len(found) + 1), len(found)), *range(number % (len(found) + 1))]]
        case "s":
            return ["s", [*path, key], new]
    return ["d", [*path, key]]


# --- checks ---------------------------------------------------------------------------------------


def _check_stream(stream: Stream) -> None:
    encoder, decoder = Encoder(), Decoder()
    value: Any = UNDEFINED
    replica: Any = UNDEFINED
    frozen: Any = UNDEFINED
    run: list[Any] = []
    for number, steps in enumerate([[], *stream.batches]):
        ops: list[Any] = [] if number else [["r", stream.first]]
        before = value
        value = applied(value, ops)
        for step in steps:
            ops.append(op_of(value, step))
            value = applied(value, ops[-1:])
        wire = encoder.encode(copy.deepcopy(ops))
        run.append(json.loads(json.dumps(wire)))
        decoded = decoder.decode(copy.deepcopy(run[-1]))
        assert same(decoded, _met(ops)), f"{ops} came back as {decoded}"
        replica = apply(replica, copy.deepcopy(decoded))
        kept = copy.deepcopy(frozen)
        after = apply_immutable(frozen, copy.deepcopy(decoded))
        assert same(frozen, kept), "what was not to be changed was"
        frozen = after
        assert same(replica, _met(value)) and same(frozen, _met(value)), f"{replica} is not {value}"
        if number:
            _check_difference(_met(before), _met(value))
    _check_joined(run, min(stream.split, len(run)))


def _met(value: Any) -> Any:
    """Halves of a pair that JSON text has brought together are one character."""
    return json.loads(json.dumps(value))


def _check_difference(old: Any, new: Any) -> None:
    kept = copy.deepcopy((old, new))
    ops = diff_revisions(old, new)
    assert same(apply(copy.deepcopy(old), copy.deepcopy(ops)), new), f"from {old} to {new}: {ops}"
    assert same([old, new], [*kept]), "comparing has changed what was compared"
    for text in (old, new):
        for other in (old, new):
            if isinstance(text, str) and isinstance(other, str):
                length = overlap(text, other)
                assert _units(text)[len(_units(text)) - 2 * length :] == _units(other)[: 2 * length]
                _check_text(text, other, length)


def _check_text(text: str, other: str, units: int) -> None:
    assert utf16.length(text) == len(_units(text)) // 2
    assert _units(utf16.drop(text, units)) == _units(text)[2 * units :]
    assert _units(utf16.take(text, units)) == _units(text)[: 2 * units]
    assert _units(utf16.join(text, other)) == _units(text) + _units(other)


def _check_joined(run: list[Any], split: int) -> None:
    """A decoder that has seen the beginning is told the rest as it was, and joined: it cannot tell the difference."""
    kept = copy.deepcopy(run)
    result = join_batches(run[split:])
    assert same(run, kept), "joining has changed what was joined"
    assert sum(count for _, count in result) == len(run) - split, "originals are not accounted for"
    ways = []
    for rest in (run[split:], [batch for batch, _ in result]):
        decoder, value = Decoder(), UNDEFINED
        for batch in [*run[:split], *rest]:
            value = apply(value, copy.deepcopy(decoder.decode(copy.deepcopy(batch))))
        ways.append((value, decoder._paths))
    assert same(ways[0][0], ways[1][0]), f"joined, {run[split:]} come to {ways[1][0]}, not {ways[0][0]}"
    assert ways[0][1] == ways[1][1], "joined, other ids are known"


def _check_hostile(batches: list[Any]) -> None:
    decoder, encoder, mirror = Decoder(), Encoder(), Decoder()
    paths: dict[Any, Any] = {}
    taken: list[Any] = []
    for batch in batches:
        given = copy.deepcopy(batch)
        try:
            ops = decoder.decode(batch)
        except REFUSALS as error:
            assert error.cause and error.remedy
            break
        assert same(batch, given), "decoding has changed the batch"
        assert same(ops, _decoded(given, paths)), f"{given} was read as {ops}"
        taken.append(given)
        again = mirror.decode(encoder.encode(copy.deepcopy(ops)))
        assert same(again, ops), f"{ops} came back as {again}"
        for op in ops:
            assert op[0] == "r" or not {"__proto__", "constructor", "prototype"} & {*map(str, op[1])}, "a hostile path"
    results = join_batches(batches)
    assert sum(count for _, count in results) == len(batches)
    value: Any = UNDEFINED
    decoder = Decoder()
    for batch in taken:
        try:
            value = apply(value, copy.deepcopy(decoder.decode(copy.deepcopy(batch))))
        except REFUSALS:
            return
    if taken:
        _check_joined(taken, 0)


def _decoded(batch: list[Any], paths: dict[Any, Any]) -> list[Any]:
    """A batch that is well-formed."""
    ops = []
    path: Any = None
    for op in batch:
        if op[0] == "#":
            paths[op[1]] = op[2]
        elif op[0] == "r":
            paths.clear()
            ops.append(op)
        elif len(op) == SHORT_LENGTH[op[0]]:
            ops.append([op[0], path, *op[1:]])
        else:
            path = op[1] if isinstance(op[1], list) else paths[op[1]]
            ops.append([op[0], path, *op[2:]])
    return ops
