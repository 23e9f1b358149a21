"""Frames to the message: one step by plain mutation, and the fold as a loop over it.

The state is a mapping with two keys, and everything the reducer knows is in it, so that a replica can go on::

    streamingMessage    the message; None or absent before its start frame
    frameState          for each block of its content: None if it arrived inside the start frame, else
                        {"kind": "text" | "thinking" | "toolCall", "ended": bool, "json"?: str}

``json`` is the raw text of a tool call's arguments: absent until a delta or a checkpoint brings some. While it
streams, ``arguments`` of the block stay those of the start frame; what a reader sees is derived from ``json``
(:func:`current_message`), so that a delta costs what it brings and nothing is written twice.

The state may be a plain dict or a tracked one. Who begins another response sets the keys to None and [] first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final, TypeAlias, TypeVar

from ...delta.texts import append_text
from ...delta.utf16 import rejoined
from .copying import copied
from .errors import InvalidFrame
from .shapes import (
    BLOCK_OF,
    BODY,
    CHECKPOINT,
    DELTAS,
    END_FIELDS,
    ENDS,
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
Frame: TypeAlias = Mapping[str, Any]
State: TypeAlias = MutableMapping[str, Any]
S = TypeVar("S", bound=MutableMapping[str, Any])

MESSAGE: Final = "streamingMessage"
FRAME_STATE: Final = "frameState"
_EARLY: Final = "early"  # before the start frame, frameState is empty or [{"early": type}]


def apply_frame(state: S, frame: Frame) -> S:
    """Take one frame into the state, which is changed in place and returned.

    Raises :class:`InvalidFrame` with the state untouched. A frame of an unknown type is ignored. As in the fold, a
    frame before ``start`` is not looked at and does no harm unless a ``start`` follows, which is then refused: the
    state keeps the type of the first such frame as ``frameState: [{"early": type}]``. Nothing of the frame is shared
    with the state; NaN and the infinities become None. A delta takes time that grows with it, not with the message.
    A tracked state raises its own ``InvalidInput``, also untouched, for what it cannot hold: nesting over 256.
    """
    name = type_of(frame, "frame", InvalidFrame)
    if name == START:
        _start(state, frame)
    elif state.get(MESSAGE) is None:
        if not state.get(FRAME_STATE):
            state[FRAME_STATE] = [{_EARLY: spoken(name)}]
    else:
        step = _STEPS.get(name)
        if step is not None:
            step(state, frame, name)
    return state


def fold(frames: Iterable[Frame]) -> Json | None:
    """The message that the frames of one response make, whole or cut anywhere; None without a start frame.

    Raises :class:`InvalidFrame`. Pure: a loop over :func:`apply_frame`. Joining adjacent deltas does not change it.
    ``arguments`` of a tool call without an end are what its text so far shows (:func:`parse_streaming_json`): they
    may be no object, and hold NaN and the infinities (:func:`finite`).
    """
    state: dict[str, Any] = {}
    for frame in frames:
        apply_frame(state, frame)
    message = state.get(MESSAGE)
    if message is not None:
        derive_arguments(message, state[FRAME_STATE])
    return message


def current_message(state: Mapping[str, Any]) -> Json | None:
    """The message as it is now, a plain copy: what :func:`fold` makes of the same frames. None before ``start``.

    Takes time that grows with the message: not for every delta (:class:`MessageView`).
    """
    message = state.get(MESSAGE)
    if message is None:
        return None
    plain = copied(message, InvalidFrame)
    derive_arguments(plain, state.get(FRAME_STATE) or ())
    return plain


def derive_arguments(message: Json, frame_state: Any) -> None:
    """Set ``arguments`` of the calls that have not ended to what their text shows. Not for the state's own message."""
    for index, entry in enumerate(frame_state):
        if entry is not None and entry["kind"] == TOOL_CALL and not entry["ended"] and "json" in entry:
            message["content"][index]["arguments"] = parse_streaming_json(entry["json"])


def _start(state: State, frame: Frame) -> None:
    if state.get(MESSAGE) is not None:
        raise InvalidFrame("the frames have more than one start frame")
    early = state.get(FRAME_STATE)
    if early:
        raise InvalidFrame(f"a frame of type {spoken(early[0][_EARLY])} comes before the start frame")
    partial = frame.get("partial")
    if not isinstance(partial, Mapping):
        raise InvalidFrame(f"the partial of start is a {type(partial).__name__}, not a message")
    message = copied(partial, InvalidFrame)
    content = message.get("content")
    if type(content) is not list or not all(type(block) is dict for block in content):
        raise InvalidFrame("the content of start is no list of blocks")
    state[MESSAGE] = message
    state[FRAME_STATE] = [None] * len(content)


def _block_start(state: State, frame: Frame, name: str) -> None:
    kind = STARTS[name]
    given = frame.get(BLOCK_OF[name])
    if not isinstance(given, Mapping):
        raise InvalidFrame(f"{name} holds a {type(given).__name__}, not a block")
    if given.get("type") != kind:
        raise InvalidFrame(f"{name} holds a block of type {spoken(given.get('type'))}")
    index = index_of(frame, InvalidFrame)
    content, frame_state = state[MESSAGE]["content"], state[FRAME_STATE]
    if index != len(content):
        reason = "already exists" if index < len(content) else "would leave a gap"
        raise InvalidFrame(f"{name} cannot start a block at index {index}, which {reason}")
    check_block(given, kind, index, InvalidFrame)
    block = copied(given, InvalidFrame)
    content.append(block)
    frame_state.append({"kind": kind, "ended": False})


def _delta(state: State, frame: Frame, name: str) -> None:
    kind = DELTAS[name]
    block, entry, index = _active(state, frame, name, kind)
    delta = text_of(frame, "delta", index, InvalidFrame)
    if not delta:
        return
    delta = rejoined(delta)
    if kind in BODY:
        append_text(block, BODY[kind], delta)
    elif "json" in entry:
        append_text(entry, "json", delta)
    else:
        entry["json"] = delta


def _checkpoint(state: State, frame: Frame, name: str) -> None:
    _, entry, index = _active(state, frame, name, TOOL_CALL)
    entry["json"] = rejoined(text_of(frame, "json", index, InvalidFrame))


def _block_end(state: State, frame: Frame, name: str) -> None:
    kind = ENDS[name]
    block, entry, index = _active(state, frame, name, kind)
    ended: dict[str, Any] = {}
    if kind == TOOL_CALL:
        for field in ("id", "name"):
            ended[field] = text_of(frame, field, index, InvalidFrame)
        if "arguments" not in frame:
            raise InvalidFrame(f"the arguments of {name} at index {index} are missing")
        ended = {"arguments": copied(frame["arguments"], InvalidFrame), **ended}
    else:
        ended[BODY[kind]] = rejoined(text_of(frame, "content", index, InvalidFrame))
    copy_fields(frame, END_FIELDS[kind], ended, InvalidFrame)
    # Arguments come first: a tracked state may refuse them, and nothing has been changed then.
    for field, value in ended.items():
        if type(value) is not str or block.get(field) != value:  # a text as it was: nothing to replicate
            block[field] = value
    for field in END_FIELDS[kind]:
        if field not in ended and field in block:
            del block[field]
    entry["ended"] = True


def _active(state: State, frame: Frame, name: str, kind: str) -> tuple[Any, Any, int]:
    """The started, open block of that kind that the frame is about; its entry in the frame state; its index."""
    index = index_of(frame, InvalidFrame)
    content, frame_state = state[MESSAGE]["content"], state[FRAME_STATE]
    entry = frame_state[index] if index < min(len(frame_state), len(content)) else None
    if entry is None:
        raise InvalidFrame(f"{name} is about index {index}, where no block was started")
    if entry["kind"] != kind:
        raise InvalidFrame(f"{name} is about a {spoken(entry['kind'])} block at index {index}")
    if entry["ended"]:
        raise InvalidFrame(f"{name} follows the end of the block at index {index}")
    return content[index], entry, index


_STEPS: Final[dict[str, Callable[[State, Frame, str], None]]] = {
    CHECKPOINT: _checkpoint,
    **dict.fromkeys(STARTS, _block_start),
    **dict.fromkeys(DELTAS, _delta),
    **dict.fromkeys(ENDS, _block_end),
}
