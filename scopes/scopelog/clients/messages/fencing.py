"""What stops a producer that reports late."""

from __future__ import annotations

from ...errors import HandleUnusable


class Fenced(HandleUnusable):
    """What it would report on is settled or ended: nothing was changed."""


def settled(what: str, name: str) -> Fenced:
    return Fenced(f"the {what} {name!r} is settled", "drop what comes late; a new one begins with a new id")


def ended(operation: str) -> Fenced:
    return Fenced(
        f"the operation {operation!r} does not run: it has ended, or was never begun",
        "drop what comes late; begin an operation with Lane.begin",
    )
