"""kill -9 of a real child at random moments: what was acknowledged is there, and the rest is a prefix in order."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pytest

from scopelog import EphemeralScope, ManualClock, Session, Store, ephemeral, list_of, value

from .stores import unsound

ROUNDS: Final = 24
SESSION_ID: Final = "killed"
HISTORY: Final = list_of("chat", "history")
STAGED: Final = list_of("chat", "staged")
COUNT: Final = value("chat", "count")
SCOPES: Final = [ephemeral(name) for name in ("op-a", "op-b", "op-c")]
WINDOW_MS: Final = 2
OPERATIONS: Final = ["commit"] * 2 + ["append"] * 4 + ["scope"] * 2 + ["flush", "retire", "reopen"]


@dataclass
class Life:
    """What a scope's present life holds, as far as it is acknowledged; elements are [life, number]."""

    number: int = 0
    elements: int = 0


@dataclass
class Known:
    """What the child has been told was stored. ``retiring``: scopes whose retirement was asked for, not answered."""

    history: int = 0
    staged: int = 0
    lives: dict[str, Life] = field(default_factory=lambda: {scope.id: Life() for scope in SCOPES})
    retiring: set[str] = field(default_factory=set)


# --- the child --------------------------------------------------------------------------------------


def numbers(session: Session, scope: EphemeralScope) -> list[list[int]]:
    return [element.element for element in session.read(scope.list_of("op", "steps"))]


def work(path: Path, seed: int, say: Callable[[str], None]) -> None:
    """Write for ever: commits, staged appends, retirements, new lives under old ids; say what was acknowledged."""
    rng = Random(seed)
    say("opening")
    store = Store.open(path, window_ms=WINDOW_MS)
    session = store.session(SESSION_ID)
    history = len(session.read(HISTORY))
    staged = len(session.read(STAGED))
    lives = session.get(value("chat", "lives"), {scope.id: 0 for scope in SCOPES})
    steps = {scope.id: len(numbers(session, scope)) for scope in SCOPES}
    say("opened")
    while True:
        scope = rng.choice(SCOPES)
        match rng.choice(OPERATIONS):
            case "commit":
                count = rng.randint(1, 3)
                writes = [HISTORY.append(history + n) for n in range(count)]
                session.commit([*writes, COUNT.set(history + count)])
                history += count
                say(f"history {history}")
                say(f"staged {staged}")  # a commit takes along what was staged before it in its scope
            case "append":
                for _ in range(rng.randint(1, 4)):
                    session.append(STAGED, staged)
                    staged += 1
                    if rng.random() < 0.5:
                        session.append(scope.list_of("op", "steps"), [lives[scope.id], steps[scope.id]])
                        steps[scope.id] += 1
            case "scope":
                session.commit([scope.list_of("op", "steps").append([lives[scope.id], steps[scope.id]])])
                steps[scope.id] += 1
                say(f"steps {scope.id} {lives[scope.id]} {steps[scope.id]}")
            case "flush":
                session.flush()
                say(f"staged {staged}")
                for name, count in steps.items():
                    say(f"steps {name} {lives[name]} {count}")
            case "retire":
                say(f"retiring {scope.id}")
                lives = lives | {scope.id: lives[scope.id] + 1}
                session.commit([scope.retire(), value("chat", "lives").set(lives)])
                steps[scope.id] = 0
                say(f"steps {scope.id} {lives[scope.id]} 0")
                say(f"staged {staged}")
            case "reopen":
                if rng.random() < 0.3:
                    session.close()
                    say(f"staged {staged}")
                    session = store.session(SESSION_ID)


def run_and_kill(path: Path, seed: int, after: int, known: Known) -> None:
    """Fork a writer, kill it once it has said ``after`` lines, and take in everything that it had said by then."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(out)
            work(path, seed, lambda line: void(os.write(into, line.encode() + b"\n")))
        finally:
            os._exit(3)  # never reached but by an error
    os.close(into)
    with os.fdopen(out, "r", encoding="utf-8") as pipe:
        lines = [pipe.readline() for _ in range(after)]
        os.kill(pid, signal.SIGKILL)
        lines += pipe.readlines()
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"the child ended by itself ({status}) after {lines[-3:]}"
    for line in lines:
        take_in(line, known)


def void(_: object) -> None: ...


def take_in(line: str, known: Known) -> None:
    word, *rest = line.split()
    if word == "history":
        known.history = int(rest[0])
    elif word == "staged":
        known.staged = int(rest[0])
    elif word == "retiring":
        known.retiring.add(rest[0])
    elif word == "steps":
        name, life, count = rest[0], int(rest[1]), int(rest[2])
        if life > known.lives[name].number:
            known.retiring.discard(name)
        known.lives[name] = Life(life, count)


# --- the parent -------------------------------------------------------------------------------------


def verify(session: Session, known: Known) -> None:
    """Compare with what was acknowledged, then take what is there as the new state."""
    history = [element.element for element in session.read(HISTORY)]
    assert history == list(range(len(history))) and len(history) >= known.history
    assert session.get(COUNT, 0) == len(history), "a commit is stored whole or not at all"
    staged = [element.element for element in session.read(STAGED)]
    assert staged == list(range(len(staged))) and len(staged) >= known.staged
    lives = session.get(value("chat", "lives"), {scope.id: 0 for scope in SCOPES})
    for scope in SCOPES:
        life = known.lives[scope.id]
        maybe_retired = scope.id in known.retiring and lives[scope.id] == life.number + 1
        assert lives[scope.id] == life.number or maybe_retired
        steps = numbers(session, scope)
        assert steps == [[lives[scope.id], number] for number in range(len(steps))], "one life, in order, without a gap"
        assert maybe_retired or len(steps) >= life.elements
        assert not (maybe_retired and steps), "what was retired never comes back"
        known.lives[scope.id] = Life(lives[scope.id], len(steps))
    known.history, known.staged = len(history), len(staged)
    known.retiring.clear()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.fault(1, 2, rig="K")
def test_killed_at_random_moments_again_and_again(seed: int, store_path: Path) -> None:
    rng = Random(seed)
    known = Known()
    for number in range(ROUNDS):
        after = rng.choice([1, 2, rng.randint(2, 20), rng.randint(20, 100), rng.randint(50, 250)])
        # 1: killed while it opens and recovers
        where = f"seed {seed}, round {number}, killed after {after} lines"
        try:
            run_and_kill(store_path, seed * 1000 + number, after, known)
            with Store.open(store_path, clock=ManualClock()) as store:
                if rng.random() < 0.5:
                    continue  # the next child recovers by itself, and may be killed on the way
                with store.session(SESSION_ID) as session:
                    for aside in session.recovery.set_aside:  # a sidecar whose birth was cut off
                        assert "no valid header" in aside.reason and Path(aside.kept).stat().st_size == 0
                    verify(session, known)
                    # append after the recovery, and read again
                    session.commit([HISTORY.append(known.history), COUNT.set(known.history + 1)])
                    known.history += 1
                    for scope in SCOPES:
                        life = known.lives[scope.id]
                        session.append(scope.list_of("op", "steps"), [life.number, life.elements])
                        life.elements += 1
                    session.flush()
                    verify(session, known)
                assert unsound(store.check()) == []
                with store.session(SESSION_ID) as session:
                    assert not session.recovery
                    verify(session, known)
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from error
