"""Time, as the engine sees it: a seam of two readings and one alarm, so that tests own the clock."""

from __future__ import annotations

import heapq
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger(__name__)
_MOST_MS = 2**53  # beyond all dates
_AFTER_FAILURE = 1.0  # seconds until a callback that failed is called again


class Alarm(Protocol):
    """One pending wake-up. ``callback`` runs at the deadline and returns the next deadline, or None."""

    def set(self, when: float) -> None:
        """Wake at monotonic second ``when`` or at an earlier deadline already set."""

    def close(self) -> None:
        """Stop for good. Returns once no callback is running (unless called from the callback)."""


class Clock(Protocol):
    """Source of time. ``monotonic`` is in seconds and drives windows; ``wall_ms`` is data only."""

    runs_by_itself: bool
    """Whether alarms go off without anybody moving the clock."""

    def monotonic(self) -> float: ...

    def wall_ms(self) -> int: ...

    def alarm(self, callback: Callable[[], float | None]) -> Alarm: ...


def wall_time(clock: Clock) -> int:
    """The wall clock's time in whole ms. It is data alone, so a clock that says what is no time must not stop a write:
    that is 0 then."""
    now: float = clock.wall_ms()
    if type(now) is not int:
        now = int(now) if math.isfinite(now) else 0
    return now if -_MOST_MS < now < _MOST_MS else 0


class SystemClock:
    """The operating system's clocks; each alarm owns one daemon thread, started at its first use."""

    runs_by_itself = True

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def alarm(self, callback: Callable[[], float | None]) -> Alarm:
        return _ThreadAlarm(callback)


class _ThreadAlarm:
    def __init__(self, callback: Callable[[], float | None]) -> None:
        self._callback = callback
        self._ready = threading.Condition(threading.Lock())
        self._when: float | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def set(self, when: float) -> None:
        with self._ready:
            if self._closed:
                return
            if self._when is None or when < self._when:
                self._when = when
                self._ready.notify()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="scopelog-flusher", daemon=True)
                thread.start()  # may fail for want of threads: tried again by the next window
                self._thread = thread

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._closed:
                    if self._when is None:
                        self._ready.wait()
                        continue
                    left = self._when - time.monotonic()
                    if left <= 0:
                        break
                    self._ready.wait(left)
                if self._closed:
                    return
                self._when = None
            try:
                again = self._callback()
            except Exception as error:  # noqa: BLE001 - the one thread that keeps all deadlines must not die of one
                _log.error("an alarm failed with %s; it will be tried again", type(error).__name__)
                again = time.monotonic() + _AFTER_FAILURE
            if again is not None:
                self.set(again)


class ManualClock:
    """A clock that moves only when told: ``advance`` runs the alarms that fall due, in order, in the caller."""

    runs_by_itself = False

    def __init__(self, start: float = 0.0, wall_ms: int = 1_764_547_200_000) -> None:
        self._now = start
        self._wall_ms = wall_ms
        self._due: list[tuple[float, int, _ManualAlarm]] = []
        self._tick = 0

    def monotonic(self) -> float:
        return self._now

    def wall_ms(self) -> int:
        return self._wall_ms

    def set_wall_ms(self, value: int) -> None:
        """Move the wall clock alone, forwards or backwards."""
        self._wall_ms = value

    def alarm(self, callback: Callable[[], float | None]) -> Alarm:
        return _ManualAlarm(self, callback)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass and run every alarm that falls due on the way, earliest first."""
        target = self._now + seconds
        while self._due and self._due[0][0] <= target:
            when, _, alarm = heapq.heappop(self._due)
            self._move(max(self._now, when))
            alarm.fire(when)
        self._move(target)

    def _move(self, now: float) -> None:
        self._wall_ms += round((now - self._now) * 1000)
        self._now = now

    def push(self, when: float, alarm: _ManualAlarm) -> None:
        self._tick += 1
        heapq.heappush(self._due, (when, self._tick, alarm))


class _ManualAlarm:
    def __init__(self, clock: ManualClock, callback: Callable[[], float | None]) -> None:
        self._clock = clock
        self._callback = callback
        self._when: float | None = None
        self._closed = False

    def set(self, when: float) -> None:
        if not self._closed and (self._when is None or when < self._when):
            self._when = when
            self._clock.push(when, self)

    def close(self) -> None:
        self._closed = True

    def fire(self, when: float) -> None:
        if self._closed or self._when != when:
            return  # moved to an earlier deadline, or closed
        self._when = None
        again = self._callback()
        if again is not None:
            self.set(again)
