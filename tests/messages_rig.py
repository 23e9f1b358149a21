"""States for the message tests: plain, tracked with a replica, spied on; and a few frames."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence
from typing import Any, Final

from scopelog.clients.messages import apply_frame
from scopelog.delta import UNDEFINED, apply, track

STATES: Final = ["plain", "tracked"]


def spelled(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


class Replicated(MutableMapping[str, Any]):
    """A tracked state together with a replica that is fed with its ops."""

    def __init__(self) -> None:
        self.tracker = track({"streamingMessage": None, "frameState": []})
        self.replica: Any = UNDEFINED
        self.replicate()

    def replicate(self) -> list[Any]:
        ops = self.tracker.flush()
        self.replica = apply(self.replica, copy.deepcopy(ops))
        return list(ops)

    def __getitem__(self, key: str) -> Any:
        return self.tracker.state[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.tracker.state[key] = value

    def __delitem__(self, key: str) -> None:
        del self.tracker.state[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tracker.state)

    def __len__(self) -> int:
        return len(self.tracker.state)


def state_of(kind: str) -> Any:
    return {} if kind == "plain" else Replicated()


START: Final[dict[str, Any]] = {
    "type": "start",
    "partial": {"role": "assistant", "content": [], "stopReason": "pending"},
}
TEXT: Final[dict[str, Any]] = {"type": "text_start", "contentIndex": 0, "content": {"type": "text", "text": ""}}
CALL: Final[dict[str, Any]] = {"type": "toolCall", "id": "c", "name": "bash", "arguments": {}}


def call_start(**fields: Any) -> dict[str, Any]:
    return {"type": "toolcall_start", "contentIndex": 0, "toolCall": {**CALL, **fields}}


def delta(text: Any, index: Any = 0, kind: str = "toolcall") -> dict[str, Any]:
    return {"type": f"{kind}_delta", "contentIndex": index, "delta": text}


THINKING: Final[dict[str, Any]] = {
    "type": "thinking_start",
    "contentIndex": 1,
    "content": {"type": "thinking", "thinking": ""},
}
OPEN: Final[list[Any]] = [START, TEXT, THINKING, {**call_start(), "contentIndex": 2}]


def taken(frames: Iterable[Any], state: Any) -> Any:
    """The state after the frames."""
    for frame in frames:
        apply_frame(state, frame)
    return state


class Tally:
    """Characters that went in and out of the texts of a state."""

    def __init__(self) -> None:
        self.read = self.written = self.appended = 0

    def take(self) -> tuple[int, int, int]:
        taken = self.read, self.written, self.appended
        self.__init__()  # type: ignore[misc]
        return taken

    def wrapped(self, value: Any) -> Any:
        if isinstance(value, str):
            self.written += len(value)
        if isinstance(value, dict):
            return SpiedMapping(self, {key: self.wrapped(item) for key, item in value.items()})
        return SpiedSequence(self, [self.wrapped(item) for item in value]) if isinstance(value, list) else value


class Spied:
    def __init__(self, tally: Tally, data: Any) -> None:
        self.tally = tally
        self.data = data

    def __getitem__(self, key: Any) -> Any:
        value = self.data[key]
        if isinstance(value, str):
            self.tally.read += len(value)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.data[key] = self.tally.wrapped(value)

    def __delitem__(self, key: Any) -> None:
        del self.data[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __contains__(self, key: Any) -> bool:
        return key in self.data

    def append_text(self, key: Any, text: str) -> None:
        self.tally.appended += len(text)
        self.data[key] += text


class SpiedMapping(Spied, MutableMapping[str, Any]):
    pass


class SpiedSequence(Spied, MutableSequence[Any]):
    def insert(self, index: int, value: Any) -> None:
        self.data.insert(index, self.tally.wrapped(value))
