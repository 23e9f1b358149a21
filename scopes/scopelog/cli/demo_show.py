"""What both stories of the demonstration share: where they record, what they say, what it cost."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final

from ..errors import InvalidInput
from ..store import Store
from .output import count

STORE: Final = Path("demo-store")
SESSION: Final = "demo"
WINDOW_MS: Final = 100
BLOCK: Final = 4096  # what the disk writes at least for a sync


class Broken(Exception):
    """The demonstration cannot go on, or has shown that something is wrong."""


class Refused(InvalidInput):
    """The stream cannot be used; nothing was recorded."""


def clean_up() -> None:
    """Remove the store of an earlier demonstration, and nothing else."""
    if STORE.exists():
        if any(STORE.iterdir()) and not (STORE / "store.zst").exists():
            raise Broken(f"{STORE} exists and is not a store: remove it yourself")
        shutil.rmtree(STORE)


def title(stream: Path, lines: list[bytes], what: str) -> None:
    size = count(sum(len(line) + 1 for line in lines), "byte")
    say(f"scopelog demo: a stream of {count(len(lines), what)}, {size} as JSON lines ({stream.name})")


def show_findings() -> None:
    with Store.open(STORE, create=False) as store:
        findings = store.check()
    for found in findings:
        say(f"{found.severity}: {Path(found.path).name}, offset {found.offset:,}, {found.reason}: {found.detail}")
    severities = {found.severity for found in findings}
    if "corrupt" in severities:
        raise Broken("the store is corrupt")
    say("torn: an un-synced tail, which recovery cuts and keeps aside" if "torn" in severities else "sound")


def show_cost(raw: int, lines: int, runs: list[dict[str, Any]]) -> None:
    """Of both recorders; of the killed one as it stood at its last report."""

    def total(name: str) -> float:
        return sum(float(run.get(name, 0)) for run in runs)

    syncs, spent = int(total("syncs")), total("sync_seconds")
    logs = [path for path in STORE.rglob("*.zst") if path.name != "store.zst"]
    on_disk = sum(path.stat().st_size for path in logs)
    out = int(total("bytes_written"))
    each = spent / syncs if syncs else 0.0
    say(f"{'':28}{'scopelog':>14}{'JSONL, a sync a line':>24}")
    say(f"{'bytes kept on disk':28}{on_disk:>14,}{raw:>24,}   {on_disk / raw:.0%}")
    say(f"{'bytes handed to the system':28}{out:>14,}{raw:>24,}")
    say(f"{'frames':28}{int(total('frames')):>14,}{'-':>24}")
    say(f"{'syncs':28}{syncs:>14,}{lines:>24,}")
    say(f"{'waiting for syncs, ms':28}{spent * 1000:>14,.1f}{each * lines * 1000:>24,.1f}")
    say(f"{'least the disk writes':28}{max(syncs * BLOCK, out):>14,}{max(lines * BLOCK, raw):>24,}")
    say("The left column is both recorders together, the killed one up to its last report (recovery is not counted).")
    say("The right column is computed, not measured: one sync for each line, each as long as the mean one of this run")
    say(f"({each * 1000:.2f} ms), and at least one block of {BLOCK:,} bytes for each.")


def step(number: int, what: str) -> None:
    say(f"\n{number}. {what}")


def say(text: str) -> None:
    sys.stdout.write(f"   {text}\n" if text and not text.startswith(("\n", "scopelog demo")) else f"{text}\n")
    sys.stdout.flush()
