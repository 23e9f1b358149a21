"""What a lane has stored, read back: by the session itself, or by a reader beside it."""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeAlias

from scopelog_engine.elements import Json
from scopelog_engine.layout import MAX_DEPTH

from ...addresses import SESSION, EphemeralScope, List, Scope, SessionScope, Value
from ...delta import UNDEFINED, Decoder, apply, join_batches
from ...results import Element
from ...results import Entry as StoredValue
from ...session import Order
from .outcomes import nests_deeper, sendable_message
from .places import BASE, entries

_STREAM_PAGE: Final = 10_000
_ENTRY_PAGE: Final = 256

Entry: TypeAlias = dict[str, Json]
"""A settled message: ``{"entryId", "message"}``. That of a tool result is its invocation's id."""


class Source(Protocol):
    """A session, or a reader beside it."""

    def get(self, address: Value[Scope], default: Json = None) -> Json: ...

    def scan(self, namespace: str, prefix: str = "", *, scope: Scope = SESSION) -> list[StoredValue]: ...

    def lists(self, scope: EphemeralScope, namespace: str, prefix: str = "") -> list[str]: ...

    def read(
        self,
        target: List[Scope],
        *,
        cursor: int | None = None,
        order: Order = "asc",
        limit: int | None = None,
        stop_at_tag: str | None = None,
    ) -> list[Element]: ...


def read_stream(source: Source, target: List[EphemeralScope]) -> tuple[int, Any]:
    """A stream's newest sequence, and the value that its batches add up to, from its newest base on: ``UNDEFINED`` if
    it holds no base.

    Raises what reads raise, and what the decoder and ``apply`` raise for batches that do not fit.
    """
    newest_first: list[Element] = []
    cursor: int | None = None
    while True:
        page = source.read(target, cursor=cursor, order="desc", limit=_STREAM_PAGE, stop_at_tag=BASE)
        newest_first += page
        if len(page) < _STREAM_PAGE or page[-1].tag == BASE:
            break
        cursor = page[-1].seq
    if not newest_first or newest_first[-1].tag != BASE:
        return newest_first[0].seq if newest_first else 0, UNDEFINED
    decoder = Decoder()
    value: Any = UNDEFINED
    batches = [element.element for element in reversed(newest_first)]
    for batch, _ in join_batches(batches):  # which is quicker than one by one: most are appends to one text
        value = apply(value, decoder.decode(batch))
    return newest_first[0].seq, value


def response_state(value: Any) -> dict[str, Any] | None:
    """The reducer's state in a response's stream; None if it has none, or is not what the reducer would leave."""
    if not isinstance(value, dict) or nests_deeper(value, MAX_DEPTH):
        return None
    message, frame_state = value.get("streamingMessage"), value.get("frameState")
    if not isinstance(message, dict) or not isinstance(frame_state, list):
        return None
    content = message.get("content")
    if not isinstance(content, list) or len(content) != len(frame_state):
        return None
    return value if all(map(_is_block, content)) and all(map(_is_frame_state, frame_state)) else None


def _is_block(block: Any) -> bool:
    if not isinstance(block, dict) or type(block.get("type")) is not str:
        return False
    return all(type(block.get(field, "")) is str for field in ("text", "thinking", "id", "name"))


def _is_frame_state(entry: Any) -> bool:
    if entry is None:
        return True
    if not isinstance(entry, dict) or type(entry.get("kind")) is not str or type(entry.get("ended")) is not bool:
        return False
    return type(entry.get("json", "")) is str


def entries_since(source: Source, target: List[SessionScope], sequence: int) -> list[tuple[int, Entry]]:
    """Settled messages that are younger than a sequence, with theirs, newest first. Reads no older history."""
    found: list[tuple[int, Entry]] = []
    cursor: int | None = None
    while True:
        page = source.read(target, cursor=cursor, order="desc", limit=_ENTRY_PAGE)
        for element in page:
            if element.seq <= sequence:
                return found
            if isinstance(element.element, dict):
                found.append((element.seq, element.element))
        if len(page) < _ENTRY_PAGE:
            return found
        cursor = page[-1].seq


def settled_name(entry: Entry) -> tuple[str, str]:
    """What an entry settles: the kind and the name of a tool's invocation, or of a response."""
    message = entry.get("message")
    tool = isinstance(message, dict) and message.get("role") == "toolResult"
    return "tool" if tool else "response", str(entry.get("entryId"))


def history(source: Source, lane: str = "main", *, limit: int | None = None) -> list[dict[str, Json]]:
    """The settled messages of a lane, oldest first (the last ``limit`` of them), in the form that providers take:
    assistant messages by :func:`sendable_message`, others as they were stored.

    Raises what reads raise.
    """
    found: list[dict[str, Json]] = []
    for element in reversed(source.read(entries(lane), order="desc", limit=limit)):
        message = element.element.get("message") if isinstance(element.element, dict) else None
        if isinstance(message, dict) and message.get("role") == "assistant":
            message = sendable_message(message)
        if isinstance(message, dict):
            found.append(message)
    return found
