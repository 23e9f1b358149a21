"""Rescue: what verifies of one damaged log, on both sides of the damage. Reads only.

A log is taken stretch by stretch. Frames that the chain does not lead to are found by search; each is checked like any
other. Names are the difficulty: a frame calls addresses by numbers that an earlier one has defined. Behind damage a
number counts for something only if that is certain: the index frame that closes the stretch says so, or a frame since
has defined it, or no index frame, where numbers begin anew, can have stood in what is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from .codec import BadPayload, decompress
from .elements import freeze
from .errors import InvalidInput, ReadFailed
from .frame import Frame
from .header import Header
from .layout import (
    CLOSE_INDEX_BYTES,
    KIND_BATCH,
    KIND_CLOSE,
    KIND_HEADER,
    KIND_INDEX,
    MAX_ELEMENT_BYTES,
    MAX_SEQUENCE,
    STRETCH_BYTES,
    UNNAMED,
    check_id,
)
from .lines import (
    APPEND,
    DEFINE,
    DELETE,
    LIST,
    RETIRE,
    SET,
    TAGGED,
    TRIM,
    VALUE,
    Address,
    BadLine,
    Record,
    nests_deeper,
    parse_lines,
    records_of,
)
from .pieces import BLOCK, Foreign, Gap, Patient, pieces
from .removals import Ranges, Seen, made_again
from .scan import fetch
from .stretch import BadIndex, Closed
from .survey import frame_cap

_MANY: Final = 64 * 1024  # frames of a stretch that are kept in mind; it has fewer unless its index frames are lost
_SHORTEST: Final = 26  # bytes of an index frame, at the very least
_AROUND: Final = 2  # the line and the item are arrays around an element

Line: TypeAlias = "list[Record]"
Piece: TypeAlias = "Frame | Gap | Foreign"


class Missing(NamedTuple):
    """Bytes of a log that say nothing any more. What they held has sequences above ``after`` and below ``before`` (0:
    nothing follows). ``proved``: they were durable once, so this is damage, no torn tail."""

    path: str
    offset: int
    end: int
    after: int
    before: int
    reason: str
    detail: str
    proved: bool


class Lost(NamedTuple):
    """What an index frame tells of a damaged part: ``number`` elements of a list are missing (kind ``list``), or the
    newest write of a value is (kind ``value``: an older one stands, or none)."""

    path: str
    namespace: str
    key: str
    kind: str
    number: int


class Unnamed(NamedTuple):
    """``number`` writes to an address whose name stood in a damaged part: they go to ``key`` of the namespace
    UNNAMED, which says where that part ends and by which number the log calls the address."""

    path: str
    key: str
    kind: str
    number: int


class Carried(NamedTuple):
    """Bytes that this release does not understand and keeps: a frame of a reserved kind, foreign skippable frames
    (``frame`` None), or a line of one (``line``)."""

    data: bytes
    frame: Frame | None = None
    line: bool = False


class _Names(dict[int, Address]):
    """What one frame defines, above what was defined before it: kept only if all of the frame can be understood."""

    def __init__(self, before: dict[int, Address]) -> None:
        self._before = before

    def get(self, number: int, default: Any = None) -> Any:
        found = dict.get(self, number)
        return self._before.get(number, default) if found is None else found


class _Batch(NamedTuple):
    """A batch frame that was understood. ``strange``: addresses that were given a name; ``nameless``: deletions that
    were left out for want of one; ``unknown``: items of a later release."""

    items: list[Line | Carried]
    names: _Names
    strange: list[Address]
    nameless: int
    unknown: int

    def lines(self) -> Iterator[Line]:
        return (item for item in self.items if isinstance(item, list))


class Rescue:
    """One log. Iterate :meth:`lines` once; then ``missing``, ``lost``, ``last`` and the counts say what became of it.

    ``first`` is its header frame, None if that is lost: then ``header`` is what can be told without it.
    """

    def __init__(self, file: Patient, path: str, header: Header, first: Frame | None, digest: int):
        self._file = file
        self._path = path
        self._header = header
        self._first = first
        self._digest = digest
        self._cap = frame_cap(header)
        self._numbers: dict[int, Address] = {}
        self._start: int | None = first.end if first is not None else None  # of the stretch, if that is known
        self._before: Frame | None = first
        self._behind = 0  # where the damage ends behind which names are missing
        self._seen = Seen()  # of the stretch
        self._emitted = 0  # last sequence that was given out
        self._time = header.time  # and when it was written
        self._strange: dict[Address, int] = {}  # writes to addresses without a name
        self._unproved: list[int] = []  # gaps that no later mark has called durable yet
        self.missing: list[Missing] = []
        self.lost: list[Lost] = []
        self.records = 0
        self.unknown = 0  # items of a later release, left out
        self.last = max([0, *(high for high in (header.high, header.floor) if high <= MAX_SEQUENCE)])
        self.mark = 0

    @property
    def unnamed(self) -> list[Unnamed]:
        """Addresses whose names are lost."""
        kinds = {LIST: "list", VALUE: "value"}
        return [Unnamed(self._path, a.key, kinds[a.kind], number) for a, number in self._strange.items()]

    def lines(self) -> Iterator[Line | Carried]:
        """Commits and windows in order, and what is kept as it is."""
        held: list[Piece] = []
        size = self._file.size()
        for piece in pieces(self._file, self._path, self._first, size, self._digest, self._cap):
            if isinstance(piece, Gap):
                self._unproved.append(len(self.missing))
                self._miss(piece.offset, piece.end, piece.after, piece.before, *self._why(piece))
            elif isinstance(piece, Frame):
                self._note(piece)
                if piece.kind == KIND_INDEX:
                    yield from self._stretch(held, self._closed(piece))
                    held, self._numbers, self._start, self._behind, self._before = [], {}, piece.end, 0, piece
                    self._seen = Seen()
                    continue
            held.append(piece)
            if len(held) >= _MANY:
                yield from self._stretch(held, None)
                held = []
        yield from self._stretch(held, None)

    def _note(self, frame: Frame) -> None:
        self.last = max(self.last, frame.last)
        if frame.mark > self.mark:
            self.mark = frame.mark
            proved = {n for n in self._unproved if self.missing[n].offset < frame.mark}
            for n in proved:
                self.missing[n] = self.missing[n]._replace(proved=True)
            self._unproved = [n for n in self._unproved if n not in proved]

    def _why(self, gap: Gap) -> tuple[str, str]:
        if gap.offset == 0 and self._first is None:
            return "header", "the log has no valid header"
        if any(gap.offset - BLOCK < block < gap.end for block in self._file.unread):
            return "read", "the disk could not read it"
        return gap.fault.name.lower(), gap.fault.value

    def _miss(self, offset: int, end: int, after: int, before: int, reason: str, detail: str) -> None:
        self.missing.append(Missing(self._path, offset, end, after, before, reason, detail, False))

    def _miss_frame(self, frame: Frame, reason: str, detail: str) -> None:
        self._miss(frame.offset, frame.end, frame.first - 1, frame.last + 1, reason, detail)

    def _closed(self, frame: Frame) -> Closed | None:
        try:
            return Closed(frame, fetch(self._file, self._path, frame.payload_length, frame.payload_offset))
        except BadIndex as error:
            self._miss_frame(frame, "index", f"an index frame is malformed ({error})")
            return None

    # --- a stretch ----------------------------------------------------------------------------------

    def _stretch(self, held: list[Piece], closed: Closed | None) -> Iterator[Line | Carried]:
        """What stood before an index frame, or before the end. The frame speaks for its own stretch alone: before that
        there may be others, whose index frames are lost."""
        if closed is None:
            yield from self._known(held)
            return
        mine = next((n for n, piece in enumerate(held) if piece.offset >= closed.start), len(held))
        while mine and isinstance(held[mine - 1], Gap) and held[mine - 1].end > closed.start:
            mine -= 1  # the damage reaches into it
        yield from self._known(held[:mine])
        if mine:
            self._seen = Seen()
        yield from self._told(held[mine:], closed)

    def _known(self, held: list[Piece]) -> Iterator[Line | Carried]:
        """Frames whose numbers are those that were defined before them."""
        for n, piece in enumerate(held):
            if isinstance(piece, Gap):
                following = held[n + 1] if n + 1 < len(held) else None
                if isinstance(following, Frame) and not self._same_stretch(piece, following):
                    self._numbers, self._start, self._behind = {}, None, piece.end
                    self._seen = Seen()
                self._behind = self._behind or piece.end
                continue
            yield from self._taken(piece, self._understood(piece))
            if isinstance(piece, Frame):
                self._before = piece

    def _same_stretch(self, gap: Gap, following: Frame) -> bool:
        """Whether no index frame can have stood in the gap: stretches are never shorter than 64 KiB, or 16 KiB where a
        log was closed or compacted (engine/FORMAT.md, section 5)."""
        if self._start is None or self._before is None or self._first is None or gap.end == gap.offset:
            return False
        closed = following.epoch != self._before.epoch or (
            self._header.generation > 0 and self._before.epoch == self._first.epoch
        )
        shortest = CLOSE_INDEX_BYTES if closed else STRETCH_BYTES
        return gap.end - _SHORTEST - self._start < shortest

    def _told(self, held: list[Piece], closed: Closed) -> Iterator[Line | Carried]:
        """A stretch whose index frame tells of it: from the first damage on with the deletions, trims and retirements
        that are lost as records. What they removed does not come back."""
        self._numbers = dict(closed.numbers)
        self._start = self._behind = closed.start
        again: list[Record] | None = None
        for n, piece in enumerate(held):
            batch = self._understood(piece)
            if again is None and (isinstance(piece, Gap) or isinstance(batch, str)):
                again = self._removals(held[n:], closed)
            if isinstance(piece, Frame):
                yield from self._due(again, piece.first)
            yield from self._taken(piece, batch)
        yield from self._due(again, MAX_SEQUENCE + 1)

    def _due(self, again: list[Record] | None, before: int) -> Iterator[Line]:
        """Of the removals those that come before a sequence."""
        while again and again[0].sequence < before:
            yield self._give([again.pop(0)._replace(time=self._time)])

    def _removals(self, held: list[Piece], closed: Closed) -> list[Record]:
        """At the first damage: look ahead through the stretch, and tell what it has lost."""
        seen, ranges = self._seen.copy(), Ranges()
        numbers = self._numbers
        self._numbers = dict(numbers)
        for piece in held:
            batch = self._understood(piece)
            if isinstance(batch, _Batch):
                self._numbers.update(batch.names)
                for line in batch.lines():
                    seen.take(line)
            elif isinstance(piece, Gap):
                ranges.append((max(piece.after, self._emitted), piece.before or closed.index.last + 1))
            elif isinstance(piece, Frame) and batch is not None:
                ranges.append((max(piece.first - 1, self._emitted), piece.last + 1))
        self._numbers = numbers
        for address, number in seen.lost(closed):
            kind = "list" if address.kind == LIST else "value"
            self.lost.append(Lost(self._path, address.namespace, address.key, kind, number))
        again, homeless = made_again(closed, seen, ranges)
        if homeless:
            detail = f"{homeless} removals that its index frame tells of could not be made again"
            self._miss(closed.start, closed.end, self._emitted, closed.index.last + 1, "removals", detail)
        return again

    # --- a frame ------------------------------------------------------------------------------------

    def _understood(self, piece: Piece) -> _Batch | str | None:
        """A batch frame, or why it cannot be understood; None for other pieces."""
        if not isinstance(piece, Frame) or piece.kind != KIND_BATCH:
            return None
        try:
            return self._batch(piece)
        except (BadPayload, BadLine) as error:
            return str(error)

    def _taken(self, piece: Piece, batch: _Batch | str | None) -> Iterator[Line | Carried]:
        """What comes along of a piece."""
        if isinstance(piece, Foreign):
            if piece.end - piece.offset > MAX_ELEMENT_BYTES:
                detail = "foreign frames too long to be kept"
                self._miss(piece.offset, piece.end, self._emitted, self._emitted + 1, "foreign", detail)
            else:
                yield Carried(fetch(self._file, self._path, piece.end - piece.offset, piece.offset))
        elif isinstance(piece, Frame) and isinstance(batch, str):
            self._miss_frame(piece, "content", batch)
        elif isinstance(piece, Frame) and isinstance(batch, _Batch):
            self._numbers.update(batch.names)
            self.unknown += batch.unknown
            if batch.nameless:
                self._miss_frame(piece, "names", f"{batch.nameless} deletions, of what was named in a damaged part")
            for address in batch.strange:
                self._strange.setdefault(address, 0)
            for item in batch.items:
                yield self._give(item) if isinstance(item, list) else item
        elif isinstance(piece, Frame) and piece.kind not in (KIND_CLOSE, KIND_HEADER, KIND_INDEX):
            self._emitted = max(self._emitted, piece.last)
            yield Carried(self._payload(piece), piece)

    def _give(self, line: Line) -> Line:
        self._emitted, self._time = line[-1].sequence, line[-1].time
        self._seen.take(line)
        self.records += len(line)
        for record in line:
            if record.address in self._strange:
                self._strange[record.address] += 1
        return line

    def _payload(self, frame: Frame) -> bytes:
        return fetch(self._file, self._path, frame.payload_length, frame.payload_offset)

    def _batch(self, frame: Frame) -> _Batch:
        """All of a frame. Raises :class:`BadPayload`, :class:`BadLine` if anything of it cannot be understood."""
        header = self._header
        raw = decompress(self._payload(frame), frame.raw_length, header.limits.frame_bytes())
        names = _Names(self._numbers)
        unknown: list[object] = []
        items: list[Line | Carried] = []
        strange: list[Address] = []
        nameless = 0
        for text in raw.split(b"\n"):
            for line in _parsed(text, header.limits.depth):
                if not isinstance(line, list) or [type(part) for part in line[:2]] != [int, int]:
                    items.append(Carried(text, frame, line=True))
                    continue
                nameless += self._name(line, names, strange)
                records = list(records_of([line], header.first, header.time, names, unknown))
                if records and not frame.first <= records[0].sequence <= records[-1].sequence <= frame.last:
                    raise BadLine("its lines and its envelope name different sequences")
                for record in records:
                    _check(record)
                if records:
                    items.append(records)
        return _Batch(items, names, strange, nameless, len(unknown))

    def _name(self, line: list[Any], names: _Names, strange: list[Address]) -> int:
        """Give the addresses of a line that have no name one that says so. Returns how many deletions were left out:
        of addresses of which nothing else is known, not even their kind."""
        left_out = 0
        fresh: set[int] = set()
        for at, item in enumerate(line[2:], 2):
            if type(item) is not list or not item:
                continue
            code = item[0]
            number = code if type(code) is int else item[1] if len(item) > 1 else None
            if type(number) is not int:
                continue
            if code == DEFINE:
                fresh.add(number)
            elif number in fresh or names.get(number) is not None:
                continue
            elif type(code) is int or code in (TAGGED, SET, TRIM):
                kind = VALUE if code == SET else LIST
                names[number] = Address(UNNAMED, f"{self._digest:04x}-{self._behind}-{number}", kind)
                strange.append(names[number])
            elif code == DELETE:
                line[at] = 1
                left_out += 1
        return left_out


def _parsed(text: bytes, levels: int) -> Sequence[Any]:
    """A line of a payload, if there is one. Raises :class:`BadLine`."""
    try:
        return parse_lines(text) if text else ()
    except ReadFailed:
        if nests_deeper(text, levels + _AROUND):
            raise BadLine("an element nests too deep") from None
        raise


def _check(record: Record) -> None:
    """Raise :class:`BadLine` for what no writer would have taken: it cannot be written again."""
    try:
        if record.code in (APPEND, SET):
            freeze(record.value)
        if record.code == RETIRE:
            check_id("scope", record.argument)
        elif record.code == APPEND and record.argument is not None:
            str(record.argument).encode("utf-8")
        if record.address is not None:
            record.address.namespace.encode("utf-8")
            record.address.key.encode("utf-8")
    except (InvalidInput, UnicodeEncodeError) as error:
        raise BadLine(f"sequence {record.sequence} holds what cannot be stored ({error})") from None


__all__ = ["Carried", "Lost", "Missing", "Rescue", "Unnamed"]
