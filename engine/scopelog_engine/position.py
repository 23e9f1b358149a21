"""Positions: up to where a follower has seen a session, as a value and as text. Pure.

The session's logs become visible independently of each other (a window is flushed later than a commit with a higher
sequence), so a position has one part for main and one for each living scope that was seen. Text::

    <identity>.<epoch>.<sequence>[.<lives>]

The identity tells the session from a later one of the same id: main's creation time in ms, in base 36. Lives are
base64url of, for each in order of its first sequence: varints of the distance from the first sequence before, of how
many sequences it was seen beyond its first, of the distance of its epoch from main's (zigzag), and 3 bytes of a
checksum of the scope's id.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NamedTuple
from zlib import crc32

from .errors import InvalidInput
from .layout import MAX_SEQUENCE

_MAX_TEXT: Final = 512 * 1024  # some thirty thousand lives
_TEXT: Final = re.compile(r"([0-9a-z]{1,11})\.([0-9]{1,16})\.([0-9]{1,16})(?:\.([A-Za-z0-9_-]+))?")
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_MARK_BYTES: Final = 3


class LifePoint(NamedTuple):
    """Up to where one life of a scope was seen. ``mark``: of the scope's id, see :func:`mark_of`."""

    first: int
    epoch: int
    sequence: int
    mark: int


class Position(NamedTuple):
    """Where a follower resumes. ``str()`` gives it as text, :meth:`parse` takes that back.

    ``identity`` tells the session from another of the same id; ``epoch`` and ``sequence`` are those of the last frame
    seen of the session scope; ``lives`` are those of each living scope, in order of their first sequences.
    """

    identity: int
    epoch: int
    sequence: int
    lives: tuple[LifePoint, ...] = ()

    def __str__(self) -> str:
        text = f"{_base36(self.identity)}.{self.epoch}.{self.sequence}"
        if not self.lives:
            return text
        out = bytearray()
        before = 0
        for life in self.lives:
            away = life.epoch - self.epoch
            for number in (
                life.first - before,
                life.sequence - life.first,
                2 * away if away >= 0 else -2 * away - 1,
            ):
                _put_varint(out, number)
            out += life.mark.to_bytes(_MARK_BYTES, "little")
            before = life.first
        return f"{text}.{base64.urlsafe_b64encode(out).rstrip(b'=').decode('ascii')}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position that ``text`` spells. Raises :class:`InvalidInput` for any other text."""
        if not isinstance(text, str):
            raise InvalidInput(f"a position is not read from a {type(text).__name__}", "pass the text of a position")
        found = _TEXT.fullmatch(text) if len(text) <= _MAX_TEXT else None
        if found is None:
            raise _malformed()
        identity, epoch, sequence = int(found[1], 36), int(found[2]), int(found[3])
        if max(identity, epoch, sequence) > MAX_SEQUENCE:
            raise _malformed()
        position = cls(identity, epoch, sequence, tuple(_lives(found[4], epoch)) if found[4] else ())
        if str(position) != text:  # one spelling each, so that texts may be compared
            raise _malformed()
        return position


def mark_of(scope: str) -> int:
    """24 bits that tell scopes apart where a position names them: the id would take too much room."""
    return crc32(scope.encode("utf-8")) & 0xFFFFFF


def _malformed() -> InvalidInput:
    return InvalidInput("the text is no position", "pass what str() of a follower's position gave")


def _base36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits


def _put_varint(out: bytearray, number: int) -> None:
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _lives(text: str, epoch: int) -> list[LifePoint]:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _malformed() from None
    lives: list[LifePoint] = []
    at = first = 0
    while at < len(data):
        numbers = []
        for _ in range(3):
            number, at = _varint(data, at)
            numbers.append(number)
        first += numbers[0]
        away = numbers[2] >> 1 if not numbers[2] & 1 else -(numbers[2] >> 1) - 1
        life = LifePoint(first, epoch + away, first + numbers[1], int.from_bytes(data[at : at + _MARK_BYTES], "little"))
        at += _MARK_BYTES
        if at > len(data) or not numbers[0] or life.sequence > MAX_SEQUENCE or not 0 <= life.epoch <= MAX_SEQUENCE:
            raise _malformed()
        lives.append(life)
    return lives


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift <= 56:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise _malformed()
