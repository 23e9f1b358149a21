"""Ctrl-C pressed twice: the second one arrives while the first is being dealt with."""

from __future__ import annotations

from typing import Final

import pytest

from fuzz.simdisk import SimDisk
from scopelog import Durability, LogPoisoned, ManualClock, Store, ephemeral, list_of
from scopelog_engine.state import Outcome, Work
from scopelog_engine.storing import Storing

from .test_interrupted import CALLS, CLOSING, Entries, InterruptedDisk, Rig, check_closed, check_open, in_time, rig_for

DEPTH: Final = 8  # functions entered between the two, at most
BIRTHS: Final = ("birth of a scope", "birth of a scope and of main")  # may leave an empty file, which is set aside


class TwiceInterruptedDisk(InterruptedDisk):
    """After its interruption the ``second`` function that is entered is interrupted too."""

    second: Entries

    def _count(self, where: str) -> None:
        try:
            super()._count(where)
        except KeyboardInterrupt:
            self.second.__enter__()
            raise


def interrupted_twice(name: str, place: int, depth: int) -> bool:
    """False if there is no such place in the call."""
    rig: Rig = rig_for(name)
    rig.disk.__class__ = TwiceInterruptedDisk
    assert isinstance(rig.disk, TwiceInterruptedDisk)
    rig.disk.second = Entries(depth, KeyboardInterrupt)
    rig.disk.arm(place, KeyboardInterrupt)
    returned = True
    try:
        (CALLS.get(name) or CLOSING[name])(rig)
    except KeyboardInterrupt:
        returned = False
    finally:
        if rig.disk.where:
            rig.disk.second.__exit__(None, None, None)
    rig.disk.arm(0, KeyboardInterrupt)
    check = check_closed if name in CLOSING else check_open
    try:
        in_time(lambda: check(rig, name, returned))
    except BaseException as error:
        error.add_note(f"interrupted {rig.disk.where}, then in {rig.disk.second.where} (place {place}, depth {depth})")
        raise
    return bool(rig.disk.where)


@pytest.mark.fault(35, rig="S")
@pytest.mark.parametrize("name", [name for name in (*CALLS, *CLOSING) if name not in ("append", "window", *BIRTHS)])
def test_a_second_interruption_while_the_first_is_dealt_with(name: str) -> None:
    """The leader was interrupted in a sync, and again on its way to step down: it led for ever, and every later call
    of the session hung."""
    for depth in range(1, DEPTH + 1):
        place = 1
        while interrupted_twice(name, place, depth):
            place += 1
        assert place > 2


def test_a_failed_sync_whose_outcome_was_not_noted_leaves_the_retired_scope_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interrupted between the failed sync of a retirement and the note of it, the leader asked for the commit again,
    was told LogPoisoned, and took the scope for alive: what was then acknowledged in it was dead at the next open."""
    disk = SimDisk()
    store = Store.open("/store", fs=disk, clock=ManualClock(), scope_durability=Durability.POWER)
    session = store.session("s")
    scope = ephemeral("op-1")
    session.commit([list_of("a", "b").append(1)])
    session.commit([scope.value("a", "b").set(1)])
    original = Storing._store

    def interrupted(self: Storing, work: Work) -> Outcome:
        original(self, work)
        raise KeyboardInterrupt

    disk.fail("sync", path="main.zst")
    with monkeypatch.context() as patch:
        patch.setattr(Storing, "_store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.commit([scope.retire()])
    with pytest.raises(LogPoisoned, match="may have been retired"):
        session.commit([scope.value("a", "b").set(2)])
    session.close(force=True)
    with store.session("s") as again:
        assert again.get(scope.value("a", "b")) in (1, None)
