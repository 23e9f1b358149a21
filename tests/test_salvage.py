"""salvage: all that verifies on both sides of any damage, never a wrong byte, and a report of what is missing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest

from fuzz.campaign import Campaign
from fuzz.simdisk import SimCrash, SimDisk
from scopelog import (
    CorruptLog,
    Durability,
    InvalidInput,
    LogRecord,
    ManualClock,
    NewerFormat,
    NoSuchSession,
    Salvaged,
    ScopelogError,
    Session,
    Store,
    WriteFailed,
    ephemeral,
    list_of,
    value,
)
from scopelog.aio import AsyncStore
from scopelog_engine.fs import OsFile, OsFileSystem
from scopelog_engine.header import digest_of
from scopelog_engine.layout import (
    KIND_BATCH,
    KIND_INDEX,
    MAIN_FILE,
    TRASH_DIR,
    UNNAMED,
    scope_file_name,
    session_dir_name,
)

from .stores import (
    CHAT,
    DELTAS,
    MAIN,
    MESSAGES,
    SCOPE,
    STATE,
    TITLE,
    Image,
    build,
    flip,
    frames_of,
    header_of,
    image_of,
    lay,
    next_frame,
    records,
    sidecars_of,
    unsound,
)

pytestmark = pytest.mark.damages

NEW: Final = "rescued"
NEW_MAIN: Final = f"{session_dir_name(NEW)}/{MAIN_FILE}"
REMOVALS: Final = ("trim", "delete", "retire")


def new_image(path: Path) -> Image:
    return {name: data for name, data in image_of(path).items() if name.startswith(session_dir_name(NEW))}


def salvaged(path: Path, image: Image) -> tuple[Salvaged, list[LogRecord]]:
    """Lay the image, salvage it; the source is as it was, the new session is sound, opens and takes appends."""
    lay(path, image)
    with Store.open(path, clock=ManualClock()) as store:
        report = store.salvage(CHAT, NEW)
        found = records(store, NEW)
        assert not store.check(NEW, deep=True)
        with store.session(NEW) as session:
            assert not session.recovery
            assert records(store, NEW) == found
            before = session.stats()["sequence"]
            receipt = session.commit([MESSAGES.append("behind")])
            assert receipt.first > before >= max((record.seq for record in found), default=0)
            assert session.read(MESSAGES, order="desc", limit=1)[0].element == "behind"
    for name, data in image.items():
        assert (path / name).read_bytes() == data, f"{name} was changed"
    assert not [*(path / TRASH_DIR).iterdir()]
    return report, found


def accounted(report: Salvaged, path: Path, record: LogRecord) -> bool:
    """Whether the report says that this record may be missing."""
    return any(
        gap.after < record.seq and (gap.before == 0 or record.seq < gap.before)
        for gap in report.missing
        if os.path.basename(gap.path) == path.name
    )


def hold(
    report: Salvaged, found: list[LogRecord], original: dict[str, list[LogRecord]], doubtful: bool = False
) -> None:
    """Never a wrong byte: each record found is one of the original, or a removal made again where something is missing;
    each one that is not found is accounted for. ``original``: by file name."""
    by_scope = {(record.scope, record.seq): record for record in found}
    assert len(by_scope) == len(found)
    for name, wanted in original.items():
        timeless = any(os.path.basename(gap.path) == name and gap.offset == 0 for gap in report.missing)
        logs = [log for log in report.logs if os.path.basename(log.path) == name]
        left_out = any(log.left_out for log in logs)
        renamed = [log.scope for log in logs if log.scope and log.doubtful]
        for record in wanted:
            if renamed:
                record = record._replace(scope=renamed[0])
            got = by_scope.pop((record.scope, record.seq), None)
            if got is None:
                assert left_out or accounted(report, Path(name), record), f"{record} is missing"
            elif got.namespace == UNNAMED:
                assert got == record._replace(namespace=got.namespace, key=got.key, time=got.time), "all but its name"
                assert (got.key, got.kind) in {(entry.key, entry.kind) for entry in report.unnamed}
            elif got != (record._replace(time=got.time) if timeless else record):
                assert got.op in REMOVALS and accounted(report, Path(name), record), f"{got} is not {record}"
    for record in by_scope.values():
        assert record.op == "trim" and accounted(report, Path(MAIN_FILE), record), f"never written: {record}"


class Shape(NamedTuple):
    """A sound store: its files, and its records by file."""

    image: Image
    records: dict[str, list[LogRecord]]


def shape_of(path: Path, image: Image) -> Shape:
    with Store.open(lay(path, image), clock=ManualClock()) as store:
        found = records(store)
    by_file: dict[str, list[LogRecord]] = {MAIN_FILE: [r for r in found if r.scope is None]}
    for name in sidecars_of(image):
        by_file[os.path.basename(name)] = [r for r in found if r.scope == str(SCOPE.id)]
    return Shape(image, by_file)


@pytest.fixture(scope="module", params=["closed", "open"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shape:
    path = tmp_path_factory.mktemp("salvage") / "store"
    return shape_of(path, build(path, closed=request.param == "closed"))


def fill(session: Session, rng: Random, count: int) -> None:
    """Lists with trims and deletions, values, retirements: names come and go, in several stretches."""
    for n in range(count):
        text = rng.randbytes(rng.choice((20, 400, 2000))).hex()
        address = list_of("chat", f"list-{rng.randrange(6)}")
        writes = [address.append({"n": n, "text": text}), value("chat", f"value-{rng.randrange(6)}").set([n, text[:9]])]
        what = rng.randrange(12)
        if what == 0:
            writes.append(address.trim(int(session.stats()["sequence"]) - rng.randrange(30)))
        elif what == 1:
            writes.append(list_of("chat", f"list-{rng.randrange(6)}").delete())
        elif what == 2:
            writes.append(value("chat", f"value-{rng.randrange(6)}").delete())
        elif what == 3:
            writes.append(ephemeral(f"gone-{n % 3}").retire())
        session.commit(writes, durability=Durability.PROCESS)
        if n % 40 == 20:
            session.commit([DELTAS.append(text), STATE.set(n)])


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Shape:
    """Four stretches or so, reopened once: two epochs, and an index frame of a clean close."""
    path = tmp_path_factory.mktemp("salvage") / "store"
    rng = Random(7)
    with Store.open(path, clock=ManualClock()) as store:
        with store.session(CHAT) as session:
            fill(session, rng, 130)
        with store.session(CHAT) as session:
            fill(session, rng, 130)
            session.flush(Durability.POWER)
            image = {name: data for name, data in image_of(path).items() if not name.endswith("LOCK")}
    assert sum(frame.kind == KIND_INDEX for frame in frames_of(image[MAIN])) >= 3
    return shape_of(path, image)


# --- a sound session --------------------------------------------------------------------------------


def test_of_a_sound_session_nothing_is_missing(long: Shape, tmp_path: Path) -> None:
    report, found = salvaged(tmp_path / "store", long.image)
    assert not report and not report.missing and not report.lost
    assert sorted(found) == sorted(r for wanted in long.records.values() for r in wanted)
    assert sum(log.records for log in report.logs) == len(found)
    assert {log.scope for log in report.logs} == {"", "op-1"}
    assert report.last == long.records[MAIN_FILE][-1].seq


def test_answers_are_the_same(long: Shape, tmp_path: Path) -> None:
    with Store.open(lay(tmp_path / "store", long.image), clock=ManualClock()) as store:
        store.salvage(CHAT, NEW)
        with store.reader(CHAT) as before, store.reader(NEW) as after:
            for n in range(6):
                assert after.read(list_of("chat", f"list-{n}")) == before.read(list_of("chat", f"list-{n}"))
            assert after.scan("chat") == before.scan("chat")
            assert after.read(DELTAS) == before.read(DELTAS)
            assert after.scopes() == before.scopes()


def test_a_report_alone_writes_nothing(small: Shape, tmp_path: Path) -> None:
    path = lay(tmp_path / "store", small.image)
    with Store.open(path) as store:
        before = image_of(path)
        told = store.salvage(CHAT)
        assert image_of(path) == before and store.sessions() == [CHAT]
        done = store.salvage(CHAT, NEW)
    assert told.new is None
    assert (told.logs, told.missing, told.last) == (done.logs, done.missing, done.last)


def test_a_session_in_use_is_salvaged_as_far_as_it_is_written(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append("a")])
        session.commit([DELTAS.append("b")])
        assert not store.salvage(CHAT, NEW)
        session.commit([MESSAGES.append("c"), SCOPE.retire()])
        with store.reader(NEW) as reader:
            assert [e.element for e in reader.read(MESSAGES)] == ["a"]
            assert [e.element for e in reader.read(DELTAS)] == ["b"]


# --- every place -------------------------------------------------------------------------------------


@pytest.mark.fault(4, 5, 6, 7, 8, 9, rig="M")
def test_damage_anywhere_in_a_small_session(small: Shape, tmp_path: Path, campaign: Campaign) -> None:
    """Bits turned over, bytes zeroed and the file cut, at every place: what verifies comes along, the rest is told."""
    for name in (MAIN, *sidecars_of(small.image)):
        data = small.image[name]
        for at in range(0, min(len(data), frames_of(data)[-1].end + 40), 1 if campaign.full else 61):
            for changed in (flip(data, 8 * at + at % 8), data[:at] + b"\0" + data[at + 1 :], data[:at]):
                if changed == data:
                    continue
                try:
                    report, found = salvaged(tmp_path / "store", small.image | {name: changed})
                except CorruptLog:
                    assert name == MAIN and at < frames_of(data)[1].end and len(changed) < len(data)
                    continue
                hold(report, found, small.records)
                campaign.count()


@pytest.mark.fault(9, rig="M")
def test_one_bit_costs_one_frame_and_the_names_it_defines(long: Shape, tmp_path: Path, campaign: Campaign) -> None:
    """In a stretch that an index frame closes not even those."""
    data = long.image[MAIN]
    frames = frames_of(data)
    last_index = max(frame.offset for frame in frames if frame.kind == KIND_INDEX)
    wanted = long.records[MAIN_FILE]
    chosen = frames[1:] if campaign.full else frames[1::17]
    for frame in chosen:
        bit = 8 * frame.offset + Random(frame.offset).randrange(8 * frame.length)
        report, found = salvaged(tmp_path / "store", long.image | {MAIN: flip(data, bit)})
        hold(report, found, long.records)
        got = {record.seq for record in found if record.scope is None}
        gone = [r for r in wanted if r.seq not in got]
        if frame.kind != KIND_BATCH:
            assert not gone
        elif frame.offset < last_index:
            assert all(frame.first <= r.seq <= frame.last for r in gone)
        assert len(report.missing) == 1
        campaign.count()


@pytest.mark.fault(6, 7, 8, 9, rig="M")
def test_several_places_at_once(long: Shape, tmp_path: Path, campaign: Campaign) -> None:
    """Holes, garbage and cuts, also over index frames and the frames that define names behind them."""
    data = long.image[MAIN]
    frames = frames_of(data)
    starts = [frame.offset for frame in frames]
    for seed in campaign.seeds(12):
        rng = Random(seed)
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            at = rng.choice((rng.randrange(len(data)), rng.choice(starts)))
            length = rng.choice((1, 8, 512, 4096, 20_000, 65_536))
            fill_ = bytes(length) if rng.random() < 0.6 else rng.randbytes(length)
            changed[at : at + length] = fill_[: max(0, len(changed) - at)]
        if rng.random() < 0.2:
            del changed[rng.randrange(len(changed)) :]
        try:
            report, found = salvaged(tmp_path / "store", long.image | {MAIN: bytes(changed)})
        except CorruptLog:
            continue  # not one frame is left that could be told to be of this log
        hold(report, found, long.records)
        campaign.count()


def test_what_is_proved_and_what_is_not(small: Shape, tmp_path: Path) -> None:
    """Below a later durable mark it is damage; behind all marks nobody knows."""
    data = small.image[MAIN]
    frames = [frame for frame in frames_of(data) if frame.kind == KIND_BATCH]
    marked = max(frame.mark for frame in frames_of(data))
    for frame in (frames[1], frames[-1]):
        report, _ = salvaged(tmp_path / "store", small.image | {MAIN: flip(data, 8 * frame.end - 20)})
        (gap,) = report.missing
        assert gap.proved == (frame.offset < marked)
        assert (gap.offset, gap.reason) == (frame.offset, "checksum")


# --- names -------------------------------------------------------------------------------------------


def test_without_an_index_frame_later_writes_keep_names_that_were_defined_before(tmp_path: Path) -> None:
    path = tmp_path / "store"
    image = build(path, closed=False)
    second = frames_of(image[MAIN])[2]
    report, found = salvaged(path, image | {MAIN: flip(image[MAIN], 8 * second.end - 20)})
    assert [r.value for r in found if r.namespace == "chat" and r.key == "messages"][-1] is None
    assert [gap.reason for gap in report.missing] == ["checksum"]


def test_what_lost_its_name_is_told_not_guessed(tmp_path: Path) -> None:
    """The frame that defines both names of main is damaged, and no index frame repeats them."""
    path = tmp_path / "store"
    image = build(path, closed=False)
    first = frames_of(image[MAIN])[1]
    report, found = salvaged(path, image | {MAIN: flip(image[MAIN], 8 * first.end - 20)})
    main = [r for r in found if r.scope is None]
    assert {r.namespace for r in main} == {UNNAMED}
    (texts,) = {r.key for r in main if r.kind == "list"}
    digest = digest_of(header_of(image[MAIN]))
    assert [r.value for r in main if r.key == texts] == [
        {"role": "assistant", "text": "good morning"},
        ["the", "last"],
        None,
    ]
    assert [(entry.key, entry.kind, entry.number) for entry in report.unnamed] == [
        (f"{digest:04x}-{first.end}-1", "list", 3),
        (f"{digest:04x}-{first.end}-2", "value", 3),
    ]


def test_an_index_frame_gives_the_names_back(long: Shape, tmp_path: Path) -> None:
    """All frames of a closed stretch but the last two are overwritten."""
    data = long.image[MAIN]
    frames = frames_of(data)
    index = next(n for n, frame in enumerate(frames) if frame.kind == KIND_INDEX)
    start, end = frames[1].offset, frames[index - 2].offset
    report, found = salvaged(tmp_path / "store", long.image | {MAIN: data[:start] + bytes(end - start) + data[end:]})
    hold(report, found, long.records)
    kept = {frame.first for frame in frames[index - 2 : index]}
    assert kept <= {record.seq for record in found}
    assert report.lost and all(entry.number > 0 for entry in report.lost)
    assert not report.unnamed
    assert [gap.reason for gap in report.missing] == ["zeros"]


def test_names_are_not_carried_over_a_lost_index_frame(long: Shape, tmp_path: Path) -> None:
    """An index frame and the first frames behind it are lost: numbers begin anew there, and nobody says how."""
    data = long.image[MAIN]
    frames = frames_of(data)
    indexes = [n for n, frame in enumerate(frames) if frame.kind == KIND_INDEX]
    last = indexes[-1]
    start, end = frames[last].offset, frames[last + 8].offset
    report, found = salvaged(tmp_path / "store", long.image | {MAIN: data[:start] + bytes(end - start) + data[end:]})
    hold(report, found, long.records)
    assert report.unnamed and all(f"-{end}-" in entry.key for entry in report.unnamed)


# --- what was removed does not come back -------------------------------------------------------------


def test_removals_that_an_index_frame_tells_of_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    plain, gone, trimmed = list_of("c", "plain"), list_of("c", "gone"), list_of("c", "trimmed")
    with Store.open(path, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([gone.append("secret"), trimmed.append("old"), TITLE.set("deleted")])
        cut = session.commit([trimmed.append("older")]).last
        session.commit([DELTAS.append("of a scope that is over")])
        sidecar = {n: d for n, d in image_of(path).items() if "scope" in n}
        session.commit([gone.delete(), trimmed.trim(cut), TITLE.delete(), SCOPE.retire(), plain.append("x")])
        session.commit([plain.append("y" * 20_000 + str(Random(1).randbytes(20_000)))])
        session.commit([trimmed.append("new")])
    image = {n: d for n, d in image_of(path).items() if not n.endswith("LOCK")} | sidecar
    frames = frames_of(image[MAIN])
    removing = next(frame for frame in frames if frame.kind == KIND_BATCH and frame.last - frame.first == 4)
    report, _ = salvaged(path, image | {MAIN: flip(image[MAIN], 8 * removing.end - 20)})
    assert [(log.scope, bool(log.left_out)) for log in report.logs] == [("", False), ("op-1", True)]
    assert [(entry.key, entry.number) for entry in report.lost] == [("plain", 1)]
    with Store.open(path) as store, store.reader(NEW) as reader:
        assert reader.read(gone) == [] and reader.get(TITLE) is None and reader.scopes() == []
        assert [e.element for e in reader.read(trimmed)] == ["new"]
        assert len(reader.read(plain)) == 1


def test_a_scope_whose_retirement_may_be_lost_is_kept_and_doubted(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Store.open(path, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append("a")])
        session.commit([DELTAS.append("partial")])
        sidecar = {n: d for n, d in image_of(path).items() if "scope" in n}
        session.commit([MESSAGES.append("b"), SCOPE.retire()])
        session.commit([MESSAGES.append("c")])
        image = {n: d for n, d in image_of(path).items() if not n.endswith("LOCK")} | sidecar
    frame = [f for f in frames_of(image[MAIN]) if f.kind == KIND_BATCH][1]
    report, _ = salvaged(path, image | {MAIN: flip(image[MAIN], 8 * frame.end - 20)})
    (log,) = [log for log in report.logs if log.scope]
    assert log.doubtful and not log.left_out and log.records == 1


# --- whole files -------------------------------------------------------------------------------------


def test_a_main_log_without_its_header(tmp_path: Path) -> None:
    path = tmp_path / "store"
    image = build(path, closed=True)
    data = image[MAIN]
    report, found = salvaged(path, image | {MAIN: bytes(40) + data[40:]})
    assert report.time_lost and report.missing[0].reason == "header"
    assert next(r.value for r in found if r.key == "messages") == {"role": "user", "text": "hello"}
    assert [r.value for r in found if r.scope == "op-1" and r.key == "deltas"] == ["d0", "d1", "d2", "d3"]


def test_a_compacted_main_log_without_its_header_is_known_by_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Store.open(path, clock=ManualClock()) as store, store.session(CHAT) as session:
        for n in range(3):
            session.commit([TITLE.set(n)])
            session.compact()
        session.commit([MESSAGES.append("behind")])
    image = image_of(path)
    _, found = salvaged(path, image | {MAIN: bytes(20) + image[MAIN][20:]})
    assert [r.value for r in found] == [2, "behind"]


def test_a_session_of_which_nothing_verifies_is_refused(tmp_path: Path) -> None:
    image = build(tmp_path / "store", closed=True)
    path = lay(tmp_path / "store", {name: data if name == "store.zst" else bytes(900) for name, data in image.items()})
    with Store.open(path) as store:
        with pytest.raises(CorruptLog):
            store.salvage(CHAT, NEW)
        assert store.sessions() == [CHAT]
    assert not [*(path / TRASH_DIR).iterdir()]


@pytest.mark.parametrize("main", [b"", bytes(900), b"garbage" * 99])
def test_scopes_of_a_main_log_of_which_nothing_verifies(main: bytes, tmp_path: Path) -> None:
    path = tmp_path / "store"
    report, found = salvaged(path, build(path, closed=False) | {MAIN: main})
    assert report.missing[0].reason == "header" and report.time_lost
    assert [r.value for r in found if r.key == "deltas"] == ["d0", "d1", "d2", "d3"]
    assert [bool(log.doubtful) for log in report.logs] == [True]


def test_scopes_without_a_main_log(tmp_path: Path) -> None:
    path = tmp_path / "store"
    image = build(path, closed=False)
    del image[MAIN]
    lay(path, image)
    with Store.open(path) as store:
        report = store.salvage(CHAT, NEW)
        assert report.missing[0].reason == "missing"
        with store.reader(NEW) as reader:
            assert [e.element for e in reader.read(DELTAS)] == ["d0", "d1", "d2", "d3"]


def test_a_scope_without_its_header_gets_another_id(tmp_path: Path) -> None:
    path = tmp_path / "store"
    image = build(path, closed=False)
    (name,) = sidecars_of(image)
    report, found = salvaged(path, image | {name: bytes(20) + image[name][20:]})
    (log,) = [log for log in report.logs if log.scope]
    first = int(os.path.basename(name).split(".")[0])
    assert log.scope == f"salvaged-{first}" and log.doubtful
    assert [r.value for r in found if r.scope == log.scope and r.key == "deltas"] == ["d0", "d1", "d2", "d3"]


@pytest.mark.fault(31, rig="M")
def test_a_copied_sidecar_comes_along_once_and_a_foreign_one_not_at_all(tmp_path: Path, campaign: Campaign) -> None:
    path = tmp_path / "store"
    image = build(path, closed=False)
    (name,) = sidecars_of(image)
    foreign = build(path, closed=False, session="other")
    (other,) = sidecars_of(foreign)
    folder = session_dir_name(CHAT)
    copies = {
        f"{folder}/{scope_file_name(77)}": image[name],
        f"{folder}/{scope_file_name(78)}": foreign[other],
        f"{folder}/{scope_file_name(79)}": b"",
    }
    report, found = salvaged(path, image | copies)
    assert [r.value for r in found if r.key == "deltas"] == ["d0", "d1", "d2", "d3"]
    assert {os.path.basename(log.path): bool(log.left_out) for log in report.logs if log.path != str(path / MAIN)} == {
        os.path.basename(name): False,
        scope_file_name(77): True,
        scope_file_name(78): True,
        scope_file_name(79): True,
    }
    campaign.count(3)


def test_a_session_of_another_store_is_taken_as_its_header_says(tmp_path: Path) -> None:
    image = build(tmp_path / "a", closed=True)
    other = build(tmp_path / "b", closed=True)
    report, found = salvaged(tmp_path / "store", image | {n: d for n, d in other.items() if n.startswith("chat")})
    assert "another store" in report.logs[0].doubtful
    assert len(found) == 13


def test_a_log_of_a_later_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    image = build(path, closed=True)
    golden = Path(__file__).parent / "golden"
    assert golden.exists()
    with Store.open(lay(path, image)) as store, pytest.raises(NoSuchSession):
        store.salvage("nobody", NEW)
    assert issubclass(NewerFormat, ScopelogError)


def test_lines_of_a_later_release_come_along(tmp_path: Path) -> None:
    """Lines of an unknown kind and foreign frames as they are; unknown items of a known line are counted."""
    path = tmp_path / "store"
    image = build(path, closed=True)
    data = image[MAIN]
    foreign = b"\x5b\x2a\x4d\x18\x05\x00\x00\x00other"
    later = next_frame(data, b'{"later":1}\n[%d,5,["?",1],[1,"x"]]\n' % (frames_of(data)[-1].last + 1), count=2)
    data += later
    data += next_frame(data, b'{"alone":2}\n', count=1)
    data += foreign
    tail = next_frame(data, b"[%d,9,[1,{}]]\n" % (frames_of(data)[-1].last + 1))
    report, found = salvaged(path, image | {MAIN: data + tail})
    assert report.unknown == 1 and bool(report)
    assert [r.value for r in found if r.scope is None][-2:] == ["x", {}]
    text = new_image(path)[NEW_MAIN]
    assert foreign in text
    assert b'{"later":1}' in unpacked(text) and b'{"alone":2}' in unpacked(text)


def test_frames_of_the_past_behind_a_hole_are_left_out(tmp_path: Path) -> None:
    """Sound frames that cannot have followed what stands before them: of lower sequences, or of an older epoch."""
    path = tmp_path / "store"
    image = build(path, closed=True)
    data = image[MAIN] + b"junk"
    for changes in ({"first": 2, "last": 2}, {"epoch": 0}):
        data += next_frame(image[MAIN], b'[2,5,[1,"past"]]\n', offset=len(data), **changes)
    data += next_frame(image[MAIN], b'[%d,9,[1,"now"]]\n' % (frames_of(image[MAIN])[-1].last + 1), offset=len(data))
    report, found = salvaged(path, image | {MAIN: data})
    assert "past" not in [r.value for r in found]
    assert [r.value for r in found if r.scope is None][-1] == "now"
    assert len(report.missing) == 1


def test_a_frame_of_another_history_names_nothing(tmp_path: Path) -> None:
    """It stands right behind the last one, sound, but does not follow it: numbers may mean something else there."""
    path = tmp_path / "store"
    image = build(path, closed=True)
    data = image[MAIN]
    sequence = frames_of(data)[-1].last + 1
    report, found = salvaged(path, image | {MAIN: data + next_frame(data, b'[%d,5,[1,"x"]]\n' % sequence, previous=7)})
    (strange,) = [r for r in found if r.namespace == UNNAMED]
    assert strange.value == "x" and [gap.reason for gap in report.missing] == ["chain"]
    assert strange.key == report.unnamed[0].key


def unpacked(data: bytes) -> bytes:
    from scopelog_engine.codec import decompress

    out = b""
    for frame in frames_of(data):
        if frame.kind == KIND_BATCH:
            out += decompress(data[frame.payload_offset : frame.end], frame.raw_length, 1 << 20)
    return out


# --- disks -------------------------------------------------------------------------------------------


class BadPlace(OsFile):
    """A file of which one block cannot be read."""

    __slots__ = ()
    bad = range(0)

    def pread(self, length: int, offset: int) -> bytes:
        if offset < self.bad.stop and offset + length > self.bad.start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(length, offset)


@pytest.mark.fault(20, rig="M")
def test_a_place_that_the_disk_cannot_read_is_stepped_over(
    long: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, campaign: Campaign
) -> None:
    path = lay(tmp_path / "store", long.image)
    fs = OsFileSystem()
    plain = fs.open_readonly
    for block in range(0, len(long.image[MAIN]) // 4096, 3 if campaign.full else 20):
        monkeypatch.setattr(BadPlace, "bad", range(block * 4096, (block + 1) * 4096))

        def opening(name: str) -> object:
            return BadPlace(os.open(name, os.O_RDONLY)) if name == str(path / MAIN) else plain(name)

        monkeypatch.setattr(fs, "open_readonly", opening)
        with Store.open(path, fs=fs, clock=ManualClock()) as store:
            report = store.salvage(CHAT, NEW)
            found = records(store, NEW)
            store.delete_session(NEW)
        hold(report, found, long.records)
        assert "read" in {gap.reason for gap in report.missing} or (block == 0 and report.time_lost)
        assert len(found) > 300
        campaign.count()


def test_into_another_store(small: Shape, tmp_path: Path) -> None:
    path = lay(tmp_path / "store", small.image)
    with Store.open(path) as store, Store.open(tmp_path / "safe") as safe:
        before = image_of(path)
        store.salvage(CHAT, CHAT, into=safe)
        assert image_of(path) == before
        assert safe.sessions() == [CHAT] and not safe.check(deep=True)
        assert sorted(records(safe)) == sorted(r for wanted in small.records.values() for r in wanted)
        with pytest.raises(InvalidInput):
            store.salvage(CHAT, CHAT)
        with pytest.raises(InvalidInput):
            store.salvage(CHAT, CHAT, into=safe)
        with pytest.raises(InvalidInput):
            store.salvage(CHAT, NEW, into=str(safe))  # type: ignore[arg-type]


async def on_a_loop(path: Path) -> Salvaged:
    async with await AsyncStore.open(path) as store:
        return await store.salvage(CHAT, NEW)


def test_from_a_loop(small: Shape, tmp_path: Path) -> None:
    import asyncio

    assert not asyncio.run(on_a_loop(lay(tmp_path / "store", small.image)))


def disk_with(image: Image) -> SimDisk:
    disk = SimDisk()
    for name, data in image.items():
        disk.write_file(f"/data/store/{name}", data)
    return disk


def damaged(image: Image) -> Image:
    frame = frames_of(image[MAIN])[2]
    return image | {MAIN: flip(image[MAIN], 8 * frame.end - 20)}


def steps_of(disk: SimDisk) -> int:
    with Store.open("/data/store", fs=disk, clock=ManualClock()) as store:
        before = disk.steps
        store.salvage(CHAT, NEW)
        return disk.steps - before


@pytest.mark.fault(1, 13, rig="S")
def test_a_crash_leaves_the_new_session_whole_or_not_at_all(small: Shape, campaign: Campaign) -> None:
    image = damaged(small.image)
    for step in range(1, steps_of(disk_with(image)) + 1):
        for mode in ("before", "after"):
            disk = disk_with(image)
            with Store.open("/data/store", fs=disk, clock=ManualClock()) as store:
                disk.crash_at(disk.steps + step, mode)
                with pytest.raises(SimCrash):
                    store.salvage(CHAT, NEW)
                    raise SimCrash  # the last step that has no other behind it
            for left in (disk.kill(), *disk.crash_states(12, seed=step)):
                with Store.open("/data/store", fs=left, clock=ManualClock()) as store:
                    found = store.sessions()
                    assert found in ([CHAT], [CHAT, NEW])
                    if NEW in found:
                        assert not unsound(store.check(NEW, deep=True))
                        assert len(records(store, NEW)) > 5
                    else:
                        store.salvage(CHAT, NEW)
                    names = left.list_dir("/data/store/trash") if left.exists("/data/store/trash") else []
                    assert not names, "what was under way is swept at the next open"
                campaign.count()


@pytest.mark.fault(15, 17, 19, rig="S")
def test_a_disk_that_fails_is_a_typed_error_and_leaves_nothing(small: Shape, campaign: Campaign) -> None:
    image = damaged(small.image)
    for op in ("create", "pwrite", "sync", "rename", "sync_dir", "mkdir"):
        for nth in range(1, 20):
            disk = disk_with(image)
            with Store.open("/data/store", fs=disk, clock=ManualClock()) as store:
                disk.fail(op, nth, errno.ENOSPC if op == "pwrite" else errno.EIO)
                try:
                    store.salvage(CHAT, NEW)
                except WriteFailed:
                    disk.heal()
                else:
                    assert nth > 1
                    break
                if store.sessions() == [CHAT]:
                    assert not disk.list_dir("/data/store/trash") if disk.exists("/data/store/trash") else True
                    assert not store.salvage(CHAT, NEW).lost
                campaign.count()


def test_whoever_opens_the_store_does_not_sweep_what_is_under_way(
    small: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lay(tmp_path / "store", small.image)
    fs = OsFileSystem()
    plain = fs.rename

    def rename(source: str, target: str) -> None:
        Store.open(path).close()  # as another process might
        plain(source, target)

    monkeypatch.setattr(fs, "rename", rename)
    with Store.open(path, fs=fs) as store:
        store.salvage(CHAT, NEW)
        assert store.sessions() == [CHAT, NEW]
