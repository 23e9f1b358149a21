"""A state machine of the whole public interface on a simulated disk, held against plain dicts.

Whatever happens (failing disks, kill -9, power cuts), what replays is, file by file, a contiguous prefix of whole
commits that holds everything acknowledged at the level the event spares; see ``model.py`` for the rules.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from fuzz.actions import (
    Compact,
    Copy,
    CutPower,
    Die,
    Fail,
    Fill,
    Heal,
    Kill,
    LoseRetirement,
    LoseSync,
    Operation,
    Reuse,
    SecondHandle,
)
from fuzz.model_handles import Settings, random_identities, steady_identities
from fuzz.model_rig import Rig
from fuzz.simdisk import SimDisk
from scopelog import Durability
from tests.model_machine import SessionRules, every


class StoreMachine(SessionRules):
    @initialize(
        durability=st.sampled_from(Durability),
        scope_durability=st.sampled_from(Durability),
        window_ms=st.sampled_from([0, 20, 100]),
        preallocates=st.sampled_from([False, False, False, True]),
    )
    def begin(self, durability: Durability, scope_durability: Durability, window_ms: int, preallocates: bool) -> None:
        steady_identities()
        self.rig = Rig(Settings(durability, scope_durability, window_ms), SimDisk(preallocates=preallocates))
        self.rig.open("s")

    # --- handles and growth

    @rule(operation=every(SecondHandle))
    def second_handle(self, operation: Operation) -> None:
        self.perform(operation)

    @rule(operation=every(Compact))
    def compact(self, operation: Operation) -> None:
        self.perform(operation)

    @precondition(lambda self: not self.rig.faulty)
    @rule(operation=every(Copy))
    def copy(self, operation: Operation) -> None:
        self.perform(operation)

    @rule(operation=every(Reuse))
    def reuse(self, operation: Operation) -> None:
        self.perform(operation)

    # --- trouble

    @rule(operation=every(Fail))
    def fail(self, operation: Operation) -> None:
        self.perform(operation)

    @rule(operation=every(Fill))
    def fill(self, operation: Operation) -> None:
        self.perform(operation)

    @precondition(lambda self: self.rig.faulty)
    @rule(operation=every(Heal))
    def heal(self, operation: Operation) -> None:
        self.perform(operation)

    @rule(operation=every(Kill))
    def kill(self, operation: Operation) -> None:
        self.perform(operation)

    @rule(operation=every(CutPower))
    def cut_power(self, operation: Operation) -> None:
        self.perform(operation)

    @precondition(lambda self: not self.rig.faulty)
    @rule(operation=every(LoseSync))
    def lose_a_sync(self, operation: Operation) -> None:
        self.perform(operation)

    @precondition(lambda self: not self.rig.faulty)
    @rule(operation=every(LoseRetirement))
    def lose_a_retirement(self, operation: Operation) -> None:
        self.perform(operation)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            if self.rig.faulty:
                self.rig.heal()
            self.rig.check()


class DyingMachine(StoreMachine):
    """Of calls made in the caller alone: a loop that dies with a process cannot be had here."""

    @precondition(lambda self: not self.rig.faulty)
    @rule(operation=every(Die))
    def die(self, operation: Operation) -> None:
        self.perform(operation)


@pytest.fixture(autouse=True)
def consistency_check() -> Iterator[None]:
    """In place of the shared one, which knows real directories only: every run ends with :meth:`Rig.check`."""
    yield
    random_identities()


TestStoreMachine = DyingMachine.TestCase
TestStoreMachine.settings = settings(
    stateful_step_count=40, report_multiple_bugs=False, phases=[Phase.generate, Phase.shrink]
)
