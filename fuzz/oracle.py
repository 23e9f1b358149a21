"""What a log says, told a second time and naively: straight from engine/FORMAT.md, byte by byte, on all of the file.

Shares nothing with the engine's scanner but the constants of the format. Quadratic, and in no hurry.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple
from zlib import crc32

import msgspec

from scopelog_engine.codec import BadPayload, decompress
from scopelog_engine.header import Header, digest_of
from scopelog_engine.lines import Address, BadLine, Record, decode_lines

_TAIL: Final = b"\x2a\x4d\x18"
_COVER, _BATCH, _INDEX, _CLOSE, _HEADER = range(0x50, 0x55)


class Seen(NamedTuple):
    """A frame that stands whole and unharmed at ``at``. ``mark`` is absolute, -1 for none."""

    kind: int
    at: int
    end: int
    epoch: int
    first: int
    last: int
    commits: int
    payload: bytes
    raw_length: int
    mark: int
    previous: int
    checksum: int
    digest: int


def frame(data: bytes, at: int) -> Seen | None:
    """The frame of any log at ``at``; None if there is none."""
    if at + 8 > len(data) or data[at + 1 : at + 4] != _TAIL or not 0x50 < data[at] <= 0x5F:
        return None
    kind, size = data[at], int.from_bytes(data[at + 4 : at + 8], "little")
    inside = kind == _INDEX or kind >= 0x58
    stop = at + 8 + size - 4  # of the varints, or of the payload inside
    if size < 18 or stop + 4 > len(data) or (not inside and size > 81) or data[at + 8] != 1:
        return None
    numbers, place = [], at + 15
    for _ in range(7):
        number, length = 0, 0
        while True:
            if place >= stop or length == 10:
                return None
            byte = data[place]
            number += (byte & 127) << 7 * length
            place, length = place + 1, length + 1
            if byte < 128:
                break
        numbers.append(number)
    epoch, first, span, commits, stored, delta, distance = numbers
    raw_length = stored + (delta // 2 if delta % 2 == 0 else -(delta // 2) - 1)
    mark = at + 1 - distance if distance else -1
    if first + span >= 2**53 or raw_length < 0 or mark < -1:
        return None
    start, end = (place, stop + 4) if inside else (stop + 4, stop + 4 + stored)
    if end > len(data) or (inside and start + stored != stop) or (not inside and place != stop):
        return None
    payload = data[start : start + stored]
    checked = data[at:stop] + (b"" if inside else payload)
    if crc32(checked, at & 0xFFFFFFFF) != int.from_bytes(data[stop : stop + 4], "little"):
        return None
    previous = int.from_bytes(data[at + 11 : at + 15], "little")
    digest = int.from_bytes(data[at + 9 : at + 11], "little")
    checksum = int.from_bytes(data[stop : stop + 4], "little")
    last = first + span
    return Seen(kind, at, end, epoch, first, last, commits, payload, raw_length, mark, previous, checksum, digest)


def continues(before: Seen, after: Seen) -> bool:
    return (
        after.previous == before.checksum
        and after.epoch >= before.epoch
        and after.last >= before.last
        and (not after.commits or after.first > before.last)
    )


class Told(NamedTuple):
    """What is to be said of a log. ``frames``: the chain from the header on; ``behind``: frames behind its end."""

    header: Header
    frames: list[Seen]
    behind: list[Seen]
    end: int
    verdict: Literal["live", "torn", "corrupt"]
    high: int
    epoch: int

    @property
    def mark(self) -> int:
        return max(0, *(seen.mark for seen in self.frames))


def header_of(data: bytes) -> tuple[Header, Seen] | None:
    """The header a log begins with, if it has one."""
    first = frame(data[: 16 * 1024], 0)
    if first is None or first.kind != _HEADER:
        return None
    try:
        header = msgspec.json.decode(decompress(first.payload, first.raw_length, 16 * 1024), type=Header)
    except (BadPayload, msgspec.MsgspecError, RecursionError):
        return None
    return (header, first) if header.scopelog[0] <= 1 and first.digest == digest_of(header) else None


def tell(data: bytes) -> Told | None:
    """The chain followed from the header, and the verdict; None without a header."""
    found = header_of(data)
    if found is None:
        return None
    header, first = found
    chain = [first]
    while True:
        step = _next(data, chain[-1])
        if step is None:
            break
        chain.append(step)
    last, end = chain[-1], chain[-1].end
    behind, at = [], end
    while at < len(data):
        seen = frame(data, at)
        if seen is not None and seen.digest == first.digest:
            behind.append(seen)
        at = seen.end if seen is not None and seen.digest == first.digest else at + 1
    plausible = [seen for seen in behind if seen.last >= last.last and seen.epoch >= last.epoch]
    verdict: Literal["live", "torn", "corrupt"] = "torn"
    if any(seen.mark > end for seen in plausible):
        verdict = "corrupt"
    elif end == len(data) or (
        data[end : end + 4] == b"\x50" + _TAIL and end + 8 <= len(data) and not any(data[end + 8 :])
    ):
        verdict = "live"
    high = max([last.last, header.high, header.floor, *(seen.last for seen in plausible)])
    epoch = max([last.epoch, header.high_epoch, *(seen.epoch for seen in plausible)])
    return Told(header, chain, behind, end, verdict, high, epoch)


def _is_cover(data: bytes) -> bool:
    """Preallocated space that nobody has touched."""
    return len(data) >= 8 and data[:4] == b"\x50" + _TAIL and not any(data[8:])


def _next(data: bytes, last: Seen) -> Seen | None:
    """The frame that continues the chain, perhaps behind foreign ones."""
    at = last.end
    for _ in range(4097):
        if at >= len(data):
            return None
        seen = frame(data, at)
        if seen is not None and seen.digest == last.digest:
            return seen if continues(last, seen) else None
        if at + 8 > len(data) or data[at + 1 : at + 4] != _TAIL or not 0x58 <= data[at] <= 0x5F:
            return None
        at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
    return None


def records(told: Told) -> list[Record] | None:
    """The records of the chain; None where a payload is none, which only a forger can bring about."""
    found: list[Record] = []
    table: dict[int, Address] = {}
    for seen in told.frames:
        if seen.kind == _INDEX:
            table = {}
        if seen.kind != _BATCH:
            continue
        try:
            raw = decompress(seen.payload, seen.raw_length, 1 << 24)
            found += decode_lines(raw, told.header.first, told.header.time, table)
        except (BadPayload, BadLine):
            return None
    return found
