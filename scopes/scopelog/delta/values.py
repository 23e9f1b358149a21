"""Values on their way into a tracked tree and out of it: checked and copied, compared, made plain.

A tree never shares a container with anybody, itself included: what comes in is copied, what goes out is copied. So
every container has one place, and a change of it one path.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from scopelog.errors import InvalidElement, LimitExceeded

from .errors import InvalidOp, UnsafePathError
from .textbuffer import TextBuffer
from .utf16 import rejoined

MAX_DEPTH: Final = 256
"""Containers within each other, the root counted."""
RESERVED: Final = frozenset({"__proto__", "constructor", "prototype"})
"""Names that no path may hold: in a JavaScript replica they would reach what all objects share."""
MISSING: Final[Any] = type("Missing", (), {"__repr__": lambda _: "MISSING"})()
"""In place of a value: nothing is there, or shall be."""

CONTAINERS: Final = frozenset({dict, list})

_ATOMS: Final = frozenset({int, bool, type(None)})
_REMEDY: Final = "store dict (str keys), list, str, int, float, bool or None, and no subclasses of them"


def copied(value: Any, depth: int) -> Any:
    """A private plain copy of a JSON value or tracked view that is to stand below ``depth`` containers.

    Surrogate pairs stored as two characters are made one. Raises :class:`InvalidElement` for what is not JSON and
    for subclasses of its types, :class:`LimitExceeded` for nesting over 256, a cycle included.
    """
    kind = type(value)
    if kind is str:
        return rejoined(value)
    if kind in _ATOMS:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise InvalidElement(f"{value!r} is not JSON", "store None or a string in its place")
        return value
    if kind is not dict and kind is not list:
        if kind is TextBuffer:
            return value.text()
        value = value.data if getattr(kind, "_tracks", False) else value
        kind = type(value)
    if kind is not dict and kind is not list:
        raise InvalidElement(f"a {kind.__name__} is not JSON", _REMEDY)
    if depth >= MAX_DEPTH:
        raise LimitExceeded(f"the value nests deeper than {MAX_DEPTH}, or within itself", "flatten it")
    depth += 1
    if kind is list:
        return [copied(item, depth) for item in value]
    return {key_of(key): copied(item, depth) for key, item in value.items()}


def key_of(key: Any) -> str:
    """The key itself. Raises :class:`InvalidOp` for what is no str, :class:`InvalidElement` for halves of a pair that
    would come back joined."""
    if type(key) is not str:
        raise InvalidOp(f"a dict key is a {type(key).__name__}, not a str", "use str keys")
    if not key.isascii() and rejoined(key) != key:
        raise InvalidElement("a dict key stores a surrogate pair as two characters", "join the halves")
    return key


def refuse_reserved(segment: str) -> None:
    """Raise :class:`UnsafePathError` for a name that no path may hold."""
    if segment in RESERVED:
        raise UnsafePathError(
            f"{segment!r} is reserved and cannot be changed by a path",
            "choose another key, or replace the container that holds it as a whole",
        )


def plain(value: Any) -> Any:
    """A deep copy of what stands in a tree, text under construction made str."""
    kind = type(value)
    if kind is dict:
        return {key: plain(item) for key, item in value.items()}
    if kind is list:
        return [plain(item) for item in value]
    return value.text() if kind is TextBuffer else value


def settle(value: Any) -> Any:
    """The same value with all text under construction in it made str, in place."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(item) not in _ATOMS and type(item) is not str:
                value[key] = settle(item)
    elif kind is list:
        for index, item in enumerate(value):
            if type(item) not in _ATOMS and type(item) is not str:
                value[index] = settle(item)
    elif kind is TextBuffer:
        return value.text()
    return value


def same(a: Any, b: Any) -> bool:
    """Whether two settled plain values are the same JSON: as Python compares them, except that True is not 1."""
    if (type(a) is bool) is not (type(b) is bool) or a != b:
        return False
    if type(a) is dict:
        return all(same(item, b[key]) for key, item in a.items())
    if type(a) is list:
        return all(map(same, a, b))
    return True


def holds_reserved(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether either dict itself has a key that no path may hold."""
    return not (RESERVED.isdisjoint(a) and RESERVED.isdisjoint(b))
