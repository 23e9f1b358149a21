"""The durable outbox: what an agent session wants remembered, stored before anything is sent, in order.

=================  =======================  ===================================================================
namespace          key (session scope)      holds
=================  =======================  ===================================================================
memory.outbox      agent id                 list: entries that wait, ``{id, kind, cwd, payload, at}``, oldest first
memory.flight      agent id                 value: the entry that is being sent, and the request as it was frozen
memory.aside       [agent id, entry id]     value: an entry that is parked or unknown, with the reason
memory.done        agent id                 list: ids of entries that are done with, the last 1,024 at least;
                                            ``{id, dropped}`` of those that were dropped
memory.agents      agent id                 value: there once the agent has an outbox
memory.key         agent id                 value: the memory key after a rotation
=================  =======================  ===================================================================

Each step is one commit. A commit that raises is taken back here as well, so that memory and disk agree; what it would
have said is said again by the next try.
"""

from __future__ import annotations

import bisect
import json
import logging
import os
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeAlias

from scopelog.addresses import List, SessionScope, Value, Write, check_name, list_of, value
from scopelog.aio import AsyncSession
from scopelog.errors import InvalidInput, LimitExceeded
from scopelog.results import Element
from scopelog.results import Entry as StoredValue
from scopelog_engine.elements import freeze

from .redaction import redact

Json: TypeAlias = Any
Kind: TypeAlias = Literal["save", "summary", "archive", "prompt", "learning", "end"]
State: TypeAlias = Literal["pending", "in flight", "delivered", "unknown", "parked", "dropped"]

KINDS: Final[tuple[Kind, ...]] = ("save", "summary", "archive", "prompt", "learning", "end")
AGENTS: Final = "memory.agents"
MAX_AGENT_BYTES: Final = 256
MAX_ID_BYTES: Final = 512
MAX_CWD_BYTES: Final = 4096
MAX_ENTRY_BYTES: Final = 8 * 1024 * 1024
REASON_KEPT: Final = 500  # characters
LATEST: Final = 2**53 - 1  # ms since 1970; a clock that says more is not believed
MAX_PENDING: Final = 10_000
"""Entries that may wait; more are refused."""
DONE_KEPT: Final = 1024
"""Ids of done entries that are remembered at least, so that an event which is captured again stays the same entry."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """What is to be delivered. ``id`` comes from the harness's own event; ``at``: wall-clock ms of its admission."""

    id: str
    kind: Kind
    cwd: str | None
    payload: dict[str, Json]
    at: int = 0
    seq: int = 0

    def stored(self) -> dict[str, Json]:
        """As it stands in the list."""
        return {"id": self.id, "kind": self.kind, "cwd": self.cwd, "payload": self.payload, "at": self.at}


@dataclass(frozen=True)
class Aside:
    """An entry that is not sent any more, unless somebody says so."""

    entry: Entry
    state: Literal["unknown", "parked"]
    reason: str
    frozen: dict[str, Json] | None = None


class Places:
    """The addresses of one agent session."""

    def __init__(self, agent_id: str) -> None:
        check_id("agent's id", agent_id, MAX_AGENT_BYTES)
        self.agent_id = agent_id
        self.queue: List[SessionScope] = list_of("memory.outbox", agent_id)
        self.done: List[SessionScope] = list_of("memory.done", agent_id)
        self.flight: Value[SessionScope] = value("memory.flight", agent_id)
        self.key: Value[SessionScope] = value("memory.key", agent_id)
        self.agent: Value[SessionScope] = value(AGENTS, agent_id)

    def aside(self, entry_id: str) -> Value[SessionScope]:
        return value("memory.aside", aside_key(self.agent_id, entry_id))


def aside_key(agent_id: str, entry_id: str = "") -> str:
    """The key of a value that is set aside; without an entry, what all of the agent's keys begin with."""
    prefix = json.dumps([agent_id], ensure_ascii=False)[:-1] + ","
    return prefix + json.dumps(entry_id, ensure_ascii=False) + "]" if entry_id else prefix


class Reads(Protocol):
    """A session, or a reader beside it."""

    def get(self, address: Value[Any], default: Json = None) -> Json: ...

    def scan(self, namespace: str, prefix: str = "") -> list[StoredValue]: ...

    def read(self, target: List[Any], *, order: Any = "asc", limit: int | None = None) -> list[Element]: ...


@dataclass
class Contents:
    """What is stored of an outbox."""

    waiting: list[Entry]
    flight: dict[str, Json] | None
    aside: dict[str, Aside]
    done: list[tuple[int, str]]
    dropped: set[str]
    buried: list[tuple[int, str]]
    """Sequence and id of elements of the queue that do not wait, and stand there until what is before them has left."""
    key: str | None

    @classmethod
    def of(cls, source: Reads, places: Places) -> Contents:
        """Read it. Elements that are none of ours are left out, and said so."""
        done: list[tuple[int, str]] = []
        dropped: set[str] = set()
        for e in reversed(source.read(places.done, order="desc")):
            given_up = isinstance(e.element, dict)
            entry_id = str(e.element.get("id") if isinstance(e.element, dict) else e.element)
            done.append((e.seq, entry_id))
            (dropped.add if given_up else dropped.discard)(entry_id)
        finished = {entry_id for _, entry_id in done}
        aside: dict[str, Aside] = {}
        for stored in source.scan("memory.aside", aside_key(places.agent_id)):
            found = _aside_of(stored.value)
            if found is not None:
                aside[found.entry.id] = found
        waiting: dict[str, Entry] = {}  # one of an id: an event is one entry, whatever brought it here twice
        buried: list[tuple[int, str]] = []
        for e in source.read(places.queue):
            entry = entry_of(e.element, e.seq)
            if entry is None:  # it leaves with the next that does
                continue
            if entry.id in finished or entry.id in aside or entry.id in waiting:
                buried.append((e.seq, entry.id))
            else:
                waiting[entry.id] = entry
        flight, key = source.get(places.flight), source.get(places.key)
        return cls(
            list(waiting.values()),
            flight if _is_flight(flight) else None,
            aside,
            done,
            dropped,
            buried,
            key["key"] if isinstance(key, dict) and isinstance(key.get("key"), str) else None,
        )


class Outbox:
    """The outbox of one agent session, open for writing."""

    def __init__(self, session: AsyncSession, agent_id: str) -> None:
        """Reads what is stored, on the loop's thread."""
        self.places = Places(agent_id)
        self._session = session
        self._stored = Contents.of(session.sync, self.places)
        self._ids = {entry.id for entry in self._stored.waiting}
        self._done = {entry_id for _, entry_id in self._stored.done}
        self._listed = session.sync.get(self.places.agent) is not None
        self._adding = 0  # entries that are being stored, whose sequences are not known yet

    @property
    def key(self) -> str:
        """The memory key: the agent's id, or what a rotation has made of it."""
        return self._stored.key or self.places.agent_id

    @property
    def waiting(self) -> list[Entry]:
        """Entries that are not done with, oldest first."""
        return list(self._stored.waiting)

    @property
    def aside(self) -> dict[str, Aside]:
        """Entries that are parked or unknown, by id."""
        return dict(self._stored.aside)

    @property
    def head(self) -> Entry | None:
        """The next to be delivered: the oldest, but for one whose request was frozen before the oldest was known."""
        waiting, flight = self._stored.waiting, self._stored.flight
        if not waiting or flight is None or flight["id"] == waiting[0].id:
            return waiting[0] if waiting else None
        return next((one for one in waiting if one.id == flight["id"]), waiting[0])

    def frozen(self, entry: Entry) -> dict[str, Json] | None:
        """The request of an entry, once it was frozen: it may have been sent."""
        flight = self._stored.flight
        return flight["request"] if flight is not None and flight["id"] == entry.id else None

    def unsent(self, entry: Entry) -> bool:
        """Whether the frozen request is proved not to have arrived: the next send is the first."""
        return self.frozen(entry) is not None and bool((self._stored.flight or {}).get("unsent"))

    def state(self, entry_id: str) -> State | None:
        """Where an entry stands; None if it was never admitted, or is forgotten."""
        if entry_id in self._ids:
            flight = self._stored.flight
            return "in flight" if flight is not None and flight["id"] == entry_id else "pending"
        if entry_id in self._stored.aside:
            return self._stored.aside[entry_id].state
        if entry_id in self._stored.dropped:
            return "dropped"
        return "delivered" if entry_id in self._done else None

    async def add(self, entry: Entry) -> bool:
        """Store an entry; False, and nothing is stored, if one of that id was admitted before.

        Private blocks are taken out of its payload first. Raises :class:`LimitExceeded` above 10,000 that wait, and
        what :meth:`AsyncSession.commit` raises: it is not admitted then.
        """
        check_id("entry's id", entry.id, MAX_ID_BYTES)
        if entry.kind not in KINDS:
            raise InvalidInput(f"{entry.kind!r} is no kind of entry", f"pass one of {', '.join(KINDS)}")
        if self.state(entry.id) is not None:
            return False
        if len(self._stored.waiting) + len(self._stored.buried) >= MAX_PENDING:
            raise LimitExceeded(f"{MAX_PENDING} entries wait for the memory server", "see scopelog memory status")
        # whoever captured it has redacted it: once more here, for nothing private may ever be stored
        entry = Entry(entry.id, entry.kind, entry.cwd, redact(entry.payload), entry.at)
        size = len(freeze(entry.stored())[0])
        if size > MAX_ENTRY_BYTES:
            raise LimitExceeded(f"the entry takes {size} bytes, the limit is {MAX_ENTRY_BYTES}", "save less at a time")
        self._ids.add(entry.id)  # before the commit: the same event may come again while it is under way
        self._adding += 1
        try:
            listed = [] if self._listed else [self.places.agent.set(True)]
            receipt = await self._session.commit([*listed, self.places.queue.append(entry.stored())])
            self._listed = True
        except BaseException:
            self._ids.discard(entry.id)
            raise
        finally:
            self._adding -= 1
        self._queue(entry, receipt.last)
        return True

    async def freeze(self, entry: Entry, request: dict[str, Json], *, unsent: bool = False) -> None:
        """The entry is about to be sent as this request, whatever comes later; or, ``unsent``, was refused as it."""
        flight: dict[str, Json] = {"id": entry.id, "request": request, **({"unsent": True} if unsent else {})}
        await self._session.commit([self.places.flight.set(flight)])
        self._stored.flight = flight

    async def delivered(self, entry: Entry) -> None:
        """The entry is stored by the server: it leaves."""
        await self._leave(entry, [], entry.id)

    async def set_aside(self, entry: Entry, state: Literal["unknown", "parked"], reason: str) -> None:
        """The entry leaves the queue, and is kept with the reason: it does not block the others."""
        reason = str(redact(reason))[:REASON_KEPT]  # a server may say anything
        aside = Aside(entry, state, reason, self.frozen(entry))
        await self._leave(entry, [self.places.aside(entry.id).set(_stored_aside(aside))])
        self._stored.aside[entry.id] = aside
        _log.warning("a memory entry of kind %s is %s: %s", entry.kind, state, reason)

    async def rotate(self, key: str, reason: str) -> None:
        """From now on this is the session's memory key, also in a later process."""
        await self._session.commit([self.places.key.set({"key": key, "reason": reason})])
        self._stored.key = key

    async def retry(self, entry_id: str) -> None:
        """Put an entry that was set aside back into the queue, at its end, to be resolved and frozen anew.

        Raises :class:`InvalidInput` if there is none of that id.
        """
        aside = self._aside(entry_id)
        del self._stored.aside[entry_id]  # before the commit: nobody else puts it back as well
        self._ids.add(entry_id)
        try:
            receipt = await self._session.commit(
                [self.places.queue.append(aside.entry.stored()), self.places.aside(entry_id).delete()]
            )
        except BaseException:
            self._ids.discard(entry_id)
            self._stored.aside[entry_id] = aside
            raise
        self._queue(aside.entry, receipt.first)

    async def drop(self, entry_id: str) -> None:
        """Forget an entry: it is never sent any more. Not for the head while it is being sent.

        Raises :class:`InvalidInput` if none of that id waits, is parked or unknown.
        """
        for entry in self._stored.waiting:
            if entry.id == entry_id:
                await self._leave(entry, [], _dropped(entry_id))
                self._stored.dropped.add(entry_id)
                return
        aside = self._aside(entry_id)
        del self._stored.aside[entry_id]
        self._done.add(entry_id)
        try:
            stale = self._stale()
            receipt = await self._session.commit(
                [
                    self.places.aside(entry_id).delete(),
                    self.places.done.append(_dropped(entry_id)),
                    *self._forget(stale),
                ]
            )
            self._stored.dropped.add(entry_id)
        except BaseException:
            self._done.discard(entry_id)
            self._stored.aside[entry_id] = aside
            raise
        self._remember(entry_id, receipt.last, stale)

    # --- steps --------------------------------------------------------------------------------------

    def _queue(self, entry: Entry, seq: int) -> None:
        # commits may come back in another order than they were made in
        bisect.insort(self._stored.waiting, replace(entry, seq=seq), key=lambda one: one.seq)

    def _aside(self, entry_id: str) -> Aside:
        found = self._stored.aside.get(entry_id)
        if found is None:
            raise InvalidInput(
                f"no entry {redact(entry_id)!r} is waiting, parked or unknown", "see scopelog memory status"
            )
        return found

    async def _leave(self, entry: Entry, more: list[Write[SessionScope]], marker: Json = None) -> None:
        """A waiting entry leaves in one commit: what is trimmed is gone from the queue, what is done stays known by its
        id. ``marker``: what stands for it among what is done, None if it is not done."""
        writes, reach = list(more), self._reach(entry)
        if reach:
            writes.append(self.places.queue.trim(reach))
        if frozen := self.frozen(entry) is not None:
            writes.append(self.places.flight.delete())
        stale = 0
        if marker is not None:
            stale = self._stale()
            writes += [self.places.done.append(marker), *self._forget(stale)]
        receipt = await self._session.commit(writes)
        self._stored.waiting.remove(entry)  # not by its place: others may have come meanwhile
        if frozen:
            self._stored.flight = None
        self._stored.buried.append((entry.seq, entry.id))
        self._stored.buried = [one for one in self._stored.buried if one[0] > reach]
        self._ids.discard(entry.id)
        if marker is not None:
            self._remember(entry.id, receipt.last, stale)

    def _reach(self, entry: Entry) -> int:
        """The sequence up to which nothing waits once an entry has left, 0 if that is not known."""
        waiting = self._stored.waiting
        if waiting[0] is not entry or self._adding:  # what is being stored may stand before what is known
            return 0
        last = max([entry.seq, *(seq for seq, _ in self._stored.buried)])
        return last if len(waiting) == 1 else min(last, waiting[1].seq - 1)

    def _stale(self) -> int:
        """The sequence up to which what is done is forgotten now, 0 for none: the older half, once there are twice as
        many as are kept. Not what is still buried in the queue, which would come to life again."""
        done = self._stored.done
        if len(done) < 2 * DONE_KEPT:
            return 0
        buried = {entry_id for _, entry_id in self._stored.buried}
        kept = next((n for n, (_, entry_id) in enumerate(done[:DONE_KEPT]) if entry_id in buried), DONE_KEPT)
        return done[kept - 1][0] if kept else 0

    def _forget(self, stale: int) -> list[Write[SessionScope]]:
        return [self.places.done.trim(stale)] if stale else []

    def _remember(self, entry_id: str, seq: int, stale: int) -> None:
        """Follow a commit that appended to what is done, and trimmed it up to ``stale``."""
        done = self._stored.done
        gone = {one for at, one in done if at <= stale} if stale else set()
        if gone:
            self._done -= gone
            self._stored.dropped -= gone
            done[:] = [one for one in done if one[0] > stale]
        self._done.add(entry_id)
        bisect.insort(done, (seq, entry_id))


def _dropped(entry_id: str) -> dict[str, Json]:
    return {"id": entry_id, "dropped": True}


def check_id(what: str, name: str, most: int) -> None:
    """Raise :class:`InvalidInput` for an id that cannot travel as it is: empty, dots, too long, or with a private block
    in it, which would be taken out on the way and make two ids one."""
    check_name(what, name)
    if not name.strip() or name in (".", "..") or len(name.encode()) > most or redact(name) != name:
        raise InvalidInput(
            f"the {what} is empty, dots, over {most} bytes, or holds a private block", "use an id that says nothing"
        )


def check_cwd(cwd: str) -> None:
    """Raise :class:`InvalidInput` for a working directory that cannot travel as it is. Blank is none, and does."""
    if cwd.strip() and not os.path.isabs(cwd):  # the server would resolve it from its own
        raise InvalidInput("the working directory is not absolute", "pass os.path.abspath of it")
    try:
        fits = len(cwd.encode()) <= MAX_CWD_BYTES and redact(cwd) == cwd
    except UnicodeEncodeError:  # an undecodable name, as os.getcwd gives it
        fits = False
    if not fits:
        raise InvalidInput(
            f"the working directory is not UTF-8, over {MAX_CWD_BYTES} bytes, or holds a private block",
            "use another directory",
        )


def _is_flight(flight: Json) -> bool:
    if not isinstance(flight, dict) or not isinstance(flight.get("id"), str):
        return False
    request = flight.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("body"), dict) or request.get("method") != "POST":
        return False
    path = request.get("path")
    parts = path if isinstance(path, list) else [path]
    return all(isinstance(part, str) for part in parts) and (isinstance(path, str) or len(parts) == 3)


def entry_of(element: Json, seq: int = 0) -> Entry | None:
    """An entry as it was stored; None for what is none of ours."""
    if not isinstance(element, dict) or element.get("kind") not in KINDS:
        return None
    entry_id, cwd, payload, at = (element.get(name) for name in ("id", "cwd", "payload", "at"))
    if not isinstance(entry_id, str) or not isinstance(payload, dict) or not (cwd is None or isinstance(cwd, str)):
        return None
    if element["kind"] != "end" and not isinstance(payload.get("content"), str):
        return None
    return Entry(entry_id, element["kind"], cwd, payload, at if type(at) is int and 0 <= at <= LATEST else 0, seq)


def _stored_aside(aside: Aside) -> dict[str, Json]:
    return {"entry": aside.entry.stored(), "state": aside.state, "reason": aside.reason, "request": aside.frozen}


def _aside_of(stored: Json) -> Aside | None:
    entry = entry_of(stored.get("entry")) if isinstance(stored, dict) else None
    if entry is None or stored.get("state") not in ("unknown", "parked"):
        return None
    request = stored.get("request")
    return Aside(entry, stored["state"], str(stored.get("reason")), request if isinstance(request, dict) else None)
