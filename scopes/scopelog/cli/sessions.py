"""ls: which sessions there are, and what is known of each at a glance."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from scopelog_engine.check import Finding
from scopelog_engine.elements import Json, thaw
from scopelog_engine.info import SessionInfo

from ..listing import Sort, matcher
from . import output
from .looking import moment, opened, raise_unread
from .output import printable

Range = tuple[int | None, int | None]
"""From, and up to; None is no bound."""
ANY: Final[Range] = (None, None)
_WILD: Final = re.compile(r"[*?\[]")
HEADINGS: Final = ("session", "name", "created", "updated", "commits", "elements", "bytes", "labels")


@dataclass(frozen=True)
class Wanted:
    """Which sessions to list. Times are from the first up to but without the second, sizes include both.

    ``id``, ``name``: a pattern, or text that is to be part of it. ``labels``: KEY or KEY=VALUE, all of them.
    """

    id: str | None = None
    name: str | None = None
    labels: tuple[str, ...] = ()
    created: Range = ANY
    updated: Range = ANY
    bytes: Range = ANY
    elements: Range = ANY

    @property
    def by_id_alone(self) -> bool:
        return self == Wanted(id=self.id)

    def test(self) -> Callable[[SessionInfo], bool]:
        """Everything but the id."""
        named = None if self.name is None else matcher(pattern(self.name))

        def wanted(info: SessionInfo) -> bool:
            return (
                (named is None or (info.name is not None and named(info.name)))
                and all(_has_label(info.labels, label) for label in self.labels)
                and _within(info.created, *self.created, before=True)
                and _within(info.updated, *self.updated, before=True)
                and _within(info.bytes, *self.bytes)
                and _within(info.elements, *self.elements)
            )

        return wanted


@dataclass(frozen=True)
class Shown:
    """In which order sessions are listed, how many, and how."""

    sort: Sort = "id"
    reverse: bool = False
    limit: int | None = None
    long: bool = False
    as_json: bool = False


def pattern(text: str) -> str:
    """What the user gave, as a pattern for the whole of what is looked at."""
    return text if _WILD.search(text) else f"*{text}*"


def ls(path: str, wanted: Wanted, shown: Shown) -> None:
    """The sessions of a store. Reads names alone, unless more is shown or asked for. Raises for those it had to leave
    out, once all others were listed."""
    unreadable: list[Finding] = []
    ids = "*" if wanted.id is None else pattern(wanted.id)
    with opened(path) as store:
        if wanted.by_id_alone and shown.sort == "id" and not shown.long:
            found = [session for session in store.sessions(unreadable=unreadable) if matcher(ids)(session)]
            if shown.reverse:
                found.reverse()
            _names(islice(found, shown.limit), shown.as_json)
        else:
            infos = store.catalogue(
                ids,
                where=None if wanted.by_id_alone else wanted.test(),
                sort=shown.sort,
                reverse=shown.reverse,
                limit=shown.limit,
                unreadable=unreadable,
            )
            if not shown.long:
                _names((info.id for info in infos), shown.as_json)
            elif shown.as_json:
                for info in infos:
                    output.put_json(info_object(info))
            else:
                output.put_table(HEADINGS, map(_cells, infos))
    raise_unread(unreadable)


def _names(ids: Iterable[str], as_json: bool) -> None:
    for session in ids:
        if as_json:
            output.put_json({"session": session})
        else:
            output.put_text(printable(session))


def info_object(info: SessionInfo) -> dict[str, Any]:
    """A session as ``ls --long --json`` prints it."""
    return {
        "session": info.id,
        "name": info.name,
        "labels": info.labels,
        "created_ms": info.created,
        "updated_ms": info.updated,
        "commits": info.commits,
        "elements": info.elements,
        "frames": info.frames,
        "syncs": info.syncs,
        "bytes": info.bytes,
    }


def _cells(info: SessionInfo) -> tuple[str, ...]:
    return (
        info.id,
        info.name or "",
        moment(info.created),
        moment(info.updated) if info.updated else "",
        str(info.commits),
        str(info.elements),
        str(info.bytes),
        output.as_json(info.labels).decode("utf-8") if info.labels else "",
    )


def _within(value: int, low: int | None, high: int | None, *, before: bool = False) -> bool:
    return (low is None or value >= low) and (high is None or value < high or (value == high and not before))


def _has_label(labels: dict[str, Json], label: str) -> bool:
    key, equals, text = label.partition("=")
    if key not in labels:
        return False
    return not equals or labels[key] == text or output.as_json(labels[key]) == output.as_json(value_of(text))


def value_of(text: str) -> Json:
    """A label's value as the user gives it: JSON, or else the text itself."""
    try:
        return thaw(text.encode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return text
