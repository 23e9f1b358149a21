"""Compaction of one log: what is still needed of it, written anew, with the sequences, times and tags that it had.

A log is copied in two goes: what stood in it at one moment, while its writer goes on, and then, while nobody stores,
what was added since, as it is. Source: engine/FORMAT.md, "Compaction".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from .batch import Batch
from .codec import BadPayload, compress, decompress
from .elements import freeze
from .errors import CorruptLog, InvalidInput, NewerFormat
from .frame import Fault, Frame
from .fs import File, write_all
from .header import Header, digest_of
from .layout import (
    CLOSE_INDEX_BYTES,
    KIND_BATCH,
    KIND_CLOSE,
    KIND_HEADER,
    KIND_INDEX,
    OWN_FRAME_BYTES,
    STRETCH_BYTES,
)
from .lines import APPEND, RETIRE, SET, Address, BadLine, Line, Note, Record, Write, decode_lines, encode_line
from .scan import Walk, fetch
from .stretch import Closed
from .survey import read_header
from .tail import Tail
from .view import LogView

_FRAME_BYTES: Final = 64 * 1024  # of text, in one frame: a value is read by decoding its frame
_PIECE: Final = 1024 * 1024  # written at a time
LIVES_BYTES: Final = 8 * 1024  # that living lives may take in a header

Keep = Callable[[Record], bool]


class Alive(NamedTuple):
    """What is needed of a log: elements above their list's floor, and the newest write of each value that is set."""

    floors: dict[Address, int]
    values: dict[Address, int]

    def needs(self, record: Record) -> bool:
        """Whether the record says something that no later one has made void. Retirements are somebody else's matter."""
        if record.code == APPEND:
            assert record.address is not None
            return record.sequence > self.floors.get(record.address, 0)
        if record.code == SET:
            assert record.address is not None
            return record.sequence == self.values.get(record.address)
        return record.code == RETIRE


def alive_in(view: LogView) -> Alive:
    """Read off the log's stretches, without decoding closed ones. Raises :class:`CorruptLog`, :class:`ReadFailed`."""
    floors: dict[Address, int] = {}
    values: dict[Address, int] = {}
    stretch: Tail | Closed = view.tail
    while True:
        for address, entry in stretch.lists.items():
            if entry.floor > floors.get(address, 0):
                floors[address] = entry.floor
        for address, newest in stretch.values.items():
            values.setdefault(address, 0 if newest.deleted else newest.sequence)
        if not stretch.previous:
            return Alive(floors, values)
        stretch = view.before(stretch)


def floor_and_lives(high: int, living: list[int], unborn: list[int]) -> tuple[int, tuple[int, ...]]:
    """The retirement floor of a log that ends at ``high``, and the lives below it that go on.

    ``living``: first sequences of all lives that are not over; ``unborn``: those of scopes whose file does not exist
    yet. A floor names few lives: with many, it lies below them.
    """
    floor = min([high, *(first - 1 for first in unborn)])
    below = sorted(first for first in living if first <= floor)
    while len(str(below)) > LIVES_BYTES:
        floor = below[len(below) // 2] - 1
        below = [first for first in below if first <= floor]
    return max(floor, 0), tuple(below)


class Rewrite:
    """A log on its way into another file, which nobody reads before it has its name."""

    def __init__(self, file: File, header: Header, *, epoch: int) -> None:
        self.header = header
        self.end = 0
        self._file = file
        self._epoch = epoch
        self._batch = Batch(header, digest_of(header), epoch=epoch, mark=0, offset=0, previous=0, sequence=0)
        self._tail = self._batch.begin()
        self._numbers: dict[int, Address] = {}  # addresses of the source, where it was last read
        self._held = 0  # bytes in the batch
        self._texts: list[bytes] = []  # of the frame that is being gathered
        self._notes: list[Note] = []
        self._size = 0
        self._first = self._last = self._time = 0
        self._spare = 0  # a sequence that unknown lines may take for their frame

    # --- what goes in -----------------------------------------------------------------------------

    def copy(self, source: LogView, keep: Keep, *, after: Frame | None = None, upto: int | None = None) -> Frame:
        """Copy the records that ``keep`` names; all of the log, or what follows the frame ``after``. Returns the last
        frame, to go on from.

        ``upto``: no records above that sequence, which must be the end of a line.
        Raises :class:`CorruptLog`, :class:`ReadFailed`; :class:`NewerFormat` for lines that this release does not know.
        """
        with source.pinned() as file:
            start = after
            if start is None:
                _, start = read_header(file, source.path)
            walk = Walk(file, source.path, start.end, start, source.end, source.digest, source.cap)
            at, last = start.end, start
            for frame, payload in walk:
                if frame.offset > at:
                    self.carry_bytes(fetch(file, source.path, frame.offset - at, at))
                at, last = frame.end, frame
                if upto is not None and frame.commits and frame.first > upto:
                    break
                self._frame(source, frame, payload, keep, upto)
            else:
                if walk.offset < source.end:
                    fault = walk.fault or Fault.SHORT
                    raise CorruptLog(
                        path=source.path,
                        offset=walk.offset,
                        sequence=last.last,
                        reason=fault.name.lower(),
                        detail=fault.value,
                    )
        return last

    def _frame(self, source: LogView, frame: Frame, payload: bytes, keep: Keep, upto: int | None) -> None:
        if frame.kind == KIND_INDEX:
            self._numbers.clear()
        elif frame.kind == KIND_BATCH:
            for line in _lines(source, frame, payload, self._numbers):
                if upto is not None and line and line[0].sequence <= upto < line[-1].sequence:
                    raise InvalidInput(
                        f"sequence {upto} is inside a commit, of {line[0].sequence} to {line[-1].sequence}",
                        f"name {line[0].sequence - 1} or {line[-1].sequence}",
                    )
                kept = [record for record in line if keep(record)]
                if kept and (upto is None or kept[0].sequence <= upto):
                    self.add(kept)
        elif frame.kind not in (KIND_CLOSE, KIND_HEADER):
            self.carry_over(frame, payload)

    def carry_over(self, frame: Frame, payload: bytes) -> None:
        """A frame of a kind that this release does not know."""
        self._gather()
        span, data = self._batch.carry_over(frame, payload)
        self._last = max(self._last, span.last)
        self._tail.defer(span, [], data)
        self._held += len(data)

    def carry_bytes(self, data: bytes) -> None:
        """Foreign skippable frames."""
        self._gather()
        self._tail.defer(self._batch.carry_bytes(data), [], data)
        self._held += len(data)

    def carry_line(self, text: bytes, frame: Frame) -> None:
        """A line of an unknown kind, of ``frame``: it stays in one with those before or behind it."""
        self._texts.append(text + b"\n")
        self._size += len(text) + 1
        self._spare = frame.last
        if self._size >= _FRAME_BYTES:
            self._gather()

    def add(self, records: list[Record]) -> None:
        """One commit or window, whose sequences are above all before."""
        writes: list[Write] = []
        large = False
        for record in records:
            body = freeze(record.value)[0] if record.code in (APPEND, SET) else b""
            large = large or len(body) > OWN_FRAME_BYTES
            writes.append((record.sequence, record.code, record.address, body, record.argument))
        first, last = writes[0][0], writes[-1][0]
        if large or self._size >= _FRAME_BYTES:
            self._spare = min(self._spare, first - 1)
            self._gather()
        line = Line(writes, False, first, last, 0, large)
        milliseconds = records[-1].time - self.header.time
        text = encode_line(line, self.header.first, milliseconds, self._tail.table, self._notes)
        self._first = self._first or first
        self._last, self._time = last, records[-1].time
        self._texts.append(text)
        self._size += len(text)
        if large:
            self._gather()

    def _gather(self, *, end: bool = False) -> None:
        """The frame that was being gathered, if there is one; and an index frame, if its stretch is long enough.

        Lines that are unknown take no sequence, but their frame does: if there are no others, one that their own frame
        had; if that is given out, they wait for the next line or for the ``end``."""
        if self._texts and not self._first and (end or self._spare > self._last):
            self._first = self._last = max(self._spare, self._last + 1)
        if self._texts and self._first:
            text, lines = b"".join(self._texts), len(self._texts)
            self._batch.add_text(self._first, self._last, lines, len(text), compress(text), self._notes, self._time)
            ((span, data),) = self._batch.spans
            self._tail.defer(span, self._notes, data)
            self._batch.spans, self._batch.notes = [], []
            self._held += len(data)
            self._texts, self._notes, self._size, self._first = [], [], 0, 0
        if self._tail.length >= STRETCH_BYTES:
            self._tail = self._batch.close_stretch(self._tail)
        if self._held >= _PIECE:
            self._write()

    def _write(self) -> None:
        data = self._batch.take()
        write_all(self._file, data, self.end)
        self.end += len(data)
        self._held = 0

    # --- the end ----------------------------------------------------------------------------------

    def store(self) -> None:
        """Write what is in memory, and sync: the bulk of it, before anybody has to wait. OSError if that fails."""
        self._gather()
        self._write()
        self._file.sync()

    def finish(self, sequence: int) -> None:
        """The log ends at ``sequence``, whatever its last record is. All is durable afterwards; OSError if not."""
        self._gather(end=True)
        if self._tail.length >= CLOSE_INDEX_BYTES:
            self._tail = self._batch.close_stretch(self._tail)
        self._write()
        self._file.sync()  # a closing frame says that what is before it was synced
        self._batch.close(self.end, sequence)
        self._write()
        self._file.sync()


def _lines(source: LogView, frame: Frame, payload: bytes, numbers: dict[int, Address]) -> Iterator[list[Record]]:
    """The records of a batch frame, line by line, for a commit stays one line."""
    header = source.header
    unknown: list[object] = []
    try:
        raw = decompress(payload, frame.raw_length, header.limits.frame_bytes())
        for text in raw.split(b"\n"):
            if text:
                yield list(decode_lines(text, header.first, header.time, numbers, unknown))
    except (BadPayload, BadLine) as error:
        raise CorruptLog(
            path=source.path,
            offset=frame.offset,
            sequence=max(frame.first - 1, 0),
            reason="content",
            detail=str(error),
        ) from None
    if unknown:
        raise NewerFormat(
            f"{source.path} holds lines at offset {frame.offset} that this release does not know",
            "compact or copy it with the release that wrote them; nothing was changed",
        )


__all__ = ["LIVES_BYTES", "Alive", "Rewrite", "alive_in", "floor_and_lives"]
