"""The fault matrix: what the engine must survive, a number and a sentence a row. Tests name the rows they provoke.

``@pytest.mark.fault(4, 5, rig="M")`` says: this test provokes rows 4 and 5 by byte mutation. Rigs: S a simulated disk,
M mutation of real files, K system calls of real processes (ptrace, strace), P power cuts of a real file system, F a
strict FUSE file system, B a replayed block log, R resource limits.
"""

from __future__ import annotations

from typing import Final

RIGS: Final = {
    "S": "simulated disk",
    "M": "mutated files",
    "K": "system calls",
    "R": "resource limits",
    "P": "power cuts",
    "F": "strict FUSE",
    "B": "block log",
}

ROWS: Final = {
    1: "kill -9 at every system call",
    2: "kill during recovery, again and again",
    3: "power cut at a random instant",
    4: "last frame cut at every byte",
    5: "last frame zeroed, garbage behind the end",
    6: "zeros behind the end, 1 B to 64 KiB",
    7: "zero hole, then frames that were not synced",
    8: "the same hole below a durable mark",
    9: "one bit flipped in every byte",
    10: "frame duplicated, swapped, of another store or generation",
    11: "un-synced writes lost or reordered in a file",
    12: "writes reordered across files",
    13: "rename or directory entry lost",
    14: "rename durable, content not",
    15: "sync fails once, then says OK",
    16: "sync fails for ever, file system read-only",
    17: "no space once, then space again",
    18: "short write at every byte",
    19: "write fails: EIO, EINTR, EDQUOT",
    20: "read fails or is short",
    21: "no descriptors, no permission, read-only directory",
    22: "index deleted, cut, zeroed, garbage, blocks flipped",
    23: "index of another store, older or newer than the log",
    24: "index full, grown elsewhere, stale reader",
    25: "two writers",
    26: "a file system without mmap or flock",
    27: "clock backwards, forwards, not a number",
    28: "window: endless stream, slow disk, dying flusher, close in the middle",
    29: "elements too large, too deep, surrogates, huge integers, NaN",
    30: "decompression bomb, forged size",
    31: "sidecar copied, duplicated, renamed, unknown or retired",
    32: "main restored from an older backup",
    33: "crash between the retiring commit and the unlink",
    34: "no memory anywhere",
    35: "interrupt or cancel anywhere in a commit",
    36: "file replaced, cut or appended to by others while open",
    37: "copied while it is written",
    38: "read while the writer appends, repairs, rotates",
}
