"""File names and magic numbers: the one place that spells what stands on disk. See engine/FORMAT.md.

Store directory::

    store.zst                 header frame: names the store (its 128-bit id)
    <id>.session/             one directory a session; the id percent-encoded, see session_dir_name()
        LOCK                  flock target; holds the owner's pid; unlinked by deletion alone
        main.zst              the session scope: history
        <first seq>.scope.zst one life of an ephemeral scope
        *.torn, *.aside       evidence kept by recovery
    index/                    LMDB database and stamp: derived, may be removed at any time
    trash/                    sessions being deleted
"""

from __future__ import annotations

import hashlib
import re
from typing import Final
from urllib.parse import quote, unquote

from .errors import InvalidId

FORMAT_MAJOR: Final = 1
FORMAT_MINOR: Final = 2

# --- magic numbers (little endian on disk) -----------------------------------------------------
# zstd reserves 0x184D2A50 to 0x184D2A5F for skippable frames; the low nibble is our frame kind.
MAGIC_TAIL: Final = b"\x2a\x4d\x18"  # bytes 1 to 3 of every skippable magic
KIND_COVER: Final = 0x50  # preallocated space, no envelope: the end of the log
KIND_BATCH: Final = 0x51  # envelope of one zstd frame that follows
KIND_INDEX: Final = 0x52  # closes a stretch; its body stands inside the skippable frame
KIND_CLOSE: Final = 0x53  # clean close: everything before it is durable
KIND_HEADER: Final = 0x54  # first frame of every file; one zstd frame follows
KIND_INSIDE: Final = 0x58  # kinds from here on, like KIND_INDEX, carry their payload inside the skippable frame
KIND_LAST: Final = 0x5F  # zstd's last skippable magic
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
SKIPPABLE_HEADER: Final = 8  # magic and size, fixed by zstd
ENVELOPE_VERSION: Final = 1

# --- limits ------------------------------------------------------------------------------------
MAX_SEQUENCE: Final = 2**53 - 1
MAX_DEPTH: Final = 256
MAX_INT_DIGITS: Final = 4300  # decimal digits of an integer: what every interpreter reads unless told otherwise
MAX_ELEMENT_BYTES: Final = 64 * 1024 * 1024
MAX_COMMIT_BYTES: Final = 256 * 1024 * 1024
MAX_FRAME_BYTES: Final = MAX_COMMIT_BYTES + 2 * 1024 * 1024  # stored, whatever a header says
MAX_ID_BYTES: Final = 180
MAX_NAME_BYTES: Final = 1024  # namespace, key or tag, in UTF-8
MAX_HEADER_BYTES: Final = 16 * 1024
OWN_FRAME_BYTES: Final = 256 * 1024  # an element above this gets a frame of its own
FRAME_TARGET_BYTES: Final = 1024 * 1024  # a staged batch is cut into frames of about this size
FRAME_OVERHEAD_BYTES: Final = 1024 * 1024  # room for definitions and brackets beside the elements

# --- sizes -------------------------------------------------------------------------------------
STRETCH_BYTES: Final = 64 * 1024  # an index frame follows once a stretch is this long
CLOSE_INDEX_BYTES: Final = 16 * 1024  # a clean close indexes an open stretch above this
PREALLOCATE_BYTES: Final = 128 * 1024

# --- names -------------------------------------------------------------------------------------
STORE_FILE: Final = "store.zst"
TRASH_DIR: Final = "trash"
INDEX_DIR: Final = "index"
INDEX_DATA: Final = "data.mdb"  # LMDB's own name for it
INDEX_STAMP: Final = "STAMP"
LMDB_LOCK: Final = "lock.mdb"  # of whoever opens the data file with LMDB's locks; we do not
LOCK_FILE: Final = "LOCK"
MAIN_FILE: Final = "main.zst"
SESSION_SUFFIX: Final = ".session"
SCOPE_SUFFIX: Final = ".scope.zst"
TORN_SUFFIX: Final = ".torn"
ASIDE_SUFFIX: Final = ".aside"
TEMP_SUFFIX: Final = ".tmp"
UNNAMED: Final = "scopelog.salvaged"  # namespace of what has lost its name in a salvaged session

_URI_SAFE: Final = "!~*'()"  # encodeURIComponent leaves these and [A-Za-z0-9-_.] as they are
_MAX_DIR_BYTES: Final = 200
_PLAIN_BYTES: Final = _MAX_DIR_BYTES - len(SESSION_SUFFIX)
_HASHED_PREFIX: Final = 120
_PLAIN_ID: Final = re.compile(r"[a-z0-9_-][a-z0-9._-]*")  # what a directory's name spells as it is
_SCOPE_NAME: Final = re.compile(r"^(\d{16})\.scope\.zst$")


def check_id(kind: str, value: object) -> str:
    """Return ``value`` if it is a legal session or scope id, else raise :class:`InvalidId`.

    Legal: a non-empty ``str`` without lone surrogates whose percent-encoded form (the rule of
    ECMAScript's encodeURIComponent) has at most 180 ASCII bytes. Source: scopes/README.md, "Stores and sessions".
    """
    if not isinstance(value, str):
        raise InvalidId(f"the {kind} id is a {type(value).__name__}, not a str", "pass a str")
    if value == "":
        raise InvalidId(f"the {kind} id is empty", f"name the {kind}")
    try:
        encoded = quote(value, safe=_URI_SAFE)
    except UnicodeEncodeError:
        raise InvalidId(f"the {kind} id holds a lone surrogate", "use well-formed text") from None
    if len(encoded) > MAX_ID_BYTES:
        raise InvalidId(
            f"the {kind} id takes {len(encoded)} bytes percent-encoded, the limit is {MAX_ID_BYTES}",
            "use a shorter id",
        )
    return value


def session_dir_name(session_id: str) -> str:
    """Directory name of a session: lower case only, so that case-blind disks keep ids apart; at most 200 bytes.

    An id whose encoded form would be longer keeps its first characters and gets a digest; the header
    of its main log says the whole id.
    """
    if len(session_id) <= _PLAIN_BYTES and _PLAIN_ID.fullmatch(session_id):
        return session_id + SESSION_SUFFIX
    parts: list[str] = []
    for byte in session_id.encode("utf-8"):
        char = chr(byte)
        if char.isascii() and (char.isdigit() or ("a" <= char <= "z") or char in "-_" or (char == "." and parts)):
            parts.append(char)
        else:
            parts.append(f"%{byte:02x}")
    name = "".join(parts) + SESSION_SUFFIX
    if len(name) <= _MAX_DIR_BYTES:
        return name
    digest = hashlib.sha256(session_id.encode("utf-8")).hexdigest()[:40]
    return "".join(parts)[:_HASHED_PREFIX].rstrip("%") + "~" + digest + SESSION_SUFFIX


def session_id_of_dir(name: str) -> str | None:
    """The id a directory name spells, or None if it is hashed (ask its header) or no session directory."""
    if not name.endswith(SESSION_SUFFIX) or "~" in name:
        return None
    if len(name) <= _MAX_DIR_BYTES and _PLAIN_ID.fullmatch(name, 0, len(name) - len(SESSION_SUFFIX)):
        return name[: -len(SESSION_SUFFIX)]
    try:
        candidate = unquote(name[: -len(SESSION_SUFFIX)], errors="strict")
    except UnicodeDecodeError:
        return None
    return candidate if candidate and session_dir_name(candidate) == name else None


def scope_file_name(first_sequence: int) -> str:
    """File name of one life of a scope: its first sequence, 16 digits. No id ever becomes a file name here."""
    return f"{first_sequence:016d}{SCOPE_SUFFIX}"


def scope_file_sequence(name: str) -> int | None:
    """The first sequence a sidecar's name spells, or None if the name is not a sidecar's."""
    match = _SCOPE_NAME.match(name)
    if match is None or int(match.group(1)) > MAX_SEQUENCE:
        return None
    return int(match.group(1))
