"""Pieces: all of a damaged log, as frames that verify and what stands between them. Reads only; see :mod:`rescue`."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final, NamedTuple

from .frame import Fault, Frame, digest_at, follows
from .fs import Readable
from .layout import MAX_FRAME_BYTES, SKIPPABLE_HEADER
from .scan import Walk, fetch, is_zero, search

BLOCK: Final = 4096  # of a disk: what a bad place on it takes along
_VOTES: Final = 64  # frames that are asked for the digest of a log without a header


class Gap(NamedTuple):
    """Bytes that belong to no chain; what they held has sequences above ``after`` and below ``before`` (0: nothing
    follows)."""

    offset: int
    end: int
    fault: Fault
    after: int
    before: int


class Foreign(NamedTuple):
    """Foreign skippable frames inside the chain."""

    offset: int
    end: int


class Patient:
    """A file whose unreadable places read as zeros, which are never valid; ``unread`` are their offsets."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self.unread: set[int] = set()

    def pread(self, length: int, offset: int) -> bytes:
        try:
            return self._file.pread(length, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        if offset // BLOCK == (offset + max(length, 1) - 1) // BLOCK:
            self.unread.add(offset // BLOCK * BLOCK)
            return bytes(max(0, min(length, self._file.size() - offset)))
        return self.pread(BLOCK - offset % BLOCK, offset)  # block by block: the caller goes on behind it

    def size(self) -> int:
        return self._file.size()


def pieces(
    file: Readable, path: str, start: Frame | None, size: int, digest: int, cap: int
) -> Iterator[Frame | Gap | Foreign]:
    """All frames that verify behind ``start`` (None: from offset 0 on), and what stands between them, in order."""
    last = start
    at = start.end if start is not None else 0
    before, epoch = (start.last, start.epoch) if start is not None else (0, 0)
    while at < size:
        walk = Walk(file, path, at, last, size, digest, cap)
        for frame, _ in walk if last is not None else ():
            if frame.offset > at:
                yield Foreign(at, frame.offset)
            yield frame
            at, last, before, epoch = frame.end, frame, frame.last, frame.epoch
        if at >= size:
            return
        if walk.fault is Fault.COVER and is_zero(file, path, at + SKIPPABLE_HEADER, size):
            return  # preallocated space
        found = _next(file, path, at, size, digest, cap, before, epoch)
        if found is None:
            yield Gap(at, size, walk.fault or Fault.MAGIC, before, 0)
            return
        fault = walk.fault or Fault.MAGIC
        goes_on = False
        if last is not None and found.offset == at:
            wrong = follows(last, found)
            goes_on, fault = wrong is None, wrong or fault  # its writer has made it whole meanwhile
        if not goes_on:
            yield Gap(at, found.offset, fault, before, found.first if found.commits else found.last + 1)
        yield found
        at, last, before, epoch = found.end, found, found.last, found.epoch


def _next(
    file: Readable, path: str, start: int, size: int, digest: int, cap: int, before: int, epoch: int
) -> Frame | None:
    """The next frame that can have followed what was read so far."""
    for frame in search(file, path, start, size, digest, cap):
        if frame.epoch >= epoch and frame.last >= before and not (frame.commits and frame.first <= before):
            return frame
    return None


def digest_without_header(file: Readable, path: str) -> int | None:
    """The digest that most of a log's first frames carry, when its header is lost; None if it holds no frame."""
    votes: dict[int, int] = {}
    for n, frame in enumerate(search(file, path, 0, file.size(), None, MAX_FRAME_BYTES)):
        digest = digest_at(fetch(file, path, SKIPPABLE_HEADER + 7, frame.offset), 0)
        votes[digest] = votes.get(digest, 0) + 1
        if n == _VOTES:
            break
    return max(votes, key=lambda digest: votes[digest]) if votes else None


__all__ = ["BLOCK", "Foreign", "Gap", "Patient", "digest_without_header", "pieces"]
