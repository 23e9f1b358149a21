"""Waking: learning that something in a directory may have changed, without asking again and again.

On Linux the kernel tells (inotify); elsewhere, and where it cannot, one asks at growing intervals. A wake says that
it is worth looking, never what there is to see. Reads wake nobody, and no file is asked for its times.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import sys
import threading
from typing import Final

_log = logging.getLogger(__name__)
QUICKEST: Final = 0.02
SLOWEST: Final = 0.5
HEARTBEAT: Final = 5.0
"""Seconds after which one looks unasked even where the kernel tells: a disk that others write to may keep silent."""

_MODIFY, _MOVED, _CREATE, _DELETE = 0x2, 0x40 | 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _ONLY_DIRECTORY = 0x400, 0x800, 0x01000000
_WANTED: Final = _MODIFY | _MOVED | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLY_DIRECTORY
_PIECE: Final = 64 * 1024


class Watch:
    """Watches one directory from the moment it is made. Thread-safe; waits are ended by :meth:`close`.

    ``tells``: False for a directory that is not the operating system's.
    """

    def __init__(self, directory: str, *, tells: bool = True) -> None:
        self.closed = False
        self._fd = _inotify(directory) if tells else None
        self._lock = threading.Lock()
        self._pause = QUICKEST
        self._pid = os.getpid()
        try:
            self._ear, self._mouth = os.pipe()
        except OSError:
            if self._fd is not None:
                os.close(self._fd)
            raise

    @property
    def descriptors(self) -> list[int]:
        """Those that are readable once it is worth looking, or the watch is closed, for an event loop."""
        return [self._ear] if self._fd is None else [self._ear, self._fd]

    @property
    def pause(self) -> float:
        """Seconds after which it is worth looking unasked."""
        return HEARTBEAT if self._fd is not None else self._pause

    def seen(self, anything: bool) -> None:
        """Whether the last look found anything: then the next one may soon do so, too."""
        self._pause = QUICKEST if anything else min(2 * self._pause, SLOWEST)

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is worth looking; False if ``timeout`` seconds passed before that, or it is closed."""
        if self.closed:
            return False
        waiter = select.poll()
        for descriptor in self.descriptors:
            waiter.register(descriptor, select.POLLIN)
        pause = self.pause
        ready = waiter.poll(1000 * (pause if timeout is None else max(0.0, min(timeout, pause))))
        if self.closed:
            return False
        if ready:
            self.drain()
            return True
        return timeout is None or timeout > pause

    def drain(self) -> None:
        """Forget what was told: to be called before one looks."""
        with self._lock:
            if self._fd is None or self.closed:
                return
            with contextlib.suppress(BlockingIOError):
                while len(os.read(self._fd, _PIECE)) > _PIECE // 2:
                    pass

    def close(self) -> None:
        """End every wait. The descriptors go with the object. Closing twice is legal."""
        with self._lock:
            if not self.closed:
                self.closed = True
                if os.getpid() == self._pid:
                    os.write(self._mouth, b"x")

    def __del__(self) -> None:
        for name in ("_fd", "_ear", "_mouth"):
            descriptor = getattr(self, name, None)
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(descriptor)


def _inotify(directory: str) -> int | None:
    """A descriptor that tells of changes in a directory, None where there is none to be had."""
    if sys.platform != "linux":
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        begin, add = libc.inotify_init1, libc.inotify_add_watch
    except (OSError, AttributeError):
        return None
    add.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
    fd: int = begin(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd >= 0 and add(fd, os.fsencode(directory), _WANTED) >= 0:
        return fd
    code = ctypes.get_errno()
    if fd >= 0:
        os.close(fd)
    _log.info("%s is looked at every so often, for the kernel does not watch it: %s", directory, os.strerror(code))
    return None
