"""Following a session that another process writes: what is new, as it becomes visible, and where to resume."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple, Self, TypeAlias

from scopelog_engine import follow
from scopelog_engine.errors import HandleClosed, ScopelogError
from scopelog_engine.notify import Watch
from scopelog_engine.position import Position

from .results import check_timeout
from .session import LogRecord, SessionReader, log_record


class Base(NamedTuple):
    """Begin here: what there is now is what ``reader`` reads, and what was seen before does not count.

    The first event of a follower that was given no position, with an empty ``reason``; and whatever cannot be gone on
    from, with the reason in a few words. The reader is the receiver's to close.
    """

    reader: SessionReader
    position: Position
    reason: str


class Records(NamedTuple):
    """New records of one scope (None: the session scope) in order of sequence, of whole commits.

    Retirements are not among them: each is a :class:`Retired`.
    """

    scope: str | None
    records: list[LogRecord]
    position: Position


class Retired(NamedTuple):
    """A scope was retired: of it, only records with a sequence above ``seq`` live. ``time``: in ms since 1970."""

    scope: str
    seq: int
    time: int
    position: Position


class Deleted(NamedTuple):
    """The session is gone, also if one of the same id was made since. Nothing follows."""


FollowEvent: TypeAlias = "Base | Records | Retired | Deleted"


class SessionFollower:
    """Follows one session, without its lock: an iterator of events that waits for the next. Made by
    :meth:`Store.follow`; thread-safe; outlives its store.

    Events may be any of :class:`Base`, :class:`Records`, :class:`Retired` and :class:`Deleted`; the iteration ends
    after the last, or once the follower is closed. Every event but that has the position to resume from once it, and
    all before it, are dealt with.
    """

    def __init__(self, follower: follow.Follower, watch: Watch) -> None:
        self._follower = follower
        self._watch = watch
        self._lock = threading.Lock()
        self._queue: deque[FollowEvent] = deque()
        self._position: Position | None = None
        self._before: Position | None = None
        self._start = follower.given

    @property
    def id(self) -> str:
        return self._follower.session

    @property
    def position(self) -> Position | None:
        """That of the last event handed out; None before the first."""
        return self._position

    @property
    def ended(self) -> bool:
        """Whether nothing will come any more: it was closed, or has told that the session is gone."""
        return self._watch.closed or (self._follower.over and not self._queue)

    def poll(self) -> list[FollowEvent]:
        """What has become visible, without waiting; a few MB at most, so that there may be more.

        Raises :class:`NoSuchSession`, :class:`CorruptLog` or :class:`ReadFailed`, after which it may be called again;
        a kind of :class:`HandleUnusable`.
        """
        if self._watch.closed:
            raise HandleClosed(f"the follower of {self.id!r} was closed", "make another one with store.follow")
        with self._lock:
            self._watch.drain()
            self._fetch()
            return self._hand_out(len(self._queue))

    def next(self, timeout: float | None = None) -> FollowEvent | None:
        """The next event; None if ``timeout`` seconds passed before it, and when :attr:`ended`.

        Raises what :meth:`poll` raises, but for :class:`HandleClosed`.
        """
        check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.ended:
            event = self._next_there_is()
            if event is not None:
                return event
            left = None if deadline is None else deadline - time.monotonic()
            if not self._watch.wait(left):
                break
        return None

    def _next_there_is(self) -> FollowEvent | None:
        with self._lock:
            if not self._queue:
                self._fetch()
            return self._hand_out(1)[0] if self._queue else None

    def _fetch(self) -> None:
        try:
            found = self._follower.poll()
            self._queue.extend(map(_public, found))
        except ScopelogError:
            raise
        except BaseException:  # interrupted between the two
            waiting = self._queue[-1] if self._queue else None
            if not isinstance(waiting, Deleted):
                self._follower.go_back(waiting.position if waiting else self._position or self._start)
            raise
        self._watch.seen(bool(found))

    def _hand_out(self, count: int) -> list[FollowEvent]:
        self._before = self._position
        events = [self._queue.popleft() for _ in range(count)]
        told = [event.position for event in events if not isinstance(event, Deleted)]
        self._position = told[-1] if told else self._position
        return events

    def _put_back(self, events: list[FollowEvent]) -> None:
        """Whoever asked for what was handed out last has gone."""
        with self._lock:
            self._queue.extendleft(reversed(events))
            if events:
                self._position = self._before

    def _put_one_back(self, event: FollowEvent | None) -> None:
        self._put_back([] if event is None else [event])

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FollowEvent:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """End the iteration, also one that waits in another thread. Closing twice is legal."""
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _public(event: follow.Event) -> FollowEvent:
    if isinstance(event, follow.Records):
        records = [log_record(event.scope, record) for record in event.records]
        return Records(event.scope or None, records, event.position)
    if isinstance(event, follow.Retired):
        return Retired(*event)
    if isinstance(event, follow.Base):
        return Base(SessionReader(event.reader), event.position, event.reason)
    return Deleted()
