"""scopelog.delta: changes of JSON values as ops, compatible with Chord 0.87.1.

Layout::

    ops         what an op looks like, decoded and on the wire; checks of its shape
    applying    apply(), apply_immutable(), UNDEFINED: ops onto a value
    codec       Encoder, Decoder: path ids and paths left out
    revisions   diff_revisions(): ops between two immutable revisions
    joining     join_batches(): a coalescer for lists of encoded batches
    tracker     track(), Tracker: ops from mutations of plain dicts and lists
                (tracked, tracked_list, node: the views; recording: from changes to ops; values: what may be tracked;
                textbuffer: a text under construction)
    overlap     overlap(): how much of a string's end begins another
    texts       append_text(), drop_text(): a text's end and front, without comparing the rest
    utf16       strings measured in UTF-16 units
    errors      InvalidOp, UnsafePathError, PathError

What is exported here is the public interface; every other name may change.
"""

from __future__ import annotations

from .applying import UNDEFINED, apply, apply_immutable
from .codec import Decoder, Encoder
from .errors import InvalidOp, PathError, UnsafePathError
from .joining import join_batches
from .ops import is_base
from .overlap import overlap
from .revisions import diff_revisions
from .texts import append_text, drop_text
from .tracker import Tracker, track

__all__ = [
    "UNDEFINED",
    "Decoder",
    "Encoder",
    "InvalidOp",
    "PathError",
    "Tracker",
    "UnsafePathError",
    "append_text",
    "apply",
    "apply_immutable",
    "diff_revisions",
    "drop_text",
    "is_base",
    "join_batches",
    "overlap",
    "track",
]
