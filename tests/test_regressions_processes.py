"""What failing system calls found: each test tells the story of one fault of the engine, and fails without its fix."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from fuzz.simdisk import SimDisk
from scopelog import ManualClock, OpenFailed, ReadFailed, ScopelogError, Store, WriteFailed
from scopelog_engine.codec import BadPayload, _codec, compress, decompress
from scopelog_engine.layout import LOCK_FILE, MAIN_FILE

from .stores import CHAT, DELTAS, MAIN, MESSAGES, bare, image_of

STORE = "/store"


@pytest.mark.fault(20, rig="S")
@pytest.mark.parametrize("fault", [{"errno": errno.EIO}, {"short": 1}, {"short": 7}])
def test_an_epoch_that_could_not_be_read_is_not_given_out_again(fault: dict[str, Any]) -> None:
    """The note in LOCK was read with one call, and an error or half of it was taken for no note.

    A killed writer had shown positions of its epoch that no frame in the log carries. If the next open could not read
    the note, it took the same number, so that the same position meant something else.
    """
    disk = SimDisk()
    with Store.open(STORE, fs=disk, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append("one")])
    session = Store.open(STORE, fs=disk, clock=ManualClock()).session(CHAT)
    session.append(DELTAS, "shown, and stored nowhere")
    shown = session.epoch
    disk = disk.kill()
    store = Store.open(STORE, fs=disk, clock=ManualClock())
    for nth in range(1, 40):
        disk.fail("pread", nth, path=LOCK_FILE, **fault)
    if "errno" in fault:
        with pytest.raises(OpenFailed):
            store.session(CHAT)
        disk.heal()
    with store.session(CHAT) as session:
        assert session.epoch > shown


def _fail(monkeypatch: pytest.MonkeyPatch, call: str, ending: str) -> None:
    original: Callable[..., Any] = getattr(os, call)

    def failing(path: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(path, str) and path.endswith(ending):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return original(path, *arguments, **keywords)

    monkeypatch.setattr(os, call, failing)


@pytest.mark.fault(20, rig="K")
def test_who_cannot_see_whether_a_session_is_there_does_not_say_that_it_is_not(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``access`` answers no to whoever may not look, or cannot: so a session on a failing disk was called missing, and
    a copy onto it would have replaced it."""
    with Store.open(store_path, clock=ManualClock()) as store:
        for name in (CHAT, "other"):
            with store.session(name) as session:
                session.commit([MESSAGES.append(name)])
        before = image_of(store_path)
        with monkeypatch.context() as patch:
            _fail(patch, "readlink", f"{CHAT}.session/{MAIN_FILE}")
            calls: list[tuple[Callable[[], object], type[ScopelogError]]] = [
                (lambda: store.delete_session(CHAT), ReadFailed),
                (lambda: store.follow(CHAT), ReadFailed),
                (lambda: store.check(CHAT), ReadFailed),
                (lambda: store.copy("other", CHAT), WriteFailed),
            ]
            for call, error in calls:
                with pytest.raises(error) as caught:
                    call()
                assert "Input/output error" in caught.value.cause
        assert {name: data for name, data in image_of(store_path).items() if not name.endswith(LOCK_FILE)} == {
            name: data for name, data in before.items() if not name.endswith(LOCK_FILE)
        }
        assert store.sessions() == [CHAT, "other"]


@pytest.mark.fault(20, rig="K")
def test_check_does_not_pass_over_a_session_whose_directory_it_cannot_see(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``isdir`` answers no to any error: check said nothing of such a session, which reads as sound."""
    with Store.open(store_path, clock=ManualClock()) as store:
        with store.session(CHAT) as session:
            session.commit([MESSAGES.append("one")])
        with monkeypatch.context() as patch:
            _fail(patch, "stat", f"{CHAT}.session")
            assert [(finding.severity, finding.reason) for finding in store.check()] == [("unread", "read")]
        assert store.check() == []


def test_a_root_that_cannot_be_looked_at_ends_the_search_for_it(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creating a store walks up to the first directory that is there; if even ``/`` seemed not to be, it went on for
    ever, with one more name in memory each time round."""
    with monkeypatch.context() as patch:
        _fail(patch, "stat", "")
        with pytest.raises(OpenFailed):
            Store.open(store_path, clock=ManualClock())


@pytest.mark.fault(20, rig="S")
def test_a_closing_frame_that_cannot_be_written_for_want_of_a_read_is_no_loss() -> None:
    """Closing reads the log's open stretch, to tell how long it is. If that failed, ``close`` raised, though all was
    stored and synced; a closing frame that a full disk does not take is only logged."""
    disk = SimDisk()
    session = Store.open(STORE, fs=disk, clock=ManualClock()).session(CHAT)
    session.commit([MESSAGES.append("one")])
    disk = disk.kill()
    log = f"{STORE}/{MAIN}"
    disk.write_file(log, bare(disk.read_file(log)) + b"torn")
    store = Store.open(STORE, fs=disk, clock=ManualClock())
    session = store.session(CHAT)
    assert session.recovery.torn
    disk.fail("pread", 1, errno.EIO, MAIN_FILE, persistent=True)
    session.close()
    disk.heal()
    with store.session(CHAT) as session:
        assert not session.recovery
        assert [element.element for element in session.read(MESSAGES)] == ["one"]


@pytest.mark.fault(34, rig="R")
@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited on Linux alone")
def test_want_of_memory_in_zstd_is_a_memory_error_and_no_damage() -> None:
    """A commit raised ``ZstdError``, which no caller expects, where the library found no memory for its tables. Had a
    read met the same, its frame would have been called damaged."""
    done = subprocess.run([sys.executable, "-c", _LITTLE_MEMORY], capture_output=True, text=True, check=False)
    assert {*done.stdout.split()} == {"MemoryError"}, done.stderr


_LITTLE_MEMORY = """
import random, resource, zstandard
from pathlib import Path
from scopelog_engine.codec import compress

raw = random.Random(1).randbytes(300_000).hex().encode()
compress(b"imported and set up" * 1000)
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
pages = int(Path("/proc/self/statm").read_text().split()[0])
told = []
for more in range(0, 2 << 20, 1 << 17):
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        compress(raw)
    except (MemoryError, zstandard.ZstdError) as error:
        told.append(type(error).__name__)
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
print(*told)
"""
"""In an interpreter of its own: one that has run many tests has memory that is free."""


@pytest.mark.parametrize(
    ("text", "error"), [("Allocation error : not enough memory", MemoryError), ("Src size is incorrect", BadPayload)]
)
def test_only_want_of_memory_is_taken_for_it(
    text: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def decompress(self, *_: object, **__: object) -> bytes:
            raise zstandard.ZstdError(f"decompression error: {text}")

    whole = compress(b"some text")
    monkeypatch.setattr(_codec, "decompressor", Failing())
    with pytest.raises(error):
        decompress(whole, 9, 100)
