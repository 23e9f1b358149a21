"""What a review found in salvage: each test tells the story of one fault, and fails without its fix."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from scopelog import CorruptLog, ManualClock, Salvaged, Session, Store, list_of, value
from scopelog_engine import pieces
from scopelog_engine.check import worst
from scopelog_engine.frame import Frame
from scopelog_engine.header import encode_header
from scopelog_engine.layout import KIND_BATCH, KIND_INDEX, LOCK_FILE, TRASH_DIR, UNNAMED, scope_file_name
from scopelog_engine.lock import WriterLock
from scopelog_engine.store import Store as EngineStore

from .stores import (
    CHAT,
    DELTAS,
    MAIN,
    MESSAGES,
    SCOPE,
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
)

pytestmark = pytest.mark.damages
NEW = "rescued"


def salvaged(path: Path, image: Image) -> Salvaged:
    with Store.open(lay(path, image), clock=ManualClock()) as store:
        report = store.salvage(CHAT, NEW)
        assert not [finding for finding in store.check(NEW, deep=True) if finding.severity != "note"]
        store.session(NEW).close()
    return report


def written(path: Path, work: Callable[[Session], object]) -> Image:
    with Store.open(path, clock=ManualClock()) as store, store.session(CHAT) as session:
        work(session)
    return {name: data for name, data in image_of(path).items() if not name.endswith("LOCK")}


def broken(image: Image, first: int) -> Image:
    """One bit turned over in the frame of main that begins with that sequence."""
    frame = next(f for f in frames_of(image[MAIN]) if f.kind == KIND_BATCH and f.first == first)
    return image | {MAIN: flip(image[MAIN], 8 * frame.end - 20)}


def pad(session: Session) -> None:
    for n in range(40):
        session.commit([list_of("ns", "pad").append(Random(n).randbytes(1500).hex())])


def test_a_trim_that_is_made_again_leaves_room_for_a_deletion(tmp_path: Path) -> None:
    """The trim of one list took the only lost sequence that the deletion of another could stand at; that was dropped
    without a word, and the deleted list came back."""
    one, other = list_of("ns", "a"), list_of("ns", "b")
    lost: list[int] = []

    def work(session: Session) -> None:
        for n in range(5):
            session.commit([one.append(n), other.append(n)])
        lost.append(session.commit([one.trim(1), other.delete()]).first)
        session.commit([one.append("x"), other.append("y")])
        pad(session)

    path = tmp_path / "store"
    image = written(path, work)
    report = salvaged(path, broken(image, lost[0]))
    assert report and not report.lost
    with Store.open(path) as store, store.reader(NEW) as reader:
        assert [e.element for e in reader.read(other)] == ["y"]
        assert [e.element for e in reader.read(one)] == [1, 2, 3, 4, "x"]


def test_a_frame_whose_content_is_wrong_is_damage_like_any_other(tmp_path: Path) -> None:
    """Its checksum holds, so what it had deleted and retired came back, though the index frame tells of it."""
    path = tmp_path / "store"
    lost: list[int] = []

    def work(session: Session) -> None:
        session.commit([TITLE.set("secret")])
        lost.append(session.commit([TITLE.delete(), SCOPE.retire()]).first)
        pad(session)

    image = written(path, work)
    data = image[MAIN]
    frame = next(f for f in frames_of(data) if f.kind == KIND_BATCH and f.first == lost[0])
    payload = bytearray(data[frame.payload_offset : frame.end])
    payload[-3] ^= 1  # zstd's own checksum
    index = next(f for f in frames_of(data) if f.kind == KIND_INDEX)
    forged = resigned(data, frame, bytes(payload))
    assert len(forged) == len(data) and index.end <= len(data)
    report = salvaged(path, image | {MAIN: forged})
    assert {gap.reason for gap in report.missing} >= {"content"}
    with Store.open(path) as store, store.reader(NEW) as reader:
        assert reader.get(TITLE) is None
        assert [r.retired for r in reader.records() if r.op == "retire"] == ["op-1"]


def resigned(data: bytes, frame: Frame, payload: bytes) -> bytes:
    """The log with another payload of a frame, under a checksum of its own: the chain breaks behind it."""
    new = next_frame(
        data,
        b"x",
        previous=frame.previous,
        epoch=frame.epoch,
        first=frame.first,
        last=frame.last,
        commits=frame.commits,
        raw_length=frame.raw_length,
        payload=payload,
        mark=frame.mark,
        offset=frame.offset,
    )
    return data[: frame.offset] + new + data[frame.end :]


def test_a_scope_is_doubted_where_main_has_lost_its_header(tmp_path: Path) -> None:
    """A compacted header says which lives are over; without it a retired scope came back without doubt."""
    path = tmp_path / "store"
    kept: Image = {}

    def work(session: Session) -> None:
        session.commit([MESSAGES.append("a")])
        session.commit([DELTAS.append("secret")])
        kept.update({n: d for n, d in image_of(path).items() if "scope" in n})
        session.commit([SCOPE.retire()])
        session.compact()
        session.commit([MESSAGES.append("b")])

    image = written(path, work) | kept
    whole = salvaged(path, image)
    assert [log.left_out for log in whole.logs if log.scope] != [""]
    report = salvaged(path, image | {MAIN: bytes(20) + image[MAIN][20:]})
    assert [bool(log.doubtful) for log in report.logs] == [True, True]


def test_what_is_in_doubt_is_no_sound_salvage(tmp_path: Path) -> None:
    """The report of a session whose main was put back from an older copy was false: nothing missing."""
    path = tmp_path / "store"
    older: Image = {}

    def work(session: Session) -> None:
        session.commit([MESSAGES.append("a")])
        older.update(image_of(path))
        session.commit([MESSAGES.append("b")])
        session.commit([DELTAS.append("c")])

    image = written(path, work)
    report = salvaged(path, image | {MAIN: older[MAIN]})
    assert not report.missing and report
    assert next(log.doubtful for log in report.logs if log.scope).startswith("it builds on sequence 2")


def test_a_writer_that_makes_a_frame_whole_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its frame was found by the search though the chain leads to it: names were lost behind a gap of no bytes."""
    original: Callable[..., bool] = pieces.__dict__["is_zero"]
    with Store.open(tmp_path / "store", clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append("before")])
        late = [lambda: session.commit([MESSAGES.append("while it is salvaged")])]

        def is_zero(*arguments: Any) -> bool:
            if late:
                late.pop()()
            return original(*arguments)

        monkeypatch.setattr(pieces, "is_zero", is_zero)
        report = store.salvage(CHAT, NEW)
        assert not late and not report
        with store.reader(NEW) as reader:
            assert [e.element for e in reader.read(MESSAGES)] == ["before", "while it is salvaged"]


def test_unknown_lines_take_nobodys_sequence(tmp_path: Path) -> None:
    """Alone before a large element, or behind a frame of a reserved kind, they claimed a sequence that was taken:
    AssertionError."""
    path = tmp_path / "store"
    image = build(path, closed=True)
    data = image[MAIN]
    large = '"' + Random(1).randbytes(200_000).hex() + '"'
    first = frames_of(data)[-1].last + 1
    data += next_frame(data, b'{"later":1}\n[%d,5,[1,%s]]\n' % (first, large.encode()))
    data += next_frame(data, b"reserved", kind=0x55, count=8)
    data += next_frame(data, b'{"later":2}\n')
    data += next_frame(data, b'{"later":3}\n' * 9000)
    data += next_frame(data, b"[%d,9,[1,7]]\n" % (frames_of(data)[-1].last + 1))
    report = salvaged(path, image | {MAIN: data})
    assert not report.missing
    with Store.open(path) as store:
        assert records(store, NEW)[-1].value == 7


IMPOSSIBLE = {
    "a lone surrogate in a tag": b'[%d,5,["g",1,"\\ud800",1]]\n',
    "a lone surrogate in a name": b'[%d,5,["@",7,"\\ud800","k","l"],[7,1]]\n',
    "nesting of 300": b"[%d,5,[1," + b"[" * 300 + b"]" * 300 + b"]]\n",
    "nesting of 200,000": b"[%d,5,[1," + b"[" * 200_000 + b"]" * 200_000 + b"]]\n",
    "no number": b"[%d,5,[1,1e400]]\n",
    "a scope of no name": b'[%d,5,["!",""]]\n',
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_one_impossible_element_is_missing_and_no_more(what: str, tmp_path: Path) -> None:
    """It ended the whole salvage, some with an untyped error."""
    path = tmp_path / "store"
    image = build(path, closed=True)
    data = image[MAIN]
    data += next_frame(data, IMPOSSIBLE[what] % (frames_of(data)[-1].last + 1))
    data += next_frame(data, b"[%d,9,[1,7]]\n" % (frames_of(data)[-1].last + 1))
    report = salvaged(path, image | {MAIN: data})
    assert [gap.reason for gap in report.missing] == ["content"]
    with Store.open(path) as store:
        found = [r for r in records(store, NEW) if r.scope is None]
    assert found[-1].value == 7 and len(found) > 5


def test_headers_that_say_what_cannot_be(tmp_path: Path) -> None:
    """A sidecar of sequence 10**20 got a file that nobody reads; one of no name was a second main log; a main log of
    high-water 2**62 gave a session whose end was torn."""
    path = tmp_path / "store"
    image = build(path, closed=False)
    (name,) = sidecars_of(image)
    header = header_of(image[name])
    cases: list[dict[str, Any]] = [{"first": 10**20}, {"scope": ""}, {"scope": "x" * 500}, {"first": -5}]
    for number, changes in enumerate(cases, 70):
        forged: Any = msgspec.structs.replace(header, **changes)
        strange = f"{os.path.dirname(name)}/{scope_file_name(number)}"
        report = salvaged(path, image | {strange: encode_header(forged, epoch=1, sequence=2)[0]})
        assert [bool(log.left_out) for log in report.logs if log.path.endswith(strange)] == [True]
    main: Any = msgspec.structs.replace(header_of(image[MAIN]), high=2**62, floor=2**62)
    data = encode_header(main, epoch=1, sequence=0)[0]
    data += next_frame(data, b'[1,5,["@",1,"c","k","l"],[1,7]]\n')
    report = salvaged(path, {n: d for n, d in image.items() if n != name} | {MAIN: data})
    assert report.last == 1


def test_a_copied_sidecar_whose_original_has_lost_its_header(tmp_path: Path) -> None:
    """Both were to get the same name: FileExistsError, and nothing was salvaged."""
    path = tmp_path / "store"
    image = build(path, closed=False)
    (name,) = sidecars_of(image)
    copy = f"{os.path.dirname(name)}/{scope_file_name(99)}"
    report = salvaged(path, image | {copy: image[name], name: bytes(20) + image[name][20:]})
    assert sorted((log.scope, bool(log.left_out)) for log in report.logs if log.scope) == [
        ("op-1", False),
        ("salvaged-3", True),
    ]


def test_a_scope_that_is_retired_meanwhile_does_not_end_the_salvage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scopelog_engine.salvage import _Salvage

    original = _Salvage._living
    with Store.open(tmp_path / "store", clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append("a")])
        session.commit([DELTAS.append("b")])

        def living(salvage: _Salvage, cars: Any) -> Any:
            found = original(salvage, cars)
            session.commit([SCOPE.retire()])
            return found

        monkeypatch.setattr(_Salvage, "_living", living)
        report = store.salvage(CHAT, NEW)
        assert [bool(log.left_out) for log in report.logs] == [False, True]
        assert len(records(store, NEW)) == 1


def test_what_has_no_name_can_be_read_and_removed(tmp_path: Path) -> None:
    """No address could be made for it: it was out of reach. A salvage of the salvage counted it as damage."""
    path = tmp_path / "store"
    image = build(path, closed=False)
    report = salvaged(path, broken(image, 1))
    (texts,) = [entry.key for entry in report.unnamed if entry.kind == "list"]
    with Store.open(path, clock=ManualClock()) as store:
        assert not store.salvage(NEW)
        with store.session(NEW) as session:
            lost = list_of(UNNAMED, texts)
            found = [e.element for e in session.read(lost)]
            assert found == [{"role": "assistant", "text": "good morning"}, ["the", "last"], None]
            session.commit([MESSAGES.append(element) for element in found] + [lost.delete()])
            assert session.read(lost) == [] and len(session.read(MESSAGES)) == 3
            (title,) = [entry.key for entry in report.unnamed if entry.kind == "value"]
            assert session.get(value(UNNAMED, title)) == "a third"


def test_a_clock_that_says_no_time(tmp_path: Path) -> None:
    class NoTime(ManualClock):
        def wall_ms(self) -> int:
            return float("nan")  # type: ignore[return-value]

    image = build(tmp_path / "store", closed=True)
    with Store.open(lay(tmp_path / "store", image), clock=NoTime()) as store:
        assert not store.salvage(CHAT, NEW)
        assert not store.check(deep=True)


# --- the trash --------------------------------------------------------------------------------------------------------


def test_a_sweep_holds_the_lock_while_it_empties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked, let go, and emptied: a salvage that began in between lost its files, and said that all was well."""
    path = tmp_path / "store"
    image = build(path, closed=True)
    Store.open(lay(path, image)).close()
    grave = path / TRASH_DIR / "x"
    grave.mkdir(parents=True)
    (grave / "main.zst").touch()
    seen: list[bool] = []
    original = EngineStore._empty

    def empty(store: EngineStore, directory: str) -> None:
        try:
            WriterLock.acquire(store.fs, os.path.join(directory, LOCK_FILE)).release()
        except Exception as error:  # noqa: BLE001 - of any kind
            seen.append(type(error).__name__ == "StoreLocked")
        original(store, directory)

    monkeypatch.setattr(EngineStore, "_empty", empty)
    Store.open(path).close()
    assert seen == [True] and not grave.exists()


def test_a_salvage_whose_directory_was_swept_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who does not know of the lock has removed it: no session of nothing gets the name."""
    from scopelog import HandleFenced
    from scopelog_engine.salvage import _Salvage

    path = tmp_path / "store"
    image = build(path, closed=True)
    original = _Salvage.run

    def run(salvage: _Salvage, create: Any) -> Salvaged:
        done = original(salvage, create)
        for file in (path / TRASH_DIR).rglob("*"):
            if file.is_file():
                file.unlink()
        return done

    monkeypatch.setattr(_Salvage, "run", run)
    with Store.open(lay(path, image)) as store:
        with pytest.raises(HandleFenced):
            store.salvage(CHAT, NEW)
        assert store.sessions() == [CHAT]


def test_trash_that_cannot_be_locked_does_not_keep_a_store_from_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scopelog import UnsupportedPlatform

    path = tmp_path / "store"
    Store.open(path).close()
    (path / TRASH_DIR / "x").mkdir(parents=True)

    def acquire(*_: Any, **__: Any) -> WriterLock:
        raise UnsupportedPlatform("no flock", "none")

    monkeypatch.setattr(WriterLock, "acquire", acquire)
    Store.open(path).close()
    assert (path / TRASH_DIR / "x").exists()


# --- cost -------------------------------------------------------------------------------------------------------------


def test_a_damaged_stretch_is_not_held_in_memory(tmp_path: Path) -> None:
    """All of its elements were, decoded: 300 MB for a log of 82 KB."""
    path = tmp_path / "store"

    def work(session: Session) -> None:
        session.commit([MESSAGES.append("first")])
        for n in range(24):
            session.commit([MESSAGES.append(f"{n % 10}" * 4_000_000)])
        pad(session)

    image = broken(written(path, work), 2)
    with Store.open(lay(path, image)) as store:
        tracemalloc.start()
        report = store.salvage(CHAT)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert report.lost and sum(log.records for log in report.logs) == 64
    assert peak < 50_000_000, f"{peak:,} bytes"


# --- check ------------------------------------------------------------------------------------------------------------


def test_check_does_not_call_a_damaged_session_sound_because_it_is_in_use(tmp_path: Path) -> None:
    """Damage in the middle of a log that was open was taken for its end so far, and the verdict was sound."""
    path = tmp_path / "store"

    def work(session: Session) -> None:
        for n in range(8):
            session.commit([MESSAGES.append(n)])
        pad(session)

    image = written(path, work)
    with Store.open(lay(path, image)) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append("in use")])
        assert worst(store.check()) == 0
    image = {name: data for name, data in image_of(path).items() if not name.endswith("LOCK")}
    with Store.open(lay(path, broken(image, 3))) as store, store.session(CHAT):
        found = [finding for finding in store.check() if finding.severity != "note"]
        assert [(f.severity, f.reason, f.sequence) for f in found] == [("unread", "live", 2)]
        assert worst(store.check()) == 3
    with Store.open(path) as store:
        assert worst(store.check()) == 2


def test_check_says_of_no_scope_that_it_is_ahead_of_a_damaged_main(tmp_path: Path) -> None:
    """The end of the good prefix was taken for main's end; the scope went on at the next open."""
    path = tmp_path / "store"
    image = build(path, closed=True)
    last = max(f.first for f in frames_of(image[MAIN]) if f.kind == KIND_BATCH)
    first = min(f.first for f in frames_of(image[MAIN]) if f.kind == KIND_BATCH and f.first > 1)
    assert first < last
    with Store.open(lay(path, broken(image, 1))) as store:
        assert {finding.reason for finding in store.check()} == {"checksum"}


def test_the_hint_for_a_damaged_store_file_leads_out(tmp_path: Path) -> None:
    path = tmp_path / "store"
    image = build(path, closed=True)
    with pytest.raises(CorruptLog, match="move it away"):
        Store.open(lay(path, image | {"store.zst": bytes(50)}))
    (path / "store.zst").unlink()
    with Store.open(path) as store:
        assert store.sessions() == [CHAT] and worst(store.check()) == 0
