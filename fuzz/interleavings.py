"""Flusher, committers, stager, retirer, reuser, compactor, reader, follower, watcher and closer in every order.

Each scenario is a few actors on one session of a simulated disk. :func:`run` makes one run in the order that a choice
function gives, ends it, and holds all that was seen, acknowledged and left against the ledger; :class:`Crashes` keeps
the disk as it was after each of its changes, and recovers from a kill and from power cuts at each. A failure names the
scenario and the schedule: ``python -m fuzz.interleavings SCENARIO SCHEDULE`` makes that run again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final, NamedTuple

from fuzz.actors import OP, SID, Tail, View, World, contents, put
from fuzz.ledger import POWER, PROCESS, Ledger
from fuzz.model import SESSION_ID, Spec
from fuzz.model_handles import PATH
from fuzz.scheduler import Actor, Interruption, Step, engine_under_schedule
from fuzz.schedules import Recorded, by_schedule, text_of
from fuzz.simdisk import SimDisk
from scopelog import Durability, ManualClock, Store, list_of, value

Choose = Callable[[Actor | None, list[Actor]], Actor]
Call = Callable[[World], object]


class Part(NamedTuple):
    """An actor. ``apart``: it shares no memory with the writer's actors."""

    name: str
    call: Call
    apart: bool = False


class Fault(NamedTuple):
    """As in :meth:`fuzz.simdisk.SimDisk.fail`."""

    op: str
    nth: int = 1
    errno: int | None = None
    path: str = ""
    short: int | None = None


class Scenario(NamedTuple):
    """``before``: done in the run, before the actors begin."""

    parts: tuple[Part, ...]
    before: Call = World.open
    preallocates: bool = False
    main: Durability = POWER
    elapse: float = 0.0  # seconds that pass between the two


# --- what actors do -------------------------------------------------------------------------------


def commits(*values: str, scope: str = SESSION_ID, level: Durability | None = None) -> Call:
    def call(world: World) -> None:
        for text in values:
            world.commit(scope, [Spec("set", key="a", value=f"{text}!"), put(text)], level)

    return call


def stages(*values: str, scope: str = OP, flush: bool = True) -> Call:
    def call(world: World) -> None:
        for text in values:
            world.stage(scope, text)
        if flush:
            world.flush()

    return call


def retires(value: str) -> Call:
    return lambda world: world.commit("", [put(value), Spec("retire", retired=OP)])


def reuses(value: str) -> Call:
    """Stages under the id of a scope, and commits behind it at POWER: in the life that is, or in the next one."""

    def call(world: World) -> None:
        world.stage(OP, f"{value} staged")
        world.commit(OP, [put(value)], POWER)

    return call


def compacts(scope: str = SESSION_ID) -> Call:
    return lambda world: world.compact(scope)


def looks(times: int = 1) -> Call:
    def call(world: World) -> None:
        reader = world.look()
        for _ in range(times - 1):
            reader = world.look(reader)
        if reader is not None:
            reader.close()

    return call


def follows(times: int = 1, *, durable: bool = False) -> Call:
    """Goes on from what :func:`opened_and_followed` has begun, else from a base of its own."""

    def call(world: World) -> None:
        mine = [tail for tail in world.tails if tail.durable == durable]
        tail = mine[0] if mine else Tail(world, durable=durable)
        for _ in range(times):
            tail.drain()

    return call


def watches(events: int) -> Call:
    def call(world: World) -> None:
        with world.noting(None):
            View(world).take(events)

    return call


def opened_and_followed(world: World) -> None:
    world.open()
    Tail(world).drain()


def staged(world: World) -> None:
    """Both scopes have a window."""
    world.open()
    world.stage(SESSION_ID, "due in main")
    world.stage(OP, "due in the scope")


COMMITTER: Final = Part("committer", commits("c"))
SECOND: Final = Part("second", commits("d"))
RETIRER: Final = Part("retirer", retires("r"))
REUSER: Final = Part("reuser", reuses("u"))
STAGER: Final = Part("stager", stages("s1", "s2"))
COMPACTOR: Final = Part("compactor", compacts())
READER: Final = Part("reader", looks(), apart=True)
FOLLOWER: Final = Part("follower", follows(), apart=True)
WATCHER: Final = Part("watcher", watches(2))
CLOSER: Final = Part("closer", World.close)

SCENARIOS: Final = {
    "committer+retirer+reader": Scenario((COMMITTER, RETIRER, READER)),
    "committer+compactor+reader": Scenario((COMMITTER, COMPACTOR, READER)),
    "flusher+committer+retirer": Scenario((COMMITTER, RETIRER), staged, elapse=0.1),
    "flusher+compactor+retirer": Scenario((COMPACTOR, RETIRER), staged, elapse=0.1),
    "flusher+committer+closer": Scenario((COMMITTER, CLOSER), staged, elapse=0.1),
    "committer+committer+closer": Scenario((COMMITTER, SECOND, CLOSER), preallocates=True),
    "stager+retirer+reuser": Scenario((STAGER, RETIRER, REUSER)),
    "compactor+retirer+follower": Scenario((COMPACTOR, RETIRER, FOLLOWER), opened_and_followed),
    "committer+retirer+closer at process": Scenario((COMMITTER, RETIRER, CLOSER), main=PROCESS),
    "committer+watcher+closer": Scenario((COMMITTER, WATCHER, CLOSER)),
}


@cache
def prepared(preallocates: bool) -> tuple[SimDisk, Ledger]:
    """A session that was closed: both logs hold what is void, and another scope is dead."""
    disk = SimDisk(preallocates=preallocates)
    world = World(disk, Ledger(), clock=ManualClock())
    world.open()
    for text in ("p1", "p2"):
        commits(text)(world)
        commits(f"{text} of the scope", scope=OP, level=POWER)(world)
    world.commit("x", [put("dead")])
    world.commit("", [put("p3"), Spec("retire", retired="x")])
    world.end()
    world.scheduler.stop()
    return disk, world.ledger


# --- one run --------------------------------------------------------------------------------------


class Verdicts:
    """Holds what runs have left: the end of each, and of every ``every``-th the disk as it was after each change.

    ``states``: outcomes of a power cut, at most. An image that was seen before, with the same things promised, is not
    recovered from again; ``recovered`` counts the others.
    """

    def __init__(self, every: int = 0, states: int = 4) -> None:
        self.every, self.states = every, states
        self.runs = self.recovered = 0
        self._seen: set[object] = set()
        self._kept: list[tuple[int, str, SimDisk]] = []

    def watch(self, world: World) -> None:
        """Before the actors begin."""
        self._kept = []
        self.runs += 1
        if self.every and self.runs % self.every == 0:
            world.fs.changed = lambda step: self._kept.append((world.now, str(step), world.disk.copy()))

    def hold(self, world: World) -> None:
        """After the end."""
        world.fs.changed = lambda step: None
        world.check()
        self._survive(world, world.disk, world.now, PROCESS, "at the end")
        for at, step, disk in self._kept:
            self._survive(world, disk.kill(), at, PROCESS, f"a kill after tick {at}, {step}")
            for n, left in enumerate(disk.crash_states(self.states, seed=at)):
                self._survive(world, left, at, POWER, f"power cut {n} after tick {at}, {step}")

    def _survive(self, world: World, disk: SimDisk, at: int, level: Durability, what: str) -> None:
        key = (disk.digest(), level, world.ledger.facts(at))
        if key not in self._seen:
            self._seen.add(key)
            self.recovered += 1
            survive(disk.copy(), world.ledger, at, level, what)


def survive(disk: SimDisk, ledger: Ledger, at: int, level: Durability, what: str) -> None:
    """Open what is left, hold it, read it by the handle, append behind it, close, check."""
    with Store.open(PATH, fs=disk, clock=ManualClock()) as store:
        before = contents(store)
        ledger.hold(before, at, level, what=f"{what}, before recovery")
        with store.session(SID) as session:
            found = contents(store)
            ledger.hold(found, at, level, what=what)
            assert before == found or session.recovery, f"{what}: recovery has changed {before}, and says nothing"
            texts = [(op.seq, op.spec.value) for op in found.get("", []) if op.address == ("n", "plain", "list")]
            assert [(e.seq, e.element) for e in session.read(list_of("n", "plain"))] == texts, what
            values = [op.spec.value for op in found.get("", []) if op.address == ("n", "a", "value")]
            assert session.get(value("n", "a")) == (values[-1] if values else None), what
            receipt = session.commit([list_of("n", "plain").append("behind it")])
            top = max((op.seq for ops in found.values() for op in ops), default=0)
            assert receipt.first > top, f"{what}: {receipt} is not above {top}"
        unsound = [finding for finding in store.check(deep=True) if finding.severity != "note"]
        assert not unsound, f"{what}: {unsound}"


def run(
    name: str,
    scenario: Scenario,
    choose: Choose,
    verdicts: Verdicts,
    *,
    fine: bool = False,
    hit: Interruption | None = None,
    faults: Sequence[Fault] = (),
) -> World:
    """One run and its verdict. Faults are of the disk, from when the actors begin until they are done."""
    disk, ledger = prepared(scenario.preallocates)
    recorded = Recorded(choose)
    world = World(disk.copy(), ledger.copy(), main=scenario.main, fine=fine, hit=hit)
    scheduler = world.scheduler
    try:
        scenario.before(world)
        verdicts.watch(world)
        scheduler.advance(scenario.elapse)
        for part in scenario.parts:
            actor = scheduler.spawn(part.name, partial(_play, world, part), part.name if part.apart else "")
            if part.apart:
                world.another()
                actor.step = Step("begin")  # and look: only then is anything done
        for fault in faults:
            world.failed = True
            world.disk.fail(fault.op, fault.nth, fault.errno, fault.path, short=fault.short)
        scheduler.run(recorded)
        world.disk.heal()
        world.end()
        scheduler.stop()
        verdicts.hold(world)
    except Exception as error:  # whatever it is, it is told with the schedule
        how = f"{name} {text_of(recorded.schedule)}"
        extra = "".join(f", {one}" for one in (hit, *faults) if one is not None) + (", fine" if fine else "")
        raise AssertionError(f"python -m fuzz.interleavings {how}{extra}: {error!r}") from error
    finally:
        scheduler.stop()
    return world


def _play(world: World, part: Part) -> None:
    try:
        part.call(world)
    except KeyboardInterrupt:
        world.raised.append(f"{part.name} was interrupted {world.scheduler.interrupted}")


def main(arguments: Sequence[str]) -> None:
    """Make one run again."""
    name, schedule = arguments
    verdicts = Verdicts(every=1, states=20)
    with engine_under_schedule():
        world = run(name, SCENARIOS[name], by_schedule(schedule), verdicts)
    print(f"{name} {schedule}: {world.now} steps, {verdicts.recovered} images recovered from, {world.raised}")


if __name__ == "__main__":
    main(sys.argv[1:])
