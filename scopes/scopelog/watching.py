"""Watching a value or a list in this process: a base, then every later change, with no gap and no repetition.

A watch begins with its base, and there is no other way to begin one but at a position that an earlier watch has handed
out, if nothing since was lost. Who falls behind by more than a limit gets a new base in place of what was missed. The
last event is always an :class:`Ended`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final, Generic, Literal, NamedTuple, Self, TypeAlias, TypeVar, cast

from scopelog_engine.elements import Json, thaw
from scopelog_engine.errors import HandleClosed, InvalidAddress, InvalidInput, ScopelogError
from scopelog_engine.feeds import LIMIT as LIMIT
from scopelog_engine.feeds import LOST, Batch, End, Feed, Lost, parse_position
from scopelog_engine.feeds import EndReason as EndReason
from scopelog_engine.lines import APPEND, DELETE, LIST, SET, Record
from scopelog_engine.watching import Looked, Wanted
from scopelog_engine.writer import Writer

from .addresses import List, Scope, Value, check_sequence
from .results import Element, Entry, check_timeout, elements_of

MAX_LIMIT: Final = 10_000
_REMEDY: Final = "pass an int from 1 to 10,000"
Op: TypeAlias = Literal["append", "set", "delete", "trim"]


class ListBase(NamedTuple):
    """All elements of the list, or those that were asked for; replaces whatever was shown before."""

    position: str
    elements: tuple[Element, ...]

    @property
    def kind(self) -> str:
        return "base"

    def data(self) -> Json:
        """The event as JSON, its position left out."""
        return {"elements": [element._asdict() for element in self.elements]}


class ValueBase(NamedTuple):
    """The value as it is; ``entry`` is None if there is none."""

    position: str
    entry: Entry | None

    @property
    def kind(self) -> str:
        return "base"

    def data(self) -> Json:
        """The event as JSON, its position left out."""
        return {"entry": None if self.entry is None else self.entry._asdict()}


class Change(NamedTuple):
    """One write of a batch. ``op``: append, trim or delete of a list, set or delete of a value. ``value``: the element
    or value, a private copy; ``tag``: of an append; ``upto``: of a trim, which drops what is shown up to there."""

    seq: int
    op: Op
    value: Json
    tag: str | None
    upto: int | None


class Changed(NamedTuple):
    """What was admitted or stored at once, in order of sequence: a commit's writes to the address, staged elements."""

    position: str
    changes: tuple[Change, ...]

    @property
    def kind(self) -> str:
        return "batch"

    def data(self) -> Json:
        """The event as JSON, its position left out."""
        return {"changes": [change._asdict() for change in self.changes]}


class Ended(NamedTuple):
    """The last event of every watch.

    ``reason``: STOPPED by :meth:`Watch.stop`; CLOSED with the session; RETIRED with the scope, and what was shown with
    it; FAILED, for the ``error``. ``missed``: whether something had been published that this watch did not deliver.
    """

    position: str
    reason: EndReason
    error: ScopelogError | None
    missed: bool

    @property
    def kind(self) -> str:
        return "end"

    def data(self) -> Json:
        """The event as JSON, its position left out. Of an error its class alone: it may name files."""
        error = None if self.error is None else type(self.error).__name__
        return {"reason": self.reason.value, "error": error, "missed": self.missed}


E = TypeVar("E")


class Cursor(NamedTuple, Generic[E]):
    """Where a watch stands: behind this batch of the feed; ``base`` is to be delivered first."""

    feed: Feed
    number: int
    base: E | None


class Source(ABC, Generic[E]):
    """What is watched, for one watch."""

    keeps_state = False
    """Whether an event depends on which events were made before it."""

    def __init__(self, limit: int) -> None:
        self.limit = check_limit(limit)

    @abstractmethod
    def event(self, batch: Batch, position: str) -> E:
        """The event of a batch; nothing of it is shared with anybody."""

    @abstractmethod
    def stop(self, watcher: object, feed: Feed) -> None:
        """The watch is over."""


class Following(Generic[E]):
    """A watch without its waiting: what is next, and the end. One thread or task at a time takes events."""

    def __init__(self, source: Source[E]) -> None:
        self._source = source
        self._at: Cursor[E]
        self._stopped = False
        self._ended: Ended | None = None
        self._last = ""

    @property
    def position(self) -> str:
        """Of the last event; '' before the first one. See ``after`` of :meth:`Session.watch`."""
        return self._last

    @property
    def ended(self) -> Ended | None:
        """The last event, once it was delivered."""
        return self._ended

    def stop(self) -> None:
        """End the watch: its next event is the last one. May be called twice, and from any thread."""
        self._stopped = True
        self._source.stop(self, self._at.feed)
        self._at.feed.tell_all()

    def _take(self) -> E | Ended | Lost | None:
        """The next event; LOST if only a base helps, None if there is nothing."""
        if self._ended is not None:
            return self._ended
        feed, number, base = self._at
        if self._stopped:
            return self._end(End(EndReason.STOPPED), missed=base is not None or feed.after(number) is not None)
        if base is not None:
            self._at = Cursor(feed, number, None)
            self._last = feed.position(number)
            return base
        end = feed.ended  # before the batch: there is none after it
        batch = feed.after(number)
        if batch is None:
            return None if end is None else self._end(end, missed=False)
        if batch is LOST or (end is None and feed.number - number > self._source.limit):
            return LOST if end is None else self._end(end, missed=True)
        assert isinstance(batch, Batch)
        position = feed.position(batch.number)
        event = self._source.event(batch, position)
        self._last = position
        self._at = Cursor(feed, batch.number, None)
        return event

    def _ready(self) -> bool:
        """Whether :meth:`_take` has something."""
        feed, number, base = self._at
        return self._stopped or base is not None or feed.ended is not None or feed.after(number) is not None

    def _end(self, end: End, *, missed: bool) -> Ended:
        self._ended = Ended(self._last, end.reason, end.error, missed)
        self._source.stop(self, self._at.feed)
        return self._ended

    def _fail(self, error: ScopelogError) -> Ended:
        """There is no base to be had."""
        reason = EndReason.CLOSED if isinstance(error, HandleClosed) else EndReason.FAILED
        return self._end(self._at.feed.ended or End(reason, error), missed=True)

    def _mark(self) -> tuple[Cursor[E], str, Ended | None]:
        return self._at, self._last, self._ended

    def _roll_back(self, mark: tuple[Cursor[E], str, Ended | None]) -> None:
        """A call was interrupted: what it took is delivered by the next one."""
        at, self._last, self._ended = mark
        self._at = at if at.base is not None or not self._source.keeps_state else Cursor(at.feed, -1, None)


class BlockingSource(Source[E]):
    """A source for threads."""

    @abstractmethod
    def begin(self, watcher: object, after: tuple[str, int] | None) -> Cursor[E]:
        """A base and where it stands, in one step with the registration; or the position, if all behind it is held."""

    @abstractmethod
    def base(self, feed: Feed) -> Cursor[E] | None:
        """Another base; None if the feed has ended."""


class Watch(Following[E]):
    """A live view for one thread: iterate over it, or take events by :meth:`next`. Made by :meth:`Session.watch`.

    Every event is frozen, and what it holds is nobody else's. Leaving the ``with`` block stops the watch.
    """

    def __init__(self, source: BlockingSource[E], after: str | None) -> None:
        super().__init__(source)
        self._blocking = source
        self._at = source.begin(self, check_position(after))

    def next(self, timeout: float | None = None) -> E | Ended | None:
        """Wait for the next event, for at most ``timeout`` seconds; None if there was none. Once the watch has ended
        it is always its last event."""
        check_timeout(timeout)
        mark = self._mark()
        try:
            while True:
                event = self._take()
                if event is LOST:
                    event = self._take_base()
                if event is not None:
                    return cast("E | Ended", event)
                if not self._at.feed.wait(self._ready, timeout):
                    return None
        except BaseException:
            self._roll_back(mark)
            raise

    def _take_base(self) -> E | Ended | Lost | None:
        try:
            found = self._blocking.base(self._at.feed)
        except ScopelogError as error:
            return self._fail(error)
        if found is not None:
            self._at = found
        return self._take()

    def __iter__(self) -> Iterator[E | Ended]:
        return self

    def __next__(self) -> E | Ended:
        if self._ended is not None:
            raise StopIteration
        event = self.next()
        assert event is not None
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


SessionEvent: TypeAlias = "ListBase | ValueBase | Changed"


def event_of(batch: Batch, position: str) -> Changed:
    return Changed(position, tuple(_change(*change) for change in batch.content))


def _change(seq: int, code: str, body: bytes, argument: str | int | None) -> Change:
    if code == APPEND:
        return Change(seq, "append", thaw(body), cast("str | None", argument), None)
    if code == SET:
        return Change(seq, "set", thaw(body), None, None)
    if code == DELETE:
        return Change(seq, "delete", None, None, None)
    return Change(seq, "trim", None, None, cast("int | None", argument))


def base_of(wanted: Wanted, looked: Looked, records: list[Record]) -> Cursor[SessionEvent]:
    """A base that was read."""
    position = looked.feed.position(looked.number)
    if wanted.address.kind == LIST:
        return Cursor(looked.feed, looked.number, ListBase(position, tuple(elements_of(records))))
    entry = Entry(wanted.address.key, records[0].value, records[0].sequence) if records else None
    return Cursor(looked.feed, looked.number, ValueBase(position, entry))


class SessionSource(BlockingSource[SessionEvent]):
    """A value or a list of a session."""

    def __init__(self, writer: Writer, wanted: Wanted) -> None:
        super().__init__(wanted.limit)
        self._writer = writer
        self._wanted = wanted

    def begin(self, watcher: object, after: tuple[str, int] | None) -> Cursor[SessionEvent]:
        found = self._writer.watch(watcher, self._wanted, after)
        if isinstance(found, Looked):
            return base_of(self._wanted, found, found.read(self._wanted))
        return Cursor(*found, None)

    def base(self, feed: Feed) -> Cursor[SessionEvent] | None:
        looked = self._writer.base(feed, self._wanted)
        return None if looked is None else base_of(self._wanted, looked, looked.read(self._wanted))

    def event(self, batch: Batch, position: str) -> SessionEvent:
        return event_of(batch, position)

    def stop(self, watcher: object, feed: Feed) -> None:
        self._writer.stop_watching(watcher, feed)


def wanted_of(address: Value[Scope] | List[Scope], cursor: int | None, last: int | None, limit: int) -> Wanted:
    """Raises :class:`InvalidInput` for what cannot be watched, :class:`InvalidAddress` for what is no base."""
    if not isinstance(address, Value | List):
        raise InvalidInput(
            f"a {type(address).__name__} was given where an address is wanted", "see scopelog.value and list_of"
        )
    if cursor is not None:
        check_sequence("cursor", cursor)
    if last is not None and (type(last) is not int or last < 0):
        raise InvalidAddress(f"last is {last!r}", "pass an int from 0 on, or None for all elements")
    if isinstance(address, Value) and not cursor is last is None:
        raise InvalidAddress("cursor and last are of a list", "leave them out for a value")
    return Wanted(address.scope_id, address.address, cursor, last, check_limit(limit))


def check_limit(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit is {limit!r}", _REMEDY)
    return limit


def check_position(after: str | None) -> tuple[str, int] | None:
    """A position's parts; None for a text that is none: it comes from outside, and a base answers anything."""
    if after is not None and not isinstance(after, str):
        raise InvalidInput(f"after is a {type(after).__name__}, not a position", "pass a str that an event had")
    return None if after is None else parse_position(after)
