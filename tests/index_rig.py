"""A store whose index is in small, what it is asked, and ways to hold its answers against those of no index at all."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from zlib import crc32

import msgspec
import pytest

from scopelog import ManualClock, ScopelogError, SessionReader, Store, ephemeral, list_of, value
from scopelog_engine.layout import session_dir_name
from scopelog_engine.lmdbenv import Changes
from scopelog_engine.lmdbfile import FORMAT, IndexFile, Stamp
from scopelog_engine.logindex import LogIndex
from scopelog_engine.reader import Reader
from tests.views_index import SMALL

SID: Final = "chat"
NAME: Final = session_dir_name(SID)
LISTS: Final = [list_of("n", "dense"), list_of("n", "rare"), list_of("m", "gone"), list_of("m", "cut")]
VALUES: Final = [value("v", f"key-{n:02}") for n in range(24)] + [value("w", "only"), value("w", "é")]
PAGES: Final[list[dict[str, Any]]] = [
    {},
    {"order": "desc"},
    {"order": "desc", "limit": 3},
    {"limit": 2},
    {"cursor": 40, "limit": 4},
    {"cursor": 60, "order": "desc", "limit": 4},
]


def small_values(patch: pytest.MonkeyPatch) -> None:
    """Small stretches, blocks and thresholds, so that a short log has an index of many blocks."""
    for module, constants in SMALL.items():
        for name, number in constants.items():
            patch.setattr(importlib.import_module(f"scopelog_engine.{module}"), name, number)
    patch.setattr(importlib.import_module("scopelog_engine.index"), "CHECKPOINT_BYTES", 1500)
    patch.setattr(importlib.import_module("scopelog_engine.catalogue"), "_MANY", 10**9)  # trees alone make an index


def write_some(store: Store, random: Random, rounds: int = 60, sid: str = SID) -> None:
    """Commits of all kinds to one session."""
    dense, rare, gone, cut = LISTS
    with store.session(sid) as session:
        for number in range(rounds):
            writes = [dense.append({"n": number, "text": random.randbytes(12).hex()}) for _ in range(3)]
            writes.append(random.choice(VALUES).set({"n": number, "text": random.randbytes(4).hex()}))
            if number % 7 == 0:
                writes.append(random.choice(VALUES).delete())
            if number % 13 == 5:
                writes.append(rare.append(number, "rare"))
            if number % 9 == 1:
                writes += [gone.append(number), cut.append(number)]
            if number == rounds // 2:
                writes.append(gone.delete())
            if number % 20 == 19:
                writes.append(cut.trim(number * 3))
            if number % 5 == 2:
                writes.append(ephemeral(f"op-{number}").retire())
            session.commit(writes)
        for number in (1, 2):
            session.commit([ephemeral(f"alive-{number}").value("n", "state").set(number)])


def answers(reader: SessionReader, every: int = 1) -> dict[str, Any]:
    """What a session says; an error stands for an answer that is one. ``every``: so many questions are one asked."""
    found: dict[str, Any] = {"scopes": _of(reader.scopes)}
    for address in VALUES[::every]:
        found[f"get {address}"] = _of(reader.get, address, "absent")
    for namespace, prefix in (("v", ""), ("v", "key-1"), ("w", ""), ("x", "")):
        found[f"scan {namespace} {prefix}"] = _of(reader.scan, namespace, prefix)
    for target in LISTS:
        for page in PAGES[::every]:
            found[f"read {target} {page}"] = _of(partial(reader.read, **page), target)
    view = reader._reader._now.views[""]
    for after in (0, 30, 100)[::every]:
        found[f"retired after {after}"] = _of(view.retired_since, after)
    return found


def _of(ask: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return ask(*arguments)
    except ScopelogError as error:
        return f"{type(error).__name__}: {error}"


def without_index(store: Store, sid: str = SID, every: int = 1) -> dict[str, Any]:
    """The answers of the log alone."""
    inner = store._store
    with SessionReader(Reader(inner.fs, inner.directory(sid), store=inner.identity, session=sid)) as reader:
        return answers(reader, every)


def with_index(store: Store, sid: str = SID, every: int = 1) -> dict[str, Any]:
    with store.reader(sid) as reader:
        return answers(reader, every)


def assert_same(store: Store, sid: str = SID, every: int = 1) -> None:
    """The answers are those without an index, errors included (I5)."""
    assert with_index(store, sid, every) == without_index(store, sid, every)


def log_index(store: Store, sid: str = SID) -> LogIndex:
    assert store._store.index is not None
    return store._store.index.log(session_dir_name(sid))


def covered(store: Store) -> int:
    """Bytes of log that the index covers, over all sessions."""
    assert store._store.index is not None
    return int(store._store.index.state()["covered_bytes"] or 0)


def rebuild(store: Store, sid: str = SID) -> bool:
    """Derive the session's tree from its log as far as that is proved to be durable."""
    with store.reader(sid) as reader:
        now = reader._reader._now
        return log_index(store, sid).rebuild(now.views[""], now.surveys[""].mark)


def build(path: Path, seed: int = 1, rounds: int = 60) -> str:
    """A closed store with an index of one session; returns its id. The thresholds must be small."""
    with Store.open(path, clock=ManualClock()) as store:
        write_some(store, Random(seed), rounds)
        assert store._store.index is not None and store._store.index.present
    return store._store.identity


def vouch(index: Path, identity: str) -> None:
    """Write the stamp that the data file would have, had the engine made it."""
    status = (index / "data.mdb").stat()
    body = msgspec.json.encode(Stamp(FORMAT, identity, status.st_dev, status.st_ino))
    (index / "STAMP").write_bytes(b"%08x " % crc32(body) + body)


@contextmanager
def quiet_end(what: str) -> Iterator[None]:
    """The last thing in a child: leave with 0, or print why not."""
    status = 1
    try:
        yield
        status = 0
    finally:
        if status:
            print(f"in a child, at {what}:", file=sys.stderr)
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(status)


def in_children(cases: Iterable[str], work: Callable[[str], object], *, each: int = 40) -> None:
    """Do ``work`` for each case in forked children, ``each`` cases a child. Every child must end by itself, with 0.

    A failure names the case that the child was at.
    """
    waiting = list(cases)
    assert waiting, "no case to try"
    while waiting:
        part, waiting = waiting[:each], waiting[each:]
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(told)
            signal.alarm(120)
            with quiet_end("the cases"):
                for case in part:
                    os.write(tell, case.encode() + b"\n")
                    work(case)
        os.close(tell)
        with os.fdopen(told, "rb") as pipe:
            last = pipe.read().decode().splitlines()
        status = os.waitpid(pid, 0)[1]
        assert status == 0, f"the child ended with {status} (signal {status & 127}) at {last[-1:] or 'its start'}"
        assert last == part


def change_some(file: IndexFile, held: dict[bytes, bytes], random: Random) -> None:
    """A transaction of puts and removals, done to ``held`` as well."""
    puts = {b"%d" % random.randrange(2000) + b"k" * random.randrange(90): random.choice((0, 9, 90, 900, 9000))
            for _ in range(random.choice((1, 20, 120)))}  # fmt: skip
    gone = random.sample([*held], min(len(held) // 3, 60))

    def change(changes: Changes) -> None:
        changes.put(b"mark", b"1")
        for key in gone:
            changes.remove(key)
        for key, length in puts.items():
            changes.put(key, bytes(length))
        changes.put(b"short-lived", bytes(20_000))
        changes.remove(b"short-lived")

    if file.write(change, create=True):
        for key in gone:
            del held[key]
        held.update({key: bytes(length) for key, length in puts.items()})
