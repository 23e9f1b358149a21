"""Orders of the steps of a few actors: all of them, all that differ, those with few preemptions, or random ones.

A schedule is the list of choices made where more than one actor could go on; run again with it, everything happens as
it did. Orders are enumerated depth first, each by a run from the beginning (:class:`Orders`), in one of two ways:

* Without a bound, one order of each class: two orders are of one class if they differ only in the order of steps that
  commute. Steps of actors that share memory never do; those of others (a reader without the lock beside a writer) do
  unless one of them changes a file or a name that the other looks at or changes, or one is seen by the test's own
  bookkeeping. That is dynamic partial-order reduction with source sets and sleep sets (Abdulla, Aronis, Jonsson and
  Sagonas, 2014); where the actor that should have come earlier could not, all that could are tried.
* ``preemptions``: all orders in which an actor that could go on is made to wait at most so often; nothing is left out
  because of what commutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from fuzz.scheduler import Actor, Step, stay

__all__ = ["Orders", "Recorded", "at_random", "by_schedule", "text_of"]

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def text_of(schedule: Sequence[int]) -> str:
    """A schedule as a word, to be given back to :func:`by_schedule`."""
    return "".join(_DIGITS[choice] for choice in schedule) or "-"


def by_schedule(text: str) -> Callable[[Actor | None, list[Actor]], Actor]:
    """The choices of a recorded run; behind their end, no more switches than are needed."""
    choices = iter([_DIGITS.index(digit) for digit in text.strip("-")])

    def choose(current: Actor | None, able: list[Actor]) -> Actor:
        if len(able) < 2:
            return able[0]
        choice = next(choices, None)
        return stay(current, able) if choice is None else able[choice]

    return choose


def at_random(rng: Random) -> Callable[[Actor | None, list[Actor]], Actor]:
    """Each run has a leaning of its own: to go on with the same actor, to favour some, or to switch all the time."""
    going_on = rng.choice((0.0, 0.3, 0.7, 0.9))
    weights: dict[str, float] = {}

    def choose(current: Actor | None, able: list[Actor]) -> Actor:
        if current in able and current is not None and rng.random() < going_on:
            return current
        for actor in able:
            weights.setdefault(actor.name, rng.choice((0.1, 1.0, 1.0, 5.0)))
        return rng.choices(able, [weights[actor.name] for actor in able])[0]

    return choose


class Recorded:
    """Makes the choices of another function, and keeps the schedule."""

    def __init__(self, choose: Callable[[Actor | None, list[Actor]], Actor]) -> None:
        self._choose = choose
        self.schedule: list[int] = []

    def __call__(self, current: Actor | None, able: list[Actor]) -> Actor:
        chosen = self._choose(current, able)
        if len(able) > 1:
            self.schedule.append(able.index(chosen))
        return chosen


class _Node:
    """What was known before one step: who could go on with what, who was tried, who need not be (``sleep``)."""

    __slots__ = ("able", "before", "chosen", "domains", "done", "going", "sleep", "spent", "todo")

    def __init__(self, able: dict[str, Step], domains: dict[str, str], sleep: dict[str, Step]) -> None:
        self.able, self.domains, self.sleep = able, domains, sleep
        self.chosen = ""
        self.todo: set[str] = set()
        self.done: list[str] = []
        self.before = 0  # the steps that happen before this one, as bits
        self.going = ""  # who was running and could go on
        self.spent = 0  # preemptions before this step

    @property
    def step(self) -> Step:
        return self.able[self.chosen]

    @property
    def preempts(self) -> bool:
        return bool(self.going) and self.chosen != self.going


class Orders:
    """Enumerates orders: ``for choose in orders: run with choose``. Each run must be the same up to its first new
    choice. ``counted``: orders that were run to their end; ``redundant``: runs that were found to be of a class that
    has been seen."""

    def __init__(self, preemptions: int | None = None) -> None:
        self.preemptions = preemptions
        self.counted = self.redundant = 0
        self.longest = 0
        self.complete = False
        self.schedule: list[int] = []
        self.new = False  # whether the run just made was of a new class
        self._stack: list[_Node] = []
        self._depth = 0
        self._asleep = False

    def __iter__(self) -> Iterator[Callable[[Actor | None, list[Actor]], Actor]]:
        fresh = 0
        while True:
            self._depth, self._asleep, self.schedule = 0, False, []
            yield self._choose
            self.new = not self._asleep
            self.counted += self.new
            self.redundant += self._asleep
            self.longest = max(self.longest, len(self._stack))
            if self.preemptions is None:
                self._find_races(fresh)
            fresh = self._backtrack()
            if fresh < 0:
                self.complete = True
                return

    # --- one run ----------------------------------------------------------------------------------

    def _choose(self, current: Actor | None, able: list[Actor]) -> Actor:
        names = {actor.name: actor for actor in able}
        if self._asleep:
            chosen = stay(current, able)
        else:
            if self._depth == len(self._stack) and not self._push(current, able):
                chosen = stay(current, able)
            else:
                node = self._stack[self._depth]
                if list(node.able) != list(names) or any(node.able[n] != names[n].step for n in names):
                    now = {name: str(actor.step) for name, actor in names.items()}
                    raise AssertionError(f"not the same as before at step {self._depth}: {now}, {node.able}")
                chosen = names[node.chosen]
                self._depth += 1
        if len(able) > 1:
            self.schedule.append(able.index(chosen))
        return chosen

    def _push(self, current: Actor | None, able: list[Actor]) -> bool:
        above = self._stack[-1] if self._stack else None
        sleep: dict[str, Step] = {}
        if above is not None and self.preemptions is None:
            step, domain = above.step, above.domains[above.chosen]
            asleep = {**above.sleep, **{name: above.able[name] for name in above.done}}
            sleep = {n: s for n, s in asleep.items() if commute(s, above.domains[n], step, domain)}
        domains = {actor.name: actor.domain for actor in able}
        if above is not None:
            domains = {**above.domains, **domains}
        node = _Node({actor.name: actor.step for actor in able}, domains, sleep)
        awake = [actor for actor in able if actor.name not in sleep]
        if not awake:
            self._asleep = True
            return False
        node.chosen = stay(current, awake).name
        node.todo = {node.chosen}
        if self.preemptions is not None:
            node.going = current.name if current in able and current is not None else ""
            node.spent = 0 if above is None else above.spent + above.preempts
            if not node.going or node.spent < self.preemptions:
                node.todo = set(node.able)
        self._stack.append(node)
        return True

    # --- between runs -----------------------------------------------------------------------------

    def _backtrack(self) -> int:
        """Put another choice on the stack; returns where, -1 if there is none."""
        stack = self._stack
        while stack:
            node = stack[-1]
            node.done.append(node.chosen)
            left = [name for name in node.able if name in node.todo and name not in node.done]
            left = [name for name in left if name not in node.sleep]
            if left:
                node.chosen = left[0]
                return len(stack) - 1
            stack.pop()
        return -1

    def _find_races(self, fresh: int) -> None:
        """For each step from ``fresh`` on, and each one before that it might have overtaken: see that it will."""
        stack = self._stack
        for at in range(fresh, len(stack)):
            node = stack[at]
            step, me, domain = node.step, node.chosen, node.domains[node.chosen]
            near: list[int] = []
            covered = 0
            for n in range(at - 1, -1, -1):
                if covered >> n & 1:
                    continue
                other = stack[n]
                if other.chosen == me or not commute(other.step, other.domains[other.chosen], step, domain):
                    covered |= other.before
                    near.append(n)
            node.before = covered
            for n in near:
                node.before |= 1 << n
                if stack[n].chosen != me:
                    self._overtake(n, at)

    def _overtake(self, first: int, second: int) -> None:
        """Have the later step, with what it needs, tried before the earlier one."""
        stack, node = self._stack, self._stack[first]
        way = [n for n in range(first + 1, second) if not stack[n].before >> first & 1] + [second]
        seen = 0
        could: list[str] = []
        for n in way:
            if not stack[n].before & seen and stack[n].chosen not in could:
                could.append(stack[n].chosen)
            seen |= 1 << n
        if not node.todo.intersection(could):
            able = [name for name in could if name in node.able]
            node.todo.update(able[:1] or node.able)


def commute(one: Step, its: str, other: Step, others: str) -> bool:
    """Whether two steps of different actors have the same outcome in either order; ``its`` and ``others``: domains."""
    if its == others or one.told or other.told:
        return False
    return not (one.writes & other.writes or one.writes & other.reads or one.reads & other.writes)
