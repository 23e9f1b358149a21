"""Recovery: what operations that a crash has interrupted had put out, read without changing anything."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scopelog_engine.elements import Json

from ...addresses import EphemeralScope, List, SessionScope, Write, ephemeral
from ...delta import UNDEFINED
from ...errors import CorruptLog, InvalidInput, ScopelogError
from .copying import finite
from .places import (
    ASSISTANT_OUTPUT,
    MEMO,
    OPERATIONS,
    TOOL_OUTPUT,
    assistant_output,
    entries,
    memo_name,
    running,
    tool_output,
)
from .reading import Entry, Source, entries_since, read_stream, response_state, settled_name
from .recovered import interrupted_result, output_of, recovered_message, sendable_message, tool_calls
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

    @property
    def message(self) -> dict[str, Json]:
        """As it is settled: stopReason ``error``, a fixed errorMessage, usage zeroed."""
        return recovered_message(self.fold)

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
    """What it had settled, oldest first."""
    problems: tuple[ScopelogError, ...] = ()
    """What could not be read."""

    def answers(self) -> list[dict[str, Json]]:
        """A tool result for each tool call of the operation that has none: what the tool had put out, and that it was
        interrupted. With them the messages are what providers take."""
        answers = self._answers()
        return [answer for message in self._messages() for answer in answers(message)]

    def sendable(self) -> list[dict[str, Json]]:
        """What the operation adds to its history, in a form that providers take: the messages it had settled, the one
        that was streaming, and behind each the answers to its tool calls that have none."""
        answers = self._answers()
        found: list[dict[str, Json]] = []
        for message in self._messages():
            sent = sendable_message(message) if message.get("role") == "assistant" else message
            found += [sent] if sent is not None else []
            found += answers(message)
        return found

    def settlement(self) -> list[Entry]:
        """The entries that settle it: answers to calls of settled messages, the recovered message, answers to its own
        calls."""
        answers = self._answers()
        settled = [message for entry in self.entries if isinstance(message := entry.get("message"), dict)]
        found = [self._entry(answer) for message in settled for answer in answers(message)]
        if self.response is not None:
            found.append({"entryId": self.response.entry_id, "runId": self.id, "message": self.response.message})
            found += [self._entry(answer) for answer in answers(self.response.sendable or {})]
        return found

    def _messages(self) -> list[dict[str, Json]]:
        """The settled messages, and the streaming one as it can be sent."""
        messages = [entry.get("message") for entry in self.entries]
        messages.append(self.response.sendable if self.response is not None else None)
        return [message for message in messages if isinstance(message, dict)]

    def _answers(self) -> Callable[[dict[str, Json]], list[dict[str, Json]]]:
        """A function that answers those calls of a message which have no result; each call once."""
        answered = {str(message["toolCallId"]) for message in self._messages() if message.get("toolCallId")}
        outputs = {tool.invocation_id: tool.output for tool in self.tools}

        def answers(message: dict[str, Json]) -> list[dict[str, Json]]:
            calls = {call: name for call, name in tool_calls(message).items() if call not in answered}
            answered.update(calls)
            return [interrupted_result(call, outputs.get(call), name) for call, name in calls.items()]

        return answers

    def _entry(self, answer: dict[str, Json]) -> Entry:
        call = answer["toolCallId"]
        return {"entryId": call, "runId": self.id, "invocationId": call, "message": answer}

    def end(self) -> list[Write[SessionScope]]:
        """What ends it."""
        return [running(self.id).delete(), ephemeral(self.id).retire()]

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
    operation's ``problems``; the others are read all the same. Reads no history but that of the operations.

    Raises :class:`CorruptLog` and other errors of reads for what is outside of the streams.
    """
    return [
        _recovered(source, entry.key, str(entry.value.get("lane")), entry.seq)
        for entry in source.scan(OPERATIONS)
        if isinstance(entry.value, dict)
    ]


def _recovered(source: Source, operation: str, lane: str, began: int) -> RecoveredOperation:
    settled = [e for e in reversed(entries_since(source, entries(lane), began)) if e.get("runId") == operation]
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
        if key not in names:
            target = assistant_output(operation, key)
            state = response_state(read(target))
            if state is not None:
                responses.append((source.read(target, order="desc", limit=1)[0].seq, _response(key, state)))
    memos: dict[str, dict[str, Json]] = {}
    for memo in source.scan(MEMO, scope=scope):
        invocation, name = memo_name(memo.key)
        memos.setdefault(invocation, {})[name] = memo.value
    invocations = [key for key in source.lists(scope, TOOL_OUTPUT) if key not in names]
    tools = {key: output_of(read(tool_output(operation, key))) for key in invocations}
    for invocation in memos:
        if invocation not in names:
            tools.setdefault(invocation, output_of(None))
    return RecoveredOperation(
        id=operation,
        lane=lane,
        response=max(responses, key=lambda pair: pair[0])[1] if responses else None,
        tools=tuple(RecoveredTool(key, output, memos.get(key, {})) for key, output in tools.items()),
        entries=tuple(settled),
        problems=tuple(problems),
    )


def _response(entry_id: str, state: dict[str, Any]) -> RecoveredResponse:
    ended = tuple(entry is None or entry["ended"] for entry in state["frameState"])
    return RecoveredResponse(entry_id, current_message(state), ended)
