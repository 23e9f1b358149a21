"""The writer lock: flock on a lock file in the session's directory.

``flock``, not ``lockf``: a lock of the latter kind vanishes when any descriptor of the file is closed, and is granted
again inside one process. The lock file is unlinked by deletion of the session alone, so that an opener who has
waited on a dead file notices: after locking, the path must still name the same inode.
"""

from __future__ import annotations

import errno
import os
import weakref
from datetime import UTC, datetime
from typing import Final

import msgspec

from .errors import HandleFenced, OpenFailed, StoreLocked, UnsupportedPlatform
from .fs import File, FileSystem, Identity, read_all, write_all

_ATTEMPTS: Final = 8
_NOTE_BYTES: Final = 127
_MAX_NOTE: Final = 512
_MAX_EPOCH: Final = 2**40  # beyond all that could have been counted


class _Owner(msgspec.Struct):
    pid: int = 0
    since: str = ""
    epoch: int = 0


_decode_owner = msgspec.json.Decoder(_Owner).decode


class WriterLock:
    """Held until :meth:`release`. ``last_epoch`` is the epoch the owner before us noted, 0 if unknown."""

    def __init__(self, fs: FileSystem, path: str, file: File, identity: Identity, last_epoch: int) -> None:
        self._fs = fs
        self.path = path
        self._file = file
        self._identity = identity
        self.last_epoch = last_epoch

    @classmethod
    def acquire(cls, fs: FileSystem, path: str, *, create: bool = True) -> WriterLock:
        """Lock or raise :class:`StoreLocked` at once; never waits. FileNotFoundError if missing and not ``create``."""
        for _ in range(_ATTEMPTS):
            file = fs.open_or_create(path) if create else fs.open(path)
            try:
                _copied.add(file)  # before it is locked: a fork may come at any time
                fs.pool.held.add(file)
                fs.pool.make_room()  # there is less of it now
                lock = cls._take(fs, path, file)
            except BaseException:
                _let_go(file)
                raise
            if lock is not None:
                return lock
            _let_go(file)  # deleted and perhaps made anew while we waited: look again
        raise OpenFailed(f"{path} is replaced again and again", "find out who deletes and creates the session")

    @classmethod
    def _take(cls, fs: FileSystem, path: str, file: File) -> WriterLock | None:
        """None if the path no longer names the file."""
        try:
            granted = file.try_lock()
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise UnsupportedPlatform(
                    f"the file system of {path} has no flock ({error})", "keep the store on a local file system"
                ) from error
            raise
        if not granted:
            owner = _known_owner(file)
            who = f"process {owner.pid}, since {owner.since}" if owner.pid else "another handle"
            raise StoreLocked(
                f"{path} is held by {who}",
                "close that handle, or read the session without its lock, through store.reader()",
                pid=owner.pid,
                since=owner.since,
            )
        identity = file.identity()
        if fs.identity(path) != identity:
            return None
        return cls(fs, path, file, identity, _owner_in(_read_note(file)).epoch)

    def note(self, epoch: int) -> None:
        """Name the owner in the file, for the refusal that others get, and the epoch, for the next owner."""
        since = datetime.now(UTC).isoformat(timespec="seconds")
        text = msgspec.json.encode(_Owner(os.getpid(), since, epoch)).ljust(_NOTE_BYTES) + b"\n"
        write_all(self._file, text, 0)  # of fixed length, over the old one: never without an epoch in between

    def sync(self) -> None:
        """Make the noted epoch durable: before anything of an epoch is shown that no synced frame carries yet."""
        self._file.sync()

    def check(self) -> None:
        """Raise :class:`HandleFenced` unless the path still names our lock file."""
        if self._fs.identity(self.path) != self._identity:
            raise HandleFenced(
                f"{self.path} was removed or replaced: this handle no longer owns the session",
                "open the session again; nothing was written",
            )

    def release(self) -> None:
        self._fs.pool.held.discard(self._file)
        _let_go(self._file)


_copied: Final[weakref.WeakSet[File]] = weakref.WeakSet()
"""Lock files that a forked child must close: its copy would keep the parent's flock alive."""


def _let_go(file: File) -> None:
    _copied.discard(file)
    file.close()


def _after_fork() -> None:
    for file in [*_copied]:
        _let_go(file)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _read_note(file: File) -> bytes:
    """Raises OSError: an epoch that could not be read might be given out again."""
    return read_all(file, _MAX_NOTE, 0).partition(b"\n")[0]


def _owner_in(note: bytes) -> _Owner:
    """Nobody, if the note makes no sense."""
    try:
        owner = _decode_owner(note)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Owner()
    return owner if 0 <= owner.epoch < _MAX_EPOCH else _Owner(owner.pid, owner.since)


def _known_owner(file: File) -> _Owner:
    """For a refusal, which stands whether its note can be read or not."""
    try:
        return _owner_in(_read_note(file))
    except OSError:
        return _Owner()
