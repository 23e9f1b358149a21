"""Torn tails of real files: what was never proved durable is cut, kept aside and reported; the rest goes on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from scopelog import CorruptLog, Durability, LogRecord, ManualClock, Store, TornTail
from scopelog_engine.check import worst
from scopelog_engine.frame import Frame, encode_frame
from scopelog_engine.header import digest_of, parse_header
from scopelog_engine.layout import KIND_BATCH, KIND_CLOSE, ZSTD_MAGIC

from .stores import (
    CHAT,
    DELTAS,
    MAIN,
    MESSAGES,
    SCOPE,
    TITLE,
    Image,
    bare,
    build,
    frames_of,
    image_of,
    lay,
    records,
    sidecars_of,
    unsound,
)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A store whose writer was killed: the bytes behind the last frames of both logs are as it left them."""
    return build(tmp_path_factory.mktemp("unclean") / "store", closed=False)


@pytest.fixture(scope="module")
def stored(image: Image, tmp_path_factory: pytest.TempPathFactory) -> list[LogRecord]:
    with Store.open(lay(tmp_path_factory.mktemp("stored") / "store", image)) as store:
        return records(store)


def log_named(image: Image, which: str) -> str:
    return MAIN if which == "main" else sidecars_of(image)[0]


def without(stored: list[LogRecord], which: str, lost: list[Frame]) -> list[LogRecord]:
    """What is left when frames of one log are lost."""
    scope = None if which == "main" else SCOPE.id
    return [r for r in stored if r.scope != scope or not any(f.first <= r.seq <= f.last for f in lost)]


def assert_mended(path: Path, image: Image, name: str, offset: int, expected: list[LogRecord], where: str) -> TornTail:
    """Opens, keeps the good prefix, keeps the cut bytes aside, takes appends, and finds nothing at the next open."""
    with Store.open(lay(path, image), clock=ManualClock()) as store:
        assert worst(store.check()) == 1, where
        assert image_of(path)[name] == image[name], where
        with store.session(CHAT) as session:
            assert [tail.path for tail in session.recovery.torn] == [str(path / name)], where
            [torn] = session.recovery.torn
            assert (torn.offset, torn.length) == (offset, len(image[name]) - offset), where
            assert Path(torn.kept).read_bytes() == image[name][offset:], where
            assert session.recovery.torn_bytes == torn.length, where
            assert session.recovery.set_aside == [], where
            assert records(store) == expected, where
            receipt = session.commit([MESSAGES.append("after"), TITLE.set("after")])
            assert receipt.first > max(record.seq for record in expected), where
            session.commit([DELTAS.append("after")])
            after = records(store)
            assert [r for r in after if r.value != "after"] == expected, where
            assert len(after) == len(expected) + 3, where
        with store.session(CHAT) as session:
            assert session.recovery.clean and not session.recovery, where
            assert records(store) == after, where
            assert session.read(MESSAGES)[-1].element == "after", where
        assert unsound(store.check()) == [], where
    return torn


LOGS = pytest.mark.parametrize("which", ["main", "sidecar"])


@LOGS
@pytest.mark.fault(4, rig="M")
def test_last_frame_cut_at_every_byte(which: str, image: Image, stored: list[LogRecord], store_path: Path) -> None:
    name = log_named(image, which)
    data = bare(image[name])
    last = frames_of(data)[-1]
    expected = without(stored, which, [last])
    assert len(expected) < len(stored)
    for length in range(1, last.length):
        damaged = image | {name: data[: last.offset + length]}
        torn = assert_mended(store_path, damaged, name, last.offset, expected, f"cut {length} bytes into the frame")
        assert torn.after == frames_of(data)[-2].last and not torn.corrupt


@pytest.mark.fault(4, 6, rig="M")
def test_last_frame_cut_at_every_byte_before_untouched_preallocated_space(
    image: Image, stored: list[LogRecord], store_path: Path
) -> None:
    """A write that stopped half-way inside preallocated space: what is missing reads as zeros."""
    whole = image[MAIN]
    last = frames_of(whole)[-1]
    assert len(whole) > last.end
    expected = without(stored, "main", [last])
    for length in range(1, last.length):
        cut = last.offset + length
        damaged = image | {MAIN: whole[:cut] + bytes(len(whole) - cut)}
        assert_mended(store_path, damaged, MAIN, last.offset, expected, f"zeros from byte {length} of the frame on")


@LOGS
@pytest.mark.parametrize("garble", [lambda _: 0, lambda byte: byte ^ 0x5A, lambda byte: byte ^ 0xFF])
@pytest.mark.fault(5, rig="M")
def test_every_byte_of_the_last_frame_overwritten(
    which: str, garble: Callable[[int], int], image: Image, stored: list[LogRecord], store_path: Path
) -> None:
    name = log_named(image, which)
    data = image[name] if which == "sidecar" else bare(image[name])
    last = frames_of(data)[-1]
    expected = without(stored, which, [last])
    for at in range(last.offset, last.end):
        byte = garble(data[at])
        if byte == data[at]:
            continue
        damaged = image | {name: data[:at] + bytes((byte,)) + data[at + 1 :]}
        assert_mended(store_path, damaged, name, last.offset, expected, f"byte {at - last.offset} of the frame")


def _junk(kind: str, length: int) -> bytes:
    if kind == "zeros":
        return bytes(length)
    if kind == "ones":
        return b"\xff" * length
    if kind == "zstd":
        return (ZSTD_MAGIC * length)[:length]
    if kind == "skippable":  # a foreign skippable frame that claims 4 GiB
        return (b"\x5a\x2a\x4d\x18\xff\xff\xff\xff" * length)[:length]
    return Random(length).randbytes(length)


@LOGS
@pytest.mark.parametrize("kind", ["zeros", "ones", "zstd", "skippable", "random"])
@pytest.mark.fault(5, 6, rig="M")
def test_garbage_after_the_end(which: str, kind: str, image: Image, stored: list[LogRecord], store_path: Path) -> None:
    """Also zeros, which file systems leave behind a length that became durable before the bytes: never corruption."""
    name = log_named(image, which)
    data = bare(image[name])
    for length in (1, 2, 7, 8, 9, 31, 511, 512, 4095, 4096, 4097, 65535, 65536):
        damaged = image | {name: data + _junk(kind, length)}
        assert_mended(store_path, damaged, name, len(data), stored, f"{length} bytes")


@pytest.mark.fault(5, rig="M")
def test_garbage_behind_a_stale_cover(image: Image, stored: list[LogRecord], store_path: Path) -> None:
    """The cover of preallocated space is no proof of the end after an unclean one: recovery looks behind it."""
    whole = image[MAIN]
    end = len(bare(whole))
    for at in (end + 8, end + 9, end + 4096, len(whole) - 1):
        damaged = image | {MAIN: whole[:at] + b"\x01" + whole[at + 1 :]}
        assert_mended(store_path, damaged, MAIN, end, stored, f"a byte at {at}, the cover starts at {end}")


def test_untouched_preallocated_space_is_no_tear(image: Image, stored: list[LogRecord], store_path: Path) -> None:
    with Store.open(lay(store_path, image), clock=ManualClock()) as store:
        assert store.check() == []
        with store.session(CHAT) as session:
            assert not session.recovery and not session.recovery.clean
            assert session.recovery.unproved_bytes > 0
            assert records(store) == stored
            session.commit([MESSAGES.append("after")])
        assert [record.value for record in records(store)][-1] == "after"


@LOGS
@pytest.mark.fault(7, rig="M")
def test_zero_hole_before_valid_frames_that_no_mark_covers(which: str, store_path: Path, tmp_path: Path) -> None:
    """After a power cut the commonest dirty shape of an un-synced tail: zeros, then perfectly valid younger frames."""
    image = build(tmp_path / "process", closed=False, level=Durability.PROCESS)
    name = log_named(image, which)
    with Store.open(lay(store_path, image)) as store:
        stored = records(store)
    frames = frames_of(image[name])
    batches = [frame for frame in frames if frame.kind == KIND_BATCH]
    mark = max(frame.mark for frame in frames)
    holes = 0
    for number, frame in enumerate(batches[:-1]):
        if frame.offset < mark:
            continue  # below the mark it is corruption: see the next test
        for start, stop in ((frame.offset, frame.end), (frame.offset, frame.offset + 1), (frame.end - 9, frame.end)):
            damaged = image[name][:start] + bytes(stop - start) + image[name][stop:]
            expected = without(stored, which, batches[number:])
            torn = assert_mended(store_path, image | {name: damaged}, name, frame.offset, expected, f"hole {start}")
            assert not torn.corrupt
            holes += 1
    assert holes >= 6


@pytest.mark.damages
@pytest.mark.fault(8, rig="M")
def test_zero_hole_below_a_durable_mark_of_main(image: Image, stored: list[LogRecord], store_path: Path) -> None:
    """The same hole, but a later frame says that these bytes were synced: proved corruption, and nothing is changed."""
    frames = frames_of(image[MAIN])
    for before, frame in pairwise(frames[1:-1]):
        damaged = image[MAIN][: frame.offset] + bytes(frame.length) + image[MAIN][frame.end :]
        lay(store_path, image | {MAIN: damaged})
        with Store.open(store_path, clock=ManualClock()) as store:
            findings = store.check()
            assert worst(findings) == 2
            assert [(f.path, f.offset, f.sequence) for f in unsound(findings)] == [
                (str(store_path / MAIN), frame.offset, before.last)
            ]
            with pytest.raises(CorruptLog) as caught:
                store.session(CHAT)
            error = caught.value
            assert (error.path, error.offset, error.sequence) == (str(store_path / MAIN), frame.offset, before.last)
            assert error.cause and error.remedy and error.reason
            expected = [r for r in stored if r.scope is None and r.seq <= before.last]
            assert [r for r in records(store) if r.scope is None] == expected  # the good prefix is offered
        after = {key: data for key, data in image_of(store_path).items() if not key.endswith("LOCK")}
        assert after == image | {MAIN: damaged}


def _synced_sidecar(path: Path) -> Image:
    """A store killed after commits at POWER in an ephemeral scope."""
    with Store.open(path, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append("kept")])
        for number in range(4):
            session.commit([DELTAS.append(number)], durability=Durability.POWER)
        return image_of(path)


@pytest.mark.fault(8, rig="M")
def test_zero_hole_below_a_durable_mark_of_a_sidecar(store_path: Path, tmp_path: Path) -> None:
    """Proved damage in a sidecar never touches main: the good prefix is read, the rest is kept aside and reported."""
    image = _synced_sidecar(tmp_path / "synced")
    [name] = sidecars_of(image)
    frame = frames_of(image[name])[2]
    damaged = image[name][: frame.offset] + bytes(frame.length) + image[name][frame.end :]
    with Store.open(lay(store_path, image | {name: damaged}), clock=ManualClock()) as store:
        assert worst(store.check()) == 2
        with store.session(CHAT) as session:
            [torn] = session.recovery.torn
            assert torn.corrupt and torn.offset == frame.offset and torn.path == str(store_path / name)
            assert Path(torn.kept).read_bytes() == damaged[frame.offset :]
            assert [element.element for element in session.read(DELTAS)] == [0]
            assert [element.element for element in session.read(MESSAGES)] == ["kept"]
            receipt = session.commit([DELTAS.append("after")])
            assert receipt.first > frames_of(image[name])[-1].last  # also numbers of lost records are not used again
        with store.session(CHAT) as session:
            assert not session.recovery
            assert [element.element for element in session.read(DELTAS)] == [0, "after"]


@pytest.mark.fault(4, rig="M")
def test_sidecar_cut_inside_its_header_or_first_batch(image: Image, stored: list[LogRecord], store_path: Path) -> None:
    """A sidecar is created in place: a crash can leave any part of it. Without a header it is set aside."""
    name = sidecars_of(image)[0]
    header, first = frames_of(image[name])[:2]
    main = [record for record in stored if record.scope is None]
    for length in range(first.end):
        with Store.open(lay(store_path, image | {name: image[name][:length]}), clock=ManualClock()) as store:
            if length != header.end:
                assert worst(store.check()) >= 1, length
            with store.session(CHAT) as session:
                assert session.read(DELTAS) == [], length
                assert [aside.path for aside in session.recovery.set_aside] == (
                    [str(store_path / name)] if length < header.end else []
                ), length
                for aside in session.recovery.set_aside:
                    assert Path(aside.kept).read_bytes() == image[name][:length]
                assert len(session.recovery.torn) == (length > header.end), length
                assert records(store) == main, length
                receipt = session.commit([DELTAS.append("after")])
                assert receipt.first > stored[-1].seq or length >= header.end
            with store.session(CHAT) as session:
                assert not session.recovery, length
                assert [element.element for element in session.read(DELTAS)] == ["after"], length


@pytest.mark.damages
@pytest.mark.fault(8, rig="M")
def test_main_cut_inside_its_header(image: Image, store_path: Path) -> None:
    """Main appears by rename, so it is never without a valid header: a bad one is corruption, and nothing changes."""
    header = frames_of(image[MAIN])[0]
    for length in range(header.end):
        damaged = image | {MAIN: image[MAIN][:length]}
        with Store.open(lay(store_path, damaged), clock=ManualClock()) as store:
            with pytest.raises(CorruptLog) as caught:
                store.session(CHAT)
            assert (caught.value.path, caught.value.offset) == (str(store_path / MAIN), 0)
            with pytest.raises(CorruptLog):
                store.reader(CHAT)
            assert worst(store.check()) == 2
        after = {key: data for key, data in image_of(store_path).items() if not key.endswith("LOCK")}
        assert after == damaged


def test_recovery_run_twice_over_the_same_damage_ends_in_the_same_bytes(image: Image, store_path: Path) -> None:
    """Also where an earlier recovery kept the tail and was killed before it cut the log."""
    damaged = image | {MAIN: bare(image[MAIN]) + b"garbage"}
    outcomes = []
    for _ in range(2):
        with Store.open(lay(store_path, damaged), clock=ManualClock()) as store, store.session(CHAT):
            outcomes.append(image_of(store_path))
        damaged = outcomes[0] | {MAIN: damaged[MAIN]}
    assert {k: v for k, v in outcomes[0].items() if "LOCK" not in k} == {
        k: v for k, v in outcomes[1].items() if "LOCK" not in k
    }


@pytest.mark.fault(8, rig="M")
def test_closing_frame_behind_a_hole_proves_it(store_path: Path, tmp_path: Path) -> None:
    """A closing frame's mark is its own offset, even where no other frame carries one above the hole."""
    image = build(tmp_path / "closed", closed=True, level=Durability.PROCESS)
    frames = frames_of(image[MAIN])
    assert frames[-1].kind == KIND_CLOSE and frames[-1].mark == frames[-1].offset
    hole = frames[-2]
    damaged = image[MAIN][: hole.offset] + bytes(hole.length) + image[MAIN][hole.end :]
    with Store.open(lay(store_path, image | {MAIN: damaged}), clock=ManualClock()) as store:
        with pytest.raises(CorruptLog):
            store.session(CHAT)
        assert worst(store.check()) == 2
    lay(store_path, image)


@pytest.mark.fault(10, rig="M")
def test_mark_of_a_frame_that_cannot_have_followed_proves_nothing(
    image: Image, stored: list[LogRecord], store_path: Path
) -> None:
    """A stale frame of an older epoch behind the end, valid by its checksum, is no evidence of corruption."""
    data = bare(image[MAIN])
    last = frames_of(data)[-1]
    offset = len(data) + 100
    digest = digest_of(parse_header(data, "")[0])
    stale, _ = encode_frame(
        KIND_BATCH,
        digest=digest,
        previous=1,
        epoch=0,
        first=1,
        last=1,
        commits=1,
        raw_length=1,
        payload=b"x",
        mark=offset,
        offset=offset,
    )
    assert last.epoch > 0
    damaged = image | {MAIN: data + bytes(100) + stale}
    assert_mended(store_path, damaged, MAIN, len(data), stored, "a stale frame")
