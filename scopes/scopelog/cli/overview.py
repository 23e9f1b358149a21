"""The commands that show a store as a whole: ls, stat, index."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, cast

import click

from ..listing import SORTS, Sort
from . import indexing, looking
from .options import JSON, STORE, moment_given
from .sessions import Shown, Wanted
from .sessions import ls as list_sessions

_BYTES: Final = click.IntRange(min=0, max=2**63 - 1)
_time = partial(click.option, metavar="TIME", callback=moment_given)


@click.command()
@STORE
@click.option("-l", "--long", is_flag=True, help="Show what is known of each session.")
@click.option("--id", "session", metavar="TEXT", help="Only ids that contain TEXT, or match it if it holds *, ? or [.")
@click.option("--name", metavar="TEXT", help="Only names that contain TEXT, or match it.")
@click.option("--label", "labels", metavar="KEY[=VALUE]", multiple=True, help="Only with this label. May be repeated.")
@click.option(
    "--created-since",
    metavar="TIME",
    callback=moment_given,
    help="Made then or later; ISO 8601 or ms since 1970.",
)
@_time("--created-until", help="Made before.")
@_time("--updated-since", help="Written to then or later.")
@_time("--updated-until", help="Not written to since.")
@click.option("--min-bytes", type=_BYTES, help="Main logs of that size, or larger.")
@click.option("--max-bytes", type=_BYTES, help="Main logs of that size, or smaller.")
@click.option("--min-elements", type=_BYTES, help="So many elements of lists, or more.")
@click.option("--max-elements", type=_BYTES, help="So many elements of lists, or fewer.")
@click.option("--sort", type=click.Choice(SORTS), default="id", show_default=True, help="By what to sort.")
@click.option("-r", "--reverse", is_flag=True, help="The last first.")
@click.option("-n", "--limit", type=_BYTES, help="So many at most.")
@JSON
def ls(store: str, long: bool, as_json: bool, **options: Any) -> None:
    """List the sessions of a store, one a line.

    With --long there are the columns session, name, created, updated, commits, elements, bytes and labels; where
    standard output is no terminal they are parted by tabs and have no headings. updated is the time of the last commit
    or window of the session scope; commits counts both; elements were appended to lists, dropped ones included; bytes
    are those of the main log, without preallocated space. Ephemeral scopes are not counted: ask stat. With --json there
    is an object a line: session, and with --long name, labels, created_ms, updated_ms, commits, elements, frames,
    syncs, bytes.

    Listed by id, sessions are shown as they are found. A session that cannot be read is named on standard error, and
    the exit code is 3, or 2 where it is damaged; damage is met only where more than the id is shown or asked for.
    """
    wanted = Wanted(
        options["session"],
        options["name"],
        options["labels"],
        (options["created_since"], options["created_until"]),
        (options["updated_since"], options["updated_until"]),
        (options["min_bytes"], options["max_bytes"]),
        (options["min_elements"], options["max_elements"]),
    )
    shown = Shown(cast(Sort, options["sort"]), options["reverse"], options["limit"], long, as_json)
    list_sessions(store, wanted, shown)


@click.command()
@STORE
@click.argument("session", required=False)
@JSON
def stat(store: str, session: str | None, as_json: bool) -> None:
    """Print sizes, counts and positions: of every session of a store, or of one.

    Of a store there is a row a session, with the columns session, log_bytes, unread_bytes, scopes_alive, last_seq,
    commits, elements and created; where standard output is no terminal they are parted by tabs and have no headings.
    With --json the state of the index is there, too. A session that cannot be read is named on standard error, and the
    exit code is 3, or 2 where damage was met first.

    log_bytes counts frames, without preallocated space, and main_bytes those of the session scope. unread_bytes lie
    behind the last whole frames and are none: 0, but for an instant under a writer at work; else a torn tail or
    damage, which check tells apart. last_seq is the last sequence stored, durable_seq the last one of the session
    scope that the log itself proves to be on disk. epoch counts the opens for writing. scopes_alive and scopes are
    the ephemeral scopes that were not retired, scope_bytes the sizes of their logs. created and updated (with --json
    created_ms and updated_ms, since 1970) are the session's birth and the last commit or window of its session scope.

    Of the session scope: frames; commits, which counts commits and windows; elements appended to lists, dropped ones
    included; syncs that the log itself proves, by marks in later frames: those of the writer's handle, which are more,
    are told by record. index_covers is up to where the index speaks of the main log, index_behind the bytes that are
    read without it.
    """
    looking.stat(store, session, as_json)


@click.group()
def index() -> None:
    """Look at the index of a store, derive it again, or remove it.

    The index makes large sessions quick to open and many sessions quick to list. It is derived from the logs and proves
    nothing: without it all answers are the same. It comes into being by itself where it is of use.
    """


@index.command()
@STORE
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@JSON
def rebuild(store: str, sessions: tuple[str, ...], as_json: bool) -> None:
    """Derive the index again from the logs: of these sessions, or all of it.

    It works while sessions are written to. Each session of which something is covered is named when it is done. With
    --json there is an object for each session (session, bytes, covered_bytes) and a last one with "done": true,
    sessions, log_bytes, seconds, and the state of the index.

    A session that cannot be read is named on standard error, and the exit code is 3, or 2 where it is damaged.
    """
    indexing.rebuild_index(store, sessions, as_json)


@index.command("stat")
@STORE
@JSON
def stat_index(store: str, as_json: bool) -> None:
    """Print the state of the index.

    present: whether there is one that can be used. path: its directory. bytes: of its file. map_bytes: address space
    that it may take, neither memory nor disk. entries: sessions that ls need not look into. sessions: those whose main
    logs are covered, which only long ones are; covered_bytes: how much of them. dropped: why the index is not used.
    """
    indexing.stat_index(store, as_json)


@index.command()
@STORE
def discard(store: str) -> None:
    """Remove the index. It comes into being again where it is of use."""
    indexing.discard_index(store)
