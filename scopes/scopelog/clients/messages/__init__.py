"""Assistant messages while they stream, recorded so that the partial message survives a crash.

Layout, the pure part::

    encoding        FrameEncoder: one event, one frame or none
    reducing        apply_frame: one frame into a state; fold and current_message: the message of frames, of a state
    viewing         MessageView: the message for listeners, without a copy for each frame
    frames_joining  join_frames: the coalescer for lists of frames
    streaming_json  parse_streaming_json: arguments from as much of their text as there is
                    (strict_json, repairing, partial_json: its three parts)
    copying         finite: NaN and the infinities to None; private copies
    outcomes        what messages and tool outputs are settled as, and what a provider takes
    retention       the head or tail of a text within caps
    shapes          kinds of blocks, fields that travel, checks

and what records it::

    lane            Lane: what runs, what it shows, listeners and replicas
    watching        live views of a lane
    operations      Operation: one scope, from its beginning to the commit that retires it
    responses       Response: an assistant message that streams
    tools           ToolSink: a tool's output
    settling        how both settle once, whatever raises
    streams         encoded op batches into an ephemeral list
    reading         and back
    recovering      recover: what a crash has interrupted
    following       FollowedMessages: what another process records, folded as it comes
    places          which lists and values all this is
    aio             the same for asyncio, imported from there
    errors, fencing InvalidEvent, InvalidFrame; Fenced

Events, frames, messages and states are plain JSON data, spelled as pi-ai 0.87.1 spells them.
"""

from __future__ import annotations

from .copying import finite
from .encoding import FrameEncoder
from .errors import InvalidEvent, InvalidFrame
from .fencing import Fenced
from .following import FollowedMessages
from .frames_joining import join_frames
from .lane import Lane
from .operations import Operation
from .outcomes import recovered_message, sendable_message
from .reading import history
from .recovering import RecoveredOperation, RecoveredResponse, RecoveredTool, recover
from .reducing import apply_frame, current_message, fold
from .responses import Response
from .streaming_json import parse_streaming_json
from .tools import ToolSink
from .viewing import MessageView
from .watching import Ops

__all__ = [
    "Fenced",
    "FollowedMessages",
    "FrameEncoder",
    "InvalidEvent",
    "InvalidFrame",
    "Lane",
    "MessageView",
    "Operation",
    "Ops",
    "RecoveredOperation",
    "RecoveredResponse",
    "RecoveredTool",
    "Response",
    "ToolSink",
    "apply_frame",
    "current_message",
    "finite",
    "fold",
    "history",
    "join_frames",
    "parse_streaming_json",
    "recover",
    "recovered_message",
    "sendable_message",
]
