"""Removals: what an index frame tells of deletions, trims and retirements whose records are lost. Pure; see
:mod:`rescue`."""

from __future__ import annotations

from dataclasses import dataclass, field

from .lines import APPEND, DELETE, LIST, RETIRE, TRIM, VALUE, Address, Record
from .stretch import Closed

Ranges = list[tuple[int, int]]
"""Lost sequences: above the first and below the second number of each pair."""


@dataclass
class Seen:
    """What survived of a stretch."""

    counts: dict[Address, int] = field(default_factory=dict)
    floors: dict[Address, int] = field(default_factory=dict)
    newest: dict[Address, int] = field(default_factory=dict)
    retired: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Seen:
        return Seen(dict(self.counts), dict(self.floors), dict(self.newest), dict(self.retired))

    def take(self, line: list[Record]) -> None:
        for record in line:
            address = record.address
            if record.code == RETIRE:
                self.retired[str(record.argument)] = record.sequence
                continue
            assert address is not None
            if record.code == APPEND:
                self.counts[address] = self.counts.get(address, 0) + 1
            elif record.code == TRIM:
                floor = min(int(record.argument or 0), record.sequence)
                self.floors[address] = max(self.floors.get(address, 0), floor)
            elif address.kind == LIST:
                self.floors[address] = record.sequence
            else:
                self.newest[address] = record.sequence

    def lost(self, closed: Closed) -> list[tuple[Address, int]]:
        """Lists with how many elements they have lost, and values whose newest write is lost."""
        gone = [(a, entry.count - self.counts.get(a, 0)) for a, entry in closed.lists.items()]
        old = [
            (Address(a.namespace, a.key, VALUE), 1)
            for a, value in closed.values.items()
            if not value.deleted and value.sequence > self.newest.get(a, 0)
        ]
        return [(address, number) for address, number in gone if number > 0] + old


def made_again(closed: Closed, seen: Seen, ranges: Ranges) -> tuple[list[Record], int]:
    """The removals, in order, at sequences that are lost: their own, where the index frame tells them. Their times are
    not known (0). Also how many there is no sequence for."""
    taken: set[int] = set()
    out: list[Record] = []
    homeless = 0

    def free(sequence: int) -> bool:
        return sequence not in taken and any(after < sequence < before for after, before in ranges)

    def add(sequence: int, code: str, address: Address | None, argument: int | str | None) -> bool:
        if not free(sequence):
            return False
        taken.add(sequence)
        out.append(Record(sequence, code, address, None, argument, 0))
        return True

    for scope, sequence in closed.retired.items():
        if sequence > seen.retired.get(scope, 0):
            homeless += not add(sequence, RETIRE, None, scope)
    for address, value in closed.values.items():
        if value.deleted and value.sequence > seen.newest.get(address, 0):
            homeless += not add(value.sequence, DELETE, Address(address.namespace, address.key, VALUE), None)
    # A trim may stand anywhere above its floor: the highest floors choose first, so that room is left for the others.
    for address, entry in sorted(closed.lists.items(), key=lambda item: -item[1].floor):
        if entry.floor <= seen.floors.get(address, 0) or add(entry.floor, TRIM, address, entry.floor):
            continue
        places = (n for after, before in ranges for n in range(before - 1, max(after, entry.floor - 1), -1))
        homeless += not any(add(place, TRIM, address, entry.floor) for place in places)
    return sorted(out, key=lambda record: record.sequence), homeless


__all__ = ["Ranges", "Seen", "made_again"]
