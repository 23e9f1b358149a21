"""The ``scopelog`` command (extra ``cli``).

Layout::

    commands    the commands and their options, as click sees them; those that show a whole store in overview, those
                that write for scripts in scripts, follow in following, what they share in options
    recording   record: lines as they arrive, given to a target and counted once they are stored
    targets     what a target is, and the one that appends to a list
    streaming   the one that takes events or frames of messages, into a lane
    interrupted recover
    committing  commit, retire, describe
    looking     cat, stat, check, rm
    following   follow
    sessions    ls
    indexing    index
    memory      the commands of the memory bridge; status, drain, retry, drop in remembering, check in reaching
    arrival     lines from a file or pipe as they arrive, and the signals that stop it
    progress    what record says while it runs
    output      text and JSON on standard output, errors and exit codes
    reference   scopes/CLI.md, generated from --help
    demo        what ``make demo`` runs: its two stories in demo_messages and demo_lines, the recorder that is killed in
                demo_child, what must come back in demo_replay, what is said in demo_show

click and rich are imported by :func:`main` alone, so that the library does without them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from ..errors import MissingExtra


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; ``arguments`` default to the process's own.

    Always raises :class:`SystemExit`. Without the extra its code is 2 and the message on standard error names what
    to install.
    """
    try:
        _require_extra()
    except MissingExtra as error:
        sys.stderr.write(f"error: {error.cause}\nhint: {error.remedy}\n")
        raise SystemExit(2) from None
    from .commands import cli
    from .output import Notes

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Notes())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    cli.main(None if arguments is None else [*arguments], prog_name="scopelog")


def _require_extra() -> None:
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"the command line needs {error.name or 'click and rich'}, which is not installed",
            "run pip install '.[cli]' in a checkout of scopelog",
        ) from error
