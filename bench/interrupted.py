"""R4: the partial message of a response that was killed while it streamed, brought back by a fresh process.

``python -m bench.interrupted write NAME DIR COUNT WINDOW_MS`` records a response of COUNT deltas in virtual time, says
so after its last window, and waits to be killed. ``recover NAME DIR`` opens what is left and brings the message back;
it says how long that took (imports excluded), opening alone too, and the message's digest. Rivals keep in
the same windows, and give the same message: sqlite a row of text each, JSONL a line for each frame.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from scopelog import Json, ManualClock, Store
from scopelog.clients.messages import fold, recover

from .frames import opening, text_delta
from .kept import Kept
from .results import Row, Skipped
from .run import Run, forget_pages, say_json
from .workloads import Record, Recorder, replay, synthetic
from .writes import OWN_WINDOW, RIVAL_WINDOW

_TARGET: Final = 30  # ms
_OURS: Final = {"scopelog": "opened for writing", "scopelog reader": "by the reader"}
_RIVALS: Final = ("sqlite rows of text", "JSONL frames")
_STEP_MS: Final = 8  # between deltas


def streaming(count: int) -> list[Record]:
    """The workload up to its last delta."""
    return [record for record in synthetic(count, step_ms=_STEP_MS) if record.k in ("op", "barrier", "delta")][
        : count + 2
    ]


def expected(count: int) -> str:
    """Digest of the message that has streamed."""
    records = [record for record in streaming(count) if record.k == "delta"]
    return digest(fold([*opening(records[0].t), *(text_delta(record.d) for record in records)]))


def digest(message: Json) -> str:
    return hashlib.sha256(json.dumps(message, sort_keys=True).encode()).hexdigest()


# --- writing ----------------------------------------------------------------------------------------


def write(name: str, where: Path, count: int, window_ms: int) -> None:
    """Record, say so, and wait."""
    if name == "scopelog" and not window_ms:  # as fast as it goes, in real time
        store = Store.open(where / "store")
        recorder = Recorder(store.session("bench"))
        for record in streaming(count):
            recorder.apply(record, ends=False)
        recorder.session.flush()
        _wait()
    if name == "scopelog":
        clock = ManualClock()
        store = Store.open(where / "store", window_ms=window_ms, clock=clock)
        replay(streaming(count), store.session("bench"), clock)
        clock.advance(window_ms / 1000)
        _wait()
    deltas = [record for record in streaming(count) if record.k == "delta"]
    first = opening(deltas[0].t)
    if name == "JSONL frames":
        with (where / "frames.jsonl").open("ab", buffering=0) as file:
            file.write(_lines(first))
            for texts in _windows(deltas, window_ms):
                file.write(_lines([text_delta(text) for text in texts]))
            _wait()
    with closing(sqlite3.connect(where / "text.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("CREATE TABLE texts (id INTEGER PRIMARY KEY, body TEXT)")
        for body in (json.dumps(first[0]["partial"]), *map("".join, _windows(deltas, window_ms))):
            db.execute("INSERT INTO texts (body) VALUES (?)", (body,))
        _wait()


def _wait() -> None:
    say_json("recorded")
    while True:
        signal.pause()


def _lines(frames: Sequence[Json]) -> bytes:
    return "".join(json.dumps(frame) + "\n" for frame in frames).encode()


def _windows(deltas: Sequence[Record], window_ms: int) -> Iterator[list[str]]:
    texts: list[str] = []
    deadline = 0
    for record in deltas:
        if texts and record.t >= deadline:
            yield texts
            texts = []
        if not texts:
            deadline = record.t + window_ms
        texts.append(record.d)
    yield texts


# --- recovering -------------------------------------------------------------------------------------


@contextmanager
def _scopelog(where: Path, *, reader: bool) -> Iterator[Any]:
    with (
        Store.open(where / "store", create=False) as store,
        store.reader("bench") if reader else store.session("bench") as source,
    ):
        yield source


def recovered(name: str, where: Path) -> dict[str, Any]:
    """The message, and what it took."""
    started = time.perf_counter()
    message: Json
    if name in _OURS:
        with _scopelog(where, reader=name == "scopelog reader") as source:
            opened = time.perf_counter()
            (operation,) = recover(source)
            assert operation.response is not None and not operation.problems
            message = operation.response.fold
            ended = time.perf_counter()
    elif name == "JSONL frames":
        with (where / "frames.jsonl").open("rb") as file:
            opened = time.perf_counter()
            message = fold(map(json.loads, file))
            ended = time.perf_counter()
    else:
        with closing(sqlite3.connect(where / "text.db")) as db:
            opened = time.perf_counter()
            partial, *texts = (body for (body,) in db.execute("SELECT body FROM texts ORDER BY id"))
            message = json.loads(partial)
            message["content"] = [{"type": "text", "text": "".join(texts)}]
            ended = time.perf_counter()
    return {"seconds": ended - started, "open": opened - started, "digest": digest(message)}


def recovering(run: Run) -> list[Row | Skipped]:
    """R4: the rows."""
    count = run.size(100_000, 300)
    wanted = expected(count)
    rows: list[Row | Skipped] = []
    for window_ms in (RIVAL_WINDOW,) if run.quick else (RIVAL_WINDOW, OWN_WINDOW):
        with run.directory() as base:
            kept: dict[str, Kept] = {}
            for name in ("scopelog", *_RIVALS):
                run.say(f"R4 {name}, {window_ms} ms, killed")
                (base / name).mkdir()
                run.killed("interrupted", "write", name, base / name, count, window_ms)
                kept[name] = Kept(base / name, base / f"{name}, copy")
            for cached in (False,) if run.quick else (True, False):
                found = _turns(run, kept, wanted, run.size(7, 1), cached=cached)
                rows += _rows(f"R4 killed, {count:,}", found, f"{window_ms} ms windows", cached=cached)
    with run.directory() as base:
        run.say("R4 scopelog, as fast as it goes, killed")
        (base / "scopelog").mkdir()
        run.killed("interrupted", "write", "scopelog", base / "scopelog", count, 0)
        kept = {"scopelog": Kept(base / "scopelog", base / "copy")}
        found = _turns(run, kept, wanted, run.size(7, 1), cached=False, names=tuple(_OURS))
        rows += _rows(f"R4 killed, {count:,}", found, "as fast as it goes, 100 ms windows", cached=False, rivals=())
    return rows


def _turns(
    run: Run,
    kept: dict[str, Kept],
    wanted: str,
    turns: int,
    *,
    cached: bool,
    names: Sequence[str] = (*_OURS, *_RIVALS),
) -> dict[str, tuple[float, float]]:
    """Milliseconds of the whole and of opening, median; contestants in turns."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(turns):
        for name, seen in taken.items():
            with kept["scopelog" if name in _OURS else name].used() as where:
                if not cached:
                    forget_pages(where)
                said = run.child("interrupted", "recover", name, where)
            if said["digest"] != wanted:
                raise AssertionError(f"{name} did not bring the message back")
            seen.append((said["seconds"] * 1e3, said["open"] * 1e3))
    return {name: (median(t for t, _ in seen), median(o for _, o in seen)) for name, seen in taken.items()}


def _rows(
    measure: str,
    found: dict[str, tuple[float, float]],
    streamed: str,
    *,
    cached: bool,
    rivals: Sequence[str] = _RIVALS,
) -> list[Row | Skipped]:
    rows: list[Row | Skipped] = []
    for name, how in _OURS.items():
        whole, opening_alone = found[name]
        note = f"{how}, {streamed}, pages {'cached' if cached else 'dropped'}"
        rows.append(Row(measure, whole, "", 0, "ms", _TARGET, note=note))
        rows.append(Row(f"{measure}, opening alone", opening_alone, "", 0, "ms", note=note))
        if name == "scopelog":
            rows += [Row(measure, whole, rival, found[rival][0], "ms", note=note) for rival in rivals]
    return rows


def main(arguments: Sequence[str]) -> None:
    what, name, where, *counts = arguments
    if what == "write":
        write(name, Path(where), *map(int, counts))
    else:
        say_json(recovered(name, Path(where)))


if __name__ == "__main__":
    main(sys.argv[1:])
