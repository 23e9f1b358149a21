"""Frames that lie: their checksums hold, and so does the chain behind them, but what they say is not what they hold.

No disk does this; a faulty writer might, and so might who can write the files. It is also what shows that zstd is not
trusted alone: its checksum does not cover its header, and a size that it declares is honoured by nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from fuzz.shapes import Log
from scopelog_engine.codec import compress
from scopelog_engine.frame import Frame, encode_frame
from scopelog_engine.header import digest_of
from scopelog_engine.layout import FRAME_OVERHEAD_BYTES, KIND_BATCH, KIND_HEADER, MAX_COMMIT_BYTES, MAX_SEQUENCE

TERA: Final = 2**40
MOST: Final = MAX_COMMIT_BYTES + FRAME_OVERHEAD_BYTES


def forge(log: Log, number: int, payload: bytes | None = None, **fields: Any) -> bytes:
    """The log with one frame changed and signed again, and all behind it moved and signed again; marks move along."""
    out = bytearray()
    previous, moved = 0, {0: 0}
    for at, frame in enumerate(log.frames):
        moved[frame.offset] = len(out)
        body = log.data[frame.payload_offset : frame.payload_offset + frame.payload_length]
        said: dict[str, Any] = {
            "digest": digest_of(log.header),
            "previous": previous,
            "epoch": frame.epoch,
            "first": frame.first,
            "last": frame.last,
            "commits": frame.commits,
            "raw_length": frame.raw_length,
            "payload": body,
            "mark": moved[frame.mark] if frame.mark >= 0 else -1,
            "offset": len(out),
        }
        if at == number:
            said |= {"payload": body if payload is None else payload} | fields
        data, previous = encode_frame(frame.kind, **said)
        out += data
        moved[frame.end] = len(out)
    return bytes(out)


def claiming(size: int) -> bytes:
    """A zstd frame header with an eight-byte content size and a checksum flag, then one raw block of a byte."""
    return b"\x28\xb5\x2f\xfd\xe4" + size.to_bytes(8, "little") + b"\x09\x00\x00a" + bytes(4)


@cache
def bombs() -> dict[str, tuple[int | None, bytes]]:
    """Payloads by name: the length that the envelope claims (None: that of the frame's own), and the bytes."""
    zeros = compress(b"[" + b" " * 50_000_000 + b"]\n")
    nested = compress(b"[" * 200_000 + b"]" * 200_000)
    return {
        "a terabyte, twice": (TERA, claiming(TERA)),
        "a terabyte, by zstd alone": (None, claiming(TERA)),
        "an exabyte": (2**60, claiming(2**60)),
        "a byte more than a frame may hold": (MOST + 1, claiming(MOST + 1)),
        "fifty megabytes in the name of a few bytes": (None, zeros),
        "a deep nest in the name of a few bytes": (None, nested),
        "a deep nest": (400_000, nested),
        "a run-length block that zstd does not count": (1, claiming(1)[:-8] + b"\x02\xff\xff" + bytes(5)),
        "two frames": (None, compress(b"[]\n") * 2),
        "nothing": (None, b""),
        "no zstd": (3, b"[]\n"),
        "an empty frame": (0, compress(b"\n")[:9] + b"\x01\x00\x00"),
    }


def lies(frame: Frame) -> Iterator[dict[str, Any]]:
    """What an envelope may say that is not so."""
    raw = frame.raw_length
    for length in {0, 1, raw - 1, raw + 1, 2 * raw, 2**20, MAX_COMMIT_BYTES, MOST + 1, TERA, 2**60} - {
        raw,
        -1,
    }:
        yield {"raw_length": length}
    for last in (frame.last + 1, frame.last - 1, MAX_SEQUENCE):
        if last >= frame.first:
            yield {"last": last}
    if frame.first > 1:
        yield {"first": frame.first - 1}
    if frame.last > frame.first:
        yield {"first": frame.first + 1}
    yield {"commits": frame.commits + 1}
    yield {"commits": 0}
    yield {"epoch": 2**40}
    if frame.offset:
        yield {"mark": frame.offset}


def bits_of_payloads(log: Log) -> Iterator[tuple[int, int]]:
    """Numbers of frames, and of the bits of their payloads."""
    for number, frame in enumerate(log.frames):
        if frame.kind in (KIND_BATCH, KIND_HEADER):
            yield from ((number, bit) for bit in range(8 * frame.payload_length))


def with_bit(log: Log, number: int, bit: int) -> bytes:
    """One bit of a payload turned over, and the frame signed again."""
    frame = log.frames[number]
    body = bytearray(log.data[frame.payload_offset : frame.payload_offset + frame.payload_length])
    body[bit >> 3] ^= 1 << (bit & 7)
    return forge(log, number, bytes(body))
