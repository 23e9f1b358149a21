"""The lenient parser: what an unfinished or broken JSON text shows so far (npm partial-json 0.1.7, all allowed).

Containers swallow every error inside them and show what they have; the container around goes on at the place where
reading stopped. The place never moves backwards, and nothing is cut out that is longer than what was just read, so
the whole takes time linear in the text. No recursion: nesting over ``MAX_DEPTH`` is such an error.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from .copying import MAX_DEPTH
from .strict_json import number, string_at

_BLANK: Final = re.compile(r"[ \n\r\t]*+")
_BODY: Final = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
_AFTER_NUMBER: Final = re.compile(r"[^,\]}]*+")
_WORDS: Final[tuple[tuple[str, Any, int], ...]] = (  # the word, its value, the least it can be told by
    ("null", None, 1),
    ("true", True, 1),
    ("false", False, 1),
    ("Infinity", math.inf, 1),
    ("-Infinity", -math.inf, 2),
    ("NaN", math.nan, 1),
)
_DROPPED: Final = "__proto__"  # as a key it would set the prototype of a JavaScript object, not a member


class Unreadable(ValueError):
    """Nothing can be shown: the text is no container, and no scalar either."""


def parse_partial(text: str) -> Any:
    """What the text shows so far. It must have no blanks around it. Raises :class:`Unreadable`."""
    reader = _Reader(text)
    opened: list[Any] = []  # the containers around the place that is read
    keys: list[str] = []  # of the objects among them, the key whose value is read
    while True:
        try:
            value = reader.value(len(opened) < MAX_DEPTH)
        except Unreadable:
            if not opened:
                raise
            value = opened.pop()
            if type(value) is dict:
                keys.pop()
        else:
            if reader.opened:
                opened.append(value)
                if reader.member(value, keys):
                    continue
                value = opened.pop()
        while opened:  # hand the value to the container around it, as often as one ends with it
            container = opened[-1]
            if type(container) is list:
                container.append(value)
            else:
                key = keys.pop()
                if key != _DROPPED:
                    container[key] = value
            reader.pass_comma()
            if reader.member(container, keys):
                break
            value = opened.pop()
        else:
            return value


class _Reader:
    """A place in the text. ``opened`` tells whether the value read last is a container whose members follow."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.opened = False
        self._last_e = text.rfind("e")

    def value(self, may_open: bool) -> Any:
        self._skip()
        text, at = self.text, self.at
        self.opened = False
        if at >= len(text):
            raise Unreadable
        first = text[at]
        if first == '"':
            return self._string()
        if first in "{[":
            if not may_open:
                raise Unreadable
            self.at += 1
            self.opened = True
            if first == "[":
                return []
            self._skip()
            return {}
        for word, value, least in _WORDS:
            if text.startswith(word, at) or (least <= len(text) - at < len(word) and word.startswith(text[at:])):
                self.at += len(word)
                return value
        return self._number()

    def member(self, container: Any, keys: list[str]) -> bool:
        """Go to the next member's value, past its key; False if the container ends here."""
        if self.text.startswith("]" if type(container) is list else "}", self.at):
            self.at += 1
            return False
        if type(container) is list:
            return True
        self._skip()
        if self.at >= len(self.text):
            return False
        try:
            keys.append(self._string())
        except Unreadable:
            return False
        self._skip()
        # The colon, or whatever UTF-16 unit stands there: half of a character leaves a half, no value either.
        self.at += self.text[self.at : self.at + 1] < "\U00010000"
        return True

    def pass_comma(self) -> None:
        self._skip()
        if self.text.startswith(",", self.at):
            self.at += 1

    def _string(self) -> str:
        """Also called where a key should begin and something else may stand: the first character is not looked at."""
        text, start = self.text, self.at
        match = _BODY.match(text, start + 1)
        assert match is not None
        end = match.end()
        if text.startswith('"', end):
            self.at = end + 1
            try:
                return string_at(text, start)[0]
            except ValueError:
                raise Unreadable from None
        self.at = len(text)
        # At most once a text: the open string shows all it has, or what stands before the last backslash.
        for stop in (end, text.rfind("\\")):
            if stop > start:
                try:
                    return string_at(text[start:stop] + '"', 0)[0]
                except ValueError:
                    continue
        raise Unreadable

    def _number(self) -> int | float:
        text, start = self.text, self.at
        if start:
            match = _AFTER_NUMBER.match(text, start + text.startswith("-", start))
            assert match is not None
            self.at = end = match.end()
        else:  # a number that is the whole text takes all of it
            end = len(text)
        try:
            return number(text[start:end])
        except ValueError:
            pass
        if start < self._last_e < end:  # an unfinished exponent; what ends elsewhere cannot be a number
            try:
                return number(text[start : self._last_e])
            except ValueError:
                pass
        raise Unreadable

    def _skip(self) -> None:
        match = _BLANK.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
