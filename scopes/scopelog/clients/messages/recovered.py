"""What becomes of an interrupted message: as it is settled, and as a provider takes it. Pure functions.

Settled, it says that it failed: stopReason ``error``, a fixed errorMessage, usage zeroed, for what it cost nobody
knows. A provider takes it back only if it is well-formed: no empty blocks, no halves of characters, arguments that
are objects, an answer to every tool call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from scopelog_engine.elements import Json

from ...delta import utf16
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


def recovered_message(fold: Json, timestamp: int = 0) -> dict[str, Json]:
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
    message["stopReason"] = "error"
    message["errorMessage"] = INTERRUPTED
    message.setdefault("timestamp", timestamp)
    return message


def sendable_message(message: Json, ended: Iterable[bool] | None = None) -> dict[str, Json] | None:
    """The message as a provider takes it back; None if nothing of it is left.

    ``ended``: for each block whether it was complete (None: all). Text that was cut stays as it is, thinking that was
    cut goes (its signature is missing), so do blocks without text and calls without id or name. Arguments that are no
    object become one without members. Lone halves of surrogate pairs become U+FFFD; at the end of a cut text they go.
    """
    if not isinstance(message, Mapping):
        return None
    content = list(message.get("content") or ())
    complete = [True] * len(content) if ended is None else list(ended)
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
        if (kind == "thinking" and not whole) or (not text.strip() and not block.get(_SIGNATURE[kind])):
            return None
    formed: dict[str, Json] = _well_formed(block)
    return formed


def _well_formed(value: Json) -> Json:
    """A copy without lone halves of surrogate pairs."""
    if isinstance(value, str):
        if not utf16.has_surrogates(value):
            return value
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in value)
    if isinstance(value, dict):
        return {_well_formed(key): _well_formed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_well_formed(item) for item in value]
    return value


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


def tool_result(invocation: str, output: Mapping[str, Json], name: str = "", timestamp: int = 0) -> dict[str, Json]:
    """The message that a tool's output makes when it settles."""
    text = str(output["text"])
    return {
        "role": "toolResult",
        "toolCallId": invocation,
        "toolName": name,
        "content": [{"type": "text", "text": text}] if text else [],
        **({"details": output["details"]} if "details" in output else {}),
        "isError": False,
        "timestamp": timestamp,
    }


def interrupted_result(
    invocation: str, output: Mapping[str, Json] | None, name: str = "", timestamp: int = 0
) -> dict[str, Json]:
    """The answer to a tool call that a crash has interrupted; ``output``: what it had put out, None if nothing."""
    text = str(output["text"]) if output else ""
    text = f"{text}\n{PARTIAL_RESULT}" if text.strip() else NO_RESULT
    result = tool_result(invocation, {**(output or {}), "text": _well_formed(text)}, name, timestamp)
    return {**result, "isError": True}
