"""What is wrong with an op, or with where it points. All three are raised before the op, or the change, has any effect.

Of a stream that an applier or a decoder has refused nothing more can be used: drop the replica and the decoder, and
start again at a base. Trackers raise the first two for changes that no op could tell; they go on.
"""

from __future__ import annotations

from scopelog_engine.errors import InvalidInput


class InvalidOp(InvalidInput, TypeError):
    """An op of the wrong shape: no list, an unknown verb, a wrong number or kind of arguments (Chord: TypeError)."""


class UnsafePathError(InvalidInput, ValueError):
    """A path segment that may not be used there: a reserved name, or something that is no key and no index."""


class PathError(InvalidInput, LookupError):
    """A path that leads nowhere in this value, or an id or a short form that stands for no path."""
