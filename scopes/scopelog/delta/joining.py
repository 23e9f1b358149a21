"""A coalescer for lists of encoded op batches: many small batches of one stream become one.

The run is taken from the middle of a stream, so ids that were defined before it stand for paths unknown here. That is
enough: an id and a path are compared only where the run itself says what the id means, and every op that is written
keeps the very reference it came with, or one that the run defines right before it. Definitions keep their order, so
that a decoder ends with the ids it would have had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from scopelog_engine.elements import Json

from . import utf16
from .errors import InvalidOp, PathError, UnsafePathError
from .ops import REMEDY, ROOTLESS, SHORT_LENGTH, WireOp, check_batch, check_wire_op

JOINED_CHARS: Final = 1 << 20
"""Characters of text, about, that a joined batch does not grow beyond; a batch that is larger by itself stays so."""

_ALL: Final = (1 << 53) - 1  # a count that leaves nothing of any string
_NODE_CHARS: Final = 8  # what a value takes beside its characters, about

_Place: TypeAlias = "tuple[Any, ...] | object"  # a path, or a token for what an id defined before the run means


def join_batches(batches: Sequence[Json]) -> list[tuple[Json, int]]:
    """Join a run of adjacent wire batches of one encoder: pairs of (batch, how many originals it stands for).

    A decoder that could have decoded the run decodes the result, ends with the same ids, and its ops have the same
    effect. Adjacent ops on one path are joined where they are appends, two cuts, an append to a string just set, or
    a set after a set, append or cut; what precedes an ``r`` is dropped. Nothing else changes place.

    A run that holds anything but well-formed batches comes back as it is. Linear in the run. Payloads and paths are
    shared with the originals, which are not changed.
    """
    if len(batches) < 2:
        return [(batch, 1) for batch in batches]
    join = _Join()
    try:
        for batch in batches:
            join.add(batch)
    except (InvalidOp, UnsafePathError, PathError):
        return [(batch, 1) for batch in batches]
    return join.finished()


class _Item:
    """An op of the result, with the definitions that come right before it."""

    __slots__ = ("chars", "definitions", "parts", "payload", "place", "ref", "verb")

    def __init__(self, verb: str, place: _Place | None, ref: Any, payload: list[Any], chars: int) -> None:
        self.verb = verb
        self.place = place  # None for r
        self.ref = ref  # how the op may name its path at this point of the stream; None if only by leaving it out
        self.payload = payload
        self.parts: list[str] | None = None  # a text payload in pieces, once something was joined to it
        self.chars = chars
        self.definitions: list[WireOp] = []

    def takes(self, verb: str, payload: list[Any]) -> bool:
        """Join a later op on the same path; False if it has to stay an op of its own."""
        if verb == "s" and self.verb in "sat":
            self.verb = "s"
            self.payload = payload
            self.parts = None
        elif verb == "a" and (self.verb == "a" or (self.verb == "s" and type(self.payload[0]) is str)):
            if self.parts is None:
                self.parts = [self.payload[0]]
            _add_text(self.parts, payload[0])
        elif verb == "t" and self.verb == "t":
            self.payload = [min(int(self.payload[0]) + int(payload[0]), _ALL)]
        else:
            return False
        return True

    def wire(self, short: bool) -> WireOp:
        payload = self.payload if self.parts is None else ["".join(self.parts)]
        if short or self.place is None:
            return [self.verb, *payload]
        return [self.verb, self.ref, *payload]


class _Join:
    """The run as far as it was read, as a symbolic decoder sees it."""

    def __init__(self) -> None:
        self._done: list[tuple[Json, int]] = []
        self._items: list[_Item] = []  # of the batch that grows
        self._definitions: list[WireOp] = []  # since its last item
        self._chars = 0
        self._count = 0  # originals in it
        self._places: dict[tuple[Any, ...], _Place] = {}  # one object for each path, so that `is` compares them
        self._ids: dict[int, _Place] = {}
        self._from_base = False  # an id that the run did not define is an error

    def add(self, batch: Json) -> None:
        """Read the next original."""
        if type(batch) is list and len(batch) == 1 and self._extends(batch[0]):
            return
        check_batch(batch)
        ops = _checked(batch)
        chars = [size_of(op) for op in ops]
        if self._count and self._chars + sum(chars) > JOINED_CHARS:
            self._close()
        self._count += 1
        previous: _Place | None = None
        for op, weight in zip(ops, chars, strict=True):
            verb = op[0]
            if verb == "#":
                self._ids[op[1]] = self._path_place(op[2])
                self._definitions.append(op)
                self._chars += weight
            elif verb == "r":
                self._restart(_Item("r", None, None, op[1:], weight))
                previous = None
            elif len(op) == SHORT_LENGTH[verb]:
                if previous is None:
                    raise PathError("an op leaves its path out and none came before it", REMEDY)
                self._op(verb, previous, None, op[1:], weight)
            else:
                ref = op[1]
                previous = self._path_place(ref) if type(ref) is list else self._id_place(ref)
                self._op(verb, previous, ref, op[2:], weight)

    def _extends(self, op: WireOp) -> bool:
        """Take an append by id to what the last one appended to, which is what most batches of a stream are."""
        last = self._items[-1] if self._items and not self._definitions else None
        if last is None or last.verb != "a" or type(last.ref) is not int or type(op) is not list or len(op) != 3:
            return False
        verb, ref, text = op
        if verb != "a" or type(ref) is not int or type(text) is not str or self._ids.get(ref) is not last.place:
            return False
        chars = len(text) + _NODE_CHARS
        if self._chars + chars > JOINED_CHARS:
            return False
        if last.parts is None:
            last.parts = [last.payload[0]]
        _add_text(last.parts, text)
        last.chars += chars
        self._chars += chars
        self._count += 1
        return True

    def finished(self) -> list[tuple[Json, int]]:
        self._close()
        return self._done

    def _op(self, verb: str, place: _Place, ref: Any, payload: list[Any], chars: int) -> None:
        if verb in ROOTLESS and place == ():
            raise PathError("an op has an empty path", REMEDY)
        last = self._items[-1] if self._items else None
        if last is None or last.place is not place or not last.takes(verb, payload):
            item = _Item(verb, place, ref, payload, chars)
            item.definitions = self._definitions
            self._definitions = []
            self._items.append(item)
            self._chars += chars
            return
        if verb == "s":
            self._chars -= last.chars
            last.chars = 0
        last.chars += chars
        self._chars += chars
        if type(last.ref) is list and ref is not None and type(ref) is not list:
            # the path need not be spelled out: its definition moves before the op, which it does not concern
            last.definitions += self._definitions
            last.ref = ref
            self._definitions = []

    def _restart(self, base: _Item) -> None:
        """A base: what precedes it in the run has no effect, definitions included."""
        self._count += sum(count for _, count in self._done)
        self._done = []
        self._items = [base]
        self._definitions = []
        self._chars = base.chars
        self._ids.clear()
        self._from_base = True

    def _path_place(self, path: list[Any]) -> _Place:
        key = tuple(path)
        return self._places.setdefault(key, key)

    def _id_place(self, ref: int) -> _Place:
        place = self._ids.get(ref)
        if place is None:
            if self._from_base:
                raise PathError("an op refers to a path id that is not defined", REMEDY)
            place = self._ids[ref] = object()
        return place

    def _close(self) -> None:
        """Write the batch that grows. Another one begins where an original began, so its first op names its path."""
        wire: list[WireOp] = []
        previous: _Place | None = None
        for item in self._items:
            wire += item.definitions
            wire.append(item.wire(item.place is previous))
            previous = item.place
        wire += self._definitions
        self._done.append((wire, self._count))
        self._items = []
        self._definitions = []
        self._chars = self._count = 0


def _checked(batch: list[WireOp]) -> list[WireOp]:
    for position, op in enumerate(batch):
        check_wire_op(op, position)
    return batch


def _add_text(parts: list[str], text: str) -> None:
    """Append to the pieces of a text; two halves of a character at the border become it."""
    if utf16.splits(parts[-1], text):
        high = parts[-1][-1]
        parts[-1] = parts[-1][:-1]
        parts.append(utf16.character(high, text[0]))
        text = text[1:]
    if text:
        parts.append(text)


def size_of(op: WireOp) -> int:
    """Characters of the op's strings, and some for each value it holds."""
    if op[0] == "a" and type(op[1]) is not list:
        return len(op[-1]) + _NODE_CHARS
    chars = 0
    pending: list[Any] = [op]
    while pending:
        value = pending.pop()
        chars += _NODE_CHARS
        if isinstance(value, str):
            chars += len(value)
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, dict):
            pending.extend(value)
            pending.extend(value.values())
    return chars
