"""zstd for one frame at a time: re-used contexts, one a thread, and a decoder that trusts nothing.

zstd alone is never trusted: its checksum does not cover its own header, its size limit is ignored when the header
declares a size, and a one-shot decompress drops what follows. The envelope's checksum and lengths decide.
"""

from __future__ import annotations

import threading
from typing import Final

import zstandard

# Levels by size, measured on messages and tool output: what the next level up would save is not worth its time.
_WAITING: Final = 3  # under 1 KiB, and somebody waits for it: 4 us
_PATIENT: Final = 13  # under 1 KiB in the background: 3 % smaller, since it entropy-codes the shortest texts too
_STEPS: Final = ((8 * 1024, 12), (128 * 1024, 6), (1 << 62, 3))  # sizes below, level
_SMALL: Final = 1024
_NO_MEMORY: Final = "not enough memory"


class BadPayload(ValueError):
    """The payload is not the one zstd frame that its envelope promised."""


class _Codec(threading.local):
    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}  # by level, made at first use
        self.decompressor = zstandard.ZstdDecompressor()

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        known = self.compressors.get(level)
        if known is None:
            known = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
            self.compressors[level] = known
        return known


_codec = _Codec()


def compress(raw: bytes, *, waiting: bool = False, crowd: bool = False) -> bytes:
    """One zstd frame with content size and checksum. ``waiting``: somebody waits for it, so a small one is quick.
    ``crowd``: many do, so that time counts for more than size."""
    size = len(raw)
    if crowd:
        level = _WAITING
    elif size < _SMALL:
        level = _WAITING if waiting else _PATIENT
    else:
        level = next(level for below, level in _STEPS if size < below)
    try:
        return _codec.compressor(level).compress(raw)
    except zstandard.ZstdError as error:
        raise _of_memory(error) or error from None


def _of_memory(error: zstandard.ZstdError) -> MemoryError | None:
    """Want of memory is told by the library in the words of its C part alone, and is no fault of any frame."""
    return MemoryError(str(error)) if _NO_MEMORY in str(error) else None


def decompress(payload: bytes, raw_length: int, limit: int) -> bytes:
    """The ``raw_length`` bytes that ``payload`` stands for; :class:`BadPayload` if it does not, or if over ``limit``.

    No memory is taken before the promised size has been checked against the limit and the frame's own header.
    """
    if raw_length > limit:
        raise BadPayload(f"the frame claims {raw_length} bytes, the limit is {limit}")
    if raw_length == 0:
        raise BadPayload("the frame is empty")  # the library would not even look at what follows
    try:
        parameters = zstandard.get_frame_parameters(payload)
        if parameters.content_size != raw_length:
            raise BadPayload(f"envelope and zstd header disagree: {raw_length} and {parameters.content_size} bytes")
        if parameters.dict_id:
            raise BadPayload(f"the frame needs dictionary {parameters.dict_id}, which is not here")
        raw = _codec.decompressor.decompress(payload, max_output_size=raw_length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _of_memory(error) or BadPayload(str(error)) from error
    if len(raw) != raw_length:
        raise BadPayload(f"{len(raw)} bytes came out, {raw_length} were promised")
    return raw
