"""JSON values as both sides know them: tags for what JSON cannot hold, equality by doubles, strings by UTF-16 units."""

from __future__ import annotations

import math
from typing import Any, Final

from scopelog.delta import UNDEFINED

_NAMES: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "-0": -0.0, "undefined": UNDEFINED}


def tagged(value: Any) -> Any:
    """A value for the driver: ``{"$js": name}`` in place of what JSON cannot hold."""
    if isinstance(value, list | tuple):
        return [tagged(item) for item in value]
    if isinstance(value, dict):
        return {key: tagged(item) for key, item in value.items()}
    if value is UNDEFINED:
        return {"$js": "undefined"}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$js": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return value


def untagged(value: Any) -> Any:
    """And back."""
    if isinstance(value, list):
        return [untagged(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {"$js"}:
            return _NAMES[value["$js"]]
        return {key: untagged(item) for key, item in value.items()}
    return value


def difference(ours: Any, theirs: Any, path: str = "$") -> str | None:
    """Where two values differ, None if they do not.

    Left out on purpose: numbers are compared as doubles, so that integers beyond 53 bits, which stay exact here, may
    be rounded there, and -0 is 0; keys may come in any order. A NaN is equal to a NaN. True is not 1. Strings are
    compared code point by code point: halves of a pair that were not joined are a difference.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours.keys() | theirs.keys():
            if key not in ours or key not in theirs:
                return f"{path}: only {'ours' if key in ours else 'theirs'} has {key!a}"
            found = difference(ours[key], theirs[key], f"{path}[{key!a}]")
            if found:
                return found
        return None
    if isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return f"{path}: ours has {len(ours)} elements, theirs {len(theirs)}"
        for index, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            found = difference(left, right, f"{path}[{index}]")
            if found:
                return found
        return None
    if ours is theirs or (type(ours) is type(theirs) and ours == theirs) or _same_number(ours, theirs):
        return None
    return f"{path}: ours is {_short(ours)}, theirs {_short(theirs)}"


def _same_number(ours: Any, theirs: Any) -> bool:
    if type(ours) not in (int, float) or type(theirs) not in (int, float):
        return False
    left, right = _double(ours), _double(theirs)
    return left == right or (math.isnan(left) and math.isnan(right))


def _double(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _short(value: Any) -> str:
    spelled = ascii(value)
    return spelled if len(spelled) <= 200 else f"{spelled[:200]}... ({len(spelled)} characters)"


def rejoined(text: str) -> str:
    """The text with halves of pairs that meet made one character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def dropped(text: str, units: int) -> str:
    """The text without its first UTF-16 units: JavaScript's ``slice(units)``."""
    return text.encode("utf-16-le", "surrogatepass")[2 * units :].decode("utf-16-le", "surrogatepass")


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
