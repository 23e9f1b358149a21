"""Faults of the memory bridge that were found by attack; each test tells the story."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from fuzz.simdisk import SimDisk
from scopelog import HandleClosed, InvalidInput, LimitExceeded, ManualClock, Store
from scopelog.aio import AsyncSession
from scopelog.clients.memory import BlockingMemoryBridge, Entry, MemoryBridge
from scopelog.clients.memory.outbox import MAX_ENTRY_BYTES, REASON_KEPT, Contents, Outbox, Places
from scopelog.clients.memory.projects import judge_envelope

from .engram import EngramServer, faults
from .memory_rig import blocks

pytest.importorskip("httpx2", reason="the extra engram is not installed")


def bridge_to(server: EngramServer, timeout: int = 1000) -> MemoryBridge:
    return MemoryBridge({"request_timeout_ms": timeout}, environ={"ENGRAM_URL": server.url})


def test_an_end_leaves_a_row_of_another_project_alone(tmp_path: Path) -> None:
    """Somebody else's row that happened to have the agent's id was ended, with our summary in it."""

    async def main() -> None:
        with EngramServer("3") as server, Store.open(tmp_path / "store") as store:
            server.model.resolve_to("/w", "demo")
            server.model.add_session("agent-1", "other", "/elsewhere")
            async with bridge_to(server) as bridge:
                session = await bridge.session(store.session("s"), "agent-1", "/w")
                answer = await session.end("ours")
                assert answer["ended"] is False and "another project" in answer["note"]
                assert server.model.rows.sessions["agent-1"].ended_at is None
                assert not server.seen("POST /sessions/{id}/end")

    asyncio.run(main())


def test_one_outbox_is_delivered_by_one_bridge(tmp_path: Path) -> None:
    """Two bridges on one session each sent what waited."""

    async def main() -> None:
        with EngramServer("3") as server, Store.open(tmp_path / "store") as store:
            server.model.resolve_to("/w", "demo")
            session = store.session("s")
            async with bridge_to(server) as first, bridge_to(server) as second:
                made = await first.session(session, "agent-1", "/w")
                with pytest.raises(InvalidInput, match="delivered already"):
                    await second.session(session, "agent-1", "/w")
                await second.session(session, "agent-2", "/w")
                await made.capture_prompt("e", blocks("a prompt that is long enough"))
                assert await made.drain(5)
                await first.aclose()
                again = await second.session(session, "agent-1", "/w")
                assert again.state("e") == "delivered"
                for late in (made.retry("e"), made.drop("e"), made.capture_prompt("f", blocks("too late for this"))):
                    with pytest.raises(HandleClosed):
                        await late
            assert len(server.model.rows.prompts) == 1

    asyncio.run(main())


@pytest.mark.parametrize("name", ["", " ", ".", "..", "x" * 600, "a <private>b</private> c", "<PRIVATE >open"])
def test_ids_that_cannot_travel_as_they_are_are_refused(name: str) -> None:
    """Private blocks in ids were stored and then taken out on the wire, making two ids one; others held the queue."""

    async def main() -> None:
        with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store:
            session = AsyncSession(store.session("s"))
            with pytest.raises(InvalidInput):
                Outbox(session, name)
            outbox = Outbox(session, "agent")
            with pytest.raises(InvalidInput):
                await outbox.add(Entry(name, "prompt", "/w", {"content": "x"}))
            assert outbox.head is None and session.sync.scan("memory.agents") == []

    asyncio.run(main())


def test_what_could_not_be_set_aside_is_not_admitted_and_reasons_are_bounded() -> None:
    async def main() -> None:
        with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store:
            outbox = Outbox(AsyncSession(store.session("s")), "agent")
            with pytest.raises(LimitExceeded):
                await outbox.add(Entry("e", "save", "/w", {"content": "x" * MAX_ENTRY_BYTES}))
            await outbox.add(Entry("e", "save", "/w", {"content": "x"}))
            await outbox.set_aside("parked", "<private>secret</private>" + "y" * 10_000)
            reason = outbox.aside["e"].reason
            assert len(reason) == REASON_KEPT and "secret" not in reason

    asyncio.run(main())


@pytest.mark.parametrize("hint", [["look"], {"a": 1}, True, 5])
def test_a_hint_of_any_kind_is_a_failure(hint: Any) -> None:
    """Only a str was taken for one: what else stood there counted as resolved."""
    envelope = {"project": "demo", "project_source": "config", "error_hint": hint}
    assert judge_envelope(envelope).state == "failed"
    for source in (["config"], {"config": 1}, 5):
        assert judge_envelope({"project": "demo", "project_source": source}).state == "failed"


def test_hostile_records_do_not_stop_the_delivery(tmp_path: Path) -> None:
    """A flight or an entry of another shape ended the task that delivers, without a word."""

    async def main() -> None:
        with EngramServer("3") as server, Store.open(tmp_path / "store") as store:
            server.model.resolve_to("/w", "demo")
            session = store.session("s")
            places = Places("agent-1")
            good = Entry("good", "prompt", "/w", {"content": "a prompt that is long enough"})
            bad = [{**good.stored(), "id": "bad", "payload": {}}, {**good.stored(), "kind": "odd"}, 5]
            session.commit([places.queue.append(one) for one in (*bad, good.stored())])
            for flight in ({"id": "good"}, {"id": "good", "request": {"method": "POST", "path": 5, "body": {}}}, 7):
                session.commit([places.flight.set(flight)])
                assert Contents.of(session, places).flight is None
            async with bridge_to(server) as bridge:
                made = await bridge.session(session, "agent-1", "/w")
                assert await made.drain(5) and made.state("good") == "delivered"

    asyncio.run(main())


def test_archive_and_start_wait_no_longer_than_the_request_timeout(tmp_path: Path) -> None:
    async def main() -> None:
        with EngramServer("3") as server, Store.open(tmp_path / "store") as store:
            server.model.resolve_to("/w", "demo")
            server.faults.on("GET /project/current", *[faults.delay("never") for _ in range(20)])
            async with bridge_to(server, 200) as bridge:
                session = await bridge.session(store.session("s"), "agent-1", "/w")
                before = asyncio.get_running_loop().time()
                assert await session.archive("c", "summary") == "unavailable"
                assert (await session.start())["registered"] is False
                assert asyncio.get_running_loop().time() - before < 5  # five tries of each took ten times the limit
                assert session.take_notice() is not None
            server.faults.clear()

    asyncio.run(main())


def test_closing_the_blocking_face_lets_go_of_who_waits(tmp_path: Path) -> None:
    """Their threads waited for ever: the loop had been stopped under them."""
    with EngramServer("3") as server, Store.open(tmp_path / "store") as store:
        server.model.resolve_to("/w", "demo")
        held = server.faults.hold("GET /search")
        bridge = BlockingMemoryBridge({"request_timeout_ms": 60_000}, environ={"ENGRAM_URL": server.url})
        session = bridge.session(store.session("s"), "agent-1", "/w")
        outcomes: list[Any] = []

        def search() -> None:
            try:
                outcomes.append(session.call("mem_search", {"query": "x"}))
            except Exception as error:  # noqa: BLE001 - handed to the test
                outcomes.append(error)

        thread = threading.Thread(target=search)
        thread.start()
        held.wait_held()
        bridge.close()
        held.release()
        thread.join(60)
        assert not thread.is_alive() and isinstance(outcomes[0], Exception)
        with pytest.raises(HandleClosed):
            session.call("mem_search", {"query": "x"})
        bridge.close()
