"""What the tests of following share: a receiver that folds events as a user would, and holds them against a reader."""

from __future__ import annotations

from collections.abc import Iterable

from scopelog import Base, Deleted, FollowEvent, LogRecord, Position, Records, Retired, SessionFollower, SessionReader

SESSION_ID = ""


def stored(reader: SessionReader) -> dict[str, list[LogRecord]]:
    """What a reader finds, by scope, retirements left out."""
    found: dict[str, list[LogRecord]] = {SESSION_ID: []}
    for record in reader.records():
        if record.op != "retire":
            found.setdefault(record.scope or SESSION_ID, []).append(record)
    return {scope: records for scope, records in found.items() if records or not scope}


class Receiver:
    """Keeps what was told, by scope; of an event and its position at once. ``saved``: what a crash leaves of it."""

    def __init__(self) -> None:
        self.records: dict[str, list[LogRecord]] = {SESSION_ID: []}
        self.retired: dict[str, int] = {}
        self.position: Position | None = None
        self.restarts: list[str] = []
        self.bases = 0
        self.deleted = False
        self.saved: tuple[dict[str, list[LogRecord]], dict[str, int], str] | None = None

    def take(self, events: Iterable[FollowEvent]) -> None:
        for event in events:
            assert not self.deleted, f"{event} after the end"
            if isinstance(event, Deleted):
                self.deleted = True
                continue
            if isinstance(event, Base):
                self._begin(event)
            elif isinstance(event, Records):
                self._add(event)
            else:
                self._retire(event)
            moved = event.position != self.position
            self.position = event.position
            assert Position.parse(str(event.position)) == event.position
            if moved or isinstance(event, Base) or self.saved is None:
                copied = {scope: [*records] for scope, records in self.records.items()}
                self.saved = copied, dict(self.retired), str(event.position)

    def _begin(self, event: Base) -> None:
        assert self.bases == 0 or event.reason, "only the first base has no reason"
        self.bases += 1
        if event.reason:
            self.restarts.append(event.reason)
        self.records, self.retired = stored(event.reader), {}
        event.reader.close()

    def _add(self, event: Records) -> None:
        assert event.records
        scope = event.scope or SESSION_ID
        known = self.records.setdefault(scope, [])
        for record in event.records:
            assert record.scope == event.scope and record.op != "retire"
            assert not known or record.seq > known[-1].seq, f"{record} after {known[-1]}"
            assert record.seq > self.retired.get(scope, 0), f"{record} of a life that was retired"
            known.append(record)

    def _retire(self, event: Retired) -> None:
        assert self.retired.get(event.scope, 0) < event.seq, "told once"
        self.retired[event.scope] = event.seq
        self.records.pop(event.scope, None)

    def crash(self) -> None:
        """Forget what was taken since the position moved last."""
        assert self.saved is not None
        records, retired, position = self.saved
        self.records = {scope: [*kept] for scope, kept in records.items()}
        self.retired = dict(retired)
        self.position = Position.parse(position)


def drain(follower: SessionFollower) -> list[FollowEvent]:
    """Everything there is now."""
    events: list[FollowEvent] = []
    while found := follower.poll():
        events += found
    return events
