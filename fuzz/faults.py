"""Run every test of a fault that can run on this machine, and print what was tried, a line a row of the matrix.

``python -m fuzz.faults [--write FILE] [--seed N] [--seconds S] [-k EXPRESSION]``; ``make faults`` calls it. Test files
are run side by side, one process each, the longest first. The exit status is 1 if a test failed, or if a row was
provoked by nothing at all.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fuzz.matrix import RIGS, ROWS

ROOT: Final = Path(__file__).resolve().parents[1]
TIMEOUT: Final = 1500  # seconds a test may take
LONG: Final = ("sequences", "interleavings", "mutations", "processes_errors", "processes_kill", "disks", "fuzzers")
"""Rigs in order of the time they take: the longest begin first, so that the processors end together."""


def marked(root: Path = ROOT / "tests") -> dict[Path, set[tuple[int, str]]]:
    """The test files with marks, and the (row, rig) pairs they name. Reads the sources; imports nothing."""
    found: dict[Path, set[tuple[int, str]]] = {}
    for path in sorted(root.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fault"):
                continue
            rows = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            rigs = [k.value.value for k in node.keywords if k.arg == "rig" and isinstance(k.value, ast.Constant)]
            found.setdefault(path, set()).update((int(str(row)), str(rig)) for row in rows for rig in rigs)
    return found


@dataclass
class Tally:
    """What one rig did for one row."""

    cases: int = 0
    tests: int = 0
    failed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)

    @property
    def result(self) -> str:
        if self.failed:
            return "FAILED"
        return "passed" if self.tests else "skipped"


def tally(lines: Iterable[dict[str, Any]]) -> dict[tuple[int, str], Tally]:
    table: dict[tuple[int, str], Tally] = {}
    for line in lines:
        for row, rigs in line["rigs"].items():
            for rig in rigs:
                entry = table.setdefault((int(row), rig), Tally())
                entry.cases += line["cases"].get(row, 0)
                entry.seeds += line["seeds"]
                if line["outcome"] == "skipped":
                    entry.skipped[line["reason"]] = entry.skipped.get(line["reason"], 0) + 1
                else:
                    entry.tests += 1
                    entry.failed += line["outcome"] == "failed"
    return table


def render(table: dict[tuple[int, str], Tally]) -> str:
    """The table as Markdown."""
    out = ["| # | fault | rig | tests | cases | result | seeds |", "|---|---|---|---|---|---|---|"]
    for row, name in ROWS.items():
        rigs = [rig for rig in RIGS if (row, rig) in table]
        for n, rig in enumerate(rigs):
            entry = table[row, rig]
            seeds = f"{min(entry.seeds)}-{max(entry.seeds)}" if entry.seeds else ""
            skips = sum(entry.skipped.values())
            result = entry.result + (f", {skips} skipped" if skips and entry.tests else "")
            head = (str(row), name) if n == 0 else ("", "")
            out.append(f"| {head[0]} | {head[1]} | {rig} | {entry.tests} | {entry.cases:,} | {result} | {seeds} |")
        if not rigs:
            out.append(f"| {row} | {name} | | 0 | 0 | NOT PROVOKED | |")
    return "\n".join(out)


class Run:
    """The test files of a campaign, in as many processes as there are processors."""

    def __init__(self, files: Sequence[Path], environment: dict[str, str], extra: Sequence[str]) -> None:
        self._todo = sorted(files, key=_rank)
        self._environment, self._extra = environment, extra
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self.failed: list[str] = []

    def work(self) -> None:
        while True:
            with self._lock:
                if not self._todo:
                    return
                path = self._todo.pop(0)
            name = str(path.relative_to(ROOT))
            began = time.monotonic()
            command = [sys.executable, "-m", "pytest", "-m", "fault", f"--timeout={TIMEOUT}", *self._extra, name]
            with subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as child:
                self._running.add(child)
                output = child.communicate()[0]
                self._running.discard(child)
            with self._lock:
                took = f"{time.monotonic() - began:6.0f} s"
                if child.returncode == 5:  # nothing was chosen
                    continue
                if child.returncode == 0:
                    print(f"{took}  {name}", flush=True)
                else:
                    self.failed.append(name)
                    print(f"{took}  {name} FAILED\n{output}", flush=True)

    def stop(self) -> None:
        """Begin no more files, and end those under way; what their tests have told so far counts."""
        with self._lock:
            self._todo = []
        for child in [*self._running]:
            child.terminate()


def _rank(path: Path) -> tuple[bool, int, Path]:
    """Whole rigs first, then the tests that every run makes."""
    name = path.stem.removeprefix("test_")
    return "crash" not in path.parts, next((n for n, long in enumerate(LONG) if name.startswith(long)), len(LONG)), path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.faults", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="the first seed of every random part (0)")
    parser.add_argument("--seconds", type=float, default=10, help="how long each random part goes on (10)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="test files side by side")
    parser.add_argument("--write", type=Path, help="write the table to this file as well")
    parser.add_argument("-k", dest="expression", help="only tests that match, as in pytest")
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        report = Path(scratch) / "report"
        report.touch()
        environment = {
            **os.environ,
            "SCOPELOG_FAULTS": "1",
            "SCOPELOG_SEED": str(chosen.seed),
            "SCOPELOG_SECONDS": str(chosen.seconds),
            "SCOPELOG_FAULTS_REPORT": str(report),
        }
        run = Run([*marked()], environment, ["-k", chosen.expression] if chosen.expression else [])
        workers = [threading.Thread(target=run.work) for _ in range(max(1, chosen.jobs))]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        except KeyboardInterrupt:
            run.stop()
            for worker in workers:
                worker.join()
        lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    table = tally(lines)
    text = document(table, lines, time.monotonic() - began, chosen.seed, chosen.seconds)
    print("\n" + text)
    if chosen.write is not None:
        chosen.write.write_text(text, encoding="utf-8")
    for name in run.failed:
        print(f"FAILED: {name}", file=sys.stderr)
    missing = [] if chosen.expression else [row for row in ROWS if not any(table.get((row, rig)) for rig in RIGS)]
    return 1 if run.failed or missing else 0


def document(
    table: dict[tuple[int, str], Tally], lines: Sequence[dict[str, Any]], seconds: float, seed: int, each: float
) -> str:
    """The whole of RESULTS.md."""
    total = sum(max(line["cases"].values(), default=0) for line in lines)
    skipped = [line for line in lines if line["outcome"] == "skipped"]
    skips = sorted({(line["reason"], rig) for line in skipped for rig in "".join(line["rigs"].values())})
    notes = sorted({(line["test"].split("::")[0], note) for line in lines for note in line["notes"]})
    parts = [
        "# What the fault rigs found",
        "",
        f"`make faults SEED={seed} SECONDS={each:g}` on Linux {platform.release()}, CPython "
        f"{platform.python_version()}, {os.cpu_count()} cores: {len(lines):,} tests, {total:,} cases, "
        f"{seconds / 60:.0f} minutes. Rigs: "
        + ", ".join(f"{rig} {name}" for rig, name in RIGS.items())
        + ". The rows are those of the fault matrix (`fuzz/matrix.py`); a test that provokes several counts in each.",
        "",
        render(table),
    ]
    if skips:
        parts += ["", "Skipped here:", "", *(f"- {rig}: {reason}" for reason, rig in skips)]
    if notes:
        parts += ["", "Told by the tests:", "", *(f"- `{test}`: {note}" for test, note in notes)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
