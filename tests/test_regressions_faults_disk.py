"""Faults that real disks have shown, each as it was found, on a simulated disk."""

from __future__ import annotations

from errno import EIO

import pytest

from fuzz.simdisk import SimDisk
from scopelog import Durability, ManualClock, ReadFailed, Store, WriteFailed, ephemeral, list_of

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
