"""The pure codecs: frames, lines and elements, forwards and backwards, and against bytes that mean harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopelog import InvalidElement, LimitExceeded
from scopelog_engine.codec import BadPayload, compress, decompress
from scopelog_engine.elements import freeze, thaw
from scopelog_engine.frame import (
    NO_MARK,
    Fault,
    Frame,
    Short,
    encode_cover,
    encode_frame,
    follows,
    parse_frame,
)
from scopelog_engine.layout import (
    KIND_BATCH,
    KIND_CLOSE,
    KIND_INDEX,
    KIND_INSIDE,
    MAX_SEQUENCE,
    SKIPPABLE_HEADER,
    check_id,
    session_dir_name,
    session_id_of_dir,
)
from scopelog_engine.lines import (
    APPEND,
    DELETE,
    LIST,
    RETIRE,
    SET,
    TRIM,
    VALUE,
    Address,
    AddressTable,
    BadLine,
    Note,
    Record,
    commit_line,
    decode_lines,
    encode_line,
)

# --- frames -----------------------------------------------------------------------------------------------------------


def frame_bytes(**changes: Any) -> tuple[bytes, int]:
    fields: dict[str, Any] = {
        "digest": 7,
        "previous": 1,
        "epoch": 1,
        "first": 5,
        "last": 6,
        "commits": 1,
        "raw_length": 10,
        "payload": b"payload",
        "mark": 20,
        "offset": 100,
    }
    fields.update(changes)
    return encode_frame(fields.pop("kind", KIND_BATCH), **fields)


@given(
    kind=st.sampled_from([KIND_BATCH, KIND_INDEX, KIND_CLOSE, KIND_INSIDE, 0x57]),
    digest=st.integers(0, 2**16 - 1),
    previous=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2**40),
    first=st.integers(0, 2**52),
    span=st.integers(0, 2**52),
    commits=st.integers(0, 2**20),
    raw_length=st.integers(0, 2**30),
    payload=st.binary(max_size=300),
    offset=st.integers(0, 2**50),
    back=st.integers(0, 2**50),
    marked=st.booleans(),
    before=st.binary(max_size=20),
)
def test_a_frame_comes_back_as_it_went_in(
    kind: int,
    digest: int,
    previous: int,
    epoch: int,
    first: int,
    span: int,
    commits: int,
    raw_length: int,
    payload: bytes,
    offset: int,
    back: int,
    marked: bool,
    before: bytes,
) -> None:
    mark = max(offset - back, 0) if marked else NO_MARK
    data, checksum = encode_frame(
        kind,
        digest=digest,
        previous=previous,
        epoch=epoch,
        first=first,
        last=first + span,
        commits=commits,
        raw_length=raw_length,
        payload=payload,
        mark=mark,
        offset=offset,
    )
    frame = parse_frame(before + data + b"more", len(before), offset - len(before), digest)
    assert isinstance(frame, Frame)
    assert (frame.kind, frame.offset, frame.length, frame.end) == (kind, offset, len(data), offset + len(data))
    assert (frame.epoch, frame.first, frame.last, frame.commits) == (epoch, first, first + span, commits)
    assert (frame.raw_length, frame.mark, frame.previous, frame.checksum) == (raw_length, mark, previous, checksum)
    start = frame.payload_offset - offset
    assert data[start : start + frame.payload_length] == payload
    assert int.from_bytes(data[4:8], "little") <= len(data) - SKIPPABLE_HEADER, "zstd can step over it"


def test_the_envelope_is_as_short_as_promised() -> None:
    payload = b"x" * 100
    usual, _ = frame_bytes(payload=payload, raw_length=110, first=70_000, last=70_000, mark=100, epoch=3)
    assert len(usual) - len(payload) <= 30
    large = b"x" * (2**20 - 1)
    longest, _ = frame_bytes(
        payload=large, raw_length=2 * len(large), first=2**28 - 128, last=2**28 - 1, commits=127,
        epoch=2**14 - 1, offset=2**30, mark=2**30 - 2**20,
    )  # fmt: skip
    assert len(longest) - len(large) <= 36


@given(st.binary(max_size=200), st.integers(0, 50), st.sampled_from([None, 7]))
def test_any_bytes_are_parsed_without_an_exception(data: bytes, position: int, digest: int | None) -> None:
    found = parse_frame(data, min(position, len(data)), 0, digest)
    assert not isinstance(found, Frame)
    if isinstance(found, Short):
        assert found.need > len(data) - min(position, len(data))


@given(st.data())
@pytest.mark.fault(9, rig="M")
def test_every_flipped_bit_is_noticed(data: st.DataObject) -> None:
    good, _ = frame_bytes()
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    assert not isinstance(parse_frame(bytes(bad), 0, 100, 7), Frame)


def test_a_frame_at_another_offset_of_another_log_or_cut_short_is_no_frame() -> None:
    good, _ = frame_bytes()
    assert isinstance(parse_frame(good, 0, 100, 7), Frame)
    assert parse_frame(good, 0, 101, 7) is Fault.CHECKSUM
    assert parse_frame(good, 0, 100, 8) is Fault.DIGEST
    assert isinstance(parse_frame(good, 0, 100, None), Frame)
    for length in range(len(good)):
        found = parse_frame(good[:length], 0, 100, 7)
        assert isinstance(found, Short) and length < found.need <= len(good)


def test_zeros_covers_and_reserved_magics() -> None:
    assert parse_frame(bytes(100), 0, 0, None) is Fault.ZEROS
    assert parse_frame(bytes(7) + b"\1" + bytes(92), 0, 0, None) is Fault.MAGIC
    assert parse_frame(encode_cover(4096) + bytes(100), 0, 0, None) is Fault.COVER
    assert int.from_bytes(encode_cover(4096)[4:], "little") == 4096 - 8
    assert parse_frame(b"\x60\x2a\x4d\x18" + bytes(100), 0, 0, None) is Fault.MAGIC


@pytest.mark.fault(30, rig="M")
def test_a_claimed_length_takes_no_memory() -> None:
    good, _ = frame_bytes(payload=b"")
    size = int.from_bytes(good[4:8], "little")
    forged = good[:4] + (size + 4).to_bytes(4, "little") + good[8:-4] + b"\x80\x80\x80\x80\x80\x20" + good[-4:]
    assert parse_frame(forged, 0, 100, 7) in (Fault.ENVELOPE, Fault.CHECKSUM) or isinstance(
        parse_frame(forged, 0, 100, 7), Short
    )


def test_what_continues_a_chain() -> None:
    def parsed(**changes: Any) -> Frame:
        frame = parse_frame(frame_bytes(**changes)[0], 0, 100, 7)
        assert isinstance(frame, Frame)
        return frame

    before = parsed()
    assert follows(before, parsed(previous=before.checksum, first=7, last=7)) is None
    assert follows(before, parsed(previous=before.checksum, first=70, last=70, epoch=2)) is None
    assert follows(before, parsed(previous=before.checksum ^ 1, first=7, last=7)) is Fault.CHAIN
    assert follows(before, parsed(previous=before.checksum, first=6, last=7)) is Fault.SEQUENCE
    assert follows(before, parsed(previous=before.checksum, first=7, last=7, epoch=0)) is Fault.SEQUENCE
    assert follows(before, parsed(previous=before.checksum, first=6, last=6, commits=0)) is None
    assert follows(before, parsed(previous=before.checksum, first=5, last=5, commits=0)) is Fault.SEQUENCE


# --- payloads ---------------------------------------------------------------------------------------------------------


@given(st.binary(min_size=1, max_size=5000), st.booleans())
def test_payloads_come_back(raw: bytes, waiting: bool) -> None:
    payload = compress(raw, waiting=waiting)
    assert decompress(payload, len(raw), len(raw)) == raw
    for wrong in (len(raw) + 1, max(len(raw) - 1, 0)):
        if wrong != len(raw):
            with pytest.raises(BadPayload):
                decompress(payload, wrong, 10_000)
    with pytest.raises(BadPayload):
        decompress(payload + compress(b"x"), len(raw), 10_000)
    with pytest.raises(BadPayload, match="limit"):
        decompress(payload, len(raw), len(raw) - 1)


def test_an_empty_payload_is_refused() -> None:
    with pytest.raises(BadPayload, match="empty"):
        decompress(compress(b"") + compress(b"hidden"), 0, 100)


@pytest.mark.parametrize("size", [1, 1000, 2000, 10_000, 200_000, 2_000_000])
def test_every_level_is_read(size: int) -> None:
    raw = (b"a line of text %d\n" * (size // 18 + 1))[:size]
    for waiting in (False, True):
        assert decompress(compress(raw, waiting=waiting), size, size) == raw


# --- lines ------------------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
ELEMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, Address | None, Any, Any]]:
    out: list[tuple[str, Address | None, Any, Any]] = []
    for _ in range(draw(st.integers(1, 8))):
        code = draw(st.sampled_from([APPEND, APPEND, APPEND, SET, DELETE, TRIM, RETIRE]))
        if code == RETIRE:
            out.append((code, None, None, draw(NAMES)))
            continue
        kind = VALUE if code == SET else LIST if code in (APPEND, TRIM) else draw(st.sampled_from([LIST, VALUE]))
        address = Address(draw(NAMES), draw(st.sampled_from(["a", "b"])), kind)
        argument = draw(st.none() | NAMES) if code == APPEND else draw(st.integers(0, 2**53)) if code == TRIM else None
        out.append((code, address, draw(ELEMENTS) if code in (APPEND, SET) else None, argument))
    return out


@given(st.lists(changes(), min_size=1, max_size=4), st.integers(0, 1000), st.integers(-5000, 5000))
def test_commits_come_back_from_their_lines(commits: list[Any], base: int, milliseconds: int) -> None:
    table = AddressTable()
    notes: list[Note] = []
    expected: list[Record] = []
    raw = b""
    sequence = base + 1
    for commit in commits:
        writes = []
        for code, address, element, argument in commit:
            body = freeze(element)[0] if code in (APPEND, SET) else b""
            writes.append((sequence, code, address, body, argument))
            expected.append(Record(sequence, code, address, element, argument, 10_000 + milliseconds))
            sequence += 1
        raw += encode_line(commit_line(writes, 100), base, milliseconds, table, notes)
        sequence += 3
    for line in raw.splitlines():
        json.loads(line)
    assert raw.count(b"\n") == len(commits)
    assert list(decode_lines(raw, base, 10_000, {})) == expected
    assert sum(note.elements for note in notes) == len(expected)


def test_what_this_release_does_not_know_is_skipped() -> None:
    raw = (
        b'{"a":1}\n"text"\n[1]\n'
        b'[1,0,["@",1,"n","k","l","more"],["?",1,2,3],[1,"a"],5,["g",1,"t","b"],["future"],[1,"c","d"]]\n'
    )
    found = [(r.sequence, r.value, r.argument) for r in decode_lines(raw, 0, 0, {})]
    assert found == [(2, "a", None), (8, "b", "t"), (10, "c", None), (11, "d", None)]


@pytest.mark.parametrize(
    "line",
    [
        b'[1,0,[1,"a"]]',
        b'[1,0,["v",1,2]]',
        b'[1,0,["@",1,"n","k","v"],[1,"a"]]',
        b'[1,0,["@",1,"n","k","l"],["v",1,"a"]]',
        b'[1,0,["@",1,"n"]]',
        b'[1,0,["@","1","n","k","l"]]',
        b'[1,0,["@",1,"n","k","l"],["t",1,"a"]]',
        b'[1,0,["!",1]]',
        b'[1,0,"text"]',
        b"[1,0,[]]",
        b"[1,0",
        b"[1,0,[NaN]]",
        b"\xff",
    ],
)
def test_misused_codes_are_refused(line: bytes) -> None:
    with pytest.raises(BadLine):
        list(decode_lines(line + b"\n", 0, 0, {}))


def test_a_failed_appends_definitions_are_taken_back() -> None:
    table = AddressTable()
    one, two = Address("n", "1", LIST), Address("n", "2", LIST)
    assert table.number(one, []) == 1
    table.keep()
    assert table.number(two, []) == 2
    table.undo()
    defined: list[bytes] = []
    assert table.number(one, defined) == 1 and defined == []
    assert table.number(Address("n", "3", LIST), defined) == 2 and len(defined) == 1


# --- elements ---------------------------------------------------------------------------------------------------------


@given(ELEMENTS)
def test_elements_are_frozen_exactly(element: Any) -> None:
    body, copy = freeze(element)
    assert b"\n" not in body
    for back in (copy, thaw(body)):
        assert repr(back) == repr(element) or (back == element and type(back) is type(element))


@given(st.text(st.characters(categories=["Cs"]), min_size=1, max_size=3))
def test_surrogates_come_back_or_are_refused(text: str) -> None:
    try:
        body, copy = freeze({"text": text})
    except InvalidElement:
        assert json.loads(json.dumps(text)) != text, "only what JSON cannot tell apart is refused"
        return
    assert copy == thaw(body) == {"text": text}


def test_nesting_is_counted_to_the_limit() -> None:
    def nested(depth: int) -> Any:
        element: Any = 1
        for n in range(depth):
            element = [element] if n % 2 else {"k": element}
        return element

    assert thaw(freeze(nested(256))[0]) == nested(256)
    for depth in (257, 300, 5000, 100_000):
        with pytest.raises(LimitExceeded):
            freeze(nested(depth))
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(LimitExceeded):
        freeze(cycle)


# --- names ------------------------------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_directory_names_are_safe_and_say_the_id(session: str) -> None:
    name = session_dir_name(session)
    assert len(name) <= 200 and name == name.lower() and name.isascii()
    assert "/" not in name and "\0" not in name and not name.startswith(".")
    assert session_id_of_dir(name) in (session, None)
    if "~" not in name:
        assert session_id_of_dir(name) == session


@given(st.lists(st.text(st.sampled_from("aAbB%~./é"), min_size=1, max_size=80), unique=True, min_size=2, max_size=20))
def test_two_ids_never_share_a_directory(ids: list[str]) -> None:
    assert len({session_dir_name(session).casefold() for session in ids}) == len(ids)


def test_the_longest_ids() -> None:
    assert check_id("session", "x" * 180) == "x" * 180
    assert check_id("session", "é" * 30) == "é" * 30
    assert len(session_dir_name("X" * 180)) <= 200
    assert session_dir_name("X" * 180) != session_dir_name("X" * 179)
    assert MAX_SEQUENCE == 2**53 - 1
