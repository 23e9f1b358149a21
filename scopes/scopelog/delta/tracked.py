"""Views of the containers of a tracked tree, with the interface of dict and list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from .node import VIEWS, Node, assign
from .recording import SET
from .tracked_list import TrackedList
from .values import MISSING, copied, key_of, refuse_reserved

__all__ = ["TrackedDict", "TrackedList"]


class TrackedDict(Node, MutableMapping[str, Any]):
    """A dict of a tracked tree: reads and writes like one, and what is written is recorded.

    Reading gives views of dicts and lists and plain values of the rest. Writing copies: a view that is assigned
    stands for the value it has then, and later changes of it are seen at its own place only. A dict assigned over a
    dict, or a list over a list, changes only what differs; views of what stays remain good. A view of what was
    removed can be used on, and nobody hears of it. :meth:`copy` gives the plain value.

    Refused before anything changes: keys that are no str (:class:`InvalidOp`) or reserved
    (:class:`UnsafePathError`), values that are not JSON (``InvalidElement``), nesting over 256 (``LimitExceeded``).
    """

    __slots__ = ()

    data: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        kid = self.kids.get(key)
        if kid is not None:
            return kid
        return self.read(key, self.data[key])

    def __setitem__(self, key: str, value: Any) -> None:
        self._check(key)
        if isinstance(value, Node) and value is self.kids.get(key):
            return  # state["list"] += [...] ends like this
        assign(self, key, copied(value, self.depth))

    def __delitem__(self, key: str) -> None:
        if key not in self.data:
            raise KeyError(key)
        self._check(key)
        self.remove_key(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __contains__(self, key: object) -> bool:
        return key in self.data

    def __reversed__(self) -> Iterator[str]:
        return reversed(self.data)

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        """A plain dict."""
        if not isinstance(other, Mapping):
            return NotImplemented
        return {**self.copy(), **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(other, Mapping):
            return NotImplemented
        return {**other, **self.copy()}

    def __ior__(self, other: Any) -> TrackedDict:  # type: ignore[misc]
        self.update(other)
        return self

    def update(self, other: Any = (), /, **more: Any) -> None:
        """As dict's, but all of it or, if something is refused, nothing."""
        news: dict[str, Any] = dict(other, **more)
        for key in news:
            self._check(key)
        news = {key: copied(value, self.depth) for key, value in news.items()}
        for key, value in news.items():
            assign(self, key, value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self.data:
            self[key] = default
        return self[key]

    def popitem(self) -> tuple[str, Any]:
        """The last key and its value, which are removed. Raises KeyError if there is none."""
        if not self.data:
            raise KeyError("popitem(): dictionary is empty")
        key = next(reversed(self.data))
        return key, self.pop(key)

    def clear(self) -> None:
        for key in self.data:
            self._check(key)
        for key in list(self.data):
            self.remove_key(key)

    @classmethod
    def fromkeys(cls, keys: Iterable[str], value: Any = None) -> dict[str, Any]:
        """A plain dict."""
        return dict.fromkeys(keys, value)

    # For the modules of this package.

    def peek(self, key: Any) -> Any:
        return self.data.get(key, MISSING)

    def kid_id(self, key: Any, data: Any) -> Any:  # noqa: ARG002
        return key

    def place(self, key: Any) -> Any:
        if self.unsafe is not None or key not in self.data:
            self.guard()
            raise KeyError(key)
        refuse_reserved(key)
        return key

    def steps_to(self, value: dict[str, Any]) -> list[tuple[Node, Any, Any]]:
        steps: list[tuple[Node, Any, Any]] = [(self, key, item) for key, item in value.items()]
        return steps + [(self, key, MISSING) for key in self.data if key not in value]

    def remove_key(self, key: str) -> None:
        record = self.log.change(self, key, SET, None)
        if record is not None:
            record.replace()
        self.release(key, self.data[key])
        del self.data[key]

    def _check(self, key: Any) -> None:
        """Refuse a key that cannot be written."""
        refuse_reserved(key_of(key))
        self.guard()


VIEWS[dict] = TrackedDict
