"""Regressions of asyncio: each test tells its story."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from scopelog import ManualClock, list_of, value
from scopelog.aio import AsyncStore

LINES: Final = list_of("a", "b")


def test_reads_take_no_trial_of_a_slow_disk(tmp_path: Path) -> None:
    """A disk that was slow is tried inline now and then, to see whether it is quick again. Reads, which measure
    nothing, took those trials too: among many reads the disk was hardly ever measured, and all went on in threads."""

    async def scenario() -> None:
        clock = ManualClock()
        store = await AsyncStore.open(tmp_path / "s", clock=clock)
        session = await store.session("c")
        await session.commit([LINES.append(1)])
        pace = store.sync._store.pace
        while pace.quick:
            pace.measured(1.0, clock.monotonic())
        clock.advance(100.0)
        assert await session.get(value("no", "such")) is None
        assert await session.scan("no") == []
        await session.info()
        assert pace.inline(clock.monotonic()), "the trial was taken"
        await store.close()

    asyncio.run(scenario())
