"""Ctrl-C while a thread waits for the session's lock or for another thread's outcome: both waits are interruptible."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pytest

from fuzz.simdisk import SimDisk
from scopelog import Json, ManualClock, Session, Store, list_of, value
from tests.hooks import HookedFileSystem

MAIN: Final = list_of("chat", "messages")
TITLE: Final = value("chat", "title")
PATIENCE: Final = 30.0  # seconds until a hang is called one


class InterruptedLock:
    """The session's lock; its ``nth`` acquisition is interrupted, before it is granted or just ``after``."""

    def __init__(self, lock: Any, nth: int, after: bool) -> None:
        self._lock = lock
        self._left = nth
        self._after = after
        self._is_owned = lock._is_owned
        self._release_save = lock._release_save
        self._acquire_restore = lock._acquire_restore
        self.release = lock.release

    @property
    def interrupted(self) -> bool:
        return self._left <= 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._left -= 1
        if self._left == 0:
            if self._after:
                self._lock.acquire()
            raise KeyboardInterrupt
        return bool(self._lock.acquire(blocking, timeout))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def elements(session: Session) -> list[Json]:
    return [element.element for element in session.read(MAIN)]


@pytest.mark.fault(35, rig="S")
def test_an_interrupted_acquisition_of_the_lock_stores_nothing_twice() -> None:
    """A leader that had stored its batch was interrupted while it took the lock to settle it: the batch stayed asked
    for and was written again, with the same sequences. There the chain ended, and every later commit, acknowledged
    at POWER, was cut as a torn tail at the next open."""
    for nth in range(1, 100):
        disk = SimDisk()
        session = Store.open("/store", fs=disk, clock=ManualClock()).session("s")
        session.commit([MAIN.append("first")])
        session.append(MAIN, "staged")
        writer = session._writer
        lock = InterruptedLock(writer._lock, nth, after=False)
        writer._lock, writer._changed = lock, threading.Condition(lock)  # type: ignore[assignment,arg-type]
        expected: list[Json] = ["first", "staged", "second"]
        try:
            session.commit([MAIN.append("maybe")])
            expected.insert(2, "maybe")
        except KeyboardInterrupt:
            pass
        if not lock.interrupted:
            assert nth > 3
            return
        session.commit([MAIN.append("second")])
        shown = elements(session)
        with Store.open("/store", fs=disk.copy(), clock=ManualClock()) as store, store.session("s") as again:
            assert elements(again) == shown and again.recovery.torn_bytes == 0, f"acquisition {nth}"
        assert [e for e in shown if e != "maybe" or "maybe" in expected] == expected, f"acquisition {nth}"
        assert shown.count("maybe") <= 1
    raise AssertionError("no end of acquisitions")


@contextmanager
def leader_in_a_sync(fs: HookedFileSystem, session: Session) -> Iterator[None]:
    """Another thread leads and is in main's sync until the end of the block."""
    held, go = threading.Event(), threading.Event()

    def hook(operation: str, path: str) -> None:
        if operation == "sync" and not held.is_set():
            held.set()
            assert go.wait(PATIENCE)

    fs.hook = hook
    leader = threading.Thread(target=lambda: session.commit([MAIN.append("leader")]), daemon=True)
    leader.start()
    assert held.wait(PATIENCE)
    try:
        yield
    finally:
        go.set()
        leader.join(PATIENCE)
        assert not leader.is_alive()


@pytest.mark.fault(35, rig="S")
@pytest.mark.parametrize("moment", ["before", "released", "waiting"])
@pytest.mark.parametrize("call", ["commit", "flush", "get", "read", "close"])
def test_an_interrupted_wait_for_the_leader(call: str, moment: str, store_path: Path) -> None:
    """Interrupted just after the wait had let go of the lock, the thread went on without it: a raw RuntimeError,
    "cannot release un-acquired lock", came out of commit instead of KeyboardInterrupt."""
    fs = HookedFileSystem()
    store = Store.open(store_path, fs=fs, clock=ManualClock())
    session = store.session("s")
    session.commit([MAIN.append("first"), TITLE.set("title")])
    calls: dict[str, Any] = {
        "commit": lambda: session.commit([MAIN.append("withdrawn")]),
        "flush": session.flush,
        "get": lambda: session.get(TITLE),
        "read": lambda: session.read(MAIN),
        "close": session.close,
    }
    condition = session._writer._changed
    release, wait = condition._release_save, condition.wait  # type: ignore[attr-defined]

    def interrupt(timeout: float | None = None) -> bool:
        if moment == "released":
            condition._release_save = interrupt_release  # type: ignore[attr-defined]
            return wait(timeout)
        if moment == "waiting":
            wait(0.001)
        raise KeyboardInterrupt

    def interrupt_release() -> None:
        release()
        raise KeyboardInterrupt

    with leader_in_a_sync(fs, session):
        if call == "flush":
            session.append(MAIN, "staged")
        me = threading.get_ident()
        condition.wait = lambda timeout=None: (  # type: ignore[method-assign]
            interrupt(timeout) if threading.get_ident() == me else wait(timeout)
        )
        with pytest.raises(KeyboardInterrupt):
            calls[call]()
        condition.wait, condition._release_save = wait, release  # type: ignore[method-assign,attr-defined]
    expected = ["first", "leader"] + ["staged"] * (call == "flush")
    assert session._writer._waiting == session._writer._readers == 0
    session.commit([MAIN.append("last")])
    assert elements(session) == [*expected, "last"]
    session.close()
    with store.session("s") as again:
        assert elements(again) == [*expected, "last"]
    store.close()
