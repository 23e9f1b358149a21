"""Loops and what they leave to others: loops that end, that are held, and the windows that they keep."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from scopelog import Durability, Receipt
from scopelog_engine.looping import GRACE

from .aio_rig import MAIN, OTHER, OUT, SCOPE, TITLE, AioRig
from .aio_time import VirtualLoop

WINDOW: Final = 0.1
TICK: Final = 0.001


def end(loop: VirtualLoop) -> None:
    """Stop a loop at the end of its first iteration: what was admitted in it is not stored yet."""
    loop.call_soon(loop.stop)
    loop.run_forever()


def iterate(loop: VirtualLoop, count: int) -> None:
    for _ in range(count):
        end(loop)


# --- loops that end ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_a_commit_whose_loop_was_stopped_is_stored_by_the_flusher(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No later call is needed for that, and a second loop is not kept waiting."""
    with AioRig(monkeypatch) as rig:
        if slow:
            rig.slow()
        began = rig.time.now
        task = rig.loop.create_task(rig.session.commit([MAIN.append("stopped")]))
        end(rig.loop)
        assert rig.stored()[""] == ["m0"]
        second = rig.new_loop()
        second.run_until_complete(asyncio.sleep(1))
        assert rig.stored()[""] == ["m0", "stopped"]
        written = rig.disk.did("pwrite", "main.zst")[-1]
        assert written[0] == "scopelog-flusher" and written[1] <= began + WINDOW + GRACE + TICK
        assert isinstance(rig.run(asyncio.wait_for(task, 1)), Receipt), "its loop runs again: it is told"
        rig.check_sound()


@pytest.mark.parametrize("closed", [False, True], ids=["stopped", "closed"])
@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_a_window_whose_loop_has_ended_is_stored_in_time(
    slow: bool, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AioRig(monkeypatch) as rig:
        if slow:
            rig.slow()
        began = rig.time.now
        rig.run(rig.session.append(OUT, "staged"))
        if closed:
            rig.loop.close()
        rig.time.sleep(WINDOW - TICK)
        assert rig.stored()["op-1"] == ["x0"]
        rig.time.sleep(GRACE + 2 * TICK)
        assert rig.stored()["op-1"] == ["x0", "staged"]
        assert rig.disk.did("pwrite", ".scope.zst")[-1][1] <= began + WINDOW + GRACE + TICK


@pytest.mark.parametrize("closed", [False, True], ids=["stopped", "closed"])
def test_a_second_loop_keeps_its_own_windows(closed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first one has ended, with a window or two pending: at most the first deadline is the flusher's."""
    with AioRig(monkeypatch) as rig:
        rig.run(rig.session.append(MAIN, "first loop"))
        first = rig.loop
        rig.loop = rig.new_loop()
        if closed:
            first.close()

        async def work() -> None:
            await asyncio.sleep(0.01)
            for n in range(5):
                began = rig.time.now
                await rig.session.append(OUT, n)
                await asyncio.sleep(WINDOW + (GRACE if n == 0 else 0.0) + TICK)
                thread, when = rig.disk.did("pwrite", ".scope.zst")[-1]
                assert rig.stored()["op-1"] == ["x0", *range(n + 1)]
                if n > 0:
                    assert thread == "MainThread" and when <= began + WINDOW + TICK

        rig.run(work())
        assert rig.stored()[""] == ["m0", "first loop"]
        rig.check_sound()


ENDING: Final[dict[str, Callable[[AioRig], Any]]] = {
    "commit": lambda rig: rig.session.commit([MAIN.append("maybe")]),
    "commit beside a retirement": lambda rig: rig.session.commit([SCOPE.retire()]),
    "append": lambda rig: rig.session.append(OUT, "maybe"),
    "flush": lambda rig: rig.session.flush(Durability.POWER),
    "read": lambda rig: rig.session.read(OUT),
    "get": lambda rig: rig.session.get(TITLE),
    "scan": lambda rig: rig.session.scan("chat"),
    "close": lambda rig: rig.session.close(),
    "open": lambda rig: rig.store.session("other"),
}


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
@pytest.mark.parametrize("name", ENDING)
def test_a_loop_that_is_closed_at_any_iteration_leaves_the_session_to_others(
    name: str, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tasks that will never run again, and are thrown away. What they had in hand is stored or not, never half;
    a session that they opened is closed."""
    for moment in range(1, 60):
        with AioRig(monkeypatch) as rig:
            if slow:
                rig.slow()
            rig.sync.append(OUT, "x1")
            work = [
                rig.session.commit([MAIN.append("beside")]),
                ENDING[name](rig),
                rig.session.commit([OUT.append("beside")]),
                rig.session.commit([SCOPE.retire(), MAIN.append("retired")]),
                rig.session.read(OUT),
            ]
            tasks = [rig.loop.create_task(one) for one in work]
            if slow or name == "open":
                rig.loop.call_later(0.004 * (moment - 1), rig.loop.stop)  # a sync takes 0.01
                rig.loop.run_forever()
            else:
                iterate(rig.loop, moment)
            ended = all(task.done() for task in tasks)
            if name == "open" and tasks[1].done():
                tasks[1].result().sync.close()
            rig.loop.close()
            del tasks, work
            gc.collect()
            rig.loop.errors.clear()  # tasks were destroyed while they were pending
            rig.loop = rig.new_loop()
            rig.idle()
            if name == "open":
                rig.run(rig.run(rig.store.session("other")).close())
            if name == "close":
                rig.run(rig.session.close())
                rig.run(rig.run(rig.store.session("s")).close())
            else:
                rig.check_sound()
            found = rig.stored()[""]
            assert found[:1] == ["m0"] and len(found) == len({*found}), "stored twice"
            if ended:
                return
    raise AssertionError("no end")


def test_commits_by_several_loops_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``asyncio.run`` called again and again does."""
    with AioRig(monkeypatch) as rig:
        for n in range(12):
            rig.loop = rig.new_loop()
            rig.run(rig.session.commit([MAIN.append(n)]))
            rig.run(rig.session.append(OUT, n))
            rig.loop.close()
        assert len(rig.sync._writer._led_soon) + len(rig.sync._writer._want_to_lead) <= 8, "closed loops are kept"
        rig.loop = rig.new_loop()
        rig.check_sound()
        assert rig.stored()[""] == ["m0", *range(12), "after"]
        assert rig.stored()["op-1"] == ["x0", *range(12), "after"]


# --- windows ----------------------------------------------------------------------------------------------------------


def test_a_window_is_kept_by_the_loop_and_never_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless stream of appends is stored window by window: every element within one window and a tick."""
    with AioRig(monkeypatch) as rig:
        rig.time.flusher_off = True  # the loop alone

        async def stream() -> None:
            for n in range(200):
                await rig.session.append(OUT, n)
                await asyncio.sleep(0.007)
                oldest = n - int((WINDOW + TICK) / 0.007)
                assert rig.stored()["op-1"][-1] in range(max(oldest, 0), n + 1) or n * 0.007 < WINDOW

        rig.run(stream())
        assert {thread for thread, _ in rig.disk.did("pwrite", ".scope.zst")} == {"MainThread"}
        windows = len(rig.disk.did("pwrite", ".scope.zst")) - 1
        assert 12 <= windows <= 15, "joined, and stored once a window"


def test_the_earliest_window_keeps_its_deadline_whatever_opens_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timer serves all scopes of a session."""
    with AioRig(monkeypatch) as rig:
        rig.time.flusher_off = True

        async def work() -> None:
            began = rig.time.now
            for scope in (OUT, OTHER, MAIN):
                await rig.session.append(scope, "staged")
                await asyncio.sleep(0.03)
            await asyncio.sleep(1)
            written = [when - began for _, when in rig.disk.did("pwrite")[-3:]]
            assert written == pytest.approx([WINDOW, 0.03 + WINDOW, 0.06 + WINDOW], abs=TICK)

        rig.run(work())


def test_a_loop_stores_as_soon_as_a_thread_that_was_storing_has_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the flusher stands in for it."""
    with AioRig(monkeypatch) as rig:
        rig.disk.sync_seconds = 0.01
        rig.time.at(rig.time.now, "thread", lambda: rig.time.run("thread", lambda: rig.sync.commit([MAIN.append(1)])))

        async def work() -> None:
            await asyncio.sleep(0.001)  # the thread is in its sync
            began = rig.time.now
            await asyncio.gather(*(rig.session.commit([MAIN.append(n)]) for n in (2, 3)))
            assert rig.time.now - began == pytest.approx(0.009 + 0.01)

        rig.run(work())
        assert rig.stored()[""] == ["m0", 1, 2, 3]
        rig.check_sound()


def test_a_loop_stores_as_soon_as_the_readers_that_were_let_in_first_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that reads waits for the one that stores, and is let in before the next one stores."""
    with AioRig(monkeypatch) as rig:
        rig.disk.sync_seconds = 0.01
        read: list[int] = []
        threads: tuple[Callable[[], object], ...] = (
            lambda: rig.sync.commit([MAIN.append(1)]),
            lambda: read.append(len(rig.sync.read(OUT))),
        )
        for thread in threads:
            rig.time.at(rig.time.now, "thread", partial(rig.time.run, "thread", thread))

        async def work() -> None:
            await asyncio.sleep(0.001)
            assert rig.sync._writer._leader and rig.sync._writer._readers == 1
            began = rig.time.now
            await rig.session.commit([MAIN.append(2)])
            assert rig.time.now - began == pytest.approx(0.009 + 0.01)

        rig.run(work())
        assert read == [1] and rig.stored()[""] == ["m0", 1, 2]
        rig.check_sound()


def test_appends_called_on_a_loops_thread_are_the_loops_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch) as rig:
        rig.time.flusher_off = True

        async def work() -> None:
            rig.sync.append(OUT, 1)
            await asyncio.sleep(WINDOW + TICK)
            assert rig.stored()["op-1"] == ["x0", 1]

        rig.run(work())


@pytest.mark.parametrize("what", ["append", "commit"])
def test_a_loop_held_by_something_else_is_stood_in_for(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the flusher, :data:`GRACE` after the deadline."""
    with AioRig(monkeypatch) as rig:
        began = rig.time.now

        async def work() -> None:
            if what == "append":
                await rig.session.append(OUT, "held")
                commit = None
            else:
                commit = asyncio.ensure_future(rig.session.commit([OUT.append("held")]))
                asyncio.get_running_loop().call_soon(rig.time.sleep, 1.0)  # before the loop leads
                await asyncio.sleep(0)
            rig.time.sleep(1.0)  # the loop runs nothing meanwhile
            assert rig.stored()["op-1"] == ["x0", "held"]
            thread, when = rig.disk.did("pwrite", ".scope.zst")[-1]
            assert thread == "scopelog-flusher" and when <= began + WINDOW + GRACE + TICK
            if commit is not None:
                await commit

        rig.run(work())
        rig.check_sound()


@pytest.mark.parametrize("window_ms", [0, 1, 20])
def test_a_commit_is_the_loops_business_before_it_is_the_flushers(
    window_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a short window the flusher came at once, and every commit paid a thread's switch interval."""
    with AioRig(monkeypatch, window_ms=window_ms) as rig:
        rig.idle()
        rig.disk.diary.clear()

        async def work() -> None:
            for n in range(5):
                commit = asyncio.ensure_future(rig.session.commit([MAIN.append(n)]))
                asyncio.get_running_loop().call_soon(rig.time.sleep, 0.05)  # other callbacks come first
                await commit

        rig.run(work())
        assert {thread for thread, _ in rig.disk.did("pwrite")} == {"MainThread"}


def test_a_window_opened_beside_a_withdrawn_commit_is_kept_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit had set the deadline, for the flusher alone; what was staged beside it waited for that."""
    with AioRig(monkeypatch) as rig:
        rig.time.flusher_off = True

        async def work() -> None:
            commit = asyncio.ensure_future(rig.session.commit([OUT.append("withdrawn")]))
            asyncio.get_running_loop().call_soon(rig.sync.append, OUT, "staged")
            asyncio.get_running_loop().call_soon(commit.cancel)
            await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await commit
            await asyncio.sleep(WINDOW + TICK)
            assert rig.stored()["op-1"] == ["x0", "staged"]

        with monkeypatch.context() as patch:
            patch.setattr(rig.sync._writer, "_lead_soon", lambda loop: None)  # the cancellation comes first
            rig.run(work())
        rig.time.flusher_off = False
        rig.check_sound()
