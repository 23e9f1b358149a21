"""The index on any bytes: pages of LMDB's file, blocks, and a store whose index files are anything at all.

Reading is only allowed to fail in its own way, and to end. LMDB is let at a file that was proved sound alone, so the
whole store is tried in a process apart: it must live, answer as it does without an index, take writes, and derive the
index again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

import msgspec

from fuzz.apart import Apart
from fuzz.domains import Blob, Build, Domain, Either, Many, Mapped, Number, One
from fuzz.model_handles import random_identities, steady_identities
from fuzz.stores import SHORT_STRETCHES, smaller
from scopelog import ManualClock, SessionReader, Store, ephemeral, list_of, value
from scopelog_engine.blocks import BadBlock, decode_block, decode_leaf, decode_page, decode_root, encode_block
from scopelog_engine.lmdbfile import FORMAT, MAX_DATA_BYTES, Stamp
from scopelog_engine.mdbpages import BadPages, Snapshot
from scopelog_engine.mdbproof import verify
from scopelog_engine.reader import Reader

_PAGE: Final = 4096
_SID: Final = "s"
_SMALL: Final = {
    **SHORT_STRETCHES,
    "growth": {"LEAF_BYTES": 200, "PAGE_RUNS": 3, "SPILL_BYTES": 2000},
    "logindex": {"CHECKPOINT_BYTES": 1500, "CLOSE_BYTES": 600, "_AGAIN_BYTES": 500, "_DELTA_ENTRIES": 30},
    "answers": {"_PATIENCE": 0, "_AGAIN": 4},
}
_LISTS: Final = [list_of("n", "dense"), list_of("n", "rare"), list_of("m", "gone")]
_VALUES: Final = [value("v", f"key-{number:02}") for number in range(12)]

PageKind = Literal["flip", "set", "number", "cut", "zero", "exchange", "copy", "insert"]


class PageEdit(NamedTuple):
    """``at``: inside the page, its head more often than not."""

    kind: PageKind
    page: int
    other: int
    at: int
    number: int
    width: int


class Pages(NamedTuple):
    """LMDB's file, edited. ``apart``: try it on a whole store also if it was not proved to be sound."""

    edits: list[PageEdit]
    apart: bool


class Raw(NamedTuple):
    data: bytes


class Stamped(NamedTuple):
    """The stamp is something else; ``whose``: which store and age of the log the index is of."""

    stamp: bytes
    cut: int
    whose: Literal["ours", "of another store", "older", "newer"]


class Block(NamedTuple):
    """What a block says, changed. ``seal``: with a checksum that holds."""

    number: int
    changes: list[tuple[int, int]]
    seal: bool


_PLACES: Final = Either(Number(0, 40), Number(0, 40), Number(0, 4095), Number(16, 160))
_EDITS: Final = Build(
    PageEdit,
    kind=One[PageKind](
        "flip", "flip", "set", "number", "number", "number", "cut", "zero", "exchange", "copy", "insert"
    ),
    page=Number(0, 63),
    other=Number(0, 63),
    at=_PLACES,
    number=Either(Number(0, 70), One(255, 4080, 4096, 65535, (1 << 32) - 1, (1 << 47) + 1, (1 << 64) - 1)),
    width=One(2, 2, 4, 8, 1),
)
INDEXES: Final[Domain[Pages | Raw | Stamped | Block]] = Either[Pages | Raw | Stamped | Block](
    Mapped(Blob(), Raw),
    *[Build(Pages, edits=Many(_EDITS, 1, 3), apart=One(False, False, False, True))] * 4,
    *[Build(
        Block, number=Number(0, 63),
        changes=Many(Build(lambda a, b: (a, b), a=Number(0, 255), b=Number(0, 255)), 0, 4), seal=One(True, False),
    )] * 3,
    Build(Stamped, stamp=Blob(20), cut=Number(0, 100), whose=One("ours", "of another store", "older", "newer")),
)  # fmt: skip


class Made(NamedTuple):
    """A closed store with an index of many blocks. ``blocks``: what stands in the index."""

    identity: str
    files: dict[str, bytes]
    blocks: list[tuple[bytes, bytes]]

    @property
    def data(self) -> bytes:
        return self.files["index/data.mdb"]


@lru_cache(maxsize=3)
def made(which: str = "ours") -> Made:
    path = Path(tempfile.mkdtemp(prefix="index-"))
    try:
        if which != "of another store":  # the older one is the same, some time ago
            steady_identities()
        with smaller(_SMALL), Store.open(path / "s", clock=ManualClock()) as store:
            for rounds in (40,) if which == "older" else (40, 20):
                with store.session(_SID) as session:
                    _write(session, rounds)
                store.rebuild_index([_SID])
            identity = store.id
        files = {str(f.relative_to(path / "s")): f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file()}
        data = files["index/data.mdb"]
        read = _reading(data)
        blocks = [pair for leaf in Snapshot(read, len(data), MAX_DATA_BYTES).leaves(b"") for pair in leaf]
        return Made(identity, files, [(key, found) for key, found in blocks if found is not None])
    finally:
        random_identities()
        shutil.rmtree(path)


def _write(session: Any, rounds: int) -> None:
    dense, rare, gone = _LISTS
    for number in range(rounds):
        writes = [dense.append({"n": number, "text": "x" * (number % 20)}), _VALUES[number % 12].set(number)]
        writes += [rare.append(number, "rare"), gone.append(number)] if number % 7 == 0 else []
        writes += [gone.delete(), _VALUES[number % 5].delete()] if number % 11 == 5 else []
        writes += [dense.trim(number), ephemeral(f"op-{number}").retire()] if number % 9 == 3 else []
        session.commit(writes)


def _reading(data: bytes) -> Callable[[int, int], bytes]:
    return lambda length, offset: data[offset : offset + length]


def check_index(case: Pages | Raw | Stamped | Block) -> None:
    if isinstance(case, Block):
        _check_block(case)
    elif isinstance(case, Stamped):
        _apart().do(b"stamp" + msgspec.msgpack.encode(case))
    else:
        data = case.data if isinstance(case, Raw) else edited_pages(made().data, case.edits)
        unharmed = data == made().data
        sound = _check_pages(data, known=unharmed)
        if (sound and not unharmed) or (isinstance(case, Pages) and case.apart):
            _apart().do(b"pages" + data)


def edited_pages(data: bytes, edits: list[PageEdit]) -> bytes:
    changed = bytearray(data)
    for kind, page, other, place, number, width in edits:
        count = max(len(changed) // _PAGE, 1)
        start, twin = page % count * _PAGE, other % count * _PAGE
        at = min(start + place, max(len(changed) - 1, 0))
        match kind:
            case "flip" if changed:
                changed[at] ^= 1 << number % 8
            case "set" | "number":
                changed[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
            case "cut":
                del changed[at:]
            case "zero":
                changed[start : start + _PAGE] = bytes(_PAGE)
            case "exchange":
                one, two = changed[start : start + _PAGE], changed[twin : twin + _PAGE]
                changed[start : start + _PAGE], changed[twin : twin + _PAGE] = two, one
            case "copy":  # with the number that is right there
                changed[start : start + _PAGE] = (start // _PAGE).to_bytes(8, "little") + changed[
                    twin + 8 : twin + _PAGE
                ]
            case "insert":
                changed[at:at] = bytes(width)
    return bytes(changed)


def _check_pages(data: bytes, *, known: bool) -> bool:
    """Whether the file was proved sound. All reading of it ends, in its own errors."""
    reads = 0
    most = len(data) // 512 * 4 + 500

    def read(length: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        assert reads <= most, "reading does not end"
        assert 0 <= length <= MAX_DATA_BYTES + 2 * _PAGE * 16 or length < 2**20, f"a read of {length} bytes"
        return data[offset : offset + length]

    try:
        snapshot = Snapshot(read, len(data), MAX_DATA_BYTES)
    except BadPages:
        assert not known
        return False
    for key, _ in made().blocks[::5]:
        reads = 0
        try:
            snapshot.get(key)
            snapshot.get_all([key, key + b"\0"])
        except BadPages:
            assert not known
    seen = 0
    reads = 0
    try:
        for leaf in snapshot.leaves(b""):
            seen += len(leaf)
            assert seen <= len(data), "iterating does not end"
    except BadPages:
        assert not known
    reads = 0
    try:
        verify(read, snapshot.meta)
    except BadPages:
        assert not known
        return False
    found: dict[bytes, bytes | None] = dict(pair for leaf in snapshot.leaves(b"") for pair in leaf)
    assert all(snapshot.get(key) == value_ for key, value_ in found.items()), "proved, and a key is not found"
    return True


def _check_block(case: Block) -> None:
    blocks = made().blocks
    key, data = blocks[case.number % len(blocks)]
    raw = decode_block(key, data)
    assert decode_block(key, encode_block(key, raw)) == raw
    changed = bytearray(raw if case.seal else data)
    for at, byte in case.changes:
        changed[at * len(changed) // 256] = byte
    if not case.seal:
        try:
            assert decode_block(key, bytes(changed)) == raw, "a damaged block was believed"
        except BadBlock:
            assert bytes(changed) != data
        other = blocks[(case.number + 1) % len(blocks)][0]
        try:
            decode_block(other, data)
        except BadBlock:
            return
        raise AssertionError("a block was believed under another key")
    for decode in (decode_root, decode_leaf, decode_page):
        try:
            decode(bytes(changed))
        except BadBlock:
            continue


# --- the whole store, apart -----------------------------------------------------------------------


@lru_cache(maxsize=1)
def _apart() -> Apart:
    for which in ("ours", "of another store", "older"):
        made(which)
    return Apart(_try)


def _try(told: bytes) -> None:
    kind, told = told[:5], told[5:]
    ours = made()
    files = dict(ours.files)
    stamp: bytes | None = None
    if kind == b"pages":
        files["index/data.mdb"] = told
    else:
        case = msgspec.msgpack.decode(told, type=Stamped)
        if case.whose == "newer":  # than the log, which is an older one
            files.update({name: data for name, data in made("older").files.items() if name.startswith("s.")})
            files["store.zst"] = ours.files["store.zst"]
        elif case.whose != "ours":
            files["index/data.mdb"] = made(case.whose).data
        stamp = case.stamp if case.cut else None
        if stamp is not None and case.cut % 3:
            stamp = ours.files["index/STAMP"][: case.cut] + stamp
    path = Path(tempfile.mkdtemp(prefix="index-", dir=_memory()))
    try:
        _survive(path / "s", files, ours.identity, stamp)
    finally:
        shutil.rmtree(path)


def _memory() -> str | None:
    """Somewhere quick."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _survive(path: Path, files: dict[str, bytes], identity: str, stamp: bytes | None) -> None:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    if stamp is None:  # one that vouches for the file as it is
        status = (path / "index" / "data.mdb").stat()
        body = msgspec.json.encode(Stamp(FORMAT, identity, status.st_dev, status.st_ino))
        stamp = b"%08x " % crc32(body) + body
    (path / "index" / "STAMP").write_bytes(stamp)
    with smaller(_SMALL):
        for _ in range(2):
            with Store.open(path, clock=ManualClock()) as store:
                _same(store)
                with store.session(_SID) as session:
                    _write(session, 3)
                store.rebuild_index([_SID])
                assert store.index_state()["dropped"] is None, store.index_state()
                _same(store)


def _same(store: Store) -> None:
    inner = store._store
    alone = Reader(inner.fs, inner.directory(_SID), store=inner.identity, session=_SID)
    with store.reader(_SID) as reader, SessionReader(alone) as without:
        assert _answers(reader) == _answers(without), "with the index the answers are others"


def _answers(reader: SessionReader) -> list[Any]:
    found: list[Any] = [reader.scopes(), reader.scan("v"), reader.scan("v", "key-1"), reader.scan("w")]
    found += [reader.get(address, "absent") for address in _VALUES]
    for target in _LISTS:
        found += [
            reader.read(target),
            reader.read(target, order="desc", limit=3),
            reader.read(target, cursor=40, limit=2),
        ]
    return found


__all__ = ["INDEXES", "Block", "Pages", "Raw", "Stamped", "check_index"]
