"""Reads of a session through its own writer: what is stored and what is staged, as one.

A read sees everything admitted before it. It waits while a batch is being written, takes a frozen view of the log
under the lock, and reads the disk without it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from .durability import Durability
from .errors import HandleForked, ReadFailed
from .info import SessionInfo, info_of, info_of_nothing
from .lines import Address, Record
from .scope import SESSION, Commit, ScopeState, Staged
from .staging import join, staged_record
from .state import staged_bytes, staged_of
from .storing import Storing
from .view import LogView, bounds, page


class Reading(Storing):
    """The half of a session that answers."""

    # --- reading ----------------------------------------------------------------------------------

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
        """Elements of a list; see scopes/README.md. What was shown never changes: pending runs are sealed."""
        with self._lock:
            view, staged = self._look(self._readable(scope), address)
        try:
            return page(merged(view, staged, address, cursor, descending), limit, stop_at_tag)
        finally:
            if view is not None:
                view.let_go()

    def get(self, scope: str, address: Address) -> Record | None:
        """The latest write of a value if it is no delete, else None."""
        with self._lock:
            view = self._snapshot(self._readable(scope))
        if view is None:
            return None
        try:
            return view.get(address)
        finally:
            view.let_go()

    def scan(self, scope: str, namespace: str, prefix: str) -> list[Record]:
        """Living values of a namespace whose keys start with ``prefix``, by code point order of their keys."""
        with self._lock:
            view = self._snapshot(self._readable(scope))
        if view is None:
            return []
        try:
            return view.scan(namespace, prefix)
        finally:
            view.let_go()

    def lists(self, scope: str, namespace: str, prefix: str) -> list[str]:
        """Keys, sorted, of an ephemeral scope's lists that hold elements, stored or staged."""
        with self._lock:
            state = self._readable(scope)
            found = staged_lists(state, namespace, prefix)
            view = self._snapshot(state)
        if view is None:
            return sorted(found)
        try:
            return sorted(found | view.lists(namespace, prefix))
        finally:
            view.let_go()

    def _readable(self, scope: str) -> ScopeState | None:
        """The scope's state, at a moment when nobody is storing and all commits admitted before have ended.

        A commit is shown when it is acknowledged. What is admitted while we wait is not waited for, and whoever
        would lead next lets us in first.
        """
        self._check()
        if self._leader == threading.get_ident():
            self._refuse_reentry()
        state = self._scopes.get(scope)
        if state is None:
            self._refuse_undecided()
        else:
            before = commits_before(state)
            while not all(commit.done for commit in before):
                self._wait_or_lead()
        if self._leader:
            self._wait_for_the_leader()
        self._check()
        return self._scopes.get(scope)

    def _wait_for_the_leader(self) -> None:
        """Return when nobody is storing; whoever would lead next lets us in first. Holds ``_lock``."""
        self._readers += 1
        try:
            while self._leader:
                self._wait()
        finally:
            self._readers -= 1
            if self._gate:
                self._gate -= 1
                self._tell()
                if not self._gate and self._asked:
                    self._kick()

    def _look(self, state: ScopeState | None, address: Address) -> tuple[LogView | None, list[Staged]]:
        """What there is of a list: a frozen view, entered, and what is staged, sealed by this. Holds ``_lock``."""
        staged: list[Staged] = []
        if state is not None:
            self._seal(state, address)
            staged = [entry for entry in _shown(state) if entry[1] == address]
        return self._snapshot(state), staged

    def _seal(self, state: ScopeState, address: Address) -> None:
        """Join what is shown of a list now, so that it never changes."""
        known = self._lists.get((state.scope, address))
        if known is None or known.coalescer is None:
            return
        cut = _first_commit(state)
        whole = cut == len(state.pending)
        state.pending = [*self._joined(state, staged_of(state.pending[:cut]), address), *state.pending[cut:]]
        if whole:
            state.aside = self._joined(state, state.aside, address)

    def _joined(self, state: ScopeState, run: list[Staged], address: Address) -> list[Staged]:
        joined, failure = join(run, only=address)
        if len(joined) != len(run):
            self._release_bytes(staged_bytes(run) - staged_bytes(joined))
        if failure is not None:
            state.fail(failure)
        return joined

    def _snapshot(self, state: ScopeState | None) -> LogView | None:
        """A frozen view, whose file stays open; the caller lets go of it."""
        if state is None or state.log is None or not state.log.born:
            return None
        view = state.log.view.snapshot()
        view.index = self._index if state is self._main else None
        return view

    # --- state ------------------------------------------------------------------------------------

    def info(self) -> SessionInfo:
        """What main says of the session at a glance: all that was acknowledged, and what is stored of the staged."""
        with self._lock:
            view = self._snapshot(self._readable(SESSION))
        if view is None:
            return info_of_nothing(self.session)
        try:
            return info_of(view, self.session)
        finally:
            view.let_go()

    def durable_sequence(self, scope: str, level: Durability | None = None) -> int:
        """Up to which sequence the scope's records are stored at ``level`` (default: the scope's own); 0 if none."""
        with self._lock:
            self._check_fork()
            state = self._scopes.get(scope)
            if state is None or state.log is None or not state.log.born:
                return 0
            if max(state.level, level or state.level) is Durability.POWER:
                return state.log.durable_sequence
            return state.log.last_sequence

    def scopes(self) -> list[str]:
        """Ids of the ephemeral scopes that are alive, sorted."""
        with self._lock:
            self._check()
            return sorted(s.scope for s in self._scopes.values() if s.scope and (s.log is not None or s.pending))

    def stats(self) -> dict[str, int | float]:
        """Counters as plain data: bytes, counts, and seconds for ``sync_seconds``."""
        with self._lock:
            pending = sum(len(state.pending) + len(state.aside) for state in self._scopes.values())
            counters = self.counters
            return {
                "pending_elements": pending,
                "pending_bytes": self._bytes,
                "batches": self._batches,
                "appends": counters.appends,
                "frames": counters.frames,
                "bytes_written": counters.bytes,
                "syncs": counters.syncs,
                "sync_seconds": counters.sync_seconds,
                "failures": self._failures,
                "scopes_alive": sum(1 for s in self._scopes.values() if s.scope),
                "sequence": self._sequence,
                "epoch": self.epoch,
            }

    # --- may we? ----------------------------------------------------------------------------------

    def _check(self) -> None:
        self._check_fork()
        if self._unusable is not None:
            raise self._unusable.again() from self._unusable

    def _check_fork(self) -> None:
        if isinstance(self._unusable, HandleForked):
            raise self._unusable.again()

    def _scope(self, scope: str) -> ScopeState:
        state = self._scopes.get(scope)
        if state is None:
            self._refuse_undecided()
            state = ScopeState(scope, self.settings.scope_level)
            state.feeds = self._watched.get(scope)
            self._scopes[scope] = state
        return state

    def _refuse_undecided(self) -> None:
        unreadable = self.recovery.unreadable
        if unreadable:
            raise ReadFailed(
                f"{unreadable[0].path} could not be read when the session was opened ({unreadable[0].reason}): whether "
                "this scope is alive is not known",
                "mend the disk or the permissions and open the session again; the session scope goes on",
            )


def _first_commit(state: ScopeState) -> int:
    """Where in what is pending the first commit stands that has not ended; the length if there is none."""
    for at, entry in enumerate(state.pending):
        if isinstance(entry, Commit):
            return at
    return len(state.pending)


def _shown(state: ScopeState) -> list[Staged]:
    """Staged elements that may be shown: order holds within a scope, so none behind a commit under way."""
    cut = _first_commit(state)
    shown = staged_of(state.pending[:cut])
    return shown + state.aside if cut == len(state.pending) else shown


def staged_lists(state: ScopeState | None, namespace: str, prefix: str) -> set[str]:
    """Keys of the lists that have staged elements which may be shown."""
    addresses = {entry[1] for entry in _shown(state)} if state is not None else set()
    return {key for space, key, _ in addresses if space == namespace and key.startswith(prefix)}


def commits_before(state: ScopeState) -> list[Commit]:
    """Commits that a read of the scope must see the end of: admitted to it, or about to retire it."""
    before = [entry for entry in state.pending if isinstance(entry, Commit)]
    before += state.retiring
    return before


def merged(
    view: LogView | None, staged: list[Staged], address: Address, cursor: int | None, descending: bool
) -> Iterator[Record]:
    """Stored elements of a list and staged ones, which are always younger, from an exclusive cursor on."""
    above, below = bounds(cursor, descending)
    fresh = [staged_record(e, 0) for e in staged if above < e[0] < below]
    if descending:
        yield from reversed(fresh)
    if view is not None:
        yield from view.elements(address, above=above, below=below, descending=descending)
    if not descending:
        yield from fresh
