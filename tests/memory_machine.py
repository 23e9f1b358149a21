"""A harness with a memory bridge on a simulated disk, which a test can kill and start again, and what it must keep to.

Time moves only when told: the loop's clock is a number, its timers fire when :meth:`Rig.advance` reaches them. Sockets
and the server's threads are real, and the rig waits for them by what is open, never by a delay: :meth:`Rig.settle`
returns once nothing can go on but by time, by a gate, or by the test.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import selectors
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from contextvars import Context
from pathlib import Path
from typing import Any, Final

from fuzz.simdisk import SimDisk
from scopelog import ManualClock, Receipt, Session, Store
from scopelog.addresses import Write
from scopelog.aio import AsyncSession
from scopelog.clients.memory import MemoryBridge, MemorySession
from scopelog_engine.store import _stores
from tests.engram import Action, EngramServer, Gate

PATH: Final = "/store"
TICK: Final = 0.0005  # real seconds that a poll of the sockets waits
TICKS: Final = 40_000  # polls after which a run counts as stuck
TIMEOUT_MS: Final = 1000
LONG_WAIT: Final = 20.0  # real seconds for a thread of the server, a bound that is never reached


class _Polling(selectors.DefaultSelector):
    """Never waits long; tells its loop when there is nothing to do. Numbers what is registered."""

    def __init__(self, quiet: Callable[[], None]) -> None:
        super().__init__()
        self._quiet = quiet
        self._numbers = itertools.count()
        self.serials: dict[int, int] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self.serials[key.fd] = next(self._numbers)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self.serials.pop(key.fd, None)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        ready = super().select(TICK)
        if not ready:
            self._quiet()
        return ready


class QuietLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time that knows when it has nothing to do."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.workers = 0
        self._timers: list[asyncio.TimerHandle] = []
        self._driver: asyncio.Future[None] | None = None
        self._polling = _Polling(self._quiet)
        super().__init__(self._polling)
        self._own = set(self._polling.serials.values())

    @property
    def sockets(self) -> set[int]:
        """What is waited for on sockets, numbered over the loop's life."""
        return set(self._polling.serials.values()) - self._own

    def time(self) -> float:
        return self.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = super().call_at(when, callback, *args, context=context)
        self._timers.append(timer)
        return timer

    def next_timer(self) -> float | None:
        """When the next timer is due."""
        self._timers = [timer for timer in self._timers if not timer.cancelled() and timer.when() > self.now]
        return min((timer.when() for timer in self._timers), default=None)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        self.workers += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._landed)
        return future

    def run_to(self, reached: Callable[[], bool]) -> None:
        """Run until ``reached``, which is asked whenever nothing is ready."""

        async def drive() -> None:
            for _ in range(TICKS):
                self._driver = self.create_future()
                await self._driver
                if reached():
                    return
            raise AssertionError("the loop does not come to rest")

        self.run_until_complete(drive())

    def _landed(self, _: asyncio.Future[Any]) -> None:
        self.workers -= 1

    def _quiet(self) -> None:
        if self._driver is not None and not self._driver.done():
            self._driver.set_result(None)


class Ended:
    """A child that found the port taken, or no server to start."""

    def poll(self) -> int:
        return 1

    def terminate(self) -> None:
        pass


class Watched(AsyncSession):
    """A session whose commits are counted, told to the model once stored, and can be where the process dies."""

    def __init__(self, session: Session, process: Process) -> None:
        super().__init__(session)
        self._process = process

    async def commit(self, writes: Iterable[Write[Any]], **options: Any) -> Receipt:
        given, process = list(writes), self._process
        after = process.count_down()
        if after is False:
            await process.hang()
        process.committing += 1
        try:
            receipt = await super().commit(given, **options)
        finally:
            process.committing -= 1
        process.rig.on_stored(given)
        if after is True:
            await process.hang()
        return receipt


class Process:
    """One life of the harness: a store, a bridge, and what it runs."""

    def __init__(self, rig: Rig, now: float) -> None:
        self.rig = rig
        self.committing = 0
        self.frozen = False
        self.dying: tuple[int, bool] | None = None  # so many commits from now, and whether that one is stored
        self.loop = QuietLoop(now)
        self.store = Store.open(PATH, fs=rig.disk, clock=ManualClock())
        _stores.discard(self.store._store)  # nobody closes the store of a killed process
        self.sessions: dict[str, Watched] = {}
        self.agents: dict[str, MemorySession] = {}
        self.bridge = MemoryBridge(
            rig.config, environ=rig.environ, clock=self.loop.time, sleep=asyncio.sleep, new_id=rig.new_id
        )
        keeper = self.bridge._keeper
        keeper._ask, keeper._spawn = rig.identity, rig.spawn  # its own seams: a real child could not be waited for

    def count_down(self) -> bool | None:
        """None: go on; else the process dies at this commit: False before it, True after it."""
        if self.dying is None:
            return None
        left, after = self.dying
        self.dying = (left - 1, after) if left > 1 else None
        return after if left == 1 else None

    async def hang(self) -> None:
        self.frozen = True
        await asyncio.get_running_loop().create_future()

    async def connect(self, agent: str) -> MemorySession:
        where = self.rig.session_of[agent]
        if where not in self.sessions:
            self.sessions[where] = Watched(self.store.session(where), self)
        self.agents[agent] = await self.bridge.session(self.sessions[where], agent, self.rig.cwd_of[agent])
        return self.agents[agent]


class Rig:
    """Server, disk, and the process of the moment."""

    def __init__(
        self,
        generation: str,
        on_stored: Callable[[list[Write[Any]]], None],
        *,
        own: bool,
        one_session: bool,
        one_project: bool,
    ) -> None:
        """``own``: the bridge sees to its own server, else it has ENGRAM_URL. ``on_stored`` is told each commit."""
        self.on_stored = on_stored
        self.project_of: dict[str, str] = {}
        self.server = EngramServer(generation)
        self.own = own and generation != "old"  # an old server has no identity
        self.folder = Path(tempfile.mkdtemp(prefix="memory-machine-"))
        self.cwd_of: dict[str, str] = {}
        self.session_of: dict[str, str] = {}
        for number, agent in enumerate(("agent-1", "agent-2")):
            project = "demo" if one_project or number == 0 else "other"
            cwd = self.folder / agent
            (cwd / ".engram").mkdir(parents=True)
            (cwd / ".engram" / "config.json").write_text(json.dumps({"project_name": project}), encoding="utf-8")
            self.server.model.resolve_to(str(cwd), project)
            self.cwd_of[agent], self.project_of[agent] = str(cwd), project
            self.session_of[agent] = "s" if one_session else f"s{number}"
        self.config: dict[str, Any] = {"request_timeout_ms": TIMEOUT_MS, "startup_timeout_ms": 2000}
        self.environ = {} if self.own else {"ENGRAM_URL": self.server.url}
        if self.own:
            self.config["port"] = self.server.port
        self.startable = False  # whether ``engram serve`` brings the server back
        self.disk = SimDisk()
        self._ids = itertools.count(1)
        self.gates: list[tuple[Gate, threading.Event]] = []
        self._held: set[int] = set()
        self.calls: list[asyncio.Task[Any]] = []
        self.kills = 0
        self.process = Process(self, 1000.0)
        self.connect()

    async def identity(self, *_: object) -> tuple[int, bytes]:
        return 0, self.server.instance_id.encode()

    def spawn(self, *_: object) -> Ended:
        if self.startable:
            self.server.faults.accept()
        return Ended()

    def new_id(self) -> str:
        return f"made-{next(self._ids)}"

    @property
    def agents(self) -> dict[str, MemorySession]:
        return self.process.agents

    def connect(self) -> None:
        for agent in self.cwd_of:
            self.process.loop.run_until_complete(self.process.connect(agent))
        self.settle()

    # --- running

    @property
    def held(self) -> bool:
        """Whether a request is at a gate now."""
        return bool(self._held)

    def hold(self, action: Action) -> Action:
        """The action, with a gate that the rig knows."""
        done = threading.Event()
        self.gates.append((action.gate, done))
        return dataclasses.replace(action, after=lambda _: done.set())

    def settle(self) -> None:
        """Run until nothing goes on by itself. A request that nobody waits for any more is let go of afterwards."""
        process = self.process

        def still() -> bool:
            if process.committing or process.loop.workers:
                return False
            inside = sum(gate.held for gate, _ in self.gates)
            if inside and not self._held:
                if len(process.loop.sockets) != inside:
                    return False
                self._held = process.loop.sockets
            return not process.loop.sockets - self._held

        process.loop.run_to(still)
        if self._held - process.loop.sockets:
            self._held = set()
            self.let_go()
            process.loop.run_to(still)
        if process.frozen:
            self.kill()

    def let_go(self) -> None:
        """Open the gates; what was held is applied when this returns, and its reply is under way."""
        self._held = set()
        for gate, done in self.gates:
            if gate.held:
                gate.release()
                assert done.wait(LONG_WAIT)
            gate.release()
        self.gates = []

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer, on both sides."""
        process = self.process
        target = process.loop.now + seconds
        while self.process is process:  # a kill ends this
            due = process.loop.next_timer()
            if due is None or due > target:
                self._move(target)
                return
            self._move(due)
            self.settle()

    def _move(self, to: float) -> None:
        self.server.clock.advance(max(0.0, to - self.process.loop.now))
        self.process.loop.now = max(to, self.process.loop.now)

    def call(self, work: Coroutine[Any, Any, Any], *, wait: bool = True) -> asyncio.Task[Any]:
        """Start a call of the harness; ``wait`` lets time pass until it returns."""
        process = self.process
        task = process.loop.create_task(work)
        self.calls.append(task)
        self.settle()
        while wait and self.process is process and not task.done():
            due = process.loop.next_timer()
            assert due is not None, "a call waits for ever"
            self.advance(due - process.loop.now)
        return task

    # --- life and death

    def kill(self) -> None:
        """``kill -9``, and a new process on what is left; a request at a gate arrives after the death."""
        process, self.disk = self.process, self.disk.kill()
        self.kills += 1
        process.frozen, process.dying = False, None
        self._bury(process)
        if self.gates:
            self.let_go()
        self.calls = []
        self.process = Process(self, process.loop.now)
        self.connect()

    def _bury(self, process: Process) -> None:
        tasks = asyncio.all_tasks(process.loop)
        for task in tasks:
            task.cancel()
        process.loop.run_to(lambda: all(task.done() for task in tasks) and not process.loop.sockets)
        process.loop.run_until_complete(process.loop.shutdown_default_executor())
        process.loop.close()
        self._held = set()

    def close(self) -> None:
        """The end of the test: the store that is left must be sound."""
        self.let_go()
        disk = self.disk.kill()
        self._bury(self.process)
        self.server.close()
        shutil.rmtree(self.folder)
        with Store.open(PATH, fs=disk, clock=ManualClock()) as store:
            assert [found for found in store.check(deep=True) if found.severity != "note"] == []
