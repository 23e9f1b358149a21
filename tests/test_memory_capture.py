"""Behaviours 89 to 92 and 96, as far as pure functions go: what is captured, what a notice says, where a cut falls."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scopelog.clients.memory.capture import (
    ARCHIVE_TITLE,
    LEARNING_CUT,
    PROMPT_CUT,
    PROTOCOL,
    Outcome,
    archive_topic,
    learning_text,
    notice,
    prompt_text,
)
from scopelog.clients.memory.tools import TOOLS

from .engram.text import learnings

SECRET = "hunter2"
ITEM = "the cache is written before the index is"
SECTION = f"## Key Learnings:\n\n1. {ITEM}\n"


def texts(*parts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": part} for part in parts]


# --- prompts --------------------------------------------------------------------------------------


def test_a_prompt_is_the_text_of_its_blocks() -> None:
    blocks = [*texts("  first line"), {"type": "image", "text": "pixels"}, {"type": "text"}, *texts("second line \n")]
    assert prompt_text("user", blocks) == "first line\nsecond line"


@pytest.mark.parametrize("kind", ["assistant", "system", "hook", "User", ""])
def test_only_a_users_prompt_is_kept(kind: str) -> None:
    assert prompt_text(kind, texts("a prompt that is long enough")) is None


def test_a_short_prompt_is_not_kept() -> None:
    assert prompt_text("user", texts("x" * 10)) is None
    assert prompt_text("user", texts(" " * 20 + "x" * 10 + " " * 20)) is None
    assert prompt_text("user", texts("x" * 11)) == "x" * 11
    assert prompt_text("user", []) is None
    # measured without what is private: the marker alone is no prompt
    assert prompt_text("user", texts(f"<private>{SECRET * 9}</private>")) is None


def test_a_prompt_is_cut_at_a_code_point() -> None:
    assert prompt_text("user", texts("x" * 2000)) == "x" * 2000
    assert prompt_text("user", texts("🦆" * 2001)) == "🦆" * 2000


def test_a_private_block_may_span_the_blocks_of_a_prompt() -> None:
    assert prompt_text("user", texts("look at <private>", SECRET, "</private> this")) == "look at [REDACTED] this"
    assert prompt_text("user", texts("look at < PRIVATE >", SECRET, "and more")) == "look at [REDACTED]"


# --- learnings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "heading",
    [
        "## Key Learnings",
        "### Key Learning:",
        "## learnings:",
        "### LEARNING",
        "## Aprendizajes",
        "### aprendizajes clave:",
        "##\tKey \t Learnings  ",
        "## Learnings:\r",
    ],
)
def test_a_text_with_a_heading_is_sent_as_it_is(heading: str) -> None:
    """Behaviour 91: short, unchanged; in Spanish too."""
    text = f"Some result before it.\n\n{heading}\n\n- {ITEM}\n- and one more item of this list"
    assert learning_text("bash", text, False) == text


@pytest.mark.parametrize(
    "heading",
    [
        "# Learnings",
        "#### Learnings",
        "Learnings",
        "## Learnings today",
        "## My Learnings",
        "text ## Learnings",
        "##Learnings",
        "## Aprendizaje",
        "## Learnings::",
    ],
)
def test_without_such_a_heading_nothing_is_sent(heading: str) -> None:
    """Behaviour 91."""
    assert learning_text("bash", f"{heading}\n\n- {ITEM}\n- and one more item of this list", False) is None


def test_errors_own_tools_and_short_texts_are_not_sent() -> None:
    text = f"{SECTION}{'x' * 50}"
    assert learning_text("bash", text, False) == text
    assert learning_text("bash", text, True) is None
    for tool in TOOLS:
        assert learning_text(tool, text, False) is None
    assert learning_text("bash", "## Learnings\n" + "x" * 37, False) is None  # 50 characters
    assert learning_text("bash", "## Learnings\n" + "x" * 38, False) is not None
    assert learning_text("bash", f"## Learnings\n<private>{'x' * 90}</private>", False) is None  # measured without it


def test_a_long_text_is_cut_from_its_heading_on() -> None:
    """Behaviour 91: within the limit, and what the server reads is still in it."""
    whole = learning_text("bash", "x" * (LEARNING_CUT - len(SECTION) - 1) + "\n" + SECTION.rstrip() + "x", False)
    assert whole is not None and len(whole) == LEARNING_CUT and whole.startswith("xxx")
    cut = learning_text("bash", "x" * LEARNING_CUT + "\n" + SECTION + "y" * 30_000, False)
    assert cut is not None and len(cut) == LEARNING_CUT and cut.startswith(SECTION)
    assert learnings(cut) == [ITEM]


def test_the_cut_keeps_the_section_that_the_server_reads() -> None:
    """The last one with an item: an earlier one, or an empty one at the end, is not what it looks for."""
    early = "## Learnings\n\n- an early item, which a later section replaces\n" + "x" * LEARNING_CUT + "\n"
    cut = learning_text("bash", f"{early}{SECTION}\n## Learnings\n\nnone today", False)
    assert cut is not None and learnings(cut) == [ITEM]
    bare = learning_text("bash", "x" * LEARNING_CUT + "\n## Learnings\n\nnone\n\n### Learnings\n\nnone either", False)
    assert bare == "### Learnings\n\nnone either"


def test_a_private_heading_is_none() -> None:
    assert learning_text("bash", f"{'x' * 60}\n<private>\n{SECTION}</private>\n", False) is None


# --- 96: blocks that straddle the cuts ------------------------------------------------------------


@pytest.mark.parametrize("tag", ["<private>", "< Private >", "<PRIVATE><private>"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_block_over_the_cut_is_private_whole(tag: str, closed: bool) -> None:
    """Behaviour 96: had the cut come first, the closing tag would be gone, or the secret before it sent."""
    block = tag + SECRET * 30 + ("</private>" * tag.lower().count("private") if closed else "")
    for at in (PROMPT_CUT - 250, PROMPT_CUT - 120, PROMPT_CUT - 12, PROMPT_CUT - 4):
        prompt = prompt_text("user", texts("x" * at + block + "y" * 100))
        assert prompt is not None and SECRET[:4] not in prompt and "rivate" not in prompt
        assert len(prompt) <= PROMPT_CUT
    head = "z" * 30 + "\n" + SECTION
    for at in (LEARNING_CUT - 400, LEARNING_CUT - 120, LEARNING_CUT - 12):
        learning = learning_text("bash", head + "x" * (at - len(head)) + block + "y" * 1000, False)
        assert learning is not None and SECRET[:4] not in learning and "rivate" not in learning
        assert len(learning) <= LEARNING_CUT


PIECES = st.sampled_from(
    ["<private>", "</private>", "< PRIVATE >", "< / private>", "\n", " ", "ab", SECTION, "x" * 700]
)


@given(st.lists(PIECES, max_size=60))
@example(["</private>", "x" * 700, "x" * 700, "x" * 700, "<private>", "ab"])
@settings(max_examples=150)
def test_no_tag_survives_and_no_limit_is_passed(pieces: list[str]) -> None:
    """Behaviour 96, whatever the nesting; and a prompt is a prefix of the text that was redacted whole."""
    text = "".join(pieces)
    prompt, learning = prompt_text("user", texts(text)), learning_text("bash", text, False)
    for kept, limit in ((prompt, PROMPT_CUT), (learning, LEARNING_CUT)):
        assert kept is None or (len(kept) <= limit and not re.search(r"<\s*/?\s*private\s*>", kept, re.IGNORECASE))
    depth, public = 0, ""
    for piece in pieces:
        if "private" in piece.lower():
            depth = max(0, depth - 1) if "/" in piece else depth + 1
        elif depth == 0:
            public += piece
    if prompt is not None:  # every public character in its order, up to the cut
        found = re.sub(r"\[[REDACTED]{0,8}\]?", "", prompt)
        assert public.strip().startswith(found.strip())


# --- notices, the protocol, the archive's key -----------------------------------------------------


@pytest.mark.parametrize("outcome", list(Outcome))
def test_each_outcome_has_its_own_instruction(outcome: Outcome) -> None:
    """Behaviours 89 and 90: no two alike, the project named but for unavailable, and no other input to show."""
    others = {notice(other, "demo") for other in Outcome if other is not outcome}
    assert notice(outcome, "demo") not in others
    assert ("'demo'" in notice(outcome, "demo")) == (outcome is not Outcome.UNAVAILABLE)
    assert notice(outcome, None) and "None" not in notice(outcome, None)
    assert set(re.findall(r"mem_\w+", notice(outcome, "demo"))) <= set(TOOLS)


def test_what_the_outcomes_ask_for() -> None:
    """Behaviour 89."""
    confirmed, failed, unknown = (notice(o, "demo") for o in (Outcome.CONFIRMED, Outcome.FAILED, Outcome.UNKNOWN))
    unavailable = notice(Outcome.UNAVAILABLE, "demo")
    assert "already saved" in confirmed and "nothing to do" in confirmed and "mem_" not in confirmed
    assert "not saved" in failed and "mem_session_summary" in failed and "mem_search" not in failed
    assert "mem_search" in unknown and "mem_doctor" in unknown and "only if it is not there" in unknown
    assert ARCHIVE_TITLE in unknown  # what to look for
    assert "mem_current_project" in unavailable and "mem_session_start" in unavailable and "Verify" in unavailable


def test_the_protocol_is_static_and_names_tools_that_exist() -> None:
    """Behaviour 92: a text without a place to fill in, so there is nothing to fetch for it."""
    named = set(re.findall(r"\bmem_\w+", PROTOCOL))
    assert {"mem_search", "mem_save", "mem_session_summary"} <= named <= set(TOOLS)
    assert not re.search(r"[{}%$]", PROTOCOL) and len(PROTOCOL) < 2500


def test_the_archives_of_two_sessions_have_two_topics() -> None:
    assert archive_topic("agent-1") == "session/compaction-recovery/agent-1"
    assert archive_topic("agent-1:resume:2") == "session/compaction-recovery/agent-1:resume:2"


@given(st.text(max_size=300), st.text(max_size=300))
@example("Agent", "agent")
@example("a b", "a  b")
@example("a" * 200 + "1", "a" * 200 + "2")
@example(" a", "a")
@example("\ud800", "\ud801")
@settings(max_examples=100)
def test_no_server_folds_two_keys_into_one_topic(one: str, other: str) -> None:
    """Servers lower the case, trim, join white space by hyphens and cut at 120 characters."""

    def folded(key: str) -> str:
        return "-".join(archive_topic(key).lower().split())[:120]

    assert (folded(one) == folded(other)) == (one == other)
    assert folded(one) == archive_topic(one)
