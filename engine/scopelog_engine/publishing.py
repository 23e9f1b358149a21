"""Publishing: what was admitted or acknowledged goes to the feeds of those who watch in this process.

A staged element is published when it is admitted, a commit once it is stored; an element behind a commit that has not
ended waits for it, so that each feed goes up in order of sequence. This happens under ``_lock``, in the very step that
makes it visible to reads. Where nobody watches nothing is done: a scope's ``feeds`` is None.

Everything is told by sequences: ``ScopeFeeds.shown`` is how far a scope was published, each feed knows its own last
one. So any of this may be interrupted and done again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from .errors import ScopelogError
from .feeds import End, EndReason, Feed, ScopeFeeds
from .lines import APPEND, TRIM, Address
from .scope import Commit, ScopeState, Staged, sequence_of
from .state import SessionState

Change: TypeAlias = "tuple[int, str, bytes, str | int | None]"
"""A published write: sequence, code (APPEND, SET, DELETE or TRIM), JSON text, tag or a trim's sequence. A feed's batch
holds a tuple of them."""

_RETIRED: Final = End(EndReason.RETIRED)


class Publishing(SessionState):
    """The part of a session that tells watchers. Its methods hold ``_lock``; each may be done twice."""

    def _publish(self, state: ScopeState) -> None:
        """Publish what may be shown of the scope and was not yet: staged elements before the first commit."""
        feeds = state.feeds
        if feeds is None:
            return
        torn, feeds.torn = feeds.torn, True
        pending = state.pending
        count = len(pending)
        shown = feeds.shown
        if count and not torn and not state.aside:  # the usual case by far, at once: one staged element is new
            entry = pending[-1]
            if type(entry) is tuple and (count == 1 or sequence_of(pending[-2]) <= shown):
                sequence, address, body, tag = entry[:4]
                if sequence > shown:
                    feed = feeds.feeds.get(address)
                    if feed is not None:
                        gone = feed.add(sequence, len(body), ((sequence, APPEND, body, tag),))
                        if gone and not feed.watchers:
                            self._drop_feed(state.scope, address)
                    feeds.shown = sequence
                feeds.torn = False
                return
        if count < 2 or sequence_of(pending[count - 2]) <= shown:  # the usual case: the newest one
            start = max(count - 1, 0)
        else:
            start = bisect_right(pending, shown, key=sequence_of)
        fresh: dict[Address, list[Change]] = {}
        for entry in islice(pending, start, None):
            if isinstance(entry, Commit):
                if entry.target > feeds.shown:
                    break
                continue  # stored, and being settled for the second time
            shown = self._note(feeds, fresh, entry, shown)
        else:
            for entry in state.aside:
                shown = self._note(feeds, fresh, entry, shown)
        self._publish_elements(state, feeds, fresh, shown)
        if torn:
            self._tell_again(feeds)
        feeds.torn = False

    def _publish_stored(self, state: ScopeState, batch: Sequence[Any]) -> None:
        """Publish a batch that was stored: its commits, and what stood between them."""
        feeds = state.feeds
        if feeds is None:
            return
        torn, feeds.torn = feeds.torn, True
        shown = feeds.shown
        fresh: dict[Address, list[Change]] = {}
        for entry in islice(batch, bisect_right(batch, shown, key=sequence_of), None):
            if isinstance(entry, Commit):
                self._publish_elements(state, feeds, fresh, shown)
                fresh = {}
                self._publish_commit(state, feeds, entry)
                shown = entry.target
            else:
                shown = self._note(feeds, fresh, entry, shown)
        self._publish_elements(state, feeds, fresh, shown)
        if torn:
            self._tell_again(feeds)
        feeds.torn = False

    @staticmethod
    def _note(feeds: ScopeFeeds, fresh: dict[Address, list[Change]], entry: Staged, shown: int) -> int:
        """A staged element that may be shown from now on; returns how far that goes."""
        sequence, address = entry[0], entry[1]
        if sequence <= shown:
            return shown
        if address in feeds.feeds:
            fresh.setdefault(address, []).append((sequence, APPEND, entry[2], entry[3]))
        return sequence

    def _publish_elements(
        self, state: ScopeState, feeds: ScopeFeeds, fresh: dict[Address, list[Change]], shown: int
    ) -> None:
        for address, changes in fresh.items():
            self._hand(state, address, feeds.feeds[address], changes)
        feeds.shown = shown

    def _publish_commit(self, state: ScopeState, feeds: ScopeFeeds, commit: Commit) -> None:
        """One batch for each feed that the commit concerns."""
        changes: dict[Address, list[Change]] = {}
        for sequence, code, address, body, argument in commit.writes:
            if address in feeds.feeds:
                changes.setdefault(address, []).append((sequence, code, body, argument))
        for address, of_feed in changes.items():
            known = self._lists.get((state.scope, address))
            joins = known is not None and known.coalescer is not None
            if joins and any(change[1] == TRIM for change in of_feed):
                # What was published one by one may be stored as one: a cut within it is told by a base alone.
                feeds.feeds[address].skip(of_feed[-1][0])
            else:
                self._hand(state, address, feeds.feeds[address], of_feed)
        feeds.shown = commit.target

    def _hand(self, state: ScopeState, address: Address, feed: Feed, changes: list[Change]) -> None:
        last = feed.sequence
        if changes[0][0] <= last:  # an interrupted attempt has published some of it
            changes = [change for change in changes if change[0] > last]
            if not changes:
                feed.tell()
                return
        size = 0
        for change in changes:
            size += len(change[2])
        if feed.add(changes[-1][0], size, tuple(changes)) and not feed.watchers:
            self._drop_feed(state.scope, address)

    @staticmethod
    def _tell_again(feeds: ScopeFeeds) -> None:
        for feed in feeds.feeds.values():
            feed.tell()

    def _drop_feed(self, scope: str, address: Address) -> None:
        """Nobody watches, and nobody who comes back could go on from where the feed was left."""
        feeds = self._watched.get(scope)
        if feeds is None:
            return
        feeds.feeds.pop(address, None)
        if not feeds.feeds:
            state = self._scopes.get(scope)
            if state is not None:
                state.feeds = None
            self._watched.pop(scope, None)

    def _end_scope_watches(self, scope: str) -> None:
        """The scope was retired."""
        feeds = self._watched.get(scope)
        if feeds is None:
            return
        for feed in feeds.feeds.values():
            feed.end(_RETIRED)
        state = self._scopes.get(scope)
        if state is not None:
            state.feeds = None
        self._watched.pop(scope, None)  # last: until then it is all done again

    def _end_watches(self, reason: EndReason, error: ScopelogError | None = None) -> None:
        """Nothing will be published any more."""
        end = End(reason, error)
        for feed in self._all_feeds():
            feed.end(end)
        for state in self._scopes.values():
            state.feeds = None
        self._watched.clear()

    def _all_feeds(self) -> list[Feed]:
        return [feed for feeds in self._watched.values() for feed in feeds.feeds.values()] + self._guests
