"""A string that grows at its end, for the price of what is added."""

from __future__ import annotations

import io
from typing import Final

from . import utf16

_PIECES: Final = 256
"""Deltas that are kept as strings before they become part of a larger one."""


class TextBuffer:
    """Text under construction: :meth:`append` is amortised O(len(delta)) in time and memory, whatever is there.

    The deltas are joined every now and then, not kept as strings of their own. A high surrogate at the end is held
    back until it is known what follows: with a low one it becomes one character, otherwise it stays what it is.
    """

    __slots__ = ("_half", "_io", "_pieces")

    def __init__(self, text: str = "") -> None:
        self._io = io.StringIO(newline="\n")  # "\n": nothing is translated, and nothing is searched for line ends
        self._pieces: list[str] = []  # what is not in it yet: on its own it would keep 100,000 small strings
        self._half = ""
        if text:
            self.append(text)

    def append(self, delta: str) -> None:
        """Add text at the end."""
        if self._half or not delta.isascii():
            delta = self._complete(delta)
        self._pieces.append(delta)
        if len(self._pieces) >= _PIECES:
            self._join()

    def text(self) -> str:
        """All of it as one string, which is a copy: whoever reads often keeps it."""
        self._join()
        return self._io.getvalue() + self._half

    def _join(self) -> None:
        self._io.write("".join(self._pieces))
        self._pieces.clear()

    def _complete(self, delta: str) -> str:
        """What can be written of the half held back and ``delta``."""
        delta = utf16.rejoined(self._half + delta)
        self._half = delta[-1] if delta and utf16.is_high(delta[-1]) else ""
        return delta[:-1] if self._half else delta
