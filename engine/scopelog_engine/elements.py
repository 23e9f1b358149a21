"""Elements: validated and frozen in one step at admission, thawed on reading.

An element is JSON: dict with str keys, list, str, int, float, bool or None. Whatever would not come back equal to
what went in is refused, never converted. A subclass that equals its base value (IntEnum, StrEnum, OrderedDict,
defaultdict, a subclass of float) is stored, and comes back, as that base value: JSON knows no more.

The quick path encodes, decodes and compares: the bytes are the frozen element, their length is its size, and the
comparison catches what the encoder alone would convert silently (tuples, bytes, int keys, NaN). What the quick path
cannot take (lone surrogates, very long integers) is walked type by type and goes through the standard library.
Source: scopes/README.md, "Commits".
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, TypeAlias

import msgspec

from .errors import InvalidElement, LimitExceeded
from .layout import MAX_DEPTH, MAX_ELEMENT_BYTES, MAX_INT_DIGITS

Json: TypeAlias = Any  # dict[str, Json] | list[Json] | str | int | float | bool | None

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode
NOT_PLAIN: Final = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What the quick path raises for an element that needs a closer look."""
SHALLOW_BYTES: Final = 2 * MAX_DEPTH  # shorter text cannot nest deeper than the limit
_LONGEST_PLACE: Final = 1000
_LONGEST_KEY: Final = 60  # characters of a key that an error names
_CHUNK: Final = 600  # digits that any setting of the interpreter's limit lets through
_LARGEST_INT: Final = 10**MAX_INT_DIGITS
_REMEDY: Final = "store dict (str keys), list, str, int, float, bool or None"


def freeze(element: Json) -> tuple[bytes, Json]:
    """The element's JSON text and a private copy of it.

    Raises :class:`InvalidElement` for what is not JSON or would change on the way, :class:`LimitExceeded` for
    nesting over 256 or a text over 64 MiB.
    """
    try:
        body = encode_json(element)
        copy = decode_json(body)
    except NOT_PLAIN:
        body = _freeze_slowly(element)
        return body, thaw(body)
    if copy != element:
        body = _freeze_slowly(element)
        return body, thaw(body)
    if len(body) > SHALLOW_BYTES:
        check_limits(element, body)
    return body, copy


def check_limits(element: Json, body: bytes) -> None:
    """Refuse a long element that nests too deep or is too large. ``body`` is its JSON text."""
    if len(body) > MAX_ELEMENT_BYTES:
        raise LimitExceeded(
            f"the element takes {len(body)} bytes as JSON, the limit is {MAX_ELEMENT_BYTES}",
            "split it, or store it elsewhere and keep a reference",
        )
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _walk(element)


def thaw(body: bytes) -> Json:
    """The element that ``body`` is the JSON text of."""
    try:
        return decode_json(body)
    except (msgspec.MsgspecError, RecursionError):
        return loads(body)


def loads(text: bytes) -> Json:
    """Strict JSON by the standard library, which alone reads lone surrogates and long integers."""
    return json.loads(text, parse_constant=_refuse_constant, parse_int=_parse_int)


def _parse_int(digits: str) -> int:
    """Like ``int``, but independent of the limit that the interpreter was started with."""
    if len(digits) <= _CHUNK:
        return int(digits)
    if len(digits) > MAX_INT_DIGITS + 1:
        raise ValueError(f"an integer has more than {MAX_INT_DIGITS} digits")
    negative = digits[0] == "-"
    number = 0
    for at in range(negative, len(digits), _CHUNK):
        chunk = digits[at : at + _CHUNK]
        number = number * 10 ** len(chunk) + int(chunk)
    return -number if negative else number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _freeze_slowly(element: Json) -> bytes:
    _walk(element)
    try:
        body = json.dumps(element, allow_nan=False, separators=(",", ":")).encode("ascii")
        back = loads(body)
    except (ValueError, OverflowError) as error:  # an int beyond the interpreter's digit limit
        raise InvalidElement(f"the element cannot be written as JSON ({error})", _REMEDY) from None
    if back != element:
        raise InvalidElement(
            "the element would not come back as it went in (a surrogate pair stored as two characters)",
            "join the halves of surrogate pairs",
        )
    if len(body) > MAX_ELEMENT_BYTES:
        check_limits(element, body)
    return body


def _walk(element: Json) -> None:
    """Refuse whatever is not JSON, type by type, without recursion and without harm from cycles."""
    stack: list[tuple[Any, int]] = [(element, 0)]
    while stack:
        item, depth = stack.pop()
        if item is None or isinstance(item, (str, bool)):
            continue
        if isinstance(item, int):
            if not -_LARGEST_INT < item < _LARGEST_INT:
                raise LimitExceeded(
                    f"an integer{_place_of(item, element)} has more than {MAX_INT_DIGITS} digits",
                    "store it as a string, or in pieces",
                )
            continue
        if isinstance(item, float):
            if not math.isfinite(item):
                raise InvalidElement(
                    f"{item!r}{_place_of(item, element)} is not JSON", "store None or a string in its place"
                )
            continue
        if isinstance(item, (dict, list)):
            if depth >= MAX_DEPTH:
                raise LimitExceeded(f"the element nests deeper than {MAX_DEPTH}", "flatten it")
            if isinstance(item, dict):
                for key in item:
                    if not isinstance(key, str):
                        where = _place_of(item, element)
                        raise InvalidElement(f"a dict key{where} is a {type(key).__name__}, not a str", _REMEDY)
                stack.extend((value, depth + 1) for value in item.values())
            else:
                stack.extend((value, depth + 1) for value in item)
            continue
        raise InvalidElement(f"a {type(item).__name__}{_place_of(item, element)} is not JSON", _REMEDY)


def _place_of(wanted: Any, element: Json) -> str:
    """Where in the element an object stands, as " at ['messages'][1]": keys and numbers, never a value. '' if it is
    the element itself. For errors alone: it walks all of it once more."""
    stack: list[tuple[Any, str]] = [(element, "")]
    seen: set[int] = set()  # by identity: there may be cycles
    while stack:
        item, place = stack.pop()
        if item is wanted:
            return f" at {place}" if place else ""
        if id(item) in seen or len(place) > _LONGEST_PLACE:
            continue
        seen.add(id(item))
        parts = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        stack.extend((value, f"{place}[{_shortened(key)}]") for key, value in parts)
    return ""


def _shortened(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}...'"
