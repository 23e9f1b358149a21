"""What is told of a session without reading its history: counts, times, size, name and labels.

All of it stands in the open stretch and in the newest index frame. Of a log that format 1.0 has written, or gone on
with, the newest index frame says no totals: then the stretches since the last one that does are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from .elements import Json
from .errors import CorruptLog
from .frame import Fault
from .lines import Address, Record
from .scan import Walk
from .stretch import Closed, span_of
from .tail import Facts
from .totals import LABELS, NAME, NOTHING, Totals
from .view import LogView


class SessionInfo(NamedTuple):
    """A session at a glance, told by its main log alone: ephemeral scopes are not counted.

    ``name``: None if it has none. ``labels``: free-form, see :meth:`Session.describe`. ``created`` and ``updated``
    (the last commit or window of the session scope): ms since 1970, 0 if there was none. ``commits``: commits and
    windows. ``elements``: appended to lists, those dropped since included. ``frames``: what they stand in.
    ``syncs``: those that the log itself proves, by a mark in a later frame; the newest one has none yet unless the
    session was closed. ``bytes``: of the main log, without preallocated space. Of a compacted log all counts are of
    what it holds.
    """

    id: str
    name: str | None
    labels: dict[str, Json]
    created: int
    updated: int
    commits: int
    elements: int
    frames: int
    syncs: int
    bytes: int


def info_of_nothing(session: str) -> SessionInfo:
    """Of a session that nothing was written to."""
    return SessionInfo(session, None, {}, 0, 0, 0, 0, 0, 0, 0)


def info_of(view: LogView, session: str) -> SessionInfo:
    """What the log says as it stands in ``view``. Raises :class:`CorruptLog`, :class:`ReadFailed`."""
    totals = totals_of(view)
    name, labels = _value_of(view, NAME), _value_of(view, LABELS)
    return SessionInfo(
        session,
        name if isinstance(name, str) else None,
        labels if isinstance(labels, dict) else {},
        view.header.time,
        max(totals.time, view.header.updated),
        totals.commits,
        totals.elements,
        totals.frames,
        totals.syncs,
        view.end,
    )


def totals_of(view: LogView) -> Totals:
    """Totals of a log up to the view's end; ``name`` and ``labels`` tell of closed stretches alone.

    Raises :class:`CorruptLog`, :class:`ReadFailed`.
    """
    tail = view.tail
    before = tail.before if tail.before is not None else _counted(view)
    return tail.facts.totals(before)


def _value_of(view: LogView, address: Address) -> Json:
    record = _latest(view, address)
    return None if record is None else record.value


def _latest(view: LogView, address: Address) -> Record | None:
    tail = view.tail
    if address in tail.values:
        return view.get_in(tail, address)
    if not tail.previous:
        return None
    if tail.before is None:
        return view.get(address)
    offset = tail.before.index_of(address)
    if not offset:
        return None
    closed = view.closed(offset)
    if address not in closed.values:
        raise CorruptLog(
            path=view.path,
            offset=offset,
            sequence=closed.index.last,
            reason="index",
            detail="a later index frame says that its stretch names the session, and it does not",
        )
    return view.get_in(closed, address)


def _counted(view: LogView) -> Totals:
    """Totals up to the open stretch, from the newest index frame that has them or else from the beginning."""
    missing: list[int] = []
    before, mark = NOTHING, 0
    offset = view.tail.previous
    while offset:
        closed = view.closed(offset)
        if closed.totals is not None:
            before, mark = closed.totals, closed.index.mark
            break
        missing.append(offset)
        offset = closed.previous
    time = 0 if view.tail.facts.time else next(_times(view, missing), 0)
    for offset in reversed(missing):
        closed = view.closed(offset)
        before, mark = _after(view, closed, before, mark), closed.index.mark
    return msgspec.structs.replace(before, time=time or before.time)


def _times(view: LogView, offsets: list[int]) -> Iterator[int]:
    """Of the last record of every batch frame, newest first."""
    for offset in offsets:
        for records in view.batches(view.closed(offset), newest_first=True):
            if records:
                yield records[-1].time


def _after(view: LogView, closed: Closed, before: Totals, mark: int) -> Totals:
    """Totals up to the end of a closed stretch's index frame, counted from the envelopes of its frames."""
    facts = Facts(mark)
    facts.lists = closed.lists
    end = closed.index.end
    with view.pinned() as file:
        walk = Walk(file, view.path, closed.start, None, end, view.digest, view.cap)
        for frame, _ in walk:
            facts.count(span_of(frame))
    if walk.offset < end:
        fault = walk.fault or Fault.SHORT
        raise CorruptLog(
            path=view.path, offset=walk.offset, sequence=closed.first - 1, reason=fault.name.lower(), detail=fault.value
        )
    at = closed.index.offset
    return msgspec.structs.replace(
        facts.totals(before),
        name=at if NAME in closed.values else before.name,
        labels=at if LABELS in closed.values else before.labels,
    )
