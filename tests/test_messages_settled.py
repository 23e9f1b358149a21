"""What interrupted messages become, and what is kept of a tool's text: pure functions against plain ones."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopelog.clients.messages import fold, recovered_message, sendable_message
from scopelog.clients.messages.outcomes import INTERRUPTED, interrupted_result, no_usage, tool_calls
from scopelog.clients.messages.retention import HEAD, TAIL, Kept
from scopelog.delta import utf16
from tests.test_messages_recovery import frames_of

# --- recovered messages -----------------------------------------------------------------------------


def test_the_settled_form_says_that_it_failed_and_keeps_the_rest() -> None:
    whole: Any = fold(frames_of("Hi"))
    before = copy.deepcopy(whole)
    message = recovered_message(whole)
    assert message == {**whole, "usage": no_usage(), "stopReason": "error", "errorMessage": INTERRUPTED}
    assert whole == before and message["content"] is not whole["content"]


def test_nothing_at_all_becomes_an_empty_message() -> None:
    message = recovered_message(None, timestamp=7)
    assert message["content"] == [] and message["api"] == "unknown" and message["timestamp"] == 7
    assert message["stopReason"] == "error" and sendable_message(message) is None


BLOCKS = [
    ({"type": "text", "text": "cut \ud83d"}, False, {"type": "text", "text": "cut "}),
    ({"type": "text", "text": "a\ud83db"}, True, {"type": "text", "text": "a\ufffdb"}),
    ({"type": "text", "text": "  \n"}, True, None),
    ({"type": "text", "text": ""}, False, None),
    ({"type": "thinking", "thinking": "cut"}, False, None),
    ({"type": "thinking", "thinking": "whole"}, True, {"type": "thinking", "thinking": "whole"}),
    (
        {"type": "thinking", "thinking": "", "thinkingSignature": "s", "redacted": True},
        True,
        {"type": "thinking", "thinking": "", "thinkingSignature": "s", "redacted": True},
    ),
    (
        {"type": "toolCall", "id": "c", "name": "n", "arguments": [1]},
        False,
        {"type": "toolCall", "id": "c", "name": "n", "arguments": {}},
    ),
    ({"type": "toolCall", "id": "", "name": "n", "arguments": {}}, False, None),
    ({"type": "toolCall", "id": "c", "name": "", "arguments": {}}, True, None),
]


@pytest.mark.parametrize(("block", "ended", "wanted"), BLOCKS)
def test_blocks_as_a_provider_takes_them(block: Any, ended: bool, wanted: Any) -> None:
    message = {**recovered_message(None), "content": [{"type": "text", "text": "first"}, block]}
    before = copy.deepcopy(message)
    sendable = sendable_message(message, [True, ended])
    assert sendable is not None and message == before
    assert sendable["content"] == [{"type": "text", "text": "first"}, *([wanted] if wanted else [])]
    json.dumps(sendable, allow_nan=False).encode()
    json.dumps(sendable, ensure_ascii=False).encode("utf-8")
    assert sendable_message({**message, "content": [block]}, [ended]) is None or wanted


def test_answers_say_what_there_was() -> None:
    assert tool_calls({"content": [BLOCKS[7][0], BLOCKS[8][0], "x", {"type": "toolCall"}]}) == {"c": "n"}
    assert tool_calls(None) == {} and tool_calls({"content": 5}) == {}
    empty = interrupted_result("c", None, "n")
    assert empty["isError"] and "no result" in empty["content"][0]["text"] and empty["toolName"] == "n"
    some = interrupted_result("c", {"text": "half\ud83d", "details": {"n": 1}})
    assert some["content"][0]["text"].startswith("half\ufffd\n[interrupted") and some["details"] == {"n": 1}


# --- retention --------------------------------------------------------------------------------------


def plain_tail(text: str, max_bytes: int, max_lines: int) -> str:
    """Character by character: the longest end that fits."""
    for start in range(len(text) + 1):
        if fits(text[start:], max_bytes, max_lines):
            return text[start:]
    raise AssertionError("unreachable")


def plain_head(text: str, max_bytes: int, max_lines: int) -> str:
    for end in range(len(text), -1, -1):
        if fits(text[:end], max_bytes, max_lines):
            return text[:end]
    raise AssertionError("unreachable")


def fits(text: str, max_bytes: int, max_lines: int) -> bool:
    lines = text.count("\n") + (text != "" and not text.endswith("\n"))
    return len(text.encode("utf-8", "surrogatepass")) <= max_bytes and lines <= max_lines


PIECES = st.lists(
    st.text(alphabet=st.sampled_from(["a", "b", "\n", "é", "\u20ac", "\U0001f600", "\ud83d", "\ude00"]), max_size=12),
    max_size=12,
)


@given(PIECES, st.integers(1, 24), st.integers(1, 5))
def test_the_tail_is_the_longest_end_that_fits(pieces: list[str], max_bytes: int, max_lines: int) -> None:
    kept, text, whole, dropped = Kept(TAIL, max_bytes, max_lines), "", "", 0
    for piece in pieces:
        piece = utf16.rejoined(piece)
        step = kept.add(text, piece)
        before = utf16.join(text, piece)
        text = step.whole if step.whole is not None else utf16.join(utf16.drop(text, step.drop), step.append)
        whole = utf16.join(whole, piece)
        dropped += len(before.encode("utf-8", "surrogatepass")) - len(text.encode("utf-8", "surrogatepass"))
        assert text == plain_tail(before, max_bytes, max_lines)
        assert whole.endswith(text) and kept.dropped_bytes == dropped
        assert kept.dropped_lines == whole.count("\n") - text.count("\n")
    assert fits(text, max_bytes, max_lines)


@given(PIECES, st.integers(1, 24), st.integers(1, 5))
def test_the_head_is_the_longest_front_that_fits(pieces: list[str], max_bytes: int, max_lines: int) -> None:
    kept, text, whole = Kept(HEAD, max_bytes, max_lines), "", ""
    for piece in pieces:
        piece = utf16.rejoined(piece)
        full = bool(kept.dropped_bytes)
        step = kept.add(text, piece)
        before = utf16.join(text, piece)
        text = step.whole if step.whole is not None else utf16.join(utf16.drop(text, step.drop), step.append)
        whole = utf16.join(whole, piece)
        if not full:
            assert text == plain_head(before, max_bytes, max_lines)
        assert kept.dropped_lines == whole.count("\n") - text.count("\n")
        assert fits(text, max_bytes, max_lines)
    again = Kept(HEAD, max_bytes, max_lines)
    again.begin(text, kept.dropped_bytes, kept.dropped_lines)
    assert again.add(text, "x") == Kept.add(kept, text, "x")
