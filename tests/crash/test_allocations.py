"""One allocation of a call fails, in a child: every other one in a campaign, some in an ordinary run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.allocations import CALLS
from fuzz.campaign import Campaign

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ("birth", "compaction")
"""Calls that encode the header of a file: for want of memory there msgspec (0.23) may die by SIGSEGV."""


@pytest.mark.fault(34, rig="S")
def test_an_allocation_fails(campaign: Campaign) -> None:
    pytest.importorskip("_testcapi", reason="this interpreter comes without _testcapi")
    stride, end = (2, 600) if campaign.full else (31, 140)
    for name in CALLS if campaign.full else ("commit", "flush", "retirement"):
        child = subprocess.run(
            [sys.executable, "-m", "fuzz.allocations", name, str(1 + campaign.seed % stride), str(stride), str(end)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert child.returncode == 0, child.stderr[-3000:]
        failed, died, stuck = json.loads(child.stdout)
        assert not died or name in HEADERS, f"{died} processes died in {name}"
        assert failed or name == "append"
        campaign.count(failed + stuck)
        if stuck:
            campaign.note(f"no memory, {name}: the interpreter could not let go of the session's lock {stuck} times")
        if died:
            campaign.note(f"no memory, {name}: msgspec took the process with it {died} times, {failed} times it raised")
