"""What running the actors of a session in every order has found; each test tells the story of one fault."""

from __future__ import annotations

import contextlib
import threading
from typing import Final

import pytest

from fuzz.simdisk import SimDisk
from scopelog import Durability, HandleClosed, ManualClock, Retired, Session, Store, ephemeral, list_of
from tests.test_interrupted_locks import InterruptedLock

MAIN: Final = list_of("chat", "messages")
SCOPE: Final = ephemeral("op-1")
OUT: Final = SCOPE.list_of("op", "out")


def opened(disk: SimDisk) -> Session:
    return Store.open("/store", fs=disk, clock=ManualClock()).session("s")


def interrupt(session: Session, nth: int) -> InterruptedLock:
    lock = InterruptedLock(session._writer._lock, nth, after=False)
    session._writer._lock, session._writer._changed = lock, threading.Condition(lock)  # type: ignore[assignment,arg-type]
    return lock


def test_an_interruption_is_raised_as_what_it_is_while_the_epoch_is_made_durable() -> None:
    """The first element of a session that was reopened needs the epoch on disk first. The session's lock is let go of
    for that sync; Ctrl-C while it was waited for again left the ``with`` block without it, and what the caller got was
    RuntimeError, "cannot release un-acquired lock": a program that goes on after any Exception never saw its Ctrl-C."""
    disk = SimDisk()
    first = opened(disk)
    first.commit([MAIN.append("before")])
    first.close()
    for nth in range(1, 20):
        session = opened(disk.copy())
        lock = interrupt(session, nth)
        with contextlib.suppress(KeyboardInterrupt):
            session.append(MAIN, "maybe")
        if not lock.interrupted:
            assert nth > 2
            return
        session.append(MAIN, "behind")
        assert [e.element for e in session.read(MAIN)] in (["before", "behind"], ["before", "maybe", "behind"])
        session.close()
    raise AssertionError("the call takes the lock again and again")


def test_a_life_that_begins_while_its_id_is_retired_waits_for_that() -> None:
    """A scope that did not exist was retired; an element under its id that came before the outcome did not wait. Its
    life began above the retirement, and its file was written before main was, so that a follower was told of the new
    life first and of the retirement, which ends the life before it, afterwards: who drops what a retirement ends lost
    elements that are alive."""
    disk = SimDisk()
    session = opened(disk)
    session.commit([MAIN.append("first")])
    writer = session._writer
    follower = Store.open("/store", fs=disk, clock=ManualClock()).follow("s")
    follower.poll()
    stored = threading.Event()
    begun = threading.Event()
    original = writer._store

    def slowly(work: object) -> object:
        begun.set()
        assert stored.wait(30)
        return original(work)  # type: ignore[arg-type]

    writer._store = slowly  # type: ignore[method-assign,assignment]
    retiring = threading.Thread(target=lambda: session.commit([SCOPE.retire()]))
    retiring.start()
    assert begun.wait(30)
    waits = not writer.append(OUT.place, "alive", wait=False)
    stored.set()
    assert waits
    retiring.join(30)
    session.append(OUT, "alive")
    session.flush()
    told = [type(event).__name__ if not isinstance(event, Retired) else event.scope for event in follower.poll()]
    assert told == ["op-1", "Records"]
    assert [e.element for e in session.read(OUT)] == ["alive"]
    session.close()


def test_a_commit_that_meets_a_close_is_told_so() -> None:
    """A commit at PROCESS makes the epoch durable first, by a sync of the lock file without the session's lock. A close
    by another thread in between closes that file: the commit raised WriteFailed, "try again", of a disk on which
    nothing had failed."""
    disk = SimDisk()
    with opened(disk) as first:
        first.commit([MAIN.append("before")])
    session = Store.open("/store", fs=disk, clock=ManualClock(), durability=Durability.PROCESS).session("s")
    lock = session._writer._writer_lock
    original = lock.sync

    def meanwhile() -> None:
        closer = threading.Thread(target=session.close)
        closer.start()
        closer.join(30)
        original()

    lock.sync = meanwhile  # type: ignore[method-assign]
    with pytest.raises(HandleClosed):
        session.commit([MAIN.append("too late")])
    with opened(disk) as again:
        assert [e.element for e in again.read(MAIN)] == ["before"]
