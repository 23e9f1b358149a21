"""What a crash at one moment can leave of a simulated disk, every legal state once, without making the disks.

The choices are those of a power cut: each change of names survives or not (one that rests on another does not without
it), and each un-synced change of a file comes to one of its fates, whatever becomes of the others. A write survives
sector by sector, and its length may survive without its bytes. Choices that end in the same bytes are the same state;
:attr:`Outcomes.choices` counts them before that.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from types import TracebackType
from typing import NamedTuple

from fuzz.simdisk import SimDisk
from fuzz.simdisk_crash import SECTOR, Change, DirNode, Entries, EntryChange, FileNode, Tree, replay

FREE_SECTORS = 3
"""Sectors of one write that survive each on its own, every combination; of longer ones heads, tails and single ones."""
MOST_NAMES = 10
"""Changes of names of which every combination is tried; of more, those that keep a beginning, or lose one change."""
MOST_CONTENTS = 2048
"""Different contents of one file that are told apart; of more, a seeded sample."""

Fate = tuple[Change, ...]


def fates(change: Change) -> list[Fate]:
    """Every end that one change can come to, at the grain of sectors."""
    if change.kind != "write":
        return [(), (change,)]
    pieces = _pieces(change)
    count = len(pieces)
    if count <= FREE_SECTORS:
        kept = [*itertools.product((False, True), repeat=count)]
    else:
        heads = [tuple(n < cut for n in range(count)) for cut in range(count + 1)]
        tails = [tuple(n >= cut for n in range(count)) for cut in range(count + 1)]
        single = [tuple((n == one) is keep for n in range(count)) for one in range(count) for keep in (False, True)]
        kept = [*dict.fromkeys([*heads, *tails, *single])]
    length = Change("extend", change.end)
    found: list[Fate] = []
    for mask in kept:
        fate = tuple(piece for piece, keep in zip(pieces, mask, strict=True) if keep)
        found.append(fate)
        if not mask[-1]:
            found.append((length, *fate))
    return found


def _pieces(change: Change) -> list[Change]:
    size = len(change.data)
    bounds = [0, *range((-change.offset % SECTOR) or SECTOR, size, SECTOR), size]
    return [Change("write", change.offset + a, change.data[a:b]) for a, b in itertools.pairwise(bounds)]


class State(NamedTuple):
    """One disk. ``names``: which changes of names survived; ``contents``: bytes of the changed files, by inode."""

    key: bytes
    names: tuple[bool, ...]
    contents: dict[int, bytes]


@dataclass
class Outcomes:
    """``choices``: combinations of fates and names; ``total``: different states; ``states``: those to be tried, which
    are not all of them if ``sampled``. ``rows``: how many of these provoke a row of the fault matrix."""

    choices: int
    total: int
    states: list[State]
    sampled: bool
    rows: Counter[int]


class Moment:
    """The disk as it is now. To be used up before the disk changes again. ``before``: as it was before the last step,
    if that was a write."""

    def __init__(self, tree: Tree, before: Tree | None = None) -> None:
        self._tree = tree
        self._before = before
        self._written = _written(before, tree) if before is not None else None
        self._files = tree.changed_files()
        self._hashes: dict[int, bytes] = {}

    # --- a power cut ------------------------------------------------------------------------------

    def outcomes(self, limit: int, seed: int = 0) -> Outcomes:
        """Every state a power cut now can leave; of more than ``limit`` a seeded sample of that many."""
        pending = self._tree.pending
        lists = {node.number: [fates(change) for change in node.journal] for node in self._files}
        choices = math.prod(len(one) for each in lists.values() for one in each) << len(pending)
        contents = {node.number: _contents(node, lists[node.number]) for node in self._files}
        trees = self._names()
        sizes = [[len(contents[n]) for n in changed] for _, _, changed in trees]
        total = sum(map(math.prod, sizes))
        if total <= limit:
            found = [state for tree in trees for state in self._every(tree, contents)]
        else:
            random = Random(seed)
            weights = [*map(math.prod, sizes)]
            picked: dict[bytes, State] = {}
            for tree in random.choices(trees, weights, k=limit):
                chosen = {number: random.choice(contents[number]) for number in tree[2]}
                state = self._state(tree, chosen)
                picked.setdefault(state.key, state)
            found = [*picked.values()]
        cut = total > limit or len(pending) > MOST_NAMES or any(len(c) == MOST_CONTENTS for c in contents.values())
        return Outcomes(choices, total, found, cut, self._rows(found))

    def _rows(self, states: Sequence[State]) -> Counter[int]:
        """11: bytes lost; 12: lost of one file, and not of another; 13: names lost; 14: a name, and not its bytes."""
        rows: Counter[int] = Counter()
        live = {node.number: bytes(node.live) for node in self._files if node.name != "LOCK"}
        base = {node.number: bytes(node.base) for node in self._files}
        for _, names, contents in states:
            logs = [number for number in contents if number in live]
            lost = {number for number in logs if contents[number] != live[number]}
            rows[11] += bool(lost)
            rows[12] += bool(lost) and len(lost) < len(logs)
            rows[13] += not all(names)
            rows[14] += any(not base[number] and not any(contents[number]) for number in lost)
        return rows

    def torn(self) -> Iterator[State]:
        """The last write, which the cut met, reduced to each number of its bytes from the front, and from the back;
        all else is lost, or all is kept. Nothing if the last step was no write."""
        if self._written is None:
            return
        number, write = self._written
        trees = sorted(self._names(), key=lambda names: sum(names[0]))
        for names, keep in ((trees[0], False), (trees[-1], True)):
            if number not in names[2]:
                continue
            rest = {n.number: _replayed(n.base, n.journal if keep else []) for n in self._files}
            node = next(n for n in self._files if n.number == number)
            earlier = node.journal[:-1] if keep else []
            for cut in range(1, len(write.data)):
                for part in (write.offset, write.data[:cut]), (write.offset + cut, write.data[cut:]):
                    rest[number] = _replayed(node.base, [*earlier, Change("write", *part)])
                    yield self._state(names, {n: (rest[n], _digest("", rest[n])) for n in names[2]})

    def tree(self, state: State) -> Tree:
        """The disk of a state, all of it durable."""
        return self._tree.survivors(_Exactly(state))

    # --- a kill -----------------------------------------------------------------------------------

    def cuts(self, *, every: bool) -> list[int]:
        """Lengths to which a kill may have cut the last write short: every one, or a few."""
        if self._written is None:
            return []
        size = len(self._written[1].data)
        return [*range(1, size)] if every else sorted({cut for cut in (1, size // 2, size - 1) if 0 < cut < size})

    def killed(self, cut: int | None = None) -> Tree:
        """What a kill leaves; with ``cut``, in the middle of the last write, after so many bytes of it."""
        if cut is None or self._written is None or self._before is None:
            return self._tree.copy()
        tree = self._before.copy()
        number, write = self._written
        for node in _files(tree):
            if node.number == number:
                node.change(Change("write", write.offset, write.data[:cut]))
        return tree

    @staticmethod
    def key(tree: Tree) -> bytes:
        """Of a disk on which not all is durable: what it shows, and what of that may still be lost."""
        hasher = blake2b(digest_size=16)
        for path, node in sorted(tree.walk()):
            hasher.update(path.encode() + b"\0")
            if isinstance(node, FileNode):
                hasher.update(_digest(path, bytes(node.live)) + _digest(path, bytes(node.base)))
                if not path.endswith("LOCK"):
                    hasher.update(repr(node.journal).encode())
        for change in tree.pending:
            source, target = (slot and (slot[0].path(), slot[1]) for slot in (change.source, change.target))
            hasher.update(repr((change.node.number, source, target, sorted(change.unsynced))).encode())
        return hasher.digest()

    # --- inside -----------------------------------------------------------------------------------

    def _names(self) -> list[_Names]:
        """Every different tree of names, with the changes that lead to it."""
        pending = self._tree.pending
        count = len(pending)
        every: Iterator[tuple[bool, ...]]
        if count <= MOST_NAMES:
            every = itertools.product((False, True), repeat=count)
        else:
            heads = [tuple(n < cut for n in range(count)) for cut in range(count + 1)]
            lost = [tuple(n != one for n in range(count)) for one in range(count)]
            every = iter(dict.fromkeys([*heads, *lost]))
        found: dict[tuple[tuple[str, int], ...], _Names] = {}
        changed = {node.number for node in self._files}
        for mask in every:
            paths = self._paths(mask)
            key = tuple((path, node.number) for path, node in paths)
            if key not in found:
                found[key] = (mask, paths, tuple(sorted({node.number for _, node in paths} & changed)))
        return [*found.values()]

    def _paths(self, mask: Sequence[bool]) -> list[tuple[str, FileNode | DirNode]]:
        views: dict[int, Entries] = {}

        def view(directory: DirNode) -> Entries:
            if directory.number not in views:
                views[directory.number] = dict(directory.durable)
            return views[directory.number]

        kept: set[EntryChange] = set()
        for change, keep in zip(self._tree.pending, mask, strict=True):
            if keep and all(earlier.done or earlier in kept for earlier in change.after):
                kept.add(change)
                change.apply(view)
        found: list[tuple[str, FileNode | DirNode]] = []
        todo = [("/", self._tree.root)]
        while todo:
            prefix, directory = todo.pop()
            for name, node in views.get(directory.number, directory.durable).items():
                found.append((prefix + name, node))
                if isinstance(node, DirNode):
                    todo.append((prefix + name + "/", node))
        found.sort(key=lambda entry: entry[0])
        return found

    def _every(self, names: _Names, contents: dict[int, list[_Content]]) -> Iterator[State]:
        numbers = names[2]
        for picked in itertools.product(*(contents[number] for number in numbers)):
            yield self._state(names, dict(zip(numbers, picked, strict=True)))

    def _state(self, names: _Names, chosen: dict[int, _Content]) -> State:
        hasher = blake2b(digest_size=16)
        for path, node in names[1]:
            hasher.update(path.encode() + b"\0")
            if isinstance(node, FileNode):
                found = chosen.get(node.number)
                hasher.update(self._hash(path, node) if found is None else found[1])
        return State(hasher.digest(), names[0], {number: content[0] for number, content in chosen.items()})

    def _hash(self, path: str, node: FileNode) -> bytes:
        found = self._hashes.get(node.number)
        if found is None:
            found = self._hashes[node.number] = _digest(path, bytes(node.base))
        return found


_Content = tuple[bytes, bytes]  # of a file, and its digest
_Names = tuple[tuple[bool, ...], list[tuple[str, FileNode | DirNode]], tuple[int, ...]]


class _Exactly:
    """The policy of one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def entries(self, pending: Sequence[EntryChange]) -> Iterator[EntryChange]:
        return (change for change, kept in zip(pending, self._state.names, strict=True) if kept)

    def content(self, node: FileNode) -> Sequence[Change]:
        data = self._state.contents[node.number]
        return (Change("length", 0), Change("write", 0, data))


class Recorder:
    """Looks at a disk before each of its steps, and once more at the end: at every moment at which it may go down."""

    def __init__(self, disk: SimDisk, visit: Callable[[Moment, str], None]) -> None:
        self._disk, self._visit = disk, visit
        self._before: Tree | None = None
        self.moments = 0

    def __enter__(self) -> Recorder:
        self._disk.watch = self._look
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._disk.watch = None
        if error is None:
            self._look("end")

    def _look(self, op: str) -> None:
        self.moments += 1
        where = "at the end" if op == "end" else f"before step {self._disk.steps + 1}, {op}"
        self._visit(Moment(self._disk.tree, self._before), where)
        self._before = self._disk.tree.copy() if op == "pwrite" else None


def _files(tree: Tree) -> list[FileNode]:
    return [node for _, node in tree.walk() if isinstance(node, FileNode)]


def _written(before: Tree, now: Tree) -> tuple[int, Change] | None:
    """The write that has been added between the two."""
    known = {node.number: len(node.journal) for node in _files(before)}
    for node in _files(now):
        if len(node.journal) > known.get(node.number, 0) and node.journal[-1].kind == "write":
            return node.number, node.journal[-1]
    return None


def _replayed(base: bytearray, changes: Sequence[Change]) -> bytes:
    content = bytearray(base)
    replay(content, changes)
    return bytes(content)


def _contents(node: FileNode, choices: Sequence[Sequence[Fate]]) -> list[_Content]:
    """What may be in the file: each content once."""
    found = {bytes(node.base): None}
    for change_fates in choices:
        grown: dict[bytes, None] = {}
        for content in found:
            for fate in change_fates:
                grown[_replayed(bytearray(content), fate)] = None
        found = grown
        if len(found) > MOST_CONTENTS:
            found = dict.fromkeys(Random(len(found)).sample([*found], MOST_CONTENTS))
    path = node.path()
    kept: dict[bytes, bytes] = {}
    for content in found:
        kept.setdefault(_digest(path, content), content)
    return [(content, key) for key, content in kept.items()]


def _digest(path: str, content: bytes) -> bytes:
    """Of a lock file nothing counts but the epoch that it names: the rest is a courtesy, with the time of day."""
    if path.endswith("LOCK"):
        try:
            content = str(json.loads(content)["epoch"]).encode()
        except (ValueError, KeyError, UnicodeDecodeError):
            content = b""
    return blake2b(content, digest_size=16).digest()
