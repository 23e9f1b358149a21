"""Answers of one log: latest values, elements of lists, retirements. From its index frames, and from the index.

A question walks the stretches newest first, down to where the cover of a :class:`Tree` ends, if there is one
(:class:`Recent`). From there on the tree says where to look, and nothing it says is believed: the index frame that it
names must say the same. What it does not say is not there. Where it fails, the question is asked again without it, so
that answers and errors are those of a log without an index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from .errors import CorruptLog
from .header import Header
from .layout import MAX_SEQUENCE
from .lines import APPEND, DELETE, SET, VALUE, Address, Record
from .logindex import LogIndex
from .stretch import Closed, Span, Summary, ValueEntry
from .tree import NoAnswer, Tree

_ATTEMPTS: Final = 2  # with an index: the second time with the tree that has replaced the first
_PATIENCE: Final = 2  # closed stretches that are walked before the disk is asked for a tree
_AGAIN: Final = 64  # stretches that are walked before it is asked once more


class Answers(ABC):
    """The part of a :class:`LogView` that answers. ``index`` is None for a log that has none."""

    header: Header
    end: int
    index: LogIndex | None = None

    @property
    @abstractmethod
    def tail(self) -> Summary: ...

    @abstractmethod
    def closed(self, offset: int, before: int = 0) -> Closed: ...

    @abstractmethod
    def batches(self, summary: Summary, *, newest_first: bool = False) -> Iterator[list[Record]]: ...

    @abstractmethod
    def closed_part(self) -> Answers:
        """The closed stretches alone, as they are now."""

    @abstractmethod
    def hold(self) -> None:
        """Keep the file open until :meth:`let_go`. Raises :class:`ReadFailed`, :class:`HandleClosed`."""

    @abstractmethod
    def let_go(self) -> None: ...

    @abstractmethod
    def file_size(self) -> int: ...

    @abstractmethod
    def _decode(self, span: Span, numbers: dict[int, Address], chunk: bytes = b"", base: int = 0) -> list[Record]: ...

    @abstractmethod
    def _corrupt(self, offset: int, sequence: int, detail: str, reason: str) -> CorruptLog: ...

    # --- stretches ------------------------------------------------------------------------------

    def before(self, newer: Summary) -> Closed:
        """The stretch before, which must meet the newer one."""
        older = self.closed(newer.previous, newer.first - 1)
        if older.index.end != newer.start:
            detail = "its index frame does not meet the next stretch"
            raise self._corrupt(newer.previous, newer.first - 1, detail, "index")
        return older

    def _attempts(self) -> Iterator[Recent]:
        """Ways to answer a question, best first; the last one does without the index."""
        for _ in range(_ATTEMPTS if self.index is not None else 0):
            recent = Recent(self, self.index)
            yield recent
            if recent.damaged:
                break
        yield Recent(self, None)

    def _named(self, tree: Tree, offset: int) -> Closed:
        """The stretch that the tree names."""
        if offset > tree.root.at:
            raise NoAnswer("it names a stretch that it does not cover")
        return self.closed(offset)

    # --- values ---------------------------------------------------------------------------------

    def get(self, address: Address) -> Record | None:
        """The latest write of a value if it is no delete, else None."""
        for recent in self._attempts():
            try:
                for summary in recent:
                    if address in summary.values:
                        return self.get_in(summary, address)
                return None if recent.tree is None else self._covered_value(recent.tree, address)
            except (NoAnswer, CorruptLog) as error:
                recent.excuse(error)
        raise AssertionError("unreachable")

    def get_in(self, summary: Summary, address: Address) -> Record | None:
        """Of a stretch that writes the value: its last write there if it is no delete, else None."""
        entry = summary.values[address]
        record = self._value(summary.spans[entry.frame], summary, address, entry.sequence)
        return None if record.code == DELETE else record

    def _value(self, span: Span, summary: Summary, address: Address, sequence: int) -> Record:
        for record in self._decode(span, dict(summary.numbers)):
            if record.sequence == sequence and record.address == address and record.code in (SET, DELETE):
                return record
        detail = "the value its index frame speaks of is not there"
        raise self._corrupt(span.offset, sequence - 1, detail, "content")

    def _covered_value(self, tree: Tree, address: Address) -> Record | None:
        found = tree.value(address)
        if found is None:
            return None
        closed = self._named(tree, found.at)
        _agree(closed.values.get(address), found.sequence)
        return self.get_in(closed, address)

    def scan(self, namespace: str, prefix: str) -> list[Record]:
        """Living values of a namespace whose keys start with ``prefix``, by code point order of their keys."""
        for recent in self._attempts():
            found: dict[str, Record] = {}
            try:
                for summary in recent:
                    wanted = [
                        a for a in summary.values if a[0] == namespace and a[1].startswith(prefix) and a[1] not in found
                    ]
                    self._take_values(summary, wanted, found)
                if recent.tree is not None:
                    self._take_covered(recent.tree, namespace, prefix, found)
            except (NoAnswer, CorruptLog) as error:
                recent.excuse(error)
                continue
            return [found[key] for key in sorted(found) if found[key].code != DELETE]
        raise AssertionError("unreachable")

    def _take_values(self, summary: Summary, addresses: Iterable[Address], found: dict[str, Record]) -> None:
        """Add the last writes of some values of a stretch, frame by frame."""
        wanted: dict[int, dict[int, str]] = {}  # frame number: sequence: key
        for address in addresses:
            entry = summary.values[address]
            wanted.setdefault(entry.frame, {})[entry.sequence] = address.key
        for frame, keys in wanted.items():
            for record in self._decode(summary.spans[frame], dict(summary.numbers)):
                if keys.get(record.sequence) is not None:
                    found[keys.pop(record.sequence)] = record
            if keys:
                detail = "the values its index frame speaks of are not there"
                raise self._corrupt(summary.spans[frame].offset, min(keys) - 1, detail, "content")

    def _take_covered(self, tree: Tree, namespace: str, prefix: str, found: dict[str, Record]) -> None:
        stretches: dict[int, list[Address]] = {}
        sequences: dict[Address, int] = {}
        for entry in tree.values(namespace, prefix):
            if entry.key not in found:
                address = Address(namespace, entry.key, VALUE)
                stretches.setdefault(entry.at, []).append(address)
                sequences[address] = entry.sequence
        for offset, addresses in stretches.items():
            closed = self._named(tree, offset)
            for address in addresses:
                _agree(closed.values.get(address), sequences[address])
            self._take_values(closed, addresses, found)

    # --- retirements ----------------------------------------------------------------------------

    def retired_since(self, sequence: int, scopes: Collection[str] | None = None) -> dict[str, int]:
        """Latest retirement of every scope (of ``scopes`` alone, if given) retired after ``sequence``."""
        for recent in self._attempts():
            latest: dict[str, int] = {}
            try:
                for summary in recent:
                    for scope, boundary in summary.retired.items():
                        if boundary > latest.get(scope, sequence) and (scopes is None or scope in scopes):
                            latest[scope] = boundary
                    if 0 < summary.first <= sequence:
                        break
                else:
                    if recent.tree is not None:
                        latest = self._covered_retired(recent.tree, sequence, scopes) | latest
            except (NoAnswer, CorruptLog) as error:
                recent.excuse(error)
                continue
            return latest
        raise AssertionError("unreachable")

    def _covered_retired(self, tree: Tree, sequence: int, scopes: Collection[str] | None) -> dict[str, int]:
        latest = {entry.scope: entry for entry in tree.retired(sequence) if scopes is None or entry.scope in scopes}
        for entry in latest.values():
            if self._named(tree, entry.at).retired.get(entry.scope) != entry.sequence:
                raise NoAnswer("the log does not retire what the index says")
        return {scope: entry.sequence for scope, entry in latest.items()}

    # --- lists ----------------------------------------------------------------------------------

    def lists(self, namespace: str, prefix: str) -> set[str]:
        """Keys of the namespace's lists that hold elements and whose keys start with ``prefix``.

        Walks every stretch, without the index: for the logs of ephemeral scopes.
        """
        floors: dict[str, int] = {}
        living: set[str] = set()
        for summary in Recent(self, None):
            for (space, key, _), entry in summary.lists.items():
                if space == namespace and key.startswith(prefix):
                    floor = floors[key] = max(floors.get(key, 0), entry.floor)
                    if entry.count and entry.last > floor:
                        living.add(key)
        return living

    def elements(
        self, address: Address, *, above: int = 0, below: int = MAX_SEQUENCE + 1, descending: bool = False
    ) -> Iterator[Record]:
        """Living elements of a list with ``above < sequence < below``, in order."""
        for recent in self._attempts():
            try:
                for record in self._elements(recent, address, above, below, descending):
                    if descending:  # where to go on, should the index fail
                        below = record.sequence
                    else:
                        above = record.sequence
                    yield record
            except (NoAnswer, CorruptLog) as error:
                recent.excuse(error)
            else:
                return

    def _elements(self, recent: Recent, address: Address, above: int, below: int, descending: bool) -> Iterator[Record]:
        floor = above
        wanted: list[int] = []  # offsets of index frames; 0 stands for the open stretch
        for summary in recent:
            entry = summary.lists.get(address)
            if entry is not None:
                floor = max(floor, entry.floor)
                if entry.count and entry.last > floor and entry.first < below:
                    if descending:
                        yield from self._in_stretch(summary, address, floor, below, True)
                    else:
                        wanted.append(summary.index.offset if isinstance(summary, Closed) else 0)
            if 0 < summary.first <= floor:
                break
        else:
            for closed, least in self._covered_stretches(recent, address, floor, below, descending):
                yield from self._in_stretch(closed, address, least, below, descending)
        for offset in reversed(wanted):
            yield from self._in_stretch(self.closed(offset) if offset else self.tail, address, floor, below, False)

    def _covered_stretches(
        self, recent: Recent, address: Address, floor: int, below: int, descending: bool
    ) -> Iterator[tuple[Closed, int]]:
        """Stretches that hold elements of the list, and the floor that holds for them."""
        tree = recent.tree
        found = tree.list_of(address) if tree is not None else None
        if tree is None or found is None:
            return
        floor = max(floor, found.floor)
        for run in tree.runs(found, floor, below, descending=descending):
            if run.at > recent.reached:
                continue
            closed = self.closed(run.at)
            entry = closed.lists.get(address)
            if entry is None or (entry.count, entry.first, entry.last) != run[1:] or entry.floor > found.floor:
                raise NoAnswer("the log does not say of a list what the index says")
            yield closed, floor

    def _in_stretch(
        self, summary: Summary, address: Address, floor: int, below: int, newest_first: bool
    ) -> Iterator[Record]:
        for batch in self.batches(summary, newest_first=newest_first):
            for record in reversed(batch) if newest_first else batch:
                if record.address == address and record.code == APPEND and floor < record.sequence < below:
                    yield record


class Recent:
    """The stretches of a log newest first, down to where the cover of ``tree`` ends; down to its beginning if that
    is None, which is only known once they were walked."""

    def __init__(self, view: Answers, index: LogIndex | None) -> None:
        self._view = view
        self._index = index
        self._walked: list[int] = []  # offsets of index frames
        self.tree: Tree | None = None
        self.reached = 0
        """Offset of the newest index frame that was not walked: of what the tree covers, all up to there is its."""
        self.damaged = False
        """Whether the log itself was found to be damaged: then no other tree will help."""

    def __iter__(self) -> Iterator[Summary]:
        view, index = self._view, self._index
        summary = view.tail
        yield summary
        walked = self._walked
        tree = index.tree(view) if index is not None and index.known else None
        while summary.previous:
            if index is not None and tree is None and (len(walked) == _PATIENCE or len(walked) % _AGAIN == _AGAIN - 1):
                tree = index.tree(view, look=len(walked) > _PATIENCE)
            if index is not None and tree is not None and summary.previous <= tree.root.at:
                if self._leads_to(summary, tree):
                    self.tree, self.reached = tree, summary.previous
                    return
                index.refuse(tree, "the log does not lead to what it covers")
                index = tree = None
            walked.append(summary.previous)
            summary = view.before(summary)
            yield summary

    def _leads_to(self, summary: Summary, tree: Tree) -> bool:
        root = tree.root
        if root.at == summary.previous:
            frame = self._view.before(summary).index
        elif root.at in self._walked:
            frame = self._view.closed(root.at).index
        else:
            return False
        return frame.end == root.end and frame.checksum == root.checksum

    def excuse(self, error: NoAnswer | CorruptLog) -> None:
        """Raise the error unless it came of the index; then do without the tree that it was due to."""
        if self.tree is None or self._index is None:
            raise error
        if isinstance(error, CorruptLog):
            self.damaged = True
        else:
            self._index.refuse(self.tree, str(error))


def _agree(entry: ValueEntry | None, sequence: int) -> None:
    if entry is None or entry.sequence != sequence or entry.deleted:
        raise NoAnswer("the log does not say of a value what the index says")
