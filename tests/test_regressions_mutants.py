"""Faults that turned up when the engine was broken on purpose. Each docstring tells what went wrong once."""

from __future__ import annotations

from pathlib import Path

import pytest

from scopelog import HandleFenced, HandleUnusable, ManualClock, Store

from .stores import CHAT, DELTAS, LOCK, MAIN, MESSAGES, STATE, image_of, records


@pytest.mark.parametrize("staged", [False, True])
def test_closing_writes_nothing_to_a_session_that_is_somebody_elses(staged: bool, store_path: Path) -> None:
    """The lock file was removed and a second owner came in. It appended to main within the space that the first one had
    reserved, so that the log's length was still the first one's own; and the first one, which had not written since,
    was closed. A closing frame was written over what the second owner had acknowledged, and the log was cut behind it:
    the lock file was looked at before commits and windows, but not before a closing frame. With staged elements the
    flush was refused, and the closing frame was written all the same."""
    first, second = (Store.open(store_path, clock=ManualClock()) for _ in range(2))
    old = first.session(CHAT)
    old.commit([MESSAGES.append("one")])
    old.commit([DELTAS.append("a")])
    if staged:
        old.append(MESSAGES, "staged")
    length = (store_path / MAIN).stat().st_size
    (store_path / LOCK).unlink()
    new = second.session(CHAT)
    new.commit([MESSAGES.append("two")])
    new.commit([STATE.set("b")])
    assert (store_path / MAIN).stat().st_size == length
    before = image_of(store_path)
    with pytest.raises(HandleFenced):
        old.close(force=True)
    assert image_of(store_path) == before
    new.commit([MESSAGES.append("three")])
    new.close()
    assert [r.value for r in records(second)] == ["one", "a", "two", "b", "three"]
    with pytest.raises(HandleUnusable):  # it was let go of all the same
        old.commit([MESSAGES.append("four")])
