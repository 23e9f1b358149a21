"""One session, open for writing: admission, commits, the flush barrier, and reads that see all of it.

Admission happens under ``_lock`` and takes microseconds: elements are frozen before, no I/O is done, and sequences
are handed out in order. What is admitted is stored by :mod:`storing`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from .durability import Durability
from .elements import NOT_PLAIN, SHALLOW_BYTES, Json, decode_json, encode_json, freeze
from .errors import (
    DurabilityError,
    HandleClosed,
    HandleForked,
    InvalidInput,
    LimitExceeded,
    LogPoisoned,
    ScopelogError,
    WriteFailed,
)
from .layout import MAX_COMMIT_BYTES, MAX_SEQUENCE
from .lines import APPEND, RETIRE, SET, Address, Write, new_tuple
from .logfile import LogFile
from .reading import Reading
from .scope import ENTRY_OVERHEAD, Commit, ListState, Place, ScopeState, Ticket, last_of

_log = logging.getLogger(__name__)
_WITH_VALUE: Final = (APPEND, SET)
_PROCESS: Final = Durability.PROCESS
_QUOTA_PIECE: Final = 256 * 1024
_NAMES_BYTES: Final = 64  # a write's brackets and numbers; each character of a name may take 6 bytes


class Change(NamedTuple):
    """One write as a caller hands it to :meth:`Writer.commit`; codes as in :mod:`lines`."""

    code: str
    address: Address | None
    value: Json = None
    argument: str | int | None = None


class Receipt(NamedTuple):
    """Sequences of a commit's writes: ``first`` to ``last``, in order and without gaps."""

    first: int
    last: int


class Writer(Reading):
    """A session's only writer. Thread-safe. Scopes are named by their id, the session scope by ``SESSION``."""

    # --- opening (single-threaded) ----------------------------------------------------------------

    def adopt(self, scope: str, log: LogFile) -> None:
        """Take over a log that recovery has opened."""
        state = self._scopes.get(scope)
        if state is None:
            state = self._scopes[scope] = ScopeState(scope, self.settings.scope_level)
        state.log = log

    def doom(self, scope: str, path: str, boundary: int) -> None:
        """Unlink a dead sidecar once its retirement is durable."""
        self._doomed.append((path, boundary))
        main = self._main.log
        if main is None or boundary > main.durable_sequence:
            self._undurable[scope] = boundary

    def sweep(self) -> None:
        """Unlink what recovery has doomed, as far as its retirement is durable."""
        if self._doomed:
            self._unlink_doomed()

    # --- admission --------------------------------------------------------------------------------

    def append(self, place: Place, element: Json, tag: str | None = None) -> int:
        """Stage an element through the window and return its sequence.

        Raises :class:`InvalidInput` kinds for the element, the failure of an earlier flush of the scope (this element
        is then not taken), and :class:`DurabilityError` kinds where the bound forces a flush that fails.
        """
        try:  # freeze(), inlined: this is the hot path
            body = encode_json(element)
            copy = decode_json(body)
        except NOT_PLAIN:
            body, copy = freeze(element)
        else:
            if len(body) > SHALLOW_BYTES or copy != element:
                body, copy = freeze(element)
        size = len(body) + ENTRY_OVERHEAD
        state = place.cached
        with self._lock:
            if state is None or state.owner is not self or state.scope.blocked or self._bytes + size > self._quota:
                state = self._admit_slowly(place, size)
            scope = state.scope
            sequence = self._sequence = self._sequence + 1
            scope.pending.append(
                (sequence, state.address, body, tag, state, copy if state.coalescer is not None else None)
            )
            self._bytes += size
            if scope.deadline is None:
                self._open_window(scope)
        return sequence

    def _admit_slowly(self, place: Place, size: int) -> ListState:
        """Everything about an admission that is not the usual case. Returns with room for ``size`` bytes."""
        while True:
            owner = self._unblock(place.scope_id)
            self._prove_epoch()
            if self._sequence >= MAX_SEQUENCE:
                raise LimitExceeded("the session has used up its sequences", "start a new session")
            state = self._lists.get((place.scope_id, place.address))
            if state is not None:
                state.check(place.coalescer)
            if self._bytes + size <= self._quota or self._extend_quota(size) or self._bytes == 0:
                break  # the last: above the bound all by itself, admitted alone
            self._run_all(self._flush_tickets(None))
        if state is None:
            state = ListState(self, place.address, owner, place.coalescer)
            self._lists[place.scope_id, place.address] = state
            owner.lists.append(place.address)
            owner.joins = owner.joins or place.coalescer is not None
        place.cached = state
        return state

    def _unblock(self, scope_id: str) -> ScopeState:
        """The scope, once nothing stands against writing to it; raises what does."""
        while True:
            self._check()
            owner = self._scope(scope_id)
            if owner.retiring:
                self._wait()
                continue
            self._raise_failure(owner)
            self._refuse_poisoned(owner)
            owner.blocked = False
            return owner

    def _extend_quota(self, size: int) -> bool:
        """Reserve more of the store's bound, in pieces, up to this session's own."""
        if self._bytes + size > self.settings.pending_bytes:
            return False
        wanted = min(max(self._bytes + size - self._quota, _QUOTA_PIECE), self.settings.pending_bytes - self._quota)
        if not self._env.grant(wanted):
            return False
        self._quota += wanted
        return True

    def commit(self, scope: str, changes: Sequence[Change], level: Durability | None = None) -> Receipt:
        """Store the changes atomically, with what was staged before them in the scope; see storage contract 3."""
        if not changes:
            raise InvalidInput("the commit is empty", "give it at least one write")
        size = 0
        bodies: list[bytes] = []
        retires: list[str] = []
        for code, address, value, argument in changes:
            body = freeze(value)[0] if code in _WITH_VALUE else b""
            bodies.append(body)
            size += len(body) + _NAMES_BYTES
            if address is not None:
                size += 6 * (len(address[0]) + len(address[1]))
            if type(argument) is str:
                size += 6 * len(argument)
                if code == RETIRE:
                    retires.append(argument)
        if size > MAX_COMMIT_BYTES:
            raise LimitExceeded(f"the commit takes {size} bytes as JSON, the limit is {MAX_COMMIT_BYTES}", "split it")
        with self._lock:
            owner = self._scopes.get(scope)
            if owner is None or owner.blocked:
                owner = self._unblock(scope)
            wanted = owner.level if level is None or level < owner.level else level
            if wanted is _PROCESS and not self._epoch_proved:
                self._prove_epoch()
            first = self._sequence + 1
            last = self._sequence + len(bodies)
            if last > MAX_SEQUENCE:
                raise LimitExceeded("the session has used up its sequences", "start a new session")
            writes: list[Write] = []
            for sequence, change, body in zip(range(first, last + 1), changes, bodies, strict=True):
                writes.append((sequence, change[0], change[1], body, change[3]))
            commit = Commit(writes, wanted, retires)
            self._sequence = last
            try:
                owner.pending.append(commit)
                self._ask(owner, commit)
                if retires:
                    for retired in dict.fromkeys(retires):
                        self._set_aside(commit, retired)
                self._run(commit)
            except BaseException:
                self._withdraw(owner, commit)
                raise
        return new_tuple(Receipt, (first, last))

    def flush(self, level: Durability | None = None) -> None:
        """Barrier: returns once everything admitted before is stored at its scope's level, or at ``level``."""
        with self._lock:
            self._check()
            self._flush(level)

    def _flush(self, level: Durability | None) -> None:
        while any(state.retiring for state in self._scopes.values()):
            self._wait()
        for state in self._scopes.values():
            if isinstance(state.failure, WriteFailed):
                state.failure = None  # tried again right here
        self._run_all(self._flush_tickets(level))
        for state in self._scopes.values():
            self._raise_failure(state)

    def _flush_tickets(self, level: Durability | None) -> list[Ticket]:
        """A ticket for every scope that has something to store or to sync."""
        tickets: list[Ticket] = []
        for state in self._scopes.values():
            wanted = max(state.level, level or state.level)
            log = state.log
            unsynced = wanted is Durability.POWER and log is not None and log.born and not log.synced
            if state.pending or unsynced:
                ticket = Ticket(last_of(state.pending), wanted)
                self._ask(state, ticket)
                tickets.append(ticket)
        return tickets

    # --- closing ----------------------------------------------------------------------------------

    def close(self, *, force: bool = False) -> None:
        """Flush, close the logs cleanly and release the lock. Closing twice is legal.

        If the flush fails its error is raised; where staged elements would be lost the handle stays open then, unless
        ``force``, which lets go in any case.
        """
        with self._lock:
            self._check_fork()
            ended = self._unusable
            if isinstance(ended, HandleClosed):
                return
            # Refuse admissions first: what comes after the flush would be lost.
            self._end(HandleClosed(f"the session {self.session!r} was closed", "open it again"))
            failure: ScopelogError | None = None
            if ended is None:
                try:
                    self._flush(None)
                except ScopelogError as error:
                    failure = error
            while self._busy:
                self._wait()
            lost = sum(len(state.pending) + len(state.aside) for state in self._scopes.values())
            if lost:
                failure = failure or ended
            if failure is not None and lost and not force:
                self._unusable = ended  # stays open: what is staged can be tried again
                for state in self._scopes.values():
                    if state.pending:
                        self._open_window(state)
                raise failure
            self._env.give_back(self._quota)
            self._quota = 0
        for state in [*self._scopes.values()][::-1]:
            failure = self._close_log(state, ended is None) or failure
        if self._doomed:
            self._unlink_doomed()
        self._writer_lock.release()
        self._env.forget(self)
        if failure is not None:
            if lost:
                _log.error("%s was closed with %d staged elements that could not be stored", self.directory, lost)
            raise failure

    def _close_log(self, state: ScopeState, clean: bool) -> ScopelogError | None:
        log = state.log
        if log is None:
            return None
        try:
            # A sidecar at PROCESS is never synced for the sake of closing: it has no closing frame then.
            log.close(clean=clean and (state is self._main or log.synced) and log.poison is None)
        except DurabilityError as error:
            return error
        return None

    def flush_soon(self) -> None:
        """Ask the flusher for everything that is staged, now."""
        now = self._env.clock.monotonic()
        with self._lock:
            for state in self._scopes.values():
                if state.pending and not state.retiring:
                    state.deadline = now
        self._env.schedule(self, now)

    def wait_until_stored(self, deadline: float) -> bool:
        """Whether nothing was left staged at ``deadline`` (monotonic seconds of the system clock)."""
        with self._lock:
            while any(state.pending for state in self._scopes.values()):
                left = deadline - time.monotonic()
                if left <= 0 or self._unusable is not None:
                    return False
                self._changed.wait(left)
        return True

    def after_fork(self) -> None:
        """In the child: close the copies, so that the parent's flock is not kept alive, and refuse every call."""
        self._lock = threading.Lock()  # the old one may be held by a thread that does not exist here
        self._changed = threading.Condition(self._lock)
        self._end(
            HandleForked(
                f"the session {self.session!r} was opened by process {os.getppid()} and came here through fork",
                "open the store again in this process, once the parent has closed it",
            )
        )
        for state in self._scopes.values():
            if state.log is not None and state.log.born:
                state.log.view.handle.file.close()
        self._writer_lock.release()

    @staticmethod
    def _raise_failure(state: ScopeState) -> None:
        failure, state.failure = state.failure, None
        if failure is not None:
            raise failure.again() from failure

    @staticmethod
    def _refuse_poisoned(state: ScopeState) -> None:
        if state.log is not None and state.log.poison is not None:
            state.log.check()
        if state.doubt is not None:
            raise LogPoisoned(
                f"the scope {state.scope!r} may have been retired: the sync of that commit failed",
                "close the session and open it again: then its fate is known",
            ) from state.doubt

    def _prove_epoch(self) -> None:
        """Before an element is shown that no synced frame of this epoch precedes: a lost epoch must not come again."""
        main = self._main.log
        if self._epoch_proved or (main is not None and main.epoch_durable):
            return
        try:
            self._writer_lock.sync()
        except OSError as error:
            raise WriteFailed(
                f"the epoch could not be noted in {self._writer_lock.path} ({error})", "try again"
            ) from error
        self._epoch_proved = True
