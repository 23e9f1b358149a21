"""Writing a stream of op batches: one ephemeral list, one encoder, a base where one is due."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final

from scopelog_engine.elements import NOT_PLAIN, Json, encode_json
from scopelog_engine.layout import MAX_ELEMENT_BYTES

from ...addresses import EphemeralScope, List
from ...delta import Encoder
from ...delta.ops import Op, WireOp
from ...errors import ScopelogError
from ...session import Session
from .places import BASE

REBASE_BYTES: Final = 1024 * 1024  # least bytes of batches since a base before the next one
REBASE_TIMES: Final = 8  # and how many times the base they must exceed
_log = logging.getLogger(__name__)
_LARGEST_BASE: Final = MAX_ELEMENT_BYTES // 4  # what may come to more than an element can hold goes on without


class Stream:
    """Writes one stream. Whatever goes wrong on the way of a batch, the next one is a base, so that what is stored
    can always be read: a batch that was encoded is either admitted, and then stored in order, or forgotten together
    with its encoder's state.

    A batch that is due after more than 1 MiB, and more than eight times the last base, is a base as well. So bases
    cost an eighth of what is written at most, and reading needs nine bases' bytes, or 1 MiB and a base. What stands
    before such a base is trimmed, and the scope's log compacted now and then, so that a stream of hours stays bounded.
    """

    def __init__(self, session: Session, target: List[EphemeralScope], value: Callable[[], Json]) -> None:
        """``value`` gives the stream's whole value, plain and its own."""
        self._session = session
        self._target = target
        self._value = value
        self._encoder = Encoder()
        self._pending: list[Op] = []  # ops that are not admitted yet
        self._current = False  # whether the encoder has seen all that is admitted and pending, and nothing else
        self._base = 0  # bytes of the last base
        self._since = 0  # bytes of the batches after it

    def add(self, op: Op) -> None:
        """The value was changed by this, its path from the stream's root on."""
        if op[1]:
            self._pending.append(op)
        else:
            self.lose()

    def lose(self) -> None:
        """The value was changed in another way: only a base will do."""
        self._current = False
        self._pending.clear()

    def write(self) -> int | None:
        """Stage what has changed; returns its sequence, None if nothing has.

        Raises what :meth:`Session.append` raises. The change is in the value then, and reaches the disk with the next
        batch, which will be a base.
        """
        current, self._current = self._current, False
        due = self._since > max(REBASE_BYTES, REBASE_TIMES * self._base) and self._base + self._since < _LARGEST_BASE
        if current and not due:
            if not self._pending:
                self._current = True
                return None
            batch, tag = self._encoder.encode(self._pending), None
        else:
            batch, tag = self._encoder.encode([["r", self._value()]]), BASE
        self._pending = []
        sequence = self._session.append(self._target, batch, tag)
        if tag is None:
            self._since += _size(batch)
        else:
            self._base, self._since = _size(batch), 0
        self._current = True
        if due:
            self._rotate(sequence)
        return sequence

    def _rotate(self, base: int) -> None:
        """Nothing before the base is of use any more. The commit stores it together with the base."""
        try:
            self._session.commit([self._target.trim(base - 1)])
        except ScopelogError as error:  # the base stays staged; the next one trims all before it
            _log.warning("a stream was not trimmed: %s", error.cause)
            return
        self._session._writer.rotate(self._target.scope_id)

    def catch_up(self) -> None:
        """Stage what a failure has kept from it, if it had begun."""
        if self._pending or (self._base and not self._current):
            self.write()

    def void(self) -> None:
        """What it holds is of no more use: a base without a value is staged, if anything was."""
        if self._base:
            self._session.append(self._target, self._encoder.encode([["r", None]]), BASE)
        self.lose()


def _size(batch: list[WireOp]) -> int:
    """Bytes of a batch as it will be stored, about: what is appended by id is joined with what was before."""
    if len(batch) == 1 and batch[0][0] == "a" and type(batch[0][1]) is int:
        text: str = batch[0][2]
        return len(text)
    try:
        return len(encode_json(batch))
    except NOT_PLAIN:  # a lone surrogate
        return len(json.dumps(batch))
