"""A log whose file is closed for others and opened again: nobody can tell, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest

from fuzz.simdisk import LoseAll, SimDisk, SimFile
from scopelog import (
    Durability,
    HandleFenced,
    LogPoisoned,
    ManualClock,
    OutcomeUnknown,
    ReadFailed,
    Store,
    WriteFailed,
    ephemeral,
)
from tests.children import child
from tests.pool_rig import MAIN, OTHER, OUT, close_file, descriptors, elements, log_of, opened, real, small

POWER: Final = Durability.POWER


# --- which ------------------------------------------------------------------------------------------


def test_the_least_recently_used_is_closed_and_rather_one_that_is_synced() -> None:
    """Of the oldest few: closing a log with unsynced bytes means to write them once more."""
    disk = small(4)
    store, session = opened(disk)
    session.commit([MAIN.append(1)])
    logs = {"": log_of(session)}
    for name in "abc":
        where = ephemeral(name).list_of("op", "out")
        session.commit([where.append(1)], durability=POWER if name == "b" else None)
        logs[name] = log_of(session, name)

    def are_open() -> str:
        return "".join(name or "m" for name, log in logs.items() if log.view.handle._pin is not None)

    assert are_open() == "mabc"
    session.commit([MAIN.append(2)])
    session.commit([ephemeral("d").list_of("op", "out").append(1)])
    assert are_open() == "mac"  # "b" is synced, and older than main
    session.commit([ephemeral("e").list_of("op", "out").append(1)])
    assert are_open() == "ac"  # main is synced, though it is younger
    session.commit([ephemeral("f").list_of("op", "out").append(1)])
    assert are_open() == "c"  # none is synced: the oldest
    store.close()


def test_a_file_in_use_stays_open_and_an_error_that_is_kept_keeps_none() -> None:
    """A traceback refers to all that its functions had in hand. With an error kept for every scope of a full disk,
    their files would all have stayed open."""
    disk = small(1)
    store, session = opened(disk)
    session.commit([MAIN.append("m")])
    session.commit([OUT.append("x")])
    main, scope = log_of(session).view, log_of(session, "op-1").view
    with main.handle.pin() as file:
        assert scope.handle.evict() and not main.handle.evict()
        session.commit([OUT.append("y")])
        assert not main.handle.evict() and file.size() > 0
    assert main.handle.evict()
    kept: list[BaseException] = []
    disk.fail("pwrite", errno=errno.ENOSPC, path="scope.zst", persistent=True)
    with pytest.raises(WriteFailed) as full:
        session.commit([OUT.append("z")])
    kept.append(full.value)
    disk.heal()
    disk.fail("sync", path="scope.zst")
    with pytest.raises(OutcomeUnknown) as unknown:
        session.commit([OUT.append("z")], durability=POWER)
    kept.append(unknown.value)
    disk.fail("pread", path="main.zst", persistent=True)
    main._closed.clear()
    with pytest.raises(ReadFailed) as unread:
        session.read(MAIN)
    kept.append(unread.value)
    disk.heal()
    assert main.handle.evict() and scope.handle.evict() and len(kept) == 3
    store.close(force=True)


def test_a_snapshot_keeps_its_file_while_the_scope_is_retired_and_its_file_unlinked(store_path: Path) -> None:
    fs = real(1)
    with Store.open(store_path, fs=fs, clock=ManualClock()) as store, store.session("s") as session:
        session.commit([MAIN.append("m")])
        before = descriptors()
        session.commit([OUT.append("x"), OUT.append("y")])
        writer = session._writer
        with writer._lock:
            view = writer._snapshot(writer._scopes["op-1"])
        assert view is not None
        for number in range(20):
            session.commit([MAIN.append(number)])
            session.commit([OTHER.append(number)])
        session.commit([ephemeral("op-1").retire()])
        assert not os.path.exists(view.path)
        assert [record.value for record in view.elements(OUT.address)] == ["x", "y"]
        view.let_go()
        del view
        assert descriptors() <= before + 1


def test_a_reader_keeps_its_files_whatever_the_pool_does(store_path: Path) -> None:
    """A reader's files cannot be opened again once the writer has unlinked them."""
    fs = real(1)
    with Store.open(store_path, fs=fs, clock=ManualClock()) as store, store.session("s") as session:
        session.commit([MAIN.append("m")])
        session.commit([OUT.append("x")])
        with store.reader("s") as reader:
            for number in range(20):
                session.commit([OTHER.append(number)])
            session.commit([ephemeral("op-1").retire()])
            assert [e.element for e in reader.read(OUT)] == ["x"]
            assert [e.element for e in reader.read(MAIN)] == ["m"]
            assert [record.value for record in reader.records()] == ["m", "x"]


# --- what was not synced ----------------------------------------------------------------------------


def lose_pages(disk: SimDisk, path: str) -> None:
    """The kernel fails to write a file back, which nobody has open: its pages are clean, and no sync will say so."""
    disk._tree.file(path).drop()


def test_unsynced_bytes_of_a_closed_file_are_written_again_before_the_next_sync() -> None:
    """Nobody who opens the file later need be told that the kernel could not write it back."""
    disk = small(1)
    store, session = opened(disk)
    session.commit([MAIN.append("m")])
    session.commit([OUT.append("first")])
    path = log_of(session, "op-1").path
    close_file(session, "op-1")
    lose_pages(disk, path)
    session.commit([OUT.append("second")], durability=POWER)
    disk = disk.crash(LoseAll())
    store, session = opened(disk)
    assert elements(session, OUT) == ["first", "second"]
    store.close()


def test_unsynced_bytes_of_a_closed_file_are_written_again_before_the_next_append() -> None:
    """Else a record would follow bytes that are lost, so that not even kill -9 spared it once they are not cached."""
    disk = small(1)
    store, session = opened(disk)
    session.commit([MAIN.append("m")])
    session.commit([OUT.append("first")])
    path = log_of(session, "op-1").path
    close_file(session, "op-1")
    lose_pages(disk, path)
    session.commit([OUT.append("second")])
    disk._tree.file(path).sync()  # written back in time, and its name as well
    disk.sync_dir(os.path.dirname(path))
    disk = disk.crash(LoseAll())
    store, session = opened(disk)
    assert elements(session, OUT) == ["first", "second"]
    store.close()


@pytest.mark.fault(15, rig="S")
def test_a_failing_sync_after_the_file_was_closed_poisons_and_the_next_open_writes_everything_again() -> None:
    disk = small(1)
    store, session = opened(disk, scope_durability=Durability.PROCESS)
    session.commit([MAIN.append("m")])
    session.commit([OUT.append("first")])
    close_file(session, "op-1")
    disk.fail("sync", path="scope.zst")
    with pytest.raises(OutcomeUnknown):
        session.commit([OUT.append("maybe")], durability=POWER)
    close_file(session, "op-1")
    with pytest.raises(LogPoisoned):  # closing the file does not clear it
        session.commit([OUT.append("refused")])
    session.close(force=True)
    session = store.session("s")
    session.commit([OUT.append("last")], durability=POWER)
    found = elements(session, OUT)
    assert [e for e in found if e != "maybe"] == ["first", "last"]
    disk = disk.crash(LoseAll())
    store, session = opened(disk)
    assert elements(session, OUT) == found
    store.close()


@pytest.mark.parametrize("level", Durability)
@pytest.mark.parametrize("count", [1, 600])
def test_unsynced_bytes_that_were_lost_while_the_file_was_closed_are_not_built_upon(
    count: int, level: Durability
) -> None:
    """The kernel may drop what it could not write, and read zeros from the disk. Written again, and synced, these
    would have been acknowledged at POWER."""
    disk = small(1)
    store, session = opened(disk)
    session.commit([MAIN.append("m")])
    text = random.Random(1)
    for number in range(count):
        session.commit([OUT.append([number, text.randbytes(100).hex()])])
    log = log_of(session, "op-1")
    if count > 1:
        assert log.view.tail.previous  # several stretches
    for place in (log.end // 2, log.end - 10):
        trial = disk.copy()
        store, session = opened(small(1, trial))
        session.commit([OUT.append("tail")])
        close_file(session, "op-1")
        data = bytearray(trial.read_file(log.path))
        data[place : place + 8] = bytes(8)
        trial.write_file(log.path, bytes(data))
        before = trial.read_file(log.path)
        with pytest.raises(OutcomeUnknown):
            session.commit([OUT.append("lost")], durability=level)
        with pytest.raises(LogPoisoned):
            session.commit([OUT.append("lost")])
        assert trial.read_file(log.path)[: len(before)] == before
        session.commit([MAIN.append("main goes on")])
        store.close(force=True)


def test_a_sync_whose_failure_was_lost_to_an_interruption_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C takes the place of the system call's error: what was written again before it must be once more."""
    disk = small(1)
    store, session = opened(disk)
    session.commit([MAIN.append("m")])
    session.commit([OUT.append("first")])
    close_file(session, "op-1")
    session.commit([OUT.append("second")])

    def interrupted(file: SimFile) -> None:
        file._node.drop()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SimFile, "sync", interrupted)
        session.flush(POWER)
    session.commit([OUT.append("third")], durability=POWER)
    disk = disk.crash(LoseAll())
    store, session = opened(disk)
    assert elements(session, OUT) == ["first", "second", "third"]
    store.close()


@pytest.mark.parametrize("nth", [1, 2])
def test_a_commit_that_fails_while_old_bytes_are_written_again_is_in_no_file(nth: int) -> None:
    """Written after the new ones, they failed it with its whole frame in the file, to be seen by readers until the
    disk let it be cut off."""
    disk = small(1)
    store, session = opened(disk, durability=Durability.PROCESS)
    session.commit([MAIN.append("first")])
    session.commit([MAIN.append("second")])
    close_file(session)
    disk.fail("pwrite", nth, errno.ENOSPC, path="main.zst")
    disk.fail("truncate", errno=errno.EIO, path="main.zst", persistent=True)
    with pytest.raises(WriteFailed):
        session.commit([MAIN.append("lost")], durability=POWER)
    with store.reader("s") as reader:
        assert [e.element for e in reader.read(MAIN)] == ["first", "second"]
    disk.heal()
    session.commit([MAIN.append("third")])
    assert elements(session) == ["first", "second", "third"]
    store.close()


def test_bytes_that_are_written_again_and_again_are_synced_at_last() -> None:
    """Two scopes take turns in one file. Each time its file was closed a log would have been written again from its
    beginning: 64 MB for two of one."""
    disk = small(1)
    store, session = opened(disk)
    session.commit([MAIN.append("m")])
    before = session.stats()["bytes_written"]
    text = random.Random(1)
    for _ in range(64):
        for where in (OUT, OTHER):
            session.commit([where.append(text.randbytes(10_000).hex())])
    written = session.stats()["bytes_written"] - before
    length = log_of(session, "op-1").end
    assert length > 600_000
    assert written < 2 * length * 16
    assert log_of(session, "op-1").durable > 0
    disk = disk.crash(LoseAll())
    store, session = opened(disk)
    assert len(elements(session, OUT)) > 20
    store.close()


def test_a_log_that_stays_open_is_never_asked_for_its_times() -> None:
    """A queried time stamp makes the next sync half as slow again: the file is told from others when it is closed."""

    class Watched(SimDisk):
        asked = 0

        def begin(self, op: str, path: str, *more: str) -> int | None:
            self.asked += op == "identity" and path.endswith(".zst")
            return super().begin(op, path, *more)

    disk = Watched()
    for _ in range(2):
        store, session = opened(disk)
        for number in range(20):
            session.commit([MAIN.append(number)])
            session.commit([OUT.append(number)])
        assert elements(session)[-1] == 19
        store.close()
    assert disk.asked == 0
    store, session = opened(disk)
    for _ in range(3):
        close_file(session)
        session.commit([MAIN.append("again")])
    assert disk.asked == 4  # once to remember, then once an opening
    store.close()


# --- somebody else ----------------------------------------------------------------------------------


def _replaced(log: Path) -> None:
    shutil.copy(log, log.with_name("other"))
    log.with_name("other").rename(log)


def _removed(log: Path) -> None:
    log.unlink()


def _became_a_link(log: Path) -> None:
    elsewhere = log.with_name("elsewhere")
    log.rename(elsewhere)
    log.symlink_to(elsewhere)


@pytest.mark.damages
@pytest.mark.parametrize("scope", ["", "op-1"])
@pytest.mark.parametrize("change", [_replaced, _removed])
def test_a_file_that_was_replaced_while_it_was_closed_fences_the_writer(
    change: Callable[[Path], None], scope: str, store_path: Path
) -> None:
    store = Store.open(store_path, clock=ManualClock())
    session = store.session("s")
    session.commit([MAIN.append("one")])
    session.commit([OUT.append("one")])
    close_file(session, scope)
    path = Path(log_of(session, scope).path)
    change(path)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(HandleFenced, match="by somebody else"):
        session.commit([OUT.append("lost")]) if scope else session.commit([MAIN.append("lost")])
    with pytest.raises(HandleFenced):
        session.commit([MAIN.append("lost")])
    session.close(force=True)
    assert (path.read_bytes() if path.exists() else None) == before
    store.close()


def test_a_link_in_place_of_the_file_is_not_followed(store_path: Path) -> None:
    store = Store.open(store_path, clock=ManualClock())
    session = store.session("s")
    session.commit([MAIN.append("one")])
    close_file(session)
    path = Path(log_of(session).path)
    _became_a_link(path)
    before = path.read_bytes()
    with pytest.raises(WriteFailed, match="could not be opened again"):
        session.commit([MAIN.append("lost")])
    assert path.read_bytes() == before
    path.unlink()
    path.with_name("elsewhere").rename(path)
    session.commit([MAIN.append("two")])
    assert elements(session) == ["one", "two"]
    store.close()


@pytest.mark.damages
def test_a_file_that_was_appended_to_while_it_was_closed_fences_the_writer(store_path: Path) -> None:
    store = Store.open(store_path, clock=ManualClock())
    session = store.session("s")
    session.commit([MAIN.append("one")])
    close_file(session)
    path = Path(log_of(session).path)
    with path.open("ab") as file:
        file.write(b"theirs")
    before = path.read_bytes()
    with pytest.raises(HandleFenced, match="bytes long"):
        session.commit([MAIN.append("lost")])
    session.close(force=True)
    assert path.read_bytes() == before
    store.close()


# --- out of descriptors -----------------------------------------------------------------------------


@pytest.mark.fault(21, rig="R")
def test_a_host_that_takes_all_descriptors_costs_logs_their_files_and_no_commit(store_path: Path) -> None:
    """The process's limit is reached by the application's own files: logs are closed and the call is tried again."""

    def work() -> str:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 150, hard))
        fs = real(100_000)  # this limit is no help
        with Store.open(store_path, fs=fs, clock=ManualClock()) as store:
            sessions = [store.session(f"s{number}") for number in range(30)]
            for number, session in enumerate(sessions):
                session.commit([MAIN.append([number, 0])])
            with ExitStack() as host:
                with suppress(OSError):
                    while True:
                        host.callback(os.close, os.open("/dev/null", os.O_RDONLY))
                for number, session in enumerate(sessions):
                    session.commit([MAIN.append([number, 1])])
                    session.commit([OUT.append([number, 1])])  # born: its first file, and a directory's sync
                    session.flush(POWER)
                assert fs.pool.evictions > 0
                more = store.session("one more")
                more.commit([MAIN.append(1)])
                with store.reader("s1") as reader:
                    assert [e.element for e in reader.read(MAIN)] == [[1, 0], [1, 1]]
            for number, session in enumerate(sessions):
                assert elements(session) == [[number, 0], [number, 1]]
                assert elements(session, OUT) == [[number, 1]]
        return "done"

    with child(work) as answer:
        assert answer == "done"


@pytest.mark.fault(21, rig="S")
def test_a_file_that_cannot_be_opened_again_fails_the_call_and_nothing_else() -> None:
    disk = small(1)
    store, session = opened(disk)
    session.commit([MAIN.append("one")])
    session.append(MAIN, "staged")
    close_file(session)
    disk.fail("open", errno=errno.EMFILE, path="main.zst", persistent=True)
    with pytest.raises(WriteFailed, match="could not be opened again"):
        session.commit([MAIN.append("lost")])
    with pytest.raises(ReadFailed, match="could not be opened again"):
        session.read(MAIN)
    with pytest.raises(WriteFailed):
        session.flush()
    disk.heal()
    session.commit([MAIN.append("two")])
    assert elements(session) == ["one", "staged", "two"]
    store.close()


@pytest.mark.fault(21, rig="S")
def test_a_synced_log_that_cannot_be_opened_again_is_closed_without_its_closing_frame() -> None:
    """Nothing is lost, so that there is nothing to raise."""
    disk = small(1)
    store, session = opened(disk)
    session.commit([MAIN.append("one")])
    close_file(session)
    disk.fail("open", errno=errno.EMFILE, path="main.zst", persistent=True)
    session.close()
    disk.heal()
    session = store.session("s")
    assert not session.recovery.clean and not session.recovery.torn
    assert elements(session) == ["one"]
    close_file(session)
    session.commit([MAIN.append("two")])
    close_file(session)
    session.close()  # opened again for it
    with store.session("s") as session:
        assert session.recovery.clean
    store.close()


def test_a_file_whose_identity_the_disk_will_not_tell_stays_open() -> None:
    disk = small(1)
    store, session = opened(disk)
    session.commit([MAIN.append("one")])
    disk.fail("identity", path="main.zst")
    assert not log_of(session).view.handle.evict()
    session.commit([MAIN.append("two")])
    close_file(session)
    assert elements(session) == ["one", "two"]
    store.close()
