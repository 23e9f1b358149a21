"""A file system in user space: the kernel's FUSE protocol, spoken on /dev/fuse by a thread of this process.

No library is needed, and every request is seen: with caches off (the default) each look-up, write and sync of any
process comes here at once, as one call of a :class:`Volume`. Requests are answered one by one, in the order in which
they come. The process that serves must not touch the mount while it holds what the server needs; forked children may,
and close their copy of the device first (:meth:`Server.forked`), so that the mount ends with this process.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ECONNABORTED, ENODEV, ENOENT, ENOSYS, EPERM
from typing import Final, NamedTuple, Protocol

from fuzz.disks.mounts import mount, unmount

ROOT: Final = 1
MAX_WRITE: Final = 128 * 1024
_BLOCK: Final = 4096
_MAJOR: Final = 7
_MINOR: Final = 31
_BIG_WRITES: Final = 1 << 5
_FLOCK: Final = 1 << 10
_DIRECT_IO: Final = 1
_SET_SIZE: Final = 1 << 3
_JOIN_SECONDS: Final = 20

_HEADER: Final = struct.Struct("<IIQQIIIHH")
_ANSWER: Final = struct.Struct("<IiQ")
_ATTR: Final = struct.Struct("<6Q10I")
_ENTRY: Final = struct.Struct("<4Q2I")
_TRANSFER: Final = struct.Struct("<2Q2IQ2I")  # read_in and write_in
_INIT: Final = struct.Struct("<4I2H2I2HI7I")
_GIVEN_UP: Final = (ENOENT, ENODEV, ECONNABORTED)  # nobody waits for the answer any more


class Attr(NamedTuple):
    """What the kernel asks of a file or directory. ``node`` is its inode number, never 0."""

    node: int
    directory: bool
    size: int = 0


class Volume(Protocol):
    """What is served. Nodes are inode numbers, the root is 1; every method may raise OSError."""

    def look_up(self, parent: int, name: str) -> Attr: ...
    def attributes(self, node: int) -> Attr: ...
    def names(self, node: int) -> list[tuple[str, Attr]]: ...
    def make_dir(self, parent: int, name: str) -> Attr: ...
    def create(self, parent: int, name: str) -> Attr: ...
    def unlink(self, parent: int, name: str) -> None: ...
    def remove_dir(self, parent: int, name: str) -> None: ...
    def rename(self, parent: int, name: str, new_parent: int, new_name: str) -> None: ...
    def read(self, node: int, length: int, offset: int) -> bytes: ...
    def write(self, node: int, data: bytes, offset: int) -> int: ...
    def resize(self, node: int, length: int) -> None: ...
    def allocate(self, node: int, offset: int, length: int) -> None: ...
    def sync(self, node: int) -> None: ...
    def sync_dir(self, node: int) -> None: ...
    def forget(self, node: int) -> None:
        """No process has it open, and the kernel will not ask by this number before it is looked up again."""


class Server:
    """Serves ``volume`` at ``target`` until :meth:`stop`.

    ``direct``: no page cache at all, hence no shared memory maps. ``flock``: None, the kernel locks; an error number:
    flock fails with it. ``failure`` is what ended the server, if it was an error of its own.
    """

    def __init__(self, volume: Volume, target: str, *, direct: bool = False, flock: int | None = None) -> None:
        self._volume, self._target = volume, target
        self._direct, self._flock = direct, flock
        self._known: dict[int, int] = {}
        self.failure: BaseException | None = None
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            mount("scopelog", target, "fuse", f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other")
        except BaseException:
            os.close(self._device)
            raise
        self._mounted = True
        self._thread = threading.Thread(target=self._serve, name="fuse", daemon=True)
        self._thread.start()

    def forked(self) -> None:
        """In a forked child, which does not serve: let go of the device."""
        os.close(self._device)

    def abort(self) -> None:
        """Unmount, and fail whatever is under way: not even SIGKILL ends a process whose request has been read here
        and not answered. May be called twice."""
        if self._mounted:
            self._mounted = False
            unmount(self._target, force=True)

    def stop(self) -> None:
        """Abort what is under way, unmount, and wait for the thread."""
        self.abort()
        self._thread.join(_JOIN_SECONDS)
        os.close(self._device)
        if self._thread.is_alive():
            raise RuntimeError("the FUSE server hangs")

    # --- requests ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while True:
                try:
                    request = os.read(self._device, MAX_WRITE + _BLOCK)
                except (InterruptedError, FileNotFoundError):
                    continue  # the request was taken back before we read it
                except OSError:
                    return  # unmounted
                self._answer(request)
        except BaseException as error:
            self.failure = error
            raise

    def _answer(self, request: bytes) -> None:
        _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
        body = memoryview(request)[_HEADER.size :]
        if opcode in _SILENT:
            _SILENT[opcode](self, node, body)
            return
        handler = _HANDLERS.get(opcode)
        answer, code = b"", 0
        if handler is None:
            code = ENOSYS
        else:
            try:
                answer = handler(self, node, body)
            except OSError as error:
                code = error.errno or EPERM
        try:
            os.write(self._device, _ANSWER.pack(_ANSWER.size + len(answer), -code, unique) + answer)
        except OSError as error:
            if error.errno not in _GIVEN_UP:
                raise

    def _initialise(self, node: int, body: memoryview) -> bytes:
        _, _, read_ahead, offered = struct.unpack_from("<4I", body)
        flags = (_BIG_WRITES | (0 if self._flock is None else _FLOCK)) & offered
        limits = (12, 10, MAX_WRITE, 1, MAX_WRITE // _BLOCK, 0)
        return _INIT.pack(_MAJOR, _MINOR, read_ahead, flags, *limits, 0, 0, *[0] * 6)

    def _look_up(self, node: int, body: memoryview) -> bytes:
        return self._entry(self._volume.look_up(node, *_names(body)))

    def _entry(self, attr: Attr) -> bytes:
        self._known[attr.node] = self._known.get(attr.node, 0) + 1
        return _ENTRY.pack(attr.node, 0, 0, 0, 0, 0) + _attributes(attr)

    def _forget(self, node: int, body: memoryview) -> None:
        self._forget_one(node, *struct.unpack_from("<Q", body))

    def _forget_many(self, node: int, body: memoryview) -> None:
        (count,) = struct.unpack_from("<I", body)
        for number, times in struct.iter_unpack("<2Q", body[8 : 8 + 16 * count]):
            self._forget_one(number, times)

    def _forget_one(self, node: int, times: int) -> None:
        left = self._known.get(node, 0) - times
        if left > 0:
            self._known[node] = left
        elif self._known.pop(node, None) is not None:
            self._volume.forget(node)

    def _get_attributes(self, node: int, body: memoryview) -> bytes:
        return struct.pack("<Q2I", 0, 0, 0) + _attributes(self._volume.attributes(node))

    def _set_attributes(self, node: int, body: memoryview) -> bytes:
        valid, _, _, size = struct.unpack_from("<2I2Q", body)
        if valid & _SET_SIZE:
            self._volume.resize(node, size)
        return self._get_attributes(node, body)

    def _make_dir(self, node: int, body: memoryview) -> bytes:
        return self._entry(self._volume.make_dir(node, *_names(body[8:])))

    def _unlink(self, node: int, body: memoryview) -> bytes:
        self._volume.unlink(node, *_names(body))
        return b""

    def _remove_dir(self, node: int, body: memoryview) -> bytes:
        self._volume.remove_dir(node, *_names(body))
        return b""

    def _rename(self, node: int, body: memoryview) -> bytes:
        (target,) = struct.unpack_from("<Q", body)
        return self._renamed(node, target, body[8:])

    def _rename2(self, node: int, body: memoryview) -> bytes:
        target, flags = struct.unpack_from("<QI", body)
        if flags:
            raise OSError(ENOSYS, "no such rename")
        return self._renamed(node, target, body[16:])

    def _renamed(self, node: int, target: int, names: memoryview) -> bytes:
        old, new = _names(names)
        self._volume.rename(node, old, target, new)
        return b""

    def _open(self, node: int, body: memoryview) -> bytes:
        self._volume.attributes(node)
        return struct.pack("<Q2I", node, _DIRECT_IO if self._direct else 0, 0)

    def _open_dir(self, node: int, body: memoryview) -> bytes:
        return struct.pack("<Q2I", node, 0, 0)

    def _create(self, node: int, body: memoryview) -> bytes:
        attr = self._volume.create(node, *_names(body[16:]))
        return self._entry(attr) + self._open(attr.node, body)

    def _read(self, node: int, body: memoryview) -> bytes:
        _, offset, size, *_ = _TRANSFER.unpack_from(body)
        return self._volume.read(node, size, offset)

    def _write(self, node: int, body: memoryview) -> bytes:
        _, offset, size, *_ = _TRANSFER.unpack_from(body)
        data = bytes(body[_TRANSFER.size : _TRANSFER.size + size])
        return struct.pack("<2I", self._volume.write(node, data, offset), 0)

    def _sync(self, node: int, body: memoryview) -> bytes:
        self._volume.sync(node)
        return b""

    def _sync_dir(self, node: int, body: memoryview) -> bytes:
        self._volume.sync_dir(node)
        return b""

    def _allocate(self, node: int, body: memoryview) -> bytes:
        _, offset, length, mode, _ = struct.unpack_from("<3Q2I", body)
        if mode:
            raise OSError(ENOSYS, "no holes are punched here")
        self._volume.allocate(node, offset, length)
        return b""

    def _read_dir(self, node: int, body: memoryview) -> bytes:
        _, offset, size, *_ = _TRANSFER.unpack_from(body)
        out = bytearray()
        entries = [(".", Attr(node, True)), ("..", Attr(ROOT, True)), *self._volume.names(node)]
        for number, (name, attr) in enumerate(entries[offset:], offset + 1):
            raw = os.fsencode(name)
            entry = struct.pack("<2Q2I", attr.node, number, len(raw), 4 if attr.directory else 8) + raw
            entry += bytes(-len(entry) % 8)
            if len(out) + len(entry) > size:
                break
            out += entry
        return bytes(out)

    def _statistics(self, node: int, body: memoryview) -> bytes:
        return struct.pack("<5Q10I", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, _BLOCK, 255, _BLOCK, *[0] * 7)

    def _lock(self, node: int, body: memoryview) -> bytes:
        raise OSError(self._flock, "no locks here")

    def _nothing(self, node: int, body: memoryview) -> bytes:
        return b""

    def _ignored(self, node: int, body: memoryview) -> None:
        return


def _names(body: memoryview) -> list[str]:
    return [os.fsdecode(raw) for raw in bytes(body).rstrip(b"\0").split(b"\0")]


def _attributes(attr: Attr) -> bytes:
    mode = 0o040700 if attr.directory else 0o100600
    blocks = -(-attr.size // 512)
    return _ATTR.pack(attr.node, attr.size, blocks, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, _BLOCK, 0)


_SILENT: Final[dict[int, Callable[[Server, int, memoryview], None]]] = {
    2: Server._forget,
    36: Server._ignored,  # interrupt: every request is answered soon
    42: Server._forget_many,
}
_HANDLERS: Final[dict[int, Callable[[Server, int, memoryview], bytes]]] = {
    1: Server._look_up,
    3: Server._get_attributes,
    4: Server._set_attributes,
    9: Server._make_dir,
    10: Server._unlink,
    11: Server._remove_dir,
    12: Server._rename,
    14: Server._open,
    15: Server._read,
    16: Server._write,
    17: Server._statistics,
    18: Server._nothing,  # release
    20: Server._sync,
    25: Server._nothing,  # flush
    26: Server._initialise,
    27: Server._open_dir,
    28: Server._read_dir,
    29: Server._nothing,  # releasedir
    30: Server._sync_dir,
    32: Server._lock,
    33: Server._lock,
    34: Server._nothing,  # access
    35: Server._create,
    38: Server._nothing,  # destroy
    43: Server._allocate,
    45: Server._rename2,
}


@contextmanager
def served(volume: Volume, target: str, *, direct: bool = False, flock: int | None = None) -> Iterator[Server]:
    """Mount ``volume`` at the directory ``target`` for the length of the block."""
    server = Server(volume, target, direct=direct, flock=flock)
    try:
        yield server
    finally:
        server.stop()
    if server.failure is not None:
        raise RuntimeError("the FUSE server failed") from server.failure
