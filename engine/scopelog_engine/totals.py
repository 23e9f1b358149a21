"""Totals: what an index frame says of the whole log up to its own end. Pure; see engine/FORMAT.md, section 5."""

from __future__ import annotations

from typing import Final

import msgspec

from .lines import VALUE, Address

META_NAMESPACE: Final = "scopelog.session"
NAME: Final = Address(META_NAMESPACE, "name", VALUE)
LABELS: Final = Address(META_NAMESPACE, "labels", VALUE)


class Totals(msgspec.Struct, array_like=True, frozen=True):
    """Since the log's beginning: batch frames, lines (a commit or a window each), list elements that were appended,
    the wall-clock time in ms of the last line that holds a write, and durable marks, each distinct one counted once.

    ``name``, ``labels``: offset of the newest index frame, this one included, whose stretch holds a write of the
    session's name or of its labels. 0 stands for none.
    """

    frames: int = 0
    commits: int = 0
    elements: int = 0
    time: int = 0
    syncs: int = 0
    name: int = 0
    labels: int = 0

    def index_of(self, address: Address) -> int:
        """Offset of the index frame to ask for the newest write of :data:`NAME` or :data:`LABELS`, 0 for none."""
        return self.name if address == NAME else self.labels


NOTHING: Final = Totals()
