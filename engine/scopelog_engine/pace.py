"""How quick the disk is, measured as it runs: quick enough to be written from an event loop, or not.

A thread beside a busy interpreter pays one switch interval (5 ms) for every system call it comes back from, so that a
write of 0.2 ms takes ten and more there. So a loop writes inline as long as that is quick, and hands over to a thread
on slow disks alone. What a thread measures beside a busy loop says little; so a slow disk is tried inline again, at
intervals that double up to a minute.
"""

from __future__ import annotations

from typing import Final

QUICK: Final = 0.002  # seconds one sync may hold a loop, on average
_WEIGHT: Final = 1 / 8  # of the newest sync in the average
_FIRST_TRIAL: Final = 0.1  # seconds until a slow disk is tried inline
_LAST_TRIAL: Final = 60.0


class Pace:
    """One disk, as all sessions of a store find it. Until something was measured it is taken to be quick.

    ``quick``: what the last syncs say. Races between threads cost a measurement, nothing else.
    """

    __slots__ = ("_average", "_interval", "_next_trial", "quick")

    def __init__(self) -> None:
        self.quick = True
        self._average = 0.0
        self._interval = _FIRST_TRIAL
        self._next_trial = 0.0

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
        if self.quick:
            if self._average < QUICK:
                return
            self.quick = False
            self._interval = _FIRST_TRIAL
        elif seconds < QUICK:
            self.quick = True
            self._average = seconds
        else:
            self._interval = min(self._interval * 2, _LAST_TRIAL)
        self._next_trial = now + self._interval
