"""Frames that do not belong, forged sizes, and files of other stores."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from scopelog import (
    CorruptLog,
    ForeignFile,
    LogRecord,
    ManualClock,
    Store,
)
from scopelog_engine.check import worst
from scopelog_engine.codec import compress
from scopelog_engine.frame import encode_frame
from scopelog_engine.header import digest_of
from scopelog_engine.layout import KIND_CLOSE, KIND_HEADER, MAX_COMMIT_BYTES, STORE_FILE

from .stores import (
    CHAT,
    DELTAS,
    MAIN,
    MESSAGES,
    TITLE,
    Image,
    bare,
    build,
    frames_of,
    header_of,
    image_of,
    lay,
    next_frame,
    records,
    sidecars_of,
    unsound,
)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    found = build(tmp_path_factory.mktemp("unclean") / "store", closed=False)
    return found | {MAIN: bare(found[MAIN])}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return build(tmp_path_factory.mktemp("closed") / "store", closed=True)


@pytest.fixture(scope="module")
def stored(image: Image, tmp_path_factory: pytest.TempPathFactory) -> list[LogRecord]:
    with Store.open(lay(tmp_path_factory.mktemp("stored") / "store", image)) as store:
        return records(store)


# --- frames that do not belong ----------------------------------------------------------------------


@pytest.mark.parametrize("which", ["main", "sidecar"])
@pytest.mark.fault(10, rig="M")
def test_duplicated_frame_is_no_part_of_the_chain(
    which: str, image: Image, stored: list[LogRecord], store_path: Path
) -> None:
    """A frame's checksum begins with its offset: moved or copied, it is no frame."""
    name = MAIN if which == "main" else sidecars_of(image)[0]
    for frame in frames_of(image[name]):
        copy = image[name][frame.offset : frame.end]
        with Store.open(lay(store_path, image | {name: image[name] + copy}), clock=ManualClock()) as store:
            with store.session(CHAT) as session:
                [torn] = session.recovery.torn
                assert Path(torn.kept).read_bytes() == copy
                assert records(store) == stored
                session.commit([MESSAGES.append("after"), TITLE.set("after")])
                session.commit([DELTAS.append("after")])
            assert [record.value for record in records(store)] == [r.value for r in stored] + ["after"] * 3


@pytest.mark.parametrize(
    "changes", [{"previous": 7}, {"epoch": 0}, {"first": 2}, {"first": 2, "last": 2}, {"digest": 1}]
)
@pytest.mark.fault(10, rig="M")
def test_frame_that_does_not_follow(
    changes: dict[str, int], image: Image, stored: list[LogRecord], store_path: Path
) -> None:
    """Chain, epoch, sequence and store each reject a frame whose checksum holds."""
    frame = next_frame(image[MAIN], b'[1,0,[1,"forged"]]\n', **changes)
    lay(store_path, image | {MAIN: image[MAIN] + frame})
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as session:
        [torn] = session.recovery.torn
        assert Path(torn.kept).read_bytes() == frame
        assert records(store) == stored


@pytest.mark.damages
@pytest.mark.fault(10, rig="M")
def test_swapped_frames_of_a_proved_log(closed: Image, store_path: Path) -> None:
    data = closed[MAIN]
    frames = frames_of(data)
    for one, two in pairwise(frames[1:]):
        swapped = data[: one.offset] + data[two.offset : two.end] + data[one.offset : one.end] + data[two.end :]
        if two.kind == KIND_CLOSE:
            continue
        lay(store_path, closed | {MAIN: swapped})
        with Store.open(store_path, clock=ManualClock()) as store:
            with pytest.raises(CorruptLog) as caught:
                store.session(CHAT)
            assert caught.value.offset == one.offset
            assert worst(store.check()) == 2


@pytest.mark.damages
@pytest.mark.fault(10, rig="M")
def test_files_of_another_store_or_session(closed: Image, store_path: Path, tmp_path: Path) -> None:
    other = build(tmp_path / "other", closed=True)
    lay(store_path, closed | {MAIN: other[MAIN]})
    with Store.open(store_path, clock=ManualClock()) as store:
        for refused in (store.session, store.reader):
            with pytest.raises(ForeignFile):
                refused(CHAT)
        assert worst(store.check()) == 2
    assert image_of(store_path)[MAIN] == other[MAIN]
    moved = {name.replace("chat.session", "chat2.session"): data for name, data in closed.items()}
    lay(store_path, moved)
    with Store.open(store_path, clock=ManualClock()) as store:
        with pytest.raises(ForeignFile):
            store.session("chat2")
        assert worst(store.check()) == 2


@pytest.mark.parametrize("take", [20, 1200])
@pytest.mark.fault(10, rig="M")
def test_bytes_of_another_session_of_the_same_store(take: int, store_path: Path) -> None:
    """Two sessions alike to the letter; from a frame on, one log goes on in the bytes of the other, at the same place.

    Found by a splice of two logs longer than five stretches: the tail was opened by the other session's index frame
    and the seam never met. Now the digest names the log, so the frames behind the seam are not its own.
    """
    with Store.open(store_path, clock=ManualClock()) as store:
        for name in ("a", "b"):
            with store.session(name) as session:
                for number in range(take):
                    session.append(MESSAGES, [name, number, "".join(chr(97 + (number * k) % 26) for k in range(99))])
                    session.flush()
    mine, other = (store_path / name / "main.zst" for name in ("a.session", "b.session"))
    here, there = mine.read_bytes(), other.read_bytes()
    seam = frames_of(here)[take // 3].offset
    mine.write_bytes(here[:seam] + there[seam:])
    with Store.open(store_path, clock=ManualClock()) as store:
        assert worst(store.check("a")) >= 1
        assert store.check("b") == []
        good = [["a", number] for number in range(take // 3 - 1)]
        for open_it in (store.reader, store.session):
            with open_it("a") as handle:
                assert [element.element[:2] for element in handle.read(MESSAGES)] == good
        [torn] = mine.parent.glob("*.torn")
        assert torn.read_bytes() == there[seam:]


# --- forged sizes -----------------------------------------------------------------------------------


@contextmanager
def bounded_memory(limit: int) -> Iterator[None]:
    """At most ``limit`` bytes of Python memory at any moment."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak} bytes were taken"


def zstd_claiming(size: int) -> bytes:
    """A zstd frame header with an eight-byte content size and a checksum flag, then one raw block of a byte."""
    return b"\x28\xb5\x2f\xfd" + b"\xe4" + size.to_bytes(8, "little") + b"\x09\x00\x00a" + b"\0\0\0\0"


BOMB = compress(b"[" + b" " * 50_000_000 + b"]\n")
TERA = 2**40


FORGED = {
    "a terabyte, twice": (TERA, zstd_claiming(TERA)),
    "a terabyte, by zstd alone": (100, zstd_claiming(TERA)),
    "an exabyte": (2**60, zstd_claiming(2**60)),
    "more than a frame may hold": (MAX_COMMIT_BYTES * 2, compress(b"[]\n")),
    "fifty megabytes under a hundred bytes": (100, BOMB),
    "fifty megabytes under a few thousand": (len(BOMB) * 2, BOMB),
    "a size that zstd does not honour": (1, zstd_claiming(1)[:-8] + b"\x02\xff\xff" + bytes(5)),
    "no zstd frame": (3, b"[]\n"),
    "nothing": (3, b""),
    "a zstd frame cut short": (3, compress(b"[]\n")[:-1]),
    "two zstd frames, the second unnamed": (3, compress(b"[]\n") + compress(b"[]\n")),
    "no JSON": (4, compress(b"\xff\xfe\xfd\n")),
    "half a line": (10, compress(b"[99,1,[1,\n")),
    "an address that nothing defines": (13, compress(b"[99,1,[9,1]]\n")),
    "a malformed item": (15, compress(b'[99,1,["v",1]]\n')),
    "sequences of its own": (13, compress(b"[99,1,[1,1]]\n")),
}


@pytest.mark.damages
@pytest.mark.parametrize("what", FORGED)
@pytest.mark.fault(30, rig="M")
def test_forged_sizes_and_payloads(what: str, image: Image, store_path: Path) -> None:
    """An envelope whose checksum holds over a payload that is not what it says: refused before memory is taken."""
    raw_length, payload = FORGED[what]
    data = image[MAIN]
    tail = data + next_frame(data, b"", raw_length=raw_length, payload=payload)
    closing = next_frame(tail, b"", kind=KIND_CLOSE, count=0, commits=0, payload=b"", mark=len(tail))
    lay(store_path, {STORE_FILE: image[STORE_FILE], MAIN: tail + closing})
    with bounded_memory(4 * 2**20), Store.open(store_path, clock=ManualClock()) as store:
        findings = unsound(store.check())
        assert worst(findings) == 2 and findings[0].offset == len(data)
        with pytest.raises(CorruptLog) as caught, store.session(CHAT) as session:
            session.read(MESSAGES)
        assert (caught.value.path, caught.value.offset) == (str(store_path / MAIN), len(data))
        assert [record.seq for record in records_before(store, len(data))] == [1, 2, 5, 8, 9, 10, 12, 13]
    assert image_of(store_path)[MAIN] == tail + closing


def records_before(store: Store, offset: int) -> list[LogRecord]:
    """What a reader yields before it meets damage."""
    found: list[LogRecord] = []
    with store.reader(CHAT) as reader, pytest.raises(CorruptLog) as caught:
        found.extend(reader.records())
    assert caught.value.offset == offset
    return found


@pytest.mark.damages
@pytest.mark.fault(30, rig="M")
def test_header_claiming_a_terabyte(image: Image, store_path: Path) -> None:
    for name in (STORE_FILE, MAIN):
        forged, _ = encode_frame(
            KIND_HEADER,
            digest=digest_of(header_of(image[name])),
            previous=0,
            epoch=0,
            first=0,
            last=0,
            commits=0,
            raw_length=TERA,
            payload=zstd_claiming(TERA),
            mark=-1,
            offset=0,
        )
        lay(store_path, image | {name: forged})
        with bounded_memory(2**20), pytest.raises(CorruptLog), Store.open(store_path, clock=ManualClock()) as store:
            store.session(CHAT)
        assert image_of(store_path)[name] == forged


@pytest.mark.fault(30, rig="M")
def test_envelope_claiming_more_than_a_frame_may_take(image: Image, stored: list[LogRecord], store_path: Path) -> None:
    """Three hundred sparse megabytes that one frame claims for itself are not read into memory."""
    data = image[MAIN]
    huge = 300 * 2**20
    frame = next_frame(data, b"", payload=b"x", raw_length=1)
    body = bytearray(frame)
    assert frame[8 + 7 + 4] == 1  # the payload's length, one varint byte
    body[8 + 7 + 4 : 8 + 7 + 5] = b"\x80\x80\x80\x8f\x01"
    body[4:8] = (int.from_bytes(frame[4:8], "little") + 4).to_bytes(4, "little")
    lay(store_path, image | {MAIN: data + bytes(body)})
    with (store_path / MAIN).open("r+b") as file:
        file.truncate(len(data) + huge)
    with bounded_memory(8 * 2**20), Store.open(store_path, clock=ManualClock()) as store:
        assert records(store) == stored
        assert worst(store.check()) == 1
    (store_path / MAIN).write_bytes(data)
