"""Lines that are events or frames of assistant messages: through the reducer into a lane, settled as each ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from scopelog_engine.elements import Json
from scopelog_engine.writer import Receipt

from ..clients.messages import FrameEncoder, InvalidEvent, InvalidFrame, Lane, Operation, Response
from ..session import Session

Kind: TypeAlias = Literal["events", "frames"]
KINDS: Final[tuple[Kind, ...]] = ("events", "frames")
LANE: Final = "main"
EARLY: Final = "The stream ended early: the message is not complete."
"""errorMessage of a message whose end did not come."""
TERMINAL: Final = {"done": "message", "error": "error"}
"""The events that end a stream, and which field of theirs is the message."""


def settled_message(message: Mapping[str, Json], ended: Sequence[bool], cut: str | None = None) -> dict[str, Json]:
    """The message that a stream leaves which says nothing of its end.

    ``message``: the fold; ``ended``: of each block whether it was complete; ``cut``: what has cut the stream off, if
    something has. Complete it is ``toolUse`` if it ends with a tool call, else ``stop``; otherwise an ``error``.
    """
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    if cut is not None or not blocks or not all(ended):
        return {**message, "stopReason": "error", "errorMessage": cut or EARLY}
    last = blocks[-1]
    return {**message, "stopReason": "toolUse" if last.get("type") == "toolCall" else "stop"}


class LaneTarget:
    """Streams into the lane ``main``: one operation a recording, one response for each message of the input.

    A message settles as it ends. The commit that settles the last one ends the operation, if the input ends with it.
    Numbers that JSON does not know become null.
    """

    remedy: Final = "mend that line and record again; what came before it is settled"

    def __init__(self, session: Session, kind: Kind) -> None:
        self.recovered = 0
        self._session = session
        self._kind = kind
        self._lane = Lane(session, LANE)
        self._operation: Operation | None = None
        self._response: Response | None = None
        self._encoder = FrameEncoder()
        self._final: dict[str, Json] | None = None  # the message of the event that ended the response
        self._begun = 0  # responses
        self._settled = 0  # sequence of the last commit that settled something

    @property
    def due(self) -> bool:
        """The response has ended and is not settled: the commit may yet end the operation as well."""
        return self._final is not None

    def open(self) -> None:
        """Settle what an earlier recording that was killed has left."""
        self.recovered = len(self._lane.recover())

    def take(self, element: Json) -> int | None:
        if self._kind == "frames" and element is None:  # what an encoder says to an event that has no frame
            return None
        if self._final is not None:
            self._settle(self._final)
        return self._take_event(element) if self._kind == "events" else self._take_frame(element)

    def _take_event(self, event: Any) -> int | None:
        frame = self._encoder.encode(event)
        field = TERMINAL.get(event["type"])
        if field is not None and not isinstance(event.get(field), dict):
            raise InvalidEvent(f"the {field} of {event['type']} is no message")
        response = self._response or self._begin()
        if frame is not None:
            return response.take(frame)
        if field is not None:
            self._final = event[field]
        return None

    def _take_frame(self, frame: Any) -> int | None:
        if isinstance(frame, dict) and frame.get("type") == "start":
            if self._response is not None:
                self._settle(self._folded(None))
        elif self._response is None:
            raise InvalidFrame("a frame comes before the start frame")
        return (self._response or self._begin()).take(frame)

    def pause(self) -> int | None:
        return None if self._final is None else self._settle(self._final)

    def finish(self, cut: str | None, /) -> int | None:
        """Settle what streams, and end the operation, in one commit. A message that has ended settles as it is."""
        if self._operation is None:
            return None
        message = self._final
        if message is None and self._response is not None:
            message = self._folded(None if cut is None else f"The stream was cut off: {cut}.")
        if message is not None:
            return self._settle(message, end=True)
        return self._stored_by(self._operation.end())

    def stored(self) -> int:
        if self._operation is None:
            return 0
        return max(self._settled, self._session.durable_seq(self._operation.scope))

    def _begin(self) -> Response:
        """The next response, in this recording's operation."""
        if self._operation is None:
            self._operation = self._lane.begin(f"record-{self._session.epoch}")
        self._begun += 1
        self._response = self._operation.response(f"{self._operation.id}.{self._begun}")
        return self._response

    def _folded(self, cut: str | None) -> dict[str, Json] | None:
        """What the frames so far settle as; None if there was no start."""
        message = None if self._response is None else self._response.message
        if not isinstance(message, dict):
            return None
        state = self._lane.state["operation"]["frameState"]
        ended = [entry is None or bool(entry["ended"]) for entry in state]
        return settled_message(message, ended, cut)

    def _settle(self, message: dict[str, Json] | None, *, end: bool = False) -> int:
        assert self._response is not None
        receipt = self._response.settle(message, end=end)
        # Only now: what raised may be settled by the next try.
        self._response = self._final = None
        self._encoder = FrameEncoder()
        return self._stored_by(receipt)

    def _stored_by(self, receipt: Receipt | None) -> int:
        """Remember how far all is stored."""
        if receipt is not None:
            self._settled = receipt.last
        return self._settled
