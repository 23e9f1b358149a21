"""Sessions of the memory bridge: disposal, the end, the queue and its bound, and what an event is: one entry."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from pathlib import Path

import pytest

from fuzz.simdisk import SimDisk
from scopelog import HandleClosed, InvalidInput, LimitExceeded, ManualClock, Store
from scopelog.aio import AsyncSession
from scopelog.clients.memory import TOOLS, BlockingMemoryBridge, Entry, Outcome, outbox
from scopelog.clients.memory.errors import EngramError, ProjectUnresolved

from .engram import GENERATIONS, EngramServer, faults
from .memory_rig import AGENT, LONG, PROJECT, Rig, blocks, head_of, resumes, rig, run

ALL = sorted(GENERATIONS)
ROW, POST, END = "GET /sessions/{id}", "POST /sessions", "POST /sessions/{id}/end"
PROMPTS = "POST /prompts"
SECRET = "swordfish-4711"
TAGGED = [
    f"before it <private>{SECRET}</private> and after",
    f"<private>outer <private>inner</private> {SECRET}</private> stays out",
    f"an unclosed one <private> {SECRET} to the end",
    f"spaced < private >{SECRET}</ PRIVATE > tags",
    f"mixed <PriVate>{SECRET}</pRIVATE> case",
]


def kept(made: Rig) -> list[str]:
    """Contents of the prompts the server has, in order."""
    return [row.content for row in made.server.model.rows.prompts.values()]


# --- disposal and end -------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ALL)
def test_disposal_sends_nothing(generation: str, tmp_path: Path) -> None:
    """80, 81: what was registered and written has landed; neither disposal, nor the close, nor a resumed session ends
    the row, and the resumed one has its key."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert (await made.save("before the disposal"))["status"] == "delivered"
            count = len(made.server.requests)
            made.session.release()
            await made.drained()
            assert len(made.server.requests) == count
            made.session = await made.join()
            assert made.session.key == AGENT
            assert (await made.save("after the resume"))["status"] == "delivered"
            await made.stop()
            assert not made.seen(END)
            await made.start()
            assert len(made.server.model.rows.sessions) == 1

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_an_end_without_a_row(generation: str, tmp_path: Path) -> None:
    """82: no row is made, nothing is ended, and a note says so."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            answer = await made.end()
            assert answer["ended"] is False and "no row" in answer["note"]
            assert not made.seen(POST, END) and not made.server.model.rows.sessions

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_second_end_changes_nothing(generation: str, tmp_path: Path) -> None:
    """83: time and summary stay as they were."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.save("something to keep")
            assert (await made.end("the first"))["ended"] is True
            row = made.server.model.rows.sessions[AGENT]
            ended = row.ended_at
            made.advance(5)
            answer = await made.end("the second")
            assert answer["ended"] is False and "before" in answer["note"]
            assert (row.ended_at, row.summary) == (ended, "the first")
            assert len(made.seen(END)) == 1

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_the_end_waits_behind_what_was_captured(generation: str, tmp_path: Path) -> None:
    """84: the captures land first, and the next write goes to another row, in this process or a later one."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            gate = made.server.faults.hold(PROMPTS)
            await made.prompt("one")
            await made.prompt("two")
            end = asyncio.create_task(made.end())
            await asyncio.to_thread(gate.wait_held)
            assert not made.seen(END)
            gate.release()
            assert (await end)["ended"] is True
            order = [e.route for e in made.seen(PROMPTS, END)]
            assert order == [PROMPTS, PROMPTS, END]
            await made.restart(kill=True)
            assert (await made.save("after the end"))["status"] == "delivered"
            key = made.session.key
            assert key != AGENT and made.server.model.rows.effects[-1].session_id == key
            made.agents[AGENT] = [key]

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_an_end_is_the_end_of_the_row_it_was_tried_on(generation: str, tmp_path: Path) -> None:
    """An end whose acknowledgement was lost, then a registration that rotates: the new row is not ended as well.

    The end took the key at each try, and its second try ended the row that had been made meanwhile.
    """

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.save("something to keep")
            made.server.faults.on(END, faults.lose_reply())
            end = asyncio.create_task(made.end())
            await made.paused()
            made.session._registration.forget()
            await made.session.start()
            key = made.session.key
            assert key != AGENT
            made.agents[AGENT] = [key]
            made.advance(1)
            assert (await end)["ended"] is True
            assert made.server.model.rows.sessions[key].ended_at is None
            assert len(made.seen(END)) == 1

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_row_of_nobody_s_project_is_not_ended(generation: str, tmp_path: Path) -> None:
    """No write without a project: the end of an open row waits for one, or is parked where none can come."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.save("something to keep")
            await made.restart(cwd=None)
            answer = await made.session.call("mem_session_end", {})
            assert answer["status"] == "parked" and "directory" in answer["reason"]
            assert not made.seen(END)

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_admitted_before_the_disposal(generation: str, tmp_path: Path) -> None:
    """85: an entry admitted before it registers its row, also in a later process; nothing is admitted after it."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.faults.refuse()
            await made.prompt("early")
            await made.paused()
            made.session.release()
            with pytest.raises(HandleClosed):
                await made.session.capture_prompt("late", blocks("this comes after the disposal"))
            with pytest.raises(HandleClosed):
                await made.session.submit("save", {"title": "t", "content": "c"})
            assert await made.archive("compaction") is Outcome.UNAVAILABLE
            del made.admitted["compaction"]
            await made.restart(kill=True)
            made.session.release()
            made.server.faults.accept()
            made.server.forget()
            await made.drained()
            assert made.registered() == [AGENT] and kept(made) == ["the prompt of event early"]
            assert made.session.state("late") is None
            await asyncio.wait_for(made.session._task, LONG)  # a session that is disposed of and done does nothing more

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_disposal_while_an_entry_is_being_stored(generation: str, tmp_path: Path) -> None:
    """The call came first, so the entry counts as admitted; the queue's task had ended meanwhile, and left it."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            capture = asyncio.create_task(made.prompt("early"))
            await asyncio.sleep(0)
            made.session.release()
            assert await capture
            await made.drained()
            assert kept(made) == ["the prompt of event early"]

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_resumed_by_many_at_once(generation: str, tmp_path: Path) -> None:
    """One object, and one task that delivers, however many ask for the session after its disposal; what is being sent
    then is not cut short, which would make its outcome unknown."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            gate = made.server.faults.hold(PROMPTS)
            await made.prompt("one")
            await asyncio.to_thread(gate.wait_held)
            made.session.release()
            joining = [asyncio.create_task(made.join()) for _ in range(4)]
            await asyncio.sleep(0)
            gate.release()
            joined = await asyncio.gather(*joining)
            assert len({id(one) for one in joined}) == 1 and joined[0] is not made.session
            made.session = joined[0]
            await made.drained()
            assert made.session.state("one") == "delivered" and len(made.seen(PROMPTS)) == 1

    run(main)


# --- reads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ALL)
def test_reads_leave_no_row(generation: str, tmp_path: Path) -> None:
    """86, 92: no read registers, whatever it answers; an untouched session sends nothing at all."""
    arguments: dict[str, dict[str, object]] = {
        "mem_search": {"query": "anything"},
        "mem_timeline": {"observation_id": 1},
        "mem_get_observation": {"id": 1},
        "mem_suggest_topic_key": {"title": "a title"},
        "mem_review": {"action": "list"},
    }

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert not made.server.requests and "mem_search" in made.bridge.protocol
            for tool in TOOLS.values():
                if tool.kind == "read" or tool.name == "mem_review":
                    with contextlib.suppress(EngramError):
                        await made.session.call(tool.name, arguments.get(tool.name, {}))
            assert made.server.requests
            made.server.check_invariants(agents={AGENT: []}, readers=[AGENT])
            assert not made.seen(POST) and not made.server.model.rows.sessions

    run(main)


# --- the queue --------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ALL)
def test_first_in_first_out(generation: str, tmp_path: Path) -> None:
    """87: the order of admission, also of captures at one moment and over a restart; one that is refused parks."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            gate = made.server.faults.hold(PROMPTS)
            made.server.faults.on(PROMPTS, faults.conflict("project_ownership_required"), nth=5)
            await asyncio.gather(*(made.prompt(f"e{n:02}") for n in range(12)))
            admitted = [entry.id for entry in made.session.waiting]
            assert sorted(admitted) == [f"e{n:02}" for n in range(12)]
            gate.release()
            await made.drained()
            assert [e.body["source_inbox_id"] for e in made.seen(PROMPTS)] == admitted
            assert list(made.session.aside) == [admitted[4]]
            assert "project_ownership_required" in made.session.aside[admitted[4]].reason
            assert len(kept(made)) == 11

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_sessions_do_not_block_each_other(generation: str, tmp_path: Path) -> None:
    """87: the queue of one is held, the other's goes on; each has its own row and its own outbox."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            other = await made.join("agent-2")
            made.agents["agent-2"] = []
            made.server.faults.on(PROMPTS, held := faults.delay())
            await made.prompt("one")
            await asyncio.to_thread(held.gate.wait_held)
            assert await other.capture_prompt("its", blocks("the other's first prompt"))
            assert await other.drain(LONG)
            assert made.session.state("one") == "in flight" and other.state("its") == "delivered"
            held.gate.release()
            await made.drained()
            assert made.registered() == [AGENT, "agent-2"]

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_two_agents_archive_under_one_id(generation: str, tmp_path: Path) -> None:
    """A compaction's id is unique in its session only, and neither archive replaces, or passes for, the other.

    The id alone was the operation's: the server took the second for a changed replay of the first, and refused it.
    """

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            other = await made.join("agent-2")
            made.agents["agent-2"] = []
            assert await made.archive("c1", "the summary of the first") is Outcome.CONFIRMED
            assert await other.archive("c1", "the summary of the second") is Outcome.CONFIRMED
            found = sorted(row.content for row in made.server.model.rows.observations.values())
            assert found == ["the summary of the first", "the summary of the second"]

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_dead_server_delays_nobody(generation: str, tmp_path: Path) -> None:
    """88: the first write of a session answers ``queued`` with its entry's id, a drain stops at its bound, and once the
    server is back a drain goes on without waiting for the pause."""

    async def main() -> None:
        async with rig(generation, tmp_path, request_timeout_ms=150) as made:
            made.server.faults.refuse()
            answer = await made.save("while the server is away")
            assert answer["status"] == "queued" and answer["note"]
            assert made.session.state(answer["entry"]) in ("pending", "in flight")
            assert await made.prompt("one")
            await made.paused()
            assert not await made.session.drain(0.05)
            made.server.faults.accept()
            await made.drained()
            assert [entry.id for entry in made.session.waiting] == [] and made.session.blocked is None
            assert made.session.state(answer["entry"]) == made.session.state("one") == "delivered"

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_the_pauses_double_up_to_a_minute(generation: str, tmp_path: Path) -> None:
    """A server that is away is asked less and less often, and never less than once a minute; then anew."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert await made.save("so that the project is known")
            made.server.faults.refuse()
            await made.prompt("one")
            lengths = []
            for _ in range(8):
                await made.paused()
                due, _ = made._pauses[0]
                lengths.append(due - made.now)
                made.advance(due - made.now)
            assert lengths == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60])
            made.server.faults.accept()
            await made.drained()

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_why_the_queue_waits(generation: str, tmp_path: Path) -> None:
    """The reason is the server's own, not that there is one."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.faults.on(POST, faults.fail(500, "the disk is full"))
            await made.prompt("one")
            assert "the disk is full" in await made.paused()
            made.advance(1)
            await made.drained()
            assert made.session.blocked is None

    run(main)


@pytest.mark.parametrize("generation", ["2.0", "2.1", "3"])
def test_an_unresolved_project_stores_nothing_of_a_tool(generation: str, tmp_path: Path) -> None:
    """Fail closed: an answer that names no project raises before anything is stored; a capture waits for one."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.model.resolve_ambiguous(made.cwd, ["a", "b"])
            with pytest.raises(ProjectUnresolved):
                await made.save("of no project")
            assert made.session.waiting == []
            await made.prompt("one")
            assert "candidates" in await made.paused()
            made.server.model.resolve_to(made.cwd, PROJECT)
            made.advance(30)
            await made.drained()
            assert not any(entry.body["project"] != PROJECT for entry in made.writes())

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_an_entry_belongs_where_it_was_captured(generation: str, tmp_path: Path) -> None:
    """A later process of the agent in another directory: what waits goes to the project of its own directory.

    The directory of the process that delivered it was asked for, and the entry landed in the other project.
    """

    async def main() -> None:
        elsewhere = Rig.workspace(tmp_path / "other", "other")
        async with rig(generation, tmp_path) as made:
            made.server.faults.refuse()
            await made.prompt("one")
            await made.paused()
            await made.restart(kill=True, cwd=elsewhere)
            made.server.faults.accept()
            assert await made.session.capture_prompt("two", blocks("captured in the other directory"))
            await made.drained()
            rows = {row.content: row.project for row in made.server.model.rows.prompts.values()}
            assert rows == {"the prompt of event one": PROJECT, "captured in the other directory": "other"}
            first, second = made.seen(POST)[0].body, made.seen(POST)[-1].body
            assert (first["project"], first["directory"]) == (PROJECT, made.cwd)
            assert (second["project"], second["directory"]) == ("other", elsewhere)
            assert second["id"] == made.session.key == "made-1"  # one row is of one project
            made.agents["made-1"], made.projects["made-1"] = [], "other"

    run(main)


# --- one event is one entry -------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ALL)
def test_the_same_event_again(generation: str, tmp_path: Path) -> None:
    """Captured again while it waits, in flight, after a crash, after delivery and after a restart: one entry."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            gate = made.server.faults.hold(PROMPTS)
            both = await asyncio.gather(made.prompt("one"), made.prompt("one"))
            assert sorted(both) == [False, True]
            await asyncio.to_thread(gate.wait_held)
            assert made.session.state("one") == "in flight" and not await made.prompt("one")
            assert await made.prompt("two") and not await made.prompt("two")
            await made.restart(kill=True)
            assert [entry.id for entry in made.session.waiting] == ["one", "two"]
            assert not await made.prompt("one") and not await made.prompt("two")
            gate.release()
            await made.drained()
            for event in ("one", "two"):
                assert not await made.prompt(event)
            await made.restart(kill=True)
            for event in ("one", "two"):
                assert not await made.prompt(event)
            assert made.session.waiting == []
            assert "the prompt of event two" in kept(made)

    run(main)


def test_what_was_stored_twice_is_one_entry(tmp_path: Path) -> None:
    """Two elements of one id, whoever wrote them: the first counts."""

    async def main() -> None:
        async with rig("2.0", tmp_path) as made:
            made.server.faults.refuse()
            await made.prompt("one")
            await made.paused()
            entry = made.session.waiting[0]
            made.durable.commit([made.session._outbox.places.queue.append(entry.stored())])
            await made.restart(kill=True)
            assert [one.id for one in made.session.waiting] == ["one"]
            made.server.faults.accept()
            await made.drained()
            assert kept(made) == ["the prompt of event one"]

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_delivered_entries_are_trimmed(generation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outbox holds what waits and no more; ids of done entries are remembered up to a bound, newest first."""
    monkeypatch.setattr(outbox, "DONE_KEPT", 8)

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            for n in range(40):
                await made.prompt(f"e{n}")
            await made.drained()
            places = made.session._outbox.places
            assert made.durable.read(places.queue) == []
            assert made.durable.get(places.flight) is None
            known = [str(element.element) for element in made.durable.read(places.done)]
            assert 8 <= len(known) <= 16 and known[-1] == "e39"
            for again in (False, True):
                if again:
                    await made.restart(kill=True)
                assert [made.session.state(f"e{n}") for n in range(32, 40)] == ["delivered"] * 8
                assert made.session.state("e0") is None
            made.admitted = {key: entry for key, entry in made.admitted.items() if key in known}

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_more_than_may_wait_is_refused(generation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is an error that the caller sees, and what waits is untouched."""
    monkeypatch.setattr(outbox, "MAX_PENDING", 3)

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.faults.refuse()
            for n in range(3):
                await made.prompt(f"e{n}")
            with pytest.raises(LimitExceeded):
                await made.session.capture_prompt("e3", blocks("one more than may wait"))
            with pytest.raises(InvalidInput):
                await made.session.capture_prompt("", blocks("an event without an id"))
            assert [entry.id for entry in made.session.waiting] == ["e0", "e1", "e2"]
            made.server.faults.accept()
            await made.drained()
            assert made.session.state("e3") is None

    run(main)


def test_a_tool_call_at_the_close(tmp_path: Path) -> None:
    """It answers ``queued``; it raised CancelledError into a caller that nobody had cancelled."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            held = made.server.faults.on("POST /observations", faults.delay())
            call = asyncio.create_task(made.save("in flight at the close"))
            await asyncio.to_thread(held.gate.wait_held)
            await made.session.aclose()
            assert (await call)["status"] == "queued"
            held.gate.release()
            await made.restart()
            await made.drained()
            assert made.contents() == ["in flight at the close"]

    run(main)


# --- compaction -------------------------------------------------------------------------------------


def test_a_prompt_that_is_no_list_of_blocks_is_refused(tmp_path: Path) -> None:
    """A plain text was passed over in silence."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            for given in ("a prompt that is long enough", ["a prompt that is long enough"]):
                with pytest.raises(InvalidInput, match="no list of objects"):
                    await made.session.capture_prompt("e", given)
            assert made.session.state("e") is None

    run(main)


def test_an_agent_at_work_stays_in_its_directory(tmp_path: Path) -> None:
    """Another one was ignored in silence, and a relative one reached the first write."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            other = made.workspace(tmp_path / "other", PROJECT)
            with pytest.raises(InvalidInput, match="is at work in"):
                await made.join(cwd=other)
            assert await made.join() is made.session
            made.session.release()
            assert (await made.join(cwd=other)).cwd == other
            with pytest.raises(InvalidInput, match="not absolute"):
                await made.join("agent-2", cwd="relative")

    run(main)


def test_a_queued_archive_tells_the_model_to_do_nothing(tmp_path: Path) -> None:
    """It was told to look, and to save it again, and then both arrived."""

    async def main() -> None:
        async with rig("3", tmp_path, request_timeout_ms=200) as made:
            await made.session.start()
            made.server.faults.refuse()
            assert await made.archive("c1") is Outcome.UNKNOWN
            told = made.session.take_notice()
            assert told is not None and "There is nothing to do: do not save it again" in told
            made.server.faults.accept()
            made.advance(61)
            await made.drained()
            assert made.session.state("c1") == "delivered"

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_compaction_is_archived_once(generation: str, tmp_path: Path) -> None:
    """97, 98, 89, 90: the same id again does nothing, at once or later; the notice is told once, without content."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            both = await asyncio.gather(made.archive("c1", "what was said"), made.archive("c1", "what was said"))
            assert sorted(map(str, both)) == ["None", "confirmed"]
            told = made.session.take_notice()
            assert told is not None and PROJECT in told and "what was said" not in told
            assert made.session.take_notice() is None
            assert await made.archive("c1", "what was said") is None
            await made.restart(kill=True)
            assert await made.archive("c1", "what was said") is None and made.session.take_notice() is None
            assert len(made.writes()) == 1
            assert made.writes()[0].body["topic_key"] == f"session/compaction-recovery/{AGENT}"

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_the_other_outcomes_of_a_compaction(generation: str, tmp_path: Path) -> None:
    """97: refused is failed; no answer in time is unknown; no project, no summary and no registration: unavailable."""

    async def main() -> None:
        async with rig(generation, tmp_path, request_timeout_ms=300) as made:
            notices = set()

            async def outcome(event: str, summary: str = "what was said") -> Outcome | None:
                found = await made.archive(event, summary)
                notices.add((found, made.session.take_notice()))
                return found if isinstance(found, Outcome) else None

            made.server.faults.on("POST /observations", faults.conflict("project_ownership_required"))
            assert await outcome("c1") is Outcome.FAILED
            assert await outcome("c2", "  <private>all of it</private> ") is not Outcome.UNAVAILABLE
            made.session._registration.forget()
            made.server.faults.on(POST, faults.fail())
            assert await outcome("c3") is Outcome.UNAVAILABLE
            assert await outcome("c4", "   ") is Outcome.UNAVAILABLE
            held = made.server.faults.on("POST /observations", faults.delay("never"))
            assert await outcome("c5") is Outcome.UNKNOWN
            held.gate.release()
            for event in ("c3", "c4"):
                del made.admitted[event]
            assert len(notices) == 4  # one instruction each
            await made.drained()

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_compaction_of_no_project(generation: str, tmp_path: Path) -> None:
    """97, 89: nothing is sent or stored, no project is named, and the same compaction may be told of once more."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.restart(cwd=None)
            for _ in range(2):
                assert await made.session.archive("c1", "what was said") is Outcome.UNAVAILABLE
                told = made.session.take_notice()
                assert told is not None and PROJECT not in told and "mem_current_project" in told
            assert made.session.waiting == [] and not made.server.requests

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_capture_of_no_directory_is_parked(generation: str, tmp_path: Path) -> None:
    """Fail closed: no later try can find one, so it neither blocks the queue nor goes to a project of somebody else."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.restart(cwd=None)
            await made.prompt("one")
            await made.drained()
            assert made.session.state("one") == "parked" and "directory" in made.session.aside["one"].reason
            await made.restart()
            await made.session.retry("one")
            await made.prompt("two")
            await made.drained()
            assert made.session.state("one") == "parked" and made.session.state("two") == "delivered"

    run(main)


# --- secrets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ALL)
def test_a_secret_reaches_nothing(generation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Private blocks are gone before anything is stored: not in the disk's bytes, a log line, a URL or a body."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.secrets = [SECRET]
            made.server.faults.on("POST /observations", faults.conflict("project_ownership_required"))
            with caplog.at_level(logging.DEBUG):
                for n, text in enumerate(TAGGED):
                    await made.prompt(f"p{n}", text)
                    await made.session.capture_tool_result(f"l{n}", "bash", f"{'x' * 60}\n## Learnings\n\n1. {text}\n")
                    await made.save(text)
                    await made.session.capture_tool_result(f"t{n}", text, f"{'x' * 60}\n## Learnings\n\n1. one\n")
                    await made.session.submit("save", {"title": text, "content": "plain", "nested": [{text: text}]})
                    await made.archive(f"c{n}", text)
                    await made.session.call("mem_search", {"query": text})
                await made.end(TAGGED[2])
                await made.drained()
            stored = [made.durable.read(made.session._outbox.places.queue), made.durable.scan("memory.aside")]
            assert made.session.aside and SECRET not in repr(stored)
            assert SECRET not in caplog.text
            assert all(SECRET.encode() not in data for data in made.disk.snapshot().values())

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_secret_in_what_waits(generation: str, tmp_path: Path) -> None:
    """The stored entry itself, read before it is delivered."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.faults.refuse()
            for n, text in enumerate(TAGGED):
                await made.prompt(f"p{n}", text)
                await made.session.capture_tool_result(f"t{n}", text, f"{'x' * 60}\n## Learnings\n\n1. one\n")
                await made.session._admit(f"s{n}", "save", {"title": "t", "content": "c", "nested": [{text: text}]})
            stored = repr(made.durable.read(made.session._outbox.places.queue))
            assert SECRET not in stored and stored.count("[REDACTED]") == 4 * len(TAGGED)
            made.server.faults.accept()
            made.secrets = [SECRET]
            await made.drained()

    run(main)


# --- the face for threads ---------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ALL)
def test_the_blocking_face(generation: str, tmp_path: Path) -> None:
    """The same calls from a thread without a loop; closed it refuses, and closes once."""
    cwd = Rig.workspace(tmp_path / "work", PROJECT)
    with EngramServer(generation) as server, Store.open(tmp_path / "store") as store, store.session("chat") as chat:
        with BlockingMemoryBridge(environ={"ENGRAM_URL": server.url}) as bridge:
            session = bridge.session(chat, AGENT, cwd)
            assert session.capture_prompt("one", blocks("please remember this prompt"))
            assert session.drain(LONG) and session.state("one") == "delivered"
            assert session.call("mem_save", {"title": "t", "content": "c"})["status"] == "delivered"
            assert session.archive("c1", "a summary") is Outcome.CONFIRMED and session.take_notice()
            assert session.end("done")["ended"] and (session.key, session.waiting, session.aside) == (AGENT, [], {})
            session.release()
            assert session.released
        bridge.close()
        with pytest.raises(HandleClosed):
            bridge.session(chat, AGENT, cwd)
        server.check_invariants(agents={AGENT: []}, projects={AGENT: PROJECT}, ends=[AGENT])


def test_a_random_life(tmp_path: Path) -> None:
    """Captures, deaths and resumes in a seeded order: each event once, and in order."""

    async def main() -> None:
        chance = random.Random(5)
        async with rig("3", tmp_path) as made:
            for n in range(60):
                assert await made.prompt(f"e{n}")
                if chance.random() < 0.2:
                    await made.restart(kill=chance.random() < 0.5)
            await made.drained()
            assert kept(made) == [f"the prompt of event e{n}" for n in range(60)]
            assert resumes(made) and made.registered().count(AGENT) >= 1

    run(main)


def test_a_dropped_entry_is_told_from_a_delivered_one_and_agents_are_listed() -> None:
    """Also by a later process; and the first entry of an agent says that it has an outbox."""

    async def main() -> None:
        disk = SimDisk()
        with Store.open("store", fs=disk, clock=ManualClock()) as store:
            session = AsyncSession(store.session("s"))
            box = outbox.Outbox(session, "agent")
            for name in ("first", "second"):
                assert await box.add(Entry(name, "prompt", "/w", {"content": name}))
            await box.set_aside(head_of(box), "parked", "for a reason")
            await box.drop("first")
            await box.delivered(head_of(box))
            for one in (box, outbox.Outbox(session, "agent")):
                assert (one.state("first"), one.state("second"), one.state("third")) == ("dropped", "delivered", None)
                assert not await one.add(Entry("first", "prompt", "/w", {"content": "again"}))
            assert [(entry.key, entry.value) for entry in session.sync.scan("memory.agents")] == [("agent", True)]

    asyncio.run(main())
