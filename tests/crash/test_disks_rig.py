"""The rigs of real disks themselves: they leave nothing behind, a hung server ends, and they see what they must."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.disks import worker
from fuzz.disks.blocklog import Bench, Device
from fuzz.disks.evidence import behind, chain_end, nothing_cut_silently
from fuzz.disks.fuse import Attr, Server
from fuzz.disks.mounts import PREFIX, missing, scratch
from fuzz.disks.plans import birth
from fuzz.disks.power import machine
from fuzz.disks.strict import StrictVolume, strict
from fuzz.disks.worker import DiskRig, Worker
from fuzz.simdisk import SimDisk
from tests.stores import MAIN, bare, build


def attached(own: tuple[str, ...]) -> set[str]:
    """What this process has mounted, and the loop devices on its files."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    loops = [path.read_text(encoding="utf-8") for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    return {text for text in (*mounts, *loops) if any(part in text for part in own)}


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    if lacks := missing("fuse", "loop", "ext4"):
        pytest.skip(f"real disks: {lacks}")
    yield
    assert not attached((PREFIX, str(tmp_path)))


def fails(rig: DiskRig) -> None:
    rig.open()
    raise KeyError("on purpose")


def test_nothing_is_left_behind_when_a_child_fails(nothing_left: None) -> None:
    with scratch() as directory, pytest.raises(AssertionError, match="on purpose"), machine("ext4", directory) as disk:
        Worker(DiskRig(disk.store())).run(fails)
    with scratch() as directory:
        bench = Bench(directory)
        device = bench.device()
        with pytest.raises(AssertionError, match="on purpose"), bench.running(device) as server:
            Worker(DiskRig(f"{bench.directory}/store"), server=server).run(fails)


def test_nothing_is_left_behind_after_an_interrupt(nothing_left: None) -> None:
    with scratch() as directory, contextlib.suppress(KeyboardInterrupt), machine("ext4", directory) as disk:
        task = Worker(DiskRig(disk.store()))

        def interrupt(told: int, models: bytes) -> bool:
            raise KeyboardInterrupt

        task.on_tell = interrupt
        task.run(birth)


def test_a_server_that_hangs_is_given_up(nothing_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is killed while it waits for an answer that never comes, and the mount goes."""
    monkeypatch.setattr(worker, "_HANG_SECONDS", 0.5)
    free = threading.Event()

    class Slow(StrictVolume):
        def create(self, parent: int, name: str) -> Attr:
            free.wait()
            return super().create(parent, name)

    server = Server(Slow(SimDisk()), str(tmp_path))
    try:
        with pytest.raises(AssertionError, match="hangs"):
            Worker(DiskRig(f"{tmp_path}/store"), server=server).run(birth)
    finally:
        free.set()
        server.stop()


def test_the_file_system_does_what_a_process_asks(nothing_left: None, tmp_path: Path) -> None:
    """Names, open files without a name, directories of many entries, lengths, large writes."""

    def work(rig: DiskRig) -> None:
        os.chdir(tmp_path)
        os.mkdir("d")
        for n in range(300):
            Path(f"d/{n:03}-{'x' * 60}").touch()
        assert len(os.listdir("d")) == 300
        data = os.urandom(300_000)
        Path("a").write_bytes(data)
        Path("b").write_bytes(b"old")
        with open("b", "rb") as old:
            os.rename("a", "b")
            assert old.read() == b"old" and Path("b").read_bytes() == data
        os.rename("d", "e")
        os.truncate(f"e/000-{'x' * 60}", 70_000)
        with open(f"e/000-{'x' * 60}", "r+b") as file:
            assert file.read() == bytes(70_000)
            os.posix_fallocate(file.fileno(), 0, 100_000)
            assert os.lseek(file.fileno(), 0, os.SEEK_END) == 100_000
            os.unlink(file.name)
            assert os.pread(file.fileno(), 10, 99_990) == bytes(10)
        with pytest.raises(OSError, match="not empty"):
            os.rmdir("e")
        os.chdir("/")

    disk = SimDisk()
    with strict(disk, str(tmp_path)) as server:
        assert Worker(DiskRig("unused"), server=server).run(work).end == "done"
    assert len(disk.read_file("/b")) == 300_000 and disk.durable_snapshot() == {}


def test_a_device_loses_what_was_not_flushed() -> None:
    device = Device(bytes(4096))
    device.write(2, b"a" * 1024, 0)
    device.sync(2)
    device.write(2, b"b" * 1024, 512)
    device.fail(flushes=1)
    with pytest.raises(OSError, match="flush"):
        device.sync(2)
    assert [entry.flush for entry in device.entries] == [False, True, False] and device.failures == 1
    device.sync(2)
    assert device.position == 4


def test_what_stands_behind_a_chain(tmp_path: Path) -> None:
    log = bare(build(tmp_path / "store", closed=False)[MAIN])
    end = chain_end(log)
    assert end == len(log) and behind(log) == []
    assert behind(log + bytes(5000)) == ["zeros"]
    assert behind(log[:-1]) == ["torn tail"]
    assert behind(log + bytes(5000) + b"junk") == ["torn tail", "hole"]
    with pytest.raises(AssertionError, match="kept nowhere"):
        nothing_cut_silently({"main.zst": log + b"junk"}, {"main.zst": log})
    nothing_cut_silently({"main.zst": log + b"junk"}, {"main.zst": log, "main.zst.1.torn": b"junk"})
    with pytest.raises(AssertionError, match="changed"):
        nothing_cut_silently({"main.zst": log}, {"main.zst": log + b"more"})
