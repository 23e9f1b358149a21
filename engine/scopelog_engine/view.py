"""Reading one log: by stretches backwards from its end, or forwards from its header. Every read checks its frame."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final
from zlib import crc32

from .codec import BadPayload, decompress
from .errors import CorruptLog, HandleClosed
from .frame import Fault, Frame, Short, parse_frame
from .fs import File
from .header import Header, digest_of
from .layout import KIND_BATCH, KIND_INDEX, KIND_INSIDE, MAX_SEQUENCE
from .lines import APPEND, DELETE, SET, Address, BadLine, Record, decode_lines
from .scan import Walk, fetch, frame_at
from .stretch import BadIndex, Closed, Span, Summary, Tail, note_of
from .survey import Survey, frame_cap, read_header

_CLOSED_KEPT: Final = 64  # parsed index frames kept a log
_READ_WHOLE: Final = 1024 * 1024  # a stretch up to this length is read in one piece


class Handle:
    """A file shared by a writer and its readers: closed once the writer has let go and no read is running."""

    __slots__ = ("_gone", "_lock", "_users", "file")

    def __init__(self, file: File) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._users = 0
        self._gone = False

    def __enter__(self) -> File:
        with self._lock:
            if self._gone:
                raise HandleClosed("the log was closed", "open the session again")
            self._users += 1
        return self.file

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            last = self._gone and self._users == 0
        if last:
            self.file.close()

    def close(self) -> None:
        with self._lock:
            if self._gone:
                return
            self._gone = True
            now = self._users == 0
        if now:
            self.file.close()


class LogView:
    """One log as it stood at a survey, or as its writer has extended it since."""

    def __init__(self, handle: Handle, path: str, header: Header, end: int) -> None:
        self.handle = handle
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
        """The same log, frozen: what the writer appends later is not seen."""
        view = LogView(self.handle, self.path, self.header, self.end)
        view._tail = self.tail.snapshot()
        view._closed = self._closed
        return view

    # --- frames ---------------------------------------------------------------------------------

    def _load_tail(self) -> Tail:
        survey = self._survey
        assert survey is not None
        index = survey.newest_index
        start = index.end if index else survey.spans[0].offset if survey.spans else survey.end
        tail = Tail(start, index.offset if index else 0)
        numbers: dict[int, Address] = {}
        batches = [(span, self._decode(span, numbers)) for span in survey.spans]
        tail.number(numbers)
        for span, records in batches:
            tail.add(span, [note_of(record) for record in records])
        if survey.spans:
            tail.crc = self._crc(start, tail.end)
        return tail

    def _crc(self, start: int, end: int) -> int:
        crc = 0
        while start < end:
            data = fetch(self.handle.file, self.path, min(_READ_WHOLE, end - start), start)
            if not data:
                raise self._corrupt(start, 0, "the file is shorter than it was", "short")
            crc = crc32(data, crc)
            start += len(data)
        return crc

    def _decode(self, span: Span, numbers: dict[int, Address], chunk: bytes = b"", base: int = 0) -> list[Record]:
        """Records of the frame that fills ``span``; ``chunk``, if it holds it, stands at ``base``."""
        found: Frame | Fault | Short
        offset, length = span.offset, span.length
        if chunk and offset + length <= base + len(chunk):
            data = chunk
            found = parse_frame(data, offset - base, base, self.digest)
        else:
            base = offset
            found, data = frame_at(self.handle.file, self.path, offset, offset + length, self.digest, self.cap)
        if not isinstance(found, Frame) or found.length != length:
            if found is Fault.ENVELOPE and data[offset - base] >= KIND_INSIDE:
                return []  # a foreign skippable frame inside the chain
            fault = found if isinstance(found, Fault) else Fault.SHORT
            raise self._corrupt(offset, span.first - 1, fault.value, fault.name.lower())
        start = found.payload_offset - base
        return self.decode_frame(found, data[start : start + found.payload_length], numbers)

    def decode_frame(self, frame: Frame, payload: bytes, numbers: dict[int, Address]) -> list[Record]:
        """Records of one frame, whose definitions are added to ``numbers``. An index frame clears them."""
        if frame.kind == KIND_INDEX:
            numbers.clear()
        if frame.kind != KIND_BATCH:
            return []
        try:
            raw = decompress(payload, frame.raw_length, self.header.limits.frame_bytes())
            records = list(decode_lines(raw, self.header.first, self.header.time, numbers))
        except (BadPayload, BadLine) as error:
            raise self._corrupt(frame.offset, frame.first - 1, str(error), "content") from None
        if records and (records[0].sequence < frame.first or records[-1].sequence > frame.last):
            detail = "its lines and its envelope name different sequences"
            raise self._corrupt(frame.offset, frame.first - 1, detail, "sequence")
        return records

    def _corrupt(self, offset: int, sequence: int, detail: str, reason: str) -> CorruptLog:
        return CorruptLog(path=self.path, offset=offset, sequence=max(sequence, 0), reason=reason, detail=detail)

    # --- stretches ------------------------------------------------------------------------------

    def stretches(self) -> Iterator[Summary]:
        """The open stretch, then the closed ones, newest first."""
        summary: Summary = self.tail
        yield summary
        while summary.previous:
            older = self.closed(summary.previous, summary.first - 1)
            if older.index.end != summary.start:
                detail = "its index frame does not meet the next stretch"
                raise self._corrupt(summary.previous, summary.first - 1, detail, "index")
            summary = older
            yield summary

    def closed(self, offset: int, before: int = 0) -> Closed:
        """The stretch closed by the index frame at ``offset``; ``before``: what an error names as last sequence."""
        kept = self._closed.get(offset)
        if kept is not None:
            return kept
        found, data = frame_at(self.handle.file, self.path, offset, self.end, self.digest, self.cap)
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
            chunk = fetch(self.handle.file, self.path, summary.end - summary.start, summary.start)
        numbers = dict(summary.numbers)
        for span in reversed(summary.spans) if newest_first else summary.spans:
            yield self._decode(span, numbers, chunk, base)

    # --- answers --------------------------------------------------------------------------------

    def get(self, address: Address) -> Record | None:
        """The latest write of a value if it is no delete, else None."""
        for summary in self.stretches():
            entry = summary.values.get(address)
            if entry is not None:
                record = self._value(summary.spans[entry.frame], summary, address, entry.sequence)
                return None if record.code == DELETE else record
        return None

    def _value(self, span: Span, summary: Summary, address: Address, sequence: int) -> Record:
        for record in self._decode(span, dict(summary.numbers)):
            if record.sequence == sequence and record.address == address and record.code in (SET, DELETE):
                return record
        detail = "the value its index frame speaks of is not there"
        raise self._corrupt(span.offset, sequence - 1, detail, "content")

    def scan(self, namespace: str, prefix: str) -> list[Record]:
        """Living values of a namespace whose keys start with ``prefix``, by code point order of their keys."""
        found: dict[str, Record] = {}
        for summary in self.stretches():
            wanted: dict[int, dict[int, str]] = {}  # frame number: sequence: key
            for address, entry in summary.values.items():
                if address.namespace == namespace and address.key.startswith(prefix) and address.key not in found:
                    wanted.setdefault(entry.frame, {})[entry.sequence] = address.key
            for frame, keys in wanted.items():
                for record in self._decode(summary.spans[frame], dict(summary.numbers)):
                    if keys.get(record.sequence) is not None:
                        found[keys.pop(record.sequence)] = record
                if keys:
                    detail = "the values its index frame speaks of are not there"
                    raise self._corrupt(summary.spans[frame].offset, min(keys) - 1, detail, "content")
        return [found[key] for key in sorted(found) if found[key].code != DELETE]

    def retired_since(self, sequence: int) -> dict[str, int]:
        """Latest retirement of every scope retired after ``sequence``."""
        latest: dict[str, int] = {}
        for summary in self.stretches():
            for scope, boundary in summary.retired.items():
                if boundary > latest.get(scope, sequence):
                    latest[scope] = boundary
            if 0 < summary.first <= sequence:
                break
        return latest

    def elements(
        self, address: Address, *, above: int = 0, below: int = MAX_SEQUENCE + 1, descending: bool = False
    ) -> Iterator[Record]:
        """Living elements of a list with ``above < sequence < below``, in order."""
        floor = above
        wanted: list[int] = []  # offsets of index frames; 0 stands for the open stretch
        for summary in self.stretches():
            entry = summary.lists.get(address)
            if entry is not None:
                floor = max(floor, entry.floor)
                if entry.count and entry.last > floor and entry.first < below:
                    if descending:
                        yield from self._in_stretch(summary, address, floor, below, True)
                    else:
                        wanted.append(summary.index.offset if isinstance(summary, Closed) else 0)
            if 0 < summary.first <= floor:
                break
        for offset in reversed(wanted):
            yield from self._in_stretch(self.closed(offset) if offset else self.tail, address, floor, below, False)

    def _in_stretch(
        self, summary: Summary, address: Address, floor: int, below: int, newest_first: bool
    ) -> Iterator[Record]:
        for batch in self.batches(summary, newest_first=newest_first):
            for record in reversed(batch) if newest_first else batch:
                if record.address == address and record.code == APPEND and floor < record.sequence < below:
                    yield record

    def records(self) -> Iterator[Record]:
        """Every record of the log from its header on. Raises :class:`CorruptLog` where the good prefix ends early."""
        _, first = read_header(self.handle.file, self.path)
        walk = Walk(self.handle.file, self.path, first.end, first, self.end, self.digest, self.cap)
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
