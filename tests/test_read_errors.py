"""Reads that fail or stop short: never taken as an end of file; nothing is cut, and a healthy disk heals it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

from fuzz.simdisk import SimDisk
from scopelog import LogRecord, ManualClock, OpenFailed, ReadFailed, ScopelogError, Store, WriteFailed
from scopelog_engine.frame import Frame
from scopelog_engine.layout import KIND_CLOSE

from .stores import CHAT, DELTAS, MAIN, MESSAGES, SCOPE, TITLE, frames_of, records

STORE = "/store"
MAIN_LOG = f"{STORE}/{MAIN}"


@pytest.fixture(params=["closed", "killed"])
def disk(request: pytest.FixtureRequest) -> SimDisk:
    """A disk with a session of several stretches and one living scope."""
    disk = SimDisk()
    store = Store.open(STORE, fs=disk, clock=ManualClock())
    session = store.session(CHAT)
    session.commit([TITLE.set("a title")])
    session.commit([DELTAS.append("d0")])
    for number in range(60):
        session.append(MESSAGES, [number, f"{number * 7919:x}" * 900])
        session.flush()
    if request.param == "closed":
        session.close()
    return disk.copy()


def run(disk: SimDisk) -> tuple[list[LogRecord], list[object]]:
    """Open for write, read all, as a reader too; nothing is written."""
    with Store.open(STORE, fs=disk, clock=ManualClock(), create=False) as store:
        session = store.session(CHAT)
        answers = [session.read(MESSAGES), session.read(DELTAS), session.get(TITLE), session.recovery.torn]
        return records(store), answers


def failing_reads(
    disk: SimDisk, path: str, act: Callable[[SimDisk], object], persistent: bool = False
) -> Iterator[tuple[SimDisk, ScopelogError]]:
    """What becomes of ``act`` when its reads of a path fail: the first forty in turn, then every eleventh."""
    for nth in (*range(1, 41), *range(41, 2000, 11)):
        tried = disk.copy()
        tried.fail("pread", nth, errno.EIO, path, persistent)
        try:
            act(tried)
        except ScopelogError as error:
            failure = error
        else:
            return
        assert failure.cause and failure.remedy
        yield tried, failure
    raise AssertionError("no run came through without the failing read")


def chains(disk: SimDisk) -> dict[str, bytes]:
    """Every log up to the end of its last frame, closing frames left out, and every other file but the lock."""
    found = {path: data for path, data in disk.snapshot().items() if not path.endswith("LOCK")}
    for path, data in found.items():
        if path.endswith(".zst"):
            found[path] = data[: [frame.end for frame in frames_of(data) if frame.kind != KIND_CLOSE][-1]]
    return found


@pytest.mark.fault(20, rig="S")
def test_every_read_of_main_failing_once(disk: SimDisk) -> None:
    before, sound = chains(disk), run(disk.copy())
    count = 0
    for tried, error in failing_reads(disk, MAIN_LOG, run):
        count += 1
        assert type(error) in (ReadFailed, OpenFailed, WriteFailed), f"read {count}: {error!r}"
        assert chains(tried) == before, f"read {count}"
        left = tried.copy()
        assert run(left) == sound, f"read {count}: the same answers once the disk reads again"
    assert count >= 5


@pytest.mark.fault(20, rig="S")
def test_every_read_of_the_stores_own_file_failing_once(disk: SimDisk) -> None:
    before = chains(disk)
    errors = {type(error) for _, error in failing_reads(disk, "store.zst", run)}
    assert errors and errors <= {ReadFailed, OpenFailed}
    assert chains(disk) == before


@pytest.mark.fault(20, rig="S")
@pytest.mark.parametrize("retired", [False, True])
@pytest.mark.fault(20, rig="S")
def test_sidecar_that_cannot_be_read_never_touches_main(retired: bool, disk: SimDisk) -> None:
    """It stays where it is and is reported; whether its scope is alive is not guessed; a healthy disk heals it."""
    [sidecar] = [path for path in disk.snapshot() if path.endswith(".scope.zst")]
    content = disk.read_file(sidecar)
    disk.fail("pread", 1, errno.EIO, sidecar, persistent=True)
    with Store.open(STORE, fs=disk, clock=ManualClock()) as store:
        with store.session(CHAT) as session:
            assert [unread.path for unread in session.recovery.unreadable] == [sidecar]
            assert not session.recovery.set_aside and session.recovery
            assert len(session.read(MESSAGES)) == 60
            for call in (lambda: session.read(DELTAS), lambda: session.commit([DELTAS.append("d1")])):
                with pytest.raises(ReadFailed):
                    call()
            session.commit([MESSAGES.append("after"), *([SCOPE.retire()] if retired else [])])
        assert disk.read_file(sidecar) == content
        disk.heal()
        with store.session(CHAT) as session:
            assert not session.recovery.unreadable
            assert [element.element for element in session.read(DELTAS)] == ([] if retired else ["d0"])
            session.commit([DELTAS.append("d1")])
            assert session.read(MESSAGES)[-1].element == "after"
        with store.session(CHAT) as session:
            assert [element.element for element in session.read(DELTAS)] == (["d1"] if retired else ["d0", "d1"])


@pytest.mark.fault(20, rig="S")
@pytest.mark.parametrize("short", [1, 7, 100, 4096])
@pytest.mark.fault(20, rig="S")
def test_short_reads_are_continued(short: int, disk: SimDisk) -> None:
    sound = run(disk.copy())
    tried = disk.copy()
    for nth in range(1, 400):
        tried.fail("pread", nth, short=short)
    assert run(tried) == sound
    assert chains(tried) == chains(disk)


@pytest.mark.fault(20, rig="S")
def test_failed_read_of_a_torn_tail_does_not_cut_it(disk: SimDisk) -> None:
    """Recovery that cannot read what it is about to cut leaves it where it is."""
    whole = disk.read_file(MAIN_LOG)
    end: Frame = frames_of(whole)[-1]
    torn = whole[: end.offset + end.length // 2] + b"\x01" * 300_000
    disk.write_file(MAIN_LOG, torn)
    for tried, error in failing_reads(disk, MAIN_LOG, run):
        assert type(error) in (ReadFailed, OpenFailed)
        live = tried.snapshot()
        kept = [data for path, data in live.items() if path.endswith(".torn")]
        assert live[MAIN_LOG] == torn or kept == [torn[end.offset :]]
        left = tried.copy()
        run(left)
        assert torn[end.offset :] in left.snapshot().values()


@pytest.mark.fault(20, rig="S")
def test_check_reports_what_it_cannot_read(disk: SimDisk) -> None:
    def check(tried: SimDisk) -> None:
        with Store.open(STORE, fs=tried, clock=ManualClock()) as store:
            findings = [finding for finding in store.check() if finding.severity != "note"]
            if findings:
                assert {finding.reason for finding in findings} == {"read"}
                raise ReadFailed("found", "none")

    sidecar = next(path for path in disk.snapshot() if path.endswith(".scope.zst"))
    for path in (MAIN_LOG, sidecar):
        errors = {type(error) for _, error in failing_reads(disk, path, check, persistent=True)}
        assert errors == {ReadFailed}
