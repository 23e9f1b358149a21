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
from scopelog.clients.memory import BlockingMemoryBridge, EngramError, Entry, MemoryBridge
from scopelog.clients.memory.outbox import DONE_KEPT, MAX_ENTRY_BYTES, REASON_KEPT, Contents, Outbox, Places, entry_of
from scopelog.clients.memory.projects import judge_envelope
from scopelog.clients.memory.registration import Registration

from .engram import GENERATIONS, EngramServer, faults
from .memory_rig import Rig, blocks, head_of

pytest.importorskip("httpx2", reason="the extra engram is not installed")


def bridge_to(server: EngramServer, timeout: int = 1000) -> MemoryBridge:
    return MemoryBridge({"request_timeout_ms": timeout}, environ={"ENGRAM_URL": server.url})


@pytest.mark.parametrize("generation", sorted(GENERATIONS))
def test_an_end_leaves_a_row_of_another_project_alone(generation: str, tmp_path: Path) -> None:
    """Somebody else's row that happened to have the agent's id was ended, with our summary in it."""

    cwd = Rig.workspace(tmp_path / "work", "demo")

    async def main() -> None:
        with EngramServer(generation) as server, Store.open(tmp_path / "store") as store:
            server.model.resolve_to(cwd, "demo")
            server.model.add_session("agent-1", "other", "/elsewhere")
            async with bridge_to(server) as bridge:
                session = await bridge.session(store.session("s"), "agent-1", cwd)
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
            await outbox.set_aside(head_of(outbox), "parked", "<private>secret</private>" + "y" * 10_000)
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


@pytest.mark.parametrize("generation", sorted(GENERATIONS))
def test_a_row_that_is_refused_for_good_parks_its_entry(generation: str, tmp_path: Path) -> None:
    """The queue waited for ever behind what no later try could register."""

    cwd = Rig.workspace(tmp_path / "work", "demo")

    async def main() -> None:
        with EngramServer(generation) as server, Store.open(tmp_path / "store") as store:
            server.model.resolve_to(cwd, "demo")
            server.faults.on("POST /sessions", faults.fail(400, "no such thing"))
            async with bridge_to(server) as bridge:
                session = await bridge.session(store.session("s"), "agent-1", cwd)
                await session.capture_prompt("first", blocks("a prompt that is long enough"))
                await session.capture_prompt("second", blocks("another that is long enough"))
                assert await session.drain(5)
                assert session.state("first") == "parked" and session.state("second") == "delivered"
                assert "no such thing" in session.aside["first"].reason

    asyncio.run(main())


def test_a_session_that_was_closed_under_the_bridge_ends_its_delivery(tmp_path: Path) -> None:
    """It was tried again for ever, each minute."""

    async def main() -> None:
        with EngramServer("3") as server, Store.open(tmp_path / "store") as store:
            server.model.resolve_to("/w", "demo")
            async with bridge_to(server) as bridge:
                stored = store.session("s")
                session = await bridge.session(stored, "agent-1", "/w")
                stored.close()
                with pytest.raises(HandleClosed):
                    await session.capture_prompt("e", blocks("a prompt that is long enough"))
                stored = store.session("s")
                again = await bridge.session(stored, "agent-1", "/w")
                held = server.faults.on("POST /prompts", faults.delay("before")).gate
                await again.capture_prompt("e", blocks("a prompt that is long enough"))
                await asyncio.to_thread(held.wait_held)
                stored.close()
                held.release()
                assert not await again.drain(5)
                assert again.closed

            async with bridge_to(server) as bridge:
                last = await bridge.session(store.session("s"), "agent-1", "/w")
                assert await last.drain(5) and last.state("e") == "delivered"
            assert len(server.model.rows.prompts) == 1

    asyncio.run(main())


@pytest.mark.parametrize("cwd", ["/w/\udcff", "/" + "x" * 5000, "/w/<private>p</private>"])
def test_directories_that_cannot_travel_are_refused(tmp_path: Path, cwd: str) -> None:
    async def main() -> None:
        with EngramServer("3") as server, Store.open(tmp_path / "store") as store:
            async with bridge_to(server) as bridge:
                stored = store.session("s")
                with pytest.raises(InvalidInput, match="working directory"):
                    await bridge.session(stored, "agent-1", cwd)
                await bridge.session(stored, "agent-1", "/w")  # the outbox is still free

    asyncio.run(main())


@pytest.mark.parametrize("given", ["..", "x" * 600, "<private>p</private>"])
def test_an_id_of_the_server_that_is_none_is_not_adopted(tmp_path: Path, given: str) -> None:
    """It became the key for ever: of a path, or of nothing."""

    async def main() -> None:
        with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store:
            outbox = Outbox(AsyncSession(store.session("s")), "agent-1")
            asked: list[str] = []

            class Resuming:
                capabilities: frozenset[str] | None = frozenset({"root_session_resume"})
                doubted = False

                async def request(self, method: str, path: Any, *, query: Any = None, body: Any = None) -> Any:
                    asked.append(method)
                    return {"ended_at": "2026-01-01"} if method == "GET" else {"id": given}

            registration = Registration(Resuming(), outbox, "/w")
            assert not await registration.ensure("demo")
            assert asked == ["GET", "POST"] and outbox.key == "agent-1"
            assert isinstance(registration.failure, EngramError)

    asyncio.run(main())


def test_dropped_ids_are_trimmed_as_delivered_ones() -> None:
    """Only deliveries trimmed the list: drops grew it for ever."""

    async def main() -> None:
        with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store:
            session = store.session("s")
            outbox = Outbox(AsyncSession(session), "agent")
            for number in range(2 * DONE_KEPT + 5):
                await outbox.add(Entry(f"e{number}", "prompt", "/w", {"content": "x"}))
                await outbox.set_aside(head_of(outbox), "parked", "no")
                await outbox.drop(f"e{number}")
            kept = session.read(outbox.places.done)
            assert DONE_KEPT <= len(kept) < 2 * DONE_KEPT
            last = f"e{2 * DONE_KEPT + 4}"
            for seen in (outbox, Outbox(AsyncSession(session), "agent")):
                assert seen.state(last) == "dropped" and seen.state("e0") is None

    asyncio.run(main())


def test_an_id_that_is_done_is_not_sent_again() -> None:
    """An entry that stood in the queue a second time, behind its own delivery."""

    async def main() -> None:
        with Store.open("store", fs=SimDisk(), clock=ManualClock()) as store:
            session = store.session("s")
            places = Places("agent")
            entries = [Entry(name, "prompt", "/w", {"content": "x"}) for name in ("done", "next")]
            session.commit([places.done.append("done"), *(places.queue.append(one.stored()) for one in entries)])
            outbox = Outbox(AsyncSession(session), "agent")
            assert [one.id for one in outbox.waiting] == ["next"] and outbox.state("done") == "delivered"
            await outbox.delivered(head_of(outbox))
            assert session.read(places.queue) == []

    asyncio.run(main())


def test_a_clock_beyond_all_dates_is_not_believed() -> None:
    assert entry_of({**Entry("e", "prompt", "/w", {"content": "x"}).stored(), "at": 10**400}).at == 0  # type: ignore[union-attr]


def test_an_archive_with_a_token_that_cannot_be_sent_leaves_a_notice(tmp_path: Path) -> None:
    async def main() -> None:
        with EngramServer("3") as server, Store.open(tmp_path / "store") as store:
            server.model.resolve_to("/w", "demo")
            environ = {"ENGRAM_URL": server.url, "ENGRAM_HTTP_TOKEN": "broken\n"}
            async with MemoryBridge({"request_timeout_ms": 1000}, environ=environ) as bridge:
                session = await bridge.session(store.session("s"), "agent-1", "/w")
                assert await session.archive("c", "summary") == "unavailable"
                assert session.take_notice()

    asyncio.run(main())
