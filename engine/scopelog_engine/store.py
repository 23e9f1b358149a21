"""A store: one directory, many sessions, one flusher. Existence of a session is decided by its files."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from .catalogue import Catalogue, Tell
from .check import Finding, check_store
from .clock import Clock, SystemClock
from .copying import copy_session, tidy_session
from .environment import Scheduled, Settings
from .errors import (
    CorruptLog,
    HandleClosed,
    HandleForked,
    InvalidInput,
    NoSuchSession,
    NotAStore,
    OpenFailed,
    ReadFailed,
    ScopelogError,
    StoreLocked,
    UnsupportedPlatform,
    WriteFailed,
)
from .follow import Follower
from .fs import FileSystem, OsFileSystem, write_all
from .header import KIND_STORE, encode_header, new_header
from .index import StoreIndex
from .info import SessionInfo
from .layout import (
    INDEX_DIR,
    LOCK_FILE,
    MAIN_FILE,
    SESSION_SUFFIX,
    STORE_FILE,
    TEMP_SUFFIX,
    TRASH_DIR,
    check_id,
    session_dir_name,
)
from .lock import WriterLock
from .looping import GRACE
from .loops import running_loop
from .opening import open_session
from .pace import Pace
from .position import Position
from .reader import Reader
from .salvage import Salvaged, salvage_session
from .survey import read_header
from .workers import WRITERS
from .writer import Writer

_log = logging.getLogger(__name__)
_PENDING_LIMIT: Final = 64 * 1024 * 1024
_EXIT_SECONDS: Final = 5.0
_SLOW_FLUSH: Final = 0.02  # seconds from which on the flusher asks for help with other sessions
_stores: weakref.WeakSet[Store] = weakref.WeakSet()


class Store:
    """An open store. Thread-safe. ``identity`` is its 128-bit id in hex."""

    def __init__(self, path: str, identity: str, fs: FileSystem, clock: Clock, settings: Settings) -> None:
        self.path = path
        self.identity = identity
        self.fs = fs
        self.clock = clock
        self.settings = settings
        self._lock = threading.Lock()
        self._sessions: dict[str, Writer] = {}
        self._deadlines: dict[Scheduled, float] = {}
        self._granted = 0
        self._slow_flush = False  # whether the flusher had to wait for the disk
        self._aside: dict[Scheduled, bool] = {}  # sessions that a worker flushes; whether it must look again
        self.pace = Pace()
        self._alarm = clock.alarm(self._on_alarm)
        self._gone: ScopelogError | None = None
        self.index = StoreIndex(path, identity, clock) if fs.memory_maps else None
        self.catalogue = Catalogue(fs, path, identity, self.index)
        _stores.add(self)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        settings: Settings | None = None,
    ) -> Store:
        """Open the store at ``path``; with ``create`` make it if there is nothing there yet.

        Raises :class:`NotAStore`, :class:`NewerFormat`, :class:`CorruptLog`, :class:`UnsupportedPlatform`.
        """
        if sys.platform == "win32":
            raise UnsupportedPlatform("scopelog does not run on Windows", "use Linux or macOS")
        fs = fs or OsFileSystem()
        where = os.path.abspath(os.fspath(path))
        try:
            if create:
                _make_dirs(fs, where)
            identity = _read_identity(fs, where) or _create_store(fs, where, create)
        except OSError as error:
            raise OpenFailed(
                f"the store {where} cannot be opened ({error})", "check the path and its permissions"
            ) from error
        store = cls(where, identity, fs, clock or SystemClock(), settings or Settings())
        if create:
            store._sweep_trash()
        return store

    # --- sessions ---------------------------------------------------------------------------------

    def sessions(self, tell: Tell | None = None) -> list[str]:
        """Ids of all sessions that have a main log, sorted. Reads names; a header only where a name is a digest.

        What cannot be read is left out and told, by default to the log. Raises :class:`ReadFailed`.
        """
        self._check()
        return self.catalogue.ids(tell or leave_out)

    def infos(self, wanted: Callable[[str], bool], tell: Tell, *, reverse: bool = False) -> Iterator[SessionInfo]:
        """See :meth:`Catalogue.infos`."""
        self._check()
        return self.catalogue.infos(wanted, tell, reverse=reverse)

    def open_session(self, session: str, settings: Settings | None = None) -> Writer:
        """Open a session for writing; it comes into being with its first write.

        Raises :class:`StoreLocked` if any handle owns it, :class:`CorruptLog` for proved damage.
        """
        self._check()
        check_id("session", session)
        directory = self.directory(session)
        writer = open_session(self, session, directory, settings or self.settings)
        with self._lock:
            gone = self._gone
            if gone is None:
                self._sessions[session] = writer
        if gone is not None:  # closed meanwhile by another thread
            writer.close(force=True)
            raise gone.again() from gone
        return writer

    def read_session(self, session: str) -> Reader:
        """Read a session without its lock, also while another process writes it. Raises :class:`NoSuchSession`."""
        self._check()
        check_id("session", session)
        directory = self.directory(session)
        index = self.index.log(os.path.basename(directory)) if self.index is not None else None
        return Reader(self.fs, directory, store=self.identity, session=session, index=index)

    def follow_session(
        self, session: str, position: Position | None = None, *, durable: bool = False, scope: str | None = None
    ) -> Follower:
        """See :class:`Follower`. Raises :class:`NoSuchSession` if there is none and no position in it."""
        self._check()
        directory = self.directory(check_id("session", session))
        if position is None and not self._holds_session(directory):
            raise NoSuchSession(f"there is no session {session!r}", "look at the list of sessions")
        index = self.index.log(os.path.basename(directory)) if self.index is not None else None
        return Follower(
            self.fs,
            directory,
            store=self.identity,
            session=session,
            index=index,
            position=position,
            durable=durable,
            scope=scope,
        )

    def _holds_session(self, directory: str) -> bool:
        try:
            return self.fs.exists(os.path.join(directory, MAIN_FILE))
        except OSError as error:
            cause = f"it could not be seen whether {directory} holds a session ({error})"
            raise ReadFailed(cause, "check the disk and its permissions") from error

    def directory(self, session: str) -> str:
        return os.path.join(self.path, session_dir_name(session))

    def delete_session(self, session: str) -> None:
        """Remove every file of a session: takes its lock, moves it into the trash, syncs, then unlinks.

        Raises :class:`NoSuchSession`, or :class:`StoreLocked` while any handle owns it.
        """
        self._check()
        check_id("session", session)
        directory = self.directory(session)
        if not self._holds_session(directory):
            raise NoSuchSession(f"there is no session {session!r}", "look at the list of sessions")
        try:
            self._delete(directory)
        except OSError as error:
            raise WriteFailed(
                f"the session {session!r} could not be deleted ({error})",
                "mend the disk and delete it again; if it is gone from the list, its files are swept at the next open",
            ) from error
        self.catalogue.forget(session)
        _log.info("session deleted: %s", directory)

    def _delete(self, directory: str) -> None:
        lock = WriterLock.acquire(self.fs, os.path.join(directory, LOCK_FILE))
        try:
            trash = os.path.join(self.path, TRASH_DIR)
            if not self.fs.exists(trash):
                self.fs.make_dir(trash)
            grave = os.path.join(trash, f"{os.path.basename(directory)}.{secrets.token_hex(8)}")
            self.fs.rename(directory, grave)
            self.fs.sync_dir(self.path)
            self.fs.sync_dir(trash)
            self._empty(grave)
        finally:
            lock.release()

    def copy_session(self, session: str, new: str, upto: int | None = None) -> int:
        """Copy a session scope, up to a sequence, into a new session. Returns its last sequence."""
        self._check()
        if check_id("session", session) == check_id("session", new):
            raise InvalidInput(f"{session!r} cannot be copied onto itself", "choose another id")
        return copy_session(self, session, new, upto)

    def salvage_session(self, session: str, new: str | None, into: Store | None = None) -> Salvaged:
        """A new session of all that verifies in a damaged one, in this store or in another."""
        self._check()
        target = into or self
        target._check()
        check_id("session", session)
        return salvage_session(self, session, target, None if new is None else check_id("session", new))

    def tidy_session(self, session: str) -> list[str]:
        """Remove what recoveries of a session have kept aside. Returns the paths."""
        self._check()
        return tidy_session(self, check_id("session", session))

    def check(self, session: str | None = None, *, deep: bool = False) -> list[Finding]:
        """See :func:`check.check_store`."""
        self._check()
        return check_store(self, None if session is None else check_id("session", session), deep=deep)

    def _sweep_trash(self) -> None:
        trash = os.path.join(self.path, TRASH_DIR)
        try:
            names = self.fs.list_dir(trash) if self.fs.is_dir(trash) else []
        except OSError as error:
            _log.warning("%s could not be looked into: %s; it will be tried again", trash, error)
            return
        for name in names:
            try:
                self._sweep(os.path.join(trash, name))
            except (OSError, ScopelogError) as error:
                _log.warning("%s could not be removed: %s; it will be tried again", name, error)

    def _sweep(self, directory: str) -> None:
        """Empty a directory in the trash, unless somebody is deleting that session at this moment, or salvages one
        into it."""
        try:
            lock = WriterLock.acquire(self.fs, os.path.join(directory, LOCK_FILE))
        except StoreLocked:
            return
        except FileNotFoundError:  # somebody was quicker
            return
        try:
            self._empty(directory)
        finally:
            lock.release()

    def _empty(self, directory: str) -> None:
        """Remove a directory and its files, whose lock is held: that goes last. Somebody else may do the same."""
        try:
            names = [name for name in self.fs.list_dir(directory) if name != LOCK_FILE]
            for name in [*names, LOCK_FILE]:
                try:
                    self.fs.unlink(os.path.join(directory, name))
                except FileNotFoundError:
                    continue
            self.fs.remove_dir(directory)
        except FileNotFoundError:
            return

    # --- what sessions need (storing.Environment) -------------------------------------------------

    def schedule(self, session: Scheduled, when: float) -> bool:
        loop = running_loop()
        if loop is None or not self.clock.runs_by_itself:
            return self.stand_by(session, when)
        session.keep_deadline(loop, when)
        self.stand_by(session, when + GRACE)
        return True

    def stand_by(self, session: Scheduled, when: float) -> bool:
        with self._lock:
            known = self._deadlines.get(session)
            if known is None or when < known:
                self._deadlines[session] = when
        try:
            self._alarm.set(when)
        except RuntimeError as error:  # no thread to be had: the next window, flush or close stores it
            _log.error("the flusher could not be started (%s): tried again at the next call", error)
            return False
        return True

    def _on_alarm(self) -> float | None:
        now = self.clock.monotonic()
        with self._lock:
            due = [session for session, when in self._deadlines.items() if when <= now]
            for session in due:
                del self._deadlines[session]
        for session in due:
            if not self._flush_aside(session, now):
                self._flush_timed(session, now)
        with self._lock:
            return min(self._deadlines.values(), default=None)

    def _flush_aside(self, session: Scheduled, now: float) -> bool:
        """Where the disk is slow have a worker flush this session: its sync must not delay the others.

        False if the flusher must do it itself: the disk is quick, or all workers are busy, or held by other disks."""
        with self._lock:
            if session in self._aside:
                self._aside[session] = True
                return True
            if not self._slow_flush or len(self._sessions) < 2 or not self.clock.runs_by_itself:
                return False
            self._aside[session] = False
        if WRITERS.submit(partial(self._flush_in_worker, session, now), queue=False):
            return True
        with self._lock:
            del self._aside[session]
        return False

    def _flush_in_worker(self, session: Scheduled, now: float) -> None:
        try:
            self._flush_timed(session, now)
        finally:
            with self._lock:
                if self._aside.pop(session, True):
                    self._deadlines[session] = now
                again = min(self._deadlines.values(), default=None)
        if again is not None:
            self._alarm.set(again)

    def _flush_timed(self, session: Scheduled, now: float) -> None:
        started = self.clock.monotonic()
        self._flush(session, now)
        self._slow_flush = self.clock.monotonic() - started > _SLOW_FLUSH

    def _flush(self, session: Scheduled, now: float) -> None:
        again: float | None
        try:
            again = session.flush_due(now)
        except Exception as error:  # noqa: BLE001 - one session's trouble is not the others'
            _log.error("flushing %s failed: %s", session.session, type(error).__name__)
            session.flusher_failed(error)
            again = None
        if again is not None:
            with self._lock:
                self._deadlines[session] = min(again, self._deadlines.get(session, again))

    def grant(self, wanted: int) -> bool:
        with self._lock:
            if self._granted + wanted > _PENDING_LIMIT:
                return False
            self._granted += wanted
            return True

    def give_back(self, granted: int) -> None:
        with self._lock:
            self._granted -= granted

    def sync_names(self, directory: str) -> None:
        self.fs.sync_dir(directory)
        self.fs.sync_dir(self.path)

    @property
    def keeps_catalogue(self) -> bool:
        return self.catalogue.kept

    def closed(self, info: SessionInfo, frame: bytes) -> None:
        self.catalogue.closed(info, frame)

    def forget(self, session: Scheduled) -> None:
        with self._lock:
            if self._sessions.get(session.session) is session:
                del self._sessions[session.session]
            self._deadlines.pop(session, None)

    # --- closing ----------------------------------------------------------------------------------

    def close(self, *, force: bool = False) -> None:
        """Close every session, then the flusher. The first error is raised after all have been tried."""
        self._check_fork()
        if self._gone is not None:
            return
        failure: ScopelogError | None = None
        with self._lock:
            writers = [*self._sessions.values()]
        for writer in writers:
            try:
                writer.close(force=force)
            except ScopelogError as error:
                failure = failure or error
        with self._lock:
            closed = not self._sessions
            if closed:
                self._gone = HandleClosed(f"the store {self.path} was closed", "open it again")
        if closed:
            self._alarm.close()
            self.catalogue.settle()
            if self.index is not None:
                self.index.close()
        if failure is not None:
            raise failure

    def _check(self) -> None:
        if self._gone is not None:
            raise self._gone.again() from self._gone

    def _check_fork(self) -> None:
        if isinstance(self._gone, HandleForked):
            raise self._gone.again()

    def after_fork(self) -> None:
        """In the child: refuse, and close every copied descriptor."""
        self._lock = threading.Lock()
        self.catalogue.after_fork()
        self._gone = HandleForked(
            f"the store {self.path} was opened by process {os.getppid()} and came here through fork",
            "open it again in this process",
        )
        for writer in [*self._sessions.values()]:
            writer.after_fork()

    def flush_at_exit(self, deadline: float) -> None:
        """Have the flusher store what is staged, and wait for it no longer than to ``deadline``."""
        if self._gone is not None or not self.clock.runs_by_itself:
            return
        with self._lock:
            writers = [*self._sessions.values()]
        for writer in writers:
            writer.flush_soon(deadline)
        for writer in writers:
            if not writer.wait_until_stored(deadline):
                _log.error("%s: staged elements could not be stored before the interpreter's end", writer.directory)


def leave_out(found: Finding) -> None:
    """Tell the log of a session that a list is without."""
    _log.warning("a session is left out of the list: %s: %s", found.path, found.detail)


def _make_dirs(fs: FileSystem, where: str) -> None:
    """Create ``where`` and missing parents, each made durable before anything is put into it."""
    missing: list[str] = []
    at = where
    while not fs.is_dir(at):
        missing.append(at)
        at = os.path.dirname(at)
    for directory in reversed(missing):
        try:
            fs.make_dir(directory)
        except FileExistsError:  # another process was quicker
            if not fs.is_dir(directory):
                raise
        if directory != where:
            fs.sync_dir(os.path.dirname(directory))


def _sync_above(fs: FileSystem, where: str) -> None:
    """Make the store's own entry durable, and those of the directories above it that may have been made for it by an
    attempt that did not live to sync them: nothing but the way to the store is in them."""
    at, parent = where, os.path.dirname(where)
    fs.sync_dir(parent)
    while parent != os.path.dirname(parent) and fs.list_dir(parent) == [os.path.basename(at)]:
        at, parent = parent, os.path.dirname(parent)
        try:
            fs.sync_dir(parent)
        except PermissionError:  # it cannot be read, so it is somebody else's
            return


def _read_identity(fs: FileSystem, where: str) -> str | None:
    path = os.path.join(where, STORE_FILE)
    try:
        file = fs.open_readonly(path)
    except FileNotFoundError:
        return None
    try:
        header, _ = read_header(file, path)
    finally:
        file.close()
    if header.kind != KIND_STORE or len(header.store) != 32:
        raise CorruptLog(path=path, offset=0, sequence=0, reason="header", detail="it does not name a store")
    return header.store


def _create_store(fs: FileSystem, where: str, create: bool) -> str:
    """Name the store: temp, sync, rename. Returns the id.

    The entries that lead to the store are synced first, whoever made them; its content with the first session's.
    """
    temp = STORE_FILE + TEMP_SUFFIX
    names = fs.list_dir(where) if fs.is_dir(where) else []
    others = [n for n in names if n not in (temp, INDEX_DIR, TRASH_DIR) and not n.endswith(SESSION_SUFFIX)]
    if others or not create:
        what = f"it holds {others[0]!r} but no {STORE_FILE}" if others else f"there is no {STORE_FILE}"
        raise NotAStore(f"{where} is not a scopelog store: {what}", "name the store's directory, or an empty one")
    identity = _identity_of_sessions(fs, where, names) or secrets.token_hex(16)
    _sync_above(fs, where)
    path = os.path.join(where, temp)
    file = fs.open_or_create(path)
    try:
        if not file.try_lock() or fs.identity(path) != file.identity():
            raise StoreLocked(f"another process is creating {where}", "open it again in a moment", pid=0, since="")
        made = _read_identity(fs, where)
        if made is not None:
            fs.unlink(path)
            return made
        data, _ = encode_header(new_header(KIND_STORE, identity), epoch=0, sequence=0)
        file.truncate(0)
        write_all(file, data, 0)
        file.sync()
        fs.rename(path, os.path.join(where, STORE_FILE))
    finally:
        file.close()
    return identity


def _identity_of_sessions(fs: FileSystem, where: str, names: list[str]) -> str | None:
    """What the sessions of a store without its store file call it: a power cut may have spared them and not that."""
    found: set[str] = set()
    for name in names:
        path = os.path.join(where, name, MAIN_FILE)
        if not name.endswith(SESSION_SUFFIX) or not fs.exists(path):
            continue
        file = fs.open_readonly(path)
        try:
            found.add(read_header(file, path)[0].store)
        finally:
            file.close()
    if len(found) > 1:
        raise NotAStore(f"{where} has no {STORE_FILE} and its sessions name several stores", f"bring {STORE_FILE} back")
    return found.pop() if found else None


def _after_fork() -> None:
    for store in [*_stores]:
        store.after_fork()


def _at_exit() -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    for store in [*_stores]:
        store.flush_at_exit(deadline)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
