"""How quick the disk is, measured as it runs: quick enough to be written from an event loop, or not.

A thread beside a busy interpreter pays one switch interval (5 ms) for every system call it comes back from, so that a
write of 0.2 ms takes ten and more there. So a loop writes inline as long as that is quick, and hands over to a thread
on slow disks alone; and where the thread turns out to be ten times worse than the disk, only on very slow ones. What a
thread measures beside a busy loop says little of the disk; so a slow one is tried inline again, at intervals that
double up to a minute.
"""

from __future__ import annotations

from typing import Final

QUICK: Final = 0.002  # seconds one sync may hold a loop, on average
TOLERABLE: Final = 0.02  # the same, where threads are much worse
_MUCH_WORSE: Final = 10
_FORGET: Final = 10.0  # seconds for which that is remembered
_WEIGHT: Final = 1 / 8  # of the newest sync in the average
_FIRST_TRIAL: Final = 0.1  # seconds until a slow disk is tried inline
_LAST_TRIAL: Final = 60.0


class Pace:
    """One disk, as all sessions of a store find it. Until something was measured it is taken to be quick.

    ``quick``: what the last syncs say. Races between threads cost a measurement, nothing else.
    """

    __slots__ = ("_average", "_interval", "_next_trial", "_tolerant_until", "quick")

    def __init__(self) -> None:
        self.quick = True
        self._average = 0.0
        self._interval = _FIRST_TRIAL
        self._next_trial = 0.0
        self._tolerant_until = float("-inf")

    def inline(self, now: float) -> bool:
        """Whether what begins at monotonic second ``now`` may hold a loop."""
        if self.quick:
            return True
        if now < self._next_trial:
            return False
        self._next_trial = now + self._interval  # a trial; the next one, should this measure nothing
        return True

    def measured(self, seconds: float, now: float) -> None:
        """A sync that held a loop took so long; it ended at monotonic second ``now``."""
        self._average += (seconds - self._average) * _WEIGHT
        limit = TOLERABLE if now < self._tolerant_until else QUICK
        if self.quick:
            if self._average < limit:
                return
            self.quick = False
            self._interval = _FIRST_TRIAL
        elif seconds < limit:
            self.quick = True
            self._average = seconds
        else:
            self._interval = min(self._interval * 2, _LAST_TRIAL)
        self._next_trial = now + self._interval

    def handed_over(self, seconds: float, now: float) -> None:
        """A thread took so long to store something, from being asked on; it was done at monotonic second ``now``."""
        if not self.quick and QUICK <= self._average < TOLERABLE and seconds > _MUCH_WORSE * self._average:
            self._tolerant_until = now + _FORGET
            self.quick = True
