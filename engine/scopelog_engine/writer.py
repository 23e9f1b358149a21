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
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from .clock import wall_time
from .durability import Durability
from .elements import NOT_PLAIN, SHALLOW_BYTES, Json, decode_json, encode_json, freeze
from .errors import (
    HandleClosed,
    HandleFenced,
    HandleForked,
    InvalidInput,
    LimitExceeded,
    LogPoisoned,
    ScopelogError,
    WriteFailed,
)
from .feeds import End, EndReason
from .header import KIND_MAIN
from .info import SessionInfo, info_of
from .layout import MAX_COMMIT_BYTES, MAX_SEQUENCE
from .lines import APPEND, RETIRE, SET, Address, new_tuple
from .logfile import LogFile
from .scope import (
    ENTRY_OVERHEAD,
    NAME_FACTOR,
    NAMES_BYTES,
    Commit,
    ListState,
    Place,
    ScopeState,
    Ticket,
    last_of,
    names_bytes,
)
from .state import PERSISTENCE
from .storing import unasked
from .watching import Watching
from .workers import COMPACTORS

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

_log = logging.getLogger(__name__)
_WITH_VALUE: Final = (APPEND, SET)
_PROCESS: Final = Durability.PROCESS
_QUOTA_PIECE: Final = 256 * 1024


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


def prepare(changes: Sequence[Change], waiter: Future[None] | None = None) -> Commit:
    """Freeze the changes of a commit: nothing of the caller's is looked at again."""
    if not changes:
        raise InvalidInput("the commit is empty", "give it at least one write")
    if len(changes) == 1:
        code, address, value, argument = changes[0]
        if code == APPEND and argument is None and address is not None:  # the commonest commit of all, at once
            body = freeze(value)[0]
            return Commit([body], _PROCESS, [], names_bytes(address) + len(body) + NAMES_BYTES, waiter)
    size = NAMES_BYTES
    bodies: list[bytes] = []
    retires: list[str] = []
    for code, address, value, argument in changes:
        body = freeze(value)[0] if code in _WITH_VALUE else b""
        bodies.append(body)
        size += len(body) + NAMES_BYTES
        if address is not None:
            size += NAME_FACTOR * (len(address[0]) + len(address[1]))
        if type(argument) is str:
            size += NAME_FACTOR * len(argument)
            if code == RETIRE:
                retires.append(argument)
    if size > MAX_COMMIT_BYTES:
        raise LimitExceeded(f"the commit takes {size} bytes as JSON, the limit is {MAX_COMMIT_BYTES}", "split it")
    return Commit(bodies, _PROCESS, retires, size, waiter)


class Writer(Watching):
    """A session's only writer. Thread-safe. Scopes are named by their id, the session scope by ``SESSION``."""

    # --- opening (single-threaded) ----------------------------------------------------------------

    def adopt(self, scope: str, log: LogFile) -> None:
        """Take over a log that recovery has opened."""
        state = self._scopes.get(scope)
        if state is None:
            state = self._scopes[scope] = ScopeState(scope, self.settings.scope_level)
        state.log = log
        if log.header.kind == KIND_MAIN:
            self._inherited = log.last_sequence
        if not log.header.generation:
            self._plan_compaction(log, 0)
        elif self.settings.compact_growth:
            COMPACTORS.submit(partial(self._plan_soon, log, scope))

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

    def wall_ms(self) -> int:
        """Wall-clock time in ms since 1970, by the store's clock."""
        return wall_time(self._env.clock)

    def append(self, place: Place, element: Json, tag: str | None = None, wait: bool = True) -> int:
        """Stage an element through the window and return its sequence; 0, not ``wait``, where it would have to wait
        (for a retirement, or for room) or to store something first.

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
        if tag is not None:
            size += NAME_FACTOR * len(tag) + NAMES_BYTES
        state = place.cached
        if self._owned():
            self._refuse_reentry()
        while True:
            with self._lock:
                if state is None or state.owner is not self or state.scope.blocked or self._bytes + size > self._quota:
                    if not wait:
                        self._check()
                        if self._is_retiring(place.scope_id) or self._unproved():
                            return 0
                    state = self._admit_slowly(place, size)
                if state is not None:
                    scope = state.scope
                    sequence = self._sequence = self._sequence + 1
                    self._bytes += size  # before the call: an interruption may follow it
                    scope.pending.append(
                        (sequence, state.address, body, tag, state, copy if state.coalescer is not None else None)
                    )
                    if scope.deadline is None:
                        self._open_window(scope)
                    if scope.feeds is not None:
                        self._publish(scope)
                    return sequence
                if not wait:
                    return 0
                before = self._bytes
                asked = self._ask_for_flush(None)
            self._make_room(place.scope_id, asked, before)  # at the bound: the caller flushes

    def _make_room(self, scope_id: str, asked: list[tuple[ScopeState, Ticket]], before: int) -> None:
        """Flush; raise what the scope itself met, and what another met only if that made no room."""
        other: ScopelogError | None = None
        for state, ticket in asked:
            try:
                self._run(ticket)
            except ScopelogError as error:
                with self._lock:
                    if state.gone or state.scope == scope_id:
                        raise
                    state.fail(error)
                other = error
        if other is not None and self._bytes >= before:
            raise other

    def _admit_slowly(self, place: Place, size: int) -> ListState | None:
        """Everything about an admission that is not the usual case. None if there is no room for ``size`` bytes."""
        owner = self._unblock(place.scope_id)
        if self._unproved():
            self._prove_epoch()
            owner = self._unblock(place.scope_id)
        if self._sequence >= MAX_SEQUENCE:
            raise LimitExceeded("the session has used up its sequences", "start a new session")
        state = self._lists.get((place.scope_id, place.address))
        if state is not None:
            state.check(place.coalescer)
        if self._bytes + size > self._quota and not self._extend_quota(size) and self._bytes > 0:
            return None
        if state is None:
            state = ListState(self, place.address, owner, place.coalescer)
            owner.lists.append(place.address)
            owner.names_bytes += names_bytes(place.address)
            owner.joins = owner.joins or place.coalescer is not None
            self._lists[place.scope_id, place.address] = state
        place.cached = state
        return state

    def _unblock(self, scope_id: str) -> ScopeState:
        """The scope, once nothing stands against writing to it; raises what does."""
        while True:
            self._check()
            owner = self._scope(scope_id)
            if owner.retiring:
                self._wait_or_lead()
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
        """Store the changes atomically, with what was staged before them in the scope; see scopes/README.md."""
        self._refuse_reentry()
        commit = prepare(changes)
        try:
            with self._lock:
                self._admit(commit, scope, changes, level)
            self._run(commit)
        except BaseException:
            for _ in range(PERSISTENCE):
                try:
                    self._withdraw(commit)
                    break
                except BaseException:  # noqa: BLE001 - the first one is raised
                    continue
            raise
        return new_tuple(Receipt, (commit.first, commit.target))

    def _admit(self, commit: Commit, scope: str, changes: Sequence[Change], level: Durability | None) -> None:
        """Give a commit its sequences and put it before whoever leads next. Holds ``_lock``.

        Waits while the scope is being retired: a task asks :meth:`_is_retiring` first.
        """
        owner = self._scopes.get(scope)
        if owner is None or owner.blocked:
            owner = self._unblock(scope)
        wanted = owner.level if level is None or level < owner.level else level
        if wanted is _PROCESS and not self._epoch_proved and self._unproved():
            self._prove_epoch()
            self._admit(commit, scope, changes, level)
            return
        first = self._sequence + 1
        last = self._sequence + len(changes)
        if last > MAX_SEQUENCE:
            raise LimitExceeded("the session has used up its sequences", "start a new session")
        writes = commit.writes
        sequence = first
        for change, body in zip(changes, commit.bodies, strict=True):
            writes.append((sequence, change[0], change[1], body, change[3]))
            sequence += 1
        commit.first, commit.target, commit.level = first, last, wanted
        self._sequence = last
        commit.owner = owner  # from here on it can be withdrawn
        self._ask(owner, commit)
        owner.pending.append(commit)
        if commit.retires:
            for retired in dict.fromkeys(commit.retires):
                self._set_aside(commit, retired)

    def _is_retiring(self, scope: str) -> bool:
        """Whether a write to the scope would wait for the outcome of a retirement. Holds ``_lock``."""
        state = self._scopes.get(scope)
        return state is not None and bool(state.retiring) and self._unusable is None

    def flush(self, level: Durability | None = None) -> None:
        """Barrier: returns once everything admitted before is stored at its scope's level, or at ``level``."""
        self._refuse_reentry()
        with self._lock:
            self._check()
        self._flush(level)

    def _flush(self, level: Durability | None) -> None:
        with self._lock:
            before = {commit for state in self._scopes.values() for commit in state.retiring}
            while not all(commit.done for commit in before):
                self._wait_or_lead()
            for state in self._scopes.values():
                if isinstance(state.failure, WriteFailed):
                    state.failure = None  # tried again right here
            asked = self._ask_for_flush(level)
        self._run_all([ticket for _, ticket in asked])
        with self._lock:
            for state in self._scopes.values():
                self._raise_failure(state)

    def _ask_for_flush(
        self, level: Durability | None, loop: AbstractEventLoop | None = None
    ) -> list[tuple[ScopeState, Ticket]]:
        """A ticket for every scope that has something to store or to sync; ``loop``: of the task that waits."""
        asked: list[tuple[ScopeState, Ticket]] = []
        for state in self._scopes.values():
            wanted = max(state.level, level or state.level)
            log = state.log
            unsynced = wanted is Durability.POWER and log is not None and log.born and not log.synced
            if state.pending or unsynced:
                waiter = loop.create_future() if loop is not None else None
                ticket = Ticket(last_of(state.pending), wanted, waiter)
                self._ask(state, ticket)
                asked.append((state, ticket))
        return asked

    # --- closing ----------------------------------------------------------------------------------

    def close(self, *, force: bool = False) -> None:
        """Flush, close the logs cleanly and release the lock. Closing twice is legal.

        If the flush fails its error is raised; where staged elements would be lost the handle stays open then, unless
        ``force``, which lets go in any case. Interrupted, it can be called again.
        """
        self._refuse_reentry()
        me = threading.get_ident()
        ended: ScopelogError | None = None
        try:
            with self._lock:
                self._check_fork()
                while self._closing not in (0, me):  # our own number: left by an interruption
                    self._wait()
                if self._closed:
                    return
                ended = self._ended if self._letting_go else self._unusable
                self._closing = me
                # Refuse admissions first: what comes after the flush would be lost.
                self._end(HandleClosed(f"the session {self.session!r} was closed", "open it again"))
                while self._compacting not in (0, me):
                    self._wait()
            failure = self._close(ended, force)
        finally:
            kept: BaseException | None = None
            for _ in range(PERSISTENCE):
                try:
                    self._step_back(me, ended)
                    break
                except BaseException as error:  # noqa: BLE001 - raised below
                    kept = kept or error
            if kept is not None:
                raise kept
        if failure is not None:
            raise failure

    def _close(self, ended: ScopelogError | None, force: bool) -> ScopelogError | None:
        failure: ScopelogError | None = None
        if ended is None and not self._letting_go:
            try:
                self._flush(None)
            except ScopelogError as error:
                failure = error
        self._lead_the_rest()
        with self._lock:
            lost = sum(len(state.pending) + len(state.aside) for state in self._scopes.values())
        if lost:
            failure = failure or ended
            if isinstance(failure, WriteFailed) and not force:
                return failure  # it may go better next time; a poisoned or fenced handle cannot
            _log.error("%s is closed with %d staged elements that could not be stored", self.directory, lost)
        self._ended = ended
        self._letting_go = True  # from here on there is no way back, but closing can be done again
        with self._lock:
            if ended is None:
                self._end_watches(EndReason.CLOSED)
            else:
                self._end_watches(EndReason.FAILED, ended)
            self._tell()
        for state in [*self._scopes.values()][::-1]:
            failure = self._close_log(state, ended is None) or failure
        if self._doomed:
            self._unlink_doomed()
        self._writer_lock.release()
        self._closed = True
        self._env.give_back(self._quota)
        self._quota = 0
        self._env.forget(self)
        return failure

    def _lead_the_rest(self) -> None:
        """Answer those who have asked for something that closing itself does not store: a task's flush at POWER."""
        while True:
            with self._lock:
                while self._leader or self._gate:
                    self._wait()
                if not self._asked:
                    return
            self._lead()

    def _step_back(self, me: int, ended: ScopelogError | None) -> None:
        """No longer closing; unless the logs were let go of, the session goes on as it was."""
        with self._lock:
            if self._closing == me:
                if not self._letting_go:  # interrupted, or staged elements would be lost
                    self._reopen(ended)
                self._closing = 0
                self._tell()

    def _reopen(self, ended: ScopelogError | None) -> None:
        self._unusable = ended
        for state in self._scopes.values():
            if state.pending and not state.retiring:
                self._open_window(state)

    def _close_log(self, state: ScopeState, clean: bool) -> ScopelogError | None:
        log = state.log
        if log is None:
            return None
        # A sidecar at PROCESS is never synced for the sake of closing: it has no closing frame then.
        clean = clean and (state is self._main or log.synced) and log.poison is None
        fenced = self._fenced() if clean and (log.touched or not log.clean) else None
        clean = clean and fenced is None
        told = self._told(log) if clean and state is self._main and self._env.keeps_catalogue else None
        try:
            last = self._index.at_close if state is self._main and self._index is not None else None
            log.close(clean=clean, last=last)
        except ScopelogError as error:
            return error
        except OSError as failure:
            return unasked(failure)
        if fenced is not None:
            return fenced
        if told is not None and log.closing is not None:
            offset, frame = log.closing
            # Closing adds one mark, which is above all before it.
            self._env.closed(told._replace(syncs=told.syncs + 1, bytes=offset + len(frame)), frame)
        return None

    def _fenced(self) -> ScopelogError | None:
        """What stands against closing frames, which are appends like any other: the session is somebody else's now."""
        try:
            self._writer_lock.check()
        except HandleFenced as error:
            return error
        except OSError as error:
            failed = WriteFailed(
                f"the disk could not be asked for {self._writer_lock.path} ({error}), so that closing wrote nothing",
                "mend it; nothing that was acknowledged is lost",
            )
            failed.__cause__ = error
            return failed
        return None

    def _told(self, log: LogFile) -> SessionInfo | None:
        """What the catalogue is to know once the log is closed; None if it knows, or if damage hides it."""
        if not log.born or not (log.touched or not log.clean):
            return None
        try:
            return info_of(log.view, self.session)
        except ScopelogError as error:
            _log.info("%s is not told to the catalogue: %s", self.directory, error)
            return None

    def flush_soon(self, limit: float) -> None:
        """Ask the flusher for everything that is staged, now. Waits no longer than to ``limit``, as below."""
        now = self._env.clock.monotonic()
        if not self._lock.acquire(timeout=max(0.0, limit - time.monotonic())):
            return
        try:
            for state in self._scopes.values():
                if state.pending and not state.retiring:
                    state.deadline = now
        finally:
            self._lock.release()
        self._env.schedule(self, now)

    def wait_until_stored(self, limit: float) -> bool:
        """Whether nothing was left staged at ``limit`` (monotonic seconds of the system clock)."""
        if not self._lock.acquire(timeout=max(0.0, limit - time.monotonic())):
            return False
        try:
            while any(state.pending for state in self._scopes.values()):
                left = limit - time.monotonic()
                if left <= 0 or self._unusable is not None:
                    return False
                self._wait(left)
        finally:
            self._lock.release()
        return True

    def after_fork(self) -> None:
        """In the child: let go of the lock's copy, so that the parent's flock is not kept alive; refuse every call."""
        self._lock = threading.RLock()  # the old one may be held by a thread that does not exist here
        self._owned = self._lock._is_owned  # type: ignore[attr-defined]
        self._changed = threading.Condition(self._lock)
        self._leader = self._closing = 0  # threads that do not exist here, but whose numbers may come again
        forked = HandleForked(
            f"the session {self.session!r} was opened by process {os.getppid()} and came here through fork",
            "open the store again in this process, once the parent has closed it",
        )
        self._end(forked)
        for feed in self._all_feeds():
            feed.after_fork(End(EndReason.FAILED, forked))
        self._writer_lock.release()  # the logs' files were closed by their pool

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

    def _unproved(self) -> bool:
        """Whether the epoch must be made durable first: before an element is shown that no synced frame of this epoch
        precedes. A lost epoch must not come again."""
        main = self._main.log
        if main is not None and main.epoch_durable:
            self._epoch_proved = True
        return not self._epoch_proved

    def _prove_epoch(self) -> None:
        """See :meth:`_unproved`. Holds ``_lock`` and lets go of it for the sync, which may take long: look again."""
        self._across(partial(self._without_lock, self.prove_epoch))

    def prove_epoch(self) -> None:
        """Make the epoch durable, without ``_lock``. Several threads may do it at once."""
        try:
            self._writer_lock.sync()
        except OSError as error:
            if self._unusable is not None:  # closed meanwhile, and the lock file with it
                raise self._unusable.again() from self._unusable
            raise WriteFailed(
                f"the epoch could not be noted in {self._writer_lock.path} ({error})", "try again"
            ) from error
        self._epoch_proved = True
