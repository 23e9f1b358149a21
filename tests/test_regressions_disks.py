"""Faults that real disks have shown, each as it was found, on a simulated disk."""

from __future__ import annotations

from errno import EIO

import pytest

from fuzz.simdisk import SimDisk, SimFile
from scopelog import (
    Durability,
    InvalidInput,
    ManualClock,
    NoSuchSession,
    OutcomeUnknown,
    ReadFailed,
    Store,
    WriteFailed,
    ephemeral,
    list_of,
)

HISTORY = list_of("chat", "history")
STEPS = ephemeral("op-1").list_of("op", "steps")


def opened(disk: SimDisk) -> Store:
    return Store.open("/store", fs=disk, clock=ManualClock(), durability=Durability.PROCESS)


def test_a_disk_that_does_not_tell_a_length_at_the_close() -> None:
    """On a FUSE file system that had gone down lseek failed where on ext4 it never does. Appending had an answer for
    that; closing let the bare OSError out, half-way: the other logs stayed open, and the lock was kept for ever."""
    disk = SimDisk()
    store = opened(disk)
    session = store.session("s")
    session.commit([HISTORY.append(0)])  # main's birth is synced
    session.commit([HISTORY.append(1)])
    session.commit([STEPS.append(1)])
    disk.fail("size", 1, EIO, "main.zst")
    with pytest.raises(WriteFailed, match="could not be asked"):
        session.close()
    with store.session("s") as again:
        assert [element.element for element in again.read(HISTORY)] == [0, 1]
        assert [element.element for element in again.read(STEPS)] == [1]
    store.close()


def test_a_length_that_is_not_told_is_no_loss_once_all_is_synced() -> None:
    disk = SimDisk()
    with opened(disk) as store:
        session = store.session("s")
        session.commit([HISTORY.append(1)], durability=Durability.POWER)
        disk.fail("size", 1, EIO, "main.zst")
        session.close()
        with store.session("s") as again:
            assert not again.recovery.clean and not again.recovery


def test_a_reader_does_not_pass_over_what_it_could_not_read() -> None:
    """With one read of a sidecar failing, ``records()`` of a reader told of everything else and ended as if that were
    all: the scope looked as if it had been retired. Now it tells of everything else, and then says so."""
    disk = SimDisk()
    with opened(disk) as store, store.session("s") as session:
        session.commit([HISTORY.append(0)])
        session.commit([STEPS.append(1)])
        disk.fail("pread", 1, EIO, ".scope.zst")
        with store.reader("s") as reader:
            records = reader.records()
            assert next(records).value == 0
            with pytest.raises(ReadFailed, match=r"scope\.zst"):
                next(records)
            with pytest.raises(ReadFailed):
                reader.read(STEPS)
        with store.reader("s") as reader:
            assert [record.value for record in reader.records()] == [0, 1]


class Unsure(SimDisk):
    """A disk that cannot be asked about main logs for a while."""

    unsure = False

    def exists(self, path: str) -> bool:
        if self.unsure and path.endswith("main.zst"):
            raise OSError(EIO, "the disk did not answer", path)
        return super().exists(path)

    def open_readonly(self, path: str) -> SimFile:
        if self.unsure and path.endswith("main.zst"):
            raise OSError(EIO, "the disk did not answer", path)
        return super().open_readonly(path)


def test_a_disk_that_does_not_answer_is_no_disk_without_the_file() -> None:
    """os.access says no whatever the reason. So a copy wrote over a whole session whose look-up had failed, check
    passed over a session, and others said that there was none."""
    disk = Unsure()
    with opened(disk) as store:
        for name in ("s", "t"):
            with store.session(name) as session:
                session.commit([HISTORY.append(name)])
        before = disk.snapshot()
        disk.unsure = True
        with pytest.raises(ReadFailed):
            store.delete_session("t")
        with pytest.raises(ReadFailed):
            store.follow("t")
        with pytest.raises(ReadFailed):
            store.check("t")
        with pytest.raises(WriteFailed, match="could not be copied"):
            copy_with_source(disk, store)
        disk.unsure = False
        assert disk.snapshot() == before
        with pytest.raises(InvalidInput, match="already"):
            store.copy("s", "t")
        with pytest.raises(NoSuchSession):
            store.delete_session("u")
        assert [element.element for element in store.reader("t").read(HISTORY)] == ["t"]


def copy_with_source(disk: Unsure, store: Store) -> None:
    """The source can be read: the disk is unsure from the target's lock on."""
    disk.unsure = False
    original = disk.open_or_create

    def locked(path: str) -> SimFile:
        disk.unsure = True
        return original(path)

    disk.open_or_create = locked  # type: ignore[method-assign]
    try:
        store.copy("s", "t")
    finally:
        del disk.open_or_create


def test_the_page_cache_lets_go_of_bytes_before_they_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed write-back ext4 takes the page for written: the same bytes, written to it again and synced with
    success, went to blocks that still counted as never written. After a power cut they were 15 KB of zeros, and an
    acknowledged commit behind them was lost. (``test_bytes_that_a_failed_sync_has_lost`` sees it on a real ext4.)"""
    disk = SimDisk()
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(SimFile, "forget", lambda file, offset, length: calls.append(("forget", file._node.path())))
    with opened(disk) as store:
        session = store.session("s")
        session.commit([HISTORY.append(0)])
        disk.fail("sync", 1, EIO, "main.zst")
        with pytest.raises(OutcomeUnknown):
            session.commit([HISTORY.append(1)], durability=Durability.POWER)
        session.close()
        assert not calls
        before = len(disk.trace)
        with store.session("s") as again:
            again.commit([HISTORY.append(2)], durability=Durability.POWER)
            assert calls == [("forget", "/store/s.session/main.zst")]
            writes = [step for step in disk.trace[before:] if step[0] == "pwrite" and "main.zst" in step[1]]
            assert len(writes) == 2  # the same bytes again, and the new ones


def test_a_log_that_ends_in_the_middle_of_a_block_is_cut_there_once_more() -> None:
    """A power cut had taken a tail of a sidecar by its length alone: its bytes still stood in the last block, behind
    the end of the file. The next process appended something else, the power was cut again, and of that ext4 had kept
    the length and not the bytes: frames of the epoch before the last, a whole chain, stood there as if they had never
    been lost, with sequences that another log had been given since. Cutting the file at its own end clears the rest of
    the block. (Power cuts of ext4 find it; ``SCOPELOG_SEED=2`` in ``test_disks_power.py`` did.)"""
    disk = SimDisk()
    session = opened(disk).session("s")
    session.commit([HISTORY.append(0)])
    session.commit([STEPS.append(1)])
    left = disk.kill()
    lengths = {path: len(data) for path, data in left.snapshot().items() if path.startswith("/store/s.session/")}
    with opened(left) as store, store.session("s") as again:
        assert not again.recovery
        cuts = {step[1]: int(step[2]) for step in left.trace if step[0] == "truncate"}
        assert cuts == {path: length for path, length in lengths.items() if path.endswith(".zst")}
