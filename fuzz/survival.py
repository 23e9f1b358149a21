"""The judge of crash states: what every disk that a crash can leave must pass, whatever led to it.

It is opened unaided, held against the model, appended to, killed, opened again, cut off, opened again and checked; and
where opening had something to repair, that repair is cut down at each of its own steps, and must end in the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fuzz.model import Op, Spec
from fuzz.model_handles import POWER, PROCESS, steady_identities
from fuzz.model_rig import Rig
from fuzz.moments import Moment, Recorder
from fuzz.simdisk import KeepAll, LoseAll, SimDisk

SID = "s"
Image = frozenset[tuple[str, bytes]]


def image(disk: SimDisk) -> Image:
    """The files, without the courtesy note of the lock."""
    return frozenset((path, data) for path, data in disk.snapshot().items() if not path.endswith("LOCK"))


def logs(files: Image) -> Image:
    """All but the store's own file, which is made anew, with another time, if it did not survive."""
    return frozenset((path, data) for path, data in files if not path.endswith("store.zst"))


@dataclass
class Repairs:
    """How many different repairs are cut down as well, at most, and how far.

    ``states``: so many of the disks that a power cut in one step of a repair can leave, at most.
    """

    limit: int
    states: int = 2
    seen: set[bytes] = field(default_factory=set)
    cuts: int = 0
    """States in which a repair was begun again."""

    def wanted(self, left: SimDisk) -> bool:
        """Whether the repair of this disk is to be cut down; once for each."""
        key = left.digest()
        if key in self.seen or len(self.seen) >= self.limit:
            return False
        self.seen.add(key)
        return True


@dataclass
class Opened:
    """What the first open of a crash state showed. Held against other promises by :meth:`ModelSession.reopened`."""

    got: dict[str, list[Op]] | None
    epoch: int
    generations: dict[str, int]
    dead: bool
    """Whether the file of a retired scope was still there."""


def survive(rig: Rig, power: bool, repairs: Repairs, *, briefly: bool = False, compacted: bool = True) -> Opened:
    """Open what a crash has left, append behind it, read it again.

    ``briefly``: not all that, and each thing once. Not ``compacted``: no log ever was.
    """
    left = rig.disk.copy()
    steady_identities()
    if not briefly:
        worst = [f for f in rig.open_store().check() if f.severity == "corrupt"]
        assert not worst, worst
        before = rig.observe(SID)
    generations = rig.generations(SID) if compacted else {}
    session = rig.open(SID, power=power)
    opened = Opened(
        rig.seen, session.epoch, generations, any(path.endswith(".scope.zst") for path in session.recovery.swept)
    )
    nothing_cut_silently(left, rig.disk)
    if session.recovery and repairs.wanted(left):
        repair_again(rig.fork(left.copy()), image(rig.disk), power, repairs)
    if not briefly:
        assert (before or {"": []}) == (rig.seen or {"": []}), "a reader without the lock has the same verdict"
        rig.verify()
    rig.commit(SID, "", [_add("behind the repair"), Spec("set", key="b", value=5)], PROCESS)
    rig.stage(SID, "op-1", "text", "behind ")
    rig.stage(SID, "op-1", "text", "it")
    rig.flush(SID)
    rig.kill()
    rig.open(SID)
    if briefly:
        rig.verify_shown(SID, "op-1")
        if not power:  # what the killed process did not sync may still be lost
            rig.commit(SID, "", [_add("and again")], POWER)
            rig.cut_power()
            rig.open(SID, power=True)
        findings = [f for f in rig.open_store().check() if f.severity not in ("note", "torn")]
        assert not findings, findings
        return opened
    rig.verify()
    rig.commit(SID, "", [_add("and again")], POWER)
    rig.cut_power()
    rig.open(SID, power=True)
    rig.verify_stored(SID)
    rig.check()
    return opened


def _add(text: str) -> Spec:
    return Spec("append", key="plain", kind="list", value=text)


def nothing_cut_silently(left: SimDisk, now: SimDisk) -> None:
    """Whatever recovery has cut from a log stands in a file beside it, unless it is untouched preallocated space."""
    files = now.snapshot()
    for path, data in left.snapshot().items():
        if not path.endswith(".zst") or path.endswith("store.zst") or path not in files:
            continue
        kept = files[path]
        assert data.startswith(kept), f"{path} was changed, not only cut"
        cut = data[len(kept) :]
        if cut and any(cut[8:]):
            assert any(name.startswith(path) and files[name] == cut for name in files), f"{len(cut)} bytes of {path}"


def _of(living: set[str], files: Image) -> Image:
    """The logs, without those of retired scopes."""
    return frozenset((p, d) for p, d in logs(files) if not p.endswith(".scope.zst") or p in living)


def repair_again(rig: Rig, whole: Image, power: bool, repairs: Repairs) -> None:
    """The repair, cut down at each of its steps and run again, ends in the same bytes as one that was not (I7).

    After a mere kill the power is not cut: that may take what is to be repaired. The file of a retired scope is left
    out: a repair that had to sync main removes it, and one that has nothing to sync waits for the next sync.
    """
    disk = rig.disk.copy()
    left: dict[bytes, tuple[SimDisk, str]] = {}

    def look(moment: Moment, where: str) -> None:
        trees = [moment.killed(), *map(moment.killed, moment.cuts(every=False))]
        if power:
            trees += [disk.tree.survivors(policy) for policy in (LoseAll(), KeepAll())]
            trees += [moment.tree(state) for state in moment.outcomes(repairs.states).states]
        for outcome in map(disk.with_tree, trees):
            left.setdefault(outcome.digest(), (outcome, where))

    steady_identities()
    with Recorder(disk, look):
        rig.fork(disk).open_store().session(SID)
    for outcome, where in left.values():
        steady_identities()
        again = rig.fork(outcome).open_store().session(SID)
        living = {state.log.path for state in again._writer._scopes.values() if state.log is not None}
        repairs.cuts += 1
        same = _of(living, image(outcome)) == _of(living, whole)
        assert same, f"repaired differently, cut down {where} of the repair"
