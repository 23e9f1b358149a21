"""cat, stat, check and rm: what there is, without the writer's lock (rm takes it)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from scopelog_engine.check import DAMAGE, NOTE, UNREAD, Finding, worst
from scopelog_engine.durability import Durability
from scopelog_engine.layout import MAIN_FILE, check_id, session_dir_name

from ..addresses import SESSION
from ..errors import (
    CorruptLog,
    ForeignFile,
    NewerFormat,
    NoSuchSession,
    NotAStore,
    ReadFailed,
    ScopelogError,
    StoreLocked,
)
from ..session import LogRecord, Session, SessionReader
from ..store import Store
from . import output
from .output import printable

_VERDICTS: Final = ("sound", "torn", "corrupt", "unread")
UNCHECKED: Final = 3
T = TypeVar("T")


@contextlib.contextmanager
def opened(path: str) -> Iterator[Store]:
    """The store there is; refusals get remedies that fit a command which makes none."""
    try:
        with Store.open(path, create=False) as store:
            yield store
    except NotAStore as error:
        raise NotAStore(error.cause, error.remedy.removesuffix(", or an empty one")) from error
    except NoSuchSession as error:
        raise NoSuchSession(error.cause, f"scopelog ls {printable(path)} lists the sessions there are") from error


class Survey:
    """A look at one session, or at each. What stands against one of several is kept until the others were shown."""

    def __init__(self, store: Store, session: str | None = None) -> None:
        self.damage: ScopelogError | None = None
        """The first error, if there was one."""
        self._store = store
        self._session = session
        self._unreadable: list[Finding] = []

    def each(self, look: Callable[[Store, str], T]) -> Iterator[tuple[str, T]]:
        """What ``look`` finds, by session. The one that was asked for raises; of several those deleted meanwhile are
        left out, and those that fail are noted."""
        if self._session is not None:
            yield self._session, look(self._store, self._session)
            return
        for name in self._store.sessions(unreadable=self._unreadable):
            try:
                found = look(self._store, name)
            except NoSuchSession:
                continue
            except ScopelogError as error:
                self.note(error)
            else:
                yield name, found

    def note(self, error: ScopelogError) -> None:
        """The first one is raised in the end; others are named here."""
        if self.damage is not None:
            output.say(f"note: {printable(error.cause)}")
        self.damage = self.damage or error

    def finish(self) -> None:
        """Raise what was noted, or what :func:`raise_unread` does."""
        if self.damage is not None:
            raise self.damage
        raise_unread(self._unreadable)


def read_beside(store: Store, session: str, look: Callable[[SessionReader], T]) -> T:
    """What ``look`` finds in a session that may be written meanwhile; says so if not all of it could be read."""
    with store.reader(session) as reader:
        found = look(reader)
        unread = reader.stats()["unread_bytes"]
    if unread:
        what = f"{output.count(unread, 'byte')} could not be read: a writer at work, a torn tail or damage; ask check"
        output.say(f"note: {printable(session)}: {what}")
    return found


def cat(path: str, session: str, scope: str | None, address: tuple[str, str] | None, as_json: bool) -> None:
    """Every record that is stored, in order of sequence; damage is raised after the good prefix was printed."""
    with opened(path) as store, store.reader(session) as reader:
        show = shower(as_json)
        for record in reader.records():
            if scope is not None and record.scope != scope:
                continue
            if address is not None and (record.kind, record.namespace, record.key) != ("list", *address):
                continue
            show(record)
        unread = reader.stats()["unread_bytes"]
    if unread:
        output.say(
            f"note: {unread} bytes follow that are no whole frame: a writer at work, a torn tail or damage; ask check"
        )


def shower(as_json: bool) -> Callable[[LogRecord], None]:
    """What prints records: as JSON, for a terminal, or plainly."""
    return _show_json if as_json else _show_styled if output.is_terminal() else _show_plain


def record_object(record: LogRecord) -> dict[str, Any]:
    """A record as ``cat --json`` prints it: what does not apply to its operation is left out."""
    found: dict[str, Any] = {
        "seq": record.seq,
        "scope": record.scope,
        "namespace": record.namespace,
        "key": record.key,
        "kind": record.kind,
        "op": record.op,
        "time": record.time,
    }
    if record.op == "append":
        found["element"] = record.value
    elif record.op == "set":
        found["value"] = record.value
    for name in ("tag", "upto", "retired"):
        argument = getattr(record, name)
        if argument is not None:
            found[name] = argument
    return found


def _show_json(record: LogRecord) -> None:
    output.put_json(record_object(record))


def _cells(record: LogRecord) -> tuple[str, str, str, str, str]:
    where = "" if record.namespace is None else f"{record.namespace}/{record.key}"
    what = ""
    if record.op in ("append", "set"):
        what = output.as_json(record.value).decode("utf-8")
    elif record.op == "trim":
        what = f"up to {record.upto}"
    elif record.op == "retire":
        where = record.retired or ""
    op = record.op if record.tag is None else f"{record.op} [{record.tag}]"
    seq = f"{record.seq:>8}"
    return seq, moment(record.time), record.scope or "-", f"{op} {where}".rstrip(), what


def _show_plain(record: LogRecord) -> None:
    output.put_text("  ".join(map(printable, _cells(record))).rstrip())


def _show_styled(record: LogRecord) -> None:
    from rich.console import Console
    from rich.text import Text

    styles = ("dim", "dim", "cyan", "bold", "")
    cells = zip(map(printable, _cells(record)), styles, strict=True)
    line = Text("  ").join(Text(cell, style) for cell, style in cells)
    output.flush()
    Console(soft_wrap=True, highlight=False).print(line)


def moment(ms: int) -> str:
    """A wall-clock time as ISO 8601 in UTC; the bare number where a clock was set beyond what has a date."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def raise_unread(unreadable: list[Finding]) -> None:
    """Name the sessions that a list is without, and raise what stands against the first that is damaged, or against
    reading: :class:`CorruptLog` or :class:`ReadFailed`."""
    damage: CorruptLog | None = None
    count = 0
    for found in unreadable:
        if found.severity == DAMAGE and damage is None:
            damage = CorruptLog(
                path=found.path, offset=found.offset, sequence=found.sequence, reason=found.reason, detail=found.detail
            )
        elif found.severity == UNREAD:
            count += 1
            output.say(f"note: {printable(os.path.dirname(found.path))} could not be read ({printable(found.detail)})")
        else:
            output.say(f"note: {printable(found.path)}: {printable(found.detail)}")
    if damage is not None:
        raise damage
    if count:
        raise ReadFailed(f"{output.count(count, 'session')} could not be read", "check the permissions and the disk")


def stat(path: str, session: str | None, as_json: bool) -> None:
    """Sizes and positions of one session, or of each and their sum. What cannot be read is named, then raised."""
    with opened(path) as store:
        if session is not None:
            found = _stat(store, session)
            if as_json:
                output.put_json(found)
            else:
                output.put_table(("", ""), [(_heading(name), _cell(name, value)) for name, value in found.items()])
            return
        survey = Survey(store)
        rows = [row for _, row in survey.each(_stat)]
        total = sum(row["log_bytes"] for row in rows)
        if as_json:
            index = store._store.index
            state = index.state() if index is not None else None
            output.put_json({"store": store.path, "id": store.id, "log_bytes": total, "index": state, "sessions": rows})
        else:
            rows_of_text = ([_cell(column, row[column]) for column in _COLUMNS] for row in rows)
            output.put_table([_heading(column) for column in _COLUMNS], rows_of_text)
        survey.finish()


def _stat(store: Store, session: str) -> dict[str, Any]:
    with store.reader(session) as reader:
        info, sizes, covers = reader.info(), reader._reader.sizes(), reader._reader.index_covers()
        main = sizes.pop(SESSION.id)
        return {
            "session": session,
            "name": info.name,
            "labels": info.labels,
            **reader.stats(),
            "updated_ms": info.updated,
            "frames": info.frames,
            "commits": info.commits,
            "elements": info.elements,
            "syncs": info.syncs,
            "durable_seq": reader.durable_seq(durability=Durability.POWER),
            "scopes": reader.scopes(),
            "scope_bytes": sizes,
            "index_covers": covers,
            "index_behind": main - covers,
        }


_COLUMNS: Final = (
    "session",
    "log_bytes",
    "unread_bytes",
    "scopes_alive",
    "last_seq",
    "commits",
    "elements",
    "created_ms",
)


_DATES: Final = {"created_ms": "created", "updated_ms": "updated"}  # shown as dates


def _heading(name: str) -> str:
    return _DATES.get(name, name)


def _cell(name: str, value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return output.as_json(value).decode("utf-8") if value else ""
    if name in _DATES and isinstance(value, int):
        return moment(value) if value else ""
    return "" if value is None else str(value)


def check(path: str, session: str | None, deep: bool, as_json: bool) -> int:
    """Verify every byte; returns 0 sound, 1 torn tails only, 2 corruption, 3 if part of it could not be read."""
    try:
        with opened(path) as store:
            found = store.check(session, deep=deep)
            status = worst(found)
            findings = [finding.as_dict() for finding in found]
    except (CorruptLog, ForeignFile, NewerFormat) as error:  # the store's own header: nothing could be opened by it
        status = 2
        findings = [_header_finding(path, error)]
    except ScopelogError as error:
        output.fail(error, code=UNCHECKED)
    if as_json:
        output.put_json({"verdict": _VERDICTS[status], "status": status, "findings": findings})
        return status
    for one in findings:
        where = f"offset {one['offset']}, after sequence {one['sequence']}, "
        if one["severity"] in (NOTE, UNREAD) and not one["offset"]:
            where = ""  # it concerns the whole file
        output.put_text(printable(f"{one['severity']}: {one['path']}: {where}{one['reason']}: {one['detail']}"))
    output.put_text(_VERDICTS[status])
    return status


def _header_finding(path: str, error: ScopelogError) -> dict[str, str | int]:
    return {
        "severity": "corrupt",
        "path": getattr(error, "path", path),
        "offset": getattr(error, "offset", 0),
        "sequence": getattr(error, "sequence", 0),
        "reason": getattr(error, "reason", type(error).__name__),
        "detail": getattr(error, "detail", error.cause),
    }


def to_write(store: Store, session: str, remedy: str) -> Session:
    """The session, open for writing. Raises :class:`StoreLocked`, with a remedy that fits the command."""
    try:
        return store.session(session)
    except StoreLocked as error:
        raise StoreLocked(error.cause, remedy, pid=error.pid, since=error.since) from None


def require(path: str, session: str) -> None:
    """Raise :class:`NoSuchSession` unless the session has a log, whatever state that is in."""
    with opened(path) as store:
        main = os.path.join(store.path, session_dir_name(check_id("session", session)), MAIN_FILE)
        if not os.path.exists(main):
            raise NoSuchSession(f"there is no session {session!r}", "")


def rm(path: str, session: str) -> None:
    """Remove every file of a session."""
    with opened(path) as store:
        store.delete_session(session)
    output.put_text(f"removed {printable(session)}")
