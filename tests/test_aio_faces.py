"""The two faces are one: the same calls, the same answers, the same errors; and readers, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from fuzz.simdisk import SimDisk
from scopelog import (
    CoalescerFailed,
    CorruptLog,
    Durability,
    HandleClosed,
    HandleFenced,
    InvalidAddress,
    InvalidElement,
    InvalidId,
    InvalidInput,
    LimitExceeded,
    LogPoisoned,
    ManualClock,
    MixedCommit,
    NoSuchSession,
    NotAStore,
    OpenFailed,
    OutcomeUnknown,
    ReadFailed,
    ScopelogError,
    Session,
    SessionFollower,
    SessionReader,
    Store,
    StoreLocked,
    WriteFailed,
    ephemeral,
    list_of,
    value,
)
from scopelog.aio import AsyncSession, AsyncSessionFollower, AsyncSessionReader, AsyncStore

from .stores import flip, frames_of

MAIN: Final = list_of("chat", "messages")
TITLE: Final = value("chat", "title")
SCOPE: Final = ephemeral("op-1")
OUT: Final = SCOPE.list_of("op", "out")
SIDECAR: Final = ".scope.zst"
_ASYNC: Final = {
    Store: AsyncStore,
    Session: AsyncSession,
    SessionReader: AsyncSessionReader,
    SessionFollower: AsyncSessionFollower,
}


class Face:
    """A store with session ``s`` and a reader, on a simulated disk, whose calls are made or awaited."""

    def __init__(self, *, awaited: bool) -> None:
        self.awaited = awaited
        self.disk = SimDisk()
        self.clock = ManualClock()
        store = Store.open("/store", fs=self.disk, clock=self.clock, pending_bytes=4096)
        session = store.session("s")
        session.commit([MAIN.append("m0"), TITLE.set("t")])
        session.commit([OUT.append("x0")])
        self.store, self.session, self.reader = store, session, store.reader("s")

    def call(self, what: Store | Session | SessionReader, method: str, *args: Any, **keywords: Any) -> Any:
        if not self.awaited:
            return plain(getattr(what, method)(*args, **keywords))
        wrapper: Any = _ASYNC[type(what)]

        async def work() -> Any:
            answer = getattr(wrapper(what), method)(*args, **keywords)
            if hasattr(answer, "__aiter__"):
                return [one async for one in answer]
            return (await answer) if inspect.isawaitable(answer) else answer

        return plain(asyncio.run(work()))


def plain(answer: Any) -> Any:
    """What either face returned, as one: iterators as lists, an async face as the sync object."""
    if isinstance(answer, AsyncSession | AsyncSessionReader | AsyncStore):
        return answer.sync
    return list(answer) if isinstance(answer, Iterator) else answer


def described(error: BaseException) -> tuple[str, ...]:
    if isinstance(error, ScopelogError):
        return type(error).__name__, re.sub(r"\d\d:\d\d:\d\d", "hh:mm:ss", error.cause), error.remedy
    return type(error).__name__, str(error)


Use = Callable[[Face], Any]


def fails(op: str, code: int, path: str, use: Use) -> Use:
    def work(face: Face) -> Any:
        face.disk.fail(op, errno=code, path=path, persistent=True)
        return use(face)

    return work


def after(what: Use, use: Use) -> Use:
    def work(face: Face) -> Any:
        with contextlib.suppress(ScopelogError):
            what(face)
        face.disk.heal()
        return use(face)

    return work


NOISE: Final = [Random(n).randbytes(2000).hex() for n in range(60)]  # some stretches of the log


def _damaged(use: Use) -> Use:
    """In the first stretch of several, where no reader takes it for the end of what was written so far."""

    def work(face: Face) -> Any:
        for text in NOISE:
            face.session.commit([MAIN.append(text)])
        face.reader.refresh()
        path = next(path for path in face.disk.snapshot() if path.endswith("main.zst"))
        data = face.disk.read_file(path)
        face.disk.write_file(path, flip(data, 8 * data.index(b"\x28\xb5\x2f\xfd") + 8 * 200))
        return use(face)

    return work


def commit(*writes: Any, **keywords: Any) -> Use:
    return lambda face: face.call(face.session, "commit", [*writes], **keywords)


def append(*args: Any) -> Use:
    return lambda face: face.call(face.session, "append", *args)


def session(method: str, *args: Any, **keywords: Any) -> Use:
    return lambda face: face.call(face.session, method, *args, **keywords)


def store(method: str, *args: Any, **keywords: Any) -> Use:
    return lambda face: face.call(face.store, method, *args, **keywords)


def reader(method: str, *args: Any, **keywords: Any) -> Use:
    return lambda face: face.call(face.reader, method, *args, **keywords)


def _fenced(face: Face) -> Any:
    face.disk.unlink("/store/s.session/LOCK")
    return commit(MAIN.append(1))(face)


def _at_the_bound(face: Face) -> Any:
    face.disk.fail("pwrite", errno=errno.ENOSPC, path=SIDECAR, persistent=True)
    for n in range(100):
        append(OUT, n, "t" * 50)(face)


def _coalescer_fails(face: Face) -> Any:
    def join(run: Any) -> Any:
        raise ValueError("by the test")

    target = SCOPE.list_of("op", "text", coalescer=join)
    append(target, "a")(face)
    append(target, "b")(face)
    return session("flush")(face)


_deep: list[Any] = []
_deep.extend([_deep])

ERRORS: Final[dict[str, tuple[Use, type[BaseException]]]] = {
    "an empty commit": (commit(), InvalidInput),
    "a commit of something else": (commit("write"), InvalidInput),
    "a commit of one write": (lambda face: face.call(face.session, "commit", MAIN.append(1)), InvalidInput),
    "a mixed commit": (commit(MAIN.append(1), OUT.append(1)), MixedCommit),
    "a level that is none": (commit(MAIN.append(1), durability="POWER"), InvalidInput),
    "an element that is no JSON": (commit(MAIN.append({1: 2})), InvalidElement),
    "an element that holds itself": (append(MAIN, _deep), LimitExceeded),
    "a staged element that is no JSON": (append(MAIN, object()), InvalidElement),
    "an append to a value": (append(TITLE, 1), InvalidInput),
    "an append to nothing": (append("list", 1), InvalidInput),
    "an empty tag": (append(MAIN, 1, ""), InvalidAddress),
    "another coalescer": (
        after(append(MAIN, 1), append(list_of("chat", "messages", coalescer=lambda run: []), 1)),
        InvalidInput,
    ),
    "a flush at no level": (session("flush", "POWER"), InvalidInput),
    "a get of a list": (session("get", MAIN), InvalidInput),
    "a read of a value": (session("read", TITLE), InvalidInput),
    "a read in no order": (session("read", MAIN, order="up"), InvalidAddress),
    "a read below zero": (session("read", MAIN, limit=-1), InvalidAddress),
    "a read from nowhere": (session("read", MAIN, cursor="x"), InvalidAddress),
    "a scan of no scope": (session("scan", "chat", scope="op-1"), InvalidInput),
    "a scan of no name": (session("scan", 1), InvalidAddress),
    "a durable_seq of no scope": (session("durable_seq", "op-1"), InvalidInput),
    "a write that fails": (fails("pwrite", errno.ENOSPC, "main.zst", commit(MAIN.append(1))), WriteFailed),
    "a sync that fails": (fails("sync", errno.EIO, "main.zst", commit(MAIN.append(1))), OutcomeUnknown),
    "after a failed sync": (
        after(fails("sync", errno.EIO, "main.zst", commit(MAIN.append(1))), commit(MAIN.append(2))),
        LogPoisoned,
    ),
    "an append after a failed sync": (
        after(fails("sync", errno.EIO, "main.zst", commit(MAIN.append(1))), append(MAIN, 2)),
        LogPoisoned,
    ),
    "a flush that fails": (
        after(append(OUT, 1), fails("pwrite", errno.ENOSPC, SIDECAR, session("flush"))),
        WriteFailed,
    ),
    "a close that fails": (
        after(append(OUT, 1), fails("pwrite", errno.ENOSPC, SIDECAR, session("close"))),
        WriteFailed,
    ),
    "a bound without room": (_at_the_bound, WriteFailed),
    "a coalescer that fails": (_coalescer_fails, CoalescerFailed),
    "a lock file that was removed": (_fenced, HandleFenced),
    "a read that fails": (fails("pread", errno.EIO, "main.zst", session("get", TITLE)), ReadFailed),
    "a description of nothing": (session("describe"), InvalidInput),
    "a list in no order": (store("catalogue", sort="size"), InvalidInput),
    "a damaged log": (_damaged(session("get", TITLE)), CorruptLog),
    "a session that is open": (store("session", "s"), StoreLocked),
    "a session without a name": (store("session", ""), InvalidId),
    "a session with a window of a day": (store("session", "other", window_ms=86_400_000), InvalidInput),
    "a reader of nothing": (store("reader", "nothing"), NoSuchSession),
    "deleting nothing": (store("delete_session", "nothing"), NoSuchSession),
    "deleting what is open": (store("delete_session", "s"), StoreLocked),
    "checking nothing": (store("check", "nothing"), NoSuchSession),
    "a list that cannot be read": (fails("list_dir", errno.EIO, "/store", store("sessions")), ReadFailed),
    "opening what cannot be read": (fails("open", errno.EIO, "LOCK", store("session", "s")), OpenFailed),
    "reading without the lock what is damaged": (_damaged(reader("read", MAIN)), CorruptLog),
    "records of what is damaged": (_damaged(reader("records")), CorruptLog),
    "refreshing a session that was deleted": (
        after(session("close"), after(store("delete_session", "s"), reader("refresh"))),
        NoSuchSession,
    ),
}
CLOSED: Final[dict[str, Use]] = {
    "commit": commit(MAIN.append(1)),
    "append": append(OUT, 1),
    "flush": session("flush"),
    "read": session("read", MAIN),
    "get": session("get", TITLE),
    "scan": session("scan", "chat"),
    "scopes": session("scopes"),
}


def outcome(use: Use, *, awaited: bool) -> tuple[Any, ...]:
    face = Face(awaited=awaited)
    try:
        return "returned", use(face)
    except Exception as error:  # noqa: BLE001 - compared
        return described(error)


@pytest.mark.parametrize("name", ERRORS)
def test_both_faces_raise_the_same_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scopelog_engine.store.secrets.token_hex", lambda length: "0" * 2 * length)
    use, kind = ERRORS[name]
    called = outcome(use, awaited=False)
    assert called[0] == kind.__name__, called
    assert outcome(use, awaited=True) == called


@pytest.mark.parametrize("end", ["session", "store"])
@pytest.mark.parametrize("name", CLOSED)
def test_both_faces_refuse_what_is_closed(name: str, end: str) -> None:
    use = after(session("close") if end == "session" else store("close"), CLOSED[name])
    called = outcome(use, awaited=False)
    assert called[0] == HandleClosed.__name__
    assert outcome(use, awaited=True) == called
    face = Face(awaited=True)
    for _ in range(2):  # closing twice is legal
        face.call(face.session, "close")
        face.call(face.reader, "close")
        face.call(face.store, "close")
    with pytest.raises(HandleClosed):
        face.call(face.reader, "read", MAIN)


ANSWERS: Final[dict[str, Use]] = {
    "read": session("read", MAIN),
    "read of a page": session("read", MAIN, cursor=3, order="desc", limit=2, stop_at_tag="tag"),
    "read of nothing": session("read", ephemeral("none").list_of("a", "b")),
    "get": session("get", TITLE),
    "get of nothing": session("get", ephemeral("none").value("a", "b"), "default"),
    "scan": session("scan", "chat", "t"),
    "scan of a scope": session("scan", "op", scope=SCOPE),
    "scan of nothing": session("scan", "op", scope=ephemeral("none")),
    "scopes": session("scopes"),
    "durable_seq": session("durable_seq", SCOPE, Durability.POWER),
    "stats": session("stats"),
    "records": reader("records"),
    "reader's read": reader("read", MAIN, order="desc", limit=3),
    "reader's get": reader("get", TITLE),
    "reader's scan": reader("scan", "chat"),
    "reader's scopes": reader("scopes"),
    "reader's stats": reader("stats"),
    "reader's durable_seq": reader("durable_seq", SCOPE),
    "info": session("info"),
    "reader's info": reader("info"),
    "describe": after(session("describe", name="a name", labels={"a": [1]}), session("info")),
    "sessions": store("sessions"),
    "catalogue": store("catalogue", where=lambda info: info.id == "s", limit=3, sort="updated"),
    "check": store("check"),
    "check of one": store("check", "s"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_both_faces_answer_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scopelog_engine.store.secrets.token_hex", lambda length: "0" * 2 * length)
    answers = []
    for awaited in (False, True):
        face = Face(awaited=False)
        for n in range(5):
            append(MAIN, n, "tag" if n == 2 else None)(face)
        commit(MAIN.append("commit"), TITLE.set("title"))(face)
        append(OUT, "staged")(face)
        face.reader.refresh()
        face.awaited = awaited
        answers.append(ANSWERS[name](face))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kind", _ASYNC, ids=lambda kind: kind.__name__)
def test_the_async_face_has_every_call_with_the_same_parameters(kind: type) -> None:
    """Names, kinds, defaults and annotations; what is awaited returns what the other returns."""
    face = _ASYNC[kind]
    names = {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}
    missing = names - {name for name, _ in inspect.getmembers(face)}
    assert not missing, f"{face.__name__} has no {sorted(missing)}"
    for name in names:
        one, other = inspect.getattr_static(kind, name), inspect.getattr_static(face, name)
        if isinstance(one, property):
            assert isinstance(other, property), name
            continue
        first, second = inspect.signature(getattr(kind, name)), inspect.signature(getattr(face, name))
        assert [*first.parameters.values()] == [*second.parameters.values()], name
        wanted = str(first.return_annotation)
        for sync in ("SessionReader", "SessionFollower", "Session"):
            if wanted == sync:
                wanted = f"Async{sync}"
        if wanted.startswith("Watch["):
            wanted = f"Async{wanted}"
        given = str(second.return_annotation)
        assert given in (wanted, wanted.replace("Iterator", "AsyncIterator")), name


# --- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_records_are_all_there_once_and_in_order(count: int) -> None:
    """They are fetched some hundred at a time: nothing is lost or repeated between the batches."""
    disk = SimDisk()
    with Store.open("/store", fs=disk, clock=ManualClock()) as store, store.session("s") as session:
        session.commit([TITLE.set("first")])
        for n in range(count):
            session.append((MAIN, OUT)[n % 2], n)
        session.flush()
        sync = store.reader("s")
        expected = list(sync.records())
        assert len(expected) == count + 1

        async def work() -> list[Any]:
            return [record async for record in AsyncSessionReader(sync).records()]

        assert asyncio.run(work()) == expected


def test_records_yield_the_good_prefix_before_they_raise() -> None:
    """All of it: what stood in the last batch, before the damage, was lost."""
    disk = SimDisk()
    with Store.open("/store", fs=disk, clock=ManualClock()) as store, store.session("s") as session:
        for number, text in enumerate(NOISE):
            session.commit([MAIN.append(text), *(MAIN.append([number, n]) for n in range(20))])
        sync = store.reader("s")
        path = next(path for path in disk.snapshot() if path.endswith("main.zst"))
        data = disk.read_file(path)
        disk.write_file(path, flip(data, 8 * (frames_of(data)[14].end - 9)))
        expected: list[Any] = []
        with pytest.raises(CorruptLog) as called:
            for record in sync.records():
                expected.append(record)

        async def work() -> list[Any]:
            found = []
            with pytest.raises(CorruptLog) as awaited:
                async for record in AsyncSessionReader(sync).records():
                    found.append(record)
            assert str(awaited.value) == str(called.value)
            return found

        assert len(expected) > 256 and len(expected) % 256 > 0
        assert asyncio.run(work()) == expected


def test_leaving_an_iteration_early_does_no_harm() -> None:
    disk = SimDisk()
    with Store.open("/store", fs=disk, clock=ManualClock()) as store, store.session("s") as session:
        session.commit([MAIN.append(n) for n in range(1000)])

        async def work() -> list[int]:
            found = []
            async with await AsyncStore(store).reader("s") as reader:
                async for record in reader.records():
                    found.append(record.value)
                    if len(found) == 300:
                        break
                assert [e.element for e in await reader.read(MAIN, limit=1)] == [0]
                return found

        assert asyncio.run(work()) == [*range(300)]


def test_a_reader_sees_what_is_stored_once_it_is_refreshed() -> None:
    disk = SimDisk()
    with Store.open("/store", fs=disk, clock=ManualClock()) as store:
        face = AsyncStore(store)

        async def work() -> None:
            async with await face.session("s") as session:
                await session.commit([MAIN.append(1)])
                async with await face.reader("s") as reader:
                    await session.append(MAIN, 2)
                    await session.flush()
                    assert [e.element for e in await reader.read(MAIN)] == [1]
                    await reader.refresh()
                    assert [e.element for e in await reader.read(MAIN)] == [1, 2]
                    assert reader.id == session.id == "s"
                    assert (reader.durable_seq(), session.durable_seq()) == (2, 2)
                with pytest.raises(HandleClosed):
                    await reader.read(MAIN)
            assert (await face.sessions(), face.path, face.id) == (["s"], store.path, store.id)
            assert await face.check("s") == []
            await face.delete_session("s")
            assert await face.sessions() == []

        asyncio.run(work())


def test_a_store_that_is_none_is_refused(store_path: Path) -> None:
    store_path.mkdir()
    (store_path / "other").touch()

    async def work() -> None:
        await AsyncStore.open(store_path)

    with pytest.raises(NotAStore):
        asyncio.run(work())


@pytest.mark.parametrize("error", [None, ValueError, asyncio.CancelledError])
def test_leaving_a_context_closes_whatever_is_raised(error: type[BaseException] | None, store_path: Path) -> None:
    """On a real disk, with elements staged; the error is not touched."""

    async def work() -> None:
        async with await AsyncStore.open(store_path) as store, await store.session("s") as session:
            await session.commit([MAIN.append(1)])
            async with await store.reader("s") as reader:
                await session.append(MAIN, 2)
                if error is not None:
                    raise error
                assert reader.scopes() == []

    if error is None:
        asyncio.run(work())
    else:
        with pytest.raises(error):
            asyncio.run(work())
    with Store.open(store_path) as store, store.session("s") as session:
        assert [e.element for e in session.read(MAIN)] == [1, 2]
