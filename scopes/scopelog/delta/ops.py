"""The vocabulary: what an op looks like, decoded and on the wire, and the checks of its shape.

Ops are plain JSON lists, compatible with Chord 0.87.1::

    ["r", value]                        replace the whole value
    ["s", path, value]                  set a key, or an element; at the length: append
    ["d", path]                         delete a key, or an element and its place
    ["a", path, text]                   append to a string
    ["t", path, count]                  drop UTF-16 units from the front of a string
    ["p", path, index, remove, items]   splice a list; index and remove are clamped
    ["m", path, perm]                   reorder a list: new[i] = old[perm[i]]
    ["#", id, path]                     on the wire only: the id stands for the path from now on

On the wire a path may also be an id, or be left out where it is the previous op's of the same batch. The checks refuse
in Chord's order and touch neither payloads nor anything below a path's segments, so hostile nesting costs nothing.
Errors name the op's position and the fault, never what the op holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from .errors import InvalidOp, UnsafePathError

Segment: TypeAlias = "str | int"  # an integral float is taken as the int it equals
Path: TypeAlias = list[Segment]
Op: TypeAlias = list[Any]  # decoded: its path inline
WireOp: TypeAlias = list[Any]

RESERVED: Final = frozenset({"__proto__", "constructor", "prototype"})
"""Keys that no path may name: other languages' replicas would reach out of the value through them."""

ROOTLESS: Final = frozenset("sdat")
"""Verbs whose path names something within the value, and so may not be empty."""

SHORT_LENGTH: Final = {"s": 2, "d": 1, "a": 2, "t": 2, "p": 4, "m": 2}
"""Length of the wire op that leaves its path out; with its path it is one longer."""

REMEDY: Final = "drop the replica and the decoder, and start again at a base"
_NUMBER_LIMIT: Final = 1 << 1024  # JSON numbers from here on are infinite to the other side
_PLAIN_NUMBERS: Final = 10**21  # JavaScript writes numbers from here on with an exponent


def is_base(batch: list[Op]) -> bool:
    """Whether the batch, decoded or encoded, begins by replacing the whole value: a reader may start there.

    False for what is no batch; whether the ops have the right shape is not looked at.
    """
    return type(batch) is list and bool(batch) and type(batch[0]) is list and batch[0][:1] == ["r"]


def is_count(value: object) -> bool:
    """Whether it is an integer >= 0 as JSON text knows integers: 2.0 is one, True is not."""
    if type(value) is int:
        return 0 <= value < _NUMBER_LIMIT
    if type(value) is float:
        return value >= 0 and value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _NUMBER_LIMIT


def key_text(segment: Segment) -> str:
    """The key that a checked segment means in an object: a number is its text as JavaScript writes it."""
    if isinstance(segment, str):
        return segment
    return str(int(segment)) if segment < _PLAIN_NUMBERS else repr(float(segment))


def check_op(op: object, position: int) -> None:
    """Refuse what is no decoded op: :class:`InvalidOp`, or :class:`UnsafePathError` for a segment of its path."""
    if type(op) is not list or not op:
        raise invalid(position, "is no non-empty list")
    verb = op[0]
    check = _CHECKS.get(verb) if type(verb) is str else None
    if check is None:
        raise invalid(position, "has an unknown verb")
    check(op, position)


def check_wire_op(op: object, position: int) -> None:
    """The same for an op on the wire, where ids, short forms and definitions are legal."""
    if type(op) is not list or not op:
        raise invalid(position, "is no non-empty list")
    verb = op[0]
    check = _WIRE_CHECKS.get(verb) if type(verb) is str else None
    if check is None:
        raise invalid(position, "has an unknown verb")
    check(op, position)


def check_segments(path: list[Any], position: int) -> None:
    """Refuse reserved names and what is neither a string nor an integer >= 0."""
    for segment in path:
        kind = type(segment)
        if kind is str or isinstance(segment, str):
            if segment in RESERVED:
                raise UnsafePathError(f"op {position} has a reserved name in its path", REMEDY)
        elif not is_count(segment):
            raise UnsafePathError(f"op {position} has a segment in its path that is no key and no index", REMEDY)


def invalid(position: int, fault: str) -> InvalidOp:
    """The error for the op at a position of its batch."""
    return InvalidOp(f"op {position} {fault}", REMEDY)


def check_batch(batch: object) -> None:
    """Refuse a batch that is no list."""
    if type(batch) is not list:
        raise InvalidOp("the batch is no list", "pass a list of ops")


def _check_path(op: list[Any], position: int) -> None:
    path = op[1]
    if type(path) is not list:
        raise invalid(position, "has a path that is no list")
    if not path and op[0] in ROOTLESS:
        raise invalid(position, "has an empty path")
    check_segments(path, position)


def _check_ref(ref: object, position: int) -> None:
    if type(ref) is list:
        check_segments(ref, position)
    elif type(ref) is not int and type(ref) is not float:
        raise invalid(position, "has a path that is no list")
    elif not is_count(ref):
        raise invalid(position, "has a path id that is no integer >= 0")


def _check_length(op: list[Any], position: int, *lengths: int) -> None:
    if len(op) not in lengths:
        raise invalid(position, f"({op[0]}) has {len(op)} items")


def _check_text(text: object, position: int) -> None:
    if type(text) is not str:
        raise invalid(position, "(a) appends what is no string")


def _check_count(count: object, position: int, name: str) -> None:
    if not is_count(count):
        raise invalid(position, f"has a {name} that is no integer >= 0")


def _check_splice(index: object, remove: object, items: object, position: int) -> None:
    _check_count(index, position, "splice index")
    _check_count(remove, position, "splice length")
    if type(items) is not list:
        raise invalid(position, "(p) inserts what is no list")


def _check_permutation(perm: object, position: int) -> None:
    if type(perm) is not list:
        raise invalid(position, "(m) has an order that is no list")
    seen = bytearray(len(perm))
    for index in perm:
        if not is_count(index) or index >= len(perm) or seen[int(index)]:
            raise invalid(position, "(m) has an order that is no permutation")
        seen[int(index)] = 1


def _check_r(op: list[Any], position: int) -> None:
    _check_length(op, position, 2)


def _check_s(op: list[Any], position: int) -> None:
    _check_length(op, position, 3)
    _check_path(op, position)


def _check_d(op: list[Any], position: int) -> None:
    _check_length(op, position, 2)
    _check_path(op, position)


def _check_a(op: list[Any], position: int) -> None:
    _check_length(op, position, 3)
    _check_text(op[2], position)  # before the path, as Chord does
    _check_path(op, position)


def _check_t(op: list[Any], position: int) -> None:
    _check_length(op, position, 3)
    _check_count(op[2], position, "count")  # before the path, as Chord does
    _check_path(op, position)


def _check_p(op: list[Any], position: int) -> None:
    _check_length(op, position, 5)
    _check_path(op, position)
    _check_splice(op[2], op[3], op[4], position)


def _check_m(op: list[Any], position: int) -> None:
    _check_length(op, position, 3)
    _check_path(op, position)
    _check_permutation(op[2], position)


def _check_wire(op: list[Any], position: int) -> None:
    """Of s, d, a, t, p and m: the length, then the path if there is one, then the payload."""
    verb = op[0]
    short = SHORT_LENGTH[verb]
    _check_length(op, position, short, short + 1)
    if len(op) > short:
        _check_ref(op[1], position)
    if verb == "a":
        _check_text(op[-1], position)
    elif verb == "t":
        _check_count(op[-1], position, "count")
    elif verb == "p":
        _check_splice(op[-3], op[-2], op[-1], position)
    elif verb == "m":
        _check_permutation(op[-1], position)


def _check_definition(op: list[Any], position: int) -> None:
    if len(op) != 3 or not is_count(op[1]) or type(op[2]) is not list:
        raise invalid(position, "(#) does not define a path id")
    check_segments(op[2], position)


_Check: TypeAlias = Callable[[list[Any], int], None]
_CHECKS: Final[dict[str, _Check]] = {
    "r": _check_r,
    "s": _check_s,
    "d": _check_d,
    "a": _check_a,
    "t": _check_t,
    "p": _check_p,
    "m": _check_m,
}
_WIRE_CHECKS: Final[dict[str, _Check]] = {"r": _check_r, "#": _check_definition, **dict.fromkeys("sdatpm", _check_wire)}
