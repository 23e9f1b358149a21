"""Events to frames: the encoder of one response.

``partial`` of an event is the harness's live message, not a snapshot: when events queue up it may already hold what
later events bring. A start frame therefore carries what its block held at that moment, and the encoder leaves out of
the deltas that follow what is covered: by counting for text, by comparing for a tool call (its arguments are parsed,
its JSON text is not in the message).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ...delta import utf16
from .copying import copied, finite
from .errors import InvalidEvent
from .shapes import (
    BLOCK_FIELDS,
    BLOCK_OF,
    BODY,
    CHECKPOINT,
    DELTAS,
    DONE,
    END_FIELDS,
    ENDS,
    ERROR,
    MESSAGE_FIELDS,
    START,
    STARTS,
    TOOL_CALL,
    check_block,
    copy_fields,
    index_of,
    spoken,
    text_of,
    type_of,
)
from .streaming_json import parse_streaming_json

Json: TypeAlias = Any
Event: TypeAlias = Mapping[str, Any]
Frame: TypeAlias = dict[str, Any]


class FrameEncoder:
    """Turns the events of one response into frames, each event at the time it is consumed.

    One for each response. A frame is JSON (NaN and the infinities are None) and shares nothing with its event.

    An event costs what it brings: only starts and ends look at ``partial``, and only at their own block; deltas need
    not carry it. The exception is a tool call whose start is ahead of its deltas: once they are long enough to hold
    what it showed, their JSON is parsed at every delta until they have caught up.
    """

    __slots__ = ("_open", "_started", "_terminal")

    def __init__(self) -> None:
        self._started = False
        self._terminal = False
        self._open: dict[int, _Covered | _CatchingUp] = {}

    def encode(self, event: Event) -> Frame | None:
        """The event's frame, or None if it needs none: ``done``, ``error``, an event of an unknown type, a delta that
        is empty or covered.

        Raises :class:`InvalidEvent`; the encoder is then as it was before. ``error`` may come first; nothing may
        follow it or ``done``. A block that has ended is forgotten, so that another may start at its index (the fold
        rejects that).
        """
        name = type_of(event, "event", InvalidEvent)
        if self._terminal:
            raise InvalidEvent(f"an event of type {spoken(name)} follows the end of the stream")
        if name == START:
            return self._start(event)
        if name == ERROR:
            self._terminal = True
            return None
        if not self._started:
            raise InvalidEvent(f"an event of type {spoken(name)} comes before start")
        if name == DONE:
            self._terminal = True
            return None
        if name in DELTAS:
            return self._delta(event, name)
        if name in STARTS:
            return self._block_start(event, name)
        return self._block_end(event, name) if name in ENDS else None

    def _start(self, event: Event) -> Frame:
        if self._started:
            raise InvalidEvent("the stream has more than one start event")
        message = event.get("partial")
        if not isinstance(message, Mapping):
            raise InvalidEvent(f"the partial of start is a {type(message).__name__}, not a message")
        partial: Frame = {"role": "assistant", "content": []}
        copy_fields(message, MESSAGE_FIELDS[0], partial, InvalidEvent)
        partial["stopReason"] = "pending"
        copy_fields(message, MESSAGE_FIELDS[1], partial, InvalidEvent)
        self._started = True
        return {"type": START, "partial": partial}

    def _block_start(self, event: Event, name: str) -> Frame:
        kind = STARTS[name]
        index = index_of(event, InvalidEvent)
        block = _live_block(event, name, kind, index)
        if index in self._open:
            raise InvalidEvent(f"the block at index {index} starts more than once")
        check_block(block, kind, index, InvalidEvent)
        copy: Frame = {"type": kind}
        copy_fields(block, BLOCK_FIELDS[kind], copy, InvalidEvent)
        if kind == TOOL_CALL:
            if "arguments" not in copy:
                raise InvalidEvent(f"the tool call at index {index} has no arguments")
            self._open[index] = _CatchingUp(copy["arguments"])
        else:
            self._open[index] = _Covered(kind, utf16.length(copy[BODY[kind]]))
        return {"type": name, "contentIndex": index, BLOCK_OF[name]: copy}

    def _delta(self, event: Event, name: str) -> Frame | None:
        index = index_of(event, InvalidEvent)
        state = self._block(index, DELTAS[name])
        delta = text_of(event, "delta", index, InvalidEvent)
        if isinstance(state, _CatchingUp) and not state.caught_up:
            json = state.checkpoint(delta)
            return {"type": CHECKPOINT, "contentIndex": index, "json": json} if json else None
        if isinstance(state, _Covered):
            delta = state.uncovered(delta)
        return {"type": name, "contentIndex": index, "delta": delta} if delta else None

    def _block_end(self, event: Event, name: str) -> Frame:
        kind = ENDS[name]
        index = index_of(event, InvalidEvent)
        block = _live_block(event, name, kind, index)
        frame: Frame = {"type": name, "contentIndex": index}
        if kind == TOOL_CALL:
            call = event.get("toolCall")
            if not isinstance(call, Mapping) or call.get("type") != TOOL_CALL:
                raise InvalidEvent(f"the toolCall of toolcall_end at index {index} is no tool call")
            block = call  # all of it comes from the event
        self._block(index, kind)
        if kind == TOOL_CALL:
            for field in ("id", "name"):
                frame[field] = text_of(block, field, index, InvalidEvent)
            if "arguments" not in block:
                raise InvalidEvent(f"the toolCall of toolcall_end at index {index} has no arguments")
            frame["arguments"] = copied(block["arguments"], InvalidEvent)
        else:
            frame["content"] = text_of(event, "content", index, InvalidEvent)
        copy_fields(block, END_FIELDS[kind], frame, InvalidEvent)
        del self._open[index]
        return frame

    def _block(self, index: int, kind: str) -> _Covered | _CatchingUp:
        state = self._open.get(index)
        if state is None:
            raise InvalidEvent(f"the {kind} block at index {index} has not started")
        if state.kind != kind:
            raise InvalidEvent(f"the block at index {index} is {state.kind}, not {kind}")
        return state


class _Covered:
    """An open text or thinking block, in UTF-16 units: what its start frame covered, what deltas brought since."""

    __slots__ = ("kind", "units")

    def __init__(self, kind: str, units: int) -> None:
        self.kind = kind
        self.units = units  # covered and not yet seen in a delta

    def uncovered(self, delta: str) -> str:
        """What of the delta the start frame did not hold; the cut may leave half of a surrogate pair."""
        if not self.units:
            return delta
        cut = min(self.units, utf16.length(delta))
        self.units -= cut
        return utf16.drop(delta, cut)


class _CatchingUp:
    """An open tool call, and until the deltas have caught up with its start frame their JSON text so far."""

    __slots__ = ("_length", "_needed", "_pieces", "_snapshot", "caught_up")

    kind = TOOL_CALL

    def __init__(self, arguments: Json) -> None:
        self.caught_up = arguments == {}
        self._snapshot = finite(arguments)  # as its JSON text has it
        self._needed = 0 if self.caught_up else _least_text(arguments)
        self._pieces: list[str] = []
        self._length = 0

    def checkpoint(self, delta: str) -> str | None:
        """The whole text once its value is, or begins with, the snapshot: deltas are passed on from then on."""
        self._pieces.append(delta)
        self._length += len(delta)
        if self._length < self._needed:  # too short to hold the snapshot: no need to parse it
            return None
        text = utf16.rejoined("".join(self._pieces))
        self._pieces = [text]
        current = parse_streaming_json(text)
        if not (_is_prefix(self._snapshot, finite(current), exactly=True) or _is_prefix(self._snapshot, current)):
            return None
        self.caught_up = True
        self._snapshot = None
        self._pieces.clear()
        return text


def _live_block(event: Event, name: str, kind: str, index: int) -> Mapping[str, Any]:
    """The block of the live message that an event is about; it must be of the event's kind."""
    partial = event.get("partial")
    content = partial.get("content") if isinstance(partial, Mapping) else None
    if not isinstance(content, list):
        raise InvalidEvent(f"the partial of {name} at index {index} is no message")
    block = content[index] if index < len(content) else None
    if not isinstance(block, Mapping):
        raise InvalidEvent(f"{name} is about index {index}, where the message has no block")
    if block.get("type") != kind:
        raise InvalidEvent(f"{name} is about a {spoken(block.get('type'))} block at index {index}")
    return block


def _least_text(value: Json) -> int:
    """Characters that a text must have, at least, to parse to something that begins with the value."""
    least = 0
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            least += len(part)
        elif isinstance(part, dict):
            pending.extend(part)
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return least


def _is_prefix(snapshot: Json, current: Json, *, exactly: bool = False) -> bool:
    """Whether the value begins with the snapshot: strings by prefix, arrays element by element, objects by key
    (others may be there, in any order), anything else by being the same. ``exactly``: whether they are the same."""
    pending = [(snapshot, current)]
    while pending:
        before, now = pending.pop()
        if isinstance(before, str):
            if not isinstance(now, str) or not (now == before if exactly else now.startswith(before)):
                return False
        elif isinstance(before, list):
            if not isinstance(now, list) or not (len(now) == len(before) if exactly else len(now) >= len(before)):
                return False
            pending.extend(zip(before, now, strict=False))
        elif isinstance(before, dict):
            if not isinstance(now, dict) or not (len(now) == len(before) if exactly else len(now) >= len(before)):
                return False
            if not before.keys() <= now.keys():
                return False
            pending.extend((before[key], now[key]) for key in before)
        elif isinstance(before, bool) or isinstance(now, bool) or before is None or now is None:
            if before is not now:
                return False
        elif before != now:  # numbers: one and 1.0 are the same in JSON
            return False
    return True
