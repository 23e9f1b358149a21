"""What one process asks of the disk, measured from outside, so that every contestant is measured alike.

- kept: the sum of the sizes of the files it leaves;
- handed: ``wchar`` of its /proc entry, read when it has ended and before it is reaped, less a baseline;
- syncs: fsync, fdatasync, sync_file_range and msync calls that strace sees, those of directories included;
- device: sectors written, from /proc/diskstats, up to and including a sync of the whole file system, less what the
  idle machine writes in that time; not told if that is most of them, for it is noise then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

_SECTOR: Final = 512
_SYNC_CALLS: Final = "fsync,fdatasync,sync_file_range,msync"


class ChildFailed(RuntimeError):
    """A contestant ended with an error; the message holds the end of what it printed."""


class Cost(NamedTuple):
    """What a run cost; None where this machine cannot tell. ``seconds`` is wall time, the process's start included."""

    kept: int
    handed: int
    syncs: int | None
    device: int | None
    seconds: float


class Probe:
    """Runs commands in fresh directories below ``base`` and tells what they cost."""

    def __init__(self, base: Path, environment: dict[str, str], *, idle_seconds: float = 2) -> None:
        """``idle_seconds``: how long the idle machine is watched."""
        self.base = base
        self.environment = environment
        self._idle_seconds = idle_seconds
        self.strace = shutil.which("strace")
        self._idle: float | None = None

    def run(self, command: Sequence[str], *, baseline: Sequence[str] | None = None) -> Cost:
        """Run ``command`` twice, once under strace; the argument ``{}`` stands for its directory.

        ``baseline``: a command that starts the same interpreter and stores nothing. Raises :class:`ChildFailed`.
        """
        idle = self._idle_rate()
        with self._directory() as directory:
            os.sync()
            sectors = self._sectors()
            started = time.perf_counter()
            handed = self._handed(command, directory)
            seconds = time.perf_counter() - started
            os.sync()
            whole = time.perf_counter() - started
            device = None if sectors is None else _quiet((self._sectors() or 0) - sectors, idle * whole)
            kept = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        if baseline is not None:
            with self._directory() as directory:
                handed -= self._handed(baseline, directory)
        return Cost(
            kept=kept,
            handed=handed,
            syncs=self._syncs(command),
            device=device,
            seconds=seconds,
        )

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        directory = Path(tempfile.mkdtemp(dir=self.base))
        try:
            yield directory
        finally:
            shutil.rmtree(directory)

    def _handed(self, command: Sequence[str], directory: Path) -> int:
        """Run a command; returns the bytes it handed to the operating system, its standard output left out."""
        with tempfile.TemporaryFile(dir=self.base) as output:
            child = subprocess.Popen(
                _placed(command, directory), stdout=output, stderr=subprocess.STDOUT, env=self.environment
            )
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            counters = Path(f"/proc/{child.pid}/io").read_text()
            code = child.wait()
            printed = output.seek(0, os.SEEK_END)
            if code:
                output.seek(max(0, printed - 2000))
                raise ChildFailed(f"{command} ended with {code}: {output.read().decode(errors='replace')}")
        fields = dict(line.split(": ") for line in counters.splitlines())
        return int(fields["wchar"]) - printed

    def _syncs(self, command: Sequence[str]) -> int | None:
        if self.strace is None:
            return None
        with self._directory() as directory, tempfile.NamedTemporaryFile(dir=self.base) as log:
            trace = [self.strace, "-f", "-qq", "-e", f"trace={_SYNC_CALLS}", "-e", "signal=none", "-o", log.name]
            ended = subprocess.run(
                [*trace, *_placed(command, directory)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self.environment,
                check=False,
            )
            if ended.returncode:
                raise ChildFailed(f"{command} under strace: {ended.stdout[-2000:].decode(errors='replace')}")
            # A call that was interrupted by another thread's line is written twice: "unfinished", then "resumed".
            return sum(b"resumed>" not in line for line in Path(log.name).read_bytes().splitlines())

    def _sectors(self) -> int | None:
        """Sectors written so far to the device under ``base``; None if the kernel does not list it."""
        device = self.base.stat().st_dev
        statistics = Path("/proc/diskstats")
        if not statistics.exists():
            return None
        for line in statistics.read_text().splitlines():
            fields = line.split()
            if (int(fields[0]), int(fields[1])) == (os.major(device), os.minor(device)):
                return int(fields[9])
        return None

    def _idle_rate(self) -> float:
        """Bytes a second that the device gets while nothing is measured."""
        if self._idle is None:
            os.sync()
            before = self._sectors()
            started = time.perf_counter()
            time.sleep(self._idle_seconds)
            os.sync()
            rate = ((self._sectors() or 0) - (before or 0)) * _SECTOR / (time.perf_counter() - started)
            self._idle = rate
        return self._idle


def _quiet(sectors: int, noise: float) -> int | None:
    """Bytes that a contestant's share of the sectors holds; None if others wrote more of them."""
    written = sectors * _SECTOR
    return None if noise > written / 2 else round(written - noise)


def _placed(command: Sequence[str], directory: Path) -> list[str]:
    return [str(directory) if argument == "{}" else argument for argument in command]
