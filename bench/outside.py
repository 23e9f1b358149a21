"""A command measured from outside, by a process that is itself small; and who lists sessions without scopelog.

``python -m bench.outside run OUTPUT COMMAND ...`` runs a command whose standard output goes to the file OUTPUT, and
prints its wall time, the most memory it had and its exit status. A process starts out with the memory of the one that
started it counted as its own, so that nobody large can measure it. ``python -m bench.outside NAME DIR`` lists. Only
what listing needs is imported here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

WALK: Final = "walk of directories"
TABLE: Final = "sqlite, a table"
NOTHING: Final = "nothing: the interpreter's start"


def run(output: str, command: Sequence[str]) -> None:
    started = time.perf_counter()
    child = os.fork()
    if not child:
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
        os.execv(command[0], list(command))
    _, status, usage = os.wait4(child, 0)
    print(time.perf_counter() - started, usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status))


def _walk(where: str) -> None:
    store = os.path.join(where, "store")
    for entry in os.scandir(store):
        if entry.is_dir() and entry.name.endswith(".session"):
            size = sum(file.stat().st_size for file in os.scandir(entry.path))
            print(entry.name, size, entry.stat().st_mtime, sep="\t")


def _table(where: str) -> None:
    import sqlite3

    for row in sqlite3.connect(os.path.join(where, "sessions.db")).execute("SELECT * FROM sessions ORDER BY id"):
        print(*row, sep="\t")


def _nothing(_where: str) -> None:
    pass


LISTERS: Final[dict[str, Callable[[str], None]]] = {WALK: _walk, TABLE: _table, NOTHING: _nothing}


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if what == "run":
        run(where, rest)
    else:
        LISTERS[what](where)
