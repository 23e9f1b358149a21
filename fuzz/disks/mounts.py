"""File systems and loop devices for a test: made, mounted, and taken away again whatever happens.

Everything here is a context manager that undoes what it did and nothing else: it touches only the loop device that it
attached and the directory that it mounted on. A loop device clears itself with its last user, and an unmount that is
refused is made lazy, so that a process that hangs leaves no device behind. Linux and root alone.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_LOOP_CTL_GET_FREE: Final = 0x4C82
_LOOP_CONFIGURE: Final = 0x4C0A
_LOOP_CLR_FD: Final = 0x4C01
_AUTOCLEAR: Final = 4
_ATTEMPTS: Final = 20  # another process may take the free device first
_MNT_FORCE: Final = 1
_MNT_DETACH: Final = 2
_SHUTDOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
PREFIX: Final = f"scopelog-disks-{os.getpid()}-"
_PACKAGES: Final = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}

_libc: Final = ctypes.CDLL(None, use_errno=True)


@functools.cache
def missing(*needs: str) -> str:
    """What this machine lacks for a rig, in words; empty if nothing. ``needs``: "fuse", "loop", "ext4", "xfs"."""
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root: it mounts file systems"
    return "; ".join(text for need in needs if (text := _lacks(need))) or _refused()


def _lacks(need: str) -> str:
    if need in ("fuse", "loop"):
        device = {"fuse": "/dev/fuse", "loop": "/dev/loop-control"}[need]
        return "" if os.access(device, os.R_OK | os.W_OK) else f"needs {device}"
    if tool(f"mkfs.{need}") is None:
        return f"needs mkfs.{need} (package {_PACKAGES[need]})"
    known = Path("/proc/filesystems").read_text(encoding="ascii").split()
    return "" if need in known or tool("modprobe") is not None else f"needs a kernel with {need}"


def tool(name: str) -> str | None:
    """Where a program of the administrator's stands."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin")))


def _refused() -> str:
    """Root of a container may not be allowed to mount: tried on a directory that nobody else knows."""
    with tempfile.TemporaryDirectory() as path:
        try:
            mount("none", path, "tmpfs")
        except OSError as error:
            return f"needs the right to mount ({error.strerror})"
        unmount(path)
    return ""


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def mount(source: str, target: str, kind: str, options: str = "") -> None:
    """mount(2), without set-user-id files and devices."""
    flags = 2 | 4 | 8  # MS_NOSUID, MS_NODEV, MS_NOEXEC
    arguments = (source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(_libc.mount(*arguments), f"{kind} on {target}")


def unmount(target: str, *, force: bool = False) -> None:
    """Unmount; at once where it is in use, as soon as it is not. ``force``: what is under way there fails (FUSE)."""
    if not force:
        if _libc.umount2(os.fsencode(target), 0) == 0:
            return
        if ctypes.get_errno() != errno.EBUSY:
            _check(-1, target)
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH | (_MNT_FORCE if force else 0)), target)


@contextmanager
def loop_device(image: str) -> Iterator[str]:
    """A loop device over the file ``image``."""
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        path, device = _attach(backing)
    finally:
        os.close(backing)
    try:
        yield path
    finally:
        try:
            fcntl.ioctl(device, _LOOP_CLR_FD, 0)
        finally:
            os.close(device)


def _attach(backing: int) -> tuple[str, int]:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            path = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            information = struct.pack("<5Q4I64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR, b"", b"", b"", 0, 0)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, struct.pack("<2I", backing, 0) + information + bytes(64))
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return path, device
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


@contextmanager
def mounted(source: str, target: str, kind: str, options: str = "") -> Iterator[None]:
    mount(source, target, kind, options)
    try:
        yield
    finally:
        unmount(target)


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for images, in memory where that can be: a loop device passes each flush on to what it stands on."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=memory) as path:
        yield Path(path)


def make_image(path: str, kind: str, size: int, *options: str) -> None:
    """A sparse file of ``size`` bytes with an empty file system on it."""
    with open(path, "wb") as file:
        file.truncate(size)
    quiet = ["-q", "-F"] if kind == "ext4" else ["-q", "-f"]
    subprocess.run([tool(f"mkfs.{kind}") or kind, *quiet, *options, path], check=True, capture_output=True, timeout=60)


def cut(target: str, flags: int) -> None:
    """Take the file system down as a power cut would. ``flags``: 0 flush all, 1 flush the journal, 2 flush nothing."""
    directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(directory, _SHUTDOWN, struct.pack("<I", flags))
    finally:
        os.close(directory)
