"""One writer: the lock across processes, handles and forks, and the fence before each append."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from scopelog import (
    HandleFenced,
    HandleForked,
    ManualClock,
    NoSuchSession,
    Session,
    Store,
    StoreLocked,
)
from scopelog_engine.fs import File, OsFileSystem
from scopelog_engine.layout import LOCK_FILE

from .children import attempt, child
from .stores import CHAT, DELTAS, LOCK, MAIN, MESSAGES, SCOPE, image_of, records, sidecars_of, unsound

HOLDER = """
import sys
from scopelog import Store, list_of
store = Store.open(sys.argv[1])
session = store.session("chat")
session.commit([list_of("chat", "messages").append("from the holder")])
print("held", flush=True)
sys.stdin.readline()
session.commit([list_of("chat", "messages").append("and again")])
session.close()
print("released", flush=True)
sys.stdin.readline()
"""


def open_store(path: Path) -> Store:
    return Store.open(path, clock=ManualClock())


def messages(store: Store) -> list[object]:
    with store.reader(CHAT) as reader:
        return [element.element for element in reader.read(MESSAGES)]


# --- two writers ------------------------------------------------------------------------------------


@pytest.mark.fault(25, rig="K")
def test_second_writer_in_another_process_is_refused(store_path: Path) -> None:
    """The refusal names the owner; readers are not disturbed; the lock goes with the handle."""
    arguments = [sys.executable, "-c", HOLDER, str(store_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin and holder.stdout
        assert holder.stdout.readline() == "held\n"
        with open_store(store_path) as store:
            before = image_of(store_path)
            with pytest.raises(StoreLocked) as caught:
                store.session(CHAT)
            assert caught.value.pid == holder.pid and str(holder.pid) in caught.value.cause
            assert datetime.fromisoformat(caught.value.since).utcoffset() is not None
            assert caught.value.remedy
            with pytest.raises(StoreLocked):
                store.delete_session(CHAT)
            assert image_of(store_path) == before
            assert messages(store) == ["from the holder"]
            assert unsound(store.check()) == []
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "released\n"
            with store.session(CHAT) as session:
                session.commit([MESSAGES.append("from the next")])
            assert messages(store) == ["from the holder", "and again", "from the next"]
        holder.stdin.close()


@pytest.mark.fault(25, rig="K")
def test_killed_owner_leaves_no_lock(store_path: Path) -> None:
    arguments = [sys.executable, "-c", HOLDER, str(store_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        holder.kill()
    with open_store(store_path) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append("after")])
        assert [element.element for element in session.read(MESSAGES)] == ["from the holder", "after"]


@pytest.mark.parametrize("same_store", [True, False])
@pytest.mark.fault(25, rig="K")
def test_second_writer_in_this_process_is_refused(same_store: bool, store_path: Path) -> None:
    first = open_store(store_path)
    second = first if same_store else open_store(store_path)
    session = first.session(CHAT)
    session.commit([MESSAGES.append("one")])
    for _ in range(2):  # a refusal does not loosen the lock
        with pytest.raises(StoreLocked) as caught:
            second.session(CHAT)
        assert caught.value.pid == os.getpid()
    with second.session("another") as other:
        other.commit([MESSAGES.append("elsewhere")])
    session.commit([MESSAGES.append("two")])
    session.close()
    with second.session(CHAT) as session:
        assert [element.element for element in session.read(MESSAGES)] == ["one", "two"]


@pytest.mark.fault(25, rig="K")
def test_closing_a_descriptor_of_the_lock_file_does_not_release_it(store_path: Path) -> None:
    """As it would with lockf: a backup tool in the same process opens and closes every file."""
    with open_store(store_path) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append("one")])
        image_of(store_path)
        with pytest.raises(StoreLocked), open_store(store_path) as second:
            second.session(CHAT)


# --- fork -------------------------------------------------------------------------------------------


@pytest.mark.fault(25, rig="K")
def test_handles_are_refused_in_a_forked_child(store_path: Path) -> None:
    with open_store(store_path) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append("one"), SCOPE.retire()])
        session.commit([DELTAS.append("d")])
        session.append(MESSAGES, "staged")
        calls: list[Callable[[], object]] = [
            lambda: session.commit([MESSAGES.append("child")]),
            lambda: session.append(MESSAGES, "child"),
            session.flush,
            lambda: session.read(MESSAGES),
            lambda: session.get(SCOPE.value("a", "b")),
            session.scopes,
            session.close,
            store.close,
            store.sessions,
            lambda: store.session("other"),
            lambda: store.reader(CHAT),
            lambda: store.delete_session(CHAT),
            store.check,
        ]

        with child(lambda: " ".join(attempt(call) for call in calls)) as answers:
            assert answers.split() == [HandleForked.__name__] * len(calls)
            session.commit([MESSAGES.append("two")])
        assert [element.element for element in session.read(MESSAGES)] == ["one", "staged", "two"]
        assert [element.element for element in session.read(DELTAS)] == ["d"]


@pytest.mark.fault(25, rig="K")
def test_forked_child_does_not_keep_the_lock_alive(store_path: Path) -> None:
    store = open_store(store_path)
    session = store.session(CHAT)
    session.commit([MESSAGES.append("one")])
    with child(lambda: "alive") as answer:
        assert answer == "alive"
        with pytest.raises(StoreLocked):
            store.session(CHAT)  # nor does its end, or its closing of copies, release the parent's
        session.close()
        with store.session(CHAT) as again:
            again.commit([MESSAGES.append("two")])
    with store.session(CHAT) as again:
        assert [element.element for element in again.read(MESSAGES)] == ["one", "two"]


@pytest.mark.fault(25, rig="K")
def test_forked_child_opens_the_store_anew(store_path: Path) -> None:
    with open_store(store_path) as store:
        with store.session(CHAT) as session:
            session.commit([MESSAGES.append("one")])

            def locked() -> str:
                with open_store(store_path) as mine, mine.session(CHAT):
                    return "granted"

            with child(locked) as answer:
                assert answer == "StoreLocked"

        def work() -> str:
            with open_store(store_path) as mine, mine.session(CHAT) as own:
                return str(own.commit([MESSAGES.append("child")]).first)

        with child(work) as answer:
            assert answer == "2"
        assert messages(store) == ["one", "child"]


# --- fencing ----------------------------------------------------------------------------------------


def _remove(lock: Path) -> None:
    lock.unlink()


def _replace(lock: Path) -> None:
    other = lock.with_name("other")
    other.write_bytes(lock.read_bytes())
    other.rename(lock)


def _move_session_away(lock: Path) -> None:
    lock.parent.rename(lock.parent.with_name("elsewhere"))


WRITES: list[Callable[[Session], object]] = [
    lambda session: session.commit([MESSAGES.append("lost")]),
    lambda session: session.commit([DELTAS.append("lost")]),
    lambda session: session.commit([SCOPE.retire()]),
    lambda session: session.flush() if session.append(MESSAGES, "lost") else None,
]


@pytest.mark.parametrize("write", WRITES, ids=["commit", "scope", "retire", "flush"])
@pytest.mark.parametrize("change", [_remove, _replace, _move_session_away])
@pytest.mark.fault(36, rig="M")
@pytest.mark.fault(25, rig="K")
def test_lock_file_removed_or_replaced_fences_the_writer(
    change: Callable[[Path], None], write: Callable[[Session], object], store_path: Path
) -> None:
    store = open_store(store_path)
    session = store.session(CHAT)
    session.commit([MESSAGES.append("one")])
    session.commit([DELTAS.append("d")])
    change(store_path / LOCK)
    before = image_of(store_path)
    with pytest.raises(HandleFenced) as caught:
        write(session)
    assert caught.value.cause and caught.value.remedy
    for again in WRITES:  # fenced for good
        with pytest.raises(HandleFenced):
            again(session)
    with suppress(HandleFenced):  # raised where staged elements are lost with the handle
        session.close(force=True)
    assert image_of(store_path) == before
    if (store_path / LOCK).parent.exists():
        with store.session(CHAT) as anew:
            assert [element.element for element in anew.read(MESSAGES)] == ["one"]
            anew.commit([MESSAGES.append("two")])
            assert [element.element for element in anew.read(DELTAS)] == ["d"]


@pytest.mark.fault(36, rig="M")
@pytest.mark.fault(25, rig="K")
def test_second_owner_after_the_lock_file_was_removed(store_path: Path) -> None:
    """Whoever removed the lock file has let a second owner in: the first one notices before it writes a byte."""
    first, second = open_store(store_path), open_store(store_path)
    old = first.session(CHAT)
    old.commit([MESSAGES.append("one")])
    (store_path / LOCK).unlink()
    new = second.session(CHAT)
    assert new.epoch > old.epoch
    new.commit([MESSAGES.append("two")])
    before = image_of(store_path)
    with pytest.raises(HandleFenced):
        old.commit([MESSAGES.append("lost")])
    old.close(force=True)
    assert image_of(store_path) == before
    with pytest.raises(StoreLocked):
        first.session(CHAT)
    new.commit([MESSAGES.append("three")])
    new.close()
    assert messages(second) == ["one", "two", "three"]


@pytest.mark.parametrize("which", ["main", "sidecar"])
@pytest.mark.parametrize("change", [lambda size: size + 1, lambda size: size - 1, lambda size: size // 2])
@pytest.mark.fault(36, rig="M")
def test_log_appended_to_or_truncated_by_somebody_else(
    which: str, change: Callable[[int], int], store_path: Path
) -> None:
    """The writer compares the log's length before each append, and touches neither its own bytes nor theirs."""
    store = open_store(store_path)
    session = store.session(CHAT)
    session.commit([MESSAGES.append("one")])
    session.commit([DELTAS.append("d")])
    name = MAIN if which == "main" else sidecars_of(image_of(store_path))[0]
    os.truncate(store_path / name, change((store_path / name).stat().st_size))
    before = image_of(store_path)
    with pytest.raises(HandleFenced):
        session.commit([MESSAGES.append("lost")]) if which == "main" else session.commit([DELTAS.append("lost")])
    with pytest.raises(HandleFenced):
        session.commit([MESSAGES.append("lost")])
    session.close(force=True)
    assert image_of(store_path) == before
    with store.session(CHAT) as anew:
        anew.commit([MESSAGES.append("two")])
        assert [e.element for e in anew.read(MESSAGES)][-1] == "two"
        assert "lost" not in [record.value for record in records(store)]


# --- deletion ---------------------------------------------------------------------------------------


def test_deletion_is_refused_while_locked(store_path: Path) -> None:
    store = open_store(store_path)
    session = store.session(CHAT)
    session.commit([MESSAGES.append("one")])
    with pytest.raises(StoreLocked):
        store.delete_session(CHAT)
    session.commit([MESSAGES.append("two")])
    session.close()
    store.delete_session(CHAT)
    assert store.sessions() == []
    assert [name for name in image_of(store_path) if "chat" in name] == []
    with pytest.raises(NoSuchSession):
        store.delete_session(CHAT)


class Meddling(OsFileSystem):
    """Runs ``meddle`` once, between an opener's open of the lock file and its lock."""

    def __init__(self, meddle: Callable[[], None]) -> None:
        self._meddle: list[Callable[[], None]] = [meddle]

    def open_or_create(self, path: str) -> File:
        file = super().open_or_create(path)
        if path.endswith(LOCK_FILE) and self._meddle:
            self._meddle.pop()()
        return file


@pytest.mark.parametrize("recreate", [False, True])
@pytest.mark.fault(25, rig="K")
def test_session_deleted_while_another_opener_waits(recreate: bool, store_path: Path) -> None:
    """The opener got a lock on a dead file: it looks again, and never writes into the trash."""
    other = open_store(store_path)
    with other.session(CHAT) as session:
        session.commit([MESSAGES.append("of the deleted one")])

    def meddle() -> None:
        other.delete_session(CHAT)
        if recreate:
            with other.session(CHAT) as anew:
                anew.commit([MESSAGES.append("of the new one")])

    with Store.open(store_path, clock=ManualClock(), fs=Meddling(meddle)) as store:
        with store.session(CHAT) as session:
            expected = ["of the new one"] if recreate else []
            assert [element.element for element in session.read(MESSAGES)] == expected
            session.commit([MESSAGES.append("after")])
            with pytest.raises(StoreLocked):
                other.session(CHAT)
        assert messages(other) == [*expected, "after"]
    assert not any("of the deleted" in repr(data) for data in image_of(store_path).values())


def test_lock_file_with_garbage_in_it(store_path: Path) -> None:
    """Its content is a courtesy: no proof of anything, and never in the way."""
    with open_store(store_path) as store:
        with store.session(CHAT) as session:
            session.commit([MESSAGES.append("one")])
        for content in (b"", b"\xff\xfe", b"{", b"[1]", msgspec.json.encode({"pid": "x"}), bytes(4096)):
            (store_path / LOCK).write_bytes(content)
            with store.session(CHAT) as session:
                session.commit([MESSAGES.append("again")])
                with pytest.raises(StoreLocked) as caught:
                    store.session(CHAT)
                assert caught.value.pid == os.getpid()
        assert len(messages(store)) == 7
