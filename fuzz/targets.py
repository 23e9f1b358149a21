"""The fuzz targets by name, each a function of bytes that raises on a defect and on nothing else.

``python -m fuzz.targets NAME FILE`` plays an input that has failed, ``--hex`` one that is spelled out; without a file
it lists the names. Every engine draws from the same domains: the mutator (:mod:`fuzz.mutator`), hypothesis and atheris
(:mod:`fuzz.atheris_run`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fuzz.actions import CutPower, Die, Fail, Fill, Kill, LoseSync
from fuzz.damage import LOGS, Log
from fuzz.domains import Domain
from fuzz.programs import PROGRAMS, Program, run
from fuzz.target_index import INDEXES, Stamped, check_index
from fuzz.target_lines import LINES, Given, Payload, check_lines
from fuzz.target_position import POSITIONS, check_position
from fuzz.target_recovery import WRECKS, Wreck, check_recovery
from fuzz.target_reducer import RESPONSES, check_reducer
from fuzz.target_scanner import check_scanner
from fuzz.target_wire import WIRES, check_wire

REGRESSIONS: Final = Path(__file__).parent / "regressions"
_ROWS_OF: Final = {
    "zero": 5, "set": 5, "append": 5, "append zeros": 6, "cover": 6, "flip": 9, "repeat": 10, "swap": 10, "splice": 10,
    "graft": 10, "twice": 10, "previous": 10, "digest": 10, "foreign": 10, "exchange": 10, "bomb": 30, "raw": 30,
    "payload": 30,
}  # fmt: skip
"""Which row of the fault matrix a kind of damage provokes."""


@dataclass(frozen=True)
class Target:
    """``check`` holds a value of the ``domain`` against everything; ``rows``: those of the matrix that it provokes."""

    name: str
    domain: Domain[Any]
    check: Callable[[Any], object]
    rows: Callable[[Any], Iterable[int]] = lambda _: ()

    def run(self, data: bytes) -> None:
        self.check(self.domain.decode(data))


def _rows_of_log(case: Log) -> set[int]:
    return {_ROWS_OF[kind] for kind in case.kinds if kind in _ROWS_OF}


def _rows_of_wreck(case: Wreck) -> set[int]:
    kinds = {change.kind for change in case.changes if change.kind in ("foreign", "exchange")}
    inside = {edit.kind for change in case.changes if change.kind == "edit" for edit in change.edits}
    fields = {forgery.field for change in case.changes if change.kind == "forge" for forgery in change.forgeries}
    return {_ROWS_OF[kind] for kind in kinds | inside | fields if kind in _ROWS_OF}


def _rows_of_program(case: Program) -> set[int]:
    found: set[int] = set()
    for operation in case.operations:
        if isinstance(operation, Die):
            found |= {1 if operation.policy is None else 11} | ({2} if operation.times else set())
        elif isinstance(operation, Kill | CutPower):
            found.add(1 if isinstance(operation, Kill) else 11)
        elif isinstance(operation, LoseSync) or (isinstance(operation, Fail) and operation.fault.op == "sync"):
            found.add(15)
        elif isinstance(operation, Fill) or (isinstance(operation, Fail) and operation.fault.op == "pwrite"):
            found.add(17)
    return found


def _run(program: Program) -> int:
    return run(program.operations, program.settings, preallocates=program.preallocates)


TARGETS: Final = {
    target.name: target
    for target in (
        Target("scanner", LOGS, check_scanner, _rows_of_log),
        Target("recovery", WRECKS, check_recovery, _rows_of_wreck),
        Target("index", INDEXES, check_index, lambda case: (23 if isinstance(case, Stamped) else 22,)),
        Target("wire", WIRES, check_wire),
        Target("reducer", RESPONSES, check_reducer),
        Target("operations", PROGRAMS, _run, _rows_of_program),
        Target("position", POSITIONS, check_position),
        Target(
            "lines", LINES, check_lines,
            lambda case: (29,) if isinstance(case, Given) else (30,) if isinstance(case, Payload) else (),
        ),
    )
}  # fmt: skip


def again(name: str, data: bytes, path: Path | None = None) -> str:
    """The command that plays an input again."""
    what = str(path) if path is not None else f"--hex {data.hex()}"
    return f"python -m fuzz.targets {name} {what}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.targets", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", nargs="?", choices=[*TARGETS])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--hex", type=bytes.fromhex, dest="data")
    chosen = parser.parse_args(arguments)
    if chosen.name is None or (chosen.file is None and chosen.data is None):
        print(*TARGETS, sep="\n")
        return 0
    target = TARGETS[chosen.name]
    data = chosen.data if chosen.file is None else chosen.file.read_bytes()
    print(target.domain.decode(data))
    target.run(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
