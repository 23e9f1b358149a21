"""What of a log is known to be on disk: syncs, the durable mark, poison, and bytes that are written again.

Bytes above the mark are *unproved* where this process does not know what became of an attempt to write them back:
in a log that another process left, and in one whose file the pool has closed meanwhile, since an error may then be
told to nobody. They are written again, the same bytes at the same place, before the next sync, and before anything
follows them.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

from .environment import Counters
from .errors import CorruptLog, HandleFenced, LogPoisoned, OutcomeUnknown, ReadFailed, WriteFailed
from .fs import File, rewrite
from .handle import Pin
from .view import LogView

_log = logging.getLogger(__name__)
_REWRITE_LIMIT: Final = 256 * 1024  # unproved bytes that are written again each time their file was closed
_UNBORN: Final[nullcontext[None]] = nullcontext()


class SyncedLog:
    """The part of a :class:`LogFile` that syncs. One thread at a time.

    ``durable`` is the durable mark: bytes below it are known to be on disk. It moves only when a sync of this very
    file has returned success. ``poison`` is the error that ended the log's life in this process, if any.
    """

    def __init__(
        self,
        path: str,
        *,
        counters: Counters,
        monotonic: Callable[[], float],
        sync_parents: Callable[[], None],
    ) -> None:
        self.path = path
        self.durable = 0
        self.poison: OSError | None = None
        self.counters = counters
        self.touched = False  # whether this process has appended or repaired
        self.clean = False  # whether the log ends with a closing frame
        self.frame_epoch = 0  # of the last frame
        self.replaced = False  # compacted: the path names another file now, or will
        self._monotonic = monotonic
        self._sync_parents = sync_parents
        self._names_synced = False
        self._view: LogView | None = None
        self._rewrite_from: int | None = None  # where unproved bytes begin; they go up to the end
        self._rewritten = False  # all of these, without a sync yet
        self._opening = 1  # of the file, as it was last used here
        self._doubted = False  # the file was closed meanwhile: look at the unproved bytes before they are rewritten

    @property
    def born(self) -> bool:
        return self._view is not None

    @property
    def view(self) -> LogView:
        assert self._view is not None
        return self._view

    @property
    def end(self) -> int:
        return self._view.end if self._view is not None else 0

    @property
    def synced(self) -> bool:
        """Whether every byte that matters is known to be on disk: a closing frame itself need not be."""
        return self.durable >= self.end or (self.clean and not self.touched)

    @property
    def anchored(self) -> bool:
        """Whether the log is in a file whose name is known to be on disk."""
        return self._view is not None and self._names_synced

    # --- the file ---------------------------------------------------------------------------------

    def _open(self) -> Pin | nullcontext[None]:
        """The file, which stays open for the length of a ``with`` statement; None before the log's birth."""
        if self._view is None:
            return _UNBORN
        try:
            pin = self._view.handle.pin()
        except OSError as error:
            raise WriteFailed(
                f"{self.path} could not be opened again ({error})",
                "nothing of this call was stored; raise the limit of open files or mend the disk and try again",
            ) from error
        if pin.opening != self._opening:
            if self.durable < self._view.end:
                self._rewrite_from = self.durable if self._rewrite_from is None else self._rewrite_from
                self._rewritten = False
                self._doubted = True
            self._opening = pin.opening
        return pin

    @property
    def costly(self) -> bool:
        """Whether its next append had better be synced: its file was closed for want of descriptors, and so much is
        unproved that a sync costs less than writing that again each time this happens."""
        view = self._view
        return view is not None and view.end - self.durable > _REWRITE_LIMIT and view.handle.opening != self._opening

    def check(self) -> None:
        """Raise if the log takes no more writes."""
        if self.replaced:
            raise HandleFenced(f"{self.path} was compacted, and this is the file before", "open the session again")
        if self.poison is not None:
            raise LogPoisoned(
                f"an earlier sync of {self.path} failed ({self.poison})",
                "close the session and open it again: that writes the unproved bytes once more",
            )

    # --- sync -----------------------------------------------------------------------------------

    def _sync_to(self, file: File, end: int) -> None:
        self._rewrite_from, self._rewritten = self.durable, False  # until this sync has said yes
        try:
            self._timed_sync(file)
        except OSError as error:
            raise self._poisoned(error) from error
        if not self._names_synced:
            self._sync_names()
        self.durable = end
        self._rewrite_from = None
        self.view.handle.unsynced = self.view.end > end

    def _sync_names(self) -> None:
        try:
            self._sync_parents()
        except OSError as error:
            raise self._poisoned(error) from error
        self._names_synced = True

    def sync_name(self) -> None:
        """Make the file's name durable. A failure poisons the log: :class:`OutcomeUnknown`."""
        if not self._names_synced:
            self._sync_names()

    def names_changed(self) -> None:
        """The file has been given its name, or will be: that is not durable yet."""
        self._names_synced = False

    def _poisoned(self, error: OSError) -> OutcomeUnknown:
        self.poison = error
        self.view.handle.unsynced = False  # there is nothing left to lose by closing it
        self.counters.failures += 1
        _log.error("sync of %s failed: %s; the log takes no more writes in this process", self.path, error)
        return self.unknown(error)

    def unknown(self, error: OSError) -> OutcomeUnknown:
        """What a failed sync means for those who waited for it."""
        return OutcomeUnknown(
            f"a sync of {self.path} failed ({error}): what was written since the last one may or may not be on disk",
            "close the session, open it again and look; then repeat what is missing",
        )

    def _timed_sync(self, file: File) -> None:
        started = self._monotonic()
        self.counters.syncs += 1
        file.sync()
        self.counters.sync_seconds += self._monotonic() - started

    def _rewrite_unproved(self, file: File) -> None:
        """Write the unproved bytes again: the same bytes, at the same place. Nothing may follow them before that: their
        pages may be clean and lost on disk, so that not even kill -9 would spare what follows them."""
        start, end = self._rewrite_from, self.end
        if start is None or self._rewritten:
            return
        if self._doubted:
            self._look_again(start)
        try:
            self.counters.bytes += rewrite(file, start, end)
        except OSError as error:
            raise self._not_rewritten(error) from error
        self._rewritten = True

    def _not_rewritten(self, error: Exception) -> WriteFailed:
        return WriteFailed(
            f"the unproved bytes of {self.path} could not be written again ({error})",
            "nothing was lost; make room or mend the disk and try again",
        )

    def _look_again(self, start: int) -> None:
        """While the file was closed the kernel may have dropped what it could not write, and told nobody."""
        try:
            self.view.verify(start)
        except CorruptLog as error:
            raise self._poisoned(OSError(errno.EIO, f"bytes that were not synced are lost: {error.cause}")) from error
        except ReadFailed as error:
            raise self._not_rewritten(error) from error
        self._doubted = False
