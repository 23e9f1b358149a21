"""Readers without the lock beside a writer that is stopped at every system call, and a copy of it made there.

The tracer holds the writer between two system calls; the reader looks meanwhile, from this process. What it sees is
held against what the writer had been told by then: nothing less, whole commits alone, and nothing that was never asked
for. A reader that was there before is refreshed, and one that follows the log goes on.
"""

from __future__ import annotations

import os
import shutil

from fuzz.model_handles import Settings
from fuzz.process_child import Scenario, perform
from fuzz.process_rig import SID, ProcessRig, State, Told, survive
from fuzz.ptrace import Action, Call, Ended, run
from scopelog import (
    Base,
    Deleted,
    FollowEvent,
    ManualClock,
    NoSuchSession,
    NotAStore,
    OpenFailed,
    Records,
    Retired,
    SessionReader,
    Store,
)
from scopelog.follow import SessionFollower


class Watcher:
    """Looks at a store again and again. ``looks`` counts; ``told`` is the writer's."""

    def __init__(self, where: str, settings: Settings, told: Told) -> None:
        self.looks = 0
        self._where = where
        self._path = os.path.join(where, "store")
        self._settings = settings
        self._told = told
        self._store: Store | None = None
        self._reader: SessionReader | None = None
        self._follower: SessionFollower | None = None
        self._followed: dict[str, int] = {}

    def state(self) -> State | None:
        return next((record for record in reversed(self._told.records()) if isinstance(record, State)), None)

    def look(self) -> None:
        """All that a reader sees at this moment is right."""
        state = self.state()
        if self._store is None:
            try:
                self._store = Store.open(self._path, create=False, clock=ManualClock())
            except (NotAStore, OpenFailed):
                assert state is None or not state.models.get(SID) or not state.models[SID].lives, "the store is gone"
                return
        self.looks += 1
        self._anew(state)
        self._again()
        self._follow()

    def _anew(self, state: State | None) -> None:
        """A reader that is opened now: what it finds may be found by an open for write as well."""
        if state is None:
            return
        rig = ProcessRig(self._path, self._settings, state=state)
        rig.store = self._store
        got = rig.observe(SID)
        model = state.models.get(SID)
        if got is None and state.deleting == SID:
            return
        if model is None:
            assert not got, got
            return
        if model.compacting is not None:
            (scope, before), model.compacting = model.compacting, None
            if rig.generation(SID, scope) > before:
                model.compacted(scope, (got or {}).get(scope, []))
        model.resolve(got or {}, power=False)

    def _again(self) -> None:
        """A reader that was opened before."""
        assert self._store is not None
        try:
            if self._reader is None:
                self._reader = self._store.reader(SID)
            self._reader.refresh()
        except NoSuchSession:
            self._reader = None
            return
        records = [record.seq for record in self._reader.records()]
        assert records == sorted(set(records))

    def _follow(self) -> None:
        assert self._store is not None
        if self._follower is None:
            try:
                self._follower = self._store.follow(SID)
            except NoSuchSession:
                return
        for event in self._follower.poll():
            if isinstance(event, Deleted):
                self._follower, self._followed = None, {}
                return
            self._take(event)

    def _take(self, event: FollowEvent) -> None:
        """In order, and none twice, until it is said that all begins anew."""
        if isinstance(event, Base):
            self._followed = {}
            for record in event.reader.records():
                self._followed[record.scope or ""] = record.seq
            event.reader.close()
        elif isinstance(event, Records):
            name = event.scope or ""
            for record in event.records:
                assert record.seq > self._followed.get(name, 0), f"{record} after {self._followed}"
                self._followed[name] = record.seq
        else:
            assert isinstance(event, Retired)

    def copy(self) -> None:
        """A copy made now, by reading every file from its beginning to its end, opens and holds as much."""
        state = self.state()
        if state is None or not os.path.exists(os.path.join(self._path, "store.zst")):
            return
        target = os.path.join(self._where, "copy")
        shutil.copytree(self._path, target)
        survive(target, self._settings, state, more=False)
        shutil.rmtree(target)

    def close(self) -> None:
        for one in (self._follower, self._reader, self._store):
            if one is not None:
                one.close()


def overtaken(where: str, scenario: Scenario, start: State | None, every: int, *, copies: bool) -> tuple[Ended, int]:
    """Perform a scenario; look, or copy, before each call of it whose number is a multiple. How often it did."""
    told = Told()
    watcher = Watcher(where, scenario.settings, told)
    done = 0

    def plan(call: Call) -> Action | None:
        nonlocal done
        if call.number % every == 0:
            try:
                watcher.copy() if copies else watcher.look()
            except Exception as error:
                raise AssertionError(f"before {call}: {type(error).__name__}: {error}") from error
            done += 1
        return None

    def work() -> None:
        rig = ProcessRig(os.path.join(where, "store"), scenario.settings, told, start)
        perform(rig, scenario)

    try:
        ended = run(work, where, plan)
        if not copies:
            watcher.look()
    finally:
        watcher.close()
        told.close()
    return ended, done


__all__ = ["Watcher", "overtaken"]
