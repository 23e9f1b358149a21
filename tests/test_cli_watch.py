"""scopelog watch: messages as another process records them; and the fold that it is made of."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import IO, Any

import pytest

from scopelog import Deleted, InvalidInput, Store, ephemeral
from scopelog.cli.watching import _behind
from scopelog.clients.messages import FollowedMessages, Lane, recover
from scopelog.clients.messages.following import Output, Over, Settled, Streaming, Unreadable
from tests.cli_rig import call, refused, started
from tests.conftest import shared
from tests.test_messages_recovery import frames_of, message_of

SAMPLE = Path(__file__).parents[1] / "scopes" / "scopelog" / "cli" / "sample.jsonl"


def until(stream: IO[bytes], marker: str) -> str:
    """What the child prints up to and including the marker."""
    data = b""
    while not data.endswith(marker.encode()):
        byte = os.read(stream.fileno(), 1)
        assert byte, f"it ended after {data!r}"
        data += byte
    return data.decode()


def test_a_message_is_shown_as_it_grows_and_settles(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        lane = Lane(session)
        operation = lane.begin("op-1")
        response = operation.response("e-1")
        text = "Hello, world. Good\nbye."
        frames = frames_of(text)
        for frame in frames[:6]:
            response.take(frame)
        session.flush()
        with started("watch", store_path, "s") as (child, _, out, err):
            assert until(out, "Hell") == "[message e-1]\nHell"
            for frame in frames[6:]:
                response.take(frame)
            session.flush()
            assert until(out, "bye.") == "o, world. Good\nbye."
            response.settle(message_of(text))
            assert until(out, ")\n").endswith("\nsettled in lane main: e-1 (stop)\n")
            sink = operation.tool("call-1", name="ls")
            sink.write("one\ttwo\x1b[31m\n")
            session.flush()
            assert until(out, "31m\n") == "[output of tool call call-1]\none    two\\u001b[31m\n"
            sink.settle()
            operation.end()
            assert until(out, ")\n") == "settled in lane main: call-1 (toolResult)\n"
            session.close()
            store.delete_session("s")
            assert child.wait(60) == 0 and b"it was deleted" in err.read()


def test_json_and_the_first_that_settles(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        lane = Lane(session)
        operation = lane.begin("op-1")
        with started("watch", store_path, "s", "--json", "--once") as (child, _, out, _err):
            assert json.loads(out.readline()) == {"over": None}
            response = operation.response("e-1")
            text = "ab"
            for frame in frames_of(text):
                response.take(frame)
            session.flush()
            found: list[dict[str, Any]] = [json.loads(out.readline())]
            response.settle(message_of(text))
            found += [json.loads(line) for line in out]
            assert child.wait(60) == 0
    assert found[0]["streaming"]["message"]["content"][0]["text"] == "ab"
    assert [*found[-1]] == ["settled"] and found[-1]["settled"]["entry"]["entryId"] == "e-1"


def test_refusals_and_ends(store_path: Path) -> None:
    refused(call("watch", store_path, "s"), 2, "not a scopelog store")
    with Store.open(store_path) as store:
        refused(call("watch", store_path, "s"), 2, "no session")
        with store.session("s") as session:
            Lane(session).begin("op")
        assert call("watch", store_path, "s", "--timeout", "0").stdout == ""
    with started("watch", store_path, "s", "--json") as (child, _, out, err):
        out.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130 and err.read() == b""


@pytest.mark.parametrize(
    ("shown", "text", "fresh"),
    [("abc", "abcd", "d"), ("abcabc", "bcabcX", "X"), ("abc", "xyz", "xyz"), ("abc", "", ""), ("", "a", "a")],
)
def test_what_is_new_behind_a_beginning_that_was_dropped(shown: str, text: str, fresh: str) -> None:
    assert _behind(shown, text) == fresh


# --- the fold ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [0, 1, 7, 40])
def test_the_fold_is_what_recover_finds(store_path: Path, begin: int) -> None:
    """From any moment on, through rebases and rotation, and for tools."""
    with Store.open(store_path) as store, store.session("s") as session:
        lane = Lane(session)
        operation = lane.begin("op")
        response, sink = operation.response("e"), operation.tool("call", max_bytes=300)
        follower, messages = None, FollowedMessages()
        now: dict[str, Any] = {}
        text = "x" * 60
        for number, frame in enumerate(frames_of(text)):
            response.take(frame)
            sink.write(f"line {number}\n")
            if number % 3 == 0:
                session.flush()
            if number == begin:
                follower = store.follow("s")
            if follower is None:
                continue
            for event in follower.poll():
                for change in messages.take(event):
                    if isinstance(change, Streaming):
                        now["message"] = json.loads(json.dumps(change.message))
                    elif isinstance(change, Output):
                        now["output"] = json.loads(json.dumps(change.output))
            with store.reader("s") as reader:
                (found,) = recover(reader)
            if found.response is not None:
                assert now["message"] == found.response.fold
            if found.tools:
                assert now["output"] == found.tools[0].output
        assert follower is not None and "x" * 58 in json.dumps(now["message"])
        response.settle(message_of(text))
        sink.settle()
        operation.end()
        changes = [change for event in follower.poll() for change in messages.take(event)]
        assert [c.entry["entryId"] for c in changes if isinstance(c, Settled)] == ["e", "call"]
        assert Over("op") in changes and messages._streams == {}
        follower.close()


def test_what_has_settled_is_not_shown_as_streaming(store_path: Path) -> None:
    """In an operation that goes on: neither behind its settlement, nor to whoever begins then."""
    with Store.open(store_path) as store, store.session("s") as session:
        text = "abc"
        operation = Lane(session).begin("op")
        response, sink = operation.response("e"), operation.tool("call")
        messages, late = FollowedMessages(), FollowedMessages()
        with store.follow("s") as follower:
            for frame in frames_of(text):
                response.take(frame)
            sink.write("out")
            session.flush()
            response.settle(message_of(text))
            sink.settle()
            other = operation.response("e-2")
            for frame in frames_of("x"):
                other.take(frame)
            session.flush()
            changes = [change for event in follower.poll() for change in messages.take(event)]
            behind = [c for c in changes[-1:] if isinstance(c, Streaming)]
            assert [c.entry_id for c in behind] == ["e-2"]
        with store.follow("s") as follower:
            changes = [change for event in follower.poll() for change in late.take(event)]
            assert [c.entry_id for c in changes if isinstance(c, Streaming)] == ["e-2"]
            assert not any(isinstance(c, Output) for c in changes)


def test_resumed_in_the_middle_of_a_stream_it_is_told_so(store_path: Path) -> None:
    """It was blind to it in silence until the next base."""
    with Store.open(store_path) as store, store.session("s") as session:
        response = Lane(session).begin("op").response("e")
        frames = frames_of("abcdef")
        for frame in frames[:4]:
            response.take(frame)
        session.flush()
        with store.follow("s") as follower:
            position = [event.position for event in follower.poll() if not isinstance(event, Deleted)][-1]
        for frame in frames[4:]:
            response.take(frame)
        session.flush()
        with store.follow("s", str(position)) as follower:
            messages = FollowedMessages()
            changes = [change for event in follower.poll() for change in messages.take(event)]
            assert [type(change) for change in changes] == [Unreadable]
        with pytest.raises(InvalidInput, match="no event of a follower"):
            messages.take("x")  # type: ignore[arg-type]


def test_a_stream_that_cannot_be_folded_is_passed_over_until_its_next_base(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        target = ephemeral("op").list_of("pendingToolOutput", "call")
        messages = FollowedMessages()
        session.commit([target.append([["r", {"text": "a"}]], "base")])
        with store.follow("s") as follower:
            session.commit([target.append([["zz", 1]]), target.append([["#", 5, ["text"]]])])
            changes = [change for event in follower.poll() for change in messages.take(event)]
            assert [type(change) for change in changes if not isinstance(change, Over)][-1] is Unreadable
            session.commit([target.append([["r", {"text": "b"}]], "base")])
            changes = [change for event in follower.poll() for change in messages.take(event)]
            assert changes == [Output("op", "call", {"text": "b"})]


def test_recorded_streams_are_folded(store_path: Path) -> None:
    streams = sorted(shared("corpus").rglob("*.frames.jsonl"))[:5] or pytest.skip("no frame streams in the corpus")
    for number, path in enumerate(streams):
        call("record", store_path, f"s{number}", path, "--from", "frames")
        result = call("watch", store_path, f"s{number}", "--timeout", "0")
        assert result.exit_code == 0
