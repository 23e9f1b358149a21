"""A view of a list of a tracked tree."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import Any, SupportsIndex, overload

from .errors import InvalidOp
from .node import VIEWS, Node, assign, bare
from .values import CONTAINERS, copied, plain, same, settle


class TrackedList(Node, MutableSequence[Any]):
    """A list of a tracked tree: reads and writes like one, and what is written is recorded.

    All that is said of :class:`TrackedDict` holds. Negative indices count from the end, and IndexError is raised
    where a list raises it; ops carry the index meant. A view of an element keeps to the element when others are
    inserted or removed before it. Sorting and reversing send the whole list. Slices read are plain lists of what
    reading the elements gives.
    """

    __slots__ = ()

    data: list[Any]

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.read(at, self.data[at]) for at in range(*index.indices(len(self.data)))]
        at = index if type(index) is int and 0 <= index < len(self.data) else self._place(index)
        value = self.data[at]
        kid = self.kids.get(id(value))
        return self.read(at, value) if kid is None else kid

    @overload
    def __setitem__(self, index: SupportsIndex, value: Any) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Iterable[Any]) -> None: ...
    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            self._set_slice(index, self._all_copied(value))
            return
        at = self.place(index)
        if isinstance(value, Node) and value is self.kids.get(id(self.data[at])):
            return  # rows[0] += [...] ends like this
        assign(self, at, copied(value, self.depth))

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        self.guard()
        if not isinstance(index, slice):
            self.splice(self.place(index), 1, [])
            return
        places = range(*index.indices(len(self.data)))
        if places.step == 1:
            self.splice(places.start, len(places), [])
            return
        for at in sorted(places, reverse=True):
            self.splice(at, 1, [])

    def __contains__(self, value: object) -> bool:
        return bare(value) in settle(self.data)

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        end = len(self.data) if stop is None else stop
        found: int = settle(self.data).index(bare(value), start, end)
        return found

    def count(self, value: Any) -> int:
        times: int = settle(self.data).count(bare(value))
        return times

    def __iter__(self) -> Iterator[Any]:
        at = 0
        while at < len(self.data):
            yield self.read(at, self.data[at])
            at += 1

    def __add__(self, other: Any) -> list[Any]:
        """A plain list."""
        return [*plain(self.data), *plain(bare(other))]

    def __mul__(self, times: SupportsIndex) -> list[Any]:
        """A plain list."""
        return [plain(item) for item in self.data * operator.index(times)]

    __rmul__ = __mul__

    def __imul__(self, times: SupportsIndex) -> TrackedList:
        count = operator.index(times)
        if count <= 0:
            self.clear()
        else:
            self.guard()
            self.splice(len(self.data), 0, [plain(item) for item in self.data * (count - 1)])
        return self

    def append(self, value: Any) -> None:
        self.guard()
        self.splice(len(self.data), 0, [copied(value, self.depth)])

    def extend(self, values: Iterable[Any]) -> None:
        """As list's, but all of it or, if something is refused, nothing."""
        self.guard()
        items = self._all_copied(values)
        self.splice(len(self.data), 0, items)

    def insert(self, index: SupportsIndex, value: Any) -> None:
        self.guard()
        item = copied(value, self.depth)
        start, _, _ = slice(_integer(index), None).indices(len(self.data))
        self.splice(start, 0, [item])

    def pop(self, index: SupportsIndex = -1) -> Any:
        if not self.data:
            raise IndexError("pop from empty list")
        self.guard()
        at = self.place(index)
        value = self.read(at, self.data[at])
        self.splice(at, 1, [])
        return value

    def clear(self) -> None:
        self.guard()
        self.splice(0, len(self.data), [])

    def reverse(self) -> None:
        self.guard()
        self._reorder(range(len(self.data) - 1, -1, -1))

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        """As list's. If comparing raises, nothing has changed."""
        self.guard()
        by = settle(self.data) if key is None else [key(item) for item in self]
        order = sorted(range(len(by)), key=by.__getitem__, reverse=reverse)
        if len(by) != len(self.data):
            raise ValueError("list modified during sort")
        self._reorder(order)

    # For the modules of this package.

    def peek(self, key: Any) -> Any:
        return self.data[key]

    def peek_run(self, index: int, count: int) -> list[Any]:
        """Part of the container as it is."""
        return self.data[index : index + count]

    def place(self, key: Any) -> Any:
        self.guard()
        return self._place(key)

    def renumber(self) -> None:
        for at, item in enumerate(self.data):
            if type(item) in CONTAINERS:
                kid = self.kids.get(id(item))
                if kid is not None:
                    kid.key = at
        self.stale = False

    def steps_to(self, value: list[Any]) -> list[tuple[Node, Any, Any]]:
        old = settle(self.data)
        before, after = len(old), len(value)
        common = min(before, after)
        if before == after:
            return [(self, at, item) for at, item in enumerate(value)]
        head = 0
        while head < common and same(old[head], value[head]):
            head += 1
        tail = 0
        while tail < common - head and same(old[before - 1 - tail], value[after - 1 - tail]):
            tail += 1
        if head + tail == common:
            return [(self, None, (head, before - head - tail, value[head : after - tail]))]
        steps: list[tuple[Node, Any, Any]] = [(self, at, value[at]) for at in range(common)]
        return [*steps, (self, None, (common, before - common, value[common:]))]

    def splice(self, index: int, count: int, items: list[Any]) -> None:
        if not count and not items:
            return
        data, log = self.data, self.log
        covers = False
        if not log.base and log.path_of(self) is not None and not self._joins(index, count, len(items)):
            covers = 0 < count == len(data)
            if not covers:
                log.splice(self, index, count, len(items))
        for at, item in enumerate(data[index : index + count], index):
            self.release(at, item)
        data[index : index + count] = items
        if len(items) != count and index + len(items) < len(data):
            self.stale = True
        for at, item in enumerate(items, index):
            self.bring(at, item)
        log.shape += 1
        if covers:
            self.cover()

    def _place(self, key: Any) -> int:
        at = _integer(key)
        size = len(self.data)
        if not -size <= at < size:
            raise IndexError("list index out of range")
        return at + size if at < 0 else at

    def _joins(self, index: int, count: int, added: int) -> bool:
        """Whether the splice becomes part of the one that is open.

        It may if no path recorded since then goes through an index that would be another: if the run reaches to the
        end and the splice stays within it, or if no other splice was recorded and no slot of this list.
        """
        run = self.open
        if run is None:
            return False
        end = run.index + run.added
        if run.index <= index and index + count <= end and end == len(self.data):
            run.added += added - count
            return True
        if self.log.last is not run or self.slots or index > end or index + count < run.index:
            return False
        before = max(0, run.index - index)
        behind = max(0, index + count - end)
        run.index -= before
        run.removed += before + behind
        run.added += before + behind + added - count
        return True

    def _reorder(self, order: Iterable[int]) -> None:
        self.data[:] = [self.data[at] for at in order]
        self.stale = True
        self.log.shape += 1
        self.cover()

    def _set_slice(self, index: slice, items: list[Any]) -> None:
        self.guard()
        places = range(*index.indices(len(self.data)))
        if places.step == 1:
            self.splice(places.start, len(places), items)
            return
        if len(places) != len(items):
            raise ValueError(f"attempt to assign sequence of size {len(items)} to extended slice of size {len(places)}")
        for at, item in zip(places, items, strict=True):
            assign(self, at, item)

    def _all_copied(self, values: Iterable[Any]) -> list[Any]:
        return [copied(value, self.depth) for value in list(values)]


def _integer(index: Any) -> int:
    if isinstance(index, bool):
        raise InvalidOp("a list index is a bool, not an int", "use an int")
    return operator.index(index)


VIEWS[list] = TrackedList
