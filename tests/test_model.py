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
from hypothesis.stateful import initialize, precondition, rule

from fuzz.model import Spec
from fuzz.model_handles import PATH, SCOPES, Settings, random_identities, steady_identities
from fuzz.model_rig import Rig
from fuzz.simdisk import CrashPolicy, KeepAll, LoseAll, Prefix, RandomLoss, SimDisk
from scopelog import Durability, OpenFailed, Store, StoreLocked
from tests.model_machine import LEVELS, SIDS, WRITES, SessionRules

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

    # --- handles

    @rule()
    def second_handle(self) -> None:
        with pytest.raises(StoreLocked):
            self.rig.open_store().session("s")
        with Store.open(PATH, fs=self.rig.disk, clock=self.rig.clock) as second:
            with pytest.raises(StoreLocked):
                second.session("s")
            with pytest.raises(StoreLocked if "s" in second.sessions() else OpenFailed):
                second.delete_session("s")

    # --- growth

    @rule(sid=SIDS, scope=st.sampled_from(SCOPES))
    def compact(self, sid: str, scope: str) -> None:
        self.ready(sid)
        self.rig.compact(sid, scope)

    # --- trouble

    @rule(fault=FAULTS, nth=st.integers(1, 4))
    def fail(self, fault: tuple[str, int | None, bool, int | None], nth: int) -> None:
        op, code, persistent, short = fault
        self.rig.leftovers = self.rig.leftovers or op == "unlink"
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
