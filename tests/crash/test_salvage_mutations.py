"""Salvage of mutated logs: the mutations of test_mutations.py, and all that verifies comes along, and nothing else."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import islice
from random import Random
from typing import Final

import pytest

from fuzz.campaign import Campaign
from fuzz.mutation_rig import SAME, SimBed
from fuzz.mutations import FAMILIES, damage, placements, several
from fuzz.salvage_rig import DONE, REFUSED, Salvaging
from fuzz.shapes import shape

SMALL: Final = ("talk", "closed", "reserved", "process", "lives", "compacted", "stretches", "stretches-lives")
OWN: Final = ("flips", "zeroed", "cuts", "holes", "tails", "misplaced")
ROWS: Final = {"cuts": 4, "zeroed": 5, "tails": 6, "holes": 7, "flips": 9, "misplaced": 10, "foreign": 10}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "scopelog_engine")


@pytest.mark.fault(4, 5, 6, 7, 8, 9, 10, rig="M")
@pytest.mark.parametrize("name", SMALL)
def test_what_verifies_comes_along(name: str, campaign: Campaign) -> None:
    one = shape(name)
    rig = Salvaging(one, SimBed(preallocates=name == "reserved"))
    met: Counter[str] = Counter()
    for log in one.logs.values():
        for family in FAMILIES:
            step = {"flips": 13, "cuts": 3}.get(family, 5) * (5 if "stretches" in name else 1)
            for change in islice(damage(one, log, [family]), 0, None, step if campaign.full else 239 * step):
                outcome = rig.hold(change, own=family in OWN)
                met[outcome] += 1
                if outcome != SAME:
                    campaign.count(rows=(ROWS[family],) if family in ("tails", "cuts") else (ROWS[family], 8))
    assert met[DONE] > 3
    if campaign.full and not one.sidecars:
        assert met[REFUSED]


@pytest.mark.fault(5, 8, 9, 10, rig="M")
def test_several_places(campaign: Campaign) -> None:
    rigs: dict[str, Salvaging] = {}
    for seed in campaign.seeds(10):
        random = Random(seed)
        name = random.choice(SMALL)
        rig = rigs.setdefault(name, Salvaging(shape(name), SimBed(preallocates=name == "reserved")))
        if rig.hold(several(rig.shape, random), own=False) != SAME:
            campaign.count()


@pytest.mark.fault(31, 32, rig="M")
@pytest.mark.parametrize("name", ["lives", "compacted", "stretches-lives"])
def test_files_that_do_not_belong(name: str, campaign: Campaign) -> None:
    one = shape(name)
    rig = Salvaging(one, SimBed())
    for change in islice(placements(one), 0, None, 1 if campaign.full else 13):
        if rig.hold(change, own=False) != SAME:
            campaign.count(rows=(32 if "main" in change else 31,))
