"""One entry of the outbox to the server: frozen, sent once, and what to believe of a request whose outcome is unknown.

========= ============================== =====================================================================
kind      request                        after an unknown outcome
========= ============================== =====================================================================
save      POST /observations             ask GET /observations/save-result for the operation id; only its typed
summary   with the entry's id as         "not found" authorises one byte-identical replay; without the route, or
archive   operation id                   where it does not say, it stays unknown and is never sent again
prompt    POST /prompts with the         sent again where the server keeps inbox ids (its capabilities say so),
          entry's id as inbox id         else unknown
learning  POST /observations/passive     the same: the server knows equal learnings
end       GET the row, then POST end     the row tells
========= ============================== =====================================================================

An answer that is no success never starts a lookup or a replay: 4xx parks the entry with its reason. After 5xx it may
have been applied: where the server can tell repeats it is looked up and sent again once the queue goes on, else it is
unknown.
An archive's operation id is ``<agent id>/<entry id>``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from .capture import archive_topic
from .errors import EngramError, HttpError, RequestRefused, TransportFailed
from .outbox import Entry, Outbox
from .projects import ProjectGate
from .registration import RESUME, Asker, Registration

Json: TypeAlias = Any

Verdict: TypeAlias = Literal["delivered", "unknown", "parked", "blocked"]

SAVES: Final = frozenset({"save", "summary", "archive"})
NOT_FOUND: Final = "observation_save_result_not_found"
UNFIT: Final = frozenset({400, 413, 422})  # what was asked is wrong, and stays so
RECOVERY_LIMIT: Final = 7.5  # seconds for lookups and the replay after a lost reply
_SUMMARY: Final = "session_summary"
_LOST: Final = object()  # in place of a reply

_log = logging.getLogger(__name__)


class Blocked(Exception):
    """The entry cannot be delivered now; the queue waits. ``error`` says why."""

    def __init__(self, error: EngramError) -> None:
        super().__init__(error.cause)
        self.error = error


class Delivery:
    """Delivers the head of one outbox. One call at a time."""

    def __init__(
        self,
        transport: Asker,
        outbox: Outbox,
        gate_of: Callable[[str | None], ProjectGate],
        registration: Registration,
        ready: Callable[[], Awaitable[None]],
    ) -> None:
        """``gate_of``: the project gate of a working directory. ``ready``: see :meth:`MemoryBridge.ready`."""
        self._transport = transport
        self._outbox = outbox
        self._gate_of = gate_of
        self._registration = registration
        self._ready = ready
        self.closing = False
        """Whether nothing new may be asked: neither a lookup nor another send."""
        self._settled: tuple[str, Callable[[], Awaitable[None]], Json] | None = None
        """What became of an entry, until that is stored."""
        self.sending = False
        """Whether a write is under way, or its outcome not stored yet: cut short it would be unknown."""

    async def deliver(self, entry: Entry) -> Json:
        """Deliver the head, or set it aside; returns the server's reply, None where there is none.

        :raises Blocked: nothing can be delivered now: no server, no registration, no project yet.
        """
        try:
            return await self._deliver(entry)
        finally:
            self.sending = False

    async def _deliver(self, entry: Entry) -> Json:
        if self._settled is not None and self._settled[0] == entry.id:  # our own disk failed when it was to be stored
            return await self._settle(entry, *self._settled[1:])
        if entry.kind == "end":
            return await self._end(entry)
        request = self._outbox.frozen(entry)
        if request is not None and not self._outbox.unsent(entry):
            return await self._recover(entry, request)  # it may have been sent, by this process or an earlier one
        # nothing of it has arrived yet: as long as that is proved, the row is looked at anew before each try
        request = await self._freeze(entry)
        return None if request is None else await self._send(entry, request)

    async def _delivered(self, entry: Entry, reply: Json = None) -> None:
        await self._settle(entry, partial(self._outbox.delivered, entry), reply)

    async def _set_aside(self, entry: Entry, state: Literal["unknown", "parked"], reason: str) -> None:
        await self._settle(entry, partial(self._outbox.set_aside, entry, state, reason))

    async def _settle(self, entry: Entry, store: Callable[[], Awaitable[None]], reply: Json = None) -> Json:
        """Known from now on, also if it cannot be stored now: then the next try stores it, and asks nobody."""
        self._settled = (entry.id, store, reply)
        await store()
        self._settled = None
        return reply

    # --- the first time -----------------------------------------------------------------------------

    async def _freeze(self, entry: Entry) -> dict[str, Json] | None:
        """The request, with the project and key there are now: resolved at the first send, then the same for ever."""
        project = await self._project(entry)
        if project is None:
            return None
        # an entry that was admitted carries the right to register its row, also after the disposal
        if not await self._registration.ensure(project, directory=entry.cwd, entitled=True):
            failure = self._registration.failure
            if isinstance(failure, HttpError) and failure.status in UNFIT:
                # the server will say the same of every later try, and others wait behind it
                await self._set_aside(entry, "parked", f"its session was refused: {failure.message}")
                return None
            raise Blocked(failure or _unregistered())
        request = _request_of(entry, self._outbox.places.agent_id, self._registration.key, project)
        self.sending = True  # until its outcome is stored: frozen and cut short, it would count as perhaps sent
        await self._outbox.freeze(
            entry, request
        )  # before the first send: a later try is this request, whatever rotated
        return request

    async def _project(self, entry: Entry) -> str | None:
        """The project of the directory in which the entry was captured; None once it is parked for want of one."""
        try:
            # fail closed: never the server's directory, nor that of a later process of the same agent
            resolution = await self._gate_of(entry.cwd).resolve()
        except EngramError as error:
            raise Blocked(error) from error
        if resolution.state == "resolved":
            return resolution.project
        if not resolution.located:  # no later try can find a directory
            await self._set_aside(entry, "parked", resolution.reason)
            return None
        raise Blocked(resolution.error())

    async def _send(self, entry: Entry, request: dict[str, Json], *, replay: bool = False) -> Json:
        if self.closing:
            if not replay:
                await self._outbox.freeze(entry, request, unsent=True)  # frozen, and that was all
            raise Blocked(_undecided())
        try:
            reply = await self._write(request)
        except HttpError as error:
            return await self._answered(entry, request, error, replay=replay)
        except RequestRefused as error:  # proof of non-delivery: the next try is the first, also in a later process
            await self._outbox.freeze(entry, request, unsent=not replay)
            raise Blocked(error) from error
        except TransportFailed:
            reply = _LOST
        if reply is _LOST or (entry.kind in SAVES and not _saved(reply)):  # a receipt without an id is none
            return await (self._settle_by_lookup(entry, request) if replay else self._recover(entry, request))
        await self._delivered(entry, reply)
        return reply

    async def _write(self, request: dict[str, Json]) -> Json:
        self.sending = True
        return await self._transport.request(request["method"], request["path"], body=request["body"])

    async def _answered(self, entry: Entry, request: dict[str, Json], error: HttpError, *, replay: bool) -> Json:
        """An answer that is no success: it starts no lookup and no replay."""
        if replay and error.status in (409, 410):
            return await self._settle_by_lookup(entry, request)  # the first one may have come through after all
        if error.status >= 500 and self._tells_repeats(error):
            raise Blocked(error) from error
        self._registration.forget()  # it may have been about the row: that is looked at before the next entry
        reason = error.message if error.code == "" else f"{error.code}: {error.message}"
        await self._set_aside(entry, "parked" if error.status < 500 else "unknown", reason)
        return None

    def _tells_repeats(self, error: EngramError | None = None) -> bool:
        """Whether the server keeps the ids of operations and inboxes: no capability of their own says so, but they
        came with this one.

        :raises Blocked: it has not told yet what it can do; nothing is given up before that.
        """
        if self._transport.capabilities is None or self._transport.doubted:
            raise Blocked(error or _undecided())
        return RESUME in self._transport.capabilities

    # --- after an unknown outcome -------------------------------------------------------------------

    async def _recover(self, entry: Entry, request: dict[str, Json]) -> Json:
        if self.closing:  # the next process finds out what became of it
            raise Blocked(_undecided())
        try:
            async with asyncio.timeout(RECOVERY_LIMIT):
                # after a failure another server may listen: one that cannot tell repeats, or somebody else's
                await self._ready()
                if entry.kind in SAVES:
                    return await self._recover_save(entry, request)
                if self._tells_repeats():
                    return await self._send_again(entry, request)
        except TimeoutError:
            _log.warning("what became of a memory entry of kind %s could not be told in time", entry.kind)
            raise Blocked(_undecided()) from None
        await self._set_aside(entry, "unknown", "its outcome is unknown, and this server does not tell repeats")
        return None

    async def _send_again(self, entry: Entry, request: dict[str, Json]) -> Json:
        """The same bytes, to a server that knows them again."""
        try:
            reply = await self._write(request)
        except HttpError as error:
            if error.status >= 500:
                raise Blocked(error) from error
            self._registration.forget()
            # no proof about the first one, which may have come through
            await self._set_aside(entry, "unknown", f"refused when it was sent again: {error.message}")
            return None
        except TransportFailed as error:
            raise Blocked(error) from error
        await self._delivered(entry, reply)
        return reply

    async def _recover_save(self, entry: Entry, request: dict[str, Json]) -> Json:
        found = await self._look_up(request)
        if found == "absent":
            return await self._send(entry, request, replay=True)
        return await self._believe(entry, found)

    async def _settle_by_lookup(self, entry: Entry, request: dict[str, Json]) -> Json:
        """One last lookup, never another send."""
        return await self._believe(entry, await self._look_up(request))

    async def _believe(self, entry: Entry, found: Json) -> Json:
        if isinstance(found, dict):
            await self._delivered(entry, found)
            return found
        reason = "the server has no record of it, nor of its absence" if found == "silent" else "its outcome is unknown"
        await self._set_aside(entry, "unknown", reason)
        return None

    async def _look_up(self, request: dict[str, Json]) -> Json:
        """The receipt; "absent" where the server itself says that it never came; "gone" or "silent" else."""
        operation = request["body"].get("operation_id")
        if not isinstance(operation, str) or not operation:
            return "silent"
        query = {"operation_id": operation}
        try:
            reply = await self._transport.request("GET", "/observations/save-result", query=query)
        except HttpError as error:
            if error.status == 404 and error.code == NOT_FOUND:
                return "absent"
            if error.status >= 500:
                raise Blocked(error) from error
            return "gone" if error.status == 410 else "silent"
        except TransportFailed as error:
            raise Blocked(error) from error  # the server is away: it is looked up again when it is back
        return reply if _saved(reply) else "silent"

    # --- the end of the row -------------------------------------------------------------------------

    async def _end(self, entry: Entry) -> Json:
        """Nobody else ends a row, and only the session's own: a row that is absent or ended is left alone, for a second
        end would overwrite its summary. Reading first also tells what became of an earlier try."""
        frozen = self._outbox.frozen(entry)
        # once tried it is the end of that row: the key may have rotated since
        key = self._registration.key if frozen is None else str(frozen["path"][1])
        try:
            row = await self._transport.request("GET", ["sessions", key])
        except HttpError as error:
            if error.status >= 500:
                raise Blocked(error) from error
            if error.status != 404:
                await self._set_aside(entry, "parked", error.message)
                return None
            row = None
        except TransportFailed as error:
            raise Blocked(error) from error
        if not isinstance(row, dict) or row.get("ended_at"):
            tried = frozen is not None and isinstance(row, dict)
            self._registration.forget()
            await self._delivered(entry)
            note = (
                "the session has no row on the server" if not isinstance(row, dict) else "the session was ended before"
            )
            return {"ended": True, "session_id": key} if tried else {"ended": False, "note": note, "session_id": key}
        project = await self._project(entry)
        if project is None:  # no write without one
            return None
        if str(row.get("project", "")).strip().lower() != project.strip().lower():
            await self._delivered(entry)  # only the session's own row is ended, and this is somebody else's
            note = "the row of that id belongs to another project"
            return {"ended": False, "note": note, "session_id": key}
        request = {
            "method": "POST",
            "path": ["sessions", key, "end"],
            "body": {"summary": entry.payload.get("summary", "")},
        }
        self.sending = True
        await self._outbox.freeze(entry, request)
        try:
            await self._write(request)
        except HttpError as error:
            if error.status >= 500:
                raise Blocked(error) from error
            await self._set_aside(entry, "parked", error.message)
            return None
        except TransportFailed as error:
            raise Blocked(error) from error  # the next try reads the row first
        self._registration.forget()  # the next write finds the ended row
        await self._delivered(entry)
        return {"ended": True, "session_id": key}


def _request_of(entry: Entry, agent_id: str, key: str, project: str) -> dict[str, Json]:
    payload = dict(entry.payload)
    if entry.kind == "prompt":
        body = {"session_id": key, "content": payload["content"], "project": project, "source_inbox_id": entry.id}
        return {"method": "POST", "path": "/prompts", "body": body}
    if entry.kind == "learning":
        body = {"session_id": key, "project": project, "source": "dsh-tool", **payload}
        return {"method": "POST", "path": "/observations/passive", "body": body}
    if entry.kind == "summary":
        payload = {"title": "Session summary", "type": _SUMMARY, "scope": "project", **payload}
    elif entry.kind == "archive":
        # the key is part of the topic: two sessions of a project do not overwrite each other's
        topic = {"topic_key": archive_topic(key)}
        payload = {"title": "Compaction recovery summary", "type": _SUMMARY, "scope": "project", **payload, **topic}
    # the server knows operations of all sessions by their ids, and a compaction's id is unique in its session only
    operation = f"{agent_id}/{entry.id}" if entry.kind == "archive" else entry.id
    body = {"session_id": key, "project": project, **payload, "operation_id": operation}
    return {"method": "POST", "path": "/observations", "body": {k: v for k, v in body.items() if v is not None}}


def _saved(reply: Json) -> bool:
    return isinstance(reply, dict) and type(reply.get("id")) is int and reply["id"] > 0


def _unregistered() -> EngramError:
    return EngramError("the memory session could not be registered", "it is tried again; see the log for the reason")


def _undecided() -> EngramError:
    return EngramError("what became of a request could not be told in time", "it is asked again later")
