"""record: JSON lines as they arrive, each appended through the write-behind window.

A line counts as written once the scope's durable sequence has reached it, no earlier: that is what is reported, and
what a kill at any moment leaves behind.
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
from scopelog_engine.elements import thaw

from ..addresses import SESSION, List, Scope, ephemeral
from ..errors import InvalidElement, InvalidInput, LimitExceeded, ScopelogError
from ..session import Session
from ..store import Store
from .arrival import Arrival, Line, Stop
from .progress import Counts, Progress, progress_for

_QUICKEST_LOOK: Final = 0.002  # seconds between two looks at what was stored, while something waits
_SLOWEST_LOOK: Final = 0.05
_REMEDY: Final = "mend that line and record again from it on; the lines before it are stored"


@dataclass(frozen=True)
class Request:
    """What the user asked for. ``scope`` None is the session scope; ``level`` None is the store's default for it."""

    store: str
    session: str
    scope: str | None
    namespace: str
    key: str
    window_ms: float
    level: Durability | None
    as_json: bool


def record(request: Request, descriptor: int) -> int:
    """Record until the input ends; returns 0, or 128 plus the number of the signal that stopped it.

    Whatever ends it, what was read before is stored, the session closed and the totals reported. Raises then what
    ended it: :class:`InvalidInput` with the number of the line, or the failure of a write.
    """
    scope: Scope = SESSION
    target: List[Scope] = SESSION.list_of(request.namespace, request.key)
    if request.scope is not None:
        life = ephemeral(request.scope)
        scope, target = life, life.list_of(request.namespace, request.key)
    progress = progress_for(as_json=request.as_json, monotonic=time.monotonic)
    failure: ScopelogError | OSError | None = None
    with Stop() as stop, Store.open(request.store, window_ms=request.window_ms) as store:
        if request.scope is None:
            session = store.session(request.session, durability=request.level)
        else:
            session = store.session(request.session, scope_durability=request.level)
        recorder = Recorder(session, scope, target, progress, request.window_ms / 1000)
        try:
            recorder.run(Arrival(descriptor, stop.wake), stop)
        except (ScopelogError, OSError) as error:
            failure = error
        try:
            session.close()
        except ScopelogError as error:
            failure = failure or error
            with contextlib.suppress(ScopelogError):
                session.close(force=True)  # what cannot be stored is let go: the totals and the exit code say so
        recorder.count()
        stopped = "error" if failure else stop.signal.name if stop.signal else "end"
        progress.finish(recorder.counts, stopped)
    if failure is not None:
        raise failure
    return 128 + stop.signal if stop.signal else 0


class Recorder:
    """Appends lines to one list and counts what was stored of them."""

    def __init__(self, session: Session, scope: Scope, target: List[Scope], progress: Progress, window: float) -> None:
        self.counts = Counts(torn_bytes=session.recovery.torn_bytes)
        self._session = session
        self._scope = scope
        self._target = target
        self._progress = progress
        self._look = min(max(window / 4, _QUICKEST_LOOK), _SLOWEST_LOOK)
        self._waiting: deque[int] = deque()  # sequences of lines not stored yet
        self._failures = 0
        self._told = True

    def run(self, arrival: Arrival, stop: Stop) -> None:
        """Until the input ends or ``stop`` was signalled; what had been read by then is appended."""
        while stop.signal is None:
            lines = arrival.read(self._look if self._waiting or not self._told else None)
            if lines is None:
                return
            for line in lines:
                self._take(line)
            failures = self._failures
            self.count()
            self._told = self._progress.update(self.counts)
            if self._failures > failures:
                self._session.flush()  # try again here and now: input may be long in coming, and the failure is due

    def _take(self, line: Line) -> None:
        self.counts.bytes_in += len(line.text) + 1
        text = line.text.strip(b" \t\r")
        if not text:
            return
        element = parse(Line(line.number, text))
        try:
            sequence = self._session.append(self._target, element)
        except InvalidInput as error:
            raise type(error)(f"line {line.number} was refused: {error.cause}", _REMEDY) from error
        self.counts.lines += 1
        self._waiting.append(sequence)

    def count(self) -> None:
        """See what was stored since."""
        counts, stats = self.counts, self._session.stats()
        stored = self._session.durable_seq(self._scope)
        while self._waiting and self._waiting[0] <= stored:
            counts.seq = self._waiting.popleft()
            counts.written += 1
        counts.bytes_written = int(stats["bytes_written"])
        counts.frames = int(stats["frames"])
        counts.syncs = int(stats["syncs"])
        counts.sync_seconds = float(stats["sync_seconds"])
        self._failures = int(stats["failures"])


def parse(line: Line) -> object:
    """The element that a line spells. Raises :class:`InvalidElement` or :class:`LimitExceeded` with its number."""
    if b"\0" in line.text:  # never in JSON, but it would have the text taken for UTF-16
        raise InvalidElement(f"line {line.number} is not JSON: it holds a zero byte", _REMEDY)
    try:
        return thaw(line.text)
    except json.JSONDecodeError as error:
        cause = f"line {line.number} is not JSON (at character {error.pos + 1})"
    except UnicodeDecodeError as error:
        cause = f"line {line.number} is not UTF-8 (at byte {error.start + 1})"
    except RecursionError:
        raise LimitExceeded(f"line {line.number} is nested too deep", _REMEDY) from None
    except ValueError:  # NaN, an infinity, or an integer beyond the interpreter's digit limit
        cause = f"line {line.number} holds a number that is not JSON or is too long"
    raise InvalidElement(cause, _REMEDY)


def standard_input() -> int:
    """The descriptor of standard input. Raises :class:`InvalidInput` if there is none."""
    if sys.stdin is None:
        raise InvalidInput("there is no standard input", "name a file")
    return sys.stdin.fileno()
