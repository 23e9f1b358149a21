"""Actors of one session in every order of their file operations, and crowds of them in random ones.

All orders of a scenario are run where that is possible (``None`` in FULL), each class of orders that differ only in
steps that commute once; else all orders with so many preemptions, and random ones. What every run is held against
stands in :mod:`fuzz.ledger`; the images that a kill or a power cut would leave are recovered from as well. An ordinary
run makes the first of the orders with one preemption.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Final

import pytest

from fuzz import openers
from fuzz.actors import SID
from fuzz.campaign import Campaign
from fuzz.crowds import run_seed
from fuzz.interleavings import COMMITTER, READER, SCENARIOS, Scenario, Verdicts, run
from fuzz.model_handles import PATH
from fuzz.scheduler import THREADING, Deadlock, Interruption, Scheduler, Step, engine_under_schedule, stay
from fuzz.schedules import Orders, Recorded, at_random, by_schedule, text_of
from fuzz.simdisk import SimDisk
from scopelog import ManualClock, Store, list_of

FULL: Final[dict[str, int | None]] = {
    "committer+retirer+reader": 2,
    "committer+compactor+reader": 1,
    "flusher+committer+retirer": None,
    "flusher+compactor+retirer": 1,
    "flusher+committer+closer": None,
    "committer+committer+closer": None,
    "stager+retirer+reuser": 1,
    "compactor+retirer+follower": 1,
    "committer+retirer+closer at process": None,
    "committer+watcher+closer": None,
}
SLICE: Final = 36
RANDOM: Final = 1000  # orders, half of them with every lock that is taken as a step, where not all were run
INTERRUPTED: Final = (
    "flusher+committer+retirer",
    "stager+retirer+reuser",
    "committer+compactor+reader",
    "committer+committer+closer",
)


@pytest.fixture(autouse=True)
def consistency_check() -> Iterator[None]:
    """In place of the shared one: every run ends with a check of its own, and nobody keeps thousands of disks."""
    logging.disable(logging.ERROR)  # of what recoveries found, which is held against the ledger
    with engine_under_schedule():
        yield
    logging.disable(logging.NOTSET)


def rows_of(name: str) -> tuple[int, ...]:
    rows = {"flusher": 28, "retirer": 33, "reader": 38, "follower": 38}
    return tuple(sorted({rows[actor] for actor in name.replace(" ", "+").split("+") if actor in rows}))


def test_the_actors_named_are_those_that_act() -> None:
    for name, scenario in SCENARIOS.items():
        names = {"committer" if part.name == "second" else part.name for part in scenario.parts}
        names |= {"flusher"} if scenario.elapse else set()
        assert names == set(name.removesuffix(" at process").split("+"))


@pytest.mark.fault(1, 28, 33, 38, rig="S")
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_order(name: str, campaign: Campaign) -> None:
    scenario = SCENARIOS[name]
    bound = FULL[name] if campaign.full else 1
    orders = Orders(bound)
    verdicts = Verdicts(every=7 if campaign.full else 6, states=8 if campaign.full else 5)
    steps = set()
    for choose in islice(orders, None if campaign.full else SLICE):
        world = run(name, scenario, choose, verdicts)
        steps.add(world.now)
    more = RANDOM if campaign.full and bound is not None else 0
    for seed in range(more):
        run(f"{name}, random order {seed}", scenario, at_random(Random(seed)), verdicts, fine=seed % 2 > 0)
    campaign.count(orders.counted + more, rows=rows_of(name))
    campaign.count(verdicts.recovered, rows=(1,))
    assert orders.complete or not campaign.full
    if campaign.full:
        kind = "of all orders, one of each class" if bound is None else f"all orders with {bound} preemptions"
        campaign.note(
            f"{name}: {orders.counted:,} orders of {min(steps)} to {max(steps)} steps ({kind}), "
            f"{orders.redundant} redundant, {more:,} random ones, {verdicts.recovered:,} images recovered from"
        )


@pytest.mark.fault(35, rig="S")
@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interruption_at_every_park(name: str, campaign: Campaign) -> None:
    """KeyboardInterrupt in each actor at each of its parks, before and after what it has parked for."""
    scenario = SCENARIOS[name]
    verdicts = Verdicts()
    for seed in campaign.seeds(1):
        for part in scenario.parts:
            for after in (False, True):
                nth = 0
                while True:
                    nth += 1
                    choose = stay if seed == campaign.seed else at_random(Random(seed))
                    hit = Interruption(part.name, nth, after=after)
                    world = run(f"{name}, seed {seed}", scenario, choose, verdicts, hit=hit)
                    if not world.scheduler.interrupted:
                        break
                    campaign.count()


@pytest.mark.fault(1, 28, 33, 35, 38, rig="S")
def test_crowds(campaign: Campaign) -> None:
    """Five to nine actors in a random order; also with faults of the disk, and an interruption."""
    verdicts = Verdicts(every=4 if campaign.full else 8, states=5)
    runs = steps = interruptions = 0
    for seed in campaign.seeds(24):
        world = run_seed(seed, verdicts)
        runs += 1
        steps += world.now
        interruptions += bool(world.scheduler.interrupted)
    campaign.count(runs, rows=(28, 33, 38))
    campaign.count(verdicts.recovered, rows=(1,))
    campaign.count(interruptions, rows=(35,))
    campaign.note(f"crowds: {runs:,} orders of {steps // runs} steps on average")


@pytest.mark.fault(25, rig="S")
@pytest.mark.parametrize("roles", ["oo", "od", "ood"])
def test_handles_that_open_the_same_session(roles: str, campaign: Campaign) -> None:
    """``o`` opens, writes and closes; ``d`` deletes. In every order one owns, and nobody finds anything lost."""
    disk = SimDisk()
    with Store.open(PATH, fs=disk, clock=ManualClock()) as store, store.session(SID) as session:
        session.commit([list_of("n", "plain").append("base")])
    orders = Orders(({"oo": 2, "od": None, "ood": 1} if campaign.full else {"oo": 1, "od": 1, "ood": 1})[roles])
    refusals = 0
    for choose in islice(orders, None if campaign.full else SLICE):
        refusals += openers.run(roles, roles, choose, disk.copy(), ["base"]).refusals
    assert refusals, "nobody has met anybody"
    campaign.count(orders.counted)
    if campaign.full:
        campaign.note(f"{roles}: {orders.counted:,} orders of handles in one process, {refusals:,} refusals")


# --- the scheduler itself -------------------------------------------------------------------------


def _log_of(choose: object, actors: int, steps: int, shared: bool) -> tuple[int, ...]:
    """What a run of actors that do nothing but park leaves: who did each step. ``shared``: to one file."""
    scheduler = Scheduler()
    log: list[int] = []

    def act(me: int) -> None:
        log.append(me)
        for _ in range(steps - 1):
            scheduler.park(Step("write", writes=frozenset(("file" if shared else me,))))
            log.append(me)

    for n in range(actors):
        actor = scheduler.spawn(str(n), lambda n=n: act(n), str(n))  # type: ignore[misc]
        actor.step = Step("write", writes=frozenset(("file" if shared else n,)))
    scheduler.run(choose)  # type: ignore[arg-type]
    scheduler.stop()
    return tuple(log)


def test_all_orders_are_enumerated_once(campaign: Campaign) -> None:
    """Of 3 actors with 4 steps each there are 12! / (4! 4! 4!) orders, of 2 steps 90; of steps that commute one."""
    for steps, number in ((2, 90), *([(4, 34_650)] if campaign.full else [])):
        for bound in (None, 99):
            orders = Orders(bound)
            logs = [_log_of(choose, 3, steps, True) for choose in orders]
            assert len(logs) == len(set(logs)) == orders.counted == number
    alone = Orders()
    assert len([_log_of(choose, 3, 4, False) for choose in alone]) == alone.counted == 1
    few = Orders(1)
    assert len({_log_of(choose, 3, 4, True) for choose in few}) < 200


def test_orders_that_commute_show_nothing_else(campaign: Campaign) -> None:
    """One order of each class shows whatever is shown by all orders with so many preemptions."""
    scenario = Scenario((COMMITTER, READER))

    def found(orders: Orders) -> set[str]:
        verdicts, seen = Verdicts(), set()
        for choose in orders:
            seen.add(str([look[1] for look in run("reduction", scenario, choose, verdicts).looks]))
        return seen

    classes, every = Orders(), Orders(3 if campaign.full else 1)
    shown = found(every)
    assert len(shown) > 1 and shown <= found(classes)
    assert not campaign.full or classes.counted < every.counted


def test_a_deadlock_is_found_and_names_who_waits() -> None:
    orders = Orders()
    told = ""
    for choose in orders:
        scheduler = Scheduler()
        one, other = THREADING.Lock(), THREADING.Lock()

        def take(*locks: object, scheduler: Scheduler = scheduler) -> None:
            with locks[0]:  # type: ignore[attr-defined]
                scheduler.park(Step("write"))
                with locks[1]:  # type: ignore[attr-defined]
                    pass

        scheduler.spawn("left", lambda one=one, other=other, take=take: take(one, other))  # type: ignore[misc]
        scheduler.spawn("right", lambda one=one, other=other, take=take: take(other, one))  # type: ignore[misc]
        try:
            scheduler.run(choose)
        except Deadlock as deadlock:
            told = str(deadlock)
            break
        finally:
            scheduler.stop()
    assert "left waits for lock" in told and "right waits for lock" in told


def test_a_schedule_makes_the_same_run_again() -> None:
    name = "stager+retirer+reuser"
    recorded = Recorded(at_random(Random(7)))
    first = run(name, SCENARIOS[name], recorded, Verdicts())
    again = run(name, SCENARIOS[name], by_schedule(text_of(recorded.schedule)), Verdicts())
    assert len(recorded.schedule) > 5
    assert (again.now, again.disk.trace, again.disk.snapshot()) == (
        first.now,
        first.disk.trace,
        first.disk.snapshot(),
    )
