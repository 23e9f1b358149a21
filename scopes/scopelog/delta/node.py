"""A view of one container of a tracked tree: what dicts and lists have in common."""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeAlias

from . import utf16
from .errors import InvalidOp
from .recording import APPEND, CUT, SET, TEXT, Change, Cut, Path, Recorder, Splice
from .textbuffer import TextBuffer
from .values import CONTAINERS, MISSING, RESERVED, holds_reserved, plain, refuse_reserved, same, settle

VIEWS: Final[dict[type, type[Node]]] = {}
"""Which view stands for which container; filled by the two modules that define them."""


class Node:
    """Names without an underscore are for the modules of this package: a user sees a mapping or a sequence.

    Every container of the tree has one view at most, made when it is first read or when it comes in. The view holds
    the container (``data``), its parent's view and its place there; the parent holds it in ``kids``. A view whose
    container was removed has no parent, and nothing that is done to it is recorded.
    """

    __slots__ = (
        "__weakref__", "data", "depth", "fresh", "key", "kids", "log", "open", "parent", "path", "shape", "slots",
        "stale", "unsafe",
    )  # fmt: skip
    _tracks: ClassVar = True

    def __init__(self, log: Recorder, parent: Node | None, key: Any, data: Any, fresh: int = 0) -> None:
        self.log = log
        self.parent = parent
        self.key = key
        self.data = data
        self.fresh = fresh
        """The recorder's ``seq`` when the container came into the tree or was covered."""
        self.kids: dict[Any, Node] = {}
        self.slots: dict[Any, Change] = {}
        self.open: Splice | None = None
        self.stale = False
        """Whether the kids' keys have to be found again (lists)."""
        self.path: Path | None = None
        self.shape = -1
        self.depth: int = 1 if parent is None else parent.depth + 1
        self.unsafe: str | None = None
        if parent is not None:
            self.unsafe = key if type(key) is str and key in RESERVED else parent.unsafe

    # What the two kinds of container do differently.

    def peek(self, key: Any) -> Any:
        """What stands in the container, without a view of it; MISSING if nothing does."""
        raise NotImplementedError

    def kid_id(self, key: Any, data: Any) -> Any:  # noqa: ARG002
        """Under what ``kids`` holds the view of a container that stands at ``key``: here, of a list, its identity.

        The view holds its container, so that no other has this id while the view is among the kids.
        """
        return id(data)

    def place(self, key: Any) -> Any:
        """A key as a user gives it, checked, as a path segment. Raises what reading there would."""
        raise NotImplementedError

    def steps_to(self, value: Any) -> list[tuple[Node, Any, Any]]:
        """What makes this container's value another one of its kind, in order."""
        raise NotImplementedError

    def is_carried(self, key: Any) -> bool:
        """Whether an open splice, which only a list has, carries the slot."""
        run = self.open
        return run is not None and run.index <= key < run.index + run.added

    def remove_key(self, key: str) -> None:
        """Remove a key of a dict."""
        raise NotImplementedError

    def splice(self, index: int, count: int, items: list[Any]) -> None:
        """Replace a run of a list by owned plain values."""
        raise NotImplementedError

    def renumber(self) -> None:
        """Find the kids' keys again."""
        raise NotImplementedError

    # What they have in common.

    def append_text(self, key: Any, text: str) -> None:
        """``self[key] += text`` in time and memory that grow with ``text``, not with what is there.

        Raises KeyError or IndexError if nothing is there, :class:`InvalidOp` (a TypeError) if either is no str,
        :class:`UnsafePathError` below a reserved name.
        """
        key = self.place(key)
        value = self.data[key]
        kind = type(value)
        if type(text) is not str or (kind is not TextBuffer and kind is not str):
            kinds = f"a {type(text).__name__} cannot be appended to a {'str' if kind is TextBuffer else kind.__name__}"
            raise InvalidOp(kinds, "append str to str")
        if not text:
            return
        if not text.isascii():
            text = utf16.rejoined(text)
        record = self.slots.get(key)
        if record is not None:
            record.add(text)
        else:
            self.log.change(self, key, APPEND, text)
        if kind is str:
            self.data[key] = value = TextBuffer(value)
            self.log.texted[id(self)] = self
        value.append(text)

    def drop_text(self, key: Any, units: int) -> None:
        """Drop ``units`` UTF-16 units from the front of the string at ``key``; fewer empty it. Costs a copy of it.

        Raises as :meth:`append_text`; :class:`InvalidOp` if ``units`` is no int from 0 on.
        """
        key = self.place(key)
        value = self.read(key, self.data[key])
        if type(value) is not str or type(units) is not int or units < 0:
            kinds = f"{type(units).__name__} units cannot be dropped from a {type(value).__name__}"
            raise InvalidOp(kinds, "drop 0 or more units from a str")
        units = min(units, utf16.length(value))
        if not units:
            return
        record = self.slots.get(key)
        if record is None:
            record = self.log.change(self, key, CUT, Cut(utf16.length(value)))
        if record is not None:
            record.cut(value, units)
        self.data[key] = utf16.drop(value, units)

    def guard(self) -> None:
        """Raise :class:`UnsafePathError` if the way here leads through a reserved name."""
        if self.unsafe is not None:
            refuse_reserved(self.unsafe)

    def read(self, key: Any, value: Any) -> Any:
        """What a user sees of ``value``, which stands at ``key``: a view, a str, or the value itself."""
        if type(value) is TextBuffer:
            value = self.data[key] = value.text()
        elif type(value) in CONTAINERS:
            return self.kid(key, value)
        return value

    def kid(self, key: Any, data: Any) -> Node:
        """The view of the container that stands at ``key``."""
        name = self.kid_id(key, data)
        kid = self.kids.get(name)
        if kid is None:
            kid = self.kids[name] = VIEWS[type(data)](self.log, self, key, data)
        return kid

    def bring(self, key: Any, value: Any) -> None:
        """A value has come in at ``key``: if it is a container, it is fresh."""
        if type(value) in CONTAINERS:
            self.kids[self.kid_id(key, value)] = VIEWS[type(value)](self.log, self, key, value, self.log.seq)

    def release(self, key: Any, value: Any) -> None:
        """What stands at ``key`` is about to leave the tree: its view, if there is one, is on its own from now on."""
        if type(value) in CONTAINERS:
            kid = self.kids.pop(self.kid_id(key, value), None)
            if kid is not None:
                kid.parent = None
                self.log.shape += 1

    def store(self, key: Any, old: Any, value: Any) -> None:
        """Put an owned value in the place of ``old``, neither of which is to be merged with the other."""
        if type(old) is str and type(value) is str:
            if old == value:
                return
            record = self.slots.get(key)
            if record is None:
                self.log.change(self, key, TEXT, old)
            else:
                record.anchor(old)
        else:
            if type(value) not in CONTAINERS and same(old, value):
                return
            record = self.log.change(self, key, SET, None)
            if record is not None:
                record.replace()
        self.release(key, old)
        self.data[key] = value
        self.bring(key, value)

    def cover(self) -> None:
        """The container was set anew as a whole: one record carries all of it."""
        log = self.log
        if log.base or log.path_of(self) is None:
            return
        if self.parent is None:
            log.collapse()
            return
        record = log.change(self.parent, self.key, SET, None)
        if record is not None:
            record.replace()
            self.fresh = record.seq
            self.slots.clear()  # of another order; their records are covered
        log.shape += 1

    def copy(self) -> Any:
        """The plain value, a deep copy."""
        return plain(self.data)

    def __copy__(self) -> Any:
        return plain(self.data)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return plain(self.data)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self.data), (plain(self.data),)

    def __len__(self) -> int:
        return len(self.data)

    def __eq__(self, other: object) -> bool:
        return bool(settle(self.data) == bare(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({settle(self.data)!r})"


def bare(value: Any) -> Any:
    """The container that a view stands for, its text settled; any other value itself."""
    return settle(value.data) if isinstance(value, Node) else value


Step: TypeAlias = tuple[Node, Any, Any]
"""A container, a key and an owned value: assign it there, or remove what is there if it is MISSING. Without a key:
splice the list, the value being index, count and items."""


def assign(node: Node, key: Any, value: Any) -> None:
    """Put an owned plain value at ``key``. Where it and what is there are both dicts or both lists, only what differs
    is changed, and views of what stays remain good."""
    todo: list[Step] = [(node, key, value)]
    while todo:
        node, key, value = todo.pop()
        if key is None:
            node.splice(*value)
            continue
        if value is MISSING:
            node.remove_key(key)
            continue
        old = node.peek(key)
        kind = type(value)
        if kind is type(old) and (kind is list or (kind is dict and not holds_reserved(old, value))):
            todo += reversed(node.kid(key, old).steps_to(value))
        else:
            node.store(key, old.text() if type(old) is TextBuffer else old, value)
