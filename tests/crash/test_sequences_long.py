"""Long runs by chance on the simulated disk: faults, kills, power cuts, and crashes of recoveries of crashes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from fuzz.campaign import Campaign
from fuzz.longrun import LongRun
from fuzz.model_handles import random_identities


@pytest.fixture(autouse=True)
def consistency_check(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In place of the shared one, which knows real directories only: every run ends with a check of its own."""
    monkeypatch.setattr("scopelog_engine.logfile.PREALLOCATE_BYTES", 1024)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    random_identities()


@pytest.mark.fault(2, 11, 12, 13, 15, 17, 18, 19, 33, rig="S")
def test_long_runs(campaign: Campaign) -> None:
    """A run is one case of each row; a failure names the seed and the step."""
    counts: Counter[str] = Counter()
    runs = 0
    for seed in campaign.seeds(8):
        run = LongRun(seed)
        run.run(60)
        counts += run.counts
        runs += 1
    assert counts["in a step"] and counts["in a recovery"] and counts["power cut"] and counts["kill"]
    campaign.count(runs)
    campaign.note(f"{runs:,} long runs: " + ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))
