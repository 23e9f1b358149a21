"""Longer runs: five to nine actors of every kind, dozens of steps, in a random order, also on a disk that fails.

Everything follows from the seed: the actors, their order, whether locks are steps, faults of the disk, an interruption.
``python -m fuzz.crowds SEED`` makes such a run again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from errno import EDQUOT, EIO, ENOSPC
from random import Random
from typing import Final, NamedTuple

from fuzz.actors import OP, World
from fuzz.interleavings import (
    Call,
    Fault,
    Part,
    Scenario,
    Verdicts,
    commits,
    compacts,
    follows,
    looks,
    retires,
    reuses,
    run,
    stages,
    watches,
)
from fuzz.ledger import POWER, PROCESS
from fuzz.scheduler import Interruption, Step, engine_under_schedule
from fuzz.schedules import at_random

_WRITES: Final = ("pwrite", "sync", "create", "rename", "unlink", "sync_dir", "truncate", "allocate")


def chain(*calls: Call) -> Call:
    def call(world: World) -> None:
        for one in calls:
            one(world)

    return call


def ticks(*seconds: float) -> Call:
    """Time passes."""

    def call(world: World) -> None:
        for amount in seconds:
            world.scheduler.park(Step("tick", told=True))
            world.scheduler.advance(amount)

    return call


PARTS: Final = (
    Part("committer", commits("c1", "c2", "c3")),
    Part("second", commits("d1", "d2", "d3")),
    Part("scoped", commits("e1", "e2", scope=OP)),
    Part("stager", chain(stages("s1", "s2"), stages("s3", "s4", flush=False), stages("s5"))),
    Part("speaker", chain(stages("m1", "m2", scope="", flush=False), stages("m3", "m4", scope=""))),
    Part("retirer", chain(retires("r1"), retires("r2"))),
    Part("reuser", chain(reuses("u1"), reuses("u2"))),
    Part("compactor", chain(compacts(), compacts(OP), compacts())),
    Part("reader", looks(3), apart=True),
    Part("follower", follows(3), apart=True),
    Part("durable follower", follows(3, durable=True), apart=True),
    Part("watcher", watches(1)),
    Part("asker", chain(World.read, lambda world: world.read(scope=OP), World.read)),
    Part("clock", ticks(0.05, 0.06, 0.2)),
    Part("closer", World.close),
)


class Crowd(NamedTuple):
    """What a seed stands for."""

    scenario: Scenario
    fine: bool
    hit: Interruption | None
    faults: list[Fault]


def crowd(rng: Random, *, faulty: bool, interrupted: bool) -> Crowd:
    writers = [part for part in PARTS if part.name in ("committer", "stager", "retirer")]
    others = [part for part in PARTS if part not in writers and part.name != "closer"]
    parts = [*writers, *rng.sample(others, rng.randint(2, 5))]
    if rng.random() < 0.25:
        parts.append(PARTS[-1])
        if not (faulty or interrupted):  # the session will be closed: there is an end to wait for
            parts = [part._replace(call=watches(99)) if part.name == "watcher" else part for part in parts]
    rng.shuffle(parts)
    main = rng.choice((POWER, POWER, PROCESS))
    faults: list[Fault] = []
    for _ in range(rng.randint(1, 2) if faulty else 0):
        op = rng.choice(_WRITES)
        short = rng.choice((None, 0, 7, 30)) if op == "pwrite" else None
        error = rng.choice((EIO, ENOSPC, EDQUOT)) if op != "sync" else EIO
        faults.append(Fault(op, rng.randint(1, 6), error, rng.choice(("", "", "main", "scope")), short))
    hit: Interruption | None = None
    if interrupted:
        actor = rng.choice([part.name for part in parts])
        hit = Interruption(actor, rng.randint(1, 20), after=rng.random() < 0.5)
    return Crowd(Scenario(tuple(parts), preallocates=rng.random() < 0.5, main=main), rng.random() < 0.4, hit, faults)


def run_seed(seed: int, verdicts: Verdicts) -> World:
    """One run; of eight seeds three have faults of the disk, and two an interruption."""
    rng = Random(seed)
    made = crowd(rng, faulty=seed % 8 in (1, 4, 6), interrupted=seed % 8 in (3, 6))
    name = f"{seed} ({', '.join(part.name for part in made.scenario.parts)})"
    try:
        return run(name, made.scenario, at_random(rng), verdicts, fine=made.fine, hit=made.hit, faults=made.faults)
    except AssertionError as error:
        raise AssertionError(f"python -m fuzz.crowds {seed}: {error}") from error


def main(arguments: Sequence[str]) -> None:
    """Make runs again."""
    with engine_under_schedule():
        for seed in map(int, arguments):
            verdicts = Verdicts(every=1, states=10)
            world = run_seed(seed, verdicts)
            print(f"{seed}: {world.now} steps, {verdicts.recovered} images recovered from, {world.raised}")


if __name__ == "__main__":
    main(sys.argv[1:])
