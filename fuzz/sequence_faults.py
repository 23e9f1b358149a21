"""A disk that fails in one step of a short sequence of operations, held against the model then and afterwards.

The fault strikes once (transient) or from then on (persistent), until the disk is healed at the end. What the rig
itself looks up is spared. While the disk fails, an operation may be refused with a typed error, and what is
acknowledged is kept all the same, by a power cut as well; once it is healed, everything goes on, after a new open at
the latest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EDQUOT, EINTR, EIO, ENOSPC
from typing import NamedTuple

from fuzz.model import Op as Written
from fuzz.model import Spec
from fuzz.model_handles import POWER, steady_identities
from fuzz.model_rig import Rig
from fuzz.operations import SCOPE, Beginning, Step, perform
from fuzz.sequences import Failed
from fuzz.simdisk import CrashPolicy, KeepAll, LoseAll, SimDisk
from fuzz.survival import SID
from scopelog import Durability, OpenFailed, ReadFailed, ScopelogError

ERRORS = {"EIO": EIO, "ENOSPC": ENOSPC, "EDQUOT": EDQUOT, "EINTR": EINTR}
LOOKED_AT = ("open", "pread", "list_dir")


class Fault(NamedTuple):
    """The ``nth`` operation of that kind in the sequence. ``short``: so many bytes are written or read."""

    op: str
    nth: int
    error: str = ""
    persistent: bool = False
    short: int | None = None
    path: str = ""

    @property
    def row(self) -> int:
        """Of the fault matrix."""
        if self.op in LOOKED_AT:
            return 20
        if self.op in ("sync", "sync_dir"):
            return 16 if self.persistent else 15
        if self.short is not None:
            return 18
        return 17 if self.error == "ENOSPC" else 19


class FaultyRig(Rig):
    """A rig that looks at a failing disk without being struck itself. ``refused``: operations that failed."""

    refused = 0
    looking = False

    def observe(self, sid: str) -> dict[str, list[Written]] | None:
        with self._spared():
            return super().observe(sid)

    def generations(self, sid: str) -> dict[str, int]:
        with self._spared():
            return super().generations(sid)

    def flush(self, sid: str, level: Durability | None = None) -> bool:
        if not self.sessions[sid].recovery.unreadable:
            return super().flush(sid, level)
        self.sessions[sid].flush(level)  # a scope whose file could not be read has nothing that could be flushed
        self._catch_up(sid)
        return True

    @contextmanager
    def _spared(self) -> Iterator[None]:
        self.open_store()
        with self.disk.spared():
            self.looking = True
            yield
            self.looking = False

    def _excuse(self, sid: str, error: ScopelogError) -> None:
        self.refused += 1
        if not isinstance(error, ReadFailed):
            super()._excuse(sid, error)


def operations(beginning: Beginning, steps: Sequence[Step]) -> list[tuple[str, int, int]]:
    """Every step of the disk that the sequence takes: its kind, the how-manieth of that kind, and bytes of a write."""
    steady_identities()
    rig = _rig(beginning)
    disk = rig.disk
    taken: list[int] = []

    def before(op: str) -> None:
        if not rig.looking:
            taken.append(len(disk.trace))

    disk.watch = before
    for step in steps:
        perform(rig, step)
    disk.watch = None
    counts: dict[str, int] = {}
    found = []
    for op, *more in map(disk.trace.__getitem__, taken):
        counts[op] = counts.get(op, 0) + 1
        found.append((op, counts[op], int(more[2]) if op == "pwrite" else 0))
    return found


def faults(beginning: Beginning, steps: Sequence[Step], *, every_byte: bool, last_only: bool) -> Iterator[Fault]:
    """All that one sequence can meet in its steps. ``last_only``: in its last operation, and not in those before."""
    known = operations(beginning, steps[:-1]) if last_only and len(steps) > 1 else []
    for op, nth, size in operations(beginning, steps)[len(known) :]:
        for error in ERRORS:
            for persistent in (False, True):
                yield Fault(op, nth, error, persistent)
        if op == "pwrite":
            for short in range(1, size) if every_byte else sorted({1, size // 2, size - 1}):
                yield Fault(op, nth, short=short)
                yield Fault(op, nth, "ENOSPC", short=short)


def read_faults(limit: int) -> Iterator[Fault]:
    """Reads of logs and of directories that fail or are short, up to the ``limit``-th of each kind."""
    for op, path in (("pread", ".zst"), ("open", ".zst"), ("list_dir", "")):
        for nth in range(1, limit + 1):
            for persistent in (False, True):
                yield Fault(op, nth, "EIO", persistent, path=path)
            if op == "pread":
                yield Fault(op, nth, short=7, path=path)


class Met(NamedTuple):
    """``struck``: whether the fault came up; ``refused``: operations that failed by it; ``cuts``: power cuts then."""

    struck: bool
    refused: int
    cuts: int


def meet(beginning: Beginning, steps: Sequence[Step], fault: Fault, *, cuts: bool = True) -> Met:
    """Run the sequence on a disk with that fault, heal it, go on, and hold it all against the model."""
    try:
        return _meet(beginning, steps, fault, cuts)
    except (AssertionError, ScopelogError, OSError) as error:
        raise Failed(f"{', '.join(map(str, steps))} from {beginning}, {fault}: {error!r}") from error


def _rig(beginning: Beginning) -> FaultyRig:
    rig = FaultyRig(beginning.settings, SimDisk(preallocates=beginning.preallocates))
    beginning.live(rig)
    return rig


def attempt(rig: FaultyRig, step: Step) -> None:
    """Make the operation; opening may be refused, and may have left a sidecar unread until the next open."""
    try:
        perform(rig, step)
    except (OpenFailed, ReadFailed):
        rig.refused += 1
    if SID in rig.sessions and rig.sessions[SID].recovery.unreadable:
        rig.doubtful.add(SID)


def _meet(beginning: Beginning, steps: Sequence[Step], fault: Fault, cuts: bool) -> Met:
    steady_identities()
    rig = _rig(beginning)
    disk = rig.disk
    before = len(disk.trace)
    disk.fail(fault.op, fault.nth, ERRORS.get(fault.error), fault.path, fault.persistent, fault.short)
    armed = disk.hits
    rig.faulty, rig.leftovers = True, fault.op in ("unlink", "create", "pwrite", "rename", "truncate", "allocate")
    for step in steps:
        attempt(rig, step)
    struck = disk.hits > armed
    assert struck or not rig.refused, f"refused without a fault: {disk.trace[before:]}"
    if not struck:
        rig.heal()
        rig.close_store()
        return Met(False, rig.refused, 0)
    done = 0
    if cuts:
        done += _cut(rig, LoseAll()) + _cut(rig, KeepAll())
    rig.heal()
    if SID not in rig.sessions:
        rig.open(SID)
    rig.verify()
    for scope in ("", SCOPE):
        assert rig.commit(SID, scope, [Spec("append", key="plain", kind="list", value="healed")], POWER), "still broken"
    rig.verify_stored(SID)
    if cuts:
        done += _cut(rig, LoseAll())
    rig.check()
    return Met(True, rig.refused, done)


def _cut(rig: Rig, policy: CrashPolicy) -> int:
    """The power fails now: what was acknowledged at POWER is there, and it goes on."""
    disk: SimDisk = rig.disk.copy().crash(policy)
    disk.capacity = None
    other = rig.fork(disk)
    other.leftovers = rig.leftovers
    steady_identities()
    other.open(SID, power=True)
    other.verify()
    assert other.commit(SID, "", [Spec("append", key="plain", kind="list", value="after the cut")])
    other.check()
    return 1


def fill(beginning: Beginning, steps: Sequence[Step], room: int) -> int:
    """The disk has ``room`` bytes left when the sequence begins, and gets space at its end. Operations refused."""
    try:
        steady_identities()
        rig = _rig(beginning)
        rig.disk.capacity = rig.disk.used + room
        rig.faulty = rig.leftovers = True
        for step in steps:
            attempt(rig, step)
        _cut(rig, LoseAll())
        rig.heal()
        if SID not in rig.sessions:
            rig.open(SID)
        rig.verify()
        for scope in ("", SCOPE):
            assert rig.commit(SID, scope, [Spec("append", key="plain", kind="list", value="space again")], POWER)
        rig.verify_stored(SID)
        rig.check()
    except (AssertionError, ScopelogError, OSError) as error:
        raise Failed(f"{', '.join(map(str, steps))} from {beginning}, {room} bytes left: {error!r}") from error
    return rig.refused


__all__ = ["ERRORS", "Fault", "FaultyRig", "Met", "attempt", "faults", "fill", "meet", "read_faults"]
