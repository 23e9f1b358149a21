"""Ctrl-C and want of memory at any moment: what was acknowledged is stored once, and the handle goes on.

An exception is raised at the entry of the Nth Python function that a call enters (there the interpreter delivers
signals), or before or after the Nth operation of the disk, for every N. Afterwards memory and disk must agree, the
accounting must return to zero, and every call must work as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, TypeVar

import pytest

from fuzz.campaign import Campaign
from fuzz.simdisk import SimDisk
from scopelog import Durability, HandleClosed, Json, ManualClock, Store, WriteFailed, ephemeral, list_of, value

from .stores import bare, image_of, lay

MAIN: Final = list_of("chat", "messages")
TITLE: Final = value("chat", "title")
SCOPE: Final = ephemeral("op-1")
OUT: Final = SCOPE.list_of("op", "out")
OTHER: Final = ephemeral("op-2").list_of("op", "out")
MAYBE: Final = "maybe"  # what the interrupted call writes: stored once if it returned, at most once if it did not
ERRORS: Final[tuple[type[BaseException], ...]] = (KeyboardInterrupt, MemoryError)
ROWS: Final[dict[type[BaseException], tuple[int, ...]]] = {KeyboardInterrupt: (35,), MemoryError: (34,)}
T = TypeVar("T")


class Entries:
    """Raises ``error`` at the entry of the ``nth`` Python function of the packages that this thread enters."""

    def __init__(self, nth: int, error: type[BaseException]) -> None:
        self.where = ""  # empty: fewer functions than that were entered
        self._left = nth
        self._error = error

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        # The clock is the test's own here; what is raised while something is thrown away goes nowhere.
        thrown_away = code.co_flags & inspect.CO_GENERATOR or code.co_name == "__del__"
        if event == "call" and module.startswith("scopelog") and not module.endswith(".clock") and not thrown_away:
            self._left -= 1
            if self._left == 0:
                self.where = f"{module}:{code.co_name}:{frame.f_lineno}"
                raise self._error


class InterruptedDisk(SimDisk):
    """Raises ``error`` before or after the ``nth`` operation from :meth:`arm` on, reads included."""

    def __init__(self) -> None:
        super().__init__()
        self.where = ""
        self._left = 0
        self._error: type[BaseException] = KeyboardInterrupt
        self._last = ""

    def arm(self, nth: int, error: type[BaseException]) -> None:
        self._left, self._error = nth, error

    def begin(self, op: str, path: str, *more: str) -> int | None:
        self._count(f"before {op} {path}")
        self._last = f"after {op} {path}"
        return super().begin(op, path, *more)

    def end(self) -> None:
        super().end()
        self._count(self._last)

    def _count(self, where: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.where = where
            raise self._error


class Rig:
    """A session with a main log, two scopes and, in main and one of them, a staged element; ``born``: not even main."""

    def __init__(self, *, born: bool = True, **settings: Any) -> None:
        self.disk = InterruptedDisk()
        self.clock = ManualClock()
        self.store = Store.open("/store", fs=self.disk, clock=self.clock, **settings)
        self.session = self.store.session("s")
        self.main: list[Json] = []  # acknowledged or staged
        self.out: list[Json] = []
        if born:
            self.session.commit([MAIN.append("m0")])
            self.session.commit([OUT.append("x0")])
            self.session.commit([OTHER.append("y0")])
            self.session.append(OUT, "x1")
            self.main, self.out = ["m0"], ["x0", "x1"]
        self.session.append(MAIN, "m1")
        self.main.append("m1")

    def retire(self) -> None:
        self.session.commit([SCOPE.retire(), MAIN.append(MAYBE)])

    def fold(self) -> None:
        """Reads that work out what the last frames did."""
        assert self.session.read(MAIN) and self.session.read(OUT)

    def window(self) -> None:
        try:
            self.clock.advance(1)
        except MemoryError:  # what the thread of a real clock does about an error
            self.store._store._alarm.set(self.clock.monotonic() + 1)
            raise


def at_the_bound(rig: Rig) -> None:
    rig.session.append(MAIN, MAYBE, "t" * 1000)


CALLS: Final[dict[str, Callable[[Rig], object]]] = {
    "commit": lambda rig: rig.session.commit([MAIN.append(MAYBE), TITLE.set(MAYBE)]),
    "commit to a scope": lambda rig: rig.session.commit([OUT.append(MAYBE)]),
    "commit to a scope at power": lambda rig: rig.session.commit([OUT.append(MAYBE)], durability=Durability.POWER),
    "birth of a scope": lambda rig: rig.session.commit([ephemeral("new").list_of("op", "out").append(MAYBE)]),
    "birth of main": lambda rig: rig.session.commit([MAIN.append(MAYBE)]),
    "birth of a scope and of main": lambda rig: rig.session.commit([OTHER.append(MAYBE)]),
    "append": lambda rig: rig.session.append(MAIN, MAYBE),
    "append at the bound": at_the_bound,
    "flush": lambda rig: rig.session.flush(Durability.POWER),
    "retirement": Rig.retire,
    "reads": Rig.fold,
    "compaction": lambda rig: rig.session.compact(),
    "compaction of a scope": lambda rig: rig.session.compact(SCOPE),
    "window": Rig.window,
}
CLOSING: Final[dict[str, Callable[[Rig], object]]] = {
    "close": lambda rig: rig.session.close(),
    "close of the store": lambda rig: rig.store.close(),
}
CASES: Final = [
    (name, error)
    for name in (*CALLS, *CLOSING)
    for error in ERRORS
    if name != "window" or error is not KeyboardInterrupt  # the main thread gets signals; the flusher is another
]


def rig_for(name: str) -> Rig:
    if name == "append at the bound":
        return Rig(pending_bytes=4096)
    return Rig(born=not name.endswith("of main"))


def in_time(call: Callable[[], T]) -> T:
    """What ``call`` returns in a thread of its own; a hang fails."""
    answer: list[T] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(call())
        except BaseException as raised:  # noqa: BLE001 - raised below
            error.append(raised)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it hangs"
    if error:
        raise error[0]
    return answer[0]


def retried(call: Callable[[], T]) -> T:
    """The failure of an earlier flush in the background may be raised once: that call is then not begun."""
    try:
        return call()
    except WriteFailed:
        return call()


def stored(store: Store) -> tuple[list[Json], list[Json], Json]:
    """What an opener finds in main and in the scope: no torn bytes, no damage, nothing twice."""
    with store.session("s") as session:
        assert session.recovery.torn_bytes == 0 and not session.recovery.set_aside
        found = [e.element for e in session.read(MAIN)], [e.element for e in session.read(OUT)], session.get(TITLE)
        numbers = [e.seq for e in session.read(MAIN)]
        assert numbers == sorted(set(numbers))
    with store.reader("s") as reader:
        everything = [record.seq for record in reader.records()]
        assert everything == sorted(set(everything))
    assert [finding for finding in store.check() if finding.severity != "note"] == []
    return found


def copy_of(rig: Rig) -> Store:
    """The store as another process would find it if this one were killed now."""
    return Store.open("/store", fs=rig.disk.copy(), clock=ManualClock())


def without(elements: list[Json]) -> list[Json]:
    assert elements.count(MAYBE) <= 1, "what the interrupted call wrote is stored twice"
    return [element for element in elements if element != MAYBE]


def check_open(rig: Rig, name: str, returned: bool) -> None:
    """The session goes on as if nothing had happened."""
    session = rig.session
    retried(lambda: session.commit([MAIN.append("m2")]))
    session.append(MAIN, "m3")
    retried(lambda: session.commit([OUT.append("x2")]))
    session.append(OUT, "x3")
    rig.clock.advance(20)
    stats = session.stats()
    assert stats["pending_elements"] == 0, "a window was never flushed"
    assert stats["pending_bytes"] == 0 and session._writer._quota == rig.store._store._granted == 0
    main = [e.element for e in session.read(MAIN)]
    out = [e.element for e in session.read(OUT)]
    assert without(main) == [*rig.main, "m2", "m3"]
    if name == "retirement" and MAYBE in main:
        assert out == ["x2", "x3"]
    else:
        assert without(out) == [*rig.out, "x2", "x3"]
    if returned and name in ("commit", "birth of main", "append", "append at the bound", "retirement"):
        assert MAYBE in main
    elif returned and name.startswith("commit to a scope"):
        assert MAYBE in out
    assert stored(copy_of(rig)) == (main, out, session.get(TITLE)), "memory and disk disagree"
    assert (session.get(TITLE) == MAYBE) == (name == "commit" and MAYBE in main)
    session.close()
    rig.store.close()


def check_closed(rig: Rig, name: str, returned: bool) -> None:
    """An interrupted close is done by the next one, and loses neither elements nor the lock."""
    rig.store.close() if name == "close of the store" else rig.session.close()
    with pytest.raises(HandleClosed):
        rig.session.append(MAIN, "late")
    if name == "close":
        assert stored(rig.store) == (rig.main, rig.out, None)
        rig.store.close()
    assert rig.store._store._granted == 0
    assert stored(Store.open("/store", fs=rig.disk, clock=ManualClock())) == (rig.main, rig.out, None)


def interrupted(name: str, call: Callable[[Rig], object], arm: Callable[[Rig], Any]) -> str:
    """One call, interrupted once, and what follows it. Returns where it was interrupted; empty if it was not."""
    rig = rig_for(name)
    armed = arm(rig)
    returned = True
    try:
        with armed if isinstance(armed, Entries) else threading.Lock():
            call(rig)
    except ERRORS:
        returned = False
    where: str = (armed if isinstance(armed, Entries) else rig.disk).where
    rig.disk.arm(0, KeyboardInterrupt)
    check = check_closed if name in CLOSING else check_open
    try:
        in_time(lambda: check(rig, name, returned))
    except BaseException as error:
        error.add_note(f"interrupted at {where or 'no place'}, returned: {returned}")
        raise
    return where


def every(name: str, arm: Callable[[int], Callable[[Rig], Any]]) -> int:
    """Interrupt at place 1, 2 and so on, until there are no more; how many there were."""
    call = CALLS.get(name) or CLOSING[name]
    for nth in range(1, 10_000):
        try:
            if not interrupted(name, call, arm(nth)):
                return nth - 1
        except BaseException as error:
            error.add_note(f"{name}, place {nth}")
            raise
    raise AssertionError("no end of places")


@pytest.mark.fault(34, 35, rig="S")
@pytest.mark.parametrize(("name", "error"), CASES)
def test_an_exception_at_the_entry_of_every_function(name: str, error: type[BaseException], campaign: Campaign) -> None:
    """Interrupted between storing a batch and settling it, the leader asked for the batch again: it was written twice,
    and with a mark above the break the next open said CorruptLog for the whole session. Interrupted while it took
    tickets, they were in no list any more and later calls hung; at the birth of main, the next append cut main to
    zero bytes; while a read worked out the last frames, these were forgotten; in close, a handle was left that could
    neither be used nor closed."""
    places = every(name, lambda nth: lambda rig: Entries(nth, error))
    assert places >= (2 if name == "append" else 50)
    campaign.count(places, rows=ROWS[error])


@pytest.mark.fault(34, 35, rig="S")
@pytest.mark.parametrize(("name", "error"), CASES)
def test_an_exception_before_and_after_every_operation_of_the_disk(
    name: str, error: type[BaseException], campaign: Campaign
) -> None:
    """Ctrl-C is most likely while the process waits for the disk. In close's sync it left the lock held for the life
    of the process, with what was staged neither stored nor refused."""

    def arm(nth: int) -> Callable[[Rig], None]:
        return lambda rig: rig.disk.arm(nth, error)

    places = every(name, arm)
    assert places == 0 if name == "append" else places >= 2
    campaign.count(places, rows=ROWS[error])


@pytest.mark.fault(34, 35, rig="S")
@pytest.mark.parametrize("error", ERRORS)
def test_an_exception_while_a_session_is_opened(
    error: type[BaseException], store_path: Path, campaign: Campaign
) -> None:
    """On the real disk, with a torn tail to cut, a dead sidecar to unlink and a living one: the lock and every
    descriptor is let go of, at the latest with the store, and the next open finds what was acknowledged."""
    with Store.open(store_path, clock=ManualClock(), durability=Durability.PROCESS) as store:
        session = store.session("s")
        session.commit([MAIN.append("m0")])
        session.commit([OTHER.append("y0")])
        session.commit([ephemeral("op-2").retire()])  # not synced: its file is unlinked by a later open
        session.commit([OUT.append("x0")])
        image = image_of(store_path)
    name = next(path for path in image if path.endswith("main.zst"))
    image[name] = bare(image[name]) + b"torn"
    for nth in range(1, 10_000):
        store = Store.open(lay(store_path, image), clock=ManualClock())
        entries = Entries(nth, error)
        with contextlib.suppress(error), entries:
            store.session("s")
        store.close()  # the caller may never have got the session that the store holds
        store = Store.open(store_path, clock=ManualClock())
        with store.session("s") as session:
            assert [e.element for e in session.read(MAIN)] == ["m0"], f"place {nth}: {entries.where}"
            assert [e.element for e in session.read(OUT)] == ["x0"] and session.scopes() == ["op-1"]
            session.commit([MAIN.append("m1")])
        with store.session("s") as session:
            assert [e.element for e in session.read(MAIN)] == ["m0", "m1"] and not session.recovery.torn
        store.close()
        if not entries.where:
            break
    assert nth > 100
    campaign.count(nth - 1, rows=ROWS[error])
    assert [path for path in image_of(store_path) if path.endswith((".aside", ".tmp"))] == []
