"""What an open session knows: the fields that admission, storing, retiring and reading share."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .durability import Durability
from .environment import Counters, Environment, Settings
from .errors import CoalescerFailed, InvalidInput, ScopelogError
from .feeds import Feed, ScopeFeeds
from .lines import Address
from .lock import WriterLock
from .logfile import LogFile
from .recovery import Recovery
from .scope import (
    ENTRY_OVERHEAD,
    LAST_BACKOFF,
    SESSION,
    Commit,
    ListState,
    ScopeState,
    Staged,
    Ticket,
    text_bytes,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

PERSISTENCE: Final = 100  # interruptions that settling survives
_POWER: Final = Durability.POWER  # an enum's members are slow to look up


class Outcome(NamedTuple):
    """What became of a batch. ``kept``: its staged elements as they were joined, so that a failed batch is written
    the same way again; None if they were not joined yet."""

    kept: list[Staged] | None
    failed_join: CoalescerFailed | None
    error: ScopelogError | None
    stored: bool


class Work:
    """What the leader took from one scope. It stays in ``_work`` until it is settled, whoever does that."""

    __slots__ = ("batch", "before", "commits", "log", "outcome", "poisoned", "state", "sync", "tickets")

    def __init__(self, state: ScopeState, batch: list[Any], tickets: list[Ticket]) -> None:
        self.state = state
        self.batch = batch  # Staged | Commit, the first of what is pending
        self.tickets = tickets
        self.commits: list[Commit] = []  # those of the batch; each is a ticket too
        self.sync = False
        self.before = 0
        self.poisoned = False
        self.log: LogFile | None = None
        if state.log is not None:
            self.begin_with(state.log)
        self.outcome: Outcome | None = None  # None: not begun, or interrupted
        for ticket in tickets:
            self.sync = self.sync or ticket.level is _POWER
            if isinstance(ticket, Commit):
                self.commits.append(ticket)

    def begin_with(self, log: LogFile) -> LogFile:
        """The log as it stands before this work: interrupted, the difference tells what became of it."""
        self.before = log.end
        self.poisoned = log.poison is not None
        self.log = log  # last
        return log


class Request:
    """What a task waits for. ``answer`` is asked under ``_lock`` and returns NOT_YET until it can say; ``idle``: only
    while nobody is storing. ``undo`` takes back an answer that nobody wanted any more."""

    __slots__ = ("answer", "future", "idle", "undo")

    def __init__(
        self,
        answer: Callable[[], Any],
        future: Future[Any],
        *,
        idle: bool = False,
        undo: Callable[[Any], None] | None = None,
    ) -> None:
        self.answer = answer
        self.future = future
        self.idle = idle
        self.undo = undo


NOT_YET: Final = object()


class SessionState(ABC):
    """Fields of an open session, and the small steps that all its parts share. ``_lock`` guards every field."""

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
        self._index = environment.index.log(os.path.basename(directory)) if environment.index is not None else None
        self._writer_lock = lock
        self._lock = threading.RLock()  # its ownership can be asked, and a wait always gets it back
        self._owned = self._lock._is_owned  # type: ignore[attr-defined]
        self._changed = threading.Condition(self._lock)
        self._leader = 0  # the thread that leads, 0 if none does
        self._work: list[Work] = []  # in the leader's hands, or left by an interrupted one
        self._waiting = 0  # threads that want to be told of changes
        self._readers = 0  # of these: readers that wait for the leader alone
        self._gate = 0  # readers to be let in before the next leader
        self._asked: list[ScopeState] = []  # scopes with tickets
        self._led_soon: set[AbstractEventLoop] = set()  # loops that lead at the end of their iteration
        self._want_to_lead: set[AbstractEventLoop] = set()  # loops that found another leader
        self._woken: list[Future[None]] = []  # of tasks whose tickets are done
        self._requests: list[Request] = []  # of tasks that wait for something else
        self._unusable: ScopelogError | None = None
        self._closing = 0  # the thread that is closing
        self._compacting = 0  # the thread that compacts
        self._ended: ScopelogError | None = None  # what had ended the handle before it was closed
        self._letting_go = False
        self._closed = False
        self._sequence = sequence  # the last one handed out
        self._scopes: dict[str, ScopeState] = {}
        self._lists: dict[tuple[str, Address], ListState] = {}
        self._main = self._scopes[SESSION] = ScopeState(SESSION, settings.session_level)
        self._bytes = 0  # waiting, over all scopes
        self._quota = 0  # reserved of the store's bound
        self._doomed: list[tuple[str, int]] = []  # sidecars to unlink once main is durable up to the sequence
        self._undurable: dict[str, int] = {}  # retirements that main has not synced yet
        self._inherited = 0  # main's last sequence when it was opened: of what is not durable up to it nobody knows
        self._watched: dict[str, ScopeFeeds] = {}  # scopes that somebody watches, alive or not
        self._guests: list[Feed] = []  # feeds of others, which end with the session
        self._epoch_proved = False
        self._batches = 0
        self._failures = 0

    @abstractmethod
    def flush_due(self, now: float) -> float | None:
        """Store every window whose deadline has passed; the flusher calls this. Returns the next deadline."""

    @abstractmethod
    def keep_deadline(self, loop: AbstractEventLoop, when: float) -> None:
        """Have the running loop store what is due at monotonic second ``when``. Holds ``_lock``."""

    @abstractmethod
    def flusher_failed(self, error: Exception) -> None:
        """The flusher met an error outside of any scope: raise it at the next call, and try again."""

    def _ask(self, state: ScopeState, ticket: Ticket) -> None:
        """Put a ticket before whoever leads next. Holds ``_lock``."""
        if not state.tickets:
            self._asked.append(state)
        state.tickets.append(ticket)

    def _refuse_reentry(self) -> None:
        """A call from inside another one of the same thread (a signal handler, a coalescer) would wait for itself."""
        if self._leader == threading.get_ident() or self._owned():
            raise InvalidInput(
                "the session was called from inside one of its own calls, by a signal handler or a coalescer",
                "set a flag there, and call once the outer call has returned",
            )

    def _wait(self, seconds: float | None = None) -> None:
        """Let go of ``_lock`` until something changes, or for so long."""
        self._waiting += 1
        try:
            self._across(partial(self._changed.wait, seconds))
        finally:
            self._waiting -= 1

    def _across(self, call: Callable[[], object]) -> None:
        """Make a call that lets go of ``_lock``, and hold it again afterwards, however often that is interrupted: what
        was raised first is raised once it is held, for who called us is about to let go of it."""
        kept: BaseException | None = None
        try:
            call()
        finally:
            for _ in range(PERSISTENCE):  # in this very frame: a second interruption may meet the call itself
                try:
                    if not self._owned():
                        self._lock.acquire()
                    break
                except BaseException as error:  # noqa: BLE001 - raised below
                    kept = kept or error
            if kept is not None:
                raise kept

    def _without_lock(self, call: Callable[[], object]) -> None:
        """To be handed to :meth:`_across`."""
        self._lock.release()
        call()

    def _tell(self) -> None:
        if self._waiting:
            self._changed.notify_all()
        if self._requests:
            self._serve(idle=not self._leader)

    @abstractmethod
    def _serve(self, *, idle: bool) -> None:
        """Answer the tasks whose requests can be answered now; ``idle``: nobody is storing. Holds ``_lock``."""

    def _open_window(self, state: ScopeState) -> None:
        when = self._env.clock.monotonic() + self.settings.window
        state.deadline = when if self._env.schedule(self, when) else None

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
            when = self._env.clock.monotonic() + max(state.backoff, self.settings.window)
            state.backoff = min(state.backoff * 2, LAST_BACKOFF)
            state.deadline = when if self._env.schedule(self, when) else None


def staged_of(entries: Sequence[Staged | Commit]) -> list[Staged]:
    return [entry for entry in entries if not isinstance(entry, Commit)]


def staged_bytes(entries: Sequence[Staged]) -> int:
    """What staged elements count for against the bounds."""
    texts = [len(entry[2]) if entry[3] is None else text_bytes(entry) for entry in entries]
    return sum(texts) + ENTRY_OVERHEAD * len(entries)
