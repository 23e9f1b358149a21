"""Inputs to begin with: golden logs, generated ones, the vectors of the tests, and tokens worth putting anywhere.

The first byte of an input chooses among what a target takes; 0 is, for all but programs, "the rest as it is".
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from fuzz.oracle import tell
from fuzz.stores import images
from fuzz.target_index import made
from fuzz.target_position import POSITIONS
from fuzz.targets import REGRESSIONS
from scopelog_engine.codec import BadPayload, decompress
from scopelog_engine.layout import MAGIC_TAIL, ZSTD_MAGIC

VECTORS: Final = Path(__file__).resolve().parents[1] / "tests" / "vectors"
_AS_IT_IS: Final = b"\0"

TOKENS: Final[tuple[bytes, ...]] = (
    *(bytes((kind,)) + MAGIC_TAIL for kind in range(0x50, 0x60)),
    ZSTD_MAGIC, b"\xde\xc0\xef\xbe", b"sxb", b"\x80\x01", b"\xff" * 9 + b"\x01", b"\xff\x7f", b"\0" * 8, b"\xff" * 8,
    b'["@",1,"n","k","l"]', b'["!","op"]', b'["v",1,', b'["t",1,', b'["#",0,["a"]]', b'["r",', b'["a",0,"', b"\\ud83d",
    b"\\ude00", b"\\u0000", b"__proto__", b"1e999", b"9007199254740991", b"18446744073709551616", b"NaN", b"[" * 300,
    b'{"type":"text_delta","contentIndex":0,"delta":"', b'"toolcall_start"', b"\xed\xa0\xbd", b"\xf0\x9f\x98\x80",
    b".0.",
)  # fmt: skip


@lru_cache(maxsize=8)
def seeds(name: str) -> tuple[bytes, ...]:
    """What the target ``name`` is begun with; the regressions come first."""
    known = sorted((REGRESSIONS / name).glob("*")) if (REGRESSIONS / name).is_dir() else []
    return (*(path.read_bytes() for path in known if path.is_file()), *(_AS_IT_IS + found for found in _found(name)))


def _found(name: str) -> list[bytes]:
    logs = [image.files[log] for image in images() for log in image.logs]
    match name:
        case "scanner":
            return logs
        case "recovery":
            return [log for log in logs if (told := tell(log)) is not None and told.header.kind == "main"]
        case "index":
            return [made().data]
        case "lines":
            return [text for log in logs for text in _texts(log)][:60]
        case "position":
            return [str(POSITIONS.decode(bytes((1, *range(number, 40)))))[:400].encode() for number in range(8)]
        case "wire":
            cases = _cases("delta_codec") + _cases("delta_decode_errors") + _cases("delta_roundtrip")
            return [json.dumps(case["wire"]).encode() for case in cases if "wire" in case]
        case "reducer":
            return [json.dumps(case["frames"]).encode() for case in _cases("frames_fold")]
    return [bytes(range(number, number + 60)) for number in range(0, 190, 10)]


def _cases(name: str) -> list[Any]:
    found = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return list(found)


def _texts(log: bytes) -> list[bytes]:
    told = tell(log)
    found = []
    for seen in told.frames if told is not None else []:
        try:
            found.append(decompress(seen.payload, seen.raw_length, 1 << 20))
        except BadPayload:
            continue  # an empty one, of a closing frame
    return found
