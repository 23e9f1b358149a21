"""Virtual time for event loops, worker threads, flushers and disks, so that a test of all of them is deterministic.

One thing happens at a time. While the test's thread runs, every other thread is parked; when its loop has nothing left
to do (or the thread itself sleeps, or waits inside the engine), the earliest of what is due is let go on until it
sleeps, waits or ends: a call handed to a worker, a disk that was slow, an alarm of a flusher. Where nothing is left
that could ever wake the waiter, :class:`Stuck` is raised instead of hanging.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import selectors
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final

from scopelog_engine.clock import Alarm
from scopelog_engine.workers import ATTEMPTS

PATIENCE: Final = 60.0  # seconds of real time until a thread that neither sleeps nor ends is called hung
FOREVER: Final = float("inf")


class Stuck(BaseException):
    """Somebody waits for what can never come. Not an ``Exception``: no handler of a loop may swallow it."""


class Thread:
    """A parked or running thread that the rig started."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)


class VirtualTime:
    """Time, and who may run. ``main``: the thread of the test, whose loops are the only ones; the others are ours."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.log: list[str] = []  # what was let go on, in order
        self.held = 0.0  # seconds that the main thread has slept
        self.around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext  # a thread's work
        self.flusher_off = False  # alarms do not go off
        self._main = threading.get_ident()
        self._turn = threading.Semaphore(0)  # given back to the main thread
        self._mine: dict[int, Thread] = {}
        self._order = count()
        self._due: list[tuple[float, int, str, Callable[[], None]]] = []

    # --- what is due ------------------------------------------------------------------------------

    def at(self, when: float, what: str, call: Callable[[], None]) -> None:
        """Have the main thread make a call, which lets some thread go on, once it is idle at ``when`` or later."""
        heapq.heappush(self._due, (when, next(self._order), what, call))

    def step(self, limit: float) -> bool:
        """Let the earliest of what is due by ``limit`` happen; False if there is nothing."""
        kept = [entry for entry in self._due if self.flusher_off and entry[2] == "flusher"]
        wanted = [entry for entry in self._due if entry not in kept]
        if not wanted or min(wanted)[0] > limit:
            return False
        when, _, what, call = entry = min(wanted)
        self._due.remove(entry)
        heapq.heapify(self._due)
        self.now = max(self.now, when)
        self.log.append(what)
        call()
        return True

    def run(self, what: str, call: Callable[[], object]) -> None:
        """Start a thread that makes a call, and let it run until it parks or ends."""

        def body() -> None:
            self._mine[threading.get_ident()] = me
            try:
                for _ in range(ATTEMPTS):  # as a worker does
                    with contextlib.suppress(Exception), self.around():
                        call()
                        break
            finally:
                del self._mine[threading.get_ident()]
                self._turn.release()

        me = Thread()
        threading.Thread(target=body, name=f"scopelog-{what}", daemon=True).start()
        self._take_turn()

    def resume(self, thread: Thread) -> None:
        thread.go.release()
        self._take_turn()

    def _take_turn(self) -> None:
        assert threading.get_ident() == self._main
        if not self._turn.acquire(timeout=PATIENCE):
            raise Stuck("a thread neither sleeps, nor waits, nor ends")

    # --- waiting ----------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Let so much time pass for this thread: the main thread is held, any other one parks."""
        until = self.now + seconds
        me = self._mine.get(threading.get_ident())
        if me is None:
            while self.step(until):
                pass
            self.now = max(self.now, until)
            self.held += seconds
            return
        self.at(until, "disk", lambda: self.resume(me))
        self.park(me)

    def park(self, me: Thread) -> None:
        self._turn.release()
        assert me.go.acquire(timeout=10 * PATIENCE)

    def wait(self, gate: threading.Semaphore, resumed: list[Thread]) -> None:
        """Wait for a gate that another thread opens; the one who opens it resumes those of ``resumed``."""
        me = self._mine.get(threading.get_ident())
        if me is not None:
            resumed.append(me)
            self.park(me)
            return
        while not gate.acquire(blocking=False):
            if not self.step(FOREVER):
                raise Stuck("a call on the loop's thread waits for ever")


class VirtualCondition:
    """In place of a session's ``_changed``: who waits in it lets the others go on."""

    def __init__(self, time: VirtualTime, lock: Any) -> None:
        self._time = time
        self._lock = lock
        self._waiting: list[tuple[threading.Semaphore, list[Thread]]] = []

    def wait(self, seconds: float | None = None) -> bool:
        assert seconds is None, "only the interpreter's end waits for a limited time"
        entry: tuple[threading.Semaphore, list[Thread]] = (threading.Semaphore(0), [])
        self._waiting.append(entry)
        self._lock.release()
        try:
            self._time.wait(*entry)
        finally:
            self._lock.acquire()
        return True

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for gate, threads in waiting:
            gate.release()
            for thread in threads:
                self._time.at(self._time.now, "woken", partial(self._time.resume, thread))


class VirtualWorkers:
    """In place of the engine's worker threads: a call waits for its turn."""

    def __init__(self, time: VirtualTime, what: str) -> None:
        self._time = time
        self._what = what
        self.none = False  # there is no thread to be had
        self.busy = False  # all threads are busy
        self.submitted = 0
        self.ended = 0

    def submit(self, call: Callable[[], None], *, queue: bool = True) -> bool:
        if self.none or (self.busy and not queue):
            return False
        self.submitted += 1
        self._time.at(self._time.now, self._what, lambda: self._time.run(self._what, lambda: self._make(call)))
        return True

    def _make(self, call: Callable[[], None]) -> None:
        call()
        self.ended += 1


class VirtualAlarm:
    """A flusher: its callback runs on a thread of its own, one at a time."""

    def __init__(self, time: VirtualTime, callback: Callable[[], float | None]) -> None:
        self._time = time
        self._callback = callback
        self._when: float | None = None
        self._busy = False
        self.closed = False

    def set(self, when: float) -> None:
        if not self.closed and (self._when is None or when < self._when):
            self._when = when
            if not self._busy:
                self._time.at(when, "flusher", lambda: self._fire(when))

    def close(self) -> None:
        self.closed = True

    def _fire(self, when: float) -> None:
        if self._when == when and not self._busy and not self.closed:
            self._when = None
            self._busy = True
            self._time.run("flusher", self._run)

    def _run(self) -> None:
        again = self._callback()
        self._busy = False
        pending, self._when = self._when, None
        for when in (pending, again):
            if when is not None:
                # A deadline that is due by a rounding error alone would be asked for again at this very moment.
                self.set(max(when, self._time.now + 1e-9) if when is again else when)


class VirtualClock:
    """The clock of a store: :class:`VirtualTime`, with flushers that run by themselves."""

    runs_by_itself = True

    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self.alarms: list[VirtualAlarm] = []

    def monotonic(self) -> float:
        return self.time.now

    def wall_ms(self) -> int:
        return 1_764_547_200_000 + round(self.time.now * 1000)

    def alarm(self, callback: Callable[[], float | None]) -> Alarm:
        self.alarms.append(VirtualAlarm(self.time, callback))
        return self.alarms[-1]


class _Selector(selectors.DefaultSelector):
    time: VirtualTime

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if found or timeout == 0:
            return found
        until = FOREVER if timeout is None else self.time.now + timeout
        if self.time.step(until):
            found = super().select(0)
        elif timeout is None:
            raise Stuck("the loop waits for ever")
        else:
            self.time.now = until
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop of :class:`VirtualTime`, on the test's thread. Errors in callbacks are kept in ``errors``."""

    def __init__(self, time: VirtualTime) -> None:
        selector = _Selector()
        selector.time = time
        super().__init__(selector)
        self.virtual = time
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda loop, context: self.errors.append(context))

    def time(self) -> float:
        return self.virtual.now
