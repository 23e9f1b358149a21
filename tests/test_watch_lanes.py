"""Watches of lanes: the sample stream and recorded ones, watched from every moment on, as ops and encoded."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fuzz.simdisk import SimDisk
from scopelog import Ended, EndReason, HandleClosed, ManualClock, Session, Store
from scopelog.aio import AsyncSession
from scopelog.clients.messages import Lane, Ops, current_message, fold
from scopelog.clients.messages.aio import AsyncLane
from scopelog.clients.messages.copying import finite
from scopelog.delta import UNDEFINED, Decoder, apply
from scopelog_engine.feeds import LIMIT

from .conftest import SHARED, shared
from .streams_rig import responses, sample
from .test_interrupted import Entries

STREAMS = sorted((SHARED / "corpus" / "streams").glob("*/*.frames.jsonl"))[::7]


class Replica:
    """A watch of a lane, and the value that its ops make."""

    def __init__(self, lane: Lane, **options: Any) -> None:
        self.lane = lane
        self.options = options
        self.decoder = Decoder()
        self.value: Any = UNDEFINED
        self.bases = 0
        self.events = 0
        self.ended: Ended | None = None
        self.watch = lane.watch(**options)

    def take(self, count: int = 1 << 30) -> None:
        while count and self.ended is None and (event := self.watch.next(0)) is not None:
            count -= 1
            self.read(event)

    def read(self, event: Any) -> None:
        if isinstance(event, Ended):
            self.ended = event
            return
        assert isinstance(event, Ops)
        assert self.events or event.base or "after" in self.options, "the first batch is a base"
        self.events += 1
        self.bases += event.base
        ops: list[Any] = event.ops
        if self.options.get("encoded"):
            ops = self.decoder.decode(json.loads(json.dumps(event.data()))["ops"])
        self.value = apply(self.value, ops)

    def resume(self) -> None:
        self.watch.stop()
        self.ended = None
        self.options["after"] = self.watch.position
        self.watch = self.lane.watch(**self.options)

    def check(self) -> None:
        self.take()
        assert self.value == finite(self.lane.state)


class Rig:
    def __init__(self, window: int = 100) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.store = Store.open("/store", fs=self.disk, clock=self.clock, window_ms=window)
        self.session: Session = self.store.session("s")
        self.lane = Lane(self.session)


def watched(rig: Rig, frames: Sequence[dict[str, Any]], every: int, random: Random) -> None:
    """Record the frames, with watches begun before and after every so many."""
    lane = rig.lane
    eager, lazy, coming_back = [Replica(lane)], [Replica(lane, encoded=True, limit=5)], [Replica(lane, encoded=True)]
    for number, response_frames in enumerate(responses(frames)):
        operation = lane.begin(f"op-{number}")
        response = operation.response(f"entry-{number}")
        for at, frame in enumerate(response_frames):
            if at % every == 0:
                eager.append(Replica(lane, encoded=bool(at % 2)))
                lazy.append(Replica(lane, encoded=bool(at % 2), limit=random.choice([1, 5, LIMIT])))
            response.take(copy.deepcopy(frame))
            if at % every == 0:
                eager.append(Replica(lane, encoded=not at % 2))
                coming_back.append(Replica(lane, encoded=bool(at % 2)))
                rig.clock.advance(0.03)
                for one in eager[-3:]:
                    one.check()
                random.choice(lazy).take(3)
                one = random.choice(coming_back)
                one.take(2)
                one.resume()
        for one in eager + coming_back:
            one.check()
        message = current_message(lane.state["operation"])
        assert message == fold(response_frames)
        response.settle({**response.message, "stopReason": "stop"}, end=True)
        for one in eager:
            one.check()
    for one in eager + lazy + coming_back:
        one.check()
        assert one.value == {"operation": None}
    rig.store.close()
    for one in eager + lazy + coming_back:
        one.take()
        assert one.ended is not None and (one.ended.reason, one.ended.missed) == (EndReason.CLOSED, False)


@pytest.mark.parametrize("window", [0, 50, 200])
def test_watches_of_the_sample_stream_show_what_the_lane_shows(window: int) -> None:
    watched(Rig(window), sample(), 5, Random(window))


@pytest.mark.parametrize("name", [str(path.relative_to(path.parents[1])) for path in STREAMS] or ["none"])
def test_watches_of_recorded_streams_show_what_the_lane_shows(name: str) -> None:
    path: Path = shared("corpus/streams") / name
    frames = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    frames = [frame for frame in frames if frame is not None]
    watched(Rig(), frames, max(1, len(frames) // 12), Random(0))


def begun(rig: Rig) -> Any:
    response = rig.lane.begin("op").response("e")
    response.take(
        {"type": "start", "partial": {"role": "assistant", "content": [], "stopReason": "pending", "usage": {}}}
    )
    response.take({"type": "text_start", "contentIndex": 0, "content": {"type": "text", "text": ""}})
    return response


def delta(text: str) -> dict[str, Any]:
    return {"type": "text_delta", "contentIndex": 0, "delta": text}


def test_the_base_is_what_was_taken_not_what_was_stored() -> None:
    """A window of 60 s: nothing of it is on the disk, all of it is in the base, and nothing comes twice."""
    rig = Rig(60_000)
    response = begun(rig)
    for at, text in enumerate("ABCD"):
        replica = Replica(rig.lane, encoded=bool(at % 2))
        response.take(delta(text))
        replica.check()
        assert replica.value["operation"]["streamingMessage"]["content"][0]["text"] == "ABCD"[: at + 1]


def test_a_slow_watch_of_a_lane_gets_one_base_in_place_of_its_backlog() -> None:
    rig = Rig()
    response = begun(rig)
    replica = Replica(rig.lane, encoded=True)
    replica.take()
    for n in range(LIMIT + 1):
        response.take(delta(f"{n} "))
    replica.check()
    assert (replica.bases, replica.events) == (2, 2)
    assert rig.lane._feed is not None and len(rig.lane._feed.log) == LIMIT
    replica.watch.stop()
    for n in range(LIMIT + 1):
        response.take(delta(f"{n} "))
    assert rig.lane._feed is None and rig.session._writer._guests == []


def test_bases_are_made_of_one_copy_without_holding_the_lane() -> None:
    """The value is copied under the lane's lock once; later bases come from that copy and the batches behind it."""
    rig = Rig()
    response = begun(rig)
    first = Replica(rig.lane)
    first.check()
    original, copies = rig.lane._lock, 0

    class Counting:
        def __enter__(self) -> None:
            nonlocal copies
            copies += 1
            original.__enter__()

        def __exit__(self, *ended: Any) -> None:
            original.__exit__(*ended)

    for n in range(30):
        response.take(delta(f"{n} "))
    rig.lane._lock = Counting()  # type: ignore[assignment]
    crowd = [Replica(rig.lane) for _ in range(50)]
    assert copies == 50  # to register
    for one in crowd:
        one.check()
    assert copies == 50
    rig.lane._lock = original


def test_ops_are_nobody_elses() -> None:
    rig = Rig()
    one, other = Replica(rig.lane), Replica(rig.lane)
    begun(rig)
    while (event := one.watch.next(0)) is not None:
        assert isinstance(event, Ops)
        json.dumps(event.ops)
        for op in event.ops:
            if op[0] == "s" and isinstance(op[2], dict):
                op[2].clear()
            op[1:] = ["changed"]
    other.check()


def test_halves_of_characters_cross_as_json() -> None:
    rig = Rig()
    replica = Replica(rig.lane, encoded=True)
    response = begun(rig)
    for text in ("a\ud83d", "\ude00b\nc", "\udfff"):
        response.take(delta(text))
        replica.check()
    assert replica.value["operation"]["streamingMessage"]["content"][0]["text"] == "a\U0001f600b\nc\udfff"


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_producer_is_followed_all_the_same(error: type[BaseException]) -> None:
    nth = 0
    while True:
        nth += 1
        rig = Rig()
        response = begun(rig)
        replicas = [Replica(rig.lane, encoded=encoded) for encoded in (False, True)]
        replicas[0].take()
        entries = Entries(nth, error)
        with contextlib.suppress(error), entries:
            response.take(delta("maybe "))
        response.take(delta("after"))
        for replica in [*replicas, Replica(rig.lane)]:
            replica.check()
        rig.store.close(force=True)
        if not entries.where:
            break
    assert nth > 10


@pytest.mark.parametrize("encoded", [False, True])
def test_an_interrupted_watch_of_a_lane_misses_nothing(encoded: bool) -> None:
    nth = 0
    while True:
        nth += 1
        rig = Rig()
        response = begun(rig)
        replica = Replica(rig.lane, encoded=encoded, limit=3)
        replica.take(1)
        for text in "ab":
            response.take(delta(text))
        taken: Any = None
        entries = Entries(nth, KeyboardInterrupt)
        with contextlib.suppress(KeyboardInterrupt), entries:
            taken = replica.watch.next(0)
        if taken is not None:
            replica.read(taken)
        response.take(delta("c"))
        replica.check()
        rig.store.close(force=True)
        if not entries.where:
            break
    assert nth > 3


def test_a_listener_and_a_replica_may_begin_a_watch() -> None:
    rig = Rig()
    begun_by: list[Replica] = []
    rig.lane.on(lambda event: begun_by.append(Replica(rig.lane)) if len(begun_by) < 3 else None)
    stop = rig.lane.replicate(lambda batch: begun_by.append(Replica(rig.lane, encoded=True)))
    response = begun(rig)
    for text in "abc":
        response.take(delta(text))
        for one in begun_by:
            one.check()
    stop()
    assert len(begun_by) > 4


def test_tasks_watch_a_lane() -> None:
    rig = Rig()

    async def work() -> list[str]:
        lane = AsyncLane(AsyncSession(rig.session))
        value: Any = UNDEFINED
        kinds = []

        async def produce() -> None:
            response = (await lane.begin("op")).response("e")
            response.take({"type": "start", "partial": {"role": "assistant", "content": [], "stopReason": "pending"}})
            await asyncio.sleep(0)
            await response.settle({**response.message, "stopReason": "stop"}, end=True)
            await lane.session.close()

        async with await lane.watch() as watch:
            producing = asyncio.ensure_future(produce())
            async for event in watch:
                kinds.append(event.kind)
                if isinstance(event, Ops):
                    value = apply(value, event.ops)
            await producing
        assert value == {"operation": None}
        with pytest.raises(HandleClosed):
            await lane.watch()
        return kinds

    kinds = asyncio.run(work())
    assert kinds[0] == "base" and kinds[-1] == "end" and "batch" in kinds


def test_threads_watch_a_lane_while_it_streams(store_path: Path) -> None:
    with Store.open(store_path, window_ms=1) as store, store.session("s") as session:
        lane = Lane(session)
        replicas = [Replica(lane, encoded=bool(n % 2), limit=(3, LIMIT)[n % 3 == 0]) for n in range(6)]

        def follow(replica: Replica) -> None:
            for event in replica.watch:
                replica.read(event)

        threads = [threading.Thread(target=follow, args=(replica,)) for replica in replicas]
        for thread in threads:
            thread.start()
        for number, frames in enumerate(responses(sample())):
            response = lane.begin(f"op-{number}").response("e")
            for frame in frames:
                response.take(frame)
            response.settle({**response.message, "stopReason": "stop"}, end=True)
        session.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        for replica in replicas:
            assert replica.ended is not None and replica.ended.reason is EndReason.CLOSED
            assert replica.ended.missed or replica.value == {"operation": None}
