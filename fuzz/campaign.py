"""The pytest plugin of the fault campaign: how far a test goes, where its randomness starts, what it has counted.

A test of a fault is marked with the rows of the matrix that it provokes (see :mod:`fuzz.matrix`) and may take the
fixture ``campaign``. In an ordinary run it does a slice that is small and always the same; in a campaign it does
everything, and its random part goes on for a while. The environment decides:

=========================  =========================================================================
SCOPELOG_FAULTS=1          a campaign: ``campaign.full`` is true, ``seeds`` goes on for SCOPELOG_SECONDS
SCOPELOG_SECONDS=s         how long each random part goes on, in seconds (10)
SCOPELOG_SEED=n            the first seed (0)
SCOPELOG_FAULTS_REPORT=f   append one line of JSON a test to this file
=========================  =========================================================================
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from fuzz.matrix import RIGS, ROWS

__all__ = ["Campaign"]


@dataclass
class Campaign:
    """What one test may do and has done. ``seed``: where randomness starts; ``full``: everything, not only a slice."""

    seed: int
    full: bool
    seconds: float
    cases: dict[int, int] = field(default_factory=dict)
    seeds_used: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: tuple[int, ...] = ()

    def count(self, cases: int = 1, rows: tuple[int, ...] | None = None) -> None:
        """So many cases were provoked and held against the invariants, of ``rows`` (those of the mark)."""
        for row in self.rows if rows is None else rows:
            self.cases[row] = self.cases.get(row, 0) + cases

    def note(self, text: str) -> None:
        """Something measured that belongs in the table of results, in a few words."""
        self.notes.append(text)

    def seeds(self, few: int) -> Iterator[int]:
        """Seeds of a random part: ``few`` of them in an ordinary run, as many as fit the time in a campaign.

        A failure names the seed: the same test with SCOPELOG_SEED set to it begins with it.
        """
        seed, end = self.seed, time.monotonic() + self.seconds
        while time.monotonic() < end if self.full else seed < self.seed + few:
            self.seeds_used.append(seed)
            yield seed
            seed += 1


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(*rows, rig): the test provokes these rows of the fault matrix")


def _marks(item: pytest.Item) -> dict[int, str]:
    """The rows that a test provokes, and by which rigs."""
    rows: dict[int, str] = {}
    for mark in item.iter_markers("fault"):
        for row in mark.args:
            rows[row] = "".join(sorted({*rows.get(row, ""), str(mark.kwargs["rig"])}))
    return rows


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        found = _marks(item)
        if not (set(found) <= set(ROWS) and set("".join(found.values())) <= set(RIGS)):
            raise pytest.UsageError(f"{item.nodeid}: no such row or rig: {found}")


@pytest.fixture
def campaign(request: pytest.FixtureRequest) -> Campaign:
    made = Campaign(
        seed=int(os.environ.get("SCOPELOG_SEED") or 0),
        full=bool(os.environ.get("SCOPELOG_FAULTS")),
        seconds=float(os.environ.get("SCOPELOG_SECONDS") or 10),
        rows=tuple(sorted(_marks(request.node))),
    )
    request.node.stash[_CAMPAIGN] = made
    return made


_CAMPAIGN = pytest.StashKey[Campaign]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    made = item.stash.get(_CAMPAIGN, None)
    if made is not None and report.failed and made.seeds_used:
        again = f"SCOPELOG_SEED={made.seeds_used[-1]} python -m pytest '{item.nodeid}'"
        report.sections.append(("seed", again))
    path, rows = os.environ.get("SCOPELOG_FAULTS_REPORT"), _marks(item)
    if not path or not rows or not (report.when == "call" or report.failed or report.skipped):
        return
    cases = dict.fromkeys(rows, 1) if made is None or not made.cases else made.cases
    line = {
        "test": item.nodeid,
        "rigs": rows,
        "cases": cases if report.passed else {row: cases.get(row, 0) if report.failed else 0 for row in rows},
        "outcome": report.outcome,
        "reason": report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else "",
        "seconds": round(report.duration, 3),
        "seeds": [min(made.seeds_used), max(made.seeds_used)] if made is not None and made.seeds_used else [],
        "notes": made.notes if made is not None else [],
    }
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
