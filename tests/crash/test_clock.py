"""Clocks that go back, leap or are no number: order is by sequence alone, and windows close all the same."""

from __future__ import annotations

import math
from random import Random

import pytest

from fuzz.campaign import Campaign
from fuzz.simdisk import SimDisk
from scopelog import Json, ManualClock, Session, Store, ephemeral, list_of, value

MAIN = list_of("chat", "messages")
OUT = ephemeral("op-1").list_of("op", "out")
TITLE = value("chat", "title")
HOUR, CENTURY = 3_600_000, 100 * 366 * 86_400_000


def elements(session: Session) -> list[Json]:
    return [e.element for e in session.read(MAIN)]


@pytest.mark.fault(27, rig="S")
def test_a_wall_clock_that_goes_back_and_forwards(campaign: Campaign) -> None:
    """Before every write it leaps, back by an hour or a century, before 1970, far ahead: what is stored and shown is in
    order of sequence, windows close on their own time, and it is found so by the next process and after a power cut."""
    for seed in campaign.seeds(6):
        random = Random(seed)
        clock, disk = ManualClock(), SimDisk()
        store = Store.open("/store", fs=disk, clock=clock)
        session = store.session("s")
        told: list[Json] = []
        for n in range(30):
            leap = random.choice((-CENTURY, -HOUR, -1, 0, 1, HOUR, CENTURY))
            clock.set_wall_ms(
                max(0, clock.wall_ms() + leap) if random.random() < 0.9 else random.choice((0, -1, 1 << 52))
            )
            told.append(n)
            if random.random() < 0.5:
                session.commit([MAIN.append(n), TITLE.set(n)])
            else:
                session.append(MAIN, n)
                session.append(OUT, n)
                clock.advance(0.1)
                assert session.stats()["pending_elements"] == 0, "its window is still open"
            assert elements(session) == told
        session.commit([MAIN.append("end")])
        for left in (disk.kill(), disk.crash()):
            again = Store.open("/store", fs=left, clock=ManualClock(wall_ms=0))
            with again.session("s") as other:
                assert elements(other) == [*told, "end"]
                numbers = [e.seq for e in other.read(MAIN)]
                assert numbers == sorted(set(numbers))
                other.commit([MAIN.append("behind")])
            assert [f for f in again.check() if f.severity != "note"] == []
        campaign.count()


class Broken(ManualClock):
    """``wall``: what it says the time is, if it says anything else than it should."""

    wall: float | None = None

    def wall_ms(self) -> int:
        return super().wall_ms() if self.wall is None else self.wall  # type: ignore[return-value]


@pytest.mark.fault(27, rig="S")
@pytest.mark.parametrize("wall", [math.nan, math.inf, -math.inf, 1.5, 1 << 80, -(1 << 80)], ids=repr)
def test_a_wall_clock_that_is_no_whole_number_of_milliseconds(wall: float, campaign: Campaign) -> None:
    """Time is data alone, so nobody is told. A clock that said 1.5 was written down as it said: the commit that gave
    birth to the log was acknowledged, and the next open said CorruptLog of its header; one that said NaN refused all
    commits, with an error that was not ours."""
    for born in (False, True):
        clock, disk = Broken(), SimDisk()
        store = Store.open("/store", fs=disk, clock=clock)
        session = store.session("s")
        told: list[Json] = ["begin"] if born else []
        if born:
            session.commit([MAIN.append("begin")])
        clock.wall = wall
        for text in ("first", "second"):
            session.commit([MAIN.append(text)])
            told.append(text)
        session.append(OUT, "staged")
        clock.advance(0.1)
        assert session.stats()["pending_elements"] == 0, "its window is still open"
        clock.wall = None
        session.commit([MAIN.append("end")])
        assert elements(session) == [*told, "end"]
        again = Store.open("/store", fs=disk.crash(), clock=ManualClock())
        with again.session("s") as other:
            assert elements(other) == [*told, "end"]
        assert [f for f in again.check() if f.severity != "note"] == []
        campaign.count()
