"""Files cut, lengthened, replaced or removed by others while a session is open: noticed before the next append.

The writer compares the length of the log it appends to, and the lock file's inode, as the contract says. Every length
that a log can be cut to, every kind of junk behind it, before every kind of call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

import pytest

from fuzz.campaign import Campaign
from fuzz.mutation_rig import SimBed, hold_files
from fuzz.mutations import apply, cuts, tails
from fuzz.shapes import ROOT, Maker, live, shape
from fuzz.simdisk import SimDisk
from scopelog import HandleFenced, Session, ephemeral, list_of
from scopelog_engine.layout import LOCK_FILE

LOG: Final = list_of("n", "log")
Call = Callable[[Session, str], object]
MAIN_CALLS: Final[dict[str, Call]] = {
    "commit": lambda session, scope: session.commit([LOG.append("lost")]),
    "flush": lambda session, scope: session.flush() if session.append(LOG, "lost") else None,
    "retire": lambda session, scope: session.commit([ephemeral(scope).retire()]),
}
SCOPE_CALLS: Final[dict[str, Call]] = {
    "commit": lambda session, scope: session.commit([ephemeral(scope).list_of("n", "log").append("lost")]),
    "flush": lambda session, scope: (
        session.flush() if session.append(ephemeral(scope).list_of("n", "log"), "lost") else None
    ),
}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "scopelog_engine")


def lengths(name: str) -> Iterator[tuple[str, str]]:
    """Paths of logs, and mutations that change their lengths."""
    one = shape(name)
    for log in one.logs.values():
        for family in (cuts, tails):
            for change in family(one, log):
                files = apply(one, change)
                if len(files[log.path]) != len(log.data):
                    yield log.path, change


def fenced(maker: Maker, call: Call, scope: str) -> None:
    with pytest.raises(HandleFenced) as caught:
        call(maker.session, scope)
    assert caught.value.cause and caught.value.remedy
    for again in MAIN_CALLS.values():  # for good
        with pytest.raises(HandleFenced):
            again(maker.session, scope)
    with suppress(HandleFenced):  # where staged elements are lost with the handle
        maker.session.close(force=True)


@pytest.mark.fault(36, rig="M")
@pytest.mark.parametrize("name", ["talk", "reserved", "process", "compacted"])
def test_a_log_that_others_cut_or_lengthened(name: str, campaign: Campaign) -> None:
    """Not a byte is written, neither theirs nor ours is touched; what the next open finds is what the bytes say."""
    one = shape(name)
    stride = {"reserved": 5, "process": 2, "compacted": 2}.get(name, 1) if campaign.full else 67
    for number, (path, change) in enumerate(islice(lengths(name), 0, None, stride)):
        maker = live(name)
        assert maker.files() == one.files, "the writer is not where the shape shows it"
        files = apply(one, change)
        scope = one.sidecars[0].scope if path == one.main.path else one.logs[path].scope
        calls = list((MAIN_CALLS if path == one.main.path else SCOPE_CALLS).values())
        maker.disk.write_file(f"{ROOT}/{path}", files[path])
        fenced(maker, calls[number % len(calls)], scope)
        assert maker.files() == files, f"{name} {change}: something was written"
        hold_files(one, f"{change}, met by an open session", files, SimBed(), deep=number % 5 == 0)
        campaign.count()


def _unlink(disk: SimDisk, path: str) -> None:
    disk.unlink(path)


def _replace(disk: SimDisk, path: str) -> None:
    disk.write_file(path + ".new", disk.read_file(path))
    disk.rename(path + ".new", path)


def _move_away(disk: SimDisk, path: str) -> None:
    directory = path.rsplit("/", 1)[0]
    disk.rename(directory, directory + ".gone")


@pytest.mark.fault(36, rig="M")
@pytest.mark.parametrize("change", [_unlink, _replace, _move_away])
@pytest.mark.parametrize("name", ["talk", "reserved", "process", "lives", "compacted", "closed"])
def test_a_lock_file_that_others_replaced_or_removed(
    name: str, change: Callable[[SimDisk, str], None], campaign: Campaign
) -> None:
    """Before every kind of call, in main and in every scope."""
    one = shape(name)
    for number in range(len(MAIN_CALLS) + len(SCOPE_CALLS)):
        maker = live(name)
        if name == "closed":
            maker.reopen()
        scope = maker.session.scopes()[-1]
        change(maker.disk, f"{ROOT}/{one.directory}/{LOCK_FILE}")
        before = maker.files()
        fenced(maker, [*MAIN_CALLS.values(), *SCOPE_CALLS.values()][number], scope)
        assert maker.files() == before, f"{name}: something was written"
        campaign.count()


@pytest.mark.fault(36, rig="M")
@pytest.mark.parametrize("name", ["talk", "reserved", "process", "lives", "compacted"])
def test_a_session_that_others_spoiled_is_not_closed_cleanly(name: str, campaign: Campaign) -> None:
    """A close is an append, too: the closing frame, and the reserved space cut off."""
    one = shape(name)
    for path in one.logs:
        for change in (
            f"cut:{one.short(path)}:{one.logs[path].frames[-1].offset}",
            f"junk:{one.short(path)}:0:ones:200000",
        ):
            maker = live(name)
            files = apply(one, change)
            maker.disk.write_file(f"{ROOT}/{path}", files[path])
            with suppress(HandleFenced):
                maker.session.close()
            after = maker.files()
            assert after.get(path, files[path]) == files[path], f"{name} {change}: something was written"
            campaign.count()
