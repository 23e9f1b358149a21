"""The demonstration that ``make demo`` runs: record a stream, kill the recorder half-way, recover, and count.

Usage: ``python -m scopelog.cli.demo [STREAM]``. The store is ``demo-store`` in the current directory, made anew. A
stream of assistant messages, as events or as frames, is told with its messages (demo_messages), any other JSON lines
as lines (demo_lines). Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from scopelog_engine.elements import freeze

from ..errors import ScopelogError
from . import demo_lines, demo_messages
from .arrival import Line
from .demo_replay import kind_of
from .demo_show import SESSION, STORE, Broken, Refused, say
from .recording import parse

SAMPLE: Final = Path(__file__).parent / "sample.jsonl"


def read_stream(path: Path) -> list[bytes]:
    """The lines that are neither blank nor null, each checked to be an element."""
    try:
        texts = [line.strip(b" \t\r") for line in path.read_bytes().split(b"\n")]
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error.strerror})", "name a file of JSON lines: STREAM=file") from None
    for number, text in enumerate(texts, 1):
        if not text:
            continue
        try:
            freeze(parse(Line(number, text)))
        except ScopelogError as error:
            raise Refused(f"{path}, line {number}: {error.cause}", "mend that line; nothing was recorded") from None
    lines = [text for text in texts if text and text != b"null"]
    if not lines:
        raise Refused(f"{path} holds no line", "name a file of JSON lines: STREAM=file")
    return lines


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        sys.stderr.write("usage: python -m scopelog.cli.demo [STREAM]\n")
        return 2
    stream = Path(arguments[0]) if arguments and arguments[0] else SAMPLE
    try:
        lines = read_stream(stream)
        kind = kind_of([parse(Line(number, line)) for number, line in enumerate(lines, 1)])
        if kind is None:
            demo_lines.run(stream, lines)
        else:
            demo_messages.run(stream, lines, kind)
        say(
            f"\nLook around:  .venv/bin/scopelog cat {STORE} {SESSION} | less      "
            f"zstdcat {STORE}/*.session/main.zst | less"
        )
    except Broken as error:
        sys.stderr.write(f"the demonstration failed: {error}\n")
        return 1
    except ScopelogError as error:
        sys.stderr.write(f"error: {error.cause}\nhint: {error.remedy}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
