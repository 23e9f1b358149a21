"""The arguments of a tool call, from as much of their JSON text as has arrived."""

from __future__ import annotations

from typing import Any, Final

from ...delta.utf16 import has_surrogates
from . import strict_json
from .copying import copied
from .partial_json import Unreadable, parse_partial
from .repairing import repair

JS_BLANKS: Final = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What ECMAScript's ``trim`` removes; ``str.strip`` removes more, and leaves U+FEFF."""


def parse_streaming_json(text: object) -> Any:
    """What the text shows so far: any JSON value, ``{}`` where it shows nothing. Never raises.

    The first that works of: strict JSON; strict JSON after repair of its strings; the lenient parser; the lenient
    parser after repair (pi-ai 0.87.1; None from a lenient parser is ``{}``). Anything but a str is ``{}``.

    The value may hold NaN and the infinities: :func:`finite` makes it JSON. Integers are exact, where JavaScript
    rounds them to 53 bits; those that overflow a double are ±Infinity, as there. Nesting is shown down to 5,000
    levels (V8: about 5,500); deeper text is taken for broken. It takes time linear in the text: on every delta
    it would be quadratic, so that it is for checkpoints, ends, and on demand.
    """
    if not isinstance(text, str) or not text.strip(JS_BLANKS):
        return {}
    value = _parse(str(text))
    # Raw halves of a pair, beside each other or beside an escaped one, have not met yet.
    return copied(value, ValueError, exactly=True) if has_surrogates(text) else value


def _parse(text: str) -> Any:
    try:
        return strict_json.parse(text)
    except ValueError:
        pass
    repaired = repair(text)
    if repaired != text:
        try:
            return strict_json.parse(repaired)
        except ValueError:
            pass
    for candidate in (text, repaired):
        try:
            value = parse_partial(candidate.strip(JS_BLANKS))
        except Unreadable:
            continue
        return {} if value is None else value
    return {}
