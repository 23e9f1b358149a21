"""The asyncio face in virtual time: group commit, order, failures, windows, and what is awaited with a limit."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable
from typing import Any, Final

import pytest

from fuzz.simdisk_crash import LoseAll
from scopelog import (
    Durability,
    HandleClosed,
    InvalidInput,
    Json,
    LogPoisoned,
    OutcomeUnknown,
    Receipt,
    WriteFailed,
    ephemeral,
)
from scopelog.aio import AsyncSession

from .aio_rig import MAIN, OTHER, OUT, SCOPE, TITLE, AioRig

CROWD: Final = 20


async def outcomes(*work: Awaitable[object]) -> list[object]:
    return list(await asyncio.gather(*work, return_exceptions=True))


# --- group commit -----------------------------------------------------------------------------------------------------


def test_commits_of_one_iteration_share_one_frame_and_one_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch) as rig:
        syncs, frames = rig.syncs, rig.frames
        receipts = rig.run(
            outcomes(*(rig.session.commit([MAIN.append([n, 0]), MAIN.append([n, 1])]) for n in range(CROWD)))
        )
        assert (rig.syncs - syncs, rig.frames - frames) == (1, 1)
        first = 3  # m0 and x0 came before
        assert receipts == [Receipt(first + 2 * n, first + 2 * n + 1) for n in range(CROWD)], "in order of admission"
        assert rig.stored(rig.disk.crash(LoseAll()))[""] == ["m0", *([n, at] for n in range(CROWD) for at in (0, 1))]


def test_commits_to_several_scopes_share_the_leader_and_not_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scope at PROCESS needs no sync for being stored beside main."""
    with AioRig(monkeypatch) as rig:
        syncs = rig.syncs
        commits = [rig.session.commit([at.append(n)]) for n in range(4) for at in (OUT, OTHER)]
        rig.run(outcomes(*commits, *(rig.session.commit([MAIN.append(n)]) for n in range(4))))
        assert rig.syncs - syncs == 1
        assert rig.stored() == {"": ["m0", 0, 1, 2, 3], "op-1": ["x0", 0, 1, 2, 3], "op-2": [0, 1, 2, 3]}


def test_a_commit_takes_along_what_was_staged_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch) as rig:

        async def work() -> None:
            await rig.session.append(MAIN, "staged")
            commit = asyncio.ensure_future(rig.session.commit([MAIN.append("commit")]))
            await asyncio.sleep(0)
            await rig.session.append(MAIN, "later")
            await commit

        rig.run(work())
        assert rig.stored()[""] == ["m0", "staged", "commit"]
        rig.check_sound()
        assert rig.stored()[""] == ["m0", "staged", "commit", "later", "after"]


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_a_group_that_fails_is_withdrawn_whole_and_each_of_it_is_told(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AioRig(monkeypatch) as rig:
        if slow:
            rig.slow()
        rig.disk.fail("pwrite", errno=errno.ENOSPC, path="main.zst")
        raised = rig.run(outcomes(*(rig.session.commit([MAIN.append(n)]) for n in range(CROWD))))
        assert [type(error) for error in raised] == [WriteFailed] * CROWD
        assert len({id(error) for error in raised}) == CROWD, "each caller gets an error object of its own"
        assert rig.stored()[""] == ["m0"]
        rig.check_sound()


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_after_a_failed_sync_all_of_the_group_are_told_that_the_outcome_is_unknown(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AioRig(monkeypatch) as rig:
        if slow:
            rig.slow()
        rig.disk.fail("sync", path="main.zst")
        raised = rig.run(outcomes(*(rig.session.commit([MAIN.append(n)]) for n in range(CROWD))))
        assert [type(error) for error in raised] == [OutcomeUnknown] * CROWD
        assert [e.element for e in rig.run(rig.session.read(MAIN))] == ["m0"], "what is in doubt is not shown"
        with pytest.raises(LogPoisoned):
            rig.run(rig.session.commit([MAIN.append("next")]))
        rig.check_quiet()


def test_a_commit_is_shown_when_it_is_acknowledged_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that is asked beside it waits for it; one that was asked before does not show it."""
    with AioRig(monkeypatch) as rig:
        rig.slow()

        async def work() -> None:
            before = asyncio.ensure_future(rig.session.read(MAIN))
            await asyncio.sleep(0)
            commit = asyncio.ensure_future(rig.session.commit([MAIN.append("new")]))
            await asyncio.sleep(0)
            after = asyncio.ensure_future(rig.session.read(MAIN))
            await asyncio.sleep(0)
            assert not commit.done() and not after.done()
            assert [e.element for e in await before] == ["m0"]
            assert [e.element for e in await after] == ["m0", "new"]
            assert commit.done()

        rig.run(work())
        rig.check_quiet()


# --- many scopes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", ["", "commit", "retirement"])
def test_a_loop_that_stores_many_scopes_gives_way_between(beside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand living scopes whose windows end together must not hold the loop in one go."""
    with AioRig(monkeypatch) as rig:
        turns: list[int] = []
        scopes = [ephemeral(f"many-{n}").list_of("op", "out") for n in range(40)]

        async def count() -> None:
            while rig.session.stats()["pending_elements"]:
                turns.append(int(rig.session.stats()["pending_elements"]))
                await asyncio.sleep(0)

        async def work() -> None:
            for scope in scopes:
                await rig.session.append(scope, "element")
            rig.time.flusher_off = True
            await asyncio.sleep(0.1)
            if beside == "retirement":
                await rig.session.commit([ephemeral("many-39").retire()])
                assert rig.session.stats()["pending_elements"] == 0, "a retirement overtakes nothing"
            elif beside == "commit":
                await rig.session.commit([MAIN.append("beside")])
            await count()

        rig.run(work())
        assert turns == sorted(turns, reverse=True)
        assert len(turns) >= 2 or beside == "retirement"
        rig.check_sound()


# --- the bound ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_tasks_at_the_bound_wait_for_room_and_lose_nothing(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch, pending_bytes=4096, window_ms=60_000) as rig:
        if slow:
            rig.slow(0.01)

        async def stream(name: str) -> None:
            for n in range(30):
                await rig.session.append(OUT, [name, n], "t" * 20)
                assert rig.session.stats()["pending_bytes"] <= 4096

        began = rig.time.now
        rig.run(outcomes(*(stream(name) for name in "abc")))
        assert rig.time.now - began < 1, "they waited for a window"
        rig.check_sound()
        found = rig.stored()["op-1"]
        for name in "abc":
            assert [e for e in found if e[0] == name and e != "after"] == [[name, n] for n in range(30)]


def test_a_task_at_the_bound_is_told_why_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch, pending_bytes=4096, window_ms=60_000) as rig:
        rig.disk.fail("pwrite", errno=errno.ENOSPC, path=".scope.zst", persistent=True)

        async def fill() -> int:
            for n in range(100):
                try:
                    await rig.session.append(OUT, n, "t" * 20)
                except WriteFailed:
                    return n
            raise AssertionError("no bound")

        taken = rig.run(fill())
        rig.disk.heal()
        rig.run(rig.session.flush())
        assert rig.stored()["op-1"] == ["x0", *range(taken)]
        rig.check_sound()


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_a_barrier_stores_what_a_failed_retirement_has_put_back(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was admitted before the flush, and set aside: the flush waits for the outcome."""
    with AioRig(monkeypatch) as rig:
        if slow:
            rig.slow(0.01)
        rig.disk.fail("pwrite", path="main.zst")

        async def work() -> None:
            await rig.session.append(OUT, "set aside")
            retiring = asyncio.ensure_future(rig.session.commit([SCOPE.retire()]))
            await asyncio.sleep(0)
            await rig.session.flush()
            assert rig.stored()["op-1"] == ["x0", "set aside"]
            with pytest.raises(WriteFailed):
                await retiring

        rig.run(work())
        rig.check_sound()


# --- closing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
@pytest.mark.parametrize("sync", [False, True], ids=["awaited", "called"])
def test_closing_stores_what_other_tasks_wait_for(slow: bool, sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch) as rig:
        if slow:
            rig.slow(0.01)

        async def work() -> list[object]:
            await rig.session.append(OUT, "staged")
            tasks = [asyncio.ensure_future(rig.session.commit([MAIN.append(n)])) for n in range(5)]
            tasks.append(asyncio.ensure_future(rig.session.commit([SCOPE.retire()])))
            late = asyncio.ensure_future(rig.session.append(OUT, "waits for the retirement"))
            await asyncio.sleep(0)
            if sync:
                rig.session.sync.close()
            else:
                await rig.session.close()
            return await outcomes(*tasks, late)

        *receipts, late = rig.run(work())
        assert all(isinstance(receipt, Receipt) for receipt in receipts)
        assert isinstance(late, HandleClosed | int)
        assert rig.stored() == {"": ["m0", 0, 1, 2, 3, 4], "op-1": [], "op-2": []}
        rig.check_requests()


@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_closing_answers_a_flush_that_was_asked_for(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a level that closing itself does not bring its scope to. The flush was told that the disk had failed."""
    with AioRig(monkeypatch) as rig:
        if slow:
            rig.slow(0.01)

        async def work() -> None:
            flush = asyncio.ensure_future(rig.session.flush(Durability.POWER))
            await asyncio.sleep(0)
            rig.sync.close()
            await flush

        rig.run(work())
        assert rig.stored(rig.disk.crash(LoseAll()))["op-1"] == ["x0"]
        rig.check_requests()


def test_leaving_the_context_of_a_session_and_a_store_closes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by an error, or a cancellation; what is staged is stored."""
    with AioRig(monkeypatch) as rig:

        async def session(error: type[BaseException] | None, n: int) -> None:
            async with rig.store, rig.session as session:
                await session.append(MAIN, n)
                if error is not None:
                    raise error

        with pytest.raises(asyncio.CancelledError):
            rig.run(session(asyncio.CancelledError, 1))
        with pytest.raises(HandleClosed):
            rig.run(rig.session.append(MAIN, 0))
        with pytest.raises(HandleClosed):
            rig.run(rig.store.session("s"))
        assert rig.stored()[""] == ["m0", 1]


# --- reads ----------------------------------------------------------------------------------------------------------


def test_a_long_read_lets_other_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch) as rig:
        rig.sync.commit([MAIN.append(n) for n in range(20_000)])
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def read() -> list[Json]:
            counting = asyncio.ensure_future(count())
            try:
                return [e.element for e in await rig.session.read(MAIN)]
            finally:
                counting.cancel()

        assert rig.run(read()) == ["m0", *range(20_000)]
        assert turns > 2


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [None, 0, 1, 31, 32, 33, 64, 100, 1000])
@pytest.mark.parametrize("stop", [None, "here"])
def test_a_read_in_slices_is_the_read(
    order: Any, limit: int | None, stop: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every limit, and with the tag on a slice's edge."""
    with AioRig(monkeypatch) as rig:
        rig.sync.commit([MAIN.append(n, "here" if n == 63 else None) for n in range(95)])
        for n in range(40):
            rig.sync.append(MAIN, n)
        keywords: Any = {"order": order, "limit": limit, "stop_at_tag": stop}
        expected = rig.sync.read(MAIN, **keywords)
        assert rig.run(rig.session.read(MAIN, **keywords)) == expected
        rig.slow()
        assert rig.run(rig.session.read(MAIN, **keywords)) == expected
        cursor = expected[len(expected) // 2].seq if expected else 7
        assert rig.run(rig.session.read(MAIN, cursor=cursor, **keywords)) == rig.sync.read(
            MAIN, cursor=cursor, **keywords
        )


def test_a_coalescer_that_calls_the_session_is_refused_in_tasks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch) as rig:
        refused: list[InvalidInput] = []

        def join(run: Any) -> list[tuple[Json, int]]:
            with pytest.raises(InvalidInput) as caught:
                rig.session.sync.flush()
            refused.append(caught.value)
            work = rig.session.flush()
            with pytest.raises(InvalidInput):
                work.send(None)
            return [("".join(run), len(run))]

        target = SCOPE.list_of("op", "text", coalescer=join)

        async def work() -> None:
            for _ in range(2):
                await rig.session.append(target, "a")
                await rig.session.append(target, "b")
                await rig.session.flush()
            await rig.session.append(target, "c")
            await rig.session.append(target, "d")
            assert [e.element for e in await rig.session.read(target)] == ["ab", "ab", "cd"]

        rig.run(work())
        assert len(refused) == 3
        rig.check_sound()


def test_a_session_that_was_opened_elsewhere_gets_the_face(monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch) as rig:
        face = AsyncSession(rig.sync)
        assert (face.id, face.epoch, face.recovery) == ("s", rig.sync.epoch, rig.sync.recovery)
        rig.run(outcomes(face.commit([TITLE.set(1)]), rig.session.commit([TITLE.set(2)])))
        assert rig.run(face.get(TITLE)) == rig.sync.get(TITLE) == 2
        assert face.stats() == rig.session.stats() == rig.sync.stats()
        assert face.scopes() == ["op-1"] and face.durable_seq(SCOPE, Durability.POWER) == 0
