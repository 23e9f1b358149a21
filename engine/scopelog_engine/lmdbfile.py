"""The LMDB database of an index, guarded: whatever became of its files, nobody is harmed. See engine/FORMAT.md.

Its directory holds ``data.mdb``, a STAMP that names the store and the data file's device and inode, and a LOCK. The
rules, none of which may go:

1. The STAMP is read first. Files that it does not vouch for (foreign, copied, made by an interrupted creation) are
   never opened: they are removed by the next one who writes.
2. Reads are plain reads (:mod:`mdbpages`) and take no lock: no damage can do more than make them fail. What is read
   is whole if the database has moved on by one transaction at most meanwhile; LMDB leaves those pages alone.
3. LMDB itself is only used to write: under our flock, which is tried and never waited for; on a file whose structure
   was proved just before, or since when nobody has written to it; without its own lock file, whose mutexes and reader
   table a damaged file would turn against us; never with a writable map; every commit synced but for its meta page.
4. The environment is open for the length of one transaction. So nothing is mapped when a file is cut, no descriptor
   has to survive a fork, and a map that another process has grown is read at its new size.
5. No trouble is raised. The index is absent then, and made anew when it is needed.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from zlib import crc32

import msgspec

from .fs import Identity, OsFile, closing
from .layout import INDEX_DATA, INDEX_STAMP, LMDB_LOCK, LOCK_FILE, TEMP_SUFFIX
from .lmdbenv import Changes, Database, Failed, Refused
from .mdbpages import SUPPORTED, BadPages, Snapshot, read_meta
from .mdbproof import verify

_log = logging.getLogger(__name__)
FORMAT: Final = 1
MAX_DATA_BYTES: Final = 64 * 2**20  # longest data of one key
_ATTEMPTS: Final = 8
_STAMP_BYTES: Final = 4096
_SECOND: Final = 1_000_000_000


class Stamp(msgspec.Struct, forbid_unknown_fields=True):
    """Which data file belongs here."""

    format: int
    store: str
    device: int
    inode: int


class IndexFile:
    """The database in ``directory``, of the store ``identity``. Thread-safe; one a process, see :func:`index_file`."""

    def __init__(self, directory: str, identity: str) -> None:
        self.directory = directory
        self.trouble: str | None = None
        """Why the database is absent, as last met; None if it is not, or was never there."""
        self._identity = identity
        self._path = os.path.join(directory, INDEX_DATA)
        self._stamp_path = os.path.join(directory, INDEX_STAMP)
        self._database = Database(directory, self._path)
        self._writing = threading.Lock()
        self._lock_file: OsFile | None = None
        self._data: tuple[OsFile, Identity] | None = None
        self._proved: tuple[int, ...] | None = None  # what the data file looked like when its structure was proved

    @property
    def map_bytes(self) -> int:
        return self._database.map_bytes

    @map_bytes.setter
    def map_bytes(self, size: int) -> None:
        self._database.map_bytes = size

    # --- reading ----------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """The data of a key; None if there is none, or no database."""
        return self.get_all([key])[0]

    def get_all(self, keys: list[bytes]) -> list[bytes | None]:
        """The data of each key, all of one state; None where there is none. Quick if the keys are in order."""
        why: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                data = self._current()
                if data is None:
                    return [None] * len(keys)
                state = _snapshot(data)
                found = state.get_all(keys)
                if _still(data, state):
                    return found
            except BadPages as error:  # or read while a writer was at it: look again
                why = error
            except OSError as error:
                why = error
                break
        self._absent("cannot be read", why)
        return [None] * len(keys)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys that start with ``prefix`` and their data (None where it cannot be had), in order of the keys.

        Not one state: what is committed meanwhile may be seen or not.
        """
        start = prefix
        why: Exception | None = None
        left = _ATTEMPTS
        while left:
            left -= 1
            try:
                data = self._current()
                if data is None:
                    return
                state = _snapshot(data)
                for leaf in state.leaves(start):
                    if not _still(data, state):
                        break
                    for key, found in leaf:
                        if not key.startswith(prefix):
                            return
                        yield key, found
                        start, left = key + b"\0", _ATTEMPTS
                else:
                    return
            except BadPages as error:
                why = error
            except OSError as error:
                why = error
                break
        self._absent("cannot be read", why)

    def size(self) -> int:
        """Bytes of the data file, 0 if there is no database."""
        try:
            data = self._current()
            if data is None:
                return 0
            _snapshot(data)
            return data.size()
        except (OSError, BadPages) as error:
            self._absent("cannot be read", error)
            return 0

    def _current(self) -> OsFile | None:
        """The data file, if the path names it now and the stamp vouches for it."""
        if not SUPPORTED:
            return None
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            self._data = None
            return None
        now = status.st_dev, status.st_ino
        known = self._data
        if known is not None and known[1] == now:
            return known[0]
        self._data = None
        if self._stamped() != now:
            return None
        with suppress(FileNotFoundError):
            file = _open_regular(self._path, os.O_RDONLY)
            if file is not None and file.identity() == now:
                self._data = file, now
                self.trouble = None
                return file
        return None

    def _stamped(self) -> Identity | None:
        """The data file that the stamp vouches for."""
        try:
            file = _open_regular(self._stamp_path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        if file is None:
            return None
        with closing(file):
            line = file.pread(_STAMP_BYTES, 0)
        checksum, _, body = line.partition(b" ")
        if checksum != b"%08x" % crc32(body):
            return None
        try:
            stamp = msgspec.json.decode(body, type=Stamp)
        except msgspec.MsgspecError:
            return None
        if stamp.format != FORMAT or stamp.store != self._identity:
            return None
        return stamp.device, stamp.inode

    # --- writing ----------------------------------------------------------------------------------

    def write(self, change: Callable[[Changes], None], *, create: bool) -> bool:
        """Do ``change`` in one transaction, durable when this returns; it may be called again with a larger map.

        False if nothing was changed: another process is writing, the store is another user's, there is no database (and
        no ``create``), or trouble.
        """
        if not SUPPORTED:
            return False
        with self._writing:
            try:
                if not self._ours():
                    return False
                with self._locked(create) as granted:
                    return granted and self._write(change, create)
            except OSError as error:
                self._absent("cannot be written", error)
                return False

    def discard(self) -> bool:
        """Remove the files. False if another process is writing, or if the system refuses."""
        with self._writing:
            try:
                if not self._ours():
                    return False
                with self._locked(create=False) as granted:
                    if granted:
                        self._remove_files()
                    return granted or not os.path.isdir(self.directory)
            except OSError as error:
                self._absent("cannot be removed", error)
                return False

    def _ours(self) -> bool:
        """Whether files made by this process are of the store's owner: else root would lock out whom it belongs to."""
        return os.stat(os.path.dirname(self.directory)).st_uid == os.geteuid()

    @contextmanager
    def _locked(self, create: bool) -> Iterator[bool]:
        path = os.path.join(self.directory, LOCK_FILE)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            file = OsFile(os.open(path, flags, 0o600))
        except FileNotFoundError:
            if not create:
                yield False
                return
            with suppress(FileExistsError):
                os.mkdir(self.directory, 0o700)
            file = OsFile(os.open(path, flags, 0o600))
        self._lock_file = file
        with closing(file):
            status = os.stat(path, follow_symlinks=False) if file.try_lock() else None
            yield status is not None and (status.st_dev, status.st_ino) == file.identity()

    def _write(self, change: Callable[[Changes], None], create: bool) -> bool:
        try:
            if not self._prove() and not (create and self._create()):
                return False
            self._database.transact(change)
        except Refused as error:
            self._absent("cannot be opened", error)
            return False
        except Failed as error:
            self._remove_files()
            self._absent("is made anew, because a transaction failed", error)
            return False
        try:
            self._settle()
        except BadPages as error:  # damaged since; what was written is as good as the rest
            self._absent("was damaged while it was written", error)
        return True

    def _prove(self) -> bool:
        """Whether there is a database that LMDB can be let at; one that is not sound is removed."""
        try:
            data = self._current()
            if data is not None:
                if self._proved is None or self._proved != _looks(data):
                    verify(data.pread, _snapshot(data).meta)
                    self._proved = _looks(data)
                return True
        except BadPages as error:
            self._absent("is damaged and made anew", error)
        self._remove_files()
        return False

    def _create(self) -> bool:
        self._database.create()
        status = os.stat(self._path, follow_symlinks=False)
        body = msgspec.json.encode(Stamp(FORMAT, self._identity, status.st_dev, status.st_ino))
        temp = self._stamp_path + TEMP_SUFFIX
        file = OsFile(os.open(temp, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        with closing(file):
            file.pwrite(b"%08x " % crc32(body) + body, 0)
        os.rename(temp, self._stamp_path)
        return self._current() is not None

    def _settle(self) -> None:
        """After a commit: what the file looks like now is proved, because LMDB itself has made it of what was."""
        file = _open_regular(self._path, os.O_RDWR)
        if file is None:
            return
        with closing(file):
            meta = read_meta(file.pread, 2**63)
            if file.size() < (meta.last + 1) * meta.page:  # LMDB does not write pages that it has freed again
                file.truncate((meta.last + 1) * meta.page)
            # A time that no write leaves there: one that follows at once would else go unnoticed.
            status = os.fstat(file.fd)
            os.utime(file.fd, ns=(status.st_atime_ns, status.st_mtime_ns - _SECOND))
            self._proved = _looks(file)
        self.trouble = None

    def _remove_files(self) -> None:
        """The stamp first: what is left of the rest by a crash is then removed by the next one."""
        self._data = self._proved = None
        for name in (INDEX_STAMP, INDEX_STAMP + TEMP_SUFFIX, INDEX_DATA, LMDB_LOCK):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.directory, name))

    def _absent(self, what: str, why: Exception | None) -> None:
        self._proved = None
        trouble = f"the index {what} ({why})"
        if trouble != self.trouble:
            self.trouble = trouble
            _log.warning("%s: %s; everything works without it, slower", self.directory, trouble)

    def after_fork(self) -> None:
        """In the child: the parent's lock and environment are not ours."""
        self._writing = threading.Lock()
        self._proved = None
        file, self._lock_file = self._lock_file, None
        if file is not None:
            file.close()


def _snapshot(data: OsFile) -> Snapshot:
    return Snapshot(data.pread, data.size(), MAX_DATA_BYTES)


def _still(data: OsFile, state: Snapshot) -> bool:
    """Whether LMDB has left the pages of ``state`` alone: it takes none that the last two commits used."""
    return read_meta(data.pread, data.size()).txnid <= state.meta.txnid + 1


def _looks(data: OsFile) -> tuple[int, ...]:
    status = os.fstat(data.fd)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _open_regular(path: str, flags: int) -> OsFile | None:
    """The file, None if the path names something that is no file (which might block or fool us)."""
    file = OsFile(os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
    if stat.S_ISREG(os.fstat(file.fd).st_mode):
        return file
    file.close()
    return None


_files: weakref.WeakValueDictionary[tuple[str, str], IndexFile] = weakref.WeakValueDictionary()
_files_lock = threading.Lock()


def index_file(directory: str, identity: str) -> IndexFile:
    """The one :class:`IndexFile` that this process has for a directory."""
    key = os.path.realpath(directory), identity
    with _files_lock:
        file = _files.get(key)
        if file is None:
            file = _files[key] = IndexFile(*key)  # by its real path: a link may come to lead elsewhere
        return file


def _after_fork() -> None:
    global _files_lock
    _files_lock = threading.Lock()
    for file in [*_files.values()]:
        file.after_fork()
    _files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
