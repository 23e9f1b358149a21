"""Modes of files and directories, and stores that may not be read or written."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scopelog import (
    ManualClock,
    Store,
    ephemeral,
)
from scopelog_engine.layout import LOCK_FILE

from .children import attempt, child
from .stores import CHAT, DELTAS, MAIN, MESSAGES, build, image_of, lay, sidecars_of, unsound
from .unprivileged import drop_powers, owned_by_nobody

LOCK = f"{MAIN.split('/')[0]}/{LOCK_FILE}"


def open_store(path: Path) -> Store:
    return Store.open(path, clock=ManualClock())


@pytest.fixture
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A closed store that belongs to an unprivileged user where the tests run as root, else to their user."""

    def built(base: Path) -> Path:
        return lay(base / "store", build(base / "built", closed=True))

    with owned_by_nobody(tmp_path_factory.mktemp("private"), built) as path:
        yield path


def unprivileged(work: Callable[[], str]) -> str:
    """What ``work`` answers in a child without root's powers."""

    def dropped() -> str:
        drop_powers()
        return work()

    with child(dropped) as answer:
        return answer


@pytest.mark.fault(21, rig="R")
def test_read_only_directory(private: Path) -> None:
    """A reader needs neither lock nor write access; an open for write is refused, typed; nothing changes."""
    for entry in (private, *private.rglob("*")):
        entry.chmod(0o500 if entry.is_dir() else 0o400)
    before = image_of(private)

    def work() -> str:
        with open_store(private) as store:
            read = [element.element for element in store.reader(CHAT).read(MESSAGES)]
            assert read == [{"role": "user", "text": "hello"}, {"role": "assistant", "text": "good morning"}, *read[2:]]
            assert len(read) == 4
            with store.reader(CHAT) as reader:
                assert len(list(reader.records())) == 13
            assert store.sessions() == [CHAT]
            assert unsound(store.check()) == []
            calls: list[Callable[[], object]] = [
                lambda: store.session(CHAT),
                lambda: store.session("new"),
                lambda: store.delete_session(CHAT),
            ]
            return " ".join(attempt(call) for call in calls)

    assert unprivileged(work) == "OpenFailed OpenFailed WriteFailed"
    assert image_of(private) == before


@pytest.mark.parametrize("part", [".", "store.zst", MAIN.split("/")[0], MAIN])
@pytest.mark.fault(21, rig="R")
def test_no_access_at_open_is_a_typed_error(part: str, private: Path) -> None:
    (private / part).chmod(0)

    def work() -> str:
        if part in (".", "store.zst"):
            return attempt(lambda: open_store(private))
        with open_store(private) as store:
            calls: list[Callable[[], object]] = [
                lambda: store.session(CHAT),
                lambda: store.reader(CHAT),
                lambda: store.check(CHAT),
            ]
            return " | ".join(attempt(call) for call in calls)

    answer = unprivileged(work)
    assert "untyped" not in answer and "mute" not in answer, answer
    assert answer.split(" | ")[0] == "OpenFailed", answer


@pytest.mark.fault(21, rig="R")
def test_missing_permission_for_a_sidecar_is_no_trouble_for_main(private: Path) -> None:
    [name] = sidecars_of(image_of(private))
    (private / name).chmod(0)

    def work() -> str:
        with open_store(private) as store, store.session(CHAT) as session:
            receipt = session.commit([MESSAGES.append("after")])
            return f"{len(session.read(MESSAGES))} {receipt.first > 13}"

    assert unprivileged(work) == "5 True"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_files_are_private(mask: int, store_path: Path) -> None:
    """Whatever the process's umask: 0600 for files, 0700 for directories, evidence and trash included."""
    old = os.umask(mask)
    try:
        with open_store(store_path / "deep" / "down") as store:
            with store.session(CHAT) as session:
                session.commit([MESSAGES.append("one")])
                session.commit([DELTAS.append("d")])
                image = image_of(store_path)
            [sidecar] = sidecars_of(image)
            for name, junk in ((f"deep/down/{MAIN}", b"junk"), (sidecar, b"junk")):
                with (store_path / name).open("ab") as file:
                    file.write(junk)
            with store.session(CHAT) as session:
                assert len(session.recovery.torn) == 2
            with store.session("gone") as session:
                session.commit([MESSAGES.append("one")])
            store.delete_session("gone")
        entries = [store_path, *store_path.rglob("*")]
        assert {entry.suffix for entry in entries} >= {".zst", ".torn", ".session"}
        for entry in entries:
            mode = stat.S_IMODE(entry.stat().st_mode)
            assert mode == (0o700 if entry.is_dir() else 0o600), (entry, oct(mode))
    finally:
        os.umask(old)
    with Store.open(store_path / "deep" / "down", clock=ManualClock()) as store:
        assert unsound(store.check()) == []


@pytest.mark.fault(21, rig="R")
def test_out_of_descriptors_at_open(store_path: Path) -> None:
    """A process that may open no more files is refused with a typed error; sound scopes are not set aside for it."""
    scopes = [ephemeral(f"op-{number}") for number in range(40)]
    with open_store(store_path) as store, store.session(CHAT) as session:
        for scope in scopes:
            session.commit([scope.list_of("op", "steps").append(scope.id)])
    before = {name: data for name, data in image_of(store_path).items() if not name.endswith("LOCK")}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open_store(store_path) as store:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        taken: list[int] = []
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            os.close(taken.pop())  # one is left: for the lock, or for main
            answers = [attempt(lambda: store.session(CHAT)), attempt(lambda: store.reader(CHAT)), attempt(store.check)]
        finally:
            for number in taken:
                os.close(number)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert answers[0] == "OpenFailed", answers
        assert not any(answer.startswith(("untyped", "mute")) for answer in answers), answers
        assert {name: data for name, data in image_of(store_path).items() if not name.endswith("LOCK")} == before
        with store.session(CHAT) as session:
            assert not session.recovery
            assert session.scopes() == sorted(scope.id for scope in scopes)
