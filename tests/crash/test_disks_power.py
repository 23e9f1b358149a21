"""Power cuts of ext4 and xfs at random instants of a real child, with pages written back out of order before."""

from __future__ import annotations

import shutil
from collections import Counter
from random import Random

import pytest

from fuzz.campaign import Campaign
from fuzz.disks.mounts import missing, scratch
from fuzz.disks.plans import going_on, survive
from fuzz.disks.power import machine
from fuzz.disks.worker import DiskRig, Worker
from fuzz.model_handles import POWER, PROCESS, Settings

SETTINGS = (Settings(PROCESS, PROCESS), Settings(), Settings(PROCESS, PROCESS), Settings(PROCESS, POWER))
"""What is at PROCESS leaves the dirtier shapes."""

CUTS = 5
"""Cuts of one store, before another is begun."""


@pytest.fixture(params=["ext4", "xfs"])
def kind(request: pytest.FixtureRequest) -> str:
    if lacks := missing("loop", request.param):
        pytest.skip(f"power cuts of {request.param}: {lacks}")
    return str(request.param)


@pytest.mark.fault(3, 6, 7, 14, 33, rig="P")
def test_cut_at_random_instants(kind: str, campaign: Campaign) -> None:
    seen: Counter[str] = Counter()
    with scratch() as directory, machine(kind, directory) as disk:
        for seed in campaign.seeds(1):
            rng = Random(f"power {seed + 6}")  # the first one leaves holes on both
            worker = Worker(DiskRig(disk.store(), SETTINGS[seed % len(SETTINGS)]))
            for round_ in range(CUTS):
                try:
                    loose = rng.random() < 0.7
                    plan = going_on(rng.randrange(1 << 30), 400, power=True, loose=loose)
                    after = rng.choice((1, rng.randint(2, 30), *(rng.randint(20, 150) for _ in range(3))))
                    worker.locked = not campaign.full or rng.random() < 0.3  # else it runs on meanwhile
                    outcome = disk.run_and_cut(worker, plan, rng, after)
                    campaign.count(rows=(3,))
                    campaign.count(int(worker.rig.retired), rows=(33,))
                    assert outcome.end in ("down", "done"), outcome
                except AssertionError as error:
                    raise AssertionError(f"{kind}, seed {seed}, round {round_}: {error}") from error
            assert worker.run(survive).end == "done"
            shutil.rmtree(worker.rig.path)  # room for the next
            seen += worker.seen
        cuts = disk.cuts
    campaign.count(seen["zeros"] + seen["hole"], rows=(6,))
    campaign.count(seen["hole"], rows=(7,))
    campaign.count(seen["empty"], rows=(14,))
    campaign.note(f"{kind}: {cuts} cuts; logs left {dict(sorted(seen.items()))}")
