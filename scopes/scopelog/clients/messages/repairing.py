"""Repair of JSON text whose strings hold what JSON strings may not: raw control characters and stray backslashes."""

from __future__ import annotations

import re
from typing import Final

_LITERAL: Final = re.compile(r'"(?:[^"\\]++|\\["\\/bfnrtu]|\\)*+"?+')
_DAMAGE: Final = re.compile(r'\\["\\/bfnrtu]|\\|[\x00-\x1f]')
_SHORT: Final = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def repair(text: str) -> str:
    """The text with control characters inside strings escaped and backslashes that escape nothing doubled.

    The text itself if there is nothing to repair; the result need not be JSON. ``\\u`` with fewer than four digits
    stays as it is (pi-ai 0.87.1; later versions double it). Takes time linear in the text.
    """
    return _LITERAL.sub(lambda literal: _DAMAGE.sub(_mended, literal[0]), text)


def _mended(match: re.Match[str]) -> str:
    found = match[0]
    if len(found) == 2:  # a valid escape; the digits of a \u are plain characters
        return found
    if found == "\\":
        return "\\\\"
    return _SHORT.get(found) or f"\\u{ord(found):04x}"
