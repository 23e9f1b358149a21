"""The header frame every file starts with: who it is, as one JSON line. See engine/FORMAT.md, "The header"."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

import msgspec

from .codec import BadPayload, compress, decompress
from .errors import CorruptLog, ForeignFile, NewerFormat
from .frame import NO_MARK, Fault, Frame, Short, digest_at, encode_frame, parse_frame
from .layout import (
    FORMAT_MAJOR,
    FORMAT_MINOR,
    FRAME_OVERHEAD_BYTES,
    KIND_HEADER,
    MAX_COMMIT_BYTES,
    MAX_DEPTH,
    MAX_ELEMENT_BYTES,
    MAX_HEADER_BYTES,
)

KIND_MAIN: Final = "main"
KIND_SCOPE: Final = "scope"
KIND_STORE: Final = "store"


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """What a writer of this file kept to: nesting levels, bytes an element, bytes a commit (as JSON)."""

    depth: int = MAX_DEPTH
    element: int = MAX_ELEMENT_BYTES
    commit: int = MAX_COMMIT_BYTES

    def frame_bytes(self) -> int:
        """Most uncompressed bytes a frame may claim. A header cannot raise it above this release's own limit."""
        return min(self.commit, MAX_COMMIT_BYTES) + FRAME_OVERHEAD_BYTES


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """``time`` is in ms since 1970; lines count from it. Sequences: ``base`` is the session's last durable one when
    the file began; of a scope, ``first`` is the first sequence of this life and ``after`` the retirement that it
    follows (0: none).

    Of a compacted log: of the records up to ``high`` (the last of epoch ``high_epoch``) those that were no longer
    needed are missing; ``updated`` is the time of the last line before. In main, lives that began at or below
    ``floor`` are over but for ``lives`` (their first sequences), whatever retirements stand behind.
    """

    scopelog: tuple[int, int]  # format major and minor
    kind: str
    store: str  # 128 bits in hex
    session: str = ""
    scope: str = ""
    time: int = 0
    base: int = 0
    first: int = 0
    after: int = 0
    generation: int = 0
    high: int = 0
    high_epoch: int = 0
    updated: int = 0
    floor: int = 0
    lives: tuple[int, ...] = ()
    limits: Limits = Limits()

    def ended(self, first: int) -> int:
        """The sequence at which a life that began at ``first`` had ended, 0 if the floor does not say that it had."""
        return self.floor if first <= self.floor and first not in self.lives else 0


def new_header(
    kind: str,
    store: str,
    *,
    session: str = "",
    scope: str = "",
    time: int = 0,
    base: int = 0,
    first: int = 0,
    after: int = 0,
) -> Header:
    return Header((FORMAT_MAJOR, FORMAT_MINOR), kind, store, session, scope, time, base, first, after)


@lru_cache(maxsize=64)
def digest_of(header: Header) -> int:
    """The 16 bits that every envelope of a file carries: of the store's id, and of which log of it this is."""
    owner = [header.store, header.kind, header.session, header.scope, str(header.first), str(header.generation)]
    return int.from_bytes(hashlib.sha256("\0".join(owner).encode("utf-8")).digest()[:2], "little")


def encode_header(header: Header, *, epoch: int, sequence: int) -> tuple[bytes, int]:
    """The header frame for offset 0 and its checksum. ``sequence``: the high-water mark the file begins above.

    Limits are always spelled out, so that a later release with other defaults reads them right.
    """
    fields = msgspec.to_builtins(header)
    fields["limits"] = msgspec.to_builtins(header.limits)
    raw = msgspec.json.encode(fields) + b"\n"
    return encode_frame(
        KIND_HEADER,
        digest=digest_of(header),
        previous=0,
        epoch=epoch,
        first=sequence,
        last=sequence,
        commits=0,
        raw_length=len(raw),
        payload=compress(raw),
        mark=NO_MARK,
        offset=0,
    )


class _Version(msgspec.Struct):
    scopelog: tuple[int, int]


_decode = msgspec.json.Decoder(Header).decode
_decode_version = msgspec.json.Decoder(_Version).decode


def parse_header(data: bytes, path: str) -> tuple[Header, Frame]:
    """The header at the start of ``data`` (the file's first MAX_HEADER_BYTES bytes).

    Raises :class:`CorruptLog` if there is none, :class:`NewerFormat` for a later major version.
    """
    frame = parse_frame(data[:MAX_HEADER_BYTES], 0, 0, None)
    if not isinstance(frame, Frame):
        detail = "the header is cut short" if isinstance(frame, Short) else frame.value
        reason = "header" if isinstance(frame, Short) or frame is not Fault.CHECKSUM else "checksum"
        raise CorruptLog(path=path, offset=0, sequence=0, reason=reason, detail=f"it has no valid header ({detail})")
    if frame.kind != KIND_HEADER:
        raise CorruptLog(path=path, offset=0, sequence=0, reason="header", detail="its first frame is no header")
    try:
        raw = decompress(data[frame.payload_offset : frame.end], frame.raw_length, MAX_HEADER_BYTES)
        version = _decode_version(raw).scopelog
        if version[0] > FORMAT_MAJOR:
            raise NewerFormat(
                f"{path} is of format {version[0]}.{version[1]}, this release reads {FORMAT_MAJOR}.x",
                "open it with a newer scopelog",
            )
        header = _decode(raw)
        if digest_at(data, 0) != digest_of(header):
            raise BadPayload("its envelope carries the digest of another log")
    except (BadPayload, msgspec.MsgspecError, RecursionError) as error:
        raise CorruptLog(
            path=path, offset=0, sequence=0, reason="header", detail=f"its header is malformed ({error})"
        ) from None
    return header, frame


def check_owner(header: Header, path: str, *, kind: str, store: str, session: str) -> None:
    """Raise :class:`ForeignFile` unless the header names this store, this session and this kind of file."""
    for what, found, wanted in (
        ("kind", header.kind, kind),
        ("store", header.store, store),
        ("session", header.session, session),
    ):
        if found != wanted:
            raise ForeignFile(
                f"{path} names {what} {found!r} in its header, not {wanted!r}",
                "move the file back where it belongs; nothing was changed",
            )
