"""One run of the measurements: its sizes, its directory, the stores that several rows share, and child processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from .probe import ChildFailed

_SAID: Final = 2000  # characters of what a child printed that an error repeats
_PACKAGE: Final = __package__


class Run:
    """``quick``: sizes that only show that a row works. ``large``: the largest sessions, too."""

    def __init__(self, base: Path, environment: dict[str, str], *, quick: bool = False, large: bool = False) -> None:
        self.base = base
        self.environment = environment
        self.quick = quick
        self.large = large
        self._built: dict[str, Path] = {}

    def say(self, what: str) -> None:
        """Progress, on standard error."""
        print(f"measuring: {what}", file=sys.stderr, flush=True)

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    # --- directories ------------------------------------------------------------------------------

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """A fresh directory, removed afterwards."""
        path = Path(tempfile.mkdtemp(dir=self.base))
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def built(self, name: str, build: Callable[[Path], object]) -> Path:
        """The directory of that name, which ``build`` fills once in a run. Kept until the run ends, or dropped."""
        if name not in self._built:
            self.say(f"building {name}")
            path = Path(tempfile.mkdtemp(dir=self.base, prefix=re.sub(r"\W+", "-", name) + "-"))
            build(path)
            self._built[name] = path
        return self._built[name]

    def drop(self, name: str) -> None:
        """Give back the disk space of what was built."""
        path = self._built.pop(name, None)
        if path is not None:
            shutil.rmtree(path)

    # --- children ---------------------------------------------------------------------------------

    def child(self, module: str, *arguments: object) -> Any:
        """Run ``python -m bench.MODULE ARGUMENTS``; returns what its last line says, as JSON.

        Raises :class:`ChildFailed`.
        """
        ended = subprocess.run(
            self.command(module, *arguments), capture_output=True, text=True, env=self.environment, check=False
        )
        if ended.returncode:
            raise ChildFailed(f"{module} {arguments} ended with {ended.returncode}: {ended.stderr[-_SAID:]}")
        return json.loads(ended.stdout.splitlines()[-1])

    def command(self, module: str, *arguments: object) -> list[str]:
        return [sys.executable, "-m", f"{_PACKAGE}.{module}", *map(str, arguments)]

    def killed(self, module: str, *arguments: object) -> None:
        """Run a child until it prints a line, which says that it is at work, and kill it there and then.

        Raises :class:`ChildFailed` if it ends without one.
        """
        with subprocess.Popen(
            self.command(module, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment
        ) as child:
            assert child.stdout is not None and child.stderr is not None
            said = child.stdout.readline()
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            complaint = child.stderr.read().decode(errors="replace")
        if not said:
            raise ChildFailed(f"{module} {arguments} ended before it was killed: {complaint[-_SAID:]}")


def forget_pages(directory: Path) -> None:
    """Let the kernel drop every cached page of the files below ``directory``: their next read is from the disk.

    They are synced first, since dirty pages are not dropped. Nobody may have them mapped.
    """
    for file in directory.rglob("*"):
        if not file.is_file():
            continue
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def say_json(value: object) -> None:
    """What a child has to say: one line, its last."""
    print(json.dumps(value), flush=True)
