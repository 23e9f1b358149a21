"""kill -9 before every system call of every script, and in the middle of every write; recovery killed as well.

What is left is opened unaided and held against what the child had been told; see :mod:`fuzz.processes`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from fuzz.campaign import Campaign
from fuzz.model_handles import POWER
from fuzz.process_child import COMMITTED, SCENARIOS, Scenario, add, commit, opened, random_scenario, set_
from fuzz.process_rig import SID, Files, ProcessRig, files_of, logs_of, survive
from fuzz.processes import Case, Place, attempt, kills
from fuzz.ptrace import KILL, Action, Call
from tests.index_rig import small_values
from tests.views_index import checkpoint

from .processes import consistency_check, some, watched, where

__all__ = ["consistency_check", "where"]
pytestmark = watched
RECOVERING = Scenario((), (opened,), torn=True)


@pytest.mark.fault(1, rig="K")
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_every_call(name: str, campaign: Campaign, where: str) -> None:
    place = Place(where, name, SCENARIOS[name])
    cases = [*kills(place.calls)]
    if not campaign.full:  # where most can go wrong, and one elsewhere
        halves = [case for case in cases if case.action.then_kill and case.action.limit > 1]
        cases = [*[case for case in cases if case.call.name == "rename"][:2], *halves[:1], *some(cases, 1, campaign)]
    for case in cases:
        place.kill(case)
        campaign.count()


@pytest.mark.fault(33, rig="K")
@pytest.mark.parametrize("name", [name for name in SCENARIOS if "retire" in name or "reuse" in name])
def test_killed_around_the_unlink_of_a_retired_scope(name: str, campaign: Campaign, where: str) -> None:
    """After the retiring commit and before the unlink, at it, and after it: settled once, and never back."""
    place = Place(where, name, SCENARIOS[name])
    unlinks = [call for call in place.calls if call.name == "unlink" and call.path.endswith(".scope.zst")]
    assert unlinks
    near = {call.number + step for call in unlinks for step in (-2, -1, 0, 1)}
    for call in place.calls:
        if call.number in near:
            left = place.kill(Case(call, "killed before it", KILL))
            campaign.count()
            there = {path for path in left if path.endswith(".scope.zst")}
            if call in unlinks:
                assert f"store/{call.path.removeprefix('store/')}" in there, "it is unlinked by this very call"


@pytest.mark.fault(1, rig="K")
def test_random_lives_are_killed_anywhere(campaign: Campaign, where: str) -> None:
    for seed in campaign.seeds(3):
        random = Random(seed)
        place = Place(where, f"seed {seed}", random_scenario(seed))
        cases = [*kills(place.calls)]
        for case in random.sample(cases, min(3, len(cases))):
            place.kill(case)
            campaign.count()


# --- recovery ---------------------------------------------------------------------------------------


def recover(place: Place, files: Files, plan: Callable[[Call], Action | None] | None = None) -> tuple[Files, bool]:
    """What a child that opens the session leaves, and whether it was killed. It dies without closing in any case."""
    place.lay(files)
    outcome = place.attempt(plan)
    assert not outcome.error, outcome.error
    assert outcome.ended.status in (0, 9)
    return files_of(place.where), outcome.ended.signal == 9


def held(place: Place, files: Files, whole: Files, how: str) -> None:
    """Recovering once more ends in the same bytes as one recovery that nothing disturbed."""
    done, killed = recover(place, files)
    assert not killed
    assert logs_of(done).keys() == logs_of(whole).keys(), f"{how}: other files"
    assert logs_of(done) == logs_of(whole), f"{how}: other bytes"


@pytest.mark.fault(2, rig="K")
def test_recovery_killed_at_every_call_ends_in_the_same_bytes(campaign: Campaign, where: str) -> None:
    place = Place(where, "recovery", RECOVERING)
    whole, _ = recover(place, place.files)
    assert len([name for name in whole if name.endswith(".torn")]) == 2
    held(place, whole, whole, "again, after it was done")
    for case in some(kills(place.calls), 12, campaign):
        left, killed = recover(place, place.files, case.plan())
        assert killed
        held(place, left, whole, str(case))
        campaign.count()


@pytest.mark.fault(2, rig="K")
def test_recovery_killed_again_and_again(campaign: Campaign, where: str) -> None:
    """At the first call, then at the second, and so on, one after another on what the one before left; or at random."""
    place = Place(where, "recovery", RECOVERING)
    whole, _ = recover(place, place.files)

    def again(numbers: list[int], how: str) -> None:
        files = place.files
        for number in numbers:
            files, killed = recover(place, files, lambda call, at=number: KILL if call.number == at else None)  # type: ignore[misc]
            campaign.count()
            if not killed:
                break
        held(place, files, whole, how)

    step = 1 if campaign.full else 4
    again([*range(1, len(place.calls) + 1, step)], "at one call after another")
    for seed in campaign.seeds(2):
        random = Random(seed)
        again([random.randint(1, len(place.calls)) for _ in range(random.randint(2, 6))], f"seed {seed}")


@pytest.mark.fault(2, rig="K")
def test_what_any_kill_left_is_recovered_under_kills(campaign: Campaign, where: str) -> None:
    """Not one image alone: a life that is killed in the middle of a write, then its recovery, twice, at random."""
    for seed in campaign.seeds(2):
        random = Random(seed)
        place = Place(where, f"seed {seed}", random_scenario(seed))
        writes = [case for case in kills(place.calls) if case.action.then_kill]
        if not writes:
            continue
        place.lay()
        outcome = place.attempt(random.choice(writes).plan())
        assert outcome.ended.signal == 9 and outcome.state is not None, f"seed {seed}"
        opening = Scenario((), (opened,), place.scenario.settings)
        left = files_of(where)
        whole: Files | None = None
        for number in (0, *sorted(random.sample(range(1, 60), 6))):  # 0: undisturbed
            place.lay(left)
            for at in (number, random.randint(1, 60), 0) if number else (0,):
                plan = Case(Call(at, "", "", 0), "", KILL).plan() if at else None
                done = attempt(where, opening, plan, start=outcome.state)
                assert not done.error, f"seed {seed}, killed at {number}:\n{done.error}"
            files = logs_of(files_of(where))
            whole = whole or files
            assert files == whole, f"seed {seed}, recovery killed at {number}"
            campaign.count()
        survive(f"{where}/store", place.scenario.settings, outcome.state)


# --- the index --------------------------------------------------------------------------------------


def grown(rig: ProcessRig) -> None:
    """Many short stretches of main, for an index of several blocks."""
    for number in range(30):
        rig.commit(
            SID, "", [set_(f"k{number % 7}", number), add({"n": number, "text": f"{number * 7919:x}" * 12})], POWER
        )


def indexed(rig: ProcessRig) -> None:
    assert checkpoint(rig.sessions[SID], "extend")


@pytest.mark.fault(1, 24, rig="K")
def test_a_checkpoint_killed_at_every_call_costs_the_index_alone(
    campaign: Campaign, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it left, a store with it answers like the model, and like one without; and it catches up."""
    small_values(monkeypatch)
    scenario = Scenario((*COMMITTED, grown, indexed, grown), (indexed, commit("", add("behind it"))))
    place = Place(where, "checkpoint", scenario)
    paths = {call.path for call in place.calls if call.name in ("pwrite64", "fdatasync", "pwritev")}
    assert any(path.endswith("data.mdb") for path in paths), paths
    for case in some(kills(place.calls), 3, campaign):
        place.lay()
        outcome = place.attempt(case.plan())
        assert outcome.ended.signal == 9 and outcome.state is not None, f"{case}: {outcome}"
        rig = survive(f"{where}/store", scenario.settings, outcome.state, more=False)
        rig.open()
        rig.verify()
        indexed(rig)
        rig.verify()
        rig.open_store().discard_index()
        rig.verify()
        rig.check()
        campaign.count()
