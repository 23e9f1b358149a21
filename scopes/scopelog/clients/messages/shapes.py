"""The shapes of events and frames: the three kinds of blocks, which of their fields travel, and small checks.

Everything is plain JSON data. A check returns what is wrong as a :data:`Refusal` makes it; no message quotes more
than type names, kinds and indices.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from .copying import Refusal, copied

TEXT: Final = "text"
THINKING: Final = "thinking"
TOOL_CALL: Final = "toolCall"

BODY: Final = {TEXT: "text", THINKING: "thinking"}
"""The field of a block that its deltas append to. Those of a tool call append to text that is not in the block."""

MESSAGE_FIELDS: Final = (
    ("api", "provider", "model", "responseModel", "responseId", "providerThinkingLevel", "diagnostics", "usage"),
    ("timestamp",),
)
"""What the start frame takes of the message, before and after ``stopReason``. Settlement fields stay behind."""

BLOCK_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    TEXT: ("text", "textSignature"),
    THINKING: ("thinking", "thinkingSignature", "redacted"),
    TOOL_CALL: ("id", "name", "arguments", "thoughtSignature", "namespace"),
}
"""What a start frame takes of a block, beside its type."""

END_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    TEXT: ("textSignature",),
    THINKING: ("thinkingSignature", "redacted"),
    TOOL_CALL: ("thoughtSignature", "namespace"),
}
"""The optional fields of an end frame: one that is absent is removed from the block."""

STARTS: Final = {"text_start": TEXT, "thinking_start": THINKING, "toolcall_start": TOOL_CALL}
DELTAS: Final = {"text_delta": TEXT, "thinking_delta": THINKING, "toolcall_delta": TOOL_CALL}
ENDS: Final = {"text_end": TEXT, "thinking_end": THINKING, "toolcall_end": TOOL_CALL}
START: Final = "start"
CHECKPOINT: Final = "toolcall_checkpoint"
DONE: Final = "done"
ERROR: Final = "error"

BLOCK_OF: Final = {"text_start": "content", "thinking_start": "content", "toolcall_start": "toolCall"}
"""The field of a start frame that holds the block."""

KNOWN_TYPES: Final = frozenset((START, CHECKPOINT, DONE, ERROR, *STARTS, *DELTAS, *ENDS))

MAX_INDEX: Final = 2**53 - 1  # what JavaScript calls a safe integer


def type_of(thing: object, what: str, refuse: Refusal) -> str:
    """The type of an event or frame."""
    if not isinstance(thing, Mapping):
        raise refuse(f"the {what} is a {type(thing).__name__}, not a mapping")
    name = thing.get("type")
    if type(name) is not str:
        raise refuse(f"the type of the {what} is a {type(name).__name__}, not a str")
    return name


def spoken(name: object) -> str:
    """A type or kind, for messages."""
    return name if isinstance(name, str) and (name in KNOWN_TYPES or name in BLOCK_FIELDS) else "unknown"


def index_of(thing: Mapping[str, Any], refuse: Refusal) -> int:
    """The content index: an integer from 0 to 2**53-1; a float that is integral counts, a bool does not."""
    index = thing.get("contentIndex")
    if type(index) is float and index.is_integer():
        index = int(index)
    if type(index) is int and 0 <= index <= MAX_INDEX:
        return index
    raise refuse(f"the contentIndex of {spoken(thing['type'])} is no integer from 0 to 2**53-1")


def text_of(thing: Mapping[str, Any], field: str, index: int, refuse: Refusal) -> str:
    """A field that must be a str."""
    value = thing.get(field)
    if type(value) is not str:
        found = f"is a {type(value).__name__}, not a str" if field in thing else "is missing"
        raise refuse(f"the {field} of {spoken(thing.get('type'))} at index {index} {found}")
    return value


def check_block(block: Any, kind: str, index: int, refuse: Refusal) -> None:
    """The fields of a block that the encoder and the reducer work on."""
    if kind in BODY:
        text_of(block, BODY[kind], index, refuse)
        return
    for field in ("id", "name"):
        if field in block:
            text_of(block, field, index, refuse)


def copy_fields(
    source: Mapping[str, Any], names: tuple[str, ...], target: MutableMapping[str, Any], refuse: Refusal
) -> None:
    """Copies of those of the fields that are there."""
    for name in names:
        if name in source:
            target[name] = copied(source[name], refuse)
