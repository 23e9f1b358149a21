"""Threads: group commit, order, and calls from everywhere at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scopelog import HandleClosed, Session, Store, WriteFailed, ephemeral, list_of, value
from tests.hooks import HookedFileSystem

MAIN = list_of("chat", "messages")
OUT = ephemeral("op-1").list_of("chat", "out")


def run(*calls: Callable[[], object]) -> list[BaseException | None]:
    """Run each call in a thread of its own; what each raised."""
    raised: list[BaseException | None] = [None] * len(calls)

    def guarded(number: int) -> None:
        try:
            calls[number]()
        except Exception as error:  # noqa: BLE001 - handed to the test
            raised[number] = error

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return raised


class Gate:
    """Stops the first sync of the main log until enough commits are queued behind it."""

    def __init__(self, fs: HookedFileSystem) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self._armed = True
        fs.hook = self

    def __call__(self, operation: str, path: str) -> None:
        if self._armed and operation == "sync" and "main.zst" in path:
            self._armed = False
            self.reached.set()
            assert self.open.wait(120)


def queued(session: object, count: int) -> None:
    """Wait until ``count`` commits are waiting; they are counted under the lock, so nothing is slept for."""
    writer = session._writer  # type: ignore[attr-defined]
    reached = threading.Event()
    while not reached.is_set():
        with writer._lock:
            if len(writer._main.tickets) >= count:
                reached.set()
                continue
        reached.wait(0.001)


def test_commits_that_wait_for_a_sync_share_the_next_one(store_path: Path) -> None:
    fs = HookedFileSystem()
    with Store.open(store_path, fs=fs) as store, store.session("s") as session:
        session.commit([MAIN.append("first")])
        before = session.stats()
        gate = Gate(fs)
        leader = threading.Thread(target=lambda: session.commit([MAIN.append("leader")]))
        leader.start()
        assert gate.reached.wait(120)
        followers = [
            threading.Thread(target=lambda n=n: session.commit([MAIN.append(n), value("chat", str(n)).set(n)]))
            for n in range(10)
        ]
        for thread in followers:
            thread.start()
        queued(session, 10)
        gate.open.set()
        for thread in (leader, *followers):
            thread.join(120)
        after = session.stats()
        assert after["syncs"] - before["syncs"] == 2
        assert after["frames"] - before["frames"] == 2
        elements = [e.element for e in session.read(MAIN)]
        assert elements[:2] == ["first", "leader"] and sorted(elements[2:]) == list(range(10))


def test_a_group_that_fails_is_withdrawn_whole_and_each_of_it_is_told(store_path: Path) -> None:
    fs = HookedFileSystem()
    with Store.open(store_path, fs=fs) as store, store.session("s") as session:
        session.commit([MAIN.append("first")])
        gate = Gate(fs)
        leader = threading.Thread(target=lambda: session.commit([MAIN.append("leader")]))
        leader.start()
        assert gate.reached.wait(120)
        raised: list[BaseException | None] = []

        def followers() -> None:
            raised.extend(run(*(lambda n=n: session.commit([MAIN.append(n)]) for n in range(5))))

        crowd = threading.Thread(target=followers)
        crowd.start()
        queued(session, 5)

        def fail(operation: str, path: str) -> None:
            if operation == "pwrite" and "main.zst" in path:
                fs.hook = lambda operation, path: None
                raise OSError(28, "No space left on device")

        fs.hook = fail
        gate.open.set()
        leader.join(120)
        crowd.join(120)
        assert [type(error) for error in raised] == [WriteFailed] * 5
        assert len({id(error) for error in raised}) == 5, "each caller gets an error object of its own"
        assert [e.element for e in session.read(MAIN)] == ["first", "leader"]
        session.commit([MAIN.append("next")])
    with Store.open(store_path) as store, store.session("s") as session:
        assert [e.element for e in session.read(MAIN)] == ["first", "leader", "next"]


def test_many_threads_append_commit_flush_and_read(store_path: Path) -> None:
    with Store.open(store_path, window_ms=1, pending_bytes=8192) as store, store.session("s") as session:
        sequences: list[list[int]] = [[] for _ in range(6)]

        def work(number: int) -> None:
            mine = ephemeral(f"op-{number % 3}").list_of("chat", f"list-{number}")
            for n in range(200):
                sequences[number].append(session.append(mine, [number, n]))
                if n % 17 == 0:
                    sequences[number].append(session.commit([MAIN.append([number, n])]).last)
                if n % 23 == 0:
                    session.flush()
                if n % 29 == 0:
                    assert [e.element for e in session.read(mine, order="desc", limit=1)] == [[number, n]]

        assert run(*(lambda n=n: work(n) for n in range(6))) == [None] * 6
        every = sorted(sequence for mine in sequences for sequence in mine)
        assert len(set(every)) == len(every), "no sequence is handed out twice"
        assert all(mine == sorted(mine) for mine in sequences)
        for number in range(6):
            mine = ephemeral(f"op-{number % 3}").list_of("chat", f"list-{number}")
            assert [e.element for e in session.read(mine)] == [[number, n] for n in range(200)]


def test_threads_that_retire_and_reuse_scopes(store_path: Path) -> None:
    with Store.open(store_path, window_ms=1) as store, store.session("s") as session:

        def stream() -> None:
            for n in range(300):
                session.append(OUT, n)

        def retire() -> None:
            for n in range(30):
                session.commit([ephemeral("op-1").retire(), MAIN.append(n)])

        assert run(stream, retire, stream) == [None] * 3
        session.commit([ephemeral("op-1").retire()])
        assert session.read(OUT) == []
        assert [e.element for e in session.read(MAIN)] == list(range(30))
    assert [p.name for p in store_path.glob("*/*.scope.zst")] == []


def test_closing_while_others_write_loses_nothing_that_was_acknowledged(store_path: Path) -> None:
    with Store.open(store_path, window_ms=1) as store:
        session = store.session("s")
        acknowledged: list[int] = []

        def commit() -> None:
            for n in range(10_000):
                try:
                    session.commit([MAIN.append(n)])
                except HandleClosed:
                    return
                acknowledged.append(n)

        def close() -> None:
            while len(acknowledged) < 20:
                session.flush()
            session.close()

        assert run(commit, close) == [None, None]
        with store.session("s") as again:
            assert [e.element for e in again.read(MAIN)][: len(acknowledged)] == acknowledged


def test_many_sessions_at_once(store_path: Path) -> None:
    with Store.open(store_path, window_ms=1) as store:

        def work(number: int) -> None:
            with store.session(f"s{number}") as session:
                for n in range(50):
                    session.append(MAIN, n)
                session.flush()
                assert len(session.read(MAIN)) == 50

        assert run(*(lambda n=n: work(n) for n in range(16))) == [None] * 16
        assert store.sessions() == sorted(f"s{n}" for n in range(16))


@pytest.mark.parametrize("call", ["commit", "append", "flush", "read", "get", "scan", "scopes"])
def test_a_closed_session_refuses_every_call(store_path: Path, call: str) -> None:
    with Store.open(store_path) as store:
        session = store.session("s")
        session.commit([MAIN.append(1)])
        session.close()
        session.close()
        calls: dict[str, Callable[[], object]] = {
            "commit": lambda: session.commit([MAIN.append(1)]),
            "append": lambda: session.append(MAIN, 1),
            "flush": session.flush,
            "read": lambda: session.read(MAIN),
            "get": lambda: session.get(value("a", "b")),
            "scan": lambda: session.scan("a"),
            "scopes": session.scopes,
        }
        with pytest.raises(HandleClosed, match="open it again"):
            calls[call]()


def test_an_append_is_stored_or_refused_while_the_session_is_closed(store_path: Path) -> None:
    for _ in range(10):
        with Store.open(store_path, window_ms=60_000) as store:
            session = store.session("s")
            start = len(session.read(OUT))
            taken: list[int] = []
            begun = threading.Event()

            def stream(session: Session = session, taken: list[int] = taken, begun: threading.Event = begun) -> None:
                for n in range(100_000):
                    try:
                        session.append(OUT, n)
                    except HandleClosed:
                        return
                    taken.append(n)
                    begun.set()

            def close(session: Session = session, begun: threading.Event = begun) -> None:
                assert begun.wait(120)
                session.close()

            assert run(stream, close) == [None, None]
            with store.session("s") as again:
                assert [e.element for e in again.read(OUT)][start:] == taken
