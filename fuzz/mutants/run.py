"""Run every mutant against its tests and print which test caught it.

``python -m fuzz.mutants [NAME ...] [--jobs N] [--list]``; ``make mutants`` calls it. First the tests run once on an
unchanged copy: they must pass there. Each mutant must then live through an ordinary session (else any test would catch
it, and it proves nothing) and fail each test it names. The exit status is 1 if one survives, has rotted or is no
mutant at all, and 2 if the tests fail without any.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from fuzz.mutants import MUTANTS
from fuzz.mutants.mutant import PACKAGES, ROOT, Mutant, Rotten, copy_sources, plant

ORDINARY: Final = "tests/crash/test_mutants.py::test_an_ordinary_life"
SECONDS: Final = 120  # that one test may take: it hangs then
LIMIT: Final = 600  # and all of a mutant's, before the process is killed
_FAILED: Final = 1  # pytest's exit status; 0: all passed, others: it could not even begin


@dataclass(frozen=True)
class Ran:
    """What pytest said: its exit status, its output, and what each of the tests that failed is told to have met."""

    status: int
    output: str
    failed: dict[str, str]

    def failure(self, test: str) -> str | None:
        """What the test met, None if it passed; with any of its parameters, unless ``test`` names them."""
        return next((why for name, why in self.failed.items() if name == test or name.startswith(f"{test}[")), None)


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    caught_by: tuple[str, ...]
    seconds: float
    trouble: str = ""  # why it does not count as caught
    output: str = ""

    @property
    def row(self) -> str:
        found = self.trouble or ", ".join(test.partition("::")[2] for test in self.caught_by)
        return f"{self.mutant.name:42} {self.mutant.rule:22} {self.seconds:5.1f} s  {found}"


def run_tests(tests: Sequence[str], sources: Path, scratch: Path, limit: float = LIMIT) -> Ran:
    """Run tests of the working tree on the packages in ``sources``."""
    scratch.mkdir()
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("SCOPELOG_", "PYTEST_"))}
    if "SCOPELOG_SHARED" in os.environ:
        environment["SCOPELOG_SHARED"] = os.environ["SCOPELOG_SHARED"]
    environment |= {
        "PYTHONPATH": os.pathsep.join(str(sources / package) for package in PACKAGES),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
        "COLUMNS": "2000",  # the summary is read here: nothing may be cut off
    }
    options = [
        "-p",
        "no:cacheprovider",
        "-rfE",
        "--tb=short",
        f"--timeout={SECONDS}",
        f"--basetemp={scratch / 'tests'}",
    ]
    log = scratch / "output"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,  # a file: a pipe would be held open by what a failed test leaves behind
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # a group of its own: its children go with it, stopped ones, too
        child.wait()
    output = log.read_text(encoding="utf-8", errors="replace")
    failed: dict[str, str] = {}
    for line in output.splitlines():
        word, _, rest = line.partition(" ")
        name, _, why = rest.partition(" - ")
        if word in ("FAILED", "ERROR") and "::" in name:
            failed.setdefault(name.strip(), why or "failed")
    return Ran(status, output, failed)


def try_mutant(mutant: Mutant, whole: Path, scratch: Path) -> Result:
    """Run the mutant's tests on a copy of ``whole`` that it changes. ``scratch`` must not exist, and is left there."""
    began = time.monotonic()
    try:
        plant(mutant, scratch, whole)
    except Rotten as error:
        return Result(mutant, (), time.monotonic() - began, f"HAS ROTTED: {error}")
    ran = run_tests((ORDINARY, *mutant.tests), scratch, scratch / "run")
    caught = tuple(test for test in mutant.tests if ran.failure(test) is not None)
    trouble = ""
    if ran.status not in (0, _FAILED):
        trouble = f"NOTHING RAN: pytest ended with {ran.status}"
    elif ran.failure(ORDINARY) is not None:
        trouble = f"IS NO MUTANT: an ordinary session fails with it ({ran.failure(ORDINARY)})"
    elif len(caught) < len(mutant.tests) or not caught:
        trouble = "SURVIVED " + ", ".join(test for test in mutant.tests if test not in caught)
    elif not mutant.hangs and any("Timeout (>" in (ran.failure(test) or "") for test in caught):
        trouble = "HANGS, which it is not said to do"
    return Result(mutant, caught, time.monotonic() - began, trouble, ran.output)


def _try_and_clear(mutant: Mutant, whole: Path, scratch: Path) -> Result:
    try:
        return try_mutant(mutant, whole, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # all of them together take much room


def whole_copy(where: Path) -> Path:
    """An unchanged copy of the sources, compiled: mutants are made of it."""
    copy_sources(ROOT, where)
    for package in PACKAGES:
        compileall.compile_dir(where / package, quiet=1)
    return where


def foreign(whole: Path) -> str:
    """What the packages are imported from in place of the copy, empty if it is the copy."""
    code = "import scopelog, scopelog_engine; print(scopelog.__file__, scopelog_engine.__file__)"
    path = os.pathsep.join(str(whole / package) for package in PACKAGES)
    command = [sys.executable, "-c", code]
    found = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return "" if all(name.startswith(str(whole)) for name in found) else " ".join(found)


def sound(tests: Sequence[str], whole: Path, scratch: Path, jobs: int) -> bool:
    """Whether the tests pass on the unchanged copy; says so if not."""
    files: dict[str, list[str]] = {}
    for test in sorted({ORDINARY, *tests}):
        files.setdefault(test.partition("::")[0], []).append(test)
    shares: list[list[str]] = [[] for _ in range(min(jobs, len(files)))]
    for of_file in sorted(files.values(), key=len, reverse=True):
        min(shares, key=len).extend(of_file)
    with ThreadPoolExecutor(len(shares)) as pool:
        runs = [*pool.map(lambda n: run_tests(shares[n], whole, scratch / f"whole-{n}", 6 * LIMIT), range(len(shares)))]
    for ran in runs:
        if ran.status:
            print(f"{ran.output}\nthe tests fail without any mutant", file=sys.stderr)
    return not any(ran.status for ran in runs)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="these mutants alone; a part of a name will do")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants side by side")
    parser.add_argument("--list", action="store_true", help="say what they are and run nothing")
    parser.add_argument("--verbose", action="store_true", help="print what the tests said of each mutant")
    chosen = parser.parse_args(arguments)
    mutants = [m for m in MUTANTS.values() if not chosen.names or any(part in m.name for part in chosen.names)]
    if not mutants:
        parser.error("there is no such mutant")
    if chosen.list:
        for mutant in mutants:
            print(describe(mutant))
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        scratch = Path(directory).resolve()
        scratch.chmod(0o755)  # some tests go on as another user
        whole = whole_copy(scratch / "whole")
        elsewhere = foreign(whole)
        if elsewhere:
            print(f"the copy is not what is imported, but {elsewhere}", file=sys.stderr)
            return 2
        if not sound([test for mutant in mutants for test in mutant.tests], whole, scratch, chosen.jobs):
            return 2
        failures: list[Result] = []
        print(f"{'mutant':42} {'rule':22} {'time':>7}  caught by", flush=True)
        pool = ThreadPoolExecutor(max(1, chosen.jobs))
        try:
            attempts = [pool.submit(partial(_try_and_clear, m, whole, scratch / m.name)) for m in mutants]
            for attempt in attempts:
                result = attempt.result()
                print(result.row, flush=True)
                if result.trouble:
                    failures.append(result)
                if result.output and (chosen.verbose or result.trouble):
                    print(textwrap.indent(result.output, "    "), flush=True)
        finally:
            pool.shutdown(cancel_futures=True)  # interrupted: those that run are waited for, no other is begun
    print(f"\n{len(mutants) - len(failures)} of {len(mutants)} caught, {time.monotonic() - began:.0f} s")
    for result in failures:
        print(f"{result.mutant.name}: {result.trouble}", file=sys.stderr)
    return 1 if failures else 0


def describe(mutant: Mutant) -> str:
    rows = ", ".join(map(str, mutant.rows)) or "none"
    lines = [f"{mutant.name} ({mutant.rule}; rows: {rows})", f"    {mutant.breaks}"]
    lines += [f"    {test}" for test in mutant.tests]
    return "\n".join(lines)
