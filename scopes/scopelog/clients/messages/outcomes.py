"""What becomes of messages and tool outputs: as they are settled, and as a provider takes them. Pure functions.

An interrupted message says so where it is settled: stopReason ``error``, a fixed errorMessage, usage zeroed, for what
it cost nobody knows. A provider takes messages back only if they are well-formed: no empty blocks, no halves of
characters, arguments that are objects, an answer to every tool call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from scopelog_engine.elements import Json, freeze

from ...delta import utf16
from ...errors import InvalidInput
from .copying import finite

INTERRUPTED: Final = "The response was interrupted before it was complete; what had been received is kept."
"""errorMessage of a recovered message."""
NO_RESULT: Final = "The tool call was interrupted: it has no result."
PARTIAL_RESULT: Final = "[interrupted: this is the output up to then]"

MAX_ARGUMENTS_DEPTH: Final = 240
"""What of the 256 levels of an element is left to the arguments of a tool call, beside what they stand in."""

_ZERO: Final = ("input", "output", "cacheRead", "cacheWrite")
_BODY: Final = {"text": "text", "thinking": "thinking"}
_SIGNATURE: Final = {"text": "textSignature", "thinking": "thinkingSignature"}


def storable(message: dict[str, Json]) -> dict[str, Json]:
    """The message, or what is left of it where no element can hold it: nothing of its content."""
    try:
        freeze({"message": message})
    except InvalidInput as error:
        if message.get("role") == "toolResult":
            return tool_result(str(message["toolCallId"]), {"text": NO_RESULT}, is_error=True)
        return recovered_message(None, error=f"{INTERRUPTED} It is left out here: {error.cause}.")
    return message


def nests_deeper(value: Any, limit: int) -> bool:
    """Whether containers stand inside each other more than ``limit`` deep."""
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, (dict, list)):
            if depth > limit:
                return True
            pending += [(inner, depth + 1) for inner in (item.values() if isinstance(item, dict) else item)]
    return False


def no_usage() -> dict[str, Json]:
    """Usage of nothing."""
    return {
        **dict.fromkeys(_ZERO, 0),
        "totalTokens": 0,
        "cost": {**dict.fromkeys(_ZERO, 0), "total": 0},
    }


def recovered_message(
    fold: Json, timestamp: int = 0, *, stop_reason: str = "error", error: str = INTERRUPTED
) -> dict[str, Json]:
    """The settled form of an interrupted message. ``fold``: the message as it was, None if none had begun.

    ``timestamp`` (ms) is for a message that has none. Arguments that nest over 240 become ``{}``. The fold is not
    changed.
    """
    message: dict[str, Json] = finite(fold) if isinstance(fold, Mapping) else {}
    unknown = {"role": "assistant", "content": [], "api": "unknown", "provider": "unknown", "model": "unknown"}
    message = {**unknown, **message}
    for block in message["content"] if isinstance(message["content"], list) else ():
        if isinstance(block, dict) and nests_deeper(block.get("arguments"), MAX_ARGUMENTS_DEPTH):
            block["arguments"] = {}  # no element could hold it, and then nothing could be settled
    message["usage"] = no_usage()
    message["stopReason"] = stop_reason
    message["errorMessage"] = error
    message.setdefault("timestamp", timestamp)
    return message


def sendable_message(message: Json, ended: Iterable[bool] | None = None) -> dict[str, Json] | None:
    """The message as a provider takes it back; None if nothing of it is left.

    ``ended``: for each block whether it was complete. None: all of them, but for the last one of a message that ended
    in ``error`` or ``aborted``. Text that was cut stays as it is; thinking that was cut and has no signature goes, and
    so do blocks without text and calls without id or name. Arguments that are no object become one without members.
    Lone halves of surrogate pairs become U+FFFD; at the end of a cut text they go.
    """
    if not isinstance(message, Mapping):
        return None
    content = list(message.get("content") or ())
    complete = [True] * len(content) if ended is None else list(ended)
    if ended is None and content and message.get("stopReason") in ("error", "aborted"):
        complete[-1] = False
    blocks = [_sendable(block, whole) for block, whole in zip(content, complete, strict=False)]
    left = [block for block in blocks if block is not None]
    return {**_well_formed(finite(dict(message))), "content": left} if left else None


def _sendable(block: Any, whole: bool) -> dict[str, Json] | None:
    if not isinstance(block, Mapping):
        return None
    block = finite(dict(block))
    kind = block.get("type")
    if kind == "toolCall":
        if not block.get("id") or not block.get("name"):
            return None
        if not isinstance(block.get("arguments"), dict):
            block["arguments"] = {}
    elif kind in _BODY:
        text = block.get(_BODY[kind]) or ""
        if not whole and text and utf16.is_high(text[-1]):
            text = block[_BODY[kind]] = text[:-1]
        cut = kind == "thinking" and not whole
        if (cut or not text.strip()) and not block.get(_SIGNATURE[kind]):
            return None
    formed: dict[str, Json] = _well_formed(block)
    return formed


def _well_formed(value: Json) -> Json:
    """The value without lone halves of surrogate pairs; its containers are changed in place."""
    if isinstance(value, str):
        return _characters(value)
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            for key in [key for key in item if utf16.has_surrogates(key)]:
                item[_characters(key)] = item.pop(key)
            places: Any = item.items()
        elif isinstance(item, list):
            places = enumerate(item)
        else:
            continue
        for key, inner in list(places):
            if isinstance(inner, str):
                item[key] = _characters(inner)
            else:
                pending.append(inner)
    return value


def _characters(text: str) -> str:
    if not utf16.has_surrogates(text):
        return text
    return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)


def tool_calls(message: Json) -> dict[str, str]:
    """The tool calls of a message: names by id."""
    content = message.get("content") if isinstance(message, Mapping) else None
    return {
        str(block["id"]): str(block.get("name") or "")
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, Mapping) and block.get("type") == "toolCall" and block.get("id")
    }


def output_of(value: Any) -> dict[str, Json]:
    """A tool's output as it was stored, or an empty one for anything else."""
    if isinstance(value, dict) and type(value.get("text")) is str:
        counts = ("droppedBytes", "droppedLines")
        return {key: item for key, item in value.items() if key not in counts or (type(item) is int and item >= 0)}
    return {"text": ""}


def tool_result(
    call: str, output: Mapping[str, Json], name: str = "", timestamp: int = 0, *, is_error: bool = False
) -> dict[str, Json]:
    """The message that a tool's output makes when it settles."""
    text = str(output["text"])
    return {
        "role": "toolResult",
        "toolCallId": call,
        "toolName": name,
        "content": [{"type": "text", "text": text}] if text else [],
        **({"details": output["details"]} if "details" in output else {}),
        "isError": is_error,
        "timestamp": timestamp,
    }


def interrupted_result(
    call: str, output: Mapping[str, Json] | None, name: str = "", timestamp: int = 0
) -> dict[str, Json]:
    """The answer to a tool call that was interrupted; ``output``: what the tool had put out, None if nothing."""
    text = str(output["text"]) if output else ""
    text = f"{text}\n{PARTIAL_RESULT}" if text.strip() else NO_RESULT
    return tool_result(call, {**(output or {}), "text": _well_formed(text)}, name, timestamp, is_error=True)
