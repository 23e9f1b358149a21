"""Following logs that are replaced by compacted ones: gone on from where that can be, else begun anew.

Most are compacted here by hand: the same frames under a header of the next generation, some of them left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from fuzz.simdisk import SimDisk
from scopelog import (
    Base,
    FollowEvent,
    ManualClock,
    Position,
    Records,
    Retired,
    Session,
    SessionFollower,
    Store,
    ephemeral,
    list_of,
)
from scopelog_engine import follow as engine_follow
from scopelog_engine.compact import Rewrite
from scopelog_engine.cursor import Point
from scopelog_engine.frame import Frame, encode_frame
from scopelog_engine.header import digest_of, encode_header, parse_header
from scopelog_engine.layout import KIND_BATCH, KIND_CLOSE, MAX_HEADER_BYTES
from scopelog_engine.scan import Walk

LINES = list_of("n", "lines")
OP = ephemeral("op")
PATH = "/data/store"


class Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def pread(self, length: int, offset: int) -> bytes:
        return self.data[offset : offset + length]

    def size(self) -> int:
        return len(self.data)


def compacted(data: bytes, keep: Callable[[Frame], bool], high: Point) -> bytes:
    """The batches that ``keep`` wants, under a header of the next generation."""
    header, first = parse_header(data[:MAX_HEADER_BYTES], "old")
    sequence = high.sequence
    renewed = msgspec.structs.replace(header, generation=header.generation + 1, high=sequence, high_epoch=high.epoch)
    out, previous = encode_header(renewed, epoch=first.epoch, sequence=0)
    epoch = first.epoch
    old = Walk(Bytes(data), "old", first.end, first, len(data), digest_of(header), 1 << 30)
    for frame, payload in old:
        if frame.kind != KIND_BATCH or not keep(frame):
            continue
        piece, previous = encode_frame(
            KIND_BATCH,
            digest=digest_of(renewed),
            previous=previous,
            epoch=frame.epoch,
            first=frame.first,
            last=frame.last,
            commits=frame.commits,
            raw_length=frame.raw_length,
            payload=payload,
            mark=len(out),
            offset=len(out),
        )
        out += piece
        epoch = frame.epoch
    closing, _ = encode_frame(
        KIND_CLOSE,
        digest=digest_of(renewed),
        previous=previous,
        epoch=epoch,
        first=sequence,
        last=sequence,
        commits=0,
        raw_length=0,
        payload=b"",
        mark=len(out),
        offset=len(out),
    )
    return out + closing


@dataclass
class Rig:
    disk: SimDisk = field(default_factory=SimDisk)

    def __post_init__(self) -> None:
        self.store = Store.open(PATH, fs=self.disk, clock=ManualClock())

    def session(self) -> Session:
        return self.store.session("s")

    def compact(self, ending: str, keep: Callable[[Frame], bool], high: Point) -> None:
        """Replace a log of the session, which is closed, as compaction does: by a rename."""
        (path,) = [path for path in self.disk.snapshot() if path.endswith(ending)]
        data = compacted(self.disk.read_file(path), keep, high)
        self.disk.write_file(path + ".tmp", data)
        self.disk.rename(path + ".tmp", path)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def elements(events: list[FollowEvent]) -> list[object]:
    return [record.value for event in events if isinstance(event, Records) for record in event.records]


def begun(follower: SessionFollower) -> Position:
    (event,) = follower.poll()
    assert isinstance(event, Base)
    event.reader.close()
    return event.position


def restarted(events: list[FollowEvent], why: str, wanted: list[object]) -> None:
    (event,) = events
    assert isinstance(event, Base) and why in event.reason
    with event.reader as reader:
        assert [record.value for record in reader.records()] == wanted


def test_who_has_seen_all_of_main_goes_on_and_who_has_not_begins_anew(rig: Rig) -> None:
    caught_up, behind = None, None
    with rig.session() as session:
        session.commit([LINES.append(1)])
        behind = rig.store.follow("s")
        positions = [begun(behind)]
        for number in (2, 3):
            session.commit([LINES.append(number)])
        caught_up = rig.store.follow("s")
        positions.append(begun(caught_up))
        epoch = session.epoch
    rig.compact("main.zst", lambda frame: frame.last != 2, Point(epoch, 3))
    assert caught_up.poll() == []
    restarted(behind.poll(), "compacted", [1, 3])
    restarted(rig.store.follow("s", positions[0]).poll(), "no boundary", [1, 3])
    with rig.session() as session:
        session.commit([LINES.append(4)])
        assert elements(caught_up.poll()) == elements(behind.poll()) == [4]
        assert elements(rig.store.follow("s", positions[1]).poll()) == [4]
        session.commit([LINES.append(5)])
        assert elements(rig.store.follow("s", str(caught_up.position)).poll()) == [5]
        restarted(rig.store.follow("s", positions[1]._replace(sequence=1)).poll(), "no boundary", [1, 3, 4, 5])


def test_where_the_last_records_were_dropped(rig: Rig) -> None:
    """No frame ends where the compaction did; the position that says so is honoured all the same."""
    with rig.session() as session:
        for number in (1, 2, 3):
            session.commit([LINES.append(number)])
        follower = rig.store.follow("s")
        position = begun(follower)
        epoch = session.epoch
    rig.compact("main.zst", lambda frame: frame.last == 1, Point(epoch, 3))
    assert follower.poll() == [] and rig.store.follow("s", position).poll() == []
    fresh = rig.store.follow("s")
    assert begun(fresh) == position
    with rig.session() as session:
        session.commit([LINES.append(4)])
    assert (
        elements(follower.poll()) == elements(fresh.poll()) == elements(rig.store.follow("s", position).poll()) == [4]
    )


def test_the_rotation_of_a_sidecar(rig: Rig) -> None:
    with rig.session() as session:
        session.commit([LINES.append(0)])
        behind = rig.store.follow("s")
        begun(behind)
        for number in (1, 2):
            session.commit([OP.list_of("n", "x").append(number)])
        assert elements(behind.poll()) == [1, 2]
        session.commit([OP.list_of("n", "x").append(3)])
        caught_up = rig.store.follow("s")
        begun(caught_up)
        epoch = session.epoch
    rig.compact(".scope.zst", lambda frame: frame.last != 3, Point(epoch, 4))
    assert caught_up.poll() == []
    restarted(behind.poll(), "'op' was compacted", [0, 1, 3])
    with rig.session() as session:
        session.commit([OP.list_of("n", "x").append(4)])
        assert elements(caught_up.poll()) == elements(behind.poll()) == [4]
        session.commit([OP.retire()])
        assert [type(event) for event in caught_up.poll()] == [Retired]


def test_a_life_that_only_the_floor_says_is_over(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its retirement was dropped from main, and its file lingers."""
    with rig.session() as session:
        session.commit([LINES.append(0)])
        follower = rig.store.follow("s")
        begun(follower)
        session.commit([OP.list_of("n", "x").append(1)])
    monkeypatch.setattr(engine_follow, "dead_by_floor", lambda header, first: first <= 2)
    assert follower.poll() == [] and follower.poll() == []


def test_a_compacted_log_that_is_read_from_its_beginning(rig: Rig) -> None:
    """A life that was met only when it had been compacted: behind it the position is that of the compaction."""
    with rig.session() as session:
        session.commit([LINES.append(0)])
        follower = rig.store.follow("s")
        begun(follower)
        for number in (1, 2, 3):
            session.commit([OP.list_of("n", "x").append(number)])
        epoch = session.epoch
    rig.compact(".scope.zst", lambda frame: frame.last != 4, Point(epoch, 4))
    assert elements(follower.poll()) == [1, 2]
    assert follower.position is not None and follower.position.lives[0].sequence == 4
    assert rig.store.follow("s", follower.position).poll() == []


def test_a_compaction_while_the_session_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added meanwhile is copied as it is, into longer frames: positions in it are honoured, too."""
    store = Store.open(PATH, fs=SimDisk())
    session = store.session("s")
    session.commit([LINES.append(0)])
    behind, follower = store.follow("s"), store.follow("s")
    begun(behind)
    session.commit([LINES.append(1), LINES.trim(1)])
    begun(follower)
    positions: list[Position] = []
    finished = Rewrite.store

    def busy(rewrite: Rewrite) -> None:
        finished(rewrite)
        for number in (2, 3, 4):
            session.commit([LINES.append(number)])
            assert elements(follower.poll()) == [number]
            assert follower.position is not None
            positions.append(follower.position)

    monkeypatch.setattr(Rewrite, "store", busy)
    session.compact()
    assert follower.poll() == []
    for position, left in zip(positions, ([3, 4], [4], []), strict=True):
        assert elements(store.follow("s", position).poll()) == left
    restarted(behind.poll(), "compacted", [1, 2, 3, 4])
    session.commit([LINES.append(5)])
    for one in (follower, behind, store.follow("s", positions[-1])):
        assert elements(one.poll()) == [5]
    assert elements(store.follow("s", positions[0]).poll()) == [3, 4, 5]
