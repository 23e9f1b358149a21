"""A store in virtual time for tests of the asyncio face: its disk, its loops, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

import pytest

from fuzz.simdisk import SimDisk
from fuzz.simdisk_crash import FileNode
from scopelog import Json, ManualClock, Session, Store, ephemeral, list_of, value
from scopelog.aio import AsyncSession, AsyncSessionReader, AsyncStore
from scopelog_engine.store import _stores

from .aio_time import FOREVER, VirtualClock, VirtualCondition, VirtualLoop, VirtualTime, VirtualWorkers

PATH: Final = "/store"
MAIN: Final = list_of("chat", "messages")
TITLE: Final = value("chat", "title")
SCOPE: Final = ephemeral("op-1")
OUT: Final = SCOPE.list_of("op", "out")
OTHER: Final = ephemeral("op-2").list_of("op", "out")
T = TypeVar("T")


class TimedDisk(SimDisk):
    """A simulated disk whose syncs take ``seconds_of(path)``, by default ``sync_seconds`` for logs, and that keeps a
    diary: step, file, thread, moment."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self.time = time
        self.sync_seconds = 0.0
        self.seconds_of: Callable[[str], float] = lambda path: self.sync_seconds if path.endswith(".zst") else 0.0
        self.woken: Callable[[], object] = lambda: None  # called on the thread that has slept
        self.diary: list[tuple[str, str, str, float]] = []

    def begin(self, op: str, path: str, *more: str) -> int | None:
        self.diary.append((op, path, threading.current_thread().name, self.time.now))
        if op == "sync" and (seconds := self.seconds_of(path)):
            self.lock.release()  # held once: a sync is called from outside
            try:
                self.time.sleep(seconds)
                self.woken()
            finally:
                self.lock.acquire()
        return super().begin(op, path, *more)

    def handles(self, ending: str) -> int:
        """How many times files of such names are open."""
        nodes = [node for path, node in self._tree.walk() if path.endswith(ending) and isinstance(node, FileNode)]
        return sum(node.handles for node in nodes)

    def did(self, op: str, ending: str = ".zst") -> list[tuple[str, float]]:
        """Which threads made such a step on files of such names, and when."""
        return [(thread, when) for step, path, thread, when in self.diary if step == op and path.endswith(ending)]


class AioRig:
    """A store on a timed disk, in virtual time, with one loop; ``session`` is open and ``m0``, ``x0`` are stored."""

    def __init__(self, patch: pytest.MonkeyPatch, *, born: bool = True, **settings: Any) -> None:
        self.time = VirtualTime()
        self.clock = VirtualClock(self.time)
        self.disk = TimedDisk(self.time)
        self.writers = VirtualWorkers(self.time, "writer")
        self.workers = VirtualWorkers(self.time, "worker")
        patch.setattr("scopelog_engine.looping.WRITERS", self.writers)
        patch.setattr("scopelog_engine.store.WRITERS", self.writers)
        patch.setattr("scopelog_engine.awaiting.WORKERS", self.workers)
        self.loops: list[VirtualLoop] = []
        self.loop = self.new_loop()
        self.sync_store = Store.open(PATH, fs=self.disk, clock=self.clock, **settings)
        _stores.discard(self.sync_store._store)  # what the interpreter's end does to stores is another test's
        self.store = AsyncStore(self.sync_store)
        self.session = self.open("s")
        self.sync = self.session.sync
        self.reader: AsyncSessionReader  # of tests that have one
        self.handles = 0
        if born:
            self.sync.commit([MAIN.append("m0")])
            self.sync.commit([OUT.append("x0")])

    def open(self, name: str) -> AsyncSession:
        return self.adopted(self.sync_store.session(name))

    def adopted(self, session: Session) -> AsyncSession:
        """The async face of a session whose waiting is ours from here on."""
        writer = session._writer
        writer._changed = VirtualCondition(self.time, writer._lock)  # type: ignore[assignment]
        return AsyncSession(session)

    def new_loop(self) -> VirtualLoop:
        loop = VirtualLoop(self.time)
        self.loops.append(loop)
        return loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def idle(self, seconds: float = 1.0) -> None:
        """Let the loop run, and time pass."""
        self.run(asyncio.sleep(seconds))

    def slow(self, seconds: float = 0.01) -> None:
        """From now on the disk is slow, and known to be: loops hand over to threads."""
        self.disk.sync_seconds = seconds
        self.sync_store._store.pace.quick = False
        self.sync_store._store.pace._next_trial = FOREVER

    @property
    def syncs(self) -> int:
        return self.sync._writer.counters.syncs

    @property
    def frames(self) -> int:
        return self.sync._writer.counters.frames

    # --- what is left ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for loop in self.loops:
            loop.close()

    def stored(self, disk: SimDisk | None = None) -> dict[str, list[Json]]:
        """What another process would find if this one were killed now (or on ``disk``): lists by scope."""
        return found_on(disk or self.disk.copy())

    def alarms_open(self) -> int:
        return sum(not alarm.closed for alarm in self.clock.alarms)

    def check_requests(self) -> None:
        assert self.sync._writer._requests == [] and self.sync._writer._woken == []

    def check_quiet(self, session: AsyncSession | None = None, *, handles: bool = True) -> None:
        """Nobody is waited for: no ticket, request or future is left in the session, no handle is in use."""
        writer = (session or self.session).sync._writer
        assert writer._asked == [] and writer._work == [] and writer._leader == 0 and writer._gate == 0
        assert writer._requests == [] and writer._woken == []
        assert writer._waiting == writer._readers == 0
        for state in writer._scopes.values():
            assert state.tickets == state.deferred == [] and not state.retiring, state.scope
            assert not any(entry.__class__.__name__ == "Commit" for entry in state.pending), state.scope
            if handles and state.log is not None and state.log.born:
                assert state.log.view.handle.evict(), f"a handle of {state.scope!r} is still in use"

    def check_sound(self, session: AsyncSession | None = None, *, handles: bool = True) -> dict[str, list[Json]]:
        """The session goes on: commits, appends, windows and reads work, and memory and disk agree, whose lists are
        returned. ``handles``: no file is kept in use."""
        session = session or self.session

        async def on() -> dict[str, list[Json]]:
            await session.commit([MAIN.append("after")])
            await session.append(OUT, "after")
            await asyncio.sleep(session.sync._writer.settings.window + 1)
            assert session.stats()["pending_elements"] == 0, "a window was never flushed"
            assert session.stats()["pending_bytes"] == 0
            found = self.stored()
            assert [e.element for e in await session.read(MAIN)] == found[""], "memory and disk disagree"
            assert [e.element for e in await session.read(OUT)] == found["op-1"], "memory and disk disagree"
            return found

        found = self.run(on())
        self.check_quiet(session, handles=handles)
        assert self.loop.errors == []
        return found


def found_on(disk: SimDisk, name: str = "s") -> dict[str, list[Json]]:
    """The lists of a session as an opener finds them: no torn bytes, no damage, nothing twice."""
    found: dict[str, list[Json]] = {"": [], "op-1": [], "op-2": []}
    with Store.open(PATH, fs=disk, clock=ManualClock()) as store:
        with store.session(name) as session:
            assert session.recovery.torn_bytes == 0 and not session.recovery.set_aside
            for address in (MAIN, OUT, OTHER):
                elements = session.read(address)
                numbers = [e.seq for e in elements]
                assert numbers == sorted(set(numbers))
                found[address.scope_id] = [e.element for e in elements]
        assert [finding for finding in store.check() if finding.severity != "note"] == []
    return found


class Tap:
    """Awaits a coroutine and calls back at its ``nth`` suspension: ``then(future)`` just before it suspends, which
    may return an exception to be thrown into it instead.

    ``seen``: how often it has suspended.
    """

    def __init__(
        self, work: Coroutine[Any, Any, T], nth: int, then: Callable[[asyncio.Future[Any] | None], BaseException | None]
    ) -> None:
        self.work = work
        self.nth = nth
        self.seen = 0
        self._then = then

    def __await__(self) -> Any:
        inner = self.work.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                waited = inner.send(None) if thrown is None else inner.throw(thrown)
            except StopIteration as stop:
                return stop.value
            self.seen += 1
            thrown = self._then(waited) if self.seen == self.nth else None
            if thrown is None:
                try:
                    yield waited
                except GeneratorExit:
                    inner.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - passed on, as ``await`` does
                    thrown = error
            elif waited is not None:
                waited._asyncio_future_blocking = False  # nobody awaits it
