"""The index in small, so that short logs use all of it; and what may become of its files.

:func:`make_small` and :func:`checkpoint` are for workers: they change constants of the engine in their process.
:class:`Trouble` works on the files from outside, with everything open or closed.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from scopelog import Session, SessionReader
from scopelog_engine.logindex import LogIndex
from scopelog_engine.tree import Tree
from scopelog_engine.view import LogView

SMALL: Final = {
    "answers": {"_PATIENCE": 0, "_AGAIN": 4},
    "catalogue": {"_MANY": 1, "_BATCH": 2},
    "growth": {"LEAF_BYTES": 200, "PAGE_RUNS": 3, "SPILL_BYTES": 2000},
    "logindex": {"CHECKPOINT_BYTES": 1500, "CLOSE_BYTES": 600, "_AGAIN_BYTES": 500, "_DELTA_ENTRIES": 30},
    "lmdbenv": {"_ROOM": 4096},
    "logfile": {"STRETCH_BYTES": 400, "CLOSE_INDEX_BYTES": 100},
    "view": {"_CLOSED_KEPT": 4},
}
QUESTIONS: Final = ("value", "values", "list_of", "runs", "retired")
BLOCK: Final = 4096  # a page of the data file

# --- in a worker ------------------------------------------------------------------------------------


def make_small(counts: Counter[str]) -> None:
    """Small stretches, blocks, batches and thresholds in this process; ``counts``: questions put to trees."""
    for module, constants in SMALL.items():
        where = importlib.import_module(f"scopelog_engine.{module}")
        for name, value in constants.items():
            assert hasattr(where, name), f"{module} has no {name} any more"
            setattr(where, name, value)
    for name in QUESTIONS:
        setattr(Tree, name, _counted(getattr(Tree, name), name, counts))


def _counted(method: Callable[..., Any], name: str, counts: Counter[str]) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        counts[name] += 1
        return method(*arguments, **keywords)

    return call


def checkpoint(target: Session | SessionReader, how: str) -> bool:
    """Extend the cover of a session's main log over all that is closed and durable, or ``rebuild`` it."""
    index: LogIndex | None
    view: LogView
    if isinstance(target, Session):
        writer = target._writer
        log = writer._main.log
        if log is None or not log.born:
            return False
        index, view, durable = writer._index, log.view.closed_part(), log.durable
    else:
        reader = target._reader
        survey = reader._now.surveys[""]
        index, view, durable = reader._index, reader._now.views[""].closed_part(), survey.mark
    assert index is not None
    try:
        return index.rebuild(view, durable) if how == "rebuild" else index.checkpoint(view, durable, least=0)
    finally:
        view.let_go()


# --- in the test ------------------------------------------------------------------------------------


class Trouble:
    """What happens to the index of the store at ``store``. ``foreign``: another store, with an index of its own."""

    def __init__(self, store: Path, foreign: Path, random: Random) -> None:
        self.index = store / "index"
        self.data = self.index / "data.mdb"
        self.stamp = self.index / "STAMP"
        self._other = foreign / "index"
        self._kept = store.with_name("kept-index")
        self._aside = store.with_name("index-aside")
        self._random = random

    KINDS: Final = (
        "delete",
        "lose a file",
        "flip bits",
        "zero a part",
        "fill a part",
        "swap pages",
        "cut",
        "grow",
        "damage the stamp",
        "copy in place",
        "keep",
        "put back in place",
        "put back",
        "put back by name",
        "set aside",
        "foreign",
        "foreign by name",
        "no directory",
        "no file",
    )

    def happen(self, kind: str) -> None:
        """Do it, if there is anything to do it to."""
        getattr(self, "_" + kind.replace(" ", "_"))()

    def _change(self, change: Callable[[bytearray], None], path: Path | None = None) -> None:
        """Change bytes in place, under whoever has the file open."""
        path = path or self.data
        if path.is_file():
            data = bytearray(path.read_bytes())
            change(data)
            with path.open("r+b") as file:
                file.write(data)
                file.truncate(len(data))

    def _somewhere(self, data: bytearray) -> int:
        """Mostly where something stands: in a meta page, or in a page that is in use."""
        if self._random.random() < 0.3:
            return self._random.randrange(min(160, len(data)))
        return self._random.randrange(len(data))

    def _delete(self) -> None:
        remove(self.index)

    def _lose_a_file(self) -> None:
        if self.index.is_dir() and (names := sorted(os.listdir(self.index))):
            remove(self.index / self._random.choice(names))

    def _flip_bits(self) -> None:
        def change(data: bytearray) -> None:
            for _ in range(self._random.choice((1, 1, 3, 50)) if data else 0):
                data[self._somewhere(data)] ^= 1 << self._random.randrange(8)

        self._change(change)

    def _zero_a_part(self) -> None:
        self._overwrite(bytes)

    def _fill_a_part(self) -> None:
        self._overwrite(self._random.randbytes)

    def _overwrite(self, make: Callable[[int], bytes]) -> None:
        def change(data: bytearray) -> None:
            if data:
                at = self._somewhere(data)
                length = min(self._random.choice((8, 100, BLOCK, len(data))), len(data) - at)
                data[at : at + length] = make(length)

        self._change(change)

    def _swap_pages(self) -> None:
        def change(data: bytearray) -> None:
            if len(data) >= 2 * BLOCK:
                one, other = (self._random.randrange(len(data) // BLOCK) * BLOCK for _ in range(2))
                page = data[one : one + BLOCK]
                data[one : one + BLOCK] = data[other : other + BLOCK]
                data[other : other + BLOCK] = page

        self._change(change)

    def _cut(self) -> None:
        def change(data: bytearray) -> None:
            length = self._random.randrange(len(data) + 1)
            del data[length if self._random.random() < 0.5 else length // BLOCK * BLOCK :]

        self._change(change)

    def _grow(self) -> None:
        self._change(lambda data: data.extend(self._random.randbytes(self._random.choice((1, BLOCK, 3 * BLOCK)))))

    def _damage_the_stamp(self) -> None:
        def change(data: bytearray) -> None:
            if self._random.random() < 0.3 or not data:
                del data[:]
            else:
                data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)

        self._change(change, self.stamp)

    def _copy_in_place(self) -> None:
        """The same bytes in another file."""
        if self.data.is_file():
            other = self.index / "other"
            shutil.copyfile(self.data, other)
            other.replace(self.data)

    def _keep(self) -> None:
        remove(self._kept)
        if self.index.is_dir():
            copy_tree(self.index, self._kept)

    def _put_back_in_place(self) -> None:
        """Older bytes in the file that the stamp vouches for."""
        older = self._kept / "data.mdb"
        if older.is_file():

            def change(data: bytearray) -> None:
                data[:] = older.read_bytes()

            self._change(change)

    def _put_back(self) -> None:
        """The older files, as a backup would bring them."""
        if self._kept.is_dir():
            remove(self.index)
            copy_tree(self._kept, self.index)

    def _set_aside(self) -> None:
        """Move the index away, files and all."""
        remove(self._aside)
        if self.index.exists():
            self.index.rename(self._aside)

    def _put_back_by_name(self) -> None:
        """The very files that were set aside, older now: the stamp vouches for them."""
        if self._aside.exists():
            remove(self.index)
            self._aside.rename(self.index)

    def _foreign(self) -> None:
        """A copy of another store's files: neither its store nor its inode is ours."""
        if self._other.is_dir():
            remove(self.index)
            copy_tree(self._other, self.index)

    def _foreign_by_name(self) -> None:
        """Another store's very files: only the store that their stamp names is not ours."""
        if self._other.is_dir():
            remove(self.index)
            self._other.rename(self.index)
            copy_tree(self.index, self._other)

    def adopt(self, store: Path) -> None:
        """The index of a copy that has gone its own way: same store id, same sessions, stamp and all."""
        other = store / "index"
        if other.is_dir():
            remove(self.index)
            other.rename(self.index)

    def _no_directory(self) -> None:
        """A file where the index should be."""
        remove(self.index)
        self.index.write_bytes(b"in the way")

    def _no_file(self) -> None:
        """Something else where the data file should be."""
        if self.index.is_dir():
            remove(self.data)
            match self._random.randrange(3):
                case 0:
                    self.data.mkdir()
                case 1:
                    self.data.symlink_to(self._kept / "data.mdb")
                case 2:
                    os.mkfifo(self.data)


def copy_tree(source: Path, target: Path) -> None:
    """Whatever there is, links and pipes as such."""
    subprocess.run(["cp", "-R", str(source), str(target)], check=True)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
