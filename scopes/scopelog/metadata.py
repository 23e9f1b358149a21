"""A session's name and labels: values of the session scope under a reserved namespace, written by ordinary commits."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from scopelog_engine.elements import Json, freeze
from scopelog_engine.errors import InvalidElement, InvalidInput, LimitExceeded
from scopelog_engine.lines import DELETE, SET, Address
from scopelog_engine.totals import LABELS, NAME
from scopelog_engine.writer import Change

MAX_NAME_BYTES: Final = 1024
MAX_LABELS_BYTES: Final = 64 * 1024


class Keep(Enum):
    """The default of what is to stay as it is."""

    AS_IT_IS = "as it is"


KEEP: Final = Keep.AS_IT_IS


def changes_of_metadata(name: str | Keep | None, labels: Mapping[str, Json] | Keep | None) -> list[Change]:
    """What :meth:`Session.describe` commits."""
    changes: list[Change] = []
    if not isinstance(name, Keep):
        changes.append(_change(NAME, _check_name(name)))
    if not isinstance(labels, Keep):
        changes.append(_change(LABELS, _check_labels(labels)))
    if not changes:
        raise InvalidInput(
            "describe was given neither a name nor labels", "pass name= or labels=, None to take it away"
        )
    return changes


def _change(address: Address, value: Json) -> Change:
    return Change(DELETE, address) if value is None else Change(SET, address, value)


def _check_name(name: object) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str):
        raise InvalidInput(f"the name is a {type(name).__name__}, not a str", "pass a str, or None to take it away")
    if not name:
        raise InvalidInput("the name is empty", "pass None to take the name away")
    try:
        length = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidInput("the name holds a lone surrogate", "use well-formed text") from None
    if length > MAX_NAME_BYTES:
        raise LimitExceeded(f"the name takes {length} bytes, the limit is {MAX_NAME_BYTES}", "use a shorter one")
    return str(name)


def _check_labels(labels: object) -> dict[str, Json] | None:
    """A private copy; None if there are none."""
    if labels is None:
        return None
    if not isinstance(labels, Mapping):
        raise InvalidInput(f"the labels are a {type(labels).__name__}, not a mapping", "pass a dict of them")
    copy = dict(labels)
    for key in copy:
        if not isinstance(key, str):
            raise InvalidElement(f"the key of a label is a {type(key).__name__}, not a str", "pass a str")
    length = len(freeze(copy)[0])
    if length > MAX_LABELS_BYTES:
        raise LimitExceeded(f"the labels take {length} bytes as JSON, the limit is {MAX_LABELS_BYTES}", "use fewer")
    return copy or None
