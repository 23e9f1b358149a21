"""The demonstration that ``make demo`` runs: record a stream, kill the recorder half-way, recover, and count.

Usage: ``python -m scopelog.cli.demo [STREAM]``. The store is ``demo-store`` in the current directory, made anew. Exits
with 1 if a line that had been reported written is missing afterwards, or comes back changed.
"""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from scopelog_engine.elements import freeze

from ..addresses import list_of
from ..errors import InvalidInput, ScopelogError
from ..store import Store
from .arrival import Line
from .output import as_json, count
from .recording import parse

STORE: Final = Path("demo-store")
SAMPLE: Final = Path(__file__).parent / "sample.jsonl"
SESSION: Final = "demo"
WINDOW_MS: Final = 100
PACE: Final = 0.002  # seconds between two lines
PACED_LINES: Final = 600  # before the kill, and after it: a long stream takes no longer than a short one
BLOCK: Final = 4096  # what the disk writes at least for a sync


class Broken(Exception):
    """The demonstration cannot go on, or has shown that something is wrong."""


class Refused(InvalidInput):
    """The stream cannot be used; nothing was recorded."""


class Recorder:
    """A ``scopelog record`` in a process of its own, fed through a pipe; it reports JSON lines as it stores."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "scopelog.cli", "record", "--json", "--window", str(WINDOW_MS)]
        self.process = subprocess.Popen(
            [*command, str(STORE), SESSION, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.last: dict[str, Any] = {"written": 0}
        self._reports: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._reports.put(json.loads(line))
        self._reports.put(None)

    def feed(self, lines: list[bytes], fed_at: list[float]) -> None:
        """The first line, and the rest at the stream's pace once that is stored: then the child is up and running."""
        assert self.process.stdin is not None
        try:
            for n, line in enumerate(lines):
                self.process.stdin.write(line + b"\n")
                self.process.stdin.flush()
                fed_at.append(time.monotonic())
                if n == 0:
                    self._next()
                elif len(lines) - n <= PACED_LINES:
                    time.sleep(PACE)
        except BrokenPipeError:
            raise Broken(f"the recorder ended early, with code {self.process.wait()}") from None

    def _next(self) -> bool:
        report = self._reports.get()
        if report is not None:
            self.last = report
        return report is not None

    def kill(self) -> float:
        """SIGKILL; returns when. ``last`` is then the last thing it had reported."""
        self.process.kill()
        when = time.monotonic()
        self._drain()
        return when

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._drain()
        if self.process.returncode != 0 or not self.last.get("done"):
            raise Broken(f"the second recorder ended with code {self.process.returncode}")

    def _drain(self) -> None:
        while self._next():
            pass
        self.process.wait()


def run(stream: Path) -> None:
    """The whole story. Raises :class:`Broken`, :class:`ScopelogError` or :class:`OSError`."""
    lines = read_stream(stream)
    raw = sum(len(line) + 1 for line in lines)
    clean_up()
    say(f"scopelog demo: a stream of {count(len(lines), 'line')}, {count(raw, 'byte')} as JSON lines ({stream.name})")

    half = max(1, len(lines) // 2)
    pace = f"a line about every {PACE * 1000:.0f} ms"
    if half > PACED_LINES:
        pace = f"{half - PACED_LINES:,} lines at once, then {pace}"
    step(1, f"record the first half: {pace}, stored together by windows of {WINDOW_MS} ms")
    fed_at: list[float] = []
    first = Recorder()
    first.feed(lines[:half], fed_at)
    killed_at = first.kill()
    reported = int(first.last["written"])
    say(f"process {first.process.pid} was killed with SIGKILL after {count(half, 'line')}")

    step(2, f"scopelog check {STORE}")
    show_findings()

    step(3, "recover: open the session again")
    kept = recover(lines, half, reported)
    lost = half - kept
    say(f"{half:>7,} lines fed to the recorder")
    say(f"{reported:>7,} lines it had reported written")
    say(f"{kept:>7,} lines kept: every one of those, unchanged and in order")
    age = f", the oldest fed {(killed_at - fed_at[kept]) * 1000:.0f} ms before the kill" if lost else ""
    say(f"{lost:>7,} lines lost{age}; at most a window of {WINDOW_MS} ms and its sync may be")

    second = None
    if kept < len(lines):
        step(4, f"record the remaining {count(len(lines) - kept, 'line')} behind them, and close")
        second = Recorder()
        second.feed(lines[kept:], [])
        second.finish()
    compare(lines, len(lines))
    say(f"{len(lines):>7,} lines in the session, as they were in the stream")
    show_findings()

    step(5, "what it cost")
    show_cost(raw, len(lines), [first.last] + ([second.last] if second else []))
    say("")
    say(f"Look around:  .venv/bin/scopelog cat {STORE} {SESSION} | less      zstdcat {STORE}/*.session/main.zst | less")


def read_stream(path: Path) -> list[bytes]:
    """The lines that are not blank, each checked to be an element."""
    try:
        texts = [line.strip(b" \t\r") for line in path.read_bytes().split(b"\n")]
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error.strerror})", "name a file of JSON lines: STREAM=file") from None
    for number, text in enumerate(texts, 1):
        if not text:
            continue
        try:
            freeze(parse(Line(number, text)))
        except ScopelogError as error:
            raise Refused(f"{path}, line {number}: {error.cause}", "mend that line; nothing was recorded") from None
    lines = [text for text in texts if text]
    if not lines:
        raise Refused(f"{path} holds no line", "name a file of JSON lines: STREAM=file")
    return lines


def clean_up() -> None:
    """Remove the store of an earlier demonstration, and nothing else."""
    if STORE.exists():
        if any(STORE.iterdir()) and not (STORE / "store.zst").exists():
            raise Broken(f"{STORE} exists and is not a store: remove it yourself")
        shutil.rmtree(STORE)


def recover(lines: list[bytes], fed: int, reported: int) -> int:
    """Open for writing, say what recovery did, and compare what is there; returns how many lines were kept."""
    with Store.open(STORE, create=False) as store, store.session(SESSION) as session:
        report = session.recovery
        for tail in report.torn:
            say(
                f"torn tail: {count(tail.length, 'byte')} cut at offset {tail.offset:,}, kept in {Path(tail.kept).name}"
            )
        if not report.torn:
            say("no torn tail: the log ends with a whole frame, nothing was cut")
    kept = compare(lines, fed)
    if kept < reported:
        raise Broken(f"{reported} lines had been reported written, {kept} are there")
    return kept


def compare(lines: list[bytes], at_most: int) -> int:
    """How many lines the session holds. Raises :class:`Broken` unless they are the first ones of the stream."""
    with Store.open(STORE, create=False) as store, store.reader(SESSION) as reader:
        elements = reader.read(list_of("record", "lines"))
    if len(elements) > at_most:
        raise Broken(f"{len(elements)} lines are there, only {at_most} were fed")
    for number, (line, element) in enumerate(zip(lines, elements, strict=False), 1):
        if as_json(parse(Line(number, line))) != as_json(element.element):
            raise Broken(f"line {number} came back changed")
    return len(elements)


def show_findings() -> None:
    with Store.open(STORE, create=False) as store:
        findings = store.check()
    for found in findings:
        say(f"{found.severity}: {Path(found.path).name}, offset {found.offset:,}, {found.reason}: {found.detail}")
    severities = {found.severity for found in findings}
    if "corrupt" in severities:
        raise Broken("the store is corrupt")
    say("torn: an un-synced tail, which recovery cuts and keeps aside" if "torn" in severities else "sound")


def show_cost(raw: int, lines: int, runs: list[dict[str, Any]]) -> None:
    """Of both recorders; of the killed one as it stood at its last report."""

    def total(name: str) -> float:
        return sum(float(run.get(name, 0)) for run in runs)

    syncs, spent = int(total("syncs")), total("sync_seconds")
    logs = [path for path in STORE.rglob("*.zst") if path.name != "store.zst"]
    on_disk = sum(path.stat().st_size for path in logs)
    out = int(total("bytes_written"))
    each = spent / syncs if syncs else 0.0
    say(f"{'':28}{'scopelog':>14}{'JSONL, a sync a line':>24}")
    say(f"{'bytes kept on disk':28}{on_disk:>14,}{raw:>24,}   {on_disk / raw:.0%}")
    say(f"{'bytes handed to the system':28}{out:>14,}{raw:>24,}")
    say(f"{'frames':28}{int(total('frames')):>14,}{'-':>24}")
    say(f"{'syncs':28}{syncs:>14,}{lines:>24,}")
    say(f"{'waiting for syncs, ms':28}{spent * 1000:>14,.1f}{each * lines * 1000:>24,.1f}")
    say(f"{'least the disk writes':28}{max(syncs * BLOCK, out):>14,}{max(lines * BLOCK, raw):>24,}")
    say("The left column is both recorders together, the killed one up to its last report (recovery is not counted).")
    say("The right column is computed, not measured: one sync for each line, each as long as the mean one of this run")
    say(f"({each * 1000:.2f} ms), and at least one block of {BLOCK:,} bytes for each.")


def step(number: int, what: str) -> None:
    say(f"\n{number}. {what}")


def say(text: str) -> None:
    sys.stdout.write(f"   {text}\n" if text and not text.startswith(("\n", "scopelog demo")) else f"{text}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        sys.stderr.write("usage: python -m scopelog.cli.demo [STREAM]\n")
        return 2
    stream = Path(arguments[0]) if arguments and arguments[0] else SAMPLE
    try:
        run(stream)
    except Broken as error:
        sys.stderr.write(f"the demonstration failed: {error}\n")
        return 1
    except ScopelogError as error:
        sys.stderr.write(f"error: {error.cause}\nhint: {error.remedy}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
