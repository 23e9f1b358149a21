"""kill -9 of real harness processes around every step of a delivery, restarted until nothing waits any more."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from scopelog import Store
from scopelog.clients.memory import MemoryBridge

from .engram import EngramServer, Entry, faults
from .memory_rig import AGENT, LONG, PROJECT, Rig, blocks, learnings

FRESH: Final = 6  # events that each process finds beside the older ones
KINDS: Final = ("prompt", "archive", "learning")
ROUNDS: Final = {"3": 10, "2.1": 6, "2.0": 6, "old": 6}
ROUTES: Final = {  # and how often each is met at least by a process that has something to deliver
    "GET /sessions/{id}": 1,
    "POST /sessions": 1,
    "POST /prompts": 2,
    "POST /observations": 2,
    "POST /observations/passive": 2,
    "*": 8,
}
_FORKS = multiprocessing.get_context("forkserver")  # a fork of this process would take locks of the server's threads
_FORKS.set_forkserver_preload(["tests.test_memory_crash", "httpx2"])


def text_of(number: int) -> str:
    return f"what happened at step {number:03} of the work"


# --- the harness, in a process of its own -----------------------------------------------------------


async def harness(store: str, cwd: str, url: str, events: int, tell: Callable[[Any], None]) -> None:
    """All events from the first on, as a harness that reads its log again after a crash; then wait for the queue."""
    config = {"request_timeout_ms": int(LONG * 1000)}
    with Store.open(store) as opened, opened.session("chat") as chat:
        async with MemoryBridge(config, environ={"ENGRAM_URL": url}) as bridge:
            session = await bridge.session(chat, AGENT, cwd)
            for number in range(events):
                kind, event, text = KINDS[number % len(KINDS)], f"e{number}", text_of(number)
                tell(number)
                if kind == "prompt":
                    await session.capture_prompt(event, blocks(text))
                elif kind == "learning":
                    await session.capture_tool_result(event, "bash", learnings(text))
                else:
                    await session.archive(event, text)
            while not await session.drain(LONG):
                pass
            tell({f"e{number}": session.state(f"e{number}") for number in range(events)})


def live(store: str, cwd: str, url: str, events: int, pipe: Connection) -> None:
    asyncio.run(harness(store, cwd, url, events, pipe.send))


# --- the test ---------------------------------------------------------------------------------------


class Harness:
    """One process at a time over one store; ``states`` is what the last one said at its end, if it came to it."""

    def __init__(self, server: EngramServer, folder: Path) -> None:
        self.server = server
        self.arguments = (str(folder / "store"), Rig.workspace(folder / "work", PROJECT), server.url)
        self.states: dict[str, str] | None = None
        self.events = 0
        self.kills = 0

    def run(self, death: Callable[[int, int], bool] | None = None) -> None:
        """Run one process to its end. ``death``: whether to kill it now, asked with its pid and its last message."""
        self.states = None
        self.events += FRESH
        ours, theirs = _FORKS.Pipe(duplex=False)
        process = _FORKS.Process(target=live, args=(*self.arguments, self.events, theirs))
        process.start()
        theirs.close()
        assert process.pid is not None
        try:
            self._follow(ours, process.pid, death)
            process.join(LONG)
            assert process.exitcode in (0, -signal.SIGKILL)
        finally:
            process.kill()
            process.join(LONG)
            ours.close()

    def _follow(self, pipe: Connection, pid: int, death: Callable[[int, int], bool] | None) -> None:
        said: Any = -1
        while True:
            try:
                if pipe.poll(0.002):  # else only look whether a request is held
                    said = pipe.recv()
            except EOFError:
                self.kills += 1
                return
            if isinstance(said, dict):
                self.states = said
                return
            if death is not None and death(pid, said):
                os.kill(pid, signal.SIGKILL)
                self.kills += 1
                return


def death_of(chance: Random, server: EngramServer, known: int) -> Callable[[int, int], bool]:
    """How the next process dies: as it captures, while a request of its is held, or as one arrives or is answered."""
    way = chance.choice(["message", "held", "arrival", "answer"])
    if way == "message":
        at = known + chance.randrange(FRESH)
        return lambda _, said: said >= at
    route = chance.choice(list(ROUTES))
    nth = chance.randint(1, ROUTES[route])
    pids: list[int] = []

    def strike(*_: object) -> None:
        if pids:
            os.kill(pids[0], signal.SIGKILL)

    if way == "arrival":
        server.faults.on(route, faults.change(before=strike), nth=nth)
    elif way == "answer":
        server.faults.on(route, faults.change(after=strike), nth=nth)
    held = faults.delay(chance.choice(["before", "after", "never"]))
    if way == "held":
        server.faults.on(route, held, nth=nth)

    def asked(pid: int, said: int) -> bool:
        if not pids:
            pids.append(pid)
        return way == "held" and held.gate.held > 0

    return asked


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("generation", sorted(ROUNDS))
def test_killed_harnesses(generation: str, seed: int, tmp_path: Path) -> None:
    """Where the server tells repeats each event took effect exactly once, in order; elsewhere none was sent twice, and
    what may have been sent is unknown. Nothing is lost, and one row holds it all."""
    chance = Random(f"{generation} {seed}")
    with EngramServer(generation) as server:
        harness = Harness(server, tmp_path)
        for _ in range(ROUNDS[generation]):
            harness.run(death_of(chance, server, harness.events))
            server.faults.clear()
        harness.run()
        assert harness.states is not None and harness.kills >= ROUNDS[generation] // 2
        events = range(harness.events)
        numbers = [number for effect in server.model.rows.effects if (number := number_of(effect.content)) is not None]
        if generation == "3":
            assert set(harness.states.values()) == {"delivered"}
            assert list(dict.fromkeys(numbers)) == list(events)
        else:
            assert set(harness.states.values()) <= {"delivered", "unknown"}
            done = {number for number in events if harness.states[f"e{number}"] == "delivered"}
            assert done <= set(numbers) and numbers == sorted(set(numbers))
        sent = Counter(
            (e.route, number_of(str(e.body.get("content", ""))))
            for e in server.requests
            if e.method == "POST" and isinstance(e.body, dict)
        )
        repeated = [what for what, count in sent.items() if what[1] is not None and count > 1]
        assert generation == "3" or not repeated
        entries = [
            Entry(content=text_of(n)) if n % 3 == 2 else Entry(key=f"{AGENT}/e{n}" if n % 3 == 1 else f"e{n}")
            for n in events
        ]
        server.check_invariants(agents={AGENT: []}, projects={AGENT: PROJECT}, entries=entries)


def number_of(content: str) -> int | None:
    """Which event a content is of."""
    _, found, rest = content.partition("happened at step ")
    return int(rest[:3]) if found else None
