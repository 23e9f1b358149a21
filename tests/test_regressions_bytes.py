"""Findings of a hostile review about bytes: frames, limits, what is written again, and verdicts on forged logs.

Each test's docstring tells what went wrong once.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from random import Random
from typing import Any, Final

import pytest

from fuzz.simdisk import SimDisk, SimFile
from scopelog import (
    CorruptLog,
    Durability,
    Json,
    ManualClock,
    OutcomeUnknown,
    ReadFailed,
    Session,
    Store,
    ephemeral,
    list_of,
    value,
)
from scopelog_engine.codec import compress, decompress
from scopelog_engine.frame import Frame, encode_frame
from scopelog_engine.layout import (
    FRAME_TARGET_BYTES,
    KIND_HEADER,
    KIND_INDEX,
    KIND_INSIDE,
    MAGIC_TAIL,
    MAX_HEADER_BYTES,
)
from scopelog_engine.stretch import Span
from scopelog_engine.tail import Tail
from scopelog_engine.view import LogView

from .stores import CHAT, MAIN, MESSAGES, bare, frames_of, header_of, next_frame, unsound

STORE: Final = "/store"
MAIN_LOG: Final = f"{STORE}/{MAIN}"


def opened(disk: SimDisk, **settings: Any) -> tuple[Store, Session]:
    store = Store.open(STORE, fs=disk, clock=ManualClock(), **settings)
    return store, store.session(CHAT)


def elements(session: Session) -> list[Json]:
    return [element.element for element in session.read(MESSAGES)]


def noise(seed: int, length: int) -> str:
    """Text that does not compress below half its length."""
    return Random(seed).randbytes(length // 2).hex()


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_to_reserve_is_no_failure_while_the_frame_has_room(code: int) -> None:
    """Space is reserved 128 KiB at a time. Near a quota (EDQUOT) or a limit on file sizes (EFBIG) the reservation's
    error failed commits that would have fitted; only ENOSPC fell through to the write."""
    disk = SimDisk()
    _, session = opened(disk)
    session.commit([MESSAGES.append(0)])
    disk.fail("allocate", errno=code, persistent=True)
    for n in range(1, 13):
        session.commit([MESSAGES.append([n, noise(n, 40_000)])])
    assert sum(step[0] == "allocate" for step in disk.trace) > 1
    assert [e[0] if isinstance(e, list) else e for e in elements(opened(disk.copy())[1])] == list(range(13))


@pytest.mark.parametrize("how", ["names", "tags"])
def test_names_and_tags_count_for_the_bound_and_for_the_size_of_a_frame(how: str) -> None:
    """The bodies alone counted. A window of names of control characters (six bytes each as JSON) became one frame of
    331 MB, which every reader refuses: elements that were acknowledged could not be read, nor anything behind them."""
    disk = SimDisk()
    _, session = opened(disk, window_ms=60_000)
    session.commit([MESSAGES.append("first")])
    targets = [MESSAGES]
    if how == "names":
        targets = [list_of("\x01" * 1024, "\x01" * 1018 + f"{n:06}") for n in range(600)]
    for n in range(600):
        session.append(targets[n % len(targets)], n, "\x02" * 1024 if how == "tags" else None)
        assert session.stats()["pending_bytes"] <= 4 * 1024 * 1024
    session.flush()
    frames = frames_of(disk.read_file(MAIN_LOG))
    assert sum(frame.raw_length for frame in frames) > 3 * FRAME_TARGET_BYTES
    assert max(frame.raw_length for frame in frames if frame.kind != KIND_INDEX) <= FRAME_TARGET_BYTES + 32 * 1024
    _, again = opened(disk.copy())
    assert [e.element for target in targets[:: max(len(targets) - 1, 1)] for e in again.read(target)][-1] == 599


def test_an_open_after_an_unclean_end_writes_the_unproved_bytes_again_before_it_acknowledges() -> None:
    """After a failed sync the pages are clean, and may be lost while the process lives. At PROCESS the first commit of
    the next handle was acknowledged behind them without writing them again: kill -9 alone could lose it."""
    disk = SimDisk()
    _, session = opened(disk, durability=Durability.PROCESS)
    session.commit([MESSAGES.append(0)])
    session.commit([MESSAGES.append(noise(1, 9000))])
    disk.fail("sync", path=MAIN)
    with pytest.raises(OutcomeUnknown):
        session.flush(Durability.POWER)
    disk = disk.kill()
    _, session = opened(disk, durability=Durability.PROCESS)
    unproved = session.recovery.unproved_bytes
    end = frames_of(disk.read_file(MAIN_LOG))[-1].end
    assert unproved > 4000
    begin = len(disk.trace)
    for n in (1, 2):
        session.commit([MESSAGES.append(n)])
    written = [(int(step[2]), int(step[3])) for step in disk.trace[begin:] if step[0] == "pwrite" and MAIN in step[1]]
    assert [step for step in disk.trace[begin:] if step[0] == "sync" and MAIN in step[1]] == []
    assert written[0][0] == end - unproved and written[0][1] == unproved, "all of it, before the first frame"
    assert [offset >= end for offset, _ in written[1:]] == [True, True], "and once"


def test_reads_that_are_interrupted_forget_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read works out what the last frames did. Out of memory in the middle of that, it had forgotten them: later
    reads missed elements, and the next index frame described a stretch that was not there, for good."""
    disk = SimDisk()
    store, session = opened(disk)
    for n in range(3):
        session.commit([MESSAGES.append([n, ""])])
    add, calls = Tail.add, []

    def fail(tail: Tail, *arguments: Any) -> None:
        calls.append(tail)
        if len(calls) == 2:
            raise MemoryError
        add(tail, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Tail, "add", fail)
        try:
            session.read(MESSAGES)
        except MemoryError:
            assert len(calls) == 2
    for n in range(3, 43):
        session.commit([MESSAGES.append([n, noise(n, 8000)])])
    session.close()
    assert unsound(store.check()) == []
    with store.session(CHAT) as again:
        assert [e[0] for e in elements(again) if isinstance(e, list)] == list(range(43))


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_scan_decodes_each_frame_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It decoded the whole frame for every value in it: a commit of 2,000 values took 22 seconds to scan."""
    _, session = opened(SimDisk())
    for batch in range(3):
        session.commit([value("chat", f"{batch}-{n}").set(n) for n in range(100)])
    decoded: Counter[int] = Counter()
    decode = LogView._decode

    def counting(view: LogView, span: Span, *more: Any) -> Any:
        decoded[span.offset] += 1
        return decode(view, span, *more)

    monkeypatch.setattr(LogView, "_decode", counting)
    assert len(session.scan("chat")) == 300
    assert len(decoded) == 3 and set(decoded.values()) == {1}


def test_a_deep_stack_is_no_damage() -> None:
    """Read from a caller some 800 frames deep, a nested element exhausted the stack of the interpreter, and the reader
    said CorruptLog about a sound log."""
    nested: Json = "core"
    for _ in range(200):
        nested = [nested]
    disk = SimDisk()
    _, session = opened(disk)
    session.commit([MESSAGES.append(nested)])
    _, session = opened(disk.copy())

    def deep(calls: int) -> str:
        if calls:
            return deep(calls - 1)
        try:
            session.read(MESSAGES)
        except (RecursionError, ReadFailed) as error:
            return type(error).__name__
        return "read"

    outcomes = set()
    for calls in range(500, 1000, 7):
        try:
            outcomes.add(deep(calls))
        except RecursionError:
            break
    assert {"read"} < outcomes <= {"read", "RecursionError", "ReadFailed"}
    assert elements(session) == [nested]


# --- forged and foreign bytes -----------------------------------------------------------------------------------------


def killed_log() -> tuple[SimDisk, bytes]:
    """A disk with one commit in main, and main without the space that is reserved behind it."""
    disk = SimDisk()
    _, session = opened(disk)
    session.commit([MESSAGES.append(0)])
    disk = disk.copy()
    return disk, bare(disk.read_file(MAIN_LOG))


@pytest.mark.parametrize("count", [1, 16, 17, 40, 400])
def test_any_number_of_foreign_skippable_frames_is_skipped(count: int) -> None:
    """Behind more than sixteen in a row the chain was said to end, and a frame that was durable at POWER was cut off
    as a torn tail. A later release may write such frames."""
    disk, data = killed_log()
    foreign = bytes((KIND_INSIDE + 2,)) + MAGIC_TAIL + (12).to_bytes(4, "little") + b"foreign data"
    end = len(data) + count * len(foreign)
    data += foreign * count + next_frame(data, b'[2,0,["@",1,"chat","messages","l"],[1,1]]\n', offset=end, mark=0)
    disk.write_file(MAIN_LOG, data)
    store, session = opened(disk)
    assert not session.recovery.torn and elements(session) == [0, 1]
    with store.reader(CHAT) as reader:
        assert [record.value for record in reader.records()] == [0, 1]
    session.commit([MESSAGES.append(2)])
    session.close()
    assert unsound(store.check()) == []
    assert elements(opened(disk)[1]) == [0, 1, 2]


def reheaded(data: bytes, extra: bytes) -> bytes:
    """A log whose header holds one more key, and nothing behind it."""
    header = frames_of(data)[0]
    raw = decompress(data[header.payload_offset : header.end], header.raw_length, MAX_HEADER_BYTES).rstrip()
    raw = raw[:-1] + b',"later":' + extra + b"}\n"
    fields = {"digest": int.from_bytes(data[9:11], "little"), "previous": 0, "epoch": 1, "first": 0, "last": 0}
    return encode_frame(
        KIND_HEADER, **fields, commits=0, raw_length=len(raw), payload=compress(raw), mark=-1, offset=0
    )[0]


@pytest.mark.parametrize("levels", [10, 7000])
def test_a_header_that_nests_deeply_is_refused_by_a_typed_error(levels: int) -> None:
    """A raw RecursionError came out of check, session and reader. A key of a later release that nests a little is
    read over."""
    disk, data = killed_log()
    data = reheaded(data, b"[" * levels + b"]" * levels)
    assert header_of(data).session == CHAT if levels == 10 else True
    disk.write_file(MAIN_LOG, data)
    store = Store.open(STORE, fs=disk, clock=ManualClock())
    if levels == 10:
        assert elements(store.session(CHAT)) == [] and unsound(store.check()) == []
        return
    for call in (lambda: store.session(CHAT), lambda: store.reader(CHAT)):
        with pytest.raises(CorruptLog, match="header"):
            call()
    assert [finding.reason for finding in unsound(store.check())] == ["header"]


def test_an_index_frame_that_nests_deeply_is_reported_by_a_typed_error() -> None:
    """As above, of an index frame's body."""
    disk, data = killed_log()
    last: Frame = frames_of(data)[-1]
    body = b'{"p":0,"s":0,"c":0,"n":[],"l":[],"v":[],"r":[],"later":%b}' % (b"[" * 7000 + b"]" * 7000)
    forged = next_frame(data, body, kind=KIND_INDEX, count=0, first=last.last, commits=0, payload=compress(body))
    disk.write_file(MAIN_LOG, data + forged)
    store, session = opened(disk)
    with pytest.raises(CorruptLog, match="index"):
        elements(session)
    assert "index" in {finding.reason for finding in unsound(store.check())}


def test_a_main_log_that_a_sidecar_gave_birth_to_is_born_once() -> None:
    """A sidecar's first batch at POWER needs main, and gave birth to it; main's own first batch, taken in the same
    round, did not look again: it made a second main over the first, and where that failed it removed both."""
    made: list[str] = []

    class Counting(SimDisk):
        def create(self, path: str) -> SimFile:
            made.append(os.path.basename(path))
            return super().create(path)

    disk = Counting()
    store = Store.open("/store", fs=disk, clock=ManualClock(), scope_durability=Durability.POWER)
    session = store.session("chat")
    session.append(list_of("chat", "messages"), "history")
    session.append(ephemeral("op").list_of("chat", "text"), "partial")
    session.flush()
    assert made.count("main.zst.tmp") == 1
    store.close()
    with Store.open("/store", fs=disk, clock=ManualClock()) as again:
        assert again.check() == []
        assert [e.element for e in again.session("chat").read(list_of("chat", "messages"))] == ["history"]
