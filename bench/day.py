"""A day of one operation: a tool that puts out ten million pieces and checkpoints a hundred thousand times.

``python -m bench.day [pieces] [checkpoints]`` prints what its scope took on disk at most, and how the process grew.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from scopelog import Store
from scopelog.clients.messages import Lane, recover

PIECES = 10_000_000
CHECKPOINTS = 100_000


def main(pieces: int, checkpoints: int) -> None:
    """One tool, its output kept to the last 50 KiB."""
    every = pieces // checkpoints
    with tempfile.TemporaryDirectory() as folder, Store.open(folder) as store, store.session("day") as session:
        sink = Lane(session).begin("op").tool("call")
        directory = next(Path(folder).glob("*.session"))
        most, resident, written = 0, 0, 0
        began = time.perf_counter()
        for number in range(pieces):
            sink.write(f"piece {number} of the day\n")
            if number % every == 0:
                sink.checkpoint({"at": number})
            if number % (pieces // 200) == 0:
                most = max(most, sum(_length(entry.path) for entry in os.scandir(directory)))
                if number == pieces // 10:
                    resident = _resident()
        written = int(session.stats()["bytes_written"])
        took = time.perf_counter() - began
        (found,) = recover(session)
        assert found.tools[0].output["text"] == sink.text
        print(f"pieces {pieces:,}, checkpoints {checkpoints:,}: {took:,.0f} s, {took / pieces * 1e6:.1f} us a piece")
        print(f"bytes written {written:,}; most on disk {most:,}; in the end {_total(directory):,}")
        print(f"resident {resident:,} KiB after a tenth, at most {_resident():,} KiB")


def _length(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except FileNotFoundError:  # renamed meanwhile
        return 0


def _total(directory: Path) -> int:
    return sum(_length(entry.path) for entry in os.scandir(directory))


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:])) if len(sys.argv) == 3 else main(PIECES, CHECKPOINTS)
