"""Shared set-up: fixtures, the consistency check after every test that opened a store, and where real data is found."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import scopelog
from scopelog import Finding, Store
from scopelog_engine.fs import OsFileSystem

pytest_plugins = ["fuzz.campaign"]

settings.register_profile("default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("SCOPELOG_HYPOTHESIS", "default"))

SHARED = Path(os.environ.get("SCOPELOG_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def shared(part: str) -> Path:
    """A folder of real data that does not come with the repository; skips the test where it is missing."""
    path = SHARED / part
    if not path.exists():
        pytest.skip(f"{path} is missing: set SCOPELOG_SHARED to the folder that holds {part}")
    return path


Opener = Callable[..., Store]


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def consistency_check(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Every store that a test opened must be sound afterwards, once its sessions are closed.

    ``@pytest.mark.damages`` is for tests that damage a store on purpose and do not repair it.
    """
    opened: list[Store] = []
    original = Store.open.__func__  # type: ignore[attr-defined]

    @functools.wraps(original)
    def recording(cls: type[Store], *args: Any, **keywords: Any) -> Store:
        store: Store = original(cls, *args, **keywords)
        opened.append(store)
        return store

    monkeypatch.setattr(Store, "open", classmethod(recording))
    yield
    monkeypatch.undo()
    for store in opened:
        if isinstance(store._store.fs, OsFileSystem):  # a simulated disk may be down
            store.close(force=True)
    if request.node.get_closest_marker("damages"):
        return
    seen: set[str] = set()
    for store in reversed(opened):
        fs = store._store.fs
        if store.path in seen or not isinstance(fs, OsFileSystem) or not os.path.isdir(store.path):
            continue
        seen.add(store.path)
        with Store.open(store.path, create=False) as again:
            assert _unsound(again.check(deep=True)) == []
            assert _unsound(again.check()) == []


def _unsound(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity != "note"]


__all__ = ["scopelog", "shared"]
