"""Every bit of a small, cleanly closed store turned over: never a wrong byte, never a change to a refused log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from scopelog import (
    CorruptLog,
    Durability,
    Element,
    Entry,
    ForeignFile,
    LogRecord,
    ManualClock,
    NewerFormat,
    Session,
    SessionReader,
    Store,
)
from scopelog_engine.check import worst
from scopelog_engine.frame import Frame
from scopelog_engine.layout import STORE_FILE

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
    image_of,
    lay,
    records,
    sidecars_of,
    unsound,
)

Main = tuple[list[Element], object, list[Entry]]


class Stored(NamedTuple):
    """A sound store: its files, its records, and what its session answers."""

    image: Image
    records: list[LogRecord]
    main: Main
    deltas: list[Element]


def main_answers(handle: Session | SessionReader) -> Main:
    return handle.read(MESSAGES), handle.get(TITLE), handle.scan("chat")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Closed cleanly, the sidecar after a commit at POWER, so that it has marks and ends with a closing frame too."""
    path = tmp_path_factory.mktemp("bits") / "store"
    image = build(path, closed=True)
    with Store.open(lay(path, image), clock=ManualClock(), scope_durability=Durability.POWER) as store:
        with store.session(CHAT) as session:
            session.commit([DELTAS.append("d4")])
        with store.session(CHAT) as session:
            answers = main_answers(session), session.read(DELTAS)
        found = records(store)
    image = {name: data for name, data in image_of(path).items() if "LOCK" not in name}
    return Stored(image, found, *answers)


def bits_of(data: bytes) -> Iterator[int]:
    yield from range(8 * len(data))


def frame_with(frames: list[Frame], bit: int) -> int:
    """Number of the frame that holds a bit."""
    return next(number for number, frame in enumerate(frames) if bit >> 3 < frame.end)


@pytest.mark.fault(9, rig="M")
def test_every_bit_of_the_stores_own_file(stored: Stored, store_path: Path) -> None:
    """No other file vouches for the store's id: whatever is not read as it was written is refused."""
    lay(store_path, stored.image)
    own = store_path / STORE_FILE
    for bit in bits_of(stored.image[STORE_FILE]):
        own.write_bytes(flip(stored.image[STORE_FILE], bit))
        with pytest.raises((CorruptLog, NewerFormat)) as caught:
            Store.open(store_path, clock=ManualClock())
        assert str(own) in caught.value.cause, bit
    own.write_bytes(stored.image[STORE_FILE])


@pytest.mark.fault(9, rig="M")
def test_every_bit_of_main(stored: Stored, store_path: Path) -> None:
    """A bit before the closing frame is proved damage; in the closing frame it takes the proof away, no more."""
    whole = stored.image[MAIN]
    frames = frames_of(whole)
    main_records = [record for record in stored.records if record.scope is None]
    path = lay(store_path, stored.image) / MAIN
    with Store.open(store_path, clock=ManualClock()) as store:
        for bit in bits_of(whole):
            damaged = flip(whole, bit)
            path.write_bytes(damaged)
            number = frame_with(frames, bit)
            where = f"bit {bit & 7} of byte {bit >> 3}, frame {number} of {len(frames)}"
            try:
                found = [record for record in records(store) if record.scope is None]
            except (CorruptLog, ForeignFile, NewerFormat):
                assert number == 0, where  # else a reader ends where the chain does
            else:
                assert found == [
                    r for r in main_records if r.seq < frames[number].first or number == len(frames) - 1
                ], where
            if number == len(frames) - 1:
                with store.session(CHAT) as session:
                    assert session.recovery.torn_bytes == frames[-1].length, where
                    assert main_answers(session) == stored.main, where
                for torn in path.parent.glob("*.torn"):
                    assert torn.read_bytes() == damaged[frames[-1].offset :], where
                    torn.unlink()
                continue
            with pytest.raises((CorruptLog, ForeignFile, NewerFormat)) as caught:
                store.session(CHAT)
            if isinstance(caught.value, CorruptLog):
                expected = frames[number].offset, frames[number - 1].last if number else 0
                assert (caught.value.offset, caught.value.sequence) == expected, where
                assert caught.value.path == str(path), where
            assert path.read_bytes() == damaged, where
            if bit % 8 == bit // 8 % 8:  # one bit of each byte: check reads everything
                findings = unsound(store.check())
                assert worst(findings) == 2 and findings[0].path == str(path), where
                assert findings[0].offset == frames[number].offset, where
        path.write_bytes(whole)
        assert sorted(image_of(store_path)) == sorted([*stored.image, f"{MAIN.removesuffix('main.zst')}LOCK"])


@pytest.mark.fault(9, rig="M")
def test_every_bit_of_a_sidecar(stored: Stored, store_path: Path) -> None:
    """Main and its answers never change; of the scope the good prefix is read, the rest is kept and reported."""
    [name] = sidecars_of(stored.image)
    whole = stored.image[name]
    frames = frames_of(whole)
    lay(store_path, stored.image)
    with Store.open(store_path, clock=ManualClock()) as store:
        for bit in bits_of(whole):
            damaged = flip(whole, bit)
            (store_path / name).write_bytes(damaged)
            number = frame_with(frames, bit)
            where = f"bit {bit & 7} of byte {bit >> 3}, frame {number} of {len(frames)}"
            expected = [r for r in stored.records if r.scope is None or (number and r.seq < frames[number].first)]
            if frames[number].commits == 0 and number:  # the closing frame
                expected = stored.records
            assert records(store) == expected, where
            if bit % 8 == bit // 8 % 8:
                findings = unsound(store.check())
                assert findings and {finding.path for finding in findings} == {str(store_path / name)}, where
            with store.session(CHAT) as session:
                report = session.recovery
                assert main_answers(session) == stored.main, where
                kept = {record.seq for record in expected}
                assert session.read(DELTAS) == [e for e in stored.deltas if e.seq in kept], where
                assert (session.get(STATE) is None) == (number <= 1), where
                if number == 0:
                    [aside] = report.set_aside
                    assert Path(aside.kept).read_bytes() == damaged and report.torn == [], where
                    assert session.scopes() == [], where
                else:
                    [torn] = report.torn
                    assert Path(torn.kept).read_bytes() == damaged[frames[number].offset :], where
                    assert report.set_aside == [] and session.scopes() == ([SCOPE.id] if number > 1 else []), where
            for kept_file in [torn.kept for torn in report.torn] + [aside.kept for aside in report.set_aside]:
                Path(kept_file).unlink()
            (store_path / MAIN).write_bytes(stored.image[MAIN])
    lay(store_path, stored.image)
