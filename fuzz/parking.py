"""A simulated disk whose every operation is a step of the scheduler: the actor parks, and then the disk does it.

A step names what it looks at and what it changes (inodes, paths, directories), so that steps of actors that share no
memory are known to commute. Closing is a step only for a file that was locked. Whoever is no actor does not park.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from fuzz.scheduler import Scheduler, Step
from fuzz.simdisk import SimDisk, SimFile
from scopelog_engine.fs import File, Identity

T = TypeVar("T")
Changed = Callable[[Step], None]
_NONE: Final = frozenset[object]()


class ParkingFile:
    __slots__ = ("__weakref__", "_disk", "_locked", "_name", "_nodes", "_synced", "file")

    def __init__(self, disk: ParkingDisk, file: SimFile, path: str) -> None:
        self.file = file
        self._disk = disk
        self._name = path.rpartition("/")[2]
        self._nodes = frozenset[object]((file._node.number,))
        self._synced = frozenset[object]((f"{file._node.number} on disk",))
        self._locked = False

    def pread(self, length: int, offset: int) -> bytes:
        return self._look("pread", lambda: self.file.pread(length, offset))

    def size(self) -> int:
        return self._look("size", self.file.size)

    def identity(self) -> Identity:
        return self.file.identity()  # it never changes

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        return self._change("pwrite", lambda: self.file.pwrite(data, offset))

    def truncate(self, length: int) -> None:
        self._change("truncate", lambda: self.file.truncate(length))

    def allocate(self, offset: int, length: int) -> None:
        self._change("allocate", lambda: self.file.allocate(offset, length))

    def forget(self, offset: int, length: int) -> None:
        self.file.forget(offset, length)  # nothing changes

    def sync(self) -> None:
        """What is read does not change by it."""
        self._disk.step(Step("sync", self._name, self._nodes, self._synced), self.file.sync)

    def try_lock(self) -> bool:
        self._locked = True
        return self._change("try_lock", self.file.try_lock)

    def close(self) -> None:
        if self._locked:
            self._locked = False
            self._change("close", self.file.close)
        else:
            self.file.close()

    def _look(self, op: str, call: Callable[[], T]) -> T:
        return self._disk.step(Step(op, self._name, self._nodes), call)

    def _change(self, op: str, call: Callable[[], T]) -> T:
        return self._disk.step(Step(op, self._name, _NONE, self._nodes), call)


class ParkingDisk:
    """The engine's file system over ``disk``. ``changed`` is called after each step that changes something."""

    memory_maps = False

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.preallocates = disk.preallocates
        self.pool = disk.pool
        self.changed: Changed = lambda step: None

    def step(self, step: Step, call: Callable[[], T]) -> T:
        scheduler = Scheduler.current
        if scheduler is None or scheduler.me() is None:
            return call()
        scheduler.park(step)
        try:
            done = call()
            if step.writes:
                self.changed(step)
            return done
        finally:
            scheduler.did()

    def open(self, path: str) -> File:
        return self._open("open", path, self.disk.open)

    def open_readonly(self, path: str) -> File:
        return self._open("open", path, self.disk.open_readonly)

    def create(self, path: str) -> File:
        return self._open("create", path, self.disk.create)

    def open_or_create(self, path: str) -> File:
        return self._open("create", path, self.disk.open_or_create)

    def make_dir(self, path: str) -> None:
        self._change("mkdir", lambda: self.disk.make_dir(path), path)

    def rename(self, source: str, target: str) -> None:
        self._change("rename", lambda: self.disk.rename(source, target), source, target)

    def unlink(self, path: str) -> None:
        self._change("unlink", lambda: self.disk.unlink(path), path)

    def remove_dir(self, path: str) -> None:
        self._change("rmdir", lambda: self.disk.remove_dir(path), path)

    def sync_dir(self, path: str) -> None:
        names, synced = frozenset((path,)), frozenset((f"{path} on disk",))
        self.step(Step("sync_dir", _last(path), names, synced), lambda: self.disk.sync_dir(path))

    def list_dir(self, path: str) -> list[str]:
        return self._look("list_dir", path, lambda: self.disk.list_dir(path))

    def is_dir(self, path: str) -> bool:
        return self._look("is_dir", path, lambda: self.disk.is_dir(path))

    def exists(self, path: str) -> bool:
        return self._look("exists", path, lambda: self.disk.exists(path))

    def identity(self, path: str) -> Identity | None:
        return self._look("identity", path, lambda: self.disk.identity(path))

    def _open(self, op: str, path: str, call: Callable[[str], SimFile]) -> File:
        names = frozenset(_with_parents(path))
        reads, writes = (_NONE, names | {_above(path)}) if op == "create" else (names, _NONE)
        return self.step(Step(op, _last(path), reads, writes), lambda: ParkingFile(self, call(path), path))

    def _look(self, op: str, path: str, call: Callable[[], T]) -> T:
        return self.step(Step(op, _last(path), frozenset(_with_parents(path))), call)

    def _change(self, op: str, call: Callable[[], None], *paths: str) -> None:
        names = frozenset(name for path in paths for name in (path, f"{path}/", _above(path)))
        self.step(Step(op, " to ".join(map(_last, paths)), _NONE, names), call)


def _above(path: str) -> str:
    """The directory of a path, as one that is listed: what is in it changes."""
    return path.rpartition("/")[0]


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _with_parents(path: str) -> list[str]:
    """A path, and what its meaning hangs on: the directories above it that may be renamed."""
    return [path, f"{_above(path)}/"]
