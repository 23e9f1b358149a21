"""The file-system seam: the one small interface through which all disk work goes.

Production uses :class:`OsFileSystem`; tests use a simulated disk with the same interface. Paths are ``str``.
Every method raises ``OSError`` as the operating system does; nothing here retries, hides or translates an error,
except that EINTR is retried by Python itself (PEP 475).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from .pool import NO_DESCRIPTORS, SYSTEM, Pool

if sys.platform != "win32":
    import fcntl

Identity = tuple[int, int]  # device and inode
T = TypeVar("T")
CACHE_BLOCK: Final = 2 * 1024 * 1024  # no piece of the page cache is larger, and each is aligned to its size
_NOTHING_THERE: Final = (FileNotFoundError, NotADirectoryError)


class Readable(Protocol):
    """What reading asks of a file. Offsets and lengths are in bytes."""

    def pread(self, length: int, offset: int) -> bytes:
        """At most ``length`` bytes at ``offset``; fewer only at the end of the file or on a short read."""

    def size(self) -> int:
        """Length by lseek: cheap, and asks for no time stamp."""


class File(Readable, Protocol):
    """An open file."""

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        """Write at ``offset``; returns how many bytes were written, which may be fewer than asked."""

    def truncate(self, length: int) -> None: ...

    def allocate(self, offset: int, length: int) -> None:
        """Reserve space and extend the file with zeros up to ``offset + length``."""

    def forget(self, offset: int, length: int) -> None:
        """Let go of what memory holds of these bytes and has not to write any more: they are read from the disk next
        time, and what is written over them goes the whole way. Bytes that the disk has lost are lost then."""

    def sync(self) -> None:
        """Make data and length durable (fdatasync; F_FULLFSYNC on macOS). An error is final: never call again."""

    def try_lock(self) -> bool:
        """Take an exclusive flock without waiting; False if another open file holds it."""

    def identity(self) -> Identity: ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """What the engine asks of a disk."""

    preallocates: bool
    """Whether :meth:`File.allocate` is worth calling."""
    memory_maps: bool
    """Whether paths are the operating system's own, so that LMDB can keep an index beside the logs."""

    pool: Pool
    """Which log files are open, and how many may be."""

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing. FileNotFoundError if missing."""

    def open_readonly(self, path: str) -> File: ...

    def create(self, path: str) -> File:
        """Create a new file (mode 0600) and open it. FileExistsError if the name is taken."""

    def open_or_create(self, path: str) -> File:
        """Open for reading and writing; create with mode 0600 if missing (the lock file alone needs this)."""

    def make_dir(self, path: str) -> None:
        """Create one directory (mode 0700). FileExistsError if the name is taken."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing a target file atomically."""

    def unlink(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None: ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def is_dir(self, path: str) -> bool:
        """False only if there is none; whoever cannot be told gets the error, as everywhere."""

    def exists(self, path: str) -> bool:
        """Whether the path names something, links included; asks for no time stamp."""

    def identity(self, path: str) -> Identity | None:
        """Device and inode the path names now, or None. Never called on a live log, whose writer
        must not pay for it and knows its length (HandleFenced in scopes/README.md)."""

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable."""


class OsFile:
    __slots__ = ("__weakref__", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def pread(self, length: int, offset: int) -> bytes:
        return os.pread(self.fd, length, offset)

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(self.fd, data, offset)

    def size(self) -> int:
        return os.lseek(self.fd, 0, os.SEEK_END)

    def truncate(self, length: int) -> None:
        os.ftruncate(self.fd, length)

    def allocate(self, offset: int, length: int) -> None:
        os.posix_fallocate(self.fd, offset, length)

    if sys.platform == "darwin":

        def sync(self) -> None:
            fcntl.fcntl(self.fd, fcntl.F_FULLFSYNC)

    else:

        def sync(self) -> None:
            os.fdatasync(self.fd)

    def forget(self, offset: int, length: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.fd, offset, length, os.POSIX_FADV_DONTNEED)

    def try_lock(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        return True

    def identity(self) -> Identity:
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:  # of a handle that was dropped: let go of its lock; nothing is persisted
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)


class OsFileSystem:
    """The operating system's disk. Files are 0600, directories 0700, descriptors are not inherited by exec.

    Where the process has no descriptor left, log files that nobody uses are closed, and the call is tried once more.
    """

    preallocates = hasattr(os, "posix_fallocate") and sys.platform != "darwin"
    memory_maps = True
    pool = SYSTEM

    def _spare(self, call: Callable[[], T]) -> T:
        """What ``call``, which needs a descriptor, returns."""
        try:
            return call()
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or not self.pool.shrink():
                raise
        return call()

    def _open(self, path: str, flags: int) -> OsFile:
        return self._spare(lambda: OsFile(os.open(path, flags | os.O_CLOEXEC, 0o600)))

    def open(self, path: str) -> File:
        return self._open(path, os.O_RDWR | os.O_NOFOLLOW)

    def open_readonly(self, path: str) -> File:
        return self._open(path, os.O_RDONLY | os.O_NOFOLLOW)

    def create(self, path: str) -> File:
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def open_or_create(self, path: str) -> File:
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)

    def make_dir(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._spare(lambda: os.listdir(path)))

    def is_dir(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except _NOTHING_THERE:
            return False

    def exists(self, path: str) -> bool:
        try:
            os.readlink(path)  # no stat: it would slow the next sync of a live log; and access() hides why it failed
        except _NOTHING_THERE:
            return False
        except OSError as error:
            if error.errno != errno.EINVAL:  # that is: it is there, and no link
                raise
        return True

    def identity(self, path: str) -> Identity | None:
        try:
            status = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def sync_dir(self, path: str) -> None:
        directory = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory.fd)
        finally:
            directory.close()


@contextmanager
def closing(file: File) -> Iterator[File]:
    """Close ``file`` on the way out."""
    try:
        yield file
    finally:
        file.close()


def write_all(file: File, data: bytes, offset: int) -> None:
    """Write every byte of ``data`` at ``offset``, going on after short writes; a write of nothing is ENOSPC."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        count = file.pwrite(view[done:], offset + done)
        if count <= 0:
            raise OSError(errno.ENOSPC, "the file system wrote nothing")
        done += count


def rewrite(file: File, start: int, end: int) -> int:
    """Write bytes of a file again, the same at the same place: a failed sync may have lost them on disk alone. Returns
    how many. OSError, too, if the file is shorter than it was.

    The page cache must not keep them meanwhile: where a write-back failed ext4 takes the page for written, and what is
    written to it again goes to blocks that still count as never written, and read as zeros after a power cut.
    """
    done = 0
    while start < end:
        block = start - start % CACHE_BLOCK
        data = read_all(file, min(block + CACHE_BLOCK, end) - start, start)
        if start + len(data) < min(block + CACHE_BLOCK, end):
            raise OSError(errno.EIO, "the file is shorter than it was")
        file.forget(block, CACHE_BLOCK)
        write_all(file, data, start)
        start += len(data)
        done += len(data)
    return done


def read_all(file: Readable, length: int, offset: int) -> bytes:
    """Exactly ``length`` bytes at ``offset``, or fewer if the file ends before; short reads are continued."""
    data = file.pread(length, offset)
    if len(data) == length or not data:
        return data
    pieces = [data]
    have = len(data)
    while have < length:
        data = file.pread(length - have, offset + have)
        if not data:
            break
        pieces.append(data)
        have += len(data)
    return b"".join(pieces)
