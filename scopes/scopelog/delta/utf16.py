"""Strings measured in UTF-16 units, as ops measure them (Chord counts as JavaScript does).

A ``str`` counts code points: a character beyond U+FFFF is one of them and two units. Cutting between its two units
leaves a lone surrogate on each side, which joining makes one character again.
"""

from __future__ import annotations

from typing import Final

_CODEC: Final = "utf-16-le"
_LOSSLESS: Final = "surrogatepass"


def length(text: str) -> int:
    """Length in UTF-16 units."""
    if text.isascii():
        return len(text)
    return len(text.encode(_CODEC, _LOSSLESS)) // 2


def join(head: str, tail: str) -> str:
    """Concatenation in which a high surrogate at the end of ``head`` and a low one that follows become a character."""
    if splits(head, tail):
        return head[:-1] + character(head[-1], tail[0]) + tail[1:]
    return head + tail


def splits(head: str, tail: str) -> bool:
    """Whether the border between the two runs through a character."""
    return bool(head) and bool(tail) and is_high(head[-1]) and is_low(tail[0])


def drop(text: str, units: int) -> str:
    """What is left after ``units`` UTF-16 units are dropped from the front; nothing if there are fewer.

    Costs a copy of what is left; only what is dropped is looked at.
    """
    if text.isascii():
        return text[units:]
    front = text[:units].encode(_CODEC, _LOSSLESS)[: 2 * units].decode(_CODEC, _LOSSLESS)
    if front and is_high(front[-1]) and text[len(front) - 1] != front[-1]:  # the cut runs through a character
        return text[len(front) - 1].encode(_CODEC)[2:].decode(_CODEC, _LOSSLESS) + text[len(front) :]
    return text[len(front) :]


def take(text: str, units: int) -> str:
    """The first ``units`` UTF-16 units, or all if there are fewer."""
    if text.isascii():
        return text[:units]
    return text.encode(_CODEC, _LOSSLESS)[: 2 * units].decode(_CODEC, _LOSSLESS)


def rejoined(text: str) -> str:
    """The text with every high surrogate that a low one follows made one character with it; at the speed of a copy."""
    if not has_surrogates(text):
        return text
    return text.encode(_CODEC, _LOSSLESS).decode(_CODEC, _LOSSLESS)


def has_surrogates(text: str) -> bool:
    """Whether any half of a surrogate pair stands in the text, lone or not."""
    if text.isascii():
        return False
    try:
        text.encode()  # by far the fastest way to look: characters that are joined are none
    except UnicodeEncodeError:
        return True
    return False


def character(high: str, low: str) -> str:
    """The character of two surrogates."""
    return chr(0x10000 + ((ord(high) - 0xD800) << 10) + (ord(low) - 0xDC00))


def is_high(char: str) -> bool:
    """Whether it is the first half of a surrogate pair."""
    return "\ud800" <= char <= "\udbff"


def is_low(char: str) -> bool:
    """Whether it is the second half of a surrogate pair."""
    return "\udc00" <= char <= "\udfff"


def rest(text: str, head: str) -> str | None:
    """What follows ``head`` in a text that begins with it, unit by unit; None if it does not, or if nothing follows."""
    if text.startswith(head):
        return text[len(head) :] or None
    if head and is_high(head[-1]) and len(text) >= len(head) and text.startswith(head[:-1]):
        split = text[len(head) - 1]
        if split > "\uffff" and take(split, 1) == head[-1]:
            return drop(split, 1) + text[len(head) :]
    return None
