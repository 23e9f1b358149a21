"""Private copies of JSON values: no aliasing, no recursion, no split characters."""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping, MutableSequence
from typing import Any, Final

from scopelog_engine.errors import InvalidInput

from ...delta.utf16 import rejoined

MAX_DEPTH: Final = 5000  # containers inside each other; also what ends the copying of a value that holds itself

_SCALARS: Final = frozenset((str, int, float, bool, type(None)))

Refusal = Callable[[str], Exception]
"""Makes the error for a value that is no JSON; it is told what is wrong, never the value."""


def copied(value: Any, refuse: Refusal, *, exactly: bool = False) -> Any:
    """The value as plain dicts and lists of its own, with every text and key :func:`rejoined`.

    NaN and the infinities become None unless ``exactly``: only a derived value that stays in memory may hold them.
    Tracked mappings and sequences count as dicts and lists. Raises what ``refuse`` makes for anything that is no
    JSON and for nesting over ``MAX_DEPTH``.
    """
    scalar = _whole if exactly else _finite
    if type(value) in _SCALARS:
        return scalar(value)
    top = _shell(value, refuse)
    pending: list[tuple[Any, Any, int]] = [(value, top, 1)]
    while pending:
        source, target, depth = pending.pop()  # the deepest first, so that a cycle ends after MAX_DEPTH steps
        if depth > MAX_DEPTH:
            raise refuse(f"a value nests deeper than {MAX_DEPTH}")
        if type(target) is dict:
            for key, item in source.items():
                if type(key) is not str:
                    raise refuse(f"a key is a {type(key).__name__}, not a str")
                key = rejoined(key)
                if type(item) in _SCALARS:
                    target[key] = scalar(item)
                else:
                    target[key] = _shell(item, refuse)
                    pending.append((item, target[key], depth + 1))
        else:
            for item in source:
                if type(item) in _SCALARS:
                    target.append(scalar(item))
                else:
                    target.append(_shell(item, refuse))
                    pending.append((item, target[-1], depth + 1))
    return top


def finite(value: Any) -> Any:
    """A copy with None for NaN and the infinities, as JSON text has it: for derived values that leave memory.

    Raises ``InvalidInput`` for what is no JSON and for nesting over 5,000.
    """
    return copied(value, _not_json)


def _finite(value: Any) -> Any:
    return None if type(value) is float and not math.isfinite(value) else _whole(value)


def _whole(value: Any) -> Any:
    return rejoined(value) if type(value) is str else value


def _shell(value: Any, refuse: Refusal) -> Any:
    if type(value) is dict:
        return {}
    if type(value) is list:
        return []
    if isinstance(value, MutableMapping):
        return {}
    if isinstance(value, MutableSequence) and not isinstance(value, bytearray):
        return []
    raise refuse(f"a {type(value).__name__} is no JSON")


def _not_json(what: str) -> InvalidInput:
    return InvalidInput(what, "pass plain JSON data")
