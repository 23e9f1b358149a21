"""R1 and R2: opening a long session and reading its end, in a fresh process, its files not cached.

R2 is the same after a kill: what the killed writer left is put back after each turn, since opening may repair it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final

from .kept import Kept
from .results import Row, Skipped
from .run import Run, forget_pages
from .sessions import READER

LIMIT: Final = 100
_BYTES_LIMIT: Final = 256 * 1024  # what opening 100 MB and reading its end may read
_OURS: Final = ("scopelog", READER)
_SMALL: Final = 60_000
_USUAL: Final = 1_000_000
_LARGE: Final = 6_000_000

Found = dict[str, list[dict[str, Any]]]
Place = Callable[[], AbstractContextManager[Path]]


def _names(run: Run, rivals: Sequence[str]) -> list[str]:
    if run.quick:
        rivals = rivals[:1]
    return [*_OURS, *(name for name in rivals if name != "rocksdict" or find_spec("rocksdict") is not None)]


def _writer(name: str) -> str:
    return "scopelog" if name in _OURS else name


def session_of(run: Run, name: str, count: int) -> Path:
    """The directory with the contestant's session of ``count`` records, cleanly closed. Built once in a run."""
    writer = _writer(name)
    return run.built(f"{writer}, {count:,} records", lambda where: run.child("sessions", "build", writer, where, count))


def _turns(run: Run, places: dict[str, tuple[str, Place]], turns: int, *, cached: bool = False) -> Found:
    """Open and read, contestants in turns. ``places``: by label, the contestant's name and where its session is."""
    found: Found = {label: [] for label in places}
    for _ in range(turns):
        for label, (name, place) in places.items():
            with place() as where:
                if not cached:
                    forget_pages(where)
                found[label].append(run.child("sessions", "tail", name, where, LIMIT))
    return found


def _middle(found: Found, label: str, what: str = "seconds") -> float:
    return float(median(turn[what] for turn in found[label]))


def _place(path: Path) -> Place:
    return lambda: nullcontext(path)


# --- R1 ---------------------------------------------------------------------------------------------


def cold(run: Run) -> list[Row | Skipped]:
    """R1: the rows, those of the bytes read among them."""
    usual, small, large = run.size(_USUAL, 2_000), run.size(_SMALL, 1_000), run.size(_LARGE, 3_000)
    rows: list[Row | Skipped] = []
    names = _names(run, ("sqlite", "lmdb", "rocksdict", "JSONL"))
    if find_spec("rocksdict") is None:
        rows.append(Skipped("R1 and R2, rocksdict", "rocksdict is not installed (extra `bench`)"))
    for count in (usual, large) if run.large else (usual,):
        places = {name: (name, _place(session_of(run, name, count))) for name in names}
        places["small"] = ("scopelog", _place(session_of(run, "scopelog", small)))
        measure = f"R1 last {LIMIT} of {count:,}"
        found = _turns(run, places, run.size(15, 1))
        rows += _against(measure, found, {"sqlite": 0.6})
        figures = [_middle(found, label) * 1e3 for label in ("scopelog", "small")]
        rows.append(Row(f"R1 growth, {count:,}", figures[0], f"scopelog at {small:,}", figures[1], "ms", 1.3))
        rows += _bytes(f"R1 bytes read, {count:,}", found)
        if count == usual and not run.quick:
            rows += _against(measure, _turns(run, places, 7, cached=True), {}, note="pages cached")
        if count != usual:
            for name in names:
                run.drop(f"{name}, {count:,} records")
    return rows


def _against(measure: str, found: Found, targets: dict[str, float], *, note: str = "") -> list[Row | Skipped]:
    rows: list[Row | Skipped] = []
    for product in _OURS:
        ours = _middle(found, product) * 1e3
        told = ", ".join(filter(None, (_how(product), note)))
        rows += [
            Row(measure, ours, rival, _middle(found, rival) * 1e3, "ms", targets.get(rival), note=told)
            for rival in _rivals(found)
        ]
        opening = _middle(found, product, "open_seconds") * 1e3
        rows.append(Row(f"{measure}, opening alone", opening, "", 0, "ms", note=told))
    return rows


def _bytes(measure: str, found: Found) -> list[Row | Skipped]:
    if "rchar" not in found["scopelog"][0]:
        return [Skipped(measure, "this machine has no /proc/self/io")]
    rows: list[Row | Skipped] = []
    for product in _OURS:
        note = _how(product)
        ours, disk = (_middle(found, product, what) for what in ("rchar", "read_bytes"))
        rows.append(Row(measure, ours, "", 0, "bytes", _BYTES_LIMIT, note=note))
        rows.append(Row(measure, ours, "sqlite", _middle(found, "sqlite", "rchar"), "bytes", note=note))
        rows += [
            Row(f"{measure}, from the disk", disk, rival, _middle(found, rival, "read_bytes"), "bytes", note=note)
            for rival in _rivals(found)
        ]
    return rows


def _rivals(found: Found) -> list[str]:
    return [label for label in found if label not in (*_OURS, "small")]


def _how(product: str) -> str:
    return "by the reader" if product == READER else "opened for writing"


# --- R2 ---------------------------------------------------------------------------------------------


def killed(run: Run) -> list[Row | Skipped]:
    """R2: the rows."""
    count = run.size(_USUAL, 2_000)
    names = _names(run, ("sqlite", "rocksdict"))
    with run.directory() as base:
        kept: dict[str, Kept] = {}
        for name in dict.fromkeys(map(_writer, names)):
            where = base / name
            where.mkdir()
            run.say(f"{name}, killed after {count:,} records")
            run.killed("sessions", "killed", name, where, count)
            kept[name] = Kept(where, base / f"{name}, copy")
        found = _turns(run, {name: (name, kept[_writer(name)].used) for name in names}, run.size(7, 1))
    for name, turns in found.items():
        if min(turn["last"] for turn in turns) < count - 1:
            raise AssertionError(f"{name} lost records that were stored before the kill: {turns}")
    return _against(f"R2 killed, last {LIMIT} of {count:,}", found, {"sqlite": 1.0, "rocksdict": 0.2})
