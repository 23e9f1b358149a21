"""The frame: pure functions between bytes and frames. No I/O, no zstd; see engine/FORMAT.md, "The frame".

A frame is an *envelope* (a zstd skippable frame) plus its payload. The payload of a header or batch frame is one
checksummed zstd frame that follows the envelope; the payload of an index frame stands inside the envelope, so that
standard tools skip it; a closing frame has none::

    +-------+------+---------+--------+------+-------+-------+------+---------+---------+-----------+------+-------+
    | magic | size | version | digest | prev | epoch | first | span | commits | payload | raw delta | mark | crc32 |
    |   4   |  4   |    1    |   2    |  4   |   v   |   v   |  v   |    v    |    v    |     v     |  v   |   4   |
    +-------+------+---------+--------+------+-------+-------+------+---------+---------+-----------+------+-------+

v = varint (LEB128). crc32 starts from the frame's offset in its file (low 32 bits) and covers everything from the
magic on, itself left out, and the payload: a frame moved to another place is no frame.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final, NamedTuple
from zlib import crc32

from .layout import (
    ENVELOPE_VERSION,
    KIND_COVER,
    KIND_INDEX,
    KIND_INSIDE,
    MAGIC_TAIL,
    MAX_SEQUENCE,
    SKIPPABLE_HEADER,
)

_FIXED: Final = struct.Struct("<BHI")  # version, digest, previous checksum
_HEAD: Final = struct.Struct("<B3sIBHI")  # kind, magic, size, and these
_HEAD_BYTES: Final = _HEAD.size
_MIN_ENVELOPE: Final = SKIPPABLE_HEADER + _FIXED.size + 7 + 4
MAX_ENVELOPE: Final = SKIPPABLE_HEADER + _FIXED.size + 7 * 10 + 4
NO_MARK: Final = -1


class Fault(Enum):
    """Why the bytes at a place are no frame."""

    SHORT = "the bytes end inside a frame"
    MAGIC = "no frame starts here"
    ZEROS = "zeros stand where a frame should start"
    COVER = "preallocated space starts here"
    ENVELOPE = "the envelope cannot be read"
    CHECKSUM = "the checksum does not match"
    DIGEST = "the frame belongs to another log"
    CHAIN = "the frame does not follow the one before it"
    SEQUENCE = "the sequences do not increase"


class Frame(NamedTuple):
    """One parsed envelope. Offsets and lengths are in bytes; ``mark`` is absolute, ``NO_MARK`` if there is none."""

    kind: int
    offset: int
    length: int  # envelope and payload
    payload_offset: int
    payload_length: int
    raw_length: int
    epoch: int
    first: int
    last: int
    commits: int
    mark: int
    previous: int
    checksum: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def encode_frame(
    kind: int,
    *,
    digest: int,
    previous: int,
    epoch: int,
    first: int,
    last: int,
    commits: int,
    raw_length: int,
    payload: bytes,
    mark: int,
    offset: int,
) -> tuple[bytes, int]:
    """Bytes of a frame that will stand at ``offset``, and its checksum (the next frame's ``previous``).

    ``mark`` must not exceed ``offset`` (a mark never names bytes of its own frame).
    """
    stored = len(payload)
    delta = raw_length - stored
    head = bytearray(_HEAD_BYTES)
    for number in (
        epoch,
        first,
        last - first,
        commits,
        stored,
        delta * 2 if delta >= 0 else -delta * 2 - 1,
        0 if mark < 0 else offset - mark + 1,
    ):
        while number >= 128:
            head.append(number & 127 | 128)
            number >>= 7
        head.append(number)
    inside = payload_is_inside(kind)
    size = len(head) - SKIPPABLE_HEADER + 4 + (stored if inside else 0)
    _HEAD.pack_into(head, 0, kind, MAGIC_TAIL, size, ENVELOPE_VERSION, digest, previous)
    checksum = crc32(payload, crc32(head, offset & 0xFFFFFFFF))
    tail = checksum.to_bytes(4, "little")
    return b"".join((head, payload, tail) if inside else (head, tail, payload)), checksum


def encode_cover(length: int) -> bytes:
    """Header of the skippable frame that covers ``length`` bytes of preallocated space (8 or more, itself included)."""
    return bytes((KIND_COVER,)) + MAGIC_TAIL + (length - SKIPPABLE_HEADER).to_bytes(4, "little")


def payload_is_inside(kind: int) -> bool:
    """Whether frames of this kind carry their payload inside the skippable frame, known or not to this release."""
    return kind == KIND_INDEX or kind >= KIND_INSIDE


class Short(NamedTuple):
    """The frame at this place is longer than the bytes given: ``need`` bytes from its start would do."""

    need: int


def parse_frame(data: bytes, position: int, base: int, digest: int | None) -> Frame | Fault | Short:
    """Parse and verify the frame at ``data[position:]``; ``data[0]`` stands at file offset ``base``.

    ``digest`` None accepts any log (only a header's first look does that). Never reads past ``data``, takes no
    memory for lengths that the bytes merely claim, and raises nothing on any input.
    """
    available = len(data) - position
    if available < SKIPPABLE_HEADER:
        return Short(SKIPPABLE_HEADER)
    kind = data[position]
    if data[position + 1 : position + 4] != MAGIC_TAIL or kind & 0xF0 != KIND_COVER:
        return Fault.MAGIC if any(data[position : position + SKIPPABLE_HEADER]) else Fault.ZEROS
    if kind == KIND_COVER:
        return Fault.COVER
    size = int.from_bytes(data[position + 4 : position + 8], "little")
    whole = SKIPPABLE_HEADER + size
    inside = payload_is_inside(kind)
    if whole < _MIN_ENVELOPE or (not inside and whole > MAX_ENVELOPE):
        return Fault.ENVELOPE
    if available < whole:
        return Short(whole)
    version, found_digest, previous = _FIXED.unpack_from(data, position + SKIPPABLE_HEADER)
    if version != ENVELOPE_VERSION:
        return Fault.ENVELOPE
    at = position + SKIPPABLE_HEADER + 7
    stop = position + whole - 4
    numbers = []
    for _ in range(7):
        if at >= stop:
            return Fault.ENVELOPE
        byte = data[at]
        at += 1
        if byte >= 128:
            number = byte & 127
            shift = 7
            while True:
                if at >= stop or shift > 63:
                    return Fault.ENVELOPE
                byte = data[at]
                at += 1
                number |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
            numbers.append(number)
        else:
            numbers.append(byte)
    epoch, first, span, commits, payload_length, delta, distance = numbers
    offset = base + position
    last = first + span
    mark = offset - distance + 1 if distance else NO_MARK
    raw_length = payload_length + (delta >> 1 if not delta & 1 else -(delta >> 1) - 1)
    if last > MAX_SEQUENCE or raw_length < 0 or mark > offset or mark < NO_MARK:
        return Fault.ENVELOPE
    if inside:
        if at + payload_length != stop:
            return Fault.ENVELOPE
        length = whole
        checksum = crc32(memoryview(data)[position:stop], offset & 0xFFFFFFFF)
        payload_at = at
    else:
        if at != stop:
            return Fault.ENVELOPE
        length = whole + payload_length
        if available < length:
            return Short(length)
        payload_at = position + whole
        checksum = crc32(data[position:stop], offset & 0xFFFFFFFF)
        if payload_length:
            checksum = crc32(memoryview(data)[payload_at : payload_at + payload_length], checksum)
    if checksum != int.from_bytes(data[stop : stop + 4], "little"):
        return Fault.CHECKSUM
    if digest is not None and found_digest != digest:
        return Fault.DIGEST
    return Frame(
        kind,
        offset,
        length,
        base + payload_at,
        payload_length,
        raw_length,
        epoch,
        first,
        last,
        commits,
        mark,
        previous,
        checksum,
    )


def digest_at(data: bytes, position: int) -> int:
    """The digest of the log that a frame at ``data[position:]``, known to be one, belongs to."""
    digest: int = _FIXED.unpack_from(data, position + SKIPPABLE_HEADER)[1]
    return digest


def follows(before: Frame, frame: Frame) -> Fault | None:
    """None if ``frame`` continues the chain after ``before``, else what is wrong with it."""
    if frame.previous != before.checksum:
        return Fault.CHAIN
    if frame.epoch < before.epoch or (frame.commits and frame.first <= before.last) or frame.last < before.last:
        return Fault.SEQUENCE
    return None
