"""The engine's state machine with followers beside it that crash and resume, on a simulated disk.

What a follower has seen since its last base is, scope by scope, a contiguous piece of what is stored; once it has
caught up it is all of it; or it was told to restart. With ``durable=True`` nothing it has seen is ever lost, also not
by a power cut, and no loss makes it restart.
"""

from __future__ import annotations

from random import Random

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from fuzz.actions import Delete, Operation
from fuzz.model_handles import SCOPES, Settings, random_identities, steady_identities
from fuzz.model_rig import Rig
from fuzz.simdisk import KeepAll, LoseAll, Prefix, RandomLoss
from scopelog import Durability, LogRecord, NoSuchSession, SessionFollower
from scopelog_engine.header import Header
from tests.follow_rig import SESSION_ID, Receiver, drain, stored
from tests.model_machine import SessionRules

POLICIES = (
    st.just(LoseAll())
    | st.just(KeepAll())
    | st.builds(Prefix, st.integers(0, 12), st.none() | st.integers(0, 40))
    | st.integers(0, 2**32).map(lambda seed: RandomLoss(Random(seed)))
)


def above(records: list[LogRecord], high: int) -> list[LogRecord]:
    return [record for record in records if record.seq > high]


class Pair:
    """A follower and its receiver. ``may_restart``: something was lost since the last look that it may have seen."""

    def __init__(self, durable: bool) -> None:
        self.durable = durable
        self.receiver = Receiver()
        self.follower: SessionFollower | None = None
        self.may_restart = False
        self.lost: list[LogRecord] = []


class FollowMachine(SessionRules):
    def __init__(self) -> None:
        super().__init__()
        steady_identities()

    @initialize(
        durability=st.sampled_from(Durability),
        scope_durability=st.sampled_from(Durability),
        window=st.sampled_from([0, 20, 100]),
    )
    def begin(self, durability: Durability, scope_durability: Durability, window: int) -> None:
        self.rig = Rig(Settings(durability, scope_durability, window))
        self.pairs = [Pair(durable=False), Pair(durable=True)]
        self.ready("s")

    # --- followers

    def look(self, pair: Pair) -> None:
        store = self.rig.open_store()
        receiver = pair.receiver
        if pair.follower is None:
            try:
                pair.follower = store.follow(
                    "s", None if receiver.saved is None else receiver.saved[2], durable=pair.durable
                )
            except NoSuchSession:
                return
        before = len(receiver.restarts)
        receiver.take(drain(pair.follower))
        if receiver.deleted:
            pair.follower, pair.receiver = None, Receiver()
            pair.may_restart = False
            return
        restarts = receiver.restarts[before:]
        assert not restarts or pair.may_restart, restarts
        pair.may_restart = False
        with store.reader("s") as reader:
            there = stored(reader)
            headers = {scope: view.header for scope, view, _ in reader._reader.logs()}
        if pair.durable:
            self.holds(receiver.records, there, headers)
            return
        assert {scope for scope, records in receiver.records.items() if records} <= {*headers}
        for scope, header in headers.items():
            seen, high = receiver.records.get(scope, []), header.high
            assert above(seen, high) == above(there.get(scope, []), high), "caught up, it has seen all there is"
            assert all(record in seen for record in there.get(scope, [])), "and what a compaction has left"

    def holds(
        self, seen: dict[str, list[LogRecord]], there: dict[str, list[LogRecord]], headers: dict[str, Header]
    ) -> None:
        """What was seen is stored: a prefix of it, or of a life that was retired since."""
        for scope, records in seen.items():
            now, header = there.get(scope, []), headers.get(scope)
            if header is not None and records and records[0].seq >= header.first:
                whole = above(now, header.high)
                told = above(records, header.high)
                assert whole[: len(told)] == told, f"{scope!r}: what was seen is lost"
            elif records:
                model = self.rig.models["s"]
                alive = {name: life for name, life in model.living().items() if life.stored}
                assert scope not in alive or alive[scope].stored[0].seq > records[-1].seq, f"{scope!r} is lost"

    @rule(which=st.integers(0, 1))
    def poll(self, which: int) -> None:
        self.look(self.pairs[which])

    @rule(which=st.integers(0, 1))
    def crash_of_the_follower(self, which: int) -> None:
        pair = self.pairs[which]
        if pair.follower is not None:
            pair.follower.close()
            pair.follower = None
            if pair.receiver.saved is not None:
                pair.receiver.crash()

    @rule(which=st.integers(0, 1))
    def another_follower(self, which: int) -> None:
        """Begins with a base of what there is now."""
        pair = self.pairs[which] = Pair(durable=self.pairs[which].durable)
        self.look(pair)

    @rule(scope=st.sampled_from(SCOPES))
    def compact(self, scope: str) -> None:
        self.ready("s")
        self.rig.compact("s", scope)
        for pair in self.pairs:
            pair.may_restart = True

    # --- trouble

    def gone(self) -> None:
        """The machine of the followers went down as well."""
        for pair in self.pairs:
            pair.follower = None
            if pair.receiver.saved is not None:
                pair.receiver.crash()

    @rule()
    def kill(self) -> None:
        """Of the writer alone: the followers live on, and what they see cannot go back."""
        self.rig.kill()
        for pair in self.pairs:
            if pair.follower is not None:
                pair.follower._follower._fs = self.rig.disk  # the same files, as far as they can tell
        self.reopened()

    @rule(policy=POLICIES, before=st.sampled_from(["", "look", "begin"]))
    def power_cut(self, policy: LoseAll | KeepAll | Prefix | RandomLoss, before: str) -> None:
        """``before``: what the followers do at the last moment."""
        for which in (0, 1) if before else ():
            if before == "begin":
                self.another_follower(which)
            self.look(self.pairs[which])
        self.rig.cut_power(policy)
        self.gone()
        for pair in self.pairs:
            pair.may_restart = pair.may_restart or not pair.durable
        self.reopened(power=True)
        for pair in self.pairs if before else ():
            self.look(pair)

    @precondition(lambda self: not self.rig.faulty)
    @rule()
    def look_in_the_end(self) -> None:
        self.rig.close_store()
        for pair in self.pairs:
            pair.follower = None
            if pair.receiver.saved is not None:
                pair.receiver.crash()
        for pair in self.pairs:
            self.look(pair)
            if pair.durable and pair.follower is not None:
                with self.rig.open_store().reader("s") as reader:
                    seen, there = pair.receiver.records[SESSION_ID], stored(reader)[SESSION_ID]
                    high = reader._reader.header.high
                assert above(seen, high) == above(there, high), "a clean close proves everything"
                assert all(record in seen for record in there)
        self.reopened()

    def perform(self, operation: Operation) -> None:
        """Time passes before a deletion: a session made anew in the same millisecond might be taken for the old one."""
        if isinstance(operation, Delete):
            self.rig.advance(1)
        super().perform(operation)

    def teardown(self) -> None:
        random_identities()


FollowMachine.TestCase.settings = settings(
    stateful_step_count=25, report_multiple_bugs=False, phases=[Phase.generate, Phase.shrink]
)
TestFollowMachine = FollowMachine.TestCase
