"""Real limits: files that may not grow, full and read-only file systems, no descriptors, no memory.

The work goes on, limited, and later without the limit; the reference model says what must be there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import pytest

from fuzz.campaign import Campaign
from fuzz.limits import Descriptors, FullDisk, Resource, apart, limited, read_only, small_disk
from fuzz.model_handles import POWER, PROCESS, Settings
from fuzz.process_child import (
    COMMITS,
    COMMITTED,
    SCENARIOS,
    SCOPED,
    Scenario,
    add,
    commit,
    compact,
    flush,
    opened,
    random_scenario,
    reopened,
    retire,
    set_,
    stage,
)
from fuzz.process_rig import SID, ProcessRig
from scopelog import Json, List, ManualClock, OpenFailed, Scope, Session, Store, WriteFailed, ephemeral, list_of
from scopelog_engine import elements, writer
from tests.index_rig import small_values
from tests.stores import unsound
from tests.views_index import checkpoint

from .processes import consistency_check, some, where

__all__ = ["consistency_check", "where"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and mounts of Linux")
MIXED = Scenario(
    SCOPED,
    (
        *COMMITS,
        commit("op-1", add("of the scope")),
        stage("op-1", "staged "),
        stage("", "both", "t"),
        flush,
        commit("", retire("op-1"), set_("b", 7)),
        stage("op-1", "a new life"),
        flush,
    ),
)
BIRTH = Scenario((opened,), (commit("", add("first")), commit("op-1", add("first")), flush))


@contextlib.contextmanager
def or_skip() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if "mount" not in str(error):
            raise
        pytest.skip(f"{error}")


def emptied(path: str) -> str:
    """The path of the next store, where there is nothing left of the one before."""
    for entry in os.scandir(path):
        shutil.rmtree(entry.path)
    return os.path.join(path, "store")


# --- no room ----------------------------------------------------------------------------------------


@pytest.mark.fault(17, 18, rig="R")
@pytest.mark.parametrize("name", ["birth", "mixed", "mixed, process"])
def test_files_that_may_not_grow_beyond_any_byte(name: str, campaign: Campaign, where: str) -> None:
    """Writes stop short at every byte of what a script writes, and fail there (EFBIG); later there is room again."""
    settings = Settings(PROCESS, PROCESS) if "process" in name else Settings()
    scenario = (BIRTH if name == "birth" else MIXED)._replace(settings=settings)
    told: set[str] = set()
    bytes_ = range(1, 420) if name == "birth" else range(200, 1000, 1 if "process" in name else 5)
    for limit in some(bytes_, 7, campaign):
        told |= limited(emptied(where), scenario, partial(Resource, resource.RLIMIT_FSIZE, limit))
        campaign.count()
    assert told == {"WriteFailed"}


@pytest.mark.fault(17, 18, rig="R")
@pytest.mark.parametrize("name", ["birth", "mixed"])
def test_a_full_disk_and_one_with_a_few_pages_left(name: str, campaign: Campaign) -> None:
    before, script, *_ = BIRTH if name == "birth" else MIXED
    noise = [add(Random(n).randbytes(40_000).hex()) for n in range(4)]
    big = Scenario(before, (*script, commit("", *noise), stage("op-1", "x"), commit("op-1", *noise), flush))
    told: set[str] = set()
    with or_skip(), small_disk(4 << 20) as disk:
        for pages in some(range(0, 120, 2), 5, campaign):
            told |= limited(emptied(disk), big, partial(FullDisk, disk, pages * 4096))
            campaign.count()
    assert "WriteFailed" in told and told <= {"WriteFailed", "OutcomeUnknown"}


@pytest.mark.fault(17, 18, 21, rig="R")
def test_random_lives_within_limits(campaign: Campaign, where: str) -> None:
    for seed in campaign.seeds(2):
        random = Random(seed)
        scenario = random_scenario(seed)
        told = limited(emptied(where), scenario, partial(Resource, resource.RLIMIT_FSIZE, random.randint(1, 3000)))
        assert told <= {"WriteFailed", "OpenFailed"}, f"seed {seed}: {told}"
        campaign.count(rows=(17, 18))
        told = limited(emptied(where), scenario, partial(Descriptors, random.randint(0, 5)))
        assert told <= {"WriteFailed", "OpenFailed", "OutcomeUnknown", "LogPoisoned", "ReadFailed"}, f"seed {seed}"
        campaign.count(rows=(21,))


# --- no descriptors, no permission ------------------------------------------------------------------


@pytest.mark.fault(21, rig="R")
@pytest.mark.parametrize("name", ["first commit", "mixed", "reopened", "compaction"])
def test_no_descriptors(name: str, campaign: Campaign, where: str) -> None:
    """From none up to as many as all of it takes: an open handle goes on, what needs a file is refused, typed."""
    scenario = {
        "first commit": SCENARIOS["first commit"],
        "mixed": MIXED,
        "reopened": Scenario(SCOPED, (reopened, commit("", add("after")))),
        "compaction": Scenario(SCOPED, (compact(""), compact("op-1"), commit("", add("after")))),
    }[name]
    told: list[set[str]] = []
    for more in some(range(12), 3, campaign):
        told.append(limited(emptied(where), scenario, partial(Descriptors, more)))
        campaign.count()
    assert told[0] <= {"OpenFailed", "WriteFailed", "OutcomeUnknown", "LogPoisoned", "ReadFailed"}
    assert not told[-1], "enough for all of it"


@pytest.mark.fault(21, rig="R")
def test_commits_of_an_open_handle_need_no_descriptor(where: str, campaign: Campaign) -> None:
    scenario = Scenario(SCOPED, (*COMMITS, commit("op-1", add("again")), stage("op-1", "x"), flush))
    assert not limited(emptied(where), scenario, partial(Descriptors, 0))
    campaign.count()


@pytest.mark.fault(21, rig="R")
def test_a_read_only_file_system(store_path: Path, campaign: Campaign) -> None:
    """Readers need neither lock nor index; an open for write is refused before anything is touched."""
    list_ = list_of("n", "plain")
    with Store.open(store_path, clock=ManualClock()) as store, store.session(SID) as session:
        session.commit([list_.append("one")])
        session.commit([ephemeral("op-1").list_of("n", "plain").append("of the scope")])
    with or_skip(), read_only(str(store_path)) as path, Store.open(path, clock=ManualClock()) as store:
        with store.reader(SID) as reader:
            assert [e.element for e in reader.read(list_)] == ["one"] and reader.scopes() == ["op-1"]
        assert store.sessions() == [SID] and unsound(store.check(deep=True)) == []
        for call in (lambda: store.session(SID), lambda: store.session("new"), lambda: store.delete_session(SID)):
            with pytest.raises((OpenFailed, WriteFailed)) as caught:
                call()
            assert os.strerror(errno.EROFS) in caught.value.cause
        # Beside it somebody writes, through a path where that is possible.
        with Store.open(store_path, clock=ManualClock()) as other, other.session(SID) as session:
            session.commit([list_.append("two")])
            with store.reader(SID) as reader:
                assert [e.element for e in reader.read(list_)] == ["one", "two"]
    campaign.count()


# --- the index --------------------------------------------------------------------------------------


def grown(rig: ProcessRig) -> None:
    for number in range(30):
        element = {"n": number, "text": f"{number * 7919:x}" * 12}
        rig.commit(SID, "", [set_(f"k{number % 7}", number), add(element)], POWER)


def tried(rig: ProcessRig) -> None:
    checkpoint(rig.sessions[SID], "extend")


@pytest.mark.fault(24, rig="R")
def test_an_index_that_may_not_grow(campaign: Campaign, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its map is full because the disk is: no commit notices, and it catches up."""
    small_values(monkeypatch)
    scenario = Scenario((*COMMITTED, grown), (tried, tried))
    for limit in some(range(0, 120_000, 3000), 4, campaign):
        assert not limited(emptied(where), scenario, partial(Resource, resource.RLIMIT_FSIZE, limit))
        campaign.count()


# --- no memory --------------------------------------------------------------------------------------


_encoder = msgspec.json.Encoder()


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def comes_through(call: Callable[[], object], more: int) -> bool:
    """Whether the call finds its way with so many more bytes. Between its return and that being noted nothing is
    allocated."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    done = False
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + more, before[1]))
    try:
        call()
        done = True
    except (MemoryError, WriteFailed):
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return done


def encode_or_raise(element: Json) -> bytes:
    """As msgspec's ``encode``, which ends the process (0.23: SIGSEGV) where its buffer cannot grow."""
    buffer = bytearray()
    _encoder.encode_into(element, buffer)
    return bytes(buffer)


def work_with_little_memory(path: str, more: int, seed: int) -> int:
    """Commits, appends, reads, retirements with so much memory; returns how many of them there was none for.

    What was acknowledged is there, in order, in this handle and in the next. What a call raised for is there once, from
    then on, or never: memory may have ended behind its last step.
    """
    random = Random(seed)
    text, scope = list_of("n", "text"), ephemeral("op-1")
    steps = scope.list_of("n", "steps")
    stored: dict[str, list[str]] = {"text": [], "steps": []}
    raised: list[tuple[str, str]] = []
    refused = 0

    def attempt(session: Session, number: int) -> bool:
        name = random.choice(("text", "steps"))
        address: List[Scope] = text if name == "text" else steps
        element = f"{number} " + "x" * random.choice((10, 100_000, 2_000_000))
        calls: dict[str, Callable[[], object]] = {
            "append": lambda: session.append(address, element),
            "commit": lambda: session.commit([steps.append(element)]),
            "flush": session.flush,
            "read": lambda: session.read(address, limit=3),
        }
        if name == "text":
            calls["commit"] = lambda: session.commit([text.append(element)])
        what = random.choice([*calls])
        done = comes_through(calls[what], more)
        if what in ("commit", "append"):
            if done:
                stored[name].append(element)
            else:
                raised.append((name, element))
        return done

    def verify(session: Session) -> None:
        for name, address in (("text", text), ("steps", steps)):
            found = [element.element for element in session.read(address)]
            if (name, found[-1] if found else "") in raised:
                stored[name].append(str(found[-1]))
            assert found == stored[name], f"{name}: {[e[:8] for e in found]} for {[e[:8] for e in stored[name]]}"

    with Store.open(path, clock=ManualClock(), pending_bytes=1 << 20) as store:
        session = store.session(SID)
        session.commit([text.append("0")])
        stored["text"].append("0")
        for number in range(1, 12):
            refused += not attempt(session, number)
            verify(session)
            raised.clear()
        session.commit([text.append("last")])
        stored["text"].append("last")
        verify(session)
        session.close()
        with store.session(SID) as session:
            verify(session)
        assert unsound(store.check(deep=True)) == []
    return refused


@pytest.mark.fault(34, rig="R")
def test_no_memory_at_many_limits(campaign: Campaign, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (elements, writer):
        monkeypatch.setattr(module, "encode_json", encode_or_raise)
    refused = 0
    for more in some(range(0, 8 << 20, 64 << 10), 5, campaign):
        for seed in range(5 if campaign.full else 1):
            path = emptied(where)
            found = apart(partial(work_with_little_memory, path, more, seed + more))[0]
            assert isinstance(found, int)
            refused += found
            campaign.count()
    assert refused > 0 or not campaign.full  # a child of a long run may inherit memory that is free
    campaign.note(f"{refused} calls refused for want of memory")
