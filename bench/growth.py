"""What compaction by itself costs and gives back: ``python -m bench.growth [commits]``.

Commits of 300 random bytes, at PROCESS, to one of a hundred values (nearly all is void) and to a list (nothing is),
without compaction and with ``compact_growth`` 2 and 4, each in a store of its own.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time

from scopelog import Durability, Store, list_of, value

COMMITS = 100_000


def main(commits: int) -> None:
    """A line each: what was handed to the OS, what the log takes in the end, and the time."""
    for kind in ("values", "list"):
        for growth in (0.0, 2.0, 4.0):
            chance = random.Random(7)
            with tempfile.TemporaryDirectory() as folder, Store.open(folder, durability=Durability.PROCESS) as store:
                session = store.session("s", compact_growth=growth)
                began = time.perf_counter()
                for number in range(commits):
                    text = chance.randbytes(150).hex()
                    if kind == "values":
                        session.commit([value("n", f"k{number % 100}").set(text)])
                    else:
                        session.commit([list_of("n", "k").append(text)])
                took = time.perf_counter() - began
                written = int(session.stats()["bytes_written"])
                session.close()
                with store.reader("s") as reader:
                    left = reader.stats()["main_bytes"]
                each = took / commits * 1e6
                print(f"{kind:6} growth {growth:g}: {written:12,} written, {left:12,} left, {each:6.1f} us")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) == 2 else COMMITS)
