"""The commands and their options: all of them are here or added here. What they do stands in modules of its own."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from . import following, housekeeping, interrupted, looking, memory, output, overview, recording, scripts, watching
from .options import (
    DEFAULT_KEY,
    DEFAULT_NAMESPACE,
    FILE,
    JSON,
    LEVELS,
    SESSION,
    STORE,
    Commands,
    address_of,
    input_of,
    level_of,
)
from .streaming import KINDS, Kind


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


@click.group(cls=Commands, epilog=output.EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="scopelog")
def cli() -> None:
    """Record into, look at and check stores of scopelog: directories that hold one log a session."""


@cli.command()
@STORE
@SESSION
@click.argument("file", type=FILE, default="-")
@click.option(
    "--from",
    "kind",
    type=click.Choice(KINDS),
    help="The lines are those of assistant messages: they go through the reducer, and settle as messages.",
)
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
    type=LEVELS,
    help="process: a written line survives kill -9. power: it survives a power loss, too; settled messages always do. "
    "[default: power, for an ephemeral scope and with --from process]",
)
@JSON
@click.pass_context
def record(
    ctx: click.Context,
    store: str,
    session: str,
    file: str,
    kind: Kind | None,
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

    With --from each line is an event of an assistant's message, or a frame; null, which stands for no frame, is
    skipped. The recording is one operation in the lane 'main'. What streams can be recovered after a kill; a message
    settles as it ends, in one commit, with the message of its done or error. Frames have no end: they settle at the
    next start or at the end of the input, as toolUse, stop, or error if something of the message is not complete. A
    signal and a line that is refused settle what there is as error. Operations that an earlier recording left
    unsettled are settled first. A line that changes nothing counts as written with the next that does.

    With --json there is an object a line for each window stored (lines, written, seq, bytes_in, bytes_written,
    frames, syncs, sync_seconds; torn_bytes is what was cut and kept aside when the session was opened, recovered how
    many operations were settled first), and a last one with "done": true and what stopped it: end, error, SIGINT or
    SIGTERM.
    """
    if kind is not None:
        _refuse_with_from(ctx, "scope", "list_name")
    namespace, key = address_of(list_name)
    request = recording.Request(store, session, scope, namespace, key, window, level_of(durability), as_json, kind)
    with input_of(file) as descriptor:
        ctx.exit(recording.record(request, descriptor))


def _refuse_with_from(ctx: click.Context, *names: str) -> None:
    for option in ctx.command.params:
        if option.name in names and ctx.get_parameter_source(option.name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{option.opts[0]} means nothing with --from: messages go to a lane.")


@cli.command()
@STORE
@click.argument("session", required=False)
@JSON
def recover(store: str, session: str | None, as_json: bool) -> None:
    """Print the messages that were interrupted: in every session of a store, or in one. Changes nothing.

    Of each operation that was begun and has not ended there are the message that was streaming, as far as it is
    stored, what its tools had put out, and what of it could not be read. A block or call that was not complete is
    marked (unfinished). Takes no lock: beside a writer at work it shows what has not settled yet. The next recording
    with --from settles what it left in its lane.

    With --json there is an object a line: session, operation, lane, response (null, or entryId, message: as it
    settles, fold: as it was, sendable: as a provider takes it back), tools (invocationId, output, memos), answers
    (tool results for the calls that have none) and problems.

    A session or stream that cannot be read is named on standard error, and the exit code is 3, or 2 where it is
    damaged.
    """
    interrupted.recover(store, session, as_json)


@cli.command()
@STORE
@SESSION
@click.option("--scope", metavar="ID", help="Only what lives in this ephemeral scope.")
@click.option("--list", "list_name", metavar="NAME", help="Only this list; NAME as in record.")
@JSON
def cat(store: str, session: str, scope: str | None, list_name: str | None, as_json: bool) -> None:
    """Print every record of a session in order of sequence.

    Takes no lock: it works while another process writes, and shows what is stored so far. Where damage is met, the
    good prefix is printed, then the error, and the exit code is 2.

    With --json there is an object a line: seq, scope (null for the session scope), namespace, key, kind, op, time (ms
    since 1970), and as it applies element, value, tag, upto and retired.
    """
    looking.cat(store, session, scope, None if list_name is None else address_of(list_name), as_json)


@cli.command(cls=_Check)
@STORE
@click.argument("session", required=False)
@click.option("--deep", is_flag=True, help="Decode every record, too: finds what was written wrongly, and takes long.")
@JSON
@click.pass_context
def check(ctx: click.Context, store: str, session: str | None, deep: bool, as_json: bool) -> None:
    """Verify every byte of a store, or of one session, and change nothing.

    Each finding says file, offset, sequence and reason. "torn" is an un-synced tail that the next recording cuts and
    keeps aside; "corrupt" is proved damage; "unread" could not be read, so that nothing is known of it; a "note" is no
    fault.

    Exit codes: 0 sound, 1 torn tails only, 2 corruption, 3 if it could not look: usage, no such store or session, or
    something unread and nothing corrupt.
    """
    ctx.exit(looking.check(store, session, deep, as_json))


@cli.command()
@STORE
@SESSION
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(store: str, session: str, yes: bool) -> None:
    """Remove a session: every file of it, for ever. Asks first."""
    looking.require(store, session)
    if not yes:
        click.confirm(f"Remove the session {output.printable(session)} of {store}?", abort=True, err=True)
    looking.rm(store, session)


for command in (
    overview.ls,
    overview.stat,
    overview.index,
    scripts.commit,
    scripts.retire,
    scripts.describe,
    housekeeping.compact,
    housekeeping.tidy,
    housekeeping.copy,
    housekeeping.salvage,
    watching.watch,
    following.follow,
    memory.memory,
):
    cli.add_command(command)
