"""LMDB, let at a file that was proved: one write transaction in an environment of its own. See :mod:`lmdbfile`.

py-lmdb 3 bundles two libraries whose files cannot be read by each other: always the older one, 0.9, with data format 1,
which is the only one that earlier releases know. LMDB's locks are off: the caller has a lock, and nobody reads by LMDB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import lmdb

MAP_BYTES: Final = 16 * 2**30  # sparse: address space, not memory and not disk
_LARGEST_MAP: Final = 2**46
_ROOM: Final = 2**20  # least free space in a map that is worth a try
_open: list[Any] = []  # environments: after a fork in between, the child neither uses nor closes the parent's


class Refused(Exception):
    """The file cannot be opened by LMDB here and now. Nothing was changed."""


class Failed(Exception):
    """A transaction was begun and failed: what the file holds now is anybody's guess."""


class Changes:
    """What may be done in a write transaction."""

    def __init__(self, transaction: lmdb.Transaction) -> None:
        self._transaction = transaction

    def get(self, key: bytes) -> bytes | None:
        data = self._transaction.get(key)
        return None if data is None else bytes(data)

    def put(self, key: bytes, data: bytes) -> None:
        self._transaction.put(key, data)

    def remove(self, key: bytes) -> None:
        self._transaction.delete(key)

    def remove_prefix(self, prefix: bytes) -> None:
        """Remove every key that starts with ``prefix``."""
        with self._transaction.cursor() as cursor:
            found = cursor.set_range(prefix)
            while found and bytes(cursor.key()).startswith(prefix):
                found = cursor.delete()


class Database:
    """LMDB on the directory that holds the data file. ``map_bytes``: of the memory map, as large as there is room."""

    def __init__(self, directory: str, data_path: str) -> None:
        self.map_bytes = MAP_BYTES
        self._too_large = _LARGEST_MAP + 1  # there was no room for a map of that size
        self._directory = directory
        self._data_path = data_path

    def create(self) -> None:
        """Make an empty data file. Raises :class:`Refused`, ``OSError``."""
        with self._environment(create=True):
            pass

    def transact(self, change: Callable[[Changes], None]) -> None:
        """Do ``change``, and again with a larger map if it does not fit; durable when this returns.

        Raises :class:`Refused`, :class:`Failed`, ``OSError``, and what ``change`` raises: then nothing is changed.
        """
        import lmdb

        while True:
            with self._environment(create=False) as environment:
                last, page = environment.info()["last_pgno"], environment.stat()["psize"]
                if (last + 1) * page > os.path.getsize(self._data_path):
                    raise Refused("its file has become shorter")
                try:
                    with environment.begin(write=True) as transaction:
                        change(Changes(transaction))
                except lmdb.MapFullError as error:
                    if self.map_bytes * 2 > min(_LARGEST_MAP, self._too_large - 1):
                        raise Refused(str(error)) from error  # the transaction was aborted: nothing is changed
                    self.map_bytes *= 2
                except lmdb.Error as error:
                    raise Failed(str(error)) from error
                else:
                    return

    @contextmanager
    def _environment(self, *, create: bool) -> Iterator[lmdb.Environment]:
        environment = self._opened(create)
        _open.append(environment)
        try:
            yield environment
        finally:
            environment.close()
            _open.remove(environment)

    def _opened(self, create: bool) -> Any:
        import lmdb

        engine = {} if int(lmdb.__version__.split(".")[0]) < 3 else {"lib_version": 0}
        least = _ROOM + (0 if create else os.path.getsize(self._data_path))
        self.map_bytes = max(self.map_bytes, least)
        while True:
            try:
                return lmdb.open(
                    self._directory,
                    map_size=self.map_bytes,
                    create=create,
                    mode=0o600,
                    lock=False,
                    metasync=False,
                    sync=True,
                    writemap=False,
                    readahead=False,
                    max_dbs=0,
                    **engine,  # type: ignore[arg-type]
                )
            except lmdb.MemoryError as error:  # the address space is limited
                if self.map_bytes // 4 < least:
                    raise Refused(str(error)) from error
                self._too_large = self.map_bytes
                self.map_bytes //= 4
            except lmdb.Error as error:  # no memory maps here, or open already: before a fork, or by somebody else
                raise Refused(str(error)) from error
