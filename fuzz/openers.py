"""Handles of one process that open, write, close and delete the same session, in every order.

Each has a store of its own and shares no memory with the others; the lock file on the disk is all that keeps them
apart. Whoever opens finds exactly what was acknowledged before; whoever is refused has written nothing but the empty
lock file; nobody ever owns the session beside another; and what a deletion takes is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fuzz.actors import LOOK, SID, contents
from fuzz.model_handles import PATH, random_identities, steady_identities
from fuzz.parking import ParkingDisk
from fuzz.scheduler import Actor, Scheduler, Step
from fuzz.schedules import Recorded, text_of
from fuzz.simdisk import SimDisk
from scopelog import ManualClock, NoSuchSession, Store, StoreLocked, list_of

__all__ = ["Openers", "run"]

Choose = Callable[[Actor | None, list[Actor]], Actor]
_HARMLESS = {"create LOCK", "try_lock LOCK", "close LOCK", "mkdir s.session", "sync_dir store"}


class Openers:
    """One run. ``expected``: what the session holds, by whoever opens it next."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.fs = ParkingDisk(disk)
        self.fs.changed = self._changed
        self.scheduler = Scheduler()
        self.expected: list[str] = []
        self.owners: list[str] = []
        self.refusals = 0
        self._written: dict[str, list[str]] = {}

    def _changed(self, step: Step) -> None:
        me = self.scheduler.me()
        assert me is not None
        self._written.setdefault(me.name, []).append(str(step))
        if me.name == "deleter" and step.op == "rename":
            self.expected.clear()

    def opener(self, store: Store, name: str) -> None:
        """Opens, looks, writes, closes; or is refused."""
        self._written[name] = []
        try:
            session = store.session(SID)
        except StoreLocked:
            self.refusals += 1
            assert set(self._written[name]) <= _HARMLESS, f"{name} was refused and has done {self._written[name]}"
            return
        self.scheduler.park(LOOK)
        assert not self.owners, f"{name} owns the session beside {self.owners}"
        self.owners.append(name)
        assert self._found(store) == self.expected, f"{name} finds {self._found(store)}, not {self.expected}"
        session.commit([list_of("n", "plain").append(name)])
        self.expected.append(name)
        self.owners.remove(name)
        self.scheduler.park(LOOK)
        session.close()

    def deleter(self, store: Store) -> None:
        try:
            store.delete_session(SID)
        except (StoreLocked, NoSuchSession):
            self.refusals += 1

    @staticmethod
    def _found(store: Store) -> list[object]:
        return [op.spec.value for op in contents(store).get("", [])]


def run(name: str, roles: str, choose: Choose, disk: SimDisk, expected: list[str]) -> Openers:
    """``roles``: a letter for each actor, ``o`` for an opener, ``d`` for the one who deletes."""
    steady_identities()
    made = Openers(disk)
    made.expected = [*expected]
    recorded = Recorded(choose)
    try:
        for n, role in enumerate(roles):
            store = Store.open(PATH, fs=made.fs, clock=ManualClock())
            who = "deleter" if role == "d" else f"opener {n}"
            call = partial(made.deleter, store) if role == "d" else partial(made.opener, store, who)
            made.scheduler.spawn(who, call, who).step = Step("begin")
        made.scheduler.run(recorded)
        made.scheduler.stop()
        with Store.open(PATH, fs=disk, clock=ManualClock()) as store:
            assert Openers._found(store) == made.expected, f"{Openers._found(store)} is left of {made.expected}"
            with store.session(SID) as session:
                assert not session.recovery, session.recovery
            assert [finding for finding in store.check(deep=True) if finding.severity != "note"] == []
    except Exception as error:
        raise AssertionError(f"{name}: {text_of(recorded.schedule)}: {error!r}") from error
    finally:
        made.scheduler.stop()
        random_identities()
    return made
