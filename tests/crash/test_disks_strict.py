"""A real process on a strict FUSE file system: what was not synced is lost, directory entries included.

Every script is cut at every step of the disk; what is left is opened by another process through another mount.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from errno import EIO, ENOLCK, ENOSPC, ENOSYS, EOPNOTSUPP
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from fuzz.campaign import Campaign
from fuzz.disks.mounts import missing
from fuzz.disks.plans import SCRIPTS, add, cut_short, failing_reads, going_on, play, survive, under_fault
from fuzz.disks.strict import strict, unsynced
from fuzz.disks.worker import DiskRig, Outcome, Plan, Worker
from fuzz.model_handles import POWER, PROCESS, Settings
from fuzz.simdisk import CrashPolicy, KeepAll, LoseAll, RandomLoss, SimDisk
from scopelog import UnsupportedPlatform, WriteFailed

SETTINGS = (Settings(), Settings(PROCESS, PROCESS), Settings(POWER, POWER))
SLICE = 14
"""In an ordinary run every so manyth step of a script is a cut."""


class Mount:
    """A directory to mount disks on, one after the other, and a rig over the store there."""

    def __init__(self, directory: Path, settings: Settings = Settings()) -> None:  # noqa: B008
        self.directory = directory
        self.rig = DiskRig(f"{directory}/store", settings)
        self.worker = Worker(self.rig)

    def run(self, disk: SimDisk, plan: Plan, *, direct: bool = False, flock: int | None = None) -> Outcome:
        with strict(disk, str(self.directory), direct=direct, flock=flock) as server:
            self.worker.server = server
            return self.worker.run(plan)


@dataclass(frozen=True)
class Fault:
    """Of :meth:`SimDisk.fail`; armed when the child asks for it."""

    op: str
    code: int | None = None
    path: str = ""
    persistent: bool = False
    short: int | None = None

    def on(self, disk: SimDisk, nth: int = 1) -> Callable[[str], None]:
        code = EIO if self.code is None and self.short is None else self.code

        def asked(what: str) -> None:
            if what == "heal":
                disk.heal()
            else:
                disk.fail(self.op, nth, code, self.path, self.persistent, self.short)

        return asked


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    if lacks := missing("fuse"):
        pytest.skip(f"strict FUSE: {lacks}")
    path = tmp_path / "mnt"
    path.mkdir()
    yield path
    path.rmdir()  # refused while something is mounted


def steps_of(directory: Path, script: str, settings: Settings) -> list[tuple[str, ...]]:
    """What the disk does in a whole run of a script, which is sound at its end."""
    disk, mount = SimDisk(), Mount(directory, settings)
    assert mount.run(disk, SCRIPTS[script]).end == "done"
    trace = [*disk.trace]
    mount.run(disk, lambda rig: rig.check())
    return trace


@pytest.mark.fault(11, 12, 13, 14, 33, rig="F")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_cut_at_every_step(script: str, directory: Path, campaign: Campaign) -> None:
    mine = [*SCRIPTS].index(script)
    for number, settings in enumerate(SETTINGS if campaign.full else SETTINGS[mine : mine + 1]):
        steps = steps_of(directory, script, settings)
        assert {"pwrite", "sync", "sync_dir", "rename"} <= {step[0] for step in steps}
        for at in range(1, len(steps) + 1):
            if steps[at - 1][0] == "open" or (at % SLICE and not campaign.full):
                continue
            mode: Literal["before", "after", "torn"] = ("before", "after", "torn")[(at + number) % 3]
            mount, disk = Mount(directory, settings), SimDisk()
            disk.crash_at(at, mode, 20)
            outcome = mount.run(disk, cut_short(SCRIPTS[script]))
            assert disk.crashed, outcome
            for policy in (LoseAll(), RandomLoss(Random(at)), KeepAll())[: 3 if campaign.full else 2]:
                where = f"{script} {settings}, {mode} step {at} {steps[at - 1]}, {type(policy).__name__}"
                again(mount, disk.crash(policy), where)
                count_cut(campaign, mount, disk)


def count_cut(campaign: Campaign, mount: Mount, disk: SimDisk) -> None:
    """The rows that a cut of ``disk`` has really provoked: those of which something could be lost."""
    files, names = unsynced(disk)
    campaign.count(int(files > 0), rows=(11,))
    campaign.count(int(files + names > 1), rows=(12,))
    campaign.count(int(names > 0), rows=(13,))
    campaign.count(int(files > 0 and names > 0), rows=(14,))
    campaign.count(int(mount.rig.retired), rows=(33,))


def again(mount: Mount, left: SimDisk, where: str) -> None:
    """What a cut has left is opened, unaided; the mount's own model stays as it is."""
    models = copy.deepcopy(mount.rig.models)
    try:
        assert mount.run(left, survive).end == "done"
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    finally:
        mount.rig.models = models


@pytest.mark.fault(11, 12, 13, 14, 33, rig="F")
def test_cut_again_and_again(directory: Path, campaign: Campaign) -> None:
    """Random play, a cut at a random step, any legal loss, and on with what is left."""
    for seed in campaign.seeds(1):
        rng = Random(seed)
        mount, disk = Mount(directory, rng.choice(SETTINGS)), SimDisk()
        for round_ in range(4):
            disk.crash_at(rng.randint(1, 150), rng.choice(("before", "after", "torn")), rng.choice((1, 20, 500, 5000)))
            where = f"seed {seed}, round {round_}"
            try:
                outcome = mount.run(disk, going_on(rng.randrange(1 << 30), 40, power=True))
                assert disk.crashed or outcome.end == "done", outcome
            except AssertionError as error:
                raise AssertionError(f"{where}: {error}") from error
            policy: CrashPolicy = rng.choice((LoseAll(), RandomLoss(rng), RandomLoss(rng)))
            count_cut(campaign, mount, disk)
            disk = disk.crash(policy)
            again(mount, disk.copy(), where)


# --- faults -----------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[tuple[int, ...], list[Fault]]] = {
    "sync": ((15,), [Fault("sync"), Fault("sync", path="main"), Fault("sync", path=".scope"), Fault("sync_dir")]),
    "write": (
        (17, 19),
        [
            Fault("pwrite"),
            Fault("pwrite", code=ENOSPC),
            Fault("pwrite", short=9),
            Fault("pwrite", code=ENOSPC, short=30),
            Fault("pwrite", persistent=True),
            Fault("truncate", path=".zst"),
            Fault("create", code=ENOSPC),
        ],
    ),
}


@pytest.mark.fault(15, 17, 19, rig="F")
@pytest.mark.parametrize("kind", FAULTS)
def test_a_failing_disk(kind: str, directory: Path, campaign: Campaign) -> None:
    """A call fails, once or for a while; what was acknowledged before, meanwhile and after it survives the next cut."""
    rows, faults = FAULTS[kind]
    for seed in campaign.seeds(3):
        rng = Random(seed)
        fault = rng.choice(faults)
        mount, disk = Mount(directory, rng.choice(SETTINGS)), SimDisk()
        where = f"seed {seed}, {fault}"
        mount.worker.asked = fault.on(disk, nth=rng.randint(1, 4))
        try:
            assert mount.run(disk, under_fault(rng.randrange(1 << 30), 12), direct=rng.random() < 0.5).end == "done"
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from error
        for policy in (LoseAll(), RandomLoss(rng)):
            again(mount, disk.crash(policy), where)
        campaign.count(sum("E" in step[-1] for step in disk.trace) + (fault.short is not None), rows=rows)


READS = ("pread", "list_dir", "identity", "size")


@pytest.mark.fault(20, rig="F")
@pytest.mark.parametrize("op", READS)
def test_failing_reads(op: str, directory: Path, campaign: Campaign) -> None:
    """The nth read of a kind fails while a session is opened and read, for each n until none does."""
    mount, disk = Mount(directory), SimDisk()
    assert mount.run(disk, written).end == "done"
    models = copy.deepcopy(mount.rig.models)
    limit = 60 if campaign.full else 2
    for nth in range(1, limit + 1):
        for persistent in (False, True):
            fault = Fault(op, persistent=persistent)
            left = disk.kill()
            mount.worker.asked = fault.on(left, nth)
            mount.rig.models = copy.deepcopy(models)
            where = f"{op} {nth}, for ever: {persistent}"
            try:
                assert mount.run(left, failing_reads, direct=bool(nth % 2)).end == "done"
            except AssertionError as error:
                raise AssertionError(f"{where}: {error}") from error
            campaign.count()


def written(rig: DiskRig) -> None:
    """A session with a long main log and two scopes, left without a close."""
    rig.open()
    play(rig, Random(1), 40)
    rig.commit("s", "op-1", [add("alive")], POWER)
    rig.commit("s", "x", [add("alive")], POWER)
    rig.flush("s")


@pytest.mark.fault(20, rig="F")
def test_short_reads(directory: Path, campaign: Campaign) -> None:
    """However little a read returns, the rest is asked for: only nothing is the end of a file."""
    for length in (50, 1000, 4096) if campaign.full else (1000,):
        mount, disk = Mount(directory), SimDisk()
        assert mount.run(disk, written).end == "done"
        left = disk.kill()
        mount.worker.asked = Fault("pread", persistent=True, short=length).on(left)
        assert mount.run(left, failing_reads, direct=True).end == "done"
        assert not mount.worker.seen["refused"]
        campaign.count()


# --- what a file system may lack --------------------------------------------------------------------


@pytest.mark.fault(26, rig="F")
def test_without_memory_maps(directory: Path, campaign: Campaign) -> None:
    """No index can be had; every answer is the same."""
    for seed in range(6 if campaign.full else 1):
        mount, disk = Mount(directory), SimDisk()
        assert mount.run(disk, without_index(seed), direct=True).end == "done"
        assert mount.run(disk, then_soundly, direct=True).end == "done"
        campaign.count()


def without_index(seed: int) -> Plan:
    def plan(rig: DiskRig) -> None:
        rig.open()
        play(rig, Random(seed), 30)
        store = rig.open_store()
        with contextlib.suppress(WriteFailed):  # there may be nothing that an index would be kept for
            assert [rebuilt.covered for rebuilt in store.rebuild_index()] == [0]
        assert not store.index_state()["present"]
        rig.verify()
        assert [info.id for info in store.catalogue()] == ["s"]
        rig.close_store()

    return plan


def then_soundly(rig: DiskRig) -> None:
    rig.begin()
    rig.open()
    rig.check()


@pytest.mark.fault(26, rig="F")
@pytest.mark.parametrize("code", [ENOSYS, EOPNOTSUPP, ENOLCK])
def test_without_locks(code: int, directory: Path, campaign: Campaign) -> None:
    """A session is not opened for writing where nobody could be kept out; it is read."""
    mount, disk = Mount(directory), SimDisk()
    assert mount.run(disk, written).end == "done"
    before = disk.snapshot()

    def plan(rig: DiskRig) -> None:
        with pytest.raises(UnsupportedPlatform, match="flock"):
            rig.open()
        assert rig.observe("s")

    left = disk.kill()
    assert mount.run(left, plan, flock=code).end == "done"
    assert left.snapshot() == before
    campaign.count()
