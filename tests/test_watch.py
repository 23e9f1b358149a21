"""Watches of values and lists: what is shown and when, who is slow, who comes back, how a watch ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz.simdisk import SimDisk
from scopelog import (
    Changed,
    Ended,
    EndReason,
    HandleClosed,
    HandleFenced,
    HandleForked,
    InvalidAddress,
    InvalidInput,
    ListBase,
    ManualClock,
    ReadFailed,
    ScopelogError,
    Session,
    Store,
    ValueBase,
    WriteFailed,
)
from scopelog.aio import AsyncSession
from scopelog_engine import feeds
from scopelog_engine.feeds import LIMIT, Feed, parse_position
from scopelog_engine.watching import IDLE_FEEDS

from .aio_rig import AioRig
from .children import child
from .test_interrupted import Entries
from .watch_rig import MEMO, OUT, OUT_TEXT, PLAIN, SCOPE, STATE, TEXT, Follower, Shown, state_of

FOLLOWED: tuple[Any, ...] = (PLAIN, TEXT, STATE, OUT, OUT_TEXT, MEMO)


class Rig:
    def __init__(self, **settings: Any) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.store = Store.open("/store", fs=self.disk, clock=self.clock, **settings)
        self.session = self.store.session("s")


@pytest.fixture
def rig() -> Iterator[Rig]:
    one = Rig()
    yield one
    one.disk.heal()
    with contextlib.suppress(ScopelogError):
        one.store.close(force=True)


def events(watch: Any) -> list[Any]:
    found = []
    while (event := watch.next(0)) is not None and event not in found:
        found.append(event)
    return found


# --- what is shown, and when ------------------------------------------------------------------------------------------


def test_a_watch_begins_with_its_base_and_goes_on_with_what_is_admitted(rig: Rig) -> None:
    rig.session.commit([PLAIN.append("a", tag="t")])
    first = rig.session.append(PLAIN, "b")
    with rig.session.watch(PLAIN) as watch:
        rig.session.append(PLAIN, "c")
        receipt = rig.session.commit([PLAIN.append("d", "u"), STATE.set(1), PLAIN.trim(first)])
        base, staged, commit = events(watch)
    assert isinstance(base, ListBase) and [e[1:] for e in base.elements] == [("a", "t"), ("b", None)]
    assert isinstance(staged, Changed) and [change[1:] for change in staged.changes] == [("append", "c", None, None)]
    assert list(commit.changes) == [
        (receipt.first, "append", "d", "u", None),
        (receipt.last, "trim", None, None, first),
    ]
    assert watch.next() == Ended(commit.position, EndReason.STOPPED, None, False)


def test_a_value_that_is_not_there_is_told_from_one_that_is_none(rig: Rig) -> None:
    watch = rig.session.watch(STATE)
    rig.session.commit([STATE.set(None)])
    other = rig.session.watch(STATE)
    rig.session.commit([STATE.delete()])
    base, changed, gone = events(watch)
    assert isinstance(base, ValueBase) and base.entry is None
    assert [change[1:3] for change in changed.changes] == [("set", None)]
    assert [change[1] for change in gone.changes] == ["delete"]
    there = other.next(0)
    assert isinstance(there, ValueBase) and there.entry is not None and there.entry.value is None


def test_a_commit_is_one_batch_and_one_that_fails_is_never_shown(rig: Rig) -> None:
    follower = Follower(rig.session, PLAIN)
    follower.take()
    rig.disk.fail("pwrite", errno=errno.ENOSPC)
    with pytest.raises(WriteFailed):
        rig.session.commit([PLAIN.append("never"), PLAIN.append("never")])
    assert follower.watch.next(0) is None
    rig.session.commit([PLAIN.append(1), PLAIN.append(2)])
    assert follower.take() == 1
    follower.check(rig.session)


def test_what_is_handed_out_is_nobody_elses(rig: Rig) -> None:
    rig.session.commit([PLAIN.append({"a": [1]})])
    watches = [rig.session.watch(PLAIN) for _ in range(2)]
    rig.session.append(PLAIN, {"b": [2]})
    for watch in watches:
        base, changed = events(watch)
        base.elements[0].element["a"].append("changed")
        changed.changes[0].value["b"].append("changed")
        with pytest.raises(AttributeError):
            base.elements = ()
    assert [e.element for e in rig.session.read(PLAIN)] == [{"a": [1]}, {"b": [2]}]
    (base,) = events(rig.session.watch(PLAIN))
    assert [e.element for e in base.elements] == [{"a": [1]}, {"b": [2]}]


def test_a_base_may_be_a_part_of_the_list(rig: Rig) -> None:
    numbers = [rig.session.append(PLAIN, n) for n in range(5)]
    rig.session.flush()
    numbers += [rig.session.append(PLAIN, n) for n in range(5, 8)]

    def base(**options: Any) -> list[Any]:
        (event,) = events(rig.session.watch(PLAIN, **options))
        return [e.element for e in event.elements]

    assert base(cursor=numbers[3]) == [4, 5, 6, 7]
    assert base(last=2) == [6, 7] and base(last=0) == [] and base(last=100) == [*range(8)]
    assert base(cursor=numbers[5], last=5) == [6, 7]


def test_elements_that_are_joined_later_fold_to_the_same(rig: Rig) -> None:
    """Published one by one, stored as one: a trim within the run cuts what was shown, not what is stored."""
    followers = [Follower(rig.session, TEXT)]
    numbers = [rig.session.append(TEXT, text) for text in "abcd"]
    followers[0].take()
    followers.append(Follower(rig.session, TEXT))  # seals: joins what is pending
    rig.session.append(TEXT, "e")
    rig.session.flush()
    followers.append(Follower(rig.session, TEXT))
    for follower in followers:
        follower.check(rig.session)
    rig.session.commit([TEXT.trim(numbers[1])])  # stored: "abc", "d", "e"
    for follower in followers:
        follower.check(rig.session)
    assert [e.element for e in rig.session.read(TEXT)] == ["abc", "d", "e"]


# --- started at every moment, while writes are under way --------------------------------------------------------------


class Crowd:
    """Tasks that watch every address: eager ones, slow ones, and such as stop and come back."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session
        self.members: list[tuple[Any, Shown, Any]] = []
        self.followers: list[asyncio.Future[None]] = []
        self.over = False

    async def join(self, moment: int) -> None:
        for address in (FOLLOWED[moment % 6], FOLLOWED[(moment + 3) % 6]):
            style = ("eager", "slow", "eager", "back")[len(self.members) % 4]
            watch: Any = await self.session.watch(address, limit=2 if style == "slow" else LIMIT)
            self.members.append((watch, Shown(address), style))
            self.followers.append(asyncio.ensure_future(self.follow(len(self.members) - 1)))

    async def follow(self, at: int) -> None:
        """Take events now and then; some stop and come back in between."""
        turn = 0
        while not self.over:
            await asyncio.sleep(0.008 + 0.004 * (at % 5))
            turn += 1
            watch, shown, style = self.members[at]
            if style == "slow" and turn % 5:
                continue
            if style == "back" and turn % 2:
                watch.stop()
                watch = await self.session.watch(shown.address, after=watch.position)
                self.members[at] = (watch, shown, style)
            await take(watch, shown, 1 if style == "slow" else None)


async def take(watch: Any, shown: Shown, count: int | None = None) -> None:
    while shown.ended is None and (count is None or count > 0):
        event = await watch.next(0)
        if event is None:
            return
        shown.take(event)
        if count is not None:
            count -= 1


@pytest.mark.parametrize("window", [0, 50, 200])
@pytest.mark.parametrize("fault", ["none", "write", "sync of a scope"])
def test_watches_begin_at_every_moment_of_a_stream(window: int, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow disk: commits are in a thread's hands while watches begin, and elements are staged behind them."""
    with AioRig(monkeypatch, window_ms=window, born=False) as rig:
        session = rig.session
        crowd = Crowd(session)
        rig.sync.commit([STATE.set("born"), PLAIN.append("born")])
        rig.sync.commit([OUT.append("born")])
        rig.slow(0.02)

        async def attempt(work: Any) -> None:
            with contextlib.suppress(ScopelogError):
                await work

        async def produce() -> None:
            tasks: list[Any] = []
            for moment in range(20):
                tasks.append(asyncio.ensure_future(crowd.join(moment)))
                if moment == 9 and fault == "write":
                    rig.disk.fail("pwrite", errno=errno.ENOSPC)
                if moment == 9 and fault == "sync of a scope":
                    rig.disk.fail("sync", path=".scope.zst")
                for target in (PLAIN, TEXT, OUT, OUT_TEXT):
                    tasks.append(asyncio.ensure_future(attempt(session.append(target, f"{moment} "))))
                if moment % 3 == 0:
                    writes = [STATE.set(moment), PLAIN.append(f"c{moment} "), TEXT.append(f"c{moment} ")]
                    tasks.append(asyncio.ensure_future(attempt(session.commit(writes))))
                    memo = [MEMO.set(moment), OUT.append(f"c{moment} ")]
                    tasks.append(asyncio.ensure_future(attempt(session.commit(memo))))
                tasks.append(asyncio.ensure_future(crowd.join(moment)))
                if moment == 15:
                    tasks.append(asyncio.ensure_future(attempt(session.commit([SCOPE.retire(), PLAIN.trim(3)]))))
                await asyncio.sleep(0.003 * (moment % 4))
            await asyncio.gather(*tasks)
            await asyncio.sleep(0.3)
            crowd.over = True
            await asyncio.gather(*crowd.followers)

        rig.run(produce())
        rig.disk.heal()

        async def settle() -> None:
            ended = 0
            for watch, shown, style in crowd.members:
                await take(watch, shown)
                if shown.ended is not None:
                    assert shown.ended.reason is EndReason.RETIRED and shown.address.scope_id
                    assert style == "slow" or not shown.ended.missed
                    ended += 1
            assert ended or fault != "none"

        rig.run(settle())
        for _, shown, _style in crowd.members:
            if shown.ended is None:
                assert shown.state() == state_of(rig.sync, shown.address)
        rig.run(session.close(force=True)) if fault == "none" else None


def values_of(watch: Any) -> list[Any]:
    """Values of the changes that are there now."""
    found: list[Any] = []
    while (event := watch.next(0)) is not None and not isinstance(event, Ended):
        found += [change.value for change in event.changes]
    return found


def test_what_stands_behind_a_commit_under_way_is_shown_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, and without any further call: the window is a minute long."""
    with AioRig(monkeypatch, window_ms=60_000) as rig:
        watch = rig.sync.watch(PLAIN)
        watch.next(0)
        rig.slow(0.02)

        async def work() -> None:
            committing = asyncio.ensure_future(rig.session.commit([PLAIN.append("commit")]))
            await asyncio.sleep(0.005)
            await rig.session.append(PLAIN, "behind")
            assert values_of(watch) == []
            await committing
            assert values_of(watch) == ["commit", "behind"]

        rig.run(work())


def test_what_stands_behind_a_commit_that_is_withdrawn_is_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch, window_ms=60_000) as rig:
        watch = rig.sync.watch(OUT)
        watch.next(0)
        rig.slow(0.02)

        async def work() -> None:
            first = asyncio.ensure_future(rig.session.commit([PLAIN.append("first")]))
            await asyncio.sleep(0.005)
            second = asyncio.ensure_future(rig.session.commit([OUT.append("withdrawn")]))
            await asyncio.sleep(0.005)
            await rig.session.append(OUT, "behind")
            assert values_of(watch) == []
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            assert second.cancelled() and not first.done()
            assert values_of(watch) == ["behind"]
            await first

        rig.run(work())


def test_a_commit_that_waits_while_a_watch_begins_is_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch began between the end of one commit and the storing of the next."""
    with AioRig(monkeypatch) as rig:
        rig.slow(0.02)

        async def work() -> None:
            first = asyncio.ensure_future(rig.session.commit([PLAIN.append("first")]))
            await asyncio.sleep(0.005)
            beginning = asyncio.ensure_future(rig.session.watch(PLAIN))
            await asyncio.sleep(0.005)
            second = asyncio.ensure_future(rig.session.commit([PLAIN.append("second")]))
            await asyncio.sleep(0)
            await rig.session.append(PLAIN, "behind")
            watch = await beginning
            base = await watch.next()
            assert isinstance(base, ListBase) and [e.element for e in base.elements] == ["first"]
            await asyncio.gather(first, second)
            found: list[Any] = []
            while (event := await watch.next(0)) is not None:
                assert isinstance(event, Changed)
                found += [change.value for change in event.changes]
            assert found == ["second", "behind"]

        rig.run(work())


def test_what_a_failed_retirement_had_set_aside_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch, window_ms=60_000) as rig:
        watch = rig.sync.watch(OUT)
        watch.next(0)

        async def work() -> None:
            committing = asyncio.ensure_future(rig.session.commit([OUT.append("commit")]))
            appending = asyncio.ensure_future(rig.session.append(OUT, "aside"))
            rig.disk.fail("pwrite", errno=errno.ENOSPC, path="main")
            retiring = asyncio.ensure_future(rig.session.commit([SCOPE.retire()]))
            await asyncio.gather(committing, appending, retiring, return_exceptions=True)
            assert isinstance(retiring.exception(), WriteFailed)
            assert values_of(watch) == ["commit", "aside"]

        rig.run(work())


# --- who is slow ------------------------------------------------------------------------------------------------------


def test_a_backlog_past_the_limit_becomes_one_base(rig: Rig) -> None:
    watch = rig.session.watch(PLAIN)
    watch.next(0)
    for n in range(LIMIT):
        rig.session.append(PLAIN, n)
    exact = rig.session.watch(PLAIN, after=watch.position)
    rig.session.append(PLAIN, "one more")
    (base,) = events(watch)
    assert isinstance(base, ListBase) and [e.element for e in base.elements] == [*range(LIMIT), "one more"]
    assert isinstance(exact.next(0), ListBase)  # it was as far behind
    again = rig.session.watch(PLAIN)
    again.next(0)
    for n in range(LIMIT):
        rig.session.append(PLAIN, n)
    assert len(events(again)) == LIMIT


def test_each_watch_has_a_limit_of_its_own(rig: Rig) -> None:
    near, far = rig.session.watch(PLAIN, limit=2), rig.session.watch(PLAIN, limit=1000)
    for n in range(2):
        rig.session.append(PLAIN, n)
    assert [event.kind for event in events(near)] == ["base", "batch", "batch"]
    for n in range(2 * LIMIT):
        rig.session.append(PLAIN, n)
    assert [event.kind for event in events(near)] == ["base"]
    assert len(events(far)) == 1 + 2 + 2 * LIMIT


def test_large_batches_are_bounded_by_their_bytes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LIMIT_BYTES", 10_000)
    watch = rig.session.watch(PLAIN)
    watch.next(0)
    for n in range(50):
        rig.session.append(PLAIN, [n, "x" * 1000])
    (feed,) = rig.session._writer._all_feeds()
    assert len(feed.log) < 10
    rig.session.append(PLAIN, "y" * 50_000)
    assert len(feed.log) == 1
    assert [type(event) for event in events(watch)] == [ListBase]


def test_a_feed_lasts_as_long_as_somebody_could_come_back_to_it(rig: Rig) -> None:
    writer = rig.session._writer
    watch = rig.session.watch(PLAIN)
    watch.next(0)
    watch.stop()
    for n in range(LIMIT - 1):
        rig.session.append(PLAIN, n)
    back = rig.session.watch(PLAIN, after=watch.position)
    assert [type(event) for event in events(back)] == [Changed] * (LIMIT - 1)
    back.stop()
    for n in range(LIMIT + 1):
        rig.session.append(PLAIN, n)
    assert writer._watched == {} and writer._main.feeds is None
    assert isinstance(rig.session.watch(PLAIN, after=watch.position).next(0), ListBase)


def test_feeds_that_nobody_watches_are_bounded(rig: Rig) -> None:
    for n in range(IDLE_FEEDS + 10):
        with rig.session.watch(SCOPE.value("n", str(n))) as watch:
            watch.next(0)
    assert len(rig.session._writer._all_feeds()) <= IDLE_FEEDS


def test_a_watch_that_is_forgotten_is_forgotten(rig: Rig) -> None:
    watch = rig.session.watch(PLAIN)
    (feed,) = rig.session._writer._all_feeds()
    assert len(feed.watchers) == 1
    del watch
    assert len(feed.watchers) == 0


def calls_of(work: Callable[[], object]) -> int:
    """Functions entered and left, builtin ones included."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_thousand_watchers_cost_the_producer_what_one_costs() -> None:
    costs: dict[int, list[int]] = {}
    for watchers in (0, 1, 1000):
        rig = Rig()
        session = rig.session
        watches = [rig.session.watch(PLAIN) for _ in range(watchers)]
        for n in range(2 * LIMIT):  # until the feed drops old batches
            rig.session.append(PLAIN, n)
        costs[watchers] = [calls_of(lambda: session.append(PLAIN, "x")) for _ in range(5)]  # noqa: B023
        costs[watchers].append(calls_of(lambda: session.commit([PLAIN.append("y"), STATE.set(1)])))  # noqa: B023
        assert [type(watch.next(0)) for watch in watches] == [ListBase] * watchers
        rig.store.close()
    assert costs[1000] == costs[1]
    assert all(one - none < 100 for one, none in zip(costs[1], costs[0], strict=True))


def test_tasks_that_wait_are_woken_by_one_call_into_their_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = []
    for waiting in (1, 1000):
        with AioRig(monkeypatch) as rig:
            costs.append(rig.run(cost_of_waking(rig, waiting)))
    assert costs[0] == costs[1]


async def cost_of_waking(rig: AioRig, waiting: int) -> int:
    watches = [await rig.session.watch(PLAIN) for _ in range(waiting)]
    for watch in watches:
        await watch.next()
    tasks = [asyncio.ensure_future(watch.next()) for watch in watches]
    await asyncio.sleep(0)
    cost = calls_of(lambda: rig.sync.append(PLAIN, 1))
    cost += calls_of(lambda: rig.sync.append(PLAIN, 2))  # they are about to be woken
    found: list[Any] = await asyncio.gather(*tasks)
    assert all(event.changes[0].value == 1 for event in found)
    (feed,) = rig.sync._writer._all_feeds()
    assert [len(loop.futures) for loop in feed._loops] == [0]
    return cost


def test_threads_that_wait_are_woken_by_one_notification(store_path: Path) -> None:
    crowd = 40
    with Store.open(store_path) as store, store.session("s") as session:
        watches = [session.watch(PLAIN) for _ in range(crowd)]
        found: list[Any] = [None] * crowd
        all_wait = threading.Barrier(crowd + 1)

        def follow(at: int) -> None:
            watches[at].next()
            all_wait.wait()
            found[at] = watches[at].next()

        threads = [threading.Thread(target=follow, args=(at,)) for at in range(crowd)]
        for thread in threads:
            thread.start()
        all_wait.wait()
        (feed,) = session._writer._all_feeds()
        while feed._waiting < crowd:
            threading.Event().wait(0.001)
        notified: list[int] = []
        original = feed._condition.notify
        main = threading.get_ident()

        def notify(n: int = 1) -> None:
            if threading.get_ident() == main:
                notified.append(n)
            original(n)

        feed._condition.notify = notify  # type: ignore[method-assign]
        session.append(PLAIN, "x")
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert notified == [1]
        assert all(isinstance(event, Changed) for event in found)


# --- who comes back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "-", "-1", "x", "0" * 16 + "-0", "é-1", "0" * 16 + "-²", "0" * 16 + "-" + "9" * 400, "\ud800", "1-1-1"]
)
def test_a_text_that_is_no_position_is_answered_with_a_base(text: str, rig: Rig) -> None:
    rig.session.watch(PLAIN)
    assert isinstance(rig.session.watch(PLAIN, after=text).next(0), ListBase)


def test_positions_are_good_for_their_own_feed_alone(rig: Rig) -> None:
    follower = Follower(rig.session, PLAIN)
    rig.session.append(PLAIN, 1)
    follower.take()
    position = follower.watch.position
    parsed = parse_position(position)
    assert parsed is not None and position == f"{parsed[0]}-{parsed[1]}"
    assert isinstance(rig.session.watch(TEXT, after=position).next(0), ListBase)
    ahead = f"{parsed[0]}-{parsed[1] + 1}"
    assert isinstance(rig.session.watch(PLAIN, after=ahead).next(0), ListBase)
    out = Follower(rig.session, OUT)
    rig.session.append(OUT, 1)
    out.take()
    rig.session.commit([SCOPE.retire()])
    rig.session.append(OUT, 2)
    (base,) = events(rig.session.watch(OUT, after=out.watch.position))
    assert [e.element for e in base.elements] == [2]
    rig.session.close()
    again = rig.store.session("s")
    assert isinstance(again.watch(PLAIN, after=position).next(0), ListBase)


# --- how it ends ------------------------------------------------------------------------------------------------------


def test_a_retirement_ends_the_watches_of_its_scope(rig: Rig) -> None:
    nothing_written = rig.session.watch(MEMO)
    main = rig.session.watch(PLAIN)
    rig.session.commit([SCOPE.retire()])
    assert [event.kind for event in nothing_written] == ["base", "end"]
    rig.session.append(OUT, 1)
    watch = rig.session.watch(OUT)
    rig.session.append(OUT, 2)
    rig.session.commit([SCOPE.retire(), PLAIN.append("x")])
    rig.session.append(OUT, "another life")
    base, changed, end = watch
    assert (base.kind, changed.kind, end.kind) == ("base", "batch", "end")
    assert end == watch.ended == Ended(changed.position, EndReason.RETIRED, None, False)
    assert [event.kind for event in events(main)] == ["base", "batch"]
    (again,) = events(rig.session.watch(OUT))
    assert [e.element for e in again.elements] == ["another life"]


def test_a_retirement_that_fails_ends_nothing(rig: Rig) -> None:
    rig.session.append(OUT, 1)
    follower = Follower(rig.session, OUT)
    rig.disk.fail("pwrite", errno=errno.ENOSPC, path="main", persistent=True)
    with pytest.raises(WriteFailed):
        rig.session.commit([SCOPE.retire()])
    rig.disk.heal()
    rig.session.append(OUT, 2)
    follower.check(rig.session)
    assert follower.shown.bases == 1


def test_a_fenced_session_ends_its_watches_with_the_error(rig: Rig) -> None:
    watch = rig.session.watch(PLAIN)
    watch.next(0)
    rig.disk.unlink("/store/s.session/LOCK")
    with pytest.raises(HandleFenced):
        rig.session.commit([PLAIN.append(1)])
    (end,) = watch
    assert isinstance(end, Ended) and end.reason is EndReason.FAILED and isinstance(end.error, HandleFenced)
    assert end.data() == {"reason": "failed", "error": "HandleFenced", "missed": False}


def test_a_base_that_cannot_be_read_is_an_error_at_first_and_an_end_later(rig: Rig) -> None:
    rig.session.commit([PLAIN.append("x" * 300_000)])
    watch = rig.session.watch(PLAIN, limit=1)
    watch.next(0)
    rig.session.commit([PLAIN.append("y" * 300_000)])
    rig.session.commit([PLAIN.append(1)])
    rig.disk.fail("pread", errno=errno.EIO, persistent=True)
    with pytest.raises(ReadFailed):
        rig.session.watch(PLAIN)
    (end,) = watch
    assert isinstance(end, Ended) and (end.reason, end.missed) == (EndReason.FAILED, True)
    assert isinstance(end.error, ReadFailed)


def test_calls_that_mean_nothing_are_refused(rig: Rig) -> None:
    wrong: Any
    for wrong in (0, 10_001, "1", True):
        with pytest.raises(InvalidInput):
            rig.session.watch(PLAIN, limit=wrong)
    for wrong in ("n", None, SCOPE):
        with pytest.raises(InvalidInput):
            rig.session.watch(wrong)
    with pytest.raises(InvalidInput):
        rig.session.watch(PLAIN, after=b"x")  # type: ignore[call-overload]
    with pytest.raises(InvalidAddress):
        rig.session.watch(PLAIN, last=-1)
    with pytest.raises(InvalidAddress):
        rig.session.watch(PLAIN, cursor=-1)
    for options in ({"last": 1}, {"cursor": 1}):
        with pytest.raises(InvalidAddress):
            rig.session.watch(STATE, **options)  # type: ignore[call-overload]
    assert rig.session._writer._watched == {}
    rig.session.close()
    with pytest.raises(HandleClosed):
        rig.session.watch(PLAIN)


def test_a_forked_child_sees_its_watches_end(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        watch = session.watch(PLAIN)
        watch.next(0)

        def work() -> str:
            end = watch.next()
            watch.stop()
            assert isinstance(end, Ended) and isinstance(end.error, HandleForked)
            return end.reason.value

        with child(work) as answer:
            assert answer == "failed"
        session.append(PLAIN, 1)
        assert [event.kind for event in events(watch)] == ["batch"]


# --- interrupted anywhere ---------------------------------------------------------------------------------------------

INTERRUPTED: dict[str, Callable[[Session], object]] = {
    "append": lambda session: session.append(PLAIN, "maybe"),
    "commit": lambda session: session.commit([PLAIN.append("maybe"), TEXT.append("maybe"), STATE.set("maybe")]),
    "commit to a scope": lambda session: session.commit([OUT.append("maybe"), MEMO.set("maybe")]),
    "flush": lambda session: session.flush(),
    "retirement": lambda session: session.commit([SCOPE.retire(), PLAIN.append("maybe")]),
    "trim": lambda session: session.commit([TEXT.trim(4), PLAIN.delete()]),
    "close": lambda session: session.close(),
    "watch": lambda session: session.watch(OUT_TEXT),
    "read": lambda session: session.read(TEXT),
}


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interruption_anywhere_loses_and_repeats_nothing(name: str, error: type[BaseException]) -> None:
    nth = 0
    while True:
        nth += 1
        rig = Rig()
        session = rig.session
        session.commit([PLAIN.append("p"), STATE.set(1)])
        for text in ("a", "b"):
            session.append(TEXT, text)
            session.append(OUT, text)
            session.append(OUT_TEXT, text)
        followers = [Follower(session, address) for address in FOLLOWED]
        for follower in followers[::2]:
            follower.take()
        entries = Entries(nth, error)
        with contextlib.suppress(error, ScopelogError), entries:
            INTERRUPTED[name](session)
        if session._writer._letting_go:
            session.close(force=True)
        else:
            for again in range(2):
                session.commit([PLAIN.append(again), TEXT.append("c")])
                session.append(PLAIN, again)
                session.append(TEXT, "d")
            session.flush()
        for follower in followers:
            follower.take()
            end = follower.shown.ended
            if session._writer._closed:
                assert end is not None and end.reason is EndReason.CLOSED, entries.where
            elif end is None:
                assert follower.shown.state() == state_of(session, follower.address), entries.where
                assert follower.shown.bases == 1 or follower.address.key == "text", entries.where
            else:
                assert name == "retirement" and follower.address.scope_id, entries.where
        with contextlib.suppress(ScopelogError):
            rig.store.close(force=True)
        if not entries.where:
            break
    assert nth > 5


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_watcher_misses_nothing(error: type[BaseException]) -> None:
    nth = 0
    while True:
        nth += 1
        rig = Rig()
        follower = Follower(rig.session, PLAIN, limit=2)
        follower.take()
        for n in range(5):
            rig.session.append(PLAIN, n)
        entries = Entries(nth, error)
        with contextlib.suppress(error), entries:
            follower.take()
        follower.check(rig.session)
        rig.session.append(PLAIN, "x")
        follower.check(rig.session)
        rig.store.close()
        if not entries.where:
            break
    assert nth > 5


# --- threads and tasks ------------------------------------------------------------------------------------------------


def test_threads_watch_while_threads_write(store_path: Path) -> None:
    with Store.open(store_path, window_ms=1) as store:
        session = store.session("s")
        failures: list[BaseException] = []
        finals: list[tuple[Shown, Ended | None]] = []

        def follow(address: Any, limit: int) -> None:
            try:
                with session.watch(address, limit=limit) as watch:
                    shown = Shown(address)
                    for event in watch:
                        shown.take(event)
                        if shown.batches > 20 and limit == 10_000:
                            break
                finals.append((shown, shown.ended))
            except BaseException as error:  # noqa: BLE001 - told to the test
                failures.append(error)

        def write(number: int) -> None:
            for n in range(60):
                session.append((PLAIN, TEXT)[n % 2], f"{number}.{n} ")
                if n % 10 == number:
                    session.commit([PLAIN.append("c"), TEXT.append("c"), STATE.set([number, n])])

        watchers = [
            threading.Thread(target=follow, args=(address, limit))
            for address in (PLAIN, TEXT, STATE)
            for limit in (LIMIT, 3, 10_000)
        ]
        writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in watchers + writers:
            thread.start()
        for thread in writers:
            thread.join(60)
        states = {address: state_of(session, address) for address in (PLAIN, TEXT, STATE)}
        session.close()
        for thread in watchers:
            thread.join(60)
            assert not thread.is_alive()
        assert failures == []
        assert len(finals) == len(watchers)
        for shown, ended in finals:
            if ended is not None and ended.reason is EndReason.CLOSED and not ended.missed:
                assert shown.state() == states[shown.address]  # type: ignore[index]
        assert any(ended is not None and not ended.missed for _, ended in finals)


def test_a_thread_that_waits_is_let_go_by_stop_and_by_close(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        watch, other = session.watch(PLAIN), session.watch(PLAIN)
        assert watch.next() is not None and watch.next(0.001) is None
        other.next()
        ends: list[Any] = []
        threads = [threading.Thread(target=lambda one=one: ends.append(one.next())) for one in (watch, other)]
        for thread in threads:
            thread.start()
        watch.stop()
        threads[0].join(60)
        assert [end.reason for end in ends] == [EndReason.STOPPED]
        session.close()
        threads[1].join(60)
        assert [end.reason for end in ends] == [EndReason.STOPPED, EndReason.CLOSED]


def test_tasks_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    with AioRig(monkeypatch) as rig:

        async def work() -> None:
            seen: list[Any] = []
            async with await rig.session.watch(PLAIN) as watch:
                assert (await watch.next()) is not None
                assert await watch.next(0.5) is None  # so long in virtual time
                waiting = asyncio.ensure_future(watch.next())
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                (feed,) = rig.sync._writer._all_feeds()
                assert [len(loop.futures) for loop in feed._loops] == [0]

                async def produce() -> None:
                    for n in range(3):
                        await rig.session.append(PLAIN, n)
                        await asyncio.sleep(0.01)
                    await rig.session.close()

                producing = asyncio.ensure_future(produce())
                async for event in watch:
                    seen.append(event)
                await producing
            assert [event.kind for event in seen] == ["batch", "batch", "batch", "end"]
            assert watch.ended is not None and watch.ended.reason is EndReason.CLOSED
            assert await watch.next() == watch.ended
            with pytest.raises(HandleClosed):
                await rig.session.watch(PLAIN)

        rig.run(work())
        assert rig.loop.errors == []


def test_a_loop_that_is_closed_while_a_task_waits_harms_nobody(rig: Rig) -> None:
    """Its feed forgets it; what comes later is shown to those on other loops."""
    session = AsyncSession(rig.session)
    loop = asyncio.new_event_loop()
    watch = loop.run_until_complete(session.watch(PLAIN))
    loop.run_until_complete(watch.next())
    feed: Feed = watch._at.feed
    feed.expect(loop)
    loop.close()
    rig.session.append(PLAIN, 1)
    assert feed._loops == ()
    assert isinstance(asyncio.run(watch.next()), Changed)
