"""Programs: what each operation may be made of, said once. Bytes spell programs, and hypothesis draws the same ones.

:func:`decode` is total: every byte string is a list of operations. :func:`run` plays one on a simulated disk.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fuzz.actions import (
    MAIN_SID,
    Commit,
    Compact,
    Copy,
    CutPower,
    Delete,
    Die,
    Fail,
    Fault,
    Fill,
    Flush,
    Heal,
    Kill,
    Look,
    LoseRetirement,
    LoseSync,
    Operation,
    PassTime,
    Player,
    Policy,
    ReadAll,
    ReadPage,
    Reopen,
    Retire,
    Reuse,
    SecondHandle,
    Stage,
)
from fuzz.domains import Build, Domain, Either, Many, Mapped, Nested, Number, One, Tape, Text
from fuzz.model import Spec
from fuzz.model_handles import KEYS, LISTS, SCOPES, Settings, random_identities, steady_identities
from fuzz.model_rig import Rig
from fuzz.simdisk import Mode, SimDisk
from scopelog import Durability

LEVELS: Final[Domain[Durability | None]] = One(None, Durability.PROCESS, Durability.POWER)
SIDS: Final = One(MAIN_SID, MAIN_SID, MAIN_SID, "Other/ß")
SCOPE_IDS: Final = One(*SCOPES)
EPHEMERAL_IDS: Final = One(*SCOPES[1:])
ADDRESSES: Final = One(*LISTS)
TEXT: Final = Text("abc \ud800é", 4)
TAGS: Final[Domain[str | None]] = One(None, None, None, "t", "turn")
_FLOATS: Final = One(0.0, -0.0, 1.5, -1e300, 5e-324)
JSON: Final = Nested(Either[Any](One(None, True, False), Number(-(2**70), 2**70), _FLOATS, TEXT), TEXT)


def _appended(address: tuple[str, str], text: str, element: Any, tag: str | None) -> Spec:
    return Spec("append", address[0], address[1], "list", text if address[1] == "text" else element, tag)


_APPENDS: Final = Build(_appended, address=ADDRESSES, text=TEXT, element=JSON, tag=TAGS)
_TRIMS: Final = Build(
    lambda address, number: Spec("trim", address[0], address[1], "list", number=number),
    address=ADDRESSES,
    number=Number(0, 40),
)
_LIST_DELETES: Final = Mapped(ADDRESSES, lambda address: Spec("delete", address[0], address[1], "list"))
_SETS: Final = Build(Spec, op=One("set"), namespace=One(*"nm"), key=One(*KEYS), value=JSON)
_DELETES: Final = Build(Spec, op=One("delete"), namespace=One(*"nm"), key=One(*KEYS))
SPECS: Final = Either[Spec](_APPENDS, _APPENDS, _APPENDS, _TRIMS, _LIST_DELETES, _SETS, _SETS, _SETS, _DELETES)
WRITES: Final = Many(SPECS, 1, 4)
MAYBE_WRITES: Final = Either[list[Spec]](Build(list), WRITES)
RETIREMENTS: Final = Many(Mapped(EPHEMERAL_IDS, lambda scope: Spec("retire", retired=scope)), 1, 2)
_NONE: Final = One(None)
POLICIES: Final = Either[Policy](
    One(Policy("lose")),
    One(Policy("keep")),
    Build(Policy, kind=One("prefix"), first=Number(0, 6), kept=Either[int | None](_NONE, Number(0, 6))),
    Build(Policy, kind=One("random"), seed=Number(0, 1 << 16)),
)
FAULTS: Final = One(
    Fault("pwrite", errno.ENOSPC),
    Fault("pwrite", errno.ENOSPC, persistent=True),
    Fault("pwrite", errno.EIO),
    Fault("pwrite", short=7),
    Fault("pwrite", errno.ENOSPC, short=40),
    Fault("pwrite", errno.EDQUOT, short=1),
    Fault("sync", errno.EIO),
    Fault("sync", errno.EIO),
    Fault("sync", errno.EIO, persistent=True),
    Fault("sync_dir", errno.EIO),
    Fault("unlink", errno.EACCES),
    Fault("unlink", errno.EACCES, persistent=True),
    Fault("rename", errno.EIO),
    Fault("create", errno.EMFILE),
    Fault("allocate", errno.ENOSPC, persistent=True),
    Fault("truncate", errno.EIO),
)
_PAGED: Final = {
    "cursor": Either[int | None](_NONE, Number(0, 60)),
    "descending": One(False, True),
    "limit": Either[int | None](_NONE, Number(0, 5)),
    "stop": TAGS,
}
DOMAINS: Final[dict[type[Operation], Domain[Operation]]] = {
    Commit: Build(Commit, sid=SIDS, scope=SCOPE_IDS, specs=WRITES, level=LEVELS),
    Stage: Build(
        Stage,
        sid=SIDS,
        scope=SCOPE_IDS,
        address=ADDRESSES,
        texts=Many(Build(lambda text, tag: (text, tag), text=TEXT, tag=TAGS), 1, 8),
    ),
    Retire: Build(Retire, sid=SIDS, retirements=RETIREMENTS, before=MAYBE_WRITES, after=MAYBE_WRITES, level=LEVELS),
    Reuse: Build(Reuse, scope=EPHEMERAL_IDS, specs=WRITES, level=LEVELS),
    Flush: Build(Flush, sid=SIDS, level=LEVELS),
    PassTime: Build(PassTime, milliseconds=One(5, 15, 20, 60, 100, 300, 7000)),
    ReadAll: Build(ReadAll, sid=SIDS, scope=SCOPE_IDS),
    ReadPage: Build(ReadPage, sid=SIDS, scope=SCOPE_IDS, address=ADDRESSES, **_PAGED),
    Look: Build(Look),
    Reopen: Build(Reopen, sid=SIDS),
    Delete: Build(Delete, sid=SIDS),
    SecondHandle: Build(SecondHandle),
    Compact: Build(Compact, sid=SIDS, scope=SCOPE_IDS),
    Copy: Build(Copy),
    Fail: Build(Fail, fault=FAULTS, nth=Number(1, 4)),
    Fill: Build(Fill, room=Number(0, 3000)),
    Heal: Build(Heal),
    Kill: Build(Kill),
    CutPower: Build(CutPower, policy=POLICIES),
    LoseSync: Build(LoseSync, scope=SCOPE_IDS, specs=WRITES, policy=POLICIES),
    LoseRetirement: Build(LoseRetirement, scope=EPHEMERAL_IDS, specs=WRITES, level=LEVELS, policy=POLICIES),
}
"""Every type that a rule of the state machines can draw, and what its values may be."""
DOMAINS[Die] = Build(
    Die,
    call=Either[Operation](*(DOMAINS[kind] for kind in (Commit, Retire, Flush, PassTime, Compact, Reopen))),
    step=Number(1, 12),
    mode=One[Mode]("before", "after", "torn"),
    torn=Number(0, 40),
    policy=Either[Policy | None](_NONE, POLICIES),
    again=Number(1, 12),
    times=Number(0, 2),
)


@dataclass(frozen=True)
class Program:
    """A store to begin with, and what happens to it."""

    settings: Settings
    preallocates: bool
    operations: list[Operation] = field(default_factory=list)


_LEVEL: Final = One(Durability.POWER, Durability.PROCESS)
SETTINGS: Final = Build(Settings, durability=_LEVEL, scope_durability=_LEVEL, window_ms=One(100, 20, 0))
OPERATIONS: Final = Either[Operation](*(DOMAINS[kind] for kind in (Commit, Stage, Commit, Stage)), *DOMAINS.values())
PROGRAMS: Final = Build(
    Program, settings=SETTINGS, preallocates=One(False, False, False, True), operations=Many(OPERATIONS, 1)
)


def decode(data: bytes) -> list[Operation]:
    """The operations that the bytes spell: some, whatever they are."""
    return Many(OPERATIONS, 1).take(Tape(data))


def run(operations: Sequence[Operation], settings: Settings | None = None, *, preallocates: bool = False) -> int:
    """Play the operations on a new store on a simulated disk, with every answer held against the model; returns how
    many could happen. Raises AssertionError, or whatever the engine did not turn into an error of its own."""
    steady_identities()
    try:
        player = Player()
        player.rig = Rig(settings or Settings(), SimDisk(preallocates=preallocates))
        player.rig.open(MAIN_SID)
        done = 0
        for operation in operations:
            done += operation.possible(player.rig)
            player.perform(operation)
            for sid in player.rig.sessions:
                player.rig.verify_stored(sid)
        if player.rig.faulty:
            player.rig.heal()
        player.rig.check()
        return done
    finally:
        random_identities()
