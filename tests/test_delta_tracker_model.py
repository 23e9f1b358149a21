"""The tracker against deep copies: whatever is done to a tree, in any order, its batches tell all of it.

A script is one seed. Every step is done to the tracked tree and to a plain copy of it; after every flush the copy, the
tracker's value, a replica fed with the ops and one fed with the ops as they come out of the wire codec are equal.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scopelog.delta import utf16
from scopelog.delta.applying import UNDEFINED, apply
from scopelog.delta.codec import Decoder, Encoder
from scopelog.delta.errors import InvalidOp, UnsafePathError
from scopelog.delta.recording import MAX_RECORDS
from scopelog.delta.texts import append_text, drop_text
from scopelog.delta.tracked import TrackedDict, TrackedList
from scopelog.delta.tracker import track
from scopelog.errors import InvalidElement

KEYS = ("a", "b", "c", "0", "é", "😀")
PIECES = ("", "x", "ab", "hello ", "é", "水火", "😀", "\ud83d", "\ude00", "\ude01", "=" * 70, "\r\n")
SCALARS = (None, True, False, 0, 1, -1, 2.5, 10**20)
REFUSED = ((1, 2), {1}, b"x", object(), float("nan"), float("inf"), {"k": [()]}, [{1: 2}])


def joined(value: Any) -> Any:
    """Plain data with surrogate halves that belong together made characters."""
    if isinstance(value, str):
        return utf16.rejoined(value)
    if isinstance(value, dict):
        return {key: joined(item) for key, item in value.items()}
    return [joined(item) for item in value] if isinstance(value, list) else value


class Script:
    """One seed's tree, copy and replicas."""

    def __init__(self, seed: Any, *, size: int) -> None:
        self.random = Random(seed)
        self.size = size
        start = self.container(3)
        self.model = joined(copy.deepcopy(start))
        self.tracker = track(start, max_overlap_scan=self.random.choice((0, 4, 65_536)))
        self.plain: Any = UNDEFINED
        self.wired: Any = UNDEFINED
        self.encoder, self.decoder = Encoder(), Decoder()
        self.held: list[Any] = []
        self.flushed: list[tuple[list[Any], str]] = []

    # Values and places.

    def text(self) -> str:
        return "".join(self.random.choices(PIECES, k=self.random.randrange(4)))

    def value(self, depth: int) -> Any:
        kind = self.random.random()
        if depth and kind < 0.45:
            return self.container(depth - 1)
        return self.text() if kind < 0.8 else self.random.choice(SCALARS)

    def container(self, depth: int) -> Any:
        count = self.random.randrange(4)
        if self.random.random() < 0.5:
            return {self.random.choice(KEYS): self.value(depth) for _ in range(count)}
        return [self.value(depth) for _ in range(count)]

    def somewhere(self) -> tuple[Any, Any]:
        """A view of a random container, and the same one of the copy."""
        view, model = self.tracker.state, self.model
        while self.random.random() < 0.75:
            keys = model if isinstance(model, dict) else range(len(model))
            below = [key for key in keys if isinstance(model[key], (dict, list))]
            if not below:
                break
            key = self.random.choice(below)
            view, model = view[key], model[key]
        return view, model

    def counterpart(self, view: Any) -> Any:
        """What a held view stands for in the copy; None if it is no longer in the tree. Found by looking for it."""
        todo = [(self.tracker.target, self.model)]
        while todo:
            data, model = todo.pop()
            if data is view.data:
                return model
            keys = data if isinstance(data, dict) else range(len(data))
            todo += [(data[key], model[key]) for key in keys if isinstance(data[key], (dict, list))]
        return None

    # Steps.

    def run(self) -> None:
        for _ in range(self.size):
            kind = self.random.random()
            if kind < 0.12:
                self.flush()
            elif kind < 0.14:
                self.begin_anew()
            elif kind < 0.2:
                self.held = [*self.held[-5:], self.somewhere()[0]]
            elif kind < 0.3 and self.held:
                view = self.random.choice(self.held)
                model = self.counterpart(view)
                self.change(view, copy.deepcopy(view) if model is None else model)
            elif kind < 0.33:
                self.refused(self.somewhere()[0])
            else:
                self.change(*self.somewhere())
            if self.random.random() < 0.1:
                assert self.tracker.state == self.model
        self.flush()
        for ops, text in self.flushed:
            assert json.dumps(ops) == text, "a batch changed after it was flushed"

    def flush(self) -> None:
        dirty = self.tracker.dirty
        ops = self.tracker.flush()
        assert dirty or not ops
        assert not self.tracker.dirty
        assert len(ops) <= MAX_RECORDS
        text = json.dumps(ops, allow_nan=False)
        self.flushed = [*self.flushed[-3:], (ops, text)]
        self.plain = apply(self.plain, json.loads(text))
        wire = json.loads(json.dumps(self.encoder.encode(ops)))
        self.wired = apply(self.wired, self.decoder.decode(wire))
        assert self.model == self.tracker.target == self.plain == self.wired, ops
        assert json.dumps(self.plain, sort_keys=True) == json.dumps(self.model, sort_keys=True)  # True is not 1

    def begin_anew(self) -> None:
        kind = self.random.randrange(3)
        if kind == 0:
            self.tracker.rebase()
        elif kind == 1:
            self.tracker.discard()  # what replicas know is lost: until the next base they would differ
            self.tracker.rebase()
        else:
            value = self.container(3)
            if self.random.random() < 0.3:
                view, model = self.somewhere()
                self.tracker.state, self.model = view, copy.deepcopy(model)
            else:
                self.tracker.state, self.model = value, joined(copy.deepcopy(value))
                if value:
                    value.clear()

    def refused(self, view: Any) -> None:
        before, dirty = copy.deepcopy(view), self.tracker.dirty
        bad = self.random.choice(REFUSED)
        with pytest.raises((InvalidElement, InvalidOp)):
            if isinstance(view, TrackedDict):
                self.random.choice((lambda: view.update(z=1, a=bad), lambda: view.__setitem__("a", bad)))()
            else:
                self.random.choice((lambda: view.append(bad), lambda: view.extend([1, bad])))()
        if isinstance(view, TrackedDict):
            with pytest.raises(UnsafePathError):
                view["__proto__"] = 1
        assert view == before
        assert self.tracker.dirty == dirty

    def change(self, view: Any, model: Any) -> None:
        if isinstance(model, dict):
            assert isinstance(view, TrackedDict)
            self.change_dict(view, model)
        else:
            assert isinstance(view, TrackedList)
            self.change_list(view, model)

    def given(self) -> tuple[Any, Any]:
        """Something to store: as given to the tree, and to the copy."""
        if self.random.random() < 0.15:
            view, model = self.somewhere()
            if len(json.dumps(model)) < 200:
                return view, copy.deepcopy(model)
        value = self.value(3)
        return value, joined(copy.deepcopy(value))

    def text_step(self, view: Any, model: Any, key: Any) -> None:
        old, text = model[key], self.text()
        new = utf16.rejoined(old + text)
        kind = self.random.randrange(4)
        if kind == 0:
            view[key] += text
        elif kind < 3:
            append_text(view, key, text)
        elif self.random.random() < 0.5:
            units = self.random.randrange(8)
            drop_text(view, key, units)
            new = utf16.drop(old, units)
        else:
            new = utf16.rejoined(utf16.drop(old, self.random.randrange(8)) + text)
            view[key] = new
        model[key] = new

    def change_dict(self, view: Any, model: dict[str, Any]) -> None:
        key = self.random.choice(KEYS)
        texts = [name for name, item in model.items() if isinstance(item, str)]
        kind = self.random.randrange(14)
        value, plain = self.given()
        if kind < 5 and texts:
            self.text_step(view, model, self.random.choice(texts))
        elif kind < 8:
            view[key], model[key] = value, plain
        elif kind == 8:
            assert view.pop(key, None) == model.pop(key, None)
        elif kind == 9 and key in model:
            del view[key], model[key]
        elif kind == 10:
            assert view.setdefault(key, value) == model.setdefault(key, plain)
        elif kind == 11:
            view.update({key: value}, b="x")
            model.update({key: plain}, b="x")
        elif kind == 12 and self.random.random() < 0.3:
            view.clear()
            model.clear()
        else:
            before = copy.deepcopy(model)
            before[key] = plain
            view |= before  # what is there already, and one key
            model[key] = copy.deepcopy(plain)

    def change_list(self, view: Any, model: list[Any]) -> None:
        texts = [index for index, item in enumerate(model) if isinstance(item, str)]
        size = len(model)
        kind = self.random.randrange(22)
        value, plain = self.given()
        low, high = sorted((self.random.randrange(-size - 1, size + 2), self.random.randrange(-size - 1, size + 2)))
        if kind < 5 and texts:
            index = self.random.choice(texts)
            self.text_step(view, model, self.random.choice((index, index - size)))
        elif kind < 7 and size:
            index = self.random.randrange(-size, size)
            view[index], model[index] = value, plain
        elif kind < 9:
            view.append(value)
            model.append(plain)
        elif kind < 11:
            view.insert(low, value)
            model.insert(low, plain)
        elif kind < 13 and size:
            index = self.random.choice((-1, 0, self.random.randrange(size)))
            assert view.pop(index) == model.pop(index)
        elif kind == 13:
            view[low:high] = [value, "y"]
            model[low:high] = [plain, "y"]
        elif kind == 14:
            del view[low:high], model[low:high]
        elif kind == 15:
            del view[::2], model[::2]
        elif kind == 16:
            view.reverse()
            model.reverse()
        elif kind == 17:
            by: Callable[[Any], str] = lambda item: json.dumps(copy.deepcopy(item), sort_keys=True)  # noqa: E731
            view.sort(key=by)
            model.sort(key=by)
        elif kind == 18:
            view += [value, 3]
            model += [plain, 3]
        elif kind == 19 and size < 5:
            times = self.random.randrange(3)
            view *= times
            model[:] = [copy.deepcopy(item) for item in model * times]
        elif kind == 20 and size:
            view[::-1] = copy.deepcopy(model)
            model[::-1] = copy.deepcopy(model)
        elif size:
            index = self.random.randrange(size)
            item = copy.deepcopy(model[index])
            view.remove(item)
            model.remove(item)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(min_value=0))
def test_every_flush_tells_all_that_changed(seed: int) -> None:
    Script(seed, size=60).run()
