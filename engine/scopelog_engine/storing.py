"""Storing: what one thread at a time, the leader, does with what was admitted to a session.

The leader holds ``_busy`` but not ``_lock``: it takes what is asked for from every scope, writes one batch a log and
settles. Whoever finds work and no leader leads; everybody else waits for the outcome of their own ticket.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .clock import Clock
from .durability import Durability
from .errors import CoalescerFailed, HandleFenced, OutcomeUnknown, ScopelogError, WriteFailed
from .fs import FileSystem
from .header import KIND_MAIN, KIND_SCOPE, new_header
from .layout import MAIN_FILE, scope_file_name
from .lines import Address, Line, commit_line
from .lock import WriterLock
from .logfile import Counters, LogFile
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


@dataclass(frozen=True)
class Settings:
    """How a session is written. Reading never depends on any of it.

    ``window``: seconds from the first pending element to its flush. ``session_level``, ``scope_level``: what
    durability the two kinds of scope run at. ``pending_bytes``: bound of what may wait, text and bookkeeping.
    """

    window: float = 0.1
    session_level: Durability = Durability.POWER
    scope_level: Durability = Durability.PROCESS
    pending_bytes: int = 4 * 1024 * 1024


class Environment(Protocol):
    """What a session needs from its store."""

    fs: FileSystem
    clock: Clock
    identity: str
    """The store's id, in hex."""

    def schedule(self, session: Storing, when: float) -> None:
        """Have the flusher call :meth:`flush_due` at monotonic second ``when``."""

    def grant(self, wanted: int) -> bool:
        """Reserve ``wanted`` bytes of the store's bound on what may wait; False if that would pass it."""

    def give_back(self, granted: int) -> None: ...

    def sync_names(self, directory: str) -> None:
        """Sync a session's directory and every directory made for it."""

    def forget(self, session: Storing) -> None:
        """The session was closed."""


class Work(NamedTuple):
    """What the leader took from one scope."""

    state: ScopeState
    batch: list[Staged | Commit]
    tickets: list[Ticket]


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
        self._busy = False
        self._unusable: ScopelogError | None = None
        self._sequence = sequence  # the last one handed out
        self._scopes: dict[str, ScopeState] = {}
        self._lists: dict[tuple[str, Address], ListState] = {}
        self._main = self._scopes[SESSION] = ScopeState(SESSION, settings.session_level)
        self._bytes = 0  # waiting, over all scopes
        self._quota = 0  # reserved of the store's bound
        self._doomed: list[tuple[str, int]] = []  # sidecars to unlink once main is durable up to the sequence
        self._undurable: dict[str, int] = {}  # retirements that main has not synced yet
        self._batches = 0
        self._failures = 0

    # --- tickets ----------------------------------------------------------------------------------

    def _run(self, tickets: Sequence[Ticket]) -> None:
        """Wait for the tickets, leading if nobody does; then raise the first error among them. Holds ``_lock``."""
        self._wait_for(tickets)
        for ticket in tickets:
            if ticket.error is not None:
                raise ticket.error.again() from ticket.error

    def _wait_for(self, tickets: Sequence[Ticket]) -> None:
        while not all(ticket.done for ticket in tickets):
            if self._busy:
                self._changed.wait()
                continue
            self._busy = True
            try:
                self._lock.release()
                try:
                    self._lead()
                finally:
                    self._lock.acquire()
            finally:
                self._busy = False
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
                    state.tickets.append(ticket)
                    tickets.append((state, ticket))
            if tickets:
                self._flush_in_background(tickets)
            return min((s.deadline for s in self._scopes.values() if s.deadline is not None), default=None)

    def _flush_in_background(self, tickets: list[tuple[ScopeState, Ticket]]) -> None:
        try:
            self._wait_for([ticket for _, ticket in tickets])
        except Exception as error:  # noqa: BLE001 - the flusher must outlive anything; it is raised at the next call
            _log.error("flushing %s failed: %s", self.directory, type(error).__name__)
            for state, ticket in tickets:
                if ticket in state.tickets:
                    state.tickets.remove(ticket)
                    ticket.error = WriteFailed(f"the flusher failed ({error!r})", "nothing was lost; try again")
                    ticket.error.__cause__ = error
                    self._retry_later(state)
        for state, ticket in tickets:
            if ticket.error is not None and not state.gone:
                state.fail(ticket.error)

    # --- the leader -------------------------------------------------------------------------------

    def _lead(self) -> None:
        """Take what is asked for, of every scope, and store it: ephemeral scopes first, retirements after them."""
        work: list[Work] = []
        try:
            with self._lock:
                for state in self._scopes.values():
                    if state.tickets and state is not self._main:
                        work.append(self._take(state))
                if self._main.tickets:
                    work.append(self._take(self._main))
            for item in work:
                self._store(item)
        except BaseException:
            with self._lock:
                for item in work:  # interrupted before they were settled: they stay asked for
                    item.state.tickets[:0] = [ticket for ticket in item.tickets if not ticket.done]
            raise
        if self._doomed:
            self._unlink_doomed()

    def _take(self, state: ScopeState) -> Work:
        tickets = state.tickets
        if state.aside:
            highest = last_of(state.pending)
            state.deferred += [ticket for ticket in tickets if ticket.target > highest]
            tickets = [ticket for ticket in tickets if ticket.target <= highest]
        target = max((ticket.target for ticket in tickets), default=0)
        count = len(state.pending)
        while count and sequence_of(state.pending[count - 1]) > target:
            count -= 1
        batch = state.pending[:count]
        state.deadline = None
        if len(state.pending) > count and not state.retiring:
            self._open_window(state)
        state.tickets = []
        return Work(state, batch, tickets)

    def _open_window(self, state: ScopeState) -> None:
        when = self._env.clock.monotonic() + self.settings.window
        state.deadline = when
        self._env.schedule(self, when)

    def _store(self, work: Work) -> None:
        """Write one scope's batch and settle its tickets, whatever happens."""
        state = work.state
        log = state.log
        before = log.end if log is not None else 0
        kept: list[Staged] | None = None
        failed_join: CoalescerFailed | None = None
        error: ScopelogError | None = None
        stored = False
        try:
            lines, kept, failed_join = _lines_of(work)
            sync = any(ticket.level is Durability.POWER for ticket in work.tickets)
            self._writer_lock.check()
            if lines:
                log = log or self._new_log(state, lines[0].first)
                log.append(lines, self._env.clock.wall_ms(), sync=sync)
            elif sync and log is not None and log.born:
                log.sync()
            stored = True
        except OutcomeUnknown as failure:
            error, stored = failure, True
        except ScopelogError as failure:
            error = failure
        except OSError as failure:
            error = WriteFailed(f"the disk could not be asked ({failure})", "mend it and try again")
            error.__cause__ = failure
        except BaseException as failure:
            stored = log is not None and log.end > before
            interrupted = WriteFailed(
                f"the thread that was storing it was interrupted ({type(failure).__name__})",
                "nothing of the call was stored; try again",
            )
            self._settle(work, log, kept, None if stored else interrupted, stored)
            raise
        self._settle(work, log, kept, error, stored)
        if failed_join is not None:
            with self._lock:
                state.fail(failed_join)

    def _new_log(self, state: ScopeState, first: int) -> LogFile:
        """The scope's log, to be created by its first append. A sidecar needs its session's main log before it."""
        env = self._env
        main = state is self._main
        base = 0
        if not main:
            if self._main.log is None:
                born = self._new_log(self._main, 0)
                born.append([], env.clock.wall_ms(), sync=True)
                self._main.log = born
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

    def _settle(
        self,
        work: Work,
        log: LogFile | None,
        kept: list[Staged] | None,
        error: ScopelogError | None,
        stored: bool,
    ) -> None:
        """Bring memory in line with the disk and answer the tickets. ``kept``: the batch's staged elements, joined,
        so that they are written the same way again; None if they were not joined yet."""
        state, batch = work.state, work.batch
        commits = [entry for entry in batch if isinstance(entry, Commit)]
        with self._lock:
            if log is not None and log.born:
                state.log = log
            freed = staged_bytes(batch)
            if stored:
                del state.pending[: len(batch)]
                if error is not None:
                    for commit in commits:
                        state.hidden.update(write.sequence for write in commit.writes)
            else:
                if kept is None:
                    kept = [entry for entry in batch if not isinstance(entry, Commit)]
                state.pending[: len(batch)] = kept
                freed -= staged_bytes(kept)
            self._release_bytes(freed)
            if error is None:
                state.backoff = FIRST_BACKOFF
            else:
                self._failures += 1
                if not stored and kept:
                    self._retry_later(state)
                if isinstance(error, HandleFenced):
                    self._end(error)
                if log is not None and log.poison is not None:
                    state.blocked = True
            self._batches += bool(batch)
            for commit in commits:
                if commit.retires:
                    self._end_retirement(commit, stored and error is None)
            for ticket in work.tickets:
                ticket.error = error
                ticket.done = True
            self._changed.notify_all()

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
        if commit.done or commit not in state.tickets:
            return  # settled, or in the hands of a leader, who settles it
        state.tickets.remove(commit)
        state.pending.remove(commit)
        if commit.retires:
            self._end_retirement(commit, False)
        self._changed.notify_all()

    # --- retirement -------------------------------------------------------------------------------

    def _set_aside(self, scope: str) -> None:
        """A retirement was admitted: what waits in the scope's window is held back until its outcome is known."""
        state = self._scopes.get(scope)
        if state is None:
            return
        state.retiring += 1
        state.blocked = True
        if self._busy:
            return  # a leader may be storing part of it; what it stores is dropped with the rest
        cut = len(state.pending)
        while cut and not isinstance(state.pending[cut - 1], Commit):
            cut -= 1
        state.aside += [entry for entry in state.pending[cut:] if not isinstance(entry, Commit)]
        del state.pending[cut:]
        state.deadline = None

    def _end_retirement(self, commit: Commit, stored: bool) -> None:
        main = self._main.log
        durable = main is not None and main.durable_sequence >= commit.target
        if durable:
            self._undurable.clear()
        for scope in dict.fromkeys(commit.retires):
            if stored and not durable:
                self._undurable[scope] = commit.target
            state = self._scopes.get(scope)
            if state is None or state.retiring == 0:
                continue
            state.retiring -= 1
            if stored:
                self._drop(state, commit.target)
            elif state.retiring == 0:
                state.blocked = state.failure is not None  # an append looks again, and finds what else there is
                state.pending += state.aside
                state.tickets += state.deferred
                state.aside, state.deferred = [], []
                if state.pending and state.deadline is None:
                    self._open_window(state)

    def _drop(self, state: ScopeState, boundary: int) -> None:
        """The scope's life is over: nothing of it is shown from here on, whatever happens to its file."""
        if state.log is not None:
            self._doomed.append((state.log.path, boundary))
            state.log.view.handle.close()
            state.log = None
        for ticket in (*state.deferred, *state.tickets):
            ticket.done = True  # dropped counts as settled
        self._release_bytes(staged_bytes(state.pending) + staged_bytes(state.aside))
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


def staged_bytes(entries: Sequence[Staged | Commit]) -> int:
    """What staged elements count for against the bounds."""
    return sum(len(entry[2]) + ENTRY_OVERHEAD for entry in entries if not isinstance(entry, Commit))


def _lines_of(work: Work) -> tuple[list[Line], list[Staged], CoalescerFailed | None]:
    """A batch as lines, and its staged elements as they are joined for that. No join crosses a commit."""
    lines: list[Line] = []
    kept: list[Staged] = []
    run: list[Staged] = []
    failed: CoalescerFailed | None = None
    joins = work.state.joins

    def end() -> None:
        nonlocal failed, run
        if joins:
            run, failure = join(run)
            failed = failed or failure
        lines.extend(window_lines(run))
        kept.extend(run)
        run = []

    for entry in work.batch:
        if not isinstance(entry, Commit):
            run.append(entry)
            continue
        if run:
            end()
        lines.append(commit_line(entry.writes))
    if run:
        end()
    return lines, kept, failed
