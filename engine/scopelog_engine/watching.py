"""Watching: a base and every later batch, taken up in one step under the lock that publishes.

What is handed out here is the base as records and the feed's batches as frozen JSON texts: whoever follows makes its
own copies. There is no registration without a base, but one: a position that the feed still holds everything behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final, NamedTuple

from .compacting import Compacting
from .errors import HandleClosed
from .feeds import Feed, ScopeFeeds
from .lines import LIST, Address, Record
from .reading import merged
from .scope import Commit, ScopeState, Staged
from .view import LogView

IDLE_FEEDS: Final = 32  # of a session, watched or not, before those that nobody watches are dropped


class Wanted(NamedTuple):
    """What is watched, and what of it a base holds: the elements behind ``cursor``, and the ``last`` ones of them."""

    scope: str
    address: Address
    cursor: int | None = None
    last: int | None = None
    limit: int = 0
    """Batches that the watcher may be behind."""


class Looked(NamedTuple):
    """A base that was looked at: frozen, to be read without the lock. ``view`` is to be let go of."""

    feed: Feed
    number: int
    view: LogView | None
    staged: list[Staged]

    def read(self, wanted: Wanted) -> list[Record]:
        """The base, which can be read once. Raises :class:`CorruptLog`, :class:`ReadFailed`."""
        try:
            return in_order([*self.records(wanted)], wanted)
        finally:
            self.leave()

    def records(self, wanted: Wanted) -> Iterator[Record]:
        """The base of a list, backwards if only its last elements are wanted; the write of a value."""
        view, address = self.view, wanted.address
        if address.kind != LIST:
            found = None if view is None else view.get(address)
            return iter(() if found is None else (found,))
        if wanted.last is None:
            return merged(view, self.staged, address, wanted.cursor, False)
        above = wanted.cursor or 0
        backwards = merged(view, self.staged, address, None, True)
        return islice(takewhile(lambda record: record.sequence > above, backwards), wanted.last)

    def leave(self) -> None:
        """The base was read, or is not wanted any more."""
        if self.view is not None:
            self.view.let_go()


def in_order(records: list[Record], wanted: Wanted) -> list[Record]:
    """Records of :meth:`Looked.records`, the oldest first."""
    return records if wanted.last is None else records[::-1]


class Watching(Compacting):
    """The part of a session that lets others watch."""

    def watch(self, watcher: object, wanted: Wanted, after: tuple[str, int] | None = None) -> Looked | tuple[Feed, int]:
        """Begin to watch: with a base, or behind a position that the feed still holds everything after.

        Raises what a read raises. ``watcher`` is referred to weakly: the feed lives as long as it, and a while longer.
        """
        with self._lock:
            found = self._resumed(watcher, wanted, after)
            if found is not None:
                return found
            return self._look_and_follow(watcher, wanted, self._readable(wanted.scope))

    def base(self, feed: Feed, wanted: Wanted) -> Looked | None:
        """Another base for a watcher of this feed; None if the feed has ended. Raises what a read raises."""
        with self._lock:
            while feed.ended is None:
                try:
                    state = self._readable(wanted.scope)
                except HandleClosed:
                    if not self._waits_for_close(feed):
                        raise
                    self._wait()
                    continue
                if feed.ended is not None:  # while we waited
                    break
                return self._look_again(feed, wanted, state)
        return None

    def _waits_for_close(self, feed: Feed) -> bool:
        """Whether a close is under way that may come to nothing, or is about to end the feed. Holds ``_lock``."""
        return feed.ended is not None or (self._closing != 0 and not self._closed)

    def stop_watching(self, watcher: object, feed: Feed) -> None:
        """The watcher is gone. Its feed stays as long as somebody who comes back could go on where it was left."""
        with self._lock:
            feed.watchers.discard(watcher)

    def adopt_feed(self, feed: Feed) -> None:
        """A feed of somebody else's, which ends with the session."""
        with self._lock:
            self._check()
            self._guests.append(feed)

    def release_feed(self, feed: Feed) -> None:
        """Nobody watches it any more."""
        with self._lock:
            if feed in self._guests:
                self._guests.remove(feed)

    def _resumed(self, watcher: object, wanted: Wanted, after: tuple[str, int] | None) -> tuple[Feed, int] | None:
        """Holds ``_lock``."""
        self._check()
        if after is None:
            return None
        token, number = after
        feeds = self._watched.get(wanted.scope)
        feed = None if feeds is None else feeds.feeds.get(wanted.address)
        if feed is None or feed.token != token or not feed.holds_after(number, wanted.limit):
            return None
        self._follow(watcher, feed, wanted)
        return feed, number

    def _look_and_follow(self, watcher: object, wanted: Wanted, state: ScopeState | None) -> Looked:
        """The base and the registration, at a moment that :meth:`_readable` has found. Holds ``_lock``."""
        feeds = self._watched.get(wanted.scope)
        if feeds is None:
            feeds = ScopeFeeds(_shown_up_to(state, self._sequence))
            if state is not None:
                state.feeds = feeds  # first: interrupted here, it is replaced by the next watch
            self._watched[wanted.scope] = feeds
        feed = feeds.feeds.get(wanted.address)
        if feed is None:
            if state is not None:
                self._publish(state)
            self._drop_idle_feeds()
            self._watched[wanted.scope] = feeds
            if state is not None:
                state.feeds = feeds
            feed = feeds.feeds[wanted.address] = Feed(feeds.shown, wanted.limit)
        self._follow(watcher, feed, wanted)
        return self._look_again(feed, wanted, state)

    def _look_again(self, feed: Feed, wanted: Wanted, state: ScopeState | None) -> Looked:
        """Holds ``_lock``."""
        if state is not None:
            self._publish(state)  # nothing, unless an interruption has kept it from being published
        view, staged = self._look(state, wanted.address)
        return Looked(feed, feed.number, view, staged)

    @staticmethod
    def _follow(watcher: object, feed: Feed, wanted: Wanted) -> None:
        feed.limit = max(feed.limit, wanted.limit)
        feed.watchers.add(watcher)

    def _drop_idle_feeds(self) -> None:
        """Holds ``_lock``."""
        if sum(len(feeds.feeds) for feeds in self._watched.values()) < IDLE_FEEDS:
            return
        for scope, feeds in list(self._watched.items()):
            for address, feed in list(feeds.feeds.items()):
                if not feed.watchers:
                    self._drop_feed(scope, address)


def _shown_up_to(state: ScopeState | None, sequence: int) -> int:
    """Up to where everything of a scope may be shown: all there is, or what precedes the first commit under way."""
    if state is not None:
        for entry in state.pending:
            if isinstance(entry, Commit):
                return entry.first - 1
    return sequence
