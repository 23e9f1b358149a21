"""Following a session: what is told, when, and where it is gone on from."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from errno import ENOSPC
from pathlib import Path
from typing import cast

import pytest

from fuzz.simdisk import SimDisk, SimFile
from scopelog import (
    SESSION,
    Base,
    Deleted,
    Durability,
    FollowEvent,
    HandleClosed,
    InvalidInput,
    NoSuchSession,
    Position,
    ReadFailed,
    Records,
    Retired,
    SessionFollower,
    Store,
    WriteFailed,
    ephemeral,
    list_of,
)
from scopelog.aio import AsyncStore
from scopelog_engine.fs import OsFileSystem
from scopelog_engine.notify import Watch
from scopelog_engine.position import LifePoint
from tests.follow_rig import Receiver, drain, stored

LINES = list_of("n", "lines")
PATH = "/data/store"


def first(events: list[FollowEvent]) -> Base:
    (event,) = events
    assert isinstance(event, Base)
    event.reader.close()
    return event


def elements(events: list[FollowEvent]) -> list[object]:
    return [record.value for event in events if isinstance(event, Records) for record in event.records]


def begun_position(follower: SessionFollower) -> Position:
    return first(follower.poll()).position


def begun(follower: SessionFollower) -> SessionFollower:
    first(follower.poll())
    return follower


# --- what is told ---------------------------------------------------------------------------------


def test_records_retirements_and_the_end_are_told_in_order(store_path: Path) -> None:
    op = ephemeral("op")
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([LINES.append(1, "t")])
        follower = store.follow("s")
        (base,) = follower.poll()
        assert isinstance(base, Base) and base.reason == ""
        with base.reader as reader:
            assert [element.element for element in reader.read(LINES)] == [1]
        session.commit([op.list_of("n", "x").append("a", "tag")])
        (one,) = follower.poll()
        session.commit([LINES.append(2), op.retire(), LINES.trim(1), LINES.delete()])
        session.commit([op.list_of("n", "x").append("b")])
        two, three, four = follower.poll()
        assert isinstance(one, Records) and one.scope == "op"
        (record,) = one.records
        assert (record.value, record.tag, record.namespace, record.key, record.op) == ("a", "tag", "n", "x", "append")
        assert isinstance(two, Retired) and (two.scope, two.seq) == ("op", 4) and two.time > 0
        assert isinstance(three, Records) and three.scope is None
        assert [(r.op, r.upto) for r in three.records] == [("append", None), ("trim", 1), ("delete", None)]
        assert isinstance(four, Records) and [r.value for r in four.records] == ["b"]
        assert follower.poll() == []
        session.close()
        assert follower.poll() == []
        store.delete_session("s")
        assert follower.poll() == [Deleted()] and follower.ended
        assert follower.poll() == [] and follower.next() is None and [*follower] == []


def test_a_commit_is_told_whole_and_its_retirements_before_it(store_path: Path) -> None:
    """Of the events of one frame all but the last say to resume before it: whoever stops between them loses none."""
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([ephemeral("a").list_of("n", "x").append(1)])
        session.commit([ephemeral("b").list_of("n", "x").append(2)])
        follower = begun(store.follow("s"))
        start = follower.position
        session.commit([LINES.append(1), ephemeral("a").retire(), ephemeral("b").retire(), LINES.append(2)])
        events = follower.poll()
        assert [type(event) for event in events] == [Retired, Retired, Records]
        a, b, both = events
        assert not isinstance(a, Deleted) and not isinstance(b, Deleted) and not isinstance(both, Deleted)
        assert a.position == b.position == start != both.position
        assert store.follow("s", start).poll() == events
        assert store.follow("s", both.position).poll() == []


def test_one_scope_alone(store_path: Path) -> None:
    a, b = ephemeral("a"), ephemeral("b")
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        of_a, of_main = (begun(store.follow("s", scope=scope)) for scope in (a, SESSION))
        for scope in (a, b):
            session.commit([scope.list_of("n", "x").append(scope.id)])
        told = of_a.poll()
        session.commit([LINES.append(1), b.retire()])
        session.commit([a.retire()])
        told += of_a.poll()
        assert elements(told) == ["a"] and [e.scope for e in told if isinstance(e, Retired)] == ["a"]
        told = of_main.poll()
        assert elements(told) == [1] and [e.scope for e in told if isinstance(e, Retired)] == ["b", "a"]


def test_what_is_staged_is_told_once_it_is_stored(store_path: Path) -> None:
    with Store.open(store_path, window_ms=60_000) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        follower = begun(store.follow("s"))
        session.append(LINES, 1)
        assert follower.poll() == []
        session.flush()
        assert elements(follower.poll()) == [1]


def test_a_window_that_is_stored_after_a_later_commit(store_path: Path) -> None:
    """Sequences of different scopes become visible out of order: a position tells each scope's own."""
    op = ephemeral("op").list_of("n", "x")
    with Store.open(store_path, window_ms=60_000) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        follower = begun(store.follow("s"))
        session.append(op, "early")
        session.commit([LINES.append("late")])
        assert elements(follower.poll()) == ["late"]
        position = str(follower.position)
        session.flush()
        assert elements(store.follow("s", position).poll()) == elements(follower.poll()) == ["early"]


def test_with_durable_what_is_told_ends_at_the_mark(store_path: Path) -> None:
    op = ephemeral("op").list_of("n", "x")
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([LINES.append(1)])
        follower = store.follow("s", durable=True)
        (base,) = follower.poll()
        assert isinstance(base, Base)
        with base.reader as reader:
            assert reader.read(LINES) == [] and reader.durable_seq(durability=Durability.POWER) == 0
        session.commit([LINES.append(2)])
        assert elements(follower.poll()) == [1]
        session.commit([op.append("a")])
        session.commit([op.append("b")])
        assert elements(follower.poll()) == [], "nothing was synced"
        session.commit([op.append("c")], durability=Durability.POWER)
        session.commit([op.append("d")])
        session.commit([LINES.append(3)])
        assert sorted(map(str, elements(follower.poll()))) == ["2", "a", "b", "c"]
        session.commit([ephemeral("op").retire()])
        assert elements(follower.poll()) == [3]
        session.close()
        (retired,) = follower.poll()
        assert isinstance(retired, Retired)


def test_with_durable_a_new_life_waits_for_the_retirement_before_it(store_path: Path) -> None:
    """The retirement is on disk, but no mark says so yet; the marks of the new life's own log must not overtake it."""
    op = ephemeral("op").list_of("n", "x")
    with Store.open(store_path, scope_durability=Durability.POWER) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        session.commit([op.append("old")])
        session.commit([LINES.append(1), ephemeral("op").retire()])
        session.commit([op.append("new")])
        session.commit([op.append("newer")])
        follower = begun(store.follow("s", durable=True))
        assert follower.poll() == []
        session.commit([LINES.append(2)])
        retired, main, life = follower.poll()
        assert isinstance(retired, Retired) and retired.scope == "op"
        assert elements([main]) == [1] and elements([life]) == ["new"]


def test_a_life_that_is_over_is_not_told_of(store_path: Path) -> None:
    """Its file may stay for a while, and come into sight only then."""
    op = ephemeral("op").list_of("n", "x")
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([LINES.append(1)])
        session.commit([op.append("a")])
        (sidecar,) = (store_path / "s.session").glob("*.scope.zst")
        kept = sidecar.read_bytes()
        follower = begun(store.follow("s"))
        session.commit([ephemeral("op").retire()])
        assert [type(event) for event in follower.poll()] == [Retired]
        begun_later = begun(store.follow("s"))
        sidecar.write_bytes(kept)
        assert follower.poll() == begun_later.poll() == []
        session.commit([op.append("b")])
        assert elements(follower.poll()) == elements(begun_later.poll()) == ["b"]


def test_reopening_and_closing_go_unnoticed(store_path: Path) -> None:
    with Store.open(store_path) as store:
        with store.session("s") as session:
            session.commit([LINES.append(0)])
        follower = begun(store.follow("s"))
        for number in (1, 2):
            with store.session("s") as session:
                session.commit([LINES.append(number)])
            assert elements(follower.poll()) == [number]
            assert follower.poll() == []


def test_long_logs_are_told_in_pieces(store_path: Path) -> None:
    """Over many stretches, with frames longer than what is read at once, and from any position on."""
    op = ephemeral("op").list_of("n", "x")
    with Store.open(store_path) as store, store.session("s", durability=Durability.PROCESS) as session:
        session.commit([LINES.append("begin")])
        follower = begun(store.follow("s"))
        wanted: list[object] = []
        for number in range(40):
            text = f"{number}:" + os.urandom(150_000 if number % 10 else 1_700_000).hex()
            session.commit([LINES.append(text)])
            session.commit([op.append(number)])
            wanted += [text, number]
        polls = [follower.poll()]
        positions = [(str(follower.position), len(elements(polls[0])))]
        while polls[-1]:
            polls.append(follower.poll())
            positions.append((str(follower.position), sum(map(len, map(elements, polls)))))
        told = [element for events in polls for element in elements(events)]
        assert len(polls) > 4
        assert [e for e in told if isinstance(e, str)] == [e for e in wanted if isinstance(e, str)]
        assert [e for e in told if isinstance(e, int)] == list(range(40))
        for position, done in positions:
            assert elements(drain(store.follow("s", position))) == told[done:]


# --- where it is gone on from ---------------------------------------------------------------------


def test_a_position_is_honoured_at_a_boundary_alone(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([LINES.append(1), LINES.append(2)])
        session.commit([LINES.append(3)])
        now = first(store.follow("s").poll()).position
        before = now._replace(sequence=2)
        assert elements(store.follow("s", str(before)).poll()) == [3]
        assert elements(store.follow("s", now._replace(sequence=0)).poll()) == [1, 2, 3]
        for wrong in (now._replace(sequence=1), now._replace(sequence=4), now._replace(epoch=now.epoch + 1)):
            assert "no boundary" in first(store.follow("s", wrong).poll()).reason
        lost = now._replace(lives=(LifePoint(2, now.epoch, 2, 7),))
        assert "lost without a retirement" in first(store.follow("s", lost).poll()).reason
        assert store.follow("s", now._replace(identity=now.identity + 1)).poll() == [Deleted()]


def test_a_position_of_a_scope_that_was_retired_since(store_path: Path) -> None:
    op, other = ephemeral("op"), ephemeral("other")
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        session.commit([op.list_of("n", "x").append("a")])
        position = first(store.follow("s").poll()).position
        session.commit([op.list_of("n", "x").append("never told")])
        session.commit([other.list_of("n", "x").append("b")])
        session.commit([op.retire()])
        session.commit([op.list_of("n", "x").append("c")])
        for durable in (False, True):
            follower = store.follow("s", position, durable=durable)
            told = follower.poll()
            if durable:
                assert told == [], "the retirement is not known to be on disk"
                session.close()
                told = follower.poll()
                assert elements(told) == [], "and no record of a scope ever is"
            else:
                assert elements(told) == ["b", "c"]
            assert [event.seq for event in told if isinstance(event, Retired)] == [5]


def test_texts_that_are_no_positions() -> None:
    good = Position(10**12, 3, 40, (LifePoint(7, 2, 9, 1), LifePoint(30, 3, 38, 0xFFFFFF)))
    assert Position.parse(str(good)) == good and Position.parse(str(good._replace(lives=()))).lives == ()
    text = str(good)
    wrong = [
        "",
        "x",
        "1.2",
        "1.2.3.",
        f"{text}A",
        f"0{text}",
        text.upper(),
        f" {text}",
        f"{text}\n",
        "1.2.٣",
        "1.2.3.a",
    ]
    wrong += ["1.2." + "9" * 16, "1.2.3.AAAAAA", "1.2.3.________________", "1.2.3." + "_" * 5_000_000]
    for one in wrong:
        with pytest.raises(InvalidInput, match="no position"):
            Position.parse(one)
    for end in range(len(text)):
        try:
            cut = Position.parse(text[:end])
        except InvalidInput:
            continue
        assert str(cut) == text[:end]
    with pytest.raises(InvalidInput):
        Position.parse(cast("str", 3))


def test_a_position_of_a_thousand_lives_is_short() -> None:
    lives = tuple(LifePoint(10 + 3 * n, 2, 10 + 3 * n + n % 100, n * 997 % 2**24) for n in range(1000))
    assert len(str(Position(1_796_000_000_000, 2, 5000, lives))) < 10_000


def test_no_session_and_no_position(store_path: Path) -> None:
    with Store.open(store_path) as store:
        with pytest.raises(NoSuchSession):
            store.follow("s")
        assert store.follow("s", Position(1, 1, 1)).poll() == [Deleted()]
        with pytest.raises(InvalidInput):
            store.follow("s", cast("Position", 3))


def test_deleted_and_made_anew_is_another_session() -> None:
    disk = SimDisk()
    from scopelog import ManualClock

    clock = ManualClock()
    with Store.open(PATH, fs=disk, clock=clock) as store:
        with store.session("s") as session:
            session.commit([LINES.append(1)])
        followers = [begun(store.follow("s")) for _ in range(2)]
        store.delete_session("s")
        assert followers[0].poll() == [Deleted()]
        clock.advance(1)
        with store.session("s") as session:
            session.commit([LINES.append(1)])
        assert followers[1].poll() == [Deleted()]
        assert store.follow("s", followers[1].position).poll() == [Deleted()]


# --- torn tails and failures ----------------------------------------------------------------------


def test_every_torn_offset_of_a_live_tail() -> None:
    """Half a frame is the end so far; the rest of it makes it whole; if it is cut off, nobody has seen it."""
    op = ephemeral("op").list_of("n", "x")
    for scope in ("", "op"):
        disk = SimDisk(preallocates=False)
        store = Store.open(PATH, fs=disk)
        session = store.session("s")
        session.commit([LINES.append(0)])
        session.commit([op.append(0)])
        name = next(path for path in disk.snapshot() if path.endswith("scope.zst" if scope else "main.zst"))
        before = disk.read_file(name)
        if scope:
            session.commit([op.append("later")])
        else:
            session.commit([LINES.append("later")])
        after = disk.read_file(name)
        for length in range(len(before), len(after)):
            disk.write_file(name, before)
            follower = begun(store.follow("s"))
            disk.write_file(name, after[:length])
            assert follower.poll() == []
            disk.write_file(name, after if length % 2 else before)
            assert elements(follower.poll()) == (["later"] if length % 2 else [])
        disk.write_file(name, after)
        follower = begun(store.follow("s"))
        position = follower.position
        for length in range(len(before), len(after)):
            disk.write_file(name, after[:length])
            assert "gone" in first(follower.poll()).reason
            assert first(store.follow("s", position).poll()).reason
            disk.write_file(name, after)
            assert elements(drain(follower)) == ["later"]


def test_a_frame_that_was_seen_and_rolled_back_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails behind its first whole frame is cut back: whoever has seen that frame begins anew."""
    disk = SimDisk(preallocates=False)
    store = Store.open(PATH, fs=disk, window_ms=60_000)
    session = store.session("s")
    session.commit([LINES.append(0)])
    follower = begun(store.follow("s"))
    name = next(path for path in disk.snapshot() if path.endswith("main.zst"))
    told: list[object] = []
    truncate = SimFile.truncate

    def looked_at(file: SimFile, length: int) -> None:
        told.extend(elements(follower.poll()))
        truncate(file, length)

    session.append(LINES, "small")
    disk.fail("pwrite", path=name, short=400, errno=ENOSPC)
    monkeypatch.setattr(SimFile, "truncate", looked_at)
    with pytest.raises(WriteFailed):
        session.commit([LINES.append(os.urandom(200_000).hex())])
    assert told == ["small"]
    base = first(follower.poll())
    assert "gone" in base.reason and base.position.sequence == 1
    session.flush()
    assert elements(follower.poll()) == ["small"]


def test_a_read_error_is_no_end_and_is_tried_again() -> None:
    disk = SimDisk()
    with Store.open(PATH, fs=disk) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        follower = begun(store.follow("s"))
        session.commit([LINES.append(1)])
        session.commit([ephemeral("op").list_of("n", "x").append(2)])
        for operation, nth in (("pread", 1), ("pread", 2), ("size", 1), ("list_dir", 1), ("open", 1)):
            disk.fail(operation, nth=nth, path="main.zst" if operation != "list_dir" else "")
            with pytest.raises(ReadFailed):
                follower.poll()
            disk.heal()
        assert sorted(map(str, elements(drain(follower)))) == ["1", "2"]


@pytest.mark.parametrize("operation", ["pread", "open", "size"])
def test_trouble_in_a_sidecar_does_not_touch_main(operation: str) -> None:
    disk = SimDisk()
    with Store.open(PATH, fs=disk) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        session.commit([ephemeral("op").list_of("n", "x").append("a")])
        follower = begun(store.follow("s"))
        session.commit([ephemeral("op").list_of("n", "x").append("b")])
        session.commit([LINES.append(1)])
        disk.fail(operation, path=".scope.zst", persistent=True)
        assert elements(follower.poll()) == [1]
        for _ in range(2):
            with pytest.raises(ReadFailed):
                follower.poll()
        session.commit([LINES.append(2)])
        assert elements(follower.poll()) == [2]
        disk.heal()
        assert elements(follower.poll()) == ["b"]


def test_an_interrupted_poll_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stops a poll half-way, at whatever step: what it had read is read again."""
    disk = SimDisk()
    with Store.open(PATH, fs=disk) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        follower = begun(store.follow("s"))
        engine = follower._follower
        for method in ("_advance", "_explain_ghosts", "_position", "_refuse", "_show"):
            session.commit([LINES.append(method), ephemeral("x").retire()])
            original = getattr(engine, method)

            def interrupted(*arguments: object, original: object = original) -> None:
                original(*arguments)  # type: ignore[operator]
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(engine, method, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    follower.poll()
            told = follower.poll()
            assert elements(told) == [method] and len(told) == 2


def test_an_interrupt_behind_a_poll_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    with Store.open(PATH, fs=disk) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        position = begun_position(store.follow("s"))
        session.commit([LINES.append(1)])
        session.commit([ephemeral("op").list_of("n", "x").append(2)])
        for start in (position, None):
            follower = store.follow("s", start)
            with monkeypatch.context() as patch:
                patch.setattr("scopelog.follow._public", lambda event: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    follower.poll()
            events = follower.poll()
            assert elements(events) == [1, 2] if start else isinstance(events[0], Base)


# --- bounds ---------------------------------------------------------------------------------------


def test_a_thousand_lives_hold_no_file(store_path: Path) -> None:
    with Store.open(store_path, window_ms=60_000) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        follower = begun(store.follow("s"))
        fs = cast("OsFileSystem", store._store.fs)
        for number in range(1000):
            session.append(ephemeral(f"op-{number}").list_of("n", "x"), number)
        session.flush()
        open_before, held = len(os.listdir("/dev/fd")), len(fs.pool.held)
        events = drain(follower)
        assert len(events) == 1000 and sorted(cast("list[int]", elements(events))) == [*range(1000)]
        position = str(follower.position)
        session.commit([ephemeral(f"op-{number}").retire() for number in range(999)])
        resumed = drain(store.follow("s", position))
        assert resumed == drain(follower) and len(resumed) == 999
        assert len(cast("Position", follower.position).lives) == 1
        assert len(os.listdir("/dev/fd")) <= open_before + 2 and len(fs.pool.held) == held


def test_retirements_older_than_those_remembered(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scopelog_engine.lives._REMEMBERED", 2)
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        session.commit([ephemeral("op-0").list_of("n", "x").append("a")])
        (sidecar,) = (store_path / "s.session").glob("*.scope.zst")
        kept = sidecar.read_bytes()
        follower = begun(store.follow("s"))
        for number in range(5):
            session.commit([ephemeral(f"op-{number}").retire()])
        assert [type(event) for event in follower.poll()] == [Retired] * 5
        sidecar.write_bytes(kept)
        assert follower.poll() == [] and follower.poll() == []


# --- waiting --------------------------------------------------------------------------------------


def test_a_commit_wakes_whoever_waits(store_path: Path) -> None:
    """Without asking again and again: the first look after the wake finds it."""
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        follower = begun(store.follow("s"))
        assert follower.poll() == []
        looks = 0
        look = follower._fetch

        def counted() -> None:
            nonlocal looks
            looks += 1
            waits.set()
            look()

        waits = threading.Event()
        follower._fetch = counted  # type: ignore[method-assign]
        told: list[FollowEvent | None] = []
        waiter = threading.Thread(target=lambda: told.append(follower.next(30)))
        waiter.start()
        assert waits.wait(30)
        session.commit([LINES.append(1)])
        waiter.join(30)
        (event,) = told
        assert isinstance(event, Records) and elements([event]) == [1]
        assert looks <= 20


def test_a_read_wakes_nobody(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        watch = Watch(store._store.directory("s"))
        with store.reader("s") as reader:
            stored(reader)
        begun(store.follow("s"))
        assert not watch.wait(0)
        session.commit([LINES.append(1)])
        assert watch.wait(0) and not watch.wait(0)


def test_where_nobody_tells_the_pauses_grow() -> None:
    watch = Watch(PATH, tells=False)
    pauses = []
    for _ in range(7):
        pauses.append(watch.pause)
        watch.seen(False)
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
    watch.seen(True)
    assert watch.pause == 0.02 and watch.wait(None) and not watch.wait(0)
    watch.close()
    assert not watch.wait(None)


def test_a_timeout_and_a_close_end_the_wait(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([LINES.append(0)])
        with begun(store.follow("s")) as follower:
            assert follower.next(0) is None and follower.next(0.01) is None and not follower.ended
            told: list[list[FollowEvent]] = []
            waiter = threading.Thread(target=lambda: told.append([*follower]))
            waiter.start()
            follower.close()
            waiter.join(30)
            assert told == [[]] and follower.ended and follower.next() is None
            with pytest.raises(HandleClosed):
                follower.poll()
            follower.close()


def test_deletion_wakes_and_ends(store_path: Path) -> None:
    with Store.open(store_path) as store:
        with store.session("s") as session:
            session.commit([LINES.append(0)])
        follower = begun(store.follow("s"))
        told: list[list[FollowEvent]] = []
        waiter = threading.Thread(target=lambda: told.append([*follower]))
        waiter.start()
        store.delete_session("s")
        waiter.join(30)
        assert told == [[Deleted()]]


def test_for_tasks(store_path: Path) -> None:
    async def story() -> None:
        async with await AsyncStore.open(store_path) as store:
            session = await store.session("s")
            await session.commit([LINES.append(0)])
            async with await store.follow("s") as follower:
                event = await follower.next()
                assert isinstance(event, Base)
                event.reader.close()
                assert await follower.next(0.01) is None and await follower.poll() == []
                assert follower.position == event.position and follower.id == "s" and not follower.ended
                waiting = asyncio.create_task(follower.next())
                await asyncio.sleep(0)
                await session.commit([LINES.append(1)])
                told = await waiting
                assert told is not None and elements([told]) == [1]
                waiting = asyncio.create_task(follower.next())
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await session.close()
                rest = asyncio.create_task(_all(follower))
                await store.delete_session("s")
                assert await rest == [Deleted()]
            again = await store.session("t")
            await again.commit([LINES.append(0)])
            other = await store.follow("t")
            rest = asyncio.create_task(_all(other))
            await asyncio.sleep(0)
            await other.close()
            for event in await rest:
                assert isinstance(event, Base)
                event.reader.close()
            await again.close()

    async def _all(follower: object) -> list[FollowEvent]:
        return [event async for event in follower]  # type: ignore[attr-defined]

    asyncio.run(story())


# --- real processes -------------------------------------------------------------------------------

_WRITER = """
import sys
from scopelog import Store, ephemeral, list_of
store = Store.open(sys.argv[1], window_ms=1)
session = store.session("s")
number = int(sys.argv[2])
while True:
    op = ephemeral(f"op-{number % 5}")
    session.append(op.list_of("n", "x"), number)
    session.append(list_of("n", "lines"), number)
    if number % 7 == 0:
        session.commit([list_of("n", "lines").append(-number), op.retire()])
    number += 1
    if number % 50 == 0:
        session.flush()
        print(number, flush=True)
"""


def test_writers_that_are_killed_while_they_are_followed(store_path: Path) -> None:
    """Each is killed with -9 in mid-write, and the next one recovers: nothing that was seen goes back."""
    with Store.open(store_path) as store:
        with store.session("s") as session:
            session.commit([LINES.append("begin")])
        followers = [store.follow("s", durable=durable) for durable in (False, True)]
        receivers = [Receiver(), Receiver()]
        for life in range(3):
            child = subprocess.Popen(
                [sys.executable, "-c", _WRITER, str(store_path), str(1000 * life)], stdout=subprocess.PIPE
            )
            assert child.stdout is not None
            with child.stdout as reports:
                for _ in range(4):
                    assert reports.readline()
                    for follower, receiver in zip(followers, receivers, strict=True):
                        receiver.take(follower.poll())
                child.send_signal(signal.SIGKILL)
                child.wait()
            for which, receiver in enumerate(receivers):
                receiver.take(drain(followers[which]))
                assert receiver.restarts == []
                followers[which] = store.follow("s", receiver.position, durable=bool(which))
            with store.reader("s") as reader:
                assert receivers[0].records == stored(reader)
        with store.session("s"), store.reader("s") as reader:  # recovers, and proves it all as it closes
            there = stored(reader)
        for follower, receiver in zip(followers, receivers, strict=True):
            receiver.take(drain(follower))
            assert receiver.restarts == []
            assert receiver.records[""] == there[""]
        assert receivers[0].records == there
