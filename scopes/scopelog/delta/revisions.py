"""The ops that lead from one immutable revision of a value to the next.

Containers that both revisions share are equal without a look, so the work grows with what changed. Nothing here
recurses: values may nest as deep as memory allows. Source: Chord 0.87.1, ``diffRevisions``.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, TypeAlias

from scopelog_engine.elements import Json

from . import utf16
from .ops import RESERVED, Op, Path
from .overlap import overlap

_MAX_OPS: Final = 4096  # more of them become one base
_FREE_COST: Final = 65_536  # characters up to which a delta is not compared with the base in its place
_MAX_SHIFTS: Final = 16  # places at which a shift of a list is tried, each way
_LONG_NUMBER: Final = 25  # characters a number beyond 64 bits takes, about

_Trail: TypeAlias = "tuple[_Trail, str | int] | None"  # a path from its end, built into a list where an op needs it
_Step: TypeAlias = "tuple[_Trail, Json, Json]"  # a place and its two values, not compared yet
_Task: TypeAlias = "Op | _Step"  # an op is a list and a step a tuple


def diff_revisions(before: Json, after: Json) -> list[Op]:
    """Ops that turn ``before`` into ``after``; none if they are equal. Both are plain JSON and stay unchanged.

    Containers count as the same only if they are the same object: this is how moved list elements are found (``m``).
    The ops share containers with ``after``; encode them, or apply them with :func:`apply_immutable`. A single ``r``
    comes back for more than 4,096 ops, and for a delta that costs 64 Ki characters or more and no less than the base.
    """
    ops: list[Op] = []
    pending: list[_Task] = [(None, before, after)]
    while pending:
        task = pending.pop()
        if type(task) is list:
            ops.append(task)
        else:
            pending.extend(reversed(_compare(*task)))
        if len(ops) > _MAX_OPS:
            return [["r", after]]
    if not ops or ops[0][0] == "r":
        return ops
    cost = 2 + sum(_op_cost(op) + 1 for op in ops)
    if cost >= _FREE_COST and cost >= _json_cost(after) + 6:
        return [["r", after]]
    return ops


def _compare(trail: _Trail, before: Json, after: Json) -> list[_Task]:
    """What is to be done at one place, in order: ops, and places below it to compare."""
    if _same(before, after):
        return []
    if isinstance(before, str) and isinstance(after, str) and trail is not None:
        return _compare_texts(trail, before, after)
    if isinstance(before, list) and isinstance(after, list):
        return _compare_lists(trail, before, after)
    if isinstance(before, dict) and isinstance(after, dict):
        return _compare_objects(trail, before, after)
    return [_set(trail, after)]


def _compare_texts(trail: _Trail, before: str, after: str) -> list[_Task]:
    path = _path(trail)
    rest = utf16.rest(after, before)
    if rest is not None:
        return [["a", path, rest]]
    shared = overlap(before, after)
    if shared == 0:
        return [["s", path, after]]
    tasks: list[_Task] = [["t", path, utf16.length(before) - shared]]
    rest = utf16.drop(after, shared)
    if rest:
        tasks.append(["a", path, rest])
    return tasks


def _compare_objects(trail: _Trail, before: dict[str, Json], after: dict[str, Json]) -> list[_Task]:
    if not RESERVED.isdisjoint(before) or not RESERVED.isdisjoint(after):
        return [] if _equal(before, after) else [_set(trail, after)]
    tasks: list[_Task] = []
    for key, value in after.items():
        if key not in before:
            tasks.append(["s", [*_path(trail), key], value])
        elif not _same(before[key], value):
            tasks.append(((trail, key), before[key], value))
    tasks.extend(["d", [*_path(trail), key]] for key in before if key not in after)
    return tasks


def _compare_lists(trail: _Trail, before: list[Json], after: list[Json]) -> list[_Task]:
    if len(before) != len(after):
        return [_splice(_path(trail), before, after)]
    changed = [index for index, value in enumerate(after) if not _same(before[index], value)]
    if len(changed) > 1:
        order = _permutation(before, after)
        if order is not None:
            return [["m", _path(trail), order]]
        shift = _shift(_path(trail), before, after)
        if shift is not None:
            return shift
    return [((trail, index), before[index], after[index]) for index in changed]


def _splice(path: Path, before: list[Json], after: list[Json]) -> Op:
    """One ``p`` over what lies between the common front and the common end."""
    shortest = min(len(before), len(after))
    front = 0
    while front < shortest and _equal(before[front], after[front]):
        front += 1
    end = 0
    while end < shortest - front and _equal(before[-1 - end], after[-1 - end]):
        end += 1
    return ["p", path, front, len(before) - front - end, after[front : len(after) - end]]


def _permutation(before: list[Json], after: list[Json]) -> list[int] | None:
    """Where in ``before`` each element of ``after`` was; equal ones keep their order."""
    places: dict[object, deque[int]] = {}
    for index, value in enumerate(before):
        places.setdefault(_identity(value), deque()).append(index)
    order: list[int] = []
    for value in after:
        left = places.get(_identity(value))
        if not left:
            return None
        order.append(left.popleft())
    return order


def _shift(path: Path, before: list[Json], after: list[Json]) -> list[_Task] | None:
    """Two splices for a list that lost elements at one end and got as many at the other."""
    dropped = _shifted_by(before, after)
    if dropped:
        kept = len(before) - dropped
        return [["p", path, 0, dropped, []], ["p", path, kept, 0, after[kept:]]]
    added = _shifted_by(after, before)
    if added:
        return [["p", path, 0, 0, after[:added]], ["p", path, len(before), added, []]]
    return None


def _shifted_by(longer: list[Json], shorter: list[Json]) -> int:
    """How many elements to drop from the front of the one for the rest to begin the other; 0 if none will do."""
    tried = 0
    for dropped in range(1, len(longer)):
        if _same(longer[dropped], shorter[0]):
            if all(_same(longer[index], shorter[index - dropped]) for index in range(dropped, len(longer))):
                return dropped
            tried += 1
            if tried == _MAX_SHIFTS:
                break
    return 0


def _set(trail: _Trail, value: Json) -> Op:
    return ["r", value] if trail is None else ["s", _path(trail), value]


def _path(trail: _Trail) -> Path:
    path: Path = []
    while trail is not None:
        trail, segment = trail
        path.append(segment)
    path.reverse()
    return path


def _same(left: Json, right: Json) -> bool:
    """The same container, or equal scalars; True is not 1, 1.0 is."""
    if left is right:
        return True
    if isinstance(left, dict | list | bool) or isinstance(right, bool):
        return False
    return bool(left == right)


def _identity(value: Json) -> object:
    """A key that two values share if they are the same."""
    if isinstance(value, dict | list):
        return (id(value),)
    return (bool, value) if isinstance(value, bool) else value


def _equal(left: Json, right: Json) -> bool:
    """Equal as JSON."""
    pending = [(left, right)]
    while pending:
        left, right = pending.pop()
        if _same(left, right):
            continue
        if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
            pending.extend(zip(left, right, strict=True))
        elif isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
            pending.extend((value, right[key]) for key, value in left.items())
        else:
            return False
    return True


def _op_cost(op: Op) -> int:
    """Characters the op takes as JSON, about: its verb and brackets, then its items."""
    return (6 if op[0] == "p" else 5) + sum(_json_cost(item) + 1 for item in op[1:])


def _json_cost(value: Json) -> int:
    """Characters a value takes as JSON text, escapes not counted."""
    cost = 0
    pending: list[Any] = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            cost += utf16.length(value) + 2
        elif isinstance(value, list):
            cost += 2 + max(len(value) - 1, 0)
            pending.extend(value)
        elif isinstance(value, dict):
            cost += 2 + max(len(value) - 1, 0) + sum(utf16.length(key) + 3 for key in value)
            pending.extend(value.values())
        else:
            cost += _scalar_cost(value)
    return cost


def _scalar_cost(value: bool | int | float | None) -> int:
    if value is None or value is True:
        return 4
    if value is False:
        return 5
    if isinstance(value, int) and value.bit_length() > 64:
        return _LONG_NUMBER
    return len(str(int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e21 else value))
