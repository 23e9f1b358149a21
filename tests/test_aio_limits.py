"""Commits inside timeouts and task groups: a cancellation is neither lost nor left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scopelog import Receipt

from .aio_rig import MAIN, AioRig


async def _timeout(work: Awaitable[Any], seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        return await work


async def _wait_for(work: Awaitable[Any], seconds: float) -> Any:
    return await asyncio.wait_for(work, seconds)


async def _nested(work: Awaitable[Any], seconds: float) -> Any:
    async with asyncio.timeout(seconds), asyncio.timeout(seconds):
        return await work


@pytest.mark.parametrize("limit", [_timeout, _wait_for, _nested])
@pytest.mark.parametrize("milliseconds", [0, 1, 5, 9, 9.999, 10, 10.001, 15])
def test_a_limit_that_meets_a_commit_leaves_no_cancellation_behind(
    milliseconds: float, limit: Callable[[Awaitable[Any], float], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the commit or the limit is first, a later await is not cancelled by it: the commit's last moment was
    where a cancellation that was taken in came too late and struck what followed."""
    with AioRig(monkeypatch) as rig:
        rig.slow(0.01)
        told: list[str] = []

        async def work() -> None:
            try:
                await limit(rig.session.commit([MAIN.append("maybe")]), milliseconds / 1000)
                told.append("stored")
            except TimeoutError:
                told.append("too late")
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0
            for _ in range(5):
                await asyncio.sleep(0.01)

        rig.run(work())
        assert rig.stored()[""].count("maybe") == told.count("stored") == 2 - len(told) - told.count("too late")
        rig.check_sound()


def test_a_limit_around_more_than_a_commit_strikes_at_the_next_await(monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch) as rig:
        rig.slow(0.01)
        receipts: list[Receipt] = []

        async def work() -> None:
            async with asyncio.timeout(0.005):
                receipts.append(await rig.session.commit([MAIN.append("stored")]))
                await asyncio.sleep(60)

        with pytest.raises(TimeoutError):
            rig.run(work())
        assert receipts and rig.stored()[""] == ["m0", "stored"]
        rig.check_sound()


def test_a_cancelled_task_keeps_the_message_it_was_cancelled_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries of structured concurrency tell their own cancellations from others by it."""
    with AioRig(monkeypatch) as rig:
        rig.slow(0.01)

        async def work() -> None:
            await rig.session.commit([MAIN.append("stored")])
            await asyncio.sleep(60)

        async def cancel() -> None:
            task = asyncio.ensure_future(work())
            await asyncio.sleep(0.005)
            task.cancel("by the test")
            with pytest.raises(asyncio.CancelledError, match="by the test"):
                await task

        rig.run(cancel())
        assert rig.stored()[""] == ["m0", "stored"]


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_a_failing_sibling_cancels_a_task_group_that_is_committing(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each child's commit is stored or cancelled, and the group ends with the sibling's error alone."""
    with AioRig(monkeypatch) as rig:
        if slow:
            rig.slow(0.01)
        stored: list[int] = []

        async def child(n: int) -> None:
            for m in range(100):
                await rig.session.commit([MAIN.append([n, m])])
                stored.append(n)

        async def fail() -> None:
            await asyncio.sleep(0.025 if slow else 0)
            raise ValueError

        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                for n in range(3):
                    tasks.create_task(child(n))
                tasks.create_task(fail())
                await rig.session.commit([MAIN.append("body")])
                await asyncio.sleep(60)

        async def work() -> None:
            with pytest.raises(ExceptionGroup) as caught:
                await group()
            assert [type(error) for error in caught.value.exceptions] == [ValueError]
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0
            await asyncio.sleep(0.1)

        rig.run(work())
        assert len(rig.stored()[""]) == 1 + 1 + len(stored)
        rig.check_sound()
