"""Stretches: the log between two index frames, and what is known of it without decoding.

An index frame closes a stretch. It repeats the stretch's address table, says for each address what happened to it,
and carries the frames' lengths and a checksum over all their bytes, so that a reader finds its way backwards from
the end, and ``check`` verifies a stretch without decoding it.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

import msgspec

from .codec import decompress
from .frame import NO_MARK, Frame
from .layout import FRAME_OVERHEAD_BYTES, KIND_BATCH, MAX_COMMIT_BYTES
from .lines import APPEND, DELETE, LIST, RETIRE, SET, TRIM, Address, AddressTable, Note, Record
from .totals import LABELS, NAME, NOTHING, Totals

MAX_INDEX_BYTES = MAX_COMMIT_BYTES + FRAME_OVERHEAD_BYTES  # an entry takes no more than the write it tells of


class ListEntry(msgspec.Struct, array_like=True):
    """``count`` elements with sequences ``first`` to ``last``; ``floor``: elements up to it were dropped (0: none)."""

    number: int
    namespace: str
    key: str
    count: int = 0
    first: int = 0
    last: int = 0
    floor: int = 0


class ValueEntry(msgspec.Struct, array_like=True):
    """The last write of a value in the stretch: which frame (from 0), its sequence, whether it was a delete."""

    number: int
    namespace: str
    key: str
    frame: int = 0
    sequence: int = 0
    deleted: bool = False


class IndexBody(msgspec.Struct, omit_defaults=True):
    """What an index frame says. One-letter keys: previous index frame (offset, 0: none), start, crc32, lengths, ..."""

    p: int
    s: int
    c: int
    n: list[int]
    l: list[ListEntry]  # noqa: E741
    v: list[ValueEntry]
    r: list[tuple[str, int]]  # retirements: scope id, sequence (latest of each scope)
    t: Totals | None = None  # since format 1.1, where the writer knew them


class Span(NamedTuple):
    """One frame of a stretch. In a closed stretch ``first`` and ``last`` are those of the whole stretch; both are 0
    where the bytes are foreign.

    ``commits``, ``mark`` and ``time`` are known of the open stretch alone: the lines of a batch frame, the frame's
    durable mark, and the time of its last line in ms (0: not decoded, or no write in it).
    """

    offset: int
    length: int
    first: int
    last: int
    commits: int = 0
    mark: int = NO_MARK
    time: int = 0


def span_of(frame: Frame) -> Span:
    """A frame that was read; what its lines say is not known yet."""
    commits = frame.commits if frame.kind == KIND_BATCH else 0
    return Span(frame.offset, frame.length, frame.first, frame.last, commits, frame.mark)


class Facts:
    """What happened in a stretch. Entries are replaced, never changed, so that copies may share them."""

    __slots__ = ("commits", "frames", "lists", "mark", "numbers", "retired", "spans", "syncs", "time", "values")

    def __init__(self, mark: int = NO_MARK) -> None:
        self.lists: dict[Address, ListEntry] = {}
        self.values: dict[Address, ValueEntry] = {}
        self.retired: dict[str, int] = {}
        self.numbers: dict[int, Address] = {}
        self.spans: list[Span] = []
        self.frames = 0
        self.commits = 0
        self.time = 0
        self.mark = max(mark, 0)  # highest so far; at first that of the index frame before
        self.syncs = 0  # how often a mark was above all before it

    def copy(self) -> Facts:
        other = Facts(self.mark)
        other.lists = self.lists.copy()
        other.values = self.values.copy()
        other.retired = self.retired.copy()
        other.numbers = self.numbers.copy()
        other.spans = self.spans[:]
        other.frames, other.commits, other.time = self.frames, self.commits, self.time
        other.syncs = self.syncs
        return other

    def add(self, span: Span, notes: list[Note], table: AddressTable) -> None:
        """Take in one frame that was stored; its addresses have numbers in ``table``."""
        ordinal = len(self.spans)
        for note in notes:
            address = note.address
            if note.code == RETIRE:
                self.retired[str(note.argument)] = note.last
                continue
            assert address is not None
            number = table.number(address, [])
            self.numbers[number] = address
            if address.kind == LIST:
                self.lists[address] = _list_after(self.lists.get(address), number, note)
            elif note.code in (SET, DELETE):
                self.values[address] = ValueEntry(
                    number, address.namespace, address.key, ordinal, note.last, note.code == DELETE
                )
        self.spans.append(span)
        self.count(span)

    def count(self, span: Span) -> None:
        if span.commits:
            self.frames += 1
            self.commits += span.commits
            self.time = span.time or self.time
        if span.mark > self.mark:
            self.mark = span.mark
            self.syncs += 1

    def totals(self, before: Totals) -> Totals:
        """Up to the end of this stretch; ``before``: up to its start."""
        return Totals(
            before.frames + self.frames,
            before.commits + self.commits,
            before.elements + sum(entry.count for entry in self.lists.values()),
            self.time or before.time,
            before.syncs + self.syncs,
            before.name,
            before.labels,
        )


class Summary:
    """What is known of a stretch: the same for an open one (the tail) and for one read from its index frame."""

    __slots__ = ("end", "facts", "previous", "start")

    def __init__(self, start: int, previous: int) -> None:
        self.start = start
        self.end = start
        self.previous = previous  # offset of the index frame that closes the stretch before, 0 if none
        self.facts = Facts()

    @property
    def lists(self) -> dict[Address, ListEntry]:
        return self.facts.lists

    @property
    def values(self) -> dict[Address, ValueEntry]:
        return self.facts.values

    @property
    def retired(self) -> dict[str, int]:
        return self.facts.retired

    @property
    def numbers(self) -> dict[int, Address]:
        return self.facts.numbers

    @property
    def spans(self) -> list[Span]:
        return self.facts.spans

    @property
    def first(self) -> int:
        """First sequence of the stretch, 0 if it holds no record."""
        return next((span.first for span in self.spans if span.first), 0)


def note_of(record: Record) -> Note:
    return Note(record.code, record.address, record.sequence, record.sequence, 1, record.argument)


class Tail(Summary):
    """The open stretch at the end of a log: grows with each frame, until it is closed by an index frame.

    ``before``: totals up to its start, None if the index frame before does not say; ``mark``: that frame's own.
    """

    __slots__ = ("_fresh", "before", "crc", "table")

    def __init__(self, start: int, previous: int, before: Totals | None = NOTHING, mark: int = NO_MARK) -> None:
        super().__init__(start, previous)
        self.facts = Facts(mark)
        self.before = before
        self.table = AddressTable()
        self.crc = 0
        self._fresh: list[tuple[Span, list[Note]]] = []  # deferred

    @property
    def length(self) -> int:
        return self.end - self.start

    def number(self, numbers: dict[int, Address]) -> None:
        """Take over the address numbers that a reopened log already uses."""
        self.facts.numbers = dict(numbers)
        self.table = AddressTable(numbers)

    def add(self, span: Span, notes: list[Note]) -> None:
        """Take in one frame that was read, before anybody else knows this tail."""
        self.facts.add(span, notes, self.table)
        self.table.keep()
        self.end = span.offset + span.length

    def totals(self) -> Totals | None:
        """Up to the end of this stretch; ``name`` and ``labels`` look at closed stretches alone."""
        self.fold()
        return None if self.before is None else self.facts.totals(self.before)

    def totals_when_closed(self, offset: int, mark: int) -> Totals | None:
        """What the index frame at ``offset`` that closes this stretch says; ``mark`` is its own."""
        totals = self.totals()
        if totals is None:
            return None
        return msgspec.structs.replace(
            totals,
            syncs=totals.syncs + (mark > self.facts.mark),
            name=offset if NAME in self.values else totals.name,
            labels=offset if LABELS in self.values else totals.labels,
        )

    def index_body(self, totals: Totals | None) -> bytes:
        """Raw bytes of the index frame's body that closes this stretch."""
        self.fold()
        if self.start + sum(span.length for span in self.spans) != self.end:
            raise AssertionError(f"the stretch from {self.start} to {self.end} does not hold together")
        return msgspec.json.encode(
            IndexBody(
                p=self.previous,
                s=self.start,
                c=self.crc,
                n=[span.length for span in self.spans],
                l=list(self.lists.values()),
                v=list(self.values.values()),
                r=sorted(self.retired.items(), key=lambda item: item[1]),
                t=totals,
            )
        )

    def defer(self, span: Span, notes: list[Note], data: bytes) -> None:
        """Like :meth:`add`, for a frame just written: what it did is worked out by :meth:`fold`, when somebody asks."""
        self._fresh.append((span, notes))
        self.crc = crc32(data, self.crc)
        self.table.keep()
        self.end = span.offset + span.length

    def fold(self) -> None:
        """Take in what was deferred."""
        if not self._fresh:
            return
        known = self.facts.spans[-1].offset if self.facts.spans else -1
        facts = self.facts.copy()
        for span, notes in self._fresh:
            if span.offset > known:  # else it was taken in, and the fold interrupted then
                facts.add(span, notes, self.table)
        self.facts = facts  # all of it or, if interrupted before, nothing
        self._fresh = []

    def take(self, frame: Frame, start: int, notes: list[Note], time: int) -> None:
        """Like :meth:`add`, for a frame that was read; foreign bytes from ``start`` on get a span of their own.
        ``time``: of its last record, 0 if it has none."""
        if frame.offset > start:
            self.spans.append(Span(start, frame.offset - start, 0, 0))
        self.add(span_of(frame)._replace(time=time), notes)

    def snapshot(self) -> Tail:
        """A copy that later frames do not change; it cannot grow."""
        self.fold()
        copy = Tail(self.start, self.previous, self.before)
        copy.end = self.end
        copy.facts = self.facts  # a fold replaces them, it never changes them
        return copy


def _list_after(entry: ListEntry | None, number: int, note: Note) -> ListEntry:
    assert note.address is not None
    if entry is None:
        entry = ListEntry(number, note.address.namespace, note.address.key)
    count, first, last, floor = entry.count, entry.first, entry.last, entry.floor
    if note.code == APPEND:
        count, first, last = count + note.elements, first or note.first, note.last
    elif note.code == TRIM:
        floor = max(floor, min(int(note.argument or 0), note.last))
    elif note.code == DELETE:
        floor = max(floor, note.last)
    return ListEntry(number, entry.namespace, entry.key, count, first, last, floor)


class BadIndex(ValueError):
    """An index frame whose checksum holds, but whose body does not describe the log before it."""


_decode_body = msgspec.json.Decoder(IndexBody).decode


class Closed(Summary):
    """A stretch read from the index frame that closes it."""

    __slots__ = ("_lengths", "crc", "index", "totals")

    def __init__(self, frame: Frame, payload: bytes) -> None:
        body = _body_of(frame, payload)
        super().__init__(body.s, body.p)
        self.index = frame
        self.totals = body.t
        self.crc = body.c
        self.end = frame.offset
        if not 0 <= body.p < max(body.s, 1) or body.s + sum(body.n) != frame.offset or min(body.n, default=1) <= 0:
            raise BadIndex("its offsets and lengths do not meet")
        if (
            body.t is not None
            and not 0 <= min(body.t.name, body.t.labels) <= max(body.t.name, body.t.labels) <= self.end
        ):
            raise BadIndex("its totals point behind it")
        self._lengths = body.n
        for entry in body.l:
            address = Address(entry.namespace, entry.key, LIST)
            self.lists[address] = entry
            self.numbers[entry.number] = address
        for value in body.v:
            if not 0 <= value.frame < len(body.n):
                raise BadIndex("a value names a frame beyond the stretch")
            address = Address(value.namespace, value.key, SET)
            self.values[address] = value
            self.numbers[value.number] = address
        self.retired.update(body.r)

    @property
    def spans(self) -> list[Span]:
        """Made when first asked for: whoever only passes by has no use for them."""
        facts = self.facts
        if not facts.spans:
            offset, first, last = self.start, self.index.first, self.index.last
            spans: list[Span] = []
            for length in self._lengths:
                spans.append(Span(offset, length, first, last))
                offset += length
            facts.spans = spans
        return facts.spans

    @property
    def first(self) -> int:
        return self.index.first if self._lengths else 0


def _body_of(frame: Frame, payload: bytes) -> IndexBody:
    try:
        return _decode_body(decompress(payload, frame.raw_length, MAX_INDEX_BYTES))
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadIndex(str(error)) from None
