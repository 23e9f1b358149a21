"""Results: rows of product against rival, and how they are shown."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NamedTuple

_PACKAGES: Final = ("scopelog", "msgspec", "zstandard", "lmdb", "rocksdict")


class Row(NamedTuple):
    """One comparison. ``ratio`` is product / rival; ``target`` bounds it from above, or from below if ``at_least``.

    ``target`` None: reported, not judged. ``rival`` '' (an absolute figure): the ratio is the product's figure.
    """

    measure: str
    product: float
    rival: str
    figure: float
    unit: str
    target: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def ratio(self) -> float:
        if not self.rival:
            return self.product
        return self.product / self.figure if self.figure else float("inf")

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "met" if (self.ratio >= self.target if self.at_least else self.ratio <= self.target) else "missed"

    def data(self) -> dict[str, Any]:
        return {**self._asdict(), "ratio": self.ratio, "verdict": self.verdict}


class Skipped(NamedTuple):
    """A comparison that could not be made, and why."""

    measure: str
    reason: str


_HEADINGS: Final = ("measure", "scopelog", "rival", "its figure", "unit", "ratio", "target", "", "note")


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [_HEADINGS, tuple("---" for _ in _HEADINGS), *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width, "-" if cell == "---" else " ") for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    target = "" if row.target is None else f"{'>=' if row.at_least else '<='} {row.target:g}"
    return (
        row.measure,
        _figure(row.product),
        row.rival,
        _figure(row.figure) if row.rival else "",
        row.unit,
        "" if not row.rival else f"{row.ratio:.3f}" if row.ratio >= 0.01 else f"{row.ratio:.5f}",
        target,
        row.verdict,
        row.note,
    )


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.2f}"


def machine(directory: Path, node: str | None) -> str:
    """One line: kernel, file system of ``directory``, cores, interpreter and versions."""
    packages = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    parts = [
        f"{platform.system()} {platform.release()} {platform.machine()}",
        _file_system(directory),
        f"{os.cpu_count()} cores",
        f"Python {platform.python_version()}",
        packages,
        f"sqlite {sqlite3.sqlite_version}",
    ]
    if node is not None:
        parts.append(
            f"Node {subprocess.run([node, '--version'], capture_output=True, text=True, check=False).stdout.strip()}"
        )
    return "; ".join(parts)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def _file_system(directory: Path) -> str:
    """Type of the file system that holds ``directory``: of the longest mount point above it."""
    mounts = Path("/proc/self/mounts")
    found = ("", "unknown file system")
    if mounts.exists():
        for line in mounts.read_text().splitlines():
            _, point, kind = line.split()[:3]
            if Path(point) in [directory.resolve(), *directory.resolve().parents] and len(point) >= len(found[0]):
                found = (point, kind)
    return found[1]
