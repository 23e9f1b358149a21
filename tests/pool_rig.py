"""Sessions whose logs are closed for each other: shared by the tests of the pool."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Final

from fuzz.simdisk import SimDisk
from scopelog import List, ManualClock, Session, Store, ephemeral, list_of
from scopelog_engine.fs import OsFileSystem
from scopelog_engine.logfile import LogFile
from scopelog_engine.pool import Pool

MAIN: Final = list_of("chat", "messages")
OUT: Final = ephemeral("op-1").list_of("op", "out")
OTHER: Final = ephemeral("op-2").list_of("op", "out")


def small(limit: int, disk: SimDisk | None = None) -> SimDisk:
    """A simulated disk on which so many logs may be open."""
    disk = disk or SimDisk()
    disk.pool.fixed = limit
    return disk


def opened(disk: SimDisk, **options: Any) -> tuple[Store, Session]:
    store = Store.open("/store", fs=disk, clock=ManualClock(), **options)
    return store, store.session("s")


def real(limit: int | None) -> OsFileSystem:
    fs = OsFileSystem()
    fs.pool = Pool(limit)
    return fs


def log_of(session: Session, scope: str = "") -> LogFile:
    log = session._writer._scopes[scope].log
    assert log is not None
    return log


def close_file(session: Session, scope: str = "") -> None:
    """As the pool would, to make room."""
    assert log_of(session, scope).view.handle.evict()


def elements(session: Session, where: List[Any] = MAIN) -> list[Any]:
    return [element.element for element in session.read(where)]


def descriptors() -> int:
    """How many files this process has open. Opens none to find out."""
    count = 0
    for number in range(4096):
        with suppress(OSError):
            os.fstat(number)
            count += 1
    return count
