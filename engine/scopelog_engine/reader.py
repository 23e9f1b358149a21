"""A session read without its lock: any number of processes, while the writer appends, recovers, retires and deletes.

A reader takes no lock, changes nothing, and says nothing about torn or corrupt: where a chain ends is "the end so
far". It sees a consistent prefix: whole frames, and of every scope only the life that main has not retired.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from .durability import Durability
from .errors import CorruptLog, ForeignFile, NewerFormat, NoSuchSession, OpenFailed, ReadFailed
from .fs import FileSystem
from .header import KIND_MAIN, KIND_SCOPE, Header, check_owner
from .layout import MAIN_FILE, scope_file_sequence
from .lines import DELETE, Address, Record
from .scope import SESSION
from .survey import Survey, survey
from .view import Handle, LogView, bounds, page

_ATTEMPTS: Final = 16


class ScopedRecord(NamedTuple):
    """A record and the scope it lives in (``SESSION`` for main)."""

    scope: str
    record: Record


class Reader:
    """One session as it stood when the reader was opened, or last refreshed."""

    def __init__(self, fs: FileSystem, directory: str, *, store: str, session: str) -> None:
        self.session = session
        self._fs = fs
        self._directory = directory
        self._store = store
        self._views: dict[str, LogView] = {}
        self._surveys: dict[str, Survey] = {}
        self._undecided: CorruptLog | None = None  # damage that hides which scopes are alive
        self.refresh()

    @property
    def header(self) -> Header:
        """Main's header."""
        return self._views[SESSION].header

    def refresh(self) -> None:
        """Take a new snapshot. Raises :class:`NoSuchSession` if the session is gone."""
        for _ in range(_ATTEMPTS):
            views: dict[str, LogView] = {}
            surveys: dict[str, Survey] = {}
            try:
                whole = self._snapshot(views, surveys)
                if whole:
                    self.close()
                    self._views, self._surveys = views, surveys
                    return
            except OSError as error:
                _close(views)
                raise ReadFailed(
                    f"{self._directory} could not be read ({error})", "check the disk and its permissions"
                ) from error
            except BaseException:
                _close(views)
                raise
            _close(views)
        raise OpenFailed(
            f"the session {self.session!r} changed under the reader {_ATTEMPTS} times in a row", "try again"
        )

    def _snapshot(self, views: dict[str, LogView], surveys: dict[str, Survey]) -> bool:
        """Fill in a view of main and of every living scope; False if a file went away meanwhile."""
        try:
            names = self._fs.list_dir(self._directory)
            surveys[SESSION] = self._open(views, SESSION, MAIN_FILE, KIND_MAIN)
        except FileNotFoundError:
            raise NoSuchSession(f"there is no session {self.session!r}", "look at the list of sessions") from None
        lives: list[tuple[int, str, LogView, Survey]] = []
        for name in names:
            first = scope_file_sequence(name)
            if first is None:
                continue
            held: dict[str, LogView] = {}
            try:
                found = self._open(held, name, name, KIND_SCOPE)
            except FileNotFoundError:
                return False  # retired since main was read: look at main again
            except (CorruptLog, ForeignFile, NewerFormat):
                continue  # being created, or not ours: recovery will say
            header = found.header
            if header.first != first or max(header.base, header.after) > surveys[SESSION].last.last:
                views[f"{SESSION}\0{name}"] = held[name]  # closed with the rest, never read
                continue
            lives.append((first, header.scope, held[name], found))
            views[f"{SESSION}\0{name}"] = held[name]
        retired: dict[str, int] = {}
        try:
            if lives:
                retired = views[SESSION].retired_since(min(first for first, *_ in lives))
            self._undecided = None
        except CorruptLog as error:  # main can still be read: up to the damage, and behind it by the tail
            self._undecided = error
            return True
        for first, scope, view, found in lives:
            if retired.get(scope, 0) <= first and scope not in views:
                views[scope] = view
                surveys[scope] = found
        return True

    def _open(self, views: dict[str, LogView], key: str, name: str, kind: str) -> Survey:
        path = os.path.join(self._directory, name)
        handle = Handle(self._fs.open_readonly(path))
        try:
            found = survey(handle.file, path, judge=False)
            check_owner(found.header, path, kind=kind, store=self._store, session=self.session)
        except BaseException:
            handle.close()
            raise
        views[key] = LogView.of_survey(handle, path, found)
        return found

    def _view(self, scope: str) -> LogView | None:
        if scope != SESSION and self._undecided is not None:
            raise self._undecided.again() from self._undecided
        return self._views.get(scope)

    # --- answers ----------------------------------------------------------------------------------

    def scopes(self) -> list[str]:
        """Ids of the ephemeral scopes that are alive, sorted."""
        return sorted(scope for scope in self._surveys if scope != SESSION)

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
        view = self._view(scope)
        if view is None:
            return []
        above, below = bounds(cursor, descending)
        return page(view.elements(address, above=above, below=below, descending=descending), limit, stop_at_tag)

    def get(self, scope: str, address: Address) -> Record | None:
        view = self._view(scope)
        record = view.get(address) if view is not None else None
        return None if record is None or record.code == DELETE else record

    def scan(self, scope: str, namespace: str, prefix: str) -> list[Record]:
        view = self._view(scope)
        found = view.scan(namespace, prefix) if view is not None else {}
        return [found[key] for key in sorted(found) if found[key].code != DELETE]

    def records(self) -> Iterator[ScopedRecord]:
        """Everything stored, in sequence order over main and the living scopes.

        Raises :class:`CorruptLog` where a good prefix ends before what the reader took for the end.
        """

        def of(scope: str) -> Iterator[ScopedRecord]:
            for record in self._views[scope].records():
                yield ScopedRecord(scope, record)

        return heapq.merge(*(of(scope) for scope in self._surveys), key=lambda item: item.record.sequence)

    def last_sequence(self, scope: str) -> int:
        """Last sequence stored in a scope, 0 if the scope is not alive."""
        found = self._surveys.get(scope)
        return found.last.last if found is not None else 0

    def durable_sequence(self, scope: str, level: Durability) -> int:
        """Last sequence that is stored, or (at POWER) proved by a durable mark that the log carries."""
        found = self._surveys.get(scope)
        if found is None:
            return 0
        return found.last.last if level is Durability.PROCESS else found.marked_sequence

    @property
    def epoch(self) -> int:
        """The epoch of main's last frame."""
        return self._surveys[SESSION].last.epoch

    def sizes(self) -> dict[str, int]:
        """Bytes of log that each living scope takes, preallocated space left out."""
        return {scope: found.end for scope, found in self._surveys.items()}

    def unread_bytes(self) -> int:
        """Bytes behind the ends so far that are neither whole frames nor covered space.

        A writer at work leaves some for an instant; else they are a torn tail or damage: ``check`` can tell.
        """
        return sum(found.size - found.end for found in self._surveys.values() if not found.covered)

    def close(self) -> None:
        _close(self._views)
        self._views, self._surveys = {}, {}


def _close(views: dict[str, LogView]) -> None:
    for view in views.values():
        view.handle.close()
    views.clear()
