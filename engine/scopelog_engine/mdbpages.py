"""LMDB's data file (format 1, as 0.9.x writes it) through plain reads: search, iteration, and a proof of its structure.

LMDB reads through a memory map and trusts what it finds there: a damaged page, or a file that became shorter, ends the
process. So every read of the index goes through here, where bytes are only bytes; and LMDB itself is let at a file, to
write, once :mod:`mdbproof` has proved everything that its writing relies on.

A page is 16 bytes of header, the offsets of its nodes, free space, nodes::

    page:  number 8, pad 2, flags 2, then lower 2 and upper 2 (in overflow pages: count 4)
    node:  low 2, high 2, flags 2, length of the key 2, key, data
           branch: low, high and flags make the child's number; leaf: low and high make the length of the data, which
           stands in overflow pages if flags say so (then the node holds the first one's number)

Nothing here trusts a byte; :class:`BadPages` is the only error, besides that of reading.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

Read = Callable[[int, int], bytes]
"""``length`` bytes at ``offset``, or fewer at the end of the file."""

SUPPORTED: Final = sys.byteorder == "little" and sys.maxsize > 2**32  # the format follows the machine
MAX_KEY: Final = 511
HEADER_BYTES: Final = 16
NODE_BYTES: Final = 8
_META_BYTES: Final = HEADER_BYTES + 136
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_BRANCH, _LEAF, OVERFLOW, _META = 1, 2, 4, 8  # flags of a page
_BIG_DATA: Final = 1  # flag of a node
INTEGER_KEY: Final = 8  # flag of a tree
_NO_PAGE: Final = 2**64 - 1
_MAX_DEPTH: Final = 32
_MAX_PAGES: Final = 2**47
_MAX_TXNID: Final = 2**62
_PAGES_KEPT: Final = 64
_page = struct.Struct("<QHHHH").unpack_from
_node = struct.Struct("<HHHH").unpack_from
number_at = struct.Struct("<Q").unpack_from
overflow_at = struct.Struct("<QHHI").unpack_from
_meta_head = struct.Struct("<II").unpack_from
_tree = struct.Struct("<IHHQQQQQ").unpack_from
_meta_tail = struct.Struct("<QQ").unpack_from


class BadPages(ValueError):
    """The bytes are not what LMDB would have left there."""


class Tree(NamedTuple):
    """What a meta page says of one B-tree."""

    pad: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


class Meta(NamedTuple):
    """The newest committed state. ``last`` is the highest page number in use; ``page`` the size of a page."""

    page: int
    free: Tree
    main: Tree
    last: int
    txnid: int


class Node(NamedTuple):
    key: bytes
    at: int  # of the data, inside the page
    length: int  # of the data; in a branch: the child's number
    big: bool  # the data is the number of an overflow page


def read_meta(read: Read, size: int) -> Meta:
    """The newer of the two meta pages, with both checked, and that the pages it speaks of are there."""
    first = _parse_meta(read(_META_BYTES, 0), 0)
    second = _parse_meta(read(_META_BYTES, first.page), 1)
    newest = second if second.txnid > first.txnid else first
    if second.page != first.page:
        raise BadPages("the meta pages name different page sizes")
    if newest.txnid and (newest is second) != bool(newest.txnid & 1):
        raise BadPages("a meta page stands in the other's place")
    if (newest.last + 1) * newest.page > size:
        raise BadPages("the file is shorter than its meta page says")
    return newest


def _parse_meta(data: bytes, number: int) -> Meta:
    if len(data) < _META_BYTES:
        raise BadPages("the file is too short for its meta pages")
    stored, _, flags, _, _ = _page(data)
    if (stored, flags, *_meta_head(data, HEADER_BYTES)) != (number, _META, _MAGIC, _VERSION):
        raise BadPages(f"meta page {number} is none of this format")
    free = Tree(*_tree(data, HEADER_BYTES + 24))
    main = Tree(*_tree(data, HEADER_BYTES + 72))
    last, txnid = _meta_tail(data, HEADER_BYTES + 120)
    page = free.pad
    if page < 512 or page > 65536 or page & (page - 1):
        raise BadPages("the page size is none")
    if free.flags != INTEGER_KEY or main.flags or main.pad:
        raise BadPages("the trees are of another kind")
    if not 1 <= last < _MAX_PAGES or txnid > _MAX_TXNID:
        raise BadPages("a meta page's numbers are out of range")
    for tree in (free, main):
        if tree.depth > _MAX_DEPTH or (tree.root == _NO_PAGE) != (tree.depth == 0):
            raise BadPages("a tree's depth is out of range")
        if tree.root != _NO_PAGE and not 1 < tree.root <= last:
            raise BadPages("a tree's root is out of range")
    return Meta(page, free, main, last, txnid)


class Page:
    """A branch or leaf page, its bounds checked; each node is checked when it is looked at."""

    __slots__ = ("_offsets", "branch", "data", "upper")

    def __init__(self, read: Read, meta: Meta, number: int, *, branch: bool) -> None:
        if not 1 < number <= meta.last:
            raise BadPages(f"page {number} is out of range")
        data = read(meta.page, number * meta.page)
        if len(data) < meta.page:
            raise BadPages(f"page {number} is beyond the end of the file")
        stored, _, flags, lower, upper = _page(data)
        if stored != number or flags != (_BRANCH if branch else _LEAF):
            raise BadPages(f"page {number} is another one, or of another kind")
        if not HEADER_BYTES < lower <= upper <= len(data) or lower & 1:
            raise BadPages(f"the bounds of page {number} do not hold")
        self.data = data
        self.branch = branch
        self.upper = upper
        self._offsets: tuple[int, ...] = struct.unpack_from(f"<{(lower - HEADER_BYTES) >> 1}H", data, HEADER_BYTES)

    def __len__(self) -> int:
        return len(self._offsets)

    def node(self, number: int) -> Node:
        at = self._offsets[number]
        data = self.data
        if at < self.upper or at + NODE_BYTES > len(data) or at & 1:
            raise BadPages("a node stands outside of its page")
        low, high, flags, key_length = _node(data, at)
        start = at + NODE_BYTES + key_length
        if self.branch:
            end, length, big = start, low | high << 16 | flags << 32, False
        else:
            length, big = low | high << 16, flags == _BIG_DATA
            end = start + (8 if big else length)
            if flags and not big:
                raise BadPages("a node is of a kind that is not used here")
        if key_length > MAX_KEY or end > len(data):
            raise BadPages("a node reaches beyond its page")
        return Node(data[at + NODE_BYTES : start], start, length, big)

    def child(self, key: bytes) -> int:
        """Which node of a branch page leads to ``key``. The first one's own key says nothing."""
        return bisect_right(range(1, len(self)), key, key=lambda at: self.node(at).key)

    def position(self, key: bytes) -> int:
        """The first node of a leaf page whose key is not below ``key``."""
        return bisect_left(range(len(self)), key, key=lambda at: self.node(at).key)


def data_of(read: Read, meta: Meta, page: Page, node: Node, most: int) -> bytes:
    if node.length > most:
        raise BadPages("the data is longer than any that was stored")
    if not node.big:
        return page.data[node.at : node.at + node.length]
    (number,) = number_at(page.data, node.at)
    if number < 2 or number + pages_for(node.length, meta.page) - 1 > meta.last:
        raise BadPages("overflow pages are out of range")
    whole = read(HEADER_BYTES + node.length, number * meta.page)
    if len(whole) < HEADER_BYTES + node.length or overflow_at(whole)[0] != number:
        raise BadPages("overflow pages are not where they should be")
    return whole[HEADER_BYTES:]


def pages_for(length: int, page: int) -> int:
    return (HEADER_BYTES + length + page - 1) // page


class Snapshot:
    """One committed state, to be read as long as LMDB leaves its pages alone. ``most``: longest data worth memory."""

    def __init__(self, read: Read, size: int, most: int) -> None:
        self._read = read
        self._most = most
        self._pages: dict[int, Page] = {}  # those looked at last
        self._leaf: tuple[list[bytes], Page] | None = None  # of the last key of several, with all its keys
        self.meta = read_meta(read, size)

    def get(self, key: bytes) -> bytes | None:
        """The data of a key, None if it is not there."""
        page, at = next(((leaf, at) for leaf, at in self._leaves(key) if at < len(leaf)), (None, 0))
        if page is None:
            return None
        node = page.node(at)
        return data_of(self._read, self.meta, page, node, self._most) if node.key == key else None

    def get_all(self, keys: list[bytes]) -> list[bytes | None]:
        """The data of each key. Keys in order cost little: a leaf page is taken apart once for all of its keys."""
        if len(keys) == 1:
            return [self.get(keys[0])]
        found: list[bytes | None] = []
        for key in keys:
            leaf = self._leaf
            if leaf is None or not leaf[0][0] <= key <= leaf[0][-1]:
                page = next((page for page, _ in self._leaves(key)), None)
                if page is None:
                    found.append(None)
                    continue
                leaf = self._leaf = [page.node(at).key for at in range(len(page))], page
            at = bisect_left(leaf[0], key)
            there = at < len(leaf[0]) and leaf[0][at] == key
            found.append(data_of(self._read, self.meta, leaf[1], leaf[1].node(at), self._most) if there else None)
        return found

    def leaves(self, start: bytes) -> Iterator[list[tuple[bytes, bytes | None]]]:
        """Keys from ``start`` on with their data, leaf page by leaf page; None where the data cannot be had."""
        for page, first in self._leaves(start):
            out: list[tuple[bytes, bytes | None]] = []
            for node in map(page.node, range(first, len(page))):
                try:
                    out.append((node.key, data_of(self._read, self.meta, page, node, self._most)))
                except BadPages:
                    out.append((node.key, None))
            yield out

    def _leaves(self, key: bytes) -> Iterator[tuple[Page, int]]:
        """Leaf pages from the one that would hold ``key`` on, and where the first key not below it stands in each."""
        tree = self.meta.main
        if tree.depth == 0:
            return
        above: list[tuple[Page, int]] = []
        number = tree.root
        for _ in range(self.meta.last):  # no tree has more leaves: a circle ends, too
            while len(above) < tree.depth - 1:
                branch = self._page(number, branch=True)
                at = branch.child(key) if key else 0
                above.append((branch, at))
                number = branch.node(at).length
            page = self._page(number, branch=False)
            yield page, page.position(key) if key else 0
            key = b""
            while above and above[-1][1] + 1 >= len(above[-1][0]):
                above.pop()
            if not above:
                return
            branch, at = above.pop()
            above.append((branch, at + 1))
            number = branch.node(at + 1).length

    def _page(self, number: int, *, branch: bool) -> Page:
        page = self._pages.get(number)
        if page is None or page.branch != branch:
            page = Page(self._read, self.meta, number, branch=branch)
            if len(self._pages) >= _PAGES_KEPT:
                self._pages.clear()
            self._pages[number] = page
        return page
