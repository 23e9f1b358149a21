"""cat, ls, stat, check and rm: what there is, without the writer's lock (rm takes it)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from scopelog_engine.check import NOTE, UNREAD, worst
from scopelog_engine.durability import Durability
from scopelog_engine.layout import MAIN_FILE, SESSION_SUFFIX, check_id, session_dir_name

from ..errors import CorruptLog, ForeignFile, NewerFormat, NoSuchSession, NotAStore, ReadFailed, ScopelogError
from ..session import LogRecord
from ..store import Store
from . import output
from .output import printable

_VERDICTS: Final = ("sound", "torn", "corrupt", "unread")
UNCHECKED: Final = 3


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Store]:
    """The store there is; refusals get remedies that fit a command which makes none."""
    try:
        with Store.open(path, create=False) as store:
            yield store
    except NotAStore as error:
        raise NotAStore(error.cause, error.remedy.removesuffix(", or an empty one")) from error
    except NoSuchSession as error:
        raise NoSuchSession(error.cause, f"scopelog ls {printable(path)} lists the sessions there are") from error


def cat(path: str, session: str, scope: str | None, address: tuple[str, str] | None, as_json: bool) -> None:
    """Every record that is stored, in order of sequence; damage is raised after the good prefix was printed."""
    with _opened(path) as store, store.reader(session) as reader:
        show = _show_json if as_json else _show_styled if output.is_terminal() else _show_plain
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


def ls(path: str, as_json: bool) -> None:
    """The sessions of a store, sorted; reads names, no logs. Raises :class:`ReadFailed` if some could not be seen."""
    with _opened(path) as store:
        for session in store.sessions():
            if as_json:
                output.put_json({"session": session})
            else:
                output.put_text(printable(session))
        unread = _unreadable(store)
        if unread is not None:
            raise unread


def _unreadable(store: Store) -> ReadFailed | None:
    """What to raise if there are directories of sessions that cannot be looked into; each is named at once."""
    count = 0
    for name in sorted(os.listdir(store.path)):
        directory = os.path.join(store.path, name)
        if not name.endswith(SESSION_SUFFIX):
            continue
        try:
            os.scandir(directory).close()
            os.stat(os.path.join(directory, MAIN_FILE))
        except (FileNotFoundError, NotADirectoryError):
            continue  # no session, or deleted meanwhile
        except OSError as error:
            count += 1
            output.say(f"note: {printable(directory)} could not be read ({printable(error.strerror or str(error))})")
    if not count:
        return None
    return ReadFailed(f"{output.count(count, 'session')} could not be read", "check the permissions and the disk")


def stat(path: str, session: str | None, as_json: bool) -> None:
    """Sizes and positions of one session, or of each and their sum. What cannot be read is named, then raised."""
    with _opened(path) as store:
        if session is not None:
            found = _stat(store, session)
            if as_json:
                output.put_json(found)
            else:
                output.put_table(("", ""), [(_heading(name), _cell(name, value)) for name, value in found.items()])
            return
        damage: ScopelogError | None = None
        rows: list[dict[str, Any]] = []
        for name in store.sessions():
            try:
                rows.append(_stat(store, name))
            except NoSuchSession:
                continue  # deleted meanwhile
            except ScopelogError as error:
                if damage is not None:
                    output.say(f"note: {printable(error.cause)}")
                damage = damage or error
        total = sum(row["log_bytes"] for row in rows)
        if as_json:
            output.put_json({"store": store.path, "id": store.id, "log_bytes": total, "sessions": rows})
        else:
            rows_of_text = ([_cell(column, row[column]) for column in _COLUMNS] for row in rows)
            output.put_table([_heading(column) for column in _COLUMNS], rows_of_text)
        damage = damage or _unreadable(store)
        if damage is not None:
            raise damage


def _stat(store: Store, session: str) -> dict[str, Any]:
    with store.reader(session) as reader:
        return {
            "session": session,
            **reader.stats(),
            "durable_seq": reader.durable_seq(durability=Durability.POWER),
            "scopes": reader.scopes(),
        }


_COLUMNS: Final = ("session", "log_bytes", "unread_bytes", "scopes_alive", "last_seq", "created_ms")


def _heading(name: str) -> str:
    return "created" if name == "created_ms" else name  # shown as a date


def _cell(name: str, value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if name == "created_ms" and isinstance(value, int):
        return moment(value)
    return str(value)


def check(path: str, session: str | None, as_json: bool) -> int:
    """Verify every byte; returns 0 sound, 1 torn tails only, 2 corruption, 3 if part of it could not be read."""
    try:
        with _opened(path) as store:
            found = store.check(session)
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


def require(path: str, session: str) -> None:
    """Raise :class:`NoSuchSession` unless the session has a log, whatever state that is in."""
    with _opened(path) as store:
        main = os.path.join(store.path, session_dir_name(check_id("session", session)), MAIN_FILE)
        if not os.path.exists(main):
            raise NoSuchSession(f"there is no session {session!r}", "")


def rm(path: str, session: str) -> None:
    """Remove every file of a session."""
    with _opened(path) as store:
        store.delete_session(session)
    output.put_text(f"removed {printable(session)}")
