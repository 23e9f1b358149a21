"""Lanes for asyncio: the same lane, operations, responses and tools, whose commits are awaited.

What streams is taken without waiting, as :class:`scopelog.aio.AsyncSession` appends; ``sync`` is the same object for
threads. Cancelled, what was to be committed is either stored and settled, or neither: see :mod:`scopelog.aio`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scopelog_engine.elements import Json
from scopelog_engine.errors import InvalidInput
from scopelog_engine.writer import Receipt

from ...addresses import EphemeralScope, List, SessionScope, Write
from ...aio import AsyncSession
from ...aio_watching import AsyncWatch
from ...session import given_as
from ...watching import LIMIT
from .lane import Lane, Listener, Send
from .operations import ABORTED, Operation
from .recovering import RecoveredOperation
from .responses import Response
from .retention import TAIL, Retention
from .settling import Settling
from .tools import MAX_BYTES, MAX_LINES, ToolSink
from .viewing import MessageView
from .watching import AsyncLaneSource, Ops

__all__ = ["AsyncLane", "AsyncOperation", "AsyncResponse", "AsyncToolSink"]


class AsyncLane:
    """See :class:`Lane`. Listeners and replicas are called on the loop's thread."""

    def __init__(self, session: AsyncSession, name: str = "main") -> None:
        if not isinstance(session, AsyncSession):
            raise InvalidInput(f"{given_as(session)} is no AsyncSession", "pass an AsyncSession, or use Lane")
        self.session = session
        self.sync = Lane(session.sync, name)

    async def begin(self, operation_id: str, writes: Iterable[Write[SessionScope]] = ()) -> AsyncOperation:
        """See :meth:`Lane.begin`."""
        with self.sync._beginning(operation_id, writes) as (operation, commit):
            operation.began = (await self.session.commit(commit)).last
        return AsyncOperation(self, operation)

    @property
    def name(self) -> str:
        return self.sync.name

    @property
    def entries(self) -> List[SessionScope]:
        """See :attr:`Lane.entries`."""
        return self.sync.entries

    @property
    def operation(self) -> AsyncOperation | None:
        """The operation that runs."""
        operation = self.sync.operation
        return None if operation is None else AsyncOperation(self, operation)

    @property
    def state(self) -> Any:
        """See :attr:`Lane.state`."""
        return self.sync.state

    def entry(self, entry_id: str, message: Json) -> Write[SessionScope]:
        """See :meth:`Lane.entry`."""
        return self.sync.entry(entry_id, message)

    def history(self, *, limit: int | None = None) -> list[dict[str, Json]]:
        """See :meth:`Lane.history`. Reads on the loop's thread."""
        return self.sync.history(limit=limit)

    def resume(self, operation_id: str) -> AsyncOperation:
        """See :meth:`Lane.resume`. Reads on the loop's thread."""
        return AsyncOperation(self, self.sync.resume(operation_id))

    async def recover(self) -> list[RecoveredOperation]:
        """See :meth:`Lane.recover`. Reads on the loop's thread."""
        with self.sync._recovery() as found:
            for operation in found:
                with self.sync._recovering(operation) as commit:
                    await self.session.commit(commit)
            return found

    async def flush(self) -> None:
        """See :meth:`Lane.flush`."""
        self.sync._write_all()
        await self.session.flush()

    def on(self, listener: Listener) -> Callable[[], None]:
        """See :meth:`Lane.on`."""
        return self.sync.on(listener)

    async def watch(self, *, encoded: bool = False, limit: int = LIMIT, after: str | None = None) -> AsyncWatch[Ops]:
        """See :meth:`Lane.watch`: ``async with await lane.watch() as watch``."""
        return await AsyncWatch(AsyncLaneSource(self.sync, limit, encoded))._begin(after)

    def replicate(self, send: Send) -> Callable[[], None]:
        """See :meth:`Lane.replicate`."""
        return self.sync.replicate(send)


class AsyncOperation:
    """See :class:`Operation`."""

    def __init__(self, lane: AsyncLane, operation: Operation) -> None:
        self.lane = lane
        self.sync = operation

    @property
    def id(self) -> str:
        return self.sync.id

    @property
    def scope(self) -> EphemeralScope:
        return self.sync.scope

    def response(self, entry_id: str) -> AsyncResponse:
        """See :meth:`Operation.response`."""
        return AsyncResponse(self.lane.session, self.sync.response(entry_id))

    def tool(
        self,
        invocation_id: str,
        *,
        name: str = "",
        call_id: str | None = None,
        keep: Retention = TAIL,
        max_bytes: int = MAX_BYTES,
        max_lines: int = MAX_LINES,
    ) -> AsyncToolSink:
        """See :meth:`Operation.tool`. Reads on the loop's thread what was stored of it."""
        sink = self.sync.tool(
            invocation_id, name=name, call_id=call_id, keep=keep, max_bytes=max_bytes, max_lines=max_lines
        )
        return AsyncToolSink(self.lane.session, sink)

    async def abort(self, reason: str = ABORTED) -> RecoveredOperation:
        """See :meth:`Operation.abort`."""
        with self.sync._aborting(reason) as (found, commit):
            await self.lane.session.commit(commit)
        return found

    async def end(self, writes: Iterable[Write[SessionScope]] = ()) -> Receipt | None:
        """See :meth:`Operation.end`."""
        with self.sync._ending(writes) as commit:
            return await self.lane.session.commit(commit) if commit else None


class _AsyncSettling:
    sync: Settling

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    @property
    def id(self) -> str:
        return self.sync.id

    async def settle(
        self, message: Json = None, *, writes: Iterable[Write[SessionScope]] = (), end: bool = False
    ) -> Receipt | None:
        """See :meth:`Response.settle`."""
        with self.sync._settling(message, writes, end=end) as commit:
            return await self._session.commit(commit) if commit else None


class AsyncResponse(_AsyncSettling):
    """See :class:`Response`."""

    sync: Response

    def __init__(self, session: AsyncSession, response: Response) -> None:
        super().__init__(session)
        self.sync = response

    @property
    def final(self) -> Json:
        """See :attr:`Response.final`."""
        return self.sync.final

    @property
    def message(self) -> Json:
        """See :attr:`Response.message`."""
        return self.sync.message

    @property
    def view(self) -> MessageView:
        """See :attr:`Response.view`."""
        return self.sync.view

    def feed(self, event: Json) -> Json:
        """See :meth:`Response.feed`."""
        return self.sync.feed(event)

    def take(self, frame: Json) -> int | None:
        """See :meth:`Response.take`."""
        return self.sync.take(frame)


class AsyncToolSink(_AsyncSettling):
    """See :class:`ToolSink`."""

    sync: ToolSink

    def __init__(self, session: AsyncSession, sink: ToolSink) -> None:
        super().__init__(session)
        self.sync = sink

    @property
    def text(self) -> str:
        """See :attr:`ToolSink.text`."""
        return self.sync.text

    @property
    def output(self) -> dict[str, Json]:
        """See :attr:`ToolSink.output`."""
        return self.sync.output

    def write(self, text: str) -> int | None:
        """See :meth:`ToolSink.write`."""
        return self.sync.write(text)

    def detail(self, details: Json) -> int | None:
        """See :meth:`ToolSink.detail`."""
        return self.sync.detail(details)

    def fail(self) -> None:
        """See :meth:`ToolSink.fail`."""
        self.sync.fail()

    async def checkpoint(self, memos: Mapping[str, Json] | None = None) -> Receipt | None:
        """See :meth:`ToolSink.checkpoint`."""
        with self.sync._checkpointing(memos) as commit:
            if commit:
                return await self._session.commit(commit)
            await self._session.flush()
            return None

    async def memo(self, name: str, default: Json = None) -> Json:
        """See :meth:`ToolSink.memo`."""
        return await self._session.get(self.sync._memo_address(name), default)
