"""Recovery: what an open for write does to a log that was not closed cleanly. Only the holder of the lock comes here.

First everything is looked at and nothing changed: an open that is refused for damage leaves every file as it was. Then
:func:`mend` changes what must be. A torn tail is kept aside (temp, sync, rename, sync of the directory), and only then
is the log cut, and synced, and only then may appends start. Each step may be the last one before a crash: run again,
recovery ends in the same bytes.
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from .errors import CorruptLog, ForeignFile, NewerFormat, ReadFailed
from .fs import File, FileSystem, rewrite, write_all
from .handle import Handle
from .header import KIND_MAIN, KIND_SCOPE, check_owner
from .layout import ASIDE_SUFFIX, KIND_HEADER, MAX_SEQUENCE, TEMP_SUFFIX, TORN_SUFFIX, scope_file_sequence
from .scan import fetch
from .survey import CORRUPT, LIVE, Survey, survey
from .view import LogView

_log = logging.getLogger(__name__)
_PIECE: Final = 1024 * 1024
NO_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_UNKNOWN_LENGTH: Final = 2**24  # sequences an unreadable sidecar may have used: gaps are legal, reuse is not


@dataclass(frozen=True)
class TornTail:
    """Bytes that were cut from ``path`` at ``offset`` and kept in the file ``kept``.

    ``after``: last sequence that stays. ``corrupt``: they were durable once (only a sidecar is cut then).
    """

    path: str
    offset: int
    length: int
    after: int
    kept: str
    reason: str
    corrupt: bool = False


@dataclass(frozen=True)
class SetAside:
    """A sidecar that does not belong to the session's present state: renamed to ``kept``, never replayed."""

    path: str
    kept: str
    reason: str


@dataclass
class Recovery:
    """What opening a session found and did. All lists empty and ``clean``: nothing was to be done."""

    clean: bool = True
    torn: list[TornTail] = field(default_factory=list)
    set_aside: list[SetAside] = field(default_factory=list)
    unreadable: list[SetAside] = field(default_factory=list)
    """Sidecars the disk would not let us read; left where they are. No scope that is not open yet can be used then."""
    swept: list[str] = field(default_factory=list)
    """Files removed because nothing in them can ever be read again: retired sidecars, leftovers of creation."""
    unproved_bytes: int = 0
    """Bytes of the main log above its durable mark: written again before the first acknowledgement."""

    @property
    def torn_bytes(self) -> int:
        return sum(tail.length for tail in self.torn)

    def __bool__(self) -> bool:
        return bool(self.torn or self.set_aside or self.unreadable or self.swept)


@dataclass
class Recovered:
    """A log ready to be written: its file, its survey as it was found, and its length now.

    ``proved``: recovery has synced every byte of it.
    """

    path: str
    handle: Handle
    survey: Survey
    size: int
    proved: bool = False


def recover_main(fs: FileSystem, path: str, *, store: str, session: str, report: Recovery) -> Recovered:
    """Open main for writing, and find its end. Raises :class:`CorruptLog` for proved damage. Nothing is changed yet."""
    handle = Handle.open(fs, path)
    try:
        with handle.pin() as file:
            found = survey(file, path)
            check_owner(found.header, path, kind=KIND_MAIN, store=store, session=session)
            if found.verdict == CORRUPT:
                raise found.damage(path)
    except BaseException:
        handle.close()
        raise
    report.clean = found.clean and found.size == found.end
    return Recovered(path, handle, found, found.size)


def mend(
    fs: FileSystem, directory: str, names: list[str], main: Recovered | None, sidecars: Sidecars, report: Recovery
) -> None:
    """Cut what is torn or, of a sidecar, damaged; set aside what does not belong. Main comes first. ``names``: what
    the directory holds."""
    if main is not None:
        _mend(fs, main, report)
        report.unproved_bytes = 0 if main.proved or report.clean else main.survey.end - main.survey.mark
    for path, reason in sidecars.strange:
        _set_aside(fs, path, reason, report)
    if report.set_aside or any(name.endswith(ASIDE_SUFFIX) for name in names):
        # A power cut must not bring the old name back: main may have grown by then as far as the sidecar builds on.
        fs.sync_dir(directory)  # also where an earlier recovery renamed but did not live to sync
    born = []
    for car in sidecars.living:
        log = car.log
        _mend(fs, log, report)
        if log.survey.last.kind != KIND_HEADER:
            born.append(car)
            continue
        log.handle.close()  # its first batch was torn: nothing ever lived in it
        fs.unlink(log.path)
        report.swept.append(log.path)
    sidecars.living = born


def _mend(fs: FileSystem, log: Recovered, report: Recovery) -> None:
    """Cut what is torn, and then prove the rest by a sync."""
    found, path = log.survey, log.path
    if found.verdict == LIVE:
        if found.size > found.end and not found.covered:
            log.size = found.end  # untouched zeros behind a cover that does not reach the end
        if log.size < found.size or not found.clean:
            # Also to the same length: in the last block may stand, behind the end, what an earlier cut took away.
            with log.handle.pin() as file:
                file.truncate(log.size)
        return
    with log.handle.pin() as file:
        kept, length = _keep(fs, file, path, found)
        rewrite(file, found.mark, found.end)
        file.truncate(found.end)
        file.sync()
    log.size, log.proved = found.end, True
    reason = found.fault.value if found.fault else "the log goes on in a way that does not follow"
    report.torn.append(
        TornTail(path, found.end, length, found.last.last, kept, reason, corrupt=found.verdict == CORRUPT)
    )
    _log.info("%s: %d bytes cut from offset %d on (%s), kept in %s", path, length, found.end, reason, kept)


def _keep(fs: FileSystem, file: File, path: str, found: Survey) -> tuple[str, int]:
    """Copy the bytes from the end of the chain on into a .torn file named by offset and checksum."""
    crc = 0
    offset = found.end
    while offset < found.size:
        data = fetch(file, path, min(_PIECE, found.size - offset), offset)
        if not data:
            break
        crc = crc32(data, crc)
        offset += len(data)
    length = offset - found.end
    kept = f"{path}.{found.end:012d}-{crc:08x}{TORN_SUFFIX}"
    if not fs.exists(kept):
        temp = kept + TEMP_SUFFIX
        if fs.exists(temp):
            fs.unlink(temp)
        copy = fs.create(temp)
        try:
            for at in range(found.end, offset, _PIECE):
                write_all(copy, fetch(file, path, min(_PIECE, offset - at), at), at - found.end)
            copy.sync()
        finally:
            copy.close()
        fs.rename(temp, kept)
    fs.sync_dir(os.path.dirname(path))  # also where an earlier recovery renamed but did not live to sync
    return kept, length


@dataclass
class Sidecar:
    """One life of a scope. ``retired``: the committed retirement that ended it, 0 while it is alive."""

    scope: str
    first: int
    log: Recovered
    retired: int = 0


@dataclass
class Sidecars:
    """``strange``: path and reason of those to be set aside. ``high`` and ``epoch``: the highest met in any file of the
    session, also of those set aside or dead."""

    living: list[Sidecar] = field(default_factory=list)
    dead: list[Sidecar] = field(default_factory=list)
    strange: list[tuple[str, str]] = field(default_factory=list)
    high: int = 0
    epoch: int = 0


def recover_sidecars(
    fs: FileSystem,
    directory: str,
    names: list[str],
    *,
    store: str,
    session: str,
    main: LogView | None,
    main_last: int,
    report: Recovery,
) -> Sidecars:
    """Survey every sidecar, and tell the living from the dead and from what does not belong. Nothing is changed yet.

    Trouble in a sidecar never stops main from opening; a lack of descriptors or memory (OSError) does. Raises
    :class:`CorruptLog` for damage in main that hides which of them are alive.
    """
    result = Sidecars()
    candidates: list[Sidecar] = []
    try:
        for name in names:
            first = scope_file_sequence(name)
            if first is not None:
                car = _look_at(fs, os.path.join(directory, name), first, store, session, main_last, result, report)
                candidates += [car] if car is not None else []
        _tell_apart(candidates, main, result)
    except BaseException:
        for car in candidates:
            car.log.handle.close()
        raise
    return result


def _look_at(
    fs: FileSystem,
    path: str,
    first: int,
    store: str,
    session: str,
    main_last: int,
    result: Sidecars,
    report: Recovery,
) -> Sidecar | None:
    """One sidecar, if it is ours and can be read; else it is strange, or reported."""
    handle: Handle | None = None
    try:
        handle = Handle.open(fs, path)
        with handle.pin() as file:
            found = survey(file, path)
        check_owner(found.header, path, kind=KIND_SCOPE, store=store, session=session)
    except (CorruptLog, NewerFormat, ForeignFile, ReadFailed, OSError) as error:
        if handle is not None:
            handle.close()
        if first + _UNKNOWN_LENGTH < MAX_SEQUENCE // 2:  # else it is no number that we ever gave
            result.high = max(result.high, first + _UNKNOWN_LENGTH)
        if isinstance(error, OSError) and error.errno in NO_RESOURCES:
            raise
        if isinstance(error, OSError | ReadFailed):
            report.unreadable.append(SetAside(path, path, str(error)))
            _log.error("%s cannot be read: %s", path, error)
        else:
            result.strange.append((path, error.cause))
        return None
    result.high, result.epoch = max(result.high, found.high), max(result.epoch, found.epoch)
    reason = _why_not_ours(found, first, main_last)
    if reason:
        handle.close()
        result.strange.append((path, reason))
        return None
    return Sidecar(found.header.scope, first, Recovered(path, handle, found, found.size))


def _tell_apart(candidates: list[Sidecar], main: LogView | None, result: Sidecars) -> None:
    """Which lives are over and which go on. Candidates are in order of their first sequence."""
    retired: dict[str, int] = {}
    if candidates and main is not None:
        retired = main.retired_since(candidates[0].first, {car.scope for car in candidates})
    owner: dict[str, Sidecar] = {}
    for car in candidates:
        boundary = max(retired.get(car.scope, 0), main.header.ended(car.first) if main is not None else 0)
        if boundary > car.first:
            car.retired = boundary
            result.dead.append(car)
        elif car.scope in owner:
            car.log.handle.close()
            result.strange.append((car.log.path, "an earlier life of its scope was never retired"))
        else:
            owner[car.scope] = car
            result.living.append(car)


def _why_not_ours(found: Survey, first: int, main_last: int) -> str:
    header = found.header
    builds_on = max(header.base, header.after)
    if header.first != first:
        return f"its name says sequence {first}, its header {header.first}: it was copied or renamed"
    if builds_on > main_last:
        return f"it builds on sequence {builds_on}, but main ends at {main_last}"
    return ""


def _set_aside(fs: FileSystem, path: str, reason: str, report: Recovery) -> None:
    kept = path + ASIDE_SUFFIX
    number = 1
    while fs.exists(kept):
        number += 1
        kept = f"{path}.{number}{ASIDE_SUFFIX}"
    fs.rename(path, kept)
    report.set_aside.append(SetAside(path, kept, reason))
    _log.info("%s set aside as %s: %s", path, kept, reason)
