"""The head or the tail of a text, within caps on bytes and lines: what to drop and what to add, text by text."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from ...delta import utf16

Retention: TypeAlias = Literal["head", "tail"]
HEAD: Final = "head"
TAIL: Final = "tail"


class Step(NamedTuple):
    """How a kept text changes: ``drop`` UTF-16 units from its front, then append. ``whole``: replace it instead."""

    drop: int
    append: str
    whole: str | None = None


class Kept:
    """What is kept of a text that grows, and how much was not. Counts UTF-8 bytes (a lone surrogate is three) and lines
    (a last one without its newline is one). A cut never runs through a character.

    The work for a piece grows with the piece; where something is cut, with the piece and the cap.
    """

    def __init__(self, keep: Retention, max_bytes: int, max_lines: int) -> None:
        self.keep = keep
        self.max_bytes = max_bytes
        self.max_lines = max_lines
        self.begin("", 0, 0)

    def begin(self, text: str, dropped_bytes: int, dropped_lines: int) -> None:
        """Go on from here."""
        self._bytes = _bytes(text)
        self._newlines = text.count("\n")
        self._open_end = text != "" and not text.endswith("\n")
        self.dropped_bytes = dropped_bytes
        self.dropped_lines = dropped_lines

    def fits(self, piece: str) -> bool:
        """Whether all of ``piece`` can be appended, or nothing of it: what is kept is not looked at then."""
        if self.keep == HEAD and self.dropped_bytes:
            return True
        open_end = not piece.endswith("\n") if piece else self._open_end
        lines = self._newlines + piece.count("\n") + open_end
        return self._bytes + _bytes(piece) <= self.max_bytes and lines <= self.max_lines

    def add(self, kept: str, piece: str) -> Step:
        """What becomes of ``kept``, the text as it was left, when ``piece`` comes."""
        if self.keep == HEAD and self.dropped_bytes:
            self._drop(piece)
            return Step(0, "")
        if self.fits(piece):
            self._bytes += _bytes(piece)
            self._newlines += piece.count("\n")
            self._open_end = not piece.endswith("\n") if piece else self._open_end
            return Step(0, piece)
        whole = utf16.join(kept, piece)
        open_end = not whole.endswith("\n")
        result = (
            whole[: self._head(whole)]
            if self.keep == HEAD
            else whole[self._tail(whole, whole.count("\n") + open_end) :]
        )
        cut = len(whole) - len(result)
        self._drop(whole[len(result) :] if self.keep == HEAD else whole[:cut])
        self._bytes, self._newlines = _bytes(result), result.count("\n")
        self._open_end = result != "" and not result.endswith("\n")
        if len(whole) != len(kept) + len(piece):  # the border runs through a character
            return Step(0, "", result)
        if self.keep == HEAD:
            return Step(0, result[len(kept) :]) if len(result) >= len(kept) else Step(0, "", result)
        return Step(utf16.length(whole[:cut]), piece) if cut < len(kept) else Step(0, "", result)

    def _drop(self, text: str) -> None:
        self.dropped_bytes += _bytes(text)
        self.dropped_lines += text.count("\n")

    def _head(self, text: str) -> int:
        """How many characters of the front fit."""
        fit = len(text) if text.isascii() else len(_whole_characters(text, self.max_bytes))
        fit = min(fit, self.max_bytes)
        end = 0
        for _ in range(self.max_lines):
            end = text.find("\n", end, fit) + 1
            if not end:
                return fit
        return min(fit, end)

    def _tail(self, text: str, lines: int) -> int:
        """Where the part begins that fits at the end."""
        start = 0
        for _ in range(lines - self.max_lines):
            start = text.find("\n", start) + 1
        if text.isascii():
            return max(start, len(text) - self.max_bytes)
        data = text[start:].encode("utf-8", "surrogatepass")
        at = max(0, len(data) - self.max_bytes)
        while at < len(data) and data[at] & 0xC0 == 0x80:
            at += 1
        return len(text) - len(data[at:].decode("utf-8", "surrogatepass"))


def _whole_characters(text: str, most: int) -> str:
    """The longest front of a text that takes at most so many bytes."""
    data = text.encode("utf-8", "surrogatepass")
    at = min(most, len(data))
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return data[:at].decode("utf-8", "surrogatepass")


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
