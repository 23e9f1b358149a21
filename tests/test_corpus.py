"""Real sessions and streams, recorded line by line, killed at a random line, recovered, compared, and finished."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from random import Random
from typing import Final

import pytest

from fuzz.simdisk import SimDisk
from scopelog import Json, ManualClock, Session, Store, ephemeral, list_of

from .conftest import shared
from .stores import unsound

LINES: Final = list_of("corpus", "lines")
STREAM: Final = ephemeral("response").list_of("corpus", "frames")
STORE: Final = "/store"
WINDOW: Final = 0.1
SHARES: Final = 8  # the corpus in this many tests, so that a failure names its part


def lines_of(path: Path) -> tuple[list[Json], int]:
    """The elements a file's lines stand for, and how many lines are no JSON."""
    elements: list[Json] = []
    bad = 0
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not line.strip():
            continue
        try:
            elements.append(json.loads(line, parse_constant=_refuse))
        except ValueError:
            bad += 1
    return elements, bad


def _refuse(name: str) -> None:
    raise ValueError(name)


def spelled(elements: list[Json]) -> list[str]:
    """Elements as text: tells 1 from 1.0 and True, and shows the order of keys."""
    return [json.dumps(element) for element in elements]


def read_back(session: Session, target: object) -> list[Json]:
    return [element.element for element in session.read(target)]  # type: ignore[arg-type]


def session_files() -> list[Path]:
    return sorted(shared("corpus").glob("sessions/**/*.jsonl"))


def stream_files() -> list[Path]:
    return sorted(shared("corpus").glob("streams/*/*.frames.jsonl"))


def record_and_kill(elements: list[Json], seed: str, scope: bool) -> None:
    """Record with random pauses, kill at a random line, and let the next writer finish."""
    rng = Random(seed)
    target = STREAM if scope else LINES
    cut = rng.randint(0, len(elements))
    disk, clock = SimDisk(), ManualClock()
    session = Store.open(STORE, fs=disk, clock=clock).session("recorded")
    times = []
    for element in elements[:cut]:
        session.append(target, element)
        times.append(clock.monotonic())
        clock.advance(rng.choice([0, 0, 0.001, 0.02, 0.15]))
    killed_at = clock.monotonic()
    left = disk.copy()  # what kill -9 leaves: the same bytes, no handles, no locks
    with Store.open(STORE, fs=left, clock=ManualClock()) as store:
        with store.session("recorded") as session:
            kept = read_back(session, target)
            assert spelled(kept) == spelled(elements[: len(kept)]), seed
            due = sum(1 for when in times if when + WINDOW <= killed_at)
            assert due <= len(kept) <= cut, f"{seed}: a window closed {due} lines, {len(kept)} of {cut} were kept"
            for element in elements[len(kept) :]:
                session.append(target, element)
        with store.session("recorded") as session:
            assert not session.recovery, seed
            assert spelled(read_back(session, target)) == spelled(elements), seed
        assert unsound(store.check()) == [], seed


@pytest.mark.parametrize("share", range(SHARES))
def test_every_session_recorded_killed_and_finished(share: int) -> None:
    files = session_files()
    assert len(files) > 100
    for path in files[share::SHARES]:
        elements, _ = lines_of(path)
        record_and_kill(elements, str(path), scope=False)


@pytest.mark.parametrize("share", range(SHARES))
def test_every_stream_recorded_killed_and_finished(share: int) -> None:
    """Streams go where a harness puts them: into an ephemeral scope."""
    files = stream_files()
    assert len(files) > 50
    for path in files[share::SHARES]:
        elements, bad = lines_of(path)
        assert bad == 0 and elements
        record_and_kill(elements, str(path), scope=True)


def test_lines_that_are_no_json_are_counted() -> None:
    """The corpus's own index says how many lines of each file cannot be read; null is a line like any other."""
    root = shared("corpus") / "sessions"
    with (root / "INDEX.tsv").open(encoding="utf-8", newline="") as file:
        rows = {row["file"]: row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}
    found = {str(path.relative_to(root)): lines_of(path) for path in session_files()}
    assert found.keys() <= rows.keys()
    for name, (elements, bad) in found.items():
        assert bad == int(rows[name]["bad_lines"]), name
        assert len(elements) == int(rows[name]["records"]), name


def _record_until_killed(path: Path, elements: list[Json], into: int) -> None:
    """In a child: append each line at once, say how many, flush now and then, say that too, and wait to be killed."""
    with Store.open(path, window_ms=1) as store, store.session("recorded") as session:
        for number, element in enumerate(elements, 1):
            session.append(LINES, element)
            if number % 7 == 0:
                session.flush()
                os.write(into, b"%d\n" % number)
        session.flush()
        os.write(into, b"%d\n" % len(elements))
        signal.pause()


def test_real_child_killed_while_it_records(tmp_path: Path) -> None:
    """A sample of the files on the real disk, by a real process and kill -9."""
    rng = Random(7)
    files = [path for path in session_files() if path.stat().st_size > 20_000]
    for path in rng.sample(files, 12):
        elements, _ = lines_of(path)
        where = f"{path}, seed 7"
        target = tmp_path / path.stem
        stop = rng.randint(0, len(elements))
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(out)
                _record_until_killed(target, elements, into)
            finally:
                os._exit(3)
        os.close(into)
        with os.fdopen(out, "rb") as pipe:
            flushed = 0
            while flushed < stop - 7:
                flushed = int(pipe.readline())
            os.kill(pid, signal.SIGKILL)
            flushed = max([flushed, *map(int, pipe.read().split())])
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), where
        with Store.open(target, clock=ManualClock()) as store:
            with store.session("recorded") as session:
                kept = read_back(session, LINES)
                assert len(kept) >= flushed, where
                assert spelled(kept) == spelled(elements[: len(kept)]), where
                for element in elements[len(kept) :]:
                    session.append(LINES, element)
            with store.reader("recorded") as reader:
                assert spelled([element.element for element in reader.read(LINES)]) == spelled(elements), where
            assert unsound(store.check()) == [], where
