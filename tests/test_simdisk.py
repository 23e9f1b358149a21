"""The simulated disk must lose what a real one may lose, keep what a real one keeps, and otherwise be a real one."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fuzz.simdisk import KeepAll, LoseAll, Prefix, RandomLoss, SimCrash, SimDisk, SimFile
from scopelog_engine.fs import File, FileSystem, OsFile, OsFileSystem, write_all


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


def durable_file(disk: SimDisk, path: str, data: bytes) -> SimFile:
    disk.write_file(path, data)
    return disk.open(path)


def code_of(action: Callable[[], object]) -> int | None:
    """The errno an action fails with, or None."""
    try:
        action()
    except OSError as error:
        return error.errno
    return None


# Durability of contents and of names.


def test_the_disk_is_a_file_system(disk: SimDisk) -> None:
    seam: FileSystem = disk
    file: File = seam.create("/a")
    write_all(file, b"abc", 2)
    assert (file.size(), file.pread(99, 1), seam.list_dir("/")) == (5, b"\0abc", ["a"])


def test_a_synced_file_without_a_synced_name_is_gone(disk: SimDisk) -> None:
    file = disk.create("/a")
    file.pwrite(b"abc", 0)
    file.sync()
    assert disk.crash().snapshot() == {}


def test_a_synced_name_without_a_synced_file_is_empty(disk: SimDisk) -> None:
    disk.create("/a").pwrite(b"abc", 0)
    disk.sync_dir("/")
    assert disk.crash().snapshot() == {"/a": b""}


def test_both_synced_survive_and_later_writes_do_not(disk: SimDisk) -> None:
    file = disk.create("/a")
    file.pwrite(b"abc", 0)
    file.sync()
    disk.sync_dir("/")
    file.pwrite(b"XY", 1)
    assert disk.durable_snapshot() == {"/a": b"abc"}
    assert disk.snapshot() == {"/a": b"aXY"}
    assert disk.crash().snapshot() == {"/a": b"abc"}
    assert disk.crash(KeepAll()).snapshot() == {"/a": b"aXY"}


def test_a_new_directory_needs_its_parent_synced(disk: SimDisk) -> None:
    disk.make_dir("/d")
    file = disk.create("/d/a")
    file.sync()
    disk.sync_dir("/d")
    assert not disk.copy().crash().exists("/d")
    disk.sync_dir("/")
    assert disk.crash().snapshot() == {"/d/a": b""}


@pytest.mark.parametrize("synced", [False, True])
def test_a_rename_is_lost_until_the_directory_is_synced(disk: SimDisk, synced: bool) -> None:
    disk.write_file("/main", b"old")
    file = durable_file(disk, "/tmp", b"new")
    disk.rename("/tmp", "/main")
    file.sync()
    if synced:
        disk.sync_dir("/")
    assert disk.crash().snapshot() == ({"/main": b"new"} if synced else {"/main": b"old", "/tmp": b"new"})


def test_a_lost_unlink_comes_back(disk: SimDisk) -> None:
    disk.write_file("/a", b"abc")
    disk.unlink("/a")
    assert disk.crash().snapshot() == {"/a": b"abc"}


def test_a_rename_across_directories_needs_both_synced(disk: SimDisk) -> None:
    disk.write_file("/a/x", b"1")
    disk.write_file("/b/y", b"2")
    disk.rename("/a/x", "/b/x")
    disk.sync_dir("/b")
    assert disk.durable_snapshot() == {"/a/x": b"1", "/b/y": b"2"}
    disk.sync_dir("/a")
    assert disk.durable_snapshot() == {"/b/x": b"1", "/b/y": b"2"}


def test_a_rename_into_a_new_directory_needs_that_directory_synced_too(disk: SimDisk) -> None:
    disk.write_file("/a/x", b"1")
    disk.write_file("/p/y", b"2")
    disk.make_dir("/p/new")
    disk.rename("/a/x", "/p/new/x")
    disk.sync_dir("/a")
    disk.sync_dir("/p/new")
    assert disk.durable_snapshot() == {"/a/x": b"1", "/p/y": b"2"}
    disk.sync_dir("/p")
    assert disk.durable_snapshot() == {"/p/new/x": b"1", "/p/y": b"2"}


def test_a_file_renamed_while_other_names_change_is_never_lost(disk: SimDisk) -> None:
    """Losing the rename but keeping what took its place, or the new directory it went to, must not lose the file."""
    disk.write_file("/d/main", b"precious")
    disk.make_dir("/new")
    disk.rename("/d/main", "/new/main")
    disk.create("/d/main")
    disk.rename("/d/main", "/new/second")
    disk.remove_dir("/d")
    states = list(disk.crash_states(1000))
    assert len(states) >= 4
    for state in states:
        assert list(state.snapshot().values()).count(b"precious") == 1
    disk.sync_dir("/")
    assert b"precious" in disk.crash().snapshot().values()


def test_a_recreated_name_synced_takes_the_rename_along(disk: SimDisk) -> None:
    disk.write_file("/a/x", b"1")
    disk.make_dir("/b")
    disk.sync_dir("/")
    disk.rename("/a/x", "/b/x")
    disk.create("/a/x")
    disk.sync_dir("/a")
    assert disk.durable_snapshot() == {"/a/x": b"", "/b/x": b"1"}


# Shapes of a torn tail.


def test_a_later_write_survives_behind_a_hole_of_zeros(disk: SimDisk) -> None:
    file = durable_file(disk, "/a", b"base")
    file.pwrite(b"1" * 600, 4)
    file.pwrite(b"2" * 600, 604)
    states = {state.read_file("/a") for state in disk.crash_states(10_000)}
    assert disk.crash_choices() <= 10_000
    assert b"base" + bytes(600) + b"2" * 600 in states  # the hole
    assert b"base" + b"1" * 508 in states  # cut at a sector
    assert b"base" + b"1" * 600 + b"2" in states  # cut at a byte
    assert b"base" + bytes(1200) in states  # only the length
    assert b"base" + bytes(508) + b"1" * 92 + b"2" * 600 in states  # a write whose first sector is lost
    assert {b"base", b"base" + b"1" * 600 + b"2" * 600} < states
    assert all(state.startswith(b"base") for state in states)


def test_random_loss_meets_every_shape_and_only_legal_ones(disk: SimDisk) -> None:
    file = durable_file(disk, "/a", b"base")
    file.pwrite(b"1" * 600, 4)
    file.pwrite(b"2" * 600, 604)
    rng = random.Random(1)
    states = {disk.crash(RandomLoss(rng)).read_file("/a") for _ in range(2000)}
    assert {b"base", b"base" + bytes(600) + b"2" * 600, b"base" + b"1" * 600, b"base" + bytes(1200)} <= states
    assert {b"base" + b"1" * 508, b"base" + bytes(508) + b"1" * 92} <= states
    assert len(states) > 300
    for state in states:
        assert len(state) <= 1204 and state[:4] == b"base"
        assert set(state[4:604]) <= {0, ord("1")} and set(state[604:]) <= {0, ord("2")}
    again = random.Random(1)
    assert {disk.crash(RandomLoss(again)).read_file("/a") for _ in range(2000)} == states


def test_overwritten_bytes_are_old_or_new_never_zero(disk: SimDisk) -> None:
    durable_file(disk, "/a", b"o" * 1024).pwrite(b"n" * 1024, 0)
    rng = random.Random(2)
    for _ in range(300):
        state = disk.crash(RandomLoss(rng)).read_file("/a")
        assert len(state) == 1024 and set(state) <= set(b"on")


def test_prefix_keeps_the_first_changes_of_each_file(disk: SimDisk) -> None:
    files = [durable_file(disk, path, b"") for path in ("/a", "/b")]
    for file in files:
        for place in range(3):
            file.pwrite(b"%d" % place, place)
    disk.create("/c")
    assert disk.crash(Prefix(2)).snapshot() == {"/a": b"01", "/b": b"01", "/c": b""}
    assert disk.crash(Prefix(1, names=0)).snapshot() == {"/a": b"0", "/b": b"0"}


def test_a_lost_truncate_under_a_kept_write(disk: SimDisk) -> None:
    file = durable_file(disk, "/a", b"abcdefgh")
    file.truncate(4)
    file.pwrite(b"X", 4)
    states = {state.read_file("/a") for state in disk.crash_states(100)}
    assert states == {b"abcdefgh", b"abcd", b"abcdX", b"abcd\0", b"abcdXfgh"}


def test_allocated_space_reads_as_zeros_and_may_be_lost(disk: SimDisk) -> None:
    file = durable_file(disk, "/a", b"ab")
    file.allocate(0, 5)
    assert file.pread(9, 0) == b"ab\0\0\0"
    assert {state.read_file("/a") for state in disk.crash_states(9)} == {b"ab", b"ab\0\0\0"}
    file.sync()
    assert disk.crash().read_file("/a") == b"ab\0\0\0"


def test_crash_states_are_distinct_limited_and_repeatable(disk: SimDisk) -> None:
    file = durable_file(disk, "/a", b"")
    for place in range(12):
        file.pwrite(bytes([place + 1]) * 700, place * 700)
    first = [state.digest() for state in disk.crash_states(200, seed=3)]
    assert len(first) == len(set(first)) == 200
    assert first == [state.digest() for state in disk.crash_states(200, seed=3)]
    assert first != [state.digest() for state in disk.crash_states(200, seed=4)]
    lengths = {len(state.read_file("/a")) for state in disk.crash_states(200)}
    assert {0, 12 * 700} <= lengths
    assert not disk.crashed


def test_what_survived_is_durable(disk: SimDisk) -> None:
    disk.create("/a").pwrite(b"abc", 0)
    after = disk.crash(KeepAll())
    assert after.crash().snapshot() == {"/a": b"abc"}


# A failed sync.


def test_a_failed_sync_then_ok_leaves_old_bytes_and_zeros(disk: SimDisk) -> None:
    """Linux marks the pages clean: the next sync says OK and the power cut shows what was there before."""
    file = durable_file(disk, "/a", b"abcd")
    file.pwrite(b"XYZW", 2)
    disk.fail("sync", errno=errno.EIO)
    with pytest.raises(OSError, match="Input/output") as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.pwrite(b"end", 6)
    file.sync()
    assert file.pread(99, 0) == b"abXYZWend"
    assert disk.kill().snapshot() == {"/a": b"abXYZWend"}
    for policy in (LoseAll(), KeepAll(), RandomLoss(random.Random(0))):
        assert disk.crash(policy).read_file("/a") == b"abcd\0\0end"


def test_writing_the_same_bytes_again_heals_also_after_a_kill(disk: SimDisk) -> None:
    file = durable_file(disk, "/a", b"")
    file.pwrite(b"abcdef", 0)
    disk.fail("sync")
    assert code_of(file.sync) == errno.EIO
    disk = disk.kill()
    file = disk.open("/a")
    file.sync()
    assert disk.durable_snapshot() == {"/a": bytes(6)}
    file.pwrite(file.pread(4, 0), 0)
    assert disk.durable_snapshot() == {"/a": bytes(6)}
    file.sync()
    assert disk.crash().read_file("/a") == b"abcd\0\0"


def test_bytes_synced_before_the_failure_stay(disk: SimDisk) -> None:
    file = durable_file(disk, "/a", b"")
    file.pwrite(b"good", 0)
    file.sync()
    disk.fail("sync", persistent=True)
    file.pwrite(b"bad", 4)
    assert [code_of(file.sync), code_of(file.sync)] == [errno.EIO, errno.EIO]
    assert disk.durable_snapshot() == {"/a": b"good"}
    disk.heal()
    file.sync()
    assert disk.durable_snapshot() == {"/a": b"good\0\0\0"}


def test_sync_of_a_closed_file_drops_nothing(disk: SimDisk) -> None:
    file, other = durable_file(disk, "/a", b""), disk.open("/a")
    file.pwrite(b"abc", 0)
    file.close()
    assert code_of(file.sync) == errno.EBADF
    other.sync()
    assert disk.crash().read_file("/a") == b"abc"


def test_a_failed_directory_sync_can_be_made_good(disk: SimDisk) -> None:
    disk.create("/a")
    disk.fail("sync_dir")
    assert code_of(lambda: disk.sync_dir("/")) == errno.EIO
    assert disk.durable_snapshot() == {}
    disk.sync_dir("/")
    assert disk.durable_snapshot() == {"/a": b""}


# Crashes at a step.


def scenario(disk: SimDisk) -> None:
    """Replace /s/main by temp, sync, rename, sync; every kind of step occurs."""
    disk.make_dir("/s/gone")
    disk.remove_dir("/s/gone")
    file = disk.create("/s/temp")
    try:
        file.allocate(0, 8)
        file.pwrite(b"new", 0)
        file.truncate(3)
        file.sync()
        disk.rename("/s/temp", "/s/main")
        disk.sync_dir("/s")
        disk.unlink("/s/old")
    finally:
        file.close()
    disk.open("/s/main").close()


def before_scenario() -> SimDisk:
    disk = SimDisk()
    disk.write_file("/s/main", b"was")
    disk.write_file("/s/old", b"")
    return disk


def test_a_crash_at_every_step_leaves_the_old_or_the_new(disk: SimDisk) -> None:
    disk = before_scenario()
    scenario(disk)
    steps = [entry[0] for entry in disk.trace]
    assert steps[:6] == ["mkdir", "rmdir", "create", "allocate", "pwrite", "truncate"]
    assert steps[6:] == ["sync", "rename", "sync_dir", "unlink", "open"]
    assert disk.steps == len(steps)
    seen = set()
    for step in range(1, len(steps) + 1):
        for mode in ("before", "after"):
            disk = before_scenario()
            disk.crash_at(step, mode)
            with pytest.raises(SimCrash):
                scenario(disk)
            assert disk.crashed and disk.steps == step
            with pytest.raises(SimCrash):
                disk.exists("/s")
            durable = step > 9 or (step, mode) == (9, "after")
            for state in disk.crash_states(500):
                content = state.read_file("/s/main")
                assert content == b"new" if durable else content in (b"was", b"new")
                seen.add(content)
    assert seen == {b"was", b"new"}


def test_the_scenario_without_its_sync_is_caught() -> None:
    """The rig must bite: leave the file sync out, and some state shows a main that is neither old nor new."""
    disk = before_scenario()
    file = disk.create("/s/temp")
    file.pwrite(b"new", 0)
    disk.rename("/s/temp", "/s/main")
    disk.sync_dir("/s")
    assert {b"", b"n", bytes(3)} <= {state.read_file("/s/main") for state in disk.crash_states(500)}


def test_a_torn_step_writes_its_first_bytes(disk: SimDisk) -> None:
    file = durable_file(disk, "/a", b"")
    disk.crash_at(disk.steps + 2, "torn", torn=2)
    file.pwrite(b"ab", 0)
    with pytest.raises(SimCrash):
        file.pwrite(b"cdef", 2)
    assert disk.trace[-1] == ("pwrite", "/a", "2", "4")
    assert disk.crash(KeepAll()).read_file("/a") == b"abcd"
    assert disk.crash().read_file("/a") == b""


def test_a_torn_sync_is_no_sync(disk: SimDisk) -> None:
    file = durable_file(disk, "/a", b"")
    file.pwrite(b"ab", 0)
    disk.crash_at(disk.steps + 1, "torn", torn=1)
    with pytest.raises(SimCrash):
        file.sync()
    assert disk.crash().read_file("/a") == b""


def test_the_step_before_has_no_effect(disk: SimDisk) -> None:
    file = durable_file(disk, "/a", b"x")
    disk.crash_at(disk.steps + 1)
    with pytest.raises(SimCrash):
        file.pwrite(b"y", 0)
    assert disk.crash(KeepAll()).read_file("/a") == b"x"


def test_old_handles_are_dead_and_close_quietly(disk: SimDisk) -> None:
    file = durable_file(disk, "/a", b"abc")
    after = disk.kill()
    for action in (
        lambda: file.pread(1, 0),
        file.size,
        file.sync,
        file.try_lock,
        lambda: disk.open("/a"),
        file.identity,
    ):
        with pytest.raises(SimCrash):
            action()
    file.close()
    assert after.open("/a").pread(3, 0) == b"abc"


def test_a_kill_keeps_what_a_later_power_cut_loses(disk: SimDisk) -> None:
    disk.create("/a").pwrite(b"abc", 0)
    disk.write_file("/b", b"")
    file = disk.create("/c")
    file.pwrite(b"abc", 0)
    disk.unlink("/b")
    after = disk.kill()
    assert after.snapshot() == {"/a": b"abc", "/c": b"abc"}
    assert after.copy().crash().snapshot() == {"/a": b"", "/b": b""}  # write_file has made /a durable
    after.sync_dir("/")
    assert after.copy().crash().snapshot() == {"/a": b"", "/c": b""}
    after.open("/c").sync()
    assert after.crash().snapshot() == {"/a": b"", "/c": b"abc"}


def test_a_copy_is_apart(disk: SimDisk) -> None:
    file = durable_file(disk, "/d/a", b"abc")
    assert file.try_lock()
    disk.fail("pwrite")
    twin = disk.copy()
    other = twin.open("/d/a")
    assert other.try_lock()
    other.pwrite(b"X", 0)
    other.sync()
    twin.create("/d/b")
    twin.sync_dir("/d")
    assert disk.snapshot() == disk.durable_snapshot() == {"/d/a": b"abc"}
    assert twin.crash().snapshot() == {"/d/a": b"Xbc", "/d/b": b""}


# Locks, identity, space and injected errors.


def test_flock_is_per_open_file(disk: SimDisk) -> None:
    first, second = disk.open_or_create("/lock"), disk.open_or_create("/lock")
    assert first.try_lock() and first.try_lock()
    assert not second.try_lock()
    second.close()
    second = disk.open_readonly("/lock")
    assert not second.try_lock()
    disk.unlink("/lock")
    assert not second.try_lock()
    assert disk.create("/lock").try_lock()  # another inode
    first.close()
    assert second.try_lock()


def test_a_lock_ends_with_the_process(disk: SimDisk) -> None:
    assert disk.open_or_create("/lock").try_lock()
    assert disk.kill().open("/lock").try_lock()


def test_inode_numbers_are_never_used_again(disk: SimDisk) -> None:
    disk.create("/a").close()
    disk.sync_dir("/")
    first = disk.identity("/a")
    disk.unlink("/a")
    file = disk.create("/a")
    second = file.identity()
    assert second == disk.identity("/a") != first
    after = disk.crash()
    assert after.identity("/a") == first
    assert after.create("/b").identity() not in (first, second)
    assert after.identity("/none") is None


def test_capacity_shortens_and_then_refuses(disk: SimDisk) -> None:
    disk.capacity = 10
    file, other = disk.create("/a"), disk.create("/b")
    assert other.pwrite(b"1234", 0) == 4
    assert file.pwrite(b"abcdefgh", 0) == 6
    assert code_of(lambda: file.pwrite(b"gh", 6)) == errno.ENOSPC
    assert code_of(lambda: file.allocate(0, 7)) == errno.ENOSPC
    assert file.pwrite(b"XYZ", 3) == 3  # in place
    assert file.size() == 6
    disk.unlink("/b")
    assert code_of(lambda: file.pwrite(b"gh", 6)) == errno.ENOSPC  # still open
    other.close()
    assert file.pwrite(b"ghijk", 6) == 4
    file.truncate(1)
    assert disk.used == 1
    assert disk.copy().used == 1
    disk.write_file("/c", b"123")
    assert disk.used == 4
    disk.unlink("/c")
    assert disk.used == 1
    file.sync()
    disk.sync_dir("/")
    assert disk.crash().used == 1


def test_short_writes(disk: SimDisk) -> None:
    file = disk.create("/a")
    disk.fail("pwrite", nth=2, short=1)
    assert [file.pwrite(b"abc", 0), file.pwrite(b"def", 3), file.pwrite(b"ghi", 4)] == [3, 1, 3]
    disk.fail("pwrite", short=2, errno=errno.ENOSPC)
    assert file.pwrite(b"jkl", 7) == 2
    assert code_of(lambda: file.pwrite(b"l", 9)) == errno.ENOSPC
    assert file.pwrite(b"l", 9) == 1
    assert disk.read_file("/a") == b"abcdghijkl"
    disk.fail("pwrite", short=0)
    with pytest.raises(OSError, match="wrote nothing"):
        write_all(file, b"mn", 10)


def test_short_and_failing_reads(disk: SimDisk) -> None:
    file = durable_file(disk, "/a", b"abcdef")
    disk.fail("pread", short=2)
    assert file.pread(4, 1) == b"bc"
    disk.fail("pread", errno=errno.EIO, path="other")
    assert file.pread(4, 1) == b"bcde"
    disk.fail("pread", path="/a")
    assert code_of(lambda: file.pread(1, 0)) == errno.EIO
    assert file.pread(1, 0) == b"a"


def test_faults_count_from_the_call_and_by_path(disk: SimDisk) -> None:
    one, two = disk.create("/one"), disk.create("/two")
    disk.fail("pwrite", nth=2, errno=errno.EDQUOT, path="two", persistent=True)
    assert [code_of(lambda: one.pwrite(b"x", 0)) for _ in range(3)] == [None] * 3
    assert [code_of(lambda: two.pwrite(b"x", 0)) for _ in range(3)] == [None, errno.EDQUOT, errno.EDQUOT]
    disk.rename("/two", "/three")  # the name counts that the file has now
    assert code_of(lambda: two.pwrite(b"x", 0)) is None
    disk.fail("open", errno=errno.EMFILE)
    assert code_of(lambda: disk.open("/one")) == errno.EMFILE
    disk.fail("rename", errno=errno.EACCES, path="target")
    assert code_of(lambda: disk.rename("/one", "/target")) == errno.EACCES
    assert disk.list_dir("/") == ["one", "three"]


@pytest.mark.parametrize(("op", "nth", "short"), [("fsync", 1, None), ("sync", 0, None), ("sync", 1, 3)])
def test_a_fault_that_cannot_be_is_refused(disk: SimDisk, op: str, nth: int, short: int | None) -> None:
    with pytest.raises(ValueError, match="cannot make this fail"):
        disk.fail(op, nth=nth, short=short)


def test_the_trace_shows_order_places_and_failures(disk: SimDisk) -> None:
    disk.make_dir("d")
    file = disk.create("d/a")
    file.pwrite(b"secret", 3)
    disk.rename("d/a", "/d/b")
    disk.fail("sync", errno=errno.ENOSPC)
    assert code_of(file.sync) == errno.ENOSPC
    file.sync()
    file.pread(1, 0)
    assert disk.trace == [
        ("mkdir", "/d"),
        ("create", "/d/a"),
        ("pwrite", "/d/a", "3", "6"),
        ("rename", "/d/a", "/d/b"),
        ("sync", "/d/b", "ENOSPC"),
        ("sync", "/d/b"),
    ]
    assert (disk.steps, disk.reads) == (6, 1)


def test_read_only_handles_do_not_write(disk: SimDisk) -> None:
    disk.write_file("/a", b"abc")
    file = disk.open_readonly("/a")
    codes = [
        code_of(lambda: file.pwrite(b"x", 0)),
        code_of(lambda: file.truncate(0)),
        code_of(lambda: file.allocate(0, 9)),
    ]
    assert codes == [errno.EBADF, errno.EINVAL, errno.EBADF]
    assert disk.read_file("/a") == b"abc"


# Against the operating system.

NAMES = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "none/a", "a/x")
TREE_OPS = [
    *("open", "open_readonly", "create", "open_or_create", "make_dir", "rename", "rename", "unlink", "remove_dir"),
    *("list_dir", "is_dir", "exists", "identity", "sync_dir"),
]
FILE_OPS = ("pread", "pwrite", "pwrite", "size", "truncate", "allocate", "sync", "try_lock", "close")


class Pair:
    """The same operations on both disks; each must give the same result or the same errno."""

    def __init__(self, root: Path) -> None:
        self.real, self.root = OsFileSystem(), str(root)
        self.sim = SimDisk()
        self.files: list[tuple[File, File]] = []

    def step(self, rng: random.Random) -> str:
        if self.files and rng.random() < 0.5:
            return self._on_file(rng)
        op = rng.choice(TREE_OPS)
        names = NAMES if op in ("rename", "unlink", "remove_dir") else (*NAMES, ".")
        paths = [rng.choice(names) for _ in range(2 if op == "rename" else 1)]
        if op == "open_readonly" and self.sim.is_dir(paths[0]):
            return op  # the one documented difference
        real = self._result(self.real, op, [f"{self.root}/{path}" for path in paths])
        sim = self._result(self.sim, op, paths)
        if isinstance(sim, SimFile) and isinstance(real, OsFile):
            self.files.append((real, sim))
        else:
            assert real == sim, (op, paths)
        return op

    def _result(self, fs: FileSystem, op: str, paths: list[str]) -> object:
        try:
            value: object = getattr(fs, op)(*paths)
        except OSError as error:
            return error.errno
        return ("found", value is None) if op == "identity" else (value,) if isinstance(value, (bool, list)) else value

    def _on_file(self, rng: random.Random) -> str:
        at = rng.randrange(len(self.files))
        op = rng.choice(FILE_OPS)
        offset, length = rng.randrange(-1, 40), rng.randrange(0, 30)
        arguments: dict[str, tuple[object, ...]] = {
            "pread": (length, offset),
            "pwrite": (rng.randbytes(length), offset),
            "truncate": (offset,),
            "allocate": (max(0, offset), length),
        }
        results = []
        for file in self.files[at]:
            try:
                results.append(("value", getattr(file, op)(*arguments.get(op, ()))))
            except OSError as error:
                results.append(("errno", error.errno))
        assert results[0] == results[1], (op, arguments.get(op), results)
        if op == "close":
            del self.files[at]
        return op

    def compare(self) -> None:
        real: dict[str, bytes] = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder, name)
                real["/" + str(path.relative_to(self.root))] = path.read_bytes()
        assert self.sim.snapshot() == real
        same = {(one.identity()[1], two.identity()[1]) for one, two in self.files}
        assert len({one for one, _ in same}) == len({two for _, two in same}) == len(same)
        assert self.sim.copy().digest() == self.sim.digest() == self.sim.copy().crash(KeepAll()).digest()

    def close(self) -> None:
        for one, two in self.files:
            one.close()
            two.close()
        self.files.clear()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


@pytest.mark.skipif(os.name != "posix" or not OsFileSystem.preallocates, reason="errors are compared with Linux")
@pytest.mark.parametrize("seed", range(12))
def test_random_operations_do_the_same_on_a_real_disk(pair: Pair, seed: int) -> None:
    rng = random.Random(seed)
    done = set()
    for _ in range(400):
        done.add(pair.step(rng))
        if len(pair.files) > 8:
            pair.close()
        if rng.random() < 0.05:
            pair.compare()
    pair.compare()
    assert {"rename", "pwrite", "unlink", "create", "try_lock", "remove_dir", "truncate"} <= done


def test_random_crashes_keep_the_books(disk: SimDisk) -> None:
    """Whatever was done: space is what the files hold, and a crash that keeps all equals the live disk."""
    rng = random.Random(9)
    for _ in range(600):
        a, b = rng.choice(NAMES), rng.choice(NAMES)
        op = rng.choice(["create", "make_dir", "unlink", "remove_dir", "sync_dir", "rename"])
        code_of(partial(getattr(disk, op), *([a, b] if op == "rename" else [a])))
        if disk.exists(a) and not disk.is_dir(a):
            disk.open(a).pwrite(rng.randbytes(5), rng.randrange(9))
        twin = disk.copy()
        assert twin.crash(KeepAll()).digest() == disk.digest()
        assert twin.durable_snapshot() == disk.durable_snapshot()
        state = twin.crash(RandomLoss(rng))
        assert state.used == sum(map(len, state.snapshot().values()))


def test_random_renames_never_lose_or_double_a_durable_file() -> None:
    """Whatever names come, go and are synced, a durable file that was only ever renamed has one name in any state."""
    names = [f"{folder}{name}" for folder in ("", "d/", "e/", "d/f/") for name in ("p", "q", "r", "e", "f")]
    for seed in range(60):
        rng = random.Random(seed)
        disk = SimDisk()
        for number in range(3):
            disk.write_file(rng.choice(["", "d/"]) + f"precious{number}", b"%d" % number)
        where = dict(disk.snapshot())
        for _ in range(30):
            a, b = rng.choice([*names, *where]), rng.choice(names)
            if b in where or "/" + b in where:
                continue  # would replace it
            op = rng.choice(["create", "make_dir", "remove_dir", "sync_dir", "rename", "rename"])
            paths = {"rename": [a, b], "sync_dir": [b.rpartition("/")[0]]}.get(op, [b])
            code_of(partial(getattr(disk, op), *paths))
            where = {path: data for path, data in disk.snapshot().items() if data}
            assert len(where) == 3
            for policy in (LoseAll(), Prefix(0, rng.randrange(9)), RandomLoss(rng), RandomLoss(rng)):
                survivors = disk.copy().crash(policy).snapshot().values()
                assert sorted(data for data in survivors if data) == [b"0", b"1", b"2"]
