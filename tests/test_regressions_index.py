"""Regressions of the index, the catalogue, ``check`` and of what recovery reports: each test tells its story."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any, Final, cast

import lmdb
import msgspec
import pytest

from scopelog import SESSION, Durability, ManualClock, Store, list_of
from scopelog_engine import blocks, catalogue, lmdbenv, logfile
from scopelog_engine.layout import KIND_INDEX, session_dir_name
from scopelog_engine.lmdbenv import Changes
from scopelog_engine.lmdbfile import index_file
from scopelog_engine.logindex import Job

from . import index_rig as rig
from .cli_rig import call
from .stores import frames_of

LINES: Final = list_of("a", "b")


def forged(path: Path, kind: str) -> None:
    """Put a root, or leaves, into the index whose checksums hold and whose numbers no writer ever gave."""
    with Store.open(path, clock=ManualClock()) as store:
        assert store._store.index is not None
        file = store._store.index.file
        held = dict(file.scan(b""))
        key, prefix = blocks.root_key(rig.NAME), blocks.tree_prefix(rig.NAME)
        data = held[key]
        assert data is not None
        root = blocks.decode_root(blocks.decode_block(key, data))
        puts: dict[bytes, bytes] = {}
        if kind.startswith("at "):
            at = int(kind.removeprefix("at "))
            refs = []
            for ref in root.leaves:
                place = blocks.block_key(prefix, ref.number)
                stored = held[place]
                assert stored is not None
                leaf = blocks.decode_leaf(blocks.decode_block(place, stored))
                moved = blocks.Leaf(
                    leaf.lists,
                    [msgspec.structs.replace(entry, at=at) for entry in leaf.retired],
                    [msgspec.structs.replace(entry, at=at) for entry in leaf.values],
                )
                puts[place] = blocks.encode_block(place, blocks.encode_leaf(moved))
                refs.append(
                    msgspec.structs.replace(ref, checksum=blocks.checksum_of(puts[place]), size=len(puts[place]))
                )
            root = msgspec.structs.replace(root, leaves=refs)
        elif kind == "number":
            root = msgspec.structs.replace(root, leaves=[msgspec.structs.replace(r, number=-5) for r in root.leaves])
        else:
            root = msgspec.structs.replace(root, next=int(kind))
        puts[key] = blocks.encode_block(key, blocks.encode_root(root))

        def change(changes: Changes) -> None:
            for place, block in puts.items():
                changes.put(place, block)

        assert file.write(change, create=False)


@pytest.mark.parametrize("kind", ["number", "-7", str(2**64 - 1), "at -9", f"at {2**63 + 5}", f"at {2**40}"])
def test_numbers_that_no_writer_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A block whose checksum held, and that named a negative or a huge place, ended a ``get`` with OverflowError or
    ReadFailed, and the thread that makes checkpoints for good."""
    rig.small_values(monkeypatch)
    path = tmp_path / "s"
    rig.build(path, seed=3)
    forged(path, kind)
    with Store.open(path, clock=ManualClock()) as store:
        rig.assert_same(store)
    with Store.open(path, clock=ManualClock()) as store:
        rig.write_some(store, random.Random(5))
        rig.assert_same(store)


@pytest.mark.parametrize(
    "change", [{"offset": 2**63 + 1}, {"offset": 2**63 - 2}, {"name": b"{{{"}, {"name": b"[]"}, {"labels": b"[1]"}]
)
def test_an_entry_that_no_writer_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    """An entry of the catalogue with an offset beyond any file hid its session ("it cannot be read"), or ended the
    listing with OverflowError; one whose name was no JSON ended it with ValueError."""
    monkeypatch.setattr(catalogue, "_MANY", 1)
    with Store.open(tmp_path / "s") as store, store.session("c") as session:
        session.commit([LINES.append(1)])
    with Store.open(tmp_path / "s") as store:
        assert store._store.index is not None
        before = list(store.catalogue())
        name = session_dir_name("c")
        ((_, data),) = store._store.index.entries([name])
        assert data is not None
        entry = catalogue.decode_entry(data)
        assert entry is not None
        false = msgspec.msgpack.encode(msgspec.structs.replace(entry, **change))
        assert store._store.index.put_entries({name: false}, create=False)
        assert list(store.catalogue()) == before


def test_a_log_that_ends_with_an_index_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that follows an index frame was torn off, and the log ended with that frame, whose mark is its own place:
    ``durable_seq`` said 0 then, as if nothing that was acknowledged at POWER had been."""
    monkeypatch.setattr(logfile, "STRETCH_BYTES", 700)
    store = Store.open(tmp_path / "s")
    session = store.session("c")
    for number in range(60):
        session.commit([LINES.append(f"x{number}" * 9)])
    log = tmp_path / "s" / session_dir_name("c") / "main.zst"
    index = [frame for frame in frames_of(log.read_bytes()) if frame.kind == KIND_INDEX][-1]
    shutil.copytree(tmp_path / "s", tmp_path / "cut")
    store.close()
    os.truncate(tmp_path / "cut" / session_dir_name("c") / "main.zst", index.end)
    with Store.open(tmp_path / "cut", create=False) as store:
        with store.reader("c") as reader:
            assert reader.durable_seq(SESSION, Durability.POWER) == reader.durable_seq() == index.last
        with store.session("c") as session:
            assert session.durable_seq(SESSION, Durability.POWER) == index.last


@pytest.mark.damages
def test_check_sees_two_histories_in_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies of a store went separate ways, and the first stretch of one was put before the rest of the other. All
    checksums of stretches hold, offsets and sequences meet: a check that was not deep called the log sound. The
    chain alone tells."""
    monkeypatch.setattr(logfile, "STRETCH_BYTES", 900)
    root = tmp_path / "root"
    with Store.open(root, clock=ManualClock()) as store, store.session("c") as session:
        session.commit([LINES.append("first")])
    seen: dict[tuple[int, int], bytes] = {}
    for number in range(100):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(root, copy)
        text = "".join(random.Random(number).choices("abcdefgh", k=6))
        with Store.open(copy, clock=ManualClock()) as store, store.session("c") as session:
            for line in range(30):
                session.commit([LINES.append(f"{text}{line:04}")])
        log = copy / session_dir_name("c") / "main.zst"
        data = log.read_bytes()
        first = next(frame for frame in frames_of(data) if frame.kind == KIND_INDEX)
        other = seen.setdefault((first.offset, first.end), data)
        if other[: first.end] != data[: first.end]:
            log.write_bytes(other[: first.end] + data[first.end :])
            with Store.open(copy, create=False) as store:
                found = store.check()
                assert [(one.severity, one.reason, one.offset) for one in found] == [("corrupt", "chain", first.end)]
                assert store.check(deep=True) == found
            return
    raise AssertionError("no two copies were cut at the same places")


@pytest.mark.fault(24, rig="R")
def test_a_map_that_cannot_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where address space is limited, a map too small for a transaction was doubled, refused, quartered, and so on for
    ever. And a transaction that did not fit, which changes nothing, cost the whole index."""
    file = index_file(str(tmp_path / "index"), "ab" * 16)
    assert file.write(lambda changes: changes.put(b"a", b"b"), create=True)
    opened, tries = lmdb.open, 0

    def scarce(*arguments: Any, **options: Any) -> Any:
        nonlocal tries
        tries += 1
        assert tries < 100, "it would never end"
        if options["map_size"] > 4 * 2**20:
            raise lmdb.MemoryError("no room")
        return opened(*arguments, **options)

    monkeypatch.setattr(lmdb, "open", scarce)

    def too_much(changes: Changes) -> None:
        for number in range(9000):
            changes.put(b"k%07d" % number, bytes(1000))

    assert not file.write(too_much, create=True)
    assert file.get(b"a") == b"b"
    assert file.write(lambda changes: changes.put(b"c", b"d"), create=True)
    assert lmdbenv.MAP_BYTES > file.map_bytes >= 2**20


def test_the_thread_of_checkpoints_can_be_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that raised what it should not ended the thread, and no other was started for the store's life."""
    ran: list[str] = []

    class Broken:
        log = view = None

        def run(self) -> None:
            ran.append("once more")
            raise ZeroDivisionError

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with Store.open(tmp_path / "s", clock=ManualClock()) as store:
        index = store._store.index
        assert index is not None
        for count in (1, 2):
            index.ask(cast(Job, Broken()))
            for thread in threading.enumerate():
                if thread.name == "scopelog-index":
                    thread.join()
            assert len(ran) == count


def test_an_index_is_found_by_its_real_path(tmp_path: Path) -> None:
    """Two stores on one path, one through a link: they share an index by the path of the first. The link was led to
    another store, and the next write through it removed that store's index."""
    for name in ("one", "two"):
        Store.open(tmp_path / name).close()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "one")
    with Store.open(link) as store, Store.open(tmp_path / "two") as other:
        mine, others = store._store.index, other._store.index
        assert mine is not None
        assert others is not None
        assert others.put_entries({"a": b"theirs"}, create=True)
        assert not mine.present
        link.unlink()
        link.symlink_to(tmp_path / "two")
        assert mine.put_entries({"a": b"ours"}, create=True)
        assert list(others.entries()) == [("a", b"theirs")]
        assert list(mine.entries()) == [("a", b"ours")]


def test_a_limit_beyond_all_sizes(tmp_path: Path) -> None:
    """``ls -n`` with a number above 63 bits ended with a traceback; so did :meth:`Store.catalogue`."""
    with Store.open(tmp_path / "s") as store:
        with store.session("c") as session:
            session.commit([LINES.append(1)])
        assert [info.id for info in store.catalogue(limit=10**30)] == ["c"]
    found = call("ls", tmp_path / "s", "-n", 10**30)
    assert found.exit_code == 2
    assert "not in the range" in found.output


def test_a_commit_of_what_is_no_json_claims_nothing(tmp_path: Path) -> None:
    """``commit`` told of a line that is no JSON that "the lines before it are stored", as ``record`` may: none was."""
    (tmp_path / "writes").write_text('{"op": "append", "list": "a", "element": 1}\n{"op":\n')
    found = call("commit", tmp_path / "s", "c", tmp_path / "writes")
    assert found.exit_code == 2
    assert "line 2" in found.output
    assert "nothing was stored" in found.output
    assert "are stored" not in found.output
    assert not (tmp_path / "s").exists()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="which descriptors are open is read from /proc")
def test_a_child_closes_the_files_of_readers(tmp_path: Path) -> None:
    """A forked child closed its copies of a writer's logs, and kept those of readers open for as long as it lived."""
    with Store.open(tmp_path / "s") as store:
        with store.session("c") as session:
            session.commit([LINES.append(1)])
        with store.reader("c") as reader:
            child = os.fork()
            if child == 0:
                held = 0
                for number in os.listdir("/proc/self/fd"):
                    with contextlib.suppress(OSError):
                        held += os.readlink(f"/proc/self/fd/{number}").endswith("main.zst")
                os._exit(held)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert [element.element for element in reader.read(LINES)] == [1]
