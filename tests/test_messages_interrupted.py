"""KeyboardInterrupt and MemoryError wherever a lane is at work: what it shows, what is stored and what others were told
agree again after the next call, and a message settles once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from scopelog.clients.messages import Fenced, Lane, recover
from tests.test_interrupted import Entries
from tests.test_messages_lane import Replica, delta
from tests.test_messages_recovery import Rig, frames_of, message_of, text_of


class Scene(Rig):
    """A lane with a response and a tool at work, a listener and a replica."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.lane.on(self.events.append)
        self.batches: list[Any] = []  # sent to a replica that decodes them later: nothing is raised in it
        self.lane.replicate(self.batches.append)
        self.operation = self.lane.begin("op")
        self.response = self.operation.response("e1")
        for frame in frames_of("Hello"):
            self.response.take(frame)
        self.tool = self.operation.tool("t1", max_bytes=12)
        self.tool.write("first\n")
        self.session.flush()

    def replica(self) -> Any:
        """What the replica has."""
        replica = Replica()
        for batch in self.batches:
            replica(batch)
        return replica.value

    def settle(self, *, end: bool) -> None:
        self.response.settle(message_of("Hello"), end=end)


ERRORS: list[type[BaseException]] = [KeyboardInterrupt]
if os.environ.get("SCOPELOG_HYPOTHESIS") == "long":
    ERRORS.append(MemoryError)
Call = Callable[[Scene], object]
STREAMING: dict[str, Call] = {
    "delta": lambda scene: scene.response.take(delta(" there")),
    "end": lambda scene: scene.response.take({"type": "text_end", "contentIndex": 0, "content": "Hello"}),
    "write": lambda scene: scene.tool.write("second one\n"),
    "detail": lambda scene: scene.tool.detail({"n": 1}),
    "checkpoint": lambda scene: scene.tool.checkpoint({"m": 1}),
    "response": lambda scene: scene.operation.response("e2"),
}


def interrupted(call: Call, error: type[BaseException], least: int) -> Iterator[tuple[Scene, Entries]]:
    """A scene for each place in ``call`` that ``error`` comes at, after it came; there must be more than ``least``."""
    nth = 0
    while True:
        nth += 1
        scene = Scene()
        entries = Entries(nth, error)
        try:
            with entries:
                call(scene)
        except error:
            pass
        else:
            if not entries.where:
                break
        yield scene, entries
    assert nth > least


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", STREAMING)
def test_streams_go_on(name: str, error: type[BaseException]) -> None:
    for scene, entries in interrupted(STREAMING[name], error, 15):
        response = scene.operation.current or scene.operation.response("e2")
        if response is not scene.response:
            response.take(frames_of("")[0])
        elif (name == "end" and not scene.lane.state["operation"]["frameState"][0]["ended"]) or name != "end":
            response.take(delta("!"))
        scene.tool.write("more\n")
        scene.session.flush()
        assert scene.replica() == scene.lane.state, entries.where
        (found,) = recover(scene.session)
        assert found.response is not None and found.response.fold == response.message, entries.where
        (tool,) = found.tools
        assert tool.output == scene.tool.output, entries.where
        assert tool.output["text"].endswith("more\n") and len(tool.output["text"]) <= 12
        assert scene.tool.text in ("first\nmore\n", "nd one\nmore\n"), entries.where


SETTLING: dict[str, Call] = {
    "settle": lambda scene: scene.settle(end=False),
    "settle and end": lambda scene: scene.settle(end=True),
    "settle the tool": lambda scene: scene.tool.settle(),
    "end": lambda scene: scene.operation.end(),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", SETTLING)
def test_settling_is_done_once(name: str, error: type[BaseException]) -> None:
    for scene, entries in interrupted(SETTLING[name], error, 30):
        with suppress(Fenced):  # it was done before the error came
            SETTLING[name](scene)
        assert scene.replica() == scene.lane.state, entries.where
        stored = [element.element["entryId"] for element in scene.session.read(scene.lane.entries)]
        wanted = {"settle": ["e1"], "settle and end": ["e1"], "settle the tool": ["t1"], "end": []}[name]
        assert stored == wanted, entries.where
        ends = [event["entryId"] for event in scene.events if event["type"] == "message_end"]
        assert ends == wanted, entries.where
        over = name in ("settle and end", "end")
        assert (scene.lane.operation is None) is over and (scene.session.scopes() == []) is over, entries.where
        assert bool(recover(scene.session)) is not over
        if over:
            following = scene.lane.begin("op").response("e9")
            for frame in frames_of("next"):
                following.take(frame)
            assert text_of(following.message) == "next"


@pytest.mark.parametrize("error", ERRORS)
def test_beginning_and_resuming(error: type[BaseException]) -> None:
    """Begun or not: it can be begun or resumed then."""
    for resumed in (False, True):
        nth = 0
        while True:
            nth += 1
            rig = Rig()
            if resumed:
                rig.lane.begin("op").tool("t").write("stored")
                rig.session.flush()
                rig.kill()
            entries = Entries(nth, error)
            lane = Lane(rig.session)
            try:
                with entries:
                    lane.resume("op") if resumed else lane.begin("op")
            except error:
                pass
            else:
                if not entries.where:
                    break
            operation = lane.operation
            if operation is None:
                found = [one.id for one in recover(rig.session)]
                operation = lane.resume("op") if "op" in found else lane.begin("op")
            assert lane.state["operation"]["id"] == "op", entries.where
            tool = operation.tool("t")
            assert tool.text == ("stored" if resumed else "")
            operation.end()
            assert rig.session.scopes() == [] and recover(rig.session) == []
        assert nth > 20
