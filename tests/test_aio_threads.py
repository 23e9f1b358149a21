"""Several loops and plain threads on one session, for real: nobody hangs, and what was acknowledged is stored once."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

import pytest

from fuzz.simdisk import SimDisk
from scopelog import HandleClosed, InvalidInput, Json, ManualClock, Session, Store, ephemeral, list_of
from scopelog.aio import AsyncSession, AsyncStore

MAIN: Final = list_of("chat", "messages")
ROUNDS: Final = 60
SEEDS: Final = (1, 2, 3)


@pytest.fixture(autouse=True)
def eager_switches() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


class Book:
    """What one worker wrote: elements that must be stored, and those that must not. Elements are [worker, number]."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = Random(f"{name} {seed}")
        self.stored: list[Json] = []
        self.never: list[Json] = []
        self.staged: list[Json] = []
        self.sequences: list[int] = []
        self._next = 0

    def next(self) -> Json:
        self._next += 1
        return [self.name, self._next]


def thread_work(session: Session, book: Book) -> None:
    mine = ephemeral(book.name).list_of("op", "out")
    for _ in range(ROUNDS):
        element = book.next()
        match book.rng.randrange(6):
            case 0 | 1:
                book.sequences.append(session.commit([MAIN.append(element)]).last)
                book.stored.append(element)
            case 2 | 3:
                book.sequences.append(session.append(mine, element))
                book.staged.append(element)
            case 4:
                session.flush()
            case _:
                assert [e.element for e in session.read(mine)] == book.staged


async def task_work(session: AsyncSession, book: Book) -> None:
    mine = ephemeral(book.name).list_of("op", "out")
    for _ in range(ROUNDS):
        element = book.next()
        match book.rng.randrange(9):
            case 0 | 1:
                book.sequences.append((await session.commit([MAIN.append(element)])).last)
                book.stored.append(element)
            case 2 | 3:
                book.sequences.append(await session.append(mine, element))
                book.staged.append(element)
            case 4:
                await session.flush()
            case 5:
                assert [e.element for e in await session.read(mine)] == book.staged
            case 6:
                commit = asyncio.ensure_future(session.commit([MAIN.append(element)]))
                for _ in range(book.rng.randrange(4)):
                    await asyncio.sleep(0)
                commit.cancel()
                (outcome,) = await asyncio.gather(commit, return_exceptions=True)
                if isinstance(outcome, asyncio.CancelledError):
                    book.never.append(element)
                else:
                    book.stored.append(element)
            case 7:
                book.sequences.append(session.sync.commit([MAIN.append(element)]).last)
                book.stored.append(element)
            case _:
                scope = ephemeral(f"{book.name}-{book.rng.randrange(3)}")
                await session.append(scope.list_of("op", "out"), element)
                await session.commit([scope.retire(), MAIN.append(element)])
                book.stored.append(element)


def everybody(*work: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def guarded(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(one,), daemon=True) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "it hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("quick", [True, False], ids=["inline", "in threads"])
@pytest.mark.parametrize("seed", SEEDS)
def test_loops_and_threads_on_one_session(seed: int, quick: bool) -> None:
    disk = SimDisk()
    store = Store.open("/store", fs=disk, window_ms=2, pending_bytes=8192)
    session = store.session("s")
    if not quick:
        store._store.pace.quick = False
        store._store.pace._next_trial = float("inf")
    books: list[Book] = []

    def book(name: str) -> Book:
        books.append(Book(name, seed))
        return books[-1]

    def loop(number: int, tasks: list[Book]) -> None:
        async def main() -> None:
            face = AsyncSession(session)
            await asyncio.gather(*(task_work(face, one) for one in tasks))

        asyncio.run(main(), debug=number == 0)

    in_loops = [[book(f"task-{n}-{m}") for m in range(3)] for n in range(2)]
    in_threads = [book(f"thread-{n}") for n in range(2)]
    everybody(
        *(lambda n=n: loop(n, in_loops[n]) for n in range(2)),
        *(lambda one=one: thread_work(session, one) for one in in_threads),
    )
    session.flush()
    every = [sequence for one in books for sequence in one.sequences]
    assert len(every) == len({*every}), "no sequence is handed out twice"
    assert all(one.sequences == sorted(one.sequences) for one in books)
    session.close()
    store.close()
    with Store.open("/store", fs=disk, clock=ManualClock()) as again, again.session("s") as found:
        stored = [e.element for e in found.read(MAIN)]
        for one in books:
            assert [element for element in stored if element[0] == one.name] == one.stored, f"seed {seed}"
            assert [e.element for e in found.read(ephemeral(one.name).list_of("op", "out"))] == one.staged
        assert not any(element in stored for one in books for element in one.never)


@pytest.mark.parametrize("seed", SEEDS)
def test_closing_while_loops_write_loses_nothing_that_was_acknowledged(seed: int) -> None:
    disk = SimDisk()
    store = Store.open("/store", fs=disk, window_ms=1)
    session = store.session("s")
    acknowledged: list[Json] = []
    enough = threading.Event()

    def loop(number: int) -> None:
        async def commits(face: AsyncSession, m: int) -> None:
            for n in range(10_000):
                try:
                    await face.commit([MAIN.append([number, m, n])])
                except HandleClosed:
                    return
                acknowledged.append([number, m, n])
                if len(acknowledged) > 100:
                    enough.set()

        async def main() -> None:
            face = AsyncSession(session)
            await asyncio.gather(*(commits(face, m) for m in range(4)))

        asyncio.run(main())

    def close() -> None:
        assert enough.wait(60)
        (session if seed % 2 else store).close()

    everybody(lambda: loop(1), lambda: loop(2), close)
    store.close()
    with Store.open("/store", fs=disk, clock=ManualClock()) as again, again.session("s") as found:
        stored = [e.element for e in found.read(MAIN)]
        assert sorted(stored) == sorted(acknowledged)


def test_a_store_is_opened_used_and_closed_by_several_loops_at_once() -> None:
    """Sessions of their own, through one store."""
    disk = SimDisk()
    store = Store.open("/store", fs=disk, window_ms=1)

    def loop(number: int) -> None:
        async def one(n: int) -> None:
            async with await AsyncStore(store).session(f"s-{number}-{n}") as session:
                for m in range(20):
                    await session.append(MAIN, m)
                await session.commit([MAIN.append("end")])
                async with await AsyncStore(store).reader(session.id) as reader:
                    assert len([record async for record in reader.records()]) == 21

        async def main() -> None:
            await asyncio.gather(*(one(n) for n in range(4)))

        asyncio.run(main())

    everybody(*(lambda n=n: loop(n) for n in range(3)))
    assert len(store.sessions()) == 12
    store.close()


def test_a_task_is_never_answered_on_another_thread() -> None:
    """Futures belong to their loop: with asyncio's debug mode on, a leader on another thread that touched one would be
    told. A plain thread leads here for a loop's tasks, and the loop for the thread's."""
    disk = SimDisk()
    store = Store.open("/store", fs=disk)
    session = store.session("s")
    stop = threading.Event()

    def commits() -> None:
        n = 0
        while not stop.is_set():
            session.commit([MAIN.append(["thread", n])])
            n += 1

    async def main() -> None:
        face = AsyncSession(session)
        me = threading.get_ident()
        for n in range(100):
            await asyncio.gather(*(face.commit([MAIN.append([m, n])]) for m in range(3)), face.read(MAIN, limit=1))
            assert threading.get_ident() == me
        stop.set()

    everybody(commits, lambda: asyncio.run(main(), debug=True))
    store.close()


def test_an_async_call_needs_a_loop_of_asyncio() -> None:
    store = Store.open("/store", fs=SimDisk(), clock=ManualClock())
    face = AsyncSession(store.session("s"))
    work = face.commit([MAIN.append(1)])
    with pytest.raises(RuntimeError, match="no running event loop"):
        work.send(None)
    with pytest.raises(InvalidInput):
        asyncio.run(face.commit([]))
    store.close()
