"""Frames of assistant messages in any order: the reducer, its joiner, and a replica that goes on with the state.

A case is a response that is told well, frame by frame, with other frames thrown in. Whatever is refused leaves the
state as it was; what a message holds is told a second time by a naive reading of the frames that were taken.
"""

from __future__ import annotations

import copy
import json
import math
from typing import Any, Final, NamedTuple

from fuzz.domains import Blob, Build, Domain, Either, Many, Mapped, Nested, Number, One, Text
from fuzz.target_wire import applied
from scopelog.clients.messages import (
    FrameEncoder,
    InvalidEvent,
    InvalidFrame,
    apply_frame,
    current_message,
    fold,
    join_frames,
    parse_streaming_json,
)
from scopelog.delta import UNDEFINED, Decoder, Encoder, track

_NAMES: Final = {"text": "text", "thinking": "thinking", "toolcall": "toolCall"}
_BODY: Final = {"text": "text", "thinking": "thinking"}


class Step(NamedTuple):
    """A frame to come: of a block that is there, or a new one. ``other``: a frame that is taken as it is."""

    kind: str
    block: int
    text: str
    value: Any
    other: Any


class Response(NamedTuple):
    content: list[Any]
    steps: list[Step]
    cut: int


TEXTS: Final = Text('ab{}":1,[]\U0001f600\u6c34\ud83d\ude00\\n', 8)
_KEYS: Final = One("a", "type", "text", "", "arguments", "__proto__")
_JUNK: Final = Nested(
    Either[Any](One[Any](None, True, 0, -1, 2.0, 0.5, math.nan, math.inf, 2**53, b"", ()), Number(-2, 5), TEXTS), _KEYS
)
_TYPES: Final = One(
    *[f"{kind}_{part}" for kind in _NAMES for part in ("start", "delta", "end")],
    "start", "toolcall_checkpoint", "done", "error", "of tomorrow",
)  # fmt: skip
_BLOCKS: Final = Build(
    lambda kind, text, junk: {"type": kind, "text": text, "thinking": text, "id": "i", "name": "n", "arguments": junk},
    kind=One(*_NAMES.values()), text=Either[Any](TEXTS, TEXTS, _JUNK), junk=_JUNK,
)  # fmt: skip
_ODD_FRAMES: Final = Either[Any](
    _JUNK,
    Build(
        lambda name, index, text, junk, block: {
            "type": name, "contentIndex": index, "delta": text, "json": text, "content": text if junk else block,
            "toolCall": block, "partial": {"content": [block]} if junk else junk, "arguments": junk, "id": "i",
            "name": "n",
        },
        name=_TYPES, index=Either[Any](Number(0, 4), _JUNK), text=Either[Any](TEXTS, TEXTS, _JUNK), junk=_JUNK,
        block=Either[Any](_BLOCKS, _JUNK),
    ),
    Build(
        lambda name, index, text: {"type": name, "contentIndex": index, "delta": text},
        name=One("text_delta", "thinking_delta", "toolcall_delta"), index=Number(0, 3), text=TEXTS,
    ),
)  # fmt: skip
_STEPS: Final = Build(
    Step,
    kind=One("delta", "delta", "delta", "delta", "start", "start", "end", "checkpoint", "odd"),
    block=Number(0, 255),
    text=TEXTS,
    value=_JUNK,
    other=_ODD_FRAMES,
)
RESPONSES: Final[Domain[Response]] = Either[Response](
    Mapped(Blob(), lambda data: _spoken(data)),
    *[Build(Response, content=One[Any]([], [], [{"type": "text", "text": "x"}]), steps=Many(_STEPS), cut=Number(0, 40))]
    * 3,
)


def _spoken(data: bytes) -> Response:
    """Bytes as JSON, if they are: a list of frames."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = [data.decode("utf-8", "surrogateescape")]
    frames = found if isinstance(found, list) else [found]
    return Response([], [Step("odd", 0, "", None, frame) for frame in frames], len(frames) // 2)


def _spelled(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _frame_of(step: Step, told: _Told) -> Any:
    """The frame that a step comes to."""
    if step.kind == "odd":
        return step.other
    if step.kind == "start" or not told.blocks:
        kind = ("text", "thinking", "toolcall")[step.block % 3]
        block = {
            "type": _NAMES[kind],
            "text": step.text,
            "thinking": step.text,
            "arguments": {},
            "id": "i",
            "name": "n",
        }
        field = "toolCall" if kind == "toolcall" else "content"
        return {"type": f"{kind}_start", "contentIndex": len(told.blocks), field: block}
    index = step.block % len(told.blocks)
    kind = told.blocks[index][0]
    match step.kind:
        case "delta":
            return {"type": f"{kind}_delta", "contentIndex": index, "delta": step.text}
        case "checkpoint":
            return {"type": "toolcall_checkpoint", "contentIndex": index, "json": step.text}
    end = {"type": f"{kind}_end", "contentIndex": index, "content": step.text, "id": "i", "name": "n"}
    return {**end, "arguments": step.value}


class _Told:
    """The second reading: of each block its kind, its text as UTF-16, whether it has ended, and its arguments."""

    def __init__(self, content: list[Any]) -> None:
        self.blocks: list[list[Any]] = [["given", b"", True, None] for _ in content]

    def take(self, frame: Any) -> None:
        """A frame that was not refused."""
        kind, _, part = frame["type"].partition("_")
        if kind not in _NAMES or part not in ("start", "delta", "end", "checkpoint"):
            return
        if part == "start":
            block = frame["toolCall" if kind == "toolcall" else "content"]
            body = block[_BODY[kind]] if kind in _BODY else ""
            self.blocks.append([kind, _units(body), False, None])
            return
        block = self.blocks[int(frame["contentIndex"])]
        if part == "delta":
            block[1] += _units(frame["delta"])
            block[3] = block[3] or bool(frame["delta"])
        elif part == "checkpoint":
            block[1:] = [_units(frame["json"]), False, True]
        else:
            block[1], block[2] = _units(frame["content"]) if kind in _BODY else b"", True

    def check(self, message: Any) -> None:
        content = message["content"]
        assert len(content) == len(self.blocks), "blocks were lost, or came from nowhere"
        for (kind, units, ended, spoken), block in zip(self.blocks, content, strict=True):
            text = units.decode("utf-16-le", "surrogatepass")
            if kind in _BODY:
                assert block[_BODY[kind]] == text, f"{block} does not say {text!r}"
            elif kind == "toolcall" and not ended and spoken:
                assert _spelled(block["arguments"]) == _spelled(parse_streaming_json(text)), f"{block}: {text!r}"


def _units(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")


def check_reducer(response: Response) -> None:
    start = {"type": "start", "partial": {"role": "assistant", "content": response.content}}
    told = _Told(response.content)
    plain: dict[str, Any] = {}
    replicated = _Replicated()
    taken: list[Any] = []
    for number, step in enumerate([None, *response.steps]):
        frame = start if step is None else _frame_of(step, told)
        before, given = _spelled(plain), repr(frame)
        try:
            apply_frame(plain, frame)
        except InvalidFrame as error:
            refusal: InvalidFrame | None = error
        else:
            refusal = None
            taken.append(copy.deepcopy(frame))
            told.take(frame)
        assert repr(frame) == given, "a frame was changed"
        if refusal is not None:
            assert _spelled(plain) == before, f"refused ({refusal}), and the state has changed"
        replicated.take(frame, refusal is None)
        told.check(current_message(plain))
        if number == response.cut:
            replicated.restart()
    _check_folds(taken, plain)
    replicated.check(plain)
    _check_events([step.other for step in response.steps])
    for step in response.steps:
        _check_json(step.text)


def _check_folds(taken: list[Any], state: dict[str, Any]) -> None:
    """The fold over the frames, and over the joined ones, is the state."""
    message = _spelled(current_message(state))
    given = repr(taken)
    assert _spelled(fold(taken)) == message, "the fold is another message than the steps"
    joined = [*join_frames(taken)]
    assert repr(taken) == given, "joining has changed the frames"
    assert sum(count for _, count in joined) == len(taken), "originals are not accounted for"
    assert _spelled(fold([frame for frame, _ in joined])) == message, "joined, the frames are another message"
    at = 0
    for frame, many in joined:
        pieces = [piece["delta"] for piece in taken[at : at + many]] if many > 1 else []
        if pieces and all(map(_storable, pieces)):
            assert _storable(frame["delta"]), "halves of a character have met, and are not one"
        at += many


def _storable(text: str) -> bool:
    return _units(text).decode("utf-16-le", "surrogatepass") == text


class _Replicated:
    """A tracked state, and a replica at the other end of a wire, from a base on."""

    def __init__(self) -> None:
        self._tracker = track({"streamingMessage": None, "frameState": []})
        self.restart()
        self._send(self._tracker.flush())

    def restart(self) -> None:
        """Another reader begins at a base of the present state."""
        self._encoder, self._decoder = Encoder(), Decoder()
        self._replica: Any = UNDEFINED
        self._send([["r", copy.deepcopy(self._tracker.target)]])

    def _send(self, ops: list[Any]) -> None:
        wire = json.loads(json.dumps(self._encoder.encode(ops)))
        self._replica = applied(self._replica, self._decoder.decode(wire))

    def take(self, frame: Any, taken: bool) -> None:
        try:
            apply_frame(self._tracker.state, frame)
        except InvalidFrame:
            assert not taken, "a tracked state refuses what a plain one takes"
        ops = self._tracker.flush()
        assert taken or not ops, "a refused frame was replicated"
        self._send(ops)

    def check(self, plain: dict[str, Any]) -> None:
        message = _spelled(current_message(plain))
        assert _spelled(current_message(self._tracker.state)) == message, "tracked, it is another message"
        assert _spelled(current_message(self._replica)) == message, "the replica shows another message"


def _check_events(events: list[Any]) -> None:
    """Any events: a frame that is JSON, or a refusal after which the encoder is as it was."""
    encoder = FrameEncoder()
    for event in [{"type": "start", "partial": {"content": []}}, *events]:
        try:
            frame = encoder.encode(event)
        except InvalidEvent as error:
            assert error.cause and error.remedy
            continue
        json.dumps(frame, allow_nan=False)


def _check_json(text: str) -> None:
    """Every beginning of a JSON text shows something."""
    found = parse_streaming_json(text)
    try:
        whole = json.loads(text, parse_constant=_none)
    except (ValueError, RecursionError):
        return
    assert _spelled(found) == _spelled(whole) or "\\u" in text, f"{text!r} is {whole}, not {found}"


def _none(name: str) -> None:
    raise ValueError(name)


__all__ = ["RESPONSES", "Response", "check_reducer"]
