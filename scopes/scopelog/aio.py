"""scopelog for asyncio: the same stores, sessions and readers, for tasks.

A session may be used by any number of loops and threads at once: :class:`AsyncSession` is a face of a
:class:`Session`, and ``AsyncSession(session)`` gives a session that was opened elsewhere that face. See
scopes/README.md, "asyncio".
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from scopelog_engine.awaiting import AsyncWriter, in_thread
from scopelog_engine.check import Finding
from scopelog_engine.clock import Clock
from scopelog_engine.compacting import Compacted
from scopelog_engine.durability import Durability
from scopelog_engine.elements import Json
from scopelog_engine.errors import InvalidInput, ScopelogError
from scopelog_engine.fs import FileSystem
from scopelog_engine.info import SessionInfo
from scopelog_engine.position import Position
from scopelog_engine.rebuild import Rebuilt
from scopelog_engine.recovery import Recovery
from scopelog_engine.salvage import Salvaged
from scopelog_engine.writer import Receipt

from .addresses import SESSION, EphemeralScope, List, S, Scope, Value, Write, check_name, check_tag
from .aio_follow import AsyncSessionFollower
from .aio_watching import AsyncSessionSource, AsyncWatch
from .listing import Sort
from .metadata import KEEP, Keep, changes_of_metadata
from .results import Element, Entry, elements_of, entries_of
from .session import (
    LogRecord,
    Order,
    Session,
    SessionReader,
    changes_of,
    check_level,
    check_lists,
    check_page,
    given_as,
    id_of,
    not_a,
)
from .store import Store
from .watching import LIMIT, Changed, ListBase, ValueBase, wanted_of

_AT_ONCE: Final = 256
T = TypeVar("T")

__all__ = ["AsyncSession", "AsyncSessionFollower", "AsyncSessionReader", "AsyncStore", "AsyncWatch"]


class AsyncSession:
    """A session open for writing, for tasks. ``sync`` is the same session for threads.

    Every call raises what its counterpart in :class:`Session` raises. Cancelled, a commit is either not stored and
    raises ``CancelledError``, or is stored and returns; the cancellation then arrives at the next await.
    """

    def __init__(self, session: Session) -> None:
        if not isinstance(session, Session):
            raise InvalidInput(
                f"{given_as(session)} is no Session", "pass the Session, or await AsyncStore.session(id)"
            )
        self.sync = session
        self._writer = AsyncWriter(session._writer)

    @property
    def id(self) -> str:
        return self.sync.id

    @property
    def epoch(self) -> int:
        """A number that every open for write raises."""
        return self.sync.epoch

    @property
    def recovery(self) -> Recovery:
        """See :attr:`Session.recovery`."""
        return self.sync.recovery

    async def commit(self, writes: Iterable[Write[S]], *, durability: Durability | None = None) -> Receipt:
        """See :meth:`Session.commit`. Commits of tasks that run in one iteration of their loop share one sync."""
        scope_id, changes = changes_of(writes, durability)
        return await self._writer.commit(scope_id, changes, durability)

    async def append(self, target: List[Scope], element: Json, tag: str | None = None) -> int:
        """See :meth:`Session.append`. Does not suspend, but where the scope is being retired or the bound on what may
        wait is reached."""
        if tag is not None:
            check_tag(tag)
        try:
            place = target.place
        except AttributeError:
            raise not_a("a list's address", target) from None
        return await self._writer.append(place, element, tag)

    async def flush(self, durability: Durability | None = None) -> None:
        """See :meth:`Session.flush`. Cancelled, what was admitted before is stored all the same."""
        check_level(durability)
        await self._writer.flush(durability)

    async def get(self, address: Value[Scope], default: Json = None) -> Json:
        """See :meth:`Session.get`."""
        if not isinstance(address, Value):
            raise not_a("a value's address", address)
        record = await self._writer.get(address.scope_id, address.address)
        return default if record is None else record.value

    async def scan(self, namespace: str, prefix: str = "", *, scope: Scope = SESSION) -> list[Entry]:
        """See :meth:`Session.scan`."""
        check_name("namespace", namespace)
        check_name("prefix", prefix)
        return entries_of(await self._writer.scan(id_of(scope), namespace, prefix))

    async def read(
        self,
        target: List[Scope],
        *,
        cursor: int | None = None,
        order: Order = "asc",
        limit: int | None = None,
        stop_at_tag: str | None = None,
    ) -> list[Element]:
        """See :meth:`Session.read`. A long read lets other tasks run every millisecond."""
        descending = check_page(target, cursor, order, limit, stop_at_tag)
        return elements_of(
            await self._writer.read(
                target.scope_id,
                target.address,
                cursor=cursor,
                descending=descending,
                limit=limit,
                stop_at_tag=stop_at_tag,
            )
        )

    @overload
    async def watch(
        self, address: Value[Scope], *, limit: int = ..., after: str | None = ...
    ) -> AsyncWatch[ValueBase | Changed]: ...

    @overload
    async def watch(
        self,
        address: List[Scope],
        *,
        cursor: int | None = ...,
        last: int | None = ...,
        limit: int = ...,
        after: str | None = ...,
    ) -> AsyncWatch[ListBase | Changed]: ...

    async def watch(
        self,
        address: Value[Scope] | List[Scope],
        *,
        cursor: int | None = None,
        last: int | None = None,
        limit: int = LIMIT,
        after: str | None = None,
    ) -> AsyncWatch[Any]:
        """See :meth:`Session.watch`: ``async with await session.watch(...) as watch``. Cancelled, there is no watch."""
        source = AsyncSessionSource(self._writer, wanted_of(address, cursor, last, limit))
        return await AsyncWatch(source)._begin(after)

    async def info(self) -> SessionInfo:
        """See :meth:`Session.info`."""
        return await self._writer.info()

    async def describe(
        self,
        *,
        name: str | Keep | None = KEEP,
        labels: Mapping[str, Json] | Keep | None = KEEP,
        durability: Durability | None = None,
    ) -> Receipt:
        """See :meth:`Session.describe`."""
        check_level(durability)
        return await self._writer.commit(SESSION.id, changes_of_metadata(name, labels), durability)

    async def lists(self, scope: EphemeralScope, namespace: str, prefix: str = "") -> list[str]:
        """See :meth:`Session.lists`."""
        check_lists(scope, namespace, prefix)
        return await self._writer.lists(scope.id, namespace, prefix)

    def scopes(self) -> list[str]:
        """Ids of the ephemeral scopes that are alive, sorted."""
        return self.sync.scopes()

    def durable_seq(self, scope: Scope = SESSION, durability: Durability | None = None) -> int:
        """See :meth:`Session.durable_seq`."""
        return self.sync.durable_seq(scope, durability)

    def stats(self) -> dict[str, int | float]:
        """See :meth:`Session.stats`."""
        return self.sync.stats()

    async def compact(self, scope: Scope = SESSION) -> Compacted:
        """See :meth:`Session.compact`. It runs in a thread; cancelled, it is finished first."""
        return await in_thread(lambda: self.sync.compact(scope))

    async def close(self, *, force: bool = False) -> None:
        """See :meth:`Session.close`. Commits that other tasks wait for are stored first."""
        await self._writer.close(force=force)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(force=True)


class AsyncSessionReader:
    """A session open for reading, without its lock, for tasks; its calls run in threads. ``sync``: the same reader."""

    def __init__(self, reader: SessionReader) -> None:
        self.sync = reader

    @property
    def id(self) -> str:
        return self.sync.id

    async def get(self, address: Value[Scope], default: Json = None) -> Json:
        """See :meth:`SessionReader.get`."""
        return await in_thread(lambda: self.sync.get(address, default))

    async def scan(self, namespace: str, prefix: str = "", *, scope: Scope = SESSION) -> list[Entry]:
        """See :meth:`SessionReader.scan`."""
        return await in_thread(lambda: self.sync.scan(namespace, prefix, scope=scope))

    async def read(
        self,
        target: List[Scope],
        *,
        cursor: int | None = None,
        order: Order = "asc",
        limit: int | None = None,
        stop_at_tag: str | None = None,
    ) -> list[Element]:
        """See :meth:`SessionReader.read`."""
        return await in_thread(
            lambda: self.sync.read(target, cursor=cursor, order=order, limit=limit, stop_at_tag=stop_at_tag)
        )

    def records(self) -> AsyncIterator[LogRecord]:
        """See :meth:`SessionReader.records`; fetched some hundred at a time."""
        return _fetched(self.sync.records())

    async def info(self) -> SessionInfo:
        """See :meth:`SessionReader.info`."""
        return await in_thread(self.sync.info)

    async def refresh(self) -> None:
        """See :meth:`SessionReader.refresh`."""
        await in_thread(self.sync.refresh)

    async def lists(self, scope: EphemeralScope, namespace: str, prefix: str = "") -> list[str]:
        """See :meth:`SessionReader.lists`."""
        return await in_thread(lambda: self.sync.lists(scope, namespace, prefix))

    def scopes(self) -> list[str]:
        """Ids of the ephemeral scopes that are alive, sorted."""
        return self.sync.scopes()

    def durable_seq(self, scope: Scope = SESSION, durability: Durability = Durability.PROCESS) -> int:
        """See :meth:`SessionReader.durable_seq`."""
        return self.sync.durable_seq(scope, durability)

    def stats(self) -> dict[str, int]:
        """See :meth:`SessionReader.stats`."""
        return self.sync.stats()

    async def close(self) -> None:
        self.sync.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncStore:
    """An open store, for tasks. ``sync`` is the same store for threads.

    ::

        async with await AsyncStore.open("agent.store") as store:
            session = await store.session("chat-1")
            await session.commit([list_of("chat", "messages").append({"role": "user", "text": "hi"})])

    Opening, deleting, checking and listing run in threads.
    """

    def __init__(self, store: Store) -> None:
        if not isinstance(store, Store):
            raise InvalidInput(f"{given_as(store)} is no Store", "await AsyncStore.open(path)")
        self.sync = store

    @classmethod
    async def open(
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
        """See :meth:`Store.open`."""
        return cls(
            await in_thread(
                lambda: Store.open(
                    path,
                    create=create,
                    window_ms=window_ms,
                    durability=durability,
                    scope_durability=scope_durability,
                    pending_bytes=pending_bytes,
                    compact_growth=compact_growth,
                    clock=clock,
                    fs=fs,
                ),
                undo=Store.close,
            )
        )

    @property
    def path(self) -> str:
        return self.sync.path

    @property
    def id(self) -> str:
        """The store's 128-bit id in hex."""
        return self.sync.id

    async def session(
        self,
        session_id: str,
        *,
        window_ms: float | None = None,
        durability: Durability | None = None,
        scope_durability: Durability | None = None,
        pending_bytes: int | None = None,
        compact_growth: float | None = None,
    ) -> AsyncSession:
        """See :meth:`Store.session`."""
        return AsyncSession(
            await in_thread(
                lambda: self.sync.session(
                    session_id,
                    window_ms=window_ms,
                    durability=durability,
                    scope_durability=scope_durability,
                    pending_bytes=pending_bytes,
                    compact_growth=compact_growth,
                ),
                undo=lambda session: session.close(force=True),
            )
        )

    async def reader(self, session_id: str) -> AsyncSessionReader:
        """See :meth:`Store.reader`."""
        return AsyncSessionReader(
            await in_thread(lambda: self.sync.reader(session_id), undo=lambda reader: reader.close())
        )

    async def follow(
        self,
        session_id: str,
        position: Position | str | None = None,
        *,
        durable: bool = False,
        scope: Scope | None = None,
    ) -> AsyncSessionFollower:
        """See :meth:`Store.follow`."""
        return AsyncSessionFollower(
            await in_thread(
                lambda: self.sync.follow(session_id, position, durable=durable, scope=scope),
                undo=lambda follower: follower.close(),
            )
        )

    async def sessions(self, *, unreadable: list[Finding] | None = None) -> list[str]:
        """See :meth:`Store.sessions`."""
        return await in_thread(lambda: self.sync.sessions(unreadable=unreadable))

    def catalogue(
        self,
        ids: str = "*",
        *,
        where: Callable[[SessionInfo], bool] | None = None,
        sort: Sort = "id",
        reverse: bool = False,
        limit: int | None = None,
        unreadable: list[Finding] | None = None,
    ) -> AsyncIterator[SessionInfo]:
        """See :meth:`Store.catalogue`; fetched some hundred at a time. ``where`` is called in a thread."""
        return _fetched(
            self.sync.catalogue(ids, where=where, sort=sort, reverse=reverse, limit=limit, unreadable=unreadable)
        )

    async def delete_session(self, session_id: str) -> None:
        """See :meth:`Store.delete_session`."""
        await in_thread(lambda: self.sync.delete_session(session_id))

    async def copy(self, session_id: str, new_id: str, *, upto: int | None = None) -> int:
        """See :meth:`Store.copy`."""
        return await in_thread(lambda: self.sync.copy(session_id, new_id, upto=upto))

    async def salvage(self, session_id: str, new_id: str | None = None, *, into: Store | None = None) -> Salvaged:
        """See :meth:`Store.salvage`; of another AsyncStore pass its ``sync``."""
        return await in_thread(lambda: self.sync.salvage(session_id, new_id, into=into))

    async def tidy(self, session_id: str) -> list[str]:
        """See :meth:`Store.tidy`."""
        return await in_thread(lambda: self.sync.tidy(session_id))

    async def check(self, session_id: str | None = None, *, deep: bool = False) -> list[Finding]:
        """See :meth:`Store.check`."""
        return await in_thread(lambda: self.sync.check(session_id, deep=deep))

    async def index_state(self) -> dict[str, int | bool | str | None]:
        """See :meth:`Store.index_state`."""
        return await in_thread(self.sync.index_state)

    async def rebuild_index(
        self, session_ids: Iterable[str] | None = None, *, unreadable: list[Finding] | None = None
    ) -> list[Rebuilt]:
        """See :meth:`Store.rebuild_index`."""
        return await in_thread(lambda: self.sync.rebuild_index(session_ids, unreadable=unreadable))

    async def discard_index(self) -> None:
        """See :meth:`Store.discard_index`."""
        await in_thread(self.sync.discard_index)

    async def close(self, *, force: bool = False) -> None:
        """See :meth:`Store.close`."""
        await in_thread(lambda: self.sync.close(force=force))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(force=True)


async def _fetched(items: Iterator[T]) -> AsyncIterator[T]:
    """The same items, fetched in threads. An error is raised after all that came before it."""
    error: ScopelogError | None = None
    while error is None:
        some, error = await in_thread(lambda: _some(items))
        for item in some:
            yield item
        if error is None and not some:
            return
    raise error


def _some(items: Iterator[T]) -> tuple[list[T], ScopelogError | None]:
    some: list[T] = []
    try:
        for item in islice(items, _AT_ONCE):
            some.append(item)  # noqa: PERF402 - an error must not take along what came before it
    except ScopelogError as error:
        return some, error
    return some, None
