"""What is refused, with nothing taken and nothing lost."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import math
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import scopelog_engine.elements
import scopelog_engine.writer
from scopelog import (
    InvalidElement,
    InvalidInput,
    Json,
    LimitExceeded,
    ManualClock,
    MixedCommit,
    Session,
    Store,
    ephemeral,
)
from scopelog_engine.elements import freeze
from scopelog_engine.layout import MAX_DEPTH, MAX_ELEMENT_BYTES

from .stores import DELTAS, MESSAGES, SCOPE, TITLE, assert_refused


def nested(levels: int) -> Json:
    """``levels`` lists and dicts in turn, one in the other."""
    element: Json = "core"
    for level in range(levels):
        element = [element] if level % 2 else {"k": element}
    return element


@pytest.fixture
def session(store_path: Path) -> Iterator[Session]:
    with Store.open(store_path, clock=ManualClock()) as store, store.session("s") as session:
        session.commit([MESSAGES.append("before"), TITLE.set("before")])
        session.commit([DELTAS.append("before")])
        session.append(MESSAGES, "staged")
        yield session


# --- elements ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: int = 1


class Struct(msgspec.Struct):
    x: int = 1


class Colour(enum.Enum):
    RED = "red"


def _cycle() -> Json:
    element: list[Json] = []
    element.append(element)
    return element


NOT_JSON: dict[str, Any] = {
    "nan": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "nan inside": {"a": [1, {"b": math.nan}]},
    "infinity beside a lone surrogate": ["\ud800", math.inf],
    "tuple": (1, 2),
    "tuple inside": {"a": [(1, 2)]},
    "empty tuple": [()],
    "tuple beside a long integer": [10**30, (1,)],
    "bytes": b"abc",
    "bytes inside": [b""],
    "bytearray": bytearray(b"abc"),
    "memoryview": memoryview(b"abc"),
    "int key": {1: "a"},
    "int key beside its text": {1: "a", "1": "b"},
    "bool key": {True: "a"},
    "none key": {None: "a"},
    "float key": {1.5: "a"},
    "bytes key": {b"a": "a"},
    "tuple key": {("a",): "a"},
    "int key inside": [{"a": {2: 3}}],
    "set": {1, 2},
    "frozenset": frozenset("a"),
    "decimal": decimal.Decimal("1.5"),
    "fraction": fractions.Fraction(1, 2),
    "complex": 1j,
    "datetime": datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC),
    "date": datetime.date(2025, 1, 1),
    "time": datetime.time(1, 2),
    "timedelta": datetime.timedelta(1),
    "uuid": uuid.UUID(int=1),
    "dataclass": Point(),
    "dataclass inside": [Point()],
    "struct": Struct(),
    "raw": msgspec.Raw(b"1"),
    "enum": Colour.RED,
    "class": int,
    "function": len,
    "object": object(),
    "generator": (n for n in range(3)),
    "range": range(3),
    "dict view": {"a": 1}.keys(),
    "ellipsis": ...,
    "surrogate pair as two characters": "\ud83d\ude00",
    "surrogate pair in a key": {"\ud83d\ude00": 1},
}
TOO_MUCH: dict[str, Any] = {
    "one level too many": nested(MAX_DEPTH + 1),
    "nesting of 300": nested(300),
    "nesting of 100,000": nested(100_000),
    "nesting of 300 beside a lone surrogate": ["\ud800", nested(299)],
    "a cycle": _cycle(),
    "integer of 4301 digits": 10**4300,
    "negative integer of 5000 digits": [-(10**5000)],
}
WAYS: dict[str, Callable[[Session, Any], object]] = {
    "append": lambda session, element: session.append(MESSAGES, element),
    "append in a scope": lambda session, element: session.append(DELTAS, element),
    "commit": lambda session, element: session.commit([MESSAGES.append("good"), MESSAGES.append(element)]),
    "set": lambda session, element: session.commit([TITLE.set("good"), TITLE.set(element), SCOPE.retire()]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", NOT_JSON)
@pytest.mark.fault(29, rig="M")
def test_element_that_is_not_json_is_refused(what: str, way: str, session: Session, store_path: Path) -> None:
    assert_refused(session, store_path, lambda: WAYS[way](session, NOT_JSON[what]), InvalidElement)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", TOO_MUCH)
@pytest.mark.fault(29, rig="M")
def test_what_is_beyond_a_limit_is_refused(what: str, way: str, session: Session, store_path: Path) -> None:
    assert_refused(session, store_path, lambda: WAYS[way](session, TOO_MUCH[what]), LimitExceeded)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("element", ["x" * 999, ["\ud800" + "x" * 992], {"k": ["é" * 500]}])
@pytest.mark.fault(29, rig="M")
def test_element_over_its_limit_is_refused(
    element: Json, way: str, session: Session, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scopelog_engine.elements, "MAX_ELEMENT_BYTES", 1000)
    assert_refused(session, store_path, lambda: WAYS[way](session, element), LimitExceeded)
    session.append(MESSAGES, "x" * 998)  # with its quotes exactly the limit


@pytest.mark.fault(29, rig="M")
def test_commit_over_its_limit_is_refused(session: Session, store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scopelog_engine.writer, "MAX_COMMIT_BYTES", 10_000)
    with pytest.raises(LimitExceeded):
        session.commit([DELTAS.append("x" * 1000) for _ in range(10)])
    assert_refused(session, store_path, lambda: session.commit([TITLE.set("x" * 10_000)]), LimitExceeded)
    session.commit([MESSAGES.append("x" * 1000) for _ in range(8)])


@pytest.mark.fault(29, rig="M")
def test_element_at_and_above_the_real_limit(session: Session, store_path: Path) -> None:
    """64 MiB of JSON text: quotes count."""
    largest = "x" * (MAX_ELEMENT_BYTES - 2)
    assert_refused(session, store_path, lambda: session.append(MESSAGES, largest + "x"), LimitExceeded)
    number = session.append(DELTAS, largest)  # above the bound on what may wait: admitted alone
    session.append(DELTAS, "after")
    session.flush()
    big, after = session.read(DELTAS, cursor=number - 1)
    assert big.element == largest and after.element == "after"


@pytest.mark.fault(29, rig="M")
def test_nesting_at_the_limit_is_stored(session: Session) -> None:
    deepest = nested(MAX_DEPTH)
    session.append(DELTAS, deepest)
    session.append(DELTAS, ["\ud800", nested(MAX_DEPTH - 1)])
    session.flush()
    assert [e.element for e in session.read(DELTAS)][1:] == [deepest, ["\ud800", nested(MAX_DEPTH - 1)]]


# --- commits ----------------------------------------------------------------------------------------


def _commits() -> dict[str, tuple[list[Any], type[InvalidInput]]]:
    other = ephemeral("op-2").list_of("op", "deltas")
    return {
        "session and scope": ([MESSAGES.append(1), DELTAS.append(1)], MixedCommit),
        "scope and session": ([DELTAS.append(1), MESSAGES.append(1)], MixedCommit),
        "two scopes": ([DELTAS.append(1), other.append(1)], MixedCommit),
        "retirement among scope writes": ([DELTAS.append(1), SCOPE.retire()], MixedCommit),
        "nothing": ([], InvalidInput),
        "no write": ([MESSAGES.append(1), "append"], InvalidInput),
        "an address": ([MESSAGES], InvalidInput),
    }


@pytest.mark.parametrize("what", _commits())
def test_commit_that_is_none_is_refused(what: str, session: Session, store_path: Path) -> None:
    writes, error = _commits()[what]
    assert_refused(session, store_path, lambda: session.commit(writes), error)


def test_writes_that_raise_while_they_are_made(session: Session, store_path: Path) -> None:
    def writes() -> Iterator[Any]:
        yield MESSAGES.append(1)
        raise InvalidElement("made up", "none")

    assert_refused(session, store_path, lambda: session.commit(writes()), InvalidElement)


def test_an_error_says_where_in_the_element_the_trouble_is() -> None:
    """ "A set is not JSON" was all that was said of a message of a thousand parts."""
    twice: list[Json] = []
    twice += [twice, twice]  # a cycle with two ways round: looking must not take for ever
    cases: list[tuple[Json, str]] = [
        ({"messages": [1, {"when": {1}}]}, "a set at ['messages'][1]['when'] is not JSON"),
        ([0.0, float("nan")], "nan at [1] is not JSON"),
        ({"a": {1: 2}}, "a dict key at ['a'] is a int, not a str"),
        ({1}, "a set is not JSON"),
        ([twice, {1}], "a set at [1] is not JSON"),
    ]
    for element, told in cases:
        with pytest.raises(InvalidElement) as caught:
            freeze(element)
        assert told in caught.value.cause
