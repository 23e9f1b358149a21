"""A session as tasks of an event loop use it: the same calls, awaited.

A task's commit is admitted at once, and stored by its loop as soon as the tasks that are ready have run: what they
commit shares one batch and one sync. The loop stores inline while the disk is quick, in a thread otherwise (see
:mod:`pace`). Cancellation: a commit that nobody has in hand is withdrawn; one that is being stored is waited for, and
answered; the cancellation is then delivered at the task's next await. So a commit that raises ``CancelledError`` is
not stored, and one that is stored returns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from .durability import Durability
from .elements import Json
from .errors import HandleClosed, OutcomeUnknown, ScopelogError, WriteFailed
from .feeds import Feed
from .info import SessionInfo, info_of, info_of_nothing
from .lines import Address, Record, new_tuple
from .looping import GRACE
from .reading import commits_before, merged, staged_lists
from .scope import SESSION, Commit, Place, ScopeState, Staged
from .state import NOT_YET, PERSISTENCE, Request
from .view import LogView, page
from .watching import Looked, Wanted, in_order
from .workers import WORKERS
from .writer import Change, Receipt, Writer, prepare

_SLICE_SECONDS: Final = 0.001  # how long a read holds the loop in one go
_SLICE_RECORDS: Final = 32
_SCAN_INLINE_BYTES: Final = 256 * 1024  # a longer log is scanned in a thread
_LONG_LOG_BYTES: Final = 1024 * 1024  # in a longer one, finding what is not at its end may take many reads
T = TypeVar("T")


class AsyncWriter:
    """The calls of a :class:`Writer` that may have to wait, for tasks. Any number of loops may use one session."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    # --- writing ------------------------------------------------------------------------------------

    async def commit(self, scope: str, changes: Sequence[Change], level: Durability | None = None) -> Receipt:
        """See :meth:`Writer.commit`."""
        writer = self._writer
        writer._refuse_reentry()
        loop = asyncio.get_running_loop()
        commit = prepare(changes, loop.create_future())
        try:
            while True:
                if not writer._epoch_proved and writer._unproved():
                    await self._prove_epoch(scope, level)
                with writer._lock:
                    if not writer._is_retiring(scope):
                        writer._admit(commit, scope, changes, level)
                        owner = commit.owner
                        assert owner is not None
                        if owner.deadline is None:  # should the loop end before it has led
                            when = writer._env.clock.monotonic() + writer.settings.window + GRACE
                            owner.deadline = when if writer._env.stand_by(writer, when) else None
                        writer._lead_soon(loop)
                        break
                await self._until(lambda: not writer._is_retiring(scope))
            assert commit.waiter is not None
            await commit.waiter
        except asyncio.CancelledError as cancelled:
            if self._withdrawn(commit):
                raise
            await self._settled(commit, cancelled)  # or raises
        except BaseException:
            self._withdrawn(commit)
            raise
        if commit.error is not None:
            raise commit.error.again() from commit.error
        return new_tuple(Receipt, (commit.first, commit.target))

    def _withdrawn(self, commit: Commit) -> bool:
        """See :meth:`Writer._withdraw`. Interrupted, it is done again: half withdrawn, a retirement would never end."""
        kept: BaseException | None = None
        for _ in range(PERSISTENCE):
            try:
                withdrawn = self._writer._withdraw(commit)
                break
            except BaseException as error:  # noqa: BLE001 - raised below
                kept = kept or error
        if kept is not None:
            raise kept
        return withdrawn

    async def _settled(self, commit: Commit, cancelled: asyncio.CancelledError) -> None:
        """The committing task was cancelled while its commit was in a leader's hands: see the module's docstring."""
        writer = self._writer
        loop = asyncio.get_running_loop()
        while not commit.done:
            with writer._lock:
                if commit.done:
                    break
                waiter = commit.waiter = loop.create_future()
            try:
                await waiter
            except asyncio.CancelledError as again:
                cancelled = again  # it is being told already
        if commit.error is not None and not isinstance(commit.error, OutcomeUnknown):
            raise cancelled from commit.error  # nothing was stored
        task = asyncio.current_task()
        if task is not None:
            loop.call_soon(_cancel_again, task, *cancelled.args)

    async def _prove_epoch(self, scope: str, level: Durability | None) -> None:
        """Before a commit that is not synced: as :meth:`Writer._admit`, whose sync could hold the loop."""
        writer = self._writer
        own = writer.settings.scope_level if scope else writer.settings.session_level
        if max(own, level or own) is Durability.PROCESS:
            with writer._lock:
                writer._check()
            await self._quickly(writer.prove_epoch)

    async def append(self, place: Place, element: Json, tag: str | None = None) -> int:
        """See :meth:`Writer.append`. Waits only for a retirement of the scope, or for room."""
        writer = self._writer
        while True:
            sequence = writer.append(place, element, tag, False)
            if sequence:
                return sequence
            if writer._unproved():
                await self._quickly(writer.prove_epoch)
            elif await self._until(lambda: not writer._is_retiring(place.scope_id)):
                await self._make_room(place.scope_id)

    async def _make_room(self, scope_id: str) -> None:
        """As :meth:`Writer._make_room`; where room came meanwhile there is nothing to do."""
        writer = self._writer
        with writer._lock:
            before = writer._bytes
            asked = writer._ask_for_flush(None, asyncio.get_running_loop())
            if asked:
                writer._lead_soon(asyncio.get_running_loop())
        other: ScopelogError | None = None
        for state, ticket in asked:
            if not ticket.done:
                await _of(ticket.waiter)
            error = ticket.error
            if error is not None:
                with writer._lock:
                    if state.gone or state.scope == scope_id:
                        raise error.again() from error
                    state.fail(error)
                other = error
        if other is not None and writer._bytes >= before:
            raise other.again() from other

    async def flush(self, level: Durability | None = None) -> None:
        """See :meth:`Writer.flush`. Cancelled, what was asked for is stored all the same."""
        writer = self._writer
        writer._refuse_reentry()
        loop = asyncio.get_running_loop()
        with writer._lock:
            writer._check()
            before = {commit for state in writer._scopes.values() for commit in state.retiring}
        if before:
            await self._until(lambda: all(commit.done for commit in before))
        with writer._lock:
            for state in writer._scopes.values():
                if isinstance(state.failure, WriteFailed):
                    state.failure = None  # tried again right here
            asked = writer._ask_for_flush(level, loop)
            if asked:
                writer._lead_soon(loop)
        failure: ScopelogError | None = None
        for _, ticket in asked:
            if not ticket.done:
                await _of(ticket.waiter)
            failure = failure or ticket.error
        if failure is not None:
            raise failure.again() from failure
        with writer._lock:
            for state in writer._scopes.values():
                writer._raise_failure(state)

    async def close(self, *, force: bool = False) -> None:
        """See :meth:`Writer.close`."""
        await self._quickly(lambda: self._writer.close(force=force))

    # --- reading ------------------------------------------------------------------------------------

    async def read(
        self,
        scope: str,
        address: Address,
        *,
        cursor: int | None = None,
        descending: bool = False,
        limit: int | None = None,
        stop_at_tag: str | None = None,
    ) -> list[Record]:
        """See :meth:`Writer.read`. A long read lets other tasks run every millisecond; one that begins far back in a
        long log runs in a thread, for it has to find its way first."""
        view, staged = await self._look(scope, address)
        try:
            records = merged(view, staged, address, cursor, descending)
            near = view is not None and descending and cursor is None and address in view.tail.lists
            far = view is not None and view.end > _LONG_LOG_BYTES and not near
            if self._writer._env.pace.quick and not far:
                return await _page_in_slices(records, limit, stop_at_tag)
            return await in_thread(lambda: page(records, limit, stop_at_tag))
        finally:
            _leave((view, staged))

    async def get(self, scope: str, address: Address) -> Record | None:
        """See :meth:`Writer.get`. Of a long log, what was not set lately is looked for in a thread."""
        view, staged = await self._look(scope, None)
        if view is None:
            return None
        try:
            if view.end > _LONG_LOG_BYTES and address not in view.tail.values:
                return await in_thread(lambda: view.get(address))
            return await self._quickly(lambda: view.get(address))
        finally:
            _leave((view, staged))

    async def scan(self, scope: str, namespace: str, prefix: str) -> list[Record]:
        """See :meth:`Writer.scan`. A log above 256 KiB is scanned in a thread."""
        view, staged = await self._look(scope, None)
        if view is None:
            return []
        try:
            if view.end > _SCAN_INLINE_BYTES:
                return await in_thread(lambda: view.scan(namespace, prefix))
            return await self._quickly(lambda: view.scan(namespace, prefix))
        finally:
            _leave((view, staged))

    async def lists(self, scope: str, namespace: str, prefix: str) -> list[str]:
        """See :meth:`Writer.lists`."""
        with self._writer._lock:
            state = self._writer._scopes.get(scope)
            found = staged_lists(state, namespace, prefix)  # first: what is stored meanwhile is in the view
        view, staged = await self._look(scope, None)
        try:
            if self._writer._scopes.get(scope) is not state:
                found.clear()  # of a life that was retired meanwhile
            if view is not None:
                stored = view
                found |= await self._quickly(lambda: stored.lists(namespace, prefix))
            return sorted(found)
        finally:
            _leave((view, staged))

    async def info(self) -> SessionInfo:
        """See :meth:`Writer.info`."""
        view, staged = await self._look(SESSION, None)
        if view is None:
            return info_of_nothing(self._writer.session)
        try:
            return await self._quickly(lambda: info_of(view, self._writer.session))
        finally:
            _leave((view, staged))

    # --- watching -----------------------------------------------------------------------------------

    async def watch(
        self, watcher: object, wanted: Wanted, after: tuple[str, int] | None = None
    ) -> Looked | tuple[Feed, int]:
        """See :meth:`Writer.watch`."""
        writer = self._writer
        with writer._lock:
            found = writer._resumed(watcher, wanted, after)
        if found is not None:
            return found
        looked: Looked = await self._at_rest(
            wanted.scope, lambda state: writer._look_and_follow(watcher, wanted, state), undo=lambda one: one.leave()
        )
        return looked

    async def base(self, feed: Feed, wanted: Wanted) -> Looked | None:
        """See :meth:`Writer.base`."""
        writer = self._writer

        def look(state: ScopeState | None) -> Any:
            return writer._look_again(feed, wanted, state) if feed.ended is None else None

        def leave(looked: Looked | None) -> None:
            if looked is not None:
                looked.leave()

        try:
            looked: Looked | None = await self._at_rest(wanted.scope, look, undo=leave, feed=feed)
        except HandleClosed:
            if feed.ended is None:
                raise
            return None
        return looked

    def stop_watching(self, watcher: object, feed: Feed) -> None:
        """See :meth:`Writer.stop_watching`."""
        self._writer.stop_watching(watcher, feed)

    async def records(self, looked: Looked, wanted: Wanted) -> list[Record]:
        """What was looked at, as :meth:`read` and :meth:`get` read."""
        view = looked.view
        try:
            near = wanted.last is not None and view is not None and wanted.address in view.tail.lists
            far = view is not None and view.end > _LONG_LOG_BYTES and not near
            if self._writer._env.pace.quick and not far:
                found = await _page_in_slices(looked.records(wanted), None, None)
            else:
                found = await in_thread(lambda: [*looked.records(wanted)])
            return in_order(found, wanted)
        finally:
            looked.leave()

    async def _look(self, scope: str, address: Address | None) -> tuple[LogView | None, list[Staged]]:
        """As :meth:`Reading._look`, at a moment when nobody is storing and all commits admitted before have ended."""
        writer = self._writer

        def look(state: ScopeState | None) -> tuple[LogView | None, list[Staged]]:
            return writer._look(state, address) if address is not None else (writer._snapshot(state), [])

        looked: tuple[LogView | None, list[Staged]] = await self._at_rest(scope, look, undo=_leave)
        return looked

    async def _at_rest(
        self,
        scope: str,
        look: Callable[[ScopeState | None], Any],
        *,
        undo: Callable[[Any], None],
        feed: Feed | None = None,
    ) -> Any:
        """What ``look`` sees, under ``_lock``, when nobody is storing and all commits admitted before have ended.

        ``feed``: of whom a close that is under way ends, or that goes on if nothing comes of it.
        """
        writer = self._writer
        writer._refuse_reentry()
        loop = asyncio.get_running_loop()
        with writer._lock:
            if feed is None:
                writer._check()
            state = writer._scopes.get(scope)
            if state is None:
                writer._refuse_undecided()
            before = [] if state is None else commits_before(state)

        def answer() -> Any:
            if feed is not None and writer._unusable is not None and writer._waits_for_close(feed):
                return look(None) if feed.ended is not None else NOT_YET
            writer._check()
            if not all(commit.done for commit in before):
                return NOT_YET
            return look(writer._scopes.get(scope))

        if before:
            writer._lead_from(loop)  # they would be stored at the end of this iteration anyhow
        return await self._answered(answer, idle=True, undo=undo)

    # --- waiting ------------------------------------------------------------------------------------

    async def _until(self, condition: Callable[[], bool]) -> bool:
        """Wait until a condition holds that others change under ``_lock``; whether it held at once."""
        first = True

        def answer() -> Any:
            nonlocal first
            self._writer._check()
            if condition():
                return first
            first = False
            return NOT_YET

        at_once: bool = await self._answered(answer)
        return at_once

    async def _answered(
        self, answer: Callable[[], Any], *, idle: bool = False, undo: Callable[[Any], None] | None = None
    ) -> Any:
        """What ``answer`` says, now or when something has changed; see :class:`Request`."""
        writer = self._writer
        with writer._lock:
            if not (idle and writer._leader):
                found = answer()
                if found is not NOT_YET:
                    return found
            request = Request(answer, asyncio.get_running_loop().create_future(), idle=idle, undo=undo)
            writer._requests.append(request)
        try:
            return await request.future
        except BaseException:
            future = request.future
            if future.done() and not future.cancelled() and future.exception() is None and undo is not None:
                undo(future.result())
            with writer._lock:
                if request in writer._requests:
                    writer._requests.remove(request)
            raise

    async def _quickly(self, call: Callable[[], T]) -> T:
        """Run a call that touches the disk a few times: inline while that is quick and nobody is storing."""
        writer = self._writer
        if writer._leader or not writer._env.pace.quick:  # trials of a slow disk are for commits, which measure it
            return await in_thread(call)
        return call()


async def _page_in_slices(records: Iterator[Record], limit: int | None, stop_at_tag: str | None) -> list[Record]:
    """As :func:`page`, giving way to other tasks every millisecond."""
    out: list[Record] = []
    while True:
        until = time.perf_counter() + _SLICE_SECONDS
        while time.perf_counter() < until:
            left = _SLICE_RECORDS if limit is None else min(_SLICE_RECORDS, limit - len(out))
            some = page(records, left, stop_at_tag)
            out += some
            if len(some) < _SLICE_RECORDS or (stop_at_tag is not None and some[-1].argument == stop_at_tag):
                return out
        await asyncio.sleep(0)


def _leave(looked: tuple[LogView | None, list[Staged]]) -> None:
    if looked[0] is not None:
        looked[0].let_go()


async def _of(waiter: asyncio.Future[None] | None) -> None:
    assert waiter is not None
    await waiter


def _cancel_again(task: asyncio.Task[Any], message: str | None = None) -> None:
    """Deliver a cancellation that arrived while a commit was being stored, unless it was taken back since."""
    if task.cancelling():
        task.uncancel()
        task.cancel(message)


async def in_thread(call: Callable[[], T], *, undo: Callable[[T], object] | None = None) -> T:
    """Run ``call`` in a worker thread and return what it returns; inline if there is no thread to be had.

    Cancelled, it first waits for the call's end, so that nothing goes on behind the caller's back; what the call
    returned is then given to ``undo`` (in a thread again). So it is where the coroutine is closed, or its loop.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    result: list[T] = []  # whoever pops it has it
    failure: list[BaseException] = []
    begun = nobody_waits = False

    def run() -> None:
        nonlocal begun
        try:
            if not begun:
                begun = True
                result.append(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failure.append(error)
        try:
            loop.call_soon_threadsafe(_finish, done)
        except RuntimeError:  # the loop is closed
            give_back()
        if nobody_waits:
            give_back()

    def give_back() -> None:
        try:
            given = result.pop()
        except IndexError:  # there is nothing, or somebody else was quicker
            return
        if undo is not None:
            undo(given)

    if not WORKERS.submit(run):
        return call()
    cancelled: asyncio.CancelledError | None = None
    try:
        while not done.done():
            try:
                await asyncio.shield(done)
            except asyncio.CancelledError as error:
                cancelled = error
    except BaseException:  # closed
        nobody_waits = True
        give_back()
        raise
    if cancelled is not None:
        if result and undo is not None:
            await in_thread(give_back)
        raise cancelled from (failure[0] if failure else None)
    if failure:
        raise failure[0]
    return result[0]


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
