"""Long runs by chance: operations, disk faults, kills and power cuts in any step, and more of them in the recoveries.

One run is told by its seed. The store is held against the model after every step; a failure names seed and step.
"""

from __future__ import annotations

from collections import Counter
from errno import EDQUOT, EIO, ENOSPC
from random import Random

from fuzz.model import Spec
from fuzz.model_handles import POWER, PROCESS, Settings, steady_identities
from fuzz.operations import SCOPE, STEPS, Beginning, Op
from fuzz.sequence_faults import FaultyRig, attempt
from fuzz.sequences import Failed
from fuzz.simdisk import CrashPolicy, KeepAll, LoseAll, Prefix, RandomLoss, SimCrash, SimDisk
from fuzz.survival import SID, nothing_cut_silently
from scopelog import ScopelogError

SETTINGS = (Settings(), Settings(PROCESS, PROCESS), Settings(POWER, POWER, 20), Settings(PROCESS, POWER, 0))
FAULTS = (
    ("pwrite", ENOSPC, None),
    ("pwrite", EIO, None),
    ("pwrite", None, 7),
    ("pwrite", EDQUOT, 40),
    ("sync", EIO, None),
    ("sync_dir", EIO, None),
    ("rename", EIO, None),
    ("create", ENOSPC, None),
    ("truncate", EIO, None),
    ("unlink", EIO, None),
    ("allocate", ENOSPC, None),
)
MOST_RECOVERIES = 4
"""Crashes of one recovery after another, before one is let through."""


class LongRun:
    """One run. ``counts``: what happened in it."""

    def __init__(self, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._seed = seed
        self._random = random = Random(seed)
        settings = random.choice(SETTINGS)
        self._beginning = Beginning(settings, lived=random.random() < 0.7, preallocates=random.random() < 0.3)
        steady_identities()
        self._rig = FaultyRig(settings, SimDisk(preallocates=self._beginning.preallocates))

    def run(self, steps: int) -> None:
        number, what = 0, "its beginning"
        try:
            self._beginning.live(self._rig)
            while number < steps:
                number += 1
                what = self._step()
            what = "its end"
            if self._rig.faulty:
                self._heal()
            self._rig.check()
        except (AssertionError, ScopelogError, OSError) as error:
            raise Failed(f"seed {self._seed}, step {number}, behind {what}: {error!r}") from error

    def _step(self) -> str:
        random, rig = self._random, self._rig
        kind = random.choices(("operation", "write", "time", "crash", "fault", "heal"), (8, 6, 2, 3, 2, 3))[0]
        self.counts[kind] += 1
        if kind == "operation":
            step = random.choice(STEPS)
            attempt(rig, step)
            kind = str(step)
        elif kind == "write":
            self._write()
        elif kind == "time":
            rig.advance(random.choice((5, 20, 60, 100, 300)))
        elif kind == "fault":
            op, code, short = random.choice(FAULTS)
            rig.disk.fail(op, random.randint(1, 4), code, "", random.random() < 0.3, short)
            rig.faulty = rig.leftovers = True
        elif kind == "heal" and rig.faulty:
            self._heal()
        elif kind == "crash":
            kind = self._crash()
        if SID in rig.sessions:
            rig.verify_stored(SID)
        return kind

    def _write(self) -> None:
        """A commit of its own, so that no two runs write the same."""
        rig, random = self._rig, self._random
        if SID not in rig.sessions:
            attempt(rig, STEPS[-1])
        if SID in rig.sessions:
            scope = random.choice(("", SCOPE, "x"))
            text = random.randbytes(random.choice((1, 20, 300, 900))).hex()
            specs = [Spec("append", key="plain", kind="list", value=text), Spec("set", key="a", value=text[:9])]
            rig.commit(SID, scope, specs[: random.randint(1, 2)], random.choice((None, PROCESS, POWER)))

    def _heal(self) -> None:
        rig = self._rig
        rig.heal()
        if SID not in rig.sessions:
            rig.open(SID)
        rig.verify()

    def _crash(self) -> str:
        """The machine goes down in a step of an operation, and again in the recoveries that follow."""
        rig, random = self._rig, self._random
        step = random.choice([step for step in STEPS if step.op is not Op.APPEND])
        self._arm(8)
        try:
            attempt(rig, step)
        except SimCrash:
            self.counts["in a step"] += 1
        power = self._down()
        for _ in range(random.randint(0, MOST_RECOVERIES)):
            self._arm(12)
            try:
                rig.open_store().session(SID)
            except SimCrash:
                self.counts["in a recovery"] += 1
            power = self._down() or power
        left = rig.disk.copy()
        rig.open(SID, power=power)
        nothing_cut_silently(left, rig.disk)
        rig.verify()
        return f"a crash in {step}"

    def _arm(self, most: int) -> None:
        mode = self._random.choice(("before", "after", "torn"))
        self._rig.disk.crash_at(self._rig.disk.steps + self._random.randint(1, most), mode, self._random.randint(1, 90))  # type: ignore[arg-type]

    def _down(self) -> bool:
        """The process is gone, by a kill or by a power cut. True if the power was cut."""
        random = self._random
        power = random.random() < 0.6
        self.counts["power cut" if power else "kill"] += 1
        if power:
            policies: list[CrashPolicy] = [LoseAll(), KeepAll(), Prefix(random.randint(0, 4), random.randint(0, 4))]
            self._rig.cut_power(random.choice([*policies, RandomLoss(random), RandomLoss(random)]))
        else:
            self._rig.kill()
        return power
