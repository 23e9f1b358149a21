"""Long sessions: who writes them, and who opens them to read their end, each in a process of its own.

``python -m bench.sessions build NAME DIR COUNT`` writes COUNT records and closes; ``killed`` writes as many, says so,
and goes on until it is killed; ``tail NAME DIR LIMIT`` opens, reads the last records and says how long that took
(imports excluded), how many bytes it read, and the records' numbers.

Everybody stores the same: 25 records a transaction, the size of a window; each 1,000 records, and each of the last
1,000, are synced by those who can sync at will.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb

from scopelog import Durability, Store, list_of

from .run import say_json

BATCH: Final = 25
_SYNC_EVERY: Final = 40  # batches
_TEXT_CHARACTERS: Final = 170
_JSONL_PIECE: Final = 64 * 1024
_LMDB_MAP: Final = 1 << 34

TARGET: Final = list_of("chat", "messages")
Records = list[dict[str, Any]]
Put = Callable[[Records, bool], None]


def _pool() -> str:
    """Words to cut texts from: made-up, but no more alike than those of prose."""
    chance = random.Random(25)
    letters = "etaoinshrdlucmfwypvbgk"
    weights = range(len(letters), 0, -1)
    vocabulary = ["".join(chance.choices(letters, weights, k=chance.randint(2, 9))) for _ in range(4000)]
    return " ".join(chance.choices(vocabulary, k=40_000))


class Texts:
    """Record number n of a session, the same for everybody: about 230 bytes as JSON."""

    def __init__(self) -> None:
        self._pool = _pool()
        self._room = len(self._pool) - _TEXT_CHARACTERS

    def record(self, n: int) -> dict[str, Any]:
        start = n * 7919 % self._room
        text = self._pool[start : start + _TEXT_CHARACTERS]
        return {"seq": n, "role": "assistant", "id": f"{n * 2654435761 % 2**32:08x}", "text": text}

    def batch(self, first: int) -> Records:
        return [self.record(n) for n in range(first, first + BATCH)]


# --- writing ----------------------------------------------------------------------------------------


@contextmanager
def _write_scopelog(where: Path) -> Iterator[Put]:
    with (
        Store.open(where / "store", durability=Durability.PROCESS) as store,
        store.session("bench") as session,
    ):

        def put(records: Records, sync: bool) -> None:
            level = Durability.POWER if sync else Durability.PROCESS
            session.commit([TARGET.append(record) for record in records], durability=level)

        yield put


@contextmanager
def _write_sqlite(where: Path) -> Iterator[Put]:
    with closing(sqlite3.connect(where / "session.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, body TEXT)")

        def put(records: Records, sync: bool) -> None:
            db.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
            db.execute("BEGIN")
            db.executemany("INSERT INTO records (body) VALUES (?)", [(json.dumps(record),) for record in records])
            db.execute("COMMIT")

        yield put


@contextmanager
def _write_lmdb(where: Path) -> Iterator[Put]:
    with lmdb.open(str(where / "session.lmdb"), map_size=_LMDB_MAP, sync=False) as environment:

        def put(records: Records, sync: bool) -> None:
            with environment.begin(write=True) as transaction:
                for record in records:
                    transaction.put(record["seq"].to_bytes(8, "big"), json.dumps(record).encode(), append=True)
            if sync:
                environment.sync(True)

        yield put


@contextmanager
def _write_rocksdict(where: Path) -> Iterator[Put]:
    import rocksdict  # the extra `bench` brings it

    with closing(rocksdict.Rdict(str(where / "session.rocks"), rocksdict.Options(raw_mode=True))) as db:
        levels = {sync: rocksdict.WriteOptions() for sync in (False, True)}
        levels[True].sync = True

        def put(records: Records, sync: bool) -> None:
            batch = rocksdict.WriteBatch(raw_mode=True)
            for record in records:
                batch[record["seq"].to_bytes(8, "big")] = json.dumps(record).encode()
            db.write(batch, write_opt=levels[sync])

        yield put


@contextmanager
def _write_jsonl(where: Path) -> Iterator[Put]:
    with (where / "session.jsonl").open("ab", buffering=0) as file:

        def put(records: Records, sync: bool) -> None:
            file.write("".join(json.dumps(record) + "\n" for record in records).encode())
            if sync:
                os.fdatasync(file.fileno())

        yield put


# --- opening and reading the end ---------------------------------------------------------------------


class Tail(NamedTuple):
    """What was read, oldest first; ``opened``: when opening was done, by ``time.perf_counter``."""

    records: Records
    opened: float


@contextmanager
def _tail_scopelog(where: Path, limit: int) -> Iterator[Tail]:
    with Store.open(where / "store", create=False) as store, store.session("bench") as session:
        opened = time.perf_counter()
        yield Tail([e.element for e in reversed(session.read(TARGET, order="desc", limit=limit))], opened)


@contextmanager
def _tail_scopelog_reader(where: Path, limit: int) -> Iterator[Tail]:
    with Store.open(where / "store", create=False) as store, store.reader("bench") as reader:
        opened = time.perf_counter()
        yield Tail([e.element for e in reversed(reader.read(TARGET, order="desc", limit=limit))], opened)


@contextmanager
def _tail_sqlite(where: Path, limit: int) -> Iterator[Tail]:
    with closing(sqlite3.connect(where / "session.db", isolation_level=None)) as db:
        opened = time.perf_counter()
        rows = db.execute("SELECT body FROM records ORDER BY id DESC LIMIT ?", (limit,)).fetchall()
        yield Tail([json.loads(body) for (body,) in reversed(rows)], opened)


@contextmanager
def _tail_lmdb(where: Path, limit: int) -> Iterator[Tail]:
    with lmdb.open(str(where / "session.lmdb"), map_size=_LMDB_MAP) as environment:
        opened = time.perf_counter()
        with environment.begin() as transaction, transaction.cursor() as cursor:
            found = [body for (_, body) in zip(range(limit), cursor.iterprev(keys=False), strict=False)]
        yield Tail([json.loads(body) for body in reversed(found)], opened)


@contextmanager
def _tail_rocksdict(where: Path, limit: int) -> Iterator[Tail]:
    import rocksdict

    with closing(rocksdict.Rdict(str(where / "session.rocks"), rocksdict.Options(raw_mode=True))) as db:
        opened = time.perf_counter()
        found = [body for (_, body) in zip(range(limit), db.values(backwards=True), strict=False)]
        yield Tail([json.loads(body) for body in reversed(found)], opened)


@contextmanager
def _tail_jsonl(where: Path, limit: int) -> Iterator[Tail]:
    with (where / "session.jsonl").open("rb", buffering=0) as file:
        opened = time.perf_counter()
        start = file.seek(0, os.SEEK_END)
        data = b""
        while start and data.count(b"\n") <= limit:
            length = min(_JSONL_PIECE, start)
            start -= length
            data = os.pread(file.fileno(), length, start) + data
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        yield Tail([json.loads(line) for line in lines[-limit:]], opened)


class Contestant(NamedTuple):
    write: Callable[[Path], AbstractContextManager[Put]]
    tail: Callable[[Path, int], AbstractContextManager[Tail]]


READER: Final = "scopelog, reader"
CONTESTANTS: Final[dict[str, Contestant]] = {
    "scopelog": Contestant(_write_scopelog, _tail_scopelog),
    READER: Contestant(_write_scopelog, _tail_scopelog_reader),
    "sqlite": Contestant(_write_sqlite, _tail_sqlite),
    "lmdb": Contestant(_write_lmdb, _tail_lmdb),
    "rocksdict": Contestant(_write_rocksdict, _tail_rocksdict),
    "JSONL": Contestant(_write_jsonl, _tail_jsonl),
}


# --- the child --------------------------------------------------------------------------------------


def build(name: str, where: Path, count: int, *, until_killed: bool = False) -> None:
    """Write ``count`` records (a multiple of :data:`BATCH`)."""
    texts = Texts()
    last = count // BATCH - 1
    with CONTESTANTS[name].write(where) as put:
        for number in range(last + 1):
            put(texts.batch(number * BATCH), number % _SYNC_EVERY == 0 or number > last - _SYNC_EVERY)
        while until_killed:
            last += 1
            put(texts.batch(last * BATCH), True)
            if last * BATCH == count:
                say_json(count)


def tail(name: str, where: Path, limit: int) -> dict[str, Any]:
    """Open, read the end, and say what it took. Raises ``ValueError`` if it is not what was written."""
    clock = time.perf_counter
    before = _bytes_read()
    started = clock()
    with CONTESTANTS[name].tail(where, limit) as found:
        ended = clock()
        after = _bytes_read()
        asked = _bytes_read()
    texts = Texts()
    first = found.records[0]["seq"]
    if found.records != [texts.record(n) for n in range(first, first + limit)]:
        raise ValueError(f"{name} read {len(found.records)} records from {first} on, not as they were written")
    itself = {kind: asked[kind] - after[kind] for kind in after}  # what asking costs
    return {
        "seconds": ended - started,
        "open_seconds": found.opened - started,
        "last": found.records[-1]["seq"],
        **{kind: after[kind] - before[kind] - itself[kind] for kind in after},
    }


def _bytes_read() -> dict[str, int]:
    """``rchar``: handed over by the operating system to this process; ``read_bytes``: fetched from the disk for it."""
    entry = Path("/proc/self/io")
    if not entry.exists():
        return {}
    fields = dict(line.split(": ") for line in entry.read_text().splitlines())
    return {kind: int(fields[kind]) for kind in ("rchar", "read_bytes")}


def main(arguments: Sequence[str]) -> None:
    what, name, where, number = arguments
    if what == "tail":
        say_json(tail(name, Path(where), int(number)))
    else:
        build(name, Path(where), int(number), until_killed=what == "killed")
        say_json(int(number))


if __name__ == "__main__":
    main(sys.argv[1:])
