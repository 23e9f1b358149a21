"""Running the engram program: ask it once for the instance's identity, or leave a server behind that outlives us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

_ANSWER: Final = 4096  # bytes of output that are looked at


class Child(Protocol):
    """A server that was started."""

    def poll(self) -> int | None:
        """None while it runs, then its exit status, negative for a signal. Reaps it."""

    def terminate(self) -> None:
        """Ask it to end (SIGTERM). Does nothing once it has ended."""


class EngramProcess:
    """A process in a session of its own, its standard streams on the null device: it lives on when we end.

    No ``subprocess.Popen``, which complains when a running child is let go of.

    :raises OSError: the program cannot be started.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        self.pid = os.posix_spawnp(
            argv[0],
            list(argv),
            dict(environ),
            file_actions=null,
            setsid=True,  # detached: a signal to our terminal's group does not reach it
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )
        self._status: int | None = None

    def poll(self) -> int | None:
        """None while it runs, then its exit status, negative for a signal. Reaps it."""
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else in this process has reaped it
                self._status = 0
            else:
                if pid:
                    self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def terminate(self) -> None:
        """Ask it to end (SIGTERM). Does nothing once it has ended."""
        if self.poll() is None:  # not reaped, so the number is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)


async def ask(argv: Sequence[str], environ: Mapping[str, str], limit: float) -> tuple[int, bytes]:
    """Run a program to its end: exit status and the first bytes it printed.

    :raises OSError: it cannot be started.
    :raises TimeoutError: it did not end within ``limit`` seconds; it is killed.
    """
    null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=null, stdout=pipe, stderr=null, env=dict(environ))
    assert process.stdout is not None
    said = b""
    try:
        async with asyncio.timeout(limit):
            while chunk := await process.stdout.read(_ANSWER):
                said = (said + chunk)[:_ANSWER]
            return await process.wait(), said
    finally:
        if process.returncode is None:  # the limit, or a cancellation
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
