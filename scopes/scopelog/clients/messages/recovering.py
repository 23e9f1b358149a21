"""Recovery: what operations that a crash has interrupted had put out, read without changing anything."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

from scopelog_engine.elements import Json

from ...addresses import EphemeralScope, List, SessionScope, Write, ephemeral
from ...delta import UNDEFINED
from ...errors import CorruptLog, InvalidInput, ScopelogError
from ...session import Session, SessionReader, given_as
from .copying import finite
from .outcomes import (
    INTERRUPTED,
    interrupted_result,
    output_of,
    recovered_message,
    sendable_message,
    storable,
    tool_calls,
)
from .places import (
    ASSISTANT_OUTPUT,
    MEMO,
    OPERATIONS,
    TOOL_OUTPUT,
    assistant_output,
    entries,
    memo_name,
    running,
    running_operation,
    tool_output,
)
from .reading import Entry, Source, entries_since, read_stream, response_state, settled_name
from .reducing import current_message

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecoveredResponse:
    """An assistant message that was streaming."""

    entry_id: str
    fold: Json
    """The message as it was: what :func:`fold` makes of the frames that were stored."""
    ended: tuple[bool, ...]
    """Of each block of its content, whether it was complete."""

    time: int = 0
    """In ms since 1970, for a message that has none of its own."""
    stop_reason: str = "error"
    error: str = INTERRUPTED

    @property
    def message(self) -> dict[str, Json]:
        """As it is settled: stopReason ``error``, a fixed errorMessage, usage zeroed."""
        return recovered_message(self.fold, self.time, stop_reason=self.stop_reason, error=self.error)

    @property
    def sendable(self) -> dict[str, Json] | None:
        """As a provider takes it back, None if nothing of it is left. Its tool calls need answers:
        :meth:`RecoveredOperation.answers`."""
        return sendable_message(self.message, self.ended)


@dataclass(frozen=True)
class RecoveredTool:
    """The output of a tool that was running."""

    invocation_id: str
    output: dict[str, Json]
    """``text``; ``details``, ``droppedBytes`` and ``droppedLines`` if there are any."""
    memos: dict[str, Json] = field(default_factory=dict)
    """What its checkpoints have left, by name."""


@dataclass(frozen=True)
class RecoveredOperation:
    """An operation that was begun and has not ended, and what of it was not settled."""

    id: str
    lane: str
    response: RecoveredResponse | None
    """The message that was streaming, if one was."""
    tools: tuple[RecoveredTool, ...]
    entries: tuple[Entry, ...]
    """What was settled since it began, oldest first."""
    problems: tuple[ScopelogError, ...] = ()
    """What could not be read."""
    time: int = 0
    """Of the session's last commit, in ms since 1970: for messages that have none of their own."""

    def answers(self) -> list[dict[str, Json]]:
        """A tool result for each tool call of the operation that has none: what the tool had put out, and that it was
        interrupted. With them the messages are what providers take."""
        return [answer for answers in self._answers() for answer in answers]

    def sendable(self) -> list[dict[str, Json]]:
        """What the operation adds to its history, in a form that providers take: the messages it had settled, the one
        that was streaming, and behind each the answers to its tool calls that have none."""
        found: list[dict[str, Json]] = []
        for message, answers in zip(self._messages(), self._answers(), strict=True):
            sent = sendable_message(message) if message.get("role") == "assistant" else message
            found += [sent] if sent is not None else []
            found += answers
        return found

    def settlement(self) -> list[Entry]:
        """The entries that settle it: answers to calls of settled messages, the recovered message, answers to its own
        calls."""
        answers = self._answers()
        streaming = self.response is not None and self.response.sendable is not None
        own = answers.pop() if streaming else []
        found = [self._entry(answer, number) for number, those in enumerate(answers) for answer in those]
        if self.response is not None:
            found.append({"entryId": self.response.entry_id, "message": storable(self.response.message)})
        return found + [self._entry(answer, len(answers)) for answer in own]

    def ended_as(self, stop_reason: str, error: str) -> RecoveredOperation:
        """The same, its streaming message to be settled with another reason."""
        response = self.response and replace(self.response, stop_reason=stop_reason, error=error)
        return replace(self, response=response)

    def _messages(self) -> list[dict[str, Json]]:
        """The settled messages, and the streaming one as it can be sent."""
        messages = [entry.get("message") for entry in self.entries]
        messages.append(self.response.sendable if self.response is not None else None)
        return [message for message in messages if isinstance(message, dict)]

    def _answers(self) -> list[list[dict[str, Json]]]:
        """For each of the messages, answers to those of its calls that have no result behind it. An id may be used
        again by a later message."""
        calls: list[dict[str, str]] = []
        for message in self._messages():
            answered = str(message.get("toolCallId"))
            for earlier in reversed(calls):
                if earlier.pop(answered, None) is not None:
                    break
            calls.append(tool_calls(message))
        outputs = {str(tool.output.get("toolCallId", tool.invocation_id)): tool.output for tool in self.tools}
        return [
            [interrupted_result(call, outputs.get(call), name, self.time) for call, name in unanswered.items()]
            for unanswered in calls
        ]

    def _entry(self, answer: dict[str, Json], number: int) -> Entry:
        """``number``: of the message that called, for ids that are used again."""
        call = answer["toolCallId"]
        taken = {entry.get("entryId") for entry in self.entries}
        name = call if call not in taken else f"{call}#{number}"
        return {"entryId": name, "message": storable(answer)}

    def end_writes(self) -> list[Write[SessionScope]]:
        """What ends it, in the commit that they are part of."""
        return [running(self.lane).delete(), ephemeral(self.id).retire()]

    def as_json(self) -> dict[str, Json]:
        """Plain data, as ``scopelog recover --json`` prints it."""
        response = self.response
        return {
            "operation": self.id,
            "lane": self.lane,
            "response": response
            and {
                "entryId": response.entry_id,
                "message": response.message,
                "fold": finite(response.fold),
                "sendable": response.sendable,
            },
            "tools": [{"invocationId": t.invocation_id, "output": t.output, "memos": t.memos} for t in self.tools],
            "answers": self.answers(),
            "problems": [str(problem) for problem in self.problems],
        }


def recover(source: Source) -> list[RecoveredOperation]:
    """What was interrupted in a session: every operation that was begun and has not ended.

    ``source``: a session, or a reader, also of a session that is being written: what its operations have stored so
    far is shown then. Pending output of what was settled is left out. A stream that cannot be read is reported in its
    operation's ``problems``; the others are read all the same. Reads no history but that of the operations. Messages
    that have no timestamp get the time of the session's last commit.

    Raises :class:`CorruptLog` and other errors of reads for what is outside of the streams, and
    :class:`InvalidInput` for what is no session and no reader.
    """
    if not isinstance(source, (Session, SessionReader)):
        remedy = "pass a Session or a SessionReader; of an AsyncSession its sync, or await AsyncLane.recover()"
        raise InvalidInput(f"{given_as(source)} was given to recover", remedy)
    when = source.info().updated
    found: list[RecoveredOperation] = []
    for entry in source.scan(OPERATIONS):
        operation = running_operation(entry.value)
        if operation is not None:
            try:
                scope = ephemeral(operation)
            except InvalidInput:
                _log.warning("the lane %r names an operation that can be none", entry.key)
                continue
            found.append(
                _Scope(source, scope, entries_since(source, entries(entry.key), entry.seq)).read(entry.key, when)
            )
    return found


class _Scope:
    """What an operation's scope holds that is not settled."""

    def __init__(self, source: Source, scope: EphemeralScope, settled: list[tuple[int, Entry]]) -> None:
        self._source = source
        self._scope = scope
        self._entries = [entry for _, entry in reversed(settled)]
        names = [(settled_name(entry), sequence) for sequence, entry in settled]
        self._names = {name for name, _ in names}
        # A response that another has followed to its end was given up: what it had streamed is of no use.
        self._newest = max((sequence for (kind, _), sequence in names if kind == "response"), default=0)
        self._problems: list[ScopelogError] = []

    def read(self, lane: str, when: int) -> RecoveredOperation:
        response, tools = self._response(when), self._tools()
        return RecoveredOperation(
            id=self._scope.id,
            lane=lane,
            response=response,
            tools=tools,
            entries=tuple(self._entries),
            problems=tuple(self._problems),
            time=when,
        )

    def _response(self, when: int) -> RecoveredResponse | None:
        """The youngest response that is not settled."""
        found: list[tuple[int, RecoveredResponse]] = []
        for key in self._source.lists(self._scope, ASSISTANT_OUTPUT):
            if ("response", key) in self._names:
                continue
            target = assistant_output(self._scope.id, key)
            sequence, value = self._value(target)
            if sequence < self._newest or not isinstance(value, dict) or value.get("streamingMessage") is None:
                continue
            state = response_state(value)
            if state is None:
                self._refuse(InvalidInput(f"{target!r} holds no state of a message", "nothing needs to be done"))
            else:
                found.append((sequence, _response(key, state, when)))
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def _tools(self) -> tuple[RecoveredTool, ...]:
        memos: dict[str, dict[str, Json]] = {}
        for memo in self._source.scan(MEMO, scope=self._scope):
            named = memo_name(memo.key)
            if named is not None and ("tool", named[0]) not in self._names:
                memos.setdefault(named[0], {})[named[1]] = memo.value
        outputs = {
            key: output_of(self._value(tool_output(self._scope.id, key))[1])
            for key in self._source.lists(self._scope, TOOL_OUTPUT)
            if ("tool", key) not in self._names
        }
        for invocation in memos:
            outputs.setdefault(invocation, output_of(None))
        return tuple(RecoveredTool(key, output, memos.get(key, {})) for key, output in outputs.items())

    def _value(self, target: List[EphemeralScope]) -> tuple[int, Any]:
        """What a stream holds, and its newest sequence; None if it cannot be read."""
        try:
            sequence, value = read_stream(self._source, target)
            if value is UNDEFINED:
                raise InvalidInput(f"{target!r} holds no base", "nothing needs to be done: what it held is lost")
        except (CorruptLog, InvalidInput) as error:
            self._refuse(error)
            return 0, None
        return sequence, value

    def _refuse(self, error: ScopelogError) -> None:
        _log.warning("pending output of the operation %r cannot be read (%s)", self._scope.id, type(error).__name__)
        self._problems.append(error)


def _response(entry_id: str, state: dict[str, Any], when: int) -> RecoveredResponse:
    ended = tuple(entry is None or entry["ended"] for entry in state["frameState"])
    return RecoveredResponse(entry_id, current_message(state), ended, when)
