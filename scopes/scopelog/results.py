"""What reads return."""

from __future__ import annotations

from typing import NamedTuple

from scopelog_engine.elements import Json
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
