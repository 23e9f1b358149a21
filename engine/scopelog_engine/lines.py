"""Commit lines: between writes and the JSON lines inside a batch frame. Pure; see engine/FORMAT.md, "The payload".

One line is one commit or one window: ``[sequence, milliseconds, item, ...]``, both counted from what the header
says: its ``first`` (0 in main: there the sequence is the session's own) and its ``time``. Items::

    ["@", id, namespace, key, "l" or "v"]  defines an address for the rest of the stretch; takes no sequence
    [id, element, ...]                     appends to that list; each element takes the next sequence
    ["g", id, tag, element]                appends a tagged element
    ["v", id, value]                       sets a value
    ["x", id]                              deletes the value or the list
    ["t", id, sequence]                    trims the list: drops elements up to and including that sequence
    ["!", scope id]                        retires an ephemeral scope
    n                                      (an integer) skips n sequences

Readers skip items with an unknown code (each takes one sequence) and lines that are no such array.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from .elements import Json, loads
from .errors import ReadFailed
from .layout import OWN_FRAME_BYTES

LIST: Final = "l"
VALUE: Final = "v"

APPEND: Final = "l"
TAGGED: Final = "g"
SET: Final = "v"
DELETE: Final = "x"
TRIM: Final = "t"
RETIRE: Final = "!"
DEFINE: Final = "@"


class Address(NamedTuple):
    """An address within one log; the scope is the log's. ``kind`` is LIST or VALUE."""

    namespace: str
    key: str
    kind: str


Write: TypeAlias = "tuple[int, str, Address | None, bytes, str | int | None]"
"""One frozen write of a commit: sequence, code (APPEND, SET, DELETE, TRIM or RETIRE), address (None for RETIRE), JSON
text (APPEND, SET), argument (a tag, a trim's sequence or a scope id). A plain tuple, for speed."""


class Record(NamedTuple):
    """One write read back. ``value`` is the element or value; ``argument`` as in ``Write``; ``time`` in ms."""

    sequence: int
    code: str  # APPEND, SET, DELETE, TRIM or RETIRE
    address: Address | None
    value: Json
    argument: str | int | None
    time: int


new_tuple: Final = tuple.__new__
"""Makes a NamedTuple without a Python-level call, on paths where that counts."""


class BadLine(ValueError):
    """A line inside a frame whose checksum holds breaks the format."""


class AddressTable:
    """Address numbers of one stretch, on the writing side. ``undo`` takes back what a failed append defined."""

    __slots__ = ("_fresh", "_ids", "_next")

    def __init__(self, numbers: dict[int, Address] | None = None) -> None:
        self._ids = {address: number for number, address in (numbers or {}).items()}
        self._next = max(numbers, default=0) + 1 if numbers else 1
        self._fresh: list[Address] = []

    def __len__(self) -> int:
        return len(self._ids)

    def known(self, address: Address) -> int | None:
        """The address's number if it has one."""
        return self._ids.get(address)

    def number(self, address: Address, out: list[bytes]) -> int:
        """The address's number; its definition is added to ``out`` at first use."""
        known = self._ids.get(address)
        if known is not None:
            return known
        fresh = self._next
        self._next += 1
        self._ids[address] = fresh
        self._fresh.append(address)
        out.append(_json([DEFINE, fresh, address.namespace, address.key, address.kind]))
        return fresh

    def keep(self) -> None:
        self._fresh.clear()

    def undo(self) -> None:
        while self._fresh:
            self._next -= 1
            del self._ids[self._fresh.pop()]


class Note(NamedTuple):
    """What writes of one address and code do to a stretch's summary: ``elements`` of them, ``first`` to ``last``."""

    code: str
    address: Address | None
    first: int
    last: int
    elements: int
    argument: str | int | None


class Line(NamedTuple):
    """One commit, or one window of staged elements, on its way to a frame. Entries are in order of sequence.

    A commit's ``entries`` are ``Write``; a window's are tuples that begin (sequence, address, JSON text, tag),
    the addresses of one list being one object. ``size``: bytes it may take. ``large``: wants a frame of its own.
    """

    entries: Sequence[Any]
    is_window: bool
    first: int
    last: int
    size: int
    large: bool


def commit_line(writes: list[Write], size: int) -> Line:
    """``size``: bytes the line may take, its names included."""
    large = size > OWN_FRAME_BYTES and any(len(write[3]) > OWN_FRAME_BYTES for write in writes)
    return new_tuple(Line, (writes, False, writes[0][0], writes[-1][0], size, large))


def encode_line(line: Line, base: int, milliseconds: int, table: AddressTable, notes: list[Note]) -> bytes:
    """One line, with its newline; ``base`` and ``milliseconds`` are the header's first sequence and the time since it.
    ``table`` and ``notes`` gain what the line defines and does."""
    if not line.is_window and len(line.entries) == 1:  # the commonest commit of all, at once
        sequence, code, address, body, argument = line.entries[0]
        if code == APPEND and argument is None:
            number = table.known(address)
            if number is not None:
                _note_append(notes, address, sequence)
                return b"[%d,%d,[%d,%b]]\n" % (sequence - base, milliseconds, number, body)
    items: list[bytes] = [b"%d" % (line.first - base), b"%d" % milliseconds]
    (_window_items if line.is_window else _commit_items)(line.entries, items, table, notes)
    return b"[%b]\n" % b",".join(items)


def _note_append(notes: list[Note], address: Address, sequence: int) -> None:
    """One more element, of the run that the last note tells of if it goes on."""
    first, elements = sequence, 1
    if notes:
        last = notes[-1]
        if last.code == APPEND and last.argument is None and last.last == sequence - 1 and last.address == address:
            first, elements = last.first, last.elements + 1
            notes.pop()
    notes.append(new_tuple(Note, (APPEND, address, first, sequence, elements, None)))


_body, _tag, _list = itemgetter(2), itemgetter(3), itemgetter(4)  # of a staged entry
_UNTAGGED: Final = {None}


def _window_items(entries: Sequence[Any], items: list[bytes], table: AddressTable, notes: list[Note]) -> None:
    expected = entries[0][0]
    count = len(entries)
    if (
        entries[-1][0] - expected == count - 1
        and len(set(map(_list, entries))) == 1
        and set(map(_tag, entries)) == _UNTAGGED
    ):
        _end_run(list(map(_body, entries)), entries[0][1], expected + count, table, items, notes)  # the usual window
        return
    run: list[bytes] = []  # adjacent untagged elements of one list
    run_address: Address | None = None
    for entry in entries:
        if entry[1] is run_address and entry[0] == expected and entry[3] is None:
            run.append(entry[2])
            expected += 1
            continue
        if run:
            _end_run(run, run_address, expected, table, items, notes)
            run = []
        sequence, address, body, tag = entry[:4]
        if sequence != expected:
            items.append(b"%d" % (sequence - expected))
        expected = sequence + 1
        if tag is None:
            run, run_address = [body], address
        else:
            run_address = None
            notes.append(Note(APPEND, address, sequence, sequence, 1, tag))
            items.append(b'["g",%d,%b,%b]' % (table.number(address, items), _json(tag), body))
    if run:
        _end_run(run, run_address, expected, table, items, notes)


def _commit_items(writes: Sequence[Write], items: list[bytes], table: AddressTable, notes: list[Note]) -> None:
    run: list[bytes] = []
    run_address: Address | None = None
    expected = writes[0][0]
    for sequence, code, address, body, argument in writes:
        joins = code == APPEND and argument is None
        if run and not (joins and address == run_address and sequence == expected):
            _end_run(run, run_address, expected, table, items, notes)
            run = []
        if sequence != expected:  # what stood between has been compacted away
            items.append(b"%d" % (sequence - expected))
        expected = sequence + 1
        if joins:
            run.append(body)
            run_address = address
            continue
        notes.append(new_tuple(Note, (code, address, sequence, sequence, 1, argument)))
        if code == RETIRE:
            items.append(b'["!",%b]' % _json(argument))
            continue
        assert address is not None
        number = table.number(address, items)
        if code == APPEND:
            items.append(b'["g",%d,%b,%b]' % (number, _json(argument), body))
        elif code == SET:
            items.append(b'["v",%d,%b]' % (number, body))
        elif code == DELETE:
            items.append(b'["x",%d]' % number)
        else:
            items.append(b'["t",%d,%b]' % (number, _json(argument)))
    if run:
        _end_run(run, run_address, expected, table, items, notes)


_json = msgspec.json.Encoder().encode


def _end_run(
    run: list[bytes],
    address: Address | None,
    expected: int,
    table: AddressTable,
    items: list[bytes],
    notes: list[Note],
) -> None:
    assert address is not None
    items.append(b"[%d,%b]" % (table.number(address, items), b",".join(run)))
    notes.append(new_tuple(Note, (APPEND, address, expected - len(run), expected - 1, len(run), None)))


_decode_lines = msgspec.json.Decoder().decode_lines


def parse_lines(raw: bytes) -> list[Any]:
    """The lines of one frame's raw payload as JSON. Raises :class:`BadLine`, :class:`ReadFailed`."""
    try:
        return _decode_lines(raw)
    except (msgspec.MsgspecError, RecursionError):  # lone surrogates or very long integers
        try:
            return [loads(line) for line in raw.split(b"\n") if line]
        except ValueError as error:
            raise BadLine(f"a line is not JSON ({error})") from None
        except RecursionError:
            raise ReadFailed(
                "an element nests deeper than the caller's stack has room for", "read it from fewer calls deep"
            ) from None


def nests_deeper(raw: bytes, levels: int) -> bool:
    """Whether JSON text nests deeper than so many levels. Takes no stack, and a second for some ten megabytes."""
    depth = 0
    for token in _TOKENS.finditer(raw):
        depth += _STEPS.get(token[0], 0)
        if depth > levels:
            return True
    return False


_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_STEPS: Final = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


def decode_lines(
    raw: bytes, base: int, base_time: int, table: dict[int, Address], unknown: list[object] | None = None
) -> Iterator[Record]:
    """The records of one frame's raw payload, in order. ``table`` gains the addresses defined on the way.

    ``base`` and ``base_time`` are the header's first sequence and its time.

    Raises :class:`BadLine` where known codes are misused; unknown codes and lines are skipped, and put in ``unknown``.
    """
    return records_of(parse_lines(raw), base, base_time, table, unknown)


def records_of(
    lines: list[Any], base: int, base_time: int, table: dict[int, Address], unknown: list[object] | None = None
) -> Iterator[Record]:
    """As :func:`decode_lines`, of lines that were parsed."""
    for line in lines:
        if not isinstance(line, list) or len(line) < 2 or type(line[0]) is not int or type(line[1]) is not int:
            if unknown is not None:
                unknown.append(line)
            continue  # a line of a kind this release does not know
        sequence = base + line[0]
        time = base_time + line[1]
        for item in line[2:]:
            if type(item) is int:
                sequence += item
                continue
            if type(item) is not list or not item:
                raise BadLine(f"an item of line {line[0]} is neither an array nor an integer")
            code = item[0]
            if type(code) is int:
                address = _address(table, code, LIST)
                for element in item[1:]:
                    yield new_tuple(Record, (sequence, APPEND, address, element, None, time))
                    sequence += 1
                continue
            if code == DEFINE:
                if len(item) < 5 or type(item[1]) is not int or not all(type(part) is str for part in item[2:5]):
                    raise BadLine("a definition is malformed")
                table[item[1]] = Address(item[2], item[3], item[4])
                continue
            if code == TAGGED and len(item) == 4 and type(item[2]) is str:
                yield new_tuple(Record, (sequence, APPEND, _address(table, item[1], LIST), item[3], item[2], time))
            elif code == SET and len(item) == 3:
                yield new_tuple(Record, (sequence, SET, _address(table, item[1], VALUE), item[2], None, time))
            elif code == DELETE and len(item) == 2:
                yield Record(sequence, DELETE, _address(table, item[1], None), None, None, time)
            elif code == TRIM and len(item) == 3 and type(item[2]) is int:
                yield Record(sequence, TRIM, _address(table, item[1], LIST), None, item[2], time)
            elif code == RETIRE and len(item) == 2 and type(item[1]) is str:
                yield Record(sequence, RETIRE, None, None, item[1], time)
            elif code in (TAGGED, SET, DELETE, TRIM, RETIRE):
                raise BadLine(f"an item with code {code!r} is malformed")
            elif unknown is not None:
                unknown.append(item)
            sequence += 1


def _address(table: dict[int, Address], number: Any, kind: str | None) -> Address:
    address = table.get(number) if type(number) is int else None
    if address is None:
        raise BadLine(f"address {number!r} is not defined in this stretch")
    if kind is not None and address.kind != kind:
        raise BadLine(f"address {number} is of kind {address.kind!r}, not {kind!r}")
    return address
