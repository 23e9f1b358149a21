"""A plain mutator: always there, always the same. No coverage guides it, but domains that know the structure do.

``python -m fuzz.mutator [TARGET ...] [--seed N] [--seconds S] [--keep DIRECTORY]``. Half of the inputs are fresh bytes,
which spell structured values; the others are of a corpus, with a few things done to them. An input that fails is cut
down and written to a file; the line that plays it again stands in the note of the exception.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

from fuzz.corpus import TOKENS, seeds
from fuzz.targets import TARGETS, Target, again

LONGEST: Final = 1 << 16  # what an input may grow to
_FRESH: Final = (4, 12, 40, 120, 400)  # bytes of a fresh input
_TRIES: Final = 300  # in cutting a failing input down
_NUMBERS: Final = (0, 1, 2, 7, 16, 32, 64, 100, 127, 128, 255, 256, 4096, 32767, 65535, 1 << 20, (1 << 31) - 1)


class Mutator:
    """An endless row of inputs, the same for the same seed and corpus."""

    def __init__(self, seed: int, corpus: Sequence[bytes], tokens: Sequence[bytes] = TOKENS) -> None:
        self._random = Random(seed)
        self._corpus = corpus
        self._tokens = tokens

    def __iter__(self) -> Iterator[bytes]:
        while True:
            random = self._random
            if not self._corpus or random.random() < 0.5:
                yield random.randbytes(random.choice(_FRESH))
                continue
            data = random.choice(self._corpus)
            for _ in range(random.choice((0, 1, 1, 2, 3, 6))):
                data = random.choice(_MUTATIONS)(self, data)[:LONGEST]
            yield data

    def _place(self, data: bytes) -> int:
        return self._random.randrange(len(data) + 1)

    def _piece(self, data: bytes) -> bytes:
        at = self._place(data)
        return data[at : at + self._random.choice((1, 2, 4, 8, 30, 200, 5000))]

    def flip(self, data: bytes) -> bytes:
        if not data:
            return data
        at = self._random.randrange(len(data))
        return data[:at] + bytes((data[at] ^ 1 << self._random.randrange(8),)) + data[at + 1 :]

    def set_byte(self, data: bytes) -> bytes:
        at = self._place(data)
        return data[:at] + self._random.randbytes(1) + data[at + 1 :]

    def copy(self, data: bytes) -> bytes:
        """A piece of it over another place."""
        at, piece = self._place(data), self._piece(data)
        return data[:at] + piece + data[at + len(piece) :]

    def repeat(self, data: bytes) -> bytes:
        at, piece = self._place(data), self._piece(data)
        return data[:at] + piece * self._random.choice((1, 1, 2, 20)) + data[at:]

    def delete(self, data: bytes) -> bytes:
        at = self._place(data)
        return data[:at] + data[at + len(self._piece(data)) :]

    def cut(self, data: bytes) -> bytes:
        return data[: self._place(data)]

    def splice(self, data: bytes) -> bytes:
        """Goes on as another input does."""
        other = self._random.choice(self._corpus)
        return data[: self._place(data)] + other[self._place(other) :]

    def put_number(self, data: bytes) -> bytes:
        width, at = self._random.choice((1, 2, 4, 8)), self._place(data)
        number = self._random.choice(_NUMBERS) * self._random.choice((1, 1, -1)) % (1 << 8 * width)
        return data[:at] + number.to_bytes(width, self._random.choice(("little", "big"))) + data[at + width :]

    def put_token(self, data: bytes) -> bytes:
        at, token = self._place(data), self._random.choice(self._tokens)
        return data[:at] + token + data[at + self._random.choice((0, len(token))) :]

    def put_zeros(self, data: bytes) -> bytes:
        at, count = self._place(data), self._random.choice((1, 8, 100, 4096))
        return data[:at] + bytes(count) + data[at + self._random.choice((0, count)) :]


_MUTATIONS: Final[tuple[Callable[[Mutator, bytes], bytes], ...]] = (
    Mutator.flip,
    Mutator.flip,
    Mutator.set_byte,
    Mutator.copy,
    Mutator.repeat,
    Mutator.delete,
    Mutator.cut,
    Mutator.splice,
    Mutator.put_number,
    Mutator.put_token,
    Mutator.put_zeros,
)


def inputs(target: Target, seed: int) -> Iterator[bytes]:
    """Inputs for a target, from its corpus."""
    return iter(Mutator(seed, seeds(target.name)))


def attempt(target: Target, data: bytes, keep: Path) -> None:
    """Play one input. Of one that fails a short form is kept in the directory, and the exception says where."""
    try:
        target.run(data)
    except Exception as error:
        short = shortened(target, data)
        keep.mkdir(parents=True, exist_ok=True)
        path = keep / f"{target.name}-{hashlib.sha256(short).hexdigest()[:12]}"
        path.write_bytes(short)
        error.add_note(again(target.name, short, path if len(short) > 300 else None) + f"  # kept in {path}")
        raise


def shortened(target: Target, data: bytes) -> bytes:
    """An input that fails at the same place, without what it does not need."""
    wanted, left = _failure(target, data), _TRIES
    size = len(data) // 2
    while size and left > 0:
        at = 0
        while at < len(data) and left > 0:
            left -= 1
            shorter = data[:at] + data[at + size :]
            if _failure(target, shorter) == wanted:
                data = shorter
            else:
                at += size
        size //= 2
    return data


def _failure(target: Target, data: bytes) -> tuple[str, int] | None:
    """Where an input fails: the kind of error and the line that raised it."""
    try:
        target.run(data)
    except Exception as error:  # noqa: BLE001 - looked at, and raised by the caller
        return type(error).__name__, traceback.extract_tb(error.__traceback__)[-1].lineno or 0
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.mutator", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all of them")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seconds", type=float, default=20, help="how long each target goes on (20)")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="where failing inputs are kept")
    chosen = parser.parse_args(arguments)
    failed = 0
    for name in chosen.targets or TARGETS:
        target, count, end = TARGETS[name], 0, time.monotonic() + chosen.seconds
        try:
            for data in inputs(target, chosen.seed):
                attempt(target, data, chosen.keep)
                count += 1
                if time.monotonic() >= end:
                    break
        except Exception:  # noqa: BLE001 - printed; the other targets go on
            failed += 1
            traceback.print_exc()
        print(f"{name}: {count:,} inputs", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
