"""Real provider streams: our frames are the real encoder's, and so is the message they fold to."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scopelog.clients.messages import FrameEncoder, MessageView, apply_frame, current_message, fold, join_frames

from .conftest import SHARED, shared
from .messages_rig import STATES, Replicated, spelled, state_of

STREAMS = sorted((SHARED / "corpus" / "streams").glob("*/*.events.jsonl"))


@pytest.fixture(params=[str(path.relative_to(path.parents[1])) for path in STREAMS] or ["none"])
def stream(request: pytest.FixtureRequest) -> Path:
    return shared("corpus/streams") / str(request.param)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def golden(stream: Path) -> tuple[list[Any], Any]:
    """The frames, and the fold."""
    base = str(stream).removesuffix(".events.jsonl")
    frames = [frame for frame in lines(Path(base + ".frames.jsonl")) if frame is not None]
    return frames, json.loads(Path(base + ".message.json").read_text(encoding="utf-8"))["fold"]


def test_there_are_streams() -> None:
    shared("corpus/streams")
    assert len(STREAMS) >= 60


def test_the_encoder_gives_the_frames_of_the_real_one(stream: Path) -> None:
    expected = lines(Path(str(stream).replace(".events.", ".frames.")))
    events = lines(stream)
    assert len(events) == len(expected)
    encoder = FrameEncoder()
    for event, frame in zip(events, expected, strict=True):
        before = spelled(event)
        assert json.dumps(encoder.encode(event)) == json.dumps(frame)  # the order of fields, too
        assert spelled(event) == before


def test_the_frames_fold_to_the_real_message(stream: Path) -> None:
    frames, expected = golden(stream)
    assert spelled(fold(frames)) == spelled(expected)
    joined = [frame for frame, _ in join_frames(frames)]
    assert spelled(fold(joined)) == spelled(expected)


@pytest.mark.parametrize("kind", STATES)
def test_a_state_stands_where_the_fold_does(stream: Path, kind: str) -> None:
    frames, expected = golden(stream)
    cuts = set(Random(0).sample(range(1, len(frames) + 1), min(10, len(frames))))
    state = state_of(kind)
    for number, frame in enumerate(frames, 1):
        apply_frame(state, frame)
        if isinstance(state, Replicated):
            state.replicate()
        if number in cuts:
            assert spelled(current_message(state)) == spelled(fold(frames[:number]))
    assert spelled(current_message(state)) == spelled(expected)


def test_a_view_shows_the_message(stream: Path) -> None:
    frames, expected = golden(stream)
    view = MessageView(state_of("plain"))
    for frame in frames:
        view.apply(frame)
    assert spelled(view.refresh()) == spelled(expected)
