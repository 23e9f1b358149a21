"""What the tests of recorded messages share: a stream as frames and as events, and what a session holds of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scopelog import Store, list_of
from scopelog.cli.demo import SAMPLE
from scopelog.clients.messages import RecoveredOperation, apply_frame, current_message, fold, recover


def sample() -> list[dict[str, Any]]:
    """The frames of two responses."""
    return [json.loads(line) for line in SAMPLE.read_bytes().split(b"\n") if line]


def responses(frames: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The frames, response by response."""
    found: list[list[dict[str, Any]]] = []
    for frame in frames:
        if frame["type"] == "start":
            found.append([])
        found[-1].append(frame)
    return found


def folded(frames: Iterable[dict[str, Any]], stop_reason: str, **fields: Any) -> dict[str, Any]:
    """The message of one response's frames, as it settles."""
    return {**fold(frames), "stopReason": stop_reason, **fields}  # type: ignore[dict-item]


def events_of(frames: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events that the encoder makes these frames of, without the one that ends the stream."""
    state: dict[str, Any] = {}
    events = []
    for frame in frames:
        apply_frame(state, frame)
        event = copy.deepcopy(frame)
        if frame["type"].endswith(("start", "end")):
            event["partial"] = current_message(state)
        for field in ("content", "toolCall"):
            if frame["type"].endswith("_start"):
                event.pop(field, None)
        if frame["type"] == "toolcall_end":
            event["toolCall"] = event["partial"]["content"][frame["contentIndex"]]
        events.append(event)
    return events


def done(frames: Iterable[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """The event that ends a stream well, with a message that says more than its frames."""
    return {"type": "done", "reason": "stop", "message": folded(frames, "stop", rawStopReason="end_turn", **fields)}


def as_lines(elements: Iterable[Any]) -> list[bytes]:
    return [json.dumps(element).encode() for element in elements]


def settled(store: Path, session: str = "s") -> list[dict[str, Any]]:
    """The entries of the lane, oldest first."""
    with Store.open(store, create=False) as opened, opened.reader(session) as reader:
        return [element.element for element in reader.read(list_of("messages.entries", "main"))]


def messages(store: Path) -> list[Any]:
    return [entry["message"] for entry in settled(store)]


def interrupted(store: Path, session: str = "s") -> list[RecoveredOperation]:
    with Store.open(store, create=False) as opened, opened.reader(session) as reader:
        return recover(reader)


def left_over(store: Path) -> list[str]:
    """Operations and scopes that have not ended."""
    with Store.open(store, create=False) as opened, opened.reader("s") as reader:
        return [*(operation.id for operation in recover(reader)), *reader.scopes()]
