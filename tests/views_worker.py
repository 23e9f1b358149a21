"""A process that holds stores, sessions and readers for a test: calls come over a pipe, answers and errors go back.

What may kill a process (an index that was damaged on purpose) is touched in a worker alone, and a worker may be
killed. A call is made through one of several faces of the same object: see :data:`FACES`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from random import Random
from typing import Any, Final, NamedTuple, Self

from scopelog import ManualClock, Session, SessionReader, Store
from scopelog.aio import AsyncSession, AsyncSessionReader, AsyncStore

from .hooks import HookedFileSystem
from .views_index import checkpoint, make_small

FACES: Final = ("sync", "thread", "inline", "loop", "fresh loop")
"""On the main thread; on another one; sync on the loop's thread; awaited; awaited on a loop that ends at once."""
_ODDS: Final = (4, 2, 2, 4, 1)

_PROPERTIES: Final = frozenset({"epoch", "id", "path", "recovery"})
_ASYNC: Final = {Store: AsyncStore, Session: AsyncSession, SessionReader: AsyncSessionReader}
_context = get_context("fork")


class Died(Exception):
    """The worker has ended. ``status``: its exit code, or minus the signal that killed it."""

    def __init__(self, name: str, status: int | None) -> None:
        super().__init__(f"the process {name!r} ended with {status}")
        self.status = status


class Call(NamedTuple):
    """``number``: of the object; 0 is the host itself."""

    number: int
    method: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}  # noqa: RUF012 - never changed


class _Request(NamedTuple):
    number: int
    face: str
    method: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class _Made(NamedTuple):
    """In place of an object that stays in the worker."""

    number: int


class _Raised(NamedTuple):
    """An error on its way: its class may not be callable with its ``args`` alone."""

    kind: type[BaseException]
    arguments: tuple[Any, ...]
    state: dict[str, Any]
    trace: str

    def error(self) -> BaseException:
        error = self.kind.__new__(self.kind, *self.arguments)
        error.args = self.arguments
        error.__dict__.update(self.state)
        error.add_note(f"in the worker:\n{self.trace}")
        return error


# --- in the worker ----------------------------------------------------------------------------------


class Host:
    """Object 0 of a worker: what is asked of the process itself."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {0: self}
        self.clock = ManualClock()
        self.fs = HookedFileSystem()
        self.loop = asyncio.new_event_loop()
        self.threads = ThreadPoolExecutor(1)
        self.numbers = itertools.count(1)
        self.questions: Counter[str] = Counter()
        make_small(self.questions)

    def open(self, path: str, now: float, wall_ms: int, background: bool, **settings: Any) -> Store:
        """Open a store with a clock that stands at ``now``; it moves by :meth:`advance` alone.

        ``background``: whether its index makes checkpoints by itself, on its thread.
        """
        self.clock = ManualClock(now, wall_ms)
        store = Store.open(path, clock=self.clock, fs=self.fs, **settings)
        index = store._store.index
        assert index is not None
        index.by_itself = background
        index.file.map_bytes = 16 * 1024
        return store

    def asked(self) -> Counter[str]:
        """How often trees of the index were asked what."""
        return self.questions

    def checkpoint(self, number: int, how: str) -> bool:
        """See :func:`views_index.checkpoint`."""
        return checkpoint(self.objects[number], how)

    def settle(self) -> None:
        """Wait for checkpoints that are being made."""
        for thread in threading.enumerate():
            if thread.name == "scopelog-index":
                thread.join()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def drop(self, number: int) -> None:
        """Forget an object."""
        del self.objects[number]

    def die_at(self, operation: str, nth: int) -> None:
        """SIGKILL this process before the ``nth`` operation of this kind from now on; 0: never."""
        left = nth

        def hook(called: str, path: str) -> None:
            nonlocal left
            left -= called == operation
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        self.fs.hook = hook if nth else lambda called, path: None

    def together(self, number: int, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """Calls of a session as tasks that are started in this order, in one iteration of the loop."""
        face = AsyncSession(self.objects[number])

        async def run() -> list[Any]:
            tasks = [getattr(face, method)(*arguments, **keywords) for method, arguments, keywords in calls]
            return await asyncio.gather(*tasks)

        return self.loop.run_until_complete(run())

    # --- serving

    def serve(self, pipe: Connection) -> None:
        while True:
            requests: list[_Request] = pipe.recv()
            if not requests:
                return
            pipe.send([self._answer(request) for request in requests])

    def _answer(self, request: _Request) -> Any:
        try:
            return self._numbered(self._call(request))
        except Exception as error:  # noqa: BLE001 - every error is the caller's to judge
            return _Raised(type(error), error.args, dict(error.__dict__), traceback.format_exc())

    def _numbered(self, answer: Any) -> Any:
        if not isinstance(answer, Store | Session | SessionReader):
            return answer
        number = next(self.numbers)
        self.objects[number] = answer
        return _Made(number)

    def _call(self, request: _Request) -> Any:
        target = self.objects[request.number]
        number, face, method, arguments, keywords = request
        if method in _PROPERTIES:
            return getattr(target, method)
        if number and face in ("loop", "fresh loop"):
            target = _ASYNC[type(target)](target)

            if not hasattr(target, method):
                target = target.sync

        def call() -> Any:
            return getattr(target, method)(*arguments, **keywords)

        match face if number else "sync":
            case "thread":
                return self.threads.submit(lambda: _plain(call())).result()
            case "inline" | "loop":
                return self.loop.run_until_complete(_awaited(call))
            case "fresh loop":
                return asyncio.run(_awaited(call))
        return _plain(call())


async def _awaited(call: Callable[[], Any]) -> Any:
    answer = call()
    if isinstance(answer, Coroutine):
        answer = await answer
    if hasattr(answer, "__aiter__"):
        return [item async for item in answer]
    answer = _plain(answer)
    return answer.sync if isinstance(answer, AsyncStore | AsyncSession | AsyncSessionReader) else answer


def _plain(answer: Any) -> Any:
    return list(answer) if hasattr(answer, "__next__") else answer


def _main(pipe: Connection) -> None:
    logging.getLogger().addHandler(logging.NullHandler())
    Host().serve(pipe)


# --- in the test ------------------------------------------------------------------------------------


class Worker:
    """A process that serves. Calls take faces at random."""

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self._random = random
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_main, args=(theirs,), name=name, daemon=True)
        self._process.start()
        theirs.close()
        self.host = Remote(self, 0)

    def outcomes(self, calls: Sequence[Call]) -> list[Any]:
        """Make calls in turn, each through a face: what each returns, or the error it raises. Raises :class:`Died`."""
        faces = self._random.choices(FACES, _ODDS, k=len(calls))
        requests = [
            _Request(call.number, face if call.number else "sync", *call[1:])
            for call, face in zip(calls, faces, strict=True)
        ]
        try:
            self._pipe.send(requests)
            answers: list[Any] = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise Died(self.name, self._process.exitcode) from None
        return [self._received(*pair) for pair in zip(requests, answers, strict=True)]

    def _received(self, request: _Request, answer: Any) -> Any:
        if isinstance(answer, _Made):
            return Remote(self, answer.number)
        if isinstance(answer, _Raised):
            error = answer.error()
            error.add_note(f"called: {request.method}, face {request.face!r} of {self.name!r}")
            return error
        return answer

    def ask(self, calls: Sequence[Call]) -> list[Any]:
        """As :meth:`outcomes`, but raises the first error."""
        answers = self.outcomes(calls)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def end(self) -> None:
        """Have it end by itself. Raises :class:`Died` unless all is well."""
        with contextlib.suppress(ConnectionError):
            self._pipe.send([])
        self._process.join()
        self._pipe.close()
        if self._process.exitcode != 0:
            raise Died(self.name, self._process.exitcode)


class Remote:
    """An object of a worker: has its methods and properties."""

    def __init__(self, worker: Worker, number: int) -> None:
        self._worker = worker
        self._number = number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in _PROPERTIES:
            return self._call(name, (), {})
        return lambda *arguments, **keywords: self._call(name, arguments, keywords)

    def _call(self, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return self._worker.ask([Call(self._number, method, arguments, keywords)])[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._worker.host.drop(self._number)

    def ask(self, questions: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """Several calls of this object at once: method, arguments, keywords."""
        return self._worker.ask([Call(self._number, *question) for question in questions])

    def outcomes(self, questions: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """The same, with errors in place of answers."""
        return self._worker.outcomes([Call(self._number, *question) for question in questions])

    def of_host(self, method: str, *arguments: Any) -> Any:
        """A call of the worker's :class:`Host` that is about this object."""
        return self._worker.ask([Call(0, method, (self._number, *arguments))])[0]
