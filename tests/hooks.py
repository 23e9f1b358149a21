"""A file system that calls back before each operation of the real one: for stopping a writer at a known place."""

from __future__ import annotations

from collections.abc import Callable

from scopelog_engine.fs import File, Identity, OsFileSystem

Hook = Callable[[str, str], None]  # operation, path


class HookedFile:
    def __init__(self, file: File, path: str, hook: Hook) -> None:
        self._file = file
        self._path = path
        self._hook = hook

    def pread(self, length: int, offset: int) -> bytes:
        return self._file.pread(length, offset)

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        self._hook("pwrite", self._path)
        return self._file.pwrite(data, offset)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, length: int) -> None:
        self._hook("truncate", self._path)
        self._file.truncate(length)

    def allocate(self, offset: int, length: int) -> None:
        self._file.allocate(offset, length)

    def forget(self, offset: int, length: int) -> None:
        self._file.forget(offset, length)

    def sync(self) -> None:
        self._hook("sync", self._path)
        self._file.sync()

    def try_lock(self) -> bool:
        return self._file.try_lock()

    def identity(self) -> Identity:
        return self._file.identity()

    def close(self) -> None:
        self._file.close()


class HookedFileSystem(OsFileSystem):
    """``hook(operation, path)`` runs before each pwrite, truncate, sync, sync_dir and unlink; it may raise or block."""

    def __init__(self) -> None:
        self.hook: Hook = lambda operation, path: None
        self.calls: list[tuple[str, str]] = []

    def _called(self, operation: str, path: str) -> None:
        self.calls.append((operation, path.rsplit("/", 1)[-1]))
        self.hook(operation, path)

    def count(self, operation: str, ending: str = "") -> int:
        return sum(1 for name, path in self.calls if name == operation and path.endswith(ending))

    def open(self, path: str) -> File:
        return HookedFile(super().open(path), path, self._called)

    def create(self, path: str) -> File:
        return HookedFile(super().create(path), path, self._called)

    def open_or_create(self, path: str) -> File:
        return HookedFile(super().open_or_create(path), path, self._called)

    def sync_dir(self, path: str) -> None:
        self._called("sync_dir", path)
        super().sync_dir(path)

    def unlink(self, path: str) -> None:
        self._called("unlink", path)
        super().unlink(path)
