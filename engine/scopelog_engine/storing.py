"""Storing: what one thread at a time, the leader, does with what was admitted to a session.

Whoever finds work and no leader leads: it takes what is asked for from every scope (under ``_lock``), writes one batch
a log (without it) and settles (under it). Everybody else waits for the outcome of their own ticket.

An exception may arrive anywhere (KeyboardInterrupt, MemoryError). So the work in hand stands in ``_work`` until it is
settled; settling is done from what the log itself says, may be done twice, and is finished by the next one who comes.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from .clock import wall_time
from .durability import Durability
from .errors import CoalescerFailed, HandleFenced, OutcomeUnknown, ScopelogError, WriteFailed
from .feeds import EndReason
from .handle import Handle
from .header import KIND_MAIN, KIND_SCOPE, new_header
from .layout import MAIN_FILE, scope_file_name
from .lines import Line, commit_line, new_tuple
from .logfile import LogFile
from .looping import GRACE, Looping
from .scope import (
    FIRST_BACKOFF,
    Commit,
    ScopeState,
    Staged,
    Ticket,
    last_of,
    sequence_of,
)
from .staging import join, window_lines
from .state import PERSISTENCE, Outcome, Work, staged_bytes, staged_of
from .survey import Survey
from .workers import COMPACTORS

_log = logging.getLogger(__name__)
_DOOMED_LIMIT: Final = 128  # files of retired scopes that wait for a sync, before one is made for them
COMPACT_BYTES: Final = 1024 * 1024  # a log below this is not compacted by itself
_CROWD: Final = 4  # scopes stored in one go from which on they are a crowd
_POWER: Final = Durability.POWER  # an enum's members are slow to look up


def unasked(failure: OSError) -> WriteFailed:
    """What a caller is told where the disk did not even say how a log stands."""
    error = WriteFailed(f"the disk could not be asked ({failure})", "mend it and try again")
    error.__cause__ = failure
    return error


class Storing(Looping):
    """The half of a session that stores. See the module's docstring."""

    # --- tickets ----------------------------------------------------------------------------------

    def _run(self, ticket: Ticket) -> None:
        """Wait for a ticket, leading if nobody does, and raise its error. Does not hold ``_lock``."""
        self._refuse_reentry()
        while not ticket.done:
            if self._lead(ticket=ticket):
                continue
            with self._lock:
                if not ticket.done and (self._leader or self._gate):
                    self._wait()
        if ticket.error is not None:
            raise ticket.error.again() from ticket.error

    def _lead(self, most: int | None = None, ticket: Ticket | None = None) -> bool:
        """Store what is asked for, unless somebody else does; never waits. Does not hold ``_lock``.

        ``most``: of that many ephemeral scopes at a time. ``ticket``: what the caller waits for; done, there is no
        need.
        """
        me = threading.get_ident()
        try:
            with self._lock:
                if self._leader or self._gate or (not self._asked if ticket is None else ticket.done):
                    return False
                self._leader = me
                self._begin(most)
            for work in self._work:
                work.outcome = self._store(work)
            self._conclude()
            if self._doomed:
                self._unlink_doomed()
        except BaseException:
            for _ in range(PERSISTENCE):  # in this very frame: a second interruption may meet the call itself
                try:
                    if self._leader == me:
                        self._conclude(interrupted=True)
                    break
                except BaseException:  # noqa: BLE001 - the first one is raised
                    continue
            raise
        return True

    def _wait_or_lead(self) -> None:
        """As :meth:`_wait`; what is asked for and nobody stores is stored here first: who was to may be a loop, and the
        loop may be this thread's."""
        if not self._asked or self._leader or self._gate:
            self._wait()
            return
        self._across(partial(self._without_lock, self._lead))

    def _run_all(self, tickets: Sequence[Ticket]) -> None:
        """As :meth:`_run`, for many; raises the first error once all are done."""
        failure: ScopelogError | None = None
        for ticket in tickets:
            try:
                self._run(ticket)
            except ScopelogError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    # --- the flusher ------------------------------------------------------------------------------

    def flush_due(self, now: float) -> float | None:
        """Store every window whose deadline has passed; the flusher calls this. Returns the next deadline."""
        with self._lock:
            if self._unusable is not None:
                return None
            late = 0.0 if self._timer is None else GRACE  # a loop's business first
            due, _ = self._ask_due(now - late)
            if due:  # the loops have ended, are held by something else, or were interrupted: ask them anew next time
                self._timer = None
                self._led_soon.clear()
        for state, ticket in due:
            self._flush_in_background(state, ticket)
        with self._lock:
            late = 0.0 if self._timer is None else GRACE
            waiting = [s.deadline for s in self._scopes.values() if s.deadline is not None and not s.retiring]
            return min(waiting) + late if waiting else None

    def _ask_due(self, now: float) -> tuple[list[tuple[ScopeState, Ticket]], float | None]:
        """Ask for every window whose deadline has passed; returns the tickets and the next deadline."""
        due: list[tuple[ScopeState, Ticket]] = []
        again: float | None = None
        for state in self._scopes.values():
            if state.deadline is None or state.retiring:
                continue
            if state.deadline <= now:
                state.deadline = None
                ticket = Ticket(last_of(state.pending), state.level, background=True)
                due.append((state, ticket))
                self._ask(state, ticket)
            elif again is None or state.deadline < again:
                again = state.deadline
        return due, again

    def _flush_in_background(self, state: ScopeState, ticket: Ticket) -> None:
        try:
            self._run(ticket)
        except ScopelogError:
            return  # raised at the next call: _settle saw to that
        except Exception as error:  # noqa: BLE001 - the flusher must outlive anything: it is raised at the next call
            _log.error("flushing %s failed: %s", self.directory, type(error).__name__)
            with self._lock:
                if ticket in state.tickets:  # interrupted before it was begun
                    self._give_up(state, ticket, _leader_failed(error))

    def _fail_tasks(self, error: Exception) -> None:
        """A loop that led met an error which is no scopelog's: those who would wait for ever are told."""
        _log.error("storing %s failed: %s", self.directory, type(error).__name__)
        failure = _leader_failed(error)
        with self._lock:
            for state in [*self._asked]:
                for ticket in [*state.tickets]:
                    if ticket.background or ticket.waiter is not None:
                        self._give_up(state, ticket, failure)
            self._wake()

    def _give_up(self, state: ScopeState, ticket: Ticket, failure: ScopelogError) -> None:
        """A ticket that nobody has in hand fails. Holds ``_lock``."""
        ticket.error = failure  # first: who sees that it is done looks no further
        if isinstance(ticket, Commit):
            self._withdraw(ticket)
        elif ticket in state.tickets:
            state.tickets.remove(ticket)
        ticket.done = True
        if ticket.waiter is not None:
            self._woken.append(ticket.waiter)
        if ticket.background and not state.gone:
            state.fail(failure)
            if state.pending:
                self._retry_later(state)

    def flusher_failed(self, error: Exception) -> None:
        """The flusher met an error outside of any scope: raise it at the next call, and try again."""
        failure = _leader_failed(error)
        with self._lock:
            for state in self._scopes.values():
                if state.pending:
                    state.fail(failure)
                    state.deadline = None
                    self._retry_later(state)

    # --- the leader -------------------------------------------------------------------------------

    def _begin(self, most: int | None) -> None:
        """Take what is asked for into ``_work``: ephemeral scopes first, main with its retirements last.

        ``most``: of no more scopes than that, unless main is asked for a retirement: it must not overtake a commit of
        its scope.
        """
        main = self._main
        if most is not None and any(isinstance(ticket, Commit) and ticket.retires for ticket in main.tickets):
            most = None
        left: list[ScopeState] = []
        for state in self._asked:
            if state.tickets and state is not main:
                if most is not None and len(self._work) >= most:
                    left.append(state)
                else:
                    self._take(state)
        if main.tickets:
            self._take(main)
        self._asked = left

    def _take(self, state: ScopeState) -> None:
        pending = state.pending
        tickets = state.tickets
        later: list[Ticket] = []
        if state.aside:  # what is set aside waits for its retirement
            highest = last_of(pending)
            later = [ticket for ticket in tickets if ticket.target > highest]
            tickets = [ticket for ticket in tickets if ticket.target <= highest]
        target = 0
        for ticket in tickets:
            target = max(target, ticket.target)
        count = bisect_right(pending, target, key=sequence_of)
        if state is self._main and len(self._doomed) >= _DOOMED_LIMIT:
            tickets = [*tickets, Ticket(0, _POWER)]  # a session at PROCESS: its retired scopes' files pile up
        # From here on an interruption leaves the tickets in two places at most, never in none.
        self._work.append(Work(state, pending[:count], tickets))
        state.deferred += later
        state.tickets = []
        state.deadline = None
        if len(pending) > count and not state.retiring:
            self._open_window(state)

    def _conclude(self, *, interrupted: bool = False) -> None:
        """Settle the work in hand and step down. Interrupted, it is called again (see :meth:`_run`)."""
        with self._lock:
            self._finish(interrupted)

    def _finish(self, interrupted: bool) -> None:
        """What :meth:`_conclude` does, under ``_lock``; may be called again after an interruption."""
        while self._work:
            work = self._work[0]
            log = work.log
            if work.outcome is None and log is not None:  # interrupted: the log itself says what became of it
                if log.end > work.before:
                    work.outcome = Outcome(None, None, None, True)
                elif log.poison is not None and not work.poisoned:
                    work.outcome = Outcome(None, None, log.unknown(log.poison), False)
            if work.outcome is None:
                if log is not None:
                    log.take_back()
                self._ask_again(work)
            else:
                self._settle(work, work.outcome)
            del self._work[0]
        if interrupted:
            self._bytes = sum(staged_bytes(staged_of(s.pending) + s.aside) for s in self._scopes.values())
        self._gate = self._readers
        if self._requests:
            self._serve(idle=True)
        self._wake()
        self._tell()
        if self._asked:
            self._kick()
        self._leader = 0  # last: interrupted before, all this is done again

    def _ask_again(self, work: Work) -> None:
        """The leader was interrupted before anything of this was stored: it stays asked for."""
        state = work.state
        for ticket in work.tickets:
            if state.gone:
                ticket.done = True
                if ticket.waiter is not None:
                    self._woken.append(ticket.waiter)
            elif not ticket.done and ticket not in state.tickets:
                state.tickets.append(ticket)
        if state.tickets and state not in self._asked:
            self._asked.append(state)
        if state.pending and state.deadline is None and not state.retiring:
            self._open_window(state)

    def _store(self, work: Work) -> Outcome:
        """Write one scope's batch, without ``_lock``."""
        state = work.state
        kept: list[Staged] | None = None
        failed_join: CoalescerFailed | None = None
        try:
            lines, kept, failed_join = _lines_of(work)
            self._writer_lock.check()
            log = work.log
            if log is None and state.log is not None:
                log = work.begin_with(state.log)  # born meanwhile: a sidecar of this very round needed main
            if lines and log is None:
                log = work.log = self._new_log(state, lines[0].first)
            sync = work.sync or (log is not None and log.costly)
            if sync and state is not self._main and log is not None:
                self._anchor(log)
            if log is not None:
                if lines:
                    log.append(lines, wall_time(self._env.clock), sync=sync, crowd=len(self._work) > _CROWD)
                elif sync:
                    log.sync()
        except ScopelogError as failure:
            return Outcome(kept, failed_join, failure, False)
        except OSError as failure:
            return Outcome(kept, failed_join, unasked(failure), False)
        return new_tuple(Outcome, (kept, failed_join, None, True))

    def _anchor(self, log: LogFile) -> None:
        """Before a sidecar counts as durable, what it builds on in main must be: its file, and a retirement before."""
        main = self._main.log
        if main is not None and not (main.anchored and log.header.after <= main.durable_sequence):
            main.sync()

    def _new_log(self, state: ScopeState, first: int) -> LogFile:
        """The scope's log, to be created by its first append. A sidecar needs its session's main log before it."""
        env = self._env
        main = state is self._main
        base = 0
        if not main:
            if self._main.log is None:
                born = self._new_log(self._main, 0)
                try:
                    born.append([], wall_time(env.clock), sync=True)
                finally:
                    if born.born:
                        self._main.log = born
                base = born.durable_sequence
            else:
                base = self._main.log.durable_sequence
        header = new_header(
            KIND_MAIN if main else KIND_SCOPE,
            env.identity,
            session=self.session,
            scope=state.scope,
            time=wall_time(env.clock),
            base=base,
            first=0 if main else first,
            after=0 if main else max(self._undurable.get(state.scope, 0), self._doubtful()),
        )
        log = LogFile(
            env.fs,
            os.path.join(self.directory, MAIN_FILE if main else scope_file_name(first)),
            header,
            epoch=self.epoch,
            sequence=0,
            counters=self.counters,
            monotonic=env.clock.monotonic,
            sync_parents=self._sync_parents(main=main),
            by_rename=main,
        )
        self._plan_compaction(log, 0)
        return log

    def log_of(self, path: str, handle: Handle, found: Survey, size: int, *, proved: bool) -> LogFile:
        """A log of this session that exists; see :meth:`LogFile.reopen`."""
        main = found.header.kind == KIND_MAIN
        return LogFile.reopen(
            self._env.fs,
            path,
            handle,
            found,
            size,
            epoch=self.epoch,
            counters=self.counters,
            monotonic=self._env.clock.monotonic,
            sync_parents=self._sync_parents(main=main),
            by_rename=main,
            proved=proved,
        )

    def _sync_parents(self, *, main: bool) -> Callable[[], None]:
        """What makes a log's name durable: for main, that of the session, too."""
        env, directory = self._env, self.directory
        return (lambda: env.sync_names(directory)) if main else (lambda: env.fs.sync_dir(directory))

    def _doubtful(self) -> int:
        """Main's last sequence as it was found, unless that is durable: a retirement of any scope may be among it."""
        main = self._main.log
        return 0 if main is None or main.durable_sequence >= self._inherited else self._inherited

    def _plan_compaction(self, log: LogFile, length: int) -> None:
        """Have the log compacted once it has grown from ``length`` as much as the settings say, if they do."""
        growth = self.settings.compact_growth
        log.compact_at = max(COMPACT_BYTES, growth * length) if growth else math.inf

    @abstractmethod
    def _compact_soon(self, log: LogFile, scope: str) -> None:
        """Compact a log that has grown. In a thread of its own."""

    def _settle(self, work: Work, outcome: Outcome) -> None:
        """Bring memory in line with the disk and answer the tickets. Holds ``_lock``; may be done twice."""
        state, batch, log = work.state, work.batch, work.log
        kept, failed_join, error, stored = outcome
        if log is not None and log.born:
            state.log = log
        if batch and not state.gone:
            if stored and state.feeds is not None:
                self._publish_stored(state, batch)
            self._take_out(state, batch, work.commits, kept, stored)
            if state.feeds is not None:
                self._publish(state)  # what stood behind its commits
        if error is None:
            state.backoff = FIRST_BACKOFF
            if isinstance(state.failure, WriteFailed):
                state.failure = None  # healed
        else:
            self._failures += 1
            if state.pending and not stored:
                self._retry_later(state)
            if isinstance(error, HandleFenced):
                self._end(error)
                self._end_watches(EndReason.FAILED, error)
            if log is not None and log.poison is not None:
                state.blocked = True
        if failed_join is not None:
            state.fail(failed_join)
        index = self._index if state is self._main else None
        if index is not None and log is not None and log.touched and log.durable >= index.due_at:
            index.ask(log.view, log.durable)
        if log is not None and log.end >= log.compact_at and not state.gone:
            log.compact_at = math.inf  # until that is done
            if not COMPACTORS.submit(partial(self._compact_soon, log, state.scope)):
                self._plan_compaction(log, log.end)
        for commit in work.commits:
            if commit.retires:
                self._end_retirement(commit, stored, error if isinstance(error, OutcomeUnknown) else None)
        for ticket in work.tickets:
            ticket.error = error
            ticket.done = True
            if ticket.waiter is not None:
                self._woken.append(ticket.waiter)
            elif error is not None and ticket.background and not state.gone:
                state.fail(error)  # nobody waits: raised at the next call

    def _take_out(
        self, state: ScopeState, batch: list[Any], commits: list[Commit], kept: list[Staged] | None, stored: bool
    ) -> None:
        """The batch leaves what is pending; of one that was not stored, the staged elements stay, as joined."""
        count = bisect_right(state.pending, sequence_of(batch[-1]), key=sequence_of)
        freed = 0
        if len(batch) > len(commits):
            freed = staged_bytes(staged_of(batch) if commits else batch)
        if stored:
            del state.pending[:count]
            self._batches += 1
        else:
            if kept is None:
                kept = staged_of(batch)
            freed -= staged_bytes(kept)
            state.pending[:count] = kept
        if freed:
            self._release_bytes(freed)

    def _withdraw(self, commit: Commit) -> bool:
        """The committer leaves with an exception: a commit that nobody has in hand must not happen.

        True if it will not. May be done twice: interrupted, it is called again."""
        with self._lock:
            state = commit.owner
            if state is None:
                return True  # never admitted
            if commit.done or any(commit in work.commits for work in self._work):
                self._tell()  # we may have been interrupted before we did
                return False  # settled, or in the hands of another leader, who settles it
            if commit in state.tickets:
                state.tickets.remove(commit)
            if commit in state.pending:
                state.pending.remove(commit)
            if state.feeds is not None:
                self._publish(state)  # what stood behind it
            self._end_retirement(commit, False)
            if state.deadline is not None:  # it may be a task's commit's own, which no loop keeps
                when = min(state.deadline, self._env.clock.monotonic() + self.settings.window)
                state.deadline = when if state.pending and self._env.schedule(self, when) else None
            commit.done = True
            self._tell()
            return True


def _leader_failed(error: Exception) -> WriteFailed:
    failure = WriteFailed(f"storing failed ({error!r})", "nothing was stored and nothing lost; try again")
    failure.__cause__ = error
    return failure


def _lines_of(work: Work) -> tuple[list[Line], list[Staged], CoalescerFailed | None]:
    """A batch as lines, and its staged elements as they are joined for that. No join crosses a commit."""
    if len(work.batch) == len(work.commits):
        return [commit_line(commit.writes, commit.size) for commit in work.commits], [], None
    lines: list[Line] = []
    kept: list[Staged] = []
    failed: CoalescerFailed | None = None
    start = 0
    for commit in [*work.commits, None]:
        stop = len(work.batch) if commit is None else work.batch.index(commit, start)
        run = work.batch[start:stop]
        if run and work.state.joins:
            run, failure = join(run)
            failed = failed or failure
        if run:
            lines += window_lines(run, work.state.names_bytes)
            kept = kept + run if kept else run
        if commit is not None:
            lines.append(commit_line(commit.writes, commit.size))
        start = stop + 1
    return lines, kept, failed
