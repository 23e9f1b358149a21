"""Frames with good checksums that lie: bombs, forged sizes, turned bits under a new signature, in every place of a log.

Nothing is taken for what it claims: no memory beyond what a frame may hold, no record that was not written, no error
that is not typed.
"""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import pytest

from fuzz.campaign import Campaign
from fuzz.forgeries import bits_of_payloads, bombs, forge, lies, with_bit
from fuzz.model import Op, elements, observed_op, values
from fuzz.mutation_rig import SimBed
from fuzz.shapes import Log, Shape, shape
from scopelog import CorruptLog, ManualClock, Session, SessionReader, Store, list_of, value
from scopelog_engine.codec import compress
from scopelog_engine.layout import KIND_BATCH
from scopelog_engine.store import Store as EngineStore

NAMES: Final = ("talk", "closed")
MEMORY: Final = 16 * 2**20
"""More than all that is read here takes, less than any of the bombs."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "scopelog_engine")


@pytest.fixture
def bounded() -> Iterator[None]:
    bombs()
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MEMORY, f"{peak} bytes were taken"


def hold(one: Shape, log: Log, data: bytes, what: str) -> bool:
    """Whatever is read is what was written, in order, from the beginning; else the error is CorruptLog, at its frame
    or before. True if anything met the lie."""
    bed = SimBed()
    bed.lay(one.files | {log.path: data})
    store = Store(EngineStore.open(bed.root, fs=bed.fs, clock=ManualClock(), create=False))
    met = bool([finding for finding in store.check(deep=True) if finding.severity != "note"])
    blamed = f"{bed.root}/{log.path}"
    try:
        with store.reader(one.session) as reader:
            met |= _records(one, log, reader, what)
            _answers(one, log, reader, what)
        with store.session(one.session) as session:
            _answers(one, log, session, what)
    except CorruptLog as error:
        blamed, met = error.path, True
    finally:
        store.close(force=True)
    assert blamed == f"{bed.root}/{log.path}", f"{what}: {blamed} is called damaged"
    return met


def _records(one: Shape, log: Log, reader: SessionReader, what: str) -> bool:
    got: list[tuple[str, Op]] = []
    met = False
    try:
        for record in reader.records():
            got.append((record.scope or "", observed_op(record)))
    except CorruptLog:
        met = True
    shorter = [op for scope, op in got if not scope] != one.main.ops  # then a scope may build on what is not there
    for each in one.logs.values():
        mine = [op for scope, op in got if scope == each.scope]
        assert mine == each.ops[: len(mine)], f"{what}: read {mine}"
        kept = met or each is log or mine == each.ops or (shorter and mine == [])
        assert kept, f"{what}: {each.path} lost {each.ops[len(mine) :]}"
    return met or len(got) < sum(len(each.ops) for each in one.logs.values())


def _answers(one: Shape, log: Log, handle: Session | SessionReader, what: str) -> None:
    """Each question is answered as ever, or as it was at the end of an earlier frame, or not at all."""
    ends = [frame.last for frame in log.frames if frame.kind == KIND_BATCH]
    states = [[op for op in one.main.ops if op.seq <= end] for end in ([0, *ends] if log is one.main else [2**53])]
    _one_of(lambda: [(e.seq, e.element, e.tag) for e in handle.read(list_of("n", "log"))], map(_list, states), what)
    _one_of(lambda: handle.get(value("n", "title"), "none"), map(_title, states), what)


def _list(ops: list[Op]) -> object:
    return [(op.seq, op.spec.value, op.spec.tag) for op in elements(ops, "n", "log")]


def _title(ops: list[Op]) -> object:
    return {entry.key: entry.value for entry in values(ops, "n")}.get("title", "none")


def _one_of(ask: Callable[[], object], answers: Iterator[object], what: str) -> None:
    try:
        got = ask()
    except CorruptLog:
        return
    assert got in [*answers], f"{what}: {got}"


@pytest.mark.fault(9, 30, rig="M")
@pytest.mark.parametrize("name", NAMES)
def test_every_bit_of_a_payload_under_a_good_signature(name: str, campaign: Campaign) -> None:
    """zstd's own header is not covered by its checksum: one bit turns checking off, another makes a frame decode to
    nothing. The length that the envelope names, the end of the payload and the checksum together find each."""
    one = shape(name)
    met = total = 0
    for log in one.logs.values():
        stride = 1 if campaign.full else 97
        for number, bit in islice(bits_of_payloads(log), 0, None, stride):
            total += 1
            met += hold(one, log, with_bit(log, number, bit), f"{name} {log.path} frame {number} bit {bit}")
            campaign.count()
    assert met > 0.9 * total


@pytest.mark.fault(30, rig="M")
@pytest.mark.parametrize("name", NAMES)
def test_bombs_in_every_place(name: str, campaign: Campaign, bounded: None) -> None:
    """A payload that claims, or would take, far more than it may."""
    one = shape(name)
    for log in one.logs.values():
        for number, frame in enumerate(log.frames):
            if frame.kind != KIND_BATCH or (not campaign.full and number != 2):
                continue
            for what, (raw, payload) in bombs().items():
                data = forge(log, number, payload, raw_length=frame.raw_length if raw is None else raw)
                assert hold(one, log, data, f"{name} {log.path} frame {number}: {what}"), what
                campaign.count()
            body = log.data[frame.payload_offset : frame.end]
            data = forge(log, number, body + compress(b"[99,1,[1,1]]\n"))
            assert hold(one, log, data, "a second frame behind the first"), "what follows was dropped in silence"
            campaign.count()


@pytest.mark.fault(30, rig="M")
@pytest.mark.parametrize("name", NAMES)
def test_envelopes_that_lie(name: str, campaign: Campaign, bounded: None) -> None:
    """Forged sizes, sequences, counts, epochs and marks. Sequences that leave out what the lines hold are found."""
    one = shape(name)
    for log in one.logs.values():
        for number, frame in islice(enumerate(log.frames), 0 if campaign.full else 1, None if campaign.full else 2):
            for lie in lies(frame):
                met = hold(one, log, forge(log, number, **lie), f"{name} {log.path} frame {number}: {lie}")
                narrower = lie.get("first", 0) > frame.first or lie.get("last", frame.last) < frame.last
                assert met or not (narrower and frame.kind == KIND_BATCH), f"{log.path} frame {number}: {lie}"
                campaign.count()


@pytest.mark.fault(30, rig="M")
@pytest.mark.parametrize("name", NAMES)
def test_a_forgery_of_nothing_changes_nothing(name: str) -> None:
    """Signing again what is there gives the same bytes: so the other tests change what they say they do."""
    for log in shape(name).logs.values():
        assert forge(log, 1) == log.data[: log.end]
