"""A block device that keeps a log of its writes and flushes, replayed to every state a power cut can leave.

A loop device stands on the one file of a FUSE file system that this process serves, so each write and each flush of the
file system above comes here, in order. What a disk may lose is what it was given since the last flush that it answered,
any of it; what came before is there. So a state is a position in the log and a choice of the writes since the flush
before it, whole, or by sectors. A state is laid into an image, mounted (the journal is replayed), and opened.

``entries`` number what the device has done from 0; a position is how many of them came before. Faults are of the
device: a flush or write that fails takes nothing in.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from errno import EIO, ENOENT, ENOSYS
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from fuzz.disks.fuse import ROOT, Attr, Server, served
from fuzz.disks.mounts import loop_device, make_image, mounted

NAME: Final = "disk.img"
SECTOR: Final = 512
_NODE: Final = 2
_CHUNK: Final = 64 * 1024
SIZES: Final = {1024: 8 << 20, 4096: 16 << 20}
_MKFS: Final = ("-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0")


class Entry(NamedTuple):
    """A write, or a flush if there is no data."""

    offset: int
    data: bytes

    @property
    def flush(self) -> bool:
        return not self.data


@dataclass
class Device:
    """The file ``disk.img`` as a :class:`fuzz.disks.fuse.Volume`. ``base``: its bytes before the first entry.

    ``failures`` counts the faults of :meth:`fail` that were met.
    """

    base: bytes
    entries: list[Entry] = field(default_factory=list)
    failures: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.live = bytearray(self.base)
        self._flushes = self._writes = 0
        self._of = b""
        self._for_ever = False

    @property
    def position(self) -> int:
        return len(self.entries)

    def fail(self, *, flushes: int = 0, writes: int = 0, of: bytes = b"", for_ever: bool = False) -> None:
        """So many of the next flushes and writes fail with EIO, and take nothing in; ``for_ever``: all of them do.
        Of writes only those that hold ``of`` somewhere."""
        with self.lock:
            self._flushes, self._writes, self._of, self._for_ever = flushes, writes, of, for_ever

    def heal(self) -> None:
        self.fail()

    def look_up(self, parent: int, name: str) -> Attr:
        if parent != ROOT or name != NAME:
            raise OSError(ENOENT, name)
        return self.attributes(_NODE)

    def attributes(self, node: int) -> Attr:
        return Attr(ROOT, True) if node == ROOT else Attr(_NODE, False, len(self.live))

    def names(self, node: int) -> list[tuple[str, Attr]]:
        return [(NAME, self.attributes(_NODE))]

    def read(self, node: int, length: int, offset: int) -> bytes:
        return bytes(self.live[offset : offset + length])

    def write(self, node: int, data: bytes, offset: int) -> int:
        with self.lock:
            if self._writes and self._of in data:
                self._writes -= not self._for_ever
                self.failures += 1
                raise OSError(EIO, "write")
            self.entries.append(Entry(offset, data))
            self.live[offset : offset + len(data)] = data
        return len(data)

    def sync(self, node: int) -> None:
        with self.lock:
            if self._flushes:
                self._flushes -= not self._for_ever
                self.failures += 1
                raise OSError(EIO, "flush")
            self.entries.append(Entry(0, b""))

    def sync_dir(self, node: int) -> None: ...

    def forget(self, node: int) -> None: ...

    def _refuse(self, *_: object) -> Attr:
        raise OSError(ENOSYS, "one file, of one size")

    make_dir = create = _refuse

    def _refuse_too(self, *_: object) -> None:
        self._refuse()

    unlink = remove_dir = rename = resize = allocate = _refuse_too


class State(NamedTuple):
    """What a power cut leaves: all before ``flushed``, and of the writes from there to ``position`` those ``kept``.

    Each of ``kept`` is an entry's number and which of its sectors survived, all if that is None.
    """

    position: int
    flushed: int
    kept: tuple[tuple[int, frozenset[int] | None], ...]


class Log:
    """A finished run: what a device has done, and what was known at which position.

    ``known``: positions, rising, each with what its owner wants to remember of the moment.
    """

    def __init__(self, device: Device, known: Sequence[tuple[int, bytes]], end: int) -> None:
        self.base, self.entries, self.known = device.base, device.entries[:end], known
        self._positions = [position for position, _ in known]

    def at(self, position: int) -> bytes:
        """What was known when the device had done ``position`` entries: what was said after that does not count."""
        return self.known[bisect_right(self._positions, position) - 1][1]

    def flushed(self, position: int) -> int:
        """How many of the first ``position`` entries are there for certain."""
        while position > 0 and not self.entries[position - 1].flush:
            position -= 1
        return position

    def whole(self, position: int) -> State:
        """Every write up to ``position`` is there; behind a flush this is the only state there is."""
        flushed = self.flushed(position)
        return State(position, flushed, tuple((n, None) for n in range(flushed, position)))

    def positions(self, first: int) -> list[int]:
        """Behind every flush, and in the middle between two."""
        flushes = [n + 1 for n, entry in enumerate(self.entries) if entry.flush and n >= first]
        middles = [(a + b) // 2 for a, b in pairwise([first, *flushes, len(self.entries)]) if b - a > 2]
        return sorted({first, *flushes, *middles, len(self.entries)})

    def sample(self, position: int, rng: Random) -> State:
        """One legal state: each write since the last flush lost, kept or torn by sectors."""
        flushed = self.flushed(position)
        keep = rng.choice((0.2, 0.5, 0.8))
        kept: list[tuple[int, frozenset[int] | None]] = []
        for number in range(flushed, position):
            sectors = range(-(-len(self.entries[number].data) // SECTOR))
            if rng.random() < keep:
                kept.append((number, None))
            elif len(sectors) > 1 and rng.random() < 0.5:
                kept.append((number, frozenset(n for n in sectors if rng.random() < 0.5)))
        return State(position, flushed, tuple(kept))

    def lay(self, state: State, path: Path) -> None:
        """Write the state's image to ``path``."""
        image = bytearray(self.base)
        for entry in self.entries[: state.flushed]:
            image[entry.offset : entry.offset + len(entry.data)] = entry.data
        for number, sectors in state.kept:
            offset, data = self.entries[number]
            for sector in range(-(-len(data) // SECTOR)) if sectors is None else sectors:
                part = data[sector * SECTOR : (sector + 1) * SECTOR]
                image[offset + sector * SECTOR : offset + sector * SECTOR + len(part)] = part
        _write_sparse(path, image)


def _write_sparse(path: Path, image: bytearray) -> None:
    with path.open("wb") as file:
        file.truncate(len(image))
        for at in range(0, len(image), _CHUNK):
            chunk = image[at : at + _CHUNK]
            if any(chunk):
                file.seek(at)
                file.write(chunk)


@dataclass
class Bench:
    """An ext4 on a logged device: :meth:`running` for the run, :meth:`replayed` for each state. ``directory`` is where
    it is mounted, both times; files go below ``scratch``."""

    scratch: Path

    def __post_init__(self) -> None:
        self.directory = self.scratch / "mnt"
        self._served = self.scratch / "served"
        self._image = self.scratch / "state.img"
        self.directory.mkdir()
        self._served.mkdir()

    def device(self, block: int = 1024) -> Device:
        """A fresh device with an empty file system of blocks of so many bytes."""
        journal = f"size={block // 1024}"  # the smallest there is
        make_image(str(self._image), "ext4", SIZES[block], "-b", str(block), "-J", journal, *_MKFS)
        base = self._image.read_bytes()
        self._image.unlink()
        return Device(base)

    @contextmanager
    def running(self, device: Device) -> Iterator[Server]:
        """The device's file system is mounted, and all that reaches the device is logged."""
        with ExitStack() as stack:
            server = stack.enter_context(served(device, str(self._served)))
            loop = stack.enter_context(loop_device(str(self._served / NAME)))
            stack.enter_context(mounted(loop, str(self.directory), "ext4"))
            yield server

    @contextmanager
    def replayed(self, log: Log, state: State) -> Iterator[None]:
        """The file system as it comes up after the cut that left ``state``."""
        log.lay(state, self._image)
        try:
            with loop_device(str(self._image)) as loop, mounted(loop, str(self.directory), "ext4"):
                yield
        finally:
            self._image.unlink()
