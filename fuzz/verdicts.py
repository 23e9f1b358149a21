"""What must become of a damaged store: worked out by comparing bytes with the pristine one, not by reading.

Frames that stand where they stood, byte for byte, are whole; all others are broken. That a frame with another content
passes its checksum is left out of account (odds of 1 in 2^32). From this follows, by the contract, where each log ends,
whether that is a tear or proved damage, which sidecars live, and so what must be read, kept aside, swept or refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fuzz.model import Op
from fuzz.shapes import Files, Log, Shape
from scopelog_engine.frame import Frame
from scopelog_engine.header import KIND_MAIN, KIND_SCOPE, digest_of
from scopelog_engine.layout import KIND_CLOSE, KIND_HEADER, KIND_INDEX, MAIN_FILE, scope_file_sequence

LIVE: Final = "live"
TORN: Final = "torn"
CORRUPT: Final = "corrupt"  # damage below a durable mark, where opening meets it
BELOW: Final = "below"  # damage below an index frame that a mark vouches for: reads meet it
HEADER: Final = "header"
FOREIGN: Final = "foreign"
COVER: Final = b"\x50\x2a\x4d\x18"


class Fate(NamedTuple):
    """Of one file. ``good``: where the unbroken chain from the header ends; ``end``: where an open finds the log's end,
    behind ``last``, and ``torn`` whether it must cut there. ``ops``: what stands before ``good``, ``all_ops`` what once
    stood before ``end``. ``reason``: the only word ``check`` may give, "" for any."""

    verdict: str
    log: Log
    good: int = 0
    end: int = 0
    last: Frame | None = None
    good_last: int = 0
    ops: tuple[Op, ...] = ()
    all_ops: tuple[Op, ...] = ()
    torn: bool = False
    length: int = 0
    high: int = 0
    epoch: int = 0
    reason: str = ""

    @property
    def sequence(self) -> int:
        """The log's last sequence, as an open finds it."""
        assert self.last is not None
        return max(self.last.last, self.log.header.high, self.log.header.floor)

    @property
    def clean(self) -> bool:
        return self.last is not None and self.last.kind == KIND_CLOSE and self.end == self.length


def _stands(log: Log, frame: Frame, data: bytes) -> bool:
    return data[frame.offset : frame.end] == log.data[frame.offset : frame.end]


def _run(log: Log, data: bytes, number: int) -> int:
    """Number of the last frame of the unbroken chain from frame ``number`` on."""
    while number + 1 < len(log.frames) and _stands(log, log.frames[number + 1], data):
        number += 1
    return number


def fate(known: Iterable[Log], data: bytes) -> Fate | None:
    """What becomes of a log with these bytes; None if it has no header that is known."""
    same = [log for log in known if data.startswith(log.data[: log.frames[0].end])]
    if not same:
        return None
    log = max(same, key=lambda one: one.frames[_run(one, data, 0)].end)
    reach = _run(log, data, 0)
    good = log.frames[reach]
    standing = {
        (frame.offset, frame.checksum): (other, number)
        for other in same
        for number, frame in enumerate(other.frames)
        if number and _stands(other, frame, data)
    }
    end, last, verdict = good.end, good, ""
    for other, number in sorted(standing.values(), key=lambda pair: -pair[0].frames[pair[1]].offset):
        frame = other.frames[number]
        if frame.kind != KIND_INDEX or frame.end <= good.end:
            continue
        stop = _run(other, data, number)
        if frame.offset <= max(f.mark for f in other.frames[number : stop + 1]):
            log, last, verdict = other, other.frames[stop], BELOW
            end = last.end
            break
    frames = [other.frames[number] for other, number in standing.values()]
    behind = [f for f in _apart(frames, end) if f.last >= last.last and f.epoch >= last.epoch]
    tail = data[end:]
    torn = bool(tail) and not (tail.startswith(COVER) and len(tail) >= 8 and not any(tail[8:]))
    if any(frame.mark > end for frame in behind):
        verdict = CORRUPT
    elif torn:
        verdict = verdict or TORN
    return Fate(
        verdict or LIVE,
        log,
        good.end,
        end,
        last,
        good.last,
        tuple(op for op in log.ops if op.seq <= good.last),
        tuple(op for op in log.ops if op.seq <= last.last),
        torn,
        len(data),
        max([last.last, log.header.high, log.header.floor, *(frame.last for frame in behind)]),
        max([last.epoch, log.header.high_epoch, *(frame.epoch for frame in behind)]),
        _reason(known, log, data, good.end),
    )


def _apart(frames: Iterable[Frame], start: int) -> Iterator[Frame]:
    """Those from ``start`` on that begin in none of the others: bytes of two histories may share their last and first
    byte, and then both frames stand."""
    for frame in sorted(frames, key=lambda frame: frame.offset):
        if frame.offset >= start:
            yield frame
            start = frame.end


def _reason(known: Iterable[Log], log: Log, data: bytes, at: int) -> str:
    """Where a whole frame of another log, or of another history of this one, stands in the place of its own."""
    for other in known:
        for frame in other.frames:
            if frame.offset == at and frame.kind != KIND_HEADER and _stands(other, frame, data):
                return "digest" if digest_of(other.header) != digest_of(log.header) else "chain"
    return ""


@dataclass
class Expected:
    """What must become of a store. ``refused``: no open for writing. ``alive``: fates of the living scopes."""

    main: Fate
    refused: bool = False
    cars: dict[str, Fate | None] = field(default_factory=dict)
    torn: dict[str, Fate] = field(default_factory=dict)
    aside: set[str] = field(default_factory=set)
    swept: set[str] = field(default_factory=set)
    alive: dict[str, Fate] = field(default_factory=dict)
    undecided: bool = False  # damage in main may hide which scopes are alive
    high: int = 0
    epoch: int = 0

    @property
    def ops(self) -> list[tuple[str, Op]]:
        """What a reader finds, in order, each with its scope."""
        found = [("", op) for op in self.main.ops]
        found += [(scope, op) for scope, one in self.alive.items() for op in one.ops]
        return sorted(found, key=lambda pair: pair[1].seq)


def expect(shape: Shape, files: Files) -> Expected:
    """By the contract, section 6, and the format, section 8."""
    known = shape.known
    path = shape.path(MAIN_FILE)
    main = fate(known, files[path])
    if main is None or main.log.header.kind != KIND_MAIN or not _ours(shape, main.log):
        verdict = HEADER if main is None else FOREIGN
        return Expected(Fate(verdict, shape.main), refused=True, cars=_cars(shape, files))
    found = Expected(main, main.verdict == CORRUPT, _cars(shape, files), high=main.high, epoch=main.epoch)
    if main.torn:
        found.torn[path] = main
    _judge(found, shape)
    return found


def _ours(shape: Shape, log: Log) -> bool:
    return (log.header.store, log.header.session) == (shape.main.header.store, shape.session)


def _cars(shape: Shape, files: Files) -> dict[str, Fate | None]:
    """The sidecars, in order of their names."""
    known = shape.known
    names = [path for path in sorted(files) if scope_file_sequence(shape.short(path)) is not None]
    return {path: fate(known, files[path]) for path in names}


def _judge(found: Expected, shape: Shape) -> None:
    """Which sidecars live."""
    main = found.main
    retired = {op.spec.retired: op.seq for op in main.ops if op.spec.op == "retire"}
    candidates: list[tuple[str, Fate]] = []
    for path, one in found.cars.items():
        if one is None or one.log.header.kind != KIND_SCOPE or not _ours(shape, one.log):
            found.aside.add(path)
            continue
        found.high, found.epoch = max(found.high, one.high), max(found.epoch, one.epoch)
        header = one.log.header
        if header.first != scope_file_sequence(shape.short(path)) or max(header.base, header.after) > main.sequence:
            found.aside.add(path)
        else:
            candidates.append((path, one))
    found.undecided = main.verdict == BELOW and bool(candidates)
    owned: set[str] = set()
    for path, one in candidates:
        first, scope = one.log.header.first, one.log.scope
        if max(retired.get(scope, 0), main.log.header.ended(first)) > first:
            found.swept.add(path)
        elif scope in owned:
            found.aside.add(path)
        else:
            owned.add(scope)
            if one.torn:
                found.torn[path] = one
            if one.last is not None and one.last.kind == KIND_HEADER:
                found.swept.add(path)
            else:
                found.alive[scope] = one
