"""memory status, drain, retry, drop: the outboxes of agent sessions, from a store that a harness may be writing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from ..aio import AsyncSession
from ..clients.memory import EngramError, Entry, MemoryBridge, MemoryConfig, load_config
from ..clients.memory.outbox import AGENTS, Contents, Outbox, Places
from ..clients.memory.transport import require_httpx2
from ..errors import InvalidInput
from ..session import Session, SessionReader
from ..store import Store
from . import output
from .looking import Survey, opened, read_beside, require, to_write
from .output import printable

REASON_SHOWN: Final = 500  # characters; a server may say anything
_UNSENT: Final = "the connection was refused: it has not arrived"


class Shown(NamedTuple):
    """What may be shown of an entry: nothing that it says."""

    id: str
    kind: str
    state: str
    cwd: str | None
    at: int | None
    reason: str | None


class Box(NamedTuple):
    """The outbox of one agent session, as it is stored."""

    agent: str
    contents: Contents
    rotated: str | None

    @property
    def key(self) -> str:
        return self.contents.key or self.agent

    @property
    def entries(self) -> list[Shown]:
        """Those that are not done with: what waits, in its order, then what is set aside, the oldest first."""
        flight, waiting, aside = self.contents.flight, self.contents.waiting, self.contents.aside
        found = [_shown(entry, "pending", None) for entry in waiting]
        for at, one in enumerate(found):
            if flight is not None and flight["id"] == one.id:
                found[at] = one._replace(state="in flight", reason=_UNSENT if flight.get("unsent") else None)
        set_aside = sorted(aside.values(), key=lambda one: one.entry.at)
        return found + [_shown(one.entry, one.state, one.reason) for one in set_aside]

    def count(self, state: str) -> int:
        return sum(one.state == state for one in self.contents.aside.values())


def _shown(entry: Entry, state: str, reason: str | None) -> Shown:
    return Shown(
        entry.id, entry.kind, state, entry.cwd, entry.at or None, None if reason is None else reason[:REASON_SHOWN]
    )


def boxes_of(reader: SessionReader, agent: str | None = None) -> list[Box]:
    """The outboxes in a session, by agent id; of all agents, or of one. Raises :class:`InvalidInput` if it has none."""
    agents = _agents(reader)
    if agent is not None and agent not in agents:
        raise InvalidInput(f"no agent {agent!r} has an outbox in this session", "scopelog memory status lists them")
    return [_box(reader, Places(one)) for one in agents if agent is None or one == agent]


def _agents(reader: SessionReader) -> list[str]:
    """Who has an outbox."""
    return sorted(entry.key for entry in reader.scan(AGENTS))


def _box(reader: SessionReader, places: Places) -> Box:
    stored = reader.get(places.key)
    reason = stored.get("reason", "") if isinstance(stored, dict) else ""
    contents = Contents.of(reader, places)
    rotated = None if contents.key is None else str(reason)[:REASON_SHOWN]
    return Box(places.agent_id, contents, rotated)


# --- status ---------------------------------------------------------------------------------------


def status(path: str, session: str | None, as_json: bool) -> None:
    """The outboxes of one session, or of each. What cannot be read is named, then raised."""
    found = 0
    with opened(path) as store:
        survey = Survey(store, session)
        for name, boxes in survey.each(_boxes_beside):
            found += len(boxes)
            for box in boxes:
                _show(name, box, as_json)
    if not found and not as_json and survey.damage is None:
        output.put_text("no agent session has an outbox")
    survey.finish()


def _boxes_beside(store: Store, session: str) -> list[Box]:
    return read_beside(store, session, boxes_of)


def _show(session: str, box: Box, as_json: bool) -> None:
    contents, entries = box.contents, box.entries
    unknown, parked = box.count("unknown"), box.count("parked")
    ages = [None if one.at is None else max(0.0, time.time() - one.at / 1000) for one in entries]
    if as_json:
        output.put_json(
            {
                "session": session,
                "agent": box.agent,
                "key": box.key,
                "rotated": box.rotated,
                "waiting": len(contents.waiting),
                "unknown": unknown,
                "parked": parked,
                "done": len(contents.done),
                "entries": [
                    {**one._asdict(), "age": None if age is None else round(age, 3)}
                    for one, age in zip(entries, ages, strict=True)
                ],
            }
        )
        return
    rotated = "" if box.rotated is None else f" (rotated: {box.rotated})"
    counts = f"{len(contents.waiting)} waiting, {unknown} unknown, {parked} parked, {len(contents.done)} done"
    output.put_text(printable(f"{session}: agent {box.agent}, key {box.key}{rotated}: {counts}"))
    for one, age in zip(entries, ages, strict=True):
        cells = (f"{one.state:9}", f"{one.kind:8}", one.id, "" if age is None else _age(age), one.reason or "")
        output.put_text("  " + "  ".join(map(printable, cells)).rstrip())


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


# --- drain ----------------------------------------------------------------------------------------


@contextmanager
def _locked(path: str, session: str) -> Iterator[tuple[Store, Session]]:
    """The session, open for writing. Raises :class:`StoreLocked`, which names the holder; makes no session."""
    require(path, session)
    remedy = "stop that process, or wait for it: it delivers what waits itself. memory status needs no lock"
    with opened(path) as store, to_write(store, session, remedy) as writer:
        yield store, writer


def drain(path: str, session: str, agent: str | None, timeout: float, as_json: bool) -> None:
    """Deliver what waits; raises :class:`EngramError` if something of it was not delivered."""
    config = load_config(None, os.environ)
    require_httpx2()  # before the lock is taken: nothing is to be had without it
    with _locked(path, session) as (store, writer):
        with store.reader(session) as reader:
            boxes = boxes_of(reader, agent)
        waiting = [box for box in boxes if box.contents.waiting]
        if not waiting:
            if not as_json:
                output.put_text("nothing waits")
            return
        asyncio.run(_drain(config, writer, waiting, timeout, as_json))


async def _drain(config: MemoryConfig, writer: Session, waiting: Sequence[Box], timeout: float, as_json: bool) -> None:
    face = AsyncSession(writer)
    async with MemoryBridge(config) as bridge:
        try:
            async with asyncio.timeout(timeout):
                await bridge.ready()
        except TimeoutError:
            raise _untouched(waiting, f"no memory server within {timeout:g} s", as_json) from None
        except EngramError as error:
            _untouched(waiting, error.cause, as_json)
            raise
        # without a directory: each entry goes to the project of the one that it was captured in
        memories = [await bridge.session(face, box.agent, None) for box in waiting]
        await asyncio.gather(*(memory.drain(timeout) for memory in memories))
        # told before the bridge closes: a request that it gives up then is in flight, and shown so by status
        left = aside = 0
        for box, memory in zip(waiting, memories, strict=True):
            for entry in box.contents.waiting:
                state = memory.state(entry.id) or "delivered"  # None: so long ago that its id is forgotten
                held = memory.aside.get(entry.id)
                _tell(box.agent, entry, state, None if held is None else held.reason, as_json)
                left += state in ("pending", "in flight")
                aside += state in ("unknown", "parked")
        reasons = [memory.blocked for memory in memories if memory.waiting and memory.blocked is not None]
    if left:
        why = f" ({reasons[0]})" if reasons else ""
        raise EngramError(f"{_entries(left, 'waits', 'wait')} still{why}", "see scopelog memory check, and drain again")
    if aside:
        raise EngramError(
            f"{_entries(aside, 'was', 'were')} not delivered, and set aside", "use scopelog memory retry or drop"
        )


def _untouched(waiting: Sequence[Box], cause: str, as_json: bool) -> EngramError:
    """Say that everything waits on, and what to raise."""
    entries = [(box.agent, entry) for box in waiting for entry in box.contents.waiting]
    for agent, entry in entries:
        _tell(agent, entry, "pending", cause, as_json)
    return EngramError(f"{_entries(len(entries), 'waits', 'wait')} still ({cause})", "see scopelog memory check")


def _entries(count: int, one: str, more: str) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'} {one if count == 1 else more}"


def _tell(agent: str, entry: Entry, state: str, reason: str | None, as_json: bool) -> None:
    reason = None if reason is None else reason[:REASON_SHOWN]
    if as_json:
        output.put_json({"agent": agent, "entry": entry.id, "kind": entry.kind, "state": state, "reason": reason})
    else:
        cells = (f"{state:9}", f"{entry.kind:8}", entry.id, reason or "")
        output.put_text("  ".join(map(printable, cells)).rstrip())


# --- retry and drop -------------------------------------------------------------------------------


def retry(path: str, session: str, entries: Sequence[str], agent: str | None) -> None:
    """Put entries that were set aside back into the queue; sends nothing."""
    _each(path, session, entries, agent, Outbox.retry, "queued again", lambda contents: contents.aside)


def drop(path: str, session: str, entries: Sequence[str], agent: str | None) -> None:
    """Forget entries that wait or were set aside."""
    _each(path, session, entries, agent, Outbox.drop, "dropped", _not_done)


def _not_done(contents: Contents) -> Container[str]:
    return contents.aside.keys() | {entry.id for entry in contents.waiting}


def _each(
    path: str,
    session: str,
    entries: Sequence[str],
    agent: str | None,
    act: Callable[[Outbox, str], Awaitable[None]],
    done: str,
    among: Callable[[Contents], Container[str]],
) -> None:
    with _locked(path, session) as (store, writer):
        with store.reader(session) as reader:
            boxes = boxes_of(reader, agent)
        # all of them are found before the first is touched
        chosen = [(_holder(boxes, entry, among), entry) for entry in dict.fromkeys(entries)]
        asyncio.run(_act(writer, chosen, act, done))


def _holder(boxes: Sequence[Box], entry: str, among: Callable[[Contents], Container[str]]) -> Box:
    holders = [box for box in boxes if entry in among(box.contents)]
    if not holders:
        which = "parked or unknown" if among is not _not_done else "waiting, parked or unknown"
        raise InvalidInput(f"no entry {entry!r} is {which}", "scopelog memory status lists the entries")
    if len(holders) > 1:
        agents = ", ".join(repr(box.agent) for box in holders)
        raise InvalidInput(f"the agents {agents} each have an entry {entry!r}", "choose one with --agent")
    return holders[0]


async def _act(
    writer: Session, chosen: Sequence[tuple[Box, str]], act: Callable[[Outbox, str], Awaitable[Any]], done: str
) -> None:
    face = AsyncSession(writer)
    outboxes: dict[str, Outbox] = {}
    for box, entry in chosen:
        outbox = outboxes.setdefault(box.agent, Outbox(face, box.agent))
        kinds = [one.kind for one in box.entries if one.id == entry]
        await act(outbox, entry)
        output.put_text(printable(f"{done}: {kinds[0]} {entry}"))
