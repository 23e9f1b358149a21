"""Writing one log: append, sync, roll back, poison, close. One thread at a time; the session sees to that.

The order of operations of an append, which must not change:

1. refuse if poisoned, fence, roll back what an interrupted append left behind, write the unproved bytes again;
2. encode everything, reserve space;
3. one write: frames, then the cover of the space behind them;
4. sync, if asked;
5. adopt: ``view.end`` moves last. Until it has moved, the bytes are not there.
"""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Callable
from typing import Final

from .batch import Batch
from .environment import Counters
from .errors import DurabilityError, HandleFenced, OutcomeUnknown, ReadFailed, ScopelogError, WriteFailed
from .frame import encode_cover
from .fs import File, FileSystem, write_all
from .handle import Handle
from .header import Header, digest_of
from .layout import (
    CLOSE_INDEX_BYTES,
    PREALLOCATE_BYTES,
    SKIPPABLE_HEADER,
    STRETCH_BYTES,
    TEMP_SUFFIX,
)
from .lines import Line
from .survey import Survey, survey
from .syncing import SyncedLog
from .tail import Tail
from .view import LogView

_log = logging.getLogger(__name__)
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PREALLOCATION: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV)


class LogFile(SyncedLog):
    """The writer's side of one log."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        header: Header,
        *,
        epoch: int,
        sequence: int,
        counters: Counters,
        monotonic: Callable[[], float],
        sync_parents: Callable[[], None],
        by_rename: bool,
    ) -> None:
        """A log that does not exist yet: its first append creates it.

        ``by_rename`` (main): temp file, sync, rename, then ``sync_parents``. Otherwise (sidecars): in place, without
        a sync; ``sync_parents`` runs with the first sync. ``sequence`` is the high-water mark it begins above.
        """
        super().__init__(path, counters=counters, monotonic=monotonic, sync_parents=sync_parents)
        self.fs = fs
        self.header = header
        self.epoch = epoch
        self.last_sequence = sequence
        self.durable_sequence = 0
        self.epoch_durable = False  # whether a synced frame carries this epoch
        self.compact_at = math.inf  # a length that asks for a compaction
        self.compacted_to = 0  # its length after the last one in this process
        self.closing: tuple[int, bytes] | None = None  # the closing frame that this process has written, and where
        self._by_rename = by_rename
        self._digest = digest_of(header)
        self._previous = 0  # checksum of the last frame
        self._size = 0  # what the file's length must be: we are its only writer
        self._suspect = False  # an append was interrupted: cut back before anything else
        self._closed = False
        self._adopting = False  # and what is known of the open stretch may be half changed
        self._preallocate = by_rename and fs.preallocates

    @classmethod
    def reopen(
        cls,
        fs: FileSystem,
        path: str,
        handle: Handle,
        survey: Survey,
        size: int,
        *,
        epoch: int,
        counters: Counters,
        monotonic: Callable[[], float],
        sync_parents: Callable[[], None],
        by_rename: bool,
        proved: bool,
    ) -> LogFile:
        """An existing log after recovery, ``size`` bytes long. ``proved``: recovery has rewritten and synced all of it.

        Otherwise the bytes above the durable mark are written again before the first sync: their pages may be clean
        in memory and lost on disk, if an earlier process met a failed sync. A closing frame's mark is its own
        offset, so after a clean close these are some twenty bytes.
        """
        log = cls(
            fs,
            path,
            survey.header,
            epoch=epoch,
            sequence=survey.sequence,
            counters=counters,
            monotonic=monotonic,
            sync_parents=sync_parents,
            by_rename=by_rename,
        )
        log._view = LogView.of_survey(handle, path, survey)
        log._previous = survey.last.checksum
        log._size = size
        log.clean = survey.clean and log._size == survey.end
        log.frame_epoch = survey.last.epoch
        log.durable = survey.end if proved else survey.mark
        log.durable_sequence = survey.sequence if proved or survey.clean else survey.marked_sequence
        log._rewrite_from = None if proved else survey.mark
        handle.unsynced = not proved and not log.clean
        # A mark is written only after they were; but in a compacted log its closing frame has one before its rename is
        # durable, and whoever renamed it may have died then.
        log._names_synced = survey.mark > 0 and survey.header.generation == 0
        return log

    # --- append ---------------------------------------------------------------------------------

    def append(self, lines: list[Line], wall_ms: int, *, sync: bool, crowd: bool = False) -> None:
        """Store the lines, one commit or window each, in order, and sync if asked. All of them or none.

        ``crowd``: much else is to be stored, so that time counts for more than size.
        Raises :class:`WriteFailed` (nothing is stored), :class:`OutcomeUnknown` (a sync failed: the bytes are in the
        file, may or may not survive, and are not shown in this process),
        :class:`LogPoisoned`, :class:`HandleFenced`.
        """
        with self._open() as file:
            self._append(file, lines, wall_ms, sync, crowd)

    def _append(self, file: File | None, lines: list[Line], wall_ms: int, sync: bool, crowd: bool) -> None:
        self._fence(file)
        if self._suspect:
            self._mend(file)
        if file is not None:
            self._rewrite_unproved(file)
        batch = self._new_batch()
        if self._view is None:
            tail = batch.begin()
        else:
            tail = self._view.growing_tail
            if tail.length >= STRETCH_BYTES:
                tail = batch.close_stretch(tail)
        self._adopting = self._suspect = True  # until it is undone, or adopted: an interruption may come anywhere
        try:
            batch.add(lines, tail, wall_ms, waiting=sync, crowd=crowd)
            data = batch.data()
        except BaseException:
            tail.table.undo()
            self._adopting = self._suspect = False
            raise
        try:
            if self._view is None or file is None:
                self._create(data, sync)
            else:
                self._write(file, data)
                if sync:
                    self._sync_to(file, batch.end)
        except OSError as error:
            self._abandon(file, tail)
            raise WriteFailed(
                f"{self.path} could not be written ({error})",
                "nothing of this call was stored; make room or mend the disk and try again",
            ) from error
        except OutcomeUnknown:
            tail.table.undo()  # the bytes stay, but not for this process: the log takes no more writes in it
            raise
        except BaseException:
            self._abandon(file, tail)
            raise
        self._adopt(tail, batch, lines)

    def _fence(self, file: File | None) -> None:
        """Raise if the log takes no more writes, or if somebody else has changed its length."""
        self.check()
        if file is not None and not self._suspect:
            size = file.size()
            if size != self._size:
                raise HandleFenced(
                    f"{self.path} is {size} bytes long, not {self._size} as this writer left it",
                    "find the other writer, then open the session again",
                )

    def _new_batch(self) -> Batch:
        return Batch(
            self.header,
            self._digest,
            epoch=self.epoch,
            mark=self.durable,
            offset=self.end,
            previous=self._previous,
            sequence=self.last_sequence,
        )

    def _write(self, file: File, data: bytes) -> None:
        view = self.view
        new_end = view.end + len(data)
        if self._preallocate and new_end + SKIPPABLE_HEADER > self._size:
            self._reserve(file, new_end + SKIPPABLE_HEADER + PREALLOCATE_BYTES)
        if self._size >= new_end + SKIPPABLE_HEADER:
            data += encode_cover(self._size - new_end)
        if file.pwrite(data, view.end) != len(data):  # a short write: again, and on from there
            write_all(file, data, view.end)
        if new_end < self._size < new_end + SKIPPABLE_HEADER:  # too little left to cover
            file.truncate(new_end)
            self._size = new_end
        self._size = max(self._size, new_end)
        self.counters.appends += 1
        self.counters.bytes += len(data)

    def _reserve(self, file: File, size: int) -> None:
        try:
            file.allocate(self._size, size - self._size)
        except OSError as error:
            if error.errno in _NO_PREALLOCATION:
                self._preallocate = False
            elif error.errno not in _NO_ROOM:
                raise
            # No room to reserve: the write itself will tell whether there is room for the frame.
            file.truncate(self._size)
            return
        self._size = size

    def _create(self, data: bytes, sync: bool) -> None:
        """The log's birth: header and first batch in one write."""
        temp = self.path + TEMP_SUFFIX if self._by_rename else self.path
        try:
            handle = Handle.create(self.fs, self.path, temp)
        except FileExistsError:  # left by an interrupted birth of this very log: nothing of it was acknowledged
            self.fs.unlink(temp)
            handle = Handle.create(self.fs, self.path, temp)
        try:
            with handle.pin() as file:
                self._fill(handle, file, temp, data, sync)
        except BaseException:
            if self._view is None:
                handle.close()  # the file itself is removed by _mend
            raise

    def _fill(self, handle: Handle, file: File, temp: str, data: bytes, sync: bool) -> None:
        size = len(data)
        if self._preallocate:
            self._size = 0
            self._reserve(file, len(data) + SKIPPABLE_HEADER + PREALLOCATE_BYTES)
        covered = data
        if self._size > len(data):
            size = self._size
            covered = data + encode_cover(size - len(data))
        write_all(file, covered, 0)
        self._size = size
        if self._by_rename:
            self._timed_sync(file)
            self.fs.rename(temp, self.path)
        view = LogView(handle, self.path, self.header, 0)
        view.tail = Tail(0, 0)
        self.counters.appends += 1
        self.counters.bytes += len(covered)
        self._opening = 1
        self._view = view
        if self._by_rename:
            self._sync_names()
            self.durable = len(data)
        elif sync:
            self._sync_to(file, len(data))

    def _adopt(self, tail: Tail, batch: Batch, lines: list[Line]) -> None:
        for (span, data), notes in zip(batch.spans, batch.notes, strict=True):
            tail.defer(span, notes, data)
        view = self.view
        view.tail = tail
        self._previous = batch.previous
        if lines:
            self.last_sequence = lines[-1].last
        if self.durable >= batch.end:
            self.durable_sequence = self.last_sequence
            self.epoch_durable = True
        self.counters.frames += len(batch.spans)
        self.touched = True
        self.clean = False
        self.frame_epoch = self.epoch
        view.handle.unsynced = self.durable < batch.end
        view.end = batch.end  # the commit point in memory: only the flags may follow
        self._adopting = False
        self._suspect = False

    def _abandon(self, file: File | None, tail: Tail) -> None:
        """After a failed append: forget what it defined, and mend the file now if that is possible."""
        self.counters.failures += 1
        tail.table.undo()
        self._adopting = False
        try:
            self._mend(file)
        except DurabilityError:
            _log.warning("%s could not be cut back after a failed write; it will be before the next one", self.path)

    def take_back(self) -> None:
        """Undo what an interrupted append left behind, now if that can be: it will be told as not stored."""
        if not self._suspect or self.poison is not None:
            return
        try:
            with self._open() as file:
                self._mend(file)
        except (ScopelogError, OSError) as error:
            _log.warning("%s could not be cut back after an interrupted write: %s", self.path, error)

    def _mend(self, file: File | None) -> None:
        """Undo what an append left behind that was not adopted."""
        if file is not None and self._view is not None and self._view.end > 0:
            self._cut_back(file)
            return
        if self._view is not None:  # the log's birth was not finished
            view, self._view = self._view, None
            view.handle.close()
        for path in (self.path + TEMP_SUFFIX, self.path):
            self._remove(path)
        self._names_synced = False
        self._size = self.durable = 0
        self._suspect = self._adopting = False

    def _remove(self, path: str) -> None:
        try:
            if self.fs.exists(path):
                self.fs.unlink(path)
        except OSError as error:
            _log.warning("%s could not be removed: %s; the next attempt replaces it", path, error)

    def _cut_back(self, file: File) -> None:
        """Cut the file to the last whole frame that was adopted."""
        view = self.view
        try:
            file.truncate(view.end)
        except OSError as error:
            raise WriteFailed(
                f"{self.path} could not be cut back to its last whole frame ({error})",
                "nothing of this call was stored; mend the disk and try again",
            ) from error
        self._size = view.end
        self.durable = min(self.durable, view.end)
        if self._rewrite_from is not None and self._rewrite_from >= view.end:
            self._rewrite_from = None
        if self._adopting:  # interrupted while memory was being brought up to date: ask the file instead
            found = survey(file, self.path)
            self._view = LogView.of_survey(view.handle, self.path, found)
            self._previous = found.last.checksum
            self.last_sequence = found.last.last
            self._adopting = False
        self._suspect = False

    # --- sync -----------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything appended so far durable. A failure poisons the log: :class:`OutcomeUnknown`."""
        with self._open() as file:
            self._sync(file)

    def _sync(self, file: File | None) -> None:
        self._fence(file)
        if self._suspect:
            self._mend(file)
        if file is not None and self._view is not None and not (self.synced and self.anchored):
            self._rewrite_unproved(file)
            self._sync_to(file, self.end)
            self.durable_sequence = self.last_sequence

    # --- close ----------------------------------------------------------------------------------

    def close(self, *, clean: bool, last: Callable[[LogView, int], object] | None = None) -> None:
        """Let go of the file. ``clean``: sync first, then say so with a closing frame; else leave it as it is.

        ``last`` is called with the view and the durable mark when all that is done, before the file is let go.

        A sync failure raises :class:`OutcomeUnknown`, with the file let go. A closing frame that cannot be written
        is no loss (the next open takes the end as unproved): it is logged.
        """
        if self._view is None or self._closed:
            return
        try:
            if clean and self.poison is None and (self.touched or not self.clean):
                self._close_cleanly()
            if last is not None and self.poison is None:
                last(self.view, self.durable)
        finally:
            self._closed = True
            self.view.handle.close()

    def _close_cleanly(self) -> None:
        try:
            with self._open() as file:
                self._sync(file)
                if file is not None:
                    self._write_closing(file)
        except (WriteFailed, ReadFailed, OSError) as error:
            if self._suspect or not (self.synced and self.anchored):
                raise
            self._not_closed(error)

    def _not_closed(self, error: Exception) -> None:
        self.counters.failures += 1
        _log.warning("%s could not be closed cleanly: %s; all that was acknowledged is on disk", self.path, error)

    def _write_closing(self, file: File) -> None:
        view = self.view
        batch = self._new_batch()
        if view.tail.length >= CLOSE_INDEX_BYTES:
            batch.close_stretch(view.tail)
            closing = batch.close(view.end)  # the index frame is not synced
        else:
            closing = batch.close(batch.end)
        data = batch.data()
        try:
            file.truncate(view.end)  # first: no state in between is odd, all before it is synced
            write_all(file, data, view.end)
        except OSError as error:
            self._not_closed(error)
            return
        self.closing = (batch.end - len(closing), closing)
        self.counters.bytes += len(data)
