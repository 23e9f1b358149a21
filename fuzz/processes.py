"""Real processes that are killed, and whose system calls fail, at every place of a script: what is left is verified.

Each case is a child forked from this process (:mod:`fuzz.ptrace`), which works on a store of its own in a directory of
memory where there is one: what a kill leaves is the page cache's, whatever the disk below. A case is named by one
line, ``name, call number, what was done``, and replays from it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from errno import EACCES, EDQUOT, EFBIG, EINTR, EIO, EMFILE, ENFILE, ENOLCK, ENOMEM, ENOSPC, EOPNOTSUPP, EROFS
from typing import Final, NamedTuple

from fuzz import ptrace
from fuzz.process_child import TORN, Scenario, perform, put_right
from fuzz.process_rig import Files, ProcessRig, State, Told, files_of, lay, logs_of, survive
from fuzz.ptrace import KILL, Action, Call, Ended, Plan, fail, shorten

SYNCS: Final = ("fsync", "fdatasync")
WRITES: Final = ("pwrite64", "write", "ftruncate", "fallocate")
READS: Final = ("pread64", "read", "getdents64", "lseek", "newfstatat", "fstat", "access", "faccessat2")
NAMES: Final = ("openat", "rename", "mkdir", "unlink", "rmdir", "flock", "close")
ERRORS: Final[dict[str, tuple[int, ...]]] = {
    "fsync": (EIO, ENOSPC, EDQUOT),
    "fdatasync": (EIO, ENOSPC, EDQUOT),
    "pwrite64": (EIO, ENOSPC, EDQUOT, EINTR, EFBIG),
    "ftruncate": (EIO, EINTR, EROFS),
    "fallocate": (ENOSPC, EOPNOTSUPP, EIO, EDQUOT, EINTR),
    "pread64": (EIO, EINTR),
    "getdents64": (EIO,),
    "newfstatat": (EIO, EACCES, ENOMEM),
    "fstat": (EIO,),
    "access": (EACCES,),
    "openat": (EMFILE, ENFILE, EACCES, EIO, ENOSPC, ENOMEM, EROFS),
    "rename": (EIO, ENOSPC, EACCES, EROFS),
    "mkdir": (ENOSPC, EACCES, EROFS),
    "unlink": (EIO, EACCES, EROFS),
    "rmdir": (EIO,),
    "flock": (ENOLCK, EINTR),
}
"""What each call may fail with; of a call that is not here, nothing is injected."""


@contextlib.contextmanager
def directory() -> Iterator[str]:
    """An empty directory, in memory if the machine has room for it there."""
    memory = "/dev/shm"
    base = memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 32 << 20 else None
    path = tempfile.mkdtemp(prefix="processes-", dir=base)
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Outcome(NamedTuple):
    """What a child left: how it ended, and what it told last. ``error``: its traceback, if it ended with one."""

    ended: Ended
    state: State | None
    error: str
    failures: tuple[str, ...] = ()


def attempt(
    where: str,
    scenario: Scenario,
    plan: Plan | None = None,
    *,
    start: State | None = None,
    prepare: Callable[[], None] | None = None,
    faulty: bool = False,
    lasting: bool = False,
) -> Outcome:
    """Perform a scenario in a child, in the directory ``where``. ``faulty``: calls may fail, and it goes on until
    all is well again. ``prepare`` is called in the child first."""
    told = Told()

    def work() -> None:
        try:
            if prepare is not None:
                prepare()
            rig = ProcessRig(os.path.join(where, "store"), scenario.settings, told, start)
            rig.faulty = rig.leftovers = faulty
            rig.lasting = lasting
            perform(rig, scenario)
            if faulty:
                put_right(rig)
            told.add(("failures", tuple(rig.failures)))
        except BaseException:  # noqa: BLE001 - told, and the child ends with it
            told.add(("error", traceback.format_exc()))
            raise SystemExit(1) from None

    ended = ptrace.run(work, where, plan)
    records = told.records()
    told.close()
    state = next((record for record in reversed(records) if isinstance(record, State)), None)
    rest = dict(record for record in records if not isinstance(record, State))
    return Outcome(ended, state, rest.get("error", ""), rest.get("failures", ()))


class Case(NamedTuple):
    """Something that is done to a call of a scenario. ``lasting``: to all later ones of its name, too."""

    call: Call
    what: str
    action: Action
    lasting: bool = False

    def plan(self) -> Plan:
        at, name = self.call.number, self.call.name

        def decide(call: Call) -> Action | None:
            if call.number == at or (self.lasting and call.number > at and call.name == name):
                return self.action
            return None

        return decide

    def __str__(self) -> str:
        return f"call {self.call.number} ({self.call.name} {self.call.path}), {self.what}"


def kills(calls: list[Call]) -> Iterator[Case]:
    """Killed before each call; and in the middle of each write, with some of it written."""
    for call in calls:
        yield Case(call, "killed before it", KILL)
        if call.name == "pwrite64":
            for count in sorted({1, call.length // 2, call.length - 1} - {0, call.length}):
                yield Case(call, f"killed after {count} of {call.length} bytes", shorten(count, then_kill=True))


def failures(calls: list[Call], names: tuple[str, ...], lasting: bool = False) -> Iterator[Case]:
    """Every call of these names fails, with each error that it may fail with; once, or from then on for ever."""
    for call in calls:
        for error in ERRORS.get(call.name, ()) if call.name in names else ():
            if not (lasting and error == EINTR):
                yield Case(call, f"{os.strerror(error)}{' for ever' if lasting else ''}", fail(error), lasting)


def shortened(calls: list[Call], name: str) -> Iterator[Case]:
    """Every read or write stops short: once, and from then on for ever, byte by byte where that is not for long."""
    for call in calls:
        if call.name == name and call.length > 1:
            for count in sorted({1, call.length // 2, call.length - 1}):
                yield Case(call, f"{count} of {call.length} bytes", shorten(count))
            if call.length < 1000:
                yield Case(call, "7 bytes at a time", shorten(7), lasting=True)


_known: Final[dict[str, tuple[Scenario, Files, State | None, list[Call]]]] = {}
"""What each scenario begins with and which calls it makes: the same every time."""


class Place:
    """A scenario, in a directory, with what it begins with."""

    def __init__(self, where: str, name: str, scenario: Scenario, prepare: Callable[[], None] | None = None) -> None:
        self.where = where
        self.name = name
        self.scenario = scenario
        self.prepare = prepare
        self.files: Files = {}
        self.state: State | None = None
        if name not in _known or _known[name][0] is not scenario:
            if scenario.torn:
                self.files, self.state = self._torn()
            _known[name] = scenario, self.files, self.state, self._undisturbed()
        _, self.files, self.state, self.calls = _known[name]

    def lay(self, files: Files | None = None) -> None:
        for entry in os.scandir(self.where):
            shutil.rmtree(entry.path)
        lay(self.where, self.files if files is None else files)

    def attempt(self, plan: Plan | None = None, *, faulty: bool = False, lasting: bool = False) -> Outcome:
        return attempt(
            self.where,
            self.scenario,
            plan,
            start=self.state,
            prepare=self.prepare,
            faulty=faulty,
            lasting=lasting,
        )

    def _undisturbed(self) -> list[Call]:
        self.lay()
        outcome = self.attempt()
        assert not outcome.error and outcome.ended.status == 0, f"{self.name}: {outcome.ended.status} {outcome.error}"
        self.survive(outcome)
        return outcome.ended.calls

    def _torn(self) -> tuple[Files, State]:
        files: Files = {}
        state: State | None = None
        for scenario in TORN:
            self.lay(files)
            last = attempt(self.where, scenario, start=state).ended.calls
            write = [call for call in last if call.name == "pwrite64" and call.path.endswith(".zst")][-1]
            plan = Case(write, "", shorten(30, then_kill=True)).plan()
            self.lay(files)
            outcome = attempt(self.where, scenario, plan, start=state)
            assert outcome.ended.signal == 9 and outcome.state is not None
            files, state = files_of(self.where), outcome.state
        assert state is not None
        return files, state

    def survive(self, outcome: Outcome, *, more: bool = True) -> None:
        assert outcome.state is not None
        survive(os.path.join(self.where, "store"), self.scenario.settings, outcome.state, more=more)

    # --- one case ---------------------------------------------------------------------------------

    def kill(self, case: Case) -> Files:
        """The child dies of it, and what it left is right. Returns what that was."""
        self.lay()
        outcome = self.attempt(case.plan())
        assert not outcome.error, f"{self.name}, {case}:\n{outcome.error}"
        assert outcome.ended.signal == 9, f"{self.name}, {case}: it ended by itself ({outcome.ended.status})"
        left = files_of(self.where)
        self._held(case, lambda: self.survive(outcome))
        return left

    def fail(self, case: Case) -> Outcome:
        """The child meets it, goes on, and everything is right in the end."""
        self.lay()
        outcome = self.attempt(case.plan(), faulty=True, lasting=case.lasting)
        assert outcome.ended.signal != 14, f"{self.name}, {case}: it hangs"
        assert not outcome.error, f"{self.name}, {case}:\n{outcome.error}"
        assert outcome.ended.status == 0, f"{self.name}, {case}: it ended with {outcome.ended.status}"
        return outcome

    def _held(self, case: Case, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            raise AssertionError(f"{self.name}, {case}: {type(error).__name__}: {error}") from error


__all__ = ["Case", "Place", "directory", "failures", "kills", "logs_of", "shortened"]
