"""ls: listing ten thousand sessions from the command line, with what a person wants to know of each."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from scopelog import Store, list_of
from scopelog_engine.fs import File, OsFile, OsFileSystem

from .outside import LISTERS, NOTHING
from .probe import ChildFailed
from .results import Row, Skipped
from .run import Run

_SECOND: Final = 1_000  # ms
_RECORDS: Final = 3  # of each session


class _UnsyncedFile(OsFile):
    def sync(self) -> None:
        pass


class _Unsynced(OsFileSystem):
    """The disk, without its syncs: a store that is only built to be listed need not survive a power loss."""

    preallocates = False

    def open(self, path: str) -> File:
        return _UnsyncedFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def create(self, path: str) -> File:
        return _UnsyncedFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def sync_dir(self, path: str) -> None:
        pass


def build(where: Path, count: int) -> None:
    """A store of ``count`` sessions, and a table that says of each what ``ls`` says."""
    target = list_of("chat", "messages")
    with closing(sqlite3.connect(where / "sessions.db")) as db, Store.open(where / "store", fs=_Unsynced()) as store:
        db.execute(
            "CREATE TABLE sessions (id TEXT PRIMARY KEY, name TEXT, created INTEGER, updated INTEGER, records INTEGER,"
            " bytes INTEGER)"
        )
        for number in range(count):
            name = f"session-{number:05}"
            with store.session(name) as session:
                session.commit([target.append({"n": n, "text": "hello"}) for n in range(_RECORDS)])
            moment = int(time.time() * 1000)
            db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", (name, name, moment, moment, _RECORDS, 400))
        db.commit()


class Listed(NamedTuple):
    seconds: float
    memory: int  # bytes, at most
    lines: int


def listed(run: Run, command: Sequence[str]) -> Listed:
    """Run a command that lists sessions. Raises :class:`ChildFailed`."""
    output = run.base / "listed"
    measured = subprocess.run(
        run.command("outside", "run", output, *command),
        capture_output=True,
        text=True,
        env=run.environment,
        check=True,
    )
    seconds, memory, status = measured.stdout.split()
    if int(status):
        raise ChildFailed(f"{command} ended with {status}: {measured.stderr}")
    with output.open("rb") as lines:
        return Listed(float(seconds), int(memory), sum(1 for _ in lines))


def listing(run: Run) -> list[Row | Skipped]:
    """ls: the rows."""
    many = run.size(10_000, 20)
    few = many // 10
    where = {count: run.built(f"{count:,} sessions", partial(build, count=count)) for count in (many, few)}
    ls = [sys.executable, "-m", "scopelog.cli", "ls"]
    commands = {
        "scopelog": [*ls, str(where[many] / "store")],
        "few": [*ls, str(where[few] / "store")],
        **{name: run.command("outside", name, where[many]) for name in LISTERS},
    }
    found: dict[str, list[Listed]] = {name: [] for name in commands}
    for _ in range(run.size(7, 1)):
        for name, command in commands.items():
            found[name].append(listed(run, command))
    for name, turns in found.items():
        expected = few if name == "few" else 0 if name == NOTHING else many
        if turns[0].lines != expected:
            raise AssertionError(f"{name} listed {turns[0].lines} sessions, not {expected}")
    seconds = {name: median(turn.seconds for turn in turns) * 1e3 for name, turns in found.items()}
    memory = {name: median(turn.memory for turn in turns) / 1024 / 1024 for name, turns in found.items()}
    measure = f"ls {many:,} sessions"
    return [
        Row(measure, seconds["scopelog"], "", 0, "ms", _SECOND, note="the interpreter's start included"),
        *(Row(measure, seconds["scopelog"], rival, seconds[rival], "ms") for rival in LISTERS),
        *(Row(f"{measure}, memory", memory["scopelog"], rival, memory[rival], "MB") for rival in LISTERS),
        Row(f"{measure}, memory", memory["scopelog"], f"scopelog at {few:,}", memory["few"], "MB", 1.1),
    ]
