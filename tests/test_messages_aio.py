"""Lanes for asyncio: streams that are taken without waiting, commits that are awaited, and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fuzz.simdisk import SimDisk
from scopelog import InvalidInput, ManualClock, Store, list_of
from scopelog.aio import AsyncSession
from scopelog.clients.messages import Fenced, Lane, Operation, Response, ToolSink, recover
from scopelog.clients.messages.aio import AsyncLane, AsyncOperation, AsyncResponse, AsyncToolSink
from tests.test_messages_lane import Replica
from tests.test_messages_recovery import frames_of, message_of, text_of


def test_many_lanes_stream_at_once() -> None:
    async def stream(lane: AsyncLane, name: str) -> None:
        operation = await lane.begin(f"op-{name}", [list_of("chat", name).append("prompt")])
        response = operation.response(f"e-{name}")
        tool = operation.tool("t")
        for frame in frames_of(f"This is {name}"):
            response.take(frame)
            tool.write(".")
            await asyncio.sleep(0)
        await tool.checkpoint({"at": name})
        assert await tool.memo("at") == name and tool.output["text"].startswith(".")
        await tool.settle()
        await response.settle({**response.message, "stopReason": "stop"}, end=True)

    async def main() -> None:
        with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store:
            session = AsyncSession(store.session("s"))
            lanes = [AsyncLane(session, f"lane-{n}") for n in range(8)]
            replica = Replica()
            lanes[3].replicate(replica)
            await asyncio.gather(*(stream(lane, str(n)) for n, lane in enumerate(lanes)))
            assert replica.value == {"operation": None} and session.scopes() == []
            for n, lane in enumerate(lanes):
                tool, message = [element.element for element in await session.read(lane.sync.entries)]
                assert tool["entryId"] == "t" and text_of(message["message"]) == f"This is {n}"

    asyncio.run(main())


def test_events_are_fed_and_the_final_message_settles() -> None:
    async def main() -> None:
        with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store:
            lane = AsyncLane(AsyncSession(store.session("s")))
            events: list[Any] = []
            lane.on(events.append)
            response = (await lane.begin("op")).response("e")
            partial = {**message_of(""), "stopReason": "pending", "content": []}
            response.feed({"type": "start", "partial": partial})
            partial = {**partial, "content": [{"type": "text", "text": ""}]}
            response.feed({"type": "text_start", "contentIndex": 0, "partial": partial})
            response.feed({"type": "text_delta", "contentIndex": 0, "delta": "Hi"})
            assert response.feed({"type": "done", "reason": "stop", "message": message_of("Hi")}) is None
            assert response.final == message_of("Hi")
            await response.settle(end=True)
            assert events[-1] == {"type": "message_end", "runId": "op", "entryId": "e", "message": message_of("Hi")}
            with pytest.raises(Fenced):
                await response.settle()

    asyncio.run(main())


@pytest.mark.parametrize("end", [True, False])
def test_a_cancelled_settlement_is_done_or_not_done(end: bool) -> None:
    """Cancelled after any number of steps of the loop: told and stored agree, and a second try settles once."""

    async def attempt(steps: int) -> bool:
        """Whether the settlement had ended before it was cancelled."""
        with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store:
            session = AsyncSession(store.session("s"))
            lane = AsyncLane(session)
            events: list[Any] = []
            lane.on(events.append)
            operation = await lane.begin("op")
            response = operation.response("e")
            for frame in frames_of("Hello"):
                response.take(frame)
            task = asyncio.create_task(settle(lambda: response.settle(message_of("Hello"), end=end)))
            for _ in range(steps):
                await asyncio.sleep(0)
            ended = task.done()
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            acknowledged = outcome is True
            stored = len(await session.read(lane.sync.entries)) == 1
            told = [event for event in events if event["type"] == "message_end"]
            assert len(told) == stored == acknowledged
            if not acknowledged:
                response.take({"type": "text_delta", "contentIndex": 0, "delta": "!"})
                await response.settle(message_of("Hello!"), end=end)
            if not end:
                await operation.end()
            assert len(await session.read(lane.sync.entries)) == 1
            assert recover(session.sync) == [] and session.scopes() == []
            return ended

    async def settle(call: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        await call()
        return True

    steps = 0
    while not asyncio.run(attempt(steps)):
        steps += 1
    assert steps >= 1


def test_what_is_interrupted_is_recovered_and_resumed() -> None:
    async def main() -> None:
        disk = SimDisk()
        with Store.open("store", fs=disk, clock=ManualClock()) as store:
            lane = AsyncLane(AsyncSession(store.session("s")))
            response = (await lane.begin("op")).response("e")
            for frame in frames_of("half of"):
                response.take(frame)
            await lane.session.flush()
            disk = disk.copy().kill()
        with Store.open("store", fs=disk.copy(), clock=ManualClock()) as store:
            lane = AsyncLane(AsyncSession(store.session("s")))
            operation = lane.resume("op")
            with pytest.raises(InvalidInput, match="'op' runs"):
                await lane.recover()
            await operation.end()
            assert await lane.recover() == []
        with Store.open("store", fs=disk, clock=ManualClock()) as store:
            lane = AsyncLane(AsyncSession(store.session("s")))
            (found,) = await lane.recover()
            assert found.response is not None and text_of(found.response.fold) == "half of"
            assert await lane.recover() == []
            (entry,) = await lane.session.read(lane.sync.entries)
            assert entry.element["message"] == found.response.message

    asyncio.run(main())


def test_only_async_sessions() -> None:
    with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store:
        wrong: Any = store.session("s")
        with pytest.raises(InvalidInput, match="AsyncSession"):
            AsyncLane(wrong)


@pytest.mark.parametrize(
    ("face", "of"),
    [(AsyncLane, Lane), (AsyncOperation, Operation), (AsyncResponse, Response), (AsyncToolSink, ToolSink)],
)
def test_the_faces_have_all_that_is_public(face: type, of: type) -> None:
    internal = {"kind", "lane", "phase", "began", "resumed", "current", "session"}
    assert {name for name in dir(of) if not name.startswith("_")} - internal <= set(dir(face))


def test_an_operation_is_aborted() -> None:
    async def main() -> None:
        with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store:
            lane = AsyncLane(AsyncSession(store.session("s")))
            operation = await lane.begin("op", [lane.entry("prompt", {"role": "user", "content": "Hi"})])
            response = operation.response("e")
            for frame in frames_of("half of"):
                response.take(frame)
            found = await operation.abort("the user stopped it")
            assert found.response is not None and lane.operation is None
            assert [message["role"] for message in lane.history()] == ["user", "assistant"]
            assert lane.history()[1]["errorMessage"] == "the user stopped it"
            assert lane.history()[1]["stopReason"] == "aborted"
            with pytest.raises(Fenced):
                await operation.abort()

    asyncio.run(main())
