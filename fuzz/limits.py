"""What a process may not do for a while: files longer than so much, more descriptors, more room on the disk.

A :class:`Limit` is lowered in the middle of a script and lifted when the script is over; while the rig looks at the
store for itself, it is lifted, too. Works in a forked child, whose own limits they are; a small file system needs root.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, cast

from fuzz.process_child import Scenario, put_right
from fuzz.process_rig import ProcessRig, Told
from fuzz.simdisk import SimDisk


class Limit(Protocol):
    def lower(self) -> None: ...

    def lift(self) -> None: ...


class Resource:
    """A soft limit of this process. ``which``: as in :mod:`resource`."""

    def __init__(self, which: int, value: int) -> None:
        self._which, self._value = which, value
        self._before = resource.getrlimit(which)

    def lower(self) -> None:
        resource.setrlimit(self._which, (self._value, self._before[1]))

    def lift(self) -> None:
        resource.setrlimit(self._which, self._before)


class Descriptors(Resource):
    """So many more files may be open than are now."""

    def __init__(self, more: int) -> None:
        super().__init__(resource.RLIMIT_NOFILE, 0)
        self._more = more

    def lower(self) -> None:
        """The limit is one on numbers: those that are free below it are what is left."""
        used = {int(name) for name in os.listdir("/proc/self/fd")}
        free = (number for number in range(1 << 16) if number not in used)
        self._value = next(number for n, number in enumerate(free) if n == self._more)
        super().lower()


class FullDisk:
    """All but ``left`` bytes of a file system are taken."""

    def __init__(self, where: str, left: int) -> None:
        self._path = os.path.join(where, "filler")
        self._left = left

    def lower(self) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        length = 0
        with contextlib.suppress(OSError):
            while True:
                length += os.pwrite(fd, bytes(4096), length)
        os.ftruncate(fd, max(0, length - self._left))
        os.close(fd)

    def lift(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


class LimitedRig(ProcessRig):
    def __init__(self, path: str, scenario: Scenario, limit: Limit) -> None:
        super().__init__(path, scenario.settings)
        self.limit = limit
        self.low = False
        self.disk = cast(SimDisk, _Disk(self))

    def lower(self) -> None:
        self.low = True
        self.limit.lower()

    def lift(self) -> None:
        self.low = False
        self.limit.lift()

    def aside(self) -> AbstractContextManager[None]:
        return self._lifted() if self.low else contextlib.nullcontext()

    @contextmanager
    def _lifted(self) -> Iterator[None]:
        self.lift()
        try:
            yield
        finally:
            self.lower()


class _Disk:
    def __init__(self, rig: LimitedRig) -> None:
        self._rig = rig
        self.capacity: int | None = None

    def heal(self) -> None:
        self._rig.lift()


def apart(work: Callable[[], object], seconds: int = 60) -> list[object]:
    """What ``work`` returns, from a forked child, in a list; AssertionError with its traceback if it raises."""
    told = Told()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            try:
                told.add(("done", work()))
            except BaseException:  # noqa: BLE001 - told, and the child ends with it
                told.add(("error", traceback.format_exc()))
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    records = told.records()
    told.close()
    assert status == 0 and records, f"the child ended with {status}"
    word, found = records[-1]
    assert word == "done", found
    return [found]


def limited(path: str, scenario: Scenario, limit: Callable[[], Limit]) -> set[str]:
    """Perform a scenario in a child whose second part is limited, then without the limit; the errors it was told."""

    def work() -> object:
        rig = LimitedRig(path, scenario, limit())
        for step in scenario.before:
            step(rig)
        rig.faulty = rig.lasting = rig.leftovers = True
        rig.lower()
        try:
            for step in scenario.script:
                step(rig)
        finally:
            rig.lift()
        put_right(rig)
        return set(rig.failures)

    return cast("set[str]", apart(work)[0])


@contextmanager
def small_disk(size: int) -> Iterator[str]:
    """A file system in memory of so many bytes. PermissionError without root; OSError where there are no mounts."""
    if os.geteuid() != 0:
        raise PermissionError("mounting a small file system needs root")
    path = tempfile.mkdtemp(prefix="small-")
    try:
        _mount("-t", "tmpfs", "-o", f"size={size}", "none", path)
        try:
            yield path
        finally:
            subprocess.run(["umount", path], check=True)
    finally:
        os.rmdir(path)


@contextmanager
def read_only(source: str) -> Iterator[str]:
    """The same directory under another path, where nothing can be written. Raises as :func:`small_disk`."""
    if os.geteuid() != 0:
        raise PermissionError("mounting a directory read-only needs root")
    path = tempfile.mkdtemp(prefix="read-only-")
    try:
        _mount("--bind", source, path)
        try:
            _mount("-o", "remount,ro,bind", path)
            yield path
        finally:
            subprocess.run(["umount", path], check=True)
    finally:
        os.rmdir(path)


def _mount(*arguments: str) -> None:
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise OSError("there is no mount program") from error
    if done.returncode != 0:
        raise OSError(f"mount {' '.join(arguments)}: {done.stderr.strip()}")
