"""salvage: a new session of everything that verifies in a damaged one, and a report of what is missing.

Nothing of the source is changed, locked or trusted: its logs are read as :mod:`rescue` finds them. The new session is
built in the trash of its store and renamed into place when all of it is durable: a crash leaves it whole or not at all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from .clock import Clock, wall_time
from .compact import Rewrite
from .errors import (
    CorruptLog,
    ForeignFile,
    InvalidInput,
    NewerFormat,
    NoSuchSession,
    OpenFailed,
    ReadFailed,
    StoreLocked,
    WriteFailed,
)
from .frame import Frame
from .fs import File, FileSystem, closing
from .header import KIND_MAIN, KIND_SCOPE, Header, digest_of, new_header
from .layout import (
    ASIDE_SUFFIX,
    LOCK_FILE,
    MAIN_FILE,
    MAX_SEQUENCE,
    TORN_SUFFIX,
    TRASH_DIR,
    check_id,
    scope_file_name,
    scope_file_sequence,
)
from .lines import RETIRE, Record
from .lock import WriterLock
from .pieces import Patient, digest_without_header
from .rescue import Carried, Lost, Missing, Rescue, Unnamed
from .survey import read_header

_log = logging.getLogger(__name__)
_GENERATIONS: Final = 256  # tried when a header is lost
_ATTEMPTS: Final = 8
LOST_SCOPE: Final = "salvaged-"  # and a life's first sequence: the id of a scope whose header is lost


class Home(Protocol):
    """What of a store is needed here."""

    path: str
    fs: FileSystem
    clock: Clock
    identity: str

    def directory(self, session: str) -> str:
        """Where a session's files are."""


class SalvagedLog(NamedTuple):
    """One log of the source. ``scope``: empty for the session scope. ``records``: how many of its writes verify; of a
    log that is ``left_out``, why none of them is in the new session. ``doubtful``: why its scope may be over."""

    path: str
    scope: str
    records: int
    last: int
    left_out: str = ""
    doubtful: str = ""


@dataclass
class Salvaged:
    """What :meth:`Store.salvage` found. ``last``: the new session's last sequence of the session scope; ``unknown``:
    items of a later release that were left out; ``time_lost``: the main log's header is gone, and with it when things
    were written: times count from 1970. ``kept``: evidence of earlier recoveries, which was not looked into."""

    session: str
    new: str | None
    last: int = 0
    logs: list[SalvagedLog] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    unnamed: list[Unnamed] = field(default_factory=list)
    unknown: int = 0
    time_lost: bool = False
    kept: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether anything is missing, left out or in doubt."""
        doubt = self.time_lost or any(log.left_out or log.doubtful for log in self.logs)
        return bool(self.missing or self.lost or self.unnamed or self.unknown or doubt)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        found = asdict(self)
        for name in ("logs", "missing", "lost", "unnamed"):
            found[name] = [entry._asdict() for entry in getattr(self, name)]
        return found


def salvage_session(source: Home, session: str, target: Home, new: str | None) -> Salvaged:
    """See :meth:`Store.salvage`."""
    directory = source.directory(session)
    try:
        names = source.fs.list_dir(directory)
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise ReadFailed(f"{directory} could not be read ({error})", "check the disk and its permissions") from error
    if not any(name == MAIN_FILE or scope_file_sequence(name) is not None for name in names):
        raise NoSuchSession(f"there is no session {session!r}", "look at the list of sessions")
    if new is None:
        return _Salvage(source, session, names, target, None).run(_Nowhere)
    if target.directory(new) == directory:
        raise InvalidInput(f"{session!r} cannot be salvaged onto itself", "choose another id")
    try:
        return _into(source, session, names, target, new)
    except OSError as error:
        raise WriteFailed(
            f"{session!r} could not be salvaged into {new!r} ({error})", "make room or mend the disk and try again"
        ) from error


def _into(source: Home, session: str, names: list[str], target: Home, new: str) -> Salvaged:
    fs, directory = target.fs, target.directory(new)
    if fs.exists(directory):
        raise InvalidInput(f"there is a session {new!r} already, or its directory", "choose another id")
    trash = os.path.join(target.path, TRASH_DIR)
    with contextlib.suppress(FileExistsError):
        fs.make_dir(trash)
    workshop = os.path.join(trash, f"{os.path.basename(directory)}.{secrets.token_hex(8)}")
    lock = _begin(fs, workshop)
    try:
        with contextlib.ExitStack() as undo:
            undo.callback(_remove, fs, workshop)
            done = _Salvage(source, session, names, target, new).run(
                lambda name: fs.create(os.path.join(workshop, name))
            )
            fs.sync_dir(workshop)
            if fs.exists(directory):
                raise InvalidInput(f"there is a session {new!r} by now", "choose another id")
            lock.check()  # it is still ours, and so is what stands beside it
            fs.rename(workshop, directory)
            undo.pop_all()
        fs.sync_dir(target.path)
        fs.sync_dir(trash)
    finally:
        lock.release()
    _log.info("%s salvaged into %s: %d places are missing", source.directory(session), directory, len(done.missing))
    return done


def _begin(fs: FileSystem, workshop: str) -> WriterLock:
    """A directory in the trash that nobody sweeps while its lock is held."""
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileExistsError):
            fs.make_dir(workshop)
        try:
            return WriterLock.acquire(fs, os.path.join(workshop, LOCK_FILE))
        except (FileNotFoundError, StoreLocked):  # swept by whoever opened the store at this moment
            continue
        except BaseException:
            _remove(fs, workshop)
            raise
    raise OpenFailed(f"{workshop} is removed again and again", "find out who opens the store so often")


def _remove(fs: FileSystem, directory: str) -> None:
    try:
        for name in fs.list_dir(directory):
            fs.unlink(os.path.join(directory, name))
        fs.remove_dir(directory)
    except OSError as error:
        _log.warning("%s could not be removed: %s; the next open does", directory, error)


class _Nowhere:
    """A file that keeps nothing: for a report alone."""

    def __init__(self, _name: str) -> None:
        self._length = 0

    def pread(self, length: int, offset: int) -> bytes:
        raise AssertionError(f"nobody reads {length} bytes at {offset} of what is not kept")

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        self._length = max(self._length, offset + len(data))
        return len(data)

    def truncate(self, length: int) -> None:
        self._length = length

    def allocate(self, offset: int, length: int) -> None:
        self._length = max(self._length, offset + length)

    def forget(self, offset: int, length: int) -> None:
        """There is nothing to forget."""

    def size(self) -> int:
        return self._length

    def sync(self) -> None:
        return

    def try_lock(self) -> bool:
        return True

    def identity(self) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        return


class _Source(NamedTuple):
    """A sidecar as its header, or without it its name, says."""

    name: str
    header: Header
    first: Frame | None
    digest: int


class _Salvage:
    def __init__(self, source: Home, session: str, names: list[str], target: Home, new: str | None) -> None:
        self._home = source
        self._fs = source.fs
        self._directory = source.directory(session)
        self._session = session
        self._names = names
        self._target = target
        self._new = new
        self._retired: dict[str, int] = {}
        self._main = new_header(KIND_MAIN, source.identity, session=session)
        self._main_gaps: list[Missing] = []
        kept = [os.path.join(self._directory, n) for n in names if n.endswith((TORN_SUFFIX, ASIDE_SUFFIX))]
        self.report = Salvaged(session, new, kept=kept)

    def run(self, create: Callable[[str], File]) -> Salvaged:
        damage = self._salvage_main(create)
        for car in self._living(self._sidecars()):
            self._salvage_sidecar(car, create)
        if damage is not None and not any(log.records for log in self.report.logs):
            raise damage
        return self.report

    # --- main ---------------------------------------------------------------------------------------

    def _salvage_main(self, create: Callable[[str], File]) -> CorruptLog | None:
        """Returns what is wrong with main if not one frame of it verifies."""
        path = os.path.join(self._directory, MAIN_FILE)
        report = self.report
        damage: CorruptLog | None = None
        if MAIN_FILE in self._names:
            with closing(self._open(path)) as file:
                try:
                    self._salvage_main_file(Patient(file), path, create)
                    return None
                except CorruptLog as error:  # before anything was made of it
                    damage = error
                    report.missing.append(Missing(path, 0, file.size(), 0, 0, error.reason, error.detail, False))
        else:
            report.missing.append(Missing(path, 0, 0, 0, 0, "missing", "there is no main log", True))
        report.time_lost = True
        self._main_gaps = [*report.missing]
        with closing(create(MAIN_FILE)) as out:
            Rewrite(out, self._new_main(self._main), epoch=1).finish(0)
        return damage

    def _salvage_main_file(self, file: Patient, path: str, create: Callable[[str], File]) -> None:
        report = self.report
        self._main, first, digest = self._main_header(file, path)
        rescue = Rescue(file, path, self._main, first, digest)
        self._write(rescue, self._new_main(self._main), create(MAIN_FILE), self._note_retirements)
        report.last, report.time_lost = rescue.last, first is None
        doubt = (
            self._foreign() if first is not None else "its header is lost: only 16 bits of its frames say whose it is"
        )
        report.logs.append(SalvagedLog(path, "", rescue.records, rescue.last, doubtful=doubt))
        self._main_gaps = [*report.missing]

    def _note_retirements(self, line: list[Record]) -> None:
        self._retired.update((str(record.argument), record.sequence) for record in line if record.code == RETIRE)

    def _foreign(self) -> str:
        header = self._main
        if header.session != self._session:
            return f"its header names the session {header.session!r}"
        return "its header names another store" if header.store != self._home.identity else ""

    def _main_header(self, file: Patient, path: str) -> tuple[Header, Frame | None, int]:
        try:
            header, first = read_header(file, path)
        except CorruptLog:
            pass
        else:
            if header.kind != KIND_MAIN:
                raise ForeignFile(
                    f"{path} is no main log but one of kind {header.kind!r}", "move it back where it belongs"
                )
            return header, first, digest_of(header)
        digest = digest_without_header(file, path)
        header = new_header(KIND_MAIN, self._home.identity, session=self._session)
        for generation in range(_GENERATIONS):  # only this log's own frames, if the digest can tell
            tried: Header = msgspec.structs.replace(header, generation=generation)
            if digest_of(tried) == digest:
                return tried, None, digest
        raise CorruptLog(
            path=path, offset=0, sequence=0, reason="header", detail="no frame in it belongs to this session's main log"
        )

    def _new_main(self, old: Header) -> Header:
        header: Header = msgspec.structs.replace(
            new_header(KIND_MAIN, self._target.identity, session=self._new or self._session),
            time=wall_time(self._target.clock),
            high=_sequence(old.high),
            high_epoch=1 if _sequence(old.high) else 0,
            updated=old.updated,
            floor=_sequence(old.floor),
            lives=old.lives,
        )
        return header

    # --- sidecars -----------------------------------------------------------------------------------

    def _sidecars(self) -> Iterator[_Source]:
        for name in self._names:
            number = scope_file_sequence(name)
            if number is None:
                continue
            path = os.path.join(self._directory, name)
            try:
                with closing(self._open(path)) as file:
                    patient = Patient(file)
                    try:
                        header, first = read_header(patient, path)
                        digest: int | None = digest_of(header)
                    except CorruptLog:
                        digest, first = digest_without_header(patient, path), None
                        header = new_header(
                            KIND_SCOPE,
                            self._home.identity,
                            session=self._session,
                            scope=f"{LOST_SCOPE}{number}",
                            first=number,
                        )
            except (ReadFailed, NewerFormat) as error:
                self._leave_out(path, "", error.cause)
                continue
            why = self._why_not(header, digest)
            if why or digest is None:
                self._leave_out(path, header.scope, why or "it holds no whole frame")
            else:
                yield _Source(name, header, first, digest)

    def _why_not(self, header: Header, digest: int | None) -> str:
        """Why a sidecar cannot come along."""
        if digest is None:
            return "it holds no whole frame"
        if header.kind != KIND_SCOPE or (header.store, header.session) != (self._main.store, self._main.session):
            return "it belongs to another session"
        if not 0 < header.first <= MAX_SEQUENCE:
            return f"its header says that it begins at sequence {header.first}"
        try:
            check_id("scope", header.scope)
        except InvalidInput as error:
            return error.cause
        return ""

    def _living(self, cars: Iterator[_Source]) -> list[_Source]:
        """The newest life of each scope that no retirement has ended; the others are left out."""
        newest: dict[str, _Source] = {}
        begun: dict[int, str] = {}
        for car in sorted(cars, key=_rank):
            header, path = car.header, os.path.join(self._directory, car.name)
            boundary = max(self._retired.get(header.scope, 0), self._main.ended(header.first))
            if boundary > header.first:
                self._leave_out(path, header.scope, f"it was retired at sequence {boundary}")
                continue
            if header.first in begun:  # the one with a header, and under its own name, comes first
                self._leave_out(path, header.scope, f"it is a copy of {begun[header.first]}")
                continue
            begun[header.first] = car.name
            older = newest.get(header.scope)
            if older is not None:
                old = os.path.join(self._directory, older.name)
                self._leave_out(old, header.scope, f"a later life began at sequence {header.first}")
            newest[header.scope] = car
        return sorted(newest.values(), key=lambda car: car.header.first)

    def _salvage_sidecar(self, car: _Source, create: Callable[[str], File]) -> None:
        path, header = os.path.join(self._directory, car.name), car.header
        fresh: Header = msgspec.structs.replace(
            new_header(KIND_SCOPE, self._target.identity, session=self._new or self._session, scope=header.scope),
            time=header.time,
            first=header.first,
            high=_sequence(header.high),
            high_epoch=1 if _sequence(header.high) else 0,
            updated=header.updated,
        )
        try:
            file = self._open(path)
        except ReadFailed as error:  # retired meanwhile by its writer, say
            self._leave_out(path, header.scope, error.cause)
            return
        with closing(file):
            rescue = Rescue(Patient(file), path, header, car.first, car.digest)
            self._write(rescue, fresh, create(scope_file_name(header.first)), lambda _: None)
        self.report.logs.append(SalvagedLog(path, header.scope, rescue.records, rescue.last, doubtful=self._doubt(car)))

    def _doubt(self, car: _Source) -> str:
        header = car.header
        if car.first is None:
            return "its header is lost, and with it the scope's id"
        if max(header.base, header.after) > self.report.last:
            return f"it builds on sequence {max(header.base, header.after)}, but main ends at {self.report.last}"
        if self.report.time_lost:
            return "main's header is lost, and with it which lives it says are over"
        for gap in self._main_gaps:
            if gap.before == 0 or gap.before > header.first:
                return "its retirement may have stood in what is missing of main"
        return ""

    # --- one log ------------------------------------------------------------------------------------

    def _open(self, path: str) -> File:
        try:
            return self._fs.open_readonly(path)
        except OSError as error:
            raise ReadFailed(f"{path} could not be opened ({error})", "check the disk and its permissions") from error

    def _leave_out(self, path: str, scope: str, why: str) -> None:
        self.report.logs.append(SalvagedLog(path, scope, 0, 0, left_out=why))

    def _write(self, rescue: Rescue, header: Header, file: File, tell: Callable[[list[Record]], None]) -> None:
        """All that verifies of a log, into a new file, durably."""
        with closing(file):
            rewrite = Rewrite(file, header, epoch=1)
            for item in rescue.lines():
                if isinstance(item, Carried):
                    _carry(rewrite, item)
                else:
                    rewrite.add(item)
                    tell(item)
            rewrite.finish(rescue.last)
        self.report.missing += rescue.missing
        self.report.lost += rescue.lost
        self.report.unnamed += rescue.unnamed
        self.report.unknown += rescue.unknown


def _sequence(number: int) -> int:
    """What a header says, unless it cannot be."""
    return number if 0 <= number <= MAX_SEQUENCE else 0


def _rank(car: _Source) -> tuple[int, bool, bool, str]:
    first = car.header.first
    return first, car.first is None, car.name != scope_file_name(first), car.name


def _carry(rewrite: Rewrite, item: Carried) -> None:
    if item.frame is None:
        rewrite.carry_bytes(item.data)
    elif item.line:
        rewrite.carry_line(item.data, item.frame)
    else:
        rewrite.carry_over(item.frame, item.data)


__all__ = ["Salvaged", "SalvagedLog", "salvage_session"]
