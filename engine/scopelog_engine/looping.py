"""Event loops that a session serves: which of them leads, and who keeps a window's deadline.

No task ever holds the session while it is suspended: whoever leads, loop or thread, stores and settles in one go. So
nothing here waits for a loop, a loop that ends leaves nothing undone but what it had promised to do, and for that a
thread stands by: the deadline of every window, and of every commit asked for by a task, is noted with the store's
flusher too, :data:`GRACE` later.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .loops import running_loop, wake
from .retiring import Retiring
from .scope import ScopeState, Ticket
from .state import NOT_YET, Request
from .workers import WRITERS

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

GRACE: Final = 0.1  # seconds a loop may be late before the flusher does its work
_SLICE: Final = 8  # scopes that one loop stores in one go, so that it is not held by a thousand
_MANY: Final = 4  # loops remembered before the closed ones are forgotten


class Looping(Retiring):
    """The part of a session that event loops call, and that calls them."""

    _timer: TimerHandle | None = None  # of the loop that keeps the next deadline
    _timer_loop: AbstractEventLoop | None = None
    _timer_when: float = 0.0

    # --- who leads ----------------------------------------------------------------------------------

    @abstractmethod
    def _lead(self, most: int | None = None, ticket: Ticket | None = None) -> bool:
        """Store what is asked for, unless somebody else does; never waits."""

    def _lead_soon(self, loop: AbstractEventLoop) -> None:
        """Have the loop lead once its ready tasks have run, so that their commits share a batch. Holds ``_lock``."""
        if loop not in self._led_soon:
            if len(self._led_soon) > _MANY:
                self._led_soon = {one for one in self._led_soon if not one.is_closed()}
            loop.call_soon(self._lead_from, loop)
            self._led_soon.add(loop)

    def _lead_from(self, loop: AbstractEventLoop) -> None:
        """On the loop's thread: store what is asked for, inline while the disk is quick, else in a thread."""
        with self._lock:
            self._led_soon.discard(loop)
            if not self._asked:
                return
            if self._leader or self._gate:
                self._want_to_lead.add(loop)
                return
        env = self._env
        if not env.pace.quick:
            now = env.clock.monotonic()
            if not env.pace.inline(now) and WRITERS.submit(partial(self._lead_all, now)):
                return
        syncs, seconds = self.counters.syncs, self.counters.sync_seconds
        try:
            self._lead(_SLICE)
        except Exception as error:  # noqa: BLE001 - told to those who wait
            self._fail_tasks(error)
        except BaseException:
            with self._lock:
                self._lead_soon(loop)
            raise
        syncs = self.counters.syncs - syncs
        if syncs:
            env.pace.measured((self.counters.sync_seconds - seconds) / syncs, env.clock.monotonic())
        if self._asked:
            with self._lock:
                if self._asked:
                    self._lead_soon(loop)

    def _lead_all(self, asked: float) -> None:
        """In a worker thread, which was asked to at monotonic second ``asked``."""
        try:
            while self._lead():
                now = self._env.clock.monotonic()
                self._env.pace.handed_over(now - asked, now)
                asked = now
        except Exception as error:  # noqa: BLE001 - told to those who wait
            self._fail_tasks(error)

    def _kick(self) -> None:
        """Whoever led steps down while more is asked for: have the loops try again. Holds ``_lock``."""
        while self._want_to_lead:
            loop = self._want_to_lead.pop()
            try:
                loop.call_soon_threadsafe(self._lead_from, loop)
            except RuntimeError:  # it is closed: what it asked for falls to the flusher
                continue
            self._led_soon.add(loop)

    # --- who keeps deadlines --------------------------------------------------------------------------

    def keep_deadline(self, loop: AbstractEventLoop, when: float) -> None:
        """Have the running loop store what is due at monotonic second ``when``. Holds ``_lock``."""
        timer, known = self._timer, self._timer_loop
        if timer is not None and known is not None and not known.is_closed():
            if self._timer_when <= when:
                return
            if known is loop:
                timer.cancel()
        self._timer_loop = loop
        self._timer_when = when
        self._timer = loop.call_later(max(0.0, when - self._env.clock.monotonic()), self._on_timer, loop)

    def _on_timer(self, loop: AbstractEventLoop) -> None:
        with self._lock:
            if self._timer_loop is loop:
                self._timer = None
            if self._unusable is not None:
                return
            _, again = self._ask_due(self._env.clock.monotonic())
            if again is not None:
                self.keep_deadline(loop, again)
        self._lead_from(loop)

    @abstractmethod
    def _ask_due(self, now: float) -> tuple[list[tuple[ScopeState, Ticket]], float | None]:
        """Ask for every window whose deadline has passed; returns tickets and the next deadline. Holds ``_lock``."""

    @abstractmethod
    def _fail_tasks(self, error: Exception) -> None:
        """Tell those who would wait for ever."""

    # --- tasks ----------------------------------------------------------------------------------------

    def _serve(self, *, idle: bool) -> None:
        """See :meth:`SessionState._serve`. An interruption may have a request answered twice, never not at all."""
        left: list[Request] = []
        for request in self._requests:
            if request.future.done():
                continue  # cancelled
            if request.idle and not idle:
                left.append(request)
                continue
            failure: Exception | None = None
            answer: Any = None
            try:
                answer = request.answer()
            except Exception as error:  # noqa: BLE001 - told to the task that asked: whoever serves it is another one
                failure = error
            if answer is NOT_YET:
                left.append(request)
            else:
                _deliver(request, answer, failure)
        self._requests = left

    def _wake(self) -> None:
        if self._woken:
            wake(self._woken)
            self._woken = []


def _deliver(request: Request, answer: Any, failure: Exception | None) -> None:
    loop = request.future.get_loop()
    if loop is running_loop():
        _resolve(request, answer, failure)
        return
    try:
        loop.call_soon_threadsafe(_resolve, request, answer, failure)
    except RuntimeError:  # closed: nobody waits
        if failure is None and request.undo is not None:
            request.undo(answer)


def _resolve(request: Request, answer: Any, failure: Exception | None) -> None:
    future = request.future
    if future.done():
        if failure is None and request.undo is not None:
            request.undo(answer)
    elif failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(answer)
