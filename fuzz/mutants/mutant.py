"""A mutant: one way to break the engine, as exact replacements of text in a copy of the sources. See the package."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("engine", "scopes")
_ENGINE: Final = "engine/scopelog_engine"


class Rotten(Exception):
    """The text that a mutant replaces is not there any more, or stands in two places: the mutant is to be mended."""


@dataclass(frozen=True)
class Edit:
    """``old`` becomes ``new`` in ``file`` of the engine (a path that begins with ``scopes/`` is that package's)."""

    file: str
    old: str
    new: str

    @property
    def path(self) -> str:
        return self.file if self.file.startswith("scopes/") else f"{_ENGINE}/{self.file}"


@dataclass(frozen=True)
class Mutant:
    """``breaks``: what it breaks, in a sentence. ``rule``: which sections of engine/FORMAT.md ("F7") or of
    scopes/README.md ("R", and a word of the heading) say otherwise, and which invariants fall ("I1" to "I8").
    ``rows``: those of the fault matrix (see :mod:`fuzz.matrix`) in which it does harm. ``tests``: node ids of which
    each must fail with it; one that is parametrized fails if it does with any of its parameters. ``hangs``: a test
    that runs into its time limit counts as one that fails."""

    name: str
    breaks: str
    rule: str
    rows: tuple[int, ...]
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    hangs: bool = False

    def changed(self, root: Path = ROOT) -> dict[str, str]:
        """The files that it changes, as they read then. Raises :class:`Rotten`."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            try:
                text = texts.get(edit.path) or (root / edit.path).read_text(encoding="utf-8")
            except FileNotFoundError:
                raise Rotten(f"{self.name}: there is no {edit.path}") from None
            if edit.old == edit.new:
                raise Rotten(f"{self.name}: it changes nothing in {edit.path}")
            count = text.count(edit.old)
            if count != 1:
                raise Rotten(f"{self.name}: {edit.path} holds this {count} times, not once: {edit.old!r}")
            texts[edit.path] = text.replace(edit.old, edit.new)
            try:
                compile(texts[edit.path], edit.path, "exec")
            except SyntaxError as error:
                raise Rotten(f"{self.name}: {edit.path} is no Python with it ({error})") from None
        return texts


def plant(mutant: Mutant, where: Path, whole: Path) -> None:
    """Lay the sources down in ``where`` as the mutant changes them. ``whole``: an unchanged copy, compiled perhaps."""
    changed = mutant.changed(whole)
    copy_sources(whole, where)
    for name, text in changed.items():
        path = where / name
        path.write_text(text, encoding="utf-8")
        for stale in path.parent.glob(f"__pycache__/{path.stem}.*"):
            stale.unlink()


def copy_sources(source: Path, where: Path) -> None:
    """The two packages as they stand in ``source``."""
    for package in PACKAGES:
        shutil.copytree(source / package, where / package, ignore=shutil.ignore_patterns("*.egg-info"))
