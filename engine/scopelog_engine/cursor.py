"""A cursor: how far one log was followed, and what has come behind it. Nothing is kept open in between.

Before anything is read, the last frame that was seen must still stand where it stood: what follows then continues what
was seen. A frame that is half written, or a chain that ends, is the end so far.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .frame import NO_MARK, Frame, parse_frame
from .fs import Readable
from .header import Header, digest_of
from .layout import KIND_BATCH, KIND_HEADER, KIND_INDEX
from .lines import Address, Record
from .scan import PIECE, Walk, fetch, frame_at, search_index_backwards
from .survey import Survey, frame_cap, read_header, survey
from .view import LogView, decode_batch

READ_AT_ONCE: Final = 1024 * 1024  # bytes of one log that a poll reads, but for the frame that passes it
_LOOK_AHEAD: Final = 16 * 1024 * 1024  # bytes that are looked through at once for durable marks


class Lost(Exception):
    """What was seen of a log is not there any more; the message says what."""


class Point(NamedTuple):
    """A boundary of one log: epoch and last sequence of a frame."""

    epoch: int
    sequence: int


class Place(NamedTuple):
    """A frame that was seen. ``head``: its envelope, by which it is known again if it is long; else empty."""

    frame: Frame
    head: bytes


class Taken(NamedTuple):
    """A batch frame, decoded. ``numbers``: what addresses are called behind it; ``point``: what a position says."""

    place: Place
    point: Point
    records: list[Record]
    numbers: dict[int, Address]


class Cursor:
    """One log, followed up to ``place``; ``point`` is what a position says of it."""

    __slots__ = (
        "_ahead",
        "_beginning",
        "_cap",
        "_digest",
        "_mark",
        "_numbers",
        "_skip",
        "header",
        "path",
        "place",
        "point",
    )

    def __init__(
        self,
        file: Readable,
        path: str,
        header: Header,
        origin: Frame,
        *,
        place: Place | None = None,
        point: Point | None = None,
        numbers: dict[int, Address] | None = None,
        mark: int = NO_MARK,
    ) -> None:
        """At the header frame ``origin``, or at ``place``."""
        self.path = path
        self.header = header
        self._beginning = fetch(file, path, origin.length, 0)
        self.place = place or Place(origin, b"")
        self.point = point or Point(origin.epoch, origin.last)
        self._numbers = numbers or {}
        self._skip = 0  # records up to there were seen, though they stand behind the place
        self._mark = mark
        self._ahead = self.place
        self._digest = digest_of(header)
        self._cap = frame_cap(header)

    @classmethod
    def at_end(cls, view: LogView, found: Survey) -> Cursor:
        """Behind the last batch of a log as it was surveyed. Raises :class:`CorruptLog`, :class:`ReadFailed`."""
        with view.pinned() as file:
            header, origin = read_header(file, view.path)
            for span in reversed(found.spans):
                if span.commits:
                    frame = _batch_at(file, view, span.offset)
                    if frame is not None:
                        return cls._at(file, view.path, header, origin, frame, dict(view.tail.numbers), found.mark)
            offset = found.newest_index.offset if found.newest_index else 0
            while offset:
                closed = view.closed(offset)
                for span in reversed(closed.spans):
                    frame = _batch_at(file, view, span.offset)
                    if frame is not None:  # an index frame follows: addresses get new numbers
                        return cls._at(file, view.path, header, origin, frame, {}, found.mark)
                offset = closed.previous
            return cls._at(file, view.path, header, origin, origin, {}, found.mark)

    @classmethod
    def _at(
        cls,
        file: Readable,
        path: str,
        header: Header,
        origin: Frame,
        frame: Frame,
        numbers: dict[int, Address],
        mark: int,
    ) -> Cursor:
        compacted = compacted_to(header)
        point = Point(frame.epoch, frame.last)
        if compacted is not None and frame.last <= compacted.sequence:
            point = compacted
        return cls(file, path, header, origin, place=_place(file, path, frame), point=point, numbers=numbers, mark=mark)

    @classmethod
    def locate(cls, file: Readable, path: str, point: Point) -> Cursor | None:
        """Behind the boundary ``point``; None if the log holds no such boundary.

        Raises :class:`CorruptLog` for a bad header or a frame that cannot be decoded, :class:`ReadFailed`.
        """
        found = survey(file, path, judge=False)
        header, origin = read_header(file, path)
        compacted = compacted_to(header)
        all_of_it = compacted is not None and point == compacted
        if compacted is not None and point.sequence <= compacted.sequence and not all_of_it:
            return None
        if point == (origin.epoch, origin.last) and not all_of_it:
            return cls(file, path, header, origin, mark=found.mark)
        digest, cap = digest_of(header), frame_cap(header)
        start = origin
        for index in search_index_backwards(file, path, origin.end, found.end, digest, cap):
            if index.last < point.sequence or (all_of_it and index.last == point.sequence):
                start = index
                break
        last, skip = (start if all_of_it else None), 0
        numbers: dict[int, Address] = {}
        before = start
        for frame, payload in Walk(file, path, start.end, start, found.end, digest, cap):
            if frame.last > point.sequence:
                # What was added during a compaction stands there whole, but in longer frames.
                inside = compacted is not None and not all_of_it and frame.epoch == point.epoch
                if inside and _holds(decode_batch(frame, payload, header, path, dict(numbers)), point.sequence):
                    last, skip = before, point.sequence
                break
            if frame.kind == KIND_INDEX:
                numbers = {}
            before = frame
            if frame.kind == KIND_BATCH:
                decode_batch(frame, payload, header, path, numbers)
                if all_of_it:
                    last = frame
                elif frame.last == point.sequence:
                    last = frame if frame.epoch == point.epoch else None
                    break
        if last is None:
            return None
        cursor = cls._at(file, path, header, origin, last, numbers, found.mark)
        cursor.point, cursor._skip = point, skip
        return cursor

    # --- following --------------------------------------------------------------------------------

    def is_of(self, file: Readable) -> bool:
        """Whether ``file`` is still the same log: its header would tell."""
        return fetch(file, self.path, len(self._beginning), 0) == self._beginning

    def read(self, file: Readable, *, durable: bool) -> tuple[list[Taken], bool]:
        """Batches behind the place, and whether they are all there are now; the cursor stays where it is.

        ``durable``: no further than the highest durable mark seen in the log. Raises :class:`Lost`,
        :class:`CorruptLog`, :class:`ReadFailed`.
        """
        size = file.size()
        data = self._verify(file, size)
        if durable:
            self._look_ahead(file, size)
        start = self.place.frame
        walk = Walk(file, self.path, start.end, start, size, self._digest, self._cap, data=data, base=start.offset)
        numbers = self._numbers
        taken: list[Taken] = []
        compacted = compacted_to(self.header)
        for frame, payload in walk:
            begins = frame.first if frame.kind == KIND_BATCH else frame.last + 1
            if compacted is not None and taken and taken[-1].point.sequence <= compacted.sequence < begins:
                taken[-1] = taken[-1]._replace(point=compacted)  # all there is left up to there
            if durable and frame.end > self._mark:
                break
            if frame.kind == KIND_INDEX:
                numbers = {}
            if frame.kind != KIND_BATCH:
                continue
            # Definitions of frames that are not taken in the end do no harm: each is made again before it is used.
            records = decode_batch(frame, payload, self.header, self.path, numbers)
            if self._skip:
                records = [record for record in records if record.sequence > self._skip]
            taken.append(Taken(_place(file, self.path, frame), Point(frame.epoch, frame.last), records, numbers))
            if frame.end - start.end >= READ_AT_ONCE:
                return taken, False
        return taken, True

    def take(self, taken: Taken) -> None:
        """Go on to behind a batch."""
        self.place = taken.place
        self.point = taken.point
        self._numbers = taken.numbers

    def _verify(self, file: Readable, size: int) -> bytes:
        """Bytes of the file from the place on, if it is short, so that one read does for both."""
        frame, head = self.place
        if frame.kind == KIND_HEADER:
            return b""  # known by its checksum to whoever opened the file
        if frame.end <= size:
            wanted = len(head) if head else min(frame.length + PIECE, size - frame.offset)
            data = fetch(file, self.path, wanted, frame.offset)
            if head:
                if data == head:
                    return b""
            else:
                found = parse_frame(data, 0, frame.offset, self._digest)
                if isinstance(found, Frame) and found.checksum == frame.checksum:
                    return data
        raise Lost("its last frames are gone: they were rolled back, or lost and cut as a torn tail")

    def _look_ahead(self, file: Readable, size: int) -> None:
        """Find the highest durable mark; go on from where the last look ended."""
        ahead = self._ahead
        if ahead.frame.offset < self.place.frame.offset or not _still_there(file, self.path, ahead, self._digest):
            ahead = self.place
        start = ahead.frame
        for frame, _ in Walk(file, self.path, start.end, start, size, self._digest, self._cap):
            self._mark = max(self._mark, frame.mark)
            ahead = Place(frame, b"") if frame.length <= PIECE else _place(file, self.path, frame)
            if frame.end - start.end >= _LOOK_AHEAD:
                break
        self._ahead = ahead


def compacted_to(header: Header) -> Point | None:
    """Of a compacted log: the boundary up to which records may be missing."""
    return Point(header.high_epoch, header.high) if header.high else None


def _holds(records: list[Record], sequence: int) -> bool:
    return any(record.sequence == sequence for record in records)


def _place(file: Readable, path: str, frame: Frame) -> Place:
    """``frame`` as a place. A long one is known again by its envelope, whose checksum covers the rest."""
    inside = frame.offset + frame.length == frame.payload_offset + frame.payload_length + 4
    if frame.length <= PIECE or inside:
        return Place(frame, b"")
    return Place(frame, fetch(file, path, frame.payload_offset - frame.offset, frame.offset))


def _still_there(file: Readable, path: str, place: Place, digest: int) -> bool:
    frame, head = place
    if head:
        return fetch(file, path, len(head), frame.offset) == head
    found = frame_at(file, path, frame.offset, frame.end, digest, frame.length)[0]
    return isinstance(found, Frame) and found.checksum == frame.checksum


def _batch_at(file: Readable, view: LogView, offset: int) -> Frame | None:
    found = frame_at(file, view.path, offset, view.end, view.digest, view.cap)[0]
    return found if isinstance(found, Frame) and found.kind == KIND_BATCH else None
