"""The write-behind window's contents: how runs of staged elements are joined, and how a window becomes lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .elements import freeze, thaw
from .errors import CoalescerFailed
from .layout import FRAME_TARGET_BYTES, OWN_FRAME_BYTES
from .lines import APPEND, Address, Line, Record
from .scope import ListState, Staged, names_bytes, sequence_of, text_bytes

_log = logging.getLogger(__name__)


def join(entries: Sequence[Staged], only: Address | None = None) -> tuple[list[Staged], CoalescerFailed | None]:
    """Join runs by their lists' coalescers and seal the result; order by sequence is kept.

    A run never crosses a tag or an element sealed earlier. ``only`` joins one list and leaves the others open.
    A coalescer that raises leaves its run as it was, sealed; the error is returned beside the entries.
    """
    out: list[Staged] = []
    runs: dict[ListState, list[Staged]] = {}
    failure: CoalescerFailed | None = None

    def end(run: list[Staged]) -> None:
        nonlocal failure
        joined, failed = _join_run(run)
        out.extend(joined)
        failure = failure or failed

    for entry in entries:
        state = entry[4]
        if state.coalescer is None or (only is not None and state.address != only):
            out.append(entry)
        elif entry[3] is None:
            runs.setdefault(state, []).append(entry)
        else:
            if state in runs:
                end(runs.pop(state))
            out.append((entry[0], entry[1], entry[2], entry[3], state.sealed, None))
    for run in runs.values():
        end(run)
    out.sort(key=sequence_of)
    return out, failure


def _join_run(run: list[Staged]) -> tuple[list[Staged], CoalescerFailed | None]:
    state = run[0][4]
    untouched: list[Staged] = [(entry[0], entry[1], entry[2], None, state.sealed, None) for entry in run]
    if len(run) == 1:
        return untouched, None
    assert state.coalescer is not None
    joined: list[Staged] = []
    at = 0
    try:
        for element, count in state.coalescer([entry[5] for entry in run]):
            if type(count) is not int or count < 1 or at + count > len(run):
                raise ValueError("the counts of a coalescer do not add up to its run")
            at += count
            joined.append((run[at - 1][0], state.address, freeze(element)[0], None, state.sealed, None))
        if at != len(run):
            raise ValueError("the counts of a coalescer do not add up to its run")
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything; nothing may be lost by it
        _log.error("the coalescer of %s/%s failed; its elements are stored unjoined", *state.address[:2])
        failed = CoalescerFailed(
            f"the coalescer of {state.address.namespace}/{state.address.key} failed ({type(error).__name__}: {error})",
            "mend it; its elements were stored unjoined and nothing was lost",
        )
        failed.__cause__ = error
        return untouched, failed
    return joined, None


def window_lines(entries: list[Staged], names: int) -> list[Line]:
    """A window as lines: one, unless it is too large for one frame or holds a large element.

    ``names``: bytes that defining all lists of the scope may take.
    """
    sizes = [len(entry[2]) if entry[3] is None else text_bytes(entry) for entry in entries]
    total = sum(sizes) + names
    if total <= FRAME_TARGET_BYTES and max(sizes) <= OWN_FRAME_BYTES:
        return [Line(entries, True, entries[0][0], entries[-1][0], total, False)]
    lines: list[Line] = []
    start = size = 0
    defined: set[Address] = set()
    for at, (entry, length) in enumerate(zip(entries, sizes, strict=True)):
        large = length > OWN_FRAME_BYTES
        definition = 0 if entry[1] in defined else names_bytes(entry[1])
        if at > start and (large or size + length + definition > FRAME_TARGET_BYTES):
            lines.append(Line(entries[start:at], True, entries[start][0], entries[at - 1][0], size, False))
            start, size, definition = at, 0, names_bytes(entry[1])
            defined.clear()
        defined.add(entry[1])
        size += length + definition
        if large:
            lines.append(Line(entries[at : at + 1], True, entry[0], entry[0], size, True))
            start, size = at + 1, 0
            defined.clear()
    if start < len(entries):
        lines.append(Line(entries[start:], True, entries[start][0], entries[-1][0], size, False))
    return lines


def staged_record(entry: Staged, wall_ms: int) -> Record:
    return Record(entry[0], APPEND, entry[1], thaw(entry[2]), entry[3], wall_ms)
