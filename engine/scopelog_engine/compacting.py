"""Compaction of an open session: a log is written anew beside its writer, and takes its place while nobody stores.

Until the rename the old file counts, and a crash leaves nothing but a file that the next open sweeps; from then on the
new one does, which was durable before it got its name. Both hold everything that was acknowledged.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from functools import partial
from typing import Final, NamedTuple

import msgspec

from .compact import Rewrite, alive_in, floor_and_lives
from .errors import HandleUnusable, ScopelogError, WriteFailed
from .frame import Frame
from .handle import Handle, Pin
from .header import KIND_MAIN, Header
from .info import totals_of
from .layout import FORMAT_MAJOR, FORMAT_MINOR, TEMP_SUFFIX, scope_file_sequence
from .lines import RETIRE, Record
from .logfile import LogFile
from .reading import Reading
from .scope import ScopeState, sequence_of
from .state import PERSISTENCE
from .stretch import Closed
from .survey import survey
from .tail import Tail
from .view import LogView
from .workers import COMPACTORS

ROTATE_BYTES: Final = 4 * 1024 * 1024  # a log below this is not rotated
_SYNCS: Final = 3  # of the new file
ROTATE_TIMES: Final = 4  # nor one that has not grown so many times since

_log = logging.getLogger(__name__)


class Compacted(NamedTuple):
    """Bytes of a log before and after, preallocated space left out; both 0 where there was nothing to compact."""

    before: int
    after: int


class Compacting(Reading):
    """The part of a session that compacts."""

    def compact(self, scope: str) -> Compacted:
        """Write the log of a living scope anew, without what later records have made void; see scopes/README.md.

        Others go on: they are held up only while what came in meanwhile is copied. One at a time a session. Raises
        :class:`CorruptLog`, :class:`ReadFailed`, :class:`NewerFormat`, :class:`WriteFailed`, with nothing changed;
        :class:`OutcomeUnknown` if the log or the new file's name could not be synced: it takes no more writes then.
        """
        self._refuse_reentry()
        me = threading.get_ident()
        try:
            with self._lock:
                while self._compacting not in (0, me):  # our own number: left by an interruption
                    self._wait()
                self._check()
                self._compacting = me
            done = self._compact(scope)
            self._end_compaction(me)
            return done
        except BaseException:
            for _ in range(PERSISTENCE):  # in this very frame: a second interruption may meet the call itself
                try:
                    self._end_compaction(me)
                    break
                except BaseException:  # noqa: BLE001 - the first one is raised
                    continue
            raise

    def _end_compaction(self, me: int) -> None:
        """Let the next one begin; may be done twice."""
        with self._lock:
            if self._compacting == me:
                self._compacting = 0
                self._tell()

    def rotate(self, scope: str) -> None:
        """Much of a scope's log has become void: have it compacted, by a thread, if it is long enough for that."""
        with self._lock:
            state = self._scopes.get(scope)
            log = state.log if state is not None else None
            if log is None or log.end < max(ROTATE_BYTES, ROTATE_TIMES * log.compacted_to):
                return
            log.compacted_to = log.end  # until that is done; and if it fails, not before it has grown as much again
            COMPACTORS.submit(partial(self._compact_soon, log, scope))

    def _plan_soon(self, log: LogFile, scope: str) -> None:
        """Of a log that was compacted by an earlier handle: find how long it was then, and plan on from there."""
        try:
            with self._lock:
                state = self._readable(scope)
                if state is None or state.log is not log:
                    return
                view = self._snapshot(state)
            assert view is not None
            try:
                length = _length_compacted(view)
            finally:
                view.let_go()
        except HandleUnusable:
            return
        except ScopelogError as error:
            _log.warning("%s will not be compacted by itself: %s", log.path, error.cause)
            return
        with self._lock:
            if math.isinf(log.compact_at):
                self._plan_compaction(log, length)

    def _compact_soon(self, log: LogFile, scope: str) -> None:
        try:
            done = self.compact(scope)
        except HandleUnusable as error:
            _log.debug("%s was not compacted: %s", log.path, error.cause)  # the session was closed meanwhile
        except ScopelogError as error:
            _log.warning("%s was not compacted: %s", log.path, error.cause)
            self._plan_compaction(log, log.end)
        else:
            _log.debug("%s: compacted from %d to %d bytes", log.path, done.before, done.after)

    def _compact(self, scope: str) -> Compacted:
        with self._lock:
            state = self._readable(scope)
            log = state.log if state is not None else None
            if state is None or log is None:
                return Compacted(0, 0)
            log.check()
            view = self._snapshot(state)
            assert view is not None
            header = self._next_header(state, log, view)
        try:
            return self._replace(state, log, view, header)
        except OSError as error:
            raise WriteFailed(
                f"{log.path} could not be compacted ({error})",
                "nothing was changed; make room or mend the disk and try again",
            ) from error
        finally:
            view.let_go()

    def _next_header(self, state: ScopeState, log: LogFile, view: LogView) -> Header:
        """Of the file to come: what the one that stands there at this moment ends with. Holds ``_lock``."""
        old = log.header
        header: Header = msgspec.structs.replace(
            old,
            scopelog=(FORMAT_MAJOR, FORMAT_MINOR),
            generation=old.generation + 1,
            high=log.last_sequence,
            high_epoch=old.high_epoch if log.last_sequence == old.high else log.frame_epoch,
        )
        if old.kind != KIND_MAIN:
            return header
        others = [other for other in self._scopes.values() if other is not state]
        living = [other.log.header.first for other in others if other.log is not None]
        waiting = [[*other.pending, *other.aside] for other in others if other.log is None]
        unborn = [min(map(sequence_of, entries)) for entries in waiting if entries]
        # A file that could not be read may hold a life: the floor lies below it, so its retirement is kept as well.
        unread = [scope_file_sequence(os.path.basename(one.path)) for one in self.recovery.unreadable]
        unborn += [first for first in unread if first is not None]
        floor, lives = floor_and_lives(log.last_sequence, living, unborn)
        if floor < old.floor:  # what was dropped below the old one is told by nothing else
            floor, lives = old.floor, tuple(first for first in old.lives if first in living or first in unread)
        updated = max(totals_of(view).time, old.updated)
        changed: Header = msgspec.structs.replace(header, floor=floor, lives=lives, updated=updated)
        return changed

    # --- the file ---------------------------------------------------------------------------------

    def _replace(self, state: ScopeState, log: LogFile, view: LogView, header: Header) -> Compacted:
        fs = self._env.fs
        temp = log.path + TEMP_SUFFIX
        if fs.exists(temp):  # left by an interruption
            fs.unlink(temp)
        alive = alive_in(view)

        def needed(record: Record) -> bool:
            if self._unusable is not None:  # closing waits for us
                raise self._unusable.again() from self._unusable
            return record.sequence > header.floor if record.code == RETIRE else alive.needs(record)

        handle = Handle.create(fs, log.path, temp)
        try:
            pin = handle.pin()  # it stays open until it has its name
            rewrite = Rewrite(pin.file, header, epoch=self.epoch)
            last = rewrite.copy(view, needed)
            rewrite.store()
            return self._take_over(state, log, rewrite, last, pin, handle, temp)
        finally:
            if state.log is None or not state.log.born or state.log.view.handle is not handle:
                handle.close()
                self._remove_temp(temp)

    def _remove_temp(self, temp: str) -> None:
        try:
            if self._env.fs.exists(temp):
                self._env.fs.unlink(temp)
        except OSError as error:
            _log.warning("%s could not be removed: %s; the next open does", temp, error)

    def _take_over(
        self, state: ScopeState, log: LogFile, rewrite: Rewrite, last: Frame, pin: Pin, handle: Handle, temp: str
    ) -> Compacted:
        """While nobody stores: copy what came in, give the file its name, and go on with it."""
        me = threading.get_ident()
        fresh: LogFile | None = None
        done = Compacted(0, 0)
        try:
            with self._lock:
                self._wait_for_the_leader()
                self._check()
                self._leader = me
            if not state.gone and state.log is log:  # else it was retired meanwhile
                log.check()
                self._writer_lock.check()
                # The new file says that all of it is durable. A power cut may undo the rename: so the old one must be.
                if state is not self._main:
                    self._anchor(log)
                log.sync()
                before = log.end
                rewrite.copy(log.view, lambda _: True, after=last)
                rewrite.finish(log.last_sequence)
                fresh = self._successor(log, handle, pin)
                log.replaced = True  # before the rename: from here on no append may go to the old file
                self._env.fs.rename(temp, log.path)
                self._go_on_with(state, log, fresh, pin)
                self.counters.bytes += fresh.end
                self.counters.syncs += _SYNCS
                fresh.sync_name()  # the old file must not come back: what is appended from now on is in this one alone
                done = Compacted(before, fresh.end)
            self._step_down(state, log, fresh, pin, me)
        except BaseException:
            for _ in range(PERSISTENCE):  # in this very frame: a second interruption may meet the call itself
                try:
                    self._step_down(state, log, fresh, pin, me)
                    break
                except BaseException:  # noqa: BLE001 - the first one is raised
                    continue
            raise
        if self._doomed:
            self._unlink_doomed()
        return done

    def _go_on_with(self, state: ScopeState, log: LogFile, fresh: LogFile, pin: Pin) -> None:
        """The log is whichever file has the name. May be done twice."""
        if state.log is not log:
            return
        try:
            renamed = self._env.fs.identity(log.path) == pin.file.identity()
        except OSError as error:
            _log.error("%s: it is not known which file has the name: %s", log.path, error)
            return  # the log stays fenced
        if not renamed:
            log.replaced = False
            return
        with self._lock:
            state.log = fresh
            if state is self._main:
                self._undurable.clear()
                if self._index is not None:
                    self._index.forget()
        log.view.handle.close()

    def _step_down(self, state: ScopeState, log: LogFile, fresh: LogFile | None, pin: Pin, me: int) -> None:
        if log.replaced and fresh is not None:
            self._go_on_with(state, log, fresh, pin)
        if state.log is not None and state.log.poison is not None:
            state.blocked = True
        if self._leader == me:
            self._conclude()

    def _successor(self, log: LogFile, handle: Handle, pin: Pin) -> LogFile:
        found = survey(pin.file, log.path)
        fresh = self.log_of(log.path, handle, found, found.size, proved=True)
        fresh.epoch_durable = True
        fresh.compacted_to = fresh.end
        self._plan_compaction(fresh, fresh.end)
        fresh.names_changed()
        return fresh


def _length_compacted(view: LogView) -> int:
    """About how long the log was after its last compaction: up to the newest stretch that holds nothing younger."""
    stretch: Tail | Closed = view.tail
    while stretch.first > view.header.high and stretch.previous:
        stretch = view.before(stretch)
    return stretch.end if stretch.first <= view.header.high else stretch.start
