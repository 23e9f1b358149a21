"""Reading one log: by stretches backwards from its end, or forwards from its header. Every read checks its frame."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final
from zlib import crc32

from .answers import Answers
from .codec import BadPayload, decompress
from .errors import CorruptLog, ReadFailed
from .frame import Fault, Frame, Short, parse_frame
from .handle import Handle, Pin
from .header import Header, digest_of
from .layout import KIND_BATCH, KIND_INDEX, KIND_INSIDE, KIND_LAST, MAGIC_TAIL, MAX_SEQUENCE, SKIPPABLE_HEADER
from .lines import Address, BadLine, Record, decode_lines, nests_deeper
from .scan import PIECE, Walk, fetch, frame_at
from .stretch import BadIndex, Closed, Span, Summary
from .survey import Survey, frame_cap, read_header
from .tail import Tail, note_of
from .totals import Totals

_CLOSED_KEPT: Final = 64  # parsed index frames kept a log
_INDEX_PIECE: Final = 8 * 1024  # read for an index frame; most are shorter
_AROUND: Final = 2  # the line and the item are arrays around an element
_READ_WHOLE: Final = 1024 * 1024  # a stretch up to this length is read in one piece


class LogView(Answers):
    """One log as it stood at a survey, or as its writer has extended it since."""

    def __init__(self, handle: Handle, path: str, header: Header, end: int) -> None:
        self.handle = handle
        self._pin: Pin | None = None  # of a snapshot
        self.path = path
        self.header = header
        self.digest = digest_of(header)
        self.cap = frame_cap(header)
        self.end = end
        self._survey: Survey | None = None
        self._tail: Tail | None = None
        self._closed: OrderedDict[int, Closed] = OrderedDict()

    @classmethod
    def of_survey(cls, handle: Handle, path: str, survey: Survey) -> LogView:
        view = cls(handle, path, survey.header, survey.end)
        view._survey = survey
        return view

    @property
    def tail(self) -> Tail:
        """The open stretch; decoded at its first use, so that opening a log reads no payload."""
        tail = self.growing_tail
        tail.fold()
        return tail

    @tail.setter
    def tail(self, tail: Tail) -> None:
        self._tail = tail

    @property
    def growing_tail(self) -> Tail:
        """The open stretch as its writer extends it: what the last frames did may not be worked out yet."""
        if self._tail is None:
            self._tail = self._load_tail()
        return self._tail

    def snapshot(self) -> LogView:
        """The same log, frozen: what the writer appends later is not seen.

        Its file stays open until :meth:`let_go`, or until nobody refers to the snapshot: the writer may retire the
        scope meanwhile, and unlink the file. Raises :class:`ReadFailed`.
        """
        view = LogView(self.handle, self.path, self.header, self.end)
        view.hold()
        view._tail = self.tail.snapshot()
        view._closed = self._closed
        view.index = self.index
        return view

    def closed_part(self) -> LogView:
        """The closed stretches alone, as they are now."""
        tail = self.growing_tail
        view = LogView(self.handle, self.path, self.header, tail.start)
        view._tail = Tail(tail.start, tail.previous)
        return view

    def hold(self) -> None:
        """Have the file stay open until :meth:`let_go`. Raises as :meth:`pinned`."""
        self._pin = self.pinned()

    def let_go(self) -> None:
        """Nobody reads this snapshot, or this part, any more. May be done twice."""
        self._pin = None

    def file_size(self) -> int:
        with self.pinned() as file:
            return file.size()

    def pinned(self) -> Pin:
        """The log's file, to be used in a ``with`` statement. Raises :class:`ReadFailed`, and as :meth:`Handle.pin`."""
        if self._pin is not None:
            return self._pin
        try:
            return self.handle.pin()
        except OSError as error:
            raise ReadFailed(
                f"{self.path} could not be opened again ({error})",
                "check the disk and the limit of open files; nothing was changed, and the call may be tried again",
            ) from error

    # --- frames ---------------------------------------------------------------------------------

    def _load_tail(self) -> Tail:
        survey = self._survey
        assert survey is not None
        index = survey.newest_index
        start = index.end if index else survey.spans[0].offset if survey.spans else survey.end
        length = survey.spans[-1].offset + survey.spans[-1].length - start if survey.spans else 0
        chunk = self._fetch(length, start) if length <= _READ_WHOLE else b""
        numbers: dict[int, Address] = {}
        frames = [(span, self._decode(span, numbers, chunk, start)) for span in survey.spans]
        tail = self.open_stretch(index, start, frames, numbers)
        if survey.spans:
            tail.crc = crc32(chunk) if len(chunk) == length else self.crc(start, tail.end)
        return tail

    def open_stretch(
        self, index: Frame | None, start: int, frames: list[tuple[Span, list[Record]]], numbers: dict[int, Address]
    ) -> Tail:
        """The open stretch behind the newest index frame, of frames that were read and decoded; its crc is not set."""
        tail = Tail(start, index.offset, self._totals(index), index.mark) if index else Tail(start, 0)
        tail.number(numbers)
        for span, records in frames:
            tail.add(span._replace(time=records[-1].time) if records else span, [note_of(r) for r in records])
        return tail

    def _totals(self, index: Frame) -> Totals | None:
        """What the newest index frame says of the log up to its end, if it does (format 1.0 did not)."""
        try:
            return self.closed(index.offset, index.last).totals
        except CorruptLog:  # whoever asks for the stretches is told; appends go on
            return None

    def crc(self, start: int, end: int) -> int:
        """Checksum of the bytes of a stretch."""
        crc = 0
        with self.pinned() as file:
            while start < end:
                data = fetch(file, self.path, min(_READ_WHOLE, end - start), start)
                if not data:
                    raise self._corrupt(start, 0, "the file is shorter than it was", "short")
                crc = crc32(data, crc)
                start += len(data)
        return crc

    def verify(self, start: int) -> None:
        """Read the log from ``start`` on once more, and hold it against the checksums of its stretches.

        Raises :class:`CorruptLog`, :class:`ReadFailed`.
        """
        self._closed.clear()
        stretch: Tail | Closed = self.tail
        while True:
            if self.crc(stretch.start, stretch.end) != stretch.crc:
                raise self._corrupt(stretch.start, stretch.first - 1, "its stretch is not what was written", "checksum")
            if stretch.start <= start:
                return
            if not stretch.previous:
                break
            stretch = self.before(stretch)
        with self.pinned() as file:
            read_header(file, self.path)

    def _fetch(self, length: int, offset: int) -> bytes:
        with self.pinned() as file:
            return fetch(file, self.path, length, offset)

    def _frame_at(self, offset: int, end: int, piece: int = PIECE) -> tuple[Frame | Fault, bytes]:
        with self.pinned() as file:
            return frame_at(file, self.path, offset, end, self.digest, self.cap, piece)

    def _decode(self, span: Span, numbers: dict[int, Address], chunk: bytes = b"", base: int = 0) -> list[Record]:
        """Records of the frame that fills ``span``; ``chunk``, if it holds it, stands at ``base``."""
        found: Frame | Fault | Short
        offset, length = span.offset, span.length
        if chunk and offset + length <= base + len(chunk):
            data = chunk
            found = parse_frame(data, offset - base, base, self.digest)
        else:
            base = offset
            found, data = self._frame_at(offset, offset + length)
        if not isinstance(found, Frame) or found.length != length:
            if self._is_foreign(offset, length):
                return []
            fault = found if isinstance(found, Fault) else Fault.SHORT
            raise self._corrupt(offset, span.first - 1, fault.value, fault.name.lower())
        start = found.payload_offset - base
        return self.decode_frame(found, data[start : start + found.payload_length], numbers)

    def _is_foreign(self, offset: int, length: int) -> bool:
        """Whether foreign skippable frames fill a span to the byte. The magic of one is not enough to go by: a batch
        frame has it, too, when a single bit of its own is turned over."""
        at, end = offset, offset + length
        while at < end:
            head = self._fetch(SKIPPABLE_HEADER, at)
            if len(head) < SKIPPABLE_HEADER or head[1:4] != MAGIC_TAIL or not KIND_INSIDE <= head[0] <= KIND_LAST:
                return False
            at += SKIPPABLE_HEADER + int.from_bytes(head[4:8], "little")
        return at == end

    def decode_frame(self, frame: Frame, payload: bytes, numbers: dict[int, Address]) -> list[Record]:
        """Records of one frame, whose definitions are added to ``numbers``. An index frame clears them."""
        if frame.kind == KIND_INDEX:
            numbers.clear()
        return decode_batch(frame, payload, self.header, self.path, numbers) if frame.kind == KIND_BATCH else []

    def _corrupt(self, offset: int, sequence: int, detail: str, reason: str) -> CorruptLog:
        return CorruptLog(path=self.path, offset=offset, sequence=max(sequence, 0), reason=reason, detail=detail)

    # --- stretches ------------------------------------------------------------------------------

    def closed(self, offset: int, before: int = 0) -> Closed:
        """The stretch closed by the index frame at ``offset``; ``before``: what an error names as last sequence."""
        kept = self._closed.get(offset)
        if kept is not None:
            return kept
        found, data = self._frame_at(offset, self.end, _INDEX_PIECE)
        if not isinstance(found, Frame) or found.kind != KIND_INDEX:
            fault = found if isinstance(found, Fault) else Fault.MAGIC
            detail = f"its index frame cannot be read ({fault.value})"
            raise self._corrupt(offset, before, detail, fault.name.lower())
        start = found.payload_offset - offset
        try:
            closed = Closed(found, data[start : start + found.payload_length])
        except BadIndex as error:
            detail = f"its index frame is malformed ({error})"
            raise self._corrupt(offset, before, detail, "content") from None
        self._closed[offset] = closed
        while len(self._closed) > _CLOSED_KEPT:
            try:
                self._closed.popitem(last=False)
            except KeyError:  # another thread was quicker
                break
        return closed

    def batches(self, summary: Summary, *, newest_first: bool = False) -> Iterator[list[Record]]:
        """Records of a stretch, one list a frame."""
        chunk, base = b"", summary.start
        if summary.end - summary.start <= _READ_WHOLE:
            chunk = self._fetch(summary.end - summary.start, summary.start)
        numbers = dict(summary.numbers)
        for span in reversed(summary.spans) if newest_first else summary.spans:
            yield self._decode(span, numbers, chunk, base)

    def records(self) -> Iterator[Record]:
        """Every record of the log from its header on. Raises :class:`CorruptLog` where the good prefix ends early."""
        with self.pinned() as file:
            _, first = read_header(file, self.path)
            walk = Walk(file, self.path, first.end, first, self.end, self.digest, self.cap)
            numbers: dict[int, Address] = {}
            sequence = first.last
            for frame, payload in walk:
                yield from self.decode_frame(frame, payload, numbers)
                sequence = frame.last
        if walk.offset < self.end:
            fault = walk.fault or Fault.SHORT
            raise CorruptLog(
                path=self.path, offset=walk.offset, sequence=sequence, reason=fault.name.lower(), detail=fault.value
            )


def decode_batch(frame: Frame, payload: bytes, header: Header, path: str, numbers: dict[int, Address]) -> list[Record]:
    """Records of a batch frame of the log of that header, whose definitions are added to ``numbers``."""
    reason = "content"
    try:
        raw = decompress(payload, frame.raw_length, header.limits.frame_bytes())
        records = list(decode_lines(raw, header.first, header.time, numbers))
    except (BadPayload, BadLine) as error:
        detail = str(error)
    except ReadFailed:
        if not nests_deeper(raw, header.limits.depth + _AROUND):
            raise
        detail = f"an element nests deeper than {header.limits.depth}"
    else:
        if not records or (frame.first <= records[0].sequence and records[-1].sequence <= frame.last):
            return records
        reason, detail = "sequence", "its lines and its envelope name different sequences"
    raise CorruptLog(path=path, offset=frame.offset, sequence=max(frame.first - 1, 0), reason=reason, detail=detail)


def bounds(cursor: int | None, descending: bool) -> tuple[int, int]:
    """Exclusive lower and upper bound of a read from an exclusive cursor."""
    if descending:
        return 0, MAX_SEQUENCE + 1 if cursor is None else cursor
    return cursor or 0, MAX_SEQUENCE + 1


def page(records: Iterator[Record], limit: int | None, stop_at_tag: str | None) -> list[Record]:
    """At most ``limit`` records, up to and including the first with the tag; never searches past the limit."""
    out: list[Record] = []
    if limit is not None and limit <= 0:
        return out
    for record in records:
        out.append(record)
        if (stop_at_tag is not None and record.argument == stop_at_tag) or len(out) == limit:
            break
    return out
