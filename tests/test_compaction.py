"""Compaction, copies and tidying: what is left, what is gone, and who goes on meanwhile.

Crashes at every step stand in ``test_crash_points.py``, random ones in ``test_model.py``.
"""

from __future__ import annotations

import contextlib
import os
import threading
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest

from fuzz.simdisk import LoseAll, SimCrash, SimDisk
from scopelog import (
    SESSION,
    Durability,
    HandleClosed,
    InvalidInput,
    LogPoisoned,
    ManualClock,
    NewerFormat,
    NoSuchSession,
    OutcomeUnknown,
    Session,
    Store,
    StoreLocked,
    WriteFailed,
    ephemeral,
    list_of,
    value,
)
from scopelog_engine import compact, compacting, storing
from scopelog_engine.layout import OWN_FRAME_BYTES

from .pool_rig import descriptors, real
from .stores import (
    CHAT,
    DELTAS,
    MAIN,
    MESSAGES,
    SCOPE,
    STATE,
    TITLE,
    build,
    frames_of,
    image_of,
    lay,
    next_frame,
    unsound,
)

OUT = ephemeral("op-2").list_of("op", "out")


def full(session: Session) -> None:
    """Much that is void: superseded values, a trimmed list, a deleted one, retired scopes; and what is not."""
    for n in range(40):
        session.commit(
            [MESSAGES.append({"n": n, "text": "x" * 200}, tag="turn" if n % 10 == 0 else None), TITLE.set(n)]
        )
        scope = ephemeral(f"gone-{n}")
        session.commit([scope.value("a", "b").set(n)])
        session.commit([scope.retire()])
    session.commit([list_of("chat", "deleted").append("secret text"), value("chat", "deleted").set("secret value")])
    session.commit([list_of("chat", "deleted").delete(), value("chat", "deleted").delete()])
    session.commit([MESSAGES.trim(session.read(MESSAGES, limit=20)[-1].seq)])
    session.append(DELTAS, "staged")
    session.commit([STATE.set({"a": [1.5, "\ud800", 2**80]})])


def answers(source: Any) -> dict[str, Any]:
    return {
        "messages": source.read(MESSAGES),
        "tagged": source.read(MESSAGES, order="desc", stop_at_tag="turn"),
        "values": source.scan("chat"),
        "scopes": source.scopes(),
        "deltas": source.read(DELTAS),
        "state": source.scan("op", scope=SCOPE),
    }


def test_nothing_that_can_be_asked_for_changes(store_path: Path) -> None:
    with Store.open(store_path) as store:
        session = store.session(CHAT)
        full(session)
        before, info = answers(session), session.info()
        reader = store.reader(CHAT)
        small = session.compact()
        assert 0 < small.after < small.before / 3
        assert session.compact(SCOPE).after > 0
        for source in (session, reader):
            assert answers(source) == before
        reader.refresh()
        assert answers(reader) == before
        assert (session.info().created, session.info().updated) == (info.created, info.updated)
        records = list(reader.records())
        assert [r.op for r in records if r.scope is None] == ["append"] * 20 + ["set"]
        assert all(r.seq <= before["messages"][-1].seq for r in records if r.op == "append" and r.scope is None)
        assert session.commit([TITLE.set("after")]).first > before["messages"][-1].seq
        session.close()
        assert store.check(deep=True) == []
        with store.session(CHAT) as again:
            assert not again.recovery and again.get(TITLE) == "after"
            assert {**answers(again), "values": before["values"]} == before


def test_a_compacted_log_is_read_by_standard_tools_and_compacted_again(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session(CHAT) as session:
        full(session)
        once = session.compact()
        again = session.compact()
        assert abs(once.after - again.after) < 8  # the epoch's, the generation's and the floor's digits
        assert len(frames_of((store_path / MAIN).read_bytes())) == 3  # header, batch, close


def test_the_sequence_goes_on_where_it_was(store_path: Path) -> None:
    """The last record is dropped: the number that it had is not given again."""
    with Store.open(store_path) as store:
        with store.session(CHAT) as session:
            session.commit([TITLE.set(1)])
            last = session.commit([TITLE.delete()]).last
            session.compact()
            assert session.durable_seq() == last
        with store.session(CHAT) as session:
            assert session.get(TITLE) is None and session.durable_seq(SESSION, Durability.POWER) == last
            assert session.commit([TITLE.set(2)]).first == last + 1


def test_retired_scopes_do_not_come_back_whose_retirement_was_dropped(store_path: Path) -> None:
    """Their files are restored from a copy that was made while they lived."""
    with Store.open(store_path) as store:
        session = store.session(CHAT)
        session.commit([STATE.set("old")])
        session.commit([OUT.append("alive")])
        kept = image_of(store_path)
        session.commit([SCOPE.retire()])
        session.compact()
        session.close()
        assert all(record.op != "retire" for record in store.reader(CHAT).records())
    now = image_of(store_path)
    lay(store_path, {**kept, **now})
    with Store.open(store_path) as store, store.reader(CHAT) as reader:
        assert reader.scopes() == ["op-2"]
        with store.session(CHAT) as session:
            assert session.scopes() == ["op-2"] and session.read(OUT)[0].element == "alive"
            session.commit([STATE.set("new")])
            assert session.scopes() == ["op-1", "op-2"]


def test_a_scope_that_has_no_file_yet_is_not_buried(store_path: Path) -> None:
    """Its first sequence lies below those of the compacted log."""
    with Store.open(store_path, window_ms=60_000) as store, store.session(CHAT) as session:
        session.append(OUT, "staged")
        session.commit([TITLE.set(1)])
        session.compact()
        session.flush()
        session.compact()
        session.commit([TITLE.set(2)])
        session.close()
        with store.session(CHAT) as again:
            assert [element.element for element in again.read(OUT)] == ["staged"]


def test_more_living_scopes_than_a_header_can_name(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "LIVES_BYTES", 40)
    with Store.open(store_path) as store:
        session = store.session(CHAT)
        for n in range(30):
            session.commit([ephemeral(f"op-{n}").value("a", "b").set(n)])
        session.commit([ephemeral("op-3").retire(), ephemeral("op-20").retire()])
        alive = session.scopes()
        for _ in range(3):
            session.compact()
            session.commit([ephemeral(alive.pop()).retire()])
        session.close()
        with store.session(CHAT) as again:
            assert again.scopes() == alive
            monkeypatch.undo()
            again.compact()
        with store.session(CHAT) as last:
            assert last.scopes() == alive


def test_others_write_and_read_meanwhile(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes in while the bulk is copied, void or not, retirements among it, is in the new file."""
    with Store.open(store_path) as store, store.session(CHAT) as session:
        full(session)
        expected: dict[str, Any] = {}

        def meanwhile(rewrite: compact.Rewrite) -> None:
            original(rewrite)
            if not expected:
                session.commit([MESSAGES.append("meanwhile"), TITLE.set("meanwhile")])
                session.commit([MESSAGES.trim(session.read(MESSAGES, limit=3)[-1].seq)])
                session.commit([SCOPE.retire()])
                session.commit([STATE.set("a new life")])
                expected.update(answers(session))

        original = compact.Rewrite.store
        monkeypatch.setattr(compact.Rewrite, "store", meanwhile)
        session.compact()
        assert answers(session) == expected
        session.close()
        with store.session(CHAT) as again:
            assert answers(again) == expected


def test_a_scope_that_is_retired_meanwhile(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(store_path) as store, store.session(CHAT) as session:
        full(session)
        original = compact.Rewrite.store

        def meanwhile(rewrite: compact.Rewrite) -> None:
            original(rewrite)
            session.commit([SCOPE.retire()])

        monkeypatch.setattr(compact.Rewrite, "store", meanwhile)
        assert session.compact(SCOPE) == (0, 0)
        assert session.compact(SCOPE) == (0, 0)
        assert [name for name in os.listdir((store_path / MAIN).parent) if name.endswith(".tmp")] == []


def test_threads_commit_and_read_through_compactions(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session(CHAT) as session:
        stop = threading.Event()
        failures: list[BaseException] = []
        counts = [0, 0, 0]

        def work(number: int) -> None:
            mine = list_of("chat", f"list-{number}")
            try:
                while not stop.is_set():
                    session.commit([mine.append(counts[number]), TITLE.set(counts[number])])
                    counts[number] += 1
                    assert [e.element for e in session.read(mine)] == list(range(counts[number]))
            except BaseException as error:  # noqa: BLE001 - raised by the test
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(15):
            session.compact()
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures, failures
        session.close()
        with store.session(CHAT) as again:
            for number in range(3):
                kept = [e.element for e in again.read(list_of("chat", f"list-{number}"))]
                assert kept == list(range(counts[number]))


def test_closing_waits_for_no_compaction(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is closed while the bulk is copied: the compaction gives up, and the file is as it was."""
    with Store.open(store_path) as store:
        session = store.session(CHAT)
        full(session)
        before = answers(session)
        held, go = threading.Event(), threading.Event()
        original = compact.alive_in

        def slow(view: Any) -> compact.Alive:
            held.set()
            assert go.wait(60)
            return original(view)

        monkeypatch.setattr(compacting, "alive_in", slow)
        caught: list[BaseException] = []

        def run() -> None:
            try:
                session.compact()
            except HandleClosed as error:
                caught.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert held.wait(60)
        closer = threading.Thread(target=session.close)
        closer.start()
        while session._writer._unusable is None:
            pass
        go.set()
        closer.join()
        thread.join()
        assert len(caught) == 1
        with store.session(CHAT) as again:
            assert answers(again) == before


@pytest.mark.parametrize(("op", "code"), [("create", EIO), ("pwrite", ENOSPC), ("pwrite", EIO), ("rename", EIO)])
@pytest.mark.parametrize("scope", [SESSION, SCOPE])
def test_a_disk_that_fails_leaves_everything_as_it_was(op: str, code: int, scope: Any) -> None:
    disk = SimDisk()
    with Store.open("store", fs=disk, clock=ManualClock()) as store:
        session = store.session(CHAT)
        full(session)
        session.flush(Durability.POWER)
        before = answers(session)
        disk.fail(op, 1, code, ".tmp", persistent=True)
        with pytest.raises(WriteFailed, match="could not be compacted"):
            session.compact(scope)
        disk.heal()
        assert not [path for path in disk.snapshot() if path.endswith(".tmp")]
        assert answers(session) == before
        session.commit([TITLE.set("goes on")])
        session.compact(scope)
        assert session.get(TITLE) == "goes on"


def test_a_name_that_cannot_be_synced_ends_the_log(store_path: Path) -> None:
    """What would be appended to the new file alone could be lost with its name."""
    disk = SimDisk()
    with Store.open("store", fs=disk, clock=ManualClock()) as store:
        session = store.session(CHAT)
        full(session)
        session.flush(Durability.POWER)
        before = answers(session)
        disk.fail("sync_dir", 1, EIO)
        with pytest.raises(OutcomeUnknown):
            session.compact()
        disk.heal()
        assert answers(session) == before
        with pytest.raises(LogPoisoned):
            session.commit([TITLE.set("refused")])
        session.close(force=True)
    with Store.open("store", fs=disk.crash(LoseAll()), clock=ManualClock()) as store, store.session(CHAT) as session:
        assert answers(session) == before


def test_frames_that_a_later_release_wrote_are_carried_over(store_path: Path) -> None:
    image = build(store_path, closed=True)
    data = image[MAIN]
    foreign = b"\x5b\x2a\x4d\x18\x0a\0\0\0" + b"0123456789"
    data += next_frame(data, b"of a kind to come", kind=0x5C, count=0, commits=0, payload=b"of a kind to come")
    line = b'[%d,5,["@",9,"chat","title","v"],["v",9,"newest"]]\n' % (frames_of(data)[-1].last + 1)
    data += foreign + next_frame(data, line, offset=len(data + foreign))
    data += next_frame(data, b"behind", kind=0x55, count=0, commits=0, payload=b"behind")
    with Store.open(lay(store_path, image | {MAIN: data}), clock=ManualClock()) as store:
        with store.session(CHAT) as session:
            before = answers(session)
            session.compact()
            session.commit([MESSAGES.append("after")])
        kept = (store_path / MAIN).read_bytes()
        kinds = [frame.kind for frame in frames_of(kept)]
        assert foreign in kept and b"of a kind to come" in kept and b"behind" in kept
        assert kinds.index(0x5C) < kinds.index(0x55)
        assert store.check(deep=True) == []
        with store.session(CHAT) as session:
            assert not session.recovery
            assert answers(session)["values"] == before["values"] and session.get(TITLE) == "newest"


def test_lines_that_a_later_release_wrote_are_not_dropped(store_path: Path) -> None:
    """What is void cannot be told without them: it refuses, and nothing is changed."""
    image = build(store_path, closed=True)
    first = frames_of(image[MAIN])[-1].last + 1
    for line in (b'[%d,0,["?",1,"of a later release"]]\n' % first, b'{"a line":"of another kind"}\n'):
        data = image[MAIN] + next_frame(image[MAIN], line)
        with Store.open(lay(store_path, image | {MAIN: data}), clock=ManualClock()) as store:
            with store.session(CHAT) as session:
                before = answers(session)
                with pytest.raises(NewerFormat, match="does not know"):
                    session.compact()
                with pytest.raises(NewerFormat):
                    store.copy(CHAT, "new")
                assert answers(session) == before
            assert (store_path / MAIN).read_bytes().startswith(data) and store.sessions() == [CHAT]


def test_large_elements_and_many_stretches(store_path: Path) -> None:
    with Store.open(store_path) as store:
        session = store.session(CHAT)
        for n in range(30):
            text = os.urandom(OWN_FRAME_BYTES // 2 + (n % 3) * 1000).hex()
            session.commit([MESSAGES.append(text), TITLE.set(n)])
        session.commit([MESSAGES.trim(session.read(MESSAGES, limit=10)[-1].seq)])
        before = answers(session)
        made = session.compact()
        assert made.after < made.before * 0.8
        assert answers(session) == before
        session.close()
        assert store.check(deep=True) == []
        with store.reader(CHAT) as reader:
            assert answers(reader) == before


def test_the_index_is_derived_again(store_path: Path) -> None:
    with Store.open(store_path) as store:
        session = store.session(CHAT)
        for n in range(300):
            session.commit([MESSAGES.append(os.urandom(10_000).hex()), value("chat", f"k{n}").set(n), TITLE.set(n)])
    with Store.open(store_path) as store:
        store.rebuild_index()
        with store.session(CHAT) as session:
            session.commit([MESSAGES.trim(session.read(MESSAGES, limit=200)[-1].seq)])
            before = answers(session)
            session.compact()
            assert answers(session) == before
    with Store.open(store_path) as store:
        store.rebuild_index()
        with store.session(CHAT) as session, store.reader(CHAT) as reader:
            assert answers(session) == answers(reader) == before
        assert store.check(deep=True) == []


def test_what_was_deleted_or_trimmed_is_in_no_file(store_path: Path) -> None:
    with Store.open(store_path) as store:
        session = store.session(CHAT)
        session.commit([MESSAGES.append("erase-me-1"), TITLE.set("erase-me-2")])
        session.commit([DELTAS.append("erase-me-3"), STATE.set("erase-me-4")])
        session.commit([MESSAGES.trim(session.read(MESSAGES)[-1].seq), TITLE.delete()])
        session.commit([DELTAS.delete(), STATE.delete()])
        session.compact()
        session.compact(SCOPE)
        session.close()
        text = "".join(repr(record) for record in store.reader(CHAT).records())
        assert "erase-me" not in text
        for path, data in image_of(store_path).items():
            assert b"erase-me" not in data, path


def test_evidence_is_listed_and_tidied(store_path: Path) -> None:
    with Store.open(store_path) as store:
        with store.session(CHAT) as session:
            full(session)
        main = store_path / MAIN
        main.write_bytes(main.read_bytes() + b"torn bytes that were never synced")
        sidecar = main.with_name("0000000000000001.scope.zst")
        sidecar.write_bytes(b"no header")
        store.session(CHAT).close()
        kept = sorted(finding.path for finding in store.check() if finding.reason == "kept")
        assert len(kept) == 2
        with store.session(CHAT), pytest.raises(StoreLocked):
            store.tidy(CHAT)
        assert sorted(store.tidy(CHAT)) == kept
        assert store.tidy(CHAT) == [] and store.check() == []
        with pytest.raises(NoSuchSession):
            store.tidy("nobody")


def test_a_copy_is_the_session_as_it_was(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session(CHAT) as session:
        full(session)
        whole = answers(session)
        last = store.copy(CHAT, "whole")
        middle = session.read(MESSAGES)[5].seq + 1  # the value of the same commit
        then = [e for e in session.read(MESSAGES) if e.seq <= middle]
        assert store.copy(CHAT, "then", upto=middle) == middle
        session.commit([TITLE.set("later")])
        with store.session("whole") as copy:
            assert copy.read(MESSAGES) == whole["messages"] and copy.scopes() == []
            assert copy.scan("chat") == whole["values"]
            assert copy.commit([TITLE.set("of the copy")]).first == last + 1
        with store.reader("then") as reader:
            assert reader.read(MESSAGES, cursor=then[0].seq - 1) == then
        with store.session("then") as copy:
            copy.commit([STATE.set("its own")])
            assert copy.scopes() == ["op-1"] and copy.get(STATE) == "its own"
        store.copy("then", "of the copy", upto=then[-2].seq + 1)
        assert unsound(store.check(deep=True)) == []


def test_a_copy_cut_down_at_every_step_of_the_disk() -> None:
    """The new session is there as a whole, or not at all and can be made; the source is as it was."""

    def start() -> tuple[SimDisk, Store]:
        disk = SimDisk()
        return disk, Store.open("/store", fs=disk, clock=ManualClock())

    def prepare(store: Store) -> dict[str, Any]:
        with store.session(CHAT) as session:
            full(session)
            session.flush(Durability.POWER)
            return answers(session)

    disk, store = start()
    wanted = prepare(store)
    base = disk.steps
    last = store.copy(CHAT, "new")
    steps = disk.steps - base
    assert steps > 5
    for number in range(1, steps + 1):
        for mode, count in (("before", 0), ("torn", 40), ("after", 0)):
            disk, store = start()
            prepare(store)
            disk.crash_at(base + number, mode, count)  # type: ignore[arg-type]
            with contextlib.suppress(SimCrash):
                store.copy(CHAT, "new")
            for left in (disk.kill(), *disk.crash_states(6, seed=number)):
                with Store.open("/store", fs=left, clock=ManualClock()) as again:
                    assert [f for f in again.check() if f.severity == "corrupt"] == []
                    assert again.sessions() in ([CHAT], [CHAT, "new"])
                    if again.sessions() == [CHAT]:
                        assert again.copy(CHAT, "new") == last
                    with again.session("new") as copy, again.session(CHAT) as session:
                        assert not copy.recovery.torn
                        assert copy.read(MESSAGES) == wanted["messages"] and copy.scan("chat") == wanted["values"]
                        assert answers(session) == wanted


def test_a_store_that_is_copied_by_other_tools_in_the_middle(
    store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, while and after the new file is written: each opens, with all that there was."""
    images: list[Any] = []
    for name in ("copy", "store", "finish"):
        original = getattr(compact.Rewrite, name)

        def spied(rewrite: Any, *args: Any, original: Any = original, **options: Any) -> Any:
            images.append(image_of(store_path))
            found = original(rewrite, *args, **options)
            images.append(image_of(store_path))
            return found

        monkeypatch.setattr(compact.Rewrite, name, spied)
    with Store.open(store_path) as store, store.session(CHAT) as session:
        full(session)
        session.flush()
        wanted = answers(session)
        session.compact()
        session.compact(SCOPE)
        images.append(image_of(store_path))
    assert len(images) > 10
    for number, image in enumerate(images):
        with Store.open(lay(tmp_path / f"copy-{number}", image)) as store, store.session(CHAT) as session:
            assert answers(session) == wanted and not session.recovery.torn


def test_what_cannot_be_copied(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session(CHAT) as session:
        full(session)
        seqs = [element.seq for element in session.read(MESSAGES)]
        with pytest.raises(InvalidInput, match=f"sequence {seqs[3]} is inside a commit, of {seqs[3]} to {seqs[3] + 1}"):
            store.copy(CHAT, "new", upto=seqs[3])
        with pytest.raises(InvalidInput, match="cannot be copied up to"):
            store.copy(CHAT, "new", upto=10**6)
        with pytest.raises(InvalidInput, match="onto itself"):
            store.copy(CHAT, CHAT)
        with pytest.raises(NoSuchSession):
            store.copy("nobody", "new")
        for wrong in (-1, True, 1.5):
            with pytest.raises(InvalidInput):
                store.copy(CHAT, "new", upto=wrong)  # type: ignore[arg-type]
        assert "new" not in store.sessions()
        store.copy(CHAT, "new")
        with pytest.raises(InvalidInput, match="a session 'new' already"):
            store.copy(CHAT, "new")
        session.compact()
        with pytest.raises(InvalidInput, match="cannot be copied up to"):
            store.copy(CHAT, "early", upto=seqs[3] + 1)
        with store.session("held"), pytest.raises(StoreLocked):
            store.copy(CHAT, "held")


def test_a_crowd_of_scopes_is_compacted_within_the_bound_on_open_files(store_path: Path) -> None:
    with Store.open(store_path, fs=real(24)) as store, store.session(CHAT) as session:
        scopes = [ephemeral(f"op-{n}") for n in range(300)]
        for scope in scopes:
            session.commit([scope.value("a", "b").set(n) for n in range(5)])
        most = descriptors()
        for scope in scopes:
            assert session.compact(scope).after > 0
        session.compact()
        assert descriptors() <= most + 4
        assert [session.get(scope.value("a", "b")) for scope in scopes] == [4] * 300


# --- by itself --------------------------------------------------------------------------------------


class Calls:
    """In place of the thread that compacts: calls are kept until the test makes them."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def submit(self, call: Any) -> bool:
        self.waiting.append(call)
        return True

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    monkeypatch.setattr(storing, "COMPACT_BYTES", 4000)
    made = Calls()
    monkeypatch.setattr(storing, "COMPACTORS", made)
    return made


@pytest.mark.parametrize("scope", [SESSION, SCOPE])
def test_a_log_that_has_grown_is_compacted_by_itself(store_path: Path, calls: Calls, scope: Any) -> None:
    """It stays within the ratio of what it holds, and each byte that stays is copied a few times at most."""
    held = scope.value("a", "b")
    with Store.open(store_path, compact_growth=2) as store, store.session(CHAT) as session:
        path = MAIN if scope is SESSION else None
        asked = 0
        for n in range(400):
            session.commit([held.set(os.urandom(300).hex())])
            asked += len(calls.waiting)
            calls.run()
            name = path or next(name for name in image_of(store_path) if name.endswith(".scope.zst"))
            assert len((store_path / name).read_bytes().rstrip(b"\0")) < 140_000 or n == 0
            assert session.stats()["sequence"] == n + 1
        assert 20 < asked < 200
        assert session.get(held) is not None
        last = session.get(held)
        session.close()
        with store.session(CHAT) as again:
            assert again.get(held) == last


def test_what_cannot_be_compacted_is_asked_for_again_later(
    store_path: Path, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimDisk()
    with Store.open("store", fs=disk, clock=ManualClock(), compact_growth=2) as store:
        session = store.session(CHAT)
        session.commit([TITLE.set("born")])
        disk.fail("create", 1, EIO, ".tmp", persistent=True)
        for _ in range(200):
            session.commit([TITLE.set(os.urandom(100).hex())])
            calls.run()
        assert 2 <= sum("was not compacted" in message for message in caplog.messages) < 8
        disk.heal()
        for _ in range(600):
            session.commit([TITLE.set(os.urandom(100).hex())])
            calls.run()
        with store.reader(CHAT) as reader:
            assert reader.stats()["main_bytes"] < 20_000


def test_nothing_is_compacted_unless_asked_for(store_path: Path, calls: Calls) -> None:
    with Store.open(store_path) as store, store.session(CHAT) as session:
        for n in range(60):
            session.commit([TITLE.set(f"{n:0400}")])
        assert calls.waiting == []
        for wrong in (1, -2, True, "2", 1001):
            with pytest.raises(InvalidInput, match="compact_growth"):
                store.session("other", compact_growth=wrong)  # type: ignore[arg-type]


def test_a_thread_compacts(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "COMPACT_BYTES", 4000)
    done = threading.Event()
    original = compacting.Compacting._compact_soon

    def soon(self: Any, log: Any, scope: str) -> None:
        original(self, log, scope)
        done.set()

    monkeypatch.setattr(compacting.Compacting, "_compact_soon", soon)
    with Store.open(store_path, compact_growth=1.5) as store, store.session(CHAT) as session:
        n = 0
        while not done.is_set():
            n += 1
            session.commit([TITLE.set(f"{n:0400}")])
        assert session.get(TITLE) == f"{n:0400}"
        assert session._writer._main.log is not None and session._writer._main.log.header.generation >= 1
