"""Positions as text: any text is a position, spelled in the one way there is, or is refused; and what a follower makes
of positions that are near the truth.

A follower goes on from a position only where it is a boundary of what is stored, and then tells exactly the rest. From
any other it begins anew with a base, or says that the session is gone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from fuzz.domains import Blob, Build, Domain, Either, Many, Mapped, Number, One
from fuzz.model_handles import PATH
from fuzz.oracle import Told, tell
from fuzz.stores import Image, images, lay
from scopelog import Base, Deleted, InvalidInput, LogRecord, ManualClock, Position, Records, Retired, Store
from scopelog_engine.layout import MAX_SEQUENCE
from scopelog_engine.position import LifePoint, mark_of

_IMAGE: Final = 2  # with many index frames, and three living scopes


class Near(NamedTuple):
    """A position made of true numbers, and how far each is off."""

    frame: int
    identity: int
    epoch: int
    sequence: int
    lives: list[tuple[int, int, int, int]]
    durable: bool


_OFF: Final = One(0, 0, 0, 0, 0, 0, 1, -1, 2, 1 << 20)
_FAR: Final = Either(Number(0, 300), One(0, 1, 127, 128, 1 << 14, (1 << 32) - 1, MAX_SEQUENCE - 1, MAX_SEQUENCE))


def _position(identity: int, epoch: int, sequence: int, lives: list[tuple[int, int, int, int]]) -> Position:
    """A legal one."""
    points, first = [], 0
    for step, seen, own, mark in lives:
        first += step + 1
        if first + seen > MAX_SEQUENCE:
            break
        points.append(LifePoint(first, own, first + seen, mark))
    return Position(identity, epoch, sequence, tuple(points))


def _four(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    return a, b, c, d


_LEGAL: Final = Build(
    _position,
    identity=_FAR,
    epoch=_FAR,
    sequence=_FAR,
    lives=Many(Build(_four, a=_FAR, b=_FAR, c=_FAR, d=Number(0, (1 << 24) - 1)), 0, 4),
)
_NEAR: Final = Build(
    Near,
    frame=Number(0, 255),
    identity=One(0, 0, 0, 0, 0, 0, 0, 1),
    epoch=_OFF,
    sequence=_OFF,
    lives=Many(Build(_four, a=_OFF, b=_OFF, c=_OFF, d=Number(0, 255)), 3, 3),
    durable=One(False, False, True),
)
_TEXTS: Final = Mapped(Blob(), lambda data: data.decode("utf-8", "surrogateescape"))


def _respelled(position: Position, at: int, char: str) -> str:
    text = str(position)
    return text[: at % len(text)] + char + text[at % len(text) + 1 :]


POSITIONS: Final[Domain[str | Position | Near]] = Either[Any](
    _TEXTS,
    _LEGAL,
    _NEAR,
    _NEAR,
    Build(
        _respelled, position=_LEGAL, at=Number(0, 255), char=One("", ".", "0", "A", "-", "_", "=", "\u0663", "\ud800")
    ),
)


def check_position(case: str | Position | Near) -> None:
    if isinstance(case, Near):
        _check_followed(case)
    elif isinstance(case, Position):
        assert Position.parse(str(case)) == case, f"{case} is spelled {case!s}"
    else:
        try:
            found = Position.parse(case)
        except InvalidInput:
            return
        assert str(found) == case, f"{case!r} is spelled {found!s}"


@lru_cache(maxsize=1)
def _truth() -> tuple[Image, Told, list[Told], list[LogRecord]]:
    image = images()[_IMAGE]
    main, *_ = (tell(image.files[name]) for name in image.logs if name not in image.sidecars)
    cars = [told for name in image.sidecars if (told := tell(image.files[name])) is not None]
    assert main is not None and cars
    with Store.open(PATH, fs=lay(image), clock=ManualClock(), create=False) as store, store.reader("s") as reader:
        return image, main, cars, [*reader.records()]


def _check_followed(near: Near) -> None:
    image, main, cars, stored = _truth()
    batches = [seen for seen in main.frames if seen.kind == 0x51]
    at = batches[near.frame % len(batches)]
    points = []
    for told, (first, epoch, sequence, number) in zip(cars, near.lives, strict=True):
        seen = told.frames[1:][number % len(told.frames[1:])]
        own = max(told.header.first + first, 1)
        points.append(
            LifePoint(own, max(seen.epoch + epoch, 0), max(seen.last + sequence, own), mark_of(told.header.scope))
        )
    kept = [point for point in points if point.sequence <= MAX_SEQUENCE and point.first <= at.last + (1 << 20)]
    position = Position(
        main.header.time + near.identity,
        max(at.epoch + near.epoch, 0),
        max(at.last + near.sequence, 0),
        tuple(sorted({point.first: point for point in kept}.values())),
    )
    with Store.open(PATH, fs=lay(image), clock=ManualClock(), create=False) as store:
        follower = store.follow("s", str(position), durable=near.durable)
        events: list[Any] = []
        while found := follower.poll():
            events += found
            assert len(events) <= 4 * len(stored) + 10, "it tells for ever"
        for event in events:
            if isinstance(event, Base):
                event.reader.close()
        follower.close()
    if near.identity:
        assert any(isinstance(event, Deleted) for event in events), "a position of another session was honoured"
    elif not any(isinstance(event, Base | Deleted) for event in events):
        _check_rest(position, events, main, cars, stored, near.durable)


def _check_rest(
    position: Position, events: list[Any], main: Told, cars: list[Told], stored: list[LogRecord], durable: bool
) -> None:
    """It was honoured: then it is a boundary, and what is told is the rest, in order and once."""
    boundaries = {(seen.epoch, seen.last) for seen in main.frames}
    assert (position.epoch, position.sequence) in boundaries, f"{position} is no boundary, and was honoured"
    got: dict[str | None, list[LogRecord]] = {}
    for event in events:
        if isinstance(event, Records):
            got.setdefault(event.scope, []).extend(event.records)
    rest = [record for record in stored if record.scope is None and record.seq > position.sequence]
    told = got.get(None, [])
    wanted = [record for record in rest if record.op != "retire"]
    assert told == (wanted[: len(told)] if durable else wanted), f"from {position} on {told} was told"
    retired = [event.seq for event in events if isinstance(event, Retired)]
    assert {*retired} <= {record.seq for record in rest}, f"retirements before {position} were told"
    for point in position.lives:
        scope = next((one.header.scope for one in cars if one.header.first == point.first), None)
        if scope is None:
            continue
        rest = [record for record in stored if record.scope == scope and record.seq > point.sequence]
        told = got.get(scope, [])
        assert told == (rest[: len(told)] if durable else rest), f"{scope!r}: from {point} on {told} was told"
