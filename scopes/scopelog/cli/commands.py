"""The commands and their options. What they do stands in :mod:`recording` and :mod:`looking`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

import click

from scopelog_engine.durability import Durability

from ..errors import InvalidAddress, ScopelogError
from . import looking, output, recording

DEFAULT_NAMESPACE: Final = "record"
DEFAULT_KEY: Final = "lines"


class _Commands(click.Group):
    """Turns the errors a user is to expect into a message and an exit code; anything else is a bug and is shown."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                output.flush()
        except BrokenPipeError:
            output.silence()
            raise click.exceptions.Exit(output.PIPE) from None
        except (ScopelogError, OSError) as error:
            output.fail(error)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(output.INTERRUPTED) from None


class _CouldNotLook(click.UsageError):
    exit_code = looking.UNCHECKED


class _Check(click.Command):
    """A usage error of check means that it could not look: its code 2 is kept for corruption."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise _CouldNotLook(error.format_message(), error.ctx) from error


_STORE = click.argument("store", type=click.Path())
_SESSION = click.argument("session")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


@click.group(cls=_Commands, epilog=output.EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="scopelog")
def cli() -> None:
    """Record into, look at and check stores of scopelog: directories that hold one log a session."""


@cli.command()
@_STORE
@_SESSION
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), default="-")
@click.option("--scope", metavar="ID", help="Record into this ephemeral scope instead of the session scope.")
@click.option(
    "--list",
    "list_name",
    metavar="NAME",
    default=f"{DEFAULT_NAMESPACE}/{DEFAULT_KEY}",
    show_default=True,
    help=f"List to append to: NAMESPACE/KEY, or a key in the namespace {DEFAULT_NAMESPACE!r}.",
)
@click.option(
    "--window",
    metavar="MS",
    type=click.FloatRange(0, 60_000),
    default=100.0,
    show_default=True,
    help="How long an element may wait to be stored together with others, in milliseconds.",
)
@click.option(
    "--durability",
    type=click.Choice([level.name.lower() for level in Durability]),
    help="process: a written line survives kill -9. power: it survives a power loss, too. "
    "[default: power, for an ephemeral scope process]",
)
@_JSON
@click.pass_context
def record(
    ctx: click.Context,
    store: str,
    session: str,
    file: str,
    scope: str | None,
    list_name: str,
    window: float,
    durability: str | None,
    as_json: bool,
) -> None:
    """Append the JSON lines of FILE, or of standard input as they arrive, to a list.

    The store and the session are made if need be. Blank lines are skipped; a last line without its newline counts.
    What is stored is what the line says, not its spelling: of a key that an object holds twice the last one counts.
    A line is reported written once it is stored at the scope's level: a kill at any moment loses no such line, and of
    the others at most one window. The first line that is not JSON ends the recording, with those before it stored.

    With --json there is an object a line for each window stored (lines, written, seq, bytes_in, bytes_written,
    frames, syncs, sync_seconds; torn_bytes is what was cut and kept aside when the session was opened), and a last
    one with "done": true and what stopped it: end, error, SIGINT or SIGTERM.
    """
    namespace, key = address_of(list_name)
    level = None if durability is None else Durability[durability.upper()]
    request = recording.Request(store, session, scope, namespace, key, window, level, as_json)
    with _opened(file) as descriptor:
        ctx.exit(recording.record(request, descriptor))


@cli.command()
@_STORE
@_SESSION
@click.option("--scope", metavar="ID", help="Only what lives in this ephemeral scope.")
@click.option("--list", "list_name", metavar="NAME", help="Only this list; NAME as in record.")
@_JSON
def cat(store: str, session: str, scope: str | None, list_name: str | None, as_json: bool) -> None:
    """Print every record of a session in order of sequence.

    Takes no lock: it works while another process writes, and shows what is stored so far. Where damage is met, the
    good prefix is printed, then the error, and the exit code is 2.

    With --json there is an object a line: seq, scope (null for the session scope), namespace, key, kind, op, time (ms
    since 1970), and as it applies element, value, tag, upto and retired.
    """
    looking.cat(store, session, scope, None if list_name is None else address_of(list_name), as_json)


@cli.command()
@_STORE
@_JSON
def ls(store: str, as_json: bool) -> None:
    """List the sessions of a store, one a line.

    A session whose directory cannot be read is named on standard error, and the exit code is 3.
    """
    looking.ls(store, as_json)


@cli.command()
@_STORE
@click.argument("session", required=False)
@_JSON
def stat(store: str, session: str | None, as_json: bool) -> None:
    """Print sizes and positions: of every session of a store, or of one.

    Of a store there is a row a session, with the columns session, log_bytes, unread_bytes, scopes_alive, last_seq and
    created; where standard output is no terminal they are parted by tabs and have no headings. A session that cannot
    be read is named on standard error, and the exit code is 3, or 2 where damage was met first.

    log_bytes counts frames, without preallocated space, and main_bytes those of the session scope. unread_bytes lie
    behind the last whole frames and are none: 0, but for an instant under a writer at work; else a torn tail or
    damage, which check tells apart. last_seq is the last sequence stored, durable_seq the last one of the session
    scope that the log itself proves to be on disk. epoch counts the opens for writing. scopes_alive and scopes are
    the ephemeral scopes that were not retired. created (with --json created_ms, since 1970) is the session's birth.
    """
    looking.stat(store, session, as_json)


@cli.command(cls=_Check)
@_STORE
@click.argument("session", required=False)
@_JSON
@click.pass_context
def check(ctx: click.Context, store: str, session: str | None, as_json: bool) -> None:
    """Verify every byte of a store, or of one session, and change nothing.

    Each finding says file, offset, sequence and reason. "torn" is an un-synced tail that the next recording cuts and
    keeps aside; "corrupt" is proved damage; "unread" could not be read, so that nothing is known of it; a "note" is no
    fault.

    Exit codes: 0 sound, 1 torn tails only, 2 corruption, 3 if it could not look: usage, no such store or session, or
    something unread and nothing corrupt.
    """
    ctx.exit(looking.check(store, session, as_json))


@cli.command()
@_STORE
@_SESSION
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(store: str, session: str, yes: bool) -> None:
    """Remove a session: every file of it, for ever. Asks first."""
    looking.require(store, session)
    if not yes:
        click.confirm(f"Remove the session {output.printable(session)} of {store}?", abort=True, err=True)
    looking.rm(store, session)


def address_of(name: str) -> tuple[str, str]:
    """Namespace and key of a list as the user names it. Raises :class:`InvalidAddress`."""
    namespace, slash, key = name.partition("/")
    if not slash:
        namespace, key = DEFAULT_NAMESPACE, name
    if not namespace or not key:
        raise InvalidAddress(f"{name!r} names no list", "use NAMESPACE/KEY, or a key alone")
    return namespace, key


@contextlib.contextmanager
def _opened(file: str) -> Iterator[int]:
    if file == "-":
        yield recording.standard_input()
        return
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
