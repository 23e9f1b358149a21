"""Ends of processes that run loops: by exit, by kill -9, on disks that hang, and through fork."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from scopelog import Store, ephemeral, list_of
from scopelog.aio import AsyncSession, AsyncStore

from .children import child
from .hooks import HookedFileSystem

MAIN: Final = list_of("chat", "messages")
OUT: Final = ephemeral("op-1").list_of("op", "out")
PATIENCE: Final = 60  # seconds until a child is called hung; none takes part of it when all is well

PRELUDE: Final = """
import asyncio, os, signal, sys, threading
import scopelog_engine.store
from scopelog import *
from scopelog.aio import *
from tests.hooks import HookedFileSystem

MAIN = list_of("chat", "messages")
OUT = ephemeral("op-1").list_of("op", "out")
path = sys.argv[1]
"""


def run(program: str, path: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program of its own; it finds the prelude's names and the store's path."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PRELUDE + textwrap.dedent(program), str(path)],
        check=False,
        timeout=PATIENCE,
        text=True,
        capture_output=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


def stored(path: Path) -> tuple[list[Any], list[Any]]:
    with Store.open(path) as store, store.session("s") as session:
        return [e.element for e in session.read(MAIN)], [e.element for e in session.read(OUT)]


# --- exit -----------------------------------------------------------------------------------------------------------

ENDS: Final = {
    "asyncio.run": "asyncio.run(main())",
    "an error": "asyncio.run(main(ValueError()))",
    "sys.exit": "asyncio.run(main(SystemExit(0)))",
    "a loop that is never closed": "loop = asyncio.new_event_loop(); loop.run_until_complete(main())",
    "a loop that is closed": "loop = asyncio.new_event_loop(); loop.run_until_complete(main()); loop.close()",
    "Ctrl-C": "asyncio.run(main(None, interrupted=True))",
    "a thread's loop": "thread = threading.Thread(target=lambda: asyncio.run(main())); thread.start(); thread.join()",
}


@pytest.mark.parametrize("end", ENDS)
def test_what_a_loop_has_staged_is_stored_by_the_interpreters_exit(end: str, store_path: Path) -> None:
    """Nobody closes anything, and the loop that kept the window has ended. A commit that was never awaited is stored
    or not, as a whole."""
    run(
        f"""
        async def main(error=None, interrupted=False):
            global store, session, task
            store = await AsyncStore.open(path, window_ms=60_000)
            session = await store.session("s")
            await session.commit([MAIN.append("committed")])
            await session.append(OUT, "staged")
            await session.append(MAIN, "staged")
            if interrupted:
                asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
                await asyncio.sleep(60)
            if error is not None:
                raise error

        {ENDS[end]}
        """,
        store_path,
        check=end not in ("an error", "Ctrl-C"),
    )
    assert stored(store_path) == (["committed", "staged"], ["staged"])


HANGS: Final = {
    "the window": """
        async def main():
            session = await opened()
            await session.append(MAIN, "staged")
            hang(".zst")
    """,
    "a commit in a thread": """
        async def main():
            session = await opened()
            await session.append(OUT, "staged")
            session.sync._writer._env.pace.quick = False
            session.sync._writer._env.pace._next_trial = float("inf")
            hang(".zst")
            global task
            task = asyncio.ensure_future(session.commit([MAIN.append("maybe")]))
            while not hanging.is_set():
                await asyncio.sleep(0.001)
    """,
    "the flusher": """
        async def main():
            session = await opened(window_ms=1)
            hang(".zst")
            threading.Thread(target=lambda: session.sync.append(MAIN, "staged")).start()
            while not hanging.is_set():
                await asyncio.sleep(0.001)
            await session.append(OUT, "staged")
    """,
    "the lock file under a first append": """
        async def main():
            hang("LOCK")
            session = await opened(commit=False)
            threading.Thread(target=lambda: session.sync.append(OUT, "staged"), daemon=True).start()
            while not hanging.is_set():
                await asyncio.sleep(0.001)
    """,
    "a read in a thread": """
        async def main():
            session = await opened()
            await session.append(OUT, "staged")
            hang(".zst")
            threading.Thread(target=lambda: session.sync.commit([MAIN.append("maybe")]), daemon=True).start()
            while not hanging.is_set():
                await asyncio.sleep(0.001)
            global task
            task = asyncio.ensure_future(session.read(MAIN))
            await asyncio.sleep(0)
    """,
}


@pytest.mark.parametrize("what", HANGS)
def test_a_disk_that_hangs_does_not_keep_the_interpreter(what: str, store_path: Path) -> None:
    """A sync never comes back, wherever it was called: the exit waits for its bound, and ends."""
    program = f"""
scopelog_engine.store._EXIT_SECONDS = 0.2
hanging = threading.Event()
fs = HookedFileSystem()

def hang(ending):
    def hook(operation, path):
        if operation == "sync" and ending in path:
            hanging.set()
            threading.Event().wait()
    fs.hook = hook

async def opened(commit=True, window_ms=60_000):
    global store
    store = await AsyncStore.open(path, window_ms=window_ms, fs=fs)
    session = await store.session("s")
    if commit:
        await session.commit([MAIN.append("committed")])
        await session.commit([OUT.append("committed")])
    return session

{textwrap.dedent(HANGS[what])}
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
"""
    run(program, store_path)
    main, out = stored(store_path)
    assert main[:1] == out[:1] == ([] if "first" in what else ["committed"])


def test_a_killed_loop_has_stored_what_it_acknowledged(store_path: Path) -> None:
    program = PRELUDE + textwrap.dedent(
        """
        async def work(session, name):
            for n in range(100_000):
                if n % 7 == 3:
                    await session.append(OUT, [name, n])
                await session.commit([MAIN.append([name, n])])
                os.write(1, f"{name} {n}\\n".encode())

        async def main():
            store = await AsyncStore.open(path, window_ms=1)
            session = await store.session("s")
            await asyncio.gather(*(work(session, name) for name in range(4)))

        asyncio.run(main())
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(store_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[1],
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(400)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    acknowledged = [[int(part) for part in line.split()] for line in lines if line.endswith("\n")]
    main, out = stored(store_path)
    assert len(main) == len({tuple(element) for element in main}), "stored twice"
    for name in range(4):
        mine = [n for who, n in main if who == name]
        assert mine == [*range(len(mine))], "in order, without gaps"
        told = [n for who, n in acknowledged if who == name]
        assert told == mine[: len(told)] and len(told) >= 1
        staged = [n for who, n in out if who == name]
        assert staged == [*range(3, 7 * len(staged), 7)]


# --- fork -------------------------------------------------------------------------------------------------------------


def refusals(calls: dict[str, Callable[[], object]]) -> str:
    """How calls are refused: class names, in order."""
    names: list[str] = []
    for call in calls.values():
        try:
            call()
            names.append("granted")
        except Exception as error:  # noqa: BLE001 - looked at by the test
            names.append(type(error).__name__)
    return " ".join(names)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "storing in a thread"])
def test_a_fork_beside_a_running_loop_refuses_in_the_child_and_disturbs_no_one(busy: bool, store_path: Path) -> None:
    """With worker threads alive, and a commit in one of them that holds what a fork copies locked. The child may use
    another store, on a loop of its own."""
    fs = HookedFileSystem()
    held, go = threading.Event(), threading.Event()

    def hook(operation: str, path: str) -> None:
        if busy and operation == "sync" and "main.zst" in path and not held.is_set():
            held.set()
            assert go.wait(PATIENCE)

    async def other(path: Path) -> str:
        async with await AsyncStore.open(path) as store, await store.session("s") as session:
            await session.append(OUT, 1)
            await session.commit([MAIN.append(1)])
            return str(len(await session.read(OUT)))

    def in_the_child(store: AsyncStore, session: AsyncSession, path: Path) -> str:
        calls: dict[str, Callable[[], object]] = {
            "commit": lambda: asyncio.run(session.commit([MAIN.append(1)])),
            "append": lambda: asyncio.run(session.append(OUT, 1)),
            "flush": lambda: asyncio.run(session.flush()),
            "read": lambda: asyncio.run(session.read(MAIN)),
            "scan": lambda: asyncio.run(session.scan("chat")),
            "close": lambda: asyncio.run(session.close()),
            "session": lambda: asyncio.run(store.session("other")),
            "store": lambda: asyncio.run(store.close()),
            "sync": lambda: session.sync.commit([MAIN.append(1)]),
        }
        return f"{refusals(calls)} {asyncio.run(other(path))}"

    async def main() -> None:
        store = await AsyncStore.open(store_path, fs=fs)
        session = await store.session("s")
        await session.commit([MAIN.append("before")])
        await session.append(OUT, "staged")
        fs.hook = hook
        commit = None
        if busy:
            store.sync._store.pace.quick = False
            store.sync._store.pace._next_trial = float("inf")
            commit = asyncio.ensure_future(session.commit([MAIN.append("under way")]))
            while not held.is_set():
                await asyncio.sleep(0.001)
        with child(lambda: in_the_child(store, session, store_path.parent / "child")) as answer:
            assert answer.split() == ["HandleForked"] * 9 + ["1"]
            go.set()
            if commit is not None:
                await commit
            await session.commit([MAIN.append("after")])
        await session.commit([MAIN.append("the child has ended")])
        await store.close()

    asyncio.run(main())
    wanted = ["before", *(["under way"] if busy else []), "after", "the child has ended"]
    assert stored(store_path) == (wanted, ["staged"])


def test_a_forked_child_of_a_loop_exits_as_usual(store_path: Path) -> None:
    """Its interpreter's end must not wait for threads that it does not have, nor store what is the parent's."""
    done = run(
        """
        async def main():
            global store, session
            store = await AsyncStore.open(path, window_ms=60_000)
            session = await store.session("s")
            await session.commit([MAIN.append("committed")])
            await session.append(OUT, "staged")
            return os.fork()

        pid = asyncio.run(main())
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
            asyncio.run(session.commit([MAIN.append("after")]))
        """,
        store_path,
    )
    assert done.stderr == ""
    assert stored(store_path) == (["committed", "after"], ["staged"])


assert os.name == "posix"
