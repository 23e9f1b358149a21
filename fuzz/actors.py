"""A store on a parking disk, the calls that actors make on it, and the ledger that follows each of them.

A call that raises what the contract allows is noted in the ledger and is no failure; anything else is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

from fuzz.ledger import POWER, PROCESS, Attempt, Found, Ledger
from fuzz.model import SESSION_ID, Op, Spec, observed_op
from fuzz.model_handles import PATH, scope_of
from fuzz.parking import ParkingDisk
from fuzz.scheduler import Interruption, Scheduler, Step
from fuzz.simdisk import SimDisk
from scopelog import (
    Base,
    Changed,
    Deleted,
    Durability,
    DurabilityError,
    HandleClosed,
    ListBase,
    NoSuchSession,
    OutcomeUnknown,
    Position,
    ReadFailed,
    Records,
    Retired,
    Session,
    SessionFollower,
    SessionReader,
    SessionScope,
    Store,
    Watch,
    Write,
)
from scopelog_engine.clock import Clock

SID: Final = "s"
OP: Final = "op-1"
LOOK: Final = Step("look", told=True)


def put(value: str, key: str = "plain") -> Spec:
    return Spec("append", key=key, kind="list", value=value)


class World:
    """One run. ``failed``: errors of the disk are expected, as the test has arranged for them."""

    def __init__(
        self,
        disk: SimDisk,
        ledger: Ledger,
        *,
        clock: Clock | None = None,
        main: Durability = POWER,
        fine: bool = False,
        hit: Interruption | None = None,
    ) -> None:
        self.disk = disk
        self.fs = ParkingDisk(disk)
        self.ledger = ledger
        self.scheduler = Scheduler(fine=fine, interruption=hit)
        self.failed = False
        self.levels = {False: main, True: PROCESS}  # of the session scope and of ephemeral ones
        self.store = Store.open(PATH, fs=self.fs, clock=clock, durability=main)
        self.session: Session = cast("Session", None)
        self.elsewhere: Store | None = None  # as another process has it
        self.looks: list[tuple[int, Found, bool]] = []
        self.tails: list[Tail] = []
        self.views: list[View] = []
        self.raised: list[str] = []

    @property
    def now(self) -> int:
        return self.scheduler.ticks

    @contextmanager
    def noting(self, attempt: Attempt | None) -> Iterator[None]:
        """What an attempt that raises says of its outcome."""
        try:
            yield
        except HandleClosed as error:
            self.raised.append("HandleClosed")
            self._refused(attempt, error)
        except OutcomeUnknown as error:
            self._expected(error)
        except DurabilityError as error:
            self._expected(error)
            self._refused(attempt, error)

    def _expected(self, error: Exception) -> None:
        self.raised.append(type(error).__name__)
        if not self.failed:
            raise AssertionError(f"{error!r} without a fault") from error

    def _refused(self, attempt: Attempt | None, error: Exception) -> None:
        if attempt is not None and attempt.ended is None:
            attempt.refused = self.now

    # --- writing ----------------------------------------------------------------------------------

    def open(self) -> None:
        self.session = self.store.session(SID)

    def commit(self, scope: str, specs: Sequence[Spec], level: Durability | None = None) -> None:
        attempt = self.ledger.begin(scope, specs, self.now)
        writes = [spec.public(scope_of(scope), None) for spec in specs]
        with self.noting(attempt):
            receipt = self.session.commit(cast("list[Write[SessionScope]]", writes), durability=level)
            self.ledger.admitted(attempt, receipt.first, self.now)
            assert receipt.last == attempt.last
            self.ledger.stored(attempt, max(level or PROCESS, self.levels[bool(scope)]), self.now)

    def stage(self, scope: str, value: str, key: str = "plain") -> None:
        attempt = self.ledger.begin(scope, [put(value, key)], self.now, staged=True)
        with self.noting(attempt):
            first = self.session.append(scope_of(scope).list_of("n", key), value)
            self.ledger.admitted(attempt, first, self.now)

    def flush(self) -> None:
        begun = self.now
        with self.noting(None):
            self.session.flush()
            self.ledger.flushed(begun, self.now, self.levels)

    def compact(self, scope: str) -> None:
        self.ledger.compacted.add(scope)
        with self.noting(None):
            self.session.compact(scope_of(scope))

    def close(self, *, force: bool = False) -> None:
        begun = self.now
        with self.noting(None):
            self.session.close(force=force)
            self.ledger.flushed(begun, self.now, self.levels)

    # --- looking ----------------------------------------------------------------------------------

    def read(self, key: str = "plain", scope: str = SESSION_ID) -> None:
        """Through the session's own handle."""
        begun = self.now
        with self.noting(None):
            found = self.session.read(scope_of(scope).list_of("n", key))
            if scope == SESSION_ID:
                self.ledger.hold_list([(e.seq, e.element) for e in found], scope, key, begun, all_of_it=True)

    def another(self) -> Store:
        if self.elsewhere is None:
            self.elsewhere = Store.open(PATH, fs=self.fs, create=False)
        return self.elsewhere

    def look(self, reader: SessionReader | None = None) -> SessionReader | None:
        """Without the lock."""
        self.scheduler.park(LOOK)
        begun = self.now
        try:
            if reader is None:
                reader = self.another().reader(SID)
            else:
                reader.refresh()
            self.looks.append((begun, found_by(reader), False))
        except ReadFailed:
            assert self.failed
        return reader

    def check(self) -> None:
        """The looks of everybody, held against the ledger."""
        for begun, found, apart in self.looks:
            self.ledger.hold(found, begun, PROCESS, apart=apart, what=f"a look at {begun}")

    def end(self) -> None:
        """All that is left to do once the actors are done; by the test itself."""
        self.flush()
        for tail in self.tails:
            tail.drain()
        for view in self.views:
            view.take()
            with self.noting(None):
                view.compare(self.session)
        self.close(force=self.failed)
        for view in self.views:
            view.take()
            assert view.ended, "a watch ends with its session"
        for tail in self.tails:
            tail.drain()
        for store in (self.store, self.elsewhere):
            if store is not None:
                store.close(force=True)


def found_by(reader: SessionReader) -> Found:
    found: Found = {SESSION_ID: []}
    for record in reader.records():
        found.setdefault(record.scope or SESSION_ID, []).append(observed_op(record))
    return found


class Tail:
    """A follower, and what it was told. ``durable``: what it was told survives any power cut from then on."""

    def __init__(self, world: World, *, durable: bool = False) -> None:
        self._world, self.durable = world, durable
        self._follower: SessionFollower = world.another().follow(SID, durable=durable)
        self._position: Position | None = None
        self._found: Found = {}
        world.tails.append(self)

    def drain(self) -> None:
        """Everything there is now, and a look of what it comes to."""
        world = self._world
        world.scheduler.park(LOOK)
        begun = world.now
        try:
            while events := self._follower.poll():
                self._take_all(events)
        except ReadFailed:
            assert world.failed
            return
        found = {scope: [*ops] for scope, ops in self._found.items()}
        world.looks.append((-1 if self.durable else begun, found, True))
        if self.durable:
            told = {op.spec.value for ops in found.values() for op in ops} - {None}
            for attempt in world.ledger.attempts:
                if {spec.value for spec in attempt.specs} & told:
                    attempt.promise(POWER, world.now)

    def _take_all(self, events: Sequence[Any]) -> None:
        """Interrupted, whoever has taken a part goes on behind it with another follower."""
        try:
            for event in events:
                self._take(event)
                self._position = event.position
        except KeyboardInterrupt:
            self._follower = self._world.another().follow(SID, self._position, durable=self.durable)
            raise

    def _take(self, event: Any) -> None:
        assert not isinstance(event, Deleted), "nobody deletes"
        if isinstance(event, Base):
            with event.reader as reader:
                self._found = found_by(reader)
        elif isinstance(event, Records):
            known = self._found.setdefault(event.scope or SESSION_ID, [])
            last = max((op.seq for op in known if op.spec.op != "retire"), default=0)
            for record in event.records:
                assert record.seq > last, f"{record} comes twice, or after {last}"
                last = record.seq
                known.append(observed_op(record))
            known.sort(key=lambda op: op.seq)  # of one commit, retirements were told first
        else:
            assert isinstance(event, Retired)
            gone = self._found.pop(event.scope, [])
            assert not gone or gone[-1].seq < event.seq, f"{event} after {gone}"
            main = self._found.setdefault(SESSION_ID, [])
            main.append(Op(event.seq, Spec("retire", retired=event.scope)))
            main.sort(key=lambda op: op.seq)


class View:
    """A watch of a list of the session scope, and what it has shown."""

    def __init__(self, world: World, key: str = "plain") -> None:
        self._world, self._key = world, key
        self.watch: Watch[Any] = world.session.watch(scope_of("").list_of("n", key))
        self.shown: list[tuple[int, object]] = []
        self.ended = False
        world.views.append(self)

    def take(self, wait: int = 0) -> None:
        """All there is now; before that wait for so many events."""
        while not self.ended:
            event = self.watch.next(None if wait > 0 else 0)
            wait -= 1
            if event is None:
                return
            if isinstance(event, ListBase):
                self.shown = [(element.seq, element.element) for element in event.elements]
            elif isinstance(event, Changed):
                self.shown += [(change.seq, change.value) for change in event.changes if change.op == "append"]
            else:
                self.ended = True
            self._world.ledger.hold_list(self.shown, "", self._key, 0, all_of_it=False)

    def compare(self, session: Session) -> None:
        read = session.read(scope_of("").list_of("n", self._key))
        assert self.ended or self.shown == [(e.seq, e.element) for e in read], f"shown {self.shown}, read {read}"


def contents(store: Store) -> Found:
    """Everything that a reader without the lock finds."""
    try:
        with store.reader(SID) as reader:
            return found_by(reader)
    except NoSuchSession:
        return {}
