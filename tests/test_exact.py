"""What looks odd but is JSON comes back exactly as it went in: through memory, a flush, another open, a reader."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.simdisk import SimDisk
from scopelog import (
    InvalidElement,
    Json,
    ManualClock,
    Store,
    list_of,
)

from .stores import DELTAS, MESSAGES, TITLE

ODD: list[Json] = [
    "\ud800",
    "\udfff\ud800",  # in this order no pair
    {"\udc00": ["\ud800x", "ok"]},
    2**64 - 1,
    2**64,
    -(2**63) - 1,
    [10**30, -(10**100)],
    10**2999 + 7,
    {"big": 10**3000, "\ud800": -(10**4000)},
    "\u2028\u2029\x85",
    "a\0b",
    {"\0": "\0\0"},
    {"__proto__": {"constructor": None}, "prototype": 1},
    -0.0,
    0.0,
    [0, -0.0, 0.0, False],
    5e-324,
    1e308,
    1.7976931348623157e308,
    2.2250738585072014e-308,
    [1, 1.0, True, "1"],
    1e22,
    123456789.123456789,
    9007199254740993,
    float(2**60),
    "",
    {"": ""},
    {"": {"": {"": []}}},
    [],
    {},
    [[], {}, [[]], [{}]],
    None,
    [None],
    '\x7f\x1b[31m\r\n\t"\\/',
    "\U0010ffff\ufeff\ufffe",
    '["l",1,"looks like an item"]',
    ["@", 1, "n", "k", "l"],
    {"b": 1, "a": 2, "c": 3},  # the order of keys is kept
    "(\xb5/\xfd \x50*M\x18",
    "x" * 100_000,
]


def everything_of(store: Store) -> list[tuple[list[str], str]]:
    """What the session's readers and its writer answer, spelled: tells 1 from 1.0 and True, and -0.0 from 0.0."""
    found = []
    with store.session("s") as session, store.reader("s") as reader:
        for handle in (session, reader):
            elements = [e.element for e in handle.read(MESSAGES)] + [e.element for e in handle.read(DELTAS)]
            found.append(([repr(element) for element in elements], repr(handle.get(TITLE))))
        records = [record.value for record in reader.records() if record.op == "append"]
        assert sorted(map(repr, records)) == sorted(found[0][0])
    return found


@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_element_comes_back_exactly(number: int, store_path: Path) -> None:
    """Through memory, through a flush, through another open, and through a reader; beside neighbours."""
    element = ODD[number]
    spelled = [repr(element), repr("plain"), repr([element, element]), repr(element)]
    with Store.open(store_path, clock=ManualClock()) as store:
        with store.session("s") as session:
            session.append(MESSAGES, element)
            session.append(MESSAGES, "plain", "tag")
            session.append(MESSAGES, [element, element], "tag")
            session.append(DELTAS, element)
            for flushed in (False, True):
                if flushed:
                    session.commit([TITLE.set(element)])
                    session.flush()
                    assert repr(session.get(TITLE)) == repr(element)
                read = [e.element for e in session.read(MESSAGES)] + [e.element for e in session.read(DELTAS)]
                assert [repr(e) for e in read] == spelled
        for found in everything_of(store):
            assert found == (spelled, repr(element))
        assert store.check() == []


def test_odd_elements_share_a_frame(store_path: Path) -> None:
    """One that needs the slow path does no harm to those beside it in the same line."""
    with Store.open(store_path, clock=ManualClock()) as store:
        with store.session("s") as session:
            for element in ODD:
                session.append(MESSAGES, element)
            session.commit([TITLE.set(ODD)])
        expected = ([repr(element) for element in ODD], repr(ODD))
        assert everything_of(store) == [expected, expected]


def test_callers_later_mutation_is_not_seen(store_path: Path) -> None:
    element = {"list": [1, {"deep": []}]}
    frozen = {"list": [1, {"deep": []}]}
    with Store.open(store_path, clock=ManualClock()) as store, store.session("s") as session:
        session.append(MESSAGES, element)
        writes = [MESSAGES.append(element), TITLE.set(element)]
        element["list"].append("after the append")
        element["more"] = [2]
        assert session.read(MESSAGES)[0].element == frozen
        written = {"list": [1, {"deep": []}, "after the append"], "more": [2]}
        session.commit(writes)  # a write is frozen when its commit is admitted
        element.clear()
        session.append(DELTAS, element)
        element["x"] = [1]
        session.flush()
        assert [e.element for e in session.read(MESSAGES)] == [frozen, written]
        assert session.get(TITLE) == written
        assert [e.element for e in session.read(DELTAS)] == [{}]


def test_what_a_read_returns_is_a_private_copy(store_path: Path) -> None:
    with Store.open(store_path, clock=ManualClock()) as store, store.session("s") as session:
        session.commit([MESSAGES.append({"a": [1]}), TITLE.set({"a": [1]})])
        session.append(MESSAGES, {"a": [1]})
        for flushed in (False, True):
            if flushed:
                session.flush()
            with store.reader("s") as reader:
                for handle in (session, reader):
                    for _ in range(2):
                        elements = [e.element for e in handle.read(MESSAGES)]
                        assert elements and all(element == {"a": [1]} for element in elements)
                        assert handle.get(TITLE) == {"a": [1]}
                        [entry] = handle.scan("chat")
                        assert entry.value == {"a": [1]}
                        for element in (*elements, handle.get(TITLE), entry.value):
                            element["a"].append(2)
                            element["b"] = 3


def _has_pair(element: Json) -> bool:
    if isinstance(element, str):
        return any("\ud800" <= a < "\udc00" <= b <= "\udfff" for a, b in pairwise(element))
    if isinstance(element, list):
        return any(map(_has_pair, element))
    if isinstance(element, dict):
        return any(map(_has_pair, [*element, *element.values()]))
    return False


TEXT = st.text(st.characters(codec=None) | st.sampled_from('\ud800\udbff\udc00\udfff\0\u2028"\\'), max_size=12)
NUMBERS = st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
ELEMENTS = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(ELEMENTS, min_size=1, max_size=8))
def test_any_json_comes_back_exactly_or_is_refused(elements: list[Json]) -> None:
    """Refused is what holds a surrogate pair as two characters, and nothing else."""
    disk = SimDisk()
    kept = []
    with Store.open("/store", fs=disk, clock=ManualClock()) as store:
        with store.session("s") as session:
            for element in elements:
                try:
                    session.append(MESSAGES, element)
                except InvalidElement:
                    assert _has_pair(element)
                else:
                    assert not _has_pair(element)
                    kept.append(element)
            for _ in range(2):
                assert [repr(e.element) for e in session.read(MESSAGES)] == [repr(element) for element in kept]
                session.flush()
        with store.session("s") as session:
            assert [repr(e.element) for e in session.read(MESSAGES)] == [repr(element) for element in kept]


@pytest.mark.parametrize("limit", ["640", "0"])
def test_long_integers_are_read_whatever_limit_the_interpreter_was_started_with(store_path: Path, limit: str) -> None:
    """An integer that one process may write must not look like damage to another: its limit is ours, not theirs."""
    numbers = [10**999, -(10**4299), 10**4300 - 1]
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([list_of("a", "b").append(number) for number in numbers])
    program = (
        "import sys; from scopelog import *\n"
        "with Store.open(sys.argv[1]) as store, store.session('s') as session:\n"
        "    numbers = [e.element for e in session.read(list_of('a', 'b'))]\n"
        "    assert numbers == [10**999, -(10**4299), 10**4300 - 1]\n"
        "    for number in (10**4300, -(10**4300)):\n"
        "        try: session.commit([list_of('a', 'b').append(number)])\n"
        "        except LimitExceeded: pass\n"
        "        else: raise AssertionError('taken')\n"
        "    assert store.check() == [] or all(f.severity == 'note' for f in store.check())\n"
    )
    environment = {**os.environ, "PYTHONINTMAXSTRDIGITS": limit}
    subprocess.run([sys.executable, "-c", program, str(store_path)], check=True, timeout=120, env=environment)
