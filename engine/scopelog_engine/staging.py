"""The write-behind window's contents: how runs of staged elements are joined, and how a window becomes lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .elements import freeze, thaw
from .errors import CoalescerFailed
from .layout import OWN_FRAME_BYTES
from .lines import APPEND, Address, Record, Write
from .scope import ListState, Staged, sequence_of

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
        state = entry[1]
        if state.coalescer is None or (only is not None and state.address != only):
            out.append(entry)
        elif entry[3] is None:
            runs.setdefault(state, []).append(entry)
        else:
            if state in runs:
                end(runs.pop(state))
            out.append((entry[0], state.sealed, entry[2], entry[3], None))
    if not runs:
        return out, failure
    for run in runs.values():
        end(run)
    out.sort(key=sequence_of)
    return out, failure


def _join_run(run: list[Staged]) -> tuple[list[Staged], CoalescerFailed | None]:
    state = run[0][1]
    untouched: list[Staged] = [(entry[0], state.sealed, entry[2], None, None) for entry in run]
    if len(run) == 1:
        return untouched, None
    assert state.coalescer is not None
    joined: list[Staged] = []
    at = 0
    try:
        for element, count in state.coalescer([entry[4] for entry in run]):
            if type(count) is not int or count < 1 or at + count > len(run):
                raise ValueError("the counts of a coalescer do not add up to its run")
            at += count
            joined.append((run[at - 1][0], state.sealed, freeze(element)[0], None, None))
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


def window_lines(entries: Sequence[Staged]) -> list[list[Write]]:
    """A window as lines: one, unless a large element needs a frame of its own."""
    lines: list[list[Write]] = []
    line: list[Write] = []
    for sequence, state, body, tag, _ in entries:
        write = Write(sequence, APPEND, state.address, body, tag)
        if len(body) > OWN_FRAME_BYTES:
            if line:
                lines.append(line)
                line = []
            lines.append([write])
        else:
            line.append(write)
    if line:
        lines.append(line)
    return lines


def staged_record(entry: Staged, wall_ms: int) -> Record:
    return Record(entry[0], APPEND, entry[1].address, thaw(entry[2]), entry[3], wall_ms)
