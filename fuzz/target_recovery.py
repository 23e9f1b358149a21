"""Recovery on any bytes: a store whose files were damaged, mixed up or forged is opened on the simulated disk.

It opens, or is refused with a typed error and with nothing changed. What was cut is kept, byte by byte; what is read
stands in the bytes; whoever opens it a second time, or after a death in the middle, finds the same; what is appended
then is read again. Damage that no forger made is refused only where later bytes prove that it is damage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from fuzz.damage import EDITS, FORGERIES, Edit, Forgery, edited, forged
from fuzz.domains import Blob, Build, Domain, Either, Many, Mapped, Number, One
from fuzz.model_handles import PATH
from fuzz.oracle import Told, records, tell
from fuzz.simdisk import SimCrash, SimDisk
from fuzz.stores import Image, files_of, images, lay
from scopelog import (
    SESSION,
    CorruptLog,
    LogRecord,
    ManualClock,
    OpenFailed,
    ReadFailed,
    ScopelogError,
    Store,
    ephemeral,
    value,
)
from scopelog_engine.layout import (
    SCOPE_SUFFIX,
    STORE_FILE,
    scope_file_name,
    scope_file_sequence,
    session_dir_name,
)

_PROBE: Final = value("fuzz", "probe")
_REFUSALS: Final = (OpenFailed, CorruptLog, ReadFailed)


ChangeKind = Literal["edit", "forge", "remove", "empty", "raw", "copy", "rename", "exchange", "foreign"]


class FileChange(NamedTuple):
    """What happens to one of the session's logs. ``number`` names the log, ``other`` another one or a sequence."""

    kind: ChangeKind
    number: int
    other: int
    edits: list[Edit]
    forgeries: list[Forgery]
    raw: bytes


class Wreck(NamedTuple):
    """``crash``: the step of the disk in which the first attempt to open it dies."""

    image: int
    changes: list[FileChange]
    crash: int


_KINDS: Final = One[ChangeKind](
    "edit", "edit", "edit", "edit", "forge", "forge", "remove", "empty", "raw", "copy", "rename", "exchange", "foreign"
)  # fmt: skip
_CHANGES: Final = Build(
    FileChange,
    kind=_KINDS,
    number=Number(0, 3),
    other=Number(0, 255),
    edits=Many(EDITS, 1, 3),
    forgeries=Many(FORGERIES, 1, 3),
    raw=Blob(40),
)


def raw_main(data: bytes) -> Wreck:
    """Any bytes as the main log."""
    return Wreck(0, [FileChange("raw", -1, 0, [], [], data)], 1)


WRECKS: Final[Domain[Wreck]] = Either[Wreck](
    Mapped(Blob(), raw_main),
    *[Build(Wreck, image=Number(0, 7), changes=Many(_CHANGES, 1, 3), crash=Number(1, 16))] * 6,
)


def damaged(wreck: Wreck) -> tuple[Image, bool]:
    """The store, and whether a forger was at work."""
    image = images()[wreck.image % len(images())]
    files = dict(image.files)
    forger = False
    for change in wreck.changes:
        logs = image._replace(files=files).logs
        if not logs:
            break
        name = logs[change.number % len(logs)]
        forger = forger or change.kind in ("forge", "raw")
        _change(files, name, logs, change, image.session)
    return image._replace(files=files), forger


def _change(files: dict[str, bytes], name: str, logs: Sequence[str], change: FileChange, session: str) -> None:
    target = f"{session_dir_name(session)}/{scope_file_name(change.other)}"
    match change.kind:
        case "edit":
            files[name] = edited(files[name], change.edits)
        case "forge":
            files[name] = forged(files[name], change.forgeries)
        case "remove":
            del files[name]
        case "empty" | "raw":
            files[name] = change.raw if change.kind == "raw" else b""
        case "copy":
            files[target] = files[name]
        case "rename":
            files[target] = files.pop(name)
        case "exchange":
            other = logs[change.other % len(logs)]
            files[name], files[other] = files[other], files[name]
        case "foreign":
            source = images()[change.other % len(images())]
            files[name] = source.files[source.logs[change.number % len(source.logs)]]


class Opened(NamedTuple):
    """What an open for write has made of the store. ``records``: None if reading them was refused."""

    files: dict[str, bytes]
    records: list[LogRecord] | None
    scopes: list[str]


def check_recovery(wreck: Wreck) -> None:
    image, forger = damaged(wreck)
    disk = lay(image)
    before = files_of(disk)
    told = tell(before.get(f"{session_dir_name(image.session)}/main.zst", b""))
    _read_only(disk.copy(), image.session, before, forger)
    refused: ScopelogError | None = None
    try:
        opened = _open(disk, image.session, before, forger)
    except _REFUSALS as error:
        refused = error
    if refused is not None:
        assert files_of(disk) == before, f"refused, and yet something was changed: {refused}"
        _why(told, before, image, refused, forger)
        return
    steps = disk.steps
    assert steps < 400 + 40 * len(before), f"opening took {steps} steps"
    _check_end(opened, before, told, image, forger)
    if opened.records is not None:
        _once_more(disk, image.session, opened)
        _die_and_open(lay(image), image.session, opened, wreck.crash)
        _append(disk.kill(), image.session, opened, forger)


def _store(disk: SimDisk) -> Store:
    return Store.open(PATH, fs=disk, clock=ManualClock(), create=False)


def _read_only(disk: SimDisk, session: str, before: dict[str, bytes], forger: bool) -> None:
    """A reader needs no lock and changes nothing, whatever it finds."""
    with contextlib.suppress(*_REFUSALS), _store(disk).reader(session) as reader:
        for record in reader.records():
            assert record.seq > 0
    store = None
    with contextlib.suppress(*_REFUSALS):
        store = _store(disk)
    if store is not None:
        store.check(deep=True)
    assert files_of(disk) == before, "reading or checking it has changed it"


def _open(disk: SimDisk, session: str, before: dict[str, bytes], forger: bool) -> Opened:
    handle = _store(disk).session(session)
    after = files_of(disk)
    directory = f"{PATH}/{session_dir_name(session)}"
    for tail in handle.recovery.torn:
        name, kept = tail.path[len(PATH) + 1 :], after.get(tail.kept[len(PATH) + 1 :])
        assert kept == before[name][tail.offset :], f"what was cut from {name} is not what was kept"
        assert tail.length == len(before[name]) - tail.offset > 0
    for aside in handle.recovery.set_aside:
        assert after[aside.kept[len(PATH) + 1 :]] == before[aside.path[len(PATH) + 1 :]], "set aside, and changed"
    for name, data in after.items():
        if name in before and not before[name].startswith(data):
            raise AssertionError(f"{directory}: {name} holds what was never written there")
    gone = {name for name in before if name not in after and name.endswith(".zst")}
    told_of = {aside.path for aside in handle.recovery.set_aside} | {*handle.recovery.swept}
    assert {f"{PATH}/{name}" for name in gone} <= told_of, f"{gone} are gone, and nothing was said"
    return Opened(after, _records(disk, session), handle.scopes())


def _records(disk: SimDisk, session: str) -> list[LogRecord] | None:
    try:
        with _store(disk).reader(session) as reader:
            return [*reader.records()]
    except OpenFailed:
        return []
    except CorruptLog:
        return None


def _why(told: Told | None, before: dict[str, bytes], image: Image, error: ScopelogError, forger: bool) -> None:
    """Whether the refusal is one that the bytes give reason for."""
    assert error.cause and error.remedy
    if forger or STORE_FILE not in before or told is None:
        return
    header = told.header
    ours = (header.kind, header.session) == ("main", image.session)
    assert told.verdict == "corrupt" or not ours or not isinstance(error, CorruptLog), f"refused, and no proof: {error}"


def _check_end(opened: Opened, before: dict[str, bytes], told: Told | None, image: Image, forger: bool) -> None:
    name = f"{session_dir_name(image.session)}/main.zst"
    if name not in before or told is None:
        assert name not in before, "a main log without a header was opened"
        return
    if forger:
        return
    if told.verdict == "corrupt":
        findings = _store(lay(image)).check()
        assert any(finding.severity == "corrupt" for finding in findings), "damage that nobody ever finds"
        return
    assert len(opened.files[name]) >= told.end, "more was cut than the torn tail"
    if opened.records is None:
        harmed = [tell(data) for sidecar, data in before.items() if sidecar.endswith(SCOPE_SUFFIX)]
        assert any(one is not None and one.verdict == "corrupt" for one in harmed), "nothing is harmed, nothing is read"
        return
    mine = [(record.seq, record.value) for record in opened.records if record.scope is None]
    theirs = [(record.sequence, record.value) for record in records(told) or []]
    assert mine == theirs, "the records of main are not those of its chain"
    _check_misplaced(opened, before, told, image)
    alive = {record.scope for record in opened.records if record.scope is not None}
    known: dict[str, list[list[int]]] = {}
    for sidecar, data in before.items():
        if sidecar.endswith(SCOPE_SUFFIX) and (one := tell(data)) is not None:
            known.setdefault(one.header.scope, []).append([record.sequence for record in records(one) or []])
    for scope in alive:
        seen = [record.seq for record in opened.records if record.scope == scope]
        assert any(seen == life[: len(seen)] for life in known.get(scope or "", [])), f"{scope!r}: no such life"


def _check_misplaced(opened: Opened, before: dict[str, bytes], told: Told, image: Image) -> None:
    """Sidecars of another name, of another session, or of a main log that is longer than ours are set aside."""
    for name in image._replace(files=before).sidecars:
        one = tell(before[name])
        first = scope_file_sequence(name.rpartition("/")[2])
        if one is None or first is None:
            assert one is not None or name not in opened.files, f"{name} has no header, and is still there"
            continue
        header, main = one.header, told.header
        ours = (header.kind, header.store, header.session) == ("scope", main.store, main.session)
        last = max(told.frames[-1].last, main.high, main.floor)
        if not ours or header.first != first or max(header.base, header.after) > last:
            assert name not in opened.files, f"{name} does not belong here, and is still there"


def _once_more(disk: SimDisk, session: str, opened: Opened) -> None:
    again = disk.kill()
    handle = _store(again).session(session)
    assert files_of(again) == opened.files, "recovery, made twice, ends in other bytes"
    assert not (handle.recovery.torn or handle.recovery.set_aside), "there is something left to be recovered"
    assert (_records(again, session), handle.scopes()) == (opened.records, opened.scopes)


def _die_and_open(disk: SimDisk, session: str, opened: Opened, step: int) -> None:
    """The same bytes as one recovery that nothing came between."""
    disk.crash_at(disk.steps + step)
    with contextlib.suppress(SimCrash):
        _store(disk).session(session)
    again = disk.kill()
    handle = _store(again).session(session)
    assert files_of(again) == opened.files, f"a death in step {step} of recovery has changed its end"
    assert (_records(again, session), handle.scopes()) == (opened.records, opened.scopes)


def _append(disk: SimDisk, session: str, opened: Opened, forger: bool) -> None:
    """Appends go on behind what was there, never on top of it."""
    try:
        with _store(disk).session(session) as handle:
            receipt = handle.commit([_PROBE.set("here")])
            assert receipt.first > max((record.seq for record in opened.records or []), default=0)
            if handle.scopes():
                scope = ephemeral(handle.scopes()[0])
                handle.commit([scope.value("fuzz", "probe").set("there")])
    except ScopelogError:
        assert forger, "a sound log takes no commit"  # of a forged one the sequences may be used up
        return
    with _store(disk).session(session) as handle:
        assert handle.get(_PROBE) == "here"
        assert handle.durable_seq(SESSION) >= receipt.last
    now = [record for record in _records(disk, session) or [] if record.namespace != "fuzz"]
    assert now == (opened.records or []), "after an append other records are read than before"
