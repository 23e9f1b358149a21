"""The store: one directory, many sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Self

from scopelog_engine.check import Finding
from scopelog_engine.clock import Clock
from scopelog_engine.durability import Durability
from scopelog_engine.environment import Settings
from scopelog_engine.errors import InvalidInput, UnsupportedPlatform, WriteFailed
from scopelog_engine.fs import FileSystem
from scopelog_engine.index import StoreIndex
from scopelog_engine.info import SessionInfo
from scopelog_engine.layout import check_id
from scopelog_engine.notify import Watch
from scopelog_engine.position import Position
from scopelog_engine.rebuild import Rebuilt, rebuild
from scopelog_engine.salvage import Salvaged
from scopelog_engine.store import Store as EngineStore
from scopelog_engine.store import leave_out

from .addresses import Scope
from .follow import SessionFollower
from .listing import Sort, arrange, check_listing, matcher
from .session import Session, SessionReader, given_as, id_of

_MAX_WINDOW_MS: Final = 60_000
_MIN_PENDING: Final = 4096


class Store:
    """An open store. Thread-safe; closes its sessions with itself.

    ::

        with Store.open("agent.store") as store, store.session("chat-1") as session:
            session.commit([list_of("chat", "messages").append({"role": "user", "text": "hi"})])
    """

    def __init__(self, store: EngineStore) -> None:
        if not isinstance(store, EngineStore):
            raise InvalidInput(f"a store is not made from {given_as(store)}", "use Store.open(path)")
        self._store = store

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        window_ms: float = 100,
        durability: Durability = Durability.POWER,
        scope_durability: Durability = Durability.PROCESS,
        pending_bytes: int = 4 * 1024 * 1024,
        compact_growth: float = 0,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
    ) -> Self:
        """Open the store in directory ``path``, made with its missing parents if ``create``.

        The settings are what its sessions are written with unless told otherwise; reading depends on none of them.
        ``window_ms``: 0 to 60,000, how long a staged element may wait. ``durability``, ``scope_durability``: the
        level of the session scope and of ephemeral ones. ``pending_bytes``: bound of what may wait in one session
        (64 MiB in one store). ``compact_growth``: a log that has grown to so many times its length after its last
        compaction, and to 1 MiB, is compacted by a thread; 0, the default: none is. ``clock`` and ``fs`` are seams for
        tests.

        Raises :class:`NotAStore`, :class:`NewerFormat`, :class:`CorruptLog`, :class:`UnsupportedPlatform`,
        :class:`OpenFailed`.
        """
        settings = _settings(Settings(), window_ms, durability, scope_durability, pending_bytes, compact_growth)
        if not isinstance(path, str | os.PathLike):
            raise InvalidInput(f"the path is {given_as(path)}", "pass a str or a pathlib.Path")
        return cls(EngineStore.open(path, create=create, fs=fs, clock=clock, settings=settings))

    @property
    def path(self) -> str:
        return self._store.path

    @property
    def id(self) -> str:
        """The store's 128-bit id in hex."""
        return self._store.identity

    def session(
        self,
        session_id: str,
        *,
        window_ms: float | None = None,
        durability: Durability | None = None,
        scope_durability: Durability | None = None,
        pending_bytes: int | None = None,
        compact_growth: float | None = None,
    ) -> Session:
        """Open a session for writing; it comes into being with its first write. See :meth:`open` for the settings.

        Raises :class:`StoreLocked` (with ``pid`` and ``since``) while any handle owns it, :class:`CorruptLog` if
        damage is proved, :class:`ForeignFile`, :class:`NewerFormat`, :class:`InvalidId`, :class:`OpenFailed`.
        """
        settings = _settings(
            self._store.settings, window_ms, durability, scope_durability, pending_bytes, compact_growth
        )
        return Session(self._store.open_session(session_id, settings))

    def reader(self, session_id: str) -> SessionReader:
        """Open a session for reading, without its lock. Raises :class:`NoSuchSession`, :class:`CorruptLog`."""
        return SessionReader(self._store.read_session(session_id))

    def follow(
        self,
        session_id: str,
        position: Position | str | None = None,
        *,
        durable: bool = False,
        scope: Scope | None = None,
    ) -> SessionFollower:
        """Follow a session that any process writes, without its lock: what is new, as it becomes visible.

        ``position``: where to resume, that of an earlier event or its text; None or '' begins with a :class:`Base`, as
        does a position that cannot be gone on from. ``durable``: nothing that a power cut could take back, so that
        what is told has always happened; the last commit of an idle session is told with the next one, or when it is
        closed. ``scope``: records of that scope alone; of the session scope with all retirements, which are its writes.

        Raises :class:`NoSuchSession` unless there is a position (then the session is told to be gone),
        :class:`ReadFailed`, :class:`InvalidInput` for a text that is no position.
        """
        if isinstance(position, str):
            position = Position.parse(position) if position else None  # '': a client that has none yet
        if position is not None and not isinstance(position, Position):
            raise InvalidInput(f"the position is {given_as(position)}", "pass a Position, or its text")
        wanted = None if scope is None else id_of(scope)
        follower = self._store.follow_session(session_id, position, durable=durable, scope=wanted)
        return SessionFollower(follower, Watch(self._store.directory(session_id), tells=self._store.fs.memory_maps))

    def sessions(self, *, unreadable: list[Finding] | None = None) -> list[str]:
        """Ids of all sessions, sorted. One whose directory cannot be read is left out, and told to ``unreadable``.

        Raises :class:`ReadFailed`.
        """
        return self._store.sessions(None if unreadable is None else unreadable.append)

    def catalogue(
        self,
        ids: str = "*",
        *,
        where: Callable[[SessionInfo], bool] | None = None,
        sort: Sort = "id",
        reverse: bool = False,
        limit: int | None = None,
        unreadable: list[Finding] | None = None,
    ) -> Iterator[SessionInfo]:
        """What there is to know of every session at a glance, as its log says.

        ``ids``: a pattern (``*``, ``?``, ``[...]``) that the whole id must match. ``where``: whether to list it.
        ``sort``: a field of :class:`SessionInfo`; the same by id. At most ``limit`` are listed. By id they come as
        they are read, and memory does not grow with their number; any other order holds ``limit`` of them, or all.

        A session that cannot be read, or is damaged, is left out and told to ``unreadable`` (once the iterator has
        come to it), by default to the log. Raises :class:`InvalidInput`, :class:`ReadFailed`.
        """
        check_listing(sort, limit)
        if where is not None and not callable(where):
            raise InvalidInput(f"where is {given_as(where)}", "pass a function of a SessionInfo")
        tell = leave_out if unreadable is None else unreadable.append
        infos = self._store.infos(matcher(ids), tell, reverse=reverse and sort == "id")
        return arrange(infos if where is None else filter(where, infos), sort, reverse, limit)

    def delete_session(self, session_id: str) -> None:
        """Remove every file of a session, for ever.

        Raises :class:`NoSuchSession`, :class:`StoreLocked` while any handle owns it, :class:`WriteFailed`,
        :class:`ReadFailed` where the disk does not say whether there is one.
        """
        self._store.delete_session(session_id)

    def copy(self, session_id: str, new_id: str, *, upto: int | None = None) -> int:
        """Copy the session scope of a session, with its sequences, tags and times, into a new one; ephemeral scopes
        and retirements are left out. The source may be in use. Returns the copy's last sequence.

        ``upto``: nothing above that sequence, which must be the last of a commit or a window: the session as it was.
        Raises :class:`InvalidInput` if that cannot be told, or if there is a session of that id;
        :class:`NoSuchSession`, :class:`CorruptLog`, :class:`ReadFailed`, :class:`NewerFormat`, :class:`WriteFailed`.
        """
        if upto is not None and (type(upto) is not int or upto < 0):
            raise InvalidInput(f"upto is {upto!r}", "pass a sequence of the session")
        return self._store.copy_session(session_id, new_id, upto)

    def salvage(self, session_id: str, new_id: str | None = None, *, into: Store | None = None) -> Salvaged:
        """Make a new session of everything that verifies in a damaged one, on both sides of the damage, and say what
        is missing. Without ``new_id`` nothing is written: the report alone.

        The session scope and every ephemeral scope that is not over come with their sequences, tags and times. The
        source is not changed and not locked. ``into``: another store, on another disk say. The new session appears
        when all of it is durable, or not at all.

        Raises :class:`NoSuchSession`, :class:`InvalidInput` if there is a session ``new_id`` already,
        :class:`CorruptLog` if not one frame of the main log verifies, :class:`ReadFailed`, :class:`NewerFormat`,
        :class:`WriteFailed`.
        """
        if into is not None and not isinstance(into, Store):
            raise InvalidInput(f"into is {given_as(into)}", "pass an open Store")
        return self._store.salvage_session(session_id, new_id, None if into is None else into._store)

    def tidy(self, session_id: str) -> list[str]:
        """Remove the evidence that recoveries of a session have kept: torn tails, and sidecars that were set aside.

        :meth:`check` lists it. Returns the paths. Raises :class:`NoSuchSession`, :class:`StoreLocked` while any handle
        owns the session, :class:`WriteFailed`.
        """
        return self._store.tidy_session(session_id)

    def check(self, session_id: str | None = None, *, deep: bool = False) -> list[Finding]:
        """Verify every byte of every log, or of one session's, without changing anything; an empty list is sound.

        ``deep`` decodes every record too, and so finds what was written wrongly between good checksums; it takes a
        hundred times as long. What cannot be read is a finding of reason ``read``. Raises :class:`NoSuchSession`,
        :class:`ReadFailed`, :class:`CorruptLog` for the store's own header.
        """
        return self._store.check(session_id, deep=deep)

    def index_state(self) -> dict[str, int | bool | str | None]:
        """The state of the index as plain data; see scopes/README.md, "The index"."""
        return self._index().state()

    def rebuild_index(
        self, session_ids: Iterable[str] | None = None, *, unreadable: list[Finding] | None = None
    ) -> list[Rebuilt]:
        """Derive the index again from the logs: of these sessions, or all of it. It may be done while they are written.

        Returns what is covered now of each. What cannot be read is left out and told to ``unreadable``, by default to
        the log. Raises :class:`NoSuchSession` for one of ``session_ids``, :class:`WriteFailed`,
        :class:`UnsupportedPlatform` where there can be no index.
        """
        wanted = None if session_ids is None else [check_id("session", session) for session in session_ids]
        return list(rebuild(self._store, wanted, leave_out if unreadable is None else unreadable.append))

    def discard_index(self) -> None:
        """Remove the index; it comes back where it is of use. Raises :class:`WriteFailed` if it cannot be removed."""
        index = self._index()
        if not index.discard():
            raise WriteFailed(
                f"the index {index.directory} could not be removed", "another process may be writing to it"
            )

    def _index(self) -> StoreIndex:
        index = self._store.index
        if index is None:
            raise UnsupportedPlatform(f"{self.path} is on a disk that an index cannot be kept on", "do without")
        return index

    def close(self, *, force: bool = False) -> None:
        """Close all sessions, then the store; see :meth:`Session.close`. Closing twice is legal."""
        self._store.close(force=force)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(force=True)


def _settings(
    base: Settings,
    window_ms: float | None,
    durability: Durability | None,
    scope_durability: Durability | None,
    pending_bytes: int | None,
    compact_growth: float | None,
) -> Settings:
    window = base.window
    if window_ms is not None:
        if type(window_ms) not in (int, float) or not 0 <= window_ms <= _MAX_WINDOW_MS:
            raise InvalidInput(f"window_ms is {window_ms!r}", f"pass a number from 0 to {_MAX_WINDOW_MS}")
        window = window_ms / 1000
    for level in (durability, scope_durability):
        if level is not None and not isinstance(level, Durability):
            raise InvalidInput(f"{level!r} is no durability level", "pass Durability.PROCESS or Durability.POWER")
    if pending_bytes is not None and (type(pending_bytes) is not int or pending_bytes < _MIN_PENDING):
        raise InvalidInput(f"pending_bytes is {pending_bytes!r}", f"pass an int from {_MIN_PENDING} on")
    if compact_growth is not None and (
        type(compact_growth) not in (int, float) or (compact_growth != 0 and not 1.5 <= compact_growth <= 1000)
    ):
        raise InvalidInput(f"compact_growth is {compact_growth!r}", "pass a number from 1.5 to 1000, or 0 for never")
    return Settings(
        window=window,
        session_level=durability or base.session_level,
        scope_level=scope_durability or base.scope_level,
        pending_bytes=pending_bytes or base.pending_bytes,
        compact_growth=base.compact_growth if compact_growth is None else float(compact_growth),
    )
