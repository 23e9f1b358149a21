"""Every fuzz target, by every engine that is here: the plain mutator, hypothesis, and atheris where it is installed.

A failing input is cut down, and the exception's note holds the line that plays it again. What has failed once stands in
``fuzz/regressions`` and is played in every run.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fuzz.actions import Operation
from fuzz.campaign import Campaign
from fuzz.corpus import seeds
from fuzz.domains import Blob
from fuzz.mutator import Mutator, attempt, inputs, shortened
from fuzz.programs import DOMAINS, decode
from fuzz.targets import REGRESSIONS, TARGETS, Target, main

KNOWN = sorted(path for path in REGRESSIONS.glob("*/*") if path.is_file())
RUNS = 3000  # of atheris, a target
EACH = {
    "scanner": (90, 20),
    "recovery": (25, 8),
    "index": (30, 10),
    "wire": (250, 30),
    "reducer": (120, 15),
    "operations": (50, 12),
    "position": (120, 25),
    "lines": (150, 25),
}
"""Of the slice: inputs of the mutator, and examples of each kind of hypothesis."""

EVERY = [
    pytest.param("scanner", marks=pytest.mark.fault(5, 6, 9, 10, 30, rig="M")),
    pytest.param("recovery", marks=pytest.mark.fault(5, 6, 9, 10, 30, rig="M")),
    pytest.param("index", marks=pytest.mark.fault(22, 23, rig="M")),
    pytest.param("wire"),
    pytest.param("reducer"),
    pytest.param("operations", marks=pytest.mark.fault(1, 2, 11, 15, 17, rig="S")),
    pytest.param("position"),
    pytest.param("lines", marks=pytest.mark.fault(29, 30, rig="M")),
]


@pytest.fixture(autouse=True)
def consistency_check() -> None:
    """In place of the shared one: the stores are on simulated disks, or damaged and thrown away."""


def count(campaign: Campaign, target: Target, case: Any) -> None:
    for row in target.rows(case):
        campaign.count(rows=(row,))


@pytest.mark.parametrize("name", EVERY)
def test_the_mutator(name: str, campaign: Campaign, tmp_path: Path) -> None:
    target = TARGETS[name]
    keep = Path(os.environ.get("SCOPELOG_FUZZ_KEEP", tmp_path))
    played = 0
    for seed in campaign.seeds(1):
        for data in itertools.islice(inputs(target, seed), EACH[name][0]):
            attempt(target, data, keep)
            count(campaign, target, target.domain.decode(data))
            played += 1
    assert played
    campaign.note(f"{name}: {played:,} inputs of the mutator")


@pytest.mark.parametrize("name", EVERY)
def test_hypothesis(name: str, campaign: Campaign) -> None:
    """Bytes, and the values that bytes spell, which shrink better."""
    target = TARGETS[name]
    profile = settings(
        max_examples=EACH[name][1] * (12 if campaign.full else 1),
        database=None,
        derandomize=not campaign.full,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[*HealthCheck],
    )

    def check(case: Any) -> None:
        target.check(case)
        count(campaign, target, case)

    profile(given(target.domain.strategy())(check))()
    profile(given(st.binary(max_size=200).map(target.domain.decode))(check))()


@pytest.mark.parametrize("name", EVERY)
def test_atheris(name: str, campaign: Campaign, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is missing (the extra fuzz)")
    if not campaign.full:
        pytest.skip("only in a campaign: it takes as long as the others together")
    runs = {"index": RUNS // 20, "recovery": RUNS // 20, "operations": RUNS // 10}.get(name, RUNS)
    flags = [f"-runs={runs}", f"-seed={campaign.seed + 1}", f"-artifact_prefix={tmp_path}/", "-max_total_time=60"]
    command = [sys.executable, "-m", "fuzz.atheris_run", name, "--", *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REGRESSIONS.parents[1], check=False)
    kept = [f"python -m fuzz.targets {name} {path}" for path in tmp_path.iterdir()]
    assert done.returncode == 0, f"{kept}\n{done.stdout}{done.stderr[-8000:]}"
    for row in campaign.rows:
        campaign.count(runs, rows=(row,))
    campaign.note(f"{name}: up to {runs:,} runs of atheris")


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_has_failed_once(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())


def test_every_input_spells_something() -> None:
    """Total: also nothing, and also what is cut off anywhere."""
    data = bytes(range(256)) * 2
    for length in [*range(60), 200, 512]:
        for target in TARGETS.values():
            target.domain.decode(data[:length])
        assert all(isinstance(operation, Operation) for operation in decode(data[:length]))
    spelled = {type(operation) for number in range(256) for operation in decode(bytes((number,)))}
    assert spelled == set(DOMAINS), "a type that no byte spells"


def test_the_mutator_is_always_the_same() -> None:
    for name in ("scanner", "wire"):
        first, again = (
            [*itertools.islice(Mutator(7, seeds(name)), 50)],
            [*itertools.islice(Mutator(7, seeds(name)), 50)],
        )
        assert first == again and len(set(first)) > 40
        assert max(map(len, first)) <= 1 << 16


def test_a_failing_input_is_cut_down_kept_and_played_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def check(data: bytes) -> None:
        assert b"bad" not in data

    target = Target("wire", Blob(), check)
    with pytest.raises(AssertionError) as caught:
        attempt(target, b"much that does not matter, then bad, then more", tmp_path)
    assert shortened(target, b"xxbadxx") == b"bad"
    (kept,) = tmp_path.iterdir()
    assert kept.read_bytes() == b"bad"
    assert "python -m fuzz.targets wire --hex 626164" in caught.value.__notes__[0]
    assert main(["wire", str(kept)]) == 0 and "batches" in capsys.readouterr().out
