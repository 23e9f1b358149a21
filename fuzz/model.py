"""The reference model: a session as plain dicts and lists, which says what must, may and must not replay.

It knows what was admitted, in order of sequence, and what was acknowledged at which level. It knows nothing of bytes.
Joined elements are held against the run of originals they stand for.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scopelog import Coalescer, Element, Entry, EphemeralScope, Json, List, LogRecord, SessionScope, Value
from scopelog import Write as PublicWrite

SESSION_ID = ""
_units = itertools.count(1)


def unit() -> int:
    """A number for something that is stored as a whole."""
    return next(_units)


def units_of_this_process() -> None:
    """From here on such numbers are this process's own: a model may be handed on from one to another."""
    global _units
    _units = itertools.count((os.getpid() << 32) + 1)


class Spec(NamedTuple):
    """One write as a test wants it. ``op`` as in :class:`scopelog.LogRecord`; ``number`` is a trim's sequence."""

    op: str
    namespace: str = "n"
    key: str = ""
    kind: str = "value"
    value: Json = None
    tag: str | None = None
    number: int = 0
    retired: str = ""

    def public(
        self, scope: SessionScope | EphemeralScope, coalescer: Coalescer | None
    ) -> PublicWrite[SessionScope] | PublicWrite[EphemeralScope]:
        if self.op == "retire":
            return EphemeralScope(self.retired).retire()
        address: Value[SessionScope] | Value[EphemeralScope] | List[SessionScope] | List[EphemeralScope]
        if self.kind == "value":
            address = scope.value(self.namespace, self.key)
            return address.set(self.value) if self.op == "set" else address.delete()
        address = scope.list_of(self.namespace, self.key, coalescer=coalescer)
        if self.op == "append":
            return address.append(self.value, self.tag)
        return address.trim(self.number) if self.op == "trim" else address.delete()


@dataclass
class Op:
    """One admitted write. ``unit``: what is stored as a whole (a commit, a window); 0 while it is staged.

    ``joinable``: a staged element without a tag of a list with a coalescer, not sealed yet.
    """

    seq: int
    spec: Spec
    unit: int = 0
    joinable: bool = False

    @property
    def address(self) -> tuple[str, str, str]:
        return self.spec.namespace, self.spec.key, self.spec.kind


def observed_op(record: LogRecord) -> Op:
    """A record that a reader yields, as an operation to hold against the model."""
    return Op(
        record.seq,
        Spec(
            record.op,
            record.namespace or ("n" if record.op == "retire" else ""),
            record.key or "",
            record.kind or "value",
            record.value,
            record.tag,
            record.upto or 0,
            record.retired or "",
        ),
    )


def match(expected: Sequence[Op], got: Sequence[Op]) -> list[Op]:
    """Assert that ``got`` is all of ``expected``, runs perhaps joined; returns it with the model's bookkeeping.

    A joined element has the last sequence of its run, its text is theirs, and the run lies within one unit.
    """
    out: list[Op] = []
    runs: dict[tuple[str, str, str], list[Op]] = {}
    at = 0
    for found in got:
        origin: Op | None = None
        while at < len(expected) and expected[at].seq <= found.seq:
            origin = expected[at]
            at += 1
            if origin.seq < found.seq:
                assert origin.joinable, f"sequence {origin.seq} is missing: {origin}"
                runs.setdefault(origin.address, []).append(origin)
        assert origin is not None and origin.seq == found.seq, f"never admitted: {found}"
        run = [*runs.pop(origin.address, []), origin]
        if len(run) > 1:
            assert all(op.joinable and op.unit == origin.unit for op in run), f"joined across a boundary: {run}"
            text = "".join(str(op.spec.value) for op in run)
            assert found.spec == origin.spec._replace(value=text), f"{found} does not fold like {run}"
        else:
            assert found.spec == origin.spec, f"{found} is not {origin}"
        out.append(Op(found.seq, found.spec, origin.unit))
    assert not runs, f"a run lost its end: {runs}"
    assert at == len(expected), f"missing from {expected[at]} on"
    return out


def prefix(expected: Sequence[Op], got: Sequence[Op], floor: int, what: str) -> list[Op]:
    """Assert that ``got`` is a contiguous prefix of whole units of ``expected`` that reaches up to ``floor``."""
    end = got[-1].seq if got else 0
    floor = max((op.seq for op in expected if op.seq <= floor), default=0)  # what it names may have been compacted away
    assert end >= floor, f"{what}: acknowledged up to {floor}, replayed up to {end} of {[op.seq for op in expected]}"
    kept = [op for op in expected if op.seq <= end]
    split = {op.unit for op in kept} & {op.unit for op in expected if op.seq > end}
    assert not split, f"{what}: a commit was split behind sequence {end}"
    return match(kept, got)


@dataclass
class Life:
    """One life of a scope. ``stored``: in its log; ``process`` and ``power``: up to where that was promised;
    ``handle``: up to where at POWER by the present handle, which must say so. ``doubt``: the last commit, if
    its outcome is unknown: perhaps in the file, with all that was staged before it, and not shown.
    ``ended``: the retirement's sequence. ``opened``: when the window was. ``high``: where a compaction has left the
    high-water mark, whatever became of the records. ``former``: stored before a compaction that a power cut may undo.
    """

    stored: list[Op] = field(default_factory=list)
    staged: list[Op] = field(default_factory=list)
    process: int = 0
    power: int = 0
    handle: int = 0
    doubt: list[Op] = field(default_factory=list)
    ended: int = 0
    opened: float = 0.0
    high: int = 0
    former: list[Op] = field(default_factory=list)

    def settle(self, commit: Iterable[Op] = (), *, power: bool) -> None:
        """All that is staged, and then the commit, is in the file, and was promised."""
        window = unit()
        self.stored += [replace(op, unit=window) for op in self.staged]
        self.staged = []
        self.stored += commit
        if self.stored or self.high:
            self.process = max([self.high, *(op.seq for op in self.stored[-1:])])
            if power:
                self.power = self.handle = self.process

    def every(self) -> list[Op]:
        """Stored, staged as the one window they may become, and in doubt."""
        window = unit()
        return [*self.stored, *(replace(op, unit=window) for op in self.staged), *self.doubt]

    def shown(self) -> list[Op]:
        return self.stored + self.staged

    def copy(self) -> Life:
        """Another one with the same operations."""
        lists = {"stored": self.stored[:], "staged": self.staged[:], "doubt": self.doubt[:], "former": self.former[:]}
        return replace(self, **lists)  # type: ignore[arg-type]


@dataclass
class ModelSession:
    """``lives`` of every scope, in order; the last may be alive. Main has one life that never ends.

    ``inflight``: the commit that is being made, with its scope. ``compacting``: the scope whose log is being compacted,
    and its generation before. ``shown_in``: epochs of which a sequence was shown.
    ``last``: highest sequence shown. ``hollow``: scopes of whose file a crash has left the header alone.
    """

    lives: dict[str, list[Life]] = field(default_factory=dict)
    compacting: tuple[str, int] | None = None
    inflight: tuple[str, list[Op]] | None = None
    epoch: int = 0
    shown_in: set[int] = field(default_factory=set)
    last: int = 0
    hollow: set[str] = field(default_factory=set)

    def copy(self) -> ModelSession:
        """The same promises, to be held against one of many outcomes."""
        return replace(
            self,
            lives={scope: [life.copy() for life in lives] for scope, lives in self.lives.items()},
            shown_in=set(self.shown_in),
            hollow=set(self.hollow),
        )

    def key(self) -> str:
        """The same for the same promises, however the units are numbered."""
        ranks: dict[int, int] = {}

        def flat(ops: Iterable[Op]) -> list[object]:
            return [
                (op.seq, op.spec, ranks.setdefault(op.unit, len(ranks)) if op.unit else -1, op.joinable) for op in ops
            ]

        lives = [
            (scope, life.ended, life.process, life.power, life.handle, life.high,
             flat(life.stored), flat(life.staged), flat(life.doubt), flat(life.former))
            for scope, lives in sorted(self.lives.items())
            for life in lives
        ]  # fmt: skip
        inflight = self.inflight and (self.inflight[0], flat(self.inflight[1]))
        return repr(
            (lives, inflight, self.compacting, self.epoch, sorted(self.shown_in), self.last, sorted(self.hollow))
        )

    def reopened(
        self, got: dict[str, list[Op]] | None, generation: Callable[[str], int], epoch: int, *, power: bool
    ) -> None:
        """An open for write, as ``epoch``, has found ``got`` (None: no session): assert that it is legal; go on so.

        ``generation``: of a scope's log. ``power``: a power cut came between, else the process ended.
        """
        if self.compacting is not None:
            (scope, before), self.compacting = self.compacting, None
            if generation(scope) > before:
                self.compacted(scope, (got or {}).get(scope, []), sure=power)
        self.resolve(got or {}, power=power)
        assert power or epoch > self.epoch, "an open for write raises the epoch"
        if got is None:
            self.shown_in.clear()  # nothing of the session is left: it is another one
        assert epoch not in self.shown_in, "no position means two things, also after a power cut"
        self.epoch = epoch

    def life(self, scope: str) -> Life:
        lives = self.lives.setdefault(scope, [])
        if not lives or lives[-1].ended:
            lives.append(Life())
        return lives[-1]

    def alive(self) -> list[str]:
        return sorted(
            scope
            for scope, lives in self.lives.items()
            if scope and lives and not lives[-1].ended and (lives[-1].stored or lives[-1].staged or lives[-1].high)
        )

    def living(self) -> dict[str, Life]:
        return {scope: lives[-1] for scope, lives in self.lives.items() if lives and not lives[-1].ended}

    def retire(self, commit: Iterable[Op], *, power: bool) -> None:
        """The commit's retirements have happened."""
        for op in commit:
            self.hollow.discard(op.spec.retired)
            lives = self.lives.get(op.spec.retired, []) if op.spec.op == "retire" else []
            if lives and not lives[-1].ended:
                lives[-1].ended = op.seq
                lives[-1].staged = []
        if power:
            self.forget_the_dead()

    def forget_the_dead(self) -> None:
        """Every retirement so far is durable at POWER: what it ended never comes back."""
        for scope, lives in self.lives.items():
            self.lives[scope] = [life for life in lives if not life.ended]

    def compacted(self, scope: str, got: Sequence[Op], *, sure: bool = True) -> None:
        """Its log holds nothing any more that is void. Of retirements it may have dropped any that has happened.

        ``sure``: not even a power cut brings the old file back."""
        life = self.life(scope)
        kept = {op.seq for op in got}
        life.former = [] if sure else life.stored
        life.high = max([life.high, *(op.seq for op in life.stored)])
        life.stored = [op for op in needed(life.stored) if op.spec.op != "retire" or op.seq in kept]
        if scope == SESSION_ID:
            life.process = life.power = life.handle = max(life.high, life.process)
            self.forget_the_dead()

    def resolve(self, got: dict[str, list[Op]], *, power: bool) -> None:
        """After an open: assert that what replays is legal and go on from there.

        ``power``: a power cut came between, which spares what was acknowledged at POWER; else the process ended.
        """
        for scope, life in self.living().items():
            seen = {op.seq for op in got.get(scope, [])}
            if power and seen & ({op.seq for op in life.former} - {op.seq for op in life.stored}):
                life.stored, life.high = life.former, 0
        main = self.life(SESSION_ID)
        trying = self.inflight
        self.inflight = None
        every = main.every()
        if trying is not None and trying[0] == SESSION_ID:
            every += trying[1]
        replayed = prefix(every, got.get(SESSION_ID, []), main.power if power else main.process, "main")
        retired = {op.spec.retired: op.seq for op in replayed if op.spec.op == "retire"}
        for scope in {*self.lives, *got, *([trying[0]] if trying else [])} - {SESSION_ID}:
            boundary = retired.get(scope, 0)
            # A life that was retired before anything was in it left nothing to come back.
            lived = [life for life in self.lives.get(scope, []) if not life.ended or life.every() or life.high]
            lives = [life for life in lived if not life.ended or life.ended > boundary]
            if trying is not None and trying[0] == scope and not lives:
                lives = [Life()]
            now = self._resolve(scope, lives, boundary, got.get(scope, []), trying, power)
            # What a retirement ended that a power cut may still undo is kept in mind.
            dead = [] if power else [life for life in self.lives.get(scope, []) if 0 < life.ended <= boundary]
            if not power and boundary and lives and lives[0].stored and lives[0].stored[0].seq < boundary:
                before = [op for op in lives[0].stored if op.seq < boundary]
                dead.append(Life(before, power=min(lives[0].power, before[-1].seq), ended=boundary))
            self.lives[scope] = [*dead, now]
        self.lives[SESSION_ID] = [_restarted(main, replayed, power)]
        self.last = max(life.process for lives in self.lives.values() for life in lives)

    def _resolve(
        self,
        scope: str,
        lives: list[Life],
        boundary: int,
        got: list[Op],
        trying: tuple[str, list[Op]] | None,
        power: bool,
    ) -> Life:
        if not lives:
            assert not got, f"the retired scope {scope!r} came back: {got}"
            return Life()
        life, *later = lives  # of several, all but the first began after a retirement that is lost
        for lost in later:
            assert (lost.power if power else lost.process) == 0, f"a later life of {scope!r} was acknowledged: {lost}"
        every = life.every()
        if trying is not None and trying[0] == scope and not later:
            every += trying[1]
        every = [op for op in every if op.seq > boundary]
        if life.high <= boundary:
            life = replace(life, high=0)  # what was compacted is over
        floor = life.power if power else life.process
        replayed = prefix(every, got, floor if floor > boundary else 0, f"scope {scope!r}")
        return _restarted(life, replayed, power)


def _restarted(life: Life, replayed: list[Op], power: bool) -> Life:
    """As the next handle finds it. After a power cut all that is left is on the disk for good."""
    last = max(replayed[-1].seq if replayed else 0, life.high)
    return Life(
        stored=replayed,
        process=last,
        power=last if power else min(life.power, last),
        high=life.high,
        former=[] if power else life.former,
    )


def needed(ops: Sequence[Op]) -> list[Op]:
    """What no later operation has made void; retirements included."""
    floors: dict[tuple[str, str, str], int] = {}
    newest: dict[tuple[str, str, str], int] = {}
    for op in ops:
        if op.spec.op == "trim":
            floors[op.address] = max(floors.get(op.address, 0), min(op.spec.number, op.seq))
        elif op.spec.op == "delete" and op.spec.kind == "list":
            floors[op.address] = op.seq
        elif op.spec.op in ("set", "delete"):
            newest[op.address] = op.seq
    return [
        op
        for op in ops
        if op.spec.op == "retire"
        or (op.spec.op == "append" and op.seq > floors.get(op.address, 0))
        or (op.spec.op == "set" and op.seq == newest[op.address])
    ]


# --- answers --------------------------------------------------------------------------------------


def elements(ops: Iterable[Op], namespace: str, key: str) -> list[Op]:
    """Living elements of a list."""
    out: list[Op] = []
    for op in ops:
        if op.address != (namespace, key, "list"):
            continue
        if op.spec.op == "append":
            out.append(op)
        elif op.spec.op == "trim":
            out = [element for element in out if element.seq > op.spec.number]
        else:
            out = []
    return out


def page(
    ops: Sequence[Op], cursor: int | None, order: str, limit: int | None, stop_at_tag: str | None
) -> list[Element]:
    out: list[Element] = []
    for op in ops if order == "asc" else reversed(ops):
        if cursor is not None and (op.seq <= cursor if order == "asc" else op.seq >= cursor):
            continue
        if len(out) == limit:
            break
        out.append(Element(op.seq, op.spec.value, op.spec.tag))
        if stop_at_tag is not None and op.spec.tag == stop_at_tag:
            break
    return out


def values(ops: Iterable[Op], namespace: str, prefix_: str = "") -> list[Entry]:
    """Living values of a namespace by code point order of their keys."""
    found: dict[str, Entry] = {}
    for op in ops:
        if op.spec.op == "retire" or op.spec.kind != "value" or op.spec.namespace != namespace:
            continue
        found.pop(op.spec.key, None)
        if op.spec.op == "set":
            found[op.spec.key] = Entry(op.spec.key, op.spec.value, op.seq)
    return [found[key] for key in sorted(found) if key.startswith(prefix_)]
