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
from .frame import Frame
from .layout import FRAME_OVERHEAD_BYTES, MAX_COMMIT_BYTES
from .lines import APPEND, DELETE, LIST, RETIRE, SET, TRIM, Address, AddressTable, Note, Record

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


class IndexBody(msgspec.Struct):
    """What an index frame says. One-letter keys: previous index frame (offset, 0: none), start, crc32, lengths, ..."""

    p: int
    s: int
    c: int
    n: list[int]
    l: list[ListEntry]  # noqa: E741
    v: list[ValueEntry]
    r: list[tuple[str, int]]  # retirements: scope id, sequence (latest of each scope)


class Span(NamedTuple):
    """One frame of a stretch. In a closed stretch ``first`` and ``last`` are those of the whole stretch; both are 0
    where the bytes are foreign."""

    offset: int
    length: int
    first: int
    last: int


class Facts:
    """What happened in a stretch. Entries are replaced, never changed, so that copies may share them."""

    __slots__ = ("lists", "numbers", "retired", "spans", "values")

    def __init__(self) -> None:
        self.lists: dict[Address, ListEntry] = {}
        self.values: dict[Address, ValueEntry] = {}
        self.retired: dict[str, int] = {}
        self.numbers: dict[int, Address] = {}
        self.spans: list[Span] = []

    def copy(self) -> Facts:
        other = Facts()
        other.lists = self.lists.copy()
        other.values = self.values.copy()
        other.retired = self.retired.copy()
        other.numbers = self.numbers.copy()
        other.spans = self.spans[:]
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
    """The open stretch at the end of a log: grows with each frame, until it is closed by an index frame."""

    __slots__ = ("_fresh", "crc", "table")

    def __init__(self, start: int, previous: int) -> None:
        super().__init__(start, previous)
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

    def index_body(self) -> bytes:
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

    def take(self, frame: Frame, start: int, notes: list[Note]) -> None:
        """Like :meth:`add`, for a frame that was read; foreign bytes from ``start`` on get a span of their own."""
        if frame.offset > start:
            self.spans.append(Span(start, frame.offset - start, 0, 0))
        self.add(Span(frame.offset, frame.length, frame.first, frame.last), notes)

    def snapshot(self) -> Tail:
        """A copy that later frames do not change; it cannot grow."""
        self.fold()
        copy = Tail(self.start, self.previous)
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

    __slots__ = ("crc", "index")

    def __init__(self, frame: Frame, payload: bytes) -> None:
        body = _body_of(frame, payload)
        super().__init__(body.s, body.p)
        self.index = frame
        self.crc = body.c
        self.end = frame.offset
        if not 0 <= body.p < max(body.s, 1) or body.s + sum(body.n) != frame.offset or min(body.n, default=1) <= 0:
            raise BadIndex("its offsets and lengths do not meet")
        offset = body.s
        for length in body.n:
            self.spans.append(Span(offset, length, frame.first, frame.last))
            offset += length
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


def _body_of(frame: Frame, payload: bytes) -> IndexBody:
    try:
        return _decode_body(decompress(payload, frame.raw_length, MAX_INDEX_BYTES))
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadIndex(str(error)) from None
