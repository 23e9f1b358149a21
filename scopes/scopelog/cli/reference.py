"""scopes/CLI.md: the reference of the command, generated from ``--help``.

``python -m scopelog.cli.reference > scopes/CLI.md`` writes it; a test fails if it has drifted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import click

from .commands import cli

_WIDTH: Final = 100
_HEAD: Final = """\
# The command `scopelog`

Generated from `--help` by `python -m scopelog.cli.reference`; a test fails if it has drifted. The command comes with
the extra `cli`: `pip install '.[cli]'` in a checkout; `memory drain` and `memory check` need the extra `engram`, too.
Styles are for terminals: elsewhere output is plain text, with tabs between the columns of a table and no headings.
`NO_COLOR` is honoured. Errors say one sentence of cause and one of remedy on standard error. Messages are never shown
but by `cat` and `recover`.
"""


def reference() -> str:
    """The whole document."""
    return "\n".join([_HEAD, *_sections("scopelog", cli, None)])


def _sections(title: str, command: click.Command, parent: click.Context | None) -> Iterator[str]:
    """A command's section, then those of its commands."""
    yield _section(title, command, parent)
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=title.rsplit(" ", 1)[-1], parent=parent)
        for name in command.list_commands(context):
            yield from _sections(f"{title} {name}", command.commands[name], context)


def _section(title: str, command: click.Command, parent: click.Context | None) -> str:
    context = click.Context(
        command,
        info_name=title.rsplit(" ", 1)[-1],
        parent=parent,
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        help_option_names=["-h", "--help"],
    )
    help_text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    return f"## `{title}`\n\n```\n{help_text}\n```\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
