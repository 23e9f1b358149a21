"""The handles of a rig: a store on a simulated disk, opened, closed, killed and cut off, with the model following."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple, Self

import pytest

from fuzz.model import SESSION_ID, ModelSession, Op, observed_op, unit
from fuzz.simdisk import CrashPolicy, SimDisk
from scopelog import (
    SESSION,
    Coalescer,
    Durability,
    DurabilityError,
    EphemeralScope,
    Json,
    LogPoisoned,
    ManualClock,
    NoSuchSession,
    OutcomeUnknown,
    ScopelogError,
    Session,
    SessionScope,
    Store,
    ephemeral,
)

PATH = "/data/store"
SCOPES = ("", "op-1", "Op/2", "x")
LISTS = (("n", "text"), ("n", "plain"), ("m", "text"))
KEYS = ("a", "ab", "b", "é")
JOINED = "text"
POWER, PROCESS = Durability.POWER, Durability.PROCESS


def join_text(run: Sequence[Json]) -> list[tuple[Json, int]]:
    """Joins up to five adjacent texts at a time."""
    return [("".join(map(str, run[at : at + 5])), len(run[at : at + 5])) for at in range(0, len(run), 5)]


class Settings(NamedTuple):
    durability: Durability = POWER
    scope_durability: Durability = PROCESS
    window_ms: float = 100

    def level(self, scope: str) -> Durability:
        return self.scope_durability if scope else self.durability


_patch = pytest.MonkeyPatch()


def steady_identities() -> None:
    """Store ids that are the same in every run, so that a failure replays byte for byte."""
    numbers = iter(range(1, 1 << 30))
    _patch.setattr(
        "scopelog_engine.store.secrets", SimpleNamespace(token_hex=lambda length: f"{next(numbers):0{2 * length}x}")
    )


def random_identities() -> None:
    _patch.undo()


def scope_of(scope: str) -> SessionScope | EphemeralScope:
    return ephemeral(scope) if scope else SESSION


def coalescer_of(key: str) -> Coalescer | None:
    return join_text if key == JOINED else None


class Handles:
    """``faulty``: errors are expected until :meth:`heal`. ``poisoned``: scopes that must refuse until reopened;
    ``doubtful``: sessions with a log that may refuse. ``deleting``: the session whose deletion is under way.
    """

    def __init__(self, settings: Settings | None = None, disk: SimDisk | None = None) -> None:
        self.settings = settings or Settings()
        self.disk = disk or SimDisk()
        self.clock = ManualClock()
        self.models: dict[str, ModelSession] = {}
        self.sessions: dict[str, Session] = {}
        self.faulty = False
        self.leftovers = False  # whether a file could not be removed
        self.poisoned: set[tuple[str, str]] = set()
        self.doubtful: set[str] = set()
        self.store: Store | None = None
        self.deleting: str | None = None
        self.seen: dict[str, list[Op]] | None = None  # stored, at the last open

    def fork(self, disk: SimDisk) -> Self:
        """A rig for one possible outcome: the model as it is now, on another disk, with nothing open."""
        rig = type(self)(self.settings, disk)
        rig.models = {sid: model.copy() for sid, model in self.models.items()}
        rig.deleting = self.deleting
        return rig

    def announce(self) -> None:
        """A call is about to be made that has an outcome only once it is over: the model says which."""

    # --- opening and closing ----------------------------------------------------------------------

    def open_store(self) -> Store:
        if self.store is None:
            durability, scope_durability, window_ms = self.settings
            self.store = Store.open(
                PATH,
                fs=self.disk,
                clock=self.clock,
                durability=durability,
                scope_durability=scope_durability,
                window_ms=window_ms,
            )
        return self.store

    def open(self, sid: str = "s", *, power: bool = False) -> Session:
        """Open a session that is not open, and hold what replays against the model."""
        session = self.open_store().session(sid)
        self.sessions[sid] = session
        got = self.seen = self.observe(sid)
        if self.deleting == sid:
            self.deleting = None
            if got is None:
                self.models.pop(sid, None)
        model = self.models.setdefault(sid, ModelSession())
        model.reopened(got, partial(self.generation, sid), session.epoch, power=power)
        model.hollow = set(session.scopes()) - set(model.alive())
        return session

    def observe(self, sid: str) -> dict[str, list[Op]] | None:
        """What a reader without the lock finds stored: per scope, in order. None if there is no session."""
        try:
            reader = self.open_store().reader(sid)
        except NoSuchSession:
            return None
        got: dict[str, list[Op]] = {SESSION_ID: []}
        with reader:
            last = 0
            for record in reader.records():
                assert record.seq > last, "records come in order of sequence, and no sequence twice"
                last = record.seq
                got.setdefault(record.scope or SESSION_ID, []).append(observed_op(record))
            assert {scope for scope in got if scope} <= set(reader.scopes())
        return got

    def generation(self, sid: str, scope: str) -> int:
        """How often the scope's log has been compacted; 0 if it has none."""
        return self.generations(sid).get(scope, 0)

    def generations(self, sid: str) -> dict[str, int]:
        """The same of every log of a session."""
        try:
            with self.open_store().reader(sid) as reader:
                surveys = getattr(reader, "sync", reader)._reader._snapshot().surveys
                return {scope: found.header.generation for scope, found in surveys.items()}
        except NoSuchSession:
            return {}

    def close(self, sid: str) -> None:
        """Close a session; what it could not store is optional from here on."""
        session = self.sessions.pop(sid)
        model = self.models[sid]
        try:
            session.close()
        except DurabilityError as error:
            self._excuse(sid, error)
            self._catch_up(sid)
            try:
                session.close(force=True)
            except DurabilityError:
                self._catch_up(sid)
        else:
            for scope, life in model.living().items():
                life.settle(power=self.settings.level(scope) is POWER)
        self.poisoned -= {key for key in self.poisoned if key[0] == sid}
        self.doubtful.discard(sid)

    def close_store(self) -> None:
        for sid in [*self.sessions]:
            self.close(sid)
        if self.store is not None:
            self.store.close()
            self.store = None

    def down(self, disk: SimDisk) -> None:
        """The process is gone; ``disk`` is what it left."""
        self.disk = disk
        disk.capacity = None
        self.sessions, self.store = {}, None
        self.clock = ManualClock(self.clock.monotonic(), self.clock.wall_ms())  # the alarms died with the process
        self.faulty = False
        self.poisoned, self.doubtful = set(), set()

    def kill(self) -> None:
        self.down(self.disk.kill())

    def cut_power(self, policy: CrashPolicy | None = None) -> None:
        self.down(self.disk.crash(policy))

    def _excuse(self, sid: str, error: ScopelogError) -> None:
        """An error is typed, and it is raised only where the disk failed."""
        assert self.faulty and isinstance(error, DurabilityError), f"{error!r} without a fault"
        if isinstance(error, OutcomeUnknown | LogPoisoned):
            self.doubtful.add(sid)

    def _catch_up(self, sid: str) -> None:
        """After a failure: see how much of what was staged is stored all the same."""
        got = self.observe(sid) or {}
        for scope, life in self.models[sid].living().items():
            end = got[scope][-1].seq if got.get(scope) else 0
            done = [op for op in life.staged if op.seq <= end]
            if not done or life.doubt:
                continue
            window = unit()
            life.stored += [Op(op.seq, op.spec, window, op.joinable) for op in done]
            life.staged = life.staged[len(done) :]
            life.process = life.stored[-1].seq
