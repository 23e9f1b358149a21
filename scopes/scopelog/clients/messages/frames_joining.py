"""Joining of adjacent deltas: the coalescer for lists of frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...delta import utf16
from .shapes import DELTAS


def join_frames(frames: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """A coalescer for a list of frames: adjacent deltas of one type and one index become one.

    Folding what it yields equals folding the run. Halves of a surrogate pair that meet become one character. All
    else, known or not, passes as it is; nothing raises. Linear in the run.
    """
    pieces: list[str] = []
    first: Any = None
    for frame in frames:
        if pieces and _continues(first, frame):
            pieces.append(frame["delta"])
            continue
        if pieces:
            yield _joined(first, pieces)
            pieces = []
        if _is_delta(frame):
            first = frame
            pieces.append(frame["delta"])
        else:
            yield frame, 1
    if pieces:
        yield _joined(first, pieces)


def _is_delta(frame: Any) -> bool:
    return (
        type(frame) is dict
        and len(frame) == 3
        and type(frame.get("type")) is str
        and frame["type"] in DELTAS
        and type(frame.get("contentIndex")) is int
        and type(frame.get("delta")) is str
    )


def _continues(first: Any, frame: Any) -> bool:
    return _is_delta(frame) and frame["type"] == first["type"] and frame["contentIndex"] == first["contentIndex"]


def _joined(first: Any, pieces: list[str]) -> tuple[Any, int]:
    if len(pieces) == 1:
        return first, 1
    filled = [piece for piece in pieces if piece]
    for at in range(1, len(filled)):
        head, tail = filled[at - 1], filled[at]
        if utf16.splits(head, tail):
            filled[at - 1] = head[:-1]
            filled[at] = utf16.character(head[-1], tail[0]) + tail[1:]
    return {**first, "delta": "".join(filled)}, len(pieces)
