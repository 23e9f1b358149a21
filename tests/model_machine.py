"""The rules of a state machine that every disk allows: operations on a rig and its model, a rule for each type.

The machines (``test_model.py`` on a simulated disk, ``test_views.py`` on the real one) add how a store begins, and
trouble. What the operations are made of is said in :mod:`fuzz.programs`, for the fuzzers that draw bytes as well.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fuzz import programs
from fuzz.actions import Commit, Delete, Flush, Operation, PassTime, Player, ReadAll, ReadPage, Reopen, Retire, Stage

LEVELS = programs.LEVELS.strategy()
SIDS = programs.SIDS.strategy()
TAGS = programs.TAGS.strategy()
WRITES = programs.WRITES.strategy()
RETIREMENTS = programs.RETIREMENTS.strategy()


def every(kind: type[Operation]) -> st.SearchStrategy[Operation]:
    """All operations of a type."""
    return programs.DOMAINS[kind].strategy()


class SessionRules(Player, RuleBasedStateMachine):
    """Sessions ``s`` and ``Other/ß`` of one store; ``s`` is open whenever the machine is up."""

    # --- writes

    @rule(operation=every(Commit))
    def commit(self, operation: Operation) -> None:
        self.perform(operation)

    @rule(operation=every(Retire))
    def retire(self, operation: Operation) -> None:
        self.perform(operation)

    @rule(operation=every(Stage))
    def stage(self, operation: Operation) -> None:
        self.perform(operation)

    @rule(operation=every(Flush))
    def flush(self, operation: Operation) -> None:
        self.perform(operation)

    @rule(operation=every(PassTime))
    def pass_time(self, operation: Operation) -> None:
        self.perform(operation)

    # --- reads

    @rule(operation=every(ReadAll))
    def read_all(self, operation: Operation) -> None:
        self.perform(operation)

    @rule(operation=every(ReadPage))
    def read_page(self, operation: Operation) -> None:
        self.perform(operation)

    @invariant()
    def stored_as_promised(self) -> None:
        for sid in self.rig.sessions:
            self.rig.verify_stored(sid)

    # --- handles

    @rule(operation=every(Reopen))
    def reopen(self, operation: Operation) -> None:
        self.perform(operation)

    @precondition(lambda self: not self.rig.faulty)
    @rule(operation=every(Delete))
    def delete(self, operation: Operation) -> None:
        self.perform(operation)
