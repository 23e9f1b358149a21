"""Scopes, addresses and writes: what a commit is made of, typed so that mypy refuses a mixed one.

An address is (scope, namespace, key, kind). Its scope is a type parameter: covariant in addresses, so that every read
accepts any scope, and invariant in writes, so that the writes of one commit must agree on it.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar, final

from scopelog_engine.elements import Json
from scopelog_engine.errors import InvalidAddress, InvalidInput
from scopelog_engine.layout import MAX_NAME_BYTES, MAX_SEQUENCE, UNNAMED, check_id
from scopelog_engine.lines import APPEND, DELETE, LIST, RETIRE, SET, TRIM, VALUE, Address, new_tuple
from scopelog_engine.scope import SESSION as SESSION_ID
from scopelog_engine.scope import Coalescer, Place
from scopelog_engine.writer import Change

RESERVED: Final = "scopelog."
"""How namespaces begin that are not for users: ``scan`` and ``records`` read them, addresses in them are refused."""


class Scope:
    """Where a write lives. ``id`` is '' for the session scope."""

    __slots__ = ("id",)

    def __init__(self, scope_id: str) -> None:
        self.id = scope_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scope) and other.id == self.id

    def __hash__(self) -> int:
        return hash((Scope, self.id))


S = TypeVar("S", bound=Scope)
S_co = TypeVar("S_co", bound=Scope, covariant=True)


@final
class Write(Generic[S]):
    """One write of a commit; made by the methods of addresses and scopes, frozen when the commit is admitted.

    It stores nothing by itself: :meth:`Session.commit` does.
    """

    __slots__ = ("change", "scope_id")

    def __init__(self, scope_id: str, change: Change) -> None:
        self.scope_id = scope_id
        self.change = change

    def __repr__(self) -> str:
        where = self.change.address or self.change.argument
        return f"<Write {self.change.code!r} of {where} in scope {self.scope_id!r}>"  # never the element


class _Address(Generic[S_co]):
    """What values and lists have in common. Two addresses are equal if all four parts are."""

    __slots__ = ("address", "scope_id")

    def __init__(self, scope_id: str, namespace: str, key: str, kind: str) -> None:
        self.scope_id = scope_id
        self.address = Address(_name("namespace", namespace), _name("key", key, empty=True), kind)
        if namespace.startswith(RESERVED) and namespace != UNNAMED:
            raise InvalidAddress(
                f"the namespace {namespace!r} is scopelog's own",
                f"choose one that does not begin with {RESERVED!r}; a session is named by its describe()",
            )

    @property
    def namespace(self) -> str:
        return self.address.namespace

    @property
    def key(self) -> str:
        return self.address.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Address) and (self.scope_id, self.address) == (other.scope_id, other.address)

    def __hash__(self) -> int:
        return hash((self.scope_id, self.address))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.namespace}/{self.key} in scope {self.scope_id!r}>"


@final
class Value(_Address[S_co]):
    """The address of a value: the last write wins."""

    __slots__ = ()

    def set(self, value: Json) -> Write[S_co]:
        return Write(self.scope_id, Change(SET, self.address, value))

    def delete(self) -> Write[S_co]:
        """Deleting what is absent is legal."""
        return Write(self.scope_id, Change(DELETE, self.address))


@final
class List(_Address[S_co]):
    """The address of an append-only list. Its coalescer, if any, is no part of its identity.

    A session keeps the coalescer, or the lack of one, that the list was first used with: an ``append`` that names
    another is :class:`InvalidInput`. Make it a function with a name, not a lambda at each call.
    """

    __slots__ = ("place",)

    def __init__(self, scope_id: str, namespace: str, key: str, coalescer: Coalescer | None) -> None:
        super().__init__(scope_id, namespace, key, LIST)
        if coalescer is not None and not callable(coalescer):
            raise InvalidInput(f"the coalescer is a {type(coalescer).__name__}", "pass a function; see Coalescer")
        self.place = Place(scope_id, self.address, coalescer)

    def append(self, element: Json, tag: str | None = None) -> Write[S_co]:
        """A write for :meth:`Session.commit`; by itself it stores nothing. :meth:`Session.append` stages an element.

        ``tag``: a non-empty string stored beside the element.
        """
        if tag is not None:
            check_tag(tag)
        return Write(self.scope_id, new_tuple(Change, (APPEND, self.address, element, tag)))

    def trim(self, upto: int) -> Write[S_co]:
        """Drop the elements up to and including sequence ``upto``; those appended later are never touched."""
        return Write(self.scope_id, Change(TRIM, self.address, None, check_sequence("upto", upto)))

    def delete(self) -> Write[S_co]:
        """Drop all elements there are."""
        return Write(self.scope_id, Change(DELETE, self.address))


@final
class SessionScope(Scope):
    """The main log: history, kept for ever."""

    __slots__ = ()

    def value(self, namespace: str, key: str) -> Value[SessionScope]:
        return Value(self.id, namespace, key, VALUE)

    def list_of(self, namespace: str, key: str, *, coalescer: Coalescer | None = None) -> List[SessionScope]:
        return List(self.id, namespace, key, coalescer)

    def __repr__(self) -> str:
        return "<SessionScope>"


@final
class EphemeralScope(Scope):
    """Crash scaffolding of one operation, in a log of its own, until it is retired."""

    __slots__ = ()

    def value(self, namespace: str, key: str) -> Value[EphemeralScope]:
        return Value(self.id, namespace, key, VALUE)

    def list_of(self, namespace: str, key: str, *, coalescer: Coalescer | None = None) -> List[EphemeralScope]:
        return List(self.id, namespace, key, coalescer)

    def retire(self) -> Write[SessionScope]:
        """End the scope's life: a session write, legal also for a scope that does not exist."""
        return Write(SESSION_ID, Change(RETIRE, None, None, self.id))

    def __repr__(self) -> str:
        return f"<EphemeralScope {self.id!r}>"


SESSION: Final = SessionScope(SESSION_ID)


def ephemeral(scope_id: str) -> EphemeralScope:
    """The ephemeral scope of that id. Nothing is created: its first write begins its life.

    Raises :class:`InvalidId` unless the id is a non-empty string without lone surrogates whose percent-encoded form
    has at most 180 ASCII bytes.
    """
    return EphemeralScope(check_id("scope", scope_id))


def value(namespace: str, key: str) -> Value[SessionScope]:
    """A value of the session scope.

    Namespace and key: up to 1,024 bytes of UTF-8; the namespace not empty, and not beginning with ``scopelog.``.
    """
    return SESSION.value(namespace, key)


def list_of(namespace: str, key: str, *, coalescer: Coalescer | None = None) -> List[SessionScope]:
    """A list of the session scope. ``coalescer`` joins runs of its staged elements when they are flushed."""
    return SESSION.list_of(namespace, key, coalescer=coalescer)


def _name(what: str, text: str, *, empty: bool = False) -> str:
    if not isinstance(text, str):
        raise InvalidAddress(f"the {what} is a {type(text).__name__}, not a str", "pass a str")
    if not text and not empty:
        raise InvalidAddress(f"the {what} is empty", f"name the {what}")
    try:
        length = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidAddress(f"the {what} holds a lone surrogate", "use well-formed text") from None
    if length > MAX_NAME_BYTES:
        raise InvalidAddress(f"the {what} takes {length} bytes, the limit is {MAX_NAME_BYTES}", "use a shorter one")
    return str(text)


def check_name(what: str, text: str) -> str:
    """Raise :class:`InvalidAddress` unless ``text`` can be (the start of) a namespace or key."""
    return _name(what, text, empty=True)


def check_tag(tag: str | None) -> str | None:
    return None if tag is None else _name("tag", tag)


def check_sequence(what: str, number: int) -> int:
    if type(number) is not int or not 0 <= number <= MAX_SEQUENCE:
        raise InvalidAddress(f"{what} is {number!r}, not a sequence", "pass an int from 0 to 2**53 - 1")
    return number
