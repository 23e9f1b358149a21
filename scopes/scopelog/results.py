"""What reads return, and what waits take."""

from __future__ import annotations

from typing import NamedTuple

from scopelog_engine.elements import Json
from scopelog_engine.errors import InvalidInput
from scopelog_engine.lines import Record


class Element(NamedTuple):
    """An element of a list: its sequence, itself (a private copy), and its tag."""

    seq: int
    element: Json
    tag: str | None


class Entry(NamedTuple):
    """A value found by a scan. ``seq`` is the write's."""

    key: str
    value: Json
    seq: int


def entries_of(records: list[Record]) -> list[Entry]:
    return [Entry(r.address.key, r.value, r.sequence) for r in records if r.address is not None]


def elements_of(records: list[Record]) -> list[Element]:
    return [Element(r.sequence, r.value, r.argument) for r in records]  # type: ignore[arg-type]


def check_timeout(timeout: float | None) -> None:
    """Raise :class:`InvalidInput` unless it is None or a number of seconds that can be waited for."""
    if timeout is not None and (type(timeout) not in (int, float) or not 0 <= timeout <= 10**9):
        raise InvalidInput(
            f"a {type(timeout).__name__} is no timeout, or out of range",
            "pass seconds from 0 to 10**9, or None for ever",
        )
