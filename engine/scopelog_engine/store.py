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
from functools import partial
from typing import Final

from .check import Finding, check_store
from .clock import Clock, SystemClock
from .environment import Scheduled, Settings
from .errors import (
    CorruptLog,
    HandleClosed,
    HandleForked,
    NoSuchSession,
    NotAStore,
    OpenFailed,
    ReadFailed,
    ScopelogError,
    StoreLocked,
    UnsupportedPlatform,
    WriteFailed,
)
from .fs import FileSystem, OsFileSystem, write_all
from .header import KIND_MAIN, KIND_STORE, encode_header, new_header
from .layout import (
    LOCK_FILE,
    MAIN_FILE,
    SESSION_SUFFIX,
    STORE_FILE,
    TEMP_SUFFIX,
    TRASH_DIR,
    check_id,
    session_dir_name,
    session_id_of_dir,
)
from .lock import WriterLock
from .looping import GRACE
from .loops import running_loop
from .opening import open_session
from .pace import Pace
from .reader import Reader
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
        self.pace = Pace()
        self._alarm = clock.alarm(self._on_alarm)
        self._gone: ScopelogError | None = None
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

    def sessions(self) -> list[str]:
        """Ids of all sessions that have a main log, sorted. Reads names; a header only where a name is a digest."""
        self._check()
        ids: list[str] = []
        try:
            names = self.fs.list_dir(self.path)
        except OSError as error:
            raise ReadFailed(
                f"{self.path} could not be listed ({error})", "check the disk and its permissions"
            ) from error
        for name in names:
            if not name.endswith(SESSION_SUFFIX) or not self.fs.exists(os.path.join(self.path, name, MAIN_FILE)):
                continue
            session = session_id_of_dir(name)
            if session is None:
                session = self._id_from_header(os.path.join(self.path, name, MAIN_FILE))
            if session is not None:
                ids.append(session)
        return sorted(ids)

    def _id_from_header(self, path: str) -> str | None:
        try:
            file = self.fs.open_readonly(path)
        except FileNotFoundError:
            return None
        try:
            header, _ = read_header(file, path)
        except ScopelogError as error:
            _log.warning("a session is left out of the list: %s", error)
            return None
        finally:
            file.close()
        return header.session if header.kind == KIND_MAIN else None

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
        return Reader(self.fs, self.directory(session), store=self.identity, session=session)

    def directory(self, session: str) -> str:
        return os.path.join(self.path, session_dir_name(session))

    def delete_session(self, session: str) -> None:
        """Remove every file of a session: takes its lock, moves it into the trash, syncs, then unlinks.

        Raises :class:`NoSuchSession`, or :class:`StoreLocked` while any handle owns it.
        """
        self._check()
        check_id("session", session)
        directory = self.directory(session)
        if not self.fs.exists(os.path.join(directory, MAIN_FILE)):
            raise NoSuchSession(f"there is no session {session!r}", "look at the list of sessions")
        try:
            self._delete(directory)
        except OSError as error:
            raise WriteFailed(
                f"the session {session!r} could not be deleted ({error})",
                "mend the disk and delete it again; if it is gone from the list, its files are swept at the next open",
            ) from error
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

    def check(self, session: str | None = None) -> list[Finding]:
        """See :func:`check.check_store`."""
        self._check()
        return check_store(self, None if session is None else check_id("session", session))

    def _sweep_trash(self) -> None:
        trash = os.path.join(self.path, TRASH_DIR)
        if self.fs.is_dir(trash):
            for name in self.fs.list_dir(trash):
                try:
                    self._empty(os.path.join(trash, name))
                except OSError as error:
                    _log.warning("%s could not be removed: %s; it will be tried again", name, error)

    def _empty(self, directory: str) -> None:
        """Remove a directory and its files. Somebody else may be doing the same."""
        try:
            for name in self.fs.list_dir(directory):
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
            if self._slow_flush and len(due) > 1 and WRITERS.submit(partial(self._flush_aside, session, now)):
                continue  # a slow sync of one does not delay the others
            started = self.clock.monotonic()
            self._flush(session, now)
            self._slow_flush = self.clock.monotonic() - started > _SLOW_FLUSH
        with self._lock:
            return min(self._deadlines.values(), default=None)

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

    def _flush_aside(self, session: Scheduled, now: float) -> None:
        started = self.clock.monotonic()
        self._flush(session, now)
        self._slow_flush = self.clock.monotonic() - started > _SLOW_FLUSH
        with self._lock:
            again = min(self._deadlines.values(), default=None)
        if again is not None:
            self._alarm.set(again)

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
            writer.flush_soon()
        for writer in writers:
            if not writer.wait_until_stored(deadline):
                _log.error("%s: staged elements could not be stored before the interpreter's end", writer.directory)


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

    The store's own entry in its parent is synced first, whoever made it; its content with the first session's.
    """
    temp = STORE_FILE + TEMP_SUFFIX
    names = fs.list_dir(where) if fs.is_dir(where) else []
    others = [n for n in names if n not in (temp, TRASH_DIR) and not n.endswith(SESSION_SUFFIX)]
    if others or not create:
        what = f"it holds {others[0]!r} but no {STORE_FILE}" if others else f"there is no {STORE_FILE}"
        raise NotAStore(f"{where} is not a scopelog store: {what}", "name the store's directory, or an empty one")
    identity = _identity_of_sessions(fs, where, names) or secrets.token_hex(16)
    fs.sync_dir(os.path.dirname(where))
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
