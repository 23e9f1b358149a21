"""A session's row on the server: registered at the first write, renewed each minute, its key rotated once it is proved
unusable.

Nothing else makes a row: reads leave none. Nothing here ends one. A rotation is stored before it is used where we make
the key; where the server makes it (``resume``) the same key comes back if we ask again.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from scopelog.errors import InvalidInput

from .errors import EngramError, HttpError
from .flight import SharedFlight
from .outbox import MAX_ID_BYTES, Outbox, check_id

Json: TypeAlias = Any

TRUSTED: Final = 60.0  # seconds for which a registration is not renewed
UNUSABLE: Final = frozenset({"session_already_ended", "session_project_conflict"})
RESUME: Final = "root_session_resume"
_ROUNDS: Final = 2

_log = logging.getLogger(__name__)


class Asker(Protocol):
    """What is asked of a transport."""

    capabilities: frozenset[str] | None

    @property
    def doubted(self) -> bool:
        """Whether nobody knows which server listens now."""

    async def request(self, method: str, path: Any, *, query: Any = None, body: Json = None) -> Json:
        """The decoded answer."""


class Registration:
    """One agent session's row. One event loop; concurrent callers share one attempt."""

    def __init__(
        self,
        transport: Asker,
        outbox: Outbox,
        cwd: str | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        new_key: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self.released = False
        """Disposed of: nothing new may register any more."""
        self.registered = False
        self.failure: EngramError | None = None
        """Why the last attempt failed, if it did."""
        self._transport = transport
        self._outbox = outbox
        self._cwd = cwd
        self._clock = clock
        self._new_key = new_key
        self._confirmed = float("-inf")
        self._project = ""  # that the row was registered for
        self._asking: SharedFlight[bool] = SharedFlight()

    @property
    def key(self) -> str:
        """The memory key now."""
        return self._outbox.key

    async def ensure(self, project: str, *, directory: str | None = None, entitled: bool = False) -> bool:
        """Whether the session has a row that takes writes, registering or renewing it if it is due.

        ``directory``: the working directory that ``project`` is that of, the session's own unless given.
        ``entitled``: for an entry that was admitted before the disposal, which carries the right to register. A
        failure is logged and never remembered; if the row was confirmed before, and not rotated, the answer is yes.
        """
        if not project or (self.released and not entitled):
            return False
        while not (self._holds(project) and self._clock() - self._confirmed < TRUSTED):
            done = await self._asking.join(lambda: self._attempt(project, directory or self._cwd))
            if not done or self._holds(project):
                return done
            # else the attempt that was joined was for another project: ours is next
        return True

    def forget(self) -> None:
        """The row was ended: the next write looks at it again."""
        self.registered = False
        self._confirmed = float("-inf")

    async def aclose(self) -> None:
        """Give up an attempt in flight."""
        await self._asking.abandon()

    def _holds(self, project: str) -> bool:
        return self.registered and self._project == project

    async def _attempt(self, project: str, directory: str | None) -> bool:
        before, known = self.key, self._holds(project)
        try:
            ended = await self._is_ended()
            if ended:
                self.forget()  # whatever becomes of the rest: this row takes no writes any more
            if ended and not self._resumes:
                await self._rotate("session_already_ended")
            await self._post(project, directory, resume=ended and self._resumes)
        except EngramError as error:
            self.failure = error
            _log.warning("the memory session could not be registered: %s", error.cause)
            # a failure that says nothing of the key never rotates it
            return known and self.key == before and self.registered
        self.registered, self._confirmed, self._project = True, self._clock(), project
        self.failure = None
        return True

    @property
    def _resumes(self) -> bool:
        """Whether the server makes the key that follows an ended one, and gives the same again when asked again."""
        return RESUME in (self._transport.capabilities or ())

    async def _is_ended(self) -> bool:
        """Looked at first, for old servers register an ended row without a word. Raises for anything but an answer."""
        try:
            row = await self._transport.request("GET", ["sessions", self.key])
        except HttpError as error:
            if error.status == 404:
                return False  # made again under the same key
            raise
        return isinstance(row, dict) and bool(row.get("ended_at"))

    async def _post(self, project: str, directory: str | None, *, resume: bool) -> None:
        for attempt in range(1, _ROUNDS + 1):
            body = {"id": self.key, "project": project, "directory": directory, "ownership_mode": "project_owned"}
            try:
                reply = await self._transport.request(
                    "POST", "/sessions", body={**body, "resume": True} if resume else body
                )
            except HttpError as error:
                # only what the server itself says of the key rotates it, and once: then it is tried again
                if error.status != 409 or error.code not in UNUSABLE:
                    raise
                self.forget()
                if attempt == _ROUNDS:
                    raise
                resume = error.code == "session_already_ended" and self._resumes
                if not resume:
                    await self._rotate(error.code)
                continue
            given = reply.get("id") if isinstance(reply, dict) else None
            if not resume:
                return
            if not isinstance(given, str) or not given:
                raise EngramError("the memory server resumed a session without saying its id", "it is tried again")
            try:
                check_id("resumed session's id", given, MAX_ID_BYTES)  # it becomes part of paths
            except InvalidInput as error:
                raise EngramError(error.cause, "it is tried again") from error
            if given != self.key:
                _log.warning("the memory key %s goes on as %s (session_already_ended)", self.key, given)
                await self._outbox.rotate(given, "session_already_ended")  # stored before it is used
            return

    async def _rotate(self, reason: str) -> None:
        new = self._new_key()
        _log.warning("the memory key %s is unusable (%s): it is %s from now on", self.key, reason, new)
        self.forget()
        await self._outbox.rotate(new, reason)  # stored before it is used: a restarted process goes on with it
