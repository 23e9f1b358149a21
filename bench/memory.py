"""M1: memory above an interpreter that has imported what it needs, each figure from a process of its own.

``python -m bench.memory idle NAME DIR COUNT LIMIT`` opens COUNT sessions, writes a little to each and lets them idle;
LIMIT is the number of file handles it may have (0: as many as it gets). It prints the bytes of memory that the first
one took, the first tenth, and all of them. ``stream`` streams COUNT deltas, and prints by how much memory grew at most
after the first tenth.
"""

from __future__ import annotations

import gc
import json
import resource
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple

from scopelog import Store, ephemeral, list_of

from .probe import ChildFailed
from .results import Row, Skipped
from .run import Run, say_json
from .workloads import join_text

_HANDLES: Final = 1_024
_KB: Final = 1_024
_MB: Final = 1_024 * 1_024
_EACH: Final = 150  # KB a session, MB a thousand
_PENDING_BOUND: Final = 4 * _MB  # what may wait in one session
_ROLLUP: Final = Path("/proc/self/smaps_rollup")  # exact, unlike the counters of /proc/self/status


class Memory(NamedTuple):
    """Bytes. ``anonymous``: what is no page of a file, such as program code."""

    resident: int
    anonymous: int

    def less(self, other: Memory) -> Memory:
        return Memory(self.resident - other.resident, self.anonymous - other.anonymous)


def memory_now() -> Memory:
    """Of this process."""
    fields = dict(line.split(":") for line in _ROLLUP.read_text().splitlines()[1:])
    return Memory(*(int(fields[name].split()[0]) * _KB for name in ("Rss", "Anonymous")))


# --- the children -----------------------------------------------------------------------------------


def _idle_scopelog(where: Path, count: int, stack: ExitStack) -> Iterator[None]:
    store = stack.enter_context(Store.open(where / "store"))
    messages, text = list_of("chat", "messages"), ephemeral("op").list_of("chat", "text")
    for number in range(count):
        session = stack.enter_context(store.session(f"s-{number}"))
        session.commit([messages.append({"role": "user", "text": "hi"})])
        session.append(text, {"d": "hello"})
        session.commit([messages.append({"role": "assistant", "text": "hello"}), ephemeral("op").retire()])
        yield


def _idle_sqlite(where: Path, count: int, stack: ExitStack) -> Iterator[None]:
    for number in range(count):
        db = stack.enter_context(closing(sqlite3.connect(where / f"{number}.db", isolation_level=None)))
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, body TEXT)")
        for text in ("hi", "hello"):
            db.execute("INSERT INTO messages (body) VALUES (?)", (json.dumps({"text": text}),))
        yield


Opening = Callable[[Path, int, ExitStack], Iterator[None]]
_IDLE: Final[dict[str, Opening]] = {"scopelog": _idle_scopelog, "sqlite": _idle_sqlite}


def idle(name: str, where: Path, count: int) -> list[Memory]:
    """What the first of so many open sessions took, the first tenth of them, and all."""
    memory_now()
    gc.collect()
    before = memory_now()
    taken: list[Memory] = []
    with ExitStack() as stack:
        for number, _ in enumerate(_IDLE[name](where, count, stack), 1):
            if number in (1, count // 10, count):
                gc.collect()
                taken.append(memory_now().less(before))
    return taken


def stream(where: Path, count: int) -> Memory:
    """The most that is taken from the first tenth of the stream on, above what was taken then."""
    seen: list[Memory] = []
    with Store.open(where / "store") as store, store.session("s") as session:
        text = ephemeral("op").list_of("chat", "text", coalescer=join_text)
        for n in range(count):
            session.append(text, {"d": f" word{n * 7919 % 9973}"})
            if n * 10 >= count and n * 100 % count == 0:
                seen.append(memory_now())
        seen.append(memory_now())
    return max(seen).less(seen[0])


def main(arguments: Sequence[str]) -> None:
    what, name, where, count, handles = arguments
    most = int(handles) or resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    say_json(idle(name, Path(where), int(count)) if what == "idle" else [stream(Path(where), int(count))])


# --- the rows ---------------------------------------------------------------------------------------


def memory(run: Run) -> list[Row | Skipped]:
    """M1: the rows."""
    if not _ROLLUP.exists():
        return [Skipped("M1", f"this machine has no {_ROLLUP}")]
    many, deltas = run.size(1_000, 20), run.size(1_000_000, 2_000)
    return [*_idle(run, many), *_stream(run, deltas)]


def _growth(run: Run, what: str, name: str, count: int, handles: int) -> list[Memory]:
    with run.directory() as where:
        return [Memory(*taken) for taken in run.child("memory", what, name, where, count, handles)]


def _idle(run: Run, many: int) -> list[Row | Skipped]:
    """One session among many: the first ones use up what the imports have left free."""
    run.say("M1 idle sessions")
    taken = {name: _growth(run, "idle", name, many, 0) for name in _IDLE}
    each = {
        name: all_of_them.less(tenth).resident / (many - many // 10) / _KB
        for name, (_, tenth, all_of_them) in taken.items()
    }
    first = {name: sizes[0] for name, sizes in taken.items()}
    note = f"{first['scopelog'].anonymous // _KB} KB without pages of files: the libraries that it is the first to use"
    rows: list[Row | Skipped] = [
        Row(
            "M1 an idle session",
            each["scopelog"],
            "",
            0,
            "KB",
            _EACH,
            note=f"each of {many:,}, the first tenth left out",
        ),
        Row("M1 an idle session", each["scopelog"], "sqlite", each["sqlite"], "KB"),
        Row(
            "M1 the first session",
            first["scopelog"].resident / _KB,
            "sqlite",
            first["sqlite"].resident / _KB,
            "KB",
            note=note,
        ),
    ]
    measure = f"M1 {many:,} idle sessions"
    try:
        ours = _growth(run, "idle", "scopelog", many, _HANDLES)[-1].resident / _MB
    except ChildFailed as failure:
        reason = str(failure).strip().splitlines()[-1]
        return [*rows, Skipped(measure, f"not with {_HANDLES:,} file handles: {reason}")]
    theirs = taken["sqlite"][-1].resident / _MB
    return [
        *rows,
        Row(measure, ours, "", 0, "MB", _EACH, note=f"with {_HANDLES:,} file handles"),
        Row(measure, ours, "sqlite", theirs, "MB", note="which needs three handles each"),
    ]


def _stream(run: Run, deltas: int) -> list[Row | Skipped]:
    measure = f"M1 growth, {deltas // 10:,} to {deltas:,} deltas"
    run.say(measure)
    (grown,) = _growth(run, "stream", "scopelog", deltas, _HANDLES)
    note = "flat out; target: what may wait, and as much being written"
    return [Row(measure, grown.resident / _KB, "", 0, "KB", 2 * _PENDING_BOUND / _KB, note=note)]


if __name__ == "__main__":
    main(sys.argv[1:])
