"""Findings of a hostile review about growth: compaction, copies, and what is remembered of retired scopes.

Each test's docstring tells what went wrong once.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from errno import EACCES
from functools import cache
from itertools import pairwise
from random import Random
from types import CodeType, FrameType
from typing import Any, Final

import pytest

from fuzz.simdisk import SimDisk
from scopelog import (
    Deleted,
    Durability,
    FollowEvent,
    ManualClock,
    Position,
    Records,
    Retired,
    Session,
    Store,
    ephemeral,
    value,
)
from scopelog_engine import compacting, storing, writer

from .stores import CHAT, DELTAS, MAIN, MESSAGES, SCOPE, STATE, TITLE, bare, unsound

STORE: Final = "/store"
MAIN_LOG: Final = f"{STORE}/{MAIN}"
DIRECTORY: Final = MAIN_LOG.rsplit("/", 1)[0]
NEW: Final = ephemeral("new").value("a", "b")
PATIENCE: Final = 5.0  # seconds for a call that takes a millisecond, if it returns at all


def opened(disk: SimDisk, **settings: Any) -> tuple[Store, Session]:
    store = Store.open(STORE, fs=disk, clock=ManualClock(), **settings)
    return store, store.session(CHAT)


def sidecars(disk: SimDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.snapshot().items() if path.endswith(".scope.zst")}


def position_after(events: list[FollowEvent]) -> str:
    last = events[-1]
    assert not isinstance(last, Deleted)
    return str(last.position)


# --- the high-water mark ----------------------------------------------------------------------------------------------


def torn_close(how: str, *, living: bool) -> tuple[SimDisk, int]:
    """A disk with a compacted main whose last records are gone, and the closing frame that counts them torn."""
    disk = SimDisk()
    _, session = opened(disk)
    session.commit([TITLE.set(1)])
    for n in range(10):
        session.commit([value("chat", "other").set(n)])
    high = session.commit([value("chat", "other").delete()]).last
    session.compact()
    if living:
        high = session.commit([STATE.set("kept")], durability=Durability.POWER).last
    session.close()
    disk = disk.copy()
    data = bare(disk.read_file(MAIN_LOG))
    disk.write_file(MAIN_LOG, data[:-1] if how == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    return disk, high


@pytest.mark.parametrize("living", [True, False])
@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_the_high_water_mark_of_a_compacted_log_outlives_its_closing_frame(how: str, living: bool) -> None:
    """The mark was taken from the closing frame alone, though the header has it. Numbers were given again, a living
    sidecar was set aside as ahead of main, and a life born after that was swept by the next open as retired."""
    disk, high = torn_close(how, living=living)
    alive = [SCOPE.id] if living else []
    with Store.open(STORE, fs=disk, clock=ManualClock()) as store:
        assert [finding.reason for finding in store.check()] == ["short" if how == "cut" else "checksum"]
        with store.reader(CHAT) as reader:
            assert reader.scopes() == alive
            assert reader.get(TITLE) == 1 and reader.get(STATE) == ("kept" if living else None)
        session = store.session(CHAT)
        assert (len(session.recovery.torn), session.recovery.set_aside, session.recovery.swept) == (1, [], [])
        assert session.scopes() == alive
        assert session.commit([NEW.set("POWER")], durability=Durability.POWER).first == high + 1
        session.close()
    store, session = opened(disk.copy())
    assert (session.recovery.set_aside, session.recovery.swept) == ([], [])
    assert session.scopes() == ["new", *alive] and session.get(NEW) == "POWER"
    with store.reader(CHAT) as reader:
        assert reader.scopes() == session.scopes() and reader.get(NEW) == "POWER"
    session.close()
    assert unsound(store.check()) == []


# --- sidecars that could not be read ----------------------------------------------------------------------------------


def test_a_compaction_does_not_bury_a_scope_that_could_not_be_read() -> None:
    """A sidecar that could not be opened was no life to the compaction of main, whose header then told that it was
    retired: the next open removed it. One that was retired before stays so, though its file comes back."""
    disk = SimDisk()
    _, session = opened(disk)
    session.commit([TITLE.set(1)])
    session.commit([NEW.set("retired")], durability=Durability.POWER)
    dead = sidecars(disk)
    session.commit([ephemeral("new").retire()], durability=Durability.POWER)
    session.commit([STATE.set("kept")], durability=Durability.POWER)
    session.close()
    disk = disk.copy()
    for path, data in dead.items():
        disk.write_file(path, data)
    assert len(sidecars(disk)) == 2
    disk.fail("open", errno=EACCES, path=".scope.zst", persistent=True)
    _, session = opened(disk)
    assert len(session.recovery.unreadable) == 2 and session.scopes() == []
    session.commit([TITLE.set(2)])
    for _ in range(2):  # from a header without lives, and from one that has them
        assert session.compact().after > 0
    session.close()
    disk = disk.copy()
    store, session = opened(disk)
    assert session.scopes() == [SCOPE.id]
    assert (session.get(STATE), session.get(NEW), session.get(TITLE)) == ("kept", None, 2)
    session.close()
    assert not dead.keys() & sidecars(disk).keys()
    assert store.check() == []


# --- copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["resumed", "attached"])
def test_a_copy_that_was_made_anew_is_another_session(how: str) -> None:
    """A copy had its source's time of creation, so a follower of one that was deleted took the next for the same, and
    went on in the middle of it."""
    clock = ManualClock()
    store = Store.open(STORE, fs=SimDisk(), clock=clock)
    source = store.session(CHAT)
    for n in range(5):
        source.commit([MESSAGES.append(n)])

    def copied(*elements: str) -> None:
        clock.advance(1)
        store.copy(CHAT, "copy", upto=3)
        with store.session("copy") as copy:
            for element in elements:
                copy.commit([MESSAGES.append(element)])

    copied("old 4", "old 5")
    follower = store.follow("copy")
    position = position_after(follower.poll())
    store.delete_session("copy")
    copied("new 4", "new 5", "new 6")
    if how == "resumed":
        follower = store.follow("copy", position=Position.parse(position))
    assert [type(event) for event in follower.poll()] == [Deleted]


# --- interruptions ----------------------------------------------------------------------------------------------------


@cache
def looked_at(code: CodeType) -> frozenset[int]:
    """Offsets before which the interpreter looks for signals: behind calls, at the ends of loops, at the entry.

    Not behind the call that enters a ``with``, which newer interpreters show: nothing could give back what that took.
    """
    found: set[int] = set()
    earlier = before = ""
    for instruction in dis.get_instructions(code):
        if before.startswith(("CALL", "JUMP_BACKWARD", "RESUME")) and earlier != "LOAD_SPECIAL":
            found.add(instruction.offset)
        earlier, before = before, instruction.opname
    return frozenset(found)


class Signals:
    """Raises KeyboardInterrupt where the interpreter looks for signals the ``nth`` time in compacting.py."""

    def __init__(self, nth: int) -> None:
        self.where = ""  # empty: it did not look so often
        self._left = nth

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != compacting.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in looked_at(frame.f_code):
            self._left -= 1
            if self._left == 0:
                self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self.trace


def elsewhere(call: Callable[[], object]) -> str:
    """What came of a call in another thread: nothing to tell, an error, or that it hangs."""
    told = ["hangs"]

    def run() -> None:
        try:
            call()
            told[0] = ""
        except BaseException as error:  # noqa: BLE001 - told to the test
            told[0] = repr(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return told[0]


def interrupted(nth: int) -> tuple[str, str]:
    """Where the ``nth`` look for signals is (empty: there is none), and what was wrong after an interruption there."""
    disk = SimDisk()
    _, session = opened(disk)
    for n in range(3):
        session.commit([MESSAGES.append(["x" * 50, n]), TITLE.set(n)])
    session.commit([DELTAS.append("kept")])

    def answers(session: Session) -> list[Any]:
        return [session.read(MESSAGES), session.scopes(), session.read(DELTAS), session.get(TITLE)]

    before, signals = answers(session), Signals(nth)
    tracing = sys.gettrace()
    sys.settrace(signals.trace)
    try:
        session.compact()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(tracing)
    if not signals.where:
        session.close()
        return "", ""

    def same() -> None:
        assert answers(session) == before

    calls: list[Callable[[], object]] = [
        same,
        lambda: session.commit([TITLE.set("after")]),
        session.compact,
        session.close,
    ]
    for call, name in zip(calls, ("answers", "commit", "compact", "close"), strict=True):
        if wrong := elsewhere(call):
            return signals.where, f"{name}: {wrong}"
    _, again = opened(disk.copy())
    found = answers(again)
    again.close()
    return signals.where, "" if found == [*before[:-1], "after"] else f"found {found}"


def test_an_interruption_of_a_compaction_keeps_nothing_taken() -> None:
    """Ctrl-C between the call that took the lead (or the turn to compact) and the ``try`` that would have given it back
    left it taken: commits, compactions and the close of every other thread waited for ever."""
    faults: list[str] = []
    nth = 0
    while True:
        nth += 1
        where, wrong = interrupted(nth)
        if not where:
            break
        if wrong:
            faults.append(f"{where}: {wrong}")
            break
    assert faults == []
    assert nth > 60


# --- compaction by itself ---------------------------------------------------------------------------------------------


class Calls:
    """In place of the thread that compacts: calls are kept until the test makes them."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, call: Callable[[], None]) -> bool:
        self.waiting.append(call)
        return True

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


@pytest.mark.parametrize("scope", ["main", "scope"])
def test_a_log_is_compacted_by_itself_over_many_short_runs(monkeypatch: pytest.MonkeyPatch, scope: str) -> None:
    """A handle took the length it found for that of the last compaction, so a log that grew by less than the ratio in
    each run was never compacted again."""
    monkeypatch.setattr(storing, "COMPACT_BYTES", 200_000)
    calls = Calls()
    for module in (storing, writer, compacting):
        monkeypatch.setattr(module, "COMPACTORS", calls, raising=False)
    random, disk = Random(1), SimDisk()
    target: Any = TITLE if scope == "main" else STATE
    lengths: list[int] = []
    last = ""
    for run in range(25):
        _, session = opened(disk, compact_growth=2)
        calls.run()
        for _ in range(4 if run == 0 else 1):
            last = random.randbytes(70_000).hex()  # more than a stretch
            session.commit([target.set(last)])
            calls.run()
        session.close()
        disk = disk.copy()
        paths = [MAIN_LOG] if scope == "main" else list(sidecars(disk))
        lengths.append(sum(len(bare(disk.read_file(path))) for path in paths))
    assert max(lengths) < 500_000
    assert sum(after < before for before, after in pairwise(lengths)) > 3, "compacted now and then"
    _, session = opened(disk)
    assert session.get(target) == last
    session.close()


# --- retirements that nobody synced -----------------------------------------------------------------------------------


def test_a_retirement_that_was_never_synced_is_told_before_the_next_life() -> None:
    """The next process did not know of it: the sidecar of the new life did not wait for main, and a durable follower
    told its records first, and the retirement of what it had just told after them."""

    def told(events: list[FollowEvent]) -> list[tuple[object, ...]]:
        return [
            (Retired, e.scope, e.seq) if isinstance(e, Retired) else (type(e), e.scope, [r.seq for r in e.records])
            for e in events
            if isinstance(e, Records | Retired)
        ]

    disk = SimDisk()
    store, session = opened(disk, durability=Durability.PROCESS)
    session.commit([MESSAGES.append(1)], durability=Durability.POWER)
    position = position_after(store.follow(CHAT, durable=True).poll())
    gone = session.commit([SCOPE.retire()]).first  # it has no file
    disk = disk.kill()
    store, session = opened(disk, durability=Durability.PROCESS)
    born = session.commit([STATE.set("new life")], durability=Durability.POWER).first
    session.commit([DELTAS.append("more")], durability=Durability.POWER)
    follower = store.follow(CHAT, durable=True, position=Position.parse(position))
    events = follower.poll()
    last = session.commit([MESSAGES.append(2)], durability=Durability.POWER).first
    session.close()
    events += follower.poll()
    assert [one for one in told(events) if one[1] is not None] == [
        (Retired, SCOPE.id, gone),
        (Records, SCOPE.id, [born, born + 1]),
    ]
    assert told(events)[-1] == (Records, None, [last])
