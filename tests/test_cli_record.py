"""record: lines stored as they arrive, what is reported, and what ends a recording: bad lines, signals, failures."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.simdisk import SimDisk
from scopelog import LogPoisoned, OutcomeUnknown, Store, WriteFailed, list_of
from scopelog.cli.arrival import Arrival, Stop
from scopelog.cli.progress import Counts
from scopelog.cli.recording import Recorder
from scopelog.cli.targets import ListTarget

from .cli_rig import call, elements, lines_file, objects, refused, spawn, started


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b'{"secret":', "line 3 is not JSON (at character 11)"),
        (b"NaN", "line 3 holds a number that is not JSON"),
        (b"1e999", "line 3 was refused: inf is not JSON"),
        (b'"\xff"', "line 3 is not UTF-8 (at byte 2)"),
        (b"1\0", "line 3 is not JSON: it holds a zero byte"),
        (b"[" * 300 + b"]" * 300, "line 3 was refused: the element nests deeper than 256"),
        (b"[" * 100_000, "line 3 is nested too deep"),
        (b"1" * 5000, "line 3 holds a number"),
        (rb'"\ud83d' + rb"\ude00 secret", "line 3 is not JSON"),
    ],
)
def test_a_bad_line_ends_the_recording_with_those_before_it_stored(
    store_path: Path, tmp_path: Path, line: bytes, cause: str
) -> None:
    result = call("record", store_path, "s", lines_file(tmp_path, b"1", b"2", line, b"4"), "--json")
    refused(result, 2, cause)
    assert "secret" not in result.stderr
    assert objects(result.stdout_bytes)[-1]["stopped"] == "error"
    assert objects(result.stdout_bytes)[-1]["written"] == 2
    assert elements(store_path) == [1, 2]


def test_json_progress_says_what_is_stored_and_what_it_cost(store_path: Path, tmp_path: Path) -> None:
    file = lines_file(tmp_path, *(b"%d" % n for n in range(500)), b"")
    reports = objects(call("record", store_path, "s", file, "--json", "--window", 0).stdout_bytes)
    written = [report["written"] for report in reports[:-1]]
    assert written == sorted(set(written)) and written[-1] == 500
    last = reports[-1]
    assert (last["done"], last["stopped"], last["lines"], last["written"], last["seq"]) == (True, "end", 500, 500, 500)
    assert last["bytes_in"] == file.stat().st_size
    assert last["bytes_written"] >= next(store_path.glob("*/main.zst")).stat().st_size
    assert 1 <= last["frames"] <= 500 and last["syncs"] >= 1 and last["torn_bytes"] == 0


def test_lines_are_stored_as_they_arrive(store_path: Path) -> None:
    """Standard input stays open: a reader that waits for a full buffer, or for the end, would never report."""
    with started("record", store_path, "s", "--json", "--window", 0) as (child, stdin, stdout, _):
        for n in (1, 2, 3):
            stdin.write(b"%d\n" % n)
            stdin.flush()
            assert json.loads(stdout.readline())["written"] == n
            assert elements(store_path) == list(range(1, n + 1))  # the session is live: cat takes no lock
        stdin.write(b"4")
        stdin.close()
        assert json.loads(stdout.readlines()[-1])["written"] == 4
        assert child.wait(timeout=60) == 0
    assert elements(store_path) == [1, 2, 3, 4]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_recording_cleanly(store_path: Path, number: signal.Signals, code: int) -> None:
    with started("record", store_path, "s", "--json", "--window", 60_000) as (child, stdin, stdout, stderr):
        stdin.write(b"1\n" * 40_000)  # more than the pipe holds: once this returns, the recorder has begun to read
        stdin.flush()
        child.send_signal(number)
        report = json.loads(stdout.readlines()[-1])
        assert stderr.read() == b""
        assert child.wait(timeout=60) == code
    assert report["stopped"] == number.name
    assert report["written"] == report["lines"] == len(elements(store_path)) > 0
    with Store.open(store_path, create=False) as store, store.session("s") as session:
        assert session.recovery.clean


def test_a_reader_of_reports_that_goes_away_does_not_stop_the_recording(store_path: Path) -> None:
    with started("record", store_path, "s", "--json", "--window", 0) as (child, stdin, stdout, stderr):
        stdout.close()
        stdin.write(b"1\n2\n")
        stdin.close()
        assert stderr.read() == b""
        assert child.wait(timeout=60) == 0
    assert elements(store_path) == [1, 2]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Two ends: to read from, and to write into."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("operation", "failure"), [("pwrite", WriteFailed), ("sync", (OutcomeUnknown, LogPoisoned))])
def test_a_failure_is_raised_though_no_more_input_comes(
    pipe: tuple[int, int], operation: str, failure: type[Exception] | tuple[type[Exception], ...]
) -> None:
    """The window fails on the flusher's thread while the recorder waits for a line that never comes."""
    disk = SimDisk()
    told: list[Counts] = []
    with Store.open("/store", fs=disk, window_ms=0) as store, Stop() as stop:
        session = store.session("s")
        session.commit([list_of("n", "k").append("before")])
        disk.fail(operation, persistent=True, path="main.zst")
        recorder = Recorder(session, ListTarget(session, None, "n", "k"), Listener(told), 0)
        os.write(pipe[1], b"1\n2\n")
        with pytest.raises(failure):
            recorder.run(Arrival(pipe[0], stop.wake), stop)
        disk.heal()
        assert (recorder.counts.lines, recorder.counts.written) == (2, 0)
        assert all(counts.written == 0 for counts in told)
        if operation == "pwrite":
            session.close()  # space has come back
            assert session.durable_seq() == 3
        else:
            with pytest.raises(LogPoisoned):
                session.close(force=True)


@pytest.mark.timeout(60)
def test_a_window_that_fails_once_is_stored_at_the_second_try(pipe: tuple[int, int]) -> None:
    disk = SimDisk()
    with Store.open("/store", fs=disk, window_ms=0) as store, Stop() as stop:
        session = store.session("s")
        session.commit([list_of("n", "k").append("before")])
        disk.fail("pwrite", path="main.zst")
        told: list[Counts] = []
        listener = Listener(told, stop_at=2)
        os.write(pipe[1], b"1\n2\n")
        recorder = Recorder(session, ListTarget(session, None, "n", "k"), listener, 0)
        recorder.run(Arrival(pipe[0], stop.wake), stop)
        assert stop.signal == signal.SIGTERM
        assert [element.element for element in session.read(list_of("n", "k"))] == ["before", 1, 2]


class Listener:
    """A progress that keeps what it is told, and ends the recording once so many lines are written."""

    def __init__(self, told: list[Counts], stop_at: int = 0) -> None:
        self._told = told
        self._stop_at = stop_at

    def update(self, counts: Counts) -> bool:
        self._told.append(replace(counts))
        if self._stop_at and counts.written == self._stop_at:
            signal.raise_signal(signal.SIGTERM)
        return True

    def finish(self, counts: Counts, stopped: str) -> None:
        raise AssertionError(f"not called by run: {counts}, {stopped}")


def test_a_disk_that_takes_no_more_is_said(store_path: Path) -> None:
    """A limit on the file's size: writes fail as on a full disk. What was reported written is there."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    lines = [json.dumps({"n": n, "noise": os.urandom(500).hex()}).encode() for n in range(200)]
    result = spawn("record", store_path, "s", "--json", "--window", 0, stdin=b"\n".join(lines), preexec_fn=limit)
    assert result.returncode == 3, result.stderr
    assert b"error: " in result.stderr and b"hint: " in result.stderr and b"Traceback" not in result.stderr
    reports = objects(result.stdout)
    kept = elements(store_path) if next(store_path.glob("*/main.zst"), None) else []
    assert reports[-1]["stopped"] == "error"
    assert reports[-1]["written"] <= len(kept) < len(lines)
    assert kept == [json.loads(line) for line in lines[: len(kept)]]


def test_a_session_that_another_process_writes(store_path: Path, tmp_path: Path) -> None:
    file = lines_file(tmp_path, b"1")
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([list_of("record", "lines").append(0)])
        result = spawn("record", store_path, "s", file)
        assert result.returncode == 4
        assert f"process {os.getpid()}".encode() in result.stderr
        assert spawn("rm", store_path, "s", "--yes").returncode == 4
        assert elements(store_path) == [0]
    assert spawn("record", store_path, "s", file).returncode == 0
    assert elements(store_path) == [0, 1]
