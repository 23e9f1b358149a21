"""Pristine stores of several shapes, with everything that is known of them: frames, records, older images, kin.

A store is written by the engine on a simulated disk, the same bytes in every run. What each log holds is noted as it
is acknowledged, not read back. :func:`shape` builds one by name (SHAPES); :mod:`fuzz.mutations` damages it, and
:mod:`fuzz.verdicts` says what must become of it then. Assumes that the writer is right while nothing is damaged, and
that the clock stands still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from random import Random
from typing import Any, Final, cast
from unittest.mock import patch

from fuzz.model import Op, Spec, observed_op
from fuzz.model_handles import scope_of
from fuzz.simdisk import SimDisk
from scopelog import Durability, Json, ManualClock, Session, Store
from scopelog_engine.frame import Frame, parse_frame
from scopelog_engine.header import KIND_STORE, Header, encode_header, new_header, parse_header
from scopelog_engine.layout import MAIN_FILE, STORE_FILE, scope_file_name, session_dir_name

ROOT: Final = "/store"
CHAT: Final = "chat"
POWER, PROCESS = Durability.POWER, Durability.PROCESS
Files = dict[str, bytes]
"""Path inside the store, and content. Lock files are left out."""


def frames_of(data: bytes) -> list[Frame]:
    """The frames of a sound log, from its header to its end or its cover."""
    frames: list[Frame] = []
    while isinstance(found := parse_frame(data, frames[-1].end if frames else 0, 0, None), Frame):
        frames.append(found)
    return frames


@dataclass(frozen=True)
class Log:
    """A log as it was written. ``ops``: what its frames hold, in order; ``scope``: "" for main."""

    path: str
    data: bytes
    header: Header
    frames: list[Frame]
    ops: list[Op]

    @property
    def end(self) -> int:
        """Where the last frame ends; a cover may follow."""
        return self.frames[-1].end

    @property
    def scope(self) -> str:
        return self.header.scope


def log_of(path: str, data: bytes, ops: list[Op]) -> Log:
    """A log from its bytes and what was written to it, of which compaction may have dropped some."""
    frames = frames_of(data)
    first, last = frames[0].last, frames[-1].last
    held = [op for op in ops if first < op.seq <= last]
    return Log(path, data, parse_header(data, path)[0], frames, held)


@dataclass
class Shape:
    """A store with one session. ``logs``: by path; ``gone``: logs of lives whose files were removed; ``images``: files
    of older moments by name, and ``old``: their logs; ``kin``: stores that were alike, and are not this one."""

    name: str
    session: str
    files: Files
    logs: dict[str, Log]
    gone: list[Log] = field(default_factory=list)
    images: dict[str, Files] = field(default_factory=dict)
    old: list[Log] = field(default_factory=list)
    kin: dict[str, Shape] = field(default_factory=dict)

    @property
    def directory(self) -> str:
        return session_dir_name(self.session)

    @property
    def main(self) -> Log:
        return self.logs[f"{self.directory}/{MAIN_FILE}"]

    @property
    def sidecars(self) -> list[Log]:
        return [log for log in self.logs.values() if log.scope]

    @cached_property
    def known(self) -> list[Log]:
        """Every log that bytes of a mutation may be of."""
        own = [*self.logs.values(), *self.gone, *self.old]
        return own + [log for kin in self.kin.values() for log in kin.known]

    def path(self, name: str) -> str:
        """The path of a file by its name in the session's directory, or of the store's own file."""
        return name if name == STORE_FILE else f"{self.directory}/{name}"

    def short(self, path: str) -> str:
        return path.removeprefix(f"{self.directory}/")


# --- writing one ----------------------------------------------------------------------------------


def add(key: str, value: Json, tag: str | None = None) -> Spec:
    return Spec("append", key=key, kind="list", value=value, tag=tag)


def put(key: str, value: Json) -> Spec:
    return Spec("set", key=key, value=value)


def drop(key: str, kind: str = "value") -> Spec:
    return Spec("delete", key=key, kind=kind)


def trim(key: str, number: int) -> Spec:
    return Spec("trim", key=key, kind="list", number=number)


def retire(scope: str) -> Spec:
    return Spec("retire", retired=scope)


class Maker:
    """Writes a store and notes what each file was given. ``way``: 0 the history, 1 another from :meth:`fork` on, 2 one
    with a :meth:`detour`."""

    def __init__(
        self,
        session: str = CHAT,
        *,
        identity: int = 0x5EED,
        way: int = 0,
        level: Durability = POWER,
        scope_level: Durability = PROCESS,
        preallocates: bool = False,
        stretch: int = 0,
    ) -> None:
        self.disk = SimDisk(preallocates=preallocates)
        own, _ = encode_header(new_header(KIND_STORE, f"{identity:032x}"), epoch=0, sequence=0)
        self.disk.write_file(f"{ROOT}/{STORE_FILE}", own)
        self.stretch = stretch
        self._way, self._forked = way, False
        self._id = session
        self._directory = session_dir_name(session)
        self._store = Store.open(
            ROOT, fs=self.disk, clock=ManualClock(), durability=level, scope_durability=scope_level, window_ms=1000
        )
        self._session: Session | None = self._store.session(session)
        self._ops: dict[str, list[Op]] = {}  # by path
        self._paths: dict[str, str] = {"": f"{self._directory}/{MAIN_FILE}"}  # of living scopes
        self._gone: list[Log] = []
        self._images: dict[str, Files] = {}
        self._old: list[Log] = []

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    def fork(self) -> None:
        """From here on the two histories differ, to the byte as long."""
        self._forked = True

    def word(self, text: str) -> str:
        """The text, in the other history another one."""
        return text if not self._forked or self._way != 1 else text[::-1].swapcase()

    def detour(self) -> None:
        """In one history scopes begin later from here on."""
        if self._way == 2:
            self.commit("", add("log", "a detour"))

    def commit(self, scope: str, *specs: Spec, level: Durability | None = None) -> None:
        ending = {spec.retired for spec in specs if spec.op == "retire"} & {*self._paths}
        before = self.files()
        writes = [spec.public(scope_of(scope), None) for spec in specs]
        receipt = self.session.commit(cast("Any", writes), durability=level)
        for number, spec in enumerate(specs):
            self._note(scope, receipt.first + number, spec)
        for scope_id in ending:
            path = self._paths.pop(scope_id)
            self._gone.append(log_of(path, before[path], self._ops[path]))

    def stage(self, scope: str, *specs: Spec) -> None:
        for spec in specs:
            address = scope_of(scope).list_of(spec.namespace, spec.key)
            self._note(scope, self.session.append(address, spec.value, spec.tag), spec)

    def _note(self, scope: str, seq: int, spec: Spec) -> None:
        path = self._paths.setdefault(scope, f"{self._directory}/{scope_file_name(seq)}")
        self._ops.setdefault(path, []).append(Op(seq, spec))

    def flush(self, level: Durability | None = None) -> None:
        self.session.flush(level)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def reopen(self) -> None:
        self.close()
        self._session = self._store.session(self._id)

    def compact(self, scope: str = "") -> None:
        """What is left of it is told by the log itself; what it must hold is told by the model."""
        self.session.compact(scope_of(scope))
        with self._store.reader(self._id) as reader:
            kept = {record.seq for record in reader.records() if (record.scope or "") == scope}
        path = self._paths[scope]
        self._ops[path] = [op for op in self._ops[path] if op.seq in kept]

    def files(self) -> Files:
        found = self.disk.snapshot()
        return {path.removeprefix(f"{ROOT}/"): data for path, data in found.items() if not path.endswith("LOCK")}

    def _logs(self, files: Files) -> dict[str, Log]:
        return {path: log_of(path, files[path], self._ops[path]) for path in files if path != STORE_FILE}

    def keep(self, name: str) -> None:
        """A backup of this moment."""
        self._images[name] = self.files()
        self._old += self._logs(self._images[name]).values()

    def shape(self, name: str) -> Shape:
        """What it has become; the writer is left as if killed, unless it was closed."""
        files = self.files()
        with self._store.reader(self._id) as reader:  # the notes are right
            read = [(record.scope or "", observed_op(record)) for record in reader.records()]
        living = {path for path in self._paths.values() if path in files}
        logs = self._logs(files)
        noted = [(log.scope, op) for path, log in logs.items() if path in living for op in log.ops]
        assert sorted(read, key=lambda pair: pair[1].seq) == sorted(noted, key=lambda pair: pair[1].seq), name
        self.close()
        self._store.close()
        return Shape(name, self._id, files, logs, self._gone, self._images, self._old)


# --- the shapes -----------------------------------------------------------------------------------

Script = Callable[[Maker], None]


def _talk(m: Maker) -> None:
    """A few commits, a scope, a window."""
    m.commit("", add("log", {"role": "user", "text": "hello"}), put("title", "a title"))
    m.detour()
    m.commit("op-1", put("state", {"step": 1}), add("log", "d0"))
    m.commit("", add("log", {"role": "assistant", "text": "good morning"}, "answer"))
    m.keep("early")
    m.fork()
    m.commit("op-1", add("log", m.word("d-one")), add("log", "d-two", "tagged"))
    m.commit("", put("title", m.word("another title")), drop("title"), put("title", "a third"))
    m.stage("op-1", add("log", m.word("d-three")))
    m.stage("", add("log", ["the", m.word("last")]), add("log", None))
    m.flush()


def _closed(m: Maker) -> None:
    _talk(m)
    m.keep("before")
    m.reopen()
    m.commit("op-1", add("log", 2**70), level=POWER)
    m.commit("", trim("log", 1), add("log", m.word("in a second epoch")))
    m.close()


def _process(m: Maker) -> None:
    """Several frames that no mark covers, in both logs."""
    _talk(m)
    m.flush(POWER)
    for number in range(4):
        m.commit("", add("log", [number, m.word("not synced")]))
        m.commit("op-1", add("log", [number, m.word("nor is this")]))


def _lives(m: Maker) -> None:
    """Scopes alive, retired, and begun anew under the same id; one whose file outlived its retirement."""
    m.commit("", add("log", "one"), level=POWER)
    m.detour()
    for scope in ("op-1", "op-2", "op-3"):
        m.commit(scope, add("log", f"first of {scope}"), put("state", 1))
    m.keep("early")
    m.fork()
    m.commit("", add("log", m.word("two")), retire("op-1"), level=POWER)
    m.commit("op-1", add("log", m.word("a second life")))
    m.commit("op-2", add("log", m.word("more of op-2")), level=POWER)
    m.keep("middle")
    m.reopen()
    m.commit("", add("log", m.word("three")), level=POWER)
    m.commit("op-4", add("log", "late"), level=POWER)
    m.commit("op-1", add("log", m.word("in the second epoch")))
    m.commit("", retire("op-3"))  # not synced: its file stays for now
    m.commit("op-3", add("log", "after a retirement that may be lost"))
    m.stage("", add("log", m.word("the last")))
    m.flush()


def _compacted(m: Maker) -> None:
    """Twice, with scopes alive before and between; one of them compacted, too."""
    m.commit("dead", add("log", "of no use"))
    m.commit("op-1", *(add("log", number) for number in range(5)))
    for number in range(5):
        m.commit("", put("title", f"title {number}"), add("log", f"text {number}"))
    m.commit("", retire("dead"), trim("log", 10))
    m.keep("generation 0")
    m.compact()
    m.commit("op-2", add("log", "between"))
    m.commit("", put("title", "a last title"), add("log", "kept"))
    m.keep("generation 1")
    m.commit("op-1", trim("log", 4))
    m.compact("op-1")
    m.compact()
    m.fork()
    m.commit("", add("log", m.word("after")), put("state", 1))
    m.commit("op-1", add("log", m.word("after")))
    m.reopen()
    m.commit("", add("log", m.word("in a new epoch")))
    m.commit("op-2", add("log", m.word("as well")), level=POWER)
    m.commit("", add("log", m.word("the last")))


def _stretches(m: Maker) -> None:
    """Some ten index frames; two lists and some values that not every stretch has."""
    random = Random(3)
    m.commit("", put("old", "set once"), add("rare", 0))
    for number in range(48):
        if number == 24:
            m.keep("half")
            m.reopen()
        specs = [add("log", [number, random.randbytes(m.stretch // 20).hex()])]
        if number % 7 == 3:
            specs.append(put(f"v{number % 3}", number))
        if number % 17 == 16:
            specs += [add("rare", number), drop("v1")]
        m.commit("", *specs, level=PROCESS if number % 3 else POWER)


def _stretches_lives(m: Maker) -> None:
    """Index frames in main and in a sidecar, and retirements among them."""
    random = Random(4)
    for number in range(30):
        if number % 8 == 2:
            m.commit(f"op-{number}", add("log", "short"))
        m.commit("op", add("log", [number, random.randbytes(m.stretch // 20).hex()]), level=POWER)
        specs = [add("log", [number, random.randbytes(m.stretch // 20).hex()])]
        if number % 8 == 4:
            specs.append(retire(f"op-{number - 2}"))
        m.commit("", *specs)
    m.close()


class _Recipe:
    def __init__(
        self, script: Script, kin: tuple[str, ...] = ("store", "session", "fork", "detour"), **options: Any
    ) -> None:
        self.script, self.kin, self.options = script, kin, options

    def make(self, name: str, session: str = CHAT, **more: Any) -> Shape:
        maker = Maker(session, **self.options, **more)
        with _stretches_of(maker.stretch):
            self.script(maker)
            return maker.shape(name)


@contextmanager
def _stretches_of(length: int) -> Iterator[None]:
    """Write stretches of so many bytes, 0 for the engine's own; readers go by what stands in the log."""
    if not length:
        yield
        return
    with patch.multiple("scopelog_engine.logfile", STRETCH_BYTES=length, CLOSE_INDEX_BYTES=length // 4):
        yield


SHAPES: Final = {
    "talk": _Recipe(_talk),
    "closed": _Recipe(_closed, scope_level=POWER),
    "reserved": _Recipe(_talk, preallocates=True),
    "process": _Recipe(_process, level=PROCESS),
    "lives": _Recipe(_lives, level=PROCESS),
    "compacted": _Recipe(_compacted, ("store", "session", "fork")),
    "stretches": _Recipe(_stretches, ("store", "session"), level=PROCESS, stretch=500),
    "stretches-lives": _Recipe(_stretches_lives, ("store", "session"), stretch=500),
    "long": _Recipe(_stretches, ("store",), level=PROCESS, stretch=64 * 1024),
}
KIN: Final[dict[str, dict[str, Any]]] = {
    "store": {"identity": 0xFACE},
    "session": {"session": "char"},
    "fork": {"way": 1},
    "detour": {"way": 2},
}


@cache
def shape(name: str) -> Shape:
    """The pristine store of that name, with its kin. Not to be changed."""
    recipe = SHAPES[name]
    made = recipe.make(name)
    for kin in recipe.kin:
        made.kin[kin] = recipe.make(f"{name}.{kin}", **KIN[kin])
    return made


def live(name: str) -> Maker:
    """The writer of that store, with its session open, at the moment that :func:`shape` shows."""
    recipe = SHAPES[name]
    maker = Maker(**recipe.options)
    with _stretches_of(maker.stretch):
        recipe.script(maker)
    return maker
