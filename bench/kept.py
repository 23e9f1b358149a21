"""A directory that can be put back as it was: for what is changed by being measured."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

State = tuple[int, int]  # size, time of the last change


class Kept:
    """Files are put back in place, so that their inodes stay: a copy of a store is not the store, and may notice."""

    def __init__(self, path: Path, copy: Path) -> None:
        """Keep ``path`` as it stands now, by a copy of it in the new directory ``copy``."""
        self.path = path
        self._copy = copy
        shutil.copytree(path, copy)
        self._states = {name: _state(path / name) for name in _files(path)}

    @contextmanager
    def used(self) -> Iterator[Path]:
        """The directory, put back afterwards."""
        try:
            yield self.path
        finally:
            self._put_back()

    def _put_back(self) -> None:
        now = _files(self.path)
        for name in now - self._states.keys():
            (self.path / name).unlink()
        for name, state in self._states.items():
            file = self.path / name
            if name in now and _state(file) == state:
                continue
            with (self._copy / name).open("rb") as source, file.open("r+b" if name in now else "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.truncate()
            self._states[name] = _state(file)


def _files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def _state(file: Path) -> State:
    status = file.stat()
    return status.st_size, status.st_mtime_ns
