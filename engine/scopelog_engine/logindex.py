"""The index of one main log: which tree is known of it, and how its cover is extended by checkpoints.

A checkpoint takes in closed stretches that are durable, oldest first, some megabytes a transaction, and never raises:
whatever stands against it is logged, and it is tried again when the log has grown.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from .blocks import (
    BadBlock,
    Root,
    block_key,
    checksum_of,
    decode_block,
    decode_root,
    encode_block,
    encode_root,
    identity_of,
    root_key,
    tree_prefix,
)
from .errors import CorruptLog, ScopelogError
from .growth import Delta, Growth, Uncoverable
from .header import Header
from .lmdbenv import Changes
from .lmdbfile import IndexFile
from .stretch import Closed, Summary
from .tree import Kept, NoAnswer, Tree

_log = logging.getLogger(__name__)
CHECKPOINT_BYTES: Final = 4 * 2**20  # of closed stretches that are worth a checkpoint, and taken in by one transaction
CLOSE_BYTES: Final = 2**20  # the same when a session is closed, where there is an index
NEVER: Final = 2**63
_CLOSE_MOST: Final = 64 * 2**20  # taken in at most by a closing session: closing must not last
_AGAIN_BYTES: Final = 2**20  # of log after a checkpoint that could not be made
_DELTA_ENTRIES: Final = 128 * 1024  # what one transaction takes in at most: bounds the memory


class Log(Protocol):
    """What of a :class:`LogView` the index looks at."""

    header: Header
    end: int

    @property
    def tail(self) -> Summary: ...

    def closed(self, offset: int, before: int = 0) -> Closed: ...

    def before(self, newer: Summary) -> Closed:
        """The stretch before another one, proved to meet it."""

    def closed_part(self) -> Log:
        """The closed stretches alone, as they are now."""

    def hold(self) -> None:
        """Keep the file open until :meth:`let_go`."""

    def let_go(self) -> None: ...

    def file_size(self) -> int: ...


class Home(Protocol):
    """What of a :class:`StoreIndex` is needed here."""

    directory: str
    kept: Kept
    by_itself: bool
    closing: bool

    @property
    def file(self) -> IndexFile: ...

    @property
    def present(self) -> bool: ...

    def ask(self, job: Job) -> None: ...


class Job(NamedTuple):
    """A checkpoint to be made; arguments as of :meth:`LogIndex.checkpoint`."""

    log: LogIndex
    view: Log
    durable: int
    least: int | None = None
    most: int = NEVER

    def run(self) -> None:
        try:
            self.log.checkpoint(self.view, self.durable, least=self.least, most=self.most)
        finally:
            self.view.let_go()


class LogIndex:
    """What the index knows of one main log. Thread-safe. Made by :meth:`StoreIndex.log`."""

    def __init__(self, store: Home, name: str, due_at: int) -> None:
        self.due_at = due_at
        """A checkpoint is worth asking for once the log is durable up to this offset."""
        self._store = store
        self._name = name
        self._root_key = root_key(name)
        self._prefix = tree_prefix(name)
        self._trees: tuple[Tree, ...] = ()  # newest first
        self._looked = False
        self._refused: set[int] = set()  # checksums of roots that proved to be of no use
        self._busy = threading.Lock()
        self._deleted = False
        self._due_first = due_at

    # --- what is known ----------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        """Whether a tree is at hand without a look at the disk."""
        return bool(self._trees)

    def tree(self, view: Log, *, look: bool = False) -> Tree | None:
        """The newest tree that covers no more than the closed stretches of ``view``, None if there is none.

        Looks for it on disk the first time, or with ``look``.
        """
        if look or not self._looked:
            self._looked = True
            self._learn(self._stored(view))
        limit = view.tail.start
        return next((tree for tree in self._trees if tree.root.end <= limit), None)

    def refuse(self, tree: Tree, why: str) -> None:
        """The log says otherwise, or a block is lost: do without this tree. The next checkpoint begins anew."""
        if tree in self._trees:
            _log.warning("%s: the index of %s is not used: %s", self._store.directory, self._name, why)
        self._trees = tuple(other for other in self._trees if other is not tree)
        self._refused.add(tree.checksum)
        self._due(tree.root.end)

    def forget(self, *, deleted: bool = False) -> None:
        """What was known is no longer so: the log was compacted; or ``deleted``: no checkpoint is made of it then."""
        self._trees = ()
        self._looked = False
        self.due_at = self._due_first
        self._deleted = self._deleted or deleted

    def covered(self) -> int:
        """Up to which offset the newest tree that is known covers the log."""
        return self._trees[0].root.end if self._trees else 0

    def _learn(self, tree: Tree | None) -> None:
        if tree is not None and (not self._trees or self._trees[0].checksum != tree.checksum):
            self._trees = (tree, *self._trees[:1])

    def _due(self, offset: int) -> None:
        self.due_at = offset if self._store.by_itself else NEVER

    def _stored(self, view: Log) -> Tree | None:
        """The tree that stands in the index, if it is of this very log and was not refused."""
        data = self._store.file.get(self._root_key)
        root = root_of(self._root_key, data)
        if data is None or root is None or root.log != identity_of(view.header):
            return None
        return None if checksum_of(data) in self._refused else self._tree(root, checksum_of(data))

    def _tree(self, root: Root, checksum: int) -> Tree:
        return Tree(root, checksum, self._prefix, self._store.file.get, self._store.kept)

    # --- checkpoints ------------------------------------------------------------------------------

    def ask(self, view: Log, durable: int) -> None:
        """Have the cover extended in the background. Does no I/O: the open stretch must be at hand."""
        self.due_at = NEVER
        self._store.ask(Job(self, view.closed_part(), durable))

    def at_close(self, view: Log, durable: int) -> None:
        """Have the cover extended if that is worth while, in the background if there is one: closing does not wait."""
        least = CLOSE_BYTES if view.end >= CLOSE_BYTES and self._store.present else CHECKPOINT_BYTES
        if min(view.end, durable) - self.covered() < least:
            return
        try:
            part = view.closed_part()
            part.hold()  # now: the file is about to be closed
        except ScopelogError as error:
            _log.info("no checkpoint of %s: %s", self._name, error)
            return
        job = Job(self, part, durable, least, _CLOSE_MOST)
        if self._store.by_itself:
            self._store.ask(job)
        else:
            job.run()

    def rebuild(self, view: Log, durable: int) -> bool:
        """Drop the tree and derive it again, however short the log is."""
        return self._checkpoint(view, durable, 0, NEVER, anew=True)

    def checkpoint(self, view: Log, durable: int, *, least: int | None = None, most: int = NEVER) -> bool:
        """Extend the cover over the closed stretches whose index frame ends at or below ``durable``.

        Only if there are ``least`` bytes of them (by default enough to be worth it), and no more than ``most``.
        True if nothing is left to be covered now. Whatever stands against it is logged, not raised.
        """
        return self._checkpoint(view, durable, least, most)

    def _checkpoint(self, view: Log, durable: int, least: int | None, most: int, anew: bool = False) -> bool:
        limit = min(durable, view.tail.start)
        done, due = False, limit + _AGAIN_BYTES
        if not self._busy.acquire(blocking=False):
            return False  # another thread is at it
        try:
            view.hold()  # not before: many may wait for their turn, and the file may be closed meanwhile
            tree = self._extend(view, durable, None if anew else self._stored(view), least, most)
            done, due = True, (tree.root.end if tree is not None else 0) + _worth(tree)
        except CorruptLog as error:
            _log.info("the cover of %s stops before damage: %s", self._name, error)
            due = NEVER
        except (ScopelogError, NoAnswer, Uncoverable, BadBlock, MemoryError) as error:
            _log.info("no checkpoint of %s: %s", self._name, error)
        finally:
            self._busy.release()
            self._due(due)
        return done and due > limit

    def _extend(self, view: Log, durable: int, tree: Tree | None, least: int | None, most: int) -> Tree | None:
        """What ``tree`` becomes."""
        if tree is not None and tree.root.end > view.tail.start:
            if tree.root.end <= view.file_size():
                raise NoAnswer("it may be younger than this view")
            tree = None  # the log was put back to an older state
        limit = min(durable, view.tail.start)
        if limit - (tree.root.end if tree is not None else 0) < (_worth(tree) if least is None else least):
            self._learn(tree)
            return tree
        offsets = self._uncovered(view, tree, durable)
        if offsets is None:
            tree, offsets = None, self._uncovered(view, None, durable)
            assert offsets is not None
        fresh = tree is None
        delta, start = Delta(), tree.root.end if tree is not None else 0
        stop = start + most
        while offsets:
            if self._deleted:
                raise NoAnswer("its session was deleted")
            closed = view.closed(offsets.pop())
            delta.add(closed)
            end = closed.index.end
            if end - start >= _worth(tree) or not offsets or end >= stop or len(delta) >= _DELTA_ENTRIES:
                tree = self._commit(view, tree, delta, fresh)
                fresh, delta, start = False, Delta(), end
                if end >= stop or self._store.closing:
                    break
        return tree

    def _uncovered(self, view: Log, tree: Tree | None, durable: int) -> array[int] | None:
        """Offsets of the index frames to take in, newest first; None if the log does not lead to the tree's cover."""
        offsets = array("Q")
        newer: Summary = view.tail
        base = tree.root.at if tree is not None else 0
        while newer.previous > base:
            closed = view.before(newer)
            if closed.index.end <= durable:
                offsets.append(newer.previous)
            newer = closed
        if tree is not None:
            if newer.previous != base:
                return None
            closed = view.closed(base)
            if closed.index.end != newer.start or closed.index.checksum != tree.root.checksum:
                return None
        return offsets

    def _commit(self, view: Log, tree: Tree | None, delta: Delta, fresh: bool) -> Tree:
        """Store what ``tree`` becomes with ``delta``; ``fresh``: in place of any tree that may be there."""
        clear = fresh
        expected = tree.checksum if tree is not None else None

        def begin(changes: Changes) -> None:
            stored = changes.get(self._root_key)
            if clear:
                changes.remove(self._root_key)
                changes.remove_prefix(self._prefix)
            elif (checksum_of(stored) if stored is not None else None) != expected:
                raise NoAnswer("it was changed by somebody else")

        def put(blocks: dict[bytes, bytes]) -> None:
            nonlocal clear

            def change(changes: Changes) -> None:
                begin(changes)
                for key, block in blocks.items():
                    changes.put(key, block)

            self._write(change)
            clear = False

        root, blocks = Growth(tree, identity_of(view.header), self._prefix, delta, put).grown()
        blocks[self._root_key] = encode_block(self._root_key, encode_root(root))
        replaced = tree.root.replaced if tree is not None else ()

        def finish(changes: Changes) -> None:
            begin(changes)
            for number in replaced:
                changes.remove(block_key(self._prefix, number))
            for key, block in blocks.items():
                changes.put(key, block)

        self._write(finish)
        grown = self._tree(root, checksum_of(blocks[self._root_key]))
        self._looked = True
        self._learn(grown)
        return grown

    def _write(self, change: Callable[[Changes], None]) -> None:
        if not self._store.file.write(change, create=True):
            raise NoAnswer(self._store.file.trouble or "another process is writing to the index")


def _worth(tree: Tree | None) -> int:
    """Bytes of log that are worth a checkpoint: more for a large tree, of which it may have to rewrite every leaf."""
    return max(CHECKPOINT_BYTES, tree.root.size // 2) if tree is not None else CHECKPOINT_BYTES


def root_of(key: bytes, data: bytes | None) -> Root | None:
    raw = payload_of(key, data)
    if raw is None:
        return None
    try:
        return decode_root(raw)
    except BadBlock as error:
        _log.info("a tree is ignored: %s", error)
        return None


def payload_of(key: bytes, data: bytes | None) -> bytes | None:
    if data is None:
        return None
    try:
        return decode_block(key, data)
    except BadBlock as error:
        _log.info("an entry of the catalogue is ignored: %s", error)
        return None
