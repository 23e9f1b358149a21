"""Damage to logs, as plain data that bytes spell: what a disk does to bytes, and what only a forger can do to frames.

An *edit* changes bytes and leaves checksums alone, so that no engine may believe what it changed. A *forgery* writes
frames anew, with their checksums and the chain in order but for what it changes: what they say is then anybody's guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from fuzz.domains import Blob, Build, Domain, Either, Many, Number, One
from fuzz.oracle import Seen, frame, header_of
from fuzz.stores import images
from scopelog_engine.codec import compress
from scopelog_engine.frame import encode_cover, encode_frame
from scopelog_engine.layout import KIND_BATCH, KIND_CLOSE, KIND_HEADER, KIND_INDEX

EditKind = Literal[
    "flip",
    "set",
    "cut",
    "zero",
    "insert",
    "drop",
    "repeat",
    "swap",
    "append zeros",
    "append",
    "cover",
    "splice",
    "graft",
]
_KINDS: Final[tuple[EditKind, ...]] = (
    "flip", "flip", "set", "cut", "zero", "insert", "drop", "repeat", "swap", "append zeros", "append",
    "cover", "splice", "graft",
)  # fmt: skip
_LONG: Final = 1 << 16
Field = Literal[
    "kind", "epoch", "first", "span", "commits", "raw", "payload", "bomb", "mark", "digest", "previous", "drop", "twice"
]
_FIELDS: Final[tuple[Field, ...]] = (
    "kind", "epoch", "first", "span", "commits", "raw", "payload", "bomb", "mark", "digest", "previous", "drop", "twice"
)  # fmt: skip


class Edit(NamedTuple):
    """``at`` and ``other`` are places, in 65,536ths of what is there; ``length`` is in bytes."""

    kind: EditKind
    at: int
    other: int
    length: int
    filler: bytes


class Forgery(NamedTuple):
    """The ``number``-th frame says something else."""

    number: int
    field: Field
    value: int
    text: bytes


EDITS: Final = Build(
    Edit,
    kind=One(*_KINDS),
    at=Number(0, _LONG - 1),
    other=Number(0, _LONG - 1),
    length=Either(Number(1, 16), Number(1, 600)),
    filler=Blob(12),
)
INTERESTING: Final = One(
    0, 1, 2, 3, 7, 127, 128, 255, 1 << 14, 1 << 20, (1 << 28) + 5, 1 << 31, 1 << 32, (1 << 53) - 1,
    1 << 53, (1 << 64) - 1,
)  # fmt: skip
FORGERIES: Final = Build(
    Forgery,
    number=Number(0, 255),
    field=One(*_FIELDS),
    value=Either(Number(0, 40), INTERESTING),
    text=Either[bytes](
        Blob(24),
        One(
            b"[1,0,[1,2]]\n",
            b'[3,5,["@",1,"n","chat","l"],[1,7]]\n',
            b"{}",
            b"[[[[",
            b'[9007199254740991,0,["!","op-1"]]\n',
            b'{"p":0,"s":0,"c":0,"n":[],"l":[],"v":[],"r":[]}',
            b'[1,0,["v",99,1]]\n',
            b"[-5,0,[1,1]]\n",
            b'["x"]\n',
        ),
    ),
)


class Log(NamedTuple):
    """The bytes of a log. ``forged``: checksums may hold where they should not. ``kinds``: what became of it."""

    data: bytes
    forged: bool
    kinds: frozenset[str] = frozenset()


def edited(data: bytes, edits: Sequence[Edit]) -> bytes:
    for edit in edits:
        data = _edited(data, edit)
    return data


def _edited(data: bytes, edit: Edit) -> bytes:
    kind, _, _, length, filler = edit
    at, other = edit.at * len(data) // _LONG, edit.other * len(data) // _LONG
    match kind:
        case "flip" if data:
            return data[:at] + bytes((data[at] ^ 1 << length % 8,)) + data[at + 1 :]
        case "set":
            return data[:at] + filler + data[at + len(filler) :]
        case "cut":
            return data[:at]
        case "zero":
            return data[:at] + bytes(len(data[at : at + length])) + data[at + length :]
        case "insert":
            return data[:at] + filler + data[at:]
        case "drop":
            return data[:at] + data[at + length :]
        case "repeat" | "swap":
            return _moved(data, edit)
        case "append zeros":
            return data + bytes(length)
        case "append":
            return data + filler + data[other : other + length]
        case "cover":
            return data + encode_cover(8 + length) + bytes(length)
        case "splice":
            source = _of_image(length, edit.other)
            start = edit.other * len(source) // _LONG
            return data[:at] + source[start : start + length] + data[at:]
        case "graft":
            return _grafted(data, _of_image(length, edit.other), edit)
    return data


def _grafted(data: bytes, source: bytes, edit: Edit) -> bytes:
    """It goes on with the frames of another log, each in the place where it stood there."""
    frames = frames_of(source)
    start = frames[edit.at % len(frames)].at
    return data[:start].ljust(start, b"\0") + source[start:]


def _moved(data: bytes, edit: Edit) -> bytes:
    """A frame a second time, in another frame's place or at the end, or two that have changed places."""
    frames = frames_of(data)
    if not frames:
        return data
    one, two = frames[edit.at % len(frames)], frames[edit.other % len(frames)]
    if edit.kind == "repeat":
        place = two.end if edit.length % 2 else len(data)
        return data[:place] + data[one.at : one.end] + data[place:]
    if one.at > two.at:
        one, two = two, one
    if one.at == two.at:
        return data
    parts = data[: one.at], data[two.at : two.end], data[one.end : two.at], data[one.at : one.end], data[two.end :]
    return b"".join(parts)


def frames_of(data: bytes) -> list[Seen]:
    """Frames that stand one after the other from the beginning on."""
    found: list[Seen] = []
    at = 0
    while (seen := frame(data, at)) is not None:
        found.append(seen)
        at = seen.end
    return found


def forged(data: bytes, forgeries: Sequence[Forgery]) -> bytes:
    """The log written anew, each frame as it was but for the forgeries, chained, with checksums that hold."""
    frames = frames_of(data)
    changes: dict[int, list[Forgery]] = {}
    for change in forgeries:
        changes.setdefault(change.number % max(len(frames), 1), []).append(change)
    out = bytearray()
    previous = 0
    for number, seen in enumerate(frames):
        fields = {
            "kind": seen.kind, "epoch": seen.epoch, "first": seen.first, "span": seen.last - seen.first,
            "commits": seen.commits, "raw": seen.raw_length, "mark": seen.mark, "digest": seen.digest,
        }  # fmt: skip
        payload, times, link = seen.payload, 1, previous
        for _, field, value, text in changes.get(number, ()):
            if field == "kind":
                fields["kind"] = (KIND_BATCH, KIND_INDEX, KIND_CLOSE, KIND_HEADER, 0x55, 0x58, 0x5F)[value % 7]
            elif field == "payload":
                payload, fields["raw"] = (compress(text), len(text)) if text else (b"", 0)
            elif field == "bomb":
                payload, fields["raw"] = _bomb(value, text)
            elif field == "previous":
                link = value & 0xFFFFFFFF
            elif field in ("drop", "twice"):
                times = 0 if field == "drop" else 2
            else:
                fields[field] = value & 0xFFFF if field == "digest" else value
        for _ in range(times):
            raw, checksum = encode_frame(
                fields["kind"],
                digest=fields["digest"],
                previous=link,
                epoch=fields["epoch"],
                first=fields["first"],
                last=fields["first"] + fields["span"],
                commits=fields["commits"],
                raw_length=fields["raw"],
                payload=payload,
                mark=min(fields["mark"], len(out)),
                offset=len(out),
            )
            out += raw
            previous = link = checksum
    return bytes(out) + data[frames[-1].end :] if frames else data


def _bomb(value: int, text: bytes) -> tuple[bytes, int]:
    """A zstd frame whose header lies, or that blows up, and the length that the envelope claims for it."""
    packed = bytearray(compress(bytes(value % 4096 + 1)))
    if value % 3 == 0:  # a declared size of 2**63: single segment, 8 bytes of content size
        packed = bytearray(b"\x28\xb5\x2f\xfd\xe0") + ((2**63 - value) % 2**64).to_bytes(8, "little") + text
    elif value % 3 == 1 and len(packed) > 4:
        packed[4] ^= value & 0xFF
    return bytes(packed), value


def _of_image(image: int, log: int) -> bytes:
    chosen = images()[image % len(images())]
    return chosen.files[chosen.logs[log % len(chosen.logs)]]


def _edited_log(image: int, log: int, edits: list[Edit]) -> Log:
    return Log(edited(_of_image(image, log), edits), forged=False, kinds=frozenset(edit.kind for edit in edits))


def _forged_log(image: int, log: int, forgeries: list[Forgery], edits: list[Edit]) -> Log:
    kinds = frozenset([*(forgery.field for forgery in forgeries), *(edit.kind for edit in edits)])
    return Log(edited(forged(_of_image(image, log), forgeries), edits), forged=True, kinds=kinds)


def raw_log(data: bytes) -> Log:
    """Any bytes, whose checksums a fuzzer may have learnt to get right."""
    return Log(data, forged=True)


_WHICH: Final = {"image": Number(0, 7), "log": Number(0, 7)}
_EDITED: Final = Build(_edited_log, **_WHICH, edits=Many(EDITS, 0, 4))
_FORGED: Final = Build(_forged_log, **_WHICH, forgeries=Many(FORGERIES, 0, 4), edits=Many(EDITS, 0, 1))
LOGS: Final[Domain[Log]] = Either[Log](
    Build(raw_log, data=Blob()), _EDITED, _EDITED, _EDITED, _FORGED, _FORGED, _FORGED
)

__all__ = ["EDITS", "FORGERIES", "LOGS", "Edit", "Forgery", "Log", "edited", "forged", "header_of", "raw_log"]
