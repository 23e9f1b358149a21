"""The write-behind window: bounded, not resetting, one flusher; what failed stays, in order; nothing is dropped."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fuzz.simdisk import SimDisk
from scopelog import (
    CoalescerFailed,
    Durability,
    InvalidInput,
    Json,
    LogPoisoned,
    ManualClock,
    OutcomeUnknown,
    Session,
    Store,
    WriteFailed,
    ephemeral,
    list_of,
)
from tests.hooks import HookedFileSystem

OP = ephemeral("op-1")
MAIN = list_of("chat", "messages")


def join_text(run: Sequence[Json]) -> Iterator[tuple[Json, int]]:
    yield "".join(run), len(run)


OUT = OP.list_of("chat", "out")
TEXT = OP.list_of("chat", "text", coalescer=join_text)


class Rig:
    """A session on a simulated disk under a clock that the test moves."""

    def __init__(self, **settings: Any) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.store = Store.open("/store", fs=self.disk, clock=self.clock, **settings)
        self.session = self.store.session("s")
        self.session.commit([MAIN.append("begin")])

    def stored(self, target: Any) -> list[Json]:
        """What a reader without the lock sees: what has reached the operating system."""
        with self.store.reader("s") as reader:
            return [e.element for e in reader.read(target)]

    def shown(self, target: Any) -> list[Json]:
        return [e.element for e in self.session.read(target)]

    def sidecar(self) -> str:
        return next(path for path in self.disk.snapshot() if path.endswith(".scope.zst"))


def test_the_first_pending_element_opens_the_window_and_later_ones_do_not_move_it() -> None:
    rig = Rig()
    rig.session.append(OUT, 1)
    rig.clock.advance(0.060)
    rig.session.append(OUT, 2)
    rig.clock.advance(0.039)
    assert rig.stored(OUT) == []
    rig.clock.advance(0.001)
    assert rig.stored(OUT) == [1, 2]
    rig.session.append(OUT, 3)
    rig.clock.advance(0.099)
    assert rig.stored(OUT) == [1, 2]
    rig.clock.advance(0.001)
    assert rig.stored(OUT) == [1, 2, 3]


@pytest.mark.fault(28, rig="S")
def test_an_endless_stream_is_never_older_than_one_window() -> None:
    rig = Rig(window_ms=62.5)  # and steps of an eighth of that: exact in binary
    for n in range(400):
        rig.session.append(OUT, n)
        rig.clock.advance(0.0078125)
        assert n + 1 - len(rig.stored(OUT)) < 8
    assert rig.session.stats()["batches"] == 1 + 50


def test_both_kinds_of_scope_have_windows_at_their_own_level() -> None:
    rig = Rig()
    before = rig.session.stats()["syncs"]
    rig.session.append(OUT, 1)
    rig.clock.advance(0.1)
    assert rig.session.stats()["syncs"] == before
    assert rig.session.durable_seq(OP) == 2
    assert rig.session.durable_seq(OP, Durability.POWER) == 0
    rig.session.append(MAIN, 2)
    rig.clock.advance(0.1)
    assert rig.session.stats()["syncs"] == before + 1
    assert rig.session.durable_seq() == 3


def test_a_window_of_zero_flushes_at_the_next_tick() -> None:
    rig = Rig(window_ms=0)
    rig.session.append(OUT, 1)
    rig.clock.advance(0)
    assert rig.stored(OUT) == [1]


@pytest.mark.fault(28, rig="S")
def test_what_arrives_while_a_write_is_running_forms_the_next_window(store_path: Path) -> None:
    fs = HookedFileSystem()
    clock = ManualClock()
    with Store.open(store_path, fs=fs, clock=clock) as store, store.session("s") as session:
        session.commit([MAIN.append("begin")])
        session.append(OUT, 1)

        def during(operation: str, path: str) -> None:
            if operation == "pwrite" and path.endswith(".scope.zst") and fs.count("pwrite", ".scope.zst") == 1:
                session.append(OUT, 2)

        fs.hook = during
        clock.advance(0.1)
        with store.reader("s") as reader:
            assert [e.element for e in reader.read(OUT)] == [1]
        assert session.stats()["pending_elements"] == 1
        clock.advance(0.1)
        with store.reader("s") as reader:
            assert [e.element for e in reader.read(OUT)] == [1, 2]


def test_flush_is_a_barrier_for_every_scope_and_raises_the_level_on_demand() -> None:
    rig = Rig()
    rig.session.append(OUT, 1)
    rig.session.append(MAIN, 2)
    rig.session.flush()
    assert (rig.stored(OUT), rig.stored(MAIN)) == ([1], ["begin", 2])
    assert rig.session.durable_seq(OP, Durability.POWER) == 0
    rig.session.flush(Durability.POWER)
    assert rig.session.durable_seq(OP, Durability.POWER) == 2
    after = rig.session.stats()["syncs"]
    rig.session.flush(Durability.POWER)
    assert rig.session.stats()["syncs"] == after, "a barrier with nothing to do asks nothing of the disk"


def test_a_commit_takes_along_what_was_staged_before_it_in_its_scope_alone() -> None:
    rig = Rig()
    rig.session.append(OUT, 1)
    rig.session.append(MAIN, "staged")
    rig.session.commit([MAIN.append("committed")])
    assert rig.stored(MAIN) == ["begin", "staged", "committed"]
    assert rig.stored(OUT) == []


@pytest.mark.fault(28, rig="S")
def test_close_in_the_middle_of_a_window_stores_it() -> None:
    rig = Rig()
    rig.session.append(OUT, 1)
    rig.session.append(MAIN, 2)
    rig.session.close()
    assert (rig.stored(OUT), rig.stored(MAIN)) == ([1], ["begin", 2])


# --- coalescing -------------------------------------------------------------------------------------------------------


def test_a_window_of_deltas_becomes_one_element_with_the_sequence_of_its_last_original() -> None:
    rig = Rig()
    sequences = [rig.session.append(TEXT, text) for text in "hello"]
    rig.clock.advance(0.1)
    (element,) = rig.session.read(TEXT)
    assert (element.seq, element.element) == (sequences[-1], "hello")
    assert rig.stored(TEXT) == ["hello"]


def test_runs_of_two_lists_are_joined_each_for_itself_and_keep_the_order_of_sequences() -> None:
    rig = Rig()
    other = OP.list_of("chat", "other", coalescer=join_text)
    for a, b in zip("abc", "xyz", strict=True):
        rig.session.append(TEXT, a)
        rig.session.append(other, b)
    rig.session.append(OUT, "plain")
    rig.session.flush()
    assert (rig.stored(TEXT), rig.stored(other), rig.stored(OUT)) == (["abc"], ["xyz"], ["plain"])
    with rig.store.reader("s") as reader:
        sequences = [record.seq for record in reader.records()]
    assert sequences == sorted(set(sequences))


def test_a_join_never_crosses_a_tag() -> None:
    rig = Rig()
    for text, tag in (("a", None), ("b", None), ("c", "mark"), ("d", None), ("e", None)):
        rig.session.append(TEXT, text, tag)
    rig.session.flush()
    assert [(e.element, e.tag) for e in rig.session.read(TEXT)] == [("ab", None), ("c", "mark"), ("de", None)]


def test_a_join_never_crosses_a_commit_or_a_window() -> None:
    rig = Rig()
    rig.session.append(TEXT, "a")
    rig.session.append(TEXT, "b")
    rig.session.commit([TEXT.append("c")])
    rig.session.append(TEXT, "d")
    rig.clock.advance(0.1)
    rig.session.append(TEXT, "e")
    rig.session.flush()
    assert rig.stored(TEXT) == ["ab", "c", "d", "e"]


def test_a_read_joins_and_seals_without_a_write_and_what_was_shown_never_changes() -> None:
    rig = Rig()
    rig.session.append(TEXT, "a")
    rig.session.append(TEXT, "b")
    writes = rig.session.stats()["appends"]
    shown = rig.session.read(TEXT)
    assert [e.element for e in shown] == ["ab"]
    assert rig.session.stats()["appends"] == writes
    rig.session.append(TEXT, "c")
    rig.session.append(TEXT, "d")
    assert [e.element for e in rig.session.read(TEXT)][:1] == ["ab"]
    rig.session.flush()
    assert rig.session.read(TEXT)[:1] == shown
    assert rig.stored(TEXT) == ["ab", "cd"]


def test_a_read_of_another_list_seals_nothing() -> None:
    rig = Rig()
    rig.session.append(TEXT, "a")
    rig.session.append(OUT, 1)
    assert rig.shown(OUT) == [1]
    rig.session.append(TEXT, "b")
    rig.session.flush()
    assert rig.stored(TEXT) == ["ab"]


@pytest.mark.parametrize(
    "coalescer",
    [
        lambda run: [("".join(run), len(run) + 1)],
        lambda run: [("".join(run), len(run) - 1)],
        lambda run: [("x", True)] * len(run),
        lambda run: [(float("nan"), len(run))],
        lambda run: 1 / 0,
        lambda run: None,
    ],
    ids=["counts too much", "counts too little", "bool count", "not JSON", "raises", "no run"],
)
def test_a_coalescer_that_fails_costs_nothing_but_the_join(coalescer: Callable[[Any], Any]) -> None:
    rig = Rig()
    target = OP.list_of("chat", "bad", coalescer=coalescer)
    for text in "abc":
        rig.session.append(target, text)
    with pytest.raises(CoalescerFailed, match="chat/bad"):
        rig.session.flush()
    assert rig.stored(target) == ["a", "b", "c"]
    rig.session.flush()


def test_an_address_keeps_its_coalescer() -> None:
    rig = Rig()
    rig.session.append(TEXT, "a")
    with pytest.raises(InvalidInput, match="another coalescer"):
        rig.session.append(OP.list_of("chat", "text", coalescer=lambda run: []), "b")
    rig.session.append(OP.list_of("chat", "text"), "c")
    rig.session.flush()
    assert rig.stored(TEXT) == ["ac"]


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault(17, rig="S")
def test_a_failed_flush_keeps_its_elements_in_order_and_says_so_at_the_next_call() -> None:
    rig = Rig()
    rig.session.append(OUT, 0)
    rig.session.flush()
    rig.disk.fail("pwrite", errno=errno.ENOSPC, path=".scope.zst", persistent=True)
    rig.session.append(OUT, 1)
    rig.clock.advance(0.1)
    stuck = rig.session.durable_seq(OP)
    with pytest.raises(WriteFailed, match="No space"):
        rig.session.append(OUT, "not taken")
    assert rig.session.append(OUT, 2) > stuck
    assert rig.session.durable_seq(OP) == stuck
    assert rig.shown(OUT) == [0, 1, 2]
    with pytest.raises(WriteFailed):
        rig.session.flush()
    rig.disk.heal()
    rig.session.flush()
    assert rig.stored(OUT) == [0, 1, 2]


@pytest.mark.fault(17, rig="S")
def test_space_coming_back_heals_a_window_without_a_call() -> None:
    rig = Rig()
    rig.session.append(OUT, 0)
    rig.session.flush()
    rig.disk.fail("pwrite", errno=errno.ENOSPC, path=".scope.zst")
    rig.session.append(OUT, 1)
    rig.clock.advance(0.1)
    assert rig.stored(OUT) == [0]
    rig.clock.advance(1)
    assert rig.stored(OUT) == [0, 1]


def test_a_retained_window_is_written_as_it_was_joined() -> None:
    rig = Rig()
    rig.session.append(TEXT, "a")
    rig.session.append(TEXT, "b")
    rig.disk.fail("pwrite", errno=errno.EIO, path=".scope.zst")
    with pytest.raises(WriteFailed):
        rig.session.flush()
    rig.session.append(TEXT, "c")
    rig.session.flush()
    assert rig.stored(TEXT) == ["ab", "c"]


def test_a_failed_commit_is_withdrawn_and_what_was_staged_before_it_stays() -> None:
    rig = Rig()
    rig.session.append(MAIN, "staged")
    size = len(rig.disk.read_file("/store/s.session/main.zst"))
    rig.disk.fail("pwrite", errno=errno.EDQUOT, path="main.zst", short=7)
    with pytest.raises(WriteFailed):
        rig.session.commit([MAIN.append("lost")])
    assert rig.shown(MAIN) == ["begin", "staged"]
    assert len(rig.disk.read_file("/store/s.session/main.zst")) <= size
    rig.session.commit([MAIN.append("next")])
    assert rig.stored(MAIN) == ["begin", "staged", "next"]
    assert rig.store.check() == [] or all(f.severity == "note" for f in rig.store.check())


def test_a_short_write_is_finished() -> None:
    rig = Rig()
    for short in range(1, 40):
        rig.disk.fail("pwrite", path="main.zst", short=short)
        rig.session.commit([MAIN.append(short)])
    assert rig.stored(MAIN) == ["begin", *range(1, 40)]


@pytest.mark.fault(15, rig="S")
def test_after_a_failed_sync_the_outcome_is_unknown_and_the_log_takes_no_more() -> None:
    rig = Rig()
    rig.disk.fail("sync", path="main.zst")
    with pytest.raises(OutcomeUnknown):
        rig.session.commit([MAIN.append("unknown")])
    assert rig.shown(MAIN) == ["begin"], "a failed commit is never shown"
    for call in (lambda: rig.session.commit([MAIN.append(1)]), lambda: rig.session.append(MAIN, 1)):
        with pytest.raises(LogPoisoned, match="open it again"):
            call()
    rig.session.append(OUT, "scopes go on")
    rig.session.close()
    with rig.store.session("s") as again:
        assert not again.recovery.clean
        assert [e.element for e in again.read(OUT)] == ["scopes go on"]
        assert [e.element for e in again.read(MAIN)] in (["begin"], ["begin", "unknown"])
        again.commit([MAIN.append("after")])


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_at_the_bound_the_caller_flushes_inline() -> None:
    rig = Rig(pending_bytes=4096)
    for n in range(100):
        rig.session.append(OUT, "x" * 100)
        assert rig.session.stats()["pending_bytes"] <= 4096, n
    assert len(rig.stored(OUT)) > 80


def test_an_element_above_the_bound_is_admitted_alone() -> None:
    rig = Rig(pending_bytes=4096)
    rig.session.append(OUT, "small")
    rig.session.append(OUT, "x" * 10_000)
    assert rig.stored(OUT) == ["small"]
    rig.session.append(OUT, "after")
    assert rig.stored(OUT) == ["small", "x" * 10_000]


def test_at_the_bound_a_broken_disk_is_back_pressure() -> None:
    rig = Rig(pending_bytes=4096)
    rig.session.append(OUT, 0)
    rig.session.flush()
    rig.disk.fail("pwrite", errno=errno.ENOSPC, path=".scope.zst", persistent=True)
    taken = []
    with pytest.raises(WriteFailed):
        for n in range(1, 1000):
            rig.session.append(OUT, n)
            taken.append(n)
    assert 0 < len(taken) < 30
    rig.disk.heal()
    rig.session.flush()
    assert rig.stored(OUT) == [0, *taken]


def test_the_bound_of_the_store_is_shared_by_its_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scopelog_engine.store._PENDING_LIMIT", 600_000)
    rig = Rig()
    sessions = [rig.store.session(f"other {n}") for n in range(4)]
    for n in range(60):
        for session in sessions:
            session.append(OUT, "x" * 10_000)
            assert sum(s.stats()["pending_bytes"] for s in sessions) < 650_000, n


# --- retirement -------------------------------------------------------------------------------------------------------


def test_what_waits_in_a_retired_scope_is_dropped_and_counts_as_settled() -> None:
    rig = Rig()
    rig.session.append(OUT, 1)
    rig.session.commit([OP.retire()])
    rig.session.flush()
    assert rig.shown(OUT) == []
    assert rig.session.scopes() == []
    assert not any(path.endswith(".scope.zst") for path in rig.disk.snapshot())


def test_if_the_retirement_fails_what_waited_is_put_back_in_front() -> None:
    rig = Rig()
    rig.session.append(OUT, 1)
    rig.session.append(OUT, 2)
    rig.disk.fail("pwrite", errno=errno.ENOSPC, path="main.zst")
    with pytest.raises(WriteFailed):
        rig.session.commit([OP.retire()])
    rig.session.append(OUT, 3)
    assert rig.shown(OUT) == [1, 2, 3]
    rig.clock.advance(0.1)
    assert rig.stored(OUT) == [1, 2, 3]


def test_a_reused_scope_begins_a_new_life_in_a_new_file() -> None:
    rig = Rig()
    rig.session.append(OUT, 1)
    rig.session.flush()
    first = rig.sidecar()
    rig.session.commit([OP.retire(), MAIN.append("settled")])
    rig.session.append(OUT, 2)
    rig.session.flush()
    assert rig.sidecar() != first
    assert rig.stored(OUT) == [2]


def test_appends_under_the_id_wait_for_the_outcome_of_a_retirement(store_path: Path) -> None:
    fs = HookedFileSystem()
    with Store.open(store_path, fs=fs) as store, store.session("s") as session:
        session.commit([MAIN.append("begin"), OP.retire()])
        session.append(OUT, "before")
        syncing, go_on, waiting = threading.Event(), threading.Event(), threading.Event()

        def stop(operation: str, path: str) -> None:
            if operation == "sync" and "main.zst" in path:
                syncing.set()
                assert go_on.wait(60)

        fs.hook = stop
        retirer = threading.Thread(target=lambda: session.commit([OP.retire()]))
        retirer.start()
        assert syncing.wait(60)
        sequences: list[int] = []

        def append() -> None:
            waiting.set()
            sequences.append(session.append(OUT, "after"))

        appender = threading.Thread(target=append)
        appender.start()
        assert waiting.wait(60)
        assert sequences == []
        go_on.set()
        retirer.join(60)
        appender.join(60)
        assert [(e.seq, e.element) for e in session.read(OUT)] == [(sequences[0], "after")]


def test_the_unlink_waits_for_power_whatever_level_the_session_runs_at() -> None:
    rig = Rig(durability=Durability.PROCESS)
    rig.session.append(OUT, 1)
    rig.session.flush()
    path = rig.sidecar()
    rig.session.commit([OP.retire()])
    assert path in rig.disk.snapshot()
    assert rig.shown(OUT) == []
    rig.session.commit([MAIN.append(1)], durability=Durability.POWER)
    assert path not in rig.disk.snapshot()


@pytest.mark.fault(33, rig="S")
def test_a_failed_unlink_is_no_failure_of_the_commit_and_is_tried_again() -> None:
    rig = Rig()
    rig.session.append(OUT, 1)
    rig.session.flush()
    path = rig.sidecar()
    rig.disk.fail("unlink", errno=errno.EPERM, path=".scope.zst")
    rig.session.commit([OP.retire()])
    assert path in rig.disk.snapshot()
    assert rig.stored(OUT) == []
    rig.session.commit([MAIN.append(1)])
    assert path not in rig.disk.snapshot()


# --- the flusher ------------------------------------------------------------------------------------------------------


def test_one_thread_flushes_for_all_sessions_of_a_store(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scopelog_engine.store._SLOW_FLUSH", float("inf"))  # the disk is quick, whatever it takes
    fs = HookedFileSystem()
    written = threading.Semaphore(0)
    names: set[str] = set()
    before = set(threading.enumerate())  # other tests may have left theirs behind, on disks that are no more

    def note(operation: str, path: str) -> None:
        if operation == "pwrite" and path.endswith(".scope.zst"):
            names.add(threading.current_thread().name)
            written.release()

    with Store.open(store_path, fs=fs, window_ms=1) as store:
        sessions = [store.session(f"s{n}") for n in range(5)]
        fs.hook = note
        for session in sessions:
            session.append(OUT, 1)
        for _ in sessions:
            assert written.acquire(timeout=60)
        assert names == {"scopelog-flusher"}
        flushers = {thread for thread in threading.enumerate() if thread.name == "scopelog-flusher"}
        assert len(flushers - before) == 1


def test_the_interpreters_exit_stores_what_is_staged(store_path: Path) -> None:
    program = (
        "import sys; from scopelog import *\n"
        "store = Store.open(sys.argv[1], window_ms=60_000); session = store.session('s')\n"
        "session.append(ephemeral('op-1').list_of('chat', 'out'), 'staged'); session.append(list_of('a', 'b'), 1)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(store_path)], check=True, timeout=120)
    with Store.open(store_path) as store, store.session("s") as session:
        assert [e.element for e in session.read(OUT)] == ["staged"]
        assert [e.element for e in session.read(list_of("a", "b"))] == [1]


@pytest.mark.fault(28, rig="S")
def test_an_exception_in_the_flusher_is_raised_at_the_next_call_and_nothing_is_lost(store_path: Path) -> None:
    fs = HookedFileSystem()
    clock = ManualClock()
    with Store.open(store_path, fs=fs, clock=clock) as store:
        session: Session = store.session("s")
        session.commit([MAIN.append("begin")])
        session.append(OUT, 1)

        def fail(operation: str, path: str) -> None:
            if operation == "pwrite":
                raise MemoryError

        fs.hook = fail
        clock.advance(0.1)
        fs.hook = lambda operation, path: None
        with pytest.raises(WriteFailed, match="MemoryError"):
            session.append(OUT, "not taken")
        session.append(OUT, 2)
        session.flush()
        with store.reader("s") as reader:
            assert [e.element for e in reader.read(OUT)] == [1, 2]


def test_a_session_at_process_does_not_pile_up_the_files_of_retired_scopes() -> None:
    rig = Rig(durability=Durability.PROCESS)
    for n in range(300):
        rig.session.commit([ephemeral(f"op-{n}").value("a", "b").set(n)])
        rig.session.commit([ephemeral(f"op-{n}").retire()])
        left = sum(path.endswith(".scope.zst") for path in rig.disk.snapshot())
        assert left <= 129, n
    assert rig.session.stats()["syncs"] < 10


@pytest.mark.parametrize("wrong", ["text", 1, None, object()])
def test_what_is_no_address_is_refused(wrong: Any) -> None:
    rig = Rig()
    calls: list[Callable[[], object]] = [
        lambda: rig.session.append(wrong, 1),
        lambda: rig.session.read(wrong),
        lambda: rig.session.get(wrong),
        lambda: rig.session.scan("a", scope=wrong),
        lambda: rig.session.durable_seq(wrong),
        lambda: rig.session.get(MAIN),  # type: ignore[arg-type]
        lambda: rig.session.commit(MAIN.append(1)),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    assert rig.shown(MAIN) == ["begin"]
