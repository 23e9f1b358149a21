"""Rescue: what verifies of one damaged log, on both sides of the damage. Reads only.

A log is taken stretch by stretch. Frames that the chain does not lead to are found by search; each is checked like any
other. Names are the difficulty: a frame calls addresses by numbers that an earlier one has defined. Behind damage a
number counts for something only if that is certain: the index frame that closes the stretch says so, or a frame since
has defined it, or no index frame, where numbers begin anew, can have stood in what is damaged.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from .codec import BadPayload, decompress
from .frame import Fault, Frame, digest_at, follows
from .fs import Readable
from .header import Header
from .layout import (
    CLOSE_INDEX_BYTES,
    KIND_BATCH,
    KIND_CLOSE,
    KIND_HEADER,
    KIND_INDEX,
    MAX_FRAME_BYTES,
    SKIPPABLE_HEADER,
    STRETCH_BYTES,
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
    parse_lines,
    records_of,
)
from .scan import Walk, fetch, is_zero, search
from .stretch import BadIndex, Closed
from .survey import frame_cap

_BLOCK: Final = 4096  # of a disk: what a bad place on it takes along
_MANY: Final = 64 * 1024  # frames of a stretch that are kept in mind; it has fewer unless its index frames are lost
_SHORTEST: Final = 26  # bytes of an index frame, at the very least
UNNAMED: Final = "scopelog.salvaged"  # the namespace of what has lost its name

Line: TypeAlias = "list[Record]"


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


class Gap(NamedTuple):
    offset: int
    end: int
    fault: Fault
    after: int
    before: int


class Foreign(NamedTuple):
    offset: int
    end: int


class Patient:
    """A file whose unreadable places read as zeros, which are never valid; ``unread`` are their offsets."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self.unread: set[int] = set()

    def pread(self, length: int, offset: int) -> bytes:
        try:
            return self._file.pread(length, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        if offset // _BLOCK == (offset + max(length, 1) - 1) // _BLOCK:
            self.unread.add(offset // _BLOCK * _BLOCK)
            return bytes(max(0, min(length, self._file.size() - offset)))
        return self.pread(_BLOCK - offset % _BLOCK, offset)  # block by block: the caller goes on behind it

    def size(self) -> int:
        return self._file.size()


def pieces(
    file: Readable, path: str, start: Frame | None, size: int, digest: int, cap: int
) -> Iterator[Frame | Gap | Foreign]:
    """All frames that verify behind ``start`` (None: from offset 0 on), and what stands between them, in order."""
    last = start
    at = start.end if start is not None else 0
    before, epoch = (start.last, start.epoch) if start is not None else (0, 0)
    while at < size:
        walk = Walk(file, path, at, last, size, digest, cap)
        for frame, _ in walk if last is not None else ():
            if frame.offset > at:
                yield Foreign(at, frame.offset)
            yield frame
            at, last, before, epoch = frame.end, frame, frame.last, frame.epoch
        if at >= size:
            return
        if walk.fault is Fault.COVER and is_zero(file, path, at + SKIPPABLE_HEADER, size):
            return  # preallocated space
        found = _next(file, path, at, size, digest, cap, before, epoch)
        if found is None:
            yield Gap(at, size, walk.fault or Fault.MAGIC, before, 0)
            return
        fault = walk.fault or Fault.MAGIC
        if last is not None and found.offset == at:
            fault = follows(last, found) or fault
        yield Gap(at, found.offset, fault, before, found.first if found.commits else found.last + 1)
        yield found
        at, last, before, epoch = found.end, found, found.last, found.epoch


def _next(
    file: Readable, path: str, start: int, size: int, digest: int, cap: int, before: int, epoch: int
) -> Frame | None:
    """The next frame that can have followed what was read so far."""
    for frame in search(file, path, start, size, digest, cap):
        if frame.epoch >= epoch and frame.last >= before and not (frame.commits and frame.first <= before):
            return frame
    return None


def digest_without_header(file: Readable, path: str) -> int | None:
    """The digest that most of a log's first frames carry, when its header is lost; None if it holds no frame."""
    votes: dict[int, int] = {}
    for n, frame in enumerate(search(file, path, 0, file.size(), None, MAX_FRAME_BYTES)):
        digest = digest_at(fetch(file, path, SKIPPABLE_HEADER + 7, frame.offset), 0)
        votes[digest] = votes.get(digest, 0) + 1
        if n == 64:
            break
    return max(votes, key=lambda digest: votes[digest]) if votes else None


@dataclass
class _Seen:
    """What survived of a stretch."""

    counts: dict[Address, int] = field(default_factory=dict)
    floors: dict[Address, int] = field(default_factory=dict)
    newest: dict[Address, int] = field(default_factory=dict)
    retired: dict[str, int] = field(default_factory=dict)

    def take(self, line: Line) -> None:
        for record in line:
            address = record.address
            if record.code == RETIRE:
                self.retired[str(record.argument)] = record.sequence
                continue
            assert address is not None
            if record.code == APPEND:
                self.counts[address] = self.counts.get(address, 0) + 1
            elif record.code == TRIM:
                floor = min(int(record.argument or 0), record.sequence)
                self.floors[address] = max(self.floors.get(address, 0), floor)
            elif address.kind == LIST:
                self.floors[address] = record.sequence
            else:
                self.newest[address] = record.sequence


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
        self._strange: dict[Address, int] = {}  # writes to addresses without a name
        self._unproved: list[int] = []  # gaps that no later mark has called durable yet
        self.missing: list[Missing] = []
        self.lost: list[Lost] = []
        self.records = 0
        self.unknown = 0  # items of a later release, left out
        self.last = max(header.high, header.floor)
        self.mark = 0

    @property
    def unnamed(self) -> list[Unnamed]:
        """Addresses whose names are lost."""
        kinds = {LIST: "list", VALUE: "value"}
        return [Unnamed(self._path, a.key, kinds[a.kind], number) for a, number in self._strange.items()]

    def lines(self) -> Iterator[Line | Carried]:
        """Commits and windows in order, and what is kept as it is."""
        held: list[Frame | Gap | Foreign] = []
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
        if any(gap.offset - _BLOCK < block < gap.end for block in self._file.unread):
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

    def _stretch(self, held: list[Frame | Gap | Foreign], closed: Closed | None) -> Iterator[Line | Carried]:
        """What stood before an index frame, or before the end. The frame speaks for its own stretch alone: before that
        there may be others, whose index frames are lost."""
        if closed is None:
            yield from self._known(held)
            return
        mine = next((n for n, piece in enumerate(held) if piece.offset >= closed.start), len(held))
        while mine and isinstance(held[mine - 1], Gap) and held[mine - 1].end > closed.start:
            mine -= 1  # the damage reaches into it
        yield from self._known(held[:mine])
        damaged = any(isinstance(piece, Gap) for piece in held[mine:])
        self._numbers = dict(closed.numbers) if damaged else {}
        self._start = self._behind = closed.start
        if not damaged:
            yield from self._known(held[mine:])
            return
        found = [item for piece in held[mine:] for item in self._lines_of(piece)]
        yield from self._made_good(found, closed, [piece for piece in held[mine:] if isinstance(piece, Gap)])

    def _known(self, held: list[Frame | Gap | Foreign]) -> Iterator[Line | Carried]:
        """Frames whose numbers are those that were defined before them."""
        for n, piece in enumerate(held):
            if isinstance(piece, Gap):
                following = held[n + 1] if n + 1 < len(held) else None
                if isinstance(following, Frame) and not self._same_stretch(piece, following):
                    self._numbers, self._start, self._behind = {}, None, piece.end
                self._behind = self._behind or piece.end
                continue
            yield from self._lines_of(piece)
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

    def _lines_of(self, piece: Frame | Gap | Foreign) -> Iterator[Line | Carried]:
        if isinstance(piece, Gap):
            return
        if isinstance(piece, Foreign):
            yield Carried(fetch(self._file, self._path, piece.end - piece.offset, piece.offset))
            return
        if piece.kind in (KIND_CLOSE, KIND_HEADER, KIND_INDEX):
            return
        payload = fetch(self._file, self._path, piece.payload_length, piece.payload_offset)
        if piece.kind != KIND_BATCH:
            yield Carried(payload, piece)
            return
        try:
            yield from self._batch(piece, payload)
        except (BadPayload, BadLine) as error:
            self._miss_frame(piece, "content", str(error))

    def _batch(self, frame: Frame, payload: bytes) -> list[Line | Carried]:
        """All of a frame or, if it cannot be understood, nothing."""
        header = self._header
        raw = decompress(payload, frame.raw_length, header.limits.frame_bytes())
        numbers = dict(self._numbers)
        unknown: list[object] = []
        out: list[Line | Carried] = []
        strange: dict[Address, int] = {}
        nameless = 0
        for text in raw.split(b"\n"):
            for line in parse_lines(text) if text else ():
                if not isinstance(line, list) or [type(part) for part in line[:2]] != [int, int]:
                    out.append(Carried(text, line=True))
                    continue
                nameless += self._name(line, numbers)
                records = list(records_of([line], header.first, header.time, numbers, unknown))
                if records and not frame.first <= records[0].sequence <= records[-1].sequence <= frame.last:
                    raise BadLine("its lines and its envelope name different sequences")
                if records:
                    out.append(records)
                for record in records:
                    if record.address is not None and record.address.namespace == UNNAMED:
                        strange[record.address] = strange.get(record.address, 0) + 1
        self._numbers = numbers
        self.unknown += len(unknown)
        self.records += sum(len(item) for item in out if isinstance(item, list))
        if nameless:
            self._miss_frame(frame, "names", f"{nameless} deletions, of what was named in a damaged part")
        for address, number in strange.items():
            self._strange[address] = self._strange.get(address, 0) + number
        return out

    def _name(self, line: list[Any], numbers: dict[int, Address]) -> int:
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
            elif number in numbers or number in fresh:
                continue
            elif type(code) is int or code in (TAGGED, SET, TRIM):
                kind = VALUE if code == SET else LIST
                numbers[number] = Address(UNNAMED, f"{self._behind}-{number}", kind)
            elif code == DELETE:
                line[at] = 1
                left_out += 1
        return left_out

    # --- what an index frame knows --------------------------------------------------------------------

    def _made_good(self, found: list[Line | Carried], closed: Closed, gaps: list[Gap]) -> Iterator[Line | Carried]:
        """The lines of a damaged stretch, with the deletions, trims and retirements that its index frame tells of:
        what they removed does not come back."""
        seen = _Seen()
        for item in found:
            if isinstance(item, list):
                seen.take(item)
        for address, entry in closed.lists.items():
            if entry.count > seen.counts.get(address, 0):
                missing = entry.count - seen.counts.get(address, 0)
                self.lost.append(Lost(self._path, address.namespace, address.key, "list", missing))
        for address, value in closed.values.items():
            if not value.deleted and value.sequence > seen.newest.get(address, 0):
                self.lost.append(Lost(self._path, address.namespace, address.key, "value", 1))
        again = _again(closed, seen, gaps)
        time = self._header.time
        for item in found:
            if isinstance(item, list):
                while again and again[0].sequence < item[0].sequence:
                    yield [again.pop(0)._replace(time=item[0].time)]
                    self.records += 1
                time = item[-1].time
            yield item
        for record in again:
            self.records += 1
            yield [record._replace(time=time)]


def _again(closed: Closed, seen: _Seen, gaps: list[Gap]) -> list[Record]:
    """Removals that are lost as records, at sequences that are lost: their own, where the index frame tells them."""
    high = max(closed.index.last + 1, 1)
    ranges = [(gap.after, gap.before or high) for gap in gaps]
    taken: set[int] = set()
    out: list[Record] = []

    def free(sequence: int) -> bool:
        return sequence not in taken and any(after < sequence < before for after, before in ranges)

    def add(sequence: int, code: str, address: Address | None, argument: int | str | None) -> None:
        taken.add(sequence)
        out.append(Record(sequence, code, address, None, argument, 0))

    for scope, sequence in closed.retired.items():
        if sequence > seen.retired.get(scope, 0) and free(sequence):
            add(sequence, RETIRE, None, scope)
    for address, value in closed.values.items():
        if value.deleted and value.sequence > seen.newest.get(address, 0) and free(value.sequence):
            add(value.sequence, DELETE, Address(address.namespace, address.key, VALUE), None)
    for address, entry in closed.lists.items():
        if entry.floor <= seen.floors.get(address, 0):
            continue
        places = [entry.floor, *(n for after, before in ranges for n in range(before - 1, after, -1))]
        place = next((n for n in places if n >= entry.floor and free(n)), None)
        if place is not None:
            add(place, TRIM, address, entry.floor)
    return sorted(out, key=lambda record: record.sequence)


__all__ = ["Carried", "Lost", "Missing", "Patient", "Rescue", "Unnamed", "digest_without_header"]
