"""What the tests of watches share: somebody who follows a watch, and holds what was shown against the session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from scopelog import (
    SESSION,
    Changed,
    Element,
    Ended,
    Entry,
    Json,
    List,
    ListBase,
    Scope,
    Session,
    Value,
    ValueBase,
    ephemeral,
    list_of,
    value,
)


def join_text(run: Sequence[Json]) -> list[tuple[Json, int]]:
    """A coalescer: joins up to three adjacent texts at a time."""
    return [("".join(run[at : at + 3]), len(run[at : at + 3])) for at in range(0, len(run), 3)]


PLAIN: Final = list_of("n", "plain")
TEXT: Final = list_of("n", "text", coalescer=join_text)
STATE: Final = value("n", "state")
SCOPE: Final = ephemeral("op-1")
OUT: Final = SCOPE.list_of("n", "plain")
OUT_TEXT: Final = SCOPE.list_of("n", "text", coalescer=join_text)
MEMO: Final = SCOPE.value("n", "state")
MAIN_ADDRESSES: Final[tuple[Any, ...]] = (PLAIN, TEXT, STATE)
SCOPE_ADDRESSES: Final[tuple[Any, ...]] = (OUT, OUT_TEXT, MEMO)


class Shown:
    """What one who follows a watch shows: the fold of its events. Every sequence comes once, and in order."""

    def __init__(self, address: Value[Scope] | List[Scope]) -> None:
        self.address = address
        self.elements: list[Element] = []
        self.entry: Entry | None = None
        self.bases = 0
        self.batches = 0
        self.ended: Ended | None = None
        self._seq = 0

    def take(self, event: object) -> None:
        assert self.ended is None, "something came after the end"
        if isinstance(event, ListBase):
            self.elements = [*event.elements]
            self._begin(max((element.seq for element in event.elements), default=0))
        elif isinstance(event, ValueBase):
            self.entry = event.entry
            self._begin(0 if event.entry is None else event.entry.seq)
        elif isinstance(event, Changed):
            assert event.changes
            self.batches += 1
            for change in event.changes:
                assert change.seq > self._seq, "a sequence came twice, or out of order"
                self._seq = change.seq
                self._change(change)
        else:
            assert isinstance(event, Ended)
            self.ended = event

    def _begin(self, seq: int) -> None:
        self.bases += 1
        self._seq = max(seq, self._seq)

    def _change(self, change: Any) -> None:
        if change.op == "append":
            self.elements.append(Element(change.seq, change.value, change.tag))
        elif change.op == "trim":
            self.elements = [element for element in self.elements if element.seq > change.upto]
        elif change.op == "set":
            self.entry = Entry(self.address.key, change.value, change.seq)
        else:
            assert change.op == "delete"
            self.elements, self.entry = [], None

    def state(self) -> Any:
        return folded(self.address, self.elements, self.entry)


def folded(address: Any, elements: Sequence[Element], entry: Entry | None) -> Any:
    """What counts of a state: of a list with a coalescer its fold, and where that ends."""
    if isinstance(address, Value):
        return entry
    if address.key == "text":
        parts: list[Any] = []
        for element in elements:
            if element.tag is None and parts and parts[-1][1] is None:
                parts[-1] = (parts[-1][0] + element.element, None)
            else:
                parts.append((element.element, element.tag))
        return parts, elements[-1].seq if elements else 0
    return [*elements]


def state_of(session: Session, address: Any) -> Any:
    """The same of what the session reads now."""
    if isinstance(address, Value):
        found = [entry for entry in session.scan("n", scope=scope_of(address)) if entry.key == address.key]
        return found[0] if found else None
    return folded(address, session.read(address), None)


def scope_of(address: Any) -> Any:
    return ephemeral(address.scope_id) if address.scope_id else SESSION


class Follower:
    """A watch and what it shows. ``take(count)`` takes so many events, if there are; all of them by default."""

    def __init__(self, session: Session, address: Any, **options: Any) -> None:
        self.address = address
        self.options = options
        self.watch = session.watch(address, **options)
        self.shown = Shown(address)

    def take(self, count: int | None = None) -> int:
        taken = 0
        while self.shown.ended is None and (count is None or taken < count):
            event = self.watch.next(0)
            if event is None:
                break
            self.shown.take(event)
            assert event.position == self.watch.position
            taken += 1
        return taken

    def resume(self, session: Session) -> None:
        """Stop, and go on by another watch from the text of the position."""
        self.watch.stop()
        after = self.watch.position
        self.watch = session.watch(self.address, **{**self.options, "after": after})
        self.shown.ended = None

    def check(self, session: Session) -> None:
        self.take()
        assert self.shown.state() == state_of(session, self.address)
