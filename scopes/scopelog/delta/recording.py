"""What was changed since the last flush: records in order, made ops when they are flushed.

Four rules keep a batch right, and small:

- A record names a container's view and a slot of it, not a path. Its path is worked out at the flush, from the views'
  parents; only what moves places of a list (a splice) fixes the paths of the records that stand before it.
- A slot has one record a window. Later changes of it join that record, wherever it stands: nothing recorded in
  between can depend on what the slot held.
- A container that came into the tree in this window is *fresh*: the record that brought it carries it by reference,
  and so all that happens in it. Changes of it, and below it, are not recorded.
- A record is dropped at the flush if its container has left the tree or was covered by a later record.

More than ``MAX_RECORDS`` records become one ``r``, and while an ``r`` is due nothing is recorded.
Source: Chord 0.87.1, ``track``; the order of ops is not Chord's in every case, which no reader may rely on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakValueDictionary

from . import utf16
from .overlap import overlap
from .textbuffer import TextBuffer
from .values import MISSING, plain

if TYPE_CHECKING:
    from .node import Node
    from .tracked_list import TrackedList

Op: TypeAlias = list[Any]
Path: TypeAlias = tuple[str | int, ...]

MAX_RECORDS: Final = 4094
"""With a root and one container that is 4,096 places, where Chord gives up listing changes."""

APPEND: Final = "append"
"""Only appended to: ``held`` is the text that was added in this window."""
TEXT: Final = "text"
"""A str in place of a str: ``held`` is what stood there when the window began."""
CUT: Final = "cut"
"""Only cut at the front and appended to: ``held`` is a :class:`Cut`."""
SET: Final = "set"
"""Anything else: what stands there at the flush counts."""


class Cut:
    """What became of a text in this window: of its ``size`` UTF-16 units some were dropped, others were added."""

    __slots__ = ("added", "dropped", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.dropped = 0
        self.added = TextBuffer()


class Change:
    """One slot, a dict's key or a list's index, that holds something else than when the window began."""

    __slots__ = ("done", "held", "key", "kind", "node", "path", "seq")

    def __init__(self, node: Node, key: Any, seq: int, kind: str, held: Any) -> None:
        self.node = node
        self.key = key
        self.seq = seq
        self.kind = kind
        self.held = held
        self.path: Path | None = None
        self.done: list[Op] | None = None

    def add(self, text: str) -> None:
        """Take note of text appended to the slot."""
        if self.kind is APPEND:
            if type(self.held) is str:
                self.held = TextBuffer(self.held)
            self.held.append(text)
        elif self.kind is CUT:
            self.held.added.append(text)

    def cut(self, before: str, units: int) -> None:
        """Take note of units dropped from the front of ``before``, which the slot holds and which has more of them."""
        if self.kind is APPEND:
            added = self._added()
            self.held = Cut(utf16.length(before) - utf16.length(added))
            self.held.added.append(added)
            self.kind = CUT
        if self.kind is CUT:
            self.held.dropped += units
            if self.held.dropped > self.held.size:  # into what was added
                self.replace()

    def anchor(self, before: str) -> None:
        """The slot, so far only appended to, is about to get another text than ``before``."""
        if self.kind is APPEND:
            added = self._added()
            self.held = utf16.take(before, utf16.length(before) - utf16.length(added))
            self.kind = TEXT
        elif self.kind is CUT:
            self.replace()

    def replace(self) -> None:
        """The slot is set to something that no text op describes."""
        self.kind = SET
        self.held = None

    def finish(self, scan: int) -> None:
        """The slot is about to move to another index: what it holds now is what this record tells."""
        if self.path is not None:
            self.done = self._ops(self.path, scan)

    def emit(self, path: Path, scan: int) -> list[Op]:
        """The ops, sharing nothing with the tree."""
        ops = self._ops(path, scan) if self.done is None else self.done
        for op in ops:
            if op[0] == "s":
                op[2] = plain(op[2])
        return ops

    def _added(self) -> str:
        held: str | TextBuffer = self.held
        return held if isinstance(held, str) else held.text()

    def _ops(self, path: Path, scan: int) -> list[Op]:
        where = [*path, self.key]
        if self.kind is APPEND:
            return [["a", where, self._added()]]
        if self.kind is CUT:
            added = self.held.added.text()
            return [["t", where, self.held.dropped], *([["a", list(where), added]] if added else [])]
        value = self.node.peek(self.key)
        if value is MISSING:
            return [["d", where]]
        if self.kind is TEXT:
            return text_ops(where, self.held, plain(value), scan)
        return [["s", where, value.text() if type(value) is TextBuffer else value]]


class Splice:
    """A run of a list that replaces ``removed`` elements at ``index``; while it is *open* it is what stands there."""

    __slots__ = ("added", "index", "items", "node", "path", "removed", "seq")

    def __init__(self, node: TrackedList, seq: int, index: int, removed: int, added: int) -> None:
        self.node = node
        self.seq = seq
        self.index = index
        self.removed = removed
        self.added = added
        self.items: list[Any] | None = None
        self.path: Path | None = None

    def close(self) -> None:
        """Another splice of the list follows: keep what the run holds, containers by reference."""
        run = self.node.peek_run(self.index, self.added)
        self.items = [item.text() if type(item) is TextBuffer else item for item in run]

    def emit(self, path: Path, _scan: int) -> list[Op]:
        """The op, sharing nothing with the tree; none if the run was cancelled out."""
        if not self.removed and not self.added:
            return []
        items = self.node.peek_run(self.index, self.added) if self.items is None else self.items
        return [["p", list(path), self.index, self.removed, plain(items)]]


class Recorder:
    """The window that is open, and the root it belongs to. Views call it before they change anything."""

    __slots__ = ("base", "fixed", "last", "records", "root", "scan", "seq", "shape", "start", "texted")

    root: Node

    def __init__(self, scan: int) -> None:
        self.scan = scan
        self.base = True
        """Whether the next flush is one ``r``."""
        self.seq = 0
        self.start = 0
        """``seq`` when the window began: what is fresh is later."""
        self.shape = 0
        """Grows with whatever moves or removes a container, or covers one: a path found under another is not good."""
        self.records: list[Change | Splice] = []
        self.fixed = 0
        """How many of the records have their path fixed."""
        self.last: Splice | None = None
        self.texted: WeakValueDictionary[int, Node] = WeakValueDictionary()
        """Views, by their id, whose container may hold text under construction."""

    def path_of(self, node: Node) -> Path | None:
        """Path of a container whose changes are to be recorded; None if it is fresh, covered or not in the tree."""
        return self._locate(node, self.start)

    def change(self, node: Node, key: Any, kind: str, held: Any) -> Change | None:
        """The slot's record of this window, a new one if there was none. None if nothing is to be recorded."""
        record = node.slots.get(key)
        if record is not None:
            return record
        if self.base or self.path_of(node) is None or node.is_carried(key):
            return None
        self.seq += 1
        record = node.slots[key] = Change(node, key, self.seq, kind, held)
        self.records.append(record)
        if len(self.records) > MAX_RECORDS:
            self.collapse()
            return None
        return record

    def splice(self, node: TrackedList, index: int, removed: int, added: int) -> None:
        """Record a splice that joins no other. Called before the list changes: paths found now are those before it."""
        for record in self.records[self.fixed :]:
            record.path = self._locate(record.node, record.seq)
        self.fixed = len(self.records)
        if node.open is not None:
            node.open.close()
        for change in node.slots.values():
            change.finish(self.scan)
        node.slots.clear()
        self.seq += 1
        self.last = node.open = Splice(node, self.seq, index, removed, added)
        self.records.append(self.last)
        if len(self.records) > MAX_RECORDS:
            self.collapse()

    def collapse(self) -> None:
        """The next flush is one ``r``: nothing else is left to tell."""
        self._forget()
        self.base = True

    def flush(self) -> list[Op]:
        """The window as ops, and a new window. If it raises (MemoryError), the window is still the old one."""
        ops: list[Op] = [["r", plain(self.root.data)]] if self.base else []
        for record in self.records:
            located = self._locate(record.node, record.seq)
            if located is not None:
                ops += record.emit(located if record.path is None else record.path, self.scan)
        self._forget()
        self.base = False
        return ops

    def discard(self) -> None:
        """A new window, the old one untold."""
        self._forget()

    def _forget(self) -> None:
        for record in self.records:
            record.node.slots.clear()
            record.node.open = None
        self.records = []
        self.fixed = 0
        self.last = None
        self.start = self.seq

    def _locate(self, node: Node, since: int) -> Path | None:
        """Path of a container; None if it is not in the tree, or it or one above it became fresh after ``since``.

        What is found for the window is kept with the view as long as the shape stays. It is then good for any record
        of the window too: whatever covers a container changes the shape.
        """
        if node.shape == self.shape:
            return node.path
        path: list[str | int] = []
        at = node
        while True:
            if at.fresh > since:
                return None
            parent = at.parent
            if parent is None:
                break
            if parent.stale:
                parent.renumber()
            path.append(at.key)
            at = parent
        if at is not self.root:
            return None
        path.reverse()
        found = tuple(path)
        if since == self.start:
            node.path, node.shape = found, self.shape
        return found


def text_ops(path: list[Any], before: str, after: str, scan: int) -> list[Op]:
    """Ops that make one text of another: an append, a cut at the front with or without one, or else a set."""
    if after == before:
        return []
    size = len(before)
    if after.startswith(before):
        return [["a", path, after[size:]]]
    if size <= len(after) and utf16.is_high(before[-1]) and after.startswith(before[:-1]):
        high, low = utf16.take(after[size - 1], 1), utf16.drop(after[size - 1], 1)
        if high == before[-1] and low:
            return [["a", path, low + after[size:]]]
    kept = overlap(before, after, scan)
    if not kept:
        return [["s", path, after]]
    ops: list[Op] = [["t", path, utf16.length(before) - kept]]
    rest = utf16.drop(after, kept)
    if rest:
        ops.append(["a", list(path), rest])
    return ops
