"""The tree of a simulated disk, its un-synced changes, and the policies that choose what a power cut leaves of them.

Pure data and choices; :mod:`fuzz.simdisk` is the disk. A file keeps its durable bytes and an ordered journal of the
changes since its last good sync. A directory keeps its durable entries; the entry changes since then stand in one list
for the whole disk, since a rename may concern two directories.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from errno import EBUSY, EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY
from typing import Literal, NamedTuple, Protocol

SECTOR = 512

Kind = Literal["write", "length", "extend"]


class Change(NamedTuple):
    """One un-synced change of a file: ``write`` of data at an offset, ``length`` set, or ``extend`` to at least."""

    kind: Kind
    offset: int
    data: bytes = b""

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


def replay(content: bytearray, changes: Iterable[Change]) -> None:
    """Apply ``changes`` in order; a gap before a write or an extension becomes zeros."""
    for kind, offset, data in changes:
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        if kind == "write":
            content[offset : offset + len(data)] = data
        elif kind == "length":
            del content[offset:]


def os_error(code: int, path: str, target: str | None = None) -> OSError:
    return OSError(code, os.strerror(code), path, None, target)


class _Named:
    """A node's place in the live tree; once removed, ``path`` is where it was last."""

    __slots__ = ("linked", "name", "number", "parent")

    def __init__(self, number: int, parent: DirNode | None = None, name: str = "") -> None:
        self.number, self.parent, self.name = number, parent, name
        self.linked = True

    def path(self) -> str:
        if self.parent is None:
            return "/"
        above = self.parent.path()
        return above + self.name if above == "/" else above + "/" + self.name


class FileNode(_Named):
    """A file: ``live`` is what readers see, ``base`` plus the ``journal`` is what a sync would make durable."""

    __slots__ = ("base", "handles", "holder", "journal", "live")

    def __init__(self, number: int, parent: DirNode | None = None, name: str = "") -> None:
        super().__init__(number, parent, name)
        self.live, self.base = bytearray(), bytearray()
        self.journal: list[Change] = []
        self.handles = 0
        self.holder: object = None

    def change(self, change: Change) -> None:
        self.journal.append(change)
        replay(self.live, (change,))

    def sync(self) -> None:
        replay(self.base, self.journal)
        self.journal.clear()

    def drop(self) -> None:
        """A sync failed: the pages are clean now and never reach the disk; lengths are metadata, and will."""
        self.journal = [Change("extend", c.end) if c.kind == "write" else c for c in self.journal]


class DirNode(_Named):
    __slots__ = ("durable", "entries")

    def __init__(self, number: int, parent: DirNode | None = None, name: str = "") -> None:
        super().__init__(number, parent, name)
        self.entries: dict[str, FileNode | DirNode] = {}
        self.durable: dict[str, FileNode | DirNode] = {}


Node = FileNode | DirNode
Entries = dict[str, Node]
Slot = tuple[DirNode, str]


@dataclass(slots=True, eq=False)
class EntryChange:
    """One un-synced change of names: no ``source`` is a create or mkdir, no ``target`` an unlink or rmdir."""

    node: Node
    source: Slot | None
    target: Slot | None
    after: list[EntryChange] = field(default_factory=list)
    """Changes without which this one cannot have reached the disk (same name, or the directory it moves into)."""
    unsynced: set[int] = field(default_factory=set)
    """Inode numbers of the directories still to be synced before this change is durable."""
    done: bool = False

    def touches(self, directory: DirNode) -> bool:
        return any(slot is not None and slot[0] is directory for slot in (self.source, self.target))

    def apply(self, entries: Callable[[DirNode], Entries]) -> None:
        """Apply to what ``entries`` gives for the directories concerned."""
        if self.source is not None:
            names = entries(self.source[0])
            if names.get(self.source[1]) is self.node:
                del names[self.source[1]]
        if self.target is not None:
            entries(self.target[0])[self.target[1]] = self.node


class CrashPolicy(Protocol):
    """Chooses what of the un-synced changes survived. Asked once for the names, then once for each changed file."""

    def entries(self, pending: Sequence[EntryChange]) -> Iterable[EntryChange]:
        """Which changes of names survived; one whose ``after`` did not survive is dropped by the disk."""

    def content(self, node: FileNode) -> Iterable[Change]:
        """What survived of ``node.journal``, in order."""


class Tree:
    """Names, nodes and un-synced changes of names. No locks, no counting: the disk's business."""

    def __init__(self) -> None:
        self.root = DirNode(1)
        self.pending: list[EntryChange] = []
        self._next = 2

    def number(self) -> int:
        """A new inode number, never one used before."""
        self._next += 1
        return self._next - 1

    # Finding.

    def node(self, path: str) -> Node:
        node: Node = self.root
        for part in _parts(path):
            if not isinstance(node, DirNode):
                raise os_error(ENOTDIR, path)
            if part not in node.entries:
                raise os_error(ENOENT, path)
            node = node.entries[part]
        return node

    def find(self, path: str) -> Node | None:
        try:
            return self.node(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def file(self, path: str) -> FileNode:
        node = self.node(path)
        if isinstance(node, DirNode):
            raise os_error(EISDIR, path)
        return node

    def directory(self, path: str) -> DirNode:
        node = self.node(path)
        if isinstance(node, FileNode):
            raise os_error(ENOTDIR, path)
        return node

    def slot(self, path: str) -> Slot:
        """The directory and the name of ``path``; the name is empty for the root."""
        parts = _parts(path)
        return self.directory("/".join(parts[:-1])), parts[-1] if parts else ""

    def free_slot(self, path: str) -> Slot:
        parent, name = self.slot(path)
        if not name or name in parent.entries:
            raise os_error(EEXIST, path)
        return parent, name

    def renaming(self, source: str, target: str) -> tuple[Node, Slot, Slot] | None:
        """What a rename would change, None if nothing; the errors in the order Linux finds them."""
        old, new = self.slot(source), self.slot(target)
        node, replaced = self.node(source), new[0].entries.get(new[1])
        if not old[1] or not new[1]:
            raise os_error(EBUSY, source, target)
        if node in _upwards(new[0]):
            raise os_error(EINVAL, source, target)
        if replaced is not None and replaced in _upwards(old[0]):
            raise os_error(ENOTEMPTY, source, target)
        if node is replaced:
            return None
        if isinstance(replaced, FileNode) and isinstance(node, DirNode):
            raise os_error(ENOTDIR, source, target)
        if isinstance(replaced, DirNode) and isinstance(node, FileNode):
            raise os_error(EISDIR, source, target)
        if isinstance(replaced, DirNode) and replaced.entries:
            raise os_error(ENOTEMPTY, source, target)
        return node, old, new

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Live paths and nodes below the root."""
        todo = [("/", self.root)]
        while todo:
            prefix, directory = todo.pop()
            for name, node in directory.entries.items():
                yield prefix + name, node
                if isinstance(node, DirNode):
                    todo.append((prefix + name + "/", node))

    def changed_files(self) -> list[FileNode]:
        """Every changed file that may have a name after a cut, by inode number."""
        found: dict[int, Node] = {}
        todo: list[Node] = [self.root, *(change.node for change in self.pending)]
        while todo:
            node = todo.pop()
            if node.number not in found:
                found[node.number] = node
                if isinstance(node, DirNode):
                    todo += [*node.entries.values(), *node.durable.values()]
        return [node for _, node in sorted(found.items()) if isinstance(node, FileNode) and node.journal]

    # Changing.

    def change(self, node: Node, source: Slot | None, target: Slot | None) -> Node | None:
        """Change names, live now and durable later. Returns the node that has lost its name, if any."""
        replaced = target[0].entries.get(target[1]) if target else None
        gone = replaced if target else node
        slots = [slot for slot in (source, target) if slot is not None]
        moved_below = list(_upwards(target[0])) if source and target else []
        change = EntryChange(node, source, target, [], {directory.number for directory, _ in slots})
        for earlier in self.pending:
            if earlier.source in slots or earlier.target in slots:
                change.after.append(earlier)
            elif isinstance(gone, DirNode) and earlier.touches(gone):
                change.after.append(earlier)  # what was moved out of a removed directory is not lost with it
            elif earlier.target is not None and earlier.node in moved_below:
                change.after.append(earlier)  # what is moved into a new directory needs that directory
                change.unsynced |= earlier.unsynced
        self.pending.append(change)
        change.apply(lambda directory: directory.entries)
        if target is not None:
            node.parent, node.name = target
        if gone is not None:
            gone.linked = False
        return gone

    def sync(self, *directories: DirNode) -> None:
        """Make durable every change that has no other directory to wait for, and those it rests on."""
        for directory in directories:
            for change in self.pending:
                change.unsynced.discard(directory.number)
        self._commit([change for change in self.pending if not change.unsynced])

    def force(self, path: str, data: bytes) -> int:
        """Make ``data`` live and durable under ``path``, parents made. Returns by how much the file grew."""
        *above, name = _parts(path)
        way = [self.root]
        for part in above:
            if part not in way[-1].entries:
                self.change(DirNode(self.number()), None, (way[-1], part))
            found = way[-1].entries[part]
            if isinstance(found, FileNode):
                raise os_error(ENOTDIR, path)
            way.append(found)
        if name not in way[-1].entries:
            self.change(FileNode(self.number()), None, (way[-1], name))
        node = self.file(path)
        self._commit([change for change in self.pending if any(map(change.touches, way))])
        growth = len(data) - len(node.live)
        node.live, node.base, node.journal = bytearray(data), bytearray(data), []
        return growth

    def _commit(self, changes: list[EntryChange]) -> None:
        while changes:
            change = changes.pop()
            if not change.done:
                change.done = True
                changes += change.after
        for change in self.pending:
            if change.done:
                change.apply(lambda directory: directory.durable)
                change.after.clear()
        self.pending = [change for change in self.pending if not change.done]

    # Other trees made of this one.

    def survivors(self, policy: CrashPolicy) -> Tree:
        """What a power cut leaves by ``policy``, all of it durable."""
        views: dict[int, Entries] = {}

        def view(directory: DirNode) -> Entries:
            if directory.number not in views:
                views[directory.number] = dict(directory.durable)
            return views[directory.number]

        kept: set[EntryChange] = set()
        for change in policy.entries(self.pending):
            if all(earlier.done or earlier in kept for earlier in change.after):
                kept.add(change)
                change.apply(view)
        tree = Tree()
        tree._next = self._next
        todo = [(self.root, tree.root)]
        while todo:
            old, new = todo.pop()
            for name, node in views.get(old.number, old.durable).items():
                twin: Node
                if isinstance(node, DirNode):
                    twin = DirNode(node.number, new, name)
                    todo.append((node, twin))
                else:
                    twin = FileNode(node.number, new, name)
                    twin.base[:] = node.base
                    if node.journal:
                        replay(twin.base, policy.content(node))
                    twin.live[:] = twin.base
                new.entries[name] = new.durable[name] = twin
        return tree

    def copy(self) -> Tree:
        """The same live and un-synced state, without handles and locks."""
        tree = Tree()
        tree._next = self._next
        twins: dict[int, Node] = {self.root.number: tree.root}

        def directory(node: DirNode) -> DirNode:
            made = twin(node)
            assert isinstance(made, DirNode)
            return made

        def twin(node: Node) -> Node:
            if node.number in twins:
                return twins[node.number]
            made = twins[node.number] = type(node)(node.number, None, node.name)
            made.parent = None if node.parent is None else directory(node.parent)
            if isinstance(node, FileNode) and isinstance(made, FileNode):
                made.live[:], made.base[:], made.journal[:] = node.live, node.base, node.journal
            elif isinstance(node, DirNode) and isinstance(made, DirNode):
                fill(node, made)
            return made

        def fill(old: DirNode, new: DirNode) -> None:
            new.entries.update({name: twin(node) for name, node in old.entries.items()})
            new.durable.update({name: twin(node) for name, node in old.durable.items()})

        def slot(old: Slot | None) -> Slot | None:
            return None if old is None else (directory(old[0]), old[1])

        fill(self.root, tree.root)
        changes: dict[EntryChange, EntryChange] = {}
        for old in self.pending:
            after = [changes[earlier] for earlier in old.after if not earlier.done]
            changes[old] = EntryChange(twin(old.node), slot(old.source), slot(old.target), after, set(old.unsynced))
        tree.pending = list(changes.values())
        return tree


def full_path(path: str) -> str:
    return "/" + "/".join(_parts(path))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part and part != "."]


def _upwards(directory: DirNode | None) -> Iterator[Node]:
    """A directory and all above it."""
    while directory is not None:
        yield directory
        directory = directory.parent


class LoseAll:
    """Only what was synced."""

    def entries(self, pending: Sequence[EntryChange]) -> Iterable[EntryChange]:
        return ()

    def content(self, node: FileNode) -> Iterable[Change]:
        return ()


class KeepAll:
    """Everything written back in time; what a failed sync has dropped is lost even so."""

    def entries(self, pending: Sequence[EntryChange]) -> Iterable[EntryChange]:
        return pending

    def content(self, node: FileNode) -> Iterable[Change]:
        return node.journal


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first ``changes`` un-synced changes of each file and the first ``names`` of the disk's names (None: all)."""

    changes: int
    names: int | None = None

    def entries(self, pending: Sequence[EntryChange]) -> Iterable[EntryChange]:
        return pending[: self.names]

    def content(self, node: FileNode) -> Iterable[Change]:
        return node.journal[: self.changes]


@dataclass(frozen=True, slots=True)
class RandomLoss:
    """Each un-synced change lost, kept or torn by ``rng``, some files mostly kept and some mostly lost.

    A write is torn at a byte, at a multiple of 512 in the file, or into sectors that survive each on its own; or its
    length survives without its bytes. Changes of names are kept or lost one by one.
    """

    rng: random.Random

    def entries(self, pending: Sequence[EntryChange]) -> Iterable[EntryChange]:
        keep = self.rng.choice((0.2, 0.5, 0.9))
        return [change for change in pending if self.rng.random() < keep]

    def content(self, node: FileNode) -> Iterable[Change]:
        keep = self.rng.choice((0.1, 0.5, 0.9))
        for change in node.journal:
            if self.rng.random() < keep:
                yield change
            elif change.kind == "write":
                yield from self._torn(change)

    def _torn(self, change: Change) -> Iterable[Change]:
        rng, sectors = self.rng, _sectors(change)
        choice = rng.randrange(5)
        if choice == 1:
            return part(change, ("zeros", 0))
        if choice == 2:
            return part(change, (rng.choice(("head", "tail")), rng.randint(0, len(change.data))))
        if choice == 3:
            return part(change, (rng.choice(("head", "tail")), rng.choice(sectors)))
        if choice == 4:
            bounds = itertools.pairwise([*sectors, len(change.data)])
            pieces = [Change("write", change.offset + a, change.data[a:b]) for a, b in bounds if b > a]
            return [piece for piece in pieces if rng.random() < 0.5]
        return ()


Fate = tuple[str, int]


def _sectors(change: Change) -> list[int]:
    """Where in the data a sector of the file begins, and 0."""
    first = -change.offset % SECTOR
    return [0, *range(first or SECTOR, len(change.data), SECTOR)]


def fates(change: Change) -> list[Fate]:
    """The ends one change can come to in :class:`Choices`: for a write, cuts at sectors and at a few bytes."""
    if change.kind != "write":
        return [("lost", 0), ("kept", 0)]
    size = len(change.data)
    cuts = {cut for cut in (1, size // 2, size - 1, *_sectors(change)) if 0 < cut < size}
    torn = [(side, cut) for cut in sorted(cuts) for side in ("head", "tail")]
    return [("lost", 0), ("kept", 0), ("zeros", 0), *torn]


def part(change: Change, fate: Fate) -> tuple[Change, ...]:
    """What ``fate`` leaves of a change: nothing, all, only the length, or the bytes before or behind a cut."""
    kind, cut = fate
    if kind == "kept":
        return (change,)
    if kind == "zeros":
        return (Change("extend", change.end),)
    if kind == "head" and cut > 0:
        return (Change("write", change.offset, change.data[:cut]),)
    if kind == "tail" and cut < len(change.data):
        return (Change("write", change.offset + cut, change.data[cut:]),)
    return ()


@dataclass(slots=True)
class Chosen:
    """One exact crash state: the fate of every change, by inode number, and the names that survived."""

    content_fates: Mapping[int, Sequence[Fate]]
    names: Sequence[bool]

    def entries(self, pending: Sequence[EntryChange]) -> Iterable[EntryChange]:
        return [change for change, kept in zip(pending, self.names, strict=True) if kept]

    def content(self, node: FileNode) -> Iterable[Change]:
        for change, fate in zip(node.journal, self.content_fates[node.number], strict=True):
            yield from part(change, fate)


class Choices:
    """All combinations of fates for the given files and names; ``total`` counts them, equal outcomes included."""

    def __init__(self, files: Sequence[FileNode], pending: Sequence[EntryChange]) -> None:
        self._numbers = [node.number for node in files]
        self._lengths = [len(node.journal) for node in files]
        self._fates = [fates(change) for node in files for change in node.journal]
        self._names = len(pending)
        self.total = math.prod(map(len, self._fates)) << self._names

    def every(self) -> Iterator[Chosen]:
        for names in itertools.product((False, True), repeat=self._names):
            for picked in itertools.product(*self._fates):
                yield self._chosen(picked, names)

    def sample(self, rng: random.Random) -> Chosen:
        names = [rng.random() < 0.5 for _ in range(self._names)]
        return self._chosen([rng.choice(options) for options in self._fates], names)

    def _chosen(self, picked: Sequence[Fate], names: Sequence[bool]) -> Chosen:
        rest = iter(picked)
        by_node = {n: list(itertools.islice(rest, k)) for n, k in zip(self._numbers, self._lengths, strict=True)}
        return Chosen(by_node, names)
