"""Product and rivals in one run: ``python -m bench.measure [--json] [--quick] [--dir DIR] [ROW ...]``.

ROW is the start of a row's name (W1, W3, L1, R, ...); all rows without any. See bench/README.md for what they mean.
Nothing here is a test: the exit status is 0 whatever the figures are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from .cold import cold, killed
from .deltas import growing
from .interrupted import recovering
from .latency import appends, commits
from .listing import listing
from .loops import concurrent
from .memory import memory
from .probe import Probe
from .results import Row, Skipped, machine, table
from .run import Run
from .streams import streaming
from .upkeep import upkeep
from .writes import WORKLOADS, Dsh, find_dsh, growth, quick_workload, whole_workload

_WRITTEN: Final = ("W1", "W2", "W3", "W4", "W5", "W6")
SECTIONS: Final[dict[str, tuple[str, Callable[[Run], list[Row | Skipped]]]]] = {
    "L1": ("durable commits", commits),
    "L2": ("staged appends", appends),
    "L3": ("commits of many tasks", concurrent),
    "L4": ("a hundred streams", streaming),
    "L5": ("deltas into long messages", growing),
    "R1": ("opening long sessions", cold),
    "R2": ("opening after a kill", killed),
    "R4": ("a partial message after a kill", recovering),
    "R5": ("checking, and rebuilding the index", upkeep),
    "M1": ("memory", memory),
    "ls": ("listing sessions", listing),
}


def default_workloads() -> Path | None:
    """Where the tests find real data, if they can be asked (they need the dev group)."""
    try:
        from tests.conftest import SHARED
    except ImportError:
        return None
    return SHARED / "workloads"


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.measure", description="Measure scopelog and its rivals in one run."
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="start of a row's name: W1, L, R2, ... (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--workloads", type=Path, help="folder of the workload files")
    parser.add_argument("--only", default="abc", metavar="LETTERS", help="workloads to record (default: abc)")
    parser.add_argument("--dir", type=Path, help="where to write (default: the folder for temporary files)")
    parser.add_argument("--large", action="store_true", help="R1 with a session of 6,000,000 records, too")
    parser.add_argument("--quick", action="store_true", help="sizes that show that it works, and mean nothing")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace, run: Run, dsh: Dsh | Skipped) -> list[Row | Skipped]:
    """The rows that were asked for."""

    def wanted(name: str) -> bool:
        return not options.rows or any(name.startswith(row) for row in options.rows)

    results: list[Row | Skipped] = []
    for name, (what, section) in SECTIONS.items():
        if wanted(name):
            run.say(what)
            results += section(run)
    probe = Probe(run.base, run.environment, idle_seconds=run.size(20, 1) / 10)
    if any(wanted(name) for name in _WRITTEN):
        results += _workloads(options, run, probe, dsh, wanted)
    if wanted("W7"):
        results += growth(run, probe)
    if run.quick:  # nothing is judged by sizes that mean nothing
        results = [row._replace(target=None) if isinstance(row, Row) else row for row in results]
    return results


def _workloads(
    options: argparse.Namespace, run: Run, probe: Probe, dsh: Dsh | Skipped, wanted: Callable[[str], bool]
) -> list[Row | Skipped]:
    if run.quick:
        return quick_workload(probe, wanted, run.say)
    workloads: Path | None = options.workloads or default_workloads()
    results: list[Row | Skipped] = []
    for letter, file in WORKLOADS.items():
        if letter not in options.only:
            continue
        if workloads is None or not (workloads / file).exists():
            results.append(Skipped(f"workload {letter}", f"{file} was not found: name its folder by --workloads"))
            continue
        results += whole_workload(probe, letter, str(workloads / file), dsh, wanted, run.say)
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for, and show it."""
    options = _arguments(arguments)
    dsh = find_dsh()
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="scopelog-bench-") as name:
        root = str(Path(__file__).resolve().parents[1])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
        run = Run(Path(name), environment, quick=options.quick, large=options.large)
        described = machine(run.base, dsh.node if isinstance(dsh, Dsh) else None)
        results = measure(options, run, dsh)
    rows = [result for result in results if isinstance(result, Row)]
    skipped = [result for result in results if isinstance(result, Skipped)]
    if options.json:
        print(
            json.dumps(
                {"machine": described, "rows": [r.data() for r in rows], "skipped": [s._asdict() for s in skipped]}
            )
        )
        return
    print(f"{described}\n\n{table(rows)}")
    for missing in skipped:
        print(f"\nskipped: {missing.measure}: {missing.reason}", end="")
    print()


if __name__ == "__main__":
    main()
