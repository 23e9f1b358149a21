"""The engine broken on purpose, one way after another: proof that the tests and rigs bite.

A mutant is a few replacements of text, made in a copy of ``engine/`` and ``scopes/`` that stands in a temporary
directory and comes first on the path of the process that runs its tests: the working tree is never touched, and no
production code holds a switch. It names the rule it breaks and the tests that must fail with it. A mutant that
outlives its tests says that a promise is kept by chance; one whose text is not found any more has rotted and is to
be mended. ``make mutants`` runs them all.

Left out are changes that nobody could notice, because something else stands behind them: that a mark names no byte of
its own frame (the distance it is stored as cannot be negative), the checksum of the index's stamp (each of its fields
is compared), that a session forgets the tree of a log that it has compacted (whoever asks it sees that the log does not
lead to it), and which of two rules sets a second life of a scope aside (both at once are a mutant).
"""

from __future__ import annotations

from typing import Final

from fuzz.mutants.elements import ELEMENTS
from fuzz.mutants.failing import FAILING
from fuzz.mutants.frames import FRAMES
from fuzz.mutants.growing import GROWING
from fuzz.mutants.indexing import INDEXING
from fuzz.mutants.lives import LIVES
from fuzz.mutants.locks import LOCKS
from fuzz.mutants.logs import LOGS
from fuzz.mutants.mutant import Edit, Mutant, Rotten
from fuzz.mutants.reading import READING
from fuzz.mutants.recovering import RECOVERING
from fuzz.mutants.salvaging import SALVAGING
from fuzz.mutants.sessions import SESSIONS
from fuzz.mutants.verdicts import VERDICTS

_ALL: Final = (
    *FRAMES,
    *VERDICTS,
    *RECOVERING,
    *LOGS,
    *FAILING,
    *LOCKS,
    *SESSIONS,
    *LIVES,
    *GROWING,
    *INDEXING,
    *READING,
    *SALVAGING,
    *ELEMENTS,
)
MUTANTS: Final = {mutant.name: mutant for mutant in _ALL}
assert len(MUTANTS) == len(_ALL), "two mutants have one name"

NINE: Final = {
    "no fsync": ("no-sync", "system-sync-is-nothing"),
    "no directory fsync": ("no-directory-sync", "system-syncs-another-directory"),
    "append after a torn tail without cutting": ("append-behind-a-torn-tail", "torn-tail-not-cut"),
    "acknowledge before writing": ("acknowledge-before-writing", "acknowledge-when-taken"),
    "retry after a failed fsync": ("sync-tried-again", "no-poison"),
    "stop at the first bad frame": ("any-damage-is-a-tear",),
    "trust the index": ("index-trusted",),
    "skip the durable mark": ("no-marks-written", "marks-not-honoured"),
    "reopen after a failed fsync without writing the unproved bytes again": (
        "reopen-writes-nothing-again",
        "repair-writes-nothing-again",
    ),
}
"""What must be among them, and which they are."""

__all__ = ["MUTANTS", "NINE", "Edit", "Mutant", "Rotten"]
