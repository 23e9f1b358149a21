"""A state machine of the memory bridge, its server and what goes wrong between them, with kill -9 and restart.

The model is told each commit once it is stored, so it knows what was admitted and in which order, and holds the outbox,
the server's record of requests and the effects on its rows against that, after every step and once all has drained.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scopelog.addresses import Write
from scopelog.clients.memory import MemorySession
from scopelog.clients.memory.outbox import Aside, Outbox
from scopelog.errors import ScopelogError
from tests.engram import GENERATIONS, Action, Exchange, faults
from tests.engram.state import Effect
from tests.memory_machine import TIMEOUT_MS, Rig

AGENTS: Final = st.sampled_from(["agent-1", "agent-1", "agent-2"])
EVENTS: Final = st.integers(0, 9)  # below 3 an event that may have been before, else a new one
ROUTES: Final = st.sampled_from(
    [
        "*",
        "POST /observations",
        "POST /prompts",
        "POST /observations/passive",
        "POST /sessions",
        "GET /sessions/{id}",
        "POST /sessions/{id}/end",
        "GET /observations/save-result",
        "GET /project/current",
        "GET /health",
        "connect",
    ]
)
NEXT: Final = st.just("") | st.just("GET /observations/save-result") | ROUTES  # "": the same route again
FAULTS: Final[dict[str, Callable[[], Action]]] = {
    "lost acknowledgement": faults.lose_reply,
    "lost acknowledgement, reset": lambda: faults.lose_reply(reset=True),
    "closed unread": faults.close_unread,
    "closed unapplied": faults.close_unapplied,
    "half a body": faults.half_body,
    "half a body, unapplied": lambda: faults.half_body(apply=False),
    "500": faults.fail,
    "503 applied": lambda: faults.fail(503, applied=True),
    "401": faults.unauthorized,
    "ended": lambda: faults.conflict("session_already_ended"),
    "project": lambda: faults.conflict("session_project_conflict"),
    "isolation": lambda: faults.conflict("session_isolation_conflict"),
    "not JSON": faults.not_json,
    "not JSON, applied": lambda: faults.not_json(apply=True),
    "gone away": lambda: faults.then_refuse(reply="lost"),
    "gone away after it": faults.then_refuse,
}
ANY_FAULT: Final = st.sampled_from(sorted(FAULTS))
LOST: Final = st.sampled_from(
    ["lost acknowledgement", "half a body", "not JSON, applied", "503 applied", "closed unread"]
)
REFUSED: Final = st.sampled_from(["401", "ended", "isolation", "500"])
OWN_ROUTE: Final = {
    "prompt": "POST /prompts",
    "learning": "POST /observations/passive",
    "save": "POST /observations",
    "archive": "POST /observations",
    "end": "POST /sessions/{id}/end",
}
KINDS: Final = st.sampled_from(["prompt", "prompt", "learning", "save", "archive", "end"])
HELD: Final = ["POST /observations", "POST /prompts", "POST /observations/passive", "GET /observations/save-result"]
READS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("mem_search", {"query": "token"}),
    ("mem_context", {}),
    ("mem_stats", {}),
    ("mem_current_project", {}),
    ("mem_doctor", {}),
]
TOKEN: Final = re.compile(r"token\d{4}")


@dataclass
class Admitted:
    """An entry that is stored, and what the test did to it."""

    id: str
    agent: str
    kind: str
    token: str
    retried: bool = False
    dropped: bool = False
    excused: bool = False  # its row was deleted while it was under way
    frozen_at: float | None = None
    state: str = "pending"


@dataclass
class Model:
    """What was admitted, in order, as the commits say."""

    generation: str
    now: Callable[[], float]
    entries: dict[tuple[str, str], Admitted] = field(default_factory=dict)
    order: dict[str, list[Admitted]] = field(default_factory=dict)

    def stored(self, writes: list[Write[Any]]) -> None:
        for write in writes:
            change = write.change
            if change.address is None or not isinstance(change.value, dict):
                continue
            agent, element = change.address.key, change.value
            if change.address.namespace == "memory.outbox":
                self._admit(agent, element)
            elif change.address.namespace == "memory.flight":
                entry = self.entries[agent, element["id"]]
                if entry.frozen_at is None:
                    entry.frozen_at = self.now()

    def _admit(self, agent: str, element: dict[str, Any]) -> None:
        known = self.entries.get((agent, element["id"]))
        if known is not None:
            assert known.retried, f"{known} was admitted twice"
            known.frozen_at = None
            return
        token = TOKEN.search(json.dumps(element["payload"]))
        assert token is not None
        made = Admitted(element["id"], agent, element["kind"], token.group())
        self.entries[agent, made.id] = made
        self.order.setdefault(agent, []).append(made)

    def of_token(self, token: str) -> Admitted | None:
        return next((entry for entry in self.entries.values() if entry.token == token), None)

    @property
    def exact(self) -> bool:
        return self.generation == "3"


class MemoryMachine(RuleBasedStateMachine):
    """Rules; what must hold is below them."""

    runs = 0
    steps = 0

    @initialize(
        generation=st.sampled_from(["3", "3", *GENERATIONS]),
        own=st.sampled_from([False, False, False, True]),
        one_session=st.booleans(),
        one_project=st.booleans(),
    )
    def begin(self, generation: str, own: bool, one_session: bool, one_project: bool) -> None:
        self.model = Model(generation, lambda: self.rig.server.clock.now())
        self.rig = Rig(generation, self.model.stored, own=own, one_session=one_session, one_project=one_project)
        self.tokens = 0
        self.sent: dict[str, list[Exchange]] = {}
        self.made: dict[str, list[Effect]] = {}
        self.clean_since: float | None = None  # before, a registration may have failed: writes go on as they were then
        self.trouble = 0  # what may have made a key unusable
        self.wrote: set[str] = set()
        self.down = False
        MemoryMachine.runs += 1

    # --- the harness

    def token(self) -> str:
        self.tokens += 1
        return f"token{self.tokens:04d}"

    def write(self, agent: str, work: Callable[[MemorySession, str], Any], *, wait: bool = True) -> Any:
        """A call that may admit an entry: its result, None where there is none (yet)."""
        token, session = self.token(), self.rig.agents[agent]
        released = session.released
        self.wrote.add(agent)
        kills = self.rig.kills
        task = self.rig.call(work(session, token), wait=wait)
        assert not (released and self.model.of_token(token)), "admitted after the disposal"
        if kills != self.rig.kills or not task.done():
            return None
        result = outcome(task)
        if isinstance(result, bool):
            assert result == (self.model.of_token(token) is not None)
        if isinstance(result, dict) and "entry" in result:
            state = session.state(result["entry"])
            assert state is not None and (result["status"] in (state, "queued")), (result, state)
        return result

    def event(self, number: int) -> str:
        return f"event-{number}" if number < 3 else f"event-new-{self.tokens}"

    @rule(agent=AGENTS, number=EVENTS)
    def prompt(self, agent: str, number: int) -> None:
        event = self.event(number)
        self.write(agent, lambda m, t: m.capture_prompt(event, [{"type": "text", "text": f"the user said {t}"}]))

    @rule(agent=AGENTS, number=EVENTS)
    def learning(self, agent: str, number: int) -> None:
        event, text = self.event(number), "x" * 60 + "\n## Key Learnings\n\n1. What was learned is long enough: "
        self.write(agent, lambda m, t: m.capture_tool_result(event, "bash", f"{text}{t}\n"))

    @rule(agent=AGENTS, summary=st.booleans(), wait=st.booleans())
    def save(self, agent: str, summary: bool, wait: bool) -> None:
        tool, title = ("mem_session_summary", {}) if summary else ("mem_save", {"title": "T"})
        self.write(agent, lambda m, t: m.call(tool, {**title, "content": f"content {t}"}), wait=wait)

    @rule(agent=AGENTS, number=EVENTS, wait=st.booleans())
    def archive(self, agent: str, number: int, wait: bool) -> None:
        event = self.event(number)
        self.write(agent, lambda m, t: m.archive(event, f"summary {t}"), wait=wait)

    @rule(agent=AGENTS, wait=st.booleans())
    def end(self, agent: str, wait: bool) -> None:
        self.trouble += 1
        wrote = set(self.wrote)
        self.write(agent, lambda m, t: m.end(f"summary {t}"), wait=wait)
        self.wrote = wrote  # an end makes no row

    @rule(agent=AGENTS)
    def start(self, agent: str) -> None:
        self.write(agent, lambda m, t: m.call("mem_session_start", {}))

    @rule(agent=AGENTS, read=st.sampled_from(READS))
    def read(self, agent: str, read: tuple[str, dict[str, Any]]) -> None:
        kills, task = self.rig.kills, self.rig.call(self.rig.agents[agent].call(*read))
        if kills == self.rig.kills:
            outcome(task)

    @rule(agent=AGENTS, resume=st.booleans())
    def release(self, agent: str, resume: bool) -> None:
        async def dispose(session: MemorySession) -> None:
            session.release()

        self.rig.call(dispose(self.rig.agents[agent]))
        if resume:
            self.resume(agent)

    @rule(agent=AGENTS)
    def resume(self, agent: str) -> None:
        before = self.rig.agents[agent]
        key, busy = before.key, bool(before.waiting)
        self.rig.call(self.rig.process.connect(agent))
        assert busy or self.rig.agents[agent].key == key

    @rule(agent=AGENTS, pick=st.integers(0, 9), again=st.booleans())
    def settle_aside(self, agent: str, pick: int, again: bool) -> None:
        session = self.rig.agents[agent]
        if not session.aside:
            return
        entry = self.model.entries[agent, sorted(session.aside)[pick % len(session.aside)]]
        if again:
            entry.retried = True
            self.trouble += entry.kind == "end"
        else:
            entry.dropped = True
        self.rig.call(session.retry(entry.id) if again else session.drop(entry.id))

    @rule(agent=AGENTS, pick=st.integers(0, 9))
    def drop_waiting(self, agent: str, pick: int) -> None:
        session = self.rig.agents[agent]
        if not session.waiting:
            return
        entry = self.model.entries[agent, session.waiting[pick % len(session.waiting)].id]
        entry.dropped = True  # unless its delivery is under way
        self.rig.call(session.drop(entry.id), wait=False)

    # --- a write that meets trouble: by chance alone the two seldom come together

    def some(self, agent: str, kind: str, wait: bool) -> None:
        if kind == "end":
            self.end(agent, wait)
        elif kind == "save":
            self.save(agent, False, wait)
        elif kind == "archive":
            self.archive(agent, 9, wait)
        elif kind == "prompt":
            self.prompt(agent, 9)
        else:
            self.learning(agent, 9)

    @rule(
        agent=AGENTS,
        kind=KINDS,
        first=LOST | ANY_FAULT,
        more=st.lists(st.tuples(NEXT, REFUSED | LOST | ANY_FAULT), max_size=2),
        wait=st.booleans(),
    )
    def write_in_trouble(self, agent: str, kind: str, first: str, more: list[tuple[str, str]], wait: bool) -> None:
        self.fault(OWN_ROUTE[kind], first, 1)
        for route, fault in more:
            self.fault(route or OWN_ROUTE[kind], fault, 1)
        self.some(agent, kind, wait)

    @rule(agent=AGENTS, kind=KINDS, first=LOST, more=st.lists(st.tuples(NEXT, REFUSED), min_size=1, max_size=2))
    def write_in_more_trouble(self, agent: str, kind: str, first: str, more: list[tuple[str, str]]) -> None:
        self.write_in_trouble(agent, kind, first, more, True)

    @precondition(lambda self: not self.rig.gates)
    @rule(
        agent=AGENTS,
        kind=st.sampled_from(["prompt", "learning", "save", "archive"]),
        late=st.booleans(),
        then=st.sampled_from(["kill", "wait", "resume"]),
    )
    def write_held(self, agent: str, kind: str, late: bool, then: str) -> None:
        self.hold(OWN_ROUTE[kind], late, 1)
        self.some(agent, kind, False)
        if then == "kill":
            self.kill()
        elif then == "wait":
            self.advance(TIMEOUT_MS / 1000 + 0.1)
        else:
            self.resume(agent)

    @rule(agent=AGENTS, kind=KINDS, commits=st.integers(1, 5), after=st.booleans())
    def write_and_die(self, agent: str, kind: str, commits: int, after: bool) -> None:
        self.die_at(commits, after)
        self.some(agent, kind, True)

    @rule(agent=AGENTS, kind=st.sampled_from(["prompt", "learning", "save"]), what=st.sampled_from(["end", "project"]))
    def write_past_a_change(self, agent: str, kind: str, what: str) -> None:
        self.some(agent, kind, True)
        self.behind_our_back(agent, what)
        self.advance(61.0)
        self.holds()
        self.advance(0.1)
        self.some(agent, kind, True)

    # --- time and death

    @rule(seconds=st.sampled_from([0.3, 1.1, 3.0, 10.0, 31.0, 61.0, 61.0, 1801.0]))
    def advance(self, seconds: float) -> None:
        self.rig.advance(seconds)

    @rule()
    def kill(self) -> None:
        self.rig.kill()

    @rule(commits=st.integers(1, 5), after=st.booleans())
    def die_at(self, commits: int, after: bool) -> None:
        self.rig.process.dying = commits, after

    # --- the server and the way to it

    @rule(route=ROUTES, fault=ANY_FAULT, nth=st.integers(1, 2))
    def fault(self, route: str, fault: str, nth: int) -> None:
        action = faults.close_unread() if route == "connect" else FAULTS[fault]()
        self.rig.server.faults.on(route, action, nth=nth)
        self.trouble += action.kind == "answer" and action.status == 409
        self.down = self.down or action.then_refuse  # some time

    @precondition(lambda self: self.rig.own)
    @rule(times=st.integers(1, 3))
    def foreign(self, times: int) -> None:
        self.rig.server.faults.on("GET /health", *[faults.foreign() for _ in range(times)])

    @precondition(lambda self: not self.rig.gates)
    @rule(route=st.sampled_from(HELD), late=st.booleans(), nth=st.integers(1, 2))
    def hold(self, route: str, late: bool, nth: int) -> None:
        """A request that waits; time may pass over it, or the process die while it is on its way."""
        self.rig.server.faults.on(route, self.rig.hold(faults.delay("after" if late else "before")), nth=nth)

    @precondition(lambda self: self.rig.gates)
    @rule()
    def let_go(self) -> None:
        self.rig.let_go()
        self.rig.settle()

    @rule(startable=st.booleans())
    def go_down(self, startable: bool) -> None:
        self.rig.startable = startable
        self.down = True
        self.rig.server.faults.refuse()
        self.rig.settle()

    @precondition(lambda self: self.down)
    @rule()
    def come_back(self) -> None:
        self.down = False
        self.rig.server.faults.accept()

    @rule(agent=AGENTS, what=st.sampled_from(["end", "delete", "project"]))
    def behind_our_back(self, agent: str, what: str) -> None:
        session, server = self.rig.agents[agent], self.rig.server
        if session.key not in server.model.rows.sessions:
            return
        self.trouble += 1
        if what == "end":
            server.faults.end(session.key)
        elif what == "project":
            server.faults.set_project(session.key, "elsewhere")
        else:
            server.faults.delete(session.key)
            for entry in session.waiting:
                known = self.model.entries[agent, entry.id]
                known.excused = known.excused or known.frozen_at is not None

    # --- what must hold

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "rig"):
            return
        MemoryMachine.steps += 1
        self.rig.settle()
        self.look()
        for agent in self.rig.agents:
            self.check_outbox(agent)
            self.check_order(agent)
        for entry in self.model.entries.values():
            self.check_sent(entry)
        self.check_late()
        self.check_rows()

    def check_outbox(self, agent: str) -> None:
        """What the session says is what is stored, and every entry has a state."""
        session = self.rig.agents[agent]
        again = Outbox(self.rig.process.sessions[self.rig.session_of[agent]], agent)
        entries = self.model.order.get(agent, [])
        assert again.key == session.key
        assert again.waiting == session.waiting
        assert shown(again.aside) == shown(session.aside)
        states = {entry.id: session.state(entry.id) for entry in entries}
        assert states == {entry.id: again.state(entry.id) for entry in entries}
        assert None not in states.values(), f"forgotten: {states}"
        for entry in entries:
            state = states[entry.id]
            assert state is not None
            assert entry.state != "delivered" or state == "delivered", f"{entry} is {state}"
            entry.state = state
        waiting = [entry.id for entry in session.waiting]
        assert not {i for i in waiting if states[i] not in ("pending", "in flight")}
        assert waiting.count("in flight") <= 1
        fresh = [entry.id for entry in entries if not entry.retried]
        assert [i for i in waiting if i in fresh] == [i for i in fresh if i in waiting]
        assert all(aside.reason for aside in session.aside.values())

    def look(self) -> None:
        """Sort what the server has seen by entry."""
        self.sent, self.made = {}, {}
        for request in self.rig.server.requests:
            for token in TOKEN.findall(request.raw.decode()):
                self.sent.setdefault(token, []).append(request)
        for effect in self.rig.server.model.rows.effects:
            if effect.what != "duplicate":
                for token in TOKEN.findall(effect.content):
                    self.made.setdefault(token, []).append(effect)

    def sends(self, entry: Admitted) -> list[Exchange]:
        return self.sent.get(entry.token, [])

    def effects(self, entry: Admitted) -> list[Effect]:
        return self.made.get(entry.token, [])

    def check_order(self, agent: str) -> None:
        """The first request for each entry comes in the order of admission."""
        firsts = [sent[0].order for e in self.model.order.get(agent, []) if not e.retried and (sent := self.sends(e))]
        assert firsts == sorted(firsts), f"out of order: {firsts}"

    def check_sent(self, entry: Admitted) -> None:
        if entry.retried or entry.kind == "end":
            return
        sent = self.sends(entry)
        assert len({e.raw for e in sent}) <= 1, f"{entry} changed between two sends"
        assert self.model.exact or len(sent) <= 1, f"{entry} was sent again"
        assert entry.excused or len(self.effects(entry)) <= 1, f"{entry} took effect twice"

    def check_late(self) -> None:
        """A row that was ended gets no write that was frozen more than 60 s later."""
        if self.down or self.rig.server.faults.pending:
            self.clean_since = None
            return
        if self.clean_since is None:
            self.clean_since = self.model.now()
        for entry in self.model.entries.values():
            for effect in self.effects(entry):
                if effect.session_ended_at is not None and (entry.frozen_at or 0) > self.clean_since:
                    assert entry.frozen_at is not None
                    assert entry.frozen_at - effect.session_ended_at <= 60, f"{entry} went to an ended row"

    def check_rows(self) -> None:
        rows, cwds = self.rig.server.model.rows.sessions, {cwd: a for a, cwd in self.rig.cwd_of.items()}
        keys: dict[str, list[str]] = {agent: [] for agent in self.rig.agents}
        for row in rows.values():
            keys[cwds[row.directory]].append(row.id)
        for seen in self.rig.server.seen("POST /sessions"):
            if isinstance(seen.body, dict):
                keys[cwds[seen.body["directory"]]].append(seen.body["id"])
        ends = [(ended_key(e), e.applied) for e in self.rig.server.seen("POST /sessions/{id}/end")]
        for agent, mine in keys.items():
            assert len({row.id for row in rows.values() if row.id in mine}) <= 1 + self.trouble
            asked = sum(1 + entry.retried for entry in self.model.order.get(agent, []) if entry.kind == "end")
            assert sum(applied for key, applied in ends if key in mine) <= asked
        self.rig.server.check_invariants(
            agents={agent: sorted({*mine} - {agent}) for agent, mine in keys.items()},
            projects=self.rig.project_of,
            readers=[agent for agent in keys if agent not in self.wrote],
            ends=[key for key, _ in ends],
            late_writes=True,  # see check_late
        )

    def finish(self) -> None:
        """No more faults, the server is there, time passes: everything drains."""
        server, rig = self.rig.server, self.rig
        rig.process.dying = None
        server.faults.clear()
        rig.let_go()
        server.faults.accept()
        for _ in range(40):
            if not any(session.waiting for session in rig.agents.values()):
                break
            rig.advance(61)
        for agent, session in rig.agents.items():
            assert not session.waiting, f"{agent} is stuck: {session.blocked}"
        self.holds()
        for entry in self.model.entries.values():
            if entry.kind != "end" and not entry.dropped and not entry.excused:
                self.check_final(entry)

    def check_final(self, entry: Admitted) -> None:
        session, made = self.rig.agents[entry.agent], self.effects(entry)
        if entry.state == "delivered":
            assert len(made) == 1 or (entry.retried and made), f"{entry} took effect {len(made)} times"
            return
        if not self.model.exact or entry.retried:
            return
        refused = [
            e
            for e in self.rig.server.requests
            if (entry.token.encode() in e.raw or entry.id in e.target)
            and e.status is not None
            and 400 <= e.status < 500
        ]
        assert refused, f"{entry} is set aside ({session.aside[entry.id].reason}), though the server refused nothing"
        assert entry.state == "unknown" or not made, f"{entry} is parked, and took effect"

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            try:
                self.finish()
            finally:
                self.rig.close()


def ended_key(request: Exchange) -> str:
    return unquote(request.path.split("/")[2])


def shown(aside: dict[str, Aside]) -> dict[str, tuple[Any, ...]]:
    return {i: (one.state, one.reason, one.frozen, one.entry.stored()) for i, one in aside.items()}


def outcome(task: asyncio.Task[Any]) -> Any:
    """What a call returned; a typed refusal and a cancellation by the session's end are answers too."""
    if task.cancelled():
        return None
    error = task.exception()
    if isinstance(error, ScopelogError):
        return error
    return task.result()


LONG: Final = os.environ.get("SCOPELOG_HYPOTHESIS") == "long"

TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(
    max_examples=1000 if LONG else 20,
    stateful_step_count=40 if LONG else 20,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink] if LONG else [Phase.generate],
)
