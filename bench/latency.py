"""L rows: the latency of durable commits, and the rate and latency of staged appends.

Contestants of one row run in one process, in turns, so that a busy machine is busy for all of them alike.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import lmdb

from scopelog import Store, ephemeral, list_of

from .results import Row, Skipped
from .run import Run
from .workloads import join_text

_ROUND: Final = 60  # commits of one contestant in a row
_RECORD_BYTES: Final = 200
_RATE_APPENDS: Final = 100_000
_PACED_SECONDS: Final = 5
_PACED_RATE: Final = 5_000
BUSY: Final = f"{_PACED_RATE:,} appends/s, busy between"
ASLEEP: Final = f"{_PACED_RATE:,} appends/s, asleep between"
FLAT_OUT: Final = "flat out"

Step = Callable[[int], object]


def records_of(count: int, size: int = _RECORD_BYTES) -> list[dict[str, Any]]:
    """Different JSON records of ``size`` bytes each, from 40 on; those under 100 have no role and no id."""
    made = []
    for n in range(count):
        record: dict[str, Any] = {"seq": n, "text": ""}
        if size >= 100:
            record = {"seq": n, "role": "assistant", "id": f"{n * 2654435761 % 2**32:08x}", "text": ""}
        record["text"] = "".join(f"{(n + k) * 7919 % 9973} " for k in range(60))[: size - len(json.dumps(record))]
        made.append(record)
    return made


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


# --- L1 ---------------------------------------------------------------------------------------------


@contextmanager
def _scopelog(where: Path, records: list[dict[str, Any]]) -> Iterator[Step]:
    with Store.open(where / "store") as store, store.session("bench") as session:
        target = list_of("chat", "messages")
        yield lambda n: session.commit([target.append(records[n])])


@contextmanager
def _sqlite(where: Path, records: list[dict[str, Any]], synchronous: str = "FULL") -> Iterator[Step]:
    with closing(sqlite3.connect(where / f"{synchronous}.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, body TEXT)")
        yield lambda n: db.execute("INSERT INTO records (body) VALUES (?)", (json.dumps(records[n]),))


@contextmanager
def _lmdb(where: Path, records: list[dict[str, Any]]) -> Iterator[Step]:
    with lmdb.open(str(where / "records.lmdb"), map_size=1 << 30) as environment:

        def put(n: int) -> None:
            with environment.begin(write=True) as transaction:
                transaction.put(n.to_bytes(8, "big"), json.dumps(records[n]).encode(), append=True)

        yield put


@contextmanager
def _rocksdict(where: Path, records: list[dict[str, Any]]) -> Iterator[Step]:
    import rocksdict  # the extra `bench` brings it

    with closing(rocksdict.Rdict(str(where / "records.rocks"), rocksdict.Options(raw_mode=True))) as db:
        options = rocksdict.WriteOptions()
        options.sync = True
        db.set_write_options(options)

        def put(n: int) -> None:
            db[n.to_bytes(8, "big")] = json.dumps(records[n]).encode()

        yield put


@contextmanager
def _jsonl(where: Path, records: list[dict[str, Any]]) -> Iterator[Step]:
    with (where / "records.jsonl").open("ab", buffering=0) as file:

        def write(n: int) -> None:
            file.write(json.dumps(records[n]).encode() + b"\n")
            os.fdatasync(file.fileno())

        yield write


@contextmanager
def _bare(where: Path, records: list[dict[str, Any]]) -> Iterator[Step]:
    lines = [json.dumps(record).encode() + b"\n" for record in records]
    length = len(lines[0])
    with (where / "bare").open("wb", buffering=0) as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, len(lines) * (length + 8))
        os.fsync(descriptor)

        def write(n: int) -> None:
            os.pwrite(descriptor, lines[n], n * length)
            os.fdatasync(descriptor)

        yield write


def commits(run: Run) -> list[Row | Skipped]:
    """L1: one durable record at a time, in turns; sqlite after its WAL has been recycled."""
    rows: list[Row | Skipped] = []
    contestants = {
        "scopelog": _scopelog,
        "sqlite WAL FULL": _sqlite,
        "lmdb": _lmdb,
        "rocksdict": _rocksdict,
        "JSONL + fdatasync": _jsonl,
        "bare pwrite + fdatasync": _bare,
    }
    if find_spec("rocksdict") is None:
        del contestants["rocksdict"]
        rows.append(Skipped("L1 rocksdict", "rocksdict is not installed (extra `bench`)"))
    warm = run.size(1_500, 10)  # sqlite reuses its WAL from the first checkpoint on, after 1,000 pages
    records = records_of(warm + run.size(40, 1) * _ROUND)
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    clock = time.perf_counter
    with ExitStack() as stack:
        where = stack.enter_context(run.directory())
        steps = {name: stack.enter_context(make(where, records)) for name, make in contestants.items()}
        for name, step in steps.items():
            for n in range(warm if name.startswith("sqlite") else min(warm, 100)):
                step(n)
        for start in range(warm, len(records), _ROUND):
            for name, step in steps.items():
                times = taken[name]
                for n in range(start, start + _ROUND):
                    begun = clock()
                    step(n)
                    times.append(clock() - begun)
    targets = {
        "sqlite WAL FULL": 0.65,
        "lmdb": 0.55,
        "rocksdict": 0.80,
        "JSONL + fdatasync": 0.88,
        "bare pwrite + fdatasync": 1.30,
    }
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        ours = percentile(taken["scopelog"], share) * 1e6
        rows += [
            Row(
                f"L1 commit {label}",
                ours,
                name,
                percentile(taken[name], share) * 1e6,
                "us",
                target if share == 0.5 else None,
            )
            for name, target in targets.items()
            if name in taken
        ]
    return rows


# --- L2 ---------------------------------------------------------------------------------------------


def _frames(count: int) -> list[dict[str, Any]]:
    return [{"type": "text_delta", "contentIndex": 0, "delta": f" word{n * 7919 % 9973}"} for n in range(count)]


def _timed(count: int, step: Step) -> float:
    started = time.perf_counter()
    for n in range(count):
        step(n)
    return time.perf_counter() - started


def _append_rates(run: Run, frames: list[dict[str, Any]]) -> dict[str, float]:
    """Records a second: each contestant stores all frames; the product's last window is flushed within the time."""
    count = len(frames)
    with run.directory() as where:
        rates: dict[str, float] = {}
        with Store.open(where / "store") as store, store.session("bench") as session:
            append = session.append
            target = ephemeral("op").list_of("pi", "pending")
            joined = ephemeral("joined").list_of("pi", "pending", coalescer=join_text)
            texts = [{"d": frame["delta"]} for frame in frames]
            append(target, frames[0])
            append(joined, texts[0])
            session.flush()
            started = time.perf_counter()
            for frame in frames:
                append(target, frame)
            session.flush()
            rates["scopelog"] = count / (time.perf_counter() - started)
            started = time.perf_counter()
            for text in texts:
                append(joined, text)
            session.flush()
            rates["scopelog, joined"] = count / (time.perf_counter() - started)
        with _sqlite(where, frames, "NORMAL") as insert:
            few = count // 5
            rates["sqlite WAL NORMAL"] = few / _timed(few, insert)
        with (where / "frames.jsonl").open("ab", buffering=0) as file:
            write, dumps = file.write, json.dumps
            started = time.perf_counter()
            for frame in frames:
                write((dumps(frame) + "\n").encode())
            rates["JSONL write()"] = count / (time.perf_counter() - started)
    return rates


def _single_appends(run: Run, pace: str) -> list[float]:
    """Seconds of single appends while the flusher stores their windows. ``pace``: how the time between is spent."""
    count = run.size(4 * _RATE_APPENDS if pace == FLAT_OUT else _PACED_RATE * _PACED_SECONDS, 1_000)
    frames = _frames(1000)
    taken: list[float] = []
    clock = time.perf_counter
    with (
        run.directory() as where,
        Store.open(where / "store") as store,
        store.session("bench") as session,
    ):
        target = ephemeral("op").list_of("pi", "pending")
        append = session.append
        append(target, frames[0])
        started = clock()
        for n in range(count):
            frame = frames[n % 1000]
            due = started + n / _PACED_RATE
            if pace == BUSY:
                while clock() < due:
                    pass
            elif pace == ASLEEP:
                time.sleep(max(0.0, due - clock()))
            begun = clock()
            append(target, frame)
            taken.append(clock() - begun)
    return taken


def appends(run: Run) -> list[Row | Skipped]:
    """L2: staged appends through the public API; best of three turns each, since only the rate of the code counts."""
    frames = _frames(run.size(_RATE_APPENDS, 1_000))
    best: dict[str, float] = {}
    for _ in range(run.size(3, 1)):
        for name, rate in _append_rates(run, frames).items():
            best[name] = max(rate, best.get(name, 0.0))
    rows: list[Row | Skipped] = []
    for product in ("scopelog", "scopelog, joined"):
        note = "with a coalescer" if product != "scopelog" else ""
        for rival, target in (("sqlite WAL NORMAL", 15.0), ("JSONL write()", 3.0)):
            rows.append(
                Row("L2 append rate", best[product], rival, best[rival], "/s", target, at_least=True, note=note)
            )
    for pace, judged in ((BUSY, True), (ASLEEP, False), (FLAT_OUT, True)):
        taken = _single_appends(run, pace)
        for share, label, target in ((0.5, "p50", 1.0), (0.99, "p99", 10.0), (0.999, "p99.9", 40.0)):
            figure = percentile(taken, share) * 1e6
            rows.append(Row(f"L2 one append, {label}", figure, "", 0, "us", target if judged else None, note=pace))
    return rows
