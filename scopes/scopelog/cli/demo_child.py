"""The recorder of the demonstration: a ``scopelog record`` in a process of its own, which can be killed."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from typing import Any, Final

from .demo_show import SESSION, STORE, WINDOW_MS, Broken

PACE: Final = 0.002  # seconds between two lines, at least
PACED_LINES: Final = 600  # before the kill, and after it: a long stream takes no longer than a short one
LEAST_SECONDS: Final = 0.5  # for the lines until the kill: windows enough to keep something of


class Recorder:
    """Fed through a pipe; it reports JSON lines as it stores. ``options`` are those of ``record``."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "scopelog.cli", "record", "--json", "--window", str(WINDOW_MS), *options]
        self.process = subprocess.Popen(
            [*command, str(STORE), SESSION, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.last: dict[str, Any] = {"written": 0}
        self._reports: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._reports.put(json.loads(line))
        self._reports.put(None)

    def feed(self, lines: list[bytes], fed_at: list[float]) -> None:
        """The first line, and the rest at the stream's pace once that is stored: then the child is up and running.

        ``fed_at``: takes when each was fed.
        """
        assert self.process.stdin is not None
        try:
            for n, line in enumerate(lines):
                self.process.stdin.write(line + b"\n")
                self.process.stdin.flush()
                fed_at.append(time.monotonic())
                if n == 0:
                    self._next()
                elif len(lines) - n <= PACED_LINES:
                    time.sleep(seconds_of(len(lines)))
        except BrokenPipeError:
            raise Broken(f"the recorder ended early, with code {self.process.wait()}") from None

    def _next(self) -> bool:
        report = self._reports.get()
        if report is not None:
            self.last = report
        return report is not None

    def kill(self) -> float:
        """SIGKILL; returns when. ``last`` is then the last thing it had reported."""
        self.process.kill()
        when = time.monotonic()
        self._drain()
        return when

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._drain()
        if self.process.returncode != 0 or not self.last.get("done"):
            raise Broken(f"the recorder ended with code {self.process.returncode}")

    def _drain(self) -> None:
        while self._next():
            pass
        self.process.wait()


def seconds_of(lines: int) -> float:
    """Between two lines of so many."""
    return max(PACE, LEAST_SECONDS / lines)


def pace_of(lines: int) -> str:
    """At what pace so many lines are fed, in words."""
    pace = f"a line about every {seconds_of(lines) * 1000:.0f} ms"
    return f"{lines - PACED_LINES:,} lines at once, then {pace}" if lines > PACED_LINES else pace
