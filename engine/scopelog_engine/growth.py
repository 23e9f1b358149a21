"""How the tree of a log grows: closed stretches become a :class:`Delta`, and a delta becomes new blocks and a new root.

Blocks are never changed. A checkpoint writes new leaves in place of those it touches, and a root that names them; the
ones that it replaces stay until the next checkpoint, for those who still read by the old root.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from .blocks import (
    LEAST,
    VERSION,
    Key,
    Leaf,
    LeafRef,
    ListAt,
    PageRef,
    RetiredAt,
    Root,
    Run,
    ValueAt,
    block_key,
    checksum_of,
    encode_block,
    encode_leaf,
    encode_page,
)
from .layout import MAX_SEQUENCE
from .stretch import Closed
from .tree import Tree

LEAF_BYTES: Final = 24 * 1024  # of text and numbers in a leaf, about, before compression
PAGE_RUNS: Final = 256
SPILL_BYTES: Final = 8 * 2**20
_ENTRY_BYTES: Final = 24  # beside its name
_RUN_BYTES: Final = 16
Entry = ListAt | RetiredAt | ValueAt


class Uncoverable(ValueError):
    """An index frame of the log says what cannot be: the cover stops before it."""


class ListDelta:
    __slots__ = ("floor", "runs")

    def __init__(self) -> None:
        self.floor = 0
        self.runs: list[Run] = []


class Delta:
    """What some stretches say, taken in oldest first."""

    def __init__(self) -> None:
        self.lists: dict[tuple[str, str], ListDelta] = {}
        self.values: dict[tuple[str, str], ValueAt | None] = {}  # None: deleted
        self.retired: list[RetiredAt] = []
        self.newest: Closed | None = None

    def __len__(self) -> int:
        return len(self.values) + len(self.retired) + sum(1 + len(entry.runs) for entry in self.lists.values())

    def add(self, closed: Closed) -> None:
        at = closed.index.offset
        for address, entry in closed.lists.items():
            known = self.lists.get(address[:2])
            if known is None:
                known = self.lists[address[:2]] = ListDelta()
            known.floor = max(known.floor, entry.floor)
            if entry.count:
                known.runs.append(Run(at, entry.count, entry.first, entry.last))
            if not 0 <= entry.floor <= MAX_SEQUENCE or entry.count < 0:
                raise Uncoverable("a list's numbers are out of range")
            if entry.count and not 0 < entry.first <= entry.last <= MAX_SEQUENCE:
                raise Uncoverable("a list's sequences are out of range")
            if len(known.runs) > 1 and known.runs[-2].last >= known.runs[-1].first:
                raise Uncoverable("a list's sequences do not rise")
        for address, value in closed.values.items():
            if not 0 < value.sequence <= MAX_SEQUENCE:
                raise Uncoverable("a value's sequence is out of range")
            name = address[:2]
            self.values[name] = None if value.deleted else ValueAt(*name, at, value.sequence)
        retired = [RetiredAt(sequence, scope, at) for scope, sequence in closed.retired.items()]
        if not all(0 < entry.sequence <= MAX_SEQUENCE for entry in retired):
            raise Uncoverable("a retirement's sequence is out of range")
        self.retired += sorted(retired, key=lambda entry: entry.sequence)
        self.newest = closed


class Grown(NamedTuple):
    """A new root and the blocks that it needs, by key."""

    root: Root
    blocks: dict[bytes, bytes]


class Growth:
    """One checkpoint of the tree whose keys begin with ``prefix``; ``tree`` None where there is none yet."""

    def __init__(
        self, tree: Tree | None, log: bytes, prefix: bytes, delta: Delta, spill: Callable[[dict[bytes, bytes]], None]
    ) -> None:
        """``spill`` stores blocks that would take too much memory; nothing names them until the root does."""
        self._tree = tree
        self._log = log
        self._prefix = prefix
        self._delta = delta
        self._spill = spill
        self._bytes = 0
        self._next = tree.root.next if tree is not None else 1
        self._pages = tree.root.pages if tree is not None else 0
        self._replaced: list[int] = []
        self._blocks: dict[bytes, bytes] = {}

    def grown(self) -> Grown:
        """Raises :class:`NoAnswer` if the old tree cannot be read, :class:`Uncoverable`, :class:`BadBlock`."""
        changes = self._changes()
        old = self._tree.root.leaves if self._tree is not None else []
        least = [leaf.least for leaf in old]
        leaves: list[LeafRef] = []
        fresh: list[Entry] = []  # of the leaf being made
        at = 0
        for number, ref in enumerate(old):
            stop = bisect_left(changes, least[number + 1], lo=at, key=_key_of) if number + 1 < len(old) else None
            part = changes[at:stop]
            at += len(part)
            if part and self._tree is not None:
                self._replaced.append(ref.number)
                fresh += self._merge(self._tree.leaf(ref), dict(part))
                fresh = self._cut(fresh, leaves)
            else:
                self._flush(fresh, leaves)
                fresh = []
                leaves.append(ref)
        if not old:
            fresh = self._cut(list(self._merge(Leaf([], [], []), dict(changes))), leaves)
        self._flush(fresh, leaves)
        if leaves and leaves[0].least != LEAST:
            leaves[0] = msgspec.structs.replace(leaves[0], least=LEAST)
        newest = self._delta.newest
        assert newest is not None
        index = newest.index
        root = Root(
            VERSION, self._log, index.offset, index.end, index.checksum, self._next, self._pages, leaves, self._replaced
        )
        return Grown(root, self._blocks)

    def _changes(self) -> list[tuple[Key, ListDelta | RetiredAt | ValueAt | None]]:
        delta = self._delta
        changes: list[tuple[Key, ListDelta | RetiredAt | ValueAt | None]] = [
            (("l", *name), change) for name, change in delta.lists.items()
        ]
        changes += [(entry.order, entry) for entry in delta.retired]
        changes += [(("v", *name), change) for name, change in delta.values.items()]
        changes.sort(key=lambda change: change[0])
        return changes

    def _merge(self, leaf: Leaf, changes: dict[Key, ListDelta | RetiredAt | ValueAt | None]) -> list[Entry]:
        """The entries of a leaf, and those that are new, in order."""
        entries: dict[Key, Entry | None] = {entry.order: entry for entry in leaf.lists}
        entries.update((entry.order, entry) for entry in leaf.retired)
        entries.update((entry.order, entry) for entry in leaf.values)
        for key, change in changes.items():
            if isinstance(change, ListDelta):
                known = entries.get(key)
                assert known is None or isinstance(known, ListAt)
                entries[key] = self._list_after(known, key, change)
            else:
                entries[key] = change
        return [entry for _, entry in sorted(entries.items()) if entry is not None]

    def _list_after(self, known: ListAt | None, key: Key, change: ListDelta) -> ListAt | None:
        """None if nothing of the list is alive: then there is nothing to know of it."""
        floor = max(known.floor, change.floor) if known is not None else change.floor
        pages: list[PageRef] = []
        for page in known.pages if known is not None else ():
            if page.last > floor:
                pages.append(page)
            else:
                self._drop(page)
        old = known.runs if known is not None else []
        newest = old[-1].last if old else pages[-1].last if pages else 0
        if change.runs and change.runs[0].first <= newest:
            raise Uncoverable("a list's sequences do not rise")
        runs = [run for run in (*old, *change.runs) if run.last > floor]
        while len(runs) >= 2 * PAGE_RUNS:
            number, checksum, size = self._add(encode_page(runs[:PAGE_RUNS]))
            pages.append(PageRef(number, checksum, size, runs[0].first, runs[PAGE_RUNS - 1].last))
            self._pages += size
            del runs[:PAGE_RUNS]
        return ListAt(key[1], key[2], floor, pages, runs) if runs or pages else None

    def _drop(self, page: PageRef) -> None:
        self._replaced.append(page.number)
        self._pages -= page.size

    # --- leaves ---------------------------------------------------------------------------------

    def _cut(self, entries: list[Entry], leaves: list[LeafRef]) -> list[Entry]:
        """Make whole leaves of the first entries. Returns those that are left for the next."""
        start = size = 0
        for at, entry in enumerate(entries):
            more = _size_of(entry)
            if size and size + more > LEAF_BYTES:
                self._flush(entries[start:at], leaves)
                start, size = at, 0
            size += more
        return entries[start:]

    def _flush(self, entries: list[Entry], leaves: list[LeafRef]) -> None:
        if not entries:
            return
        leaf = Leaf([], [], [])
        for entry in entries:
            if isinstance(entry, ListAt):
                leaf.lists.append(entry)
            elif isinstance(entry, RetiredAt):
                leaf.retired.append(entry)
            else:
                leaf.values.append(entry)
        number, checksum, size = self._add(encode_leaf(leaf))
        leaves.append(LeafRef(entries[0].order if leaves else LEAST, number, checksum, size))

    def _add(self, raw: bytes) -> tuple[int, int, int]:
        number = self._next
        self._next += 1
        key = block_key(self._prefix, number)
        data = self._blocks[key] = encode_block(key, raw)
        self._bytes += len(data)
        if self._bytes > SPILL_BYTES:
            self._spill(self._blocks)
            self._blocks, self._bytes = {}, 0
        return number, checksum_of(data), len(data)


def _key_of(change: tuple[Key, object]) -> Key:
    return change[0]


def _size_of(entry: Entry) -> int:
    if isinstance(entry, RetiredAt):
        return _ENTRY_BYTES + len(entry.scope)
    size = _ENTRY_BYTES + len(entry.namespace) + len(entry.key)
    if isinstance(entry, ListAt):
        size += _RUN_BYTES * (len(entry.runs) + 2 * len(entry.pages))
    return size
