"""A child process that works on a real store with the reference model beside it, and tells its parent what it knows.

The child is forked with the parent's rig: the model of what earlier children have written and were acknowledged. It
makes system calls on a mounted file system. Before each call that may reach the disk, and after it, it sends the model
as it then is; the last one that arrived is what must be held against whatever the disk has kept: a call that was under
way stands in it as such. So the next child begins with ``open(power=True)``, which does exactly that.

Where a cut is expected the first error ends the child (:class:`Down`); where faults are injected the rig's own rules
hold (``faulty``). Damage that is claimed to be proved, an untyped error, or an answer that the model does not have is a
failure in any case, and is told with its traceback.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from fuzz.disks.evidence import Image, logs, nothing_cut_silently, shapes
from fuzz.disks.fuse import Server
from fuzz.model import Op, Spec, units_of_this_process
from fuzz.model_handles import POWER, Settings, scope_of
from fuzz.model_rig import Rig
from scopelog import CorruptLog, Durability, Json, ScopelogError, Session, Store
from scopelog_engine.fs import FileSystem

SID: Final = "s"
_HANG_SECONDS: Final = 60


class Down(BaseException):
    """The file system is gone: the child has nothing more to do."""


class _Announcing:
    """A session that sends the model before each call that may reach the disk."""

    def __init__(self, session: Session, tell: Callable[[], None]) -> None:
        self._session, self._tell = session, tell

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)
        if name in ("commit", "append", "flush", "compact", "close"):
            self._tell()
        return found


class DiskRig(Rig):
    """The rig over a store on a mounted file system. ``cuts``: whether an error means that the disk is gone."""

    def __init__(self, path: str, settings: Settings | None = None, *, fs: FileSystem | None = None) -> None:
        super().__init__(settings)
        self.path = path
        self.fs = fs
        self.cuts = False
        self.going_down = mmap.mmap(-1, 1)  # shared with the children
        self.met: Counter[str] = Counter()
        self.told = 0
        self.send: Callable[[str, object], object] = lambda kind, body: None

    @property
    def directory(self) -> Path:
        return Path(self.path) / f"{SID}.session"

    @property
    def retired(self) -> bool:
        """Whether a life is over that a power cut may still bring back, or whose file it may leave."""
        return any(life.ended for model in self.models.values() for lives in model.lives.values() for life in lives)

    def look(self) -> Image:
        """The session's files, read by the rig itself."""
        try:
            return logs(self.directory)
        except OSError as error:
            if self.cuts:
                raise Down(repr(error)) from error
            raise

    def tell(self) -> None:
        """Nothing counts that is told once the cut has begun: an fdatasync that meets it may say yes for nothing."""
        if self.cuts and self.going_down[0]:
            raise Down("cut off")
        self.told += 1
        self.send("models", pickle.dumps(self.models))

    def begin(self) -> None:
        """The process before this one is gone, with its handles and its clock."""
        self.down(self.disk)

    def open_store(self) -> Store:
        if self.store is None:
            durability, scope_durability, window_ms = self.settings
            self.store = Store.open(
                self.path,
                fs=self.fs,
                clock=self.clock,
                durability=durability,
                scope_durability=scope_durability,
                window_ms=window_ms,
            )
        return self.store

    def open(self, sid: str = SID, *, power: bool = False) -> Session:
        self.tell()
        before = {} if self.faulty else self.look()
        session = super().open(sid, power=power)
        if not self.faulty:
            nothing_cut_silently(before, self.look())
        if power:
            self.met += shapes(before)
            self.met["torn bytes"] += session.recovery.torn_bytes
            self.met["reported"] += len(session.recovery.torn)
            self.met["set aside"] += len(session.recovery.set_aside)
            assert not any(tail.corrupt for tail in session.recovery.torn), session.recovery
            self.send("seen", dict(self.met))
        self.sessions[sid] = cast("Session", _Announcing(session, self.tell))
        self.tell()
        return session

    def heal(self) -> None:
        """The parent lets the disk work again before it answers."""
        self.ask("heal")
        super().heal()

    def ask(self, what: str) -> None:
        """Have the parent do something to the disk, and wait until it is done."""
        self.send("ask", what)

    def commit(self, sid: str, scope: str, specs: Sequence[Spec], level: Durability | None = None) -> bool:
        done = super().commit(sid, scope, specs, level)
        self.tell()
        return done

    def stage(self, sid: str, scope: str, key: str, value: Json, tag: str | None = None, namespace: str = "n") -> bool:
        done = super().stage(sid, scope, key, value, tag, namespace)
        self.tell()
        return done

    def flush(self, sid: str, level: Durability | None = None) -> bool:
        done = super().flush(sid, level)
        self.tell()
        return done

    def compact(self, sid: str, scope: str) -> bool:
        done = super().compact(sid, scope)
        self.tell()
        return done

    def advance(self, milliseconds: int) -> None:
        """Windows that fall due are stored; nobody is told at once if one could not be, so the log is asked."""
        self.tell()
        before, self.faulty = self.faulty, self.faulty or self.cuts
        super().advance(milliseconds)
        self.faulty = before
        if self.cuts:
            for sid, session in self.sessions.items():
                for scope, life in self.models[sid].living().items():
                    claim = session.durable_seq(scope_of(scope), POWER)
                    life.power = max(life.power, min(claim, life.process))
        self.tell()

    def close(self, sid: str) -> None:
        super().close(sid)
        self.tell()

    def _acknowledged(self, sid: str, scope: str, ops: list[Op], level: Durability) -> None:
        """The next life of what was retired has a log of its own, that no sync has failed on."""
        super()._acknowledged(sid, scope, ops, level)
        self.poisoned -= {(sid, op.spec.retired) for op in ops if op.spec.op == "retire"}

    def _excuse(self, sid: str, error: ScopelogError) -> None:
        if self.cuts:
            raise error
        super()._excuse(sid, error)


Plan = Callable[[DiskRig], None]


class Outcome(NamedTuple):
    """How a child ended: "done"; "down", by the error in ``text``; "killed", by us. ``told``: messages it sent."""

    end: str
    text: str
    told: int


@dataclass
class Worker:
    """Runs plans in children, one after the other. ``server`` serves their disk. ``locked``: each message is
    answered, so that what ``on_tell`` (its number) sees is where the child stands; it returns True to kill the child.
    """

    rig: DiskRig
    server: Server | None = None
    locked: bool = False
    asked: Callable[[str], None] = lambda what: None
    on_tell: Callable[[int, bytes], bool] = lambda number, models: False
    seen: Counter[str] = field(default_factory=Counter)

    def run(self, plan: Plan) -> Outcome:
        """Fork a child that does ``plan``. Raises AssertionError with the child's own words if it failed."""
        here, there = Pipe()
        pid = os.fork()
        if pid == 0:
            _child(self, there, here, plan)
        there.close()
        try:
            outcome = self._listen(here, pid)
        finally:
            self._reap(pid)
            here.close()
        assert outcome.end != "failed", outcome.text
        return outcome

    def _reap(self, pid: int) -> None:
        """Kill the child, if it is not over yet, and wait for its end; where its disk hangs, that is aborted."""
        handle = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGKILL)
            if not _ended(handle) and self.server is not None:
                self.server.abort()
            if not _ended(handle):
                raise RuntimeError(f"the child {pid} does not end: a file system hangs")
            os.waitpid(pid, 0)
        finally:
            os.close(handle)

    def _listen(self, pipe: Connection, pid: int) -> Outcome:
        told, killed = 0, False
        seen: Counter[str] = Counter()
        end = Outcome("killed", "", 0)
        while True:
            if not pipe.poll(_HANG_SECONDS):
                raise AssertionError(f"the child {pid} hangs after {told} messages")
            try:
                kind, body = pipe.recv()
            except (EOFError, OSError, pickle.UnpicklingError):
                break
            if kind == "models":
                told += 1
                self.rig.models = pickle.loads(body)
                if not killed and self.on_tell(told, body):
                    killed = True
                    os.kill(pid, signal.SIGKILL)  # what it has sent by now still counts
            elif kind == "seen":
                seen = Counter(body)
            elif kind == "ask":
                self.asked(body)
            else:
                end = Outcome(kind, body, told)
            if (self.locked or kind == "ask") and not killed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.send(None)
        self.seen += seen
        assert end.end != "killed" or killed, f"the child {pid} ended by itself after {told} messages"
        return end._replace(told=told)


def _child(worker: Worker, pipe: Connection, parents: Connection, plan: Plan) -> None:
    """Never returns."""
    try:
        parents.close()
        if worker.server is not None:
            worker.server.forked()
        units_of_this_process()

        def send(kind: str, body: object) -> None:
            pipe.send((kind, body))
            if worker.locked or kind == "ask":
                pipe.recv()

        rig = worker.rig
        rig.send, rig.met = send, Counter()
        rig.begin()
        try:
            plan(rig)
        except CorruptLog:
            send("failed", traceback.format_exc())
        except (ScopelogError, Down) as error:
            send("down" if rig.cuts else "failed", repr(error) if rig.cuts else traceback.format_exc())
        except BaseException:  # noqa: BLE001 - told to the parent, who fails
            send("failed", traceback.format_exc())
        else:
            send("done", "")
    finally:
        os._exit(0)


def _ended(handle: int) -> bool:
    """Whether a process comes to its end soon."""
    return bool(select.select([handle], [], [], _HANG_SECONDS)[0])
