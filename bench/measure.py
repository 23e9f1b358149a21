"""Product and rivals in one run: ``python -m bench.measure [--json] [--workloads DIR] [--dir DIR] [ROW ...]``.

ROW is the start of a row's name (W1, W3, L1, ...); all rows without any. See bench/README.md for what they mean.
Nothing here is a test: the exit status is 0 whatever the figures are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .latency import appends, commits
from .probe import Probe
from .results import Row, Skipped, machine, table
from .writes import WORKLOADS, Dsh, find_dsh, growth, whole_workload


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
    parser.add_argument("rows", nargs="*", metavar="ROW", help="start of a row's name: W1, W3, L1, ... (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--workloads", type=Path, help="folder of the workload files")
    parser.add_argument("--only", default="abc", metavar="LETTERS", help="workloads to record (default: abc)")
    parser.add_argument("--dir", type=Path, help="where to write (default: the folder for temporary files)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for, and show it."""
    options = _arguments(arguments)

    def wanted(measure: str) -> bool:
        return not options.rows or any(measure.startswith(row) for row in options.rows)

    def say(what: str) -> None:
        print(f"measuring: {what}", file=sys.stderr, flush=True)

    workloads: Path | None = options.workloads or default_workloads()
    dsh = find_dsh()
    results: list[Row | Skipped] = []
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="scopelog-bench-") as name:
        base = Path(name)
        root = str(Path(__file__).resolve().parents[1])
        probe = Probe(base, {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])})
        described = machine(base, dsh.node if isinstance(dsh, Dsh) else None)
        if wanted("L1"):
            say("durable commits")
            results += commits(base)
        if wanted("L2"):
            say("staged appends")
            results += appends(base)
        for letter, file in WORKLOADS.items():
            if letter not in options.only or not any(wanted(row) for row in ("W1", "W2", "W3", "W4", "W5")):
                continue
            if workloads is None or not (workloads / file).exists():
                results.append(Skipped(f"workload {letter}", f"{file} was not found: name its folder by --workloads"))
                continue
            results += whole_workload(probe, letter, workloads / file, dsh, wanted, say)
        if wanted("W7"):
            results += growth(probe, say)
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
