"""The catalogue: files say which sessions there are, logs what they hold; the index makes it quick, no more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scopelog import Finding, InvalidInput, ReadFailed, SessionInfo, Store, ephemeral, list_of, value
from scopelog_engine.catalogue import Entry, decode_entry, encode_entry
from scopelog_engine.fs import OsFile, OsFileSystem
from scopelog_engine.index import StoreIndex
from scopelog_engine.layout import INDEX_DIR, session_dir_name

from .children import child
from .stores import image_of, lay
from .unprivileged import drop_powers, owned_by_nobody

MANY = 70  # sessions that are worth an index
MESSAGES = list_of("chat", "messages")
ONE_EACH = (MANY + 2, MANY + 3)  # files opened and reads made of a filled store; a digest's header says its id
HASHED = "Ümläut/" + "X" * 80


class Watched(OsFileSystem):
    """The disk. Counts what logs are asked for, and refuses to tell the times of any."""

    def __init__(self) -> None:
        self.opened = self.reads = 0

    def open_readonly(self, path: str) -> OsFile:
        watch = self

        class File(OsFile):
            def pread(self, length: int, offset: int) -> bytes:
                watch.reads += 1
                return super().pread(length, offset)

            def identity(self) -> tuple[int, int]:
                raise AssertionError(f"{path} was asked for its times")

        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.opened += 1
        return File(fd)

    def identity(self, path: str) -> tuple[int, int] | None:
        assert not path.endswith(".zst"), f"{path} was asked for its times"
        return super().identity(path)

    def listed(self, store: Store, **how: Any) -> tuple[list[SessionInfo], int, int]:
        """What the catalogue says, and how many files were opened and read for it."""
        self.opened = self.reads = 0
        found = list(store.catalogue(**how))
        return found, self.opened, self.reads


def fill(store: Store, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        with store.session(f"session-{number:03}") as session:
            session.commit([MESSAGES.append(n) for n in range(number % 5)] + [value("chat", "state").set(number)])
            if number % 3 == 0:
                session.describe(name=f"Name {number}", labels={"n": number})


def without_index(path: Path, copy: Path, **how: Any) -> list[SessionInfo]:
    """What the catalogue says of a copy of the store that has no index."""
    lay(copy, {name: data for name, data in image_of(path).items() if not name.startswith(INDEX_DIR)})
    with Store.open(copy) as store:
        return list(store.catalogue(**how))


@pytest.fixture
def filled(store_path: Path) -> Path:
    with Store.open(store_path) as store:
        fill(store, MANY)
        with store.session(HASHED) as session:
            session.describe(name="hashed", labels={"deep": [1, {"a": None}]})
    assert "~" in session_dir_name(HASHED)
    assert (store_path / INDEX_DIR).exists()
    return store_path


@pytest.fixture
def index(filled: Path) -> Iterator[StoreIndex]:
    with Store.open(filled) as store:
        assert store._store.index is not None
        yield store._store.index


# --- what it costs ----------------------------------------------------------------------------------


def test_a_store_of_few_sessions_has_no_index(store_path: Path) -> None:
    with Store.open(store_path) as store:
        fill(store, 20)
        assert len(list(store.catalogue())) == 20
    assert not (store_path / INDEX_DIR).exists()


def test_a_session_that_was_closed_is_listed_by_one_read_of_its_log(filled: Path, tmp_path: Path) -> None:
    fs = Watched()
    with Store.open(filled, fs=fs) as store:
        found, opened, reads = fs.listed(store)
        assert (len(found), opened, reads) == (MANY + 1, *ONE_EACH)
        assert [info.id for info in found] == sorted(info.id for info in found)
        assert found == without_index(filled, tmp_path / "copy")
        hashed = next(info for info in found if info.id == HASHED)
        assert (hashed.name, hashed.labels) == ("hashed", {"deep": [1, {"a": None}]})


def test_what_had_to_be_computed_is_kept(filled: Path) -> None:
    """Where there is no index, a list of many sessions makes one, and where there is one it is mended."""
    shutil.rmtree(filled / INDEX_DIR)
    fs = Watched()
    with Store.open(filled, fs=fs) as store:
        first, _, reads = fs.listed(store)
        assert reads > ONE_EACH[1] and (filled / INDEX_DIR).exists()
        assert fs.listed(store) == (first, *ONE_EACH)
        with store.session("session-001") as session:
            session.commit([MESSAGES.append("more")])
        again, _, reads = fs.listed(store)
        assert again != first and len(again) == len(first) and reads == ONE_EACH[1]  # the closed session told of itself
    with Store.open(filled, fs=Watched()) as store, store.session("session-002") as session:
        session.commit([MESSAGES.append("more")])
        store._store.catalogue._index = None  # as if it could not be told
    with Store.open(filled, fs=fs) as store:
        _, _, reads = fs.listed(store)
        assert reads > ONE_EACH[1]
        _, _, reads = fs.listed(store)
        assert reads == ONE_EACH[1]


def test_a_list_that_is_not_read_to_its_end_reads_no_more_than_that(filled: Path) -> None:
    fs = Watched()
    with Store.open(filled, fs=fs) as store:
        found, opened, _ = fs.listed(store, limit=5)
        assert [info.id for info in found] == [f"session-{n:03}" for n in range(5)]
        assert opened == 6  # one for the id that a digest stands for
        found, opened, _ = fs.listed(store, ids="session-01?")
        assert (len(found), opened) == (10, 11)


# --- what is true -----------------------------------------------------------------------------------


def test_existence_is_told_by_files(filled: Path, tmp_path: Path) -> None:
    """An index hides no session and shows none that is gone, whatever it holds."""
    with Store.open(filled) as store:
        before = {info.id: info for info in store.catalogue()}
        shutil.rmtree(filled / "session-005.session")
        store.delete_session("session-006")
        fill(store, 3, start=MANY)
        (filled / "empty.session").mkdir()
        (filled / "a file.session").write_text("no session")
        after = {info.id: info for info in store.catalogue()}
        assert before.keys() - after.keys() == {"session-005", "session-006"}
        assert after.keys() - before.keys() == {f"session-{n:03}" for n in range(MANY, MANY + 3)}
        assert list(after) == store.sessions()
    shutil.rmtree(filled / INDEX_DIR)
    (filled / INDEX_DIR).mkdir()
    with Store.open(filled) as store:
        assert {info.id: info for info in store.catalogue()} == after


def test_a_deleted_session_leaves_nothing_in_the_index(filled: Path, index: StoreIndex) -> None:
    name = "session-003.session"
    assert dict(index.entries([name]))[name] is not None
    with Store.open(filled) as store:
        with store.session("session-003") as session:
            session.describe(name="still waiting to be written")
        store.delete_session("session-003")
        assert dict(index.entries([name]))[name] is None
    assert dict(index.entries([name]))[name] is None


@pytest.mark.damages
def test_an_entry_that_has_become_stale_is_not_used(filled: Path, tmp_path: Path) -> None:
    """The session went on: in another process, through a tear that was cut, or as another session of the same id."""
    with Store.open(filled) as store:
        before = {info.id: info for info in store.catalogue()}

        def go_on() -> str:
            with Store.open(filled) as other:
                other._store.catalogue._index = None  # a process that tells no index
                with other.session("session-001") as session:
                    session.commit([MESSAGES.append("more")])
                with other.session("session-004") as session:
                    session.commit([MESSAGES.append("left open")])
                    os._exit(0)

        pid = os.fork()
        if pid == 0:
            go_on()
        os.waitpid(pid, 0)
        with (filled / "session-002.session" / "main.zst").open("ab") as file:
            file.write(b"half a frame")
        other = image_of(filled)["session-007.session/main.zst"]
        shutil.rmtree(filled / "session-007.session")
        with Store.open(filled) as second:
            second._store.catalogue._index = None
            with second.session("session-007") as session:
                session.commit([value("chat", "state").set(7)])
        assert image_of(filled)["session-007.session/main.zst"] != other

        after = {info.id: info for info in store.catalogue()}
        assert {session for session in after if after[session] != before[session]} == {
            "session-001",
            "session-004",
            "session-007",
        }
        assert after["session-001"].elements == before["session-001"].elements + 1
        assert after["session-004"].elements == before["session-004"].elements + 1
        assert list(after.values()) == without_index(filled, tmp_path / "copy")
        with store.session("session-002") as session:
            assert session.recovery.torn_bytes == len(b"half a frame")


def test_entries_of_other_sessions_and_of_nonsense_are_not_used(
    filled: Path, index: StoreIndex, tmp_path: Path
) -> None:
    names = [f"session-{n:03}.session" for n in range(MANY)]
    known = dict(index.entries(names))
    forged: dict[str, bytes] = {}
    for n, name in enumerate(names[:20]):
        one, other = known[name], known[names[n + 20]]
        assert one is not None and other is not None
        forged[name] = (other, b"", b"nonsense", one[:-1], one + b"\0")[n % 5]
    assert index.put_entries(forged, create=False)
    with Store.open(filled) as store:
        assert list(store.catalogue()) == without_index(filled, tmp_path / "copy")


def test_entries_come_back_as_they_went_in() -> None:
    info = SessionInfo("id", "näme \ud800", {"deep": [{"a": "\udfff"}], "n": 10**400}, -5, 2**62, 3, 4, 5, 6, 70)
    data = encode_entry(info, b"a closing frame")
    assert data is not None
    entry = decode_entry(data)
    assert isinstance(entry, Entry) and entry.info() == info
    assert (entry.offset, entry.closing) == (55, b"a closing frame")
    assert encode_entry(info._replace(updated=2**64), b"frame") is None
    assert encode_entry(info._replace(labels={"a": "x" * 70_000}), b"frame") is None
    for size in range(len(data)):
        assert decode_entry(data[:size]) is None


def test_labels_that_are_too_large_for_an_entry_are_read_from_the_log(filled: Path) -> None:
    labels = {"large": "x" * 65_000, "more": "y" * 400}
    with Store.open(filled) as store:
        with store.session("session-001") as session:
            session.describe(name="n" * 1000, labels=labels)
        for _ in range(2):
            [info] = store.catalogue("session-001")
            assert (info.name, info.labels) == ("n" * 1000, labels)


@pytest.mark.parametrize("how", ["gone", "garbage", "empty", "older"])
def test_the_list_is_the_same_whatever_became_of_the_index(filled: Path, tmp_path: Path, how: str) -> None:
    older = image_of(filled)
    with Store.open(filled) as store:
        with store.session("session-001") as session:
            session.commit([MESSAGES.append("more")])
        store.delete_session("session-002")
    expected = without_index(filled, tmp_path / "copy")
    image = image_of(filled)
    for name in [name for name in image if name.startswith(INDEX_DIR)]:
        if how == "gone":
            del image[name]
        else:
            image[name] = {"garbage": b"\x93garbage" * 3000, "empty": b"", "older": older.get(name, b"")}[how]
    with Store.open(lay(filled, image)) as store:
        assert list(store.catalogue()) == expected
        assert list(store.catalogue()) == expected


def test_while_a_session_is_written_its_present_state_is_listed(filled: Path) -> None:
    with Store.open(filled) as store, store.session("session-010") as session:
        [before] = store.catalogue("session-010")
        for n in range(300):
            session.commit([MESSAGES.append("x" * 400)])
            if n % 50 == 0:
                [info] = store.catalogue("session-010")
                assert info == session.info()
                assert (info.elements, info.commits) == (before.elements + n + 1, before.commits + n + 1)


def test_a_list_beside_writers_in_other_processes(filled: Path) -> None:
    """Their sessions grow, are opened, closed, created and deleted; every list is of whole commits and in order."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        with Store.open(filled) as store:
            for round_ in range(40):
                with store.session("session-000") as session:
                    session.commit([MESSAGES.append(round_), MESSAGES.append(round_)])
                with store.session(f"new-{round_}") as session:
                    session.commit([MESSAGES.append(1)])
                if round_ % 2:
                    store.delete_session(f"new-{round_}")
        os._exit(0)
    os.close(write_end)
    seen = 0
    with os.fdopen(read_end, "rb") as pipe, Store.open(filled) as store:
        os.set_blocking(pipe.fileno(), False)
        while True:
            ended = pipe.read(1) == b""
            unreadable: list[Finding] = []
            found = list(store.catalogue(unreadable=unreadable))
            assert unreadable == []
            assert [info.id for info in found] == sorted({info.id for info in found})
            elements = next(info.elements for info in found if info.id == "session-000")
            assert elements >= seen and elements % 2 == 0
            seen = elements
            if ended:
                break
    assert os.waitpid(pid, 0)[1] == 0
    assert seen == 80
    assert [info.id for info in found if info.id.startswith("new-")] == sorted(f"new-{n}" for n in range(0, 40, 2))


# --- what cannot be read ----------------------------------------------------------------------------


@pytest.mark.damages
def test_damaged_and_foreign_sessions_are_told_of(filled: Path) -> None:
    data = image_of(filled)
    header = filled / "session-001.session" / "main.zst"
    header.write_bytes(b"\xff" + header.read_bytes()[1:-1])
    shutil.copytree(filled / "session-002.session", filled / "copied.session")
    shutil.copytree(filled / f"{session_dir_name(HASHED)}", filled / "renamed~0123.session")
    unreadable: list[Finding] = []
    with Store.open(filled) as store:
        found = [info.id for info in store.catalogue(unreadable=unreadable)]
        assert found == [*(f"session-{n:03}" for n in range(MANY) if n != 1), HASHED]
        told = {(Path(one.path).parent.name, one.severity, one.reason) for one in unreadable}
        assert told == {
            ("session-001.session", "corrupt", "header"),
            ("copied.session", "corrupt", "foreign"),
            ("renamed~0123.session", "note", "foreign"),
        }
        unreadable.clear()
        assert store.sessions(unreadable=unreadable) == sorted([*found, "session-001", "copied"])
        assert [one.severity for one in unreadable] == ["note"]
    assert {name: content for name, content in image_of(filled).items() if name in data and "main" in name} == {
        name: content for name, content in data.items() if "main" in name
    } | {"session-001.session/main.zst": header.read_bytes()}


def test_sessions_that_may_not_be_read_are_told_of(tmp_path_factory: pytest.TempPathFactory) -> None:
    """And an index that may be neither written nor read is done without."""

    def build(base: Path) -> Path:
        with Store.open(base / "store") as store:
            fill(store, MANY)
        return base / "store"

    with owned_by_nobody(tmp_path_factory.mktemp("unread"), build) as path:
        (path / "session-001.session").chmod(0)
        (path / "session-002.session" / "main.zst").chmod(0)
        for part in (path / INDEX_DIR).iterdir():
            part.chmod(0o400)
        (path / INDEX_DIR).chmod(0o500)

        def look() -> str:
            drop_powers()
            unreadable: list[Finding] = []
            with Store.open(path, create=False) as store:
                found = len(list(store.catalogue(unreadable=unreadable)))
            return f"{found} " + " ".join(f"{one.severity}:{Path(one.path).parent.name}" for one in unreadable)

        for mode in (0o500, 0):
            (path / INDEX_DIR).chmod(mode)
            with child(look) as answer:
                assert answer == f"{MANY - 2} unread:session-001.session unread:session-002.session"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look into a store of somebody else's")
def test_nobody_makes_an_index_in_the_store_of_somebody_else(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Root lists a user's store: an index of root's would be one that the user cannot use."""

    def build(base: Path) -> Path:
        with Store.open(base / "store") as store:
            fill(store, MANY)
        shutil.rmtree(base / "store" / INDEX_DIR)
        return base / "store"

    with owned_by_nobody(tmp_path_factory.mktemp("theirs"), build) as path:
        with Store.open(path, create=False) as store:
            assert len(list(store.catalogue())) == MANY
        assert not (path / INDEX_DIR).exists()


def test_a_store_that_cannot_be_listed_raises(filled: Path) -> None:
    class Unlisted(OsFileSystem):
        def list_dir(self, path: str) -> list[str]:
            raise PermissionError(13, "refused")

    with Store.open(filled, fs=Unlisted(), create=False) as store:
        for call in (store.catalogue, store.sessions):
            with pytest.raises(ReadFailed):
                call()


def test_a_lack_of_files_is_no_fault_of_the_sessions(filled: Path) -> None:
    class Exhausted(OsFileSystem):
        def open_readonly(self, path: str) -> OsFile:
            if path.endswith("main.zst") and "~" not in path:
                raise OSError(24, "too many open files")
            return OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    with Store.open(filled, fs=Exhausted()) as store, pytest.raises(ReadFailed) as caught:
        list(store.catalogue())
    assert "files" in caught.value.remedy


# --- which, and in which order ----------------------------------------------------------------------


def test_sorted_and_chosen(filled: Path) -> None:
    with Store.open(filled) as store:
        everything = list(store.catalogue())
        assert list(store.catalogue(reverse=True)) == everything[::-1]
        assert list(store.catalogue(reverse=True, limit=3)) == everything[:-4:-1]
        assert list(store.catalogue(limit=0)) == []
        for field in ("name", "created", "updated", "commits", "elements", "frames", "bytes"):
            place = SessionInfo._fields.index(field)
            found = list(store.catalogue(sort=field))
            keys = [(info[place] is not None, info[place], info.id) for info in found]
            assert keys == sorted(keys) and len(found) == len(everything)
            assert list(store.catalogue(sort=field, reverse=True)) == found[::-1]
            assert list(store.catalogue(sort=field, limit=7)) == found[:7]
            assert list(store.catalogue(sort=field, reverse=True, limit=7)) == found[:-8:-1]
        assert [info.id for info in store.catalogue("*-00[3-5]")] == [f"session-00{n}" for n in (3, 4, 5)]
        assert [info.id for info in store.catalogue("session-001")] == ["session-001"]
        assert list(store.catalogue("SESSION-001")) == []
        named = list(store.catalogue(where=lambda info: info.name is not None, sort="name", limit=2))
        assert [info.name for info in named] == ["Name 0", "Name 12"]


def test_arguments_that_mean_nothing_are_refused(store_path: Path) -> None:
    with Store.open(store_path) as store:
        for how in ({"sort": "size"}, {"limit": -1}, {"limit": True}, {"limit": 1.0}, {"ids": 7}):
            with pytest.raises(InvalidInput):
                list(store.catalogue(**how))
        assert list(store.catalogue()) == []
    with Store.open(store_path) as store:
        pass
    with pytest.raises(Exception, match="was closed"):
        store.catalogue()


def test_ephemeral_scopes_are_no_part_of_it(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([ephemeral("op").list_of("op", "steps").append(1)])
        [info] = store.catalogue()
        assert (info.commits, info.elements, info.frames, info.updated) == (0, 0, 0, 0)
        assert info.created > 0 and info.bytes > 0
