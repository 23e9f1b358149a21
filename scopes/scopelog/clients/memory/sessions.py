"""One agent session: what it captures goes into its outbox, and from there, in order, to the server.

The queue is delivered by one task. A server that is away stops it, with pauses of 1 s doubled up to 60 s; nobody is
kept waiting by that but those who wait for their own entry, and they for the request timeout.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from scopelog.aio import AsyncSession
from scopelog.errors import HandleClosed, InvalidInput, ScopelogError

from . import tools
from .capture import Outcome, learning_text, notice, prompt_text
from .config import MemoryConfig
from .delivery import Blocked, Delivery
from .errors import ConfigInvalid, EngramError, ProjectUnresolved
from .outbox import Aside, Entry, Kind, Outbox, State, check_cwd
from .projects import FAILURE_KEPT, ProjectGate
from .redaction import redact_text
from .registration import Registration
from .spelling import Query
from .transport import Transport

Json: TypeAlias = Any

PAUSE: Final = 1.0  # seconds until a blocked queue is tried again, doubled each time
LONGEST_PAUSE: Final = 60.0
DRAIN: Final = 5.0  # seconds that the end of a turn waits for the queue

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Host:
    """What sessions share: the transport, and how to get the server ready; time, for tests."""

    config: MemoryConfig
    transport: Transport
    ready: Callable[[], Awaitable[None]]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())


class MemorySession:
    """An agent session that remembers. Made by :meth:`MemoryBridge.session`; used on one event loop."""

    def __init__(self, host: Host, session: AsyncSession, agent_id: str, cwd: str | None) -> None:
        self.agent_id: Final = agent_id
        self.cwd: Final = cwd
        self.blocked: str | None = None
        """Why the queue does not go on, if it does not."""
        self._host = host
        self._session = session
        if cwd is not None:
            check_cwd(cwd)
        owner = session.sync._outboxes.get(agent_id)
        if owner is not None and not owner.closed:
            raise InvalidInput(f"the outbox of agent {agent_id!r} is delivered already", "use that bridge's session")
        self._outbox = Outbox(session, agent_id)
        session.sync._outboxes[agent_id] = self  # one task delivers an outbox: two would send each entry twice
        self._gates: dict[str | None, ProjectGate] = {}  # an earlier process may have had another directory
        self._gate = self._gate_of(cwd)
        self._registration = Registration(host.transport, self._outbox, cwd, clock=host.clock, new_key=host.new_id)
        self._delivery = Delivery(host.transport, self._outbox, self._gate_of, self._registration, host.ready)
        self._kicked = asyncio.Event()  # there may be something to deliver
        self._hurried = asyncio.Event()  # somebody waits for the queue: no pause
        self._closed = False
        self._admitting = 0  # entries that are being stored
        self._archiving: set[str] = set()
        self._idle = asyncio.Event()
        self._waiters: dict[str, asyncio.Future[Json]] = {}
        self._dropping: list[tuple[str, asyncio.Future[None]]] = []  # by the task that delivers, between two entries
        self._notice: str | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    # --- state --------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The memory key: the agent's id for the session's life, unless the server has proved it unusable."""
        return self._outbox.key

    @property
    def released(self) -> bool:
        """Whether it was disposed of."""
        return self._registration.released

    @property
    def settled(self) -> bool:
        """Whether it was disposed of, and delivers nothing any more."""
        return self.closed or (self.released and self._task.done() and not self._admitting)

    @property
    def closed(self) -> bool:
        """Whether it delivers nothing any more, and never will."""
        return self._closed and self._task.done()

    @property
    def waiting(self) -> list[Entry]:
        """Entries that are not delivered yet, oldest first."""
        return self._outbox.waiting

    @property
    def aside(self) -> dict[str, Aside]:
        """Entries that are parked or unknown, with the reason, by id."""
        return self._outbox.aside

    def state(self, entry_id: str) -> State | None:
        """Where an entry stands: pending, in flight, delivered, unknown, parked; None if it is not known."""
        return self._outbox.state(entry_id)

    # --- capture ------------------------------------------------------------------------------------

    async def capture_prompt(self, event_id: str, blocks: Sequence[Json], *, source: str = "user") -> bool:
        """Remember a prompt; whether it was admitted now. ``event_id``: the harness's own, so that the same event
        captured again, also after a crash, is the same entry. Raises :class:`InvalidInput` if ``blocks`` is no list of
        objects, such as a plain text."""
        if isinstance(blocks, (str, bytes)) or not all(isinstance(block, Mapping) for block in blocks):
            raise InvalidInput("the blocks of a prompt are no list of objects", 'pass [{"type": "text", "text": ...}]')
        text = prompt_text(source, blocks) if self._host.config.capture_prompts else None
        return text is not None and await self._admit(event_id, "prompt", {"content": text})

    async def capture_tool_result(self, event_id: str, tool: str, text: str, *, is_error: bool = False) -> bool:
        """Remember the learnings in a tool's result, if it has a section of them; whether it was admitted now."""
        found = learning_text(tool, text, is_error) if self._host.config.capture_tool_results else None
        return found is not None and await self._admit(event_id, "learning", {"content": found, "source": tool})

    async def archive(self, compaction_id: str, summary: str) -> Outcome | None:
        """Keep the summary of a compaction; the outcome is told once by :meth:`take_notice`. None if that compaction
        was archived before."""
        if compaction_id in self._archiving or self._outbox.state(compaction_id) is not None:
            return None
        self._archiving.add(compaction_id)  # before the work: the same compaction may be told of again meanwhile
        try:
            outcome, project = await self._archive(compaction_id, summary)
        finally:
            self._archiving.discard(compaction_id)
        queued = self._outbox.state(compaction_id) in ("pending", "in flight")
        self._notice = notice(outcome, project, queued=queued)
        return outcome

    async def _archive(self, compaction_id: str, summary: str) -> tuple[Outcome, str]:
        outcome, project = Outcome.UNAVAILABLE, ""
        content = redact_text(summary)
        if content and not self.released:
            try:
                async with asyncio.timeout(self._host.config.request_timeout_ms / 1000):
                    project = await self._gate.require()
                    await self._host.ready()
                    registered = await self._registration.ensure(project)
                if registered:
                    outcome = await self._archived(compaction_id, content)
            except (EngramError, ConfigInvalid) as error:
                _log.warning("a compaction could not be archived: %s", error.cause)
            except TimeoutError:
                _log.warning("a compaction could not be archived: no project or no row in time")
        return outcome, project

    async def _archived(self, compaction_id: str, content: str) -> Outcome:
        answer = await self._submit(compaction_id, "archive", {"content": content})
        if answer["status"] == "delivered":
            return Outcome.CONFIRMED
        return Outcome.FAILED if answer["status"] == "parked" else Outcome.UNKNOWN

    def take_notice(self) -> str | None:
        """The notice of the last compaction for the next prompt, once."""
        told, self._notice = self._notice, None
        return told

    # --- for tools ----------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: Mapping[str, Json]) -> Json:
        """Call a tool of :data:`TOOLS` by its name. Raises as it does."""
        return await tools.call(self, tool, arguments)

    async def project(self) -> str:
        """The session's project. Raises :class:`ProjectUnresolved` where there is none: then nothing is sent."""
        return await self._gate.require()

    async def request(
        self, method: str, path: str | Sequence[str], *, query: Query | None = None, body: Json = None
    ) -> Json:
        """A request to the server, which is made ready first."""
        await self._host.ready()
        return await self._host.transport.request(method, path, query=query, body=body)

    async def submit(self, kind: str, payload: dict[str, Json]) -> dict[str, Json]:
        """Through the outbox, with the answer of the server if it comes within the request timeout.

        A server that is away delays nobody for longer: the entry waits, and its project is asked for before it is sent.
        Raises :class:`ProjectUnresolved` before anything is stored.
        """
        until = asyncio.get_running_loop().time() + self._host.config.request_timeout_ms / 1000
        try:
            async with asyncio.timeout_at(until):
                await self.project()
        except ProjectUnresolved:
            raise
        except (EngramError, TimeoutError) as error:
            _log.warning("the memory project could not be asked for yet (%s)", type(error).__name__)
        return await self._submit(self._host.new_id(), kind, payload, until)  # type: ignore[arg-type]

    async def start(self) -> dict[str, Json]:
        """Register the session's row now."""
        project, registered = "", False
        try:
            async with asyncio.timeout(self._host.config.request_timeout_ms / 1000):
                project = await self.project()
                await self._host.ready()
                registered = await self._registration.ensure(project)
        except TimeoutError:
            _log.warning("the memory session could not be registered in time")
        return {"session_id": self.key, "project": project, "directory": self.cwd, "registered": registered}

    async def end(self, summary: str | None) -> dict[str, Json]:
        """End the session's own row, behind everything that was captured before; nothing else ends it."""
        payload = {"summary": redact_text(summary) if summary else ""}
        return await self._submit(self._host.new_id(), "end", payload)

    # --- the queue ----------------------------------------------------------------------------------

    async def drain(self, limit: float = DRAIN) -> bool:
        """Wait until nothing waits, at most ``limit`` seconds; whether that was reached. A pause ends by this."""
        self._kick(hurry=True)
        try:
            async with asyncio.timeout(limit):
                while self._outbox.head is not None and not self._closed:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return self._outbox.head is None

    async def retry(self, entry_id: str) -> None:
        """Send an entry that is parked or unknown once more, as a new one: it may arrive twice. Raises
        :class:`InvalidInput` if there is none."""
        self._check_open()
        await self._outbox.retry(entry_id)
        self._kick(hurry=True)

    async def drop(self, entry_id: str) -> None:
        """Forget an entry that waits, is parked or unknown: it is not sent any more. One that is being sent is settled
        first, and is delivered then. Raises :class:`InvalidInput` if there is none."""
        self._check_open()
        if self._outbox.state(entry_id) not in ("pending", "in flight"):
            await self._outbox.drop(entry_id)
            return
        dropped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dropping.append((entry_id, dropped))
        self._kick(hurry=True)
        await dropped

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()

    def release(self) -> None:
        """Dispose of the session: nothing is sent by this, nothing new is admitted. What waits is still delivered, by
        this bridge as long as it is open, or by a later process."""
        self._registration.released = True  # an end is sent by the end tool alone
        self._kick()

    async def hand_over(self) -> None:
        """As :meth:`aclose`, but a write that is under way is waited for, up to the request timeout: cut short its
        outcome would be unknown."""
        self._registration.released = self._closed = self._delivery.closing = True
        self._hurried.set()
        if self._delivery.sending:
            await asyncio.wait([self._task], timeout=self._host.config.request_timeout_ms / 1000)
        await self.aclose()

    async def aclose(self) -> None:
        """Stop delivering. What waits stays in the outbox; nothing is sent by this."""
        self._registration.released = self._closed = True
        self._idle.set()
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._registration.aclose()
        for gate in self._gates.values():
            await gate.aclose()
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_result(None)  # its entry is queued
        self._refuse_drops()

    async def _admit(self, entry_id: str, kind: Kind, payload: dict[str, Json]) -> bool:
        if self.released:
            raise HandleClosed("the memory session was disposed of", "make a new one: MemoryBridge.session")
        entry = Entry(entry_id, kind, self.cwd, payload, self._session.sync._writer.wall_ms())
        self._admitting += 1
        try:
            return await self._outbox.add(entry)  # durable before anything of it is sent
        finally:
            self._admitting -= 1
            self._kick()

    async def _submit(
        self, entry_id: str, kind: Kind, payload: dict[str, Json], until: float | None = None
    ) -> dict[str, Json]:
        if until is None:
            until = asyncio.get_running_loop().time() + self._host.config.request_timeout_ms / 1000
        waiter = self._waiters[entry_id] = asyncio.get_running_loop().create_future()
        try:
            await self._admit(entry_id, kind, payload)
            try:
                async with asyncio.timeout_at(until):
                    reply = await asyncio.shield(waiter)
            except TimeoutError:
                reply = None
        finally:
            self._waiters.pop(entry_id, None)
        aside = self._outbox.aside.get(entry_id)
        if aside is not None:
            return {"status": aside.state, "entry": entry_id, "reason": aside.reason}
        state = self._outbox.state(entry_id)
        if state == "dropped":
            return {"status": state, "entry": entry_id}
        if state != "delivered":
            return {"status": "queued", "entry": entry_id, "note": self.blocked or "it is on its way"}
        return {**(reply if isinstance(reply, dict) else {}), "status": "delivered", "entry": entry_id}

    def _gate_of(self, cwd: str | None) -> ProjectGate:
        gate = self._gates.get(cwd)
        if gate is None:
            host = self._host
            gate = ProjectGate(host.transport, cwd, ready=host.ready, clock=host.clock, sleep=host.sleep)
            self._gates[cwd] = gate
        return gate

    def _kick(self, *, hurry: bool = False) -> None:
        self._kicked.set()
        if hurry:
            self._hurried.set()
        # disposed of while this entry was being stored; a task that was cancelled went with its loop
        if self._task.done() and not self._task.cancelled() and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _pause(self, seconds: float) -> None:
        if self._closed:
            return
        pausing = asyncio.ensure_future(self._host.sleep(seconds))
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            await asyncio.wait([pausing, hurried], return_when=asyncio.FIRST_COMPLETED)
        finally:
            pausing.cancel()
            hurried.cancel()
        self._hurried.clear()

    async def _run(self) -> None:
        """Deliver the queue, head by head, until the session is released and nothing waits."""
        pause = PAUSE
        while not self._closed:
            await self._drop_asked()
            head = self._outbox.head
            if head is None:
                self._idle.set()
                self._hurried.clear()
                if self.released:
                    return
                await self._kicked.wait()
                self._kicked.clear()
                continue
            try:
                await self._host.ready()
                reply = await self._delivery.deliver(head)
            except Blocked as error:
                self.blocked = error.error.cause
                unresolved = isinstance(error.error, ProjectUnresolved)
                await self._pause(max(pause, FAILURE_KEPT) if unresolved else pause)
            except HandleClosed:  # the session, or the bridge: what waits is delivered by a later one
                self._closed = True
                self._idle.set()
                self._refuse_drops()
            except ScopelogError as error:  # no server, or our own disk
                self.blocked = error.cause
                _log.warning("the memory queue waits: %s", error.cause)
                await self._pause(pause)
            else:
                self.blocked, pause = None, PAUSE
                self._answer(head.id, reply)
                continue
            pause = min(2 * pause, LONGEST_PAUSE)

    def _refuse_drops(self) -> None:
        for _, dropped in self._dropping:
            if not dropped.done():
                dropped.set_exception(_closed())
        self._dropping = []

    async def _drop_asked(self) -> None:
        while self._dropping:
            entry_id, dropped = self._dropping[0]
            failed: ScopelogError | None = None
            try:
                await self._outbox.drop(entry_id)
            except ScopelogError as error:
                failed = error
            else:
                self._answer(entry_id, None)
            del self._dropping[0]  # not before: who is cut short leaves it to be told that nobody does it any more
            if dropped.done():  # nobody waits for it any more
                continue
            if failed is None:
                dropped.set_result(None)
            else:
                dropped.set_exception(failed)

    def _answer(self, entry_id: str, reply: Json) -> None:
        waiter = self._waiters.get(entry_id)
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)


def _closed() -> HandleClosed:
    return HandleClosed("the memory session is closed", "use the one that has taken its place")
