"""One agent's process and its memory server: a bridge over a store that can be killed, in time that moves when told."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from fuzz.simdisk import SimCrash, SimDisk
from scopelog import Session, Store
from scopelog.clients.memory import Entry as WaitingEntry
from scopelog.clients.memory import MemoryBridge, MemorySession
from scopelog.clients.memory.outbox import Outbox

from .engram import EngramServer, Entry, Exchange, Generation

AGENT: Final = "agent-1"
PROJECT: Final = "demo"
PATH: Final = "/store"
SESSION: Final = "chat"
LONG: Final = 20.0  # real seconds: a bound on what never comes about, not a pace
SHORT: Final = 1.0  # sleeps below pass at once; a longer one is a pause of a queue, which waits for ``advance``
LEARNINGS: Final = "{}\n\n## Key Learnings\n\n1. {}\n"


def blocks(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def learnings(item: str) -> str:
    return LEARNINGS.format("what a tool printed before it came to the point " * 2, item)


class Rig:
    """``bridge`` and ``session`` are those of the present process; ``restart`` makes the next one."""

    def __init__(self, generation: str | Generation, folder: Path, **config: Any) -> None:
        self.cwd = self.workspace(folder / "work", PROJECT)
        self.server = EngramServer(generation)
        self.config = {"request_timeout_ms": 20_000, "fetch_max_attempts": 1, **config}
        self.disk = SimDisk()
        self.now = 1000.0
        self.agents: dict[str, list[str] | int] = {AGENT: []}
        self.projects: dict[str, str] = {}  # of agents that are not of PROJECT
        self.secrets: list[str] = []
        self.ends: list[str] = []
        self.admitted: dict[str, Entry | None] = {}
        self.late_writes = False
        self.environ: dict[str, str] = {}  # instead of the server's URL
        self._ids = itertools.count(1)
        self._pauses: list[tuple[float, asyncio.Future[None]]] = []
        self._paused = asyncio.Event()
        self.bridge: MemoryBridge
        self.session: MemorySession
        self.store: Store
        self.durable: Session

    @staticmethod
    def workspace(path: Path, project: str) -> str:
        """A directory of that project, for servers of every age."""
        (path / ".engram").mkdir(parents=True)
        (path / ".engram" / "config.json").write_text(json.dumps({"project_name": project}), encoding="utf-8")
        return str(path)

    # --- time

    async def sleep(self, seconds: float) -> None:
        if seconds < SHORT:
            self.now += seconds
            return await asyncio.sleep(0)
        pause = (self.now + seconds, asyncio.get_running_loop().create_future())
        self._pauses.append(pause)
        self._paused.set()
        try:
            await pause[1]
        finally:
            self._pauses.remove(pause)
            if not self._pauses:
                self._paused.clear()

    async def paused(self) -> str:
        """Return once a queue pauses, with the reason."""
        async with asyncio.timeout(LONG):
            await self._paused.wait()
        return self.session.blocked or ""

    def advance(self, seconds: float) -> None:
        """Time passes here and at the server; pauses that are over end."""
        self.now += seconds
        self.server.clock.advance(seconds)
        for due, pause in self._pauses:
            if due <= self.now and not pause.done():
                pause.set_result(None)
                self._paused.clear()

    # --- processes

    async def start(self, *, cwd: str | None = "") -> None:
        """A new process on what the disk holds; ``cwd``: the rig's own unless given."""
        self.store = Store.open(PATH, fs=self.disk)
        self.durable = self.store.session(SESSION)
        environ = self.environ or {"ENGRAM_URL": self.server.url}
        self.bridge = MemoryBridge(
            self.config, environ=environ, clock=lambda: self.now, sleep=self.sleep, new_id=self.new_id
        )
        self.session = await self.join(cwd=self.cwd if cwd == "" else cwd)

    def new_id(self) -> str:
        return f"made-{next(self._ids)}"

    async def join(self, agent: str = AGENT, *, cwd: str | None = "") -> MemorySession:
        return await self.bridge.session(self.durable, agent, self.cwd if cwd == "" else cwd)

    async def stop(self) -> None:
        await self.bridge.aclose()
        self.durable.close()
        self.store.close()

    async def restart(self, *, kill: bool = False, cwd: str | None = "") -> None:
        """The process ends, by ``kill -9`` if so, and the next one begins."""
        if kill:
            self.disk = self.disk.kill()
            for session in self.bridge._sessions.values():
                await session.aclose()  # a request under way is cut
            await self.bridge.aclose()
        else:
            await self.stop()
        await self.start(cwd=cwd)

    # --- what a harness does, remembered for ``check``

    async def prompt(self, event: str, text: str = "") -> bool:
        text = text or f"the prompt of event {event}"
        self.admitted.setdefault(event, Entry(key=event))
        return await self.session.capture_prompt(event, blocks(text))

    async def learn(self, event: str, item: str = "") -> bool:
        item = item or f"the learning of event {event} is long enough"
        self.admitted.setdefault(event, Entry(content=item))
        return await self.session.capture_tool_result(event, "bash", learnings(item))

    async def save(self, content: str, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self.session.call("mem_save", {"title": content, "content": content, **more})
        self.admitted[answer["entry"]] = Entry(key=answer["entry"])
        return answer

    async def archive(self, event: str, summary: str = "what was compacted") -> Any:
        self.admitted.setdefault(event, Entry(key=f"{self.session.agent_id}/{event}"))
        return await self.session.archive(event, summary)

    async def put(self, kind: str, entry_id: str) -> str:
        """Admit an entry of any kind without waiting for its delivery."""
        text = f"the {kind} of entry {entry_id}"
        key = f"{self.session.agent_id}/{entry_id}" if kind == "archive" else entry_id
        item = f"{text} is long enough"
        self.admitted[entry_id] = Entry(content=item) if kind == "learning" else Entry(key=key)
        payload: dict[str, Any] = {"content": learnings(item) if kind == "learning" else text}
        if kind == "save":
            payload |= {"title": text, "type": "manual", "scope": "project"}
        assert await self.session._admit(entry_id, kind, payload)  # type: ignore[arg-type]
        return text

    async def end(self, summary: str = "done") -> dict[str, Any]:
        self.ends.append(self.session.key)
        answer: dict[str, Any] = await self.session.call("mem_session_end", {"summary": summary})
        self.admitted[answer["entry"]] = None
        return answer

    async def drained(self) -> None:
        assert await self.session.drain(LONG), self.session.blocked

    # --- what was sent, and what must hold

    def seen(self, *routes: str) -> list[Exchange]:
        return [exchange for exchange in self.server.requests if exchange.route in routes]

    def registered(self) -> list[str]:
        """The keys that were posted as sessions, in order."""
        return [exchange.body["id"] for exchange in self.seen("POST /sessions") if exchange.body]

    def writes(self) -> list[Exchange]:
        """Requests that carry an entry, in order."""
        return self.seen("POST /observations", "POST /prompts", "POST /observations/passive")

    def contents(self) -> list[str]:
        """What the server has kept, in the order in which it took effect."""
        return [effect.content for effect in self.server.model.rows.effects]

    def check(self) -> None:
        """The invariants of the server, and that no entry is lost: each waits, is set aside, or is delivered."""
        for entry_id in self.admitted:
            assert self.session.state(entry_id) is not None, f"{entry_id} is lost"
        sent = {i: e for i, e in self.admitted.items() if e is not None}
        if self.server.model.generation.operation_ids:
            sent = {i: e for i, e in sent.items() if self.session.state(i) == "delivered"}
        self.server.check_invariants(
            agents=self.agents,
            projects=dict.fromkeys(self.agents, PROJECT) | self.projects,
            secrets=self.secrets,
            ends=self.ends,
            entries=sent.values(),
            late_writes=self.late_writes,
        )


@asynccontextmanager
async def rig(generation: str | Generation, folder: Path, **config: Any) -> AsyncIterator[Rig]:
    """A rig with its first process; at the end it is closed, and if nothing failed, checked."""
    made = Rig(generation, folder, **config)
    try:
        await made.start()
        yield made
        made.check()
    finally:
        made.server.faults.clear()
        try:
            await made.stop()
        except SimCrash:
            pass  # a disk that is down
        finally:
            made.server.close()


def head_of(outbox: Outbox) -> WaitingEntry:
    """The entry that is next."""
    assert outbox.head is not None
    return outbox.head


def run(main: Callable[[], Awaitable[None]]) -> None:
    """One test on a loop of its own."""

    async def whole() -> None:
        await main()

    asyncio.run(whole())


def resumes(made: Rig) -> bool:
    """Whether the server makes the key that follows an ended one."""
    return made.server.model.generation.resume
