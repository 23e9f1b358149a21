"""Kill ``scopelog record`` with -9 at any moment: what it had reported written is there, in order, and can go on."""

from __future__ import annotations

import json
import os
import queue
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scopelog import Store
from scopelog.cli.commands import cli

SEED = int(os.environ.get("SCOPELOG_SEED") or random.SystemRandom().randrange(2**32))
TRIALS = int(os.environ.get("SCOPELOG_KILLS", "2"))  # for each window and scope
TEXTS = ("plain", "π ≈ 3.14159", "\ud800 alone", "line\u2028end", "zero\0inside", "日本語 " * 40)


class Child:
    """A real recorder, fed through a pipe. ``reported`` grows as its reports are read, in a thread so that neither
    pipe can fill up while we wait at the other."""

    def __init__(self, store: Path, window: int, scope: str | None, *more: str) -> None:
        options = ["--json", "--window", str(window), *(["--scope", scope] if scope else []), *more]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scopelog.cli", "record", str(store), "s", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.reported = 0
        self.last: dict[str, Any] = {}
        self._reports: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        with self.process.stdout as stream:
            for line in stream:
                self._reports.put(line)
        self._reports.put(None)

    def feed(self, lines: list[bytes]) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"".join(line + b"\n" for line in lines))
        self.process.stdin.flush()

    def await_report(self, at_least: int) -> None:
        """Until that many lines were reported written, though the input stays open."""
        while self.reported < at_least:
            assert self._next(), "the recorder ended"

    def _next(self) -> bool:
        line = self._reports.get()
        if line is not None and line.endswith(b"\n"):
            self.last = json.loads(line)
            assert self.reported <= self.last["written"]
            self.reported = self.last["written"]
        return line is not None

    def kill(self) -> None:
        """SIGKILL. ``reported`` counts then every report that left the process."""
        self.process.kill()
        self.end()

    def end(self) -> int:
        assert self.process.stdin
        try:
            self.process.stdin.close()
        finally:
            while self._next():
                pass
            self._reader.join()
            self.process.wait()
        return self.process.returncode


def stored(store: Path, scope: str | None) -> list[Any]:
    """What ``cat --json`` shows; nothing if the recorder was killed before the session came into being."""
    result = CliRunner().invoke(cli, ["cat", str(store), "s", "--json", *(["--scope", scope] if scope else [])])
    if result.exit_code == 2:
        assert "is not a scopelog store" in result.stderr or "there is no session" in result.stderr
        return []
    assert result.exit_code == 0, result.stderr
    records = [json.loads(line) for line in result.stdout_bytes.split(b"\n") if line]
    sequences = [record["seq"] for record in records]
    assert sequences == sorted(set(sequences))
    assert all(record["scope"] == scope for record in records)
    return [record["element"] for record in records]


def make_line(rng: random.Random, number: int) -> bytes:
    element = {"n": number, "text": rng.choice(TEXTS), "noise": rng.randbytes(rng.choice((0, 10, 10, 300, 9000))).hex()}
    return json.dumps(element).encode()


@pytest.mark.parametrize("trial", range(TRIALS))
@pytest.mark.parametrize("scope", [None, "op/1"], ids=["session", "ephemeral"])
@pytest.mark.parametrize("window", [0, 20, 100])
@pytest.mark.fault(1, rig="K")
def test_a_killed_recorder_keeps_what_it_reported(store_path: Path, window: int, scope: str | None, trial: int) -> None:
    """One or two recorders are killed, the last one may finish; each goes on behind what the one before it left.

    After each kill the session is a prefix of what was fed, not shorter than what was reported. That no more than a
    window is lost shows without a clock: the rest is what was fed since everything had been reported, and to be
    reported it takes neither more input nor the end of it, only its window.
    """
    seed = f"{SEED}/{window}/{scope}/{trial}"
    print(f"SCOPELOG_SEED={SEED} (this trial: {seed})")
    rng = random.Random(seed)
    fed: list[bytes] = []
    kept = 0
    for _ in range(rng.choice((1, 2))):
        child = Child(store_path, window, scope)
        here = settled = 0
        for step in range(rng.randrange(1, 25)):
            burst = [make_line(rng, len(fed) + n) for n in range(rng.choice((1, 1, 3, 10, 40)))]
            child.feed(burst)
            fed += burst
            here += len(burst)
            if rng.random() < (0.8 if step == 0 else 0.25):
                child.await_report(here)
                settled = here
            elif here > child.reported and rng.random() < 0.2:
                child.await_report(child.reported + 1)
        child.kill()
        assert settled <= child.reported <= here

        elements = stored(store_path, scope)
        assert elements == [json.loads(line) for line in fed[: len(elements)]], seed
        assert kept + child.reported <= len(elements) <= len(fed), seed
        assert CliRunner().invoke(cli, ["check", str(store_path)]).exit_code in ((0, 1) if elements else (0, 1, 3)), (
            seed
        )
        kept = len(elements)
        del fed[kept:]

    child = Child(store_path, window, scope)
    rest = [make_line(rng, len(fed) + n) for n in range(20)]
    child.feed(rest)
    assert child.end() == 0
    assert (child.last["stopped"], child.reported) == ("end", len(rest))
    assert stored(store_path, scope) == [json.loads(line) for line in fed + rest], seed
    with Store.open(store_path, create=False) as store:
        assert [finding for finding in store.check() if finding.severity != "note"] == []


def test_a_recorder_whose_every_line_was_reported_loses_none(store_path: Path) -> None:
    """The strict case: kill at a moment when nothing is under way."""
    child = Child(store_path, 20, None)
    for n in range(1, 30):
        child.feed([b"%d" % n])
        child.await_report(n)
    child.kill()
    assert stored(store_path, None) == list(range(1, 30))
    with Store.open(store_path, create=False) as store, store.session("s") as session:
        assert session.recovery.torn == [] and not session.recovery.clean
