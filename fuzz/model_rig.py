"""A store on a simulated disk and the reference model beside it: every call is made on both and compared.

Used by the state machine (``test_model.py``) and by the exhaustive crash points (``test_crash_points.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from fuzz.model import SESSION_ID, Life, Op, Spec, elements, match, page, prefix, unit, values
from fuzz.model_handles import KEYS, LISTS, POWER, PROCESS, Handles, coalescer_of, scope_of
from scopelog import (
    SESSION,
    Durability,
    Finding,
    Json,
    NoSuchSession,
    OutcomeUnknown,
    ScopelogError,
    SessionScope,
    Write,
)
from scopelog_engine.frame import Frame, parse_frame
from scopelog_engine.layout import SCOPE_SUFFIX


class Rig(Handles):
    """Writes on both, and what holds one against the other."""

    def heal(self) -> None:
        """The disk works again: what is staged can be stored, at the latest after the session is opened again."""
        self.disk.heal()
        self.disk.capacity = None
        for sid in [*self.sessions]:
            if not self.flush(sid) or sid in self.doubtful:
                self.close(sid)
                self.open(sid)
        self.faulty = False

    # --- writing ----------------------------------------------------------------------------------

    def commit(self, sid: str, scope: str, specs: Sequence[Spec], level: Durability | None = None) -> bool:
        """Commit on both; True if it was acknowledged."""
        session, model = self.sessions[sid], self.models[sid]
        before = int(session.stats()["sequence"])
        assert before >= model.last
        whole = unit()
        ops = [Op(before + n, spec, whole) for n, spec in enumerate(specs, 1)]
        model.inflight = (scope, ops)
        self.announce()
        wanted = max(self.settings.level(scope), level or PROCESS)
        where = scope_of(scope)
        try:
            writes = [spec.public(where, coalescer_of(spec.key)) for spec in specs]
            receipt = session.commit(cast("list[Write[SessionScope]]", writes), durability=level)
        except ScopelogError as error:
            model.inflight = None
            self._excuse(sid, error)
            begun = int(session.stats()["sequence"]) > before
            model.last = int(session.stats()["sequence"])
            if (sid, scope) in self.poisoned:
                assert not begun, "a poisoned log takes no commit"
            if begun and isinstance(error, OutcomeUnknown):
                self._unknown(sid, scope, ops)
            else:
                self._catch_up(sid)
            return False
        model.inflight = None
        assert (sid, scope) not in self.poisoned, "a poisoned log took a commit"
        assert (receipt.first, receipt.last) == (ops[0].seq, ops[-1].seq), "sequences go up one by one"
        self._acknowledged(sid, scope, ops, wanted)
        return True

    def _acknowledged(self, sid: str, scope: str, ops: list[Op], level: Durability) -> None:
        model = self.models[sid]
        model.last = ops[-1].seq
        model.shown_in.add(model.epoch)
        model.life(scope).settle(ops, power=level is POWER)
        main = model.life(SESSION_ID)
        model.retire(ops, power=main.power >= ops[-1].seq)
        self.poisoned -= {(sid, op.spec.retired) for op in ops if op.spec.op == "retire"}  # the next life has a new log

    def stage(self, sid: str, scope: str, key: str, value: Json, tag: str | None = None, namespace: str = "n") -> bool:
        session, model = self.sessions[sid], self.models[sid]
        before = int(session.stats()["sequence"])
        coalescer = coalescer_of(key)
        try:
            seq = session.append(scope_of(scope).list_of(namespace, key, coalescer=coalescer), value, tag)
        except ScopelogError as error:
            self._excuse(sid, error)
            assert session.stats()["sequence"] == before, "a refused element takes no sequence"
            self._catch_up(sid)
            return False
        assert (sid, scope) not in self.poisoned, "a poisoned log took an element"
        assert seq > max(before, model.last)
        model.last = seq
        model.shown_in.add(model.epoch)
        life = model.life(scope)
        if not life.staged:
            life.opened = self.clock.monotonic()
        spec = Spec("append", namespace, key, "list", value, tag)
        life.staged.append(Op(seq, spec, joinable=coalescer is not None and tag is None))
        return True

    def flush(self, sid: str, level: Durability | None = None) -> bool:
        try:
            self.sessions[sid].flush(level)
        except ScopelogError as error:
            self._excuse(sid, error)
            self._catch_up(sid)
            return False
        model = self.models[sid]
        for scope, life in model.living().items():
            life.settle(power=max(self.settings.level(scope), level or PROCESS) is POWER)
        main = model.lives.get(SESSION_ID)
        if main and main[-1].power >= main[-1].process:
            model.forget_the_dead()
        return True

    def compact(self, sid: str, scope: str) -> bool:
        """Nothing that can be asked for changes; True if it was done."""
        session, model = self.sessions[sid], self.models[sid]
        before = self.generation(sid, scope)
        model.compacting = (scope, before)
        if scope in model.alive() or scope == SESSION_ID:
            model.life(scope)
        sure = True
        self.announce()
        try:
            session.compact(scope_of(scope))
        except ScopelogError as error:
            self._excuse(sid, error)
            if isinstance(error, OutcomeUnknown):
                self.poisoned.add((sid, scope))
            sure = False  # the new file may have its name, and lose it by a power cut
            done = self._generation_now(sid, scope) > before
        else:
            done = self._generation_now(sid, scope) > before
            assert done or not (self.observe(sid) or {}).get(scope)
        if done:
            model.compacted(scope, (self.observe(sid) or {}).get(scope, []), sure=sure)
        model.compacting = None
        return done

    def _generation_now(self, sid: str, scope: str) -> int:
        """The same for a scope whose retirement is in doubt: a reader takes it for done."""
        session = self.sessions[sid]
        writer = getattr(getattr(session, "sync", session), "_writer", None)
        state = writer._scopes.get(scope) if writer is not None else None
        log = state.log if state is not None else None
        return max(self.generation(sid, scope), log.header.generation if log is not None else 0)

    def advance(self, milliseconds: int) -> None:
        """Let time pass: windows whose deadline comes are stored."""
        self.clock.advance(milliseconds / 1000)
        now = self.clock.monotonic()
        for sid in self.sessions:
            if self.faulty:
                self._catch_up(sid)
                continue
            for scope, life in self.models[sid].living().items():
                if life.staged and now >= life.opened + self.settings.window_ms / 1000 - 1e-9:
                    life.settle(power=self.settings.level(scope) is POWER)

    def delete(self, sid: str) -> bool:
        """Delete a session that is not open."""
        store = self.open_store()
        self.deleting = sid
        self.announce()
        try:
            store.delete_session(sid)
        except NoSuchSession:
            self.deleting = None
            model = self.models.get(sid)
            assert model is None or not any(life.stored for lives in model.lives.values() for life in lives)
            return False
        self.deleting = None
        self.models.pop(sid, None)
        assert sid not in store.sessions()
        return True

    def _unknown(self, sid: str, scope: str, ops: list[Op]) -> None:
        """A commit's sync failed: it may be in the file, and is not shown by this handle."""
        life = self.models[sid].life(scope)
        got = (self.observe(sid) or {}).get(scope, [])
        if got and got[-1].seq == ops[-1].seq:
            life.doubt = ops
            self.poisoned |= {(sid, scope)}
            self.poisoned |= {(sid, op.spec.retired) for op in ops if op.spec.retired in self.models[sid].alive()}
        else:
            self._catch_up(sid)

    # --- holding one against the other ------------------------------------------------------------

    def verify_stored(self, sid: str) -> None:
        """A reader finds exactly what is stored; claims of durability are kept."""
        session, model = self.sessions[sid], self.models[sid]
        got = self.observe(sid) or {}
        retiring = {op.spec.retired for op in model.life(SESSION_ID).doubt}
        for scope, life in model.living().items():
            if scope in retiring:
                continue
            if life.doubt:
                prefix(life.every(), got.pop(scope, []), life.process, f"scope {scope!r}")
            else:
                life.stored = match(life.stored, got.pop(scope, []))
            claim = session.durable_seq(scope_of(scope), POWER)
            assert claim >= life.handle, f"{scope!r}: acknowledged at POWER up to {life.handle}, durable to {claim}"
            assert claim <= life.process, f"{scope!r}: durable to {claim}, stored to {life.process}"
            life.power = max(life.power, claim)
        assert not {scope for scope, ops in got.items() if ops} - retiring, f"unknown scopes: {got}"
        doubtful = {scope for scope, life in model.living().items() if life.doubt}
        shown = set(session.scopes()) - doubtful
        assert set(model.alive()) - doubtful <= shown <= {*model.alive(), *model.hollow}
        assert session.durable_seq(SESSION, POWER) <= session.stats()["sequence"]

    def verify_shown(self, sid: str, scope: str) -> None:
        """Everything admitted is read through the handle; what was shown does not change from here on."""
        session, life = self.sessions[sid], self.models[sid].life(scope)
        where = scope_of(scope)
        for namespace, key in LISTS:
            got = session.read(where.list_of(namespace, key, coalescer=coalescer_of(key)))
            self._seal(
                life, namespace, key, [Op(e.seq, Spec("append", namespace, key, "list", e.element, e.tag)) for e in got]
            )
        for namespace in ("n", "m"):
            wanted = values(life.shown(), namespace)
            assert session.scan(namespace, scope=where) == wanted
            found = {entry.key: entry.value for entry in wanted}
            for key in KEYS:
                assert session.get(where.value(namespace, key), "none") == found.get(key, "none")

    @staticmethod
    def _seal(life: Life, namespace: str, key: str, got: list[Op]) -> None:
        """Hold a whole list against the model, and put what was shown in place of the originals."""
        living = elements(life.shown(), namespace, key)
        shown = {op.seq: op for op in match(living, got)}
        if all(op.unit for op in living) and not life.staged:
            return
        gone = {op.seq for op in living} - set(shown)
        life.staged = [shown.get(op.seq, op) for op in life.staged if op.seq not in gone]

    def verify_page(
        self,
        sid: str,
        scope: str,
        namespace: str,
        key: str,
        cursor: int | None,
        order: Literal["asc", "desc"],
        limit: int | None,
        stop: str | None,
    ) -> None:
        where = scope_of(scope)
        address = where.list_of(namespace, key, coalescer=coalescer_of(key))
        session, life = self.sessions[sid], self.models[sid].life(scope)
        first = session.read(address)
        self._seal(
            life, namespace, key, [Op(e.seq, Spec("append", namespace, key, "list", e.element, e.tag)) for e in first]
        )
        got = session.read(address, cursor=cursor, order=order, limit=limit, stop_at_tag=stop)
        index = {e.seq: e for e in first}
        assert all(index[e.seq] == e for e in got)
        wanted = page(
            [Op(e.seq, Spec("append", namespace, key, "list", e.element, e.tag)) for e in first],
            cursor,
            order,
            limit,
            stop,
        )
        assert got == wanted

    def verify(self) -> None:
        for sid in self.sessions:
            self.verify_stored(sid)
            for scope in [*self.models[sid].lives]:
                self.verify_shown(sid, scope)

    def _unborn(self, finding: Finding) -> bool:
        """Whether it tells of a sidecar whose birth failed, and whose removal did: the next open sees to it."""
        if finding.severity != "torn" or not finding.path.endswith(SCOPE_SUFFIX):
            return False
        header = parse_frame(self.disk.read_file(finding.path), 0, 0, None)
        return finding.reason == "header" or (isinstance(header, Frame) and header.end == finding.offset)

    def check(self) -> None:
        """Everything closed, the store is sound: nothing but notes."""
        self.close_store()
        self.disk.heal()
        store = self.open_store()
        found = [finding for finding in store.check() if finding.severity != "note"]
        if self.leftovers:
            found = [finding for finding in found if not self._unborn(finding)]
        assert not found, found
        assert set(store.sessions()) <= set(self.models)
        for sid in self.models:
            self.open(sid)
            self.verify_stored(sid)
        self.close_store()
