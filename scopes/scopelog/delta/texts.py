"""Appending to a string in a plain or tracked container without copying what is there."""

from __future__ import annotations

from collections.abc import MutableMapping, MutableSequence
from typing import Any, Protocol, runtime_checkable

from . import utf16


@runtime_checkable
class AppendsText(Protocol):
    """A container that appends to its strings itself: a tracked one."""

    def append_text(self, key: Any, text: str) -> None: ...


def append_text(container: MutableMapping[str, Any] | MutableSequence[Any], key: Any, text: str) -> None:
    """``container[key] += text``, in time that grows with ``text`` and not with what is there.

    A high surrogate at the end and a low one that ``text`` begins with become one character. Raises ``TypeError``
    if either is no str, and what the container raises for a bad key. After a ``MemoryError`` the place holds None.
    """
    if type(container) is not dict and type(container) is not list:
        container.append_text(key, text)  # type: ignore[union-attr]
        return
    value = container[key]
    if type(value) is not str or type(text) is not str:
        kinds = f"{type(text).__name__} to a {type(value).__name__}"
        raise TypeError(f"a {kinds} cannot be appended; both must be str")
    if utf16.splits(value, text):
        value = value[:-1]
        text = utf16.character(container[key][-1], text[0]) + text[1:]
    container[key] = None
    value += text  # in place, as nobody else refers to the string now
    container[key] = value


def drop_text(container: MutableMapping[str, Any] | MutableSequence[Any], key: Any, units: int) -> None:
    """Drop ``units`` UTF-16 units from the front of the string at ``key``; fewer leave it empty.

    In a tracked container this is the op ``t``, whatever the rest of the text may look like. Raises as
    :func:`append_text`.
    """
    if type(container) is not dict and type(container) is not list:
        container.drop_text(key, units)  # type: ignore[union-attr]
        return
    value = container[key]
    if type(value) is not str or type(units) is not int or units < 0:
        raise TypeError(f"{type(units).__name__} units of a {type(value).__name__} cannot be dropped")
    container[key] = utf16.drop(value, units)
