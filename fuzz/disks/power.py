"""Power cuts of a real ext4 or xfs: a loop device, a child that writes, and the shutdown ioctl at any instant.

The ioctl takes the file system down as it stands, with or without its journal flushed: what the kernel has not written
back is gone with the unmount. Left to itself it writes back nothing within the seconds that a test has. So before the
cut a part of the dirty pages is written out of order, by another descriptor, as the kernel does under pressure: single
ranges of a file, one file of many, a directory, the journal. Then the log has holes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from fuzz.disks.mounts import cut, loop_device, make_image, mount, unmount
from fuzz.disks.worker import Outcome, Plan, Worker

SIZES: Final = {"ext4": 24 << 20, "xfs": 320 << 20}
FLAGS: Final = (0, 1, 1, 1, 1, 2)  # all flushed, the journal alone, nothing
_PAGE: Final = 4096
_RECENT: Final = 32 * _PAGE  # what was written last is most likely not on the disk yet
_WRITE_AND_WAIT: Final = 2 | 4  # SYNC_FILE_RANGE_WRITE, _WAIT_AFTER
_libc: Final = ctypes.CDLL(None, use_errno=True)


def scribble(session: Path, rng: Random) -> None:
    """Write some of a session's dirty pages back, out of order. Files may come and go meanwhile."""
    names = sorted(path for path in session.iterdir() if path.suffix == ".zst") if session.is_dir() else []
    for path in rng.sample(names, rng.randint(0, len(names))):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            _write_back(descriptor, rng)
        finally:
            os.close(descriptor)
    if names and rng.random() < 0.3:
        descriptor = os.open(session, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_back(descriptor: int, rng: Random) -> None:
    """The whole file, or some of the last pages that were written to."""
    if rng.random() < 0.15:
        os.fdatasync(descriptor)
        return
    data = os.pread(descriptor, 1 << 24, 0).rstrip(b"\0")
    pages = range(max(0, len(data) - _RECENT) // _PAGE, len(data) // _PAGE + 1)
    for page in rng.sample(pages, min(len(pages), rng.choice((1, 2, 4, 12)))):
        start, length = ctypes.c_int64(page * _PAGE), ctypes.c_int64(_PAGE * rng.choice((1, 1, 2, 8)))
        if _libc.sync_file_range(descriptor, start, length, _WRITE_AND_WAIT) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), "sync_file_range")


@dataclass
class Machine:
    """A file system on a device of its own that can be cut off and started again. Use :func:`machine`."""

    kind: str
    device: str
    directory: Path
    up: bool = False
    stores: int = 0
    cuts: int = field(default=0)

    def start(self) -> None:
        mount(self.device, str(self.directory), self.kind, "" if self.kind == "ext4" else "nouuid")
        self.up = True

    def stop(self) -> None:
        if self.up:
            self.up = False
            unmount(str(self.directory))

    def store(self) -> str:
        """The path of a store that is not there yet."""
        self.stores += 1
        return f"{self.directory}/store-{self.stores}"

    def run_and_cut(self, worker: Worker, plan: Plan, rng: Random, after: int) -> Outcome:
        """Let the child work on, cut the power once it has said ``after`` things, and start again.

        The child is not asked: it goes on while its pages are written back and the file system goes down.
        """
        session, flags = worker.rig.directory, rng.choice(FLAGS)
        messy = rng.random() < 0.9

        def power_off(told: int, models: bytes) -> bool:
            if told == after:
                if messy:
                    scribble(session, rng)
                worker.rig.going_down[0] = 1
                cut(str(self.directory), flags)
                self.cuts += 1
            return False

        worker.on_tell = power_off
        before = self.cuts
        try:
            outcome = worker.run(plan)
            assert self.cuts > before or outcome.end == "done", f"{outcome} before the cut"
        finally:
            worker.on_tell = lambda told, models: False
            if self.cuts == before and self.up:
                cut(str(self.directory), flags)  # the child had no more to say: at rest
                self.cuts += 1
            self.stop()
            worker.rig.going_down[0] = 0
        self.start()
        return outcome


@contextmanager
def machine(kind: str, scratch: Path) -> Iterator[Machine]:
    """A machine with an empty disk of ``kind``, for the length of the block; its files go below ``scratch``."""
    image, directory = scratch / f"{kind}.img", scratch / f"{kind}.mnt"
    directory.mkdir()
    small = ("-b", "4096", "-E", "nodiscard") if kind == "ext4" else ("-K",)
    make_image(str(image), kind, SIZES[kind], *small)
    with ExitStack() as stack:
        stack.callback(directory.rmdir)
        stack.callback(image.unlink)
        made = Machine(kind, stack.enter_context(loop_device(str(image))), directory)
        stack.callback(made.stop)
        made.start()
        yield made
