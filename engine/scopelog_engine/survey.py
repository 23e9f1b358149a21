"""Survey: where a log ends and why. One verdict for every reader; nothing is changed here.

Let B be the first byte that does not continue the chain. If a later valid frame (a closing frame among them) has a
durable mark above B, the bytes at B were durable once: that is corruption. Otherwise what lies behind B was never
synced: a torn tail. Source: engine/FORMAT.md, section 8.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from .errors import CorruptLog
from .frame import NO_MARK, Fault, Frame, encode_cover
from .fs import Readable
from .header import Header, digest_of, parse_header
from .layout import FRAME_OVERHEAD_BYTES, KIND_CLOSE, KIND_INDEX, MAX_HEADER_BYTES, SKIPPABLE_HEADER
from .scan import Remembered, Walk, fetch, is_zero, search, search_index_backwards
from .stretch import Span, span_of

LIVE: Final = "live"  # the chain ends at EOF, at a closing frame or at untouched preallocated space
TORN: Final = "torn"
CORRUPT: Final = "corrupt"


class Survey(NamedTuple):
    """What stands in a log. ``end`` is B; ``spans`` are the frames behind the newest index frame of the chain."""

    header: Header
    size: int
    end: int
    last: Frame  # last frame of the chain
    newest_index: Frame | None  # index frame of the chain
    spans: list[Span]
    mark: int  # highest durable mark seen, 0 if none
    marked_sequence: int  # highest sequence below the mark, as far as the survey went
    clean: bool  # the chain ends with a closing frame
    verdict: str  # LIVE, TORN or CORRUPT
    fault: Fault | None  # why the chain ends at B
    covered: bool  # a cover stands at B and reaches exactly to EOF
    high: int  # highest sequence of any valid frame, those behind B included
    epoch: int  # highest epoch, likewise

    @property
    def sequence(self) -> int:
        """The log's last sequence. Of a compacted or copied log the last record may be missing, and the closing frame
        that says so torn: the header has it, too."""
        return max(self.last.last, self.header.high, self.header.floor)

    def damage(self, path: str) -> CorruptLog:
        """The error for a CORRUPT (or, to a caller that expected no end here, torn) log."""
        fault = self.fault or Fault.MAGIC
        return CorruptLog(
            path=path,
            offset=self.end,
            sequence=self.last.last,
            reason=fault.name.lower(),
            detail=f"{fault.value}, though what follows proves that these bytes were durable",
        )


def frame_cap(header: Header) -> int:
    """Most bytes one frame of this file may take: its payload may be stored uncompressed."""
    return header.limits.frame_bytes() + FRAME_OVERHEAD_BYTES


def read_header(file: Readable, path: str) -> tuple[Header, Frame]:
    return parse_header(fetch(file, path, MAX_HEADER_BYTES, 0), path)


def survey(file: Readable, path: str, *, judge: bool = True, whole: bool = False) -> Survey:
    """Find the end of a log and say why it ends there.

    ``judge`` False is for readers without the lock: they take B for the end so far and do not look behind it.
    ``whole`` follows the chain from the header; otherwise from the newest index frame that the last durable
    mark reaches to, so that the cost does not grow with history. Raises :class:`CorruptLog` for a bad header.
    """
    file = Remembered(file)  # its end is looked at several times
    header, first = read_header(file, path)
    digest = digest_of(header)
    cap = frame_cap(header)
    size = file.size()
    run = _follow(file, path, first, size, digest, cap, whole)
    walk, mark = run.walk, run.mark
    last = walk.last or first
    clean = last.kind == KIND_CLOSE
    high, epoch = max(last.last, header.high, header.floor), max(last.epoch, header.high_epoch)
    verdict, covered = LIVE, False
    if walk.offset < size:
        covered = cover_reaches(file, path, walk.offset, size)
        if judge:
            verdict = TORN
            # A cover is no proof of the end after an unclean one: search behind it.
            for frame in search(file, path, walk.offset, size, digest, cap):
                if frame.last < last.last or frame.epoch < last.epoch:
                    continue  # it cannot have followed the chain: proves nothing
                high, epoch = max(high, frame.last), max(epoch, frame.epoch)
                if frame.mark > walk.offset:
                    verdict = CORRUPT
            if verdict == TORN and walk.fault is Fault.COVER:
                start_of_zeros = walk.offset + SKIPPABLE_HEADER
                if is_zero(file, path, start_of_zeros, size):
                    verdict = LIVE
    return Survey(
        header,
        size,
        walk.offset,
        last,
        run.index,
        run.spans,
        max(mark, 0),
        run.marked_sequence,
        clean,
        verdict,
        walk.fault,
        covered,
        high,
        epoch,
    )


def _follow(file: Readable, path: str, first: Frame, size: int, digest: int, cap: int, whole: bool) -> _Run:
    """The chain's end, from the newest index frame below which all is durable (the highest mark behind it reaches to
    it), or the header."""
    proved: int | None = None
    for start in () if whole else search_index_backwards(file, path, first.end, size, digest, cap):
        if proved is not None and start.offset > proved:
            continue
        run = _Run(file, path, start, size, digest, cap)
        if start.offset <= run.mark:
            return run
        if run.mark == NO_MARK:
            break  # nothing in the file was ever proved
        proved = run.mark
    return _Run(file, path, first, size, digest, cap)


class _Run:
    """The chain followed from one frame to its end."""

    def __init__(self, file: Readable, path: str, start: Frame, size: int, digest: int, cap: int) -> None:
        self.start = start
        self.walk = Walk(file, path, start.end, start, size, digest, cap)
        self.mark = start.mark
        self.index = start if start.kind == KIND_INDEX else None
        self.spans: list[Span] = []  # behind the newest index frame
        self.marked_sequence = 0
        # Neither a header nor an index frame holds records: what its own mark reaches are all those before it.
        if start.offset <= self.mark:
            self.marked_sequence = start.last
        unmarked = deque([(start.offset, start.last)])
        at = start.end
        for frame, _ in self.walk:
            self.mark = max(self.mark, frame.mark)
            unmarked.append((frame.end, frame.last))
            while unmarked and unmarked[0][0] <= self.mark:
                self.marked_sequence = unmarked.popleft()[1]
            if frame.offset > at:
                self.spans.append(Span(at, frame.offset - at, 0, 0))  # foreign skippable frames
            at = frame.end
            if frame.kind == KIND_INDEX:
                self.index = frame
                self.spans = []
            else:
                self.spans.append(span_of(frame))


def cover_reaches(file: Readable, path: str, offset: int, size: int) -> bool:
    """Whether a cover stands at ``offset`` and reaches exactly to the end of the file."""
    length = size - offset
    return length >= SKIPPABLE_HEADER and fetch(file, path, SKIPPABLE_HEADER, offset) == encode_cover(length)


__all__ = ["CORRUPT", "LIVE", "TORN", "Survey", "cover_reaches", "frame_cap", "read_header", "survey"]
