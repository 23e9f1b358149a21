"""L4: the share of one core that a hundred streams cost, each of fifty deltas a second, in real time.

Every stream is a task that wakes up for each of its deltas, as one that reads from a provider would. What the waking
alone costs is measured in turn with the contestants and taken off; both figures are shown. A stream appends its deltas
to a list, or hands them to a response of a lane: there the reducer takes them, and what changes is stored as ops.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from scopelog import EphemeralScope, List, ephemeral
from scopelog.aio import AsyncSession, AsyncStore
from scopelog.clients.messages.aio import AsyncLane, AsyncResponse

from .frames import opening, text_delta
from .results import Row, Skipped
from .run import Run
from .workloads import join_text

STREAMS: Final = 100
RATE: Final = 50  # deltas a second, each
_TARGET: Final = 10  # % of a core
_REDUCED_TARGET: Final = 25

Append = Callable[[int, str], Awaitable[object]]
Make = Callable[[Path, int], AbstractAsyncContextManager[Append]]


def _list(stream: int, joined: bool) -> List[EphemeralScope]:
    return ephemeral(f"op-{stream}").list_of("pi", "pending", coalescer=join_text if joined else None)


@asynccontextmanager
async def _scopes(where: Path, count: int, *, joined: bool = True) -> AsyncIterator[Append]:
    """All streams are scopes of one session."""
    async with await AsyncStore.open(where / "store") as store, await store.session("bench") as session:
        lists = [_list(stream, joined) for stream in range(count)]
        for target in lists:
            await session.append(target, {"d": ""})
        await session.flush()
        yield lambda stream, text: session.append(lists[stream], {"d": text})
        await session.flush()


@asynccontextmanager
async def _sessions(where: Path, count: int) -> AsyncIterator[Append]:
    """Each stream is a scope of a session of its own."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(await AsyncStore.open(where / "store"))
        sessions = [await stack.enter_async_context(await store.session(f"s-{n}")) for n in range(count)]
        lists = [_list(stream, True) for stream in range(count)]
        for session, target in zip(sessions, lists, strict=True):
            await session.append(target, {"d": ""})
            await session.flush()
        yield lambda stream, text: sessions[stream].append(lists[stream], {"d": text})
        for session in sessions:
            await session.flush()


async def _response(session: AsyncSession, stream: int) -> AsyncResponse:
    """A response that has begun, in a lane of its own."""
    operation = await AsyncLane(session, f"lane-{stream}").begin(f"op-{stream}")
    return operation.response("r")


def _taking(responses: list[AsyncResponse]) -> Append:
    for response in responses:
        for frame in opening(0):
            response.take(frame)

    async def append(stream: int, text: str) -> None:
        responses[stream].take(text_delta(text))

    return append


def _feeding(responses: list[AsyncResponse]) -> Append:
    """Events as providers' adapters give them: each with the message so far, one object that grows."""
    partials: list[Any] = [opening(0)[0]["partial"] for _ in responses]
    for response, partial_message in zip(responses, partials, strict=True):
        response.feed({"type": "start", "partial": partial_message})
        partial_message["content"].append({"type": "text", "text": ""})
        response.feed({"type": "text_start", "contentIndex": 0, "partial": partial_message})

    async def append(stream: int, text: str) -> None:
        partials[stream]["content"][0]["text"] += text
        responses[stream].feed({**text_delta(text), "partial": partials[stream]})

    return append


@asynccontextmanager
async def _lanes(
    where: Path, count: int, *, through: Callable[[list[AsyncResponse]], Append] = _taking
) -> AsyncIterator[Append]:
    """All streams are responses in lanes of one session."""
    async with await AsyncStore.open(where / "store") as store, await store.session("bench") as session:
        append = through([await _response(session, stream) for stream in range(count)])
        await session.flush()
        yield append
        await session.flush()


@asynccontextmanager
async def _lane_sessions(where: Path, count: int) -> AsyncIterator[Append]:
    """Each stream is a response in the lane of a session of its own."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(await AsyncStore.open(where / "store"))
        sessions = [await stack.enter_async_context(await store.session(f"s-{n}")) for n in range(count)]
        append = _taking([await _response(session, stream) for stream, session in enumerate(sessions)])
        for session in sessions:
            await session.flush()
        yield append
        for session in sessions:
            await session.flush()


@asynccontextmanager
async def _sqlite(where: Path, _count: int) -> AsyncIterator[Append]:
    """A row a delta, each a transaction that is not synced."""
    with closing(sqlite3.connect(where / "deltas.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("CREATE TABLE deltas (id INTEGER PRIMARY KEY, stream INTEGER, body TEXT)")

        async def append(stream: int, text: str) -> None:
            db.execute("INSERT INTO deltas (stream, body) VALUES (?, ?)", (stream, json.dumps({"d": text})))

        yield append


@asynccontextmanager
async def _jsonl(where: Path, _count: int) -> AsyncIterator[Append]:
    """A line a delta, each one write."""
    with (where / "deltas.jsonl").open("ab", buffering=0) as file:

        async def append(stream: int, text: str) -> None:
            file.write((json.dumps({"op": stream, "d": text}) + "\n").encode())

        yield append


@asynccontextmanager
async def _pacing(_where: Path, _count: int) -> AsyncIterator[Append]:
    async def append(_stream: int, _text: str) -> None:
        return

    yield append


PACING: Final = "pacing"
JOINED: Final = "100 scopes of a session"
SESSIONS: Final = "100 sessions of a scope"
PLAIN: Final = "100 scopes, no coalescer"
LANES: Final = "reducer, 100 lanes of a session"
LANE_SESSIONS: Final = "reducer, 100 sessions of a lane"
FED: Final = "reducer, 100 lanes fed events"
CONTESTANTS: Final[dict[str, Make]] = {
    PACING: _pacing,
    JOINED: _scopes,
    SESSIONS: _sessions,
    PLAIN: partial(_scopes, joined=False),
    LANES: _lanes,
    LANE_SESSIONS: _lane_sessions,
    FED: partial(_lanes, through=_feeding),
    "sqlite NORMAL, rows": _sqlite,
    "JSONL write()": _jsonl,
}


async def share(make: Make, where: Path, count: int, seconds: float) -> float:
    """Processor time of the whole process, all its threads, a second of the streams. Not over wall time: on a busy
    machine streams lag behind, and their work would seem less."""
    loop = asyncio.get_running_loop()

    async with make(where, count) as append:
        began = loop.time()

        async def stream(number: int) -> None:
            start = began + number / (count * RATE)  # spread over the first interval
            for n in range(int(seconds * RATE)):
                await asyncio.sleep(start + n / RATE - loop.time())
                await append(number, f" word{n * 7919 % 9973}")

        used = time.process_time()
        await asyncio.gather(*(stream(number) for number in range(count)))
        return (time.process_time() - used) / seconds


def streaming(run: Run) -> list[Row | Skipped]:
    """L4: the rows."""
    count, seconds = run.size(STREAMS, 5), run.size(30, 1) / 10
    shares: dict[str, list[float]] = {}
    for _ in range(run.size(3, 1)):
        for name, make in CONTESTANTS.items():
            with run.directory() as where:
                shares.setdefault(name, []).append(asyncio.run(share(make, where, count, seconds)))
    found = {name: median(seen) * 100 for name, seen in shares.items()}
    pacing = found[PACING]
    rows: list[Row | Skipped] = []
    targets = {JOINED: _TARGET, SESSIONS: _TARGET, PLAIN: _TARGET, LANES: _REDUCED_TARGET}
    targets |= {LANE_SESSIONS: _REDUCED_TARGET, FED: _REDUCED_TARGET}
    for name, target in targets.items():
        ours = found[name] - pacing
        measure = f"L4 CPU share, {name}"
        note = f"{found[name]:.1f} % with the tasks' waking, which alone takes {pacing:.1f} %"
        rows.append(Row(measure, ours, "", 0, "% of a core", target, note=note))
        rows += [
            Row(measure, ours, rival, found[rival] - pacing, "% of a core")
            for rival in ("sqlite NORMAL, rows", "JSONL write()")
        ]
    return rows
