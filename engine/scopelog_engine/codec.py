"""zstd for one frame at a time: re-used contexts, one a thread, and a decoder that trusts nothing.

zstd alone is never trusted: its checksum does not cover its own header, its size limit is ignored when the header
declares a size, and a one-shot decompress drops what follows. The envelope's checksum and lengths decide.
"""

from __future__ import annotations

import threading
from typing import Final

import zstandard

_LARGE: Final = 1024
_LEVEL_LARGE: Final = 12  # from _LARGE bytes on a higher level pays: 1 to 3 % smaller
_LEVEL_WAITING: Final = 3  # small, and somebody waits for it: 4 us
_LEVEL_PATIENT: Final = 13  # small, in the background: 3 % smaller, because it entropy-codes the shortest texts too


class BadPayload(ValueError):
    """The payload is not the one zstd frame that its envelope promised."""


def _compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)


class _Codec(threading.local):
    def __init__(self) -> None:
        self.waiting = _compressor(_LEVEL_WAITING)
        self.patient = _compressor(_LEVEL_PATIENT)
        self.large = _compressor(_LEVEL_LARGE)
        self.decompressor = zstandard.ZstdDecompressor()


_codec = _Codec()


def compress(raw: bytes, *, waiting: bool = False) -> bytes:
    """One zstd frame with content size and checksum. ``waiting``: somebody waits for it, so a small one is quick."""
    if len(raw) >= _LARGE:
        return _codec.large.compress(raw)
    return (_codec.waiting if waiting else _codec.patient).compress(raw)


def decompress(payload: bytes, raw_length: int, limit: int) -> bytes:
    """The ``raw_length`` bytes that ``payload`` stands for; :class:`BadPayload` if it does not, or if over ``limit``.

    No memory is taken before the promised size has been checked against the limit and the frame's own header.
    """
    if raw_length > limit:
        raise BadPayload(f"the frame claims {raw_length} bytes, the limit is {limit}")
    try:
        parameters = zstandard.get_frame_parameters(payload)
        if parameters.content_size != raw_length:
            raise BadPayload(f"envelope and zstd header disagree: {raw_length} and {parameters.content_size} bytes")
        if parameters.dict_id:
            raise BadPayload(f"the frame needs dictionary {parameters.dict_id}, which is not here")
        raw = _codec.decompressor.decompress(payload, max_output_size=raw_length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadPayload(str(error)) from error
    if len(raw) != raw_length:
        raise BadPayload(f"{len(raw)} bytes came out, {raw_length} were promised")
    return raw
