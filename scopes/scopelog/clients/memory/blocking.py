"""The bridge for harnesses without an event loop: the same calls, each waiting for its outcome, from any thread.

The bridge runs on a loop of its own, in a daemon thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Self, TypeAlias, TypeVar

from scopelog.errors import HandleClosed, HandleForked
from scopelog.session import Session

from .bridge import MemoryBridge
from .capture import Outcome
from .config import MemoryConfig
from .outbox import Aside, Entry, State
from .sessions import DRAIN, MemorySession

Json: TypeAlias = Any
T = TypeVar("T")


class BlockingMemoryBridge:
    """See :class:`MemoryBridge`. ``with`` closes it."""

    protocol = MemoryBridge.protocol

    def __init__(
        self, config: MemoryConfig | Mapping[str, Json] | None = None, *, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._bridge = MemoryBridge(config, environ=environ)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closing = False
        self._calls: set[Future[Any]] = set()  # under way
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scopelog-memory", daemon=True)
        self._thread.start()

    def session(self, session: Session, agent_id: str, cwd: str | None) -> BlockingMemorySession:
        """See :meth:`MemoryBridge.session`."""
        return BlockingMemorySession(self, self._wait(self._bridge.session(session, agent_id, cwd)))

    def close(self) -> None:
        """See :meth:`MemoryBridge.aclose`. Calls of other threads that are under way raise :class:`HandleClosed`."""
        if self._pid != os.getpid():
            return  # the loop's thread is the parent's
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._end()

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        if self._pid != os.getpid():
            call.close()
            raise HandleForked("the memory bridge came through a fork", "make a new one in the child")
        with self._lock:
            if self._closing:
                call.close()
                raise HandleClosed("the memory bridge is closed", "make a new one")
            waiting = asyncio.run_coroutine_threadsafe(call, self._loop)
            self._calls.add(waiting)
        try:
            return waiting.result()
        except CancelledError:
            raise HandleClosed("the memory bridge was closed", "make a new one") from None
        finally:
            self._calls.discard(waiting)

    def _end(self) -> None:
        """Close the bridge, let go of who waits, and end the loop's thread. Ends no row; nothing does that at exit."""
        closing = asyncio.run_coroutine_threadsafe(self._bridge.aclose(), self._loop)
        closing.result()
        for call in list(self._calls):
            call.cancel()
        # one more turn, in which what was cancelled ends
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingMemorySession:
    """See :class:`MemorySession`."""

    def __init__(self, bridge: BlockingMemoryBridge, session: MemorySession) -> None:
        self._bridge = bridge
        self._session = session

    @property
    def agent_id(self) -> str:
        return self._session.agent_id

    @property
    def cwd(self) -> str | None:
        return self._session.cwd

    @property
    def key(self) -> str:
        """See :attr:`MemorySession.key`."""
        return self._session.key

    @property
    def released(self) -> bool:
        """See :attr:`MemorySession.released`."""
        return self._session.released

    @property
    def blocked(self) -> str | None:
        """See :attr:`MemorySession.blocked`."""
        return self._session.blocked

    @property
    def waiting(self) -> list[Entry]:
        """See :attr:`MemorySession.waiting`."""
        return self._session.waiting

    @property
    def aside(self) -> dict[str, Aside]:
        """See :attr:`MemorySession.aside`."""
        return self._session.aside

    def state(self, entry_id: str) -> State | None:
        """See :meth:`MemorySession.state`."""
        return self._session.state(entry_id)

    def capture_prompt(self, event_id: str, blocks: Sequence[Json], *, source: str = "user") -> bool:
        """See :meth:`MemorySession.capture_prompt`."""
        return self._bridge._wait(self._session.capture_prompt(event_id, blocks, source=source))

    def capture_tool_result(self, event_id: str, tool: str, text: str, *, is_error: bool = False) -> bool:
        """See :meth:`MemorySession.capture_tool_result`."""
        return self._bridge._wait(self._session.capture_tool_result(event_id, tool, text, is_error=is_error))

    def archive(self, compaction_id: str, summary: str) -> Outcome | None:
        """See :meth:`MemorySession.archive`."""
        return self._bridge._wait(self._session.archive(compaction_id, summary))

    def take_notice(self) -> str | None:
        """See :meth:`MemorySession.take_notice`."""
        return self._session.take_notice()

    def call(self, tool: str, arguments: Mapping[str, Json]) -> Json:
        """See :meth:`MemorySession.call`."""
        return self._bridge._wait(self._session.call(tool, arguments))

    def project(self) -> str:
        """See :meth:`MemorySession.project`."""
        return self._bridge._wait(self._session.project())

    def start(self) -> dict[str, Json]:
        """See :meth:`MemorySession.start`."""
        return self._bridge._wait(self._session.start())

    def end(self, summary: str | None = None) -> dict[str, Json]:
        """See :meth:`MemorySession.end`."""
        return self._bridge._wait(self._session.end(summary))

    def drain(self, limit: float = DRAIN) -> bool:
        """See :meth:`MemorySession.drain`."""
        return self._bridge._wait(self._session.drain(limit))

    def retry(self, entry_id: str) -> None:
        """See :meth:`MemorySession.retry`."""
        self._bridge._wait(self._session.retry(entry_id))

    def drop(self, entry_id: str) -> None:
        """See :meth:`MemorySession.drop`."""
        self._bridge._wait(self._session.drop(entry_id))

    def release(self) -> None:
        """See :meth:`MemorySession.release`."""
        self._bridge._wait(self._release())

    async def _release(self) -> None:
        self._session.release()
