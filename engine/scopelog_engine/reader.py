"""A session read without its lock: any number of processes, while the writer appends, recovers, retires and deletes.

A reader takes no lock, changes nothing, and says nothing about torn or corrupt: where a chain ends is "the end so
far". It sees a consistent prefix: whole frames, and of every scope only the life that main has not retired.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from .durability import Durability
from .errors import (
    CorruptLog,
    ForeignFile,
    HandleClosed,
    HandleForked,
    NewerFormat,
    NoSuchSession,
    OpenFailed,
    ReadFailed,
    ScopelogError,
)
from .fs import FileSystem, Readable
from .handle import Handle
from .header import KIND_MAIN, KIND_SCOPE, Header, check_owner
from .info import SessionInfo, info_of
from .layout import KIND_HEADER, MAIN_FILE, scope_file_sequence
from .lines import Address, Record
from .logindex import LogIndex
from .recovery import NO_RESOURCES
from .scope import SESSION
from .survey import Survey, read_header, survey
from .view import LogView, bounds, page

_ATTEMPTS: Final = 16
T = TypeVar("T")


class ScopedRecord(NamedTuple):
    """A record and the scope it lives in (``SESSION`` for main)."""

    scope: str
    record: Record


class _Snapshot:
    """Views of main and of every living scope as they stood at one moment."""

    def __init__(self) -> None:
        self.views: dict[str, LogView] = {}
        self.surveys: dict[str, Survey] = {}
        self.handles: list[Handle] = []
        self.undecided: ScopelogError | None = None  # what hides which scopes are alive

    def close(self) -> None:
        for handle in self.handles:
            handle.close()


class _Bounded:
    """A file that seems to end at ``end``."""

    def __init__(self, file: Readable, end: int) -> None:
        self._file = file
        self._end = end

    def pread(self, length: int, offset: int) -> bytes:
        return self._file.pread(max(0, min(length, self._end - offset)), offset)

    def size(self) -> int:
        return min(self._file.size(), self._end)


class Reader:
    """One session as it stood when the reader was opened, or last refreshed.

    ``durable``: of each log only what a durable mark in it proves, which no crash takes back.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        *,
        store: str,
        session: str,
        index: LogIndex | None = None,
        durable: bool = False,
    ) -> None:
        self.session = session
        self._durable = durable
        self._index = index
        self._fs = fs
        self._directory = directory
        self._store = store
        self._now = _Snapshot()
        self._closed = False
        self._pid = os.getpid()
        self.refresh()

    def refresh(self) -> None:
        """Take a new snapshot. Raises :class:`NoSuchSession` if the session is gone."""
        self._snapshot()
        for _ in range(_ATTEMPTS):
            fresh = _Snapshot()
            try:
                whole = self._look(fresh)
            except OSError as error:
                fresh.close()
                raise ReadFailed(
                    f"{self._directory} could not be read ({error})", "check the disk and its permissions"
                ) from error
            except BaseException:
                fresh.close()
                raise
            if whole:
                self._now.close()
                self._now = fresh
                return
            fresh.close()
        raise OpenFailed(
            f"the session {self.session!r} changed under the reader {_ATTEMPTS} times in a row", "try again"
        )

    def _look(self, fresh: _Snapshot) -> bool:
        """Fill in a snapshot; False if a file went away meanwhile."""
        try:
            names = self._fs.list_dir(self._directory)
            main, found = self._open(fresh, MAIN_FILE, KIND_MAIN)
        except FileNotFoundError:
            raise NoSuchSession(f"there is no session {self.session!r}", "look at the list of sessions") from None
        fresh.views[SESSION], fresh.surveys[SESSION] = main, found
        main_last = found.sequence
        lives: list[tuple[LogView, Survey]] = []
        for name in names:
            first = scope_file_sequence(name)
            if first is None:
                continue
            try:
                view, found = self._open(fresh, name, KIND_SCOPE)
            except FileNotFoundError:
                return False  # retired since main was read: look at main again
            except (CorruptLog, ForeignFile, NewerFormat):
                continue  # being created, or not ours: recovery will say
            except (OSError, ReadFailed) as error:
                if isinstance(error, OSError) and error.errno in NO_RESOURCES:
                    raise
                fresh.undecided = ReadFailed(f"{name} could not be read ({error})", "check the disk")
                continue
            header = found.header
            nothing_yet = found.last.kind == KIND_HEADER
            if header.first == first and max(header.base, header.after) <= main_last and not nothing_yet:
                lives.append((view, found))
        if not lives:
            return True
        try:
            oldest = min(found.header.first for _, found in lives)
            retired = main.retired_since(oldest, {found.header.scope for _, found in lives})
        except CorruptLog as error:  # main can still be read: up to the damage, and behind it by the tail
            fresh.undecided = error
            return True
        for view, found in lives:
            scope = found.header.scope
            ended = max(retired.get(scope, 0), main.header.ended(found.header.first))
            if ended <= found.header.first and scope not in fresh.views:
                fresh.views[scope], fresh.surveys[scope] = view, found
        return True

    def _open(self, fresh: _Snapshot, name: str, kind: str) -> tuple[LogView, Survey]:
        path = os.path.join(self._directory, name)
        handle = Handle.open_readonly(self._fs, path)
        fresh.handles.append(handle)
        with handle.pin() as file:
            found = survey(file, path, judge=False)
            if self._durable:  # a mark above 0 proves the file's name as well
                mark = found.mark or read_header(file, path)[1].end
                bounded = survey(_Bounded(file, mark), path, judge=False)
                found = bounded._replace(mark=found.mark, marked_sequence=bounded.last.last)
        check_owner(found.header, path, kind=kind, store=self._store, session=self.session)
        view = LogView.of_survey(handle, path, found)
        view.index = self._index if kind == KIND_MAIN else None
        return view, found

    # --- answers ----------------------------------------------------------------------------------

    def _snapshot(self) -> _Snapshot:
        if os.getpid() != self._pid:
            raise HandleForked(
                f"the reader of {self.session!r} was made by process {self._pid}", "make one in this process"
            )
        if self._closed:
            raise HandleClosed(f"the reader of {self.session!r} was closed", "make another one")
        return self._now

    def _view(self, scope: str) -> LogView | None:
        now = self._snapshot()
        if scope not in now.views and now.undecided is not None:
            raise now.undecided.again() from now.undecided
        return now.views.get(scope)

    def _answer(self, ask: Callable[[], T]) -> T:
        """Ask again where what we took for whole frames was cut meanwhile: by a roll-back, or as a torn tail."""
        for _ in range(_ATTEMPTS):
            try:
                return ask()
            except CorruptLog as error:
                if not self._cut_since(error):
                    raise
                self.refresh()
        return ask()

    def _cut_since(self, error: CorruptLog) -> bool:
        for view in self._now.views.values():
            if view.path == error.path and error.offset < view.end:
                with view.pinned() as file:
                    return survey(file, view.path, judge=False).end <= error.offset
        return False

    def scopes(self) -> list[str]:
        """Ids of the ephemeral scopes that are alive, sorted."""
        return sorted(scope for scope in self._snapshot().surveys if scope != SESSION)

    def read(
        self,
        scope: str,
        address: Address,
        *,
        cursor: int | None = None,
        descending: bool = False,
        limit: int | None = None,
        stop_at_tag: str | None = None,
    ) -> list[Record]:
        """Elements of a list, as :meth:`Writer.read` gives them."""

        def ask() -> list[Record]:
            view = self._view(scope)
            if view is None:
                return []
            above, below = bounds(cursor, descending)
            return page(view.elements(address, above=above, below=below, descending=descending), limit, stop_at_tag)

        return self._answer(ask)

    def get(self, scope: str, address: Address) -> Record | None:
        """The latest write of a value if it is no delete, else None."""

        def ask() -> Record | None:
            view = self._view(scope)
            return view.get(address) if view is not None else None

        return self._answer(ask)

    def scan(self, scope: str, namespace: str, prefix: str) -> list[Record]:
        """Living values, as :meth:`Writer.scan` gives them."""

        def ask() -> list[Record]:
            view = self._view(scope)
            return view.scan(namespace, prefix) if view is not None else []

        return self._answer(ask)

    def lists(self, scope: str, namespace: str, prefix: str) -> list[str]:
        """Keys of an ephemeral scope's lists, as :meth:`Writer.lists` gives them."""

        def ask() -> list[str]:
            view = self._view(scope)
            return sorted(view.lists(namespace, prefix)) if view is not None else []

        return self._answer(ask)

    def records(self) -> Iterator[ScopedRecord]:
        """Everything stored, in sequence order over main and the living scopes.

        Raises :class:`CorruptLog` where a good prefix ends before what the reader took for the end, and, when all
        else has been told, what hides which scopes are alive: a file that could not be read is no file that is gone.
        """
        now = self._snapshot()
        views = now.views

        def of(scope: str) -> Iterator[ScopedRecord]:
            try:
                for record in views[scope].records():
                    yield ScopedRecord(scope, record)
            except CorruptLog as error:
                if not self._cut_since(error):
                    raise

        def hidden() -> Iterator[ScopedRecord]:
            if now.undecided is not None:
                raise now.undecided.again() from now.undecided
            yield from ()

        found = heapq.merge(*(of(scope) for scope in views), key=lambda item: item.record.sequence)
        return itertools.chain(found, hidden())

    # --- state ------------------------------------------------------------------------------------

    def logs(self) -> list[tuple[str, LogView, Survey]]:
        """Scope, view and survey of main and of every living scope. Raises what hides which scopes are alive."""
        now = self._snapshot()
        if now.undecided is not None:
            raise now.undecided.again() from now.undecided
        return [(scope, view, now.surveys[scope]) for scope, view in now.views.items()]

    def info(self) -> SessionInfo:
        """What main says of the session at a glance."""
        return self._answer(lambda: info_of(self._snapshot().views[SESSION], self.session))

    def rebuild_index(self) -> int | None:
        """Derive the index of main again, however short it is. Up to which offset it covers main then; None if it
        could not be stored."""
        now = self._snapshot()
        if self._index is None or not self._index.rebuild(now.views[SESSION], now.surveys[SESSION].mark):
            return None
        return self._index.covered()

    def index_covers(self) -> int:
        """Up to which offset the index covers main, 0 if it does not."""
        tree = self._index.tree(self._snapshot().views[SESSION], look=True) if self._index is not None else None
        return tree.root.end if tree is not None else 0

    def last_sequence(self, scope: str) -> int:
        """Last sequence stored in a scope, 0 if the scope is not alive."""
        found = self._snapshot().surveys.get(scope)
        return found.sequence if found is not None else 0

    def durable_sequence(self, scope: str, level: Durability) -> int:
        """Last sequence that is stored, or (at POWER) proved by a durable mark that the log carries."""
        found = self._snapshot().surveys.get(scope)
        if found is None:
            return 0
        return found.sequence if level is Durability.PROCESS else found.marked_sequence

    @property
    def main(self) -> LogView:
        """Main as it stood."""
        return self._snapshot().views[SESSION]

    @property
    def header(self) -> Header:
        """Main's header."""
        return self._snapshot().views[SESSION].header

    @property
    def epoch(self) -> int:
        """The epoch of main's last frame."""
        return self._snapshot().surveys[SESSION].last.epoch

    def sizes(self) -> dict[str, int]:
        """Bytes of log that each living scope takes, preallocated space left out."""
        return {scope: found.end for scope, found in self._snapshot().surveys.items()}

    def unread_bytes(self) -> int:
        """Bytes behind the ends so far that are neither whole frames nor covered space.

        A writer at work leaves some for an instant; else they are a torn tail or damage: ``check`` can tell.
        """
        return sum(found.size - found.end for found in self._snapshot().surveys.values() if not found.covered)

    def close(self) -> None:
        """Let go of the files. Closing twice is legal."""
        self._closed = True
        self._now.close()
