"""Want of memory for real: one allocation of a call fails, by the interpreter's own means for that (``_testcapi``).

``python -m fuzz.allocations CALL FIRST STRIDE END`` fails the FIRSTth allocation, the one STRIDE behind it and so on,
each in a forked child, for an extension that does not check what it was given takes its process with it. Prints, as
JSON, how many calls failed, how many children died by a signal, and how many sessions kept their lock. What a child
finds wrong ends with status 1.

After a failure the session must go on: what was acknowledged is there once, what was not is there once or not at all,
and the next commit is fine. One thing is the interpreter's own: to leave ``with lock:`` it makes a tuple, and if that
very allocation fails the lock stays held. Such a session refuses its thread from then on; the file must be sound, which
another process finds out. These are counted.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, TypeVar

from fuzz.simdisk import SimDisk
from scopelog import Durability, Json, ManualClock, ScopelogError, Store, ephemeral, list_of

MAIN: Final = list_of("chat", "messages")
SCOPE: Final = ephemeral("op-1")
OUT: Final = SCOPE.list_of("op", "out")
MAYBE: Final = "maybe"
_OTHER_WORDS: Final = ("can't allocate lock", "error return without exception set")
"""What the interpreter, and an extension, say for want of memory."""
RETURNED, FAILED, STUCK = 0, 3, 4  # exit statuses of a child; 1: something is wrong
T = TypeVar("T")


class Rig:
    """A session with a main log and a scope, and a staged element in each."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.store = Store.open("/store", fs=self.disk, clock=ManualClock())
        self.session = self.store.session("s")
        self.session.commit([MAIN.append("m0")])
        self.session.commit([OUT.append("x0")])
        self.session.append(MAIN, "m1")
        self.session.append(OUT, "x1")


CALLS: Final[dict[str, Callable[[Rig], object]]] = {
    "commit": lambda rig: rig.session.commit([MAIN.append(MAYBE)]),
    "commit to a scope": lambda rig: rig.session.commit([OUT.append(MAYBE)], durability=Durability.POWER),
    "birth": lambda rig: rig.session.commit([ephemeral("new").list_of("op", "out").append(MAYBE)]),
    "append": lambda rig: rig.session.append(MAIN, MAYBE),
    "flush": lambda rig: rig.session.flush(Durability.POWER),
    "retirement": lambda rig: rig.session.commit([SCOPE.retire(), MAIN.append(MAYBE)]),
    "read": lambda rig: rig.session.read(MAIN),
    "compaction": lambda rig: rig.session.compact(),
}


def failing(name: str, nth: int) -> int:
    """Make the call; its ``nth`` allocation fails. Holds the session to its word. Returns RETURNED, FAILED or STUCK."""
    memory: Any = importlib.import_module("_testcapi")
    rig = Rig()
    gc.collect()
    gc.disable()
    returned = True
    memory.set_nomemory(nth, nth + 1)
    try:
        CALLS[name](rig)
    except (MemoryError, ScopelogError):
        returned = False
    except (RuntimeError, SystemError) as error:
        if str(error) not in _OTHER_WORDS:
            raise
        returned = False
    finally:
        memory.remove_mem_hooks()
    gc.enable()
    if rig.session._writer._owned():
        assert not returned, "a call has returned, and its thread still holds the session's lock"
        rig.store = Store.open("/store", fs=rig.disk.kill(), clock=ManualClock())
        rig.session = rig.store.session("s")
        _check_stored(rig, name)
        return STUCK
    _check(rig, name, returned)
    return RETURNED if returned else FAILED


def _check(rig: Rig, name: str, returned: bool) -> None:
    session = rig.session
    _retried(lambda: session.commit([MAIN.append("m2")]))
    _retried(session.flush)
    main, out = [e.element for e in session.read(MAIN)], [e.element for e in session.read(OUT)]
    assert _without(main) == ["m0", "m1", "m2"], main
    if returned and name in ("commit", "append", "retirement"):
        assert MAYBE in main, "acknowledged, and not there"
    assert _without(out) == ([] if name == "retirement" and MAYBE in main else ["x0", "x1"]), out
    session.close()
    with rig.store.session("s") as again:
        assert [e.element for e in again.read(MAIN)] == main and [e.element for e in again.read(OUT)] == out
        assert not again.recovery.torn and not again.recovery.set_aside
    assert [finding for finding in rig.store.check() if finding.severity != "note"] == []


def _check_stored(rig: Rig, name: str) -> None:
    """What another process finds: staged elements are gone, all that was committed is there."""
    main, out = [e.element for e in rig.session.read(MAIN)], [e.element for e in rig.session.read(OUT)]
    assert _without(main)[:1] == ["m0"] and set(main) <= {"m0", "m1", MAYBE}, main
    assert out[:1] == ["x0"] or (name == "retirement" and MAYBE in main), out
    rig.session.commit([MAIN.append("m2")])
    rig.session.close()
    assert [finding for finding in rig.store.check() if finding.severity != "note"] == []


def _without(elements: list[Json]) -> list[Json]:
    assert elements.count(MAYBE) <= 1, "stored twice"
    return [element for element in elements if element != MAYBE]


def _retried(call: Callable[[], T]) -> T:
    """The failure of an earlier flush may be raised once."""
    try:
        return call()
    except ScopelogError:
        return call()


def main(name: str, first: int, stride: int, end: int) -> int:
    logging.disable(logging.CRITICAL)
    failing(name, 1 << 30)  # what is made once is made before
    failed = died = stuck = 0
    for nth in range(first, end, stride):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = failing(name, nth)
            finally:
                if status == 1:
                    traceback.print_exc()
                    sys.stderr.flush()
                os._exit(status)
        found = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(found):
            died += 1
        elif os.WEXITSTATUS(found) == 1:
            print(f"{name}, allocation {nth}", file=sys.stderr)
            return 1
        else:
            failed += os.WEXITSTATUS(found) == FAILED
            stuck += os.WEXITSTATUS(found) == STUCK
    print(json.dumps([failed, died, stuck]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:5])))
