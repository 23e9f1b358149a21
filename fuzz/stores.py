"""Small stores to damage: those of released formats, and some that are made here, the same bytes every time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from fuzz.model_handles import PATH, random_identities, steady_identities
from fuzz.simdisk import SimDisk
from scopelog import Durability, ManualClock, Store, ephemeral, list_of, value
from scopelog_engine.header import parse_header
from scopelog_engine.layout import LOCK_FILE, SCOPE_SUFFIX, session_dir_name

SID: Final = "s"
MAIN: Final = f"{session_dir_name(SID)}/main.zst"
GOLDEN: Final = Path(__file__).resolve().parents[1] / "tests" / "golden"
SHORT_STRETCHES: Final = {"logfile": {"STRETCH_BYTES": 500, "CLOSE_INDEX_BYTES": 150, "PREALLOCATE_BYTES": 700}}


class Image(NamedTuple):
    """A store's files, by their paths inside it. ``session``: the session that is looked at."""

    name: str
    session: str
    files: dict[str, bytes]

    @property
    def logs(self) -> list[str]:
        """Main and the sidecars of the session."""
        inside = session_dir_name(self.session) + "/"
        return sorted(name for name in self.files if name.startswith(inside) and name.endswith(".zst"))

    @property
    def sidecars(self) -> list[str]:
        return [name for name in self.logs if name.endswith(SCOPE_SUFFIX)]


@contextmanager
def smaller(constants: dict[str, dict[str, int]]) -> Iterator[None]:
    """Constants of the engine's modules, smaller for a while: short logs then use all of it."""
    kept: list[tuple[ModuleType, str, int]] = []
    for module, numbers in constants.items():
        where = importlib.import_module(f"scopelog_engine.{module}")
        for name, number in numbers.items():
            kept.append((where, name, getattr(where, name)))
            setattr(where, name, number)
    try:
        yield
    finally:
        for where, name, number in kept:
            setattr(where, name, number)


def lay(image: Image) -> SimDisk:
    """The files, durable, on a simulated disk."""
    disk = SimDisk(preallocates=False)
    for name, data in image.files.items():
        disk.write_file(f"{PATH}/{name}", data)
    return disk


def files_of(disk: SimDisk) -> dict[str, bytes]:
    """Every file of the store but the locks, which name their owner's epoch."""
    found = {path[len(PATH) + 1 :]: data for path, data in disk.snapshot().items()}
    return {name: data for name, data in found.items() if not name.endswith("/" + LOCK_FILE)}


@lru_cache(maxsize=1)
def images() -> tuple[Image, ...]:
    made = [
        _made("killed"),
        _made("closed"),
        _made("long"),
        _made("long, preallocated"),
        _made("compacted"),
        _made("twice"),
    ]
    return (*made, *golden())


def golden() -> list[Image]:
    """A store of every released format, an image for each of its sessions."""
    found = []
    for path in sorted(GOLDEN.iterdir()):
        files = {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
        for name in sorted(file for file in files if file.endswith("/main.zst")):
            session = parse_header(files[name][: 16 * 1024], name)[0].session
            found.append(Image(f"{path.name}, {session}", session, files))
    return found


def _made(name: str) -> Image:
    steady_identities()
    try:
        with smaller(SHORT_STRETCHES):
            disk = SimDisk(preallocates="preallocated" in name)
            store = Store.open(PATH, fs=disk, clock=ManualClock(), durability=Durability.POWER)
            session = store.session(SID)
            state, chat = value("n", "state"), list_of("n", "chat")
            for number in range(24 if "long" in name else 5):
                scope = ephemeral(f"op-{number % 3}")
                text = "é\ud800 " + "word " * (number % 7)
                session.commit([chat.append({"n": number, "text": text}), state.set(number)])
                session.commit([scope.value("n", "step").set(number), scope.list_of("n", "out").append("x" * number)])
                if number % 10 == 4:
                    session.commit([scope.retire(), chat.trim(number)])
                session.append(chat, "staged", "tag" if number % 2 else None)
                session.flush(Durability.PROCESS if number % 3 else Durability.POWER)
            if name == "compacted":
                session.compact()
                session.commit([state.set("behind")])
            if name == "twice":
                store = Store.open(PATH, fs=(disk := disk.kill()), clock=ManualClock())
                session = store.session(SID)
                session.commit([state.set("again"), ephemeral("op-1").retire()])
                session.commit([ephemeral("op-1").value("n", "step").set("of the next life")])
            if name == "closed":
                session.close()
            files = files_of(disk.kill())
            return Image(name, SID, files)
    finally:
        random_identities()
