"""Files that a later release wrote: a newer major version is refused, everything else unknown is skipped and kept."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from scopelog import (
    LogRecord,
    ManualClock,
    NewerFormat,
    Store,
)
from scopelog_engine.codec import compress
from scopelog_engine.frame import encode_frame
from scopelog_engine.header import digest_of, parse_header
from scopelog_engine.layout import KIND_HEADER, STORE_FILE

from .stores import (
    CHAT,
    MAIN,
    MESSAGES,
    TITLE,
    Image,
    bare,
    build,
    frames_of,
    image_of,
    lay,
    next_frame,
    records,
    sidecars_of,
)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    found = build(tmp_path_factory.mktemp("unclean") / "store", closed=False)
    return found | {MAIN: bare(found[MAIN])}


@pytest.fixture(scope="module")
def stored(image: Image, tmp_path_factory: pytest.TempPathFactory) -> list[LogRecord]:
    with Store.open(lay(tmp_path_factory.mktemp("stored") / "store", image)) as store:
        return records(store)


def with_version(data: bytes, major: int, minor: int) -> bytes:
    """The same file, its header of another format version and with a field that this release does not know."""
    header, frame = parse_header(data, "")
    raw = json.dumps(msgspec.to_builtins(header) | {"scopelog": [major, minor], "colour": "blue"}).encode() + b"\n"
    head, _ = encode_frame(
        KIND_HEADER,
        digest=digest_of(header),
        previous=0,
        epoch=frame.epoch,
        first=frame.first,
        last=frame.last,
        commits=0,
        raw_length=len(raw),
        payload=compress(raw),
        mark=-1,
        offset=0,
    )
    return head


@pytest.mark.damages
def test_newer_major_version_is_refused(image: Image, store_path: Path) -> None:
    [sidecar] = sidecars_of(image)
    for name in (STORE_FILE, MAIN):
        newer = image | {name: with_version(image[name], 2, 0)}
        lay(store_path, newer)
        with pytest.raises(NewerFormat) as caught, Store.open(store_path) as store, store.session(CHAT):
            pass
        assert "2.0" in caught.value.cause and caught.value.remedy
        assert {key: data for key, data in image_of(store_path).items() if "LOCK" not in key} == newer
    lay(store_path, image | {sidecar: with_version(image[sidecar], 2, 0)})
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as session:
        assert [aside.path for aside in session.recovery.set_aside] == [str(store_path / sidecar)]
        assert len(session.read(MESSAGES)) == 4


def test_newer_minor_version_is_read(image: Image, store_path: Path) -> None:
    newer = image | {STORE_FILE: with_version(image[STORE_FILE], 1, 9), MAIN: with_version(image[MAIN], 1, 9)}
    newer.pop(sidecars_of(image)[0])
    with Store.open(lay(store_path, newer), clock=ManualClock()) as store, store.session(CHAT) as session:
        assert not session.recovery
        session.commit([MESSAGES.append("after")])
        assert [element.element for element in session.read(MESSAGES)] == ["after"]


FUTURE_LINES = b"""{"a line":"of another kind"}
[7]
"a string"
[%(first)d,5,["?",1,{"what":"ever"}],[1,"known"],["new",[]],[1,"also known"]]
"""


def test_unknown_lines_items_and_frames_are_skipped_and_stay(
    image: Image, stored: list[LogRecord], store_path: Path
) -> None:
    """What a later minor release may write: readers skip it, and appends behind it leave it where it is."""
    data = image[MAIN]
    first = frames_of(data)[-1].last + 1
    own = data + next_frame(data, b"of an unknown kind", kind=0x5C, count=0, commits=0, payload=b"of an unknown kind")
    foreign = b"\x5b\x2a\x4d\x18\x0a\0\0\0" + b"0123456789"
    batch = next_frame(own, FUTURE_LINES % {b"first": first}, count=4, offset=len(own + foreign))
    whole = own + foreign + batch
    whole += next_frame(whole, b"", kind=0x59, count=0, commits=0, payload=b"")
    expected = [*(record.value for record in stored), "known", "also known"]
    with Store.open(lay(store_path, image | {MAIN: whole}), clock=ManualClock()) as store:
        assert store.check() == []
        assert [record.value for record in records(store)] == expected
        with store.session(CHAT) as session:
            assert not session.recovery
            assert [element.seq for element in session.read(MESSAGES)][-2:] == [first + 1, first + 3]
            receipt = session.commit([MESSAGES.append("after"), TITLE.set("after")])
            assert receipt.first == first + 4
        with store.session(CHAT) as session:
            assert not session.recovery
            assert [element.element for element in session.read(MESSAGES)][-3:] == ["known", "also known", "after"]
        assert [record.value for record in records(store)] == [*expected, "after", "after"]
    assert (store_path / MAIN).read_bytes().startswith(whole)


def test_foreign_skippable_frame_behind_the_end_is_kept_aside(
    image: Image, stored: list[LogRecord], store_path: Path
) -> None:
    """Without our envelope nothing vouches for it, so it is a tail like any other."""
    foreign = b"\x5b\x2a\x4d\x18\x0a\0\0\0" + b"0123456789"
    with Store.open(lay(store_path, image | {MAIN: image[MAIN] + foreign}), clock=ManualClock()) as store:
        assert records(store) == stored
        with store.session(CHAT) as session:
            [torn] = session.recovery.torn
            assert Path(torn.kept).read_bytes() == foreign
            session.commit([MESSAGES.append("after")])
