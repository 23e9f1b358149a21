"""The house: imports go one way, packages stand on their own, and core dependencies stay three."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "engine" / "scopelog_engine"
SCOPES = ROOT / "scopes" / "scopelog"
EXTRAS = {"click", "rich"}  # imported lazily, inside the command line alone
ENGRAM = {"httpx2", "stamina"}  # imported lazily, inside the memory bridge alone


def imported(path: Path) -> set[str]:
    """Top-level packages a module imports, relative imports left out."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"__future__"}


@pytest.mark.parametrize("path", sorted(ENGINE.rglob("*.py")), ids=lambda path: path.name)
def test_the_engine_imports_the_core_dependencies_alone(path: Path) -> None:
    assert imported(path) <= {"lmdb", "msgspec", "zstandard"}


@pytest.mark.parametrize("path", sorted(SCOPES.rglob("*.py")), ids=lambda path: str(path.relative_to(SCOPES)))
def test_the_public_package_imports_the_engine_and_no_tests(path: Path) -> None:
    allowed = {"lmdb", "msgspec", "zstandard", "scopelog_engine", "scopelog"}
    if "cli" in path.parts:
        allowed |= EXTRAS
    if "memory" in path.parts:
        allowed |= ENGRAM
    assert imported(path) <= allowed


def test_importing_the_package_needs_no_extra() -> None:
    cli = SCOPES / "cli" / "__init__.py"
    top = {
        alias.name
        for node in ast.parse(cli.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert not top & EXTRAS


def test_the_engine_has_no_import_cycle() -> None:
    imports: dict[str, set[str]] = {}
    for path in ENGINE.glob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        imports[path.stem] = {
            n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.level == 1 and n.module is not None
        }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for other in imports.get(name, ()):
                visit(other, (*path, name))
            done.add(name)

    for name in imports:
        visit(name, ())


def test_the_core_dependencies_are_three() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(line.split(">")[0] for line in project["dependencies"]) == ["lmdb", "msgspec", "zstandard"]


def test_both_packages_say_that_they_are_typed() -> None:
    assert (ENGINE / "py.typed").exists() and (SCOPES / "py.typed").exists()
