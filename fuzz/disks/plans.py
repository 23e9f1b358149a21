"""What a child does on a disk: short scripts, random play, and what comes after a cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from fuzz.disks.worker import SID, DiskRig, Plan
from fuzz.model import Op, Spec
from fuzz.model_handles import KEYS, POWER, PROCESS, SCOPES
from scopelog import Durability, OpenFailed, ReadFailed

_TEXTS: Final = (3, 40, 40, 700, 700, 3_000, 9_000)  # characters of text: from a small frame to pages
_LOOSE: Final = (*("commit",) * 8, *("scope",) * 5, *("stage",) * 4, "advance", "read", "retire")
_OPERATIONS: Final = (
    *("commit",) * 5,
    *("scope",) * 4,
    *("stage",) * 5,
    *("flush", "advance", "advance", "retire", "reopen", "read", "compact"),
)


def put(key: str, value: object) -> Spec:
    return Spec("set", key=key, value=value)


def add(text: str, key: str = "plain", tag: str | None = None) -> Spec:
    return Spec("append", key=key, kind="list", value=text, tag=tag)


def retire(scope: str) -> Spec:
    return Spec("retire", retired=scope)


# --- scripts: each is cut down at every step ------------------------------------------------------


def birth(rig: DiskRig) -> None:
    """A store, a session and a scope come into being; windows, a higher level, a clean close."""
    rig.open()
    rig.commit(SID, "", [put("a", 1), add("first", tag="t")])
    rig.commit(SID, "op-1", [put("a", 2), add("of the scope")])
    rig.stage(SID, "op-1", "text", "staged ")
    rig.stage(SID, "", "text", "in main ")
    rig.advance(100)
    rig.commit(SID, "op-1", [add("durable")], POWER)
    rig.commit(SID, "", [add("written")], PROCESS)
    rig.close_store()


def lives(rig: DiskRig) -> None:
    """Retirements, and new lives under old ids; the session is opened again in between."""
    rig.open()
    rig.commit(SID, "op-1", [add("first life")], POWER)
    rig.commit(SID, "Op/2", [add("first life")])
    rig.commit(SID, "", [put("done", 1), retire("op-1")])
    rig.commit(SID, "op-1", [add("second life")])
    rig.commit(SID, "", [put("done", 2), retire("Op/2")], PROCESS)
    rig.commit(SID, "Op/2", [add("second life")], POWER)
    rig.close(SID)
    rig.open()
    rig.commit(SID, "", [retire("op-1"), retire("Op/2"), add("settled")])
    rig.close_store()


def growth(rig: DiskRig) -> None:
    """Both logs are written anew, and appended to."""
    rig.open()
    for n in range(3):
        rig.commit(SID, "", [put("a", n), add(f"line {n}"), Spec("trim", key="plain", kind="list", number=n)])
        rig.commit(SID, "op-1", [put("a", n), add(f"of the scope {n}")])
    rig.compact(SID, "")
    rig.commit(SID, "", [add("behind it")])
    rig.compact(SID, "op-1")
    rig.commit(SID, "op-1", [add("behind it")], POWER)
    rig.commit(SID, "", [retire("op-1")])
    rig.close_store()


SCRIPTS: Final[dict[str, Plan]] = {"birth": birth, "lives": lives, "growth": growth}


# --- random play ----------------------------------------------------------------------------------


def play(rig: DiskRig, rng: Random, steps: int, *, loose: bool = False) -> None:
    """So many random operations on an open session; with faults it is neither closed nor read.

    ``loose``: nothing that syncs, unless the rig's settings say so.
    """
    for _ in range(steps):
        _step(rig, rng, rng.choice(_LOOSE if loose else _OPERATIONS), () if loose else (POWER,))


def _step(rig: DiskRig, rng: Random, operation: str, power: tuple[Durability, ...]) -> None:
    scope = rng.choice(SCOPES[1:])
    match operation:
        case "commit":
            specs = [_spec(rng) for _ in range(rng.randint(1, 3))]
            rig.commit(SID, "", specs, rng.choice((None, None, *power, PROCESS)))
        case "scope":
            rig.commit(SID, scope, [_spec(rng) for _ in range(rng.randint(1, 3))], rng.choice((None, None, *power)))
        case "stage":
            for _ in range(rng.randint(1, 5)):
                where = rng.choice(("", scope))
                rig.stage(SID, where, rng.choice(("text", "plain")), _text(rng), rng.choice((None, None, "t")))
        case "flush":
            rig.flush(SID, rng.choice((None, POWER)))
        case "advance":
            rig.advance(rng.choice((50, 100)))
        case "retire":
            rig.commit(SID, "", [put("done", rng.randrange(9)), retire(scope)], rng.choice((None, PROCESS)))
        case "read" if not rig.faulty:
            rig.verify_shown(SID, rng.choice(("", scope)))
        case "reopen" if not rig.faulty:
            rig.close(SID)
            rig.open()
        case "compact" if not rig.faulty:
            where = rng.choice(("", scope))
            if where == "" or where in rig.models[SID].alive():
                rig.compact(SID, where)


def _spec(rng: Random) -> Spec:
    choice = rng.randrange(8)
    if choice == 0:
        return Spec("trim", key="plain", kind="list", number=rng.randrange(1, 200))
    if choice == 1:
        return Spec("delete", key=rng.choice(KEYS))
    if choice < 5:
        return add(_text(rng), tag=rng.choice((None, "t")))
    return put(rng.choice(KEYS), _text(rng))


def _text(rng: Random) -> str:
    """Text that does not compress to nothing."""
    return rng.randbytes(rng.choice(_TEXTS) // 2).hex()


# --- plans ----------------------------------------------------------------------------------------


def cut_short(script: Plan) -> Plan:
    """``script``, which the disk will not let come to its end."""

    def plan(rig: DiskRig) -> None:
        rig.cuts = True
        script(rig)

    return plan


def going_on(seed: int, steps: int, *, power: bool, loose: bool = False) -> Plan:
    """Open what a cut (or, unless ``power``, the end of the process alone) has left, and play until the next."""

    def plan(rig: DiskRig) -> None:
        rig.cuts = True
        rig.open(power=power)
        rig.verify_stored(SID)
        play(rig, Random(seed), steps, loose=loose)

    return plan


def under_fault(seed: int, steps: int) -> Plan:
    """Play while the disk fails in the way that the parent has ready, then on a disk that works again."""

    def plan(rig: DiskRig) -> None:
        rng = Random(seed)
        rig.open()
        play(rig, rng, 8)
        rig.faulty = True
        rig.ask("fail")
        play(rig, rng, steps)
        rig.ask("heal")
        rig.flush(SID, POWER)  # the kernel tells of what it could not write back at the next sync, however late
        try:
            rig.heal()
        except OpenFailed as error:
            if "Read-only" not in error.cause:  # what ext4 makes of a journal that it could not write
                raise
            rig.ask("read-only")
            rig.observe(SID)
        else:
            rig.verify()
            play(rig, rng, 8)

    return plan


def failed_sync(rig: DiskRig) -> None:
    """The bytes of a commit do not reach the disk; the session is opened again and goes on behind them.

    They take several pages: what is written to the last of them later does not bring the others along.
    """
    rig.open()
    rig.commit(SID, "", [put("a", 1), add("before")])
    rig.faulty = True
    rig.ask("fail")
    assert not rig.commit(SID, "", [add(Random(1).randbytes(15_000).hex())], POWER)
    assert not rig.commit(SID, "", [add("refused")], POWER)
    rig.heal()
    rig.commit(SID, "", [add("behind it")], POWER)
    rig.commit(SID, "", [add("and again")], POWER)
    rig.verify()


def dead_disk(rig: DiskRig) -> None:
    """From some moment on nothing reaches the disk any more: every commit says so, and reads go on."""
    rig.open()
    rig.commit(SID, "", [put("a", 1), add("before")])
    rig.commit(SID, "op-1", [add("before")])
    rig.faulty = True
    rig.ask("fail")
    for n in range(4):
        assert not rig.commit(SID, "", [add(f"never {n}")], POWER)
        assert not rig.commit(SID, "op-1", [add(f"never {n}")], POWER)
        rig.verify_shown(SID, "")
        rig.verify_shown(SID, "op-1")
    rig.close(SID)


def failing_reads(rig: DiskRig) -> None:
    """Open and read while the disk fails, then again: an answer is right or an error says that the disk could not be
    read; that is no proof of damage, and not of an end or an absence either. Nothing is lost."""

    def looked() -> None:
        seen.append(rig.observe(SID))

    def opened() -> None:
        rig.sessions[SID] = rig.open_store().session(SID)

    seen: list[dict[str, list[Op]] | None] = []
    looks: list[Callable[[], object]] = [looked, opened, looked]
    looks += [partial(rig.verify_shown, SID, scope) for scope in ("", *rig.models[SID].alive())]
    rig.ask("fail")
    for look in looks:
        if look in looks[:3] or rig.sessions:
            try:
                look()
            except (ReadFailed, OpenFailed) as error:
                if type(error) not in (ReadFailed, OpenFailed):
                    raise
                rig.send("seen", {"refused": 1})
    rig.ask("heal")
    if rig.store is not None:
        rig.store.close(force=True)
    rig.begin()
    truth = rig.observe(SID)
    for one in seen:
        lost = {scope: (len(ops), len((one or {}).get(scope, []))) for scope, ops in (truth or {}).items()}
        assert one == truth, f"what could not be read was left out: {lost}"
    rig.open()
    rig.verify()
    rig.commit(SID, "", [add("behind it")])
    rig.check()


def survive(rig: DiskRig) -> None:
    """Open what a cut has left, append behind it, read it again, and have it checked."""
    rig.cuts = False
    worst = [finding for finding in rig.open_store().check() if finding.severity == "corrupt"]
    assert not worst, worst
    before = rig.observe(SID)
    rig.open(power=True)
    assert (before or {"": []}) == (rig.observe(SID) or {"": []}), "a reader without the lock has the same verdict"
    rig.verify()
    rig.commit(SID, "", [add("behind the repair"), put("b", 5)], PROCESS)
    rig.stage(SID, "op-1", "text", "behind ")
    rig.stage(SID, "op-1", "text", "it")
    rig.flush(SID)
    rig.verify()
    rig.commit(SID, "", [add("and again")], POWER)
    rig.check()


def then(*plans: Callable[[DiskRig], None]) -> Plan:
    """One after the other in one process."""

    def plan(rig: DiskRig) -> None:
        for one in plans:
            one(rig)

    return plan
