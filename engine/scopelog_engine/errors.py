"""Every error scopelog raises, grouped by when you meet it. Each says one sentence of cause and one of remedy.

::

    ScopelogError
    ├── InvalidInput            before anything was touched: fix the call
    │   ├── InvalidElement      not JSON, or not exactly representable
    │   ├── LimitExceeded       nesting, element or commit too large
    │   ├── InvalidId           session or scope id
    │   ├── InvalidAddress      namespace, key, tag or sequence; limit or order of a read
    │   └── MixedCommit         writes of more than one scope
    ├── OpenFailed              the store or session cannot be opened
    │   ├── StoreLocked         busy elsewhere: another handle owns the session
    │   ├── NotAStore           the directory holds something else
    │   ├── ForeignFile         the file belongs to another store or session
    │   ├── NewerFormat         written by a later major version
    │   ├── NoSuchSession       nothing of that name is stored
    │   └── UnsupportedPlatform
    ├── HandleUnusable          this handle is of no more use
    │   ├── HandleClosed        closed by you
    │   ├── HandleForked        used after fork
    │   └── HandleFenced        somebody else changed the files underneath
    ├── DurabilityError         broken underneath
    │   ├── WriteFailed         nothing of the call was stored: it may be tried again
    │   ├── OutcomeUnknown      a sync failed: the call may or may not be on disk
    │   └── LogPoisoned         refused because an earlier sync failed: reopen
    ├── CoalescerFailed         the address's coalescer raised or broke its contract
    ├── ReadFailed              the operating system could not read; never taken as an end of file
    └── CorruptLog              proved damage: path, offset, sequence, cause
"""

from __future__ import annotations

import os
from typing import Self


class ScopelogError(Exception):
    """Base of all errors. ``cause`` and ``remedy`` are one sentence each, without a full stop."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}; {remedy}")
        self.cause = cause
        self.remedy = remedy

    def again(self) -> Self:
        """The same error as a new object, for another caller that it also concerns; raise it ``from`` this one."""
        twin = type(self).__new__(type(self), *self.args)
        twin.args = self.args
        twin.__dict__.update(self.__dict__)
        return twin


class InvalidInput(ScopelogError, ValueError):
    """The call was refused before a sequence was taken or a byte was written."""


class InvalidElement(InvalidInput):
    """The element or value is not JSON, or would not come back exactly as it went in."""


class LimitExceeded(InvalidInput):
    """Nesting over 256, an element over 64 MiB, a commit over 256 MiB; a session's name over 1,024 bytes, its labels
    over 64 KiB."""


class InvalidId(InvalidInput):
    """A session or scope id that is empty, malformed or too long."""


class InvalidAddress(InvalidInput):
    """What names a place in a session and cannot: a namespace, key, prefix or tag; a sequence (a trim's ``upto``, a
    read's ``cursor``); a read's ``limit`` or ``order``."""


class MixedCommit(InvalidInput):
    """The writes of one commit do not share one scope."""


class OpenFailed(ScopelogError):
    """The store or session could not be opened; nothing was changed."""


class StoreLocked(OpenFailed):
    """Another handle owns the session. ``pid`` and ``since`` (ISO 8601, UTC) name it where known, else 0 and ''."""

    def __init__(self, cause: str, remedy: str, *, pid: int, since: str) -> None:
        super().__init__(cause, remedy)
        self.pid = pid
        self.since = since


class NotAStore(OpenFailed):
    """The path holds something that is not a scopelog store."""


class ForeignFile(OpenFailed):
    """A log whose header names another store or another session."""


class NewerFormat(OpenFailed):
    """A file of a later major format version."""


class NoSuchSession(OpenFailed, KeyError):
    """No session of that id is stored."""

    __str__ = Exception.__str__


class UnsupportedPlatform(OpenFailed):
    """The operating system or file system lacks what the engine stands on."""


class HandleUnusable(ScopelogError):
    """This handle takes no more calls; what was acknowledged is safe."""


class HandleClosed(HandleUnusable):
    """The handle was closed by you."""


class HandleForked(HandleUnusable):
    """The handle came through fork; only the process that opened it may use it."""


class HandleFenced(HandleUnusable):
    """The lock file was replaced, or a log's length changed, by somebody else.

    A byte changed in place is not noticed by the writer: ``check``, and the reads that meet it, do."""


class DurabilityError(ScopelogError):
    """The disk did not do what was asked."""


class WriteFailed(DurabilityError):
    """A write failed and was rolled back: nothing of the commit is stored; staged elements are kept."""


class OutcomeUnknown(DurabilityError):
    """A sync failed after the bytes were written: they may or may not survive. The log is poisoned."""


class LogPoisoned(DurabilityError):
    """The log takes no more writes in this process because a sync failed earlier."""


class CoalescerFailed(ScopelogError):
    """A coalescer raised or broke its contract; its elements were stored unjoined."""


class ReadFailed(ScopelogError):
    """The operating system could not read a file."""


class CorruptLog(ScopelogError):
    """Damage that is proved not to be a torn tail.

    ``path``: the file. ``offset``: first byte that does not continue the chain. ``sequence``: last good sequence
    before it. ``reason``: what failed there, e.g. ``checksum`` or ``sequence``.
    """

    def __init__(self, *, path: str, offset: int, sequence: int, reason: str, detail: str) -> None:
        remedy = (
            "read what is before it, salvage what is on both sides into a new session, or restore the file from a copy"
        )
        if os.path.basename(path) == "store.zst":
            remedy = "move it away: the sessions say which store they are of, and opening it for writing makes it again"
        super().__init__(f"{path} is damaged at offset {offset}, after sequence {sequence}: {detail}", remedy)
        self.path = path
        self.offset = offset
        self.sequence = sequence
        self.reason = reason
        self.detail = detail
