"""A deterministic scheduler over real threads: exactly one actor runs at a time, and a choice says who goes on.

An actor parks before every operation of the disk (:mod:`fuzz.parking`) and wherever the engine would block: a lock
that is held, a condition, the end of a thread. The one who parks asks ``choose`` who goes on, and hands over to it.
Nobody sleeps and nothing times out by itself: where no actor can go on the run is over, or it is a :class:`Deadlock`
that names who waits for what. Time stands still until somebody calls :meth:`Scheduler.advance`.

What it assumes: between two parks an actor runs alone, so that races of memory accesses within such a stretch are not
seen, unless ``fine`` parks before every lock that is taken as well. Threads that the engine starts are actors, too.
:func:`engine_under_schedule` replaces ``threading`` and ``time`` in every module of the two packages; outside of a run,
or on a thread that is no actor, the replacements behave as if there were one thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple

__all__ = ["Actor", "Deadlock", "Interruption", "Scheduler", "Step", "engine_under_schedule"]

Choose = Callable[["Actor | None", "list[Actor]"], "Actor"]
Names = frozenset[object]
_NOTHING: Final[Names] = frozenset()


class Step(NamedTuple):
    """What an actor does next. ``reads`` and ``writes``: the files and names that it looks at and changes; ``told``:
    it stands for all that the actor's test observes, so that it commutes with nothing."""

    op: str
    what: str = ""
    reads: Names = _NOTHING
    writes: Names = _NOTHING
    told: bool = False

    def __str__(self) -> str:
        return f"{self.op} {self.what}".strip()


class Deadlock(AssertionError):
    """Nobody can go on."""


class Interruption(NamedTuple):
    """``error`` is raised in ``actor`` at its ``nth`` park, before what it has parked for, or else after."""

    actor: str
    nth: int
    error: type[BaseException] = KeyboardInterrupt
    after: bool = False


class _Unwind(BaseException):
    """The run is over: the actor's thread must end."""


class Actor:
    """One thread. ``domain``: actors of one domain share memory. ``daemon``: the run may end without its end."""

    __slots__ = ("call", "daemon", "domain", "done", "name", "parks", "ready", "step", "worker")

    def __init__(self, name: str, call: Callable[[], object], domain: str, daemon: bool) -> None:
        self.name, self.call, self.domain, self.daemon = name, call, domain, daemon
        self.step = Step("begin", told=True)
        self.ready: Callable[[], bool] | None = None
        self.worker: _Worker | None = None
        self.done = False
        self.parks = 0

    def waits(self) -> str:
        """Where it stands, for a person to read."""
        frames: list[str] = []
        ident = self.worker.thread.ident if self.worker is not None else None
        frame = sys._current_frames().get(ident or 0)
        while frame is not None and len(frames) < 4:
            if frame.f_globals.get("__name__", "").startswith("scopelog"):
                frames.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            frame = frame.f_back
        return f"{self.name} waits for {self.step} in {' < '.join(frames)}"


class _Worker:
    """A thread that plays one actor of each run, always the one of the same number: a new thread takes longer than all
    that an actor does. ``baton``: it is its turn."""

    def __init__(self, number: int) -> None:
        self.baton, self.free = threading.Lock(), threading.Lock()
        self.baton.acquire()
        self.call: Callable[[], object] | None = None
        self.thread = threading.Thread(target=self._work, name=f"actor-{number}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while True:
            self.baton.acquire()
            if self.call is None:
                return
            self.call()
            self.call = None
            self.free.release()

    def begin(self, call: Callable[[], object]) -> None:
        self.free.acquire()
        self.call = call
        self.baton.release()


_workers: Final[list[_Worker]] = []


class Scheduler:
    """One run. ``now`` is the time in seconds; ``ticks`` counts the steps of all actors so far."""

    current: Scheduler | None = None
    """The one that runs now."""

    def __init__(self, *, fine: bool = False, interruption: Interruption | None = None) -> None:
        self.fine = fine
        self.now = 0.0
        self.ticks = 0
        self.actors: list[Actor] = []
        self.interrupted = ""  # where
        self._interruption = interruption
        self._coming: type[BaseException] | None = None  # an interruption after the step that is being done
        self._threads: dict[int, Actor] = {}
        self._choose: Choose = stay
        self._over = threading.Lock()
        self._over.acquire()
        self._unwinding = False
        self._failure: BaseException | None = None
        Scheduler.current = self

    # --- the run ----------------------------------------------------------------------------------

    def spawn(self, name: str, call: Callable[[], object], domain: str = "", *, daemon: bool = False) -> Actor:
        """One more actor; names are made unique."""
        same = sum(1 for actor in self.actors if actor.name.partition("#")[0] == name)
        actor = Actor(f"{name}#{same + 1}" if same else name, call, domain, daemon)
        self.actors.append(actor)
        return actor

    def run(self, choose: Choose) -> None:
        """Have them go on until none can; before and after, the caller may do what an actor does.

        Raises :class:`Deadlock`, or what the first failed actor raised.
        """
        self._choose = choose
        first = self._pick(None)
        if first is not None:
            self._go(first)
            self._over.acquire()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def stop(self) -> None:
        """End the threads that are left. Stopping twice is legal."""
        if self._unwinding:
            return
        self._unwinding = True
        for actor in self.actors:
            if actor.worker is not None:
                if not actor.done:
                    actor.worker.baton.release()
                with actor.worker.free:  # it has come to its end
                    actor.worker = None
        Scheduler.current = None

    def advance(self, seconds: float) -> None:
        """Let time pass: waits whose time is over can go on."""
        self.now += seconds

    def me(self) -> Actor | None:
        """The actor that this thread is, None for any other thread."""
        return self._threads.get(threading.get_ident())

    def _go(self, actor: Actor) -> None:
        if actor.worker is None:
            number = self.actors.index(actor)
            while number >= len(_workers):
                _workers.append(_Worker(len(_workers)))
            actor.worker = _workers[number]
            actor.worker.begin(partial(self._body, actor))
        else:
            actor.worker.baton.release()

    def _body(self, actor: Actor) -> None:
        self._threads[threading.get_ident()] = actor
        try:
            actor.call()
        except _Unwind:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by run()
            self._failure = self._failure or error
        actor.done = True
        if self._unwinding:
            return
        following = self._next(None)
        if following is not None:
            self._go(following)

    def _next(self, current: Actor | None) -> Actor | None:
        """Who goes on; None if the run is over, which the main thread is told."""
        following = None
        if self._failure is None:
            try:
                following = self._pick(current)
            except Exception as error:  # noqa: BLE001 - raised by run()
                self._failure = error
        if following is None:
            self._over.release()
        return following

    def _pick(self, current: Actor | None) -> Actor | None:
        able = [actor for actor in self.actors if not actor.done and (actor.ready is None or actor.ready())]
        if able:
            self.ticks += 1
            return self._choose(current, able)
        stuck = [actor for actor in self.actors if not actor.done and not actor.daemon]
        if stuck:
            raise Deadlock("; ".join(actor.waits() for actor in self.actors if not actor.done))
        return None

    # --- parking ----------------------------------------------------------------------------------

    def park(self, step: Step, ready: Callable[[], bool] | None = None) -> None:
        """Wait until it is this actor's turn to do ``step``, which it must be able to by then."""
        if self._unwinding:
            raise _Unwind
        me = self.me()
        if me is None:  # the test's own thread
            self.ticks += 1
            if ready is not None and not ready():
                self.run(stay)
                if not ready():
                    raise Deadlock(f"the test itself waits for {step}")
            return
        me.step, me.ready = step, ready
        me.parks += 1
        hit = self._interruption
        if hit is None or hit.actor != me.name or hit.nth != me.parks:
            self._hand_over(me)
            return
        me.ready = None  # whatever it waits for
        self._hand_over(me)
        self._interruption = None
        after = hit.after and ready is None
        self.interrupted = f"{'after' if after else 'before'} {step}"
        if not after:
            raise hit.error
        self._coming = hit.error

    def did(self) -> None:
        """The step has been done, or has failed."""
        coming, self._coming = self._coming, None
        if coming is not None:
            raise coming

    def _hand_over(self, me: Actor) -> None:
        following = self._next(me)
        if following is not me:
            if following is not None:
                self._go(following)
            assert me.worker is not None
            me.worker.baton.acquire()
            if self._unwinding:
                raise _Unwind
        me.ready = None


def stay(current: Actor | None, able: list[Actor]) -> Actor:
    """The choice that switches as seldom as can be."""
    return current if current in able and current is not None else able[0]


# --- in place of threading ------------------------------------------------------------------------


def _reach(op: str, what: str, ready: Callable[[], bool]) -> None:
    scheduler = Scheduler.current
    if scheduler is None:
        if not ready():
            raise Deadlock(f"outside of a run: {op} {what}")
        return
    scheduler.park(Step(op, what), ready)


def _maker(frame: FrameType) -> str:
    return frame.f_code.co_qualname.removesuffix(".__init__")


class Lock:
    """In place of ``threading.Lock``, and of ``RLock`` where ``_again``."""

    _again = False

    def __init__(self) -> None:
        self._owner = 0
        self._count = 0
        self._what = _maker(sys._getframe(1))

    def _free(self) -> bool:
        return not self._owner

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = threading.get_ident()
        if self._again and self._owner == me:
            self._count += 1
            return True
        if self._owner and not blocking:
            return False
        scheduler = Scheduler.current
        if self._owner or (scheduler is not None and scheduler.fine):
            _reach("lock", self._what, self._free)
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        if not self._owner or (self._again and self._owner != threading.get_ident()):
            raise RuntimeError("cannot release a lock that is not held")
        self._count -= 1
        if not self._count:
            self._owner = 0

    def locked(self) -> bool:
        return bool(self._owner)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner == threading.get_ident()

    def let_go(self) -> int:
        """Release it however often it is held; returns how often."""
        count, self._count, self._owner = self._count, 0, 0
        return count

    def take_back(self, count: int) -> None:
        if self._owner:
            _reach("lock", self._what, self._free)
        self._owner, self._count = threading.get_ident(), count


class RLock(Lock):
    _again = True

    def __init__(self) -> None:
        super().__init__()
        self._what = _maker(sys._getframe(1))


class Condition:
    """In place of ``threading.Condition``. Whoever is told goes on once the lock is free, in one step."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._what = _maker(sys._getframe(1))
        self._lock._what = self._what
        self._waiters: list[list[bool]] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._is_owned = self._lock._is_owned

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._lock._is_owned():
            raise RuntimeError("cannot wait without the lock")
        scheduler, told = Scheduler.current, [False]
        until = None if timeout is None or scheduler is None else scheduler.now + timeout
        lock = self._lock

        def ready() -> bool:
            over = until is not None and scheduler is not None and scheduler.now >= until
            return (told[0] or over) and not lock._owner

        self._waiters.append(told)
        count = lock.let_go()
        try:
            _reach("wait", self._what, ready)
        finally:  # interrupted, it may be so again before the lock is back: the caller looks
            if not told[0]:
                self._waiters = [waiter for waiter in self._waiters if waiter is not told]
            lock.take_back(count)
        return told[0]

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        scheduler = Scheduler.current
        until = None if timeout is None or scheduler is None else scheduler.now + timeout
        while not (found := predicate()):
            left = None if until is None or scheduler is None else until - scheduler.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        if not self._lock._is_owned():
            raise RuntimeError("cannot notify without the lock")
        for waiter in self._waiters[:n]:
            waiter[0] = True
        del self._waiters[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Thread:
    """In place of ``threading.Thread``: an actor of the run, and of the domain that started it."""

    def __init__(self, *, target: Callable[..., object], name: str, daemon: bool, args: tuple[Any, ...] = ()) -> None:
        self.name = name
        self._target, self._args = target, args
        self._actor: Actor | None = None

    def start(self) -> None:
        scheduler = Scheduler.current
        if scheduler is None:
            raise RuntimeError("no thread can be started outside of a run")
        me = scheduler.me()
        domain = me.domain if me is not None else ""
        self._actor = scheduler.spawn(self.name, self._run, domain, daemon=True)

    def _run(self) -> None:
        _current[threading.get_ident()] = self
        try:
            self._target(*self._args)
        finally:
            del _current[threading.get_ident()]

    def join(self, timeout: float | None = None) -> None:
        actor = self._actor
        if actor is None:
            raise RuntimeError("cannot join a thread that was not started")
        if not actor.done:
            _reach("join", self.name, lambda: actor.done)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.done


_current: Final[dict[int, Thread]] = {}


def _current_thread() -> object:
    return _current.get(threading.get_ident()) or threading.current_thread()


def _monotonic() -> float:
    return Scheduler.current.now if Scheduler.current is not None else 0.0


THREADING: Final = SimpleNamespace(
    Lock=Lock,
    RLock=RLock,
    Condition=Condition,
    Thread=Thread,
    current_thread=_current_thread,
    get_ident=threading.get_ident,
    local=threading.local,
)
TIME: Final = SimpleNamespace(
    monotonic=_monotonic,
    time_ns=lambda: 1_764_547_200_000_000_000 + round(_monotonic() * 1e9),
    perf_counter=time.perf_counter,
)


@contextmanager
def engine_under_schedule() -> Iterator[None]:
    """While it lasts, what the two packages create of ``threading`` is a scheduler's, and so is their time."""
    from scopelog_engine import lock, workers

    replaced: list[tuple[ModuleType, str, object]] = []
    crews = (workers.WRITERS, workers.WORKERS, workers.COMPACTORS)
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in ("scopelog", "scopelog_engine"):
            for attribute, mine in (("threading", THREADING), ("time", TIME)):
                theirs = vars(module).get(attribute)
                if isinstance(theirs, ModuleType):
                    replaced.append((module, attribute, theirs))
                    setattr(module, attribute, mine)
    replaced.append((lock, "datetime", vars(lock)["datetime"]))
    setattr(lock, "datetime", SimpleNamespace(now=lambda zone: datetime(2025, 12, 1, tzinfo=zone)))  # noqa: B010
    for crew in crews:
        crew.after_fork()  # no threads, and a new condition
    try:
        yield
    finally:
        Scheduler.current = None
        for module, attribute, theirs in replaced:
            setattr(module, attribute, theirs)
        for crew in crews:
            crew.after_fork()
        for worker in _workers:
            with worker.free:
                worker.baton.release()
            worker.thread.join()
        _workers.clear()
