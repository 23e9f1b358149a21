"""Ctrl-C and want of memory at any moment while a loop commits: no task hangs, and acknowledged means stored.

An exception is raised at the entry of the Nth function of the packages that the loop's thread enters (or a worker's),
for every N. Whatever it does to the task or callback that it meets, the others are answered, and the session goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from scopelog import Durability, WriteFailed

from .aio_rig import MAIN, OTHER, OUT, SCOPE, TITLE, AioRig
from .test_interrupted import Entries

ERRORS: Final[tuple[type[BaseException], ...]] = (KeyboardInterrupt, MemoryError)
Call = Callable[[AioRig], Coroutine[Any, Any, object]]


def _cancelled_soon(call: Call) -> Call:
    async def work(rig: AioRig) -> object:
        task = asyncio.ensure_future(call(rig))
        await asyncio.sleep(0)
        task.cancel()
        return await task

    return work


STRIDE: Final = 1 if os.environ.get("SCOPELOG_HYPOTHESIS") == "long" else 5  # of the places; a prime, as calls repeat

GROUPS: Final[dict[str, list[Call]]] = {
    "commits": [
        lambda rig: rig.session.commit([MAIN.append("a"), TITLE.set("a")]),
        lambda rig: rig.session.commit([OUT.append("b")]),
        lambda rig: rig.session.commit([MAIN.append("c")]),
    ],
    "birth of a scope": [
        lambda rig: rig.session.commit([OTHER.append("a")], durability=Durability.POWER),
        lambda rig: rig.session.commit([OTHER.append("b")]),
    ],
    "retirement": [
        lambda rig: rig.session.commit([OUT.append("a")]),
        lambda rig: rig.session.commit([SCOPE.retire(), MAIN.append("b")]),
        lambda rig: rig.session.commit([OUT.append("c")]),
        lambda rig: rig.session.append(OUT, "d"),
    ],
    "reads": [
        lambda rig: rig.session.commit([MAIN.append("a")]),
        lambda rig: rig.session.read(MAIN),
        lambda rig: rig.session.get(TITLE),
        lambda rig: rig.session.scan("chat", scope=SCOPE),
    ],
    "window and flush": [
        lambda rig: rig.session.append(OUT, "a"),
        lambda rig: rig.session.append(MAIN, "b"),
        lambda rig: rig.session.flush(Durability.POWER),
        lambda rig: rig.session.commit([OUT.append("d")]),
    ],
    "cancelled": [
        _cancelled_soon(lambda rig: rig.session.commit([MAIN.append("a"), SCOPE.retire()])),
        _cancelled_soon(lambda rig: rig.session.commit([OUT.append("b")])),
        lambda rig: rig.session.commit([MAIN.append("c")]),
        lambda rig: rig.session.append(OUT, "d"),
    ],
}
LISTS: Final[dict[str, list[str | None]]] = {
    "commits": ["", "op-1", ""],
    "birth of a scope": ["op-2", "op-2"],
    "retirement": [None, "", "op-1", "op-1"],
    "reads": [""],
    "window and flush": ["op-1", "", None, "op-1"],
    "cancelled": ["", None, "", None],
}
"""In which scope what the nth task writes is found, if it was acknowledged; its element is the nth letter."""


def interrupted(rig: AioRig, name: str, entries: Entries, *, in_thread: bool) -> None:
    """One group of tasks, interrupted once, and what follows."""
    tasks = [rig.loop.create_task(call(rig)) for call in GROUPS[name]]

    def run(what: Coroutine[Any, Any, object]) -> None:
        with contextlib.suppress(*ERRORS):
            rig.run(what)

    if in_thread:
        rig.time.around = lambda: entries
        run(asyncio.wait(tasks, timeout=5))
        rig.time.around = contextlib.nullcontext
    else:
        with entries:
            run(asyncio.wait(tasks, timeout=5))
    run(asyncio.sleep(0))  # a task that waits for an interrupted one is interrupted too
    rig.run(asyncio.wait(tasks, timeout=5))
    assert all(task.done() for task in tasks), "a task was never answered"
    errors = [task.exception() for task in tasks if not task.cancelled()]
    assert all(error is None or isinstance(error, (*ERRORS, WriteFailed)) for error in errors), errors
    rig.loop.errors.clear()  # of callbacks
    for _ in range(2):  # of a window that was interrupted: told once a scope
        with contextlib.suppress(WriteFailed):
            rig.run(rig.session.flush())
    rig.idle()
    found = rig.check_sound(handles=False)
    for element, task, scope in zip("abcd", tasks, LISTS[name], strict=False):
        if scope is None:
            continue
        count = found[scope].count(element)
        assert count <= 1, "stored twice"
        if task.cancelled() or isinstance(task.exception(), WriteFailed):
            assert count == 0, "stored, and not acknowledged"
        elif task.exception() is None:
            assert count == 1, f"{task.result()!r} was acknowledged, and is not stored"


def every(patch: pytest.MonkeyPatch, name: str, error: type[BaseException], stride: int, *, slow: bool) -> int:
    """Interrupt at place 1, 1 + stride and so on, until there are no more; how many there were."""
    first = 1 + ERRORS.index(error) * (stride // 2)  # other places for each
    for nth in range(first, 10_000, stride):
        with AioRig(patch) as rig:
            if slow:
                rig.slow()
            entries = Entries(nth, error)
            try:
                interrupted(rig, name, entries, in_thread=slow)
            except BaseException as problem:
                problem.add_note(f"{name}, place {nth}: {entries.where}")
                raise
            if not entries.where:
                return nth - 1
    raise AssertionError("no end of places")


@pytest.mark.fault(34, 35, rig="S")
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", GROUPS)
def test_an_exception_at_the_entry_of_every_function_while_a_loop_leads(
    name: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert every(monkeypatch, name, error, STRIDE, slow=False) >= 50


def test_a_loop_whose_turn_was_lost_gets_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted at its very entry, the callback that stores left the loop on the list of those who will: every later
    commit waited for the flusher. One does."""
    with AioRig(monkeypatch) as rig:
        lead_from = rig.sync._writer._lead_from

        def lose(loop: asyncio.AbstractEventLoop) -> None:
            monkeypatch.setattr(rig.sync._writer, "_lead_from", lead_from)
            raise MemoryError

        monkeypatch.setattr(rig.sync._writer, "_lead_from", lose)
        rig.run(rig.session.commit([MAIN.append(1)]))
        assert rig.disk.did("pwrite")[-1][0] == "scopelog-flusher"
        now = rig.time.now
        for n in range(3):
            rig.run(rig.session.commit([MAIN.append(n)]))
        assert rig.time.now == now and rig.disk.did("pwrite")[-1][0] == "MainThread"
        assert [type(context["exception"]) for context in rig.loop.errors] == [MemoryError]


@pytest.mark.parametrize("error", ERRORS)
def test_a_withdrawal_that_is_interrupted_is_finished(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every place: a retirement that was half withdrawn never ended, and whoever waited for it waited for ever."""
    for nth in range(1, 100):
        with AioRig(monkeypatch) as rig, monkeypatch.context() as patch:
            patch.setattr(rig.sync._writer, "_lead_soon", lambda loop: None)  # nobody stores meanwhile
            entries = Entries(nth, error)
            withdraw = rig.sync._writer._withdraw

            def interrupted(commit: Any, entries: Entries = entries, withdraw: Any = withdraw) -> bool:
                with entries:
                    return bool(withdraw(commit))

            patch.setattr(rig.sync._writer, "_withdraw", interrupted)
            retiring = rig.loop.create_task(rig.session.commit([SCOPE.retire()]))
            appending = rig.loop.create_task(rig.session.append(OUT, "waits"))
            rig.loop.call_later(0.01, retiring.cancel)
            rig.time.flusher_off = True
            for _ in range(2):
                with contextlib.suppress(error):
                    rig.run(asyncio.wait([retiring, appending], timeout=1))
            assert retiring.done() and appending.done(), f"it hangs: {entries.where}"
            patch.undo()
            rig.time.flusher_off = False
            retiring.exception() if not retiring.cancelled() else None
            rig.check_sound()
            taken = ["waits"] if appending.exception() is None else []  # or told why not
            assert rig.stored()["op-1"] == ["x0", *taken, "after"]
        if not entries.where:
            return
    raise AssertionError("no end of places")


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
@pytest.mark.parametrize("error", [OSError, RuntimeError, MemoryError])
def test_an_error_in_answering_one_task_is_that_tasks_alone(
    error: type[Exception], slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stores answers those who wait for its end: an error there left the session without a leader for ever."""
    with AioRig(monkeypatch) as rig:
        if slow:
            rig.slow()
        snapshot = rig.sync._writer._snapshot

        def fail(state: Any) -> Any:
            monkeypatch.setattr(rig.sync._writer, "_snapshot", snapshot)
            raise error

        monkeypatch.setattr(rig.sync._writer, "_snapshot", fail)

        async def work() -> None:
            commit = asyncio.ensure_future(rig.session.commit([MAIN.append(1)]))
            await asyncio.sleep(0)
            reads = [asyncio.ensure_future(rig.session.read(MAIN)) for _ in range(2)]
            with pytest.raises(error):
                await reads[0]
            assert [e.element for e in await reads[1]] == ["m0", 1]
            await commit

        rig.run(work())
        rig.check_sound()


@pytest.mark.fault(34, rig="S")
@pytest.mark.parametrize("name", GROUPS)
def test_want_of_memory_at_the_entry_of_every_function_of_a_worker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert every(monkeypatch, name, MemoryError, STRIDE, slow=True) >= 20
