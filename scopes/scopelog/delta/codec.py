"""Ops to the wire and back: path ids from the second use on, and no path where it is the previous op's.

One encoder and one decoder per stream; the decoder sees every batch the encoder made, from a base on. Ids live until
the next ``r``, so a fresh decoder may start at any base; a path is left out only within a batch. A reader that missed
batches cannot tell by the ops: it may write to the wrong place, so gaps have to be found by sequence.
Source: Chord 0.87.1, ``encoder``, ``decoder``.
"""

from __future__ import annotations

from typing import Any

from .errors import PathError
from .ops import REMEDY, ROOTLESS, SHORT_LENGTH, Op, Path, WireOp, check_batch, check_op, check_wire_op


class Encoder:
    """Turns decoded batches into wire batches, op for op as Chord does."""

    __slots__ = ("_ids", "_next")

    def __init__(self) -> None:
        self._ids: dict[tuple[Any, ...], int | None] = {}  # None: the path was used once, inline
        self._next = 0

    def encode(self, ops: list[Op]) -> list[WireOp]:
        """The wire batch for a decoded batch. It shares paths and payloads with ``ops``.

        Raises :class:`InvalidOp` or :class:`UnsafePathError` for an op that no decoder would take; the encoder is
        then as it was before the call.
        """
        check_batch(ops)
        for position, op in enumerate(ops):
            check_op(op, position)
        # nothing below may fail: ids would be gone that the reader never learned
        ids = self._ids
        wire: list[WireOp] = []
        previous: tuple[Any, ...] | None = None
        for op in ops:
            verb = op[0]
            if verb == "r":
                wire.append(op)
                ids.clear()
                self._next = 0
                previous = None
                continue
            path = op[1]
            key = tuple(path)  # 0 and "0" differ, 1 and 1.0 do not; bools were refused
            if key == previous:
                wire.append([verb, *op[2:]])
                continue
            previous = key
            ref: int | Path | None = ids.get(key)
            if ref is None:
                if key in ids:
                    ref = ids[key] = self._next
                    self._next += 1
                    wire.append(["#", ref, path])
                else:
                    ids[key] = None
                    ref = path
            wire.append([verb, ref, *op[2:]])
        return wire


class Decoder:
    """Turns wire batches back into decoded ones. Its memory grows with the paths it was sent, until an ``r``."""

    __slots__ = ("_paths",)

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}

    def decode(self, wire: list[WireOp]) -> list[Op]:
        """The decoded batch. Its ops share payloads with ``wire``, and paths with each other and the decoder, so
        that a long path used often takes its room once: do not change a path.

        Raises :class:`InvalidOp`, :class:`UnsafePathError`, or :class:`PathError` for an id that is not defined, a
        path left out where none came before, or an empty one where that is not allowed. Nothing of the batch is
        returned then, and the decoder is of no more use.
        """
        check_batch(wire)
        paths = self._paths
        ops: list[Op] = []
        previous: Path | None = None
        for position, op in enumerate(wire):
            check_wire_op(op, position)
            verb = op[0]
            if verb == "#":
                paths[op[1]] = op[2]
                continue
            if verb == "r":
                ops.append(op)
                paths.clear()
                previous = None
                continue
            if len(op) == SHORT_LENGTH[verb]:
                payload = op[1:]
                if previous is None:
                    raise PathError(f"op {position} leaves its path out and none came before it", REMEDY)
            else:
                payload = op[2:]
                ref = op[1]
                previous = ref if type(ref) is list else paths.get(ref)
                if previous is None:
                    raise PathError(f"op {position} refers to a path id that is not defined", REMEDY)
            if not previous and verb in ROOTLESS:
                raise PathError(f"op {position} ({verb}) has an empty path", REMEDY)
            ops.append([verb, previous, *payload])
        return ops
