"""The commands of the memory bridge: status, drain, retry, drop, check. The work stands in remembering and reaching,
which are imported when they are called: the other commands need neither asyncio nor the extra ``engram``."""

from __future__ import annotations

import click

from .options import JSON, SESSION, STORE

_ENTRIES = click.argument("entries", nargs=-1, required=True, metavar="ENTRY...")
_AGENT = click.option("--agent", metavar="ID", help="The agent session they belong to, where two have one of that id.")


@click.group()
def memory() -> None:
    """Look at what agent sessions want remembered, deliver it, and find out why a memory server is refused.

    What is shown of an entry is its kind, its id, its age and a reason: never its text, which may be private.
    """


@memory.command()
@STORE
@click.argument("session", required=False)
@JSON
def status(store: str, session: str | None, as_json: bool) -> None:
    """Print the outboxes of every session of a store, or of one. Changes nothing, and asks no server.

    Of each agent session there are its memory key, and how many entries wait, are unknown or parked, and are done with:
    delivered or dropped, of those whose ids are still remembered. Then each entry that is not done with: its state,
    kind, id, age and reason. pending: not sent. in flight: the request is frozen and may have been sent. unknown: it
    may have arrived, and is not sent again by itself. parked: the server refused it for good.

    Takes no lock: it works beside a running harness, and shows what is stored so far. Reads the logs whole.

    With --json there is an object a line for each agent session: session, agent, key, rotated (null, or why the key is
    no longer the agent's id), waiting, unknown, parked, done, and entries (id, kind, state, cwd: the directory it was
    captured in, at: ms since 1970 or null, age: seconds or null, reason: null or text).

    A session that cannot be read is named on standard error, and the exit code is 3, or 2 where it is damaged.
    """
    from . import remembering

    remembering.status(store, session, as_json)


@memory.command()
@STORE
@SESSION
@click.argument("agent", required=False)
@click.option(
    "--timeout",
    metavar="S",
    type=click.FloatRange(0, 3600),
    default=30.0,
    show_default=True,
    help="How long to wait for the server, and then how long to go on, in seconds.",
)
@JSON
def drain(store: str, session: str, agent: str | None, timeout: float, as_json: bool) -> None:
    """Deliver what waits in the outboxes of a session, or in that of one agent, and print what became of each entry.

    Takes the session's lock: while a harness runs, exit code 4 and its process id. The server is the one that a
    harness would use under the same ENGRAM_URL, ENGRAM_BIN and ENGRAM_PORT, and is started if need be; settings that a
    harness reads from a file are not known here. An entry goes to the project of the directory that it was captured in.

    With --json there is an object a line for each entry: agent, entry, kind, state (delivered, pending, in flight,
    unknown, parked) and reason.

    Exit code 3 if an entry still waits, is unknown or parked, or if there is no server. Stopped at any moment nothing
    is lost: what was not delivered waits on.
    """
    from . import remembering

    remembering.drain(store, session, agent, timeout, as_json)


@memory.command()
@STORE
@SESSION
@_ENTRIES
@_AGENT
def retry(store: str, session: str, entries: tuple[str, ...], agent: str | None) -> None:
    """Put entries that are unknown or parked back into the queue, at its end.

    They are sent by the next drain, or by the harness. An unknown entry may have arrived the first time: a server that
    does not know repeats stores it twice then, so look first. Takes the session's lock. All of the entries must be
    there, else none is touched.
    """
    from . import remembering

    remembering.retry(store, session, entries, agent)


@memory.command()
@STORE
@SESSION
@_ENTRIES
@_AGENT
def drop(store: str, session: str, entries: tuple[str, ...], agent: str | None) -> None:
    """Forget entries that wait, are unknown or parked: they are never sent any more.

    An entry that is in flight or unknown may have arrived; it is not taken back.

    Takes the session's lock. All of the entries must be there, else none is touched.
    """
    from . import remembering

    remembering.drop(store, session, entries, agent)


@memory.command()
@click.argument("cwd", required=False, type=click.Path(exists=True, file_okay=False))
@click.option("--start", is_flag=True, help="Start the server if none runs, as the bridge does.")
@JSON
def check(cwd: str | None, start: bool, as_json: bool) -> None:
    """Tell whether the memory server and the project of a directory can be used, and if not, why.

    CWD is the working directory of a session; without it, this one. Looked at are, in turn: the identity of this
    machine's instance (with ENGRAM_URL it is not asked for), the server's /health, its capabilities and what they mean
    for an entry whose outcome is unknown, and which project it says that the directory is. Nothing is written, and
    without --start nothing is started.

    With --json there is one object: ok, url, configured (whether ENGRAM_URL is set), expected (this machine's instance
    id), instance (the server's), version, capabilities, repeats, cwd, project, source and error (null, or cause and
    remedy); what was not reached is null.

    Exit codes: 0 both can be used, 2 a setting cannot be used or there is no such directory (nothing is printed then),
    3 the server or the project is refused or missing.
    """
    from . import reaching

    reaching.check(cwd, start, as_json)
