"""Following a session from another process: what is new in its logs, scope by scope, without its lock.

:meth:`Follower.poll` reads what has become visible and never waits. It looks at the sidecars first and at main last:
a new life is then never met before the retirement of the one before it, and what a life held is shown before its
retirement is. Between two polls nothing is kept open, so that a follower holds no file up that the writer unlinks.

Why what was shown is what is stored: each log is followed by its chain, from a frame that is verified to be still
there. Whatever else has happened (a tail lost, a log compacted, a life gone without a retirement) is answered with a
new base, never with a guess.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

from .cursor import Cursor, Lost, Point, Taken
from .errors import CorruptLog, ForeignFile, HandleForked, NewerFormat, NoSuchSession, ReadFailed, ScopelogError
from .fs import File, FileSystem, closing
from .handle import Handle
from .header import KIND_MAIN, KIND_SCOPE, Header, check_owner
from .layout import MAIN_FILE, MAX_SEQUENCE, scope_file_name, scope_file_sequence
from .lines import RETIRE, Record
from .lives import Lives
from .logindex import LogIndex
from .position import LifePoint, Position, mark_of
from .reader import Reader
from .recovery import NO_RESOURCES
from .scope import SESSION
from .survey import read_header, survey
from .view import LogView

_READ_IN_ALL: Final = 8 * 1024 * 1024  # bytes that one poll reads, but for the log that passes it
_ATTEMPTS: Final = 16


class Base(NamedTuple):
    """Begin here: the session as it stands is ``reader``, which is the receiver's to close.

    ``reason``: why what was seen before does not count; empty for the first base.
    """

    reader: Reader
    position: Position
    reason: str


class Records(NamedTuple):
    """New records of one scope, in order; whole commits."""

    scope: str
    records: list[Record]
    position: Position


class Retired(NamedTuple):
    """A scope was retired: of it, only what has a higher sequence lives. ``time``: of the commit, in ms."""

    scope: str
    sequence: int
    time: int
    position: Position


class Deleted(NamedTuple):
    """The session is gone; nothing follows."""


Event: TypeAlias = "Base | Records | Retired | Deleted"


class _Restart(Exception):
    """What was seen cannot be gone on from; the message says why."""


class _Gone(Exception):
    """The session that was followed is not there any more."""


class Follower:
    """Follows one session. Not thread-safe. ``scope``: the one that is wanted, None for all.

    ``position``: where to resume, None to begin with a base. ``durable``: see nothing that a crash could take back.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        *,
        store: str,
        session: str,
        index: LogIndex | None = None,
        position: Position | None = None,
        durable: bool = False,
        scope: str | None = None,
    ) -> None:
        self.session = session
        self.over = False
        self._fs = fs
        self._directory = directory
        self._store = store
        self._index = index
        self._resume = self._given = position
        self._durable = durable
        self._scope = scope
        self._pid = os.getpid()
        self._identity: int | None = None if position is None else position.identity
        self._main: Cursor | None = None
        self._lives = Lives()
        self._waiting: dict[int, Cursor] = {}  # by first sequence: those that may still be shown
        self._ignored: set[int] = set()  # files that are not to be shown, as long as they are there
        self._trouble: ScopelogError | None = None  # with a sidecar: it must not hide what else there is
        self._turn = 0  # first sequence of the sidecar that is read first

    def poll(self) -> list[Event]:
        """What has become visible, in order; a few MB at most, so ask again until there is nothing.

        Raises :class:`NoSuchSession` if there was none to begin with, :class:`CorruptLog`, :class:`ReadFailed`,
        :class:`HandleForked`; it may be called again then. Trouble with a sidecar is raised once nothing else is new.
        """
        if os.getpid() != self._pid:
            raise HandleForked(f"{self.session!r} was followed by process {self._pid}", "follow it in this process")
        if self.over:
            return []
        try:
            events = self._look()
        except BaseException:  # some of what was read may be taken already
            self.go_back(self._given)
            raise
        if events and not isinstance(events[-1], Deleted):
            self._given = events[-1].position
        trouble, self._trouble = self._trouble, None
        if trouble is not None and not events:
            raise trouble
        return events

    @property
    def given(self) -> Position | None:
        """Up to where events were returned, or the position to begin with."""
        return self._given

    def go_back(self, position: Position | None) -> None:
        """What was told behind ``position`` was not received: go on from there. None: nothing was."""
        self._main, self._resume, self._given = None, position, position
        self.over = False

    def _look(self) -> list[Event]:
        try:
            try:
                return self._advance() if self._begin() else self._base("")
            except (_Restart, Lost) as why:
                return self._base(str(why))
        except _Gone:
            self.over = True
            return [Deleted()]
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> ReadFailed:
        return ReadFailed(
            f"{self._directory} could not be read ({error})", "check the disk and its permissions, and try again"
        )

    # --- beginning --------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Whether it is known where to go on from."""
        if self._main is not None:
            return True
        if self._resume is None:
            return False
        self._go_to(self._resume)
        self._resume = None
        return True

    def _go_to(self, position: Position) -> None:
        main = self._locate(MAIN_FILE, KIND_MAIN, Point(position.epoch, position.sequence))
        if main is None:
            raise _Restart("the position is no boundary of the session's log as it is now")
        cursors: list[Cursor] = []
        ghosts: list[LifePoint] = []
        for life in position.lives:
            cursor: Cursor | None = None
            try:
                cursor = self._locate(scope_file_name(life.first), KIND_SCOPE, Point(life.epoch, life.sequence))
            except (FileNotFoundError, CorruptLog, ForeignFile, NewerFormat):
                ghosts.append(life)
                continue
            if cursor is None or mark_of(cursor.header.scope) != life.mark or cursor.header.first != life.first:
                raise _Restart(f"what was seen of the scope that began at {life.first} is not there any more")
            cursors.append(cursor)
        lives = Lives(cursors, ghosts, position.sequence)
        if len(lives.scopes) < len(cursors):
            raise _Restart("the position names one scope twice")
        if cursors:
            latest = self._retirements(min(lives.cursors))
            if any(first < latest.get(scope, 0) <= position.sequence for scope, first in lives.scopes.items()):
                raise _Restart("the position names a scope that was retired before it")
        self._stand_at(main, lives)

    def _stand_at(self, main: Cursor, lives: Lives) -> None:
        self._main, self._lives = main, lives
        self._identity = _identity_of(main.header)
        self._waiting, self._ignored = {}, set()

    def _base(self, reason: str) -> list[Event]:
        """Begin anew with the session as it is."""
        failure: CorruptLog | None = None
        for _ in range(_ATTEMPTS):
            try:
                reader = Reader(
                    self._fs,
                    self._directory,
                    store=self._store,
                    session=self.session,
                    index=self._index,
                    durable=self._durable,
                )
            except NoSuchSession:
                if self._identity is None:
                    raise
                raise _Gone from None
            try:
                if self._identity not in (None, _identity_of(reader.header)):
                    raise _Gone
                cursors = {scope: Cursor.at_end(view, found) for scope, view, found in reader.logs()}
            except CorruptLog as error:  # perhaps cut meanwhile
                reader.close()
                failure = error
                continue
            except BaseException:
                reader.close()
                raise
            main = cursors.pop(SESSION)
            wanted = [cursor for scope, cursor in cursors.items() if self._scope in (None, scope)]
            self._stand_at(main, Lives(wanted, since=main.point.sequence))
            self._resume = None
            return [Base(reader, self._position(), reason)]
        assert failure is not None
        raise failure

    # --- going on ---------------------------------------------------------------------------------

    def _advance(self) -> list[Event]:
        main = self._main
        assert main is not None
        self._trouble = None
        try:
            names = self._fs.list_dir(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            raise _Gone from None
        present = {first for first in map(scope_file_sequence, names) if first is not None}
        self._ignored &= present
        self._waiting = {first: cursor for first, cursor in self._waiting.items() if first in present}
        pending, newcomers, whole = self._read_sidecars(present)
        file: File
        with self._main_file() as (file, path):
            if not main.is_of(file):
                header, _ = read_header(file, path)
                self._check_same(header, path)
                located = Cursor.locate(file, path, main.point)
                if located is None:
                    raise _Restart("the session's log was compacted beyond what was seen")
                self._main = main = located
            taken, rest = main.read(file, durable=self._durable) if whole else ([], False)
        shown = taken[-1].place.frame.last if taken else main.point.sequence
        self._refuse(newcomers, shown)
        pending += [(main, batch) for batch in taken]
        pending.sort(key=lambda item: item[1].place.frame.last)
        events = self._show(pending, newcomers)
        if whole and rest:
            self._explain_ghosts()
        return events

    def _read_sidecars(self, present: set[int]) -> tuple[list[tuple[Cursor, Taken]], dict[int, Cursor], bool]:
        """What is new in them, the cursors of those not met before, and whether that is all there is."""
        pending: list[tuple[Cursor, Taken]] = []
        newcomers: dict[int, Cursor] = {}
        left = _READ_IN_ALL
        whole = True
        lives = self._lives
        order = sorted(present | set(lives.cursors))
        for first in (*filter(self._turn.__le__, order), *filter(self._turn.__gt__, order)):
            if first in self._ignored or lives.haunted(first):
                continue
            if left <= 0:
                self._turn, whole = first, False
                break
            known = lives.cursors.get(first)
            try:
                with self._file(scope_file_name(first)) as (file, path):
                    cursor = self._meet(file, path, first, known or self._waiting.get(first))
                    if cursor is None:
                        continue
                    taken, rest = cursor.read(file, durable=self._durable)
            except FileNotFoundError:
                lives.haunt(first)
                continue
            except (CorruptLog, ReadFailed) as error:
                self._trouble = error
                continue
            except OSError as error:
                if error.errno in NO_RESOURCES:
                    raise
                self._trouble = self._unreadable(error)
                continue
            whole = whole and rest
            if taken:
                if known is None:
                    newcomers[first] = cursor
                left -= taken[-1].place.frame.end - cursor.place.frame.end
                pending += [(cursor, batch) for batch in taken]
        return pending, newcomers, whole

    def _meet(self, file: File, path: str, first: int, known: Cursor | None) -> Cursor | None:
        """The cursor of a sidecar; None if it is not to be shown, not yet, or not as what it was."""
        if known is not None and known.is_of(file):
            return known
        try:
            header, origin = read_header(file, path)
            check_owner(header, path, kind=KIND_SCOPE, store=self._store, session=self.session)
        except (CorruptLog, ForeignFile, NewerFormat):
            self._lives.haunt(first)
            return None  # being created, or not ours
        if known is not None and first in self._lives.cursors:
            located = Cursor.locate(file, path, known.point) if header.scope == known.header.scope else None
            if located is None:
                raise _Restart(f"the log of the scope {header.scope!r} was compacted beyond what was seen")
            self._lives.cursors[first] = located
            return located
        if header.first != first or self._scope not in (None, header.scope):
            self._ignored.add(first)
            return None
        self._waiting[first] = fresh = Cursor(file, path, header, origin)
        return fresh

    def _refuse(self, newcomers: dict[int, Cursor], shown: int) -> None:
        """Leave out lives that main does not carry as far as it is shown, and those it says are dead."""
        main = self._main
        assert main is not None
        for first, cursor in [*newcomers.items()]:
            header = cursor.header
            if max(header.base, header.after) > shown:
                del newcomers[first]
            elif dead_by_floor(main.header, first) or self._latest_retirement(header.scope, first) > first:
                self._ignored.add(first)
                del newcomers[first], self._waiting[first]

    def _latest_retirement(self, scope: str, first: int) -> int:
        known = self._lives.retirement(scope, first)
        return self._retirements(first).get(scope, 0) if known is None else known

    def _retirements(self, since: int) -> dict[str, int]:
        """Main's latest retirements, as far as it can be read."""
        self._fs.pool.make_room()
        handle = Handle.open_readonly(self._fs, os.path.join(self._directory, MAIN_FILE))
        try:
            with handle.pin() as file:
                found = survey(file, handle.path, judge=False)
            view = LogView.of_survey(handle, handle.path, found)
            view.index = self._index
            return view.retired_since(since)
        finally:
            handle.close()

    def _explain_ghosts(self) -> None:
        """Everything visible was read: a life that is gone must have been retired."""
        unexplained = self._lives.unexplained()
        if not unexplained or self._main is None:
            return
        seen = self._main.point.sequence
        latest: dict[int, int] = {}
        for scope, sequence in self._retirements(min(ghost.point.first for ghost in unexplained)).items():
            mark = mark_of(scope)
            latest[mark] = max(sequence, latest.get(mark, 0))
        for ghost in unexplained:
            if latest.get(ghost.point.mark, 0) <= max(seen, ghost.point.first):
                raise _Restart(f"the scope that began at {ghost.point.first} was lost without a retirement")
            ghost.explained = True

    # --- events -----------------------------------------------------------------------------------

    def _show(self, pending: list[tuple[Cursor, Taken]], newcomers: dict[int, Cursor]) -> list[Event]:
        """Take the batches, in order of their last sequences, and make events of them."""
        events: list[Event] = []
        lives = self._lives
        scope, together = "", list[Record]()  # batches of one scope that follow each other are one event

        def finish() -> None:
            if together:
                events.append(Records(scope, together, self._position()))

        for cursor, taken in pending:
            header = cursor.header
            begins = cursor is not self._main and lives.cursors.get(header.first) is not cursor
            if begins and (newcomers.get(header.first) is not cursor or not lives.may_begin(cursor)):
                continue  # not to be shown yet, or over by now
            retired = [record for record in taken.records if record.code == RETIRE]
            wanted = self._scope in (None, header.scope)
            if retired or (wanted and header.scope != scope):
                finish()
                scope, together = header.scope, []
            if begins:
                del newcomers[header.first], self._waiting[header.first]
                lives.begin(cursor)
            before = self._position() if retired else None
            cursor.take(taken)
            if cursor is not self._main:
                lives.moved(cursor)
            self._ignored.update(lives.retire(str(record.argument), record.sequence) for record in retired)
            if before is not None:
                told = [record for record in retired if self._scope in (None, SESSION, record.argument)]
                rest = [record for record in taken.records if record.code != RETIRE] if wanted else []
                for record in told:
                    last = record is told[-1] and not rest
                    at = self._position() if last else before
                    events.append(Retired(str(record.argument), record.sequence, record.time, at))
                together = rest
            elif wanted:
                together += taken.records
        finish()
        return events

    def _position(self) -> Position:
        main, identity = self._main, self._identity
        assert main is not None and identity is not None
        return Position(identity, main.point.epoch, main.point.sequence, self._lives.points())

    # --- files ------------------------------------------------------------------------------------

    @contextmanager
    def _file(self, name: str) -> Iterator[tuple[File, str]]:
        path = os.path.join(self._directory, name)
        self._fs.pool.make_room()
        with closing(self._fs.open_readonly(path)) as file:
            yield file, path

    @contextmanager
    def _main_file(self) -> Iterator[tuple[File, str]]:
        try:
            with self._file(MAIN_FILE) as opened:
                yield opened
        except (FileNotFoundError, NotADirectoryError):
            raise _Gone from None

    def _check_same(self, header: Header, path: str) -> None:
        check_owner(header, path, kind=KIND_MAIN, store=self._store, session=self.session)
        if _identity_of(header) != self._identity:
            raise _Gone

    def _locate(self, name: str, kind: str, point: Point) -> Cursor | None:
        opened = self._main_file() if kind == KIND_MAIN else self._file(name)
        with opened as (file, path):
            header, _ = read_header(file, path)
            if kind == KIND_MAIN:
                self._check_same(header, path)
            else:
                check_owner(header, path, kind=kind, store=self._store, session=self.session)
            return Cursor.locate(file, path, point)


def _identity_of(header: Header) -> int:
    """What tells a session from a later one of the same id: when it was made. Compaction keeps it."""
    return header.time & MAX_SEQUENCE


def dead_by_floor(header: Header, first: int) -> bool:
    """Whether a compacted main says that a life is over, its retirement being dropped."""
    return header.ended(first) > 0


__all__ = ["Base", "Deleted", "Event", "Follower", "Records", "Retired"]
