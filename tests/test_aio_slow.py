"""Slow disks under loops: who is held by them, who writes instead, and who must not wait for them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from scopelog import Durability, WriteFailed, ephemeral
from scopelog_engine.looping import GRACE
from scopelog_engine.pace import QUICK, Pace

from .aio_rig import MAIN, OUT, SCOPE, TITLE, AioRig
from .aio_time import FOREVER
from .test_aio_loops import TICK, WINDOW, iterate


def test_a_disk_becomes_slow_and_quick_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is measured to be slow the loop is held by trials alone, which come less and less often; one that is
    quick brings the writes back to the loop."""
    with AioRig(monkeypatch) as rig:

        async def commits(count: int) -> None:
            for n in range(count):
                await rig.session.commit([TITLE.set(n)])
                await asyncio.sleep(0.05)

        rig.run(commits(20))
        assert rig.time.held == 0.0
        rig.disk.sync_seconds = 0.02
        rig.run(commits(20))
        assert rig.time.held <= 5 * 0.02
        before = rig.time.held
        rig.run(commits(800))  # most of a minute
        trials = round((rig.time.held - before) / 0.02)
        assert 4 <= trials <= 12, "they back off"
        rig.disk.sync_seconds = 0.0001
        rig.run(commits(1300))
        before, threads = rig.time.held, rig.writers.submitted
        rig.run(commits(50))
        assert rig.writers.submitted == threads and rig.time.held - before == pytest.approx(50 * 0.0001)


def test_pace_backs_off_up_to_a_minute_and_starts_anew() -> None:
    pace = Pace()
    assert pace.quick and pace.inline(0.0)
    now = 0.0
    trials: list[float] = []
    pace.measured(1.0, now)
    assert not pace.quick
    while now < 500:
        if pace.inline(now):
            trials.append(now)
            pace.measured(1.0, now)
        now += 0.01
    gaps = [after - before for before, after in pairwise(trials)]
    assert gaps[0] == pytest.approx(0.2, abs=0.02) and gaps[-1] == pytest.approx(60, abs=0.02)
    assert all(after >= before - 0.02 for before, after in pairwise(gaps))
    assert not pace.inline(now)
    now += 60
    assert pace.inline(now) and not pace.inline(now), "one trial at a time"
    pace.measured(QUICK / 2, now + 1)
    assert pace.quick


def test_one_slow_sync_does_not_make_a_disk_slow() -> None:
    """Every disk has one now and then."""
    pace = Pace()
    for _ in range(100):
        for _ in range(15):
            pace.measured(0.0002, 0.0)
        pace.measured(0.01, 0.0)
        assert pace.quick


@pytest.mark.fault(28, rig="S")
def test_a_loop_is_not_held_by_a_disk_that_is_known_to_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """By no call: not by a new session's first element either, before which its epoch is noted and synced."""
    with AioRig(monkeypatch) as rig:
        rig.slow(0.5)
        rig.disk.seconds_of = lambda path: 0.5

        async def work() -> None:
            other = rig.adopted((await rig.store.session("other")).sync)
            await other.append(OUT, 1)
            third = rig.adopted((await rig.store.session("third")).sync)
            await third.commit([OUT.append(1)])
            await third.commit([OUT.append(2)], durability=Durability.POWER)
            for session in (rig.session, other, third):
                await session.commit([MAIN.append(1), TITLE.set(1)])
                await session.append(OUT, 2)
                await session.flush(Durability.POWER)
                await session.read(MAIN)
                await session.read(OUT)
                await session.get(TITLE)
                await session.scan("chat")
                await session.commit([SCOPE.retire()])
                async with await rig.store.reader(session.id) as reader:
                    await reader.read(MAIN)
                await session.close()
            await rig.store.check()
            await rig.store.delete_session("other")

        rig.run(work())
        assert rig.time.held == 0.0


@pytest.mark.fault(28, rig="S")
@pytest.mark.parametrize("in_loop", [False, True], ids=["threads", "loop"])
def test_a_slow_sync_of_one_session_does_not_delay_the_windows_of_others(
    in_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file may hang for seconds (a busy NFS server, a failing disk): once that was met, the others' elements wait
    for one window. A session whose sync hangs holds one worker, however many windows it opens meanwhile."""
    with AioRig(monkeypatch, scope_durability=Durability.POWER) as rig:
        others = [rig.open(f"other-{n}") for n in range(3)]
        rig.disk.seconds_of = lambda path: 5.0 if "/s.ses" in path else 0.0
        rig.disk.diary.clear()
        if in_loop:
            rig.sync_store._store.pace.quick = False
            rig.sync_store._store.pace._next_trial = FOREVER

        async def append(session: Any, n: int) -> None:
            if in_loop:
                await session.append(OUT, n)
            else:
                session.sync.append(OUT, n)

        def wait(seconds: float) -> None:
            rig.idle(seconds) if in_loop else rig.time.sleep(seconds)

        def slow_append(n: int) -> None:
            rig.run(append(rig.session, n)) if in_loop else rig.session.sync.append(OUT, n)

        slow_append(-1)
        wait(6)  # it is met
        for n in range(4):
            slow_append(n)
            wait(0.05)
            began = rig.time.now
            for other in others:
                rig.run(append(other, n)) if in_loop else other.sync.append(OUT, n)
            wait(1.0)
            written = [when for op, path, _, when in rig.disk.diary if op == "pwrite" and "/other" in path]
            assert len(written) >= 3 * (n + 1), "a window was not stored"
            assert max(written) <= began + WINDOW + GRACE + 10 * TICK
        assert rig.writers.submitted <= 3 * 4 * 4
        wait(30)
        rig.disk.seconds_of = lambda path: 0.0
        rig.check_sound()


@pytest.mark.fault(28, rig="S")
def test_a_failed_window_is_told_to_the_next_call_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a window that a loop stores: its failure is raised once, and space coming back heals it."""
    with AioRig(monkeypatch) as rig:
        rig.disk.fail("pwrite", path=".scope.zst", persistent=True)

        async def work() -> None:
            await rig.session.append(OUT, 1)
            await asyncio.sleep(WINDOW + TICK)
            with pytest.raises(WriteFailed):
                await rig.session.append(OUT, "not taken")
            rig.disk.heal()
            await asyncio.sleep(1)
            assert rig.stored()["op-1"] == ["x0", 1]

        rig.run(work())
        rig.check_sound()


def test_many_loops_and_scopes_in_one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two loops of one thread, run in turn, each with windows and commits pending when the other runs."""
    with AioRig(monkeypatch) as rig:
        other = rig.new_loop()
        for n in range(20):
            loop = (rig.loop, other)[n % 2]
            loop.create_task(rig.session.commit([MAIN.append(n)]))
            loop.create_task(rig.session.append(OUT, n))
            loop.create_task(rig.session.commit([ephemeral(f"s{n % 3}").list_of("op", "out").append(n)]))
            iterate(loop, n % 4)
        for loop in (rig.loop, other):
            loop.run_until_complete(asyncio.sleep(1))
        assert sorted(rig.stored()[""][1:]) == [*range(20)]
        assert sorted(rig.stored()["op-1"][1:]) == [*range(20)]
        rig.check_sound()
        assert other.errors == []
