"""What the index and the logs of a rig go through: checkpoints, trouble, copies, backups, and no index at all."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from string import ascii_letters
from typing import Any

from fuzz.model import SESSION_ID, ModelSession, Spec
from fuzz.model_handles import POWER, SCOPES, Settings
from scopelog import SESSION, CorruptLog, Store
from scopelog_engine.layout import MAIN_FILE, session_dir_name
from tests.views_answers import BESIDE, WRITER, Answering, Question, Stored, appends, remote, write_to_main
from tests.views_index import Trouble, copy_tree, remove
from tests.views_worker import Worker


class ViewRig(Answering):
    """The whole rig. ``foreign``: another store with sessions of the same names, made when it is wanted."""

    def __init__(self, settings: Settings, path: Path, random: Random, *, background: bool = False) -> None:
        super().__init__(settings, path, random, background=background)
        self.backup: tuple[Path, dict[str, ModelSession]] | None = None
        self.foreign = path.with_name("foreign")
        self.trouble = Trouble(path, self.foreign, random)

    # --- the index ------------------------------------------------------------------------------------

    def checkpoint(self, where: str, sid: str, how: str) -> None:
        """Extend a session's tree, or make it anew: by its writer, or as a process beside it may."""
        if self.random.random() < 0.8:
            self.flush(sid, POWER)  # a cover ends where what is durable ends
        if where == WRITER:
            remote(self.sessions[sid]).of_host("checkpoint", how)
        elif self.stored(self.models[sid]) is not None:
            with self.store_at(where).reader(sid) as reader:
                remote(reader).of_host("checkpoint", how)

    def befall(self, kind: str) -> None:
        """Something happens to the index's files, but not while LMDB has them open."""
        self.workers[WRITER].host.settle()
        if kind.startswith("foreign") and not self.foreign.exists():
            self._make_foreign()
        self.trouble.happen(kind)

    def _make_foreign(self) -> None:
        """Another store with sessions of the same names, and an index."""
        store = self._open(BESIDE, self.foreign)
        for sid in ("s", "Other/ß"):
            with store.session(sid) as session:
                for number in range(4):
                    write_to_main(
                        session, [Spec("set", "n", "a", "value", "foreign"), *appends("foreign", 12 + number)]
                    )
                remote(session).of_host("checkpoint", "rebuild")
        store.close()

    def verify_without_index(self) -> None:
        """Every answer is the same when the index is out of the way (I5): asked by a process that knows none of it."""
        self.workers[WRITER].host.settle()
        wanted = [
            (sid, self.questions(scope, stored.get(scope, [])))
            for sid, model in self.models.items()
            if (stored := self.stored(model)) is not None
            for scope in SCOPES
        ]
        found = self._answers(wanted)
        with self._index_away():
            assert [*map(_comparable, self._answers(wanted))] == [*map(_comparable, found)]

    @contextmanager
    def _index_away(self) -> Iterator[None]:
        """The very files come back: they are vouched for by their inode."""
        index, aside = self.trouble.index, self.path.with_name("out-of-the-way")
        there = index.exists()
        if there:
            index.rename(aside)
        yield
        if there:
            remove(index)
            aside.rename(index)

    def _answers(self, wanted: Sequence[tuple[str, Sequence[Question]]], *, whole: bool = True) -> list[Any]:
        """What a process of its own says, errors by what they say; with ``whole`` also of what is not asked for."""
        worker = self.workers["fresh"] = Worker("fresh", self.random)
        try:
            store = self._open("fresh", self.path, create=False)
            found: list[Any] = [store.sessions(), list(store.catalogue()) if whole else None]
            for sid, questions in wanted:
                asked = [question[:3] for question in questions]
                if whole:
                    asked += [("info", (), {}), ("scopes", (), {}), ("records", (), {})]
                with store.reader(sid) as reader:
                    found += remote(reader).outcomes(asked)
            store.close()
            self.asked += worker.host.asked()
            return found
        finally:
            del self.workers["fresh"]
            worker.end()

    def verify_damaged(self, sid: str) -> None:
        """A bit of the main log rots for a while: no answer is wrong, and none fails that is had without an index.

        With one, there may be more answers: it need not read all that lies in between.
        """
        stored = self.stored(self.models[sid])
        if stored is None:
            return
        self.workers[WRITER].host.settle()
        main = self.path / session_dir_name(sid) / MAIN_FILE
        last = Question("durable_seq", (SESSION,), {}, max((op.seq for op in stored[SESSION_ID]), default=0))
        questions = [last, *(q for scope in SCOPES for q in self.questions(scope, stored.get(scope, [])))]
        with self.store_at(WRITER).reader(sid) as reader:
            end = reader.stats()["main_bytes"]
        with _rotten(main, self.random.randrange(160, end), self.random.randrange(8)):
            found = self._outcomes(sid, questions)
            with self._index_away():
                wanted = self._outcomes(sid, questions)
        whole = wanted[0] == last.answer  # what is no longer proved to have been durable is the end
        for question, answer, without in zip(questions, found, wanted, strict=True):
            if answer != without:
                assert isinstance(without, CorruptLog), f"{question}: {answer}, but {without} without the index"
                assert isinstance(answer, CorruptLog) or not whole or answer == question.answer, question

    def _outcomes(self, sid: str, questions: Sequence[Question]) -> list[Any]:
        try:
            return self._answers([(sid, questions)], whole=False)[2:]
        except CorruptLog as error:  # no reader can be had
            return [error] * len(questions)

    # --- copies and backups ---------------------------------------------------------------------------

    def verify_copy(self, *, write: bool, adopt: bool = False) -> None:
        """``cp -R`` of the store, open as it may be, is a store that answers alike; with ``write``, also later.

        ``adopt``: the copy's index, which has gone its own way, then takes the place of the store's.
        """
        self.workers[WRITER].host.settle()
        path = self.path.with_name("copy")
        copy_tree(self.path, path)
        store = self._open(BESIDE, path, create=False)
        for sid, model in self.models.items():
            wanted = self.stored(model)
            if wanted is None:
                continue
            with store.reader(sid) as reader:
                self.verify_answers(reader, wanted)
                if write:
                    later = self._write_copy(store, sid, wanted)
                    self.verify_answers(reader, wanted)
                    reader.refresh()
                    self.verify_answers(reader, later)
        found = [finding for finding in store.check() if finding.severity != "note"]
        assert not found, found
        store.close()
        if adopt:
            self.trouble.adopt(path)
        shutil.rmtree(path)

    def _write_copy(self, store: Store, sid: str, stored: Stored) -> Stored:
        """Open the copy's session, write to it, close it; returns what it then holds."""
        with store.session(sid) as session:
            new = write_to_main(session, [Spec("set", "n", "a", "value", "copy"), *appends("copy", 30)])
            remote(session).of_host("checkpoint", "extend")
            new += write_to_main(session, appends("copy", self.random.choice((1, 20))))
        return stored | {SESSION_ID: stored[SESSION_ID] + new}

    def back_up(self) -> None:
        """Keep a copy of the logs as they are, all closed."""
        self.close_store()
        if self.backup is not None:
            shutil.rmtree(self.backup[0])
        path = self.path.with_name("backup")
        path.mkdir()
        for directory in self.path.glob("*.session"):
            copy_tree(directory, path / directory.name)
        self.backup = path, copy.deepcopy(self.models)

    def roll_back(self) -> None:
        """Put the logs back as they were kept; the index, which may be newer, stays."""
        if self.backup is None:
            return
        self.close_store()
        path, models = self.backup
        for directory in self.path.glob("*.session"):
            shutil.rmtree(directory)
        for directory in path.glob("*.session"):
            copy_tree(directory, self.path / directory.name)
        self.models = copy.deepcopy(models)

    def part_ways(self, sid: str) -> None:
        """Take the log back, and let it grow to the same length again, with other values and lists in each place.

        What the index says then fits the log by all that can be counted: sequences, and mostly offsets.
        """
        self.back_up()
        self.open(sid)
        self._write_alike(sid)
        self.checkpoint(WRITER, sid, "extend")
        self.roll_back()
        self.open(sid)
        for _ in range(3):
            self._write_alike(sid)
            if self.random.random() < 0.5:
                self.checkpoint(WRITER, sid, "extend")
            self.verify_stored(sid)
            with self.store_at(BESIDE).reader(sid) as reader:
                self.verify_answers(reader, self.stored(self.models[sid]) or {})

    def _write_alike(self, sid: str) -> None:
        """A stretch of commits too short to be compressed, with names of the same length: as many bytes each time."""
        for _ in range(4):
            namespace, key, text = (self.random.choice(letters) for letters in ("nm", "ab", ascii_letters))
            self.commit(sid, "", [Spec("set", namespace, key, "value", text)], POWER)
            self.commit(sid, "", [Spec("append", namespace, "text", "list", text)], POWER)

    def check(self) -> None:
        self.verify_without_index()
        super().check()
        self.reopen_beside()
        self.end()


@contextmanager
def _rotten(path: Path, at: int, bit: int) -> Iterator[None]:
    """One bit is another one for a while."""
    with path.open("r+b", buffering=0) as file:
        file.seek(at)
        byte = file.read(1)[0]
        for value in (byte ^ 1 << bit, byte):
            file.seek(at)
            file.write(bytes([value]))
            if value != byte:
                yield


def _comparable(answer: Any) -> Any:
    """An error as what it says."""
    return (type(answer), *answer.args) if isinstance(answer, BaseException) else answer
