"""strace as an independent check of the tracer: it sees the same calls; what it kills and fails is survived as well.

A fresh interpreter each time (``python -m fuzz.process_child``), so that a slice makes a handful of cases only.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest

from fuzz.campaign import Campaign
from fuzz.process_child import SCENARIOS
from fuzz.process_rig import State, Told, survive
from fuzz.processes import attempt

from .processes import consistency_check, has, some, watched, where

__all__ = ["consistency_check", "where"]
CALLS = ("pwrite64", "fdatasync", "fsync", "ftruncate", "fallocate", "rename", "unlink", "mkdir", "flock")
KILLED = -9, 137
ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def why_not() -> str:
    if not has("strace"):
        return "strace is not installed"
    tried = ["strace", "-e", "trace=flock", "-e", "inject=flock:error=EIO:when=1", "-o", os.devnull, "true"]
    probe = subprocess.run(tried, capture_output=True, text=True, check=False)
    return f"strace may not inject here: {probe.stderr.strip()}" if probe.returncode else ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


def traced(where: str, name: str, *options: str, faulty: bool = False) -> tuple[subprocess.CompletedProcess[str], str]:
    """The child under strace, on an empty directory; and what strace wrote."""
    directory = os.path.join(where, "work")
    shutil.rmtree(directory, ignore_errors=True)
    os.mkdir(directory)
    for left in ("told", "trace"):
        if os.path.exists(os.path.join(where, left)):
            os.unlink(os.path.join(where, left))
    trace = os.path.join(where, "trace")
    command = ["strace", "-f", "-y", "-qq", "-o", trace, "-e", f"trace={','.join(CALLS)}", *options, sys.executable]
    child = ["-m", "fuzz.process_child", name, directory, os.path.join(where, "told"), *(["faulty"] if faulty else [])]
    done = subprocess.run([*command, *child], capture_output=True, text=True, check=False, cwd=ROOT)
    return done, Path(trace).read_text()


def steady(path: str) -> str:
    """Without the random name that a deleted session has in the trash."""
    return re.sub(r"\.session\.[0-9a-f]{16}", ".session.N", path)


def told(where: str) -> State:
    file = Told(os.open(os.path.join(where, "told"), os.O_RDONLY | os.O_CLOEXEC))
    states = [record for record in file.records() if isinstance(record, State)]
    file.close()
    return states[-1] if states else State({})


@watched
@pytest.mark.fault(1, rig="K")
def test_strace_sees_the_calls_that_the_tracer_sees(campaign: Campaign, where: str) -> None:
    names = [name for name, scenario in SCENARIOS.items() if not scenario.torn]
    for name in some(names, 1, campaign):
        scenario = SCENARIOS[name]
        done, trace = traced(where, name)
        assert done.returncode == 0, done.stderr
        seen = re.findall(r"^\d+ +(\w+)\(.*?/work/?([^\">]*)[\">]", trace, re.MULTILINE)
        mine = os.path.join(where, "mine")
        os.mkdir(mine)
        whole = scenario._replace(before=(), script=(*scenario.before, *scenario.script))
        calls = attempt(mine, whole).ended.calls
        shutil.rmtree(mine)
        wanted = [(call.name, call.path.lstrip(".")) for call in calls if call.name in CALLS]
        assert [(call, steady(path)) for call, path in seen] == [(call, steady(path)) for call, path in wanted], name
        campaign.count()


def places(where: str, name: str, calls: Iterable[str]) -> list[tuple[str, str, int]]:
    """Every call of a scenario that something may be done to: the scenario, the call, and the how manieth it is."""
    _, trace = traced(where, name)
    counts = {call: len(re.findall(rf"^\d+ +{call}\(", trace, re.MULTILINE)) for call in calls}
    return [(name, call, nth) for call in calls for nth in range(1, counts[call] + 1)]


@pytest.mark.fault(1, rig="K")
def test_killed_by_strace(campaign: Campaign, where: str) -> None:
    scenarios = some(["reuse", "windows at power", "reopen", "compaction"], 1, campaign)
    for name, call, nth in some(chain.from_iterable(places(where, name, CALLS) for name in scenarios), 1, campaign):
        done, _ = traced(where, name, "-e", f"inject={call}:signal=SIGKILL:when={nth}")
        assert done.returncode in KILLED, f"{name}, {call} {nth}: {done}"
        try:
            survive(os.path.join(where, "work", "store"), SCENARIOS[name].settings, told(where))
        except Exception as error:
            raise AssertionError(f"{name}, killed at {call} {nth}: {error}") from error
        campaign.count()


@pytest.mark.fault(15, 17, 19, 21, rig="K")
def test_failed_by_strace(campaign: Campaign, where: str) -> None:
    errors = {"fdatasync": ("EIO", 15), "fsync": ("EIO", 15), "pwrite64": ("ENOSPC", 17), "ftruncate": ("EIO", 19)}
    errors |= {"rename": ("EROFS", 21), "unlink": ("EACCES", 21), "fallocate": ("EDQUOT", 19)}
    scenarios = some(["compaction", "reuse"], 1, campaign)
    for name, call, nth in some(chain.from_iterable(places(where, name, errors) for name in scenarios), 1, campaign):
        error, row = errors[call]
        done, _ = traced(where, name, "-e", f"inject={call}:error={error}:when={nth}", faulty=True)
        assert done.returncode == 0, f"{name}, {call} {nth} {error}: {done.stderr}"
        campaign.count(rows=(row,))
