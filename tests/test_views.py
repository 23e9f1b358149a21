"""A state machine of the whole interface on the real disk, through every view there is, held against plain dicts.

Each call goes through a face at random: a thread, another thread, an event loop's thread, a task, a task of a loop that
ends at once. After each step the writer's session, readers in its process and readers in another one answer like the
model: the session all that was admitted, a reader what was stored when it was last refreshed. The writer's process is
killed (SIGKILL) between calls and inside of them. The index, made small so that short logs have one, is extended and
made anew by either process, deleted, damaged, put back as it was, replaced by another store's, or copied with the
store; and the logs are put back under it. Nothing of that may show (I5). All this happens in child processes: whatever
kills one fails the test.

Two ways lead through it: hypothesis draws and shrinks the steps of a state machine, whose rules it shares with
``test_model.py``; and random walks spend half of their steps on the index. A failure of either prints the fewest steps
that were found to lead to it; a walk's are a line for the shell. For longer runs and other ones::

    SCOPELOG_VIEWS_SEED=7 SCOPELOG_VIEWS_WALKS=100 SCOPELOG_VIEWS_EXAMPLES=100 SCOPELOG_VIEWS_STEPS=100 \\
        python -m pytest tests/test_views.py

``SCOPELOG_VIEWS_MINIMISE`` (40): how many walks are tried to shorten one that fails.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from fuzz.model import Spec
from fuzz.model_handles import LISTS, SCOPES, Settings
from scopelog import Durability, Json
from tests.model_machine import LEVELS, SIDS, TAGS, WRITES, SessionRules
from tests.views_answers import WRITER
from tests.views_index import QUESTIONS, Trouble
from tests.views_rig import ViewRig
from tests.views_steps import (
    COPIES,
    GROWTH,
    OPERATIONS,
    REBUILDS,
    any_walk,
    die_inside,
    fewest,
    run,
    spelled,
    take,
)

SEED = int(os.environ.get("SCOPELOG_VIEWS_SEED", "1"))
EXAMPLES = int(os.environ.get("SCOPELOG_VIEWS_EXAMPLES", "6"))
WALKS = int(os.environ.get("SCOPELOG_VIEWS_WALKS", "5"))
STEPS = int(os.environ.get("SCOPELOG_VIEWS_STEPS", "30"))
MINIMISE = int(os.environ.get("SCOPELOG_VIEWS_MINIMISE", "40"))
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "name": st.none() | st.sampled_from(["a name", "é"]),
        "labels": st.none() | st.dictionaries(st.sampled_from("ab"), st.integers(0, 3) | TAGS, max_size=2),
    },
).filter(bool)
INDEX_STEPS = st.lists(
    st.sampled_from(GROWTH) | st.sampled_from(Trouble.KINDS) | st.sampled_from((*COPIES, *REBUILDS)), max_size=6
)


class ViewMachine(SessionRules):
    """Sessions ``s`` and ``Other/ß`` of one store; ``s`` is open whenever the machine is up."""

    rig: ViewRig

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="views-", dir=BASE[0]))

    @initialize(
        durability=st.sampled_from(Durability),
        scope_durability=st.sampled_from(Durability),
        window_ms=st.sampled_from([0, 20, 100]),
        background=st.booleans(),
        history=st.booleans(),
        choices=st.integers(0, 1 << 16),
    )
    def begin(
        self,
        durability: Durability,
        scope_durability: Durability,
        window_ms: int,
        background: bool,
        history: bool,
        choices: int,
    ) -> None:
        levels = Settings(durability, scope_durability, window_ms)
        self.rig = ViewRig(levels, self.base / "store", Random(choices), background=background)
        self.rig.open("s")
        if history:
            self.rig.write_history("s")
            self.rig.flush("s", Durability.POWER)
            self.rig.checkpoint(WRITER, "s", "extend")

    # --- writes

    @rule(
        sid=SIDS,
        commits=st.lists(st.tuples(st.sampled_from(SCOPES), WRITES), min_size=2, max_size=4),
        retired=st.none() | st.sampled_from(SCOPES[1:]),
        level=LEVELS,
    )
    def commit_together(
        self, sid: str, commits: list[tuple[str, list[Spec]]], retired: str | None, level: Durability | None
    ) -> None:
        self.ready(sid)
        if retired is not None:
            commits = [*commits[:-1], ("", [Spec("retire", retired=retired)]), commits[-1]]
        self.rig.together(sid, commits, level)

    @rule(sid=SIDS, scope=st.sampled_from(SCOPES), address=st.sampled_from(LISTS), share=st.floats(0, 1))
    def trim(self, sid: str, scope: str, address: tuple[str, str], share: float) -> None:
        self.ready(sid)
        upto = int(self.rig.models[sid].last * share)
        self.rig.commit(sid, scope, [Spec("trim", *address, "list", number=upto)])

    @rule(sid=SIDS, changes=METADATA, level=LEVELS)
    def describe(self, sid: str, changes: dict[str, Json], level: Durability | None) -> None:
        self.ready(sid)
        self.rig.describe(sid, changes, level)

    # --- views

    @rule(sid=SIDS)
    def read_pages(self, sid: str) -> None:
        """Every list of every scope, through the writer's session."""
        self.ready(sid)
        for scope in SCOPES:
            self.rig.verify_shown(sid, scope)
            for address in LISTS:
                cursor, order, limit, stop = self.rig.any_page(self.rig.models[sid].life(scope).shown())
                self.rig.verify_page(sid, scope, *address, cursor, order, limit, stop)

    @invariant()
    def stored_as_promised(self) -> None:
        self.rig.verify_some()

    # --- the index

    @rule(sid=SIDS, steps=INDEX_STEPS)
    def use_the_index(self, sid: str, steps: list[str]) -> None:
        for step in steps:
            self.ready(sid)
            take(self.rig, sid, step)
            self.reopened()
            self.rig.verify_some()

    @rule(steps=INDEX_STEPS)
    def use_it_once_more(self, steps: list[str]) -> None:
        """Rules are drawn with equal odds."""
        self.use_the_index("s", steps)

    # --- trouble

    @rule()
    def kill(self) -> None:
        self.rig.kill()
        self.reopened()

    @rule(
        operation=st.sampled_from(OPERATIONS),
        nth=st.integers(1, 5),
        what=st.sampled_from(["commit", "retire", "flush", "close", "time", "delete", "open"]),
        scope=st.sampled_from(SCOPES),
        specs=WRITES,
    )
    def kill_inside(self, operation: str, nth: int, what: str, scope: str, specs: list[Spec]) -> None:
        """The writer's process dies before a disk operation of a call."""
        rig = self.rig

        def call() -> None:
            match what:
                case "commit":
                    rig.commit("s", scope, specs)
                case "retire":
                    rig.commit("s", "", [*specs, Spec("retire", retired=scope or "x")])
                case "flush":
                    rig.flush("s", Durability.POWER)
                case "close":
                    rig.close("s")
                case "time":
                    rig.advance(300)
                case "delete":
                    rig.close("s")
                    rig.delete("s")
                case "open":
                    rig.close("s")
                    rig.open("s")

        die_inside(rig, call, operation, nth)
        self.reopened()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.check()
        shutil.rmtree(self.base)


BASE: list[Path] = []


@pytest.fixture(autouse=True)
def consistency_check(tmp_path: Path) -> None:
    """In place of the shared one, which knows stores of this process only: every run ends with a check."""
    BASE[:] = [tmp_path]


def test_every_view_agrees_along_random_walks() -> None:
    """Long walks, half of their steps about the index; it must have been put every question that it can be put."""
    asked: Counter[str] = Counter()
    for number in range(WALKS):
        walk = any_walk(Random(SEED * 1000 + number), STEPS)
        try:
            asked += run(walk)
        except Exception as error:
            short = fewest(walk, MINIMISE)
            error.add_note(f"seed {SEED}, walk {number}; python -m tests.views_steps '{spelled(short)}'")
            raise
    assert all(asked[question] for question in QUESTIONS), asked


def test_every_view_agrees_with_the_model() -> None:
    machine = seed(SEED)(ViewMachine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            deadline=None,
            stateful_step_count=STEPS,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink],
        ),
    )
