"""The catalogue: every session of a store at a glance.

Which sessions there are is decided by their files alone. What a log says of its session is kept in the index, with
the log's closing frame. Such an entry is used only if the log still ends with these very bytes at that place, which one
read tells; their checksums are a chain over all before. A log that ends in any other way is looked at itself.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

import msgspec

from .blocks import MAX_OFFSET
from .check import DAMAGE, NOTE, UNREAD, Finding
from .elements import freeze, thaw
from .errors import CorruptLog, ForeignFile, NewerFormat, ReadFailed
from .fs import FileSystem, closing
from .glance import glance
from .handle import Handle
from .header import KIND_MAIN, check_owner
from .info import SessionInfo, info_of
from .layout import MAIN_FILE, SESSION_SUFFIX, session_dir_name, session_id_of_dir
from .recovery import NO_RESOURCES
from .survey import read_header

_BATCH: Final = 256  # entries written at once
_MANY: Final = 64  # entries that are worth an index
_ATTEMPTS: Final = 3  # a writer may cut a log back while it is looked at
_VERSION: Final = 1
_MAX_ENTRY_BYTES: Final = 64 * 1024
_NO_SESSION: Final = (FileNotFoundError, NotADirectoryError)
Tell = Callable[[Finding], None]


class Entries(Protocol):
    """What of the index the catalogue needs; see :class:`StoreIndex`."""

    @property
    def present(self) -> bool: ...

    def entries(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, bytes | None]]: ...

    def put_entries(self, entries: Mapping[str, bytes], *, create: bool) -> bool: ...

    def remove(self, names: Iterable[str]) -> bool: ...


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the index keeps of a session. ``offset``: of the closing frame. ``name``, ``labels``: JSON, b"" if none."""

    version: int
    offset: int
    closing: bytes
    id: str
    name: bytes
    labels: bytes
    created: int
    updated: int
    commits: int
    elements: int
    frames: int
    syncs: int

    def info(self) -> SessionInfo:
        """Raises ValueError if name or labels are not what they should be."""
        name = thaw(self.name) if self.name else ""
        labels = thaw(self.labels) if self.labels else {}
        if not isinstance(name, str) or not isinstance(labels, dict):
            raise ValueError("a name or labels of another kind")
        return SessionInfo(
            self.id,
            name or None,
            labels,
            self.created,
            self.updated,
            self.commits,
            self.elements,
            self.frames,
            self.syncs,
            self.offset + len(self.closing),
        )


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Entry).decode


def encode_entry(info: SessionInfo, frame: bytes) -> bytes | None:
    """The entry of a session whose log ends with the closing frame ``frame``; None if it cannot be kept."""
    name = b"" if info.name is None else freeze(info.name)[0]
    labels = freeze(info.labels)[0] if info.labels else b""
    counts = (info.created, info.updated, info.commits, info.elements, info.frames, info.syncs)
    try:
        data = _encode(Entry(_VERSION, info.bytes - len(frame), frame, info.id, name, labels, *counts))
    except OverflowError:  # a time beyond 64 bits
        return None
    return data if len(data) <= _MAX_ENTRY_BYTES else None


def decode_entry(data: bytes) -> Entry | None:
    """None if it is of another release."""
    try:
        entry = _decode(data)
    except msgspec.MsgspecError:
        return None
    return entry if entry.version == _VERSION and entry.closing and 0 < entry.offset <= MAX_OFFSET else None


class Looked(NamedTuple):
    """A log that was read. ``closing``: its closing frame if the file ends with one, else empty."""

    info: SessionInfo
    closing: bytes


class Catalogue:
    """The sessions of the store in the directory ``path``. Thread-safe.

    ``index`` is asked and told, and proves nothing; None where there can be none.
    """

    def __init__(self, fs: FileSystem, path: str, identity: str, index: Entries | None) -> None:
        self._fs = fs
        self._path = path
        self._identity = identity
        self._index = index
        self._lock = threading.Lock()
        self._waiting: dict[str, bytes] = {}  # entries of sessions closed in this process, by directory

    @property
    def kept(self) -> bool:
        """Whether there may be an index, so that it is worth while to tell of closed sessions."""
        return self._index is not None

    # --- what there is --------------------------------------------------------------------------

    def ids(self, tell: Tell) -> list[str]:
        """Ids of all sessions that have a main log, sorted. Reads names; a header only where a name is a digest.

        What cannot be read is told. Raises :class:`ReadFailed` if the store's directory cannot be.
        """
        return [session for session in self._candidates(tell) if self._exists(session, tell)]

    def infos(self, wanted: Callable[[str], bool], tell: Tell, *, reverse: bool = False) -> Iterator[SessionInfo]:
        """Every session whose id is wanted, in order of ids. What cannot be read is told, and left out.

        Memory does not grow with what is listed but for the ids. Raises :class:`ReadFailed` as :meth:`ids` does.
        """
        ids = [session for session in self._candidates(tell) if wanted(session)]
        if reverse:
            ids.reverse()
        return self._infos(ids, tell, anew=False)

    def renew(self, ids: list[str], tell: Tell) -> None:
        """Look at the logs of these sessions, and keep what they say whatever their number."""
        for _ in self._infos(ids, tell, anew=True):
            pass

    def _infos(self, ids: list[str], tell: Tell, *, anew: bool) -> Iterator[SessionInfo]:
        computed: dict[str, bytes] = {}
        for start in range(0, len(ids), _BATCH):
            for session, name, known in self._known(ids[start : start + _BATCH]):
                path = f"{self._path}/{name}/{MAIN_FILE}"
                try:
                    info = None if anew else self._proved(session, path, known)
                    if info is None:
                        info, frame = self._look(session, path)
                        data = encode_entry(info, frame) if frame and self._index is not None else None
                        if data is not None:
                            computed[name] = data
                except _NO_SESSION:
                    continue
                except (OSError, CorruptLog, ForeignFile, NewerFormat, ReadFailed) as error:
                    tell(finding_of(error, path))
                    continue
                yield info
            if len(computed) >= _BATCH:
                self._put(computed, anew)
                computed = {}
        self._put(computed, anew)

    def _candidates(self, tell: Tell) -> list[str]:
        """Ids of all directories of sessions, sorted; whether there is a log in them is not looked at."""
        try:
            names = self._fs.list_dir(self._path)
        except OSError as error:
            raise ReadFailed(
                f"{self._path} could not be listed ({error})", "check the disk and its permissions"
            ) from error
        ids: list[str] = []
        for name in names:
            if name.endswith(SESSION_SUFFIX):
                session = session_id_of_dir(name) or self._id_in_header(name, tell)
                if session is not None:
                    ids.append(session)
        ids.sort()
        return ids

    def _id_in_header(self, name: str, tell: Tell) -> str | None:
        path = os.path.join(self._path, name, MAIN_FILE)
        try:
            with closing(self._fs.open_readonly(path)) as file:
                header, _ = read_header(file, path)
        except _NO_SESSION:
            return None
        except (OSError, CorruptLog, NewerFormat, ReadFailed) as error:
            tell(finding_of(error, path))
            return None
        if header.kind == KIND_MAIN and header.session and session_dir_name(header.session) == name:
            return header.session
        tell(Finding(NOTE, path, 0, 0, "foreign", f"left out: its header names the session {header.session!r}"))
        return None

    def _exists(self, session: str, tell: Tell) -> bool:
        path = os.path.join(self._path, session_dir_name(session), MAIN_FILE)
        try:
            return self._fs.exists(path)
        except OSError as error:
            tell(finding_of(error, path))
            return False

    # --- one session ----------------------------------------------------------------------------

    def _known(self, ids: list[str]) -> Iterator[tuple[str, str, bytes | None]]:
        """Each id with its directory and its entry, proved or not."""
        names = [session_dir_name(session) for session in ids]
        known = self._index.entries(names) if self._index is not None else zip(names, itertools.repeat(None))
        for session, (name, data) in zip(ids, known, strict=True):
            yield session, name, self._waiting.get(name, data)

    def _proved(self, session: str, path: str, data: bytes | None) -> SessionInfo | None:
        """What an entry says, if the log ends with the frame it names; None if not."""
        entry = decode_entry(data) if data is not None else None
        if entry is None or entry.id != session:
            return None
        file = self._fs.open_readonly(path)
        try:
            end = file.pread(len(entry.closing) + 1, entry.offset)
        finally:
            file.close()
        if end != entry.closing:
            return None
        try:
            return entry.info()
        except ValueError:  # no JSON: nothing that we have written
            return None

    def _look(self, session: str, path: str) -> Looked:
        for attempt in range(_ATTEMPTS):
            handle = Handle.open_readonly(self._fs, path)
            try:
                view, frame = glance(handle, path)
                check_owner(view.header, path, kind=KIND_MAIN, store=self._identity, session=session)
                return Looked(info_of(view, session), frame)
            except CorruptLog:  # or it was cut back meanwhile
                if attempt == _ATTEMPTS - 1:
                    raise
            finally:
                handle.close()
        raise AssertionError("unreachable")

    # --- what the index is told -----------------------------------------------------------------

    def closed(self, info: SessionInfo, frame: bytes) -> None:
        """A session of this process was closed, its log ends with the closing frame ``frame``."""
        data = encode_entry(info, frame) if self._index is not None else None
        if data is None:
            return
        with self._lock:
            self._waiting[session_dir_name(info.id)] = data
            if len(self._waiting) < _BATCH:
                return
            batch, self._waiting = self._waiting, {}
        self._put(batch)

    def settle(self) -> None:
        """The store is closed: what waits is written where there is an index, or enough of it for one."""
        with self._lock:
            batch, self._waiting = self._waiting, {}
        self._put(batch)

    def forget(self, session: str) -> None:
        """The session is deleted."""
        name = session_dir_name(session)
        with self._lock:
            self._waiting.pop(name, None)
        if self._index is not None:
            self._index.remove([name])

    def after_fork(self) -> None:
        """In the child, which refuses the store."""
        self._lock = threading.Lock()
        self._waiting = {}

    def _put(self, batch: dict[str, bytes], wanted: bool = False) -> None:
        """Best effort: whoever may not write goes without, and what is not written is read from the logs again.

        An index is made for many entries alone, unless it is ``wanted``, and by the store's owner: nobody else's would
        be of use to them.
        """
        index = self._index
        if batch and index is not None:
            create = (wanted or len(batch) >= _MANY) and self._is_ours()
            if create or index.present:
                index.put_entries(batch, create=create)

    def _is_ours(self) -> bool:
        try:
            return os.stat(self._path).st_uid == os.geteuid()
        except OSError:
            return False


def finding_of(error: Exception, path: str) -> Finding:
    """What is told of a log that cannot be looked at. Raises :class:`ReadFailed` where the process is to blame."""
    if isinstance(error, CorruptLog):
        return Finding(DAMAGE, error.path, error.offset, error.sequence, error.reason, error.detail)
    if isinstance(error, ForeignFile | NewerFormat):
        return Finding(DAMAGE, path, 0, 0, "foreign" if isinstance(error, ForeignFile) else "newer", error.cause)
    if isinstance(error, OSError) and error.errno in NO_RESOURCES:
        raise ReadFailed(f"{path} could not be opened ({error})", "close some files and try again") from error
    return Finding(UNREAD, path, 0, 0, "read", f"it cannot be read ({error})")
