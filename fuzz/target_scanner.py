"""The scanner on any bytes: frames, the chain, searches and the survey, held against a naive second reading.

A defect is any error but the typed ones, an answer that differs from :mod:`fuzz.oracle`'s, from itself on a file that
is read in other pieces, or between the whole survey and the partial one where that begins at a frame of the chain; a
read beyond the end of the file, and more reads than the bytes give reason for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fuzz.damage import Log
from fuzz.oracle import Seen, Told, frame, tell
from scopelog_engine import scan
from scopelog_engine.errors import CorruptLog, NewerFormat
from scopelog_engine.frame import Frame, parse_frame
from scopelog_engine.header import digest_of
from scopelog_engine.layout import MAGIC_TAIL, MAX_HEADER_BYTES
from scopelog_engine.scan import search_index_backwards
from scopelog_engine.survey import CORRUPT, LIVE, Survey, frame_cap, survey

_PIECES: Final = (61, 4096)  # shorter than many frames, and than the longest


class Bytes:
    """A file of bytes that counts what is read of it. ``short``: longest piece that one read gives."""

    def __init__(self, data: bytes, short: int = 1 << 30) -> None:
        self._data, self._short = data, short
        self.reads = 0
        self.longest = 0

    def pread(self, length: int, offset: int) -> bytes:
        assert length >= 0 and offset >= 0, "a read of nowhere"
        self.reads += 1
        self.longest = max(self.longest, length)
        return self._data[offset : offset + min(length, self._short)]

    def size(self) -> int:
        return len(self._data)


@contextmanager
def pieces_of(length: int) -> Iterator[None]:
    """Files are read in other pieces than usual."""
    usual = scan.PIECE
    scan.PIECE = length  # type: ignore[misc]
    try:
        yield
    finally:
        scan.PIECE = usual  # type: ignore[misc]


def check_scanner(log: Log) -> None:
    data = log.data
    told = tell(data)
    _check_frames(data)
    whole = _survey(data, whole=True)
    if told is None or whole is None:
        # A header that is none for one must be none for the other; of one frame that is no header nothing is said.
        assert told is None and whole is None, f"one reader finds a header, the other does not: {told} {whole}"
        return
    _check_whole(told, whole)
    partial = _survey(data, whole=False)
    assert partial is not None
    _check_partial(told, whole, partial, log.forged)
    candid = _survey(data, whole=False, judge=False)
    assert candid is not None and candid.verdict == LIVE and candid.end == partial.end
    for length in _PIECES:
        with pieces_of(length):
            again = _survey(data, whole=False, short=length - 13), _survey(data, whole=True)
        assert again == (partial, whole), f"read in pieces of {length} bytes it is another log"
    _check_index_frames(data, whole)


def _survey(data: bytes, *, whole: bool, judge: bool = True, short: int = 1 << 30) -> Survey | None:
    file = Bytes(data, short)
    try:
        found = survey(file, "log", judge=judge, whole=whole)
    except (CorruptLog, NewerFormat):
        found = None
    magics = data.count(MAGIC_TAIL) + 1
    # A look at a few places, a walk for each index frame that may be the one to begin at, a search for the rest.
    most = 40 + (len(data) // min(scan.PIECE, short) + 8) * (magics + 8) * 4
    assert file.reads <= most, f"{file.reads} reads of {len(data)} bytes with {magics} magics"
    assert file.longest <= max(len(data), MAX_HEADER_BYTES), f"a read of {file.longest} bytes of {len(data)}"
    return found


def same(seen: Seen, found: Frame) -> bool:
    return (
        (seen.kind, seen.at, seen.end, seen.epoch, seen.first, seen.last) == (
            found.kind, found.offset, found.end, found.epoch, found.first, found.last)
        and (seen.commits, len(seen.payload), seen.raw_length, seen.mark) == (
            found.commits, found.payload_length, found.raw_length, found.mark)
        and (seen.previous, seen.checksum) == (found.previous, found.checksum)
    )  # fmt: skip


def _check_frames(data: bytes) -> None:
    """Every place where one might stand, of any log."""
    at = data.find(MAGIC_TAIL)
    while at >= 0:
        if at:
            found, seen = parse_frame(data, at - 1, 0, None), frame(data, at - 1)
            if isinstance(found, Frame):
                assert seen is not None and same(seen, found), f"no such frame stands at {at - 1}: {found}"
                moved = parse_frame(data, at - 1, 4096, None)
                assert not isinstance(moved, Frame), f"the frame at {at - 1} is one elsewhere, too"
            else:
                assert seen is None, f"the frame at {at - 1} was not found: {found}"
        at = data.find(MAGIC_TAIL, at + 1)


def _check_whole(told: Told, found: Survey) -> None:
    assert found.end == told.end, f"the chain ends at {told.end}, not {found.end}"
    assert same(told.frames[-1], found.last)
    assert found.verdict == told.verdict, f"verdict {found.verdict} at {found.end}, not {told.verdict}"
    assert (found.high, found.epoch, found.mark) == (told.high, told.epoch, told.mark)
    below = [seen.last for seen in told.frames if seen.at == 0 or seen.end <= told.mark]
    if found.mark:
        assert found.marked_sequence <= max(below), "a sequence is called durable that no mark reaches"
    kinds = [seen.at for seen in told.frames if seen.kind == 0x52]
    assert (found.newest_index.offset if found.newest_index else None) == (kinds[-1] if kinds else None)
    spans = [span.offset for span in found.spans]
    assert spans == sorted(spans) and all(span.offset + span.length <= found.end for span in found.spans)


def _check_partial(told: Told, whole: Survey, partial: Survey, forged: bool) -> None:
    """It begins at an index frame, if one is proved; the rest is the same, unless the chain does not lead there."""
    newest = partial.newest_index
    if partial.end == whole.end:
        mine, theirs = partial._replace(marked_sequence=0), whole._replace(marked_sequence=0)
        assert mine == theirs, f"the partial survey says {partial}, the whole one {whole}"
    elif not forged:
        assert newest is not None and newest.offset > whole.end, "it ends elsewhere, and began in the chain"
        assert whole.verdict == CORRUPT, "it goes on behind a gap that nothing proves to be damage"
    assert not told.frames or partial.end >= told.frames[0].end


def _check_index_frames(data: bytes, whole: Survey) -> None:
    digest = digest_of(whole.header)
    found = [*search_index_backwards(Bytes(data), "log", 0, len(data), digest, frame_cap(whole.header))]
    there = [
        seen for at in range(len(data)) if data[at] == 0x52 and (seen := frame(data, at)) and seen.digest == digest
    ]
    assert [seen.at for seen in reversed(there)] == [seen.offset for seen in found], "index frames were missed"
