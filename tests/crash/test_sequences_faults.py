"""Every step of a short sequence of operations fails on the simulated disk: once, for ever, in the middle of a write.

After it, and once the disk works again, the model holds: in the running handle, after the next open, after power cuts.
An ordinary run tries some faults of single operations. A campaign tries every fault of every pair from one beginning
and of single operations from the others, every byte at which a write can end short, and sequences of three by chance.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from fuzz.campaign import Campaign
from fuzz.model_handles import POWER, PROCESS, Settings, random_identities
from fuzz.operations import STEPS, Beginning, Step
from fuzz.sequence_faults import Fault, faults, fill, meet, read_faults

BEGINNINGS = (
    Beginning(),
    Beginning(Settings(PROCESS, PROCESS)),
    Beginning(Settings(POWER, POWER), preallocates=True),
    Beginning(lived=False),
)


@pytest.fixture(autouse=True)
def consistency_check(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In place of the shared one, which knows real directories only. Preallocated space in small: it is all zeros."""
    monkeypatch.setattr("scopelog_engine.logfile.PREALLOCATE_BYTES", 1024)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    random_identities()


class Tally:
    """What was met, by row."""

    def __init__(self) -> None:
        self.met: Counter[int] = Counter()
        self.refused = self.cuts = 0

    def meet(self, beginning: Beginning, steps: tuple[Step, ...], fault: Fault) -> bool:
        met = meet(beginning, steps, fault)
        self.met[fault.row] += met.struck
        self.refused += met.refused
        self.cuts += met.cuts
        return met.struck

    def told(self, campaign: Campaign, what: str) -> None:
        for row in campaign.rows:
            campaign.count(self.met[row], rows=(row,))
        campaign.note(f"{what}: {self.refused:,} operations refused, {self.cuts:,} power cuts survived after the fault")


@pytest.mark.fault(15, 16, 17, 18, 19, rig="S")
def test_every_step_fails(campaign: Campaign) -> None:
    """The step is one of the last operation: those before are the business of the shorter sequences."""
    tally = Tally()
    for beginning in BEGINNINGS:
        counts = (1, 2) if campaign.full and beginning == BEGINNINGS[0] else (1,)
        every = [steps for count in counts for steps in itertools.product(STEPS, repeat=count)]
        found = [(steps, f) for steps in every for f in faults(beginning, steps, every_byte=False, last_only=True)]
        for steps, fault in found if campaign.full else found[::79]:
            assert tally.meet(beginning, steps, fault), f"{fault} of {steps} did not come up"
    assert tally.refused and tally.cuts
    tally.told(campaign, "every step of one and two operations")


@pytest.mark.fault(15, 16, 17, 18, 19, rig="S")
def test_an_operation_goes_on_after_a_step_of_an_earlier_one_has_failed(campaign: Campaign) -> None:
    """The disk works again, or does not, while later operations come."""
    tally = Tally()
    for seed in campaign.seeds(30):
        random = Random(seed)
        beginning = random.choice(BEGINNINGS)
        steps = tuple(random.choices(STEPS, k=random.choice((2, 3, 3))))
        found = [*faults(beginning, steps, every_byte=False, last_only=False)]
        if found:
            tally.meet(beginning, steps, random.choice(found))
    tally.told(campaign, "two and three operations by chance")


@pytest.mark.fault(18, rig="S")
def test_a_write_ends_short_at_every_byte(campaign: Campaign) -> None:
    """Alone, and with a full disk behind it: finished, or cut back to the last whole frame."""
    tally = Tally()
    for beginning in BEGINNINGS[:1]:
        for step in STEPS:
            found = [f for f in faults(beginning, (step,), every_byte=True, last_only=True) if f.short is not None]
            for fault in found if campaign.full else found[::171]:
                assert tally.meet(beginning, (step,), fault)
    assert tally.met[18] >= 10
    tally.told(campaign, "short writes")


@pytest.mark.fault(17, rig="S")
def test_a_full_disk_and_space_coming_back(campaign: Campaign) -> None:
    """With so many bytes left, from none to enough: nothing is lost that was acknowledged, and nothing is shed."""
    cases = refused = 0
    for beginning in BEGINNINGS[:3]:
        every = [steps for count in (1, 2) for steps in itertools.product(STEPS, repeat=count)]
        for steps in every if campaign.full else every[::37]:
            for room in range(0, 400, 40 if campaign.full else 130):
                refused += fill(beginning, steps, room)
                cases += 1
    assert refused
    campaign.count(cases)
    campaign.note(f"a full disk: {refused:,} operations refused")


@pytest.mark.fault(20, rig="S")
def test_every_read_fails(campaign: Campaign) -> None:
    """An error of a read is no end of file: what an open cannot read it does not cut; a short read is continued."""
    tally = Tally()
    last: dict[tuple[int, int, str], int] = {}
    every = [steps for count in (1, 2) for steps in itertools.product(STEPS, repeat=count)]
    for at, beginning in enumerate(BEGINNINGS[:2]):
        for number, steps in enumerate(every[::3] if campaign.full else every[::52]):
            for fault in read_faults(5 if campaign.full else 2):
                if fault.nth <= last.get((at, number, fault.op), fault.nth) and not tally.meet(beginning, steps, fault):
                    last[at, number, fault.op] = fault.nth - 1
    assert tally.met[20] >= 15
    tally.told(campaign, "reads")
