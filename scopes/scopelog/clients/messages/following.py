"""Messages as another process records them: what :meth:`Store.follow` yields, folded into what is streaming."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from scopelog_engine.elements import Json
from scopelog_engine.errors import ScopelogError

from ...addresses import ephemeral
from ...delta import UNDEFINED, Decoder, apply
from ...errors import InvalidInput
from ...follow import Base, Deleted, FollowEvent, Records, Retired
from ...session import LogRecord, SessionReader, given_as
from .places import ASSISTANT_OUTPUT, BASE, ENTRIES, OPERATIONS, TOOL_OUTPUT, entries, running_operation
from .reading import entries_since, response_state, settled_name


class Streaming(NamedTuple):
    """A response as it is now; ``message`` is the follower's own and changes with it: copy what is to be kept.
    ``ended``: of each content block, whether it is complete."""

    operation: str
    entry_id: str
    message: dict[str, Json]
    ended: tuple[bool, ...]


class Output(NamedTuple):
    """What a tool has put out so far, as :attr:`ToolSink.output`; the follower's own, too."""

    operation: str
    invocation_id: str
    output: dict[str, Json]


class Settled(NamedTuple):
    """A message has settled in a lane. ``entry``: as :func:`history` gives it."""

    lane: str
    entry: dict[str, Json]


class Over(NamedTuple):
    """An operation has ended, or everything begins anew (``operation`` is None): what it streamed is of no use."""

    operation: str | None


class Unreadable(NamedTuple):
    """A stream of an operation cannot be folded; it is passed over until its next base."""

    operation: str
    key: str
    error: ScopelogError


Change: TypeAlias = "Streaming | Output | Settled | Over | Unreadable"


class _Stream:
    """One list of op batches, from its newest base on."""

    def __init__(self) -> None:
        self._decoder: Decoder | None = None
        self.value: Any = UNDEFINED

    def take(self, batch: Json, tag: str | None) -> bool:
        """Whether the value has changed. Raises :class:`InvalidInput` for a batch that does not fit."""
        if tag == BASE:
            self._decoder, self.value = Decoder(), UNDEFINED
        if self._decoder is None:
            return False  # begun before we looked, or lost
        try:
            self.value = apply(self.value, self._decoder.decode(batch))
        except InvalidInput:
            self._decoder, self.value = None, UNDEFINED
            raise
        return True


class FollowedMessages:
    """Folds the events of a :class:`SessionFollower` of a whole session, from its base on. Not thread-safe.

    In the commit that ends an operation :class:`Over` comes before the last :class:`Settled`. A position is good only
    together with the object that took what came before it: keep both, pickled, or begin without a position.

    Memory: the messages and outputs that are streaming, and nothing of what has settled.
    """

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str, str], _Stream] = {}
        self._settled: set[tuple[str, str, str]] = set()  # streams whose message has settled: of no use any more

    def take(self, event: FollowEvent) -> list[Change]:
        """What an event changes. Streams that are under way at a :class:`Base` are among it; what has settled before is
        not. The reader of a base stays the caller's. Raises what reads raise."""
        if isinstance(event, Base):
            self._streams.clear()
            self._settled.clear()
            return [Over(None), *self._begin(event.reader)]
        if isinstance(event, Records):
            return self._records(event.scope, event.records)
        if isinstance(event, Retired):
            return self._end(event.scope)
        if not isinstance(event, Deleted):
            raise InvalidInput(f"{given_as(event)} is no event of a follower", "pass what store.follow yields")
        self._streams.clear()
        self._settled.clear()
        return [Over(None)]

    def _begin(self, reader: SessionReader) -> list[Change]:
        changes: list[Change] = []
        for running in reader.scan(OPERATIONS):
            operation = running_operation(running.value)
            for _, entry in entries_since(reader, entries(running.key), running.seq):
                if operation is not None:
                    self._settled.add((operation, *_stream_of(entry)))
        for operation in reader.scopes():
            scope = ephemeral(operation)
            for namespace in (ASSISTANT_OUTPUT, TOOL_OUTPUT):
                for key in reader.lists(scope, namespace):
                    newest = reader.read(scope.list_of(namespace, key), order="desc", stop_at_tag=BASE)
                    for element in reversed(newest):
                        changes += self._batch(operation, namespace, key, element.element, element.tag)
        return _last_of_each(changes)

    def _records(self, scope: str | None, records: list[LogRecord]) -> list[Change]:
        changes: list[Change] = []
        for record in records:
            if record.op != "append" or record.namespace is None or record.key is None:
                continue
            if scope is None:
                if record.namespace == ENTRIES and isinstance(record.value, dict):
                    self._settle(record.value)
                    changes.append(Settled(record.key, record.value))
            elif record.namespace in (ASSISTANT_OUTPUT, TOOL_OUTPUT):
                changes += self._batch(scope, record.namespace, record.key, record.value, record.tag)
        return _last_of_each(changes)

    def _batch(self, operation: str, namespace: str, key: str, batch: Json, tag: str | None) -> list[Change]:
        name = (operation, namespace, key)
        if name in self._settled:
            return []
        fresh = name not in self._streams
        stream = self._streams.setdefault(name, _Stream())
        try:
            if not stream.take(batch, tag):
                lost = InvalidInput("its beginning was not seen", "begin without a position, or wait for its next base")
                return [Unreadable(operation, key, lost)] if fresh else []
        except InvalidInput as error:
            return [Unreadable(operation, key, error)]
        value = stream.value
        if namespace == TOOL_OUTPUT:
            return [Output(operation, key, value)] if isinstance(value, dict) else []
        if not isinstance(value, dict) or value.get("streamingMessage") is None:
            return []  # it was given up, or has settled
        state = response_state(value)
        if state is None:
            return [Unreadable(operation, key, InvalidInput("a stream holds no state of a message", "nothing"))]
        ended = tuple(entry is None or bool(entry["ended"]) for entry in state["frameState"])
        return [Streaming(operation, key, value["streamingMessage"], ended)]

    def _settle(self, entry: dict[str, Json]) -> None:
        """Whichever operation it is of: what its stream still holds is not shown."""
        for name in [name for name in self._streams if name[1:] == _stream_of(entry)]:
            del self._streams[name]
            self._settled.add(name)

    def _end(self, operation: str) -> list[Change]:
        self._settled = {name for name in self._settled if name[0] != operation}
        for key in [key for key in self._streams if key[0] == operation]:
            del self._streams[key]
        return [Over(operation)]


def _stream_of(entry: dict[str, Json]) -> tuple[str, str]:
    """The namespace and key of the stream that an entry settles."""
    kind, name = settled_name(entry)
    return (TOOL_OUTPUT if kind == "tool" else ASSISTANT_OUTPUT), name


def _last_of_each(changes: list[Change]) -> list[Change]:
    """Of several changes to one stream the last: each is all there is."""
    seen: set[tuple[str, str]] = set()
    kept: list[Change] = []
    for change in reversed(changes):
        if isinstance(change, (Streaming, Output)):
            if (change.operation, change[1]) in seen:
                continue
            seen.add((change.operation, change[1]))
        kept.append(change)
    return kept[::-1]
