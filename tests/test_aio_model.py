"""The state machine of ``test_model.py``, with every call awaited on a loop in virtual time, inline or through threads.

The same rules, faults, kills and power cuts against the same model; and what only tasks can do: commits and reads at
once, cancelled commits, and sync calls while tasks are waiting.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, Self, cast

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from fuzz.model import SESSION_ID, Op, Spec, unit
from fuzz.model_handles import PATH, PROCESS, SCOPES, Settings, coalescer_of, random_identities, scope_of
from fuzz.model_handles import steady_identities as steady
from fuzz.model_rig import Rig
from fuzz.simdisk import SimDisk
from scopelog import Durability, Receipt, Store
from scopelog.aio import AsyncSession, AsyncSessionReader, AsyncStore
from tests.aio_time import FOREVER, VirtualClock, VirtualCondition, VirtualLoop, VirtualTime, VirtualWorkers
from tests.model_machine import LEVELS, RETIREMENTS, WRITES
from tests.test_model import StoreMachine

_patch = pytest.MonkeyPatch()


class ModelClock(VirtualClock):
    """The clock of one process, with the loop that it uses."""

    def __init__(self, now: float) -> None:
        super().__init__(VirtualTime())
        self.time.now = now
        self.loop = VirtualLoop(self.time)
        writers, workers = VirtualWorkers(self.time, "writer"), VirtualWorkers(self.time, "worker")
        _patch.setattr("scopelog_engine.looping.WRITERS", writers)
        _patch.setattr("scopelog_engine.store.WRITERS", writers)
        _patch.setattr("scopelog_engine.awaiting.WORKERS", workers)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def advance(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))
        while self.time.step(self.time.now):
            pass


class Awaited:
    """An async face whose calls run to their end on a loop, one at a time: what a rig takes for a sync one."""

    def __init__(self, face: AsyncStore | AsyncSession | AsyncSessionReader, clock: ModelClock) -> None:
        self.face = face
        self._clock = clock
        if isinstance(face, AsyncSession):
            writer = face.sync._writer
            writer._changed = VirtualCondition(clock.time, writer._lock)  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.face, name)
        return (
            (lambda *args, **keywords: self._wait(attribute(*args, **keywords))) if callable(attribute) else attribute
        )

    def _wait(self, answer: Any) -> Any:
        if isinstance(answer, AsyncIterator):
            return self._clock.run(_all_of(answer))
        if inspect.isawaitable(answer):
            answer = self._clock.run(cast("Coroutine[Any, Any, Any]", answer))
        wrapped = isinstance(answer, AsyncSession | AsyncSessionReader)
        return Awaited(answer, self._clock) if wrapped else answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self.face.close())


async def _all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


class AsyncRig(Rig):
    """A rig whose store is used through its async face. ``threaded``: the disk counts as slow."""

    clock: ModelClock  # type: ignore[assignment]

    def __init__(self, settings: Settings | None = None, disk: SimDisk | None = None) -> None:
        super().__init__(settings, disk)
        self.clock = ModelClock(0.0)
        self.threaded = False

    def open_store(self) -> Store:
        if self.store is None:
            durability, scope_durability, window_ms = self.settings
            opening = AsyncStore.open(
                PATH,
                fs=self.disk,
                clock=self.clock,
                durability=durability,
                scope_durability=scope_durability,
                window_ms=window_ms,
            )
            self.store = cast("Store", Awaited(self.clock.run(opening), self.clock))
            self.use_threads(self.threaded)
        return self.store

    def use_threads(self, threaded: bool) -> None:
        self.threaded = threaded
        if self.store is not None:
            pace = self.face_of_store().sync._store.pace
            pace.quick = not threaded
            pace._next_trial = FOREVER

    def face_of_store(self) -> AsyncStore:
        face = cast("Any", self.store).face
        assert isinstance(face, AsyncStore)
        return face

    def face(self, sid: str) -> AsyncSession:
        face = cast("Any", self.sessions[sid]).face
        assert isinstance(face, AsyncSession)
        return face

    def down(self, disk: SimDisk) -> None:
        now = self.clock.monotonic()
        self.clock.loop.close()
        super().down(disk)
        self.clock = ModelClock(now)  # the loop, the threads and the alarms died with the process

    # --- what only tasks do ---------------------------------------------------------------------------

    def together(self, sid: str, commits: Sequence[tuple[str, list[Spec], Durability | None]], beside: str) -> None:
        """Commits at once, and another call beside them; all must be acknowledged, in the order of their sequences."""
        face, model = self.face(sid), self.models[sid]
        before = model.last = int(face.stats()["sequence"])

        async def work() -> list[Receipt]:
            tasks = [
                asyncio.ensure_future(face.commit(self._writes(*commit[:2]), durability=commit[2]))
                for commit in commits
            ]
            if beside == "sync flush":
                await asyncio.sleep(0)
                face.sync.flush()
            elif beside == "flush":
                tasks.append(asyncio.ensure_future(face.flush()))  # type: ignore[arg-type]
            elif beside == "get":
                tasks.append(asyncio.ensure_future(face.get(scope_of("").value("n", "a"))))
            elif beside == "scan":
                tasks.append(asyncio.ensure_future(face.scan("n", scope=scope_of(SCOPES[1]))))  # type: ignore[arg-type]
            return (await asyncio.gather(*tasks))[: len(commits)]

        receipts = self.clock.run(work())
        order = sorted(zip(receipts, commits, strict=True), key=lambda one: one[0].first)
        for receipt, (scope, specs, level) in order:
            assert receipt.first == before + 1 and receipt.last == before + len(specs), "in order, without gaps"
            self._acknowledge(sid, scope, specs, level, receipt)
            before = receipt.last
        if "flush" in beside:
            self.flush(sid)

    def cancelled(self, sid: str, scope: str, specs: list[Spec], level: Durability | None, iterations: int) -> None:
        """A commit that is cancelled after so many iterations of its loop is stored if it returns, and only then."""
        face = self.face(sid)

        async def work() -> Receipt:
            task = asyncio.ensure_future(face.commit(self._writes(scope, specs), durability=level))
            for _ in range(iterations):
                await asyncio.sleep(0)
            task.cancel()
            return await task

        try:
            receipt = self.clock.run(work())
        except asyncio.CancelledError:
            self.models[sid].last = int(face.stats()["sequence"])
        else:
            self._acknowledge(sid, scope, specs, level, receipt)

    @staticmethod
    def _writes(scope: str, specs: list[Spec]) -> list[Any]:
        return [spec.public(scope_of(scope), coalescer_of(spec.key)) for spec in specs]

    def _acknowledge(self, sid: str, scope: str, specs: list[Spec], level: Durability | None, receipt: Receipt) -> None:
        whole = unit()
        ops = [Op(receipt.first + n, spec, whole) for n, spec in enumerate(specs)]
        self._acknowledged(sid, scope, ops, max(self.settings.level(scope), level or PROCESS))

    def check_quiet(self) -> None:
        """No call that has ended left anything behind."""
        for session in self.sessions.values():
            writer = cast("Any", session).face.sync._writer
            assert not (writer._work or writer._leader or writer._requests or writer._woken)
            assert not any(state.tickets or state.deferred or state.retiring for state in writer._scopes.values())
            for state in writer._scopes.values():
                if state.log is not None and state.log.born:
                    assert state.log.view.handle.evict()
        assert self.clock.loop.errors == []


COMMITS = st.lists(
    st.tuples(st.sampled_from(SCOPES), WRITES, LEVELS) | st.tuples(st.just(SESSION_ID), RETIREMENTS, LEVELS),
    min_size=2,
    max_size=4,
)


class AsyncMachine(StoreMachine):
    rig: AsyncRig

    @initialize(
        durability=st.sampled_from(Durability),
        scope_durability=st.sampled_from(Durability),
        window_ms=st.sampled_from([20, 100]),
        preallocates=st.sampled_from([False, False, False, True]),
    )
    def begin(self, durability: Durability, scope_durability: Durability, window_ms: int, preallocates: bool) -> None:
        steady()
        self.rig = AsyncRig(Settings(durability, scope_durability, window_ms), SimDisk(preallocates=preallocates))
        self.rig.open("s")

    @rule(threaded=st.booleans())
    def pace(self, threaded: bool) -> None:
        self.rig.use_threads(threaded)

    @precondition(lambda self: not self.rig.faulty)
    @rule(commits=COMMITS, beside=st.sampled_from(["", "flush", "sync flush", "get", "scan"]))
    def commit_together(self, commits: list[tuple[str, list[Spec], Durability | None]], beside: str) -> None:
        self.rig.together("s", commits, beside)

    @precondition(lambda self: not self.rig.faulty)
    @rule(
        commit=st.tuples(st.sampled_from(SCOPES), WRITES, LEVELS) | st.tuples(st.just(""), RETIREMENTS, LEVELS),
        iterations=st.integers(0, 4),
    )
    def cancel_a_commit(self, commit: tuple[str, list[Spec], Durability | None], iterations: int) -> None:
        self.rig.cancelled("s", *commit, iterations)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "rig"):
            self.rig.clock.loop.close()

    def check_invariants(self, *args: Any, **keywords: Any) -> None:
        super().check_invariants(*args, **keywords)
        if hasattr(self, "rig"):
            self.rig.check_quiet()


@pytest.fixture(autouse=True)
def consistency_check() -> Iterator[None]:
    """In place of the shared one, which knows real directories only: every run ends with :meth:`Rig.check`."""
    yield
    random_identities()
    _patch.undo()


TestAsyncMachine = AsyncMachine.TestCase
TestAsyncMachine.settings = settings(
    max_examples=40, stateful_step_count=30, report_multiple_bugs=False, phases=[Phase.generate, Phase.shrink]
)
