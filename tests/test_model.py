"""A state machine of the whole public interface on a simulated disk, held against plain dicts.

Whatever happens (failing disks, kill -9, power cuts), what replays is, file by file, a contiguous prefix of whole
commits that holds everything acknowledged at the level the event spares; see ``model.py`` for the rules.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fuzz.simdisk import CrashPolicy, KeepAll, LoseAll, Prefix, RandomLoss, SimDisk
from scopelog import Durability, OpenFailed, Store, StoreLocked
from tests.model import Spec
from tests.model_handles import KEYS, LISTS, PATH, SCOPES, Settings, random_identities, steady_identities
from tests.model_rig import Rig

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
POLICIES: st.SearchStrategy[CrashPolicy] = st.one_of(
    st.builds(LoseAll),
    st.builds(KeepAll),
    st.builds(Prefix, st.integers(0, 6), st.none() | st.integers(0, 6)),
    st.integers(0, 1 << 16).map(lambda seed: RandomLoss(Random(seed))),
)
FAULTS = st.sampled_from(
    [
        ("pwrite", errno.ENOSPC, False, None),
        ("pwrite", errno.ENOSPC, True, None),
        ("pwrite", errno.EIO, False, None),
        ("pwrite", None, False, 7),
        ("pwrite", errno.ENOSPC, False, 40),
        ("pwrite", errno.EDQUOT, False, 1),
        ("sync", errno.EIO, False, None),
        ("sync", errno.EIO, False, None),
        ("sync", errno.EIO, True, None),
        ("sync_dir", errno.EIO, False, None),
        ("unlink", errno.EACCES, False, None),
        ("unlink", errno.EACCES, True, None),
        ("rename", errno.EIO, False, None),
        ("create", errno.EMFILE, False, None),
        ("allocate", errno.ENOSPC, True, None),
        ("truncate", errno.EIO, False, None),
    ]
)


class StoreMachine(RuleBasedStateMachine):
    """Sessions ``s`` and ``Other/ß`` of one store; ``s`` is open whenever the machine is up."""

    rig: Rig

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

    @rule()
    def second_handle(self) -> None:
        with pytest.raises(StoreLocked):
            self.rig.open_store().session("s")
        with Store.open(PATH, fs=self.rig.disk, clock=self.rig.clock) as second:
            with pytest.raises(StoreLocked):
                second.session("s")
            with pytest.raises(StoreLocked if "s" in second.sessions() else OpenFailed):
                second.delete_session("s")

    @precondition(lambda self: not self.rig.faulty)
    @rule(sid=SIDS)
    def delete(self, sid: str) -> None:
        if sid in self.rig.sessions:
            self.rig.close(sid)
        self.rig.delete(sid)
        self.reopened()

    # --- trouble

    @rule(fault=FAULTS, nth=st.integers(1, 4))
    def fail(self, fault: tuple[str, int | None, bool, int | None], nth: int) -> None:
        op, code, persistent, short = fault
        self.rig.disk.fail(op, nth, code, PATH, persistent, short)
        self.rig.faulty = True

    @rule(room=st.integers(0, 3000))
    def fill(self, room: int) -> None:
        self.rig.disk.capacity = self.rig.disk.used + room
        self.rig.faulty = True

    @precondition(lambda self: self.rig.faulty)
    @rule()
    def heal(self) -> None:
        self.rig.heal()

    @rule()
    def kill(self) -> None:
        self.rig.kill()
        self.reopened()

    @rule(policy=POLICIES)
    def cut_power(self, policy: CrashPolicy) -> None:
        self.rig.cut_power(policy)
        self.reopened(power=True)

    @precondition(lambda self: not self.rig.faulty)
    @rule(scope=st.sampled_from(SCOPES), specs=WRITES, policy=POLICIES)
    def lose_a_sync(self, scope: str, specs: list[Spec], policy: CrashPolicy) -> None:
        """A commit's sync fails; the log refuses until it is opened again; what is acknowledged then stays."""
        self.rig.disk.fail("sync", path=PATH)
        self.rig.faulty = True
        self.rig.commit("s", scope, specs, Durability.POWER)
        self.rig.disk.heal()
        self.rig.commit("s", scope, specs, Durability.POWER)
        self.rig.heal()
        self.rig.commit("s", scope, specs, Durability.POWER)
        self.rig.verify_stored("s")
        self.cut_power(policy)

    @precondition(lambda self: not self.rig.faulty)
    @rule(scope=st.sampled_from(SCOPES[1:]), specs=WRITES, level=LEVELS, policy=POLICIES)
    def lose_a_retirement(self, scope: str, specs: list[Spec], level: Durability | None, policy: CrashPolicy) -> None:
        """The power fails soon after a retirement: the life is over or goes on, as a whole."""
        self.rig.commit("s", scope, specs, level)
        self.rig.commit("s", "", [Spec("retire", retired=scope)])
        self.rig.commit("s", scope, specs[:1])
        self.cut_power(policy)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            if self.rig.faulty:
                self.rig.heal()
            self.rig.check()


@pytest.fixture(autouse=True)
def consistency_check() -> Iterator[None]:
    """In place of the shared one, which knows real directories only: every run ends with :meth:`Rig.check`."""
    yield
    random_identities()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    stateful_step_count=40, report_multiple_bugs=False, phases=[Phase.generate, Phase.shrink]
)
