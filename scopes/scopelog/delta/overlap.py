"""How much of the end of one text is the beginning of another: what turns a sliding window into ``t`` and ``a``.

Source: Chord 0.87.1 (Chord's search, with its limits).
"""

from __future__ import annotations

from typing import Final, TypeVar

SCAN: Final = 65_536
"""Units of the end of the older text that are searched."""
PROBE: Final = 64
"""Units of the newer text's head that are looked for first."""
MAX_CANDIDATES: Final = 8
"""Places of each head that are looked at."""

_Text = TypeVar("_Text", str, bytes)


def overlap(a: str, b: str, scan: int = SCAN, probe: int = PROBE, max_candidates: int = MAX_CANDIDATES) -> int:
    """Length, in UTF-16 units, of an end of ``a`` that ``b`` begins with; 0 if none is found.

    It is exact but not always the longest: the head of ``b`` (first ``probe`` units of it, then one) is looked for in
    the last ``scan`` units of ``a``, from left to right, at most ``max_candidates`` times, and the first place whose
    whole rest agrees is taken. The work is bounded by ``scan`` and does not grow with either text.
    """
    if scan <= 0 or not a or not b:
        return 0
    tail, head = a[-scan:], b[:scan]  # in code points, of which each is one unit at least
    if tail.isascii() and head.isascii():
        return _search(tail, head, 1, min(probe, len(b)), max_candidates)
    units = tail.encode("utf-16-le", "surrogatepass")[-2 * scan :]
    front = head.encode("utf-16-le", "surrogatepass")
    return _search(units, front, 2, min(probe, len(front) // 2), max_candidates) // 2


def _search(tail: _Text, front: _Text, width: int, probe: int, max_candidates: int) -> int:
    """The overlap in items, of which a unit takes ``width``."""
    for length in (probe, 1) if probe > 1 else (1,):
        head = front[: length * width]
        at, candidates = tail.find(head), 0
        while at >= 0:
            if at % width == 0:  # else it lies across two units and is no occurrence
                size = len(tail) - at
                if size <= len(front) and tail[at:] == front[:size]:
                    return size
                candidates += 1
                if candidates >= max_candidates:
                    break
            at = tail.find(head, at + 1)
    return 0
