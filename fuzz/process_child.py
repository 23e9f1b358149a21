"""What a child does to a store before it is killed: named scripts, each in two parts, of which the second is watched.

As a program it does one of them for strace, which does to it what the tracer does elsewhere:
``python -m fuzz.process_child NAME DIRECTORY TOLD``; see ``tests/crash/test_processes_strace.py``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from fuzz import ptrace
from fuzz.model import Spec, units_of_this_process
from fuzz.model_handles import POWER, PROCESS, Settings
from fuzz.process_rig import SID, ProcessRig, Told

Step = Callable[[ProcessRig], object]
Script = Sequence[Step]


def set_(key: str, value: object) -> Spec:
    return Spec("set", key=key, value=value)


def add(value: object, key: str = "plain", tag: str | None = None) -> Spec:
    return Spec("append", key=key, kind="list", value=value, tag=tag)


def trim(upto: int, key: str = "plain") -> Spec:
    return Spec("trim", key=key, kind="list", number=upto)


def retire(scope: str) -> Spec:
    return Spec("retire", retired=scope)


def commit(scope: str, *specs: Spec, level: object = None) -> Step:
    return lambda rig: rig.commit(SID, scope, specs, level)  # type: ignore[arg-type]


def stage(scope: str, text: str, tag: str | None = None, key: str = "text") -> Step:
    return lambda rig: rig.stage(SID, scope, key, text, tag)


def advance(milliseconds: int) -> Step:
    return lambda rig: rig.advance(milliseconds)


def compact(scope: str) -> Step:
    return lambda rig: rig.compact(SID, scope)


def opened(rig: ProcessRig) -> None:
    rig.open()


def flush(rig: ProcessRig) -> None:
    rig.flush(SID)


def flush_at_power(rig: ProcessRig) -> None:
    rig.flush(SID, POWER)


def reopened(rig: ProcessRig) -> None:
    rig.close(SID)
    rig.open()


def closed(rig: ProcessRig) -> None:
    rig.close_store()


def deleted(rig: ProcessRig) -> None:
    rig.delete(SID)


COMMITTED: Final[Script] = (opened, commit("", set_("a", 1), add("first", tag="t")))
SCOPED: Final[Script] = (
    *COMMITTED,
    commit("op-1", set_("a", 2), add("of the scope")),
    stage("op-1", "staged "),
)
COMMITS: Final[Script] = (
    commit("", set_("a", 3), add("second"), level=PROCESS),
    stage("", "taken along"),
    commit("", Spec("delete", key="a"), add("third"), level=POWER),
)
WINDOWS: Final[Script] = (
    *(stage("op-1", text) for text in ("one ", "two ", "three ")),
    stage("", "main"),
    advance(100),
    stage("op-1", "four", "t"),
    stage("op-1", "five"),
    flush_at_power,
)
REUSE: Final[Script] = (
    commit("", retire("op-1"), retire("never")),
    stage("op-1", "a new life"),
    flush,
    commit("op-1", set_("a", "new"), level=POWER),
    commit("", retire("op-1")),
)
TRIMS: Final[Script] = (
    commit("", add("x"), trim(2), add("y")),
    commit("op-1", Spec("delete", key="text", kind="list"), add("z", "text")),
    flush_at_power,
)
AFTER: Final[Script] = (
    commit("", add("after"), level=PROCESS),
    commit("op-1", add("after"), level=POWER),
    closed,
)
LONG: Final[Script] = (opened, *(commit("", add(Random(n).randbytes(15_000).hex())) for n in range(4)))
SUPERSEDED: Final[Script] = (
    *SCOPED,
    *(commit("", set_("a", n), add(f"line {n}"), trim(n)) for n in range(3)),
    *(commit("op-1", set_("a", n), add(f"of the scope {n}")) for n in range(3)),
    commit("x", set_("a", "dead")),
    commit("", retire("x")),
    commit("op-1", Spec("delete", key="plain", kind="list")),
    stage("Op/2", "not born yet"),
)


class Scenario(NamedTuple):
    """``before`` is not watched. ``torn``: it begins with logs whose last writes were cut short by a kill."""

    before: Script
    script: Script
    settings: Settings = Settings()
    torn: bool = False


LOW: Final = Settings(PROCESS, PROCESS)
HIGH: Final = Settings(POWER, POWER)
SCENARIOS: Final = {
    "open": Scenario((), (opened, closed)),
    "first commit": Scenario((opened,), COMMITS),
    "commits at process": Scenario(COMMITTED, COMMITS, LOW),
    "first window": Scenario((opened,), WINDOWS),
    "windows": Scenario(SCOPED, WINDOWS),
    "windows at power": Scenario(SCOPED, WINDOWS, HIGH),
    "retirement": Scenario(SCOPED, (commit("", set_("done", True), retire("op-1")),)),
    "retirement at process": Scenario(SCOPED, (commit("", retire("op-1")), flush_at_power), LOW),
    "reuse": Scenario(SCOPED, REUSE),
    "reuse, scopes above": Scenario(SCOPED, REUSE, Settings(PROCESS, POWER)),
    "trims": Scenario(SCOPED, TRIMS, HIGH),
    "close": Scenario(SCOPED, (commit("", add("last")), closed)),
    "close at process": Scenario(SCOPED, (commit("", add("last")), closed), LOW),
    "reopen": Scenario((*SCOPED, closed), (opened, *AFTER)),
    "repair": Scenario((), (opened, *AFTER), torn=True),
    "index frame": Scenario(LONG, (commit("", add("last")), closed)),
    "delete": Scenario((*SCOPED, closed), (deleted, opened, commit("", set_("a", "again")))),
    "compaction": Scenario(
        SUPERSEDED, (compact(""), commit("", add("behind it"), level=PROCESS), flush, commit("", retire("Op/2")))
    ),
    "compaction of a sidecar": Scenario(
        SUPERSEDED,
        (compact("op-1"), commit("op-1", add("behind it"), level=POWER), commit("", retire("op-1")), compact("")),
        LOW,
    ),
}
TORN: Final = (
    Scenario((), (*SCOPED, stage("op-1", "and cut"), flush)),
    Scenario((opened,), (commit("", set_("b", "torn")),)),
)
"""Killed in the middle of the last write to the sidecar, and then in that to main."""


def random_scenario(seed: int) -> Scenario:
    """A session's random life, in which anything follows anything that it may follow."""
    rng = Random(seed)
    scopes = ("op-1", "Op/2")
    steps: list[Step] = [opened]
    for number in range(1, rng.randint(4, 14)):
        scope = rng.choice(("", *scopes))
        steps += rng.choice(
            [
                [commit(scope, set_("a", number), add(f"n{number}"), level=rng.choice((None, PROCESS, POWER)))],
                [stage(scope, f"s{number} ") for _ in range(rng.randint(1, 3))],
                [commit(scope, add("x" * rng.choice((1, 300, 40_000, 70_000))), add("y", tag="t"))],
                [commit("", retire(rng.choice(scopes)), set_("b", number))],
                [commit(scope, trim(number), Spec("delete", key="a"))],
                [rng.choice((flush, flush_at_power))],
                [advance(rng.choice((10, 60, 200)))],
                [compact(scope)],
                [reopened],
            ]
        )
    cut = rng.randrange(len(steps))
    levels = rng.choice((PROCESS, POWER)), rng.choice((PROCESS, POWER))
    return Scenario(steps[:cut], (*steps[cut:], closed) if rng.random() < 0.5 else steps[cut:], Settings(*levels))


def perform(rig: ProcessRig, scenario: Scenario) -> None:
    """Both parts; what was acknowledged is told after every step, before the next one."""
    units_of_this_process()
    rig.announce()
    for step in scenario.before:
        step(rig)
        rig.acknowledged()
    ptrace.look()
    for step in scenario.script:
        step(rig)
        rig.acknowledged()
    ptrace.look(False)


def put_right(rig: ProcessRig) -> None:
    """The disk works again: everything is as it was told, in this handle, and in one that is opened anew."""
    ptrace.heal()
    ptrace.look(False)
    if SID not in rig.sessions:
        rig.open()
    rig.heal()
    rig.verify()
    rig.check()


def main(name: str, directory: str, told: str, faulty: str = "") -> None:
    """``faulty``: a call may fail, once; the status tells whether all is right in the end."""
    file = Told(os.open(told, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    scenario = SCENARIOS[name]
    rig = ProcessRig(os.path.join(directory, "store"), scenario.settings, file)
    rig.faulty = rig.leftovers = bool(faulty)
    perform(rig, scenario)
    if faulty:
        put_right(rig)
        print(*rig.failures)


if __name__ == "__main__":
    main(*sys.argv[1:])
