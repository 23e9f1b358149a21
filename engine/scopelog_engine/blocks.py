"""Blocks: what the index is made of, as bytes. Pure; see engine/FORMAT.md, "The index".

A block is eight bytes of head, a checksum and its body, stored under a key::

    +-------+--------+------------+-------+--------+
    | magic | method | raw length | crc32 |  body  |   crc32 covers the key, the head and the body
    |   3   |   1    |     4      |   4   |  rest  |   method 0: the body as it is; 1: one zstd frame
    +-------+--------+------------+-------+--------+

The body of a catalogue's entry is opaque. The others are MessagePack: the *root* of a session's tree says which stretch
of the log is covered and names every *leaf* with its checksum and least key; leaves hold what is known of lists,
retirements and values, by name; *pages* hold the older runs of a list that has many.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from itertools import pairwise
from operator import lt
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from .codec import BadPayload, compress, decompress
from .header import Header
from .layout import MAX_SEQUENCE

VERSION: Final = 1  # of what roots, leaves and pages say
MAX_OFFSET: Final = 2**53  # in a log, and of blocks in a tree: what is above was never written
MAX_NUMBER: Final = 2**53
MAX_BLOCK_BYTES: Final = 64 * 2**20  # before compression
_MAGIC: Final = b"sxb"
_PLAIN, _ZSTD = 0, 1
_WORTH_ZSTD: Final = 512
_head = struct.Struct("<3sBII")
_ENTRY: Final = b"e"
_ROOT: Final = b"r"
_BLOCK: Final = b"b"
T = TypeVar("T")


class BadBlock(ValueError):
    """The bytes are not the block that is asked for."""


# --- keys ----------------------------------------------------------------------------------------


def entry_key(name: str) -> bytes:
    """Of a session's entry in the catalogue; ``name`` is its directory's."""
    return _ENTRY + name.encode()


def root_key(name: str) -> bytes:
    return _ROOT + name.encode()


def name_of(key: bytes) -> str | None:
    """The session that an entry's or a root's key names; None if none ever had such a key."""
    try:
        return key[1:].decode()
    except UnicodeDecodeError:
        return None


def tree_prefix(name: str) -> bytes:
    """What the keys of a tree's leaves and pages begin with."""
    return _BLOCK + blake2b(name.encode(), digest_size=12).digest()


def block_key(prefix: bytes, number: int) -> bytes:
    return prefix + number.to_bytes(8, "big")


ENTRIES: Final = _ENTRY
ROOTS: Final = _ROOT

# --- blocks --------------------------------------------------------------------------------------


def encode_block(key: bytes, raw: bytes) -> bytes:
    """Raises :class:`BadBlock` if it would be too long to be read again."""
    if len(raw) > MAX_BLOCK_BYTES:
        raise BadBlock(f"the block would take {len(raw)} bytes")
    method, body = (_ZSTD, compress(raw, crowd=True)) if len(raw) >= _WORTH_ZSTD else (_PLAIN, raw)
    head = _head.pack(_MAGIC, method, len(raw), 0)[:8]
    return b"".join((head, _checksum(key, head, body).to_bytes(4, "little"), body))


def decode_block(key: bytes, data: bytes) -> bytes:
    if len(data) < _head.size:
        raise BadBlock("the block is cut off")
    magic, method, length, checksum = _head.unpack_from(data)
    body = data[_head.size :]
    if magic != _MAGIC or method > _ZSTD or length > MAX_BLOCK_BYTES:
        raise BadBlock("the block's head is none")
    if checksum != _checksum(key, data[:8], body):
        raise BadBlock("the block's checksum does not match")
    if method == _PLAIN:
        if length != len(body):
            raise BadBlock("the block's length does not match")
        return body
    try:
        return decompress(body, length, MAX_BLOCK_BYTES)
    except BadPayload as error:
        raise BadBlock(str(error)) from None


def checksum_of(data: bytes) -> int:
    """The checksum that a block carries."""
    return int(_head.unpack_from(data)[3])


def _checksum(key: bytes, head: bytes, body: bytes) -> int:
    return crc32(body, crc32(head, crc32(key)))


# --- what they say -------------------------------------------------------------------------------

Key = tuple[str, str, str]
"""Order of what leaves hold: "l", namespace, key of a list; "r", sequence in 16 digits, "" of a retirement; "v",
namespace, key of a value. The empty one is below all."""

LEAST: Final[Key] = ("", "", "")


def retired_key(sequence: int) -> Key:
    return ("r", f"{sequence:016d}", "")


class Run(NamedTuple):
    """One stretch of the log that holds elements of a list: offset ``at`` of the index frame that closes it, and
    what that says of the list."""

    at: int
    elements: int
    first: int
    last: int


class PageRef(NamedTuple):
    """A page of older runs: its number, checksum and stored bytes, and the sequences it spans."""

    number: int
    checksum: int
    size: int
    first: int
    last: int


class ListAt(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A list with elements that may be alive: those above ``floor``, in these runs; pages are older, oldest first."""

    namespace: str
    key: str
    floor: int
    pages: list[PageRef]
    runs: list[Run]

    @property
    def order(self) -> Key:
        return ("l", self.namespace, self.key)


class RetiredAt(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A retirement, and the offset of the index frame that tells of it."""

    sequence: int
    scope: str
    at: int

    @property
    def order(self) -> Key:
        return retired_key(self.sequence)


class ValueAt(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The last write of a value that is set, and the offset of the index frame that tells of it."""

    namespace: str
    key: str
    at: int
    sequence: int

    @property
    def order(self) -> Key:
        return ("v", self.namespace, self.key)


class Leaf(msgspec.Struct, array_like=True, frozen=True):
    """Each in order."""

    lists: list[ListAt]
    retired: list[RetiredAt]
    values: list[ValueAt]


class LeafRef(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A leaf: nothing in it is below ``least``, nothing in the leaf before it is not."""

    least: Key
    number: int
    checksum: int
    size: int  # stored bytes


class Root(msgspec.Struct, array_like=True, frozen=True):
    """The tree of one log: covers it from its first frame to the end of the index frame at ``at``, without a gap."""

    version: int
    log: bytes  # identity_of() its header
    at: int
    end: int  # of that index frame
    checksum: int  # of that index frame: by the chain, of everything before it
    next: int  # number of the next block
    pages: int  # stored bytes of all pages
    leaves: list[LeafRef]
    replaced: list[int]  # blocks that the root before named and this one does not: removed with the next

    @property
    def size(self) -> int:
        """Stored bytes of leaves and pages."""
        return self.pages + sum(leaf.size for leaf in self.leaves)


Runs = list[Run]
_encode: Final = msgspec.msgpack.Encoder().encode
_roots: Final = msgspec.msgpack.Decoder(Root)
_leaves: Final = msgspec.msgpack.Decoder(Leaf)
_pages: Final = msgspec.msgpack.Decoder(Runs)


def identity_of(header: Header) -> bytes:
    """Tells a log from any other: everything that its header says."""
    return blake2b(_encode(msgspec.structs.astuple(header)), digest_size=16).digest()


def encode_root(root: Root) -> bytes:
    return _encode(root)


def encode_leaf(leaf: Leaf) -> bytes:
    return _encode(leaf)


def encode_page(runs: Runs) -> bytes:
    return _encode(runs)


def decode_root(raw: bytes) -> Root:
    root = _decoded(_roots, raw)
    least = [leaf.least for leaf in root.leaves]
    if root.version != VERSION or least[:1] not in ([], [LEAST]) or not _rises(least):
        raise BadBlock("the root is none")
    numbers = [leaf.number for leaf in root.leaves] + root.replaced
    if not 0 < root.at < root.end <= MAX_OFFSET or not all(0 < number < root.next <= MAX_NUMBER for number in numbers):
        raise BadBlock("the root's numbers are out of range")
    return root


def decode_leaf(raw: bytes) -> Leaf:
    leaf = _decoded(_leaves, raw)
    for entry in leaf.lists:
        _check_runs(entry.runs)
        if not all(0 < page.number <= MAX_NUMBER for page in entry.pages):
            raise BadBlock("a page's number is out of range")
        if not _rises([page.last for page in entry.pages]) or not 0 <= entry.floor <= MAX_SEQUENCE:
            raise BadBlock("a list is out of order")
    if (
        not _rises([(entry.namespace, entry.key) for entry in leaf.lists])
        or not _rises([entry.sequence for entry in leaf.retired])
        or not _rises([(entry.namespace, entry.key) for entry in leaf.values])
    ):
        raise BadBlock("the leaf is out of order")
    places = [entry.at for entry in leaf.retired] + [entry.at for entry in leaf.values]
    if not 0 < min(places, default=1) <= max(places, default=1) <= MAX_OFFSET:
        raise BadBlock("the leaf points out of the log")
    return leaf


def decode_page(raw: bytes) -> Runs:
    runs = _decoded(_pages, raw)
    _check_runs(runs)
    return runs


def _decoded(decoder: msgspec.msgpack.Decoder[T], raw: bytes) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadBlock(str(error)) from None


def _check_runs(runs: Runs) -> None:
    if not all(0 < run.first <= run.last <= MAX_SEQUENCE and 0 < run.at <= MAX_OFFSET for run in runs) or not all(
        a.last < b.first and a.at < b.at for a, b in pairwise(runs)
    ):
        raise BadBlock("the runs of a list are out of order")


def _rises(items: list[Any]) -> bool:
    return all(map(lt, items, items[1:]))
