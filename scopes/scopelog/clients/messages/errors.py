"""What is wrong with an event or a frame. Both are raised before it has any effect; neither quotes a body."""

from __future__ import annotations

from scopelog_engine.errors import InvalidInput


class InvalidEvent(InvalidInput):
    """An event the encoder refuses: malformed, out of order, or about a block that is not there or not open."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause, "send each event once, in the provider's order, with the partial message it came with")

    def __reduce__(self) -> tuple[type[InvalidEvent], tuple[str]]:
        return type(self), (self.cause,)


class InvalidFrame(InvalidInput):
    """A frame the reducer refuses: malformed, out of order, or about a block that is not there or has ended."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause, "drop that frame: frames come once each, in order, from a start frame on")

    def __reduce__(self) -> tuple[type[InvalidFrame], tuple[str]]:
        return type(self), (self.cause,)
