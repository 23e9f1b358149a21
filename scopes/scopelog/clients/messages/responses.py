"""A response of the model as it streams in: events or frames to the lane's value, and from there to the store."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from scopelog_engine.elements import NOT_PLAIN, Json, encode_json, freeze

from ...errors import InvalidInput, LimitExceeded
from ...session import given_as
from .copying import finite
from .encoding import FrameEncoder
from .errors import InvalidEvent, InvalidFrame
from .outcomes import MAX_ARGUMENTS_DEPTH, nests_deeper
from .places import assistant_output
from .reducing import apply_frame, current_message
from .settling import Phase, Settling
from .shapes import DELTAS, DONE, ERROR, START
from .streams import Stream
from .viewing import MessageView

if TYPE_CHECKING:
    from .operations import Operation

MAX_BYTES: Final = 20 * 1024 * 1024
"""Bytes of all frames of a response, about: a third of what an element can hold, for a tool call's JSON text and its
arguments stand beside each other, and characters may be escaped."""


class Response(Settling):
    """An assistant message as it streams in: :meth:`feed` the provider's events, or :meth:`take` frames; then
    :meth:`settle`. Made by :meth:`Operation.response`.

    What was fed is in the message at once, and on its way to the disk through the write-behind window.
    """

    kind = "response"

    def __init__(self, operation: Operation, entry_id: str) -> None:
        super().__init__(operation, entry_id)
        lane = operation.lane
        self.final: Json = None
        """The message of the event that ended the stream (``done`` or ``error``), None before."""
        self._encoder = FrameEncoder()
        self._started = False
        self._size = 0
        self._view: MessageView | None = None
        self._state: Any = lane.state["operation"]
        self._stream = Stream(lane.session, assistant_output(operation.id, entry_id), self._value)
        self._where = {"runId": operation.id, "entryId": entry_id}
        operation.current = None
        lane._follow_response(None)
        self._state["streamingMessage"] = None
        self._state["frameState"] = []
        self._state["entryId"] = entry_id
        lane._hand_out()
        lane._follow_response(self._stream)

    def feed(self, event: Json) -> Json:
        """Take the provider's next event; returns its frame, or None if it has none.

        Raises :class:`InvalidEvent` and :class:`InvalidFrame` for what does not fit, without effect, and
        :class:`Fenced` once the message settles. Raises what :meth:`Session.append` raises: the event has been taken
        then, and is stored with the next one; do not feed it again.
        """
        with self._lane._lock:
            self._check_open()
            final = _final_of(event)
            before = None if isinstance(event, dict) and event.get("type") in DELTAS else deepcopy(self._encoder)
            frame = self._encoder.encode(event)
            if frame is not None:
                try:
                    self._take(frame)
                except (InvalidEvent, InvalidFrame):
                    self._encoder = before or self._encoder
                    raise
            elif final is not None:
                self.final = final
            return frame

    def take(self, frame: Json) -> int | None:
        """Take the next frame; returns the sequence under which its change is staged, None if it changes nothing.

        Raises as :meth:`feed`.
        """
        with self._lane._lock:
            self._check_open()
            return self._take(frame)

    def _take(self, frame: Json) -> int | None:
        if not isinstance(frame, dict):
            raise InvalidFrame(f"the frame is {given_as(frame)}, not a dict")
        kind = frame.get("type")
        if kind != START and not self._started:
            raise InvalidFrame("a frame comes before the start frame")
        if kind not in DELTAS:
            frame = finite(frame)  # arguments that were parsed may hold what JSON cannot
            _check_storable(frame)
        size = self._size_with(frame)
        try:
            apply_frame(self._state, frame)
            if self._view is not None:
                self._view.follow(frame)
        except InvalidInput:
            raise
        except BaseException:
            self._view = None
            self._lane._distrust()
            raise
        self._size = size
        self._started = True
        self._lane._hand_out()
        try:
            return self._stream.write()
        finally:  # it was taken, stored or not
            if self._lane._listened:
                event = {"message": self.message} if kind == START else {"frame": frame}
                kind = "message_start" if kind == START else "message_update"
                self._lane._emit([{"type": kind, **self._where, **event}], self._lane._audience_now())

    def _size_with(self, frame: dict[str, Json]) -> int:
        """Bytes of the frames so far and this one, about. Raises :class:`LimitExceeded` above :data:`MAX_BYTES`, so
        that whatever was taken can be stored as one element, settled and recovered."""
        delta = frame.get("delta")
        size = len(delta) if type(delta) is str and delta.isascii() else _bytes_of(frame)
        if self._size + size > MAX_BYTES:
            raise LimitExceeded(f"the message would take more than {MAX_BYTES} bytes", "settle it, and begin another")
        return self._size + size

    @property
    def message(self) -> Json:
        """A copy of the message as it stands, tool arguments derived from what has come of them; None before the
        start. Its cost grows with the message: for updates use the frames."""
        with self._lane._lock:
            return current_message(self._state)

    @property
    def view(self) -> MessageView:
        """The message to look at after every frame, at the cost of the frames: its :attr:`MessageView.message` is
        always current, but for the arguments of a tool call that streams, which are refreshed at its start, checkpoint
        and end, and by :meth:`MessageView.refresh`."""
        with self._lane._lock:
            if self._view is None:
                self._view = MessageView(self._state)
            return self._view

    # --- settling ---------------------------------------------------------------------------------

    def _value(self) -> Json:
        return {field: finite(self._state[field]) for field in ("streamingMessage", "frameState")}

    def _is_current(self) -> bool:
        return self.operation.current is self

    def _message(self, message: Json) -> Json:
        message = self.final if message is None else message
        if message is None:
            raise InvalidInput("there is no message to settle", "feed the event that ends it, or pass a message")
        if not isinstance(message, dict):
            raise InvalidInput(f"the message is {given_as(message)}, not a dict", "pass an assistant message")
        if message.get("role") != "assistant" or message.get("stopReason") == "pending":
            raise InvalidInput(
                f"a message of role {message.get('role')!r} and stopReason {message.get('stopReason')!r} cannot settle",
                "pass an assistant message with the reason why it stopped",
            )
        return message

    def _entry(self, message: Json) -> dict[str, Json]:
        return {"entryId": self.id, "message": message}

    def _supersede(self) -> None:
        """Another response takes its place: what it has streamed is not to be found again."""
        if self.phase is Phase.OPEN:
            self._stream.void()

    def _leave(self) -> None:
        self._state["streamingMessage"] = None
        self._state["frameState"] = []
        self._state["entryId"] = None
        self._lane._hand_out()
        self._lane._follow_response(None)
        self.operation.current = None  # last: what was interrupted before is done again

    def _events(self, message: Json) -> list[dict[str, Json]]:
        end = {"type": "message_end", **self._where, "message": message}
        return [end] if self._started else [{**end, "type": "message_start"}, end]


def _final_of(event: Json) -> Json:
    """The message of an event that ends a stream, None of any other. Raises :class:`InvalidEvent` if it has none."""
    kind = event.get("type") if isinstance(event, dict) else None
    if kind not in (DONE, ERROR):
        return None
    message = event.get("message" if kind == DONE else "error")
    if not isinstance(message, dict):
        raise InvalidEvent(f"{kind} holds a {type(message).__name__}, not a message")
    return finite(message)


def _check_storable(frame: dict[str, Json]) -> None:
    """Raise :class:`InvalidFrame` for what no element could hold, wherever the frame puts it."""
    if nests_deeper(frame, MAX_ARGUMENTS_DEPTH):
        raise InvalidFrame(f"a frame nests deeper than {MAX_ARGUMENTS_DEPTH}")
    try:
        freeze(frame)
    except InvalidInput as error:
        raise InvalidFrame(f"a frame cannot be stored: {error.cause}") from error


def _bytes_of(frame: dict[str, Json]) -> int:
    try:
        return len(encode_json(frame))
    except NOT_PLAIN:  # half a character
        return len(json.dumps(frame))
