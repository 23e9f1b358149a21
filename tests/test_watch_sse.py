"""Watches as server-sent events: the bytes, heartbeats, ends; and the guide's application behind a fake server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz.simdisk import SimDisk
from scopelog import InvalidInput, ManualClock, Session, Store
from scopelog.aio import AsyncSession, AsyncWatch
from scopelog.clients.messages import Lane
from scopelog.clients.messages.aio import AsyncLane
from scopelog.delta import UNDEFINED, Decoder, apply
from scopelog.sse import HEADERS, server_sent_events

from .watch_rig import OUT, PLAIN, SCOPE, STATE

GUIDE = (Path(__file__).resolve().parents[1] / "scopes" / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def session() -> Iterator[Session]:
    with Store.open("/store", fs=SimDisk(), clock=ManualClock()) as store:
        yield store.session("s")


class Pause:
    """A heartbeat's sleep that ends when it is told to."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.cancelled = 0
        self._waiting: asyncio.Future[None] | None = None

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def end(self) -> None:
        while self._waiting is None or self._waiting.done():
            await asyncio.sleep(0)
        self._waiting.set_result(None)


def parsed(part: bytes) -> tuple[str, str, Any]:
    """Id, event and data, as a client reads them: lines up to an empty one."""
    text = part.decode("utf-8")
    assert text.endswith("\n\n") and text.count("\n\n") == 1 and "\r" not in text
    fields = dict(line.split(": ", 1) for line in text[:-2].split("\n"))
    assert [*fields] == ["id", "event", "data"]
    return fields["id"], fields["event"], json.loads(fields["data"])


def test_events_are_lines_of_ascii(session: Session) -> None:
    async def work() -> None:
        watch = await AsyncSession(session).watch(PLAIN)
        stream = server_sent_events(watch)
        number = session.append(PLAIN, {"text": "a\nb\r\u2028\ud800\0é"}, "t\n")
        identity, kind, data = parsed(await anext(stream))
        assert (kind, data) == ("base", {"elements": []}) and identity == watch.position
        part = await anext(stream)
        assert part.isascii()
        identity, kind, data = parsed(part)
        change = {
            "seq": number,
            "op": "append",
            "value": {"text": "a\nb\r\u2028\ud800\0é"},
            "tag": "t\n",
            "upto": None,
        }
        assert (kind, data) == ("batch", {"changes": [change]})
        watch.stop()
        identity, kind, data = parsed(await anext(stream))
        assert (kind, data) == ("end", {"reason": "stopped", "error": None, "missed": False})
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    asyncio.run(work())


def test_values_and_ends_are_told(session: Session) -> None:
    async def work() -> None:
        face = AsyncSession(session)
        values = server_sent_events(await face.watch(STATE))
        outputs = server_sent_events(await face.watch(OUT))
        assert parsed(await anext(values))[1:] == ("base", {"entry": None})
        await face.commit([STATE.set([1])])
        assert parsed(await anext(values))[2]["changes"][0]["value"] == [1]
        again = parsed(await anext(server_sent_events(await face.watch(STATE))))
        assert again[1:] == ("base", {"entry": {"key": "state", "value": [1], "seq": 1}})
        await anext(outputs)
        await face.commit([SCOPE.retire()])
        assert [parsed(part)[1:] async for part in outputs] == [
            ("end", {"reason": "retired", "error": None, "missed": False})
        ]
        await face.close()
        assert [parsed(part)[2]["reason"] async for part in values] == ["closed"]

    asyncio.run(work())


def test_silence_is_broken_by_comments_that_cost_no_event(session: Session) -> None:
    async def work() -> None:
        pause = Pause()
        watch = await AsyncSession(session).watch(PLAIN)
        stream = server_sent_events(watch, heartbeat=7.5, sleep=pause)
        await anext(stream)
        for n in range(3):
            coming = asyncio.ensure_future(anext(stream))
            await pause.end()
            assert await coming == b":\n\n"
            coming = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            session.append(PLAIN, n)
            assert parsed(await coming)[2]["changes"][0]["value"] == n
        assert set(pause.asked) == {7.5}
        await asyncio.sleep(0)
        assert pause.cancelled == 4 and pause.asked.count(7.5) == 7
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(work())


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_a_client_that_goes_stops_the_watch(how: str, session: Session) -> None:
    async def work() -> None:
        watch = await AsyncSession(session).watch(PLAIN)
        stream: Any = server_sent_events(watch)
        await anext(stream)
        (feed,) = session._writer._all_feeds()
        assert len(feed.watchers) == 1
        if how == "cancelled":
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
        else:
            await stream.aclose()
        assert len(feed.watchers) == 0
        ended = await watch.next()
        assert ended is not None and ended.kind == "end"
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        assert all(not loop.futures for loop in feed._loops)

    asyncio.run(work())


def test_a_lane_crosses_as_encoded_ops(session: Session) -> None:
    async def work() -> None:
        lane = Lane(session)
        watch: AsyncWatch[Any] = await AsyncLane(AsyncSession(session)).watch(encoded=True)
        operation = lane.begin("op")
        operation.response("e")
        operation.end()
        session.close()
        decoder = Decoder()
        value: Any = UNDEFINED
        kinds = []
        async for part in server_sent_events(watch):
            _, kind, data = parsed(part)
            kinds.append(kind)
            if kind != "end":
                value = apply(value, decoder.decode(data["ops"]))
        assert value == {"operation": None} and kinds[0] == "base" and kinds[-1] == "end"

    asyncio.run(work())


def test_what_is_no_watch_of_a_task_is_refused(session: Session) -> None:
    async def work() -> None:
        wrong: Any = session.watch(PLAIN)
        with pytest.raises(InvalidInput):
            await anext(server_sent_events(wrong))

    asyncio.run(work())


# --- the guide's application ------------------------------------------------------------------------------------------


class Client:
    """A connection to an ASGI application: what it was sent, and how it goes."""

    def __init__(self, app: Any, headers: list[tuple[bytes, bytes]]) -> None:
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._asked = False
        scope = {"type": "http", "method": "GET", "path": "/events", "headers": headers}
        self.task = asyncio.ensure_future(app(scope, self._receive, self.sent.put))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def events(self) -> AsyncIterator[tuple[str, str, Any]]:
        start = await self.sent.get()
        assert (start["type"], start["status"], start["headers"]) == ("http.response.start", 200, [*HEADERS])
        while (message := await self.sent.get())["more_body"]:
            yield parsed(message["body"])

    async def go(self) -> None:
        self._gone.set()
        await self.task


@pytest.mark.filterwarnings("error")
def test_the_application_of_the_guide_resumes_by_the_last_id(session: Session) -> None:
    (snippet,) = re.findall(r"```python\n([^`]*?def application\(.*?)```", GUIDE, re.DOTALL)
    names: dict[str, Any] = {"asyncio": asyncio}
    exec(compile(snippet, "scopes/README.md", "exec"), names)

    async def work() -> None:
        face = AsyncSession(session)
        app = names["application"](face, PLAIN)
        await face.commit([PLAIN.append("a")])
        client = Client(app, [(b"accept", b"text/event-stream")])
        events = client.events()
        identity, kind, data = await anext(events)
        assert kind == "base" and [e["element"] for e in data["elements"]] == ["a"]
        await face.append(PLAIN, "b")
        identity, kind, data = await anext(events)
        assert kind == "batch"
        await client.go()
        (feed,) = session._writer._all_feeds()
        assert len(feed.watchers) == 0
        await face.append(PLAIN, "c")  # nobody is connected

        client = Client(app, [(b"last-event-id", identity.encode())])
        events = client.events()
        _, kind, data = await anext(events)
        assert (kind, data["changes"][0]["value"]) == ("batch", "c")
        for header in (b"", b"\xff\xfe", b"0123456789abcdef-0", b"x" * 10_000, b"'; --"):
            other = Client(app, [(b"last-event-id", header)])
            _, kind, data = await anext(other.events())
            assert kind == "base" and [e["element"] for e in data["elements"]] == ["a", "b", "c"]
            await other.go()
        await face.close()
        assert [kind async for _, kind, _ in events] == ["end"]
        await client.task

    asyncio.run(work())
