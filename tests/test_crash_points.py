"""Short scripts, cut down at every step of the disk, in every state that a crash there can leave, exhaustively.

Each outcome is opened unaided, held against the model, appended to, opened again and checked; and where opening had
something to repair, that repair is cut down at every one of its own steps and has to end in the same bytes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from errno import EIO
from random import Random
from typing import NamedTuple

import pytest

from fuzz.campaign import Campaign
from fuzz.model import Spec
from fuzz.model_handles import POWER, PROCESS, Settings, random_identities, steady_identities
from fuzz.model_rig import Rig
from fuzz.simdisk import KeepAll, SimCrash, SimDisk
from fuzz.survival import SID, Repairs, image, survive
from scopelog import ScopelogError

LONG = os.environ.get("SCOPELOG_HYPOTHESIS") == "long"
STATES = 200 if LONG else 6
REPAIRS = 100 if LONG else 3
"""How many different images of one script have their repair cut down as well."""

Script = Callable[[Rig], None]


def _set(key: str, value: object) -> Spec:
    return Spec("set", key=key, value=value)


def _add(text: str, key: str = "plain", tag: str | None = None) -> Spec:
    return Spec("append", key=key, kind="list", value=text, tag=tag)


def _retire(scope: str) -> Spec:
    return Spec("retire", retired=scope)


def nothing(rig: Rig) -> None:
    """Nothing comes before the script."""


def opened(rig: Rig) -> None:
    rig.open(SID)


def committed(rig: Rig) -> None:
    rig.open(SID)
    rig.commit(SID, "", [_set("a", 1), _add("first", tag="t")])


def scoped(rig: Rig) -> None:
    committed(rig)
    rig.commit(SID, "op-1", [_set("a", 2), _add("of the scope")])
    rig.stage(SID, "op-1", "text", "staged ")


def closed(rig: Rig) -> None:
    scoped(rig)
    rig.close_store()


def torn(rig: Rig) -> None:
    """Killed in the middle of a write to the sidecar; the power fails in the middle of one to main."""
    scoped(rig)
    rig.stage(SID, "op-1", "text", "and cut")
    _die(rig, lambda: rig.flush(SID), 30)
    rig.kill()
    rig.open(SID)
    _die(rig, lambda: rig.commit(SID, "", [_set("b", "torn")]), 20)
    rig.cut_power(KeepAll())


def unsynced(rig: Rig) -> None:
    """A sync of main has failed: its bytes are in memory alone, in this process and the next."""
    committed(rig)
    rig.disk.fail("sync", 1, EIO, "main")
    rig.faulty = True
    assert not rig.commit(SID, "", [_set("b", "unknown")])
    rig.disk.heal()
    assert not rig.commit(SID, "", [_set("b", "refused")])
    rig.close(SID)
    rig.faulty = False


def long(rig: Rig) -> None:
    """Main is about to be given an index frame."""
    rig.open(SID)
    for n in range(4):
        rig.commit(SID, "", [_add(Random(n).randbytes(15_000).hex())])


def _die(rig: Rig, call: Callable[[], object], count: int) -> None:
    """Crash in the next write to a log, after ``count`` bytes of it."""
    trial = rig.disk.steps
    while True:
        trial += 1
        rig.disk.crash_at(trial, "torn", count)
        try:
            call()
        except SimCrash:
            return


def commits(rig: Rig) -> None:
    rig.commit(SID, "", [_set("a", 3), _add("second")], PROCESS)
    rig.commit(SID, "", [Spec("delete", key="a"), _add("third")], POWER)


def windows(rig: Rig) -> None:
    for text in ("one ", "two ", "three "):
        rig.stage(SID, "op-1", "text", text)
    rig.stage(SID, "", "text", "main")
    rig.advance(100)
    rig.stage(SID, "op-1", "text", "four", "t")
    rig.stage(SID, "op-1", "text", "five")
    rig.flush(SID, POWER)


def retirement(rig: Rig) -> None:
    rig.commit(SID, "", [_set("done", True), _retire("op-1")])


def reuse(rig: Rig) -> None:
    rig.commit(SID, "", [_retire("op-1"), _retire("never")])
    rig.stage(SID, "op-1", "text", "a new life")
    rig.flush(SID)
    rig.commit(SID, "op-1", [_set("a", "new")], POWER)
    rig.commit(SID, "", [_retire("op-1")])


def trims(rig: Rig) -> None:
    rig.commit(SID, "", [_add("x"), Spec("trim", key="plain", kind="list", number=2), _add("y")])
    rig.commit(SID, "op-1", [Spec("delete", key="text", kind="list"), _add("z", "text")])
    rig.flush(SID, POWER)


def closing(rig: Rig) -> None:
    rig.commit(SID, "", [_add("last")])
    rig.close_store()


def reopening(rig: Rig) -> None:
    rig.open(SID)
    rig.commit(SID, "", [_add("after")], PROCESS)
    rig.commit(SID, "op-1", [_add("after")], POWER)
    rig.close_store()


def deletion(rig: Rig) -> None:
    rig.delete(SID)
    rig.open(SID)
    rig.commit(SID, "", [_set("a", "again")])


def superseded(rig: Rig) -> None:
    """Both logs hold what is void, a scope is dead, another has staged elements and no file."""
    scoped(rig)
    for n in range(3):
        rig.commit(SID, "", [_set("a", n), _add(f"line {n}"), Spec("trim", key="plain", kind="list", number=n)])
        rig.commit(SID, "op-1", [_set("a", n), _add(f"of the scope {n}")])
    rig.commit(SID, "x", [_set("a", "dead")])
    rig.commit(SID, "", [_retire("x")])
    rig.commit(SID, "op-1", [Spec("delete", key="plain", kind="list")])
    rig.stage(SID, "Op/2", "text", "not born yet")


def compaction(rig: Rig) -> None:
    rig.compact(SID, "")
    rig.commit(SID, "", [_add("behind it")], PROCESS)
    rig.flush(SID)
    rig.commit(SID, "", [_retire("Op/2")])


def sidecar_compaction(rig: Rig) -> None:
    rig.compact(SID, "op-1")
    rig.commit(SID, "op-1", [_add("behind it")], POWER)
    rig.commit(SID, "", [_retire("op-1")])
    rig.compact(SID, "")


class Scenario(NamedTuple):
    before: Script
    script: Script
    settings: Settings = Settings()
    preallocates: bool = False


SCENARIOS = {
    "open": Scenario(nothing, opened),
    "first commit": Scenario(opened, commits, preallocates=True),
    "commits": Scenario(committed, commits, Settings(PROCESS, PROCESS)),
    "first window": Scenario(opened, windows),
    "windows at power": Scenario(scoped, windows, Settings(POWER, POWER, 20)),
    "retirement": Scenario(scoped, retirement),
    "retirement at process": Scenario(scoped, retirement, Settings(PROCESS, PROCESS)),
    "reuse": Scenario(scoped, reuse),
    "reuse, scopes above": Scenario(scoped, reuse, Settings(PROCESS, POWER)),
    "trims": Scenario(scoped, trims, Settings(POWER, POWER)),
    "close": Scenario(scoped, closing, preallocates=True),
    "close at process": Scenario(scoped, closing, Settings(PROCESS, PROCESS)),
    "reopen": Scenario(closed, reopening),
    "repair": Scenario(torn, reopening),
    "after a failed sync": Scenario(unsynced, reopening),
    "index frame": Scenario(long, closing),
    "delete": Scenario(closed, deletion),
    "compaction": Scenario(superseded, compaction),
    "compaction at process": Scenario(superseded, compaction, Settings(PROCESS, PROCESS), preallocates=True),
    "compaction of a sidecar": Scenario(superseded, sidecar_compaction),
}


@pytest.fixture(autouse=True)
def consistency_check() -> Iterator[None]:
    """In place of the shared one, which knows real directories only: every outcome ends with :meth:`Rig.check`."""
    yield
    random_identities()


def start(scenario: Scenario) -> Rig:
    steady_identities()
    rig = Rig(scenario.settings, SimDisk(preallocates=scenario.preallocates))
    scenario.before(rig)
    return rig


def test_a_script_survives_without_a_crash() -> None:
    """Every script runs, takes steps, and its end is sound."""
    for scenario in SCENARIOS.values():
        rig = start(scenario)
        before = rig.disk.steps
        scenario.script(rig)
        assert rig.disk.steps > before
        rig.check()


@pytest.mark.fault(11, 12, 13, rig="S")
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_crash_point(name: str, campaign: Campaign) -> None:
    scenario = SCENARIOS[name]
    whole = start(scenario)
    base, told = whole.disk.steps, len(whole.disk.trace)
    scenario.script(whole)
    steps = whole.disk.trace[told:]
    assert len(steps) == whole.disk.steps - base
    seen: set[object] = set()
    repairs = Repairs(REPAIRS)
    for number, step in enumerate(steps, 1):
        ways: list[tuple[str, int]] = [("before", 0), ("after", 0)]
        if step[0] == "pwrite":
            ways += [("torn", int(step[3]) // 2), ("torn", max(1, int(step[3]) - 1))]
        for mode, count in ways:
            rig = start(scenario)
            rig.disk.crash_at(base + number, mode, count)  # type: ignore[arg-type]
            with contextlib.suppress(SimCrash):  # a last step that fails by itself is not followed by another
                scenario.script(rig)
            assert rig.disk.crashed
            outcomes = [("kill", rig.disk.kill())]
            outcomes += [(f"power {n}", disk) for n, disk in enumerate(rig.disk.crash_states(STATES, seed=number))]
            for state, disk in outcomes:
                power = state != "kill"
                key = (image(disk), str([(sid, model.key()) for sid, model in rig.models.items()]), power)
                if key in seen:
                    continue
                seen.add(key)
                try:
                    survive(rig.fork(disk), power, repairs)
                except (AssertionError, ScopelogError, OSError) as error:
                    raise AssertionError(f"{name}, step {number} {step}, {mode} {count}, {state}: {error!r}") from error
    campaign.count(len(seen))
