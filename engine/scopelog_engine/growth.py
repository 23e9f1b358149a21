"""How the tree of a log grows: closed stretches become a :class:`Delta`, and a delta becomes new blocks and a new root.

::

    root ----+---- leaf: what is known of the first names        list "chat/messages" -+-- page: its oldest 256 runs
     (cover) +---- leaf: of the next                             (floor, in one leaf)  +-- page: the next 256
             +---- leaf: of the last                                                   +-- the newest runs themselves

    a run: one closed stretch that holds elements of the list. See engine/FORMAT.md, section 12.

Blocks are never changed. A checkpoint writes new leaves in place of those it touches (a leaf that became too long is
cut, one that became too short is *left* to the next), new pages for runs that became many, and a root that names all
that. Blocks that it *replaced* stay until the next checkpoint, for those who still read by the old root. What takes
too much memory is *spilled*: stored in transactions of its own before the root, when nothing names it yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

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
    Runs,
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

LEAF_BYTES: Final = 24 * 1024  # of a leaf before compression: cut from one and a half times that on
PAGE_RUNS: Final = 256
SPILL_BYTES: Final = 8 * 2**20
_ENTRY_BYTES: Final = 16  # of an entry beside its texts, about
_RUN_BYTES: Final = 16
Name = tuple[str, str]
Entry = ListAt | RetiredAt | ValueAt
T = TypeVar("T")


class Uncoverable(ValueError):
    """An index frame of the log says what cannot be: the cover stops before it."""


class ListDelta:
    __slots__ = ("floor", "runs")

    def __init__(self) -> None:
        self.floor = 0
        self.runs: Runs = []


class Delta:
    """What some stretches say, taken in oldest first."""

    def __init__(self) -> None:
        self.lists: dict[Name, ListDelta] = {}
        self.values: dict[Name, ValueAt | None] = {}  # None: deleted
        self.retired: dict[int, RetiredAt] = {}  # by sequence, in order
        self.newest: Closed | None = None
        self._runs = 0
        self._retirement = 0

    def __len__(self) -> int:
        return len(self.lists) + len(self.values) + len(self.retired) + self._runs

    def add(self, closed: Closed) -> None:
        """Raises :class:`Uncoverable` if the index frame cannot be true."""
        at, body = closed.index.offset, closed.body
        for entry in body.l:
            name = entry.namespace, entry.key
            known = self.lists.get(name)
            if known is None:
                known = self.lists[name] = ListDelta()
            if not 0 <= entry.floor <= MAX_SEQUENCE or entry.count < 0:
                raise Uncoverable("a list's numbers are out of range")
            known.floor = max(known.floor, entry.floor)
            if entry.count:
                newest = known.runs[-1].last if known.runs else 0
                if not newest < entry.first <= entry.last <= MAX_SEQUENCE:
                    raise Uncoverable("a list's sequences do not rise")
                known.runs.append(Run(at, entry.count, entry.first, entry.last))
                self._runs += 1
        values = self.values
        for value in body.v:
            if not 0 < value.sequence <= MAX_SEQUENCE:
                raise Uncoverable("a value's sequence is out of range")
            name = value.namespace, value.key
            values[name] = None if value.deleted else ValueAt(value.namespace, value.key, at, value.sequence)
        for scope, sequence in sorted(body.r, key=itemgetter(1)):
            if not self._retirement < sequence <= MAX_SEQUENCE:
                raise Uncoverable("retirements do not rise")
            self._retirement = sequence
            self.retired[sequence] = RetiredAt(sequence, scope, at)
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
        self._next = tree.root.next if tree is not None else 1
        self._pages = tree.root.pages if tree is not None else 0
        self._replaced: list[int] = []
        self._leaves: list[LeafRef] = []
        self._blocks: dict[bytes, bytes] = {}
        self._bytes = 0

    def grown(self) -> Grown:
        """Raises :class:`NoAnswer` if the old tree cannot be read, :class:`Uncoverable`, :class:`BadBlock`."""
        delta, tree = self._delta, self._tree
        keys: list[Key] = sorted(("l", *name) for name in delta.lists)
        keys += [entry.order for entry in delta.retired.values()]
        keys += sorted(("v", *name) for name in delta.values)
        left = Leaf([], [], [])  # of leaves that became too small to stand alone
        if tree is not None:
            at = 0
            for number, ref in enumerate(tree.root.leaves):
                last = number + 1 == len(tree.root.leaves)
                stop = len(keys) if last else bisect_left(keys, tree.root.leaves[number + 1].least, lo=at)
                if stop > at:
                    self._replaced.append(ref.number)
                    left = self._store(_joined(left, self._merged(tree.leaf(ref), keys[at:stop])), LEAF_BYTES // 4)
                else:
                    left = self._store(left)
                    self._leaves.append(ref)
                at = stop
            keys = keys if not tree.root.leaves else []
        self._store(self._merged(left, keys))
        return Grown(self._root(), self._blocks)

    def _root(self) -> Root:
        leaves, newest = self._leaves, self._delta.newest
        assert newest is not None
        if leaves and leaves[0].least != LEAST:
            leaves[0] = msgspec.structs.replace(leaves[0], least=LEAST)
        index = newest.index
        return Root(
            VERSION, self._log, index.offset, index.end, index.checksum, self._next, self._pages, leaves, self._replaced
        )

    # --- entries --------------------------------------------------------------------------------

    def _merged(self, leaf: Leaf, keys: list[Key]) -> Leaf:
        """The leaf with the changes to these keys, which are in order."""
        delta = self._delta
        lists = {(entry.namespace, entry.key): entry for entry in leaf.lists}
        values = {(entry.namespace, entry.key): entry for entry in leaf.values}
        retired = leaf.retired[:]
        for kind, namespace, key in keys:
            name = namespace, key
            if kind == "v":
                value = delta.values[name]
                if value is not None:
                    values[name] = value
                else:
                    values.pop(name, None)
            elif kind == "l":
                found = self._list_after(lists.get(name), name, delta.lists[name])
                if found is not None:
                    lists[name] = found
                else:
                    lists.pop(name, None)
            else:
                retired.append(delta.retired[int(namespace)])
        return Leaf(_in_order(lists), retired, _in_order(values))

    def _list_after(self, known: ListAt | None, name: Name, change: ListDelta) -> ListAt | None:
        """None if nothing of the list is alive: then there is nothing to know of it."""
        floor = max(known.floor, change.floor) if known is not None else change.floor
        pages: list[PageRef] = []
        for page in known.pages if known is not None else ():
            if page.last > floor:
                pages.append(page)
            else:
                self._replaced.append(page.number)
                self._pages -= page.size
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
        return ListAt(*name, floor, pages, runs) if runs or pages else None

    # --- blocks ---------------------------------------------------------------------------------

    def _store(self, leaf: Leaf, least: int = 0) -> Leaf:
        """Make one block of a leaf, or several if it is too long. One shorter than ``least`` is returned instead."""
        raw = encode_leaf(leaf)
        if len(raw) < least:
            return leaf
        if len(raw) <= LEAF_BYTES * 3 // 2:
            self._store_whole(leaf, raw)
        else:
            for part in _parts(leaf):
                self._store_whole(part, encode_leaf(part))
        return Leaf([], [], [])

    def _store_whole(self, leaf: Leaf, raw: bytes) -> None:
        first: list[Entry] = [*leaf.lists[:1], *leaf.retired[:1], *leaf.values[:1]]
        if first:
            self._leaves.append(LeafRef(first[0].order if self._leaves else LEAST, *self._add(raw)))

    def _add(self, raw: bytes) -> tuple[int, int, int]:
        """A block's number, checksum and stored bytes."""
        number = self._next
        self._next += 1
        key = block_key(self._prefix, number)
        data = self._blocks[key] = encode_block(key, raw)
        self._bytes += len(data)
        if self._bytes > SPILL_BYTES:
            self._spill(self._blocks)
            self._blocks, self._bytes = {}, 0
        return number, checksum_of(data), len(data)


def _in_order(entries: dict[Name, T]) -> list[T]:
    return [entries[name] for name in sorted(entries)]


def _joined(one: Leaf, other: Leaf) -> Leaf:
    """Two leaves that follow each other."""
    if not (one.lists or one.retired or one.values):
        return other
    return Leaf(one.lists + other.lists, one.retired + other.retired, one.values + other.values)


def _parts(leaf: Leaf) -> list[Leaf]:
    """Leaves of about the right length, none of them empty."""
    parts: list[Leaf] = [Leaf([], [], [])]
    size = 0
    entries: list[Entry] = [*leaf.lists, *leaf.retired, *leaf.values]
    for entry in entries:
        more = _size_of(entry)
        if size and size + more > LEAF_BYTES:
            parts.append(Leaf([], [], []))
            size = 0
        size += more
        part = parts[-1]
        if isinstance(entry, ListAt):
            part.lists.append(entry)
        elif isinstance(entry, RetiredAt):
            part.retired.append(entry)
        else:
            part.values.append(entry)
    return parts


def _size_of(entry: Entry) -> int:
    if isinstance(entry, RetiredAt):
        return _ENTRY_BYTES + len(entry.scope)
    size = _ENTRY_BYTES + len(entry.namespace) + len(entry.key)
    if isinstance(entry, ListAt):
        size += _RUN_BYTES * (len(entry.runs) + 2 * len(entry.pages))
    return size
