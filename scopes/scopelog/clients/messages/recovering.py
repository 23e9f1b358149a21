"""Recovery: what operations that a crash has interrupted had put out, read without changing anything."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from scopelog_engine.elements import Json

from ...addresses import EphemeralScope, List, SessionScope, Write, ephemeral
from ...delta import UNDEFINED
from ...errors import CorruptLog, InvalidInput, ScopelogError
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
        calls: dict[str, str] = {}
        messages = [entry.get("message") for entry in self.entries]
        for message in (*messages, self.response.sendable if self.response else None):
            calls |= tool_calls(message)
        for message in messages:
            if isinstance(message, dict):
                calls.pop(str(message.get("toolCallId")), None)
        outputs = {tool.invocation_id: tool.output for tool in self.tools}
        return [interrupted_result(call, outputs.get(call), name) for call, name in calls.items()]

    def sendable(self) -> list[dict[str, Json]]:
        """What the operation adds to its history, in a form that providers take: the messages it had settled, the one
        that was streaming, and answers to the tool calls that have none."""
        settled = [sendable_message(e["message"]) if _is_assistant(e) else e.get("message") for e in self.entries]
        streaming = self.response.sendable if self.response else None
        return [message for message in (*settled, streaming, *self.answers()) if message]

    def settlement(self) -> list[Entry]:
        """The entries that settle it: the recovered message, and the answers."""
        found: list[Entry] = []
        if self.response is not None:
            found.append({"entryId": self.response.entry_id, "runId": self.id, "message": self.response.message})
        for answer in self.answers():
            call = answer["toolCallId"]
            found.append({"entryId": call, "runId": self.id, "invocationId": call, "message": answer})
        return found

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
                "fold": response.fold,
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


def _is_assistant(entry: Entry) -> bool:
    message = entry.get("message")
    return isinstance(message, dict) and message.get("role") == "assistant"
