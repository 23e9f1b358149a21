"""The session's row: behaviours 63 to 79, on servers of every age, and a rotation that outlives its process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.simdisk import SimCrash

from .engram import GENERATIONS, Action, faults
from .memory_rig import AGENT, PROJECT, Rig, resumes, rig, run

ALL = sorted(GENERATIONS)
CHECKED = ["2.1", "3"]  # generations that refuse a row that has ended
ROW, POST = "GET /sessions/{id}", "POST /sessions"


async def registered(made: Rig) -> bool:
    answer = await made.session.start()
    return bool(answer["registered"])


def followed(made: Rig) -> str:
    """The key after the first rotation, told to the rig's check."""
    key = made.session.key
    assert key == (f"{AGENT}:resume:2" if resumes(made) else "made-1")
    made.agents[AGENT] = [key]
    return key


@pytest.mark.parametrize("generation", ALL)
def test_the_first_registration(generation: str, tmp_path: Path) -> None:
    """63, 64: GET row, then POST with id, project, directory and project_owned; within a minute no request."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert await registered(made)
            assert [e.route for e in made.seen(ROW, POST)] == [ROW, POST]
            body = {"id": AGENT, "project": PROJECT, "directory": made.cwd, "ownership_mode": "project_owned"}
            assert made.seen(POST)[0].body == body
            made.advance(59.9)
            assert await registered(made)
            assert len(made.seen(ROW, POST)) == 2

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_after_a_minute_the_same_key_is_posted_again(generation: str, tmp_path: Path) -> None:
    """65: renewed under the same key, so that the lease goes on."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            for _ in range(40):
                assert await registered(made)
                made.advance(60.0)
            assert made.registered() == [AGENT] * 40
            assert made.server.live_candidates(PROJECT, made.cwd)

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_resumed_session_has_its_key(generation: str, tmp_path: Path) -> None:
    """66, 67, 81: released it registers nothing; resumed it goes on under its key, in this process and the next."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert await registered(made)
            made.session.release()
            made.advance(61)
            assert not await registered(made)
            assert made.registered() == [AGENT]
            old, made.session = made.session, await made.join()
            assert made.session is not old and made.session.key == AGENT
            assert await registered(made)
            await made.restart(kill=True)
            assert await registered(made)
            assert made.registered() == [AGENT] * 3
            assert not made.seen("POST /sessions/{id}/end")

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_an_ended_row_rotates(generation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """68, 72: the dead key is not posted, also where POST would say 201; with ``resume`` the one POST carries it and
    the id it returns is the new key. Later renewals, also of a later process, use the new key."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert await registered(made)
            made.server.faults.end(AGENT)
            made.advance(60)
            made.server.forget()
            with caplog.at_level(logging.WARNING):
                assert await registered(made)
            key = followed(made)
            posts = [(e.body["id"], e.body.get("resume")) for e in made.seen(POST)]
            assert posts == ([(AGENT, True)] if resumes(made) else [(key, None)])
            assert AGENT in caplog.text and key in caplog.text and "session_already_ended" in caplog.text
            made.advance(60)
            assert await registered(made)
            for kill in (True, False):
                await made.restart(kill=kill)
                assert made.session.key == key  # the rotation is durable
                assert await registered(made)
            assert made.registered()[1:] == [key] * 3

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_missing_row_is_made_again(generation: str, tmp_path: Path) -> None:
    """69: under the same key."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert await registered(made)
            made.server.faults.delete(AGENT)
            made.advance(60)
            assert await registered(made)
            assert made.registered() == [AGENT] * 2 and made.session.key == AGENT

    run(main)


@pytest.mark.parametrize("generation", CHECKED)
def test_a_row_that_ends_between_the_look_and_the_post(
    generation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """70: 409 session_already_ended rotates, exactly one more POST, the warning names the code."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert await registered(made)
            made.advance(60)
            made.server.forget()
            made.server.faults.on(ROW, faults.change(after=lambda model: model.end_session(AGENT)))
            with caplog.at_level(logging.WARNING):
                assert await registered(made)
            key = followed(made)
            assert [e.status for e in made.seen(POST)] == [409, 201]
            second = made.seen(POST)[1].body
            assert (second["id"], second.get("resume")) == ((AGENT, True) if resumes(made) else (key, None))
            assert "session_already_ended" in caplog.text

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_row_of_another_project(generation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """71: 409 session_project_conflict rotates to a random key, and the second POST carries the project."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert await registered(made)
            made.server.faults.set_project(AGENT, "elsewhere")
            made.advance(60)
            made.server.forget()
            with caplog.at_level(logging.WARNING):
                assert await registered(made)
            assert made.registered() == [AGENT, "made-1"] and made.session.key == "made-1"
            assert made.seen(POST)[1].body["project"] == PROJECT
            assert "session_project_conflict" in caplog.text
            made.agents[AGENT] = ["made-1"]
            await made.restart(kill=True)
            assert made.session.key == "made-1"

    run(main)


@pytest.mark.parametrize("code", ["session_already_ended", "session_project_conflict"])
@pytest.mark.parametrize("generation", ALL)
def test_two_conflicts(generation: str, code: str, tmp_path: Path) -> None:
    """73: false, two POSTs in all, and not registered: the next call asks again."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.faults.on(POST, faults.conflict(code), faults.conflict(code))
            assert not await registered(made)
            assert len(made.seen(POST)) == 2
            assert await registered(made)
            made.agents[AGENT] = [made.session.key]

    run(main)


@pytest.mark.parametrize("fault", [faults.fail, faults.close_unapplied], ids=["500", "lost"])
@pytest.mark.parametrize("generation", ALL)
def test_a_rotation_whose_retry_fails(generation: str, fault: Callable[[], Action], tmp_path: Path) -> None:
    """74: false although it was registered before; a random key has changed already, a resumed one comes again."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert await registered(made)
            made.server.faults.end(AGENT)
            made.advance(60)
            made.server.faults.on(POST, fault())
            assert not await registered(made)
            assert made.session.key == (AGENT if resumes(made) else "made-1")
            assert await registered(made)
            followed(made)

    run(main)


@pytest.mark.parametrize("route", [ROW, POST])
@pytest.mark.parametrize(
    "fault",
    [faults.fail, faults.close_unread, faults.lose_reply, faults.half_body],
    ids=["500", "reset", "lost", "half"],
)
@pytest.mark.parametrize("generation", ALL)
def test_a_transient_failure_never_rotates(
    generation: str, fault: Callable[[], Action], route: str, tmp_path: Path
) -> None:
    """75, 76, 79: false at the first registration, true where it was confirmed before; an unread row is not open."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.faults.on(route, fault())
            assert not await registered(made)
            if route == ROW:
                assert not made.seen(POST)
            assert await registered(made)
            made.advance(60)
            made.server.faults.on(route, fault())
            assert await registered(made)
            assert made.session.key == AGENT and set(made.registered()) == {AGENT}
            assert made.server.faults.pending == 0

    run(main)


@pytest.mark.parametrize("cwd", [None, " ", "  "])
def test_without_a_project_there_is_no_request(cwd: str | None, tmp_path: Path) -> None:
    """77, 51: no directory, no project, no registration."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            lost = await made.join("nowhere", cwd=cwd)
            assert not await lost._registration.ensure("")
            with pytest.raises(Exception, match="no memory project"):
                await lost.start()
            assert not made.seen(ROW, POST, "GET /project/current")

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_concurrent_callers_share_one_registration(generation: str, tmp_path: Path) -> None:
    """78."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            gate = made.server.faults.hold(POST)
            calls = [asyncio.create_task(registered(made)) for _ in range(5)]
            await asyncio.to_thread(gate.wait_held)
            calls += [asyncio.create_task(registered(made)) for _ in range(5)]
            await asyncio.sleep(0)
            calls[0].cancel()  # one caller that gives up does not take the others along
            gate.release()
            assert all(await asyncio.gather(*calls[1:]))
            assert len(made.seen(ROW)) == len(made.seen(POST)) == 1

    run(main)


@pytest.mark.parametrize("mode", ["before", "after"])
@pytest.mark.parametrize("generation", ALL)
def test_a_rotation_that_dies_at_its_commit(generation: str, mode: str, tmp_path: Path) -> None:
    """The key is stored before it is used: dying before the commit leaves the old key and no row of the new one,
    dying after it leaves the new key; either way the next process has one row that takes writes."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            assert await registered(made)
            made.server.faults.end(AGENT)
            made.advance(60)
            commit = made.session._outbox.rotate

            async def dying(key: str, reason: str) -> None:
                if mode == "after":
                    await commit(key, reason)
                made.disk = made.disk.kill()
                raise SimCrash

            made.session._outbox.rotate = dying  # type: ignore[method-assign]
            with pytest.raises(SimCrash):
                await registered(made)
            rows = set(made.server.model.rows.sessions)
            assert rows == ({AGENT, f"{AGENT}:resume:2"} if resumes(made) else {AGENT})
            await made.bridge.aclose()
            await made.start()
            moved = mode == "after"
            before = made.session.key
            assert before == (AGENT if not moved else f"{AGENT}:resume:2" if resumes(made) else "made-1")
            assert await registered(made)
            made.agents[AGENT] = [made.session.key]
            assert len(made.server.model.rows.sessions) == 2
            if moved or resumes(made):
                assert made.session.key in (before, f"{AGENT}:resume:2")

    run(main)


def test_a_resume_that_tells_no_id_registers_nothing(tmp_path: Path) -> None:
    """An answer without the id leaves the ended row as it is known: ended."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            assert await registered(made)
            made.server.faults.end(AGENT)
            made.advance(60)
            made.server.faults.on(POST, faults.not_json('{"status": "created"}'))
            assert not await registered(made)
            assert await registered(made)
            followed(made)

    run(main)
