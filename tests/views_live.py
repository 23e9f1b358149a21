"""A session that lives: its writer is killed, retires, deletes and begins anew; readers hold it to its word.

All are processes of their own, run by ``test_readers_live.py``. What a reader may rely on is written into the session:
its *incarnation* (when it was made), how many elements its history has had, from which one on they are kept, and how
often each scope was retired, all set in the very commits that make them true.

As a script it is either, for strace: ``python -m tests.views_live write|watch STORE SEED TIMES``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from click.testing import CliRunner

from scopelog import SESSION, Json, NoSuchSession, Session, SessionReader, Store, ephemeral, list_of, value
from scopelog.aio import AsyncSessionReader
from scopelog.cli.commands import cli

from .views_index import make_small

SESSION_ID: Final = "live"
HISTORY: Final = list_of("chat", "history")
STAGED: Final = list_of("chat", "staged")
INCARNATION: Final = value("chat", "incarnation")
COUNT: Final = value("chat", "count")
FLOOR: Final = value("chat", "floor")
LIVES: Final = value("chat", "lives")
SCOPES: Final = [ephemeral(name) for name in ("op-a", "op-b", "op-c")]
_OPERATIONS: Final = ["commit"] * 8 + ["stage"] * 8 + ["scope"] * 4 + ["flush", "trim", "retire", "retire", "reopen"]
_DELETED: Final = 0.004  # how likely it is that a session is deleted and begins anew


# --- the writer -------------------------------------------------------------------------------------


class Writing:
    """Writes for ever, or ``operations`` times; ``say`` is told after each."""

    def __init__(self, path: Path, seed: int) -> None:
        self._random = Random(seed)
        self._store = Store.open(path, window_ms=2)
        self._open()

    def _open(self) -> None:
        self._session: Session = self._store.session(SESSION_ID)
        if self._session.get(INCARNATION) is None:
            self._session.commit([INCARNATION.set(time.time_ns()), LIVES.set({scope.id: 0 for scope in SCOPES})])
        self._incarnation: int = self._session.get(INCARNATION)
        self._count: int = self._session.get(COUNT, 0)
        staged = [element.element for element in self._session.read(STAGED)]
        _same(staged, [[self._incarnation, n] for n in range(len(staged))])
        self._staged = len(staged)
        with self._store.reader(SESSION_ID) as reader:
            everything = [r.value for r in reader.records() if r.op == "append" and r.key == "staged"]
        _same(staged, everything)
        self._lives: dict[str, int] = self._session.get(LIVES)
        self._steps = {s.id: len(self._session.read(s.list_of("op", "steps"))) for s in SCOPES}

    def run(self, say: Callable[[], object], operations: int | None = None) -> None:
        for _ in itertools.count() if operations is None else range(operations):
            getattr(self, "_" + self._random.choice(_OPERATIONS))()
            if self._random.random() < _DELETED:
                self._delete()
            say()
        self._session.close()
        self._store.close()

    def _commit(self) -> None:
        count = self._random.choice((1, 3, 30))
        writes = [HISTORY.append([self._incarnation, self._count + n]) for n in range(count)]
        self._count += count
        self._session.commit([*writes, COUNT.set(self._count)])

    def _stage(self) -> None:
        for _ in range(self._random.randint(1, 6)):
            self._session.append(STAGED, [self._incarnation, self._staged])
            self._staged += 1
            self._session.append(*self._step())

    def _step(self) -> tuple[Any, Json]:
        scope = self._random.choice(SCOPES)
        element = [self._incarnation, self._lives[scope.id], self._steps[scope.id]]
        self._steps[scope.id] += 1
        return scope.list_of("op", "steps"), element

    def _scope(self) -> None:
        steps, element = self._step()
        self._session.commit([steps.append(element)])

    def _flush(self) -> None:
        self._session.flush()

    def _trim(self) -> None:
        kept = self._session.read(HISTORY, order="desc", limit=self._random.choice((1, 40, 400)))
        if kept:
            self._session.commit([HISTORY.trim(kept[-1].seq - 1), FLOOR.set(kept[-1].element[1])])

    def _retire(self) -> None:
        scope = self._random.choice(SCOPES)
        self._lives = self._lives | {scope.id: self._lives[scope.id] + 1}
        self._steps[scope.id] = 0
        self._session.commit([scope.retire(), LIVES.set(self._lives)])

    def _reopen(self) -> None:
        if self._random.random() < 0.3:
            self._session.close()
            self._open()

    def _delete(self) -> None:
        self._session.close()
        self._store.delete_session(SESSION_ID)
        self._open()


# --- a reader ---------------------------------------------------------------------------------------


class Watching:
    """What one reader has seen so far, and so never again sees less of. ``seen``: how often it saw what."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._random = Random(seed)
        self._store = Store.open(path, create=False)
        self._reader: SessionReader | None = None
        self._last: tuple[int, int] = (0, 0)
        self._staged: tuple[int, int] = (0, 0)
        self._lives: dict[str, tuple[int, int]] = {}
        self.seen: Counter[str] = Counter()

    def look(self) -> None:
        """Take one look at the session, and hold it against what was seen before."""
        try:
            if self._reader is None:
                self._reader = self._store.reader(SESSION_ID)
            else:
                self._reader.refresh()
        except NoSuchSession:
            self.seen["no session"] += 1
            if self._reader is not None:
                self._reader.close()
                self._reader = None
            return
        match self._random.choice(("reads", "reads", "tasks", "records", "cat")):
            case "reads":
                self._reads(self._reader)
            case "tasks":
                asyncio.run(self._task(AsyncSessionReader(self._reader)))
            case "records":
                self._records(self._reader)
            case "cat":
                self._cat()
        self.seen["looks"] += 1
        if self._random.random() < 0.2:
            self._reader.close()
            self._reader = None

    def _reads(self, reader: SessionReader) -> None:
        before = self._position(reader)
        got = {entry.key: entry.value for entry in reader.scan("chat")}
        history = [element.element for element in reader.read(HISTORY)]
        tail = [element.element for element in reader.read(HISTORY, order="desc", limit=5)]
        staged = [element.element for element in reader.read(STAGED)]
        lives = {scope.id: [e.element for e in reader.read(scope.list_of("op", "steps"))] for scope in SCOPES}
        incarnation, count = reader.get(INCARNATION), reader.get(COUNT, 0)
        if self._position(reader) != before:  # what it saw was cut off as a torn tail: it has looked anew
            self.seen["cut"] += 1
            return
        assert (incarnation, count) == (got["incarnation"], got.get("count", 0))
        assert tail == history[::-1][:5]
        self._hold(got, history, staged, lives)

    async def _task(self, reader: AsyncSessionReader) -> None:
        before = self._position(reader.sync)
        asked = asyncio.gather(reader.read(HISTORY), reader.scan("chat"), reader.read(STAGED))
        history, entries, staged = await asked
        lives = {scope.id: await reader.read(scope.list_of("op", "steps")) for scope in SCOPES}
        if self._position(reader.sync) != before:
            self.seen["cut"] += 1
            return
        self._hold(
            {entry.key: entry.value for entry in entries},
            [element.element for element in history],
            [element.element for element in staged],
            {scope: [element.element for element in steps] for scope, steps in lives.items()},
        )

    @staticmethod
    def _position(reader: SessionReader) -> list[int]:
        return [reader.stats()["epoch"], *(reader.durable_seq(scope) for scope in (SESSION, *SCOPES))]

    def _records(self, reader: SessionReader) -> None:
        found = [
            {"seq": r.seq, "scope": r.scope, "op": r.op, "key": r.key, "tag": r.tag, "upto": r.upto}
            | ({"element": r.value} if r.op == "append" else {"value": r.value})
            for r in reader.records()
        ]
        self._replay(found)

    def _cat(self) -> None:
        result = CliRunner().invoke(cli, ["cat", str(self._path), SESSION_ID, "--json"])
        if result.exit_code == 2 and "there is no session" in result.stderr:
            self.seen["no session"] += 1
            return
        assert result.exit_code == 0, (result.output, result.exception)
        self._replay([json.loads(line) for line in result.stdout.splitlines()])

    def _replay(self, records: list[dict[str, Any]]) -> None:
        """What all records together say is what reads say."""
        last = 0
        values: dict[str, Json] = {}
        lists: dict[tuple[str | None, str], list[tuple[int, Json]]] = {}
        for record in records:
            assert record["seq"] > last, "in order of sequence, and none twice"
            last = record["seq"]
            at = record["scope"], record.get("key") or ""
            match record["op"]:
                case "set":
                    values[at[1]] = record["value"]
                case "append":
                    lists.setdefault(at, []).append((last, record["element"]))
                case "trim":
                    lists[at] = [item for item in lists.get(at, []) if item[0] > record["upto"]]
        everything = {at: [element for _, element in items] for at, items in lists.items()}
        lives = {scope.id: everything.get((scope.id, "steps"), []) for scope in SCOPES}
        self._hold(values, everything.get((None, "history"), []), everything.get((None, "staged"), []), lives)

    def _hold(
        self, got: dict[str, Json], history: list[Json], staged: list[Json], lives: dict[str, list[Json]]
    ) -> None:
        """One look: whole commits alone, in order and without a gap, and nothing that was over when last seen."""
        assert got, "main is never without its first commit"
        incarnation, count = got["incarnation"], got.get("count", 0)
        assert (incarnation, count) >= self._last, "it goes back"
        self.seen["incarnations"] += incarnation > self._last[0]
        self.seen["news"] += (incarnation, count) > self._last
        self._last = incarnation, count
        _same(history, [[incarnation, n] for n in range(got.get("floor", 0), count)])  # whole commits, none missing
        _same(staged, [[incarnation, n] for n in range(len(staged))])
        assert (incarnation, len(staged)) >= self._staged
        self._staged = incarnation, len(staged)
        for scope, steps in lives.items():
            life = got["lives"][scope]
            _same(steps, [[incarnation, life, n] for n in range(len(steps))])  # one life, in order, without a gap
            assert (incarnation, life) >= self._lives.get(scope, (0, 0)), "what was retired never comes back"
            self._lives[scope] = incarnation, life
            self.seen["lives"] += life
            self.seen["steps"] += len(steps)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._store.close()


def _same(found: list[Json], wanted: list[Json]) -> None:
    at = next((n for n, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), len(found))
    assert found == wanted, (
        f"{len(found)} elements for {len(wanted)}, from {at} on {found[at:][:5]} for {wanted[at:][:5]}"
    )


# --- whom nobody may ask ----------------------------------------------------------------------------


def is_log(path: str) -> bool:
    return path.endswith(".zst") and ".session/" in path


def forbid_stats() -> None:
    """From now on this process fails if it stats a log: a time stamp that was asked for slows the next sync."""

    def guarded(name: str) -> Callable[..., os.stat_result]:
        original: Callable[..., os.stat_result] = getattr(os, name)

        def call(path: int | str | os.PathLike[str], **keywords: Any) -> os.stat_result:
            where = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fspath(path)
            assert not is_log(where), f"os.{name} of {where}"
            return original(path, **keywords)

        return call

    for name in ("stat", "lstat", "fstat"):
        setattr(os, name, guarded(name))


def main(what: str, store: str, seed: str, times: str) -> None:
    make_small(Counter())
    if what == "write":
        Writing(Path(store), int(seed)).run(lambda: None, int(times))
        return
    watching = Watching(Path(store), int(seed))
    while watching.seen["looks"] < int(times):
        watching.look()
    watching.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
