"""A model for concurrent actors: what each of them tried, when, and what it was promised.

Every commit and every staged element carries a value of its own, so that whatever is found can be traced to the call
that wrote it. :meth:`Ledger.hold` asserts what may be found: by a reader at any moment, after a kill, a power cut or a
clean close. Moments are ticks of the scheduler. The model knows nothing of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fuzz.model import SESSION_ID, Op, Spec, needed
from scopelog import Durability

PROCESS, POWER = Durability.PROCESS, Durability.POWER
Found = dict[str, list[Op]]


@dataclass(slots=True)
class Attempt:
    """One commit, or one staged element. ``first``: its first sequence, 0 if unknown. ``promised``: when it was said to
    be stored, by level. ``refused``: when it was said not to be."""

    number: int
    scope: str
    specs: list[Spec]
    begun: int
    staged: bool = False
    ended: int | None = None
    first: int = 0
    promised: dict[Durability, int] = field(default_factory=dict)
    refused: int | None = None
    floor: int = 0  # the highest sequence that was known when it began

    @property
    def last(self) -> int:
        return self.first + len(self.specs) - 1

    def ops(self) -> list[Op]:
        return [Op(self.first + n, spec, self.number) for n, spec in enumerate(self.specs)]

    def promise(self, level: Durability, at: int) -> None:
        for promised in (PROCESS, POWER):
            if promised <= level:
                self.promised.setdefault(promised, at)

    def sure(self, level: Durability, at: int) -> bool:
        return self.promised.get(level, at + 1) <= at


class Ledger:
    """``compacted``: scopes whose log may have been rewritten, so that what is void may be missing."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.compacted: set[str] = set()
        self.high = 0

    def copy(self) -> Ledger:
        twin = Ledger()
        twin.attempts = [replace(attempt, promised=dict(attempt.promised)) for attempt in self.attempts]
        twin.compacted, twin.high = set(self.compacted), self.high
        return twin

    # --- what is tried and told -------------------------------------------------------------------

    def begin(self, scope: str, specs: Sequence[Spec], at: int, *, staged: bool = False) -> Attempt:
        attempt = Attempt(len(self.attempts), scope, [*specs], at, staged, floor=self.high)
        self.attempts.append(attempt)
        return attempt

    def admitted(self, attempt: Attempt, first: int, at: int) -> None:
        """Sequences go up in the order in which calls follow each other."""
        assert first > attempt.floor, f"{first} was given to a call that began after {attempt.floor} was known"
        attempt.first, attempt.ended = first, at
        self.high = max(self.high, attempt.last)

    def stored(self, attempt: Attempt, level: Durability, at: int) -> None:
        """A commit was acknowledged, with what was staged before it."""
        attempt.promise(level, at)
        for other in self.attempts:
            if other.staged and other.scope == attempt.scope and 0 < other.first < attempt.first:
                other.promise(level, at)

    def flushed(self, begun: int, at: int, levels: dict[bool, Durability]) -> None:
        """A barrier has returned; ``levels``: of the session scope (False) and of the others."""
        for attempt in self.attempts:
            if attempt.staged and attempt.ended is not None and attempt.ended <= begun:
                attempt.promise(levels[bool(attempt.scope)], at)

    def facts(self, at: int) -> tuple[object, ...]:
        """All that :meth:`hold` goes by at a moment."""
        return tuple(
            (one.first, one.sure(PROCESS, at), one.sure(POWER, at), one.refused is not None and one.refused <= at)
            for one in self.attempts
        )

    # --- what is found ----------------------------------------------------------------------------

    def hold(self, found: Found, at: int, level: Durability, *, apart: bool = False, what: str = "") -> None:
        """Assert that ``found`` is legal where everything counts that was promised at ``level`` up to ``at``.

        ``apart``: scopes become visible independently, as a follower sees them.
        """
        try:
            firsts = self._trace(found, at)
            self._hold_scopes(found, firsts, at, level, apart)
        except AssertionError as error:
            shown = {scope: [(op.seq, op.spec.op, op.spec.value) for op in ops] for scope, ops in found.items()}
            raise AssertionError(f"{what}: {error}; found {shown}; tried {self._told(at)}") from error

    def _told(self, at: int) -> list[tuple[object, ...]]:
        return [
            (one.scope, one.first, [spec.value for spec in one.specs], one.sure(PROCESS, at), one.sure(POWER, at))
            for one in self.attempts
        ]

    def _trace(self, found: Found, at: int) -> dict[int, int]:
        """First sequences of the attempts that were found, by number. Nothing is there twice, or by nobody."""
        by_value = {spec.value: (one, n) for one in self.attempts for n, spec in enumerate(one.specs) if spec.value}
        firsts: dict[int, int] = {}
        seen: set[int] = set()
        for scope, ops in found.items():
            last = 0
            for op in ops:
                assert op.seq > last and op.seq not in seen, f"{op.seq} comes twice, or out of order"
                last = op.seq
                seen.add(op.seq)
                if op.spec.value is None:
                    continue
                assert op.spec.value in by_value, f"nobody wrote {op}"
                attempt, n = by_value[op.spec.value]
                assert attempt.scope == scope and attempt.specs[n] == op.spec, f"{op} is not {attempt.specs[n]}"
                first = op.seq - n
                assert first == (attempt.first or first), f"{op} was told to be {attempt.first + n}"
                assert firsts.setdefault(attempt.number, first) == first, f"{op} is not where its commit is"
                assert attempt.refused is None or attempt.refused > at, f"{op} was refused, and is there"
        return firsts

    def _hold_scopes(self, found: Found, firsts: dict[int, int], at: int, level: Durability, apart: bool) -> None:
        here = {number: replace(self.attempts[number], first=first) for number, first in firsts.items()}
        retired: dict[str, int] = {}
        for one in here.values():
            for op in one.ops():
                if op.spec.op == "retire":
                    retired[op.spec.retired] = max(op.seq, retired.get(op.spec.retired, 0))
        for scope in {*found, *(one.scope for one in self.attempts)}:
            floor = retired.get(scope, 0)
            got = found.get(scope, [])
            assert not got or got[0].seq > floor, f"{scope!r} was retired at {floor}, and {got[0]} is there"
            end = got[-1].seq if got else 0
            wanted: list[Attempt] = []
            for one in self.attempts:
                one = here.get(one.number, one)
                if one.scope != scope or (one.first and one.first <= floor):
                    continue
                if one.number in here or (one.refused is None and (one.sure(level, at) or 0 < one.first < end)):
                    wanted.append(one)
            self._hold_life(scope, got, sorted(wanted, key=lambda one: one.first))
            if scope and not apart:
                self._hold_lives(scope, floor, end, here)

    def _hold_life(self, scope: str, got: list[Op], wanted: list[Attempt]) -> None:
        """All of what must be there, and no more: whole commits, none left out below the end."""
        expected = [op for one in wanted for op in one.ops()]
        there = {op.seq: op.spec for op in got}
        must = needed(expected) if scope in self.compacted else expected
        if scope in self.compacted:
            must = [op for op in must if op.spec.op != "retire"]
        for op in must:
            assert there.get(op.seq) == op.spec, f"{op} of {scope!r} is missing"
        may = {op.seq: op.spec for op in expected}
        for op in got:
            assert may.get(op.seq) == op.spec, f"{op} of {scope!r} belongs to nothing"

    def _hold_lives(self, scope: str, floor: int, end: int, here: dict[int, Attempt]) -> None:
        """What is found of a scope is of one life: no retirement that ended one below it is missing from main."""
        lived = min((one.first for one in self.attempts if one.scope == scope and one.first > floor), default=0)
        for one in self.attempts:
            if one.number in here or not one.first or one.scope != SESSION_ID or one.refused is not None:
                continue
            for op in one.ops():
                ends = op.spec.op == "retire" and op.spec.retired == scope and lived < op.seq
                assert not ends or op.seq > end, f"{scope!r} reaches {end}, and its retirement {op.seq} is missing"

    def hold_list(self, got: Sequence[tuple[int, object]], scope: str, key: str, at: int, *, all_of_it: bool) -> None:
        """A list as the session shows it: what was admitted before ``at``, in order, nothing that was refused."""
        by_value = {spec.value: (one, n) for one in self.attempts for n, spec in enumerate(one.specs) if spec.value}
        last = 0
        for seq, element in got:
            assert seq > last, f"{seq} after {last}"
            last = seq
            assert element in by_value, f"nobody wrote {element!r}"
            one, n = by_value[element]
            assert one.scope == scope and seq == (one.first + n if one.first else seq), f"{element!r} at {seq}"
            assert one.refused is None, f"{element!r} was refused, and was shown"
        shown = {element for _, element in got}
        if all_of_it:
            for one in self.attempts:
                for spec in one.specs if one.scope == scope and one.first and (one.ended or 0) < at else ():
                    assert spec.key != key or spec.op != "append" or spec.value in shown, f"{spec} was not shown"
