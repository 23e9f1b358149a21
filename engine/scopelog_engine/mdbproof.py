"""Proof that LMDB can write to a data file: its writing trusts every page that it meets. See :mod:`mdbpages`.

LMDB copies, splits and joins pages by the lengths that stand in them, hands out pages that its list calls free, and
aborts the process where its own counts are off. All of that is held against the whole file here; what is left out
(pages that are neither in use nor free) it never looks at.
"""

from __future__ import annotations

import struct
from itertools import pairwise

from .mdbpages import (
    HEADER_BYTES,
    INTEGER_KEY,
    NODE_BYTES,
    OVERFLOW,
    BadPages,
    Meta,
    Node,
    Page,
    Read,
    Tree,
    data_of,
    number_at,
    overflow_at,
    pages_for,
)


def verify(read: Read, meta: Meta) -> None:
    """Prove that LMDB can write to the file: what is in use is whole and used once, what is free is not in use."""
    seen = bytearray(meta.last + 1)
    seen[0] = seen[1] = 1
    _verify_tree(read, meta, meta.main, seen)
    for record in _verify_tree(read, meta, meta.free, seen):
        count = number_at(record)[0] if len(record) >= 8 else len(record)
        if len(record) < (count + 1) * 8:
            raise BadPages("a list of free pages is cut off")
        before = meta.last + 1
        for number in struct.unpack_from(f"<{count}Q", record, 8):
            if not 1 < number < before:
                raise BadPages("a list of free pages is out of order")
            _claim(seen, number, 1)
            before = number


def _verify_tree(read: Read, meta: Meta, tree: Tree, seen: bytearray) -> list[bytes]:
    """Prove one tree. Returns the data of the free tree, nothing of the main one."""
    free = tree.flags == INTEGER_KEY
    branches = leaf_pages = overflows = entries = 0
    found: list[bytes] = []
    todo: list[tuple[int, int, bytes, bytes | None]] = [(tree.root, 1, b"", None)] if tree.depth else []
    while todo:
        number, depth, low, high = todo.pop()
        branch = depth < tree.depth
        page = Page(read, meta, number, branch=branch)
        _claim(seen, number, 1)
        nodes = [page.node(at) for at in range(len(page))]
        _verify_places(page, nodes, branch)
        if branch:
            branches += 1
            bounds = [low, *(_ordered(node.key, free) for node in nodes[1:])]
            _verify_order(bounds, high)
            todo += zip([n.length for n in nodes], [depth + 1] * len(nodes), bounds, [*bounds[1:], high], strict=True)
            continue
        leaf_pages += 1
        entries += len(nodes)
        _verify_order([low, *(_ordered(node.key, free) for node in nodes)], high)
        for node in nodes:
            if node.big:
                overflows += _verify_overflow(read, meta, number_at(page.data, node.at)[0], node.length, seen)
            if free:
                if not 0 < number_at(node.key)[0] <= meta.txnid:
                    raise BadPages("pages were freed in the future")
                found.append(data_of(read, meta, page, node, (meta.last + 2) * 8 + meta.page))
    if (branches, leaf_pages, overflows, entries) != (tree.branches, tree.leaves, tree.overflows, tree.entries):
        raise BadPages("a tree's counts are not those of its pages")
    return found


def _verify_places(page: Page, nodes: list[Node], branch: bool) -> None:
    """The nodes fill their part of the page without a gap: LMDB counts on it when it moves them."""
    if len(nodes) < 1 + branch:
        raise BadPages("a page holds too few nodes")
    at = page.upper
    for start, end in sorted(
        (node.at - len(node.key) - NODE_BYTES, node.at + (0 if branch else 8 if node.big else node.length))
        for node in nodes
    ):
        if start != at:
            raise BadPages("two nodes overlap, or leave a gap")
        at = end + (end & 1)
    if at != len(page.data):
        raise BadPages("the nodes do not fill their page")


def _ordered(key: bytes, numeric: bool) -> bytes:
    """A key as bytes that sort like it."""
    if not key or (numeric and len(key) != 8):
        raise BadPages("a key is of no legal length")
    return key[::-1] if numeric else key


def _verify_order(keys: list[bytes], high: bytes | None) -> None:
    """``keys[0]`` is the lower bound of the page, which its first key may equal."""
    if any(a >= b for a, b in pairwise(keys[1:])) or keys[0] > keys[min(1, len(keys) - 1)]:
        raise BadPages("keys are out of order")
    if high is not None and keys[-1] >= high:
        raise BadPages("a key stands above its page")


def _verify_overflow(read: Read, meta: Meta, number: int, length: int, seen: bytearray) -> int:
    if not 1 < number <= meta.last:
        raise BadPages("an overflow page is out of range")
    head = read(HEADER_BYTES, number * meta.page)
    if len(head) < HEADER_BYTES:
        raise BadPages("an overflow page is beyond the end of the file")
    stored, _, flags, count = overflow_at(head)
    if stored != number or flags != OVERFLOW or count < pages_for(length, meta.page):
        raise BadPages("overflow pages are not as long as their data")
    _claim(seen, number, count)
    return int(count)


def _claim(seen: bytearray, number: int, count: int) -> None:
    if number < 2 or number + count > len(seen) or any(seen[number : number + count]):
        raise BadPages("a page is used twice, or out of range")
    seen[number : number + count] = b"\1" * count
