"""Kill ``scopelog record --from`` with -9 at any moment: what comes back is the fold of the first lines that were fed,
of no fewer than it had reported written, and the next recording settles it once."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from scopelog import Store
from scopelog.clients.messages import RecoveredOperation, fold

from .cli_rig import call
from .streams_rig import as_lines, done, events_of, folded, interrupted, left_over, responses, sample, settled
from .test_cli_kill import SEED, Child

TRIALS = int(os.environ.get("SCOPELOG_KILLS", "2"))  # for each window and kind
FRAMES = sample()
FIRST, SECOND = responses(FRAMES)
EXPECTED = {
    "frames": [folded(FIRST, "toolUse"), folded(SECOND, "stop")],
    "events": [done(FIRST)["message"], done(SECOND)["message"]],
}


def stream_of(kind: str) -> list[dict[str, Any]]:
    return FRAMES if kind == "frames" else [*events_of(FIRST), done(FIRST), *events_of(SECOND), done(SECOND)]


def standing(kind: str, fed: int) -> tuple[int, list[dict[str, Any]]]:
    """After so many lines: how many messages are settled, and the frames of the one that streams."""
    first = len(FIRST) + (kind == "events")
    if kind == "events" and fed >= first:
        after = SECOND[: fed - first]
        return (2, []) if fed == len(FRAMES) + 2 else (1, after)
    return (0, FIRST[:fed]) if fed <= first else (1, SECOND[: fed - first])


def stands(operation: RecoveredOperation, kind: str, fed: int) -> bool:
    """Whether the operation is what these lines leave."""
    count, frames = standing(kind, fed)
    if [entry["message"] for entry in operation.entries] != EXPECTED[kind][:count]:
        return False
    if operation.response is None:
        return len(frames) <= 1  # a message settles before the next one begins
    return bool(operation.response.fold == fold(frames))


def left_by(store: Path) -> list[RecoveredOperation]:
    """What was interrupted; nothing if the recorder was killed before the session came into being."""
    if not (store / "store.zst").exists():
        return []
    with Store.open(store, create=False) as opened:
        return interrupted(store) if opened.sessions() else []


@pytest.mark.parametrize("trial", range(TRIALS))
@pytest.mark.parametrize("kind", ["events", "frames"])
@pytest.mark.parametrize("window", [0, 50])
def test_a_killed_recorder_leaves_the_fold_of_what_it_reported(
    store_path: Path, window: int, kind: str, trial: int
) -> None:
    seed = f"{SEED}/messages/{window}/{kind}/{trial}"
    print(f"SCOPELOG_SEED={SEED} (this trial: {seed})")
    rng = random.Random(seed)
    lines = as_lines(stream_of(kind))
    expected: list[Any] = []  # entries
    for number in range(rng.choice((1, 2))):
        child = Child(store_path, window, None, "--from", kind)
        fed = 0
        end = rng.randrange(1, len(lines) + 1)
        while fed < end:
            size = min(rng.choice((1, 3, 10, 40, 150)), end - fed)
            child.feed(lines[fed : fed + size])
            if fed == 0 and (number or rng.random() < 0.7):
                child.await_report(1)  # it runs, and has settled what was left
            fed += size
            if rng.random() < 0.15 and (kind == "events" or fed < len(lines)):
                child.await_report(fed)
        child.kill()

        found = left_by(store_path)
        assert len(found) <= 1
        assert found or child.reported == 0, seed
        for operation in found:
            assert any(stands(operation, kind, k) for k in range(child.reported, fed + 1)), seed
            expected += [*operation.entries, *operation.settlement()]
        assert call("check", store_path).exit_code in ((0, 1) if found else (0, 1, 3)), seed

    child = Child(store_path, window, None, "--from", kind)
    child.feed(lines)
    assert child.end() == 0
    assert (child.last["stopped"], child.reported) == ("end", len(lines))
    entries = settled(store_path)
    assert [entry["message"] for entry in entries[-2:]] == EXPECTED[kind]
    assert entries[:-2] == expected, seed
    responses = [entry["entryId"] for entry in entries if entry["message"]["role"] == "assistant"]
    assert len(set(responses)) == len(responses)  # a call's id comes back in each recording of the stream
    assert left_over(store_path) == []
    with Store.open(store_path, create=False) as store:
        assert [finding for finding in store.check() if finding.severity != "note"] == []


@pytest.mark.parametrize("kind", ["events", "frames"])
def test_a_message_whose_every_line_was_reported_comes_back_whole(store_path: Path, kind: str) -> None:
    """The strict case: kill at a moment when nothing is under way."""
    child = Child(store_path, 20, None, "--from", kind)
    for fed, line in enumerate(as_lines(stream_of(kind)[:25]), 1):
        child.feed([line])
        child.await_report(fed)
    child.kill()
    (operation,) = interrupted(store_path)
    assert operation.response and operation.response.fold == fold(FIRST[:25])
    assert operation.problems == ()
