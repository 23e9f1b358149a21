"""The index of a store: where things are in its main logs, and the catalogue's entries. Derived, disposable, no proof.

It is asked for by name of a session's directory and answers with a :class:`Tree`, whose cover of the log is checked by
whoever asks (see :mod:`view`). It grows by checkpoints, off the paths of opening and committing: on a thread of its
own, or when a session is closed. Whatever goes wrong with it is logged, and means that it is not there.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from .blocks import ENTRIES, ROOTS, encode_block, entry_key, name_of, root_key, tree_prefix
from .clock import Clock
from .layout import INDEX_DIR
from .lmdbenv import Changes
from .lmdbfile import IndexFile, index_file
from .logindex import CHECKPOINT_BYTES, NEVER, Job, LogIndex, payload_of, root_of
from .tree import Kept

_log = logging.getLogger(__name__)
_NAME_BYTES: Final = 255
_PAYLOAD_BYTES: Final = 64 * 1024
_ENTRIES_BATCH: Final = 256
_CLOSE_SECONDS: Final = 2.0  # that closing the store may wait for checkpoints


class StoreIndex:
    """The index of the store in the directory ``path``. Thread-safe. Making one touches no disk.

    No trouble with the index is raised; ``ValueError`` is for names and payloads that are too long.
    """

    def __init__(self, path: str, identity: str, clock: Clock) -> None:
        self.directory = os.path.join(path, INDEX_DIR)
        self.kept = Kept()
        self.by_itself = clock.runs_by_itself
        """Whether checkpoints are made in the background."""
        self._identity = identity
        self._file: IndexFile | None = None
        self._logs: weakref.WeakValueDictionary[str, LogIndex] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._jobs: dict[LogIndex, Job] = {}
        self._thread: threading.Thread | None = None
        self.closing = False

    @property
    def file(self) -> IndexFile:
        file = self._file
        if file is None:
            file = self._file = index_file(self.directory, self._identity)
        return file

    def log(self, name: str) -> LogIndex:
        """The index of the main log in the directory of that name; the same object for all who use it now."""
        with self._lock:
            log = self._logs.get(name)
            if log is None:
                log = self._logs[name] = LogIndex(self, name, due_at=CHECKPOINT_BYTES if self.by_itself else NEVER)
            return log

    # --- the catalogue's entries ------------------------------------------------------------------

    def entries(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, bytes | None]]:
        """Each name with its payload, in the order given; None if there is none, or none that verifies.

        ``names`` None: every entry that verifies, by name. Lazy; what is committed meanwhile may be seen or not.
        """
        if names is None:
            for key, data in self.file.scan(ENTRIES):
                name, payload = name_of(key), payload_of(key, data)
                if name is not None and payload is not None:
                    yield name, payload
            return
        batch: list[str] = []
        for name in names:
            batch.append(name)
            if len(batch) == _ENTRIES_BATCH:
                yield from self._entries_of(batch)
                batch = []
        yield from self._entries_of(batch)

    def _entries_of(self, names: list[str]) -> Iterator[tuple[str, bytes | None]]:
        keys = [entry_key(name) for name in names]
        for name, key, data in zip(names, keys, self.file.get_all(keys), strict=True):
            yield name, payload_of(key, data)

    def put_entries(self, entries: Mapping[str, bytes], *, create: bool) -> bool:
        """Keep them all, or none, in one transaction. False if it could not be done: try later, or never."""
        blocks: list[tuple[bytes, bytes]] = []
        for name, payload in entries.items():
            if len(name.encode()) > _NAME_BYTES or len(payload) > _PAYLOAD_BYTES:
                raise ValueError(f"the entry of {name!r} is too long")
            key = entry_key(name)
            blocks.append((key, encode_block(key, payload)))

        def change(changes: Changes) -> None:
            for key, data in blocks:
                changes.put(key, data)

        return self.file.write(change, create=create)

    def remove(self, names: Iterable[str]) -> bool:
        """Forget sessions: their entries and their trees. True if nothing of them is left."""
        known: list[str] = []
        for name in names:
            with self._lock:
                log = self._logs.pop(name, None)
            if log is not None:
                log.forget(deleted=True)
            if any(data is not None for data in self.file.get_all([entry_key(name), root_key(name)])):
                known.append(name)

        def change(changes: Changes) -> None:
            for name in known:
                changes.remove(entry_key(name))
                changes.remove(root_key(name))
                changes.remove_prefix(tree_prefix(name))

        return not known or self.file.write(change, create=False)

    # --- state ------------------------------------------------------------------------------------

    @property
    def present(self) -> bool:
        """Whether there is an index that can be read now."""
        return self.file.size() > 0

    def state(self) -> dict[str, int | bool | str | None]:
        """For people. ``sessions``: those with a tree; ``dropped``: why the index is not used, None if it is."""
        size = self.file.size()
        roots = [root_of(key, data) for key, data in self.file.scan(ROOTS)]
        return {
            "path": self.directory,
            "present": size > 0,
            "bytes": size,
            "map_bytes": self.file.map_bytes,
            "entries": sum(1 for _ in self.file.scan(ENTRIES)),
            "sessions": sum(1 for root in roots if root is not None),
            "covered_bytes": sum(root.end for root in roots if root is not None),
            "dropped": self.file.trouble,
        }

    def discard(self) -> bool:
        """Remove the index's files. False if another process is writing to them, or if the system refuses."""
        for log in [*self._logs.values()]:
            log.forget()
        return self.file.discard()

    # --- checkpoints in the background ------------------------------------------------------------

    def ask(self, job: Job) -> None:
        """Have a checkpoint made soon, by a thread that lives as long as there is work. Lets go of the view then."""
        with self._lock:
            if self.closing:
                replaced: Job | None = job
            else:
                replaced = self._jobs.get(job.log)
                self._jobs[job.log] = job
                if self._thread is None:
                    self._start()
        if replaced is not None:
            replaced.view.let_go()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="scopelog-index", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread to be had: the job waits for the next one
            _log.warning("no checkpoint of %s: %s", self.directory, error)
            return
        self._thread = thread

    def _run(self) -> None:
        try:
            self._work()
        finally:
            with self._lock:
                if self._thread is threading.current_thread():  # ended by an error: the next job starts another one
                    self._thread = None

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs or self.closing:
                    self._thread = None  # under the lock: whoever asks next starts another one
                    return
                job = self._jobs.pop(next(iter(self._jobs)))
            job.run()

    def close(self) -> None:
        """Let the thread do what it was asked for, for a second or two; then stop it, and let go of the files."""
        thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
        with self._lock:
            self.closing = True
            jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            job.view.let_go()
        if thread is not None:
            thread.join()  # it is at its last transaction
        self._file = None
