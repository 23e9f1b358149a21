"""Threads for what may not hold an event loop: daemons, few, started when they are needed, gone when they are idle.

Daemons, unlike those of ``concurrent.futures``, because the interpreter must never wait at its end for a disk that
hangs. What a killed process leaves behind is what recovery is for.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)
_LIMIT: Final = 8
_IDLE_SECONDS: Final = 10.0
ATTEMPTS: Final = 3


class Workers:
    """At most ``limit`` threads that run calls in the order of :meth:`submit`."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._ready = threading.Condition(threading.Lock())
        self._calls: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0

    def submit(self, call: Callable[[], None], *, queue: bool = True) -> bool:
        """Have ``call`` run by a thread. False if there is no thread to be had, or unless ``queue`` if all are busy.

        It must not raise. One that does, for want of memory at its very entry, is called again: it must bear that."""
        with self._ready:
            if self._idle <= len(self._calls):
                if self._threads < self._limit:
                    try:
                        threading.Thread(target=self._run, name="scopelog-worker", daemon=True).start()
                        self._threads += 1
                    except RuntimeError as error:
                        if not (self._threads and queue):
                            _log.warning("no thread could be started: %s", error)
                            return False
                elif not queue:
                    return False
            self._calls.append(call)
            self._ready.notify()
        return True

    def _run(self) -> None:
        while True:
            with self._ready:
                self._idle += 1
                try:
                    if not self._calls and not self._ready.wait_for(lambda: bool(self._calls), _IDLE_SECONDS):
                        self._threads -= 1
                        return
                    call = self._calls.popleft()
                finally:
                    self._idle -= 1
            for _ in range(ATTEMPTS):
                try:
                    call()
                    break
                except Exception as error:  # noqa: BLE001 - a worker outlives its calls, whose errors are theirs to tell
                    _log.error("a call in a worker thread failed: %s", type(error).__name__)
            del call  # what it holds must not wait with us for the next one

    def after_fork(self) -> None:
        """In the child there are no threads."""
        self.__init__(self._limit)  # type: ignore[misc]


WRITERS: Final = Workers()  # store what sessions were asked to store
WORKERS: Final = Workers()  # run calls for tasks; those may take long
COMPACTORS: Final = Workers(1)  # compact logs that have grown


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WRITERS.after_fork)
    os.register_at_fork(after_in_child=WORKERS.after_fork)
    os.register_at_fork(after_in_child=COMPACTORS.after_fork)
