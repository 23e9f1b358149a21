"""Beside a writer: readers and copies at each of its system calls, and in real time; other writers; killed owners."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import pytest

from fuzz.campaign import Campaign
from fuzz.limits import apart
from fuzz.overtaken import overtaken
from fuzz.process_child import SCENARIOS, Scenario, random_scenario
from fuzz.processes import Place
from scopelog import HandleFenced, ManualClock, Store, StoreLocked, list_of
from tests.stores import unsound
from tests.views_live import Watching, Writing

from .processes import consistency_check, has, watched, where

__all__ = ["consistency_check", "where"]
NUMBERS = list_of("n", "numbers")
SID = "s"


def beside(name: str, scenario: Scenario, where: str, every: int, copies: bool) -> int:
    place = Place(where, name, scenario)
    place.lay()
    ended, done = overtaken(where, place.scenario, place.state, every, copies=copies)
    assert ended.status == 0, f"{name}: {ended.status}"
    return done


@watched
@pytest.mark.fault(38, rig="K")
@pytest.mark.parametrize("name", SCENARIOS)
def test_readers_look_at_every_call_of_the_writer(name: str, campaign: Campaign, where: str) -> None:
    """While it appends, recovers what is torn, retires, rotates, compacts and deletes: whole commits, no errors."""
    campaign.count(beside(name, SCENARIOS[name], where, 1 if campaign.full else 9, copies=False))


@watched
@pytest.mark.fault(37, rig="K")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_copy_made_at_every_call_of_the_writer(name: str, campaign: Campaign, where: str) -> None:
    campaign.count(beside(name, SCENARIOS[name], where, 1 if campaign.full else 17, copies=True))


@watched
@pytest.mark.fault(37, 38, rig="K")
def test_random_lives_are_looked_at_and_copied(campaign: Campaign, where: str) -> None:
    for seed in campaign.seeds(2):
        for copies, row in ((False, 38), (True, 37)):
            try:
                done = beside(f"seed {seed}", random_scenario(seed), where, 2 if campaign.full else 9, copies)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
            campaign.count(done, rows=(row,))


# --- in real time -----------------------------------------------------------------------------------


def write_until_killed(path: Path, seed: int) -> None:
    Writing(path, seed).run(lambda: None)


@pytest.mark.fault(37, rig="K")
@pytest.mark.skipif(not has("cp"), reason="cp is not installed")
def test_cp_while_a_writer_writes(campaign: Campaign, tmp_path: Path) -> None:
    """``cp -r`` of a store that is written all the time: each copy opens, is sound, and holds whole commits."""
    path = tmp_path / "store"
    for seed in campaign.seeds(1):
        Writing(path, seed).run(lambda: None, 20)
        pid = os.fork()
        if pid == 0:
            try:
                write_until_killed(path, seed)
            finally:
                os._exit(1)
        try:
            for number in range(8):
                copy = tmp_path / f"copy-{number}"
                done = subprocess.run(["cp", "-r", str(path), str(copy)], capture_output=True, text=True, check=False)
                # A file that goes while it is copied is none of ours; anything else cp says is.
                assert all("No such file" in line for line in done.stderr.splitlines()), done.stderr
                opens(copy, seed)
                shutil.rmtree(copy)
                campaign.count()
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        shutil.rmtree(path)


def opens(copy: Path, seed: int) -> None:
    before = Watching(copy, seed)
    before.look()
    before.close()
    with Store.open(copy, clock=ManualClock()) as store:
        if not store.sessions():  # between the deletion and the next session's first commit
            return
        with store.session("live") as session:
            session.commit([NUMBERS.append("behind it")])
        assert unsound(store.check(deep=True)) == []
    after = Watching(copy, seed)
    after.look()
    after.close()


# --- two writers ------------------------------------------------------------------------------------


def contend(path: Path, seed: int, turns: int, dying: float = 0.2) -> str:
    """Take the session again and again: read the last number, append the next three; now and then die with it."""
    random = Random(seed)
    seen: Counter[str] = Counter()
    with Store.open(path, clock=ManualClock()) as store:
        while seen["won"] < turns:
            try:
                session = store.session(SID)
            except StoreLocked:
                seen["locked"] += 1
                time.sleep(0.0005)
                continue
            seen["won"] += 1
            for _ in range(3):
                last = session.read(NUMBERS, order="desc", limit=1)
                session.commit([NUMBERS.append((last[0].element if last else 0) + 1)])
            if random.random() < dying:
                os._exit(9)  # as it is
            session.close()
    return str(seen["locked"])


@pytest.mark.fault(25, rig="K")
def test_writers_in_many_processes_take_turns(store_path: Path, campaign: Campaign) -> None:
    """Whoever gets the lock finds all that was there before, whether its owner closed or died; nobody else writes."""
    Store.open(store_path).close()
    children: list[int] = []
    for seed in range(12 if campaign.full else 4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                contend(store_path, seed, 30 if campaign.full else 8)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert set(ends) <= {0, 9}, ends
    with Store.open(store_path, clock=ManualClock()) as store, store.session(SID) as session:
        numbers = [element.element for element in session.read(NUMBERS)]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) % 3 == 0 and numbers
        campaign.count(len(numbers) // 3)
    with Store.open(store_path, clock=ManualClock()) as store:
        assert unsound(store.check(deep=True)) == []


@pytest.mark.fault(25, rig="K")
def test_a_second_writer_in_another_process_after_the_lock_file_was_deleted(
    store_path: Path, campaign: Campaign
) -> None:
    """Whoever deletes the lock file lets it in; the first one is fenced at its next append and has written no byte."""
    with Store.open(store_path, clock=ManualClock()) as store:
        session = store.session(SID)
        for number in range(1, 6):
            session.commit([NUMBERS.append(number)])
        (store_path / f"{SID}.session" / "LOCK").unlink()
        assert apart(partial(contend, store_path, 1, 1, 0)) == ["0"]
        session.append(NUMBERS, "staged")
        with pytest.raises(HandleFenced):
            session.commit([NUMBERS.append("lost")])
        with pytest.raises(HandleFenced):
            session.close(force=True)
        with store.session(SID) as session:
            assert [element.element for element in session.read(NUMBERS)] == [*range(1, 9)]
    campaign.count()
