"""The index and the logs, each from any moment of a short sequence of operations: answers are those of the logs alone.

LMDB wants a real directory, and the logs are wanted in every state a crash can leave them in. So the logs of a store
are on a simulated disk, and its index is in a real directory of the same path, which tests keep on tmpfs. Images of the
index are taken whenever it may have changed, and in the middle of its transactions (any of the new pages, with the old
meta pages: LMDB syncs pages before it writes the meta page). Each of them is then laid beside each state of the logs:
older than they are, as old, and newer, as after a power cut that spared the index, or when a log comes from a backup.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz.campaign import Campaign
from fuzz.model import Spec
from fuzz.model_handles import Settings, random_identities, steady_identities
from fuzz.model_rig import Rig
from fuzz.moments import Moment, Recorder
from fuzz.operations import SCOPE, Op, Step, perform
from fuzz.simdisk import SimDisk
from fuzz.survival import SID
from scopelog import SESSION, ScopelogError, SessionReader, Store
from scopelog_engine.reader import Reader
from scopelog_engine.tree import Tree
from tests.index_rig import small_values, vouch
from tests.views_index import checkpoint

STEPS = (
    Step(Op.COMMIT),
    Step(Op.TRIM),
    Step(Op.RETIRE, SCOPE),
    Step(Op.COMPACT),
    Step(Op.REOPEN),
    Step(Op.CLOSE),
    Step(Op.CHECKPOINT),
)
PAGE = 4096
Images = dict[bytes, str]  # data files of the index, and where they are from


@pytest.fixture(autouse=True)
def consistency_check() -> Iterator[None]:
    """In place of the shared one: logs and index are in two places, and damaged on purpose."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    random_identities()


class Mixed:
    """A rig whose index is in ``path``. ``asked``: questions that trees of the index have answered; ``backup``: the
    logs in the middle of the beginning. What a judge writes behind them has the lengths of what stood there."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.index = path / "index"
        self.asked = 0
        self.backup = SimDisk()
        path.mkdir()
        small_values(patch)
        patch.setattr("fuzz.model_handles.PATH", str(path))
        for name in ("value", "list_of"):
            patch.setattr(Tree, name, self._counted(getattr(Tree, name)))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.asked += 1
            return method(*arguments)

        return call

    def rig(self) -> Rig:
        """A log of some closed stretches, all of it durable and some of it in the index."""
        self.lay(None, "")
        steady_identities()
        disk = SimDisk()
        disk.memory_maps = True
        rig = Rig(Settings(), disk)
        rig.open(SID)
        for number in range(24):
            line = Spec("append", key="plain", kind="list", value=str(number % 10) * 60)
            rig.commit(SID, "", [line, Spec("set", key="ab", value=number % 10)])
            if number in (7, 15, 22):
                self.checkpoint(rig)
            if number == 3:
                self.backup = disk.copy()
        perform(rig, Step(Op.COMMIT, SCOPE))
        return rig

    def perform(self, rig: Rig, step: Step) -> None:
        if step.op is Op.CHECKPOINT:
            perform(rig, Step(Op.REOPEN) if SID not in rig.sessions else Step(Op.FLUSH))
            self.checkpoint(rig)
        else:
            perform(rig, step)

    def checkpoint(self, rig: Rig) -> None:
        assert checkpoint(rig.sessions[SID], "extend")

    # --- images of the index

    def data(self) -> bytes | None:
        path = self.index / "data.mdb"
        return path.read_bytes() if path.exists() else None

    def lay(self, data: bytes | None, identity: str) -> None:
        """Make the index hold ``data``, in a file that it vouches for; None: there is no index."""
        path = self.index / "data.mdb"
        if data is None:
            for name in ("data.mdb", "STAMP"):
                (self.index / name).unlink(missing_ok=True)
            return
        self.index.mkdir(exist_ok=True)
        path.write_bytes(data)
        vouch(self.index, identity)


def between(before: bytes, after: bytes) -> Iterator[bytes]:
    """What a crash in the middle of a transaction leaves: some of the new pages, and not yet a new meta page."""
    whole = before[: 2 * PAGE] + after[2 * PAGE :]
    yield whole
    changed = [at for at in range(2 * PAGE, len(after), PAGE) if after[at : at + PAGE] != before[at : at + PAGE]]
    for chosen in (changed[::2], changed[1::2], changed[: len(changed) // 2]):
        data = bytearray(before.ljust(len(after), b"\0"))
        for at in chosen:
            data[at : at + PAGE] = after[at : at + PAGE]
        yield bytes(data)
        yield bytes(data[: len(before)])


def answers(reader: SessionReader) -> dict[str, Any]:
    """What the session says to every question that an index can answer; an error is an answer."""
    questions: dict[str, Callable[[], Any]] = {"retired": lambda: reader._reader._now.views[""].retired_since(0)}
    for key in ("a", "ab", "b", "é"):
        questions[f"get {key}"] = lambda key=key: reader.get(SESSION.value("n", key), "absent")  # type: ignore[misc]
    for key in ("plain", "text"):
        for order, limit in itertools.product(("asc", "desc"), (None, 2)):
            questions[f"read {key} {order} {limit}"] = lambda key=key, order=order, limit=limit: reader.read(  # type: ignore[misc]
                SESSION.list_of("n", key), order=order, limit=limit
            )
    questions["scan"] = lambda: reader.scan("n")
    found: dict[str, Any] = {}
    for name, ask in questions.items():
        try:
            found[name] = ask()
        except ScopelogError as error:
            found[name] = repr(error)
    return found


def same(store: Store) -> dict[str, Any]:
    """The answers with and without the index are the same (I5)."""
    inner = store._store
    with SessionReader(Reader(inner.fs, inner.directory(SID), store=inner.identity, session=SID)) as plain:
        wanted = answers(plain)
    with store.reader(SID) as reader:
        assert answers(reader) == wanted
    return wanted


def states(mixed: Mixed, steps: tuple[Step, ...], limit: int) -> tuple[Rig, dict[bytes, SimDisk], Images]:
    """All states of the logs at any moment of the sequence, and all images of the index."""
    rig = mixed.rig()
    disks: dict[bytes, SimDisk] = {}
    images: Images = {}
    last: list[bytes] = []

    def image(where: str) -> None:
        data = mixed.data()
        if data is not None and data not in images:
            if last:
                for n, part in enumerate(between(last[-1], data)):
                    images.setdefault(part, f"{where}, part {n}")
            images[data] = where
            last.append(data)

    def look(moment: Moment, where: str) -> None:
        image(where)
        trees = [moment.killed(), *(moment.tree(state) for state in moment.outcomes(limit).states)]
        for disk in map(rig.disk.with_tree, trees):
            disks.setdefault(disk.digest(), disk)

    disks[mixed.backup.digest()] = mixed.backup
    with Recorder(rig.disk, look):
        for step in steps:
            mixed.perform(rig, step)
    image("the end")
    return rig, disks, images


def judge(mixed: Mixed, rig: Rig, disk: SimDisk, data: bytes | None) -> None:
    """Open the logs beside that index, ask, write, extend the index, and ask again."""
    identity = rig.open_store()._store.identity
    mixed.lay(data, identity)
    other = rig.fork(disk.copy())
    store = other.open_store()
    wanted = same(store)
    session = store.session(SID)
    assert same(store) == wanted, "an open for write changes no answer"
    for number in range(3):
        session.commit(
            [SESSION.list_of("n", "plain").append(f"behind it {number}" * 9), SESSION.value("n", "ab").set(-1)]
        )
    assert session.get(SESSION.value("n", "ab")) == -1
    same(store)
    checkpoint(session, "extend")
    same(store)
    session.close()
    store.close()


@pytest.mark.damages
@pytest.mark.fault(11, 12, 13, rig="S")
def test_an_index_of_any_moment_beside_logs_of_any_moment(
    campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = Mixed(tmp_path / "store", monkeypatch)
    count = 2 if campaign.full else 1
    every = [steps for k in range(1, count + 1) for steps in itertools.product(STEPS, repeat=k)]
    stride = 3 if campaign.full else 19
    cases = at = logs = indexes = 0
    for steps in every:
        rig, disks, images = states(mixed, (*steps, Step(Op.CHECKPOINT)), 64 if campaign.full else 8)
        logs, indexes = logs + len(disks), indexes + len(images)
        for disk, data in itertools.product(disks.values(), (None, *images)):
            at += 1
            if at % stride:
                continue
            try:
                judge(mixed, rig, disk, data)
            except (AssertionError, ScopelogError, OSError) as error:
                where = images[data] if data is not None else "none"
                raise AssertionError(f"{', '.join(map(str, steps))}, case {at}, index {where}: {error!r}") from error
            cases += 1
        rig.kill()
    assert mixed.asked, "no tree was ever asked"
    campaign.count(cases)
    campaign.note(
        f"{cases:,} pairs of {logs:,} states of logs and {indexes:,} of the index; {mixed.asked:,} answers by it"
    )
