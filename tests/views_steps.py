"""Steps that a walk takes: what a session, its processes and its index may go through, by name.

All that is left to chance in a step is drawn from the rig's random numbers. A walk seeds them anew for each step, so
that a step does the same when others are left out. As a script it takes a walk that has failed::

    python -m tests.views_steps '["POWER", "PROCESS", 20, false, [["write", 1], ["delete", 2]]]'
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from fuzz.model import Spec
from fuzz.model_handles import KEYS, LISTS, SCOPES, Settings
from scopelog import Durability, Json
from tests.views_answers import BESIDE, WRITER
from tests.views_index import Trouble
from tests.views_rig import ViewRig
from tests.views_worker import Died

WRITES: Final = ("commit", "commit together", "retire", "stage", "trim", "describe", "write a scope")
GROWTH: Final = ("write", "extend", "extend beside")
HANDLES: Final = ("flush", "time", "close", "close beside", "reopen", "kill", "kill inside", "delete")
COPIES: Final = ("copy", "write a copy", "adopt", "back up", "roll back", "part ways", "do without", "rot", "list")
REBUILDS: Final = ("rebuild", "rebuild beside")
_VALUES: Final[tuple[Json, ...]] = (None, True, 0, -(2**70), 1.5, "", "é\ud800", [1, [2]], {"a": {}})
_LEVELS: Final = (None, None, Durability.PROCESS, Durability.POWER)


class Step(NamedTuple):
    """``number`` seeds all that is left to chance."""

    name: str
    number: int


def any_steps(random: Random, count: int) -> list[Step]:
    """A walk that spends about half of its time on the index."""
    kinds: list[tuple[tuple[str, ...], int]] = [
        (GROWTH, 8),
        (WRITES, 4),
        (Trouble.KINDS, 4),
        (HANDLES, 3),
        (COPIES, 3),
        (REBUILDS, 1),
    ]
    drawn = random.choices([names for names, _ in kinds], [weight for _, weight in kinds], k=count)
    return [Step(random.choice(names), random.randrange(1 << 20)) for names in drawn]


def any_specs(random: Random, last: int) -> list[Spec]:
    """Writes of one commit."""
    return [_any_spec(random, last) for _ in range(random.randint(1, 4))]


def _any_spec(random: Random, last: int) -> Spec:
    match random.choice(("append", "append", "append", "trim", "clear", "set", "set", "delete")):
        case "append":
            namespace, key = random.choice(LISTS)
            element = random.choice(("", "a", "é\ud800")) if key == "text" else random.choice(_VALUES)
            return Spec("append", namespace, key, "list", element, random.choice((None, None, "t", "turn")))
        case "trim":
            return Spec("trim", *random.choice(LISTS), "list", number=random.randint(0, last))
        case "clear":
            return Spec("delete", *random.choice(LISTS), "list")
        case "set":
            return Spec("set", random.choice("nm"), random.choice(KEYS), "value", random.choice(_VALUES))
    return Spec("delete", random.choice("nm"), random.choice(KEYS), "value")


def take(rig: ViewRig, sid: str, name: str) -> None:
    """Take one step. The session is open before; whatever was closed by it stays so."""
    random = rig.random
    model = rig.models[sid]
    level = random.choice(_LEVELS)
    match name:
        case "commit":
            rig.commit(sid, random.choice(SCOPES), any_specs(random, model.last), level)
        case "commit together":
            commits = [(random.choice(SCOPES), any_specs(random, model.last)) for _ in range(random.randint(2, 4))]
            if random.random() < 0.3:
                commits.insert(1, ("", [Spec("retire", retired=random.choice(SCOPES[1:]))]))
            rig.together(sid, commits, level)
        case "retire":
            retired = [Spec("retire", retired=random.choice(SCOPES[1:])), *any_specs(random, model.last)]
            rig.commit(sid, "", retired[: random.randint(1, 5)], level)
        case "stage":
            scope, (namespace, key) = random.choice(SCOPES), random.choice(LISTS)
            for _ in range(random.randint(1, 8)):
                rig.stage(sid, scope, key, random.choice(("", "b", "é")), random.choice((None, None, "t")), namespace)
        case "trim":
            upto = int(model.last * random.random())
            rig.commit(
                sid, random.choice(("", "", *SCOPES)), [Spec("trim", *random.choice(LISTS), "list", number=upto)]
            )
        case "describe":
            name_, labels = random.choice(("a name", "é", None)), random.choice(({"a": 1}, {"b": [None]}, {}, None))
            changes = random.choice(({"name": name_}, {"labels": labels}, {"name": name_, "labels": labels}))
            rig.describe(sid, changes, level)
        case "write a scope":
            rig.write_much(sid, "op-1", LISTS[0], 60)
        case "write":
            address = random.choice(LISTS)
            for _ in range(random.randint(1, 3)):
                rig.write_much(sid, "", address, random.randint(1, 60))
        case _:
            _handle(rig, sid, name, level)


def _handle(rig: ViewRig, sid: str, name: str, level: Durability | None) -> None:
    match name:
        case "extend" | "rebuild":
            rig.checkpoint(WRITER, sid, name)
        case "extend beside" | "rebuild beside":
            rig.checkpoint(BESIDE, sid, name.split()[0])
        case "flush":
            rig.flush(sid, level)
        case "time":
            rig.advance(rig.random.choice((5, 20, 100, 7000)))
        case "close":
            rig.close_store()
        case "close beside":
            rig.reopen_beside()
        case "reopen":
            rig.close(sid)
        case "kill":
            rig.kill()
        case "kill inside":
            die_inside(rig, _any_call(rig, sid), rig.random.choice(OPERATIONS), rig.random.randint(1, 5))
        case "delete":
            rig.close(sid)
            rig.delete(sid)
        case "copy" | "write a copy" | "adopt":
            rig.verify_copy(write=name != "copy", adopt=name == "adopt")
        case "back up":
            rig.back_up()
        case "roll back":
            rig.roll_back()
        case "part ways":
            rig.part_ways(sid)
        case "do without":
            rig.verify_without_index()
        case "rot":
            rig.verify_damaged(sid)
        case "list":
            rig.verify_catalogue(rig.random.choice((WRITER, BESIDE)))
        case _:
            rig.befall(name)


OPERATIONS: Final = ("pwrite", "pwrite", "sync", "sync_dir", "unlink", "truncate")


def _any_call(rig: ViewRig, sid: str) -> Callable[[], object]:
    """One that the model can follow if it is cut short."""
    name = rig.random.choice(("commit", "retire", "stage", "describe", "write", "flush", "time", "close", "open"))
    if name == "open":

        def reopen() -> None:
            rig.close(sid)
            rig.open(sid)

        return reopen
    return lambda: take(rig, sid, name)


def die_inside(rig: ViewRig, call: Callable[[], object], operation: str, nth: int) -> None:
    """The writer's process dies before a disk operation of a call, if the call comes to it."""
    rig.workers[WRITER].host.die_at(operation, nth)
    try:
        call()
        rig.workers[WRITER].host.die_at(operation, 0)
    except Died as death:
        if death.status != -9:
            raise
        rig.bury()


# --- walks ------------------------------------------------------------------------------------------


class Walk(NamedTuple):
    """All that decides what happens, as plain data."""

    durability: str
    scope_durability: str
    window_ms: int
    background: bool
    steps: list[Step]


def any_walk(random: Random, count: int) -> Walk:
    levels = [level.name for level in Durability]
    return Walk(
        random.choice(levels),
        random.choice(levels),
        random.choice((0, 20, 100)),
        random.random() < 0.5,
        any_steps(random, count),
    )


def run(walk: Walk) -> Counter[str]:
    """Take the steps, and compare all views after each. Returns what questions the index was put."""
    levels = Settings(Durability[walk.durability], Durability[walk.scope_durability], walk.window_ms)
    with TemporaryDirectory(prefix="walk-") as base:
        rig = ViewRig(levels, Path(base) / "store", Random(0), background=walk.background)
        try:
            rig.open("s")
            rig.write_history("s")
            for name, number in walk.steps:
                rig.random.seed(number)
                sid = rig.random.choice(("s", "s", "s", "s", "Other/ß"))
                if sid not in rig.sessions:
                    rig.open(sid)
                take(rig, sid, name)
                for known in sorted({"s", *rig.models}):
                    if known not in rig.sessions:
                        rig.open(known)
                rig.verify_some()
            rig.check()
        except BaseException:
            rig.abandon()
            raise
    return rig.asked


def fewest(walk: Walk, attempts: int) -> Walk:
    """The walk without steps that its failure can do without, as far as so many attempts tell."""
    size = len(walk.steps)
    while size and attempts > 0:
        at = 0
        while at < len(walk.steps) and attempts > 0:
            less = walk._replace(steps=walk.steps[:at] + walk.steps[at + size :])
            attempts -= 1
            if fails(less):
                walk = less
            else:
                at += size
        size //= 2
    return walk


def fails(walk: Walk) -> bool:
    try:
        run(walk)
    except Exception:  # noqa: BLE001 - whatever was raised, here or in a worker, is the failure
        return True
    return False


def spelled(walk: Walk) -> str:
    return json.dumps(walk)


if __name__ == "__main__":
    *settings, steps = json.loads(sys.argv[1])
    run(Walk._make([*settings, [Step(*step) for step in steps]]))
