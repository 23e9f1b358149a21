"""Findings of a hostile review about handles: exit, close, locks, forks, readers and refused arguments.

Each test's docstring tells what went wrong once. What a session wrote wrongly is in test_regressions_bytes.py.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import scopelog_engine.recovery
from fuzz.simdisk import SimDisk, SimFile
from scopelog import (
    SESSION,
    Durability,
    HandleClosed,
    HandleFenced,
    HandleForked,
    InvalidInput,
    Json,
    ManualClock,
    ReadFailed,
    Session,
    Store,
    WriteFailed,
)
from scopelog_engine.layout import LOCK_FILE, MAX_SEQUENCE, scope_file_name

from .children import attempt, child
from .stores import CHAT, DELTAS, MAIN, MESSAGES, TITLE

STORE: Final = "/store"
MAIN_LOG: Final = f"{STORE}/{MAIN}"
DIRECTORY: Final = os.path.dirname(MAIN_LOG)


def opened(disk: SimDisk, **settings: Any) -> tuple[Store, Session]:
    store = Store.open(STORE, fs=disk, clock=ManualClock(), **settings)
    return store, store.session(CHAT)


def begun(disk: SimDisk, **settings: Any) -> tuple[Store, Session]:
    store, session = opened(disk, **settings)
    session.commit([MESSAGES.append(0), TITLE.set("title")])
    return store, session


def elements(session: Session) -> list[Json]:
    return [element.element for element in session.read(MESSAGES)]


# --- exit and close ---------------------------------------------------------------------------------------------------

EXIT: Final = """
import atexit, sys, threading

wait, told = threading.Condition.wait, []

def observed(condition, timeout=None):
    answer = wait(condition, timeout)
    if timeout is not None and threading.current_thread() is threading.main_thread():
        told.append(answer)
    return answer

threading.Condition.wait = observed
atexit.register(lambda: print("told" if all(told) else "the wait ran out"))  # before the import: runs after its own

from scopelog import Store, list_of

session = Store.open(sys.argv[1], window_ms=60_000).session("chat")
session.append(list_of("chat", "messages"), "staged")
"""


def test_the_end_of_the_interpreter_waits_for_the_flusher_and_not_for_its_limit(store_path: Path) -> None:
    """Every exit with something staged took the full five seconds: the wait did not count itself among those who want
    to be told, so that nobody told it."""
    run = [sys.executable, "-c", EXIT, str(store_path)]
    assert subprocess.run(run, check=True, timeout=120, capture_output=True, text=True).stdout == "told\n"
    with Store.open(store_path, create=False) as store, store.session(CHAT) as session:
        assert elements(session) == ["staged"]


def test_close_that_meets_a_fence_or_a_failing_read_lets_go_of_the_lock() -> None:
    """An error in close that was no DurabilityError came out of the loop over the logs: the others stayed open, the
    lock was held for the life of the process, and the next close returned silently."""
    for trouble in ("fence", "read"):
        disk = SimDisk()
        store, session = begun(disk)
        session.commit([MESSAGES.append("a" * 20_000)])
        session.commit([DELTAS.append("d0")])
        store, session = opened(disk := disk.copy())
        session.commit([MESSAGES.append(1)])
        if trouble == "fence":
            disk.write_file(MAIN_LOG, disk.read_file(MAIN_LOG) + b"\0")
        else:
            disk.fail("pread", path=MAIN, persistent=True)
        for _ in range(2):
            try:
                session.close()
            except (HandleFenced, ReadFailed):
                continue
        disk.heal()
        with store.session(CHAT) as again:
            assert elements(again) == [0, "a" * 20_000, 1], trouble


def test_close_again_after_an_interrupted_flush_stores_what_was_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in close's sync left a zombie: the next close, forced or not, returned at once and silently; what was
    staged was never stored, and the session was locked by ourselves."""
    disk = SimDisk()
    store, session = begun(disk)
    session.append(MESSAGES, 1)
    with monkeypatch.context() as patch:

        def interrupt(file: SimFile) -> None:
            raise KeyboardInterrupt

        patch.setattr(SimFile, "sync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.close()
    session.close()
    with store.session(CHAT) as again:
        assert elements(again) == [0, 1]


def test_a_store_that_is_dropped_without_close_lets_go_of_its_locks(store_path: Path) -> None:
    """Descriptors were closed by nobody: the session stayed locked by our own process, by a handle that was gone."""
    script = (
        "import gc, sys\n"
        "from scopelog import Store, value\n"
        "def use():\n"
        "    Store.open(sys.argv[1]).session('chat').commit([value('chat', 'title').set(1)])\n"
        "use(); gc.collect(); use()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(store_path)], check=True, timeout=120)


# --- locks and names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", ["1" + "0" * 30, str(2**64 - 1), str(2**63), str(2**53), "-1", "1e300", "1.5", '"x"'])
def test_a_lock_file_with_an_absurd_epoch(epoch: str) -> None:
    """The epoch was believed: its number in the envelope was longer than any reader accepts, and commits that were
    acknowledged at POWER were cut as a torn tail at the next open."""
    disk = SimDisk()
    begun(disk)[0].close()
    disk.write_file(f"{DIRECTORY}/{LOCK_FILE}", b'{"pid":1,"since":"","epoch":%b}\n' % epoch.encode())
    for n in (1, 2):
        store, session = opened(disk)
        assert not session.recovery.torn and elements(session) == list(range(n))
        assert 1 < session.epoch < 2**41
        session.commit([MESSAGES.append(n)])
        store.close()


@pytest.mark.parametrize("first", [10**16 - 1, 2**53, MAX_SEQUENCE, MAX_SEQUENCE - 1, 2**53 - 2**24, 2**53 - 2**24 - 1])
def test_a_junk_file_with_the_name_of_a_sidecar_uses_up_no_sequences(first: int) -> None:
    """The sequence that the name spells counted as used, and a margin behind it: the session refused every write."""
    disk = SimDisk()
    begun(disk)[0].close()
    disk.write_file(f"{DIRECTORY}/{scope_file_name(first)}", b"junk")
    for n in (1, 2):
        store, session = opened(disk)
        session.commit([MESSAGES.append(n)])
        store.close()
    assert elements(opened(disk)[1]) == [0, 1, 2]


def test_check_creates_no_lock_file() -> None:
    """check of a session that was copied without its LOCK made one, though it promises to change nothing."""
    disk = SimDisk()
    begun(disk)
    disk = disk.copy()
    disk.unlink(f"{DIRECTORY}/{LOCK_FILE}")
    disk.write_file(MAIN_LOG, disk.read_file(MAIN_LOG)[:-1] + b"x")
    before = disk.snapshot()
    findings = Store.open(STORE, fs=disk, clock=ManualClock()).check()
    assert findings and disk.snapshot() == before


def test_a_fork_while_a_session_is_opened_does_not_keep_its_lock_alive(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the lock and the registration of the session nobody knew of the descriptor: a child forked there by
    another thread kept the flock after its parent had closed the session."""
    with Store.open(store_path, clock=ManualClock()) as store:
        with store.session(CHAT) as session:
            session.commit([MESSAGES.append(0)])
        recover = scopelog_engine.recovery.recover_main
        running: list[Any] = []

        def fork(*args: Any, **keywords: Any) -> Any:
            monkeypatch.undo()
            running.append(child(lambda: "alive"))
            assert running[0].__enter__() == "alive"
            return recover(*args, **keywords)

        monkeypatch.setattr("scopelog_engine.opening.recover_main", fork)
        store.session(CHAT).close()
        try:
            store.session(CHAT).close()
        finally:
            running[0].__exit__(None, None, None)


# --- readers ----------------------------------------------------------------------------------------------------------


def reader_calls(reader: Any) -> dict[str, Callable[[], object]]:
    return {
        "get": lambda: reader.get(TITLE),
        "read": lambda: reader.read(MESSAGES),
        "scan": lambda: reader.scan("chat"),
        "records": lambda: list(reader.records()),
        "scopes": reader.scopes,
        "durable_seq": reader.durable_seq,
        "stats": reader.stats,
        "refresh": reader.refresh,
    }


def test_a_closed_reader_refuses_every_call() -> None:
    """It answered: with defaults, with empty lists, with 0, or with a raw KeyError."""
    store, _ = begun(SimDisk())
    reader = store.reader(CHAT)
    reader.close()
    reader.close()
    for call in reader_calls(reader).values():
        with pytest.raises(HandleClosed):
            call()


def test_a_reader_that_came_through_fork_is_refused(store_path: Path) -> None:
    """The session and the store were refused in the child, a reader was not."""
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append(0)])
        with store.reader(CHAT) as reader:
            calls = reader_calls(reader).values()
            with child(lambda: " ".join(attempt(call) for call in calls)) as answers:
                assert answers.split() == [HandleForked.__name__] * len(calls)
            assert [e.element for e in reader.read(MESSAGES)] == [0]


@pytest.mark.parametrize("call", ["get", "read", "scan", "records"])
def test_a_reader_opened_between_a_write_and_its_roll_back_says_nothing_of_damage(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the frame for whole, the writer cut it off again, and the reader said CorruptLog, "restore the file from
    a copy", about a sound log: only who holds the lock may say torn or corrupt."""
    store, session = begun(SimDisk())
    readers: list[Any] = []

    def interrupt(file: SimFile) -> None:
        readers.append(store.reader(CHAT))
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "sync", interrupt)
        with pytest.raises(MemoryError):
            session.commit([TITLE.set("rolled back"), MESSAGES.append("rolled back")])
    with readers[0] as reader:
        reader_calls(reader)[call]()
        reader.refresh()
        assert reader.get(TITLE) == "title" and [e.element for e in reader.read(MESSAGES)] == [0]


# --- arguments and failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [2, 1, "POWER", True, 1.0], ids=repr)
def test_a_durability_that_is_no_member_is_refused(level: Any) -> None:
    """``commit(..., durability=2)`` returned without a sync: ints compare with the enum's members, and are none."""
    disk = SimDisk()
    store, session = begun(disk, durability=Durability.PROCESS)
    sequence = session.stats()["sequence"]
    calls: list[Callable[[], object]] = [
        lambda: session.commit([MESSAGES.append(1)], durability=level),
        lambda: session.flush(level),
        lambda: session.durable_seq(SESSION, level),
        lambda: store.reader(CHAT).durable_seq(SESSION, level),
        lambda: store.session("other", durability=level),
        lambda: Store.open(STORE, fs=disk, durability=level),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    assert session.stats()["sequence"] == sequence and elements(session) == [0]


def test_a_failure_that_has_healed_is_not_raised() -> None:
    """Space came back and the window was stored, and the next append was still refused with the failure of before."""
    disk, clock = SimDisk(), ManualClock()
    session = Store.open(STORE, fs=disk, clock=clock).session(CHAT)
    session.commit([MESSAGES.append(0)])
    disk.fail("pwrite", errno=errno.ENOSPC, path=MAIN, persistent=True)
    session.append(MESSAGES, 1)
    clock.advance(1)
    with pytest.raises(WriteFailed):
        session.append(MESSAGES, "not taken")
    clock.advance(20)
    disk.heal()
    clock.advance(20)
    assert session.stats()["pending_elements"] == 0
    session.append(MESSAGES, 2)
    session.flush()
    assert elements(session) == [0, 1, 2]
