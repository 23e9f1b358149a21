"""Puts mutated stores on a disk, simulated or real, and holds what the engine makes of them against the verdict.

One store a mutation: what ``check`` finds, what a reader without the lock reads, whether an open for writing refuses
or recovers, what it reports and keeps aside, what every question is answered; then, ``deep``, the same recovery again,
appends, a clean close and another open. Everything that is wrong is an AssertionError that begins with the shape and
the mutation's name: ``hold(shape(S), NAME, SimBed(), deep=True)`` shows it again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from fuzz.model import Op, elements, observed_op, values
from fuzz.model_handles import scope_of
from fuzz.mutations import apply
from fuzz.shapes import ROOT, Files, Shape
from fuzz.simdisk import SimDisk
from fuzz.verdicts import BELOW, CORRUPT, FOREIGN, HEADER, LIVE, TORN, Fate, expect
from scopelog import CorruptLog, Finding, ForeignFile, ManualClock, Session, Store, ephemeral, list_of, value
from scopelog_engine.fs import FileSystem
from scopelog_engine.layout import LOCK_FILE
from scopelog_engine.store import Store as EngineStore

SAME: Final = "same"  # the mutation changes nothing
_WORD: Final = "appended by the rig"
_AFTER: Final = (list_of("n", "log"), value("n", "after"))


class Bed(Protocol):
    """Where mutated stores are put."""

    fs: FileSystem | None
    root: str

    def lay(self, files: Files) -> None: ...

    def image(self) -> Files: ...


class SimBed:
    """A simulated disk of its own for every store."""

    def __init__(self, preallocates: bool = False) -> None:
        self.root = ROOT
        self._preallocates = preallocates
        self.disk = SimDisk()
        self.fs: FileSystem | None = None

    def lay(self, files: Files) -> None:
        self.fs = self.disk = SimDisk(preallocates=self._preallocates)
        for path, data in files.items():
            self.disk.write_file(f"{ROOT}/{path}", data)

    def image(self) -> Files:
        found = self.disk.snapshot()
        return {path.removeprefix(f"{ROOT}/"): data for path, data in found.items() if not path.endswith(LOCK_FILE)}


class RealBed:
    """A directory, laid down anew for every store."""

    fs: FileSystem | None = None

    def __init__(self, path: Path) -> None:
        self.root = str(path)

    def lay(self, files: Files) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        for name, data in files.items():
            path = Path(self.root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def image(self) -> Files:
        root = Path(self.root)
        files = (path for path in root.rglob("*") if path.is_file() and path.name != LOCK_FILE)
        return {str(path.relative_to(root)): path.read_bytes() for path in files}


def hold(shape: Shape, name: str, bed: Bed, *, deep: bool = False) -> str:
    """Do the mutation, and hold everything against its verdict. Returns that of the damaged file, or SAME."""
    files = apply(shape, name)
    if files == shape.files:
        return SAME
    return hold_files(shape, name, files, bed, deep=deep)


def hold_files(shape: Shape, name: str, files: Files, bed: Bed, *, deep: bool = False) -> str:
    """The same for files that somebody else has made so; ``name`` says how, in a failure."""
    try:
        return _Case(shape, files, bed).run(deep)
    except Exception as error:
        raise AssertionError(f"{shape.name} {name}: {type(error).__name__}: {error}") from error


@contextmanager
def _opened(bed: Bed) -> Iterator[Store]:
    # Not by Store.open: the tests keep all that were opened so until their end, and here are a hundred thousand.
    store = Store(EngineStore.open(bed.root, fs=bed.fs, clock=ManualClock(), create=False))
    try:
        yield store
    finally:
        store.close(force=True)


def _full(bed: Bed, path: str) -> str:
    return os.path.join(bed.root, path)


def _must(holds: bool, error: Exception) -> None:
    """Of an error that was raised."""
    assert holds, f"{error!r}"


def _grave(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity != "note"]


class _Case:
    """One mutated store."""

    def __init__(self, shape: Shape, files: Files, bed: Bed) -> None:
        self.shape, self.files, self.bed = shape, files, bed
        self.expected = expect(shape, files)
        self.main = self.expected.main
        self.path = shape.main.path

    def run(self, deep: bool) -> str:
        stopped = self.expected.undecided and self._stopped()
        self.bed.lay(self.files)
        with _opened(self.bed) as store:
            self._check(store.check())
            self._read(store)
            assert self.bed.image() == self.files, "looking has changed something"
            if self.expected.refused or stopped:
                self._refuse(store)
                return self._word()
            with store.session(self.shape.session) as session:
                self._recovered(session)
                self._answers(session)
                after = self.bed.image()
                if deep:
                    self._append(session)
            if deep:
                self._open_again(store)
        if deep:
            self._recover_again(after)
        return self._word()

    def _word(self) -> str:
        """The verdict of the first file that has another one than LIVE."""
        words = [HEADER if one is None else one.verdict for one in (self.main, *self.expected.cars.values())]
        return next((word for word in words if word != LIVE), LIVE)

    # --- looking ----------------------------------------------------------------------------------

    def _check(self, findings: list[Finding]) -> None:
        """It names every damaged file, and no other; where, and of what kind."""
        found: dict[str, Finding] = {}
        for finding in _grave(findings):
            found.setdefault(os.path.relpath(finding.path, self.bed.root), finding)
        foreign = self._foreign()
        wanted = {path for path, one in ((self.path, self.main), *self.expected.cars.items()) if _bad(one)}
        assert {*found} == wanted | foreign, f"check finds {findings}, not {wanted | foreign}"
        for path, one in self.expected.cars.items():
            if path in foreign:
                assert (found[path].severity, found[path].reason) == ("corrupt", "foreign"), f"{found[path]}"
            elif path in wanted and one is not None:
                self._finding(found[path], one)
        if self.path in wanted:
            self._finding(found[self.path], self.main)

    def _foreign(self) -> set[str]:
        """Sidecars that name another store or session."""
        mine = self.shape.main.header
        return {
            path
            for path, one in self.expected.cars.items()
            if one is not None
            and ((one.log.header.store, one.log.header.session) != (mine.store, mine.session) or not one.log.scope)
        }

    @staticmethod
    def _finding(found: Finding, one: Fate) -> None:
        severity = "torn" if one.verdict == TORN else "corrupt"
        assert (found.severity, found.offset, found.sequence) == (severity, one.good, one.good_last), f"{found}"
        assert not one.reason or found.reason == one.reason, f"{found}: not {one.reason}"

    def _read(self, store: Store) -> None:
        """A reader without the lock sees whole frames up to where the chain ends, and never a wrong byte."""
        got: list[tuple[str, Op]] = []
        broken: CorruptLog | None = None
        try:
            with store.reader(self.shape.session) as reader:
                for record in reader.records():
                    got.append((record.scope or "", observed_op(record)))
        except (CorruptLog, ForeignFile) as error:
            if self.main.verdict in (HEADER, FOREIGN):
                _must(isinstance(error, CorruptLog) == (self.main.verdict == HEADER), error)
                return
            _must(isinstance(error, CorruptLog), error)
            broken = error if isinstance(error, CorruptLog) else None
        assert self.main.verdict not in (HEADER, FOREIGN), "a reader opened it"
        wanted = self.expected.ops
        fates = {"": self.main, **self.expected.alive}
        if self.expected.undecided:
            main = [pair for pair in got if pair[0] == ""]
            assert main == [("", op) for op in self.main.ops][: len(main)], f"read: {main}"
            assert [pair for pair in got if pair[0]] == [pair for pair in wanted if pair in got and pair[0]]
        elif broken is None:
            assert got == wanted, f"read {got}, not {wanted}"
            assert not any(one.verdict == BELOW for one in fates.values()), "damage was passed over"
        else:
            one = next(one for one in fates.values() if _full(self.bed, self._path_of(one)) == broken.path)
            assert one.end > one.good and broken.offset == one.good, f"{broken!r}"
            assert got == wanted[: len(got)], f"read {got}, not {wanted}"
            assert {pair[1].seq for pair in got} >= {op.seq for op in one.ops}, f"read {got} before {broken!r}"

    def _path_of(self, one: Fate) -> str:
        return self.path if one is self.main else next(p for p, car in self.expected.cars.items() if car is one)

    # --- opening ----------------------------------------------------------------------------------

    def _stopped(self) -> bool:
        """Whether damage in main hides which scopes are alive, so that it does not open: either is right."""
        self.bed.lay(self.files)
        try:
            with _opened(self.bed) as store:
                store.session(self.shape.session).close()
        except CorruptLog:
            return True
        return False

    def _refuse(self, store: Store) -> None:
        """A typed error that names file, offset and sequence; and no byte is changed."""
        try:
            store.session(self.shape.session).close(force=True)
        except CorruptLog as error:
            _must(
                error.path == _full(self.bed, self.path) and bool(error.cause and error.remedy and error.reason), error
            )
            if self.main.verdict == HEADER:
                _must((error.offset, error.sequence) == (0, 0), error)
            elif self.main.verdict == CORRUPT and self.main.last is not None:
                _must((error.offset, error.sequence) == (self.main.end, self.main.last.last), error)
                same_place = self.main.reason and self.main.end == self.main.good
                _must(not same_place or error.reason == self.main.reason, error)
            else:
                _must(self.main.verdict == BELOW, error)
        except ForeignFile:
            assert self.main.verdict == FOREIGN
        else:
            raise AssertionError(f"it opened, though it is {self.main.verdict}")
        assert self.bed.image() == self.files, "a refused open has changed something"

    def _recovered(self, session: Session) -> None:
        """Nothing is cut that is not kept; nothing is kept or swept but what must be; no number comes again."""
        report, wanted = session.recovery, self.expected
        if wanted.undecided:
            return
        assert report.clean == self.main.clean, f"{report}"
        torn = {os.path.relpath(tail.path, self.bed.root): tail for tail in report.torn}
        assert {*torn} == {*wanted.torn} and len(torn) == len(report.torn), f"{report.torn}, not {wanted.torn}"
        image = self.bed.image()
        for path, tail in torn.items():
            one = wanted.torn[path]
            assert one.last is not None
            assert (tail.offset, tail.length) == (one.end, one.length - one.end), f"{tail}"
            assert (tail.after, tail.corrupt) == (one.last.last, one.verdict == CORRUPT), f"{tail}"
            assert image[os.path.relpath(tail.kept, self.bed.root)] == self.files[path][one.end :], f"{tail}"
            assert path in wanted.swept or image[path] == self.files[path][: one.end], f"{path} was not cut"
        aside = {os.path.relpath(one.path, self.bed.root): one for one in report.set_aside}
        assert {*aside} == wanted.aside, f"{report.set_aside}, not {wanted.aside}"
        for path, one_ in aside.items():
            assert image[os.path.relpath(one_.kept, self.bed.root)] == self.files[path] and one_.reason
        assert {os.path.relpath(path, self.bed.root) for path in report.swept} == wanted.swept, f"{report.swept}"
        assert report.unreadable == []
        assert session.epoch > wanted.epoch and int(session.stats()["sequence"]) >= wanted.high
        assert session.scopes() == sorted(wanted.alive), f"{session.scopes()}, not {[*wanted.alive]}"

    def _answers(self, session: Session) -> None:
        """All lists and values, of all scopes. Where damage below is met, an error that names it."""
        fates = {"": self.main, **self.expected.alive}
        for scope in {log.scope for log in self.shape.known}:
            one = fates.get(scope)
            ops = one.all_ops if one is not None else ()
            for namespace, key, kind in sorted({op.address for log in self.shape.known for op in log.ops}):
                if self.expected.undecided and scope:
                    continue
                try:
                    self._answer(session, scope, [*ops], namespace, key, kind)
                except CorruptLog as error:
                    _must(one is not None and one.verdict == BELOW and one.good <= error.offset < one.end, error)
                    _must(one is not None and error.path == _full(self.bed, self._path_of(one)), error)

    @staticmethod
    def _answer(session: Session, scope: str, ops: list[Op], namespace: str, key: str, kind: str) -> None:
        where = scope_of(scope)
        if kind == "list":
            got = session.read(where.list_of(namespace, key))
            wanted = elements(ops, namespace, key)
            assert [(e.seq, e.element, e.tag) for e in got] == [(o.seq, o.spec.value, o.spec.tag) for o in wanted]
        elif key:
            held: dict[str, Any] = {entry.key: entry.value for entry in values(ops, namespace)}
            assert session.get(where.value(namespace, key), "none") == held.get(key, "none"), f"{scope} {key}"

    # --- going on ---------------------------------------------------------------------------------

    def _append(self, session: Session) -> None:
        """Main and every scope take more."""
        used = max([self.expected.high, int(session.stats()["sequence"])])
        assert session.commit([_AFTER[0].append(_WORD), _AFTER[1].set(_WORD)]).first > used
        for scope in session.scopes():
            session.commit([ephemeral(scope).list_of("n", "log").append(_WORD)])

    def _open_again(self, store: Store) -> None:
        """The clean close left nothing to do; what was read before and what was added since is all there."""
        fates = {"": self.main, **self.expected.alive}
        below = any(one.verdict == BELOW for one in fates.values()) or self.expected.undecided
        with store.session(self.shape.session) as session:
            assert session.recovery.clean and not session.recovery.torn and not session.recovery.set_aside
            for scope in session.scopes():
                last = session.read(scope_of(scope).list_of("n", "log"), order="desc", limit=1)
                assert [element.element for element in last] == [_WORD], f"{scope}: {last}"
            assert session.get(_AFTER[1]) == _WORD
            if not below:
                with store.reader(self.shape.session) as reader:
                    got = [(record.scope or "", observed_op(record)) for record in reader.records()]
                assert [pair for pair in got if pair[1].spec.value != _WORD] == self.expected.ops, f"{got}"
                assert len(got) == len(self.expected.ops) + 2 + len(session.scopes())
        if not below:
            assert _grave(store.check(deep=True)) == []

    def _recover_again(self, after: Files) -> None:
        """From the same damage, with what a recovery has kept aside already there; and from what it has left."""
        for files in ({**after, **{path: self.files[path] for path in self.expected.torn}}, after):
            self.bed.lay(files)
            with _opened(self.bed) as store, store.session(self.shape.session):
                again = self.bed.image()
            assert again == after, f"recovered again: {[p for p in {*again, *after} if again.get(p) != after.get(p)]}"


def _bad(one: Fate | None) -> bool:
    return one is None or one.verdict != LIVE
