"""Watches against reads, step by step, in virtual time: a base and the batches behind it are what the session reads.

Watchers begin before and after every call, take everything at once, a little now and then, or nothing for long, stop,
and come back by the text of their position. Windows of 0, 50 and 200 ms; writes and syncs that fail; retirements and
ids used again; closes that fail and closes that do not.
"""

from __future__ import annotations

import contextlib
import errno
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fuzz.simdisk import SimDisk
from scopelog import SESSION, Durability, EndReason, ManualClock, ScopelogError, Session, Store

from .watch_rig import MAIN_ADDRESSES, SCOPE, SCOPE_ADDRESSES, Follower, state_of

ADDRESSES = (*MAIN_ADDRESSES, *SCOPE_ADDRESSES)
LISTS = tuple(address for address in ADDRESSES if hasattr(address, "place"))
TAGS = st.sampled_from([None, None, None, "t"])
LEVELS = st.sampled_from([None, None, Durability.POWER])
OPS = st.sampled_from(["add", "add", "cut", "delete"])
PICK = st.integers(0, 7)


class WatchMachine(RuleBasedStateMachine):
    store: Store
    session: Session

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.eager: list[Follower] = []
        self.lazy: list[Follower] = []
        self.number = 0
        self.faulty = False

    @initialize(window=st.sampled_from([0, 50, 200]))
    def open(self, window: int) -> None:
        self.store = Store.open("/store", fs=self.disk, clock=self.clock, window_ms=window, pending_bytes=8192)
        self.session = self.store.session("s")

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        self.disk.heal()
        for one in [*self.eager, *self.lazy]:
            self.settle(one)
        with contextlib.suppress(ScopelogError):  # a poisoned log's
            self.store.close(force=True)

    def text(self) -> str:
        self.number += 1
        return f"{self.number} "

    # --- writes -------------------------------------------------------------------------------------

    @rule(address=st.sampled_from(LISTS), count=st.integers(1, 6), tag=TAGS)
    def append(self, address: Any, count: int, tag: str | None) -> None:
        for _ in range(count):
            with contextlib.suppress(ScopelogError):
                self.session.append(address, self.text(), tag)

    @rule(
        addresses=st.sampled_from([MAIN_ADDRESSES, SCOPE_ADDRESSES]),
        ops=st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from(["add", "add", "cut", "delete"])), min_size=1, max_size=4
        ),
        back=st.integers(0, 6),
        level=LEVELS,
    )
    def commit(self, addresses: tuple[Any, ...], ops: list[tuple[int, str]], back: int, level: Any) -> None:
        writes: list[Any] = []
        for at, op in ops:
            address = addresses[at]
            if at == 2:
                writes.append(address.delete() if op == "delete" else address.set([self.text()]))
            elif op == "add":
                writes.append(address.append(self.text(), "commit"))
            elif op == "cut":
                writes.append(address.trim(max(0, int(self.session.stats()["sequence"]) - back)))
            else:
                writes.append(address.delete())
        with contextlib.suppress(ScopelogError):
            self.session.commit(writes, durability=level)

    @rule(also=st.booleans())
    def retire(self, also: bool) -> None:
        alive = SCOPE.id in self.session.scopes()
        try:
            self.session.commit([SCOPE.retire(), *([MAIN_ADDRESSES[0].append(self.text())] if also else [])])
        except ScopelogError:
            return
        for one in [one for one in self.eager + self.lazy if one.address in SCOPE_ADDRESSES]:
            one.take()
            if is_stopped(one):
                continue
            assert one.shown.ended is not None and one.shown.ended.reason is EndReason.RETIRED, alive
            self.leave(one)

    @rule(level=LEVELS)
    def flush(self, level: Any) -> None:
        with contextlib.suppress(ScopelogError):
            self.session.flush(level)

    @rule(milliseconds=st.sampled_from([1, 50, 150, 6000]))
    def pass_time(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)

    @rule(scope=st.sampled_from([SESSION, SCOPE]))
    def compact(self, scope: Any) -> None:
        """Nothing that is shown changes."""
        with contextlib.suppress(ScopelogError):
            self.session.compact(scope)

    @rule(address=st.sampled_from(LISTS))
    def seal(self, address: Any) -> None:
        self.session.read(address)

    # --- trouble ------------------------------------------------------------------------------------

    @rule(op=st.sampled_from(["pwrite", "pwrite", "sync"]), nth=st.integers(1, 3), full=st.booleans())
    def fail(self, op: str, nth: int, full: bool) -> None:
        self.faulty = True
        self.disk.fail(op, nth, errno=errno.ENOSPC if op == "pwrite" else errno.EIO, path=".zst", persistent=full)

    @precondition(lambda self: self.faulty)
    @rule()
    def heal(self) -> None:
        self.disk.heal()
        self.faulty = False

    @rule(force=st.booleans())
    def close(self, force: bool) -> None:
        states = {address: state_of(self.session, address) for address in ADDRESSES}
        failure: ScopelogError | None = None
        try:
            self.session.close(force=force)
        except ScopelogError as error:
            failure = error
        if not self.session._writer._closed:
            assert failure is not None
            self.check_eager()  # it goes on
            return
        for one in [*self.eager, *self.lazy]:
            one.take()
            if is_stopped(one):
                continue
            ended = one.shown.ended
            assert ended is not None and ended.reason is EndReason.CLOSED
            assert ended.missed or one.shown.state() == states[one.address]
            assert one.options.get("limit") or not ended.missed
            self.leave(one)
        self.disk.heal()
        self.faulty = False
        self.session = self.store.session("s")

    # --- watchers -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.eager) + len(self.lazy) < 12)
    @rule(address=st.sampled_from(ADDRESSES), limit=st.sampled_from([None, 1, 3]), eager=st.booleans())
    def begin(self, address: Any, limit: int | None, eager: bool) -> None:
        one = Follower(self.session, address, **({} if limit is None else {"limit": limit}))
        (self.eager if eager else self.lazy).append(one)

    @precondition(lambda self: self.lazy)
    @rule(pick=PICK, count=st.integers(1, 4))
    def take_some(self, pick: int, count: int) -> None:
        self.lazy[pick % len(self.lazy)].take(count)

    @precondition(lambda self: self.lazy)
    @rule(pick=PICK)
    def catch_up(self, pick: int) -> None:
        self.settle(self.lazy[pick % len(self.lazy)])

    @precondition(lambda self: self.eager + self.lazy)
    @rule(pick=PICK)
    def resume(self, pick: int) -> None:
        everyone = self.eager + self.lazy
        everyone[pick % len(everyone)].resume(self.session)

    @precondition(lambda self: self.eager + self.lazy)
    @rule(pick=PICK)
    def come_back_later(self, pick: int) -> None:
        """It stops now, and is resumed by some later step."""
        everyone = self.eager + self.lazy
        one = everyone[pick % len(everyone)]
        one.watch.stop()
        if one in self.eager:
            self.eager.remove(one)
            self.lazy.append(one)

    @precondition(lambda self: self.eager + self.lazy)
    @rule(pick=PICK)
    def stop(self, pick: int) -> None:
        everyone = self.eager + self.lazy
        one = everyone[pick % len(everyone)]
        one.watch.stop()
        one.watch.stop()
        assert one.watch.next() == one.watch.next() == one.watch.ended
        assert one.watch.ended is not None and one.watch.ended.reason is EndReason.STOPPED
        self.leave(one)

    # --- what holds ---------------------------------------------------------------------------------

    def settle(self, one: Follower) -> None:
        """Caught up, it shows what the session reads; one that was stopped goes on where it stopped."""
        one.take()
        if is_stopped(one):
            one.resume(self.session)
            one.take()
        assert one.shown.ended is None
        one.check(self.session)

    def leave(self, one: Follower) -> None:
        for those in (self.eager, self.lazy):
            if one in those:
                those.remove(one)

    @invariant()
    def check_eager(self) -> None:
        for one in self.eager:
            self.settle(one)

    @invariant()
    def nothing_grows(self) -> None:
        if hasattr(self, "session"):
            for feed in self.session._writer._all_feeds():
                assert len(feed.log) <= feed.limit


def is_stopped(one: Follower) -> bool:
    ended = one.shown.ended
    return ended is not None and ended.reason is EndReason.STOPPED


TestWatchMachine = WatchMachine.TestCase
TestWatchMachine.settings = settings(max_examples=120, stateful_step_count=40)
