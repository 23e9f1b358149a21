"""Operations as plain types: what may happen to a store. Every fuzzer of the whole engine draws from this list.

An operation acts on a *player*: a rig (the engine on a disk, the reference model beside it) and what the fuzzer wants
opened. The state machines of hypothesis are players with a rule for each type; :mod:`fuzz.programs` says what the
types are made of, and plays programs that any bytes spell.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, NamedTuple

from fuzz.model import Spec
from fuzz.model_handles import PATH, POWER
from fuzz.model_rig import Rig
from fuzz.simdisk import CrashPolicy, KeepAll, LoseAll, Mode, Prefix, RandomLoss, SimCrash
from scopelog import Durability, OpenFailed, Store, StoreLocked

MAIN_SID: Final = "s"


class Player:
    """Who plays: ``s`` is open whenever the machine is up. The state machines are players, too."""

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

    def reopened(self, *, power: bool = False) -> None:
        """Open what is worked on. ``power``: after a power cut."""
        for sid in sorted({MAIN_SID, *self.rig.models}):
            if power and sid not in self.rig.sessions:
                self.rig.open(sid, power=True)
            else:
                self.ready(sid)

    def perform(self, operation: Operation) -> None:
        if operation.possible(self.rig):
            operation.run(self)


@dataclass(frozen=True)
class Operation(ABC):
    def possible(self, rig: Rig) -> bool:
        """Whether it can happen now. What cannot is left out."""
        return True

    @abstractmethod
    def run(self, player: Player) -> None: ...


class Policy(NamedTuple):
    """What a power cut spares, as plain data; see :mod:`fuzz.simdisk`."""

    kind: Literal["lose", "keep", "prefix", "random"]
    first: int = 0
    kept: int | None = None
    seed: int = 0

    def make(self) -> CrashPolicy:
        if self.kind == "random":
            return RandomLoss(Random(self.seed))
        if self.kind == "prefix":
            return Prefix(self.first, self.kept)
        return LoseAll() if self.kind == "lose" else KeepAll()


class Fault(NamedTuple):
    """A step of the disk that fails: arguments of :meth:`fuzz.simdisk.SimDisk.fail`."""

    op: str
    errno: int | None = None
    persistent: bool = False
    short: int | None = None


# --- writes and reads -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Commit(Operation):
    sid: str
    scope: str
    specs: list[Spec]
    level: Durability | None

    def run(self, player: Player) -> None:
        player.ready(self.sid)
        player.rig.commit(self.sid, self.scope, self.specs, self.level)


@dataclass(frozen=True)
class Retire(Operation):
    """Retirements, between other writes of the session scope."""

    sid: str
    retirements: list[Spec]
    before: list[Spec]
    after: list[Spec]
    level: Durability | None

    def run(self, player: Player) -> None:
        player.ready(self.sid)
        player.rig.commit(self.sid, "", [*self.before, *self.retirements, *self.after], self.level)


@dataclass(frozen=True)
class Reuse(Operation):
    """A scope is retired, and its id used again at once."""

    scope: str
    specs: list[Spec]
    level: Durability | None

    def run(self, player: Player) -> None:
        player.ready(MAIN_SID)
        player.rig.commit(MAIN_SID, "", [Spec("retire", retired=self.scope)], self.level)
        player.rig.commit(MAIN_SID, self.scope, self.specs, self.level)


@dataclass(frozen=True)
class Stage(Operation):
    sid: str
    scope: str
    address: tuple[str, str]
    texts: list[tuple[str, str | None]]

    def run(self, player: Player) -> None:
        player.ready(self.sid)
        for text, tag in self.texts:
            player.rig.stage(self.sid, self.scope, self.address[1], text, tag, self.address[0])


@dataclass(frozen=True)
class Flush(Operation):
    sid: str
    level: Durability | None

    def run(self, player: Player) -> None:
        player.ready(self.sid)
        player.rig.flush(self.sid, self.level)


@dataclass(frozen=True)
class PassTime(Operation):
    milliseconds: int

    def run(self, player: Player) -> None:
        player.rig.advance(self.milliseconds)


@dataclass(frozen=True)
class ReadAll(Operation):
    """Every list and value of a scope, through the writer's own handle."""

    sid: str
    scope: str

    def run(self, player: Player) -> None:
        player.ready(self.sid)
        player.rig.verify_shown(self.sid, self.scope)


@dataclass(frozen=True)
class ReadPage(Operation):
    sid: str
    scope: str
    address: tuple[str, str]
    cursor: int | None
    descending: bool
    limit: int | None
    stop: str | None

    def run(self, player: Player) -> None:
        player.ready(self.sid)
        order: Literal["asc", "desc"] = "desc" if self.descending else "asc"
        player.rig.verify_page(self.sid, self.scope, *self.address, self.cursor, order, self.limit, self.stop)


@dataclass(frozen=True)
class Look(Operation):
    """A reader without the lock finds exactly what is stored."""

    def run(self, player: Player) -> None:
        for sid in player.rig.sessions:
            player.rig.verify_stored(sid)


# --- handles and growth ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Reopen(Operation):
    sid: str

    def run(self, player: Player) -> None:
        player.ready(self.sid)
        player.rig.close(self.sid)
        player.reopened()


@dataclass(frozen=True)
class Delete(Operation):
    sid: str

    def possible(self, rig: Rig) -> bool:
        return not rig.faulty

    def run(self, player: Player) -> None:
        if self.sid in player.rig.sessions:
            player.rig.close(self.sid)
        player.rig.delete(self.sid)
        player.reopened()


@dataclass(frozen=True)
class SecondHandle(Operation):
    """Of the same process, and of a store that is opened beside: refused before anything is touched."""

    def run(self, player: Player) -> None:
        rig = player.rig
        player.ready(MAIN_SID)
        _refused(StoreLocked, lambda: rig.open_store().session(MAIN_SID))
        with Store.open(PATH, fs=rig.disk, clock=rig.clock) as second:
            _refused(StoreLocked, lambda: second.session(MAIN_SID))
            there = MAIN_SID in second.sessions()
            _refused(StoreLocked if there else OpenFailed, lambda: second.delete_session(MAIN_SID))


def _refused(error: type[OpenFailed], call: Callable[[], object]) -> None:
    try:
        call()
    except error:
        return
    raise AssertionError(f"a second handle was not refused with {error.__name__}")


@dataclass(frozen=True)
class Compact(Operation):
    sid: str
    scope: str

    def run(self, player: Player) -> None:
        player.ready(self.sid)
        player.rig.compact(self.sid, self.scope)


@dataclass(frozen=True)
class Copy(Operation):
    """A copy of a session that is in use holds the session scope as it is stored; it is deleted again."""

    def possible(self, rig: Rig) -> bool:
        return not rig.faulty and any(life.stored for life in rig.models[MAIN_SID].lives.get("", []))

    def run(self, player: Player) -> None:
        rig, store = player.rig, player.rig.open_store()
        there = rig.observe(MAIN_SID) or {}
        store.copy(MAIN_SID, "copy")
        kept = [op for op in there[""] if op.spec.op != "retire"]  # no scope comes along, so none is to be ended
        assert rig.observe("copy") == {"": kept}, "a copy holds the session scope, and nothing else"
        store.delete_session("copy")


# --- trouble --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fail(Operation):
    """The ``nth`` coming step of that kind fails."""

    fault: Fault
    nth: int

    def run(self, player: Player) -> None:
        op, code, persistent, short = self.fault
        player.rig.leftovers = player.rig.leftovers or op == "unlink"
        player.rig.disk.fail(op, self.nth, code, PATH, persistent, short)
        player.rig.faulty = True


@dataclass(frozen=True)
class Fill(Operation):
    """The disk has room for so many bytes more."""

    room: int

    def run(self, player: Player) -> None:
        player.rig.disk.capacity = player.rig.disk.used + self.room
        player.rig.faulty = True


@dataclass(frozen=True)
class Heal(Operation):
    def possible(self, rig: Rig) -> bool:
        return rig.faulty

    def run(self, player: Player) -> None:
        player.rig.heal()


@dataclass(frozen=True)
class Kill(Operation):
    def run(self, player: Player) -> None:
        player.rig.kill()
        player.reopened()


@dataclass(frozen=True)
class CutPower(Operation):
    policy: Policy

    def run(self, player: Player) -> None:
        player.rig.cut_power(self.policy.make())
        player.reopened(power=True)


@dataclass(frozen=True)
class LoseSync(Operation):
    """A commit's sync fails; the log refuses until it is opened again; what is acknowledged then stays."""

    scope: str
    specs: list[Spec]
    policy: Policy

    def possible(self, rig: Rig) -> bool:
        return not rig.faulty

    def run(self, player: Player) -> None:
        rig = player.rig
        player.ready(MAIN_SID)
        rig.disk.fail("sync", path=PATH)
        rig.faulty = True
        rig.commit(MAIN_SID, self.scope, self.specs, POWER)
        rig.disk.heal()
        rig.commit(MAIN_SID, self.scope, self.specs, POWER)
        rig.heal()
        rig.commit(MAIN_SID, self.scope, self.specs, POWER)
        rig.verify_stored(MAIN_SID)
        CutPower(self.policy).run(player)


@dataclass(frozen=True)
class LoseRetirement(Operation):
    """The power fails soon after a retirement: the life is over or goes on, as a whole."""

    scope: str
    specs: list[Spec]
    level: Durability | None
    policy: Policy

    def possible(self, rig: Rig) -> bool:
        return not rig.faulty

    def run(self, player: Player) -> None:
        rig = player.rig
        player.ready(MAIN_SID)
        rig.commit(MAIN_SID, self.scope, self.specs, self.level)
        rig.commit(MAIN_SID, "", [Spec("retire", retired=self.scope)])
        rig.commit(MAIN_SID, self.scope, self.specs[:1])
        CutPower(self.policy).run(player)


@dataclass(frozen=True)
class Die(Operation):
    """The process dies in step ``step`` of the disk during a call, or the power fails there; and then again, while the
    sessions are opened, in step ``again`` of that, as often as ``times`` says. ``policy`` None: the process alone."""

    call: Operation
    step: int
    mode: Mode
    torn: int
    policy: Policy | None
    again: int
    times: int

    def possible(self, rig: Rig) -> bool:
        return not rig.faulty and self.call.possible(rig)

    def run(self, player: Player) -> None:
        if not self._dies(player, self.call.run, self.step):
            return
        for _ in range(self.times):
            if not self._dies(player, lambda player: player.reopened(power=self.policy is not None), self.again):
                return
        player.reopened(power=self.policy is not None)

    def _dies(self, player: Player, call: Callable[[Player], None], step: int) -> bool:
        rig = player.rig
        rig.disk.crash_at(rig.disk.steps + step, self.mode, self.torn)
        with contextlib.suppress(SimCrash):
            call(player)
        if rig.disk.crashed:  # perhaps unnoticed: in a last step that failed by itself
            rig.kill() if self.policy is None else rig.cut_power(self.policy.make())
            return True
        rig.disk.crash_at(1 << 60)
        return False
