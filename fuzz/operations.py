"""The operations of a session that every rig of crashes runs: one short typed list, for sequences and for chance alike.

Each is made on a :class:`Rig`, which makes it on the model as well. What they write depends on nothing but themselves,
so that different ways to one state end in the same bytes.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from fuzz.model import Spec
from fuzz.model_handles import POWER, Settings
from fuzz.model_rig import Rig
from fuzz.simdisk import SimDisk
from fuzz.survival import SID
from scopelog import Durability

SCOPE: Final = "op-1"


class Op(Enum):
    COMMIT = "commit"
    APPEND = "append"  # staged
    FLUSH = "flush"
    RETIRE = "retire"
    REUSE = "reuse"  # retired, and written to again
    TRIM = "trim"
    COMPACT = "compact"
    CLOSE = "close"  # of the whole store
    REOPEN = "reopen"
    CHECKPOINT = "checkpoint"  # of the index, where there is one


class Step(NamedTuple):
    """One operation. ``level``: what a flush is asked for."""

    op: Op
    scope: str = ""
    level: Durability | None = None

    def __str__(self) -> str:
        return " ".join(filter(None, (self.op.value, self.scope, self.level.name.lower() if self.level else "")))


STEPS: Final = (
    Step(Op.COMMIT),
    Step(Op.COMMIT, SCOPE),
    Step(Op.APPEND),
    Step(Op.APPEND, SCOPE),
    Step(Op.FLUSH),
    Step(Op.FLUSH, level=POWER),
    Step(Op.RETIRE, SCOPE),
    Step(Op.REUSE, SCOPE),
    Step(Op.TRIM),
    Step(Op.TRIM, SCOPE),
    Step(Op.COMPACT),
    Step(Op.COMPACT, SCOPE),
    Step(Op.CLOSE),
    Step(Op.REOPEN),
)
"""All but the checkpoint: LMDB wants a real directory, which a rig of its own gives it."""


def perform(rig: Rig, step: Step) -> None:
    """Make the operation on the rig, whose session is opened first if it is not open."""
    if step.op is Op.CLOSE:
        rig.close_store()
        return
    if step.op is Op.REOPEN and SID in rig.sessions:
        rig.close(SID)
    if SID not in rig.sessions:
        rig.open(SID)
    _WRITES[step.op](rig, step)


def _commit(rig: Rig, step: Step) -> None:
    rig.commit(SID, step.scope, [Spec("set", key="a", value=1), Spec("append", key="plain", kind="list", value="one")])


def _append(rig: Rig, step: Step) -> None:
    rig.stage(SID, step.scope, "text", "two ")


def _flush(rig: Rig, step: Step) -> None:
    rig.flush(SID, step.level)


def _retire(rig: Rig, step: Step) -> None:
    rig.commit(SID, "", [Spec("retire", retired=step.scope)])


def _reuse(rig: Rig, step: Step) -> None:
    _retire(rig, step)
    rig.commit(SID, step.scope, [Spec("set", key="b", value="again")])


def _trim(rig: Rig, step: Step) -> None:
    last = rig.models[SID].last
    rig.commit(SID, step.scope, [Spec("trim", key="plain", kind="list", number=last), Spec("delete", key="a")])


def _compact(rig: Rig, step: Step) -> None:
    rig.compact(SID, step.scope)


def _nothing(rig: Rig, step: Step) -> None:
    """The session is open: that was all."""


_WRITES: Final = {
    Op.COMMIT: _commit,
    Op.APPEND: _append,
    Op.FLUSH: _flush,
    Op.RETIRE: _retire,
    Op.REUSE: _reuse,
    Op.TRIM: _trim,
    Op.COMPACT: _compact,
    Op.REOPEN: _nothing,
}


class Beginning(NamedTuple):
    """How a run begins. ``lived``: both scopes have been written to; else there is nothing, not even a store."""

    settings: Settings = Settings()
    lived: bool = True
    preallocates: bool = False

    def rig(self) -> Rig:
        rig = Rig(self.settings, SimDisk(preallocates=self.preallocates))
        self.live(rig)
        return rig

    def live(self, rig: Rig) -> None:
        """What comes before the sequence."""
        for scope in ("", SCOPE) if self.lived else ():
            perform(rig, Step(Op.COMMIT, scope))
