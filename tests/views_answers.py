"""A store on the real disk and the reference model beside it, asked through every view there is.

The writer's process answers through its session, by threads and by loops, and through readers; another process
answers through readers alone. Readers are kept: one that was not refreshed answers as it did before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, cast

from fuzz.model import SESSION_ID, ModelSession, Op, Spec, elements, observed_op, page, unit, values
from fuzz.model_handles import KEYS, LISTS, POWER, PROCESS, SCOPES, Settings, coalescer_of, scope_of
from fuzz.model_rig import Rig
from scopelog import (
    Durability,
    EphemeralScope,
    Json,
    NoSuchSession,
    Session,
    SessionInfo,
    SessionReader,
    SessionScope,
    Store,
    Write,
)
from tests.views_worker import Remote, Worker

WRITER, BESIDE = "writer", "beside"
META = "scopelog.session"
Stored = dict[str, list[Op]]
"""What is stored, per scope: what a reader must find."""
Page = tuple[int | None, Literal["asc", "desc"], int | None, str | None]
"""What is asked of a list: cursor, order, limit, and the tag to stop at."""


class Question(NamedTuple):
    method: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    answer: Any


class Answering(Rig):
    """``workers``: the writer's process, and one that only reads. ``path``: the store's, in a directory of its own.

    ``background``: whether the writer's index grows by itself. ``asked``: what questions the index was put.
    """

    def __init__(self, settings: Settings, path: Path, random: Random, *, background: bool = False) -> None:
        super().__init__(settings)
        self.path = path
        self.random = random
        self.background = background
        self.asked: Counter[str] = Counter()
        self.workers = {WRITER: Worker(WRITER, random), BESIDE: Worker(BESIDE, random)}
        self.stores: dict[str, Store] = {}
        self.readers: dict[tuple[str, str], tuple[SessionReader, Stored]] = {}

    # --- opening and closing ------------------------------------------------------------------------

    def open_store(self) -> Store:
        if self.store is None:
            self.store = self.stores[WRITER] = self._open(WRITER, self.path)
        return self.store

    def _open(self, where: str, path: Path, *, create: bool = True) -> Store:
        durability, scope_durability, window_ms = self.settings
        remote = self.workers[where].host.open(
            str(path),
            self.clock.monotonic(),
            self.clock.wall_ms(),
            self.background and where == WRITER,
            create=create,
            durability=durability,
            scope_durability=scope_durability,
            window_ms=window_ms,
        )
        return cast("Store", remote)

    def store_at(self, where: str) -> Store:
        if where == WRITER:
            return self.open_store()
        if where not in self.stores:
            self.open_store()  # makes it
            self.stores[where] = self._open(where, self.path, create=False)
        return self.stores[where]

    def close_store(self) -> None:
        super().close_store()
        self.stores.pop(WRITER, None)

    def reopen_beside(self) -> None:
        """The process that only reads forgets all it knows, but for the readers that are open."""
        store = self.stores.pop(BESIDE, None)
        if store is not None:
            store.close()

    def kill(self) -> None:
        self.workers[WRITER].kill()
        self.bury()

    def bury(self) -> None:
        """The writer's process is gone: start another one."""
        self.workers[WRITER] = Worker(WRITER, self.random)
        self.stores.pop(WRITER, None)
        self.readers = {key: kept for key, kept in self.readers.items() if key[0] != WRITER}
        self.down(self.disk)

    def end(self) -> None:
        """The processes end, and by themselves."""
        for worker in self.workers.values():
            self.asked += worker.host.asked()
            worker.end()

    def abandon(self) -> None:
        """After a failure: the processes are ended, whatever they are at."""
        for worker in self.workers.values():
            worker.kill()

    # --- writing --------------------------------------------------------------------------------------

    def advance(self, milliseconds: int) -> None:
        self.workers[WRITER].host.advance(milliseconds / 1000)
        super().advance(milliseconds)

    def write_much(self, sid: str, scope: str, address: tuple[str, str], count: int) -> None:
        """A commit of ``count`` elements that hardly compress, so that stretches are closed soon."""
        random = self.random
        texts = [f"{n}.{random.randbytes(random.randrange(30)).hex()}" for n in range(count)]
        specs = [Spec("append", *address, "list", text, random.choice((None, None, "t"))) for text in texts]
        if random.random() < 0.7:
            specs.append(Spec("set", random.choice("nm"), random.choice(KEYS), "value", count))
        self.commit(sid, scope, specs)

    def write_history(self, sid: str) -> None:
        """What an index is for: closed stretches with elements, values and retirements."""
        for number in range(8):
            self.write_much(sid, "", self.random.choice(LISTS), self.random.choice((3, 30)))
            scope = self.random.choice(SCOPES[1:])
            self.commit(sid, scope, appends("early", 3))
            if number % 2:
                self.commit(sid, "", [Spec("retire", retired=scope), Spec("set", "n", "é", "value", number)])

    def together(self, sid: str, commits: Sequence[tuple[str, list[Spec]]], level: Durability | None) -> None:
        """Commits as tasks of one loop that start in one iteration: they share what is written."""
        calls = [
            (
                "commit",
                ([spec.public(scope_of(scope), coalescer_of(spec.key)) for spec in specs],),
                {"durability": level},
            )
            for scope, specs in commits
        ]
        receipts = remote(self.sessions[sid]).of_host("together", calls)
        ordered = sorted(zip(receipts, commits, strict=True), key=lambda pair: cast("int", pair[0].first))
        for receipt, (scope, specs) in ordered:
            whole = unit()
            ops = [Op(receipt.first + n, spec, whole) for n, spec in enumerate(specs)]
            assert receipt.last == ops[-1].seq and receipt.first > self.models[sid].last
            self._acknowledged(sid, scope, ops, max(self.settings.level(scope), level or PROCESS))

    def describe(self, sid: str, changes: dict[str, Json], level: Durability | None) -> None:
        """Name the session, label it, or both; None takes away."""
        session, model = self.sessions[sid], self.models[sid]
        before, whole = int(session.stats()["sequence"]), unit()
        ops = []
        for number, key in enumerate((key for key in ("name", "labels") if key in changes), 1):
            spec = Spec("set" if changes[key] else "delete", META, key, "value", changes[key] or None)
            ops.append(Op(before + number, spec, whole))
        model.inflight = SESSION_ID, ops
        receipt = session.describe(**changes, durability=level)
        model.inflight = None
        assert (receipt.first, receipt.last) == (ops[0].seq, ops[-1].seq)
        self._acknowledged(sid, SESSION_ID, ops, max(self.settings.level(SESSION_ID), level or PROCESS))

    # --- what is stored -------------------------------------------------------------------------------

    def observe(self, sid: str) -> Stored | None:
        """As a new reader finds it, in one of the processes."""
        store = self.store_at(self.random.choice((WRITER, BESIDE)))
        try:
            reader = store.reader(sid)
        except NoSuchSession:
            return None
        with reader:
            return self.stored_in(reader)

    @staticmethod
    def stored_in(reader: SessionReader) -> Stored:
        records, scopes, info, stats = remote(reader).ask(
            [("records", (), {}), ("scopes", (), {}), ("info", (), {}), ("stats", (), {})]
        )
        got: Stored = {SESSION_ID: []}
        last = updated = 0
        for record in records:
            assert record.seq > last, "records come in order of sequence, and no sequence twice"
            last = record.seq
            got.setdefault(record.scope or SESSION_ID, []).append(observed_op(record))
            if record.scope is None:
                updated = record.time
        assert scopes == sorted(scope for scope in got if scope)
        assert isinstance(info, SessionInfo)
        named = {entry.key: entry.value for entry in values(got[SESSION_ID], META)}
        elements_of_main = sum(op.spec.op == "append" for op in got[SESSION_ID])
        assert (info.id, info.name, info.labels) == (reader.id, named.get("name"), named.get("labels", {}))
        assert (info.updated, info.elements, info.bytes) == (updated, elements_of_main, stats["main_bytes"])
        return got

    @staticmethod
    def stored(model: ModelSession) -> Stored | None:
        """What a reader must find now; None if there is nothing."""
        found = {scope: [*life.stored] for scope, life in model.living().items() if life.stored}
        return {SESSION_ID: [], **found} if found else None

    def verify_stored(self, sid: str) -> None:
        super().verify_stored(sid)
        self.verify_reader(self.random.choice((WRITER, BESIDE)), sid)

    def verify_reader(self, where: str, sid: str) -> None:
        """The kept reader of a process answers as of its last refresh, which may be now."""
        now = self.stored(self.models[sid])
        kept = self.readers.get((where, sid))
        if kept is None:
            try:
                kept = self.store_at(where).reader(sid), now or {SESSION_ID: []}
            except NoSuchSession:
                assert now is None, f"{where} does not see {sid!r}"
                return
        elif self.random.random() < 0.6:
            try:
                kept[0].refresh()
                kept = kept[0], now or {SESSION_ID: []}
            except NoSuchSession:
                assert now is None, f"{where} does not see {sid!r}"
        self.readers[where, sid] = kept
        self.verify_answers(*kept, share=0.5)
        if self.random.random() < 0.1:
            with kept[0]:
                del self.readers[where, sid]

    def verify_answers(self, reader: SessionReader, wanted: Stored, *, share: float = 1) -> None:
        """Every answer of a reader is the model's. ``share``: of what might be asked."""
        assert plain(self.stored_in(reader)) == plain(wanted)
        questions: list[Question] = []
        for scope in SCOPES:
            ops = wanted.get(scope, [])
            questions.append(Question("durable_seq", (scope_of(scope),), {}, ops[-1].seq if ops else 0))
            questions += self.questions(scope, ops, share if ops else share / 4)
        self.put(reader, questions)
        for scope, ops in wanted.items():
            assert reader.durable_seq(scope_of(scope), POWER) <= (ops[-1].seq if ops else 0)

    @staticmethod
    def put(target: Session | SessionReader, questions: Sequence[Question]) -> None:
        """Ask, and compare."""
        answers = remote(target).ask([question[:3] for question in questions])
        for question, answer in zip(questions, answers, strict=True):
            assert answer == question.answer, question

    def questions(self, scope: str, ops: Sequence[Op], share: float = 1) -> list[Question]:
        """About a scope that holds ``ops``, with the right answers; a ``share`` of them, in any order."""
        where = scope_of(scope)
        out: list[Question] = []
        for namespace, key in LISTS:
            living = elements(ops, namespace, key)
            whole: Page = None, "asc", None, None
            for cursor, order, limit, stop in (whole, self.any_page(living), self.any_page(living)):
                wanted = page(living, cursor, order, limit, stop)
                options = {"cursor": cursor, "order": order, "limit": limit, "stop_at_tag": stop}
                out.append(Question("read", (where.list_of(namespace, key),), options, wanted))
        for namespace in ("n", "m", META):
            start = self.random.choice(("", "a", "é"))
            out.append(Question("scan", (namespace, start), {"scope": where}, values(ops, namespace, start)))
        if isinstance(where, EphemeralScope):
            for namespace in ("n", "m"):
                start = self.random.choice(("", "", "p", "j"))
                keys = {key for space, key in LISTS if space == namespace and elements(ops, namespace, key)}
                wanted_keys = sorted(key for key in keys if key.startswith(start))
                out.append(Question("lists", (where, namespace, start), {}, wanted_keys))
        for namespace in ("n", "m"):
            found = {entry.key: entry.value for entry in values(ops, namespace)}
            out += [Question("get", (where.value(namespace, k), "none"), {}, found.get(k, "none")) for k in KEYS]
        return self.random.sample(out, round(share * len(out)))

    def any_page(self, living: Sequence[Op]) -> Page:
        cursor: int | None = None
        if self.random.random() < 0.5:
            cursor = max(0, self.random.choice(living).seq + self.random.randint(-1, 1)) if living else 1
        return (
            cursor,
            self.random.choice(("asc", "desc")),
            self.random.choice((None, 0, 1, 3, 20)),
            self.random.choice((None, None, "t", "turn")),
        )

    def verify_shown(self, sid: str, scope: str) -> None:
        """Where nothing waits, nor was joined unseen, all at once: a session answers like a reader then."""
        life = self.models[sid].life(scope)
        if life.staged or any(op.joinable for op in life.stored):
            super().verify_shown(sid, scope)
        else:
            self.put(self.sessions[sid], self.questions(scope, life.stored))

    def verify_catalogue(self, where: str) -> None:
        """The catalogue has every session that is stored, and says what its reader and its writer say."""
        store = self.store_at(where)
        infos = sorted(store.catalogue(sort=self.random.choice(("id", "updated", "bytes"))))
        assert [info.id for info in infos] == sorted(store.sessions())
        assert {info.id for info in infos} >= {sid for sid, model in self.models.items() if self.stored(model)}
        for info in infos:
            with store.reader(info.id) as reader:
                assert reader.info() == info
            if info.id in self.sessions:
                assert self.sessions[info.id].info() == info

    def verify_some(self) -> None:
        """Of every open session all that is stored, and much of what it and its readers answer."""
        for sid in self.sessions:
            self.verify_stored(sid)
            self.verify_shown(sid, self.random.choice(SCOPES))


def remote(target: Session | SessionReader) -> Remote:
    return cast("Remote", target)


def plain(stored: Stored) -> dict[str, list[tuple[int, Spec]]]:
    return {scope: [(op.seq, op.spec) for op in ops] for scope, ops in stored.items()}


def appends(text: str, count: int) -> list[Spec]:
    return [Spec("append", "n", "plain", "list", [text, n, "x" * (n % 7 * 9)]) for n in range(count)]


def write_to_main(session: Session, specs: Sequence[Spec]) -> list[Op]:
    writes = [spec.public(scope_of(SESSION_ID), None) for spec in specs]
    receipt = session.commit(cast("list[Write[SessionScope]]", writes))
    return [Op(receipt.first + n, spec) for n, spec in enumerate(specs)]
