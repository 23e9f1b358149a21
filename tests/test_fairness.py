"""Everybody gets through: readers and barriers beside busy writers, re-entry, and a flusher in trouble."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from fuzz.simdisk import SimDisk, SimFile
from scopelog import (
    HandleClosed,
    InvalidInput,
    Json,
    ManualClock,
    Session,
    Store,
    SystemClock,
    WriteFailed,
    ephemeral,
    list_of,
    value,
)
from tests.hooks import HookedFileSystem

MAIN: Final = list_of("chat", "messages")
TITLE: Final = value("chat", "title")
SCOPE: Final = ephemeral("op-1")
OUT: Final = SCOPE.list_of("op", "out")
PATIENCE: Final = 30.0  # seconds until a hang is called one; no test takes part of it when all is well


class Turnstile:
    """Holds the first sync of main until all are queued, and from sync ``latest`` on waits for ``let_in``.

    Who is let in by then lets it pass at once; who is starved by the writers never comes, as each sync of theirs
    waits for it in vain.
    """

    def __init__(self, fs: HookedFileSystem, latest: int, expected: int) -> None:
        self.held, self.go = threading.Event(), threading.Event()
        self.starved = False
        self._let_in = threading.Semaphore(0)
        self._missing = expected
        self._latest = latest
        self._syncs = 0
        fs.hook = self

    def __call__(self, operation: str, path: str) -> None:
        if operation != "sync" or "main.zst" not in path:
            return
        self._syncs += 1
        if self._syncs == 1:
            self.held.set()
            assert self.go.wait(PATIENCE)
        while self._syncs >= self._latest and self._missing and not self.starved:
            self.starved = not self._let_in.acquire(timeout=PATIENCE)
            self._missing -= 1

    def done(self) -> None:
        self._let_in.release()


def until(session: Session, condition: Callable[[Any], bool]) -> None:
    """Wait for something about the writer that is only changed under its lock."""
    writer = session._writer
    pause = threading.Event()
    while True:
        with writer._lock:
            if condition(writer):
                return
        pause.wait(0.001)


def started(*calls: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(4 * PATIENCE)
        assert not thread.is_alive(), "it hangs"


@pytest.mark.parametrize("call", ["get", "read", "scan"])
def test_readers_get_through_while_others_commit_in_loops(call: str, store_path: Path) -> None:
    """A reader waited for a moment without a leader and without a commit pending. With six threads committing in a
    loop there was none: one get waited for ten seconds, while 58,861 commits went by."""
    fs = HookedFileSystem()
    with Store.open(store_path, fs=fs, clock=ManualClock()) as store, store.session("s") as session:
        session.commit([TITLE.set("title"), MAIN.append("first")])
        calls: dict[str, Callable[[], object]] = {
            "get": lambda: session.get(TITLE),
            "read": lambda: session.read(MAIN, limit=1),
            "scan": lambda: session.scan("chat"),
        }
        turnstile = Turnstile(fs, latest=4, expected=3)
        answers: list[object] = []

        def reader() -> None:
            answers.append(calls[call]())
            turnstile.done()

        def committer() -> None:
            for n in range(20):
                session.commit([MAIN.append(n)])

        leader = started(lambda: session.commit([MAIN.append("leader")]))
        assert turnstile.held.wait(PATIENCE)
        readers = started(reader, reader, reader)
        until(session, lambda writer: writer._waiting == 3)
        committers = started(*[committer] * 4)
        until(session, lambda writer: len(writer._main.tickets) == 4)
        turnstile.go.set()
        joined(leader + readers + committers)
        assert not turnstile.starved and answers == [calls[call]()] * 3


def test_a_barrier_gets_through_while_others_retire_in_loops(store_path: Path) -> None:
    """flush waited while any scope was being retired, not for those admitted before it: four threads that appended
    and retired in a loop let no flush through in seven seconds."""
    fs = HookedFileSystem()
    with Store.open(store_path, fs=fs, clock=ManualClock()) as store, store.session("s") as session:
        session.commit([MAIN.append("first")])
        session.append(MAIN, "staged")
        session.append(OUT, 0)
        turnstile = Turnstile(fs, latest=8, expected=1)

        def barrier() -> None:
            session.flush()
            turnstile.done()

        def life(number: int) -> None:
            scope = ephemeral(f"op-{number}")
            for n in range(20):
                session.append(scope.list_of("op", "out"), n)
                session.commit([scope.retire(), MAIN.append(n)])

        leader = started(lambda: session.commit([SCOPE.retire()]))
        assert turnstile.held.wait(PATIENCE)
        barriers = started(barrier)
        until(session, lambda writer: writer._waiting == 1)
        lives = started(*[lambda n=n: life(n) for n in range(2, 6)])
        until(session, lambda writer: len(writer._main.tickets) == 4)
        turnstile.go.set()
        joined(leader + barriers + lives)
        assert not turnstile.starved
        assert session.scopes() == [] and len(session.read(MAIN)) == 2 + 4 * 20


# --- re-entry ---------------------------------------------------------------------------------------------------------


def reentering(session: Session) -> dict[str, Callable[[], object]]:
    """Calls that would wait for the very call they are made from."""
    return {
        "commit": lambda: session.commit([MAIN.append("nested")]),
        "flush": session.flush,
        "close": session.close,
    }


@pytest.mark.parametrize("call", ["commit", "flush", "close", "get", "read", "scan"])
def test_a_signal_handler_that_calls_the_session_is_refused(call: str, store_path: Path) -> None:
    """The usual handler of SIGTERM flushes and closes. The interpreter runs it in the main thread, which may be the
    very one that is in a sync: its flush waited for itself, and the process hung."""
    fs = HookedFileSystem()
    store = Store.open(store_path, fs=fs, clock=ManualClock())
    session = store.session("s")
    session.commit([TITLE.set("title"), MAIN.append(0)])
    calls = reentering(session) | {
        "get": lambda: session.get(TITLE),
        "read": lambda: session.read(MAIN),
        "scan": lambda: session.scan("chat"),
    }
    refused: list[InvalidInput] = []

    def handler(operation: str, path: str) -> None:
        if operation == "sync" and not refused:
            with pytest.raises(InvalidInput, match="signal handler") as caught:
                calls[call]()
            refused.append(caught.value)
            session.append(MAIN, "from the handler")  # staging waits for nobody

    fs.hook = handler
    joined(started(lambda: session.commit([MAIN.append(1)])))
    assert refused and "flag" in refused[0].remedy
    session.commit([MAIN.append(2)])
    assert [e.element for e in session.read(MAIN)] == [0, 1, "from the handler", 2]
    session.close()
    with store.session("s") as again:
        assert [e.element for e in again.read(MAIN)] == [0, 1, "from the handler", 2]


@pytest.mark.parametrize("call", ["commit", "flush", "close", "append"])
@pytest.mark.parametrize("by", ["flush", "read", "window"])
def test_a_coalescer_that_calls_the_session_is_refused(by: str, call: str) -> None:
    """A coalescer runs inside a flush or a read, in the thread that leads or holds the session's lock."""
    clock = ManualClock()
    store = Store.open("/store", fs=SimDisk(), clock=clock)
    session = store.session("s")
    refused: list[BaseException] = []
    calls = reentering(session) | {"append": lambda: session.append(MAIN, "nested")}

    def join(run: Sequence[Json]) -> Iterator[tuple[Json, int]]:
        try:
            calls[call]()
        except InvalidInput as error:
            refused.append(error)
        yield "".join(str(part) for part in run), len(run)

    target = SCOPE.list_of("op", "text", coalescer=join)
    session.append(target, "a")
    session.append(target, "b")
    way: dict[str, Callable[[], object]] = {
        "flush": session.flush,
        "read": lambda: session.read(target),
        "window": lambda: clock.advance(1),
    }
    joined(started(way[by]))
    staging_is_free = call == "append" and by != "read"  # outside the lock it waits for nobody
    assert bool(refused) != staging_is_free
    assert [e.element for e in session.read(target)] == ["ab"]
    session.commit([MAIN.append("after")])
    assert [e.element for e in session.read(MAIN)] == ["nested"] * staging_is_free + ["after"]
    session.close()


# --- the flusher ------------------------------------------------------------------------------------------------------


def test_a_flusher_that_could_not_be_started_is_started_by_a_later_window(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of threads, append raised a raw RuntimeError after the element was admitted; the flusher counted
    as started, so that no window of the store was ever flushed again, and close failed to join it."""
    fs = HookedFileSystem()
    flushed = threading.Event()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    def hook(operation: str, path: str) -> None:
        if operation == "pwrite" and threading.current_thread().name == "scopelog-flusher":
            flushed.set()

    with Store.open(store_path, fs=fs, window_ms=1) as store:
        session = store.session("s")
        session.commit([MAIN.append(0)])
        fs.hook = hook
        monkeypatch.setattr(threading.Thread, "start", refuse)
        session.append(MAIN, 1)
        assert not flushed.is_set()
        session.append(MAIN, 2)
        assert flushed.wait(PATIENCE)
        session.flush()
        assert [e.element for e in session.read(MAIN)] == [0, 1, 2]
        session.close()


@pytest.mark.fault(28, rig="S")
def test_an_alarm_survives_a_callback_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Want of memory in the one thread that keeps all deadlines killed it: silently, and for the whole store."""
    monkeypatch.setattr("scopelog_engine.clock._AFTER_FAILURE", 0.0)
    called = threading.Event()
    calls: list[int] = []

    def callback() -> float | None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise MemoryError
        called.set()
        return None

    alarm = SystemClock().alarm(callback)
    alarm.set(0.0)
    assert called.wait(PATIENCE) and calls == [0, 1]
    alarm.close()


@pytest.mark.fault(28, rig="S")
def test_an_error_in_the_flusher_is_raised_at_the_next_call_and_spares_other_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error before a session's flush had begun was raised nowhere, and the deadlines of all others were lost."""
    clock = ManualClock()
    store = Store.open("/store", fs=SimDisk(), clock=clock)
    ill, well = store.session("ill"), store.session("well")
    for session in (ill, well):
        session.append(MAIN, 1)
    flush_due = ill._writer.flush_due

    def fail(now: float) -> float | None:
        monkeypatch.setattr(ill._writer, "flush_due", flush_due)
        raise MemoryError

    monkeypatch.setattr(ill._writer, "flush_due", fail)
    clock.advance(0.1)
    assert well.stats()["pending_elements"] == 0
    with pytest.raises(WriteFailed, match="MemoryError"):
        ill.append(MAIN, "not taken")
    clock.advance(5)
    assert ill.stats()["pending_elements"] == 0 and [e.element for e in ill.read(MAIN)] == [1]


def test_a_session_opened_while_its_store_is_closed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was registered in a closed store: its windows were never flushed, nothing was raised, and nobody closed it."""
    disk = SimDisk()
    store = Store.open("/store", fs=disk, clock=ManualClock())
    try_lock = SimFile.try_lock

    def close_meanwhile(file: SimFile) -> bool:
        monkeypatch.setattr(SimFile, "try_lock", try_lock)
        joined(started(store.close))
        return try_lock(file)

    monkeypatch.setattr(SimFile, "try_lock", close_meanwhile)
    with pytest.raises(HandleClosed):
        store.session("s")
    with Store.open("/store", fs=disk, clock=ManualClock()) as again:
        again.session("s").commit([MAIN.append("the lock was let go of")])


def test_a_sidecar_that_cannot_be_written_refuses_nothing_to_main_at_the_bound() -> None:
    """At the bound the caller flushes every scope, and the error of any was raised: every few appends to a healthy
    main were refused for a sidecar's sake, though main's own flush had made room."""
    disk = SimDisk()
    store = Store.open("/store", fs=disk, clock=ManualClock(), pending_bytes=4096)
    session = store.session("s")
    session.commit([MAIN.append("first")])
    session.commit([OUT.append(0)])
    for _ in range(8):
        session.append(OUT, "x" * 100)
    disk.fail("pwrite", errno=errno.EIO, path=".scope.zst", persistent=True)
    for n in range(40):
        session.append(MAIN, n)
    with pytest.raises(WriteFailed, match=r"scope\.zst"):
        session.append(OUT, "the scope's own failure is its own")
    disk.heal()
    store.close()
    with Store.open("/store", fs=disk, clock=ManualClock()) as again, again.session("s") as session:
        assert [e.element for e in session.read(MAIN)] == ["first", *range(40)]
        assert [e.element for e in session.read(OUT)] == [0, *["x" * 100] * 8]
