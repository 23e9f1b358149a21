"""What a session handle knows of one scope, for one life, and what waits there to be stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from .durability import Durability
from .elements import Json
from .errors import InvalidInput, ScopelogError
from .feeds import ScopeFeeds
from .lines import Address, Write
from .logfile import LogFile

if TYPE_CHECKING:  # asyncio is imported by those who use it
    from asyncio import Future

SESSION: Final = ""  # the session scope's name among the scopes of a session
ENTRY_OVERHEAD: Final = 200  # bytes a staged element takes beside its text, about
FIRST_BACKOFF: Final = 0.25  # seconds until a failed window is tried again
LAST_BACKOFF: Final = 5.0

Coalescer: TypeAlias = Callable[[Sequence[Json]], Iterable[tuple[Json, int]]]
"""A pure function from a run of adjacent elements of one list to a shorter run: pairs of (element, how many
originals it stands for). The counts add up to the length of the run. It must not keep or change what it is given,
nor call the session (:class:`InvalidInput`), and folding its result must equal folding the run.

A session handle keeps the coalescer that a list was first used with, none included: naming another one (and a lambda
written anew is another one) is :class:`InvalidInput`; naming none is legal and means the first."""

Staged: TypeAlias = "tuple[int, Address, bytes, str | None, ListState, Json]"
"""A staged element is a plain tuple, because admission is the hot path: sequence, address, JSON text, tag, the list's
state, and a private copy of the element where the list has a coalescer."""


class Ticket:
    """Something to be stored by whoever leads: everything of its scope up to ``target``."""

    __slots__ = ("background", "done", "error", "level", "target", "waiter")

    def __init__(
        self, target: int, level: Durability, waiter: Future[None] | None = None, *, background: bool = False
    ) -> None:
        self.target = target
        self.level = level
        self.done = False
        self.error: ScopelogError | None = None
        self.waiter = waiter  # of a task that waits for it, whose loop leads if nobody else does
        self.background = background  # nobody waits for it: its error is raised at the next call


class Commit(Ticket):
    """A commit: prepared (``changes`` frozen), admitted (it has an ``owner`` and sequences), then a ticket of its scope
    that waits among the staged elements."""

    __slots__ = ("bodies", "first", "held", "owner", "retires", "size", "writes")

    def __init__(
        self, bodies: list[bytes], level: Durability, retires: list[str], size: int, waiter: Future[None] | None
    ) -> None:
        self.target = self.first = 0  # Ticket's own fields, spelled out: a call less
        self.level = level
        self.done = False
        self.error = None
        self.waiter = waiter
        self.background = False
        self.bodies = bodies  # JSON text of each change
        self.owner: ScopeState | None = None
        self.held: list[ScopeState] = []  # scopes that wait for this commit's outcome
        self.writes: list[Write] = []
        self.retires = retires
        self.size = size  # of its line, at most


class ScopeState:
    """One scope as this handle knows it, for one life."""

    __slots__ = (
        "aside",
        "backoff",
        "blocked",
        "deadline",
        "deferred",
        "doubt",
        "failure",
        "feeds",
        "gone",
        "joins",
        "level",
        "lists",
        "log",
        "names_bytes",
        "pending",
        "retiring",
        "scope",
        "tickets",
    )

    def __init__(self, scope: str, level: Durability) -> None:
        self.scope = scope
        self.level = level
        self.log: LogFile | None = None
        self.pending: list[Staged | Commit] = []  # in order of sequence
        self.blocked = False  # an append must look closer: retiring, a failure to raise, gone, or no more writes
        self.joins = False  # whether any of its lists has a coalescer
        self.tickets: list[Ticket] = []
        self.deferred: list[Ticket] = []  # tickets for what is set aside
        self.aside: list[Staged] = []  # set aside by a retirement that is not stored yet
        self.retiring: set[Commit] = set()  # such retirements
        self.names_bytes = 0  # what defining all its lists may take in a frame
        self.deadline: float | None = None  # of the open window
        self.backoff = FIRST_BACKOFF
        self.failure: ScopelogError | None = None  # of a flush in the background: raised at the next call
        self.doubt: ScopelogError | None = None  # it may have been retired: refuses writes until reopened
        self.lists: list[Address] = []
        self.feeds: ScopeFeeds | None = None  # of those who watch it; None while nobody does
        self.gone = False  # retired: look the scope up again

    def fail(self, failure: ScopelogError) -> None:
        """Have the next call that touches the scope raise this."""
        self.failure = self.failure or failure
        self.blocked = True


NAME_FACTOR: Final = 6  # bytes a character of a name or tag may take, escaped
NAMES_BYTES: Final = 64  # a definition's or a write's brackets and numbers


def names_bytes(address: Address) -> int:
    """Bytes that defining an address may take."""
    return NAME_FACTOR * (len(address[0]) + len(address[1])) + NAMES_BYTES


class Place:
    """The address of a list as a caller holds it: immutable, but for a note of the state it was last used with."""

    __slots__ = ("address", "cached", "coalescer", "scope_id")

    def __init__(self, scope_id: str, address: Address, coalescer: Coalescer | None) -> None:
        self.scope_id = scope_id
        self.address = address
        self.coalescer = coalescer
        self.cached: ListState | None = None


class ListState:
    """A list as one session handle knows it. ``sealed`` is its twin for elements that no join may touch again."""

    __slots__ = ("address", "coalescer", "owner", "scope", "sealed")

    def __init__(self, owner: object, address: Address, scope: ScopeState, coalescer: Coalescer | None) -> None:
        self.owner = owner  # the session handle
        self.address = address
        self.scope = scope
        self.coalescer = coalescer
        self.sealed: ListState = self if coalescer is None else ListState(owner, address, scope, None)

    def check(self, coalescer: Coalescer | None) -> None:
        """An address keeps the coalescer it was first used with."""
        if coalescer is not None and coalescer is not self.coalescer:
            raise InvalidInput(
                f"the list {self.address.namespace}/{self.address.key} was used with another coalescer before",
                "name the same function wherever the address is made; a lambda is another one each time",
            )


def sequence_of(entry: Staged | Commit) -> int:
    return entry.target if isinstance(entry, Commit) else entry[0]


def text_bytes(entry: Staged) -> int:
    """Bytes a staged element may take in its line, its address left out."""
    return len(entry[2]) if entry[3] is None else len(entry[2]) + NAME_FACTOR * len(entry[3]) + NAMES_BYTES


def last_of(entries: Sequence[Staged | Commit]) -> int:
    """Sequence of the last entry, 0 if there is none."""
    return sequence_of(entries[-1]) if entries else 0
