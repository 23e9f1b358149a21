"""Open files are scarce: the log files of a process that are open, and which of them is closed for the next one.

A session holds its lock file open, for the lock ends with the descriptor. Its logs, one for main and one for each
living scope, are opened when they are used and closed when others need the room: the least recently used first, of
the oldest few rather one that is synced, and never one that is in use (:mod:`handle` says how that is known).

The limit follows the process's own (the soft RLIMIT_NOFILE): three quarters of it, less the files that are held open
on purpose (locks, readers' files), and never less than :data:`LEAST`. What is left is the host application's.

There is no lock here, because a pin must cost next to nothing, and because a lock can be left behind by an
interruption: every step is one atomic operation on the ordered dict. Two threads that race may close one file more
than they had to; an interruption may leave an open file out of the order until it is used again.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import OrderedDict
from typing import Final, Protocol
from weakref import WeakSet, ref

if sys.platform != "win32":
    import resource

LEAST: Final = 8
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_MOST: Final = 16 * 1024  # also where the process has no limit
_NEAR: Final = 8  # how many of the oldest are looked at for one that is synced


class Pooled(Protocol):
    """A file that can be opened again."""

    unsynced: bool
    """Whether closing it has a price: see :mod:`syncing`."""

    def evict(self) -> bool:
        """Close the file and tell the pool so, unless it is in use: False then."""

    def after_fork(self) -> None:
        """In the child: close the copy for good."""


Key = ref[Pooled]


class Pool:
    """The open log files of one file system. Thread-safe.

    ``fixed``: how many may be open, None to follow the process's limit. ``held``: open files that are not the pool's
    to close; they lessen that limit. ``evictions``: how many were closed for others, roughly.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self.fixed = fixed
        self.held: WeakSet[object] = WeakSet()
        self.evictions = 0
        self._open: OrderedDict[Key, None] = OrderedDict()  # least recently used first; weak: who drops a log may
        _pools.add(self)

    def __len__(self) -> int:
        """How many are open."""
        return sum(1 for key in [*self._open] if key() is not None)

    @property
    def limit(self) -> int:
        """How many may be open now. Those in use are never closed, so that for a while it may be more."""
        if self.fixed is not None:
            return self.fixed
        return max(LEAST, _process_limit() // 4 * 3 - len(self.held))

    def used(self, key: Key) -> None:
        """The file is open, and was used just now."""
        try:
            self._open.move_to_end(key)
        except KeyError:
            self._open[key] = None

    def closed(self, key: Key) -> None:
        self._open.pop(key, None)

    def make_room(self) -> None:
        """Before one more file is opened: close as many as that takes, if so many are not in use."""
        limit = self.limit
        while len(self._open) >= limit and self._evict():
            pass

    def shrink(self) -> bool:
        """The process has no descriptor left: close a good part of the files. False if none could be closed."""
        wanted = max(LEAST, len(self._open) // 4)
        done = 0
        while done < wanted and self._evict():
            done += 1
        return done > 0

    def _evict(self) -> bool:
        order = [*self._open]
        cheap = [key for key in order[:_NEAR] if (one := key()) is not None and not one.unsynced]
        for key in (*cheap, *order):
            one = key()
            if one is None:
                self.closed(key)  # its file went with it
                return True
            if one.evict():
                self.evictions += 1
                return True
        return False

    def after_fork(self) -> None:
        """In the child: close the copies of the parent's files, and know of none."""
        for key in [*self._open]:
            one = key()
            if one is not None:
                one.after_fork()
        for other in [*self.held]:  # locks let go of their own
            close = getattr(other, "after_fork", None)
            if close is not None:
                close()
        self._open.clear()
        self.held.clear()


_pools: Final[WeakSet[Pool]] = WeakSet()
SYSTEM: Final = Pool()
"""Of the operating system's files, however many stores are open."""


def _process_limit() -> int:
    if sys.platform == "win32":
        return _MOST
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)


def _after_fork() -> None:
    for pool in [*_pools]:
        pool.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
