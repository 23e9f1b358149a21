"""Retirement: the end of a scope's life, from its admission to the unlinking of its file."""

from __future__ import annotations

import logging

from .errors import OutcomeUnknown
from .publishing import Publishing
from .scope import Commit, ScopeState
from .state import staged_bytes, staged_of

_log = logging.getLogger(__name__)


class Retiring(Publishing):
    """The part of a session that ends scopes. Its methods hold ``_lock`` unless they say so; each may be done twice."""

    def _set_aside(self, commit: Commit, scope: str) -> None:
        """A retirement was admitted: what waits in the scope's window is held back until its outcome is known."""
        state = self._scopes.get(scope)
        if state is None:  # a life that begins now waits as well: nobody must see it before the retirement
            state = self._scopes[scope] = ScopeState(scope, self.settings.scope_level)
            state.feeds = self._watched.get(scope)
        commit.held.append(state)
        state.retiring.add(commit)
        state.blocked = True
        if self._leader:
            return  # a leader may be storing part of it; what it stores is dropped with the rest
        cut = len(state.pending)
        while cut and not isinstance(state.pending[cut - 1], Commit):
            cut -= 1
        state.aside += staged_of(state.pending[cut:])
        del state.pending[cut:]
        state.deadline = None

    def _end_retirement(self, commit: Commit, stored: bool, unknown: OutcomeUnknown | None = None) -> None:
        main = self._main.log
        durable = main is not None and main.durable_sequence >= commit.target
        if durable:
            self._undurable.clear()
        for scope in dict.fromkeys(commit.retires):
            if stored and not durable:
                self._undurable[scope] = commit.target
        for state in commit.held:
            state.retiring.discard(commit)
            if unknown is not None:
                state.doubt = unknown
            if stored:
                if not state.gone:
                    self._drop(state, commit.target)
            elif not state.retiring and not state.gone:
                state.blocked = True  # an append looks again, and finds what else there is
                if state.aside:
                    state.pending, state.aside = [*state.pending, *state.aside], []
                while state.deferred:
                    self._ask(state, state.deferred.pop())
                if state.pending:
                    self._open_window(state)
                elif state.log is None and not state.tickets and self._scopes.get(state.scope) is state:
                    del self._scopes[state.scope]  # there is nothing of it
        commit.held = []
        if stored and self._watched:
            for scope in commit.retires:
                if scope not in self._scopes:  # nothing was ever written to it; else it is dropped, or begun anew
                    self._end_scope_watches(scope)

    def _drop(self, state: ScopeState, boundary: int) -> None:
        """The scope's life is over: nothing of it is shown from here on, whatever happens to its file."""
        if state.log is not None:
            self._doomed.append((state.log.path, boundary))
            state.log.view.handle.close()
            state.log = None
        for ticket in (*state.deferred, *state.tickets):
            ticket.done = True  # dropped counts as settled
            if ticket.waiter is not None:
                self._woken.append(ticket.waiter)
        self._release_bytes(staged_bytes(staged_of(state.pending)) + staged_bytes(state.aside))
        state.pending, state.aside, state.deferred, state.tickets = [], [], [], []
        state.deadline = state.failure = None
        state.blocked = True
        for address in state.lists:
            self._lists.pop((state.scope, address), None)
        if state.scope in self._watched:
            self._end_scope_watches(state.scope)  # before the id can begin another life
        if self._scopes.get(state.scope) is state:
            del self._scopes[state.scope]
        state.gone = True  # last: until then it is dropped again after an interruption

    def _unlink_doomed(self) -> None:
        """Remove sidecars whose retirement is durable at POWER. A failure is no failure of any commit.

        Does not hold ``_lock``, for a slow disk must not hold up admissions. Two threads may do it at once.
        """
        with self._lock:
            main = self._main.log
            durable = main.durable_sequence if main is not None else 0
            due = [path for path, boundary in self._doomed if boundary <= durable]
        gone: set[str] = set()
        for path in due:
            try:
                self._env.fs.unlink(path)
            except FileNotFoundError:
                pass  # by an interrupted attempt, or another thread
            except OSError as error:
                _log.warning("%s could not be removed: %s; it will be tried again", path, error)
                continue
            gone.add(path)
        if gone:
            with self._lock:
                self._doomed = [entry for entry in self._doomed if entry[0] not in gone]
