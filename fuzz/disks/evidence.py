"""What a power cut has left of the logs of a session, byte by byte, and whether an open has kept what it cut.

Read with the envelope's parser alone, by none of the engine's rules of recovery: a log goes on as long as each frame
names the one before. What stands behind that is told in words that can be counted.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

from scopelog_engine.frame import Frame, parse_frame
from scopelog_engine.layout import KIND_COVER, MAGIC_TAIL, SKIPPABLE_HEADER

Image = dict[str, bytes]

_MAGIC: Final = re.compile(rb"[\x51-\x54]" + re.escape(MAGIC_TAIL))
_HOLE: Final = 256  # so many zeros do not come about by chance


def logs(session: Path) -> Image:
    """The logs of a session and what recoveries have kept beside them, by name."""
    if not session.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in session.iterdir() if path.name != "LOCK"}


def chain_end(data: bytes) -> int:
    """The first byte that does not continue the chain."""
    at = previous = 0
    while isinstance(frame := parse_frame(data, at, 0, None), Frame) and frame.previous == previous:
        at, previous = frame.end, frame.checksum
    return at


def behind(data: bytes) -> list[str]:
    """What stands behind the end of the chain, as words: nothing, if it is untouched space or the end of the file."""
    end = chain_end(data)
    rest = data[end:]
    if not rest:
        return []
    if parse_is_cover(rest) and not any(rest[SKIPPABLE_HEADER:]):
        return []
    if not any(rest):
        return ["zeros"]
    words = ["torn tail"]
    hole = rest.find(bytes(_HOLE))
    if hole >= 0 and any(rest[hole:]):
        words.append("hole")
        if any(isinstance(parse_frame(rest, found.start(), end, None), Frame) for found in _MAGIC.finditer(rest, hole)):
            words.append("frames behind a hole")
    return words


def parse_is_cover(rest: bytes) -> bool:
    return rest[0] == KIND_COVER and rest[1:4] == MAGIC_TAIL


def shapes(image: Image) -> Counter[str]:
    """How many logs of a session are left in which shape."""
    found: Counter[str] = Counter()
    for name, data in image.items():
        if name.endswith(".zst"):
            words = behind(data) if data else ["empty"]
            found.update(words or ["whole"])
            if name.startswith("main"):
                found.update(f"main: {word}" for word in words)
    return found


def nothing_cut_silently(before: Image, after: Image) -> None:
    """What recovery has cut from a log stands whole in a file beside it, and the rest is as it was."""
    for name, data in before.items():
        if not name.endswith(".zst") or name not in after:
            continue
        kept = after[name]
        assert data.startswith(kept), f"{name} was changed, not only cut"
        cut = data[len(kept) :]
        if cut and not (parse_is_cover(cut) and not any(cut[SKIPPABLE_HEADER:])):
            copies = [other for other, copy in after.items() if other.startswith(name) and copy == cut]
            assert copies, f"{len(cut)} bytes of {name} from {len(kept)} on were cut and kept nowhere"
    for name in before:
        gone = name not in after and name.endswith(".aside")
        assert not gone and (name in after or not name.endswith(".torn")), f"the evidence {name} is gone"
