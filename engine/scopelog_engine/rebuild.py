"""Deriving the index again from the logs: on demand, for one session or for a whole store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from .catalogue import Catalogue, Tell, finding_of
from .errors import CorruptLog, ForeignFile, NewerFormat, NoSuchSession, ReadFailed, UnsupportedPlatform, WriteFailed
from .index import StoreIndex
from .layout import MAIN_FILE
from .reader import Reader
from .scope import SESSION


class Indexed(Protocol):
    """What of a store is needed here."""

    path: str
    index: StoreIndex | None
    catalogue: Catalogue

    def sessions(self, tell: Tell | None = None) -> list[str]: ...

    def read_session(self, session: str) -> Reader: ...

    def directory(self, session: str) -> str: ...


class Rebuilt(NamedTuple):
    """``bytes``: of the main log; ``covered``: those that the index speaks of, the rest is read without it."""

    session: str
    bytes: int
    covered: int


def rebuild(store: Indexed, sessions: list[str] | None, tell: Tell) -> Iterator[Rebuilt]:
    """Drop what the index says of these sessions, or all of it, and derive it again. Yields each when it is done.

    What cannot be read is told, and left out. Raises :class:`NoSuchSession` for one of ``sessions``,
    :class:`WriteFailed` if the index cannot be written, :class:`UnsupportedPlatform` where there can be none.
    """
    index = store.index
    if index is None:
        raise UnsupportedPlatform(f"{store.path} is on a disk that an index cannot be kept on", "do without")
    if sessions is None and not index.discard():
        raise WriteFailed(f"the index {index.directory} could not be removed", "another process may be writing to it")
    done: list[str] = []
    for session in store.sessions(tell) if sessions is None else sessions:
        try:
            reader = store.read_session(session)
            try:
                covered, size = reader.rebuild_index(), reader.sizes()[SESSION]
            finally:
                reader.close()
        except NoSuchSession:
            if sessions is not None:
                raise
            continue  # deleted meanwhile
        except (CorruptLog, ForeignFile, NewerFormat, ReadFailed) as error:
            tell(finding_of(error, os.path.join(store.directory(session), MAIN_FILE)))
            continue
        if covered is None:
            why = index.state()["dropped"] or "another process is writing to it"
            raise WriteFailed(f"the index {index.directory} could not be written ({why})", "see to it and try again")
        done.append(session)
        yield Rebuilt(session, size, covered)
    store.catalogue.renew(done, tell)
