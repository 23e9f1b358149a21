"""What a stream of events or frames comes to, line by line: by the reducer alone, without a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scopelog_engine.elements import Json

from ..clients.messages import FrameEncoder, InvalidFrame, apply_frame, current_message, finite
from ..errors import InvalidInput
from .output import as_json
from .streaming import KINDS, TERMINAL, Kind, settled_message


class Replay:
    """The messages that had settled after the lines so far, and the one that streams."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.settled: list[Json] = []
        self.lines = 0
        """Of the message that streams."""
        self._begin()

    def _begin(self) -> None:
        self.lines = 0
        self._state: dict[str, Any] = {}
        self._encoder = FrameEncoder()

    def take(self, element: Any) -> None:
        """The next line. Raises :class:`InvalidInput` for one that does not fit."""
        frame = self._encoder.encode(element) if self._kind == "events" else element
        if self._kind == "frames":
            name = element.get("type") if isinstance(element, dict) else None
            if name == "start" and self.lines:
                self._settle()
            elif name != "start" and not self.lines:
                raise InvalidFrame("a frame comes before the start frame")
        self.lines += 1
        if frame is not None:
            apply_frame(self._state, frame)
        elif element["type"] in TERMINAL:
            message = element.get(TERMINAL[element["type"]])
            if not isinstance(message, dict):
                raise InvalidInput("a stream ends without its message", "record its done or error whole")
            self.settled.append(finite(message))
            self._begin()

    def finish(self) -> list[Json]:
        """The messages that settle if the stream ends here."""
        if self.lines:
            self._settle()
        return self.settled

    def _settle(self) -> None:
        ended = [entry is None or entry["ended"] for entry in self._state["frameState"]]
        self.settled.append(settled_message(self.message, ended))
        self._begin()

    @property
    def message(self) -> Any:
        """The message that streams, as it would be recovered; None if none does."""
        return finite(current_message(self._state))


def kind_of(elements: Sequence[Json]) -> Kind | None:
    """What the lines are: events or frames from their start to their end, or None for anything else."""
    # Frames have no end, and do not notice the one of events; a start alone may be either.
    ends = any(isinstance(element, dict) and element.get("type") in tuple(TERMINAL) for element in elements)
    for kind in KINDS if ends else reversed(KINDS):
        try:
            if replayed(elements, kind).finish():
                return kind
        except InvalidInput:
            continue
    return None


def replayed(elements: Iterable[Json], kind: Kind) -> Replay:
    """Where the stream stands after these lines."""
    replay = Replay(kind)
    for element in elements:
        replay.take(element)
    return replay


def same(one: Json, other: Json) -> bool:
    """Whether both are the same JSON, the order of members included."""
    return as_json(one) == as_json(other)
