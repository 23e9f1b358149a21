"""Text and JSON on standard output, errors on standard error, and the exit codes.

Text goes out as bytes of UTF-8, one record a line whatever the element holds: what a terminal would act on and what
some reader would take for the end of a line is escaped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

import click
import msgspec

from ..errors import CorruptLog, InvalidInput, MissingExtra, OpenFailed, ScopelogError, StoreLocked

REFUSED: Final = 2  # refused before anything was touched, or damage that is proved
BROKEN: Final = 3  # input, output or durability
BUSY: Final = 4  # another process holds the session
PIPE: Final = 128 + 13  # whoever read standard output went away
INTERRUPTED: Final = 128 + 2

EXIT_CODES: Final = """\
Exit codes: 0 done; 1 not done because you said no; 2 refused (usage, input, no such store or session) or damaged;
3 input, output or durability failed; 4 another process holds the session; 130 and 143 stopped by SIGINT and SIGTERM;
141 standard output was closed. The codes of check are its own."""

_encode: Final = msgspec.json.Encoder().encode
_LINE_ENDS: Final = re.compile(b"\xc2\x85|\xe2\x80[\xa8\xa9]")  # NEL, LS, PS: some readers end a line there


def fail(error: ScopelogError | OSError, *, code: int | None = None) -> NoReturn:
    """An expected error: cause and remedy on standard error, no traceback; ends the command with ``code``."""
    if isinstance(error, ScopelogError):
        cause, remedy = error.cause, error.remedy
        code = exit_code(error) if code is None else code
    else:
        cause, remedy = f"the operating system refused ({error})", "check the path, its permissions and the disk"
        code = BROKEN
    say(f"error: {printable(cause)}\nhint: {printable(remedy)}")
    raise click.exceptions.Exit(code)


def exit_code(error: ScopelogError) -> int:
    """The exit code that a command ends with when it meets ``error``."""
    if isinstance(error, StoreLocked):
        return BUSY
    if type(error) is OpenFailed and not isinstance(error.__cause__, (NotADirectoryError, FileExistsError)):
        return BROKEN  # else the path names something that is no directory: no store
    if isinstance(error, (InvalidInput, OpenFailed, CorruptLog, MissingExtra)):
        return REFUSED
    return BROKEN


# --- text -----------------------------------------------------------------------------------------


def as_json(value: object) -> bytes:
    """``value`` as one line of JSON: UTF-8, or ASCII with escapes where UTF-8 cannot say it or a reader might split."""
    try:
        text = _encode(value)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return json.dumps(value, separators=(",", ":")).encode("ascii")
    if _LINE_ENDS.search(text):
        return json.dumps(value, separators=(",", ":")).encode("ascii")
    return text


def printable(text: str) -> str:
    """``text`` with everything escaped that a terminal would act on or could not show."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(ord(char)) for char in text)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def count(value: int, what: str) -> str:
    """``1 line``, ``1,234 lines``."""
    return f"{value:,} {what}" if value == 1 else f"{value:,} {what}s"


def say(text: str) -> None:
    """A message on standard error, where progress and errors go."""
    with contextlib.suppress(OSError):  # nobody listens: no reason to stop
        click.echo(text, err=True)


class Notes(logging.Formatter):
    """What the library logs, as notes; it may quote a server, so what a terminal would act on is escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return f"note: {printable(record.message)}"


# --- standard output ------------------------------------------------------------------------------


def is_terminal() -> bool:
    """Whether standard output shows styles; ``NO_COLOR`` is honoured by rich itself."""
    return sys.stdout.isatty()


def put(data: bytes) -> None:
    """A line on standard output; buffered, see :func:`flush`."""
    sys.stdout.buffer.write(data + b"\n")


def put_raw(text: str) -> None:
    """Text without a newline of its own."""
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))


def put_json(value: object) -> None:
    put(as_json(value))


def put_text(text: str) -> None:
    put(text.encode("utf-8", "backslashreplace"))


def flush() -> None:
    sys.stdout.flush()


def silence() -> None:
    """Standard output is gone: send the rest nowhere, so that the interpreter's last flush does not complain."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def put_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table: ruled on a terminal, else one row a line with tabs between and no headings."""
    if not is_terminal():
        for row in rows:
            put_text("\t".join(map(printable, row)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", show_header=any(headings))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)
