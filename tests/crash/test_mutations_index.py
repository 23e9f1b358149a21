"""Every byte of an index's files turned, zeroed, cut; an index kept beside a main log of another moment.

The answers are those of the logs alone, whatever becomes of the index, and no process dies of it: all is tried in
children, many mutations each, and a child that ends by a signal is named with the mutation that it was at. Beside
tests/test_index_damage.py, which goes after what LMDB could be made to believe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

import pytest

from fuzz.campaign import Campaign
from fuzz.model import Op, elements, values
from fuzz.mutations import JUNK, RUNS, junk
from fuzz.shapes import CHAT, Shape, frames_of, shape
from fuzz.verdicts import fate
from scopelog import ManualClock, Store, list_of
from scopelog_engine.layout import INDEX_DATA, INDEX_DIR, INDEX_STAMP, KIND_INDEX
from tests.index_rig import (
    NAME,
    answers,
    build,
    covered,
    in_children,
    rebuild,
    small_values,
    vouch,
    with_index,
    without_index,
)
from tests.stores import Image, flip, image_of, lay

DATA: Final = f"{INDEX_DIR}/{INDEX_DATA}"
STAMP: Final = f"{INDEX_DIR}/{INDEX_STAMP}"
MAIN: Final = f"{NAME}/main.zst"
PAGE: Final = 4096


class Indexed:
    """A store with a small index, what it answers, and its index of an older moment and of another store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identity = build(path)
        self.image = image_of(path)
        with Store.open(path, clock=ManualClock()) as store:
            assert with_index(store) == without_index(store)
            self.brief = with_index(store, every=6)

    def put(self, image: Image, *, vouched: bool = True) -> None:
        lay(self.path, image)
        if vouched and DATA in image:
            vouch(self.path / INDEX_DIR, self.identity)

    def answered(self, *, writes: bool) -> None:
        with Store.open(self.path, clock=ManualClock()) as store:
            assert with_index(store, every=6) == self.brief
            if writes:
                assert rebuild(store) and covered(store) > 0
                assert with_index(store, every=6) == self.brief


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Indexed:
    small_values(monkeypatch)
    return Indexed(tmp_path / "s")


def run(case: Indexed, campaign: Campaign, cases: Iterable[str], change: Callable[[bytes, str], bytes]) -> None:
    """Lay down the store with its data file changed, a case after the other, and ask."""
    names = [*cases]

    def work(name: str) -> None:
        case.put(case.image | {DATA: change(case.image[DATA], name)})
        case.answered(writes=len(name) % 3 == 0)

    in_children(names, work, each=200)
    campaign.count(len(names))


def _bit(data: bytes, name: str) -> bytes:
    return flip(data, int(name))


def _zeros(data: bytes, name: str) -> bytes:
    at, length = map(int, name.split(":"))
    return data[:at] + bytes(min(length, len(data) - at)) + data[at + length :]


def _junk(data: bytes, name: str) -> bytes:
    at, what, length = name.split(":")
    return data[: int(at)] + junk(what, int(length)) + data[int(at) + int(length) :]


@pytest.mark.fault(22, rig="M")
def test_bits_of_every_page(case: Indexed, campaign: Campaign) -> None:
    """One bit of every so many, all over the file."""
    bits = range(0, 8 * len(case.image[DATA]), 397 if campaign.full else 9973)
    run(case, campaign, map(str, bits), _bit)


@pytest.mark.fault(22, rig="M")
def test_runs_of_zeros_and_junk(case: Indexed, campaign: Campaign) -> None:
    """At the beginning, in the middle and at the end of every page, over its end, and behind all."""
    size = len(case.image[DATA])
    places = [page + at for page in range(0, size, PAGE) for at in (0, 16, PAGE // 2, PAGE - 1)]
    every = [f"{at}:{length}" for at in places for length in RUNS]
    run(case, campaign, islice(every, 0, None, 5 if campaign.full else 71), _zeros)
    every = [f"{at}:{what}:{length}" for at in (*places, size) for what in JUNK for length in (1, 8, 512, PAGE, 65536)]
    run(case, campaign, islice(every, 0, None, 11 if campaign.full else 211), _junk)


@pytest.mark.fault(22, 23, rig="M")
def test_every_bit_and_every_length_of_the_stamp(case: Indexed, campaign: Campaign) -> None:
    """A stamp that does not say what it must: the data file is not opened. A stamp that does is believed as far as it
    names this store, this device and this inode."""
    case.put(case.image)
    stamp = (case.path / STAMP).read_bytes()
    names = [f"bit {n}" for n in range(0, 8 * len(stamp), 1 if campaign.full else 29)]
    names += [f"cut {n}" for n in range(0, len(stamp), 1 if campaign.full else 17)]

    def work(name: str) -> None:
        kind, number = name.split()
        case.put(case.image)
        own = (case.path / STAMP).read_bytes()
        changed = flip(own, int(number)) if kind == "bit" else own[: int(number)]
        (case.path / STAMP).write_bytes(changed)
        with Store.open(case.path, clock=ManualClock()) as store:
            assert store._store.index is not None
            assert not store._store.index.present or changed.strip() == own.strip()
            assert with_index(store, every=6) == case.brief

    in_children(names, work, each=200)
    campaign.count(len(names))


@pytest.mark.fault(23, 32, rig="M")
def test_an_index_beside_main_of_every_older_moment(case: Indexed, campaign: Campaign) -> None:
    """Main is put back as it was behind each of its frames; the index is that of the end, and vouched for."""
    frames = frames_of(case.image[MAIN])
    names = [str(frame.end) for frame in frames[1 : -1 : 1 if campaign.full else 19]]

    def work(name: str) -> None:
        case.put(case.image | {MAIN: case.image[MAIN][: int(name)]})
        with Store.open(case.path, clock=ManualClock()) as store:
            assert with_index(store, every=6) == without_index(store, every=6)
            rebuild(store)
            assert with_index(store, every=6) == without_index(store, every=6)

    in_children(names, work)
    campaign.count(len(names))


@pytest.mark.damages
@pytest.mark.fault(22, 23, rig="M")
def test_an_index_does_not_hide_damage_or_make_it(case: Indexed, campaign: Campaign) -> None:
    """Main is damaged, the index is whole: each question is answered as the log alone does, or, where the log alone
    cannot pass by the damage, as ever."""
    frames = frames_of(case.image[MAIN])
    names = [str(frame.offset + 12) for frame in frames[1 : -1 : 3 if campaign.full else 43]]
    with Store.open(case.path, clock=ManualClock()) as store:
        before = with_index(store, every=6)

    def work(name: str) -> None:
        at = int(name)
        data = case.image[MAIN]
        case.put(case.image | {MAIN: data[:at] + bytes((data[at] ^ 0x40,)) + data[at + 1 :]})
        with Store.open(case.path, clock=ManualClock()) as store:
            bare, indexed = without_index(store, every=6), with_index(store, every=6)
        for question, answer in bare.items():
            if indexed[question] != answer:
                assert str(answer).startswith("CorruptLog") and indexed[question] == before[question], question

    in_children(names, work)
    campaign.count(len(names))


# --- a log of real stretches ------------------------------------------------------------------------


def _answered(store: Store, one: Shape, ops: list[Op]) -> None:
    """What the model says that a log with these operations answers."""
    with store.reader(CHAT) as reader:
        for key in ("log", "rare"):
            wanted = [(op.seq, op.spec.value) for op in elements(ops, "n", key)]
            assert [(e.seq, e.element) for e in reader.read(list_of("n", key))] == wanted
            assert [e.seq for e in reader.read(list_of("n", key), order="desc", limit=2)] == [
                n for n, _ in wanted[:-3:-1]
            ]
        assert reader.scan("n") == values(ops, "n")


@pytest.mark.damages
@pytest.mark.fault(22, 23, 32, rig="M")
def test_the_index_of_a_long_log(campaign: Campaign, tmp_path: Path) -> None:
    """Stretches and blocks of the lengths that they really have; data files flipped, cut and zeroed, main cut."""
    one = shape("long")
    path = lay(tmp_path / "s", one.files)
    with Store.open(path, clock=ManualClock()) as store:
        with store.session(CHAT):
            pass
        [built] = store.rebuild_index([CHAT])
        assert built.covered > 2 * 64 * 1024
        identity = store.id
    image = image_of(path)
    assert len([frame for frame in frames_of(image[one.main.path]) if frame.kind == KIND_INDEX]) >= 2
    random = Random(8)
    size, ends = len(image[DATA]), [frame.end for frame in one.main.frames[1:]]
    names = [f"bit:{random.randrange(8 * size)}" for _ in range(300 if campaign.full else 12)]
    names += [f"cut:{random.randrange(size)}" for _ in range(60 if campaign.full else 4)]
    names += [f"zero:{random.randrange(size)}:{random.choice(RUNS)}" for _ in range(120 if campaign.full else 4)]
    names += [f"main:{end}" for end in ends[:: 2 if campaign.full else 13]]

    def work(name: str) -> None:
        kind, *numbers = name.split(":")
        data, main = image[DATA], image[one.main.path]
        if kind == "bit":
            data = flip(data, int(numbers[0]))
        elif kind == "cut":
            data = data[: int(numbers[0])]
        elif kind == "zero":
            data = _zeros(data, ":".join(numbers))
        else:
            main = main[: int(numbers[0])]
        lay(path, image | {DATA: data, one.main.path: main})
        vouch(path / INDEX_DIR, identity)
        found = fate([one.main], main)
        assert found is not None
        with Store.open(path, clock=ManualClock()) as store:
            _answered(store, one, [*found.all_ops])
            store.rebuild_index([CHAT])
            _answered(store, one, [*found.all_ops])

    in_children(names, work, each=100)
    campaign.count(len(names))


def _another_inode(path: Path) -> None:
    data = path.read_bytes()
    path.with_name("moved").write_bytes(data)
    os.replace(path.with_name("moved"), path)


@pytest.mark.fault(23, rig="M")
def test_a_data_file_that_moved(case: Indexed, campaign: Campaign) -> None:
    """The same bytes in another inode, or another file put in its place by a rename: not opened, and made anew."""

    def work(name: str) -> None:
        case.put(case.image)
        _another_inode(case.path / DATA)
        with Store.open(case.path, clock=ManualClock()) as store, store.reader(CHAT) as reader:
            assert store._store.index is not None and not store._store.index.present
            assert answers(reader, 6) == case.brief
            assert rebuild(store) and covered(store) > 0
            _another_inode(case.path / DATA)  # under the open store
            assert with_index(store, every=6) == case.brief
            rebuild(store)
            assert with_index(store, every=6) == case.brief

    in_children(["once", "again"], work)
    campaign.count(2)
