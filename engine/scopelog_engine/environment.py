"""What a session is given by its store: settings, the seams, and counters to fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .clock import Clock
from .durability import Durability
from .fs import FileSystem
from .index import StoreIndex
from .info import SessionInfo
from .pace import Pace

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


@dataclass(frozen=True)
class Settings:
    """How a session is written. Reading never depends on any of it.

    ``window``: seconds from the first pending element to its flush. ``session_level``, ``scope_level``: what
    durability the two kinds of scope run at. ``pending_bytes``: bound of what may wait, text and bookkeeping.
    ``compact_growth``: a log that has grown to so many times its length after the last compaction is compacted, by a
    thread; 0: none is.
    """

    window: float = 0.1
    session_level: Durability = Durability.POWER
    scope_level: Durability = Durability.PROCESS
    pending_bytes: int = 4 * 1024 * 1024
    compact_growth: float = 0.0


class Scheduled(Protocol):
    """What the flusher calls."""

    session: str

    def flusher_failed(self, error: Exception) -> None:
        """Raise the error at the next call that touches the session."""

    def flush_due(self, now: float) -> float | None:
        """Store every window whose deadline has passed; returns the next deadline, in monotonic seconds."""

    def keep_deadline(self, loop: AbstractEventLoop, when: float) -> None:
        """Have the running loop do so at monotonic second ``when``."""


class Environment(Protocol):
    """What a session needs from its store."""

    fs: FileSystem
    clock: Clock
    pace: Pace
    identity: str
    """The store's id, in hex."""
    index: StoreIndex | None
    """None where there can be none."""

    def schedule(self, session: Scheduled, when: float) -> bool:
        """Have what is due at monotonic second ``when`` stored: by the loop that runs on this thread, which the
        flusher stands by, or by the flusher. False if there is none to be had."""

    def stand_by(self, session: Scheduled, when: float) -> bool:
        """Have the flusher call :meth:`flush_due` at monotonic second ``when``; False if there is none to be had."""

    def grant(self, wanted: int) -> bool:
        """Reserve ``wanted`` bytes of the store's bound on what may wait; False if that would pass it."""

    def give_back(self, granted: int) -> None: ...

    def sync_names(self, directory: str) -> None:
        """Sync a session's directory and every directory made for it."""

    def forget(self, session: Scheduled) -> None:
        """The session was closed."""

    @property
    def keeps_catalogue(self) -> bool:
        """Whether :meth:`closed` is of any use."""

    def closed(self, info: SessionInfo, frame: bytes) -> None:
        """A main log was closed cleanly: what it says, and the closing frame that it ends with."""


class Counters:
    """What the disk was asked for, summed over the logs of a session."""

    __slots__ = ("appends", "bytes", "failures", "frames", "sync_seconds", "syncs")

    def __init__(self) -> None:
        self.appends = 0
        self.frames = 0
        self.bytes = 0
        self.syncs = 0
        self.sync_seconds = 0.0
        self.failures = 0
