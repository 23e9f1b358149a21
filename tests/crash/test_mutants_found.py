"""Promises that no test held the engine to until a mutant outlived them all (see :mod:`fuzz.mutants`)."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from errno import EACCES, ENOLCK, ENOSPC
from pathlib import Path
from random import Random

import msgspec
import pytest

from fuzz.simdisk import LoseAll, SimDisk
from scopelog import (
    SESSION,
    Base,
    CorruptLog,
    Durability,
    HandleFenced,
    Json,
    ManualClock,
    OutcomeUnknown,
    ReadFailed,
    Records,
    Session,
    Store,
    UnsupportedPlatform,
    WriteFailed,
    ephemeral,
    list_of,
)
from scopelog_engine.codec import compress
from scopelog_engine.frame import Frame, encode_frame, parse_frame
from scopelog_engine.fs import OsFile
from scopelog_engine.header import KIND_MAIN, digest_of, new_header, parse_header
from scopelog_engine.layout import KIND_CLOSE, KIND_HEADER, scope_file_name, session_dir_name, session_id_of_dir
from scopelog_engine.logfile import LogFile
from scopelog_engine.mdbpages import BadPages, read_meta
from scopelog_engine.scan import PIECE, search
from tests.hooks import HookedFileSystem
from tests.stores import (
    CHAT,
    DELTAS,
    LOCK,
    MAIN,
    MESSAGES,
    SCOPE,
    TITLE,
    bare,
    frames_of,
    image_of,
    lay,
    records,
    sidecars_of,
)
from tests.test_threads import Gate, queued, run


class Bytes:
    """Bytes as a file."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def pread(self, length: int, offset: int) -> bytes:
        return self.data[offset : offset + length]

    def size(self) -> int:
        return len(self.data)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS syncs by fcntl")
@pytest.mark.fault(3, 11, 13, rig="M")
def test_on_a_real_disk_the_files_and_directories_that_count_are_synced(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated disk has syncs of its own: that the operating system is asked for them, and for those of the right
    files, only a real one can tell."""
    synced: list[tuple[str, int]] = []

    def watch(name: str) -> None:
        real = getattr(os, name)

        def call(fd: int) -> None:
            synced.append((name, os.fstat(fd).st_ino))
            real(fd)

        monkeypatch.setattr(os, name, call)

    def took(name: str, path: Path) -> bool:
        return (name, path.stat().st_ino) in synced

    watch("fdatasync")
    watch("fsync")
    directory = (store_path / MAIN).parent
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as session:
        assert took("fsync", store_path.parent)
        session.commit([TITLE.set(1)])
        assert took("fdatasync", store_path / MAIN) and took("fsync", directory) and took("fsync", store_path)
        synced.clear()
        session.commit([DELTAS.append(1)])
        assert not synced
        session.commit([DELTAS.append(2)], durability=Durability.POWER)
        (sidecar,) = directory.glob("*.scope.zst")
        assert took("fdatasync", sidecar) and took("fsync", directory)
        synced.clear()
        session.commit([TITLE.set(2)])
        assert synced == [("fdatasync", (store_path / MAIN).stat().st_ino)]


@pytest.mark.fault(8, rig="M")
def test_a_frame_is_found_wherever_the_pieces_of_a_search_are_cut() -> None:
    """A search reads the file in pieces: a frame that begins in the last bytes of one is found all the same."""
    for place in range(PIECE - 12, PIECE + 3):
        frame, _ = encode_frame(
            KIND_CLOSE,
            digest=7,
            previous=1,
            epoch=1,
            first=9,
            last=9,
            commits=0,
            raw_length=0,
            payload=b"",
            mark=place,
            offset=place,
        )
        data = Random(place).randbytes(place).replace(b"\x18", b"\x19") + frame + bytes(100)
        found = list(search(Bytes(data), "", 0, len(data), 7, PIECE))
        assert [(one.offset, one.mark) for one in found] == [(place, place)]


@pytest.mark.fault(26, rig="M")
def test_a_file_system_without_flock_is_refused_before_anything_is_written(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(fd: int, operation: int) -> None:
        raise OSError(ENOLCK, os.strerror(ENOLCK))

    with Store.open(store_path, clock=ManualClock()) as store:
        monkeypatch.setattr(fcntl, "flock", none)
        with pytest.raises(UnsupportedPlatform, match="flock"):
            store.session(CHAT)
        monkeypatch.undo()
        assert not (store_path / MAIN).exists()
        with store.session(CHAT) as session:  # the lock that was not granted is not kept
            session.commit([TITLE.set(1)])


@pytest.mark.fault(25, rig="M")
def test_a_compaction_puts_nothing_in_place_of_a_log_that_is_somebody_elses(store_path: Path) -> None:
    """The lock file is gone: whoever removed it has let somebody else in. Compacting is writing, too."""
    with Store.open(store_path, clock=ManualClock()) as store:
        session = store.session(CHAT)
        for n in range(50):
            session.commit([TITLE.set(n)])
        (store_path / LOCK).unlink()
        before = image_of(store_path)
        with pytest.raises(HandleFenced):
            session.compact()
        assert image_of(store_path) == before
        with pytest.raises(HandleFenced):
            session.close(force=True)
        assert image_of(store_path) == before


@pytest.mark.fault(3, 11, rig="S")
@pytest.mark.parametrize("how", ["shown", "shown and shown", "opened"])
def test_an_epoch_that_was_shown_never_comes_again(how: str) -> None:
    """Staged elements have an epoch and a sequence before any log does. The power goes: the next open must not give the
    same pair to something else, though no frame carries that epoch."""
    disk = SimDisk()

    def opened(at: SimDisk) -> Store:
        return Store.open("/store", fs=at, clock=ManualClock())

    with opened(disk) as store, store.session(CHAT) as session:
        session.commit([TITLE.set(1)])
    epochs = [1]
    for _ in range(2 if how == "shown and shown" else 1):
        session = opened(disk).session(CHAT)
        epochs.append(session.epoch)
        if how != "opened":
            session.append(MESSAGES, "staged")
            disk = disk.crash(LoseAll())
        else:
            disk = disk.kill()
    with opened(disk) as store, store.session(CHAT) as again:
        assert again.epoch > max(epochs) and epochs == sorted(set(epochs))
        assert again.read(MESSAGES) == []


@pytest.mark.fault(1, rig="S")
def test_sequences_go_on_above_those_of_every_file() -> None:
    disk = SimDisk()
    session = Store.open("/store", fs=disk, clock=ManualClock()).session(CHAT)
    session.commit([TITLE.set(1)])
    last = session.commit([DELTAS.append(n) for n in range(5)]).last
    disk = disk.kill()
    with Store.open("/store", fs=disk, clock=ManualClock()) as store, store.session(CHAT) as again:
        assert again.commit([TITLE.set(2)]).first == last + 1


@pytest.mark.fault(17, 18, rig="M")
def test_nothing_of_a_group_that_failed_is_left_in_the_log(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two large commits share one write, which ends behind the frame of the first: both are told that nothing was
    stored, and nothing is, also if nobody ever writes again."""
    fs = HookedFileSystem()
    with Store.open(store_path, fs=fs, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append("first")])
        gate = Gate(fs)
        leader = threading.Thread(target=lambda: session.commit([MESSAGES.append("leader")]))
        leader.start()
        assert gate.reached.wait(120)
        raised: list[BaseException | None] = []
        large = [Random(n).randbytes(150_000).hex() for n in range(2)]

        def group() -> None:
            raised.extend(run(*(lambda text=text: session.commit([MESSAGES.append(text)]) for text in large)))

        crowd = threading.Thread(target=group)
        crowd.start()
        queued(session, 2)
        write = OsFile.pwrite

        def cut(file: OsFile, data: bytes | memoryview, offset: int) -> int:
            frame = parse_frame(bytes(data), 0, offset, None)
            if not isinstance(frame, Frame) or len(data) < 300_000:
                return write(file, data, offset)
            write(file, data[: frame.length], offset)
            raise OSError(ENOSPC, os.strerror(ENOSPC))

        monkeypatch.setattr(OsFile, "pwrite", cut)
        gate.open.set()
        leader.join(120)
        crowd.join(120)
        monkeypatch.undo()
        assert [type(error) for error in raised] == [WriteFailed] * 2
        left = lay(store_path.with_name("copy"), image_of(store_path))
        assert [record.value for record in records(store)] == ["first", "leader"]
    with Store.open(left, clock=ManualClock()) as store, store.session(CHAT) as again:
        assert [element.element for element in again.read(MESSAGES)] == ["first", "leader"]


@pytest.mark.fault(10, rig="M")
def test_what_a_disk_gives_back_of_the_file_before_a_compaction_proves_nothing(store_path: Path) -> None:
    """Behind the end of a compacted log stands, at its old place, what the log held there before: blocks that the file
    system had freed, and hands out again unwritten. Those frames are of another generation."""
    with Store.open(store_path, clock=ManualClock()) as store:
        session = store.session(CHAT)
        for n in range(100):
            session.commit([TITLE.set({"n": n, "text": Random(n).randbytes(50).hex()})])
        old = bare(image_of(store_path)[MAIN])
        session.compact()
        session.close()
        new = image_of(store_path)
    assert len(new[MAIN]) < len(old) // 2
    lay(store_path, {**new, MAIN: new[MAIN] + old[len(new[MAIN]) :]})
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as again:
        assert [tail.length for tail in again.recovery.torn] == [len(old) - len(new[MAIN])]
        assert again.get(TITLE) == {"n": 99, "text": Random(99).randbytes(50).hex()}


@pytest.mark.fault(20, 21, rig="S")
def test_sequences_go_on_above_those_of_a_file_that_cannot_be_read() -> None:
    disk = SimDisk()
    session = Store.open("/store", fs=disk, clock=ManualClock()).session(CHAT)
    session.commit([TITLE.set(1)])
    last = session.commit([DELTAS.append(n) for n in range(5)]).last
    disk = disk.kill()
    disk.fail("pread", path=".scope.zst", persistent=True)
    with Store.open("/store", fs=disk, clock=ManualClock()) as store, store.session(CHAT) as again:
        assert again.recovery.unreadable
        assert again.commit([TITLE.set(2)]).first > last


@pytest.mark.fault(4, 5, rig="M")
@pytest.mark.parametrize("which", ["main", "sidecar"])
def test_a_torn_tail_is_cut_once(which: str, store_path: Path) -> None:
    """Not only written over later: what an open has cut is not there any more, and the next one has nothing to do."""
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([TITLE.set(1), MESSAGES.append("one")])
        session.commit([DELTAS.append("d" * 100)])
        session.commit([MESSAGES.append("two")])
        left = image_of(store_path)
    name = MAIN if which == "main" else sidecars_of(left)[0]
    whole = bare(left[name])
    lay(store_path, {**left, name: whole + Random(1).randbytes(200)})
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as session:
        assert session.recovery.torn_bytes == 200
        cut = image_of(store_path)
        assert cut[name] == whole
    lay(store_path, cut)
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as session:
        assert not session.recovery.torn


@pytest.mark.fault(2, 11, 15, rig="S")
@pytest.mark.parametrize("dropped", [False, True])
def test_what_a_repair_calls_durable_is(dropped: bool) -> None:
    """A log that was never synced has a torn tail. Once it is cut, what stays counts as durable: so it was synced, and
    written again before, for the kernel may have failed to write it back meanwhile (``dropped``) and told nobody."""
    disk = SimDisk()
    session = Store.open("/store", fs=disk, clock=ManualClock(), durability=Durability.PROCESS).session(CHAT)
    session.commit([TITLE.set(0)])
    for n in range(3):
        session.commit([MESSAGES.append(n)])
        session.commit([DELTAS.append(n)])
    disk = disk.kill()
    for path, data in disk.snapshot().items():
        if path.endswith((".scope.zst", "main.zst")):
            file = disk.open(path)
            file.pwrite(b"torn", len(bare(data)))
            file.truncate(len(bare(data)) + 4)
            if dropped:
                disk.fail("sync", path=path)
                with pytest.raises(OSError, match="error"):
                    file.sync()
            file.close()
    session = Store.open("/store", fs=disk, clock=ManualClock()).session(CHAT)
    assert len(session.recovery.torn) == 2
    assert session.durable_seq(SESSION, Durability.POWER) == 6
    assert session.durable_seq(SCOPE, Durability.POWER) == 7
    disk = disk.crash(LoseAll())
    with Store.open("/store", fs=disk, clock=ManualClock()) as store, store.session(CHAT) as again:
        assert [element.element for element in again.read(MESSAGES)] == [0, 1, 2]
        assert [element.element for element in again.read(DELTAS)] == [0, 1, 2]


@pytest.mark.fault(14, rig="M")
def test_files_that_never_got_their_name_are_swept(store_path: Path) -> None:
    with Store.open(store_path, clock=ManualClock()) as store:
        with store.session(CHAT) as session:
            session.commit([TITLE.set(1)])
        left = [store_path / f"{MAIN}{suffix}" for suffix in (".tmp", ".000000000160-0badcafe.torn.tmp")]
        for path in left:
            path.write_bytes(b"half of something that nobody was told of")
        with store.session(CHAT) as session:
            assert sorted(session.recovery.swept) == sorted(map(str, left))
            assert not any(path.exists() for path in left)


@pytest.mark.fault(10, rig="M")
def test_a_header_in_the_envelope_of_another_log_is_none(store_path: Path) -> None:
    """What a header says and the digest that its envelope carries are of one log, or every frame behind it would be
    refused for a reason that nobody finds."""
    header = new_header(KIND_MAIN, "00" * 16, session=CHAT)
    raw = msgspec.json.encode(msgspec.to_builtins(header)) + b"\n"
    for digest in (digest_of(header), digest_of(header) ^ 1):
        frame, _ = encode_frame(
            KIND_HEADER,
            digest=digest,
            previous=0,
            epoch=1,
            first=0,
            last=0,
            commits=0,
            raw_length=len(raw),
            payload=compress(raw),
            mark=-1,
            offset=0,
        )
        if digest == digest_of(header):
            assert parse_header(frame, "")[0] == header
        else:
            with pytest.raises(CorruptLog, match="digest of another log"):
                parse_header(frame, "")


@pytest.mark.fault(7, 11, rig="M")
def test_sequences_go_on_above_those_of_frames_that_were_cut(store_path: Path) -> None:
    """Behind a hole of zeros stand whole records that no mark covers. They go, and their numbers with them."""
    with (
        Store.open(store_path, clock=ManualClock(), durability=Durability.PROCESS) as store,
        store.session(CHAT) as session,
    ):
        session.commit([TITLE.set(0)])
        for n in range(5):
            last = session.commit([MESSAGES.append(n)]).last
        left = image_of(store_path)
    hole = frames_of(left[MAIN])[3]
    data = left[MAIN][: hole.offset] + bytes(hole.length) + left[MAIN][hole.end :]
    with Store.open(lay(store_path, {**left, MAIN: data}), clock=ManualClock()) as store, store.session(CHAT) as again:
        assert again.recovery.torn
        assert [element.element for element in again.read(MESSAGES)] == [0]
        assert again.commit([TITLE.set(1)]).first == last + 1


@pytest.mark.fault(12, 31, rig="S")
def test_a_life_whose_older_one_was_never_retired_is_set_aside() -> None:
    """The power goes while a retirement and what follows it are not synced: the old life's file survives, the new one's
    too, and main does not know of the retirement."""
    disk = SimDisk()
    session = Store.open("/store", fs=disk, clock=ManualClock(), durability=Durability.PROCESS).session(CHAT)
    session.commit([TITLE.set(0)])
    session.commit([DELTAS.append("old")])
    before = disk.snapshot()
    session.commit([SCOPE.retire()])
    session.commit([DELTAS.append("new")])
    disk = disk.kill()
    (main,) = [path for path in before if path.endswith("main.zst")]
    assert len([path for path in disk.snapshot() if path.endswith(".scope.zst")]) == 2
    disk.write_file(main, before[main])
    with Store.open("/store", fs=disk, clock=ManualClock()) as store, store.session(CHAT) as again:
        assert len(again.recovery.set_aside) == 1
        assert [element.element for element in again.read(DELTAS)] == ["old"]


@pytest.mark.fault(17, 19, rig="S")
def test_an_address_that_a_failed_commit_was_the_first_to_name_is_spelled_out_by_the_next() -> None:
    disk = SimDisk()
    with Store.open("/store", fs=disk, clock=ManualClock()) as store:
        with store.session(CHAT) as session:
            session.commit([MESSAGES.append(1)])
            disk.fail("pwrite", errno=ENOSPC, path="main.zst")
            with pytest.raises(WriteFailed):
                session.commit([TITLE.set("lost")])
            session.commit([TITLE.set("stored")])
        with store.session(CHAT) as session:
            assert session.get(TITLE) == "stored"
        assert store.check(deep=True) == []


@pytest.mark.fault(17, 19, rig="M")
def test_a_commit_that_fails_gives_back_no_sequence_while_younger_ones_are_given(store_path: Path) -> None:
    fs = HookedFileSystem()
    with Store.open(store_path, fs=fs, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([TITLE.set(0)])
        given: list[int] = []

        def fail(operation: str, path: str) -> None:
            if operation == "pwrite" and "main.zst" in path:
                fs.hook = lambda operation, path: None
                staging = threading.Thread(target=lambda: given.append(session.append(DELTAS, "staged meanwhile")))
                staging.start()
                staging.join(120)
                raise OSError(ENOSPC, os.strerror(ENOSPC))

        fs.hook = fail
        with pytest.raises(WriteFailed):
            session.commit([TITLE.set("lost")])
        given.append(session.append(DELTAS, "staged afterwards"))
        given.append(session.commit([TITLE.set(1)]).first)
        assert len(given) == 3 and given == sorted(set(given))


@pytest.mark.fault(35, rig="M")
@pytest.mark.parametrize("where", ["pwrite", "sync", "adopt"])
def test_a_commit_that_was_interrupted_is_in_no_file(
    where: str, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its write, before its sync, or behind both: the caller gets the interruption, and what was told as not
    stored is in no log from then on, also if nobody ever writes again; nor does it come with the next commit."""
    fs = HookedFileSystem()
    with Store.open(store_path, fs=fs, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([TITLE.set(0)])

        def interrupt(operation: str, path: str) -> None:
            if operation == where and "main.zst" in path:
                fs.hook = lambda operation, path: None
                raise KeyboardInterrupt

        fs.hook = interrupt
        with monkeypatch.context() as patch:
            if where == "adopt":
                patch.setattr(LogFile, "_adopt", lambda *_: interrupt("adopt", "main.zst"))
            with pytest.raises(KeyboardInterrupt):
                session.commit([TITLE.set("lost")])
        assert [record.value for record in records(store)] == [0]
        assert session.get(TITLE) == 0
        session.commit([TITLE.set(1)])
        assert [record.value for record in records(store)] == [0, 1]


@pytest.mark.fault(12, rig="S")
def test_a_scope_above_its_session_builds_on_what_main_has_synced() -> None:
    """The session runs at PROCESS, a commit of a scope at POWER: the power takes what main had not synced, and for that
    the scope must not be set aside."""
    disk = SimDisk()
    session = Store.open("/store", fs=disk, clock=ManualClock(), durability=Durability.PROCESS).session(CHAT)
    session.commit([TITLE.set(0)])
    session.commit([TITLE.set("not synced")])
    session.commit([DELTAS.append("durable")], durability=Durability.POWER)
    disk = disk.crash(LoseAll())
    with Store.open("/store", fs=disk, clock=ManualClock()) as store, store.session(CHAT) as again:
        assert again.get(TITLE) == 0
        assert [element.element for element in again.read(DELTAS)] == ["durable"]
        assert not again.recovery.set_aside


# --- compaction -------------------------------------------------------------------------------------------------------


def opened(disk: SimDisk, durability: Durability = Durability.POWER) -> Session:
    return Store.open("/store", fs=disk, clock=ManualClock(), durability=durability).session(CHAT)


def sidecars(disk: SimDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.snapshot().items() if path.endswith(".scope.zst")}


@pytest.mark.fault(33, rig="S")
def test_a_scope_that_was_staged_before_a_compaction_lives_on() -> None:
    """It has no file yet, and its first sequence lies below the last one of the compacted log."""
    disk = SimDisk()
    session = opened(disk)
    session.append(DELTAS, "staged")
    session.commit([TITLE.set(1)])
    session.compact()
    session.flush(Durability.POWER)
    again = opened(disk.kill())
    assert [element.element for element in again.read(DELTAS)] == ["staged"] and again.scopes() == [SCOPE.id]


@pytest.mark.fault(31, 33, rig="S")
def test_a_retirement_above_the_floor_stays_in_a_compacted_log() -> None:
    """A scope without a file holds the floor down; one above it was retired, and its file comes back."""
    disk = SimDisk()
    session = opened(disk)
    session.append(ephemeral("unborn").list_of("op", "x"), "staged")
    session.commit([DELTAS.append("over")])
    dead = sidecars(disk)
    session.commit([TITLE.set(1), SCOPE.retire()])
    session.compact()
    session.close()
    disk = disk.copy()
    for path, data in dead.items():
        disk.write_file(path, data)
    assert opened(disk).scopes() == ["unborn"]


@pytest.mark.fault(20, 21, 33, rig="S")
def test_a_floor_is_never_lowered() -> None:
    """A compaction drops a retirement below its floor. The next one is made while a sidecar cannot be read, which holds
    the floor down: it must not sink below the retired life, whose file comes back."""
    disk = SimDisk()
    session = opened(disk)
    session.commit([DELTAS.append("alive")], durability=Durability.POWER)
    other = ephemeral("op-2")
    session.commit([other.value("op", "state").set("over")], durability=Durability.POWER)
    alive = sidecars(disk).keys()
    session.commit([TITLE.set(1)])
    dead = {path: data for path, data in sidecars(disk).items() if path != min(alive)}
    session.commit([other.retire()])
    session.compact()
    session.close()
    disk = disk.copy()
    for path, data in dead.items():
        disk.write_file(path, data)
    disk.fail("open", errno=EACCES, path=".scope.zst", persistent=True)
    session = opened(disk)
    assert len(session.recovery.unreadable) == 2
    session.commit([TITLE.set(2)])
    session.compact()
    session.close()
    session = opened(disk.copy())
    assert session.scopes() == [SCOPE.id] and session.get(TITLE) == 2


@pytest.mark.fault(13, 15, rig="S")
def test_what_a_compacted_log_calls_durable_is_also_if_its_name_is_lost() -> None:
    """The directory cannot be synced behind the rename. Who follows what is durable was shown all of it; the power cut
    brings the old file back, and all of that must be in it."""
    disk = SimDisk()
    store = Store.open("/store", fs=disk, clock=ManualClock(), durability=Durability.PROCESS)
    session = store.session(CHAT)
    for n in range(4):
        session.commit([TITLE.set(n)])
    disk.fail("sync_dir", path=".session")
    with pytest.raises(OutcomeUnknown):
        session.compact()
    (base,) = store.follow(CHAT, durable=True).poll()
    assert isinstance(base, Base)
    with base.reader as reader:
        shown = reader.get(TITLE)
    assert shown == 3
    assert opened(disk.crash(LoseAll())).get(TITLE) == shown


@pytest.mark.damages
@pytest.mark.fault(8, rig="M")
def test_a_damaged_log_is_not_compacted_to_its_good_prefix(store_path: Path) -> None:
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as session:
        for n in range(6):
            session.commit([MESSAGES.append(n)])
        hole = frames_of(image_of(store_path)[MAIN])[3]
        with open(store_path / MAIN, "r+b") as file:
            file.seek(hole.payload_offset)
            file.write(bytes(hole.payload_length))
        before = image_of(store_path)
        with pytest.raises(CorruptLog) as caught:
            session.compact()
        assert caught.value.offset == hole.offset
        assert image_of(store_path) == before


# --- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault(31, rig="M")
def test_a_reader_says_of_a_renamed_sidecar_what_the_writer_says(store_path: Path) -> None:
    with Store.open(store_path, clock=ManualClock()) as store:
        with store.session(CHAT) as session:
            session.commit([TITLE.set(1)])
            session.commit([DELTAS.append("d")])
        (name,) = sidecars_of(image_of(store_path))
        (store_path / name).rename((store_path / name).with_name(scope_file_name(77)))
        with store.reader(CHAT) as reader:
            assert reader.scopes() == [] and reader.read(DELTAS) == []
        with store.session(CHAT) as session:
            assert session.scopes() == [] and len(session.recovery.set_aside) == 1


@pytest.mark.fault(20, rig="S")
def test_a_reader_does_not_answer_for_a_scope_that_it_cannot_read() -> None:
    disk = SimDisk()
    with Store.open("/store", fs=disk, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([TITLE.set(1)])
        session.commit([DELTAS.append("d")])
        disk.fail("pread", path=".scope.zst", persistent=True)
        with store.reader(CHAT) as reader:
            assert reader.get(TITLE) == 1
            with pytest.raises(ReadFailed):
                reader.read(DELTAS)
            disk.heal()
            reader.refresh()
            assert [element.element for element in reader.read(DELTAS)] == ["d"]


@pytest.mark.fault(38, rig="M")
def test_a_follower_knows_its_last_frame_from_another_in_its_place(store_path: Path) -> None:
    """What it was shown was lost with the power, and the next open has written something else there, to the byte as
    long."""
    follower = None
    with Store.open(store_path, clock=ManualClock(), durability=Durability.PROCESS) as store:
        session = store.session(CHAT)
        session.commit([MESSAGES.append("begin")])
        left = image_of(store_path)
        watching = Store.open(store_path, clock=ManualClock())
        follower = watching.follow(CHAT)
        follower.poll()
        session.commit([MESSAGES.append("lost")])
        (event,) = follower.poll()
        assert isinstance(event, Records) and [record.value for record in event.records] == ["lost"]
        session.close()
    lay(store_path, left)
    with Store.open(store_path, clock=ManualClock(), durability=Durability.PROCESS) as store:
        session = store.session(CHAT)
        session.commit([MESSAGES.append("anew")])
        (event,) = follower.poll()
        assert isinstance(event, Base)
        with event.reader as reader:
            assert [element.element for element in reader.read(MESSAGES)] == ["begin", "anew"]
        session.close()
    watching.close()


@pytest.mark.fault(20, 38, rig="S")
def test_a_poll_that_fails_behind_what_it_has_read_reads_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    with Store.open("/store", fs=disk, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append(0)])
        follower = store.follow(CHAT)
        follower.poll()
        session.commit([MESSAGES.append(1)])
        with monkeypatch.context() as patch:

            def unreadable() -> None:
                raise ReadFailed("main could not be read", "try again")

            patch.setattr(follower._follower, "_explain_ghosts", unreadable)
            with pytest.raises(ReadFailed):
                follower.poll()
        (event,) = follower.poll()
        assert isinstance(event, Records) and [record.value for record in event.records] == [1]


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_what_waits_to_be_joined_is_not_the_callers_object(store_path: Path) -> None:
    def chain(run: Sequence[Json]) -> Iterator[tuple[Json, int]]:
        yield [item for element in run for item in element], len(run)

    joined = list_of("chat", "joined", coalescer=chain)
    element = [1]
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.append(joined, element)
        element.append(2)
        session.append(joined, element)
        element.append(3)
        session.flush()
        assert [stored.element for stored in session.read(joined)] == [[1, 1, 2]]


@pytest.mark.parametrize(
    ("session", "name"), [(".", "%2e"), ("..", "%2e."), (".a.b", "%2ea.b"), ("aA", "a%41"), ("a/..", "a%2f..")]
)
def test_a_directory_is_never_hidden_and_in_one_case(session: str, name: str) -> None:
    assert session_dir_name(session) == f"{name}.session"
    assert session_id_of_dir(f"{name}.session") == session


@pytest.mark.fault(23, rig="M")
def test_an_index_that_was_moved_here_from_another_store_is_not_opened(tmp_path: Path) -> None:
    """By a rename its data file keeps its inode: the stamp says whose it is."""
    for name in ("ours", "theirs"):
        with Store.open(tmp_path / name, clock=ManualClock()) as store:
            with store.session(CHAT) as session:
                session.commit([TITLE.set(name)])
            assert store._store.index is not None
            assert store._store.index.put_entries({f"{name}.session": b"x"}, create=True)
            assert store.index_state()["present"]
    shutil.rmtree(tmp_path / "ours" / "index")
    (tmp_path / "theirs" / "index").rename(tmp_path / "ours" / "index")
    with Store.open(tmp_path / "ours", clock=ManualClock()) as store:
        assert not store.index_state()["present"]


@pytest.mark.fault(21, rig="M")
def test_no_index_is_made_in_a_store_of_somebody_else(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, and would lock the store's owner out of what it has made there."""
    somebody = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody)
    with Store.open(store_path, clock=ManualClock()) as store:
        assert store._store.index is not None
        assert not store._store.index.put_entries({"s.session": b"x"}, create=True)
        assert not (store_path / "index").exists()


@pytest.mark.fault(22, rig="M")
def test_a_data_file_is_as_long_as_its_meta_page_says(tmp_path: Path) -> None:
    """Held before anything else is read: pages that are missing may be in no tree, and LMDB writes to them."""
    with Store.open(tmp_path / "s", clock=ManualClock()) as store:
        assert store._store.index is not None
        assert store._store.index.put_entries({f"{n}.session": b"x" * 500 for n in range(50)}, create=True)
    data = (tmp_path / "s" / "index" / "data.mdb").read_bytes()
    meta = read_meta(Bytes(data).pread, len(data))
    needed = (meta.last + 1) * meta.page
    assert needed <= len(data)
    with pytest.raises(BadPages, match="shorter"):
        read_meta(Bytes(data).pread, needed - 1)
