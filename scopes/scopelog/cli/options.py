"""What the commands have in common: how errors end them, shared arguments, and how texts are read as values."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click

from scopelog_engine.durability import Durability

from ..errors import InvalidAddress, ScopelogError
from . import output
from .recording import standard_input

DEFAULT_NAMESPACE: Final = "record"
DEFAULT_KEY: Final = "lines"

STORE: Final = click.argument("store", type=click.Path())
SESSION: Final = click.argument("session")
JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
LEVELS: Final = click.Choice([level.name.lower() for level in Durability])


class Commands(click.Group):
    """Turns the errors a user is to expect into a message and an exit code; anything else is a bug and is shown."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                output.flush()
        except BrokenPipeError:
            output.silence()
            raise click.exceptions.Exit(output.PIPE) from None
        except (ScopelogError, OSError) as error:
            output.fail(error)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(output.INTERRUPTED) from None


def level_of(name: str | None) -> Durability | None:
    return None if name is None else Durability[name.upper()]


def address_of(name: str, what: str = "list") -> tuple[str, str]:
    """Namespace and key of an address as the user names it. Raises :class:`InvalidAddress`."""
    namespace, slash, key = name.partition("/")
    if not slash:
        namespace, key = DEFAULT_NAMESPACE, name
    if not namespace or not key:
        raise InvalidAddress(f"{name!r} names no {what}", "use NAMESPACE/KEY, or a key alone")
    return namespace, key


def moment_given(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """A wall-clock time in ms since 1970: that number, or ISO 8601, in UTC unless it says otherwise."""
    if value is None or re.fullmatch(r"-?\d{1,18}", value):
        return None if value is None else int(value)
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither ISO 8601 (2026-01-31T12:00) nor ms since 1970.") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return round(when.timestamp() * 1000)


FILE: Final = click.Path(exists=True, dir_okay=False, allow_dash=True)


@contextlib.contextmanager
def input_of(file: str) -> Iterator[int]:
    """A descriptor of the file, or of standard input for ``-``."""
    if file == "-":
        yield standard_input()
        return
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
