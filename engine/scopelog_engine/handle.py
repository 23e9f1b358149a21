"""Handles: a log's file, open when it is used. The pool may close it in between; the next user opens it again.

Who uses a file pins it. A pin is nothing but a reference: the file stays open for as long as anybody refers to its
:class:`Pin`, and the pool closes none whose pin outlives the handle's own reference. So there is no count that an
interruption could leave too high, which would hold the file open for ever, or too low.
"""

from __future__ import annotations

import logging
import threading
from weakref import ref

from .errors import HandleClosed, HandleFenced
from .fs import File, FileSystem, Identity
from .pool import Key

_log = logging.getLogger(__name__)


class Pin:
    """An open file that stays open as long as this object is referred to: ``with handle.pin() as file``.

    ``opening`` numbers the openings of the handle's file. Keep the pin in no local variable: a traceback would keep
    it, and the file with it.
    """

    __slots__ = ("__weakref__", "file", "opening")

    def __init__(self, file: File, opening: int) -> None:
        self.file = file
        self.opening = opening

    def __enter__(self) -> File:
        return self.file

    def __exit__(self, *_: object) -> None:
        """Nothing to do: the ``with`` statement drops its reference."""


class Handle:
    """A log's file, shared by its writer and those who read through it. Thread-safe.

    ``unsynced``: whether the writer has written bytes that no sync covers. Eviction closes such a file only if no
    other will do, and its writer must then take them for unproved: an error of the kernel's writing them back might
    be told to nobody.
    """

    __slots__ = (
        "__weakref__",
        "_fs",
        "_gone",
        "_identity",
        "_key",
        "_lock",
        "_openings",
        "_pin",
        "path",
        "unsynced",
    )

    def __init__(self, fs: FileSystem, path: str, file: File, *, pooled: bool) -> None:
        self.path = path
        self.unsynced = False
        self._fs = fs
        self._lock = threading.Lock()  # to open, evict or close; a pin of an open file needs none
        self._openings = 1
        self._pin: Pin | None = Pin(file, 1)
        self._identity: Identity | None = None  # asked at the first eviction: a live log is not asked for its times
        self._gone = False
        # The pool comes to know a file by its first pin: a new log must not be closed before it has its name.
        self._key: Key | None = ref(self) if pooled else None
        if not pooled:
            fs.pool.held.add(self)

    @classmethod
    def open(cls, fs: FileSystem, path: str) -> Handle:
        """An existing log, for its writer."""
        fs.pool.make_room()
        return cls(fs, path, fs.open(path), pooled=True)

    @classmethod
    def create(cls, fs: FileSystem, path: str, temp: str) -> Handle:
        """A new log, for its writer. It is created as ``temp``; who keeps it pinned may give it its name then.

        FileExistsError if that name is taken.
        """
        fs.pool.make_room()
        return cls(fs, path, fs.create(temp), pooled=True)

    @classmethod
    def open_readonly(cls, fs: FileSystem, path: str) -> Handle:
        """For a reader without the lock. It stays open until it is closed: the writer may unlink the file any time."""
        fs.pool.make_room()
        return cls(fs, path, fs.open_readonly(path), pooled=False)

    @property
    def opening(self) -> int:
        """The number that a pin taken now would have."""
        return self._openings if self._pin is not None else self._openings + 1

    def pin(self) -> Pin:
        """The file, opened again if need be.

        Raises :class:`HandleClosed`, :class:`HandleFenced` if the path names another file now, and OSError.
        """
        pin = self._pin
        if pin is None:
            return self._open_again()
        if self._key is not None:
            self._fs.pool.used(self._key)
        return pin

    def _open_again(self) -> Pin:
        self._fs.pool.make_room()  # without our lock: it takes those of others
        with self._lock:
            if self._gone:
                raise HandleClosed("the log was closed", "open the session again")
            if self._pin is None:
                file = self._same_file()
                self._openings += 1
                self._pin = Pin(file, self._openings)
                if self._key is not None:
                    self._fs.pool.used(self._key)
            return self._pin

    def _same_file(self) -> File:
        try:
            file = self._fs.open(self.path)
        except FileNotFoundError as error:
            raise self._fenced("removed") from error
        try:
            if file.identity() != self._identity:
                raise self._fenced("replaced")
        except BaseException:
            file.close()
            raise
        return file

    def _fenced(self, what: str) -> HandleFenced:
        return HandleFenced(
            f"{self.path} was {what} by somebody else",
            "find out who, then open the session again; nothing was written to it",
        )

    def evict(self) -> bool:
        """Close the file unless somebody uses it: False then. For the pool; the next pin opens it again."""
        if self._lock.locked():
            return False  # it is being opened; and who waited here might be waited for there
        with self._lock:
            if self._pin is not None:
                file, users = self._pin.file, ref(self._pin)
                if self._identity is None:
                    try:
                        self._identity = file.identity()
                    except OSError as error:
                        _log.warning("%s stays open, for it could not be known again: %s", self.path, error)
                        return False
                self._pin = None  # first: from here on nobody gets it without our lock
                self._pin = users()
                if self._pin is not None:
                    return False
                _close(file)
            if self._key is not None:
                self._fs.pool.closed(self._key)
            return True

    def close(self) -> None:
        """Let go of the file; while somebody uses it, it stays open for them. Closing twice is legal."""
        with self._lock:
            self._gone = True
            pin, self._pin = self._pin, None
            if pin is not None:
                file, users = pin.file, ref(pin)
                del pin
                if users() is None:  # else the file goes with the last reference to it
                    _close(file)
            if self._key is not None:
                self._fs.pool.closed(self._key)
            else:
                self._fs.pool.held.discard(self)

    def after_fork(self) -> None:
        """In the child: close the copy, used or not. The lock may be held by a thread that does not exist here."""
        self._lock = threading.Lock()
        self._gone = True
        pin, self._pin = self._pin, None
        if pin is not None:
            _close(pin.file)


def _close(file: File) -> None:
    try:
        file.close()
    except OSError as error:  # the descriptor is gone all the same, and no sync was answered by this
        _log.warning("closing a log failed: %s", error)
