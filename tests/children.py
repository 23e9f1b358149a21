"""Forked children that work on a store beside the test, and say how it went."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from scopelog import ScopelogError


def in_child(work: Callable[[], str]) -> Iterator[str]:
    """Run ``work`` in a forked child; yields what it returns, or its error's class, and waits for its end.

    Between the two the child is alive: it goes on when this process closes the pipe or resumes the iterator.
    """
    answer_out, answer_in = os.pipe()
    leave_out, leave_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(leave_in)
            try:
                text = work()
            except (ScopelogError, OSError) as error:
                text = type(error).__name__
            os.write(answer_in, text.encode())
            os.close(answer_in)
            os.read(leave_out, 1)
            status = 0
        finally:
            os._exit(status)
    os.close(answer_in)
    os.close(leave_out)
    try:
        with os.fdopen(answer_out, "rb") as pipe:
            yield pipe.read().decode()
    finally:
        os.close(leave_in)
        assert os.waitpid(pid, 0)[1] == 0


@contextmanager
def child(work: Callable[[], str]) -> Iterator[str]:
    """The child's answer; the child lives until the end of the block."""
    running = in_child(work)
    try:
        yield next(running)
    finally:
        running.close()  # type: ignore[attr-defined]


def attempt(call: Callable[[], object]) -> str:
    """How a call is refused: its error's class, or what is wrong with it."""
    try:
        call()
    except ScopelogError as error:
        return type(error).__name__ if error.cause and error.remedy else "mute"
    except OSError as error:
        return f"untyped {error!r}"
    return "granted"
