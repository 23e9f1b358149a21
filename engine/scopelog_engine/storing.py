"""Storing: what one thread at a time, the leader, does with what was admitted to a session.

The leader holds ``_busy`` but not ``_lock``: it takes what is asked for from every scope, writes one batch a log and
settles. Whoever finds work and no leader leads; everybody else waits for the outcome of their own ticket.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from .durability import Durability
from .environment import Counters, Environment, Settings
from .errors import CoalescerFailed, HandleFenced, OutcomeUnknown, ScopelogError, WriteFailed
from .header import KIND_MAIN, KIND_SCOPE, new_header
from .layout import MAIN_FILE, scope_file_name
from .lines import Address, Line, commit_line, new_tuple
from .lock import WriterLock
from .logfile import LogFile
from .recovery import Recovery
from .scope import (
    ENTRY_OVERHEAD,
    FIRST_BACKOFF,
    LAST_BACKOFF,
    SESSION,
    Commit,
    ListState,
    ScopeState,
    Staged,
    Ticket,
    last_of,
    sequence_of,
)
from .staging import join, window_lines

_log = logging.getLogger(__name__)
_POWER: Final = Durability.POWER  # an enum's members are slow to look up


class Work(NamedTuple):
    """What the leader took from one scope."""

    state: ScopeState
    batch: list[Any]  # Staged | Commit
    tickets: list[Ticket]
    commits: list[Commit]  # those of the batch; each is a ticket too
    sync: bool


class Outcome(NamedTuple):
    """What became of a batch. ``kept``: its staged elements as they were joined, so that a failed batch is written
    the same way again; None if they were not joined yet."""

    log: LogFile | None
    kept: list[Staged] | None
    failed_join: CoalescerFailed | None
    error: ScopelogError | None
    stored: bool


class Storing:
    """The half of a session that stores. ``_lock`` guards every field; see the module's docstring."""

    def __init__(
        self,
        environment: Environment,
        session: str,
        directory: str,
        lock: WriterLock,
        settings: Settings,
        *,
        epoch: int,
        sequence: int,
        recovery: Recovery,
    ) -> None:
        self.session = session
        self.directory = directory
        self.epoch = epoch
        self.recovery = recovery
        self.settings = settings
        self.counters = Counters()
        self._env = environment
        self._writer_lock = lock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._busy = False  # a leader is at work
        self._waiting = 0  # threads that want to be told of changes
        self._asked: list[ScopeState] = []  # scopes with tickets
        self._unusable: ScopelogError | None = None
        self._sequence = sequence  # the last one handed out
        self._scopes: dict[str, ScopeState] = {}
        self._lists: dict[tuple[str, Address], ListState] = {}
        self._main = self._scopes[SESSION] = ScopeState(SESSION, settings.session_level)
        self._bytes = 0  # waiting, over all scopes
        self._quota = 0  # reserved of the store's bound
        self._doomed: list[tuple[str, int]] = []  # sidecars to unlink once main is durable up to the sequence
        self._undurable: dict[str, int] = {}  # retirements that main has not synced yet
        self._epoch_proved = False
        self._batches = 0
        self._failures = 0

    # --- tickets ----------------------------------------------------------------------------------

    def _ask(self, state: ScopeState, ticket: Ticket) -> None:
        """Put a ticket before whoever leads next."""
        if not state.tickets:
            self._asked.append(state)
        state.tickets.append(ticket)

    def _run(self, ticket: Ticket) -> None:
        """Wait for a ticket, leading if nobody does, and raise its error. Holds ``_lock``, but not while storing."""
        while not ticket.done:
            if self._busy:
                self._wait()
            else:
                self._lead()
        if ticket.error is not None:
            raise ticket.error.again() from ticket.error

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

    def _wait(self) -> None:
        self._waiting += 1
        try:
            self._changed.wait()
        finally:
            self._waiting -= 1

    def _tell(self) -> None:
        if self._waiting:
            self._changed.notify_all()

    # --- the flusher ------------------------------------------------------------------------------

    def flush_due(self, now: float) -> float | None:
        """Store every window whose deadline has passed; the flusher calls this. Returns the next deadline."""
        with self._lock:
            if self._unusable is not None:
                return None
            tickets: list[tuple[ScopeState, Ticket]] = []
            for state in self._scopes.values():
                if state.deadline is not None and state.deadline <= now and not state.retiring:
                    ticket = Ticket(last_of(state.pending), state.level)
                    self._ask(state, ticket)
                    tickets.append((state, ticket))
            if tickets:
                self._flush_in_background(tickets)
            waiting = [s.deadline for s in self._scopes.values() if s.deadline is not None and not s.retiring]
            return min(waiting, default=None)

    def _flush_in_background(self, tickets: list[tuple[ScopeState, Ticket]]) -> None:
        for _, ticket in tickets:
            try:
                self._run(ticket)
            except ScopelogError:
                continue  # kept in the ticket
            except Exception as error:  # noqa: BLE001 - the flusher must outlive anything: it is raised at the next call
                _log.error("flushing %s failed: %s", self.directory, type(error).__name__)
                if ticket.error is None:
                    ticket.error = WriteFailed(f"the flusher failed ({error!r})", "nothing was lost; try again")
                    ticket.error.__cause__ = error
        for state, ticket in tickets:
            if ticket.error is None or state.gone:
                continue
            if not ticket.done:  # interrupted before it was begun
                state.tickets = [other for other in state.tickets if other is not ticket]
                self._retry_later(state)
            state.fail(ticket.error)

    # --- the leader -------------------------------------------------------------------------------

    def _lead(self) -> None:
        """Store all that is asked for: ephemeral scopes first, then main with its retirements. Holds ``_lock``, but
        lets go of it while it writes."""
        self._busy = True
        work: list[Work] = []
        try:
            asked, self._asked = self._asked, []
            main_asked = False
            for state in asked:
                if state is self._main:
                    main_asked = True
                elif state.tickets:
                    work.append(self._take(state))
            if main_asked and self._main.tickets:
                work.append(self._take(self._main))
            for item in work:
                self._lock.release()
                try:
                    outcome = self._store(item)
                finally:
                    self._lock.acquire()
                self._settle(item, outcome)
            if self._doomed:
                self._unlink_doomed()
        except BaseException:
            for item in work:  # interrupted before they were settled: they stay asked for
                for ticket in item.tickets:
                    if not ticket.done and not item.state.gone:
                        ticket.taken = False
                        self._ask(item.state, ticket)
                if item.state.pending and item.state.deadline is None and not item.state.retiring:
                    self._open_window(item.state)
            raise
        finally:
            self._busy = False
            self._tell()

    def _take(self, state: ScopeState) -> Work:
        tickets, state.tickets = state.tickets, []
        pending = state.pending
        if state.aside:
            highest = last_of(pending)
            state.deferred += [ticket for ticket in tickets if ticket.target > highest]
            tickets = [ticket for ticket in tickets if ticket.target <= highest]
        target = 0
        sync = False
        commits: list[Commit] = []
        for ticket in tickets:
            ticket.taken = True
            target = max(target, ticket.target)
            sync = sync or ticket.level is _POWER
            if isinstance(ticket, Commit):
                commits.append(ticket)
        count = len(pending)
        while count and sequence_of(pending[count - 1]) > target:
            count -= 1
        state.deadline = None
        if len(pending) > count and not state.retiring:
            self._open_window(state)
        return new_tuple(Work, (state, pending[:count], tickets, commits, sync))

    def _open_window(self, state: ScopeState) -> None:
        when = self._env.clock.monotonic() + self.settings.window
        state.deadline = when
        self._env.schedule(self, when)

    def _store(self, work: Work) -> Outcome:
        """Write one scope's batch, without ``_lock``. What is raised besides ScopelogError is raised after settling."""
        state = work.state
        log = state.log
        before = log.end if log is not None else 0
        kept: list[Staged] | None = None
        failed_join: CoalescerFailed | None = None
        try:
            lines, kept, failed_join = _lines_of(work)
            self._writer_lock.check()
            if lines:
                log = log or self._new_log(state, lines[0].first)
            if work.sync and state is not self._main and log is not None:
                self._anchor(log)
            if log is not None:
                if lines:
                    log.append(lines, self._env.clock.wall_ms(), sync=work.sync)
                elif work.sync:
                    log.sync()
            return new_tuple(Outcome, (log, kept, failed_join, None, True))
        except ScopelogError as failure:
            return Outcome(log, kept, failed_join, failure, False)
        except OSError as failure:
            error = WriteFailed(f"the disk could not be asked ({failure})", "mend it and try again")
            error.__cause__ = failure
            return Outcome(log, kept, failed_join, error, False)
        except BaseException as failure:
            stored = log is not None and log.end > before
            interrupted = WriteFailed(
                f"the thread that was storing it was interrupted ({type(failure).__name__})",
                "nothing of the call was stored; try again",
            )
            with self._lock:
                self._settle(work, Outcome(log, kept, failed_join, None if stored else interrupted, stored))
            raise

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
                    born.append([], env.clock.wall_ms(), sync=True)
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
            time=env.clock.wall_ms(),
            base=base,
            first=0 if main else first,
            after=0 if main else self._undurable.get(state.scope, 0),
        )
        directory = self.directory
        return LogFile(
            env.fs,
            os.path.join(directory, MAIN_FILE if main else scope_file_name(first)),
            header,
            epoch=self.epoch,
            sequence=0,
            counters=self.counters,
            monotonic=env.clock.monotonic,
            sync_parents=(lambda: env.sync_names(directory)) if main else (lambda: env.fs.sync_dir(directory)),
            by_rename=main,
        )

    def _settle(self, work: Work, outcome: Outcome) -> None:
        """Bring memory in line with the disk and answer the tickets. Holds ``_lock``."""
        state, batch = work.state, work.batch
        log, kept, failed_join, error, stored = outcome
        if log is not None and log.born:
            state.log = log
        freed = 0
        if len(batch) > len(work.commits):
            freed = staged_bytes(staged_of(batch) if work.commits else batch)
        if stored:
            del state.pending[: len(batch)]
        else:
            if kept is None:
                kept = staged_of(batch)
            state.pending[: len(batch)] = kept
            freed -= staged_bytes(kept)
        if freed:
            self._release_bytes(freed)
        if batch:
            self._batches += 1
        if error is None:
            state.backoff = FIRST_BACKOFF
        else:
            self._failures += 1
            if kept and not stored:
                self._retry_later(state)
            if isinstance(error, HandleFenced):
                self._end(error)
            if log is not None and log.poison is not None:
                state.blocked = True
        if failed_join is not None:
            state.fail(failed_join)
        for commit in work.commits:
            if commit.retires:
                self._end_retirement(commit, stored, error if isinstance(error, OutcomeUnknown) else None)
        for ticket in work.tickets:
            ticket.error = error
            ticket.done = True

    def _end(self, why: ScopelogError) -> None:
        """The handle takes no more calls; what they raise from now on."""
        self._unusable = why
        for state in self._scopes.values():
            state.blocked = True

    def _release_bytes(self, freed: int) -> None:
        self._bytes -= freed
        if self._bytes <= 0 and self._quota:
            self._env.give_back(self._quota)
            self._quota = 0

    def _retry_later(self, state: ScopeState) -> None:
        """Space coming back heals a failed window without a call: try again, less and less often."""
        if state.deadline is None and not state.retiring and (state.log is None or state.log.poison is None):
            state.deadline = self._env.clock.monotonic() + max(state.backoff, self.settings.window)
            state.backoff = min(state.backoff * 2, LAST_BACKOFF)
            self._env.schedule(self, state.deadline)

    def _withdraw(self, state: ScopeState, commit: Commit) -> None:
        """The committing thread leaves with an exception: a commit that nobody has begun must not happen."""
        if commit.done or commit.taken:
            return  # settled, or in the hands of a leader, who settles it
        if commit in state.tickets:
            state.tickets.remove(commit)
        if commit in state.pending:
            state.pending.remove(commit)
        if commit.retires:
            self._end_retirement(commit, False)
        self._tell()

    # --- retirement -------------------------------------------------------------------------------

    def _set_aside(self, commit: Commit, scope: str) -> None:
        """A retirement was admitted: what waits in the scope's window is held back until its outcome is known."""
        state = self._scopes.get(scope)
        if state is None:
            return
        state.retiring += 1
        state.blocked = True
        commit.held.append(state)
        if self._busy:
            return  # a leader may be storing part of it; what it stores is dropped with the rest
        cut = len(state.pending)
        while cut and not isinstance(state.pending[cut - 1], Commit):
            cut -= 1
        state.aside += [entry for entry in state.pending[cut:] if not isinstance(entry, Commit)]
        del state.pending[cut:]
        state.deadline = None

    def _end_retirement(self, commit: Commit, stored: bool, unknown: OutcomeUnknown | None = None) -> None:
        main = self._main.log
        durable = main is not None and main.durable_sequence >= commit.target
        if durable:
            self._undurable.clear()
        for scope in dict.fromkeys(commit.retires):
            if stored and not durable:
                self._undurable[scope] = commit.target
        for state in commit.held:
            state.retiring -= 1
            if unknown is not None:
                state.doubt = unknown
            if stored:
                if not state.gone:
                    self._drop(state, commit.target)
            elif state.retiring == 0:
                state.blocked = True  # an append looks again, and finds what else there is
                state.pending += state.aside
                deferred = state.deferred
                state.aside, state.deferred = [], []
                for ticket in deferred:
                    self._ask(state, ticket)
                if state.pending:
                    self._open_window(state)
        commit.held = []

    def _drop(self, state: ScopeState, boundary: int) -> None:
        """The scope's life is over: nothing of it is shown from here on, whatever happens to its file."""
        if state.log is not None:
            self._doomed.append((state.log.path, boundary))
            state.log.view.handle.close()
            state.log = None
        for ticket in (*state.deferred, *state.tickets):
            ticket.done = True  # dropped counts as settled
        self._release_bytes(staged_bytes(staged_of(state.pending)) + staged_bytes(state.aside))
        state.pending, state.aside, state.deferred, state.tickets = [], [], [], []
        state.deadline = state.failure = None
        state.gone = state.blocked = True
        del self._scopes[state.scope]
        for address in state.lists:
            self._lists.pop((state.scope, address), None)

    def _unlink_doomed(self) -> None:
        """Remove sidecars whose retirement is durable at POWER. A failure is no failure of any commit."""
        main = self._main.log
        durable = main.durable_sequence if main is not None else 0
        left: list[tuple[str, int]] = []
        for path, boundary in self._doomed:
            if boundary > durable:
                left.append((path, boundary))
                continue
            try:
                self._env.fs.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.warning("%s could not be removed: %s; it will be tried again", path, error)
                left.append((path, boundary))
        self._doomed = left


def staged_of(entries: Sequence[Staged | Commit]) -> list[Staged]:
    return [entry for entry in entries if not isinstance(entry, Commit)]


def staged_bytes(entries: Sequence[Staged]) -> int:
    """What staged elements count for against the bounds."""
    return sum([len(entry[2]) for entry in entries]) + ENTRY_OVERHEAD * len(entries)


def _lines_of(work: Work) -> tuple[list[Line], list[Staged], CoalescerFailed | None]:
    """A batch as lines, and its staged elements as they are joined for that. No join crosses a commit."""
    if len(work.batch) == len(work.commits):
        return [commit_line(commit.writes) for commit in work.commits], [], None
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
            lines += window_lines(run)
            kept = kept + run if kept else run
        if commit is not None:
            lines.append(commit_line(commit.writes))
        start = stop + 1
    return lines, kept, failed
