"""Every system call of every script fails, with every error that it may fail with, once and for ever; or stops short.

The child goes on: it is told typed errors alone, nothing that was refused replays, everything acknowledged does, and
once the disk works again all is as the model says, in the same handle and in the next; see :mod:`fuzz.processes`.
"""

from __future__ import annotations

from errno import EDQUOT, EINTR, ENOSPC, EOPNOTSUPP
from random import Random

import pytest

from fuzz.campaign import Campaign
from fuzz.process_child import SCENARIOS, random_scenario
from fuzz.processes import NAMES, READS, SYNCS, WRITES, Case, Place, failures, shortened
from scopelog_engine.layout import MAIN_FILE

from .processes import consistency_check, some, watched, where

__all__ = ["consistency_check", "where"]
pytestmark = watched
DISK = {"WriteFailed", "OutcomeUnknown", "LogPoisoned", "OpenFailed", "ReadFailed", "UnsupportedPlatform"}
SCOPE_ENDING = ".scope.zst"
FULL = (ENOSPC, EDQUOT)


def met(place: Place, case: Case) -> set[str]:
    """The errors that the child was told."""
    told = set(place.fail(case).failures)
    assert told <= (DISK | {"HandleFenced"} if case.lasting else DISK), f"{place.name}, {case}: {told}"
    return told


@pytest.mark.fault(15, 16, rig="K")
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_sync_fails(name: str, campaign: Campaign, where: str) -> None:
    """Nothing is acknowledged by a log whose sync failed until it is opened again, whatever the next sync says."""
    place = Place(where, name, SCENARIOS[name])
    for lasting in (False, True):
        for case in some(failures(place.calls, SYNCS, lasting), 1, campaign):
            told = met(place, case)
            assert told, f"{name}, {case}: nobody was told"
            if case.call.name == "fdatasync" and case.call.path.endswith((MAIN_FILE, SCOPE_ENDING)):
                assert told & {"OutcomeUnknown", "LogPoisoned", "OpenFailed"}, f"{name}, {case}: {told}"
            campaign.count(rows=(16 if lasting else 15,))


@pytest.mark.fault(17, 18, 19, rig="K")
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_write_fails_or_is_short(name: str, campaign: Campaign, where: str) -> None:
    place = Place(where, name, SCENARIOS[name])
    for lasting in (False, True):
        for case in some(failures(place.calls, WRITES, lasting), 2, campaign):
            told = met(place, case)
            if case.action.error in (EINTR, EOPNOTSUPP):
                assert not told, f"{name}, {case}: {told}"
            assert not told & {"OutcomeUnknown", "LogPoisoned"}, f"{name}, {case}: {told}, but no sync failed"
            campaign.count(rows=(17 if case.action.error in FULL else 19,))
    for case in some(shortened(place.calls, "pwrite64"), 2, campaign):
        told = met(place, case)
        assert not told, f"{name}, {case}: {told}"
        campaign.count(rows=(18,))


@pytest.mark.fault(20, rig="K")
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_read_fails_or_is_short(name: str, campaign: Campaign, where: str) -> None:
    place = Place(where, name, SCENARIOS[name])
    for lasting in (False, True):
        for case in some(failures(place.calls, READS, lasting), 1, campaign):
            told = met(place, case)
            assert not told or case.action.error != EINTR, f"{name}, {case}: {told}"
            campaign.count()
    for case in some(shortened(place.calls, "pread64"), 1, campaign):
        told = met(place, case)
        assert not told, f"{name}, {case}: {told}"
        campaign.count()


@pytest.mark.fault(21, rig="K")
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_name_fails(name: str, campaign: Campaign, where: str) -> None:
    """Nothing can be opened, made, renamed or removed: no descriptors, no permission, a read-only file system."""
    place = Place(where, name, SCENARIOS[name])
    for lasting in (False, True):
        for case in some(failures(place.calls, NAMES, lasting), 1, campaign):
            met(place, case)
            campaign.count()


@pytest.mark.fault(33, rig="K")
@pytest.mark.parametrize("name", [name for name in SCENARIOS if "retire" in name or "reuse" in name])
def test_a_retired_scope_that_cannot_be_unlinked(name: str, campaign: Campaign, where: str) -> None:
    """It fails no commit, and the scope is over all the same."""
    place = Place(where, name, SCENARIOS[name])
    cases = [*failures(place.calls, ("unlink",)), *failures(place.calls, ("unlink",), lasting=True)]
    assert cases
    for case in cases:
        assert not met(place, case), f"{name}, {case}"
        campaign.count()


@pytest.mark.fault(15, 17, 19, 20, 21, rig="K")
def test_random_lives_on_a_failing_disk(campaign: Campaign, where: str) -> None:
    for seed in campaign.seeds(2):
        random = Random(seed)
        place = Place(where, f"seed {seed}", random_scenario(seed))
        for names, row in ((SYNCS, 15), (WRITES, 19), (READS, 20), (NAMES, 21)):
            cases = [*failures(place.calls, names), *failures(place.calls, names, lasting=True)]
            for case in random.sample(cases, min(2, len(cases))):
                met(place, case)
                full = row == 19 and case.action.error in FULL
                campaign.count(rows=(17 if full else row,))
