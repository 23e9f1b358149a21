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
from .outcomes import INTERRUPTED, interrupted_result, output_of, recovered_message, sendable_message, tool_calls
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
            found.append({"entryId": self.response.entry_id, "message": self.response.message})
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
        return {"entryId": name, "message": answer}

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
    return [
        _recovered(source, operation, entry.key, entry.seq, when)
        for entry in source.scan(OPERATIONS)
        if (operation := running_operation(entry.value)) is not None
    ]


def _recovered(source: Source, operation: str, lane: str, began: int, when: int) -> RecoveredOperation:
    settled = entries_since(source, entries(lane), began)[::-1]
    names = {settled_name(entry) for entry in settled}
    scope = ephemeral(operation)
    problems: list[ScopelogError] = []

    def read(target: List[EphemeralScope]) -> Any:
        try:
            value = read_stream(source, target)
            if value is UNDEFINED:
                raise InvalidInput(f"{target!r} holds no base", "nothing needs to be done: what it held is lost")
        except (CorruptLog, InvalidInput) as error:
            _log.warning("pending output of the operation %r cannot be read (%s)", operation, type(error).__name__)
            problems.append(error)
            return None
        return value

    responses: list[tuple[int, RecoveredResponse]] = []
    for key in source.lists(scope, ASSISTANT_OUTPUT):
        if ("response", key) not in names:
            target = assistant_output(operation, key)
            state = response_state(read(target))
            if state is not None:
                responses.append((source.read(target, order="desc", limit=1)[0].seq, _response(key, state, when)))
    memos: dict[str, dict[str, Json]] = {}
    for memo in source.scan(MEMO, scope=scope):
        invocation, name = memo_name(memo.key)
        memos.setdefault(invocation, {})[name] = memo.value
    invocations = [key for key in source.lists(scope, TOOL_OUTPUT) if ("tool", key) not in names]
    tools = {key: output_of(read(tool_output(operation, key))) for key in invocations}
    for invocation in memos:
        if ("tool", invocation) not in names:
            tools.setdefault(invocation, output_of(None))
    return RecoveredOperation(
        id=operation,
        lane=lane,
        response=max(responses, key=lambda pair: pair[0])[1] if responses else None,
        tools=tuple(RecoveredTool(key, output, memos.get(key, {})) for key, output in tools.items()),
        entries=tuple(settled),
        problems=tuple(problems),
        time=when,
    )


def _response(entry_id: str, state: dict[str, Any], when: int) -> RecoveredResponse:
    ended = tuple(entry is None or entry["ended"] for entry in state["frameState"])
    return RecoveredResponse(entry_id, current_message(state), ended, when)
