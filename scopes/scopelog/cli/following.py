"""follow: what another process writes into a session, as it becomes visible."""

from __future__ import annotations

import click

from ..addresses import ephemeral
from ..follow import Base, Deleted, Records
from ..session import LogRecord
from . import output
from .looking import opened, shower
from .options import JSON, SESSION, STORE
from .output import printable


@click.command()
@STORE
@SESSION
@click.option("--from", "position", metavar="POSITION", help="Go on behind this position, as --positions prints them.")
@click.option("--new", "only_new", is_flag=True, help="Leave out what there is already.")
@click.option("--scope", metavar="ID", help="Only what lives in this ephemeral scope, and its retirement.")
@click.option("--durable", is_flag=True, help="Only what is proved to survive a power loss.")
@click.option("--positions", is_flag=True, help="Print, after what it follows, the position to go on from.")
@click.option(
    "--timeout", metavar="S", type=click.FloatRange(0, 10**9), help="End once nothing has come for S seconds."
)
@JSON
def follow(
    store: str,
    session: str,
    position: str | None,
    only_new: bool,
    scope: str | None,
    durable: bool,
    positions: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Print the records of a session, and then new ones as they are stored, until it is deleted.

    Takes no lock: other processes write meanwhile. Of each scope records come in order; those of different scopes as
    they become visible. With --durable the last commit of an idle session comes with the next one, or when it is
    closed.

    A position that cannot be gone on from (what it names was lost or compacted away) is told on standard error, and
    all there is is printed again. The same happens where records that were printed already were lost, which cannot be
    with --durable.

    With --json there is an object a line: records as cat prints them, {"position": TEXT} with --positions,
    {"restart": REASON} before all is printed again, and {"deleted": true} at the end.
    """
    if position is not None and only_new:
        raise click.UsageError("--new means nothing with --from: what is behind the position is new.")
    show = _Show(session, as_json, positions)
    wanted = None if scope is None else ephemeral(scope)
    begun = position is not None
    with opened(store) as there, there.follow(session, position, durable=durable, scope=wanted) as follower:
        while (event := follower.next(timeout)) is not None:
            if isinstance(event, Deleted):
                show.tell({"deleted": True}, "it was deleted")
                continue
            if isinstance(event, Base):
                with event.reader as reader:
                    if begun:
                        show.tell({"restart": event.reason}, f"all there is follows again: {event.reason}")
                    if begun or not only_new:
                        for record in reader.records():
                            if scope in (None, record.scope):
                                show.record(record)
                begun = True
            elif isinstance(event, Records):
                for record in event.records:
                    show.record(record)
            else:
                show.record(_retirement(event.seq, event.scope, event.time))
            show.position(str(event.position))
            output.flush()


class _Show:
    def __init__(self, session: str, as_json: bool, positions: bool) -> None:
        self.record = shower(as_json)
        self._session = session
        self._as_json = as_json
        self._positions = positions

    def tell(self, found: dict[str, object], text: str) -> None:
        """What is no record: on standard output for scripts, else on standard error."""
        output.flush()
        if self._as_json:
            output.put_json(found)
        else:
            output.say(f"note: {printable(self._session)}: {printable(text)}")

    def position(self, text: str) -> None:
        if not self._positions:
            return
        if self._as_json:
            output.put_json({"position": text})
        else:
            output.put_text(f"position: {text}")


def _retirement(seq: int, scope: str, time: int) -> LogRecord:
    return LogRecord(seq, "retire", None, None, None, None, None, None, None, scope, time)
