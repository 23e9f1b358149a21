"""Mutations as data, spelled as in the vectors (``tests/vectors/delta_roundtrip.json``), and playing them.

A step is ``{"do": verb, "path"?: [...], ...}``. ``driver.mjs`` plays the same steps on the real tracker; here they
are played on plain values, to know what is to come out, and on tracked ones.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from scopelog.delta import Encoder, Tracker, append_text, track

from .values import dropped, rejoined

Step = dict[str, Any]
SLOTS: Final = frozenset({"set", "append", "slice", "delete", "undef"})


def at(node: Any, path: list[Any]) -> Any:
    for segment in path:
        node = node[segment]
    return node


class Plain:
    """A plain value and what steps make of it: the model."""

    def __init__(self, value: Any) -> None:
        self.state = copy.deepcopy(value)
        self.held: dict[str, Any] = {}

    def play(self, step: Step) -> None:
        if step["do"] == "root":
            self.state = copy.deepcopy(step["value"])
        elif step["do"] not in ("rebase", "discard", "flush"):
            mutate(self.state, step, self.held, buffered=False)


class Tracked:
    """The same under our tracker, with what its flushes give on the wire. ``buffered``: text goes by append_text."""

    def __init__(self, value: Any, *, buffered: bool = False, **options: Any) -> None:
        self.tracker: Tracker = track(copy.deepcopy(value), **options)
        self.encoder = Encoder()
        self.buffered = buffered
        self.held: dict[str, Any] = {}
        self.wires: list[Any] = []
        self.values: list[Any] = []

    def play(self, step: Step) -> None:
        match step["do"]:
            case "flush":
                # Encoded ops share nothing with the value: they are kept until all steps are played.
                self.wires.append(self.encoder.encode(self.tracker.flush()))
                self.values.append(copy.deepcopy(self.tracker.target))
            case "root":
                self.tracker.state = copy.deepcopy(step["value"])
            case "rebase":
                self.tracker.rebase()
            case "discard":
                self.tracker.discard()
            case _:
                mutate(self.tracker.state, step, self.held, buffered=self.buffered)


def mutate(root: Any, step: Step, held: dict[str, Any], *, buffered: bool) -> None:
    """One step on a dict or list, plain or tracked."""
    do, path = step["do"], step.get("path", [])
    if do == "hold":
        held[step["as"]] = at(root, path)
    elif do == "heldset":
        held[step["as"]][step["key"]] = copy.deepcopy(step["value"])
    elif do in SLOTS:
        _mutate_slot(at(root, path[:-1]), path[-1], step, buffered=buffered)
    else:
        _mutate_list(at(root, path), step)


def _mutate_slot(node: Any, key: Any, step: Step, *, buffered: bool) -> None:
    match step["do"]:
        case "set" if type(key) is int and key == len(node):
            node.append(copy.deepcopy(step["value"]))
        case "set":
            node[key] = copy.deepcopy(step["value"])
        case "append" if buffered:
            append_text(node, key, step["text"])
        case "append":
            node[key] = rejoined(node[key] + step["text"])
        case "slice":
            node[key] = rejoined(dropped(node[key], step["drop"]) + step.get("text", ""))
        case _:
            node.pop(key, None)


def _mutate_list(node: Any, step: Step) -> None:
    size, args = len(node), step.get("args", [])
    match step["do"]:
        case "push":
            node.extend(copy.deepcopy(step["items"]))
        case "unshift":
            node[0:0] = copy.deepcopy(step["items"])
        case "pop" | "shift" if not size:
            pass
        case "pop":
            node.pop()
        case "shift":
            node.pop(0)
        case "splice" if args:
            start = max(0, size + args[0]) if args[0] < 0 else min(args[0], size)
            count = args[1] if len(args) > 1 else size
            node[start : start + max(0, count)] = copy.deepcopy(args[2:])
        case "splice":
            pass
        case "length" if step["value"] <= size:
            del node[step["value"] :]
        case "length":
            node.extend([None] * (step["value"] - size))
        case "fill":
            node[:] = [*node[: args[1]], *[args[0]] * (size - args[1])]
        case "copyWithin":
            node[:] = [*node[: args[0]], *node[args[1] :], *node[:][args[0] + size - args[1] :]]
        case "sort":
            node.sort()
        case "reverse":
            node.reverse()
        case other:
            raise AssertionError(f"no such step: {other}")
