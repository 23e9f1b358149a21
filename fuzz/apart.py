"""Work that may kill its process, done in a forked one that many inputs share."""

from __future__ import annotations

import atexit
import os
import signal
import struct
import traceback
from collections.abc import Callable
from typing import Final

_EACH: Final = 200  # inputs a child
_SECONDS: Final = 60  # that one input may take
_length: Final = struct.Struct("<I")


class Apart:
    """Does ``work`` on bytes in a child. What it raises there, and how it dies, is an AssertionError here."""

    def __init__(self, work: Callable[[bytes], None]) -> None:
        self._work = work
        self._child = 0
        self._owner = 0
        self._done = 0
        self._to = self._from = -1
        atexit.register(self.close)

    def do(self, data: bytes) -> None:
        if self._child and (self._done >= _EACH or self._owner != os.getpid()):
            self.close()
        if not self._child:
            self._start()
        self._done += 1
        try:
            _write(self._to, data)
            told = _read(self._from)
        except BrokenPipeError:
            told = None
        if told is None:
            status = self.close()
            raise AssertionError(f"the process died of it: status {status}, signal {status & 127}")
        assert not told, told.decode()

    def close(self) -> int:
        """Let the child end; returns how it did."""
        if not self._child or self._owner != os.getpid():
            self._child = 0
            return 0
        os.close(self._to)
        os.close(self._from)
        status = os.waitpid(self._child, 0)[1]
        self._child = self._done = 0
        return status

    def _start(self) -> None:
        theirs, self._to = os.pipe()
        self._from, tell = os.pipe()
        self._owner = os.getpid()
        self._child = os.fork()
        if self._child:
            os.close(theirs)
            os.close(tell)
            return
        os.close(self._to)
        os.close(self._from)
        try:
            self._serve(theirs, tell)
        finally:
            os._exit(0)

    def _serve(self, theirs: int, tell: int) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        while (data := _read(theirs)) is not None:
            signal.alarm(_SECONDS)
            told = b""
            try:
                self._work(data)
            except Exception:  # noqa: BLE001 - told to whoever asked
                told = traceback.format_exc().encode("utf-8", "backslashreplace")
            signal.alarm(0)
            _write(tell, told)


def _write(pipe: int, data: bytes) -> None:
    view = memoryview(_length.pack(len(data)) + data)
    while view:
        view = view[os.write(pipe, view) :]


def _read(pipe: int) -> bytes | None:
    head = _exactly(pipe, _length.size)
    return None if head is None else _exactly(pipe, _length.unpack(head)[0])


def _exactly(pipe: int, length: int) -> bytes | None:
    pieces = b""
    while len(pieces) < length:
        piece = os.read(pipe, length - len(pieces))
        if not piece:
            return None
        pieces += piece
    return pieces
