"""JSON text, taken strictly: what ECMAScript's ``JSON.parse`` takes, and nothing else.

The interpreter's parser does the work. It is kept from its three liberties (NaN, the length of integers, recursion)
by the hooks and by a loop that stands in for it where the text nests deeply.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from .copying import MAX_DEPTH

BLANKS: Final = " \t\n\r"
STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+"')
_NUMBER: Final = re.compile(r"(-?(?:0|[1-9][0-9]*+))(\.[0-9]++)?([eE][+-]?[0-9]++)?")
_BLANK: Final = re.compile(r"[ \t\n\r]*+")
_SURELY_FINITE: Final = 300  # digits


def whole_number(digits: str) -> int | float:
    """The exact integer, where JavaScript keeps 53 bits; ±Infinity where it overflows there."""
    if len(digits) > _SURELY_FINITE:
        rounded = float(digits)
        if math.isinf(rounded):
            return rounded
    return int(digits)


def number(text: str) -> int | float:
    """The number a text is, blanks around it left out. Raises ``ValueError``."""
    match = _NUMBER.fullmatch(text.strip(BLANKS))
    if match is None:
        raise ValueError("no number")
    return whole_number(match[1]) if match[2] is None and match[3] is None else float(match[0])


def string_at(text: str, start: int) -> tuple[str, int]:
    """The string that begins there, and where the text goes on after it. Raises ``ValueError``.

    The check by pattern comes first because the interpreter's error counts lines, in time that grows with the text.
    """
    if STRING.match(text, start) is None:
        raise ValueError("no string")
    value, end = _DECODER.raw_decode(text, start)
    assert type(value) is str
    return value, end


def parse(text: str) -> Any:
    """The value of a complete JSON text. Raises ``ValueError``, also for nesting over ``MAX_DEPTH``."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        try:
            return _DECODER.decode(text)
        except RecursionError:
            pass
    return _parse_in_a_loop(text)


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_int=whole_number, parse_constant=_refused)


def _parse_in_a_loop(text: str) -> Any:
    """The same without recursion."""
    opened: list[Any] = []  # the containers around the place that is read
    keys: list[str] = []  # of the objects among them, the key whose value is read
    at = _skip(text, 0)
    while True:
        first = text[at : at + 1]
        value: Any
        if first in ("[", "{") and first:
            if len(opened) == MAX_DEPTH:
                raise ValueError("nested too deep")
            at = _skip(text, at + 1)
            if text[at : at + 1] == ("]" if first == "[" else "}"):
                value, at = ([] if first == "[" else {}), at + 1
            else:
                opened.append([] if first == "[" else {})
                if first == "{":
                    at = _key(text, at, keys)
                continue
        else:
            value, at = _scalar(text, at)
        while True:  # hand the value to the container around it, as often as one ends with it
            at = _skip(text, at)
            if not opened:
                if at != len(text):
                    raise ValueError("text after the value")
                return value
            container = opened[-1]
            if type(container) is list:
                container.append(value)
                end = "]"
            else:
                container[keys.pop()] = value
                end = "}"
            mark = text[at : at + 1]
            at = _skip(text, at + 1)
            if mark == ",":
                if end == "}":
                    at = _key(text, at, keys)
                break
            if mark != end:
                raise ValueError("neither a comma nor the end of the container")
            value = opened.pop()


def _scalar(text: str, at: int) -> tuple[Any, int]:
    if text.startswith('"', at):
        return string_at(text, at)
    for word, value in (("null", None), ("true", True), ("false", False)):
        if text.startswith(word, at):
            return value, at + len(word)
    match = _NUMBER.match(text, at)
    if match is None:
        raise ValueError("no value")
    return number(match[0]), match.end()


def _key(text: str, at: int, keys: list[str]) -> int:
    """Put the key aside; where its value begins."""
    key, at = string_at(text, at)
    at = _skip(text, at)
    if not text.startswith(":", at):
        raise ValueError("no colon")
    keys.append(key)
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    assert match is not None
    return match.end()
