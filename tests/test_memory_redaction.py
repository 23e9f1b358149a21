"""Behaviours 93 to 96 (and 22, 23 before the wire): private blocks never leave, whatever their shape."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scopelog.clients.memory.redaction import MARKER, MAX_DEPTH, redact, redact_text, redact_url_value
from scopelog.clients.memory.spelling import spell_body, spell_path, spell_query
from scopelog.errors import InvalidInput, LimitExceeded

SECRET = "hunter2"
OPEN = ["<private>", "< Private >", "<PRIVATE\n>", "<\tpRiVaTe>"]
CLOSE = ["</private>", "</private >", "< / PRIVATE>", "<\n/Private\t>"]


def test_several_blocks_in_any_case_over_lines() -> None:
    """Behaviour 93."""
    text = "a <private>one</private> b <PRIVATE>two\nthree</Private> c"
    assert redact(text) == f"a {MARKER} b {MARKER} c"
    assert redact("a < b > c, <privates>, private, </p>") == "a < b > c, <privates>, private, </p>"


def test_a_private_query_value_and_path_segment_keep_the_url_s_shape() -> None:
    """Behaviours 23 and 94."""
    assert spell_query({"q": "<private>x y</private> & z", "n": 3, "f": False, "e": "", "o": None}) == (
        "?q=%5BREDACTED%5D%20%26%20z&n=3&f=false"
    )
    secret = f"k<private>{SECRET}</private>"
    assert spell_path(["sessions", secret, "end"]) == "/sessions/k%5BREDACTED%5D/end"
    assert spell_path(f"/sessions/{secret}/end") == "/sessions/k%5BREDACTED%5D/end"
    assert spell_path("/sessions/k%3Cprivate%3Ehunter2%3C%2Fprivate%3E/end") == "/sessions/k%5BREDACTED%5D/end"
    assert redact_url_value("a/b?c") == "a%2Fb%3Fc"


@pytest.mark.parametrize(
    "path", ["", "/", "sessions", "/a//b", "/a/..", "/a/%2e", "/a?b=c", "/a#b", [], ["a", ""], [".."]]
)
def test_a_path_that_would_lead_elsewhere_is_refused(path: Any) -> None:
    with pytest.raises(InvalidInput):
        spell_path(path)


def test_nested_strings_are_redacted_and_nothing_else_is_touched() -> None:
    """Behaviours 22 and 95."""
    value: dict[str, Any] = {
        "a": ["<private>x</private>", 1, None, True, 2.5, {"b": ("y", "<private>z")}],
        "c": "plain",
    }
    assert redact(value) == {"a": [MARKER, 1, None, True, 2.5, {"b": ["y", MARKER]}], "c": "plain"}
    assert value["a"][0] == "<private>x</private>"
    assert redact_text("  a <private>x</private>\n") == f"a {MARKER}"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a <private>b", f"a {MARKER}"),
        ("a <private>b <private>c</private> d", f"a {MARKER}"),
        ("a <private>b <private>c</private> d</private> e", f"a {MARKER} e"),
        ("a <private >b</ private > c", f"a {MARKER} c"),
        ("a </private> b", "a  b"),
        ("a <private>b</private> c </private> d", f"a {MARKER} c  d"),
        ("<private></private>", MARKER),
        ("", ""),
        ("<pri</private>vate>hunter2</private>", f"<pri{MARKER}vate>hunter2{MARKER}"),
        ("<pri<private>x</private>vate>", f"<pri{MARKER}vate>"),
    ],
)
def test_unclosed_nested_spaced_and_lone_tags(text: str, clean: str) -> None:
    """Behaviour 96."""
    assert redact(text) == clean


def test_keys_are_redacted_and_no_value_is_lost() -> None:
    """Behaviour 96."""
    value = {"<private>a</private>": 1, MARKER: 2, "<private>b</private>": 3, "c": 4, f"{MARKER} (2)": 5}
    clean = redact(value)
    assert sorted(clean.values()) == [1, 2, 3, 4, 5]
    assert clean[MARKER] == 2 and clean["c"] == 4 and clean[f"{MARKER} (2)"] == 5
    assert not any("private" in key for key in clean)
    assert list(redact({"b": 1, "a": 2})) == ["b", "a"]


@pytest.mark.parametrize("limit", [2000, 20_000])
def test_a_block_that_straddles_a_cut_is_gone_before_it(limit: int) -> None:
    """Behaviour 96: redaction first, so that the cut cannot lose a closing tag."""
    text = "x" * (limit - 12) + f"<private>{SECRET}</private> tail"
    assert SECRET not in redact_text(text)[:limit]


def test_nesting_is_bounded_also_of_a_value_that_holds_itself() -> None:
    deep: Any = "x"
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert redact(deep) == deep
    with pytest.raises(LimitExceeded):
        redact([deep])
    loop: list[Any] = []
    loop += [loop, loop]
    with pytest.raises(LimitExceeded):
        redact(loop)


def test_hostile_text_is_walked_once() -> None:
    """Quadratic work on these would take hours."""
    for piece in ("<", "< ", "<private>", "</private>", "<pri</private>", "</ "):
        redact(piece * 200_000)
    redact("<" + " " * 1_000_000)


@pytest.mark.parametrize("body", [{"a": float("nan")}, {"a": {1}}, [b"x"]])
def test_a_body_that_is_no_json_is_refused(body: Any) -> None:
    with pytest.raises(InvalidInput):
        spell_body(body)


def test_lone_surrogates_travel_in_bodies_and_not_in_urls() -> None:
    assert spell_body(["\ud800é"]) == b'["\\ud800\\u00e9"]'
    assert spell_body(["é"]) == '["é"]'.encode()
    with pytest.raises(InvalidInput):
        spell_query({"q": "\ud800"})


outside = st.text(alphabet="ab <>/\n", max_size=8)
opening, closing = st.sampled_from(OPEN), st.sampled_from(CLOSE)
blocks = st.recursive(
    st.builds(lambda o, c: o + SECRET + c, opening, closing),
    lambda inner: st.builds(
        lambda o, a, b, c: o + SECRET + a + SECRET + b + SECRET + c, opening, inner, inner, closing
    ),
    max_leaves=6,
)
tails = st.one_of(st.just(""), st.builds(lambda o, b: o + SECRET + b, opening, blocks))


@settings(max_examples=150)
@given(st.lists(st.tuples(outside, blocks), max_size=4), outside, tails)
def test_no_secret_of_any_nesting_survives_and_the_rest_is_unchanged(
    parts: list[tuple[str, str]], last: str, tail: str
) -> None:
    """Behaviours 93 and 96, in general."""
    text = "".join(before + block for before, block in parts) + last + tail
    expected = "".join(before + MARKER for before, _ in parts) + last + (MARKER if tail else "")
    assert redact(text) == expected
    assert redact({text: [text]}) == {expected: [expected]}


pieces = st.lists(st.sampled_from([*OPEN, *CLOSE, "<pri", "vate>", "</", "private", ">", "<", " ", "x"]), max_size=14)


@settings(max_examples=300)
@given(pieces)
def test_what_is_redacted_holds_no_tag_and_stays_as_it_is(parts: list[str]) -> None:
    """Behaviour 96: dropping a closing tag never makes a new tag of what stood around it."""
    once = redact("".join(parts))
    assert redact(once) == once
    assert redact("x" + once + "x") == "x" + once + "x"


@settings(max_examples=100)
@given(st.text(alphabet=st.characters(exclude_characters="<")))
def test_text_without_tags_is_unchanged(text: str) -> None:
    """Behaviour 93."""
    assert redact(text) == text
    assert redact_text(text) == text.strip()
