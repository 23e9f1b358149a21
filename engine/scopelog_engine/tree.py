"""What the index says of one log: answers from a root, its leaves and pages. See engine/FORMAT.md, "The index".

A :class:`Tree` speaks of the stretch of the log that its root covers, of nothing else. What it says is not believed:
whoever asks looks at the frames that it names. What it does not say is not there, because the leaf that would say it is
proved to be the right one by the checksum that the root has of it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from .blocks import (
    BadBlock,
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
    decode_block,
    decode_leaf,
    decode_page,
    retired_key,
)
from .lines import LIST, Address

Get = Callable[[bytes], bytes | None]
_KEPT_BYTES: Final = 4 * 2**20  # stored bytes of leaves and pages kept decoded; decoded they take some ten times that


class NoAnswer(Exception):
    """The index cannot answer: a block is missing or damaged, or what it says is not what the log says."""


class Kept:
    """Leaves and pages read last, by key and checksum; bounded by their stored bytes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[bytes, int], tuple[Leaf | Runs, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[bytes, int]) -> Leaf | Runs | None:
        with self._lock:
            found = self._blocks.get(key)
            if found is None:
                return None
            self._blocks.move_to_end(key)
            return found[0]

    def add(self, key: tuple[bytes, int], block: Leaf | Runs, size: int) -> None:
        with self._lock:
            if key in self._blocks:
                return
            self._blocks[key] = block, size
            self._bytes += size
            while self._bytes > _KEPT_BYTES and len(self._blocks) > 1:
                self._bytes -= self._blocks.popitem(last=False)[1][1]


class Tree:
    """Answers from ``root``; immutable. ``checksum``: of the block that holds it. ``get`` reads the others.

    Methods raise :class:`NoAnswer`.
    """

    def __init__(self, root: Root, checksum: int, prefix: bytes, get: Get, kept: Kept) -> None:
        self.root = root
        self.checksum = checksum
        self._prefix = prefix
        self._get = get
        self._kept = kept
        self._least = [leaf.least for leaf in root.leaves]

    # --- blocks ---------------------------------------------------------------------------------

    def leaf(self, ref: LeafRef) -> Leaf:
        leaf = self._block(ref.number, ref.checksum, decode_leaf)
        assert isinstance(leaf, Leaf)
        return leaf

    def page(self, ref: PageRef) -> Runs:
        runs = self._block(ref.number, ref.checksum, decode_page)
        assert isinstance(runs, list)
        return runs

    def _block(self, number: int, checksum: int, decode: Callable[[bytes], Leaf | Runs]) -> Leaf | Runs:
        key = block_key(self._prefix, number)
        block = self._kept.get((key, checksum))
        if block is not None:
            return block
        data = self._get(key)
        if data is None:
            raise NoAnswer(f"block {number} is missing")
        try:
            raw = decode_block(key, data)
            if checksum_of(data) != checksum:
                raise BadBlock("it is of another time")
            block = decode(raw)
        except BadBlock as error:
            raise NoAnswer(f"block {number} cannot be used: {error}") from None
        self._kept.add((key, checksum), block, len(data))
        return block

    def _place(self, key: Key) -> int:
        """Which leaf would hold ``key``."""
        return bisect_right(self._least, key) - 1

    def _leaf_of(self, key: Key) -> Leaf | None:
        place = self._place(key)
        return self.leaf(self.root.leaves[place]) if place >= 0 else None

    def _leaves_from(self, key: Key) -> Iterator[Leaf]:
        return map(self.leaf, self.root.leaves[max(self._place(key), 0) :])

    # --- answers --------------------------------------------------------------------------------

    def value(self, address: Address) -> ValueAt | None:
        """The value's last write, None if it is not set."""
        key = ("v", address.namespace, address.key)
        leaf = self._leaf_of(key)
        if leaf is None:
            return None
        at = bisect_left(leaf.values, key, key=lambda entry: entry.order)
        return leaf.values[at] if at < len(leaf.values) and leaf.values[at].order == key else None

    def values(self, namespace: str, prefix: str) -> Iterator[ValueAt]:
        """Values of a namespace that are set and whose keys start with ``prefix``, by key."""
        key = ("v", namespace, prefix)
        for leaf in self._leaves_from(key):
            at = bisect_left(leaf.values, key, key=lambda entry: entry.order)
            for entry in leaf.values[at:]:
                if entry.namespace != namespace or not entry.key.startswith(prefix):
                    return
                yield entry

    def retired(self, after: int) -> Iterator[RetiredAt]:
        """Retirements with a sequence above ``after``, in order."""
        key = retired_key(after + 1)
        for leaf in self._leaves_from(key):
            yield from leaf.retired[bisect_left(leaf.retired, key, key=lambda entry: entry.order) :]
            if leaf.values:
                return

    def list_of(self, address: Address) -> ListAt | None:
        """What is known of a list; None if the cover holds nothing of it that is alive."""
        assert address.kind == LIST
        key = ("l", address.namespace, address.key)
        leaf = self._leaf_of(key)
        if leaf is None:
            return None
        at = bisect_left(leaf.lists, key, key=lambda entry: entry.order)
        return leaf.lists[at] if at < len(leaf.lists) and leaf.lists[at].order == key else None

    def runs(self, entry: ListAt, above: int, below: int, *, descending: bool) -> Iterator[Run]:
        """Runs that may hold sequences between the two, both exclusive, in order; pages are read as they are met."""
        parts: list[PageRef | Runs] = [*entry.pages, entry.runs]
        for part in reversed(parts) if descending else parts:
            if isinstance(part, PageRef):
                if part.last <= above or part.first >= below:
                    continue
                part = self.page(part)
            for run in reversed(part) if descending else part:
                if run.last > above and run.first < below:
                    yield run
