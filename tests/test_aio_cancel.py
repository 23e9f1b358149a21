"""Cancellation at every place where a call of the asyncio face may wait: acknowledged if and only if stored.

Each call is cancelled at its first suspension, its second and so on, in each of several ways, in virtual time. What
it leaves behind must be nothing: the session goes on, no ticket, request or future stays, no file is kept in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

import pytest

from scopelog import HandleClosed, Json, NoSuchSession, OutcomeUnknown, Receipt, ScopelogError, WriteFailed
from scopelog.aio import AsyncSession, AsyncSessionReader, AsyncStore

from .aio_rig import MAIN, OUT, SCOPE, TITLE, AioRig, Tap, found_on

MAYBE: Final = "maybe"  # what the cancelled call writes
Call = Callable[[AioRig], Coroutine[Any, Any, object]]


class Scenario(NamedTuple):
    """``beside``: what other tasks do, begun before the call and after it. ``slow``: the disk, so that threads work."""

    call: Call
    before: tuple[Call, ...] = ()
    after: tuple[Call, ...] = ()
    slow: bool = False
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed
    staged: tuple[Json, ...] = ()  # in OUT, by the time of the call
    scope: str = ""  # where the call writes MAYBE, if it does


def _commit(element: Json) -> Call:
    return lambda rig: rig.session.commit([MAIN.append(element)])


def _commit_out(element: Json) -> Call:
    return lambda rig: rig.session.commit([OUT.append(element)])


def _retire(rig: AioRig) -> Coroutine[Any, Any, object]:
    return rig.session.commit([SCOPE.retire(), MAIN.append("retired")])


async def _staged_and_committed(rig: AioRig) -> Receipt:
    await rig.session.append(MAIN, "staged before")
    return await rig.session.commit([MAIN.append(MAYBE)])


async def _append_at_the_bound(rig: AioRig) -> int:
    return await rig.session.append(OUT, MAYBE, "t" * 100)


WRITES: Final = {
    "commit": Scenario(_commit(MAYBE)),
    "commit in a crowd": Scenario(_commit(MAYBE), (_commit("b"),), (_commit("a"),)),
    "commit with what was staged": Scenario(_staged_and_committed),
    "commit to a scope": Scenario(_commit_out(MAYBE), (_commit("b"), _commit_out("xb")), scope="op-1"),
    "commit to a scope with a window": Scenario(_commit_out(MAYBE), staged=("x1", "x2"), scope="op-1"),
    "commit while the scope is retired": Scenario(_commit_out(MAYBE), (_retire,), scope="op-1"),
    "retirement": Scenario(lambda rig: rig.session.commit([SCOPE.retire(), MAIN.append(MAYBE)]), staged=("x1",)),
    "append while the scope is retired": Scenario(
        lambda rig: rig.session.append(OUT, MAYBE), (_retire,), staged=("x1",), scope="op-1"
    ),
    "append at the bound": Scenario(
        _append_at_the_bound, settings={"pending_bytes": 4096}, staged=("x" * 1500, "y" * 1600), scope="op-1"
    ),
}
OTHERS: Final = {
    "flush": Scenario(lambda rig: rig.session.flush(), staged=("x1",)),
    "flush while a scope is retired": Scenario(lambda rig: rig.session.flush(), (_retire,), staged=("x1",)),
    "read": Scenario(lambda rig: rig.session.read(MAIN), (_commit("b"),), staged=("x1",)),
    "read of a scope": Scenario(lambda rig: rig.session.read(OUT), (_commit_out("xb"),), staged=("x1",)),
    "read of a scope that is retired": Scenario(lambda rig: rig.session.read(OUT), (_retire,), staged=("x1",)),
    "get": Scenario(lambda rig: rig.session.get(TITLE), (_commit("b"),)),
    "scan": Scenario(lambda rig: rig.session.scan("chat"), (_commit("b"),)),
}


def _inside(rig: AioRig, task: asyncio.Task[Any], future: asyncio.Future[Any] | None) -> None:
    task.cancel()


def _soon(rig: AioRig, task: asyncio.Task[Any], future: asyncio.Future[Any] | None) -> None:
    rig.loop.call_soon(task.cancel)


def _later(rig: AioRig, task: asyncio.Task[Any], future: asyncio.Future[Any] | None) -> None:
    rig.loop.call_later(0.005, task.cancel)


def _resolved(rig: AioRig, task: asyncio.Task[Any], future: asyncio.Future[Any] | None) -> None:
    """Once what it waits for is there, and before it is told."""
    if future is None:
        task.cancel()
    else:
        future.add_done_callback(lambda _: task.cancel())


def _by_a_thread(rig: AioRig, task: asyncio.Task[Any], future: asyncio.Future[Any] | None) -> None:
    """Just before the answer comes from that thread: the future is done when the loop is to resolve it. Where no
    thread waits for the disk, later."""
    cancel = [task.cancel]

    def once() -> None:
        rig.disk.woken = lambda: None
        while cancel:
            rig.loop.call_soon_threadsafe(cancel.pop())

    rig.disk.woken = once
    rig.loop.call_later(1.0, once)


def _twice(rig: AioRig, task: asyncio.Task[Any], future: asyncio.Future[Any] | None) -> None:
    task.cancel()
    rig.loop.call_soon(task.cancel)
    rig.loop.call_later(0.005, task.cancel)


def _again_and_again(rig: AioRig, task: asyncio.Task[Any], future: asyncio.Future[Any] | None) -> None:
    for n in range(8):
        rig.loop.call_later(0.001 * n, task.cancel)
    _resolved(rig, task, future)


WAYS: Final = {
    way.__name__.strip("_"): way for way in (_inside, _soon, _later, _resolved, _by_a_thread, _twice, _again_and_again)
}
CLOSED: Final = "closed"  # the coroutine is closed where it waits


class Cancelled:
    """One call, cancelled at its ``nth`` suspension. ``result``: what it returned or raised; ``reached``: whether it
    suspended that often; ``delivered``: whether a cancellation that it took in arrived afterwards."""

    def __init__(self, rig: AioRig, work: Coroutine[Any, Any, object], way: str, nth: int) -> None:
        self.result: object = None
        self.returned = False
        self.delivered = False
        self.reached = False
        self.running = 0  # calls in threads, when the cancellation was told
        self._rig = rig
        self._way = way
        self._tap = Tap(work, nth, self._suspended)

    async def body(self) -> None:
        try:
            self.result = await self._tap
            self.returned = True
        except (asyncio.CancelledError, GeneratorExit) as error:
            self.result = error
            self.running = self._rig.workers.submitted - self._rig.workers.ended
            return
        except ScopelogError as error:
            self.result = error
        await self._then_cancelled()

    async def _then_cancelled(self) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.delivered = True
            assert await asyncio.sleep(1, "no stray cancellation") or self._way in ("twice", "again_and_again")

    def _suspended(self, future: asyncio.Future[Any] | None) -> BaseException | None:
        self.reached = True
        task = asyncio.current_task()
        assert task is not None
        if self._way == CLOSED:
            return GeneratorExit()
        WAYS[self._way](self._rig, task, future)
        return None


def cancelled(rig: AioRig, scenario: Scenario, way: str, nth: int) -> Cancelled:
    one = Cancelled(rig, scenario.call(rig), way, nth)

    async def all_of_it() -> None:
        for element in scenario.staged:
            await rig.session.append(OUT, element)
        before = [asyncio.ensure_future(work(rig)) for work in scenario.before]
        task = asyncio.ensure_future(one.body())
        after = [asyncio.ensure_future(work(rig)) for work in scenario.after]
        done, _ = await asyncio.wait([*before, task, *after])
        for other in (*before, *after):
            assert isinstance(other.result(), Receipt), "another task's commit was not answered"
        del done

    if scenario.slow:
        rig.slow()
    rig.run(all_of_it())
    return one


def sweep(
    patch: pytest.MonkeyPatch,
    scenario: Scenario,
    way: str,
    check: Callable[[AioRig, Cancelled], None],
    prepare: Callable[[AioRig], object] = lambda rig: None,
) -> int:
    """Cancel at every suspension, until there are no more; how many there were."""
    for nth in range(1, 50):
        with AioRig(patch, **scenario.settings) as rig:
            prepare(rig)
            one = cancelled(rig, scenario, way, nth)
            try:
                check(rig, one)
            except BaseException as error:
                error.add_note(f"cancelled {way} at suspension {nth}, {one.result!r}; {rig.time.log}")
                raise
            if not one.reached:
                return nth - 1
    raise AssertionError("no end of suspensions")


@pytest.mark.fault(35, rig="S")
@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
@pytest.mark.parametrize("way", [*WAYS, CLOSED])
@pytest.mark.parametrize("name", WRITES)
def test_a_cancelled_write_is_acknowledged_if_and_only_if_it_is_stored(
    name: str, way: str, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = WRITES[name]._replace(slow=slow)

    def check(rig: AioRig, one: Cancelled) -> None:
        rig.idle()
        if one.returned:
            assert one.delivered == one.reached, "a cancellation was swallowed"
        else:
            assert isinstance(one.result, GeneratorExit if way == CLOSED else asyncio.CancelledError)
        if name == "append while the scope is retired" and one.returned:
            assert rig.stored()["op-1"] == [MAYBE]
        rig.check_sound()
        count = rig.stored()[scenario.scope].count(MAYBE)
        if way == CLOSED:
            assert count <= 1
        else:
            assert count == one.returned, "acknowledged is not stored" if one.returned else "stored, not acknowledged"
        if one.returned and isinstance(one.result, Receipt):
            assert one.result.first <= one.result.last

    assert sweep(monkeypatch, scenario, way, check) >= 1


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
@pytest.mark.parametrize("way", [*WAYS, CLOSED])
@pytest.mark.parametrize("name", OTHERS)
def test_a_cancelled_call_leaves_nothing_behind(
    name: str, way: str, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views of the log that nobody left kept its file open for ever. What a cancelled flush was asked for is stored."""
    scenario = OTHERS[name]._replace(slow=slow)

    def check(rig: AioRig, one: Cancelled) -> None:
        rig.check_sound()
        assert one.returned or isinstance(one.result, GeneratorExit if way == CLOSED else asyncio.CancelledError)
        if one.returned:
            assert one.delivered == one.reached
        if name == "flush":
            assert rig.stored()["op-1"][:2] == ["x0", "x1"]

    sweep(monkeypatch, scenario, way, check)


# --- calls that run in threads ----------------------------------------------------------------------------------------


async def _open_store(rig: AioRig) -> AsyncStore:
    return await AsyncStore.open("/other", fs=rig.disk, clock=rig.clock)


async def _close_forced(rig: AioRig) -> None:
    await rig.session.close(force=True)


THREADED: Final[dict[str, Call]] = {
    "open a store": _open_store,
    "open a session": lambda rig: rig.store.session("other"),
    "open a reader": lambda rig: rig.store.reader("s"),
    "read without the lock": lambda rig: rig.reader.read(MAIN),
    "records": lambda rig: _all_records(rig.reader),
    "close": lambda rig: rig.session.close(),
    "close, forced": _close_forced,
    "close the store": lambda rig: rig.store.close(),
    "delete": lambda rig: rig.store.delete_session("doomed"),
}


async def _all_records(reader: AsyncSessionReader) -> list[object]:
    return [record async for record in reader.records()]


@pytest.mark.parametrize("way", [*WAYS, CLOSED])
@pytest.mark.parametrize("name", THREADED)
def test_a_cancelled_call_that_runs_in_a_thread_ends_first_and_holds_nothing(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that was opened for a task which is gone held its lock until its store was closed; a reader its files.
    A close that was cancelled is done, or can be done again."""

    def check(rig: AioRig, one: Cancelled) -> None:
        assert one.running == 0 or way == CLOSED, "the call goes on behind the caller's back"
        rig.idle()
        rig.check_requests()
        if name == "open a session":
            if one.returned:
                assert isinstance(one.result, AsyncSession)
                rig.run(one.result.close())
            rig.run(rig.run(rig.store.session("other")).close())  # the lock was let go of
        elif name == "open a store":
            if one.returned:
                assert isinstance(one.result, AsyncStore)
                rig.run(one.result.close())
            assert rig.alarms_open() == 1, "a store that nobody has is open"
        elif name == "open a reader":
            if isinstance(one.result, AsyncSessionReader):
                one.result.sync.close()
            rig.reader.sync.close()
            assert rig.disk.handles(".zst") == rig.handles, "a file of a reader that nobody has is open"
        elif name.startswith("close"):
            rig.run(rig.session.close())
            with pytest.raises(HandleClosed):
                rig.run(rig.session.append(MAIN, "late"))
            if name != "close the store":
                assert rig.run(_reopened(rig)) == ["m0", "staged"]
            rig.run(rig.store.close())
            assert found_on(rig.disk)[""] == ["m0", "staged"]
        elif name == "delete":
            with pytest.raises(NoSuchSession):
                rig.sync_store.delete_session("doomed")
        else:
            assert [e.element for e in rig.run(rig.reader.read(MAIN))] == ["m0"]

    def prepared(rig: AioRig) -> None:
        with rig.sync_store.session("doomed") as doomed:
            doomed.commit([MAIN.append(0)])
        rig.sync.append(MAIN, "staged")
        rig.handles = rig.disk.handles(".zst")
        rig.reader = rig.run(rig.store.reader("s"))

    assert sweep(monkeypatch, Scenario(THREADED[name]), way, check, prepared) >= (0 if name.startswith("close") else 1)


async def _reopened(rig: AioRig) -> list[Json]:
    async with await rig.store.session("s") as session:
        return [e.element for e in await session.read(MAIN)]


# --- with failing disks -----------------------------------------------------------------------------------------------


@pytest.mark.fault(35, rig="S")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_a_cancelled_commit_whose_write_fails_is_cancelled(
    slow: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was stored: the cancellation is told, at once; the failure is what it comes from."""

    def check(rig: AioRig, one: Cancelled) -> None:
        rig.disk.heal()
        if one.reached:
            assert isinstance(one.result, asyncio.CancelledError | WriteFailed)
            assert isinstance(one.result, WriteFailed) == one.delivered
        rig.check_sound()
        assert MAYBE not in rig.stored()[""]

    def fails(rig: AioRig) -> None:
        rig.disk.fail("pwrite", path="main.zst", persistent=True)

    sweep(monkeypatch, Scenario(_commit(MAYBE), slow=slow), way, check, fails)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_a_cancelled_commit_whose_sync_fails_is_told_that_the_outcome_is_unknown(
    slow: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be stored: CancelledError would say that it is not."""

    def check(rig: AioRig, one: Cancelled) -> None:
        rig.disk.heal()
        rig.idle()
        count = rig.stored()[""].count(MAYBE)
        assert count == isinstance(one.result, OutcomeUnknown)
        rig.check_quiet()

    def fails(rig: AioRig) -> None:
        rig.disk.fail("sync", path="main.zst", persistent=True)

    sweep(monkeypatch, Scenario(_commit(MAYBE), slow=slow), way, check, fails)
