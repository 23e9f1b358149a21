"""Totals of index frames: what a session holds is told without its history, and is what its history says."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scopelog import (
    Durability,
    InvalidAddress,
    InvalidElement,
    InvalidInput,
    LimitExceeded,
    ManualClock,
    Session,
    SessionInfo,
    Store,
    ephemeral,
    list_of,
    value,
)
from scopelog_engine import logfile
from scopelog_engine.codec import compress, decompress
from scopelog_engine.fs import OsFile, OsFileSystem
from scopelog_engine.glance import glance
from scopelog_engine.handle import Handle
from scopelog_engine.header import parse_header
from scopelog_engine.info import info_of
from scopelog_engine.layout import KIND_BATCH, KIND_INDEX, session_dir_name
from scopelog_engine.lines import SET, VALUE, Address
from scopelog_engine.stretch import Closed
from scopelog_engine.survey import survey
from scopelog_engine.tail import Tail
from scopelog_engine.totals import META_NAMESPACE
from scopelog_engine.view import LogView
from scopelog_engine.writer import Change

from .stores import CHAT, MAIN, build, frames_of, image_of, lay, next_frame, unsound

SEED = int(os.environ.get("SCOPELOG_SEED") or random.SystemRandom().randrange(2**32))
GOLDEN = Path(__file__).parent / "golden" / "format-1.0"
LISTS = [list_of("chat", name) for name in ("messages", "tools")]


@pytest.fixture
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "STRETCH_BYTES", 700)
    monkeypatch.setattr(logfile, "CLOSE_INDEX_BYTES", 400)


def counted(store: Store, session: str = CHAT) -> SessionInfo:
    """What the whole history says of a session: every frame and every record of it are looked at."""
    data = (Path(store.path) / session_dir_name(session) / "main.zst").read_bytes()
    frames = frames_of(data)
    batches = [frame for frame in frames if frame.kind == KIND_BATCH]
    highest = syncs = 0
    for frame in frames:
        syncs += frame.mark > highest
        highest = max(highest, frame.mark)
    with store.reader(session) as reader:
        records = [record for record in reader.records() if record.scope is None]
        found = {entry.key: entry.value for entry in reader.scan(META_NAMESPACE)}
    return SessionInfo(
        id=session,
        name=found.get("name"),
        labels=found.get("labels", {}),
        created=parse_header(data, "")[0].time,
        updated=records[-1].time if records else 0,
        commits=sum(frame.commits for frame in batches),
        elements=sum(record.op == "append" for record in records),
        frames=len(batches),
        syncs=syncs,
        bytes=frames[-1].end,
    )


def told(store: Store, session: str = CHAT) -> SessionInfo:
    """What is told without history, by a reader and by the catalogue alike."""
    with store.reader(session) as reader:
        info = reader.info()
    assert [one for one in store.catalogue() if one.id == session] == [info]
    return info


def write_at_random(session: Session, clock: ManualClock, rng: random.Random, steps: int) -> None:
    for _ in range(steps):
        clock.advance(rng.choice((0, 0.001, 2)))
        if rng.random() < 0.1:
            clock.set_wall_ms(clock.wall_ms() - 5000)  # time is data: it may go back
        match rng.randrange(8):
            case 0 | 1:
                session.commit([rng.choice(LISTS).append(rng.randbytes(rng.randrange(60)).hex())] * rng.randint(1, 4))
            case 2:
                for _ in range(rng.randint(1, 5)):
                    session.append(rng.choice(LISTS), rng.random(), rng.choice((None, "tag")))
            case 3:
                session.commit(
                    [value("chat", f"v{rng.randrange(5)}").set(rng.random()), LISTS[0].trim(rng.randrange(99))]
                )
            case 4:
                session.commit([ephemeral("op").retire(), LISTS[1].delete()], durability=Durability.POWER)
            case 5:
                session.commit([ephemeral("op").list_of("op", "steps").append(rng.random())])
            case 6:
                choices: list[dict[str, Any]] = [
                    {"name": f"name {rng.random()}"},
                    {"name": None},
                    {"labels": {"n": rng.random()}},
                    {"labels": None},
                    {"name": "both", "labels": {"a": [1, {"b": None}]}},
                ]
                session.describe(**rng.choice(choices))
            case _:
                session.flush(rng.choice((None, Durability.POWER)))


@pytest.mark.parametrize("level", list(Durability))
@pytest.mark.usefixtures("short_stretches")
def test_totals_are_what_the_history_says(store_path: Path, level: Durability) -> None:
    """However often the session is closed, left behind as by a kill, or opened again, and whatever it holds."""
    for trial in range(6):
        seed = f"{SEED}/{level.name}/{trial}"
        print(f"SCOPELOG_SEED={SEED} (this trial: {seed})")
        rng = random.Random(seed)
        clock = ManualClock()
        shutil.rmtree(store_path, ignore_errors=True)
        for _ in range(rng.randint(1, 4)):
            with Store.open(store_path, clock=clock, durability=level, window_ms=1) as store:
                with store.session(CHAT) as session:
                    write_at_random(session, clock, rng, rng.randrange(60))
                    session.flush()
                    if (store_path / MAIN).exists():
                        assert session.info() == told(store) == counted(store), seed
                    left_behind = image_of(store_path)
                if (store_path / MAIN).exists():
                    assert told(store) == counted(store), seed
                    assert unsound(store.check(deep=True)) == [], seed
            if rng.random() < 0.5:
                lay(store_path, left_behind)


def totals_in(path: Path) -> list[bool]:
    """Whether each index frame of a log says totals, oldest first."""
    data = path.read_bytes()
    frames = [frame for frame in frames_of(data) if frame.kind == KIND_INDEX]
    bodies = [Closed(f, data[f.payload_offset : f.payload_offset + f.payload_length]) for f in frames]
    return [body.totals is not None for body in bodies]


@pytest.mark.usefixtures("short_stretches")
def test_a_store_of_format_1_0_is_read_and_gone_on_with(store_path: Path) -> None:
    """Its index frames say no totals: readers count instead, and writers go on without rather than guess."""
    shutil.copytree(GOLDEN, store_path)
    main = store_path / "golden.session" / "main.zst"
    before = main.read_bytes()
    assert parse_header(before, "")[0].scopelog == (1, 0)
    clock = ManualClock(wall_ms=1_764_547_300_000)
    messages = list_of("chat", "messages")
    with Store.open(store_path, clock=clock) as store:
        assert store.check(deep=True) == []
        assert told(store, "golden") == counted(store, "golden")
        assert told(store, "golden")[4:8] == (1_764_547_206_000, 50, 72, 50)
        assert told(store, "plain") == counted(store, "plain")
        with store.session("golden") as session:
            assert session.recovery.clean and session.scopes() == ["op-1"]
            assert [e.element for e in session.read(messages, order="desc", limit=2)] == [[23], 23]
            assert [e.key for e in session.scan("chat", "v")] == ["v0", "v2", "v3", "v4"]
            for n in range(30):
                session.commit([messages.append(f"more {n}")])
                if n == 10:
                    session.describe(name="old log", labels={"format": "1.0"})
                assert session.info() == told(store, "golden") == counted(store, "golden")
        assert main.read_bytes().startswith(before)
        assert len(totals_in(main)) > 9 and not any(totals_in(main))
        assert told(store, "golden") == counted(store, "golden")
        assert store.check(deep=True) == []


@pytest.mark.usefixtures("short_stretches")
def test_totals_of_a_log_that_an_older_release_has_gone_on_with(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting begins where the last index frame with totals ends."""
    clock = ManualClock()
    rng = random.Random(f"{SEED}/mixed")
    print(f"SCOPELOG_SEED={SEED}")
    with Store.open(store_path, clock=clock, window_ms=1) as store:
        for older in (False, True, False):
            with monkeypatch.context() as patched, store.session(CHAT) as session:
                if older:
                    patched.setattr(Tail, "totals_when_closed", lambda *_: None)
                session.describe(name=f"older: {older}")
                write_at_random(session, clock, rng, 60)
                session.flush()
            clock.advance(1)
            assert told(store) == counted(store)
        found = totals_in(store_path / MAIN)
        assert found[0] and not found[-1] and sorted(found, reverse=True) == found


def test_a_glance_says_what_a_survey_says(tmp_path: Path) -> None:
    """Wherever the log ends, torn or not: reading in one pass is quicker, no other answer."""
    path = tmp_path / "log"

    def answers(data: bytes) -> tuple[object, object]:
        path.write_bytes(data)
        handle = Handle.open_readonly(OsFileSystem(), str(path))
        try:
            with handle.pin() as file:
                found = survey(file, str(path), judge=False)
            whole = LogView.of_survey(handle, str(path), found)
            looked, closing = glance(handle, str(path))
            assert bool(closing) == (found.clean and found.end == found.size)
            return (info_of(whole, "s"), whole.end), (info_of(looked, "s"), looked.end)
        finally:
            handle.close()

    for closed in (True, False):
        data = build(tmp_path / "store", closed=closed)[MAIN]
        whole = frames_of(data)
        assert len(whole) > 4
        for end in range(whole[0].end, whole[-1].end + 1):
            for tail in (b"", b"\0" * 30, data[end : end + 20][::-1]):
                one, other = answers(data[:end] + tail)
                assert one == other, (closed, end, tail)
        one, other = answers(data)
        assert one == other
    golden = (GOLDEN / "golden.session" / "main.zst").read_bytes()
    for end in range(frames_of(golden)[0].end, len(golden) + 1, 7):
        one, other = answers(golden[:end])
        assert one == other, end


class CountingFs(OsFileSystem):
    """The disk without an index; counts reads and what they bring."""

    memory_maps = False

    def __init__(self) -> None:
        self.reads = self.bytes = 0

    def open_readonly(self, path: str) -> OsFile:
        counts = self

        class Counted(OsFile):
            def pread(self, length: int, offset: int) -> bytes:
                data = super().pread(length, offset)
                counts.reads += 1
                counts.bytes += len(data)
                return data

        return Counted(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


@pytest.mark.usefixtures("short_stretches")
@pytest.mark.parametrize("closed", [True, False])
def test_what_a_session_holds_is_told_without_its_history(store_path: Path, closed: bool) -> None:
    """Named at its beginning, with thousands of commits since: a few reads, of its end and where it was named."""
    with (
        Store.open(store_path, clock=ManualClock()) as store,
        store.session(CHAT, durability=Durability.PROCESS) as session,
    ):
        session.describe(name="at the beginning", labels={"old": True})
        for n in range(3000):
            session.commit([LISTS[0].append([n])])
        session.flush(Durability.POWER)
        session.commit([LISTS[0].append("the last")])
        expected = session.info()
        image = image_of(store_path)
    if not closed:
        lay(store_path, image)
    assert len(totals_in(store_path / MAIN)) > 100
    fs = CountingFs()
    with Store.open(store_path, fs=fs) as store:
        fs.reads = fs.bytes = 0
        [info] = store.catalogue()
        assert info._replace(bytes=0, syncs=0) == expected._replace(bytes=0, syncs=0)
        assert (info.name, info.elements, info.commits) == ("at the beginning", 3001, 3002)
        assert fs.reads < 16 and fs.bytes < 256 * 1024


@pytest.mark.damages
@pytest.mark.usefixtures("short_stretches")
def test_check_finds_totals_that_are_wrong(store_path: Path) -> None:
    """An index frame that the chain accepts, and whose totals are not those of the log."""
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as session:
        for n in range(40):
            session.commit([LISTS[0].append(n)])
    data = (store_path / MAIN).read_bytes()
    last = [frame for frame in frames_of(data) if frame.kind == KIND_INDEX][-1]
    body = Closed(last, data[last.payload_offset : last.payload_offset + last.payload_length])
    assert body.totals is not None
    payload = data[last.payload_offset : last.payload_offset + last.payload_length]
    fields = msgspec.json.decode(decompress(payload, last.raw_length, 1 << 20))
    fields["t"][2] += 1
    raw = msgspec.json.encode(fields)
    before = data[: last.offset]
    forged = next_frame(
        before,
        raw,
        kind=KIND_INDEX,
        count=0,
        commits=0,
        first=last.first,
        last=last.last,
        mark=last.mark,
        payload=compress(raw),
    )
    (store_path / MAIN).write_bytes(before + forged)
    with Store.open(store_path) as store:
        [finding] = unsound(store.check(deep=True))
        assert (finding.severity, finding.offset, finding.reason) == ("corrupt", last.offset, "index")


# --- name and labels --------------------------------------------------------------------------------


def test_a_session_is_described(store_path: Path) -> None:
    clock = ManualClock()
    with Store.open(store_path, clock=clock) as store, store.session(CHAT) as session:
        assert session.info() == SessionInfo(CHAT, None, {}, 0, 0, 0, 0, 0, 0, 0)
        receipt = session.describe(name="a name", labels={"team": "x", "deep": {"a": [1, None]}})
        assert (receipt.first, receipt.last) == (1, 2)
        assert session.describe(labels={"only": "\ud800"}) == (3, 3)  # replaces them all; the name stays
        info = session.info()
        assert (info.name, info.labels, info.commits, info.elements) == ("a name", {"only": "\ud800"}, 2, 0)
        info.labels["mine"] = 1
        assert session.info().labels == {"only": "\ud800"}
        clock.advance(1)
        session.describe(name=None)
        assert session.info()[1:5] == (None, {"only": "\ud800"}, 1_764_547_200_000, 1_764_547_201_000)
        session.describe(name="n" * 1024, labels={})
        with store.reader(CHAT) as reader:
            assert reader.info() == session.info()
            assert (reader.info().name, reader.info().labels) == ("n" * 1024, {})
            assert [record.namespace for record in reader.records()] == [META_NAMESPACE] * 6


def test_descriptions_that_cannot_be_stored_are_refused_before_anything_is_touched(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session(CHAT) as session:
        session.commit([LISTS[0].append(1)])
        before, stats = image_of(store_path), session.stats()
        for arguments, error in (
            ({}, InvalidInput),
            ({"name": ""}, InvalidInput),
            ({"name": 1}, InvalidInput),
            ({"name": "\ud800"}, InvalidInput),
            ({"name": "é" * 513}, LimitExceeded),
            ({"labels": ["a"]}, InvalidInput),
            ({"labels": {1: 2}}, InvalidElement),
            ({"labels": {"a": {1, 2}}}, InvalidElement),
            ({"labels": {"a": "x" * 65536}}, LimitExceeded),
            ({"name": "fine", "labels": {"a": float("nan")}}, InvalidElement),
            ({"name": "fine", "durability": 1}, InvalidInput),
        ):
            with pytest.raises(error) as caught:
                session.describe(**arguments)
            assert type(caught.value) is error and caught.value.cause and caught.value.remedy
        assert image_of(store_path) == before and session.stats() == stats


def test_the_namespaces_of_scopelog_are_not_for_users(store_path: Path) -> None:
    for make in (value, list_of, ephemeral("op").value, ephemeral("op").list_of):
        with pytest.raises(InvalidAddress) as caught:
            make("scopelog.session", "name")
        assert "describe" in caught.value.remedy
        make("scopelog", "name")
        make("scopelogs.x", "name")
    with Store.open(store_path) as store, store.session(CHAT) as session:
        session.commit([value("scopelog", "free").set(1)])


def test_what_stands_in_a_reserved_namespace_already_is_read(store_path: Path) -> None:
    """A store that was written before those names were reserved, whatever it holds under them."""
    with Store.open(store_path) as store, store.session(CHAT) as session:
        session._writer.commit("", [Change(SET, Address(META_NAMESPACE, "name", VALUE), {"not": "a name"})])
        session._writer.commit("", [Change(SET, Address("scopelog.x", "y", VALUE), 7)])
        assert (session.info().name, session.info().labels) == (None, {})
        assert [entry.value for entry in session.scan("scopelog.x")] == [7]
        with store.reader(CHAT) as reader:
            assert [record.value for record in reader.records()] == [{"not": "a name"}, 7]
        session.describe(name="a name")
    with Store.open(store_path) as store:
        assert [info.name for info in store.catalogue()] == ["a name"]
