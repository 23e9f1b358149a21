"""A batch: frames on their way to a log, built in memory from what is to be stored. Pure; the log file writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .codec import compress
from .frame import NO_MARK, Frame, encode_frame
from .header import Header, encode_header
from .layout import FRAME_TARGET_BYTES, KIND_BATCH, KIND_CLOSE, KIND_INDEX
from .lines import Line, Note, encode_line, new_tuple
from .stretch import Span
from .tail import Tail
from .totals import NOTHING

CROWD: Final = 8  # lines of one frame from which on its commits come from a crowd


class Batch:
    """Frames for one log from ``offset`` on, each continuing the chain after checksum ``previous``.

    ``mark``: up to where the file is known to be durable, 0 for nothing. ``sequence``: the last one before.
    """

    __slots__ = (
        "_digest",
        "_epoch",
        "_frames",
        "_header",
        "_limit",
        "_mark",
        "_sequence",
        "end",
        "notes",
        "previous",
        "spans",
    )

    def __init__(
        self, header: Header, digest: int, *, epoch: int, mark: int, offset: int, previous: int, sequence: int
    ):
        self._header = header
        self._digest = digest
        self._epoch = epoch
        self._mark = mark or NO_MARK
        self._sequence = sequence
        self._limit = header.limits.frame_bytes()
        self._frames: list[bytes] = []
        self.end = offset
        self.previous = previous
        self.spans: list[tuple[Span, bytes]] = []  # batch frames alone, with their bytes
        self.notes: list[list[Note]] = []

    def data(self) -> bytes:
        return b"".join(self._frames)

    def begin(self) -> Tail:
        """The header frame, at offset 0. Returns the first stretch."""
        data, self.previous = encode_header(self._header, epoch=self._epoch, sequence=self._sequence)
        self._frames.append(data)
        self.end += len(data)
        return Tail(self.end, 0, NOTHING)

    def close_stretch(self, tail: Tail) -> Tail:
        """The index frame that closes ``tail``. Returns the next stretch."""
        totals = tail.totals_when_closed(self.end, self._mark)
        body = tail.index_body(totals)
        first = tail.first or self._sequence
        self._add(KIND_INDEX, first, max(self._sequence, first), 0, len(body), compress(body), self._mark)
        return Tail(self.end, tail.end, totals, self._mark)

    def add(self, lines: list[Line], tail: Tail, wall_ms: int, *, waiting: bool, crowd: bool = False) -> None:
        """Batch frames for the lines. The tail's table gains what they define (to be kept or undone by the caller)."""
        milliseconds = wall_ms - self._header.time
        base = self._header.first
        for group in (lines,) if len(lines) == 1 else _frames_of(lines):
            notes: list[Note] = []
            if len(group) == 1:
                text = encode_line(group[0], base, milliseconds, tail.table, notes)
            else:
                text = b"".join([encode_line(line, base, milliseconds, tail.table, notes) for line in group])
            payload = compress(text, waiting=waiting, crowd=crowd or (waiting and len(group) > CROWD))
            self.add_text(group[0].first, group[-1].last, len(group), len(text), payload, notes, wall_ms)

    def add_text(
        self, first: int, last: int, commits: int, raw_length: int, payload: bytes, notes: list[Note], wall_ms: int
    ) -> None:
        """A batch frame of lines that are encoded and compressed. ``wall_ms``: of the last one."""
        if first <= self._sequence or raw_length > self._limit:
            raise AssertionError(f"sequence {first} after {self._sequence}, or {raw_length} bytes: not a legal frame")
        self._sequence = last
        offset = self.end
        data = self._add(KIND_BATCH, first, last, commits, raw_length, payload, self._mark)
        span = new_tuple(Span, (offset, len(data), first, last, commits, self._mark, wall_ms))
        self.spans.append((span, data))
        self.notes.append(notes)

    def carry_over(self, frame: Frame, payload: bytes) -> tuple[Span, bytes]:
        """A frame of a kind that this release does not know, as it was, in its new place."""
        offset = self.end
        holds = frame.commits > 0
        first, last = (frame.first, frame.last) if holds else (self._sequence, self._sequence)
        self._sequence = last
        data = self._add(frame.kind, first, last, frame.commits, frame.raw_length, payload, self._mark)
        return Span(offset, len(data), first, last), data

    def carry_bytes(self, data: bytes) -> Span:
        """Foreign skippable frames, as they were. A frame must follow."""
        self._frames.append(data)
        self.end += len(data)
        return Span(self.end - len(data), len(data), 0, 0)

    def take(self) -> bytes:
        """The bytes so far, which leave the batch."""
        data = self.data()
        self._frames, self.spans, self.notes = [], [], []
        return data

    def close(self, mark: int, sequence: int | None = None) -> bytes:
        """The closing frame: everything before ``mark`` is durable. ``sequence``: the last one, if it is none of those
        that the frames hold."""
        if sequence is not None:
            self._sequence = max(self._sequence, sequence)
        return self._add(KIND_CLOSE, self._sequence, self._sequence, 0, 0, b"", mark)

    def _add(self, kind: int, first: int, last: int, commits: int, raw_length: int, payload: bytes, mark: int) -> bytes:
        data, self.previous = encode_frame(
            kind,
            digest=self._digest,
            previous=self.previous,
            epoch=self._epoch,
            first=first,
            last=last,
            commits=commits,
            raw_length=raw_length,
            payload=payload,
            mark=mark,
            offset=self.end,
        )
        self._frames.append(data)
        self.end += len(data)
        return data


def _frames_of(lines: list[Line]) -> Iterator[list[Line]]:
    """Cut lines into frames of about FRAME_TARGET_BYTES; a line with a large element gets a frame of its own."""
    group: list[Line] = []
    size = 0
    for line in lines:
        if group and (line.large or group[-1].large or size + line.size > FRAME_TARGET_BYTES):
            yield group
            group, size = [], 0
        group.append(line)
        size += line.size
    if group:
        yield group
