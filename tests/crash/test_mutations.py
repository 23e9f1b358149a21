"""Every byte of real logs cut, zeroed, flipped bit by bit; zeros, junk, frames of elsewhere in all places of them.

Stores of eight shapes; what must become of each mutation is worked out from the pristine bytes (fuzz/verdicts.py).
A failure begins with the shape and the mutation's name; fuzz/mutation_rig.py tells how to see it again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from fuzz.campaign import Campaign
from fuzz.mutation_rig import SAME, Bed, RealBed, SimBed, hold
from fuzz.mutations import FAMILIES, damage, placements, several
from fuzz.shapes import SHAPES, Shape, shape
from fuzz.verdicts import BELOW, CORRUPT, FOREIGN, HEADER, LIVE, TORN

SMALL: Final = ("talk", "closed", "reserved", "process", "lives", "compacted", "stretches", "stretches-lives")
SHARED_MEMORY: Final = Path("/dev/shm")
FULL: Final = {"reserved": 3, "process": 3, "lives": 3, "stretches": 13, "stretches-lives": 17}
"""Of some shapes a campaign does every n-th; of the others all. Coprime to 8: every bit of a byte has its turn."""
MORE_OF: Final = {"flips": 1, "tails": 9, "foreign": 3}
SLICE: Final = {"lives": 541, "stretches": 1499, "stretches-lives": 2999}
MEETS: Final = {
    "talk": {HEADER, CORRUPT, TORN},
    "closed": {HEADER, CORRUPT, TORN},
    "reserved": {HEADER, CORRUPT, TORN},
    "process": {HEADER, CORRUPT, TORN},
    "lives": {HEADER, CORRUPT, TORN},
    "compacted": {HEADER, CORRUPT, TORN},
    "stretches": {HEADER, BELOW, TORN},
    "stretches-lives": {HEADER, BELOW, TORN},
}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A line a recovery, a hundred thousand times, is kept by nobody."""
    caplog.set_level(logging.CRITICAL, "scopelog_engine")


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealBed]:
    """A directory in memory where there is one: what is tried is the code above the disk."""
    if not SHARED_MEMORY.is_dir():
        yield RealBed(tmp_path / "store")
        return
    with TemporaryDirectory(dir=SHARED_MEMORY, prefix="mutations-") as path:
        yield RealBed(Path(path) / "store")


def row_of(family: str, name: str, verdict: str) -> int:
    """The row of the fault matrix that a mutation of a log's bytes belongs to."""
    if family in ("misplaced", "foreign"):
        return 10
    if family == "flips":
        return 9
    if verdict in (CORRUPT, BELOW, HEADER):
        return 8
    return {"zeroed": 5, "cuts": 4, "holes": 7, "tails": 6 if ":zeros:" in name else 5}[family]


def bed_of(one: Shape) -> SimBed:
    return SimBed(preallocates=one.name == "reserved")


def run(campaign: Campaign, one: Shape, cases: Iterable[tuple[str, str]], bed: Bed, every: int) -> Counter[str]:
    """Hold each case, of a family and a name, and count it; ``every`` n-th is followed on to appends and reopening."""
    met: Counter[str] = Counter()
    for number, (family, name) in enumerate(cases):
        verdict = hold(one, name, bed, deep=number % every == 0)
        met[verdict] += 1
        if verdict != SAME:
            campaign.count(rows=(row_of(family, name, verdict),))
    return met


def damaged(one: Shape, stride: int) -> Iterator[tuple[str, str]]:
    """Every stride-th flip of each log; of families that are small against the flips, more."""
    for log in one.logs.values():
        for family in FAMILIES:
            step = max(1, stride // MORE_OF.get(family, 2))
            yield from ((family, name) for name in damage(one, log, [family], step))


@pytest.mark.fault(4, 5, 6, 7, 8, 9, 10, rig="M")
@pytest.mark.parametrize("name", SMALL)
def test_damaged_bytes(name: str, campaign: Campaign) -> None:
    """Opens unaided with a prefix of whole commits, or refuses and changes nothing; nothing is cut that is not kept."""
    one = shape(name)
    stride = FULL.get(name, 1) if campaign.full else SLICE.get(name, 307)
    met = run(campaign, one, damaged(one, stride), bed_of(one), 7 if campaign.full else 3)
    assert {*met} >= MEETS[name], f"{met}: too little was met"


@pytest.mark.damages
@pytest.mark.fault(4, 5, 6, 7, 8, 9, 10, rig="M")
@pytest.mark.parametrize("name", SMALL)
def test_damaged_bytes_of_real_files(name: str, campaign: Campaign, real: RealBed) -> None:
    """A sample of the same on a real file system, where descriptors, locks and directories are the system's."""
    one = shape(name)
    stride = 53 * FULL.get(name, 1) if campaign.full else 7 * SLICE.get(name, 307)
    run(campaign, one, damaged(one, stride), real, 3)


@pytest.mark.fault(7, 8, 10, rig="M")
def test_damaged_bytes_of_a_long_log(campaign: Campaign) -> None:
    """Stretches of 64 KiB, frames of several KiB: runs of zeros of up to 64 KiB over many of them."""
    one = shape("long")
    cases = ((family, name) for family in ("holes", "tails", "misplaced") for name in damage(one, one.main, [family]))
    stride = 41 if campaign.full else 2111
    met = run(campaign, one, islice(cases, 0, None, stride), SimBed(), 3)
    assert {BELOW, TORN} <= {*met}


@pytest.mark.fault(5, 8, 9, 10, rig="M")
def test_several_at_once(campaign: Campaign) -> None:
    """Two or three mutations of one log or of two."""
    for seed in campaign.seeds(60):
        random = Random(seed)
        one = shape(random.choice(SMALL))
        name = several(one, random)
        if hold(one, name, bed_of(one), deep=seed % 3 == 0) != SAME:
            campaign.count()


@pytest.mark.fault(31, 32, rig="M")
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "long"])
def test_files_that_do_not_belong(name: str, campaign: Campaign) -> None:
    """Sidecars copied, renamed, lost, of another session or store, of lives that were retired; main of an older moment,
    with sidecars that are younger, cut where it ended once, of another generation."""
    one = shape(name)
    met: Counter[str] = Counter()
    for number, change in enumerate(islice(placements(one), 0, None, 1 if campaign.full or name == "talk" else 5)):
        verdict = hold(one, change, bed_of(one), deep=True)
        met[verdict] += 1
        if verdict != SAME:
            main = change.startswith(("image:main", "cut:main")) or (change.startswith("image") and "+" in change)
            campaign.count(rows=(32 if main else 31,))
        assert number < 10_000
    assert {*met} <= {SAME, LIVE, TORN, HEADER, FOREIGN, CORRUPT, BELOW}


@pytest.mark.damages
@pytest.mark.fault(31, 32, rig="M")
@pytest.mark.parametrize("name", ["lives", "compacted"])
def test_real_files_that_do_not_belong(name: str, campaign: Campaign, real: RealBed) -> None:
    one = shape(name)
    for change in islice(placements(one), 0, None, 3 if campaign.full else 37):
        hold(one, change, real, deep=True)
        campaign.count(rows=(32 if "image:main" in change else 31,))
