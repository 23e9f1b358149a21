"""A simulated disk on which live bytes and durable bytes are apart, behind the engine's file-system seam.

What it assumes of a disk, strictest reading first:

1. A file's sync makes its bytes and length durable, never its name. A directory's sync makes the names in it durable.
2. A rename is atomic: after a cut the file has its old name or its new one. Across two directories it is durable only
   when both were synced, or when a later change of one of the two names is.
3. After a failed sync the pages are clean: they read well until the cut, no later sync writes them, and only writing
   the same bytes again does. Lengths are metadata and become durable with the next good sync.
4. A failed directory sync changes nothing; the next good one covers the same names.
5. ``kill -9`` loses nothing and proves nothing: the same un-synced changes can still be lost by a later power cut.

Steps are the operations that change the disk, and opens; they are numbered from 1. There are no links and no "..";
relative paths start at the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EBADF, EBUSY, EINVAL, EIO, ENOSPC, ENOTEMPTY, errorcode
from hashlib import blake2b
from random import Random
from threading import RLock
from typing import Literal

from fuzz.simdisk_crash import (
    Change,
    Choices,
    CrashPolicy,
    DirNode,
    FileNode,
    KeepAll,
    LoseAll,
    Node,
    Prefix,
    RandomLoss,
    Slot,
    Tree,
    full_path,
    os_error,
)
from scopelog_engine.pool import Pool

__all__ = ["CrashPolicy", "KeepAll", "LoseAll", "Prefix", "RandomLoss", "SimCrash", "SimDisk", "SimFile"]

Mode = Literal["before", "after", "torn"]
STEPS = ("open", "create", "pwrite", "truncate", "allocate", "sync", "rename", "unlink", "mkdir", "rmdir", "sync_dir")
READS = ("pread", "size", "list_dir", "try_lock", "identity")


class SimCrash(BaseException):
    """The machine went down. Not an ``Exception``: no handler of the engine may swallow it."""


@dataclass(slots=True)
class _Fault:
    op: str
    nth: int
    errno: int | None
    path: str
    persistent: bool
    short: int | None


class SimFile:
    """An open file description. Raises EBADF when closed, SimCrash when the disk is down."""

    __slots__ = ("__weakref__", "_disk", "_node", "_open", "_writable")

    def __init__(self, disk: SimDisk, node: FileNode, writable: bool) -> None:
        self._disk, self._node, self._writable = disk, node, writable
        self._open = True
        node.handles += 1

    def pread(self, length: int, offset: int) -> bytes:
        with self._disk.lock:
            self._check(length < 0 or offset < 0)
            limit = self._begin("pread", offset, length)
            return bytes(self._node.live[offset : offset + (length if limit is None else min(length, limit))])

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        payload = bytes(data)
        disk, node = self._disk, self._node
        with disk.lock:
            self._check(offset < 0, EBADF)
            limit = self._begin("pwrite", offset, len(payload))
            payload = payload if limit is None else payload[:limit]
            room = disk.room()
            if room is not None and payload and offset + len(payload) > len(node.live):
                payload = payload[: max(0, len(node.live) + room - offset)]
                if not payload:
                    raise os_error(ENOSPC, node.path())
            if payload:
                self._change(Change("write", offset, payload))
            disk.end()
        return len(payload)

    def size(self) -> int:
        with self._disk.lock:
            self._begin("size")
            return len(self._node.live)

    def truncate(self, length: int) -> None:
        """Set the length; growing makes a hole, which needs no room."""
        with self._disk.lock:
            self._check(length < 0, EINVAL)
            self._begin("truncate", length)
            self._change(Change("length", length))
            self._disk.end()

    def allocate(self, offset: int, length: int) -> None:
        """Extend with zeros up to ``offset + length``; all or nothing, ENOSPC past the capacity."""
        with self._disk.lock:
            self._check(offset < 0 or length <= 0, EBADF)
            self._begin("allocate", offset, length)
            room = self._disk.room()
            if room is not None and offset + length > len(self._node.live) + room:
                raise os_error(ENOSPC, self._node.path())
            if offset + length > len(self._node.live):
                self._change(Change("extend", offset + length))
            self._disk.end()

    def forget(self, offset: int, length: int) -> None:
        """Nothing: clean pages read as they did, and writing the same bytes again brings them to the disk."""

    def sync(self) -> None:
        """Make bytes and length durable, not the name. A failure drops the un-synced bytes for good."""
        with self._disk.lock:
            self._check()
            try:
                self._begin("sync")
            except OSError:
                self._node.drop()
                raise
            self._node.sync()
            self._disk.end()

    def try_lock(self) -> bool:
        with self._disk.lock:
            self._begin("try_lock")
            if self._node.holder is None:
                self._node.holder = self
            return self._node.holder is self

    def identity(self) -> tuple[int, int]:
        with self._disk.lock:
            self._begin("identity")
            return 1, self._node.number

    def close(self) -> None:
        """Release the lock and the handle. Never raises, also after a crash."""
        with self._disk.lock:
            if not self._open:
                return
            self._open = False
            self._node.handles -= 1
            if self._node.holder is self:
                self._node.holder = None
            self._disk.release(self._node)

    def _check(self, invalid: bool = False, read_only_error: int | None = None) -> None:
        """Refuse what Linux refuses before it touches the disk; such a call is no step."""
        self._disk.check_alive()
        if not self._open:
            raise os_error(EBADF, self._node.path())
        if invalid:
            raise os_error(EINVAL, self._node.path())
        if read_only_error is not None and not self._writable:
            raise os_error(read_only_error, self._node.path())

    def _begin(self, op: str, *numbers: int) -> int | None:
        self._check()
        if op in READS and not self._disk.armed:  # the commonest by far, and nobody asks for their path
            self._disk.reads += 1
            return None
        return self._disk.begin(op, self._node.path(), *map(str, numbers))

    def _change(self, change: Change) -> None:
        before = len(self._node.live)
        self._node.change(change)
        self._disk.used += len(self._node.live) - before


class SimDisk:
    """A file system in memory, deterministic and safe for threads. ``capacity`` is in bytes, None for no end.

    ``trace`` lists every step as it is tried: operation, full path (of a file: its name now, not at the open) and
    numbers; an injected failure has the error's name at its end. ``steps`` and ``reads`` count. A new disk made by
    :meth:`crash`, :meth:`kill` or :meth:`copy` starts all of these afresh, without faults, and keeps the inode numbers.
    """

    def __init__(self, capacity: int | None = None, preallocates: bool = True) -> None:
        self.capacity = capacity
        self.preallocates: bool = preallocates
        self.memory_maps: bool = False
        self.pool = Pool()
        self.trace: list[tuple[str, ...]] = []
        self.steps = 0
        self.reads = 0
        self.used = 0
        self.hits = 0
        """How often a fault of :meth:`fail` has struck."""
        self.watch: Callable[[str], None] | None = None
        """Called before every step, with its operation; it may look at the disk, and must not change it."""
        self.lock = RLock()
        self._looked_at = type(self).begin is not SimDisk.begin
        self._tree = Tree()
        self._faults: list[_Fault] = []
        self._crash: tuple[int, Mode, int] | None = None
        self._down = False

    # The seam.

    def open(self, path: str) -> SimFile:
        with self.lock:
            return self._open(path, writable=True)

    def open_readonly(self, path: str) -> SimFile:
        """Open for reading; unlike Linux, a directory is EISDIR here already."""
        with self.lock:
            return self._open(path, writable=False)

    def create(self, path: str) -> SimFile:
        with self.lock:
            self.begin("create", full_path(path))
            node = FileNode(self._tree.number())
            self._change(node, None, self._tree.free_slot(path))
            self.end()
            return SimFile(self, node, writable=True)

    def open_or_create(self, path: str) -> SimFile:
        """Counts as ``create`` when the file is missing, else as ``open``."""
        with self.lock:
            return self.open(path) if self._tree.find(path) is not None else self.create(path)

    def make_dir(self, path: str) -> None:
        with self.lock:
            self.begin("mkdir", full_path(path))
            self._change(DirNode(self._tree.number()), None, self._tree.free_slot(path))
            self.end()

    def rename(self, source: str, target: str) -> None:
        with self.lock:
            self.begin("rename", full_path(source), full_path(target))
            found = self._tree.renaming(source, target)
            if found is not None:
                self._change(*found)
            self.end()

    def unlink(self, path: str) -> None:
        with self.lock:
            self.begin("unlink", full_path(path))
            self._change(self._tree.file(path), self._tree.slot(path), None)
            self.end()

    def remove_dir(self, path: str) -> None:
        with self.lock:
            self.begin("rmdir", full_path(path))
            node = self._tree.directory(path)
            if node.parent is None:
                raise os_error(EBUSY, path)
            if node.entries:
                raise os_error(ENOTEMPTY, path)
            self._change(node, (node.parent, node.name), None)
            self.end()

    def list_dir(self, path: str) -> list[str]:
        with self.lock:
            self.begin("list_dir", full_path(path))
            return sorted(self._tree.directory(path).entries)

    def is_dir(self, path: str) -> bool:
        with self.lock:
            self.check_alive()
            return isinstance(self._tree.find(path), DirNode)

    def exists(self, path: str) -> bool:
        with self.lock:
            self.check_alive()
            return self._tree.find(path) is not None

    def identity(self, path: str) -> tuple[int, int] | None:
        with self.lock:
            self.begin("identity", full_path(path))
            try:
                return 1, self._tree.node(path).number
            except FileNotFoundError:
                return None

    def sync_dir(self, path: str) -> None:
        with self.lock:
            self.begin("sync_dir", full_path(path))
            self._tree.sync(self._tree.directory(path))
            self.end()

    # Faults.

    def fail(
        self,
        op: str,
        nth: int = 1,
        errno: int | None = None,
        path: str = "",
        persistent: bool = False,
        short: int | None = None,
    ) -> None:
        """Make the ``nth`` coming ``op`` (of STEPS or READS) whose path contains ``path`` fail with ``errno`` (EIO).

        ``persistent``: that one and all after it. ``short``, in bytes, for pwrite and pread alone: do no more than so
        many and say so; with ``errno`` as well, the call after the short one fails. ValueError for what cannot be.
        """
        if op not in STEPS + READS or nth < 1 or (short is not None and op not in ("pwrite", "pread")):
            raise ValueError(f"cannot make this fail: {op}, nth={nth}, short={short}")
        with self.lock:
            code = EIO if errno is None and short is None else errno
            self._faults.append(_Fault(op, nth, code, path, persistent, short))

    def heal(self) -> None:
        """Forget every fault of :meth:`fail`; what a failed sync has dropped stays lost."""
        with self.lock:
            self._faults.clear()

    @contextmanager
    def spared(self) -> Iterator[None]:
        """No fault strikes, and none comes nearer, while the test itself looks at the disk."""
        with self.lock:
            faults, self._faults = self._faults, []
        try:
            yield
        finally:
            with self.lock:
                self._faults = faults

    @property
    def armed(self) -> bool:
        """Whether a fault of :meth:`fail` has still to strike, or goes on, or a subclass looks at every operation."""
        return self._looked_at or bool(self._faults)

    def crash_at(self, step: int, mode: Mode = "before", torn: int = 0) -> None:
        """Raise SimCrash in step number ``step`` (see ``steps``) and in every operation after it.

        ``before`` or ``after`` it takes effect; ``torn`` lets a pwrite take effect for its first ``torn`` bytes and is
        ``before`` for any other step. An ``after`` step that fails by itself raises its own error first.
        """
        with self.lock:
            self._crash = (step, mode, torn)

    # What is left.

    @property
    def crashed(self) -> bool:
        """Whether every further operation raises SimCrash."""
        return self._down

    def crash(self, policy: CrashPolicy | None = None) -> SimDisk:
        """Cut the power: a new disk with what survived by ``policy`` (LoseAll), all of it durable. This one is down.

        May be called again on a disk that is down, to see other outcomes of the same moment.
        """
        with self.lock:
            self._down = True
            return self._with(self._tree.survivors(LoseAll() if policy is None else policy))

    def kill(self) -> SimDisk:
        """``kill -9``: a copy with the same live and un-synced state, no handles, no locks. This one is down."""
        with self.lock:
            self._down = True
            return self.copy()

    @property
    def tree(self) -> Tree:
        """Names, bytes and what is not durable of them; to be looked at."""
        return self._tree

    def with_tree(self, tree: Tree) -> SimDisk:
        """Another disk of the same kind that holds ``tree``."""
        return self._with(tree)

    def crash_choices(self) -> int:
        """How many combinations :meth:`crash_states` has to choose from; with a limit that high it is exhaustive."""
        with self.lock:
            return Choices(self._tree.changed_files(), self._tree.pending).total

    def crash_states(self, limit: int, seed: int = 0) -> Iterator[SimDisk]:
        """At most ``limit`` different disks that a power cut now could leave; this disk stays up.

        First nothing, all, and each prefix survives; then every combination, or if there are more than ``limit`` a
        seeded sample. Each write is lost, kept, reduced to its length, or cut at a sector or a few bytes with either
        side lost. Do not change the disk before the iterator ends.
        """
        rng = Random(seed)
        with self.lock:
            files, names = self._tree.changed_files(), self._tree.pending
            choices = Choices(files, names)
        counts: Sequence[int] = range(max([len(names), *(len(node.journal) for node in files)]) + 1)
        if len(counts) > max(1, limit // 4):
            counts = sorted(rng.sample(counts, max(1, limit // 4)))
        firsts: list[CrashPolicy] = [LoseAll(), KeepAll()]
        firsts += [Prefix(count, kept) for count in counts for kept in (count, None)]
        every: Iterable[CrashPolicy] = choices.every()
        if choices.total > limit:
            every = (choices.sample(rng) for _ in range(4 * limit))
        seen: set[bytes] = set()
        for policies in (firsts, every):
            for policy in policies:
                if len(seen) >= limit:
                    return
                with self.lock:
                    disk = self._with(self._tree.survivors(policy))
                key = disk.digest()
                if key not in seen:
                    seen.add(key)
                    yield disk

    def copy(self) -> SimDisk:
        """A disk with the same live and the same un-synced state, and no open handles."""
        with self.lock:
            return self._with(self._tree.copy())

    def snapshot(self) -> dict[str, bytes]:
        """Paths and contents of the live files."""
        with self.lock:
            return {path: bytes(node.live) for path, node in self._tree.walk() if isinstance(node, FileNode)}

    def durable_snapshot(self) -> dict[str, bytes]:
        """Paths and contents of what survives for certain: that of ``crash(LoseAll())``."""
        with self.lock:
            return self._with(self._tree.survivors(LoseAll())).snapshot()

    def digest(self) -> bytes:
        """A hash of the live tree: names, kinds and contents."""
        with self.lock:
            hasher = blake2b(digest_size=16)
            for path, node in sorted(self._tree.walk()):
                size = len(node.live) if isinstance(node, FileNode) else -1
                hasher.update(f"{len(path)}:{path}:{size}:".encode())
                if isinstance(node, FileNode):
                    hasher.update(node.live)
            return hasher.digest()

    def read_file(self, path: str) -> bytes:
        """Live content; neither a step nor a read, and allowed when the disk is down."""
        with self.lock:
            return bytes(self._tree.file(path).live)

    def write_file(self, path: str, data: bytes) -> None:
        """Make ``data`` the live and durable content, in the same inode if there is one, with its name and parents.

        Not a step, and beyond any fault. Every pending change of names in the directories on the way is made durable.
        """
        with self.lock:
            self.used += self._tree.force(path, data)

    # Bookkeeping shared with SimFile; the caller holds the lock.

    def check_alive(self) -> None:
        if self._down:
            raise SimCrash

    def begin(self, op: str, path: str, *more: str) -> int | None:
        """Count ``op``, crash or fail it if so arranged. Returns how many bytes it may transfer, None for all."""
        self.check_alive()
        torn: int | None = None
        if op in READS:
            self.reads += 1
        else:
            if self.watch is not None:
                self.watch(op)
            self.steps += 1
            if self._crash is not None and self.steps >= self._crash[0]:
                _, mode, count = self._crash
                self._down = True
                if mode == "before" or (mode == "torn" and op != "pwrite"):
                    raise SimCrash
                torn = count if mode == "torn" else None
        short = self._strike(op, path, more) if self._faults else None
        if op not in READS:
            self.trace.append((op, path, *more))
        if torn is not None and short is not None:
            return min(torn, short)
        return torn if short is None else short

    def end(self) -> None:
        """The step has taken effect; if the crash was to come after it, now is the time."""
        self.check_alive()

    def room(self) -> int | None:
        return None if self.capacity is None else max(0, self.capacity - self.used)

    def release(self, node: Node | None) -> None:
        """Give back the space of a file that has neither a name nor a handle."""
        if isinstance(node, FileNode) and not node.linked and not node.handles:
            self.used -= len(node.live)

    def _strike(self, op: str, path: str, more: tuple[str, ...]) -> int | None:
        hit: _Fault | None = None
        for fault in self._faults:
            if fault.op == op and (fault.path in path or (op == "rename" and fault.path in more[0])):
                fault.nth -= 1
                if fault.nth <= 0 and hit is None:
                    hit = fault
        if hit is None:
            return None
        self.hits += 1
        short = hit.short
        if short is not None and hit.errno is not None:
            hit.short = None  # the next one fails
        elif not hit.persistent:
            self._faults.remove(hit)
        if short is None and hit.errno is not None:
            if op not in READS:
                self.trace.append((op, path, *more, errorcode.get(hit.errno, str(hit.errno))))
            raise os_error(hit.errno, path, more[0] if op == "rename" else None)
        return short

    def _open(self, path: str, writable: bool) -> SimFile:
        self.begin("open", full_path(path))
        node = self._tree.file(path)
        self.end()
        return SimFile(self, node, writable)

    def _change(self, node: Node, source: Slot | None, target: Slot | None) -> None:
        self.release(self._tree.change(node, source, target))

    def _with(self, tree: Tree) -> SimDisk:
        disk = SimDisk(self.capacity, self.preallocates)
        disk.memory_maps = self.memory_maps
        disk.pool.fixed = self.pool.fixed
        disk._tree = tree
        disk.used = sum(len(node.live) for _, node in tree.walk() if isinstance(node, FileNode))
        return disk
