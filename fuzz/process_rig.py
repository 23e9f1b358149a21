"""The rig of the reference model on a real directory, in a child that may be killed between any two system calls.

The child makes every call on the store and on the model, and tells the model's state whenever something was asked for
or acknowledged, before it goes on; whoever survives it takes the model as it was last told (:class:`Told`), and holds
what is on the disk against it (:func:`survive`). Clocks stand still, so that no thread works beside the script.
"""

from __future__ import annotations

import os
import pickle
import struct
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from fuzz import ptrace
from fuzz.model import ModelSession, Op, Spec
from fuzz.model_handles import POWER, PROCESS, Settings
from fuzz.model_rig import Rig
from fuzz.simdisk import SimDisk
from scopelog import (
    DurabilityError,
    HandleFenced,
    HandleUnusable,
    OpenFailed,
    ReadFailed,
    ScopelogError,
    Session,
    Store,
)

SID: Final = "s"
_LENGTH: Final = struct.Struct("<Q")
Files = dict[str, bytes]


class Told:
    """A file of records that a child adds to; memory alone, and whole up to the last record whatever becomes of it."""

    def __init__(self, fd: int = -1) -> None:
        self._fd = fd if fd >= 0 else _nameless()

    def add(self, record: Any) -> None:
        data = pickle.dumps(record, pickle.HIGHEST_PROTOCOL)
        os.write(self._fd, _LENGTH.pack(len(data)) + data)

    def records(self) -> list[Any]:
        data = os.pread(self._fd, 1 << 30, 0)
        found = []
        at = 0
        while at + _LENGTH.size <= len(data):
            end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
            if end > len(data):
                break
            found.append(pickle.loads(data[at + _LENGTH.size : end]))
            at = end
        return found

    def close(self) -> None:
        os.close(self._fd)


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("told")
    fd, path = tempfile.mkstemp()
    os.unlink(path)
    return fd


class State(NamedTuple):
    """What a child had asked for and been told, when it said so."""

    models: dict[str, ModelSession]
    deleting: str | None = None
    step: int = 0


class _Disk:
    """What a rig asks of the disk beside the store."""

    capacity: int | None = None

    def heal(self) -> None:
        ptrace.heal()


class ProcessRig(Rig):
    """``told``: where the model is told, None for nowhere. ``lasting``: a fault does not pass until :meth:`heal`."""

    def __init__(self, path: str, settings: Settings, told: Told | None = None, state: State | None = None) -> None:
        super().__init__(settings, cast(SimDisk, _Disk()))
        self.path = path
        self.told = told
        self.lasting = False
        self.failures: list[str] = []
        self.step = 0
        if state is not None:
            self.models, self.deleting = state.models, state.deleting

    def announce(self) -> None:
        if self.told is not None:
            self.told.add(State(self.models, self.deleting, self.step))

    def acknowledged(self) -> None:
        """A step of the script is over: nothing that it was told may be forgotten from here on."""
        self.step += 1
        self.announce()

    def aside(self) -> AbstractContextManager[None]:
        """While the rig looks at the store for itself, nothing is done to it."""
        return ptrace.away()

    # --- with the store on a real disk -------------------------------------------------------------

    def open_store(self) -> Store:
        if self.store is None:
            durability, scope_durability, window_ms = self.settings
            self.store = Store.open(
                self.path,
                clock=self.clock,
                durability=durability,
                scope_durability=scope_durability,
                window_ms=window_ms,
            )
        return self.store

    def open(self, sid: str = SID, *, power: bool = False) -> Session:
        """As the rig does; a disk that fails may fail this, too, and then it is tried once more."""
        try:
            return super().open(sid, power=power)
        except (OpenFailed, ReadFailed, DurabilityError) as error:
            self._excuse_open(error)
        if sid in self.sessions:  # opened, with a sidecar that could not be read
            self.sessions.pop(sid).close(force=True)
        if self.lasting:
            self.disk.heal()
        return super().open(sid, power=power)

    def close(self, sid: str) -> None:
        try:
            super().close(sid)
        except HandleFenced as error:
            self._excuse(sid, error)
            self.poisoned -= {key for key in self.poisoned if key[0] == sid}
            self.doubtful.discard(sid)

    def observe(self, sid: str) -> dict[str, list[Op]] | None:
        with self.aside():
            return super().observe(sid)

    def generation(self, sid: str, scope: str) -> int:
        with self.aside():
            return super().generation(sid, scope)

    def delete(self, sid: str) -> bool:
        try:
            return super().delete(sid)
        except (OpenFailed, ReadFailed, DurabilityError) as error:
            self._excuse_open(error)
        if self.lasting:
            self.disk.heal()
        with self.aside():
            there = sid in self.open_store().sessions()
        if not there:  # its name is gone, though perhaps not for good
            self.models.pop(sid, None)
            self.deleting = None
        return not there or super().delete(sid)

    def _excuse_open(self, error: ScopelogError) -> None:
        assert self.faulty, f"{error!r} without a fault"
        self._note(error)

    def _excuse(self, sid: str, error: ScopelogError) -> None:
        self._note(error)
        if isinstance(error, ReadFailed) and self.faulty:
            return
        if isinstance(error, HandleFenced) and self.lasting:
            self.doubtful.add(sid)
            return
        super()._excuse(sid, error)

    def _note(self, error: ScopelogError) -> None:
        assert error.cause and error.remedy
        if isinstance(error, HandleUnusable):  # nobody else was here; but who may not ask which file has the name
            assert self.lasting and "was compacted" in error.cause, f"{error!r}"
        self.failures.append(type(error).__name__)


def files_of(path: str) -> Files:
    """Every file below a directory."""
    root = Path(path)
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


def lay(path: str, files: Files) -> None:
    """Put the files into a directory that does not exist yet."""
    for name, data in files.items():
        file = Path(path, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def logs_of(files: Files) -> Files:
    """All but the note of who holds the lock."""
    return {name: data for name, data in files.items() if not name.endswith("LOCK")}


def survive(path: str, settings: Settings, state: State, *, more: bool = True) -> ProcessRig:
    """Open what a killed child has left, unaided, hold it against what the child was told, and go on with it.

    ``more``: append behind it, close, open again and check.
    """
    rig = ProcessRig(path, settings, state=state)
    left = files_of(path)
    worst = [finding for finding in rig.open_store().check() if finding.severity == "corrupt"]
    assert not worst, worst
    before = rig.observe(SID)
    rig.open(SID)
    after = rig.observe(SID)
    assert (before or {"": []}) == (after or {"": []}), "a reader without the lock has the same verdict"
    now = files_of(path)
    nothing_cut_silently(left, now)
    assert not [name for name in now if name.endswith(".tmp")], f"left over: {[*now]}"
    rig.verify()
    if more:
        rig.commit(
            SID, "", [Spec("append", key="plain", kind="list", value="behind it"), Spec("set", key="b", value=5)]
        )
        rig.stage(SID, "op-1", "text", "behind ")
        rig.stage(SID, "op-1", "text", "it")
        rig.flush(SID)
        rig.verify()
        rig.check()
    else:
        rig.close_store()
    return rig


def nothing_cut_silently(left: Files, now: Files) -> None:
    """What recovery has cut from a log stands in a file beside it, unless it is untouched preallocated space."""
    for name, data in left.items():
        if not name.endswith(".zst") or name.endswith("store.zst") or name not in now:
            continue
        kept = now[name]
        assert data.startswith(kept), f"{name} was changed, not only cut"
        cut = data[len(kept) :]
        if cut and any(cut[8:]):
            beside = [other for other, bytes_ in now.items() if other.startswith(name + ".") and bytes_ == cut]
            assert beside, f"{len(cut)} bytes of {name} are gone"


__all__ = ["POWER", "PROCESS", "SID", "Files", "ProcessRig", "State", "Told", "files_of", "lay", "logs_of", "survive"]
