"""One entry to the server, under every fault, on servers of every age: behaviours 99 to 105 and what each kind does."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scopelog import HandleClosed, InvalidInput
from scopelog.clients.memory import delivery

from .engram import GENERATIONS, Action, faults, write_binary
from .memory_rig import AGENT, Rig, head_of, resumes, rig, run

ALL = sorted(GENERATIONS)
OBSERVATIONS, LOOKUP, END = "POST /observations", "GET /observations/save-result", "POST /sessions/{id}/end"
ROUTES = {
    "save": OBSERVATIONS,
    "summary": OBSERVATIONS,
    "archive": OBSERVATIONS,
    "prompt": "POST /prompts",
    "learning": "POST /observations/passive",
}
SOME = ("save", "prompt", "learning")  # summaries and archives go as saves do
UNKNOWN: dict[str, Callable[[], Action]] = {
    "lost acknowledgement": faults.lose_reply,
    "reset after applying": lambda: faults.lose_reply(reset=True),
    "reset before reading": faults.close_unread,
    "closed unapplied": faults.close_unapplied,
    "half a body": faults.half_body,
    "half a body, unapplied": lambda: faults.half_body(apply=False),
    "no JSON": lambda: faults.not_json(apply=True),
}
REJECTED: dict[str, Callable[[], Action]] = {
    "400": lambda: faults.fail(400, "content is required"),
    "401": faults.unauthorized,
    "404": lambda: faults.fail(404, "session not found"),
    "409 required": lambda: faults.conflict("project_ownership_required"),
    "409 ambiguous": lambda: faults.conflict("project_ownership_ambiguous"),
    "410": lambda: faults.fail(410, "observation is gone"),
    "302": lambda: faults.redirect("http://127.0.0.1:1/elsewhere"),
}


def tells(made: Rig) -> bool:
    """Whether the server tells repeats: generation 3."""
    return made.server.model.generation.operation_ids


def sends(made: Rig, kind: str) -> int:
    return len(made.seen(ROUTES[kind]))


# --- every kind, every fault ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("generation", ALL)
def test_an_unknown_outcome(generation: str, kind: str, tmp_path: Path) -> None:
    """Exactly once where the server tells repeats; elsewhere set aside as unknown and never sent again, also not by a
    later process. What comes behind is delivered in both cases."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            for name, fault in UNKNOWN.items():
                before = sends(made, kind)
                made.server.faults.on(ROUTES[kind], fault())
                await made.put(kind, f"first: {name}")
                await made.put(kind, f"next: {name}")
                await made.drained()
                found = made.session.state(f"first: {name}")
                if tells(made):
                    assert found == "delivered", name
                    assert sends(made, kind) - before in (2, 3), name
                else:
                    assert found == "unknown", name
                    assert sends(made, kind) - before == 2, name
                assert made.session.state(f"next: {name}") == "delivered"
            count = len(made.writes())
            await made.restart(kill=True)
            await made.drained()
            assert len(made.writes()) == count and made.server.faults.pending == 0
            if not tells(made):
                assert len(made.session.aside) == len(UNKNOWN)  # with their reasons, also in a later process
                assert all(aside.reason for aside in made.session.aside.values())

    run(main)


@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("generation", ALL)
def test_a_rejection_parks_and_does_not_block(generation: str, kind: str, tmp_path: Path) -> None:
    """99: an answer starts no lookup and no replay: one request, parked with its reason, and the next one goes."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            for name, fault in REJECTED.items():
                before = sends(made, kind)
                made.server.faults.on(ROUTES[kind], fault())
                await made.put(kind, f"first: {name}")
                await made.put(kind, f"next: {name}")
                await made.drained()
                assert made.session.state(f"first: {name}") == "parked", name
                assert made.session.aside[f"first: {name}"].reason
                assert made.session.state(f"next: {name}") == "delivered"
                assert sends(made, kind) - before == 2, name
            assert not made.seen(LOOKUP)

    run(main)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("generation", ALL)
def test_an_error_of_the_server(generation: str, kind: str, applied: bool, tmp_path: Path) -> None:
    """5xx before or after applying: where repeats are told the queue waits, and then it took effect once; elsewhere it
    is unknown, for it may have been applied."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.faults.on(ROUTES[kind], faults.fail(503 if applied else 500, "no luck", applied=applied))
            await made.put(kind, "first")
            await made.put(kind, "next")
            if tells(made):
                assert "no luck" in await made.paused()
                assert sends(made, kind) == 1 and not made.seen(LOOKUP)
                assert made.session.state("first") == "in flight"
                made.advance(1)
            await made.drained()
            assert made.session.state("first") == ("delivered" if tells(made) else "unknown")
            assert made.session.state("next") == "delivered"
            assert sends(made, kind) <= 3

    run(main)


@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("generation", ALL)
def test_a_refused_connection_is_no_attempt(generation: str, kind: str, tmp_path: Path) -> None:
    """It proves non-delivery: sent when the server is back, by this process or the next, on every generation; and to a
    row that is there, should the server have lost it meanwhile."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.session.start()
            made.server.faults.refuse()
            await made.put(kind, "first")
            await made.paused()
            assert made.session._outbox.unsent(head_of(made.session._outbox))
            await made.restart(kill=True)
            await made.paused()
            made.server.faults.accept()
            made.server.faults.delete(AGENT)
            await made.drained()
            assert made.session.state("first") == "delivered" and sends(made, kind) == 1
            assert len(made.contents()) == 1

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_capability_that_is_not_known_yet(generation: str, tmp_path: Path) -> None:
    """A server that answers all but /health: nothing is given up for unknown before it has said what it can do.

    It passed for an old server, and a prompt with a lost reply was set aside that could have been sent again.
    """

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            made.server.faults.set_sick(True)
            made.server.faults.on("POST /prompts", faults.close_unapplied())
            await made.put("prompt", "first")
            await made.paused()
            assert made.session.state("first") == "in flight"
            made.server.faults.set_sick(False)
            made.advance(1)
            await made.drained()
            assert made.session.state("first") == ("delivered" if tells(made) else "unknown")

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_row_that_is_gone_parks_one(generation: str, tmp_path: Path) -> None:
    """The refusal may be about the row, so the next entry looks at it: a lost row costs one entry, not a minute."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.session.start()
            made.server.faults.delete(AGENT)
            await made.put("prompt", "first")
            await made.put("prompt", "next")
            await made.drained()
            # the oldest says so with a 500, which proves nothing
            assert made.session.state("first") == ("unknown" if generation == "old" else "parked")
            assert made.session.state("next") == "delivered"
            await made.session.retry("first")
            await made.drained()
            assert made.session.state("first") == "delivered"

    run(main)


@pytest.mark.parametrize("kind", ["prompt", "learning"])
def test_a_refusal_of_the_second_send_proves_nothing_about_the_first(kind: str, tmp_path: Path) -> None:
    """The first took effect and its reply was lost: it was parked, which says that it is not stored."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            made.server.faults.on(ROUTES[kind], faults.lose_reply(), faults.unauthorized())
            await made.put(kind, "first")
            await made.put(kind, "next")
            await made.drained()
            assert made.session.state("first") == "unknown" and made.session.state("next") == "delivered"
            assert "invalid token" in made.session.aside["first"].reason

    run(main)


# --- the recovery of a save -------------------------------------------------------------------------


def test_a_typed_not_found_authorises_one_replay(tmp_path: Path) -> None:
    """100: byte-identical, with the same operation id."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            made.server.faults.on(OBSERVATIONS, faults.close_unapplied())
            await made.put("save", "first")
            await made.drained()
            one, two = made.seen(OBSERVATIONS)
            assert one.raw == two.raw and one.body["operation_id"] == "first"
            assert [e.status for e in made.seen(LOOKUP)] == [404]

    run(main)


@pytest.mark.parametrize(
    "answer",
    [
        faults.fail(400, "invalid observation id"),
        faults.fail(404, "not found"),
        faults.not_json("404 page not found", status=404),
        faults.conflict("observation_save_result_not_found"),
        faults.not_json("{}"),
        faults.not_json('{"id": 0, "status": "committed"}'),
    ],
    ids=["legacy 400", "no code", "text", "other status", "empty", "id 0"],
)
def test_a_lookup_that_says_nothing(answer: Action, tmp_path: Path) -> None:
    """101: unknown, without a replay."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            made.server.faults.on(OBSERVATIONS, faults.close_unapplied())
            made.server.faults.on(LOOKUP, answer)
            await made.put("save", "first")
            await made.drained()
            assert made.session.state("first") == "unknown" and sends(made, "save") == 1

    run(main)


def test_a_server_whose_not_found_is_untyped(tmp_path: Path) -> None:
    """101: generation 3 without the code."""

    async def main() -> None:
        async with rig(dataclasses.replace(GENERATIONS["3"], typed_not_found=False), tmp_path) as made:
            made.server.faults.on(OBSERVATIONS, faults.close_unapplied())
            await made.put("save", "first")
            await made.drained()
            assert made.session.state("first") == "unknown" and sends(made, "save") == 1

    run(main)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("status", [409, 410])
def test_a_replay_that_is_refused(status: int, applied: bool, tmp_path: Path) -> None:
    """102: one final lookup decides, never a third POST."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            replay = faults.fail(status, "the operation is known", applied=applied)
            made.server.faults.on(OBSERVATIONS, faults.close_unapplied(), replay)
            await made.put("save", "first")
            await made.drained()
            assert made.session.state("first") == ("delivered" if applied else "unknown")
            assert (sends(made, "save"), len(made.seen(LOOKUP))) == (2, 2)

    run(main)


@pytest.mark.parametrize("applied", [False, True])
def test_a_replay_whose_reply_is_lost(applied: bool, tmp_path: Path) -> None:
    """102: the same where the replay itself is ambiguous."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            lost = faults.lose_reply() if applied else faults.close_unapplied()
            made.server.faults.on(OBSERVATIONS, faults.close_unapplied(), lost)
            await made.put("save", "first")
            await made.drained()
            assert made.session.state("first") == ("delivered" if applied else "unknown")
            assert (sends(made, "save"), len(made.seen(LOOKUP))) == (2, 2)

    run(main)


def test_a_replay_that_is_wrong(tmp_path: Path) -> None:
    """103: 400 is definite, and parks."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            made.server.faults.on(OBSERVATIONS, faults.close_unapplied(), faults.fail(400, "title is blank"))
            await made.put("save", "first")
            await made.drained()
            assert made.session.aside["first"].reason == "title is blank"
            assert (sends(made, "save"), len(made.seen(LOOKUP))) == (2, 1)

    run(main)


@pytest.mark.parametrize("receipt", ['{"id": 0, "status": "saved"}', '{"status": "saved"}', '{"id": true}', "[]"])
def test_a_receipt_without_an_id(receipt: str, tmp_path: Path) -> None:
    """104: no success, so it is looked up."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            made.server.faults.on(OBSERVATIONS, faults.not_json(receipt, apply=True))
            await made.put("save", "first")
            await made.drained()
            assert made.session.state("first") == "delivered"
            assert (sends(made, "save"), len(made.seen(LOOKUP))) == (1, 1)

    run(main)


@pytest.mark.parametrize("fault", [faults.close_unread, faults.half_body, faults.fail])
def test_a_lookup_that_fails(fault: Callable[[], Action], tmp_path: Path) -> None:
    """105: nothing is believed and nothing sent; the caller hears ``queued``, and the lookup is tried again later."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            made.server.faults.on(OBSERVATIONS, faults.lose_reply())
            made.server.faults.on(LOOKUP, fault())
            await made.put("save", "first")
            await made.paused()
            assert made.session.state("first") == "in flight" and sends(made, "save") == 1
            made.advance(1)
            await made.drained()
            assert made.session.state("first") == "delivered" and sends(made, "save") == 1

    run(main)


def test_the_recovery_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """105: a lookup that hangs ends at the bound, and the queue pauses."""
    monkeypatch.setattr(delivery, "RECOVERY_LIMIT", 0.05)

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            made.server.faults.on(OBSERVATIONS, faults.lose_reply())
            held = made.server.faults.on(LOOKUP, faults.delay())
            await made.put("save", "first")
            assert "in time" in await made.paused()
            held.gate.release()
            monkeypatch.setattr(delivery, "RECOVERY_LIMIT", 7.5)
            made.advance(1)
            await made.drained()
            assert made.session.state("first") == "delivered" and sends(made, "save") == 1

    run(main)


@pytest.mark.parametrize("stage", ["send", "lookup", "replay"])
@pytest.mark.parametrize("apply", ["before", "never"])
def test_an_abort_at_each_stage(stage: str, apply: faults.Apply, tmp_path: Path) -> None:
    """105: the end of the process reaches each stage, and the next process finds out what became of it."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            held = faults.delay(apply if stage != "lookup" else "before")
            if stage == "send":
                made.server.faults.on(OBSERVATIONS, held)
            else:
                made.server.faults.on(OBSERVATIONS, faults.close_unapplied(), *([held] if stage == "replay" else []))
            if stage == "lookup":
                made.server.faults.on(LOOKUP, held)
            await made.put("save", "first")
            await asyncio.to_thread(held.gate.wait_held)
            await made.restart(kill=True)
            held.gate.release()
            await made.drained()
            assert made.session.state("first") == "delivered" and made.contents() == ["the save of entry first"]

    run(main)


@pytest.mark.parametrize("apply", ["before", "never"])
@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("generation", ALL)
def test_a_death_in_flight(generation: str, kind: str, apply: faults.Apply, tmp_path: Path) -> None:
    """The next process knows that it may have been sent, and as what: the same bytes after a rotation where repeats are
    told, unknown and never again elsewhere."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            held = made.server.faults.on(ROUTES[kind], faults.delay(apply))
            await made.put(kind, "first")
            await asyncio.to_thread(held.gate.wait_held)
            key = made.new_id()
            await made.session._outbox.rotate(key, "a rotation just before the death")
            await made.restart(kill=True)
            assert made.session.state("first") == "in flight"
            held.gate.release()
            await made.drained()
            assert made.session.state("first") == ("delivered" if tells(made) else "unknown")
            assert {e.body["session_id"] for e in made.seen(ROUTES[kind])} == {AGENT}
            assert tells(made) or sends(made, kind) == 1

    run(main)


# --- the row behind our back ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOME)
def test_a_rotation_between_two_attempts(kind: str, tmp_path: Path) -> None:
    """The frozen request stays as it was, so that the server knows it again; the next entry has the new key.

    Freezing anew would change the fingerprint, and turn a safe replay into a conflict or a second row.
    """

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            made.server.faults.on(ROUTES[kind], faults.fail(500, applied=True))
            await made.put(kind, "first")
            await made.paused()
            made.server.faults.end(AGENT)
            made.session._registration.forget()
            await made.session.start()
            key = made.session.key
            assert key == f"{AGENT}:resume:2" and resumes(made)
            made.agents[AGENT] = [key]
            await made.put(kind, "next")
            made.advance(1)
            await made.drained()
            bodies = [e.body["session_id"] for e in made.seen(ROUTES[kind])]
            assert set(bodies[:-1]) == {AGENT} and bodies[-1] == key
            assert len({e.raw for e in made.seen(ROUTES[kind])[:-1]}) == 1
            assert {made.session.state("first"), made.session.state("next")} == {"delivered"}

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_row_that_was_ended_or_moved_behind_our_back(generation: str, tmp_path: Path) -> None:
    """Found within a minute of writing: then the key rotates, once for each, and everything lands in live rows."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.put("prompt", "one")
            await made.drained()
            made.server.faults.end(AGENT)
            await made.put("prompt", "two")  # the known residual: a minute's trust
            await made.drained()
            made.advance(60)
            await made.put("prompt", "three")
            await made.drained()
            second = made.session.key
            made.server.faults.set_project(second, "elsewhere")
            made.advance(60)
            await made.put("prompt", "four")
            await made.drained()
            keys = [AGENT, AGENT, second, made.session.key]
            assert [e.body["session_id"] for e in made.seen("POST /prompts")] == keys and len(set(keys)) == 3
            made.agents[AGENT] = keys[2:]
            assert not made.session.aside

    run(main)


# --- ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lost", "unapplied", "half", "500", "500 applied", "refused"])
@pytest.mark.parametrize("generation", ALL)
def test_an_end_is_applied_once(generation: str, name: str, tmp_path: Path) -> None:
    """The row is read before each try, on every generation, also by a later process: one end, one summary."""
    fault = {
        "lost": faults.lose_reply(),
        "unapplied": faults.close_unapplied(),
        "half": faults.half_body(),
        "500": faults.fail(),
        "500 applied": faults.fail(applied=True),
        "refused": faults.then_refuse(reply="unapplied"),
    }[name]

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.put("prompt", "one")
            await made.drained()
            made.server.faults.on(END, fault)
            end = asyncio.create_task(made.end("the summary"))
            await made.paused()
            if name == "refused":
                made.server.faults.accept()
            made.server.clock.advance(5)
            await made.restart(kill=True)
            assert (await end)["status"] == "queued"
            await made.drained()
            row = made.server.model.rows.sessions[AGENT]
            assert row.summary == "the summary" and row.ended_at is not None
            assert sum(e.applied for e in made.seen(END)) == 1

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_an_end_that_is_refused_parks(generation: str, tmp_path: Path) -> None:
    """By the route, or by the look at the row: neither blocks what comes behind."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.put("prompt", "one")
            await made.drained()
            for route in (END, "GET /sessions/{id}"):
                made.server.faults.on(route, faults.unauthorized())
                assert (await made.end())["status"] == "parked"
            await made.put("prompt", "two")
            await made.drained()
            assert made.server.model.rows.sessions[AGENT].ended_at is None
            assert made.session.state("two") == "delivered"

    run(main)


# --- retry and drop ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("generation", ALL)
def test_retry_and_drop(generation: str, kind: str, tmp_path: Path) -> None:
    """A parked entry is sent once more, at the end of the queue, or forgotten; also in a later process. What is not
    set aside can be neither, and a dropped event is not captured again."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            no = faults.conflict("project_ownership_required")
            made.server.faults.on(ROUTES[kind], no, no, no)
            for entry in ("one", "two", "three"):
                await made.put(kind, entry)
            await made.drained()
            assert sorted(made.session.aside) == ["one", "three", "two"]
            both = await asyncio.gather(made.session.retry("one"), made.session.retry("one"), return_exceptions=True)
            assert [type(one) for one in both].count(InvalidInput) == 1
            await made.drained()
            await made.session.drop("two")
            await made.restart(kill=True)
            assert [made.session.state(entry) for entry in ("one", "two")] == ["delivered", "dropped"]
            assert list(made.session.aside) == ["three"]
            await made.session.retry("three")
            await made.restart(kill=True)
            await made.drained()
            assert made.session.state("three") == "delivered" and not made.session.aside
            for entry in ("one", "two", "nothing"):
                with pytest.raises(InvalidInput):
                    await made.session.retry(entry)
                with pytest.raises(InvalidInput):
                    await made.session.drop(entry)
            assert not await made.prompt("two")
            assert len(made.contents()) == 2
            del made.admitted["two"]

    run(main)


# --- whose server it is -----------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ["2.0", "2.1", "3"])
def test_a_foreign_server_gets_nothing(generation: str, tmp_path: Path) -> None:
    """Another instance at the port, met by a new process: it is asked for its identity and nothing else, and what
    waits goes to our own once that is back."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            ours = made.server.instance_id
            binary = tmp_path / "engram"
            binary.write_text(f"#!{sys.executable}\nprint({ours!r})\n", encoding="utf-8")
            binary.chmod(0o755)
            made.environ = {"ENGRAM_BIN": str(binary), "ENGRAM_PORT": str(made.server.port)}
            await made.restart()
            await made.put("prompt", "one")
            await made.drained()
            await made.restart()
            made.server.forget()
            made.server.faults.change_instance("f" * 32)
            await made.put("prompt", "two")
            assert "ownership mismatch" in await made.paused()
            assert {e.route for e in made.server.requests} == {"GET /health"}
            made.server.faults.change_instance(ours)
            made.advance(61)
            await made.drained()
            assert made.session.state("two") == "delivered"
            made.admitted.pop("one")  # its request was forgotten

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_a_close_waits_for_the_write_under_way(generation: str, tmp_path: Path) -> None:
    """Cut short its outcome was unknown, and on older servers it was never sent again. Nothing else is begun."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            held = made.server.faults.on("POST /prompts", faults.delay())
            await made.put("prompt", "first")
            await made.put("prompt", "next")
            await asyncio.to_thread(held.gate.wait_held)
            closing = asyncio.create_task(made.bridge.aclose())
            while not made.session.released:
                await asyncio.sleep(0)
            assert not closing.done()
            held.gate.release()
            await closing
            assert (made.session.state("first"), made.session.state("next")) == ("delivered", "pending")
            assert sends(made, "prompt") == 1
            await made.restart()
            await made.drained()
            assert len(made.contents()) == 2

    run(main)


def test_a_server_that_was_exchanged_for_an_older_one_is_noticed(tmp_path: Path) -> None:
    """What it can do was asked once a process: a lost prompt was then sent again to a server that knows no repeats."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            await made.put("prompt", "first")
            await made.drained()
            made.server.faults.on("POST /prompts", faults.close_unapplied())
            made.server.faults.change(lambda model: setattr(model, "generation", GENERATIONS["2.1"]))
            await made.put("prompt", "second")
            await made.drained()
            assert made.session.state("second") == "unknown" and sends(made, "prompt") == 2

    run(main)


@pytest.mark.parametrize("generation", ["2.0", "2.1", "3"])
def test_a_foreign_server_that_takes_the_port_gets_no_second_send(generation: str, tmp_path: Path) -> None:
    """A reply is lost, and somebody else's server answers from then on: nothing is looked up or sent there."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            binary = write_binary(tmp_path / "bin", FAKE_ENGRAM_ID_OUTPUT=made.server.instance_id)
            made.environ = {"ENGRAM_BIN": str(binary.path), "ENGRAM_PORT": str(made.server.port)}
            await made.restart()
            await made.put("save", "first")
            await made.drained()
            made.server.faults.on(OBSERVATIONS, faults.close_unapplied())
            made.server.faults.change_instance("f" * 32)
            await made.put("save", "second")
            assert "ownership mismatch" in await made.paused()
            assert sends(made, "save") == 2 and not made.seen(LOOKUP) and made.session.state("second") == "in flight"

    run(main)


@pytest.mark.parametrize("generation", ALL)
def test_what_waits_can_be_dropped(generation: str, tmp_path: Path) -> None:
    """The head, whose request is frozen and was refused, and one behind it; what is being sent is settled first."""

    async def main() -> None:
        async with rig(generation, tmp_path) as made:
            await made.session.start()
            made.server.faults.refuse()
            for name in ("a", "b", "c", "d"):
                await made.put("prompt", name)
            await made.paused()
            await made.session.drop("c")
            await made.session.drop("a")
            assert [entry.id for entry in made.session.waiting] == ["b", "d"]
            assert (made.session.state("a"), made.session.state("c")) == ("dropped", "dropped")
            await made.restart(kill=True)
            assert [entry.id for entry in made.session.waiting] == ["b", "d"]
            assert (made.session.state("a"), made.session.state("c")) == ("dropped", "dropped")
            await made.paused()
            made.server.faults.accept()
            held = made.server.faults.on("POST /prompts", faults.delay())
            made.advance(1)
            await asyncio.to_thread(held.gate.wait_held)
            late = asyncio.create_task(made.session.drop("b"))
            await asyncio.sleep(0)
            held.gate.release()
            with pytest.raises(InvalidInput, match="no entry 'b' is waiting, parked or unknown"):
                await late
            await made.drained()
            assert made.contents() == ["the prompt of entry b", "the prompt of entry d"]
            assert made.durable.read(made.session._outbox.places.queue) == []

    run(main)


def test_a_tool_whose_entry_is_dropped_is_told_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig("3", tmp_path) as made:
            await made.session.start()
            made.server.faults.refuse()
            call = asyncio.create_task(made.save("never sent"))
            await made.paused()
            (entry,) = made.session.waiting
            await made.session.drop(entry.id)
            assert await call == {"status": "dropped", "entry": entry.id}
            made.server.faults.accept()
            await made.drained()
            assert made.contents() == []

    run(main)


def test_a_drop_at_the_close_raises(tmp_path: Path) -> None:
    """It would have waited for ever: the task that drops had ended."""

    async def main() -> None:
        async with rig("3", tmp_path) as made:
            held = made.server.faults.on("POST /prompts", faults.delay("never"))
            await made.put("prompt", "first")
            await asyncio.to_thread(held.gate.wait_held)
            late = asyncio.create_task(made.session.drop("first"))
            await asyncio.sleep(0)
            await made.session.aclose()
            with pytest.raises(HandleClosed):
                await late
            held.gate.release()
            await made.restart(kill=True)
            await made.drained()
            assert made.session.state("first") == "delivered"

    run(main)
