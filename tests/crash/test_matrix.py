"""Every row of the fault matrix has tests that provoke it, and the table tells what they did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzz.faults import Tally, document, marked, render, tally
from fuzz.matrix import RIGS, ROWS

NEED_ROOT = {"P", "F", "B"}
pytest_plugins = ["pytester"]


def test_every_row_is_provoked_also_without_root() -> None:
    """Device rigs skip where they cannot run: some other rig must cover the same row."""
    found: dict[int, set[str]] = {}
    for pairs in marked().values():
        for row, rig in pairs:
            found.setdefault(row, set()).add(rig)
    assert set(found) == set(ROWS)
    assert set().union(*found.values()) == set(RIGS)
    assert [row for row, rigs in found.items() if not rigs - NEED_ROOT] == []


def line(outcome: str = "passed", cases: int = 3, **changes: object) -> dict[str, object]:
    return {
        "test": "tests/a.py::test",
        "rigs": {"4": "M", "9": "KM"},
        "cases": {"4": cases, "9": cases},
        "outcome": outcome,
        "reason": "",
        "seeds": [],
        "notes": [],
        **changes,
    }


def test_the_table_counts_and_tells_what_failed() -> None:
    lines = [line(), line("skipped", 0, reason="no root"), line("failed", seeds=[4, 7])]
    table = tally(lines)
    assert set(table) == {(4, "M"), (9, "K"), (9, "M")}
    assert table[9, "K"] == Tally(cases=6, tests=2, failed=1, skipped={"no root": 1}, seeds=[4, 7])
    assert table[9, "K"].result == "FAILED"
    text = render(table)
    assert "| 4 | last frame cut at every byte | M | 2 | 6 | FAILED, 1 skipped | 4-7 |" in text
    assert "| 1 | kill -9 at every system call | | 0 | 0 | NOT PROVOKED | |" in text
    whole = document(table, lines, 60, 0, 20)
    assert "- K: no root" in whole and "3 tests, 6 cases" in whole


def test_a_test_reports_what_it_did(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and rigs of its marks, the cases that it counted, its seeds; a failure says how to see it again."""
    pytester.makepyfile(
        """
        import pytest
        pytest_plugins = ["fuzz.campaign"]

        @pytest.mark.fault(4, 5, rig="M")
        @pytest.mark.fault(5, rig="K")
        def test_counts(campaign):
            assert list(campaign.seeds(2)) == [7, 8] and not campaign.full
            campaign.count(2)
            campaign.count(rows=(5,))
            campaign.note("so many")

        @pytest.mark.fault(1, rig="S")
        def test_fails(campaign):
            for seed in campaign.seeds(3):
                assert seed < 8

        @pytest.mark.fault(1, rig="S")
        def test_skips():
            pytest.skip("no disk")

        def test_is_no_fault(campaign):
            assert campaign.rows == ()
        """
    )
    report = Path(pytester.path / "report")
    monkeypatch.setenv("SCOPELOG_FAULTS_REPORT", str(report))
    monkeypatch.setenv("SCOPELOG_SEED", "7")
    monkeypatch.delenv("SCOPELOG_FAULTS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=2, failed=1, skipped=1)
    done.stdout.fnmatch_lines(["*SCOPELOG_SEED=8 python -m pytest *test_fails*"])
    lines = [json.loads(text) for text in report.read_text().splitlines()]
    assert [(one["outcome"], one["rigs"], one["cases"], one["seeds"]) for one in lines] == [
        ("passed", {"4": "M", "5": "KM"}, {"4": 2, "5": 3}, [7, 8]),
        ("failed", {"1": "S"}, {"1": 1}, [7, 8]),
        ("skipped", {"1": "S"}, {"1": 0}, []),
    ]
    assert lines[0]["notes"] == ["so many"] and "no disk" in lines[2]["reason"]


def test_a_mark_of_no_row_is_refused(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(
        """
        import pytest
        pytest_plugins = ["fuzz.campaign"]

        @pytest.mark.fault(99, rig="M")
        def test_it():
            pass
        """
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    done = pytester.runpytest_subprocess()
    done.stderr.fnmatch_lines(["*no such row or rig*"])
    assert done.ret == pytest.ExitCode.USAGE_ERROR
