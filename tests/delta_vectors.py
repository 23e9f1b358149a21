"""The vectors of ``scopelog.delta`` as Python values, equality as JSON knows it, and strategies for ops."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from scopelog.delta import UNDEFINED, InvalidOp, PathError, UnsafePathError, apply

VECTORS: Final = Path(__file__).parent / "vectors"
ERRORS: Final = {"TypeError": InvalidOp, "UnsafePathError": UnsafePathError, "PathError": PathError}
REFUSALS: Final = (InvalidOp, UnsafePathError, PathError)
_TAGGED: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf"), "-0": 0}


def cases(name: str, *groups: str) -> list[Any]:
    """The cases of one file, of some groups only if any are named."""
    text = (VECTORS / f"{name}.json").read_text(encoding="utf-8")
    found = json.loads(text, object_hook=_untag)["cases"]
    return [case for case in found if not groups or case["group"] in groups]


def case_id(case: dict[str, Any]) -> str:
    return ascii(f"{case['group']}: {case['name']}")


def _untag(value: dict[str, Any]) -> Any:
    if value.keys() != {"$js"}:
        return value
    return UNDEFINED if value["$js"] == "undefined" else _TAGGED[value["$js"]]


def same(left: Any, right: Any) -> bool:
    """Equal as JSON: 1 is 1.0 and not True, strings code point by code point, keys in any order."""
    if isinstance(left, bool) or isinstance(right, bool) or left is None or right is None:
        return left is right
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(same(value, right[key]) for key, value in left.items())
        )
    return left is right or bool(left == right)  # a NaN is itself


texts = st.text(alphabet="ab\u6c34\U0001f600\ud83d\ude00", max_size=4)
keys = st.sampled_from(["a", "b", "0", "1e+21", "\U0001f600", ""])
scalars = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([1.0, 0.5]), texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=8,
)

_segments = st.one_of(
    keys,
    st.integers(-1, 3),
    st.sampled_from([0.0, 1.0, 0.5, 10**21, 10**5000, -(10**5000), float("inf"), float("nan"), True, None]),
    st.sampled_from(["__proto__", "constructor", "prototype"]),
    values,
)
_numbers = st.one_of(st.integers(-1, 4), st.sampled_from([2.0, 0.5, 10**400, float("inf"), True]), values)
_paths = st.one_of(st.lists(_segments, max_size=3), st.lists(keys, min_size=1, max_size=1), st.integers(-1, 2), values)
_loose = st.lists(st.one_of(values, st.sampled_from([*"rsdatpm#"]), _paths), max_size=5)
hostile_ops = st.one_of(
    values,
    _loose,
    st.tuples(st.sampled_from([*"rsdatpm#x"]), _paths, st.one_of(values, _numbers)).map(list),
    st.tuples(st.just("p"), _paths, _numbers, _numbers, values).map(list),
    st.tuples(st.just("m"), _paths, st.lists(_numbers, max_size=3)).map(list),
    st.tuples(st.just("#"), _numbers, _paths).map(list),
    st.tuples(st.sampled_from([*"rsatm"]), values).map(list),
)
"""Anything from no op at all to one with a single fault, and some that are right."""


def _places(value: Any, path: list[Any]) -> list[tuple[list[Any], Any]]:
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    found = [(path, value)]
    for key, child in children:
        found += _places(child, [*path, key])
    return found


@st.composite
def valid_ops(draw: st.DrawFn, value: Any, near: list[Any] | None = None) -> list[Any]:
    """An op that fits the value; often at the path ``near``."""
    places = _places(value, [])
    close = [place for place in places if place[0] == near]
    nearby = bool(close) and draw(st.integers(0, 3)) > 0
    path, found = draw(st.sampled_from(close if nearby else places))
    verbs = ["r"] if draw(st.integers(0, 7)) == 0 else []
    if path:
        verbs += ["s", "s", "d"]
    if path and isinstance(found, str):
        verbs += ["a"] * 6 + ["t"] * 2
    if isinstance(found, list):
        verbs += ["p", "p", "m"]
    if isinstance(found, dict):
        path = [*path, draw(keys)]
        verbs += ["s"]
    verb = draw(st.sampled_from(verbs)) if verbs else "r"
    if verb == "r":
        return ["r", draw(values)]
    if verb == "s":
        return ["s", path or [draw(keys)], draw(values)]
    if verb == "d":
        return ["d", path]
    if verb == "a":
        return ["a", path, draw(texts)]
    if verb == "t":
        return ["t", path, draw(st.integers(0, 4))]
    if isinstance(found, dict):
        path = path[:-1]
    if verb == "p":
        return ["p", path, draw(st.integers(0, 4)), draw(st.integers(0, 2)), draw(st.lists(values, max_size=2))]
    return ["m", path, draw(st.permutations(range(len(found))))]


@st.composite
def streams(draw: st.DrawFn) -> tuple[Any, list[list[Any]]]:
    """A value, and batches of ops that fit it one after the other."""
    first = draw(st.one_of(values, st.just({"a": "", "b": ["x", {"a": "y"}]})))
    value = copy.deepcopy(first)
    batches = []
    near: list[Any] | None = None
    for size in draw(st.lists(st.integers(0, 3), max_size=8)):
        batch = []
        for _ in range(size):
            op = draw(valid_ops(value, near))
            near = op[1] if op[0] != "r" else None
            value = apply(value, [copy.deepcopy(op)])
            batch.append(op)
        batches.append(batch)
    return first, batches


@st.composite
def spoiled_ops(draw: st.DrawFn, value: Any) -> list[Any]:
    """An op that fits the value, with one part of it, or of its path or order, replaced by something else."""
    op: list[Any] = copy.deepcopy(draw(valid_ops(value)))
    parts = [part for part in (op, *op[1:3]) if isinstance(part, list) and part]
    part = draw(st.sampled_from(parts))
    at = draw(st.integers(0, len(part) - 1))
    match draw(st.integers(0, 3)):
        case 0:
            del part[at]
        case 1:
            part.insert(at, draw(_segments))
        case _:
            part[at] = draw(st.one_of(_segments, _numbers, _paths))
    return op
