"""Scanning: following the chain forwards, and searching for frames where no chain leads. Reads only.

Everything here reads through :func:`fetch`, which caps every length before memory is taken and turns an operating
system's refusal into :class:`ReadFailed`: a read error is never an end of file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .errors import ReadFailed
from .frame import Fault, Frame, Short, follows, parse_frame
from .fs import Readable, read_all
from .layout import KIND_INDEX, KIND_INSIDE, KIND_LAST, MAGIC_TAIL, MAX_HEADER_BYTES, SKIPPABLE_HEADER

PIECE: Final = 64 * 1024
_OPAQUE_LIMIT: Final = 4096  # foreign skippable frames in a row that a chain may step over


class Remembered:
    """A file whose last long piece stays in memory, for those who look at one place several times in a row."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._piece = b""
        self._base = 0

    def pread(self, length: int, offset: int) -> bytes:
        at = offset - self._base
        if at >= 0 and at + length <= len(self._piece):
            return self._piece[at : at + length]
        data = self._file.pread(length, offset)
        if len(data) > MAX_HEADER_BYTES:
            self._piece, self._base = data, offset
        return data

    def size(self) -> int:
        return self._file.size()


def fetch(file: Readable, path: str, length: int, offset: int) -> bytes:
    """``length`` bytes at ``offset``, or fewer at the end of the file."""
    try:
        return read_all(file, length, offset)
    except OSError as error:
        raise ReadFailed(
            f"{path} could not be read at offset {offset} ({error})",
            "check the disk; nothing was changed, and the call may be tried again",
        ) from error


def frame_at(
    file: Readable, path: str, offset: int, end: int, digest: int | None, cap: int, piece: int = PIECE
) -> tuple[Frame | Fault, bytes]:
    """The frame at ``offset`` and its bytes. ``end`` bounds the file, ``cap`` the length a frame may claim.

    ``piece``: bytes to read at first; more are read for a longer frame."""
    data = fetch(file, path, min(piece, end - offset), offset)
    found = parse_frame(data, 0, offset, digest)
    while isinstance(found, Short):
        if found.need > end - offset or found.need > cap:
            return (Fault.SHORT if found.need > end - offset else Fault.ENVELOPE), data
        longer = fetch(file, path, found.need, offset)
        if len(longer) < found.need:
            return Fault.SHORT, longer
        data = longer
        found = parse_frame(data, 0, offset, digest)
    return found, data


class Walk:
    """Follows the chain from ``offset`` up to ``end``. Iterating yields (frame, its payload's bytes).

    ``before`` is the frame that ends at ``offset``; None accepts any first frame (inside a stretch, whose index
    frame vouches for it). ``data``: bytes of the file from ``base`` on that were read already, ``offset`` in them.

    When it stops, ``offset`` is the first byte that does not continue the chain, ``fault`` says why (None exactly at
    ``end``), and ``last`` is the last frame of the chain. Foreign skippable frames are stepped over only where the
    chain goes on behind them.
    """

    def __init__(
        self,
        file: Readable,
        path: str,
        offset: int,
        before: Frame | None,
        end: int,
        digest: int,
        cap: int,
        *,
        data: bytes = b"",
        base: int = 0,
    ) -> None:
        self._file = file
        self._path = path
        self._digest = digest
        self._cap = cap
        self._buffer = data
        self._base = base if data else offset
        self.end = end
        self.offset = offset
        self.last = before
        self.fault: Fault | None = None

    def __iter__(self) -> Iterator[tuple[Frame, bytes]]:
        while self.offset < self.end:
            found = self._parse(self.offset)
            if not isinstance(found, Frame):
                found = self._step_over(found)
            if not isinstance(found, Frame):
                self.fault = found
                return
            wrong = self._wrong(found)
            if wrong is not None:
                self.fault = wrong
                return
            start = found.payload_offset - self._base
            payload = self._buffer[start : start + found.payload_length]
            self.last = found
            self.offset = found.end
            yield found, payload

    def _parse(self, offset: int) -> Frame | Fault:
        found = parse_frame(self._buffer, offset - self._base, self._base, self._digest)
        while isinstance(found, Short):
            left = self.end - offset
            if found.need > left:
                return Fault.SHORT
            if found.need > self._cap:
                return Fault.ENVELOPE
            have = self._base + len(self._buffer) - offset
            if have >= found.need:
                return Fault.SHORT
            self._buffer = fetch(self._file, self._path, min(max(found.need, PIECE), left), offset)
            self._base = offset
            if len(self._buffer) < found.need:
                return Fault.SHORT  # the file became shorter
            found = parse_frame(self._buffer, 0, offset, self._digest)
        return found

    def _step_over(self, fault: Fault) -> Frame | Fault:
        offset = self.offset
        for _ in range(_OPAQUE_LIMIT):
            head = fetch(self._file, self._path, SKIPPABLE_HEADER, offset)
            if len(head) < SKIPPABLE_HEADER or head[1:4] != MAGIC_TAIL or not KIND_INSIDE <= head[0] <= KIND_LAST:
                return fault
            offset += SKIPPABLE_HEADER + int.from_bytes(head[4:8], "little")
            if offset >= self.end:
                return fault
            found = self._parse(offset)
            if isinstance(found, Frame):
                return found if self._wrong(found) is None else fault
        return fault

    def _wrong(self, frame: Frame) -> Fault | None:
        return None if self.last is None else follows(self.last, frame)


def search(file: Readable, path: str, start: int, end: int, digest: int | None, cap: int) -> Iterator[Frame]:
    """Every valid frame of the log (of any, if ``digest`` is None) in ``[start, end)``, in order of offset."""
    offset = start
    while offset < end:
        data = fetch(file, path, min(PIECE, end - offset), offset)
        if not data:
            return
        at = data.find(MAGIC_TAIL, 1)
        while at > 0:
            place = offset + at - 1
            if data[at - 1] & 0xF0 == 0x50:
                found = parse_frame(data, at - 1, offset, digest)
                if isinstance(found, Short):
                    found = frame_at(file, path, place, end, digest, cap)[0]
                if isinstance(found, Frame):
                    yield found
                    at = found.end - offset
                    if at >= len(data):
                        break
            at = data.find(MAGIC_TAIL, at + 1)
        else:
            at = max(len(data) - 3, 1)  # a magic may straddle the pieces
        offset += at


def search_index_backwards(file: Readable, path: str, start: int, end: int, digest: int, cap: int) -> Iterator[Frame]:
    """Every valid index frame in ``[start, end)``, newest first."""
    magic = bytes((KIND_INDEX,)) + MAGIC_TAIL
    high = end
    while high > start:
        low = max(start, high - PIECE)
        data = fetch(file, path, min(high + 3, end) - low, low)
        at = data.rfind(magic)
        while at >= 0:
            found = parse_frame(data, at, low, digest)
            if isinstance(found, Short):
                found = frame_at(file, path, low + at, end, digest, cap)[0]
            if isinstance(found, Frame):
                yield found
            at = data.rfind(magic, 0, at + 3)
        high = low


def is_zero(file: Readable, path: str, start: int, end: int) -> bool:
    """Whether every byte of ``[start, end)`` is zero."""
    while start < end:
        data = fetch(file, path, min(PIECE, end - start), start)
        if not data:
            return True
        if data.strip(b"\0"):
            return False
        start += len(data)
    return True
