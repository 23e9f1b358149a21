"""Copies of a session, and what is thrown away for good: the evidence that recoveries have kept."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Protocol

import msgspec

from .clock import Clock, wall_time
from .compact import Rewrite
from .errors import InvalidInput, NoSuchSession, WriteFailed
from .fs import FileSystem
from .header import KIND_MAIN, new_header
from .info import totals_of
from .layout import ASIDE_SUFFIX, LOCK_FILE, MAIN_FILE, TEMP_SUFFIX, TORN_SUFFIX
from .lines import RETIRE
from .lock import WriterLock
from .reader import Reader
from .scope import SESSION

_log = logging.getLogger(__name__)


class Home(Protocol):
    """What of a store is needed here."""

    fs: FileSystem
    clock: Clock
    identity: str

    def directory(self, session: str) -> str:
        """Where a session's files are."""

    def read_session(self, session: str) -> Reader:
        """A reader without the lock."""

    def sync_names(self, directory: str) -> None:
        """Make a session's directory, and what leads to it, durable."""


def copy_session(store: Home, session: str, new: str, upto: int | None) -> int:
    """See :meth:`Store.copy`. Returns the last sequence of the copy."""
    with contextlib.closing(store.read_session(session)) as reader:
        last = reader.last_sequence(SESSION)
        end = last if upto is None else upto
        first = reader.header.high
        if not first <= end <= last:
            raise InvalidInput(
                f"{session!r} cannot be copied up to {end}: it was compacted at sequence {first} and ends at {last}"
                if first
                else f"{session!r} cannot be copied up to {end}: it ends at sequence {last}",
                f"name one from {first} to {last}" if first < last else f"only {last} can be named",
            )
        directory = store.directory(new)
        try:
            with contextlib.suppress(FileExistsError):
                store.fs.make_dir(directory)
            lock = WriterLock.acquire(store.fs, os.path.join(directory, LOCK_FILE))
            try:
                _write(store, reader, directory, new, end)
            finally:
                lock.release()
        except OSError as error:
            raise WriteFailed(
                f"{session!r} could not be copied to {new!r} ({error})", "make room or mend the disk and try again"
            ) from error
    return end


def _write(store: Home, reader: Reader, directory: str, new: str, end: int) -> None:
    fs = store.fs
    path = os.path.join(directory, MAIN_FILE)
    if fs.exists(path):
        raise InvalidInput(f"there is a session {new!r} already", "choose another id, or delete it first")
    view = reader.main
    old = view.header
    header = msgspec.structs.replace(
        new_header(KIND_MAIN, store.identity, session=new, time=wall_time(store.clock)),
        limits=old.limits,
        floor=end,  # retirements are left out
        updated=totals_of(view).time if end == reader.last_sequence(SESSION) else 0,
    )
    temp = path + TEMP_SUFFIX
    if fs.exists(temp):
        fs.unlink(temp)
    file = fs.create(temp)
    try:
        rewrite = Rewrite(file, header, epoch=1)
        rewrite.copy(view, lambda record: record.code != RETIRE, upto=end)
        rewrite.finish(end)
        fs.rename(temp, path)
        store.sync_names(directory)
    except BaseException:
        with contextlib.suppress(OSError):
            if fs.exists(temp):
                fs.unlink(temp)
        raise
    finally:
        file.close()


def tidy_session(store: Home, session: str) -> list[str]:
    """See :meth:`Store.tidy`."""
    fs, directory = store.fs, store.directory(session)
    removed: list[str] = []
    try:
        lock = _lock(fs, directory, session)
        try:
            for name in fs.list_dir(directory):
                if name.endswith((TORN_SUFFIX, ASIDE_SUFFIX, TEMP_SUFFIX)):
                    path = os.path.join(directory, name)
                    fs.unlink(path)
                    removed.append(path)
            if removed:
                fs.sync_dir(directory)
        finally:
            lock.release()
    except OSError as error:
        raise WriteFailed(
            f"{directory} could not be tidied ({error})", f"{len(removed)} files were removed; try again"
        ) from error
    if removed:
        _log.info("%s: %d files of evidence removed", directory, len(removed))
    return removed


def _lock(fs: FileSystem, directory: str, session: str) -> WriterLock:
    """The lock of a session that is there."""
    try:
        return WriterLock.acquire(fs, os.path.join(directory, LOCK_FILE), create=False)
    except FileNotFoundError:
        if not fs.exists(os.path.join(directory, MAIN_FILE)):
            raise NoSuchSession(f"there is no session {session!r}", "look at the list of sessions") from None
    return WriterLock.acquire(fs, os.path.join(directory, LOCK_FILE))  # nobody has opened it since it was copied here
