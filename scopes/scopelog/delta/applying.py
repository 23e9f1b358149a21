"""The applier: decoded ops onto a value, in place or onto copies of what they change.

Per op, in this order: shape and segments, resolution, effect. A batch is no transaction: when an op is refused, those
before it stay applied and the stream is dead (see :mod:`.errors`). Source: Chord 0.87.1, ``apply``, ``applyImmutable``.
"""

from __future__ import annotations

import enum
from typing import Any, Final, TypeAlias

from scopelog_engine.elements import Json

from . import utf16
from .errors import PathError, UnsafePathError
from .ops import REMEDY, Op, Path, Segment, check_batch, check_op, invalid, key_text
from .texts import AppendsText, append_text


class Undefined(enum.Enum):
    """No value yet: what a replica holds before its first base. It is no JSON and equals nothing but itself."""

    UNDEFINED = "UNDEFINED"

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "UNDEFINED"


UNDEFINED: Final = Undefined.UNDEFINED

_Container: TypeAlias = "dict[str, Json] | list[Json]"
_CONTAINERS: Final = (dict, list)
_MISSING: Final = object()


def apply(target: Json, ops: list[Op]) -> Json:
    """Apply a decoded batch to ``target`` in place and return the value, which is another object after an ``r``.

    ``target`` is plain JSON or ``UNDEFINED``, on which only ``r`` works. Containers that ops carry become part of the
    value and are not copied: one batch in memory feeds one value. Work grows with the ops, except that splices take
    what a list splice takes and ``t`` what copying the string takes.

    Raises :class:`InvalidOp` (shape), :class:`UnsafePathError` (segment), :class:`PathError` (leads nowhere, or to
    something of another kind); earlier ops of the batch stay applied.
    """
    check_batch(ops)
    for position, op in enumerate(ops):
        check_op(op, position)
        if op[0] == "r":
            target = op[1]
        else:
            _change(target, op, position)
    return target


def apply_immutable(target: Json, ops: list[Op]) -> Json:
    """Like :func:`apply`, but ``target`` and ``ops`` keep their contents: containers on an op's path are copied, once
    for the whole batch, and everything else is shared with them.

    Raises the same errors. Where an op is wrong in two ways the class may be another one, because the path is
    followed before the op is checked (as in Chord).
    """
    check_batch(ops)
    copies: dict[int, _Container] = {}  # by id: made by this call, and alive as long as they are listed here
    for position, op in enumerate(ops):
        if type(op) is not list or not op or op[0] == "r":
            check_op(op, position)
            target = op[1]
            continue
        if len(op) < 2 or type(op[1]) is not list:
            raise invalid(position, "has no path, or one that is no list")
        target = _copied(target, op[1] if op[0] == "p" or op[0] == "m" else op[1][:-1], position, copies)
        check_op(op, position)
        _change(target, op, position)
    return target


def _copied(root: Json, path: Path, position: int, copies: dict[int, _Container]) -> _Container:
    """The value with every container on the path replaced by a copy that this call owns."""
    top = node = _own(root, position, copies)
    for segment in path:
        if isinstance(node, dict):
            if not isinstance(segment, str | int | float) or isinstance(segment, bool):
                raise _nowhere(position)
            key: Any = segment if isinstance(segment, str) else _number_key(segment, position)
            if key not in node:
                raise _nowhere(position)
        else:
            key = _index(node, segment, position)
        child = _own(node[key], position, copies)
        node[key] = child
        node = child
    return top


def _number_key(segment: Segment, position: int) -> str:
    try:
        return key_text(segment)
    except (OverflowError, ValueError):  # too large for a number, or not finite
        raise _nowhere(position) from None


def _own(value: Json, position: int, copies: dict[int, _Container]) -> _Container:
    if id(value) in copies:
        return copies[id(value)]
    if not isinstance(value, _CONTAINERS):
        raise _nowhere(position)
    copy: _Container = dict(value) if isinstance(value, dict) else list(value)
    copies[id(copy)] = copy
    return copy


def _change(root: Json, op: Op, position: int) -> None:
    """The effect of a checked op other than ``r``."""
    verb, path = op[0], op[1]
    if verb == "p" or verb == "m":
        target = _resolve(root, path, len(path), position)
        if not isinstance(target, list) or (verb == "m" and len(target) != len(op[2])):
            raise PathError(f"op {position} ({verb}) does not fit a list at its path", REMEDY)
        if verb == "p":
            index = int(op[2])  # a slice clamps both ends, at any size
            target[index : index + int(op[3])] = op[4]
        else:
            previous = target[:]
            target[:] = [previous[int(index)] for index in op[2]]
        return
    parent = _resolve(root, path, len(path) - 1, position)
    if isinstance(parent, list):
        _change_element(parent, path[-1], op, position)
    else:
        _change_key(parent, key_text(path[-1]), op, position)


def _change_key(parent: dict[str, Json], key: str, op: Op, position: int) -> None:
    verb = op[0]
    if verb == "s":
        parent[key] = op[2]
    elif verb == "d":
        parent.pop(key, None)
    elif type(parent.get(key)) is not str:
        raise _no_string(verb, position)
    else:
        _change_text(parent, key, op)


def _change_element(parent: list[Json], segment: Segment, op: Op, position: int) -> None:
    verb = op[0]
    if isinstance(segment, str) or segment > len(parent):
        raise UnsafePathError(f"op {position} ({verb}) names no element of the list", REMEDY)
    index = int(segment)
    if verb == "s":
        parent[index : index + 1] = [op[2]]
    elif index == len(parent):
        raise _nowhere(position)
    elif verb == "d":
        del parent[index]
    elif type(parent[index]) is not str:
        raise _no_string(verb, position)
    else:
        _change_text(parent, index, op)


def _change_text(parent: Any, key: str | int, op: Op) -> None:
    """``a`` or ``t`` on a string."""
    if op[0] == "t":
        parent[key] = utf16.drop(parent[key], int(op[2]))
    elif type(parent) is dict or type(parent) is list:
        append_text(parent, key, op[2])
    elif isinstance(parent, AppendsText):
        parent.append_text(key, op[2])
    else:
        parent[key] = utf16.join(parent[key], op[2])


def _resolve(root: Json, path: Path, depth: int, position: int) -> _Container:
    """The container that the first ``depth`` segments lead to."""
    node: Any = root
    for at in range(depth):
        segment = path[at]
        if isinstance(node, dict):
            node = node.get(key_text(segment), _MISSING)
        elif isinstance(node, list):
            node = node[_index(node, segment, position)]
        else:
            raise _nowhere(position)
    if isinstance(node, _CONTAINERS):
        return node
    raise _nowhere(position)


def _index(node: list[Json], segment: object, position: int) -> int:
    """The index of an element that is there."""
    if isinstance(segment, str):
        raise UnsafePathError(f"op {position} names an element of a list by a string", REMEDY)
    if not isinstance(segment, int | float) or isinstance(segment, bool) or not 0 <= segment < len(node):
        raise _nowhere(position)
    if segment != int(segment):
        raise _nowhere(position)
    return int(segment)


def _nowhere(position: int) -> PathError:
    return PathError(f"op {position} has a path that leads nowhere in this value", REMEDY)


def _no_string(verb: str, position: int) -> PathError:
    return PathError(f"op {position} ({verb}) has no string at its path", REMEDY)
