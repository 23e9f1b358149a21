"""Sync calls on a loop's own thread: inline where they can be, and never waiting for that very loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from scopelog import Durability, HandleClosed, Receipt

from .aio_rig import MAIN, OUT, SCOPE, TITLE, AioRig, found_on
from .test_aio_loops import end

CALLS: Final[dict[str, Callable[[AioRig], object]]] = {
    "commit": lambda rig: rig.sync.commit([MAIN.append("sync")]),
    "commit to a scope": lambda rig: rig.sync.commit([OUT.append("sync")]),
    "retirement": lambda rig: rig.sync.commit([SCOPE.retire()]),
    "append": lambda rig: rig.sync.append(MAIN, "sync"),
    "append to a scope": lambda rig: rig.sync.append(OUT, "sync"),
    "flush": lambda rig: rig.sync.flush(),
    "flush at power": lambda rig: rig.sync.flush(Durability.POWER),
    "read": lambda rig: rig.sync.read(MAIN),
    "read of a scope": lambda rig: rig.sync.read(OUT),
    "get": lambda rig: rig.sync.get(TITLE),
    "scan": lambda rig: rig.sync.scan("chat", scope=SCOPE),
    "stats": lambda rig: (rig.sync.stats(), rig.sync.scopes(), rig.sync.durable_seq()),
    "close": lambda rig: rig.sync.close(),
    "close of the store": lambda rig: rig.sync_store.close(),
    "reader": lambda rig: rig.sync_store.reader("s").close(),
}
STATES: Final = ("admitted", "retiring", "at the bound", "in a thread", "in a thread that waits for the disk")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", CALLS)
def test_a_sync_call_on_a_loops_thread_never_waits_for_that_loop(
    name: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the loop's tasks have admitted and not stored yet, the call stores it first, or waits for a thread."""
    settings: dict[str, Any] = {"pending_bytes": 4096} if state == "at the bound" else {}
    with AioRig(monkeypatch, **settings) as rig:

        async def work() -> None:
            await rig.session.append(OUT, "staged")
            work: list[Coroutine[Any, Any, object]] = [
                rig.session.commit([MAIN.append(1)]),
                rig.session.commit([OUT.append(1)]),
            ]
            if state == "at the bound":
                await rig.session.append(OUT, "x" * 1800)
                await rig.session.append(MAIN, "y" * 1600)
                work.append(rig.session.append(OUT, "waits for room"))
            if state != "admitted":
                work.append(rig.session.commit([SCOPE.retire(), MAIN.append(2)]))
                work.append(rig.session.append(OUT, "waits for the retirement"))
                work.append(rig.session.read(OUT))
                work.append(rig.session.flush())
            if "thread" in state:
                rig.slow()
            tasks = [asyncio.ensure_future(one) for one in work]
            await asyncio.sleep(0)  # admitted
            if "thread" in state:
                await asyncio.sleep(0)  # handed over
            if "disk" in state:
                await asyncio.sleep(0.005)
                assert rig.sync._writer._leader
            CALLS[name](rig)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            refused = [result for result in results if isinstance(result, BaseException)]
            assert all(isinstance(error, HandleClosed) for error in refused) and ("close" in name or not refused)

        rig.run(work())
        if "close" in name:
            assert found_on(rig.disk)[""][:2] == ["m0", 1] or state == "at the bound"
        else:
            rig.check_sound()


@pytest.mark.parametrize("name", CALLS)
def test_a_sync_call_beside_a_loop_that_has_ended_stores_what_that_had_admitted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No flusher is needed for it."""
    with AioRig(monkeypatch) as rig:
        rig.time.flusher_off = True
        tasks = [
            rig.loop.create_task(rig.session.commit([OUT.append(1)])),
            rig.loop.create_task(rig.session.commit([SCOPE.retire(), MAIN.append(2)])),
        ]
        end(rig.loop)
        CALLS[name](rig)
        rig.time.flusher_off = False
        assert all(isinstance(rig.run(asyncio.wait_for(task, 1)), Receipt) for task in tasks)


@pytest.mark.parametrize("which", ["session", "store"])
def test_closing_on_a_loops_thread_beside_a_task_that_closes_in_a_thread(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for that thread, which needs no loop."""
    with AioRig(monkeypatch) as rig:
        rig.slow()

        async def work() -> None:
            await rig.session.append(OUT, "staged")
            await rig.session.append(MAIN, "staged")
            await asyncio.sleep(0)
            commit = asyncio.ensure_future(rig.session.commit([MAIN.append(1)]))
            await asyncio.sleep(0.001)
            closing = asyncio.ensure_future((rig.session if which == "session" else rig.store).close())
            await asyncio.sleep(0.001)
            (rig.sync if which == "session" else rig.sync_store).close()
            await closing
            assert isinstance(await commit, Receipt)

        rig.run(work())
        assert found_on(rig.disk) == {"": ["m0", "staged", 1], "op-1": ["x0", "staged"], "op-2": []}


def test_without_threads_a_slow_disk_is_written_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of threads there is nobody else; the calls that would run in one run inline too."""
    with AioRig(monkeypatch) as rig:
        rig.slow()
        rig.writers.none = rig.workers.none = True

        async def work() -> None:
            await asyncio.gather(*(rig.session.commit([MAIN.append(n)]) for n in range(3)))
            async with await rig.store.reader("s") as reader:
                assert [e.element for e in await reader.read(MAIN)] == ["m0", 0, 1, 2]
            async with await rig.store.session("other") as other:
                await other.commit([MAIN.append(0)])
            await rig.session.close()

        rig.run(work())
        assert found_on(rig.disk)[""] == ["m0", 0, 1, 2]
