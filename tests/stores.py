"""Helpers to build small stores, to take their bytes apart, and to lay changed bytes down again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from scopelog import (
    Durability,
    Finding,
    InvalidInput,
    LogRecord,
    ManualClock,
    Session,
    Store,
    ephemeral,
    list_of,
    value,
)
from scopelog_engine.codec import compress
from scopelog_engine.frame import Fault, Frame, encode_frame, parse_frame
from scopelog_engine.header import Header, digest_of, parse_header
from scopelog_engine.layout import (
    KIND_BATCH,
    KIND_INSIDE,
    LOCK_FILE,
    MAIN_FILE,
    SKIPPABLE_HEADER,
    scope_file_name,
    session_dir_name,
)

Image = dict[str, bytes]
"""The files of a store: path inside its directory, and content."""

CHAT: Final = "chat"
MESSAGES: Final = list_of("chat", "messages")
TITLE: Final = value("chat", "title")
SCOPE: Final = ephemeral("op-1")
DELTAS: Final = SCOPE.list_of("op", "deltas")
STATE: Final = SCOPE.value("op", "state")
LOCK: Final = f"{session_dir_name(CHAT)}/{LOCK_FILE}"
MAIN: Final = f"{session_dir_name(CHAT)}/{MAIN_FILE}"


def image_of(path: Path) -> Image:
    """Every file below ``path``; a store that is open may be copied so, as ``cp -r`` would."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def lay(path: Path, image: Image) -> Path:
    """Make ``path`` hold exactly the files of ``image``."""
    shutil.rmtree(path, ignore_errors=True)
    for name, data in image.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return path


def sidecars_of(image: Image) -> list[str]:
    """Names of the sidecars, oldest life first."""
    return [name for name in image if name.endswith(scope_file_name(0)[16:])]


def frames_of(data: bytes) -> list[Frame]:
    """The frames of a log from its header on, up to the first byte where none stands, foreign ones left out."""
    frames: list[Frame] = []
    offset = 0
    while True:
        found = parse_frame(data, offset, 0, None)
        if isinstance(found, Frame):
            frames.append(found)
            offset = found.end
        elif found is Fault.ENVELOPE and data[offset] >= KIND_INSIDE:
            offset += SKIPPABLE_HEADER + int.from_bytes(data[offset + 4 : offset + 8], "little")
        else:
            return frames


def bare(data: bytes) -> bytes:
    """A log without the preallocated space behind its last frame."""
    return data[: frames_of(data)[-1].end]


def flip(data: bytes, bit: int) -> bytes:
    """``data`` with one bit turned over; bits count from the first byte's lowest."""
    changed = bytearray(data)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


def build(path: Path, *, closed: bool, level: Durability = Durability.POWER, session: str = CHAT) -> Image:
    """Bytes of a store with one session and one living scope; unless ``closed``, as a killed writer leaves it.

    Main holds four batch frames (the last one a window), the sidecar three.
    """
    clock = ManualClock()
    with Store.open(path, clock=clock, durability=level) as store, store.session(session) as handle:
        handle.commit([MESSAGES.append({"role": "user", "text": "hello"}), TITLE.set("a title")])
        handle.commit([STATE.set({"step": 1}), DELTAS.append("d0")])
        handle.commit([MESSAGES.append({"role": "assistant", "text": "good morning"}, "answer")])
        handle.commit([DELTAS.append("d1"), DELTAS.append("d2", "tagged")])
        handle.commit([TITLE.set("another title"), TITLE.delete(), TITLE.set("a third")])
        handle.append(DELTAS, "d3")
        handle.append(MESSAGES, ["the", "last"])
        handle.append(MESSAGES, None)
        handle.flush()
        open_image = image_of(path)
    image = image_of(path) if closed else open_image
    shutil.rmtree(path)
    return {name: data for name, data in image.items() if not name.endswith("LOCK")}


def records(store: Store, session: str = CHAT) -> list[LogRecord]:
    """Everything a reader without the lock finds."""
    with store.reader(session) as reader:
        return list(reader.records())


def unsound(findings: list[Finding]) -> list[Finding]:
    """Findings that are more than a note."""
    return [finding for finding in findings if finding.severity != "note"]


def assert_refused(session: Session, path: Path, call: Callable[[], object], error: type[InvalidInput]) -> None:
    """Refused with cause and remedy; no sequence is used, no byte written, and what is staged stays staged."""
    before, stats = image_of(path), session.stats()
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert caught.value.cause and caught.value.remedy
    assert not caught.value.cause.endswith(".") and not caught.value.remedy.endswith(".")
    assert image_of(path) == before
    assert session.stats() == stats
    number = int(stats["sequence"])
    assert session.append(MESSAGES, "neighbour") == number + 1
    assert session.commit([DELTAS.append("neighbour")]).first == number + 2
    assert session.commit([TITLE.set("neighbour")]).first == number + 3
    assert [e.element for e in session.read(MESSAGES)] == ["before", "staged", "neighbour"]
    assert [e.element for e in session.read(DELTAS)] == ["before", "neighbour"]
    assert session.get(TITLE) == "neighbour"


def header_of(data: bytes) -> Header:
    return parse_header(data, "")[0]


def next_frame(data: bytes, lines: bytes, *, kind: int = KIND_BATCH, count: int = 1, **changes: int | bytes) -> bytes:
    """A frame that follows the last one of a log by every rule, but for ``changes``; ``count`` sequences long."""
    last = frames_of(data)[-1]
    fields: dict[str, int | bytes] = {
        "digest": digest_of(header_of(data)),
        "previous": last.checksum,
        "epoch": last.epoch,
        "first": last.last + min(count, 1),
        "last": last.last + count,
        "commits": 1,
        "raw_length": len(lines),
        "payload": compress(lines),
        "mark": -1,
        "offset": len(data),
    }
    return encode_frame(kind, **(fields | changes))[0]  # type: ignore[arg-type]
