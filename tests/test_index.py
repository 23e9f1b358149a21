"""The index: blocks, LMDB's file read without LMDB, and answers that are those of the log, from any state of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scopelog import Durability, ManualClock, Session, Store, ephemeral, list_of, value
from scopelog_engine.blocks import (
    LEAST,
    VERSION,
    BadBlock,
    Leaf,
    LeafRef,
    ListAt,
    PageRef,
    RetiredAt,
    Root,
    Run,
    ValueAt,
    block_key,
    decode_block,
    decode_leaf,
    decode_page,
    decode_root,
    encode_block,
    encode_leaf,
    encode_page,
    encode_root,
)
from scopelog_engine.lmdbenv import Changes
from scopelog_engine.lmdbfile import IndexFile
from scopelog_engine.logindex import Job, LogIndex
from scopelog_engine.mdbpages import Snapshot
from scopelog_engine.mdbproof import verify
from tests.index_rig import (
    LISTS,
    SID,
    VALUES,
    answers,
    assert_same,
    build,
    change_some,
    covered,
    log_index,
    rebuild,
    small_values,
    with_index,
    without_index,
    write_some,
)

SEQUENCES = st.integers(1, 400)


@pytest.fixture(name="small")
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_values(monkeypatch)


# --- blocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"", b"x", b"text " * 1000], ids=["empty", "short", "compressed"])
def test_a_block_is_read_back_and_any_flipped_bit_is_seen(raw: bytes) -> None:
    """Every bit of a block counts, and so does the key that it stands under."""
    data = encode_block(b"key", raw)
    assert decode_block(b"key", data) == raw
    with pytest.raises(BadBlock):
        decode_block(b"kez", data)
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(BadBlock):
            decode_block(b"key", bytes(changed))
    for length in range(len(data)):
        with pytest.raises(BadBlock):
            decode_block(b"key", data[:length])


def test_a_block_claims_no_more_memory_than_a_block_may_take() -> None:
    """A forged length is refused before memory is taken, and what would be too long is not written."""
    forged = encode_block(b"k", b"a" * 5000)[:4] + (2**32 - 1).to_bytes(4, "little") + b"\0" * 40
    with pytest.raises(BadBlock):
        decode_block(b"k", forged)
    with pytest.raises(BadBlock):
        encode_block(b"k", bytes(64 * 2**20 + 1))


def _leaf() -> Leaf:
    pages = [PageRef(3, 9, 100, 1, 10), PageRef(4, 9, 100, 11, 20)]
    lists = [ListAt("n", "a", 0, pages, [Run(100, 2, 21, 30), Run(200, 1, 31, 31)]), ListAt("n", "b", 5, [], [])]
    return Leaf(lists, [RetiredAt(7, "op", 100), RetiredAt(9, "op", 200)], [ValueAt("n", "é", 100, 4)])


def _root(least: list[Any]) -> Root:
    leaves = [LeafRef(key, number, 1, 10) for number, key in enumerate(least, 3)]
    return Root(VERSION, b"log", 100, 150, 7, 9, 0, leaves, [1, 2])


def test_leaves_pages_and_roots_are_read_back() -> None:
    leaf, root = _leaf(), _root([LEAST, ("l", "n", "b"), ("v", "a", "")])
    assert decode_leaf(encode_leaf(leaf)) == leaf
    assert decode_root(encode_root(root)) == root
    assert root.size == 30
    runs = leaf.lists[0].runs
    assert decode_page(encode_page(runs)) == runs


def test_what_is_out_of_order_is_no_leaf_and_no_root() -> None:
    """Absence is told by order: a block in disorder would hide what it holds."""
    leaf = _leaf()
    runs = leaf.lists[0].runs
    for bad in (
        Leaf(leaf.lists[::-1], [], []),
        Leaf([], leaf.retired[::-1], []),
        Leaf([], [], [ValueAt("n", "b", 1, 1), ValueAt("n", "a", 1, 1)]),
        Leaf([], [], [ValueAt("n", "a", 1, 1), ValueAt("n", "a", 1, 2)]),
        Leaf([ListAt("n", "a", 0, leaf.lists[0].pages[::-1], [])], [], []),
        Leaf([ListAt("n", "a", 0, [], runs[::-1])], [], []),
        Leaf([ListAt("n", "a", 2**60, [], runs)], [], []),
    ):
        with pytest.raises(BadBlock):
            decode_leaf(encode_leaf(bad))
    for root in (_root([("l", "", "")]), _root([LEAST, ("v", "", ""), ("l", "", "")]), _root([LEAST, LEAST])):
        with pytest.raises(BadBlock):
            decode_root(encode_root(root))
    for garbage in (b"", b"\x90", b"\x93\x01\x02\x03", encode_leaf(leaf)[:-1], encode_leaf(leaf) + b"\0"):
        with pytest.raises(BadBlock):
            decode_leaf(garbage)
    with pytest.raises(BadBlock):
        decode_page(encode_page([Run(100, 1, 5, 4)]))


# --- LMDB's file without LMDB ---------------------------------------------------------------------


def _options() -> dict[str, Any]:
    return {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), transactions=st.integers(1, 25))
def test_pages_are_read_as_lmdb_wrote_them_and_their_structure_holds(
    tmp_path_factory: pytest.TempPathFactory, seed: int, transactions: int
) -> None:
    """Plain reads find what LMDB holds, key by key and in order; the proof accepts every file that LMDB leaves."""
    directory, random = tmp_path_factory.mktemp("mdb"), Random(seed)
    held: dict[bytes, bytes] = {}
    for _ in range(transactions):
        environment = lmdb.open(str(directory), map_size=2**30, lock=False, **_options())
        with environment.begin(write=True) as transaction:
            for _ in range(random.choice((0, 1, 30, 200))):
                key = b"%d" % random.randrange(900) + b"k" * random.randrange(120)
                if held and random.random() < 0.4:
                    key = random.choice(list(held))
                    transaction.delete(key)
                    del held[key]
                else:
                    held[key] = random.randbytes(random.choice((0, 5, 100, 2000, 20000)))
                    transaction.put(key, held[key])
        environment.close()
    with (directory / "data.mdb").open("rb") as file:
        state = Snapshot(lambda length, offset: os.pread(file.fileno(), length, offset), 2**40, 2**20)
        verify(lambda length, offset: os.pread(file.fileno(), length, offset), state.meta)
        assert {key: data for leaf in state.leaves(b"") for key, data in leaf} == held
        for key in [*held, b"", b"5", b"9" * 600]:
            assert state.get(key) == held.get(key)
            assert [k for leaf in state.leaves(key) for k, _ in leaf] == sorted(k for k in held if k >= key)
        several = [*held, *(random.randbytes(2) for _ in range(20))]
        for keys in (several, sorted(several), sorted(several, reverse=True)):
            assert state.get_all(keys) == [held.get(key) for key in keys]


def test_the_format_is_that_of_every_release_of_the_library(tmp_path: Path) -> None:
    """The data file's version is 1, chosen explicitly, and LMDB leaves no lock file."""
    file = IndexFile(str(tmp_path / "index"), "store")
    assert file.write(lambda changes: changes.put(b"k", b"v"), create=True)
    assert (tmp_path / "index" / "data.mdb").read_bytes()[16:24] == bytes.fromhex("dec0efbe01000000")
    assert sorted(os.listdir(tmp_path / "index")) == ["LOCK", "STAMP", "data.mdb"]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "index").iterdir()} == {0o600}
    assert (tmp_path / "index").stat().st_mode & 0o777 == 0o700
    data = (tmp_path / "index" / "data.mdb").stat()
    assert data.st_mtime_ns <= data.st_ctime_ns - 10**9, "any write from now on changes it, however coarse the clock"


def _putting(entries: dict[bytes, bytes]) -> Callable[[Changes], None]:
    def change(changes: Changes) -> None:
        for key, data in entries.items():
            changes.put(key, data)

    return change


def test_a_file_keeps_and_forgets_what_it_is_told(tmp_path: Path) -> None:
    """One handle's commits are seen by another at once; a change that raises changes nothing."""
    one, other = IndexFile(str(tmp_path), "store"), IndexFile(str(tmp_path), "store")
    assert other.get(b"a") is None
    assert not one.write(lambda changes: changes.put(b"a", b"1"), create=False)
    assert one.write(lambda changes: changes.put(b"a", b"1"), create=True)
    assert other.get(b"a") == b"1"

    def failing(changes: Any) -> None:
        changes.put(b"a", b"2")
        raise KeyError("changed its mind")

    with pytest.raises(KeyError):
        other.write(failing, create=True)
    assert one.get(b"a") == b"1"
    assert other.write(_putting({b"b%d" % n: bytes(n) for n in range(300)}), create=False)
    assert dict(one.scan(b"b29")) == {b"b29": bytes(29)} | {b"b%d" % n: bytes(n) for n in range(290, 300)}
    assert one.get_all([b"b7", b"none", b"a"]) == [bytes(7), None, b"1"]
    assert one.write(lambda changes: changes.remove_prefix(b"b"), create=False)
    assert list(other.scan(b"")) == [(b"a", b"1")]
    assert other.discard() and one.get(b"a") is None and other.size() == 0


def test_every_file_that_lmdb_leaves_is_taken(tmp_path: Path) -> None:
    """LMDB does not write pages that it allocated and freed again in one transaction: its file may end before the last
    page that it counts. Such a file is no damaged one, whatever is put into it and removed."""
    file, random, held = IndexFile(str(tmp_path), "store"), Random(8), dict[bytes, bytes]()
    for number in range(120):
        change_some(file, held, random)
        assert dict(file.scan(b"")) == {**held, b"mark": b"1"}
        if number % 10 == 0:
            file = IndexFile(str(tmp_path), "store")
        assert file.trouble is None and file.size() > 0


def test_readers_see_whole_states_while_a_writer_commits(tmp_path: Path) -> None:
    """Reads take no lock: what they return was committed at one time, though LMDB reuses pages meanwhile."""
    file = IndexFile(str(tmp_path), "store")
    keys = [b"%03d" % n for n in range(60)]

    def state(number: int) -> Callable[[Changes], None]:
        return _putting(dict.fromkeys(keys, b"%06d" % number * 200))

    assert file.write(state(0), create=True)
    done = threading.Event()
    torn: list[object] = []

    def read() -> None:
        other = IndexFile(str(tmp_path), "store")
        while not done.is_set():
            found = other.get_all(keys)
            if len(set(found)) != 1 and other.trouble is None:
                torn.append(found)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(60):
        assert file.write(state(number), create=False)
    done.set()
    for thread in threads:
        thread.join()
    assert not torn


# --- when it is there -----------------------------------------------------------------------------


def test_a_small_store_has_none(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        write_some(store, Random(1), 20)
        assert not (tmp_path / "s" / "index").exists()
        assert store._store.index is not None and not store._store.index.present
        assert_same(store)
        assert not (tmp_path / "s" / "index").exists()


@pytest.mark.usefixtures("small")
def test_it_appears_when_a_session_with_enough_of_log_is_closed(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", clock=ManualClock()) as store:
        write_some(store, Random(1), 3)
        assert not (tmp_path / "s" / "index").exists()
        write_some(store, Random(2), 60)
        assert covered(store) > 3000
        assert_same(store)
        state = store._store.index.state()  # type: ignore[union-attr]
        assert state["present"] and state["sessions"] == 1 and state["dropped"] is None
        assert int(state["bytes"] or 0) == (tmp_path / "s" / "index" / "data.mdb").stat().st_size
    assert (tmp_path / "s" / "index").is_dir()
    with Store.open(tmp_path / "s", create=False) as store:
        assert store.sessions() == [SID]


@pytest.mark.usefixtures("small")
def test_a_running_session_is_covered_in_the_background(tmp_path: Path) -> None:
    """The thread starts when a checkpoint is due, makes it, and ends; commits go on meanwhile."""
    with Store.open(tmp_path / "s") as store, store.session(SID) as session:
        index = store._store.index
        assert index is not None
        for number in range(60):
            session.commit([LISTS[0].append({"n": number, "text": "x" * 50}), VALUES[number % 9].set(number)])
            thread = index._thread
            if thread is not None:
                thread.join()
        assert covered(store) > 1500
        assert index._thread is None
        asked = [e.element["n"] for e in session.read(LISTS[0])]
        assert asked == list(range(60))
        assert_same(store)


@pytest.mark.usefixtures("small")
def test_a_session_that_is_closed_does_not_wait_for_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made by the thread, from a file that the session has let go of; closing the store sees to its end."""
    threads: list[str] = []
    may_go_on = threading.Event()
    checkpoint = LogIndex.checkpoint

    def recorded(index: LogIndex, *arguments: Any, **keywords: Any) -> bool:
        threads.append(threading.current_thread().name)
        assert may_go_on.wait(60)
        return checkpoint(index, *arguments, **keywords)

    monkeypatch.setattr(LogIndex, "checkpoint", recorded)
    store = Store.open(tmp_path / "s")
    write_some(store, Random(1))
    index = store._store.index
    assert index is not None and index._thread is not None and covered(store) == 0
    may_go_on.set()
    store.close()
    assert set(threads) == {"scopelog-index"} and index._thread is None
    with Store.open(tmp_path / "s") as store:
        assert covered(store) > 1500
        assert_same(store)


@pytest.mark.usefixtures("small")
def test_a_session_that_is_deleted_is_not_covered_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint was asked for before, and comes to nothing."""
    may_go_on = threading.Event()
    run = Job.run

    def later(job: Job) -> None:
        assert may_go_on.wait(60)
        run(job)

    monkeypatch.setattr(Job, "run", later)
    with Store.open(tmp_path / "s") as store:
        write_some(store, Random(1))
        store.delete_session(SID)
        may_go_on.set()
        index = store._store.index
        assert index is not None
        thread = index._thread
        if thread is not None:
            thread.join()
        assert index.state()["sessions"] == 0


@pytest.mark.usefixtures("small")
def test_no_thread_runs_beside_a_clock_that_stands_still(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", clock=ManualClock()) as store:
        with store.session(SID) as session:
            for number in range(60):
                session.commit([LISTS[0].append({"n": number, "text": "x" * 50})])
            assert store._store.index is not None and store._store.index._thread is None
            assert not (tmp_path / "s" / "index").exists()
        assert (tmp_path / "s" / "index").exists()


@pytest.mark.usefixtures("small")
def test_the_cover_never_reaches_above_the_durable_mark(tmp_path: Path) -> None:
    """What the log may still lose in a power cut is in no index: a session at PROCESS is covered once it was synced."""
    with Store.open(tmp_path / "s", clock=ManualClock(), durability=Durability.PROCESS) as store:
        session = store.session(SID)
        for number in range(60):
            session.commit([LISTS[0].append({"n": number, "text": "x" * 50})])
        log = session._writer._main.log
        assert log is not None
        before, index = log.durable, log_index(store)
        part = log.view.closed_part()
        assert part.end > 4000 > before
        index.checkpoint(part, before, least=0)
        assert index.covered() <= before
        index.checkpoint(part, 3000, least=0)
        assert 1500 < index.covered() <= 3000
        part.let_go()
        session.close()
        assert index.covered() > 4000


@pytest.mark.usefixtures("small")
def test_a_large_tree_waits_longer_for_its_next_checkpoint(tmp_path: Path) -> None:
    """Else random overwrites of a huge set of keys would write the whole tree again for every few bytes of log."""
    with Store.open(tmp_path / "s", clock=ManualClock()) as store:
        index = log_index(store)
        with store.session(SID) as session:
            for number in range(400):
                session.commit([value("many", f"{number:04}-{number * 7919 % 100000}").set(number)])
        tree = index._trees[0]
        assert tree.root.size // 2 > 1500
        with store.reader(SID) as reader:
            view = reader._reader._now.views[""]
            for durable in (view.end, tree.root.end + tree.root.size // 2 - 1):
                assert index.checkpoint(view, durable) and covered(store) == tree.root.end


# --- answers --------------------------------------------------------------------------------------

Op = tuple[str, int, int]
OPS = st.lists(
    st.tuples(
        st.sampled_from(["set", "set", "unset", "append", "append", "append", "trim", "delete", "retire", "live"]),
        st.integers(0, 7),
        SEQUENCES,
    )
    | st.tuples(st.sampled_from(["cover", "close", "rebuild", "ask", "discard"]), st.just(0), st.just(0)),
    min_size=20,
    max_size=120,
)


def _do(session: Session, op: Op) -> None:
    what, which, number = op
    lists = [list_of("n", f"{which % 4}"), list_of("m", f"{which % 2}")]
    if what == "set":
        session.commit([value("v", f"{number % 40:02}").set({"n": number, "text": "x" * (number % 90)})])
    elif what == "unset":
        session.commit([value("v", f"{number % 40:02}").delete()])
    elif what == "append":
        session.commit([lists[which % 2].append([number, "y" * (number % 150)]) for _ in range(number % 4 + 1)])
    elif what == "trim":
        session.commit([lists[which % 2].trim(number)])
    elif what == "delete":
        session.commit([lists[which % 2].delete()])
    elif what == "retire":
        session.commit([ephemeral(f"op-{which}").retire()])
    elif what == "live":
        session.commit([ephemeral(f"op-{which}").value("n", "state").set(number)])


def _compare(store: Store, session: Session) -> None:
    """Three views of one session: its reader and its writer with the index, and a reader of the log alone."""
    inner = session._writer
    bare = inner._snapshot(inner._main)
    if bare is None:
        return
    bare.let_go()
    whole = inner._snapshot(inner._main)
    assert whole is not None and whole.index is not None
    whole.let_go()
    bare.index = None
    for key in range(0, 40, 3):
        address = value("v", f"{key:02}").address
        assert whole.get(address) == bare.get(address)
    for prefix in ("", "1", "37"):
        assert whole.scan("v", prefix) == bare.scan("v", prefix)
    for namespace, keys in (("n", 4), ("m", 2)):
        for key in range(keys):
            address = list_of(namespace, f"{key}").address
            for above, below in ((0, 2**53), (20, 90), (60, 2**53)):
                for descending in (False, True):
                    got, expected = (
                        [*view.elements(address, above=above, below=below, descending=descending)]
                        for view in (whole, bare)
                    )
                    assert got == expected
    for after in (0, 25, 80):
        assert whole.retired_since(after) == bare.retired_since(after)
        assert whole.retired_since(after, {"op-1"}) == bare.retired_since(after, {"op-1"})


@settings(max_examples=60)
@given(ops=OPS)
def test_answers_are_those_of_the_log_at_any_time(tmp_path_factory: pytest.TempPathFactory, ops: list[Op]) -> None:
    """I5, over random histories with checkpoints, rebuilds and discards in between: values, scans, lists in both
    directions between any bounds, retirements."""
    with pytest.MonkeyPatch.context() as patch:
        small_values(patch)
        with Store.open(tmp_path_factory.mktemp("s"), clock=ManualClock()) as store:
            session = store.session(SID)
            for op in [*ops, ("cover", 0, 0), ("ask", 0, 0), ("close", 0, 0), ("ask", 0, 0)]:
                log = session._writer._main.log
                if op[0] == "close":
                    session.close()
                    session = store.session(SID)
                elif op[0] == "ask":
                    _compare(store, session)
                elif op[0] == "discard" and store._store.index is not None:
                    assert store._store.index.discard()
                elif op[0] in ("cover", "rebuild") and log is not None and log.born:
                    part, index = log.view.closed_part(), log_index(store)
                    if op[0] == "cover":
                        index.checkpoint(part, log.durable, least=0)
                    else:
                        index.rebuild(part, log.durable)
                    part.let_go()
                else:
                    _do(session, op)


@pytest.mark.usefixtures("small")
def test_every_answer_survives_the_loss_of_the_index_and_comes_back_with_it(tmp_path: Path) -> None:
    build(tmp_path / "s")
    with Store.open(tmp_path / "s", clock=ManualClock()) as store:
        expected = without_index(store)
        assert with_index(store) == expected
        assert len(expected["scopes"]) == 2
        index = store._store.index
        assert index is not None and index.discard() and not index.present
        assert with_index(store) == expected
        assert rebuild(store) and index.present
        assert with_index(store) == expected


@pytest.mark.usefixtures("small")
def test_an_index_says_no_more_than_a_view_may_know(tmp_path: Path) -> None:
    """A reader that was not refreshed answers as it did, also when the cover has grown beyond it, twice and thrice."""
    with Store.open(tmp_path / "s", clock=ManualClock()) as store:
        write_some(store, Random(1))
        with store.reader(SID) as early, store.reader(SID) as idle:
            expected = answers(early)
            for seed in (2, 3, 4):
                write_some(store, Random(seed), 40)
                assert answers(early) == expected
            assert answers(idle) == expected
            early.refresh()
            assert answers(early) == without_index(store) != expected


@pytest.mark.usefixtures("small")
def test_a_read_under_way_goes_on_when_its_tree_is_replaced(tmp_path: Path) -> None:
    """An iterator holds a tree whose blocks are removed under it: it goes on by the log, without a gap."""
    with Store.open(tmp_path / "s", clock=ManualClock()) as store:
        write_some(store, Random(1))
        with store.reader(SID) as reader:
            view = reader._reader._now.views[""]
            for descending in (False, True):
                expected = [record.sequence for record in view.elements(LISTS[0].address, descending=descending)]
                store._store.index.kept.__init__()  # type: ignore[union-attr, misc]
                under_way = view.elements(LISTS[0].address, descending=descending)
                got = [next(under_way).sequence for _ in range(5)]
                assert store._store.index is not None and store._store.index.discard()
                store._store.index.kept.__init__()  # type: ignore[misc]
                got += [record.sequence for record in under_way]
                assert got == expected
                assert rebuild(store)


@pytest.mark.usefixtures("small")
def test_a_list_is_cut_anywhere(tmp_path: Path) -> None:
    """Trims and a deletion at all places of a list with many runs, older ones in pages: what is alive stays known, and
    what is not goes."""
    target = LISTS[0]
    with Store.open(tmp_path / "s", clock=ManualClock()) as store, store.session(SID) as session:
        index, random = log_index(store), Random(1)
        for number in range(150):
            session.commit([target.append({"n": number, "text": "x" * 60}), VALUES[0].set(number)])
        log = session._writer._main.log
        assert log is not None
        for upto in [*range(0, 300, 23), 299, 320]:
            session.commit([target.trim(upto)])
            for _ in range(4):
                session.commit([VALUES[1].set(random.randbytes(200).hex())])
            part = log.view.closed_part()
            assert index.checkpoint(part, log.durable, least=0)
            part.let_go()
            entry = index._trees[0].list_of(target.address)
            if upto < 298:
                assert entry is not None and (upto > 200 or entry.pages) and entry.floor == upto
                assert (entry.pages or entry.runs)[0].last > upto
            else:
                assert entry is None
            assert [e.seq for e in session.read(target)] == [n for n in range(1, 300, 2) if n > upto]
            assert [e.seq for e in session.read(target, order="desc", limit=9)] == [
                n for n in range(299, 0, -2) if n > upto
            ][:9]
        session.commit([target.append(1)])
        assert_same(store)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("patience", [0, 1, 2, 3, 5])
def test_a_tree_that_is_asked_for_late_says_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    """Some stretches are walked before the disk is asked for a tree, which may cover them, too."""
    monkeypatch.setattr("scopelog_engine.answers._PATIENCE", patience)
    build(tmp_path / "s")
    with Store.open(tmp_path / "s", clock=ManualClock()) as store, store.reader(SID) as reader:
        view = reader._reader._now.views[""]
        assert view.tail.previous and log_index(store).rebuild(view, view.end)
        assert covered(store) == view.tail.start
    with Store.open(tmp_path / "s", clock=ManualClock()) as store:
        for address in LISTS:  # each by a reader of its own, which knows of no tree yet
            for order in ("asc", "desc"):
                with store.reader(SID) as reader:
                    got = [element.seq for element in reader.read(address, order=order)]
                    assert got == sorted(set(got), reverse=order == "desc")
        assert_same(store)


@pytest.mark.usefixtures("small")
def test_what_the_index_says_is_held_against_the_log(tmp_path: Path) -> None:
    """Blocks with good checksums that lie: about a value, a run, a retirement. Each is found out, told once, and the
    answers are those of the log."""
    build(tmp_path / "s")

    def lie(leaf: Leaf, kind: str) -> Leaf:
        if kind == "value" and leaf.values:
            return Leaf(leaf.lists, leaf.retired, [ValueAt(v.namespace, v.key, v.at, 1) for v in leaf.values])
        if kind == "run" and leaf.lists:
            shifted = [ListAt(e.namespace, e.key, e.floor, e.pages, [r._replace(elements=9) for r in e.runs])
                       for e in leaf.lists]  # fmt: skip
            return Leaf(shifted, leaf.retired, leaf.values)
        if kind == "retired":
            return Leaf(leaf.lists, [RetiredAt(r.sequence, "alive-1", r.at) for r in leaf.retired], leaf.values)
        return Leaf([], [], []) if kind == "nothing" else leaf

    for kind in ("value", "run", "retired", "nothing"):
        with Store.open(tmp_path / "s", clock=ManualClock()) as store:
            expected, index = without_index(store), log_index(store)
            assert rebuild(store)
            tree, home = index._trees[0], store._store.index
            assert home is not None
            for ref in tree.root.leaves:
                key, leaf = block_key(index._prefix, ref.number), lie(tree.leaf(ref), kind)
                if kind == "nothing":  # a leaf that was this one at another time
                    data = encode_block(key, encode_leaf(leaf))
                    assert home.file.write(_putting({key: data}), create=False)
                    home.kept.__init__()  # type: ignore[misc]
                else:
                    home.kept._blocks[key, ref.checksum] = leaf, 1
            assert with_index(store) == expected
            assert tree.checksum in index._refused
            assert rebuild(store)


def test_the_catalogue_keeps_entries_by_name(tmp_path: Path) -> None:
    """Entries are opaque; the order is the caller's; what was never kept is None; removal forgets the tree, too."""
    with Store.open(tmp_path / "s") as store:
        index = store._store.index
        assert index is not None
        names = [f"{n}.session" for n in range(700)]
        assert not index.put_entries({"a": b"1"}, create=False) and not index.present
        assert index.put_entries({name: name.encode() for name in names}, create=True)
        assert [*index.entries(reversed(names))] == [(name, name.encode()) for name in reversed(names)]
        assert [*index.entries(["none", "3.session"])] == [("none", None), ("3.session", b"3.session")]
        assert dict(index.entries()) == {name: name.encode() for name in names}
        assert index.remove(["3.session", "none"])
        assert [*index.entries(["3.session"])] == [("3.session", None)]
        assert index.state()["entries"] == 699
        for long in ({"n" * 256: b""}, {"n": bytes(64 * 1024 + 1)}):
            with pytest.raises(ValueError, match="too long"):
                index.put_entries(long, create=True)


@pytest.mark.usefixtures("small")
def test_a_deleted_session_leaves_nothing_in_the_index(tmp_path: Path) -> None:
    build(tmp_path / "s")
    with Store.open(tmp_path / "s", clock=ManualClock()) as store:
        index = store._store.index
        assert index is not None and index.state()["sessions"] == 1
        store.delete_session(SID)
        assert [*index.file.scan(b"")] == []
        write_some(store, Random(5))
        assert_same(store)


@pytest.mark.usefixtures("small")
def test_blocks_that_were_replaced_are_removed(tmp_path: Path) -> None:
    """The file does not grow with history: what two roots in a row do not name is gone."""
    with Store.open(tmp_path / "s", clock=ManualClock()) as store:
        index, home = log_index(store), store._store.index
        assert home is not None
        for seed in range(6):
            write_some(store, Random(seed), 40)
            root = index._trees[0].root
            stored = sum(1 for _ in home.file.scan(b"b"))
            pages = sum(len(entry.pages) for ref in root.leaves for entry in index._trees[0].leaf(ref).lists)
            assert stored == len(root.leaves) + pages + len(root.replaced)
