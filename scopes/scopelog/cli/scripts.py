"""The commands for scripts that write: commit, retire, describe."""

from __future__ import annotations

import click

from . import committing
from .options import FILE, JSON, LEVELS, SESSION, STORE, input_of, level_of


@click.command()
@STORE
@SESSION
@click.argument("file", metavar="[WRITES]", type=FILE, default="-")
@click.option("--scope", metavar="ID", help="Write to this ephemeral scope instead of the session scope.")
@click.option(
    "--durability",
    type=LEVELS,
    help="process: it survives kill -9. power: it survives a power loss, too. "
    "[default: power, for an ephemeral scope process]",
)
@JSON
def commit(store: str, session: str, file: str, scope: str | None, durability: str | None, as_json: bool) -> None:
    """Store the writes of the file WRITES, or of standard input, as one commit: all of them or none.

    The store and the session are made if need be. WRITES is a JSON array of objects, or JSON lines; each is one of

    \b
    {"op": "append", "list": NAME, "element": ANY, "tag": TEXT}    the tag may be left out
    {"op": "set", "value": NAME, "data": ANY}
    {"op": "delete", "value": NAME} or {"op": "delete", "list": NAME}
    {"op": "trim", "list": NAME, "upto": SEQUENCE}
    {"op": "retire", "scope": ID}                                  not with --scope

    NAME is NAMESPACE/KEY, or a key in the namespace 'record'; what a value is set to is called data. A write that is
    malformed is named by its line, or its place in the array, before anything is stored. Killed at any moment, the
    commit is stored whole or not at all; what is printed was stored: the sequences of the first and the last write,
    with --json as an object with first, last and writes.
    """
    with input_of(file) as descriptor:
        committing.commit(committing.Request(store, session, scope, level_of(durability), as_json), descriptor)


@click.command()
@STORE
@SESSION
@click.argument("scopes", nargs=-1, required=True, metavar="SCOPE...")
@JSON
def retire(store: str, session: str, scopes: tuple[str, ...], as_json: bool) -> None:
    """End the lives of ephemeral scopes, in one commit, and say which of them were alive.

    Retiring what is not alive is legal. With --json there is an object with first and last, the commit's sequences, and
    alive, which tells of each scope whether it was.
    """
    committing.retire(store, session, scopes, as_json)


@click.command()
@STORE
@SESSION
@click.option("--name", metavar="TEXT", help="The session's name.")
@click.option("--no-name", is_flag=True, help="Take the name away.")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Set a label; VALUE is JSON, or else text.")
@click.option("--unlabel", "unlabel", metavar="KEY", multiple=True, help="Take a label away.")
def describe(
    store: str, session: str, name: str | None, no_name: bool, labels: tuple[str, ...], unlabel: tuple[str, ...]
) -> None:
    """Name and label a session, for ls and for people; what is not mentioned stays as it is.

    The session must be there: record or commit makes one.
    """
    if name is None and not (no_name or labels or unlabel):
        raise click.UsageError("Give --name, --no-name, --label or --unlabel.")
    if name is not None and no_name:
        raise click.UsageError("Give --name or --no-name, not both.")
    committing.describe(store, session, name, no_name, labels, unlabel)
