"""Payload lines and elements: any text as the lines of a frame, any bytes as its zstd frame, any object as an element.

Lines that were written come back as they were. What is no payload is refused before memory is taken for it. What is no
element is refused before a sequence is, and its neighbours in the commit and in the window are unharmed.
"""

from __future__ import annotations

import math
import tracemalloc
from itertools import pairwise
from typing import Any, Final, NamedTuple

from fuzz.domains import Blob, Build, Domain, Either, Many, Mapped, Nested, Number, One, Text
from fuzz.model_handles import PATH
from fuzz.simdisk import SimDisk
from scopelog import InvalidInput, ManualClock, Store, ephemeral, list_of, value
from scopelog_engine.codec import BadPayload, compress, decompress
from scopelog_engine.elements import freeze
from scopelog_engine.errors import ReadFailed
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
    Line,
    Note,
    Write,
    commit_line,
    decode_lines,
    encode_line,
)

_LIMIT: Final = 1 << 20
_CHAT: Final = list_of("n", "chat")


class RawLines(NamedTuple):
    text: bytes


class Payload(NamedTuple):
    """A zstd frame, and how long its envelope says that it is."""

    data: bytes
    claimed: int


class Written(NamedTuple):
    """Writes, and after which of them a line ends."""

    writes: list[Any]
    window: bool
    gaps: list[int]
    base: int
    time: int

    def __repr__(self) -> str:
        return f"Written({len(self.writes)} writes, window={self.window}, gaps={self.gaps}, base={self.base})"


class Given(NamedTuple):
    """What a harness hands in."""

    elements: list[Any]
    staged: bool

    def __repr__(self) -> str:
        try:
            return f"Given(elements={self.elements!r}, staged={self.staged})"
        except ValueError:  # integers that this interpreter does not spell
            return f"Given({len(self.elements)} elements with huge integers, staged={self.staged})"


_SURROGATES: Final = Text('a\u6c34\U0001f600\ud83d\ude00\n"\\', 5)
_NUMBERS: Final = One[Any](0, -1, 2**53, -(2**63), 2**64, 1.5, -0.0, 1e308, 5e-324)
_HUGE: Final = Build(
    lambda digits, less, sign: sign * (10**digits - less), digits=One(4299, 4300, 5000), less=One(0, 1), sign=One(1, -1)
)
_ALIEN: Final = One[Any](
    math.nan, math.inf, -math.inf, (), (1,), b"", bytearray(b"x"), {1: 2}, {None: 1}, {1, 2}, object(), range(2),
    "\ud83d\ude00", {"\ud83d\ude00": 1}, type, {True: 1}, {"a": (1,)}, [b"x"],
)  # fmt: skip
_GOOD: Final = Nested(
    Either[Any](One(None, True, False), Number(-3, 3), _NUMBERS, _HUGE, _SURROGATES), _SURROGATES, 3, 3
)


def _deep(element: Any, depth: int, kind: bool) -> Any:
    for _ in range(depth):
        element = [element] if kind else {"k": element}
    return element


_ELEMENTS: Final = Either[Any](
    _GOOD,
    _GOOD,
    _ALIEN,
    Nested(Either[Any](_ALIEN, _NUMBERS), _SURROGATES, 2, 2),
    Build(
        _deep, element=Either[Any](_GOOD, _ALIEN), depth=One(1, 250, 255, 256, 257, 300, 2000), kind=One(True, False)
    ),
    Build(lambda text, times: text * times, text=_SURROGATES, times=One(1, 100, 20_000)),
)
_ADDRESSES: Final = Build(Address, namespace=One("n", "é"), key=Text('ab\n"\U0001f600', 4), kind=One(LIST, VALUE))
_WRITES: Final = Build(
    lambda code, address, element, tag, number: (code, address, element, tag, number),
    code=One(APPEND, APPEND, SET, DELETE, TRIM, RETIRE),
    address=_ADDRESSES,
    element=_GOOD,
    tag=One(None, None, "t", "\u6c34"),
    number=Number(0, 1 << 20),
)
_ITEMS: Final = One(
    b'["@",1,"n","k","l"]', b'["@",2,"n","k","v"]', b"[1,2,3]", b'["v",2,{}]', b'["x",1]', b'["t",1,9]', b'["!","op"]',
    b'["g",1,"t",0]', b"7", b"-7", b"[]", b"null", b'["@"]', b'["q",1]', b'["v",1,1]', b"[9,1]", b'["g",1,1,1]',
    b'["x"]',
    b"[true,1]", b"1.0", b'["t",1,1.5]', b'["@",1,"n",1,"l"]', b'["v",2,"\\ud800"]', b"[1," + b"9" * 4301 + b"]",
    b"[1," + b"[" * 2000 + b"]" * 2000 + b"]", b"[{}]", b'["\\ud800",1]', b"[[1]]", b'["@",-1,"","","x"]',
)  # fmt: skip
_TEXTS: Final = Build(
    lambda heads, items, tail: b"".join(
        b"[%b,%b,%b]\n" % (heads[0], heads[1], b",".join(part)) for part in items
    ) + tail,
    heads=Build(lambda a, b: (a, b), a=One(b"1", b"0", b"-3", b"null", b"1e3"), b=One(b"0", b"-5", b'"x"')),
    items=Many(Many(_ITEMS, 0, 5), 1, 3),
    tail=Blob(6),
)  # fmt: skip


def _packed(text: bytes, times: int, claimed: int, at: int, bits: int) -> Payload:
    data = bytearray(compress(text * times or b"x"))
    if bits:
        data[at % len(data)] ^= bits
    return Payload(bytes(data), claimed or len(text * times or b"x"))


def _declared(size: int, tail: bytes, claimed: int) -> Payload:
    """A header that declares a size."""
    return Payload(b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + tail, claimed or size)


_CLAIMS: Final = One(0, 0, 0, 1, 12, _LIMIT, _LIMIT + 1, 1 << 30, (1 << 40) + 7, (1 << 63) - 1)
LINES: Final[Domain[RawLines | Payload | Written | Given]] = Either[RawLines | Payload | Written | Given](
    Mapped(Blob(), RawLines),
    Build(RawLines, text=_TEXTS),
    Build(_packed, text=Blob(8), times=One(1, 3, 90_000), claimed=_CLAIMS, at=Number(0, 40), bits=Number(0, 255)),
    Build(_declared, size=One(1, 12, _LIMIT, 1 << 28, 1 << 40, (1 << 64) - 1), tail=Blob(9), claimed=_CLAIMS),
    Build(
        Written, writes=Many(_WRITES, 1, 8), window=One(False, True), gaps=Many(Number(0, 3), 8, 8),
        base=One(0, 7, 1 << 40), time=One(0, 1_764_547_200_000),
    ),
    Build(Given, elements=Many(_ELEMENTS, 1, 3), staged=One(False, True)),
)  # fmt: skip


def check_lines(case: RawLines | Payload | Written | Given) -> None:
    if isinstance(case, RawLines):
        _check_text(case.text)
    elif isinstance(case, Payload):
        _check_payload(case)
    elif isinstance(case, Written):
        _check_written(case)
    else:
        _check_given(case)


def _check_text(text: bytes) -> None:
    lists: list[list[object] | None] = [None, []]
    for unknown in lists:
        table: dict[int, Address] = {}
        count = 0
        try:
            for record in decode_lines(text, 5, 0, table, unknown):
                assert record.code in (APPEND, SET, DELETE, TRIM, RETIRE)
                assert record.code == RETIRE or record.address in table.values(), "an address that was never defined"
                count += 1
        except (BadLine, ReadFailed):
            pass
        assert count <= len(text), "more records than bytes"


def _check_payload(payload: Payload) -> None:
    """At most what is promised is taken, and that only up to the limit."""
    tracemalloc.start()
    try:
        raw = decompress(payload.data, payload.claimed, _LIMIT)
    except BadPayload:
        raw = None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if raw is not None:
        assert len(raw) == payload.claimed <= _LIMIT, "more came out than was promised"
    assert peak <= min(payload.claimed, _LIMIT) * 2 + 64 * 1024, f"{peak} bytes were taken for {payload.claimed}"


def _check_written(case: Written) -> None:
    sequence, writes, lines = case.base + 1, [], []
    for (code, address, element, tag, number), gap in zip(case.writes, case.gaps, strict=False):
        sequence += gap
        writes.append(_write(sequence, code, address, element, tag, number))
        sequence += 1
    if case.window:
        writes = [(n, APPEND, a._replace(kind=LIST), body, t if isinstance(t, str) else None) for n, _, a, body, t in (
            (w[0], w[1], w[2] or Address("n", "k", LIST), w[3] or b"0", w[4]) for w in writes)]  # fmt: skip
        entries = [(n, address, body, tag, object()) for n, _, address, body, tag in writes]
        lines = [Line(entries, True, writes[0][0], writes[-1][0], 0, False)]
    else:
        cut = case.gaps[0] % len(writes)
        lines = [commit_line(part, 100) for part in (writes[:cut], writes[cut:]) if part]
    table, notes, names = AddressTable(), list[Note](), dict[int, Address]()
    text = b"".join(encode_line(line, case.base, 17, table, notes) for line in lines)
    found = [*decode_lines(text, case.base, case.time, names)]
    assert [record.sequence for record in found] == [write[0] for write in writes], "sequences are lost"
    for record, write in zip(found, writes, strict=True):
        assert (record.code, record.address, record.argument) == (write[1], write[2], write[4]), f"{write}: {record}"
        assert not write[3] or freeze(record.value)[0] == write[3], f"{write[3]!r} came back as {record.value!r}"
        assert record.time == case.time + 17
    told = sum(note.elements for note in notes)
    assert told == len(writes) and all(a.last < b.first for a, b in pairwise(notes)), "notes do not tell of all"
    assert all(table.known(address) == number for number, address in names.items())


def _write(sequence: int, code: str, address: Address, element: Any, tag: str | None, number: int) -> Write:
    body = b""
    if code in (APPEND, SET):
        body = freeze(element if legal(element) else None)[0]
    kind = VALUE if code == SET else LIST if code in (APPEND, TRIM) else address.kind
    argument: str | int | None = {APPEND: tag, TRIM: number, RETIRE: "op"}.get(code)
    return sequence, code, None if code == RETIRE else address._replace(kind=kind), body, argument


def legal(element: Any, depth: int = 0) -> bool:
    """Whether it is JSON that comes back as it went in, told naively."""
    if element is None or type(element) is bool:
        return True
    if type(element) is int:
        return abs(element) < 10**4300
    if type(element) is float:
        return math.isfinite(element)
    if type(element) is str:
        return not any("\ud800" <= a <= "\udbff" and "\udc00" <= b <= "\udfff" for a, b in pairwise(element))
    if depth > 255:
        return False
    if type(element) is list:
        return all(legal(item, depth + 1) for item in element)
    return type(element) is dict and all(
        type(key) is str and legal(key) and legal(item, depth + 1) for key, item in element.items()
    )


def exact(left: Any, right: Any) -> bool:
    """The same, type by type; -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if type(left) is list:
        return len(left) == len(right) and all(map(exact, left, right))
    if type(left) is dict:
        return [*left] == [*right] and all(map(exact, left.values(), right.values()))
    return bool(left == right) and (type(left) is not float or math.copysign(1, left) == math.copysign(1, right))


def _check_given(case: Given) -> None:
    disk = SimDisk(preallocates=False)
    with Store.open(PATH, fs=disk, clock=ManualClock()) as store, store.session("s") as session:
        state, out = value("n", "state"), ephemeral("op").list_of("n", "out")
        session.commit([_CHAT.append("before")])
        kept = ["before"]
        session.append(_CHAT, "staged")
        kept.append("staged")
        for element in case.elements:
            stats, bytes_ = session.stats(), disk.digest()
            writes = [_CHAT.append("neighbour"), state.set(element), _CHAT.append(element)]
            try:
                if case.staged:
                    session.append(_CHAT, element)
                else:
                    session.commit(writes)
            except InvalidInput as error:
                assert not legal(element), f"refused: {error}"
                assert (session.stats(), disk.digest()) == (stats, bytes_), "refused, and something was taken"
            else:
                assert legal(element), f"{element!r} was taken"
                kept += [element] if case.staged else ["neighbour", element]
            session.commit([out.append("next")])
        _hold(session.read(_CHAT), kept)
    with Store.open(PATH, fs=disk.kill(), clock=ManualClock()) as store, store.session("s") as session:
        _hold(session.read(_CHAT), kept)
        assert len(session.read(out)) == len(case.elements)


def _hold(found: list[Any], kept: list[Any]) -> None:
    assert len(found) == len(kept) and all(exact(e.element, k) for e, k in zip(found, kept, strict=True)), "elements"


__all__ = ["LINES", "Given", "Payload", "RawLines", "Written", "check_lines"]
