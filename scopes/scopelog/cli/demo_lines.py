"""The story of any stream of JSON lines: record, kill the recorder half-way, recover, and go on behind what is there.

It is broken if a line that had been reported written is missing afterwards, or comes back changed.
"""

from __future__ import annotations

from pathlib import Path

from ..addresses import list_of
from ..store import Store
from .arrival import Line
from .demo_child import Recorder, pace_of
from .demo_show import (
    SESSION,
    STORE,
    WINDOW_MS,
    Broken,
    clean_up,
    say,
    show_cost,
    show_findings,
    step,
    title,
)
from .output import as_json, count
from .recording import parse


def run(stream: Path, lines: list[bytes]) -> None:
    """The whole story. Raises :class:`Broken`, :class:`ScopelogError` or :class:`OSError`."""
    clean_up()
    title(stream, lines, "line")

    half = max(1, len(lines) // 2)
    step(1, f"record the first half: {pace_of(half)}, stored together by windows of {WINDOW_MS} ms")
    fed_at: list[float] = []
    first = Recorder()
    first.feed(lines[:half], fed_at)
    killed_at = first.kill()
    reported = int(first.last["written"])
    say(f"process {first.process.pid} was killed with SIGKILL after {count(half, 'line')}")

    step(2, f"scopelog check {STORE}")
    show_findings()

    step(3, "recover: open the session again")
    kept = recover(lines, half, reported)
    lost = half - kept
    say(f"{half:>7,} lines fed to the recorder")
    say(f"{reported:>7,} lines it had reported written")
    say(f"{kept:>7,} lines kept: every one of those, unchanged and in order")
    age = f", the oldest fed {(killed_at - fed_at[kept]) * 1000:.0f} ms before the kill" if lost else ""
    say(f"{lost:>7,} lines lost{age}; at most a window of {WINDOW_MS} ms and its sync may be")

    second = None
    if kept < len(lines):
        step(4, f"record the remaining {count(len(lines) - kept, 'line')} behind them, and close")
        second = Recorder()
        second.feed(lines[kept:], [])
        second.finish()
    compare(lines, len(lines))
    say(f"{len(lines):>7,} lines in the session, as they were in the stream")
    show_findings()

    step(5, "what it cost")
    show_cost(sum(len(line) + 1 for line in lines), len(lines), [first.last] + ([second.last] if second else []))


def recover(lines: list[bytes], fed: int, reported: int) -> int:
    """Open for writing, say what recovery did, and compare what is there; returns how many lines were kept."""
    show_torn()
    kept = compare(lines, fed)
    if kept < reported:
        raise Broken(f"{reported} lines had been reported written, {kept} are there")
    return kept


def compare(lines: list[bytes], at_most: int) -> int:
    """How many lines the session holds. Raises :class:`Broken` unless they are the first ones of the stream."""
    with Store.open(STORE, create=False) as store, store.reader(SESSION) as reader:
        elements = reader.read(list_of("record", "lines"))
    if len(elements) > at_most:
        raise Broken(f"{len(elements)} lines are there, only {at_most} were fed")
    for number, (line, element) in enumerate(zip(lines, elements, strict=False), 1):
        if as_json(parse(Line(number, line))) != as_json(element.element):
            raise Broken(f"line {number} came back changed")
    return len(elements)


def show_torn() -> None:
    """Open for writing, and say what that cut."""
    with Store.open(STORE, create=False) as store, store.session(SESSION) as session:
        report = session.recovery
    for tail in report.torn:
        say(f"torn tail: {count(tail.length, 'byte')} cut at offset {tail.offset:,}, kept in {Path(tail.kept).name}")
    if not report.torn:
        say("no torn tail: the log ends with a whole frame, nothing was cut")
