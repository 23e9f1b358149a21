"""commit, retire and describe: one atomic commit each, for scripts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from scopelog_engine.durability import Durability
from scopelog_engine.elements import Json, freeze, thaw
from scopelog_engine.layout import MAX_COMMIT_BYTES, check_id

from ..addresses import SESSION, EphemeralScope, SessionScope, Write, ephemeral
from ..errors import InvalidElement, InvalidInput, LimitExceeded
from ..metadata import KEEP
from ..store import Store
from . import output
from .arrival import Line
from .looking import opened, require
from .options import address_of
from .output import printable
from .recording import parse
from .sessions import value_of

_PIECE: Final = 1024 * 1024
_MAX_INPUT: Final = 2 * MAX_COMMIT_BYTES
_REMEDY: Final = "mend it and commit again; nothing was stored"
_FIELDS: Final = {  # what each operation is given: all but a tag must be there
    "append": ("list", "element", "tag"),
    "set": ("value", "data"),
    "delete": ("value",),
    "delete list": ("list",),
    "trim": ("list", "upto"),
    "retire": ("scope",),
}


@dataclass(frozen=True)
class Request:
    """What is to be committed where. ``scope`` None is the session scope; ``level`` None is the store's default."""

    store: str
    session: str
    scope: str | None
    level: Durability | None
    as_json: bool


def commit(request: Request, descriptor: int) -> None:
    """Commit the writes that the descriptor spells, all or none. Raises, with the place of the first write that is
    malformed, before anything is made or stored."""
    scope = SESSION if request.scope is None else ephemeral(request.scope)
    writes: list[Write[Any]] = []
    for where, item in _items(_read(descriptor)):
        try:
            writes.append(write_of(item, scope))
        except InvalidInput as error:
            raise type(error)(f"{where} was refused: {error.cause}", _REMEDY) from error
    if not writes:
        raise InvalidInput("the commit is empty", "give it at least one write")
    check_id("session", request.session)
    with Store.open(request.store) as store, store.session(request.session) as session:
        receipt = session.commit(writes, durability=request.level)
        if request.as_json:
            output.put_json({"first": receipt.first, "last": receipt.last, "writes": len(writes)})
        else:
            span = f"sequence {receipt.first}" if len(writes) == 1 else f"sequences {receipt.first} to {receipt.last}"
            output.put_text(f"committed {output.count(len(writes), 'write')}, {span}")


def retire(path: str, session_id: str, scopes: tuple[str, ...], as_json: bool) -> None:
    """End the lives of these scopes in one commit, and say which were alive."""
    writes = [ephemeral(scope).retire() for scope in dict.fromkeys(scopes)]
    require(path, session_id)
    with opened(path) as store, store.session(session_id) as session:
        alive = set(session.scopes())
        receipt = session.commit(writes)
        ended = {scope: scope in alive for scope in dict.fromkeys(scopes)}
        if as_json:
            output.put_json({"first": receipt.first, "last": receipt.last, "alive": ended})
            return
        for scope, lived in ended.items():
            output.put_text(f"retired {printable(scope)}" if lived else f"{printable(scope)} was not alive")


def describe(
    path: str, session_id: str, name: str | None, unname: bool, labels: tuple[str, ...], unlabel: tuple[str, ...]
) -> None:
    """Change the name and single labels of a session."""
    require(path, session_id)
    with opened(path) as store, store.session(session_id) as session:
        changed: dict[str, Json] = dict(session.info().labels)
        for label in labels:
            key, equals, text = label.partition("=")
            if not equals:
                raise InvalidInput(f"the label {key!r} has no value", "use KEY=VALUE")
            changed[key] = value_of(text)
        for key in unlabel:
            changed.pop(key, None)
        named = None if unname else KEEP if name is None else name
        session.describe(name=named, labels=changed if labels or unlabel else KEEP)


def _read(descriptor: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := os.read(descriptor, _PIECE):
        size += len(piece)
        if size > _MAX_INPUT:
            raise LimitExceeded(f"the input is longer than {_MAX_INPUT} bytes", "split the commit")
        pieces.append(piece)
    return b"".join(pieces)


def _items(text: bytes) -> Iterator[tuple[str, Json]]:
    """The writes of a JSON array, or of JSON lines, each with where it stands."""
    if text.lstrip(b" \t\r\n")[:1] == b"[":
        for number, item in enumerate(_array(text), 1):
            yield f"write {number}", item
        return
    for number, line in enumerate(text.split(b"\n"), 1):
        line = line.strip(b" \t\r")
        if line:
            yield f"line {number}", _parsed(number, line)


def _parsed(number: int, line: bytes) -> Json:
    try:
        return parse(Line(number, line))
    except InvalidInput as error:
        raise type(error)(error.cause, _REMEDY) from error


def _array(text: bytes) -> list[Json]:
    try:
        found = thaw(text)
    except RecursionError:
        raise LimitExceeded("the array of writes is nested too deep", _REMEDY) from None
    except ValueError as error:
        raise InvalidElement(f"the array of writes is not JSON ({error})", _REMEDY) from None
    assert isinstance(found, list)
    return found


def write_of(item: Json, scope: SessionScope | EphemeralScope) -> Write[Any]:
    """The write that an object spells. Raises kinds of :class:`InvalidInput`."""
    if not isinstance(item, dict):
        raise InvalidInput(f"it is a {type(item).__name__}, not an object", "")
    op = item.get("op")
    fields = _FIELDS.get("delete list" if op == "delete" and "list" in item else op if isinstance(op, str) else "")
    if fields is None or op == "delete list":
        raise InvalidInput(f"its op is {op!r}, not append, set, delete, trim or retire", "")
    missing = [name for name in fields if name not in item and name != "tag"]
    if missing:
        raise InvalidInput(f"its {missing[0]} is missing", "")
    unknown = sorted(item.keys() - {"op", *fields})
    if unknown:
        raise InvalidInput(f"{op} takes no {unknown[0]!r}", "")
    if op == "retire":
        if scope is not SESSION:
            raise InvalidInput("a scope is retired by a commit of the session scope", "")
        return ephemeral(item["scope"]).retire()
    namespace, key = _name_of(item[fields[0]], fields[0])
    if fields[0] == "value":
        value = scope.value(namespace, key)
        return value.set(_frozen(item["data"])) if op == "set" else value.delete()
    target = scope.list_of(namespace, key)
    if op == "append":
        return target.append(_frozen(item["element"]), item.get("tag"))
    return target.trim(item["upto"]) if op == "trim" else target.delete()


def _name_of(name: Json, what: str) -> tuple[str, str]:
    if not isinstance(name, str):
        raise InvalidInput(f"its {what} is a {type(name).__name__}, not a name", "")
    return address_of(name, what)


def _frozen(element: Json) -> Json:
    """The element itself, once it is known that it can be stored."""
    freeze(element)
    return element
