"""Salvages mutated stores and holds what comes out against the pristine bytes.

Every frame that stands where it stood, byte for byte, must come along with all that it holds; whatever else comes along
must have been written once, with that sequence; what is missing must be told, unless the file ends where a frame ends.
Names may be missing, and are never wrong. Every new session is checked and read by the engine like any other. A failure
begins with the shape and the mutation's name: ``Salvaging(shape(S), SimBed()).hold(NAME)`` shows it again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from fuzz.mutation_rig import SAME, Bed
from fuzz.mutations import apply
from fuzz.shapes import Files, Log, Shape
from scopelog import CorruptLog, ForeignFile, LogRecord, ManualClock, NoSuchSession, Salvaged, Store
from scopelog_engine.layout import KIND_BATCH, KIND_HEADER, KIND_INDEX, UNNAMED
from scopelog_engine.store import Store as EngineStore

NEW: Final = "salvaged"
REFUSED: Final = "refused"
DONE: Final = "salvaged"
REMOVALS: Final = ("trim", "delete", "retire")


@contextmanager
def _opened(bed: Bed) -> Iterator[Store]:
    store = Store(EngineStore.open(bed.root, fs=bed.fs, clock=ManualClock(), create=False))
    try:
        yield store
    finally:
        store.close(force=True)


class Salvaging:
    """One shape. ``known``: what its pristine logs, older moments and kin hold, by scope and sequence."""

    def __init__(self, shape: Shape, bed: Bed) -> None:
        self.shape, self.bed = shape, bed
        bed.lay(shape.files)
        with _opened(bed) as store, store.reader(shape.session) as reader:
            self.records = {(record.scope, record.seq): record for record in reader.records()}
        self._indexes = [f for f in shape.main.frames if f.kind in (KIND_HEADER, KIND_INDEX)]
        self.written: dict[tuple[str, int], list[tuple[object, ...]]] = {}
        for log in shape.known:
            for op in log.ops:
                spec = op.spec
                name = ("", "") if spec.op == "retire" else (spec.namespace, spec.key)
                self.written.setdefault((log.scope, op.seq), []).append((spec.op, *name, spec.value, spec.tag))

    def hold(self, name: str, *, own: bool = True) -> str:
        """Salvage the mutated store. ``own``: all of its bytes are this store's own."""
        files = apply(self.shape, name)
        if files == self.shape.files:
            return SAME
        try:
            return self._hold(files, own)
        except Exception as error:
            raise AssertionError(f"{self.shape.name} {name}: {type(error).__name__}: {error}") from error

    def _hold(self, files: Files, own: bool) -> str:
        self.bed.lay(files)
        with _opened(self.bed) as store, self._stretches():
            try:
                report = store.salvage(self.shape.session, NEW)
            except (CorruptLog, ForeignFile, NoSuchSession):
                # Of main nothing stands, or it is not main at all.
                assert not own or not self._stand(self.shape.main, files), "there is something to salvage"
                return REFUSED
            assert not [finding for finding in store.check(NEW, deep=True) if finding.severity != "note"]
            with store.reader(NEW) as reader:
                found = [*reader.records()]
            with store.session(NEW) as session:
                assert not session.recovery
                assert session.stats()["sequence"] >= max((record.seq for record in found), default=0)
        after = self.bed.image()
        assert {path: after[path] for path in files} == files, "the source has changed"
        self._right(report, found, own)
        if own:
            self._complete(report, found, files)
        return DONE

    def _stretches(self) -> contextlib.AbstractContextManager[object]:
        """Stretches of some shapes are shorter than any release makes them; salvage must know, for what it concludes
        from their length."""
        lengths = [b.offset - a.end for a, b in itertools.pairwise(self._indexes)]
        if not lengths:
            return contextlib.nullcontext()
        return patch.multiple("scopelog_engine.rescue", STRETCH_BYTES=min(lengths), CLOSE_INDEX_BYTES=min(lengths))

    def _right(self, report: Salvaged, found: list[LogRecord], own: bool) -> None:
        assert len({(record.scope, record.seq) for record in found}) == len(found)
        renamed = {log.scope for log in report.logs if log.scope.startswith("salvaged-")}
        gaps = [(gap.after, gap.before or 1 << 53) for gap in report.missing]
        for record in found:
            written = self.records.get((record.scope, record.seq))
            if own and written is not None and record._replace(time=0) == written._replace(time=0):
                assert record.time == written.time or any(gap.offset == 0 for gap in report.missing)
                continue
            scopes = {record.scope or ""} if record.scope not in renamed else {scope for scope, _ in self.written}
            once = [one for scope in scopes for one in self.written.get((scope, record.seq), [])]
            again = record.op in REMOVALS and any(after < record.seq < before for after, before in gaps)
            name = (record.namespace or "", record.key or "")
            same = [one for one in once if (record.op, record.value, record.tag) == (one[0], *one[3:])]
            named = [one for one in same if one[1:3] == name or record.namespace == UNNAMED]
            assert again or named, f"never written{' under this name' if same else ''}: {record}"
            assert again or not own or record.namespace == UNNAMED or record.scope in renamed, f"another's: {record}"

    def _complete(self, report: Salvaged, found: list[LogRecord], files: Files) -> None:
        got = {(record.scope, record.seq) for record in found}
        for log in self.shape.logs.values():
            name = os.path.basename(log.path)
            told = [one for one in report.logs if os.path.basename(one.path) == name]
            if any(one.left_out for one in told) or log.path not in files:
                continue
            scope = told[0].scope if told and log.scope else None
            mine = [record.seq for record in self.records.values() if (record.scope or "") == log.scope]
            for first, last in self._stand(log, files):
                nameless = (gap for gap in report.missing if gap.reason == "names")
                names = any(gap.after < last and first < gap.before for gap in nameless)
                lacking = [seq for seq in mine if first <= seq <= last and (scope, seq) not in got]
                assert names or not lacking, f"{lacking} of {name} verify, and did not come along"
            if any(frame.end == len(files[log.path]) for frame in log.frames):
                continue  # nothing shows that more followed
            for seq in mine:
                assert (scope, seq) in got or self._told(report, name, seq), f"{seq} of {name} is missing, untold"

    @staticmethod
    def _told(report: Salvaged, name: str, sequence: int) -> bool:
        logs = [log for log in report.logs if os.path.basename(log.path) == name]
        if not logs or any(log.left_out or log.scope.startswith("salvaged-") for log in logs):
            return True
        gaps = [gap for gap in report.missing if os.path.basename(gap.path) == name]
        return any(gap.after < sequence and (not gap.before or sequence < gap.before) for gap in gaps)

    @staticmethod
    def _stand(log: Log, files: Files) -> list[tuple[int, int]]:
        """Sequences of the batch frames that stand where they stood."""
        data = files.get(log.path, b"")
        return [
            (frame.first, frame.last)
            for frame in log.frames
            if frame.kind == KIND_BATCH and data[frame.offset : frame.end] == log.data[frame.offset : frame.end]
        ]
