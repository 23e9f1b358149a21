"""Stores of an unprivileged user, and work without root's powers: permissions mean nothing to root."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NOBODY = 65534


@contextmanager
def owned_by_nobody(base: Path, build: Callable[[Path], Path]) -> Iterator[Path]:
    """The store that ``build`` makes under ``base``, of an unprivileged user where the tests run as root."""
    opened = [folder for folder in (base, *base.parents[:2]) if os.geteuid() == 0]
    modes = [folder.stat().st_mode for folder in opened]
    for folder in opened:
        folder.chmod(0o755)
    path = build(base)
    if os.geteuid() == 0:
        for entry in (path, *path.rglob("*")):
            os.chown(entry, NOBODY, NOBODY)
    yield path
    for entry in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):
            entry.chmod(0o700 if entry.is_dir() else 0o600)
    for folder, mode in zip(opened, modes, strict=True):
        folder.chmod(stat.S_IMODE(mode))


def drop_powers() -> None:
    """In a child: be nobody from here on."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
