"""Open files are bounded, however many sessions and scopes there are, and however they take them from each other."""

from __future__ import annotations

import gc
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from fuzz.model_handles import random_identities
from fuzz.simdisk import SimDisk
from scopelog import (
    Durability,
    ManualClock,
    Store,
    ephemeral,
)
from scopelog_engine.handle import Handle
from scopelog_engine.pool import LEAST, SYSTEM, Pool
from tests import test_interrupted
from tests.children import child
from tests.pool_rig import MAIN, OUT, descriptors, elements, opened, real, small
from tests.test_interrupted import CALLS, CLOSING, Entries, InterruptedDisk, Rig, every
from tests.test_model import StoreMachine

POWER: Final = Durability.POWER
PATIENCE: Final = 120.0  # seconds until a hang is called one


# --- many -------------------------------------------------------------------------------------------


def in_a_fresh_process(call: Callable[[Path], str], path: Path) -> str:
    """What ``call`` returns there; only the standard files are open at first."""
    code = (
        f"import sys, pathlib; from {__name__} import {call.__name__} as call; print(call(pathlib.Path(sys.argv[1])))"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=root, text=True, stdout=subprocess.PIPE, timeout=PATIENCE * 2
    )
    assert done.returncode == 0
    return done.stdout.strip()


def allow_open_files(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def write_a_thousand_sessions(path: Path) -> str:
    sessions, rounds = 1000, 2
    allow_open_files(1024)
    with Store.open(path) as store:
        handles = [store.session(f"s{number}") for number in range(sessions)]
        for turn in range(rounds):
            for number, session in enumerate(handles):
                level = POWER if turn == 0 or number % 10 == 0 else Durability.PROCESS
                session.commit([OUT.append([number, turn])], durability=Durability.PROCESS)
                session.commit([MAIN.append([number, turn])], durability=level)
                session.append(OUT, [number, turn, "staged"])
        for number, session in enumerate(handles):
            assert elements(session) == [[number, turn] for turn in range(rounds)]
            session.flush()
        assert len(SYSTEM) <= LEAST
    with Store.open(path) as store:
        for number in range(sessions):
            with store.session(f"s{number}") as session:
                assert session.recovery.clean
                assert elements(session) == [[number, turn] for turn in range(rounds)]
                found = elements(session, OUT)
                assert found == [e for t in range(rounds) for e in ([number, t], [number, t, "staged"])]
    return "done"


@pytest.mark.fault(21, rig="R")
def test_a_thousand_sessions_are_written_within_the_usual_limit(store_path: Path) -> None:
    """Each has its lock file open, and each its main log and a scope: three thousand files, of which 1,024 may be."""
    assert in_a_fresh_process(write_a_thousand_sessions, store_path) == "done"


def test_three_hundred_living_scopes_of_one_session_need_three_files() -> None:
    """Also while they are recovered."""
    disk = small(2)
    store, session = opened(disk)
    scopes = [ephemeral(f"op-{number}").list_of("op", "out") for number in range(300)]
    most = 0
    for turn in range(3):
        for number, where in enumerate(scopes):
            session.commit([where.append([number, turn])])
            most = max(most, len(disk.pool))
    assert most <= 2
    assert [elements(session, where) for where in scopes] == [[[n, t] for t in range(3)] for n in range(300)]
    assert disk.pool.evictions > 1000
    disk = disk.kill()
    assert disk.pool.fixed == 2
    store, session = opened(disk)
    assert len(disk.pool) <= 2
    assert [elements(session, where) for where in scopes] == [[[n, t] for t in range(3)] for n in range(300)]
    store.close()


def test_the_limit_follows_that_of_the_process() -> None:
    """Three quarters of it, less what is held open on purpose, and never less than a few."""

    def work() -> str:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        pool, held = Pool(), [Held() for _ in range(1000)]
        limits = []
        for soft, count in ((1024, 0), (1024, 100), (1024, 1000), (256, 0), (20, 0)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            pool.held.clear()
            pool.held.update(held[:count])
            limits.append(pool.limit)
        return str(limits)

    with child(work) as answer:
        assert answer == str([768, 668, LEAST, 192, 15])


class Held:
    """A file that somebody else keeps open."""


def test_locks_and_readers_files_lessen_the_limit(store_path: Path) -> None:
    fs = real(None)
    with Store.open(store_path, fs=fs, clock=ManualClock()) as store:
        before = fs.pool.limit
        session = store.session("s")
        session.commit([MAIN.append(1)])
        session.commit([OUT.append(1)])
        assert fs.pool.limit == before - 1  # the lock
        with store.reader("s"):
            assert fs.pool.limit == before - 3  # and two logs
        assert fs.pool.limit == before - 1
        session.close()
        assert fs.pool.limit == before


def open_idle_sessions(path: Path) -> str:
    allow_open_files(128)
    with Store.open(path) as store:
        written = [store.session(f"s{number}") for number in range(35)]
        for session in written:
            session.commit([MAIN.append(1)])
        before = len(SYSTEM)
        idle = [store.session(f"idle{number}") for number in range(55)]
        return f"{before} {len(SYSTEM)} {len(idle)} {elements(written[0])}"


def test_locks_that_are_taken_take_the_room_of_logs(store_path: Path) -> None:
    """Sessions that are only opened leave the application no fewer descriptors than those that are written to."""
    assert in_a_fresh_process(open_idle_sessions, store_path) == f"35 {LEAST - 1} 55 [1]"


def test_a_session_that_is_dropped_takes_its_files_with_it(store_path: Path) -> None:
    """The pool keeps nothing alive."""
    fs = real(None)
    before = descriptors()
    store = Store.open(store_path, fs=fs, clock=ManualClock())
    store.session("s").commit([MAIN.append(1)])
    assert len(fs.pool) == 1
    store._store._sessions.clear()
    gc.collect()
    assert len(fs.pool) == 0 and descriptors() == before
    store.close()


# --- fork -------------------------------------------------------------------------------------------


def test_a_forked_child_closes_its_copies_open_or_not(store_path: Path) -> None:
    fs = real(2)
    with Store.open(store_path, fs=fs, clock=ManualClock()) as store:
        sessions = [store.session(f"s{number}") for number in range(5)]
        for session in sessions:
            session.commit([MAIN.append(session.id)])
        assert len(fs.pool) == 2

        def links() -> Iterator[str]:
            for fd in os.listdir("/proc/self/fd"):
                with suppress(FileNotFoundError):
                    yield os.readlink(f"/proc/self/fd/{fd}")

        def left() -> str:
            here = [link for link in links() if link.startswith(str(store_path))]
            for session in sessions:
                log = session._writer._main.log
                assert log is not None and not log.view.handle._lock.locked()
            return f"{here} {len(fs.pool)} {len(fs.pool.held)}"

        with child(left) as answer:
            assert answer == "[] 0 0"
        for session in sessions:
            session.commit([MAIN.append("on")])
            assert elements(session) == [session.id, "on"]


# --- threads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3])
def test_threads_that_take_each_others_files_away(limit: int, store_path: Path) -> None:
    """A file is never closed between a thread's taking it and its use of it."""
    count, turns, threads = 5, 40, 6
    fs = real(limit)
    failures: list[BaseException] = []

    with Store.open(store_path, fs=fs, durability=Durability.PROCESS, window_ms=5) as store:
        sessions = [store.session(f"s{number}") for number in range(count)]

        def run(seed: int) -> None:
            rng = random.Random(seed)
            where = ephemeral(f"op-{seed}").list_of("op", "out")
            try:
                for turn in range(turns):
                    session = rng.choice(sessions)
                    session.commit([MAIN.append([seed, turn])])
                    session.append(where, turn)
                    assert [seed, turn] in elements(session)
                    assert turn in elements(session, where)
                    if rng.random() < 0.1:
                        session.commit([ephemeral(f"op-{seed}").retire()])
                    if rng.random() < 0.1:
                        session.flush(POWER)
            except BaseException as error:  # noqa: BLE001 - handed to the test
                failures.append(error)

        running = [threading.Thread(target=run, args=(seed,)) for seed in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert not failures, failures
        found = sorted(e for session in sessions for e in elements(session))
        assert found == sorted([seed, turn] for seed in range(threads) for turn in range(turns))
        assert fs.pool.evictions > 100
        states = [state for session in sessions for state in session._writer._scopes.values()]
        handles = [state.log.view.handle for state in states if state.log is not None]
        deadline = time.monotonic() + PATIENCE  # the flusher may be storing what was staged last
        while not all(handle.evict() for handle in handles):
            assert time.monotonic() < deadline, "a file is in use for ever"
            time.sleep(0.001)
    with Store.open(store_path) as store:
        assert found == sorted(e.element for number in range(count) for e in store.session(f"s{number}").read(MAIN))


# --- interruptions ----------------------------------------------------------------------------------


@pytest.fixture
def tiny_disks(monkeypatch: pytest.MonkeyPatch) -> list[InterruptedDisk]:
    """The disks of the rigs of ``test_interrupted``, with room for one open log."""
    disks: list[InterruptedDisk] = []

    def tiny() -> InterruptedDisk:
        disks.append(InterruptedDisk())
        disks[-1].pool.fixed = 1
        return disks[-1]

    monkeypatch.setattr(test_interrupted, "InterruptedDisk", tiny)
    return disks


INTERRUPTED: Final = (
    "commit",
    "commit to a scope at power",
    "birth of a scope",
    "flush",
    "retirement",
    "reads",
    "close",
)


@pytest.mark.parametrize("name", INTERRUPTED)
@pytest.mark.parametrize("operations", [False, True], ids=["functions", "disk"])
def test_an_interruption_leaves_no_file_in_use(name: str, operations: bool, tiny_disks: list[InterruptedDisk]) -> None:
    """Wherever the exception comes, opening and closing files included: memory and disk agree, as they do where all
    files stay open, and every log can be closed for others again."""
    calls = CALLS if name in CALLS else CLOSING
    call = calls[name]
    handles: list[Handle] = []

    def watched(rig: Rig) -> object:
        for state in rig.session._writer._scopes.values():
            if state.log is not None and state.log.born:
                handles.append(state.log.view.handle)
        return call(rig)

    def arm(nth: int) -> Callable[[Rig], Any]:
        if operations:
            return lambda rig: rig.disk.arm(nth, KeyboardInterrupt)
        return lambda rig: Entries(nth, KeyboardInterrupt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(calls, name, watched)
        places = every(name, arm)
    assert places > (4 if operations else 50) and len(tiny_disks) == places + 1
    assert all(disk.pool.evictions for disk in tiny_disks)
    assert handles and all(handle.evict() for handle in handles), "a file is in use for ever"


# --- everything at once -----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2])
def test_the_state_machine_with_room_for_one_or_two_files(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_model.SimDisk", lambda **options: small(limit, SimDisk(**options)))
    chosen = settings(
        max_examples=15,
        stateful_step_count=30,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(StoreMachine, settings=chosen)
    finally:
        random_identities()
