"""Stretches: the log between two index frames, and what is known of it without decoding.

An index frame closes a stretch. It repeats the stretch's address table, says for each address what happened to it,
and carries the frames' lengths and a checksum over all their bytes, so that a reader finds its way backwards from
the end, and ``check`` verifies a stretch without decoding it. The stretch that is still open: :mod:`tail`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import msgspec

from .codec import decompress
from .frame import NO_MARK, Frame
from .layout import FRAME_OVERHEAD_BYTES, KIND_BATCH, MAX_COMMIT_BYTES
from .lines import LIST, SET, Address
from .totals import Totals

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


class Summary(ABC):
    """What is known of a stretch: the same for an open one (the tail) and for one read from its index frame."""

    __slots__ = ("end", "previous", "start")

    def __init__(self, start: int, previous: int) -> None:
        self.start = start
        self.end = start
        self.previous = previous  # offset of the index frame that closes the stretch before, 0 if none

    @property
    @abstractmethod
    def lists(self) -> dict[Address, ListEntry]: ...

    @property
    @abstractmethod
    def values(self) -> dict[Address, ValueEntry]: ...

    @property
    @abstractmethod
    def retired(self) -> dict[str, int]: ...

    @property
    @abstractmethod
    def numbers(self) -> dict[int, Address]: ...

    @property
    @abstractmethod
    def spans(self) -> list[Span]: ...

    @property
    @abstractmethod
    def first(self) -> int:
        """First sequence of the stretch, 0 if it holds no record."""


class BadIndex(ValueError):
    """An index frame whose checksum holds, but whose body does not describe the log before it."""


_decode_body = msgspec.json.Decoder(IndexBody).decode


class Closed(Summary):
    """A stretch read from the index frame that closes it.

    What it says of lists, values and frames is laid out when it is first asked for: most who come by ask for little.
    """

    __slots__ = ("_lists", "_numbers", "_retired", "_spans", "_values", "body", "index")

    def __init__(self, frame: Frame, payload: bytes) -> None:
        body = _body_of(frame, payload)
        super().__init__(body.s, body.p)
        self.body = body
        self.index = frame
        self.end = frame.offset
        self._lists: dict[Address, ListEntry] | None = None
        self._values: dict[Address, ValueEntry] | None = None
        self._retired: dict[str, int] | None = None
        self._numbers: dict[int, Address] | None = None
        self._spans: list[Span] | None = None
        if not 0 <= body.p < max(body.s, 1) or body.s + sum(body.n) != frame.offset or min(body.n, default=1) <= 0:
            raise BadIndex("its offsets and lengths do not meet")
        if (
            body.t is not None
            and not 0 <= min(body.t.name, body.t.labels) <= max(body.t.name, body.t.labels) <= self.end
        ):
            raise BadIndex("its totals point behind it")
        frames = [value.frame for value in body.v]
        if frames and not 0 <= min(frames) <= max(frames) < len(body.n):
            raise BadIndex("a value names a frame beyond the stretch")

    @property
    def crc(self) -> int:
        return self.body.c

    @property
    def totals(self) -> Totals | None:
        return self.body.t

    @property
    def first(self) -> int:
        return self.index.first if self.body.n else 0

    @property
    def lists(self) -> dict[Address, ListEntry]:
        lists = self._lists
        if lists is None:
            lists = self._lists = {Address(entry.namespace, entry.key, LIST): entry for entry in self.body.l}
        return lists

    @property
    def values(self) -> dict[Address, ValueEntry]:
        values = self._values
        if values is None:
            values = self._values = {Address(entry.namespace, entry.key, SET): entry for entry in self.body.v}
        return values

    @property
    def retired(self) -> dict[str, int]:
        retired = self._retired
        if retired is None:
            retired = self._retired = dict(self.body.r)
        return retired

    @property
    def numbers(self) -> dict[int, Address]:
        numbers = self._numbers
        if numbers is None:
            numbers = {entry.number: address for address, entry in self.lists.items()}
            numbers.update((entry.number, address) for address, entry in self.values.items())
            self._numbers = numbers
        return numbers

    @property
    def spans(self) -> list[Span]:
        spans = self._spans
        if spans is None:
            spans = []
            offset, first, last = self.start, self.index.first, self.index.last
            for length in self.body.n:
                spans.append(Span(offset, length, first, last))
                offset += length
            self._spans = spans
        return spans


def _body_of(frame: Frame, payload: bytes) -> IndexBody:
    try:
        return _decode_body(decompress(payload, frame.raw_length, MAX_INDEX_BYTES))
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadIndex(str(error)) from None
