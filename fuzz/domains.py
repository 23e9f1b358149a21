"""Domains: what a value may be, said once, and drawn from bytes by one fuzzer and by hypothesis for another.

:meth:`Domain.take` is total: every byte string spells a value, and where it ends each choice is the first one. A choice
takes few bytes and always as many, so that whoever mutates the bytes changes one choice and leaves the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)
_MOST: Final = 64  # items of a domain that has no bound of its own, as hypothesis draws it


class Tape:
    """Bytes that are read as choices."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return max(0, len(self._data) - self._at)

    def take(self, length: int) -> bytes:
        """The next ``length`` bytes, or what is left of them."""
        piece = self._data[self._at : self._at + length]
        self._at += length
        return piece

    def below(self, count: int) -> int:
        """A number from 0 to ``count - 1``."""
        if count <= 1:
            return 0
        width = ((count - 1).bit_length() + 7) // 8
        return int.from_bytes(self.take(width), "little") % count


class Domain(ABC, Generic[T_co]):
    @abstractmethod
    def take(self, tape: Tape) -> T_co:
        """The value that the next bytes spell."""

    @abstractmethod
    def strategy(self) -> SearchStrategy[T_co]:
        """The same values, for hypothesis."""

    def decode(self, data: bytes) -> T_co:
        return self.take(Tape(data))


class One(Domain[T]):
    """One of some values; one that is given twice is drawn twice as often."""

    def __init__(self, *values: T) -> None:
        self._values = values

    def take(self, tape: Tape) -> T:
        return self._values[tape.below(len(self._values))]

    def strategy(self) -> SearchStrategy[T]:
        from hypothesis import strategies as st

        return st.sampled_from(self._values)


class Number(Domain[int]):
    """An integer from ``low`` to ``high``, both included."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high

    def take(self, tape: Tape) -> int:
        return self._low + tape.below(self._high - self._low + 1)

    def strategy(self) -> SearchStrategy[int]:
        from hypothesis import strategies as st

        return st.integers(self._low, self._high)


class Text(Domain[str]):
    """Up to ``most`` characters of an alphabet."""

    def __init__(self, alphabet: str, most: int) -> None:
        self._alphabet, self._most = alphabet, most

    def take(self, tape: Tape) -> str:
        count = tape.below(self._most + 1)
        return "".join(self._alphabet[tape.below(len(self._alphabet))] for _ in range(count))

    def strategy(self) -> SearchStrategy[str]:
        from hypothesis import strategies as st

        return st.text(self._alphabet, max_size=self._most)


class Blob(Domain[bytes]):
    """Up to ``most`` bytes, as they are; without a bound all that is left of the tape."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most

    def take(self, tape: Tape) -> bytes:
        return tape.take(tape.left if self._most is None else tape.below(self._most + 1))

    def strategy(self) -> SearchStrategy[bytes]:
        from hypothesis import strategies as st

        return st.binary(max_size=400 if self._most is None else self._most)


class Many(Domain["list[T]"]):
    """From ``low`` to ``high`` values. Without ``high`` they go on to the end of the tape, ``_MOST`` at most."""

    def __init__(self, of: Domain[T], low: int = 0, high: int | None = None) -> None:
        self._of, self._low, self._high = of, low, high

    def take(self, tape: Tape) -> list[T]:
        if self._high is not None:
            return [self._of.take(tape) for _ in range(self._low + tape.below(self._high - self._low + 1))]
        found: list[T] = []
        while len(found) < self._low or (tape.left and len(found) < _MOST):
            found.append(self._of.take(tape))
        return found

    def strategy(self) -> SearchStrategy[list[T]]:
        from hypothesis import strategies as st

        return st.lists(self._of.strategy(), min_size=self._low, max_size=_MOST if self._high is None else self._high)


class Either(Domain[T]):
    """A value of one of the domains."""

    def __init__(self, *domains: Domain[T]) -> None:
        self._domains = domains

    def take(self, tape: Tape) -> T:
        return self._domains[tape.below(len(self._domains))].take(tape)

    def strategy(self) -> SearchStrategy[T]:
        from hypothesis import strategies as st

        return st.one_of([domain.strategy() for domain in self._domains])


class Build(Domain[T]):
    """What ``make`` makes of a value for each of its arguments."""

    def __init__(self, make: Callable[..., T], **fields: Domain[Any]) -> None:
        self._make, self._fields = make, fields

    def take(self, tape: Tape) -> T:
        return self._make(**{name: domain.take(tape) for name, domain in self._fields.items()})

    def strategy(self) -> SearchStrategy[T]:
        from hypothesis import strategies as st

        fields = st.fixed_dictionaries({name: domain.strategy() for name, domain in self._fields.items()})
        return fields.map(lambda found: self._make(**found))


class Mapped(Domain[U], Generic[T, U]):
    """What a function makes of the values of another domain."""

    def __init__(self, of: Domain[T], function: Callable[[T], U]) -> None:
        self._of, self._function = of, function

    def take(self, tape: Tape) -> U:
        return self._function(self._of.take(tape))

    def strategy(self) -> SearchStrategy[U]:
        return self._of.strategy().map(self._function)


class Nested(Domain[Any]):
    """JSON: scalars, and lists and dicts of what is itself so, ``depth`` deep and ``width`` wide."""

    def __init__(self, scalars: Domain[Any], keys: Domain[str], depth: int = 2, width: int = 2) -> None:
        self._scalars, self._keys, self._depth, self._width = scalars, keys, depth, width

    def take(self, tape: Tape) -> Any:
        return self._take(tape, self._depth)

    def _take(self, tape: Tape, depth: int) -> Any:
        kind = tape.below(8) if depth else 0
        if kind == 6:
            return [self._take(tape, depth - 1) for _ in range(tape.below(self._width + 1))]
        if kind == 7:
            count = tape.below(self._width + 1)
            return {self._keys.take(tape): self._take(tape, depth - 1) for _ in range(count)}
        return self._scalars.take(tape)

    def strategy(self) -> SearchStrategy[Any]:
        from hypothesis import strategies as st

        return st.recursive(
            self._scalars.strategy(),
            lambda inner: (
                st.lists(inner, max_size=self._width)
                | st.dictionaries(self._keys.strategy(), inner, max_size=self._width)
            ),
            max_leaves=4,
        )
