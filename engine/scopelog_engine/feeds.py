"""Feeds: what was published of one watched thing, shared by all who watch it.

Whoever publishes appends one batch to the feed's bounded log and rings once, however many watch: a watcher is a number,
that of the last batch it has taken, and looks for the next one by itself, without a lock. One whose next batch has left
the log takes a base instead. The log says all there is to know (numbers, sequences, bytes so far stand in each batch),
so publishing can be interrupted anywhere and done again: a sequence that the log has seen is not taken twice.

Waking costs the publisher one notification of a condition, whose waiters pass it on to each other, and one call into
each event loop that has waiting tasks.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

from .errors import ScopelogError
from .lines import Address, new_tuple
from .loops import running_loop

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

LIMIT: Final = 100
"""Batches that a watcher may be behind before it gets a base in their place."""
LIMIT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of batches that a feed holds; the newest batch is held whatever its size."""
_ENTRY_BYTES: Final = 200  # what a batch takes beside its texts, about


class EndReason(Enum):
    """Why a watch has ended."""

    STOPPED = "stopped"
    CLOSED = "closed"
    RETIRED = "retired"
    FAILED = "failed"


class End(NamedTuple):
    """The end of a feed, or of one watch of it. ``error``: of a failure."""

    reason: EndReason
    error: ScopelogError | None = None


class Batch(NamedTuple):
    """What was published at once. ``content`` is immutable or never changed; None: only a base tells what it was."""

    number: int
    sequence: int
    total: int  # bytes of all batches so far
    content: Any


class Lost(Enum):
    """In place of a batch: the log does not hold it any more."""

    LOST = "lost"


LOST: Final = Lost.LOST


class Feed:
    """Batches of one watched thing. Who publishes (:meth:`add`, :meth:`skip`) holds a lock of its own; everything else
    may be called from any thread."""

    __slots__ = ("_condition", "_loops", "_waiting", "ended", "limit", "log", "token", "watchers")

    def __init__(self, sequence: int, limit: int = LIMIT) -> None:
        self.token = secrets.token_hex(8)  # no other feed's positions are taken for this one's
        self.limit = limit
        self.log: deque[Batch] = deque([Batch(0, sequence, 0, None)])  # never empty
        self.ended: End | None = None
        self.watchers: WeakSet[Any] = WeakSet()
        self._condition = threading.Condition()
        self._waiting = 0  # threads
        self._loops: tuple[_Loop, ...] = ()

    # --- publishing -------------------------------------------------------------------------------

    def add(self, sequence: int, size: int, content: Any) -> bool:
        """Publish a batch that goes up to ``sequence``; one that was published is not taken again, but told again.

        True if an older batch had to go.
        """
        log = self.log
        last = log[-1]
        gone = False
        if sequence > last[1]:
            total = last[2] + size + _ENTRY_BYTES
            log.append(new_tuple(Batch, (last[0] + 1, sequence, total, content)))
            while len(log) > self.limit or (total - log[0][2] > LIMIT_BYTES and len(log) > 1):
                log.popleft()
                gone = True
        self.tell()
        return gone

    def skip(self, sequence: int) -> None:
        """Publish that something was changed in a way that only a base tells."""
        log = self.log
        last = log[-1]
        if sequence > last[1]:
            log.append(new_tuple(Batch, (last[0] + 1, sequence, last[2], None)))
        while log[0] is not log[-1]:
            log.popleft()
        self.tell()

    def end(self, end: End) -> None:
        """Nothing is published from here on. The first end counts; telling may be done twice."""
        if self.ended is None:
            self.ended = end
        self.tell_all()

    def tell(self) -> None:
        """Wake whoever waits."""
        if self._waiting:
            with self._condition:
                self._condition.notify()  # who wakes passes it on: one, however many wait
        for loop in self._loops:
            loop.ring(self)

    def tell_all(self) -> None:
        """As :meth:`tell`, also those for whom there is no batch."""
        with self._condition:
            self._condition.notify_all()
        for loop in self._loops:
            loop.ring(self)

    def after_fork(self, end: End) -> None:
        """In the child: its threads and loops are not there, and nobody publishes."""
        self._condition = threading.Condition()
        self._waiting = 0
        self._loops = ()
        self.ended = self.ended or end

    # --- following --------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Of the newest batch."""
        return self.log[-1][0]

    @property
    def sequence(self) -> int:
        """Up to which everything was published."""
        return self.log[-1][1]

    def after(self, number: int) -> Batch | Lost | None:
        """The batch that follows one that was taken; None if there is none yet, LOST if a base is needed."""
        log = self.log
        while True:
            at = number + 1 - log[0][0]
            if at < 0:
                return LOST
            try:
                batch = log[at]
            except IndexError:
                return None
            if batch[0] == number + 1:
                return LOST if batch[3] is None else batch
            # batches left the log meanwhile

    def holds_after(self, number: int, limit: int) -> bool:
        """Whether a watcher that has taken this batch, and may be so far behind, can go on from there."""
        return 0 <= self.number - number <= limit and self.after(number) is not LOST

    def position(self, number: int) -> str:
        """The text form of having taken everything up to this batch."""
        return f"{self.token}-{number}"

    # --- waiting ----------------------------------------------------------------------------------

    def wait(self, ready: Callable[[], bool], seconds: float | None) -> bool:
        """Block this thread until ``ready``, or for so long; whether it is."""
        until = None if seconds is None else time.monotonic() + seconds
        condition = self._condition
        with condition:
            self._waiting += 1
            try:
                while not ready():
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    kept: BaseException | None = None
                    try:
                        condition.wait(left)
                    finally:
                        while not condition._is_owned():  # type: ignore[attr-defined]  # interrupted on the way back
                            try:
                                condition.acquire()
                            except BaseException as error:  # noqa: BLE001 - raised once we hold it
                                kept = kept or error
                        if kept is not None:
                            raise kept
                return True
            finally:
                self._waiting -= 1
                if self._waiting:
                    condition.notify()  # those who began to wait earlier come first: all who are behind are reached

    def expect(self, loop: AbstractEventLoop) -> Future[None]:
        """On the running loop: a future that is resolved when there may be something new. Look once more after this
        call; :meth:`forget` it when it is of no more use."""
        waiters = next((one for one in self._loops if one.loop is loop), None)
        if waiters is None:
            with self._condition:
                waiters = _Loop(loop)
                self._loops = (*(one for one in self._loops if not one.loop.is_closed()), waiters)
        future = loop.create_future()
        waiters.futures.add(future)
        return future

    def forget(self, loop: AbstractEventLoop, future: Future[None]) -> None:
        """The future is not waited for any more."""
        for waiters in self._loops:
            if waiters.loop is loop:
                waiters.futures.discard(future)

    def leave(self, loop: _Loop) -> None:
        """The loop is closed."""
        with self._condition:
            self._loops = tuple(one for one in self._loops if one is not loop)


class _Loop:
    """Tasks of one event loop that wait for a feed. ``futures`` is touched by that loop's thread alone."""

    __slots__ = ("_bell", "futures", "loop")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.futures: set[Future[None]] = set()
        self._bell: _Bell | None = None

    def ring(self, feed: Feed) -> None:
        """Have the loop wake all who wait, in one call, unless it is about to."""
        bell = self._bell
        if not self.futures or (bell is not None and not bell.rung):
            return
        bell = _Bell(self)
        try:
            if running_loop() is self.loop:
                self.loop.call_soon(bell)
            else:
                self.loop.call_soon_threadsafe(bell)
        except RuntimeError:
            feed.leave(self)
            return
        self._bell = bell  # last: interrupted before, it rings once too often

    def wake(self) -> None:
        futures, self.futures = self.futures, set()
        for future in futures:
            if not future.done():
                future.set_result(None)


class _Bell:
    """One call into a loop. It says itself whether it has been made: whoever asks may have been overtaken."""

    __slots__ = ("_loop", "rung")

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop
        self.rung = False

    def __call__(self) -> None:
        self.rung = True
        self._loop.wake()


class ScopeFeeds:
    """Feeds of one scope's life: of those of its addresses that somebody watches."""

    __slots__ = ("feeds", "shown", "torn")

    def __init__(self, shown: int) -> None:
        self.feeds: dict[Address, Feed] = {}
        self.shown = shown  # everything of the scope up to here was published, where somebody watched
        self.torn = False  # whether publishing was interrupted: somebody may not have been told


def parse_position(text: str) -> tuple[str, int] | None:
    """A feed's token and a batch's number; None for whatever is no position."""
    token, dash, number = text.partition("-")
    if not dash or len(token) != 16 or len(number) > 16 or not (number.isascii() and number.isdigit()):
        return None
    return token, int(number)
