"""Faults of the engine that the simulated disk has found, run through every short sequence of operations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import pytest

from fuzz.simdisk import SimCrash, SimDisk
from fuzz.simdisk_crash import Change, EntryChange, FileNode
from scopelog import Durability, ManualClock, OpenFailed, Session, Store, ephemeral, list_of

MAIN = list_of("chat", "messages")
SCOPE = ephemeral("op-1")
OUT = SCOPE.list_of("op", "out")


class MainLost:
    """A power cut that takes what was not synced of main, and the name of the scope's first file, and nothing else."""

    def entries(self, pending: Sequence[EntryChange]) -> Iterable[EntryChange]:
        return [change for change in pending if not change.node.name.startswith("0000000000000003")]

    def content(self, node: FileNode) -> Iterable[Change]:
        return () if node.name == "main.zst" else node.journal


def opened(disk: SimDisk) -> Session:
    store = Store.open(
        "/store", fs=disk, clock=ManualClock(), durability=Durability.PROCESS, scope_durability=Durability.PROCESS
    )
    return store.session("s")


@pytest.mark.fault(12, 13, rig="S")
@pytest.mark.parametrize("killed", [False, True], ids=["at once", "killed before the names are synced"])
def test_a_sidecar_that_was_set_aside_does_not_come_back(killed: bool) -> None:
    """A retirement and what was written behind it under the same id were not synced. The power failed; of main the
    retirement was lost, the new life's file was not. It builds on a sequence beyond main's end, so it was set aside, as
    it should be. But nobody synced that rename. Main grew past that sequence, at POWER, the power failed again, the
    file had its old name back and fitted in: its records were replayed, as if they had been acknowledged."""
    disk = SimDisk()
    session = opened(disk)
    for text in ("m0", "m1"):  # the second one's frame says that the first is durable, and main's name with it
        session.commit([MAIN.append(text)], durability=Durability.POWER)
    session.commit([OUT.append("old")])
    session.commit([SCOPE.retire()])
    session.commit([OUT.append("set aside")])
    disk = disk.crash(MainLost())
    if killed:
        trial = disk.copy()
        opened(trial)
        disk.crash_at(next(n for n, step in enumerate(trial.trace, 1) if step[-1].endswith(".aside")), "after")
        with contextlib.suppress(SimCrash):
            opened(disk)
        disk = disk.kill()
        assert any(path.endswith(".aside") for path in disk.snapshot())
    session = opened(disk)
    assert killed or len(session.recovery.set_aside) == 1
    assert session.read(OUT) == []
    for text in ("m2", "m3", "m4"):
        session.commit([MAIN.append(text)], durability=Durability.POWER)
    disk = disk.crash()
    session = opened(disk)
    assert session.read(OUT) == [] and session.scopes() == []
    assert [e.element for e in session.read(MAIN)] == ["m0", "m1", "m2", "m3", "m4"]
    assert not session.recovery.set_aside


@pytest.mark.fault(13, 15, rig="S")
@pytest.mark.parametrize("failed", [False, True], ids=["killed", "failed sync"])
@pytest.mark.parametrize("path", ["/data/store", "/a/b/c/store"])
def test_a_directory_above_the_store_is_durable_though_its_maker_did_not_live_to_sync_it(
    failed: bool, path: str
) -> None:
    """A store was opened where its parents were missing. They were made, and the process was killed before it synced
    the directory that names the first of them, or that sync failed. The next open found them there and left them alone:
    a commit at POWER was acknowledged, and a power cut took the whole store."""
    disk = SimDisk()
    if failed:
        disk.fail("sync_dir")
        with pytest.raises(OpenFailed):
            Store.open(path, fs=disk, clock=ManualClock())
    else:
        disk.crash_at(2)
        with contextlib.suppress(SimCrash):
            Store.open(path, fs=disk, clock=ManualClock())
        disk = disk.kill()
    assert disk.list_dir("/") != []
    Store.open(path, fs=disk, clock=ManualClock()).session("s").commit([MAIN.append("m0")])
    store = Store.open(path, fs=disk.crash(), clock=ManualClock(), create=False)
    assert [e.element for e in store.session("s").read(MAIN)] == ["m0"]
