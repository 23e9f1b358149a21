"""A simulated disk served to real processes by FUSE: what was not synced is lost, directory entries included.

All that :mod:`fuzz.simdisk` can do to a process that calls it can so be done to one that makes system calls: cuts at
every step, failed syncs that drop the bytes, errors of reads and writes, a full disk. Between two requests nothing is
kept in the kernel but clean pages, so a step of the disk is a system call of the process, a write above 128 KiB one for
each 128 KiB. Once the disk is down every call fails with EIO.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EIO, ENOENT, ENOTDIR
from typing import Final, TypeVar

from fuzz.disks.fuse import ROOT, Attr, Server, served
from fuzz.simdisk import SimCrash, SimDisk, SimFile

T = TypeVar("T")


class StrictVolume:
    """``disk`` may be swapped only while nothing is mounted."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk: Final = disk
        self._paths: dict[int, str] = {ROOT: "/"}
        self._files: dict[int, SimFile] = {}

    def look_up(self, parent: int, name: str) -> Attr:
        return self._up(lambda: self._found(self._path(parent, name)))

    def attributes(self, node: int) -> Attr:
        file = self._files.get(node)
        if file is not None:
            return self._up(lambda: Attr(node, False, file.size()))
        return self._up(lambda: self._found(self._path(node)))

    def names(self, node: int) -> list[tuple[str, Attr]]:
        path = self._path(node)
        return self._up(
            lambda: [(name, Attr(1 << 40, self.disk.is_dir(posixpath.join(path, name)))) for name in self._list(path)]
        )

    def make_dir(self, parent: int, name: str) -> Attr:
        path = self._path(parent, name)
        self._up(lambda: self.disk.make_dir(path))
        return self._up(lambda: self._found(path))

    def create(self, parent: int, name: str) -> Attr:
        path = self._path(parent, name)

        def make() -> Attr:
            file = self.disk.create(path)
            node = file.identity()[1]
            self._paths[node], self._files[node] = path, file
            return Attr(node, False)

        return self._up(make)

    def unlink(self, parent: int, name: str) -> None:
        self._up(lambda: self.disk.unlink(self._path(parent, name)))

    def remove_dir(self, parent: int, name: str) -> None:
        self._up(lambda: self.disk.remove_dir(self._path(parent, name)))

    def rename(self, parent: int, name: str, new_parent: int, new_name: str) -> None:
        old, new = self._path(parent, name), self._path(new_parent, new_name)
        self._up(lambda: self.disk.rename(old, new))
        for node, path in self._paths.items():
            if path == old or path.startswith(old + "/"):
                self._paths[node] = new + path[len(old) :]

    def read(self, node: int, length: int, offset: int) -> bytes:
        return self._up(lambda: self._file(node).pread(length, offset))

    def write(self, node: int, data: bytes, offset: int) -> int:
        return self._up(lambda: self._file(node).pwrite(data, offset))

    def resize(self, node: int, length: int) -> None:
        self._up(lambda: self._file(node).truncate(length))

    def allocate(self, node: int, offset: int, length: int) -> None:
        self._up(lambda: self._file(node).allocate(offset, length))

    def sync(self, node: int) -> None:
        self._up(lambda: self._file(node).sync())

    def sync_dir(self, node: int) -> None:
        self._up(lambda: self.disk.sync_dir(self._path(node)))

    def forget(self, node: int) -> None:
        if node != ROOT:
            self._paths.pop(node, None)
            file = self._files.pop(node, None)
            if file is not None:
                file.close()

    # --- names and nodes --------------------------------------------------------------------------

    def _up(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except SimCrash:
            raise OSError(EIO, "the disk is down") from None

    def _list(self, path: str) -> list[str]:
        return self.disk.list_dir(path)

    def _path(self, node: int, name: str | None = None) -> str:
        path = self._paths[node]
        return path if name is None else posixpath.join(path, name)

    def _file(self, node: int) -> SimFile:
        file = self._files.get(node)
        if file is None:
            raise OSError(ENOTDIR, "not a file")
        return file

    def _found(self, path: str) -> Attr:
        identity = self.disk.identity(path)
        if identity is None:
            raise OSError(ENOENT, path)
        node = identity[1]
        self._paths[node] = path
        if self.disk.is_dir(path):
            return Attr(node, True)
        if node not in self._files:
            self._files[node] = self.disk.open(path)
        return Attr(node, False, self._files[node].size())


def unsynced(disk: SimDisk) -> tuple[int, int]:
    """How many files have changes that were not synced, and how many changes of names there are; see ``crash``."""
    return len(disk._tree.changed_files()), len(disk._tree.pending)


@contextmanager
def strict(disk: SimDisk, target: str, *, direct: bool = False, flock: int | None = None) -> Iterator[Server]:
    """``disk`` mounted at ``target`` for the length of the block; its bytes stay as they are then."""
    with served(StrictVolume(disk), target, direct=direct, flock=flock) as server:
        yield server
