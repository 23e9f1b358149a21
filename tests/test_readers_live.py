"""Readers in other processes, without a lock, beside a writer that is killed, retires, deletes and begins anew.

Whatever instant they catch, they see whole commits in order, and nothing that was over when they last looked; and
neither they nor the writer ever stat a live log. ``SCOPELOG_LIVE_SEED`` and ``SCOPELOG_LIVE_LOOKS`` (of each reader)
make other and longer runs.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from random import Random

import pytest

from scopelog import (
    Durability,
    EphemeralScope,
    ManualClock,
    NoSuchSession,
    SessionReader,
    SessionScope,
    Store,
    Write,
)
from scopelog_engine.fs import File, OsFile, OsFileSystem
from tests.stores import unsound
from tests.views_index import make_small
from tests.views_live import HISTORY, SCOPES, Watching, Writing, forbid_stats, is_log

SEED = int(os.environ.get("SCOPELOG_LIVE_SEED", "1"))
LOOKS = int(os.environ.get("SCOPELOG_LIVE_LOOKS", "60"))
READERS = 3
KILLS = 12
_context = get_context("fork")


def write(path: Path, seed: int, say: Connection) -> None:
    forbid_stats()
    make_small(Counter())
    Writing(path, seed).run(lambda: say.send_bytes(b"."))


def watch(path: Path, seed: int, pipe: Connection) -> None:
    """Look again and again: every look is told, the last message is what was seen."""
    forbid_stats()
    watching = Watching(path, seed)
    make_small(watching.seen)
    while not pipe.poll():
        watching.look()
        pipe.send(None)
    watching.close()
    pipe.send(watching.seen)


class Reader:
    def __init__(self, path: Path, seed: int) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=watch, args=(path, seed, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.looks = 0

    def catch_up(self) -> None:
        """Count the looks so far."""
        while self._pipe.poll():
            assert self._pipe.recv() is None
            self.looks += 1

    def end(self) -> Counter[str]:
        self._pipe.send(None)
        while (seen := self._pipe.recv()) is None:
            pass
        self._process.join()
        assert self._process.exitcode == 0
        assert isinstance(seen, Counter)
        return seen


def written_and_killed(path: Path, seed: int, steps: int) -> None:
    """A writer that is killed once it has made so many steps."""
    ours, theirs = _context.Pipe()
    process: ForkProcess = _context.Process(target=write, args=(path, seed, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        for _ in range(steps):
            assert ours.recv_bytes() == b"."
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -9


@pytest.fixture(autouse=True)
def consistency_check() -> None:
    """In place of the shared one: children must not inherit it, and the tests check the stores themselves."""


@pytest.mark.fault(38, rig="K")
def test_readers_see_whole_commits_whatever_the_writer_does(store_path: Path) -> None:
    random = Random(SEED)
    written_and_killed(store_path, random.randrange(1 << 30), 5)
    readers = [Reader(store_path, random.randrange(1 << 30)) for _ in range(READERS)]
    kills = 0
    while kills < KILLS or any(reader.looks < LOOKS for reader in readers):
        written_and_killed(store_path, random.randrange(1 << 30), random.choice((1, 20, 100, 300)))
        kills += 1
        for reader in readers:
            reader.catch_up()
    seen = [reader.end() for reader in readers]
    for one in seen:
        assert one["looks"] >= LOOKS / 2 and one["news"] > 10, seen
    total = sum(seen, Counter())
    for what in ("incarnations", "lives", "steps", "list_of", "value"):
        assert total[what] > 0, f"nobody has seen {what}: {seen}"
    with Store.open(store_path) as store:
        store.session("live").close()
        assert unsound(store.check()) == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_nobody_stats_a_live_log(store_path: Path, tmp_path: Path) -> None:
    """What Python is asked for is guarded in the test above; this is what the system is asked for."""

    def traced(what: str, times: int) -> tuple[subprocess.Popen[bytes], Path]:
        trace = tmp_path / what
        options = ["-f", "-y", "-e", "trace=stat,lstat,fstat,newfstatat,statx", "-o", str(trace)]
        script = [sys.executable, "-m", "tests.views_live", what, str(store_path), "1", str(times)]
        return subprocess.Popen(["strace", *options, *script]), trace

    probe = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"strace may not trace here: {probe.stderr.decode().strip()}")
    Store.open(store_path).close()
    for process, trace in [traced("write", 600), traced("watch", 40)]:
        assert process.wait() == 0
        calls = trace.read_text()
        assert re.search(r'"[^"]*/(LOCK|data\.mdb)"', calls), "other files are looked at"
        asked = [line for line in calls.splitlines() if any(map(is_log, re.findall(r'["<]([^">]*)[">]', line)))]
        assert asked == []


# --- every instant ----------------------------------------------------------------------------------


class InterruptedFile(OsFile):
    before: Callable[[], None]

    def pread(self, length: int, offset: int) -> bytes:
        self.before()
        return super().pread(length, offset)

    def size(self) -> int:
        self.before()
        return super().size()


class InterruptedFileSystem(OsFileSystem):
    """``meanwhile`` happens before the ``nth`` call; ``calls`` counts them."""

    def __init__(self, nth: int, meanwhile: Callable[[], None]) -> None:
        self.calls = 0
        self._nth = nth
        self._meanwhile = meanwhile

    def _before(self) -> None:
        self.calls += 1
        if self.calls == self._nth:
            self._meanwhile()

    def open_readonly(self, path: str) -> File:
        self._before()
        file = InterruptedFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        file.before = self._before
        return file

    def list_dir(self, path: str) -> list[str]:
        self._before()
        return super().list_dir(path)


class Tale:
    """A session whose history is told in chapters: each says the number and length of every scope's life."""

    def __init__(self, path: Path) -> None:
        self.store = Store.open(path, clock=ManualClock())
        self.chapter = 0
        self.begin()

    def begin(self) -> None:
        self.session = self.store.session("live")
        self.first = self.chapter + 1
        self.lives = dict.fromkeys((scope.id for scope in SCOPES), 0)
        self.steps = self.lives
        self.tell()
        for scope in SCOPES[:2]:
            self.step(scope)
        self.tell()

    def tell(self, *writes: Write[SessionScope]) -> None:
        self.chapter += 1
        self.session.commit(
            [*writes, HISTORY.append([self.chapter, self.lives, self.steps])], durability=Durability.POWER
        )

    def step(self, scope: EphemeralScope) -> None:
        self.session.commit([scope.list_of("op", "steps").append(self.lives[scope.id])])
        self.steps = self.steps | {scope.id: self.steps[scope.id] + 1}

    def retire(self, scope: EphemeralScope) -> None:
        self.lives = self.lives | {scope.id: self.lives[scope.id] + 1}
        self.steps = self.steps | {scope.id: 0}
        self.tell(scope.retire())

    # --- what may happen meanwhile

    def go_on(self) -> None:
        for scope in SCOPES[:2]:
            self.step(scope)
            self.tell()

    def retire_and_begin_new_lives(self) -> None:
        for scope in SCOPES[:2]:
            self.retire(scope)
            self.step(scope)

    def retire_again_and_again(self) -> None:
        for _ in range(3):
            self.retire(SCOPES[0])
            self.step(SCOPES[0])

    def retire_and_close(self) -> None:
        self.retire(SCOPES[1])
        self.session.close()

    def begin_anew(self) -> None:
        self.session.close()
        self.store.delete_session("live")
        self.begin()
        self.retire_and_begin_new_lives()


def hold(reader: SessionReader, first: set[int], least: int) -> None:
    """What a reader says is one state of the tale, however often it is asked."""
    history = [element.element for element in reader.read(HISTORY)]
    chapters = [chapter for chapter, _, _ in history]
    assert chapters == list(range(chapters[0], chapters[-1] + 1)) and chapters[0] in first and chapters[-1] >= least
    _, lives, lengths = history[-1]
    steps = {scope.id: [e.element for e in reader.read(scope.list_of("op", "steps"))] for scope in SCOPES}
    for scope, found in steps.items():
        assert set(found) <= {lives[scope]}, f"{scope}: life {lives[scope]} holds {found}"
        assert len(found) >= lengths[scope]
    assert reader.scopes() == sorted(scope for scope, found in steps.items() if found)
    records = list(reader.records())
    assert [r.value for r in records if r.scope is None and r.op == "append"] == history
    assert {s: [r.value for r in records if r.scope == s] for s in steps} == steps
    assert [element.element for element in reader.read(HISTORY, order="desc")] == history[::-1]


@pytest.mark.parametrize(
    "happens", [Tale.go_on, Tale.retire_and_begin_new_lives, Tale.retire_again_and_again, Tale.retire_and_close]
)
@pytest.mark.fault(38, rig="S")
def test_a_reader_is_consistent_whenever_it_is_overtaken(happens: Callable[[Tale], None], tmp_path: Path) -> None:
    """The writer works before the n-th call of a reader to the disk, for every n, while it opens and answers."""
    for nth in itertools.count(1):
        tale = Tale(tmp_path / str(nth))
        fs = InterruptedFileSystem(nth, partial(happens, tale))
        least = tale.chapter
        with Store.open(tale.store.path, create=False, fs=fs) as store, store.reader("live") as reader:
            hold(reader, {1}, least)
        tale.store.close()
        if fs.calls < nth:
            break
    assert nth > 20


@pytest.mark.fault(38, rig="S")
def test_a_reader_finds_the_old_session_or_the_new_one(tmp_path: Path) -> None:
    """The session is deleted and begins anew before the n-th call of a reader to the disk, for every n."""
    for nth in itertools.count(1):
        tale = Tale(tmp_path / str(nth))
        fs = InterruptedFileSystem(nth, tale.begin_anew)
        with Store.open(tale.store.path, create=False, fs=fs) as store:
            try:
                reader = store.reader("live")
            except NoSuchSession:
                assert tale.first > 1, "it was there all the time"
                reader = store.reader("live")
            with reader:
                hold(reader, {1, tale.first}, 2)
        tale.store.close()
        if fs.calls < nth:
            break
    assert nth > 20
