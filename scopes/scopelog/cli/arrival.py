"""Lines from a file or pipe as they arrive, and the signals that stop a recording."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NamedTuple, Self

from scopelog_engine.layout import MAX_ELEMENT_BYTES

from ..errors import LimitExceeded

_PIECE: Final = 64 * 1024
MAX_LINE_BYTES: Final = 6 * MAX_ELEMENT_BYTES  # an element at its limit with every character escaped

_Handler = Callable[[int, FrameType | None], Any] | int | None


class Line(NamedTuple):
    """A line without its end; ``number`` counts from 1, blank lines included."""

    number: int
    text: bytes


class Arrival:
    """Reads a descriptor without waiting for a buffer to fill. ``wake``: a descriptor that ends a wait early."""

    def __init__(self, descriptor: int, wake: int | None = None) -> None:
        self._descriptor = descriptor
        self._wake = wake
        self._partial = bytearray()
        self._number = 0
        self._ended = False

    def read(self, patience: float | None) -> list[Line] | None:
        """Lines that have arrived, none if ``patience`` seconds passed or the wait was ended; None at the end.

        A last line without its newline counts. Raises :class:`LimitExceeded` for a line over 384 MiB.
        """
        if self._ended:
            return None
        waiting = [self._descriptor] if self._wake is None else [self._descriptor, self._wake]
        ready, _, _ = select.select(waiting, [], [], patience)
        if self._descriptor not in ready or self._wake in ready:
            return []
        piece = os.read(self._descriptor, _PIECE)
        if not piece:
            self._ended = True
            return self._cut([bytes(self._partial)]) if self._partial else None
        first, *rest = piece.split(b"\n")
        if not rest:
            self._extend(first)
            return []
        whole = [bytes(self._partial) + first, *rest[:-1]]
        self._partial.clear()
        self._extend(rest[-1])
        return self._cut(whole)

    def _extend(self, piece: bytes) -> None:
        self._partial += piece
        if len(self._partial) > MAX_LINE_BYTES:
            raise LimitExceeded(
                f"line {self._number + 1} is longer than {MAX_LINE_BYTES} bytes", "end each element with a newline"
            )

    def _cut(self, texts: list[bytes]) -> list[Line]:
        lines = [Line(self._number + n, text) for n, text in enumerate(texts, 1)]
        self._number += len(lines)
        return lines


class Stop:
    """Notes the first SIGINT or SIGTERM and ends the wait for input; a second one acts as it always does.

    Outside the main thread, where Python has no signals, nothing is noted.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, _Handler] = {}
        self.wake, self._ring = os.pipe()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        os.close(self.wake)
        os.close(self._ring)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self._restore()
        os.write(self._ring, b"!")

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)
