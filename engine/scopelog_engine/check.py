"""check: prove a store sound, byte by byte, without changing it.

The bytes of every closed stretch are held against the checksum in the index frame that closes it, and the index frames
against each other; behind the last one, and wherever that fails, every frame's checksum and place in the chain is
verified, every payload decoded and every index frame held against what it describes. ``deep`` does this everywhere: it
finds, too, what a faulty writer (or a forger) has put between good checksums. Sidecars are held against main. A log
that its writer is appending to has no end that could be judged: there only what lies before the end so far is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final, Protocol
from zlib import crc32

from .errors import CorruptLog, ForeignFile, NewerFormat, NoSuchSession, ReadFailed, ScopelogError, StoreLocked
from .frame import Fault, Frame, follows
from .fs import FileSystem
from .handle import Handle
from .header import KIND_MAIN, KIND_SCOPE, Header, check_owner, digest_of
from .layout import (
    ASIDE_SUFFIX,
    KIND_BATCH,
    KIND_INDEX,
    LOCK_FILE,
    MAIN_FILE,
    MAX_FRAME_BYTES,
    SESSION_SUFFIX,
    STORE_FILE,
    TORN_SUFFIX,
    scope_file_sequence,
    session_dir_name,
)
from .lines import Address
from .lock import WriterLock
from .scan import Walk, frame_at, search
from .stretch import BadIndex, Closed
from .survey import CORRUPT, LIVE, Survey, frame_cap, read_header, survey
from .tail import Tail, note_of
from .view import LogView

TORN: Final = "torn"
DAMAGE: Final = "corrupt"
UNREAD: Final = "unread"
NOTE: Final = "note"
_LOOKS: Final = 5  # at the end of a log that somebody writes to
_FIRST_PIECE: Final = 4 * 1024  # read for the first frame of a stretch; most are shorter


@dataclass(frozen=True)
class Finding:
    """Something ``check`` found.

    ``severity``: ``corrupt`` (proved damage), ``torn`` (an un-synced tail that the next open for write will cut and
    keep aside), ``unread`` (the disk would not let us) or ``note`` (evidence of an earlier recovery, a log in use).
    ``offset``: first byte
    concerned; ``sequence``: last good one before it; ``reason``: what kind, e.g. ``checksum`` or ``sequence``.
    """

    severity: str
    path: str
    offset: int
    sequence: int
    reason: str
    detail: str

    def as_dict(self) -> dict[str, str | int]:
        return asdict(self)


class Checked(Protocol):
    """What of a store ``check`` needs."""

    fs: FileSystem
    path: str
    identity: str


def check_store(store: Checked, session: str | None = None, *, deep: bool = False) -> list[Finding]:
    """All findings, the store's own file first. Raises :class:`NoSuchSession` for a session that is not there."""
    try:
        return _check_store(store, session, deep)
    except OSError as error:
        raise ReadFailed(f"{store.path} could not be read ({error})", "check the disk and its permissions") from error


def _check_store(store: Checked, session: str | None, deep: bool) -> list[Finding]:
    fs = store.fs
    if session is not None:
        name = session_dir_name(session)
        if not fs.exists(os.path.join(store.path, name, MAIN_FILE)):
            raise NoSuchSession(f"there is no session {session!r}", "look at the list of sessions")
        names = [name]
    else:
        names = [name for name in fs.list_dir(store.path) if name.endswith(SESSION_SUFFIX)]
    findings: list[Finding] = []
    if session is None:
        findings += _check_store_file(fs, os.path.join(store.path, STORE_FILE))
    for name in names:
        directory = os.path.join(store.path, name)
        try:
            if not fs.is_dir(directory):
                continue
            findings += _check_session(store, directory, deep)
        except FileNotFoundError:
            continue  # deleted meanwhile
        except OSError as error:
            findings.append(Finding(UNREAD, directory, 0, 0, "read", f"it cannot be read ({error})"))
    return findings


def worst(findings: list[Finding]) -> int:
    """Exit status: 0 sound, 1 torn tails only, 2 corruption, 3 no corruption but something that could not be read."""
    severities = {finding.severity for finding in findings}
    return next((status for severity, status in _STATUS if severity in severities), 0)


_STATUS: Final = ((DAMAGE, 2), (UNREAD, 3), (TORN, 1))


def _check_store_file(fs: FileSystem, path: str) -> Iterator[Finding]:
    file = fs.open_readonly(path)
    try:
        _, first = read_header(file, path)
        if file.size() != first.end:
            yield Finding(DAMAGE, path, first.end, 0, "length", "something follows the store's header")
    finally:
        file.close()


def _check_session(store: Checked, directory: str, deep: bool) -> list[Finding]:
    """Look without the lock; only if something is wrong take it, so that a live tail is not called torn."""
    found = _Session(store, directory, deep)
    found.run(judge=False)
    if not found.doubtful:
        return found.findings
    try:
        lock = WriterLock.acquire(store.fs, os.path.join(directory, LOCK_FILE), create=False)
    except FileNotFoundError:  # nobody can be writing
        found = _Session(store, directory, deep)
        found.run(judge=True)
        return found.findings
    except StoreLocked as error:
        return _live(store, directory, deep, found.findings, f"in use by process {error.pid}")
    except OSError as error:
        found.findings.append(Finding(NOTE, directory, 0, 0, "lock", f"the lock could not be taken ({error})"))
        return found.findings
    try:
        again = _Session(store, directory, deep)
        again.run(judge=True)
        return again.findings
    finally:
        lock.release()


def _live(store: Checked, directory: str, deep: bool, findings: list[Finding], who: str) -> list[Finding]:
    """A session that somebody writes to: half a frame at its end is on its way, and not there at the next look. What
    stays there cannot be judged without the lock, but it is not sound either."""
    stays = {(f.path, f.offset): f for f in findings if f.reason == "end"}
    for _ in range(_LOOKS):
        if not stays:
            break
        again = _Session(store, directory, deep)
        again.run(judge=False)
        stays = {(f.path, f.offset): f for f in again.findings if f.reason == "end" and (f.path, f.offset) in stays}
    told = [f for f in findings if f.reason != "end"]
    for path, offset in stays:
        detail = f"{who}: what follows is no frame, and can be judged when it is closed"
        told.append(Finding(UNREAD, path, offset, stays[path, offset].sequence, "live", detail))
    return [*told, Finding(NOTE, directory, 0, 0, "live", f"{who}: its end was not judged")]


class _Session:
    def __init__(self, store: Checked, directory: str, deep: bool) -> None:
        self._store = store
        self._deep = deep
        self._fs = store.fs
        self._directory = directory
        self._main: LogView | None = None
        self._main_last = -1
        self.findings: list[Finding] = []
        self.doubtful = False

    def run(self, *, judge: bool) -> None:
        names = self._fs.list_dir(self._directory)
        for name in names:
            if name.endswith((TORN_SUFFIX, ASIDE_SUFFIX)):
                path = os.path.join(self._directory, name)
                self._add(NOTE, path, 0, 0, "kept", "evidence kept by an earlier recovery")
        sidecars = [name for name in names if scope_file_sequence(name) is not None]
        if MAIN_FILE not in names:
            if sidecars:
                path = os.path.join(self._directory, MAIN_FILE)
                self._add(DAMAGE, path, 0, 0, "missing", "there are scopes but no main log")
            return
        self._log(MAIN_FILE, KIND_MAIN, judge)
        for name in sidecars:
            self._log(name, KIND_SCOPE, judge)
        if self._main is not None:
            self._main.handle.close()

    def _add(self, severity: str, path: str, offset: int, sequence: int, reason: str, detail: str) -> None:
        self.findings.append(Finding(severity, path, offset, sequence, reason, detail))
        if severity != NOTE:
            self.doubtful = True

    def _log(self, name: str, kind: str, judge: bool) -> None:
        path = os.path.join(self._directory, name)
        try:
            handle = Handle.open_readonly(self._fs, path)
        except FileNotFoundError:
            return  # retired meanwhile
        except OSError as error:
            self._add(UNREAD, path, 0, 0, "read", f"it cannot be opened ({error})")
            return
        keep = False
        try:
            with handle.pin() as file:
                header, first = read_header(file, path)
            check_owner(header, path, kind=kind, store=self._store.identity, session=header.session)
            if session_dir_name(header.session) != os.path.basename(self._directory):
                self._add(DAMAGE, path, 0, 0, "foreign", f"its header names the session {header.session!r}")
                if kind == KIND_SCOPE:
                    return
            newest = None if self._deep else _newest_index(handle, path)
            if newest is not None and not _stretches_hold(handle, path, header, first, newest):
                newest = None  # frame by frame then: it will be found out where, and of what kind it is
            end = self._verify(handle, path, header, newest or first)
            with handle.pin() as file:
                found = survey(file, path, judge=judge, whole=newest is None)
            self._judge(found, path, judge, end)
            if kind == KIND_MAIN:
                # Of a damaged log the end of the good prefix is not the end: what follows counts, too.
                self._main_last = found.high if found.verdict == CORRUPT else found.sequence
                self._main = LogView.of_survey(handle, path, found)
                keep = True
            elif max(header.base, header.after) > self._main_last:
                self._add(NOTE, path, 0, 0, "ahead", "it builds on more than main holds: it will be set aside")
            elif header.first != scope_file_sequence(name):
                self._add(NOTE, path, 0, 0, "renamed", "its name and its header disagree: it will be set aside")
        except CorruptLog as error:
            lost = error.offset == 0 and kind == KIND_SCOPE and not self._was_durable(handle, path)
            severity = TORN if lost else DAMAGE  # a sidecar's header is not synced: it may be lost with all behind it
            self._add(severity, error.path, error.offset, error.sequence, error.reason, error.detail)
        except (ForeignFile, NewerFormat, ReadFailed) as error:
            severity = UNREAD if isinstance(error, ReadFailed) else DAMAGE
            self._add(severity, path, 0, 0, _REASONS[type(error)], error.cause)
        finally:
            if not keep:
                handle.close()

    def _was_durable(self, handle: Handle, path: str) -> bool:
        """Whether any frame of a log without a header has a durable mark."""
        with handle.pin() as file:
            return any(frame.mark > 0 for frame in search(file, path, 0, file.size(), None, MAX_FRAME_BYTES))

    def _judge(self, found: Survey, path: str, judge: bool, end: int) -> None:
        if found.end >= found.size or end < found.end:
            return
        fault = found.fault or Fault.MAGIC
        if not judge:
            if found.fault is not Fault.COVER or not found.covered:
                self._add(TORN, path, found.end, found.last.last, "end", "it may be torn: the end so far")
            else:
                self.doubtful = True  # a cover is no proof of the end
        elif found.verdict == CORRUPT:
            error = found.damage(path)
            self._add(DAMAGE, path, error.offset, error.sequence, error.reason, error.detail)
        elif found.verdict != LIVE:
            length = found.size - found.end
            self._add(TORN, path, found.end, found.last.last, fault.name.lower(), f"{length} bytes: {fault.value}")

    def _verify(self, handle: Handle, path: str, header: Header, start: Frame) -> int:
        """Follow the chain from a frame that begins a stretch, decode every payload, compare every index frame.
        Returns where the chain ends."""
        with handle.pin() as file:
            size = file.size()
            view = LogView(handle, path, header, size)
            walk = Walk(file, path, start.end, start, size, digest_of(header), frame_cap(header))
            numbers: dict[int, Address] = {}
            tail = view.open_stretch(start if start.kind == KIND_INDEX else None, start.end, [], {})
            offset = start.end
            for frame, payload in walk:
                if frame.kind == KIND_INDEX:
                    self._compare(frame, payload, tail, path)
                    totals = tail.totals_when_closed(frame.offset, frame.mark)
                    tail = Tail(frame.end, frame.offset, totals, frame.mark)
                    numbers = {}
                else:
                    records = view.decode_frame(frame, payload, numbers) if frame.kind == KIND_BATCH else []
                    tail.number(numbers)
                    tail.take(frame, offset, [note_of(r) for r in records], records[-1].time if records else 0)
                    tail.crc = crc32(file.pread(frame.end - offset, offset), tail.crc)
                offset = frame.end
            return walk.offset

    def _compare(self, frame: Frame, payload: bytes, tail: Tail, path: str) -> None:
        try:
            closed = Closed(frame, payload)
        except BadIndex as error:
            self._add(DAMAGE, path, frame.offset, frame.last, "index", str(error))
            return
        same = (
            closed.start == tail.start
            and closed.previous == tail.previous
            and closed.crc == tail.crc
            and [span.length for span in closed.spans] == [span.length for span in tail.spans]
            and closed.lists == tail.lists
            and closed.values == tail.values
            and closed.retired == tail.retired
            and closed.totals in (None, tail.totals_when_closed(frame.offset, frame.mark))
        )
        if not same:
            self._add(DAMAGE, path, frame.offset, frame.last, "index", "an index frame does not describe its stretch")


def _newest_index(handle: Handle, path: str) -> Frame | None:
    """The newest index frame of the chain, as far as a look from the end can tell."""
    try:
        with handle.pin() as file:
            return survey(file, path, judge=False).newest_index
    except CorruptLog:
        return None


def _stretches_hold(handle: Handle, path: str, header: Header, first: Frame, newest: Frame) -> bool:
    """Whether all bytes from the header to the end of an index frame are what their writer checksummed."""
    view = LogView(handle, path, header, newest.end)
    try:
        stretch = view.closed(newest.offset)
        while True:
            if view.crc(stretch.start, stretch.end) != stretch.crc:
                return False
            if not stretch.previous:
                return stretch.start == first.end
            older = view.closed(stretch.previous)
            if older.index.end != stretch.start or not _goes_on(view, older.index, stretch.index.end):
                return False
            stretch = older
    except CorruptLog:
        return False


def _goes_on(view: LogView, before: Frame, end: int) -> bool:
    """Whether the first frame behind an index frame continues its chain: else it is another history's."""
    with view.pinned() as file:
        found, _ = frame_at(file, view.path, before.end, end, view.digest, view.cap, _FIRST_PIECE)
        if not isinstance(found, Frame):  # foreign skippable frames stand before it
            found = next(
                (frame for frame, _ in Walk(file, view.path, before.end, before, end, view.digest, view.cap)), found
            )
    return isinstance(found, Frame) and follows(before, found) is None


_REASONS: Final[dict[type[ScopelogError], str]] = {
    ForeignFile: "foreign",
    NewerFormat: "newer",
    ReadFailed: "read",
}
