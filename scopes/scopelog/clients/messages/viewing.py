"""The message for listeners in the same process, kept current at the cost of what each frame brings."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from .copying import copied
from .errors import InvalidFrame
from .reducing import FRAME_STATE, MESSAGE, Frame, apply_frame, derive_arguments
from .shapes import CHECKPOINT
from .streaming_json import parse_streaming_json


class MessageView:
    """A state together with its message as plain data, for one response.

    ``arguments`` of a tool call that streams are refreshed at its start, checkpoint and end, and by
    :meth:`refresh`; deltas leave them as they are, so that reading the message after every delta is not quadratic.
    Everything else is always current. Each frame comes through :meth:`apply`, or, if others take it into the state,
    through :meth:`follow`.
    """

    __slots__ = ("_own", "_state")

    def __init__(self, state: MutableMapping[str, Any]) -> None:
        """A view of the state, which may be plain or tracked, before or in the middle of a response."""
        self._state = state
        self._own: dict[str, Any] = {
            MESSAGE: copied(state.get(MESSAGE), InvalidFrame),
            FRAME_STATE: copied(state.get(FRAME_STATE) or [], InvalidFrame),
        }
        self.refresh()

    @property
    def message(self) -> Any:
        """The message, or None before ``start``: the view's own object, the same at each read, changed by
        :meth:`apply` and :meth:`refresh`.

        Read it and encode it at once; copy what is to be kept; never change it. Changes would not reach the state,
        and the view would go on from them. Whoever holds on to a text of it makes the next delta copy that text.
        """
        return self._own[MESSAGE]

    def apply(self, frame: Frame) -> None:
        """Take the frame into the state and the view. Raises :class:`InvalidFrame`, with both untouched."""
        apply_frame(self._state, frame)
        self.follow(frame)

    def follow(self, frame: Frame) -> None:
        """Take a frame into the view that the state has taken already."""
        apply_frame(self._own, frame)
        if frame["type"] == CHECKPOINT and self.message is not None:
            index = int(frame["contentIndex"])
            json = self._own[FRAME_STATE][index]["json"]
            self.message["content"][index]["arguments"] = parse_streaming_json(json)

    def refresh(self) -> Any:
        """Derive ``arguments`` of the tool calls that still stream from their text so far; the message.

        Takes time that grows with those texts.
        """
        if self.message is not None:
            derive_arguments(self.message, self._own[FRAME_STATE])
        return self.message
