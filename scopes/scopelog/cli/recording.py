"""record: JSON lines as they arrive, each on its way to the disk through the write-behind window.

A line counts as written once what it has staged is stored, no earlier: that is what is reported, and what a kill at
any moment leaves behind.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from scopelog_engine.durability import Durability
from scopelog_engine.elements import Json, thaw

from ..errors import InvalidElement, InvalidInput, LimitExceeded, ScopelogError
from ..session import Session
from ..store import Store
from .arrival import Arrival, Line, Stop
from .progress import Counts, Progress, progress_for
from .streaming import Kind, LaneTarget
from .targets import ListTarget, Target

_QUICKEST_LOOK: Final = 0.002  # seconds between two looks at what was stored, while something waits
_SLOWEST_LOOK: Final = 0.05


@dataclass(frozen=True)
class Request:
    """What the user asked for. ``scope`` None is the session scope; ``level`` None is the store's default for it.

    ``kind``: what the lines are, if they are to go through the reducer; ``scope`` and the list mean nothing then.
    """

    store: str
    session: str
    scope: str | None
    namespace: str
    key: str
    window_ms: float
    level: Durability | None
    as_json: bool
    kind: Kind | None = None


def record(request: Request, descriptor: int) -> int:
    """Record until the input ends; returns 0, or 128 plus the number of the signal that stopped it.

    Whatever ends it, what was read before is stored, the session closed and the totals reported. Raises then what
    ended it: :class:`InvalidInput` with the number of the line, or the failure of a write.
    """
    progress = progress_for(as_json=request.as_json, monotonic=time.monotonic)
    failure: ScopelogError | OSError | None = None
    with Stop() as stop, Store.open(request.store, window_ms=request.window_ms) as store:
        if request.scope is None and request.kind is None:
            session = store.session(request.session, durability=request.level)
        else:
            session = store.session(request.session, scope_durability=request.level)
        recorder = Recorder(session, _target(request, session), progress, request.window_ms / 1000)
        try:
            recorder.run(Arrival(descriptor, stop.wake), stop)
        except (ScopelogError, OSError) as error:
            failure = error
        stopped = "error" if failure else stop.signal.name if stop.signal else "end"
        try:
            recorder.finish(_cut(stopped, failure))
        except ScopelogError as error:
            failure = failure or error
        try:
            session.close()
        except ScopelogError as error:
            failure = failure or error
            with contextlib.suppress(ScopelogError):
                session.close(force=True)  # what cannot be stored is let go: the totals and the exit code say so
        recorder.count()
        progress.finish(recorder.counts, "error" if failure else stopped)
    if failure is not None:
        raise failure
    return 128 + stop.signal if stop.signal else 0


def _target(request: Request, session: Session) -> Target:
    if request.kind is not None:
        return LaneTarget(session, request.kind)
    return ListTarget(session, request.scope, request.namespace, request.key)


def _cut(stopped: str, failure: ScopelogError | OSError | None) -> str | None:
    """Why the input was not read to its end, for a message that it cuts off: of failures no more than that."""
    if isinstance(failure, InvalidInput):
        return failure.cause
    if failure is not None:
        return "the recording failed"
    return None if stopped == "end" else f"the recording was stopped by {stopped}"


class Recorder:
    """Gives lines to a target and counts what was stored of them."""

    def __init__(self, session: Session, target: Target, progress: Progress, window: float) -> None:
        self.counts = Counts(torn_bytes=session.recovery.torn_bytes)
        self._session = session
        self._target = target
        self._progress = progress
        self._look = min(max(window / 4, _QUICKEST_LOOK), _SLOWEST_LOOK)
        self._waiting: deque[tuple[int, int]] = deque()  # not stored yet: a sequence, and how many lines are by then
        self._failures = 0
        self._told = True

    def run(self, arrival: Arrival, stop: Stop) -> None:
        """Until the input ends or ``stop`` was signalled; what had been read by then is taken."""
        self._target.open()
        self.counts.recovered = self._target.recovered
        while stop.signal is None:
            lines = arrival.read(self._patience())
            if lines is None:
                return
            for line in lines:
                self._take(line)
            if not lines:
                self._mark(self._target.pause())
            failures = self._failures
            self.count()
            self._told = self._progress.update(self.counts)
            if self._failures > failures:
                self._session.flush()  # try again here and now: input may be long in coming, and the failure is due

    def _patience(self) -> float | None:
        if self._target.due:
            return 0
        return self._look if self._waiting or not self._told else None

    def _take(self, line: Line) -> None:
        self.counts.bytes_in += len(line.text) + 1
        text = line.text.strip(b" \t\r")
        if not text:
            return
        remedy = self._target.remedy
        element = parse(Line(line.number, text), remedy)
        try:
            sequence = self._target.take(element)
        except InvalidInput as error:
            raise InvalidInput(f"line {line.number} was refused: {error.cause}", remedy) from error
        self.counts.lines += 1
        self._mark(sequence)

    def finish(self, cut: str | None) -> None:
        """No line will come; see :meth:`Target.finish`."""
        self._mark(self._target.finish(cut))

    def _mark(self, sequence: int | None) -> None:
        if sequence is not None:
            self._waiting.append((sequence, self.counts.lines))

    def count(self) -> None:
        """See what was stored since."""
        counts, stats = self.counts, self._session.stats()
        stored = self._target.stored()
        while self._waiting and self._waiting[0][0] <= stored:
            counts.seq, counts.written = self._waiting.popleft()
        counts.bytes_written = int(stats["bytes_written"])
        counts.frames = int(stats["frames"])
        counts.syncs = int(stats["syncs"])
        counts.sync_seconds = float(stats["sync_seconds"])
        self._failures = int(stats["failures"])


def parse(line: Line, remedy: str = ListTarget.remedy) -> Json:
    """The element that a line spells. Raises :class:`InvalidElement` or :class:`LimitExceeded` with its number."""
    if b"\0" in line.text:  # never in JSON, but it would have the text taken for UTF-16
        raise InvalidElement(f"line {line.number} is not JSON: it holds a zero byte", remedy)
    try:
        return thaw(line.text)
    except json.JSONDecodeError as error:
        cause = f"line {line.number} is not JSON (at character {error.pos + 1})"
    except UnicodeDecodeError as error:
        cause = f"line {line.number} is not UTF-8 (at byte {error.start + 1})"
    except RecursionError:
        raise LimitExceeded(f"line {line.number} is nested too deep", remedy) from None
    except ValueError:  # NaN, an infinity, or an integer beyond the interpreter's digit limit
        cause = f"line {line.number} holds a number that is not JSON or is too long"
    raise InvalidElement(cause, remedy)


def standard_input() -> int:
    """The descriptor of standard input. Raises :class:`InvalidInput` if there is none."""
    if sys.stdin is None:
        raise InvalidInput("there is no standard input", "name a file")
    return sys.stdin.fileno()
