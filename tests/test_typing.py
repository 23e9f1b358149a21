"""The type-only file holds what it says: mypy accepts every line but those marked as refused."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "typing_api.py"


def test_mypy_refuses_exactly_the_marked_lines() -> None:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    assert len(marked) >= 8
    out, err, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), "--no-incremental", str(FILE)])
    found = {int(n) for n in re.findall(r"typing_api\.py:(\d+): error", out)}
    assert err == ""
    assert found == marked, out
