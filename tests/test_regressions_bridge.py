"""Faults that a review of the memory bridge found, one small test each: how it closes, drops, looks and remembers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fuzz.simdisk import SimDisk, SimFile
from scopelog import HandleClosed, Store
from scopelog.aio import AsyncSession
from scopelog.clients.memory import MemoryConfig, outbox, server
from scopelog.clients.memory.errors import ConfigInvalid
from scopelog.clients.memory.outbox import Entry, Outbox
from scopelog.clients.memory.replies import Probe
from scopelog.clients.memory.transport import Transport

from .cli_rig import call, refused
from .engram import GENERATIONS, Gate, faults
from .memory_rig import LONG, Rig, head_of, rig, run

OLD = sorted(name for name, generation in GENERATIONS.items() if not generation.operation_ids)
UNUSABLE = "http://[v1.x]"
ROUTES = {"prompt": "POST /prompts", "save": "POST /observations"}

pytest.importorskip("httpx2", reason="the extra engram is not installed")


# --- helpers ----------------------------------------------------------------------------------------


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG):
        while not condition():
            await asyncio.sleep(0)


async def held(gate: Gate) -> None:
    await asyncio.to_thread(gate.wait_held)


async def closing(made: Rig) -> asyncio.Task[None]:
    """The bridge's close, once it has reached the session."""
    task = asyncio.create_task(made.bridge.aclose())
    await until(lambda: made.session._closed)
    return task


async def ended(task: asyncio.Task[None], made: Rig) -> bool:
    """Return once it is over; False if a queue paused before that, which was cut short then."""
    pause = asyncio.create_task(made._paused.wait())
    await asyncio.wait([task, pause], timeout=LONG, return_when=asyncio.FIRST_COMPLETED)
    slept = bool(made._pauses)
    pause.cancel()
    made.advance(1000.0)
    await task
    return not slept


@contextmanager
def slow_disk(made: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Each sync waits in a thread, at the gate, which opens at the end."""
    gate, sync, pace = faults.Gate(), SimFile.sync, made.durable._writer._env.pace
    pace.quick, pace._next_trial = False, float("inf")  # known to be slow: never written on the loop

    def held_sync(file: SimFile) -> None:
        gate.enter(LONG)
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "sync", held_sync)
        try:
            yield gate
        finally:
            gate.release()


class Child:
    """A server that was started and never gets ready."""

    def poll(self) -> int | None:
        return None

    def terminate(self) -> None:
        pass


async def local(made: Rig) -> list[list[str]]:
    """The next process has no ENGRAM_URL: it starts a server itself if need be. Returns what it will have started."""
    made.environ = {"ENGRAM_BIN": "engram", "ENGRAM_PORT": str(made.server.port)}
    await made.restart()
    spawned: list[list[str]] = []

    async def ask(argv: Sequence[str], environ: Mapping[str, str], limit: float) -> tuple[int, bytes]:
        return 0, made.server.instance_id.encode()

    def spawn(argv: Sequence[str], environ: Mapping[str, str]) -> Child:
        spawned.append(list(argv))
        return Child()

    made.bridge._keeper._ask = ask
    made.bridge._keeper._spawn = spawn
    return spawned


# --- the transport ----------------------------------------------------------------------------------


def test_certificates_are_checked_however_https_is_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check was on for urls that begin with "https:" in small letters only; with HTTPS:// the token went to
    whoever answered."""
    import httpx2

    given: list[Any] = []

    def wire(**options: Any) -> None:
        given.append(options["verify"])

    monkeypatch.setattr(httpx2, "AsyncHTTPTransport", wire)
    for scheme in ("https", "HTTPS", "Https", "hTTPs"):
        Transport(MemoryConfig(url=f"{scheme}://mem.example"), environ={})._open()
    assert given == [True] * 4


def test_a_url_that_the_http_library_refuses_is_a_bad_setting() -> None:
    """http://[v1.x] passes the standard library's check, and then the probe raised the HTTP library's own error."""

    async def main() -> None:
        transport = Transport(MemoryConfig(url=UNUSABLE), environ={})
        with pytest.raises(ConfigInvalid, match="url"):
            await transport.probe(None)
        await transport.aclose()

    run(main)


@pytest.mark.parametrize("command", ["check", "drain"])
def test_the_command_line_tells_of_a_url_that_cannot_be_used(
    command: str, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With such an ENGRAM_URL it ended with a traceback."""
    for name in [name for name in os.environ if name.startswith("ENGRAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ENGRAM_URL", UNUSABLE)
    with Store.open(store_path) as store, store.session("s") as session:
        waiting = Entry("e", "prompt", "/w", {"content": "x"})
        assert asyncio.run(Outbox(AsyncSession(session), "a").add(waiting))
    arguments = [store_path, "s", "--timeout", "1"] if command == "drain" else []
    refused(call("memory", command, *arguments), 2, "url")


# --- closing: what was never sent -------------------------------------------------------------------


@pytest.mark.parametrize("generation", OLD)
def test_a_close_between_freeze_and_send(generation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry stood there as frozen, which counts as perhaps sent: the next process gave it up as unknown, though
    nobody had ever sent it."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.put("prompt", "a")
            await made.drained()
            await made.put("prompt", "b")
            with slow_disk(made, monkeypatch) as disk:  # b is stored; what comes next is its request
                await held(disk)
                task = await closing(made)
                disk.release()
                assert await ended(task, made)
            assert len(made.writes()) == 1
            await made.restart()
            await made.drained()
            assert (made.session.state("b"), len(made.writes())) == ("delivered", 2)

    run(main)


def test_a_close_while_a_refused_write_waits_for_a_heal(tmp_path: Path) -> None:
    """The refusal, which proves that nothing was sent, was forgotten as the close cut the wait for the new server: the
    next process gave the entry up as unknown."""

    async def main() -> None:
        async with rig("2.1", tmp_path, request_timeout_ms=2000) as made:
            spawned = await local(made)
            await made.put("prompt", "a")
            await made.drained()
            starting = asyncio.Event()

            async def slow_start(seconds: float) -> None:
                starting.set()
                await asyncio.Event().wait()

            made.bridge._keeper._sleep = slow_start
            made.server.faults.refuse()
            await made.put("prompt", "b")
            async with asyncio.timeout(LONG):
                await starting.wait()
            assert len(spawned) == 1
            assert await ended(await closing(made), made)
            made.server.faults.accept()
            made.environ.clear()
            await made.restart()
            await made.drained()
            assert (made.session.state("b"), len(made.writes())) == ("delivered", 2)

    run(main)


# --- closing: what it begins ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ROUTES)
def test_a_close_begins_no_request(kind: str, tmp_path: Path) -> None:
    """A write was under way and its reply was lost: the close looked at the server, looked the save up, and sent once
    more, which is the next process's business."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            await made.session.start()
            lost = made.server.faults.on(ROUTES[kind], faults.delay("never"))
            await made.put(kind, "b")
            await held(lost.gate)
            before = len(made.server.requests)
            task = await closing(made)
            lost.gate.release()
            at_once = await ended(task, made)
            assert [exchange.route for exchange in made.server.requests[before:]] == []
            assert at_once and made.session.state("b") == "in flight"
            await made.restart()
            await made.drained()
            assert (made.session.state("b"), len(made.writes())) == ("delivered", 2)

    run(main)


def test_a_close_does_not_send_what_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two heals a refused write waits for a look at the server. The close came during that look, which found
    the server back, and the write was sent after it."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            await local(made)
            await made.session.start()
            transport = made.bridge._transport
            looking, go, probe = asyncio.Event(), asyncio.Event(), transport.probe

            async def slow_probe(expected_instance: str | None, *, timeout: float = LONG) -> Probe:
                looking.set()
                await go.wait()
                return await probe(expected_instance, timeout=timeout)

            monkeypatch.setattr(transport, "probe", slow_probe)
            made.bridge._keeper._heal_at = made.now + 60
            made.server.faults.refuse()
            await made.put("prompt", "b")
            async with asyncio.timeout(LONG):
                await looking.wait()
            made.server.faults.accept()
            task = await closing(made)
            go.set()
            assert await ended(task, made)
            assert made.writes() == []
            made.environ.clear()
            await made.restart()
            await made.drained()
            assert made.session.state("b") == "delivered"

    run(main)


def test_a_close_repeats_no_lookup(tmp_path: Path) -> None:
    """The close waited for a lookup that was under way and failed: it was asked twice more."""

    async def main() -> None:
        async with rig("3", tmp_path, fetch_max_attempts=3) as made:
            await made.session.start()
            made.server.faults.on(ROUTES["save"], faults.close_unapplied())
            lookup = made.server.faults.on("GET /observations/save-result", faults.delay("never"))
            await made.put("save", "b")
            await held(lookup.gate)
            before = len(made.server.requests)
            task = await closing(made)
            lookup.gate.release()
            at_once = await ended(task, made)
            assert [exchange.route for exchange in made.server.requests[before:]] == []
            assert at_once and made.session.state("b") == "in flight"
            await made.restart()
            await made.drained()
            assert made.session.state("b") == "delivered"

    run(main)


def test_a_close_starts_no_server(tmp_path: Path) -> None:
    """The server died with the write under way; the lookup that followed was refused, and its heal started a server,
    for which the close waited."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            spawned = await local(made)
            await made.session.start()
            lost = made.server.faults.on(ROUTES["save"], faults.delay("never"))
            await made.put("save", "b")
            await held(lost.gate)
            task = await closing(made)
            made.server.faults.refuse()
            lost.gate.release()
            at_once = await ended(task, made)
            assert spawned == []
            assert at_once
            made.server.faults.accept()
            made.environ.clear()
            await made.restart()
            await made.drained()

    run(main)


def test_a_close_sleeps_no_pause(tmp_path: Path) -> None:
    """The write that the close waited for was answered with an error: the queue paused, up to a minute, before it saw
    that it was closed."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            await made.session.start()
            made.server.faults.on("POST /prompts", faults.fail(500))
            gate = made.server.faults.hold("POST /prompts")
            await made.put("prompt", "a")
            await held(gate)
            task = await closing(made)
            gate.release()
            assert await ended(task, made)
            await made.restart()
            await made.drained()

    run(main)


# --- closing: who waits -----------------------------------------------------------------------------


WAITING: dict[str, tuple[str, bool, Callable[[Rig], Awaitable[Any]]]] = {
    "ready": ("GET /health", True, lambda made: made.bridge.ready()),
    "call": ("GET /health", True, lambda made: made.session.call("mem_search", {"query": "x"})),
    "project": ("GET /project/current", False, lambda made: made.session.call("mem_search", {"query": "x"})),
    "start": ("POST /sessions", False, lambda made: made.session.start()),
}


@pytest.mark.parametrize("what", WAITING)
def test_callers_of_a_closed_bridge_are_not_cancelled(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close cancelled the work they shared, and each of them got CancelledError, which no task may swallow, though
    nobody had cancelled it. Whoever is cancelled still is."""
    monkeypatch.setattr(server, "PROBE_TIMEOUT", LONG)
    route, warm, begin = WAITING[what]

    async def waits(made: Rig) -> Any:
        return await begin(made)

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            if warm:
                await made.session.start()
                made.advance(61)  # the server is looked at again
            gate = made.server.faults.hold(route)
            one, other = (asyncio.create_task(waits(made)) for _ in range(2))
            await held(gate)
            one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
            assert not other.done()
            await made.bridge.aclose()
            await asyncio.wait([other], timeout=LONG)
            assert other.done() and not other.cancelled()
            assert isinstance(other.exception(), HandleClosed)
            gate.release()

    run(main)


def test_no_session_is_made_on_a_bridge_that_closes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """session() was tidying another one away as the bridge closed, and then made one that nobody closes: it kept the
    outbox from the next bridge."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            await made.put("prompt", "a")
            await made.drained()
            made.session.release()
            await until(lambda: made.session.settled)
            tidying, go, aclose = asyncio.Event(), asyncio.Event(), made.session.aclose

            async def slow_close() -> None:
                tidying.set()
                await go.wait()
                await aclose()

            monkeypatch.setattr(made.session, "aclose", slow_close)
            opening = asyncio.create_task(made.join("agent-2"))
            async with asyncio.timeout(LONG):
                await tidying.wait()
            await made.bridge.aclose()
            go.set()
            with pytest.raises(HandleClosed):
                await opening

    run(main)


# --- drops ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["bridge", "session"])
def test_a_drop_that_a_close_cuts_short_returns(who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drop had left the list of those that are asked for, and its commit waited behind another one's sync: the
    close cancelled it, and its caller was never told."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            await made.session.start()
            made.server.faults.refuse()
            await made.put("prompt", "a")
            await made.put("prompt", "b")
            await made.paused()
            begun, drop = asyncio.Event(), made.session._outbox.drop

            async def seen_drop(entry_id: str) -> None:
                begun.set()
                await drop(entry_id)

            monkeypatch.setattr(made.session._outbox, "drop", seen_drop)
            with slow_disk(made, monkeypatch) as disk:
                capture = asyncio.create_task(made.put("prompt", "c"))
                await held(disk)
                dropping = asyncio.create_task(made.session.drop("b"))
                async with asyncio.timeout(LONG):
                    await begun.wait()
                await (made.bridge if who == "bridge" else made.session).aclose()
                await asyncio.wait([dropping], timeout=LONG)
                assert dropping.done()
                assert isinstance(dropping.exception(), HandleClosed)
                disk.release()
                await capture
            assert made.session.state("b") == "pending"

    run(main)


def test_a_drop_returns_when_the_durable_session_is_closed(tmp_path: Path) -> None:
    """It waited for the entry that was being sent; then the session that holds the outbox was closed, the queue ended,
    and nobody told the caller."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            await made.session.start()
            sent = made.server.faults.on("POST /prompts", faults.delay())
            await made.put("prompt", "a")
            await made.put("prompt", "b")
            await held(sent.gate)
            dropping = asyncio.create_task(made.session.drop("b"))
            await until(lambda: made.session._dropping)
            made.durable.close()
            sent.gate.release()
            await asyncio.wait([dropping], timeout=LONG)
            assert dropping.done()
            assert isinstance(dropping.exception(), HandleClosed)

    run(main)


def test_a_dropped_entry_stays_dropped_behind_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped entry stands in the queue until the head leaves, and its id must be known as long: it was kept, but
    only the newest ids were read again, so that after many other drops the next process sent it."""
    monkeypatch.setattr(outbox, "DONE_KEPT", 4)
    monkeypatch.setattr(outbox, "MAX_PENDING", 10)

    async def main() -> None:
        store = Store.open("/store", fs=SimDisk())
        session = AsyncSession(store.session("s"))
        box = Outbox(session, "a")
        parked = [f"parked {n}" for n in range(4 * 4 + 10 + 2)]
        for name in parked:
            assert await box.add(Entry(name, "prompt", "/w", {"content": "x"}))
            await box.set_aside(head_of(box), "parked", "no")
        for name in ("head", "victim"):
            assert await box.add(Entry(name, "prompt", "/w", {"content": "x"}))
        for name in ("victim", *parked):
            await box.drop(name)
        again = Outbox(session, "a")
        assert (again.state("victim"), [entry.id for entry in again.waiting]) == ("dropped", ["head"])
        session.sync.close()
        store.close()

    run(main)


# --- looks, and the disk ----------------------------------------------------------------------------


def test_a_failure_during_a_look_holds_the_queue_up_for_no_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply was lost, and while the server was looked at somebody else's read failed. The look counted as the answer
    to that failure too, the server stayed in doubt, and nobody looked again for a minute."""
    monkeypatch.setattr(server, "PROBE_TIMEOUT", LONG)

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            await made.put("prompt", "a")
            await made.drained()
            other = made.server.faults.on("GET /context", faults.delay("never"))
            reading = asyncio.create_task(made.bridge._transport.request("GET", "/context", query={"project": "demo"}))
            await held(other.gate)
            look = made.server.faults.hold("GET /health")
            made.server.faults.on("POST /prompts", faults.close_unapplied())
            await made.put("prompt", "b")
            await held(look)
            other.gate.release()
            await asyncio.wait([reading], timeout=LONG)
            assert reading.exception() is not None
            look.release()
            begun = made.now
            await made.drained()
            assert made.session.state("b") == "delivered"
            assert made.now - begun < 1

    run(main)


@pytest.mark.parametrize("generation", ["2.1", "3"])
def test_a_delivery_that_could_not_be_stored_is_not_asked_about_again(generation: str, tmp_path: Path) -> None:
    """The server had answered, and our own disk failed once: the next try took the answer for lost, asked or sent
    again, and on an old server gave a delivered entry up as unknown."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.session.start()
            gate = made.server.faults.hold("POST /observations")
            saving = asyncio.create_task(made.save("what is to be kept"))
            await held(gate)
            made.disk.fail("pwrite")
            gate.release()
            assert "could not be written" in await made.paused()
            before = len(made.server.requests)
            made.advance(1)
            answer = await saving
            assert answer["status"] == "delivered" and answer["id"] > 0
            await made.drained()
            assert len(made.server.requests) == before

    run(main)


@pytest.mark.parametrize("generation", ["2.1", "3"])
def test_a_refusal_that_could_not_be_stored_still_parks(generation: str, tmp_path: Path) -> None:
    """The same for an entry that the server refused: it was sent once more, or given up as unknown."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.session.start()
            gate = made.server.faults.hold("POST /prompts")
            made.server.faults.on("POST /prompts", faults.fail(400, "not this one"))
            await made.put("prompt", "b")
            await held(gate)
            made.disk.fail("pwrite")
            gate.release()
            assert "could not be written" in await made.paused()
            before = len(made.server.requests)
            made.advance(1)
            await made.drained()
            assert len(made.server.requests) == before
            assert {i: (one.state, one.reason) for i, one in made.session.aside.items()} == {
                "b": ("parked", "not this one")
            }

    run(main)
