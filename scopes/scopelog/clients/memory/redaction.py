"""Explicit private blocks, ``<private>`` to ``</private>``, taken out before text is stored, logged or sent.

A convention between the writer and the bridge, never a secret scanner. It fails closed: blocks nest, one that is not
closed is private to the end of its string, a closing tag without a block is dropped, tags may be spaced and in any
case. A block must begin and end in one string. Linear in the length of the text.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from scopelog.errors import InvalidInput, LimitExceeded

Json: TypeAlias = Any

MARKER: Final = "[REDACTED]"
MAX_DEPTH: Final = 256  # of nested arrays and objects, as everywhere in scopelog
# possessive: a run of spaces is never walked twice, so that the search stays linear
_TAG: Final = re.compile(r"<\s*+(/?+)\s*+private\s*+>", re.IGNORECASE)


def redact(value: Json) -> Json:
    """The value with every private block in every string, keys of objects included, replaced by :data:`MARKER`.

    Anything but strings is as it was. A new list or dict where the value is one; tuples become lists. Keys that become
    equal get a number, so that no value is lost.

    :raises LimitExceeded: nesting over 256.
    """
    root: list[Json] = [None]
    todo: list[tuple[Json, list[Json] | dict[Json, Json], Json, int]] = [(value, root, 0, 0)]
    while todo:
        item, parent, place, depth = todo.pop()
        if isinstance(item, str):
            parent[place] = _redact_string(item)
            continue
        if not isinstance(item, (dict, list, tuple)):
            parent[place] = item
            continue
        if depth == MAX_DEPTH:
            raise LimitExceeded(f"the value is nested over {MAX_DEPTH} deep", "send something flatter")
        if isinstance(item, dict):
            keys = _redact_keys(item)
            copy: Json = dict.fromkeys(keys)  # in the order of the original
            todo += [(child, copy, key, depth + 1) for key, child in zip(keys, item.values(), strict=True)]
        else:
            copy = [None] * len(item)
            todo += [(child, copy, index, depth + 1) for index, child in enumerate(item)]
        parent[place] = copy
    return root[0]


def redact_text(text: str) -> str:
    """The text without its private blocks, trimmed. Cut it afterwards, never before: a cut can lose a closing tag."""
    return _redact_string(text).strip()


def redact_url_value(text: str) -> str:
    """The text without its private blocks, percent-encoded for one path segment or one value of a query.

    :raises InvalidInput: a lone surrogate, which no URL can carry.
    """
    # redact first: once encoded, a tag is not seen any more
    try:
        return quote(_redact_string(text), safe="")
    except UnicodeEncodeError:
        raise InvalidInput("a part of a URL holds a lone surrogate", "send well-formed text") from None


def _redact_keys(item: dict[Json, Json]) -> list[Json]:
    keys: list[Json] = [_redact_string(key) if isinstance(key, str) else key for key in item]
    if len(set(keys)) == len(keys):
        return keys
    taken = set(item)  # a key that was not touched keeps its name
    numbers: dict[str, int] = {}
    for index, (old, key) in enumerate(zip(item, keys, strict=True)):
        if key == old:
            continue
        name = key
        while name in taken:
            numbers[key] = numbers.get(key, 1) + 1
            name = f"{key} ({numbers[key]})"
        taken.add(name)
        keys[index] = name
    return keys


def _redact_string(text: str) -> str:
    clean = _strip(text, "")
    # dropping a stray closing tag can join two halves of another tag: mark the place instead, which cannot
    return _strip(text, MARKER) if _TAG.search(clean) else clean


def _strip(text: str, stray: str) -> str:
    parts: list[str] = []
    depth = 0
    kept = 0  # text before this is done with
    for tag in _TAG.finditer(text):
        closing = bool(tag[1])
        if depth == 0:
            parts += (text[kept : tag.start()], stray if closing else MARKER)
        depth = max(depth - 1, 0) if closing else depth + 1
        kept = tag.end()
    if depth == 0:
        parts.append(text[kept:])
    return "".join(parts)
