"""L3: commits of asyncio tasks, and how long one takes on a loop that is never idle.

All contestants store the same records, in turns, on one event loop of one process. "Saturated": one task burns the
processor for a millisecond, lets the loop go round once, and burns again; so do the others with their commits.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from scopelog import list_of
from scopelog.aio import AsyncStore

from .latency import percentile, records_of
from .results import Row, Skipped
from .run import Run

TASKS: Final = (1, 16, 64)
_SMALL: Final = 60  # bytes a record
_USUAL: Final = 200
_SLICE: Final = 0.001  # seconds
_PATIENCE: Final = 10  # a contestant has so many times longer on the busy loop to end what it has begun
_WARM: Final = 1_500  # sqlite reuses its WAL from the first checkpoint on, after 1,000 pages
ONE_BY_ONE: Final = "sqlite FULL, one by one"
EXECUTOR: Final = "sqlite FULL, in an executor"
GROUPED: Final = "sqlite FULL, grouped by hand"
TURN: Final = "sleep(0): one turn of the loop"

Json = dict[str, Any]
Commit = Callable[[Json], Awaitable[object]]


# --- contestants ------------------------------------------------------------------------------------


@asynccontextmanager
async def _scopelog(where: Path) -> AsyncIterator[Commit]:
    target = list_of("chat", "messages")
    async with await AsyncStore.open(where / "store") as store, await store.session("bench") as session:
        yield lambda record: session.commit([target.append(record)])


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, body TEXT)")
    return db


def _insert(db: sqlite3.Connection, record: Json) -> None:
    db.execute("INSERT INTO records (body) VALUES (?)", (json.dumps(record),))


@asynccontextmanager
async def _one_by_one(where: Path) -> AsyncIterator[Commit]:
    """On the loop itself, which waits for every sync."""
    db = _connect(where / "one.db")

    async def commit(record: Json) -> None:
        _insert(db, record)

    yield commit
    db.close()


@asynccontextmanager
async def _executor(where: Path) -> AsyncIterator[Commit]:
    db = _connect(where / "executor.db")
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as executor:
        yield lambda record: loop.run_in_executor(executor, _insert, db, record)
    db.close()


@asynccontextmanager
async def _grouped(where: Path) -> AsyncIterator[Commit]:
    """What a careful program would do: all tasks that are ready share one transaction, made on the loop."""
    db = _connect(where / "grouped.db")
    loop = asyncio.get_running_loop()
    waiting: list[tuple[Json, asyncio.Future[None]]] = []

    def store() -> None:
        db.execute("BEGIN")
        db.executemany("INSERT INTO records (body) VALUES (?)", [(json.dumps(record),) for record, _ in waiting])
        db.execute("COMMIT")
        for _, waiter in waiting:
            waiter.set_result(None)
        waiting.clear()

    def commit(record: Json) -> Awaitable[None]:
        waiter = loop.create_future()
        waiting.append((record, waiter))
        if len(waiting) == 1:
            loop.call_soon(store)
        return waiter

    yield commit
    db.close()


@asynccontextmanager
async def _turn(_where: Path) -> AsyncIterator[Commit]:
    """Stores nothing: what any await costs on that loop."""
    yield lambda _record: asyncio.sleep(0)


Make = Callable[[Path], AbstractAsyncContextManager[Commit]]
CONTESTANTS: Final[dict[str, Make]] = {
    "scopelog": _scopelog,
    ONE_BY_ONE: _one_by_one,
    EXECUTOR: _executor,
    GROUPED: _grouped,
    TURN: _turn,
}


# --- the two measurements -----------------------------------------------------------------------------


async def throughput(commit: Commit, records: list[Json], tasks: int) -> float:
    """Commits a second, by so many tasks at once."""

    async def work(mine: list[Json]) -> None:
        for record in mine:
            await commit(record)

    started = time.perf_counter()
    await asyncio.gather(*(work(records[task::tasks]) for task in range(tasks)))
    return len(records) / (time.perf_counter() - started)


async def saturated(commit: Commit, records: list[Json], tasks: int, seconds: float) -> list[float]:
    """Seconds of each commit that was begun within ``seconds``, on a loop that is never idle."""
    clock = time.perf_counter
    taken: list[float] = []
    end = clock() + seconds
    working = tasks

    async def burn() -> None:
        while working and clock() < end + seconds * _PATIENCE:
            until = clock() + _SLICE
            while clock() < until:
                pass
            await asyncio.sleep(0)

    async def work(task: int) -> None:
        nonlocal working
        number = task
        while (begun := clock()) < end:
            await commit(records[number % len(records)])
            taken.append(clock() - begun)
            number += tasks
            await asyncio.sleep(0)  # a contestant that never waits would keep the loop to itself
        working -= 1

    await asyncio.gather(burn(), *(work(task) for task in range(tasks)))
    return taken


async def _warm(name: str, commit: Commit, records: list[Json], run: Run) -> None:
    count = run.size(_WARM if name.startswith("sqlite") else 100, 10)
    await throughput(commit, [records[n % len(records)] for n in range(count)], 1)


async def _rates(run: Run, where: Path, size: int) -> dict[tuple[str, int], float]:
    """Median commits a second, by contestant and number of tasks. The one by one kind has one task."""
    records = records_of(run.size(3_200, 128), size)
    few = records[: run.size(320, 64)]
    rates: dict[tuple[str, int], list[float]] = {}
    async with AsyncExitStack() as stack:
        commits = {
            name: await stack.enter_async_context(make(where)) for name, make in CONTESTANTS.items() if name != TURN
        }
        for name, commit in commits.items():
            await _warm(name, commit, records, run)
        for _ in range(run.size(15, 1)):
            for name, commit in commits.items():
                for tasks in TASKS if name == "scopelog" else (1,) if name == ONE_BY_ONE else (64,):
                    some = records if tasks == 64 and name != EXECUTOR else few
                    rates.setdefault((name, tasks), []).append(await throughput(commit, some, tasks))
    return {key: median(seen) for key, seen in rates.items()}


async def _latencies(run: Run, where: Path) -> dict[tuple[str, int], list[float]]:
    records = records_of(1_000, _USUAL)
    taken: dict[tuple[str, int], list[float]] = {}
    rounds = run.size(4, 1)
    seconds = run.size(500, 20) / 1000
    async with AsyncExitStack() as stack:
        commits = {name: await stack.enter_async_context(make(where)) for name, make in CONTESTANTS.items()}
        for name, commit in commits.items():
            await _warm(name, commit, records, run)
        for _ in range(rounds):
            for name, commit in commits.items():
                for tasks in TASKS:
                    taken.setdefault((name, tasks), []).extend(await saturated(commit, records, tasks, seconds))
    return taken


def concurrent(run: Run) -> list[Row | Skipped]:
    """L3: the rows."""
    rows: list[Row | Skipped] = []
    for size in (_SMALL, _USUAL):
        with run.directory() as where:
            rates = asyncio.run(_rates(run, where, size))
        note = f"records of {size} bytes"
        for tasks in reversed(TASKS):
            ours, theirs = rates["scopelog", tasks], rates[ONE_BY_ONE, 1]
            target = 25.0 if tasks == 64 else None
            rows.append(
                Row(f"L3 commits, {_tasks(tasks)}", ours, ONE_BY_ONE, theirs, "/s", target, at_least=True, note=note)
            )
        for rival in (EXECUTOR, GROUPED):
            rows.append(Row("L3 commits, 64 tasks", rates["scopelog", 64], rival, rates[rival, 64], "/s", note=note))
    with run.directory() as where:
        taken = asyncio.run(_latencies(run, where))
    for tasks in TASKS:
        for share, label, target in ((0.5, "p50", None), (0.99, "p99", 2.0)):
            ours = percentile(taken["scopelog", tasks], share) * 1e3
            measure = f"L3 commit {label}, {_tasks(tasks)}, saturated"
            rows.append(Row(measure, ours, "", 0, "ms", target))
            rows += [
                Row(measure, ours, rival, percentile(taken[rival, tasks], share) * 1e3, "ms")
                for rival in (ONE_BY_ONE, EXECUTOR, GROUPED, TURN)
            ]
    return rows


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"
