"""Every short sequence of operations, cut down at every step of its last one, in every state that a crash can leave.

The crash points of the earlier operations are those of the shorter sequences, so only the last operation is cut. A
crash point is the moment before a step of the disk, or after the last one; a write that a kill meets is cut at its
bytes. For each of them :class:`Moment` names every legal disk. One disk is judged once, whatever ways lead to it: what
its first open finds depends on its bytes alone, and any other promise is held against that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

from fuzz.model import ModelSession
from fuzz.model_handles import steady_identities
from fuzz.model_rig import Rig
from fuzz.moments import Moment, Recorder
from fuzz.operations import Beginning, Op, Step, perform
from fuzz.simdisk import SimDisk
from fuzz.simdisk_crash import Tree
from fuzz.survival import SID, Opened, Repairs, survive
from scopelog import ScopelogError

LIMIT: Final = 4096
"""States of one moment that are told apart at most; of more, a seeded sample is."""


class Failed(AssertionError):
    """A state that was not survived; says how to come to it again."""


@dataclass
class Explored:
    """What was done. ``choices``: combinations of what a power cut can do, summed over all moments; ``states``: those
    that differ; ``sampled``: moments with so many of them that not all were tried. ``tried``: states looked at, kills
    included; ``held``: different ones, with the promises they are held against; ``judged``: different disks."""

    sequences: int = 0
    moments: int = 0
    sampled: int = 0
    choices: int = 0
    states: int = 0
    tried: int = 0
    held: int = 0
    judged: int = 0
    rows: Counter[int] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.sequences:,} sequences, {self.moments:,} crash points, {self.choices:,} outcomes of which "
            f"{self.states:,} differ, {self.tried:,} tried ({self.sampled} crash points sampled), {self.held:,} differ "
            f"with their promises, {self.judged:,} disks judged"
        )


class Sequences:
    """Runs sequences and judges. ``limit``: states of one moment that are told apart, of more a seeded sample is;
    ``share``: of so many different disks one is judged at length, the others briefly."""

    def __init__(self, repairs: Repairs | None = None, *, limit: int = LIMIT, share: int = 1) -> None:
        self.done = Explored()
        self.repairs = repairs or Repairs(0)
        self._limit, self._share = limit, share
        self._opened: dict[bytes, Opened] = {}
        self._held: set[bytes] = set()

    def run(self, beginning: Beginning, steps: Sequence[Step], *, every_byte: bool = False) -> None:
        """Cut the last of ``steps`` down everywhere; judge what is new. ``every_byte``: a write is torn at each of its
        bytes, by a kill and by a power cut; else at sectors, and by a kill at a few bytes."""
        steady_identities()
        rig = beginning.rig()
        for step in steps[:-1]:
            perform(rig, step)
        run = _Run(any(step.op is Op.COMPACT for step in steps), every_byte)
        with Recorder(rig.disk, lambda moment, where: self._look(rig, moment, where, run)) as recorder:
            perform(rig, steps[-1])
        self.done.sequences += 1
        self.done.moments += recorder.moments
        for case in run.cases:
            try:
                self._judge(rig, case, run)
            except (AssertionError, ScopelogError, OSError) as error:
                raise Failed(f"{', '.join(map(str, steps))} from {beginning}: {case.where}: {error!r}") from error

    # --- what there is to judge -------------------------------------------------------------------

    def _look(self, rig: Rig, moment: Moment, where: str, run: _Run) -> None:
        now = rig.models.get(SID, ModelSession())
        promise = _Promise(now.copy(), now.key().encode())
        disk, writing = rig.disk, run.promise or promise
        run.promise = promise

        def offer(key: bytes, power: bool, tree: Callable[[], Tree], how: str, promise: _Promise) -> None:
            self.done.tried += 1
            whole = blake2b(key + (b"p" if power else b"k") + promise.key, digest_size=16).digest()
            if whole not in self._held:
                self._held.add(whole)
                left = None if key in self._opened else disk.with_tree(tree())
                run.cases.append(_Case(key, power, f"{where}, {how}", promise.model, left))

        for cut in (None, *moment.cuts(every=run.every_byte)):
            tree = moment.killed(cut)
            how = "killed" if cut is None else f"killed in the write before, after {cut} bytes"
            offer(moment.key(tree), False, lambda tree=tree: tree, how, promise if cut is None else writing)  # type: ignore[misc]
        outcomes = moment.outcomes(self._limit, seed=len(self._held))
        self.done.choices += outcomes.choices
        self.done.states += outcomes.total
        self.done.sampled += outcomes.sampled
        self.done.rows.update(outcomes.rows)
        for state in outcomes.states:
            offer(state.key, True, partial(moment.tree, state), "power cut", promise)
        for state in moment.torn() if run.every_byte else ():
            offer(state.key, True, partial(moment.tree, state), "power cut in the write before", writing)

    # --- judging ----------------------------------------------------------------------------------

    def _judge(self, rig: Rig, case: _Case, run: _Run) -> None:
        self.done.held += 1
        known = self._opened.get(case.key)
        if known is not None:
            generations = known.generations
            case.model.copy().reopened(known.got, lambda of: generations.get(of, 0), known.epoch, power=case.power)
            self.done.rows[33] += known.dead
            return
        assert case.disk is not None
        other = rig.fork(case.disk)
        other.models = {SID: case.model.copy()}
        self.done.judged += 1
        opened = self._opened[case.key] = survive(
            other,
            case.power,
            self.repairs,
            briefly=self.done.judged % self._share != 0,
            compacted=run.compacted,
        )
        self.done.rows[33] += opened.dead


class _Promise(NamedTuple):
    model: ModelSession
    key: bytes


class _Case(NamedTuple):
    """One disk and what it is held against. ``disk``: None if an equal one was judged before."""

    key: bytes
    power: bool
    where: str
    model: ModelSession
    disk: SimDisk | None


@dataclass
class _Run:
    """``compacted``: whether a log may be; ``promise``: as it was at the moment before."""

    compacted: bool
    every_byte: bool
    cases: list[_Case] = field(default_factory=list)
    promise: _Promise | None = None
