"""Sessions: one open for writing (:class:`Session`), any number open for reading (:class:`SessionReader`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, overload

from scopelog_engine.compacting import Compacted
from scopelog_engine.durability import Durability
from scopelog_engine.elements import Json
from scopelog_engine.errors import InvalidAddress, InvalidInput, MixedCommit
from scopelog_engine.info import SessionInfo
from scopelog_engine.lines import APPEND, DELETE, LIST, RETIRE, SET, Address, Record
from scopelog_engine.reader import Reader
from scopelog_engine.recovery import Recovery
from scopelog_engine.writer import Change, Receipt, Writer

from .addresses import SESSION, EphemeralScope, List, S, Scope, Value, Write, check_name, check_sequence, check_tag
from .metadata import KEEP, Keep, changes_of_metadata
from .results import Element, Entry, elements_of, entries_of
from .watching import LIMIT, Changed, ListBase, SessionSource, ValueBase, Watch, wanted_of

Order: TypeAlias = Literal["asc", "desc"]


class LogRecord(NamedTuple):
    """One stored write, as :meth:`SessionReader.records` yields it.

    ``op``: append, set, delete, trim or retire. ``scope``: None for the session scope. ``namespace``, ``key`` and
    ``kind`` (value or list) are None for a retirement, whose ``retired`` names the scope. ``value`` holds the element
    or value; ``upto`` a trim's sequence; ``time`` the commit's wall-clock time in ms since 1970.
    """

    seq: int
    op: str
    scope: str | None
    namespace: str | None
    key: str | None
    kind: str | None
    value: Json
    tag: str | None
    upto: int | None
    retired: str | None
    time: int


class _Source(Protocol):
    """Where reads are answered: the session's own writer, or a reader beside it."""

    def get(self, scope: str, address: Address) -> Record | None: ...

    def scan(self, scope: str, namespace: str, prefix: str) -> list[Record]: ...

    def read(
        self,
        scope: str,
        address: Address,
        *,
        cursor: int | None,
        descending: bool,
        limit: int | None,
        stop_at_tag: str | None,
    ) -> list[Record]: ...

    def lists(self, scope: str, namespace: str, prefix: str) -> list[str]: ...

    def scopes(self) -> list[str]: ...

    def info(self) -> SessionInfo: ...


class _Reads:
    """What sessions and readers answer alike: a session all that was admitted, a reader what was stored."""

    def __init__(self, source: _Source) -> None:
        self._source = source

    def get(self, address: Value[Scope], default: Json = None) -> Json:
        """The latest value, or ``default`` if there is none.

        Raises, like every read: :class:`CorruptLog`, :class:`ReadFailed`, a kind of :class:`HandleUnusable`.
        """
        if not isinstance(address, Value):
            raise not_a("a value's address", address)
        record = self._source.get(address.scope_id, address.address)
        return default if record is None else record.value

    def scan(self, namespace: str, prefix: str = "", *, scope: Scope = SESSION) -> list[Entry]:
        """The values of one namespace whose keys start with ``prefix``, by code point order of their keys."""
        check_name("namespace", namespace)
        check_name("prefix", prefix)
        return entries_of(self._source.scan(id_of(scope), namespace, prefix))

    def read(
        self,
        target: List[Scope],
        *,
        cursor: int | None = None,
        order: Order = "asc",
        limit: int | None = None,
        stop_at_tag: str | None = None,
    ) -> list[Element]:
        """Elements of a list in order of sequence, from the exclusive ``cursor`` on, at most ``limit``, all in memory.

        Stops at, and includes, the first element that carries ``stop_at_tag``; never searches past the limit for it.
        What is pending in the list is joined and sealed by this, so that what was shown never changes.
        Raises :class:`InvalidAddress` for arguments that mean nothing, and what :meth:`get` raises.
        """
        descending = check_page(target, cursor, order, limit, stop_at_tag)
        return elements_of(
            self._source.read(
                target.scope_id,
                target.address,
                cursor=cursor,
                descending=descending,
                limit=limit,
                stop_at_tag=stop_at_tag,
            )
        )

    def lists(self, scope: EphemeralScope, namespace: str, prefix: str = "") -> list[str]:
        """Keys of an ephemeral scope's lists of one namespace that hold elements, sorted by code point.

        What a recovery finds its way by. It looks at every stretch of the scope's log; the session scope, whose
        history has no bound, has no such call. Raises :class:`InvalidInput` for any other scope.
        """
        check_lists(scope, namespace, prefix)
        return self._source.lists(scope.id, namespace, prefix)

    def scopes(self) -> list[str]:
        """Ids of the ephemeral scopes that are alive, sorted."""
        return self._source.scopes()

    def info(self) -> SessionInfo:
        """Name, labels, times, counts and size, as they are stored; reads no history."""
        return self._source.info()


class Session(_Reads):
    """A session open for writing: its only writer. Thread-safe; refused after fork. Made by :meth:`Store.session`.

    Everything a read returns is a private copy. A read sees everything admitted before it.
    """

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self._writer = writer
        self._append = writer.append
        self._lanes: dict[str, Any] = {}  # of scopelog.clients.messages: one object for each
        self._outboxes: dict[str, Any] = {}  # of scopelog.clients.memory: who delivers each

    @property
    def id(self) -> str:
        return self._writer.session

    @property
    def epoch(self) -> int:
        """A number that every open for write raises."""
        return self._writer.epoch

    @property
    def recovery(self) -> Recovery:
        """What opening found and did: torn tails cut and kept, files set aside, unlinks retried."""
        return self._writer.recovery

    # --- writing ----------------------------------------------------------------------------------

    def commit(self, writes: Iterable[Write[S]], *, durability: Durability | None = None) -> Receipt:
        """Store the writes as one atomic group in one scope, together with what was staged before them there.

        Returns, with the writes' sequences (first and last, without gaps), once the group is durable at the scope's
        level, or at ``durability`` if that is higher. Commits of several threads share one frame and one sync.

        Raises, before anything is touched: :class:`MixedCommit`, :class:`InvalidElement`, :class:`LimitExceeded`,
        :class:`InvalidInput`. Raises :class:`WriteFailed` if nothing was stored, :class:`OutcomeUnknown` if a sync
        failed, :class:`LogPoisoned` after that; the failure of an earlier flush of the scope, this commit then not
        begun; a kind of :class:`HandleUnusable`.
        """
        scope_id, changes = changes_of(writes, durability)
        return self._writer.commit(scope_id, changes, durability)

    def append(self, target: List[Scope], element: Json, tag: str | None = None) -> int:
        """Stage an element through the write-behind window; returns its sequence at once.

        The first pending element of a scope opens the window (100 ms unless told otherwise), later ones join it and
        do not move its deadline. Raises what :meth:`commit` raises for bad input; the failure of an earlier flush of
        the scope, this element then not taken; and, where the bound on what may wait forces a flush, its failure.
        """
        if tag is not None:
            check_tag(tag)
        try:
            place = target.place
        except AttributeError:
            raise not_a("a list's address", target) from None
        return self._append(place, element, tag)

    def flush(self, durability: Durability | None = None) -> None:
        """Barrier: when it returns, all that was admitted before is stored at its scope's level, or at ``durability``.

        Raises :class:`WriteFailed` (what is staged stays staged), :class:`OutcomeUnknown`, :class:`LogPoisoned`.
        """
        check_level(durability)
        self._writer.flush(durability)

    def describe(
        self,
        *,
        name: str | Keep | None = KEEP,
        labels: Mapping[str, Json] | Keep | None = KEEP,
        durability: Durability | None = None,
    ) -> Receipt:
        """Give the session a name, labels, or both, in one commit of the session scope; None takes it away.

        ``name``: 1 to 1,024 bytes of UTF-8. ``labels``: a mapping of str to JSON, at most 64 KiB as JSON, which
        replaces all labels there were. What is not passed stays. Raises :class:`InvalidInput`, :class:`InvalidElement`
        or :class:`LimitExceeded`, before anything is touched, and what :meth:`commit` raises.
        """
        check_level(durability)
        return self._writer.commit(SESSION.id, changes_of_metadata(name, labels), durability)

    # --- watching ---------------------------------------------------------------------------------

    @overload
    def watch(
        self, address: Value[Scope], *, limit: int = ..., after: str | None = ...
    ) -> Watch[ValueBase | Changed]: ...

    @overload
    def watch(
        self,
        address: List[Scope],
        *,
        cursor: int | None = ...,
        last: int | None = ...,
        limit: int = ...,
        after: str | None = ...,
    ) -> Watch[ListBase | Changed]: ...

    def watch(
        self,
        address: Value[Scope] | List[Scope],
        *,
        cursor: int | None = None,
        last: int | None = None,
        limit: int = LIMIT,
        after: str | None = None,
    ) -> Watch[Any]:
        """Watch a value or a list: a base, taken in this call, then every later change, until :meth:`Watch.stop`, the
        scope's retirement or the session's close. Waits as a read does.

        Staged elements are shown when they are admitted, commits when they are stored. The base of a list is all of it,
        or what stands behind ``cursor``, or of that the ``last`` elements. ``limit`` (1 to 10,000): of how many batches
        the watch may be behind; then a new base takes the place of all that was not delivered. ``after``: the position
        of an event of an earlier watch of this address; if all that came behind it is still there the watch goes on
        from it without a base, if not, or whatever else the text is, it begins with one.

        Raises what :meth:`read` raises. What goes wrong later is the error of the last event.
        """
        return Watch(SessionSource(self._writer, wanted_of(address, cursor, last, limit)), after)

    # --- state ------------------------------------------------------------------------------------

    def compact(self, scope: Scope = SESSION) -> Compacted:
        """Write the scope's log anew, without superseded values, trimmed and deleted elements and needless retirements.

        Sequences, tags and times stay. Others go on writing and reading meanwhile; readers keep what they see until
        they are refreshed. A crash leaves the old file or the new one. Returns the bytes before and after, both 0 of a
        scope that has no log. Raises :class:`CorruptLog`, :class:`ReadFailed` or :class:`NewerFormat` for a log that
        cannot be read, and :class:`WriteFailed`, each with nothing changed; :class:`OutcomeUnknown` if the log could
        not be synced: the scope takes no more writes then until the session is opened again.
        """
        return self._writer.compact(id_of(scope))

    def durable_seq(self, scope: Scope = SESSION, durability: Durability | None = None) -> int:
        """Highest sequence of the scope that is stored at its level, or at ``durability`` if higher; 0 if none."""
        check_level(durability)
        return self._writer.durable_sequence(id_of(scope), durability)

    def stats(self) -> dict[str, int | float]:
        """Counters of this handle as plain data; see scopes/README.md for the list."""
        return self._writer.stats()

    def close(self, *, force: bool = False) -> None:
        """Flush, sync, write the closing frame, release the lock. Closing twice is legal.

        If the flush fails, its error is raised. After :class:`WriteFailed`, where staged elements would be lost, the
        handle stays open for another try, unless ``force`` (what ``with`` does) lets go of them; after any other
        failure no try could succeed, and it lets go in any case.
        """
        self._writer.close(force=force)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(force=True)


class SessionReader(_Reads):
    """A session open for reading, without its lock: as it stood when opened, or last refreshed.

    It works while another process writes the session, changes nothing, and outlives its store. Every read raises
    :class:`CorruptLog`, :class:`ReadFailed`, or once it is closed :class:`HandleClosed`.
    """

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self._reader = reader

    @property
    def id(self) -> str:
        return self._reader.session

    def refresh(self) -> None:
        """See what was stored since. Raises :class:`NoSuchSession` if the session was deleted."""
        self._reader.refresh()

    def records(self) -> Iterator[LogRecord]:
        """Every write that is stored, in order of sequence, over the main log and the scopes that are alive.

        Memory does not grow with the session. Raises :class:`CorruptLog` where damage is met, after the good prefix;
        :class:`ReadFailed` at the end, if a scope's file could not be read when the reader was made.
        """
        for scope, record in self._reader.records():
            yield log_record(scope, record)

    def durable_seq(self, scope: Scope = SESSION, durability: Durability = Durability.PROCESS) -> int:
        """Last sequence stored in a scope; at POWER the last one that a durable mark in the log proves."""
        check_level(durability)
        return self._reader.durable_sequence(id_of(scope), durability)

    def stats(self) -> dict[str, int]:
        """Size and position as plain data: bytes of log, living scopes, last sequence, creation time in ms.

        ``unread_bytes``: bytes behind the last whole frames that are no frames: 0, but for an instant under a writer
        at work; else a torn tail or damage, which :meth:`Store.check` tells apart.
        """
        sizes = self._reader.sizes()
        return {
            "log_bytes": sum(sizes.values()),
            "main_bytes": sizes[SESSION.id],
            "unread_bytes": self._reader.unread_bytes(),
            "scopes_alive": len(sizes) - 1,
            "last_seq": max(self._reader.last_sequence(scope) for scope in sizes),
            "epoch": self._reader.epoch,
            "created_ms": self._reader.header.time,
        }

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def changes_of(writes: Iterable[Write[S]], durability: Durability | None) -> tuple[str, list[Change]]:
    """The scope and the changes of a commit. Raises :class:`MixedCommit`, :class:`InvalidInput`."""
    check_level(durability)
    if isinstance(writes, Write):
        raise InvalidInput("commit was given one write, not a list of them", "put it into a list")
    if not isinstance(writes, Iterable):
        raise InvalidInput(f"commit was given {given_as(writes)}, not a list of writes", "pass a list of writes")
    changes: list[Change] = []
    scope_id: str | None = None
    for write in writes:
        if not isinstance(write, Write):
            remedy = "make writes with addresses and scopes: list.append(e), value.set(v), scope.retire()"
            raise InvalidInput(f"the commit holds {given_as(write)}", remedy)
        if scope_id is None:
            scope_id = write.scope_id
        elif write.scope_id != scope_id:
            raise MixedCommit(
                f"the commit writes to {_named(scope_id)} and to {_named(write.scope_id)}",
                "commit to one scope at a time",
            )
        changes.append(write.change)
    return scope_id or SESSION.id, changes


def check_level(level: Durability | None) -> None:
    if level is not None and type(level) is not Durability:
        raise InvalidInput(f"{level!r} is no durability level", "pass Durability.PROCESS or Durability.POWER")


def _named(scope_id: str) -> str:
    return f"the scope {scope_id!r}" if scope_id else "the session scope"


def id_of(scope: Scope) -> str:
    if not isinstance(scope, Scope):
        raise not_a("a scope", scope)
    return scope.id


def check_lists(scope: EphemeralScope, namespace: str, prefix: str) -> None:
    if not isinstance(scope, EphemeralScope):
        raise not_a("an ephemeral scope", scope)
    check_name("namespace", namespace)
    check_name("prefix", prefix)


def not_a(what: str, given: object) -> InvalidInput:
    remedy = "pass scopelog.SESSION or an ephemeral()" if what.endswith("scope") else "see scopelog.value and list_of"
    return InvalidInput(f"{given_as(given)} was given where {what} is wanted", remedy)


def given_as(given: object) -> str:
    """What a caller passed, in a sentence: its type, never itself."""
    name = type(given).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def check_page(target: object, cursor: int | None, order: str, limit: int | None, stop_at_tag: str | None) -> bool:
    """Raise :class:`InvalidAddress` for arguments of a read that mean nothing; True if the order is descending."""
    if not isinstance(target, List):
        raise not_a("a list's address", target)
    if cursor is not None:
        check_sequence("cursor", cursor)
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidAddress(f"limit is {limit!r}", "pass an int from 0 on, or None for no limit")
    if order not in ("asc", "desc"):
        raise InvalidAddress(f"order is {order!r}", "pass 'asc' or 'desc'")
    check_tag(stop_at_tag)
    return order == "desc"


_OPS = {APPEND: "append", SET: "set", DELETE: "delete", RETIRE: "retire"}


def log_record(scope: str, record: Record) -> LogRecord:
    address, argument = record.address, record.argument
    op = _OPS.get(record.code, "trim")
    return LogRecord(
        seq=record.sequence,
        op=op,
        scope=scope or None,
        namespace=address.namespace if address else None,
        key=address.key if address else None,
        kind=None if address is None else "list" if address.kind == LIST else "value",
        value=record.value,
        tag=str(argument) if op == "append" and argument is not None else None,
        upto=int(argument) if op == "trim" and argument is not None else None,
        retired=str(argument) if op == "retire" else None,
        time=record.time,
    )
