"""compact, tidy, copy, salvage: what a store gives back, and what is made of a session."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import click

from scopelog_engine.layout import UNNAMED
from scopelog_engine.rescue import Missing
from scopelog_engine.salvage import SalvagedLog

from ..addresses import ephemeral
from ..errors import InvalidInput
from ..store import Store
from . import output
from .looking import Survey, opened, require, to_write
from .options import JSON, SESSION, STORE
from .output import printable


class _Log(NamedTuple):
    scope: str | None
    before: int
    after: int


@click.command()
@STORE
@click.argument("session", required=False)
@JSON
def compact(store: str, session: str | None, as_json: bool) -> None:
    """Write the logs of every session of a store anew, or of one, without what is void.

    Void are superseded and deleted values, trimmed and deleted lists, and retirements that nothing depends on any more.
    Sequences, tags and times stay. The session scope is compacted, and every ephemeral scope that is alive. Readers go
    on meanwhile; a crash leaves the old file or the new one. Takes the sessions' locks.

    With --json there is an object a line for each log: session, scope (null for the session scope), before and after,
    in bytes.

    A session that is in use or cannot be read is named on standard error, and the exit code is 4, 3, or 2 where it is
    damaged; the others are compacted.
    """
    if session is not None:
        require(store, session)
    total = [0, 0]
    with opened(store) as opened_store:
        survey = Survey(opened_store, session)
        for name, logs in survey.each(_compact):
            for log in logs:
                total[0] += log.before
                total[1] += log.after
                if as_json:
                    output.put_json({"session": name, **log._asdict()})
                else:
                    what = "" if log.scope is None else f" scope {log.scope}"
                    output.put_text(printable(f"{name}{what}: {log.before:,} -> {log.after:,} bytes"))
            output.flush()
        if not as_json:
            output.put_text(f"{output.count(max(0, total[0] - total[1]), 'byte')} given back")
        survey.finish()


def _compact(store: Store, name: str) -> list[_Log]:
    remedy = "stop that process, or have it compact: session.compact(), or compact_growth"
    with to_write(store, name, remedy) as session:
        found = [_Log(None, *session.compact())]
        return found + [_Log(scope, *session.compact(ephemeral(scope))) for scope in session.scopes()]


@click.command()
@STORE
@click.argument("session", required=False)
@click.option("--yes", is_flag=True, help="Do not ask; needed where nobody can answer.")
@JSON
def tidy(store: str, session: str | None, yes: bool, as_json: bool) -> None:
    """Remove what recoveries have kept aside, in every session of a store or in one. Asks first.

    That is torn tails (*.torn) and files of scopes that did not belong (*.aside); check lists them. They are evidence,
    and the last copy of bytes that are in no log: look at them before. Together with compact nothing that was deleted
    or trimmed is left in a file. Takes the sessions' locks.

    With --json there is an object a line for each file removed: session and path.

    A session that is in use is named on standard error, and the exit code is 4; the others are tidied.
    """
    if session is not None:
        require(store, session)
    if not yes:
        where = f"the session {printable(session)}" if session is not None else "every session"
        click.confirm(f"Remove the evidence that recoveries kept in {where} of {store}?", abort=True, err=True)
    removed = 0
    with opened(store) as opened_store:
        survey = Survey(opened_store, session)
        for name, paths in survey.each(Store.tidy):
            removed += len(paths)
            for path in paths:
                if as_json:
                    output.put_json({"session": name, "path": path})
                else:
                    output.put_text(printable(f"removed {path}"))
        if not as_json:
            output.put_text(f"{output.count(removed, 'file')} removed")
        survey.finish()


@click.command()
@STORE
@SESSION
@click.argument("new")
@click.option("--upto", metavar="SEQ", type=click.IntRange(min=0), help="Nothing above this sequence.")
@JSON
def copy(store: str, session: str, new: str, upto: int | None, as_json: bool) -> None:
    """Copy the session scope of SESSION into a new session NEW of the same store.

    Sequences, tags and times stay; ephemeral scopes are left out. The source may be in use. With --upto the copy is the
    session as it was: SEQ must be the last sequence of a commit or a window (cat prints them), and not lie below what
    was compacted.

    With --json there is one object: session, new and upto, the copy's last sequence.
    """
    with opened(store) as opened_store:
        last = opened_store.copy(session, new, upto=upto)
    if as_json:
        output.put_json({"session": session, "new": new, "upto": last})
    else:
        output.put_text(printable(f"{new}: copied up to sequence {last}"))


@click.command()
@STORE
@SESSION
@click.argument("new", required=False)
@click.option("--into", metavar="STORE", help="Make it in that store, on another disk say; it is made if need be.")
@JSON
def salvage(store: str, session: str, new: str | None, into: str | None, as_json: bool) -> None:
    """Make a new session NEW of everything that verifies in SESSION, on both sides of any damage.

    Salvage before anybody opens SESSION for writing: that cuts torn tails and sets files aside, which are not looked
    into. Without NEW nothing is written: what would come along, and what is missing, is told. SESSION is neither
    changed nor locked; where the disk cannot read it, that place is stepped over. Sequences, tags and times stay.
    Ephemeral scopes that are not over come along. NEW appears when all of it is durable, or not at all.

    Each log is told with the writes that verify, then each missing place: bytes, sequences, and why. Where an index
    frame tells what stood there, lists and values are named that have lost something; deletions that it tells of are
    made again. Lists and values whose names stood in a missing place come along under scopelog.salvaged.

    Exit code 0 says that it was done, whether something is missing or not; --json tells.

    With --json there is one object: session, new, last, logs, missing, lost, unnamed, unknown, time_lost
    and kept (scopes/README.md, "Salvage").
    """
    if into is not None and new is None:
        raise InvalidInput("--into needs NEW: without it nothing is written", "name the new session")
    with opened(store) as source, contextlib.ExitStack() as stack:
        target = stack.enter_context(Store.open(into)) if into is not None else None
        found = source.salvage(session, new, into=target)
    if as_json:
        output.put_json(found.as_dict())
        return
    for log in found.logs:
        output.put_text(printable(_log_line(log)))
    for gap in found.missing:
        output.put_text(printable(_missing_line(gap)))
    for lost in found.lost:
        what = f"{output.count(lost.number, 'element')} of the list" if lost.kind == "list" else "the newest value of"
        output.put_text(printable(f"lost: {what} {lost.namespace}/{lost.key}, of {lost.path}"))
    for entry in found.unnamed:
        where = f"{output.count(entry.number, 'write')} to a {entry.kind} are under {UNNAMED}/{entry.key}"
        output.put_text(printable(f"unnamed: {entry.path}: {where}"))
    if found.unknown:
        output.put_text(f"left out: {output.count(found.unknown, 'write')} of a later release")
    if found.time_lost:
        output.put_text("note: the main log's header is lost: times count from 1970, not from when things were written")
    for path in found.kept:
        output.put_text(printable(f"note: {path}: kept by an earlier recovery, not looked into"))
    verdict = "something is missing or in doubt" if found else "nothing is missing"
    if found.kept and not found:
        verdict += " but what earlier recoveries kept aside"
    output.put_text(printable(verdict if new is None else f"{new}: salvaged up to sequence {found.last}; {verdict}"))


def _log_line(log: SalvagedLog) -> str:
    what = f"scope {log.scope}" if log.scope else "main log"
    if log.left_out:
        return f"left out: {log.path}: {what}: {log.left_out}"
    doubt = f"; in doubt: {log.doubtful}" if log.doubtful else ""
    return f"{log.path}: {what}: {output.count(log.records, 'write')} up to sequence {log.last}{doubt}"


def _missing_line(gap: Missing) -> str:
    between = f"between sequences {gap.after} and {gap.before}" if gap.before else f"after sequence {gap.after}"
    size = f"{output.count(gap.end - gap.offset, 'byte')} at offset {gap.offset}"
    proof = "damage" if gap.proved else "not known to have been durable"
    return f"missing: {gap.path}: {size}, {between}: {gap.reason}: {gap.detail} ({proof})"
