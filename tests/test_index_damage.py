"""Whatever becomes of the index's files, the answers are those of the log, and no process dies of it.

What LMDB might die of is tried in child processes, which must end by themselves.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import lmdb
import pytest

from scopelog import ManualClock, Store
from scopelog_engine.blocks import root_key
from scopelog_engine.lmdbenv import Changes, Database
from scopelog_engine.lmdbfile import IndexFile
from scopelog_engine.logindex import root_of
from tests.index_rig import (
    LISTS,
    NAME,
    SID,
    VALUES,
    answers,
    assert_same,
    build,
    change_some,
    covered,
    in_children,
    log_index,
    quiet_end,
    rebuild,
    small_values,
    vouch,
    with_index,
    without_index,
    write_some,
)
from tests.stores import flip, image_of, lay
from tests.unprivileged import drop_powers, owned_by_nobody

PAGE: Final = 4096
DATA: Final = "index/data.mdb"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_values(monkeypatch)


class Case:
    """A store with an index, its bytes, and what it answers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identity = build(path)
        self.image = image_of(path)
        self.data = self.image[DATA]
        with Store.open(path, clock=ManualClock()) as store:
            self.answers = without_index(store)
            assert with_index(store) == self.answers
            self.brief = {*with_index(store, every=4)}
        assert len(self.data) >= 8 * PAGE

    def lay(self, data: bytes) -> None:
        """The store with these bytes for a data file, which the stamp vouches for."""
        lay(self.path, {**self.image, DATA: data})
        vouch(self.path / "index", self.identity)

    def survive(self) -> None:
        """All is answered, a session is written to and covered, and it is answered again."""
        with Store.open(self.path, clock=ManualClock()) as store:
            assert with_index(store, every=4) == {k: v for k, v in self.answers.items() if k in self.brief}
            write_some(store, Random(9), 8)
            assert rebuild(store)
            assert covered(store) > 0
            assert_same(store, every=4)
        with Store.open(self.path, clock=ManualClock()) as store:
            assert store._store.index is not None and store._store.index.state()["dropped"] is None
            assert store._store.index.present


@pytest.fixture(name="case")
def _case(tmp_path: Path) -> Case:
    return Case(tmp_path / "s")


def _run(case: Case, cases: dict[str, bytes]) -> None:
    def work(name: str) -> None:
        case.lay(cases[name])
        case.survive()

    in_children(cases, work)


# --- bytes ----------------------------------------------------------------------------------------


@pytest.mark.fault(22, rig="M")
def test_cut_at_every_page_and_at_odd_lengths(case: Case) -> None:
    """A file that is shorter than its pages would be met beyond its end by a memory map: SIGBUS."""
    lengths = {*range(0, len(case.data), PAGE), 1, 15, 16, 100, 151, 152, PAGE - 1, PAGE + 151, 2 * PAGE + 1}
    lengths |= {length + 777 for length in range(0, len(case.data) - PAGE, 3 * PAGE)}
    _run(case, {f"cut at {length}": case.data[:length] for length in sorted(lengths)})


@pytest.mark.fault(22, rig="M")
def test_pages_that_are_none_and_flipped_bits(case: Case) -> None:
    """Every page in turn as zeros, as noise, and as another one; bits flipped in all pages, most in their heads."""
    random = Random(3)
    cases: dict[str, bytes] = {}
    for page in range(len(case.data) // PAGE):
        at = page * PAGE
        other = random.randrange(len(case.data) // PAGE) * PAGE
        for name, new in {
            "zeros": bytes(PAGE),
            "noise": random.randbytes(PAGE),
            "another": page.to_bytes(8, "little") + case.data[other + 8 : other + PAGE],
        }.items():
            cases[f"page {page}: {name}"] = case.data[:at] + new + case.data[at + PAGE :]
        for bit in (*random.sample(range(at * 8, at * 8 + 152 * 8), 4), at * 8 + random.randrange(PAGE * 8)):
            cases[f"bit {bit}"] = flip(case.data, bit)
    cases["all zeros"] = bytes(len(case.data))
    cases["all noise"] = random.randbytes(len(case.data))
    _run(case, cases)


@pytest.mark.fault(22, rig="M")
def test_lmdb_is_let_at_no_file_that_it_would_die_of(tmp_path: Path) -> None:
    """Hundreds of files with deep trees and lists of free pages, each damaged where LMDB looks: page numbers, lengths,
    counts, places of nodes, whole pages. What can be read is right, what is written to it stays, nobody dies."""

    def work(name: str) -> None:
        random = Random(int(name))
        directory = tmp_path / name
        file = IndexFile(str(directory), "store")
        held: dict[bytes, bytes] = {}
        for _ in range(12):
            change_some(file, held, random)
        whole = (directory / "data.mdb").read_bytes()
        known = dict(held)
        for _ in range(25):
            held = dict(known)
            (directory / "data.mdb").write_bytes(_damaged(whole, random))
            vouch(directory, "store")
            file = IndexFile(str(directory), "store")
            for key, data in file.scan(b""):  # blocks have checksums of their own: here it is enough to live
                assert len(key) < 600 and (data is None or len(data) < 2**20)
            file.get_all([*known][:20])
            intact = file.write(lambda changes: None, create=True) and file.get(b"mark") == b"1"
            held = dict(known) if intact else {}
            for _ in range(2):
                change_some(file, held, random)
            if not intact:
                assert dict(file.scan(b"")) == {**held, b"mark": b"1"}
            with (directory / "data.mdb").open("r+b") as there:  # at once, and while it is known to be sound
                data = _damaged(there.read(), random)
                there.seek(0)
                there.write(data)
                there.truncate(len(data))
            change_some(file, {}, random)
            shutil.rmtree(directory)
            directory.mkdir()
        shutil.rmtree(directory)

    in_children([str(n) for n in range(24)], work, each=6)


def _damaged(whole: bytes, random: Random) -> bytes:
    """One to four changes, mostly in pages of the trees."""
    data = bytearray(whole)
    pages = len(data) // PAGE
    trees = [page for page in range(pages) if data[page * PAGE + 10] in (1, 2, 8)]
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.choice(trees) * PAGE
        place = at + random.choice((0, 8, 10, 12, 14, *range(16, 160, 2), random.randrange(PAGE - 8)))
        match random.randrange(6):
            case 0:
                data[place] ^= 1 << random.randrange(8)
            case 1:
                data[place : place + 2] = random.getrandbits(16).to_bytes(2, "little")
            case 2:
                number = random.choice((0, 1, random.randrange(pages + 3), random.getrandbits(64)))
                data[place : place + 8] = number.to_bytes(8, "little")
            case 3:
                data[at : at + PAGE] = random.choice((bytes(PAGE), random.randbytes(PAGE)))
            case 4:
                other = random.choice(trees) * PAGE
                data[at + 8 : at + PAGE] = data[other + 8 : other + PAGE]
            case 5:
                del data[random.randrange(len(data)) :]
                data += bytes(len(whole) - len(data))
    return bytes(data[: random.choice((len(data), len(data), random.randrange(len(data))))])


@pytest.mark.fault(22, rig="M")
def test_damage_under_an_open_store(case: Case) -> None:
    """The file is changed in place while it is in use: what was proved before does not count for what is there now."""

    def damage(random: Random) -> None:
        with (case.path / DATA).open("r+b") as file:
            kind = random.randrange(3)
            if kind == 0:
                file.truncate(random.randrange(len(case.data)))
            else:
                file.seek(random.randrange(len(case.data) // PAGE) * PAGE)
                file.write(random.randbytes(PAGE) if kind == 1 else bytes(PAGE))

    def work(name: str) -> None:
        random = Random(int(name))
        case.lay(case.data)
        with Store.open(case.path, clock=ManualClock()) as store:
            with_index(store, every=4)
            write_some(store, random, 20)
            damage(random)
            assert_same(store, every=4)
            write_some(store, random, 20)
            damage(random)
            rebuild(store)
            assert_same(store, every=4)

    in_children([str(n) for n in range(20)], work)


# --- another file ---------------------------------------------------------------------------------


def _index(store: Store) -> Any:
    return store._store.index


@pytest.mark.fault(23, rig="M")
def test_an_older_index(case: Case) -> None:
    """Its cover ends earlier: what it says still holds, and the rest is walked."""
    with Store.open(case.path, clock=ManualClock()) as store:
        older = covered(store)
        write_some(store, Random(7), 60)
        assert covered(store) > older
        expected = without_index(store)
    (case.path / DATA).write_bytes(case.data)
    vouch(case.path / "index", case.identity)
    with Store.open(case.path, clock=ManualClock()) as store:
        assert covered(store) == older
        assert with_index(store) == expected
        write_some(store, Random(8), 20)
        assert covered(store) > older
        assert_same(store)


@pytest.mark.fault(23, 32, rig="M")
def test_an_index_younger_than_the_log(case: Case) -> None:
    """The session was put back from an older backup: its index speaks of frames that are not there, or are others."""
    with Store.open(case.path, clock=ManualClock()) as store:
        write_some(store, Random(7), 60)
    younger = {name: data for name, data in image_of(case.path).items() if name.startswith("index/")}
    lay(case.path, {**case.image, **younger})
    vouch(case.path / "index", case.identity)
    with Store.open(case.path, clock=ManualClock()) as store:
        assert with_index(store) == case.answers
        write_some(store, Random(11), 25)
        assert_same(store)
        write_some(store, Random(12), 90)
        assert_same(store)
        assert log_index(store).tree(store.reader(SID)._reader._now.views[""]) is not None


@pytest.mark.fault(23, 32, rig="M")
@pytest.mark.parametrize("patience", [0, 2])
def test_an_index_of_a_log_that_went_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    """Put back from a backup, the log was written on, to the byte as long as before: what the index covers ends where
    an index frame stands, but it is not the one that it covers."""
    monkeypatch.setattr("scopelog_engine.answers._PATIENCE", patience)
    # The store's id decides how well its frames compress, and so who finds out first.
    monkeypatch.setattr("scopelog_engine.store.secrets", SimpleNamespace(token_hex=lambda length: "01" * length))
    case = Case(tmp_path / "s")

    def go_on(key: int) -> int:
        """Frames too short to be compressed, and the index frame of a clean close. Returns where that stands."""
        lay(case.path, case.image)
        vouch(case.path / "index", case.identity)
        with Store.open(case.path, clock=ManualClock()) as store:
            with store.session(SID) as session:
                for number in range(4):
                    session.commit([VALUES[key].set(f"{key:04}-{number:04}")])
            with store.reader(SID) as reader:
                view = reader._reader._now.views[""]
                assert log_index(store).rebuild(view, view.end)
                assert_same(store)
                return view.tail.previous

    there = go_on(23)
    index = {name: data for name, data in image_of(case.path).items() if name.startswith("index/")}
    assert go_on(21) == there
    left = {**image_of(case.path), **index}
    for first in ("asked", "extended"):  # before anything else could find out
        lay(case.path, left)
        vouch(case.path / "index", case.identity)
        with Store.open(case.path, clock=ManualClock()) as store:
            if first == "extended":
                with store.session(SID) as session:
                    write = session._writer._main
                    while log_index(store)._trees == ():
                        session.commit([VALUES[3].set(Random(1).randbytes(300).hex())])
                        assert write.log is not None
                        part = write.log.view.closed_part()
                        if part.tail.start > there + 1000:
                            assert log_index(store).checkpoint(part, write.log.durable, least=0)
                        part.let_go()
            with store.reader(SID) as reader:
                assert reader.get(VALUES[21]) == "0021-0003"
    lay(case.path, left)
    vouch(case.path / "index", case.identity)
    with Store.open(case.path, clock=ManualClock()) as store:
        root = root_of(root_key(NAME), _index(store).file.get(root_key(NAME)))
        assert root is not None and root.at == there
        assert with_index(store)[f"get {VALUES[21]}"] == "0021-0003"
        assert_same(store)


@pytest.mark.fault(23, rig="M")
def test_a_foreign_index(case: Case, tmp_path: Path) -> None:
    """Of another store, with sessions of the same names: by its files, and by its bytes in ours."""
    other = tmp_path / "other"
    identity = build(other, seed=5)
    assert identity != case.identity
    for vouched in (False, True):
        lay(case.path, {**case.image, DATA: (other / DATA).read_bytes()})
        shutil.copy(other / "index" / "STAMP", case.path / "index" / "STAMP")
        if vouched:
            vouch(case.path / "index", case.identity)
        with Store.open(case.path, clock=ManualClock()) as store:
            assert _index(store).present == vouched
        case.survive()


@pytest.mark.fault(23, rig="M")
def test_a_copied_store(case: Case, tmp_path: Path) -> None:
    """``cp -r``: the stamp names the original's inode, so the copy is discarded unopened and made anew."""
    copy = tmp_path / "copy"
    shutil.copytree(case.path, copy)
    with Store.open(copy, clock=ManualClock()) as store:
        assert not _index(store).present
        assert with_index(store) == case.answers
        write_some(store, Random(2), 60)
        assert _index(store).present and covered(store) > 0
        assert_same(store)
    with Store.open(case.path, clock=ManualClock()) as store:
        assert with_index(store) == case.answers


@pytest.mark.parametrize(
    "stamp", [None, b"", b"garbage", b"00000000 {}", b"\0" * 5000], ids=["missing", "empty", "garbage", "bad", "zeros"]
)
@pytest.mark.fault(22, rig="M")
def test_a_stamp_that_says_nothing(case: Case, stamp: bytes | None) -> None:
    """Without its word the files are not even opened; the next checkpoint makes new ones."""
    path = case.path / "index" / "STAMP"
    path.unlink()
    if stamp is not None:
        path.write_bytes(stamp)
    with Store.open(case.path, clock=ManualClock()) as store:
        assert not _index(store).present
    case.survive()


@pytest.mark.parametrize("what", ["data.mdb", "STAMP", "LOCK", ""])
@pytest.mark.parametrize("thing", ["directory", "pipe", "link", "file"])
@pytest.mark.fault(22, rig="M")
def test_something_else_where_a_file_should_be(case: Case, what: str, thing: str, tmp_path: Path) -> None:
    """A directory, a pipe (which would block whoever opens it), a link that leads out of the store, a stray file."""
    path = case.path / "index" / what if what else case.path / "index"
    if what:
        path.unlink()
    else:
        shutil.rmtree(path)
    target = tmp_path / "outside"
    target.write_bytes(b"precious")
    if thing == "directory":
        (path / "deep").mkdir(parents=True)
    elif thing == "pipe":
        os.mkfifo(path)
    elif thing == "link":
        path.symlink_to(target)
    else:
        path.write_bytes(b"stray")

    def work(name: str) -> None:
        with Store.open(case.path, clock=ManualClock()) as store:
            assert with_index(store) == case.answers
            write_some(store, Random(1), 60)
            rebuild(store)
            assert_same(store)
            _index(store).discard()
            assert_same(store)

    in_children(["it"], work)
    assert target.read_bytes() == b"precious"


def test_a_session_that_was_deleted_and_made_again(case: Case) -> None:
    """Same name, other log: also where the removal from the index did not happen, the old tree is not believed."""
    with Store.open(case.path, clock=ManualClock()) as store:
        _index(store).file.write = lambda *_, **__: False
        store.delete_session(SID)
        assert store.sessions() == []
    with Store.open(case.path, clock=ManualClock(wall_ms=1_800_000_000_000)) as store:
        assert _index(store).state()["sessions"] == 1
        with store.session(SID) as session:
            session.commit([LISTS[0].append("first")])
            with store.reader(SID) as reader:
                assert log_index(store)._stored(reader._reader._now.views[""]) is None
        write_some(store, Random(21), 12)
        assert_same(store)
        write_some(store, Random(22), 80)
        assert_same(store)


@pytest.mark.fault(22, rig="M")
def test_the_directory_is_removed_while_it_is_in_use(case: Case) -> None:
    with Store.open(case.path, clock=ManualClock()) as store, store.reader(SID) as reader:
        assert answers(reader) == case.answers
        shutil.rmtree(case.path / "index")
        assert answers(reader) == case.answers
        assert_same(store)
        write_some(store, Random(3), 60)
        assert covered(store) > 0
        assert_same(store)


@pytest.mark.damages
def test_damage_in_the_log_is_told_as_without_an_index(case: Case) -> None:
    """An index never hides damage that an answer meets, and never makes an error of what the log answers."""
    main = case.image[f"{NAME}/main.zst"]
    random = Random(6)
    names = (f"{NAME}/main.zst",)
    met = passed_by = 0
    for _ in range(20):
        at = random.randrange(len(main) // 10, len(main) * 6 // 10)
        data = main[:at] + random.randbytes(4) + main[at + 4 :]
        lay(case.path, {**case.image, names[0]: data})
        vouch(case.path / "index", case.identity)
        with Store.open(case.path, clock=ManualClock()) as store:
            bare, indexed = without_index(store), with_index(store)
        for question, answer in bare.items():
            if indexed[question] == answer:
                met += str(answer).startswith("CorruptLog")
            else:  # the log alone meets the damage on its way: the index need not pass there
                assert str(answer).startswith("CorruptLog") and indexed[question] == case.answers[question]
                passed_by += 1
    assert met > 0 and passed_by > 0


# --- the machine ----------------------------------------------------------------------------------


def _put(size: int, count: int = 1, start: int = 0) -> Callable[[Changes], None]:
    def change(changes: Changes) -> None:
        for number in range(start, start + count):
            changes.put(b"k%05d" % number, bytes(size))

    return change


@pytest.mark.fault(24, rig="R")
def test_a_full_map_grows(tmp_path: Path) -> None:
    """Also while another handle has a smaller one: each transaction opens the file at its size."""
    one, other = IndexFile(str(tmp_path), "s"), IndexFile(str(tmp_path), "s")
    one.map_bytes = other.map_bytes = 64 * 1024
    assert one.write(_put(1000), create=True)
    assert one.write(_put(50_000, 40, 1), create=False) and one.map_bytes >= 2_000_000
    assert other.get(b"k00040") == bytes(50_000)
    assert other.write(_put(20, 1, 99), create=False)
    assert one.get(b"k00099") == bytes(20)


@pytest.mark.fault(24, rig="R")
def test_another_process_grows_the_map(tmp_path: Path) -> None:
    file = IndexFile(str(tmp_path), "s")
    file.map_bytes = 64 * 1024
    assert file.write(_put(1000), create=True)

    def work(name: str) -> None:
        other = IndexFile(str(tmp_path), "s")
        assert other.write(_put(100_000, 100, 1), create=False)

    in_children(["grow"], work)
    assert file.get(b"k00100") == bytes(100_000)
    assert file.write(_put(5, 1, 500), create=False) and file.get(b"k00500") == bytes(5)


@pytest.mark.fault(24, rig="R")
def test_a_limited_address_space(case: Case) -> None:
    """The map is as large as there is room for; without any room there is no index, and all goes on."""

    def work(name: str) -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = used + int(name) * 2**20
        case.lay(case.data)
        with Store.open(case.path, clock=ManualClock()) as store:
            assert with_index(store) == case.answers
            write_some(store, Random(1), 5)
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            rebuild(store)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert_same(store)

    in_children(["2000", "100", "40"], work, each=1)


def test_no_memory_maps(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that refuses maps: reads go on, nothing is written, and it is said why."""

    def refused(*_: object, **__: object) -> None:
        raise lmdb.Error("mmap: No such device")

    with Store.open(case.path, clock=ManualClock()) as store:
        monkeypatch.setattr(lmdb, "open", refused)
        assert with_index(store) == case.answers
        before = covered(store)
        write_some(store, Random(1), 60)
        assert covered(store) == before
        assert "No such device" in str(_index(store).state()["dropped"])
        assert_same(store)
    assert image_of(case.path)[DATA] == case.data


@pytest.mark.fault(24, rig="R")
def test_a_transaction_that_fails_costs_the_index_alone(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disk full, a failed sync: what the file holds then is not worth asking; it is made anew later."""

    def failing(database: Database, change: object) -> None:
        import scopelog_engine.lmdbenv as env

        raise env.Failed("mdb_txn_commit: No space left on device")

    with Store.open(case.path, clock=ManualClock()) as store:
        with monkeypatch.context() as patch:
            patch.setattr(Database, "transact", failing)
            write_some(store, Random(1), 60)
            assert not (case.path / DATA).exists()
            assert_same(store)
        write_some(store, Random(2), 60)
        assert covered(store) > 0
        assert_same(store)


@pytest.mark.fault(24, rig="R")
def test_stale_readers_of_lmdb_do_not_matter(case: Case) -> None:
    """A foreign tool was killed while it read: its slot in LMDB's own reader table is nothing to us."""
    options: dict[str, Any] = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}
    ready_out, ready_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        with quiet_end("a foreign reader"):
            environment = lmdb.open(str(case.path / "index"), readonly=False, max_readers=1, **options)
            transaction = environment.begin()
            transaction.get(b"x")
            os.write(ready_in, b"1")
            signal.pause()
    assert os.read(ready_out, 1) == b"1"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (case.path / "index" / "lock.mdb").exists()
    case.survive()


@pytest.mark.fault(24, rig="R")
def test_a_writer_that_is_stopped_holds_nobody_up(case: Case) -> None:
    """A process stands still inside a write transaction: others read, commit and close; the index waits."""
    ready_out, ready_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        with quiet_end("a stopped writer"):

            def stop(changes: Changes) -> None:
                changes.put(b"x", b"y")
                os.write(ready_in, b"1")
                os.kill(os.getpid(), signal.SIGSTOP)

            assert IndexFile(str(case.path / "index"), case.identity).write(stop, create=False)
    assert os.read(ready_out, 1) == b"1"
    os.waitpid(pid, os.WUNTRACED)
    with Store.open(case.path, clock=ManualClock()) as store:
        before = covered(store)
        assert with_index(store) == case.answers
        write_some(store, Random(1), 60)
        assert not _index(store).put_entries({NAME: b"entry"}, create=True)
        assert not _index(store).discard()
        assert not rebuild(store)
        assert covered(store) == before
        assert_same(store)
        os.kill(pid, signal.SIGCONT)
        assert os.waitpid(pid, 0)[1] == 0
        assert rebuild(store) and covered(store) > before
        assert _index(store).file.get(b"x") == b"y"
        assert_same(store)


@pytest.mark.fault(24, rig="K")
def test_a_writer_that_is_killed_leaves_the_state_before(case: Case) -> None:
    """Inside its transaction: nothing of it is there, and the lock is free."""
    ready_out, ready_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        with quiet_end("a killed writer"):

            def stop(changes: Changes) -> None:
                _put(3000, 300)(changes)
                os.write(ready_in, b"1")
                signal.pause()

            IndexFile(str(case.path / "index"), case.identity).write(stop, create=False)
    assert os.read(ready_out, 1) == b"1"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with Store.open(case.path, clock=ManualClock()) as store:
        assert _index(store).file.get(b"k00001") is None
    case.survive()


def _forked(work: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:
        with quiet_end("a fork"):
            signal.alarm(60)
            work()
    assert os.waitpid(pid, 0)[1] == 0


def test_a_fork_has_an_index_of_its_own(case: Case) -> None:
    """The child opens the store again and uses the index, the parent goes on with its own, and the child's end
    takes nothing from it."""
    with Store.open(case.path, clock=ManualClock()) as store:
        assert with_index(store) == case.answers
        write_some(store, Random(1), 60)

        def work() -> None:
            with Store.open(case.path, clock=ManualClock()) as own:
                assert _index(own).file is not _index(store).file
                assert_same(own)
                write_some(own, Random(2), 60)
                assert covered(own) > 0
                assert_same(own)

        _forked(work)
        assert_same(store)
        write_some(store, Random(3), 60)
        assert_same(store)


def test_a_fork_in_the_middle_of_a_transaction(case: Case) -> None:
    """Another thread is writing at that moment: the child has a copy of its lock and of its environment, uses neither,
    keeps neither alive, and the parent's transaction is not disturbed."""
    inside, forked = threading.Event(), threading.Event()

    def change(changes: Changes) -> None:
        changes.put(b"x", b"of the parent")
        inside.set()
        assert forked.wait(60)

    with Store.open(case.path, clock=ManualClock()) as store:
        file = _index(store).file
        thread = threading.Thread(target=lambda: file.write(change, create=False))
        thread.start()
        assert inside.wait(60)
        told_out, told_in = os.pipe()
        go_out, go_in = os.pipe()
        pid = os.fork()
        if pid == 0:
            with quiet_end("a fork"):
                signal.alarm(60)
                with Store.open(case.path, clock=ManualClock()) as own:
                    assert _index(own).file.get(b"x") is None
                    assert not _index(own).put_entries({"a": b"b"}, create=True)
                    os.write(told_in, b"1")
                    os.read(go_out, 1)
                    assert _index(own).file.get(b"x") == b"of the parent"
                    assert_same(own)
        assert os.read(told_out, 1) == b"1"
        forked.set()
        thread.join()
        assert file.get(b"x") == b"of the parent"
        assert rebuild(store)  # the child holds no lock, though it is alive
        os.write(go_in, b"1")
        assert os.waitpid(pid, 0)[1] == 0
        assert_same(store)


@pytest.fixture(name="read_only")
def _read_only(tmp_path: Path) -> Iterator[Path]:
    with owned_by_nobody(tmp_path, lambda base: Case(base / "s").path) as path:
        yield path


@pytest.mark.parametrize("mode", [0o500, 0o000])
@pytest.mark.fault(21, rig="R")
def test_a_directory_that_may_not_be_written(read_only: Path, mode: int) -> None:
    """Reads use what they may read; a session goes on without its cover growing; removal is refused, not raised."""
    (read_only / "index" / "LOCK").chmod(0o400)
    (read_only / "index" / DATA.split("/")[1]).chmod(0o400)
    (read_only / "index").chmod(mode)

    def work() -> None:
        drop_powers()
        with Store.open(read_only, clock=ManualClock()) as store:
            assert _index(store).present == (mode == 0o500)
            assert_same(store)
            before = covered(store)
            write_some(store, Random(1), 60)
            assert covered(store) == before
            assert not _index(store).discard()
            assert not _index(store).put_entries({"a": b"b"}, create=True)
            assert _index(store).state()["dropped"]
            assert_same(store)

    _forked(work)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works in other users' stores")
def test_root_leaves_the_index_to_whom_the_store_belongs(read_only: Path) -> None:
    """What root would make or make anew could not be used by the owner from then on."""
    for made in (True, False):
        with Store.open(read_only, clock=ManualClock()) as store:
            assert_same(store)
            assert not rebuild(store)
            assert not _index(store).put_entries({"a": b"b"}, create=True)
            assert not _index(store).discard()
        if made:
            assert (read_only / "index" / "data.mdb").exists()
            shutil.rmtree(read_only / "index")
        else:
            assert not (read_only / "index").exists()


def test_a_store_on_a_disk_of_tests_has_none() -> None:
    """Where paths are not the operating system's there is no index, and nothing asks for one."""
    from fuzz.simdisk import SimDisk

    with Store.open("/data/store", fs=SimDisk(), clock=ManualClock()) as store:
        assert store._store.index is None
        with store.session(SID) as session:
            session.commit([LISTS[0].append(1)])
            assert session.read(LISTS[0])[0].element == 1
