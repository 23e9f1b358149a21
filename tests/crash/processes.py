"""What the tests of real processes share: where they work, which cases a slice takes, and why they may be skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from typing import TypeVar

import pytest

from fuzz import processes, ptrace
from fuzz.campaign import Campaign

T = TypeVar("T")

watched = pytest.mark.skipif(bool(ptrace.why_not()), reason=ptrace.why_not() or "-")


@pytest.fixture
def where() -> Iterator[str]:
    with processes.directory() as path:
        yield path


@pytest.fixture(autouse=True)
def consistency_check() -> None:
    """In place of the shared one: every case checks the store it leaves, and children must not inherit that one."""


def some(cases: Iterable[T], few: int, campaign: Campaign) -> list[T]:
    """All cases in a campaign; else a few of them, spread over all."""
    every = [*cases]
    if campaign.full or len(every) <= few:
        return every
    return [every[n * len(every) // few] for n in range(few)]


def has(program: str) -> bool:
    return shutil.which(program) is not None
