"""Arguments of a tool call from unfinished JSON: golden cases, totality on any text, and nesting without limits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scopelog import InvalidInput
from scopelog.clients.messages import finite, parse_streaming_json
from scopelog.clients.messages.repairing import repair
from scopelog.clients.messages.strict_json import _parse_in_a_loop, parse

VECTORS: Final = Path(__file__).parent / "vectors" / "streaming_json.json"
CASES: Final = json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]
GROUPS: Final = sorted({case["group"] for case in CASES} - {"depth"})
SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "-0": 0}
LIMIT: Final = 5000

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)
BITS = st.lists(
    st.sampled_from(
        [
            *(
                "{",
                "}",
                "[",
                "]",
                ",",
                ":",
                '"',
                "\\",
                "e",
                "x",
                "1",
                "-",
                ".",
                " ",
                "\n",
                "\t",
                "\x01",
                "\xa0",
                "\ufeff",
            ),
            *('"a":', '"__proto__":', "\\n", "\\d", "\\u12", "\\ud83d", "\\ude00", "\ud83d", "\ude00", "😀"),
            *("nul", "true", "f", "-I", "NaN", "1e", "0.5"),
        ]
    )
).map("".join)


def untagged(value: Any) -> Any:
    """A vector's value, with what JSON cannot hold put back."""
    if isinstance(value, list):
        return [untagged(item) for item in value]
    if isinstance(value, dict):
        return SPECIAL[value["$js"]] if "$js" in value else {key: untagged(item) for key, item in value.items()}
    return value


def spelled(value: Any, *, rounded: bool = False) -> str:
    """A value as text that tells True from 1; ``rounded``: numbers as JavaScript has them."""
    if isinstance(value, list):
        return f"[{','.join(spelled(item, rounded=rounded) for item in value)}]"
    if isinstance(value, dict):
        members = (f"{key!r}:{spelled(item, rounded=rounded)}" for key, item in sorted(value.items()))
        return f"{{{','.join(members)}}}"
    if type(value) in (int, float) and rounded:
        return repr(float(value) + 0.0)  # -0 becomes 0
    return repr(value)


def depth_of(value: Any) -> int:
    depth = 0
    while isinstance(value, list | dict):
        depth += 1
        if not value:
            break
        value = value[0] if isinstance(value, list) else value["a"]
    return depth


@pytest.mark.parametrize("group", GROUPS)
def test_golden_cases(group: str) -> None:
    cases = [case for case in CASES if case["group"] == group]
    assert cases
    for case in cases:
        shown = parse_streaming_json(case["input"])
        assert spelled(shown, rounded=True) == spelled(untagged(case["result"]), rounded=True), case["input"]


def test_golden_depths() -> None:
    cases = [case for case in CASES if case["group"] == "depth"]
    assert len(cases) == 7
    for case in cases:
        pattern, times = case["described"].removesuffix(" times").split(" repeated ")
        shown = parse_streaming_json(json.loads(pattern) * int(times))
        assert depth_of(shown) == min(case["result_depth"], LIMIT)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":[' * 50_000, '[["\\d",' * 50_000])
def test_deep_text_is_cut_and_never_raises(text: str) -> None:
    shown = parse_streaming_json(text)
    assert isinstance(shown, list | dict)
    finite(shown)


def test_complete_text_is_whole_down_to_the_limit() -> None:
    text = "[" * (LIMIT - 1) + '{"__proto__":"\\u0061\n"}' + "]" * (LIMIT - 1)  # with something to repair
    shown = parse_streaming_json(text)
    for _ in range(LIMIT - 1):
        (shown,) = shown
    assert shown == {"__proto__": "a\n"}


@pytest.mark.parametrize("value", [None, "", b'{"a":1}', 1, True, ["{"], {"a": 1}, object()])
def test_what_is_no_text_shows_nothing(value: object) -> None:
    assert parse_streaming_json(value) == {}


def test_integers_are_exact_and_overflow_as_doubles_do() -> None:
    assert parse_streaming_json('{"n":9007199254740993') == {"n": 9007199254740993}
    assert parse_streaming_json('{"n":9007199254740993}') == {"n": 9007199254740993}
    assert parse_streaming_json("1" * 309) == int("1" * 309)
    for digits in (310, 100_000):
        assert parse_streaming_json("[" + "9" * digits) == [math.inf]
        assert parse_streaming_json("-" + "9" * digits) == -math.inf


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('"\\ud83d\\ude00"', "😀"),
        ('{"a":"\\ud83d\\ude00', {"a": "😀"}),
        ('["\ud83d\\ude00"]', ["😀"]),
        ('["\\ud83d\ude00', ["😀"]),
        ('["\ud83d\ude00', ["😀"]),
        ('["\\ud83d', ["\ud83d"]),
        ('["\\ude00\\ud83d"]', ["\ude00\ud83d"]),
        ('{"\ud83d\\ude00":{"\\ud83d":[1', {"😀": {"\ud83d": [1]}}),
    ],
)
def test_halves_of_a_pair_meet_and_lone_ones_stay(text: str, shown: Any) -> None:
    assert parse_streaming_json(text) == shown


@pytest.mark.parametrize(("blank", "shown"), [("\ufeff", {"a": 1}), ("\u2003", {"a": 1}), ("\x1c", {}), ("\x85", {})])
def test_blanks_are_those_of_javascript(blank: str, shown: Any) -> None:
    assert parse_streaming_json(blank + '{"a":1') == shown
    assert parse_streaming_json(blank * 3) == {}


def test_a_character_in_the_place_of_a_colon_counts_as_two_units() -> None:
    assert parse_streaming_json('{"a":1,"b"=2') == {"a": 1, "b": 2}
    assert parse_streaming_json('{"a":1,"b"😀2') == {"a": 1}


@given(st.text(st.characters(exclude_categories=[])) | BITS)
@example("\x1c{}")
@example("[-")
@settings(max_examples=300)
def test_any_text_shows_something(text: str) -> None:
    shown = parse_streaming_json(text)
    json.dumps(finite(shown), allow_nan=False)
    assert spelled(parse_streaming_json(text)) == spelled(shown)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
@settings(max_examples=100)
def test_every_prefix_shows_something_and_the_whole_shows_all(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    for end in range(len(text)):
        shown = parse_streaming_json(text[:end])
        if isinstance(value, dict | list) and end:
            assert type(shown) is type(value)
    assert spelled(parse_streaming_json(text)) == spelled(value)


@given(VALUES.map(json.dumps) | BITS)
@settings(max_examples=300)
def test_the_parser_without_recursion_is_the_same_parser(text: str) -> None:
    try:
        expected = spelled(parse(text))
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            _parse_in_a_loop(text)
    else:
        assert spelled(_parse_in_a_loop(text)) == expected


@given(VALUES)
@settings(max_examples=100)
def test_what_is_json_needs_no_repair(value: Any) -> None:
    text = json.dumps(value)
    assert repair(text) == text


def test_repair_touches_strings_alone() -> None:
    assert repair('\n{"a\n\x01": "\\d\\u12\\u00e9\\') == '\n{"a\\n\\u0001": "\\\\d\\u12\\u00e9\\\\'


def test_finite_makes_json_of_what_a_parse_gives() -> None:
    value = {"a": [math.nan, -math.inf, 1.5, True, None, "x"], "b": {"c": math.inf}}
    assert finite(value) == {"a": [None, None, 1.5, True, None, "x"], "b": {"c": None}}
    assert math.isnan(value["a"][0])  # type: ignore[index]
    assert finite(math.inf) is None


def test_finite_refuses_what_is_no_json() -> None:
    loop: list[Any] = []
    loop += [loop, loop]
    for value in (object(), {1: 2}, [b"x"], (1,), bytearray(b"x"), loop):
        with pytest.raises(InvalidInput):
            finite(value)
