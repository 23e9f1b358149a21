"""A forked child whose system calls are watched, and killed, failed or cut short one by one: ptrace, through ctypes.

strace can do the same, at half a second a case: a fresh interpreter each time, and two stops for every call that
is made. Here the child is forked from a process that has imported everything, and a seccomp filter stops it
only at the calls that can touch a file, so that a case takes a few milliseconds. strace stays as the independent check
(``tests/crash/test_processes_strace.py``).

What it assumes: Linux on x86-64, and that ptrace and seccomp filters are allowed; :func:`why_not` tells. No root.
The work may start threads, which are watched as well, and must not fork.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

__all__ = ["KILL", "Action", "Call", "Ended", "Plan", "away", "fail", "heal", "look", "run", "shorten", "why_not"]

_BY_FD: Final = {0: "read", 1: "write", 3: "close", 5: "fstat", 8: "lseek", 17: "pread64", 18: "pwrite64"} | {
    20: "writev",
    73: "flock",
    74: "fsync",
    75: "fdatasync",
    77: "ftruncate",
    217: "getdents64",
    285: "fallocate",
    296: "pwritev",
}
_BY_PATH: Final = {2: "open", 4: "stat", 6: "lstat", 21: "access", 76: "truncate", 82: "rename", 83: "mkdir"} | {
    84: "rmdir",
    86: "link",
    87: "unlink",
    90: "chmod",
}
_BY_BOTH: Final = {257: "openat", 258: "mkdirat", 262: "newfstatat", 263: "unlinkat", 264: "renameat"} | {
    316: "renameat2",
    332: "statx",
    439: "faccessat2",
}
_NAMES: Final = {**_BY_FD, **_BY_PATH, **_BY_BOTH}
_WITH_COUNT: Final = ("read", "write", "pread64", "pwrite64")
_PRCTL: Final = 157
_MARK: Final = 0x5C0_9E106  # an option of prctl that does not exist
_AWAY, _LOOK, _HEAL = 0, 1, 2

_TRACEME, _CONT, _GETREGS, _SETREGS, _SYSCALL, _SETOPTIONS = 0, 7, 12, 13, 24, 0x4200
_OPTIONS: Final = 0x1 | 0x8 | 0x80 | 0x100000  # mark stops at calls, follow threads, filter's stops, end with us
_SYSCALL_STOP: Final = signal.SIGTRAP | 0x80 if sys.platform != "win32" else 0
_EVENT_CLONE, _EVENT_SECCOMP = 3, 7
_REGISTERS: Final = struct.Struct("27Q")
_RAX, _RDX, _RSI, _RDI, _ORIG_RAX = 10, 12, 13, 14, 15
_WALL: Final = 0x40000000


class Call(NamedTuple):
    """A system call that is about to touch a file below the watched directory.

    ``path`` is relative to it. ``length``: bytes that a read or write is asked for, else 0.
    """

    number: int
    name: str
    path: str
    length: int


class Action(NamedTuple):
    """What becomes of a call: ``kill`` before it; ``error`` in its place; only ``limit`` bytes of it, ``then_kill``."""

    kill: bool = False
    error: int = 0
    limit: int = 0
    then_kill: bool = False


KILL: Final = Action(kill=True)
Plan = Callable[[Call], Action | None]


def fail(error: int) -> Action:
    return Action(error=error)


def shorten(count: int, *, then_kill: bool = False) -> Action:
    """The call reads or writes ``count`` bytes, fewer than it was asked for."""
    return Action(limit=count, then_kill=then_kill)


@dataclass
class Ended:
    """How a child ended: the calls it made, and its status as ``os.waitpid`` tells. ``healed``: it asked for that."""

    calls: list[Call] = field(default_factory=list)
    status: int = 0
    healed: bool = False

    @property
    def signal(self) -> int:
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0

    @property
    def code(self) -> int:
        return os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else -1


# --- in the child -----------------------------------------------------------------------------------

_libc: Final = ctypes.CDLL(None, use_errno=True)
_looking = False
if sys.platform == "linux":
    _libc.ptrace.restype = ctypes.c_long
    _libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    _libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]


def look(yes: bool = True) -> None:
    """From here on calls count, or do not. Whoever is not watched may say so, too."""
    global _looking
    _looking = yes
    _hint(_LOOK if yes else _AWAY)


@contextmanager
def away() -> Iterator[None]:
    """Calls do not count meanwhile: they are the rig's own."""
    before = _looking
    look(False)
    try:
        yield
    finally:
        look(before)


def heal() -> None:
    """From here on calls count and nothing is done to them."""
    _hint(_HEAL)


def _hint(code: int) -> None:
    """For the tracer alone; to the kernel it means nothing."""
    if sys.platform == "linux":
        _libc.prctl(_MARK, code, None, 0, 0)


def _filter() -> None:
    """Have the kernel stop this process, and all its threads to come, at the calls of the table."""
    trace, allow = 0x7FF00000, 0x7FFF0000
    numbers = [*sorted(_NAMES), _PRCTL]
    program = [(0x20, 0, 0, 4), (0x15, 0, len(numbers) + 1, 0xC000003E), (0x20, 0, 0, 0)]  # x86-64? then its number
    program += [(0x15, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    program += [(0x06, 0, 0, allow), (0x06, 0, 0, trace)]
    text = b"".join(struct.pack("HBBI", *line) for line in program)
    body = ctypes.create_string_buffer(text)
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(body)))
    if _libc.prctl(38, 1, None, 0, 0) or _libc.prctl(22, 2, ctypes.addressof(whole), 0, 0):
        raise OSError(ctypes.get_errno(), "no seccomp filter can be set")


def _begin(seconds: int) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    os.setpgid(0, 0)
    _ptrace(_TRACEME, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    _filter()


# --- in the parent ----------------------------------------------------------------------------------


def _ptrace(request: int, pid: int, address: int = 0, data: int | ctypes.Array[ctypes.c_char] = 0) -> None:
    pointer = data if isinstance(data, int) else ctypes.addressof(data)
    if _libc.ptrace(request, pid, address, pointer) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {request}: {os.strerror(number)}")


def run(work: Callable[[], None], below: str, plan: Plan | None = None, seconds: int = 60) -> Ended:
    """Run ``work`` in a forked child and do to its calls what ``plan`` says; returns when it has ended.

    Calls count from 1 once the child has said :func:`look`. A child that takes longer than ``seconds`` ends by SIGALRM.
    """
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            _begin(seconds)
            work()
            status = 0
        finally:
            os._exit(status)
    return _Tracer(pid, os.path.realpath(below), plan).follow()


class _Tracer:
    def __init__(self, pid: int, below: str, plan: Plan | None) -> None:
        self._pid = pid
        self._below = below
        self._plan = plan
        self._ended = Ended()
        self._looking = False
        self._dying: set[int] = set()  # threads to kill once their present call has been made
        self._registers = ctypes.create_string_buffer(_REGISTERS.size)
        self._memory = -1

    def follow(self) -> Ended:
        try:
            _, status = os.waitpid(self._pid, 0)
            if not os.WIFSTOPPED(status):
                raise OSError(errno.EPERM, f"the child could not ask to be traced ({status})")
            _ptrace(_SETOPTIONS, self._pid, 0, _OPTIONS)
            self._memory = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            _ptrace(_CONT, self._pid)
            self._loop()
        except BaseException:  # the plan's, or an interruption: leave no child behind
            self._plan = None
            self._kill()
            self._loop()
            raise
        finally:
            if self._memory >= 0:
                os.close(self._memory)
        return self._ended

    def _loop(self) -> None:
        while True:
            try:
                tid, status = os.waitpid(-self._pid, _WALL)
            except ChildProcessError:
                return
            if not os.WIFSTOPPED(status):
                if tid == self._pid:
                    self._ended.status = status
                continue
            try:
                self._stopped(tid, status)
            except ProcessLookupError:  # killed meanwhile: its end is told next
                continue

    def _stopped(self, tid: int, status: int) -> None:
        number, event = os.WSTOPSIG(status), status >> 16
        if event == _EVENT_SECCOMP:
            self._at_call(tid)
        elif number == _SYSCALL_STOP:  # the end of a call that was cut short
            if tid in self._dying:
                self._kill()
            else:
                _ptrace(_CONT, tid)
        elif event or number in (signal.SIGTRAP, signal.SIGSTOP):  # a new thread
            _ptrace(_CONT, tid)
        else:
            _ptrace(_CONT, tid, 0, number)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _at_call(self, tid: int) -> None:
        _ptrace(_GETREGS, tid, 0, self._registers)
        registers = [*_REGISTERS.unpack(self._registers.raw)]
        number = registers[_ORIG_RAX]
        if number == _PRCTL:
            self._marked(registers)
            _ptrace(_CONT, tid)
            return
        path = self._where(tid, number, registers) if self._looking else None
        if path is None:
            _ptrace(_CONT, tid)
            return
        name = _NAMES[number]
        length = registers[_RDX] if name in _WITH_COUNT else 0
        call = Call(len(self._ended.calls) + 1, name, path, length)
        self._ended.calls.append(call)
        action = self._plan(call) if self._plan is not None and not self._ended.healed else None
        self._act(tid, registers, action)

    def _act(self, tid: int, registers: list[int], action: Action | None) -> None:
        if action is None:
            _ptrace(_CONT, tid)
        elif action.kill:
            self._kill()
        elif action.error:
            registers[_ORIG_RAX] = (1 << 64) - 1  # no call at all
            registers[_RAX] = (1 << 64) - action.error
            self._set(tid, registers)
            _ptrace(_CONT, tid)
        else:
            registers[_RDX] = min(action.limit, registers[_RDX])
            self._set(tid, registers)
            if action.then_kill:
                self._dying.add(tid)
            _ptrace(_SYSCALL if action.then_kill else _CONT, tid)

    def _set(self, tid: int, registers: list[int]) -> None:
        _ptrace(_SETREGS, tid, 0, ctypes.create_string_buffer(_REGISTERS.pack(*registers)))

    def _marked(self, registers: list[int]) -> None:
        if registers[_RDI] == _MARK:
            self._looking = registers[_RSI] != _AWAY
            self._ended.healed |= registers[_RSI] == _HEAL

    def _where(self, tid: int, number: int, registers: list[int]) -> str | None:
        """The path that the call is about, relative to the directory; None if it is elsewhere."""
        if number in _BY_FD:
            path = self._of_fd(tid, registers[_RDI])
        else:
            path = self._text(registers[_RDI] if number in _BY_PATH else registers[_RSI])
            if not path and number in _BY_BOTH:
                path = self._of_fd(tid, registers[_RDI])
        if path == self._below:
            return "."
        return path[len(self._below) + 1 :] if path.startswith(self._below + "/") else None

    def _of_fd(self, tid: int, fd: int) -> str:
        try:
            return os.readlink(f"/proc/{tid}/fd/{fd & 0xFFFFFFFF}")
        except FileNotFoundError:
            return ""

    def _text(self, address: int) -> str:
        text = b""
        while b"\0" not in text:
            piece = os.pread(self._memory, 256, address + len(text))
            if not piece:
                break
            text += piece
        return os.fsdecode(text.partition(b"\0")[0])


@functools.cache
def why_not() -> str:
    """Why children cannot be watched here; empty if they can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"system calls are injected on Linux x86-64 alone, this is {sys.platform} {platform.machine()}"

    def work() -> None:
        look()
        os.access("/proc/self", os.F_OK)

    try:
        ended = run(work, "/proc", seconds=10)
    except OSError as error:
        return f"ptrace is not allowed here ({error})"
    if ended.code != 0 or [call.name for call in ended.calls] not in (["access"], ["faccessat2"]):
        return f"ptrace and seccomp filters do not work here: {ended}"
    return ""
