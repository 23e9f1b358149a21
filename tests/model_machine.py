"""The rules of a state machine that every disk allows: calls of the public interface on a rig and its model.

The machines (``test_model.py`` on a simulated disk, ``test_views.py`` on the real one) add how a store begins, and
trouble.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fuzz.model import Spec
from fuzz.model_handles import KEYS, LISTS, SCOPES
from fuzz.model_rig import Rig
from scopelog import Durability, OpenFailed

LEVELS = st.sampled_from([None, Durability.PROCESS, Durability.POWER])
SIDS = st.sampled_from(["s", "s", "s", "Other/ß"])
TEXT = st.text("abc \ud800é", max_size=4)
TAGS = st.sampled_from([None, None, None, "t", "turn"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def list_writes(draw: st.DrawFn) -> Spec:
    namespace, key = draw(st.sampled_from(LISTS))
    op = draw(st.sampled_from(["append", "append", "append", "trim", "delete"]))
    if op == "append":
        return Spec(op, namespace, key, "list", draw(TEXT if key == "text" else JSON), draw(TAGS))
    return Spec(op, namespace, key, "list", number=draw(st.integers(0, 40)) if op == "trim" else 0)


@st.composite
def value_writes(draw: st.DrawFn) -> Spec:
    op = draw(st.sampled_from(["set", "set", "delete"]))
    return Spec(
        op, draw(st.sampled_from("nm")), draw(st.sampled_from(KEYS)), "value", draw(JSON) if op == "set" else None
    )


WRITES = st.lists(list_writes() | value_writes(), min_size=1, max_size=4)
RETIREMENTS = st.lists(
    st.sampled_from(SCOPES[1:]).map(lambda scope: Spec("retire", retired=scope)), min_size=1, max_size=2
)


class SessionRules(RuleBasedStateMachine):
    """Sessions ``s`` and ``Other/ß`` of one store; ``s`` is open whenever the machine is up."""

    rig: Rig

    def ready(self, sid: str) -> None:
        """Open the session if it is not open; while the disk fails that may take a heal."""
        if sid in self.rig.sessions:
            return
        try:
            self.rig.open(sid)
        except OpenFailed:
            assert self.rig.faulty
            self.rig.heal()
            self.rig.open(sid)

    # --- writes

    @rule(sid=SIDS, scope=st.sampled_from(SCOPES), specs=WRITES, level=LEVELS)
    def commit(self, sid: str, scope: str, specs: list[Spec], level: Durability | None) -> None:
        self.ready(sid)
        self.rig.commit(sid, scope, specs, level)

    @rule(sid=SIDS, retirements=RETIREMENTS, before=st.just([]) | WRITES, after=st.just([]) | WRITES, level=LEVELS)
    def retire(
        self, sid: str, retirements: list[Spec], before: list[Spec], after: list[Spec], level: Durability | None
    ) -> None:
        self.ready(sid)
        self.rig.commit(sid, "", [*before, *retirements, *after], level)

    @rule(
        sid=SIDS,
        scope=st.sampled_from(SCOPES),
        address=st.sampled_from(LISTS),
        texts=st.lists(st.tuples(TEXT, TAGS), min_size=1, max_size=8),
    )
    def stage(self, sid: str, scope: str, address: tuple[str, str], texts: list[tuple[str, str | None]]) -> None:
        self.ready(sid)
        for text, tag in texts:
            self.rig.stage(sid, scope, address[1], text, tag, address[0])

    @rule(sid=SIDS, level=LEVELS)
    def flush(self, sid: str, level: Durability | None) -> None:
        self.ready(sid)
        self.rig.flush(sid, level)

    @rule(milliseconds=st.sampled_from([5, 15, 20, 60, 100, 300, 7000]))
    def pass_time(self, milliseconds: int) -> None:
        self.rig.advance(milliseconds)

    # --- reads

    @rule(sid=SIDS, scope=st.sampled_from(SCOPES))
    def read_all(self, sid: str, scope: str) -> None:
        self.ready(sid)
        self.rig.verify_shown(sid, scope)

    @rule(
        sid=SIDS,
        scope=st.sampled_from(SCOPES),
        address=st.sampled_from(LISTS),
        cursor=st.none() | st.integers(0, 60),
        descending=st.booleans(),
        limit=st.none() | st.integers(0, 5),
        stop=TAGS,
    )
    def read_page(
        self,
        sid: str,
        scope: str,
        address: tuple[str, str],
        cursor: int | None,
        descending: bool,
        limit: int | None,
        stop: str | None,
    ) -> None:
        self.ready(sid)
        self.rig.verify_page(sid, scope, *address, cursor, "desc" if descending else "asc", limit, stop)

    @invariant()
    def stored_as_promised(self) -> None:
        for sid in self.rig.sessions:
            self.rig.verify_stored(sid)

    # --- handles

    @rule(sid=SIDS)
    def reopen(self, sid: str) -> None:
        self.ready(sid)
        self.rig.close(sid)
        self.reopened()

    def reopened(self, *, power: bool = False) -> None:
        """Open what the machine works on."""
        for sid in sorted({"s", *self.rig.models}):
            if power:
                self.rig.open(sid, power=True)
            else:
                self.ready(sid)

    @precondition(lambda self: not self.rig.faulty)
    @rule(sid=SIDS)
    def delete(self, sid: str) -> None:
        if sid in self.rig.sessions:
            self.rig.close(sid)
        self.rig.delete(sid)
        self.reopened()
