"""Random documents, mutations of them as steps, and ops; all from a seed."""

from __future__ import annotations

import copy
from random import Random
from typing import Any, Final

from scopelog.delta import apply_immutable

from .steps import Plain, Step, at
from .values import rejoined, units

RESERVED: Final = ("constructor", "__proto__", "prototype")
# Halves of a pair are in it, so that they meet, and stay alone, at every seam.
ALPHABET: Final = [*'abcabc \n"\\/', "\u6c34", "\u2028", "\0", "\U0001f600", "\U0001f600", "\ud83d", "\ude00"]
KEYS: Final = [
    *"abcde",
    "",
    "0",
    "1",
    "10",
    "007",
    "-1",
    "1e+21",
    "length",
    "text",
    "a b",
    "\xe9",
    "\U0001f600",
    "\ud83d",
]
NUMBERS: Final = [0, 1, -1, 2, 7, 255, 2**31, 2**53, -(2**53), 0.5, -1.25, 1e-7, 1e21, 1.7976931348623157e308, 5e-324]
WORDS: Final = ["alpha", "beta", "gamma", "Delta", "a", "b", "zeta"]


class Source:
    """Random values."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)

    def chance(self, one_in: int) -> bool:
        return self.random.randrange(one_in) == 0

    def text(self, longest: int = 6) -> str:
        return rejoined("".join(self.random.choices(ALPHABET, k=self.random.randint(0, longest))))

    def scalar(self) -> Any:
        match self.random.randrange(8):
            case 0:
                return None
            case 1:
                return self.random.random() < 0.5
            case 2 | 3:
                return self.random.choice(NUMBERS)
            case 4:
                return self.random.choice(WORDS)
        return self.text()

    def key(self) -> str:
        key: str = self.random.choice(KEYS)
        return key

    def value(self, depth: int = 0) -> Any:
        kind = self.random.randrange(4 + depth)
        if kind == 0:
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 4))]
        if kind == 1:
            found = {self.key(): self.value(depth + 1) for _ in range(self.random.randint(0, 4))}
            if self.chance(25):
                found[self.random.choice(RESERVED)] = self.value(depth + 1)  # data may have such keys, paths may not
            return found
        if kind == 2 and depth:
            return self.random.choices(WORDS, k=self.random.randint(0, 5))
        return self.scalar()

    def document(self) -> Any:
        """A dict or list with something of each kind in it."""
        rows = [{"id": number, "text": self.text(), "tags": []} for number in range(self.random.randint(0, 4))]
        parts = [self.value(), self.text(), rows, self.random.choices(WORDS, k=3), [[1, 2, 3], [], [[self.text()]]]]
        if self.chance(4):
            return parts
        return {**dict(zip(("a", "text", "rows", "words", "0"), parts, strict=True)), "more": self.value()}

    def long_text(self) -> str:
        """Lines as a build writes them: long, repetitive, with overlaps of every length."""
        lines = [
            f"line {self.random.randrange(30)} {self.random.choice(WORDS)}\n" for _ in range(self.random.randint(5, 80))
        ]
        return "".join(lines) + self.text()


def places(value: Any, path: list[Any] | None = None) -> list[tuple[list[Any], Any]]:
    """Every place that a path can name, with what is there."""
    path = path or []
    found = [(path, value)]
    children: Any = ()
    if isinstance(value, dict):
        children = ((key, child) for key, child in value.items() if key not in RESERVED)
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        found += places(child, [*path, key])
    return found


class Scenario:
    """A document, and steps with flushes between them; ``values`` has what each flush is to show."""

    def __init__(self, seed: str) -> None:
        self.source = Source(seed)
        self.random = self.source.random
        self.initial = self.source.document()
        self.long = self.source.chance(10)
        if self.long and isinstance(self.initial, dict):
            self.initial["text"] = self.source.long_text()
        self.buffered = self.source.chance(2)
        self.options = {"maxOverlapScan": self.random.choice([0, 3, 50])} if self.source.chance(8) else {}
        self.steps: list[Step] = []
        self.values: list[Any] = []
        self._model = Plain(self.initial)
        self._holds = 0
        if self.source.chance(2):
            self._flush()
        for _ in range(self.random.randint(2, 6)):
            for _ in range(self.random.randint(0, 5)):
                self._mutate()
            self._flush()

    def _take(self, step: Step) -> None:
        self._model.play(step)
        self.steps.append(step)

    def _flush(self) -> None:
        self.steps.append({"do": "flush"})
        self.values.append(copy.deepcopy(self._model.state))

    def _mutate(self) -> None:
        if self.source.chance(25):
            return self._whole()
        found = places(self._model.state)
        if self.source.chance(10):
            return self._handle(
                [path for path, value in found if isinstance(value, dict) and type(path[-1:] and path[-1]) is int]
            )
        kinds = self.random.choice([(str,), (str,), (list,), (dict,), (object,)])
        path, value = self.random.choice([place for place in found if isinstance(place[1], kinds)] or found)
        if isinstance(value, str):
            self._text(path, value)
        elif isinstance(value, list):
            self._list(path, value)
        elif isinstance(value, dict):
            self._dict(path, value)
        elif path:
            self._set(path, self.source.value(1))
        return None

    def _whole(self) -> None:
        match self.random.randrange(4):
            case 0:
                self._take({"do": "root", "value": self.source.document()})
            case 1:  # nobody may be left behind: a base follows
                self._take({"do": "discard"})
                self._take({"do": "rebase"})
            case _:
                self._take({"do": "rebase"})

    def _handle(self, elements: list[list[Any]]) -> None:
        """Hold an element, move it or remove it, and write through the handle.

        Nothing is assigned meanwhile: whether a handle outlives that is not the same on both sides.
        """
        if not elements:
            return
        path = self.random.choice(elements)
        self._holds += 1
        self._take({"do": "hold", "as": f"h{self._holds}", "path": path})
        for _ in range(self.random.randint(0, 3)):
            self._shift(path[:-1])
            if self.source.chance(4):
                self._flush()
        step = {"do": "heldset", "as": f"h{self._holds}", "key": self.source.key(), "value": self.source.scalar()}
        self._take(step)

    def _shift(self, path: list[Any]) -> None:
        items = [self.source.value(2) for _ in range(self.random.randint(0, 3))]
        size = len(at(self._model.state, path))
        match self.random.randrange(5):
            case 0:
                self._take({"do": "push", "path": path, "items": items})
            case 1:
                self._take({"do": "unshift", "path": path, "items": items})
            case 2:
                self._take({"do": self.random.choice(["pop", "shift"]), "path": path})
            case _:
                args = [self.random.randint(-size - 1, size + 1), self.random.randint(0, 3), *items]
                self._take({"do": "splice", "path": path, "args": args[: self.random.choice([0, 1, 2, 9, 9, 9])]})

    def _set(self, path: list[Any], value: Any) -> None:
        self._take({"do": "set", "path": path, "value": value})

    def _text(self, path: list[Any], value: str) -> None:
        if not path:
            return
        fresh = self.source.long_text() if self.long and self.source.chance(3) else self.source.text(4)
        match self.random.randrange(8):
            case 0 | 1 | 2 | 3:
                self._take({"do": "append", "path": path, "text": fresh})
            case 4 | 5:
                cut = self.random.randint(0, units(value) + 1)
                self._take({"do": "slice", "path": path, "drop": cut, "text": fresh})
            case 6:
                self._take({"do": "slice", "path": path, "drop": self.random.randint(0, units(value))})
            case _:
                self._set(path, self.source.value(2))

    def _dict(self, path: list[Any], value: dict[str, Any]) -> None:
        names = sorted(set(value) - set(RESERVED))
        name = self.random.choice(names) if names and self.source.chance(2) else self.source.key()
        match self.random.randrange(6):
            case 0 | 1:
                self._take({"do": self.random.choice(["delete", "undef"]), "path": [*path, name]})
            case 2 if path:  # over what is there: a diff
                changed = {key: self.source.value(2) if self.source.chance(2) else kept for key, kept in value.items()}
                if names and self.source.chance(2):
                    changed.pop(name, None)
                self._set(path, copy.deepcopy(changed))
            case _:
                self._set([*path, name], self.source.value(1))

    def _list(self, path: list[Any], value: list[Any]) -> None:
        size, items = len(value), [self.source.value(2) for _ in range(self.random.randint(0, 3))]
        scalars = not any(isinstance(item, dict | list) for item in value)
        match self.random.randrange(13):
            case 0 | 1 | 2 | 3 | 4 | 5:
                self._shift(path)
            case 6:
                self._take({"do": "length", "path": path, "value": self.random.randint(0, size + 3)})
            case 7:
                self._take({"do": "reverse", "path": path})
            case 8 if scalars:
                self._take({"do": "fill", "path": path, "args": [self.source.scalar(), self.random.randint(0, size)]})
            case 9 if scalars:
                target = self.random.randint(0, size)
                self._take({"do": "copyWithin", "path": path, "args": [target, self.random.randint(target, size)]})
            case 10 if all(isinstance(item, str) and item.isascii() for item in value):
                self._take({"do": "sort", "path": path})
            case 11 if path:  # a list over a list: a diff
                cut = self.random.randint(0, size)
                changed = [*value[:cut], *items, *value[cut + self.random.randint(0, 2) :]]
                self._set(path, copy.deepcopy(changed))
            case _:
                self._set([*path, self.random.randint(0, size)], self.source.value(1))


def valid_op(source: Source, value: Any) -> list[Any]:
    """An op that fits the value; an index may be too large where that is clamped."""
    random = source.random
    path, found = random.choice(places(value))
    if isinstance(found, str) and path and not source.chance(6):
        return ["t", path, random.randint(0, 4)] if source.chance(3) else ["a", path, source.text(4)]
    if isinstance(found, list) and not source.chance(6):
        if source.chance(2):
            return ["m", path, random.sample(range(len(found)), len(found))]
        items = [source.value(2) for _ in range(random.randint(0, 2))]
        return ["p", path, random.randint(0, len(found) + 2), random.randint(0, 3), items]
    if isinstance(found, dict) and not source.chance(3):
        path = [*path, source.key()]
    if not path or source.chance(20):
        return ["r", source.document()]
    return ["d", path] if source.chance(4) and found is not None else ["s", path, source.value(1)]


def spoiled_op(source: Source, value: Any) -> list[Any]:
    """The same with one part of it, or of its path, exchanged, left out or doubled."""
    op = copy.deepcopy(valid_op(source, value))
    parts = [part for part in (op, *op[1:2]) if isinstance(part, list) and part]
    part = source.random.choice(parts)
    place = source.random.randrange(len(part))
    odd: list[Any] = [*RESERVED, "x", -1, 0, 1, 2.0, 0.5, 10**21, True, None, [], {}, [0], "length", "#", "m", "p"]
    match source.random.randrange(4):
        case 0:
            del part[place]
        case 1:
            part.insert(place, source.random.choice(odd))
        case _:
            part[place] = source.random.choice(odd)
    return op


def op_batches(source: Source, first: Any) -> tuple[list[Any], list[Any]]:
    """Batches of ops that fit the value one after the other, and the values they lead to."""
    value, batches, values = first, [], []
    for _ in range(source.random.randint(1, 5)):
        batch = []
        for _ in range(source.random.randint(0, 4)):
            op = valid_op(source, value)
            try:
                value = apply_immutable(value, [copy.deepcopy(op)])
            except (LookupError, ValueError):
                continue  # "d" of a place that is not there
            batch.append(op)
        batches.append(batch)
        values.append(value)
    return batches, values
