"""The open stretch at the end of a log: what has happened in it, until an index frame closes it. See :mod:`stretch`."""

from __future__ import annotations

from zlib import crc32

import msgspec

from .frame import NO_MARK, Frame
from .lines import APPEND, DELETE, LIST, RETIRE, SET, TRIM, Address, AddressTable, Note, Record
from .stretch import IndexBody, ListEntry, Span, Summary, ValueEntry, span_of
from .totals import LABELS, NAME, NOTHING, Totals


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


def note_of(record: Record) -> Note:
    return Note(record.code, record.address, record.sequence, record.sequence, 1, record.argument)


class Tail(Summary):
    """The open stretch at the end of a log: grows with each frame, until it is closed by an index frame.

    ``before``: totals up to its start, None if the index frame before does not say; ``mark``: that frame's own.
    """

    __slots__ = ("_fresh", "before", "crc", "facts", "table")

    def __init__(self, start: int, previous: int, before: Totals | None = NOTHING, mark: int = NO_MARK) -> None:
        super().__init__(start, previous)
        self.facts = Facts(mark)
        self.before = before
        self.table = AddressTable()
        self.crc = 0
        self._fresh: list[tuple[Span, list[Note]]] = []  # deferred

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
        return next((span.first for span in self.spans if span.first), 0)

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
