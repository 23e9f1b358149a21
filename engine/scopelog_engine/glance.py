"""A log at a glance: its open stretch, read and decoded in one pass, for those who ask many logs for little.

The answers are those of a survey without the lock. The chain is followed from the newest index frame or, in a small
log, from the header; what does not end plainly is surveyed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .frame import Fault, Frame
from .fs import File
from .handle import Handle
from .header import Header, parse_header
from .layout import KIND_CLOSE, KIND_COVER, KIND_INDEX, MAGIC_TAIL, MAX_HEADER_BYTES, PREALLOCATE_BYTES
from .lines import Address, Record
from .scan import PIECE, Walk, fetch, search_index_backwards
from .stretch import Span, span_of
from .survey import cover_reaches, survey
from .view import LogView

_FIRST: Final = MAX_HEADER_BYTES + 1
_SMALL: Final = PREALLOCATE_BYTES + PIECE  # what is larger has index frames
_COVER: Final = bytes((KIND_COVER,)) + MAGIC_TAIL


class Glance(NamedTuple):
    """``closing``: the bytes of the closing frame, if the file ends with one, else empty."""

    view: LogView
    closing: bytes


def glance(handle: Handle, path: str) -> Glance:
    """The log as it stands; see :func:`survey`. Raises :class:`CorruptLog` for a bad header, :class:`ReadFailed`."""
    with handle.pin() as file:
        data = fetch(file, path, _FIRST, 0)
        header, first = parse_header(data, path)
        size = file.size() if len(data) == _FIRST else len(data)
        look = _Look(handle, file, path, header, size)
        small = size == len(data) or (size <= _SMALL and _COVER in data)
        if small and look.follow(first, data, stop=len(data)):
            return look.result()
        start = next(search_index_backwards(file, path, first.end, size, look.view.digest, look.view.cap), first)
        if look.follow(start, b"", stop=size) and look.proves(start):
            return look.result()
        found = survey(file, path, judge=False)
        view = LogView.of_survey(handle, path, found)
        closed = found.clean and found.last.end == found.size
        return Glance(view, fetch(file, path, found.last.length, found.last.offset) if closed else b"")


class _Look:
    """The chain followed from one frame, behind which there should be no index frame."""

    def __init__(self, handle: Handle, file: File, path: str, header: Header, size: int) -> None:
        self._file = file
        self.view = LogView(handle, path, header, 0)
        self._size = size
        self._start: Frame | None = None
        self._frames: list[tuple[Frame, bytes]] = []

    def follow(self, start: Frame, data: bytes, *, stop: int) -> bool:
        """Whether the chain goes on without an index frame, and ends plainly before ``stop``: with the file, or with
        a cover that reaches its end. ``data``: the file's first bytes."""
        view = self.view
        walk = Walk(self._file, view.path, start.end, start, self._size, view.digest, view.cap, data=data)
        self._start, self._frames = start, []
        for frame, payload in walk:
            if frame.kind == KIND_INDEX or frame.end > stop:
                return False
            self._frames.append((frame, payload))
        view.end = walk.offset
        if walk.offset == self._size:
            return True
        return walk.fault is Fault.COVER and cover_reaches(self._file, view.path, walk.offset, self._size)

    def proves(self, start: Frame) -> bool:
        """Whether a mark proves what stands before ``start``. A clean close may write an index frame and the closing
        frame at once, whose mark is then the index frame's offset."""
        if start.kind != KIND_INDEX or max((frame.mark for frame, _ in self._frames), default=0) >= start.end:
            return True
        closing = self._frames[0][0] if len(self._frames) == 1 else start
        return closing.kind == KIND_CLOSE and closing.mark >= start.offset

    def result(self) -> Glance:
        view, start = self.view, self._start
        assert start is not None
        numbers: dict[int, Address] = {}
        frames: list[tuple[Span, list[Record]]] = []
        at = start.end
        for frame, payload in self._frames:
            if frame.offset > at:
                frames.append((Span(at, frame.offset - at, 0, 0), []))  # foreign skippable frames
            frames.append((span_of(frame), view.decode_frame(frame, payload, numbers)))
            at = frame.end
        view.tail = view.open_stretch(start if start.kind == KIND_INDEX else None, start.end, frames, numbers)
        last = self._frames[-1][0] if self._frames else start
        closed = last.kind == KIND_CLOSE and last.end == self._size
        return Glance(view, fetch(self._file, view.path, last.length, last.offset) if closed else b"")
