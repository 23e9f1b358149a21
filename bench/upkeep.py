"""R5: verifying every byte of a long session, and deriving its lost index again.

``python -m bench.upkeep NAME DIR`` prints seconds and bytes of log; the files are cached, since it is the code and not
the disk that is measured.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Final

from scopelog import Store

from .cold import session_of
from .probe import ChildFailed
from .results import Row, Skipped
from .run import Run, say_json

_MB: Final = 1_000_000
_GB: Final = 1_000  # MB
_REBUILD_RATE: Final = 100  # MB of log a second
_CHECK_SECONDS: Final = 1.0  # a GB
_PIECE: Final = 1 << 20
_RECORDS: Final = 1_000_000
CHECK: Final = "check"
CHECKSUM: Final = "crc32 of the file"
QUICK_CHECK: Final = "sqlite quick_check"
_USAGE: Final = 2  # exit status of a command line that is not understood


def log_bytes(where: Path) -> int:
    """Bytes of all logs below a directory."""
    return sum(file.stat().st_size for file in where.rglob("*.zst"))


# --- the children -----------------------------------------------------------------------------------


def _check(where: Path) -> int:
    with Store.open(where / "store", create=False) as store:
        found = store.check()
    if found:
        raise ValueError(f"the store is not sound: {found[0]}")
    return log_bytes(where)


def _checksum(where: Path) -> int:
    """What verifying costs at least: to read every byte and to sum it up."""
    total = 0
    for path in where.rglob("*.zst"):
        crc = 0
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                crc = zlib.crc32(piece, crc)
                total += len(piece)
    return total


def _quick_check(where: Path) -> int:
    with closing(sqlite3.connect(where / "session.db")) as db:
        (verdict,) = db.execute("PRAGMA quick_check").fetchone()
    if verdict != "ok":
        raise ValueError(verdict)
    return (where / "session.db").stat().st_size


_CHECKS: Final[dict[str, Callable[[Path], int]]] = {
    CHECK: _check,
    CHECKSUM: _checksum,
    QUICK_CHECK: _quick_check,
}


def main(arguments: Sequence[str]) -> None:
    name, where = arguments
    started = time.perf_counter()
    size = _CHECKS[name](Path(where))
    say_json({"seconds": time.perf_counter() - started, "bytes": size})


# --- the rows ---------------------------------------------------------------------------------------


def upkeep(run: Run) -> list[Row | Skipped]:
    """R5: the rows."""
    count = run.size(_RECORDS, 2_000)
    ours, theirs = session_of(run, "scopelog", count), session_of(run, "sqlite", count)
    return [*_checking(run, ours, theirs, count), *_rebuilding(run, ours)]


def _checking(run: Run, ours: Path, theirs: Path, count: int) -> list[Row | Skipped]:
    places = {CHECK: ours, CHECKSUM: ours, QUICK_CHECK: theirs}
    seconds: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(run.size(5, 1)):
        for name, where in places.items():
            seconds[name].append(run.child("upkeep", name, where)["seconds"])
    taken = {name: median(seen) for name, seen in seconds.items()}
    size = log_bytes(ours) / _MB
    note = f"a log of {size:,.0f} MB, {size / taken[CHECK]:,.0f} MB/s"
    measure = f"R5 check, {count:,} records"
    return [
        Row("R5 check, 1 GB at that rate", taken[CHECK] / size * _GB, "", 0, "s", _CHECK_SECONDS, note=note),
        Row(measure, taken[CHECK], CHECKSUM, taken[CHECKSUM], "s"),
        Row(measure, taken[CHECK], QUICK_CHECK, taken[QUICK_CHECK], "s", note="of the same records"),
    ]


def _rebuilding(run: Run, where: Path) -> list[Row | Skipped]:
    """The command, less what starting it costs."""
    store = where / "store"
    taken: dict[str, list[float]] = {"index": [], "--version": []}
    for _ in range(run.size(5, 1)):
        shutil.rmtree(store / "index", ignore_errors=True)
        for arguments in (["--version"], ["index", "rebuild", str(store)]):
            command = [sys.executable, "-m", "scopelog.cli", *arguments]
            started = time.perf_counter()
            ended = subprocess.run(command, capture_output=True, text=True, env=run.environment, check=False)
            taken[arguments[0]].append(time.perf_counter() - started)
            if ended.returncode == _USAGE:
                return [Skipped("R5 rebuild", f"scopelog {' '.join(arguments[:2])}: {ended.stderr.splitlines()[-1]}")]
            if ended.returncode:
                raise ChildFailed(f"{command} ended with {ended.returncode}: {ended.stderr}")
    if not os.path.isdir(store / "index"):
        return [Skipped("R5 rebuild", "the command made no index: the store is too small to have one")]
    seconds, start = median(taken["index"]), median(taken["--version"])
    size = log_bytes(where) / _MB
    note = f"{seconds:.2f} s for {size:,.0f} MB, of which {start:.2f} s for starting the command are left out"
    return [Row("R5 rebuild", size / (seconds - start), "", 0, "MB/s of log", _REBUILD_RATE, at_least=True, note=note)]


if __name__ == "__main__":
    main(sys.argv[1:])
