"""Damage far below the end of a long log: open, tail reads and appends go on; the read that meets it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import msgspec
import pytest

from scopelog import (
    CorruptLog,
    Durability,
    Element,
    LogRecord,
    ManualClock,
    Session,
    SessionReader,
    Store,
    list_of,
    value,
)
from scopelog_engine.check import worst
from scopelog_engine.codec import compress, decompress
from scopelog_engine.frame import Frame, encode_frame
from scopelog_engine.header import digest_of, parse_header
from scopelog_engine.layout import KIND_BATCH, KIND_INDEX
from scopelog_engine.lines import Address, Record
from scopelog_engine.tail import Tail
from scopelog_engine.totals import Totals
from scopelog_engine.view import LogView

from .stores import CHAT, MAIN, MESSAGES, Image, flip, frames_of, image_of, lay, unsound

OLD = value("old", "value")
OTHER = list_of("old", "other")
COUNT = 700
ORDERS: Final[tuple[Literal["asc", "desc"], ...]] = ("asc", "desc")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Cleanly closed, more than five stretches of 64 KB; a value and a second list stand in the first one alone."""
    path = tmp_path_factory.mktemp("long") / "store"
    rng = Random(5)
    with Store.open(path, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([OLD.set("first"), OTHER.append("only")])
        for number in range(COUNT):
            session.append(MESSAGES, [number, rng.randbytes(300).hex()])
            session.flush()
    image = {name: data for name, data in image_of(path).items() if not name.endswith("LOCK")}
    assert len([f for f in frames_of(image[MAIN]) if f.kind == KIND_INDEX]) >= 4
    return image


def numbers(elements: list[Element]) -> list[int]:
    return [element.element[0] for element in elements]


def failures(handle: Session | SessionReader) -> Iterator[CorruptLog]:
    """What the reads say that must meet damage in an old stretch."""
    for order in ORDERS:
        with pytest.raises(CorruptLog) as caught:
            handle.read(MESSAGES, order=order)
        yield caught.value
    if isinstance(handle, SessionReader):
        with pytest.raises(CorruptLog) as caught:
            list(handle.records())
        yield caught.value


@pytest.mark.damages
@pytest.mark.parametrize("kind", [KIND_BATCH, KIND_INDEX])
@pytest.mark.parametrize("part", ["envelope", "payload"])
@pytest.mark.fault(9, rig="M")
def test_flip_in_an_old_stretch(kind: int, part: str, long: Image, store_path: Path) -> None:
    frames = frames_of(long[MAIN])
    indexes = [number for number, frame in enumerate(frames) if frame.kind == KIND_INDEX]
    number = indexes[1] if kind == KIND_INDEX else indexes[0] + 20
    frame, before = frames[number], frames[number - 1]
    at = frame.offset + 12 if part == "envelope" else frame.payload_offset + frame.payload_length // 2
    damaged = flip(long[MAIN], 8 * at + 3)
    path = lay(store_path, long | {MAIN: damaged}) / MAIN
    with Store.open(store_path, clock=ManualClock()) as store:
        findings = unsound(store.check())
        assert worst(findings) == 2
        assert (findings[0].path, findings[0].offset, findings[0].sequence) == (str(path), frame.offset, before.last)
        for round_ in range(2):  # also after a clean close and another open
            with store.session(CHAT) as session, store.reader(CHAT) as reader:
                assert not session.recovery
                for handle in (session, reader):
                    tail = numbers(handle.read(MESSAGES, order="desc", limit=50))
                    assert tail == sorted(tail, reverse=True) and tail[-1] > COUNT - 51
                    for error in failures(handle):
                        assert (error.path, error.offset) == (str(path), frame.offset)
                        assert 0 < error.sequence <= before.last  # a good one; the last where that is at hand
                    if round_ == 0 and kind == KIND_INDEX:  # what stands behind the damage is not taken for absent
                        with pytest.raises(CorruptLog):
                            handle.get(OLD)
                    elif round_ == 0:
                        assert handle.get(OLD) == "first"
                session.commit([MESSAGES.append([COUNT + round_, ""]), OLD.set(round_)])
                assert session.get(OLD) == round_
                assert numbers(session.read(MESSAGES, order="desc", limit=2)) == [COUNT + round_, COUNT + round_ - 1]
        with store.reader(CHAT) as reader:
            good: list[LogRecord] = []
            with pytest.raises(CorruptLog):
                good.extend(reader.records())
            assert [record.seq for record in good] == list(range(1, before.last + 1))
    assert path.read_bytes()[: len(damaged) - 100] == damaged[:-100]


@pytest.mark.damages
@pytest.mark.fault(8, rig="M")
def test_hole_in_an_old_stretch(long: Image, store_path: Path) -> None:
    """A page of zeros below every durable mark."""
    frames = frames_of(long[MAIN])
    frame = frames[40]
    start = frame.offset + 10
    damaged = long[MAIN][:start] + bytes(4096) + long[MAIN][start + 4096 :]
    with Store.open(lay(store_path, long | {MAIN: damaged}), clock=ManualClock()) as store:
        findings = unsound(store.check())
        assert worst(findings) == 2 and findings[0].offset == frame.offset
        with store.session(CHAT) as session:
            assert numbers(session.read(MESSAGES, order="desc", limit=10)) == list(range(COUNT - 1, COUNT - 11, -1))
            with pytest.raises(CorruptLog):
                session.read(MESSAGES)
            with pytest.raises(CorruptLog):
                session.read(OTHER)
            session.commit([MESSAGES.append([COUNT, ""])])


@pytest.mark.damages
@pytest.mark.fault(8, rig="M")
def test_damage_behind_the_newest_index_frame_is_met_at_open(long: Image, store_path: Path) -> None:
    frames = frames_of(long[MAIN])
    newest = max(number for number, frame in enumerate(frames) if frame.kind == KIND_INDEX)
    assert newest < len(frames) - 3, "the log was closed with an index frame at its end"
    frame = frames[newest + 1]
    damaged = flip(long[MAIN], 8 * frame.payload_offset)
    with Store.open(lay(store_path, long | {MAIN: damaged}), clock=ManualClock()) as store:
        with pytest.raises(CorruptLog) as caught:
            store.session(CHAT)
        assert (caught.value.offset, caught.value.sequence) == (frame.offset, frames[newest].last)
    assert image_of(store_path)[MAIN] == damaged


def reindexed(data: bytes, frame: Frame, body: bytes) -> bytes:
    """The log with the body of one index frame replaced and the frames behind it chained to it, where lengths allow."""
    digest = digest_of(parse_header(data, "")[0])
    forged, checksum = encode_frame(
        KIND_INDEX,
        digest=digest,
        previous=frame.previous,
        epoch=frame.epoch,
        first=frame.first,
        last=frame.last,
        commits=0,
        raw_length=len(body),
        payload=compress(body),
        mark=frame.mark,
        offset=frame.offset,
    )
    out = data[: frame.offset] + forged
    previous = checksum
    for later in frames_of(data):
        if later.offset <= frame.offset:
            continue
        payload = data[later.payload_offset : later.payload_offset + later.payload_length]
        if later.kind == KIND_INDEX:
            moved = msgspec.json.decode(decompress(payload, later.raw_length, 2**26))
            shift = len(out) - later.offset
            moved["s"] += shift
            moved["p"] += shift if moved["p"] > frame.offset else 0
            raw = msgspec.json.encode(moved)
            payload, raw_length = compress(raw), len(raw)
        else:
            raw_length = later.raw_length
        chained, previous = encode_frame(
            later.kind,
            digest=digest,
            previous=previous,
            epoch=later.epoch,
            first=later.first,
            last=later.last,
            commits=later.commits,
            raw_length=raw_length,
            payload=payload,
            mark=len(out) if later.mark == later.offset else -1,
            offset=len(out),
        )
        out += chained
    return out


LIES: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "no JSON": lambda _: b"index",
    "an empty object": lambda _: b"{}",
    "a shorter stretch": lambda body: _changed(body, n=body["n"][:-1]),
    "a negative length": lambda body: _changed(body, n=[-body["n"][0], *body["n"][1:]]),
    "an earlier start": lambda body: _changed(body, s=1),
    "a loop": lambda body: _changed(body, p=body["s"] + sum(body["n"])),
    "a stretch before it that is none": lambda body: _changed(body, p=max(body["s"] - 40, 1)),
    "a value in a frame that is not there": lambda body: _changed(body, v=[[1, "old", "value", 9999, 3, False]]),
}


def _changed(body: dict[str, Any], **changes: object) -> bytes:
    return msgspec.json.encode(body | changes)


@pytest.mark.damages
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.fault(30, rig="M")
def test_index_frame_whose_checksum_holds_but_whose_body_lies(lie: str, long: Image, store_path: Path) -> None:
    data = long[MAIN]
    frame = [found for found in frames_of(data) if found.kind == KIND_INDEX][1]
    payload = data[frame.payload_offset : frame.payload_offset + frame.payload_length]
    body = msgspec.json.decode(decompress(payload, frame.raw_length, 2**26))
    forged = reindexed(data, frame, LIES[lie](body))
    with Store.open(lay(store_path, long | {MAIN: forged}), clock=ManualClock()) as store:
        findings = unsound(store.check())
        assert worst(findings) == 2 and frame.offset in {finding.offset for finding in findings}
        with store.session(CHAT) as session:
            assert numbers(session.read(MESSAGES, order="desc", limit=5)) == list(range(COUNT - 1, COUNT - 6, -1))
            with pytest.raises(CorruptLog):
                session.read(MESSAGES)
            session.commit([MESSAGES.append([COUNT, ""])])


@pytest.mark.damages
@pytest.mark.parametrize("lie", ["two frames as one", "a stretch left out"])
def test_index_frame_that_passes_by_what_is_there(lie: str, long: Image, store_path: Path) -> None:
    """Its lengths add up, but two of them are told as one: whoever read the first frame and no further would pass by
    the second. Or it names the index frame before the one before it. A deep check held everything against the stretch
    but the lengths, and found nothing in a log that could not be read."""
    data = long[MAIN]
    frames = [found for found in frames_of(data) if found.kind == KIND_INDEX]
    frame = frames[-1]
    payload = data[frame.payload_offset : frame.payload_offset + frame.payload_length]
    body = msgspec.json.decode(decompress(payload, frame.raw_length, 2**26))
    changes = {"n": [sum(body["n"][:2]), *body["n"][2:]]} if lie == "two frames as one" else {"p": frames[-3].offset}
    forged = reindexed(data, frame, _changed(body, **changes))
    with Store.open(lay(store_path, long | {MAIN: forged}), clock=ManualClock()) as store, store.reader(CHAT) as reader:
        with pytest.raises(CorruptLog) as caught:
            reader.read(MESSAGES)
        assert caught.value.offset == (body["s"] if lie == "two frames as one" else frames[-3].offset)
        assert frame.offset in {finding.offset for finding in unsound(store.check(deep=True))}


@pytest.mark.damages
@pytest.mark.parametrize("lie", ["lists", "values", "crc"])
def test_check_holds_every_index_frame_against_its_stretch(lie: str, long: Image, store_path: Path) -> None:
    data = long[MAIN]
    frame = next(found for found in frames_of(data) if found.kind == KIND_INDEX)
    payload = data[frame.payload_offset : frame.payload_offset + frame.payload_length]
    body = msgspec.json.decode(decompress(payload, frame.raw_length, 2**26))
    change: dict[str, object] = {"lists": {"l": body["l"][:1]}, "values": {"v": []}, "crc": {"c": body["c"] ^ 1}}[lie]
    with Store.open(lay(store_path, long), clock=ManualClock()) as store:
        assert store.check() == []
    with Store.open(lay(store_path, long | {MAIN: reindexed(data, frame, _changed(body, **change))})) as store:
        findings = unsound(store.check())
        assert worst(findings) == 2 and findings[0].reason == "index" and findings[0].offset == frame.offset


@pytest.mark.parametrize("place", [3, 120, 400])
@pytest.mark.fault(7, rig="M")
def test_hole_before_index_frames_that_no_mark_covers(place: int, store_path: Path) -> None:
    """A long un-synced tail: index frames behind the hole are no way around it."""
    store = Store.open(store_path, clock=ManualClock(), durability=Durability.PROCESS)
    with store.session(CHAT) as session:
        for number in range(500):
            session.append(MESSAGES, [number, Random(number).randbytes(200).hex()])
            session.flush()
        image = image_of(store_path)
    whole = image[MAIN]
    frames = frames_of(whole)
    assert len([frame for frame in frames if frame.kind == KIND_INDEX]) >= 2
    hole = [frame for frame in frames if frame.kind == KIND_BATCH][place]
    damaged = whole[: hole.offset] + bytes(hole.length) + whole[hole.end :]
    image = {name: data for name, data in image.items() if not name.endswith("LOCK")} | {MAIN: damaged}
    with Store.open(lay(store_path, image), clock=ManualClock()) as store:
        assert worst(store.check()) == 1
        with store.session(CHAT) as session:
            [torn] = session.recovery.torn
            assert (torn.offset, torn.length, torn.corrupt) == (hole.offset, len(whole) - hole.offset, False)
            assert Path(torn.kept).read_bytes() == damaged[hole.offset :]
            assert numbers(session.read(MESSAGES)) == list(range(place))
            assert session.append(MESSAGES, [place, ""]) > 500  # numbers of complete frames that were cut stay used
        with store.session(CHAT) as session:
            assert not session.recovery
            assert numbers(session.read(MESSAGES)) == list(range(place + 1))


@pytest.mark.damages
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.fault(8, 9, 10, rig="M")
def test_check_finds_the_same_damage_whether_it_decodes_or_not(seed: int, long: Image, store_path: Path) -> None:
    """A bit anywhere below the newest index frame: the checksums of the stretches tell that something is wrong, the
    frames what and where. One flip, one zeroed run, one frame swapped with the next a seed."""
    rng = Random(seed)
    frames = frames_of(long[MAIN])
    last = [frame for frame in frames if frame.kind == KIND_INDEX][-1]
    data = bytearray(long[MAIN])
    where = rng.randrange(frames[0].end, last.end)
    if seed % 3 == 0:
        data[where] ^= 1 << rng.randrange(8)
    elif seed % 3 == 1:
        stop = min(where + rng.choice((1, 64, 4096)), last.end)
        if not any(data[where:stop]):
            data[where] = 1
        data[where:stop] = bytes(stop - where)
    else:
        number = rng.randrange(1, len(frames) - 4)
        one, two = frames[number], frames[number + 1]
        data[one.offset : two.end] = data[two.offset : two.end] + data[one.offset : one.end]
    assert bytes(data) != long[MAIN]
    lay(store_path, long | {MAIN: bytes(data)})
    with Store.open(store_path) as store:
        quick, deep = unsound(store.check()), unsound(store.check(deep=True))
    assert worst(quick) == 2
    assert [(f.severity, f.offset, f.reason) for f in quick] == [(f.severity, f.offset, f.reason) for f in deep]


def test_check_decodes_nothing_that_a_stretch_vouches_for(
    long: Image, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gigabyte is checked in a second or two, not in two minutes, because it is not decoded."""
    lay(store_path, long)
    decoded: list[int] = []
    decode_frame = LogView.decode_frame

    def counting(view: LogView, frame: Frame, payload: bytes, numbers: dict[int, Address]) -> list[Record]:
        decoded.append(frame.offset)
        return decode_frame(view, frame, payload, numbers)

    monkeypatch.setattr(LogView, "decode_frame", counting)
    newest = [frame for frame in frames_of(long[MAIN]) if frame.kind == KIND_INDEX][-1]
    with Store.open(store_path) as store:
        assert store.check() == [] and [offset for offset in decoded if offset < newest.offset] == []
        assert store.check(deep=True) == [] and len(decoded) > COUNT / 2


@pytest.mark.damages
def test_only_a_deep_check_sees_what_was_written_wrongly_between_good_checksums(
    long: Image, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index frame that tells another number of elements than its stretch holds: a writer's fault, no disk's."""
    index_body = Tail.index_body

    def lying(tail: Tail, totals: Totals | None) -> bytes:
        body = msgspec.json.decode(index_body(tail, totals))
        body["l"][0][3] += 1
        return msgspec.json.encode(body)

    monkeypatch.setattr(Tail, "index_body", lying)
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as session:
        for number in range(300):
            session.commit([MESSAGES.append([number, Random(number).randbytes(300).hex()])])
    with Store.open(store_path) as store:
        assert store.check() == []
        assert {finding.reason for finding in store.check(deep=True)} == {"index"}
