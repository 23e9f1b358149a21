"""L5: one delta into a long message, against one into a short message, both alive in one process.

``python -m bench.deltas NAME DIR SHORT LONG`` streams a message of SHORT deltas and one of LONG, then times further
ones in turns, and says the seconds each took, median and mean. NAME is ``reducer``: fold, track and encode, nothing is
stored; or ``lane``: a response takes the frame, and what has changed of it is staged for the store.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Final

from scopelog import Json, ManualClock, Store
from scopelog.clients.messages import Lane, apply_frame
from scopelog.delta import Encoder, track

from .frames import opening, text_delta
from .results import Row, Skipped
from .run import Run, say_json

_CHUNK: Final = 20  # deltas that are timed together
_CHUNKS: Final = 150  # of each message; so few that the short message stays short
_WINDOW_MS: Final = 200
_PER_WINDOW: Final = 25  # deltas: one each 8 ms
_TARGET: Final = 1.3

Take = Callable[[Json], object]
Pause = Callable[[], object]
"""What is done between chunks, not timed."""


@contextmanager
def _reducers(_where: Path) -> Iterator[tuple[list[Take], Pause]]:
    def made() -> Take:
        tracker, encoder = track({"streamingMessage": None, "frameState": []}), Encoder()
        tracker.flush()
        state = tracker.state

        def take(frame: Json) -> None:
            apply_frame(state, frame)
            encoder.encode(tracker.flush())

        return take

    yield [made(), made()], lambda: None


@contextmanager
def _lanes(where: Path) -> Iterator[tuple[list[Take], Pause]]:
    clock = ManualClock()
    with Store.open(where / "store", window_ms=_WINDOW_MS, clock=clock) as store:
        sessions = [store.session(name) for name in ("short", "long")]
        responses = [Lane(session).begin("op").response("r") for session in sessions]
        yield [response.take for response in responses], lambda: clock.advance(_WINDOW_MS / 1000)
        for session in sessions:
            session.close()


CONTESTANTS: Final = {"reducer": _reducers, "lane": _lanes}


def _frames(count: int) -> Iterator[Json]:
    return (text_delta(f" word{n * 7919 % 9973}") for n in range(count))


def measured(name: str, where: Path, short: int, long: int, chunks: int) -> dict[str, list[float]]:
    """Seconds a delta takes, by median and mean: into the short message, into the long one."""
    with CONTESTANTS[name](where) as (takes, pause):
        for take, count in zip(takes, (short, long), strict=True):
            for frame in opening(0):
                take(frame)
            for n, frame in enumerate(_frames(count)):
                take(frame)
                if n % _PER_WINDOW == 0:
                    pause()
        taken: list[list[float]] = [[], []]
        chunk = list(_frames(_CHUNK))
        for turn in range(chunks):
            for which in (0, 1) if turn % 2 else (1, 0):
                pause()
                take = takes[which]
                started = time.perf_counter()
                for frame in chunk:
                    take(frame)
                taken[which].append((time.perf_counter() - started) / _CHUNK)
    return {"median": [median(times) for times in taken], "mean": [fmean(times) for times in taken]}


def growing(run: Run) -> list[Row | Skipped]:
    """L5: the rows."""
    short, long, chunks = run.size(10_000, 100), run.size(1_000_000, 500), run.size(_CHUNKS, 5)
    rows: list[Row | Skipped] = []
    for name, what in (("reducer", "fold + track + encode"), ("lane", "the same, staged in a store")):
        run.say(f"L5 {what}")
        with run.directory() as where:
            found = run.child("deltas", name, where, short, long, chunks)
        (theirs, ours), means = ([seconds * 1e6 for seconds in found[kind]] for kind in ("median", "mean"))
        note = f"{what}; means {means[1]:.2f} and {means[0]:.2f}"
        measure = f"L5 a delta into {long:,}"
        rows.append(Row(measure, ours, f"scopelog, into {short:,}", theirs, "us", _TARGET, note=note))
    return rows


def main(arguments: Sequence[str]) -> None:
    name, where, *counts = arguments
    say_json(measured(name, Path(where), *map(int, counts)))


if __name__ == "__main__":
    main(sys.argv[1:])
