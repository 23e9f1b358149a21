"""Every short sequence of operations on the simulated disk, at every crash point, in every state it can leave.

An ordinary run tries single operations and a few pairs. A campaign tries every sequence of up to two from each
beginning, a third of those of three from one (the seed says which: three seeds are all of them), every byte of the
writes of single operations, and, as long as the time lasts, sequences of three and four by chance; equal states once.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from random import Random

import pytest

from fuzz.campaign import Campaign
from fuzz.model_handles import POWER, PROCESS, Settings, random_identities
from fuzz.operations import STEPS, Beginning
from fuzz.sequences import Explored, Sequences
from fuzz.survival import Repairs

BEGINNINGS = {
    "scopes at process": Beginning(),
    "all at process": Beginning(Settings(PROCESS, PROCESS)),
    "all at power, preallocated": Beginning(Settings(POWER, POWER), preallocates=True),
    "scopes above": Beginning(Settings(PROCESS, POWER)),
    "nothing": Beginning(lived=False),
    "nothing, all at process": Beginning(Settings(PROCESS, PROCESS), lived=False),
}
ROWS = (2, 11, 12, 13, 14, 33)


@pytest.fixture(autouse=True)
def consistency_check(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In place of the shared one, which knows real directories only. Preallocated space in small: it is all zeros."""
    monkeypatch.setattr("scopelog_engine.logfile.PREALLOCATE_BYTES", 1024)
    logging.getLogger("scopelog_engine").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("scopelog_engine").setLevel(logging.NOTSET)
    random_identities()


def told(campaign: Campaign, done: Explored, repairs: Repairs, began: float, what: str) -> None:
    """Count what was provoked: rows 11 to 14 by the states themselves, 2 by repairs cut down, 33 by retirements."""
    for row in ROWS:
        campaign.count(repairs.cuts if row == 2 else done.rows[row], rows=(row,))
    speed = (done.choices + done.tried) / max(time.process_time() - began, 0.001)
    campaign.note(
        f"{what}: {done}; {len(repairs.seen)} repairs cut down {repairs.cuts:,} times; {speed:,.0f} outcomes/s"
    )


@pytest.mark.fault(2, 11, 12, 13, 14, 33, rig="S")
@pytest.mark.parametrize("name", BEGINNINGS)
def test_every_crash_point_of_one_and_two_operations(name: str, campaign: Campaign) -> None:
    began = time.process_time()
    repairs = Repairs(400 if campaign.full else 3, 6 if campaign.full else 2)
    rig = Sequences(repairs, share=5)
    for count in (1, 2):
        every = [*itertools.product(STEPS, repeat=count)]
        for steps in every if campaign.full else every[:: 6 if count == 1 else 59]:
            rig.run(BEGINNINGS[name], steps)
    assert rig.done.rows[11] and repairs.cuts
    told(campaign, rig.done, repairs, began, f"one and two operations, {name}")


@pytest.mark.fault(2, 11, 12, 13, 14, 33, rig="S")
def test_every_crash_point_of_three_operations(campaign: Campaign) -> None:
    began = time.process_time()
    repairs = Repairs(100 if campaign.full else 2)
    rig = Sequences(repairs, share=20)
    every = [*itertools.product(STEPS, repeat=3)]
    for steps in every[campaign.seed % 3 :: 3] if campaign.full else every[::911]:
        rig.run(BEGINNINGS["scopes at process"], steps)
    assert rig.done.rows[12] and rig.done.rows[14]
    told(campaign, rig.done, repairs, began, f"a third of the {len(every):,} sequences of three operations")


@pytest.mark.fault(2, 11, 12, 13, 14, 33, rig="S")
def test_every_byte_of_every_write(campaign: Campaign) -> None:
    """A write that the crash met is torn at each of its bytes, from the front and from the back."""
    began = time.process_time()
    repairs = Repairs(2)
    rig = Sequences(repairs, share=50)
    for beginning in (BEGINNINGS["scopes at process"], BEGINNINGS["nothing"]) if campaign.full else (Beginning(),):
        for step in STEPS if campaign.full else STEPS[1:2]:
            rig.run(beginning, [step], every_byte=True)
    told(campaign, rig.done, repairs, began, "every byte of the writes of one operation")


@pytest.mark.fault(2, 11, 12, 13, 14, 33, rig="S")
def test_three_and_four_operations_by_chance(campaign: Campaign) -> None:
    """Equal states are merged over all that come up."""
    began = time.process_time()
    repairs = Repairs(10)
    rig = Sequences(repairs, share=20)
    for seed in campaign.seeds(4):
        random = Random(seed)
        steps = random.choices(STEPS, k=random.choice((3, 4, 4)))
        rig.run(random.choice([*BEGINNINGS.values()]), steps)
    whole = len(STEPS) ** 4 * len(BEGINNINGS)
    told(campaign, rig.done, repairs, began, f"three and four operations by chance, of {whole:,} there are")
