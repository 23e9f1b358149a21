"""A tool's output as it comes: the head or the tail of a text, details, memos; a crash costs a window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from scopelog_engine.elements import Json, freeze
from scopelog_engine.writer import Receipt

from ...addresses import EphemeralScope, Value, Write
from ...delta import UNDEFINED, append_text, drop_text, utf16
from ...errors import InvalidInput
from .copying import finite
from .outcomes import output_of, tool_result
from .places import memo, tool_output
from .reading import read_stream
from .retention import Kept
from .settling import Settling
from .streams import Stream

if TYPE_CHECKING:
    from .operations import Operation

MAX_BYTES: Final = 50 * 1024
MAX_LINES: Final = 2000


class ToolSink(Settling):
    """Where a tool reports to while it runs: :meth:`write` text, :meth:`detail`, :meth:`checkpoint`; then
    :meth:`settle`. Made by :meth:`Operation.tool`.

    What is reported is shown at once, and on its way to the disk through the write-behind window. After a crash the
    sink of the same invocation goes on with what was stored.
    """

    kind = "tool"

    def __init__(self, operation: Operation, invocation_id: str, name: str, call_id: str, kept: Kept) -> None:
        super().__init__(operation, invocation_id)
        self.name = name
        self.call_id = call_id
        lane = operation.lane
        self._failed = False
        self._kept = kept
        target = tool_output(operation.id, invocation_id)
        self._stream = Stream(lane.session, target, lambda: finite(self._state))
        value = output_of(read_stream(lane.session, target)[1] if operation.resumed else UNDEFINED)
        value |= {"toolName": name} if name else {}
        value |= {"toolCallId": call_id} if call_id != invocation_id else {}
        lane.state["operation"]["toolOutputs"][invocation_id] = value
        self._state: Any = lane.state["operation"]["toolOutputs"][invocation_id]
        self._begin()
        lane._hand_out()
        lane._follow_tool(invocation_id, self._stream)

    @property
    def text(self) -> str:
        """What is kept of the text."""
        with self._lane._lock:
            text: str = self._state["text"]
            return text

    @property
    def output(self) -> dict[str, Json]:
        """A copy of all there is: ``text``; ``details`` if there are any; ``droppedBytes`` and ``droppedLines`` if the
        caps have cut something; ``toolName``, and ``toolCallId`` where it is not the invocation's."""
        with self._lane._lock:
            output: dict[str, Json] = finite(self._state)
            return output

    def write(self, text: str) -> int | None:
        """Add to the output; returns the sequence under which the change is staged, None if nothing changes.

        Raises :class:`Fenced` once it settles, :class:`InvalidInput` for what is no str, and what
        :meth:`Session.append` raises: the text is taken then and stored with the next; do not write it again.
        """
        if type(text) is not str:
            raise InvalidInput(
                f"the output is a {type(text).__name__}, not a str", "decode bytes before they come here"
            )
        with self._lane._lock:
            self._check_open()
            self._add(utf16.rejoined(text))
            return self._write()

    def _begin(self) -> None:
        """Count what is kept."""
        value = self._state
        self._kept.begin(value["text"], value.get("droppedBytes", 0), value.get("droppedLines", 0))

    def _add(self, text: str) -> None:
        state, kept = self._state, self._kept
        before = None if kept.fits(text) else state["text"]
        try:
            step = kept.add(before or "", text)
            if step.whole is not None:
                state["text"] = step.whole
            else:
                if step.drop:
                    drop_text(state, "text", step.drop)
                if step.append:
                    append_text(state, "text", step.append)
            if kept.dropped_bytes:
                state["droppedBytes"] = kept.dropped_bytes
                state["droppedLines"] = kept.dropped_lines
        except BaseException:
            self._lane._distrust()
            if before is not None:
                state["text"] = before
            self._begin()
            raise

    def detail(self, details: Json) -> int | None:
        """Replace the details: any JSON; what has changed of them is what is stored. Raises as :meth:`write`, and
        :class:`InvalidElement` for what is no JSON."""
        _, details = freeze(details)
        with self._lane._changing():
            self._check_open()
            self._state["details"] = details
            return self._write()

    def fail(self) -> None:
        """The result that :meth:`settle` makes by itself will say ``isError``."""
        self._failed = True

    def checkpoint(self, memos: Mapping[str, Json] | None = None) -> Receipt | None:
        """Store the output as it is, and ``memos`` (a mapping of names to JSON) with it in one commit: after a crash
        either all of it is there or nothing of this call. Durable as the scope is (:attr:`Durability.PROCESS`).

        Raises as :meth:`write`, and what :meth:`Session.commit` raises.
        """
        with self._checkpointing(memos) as commit:
            if commit:
                return self._lane.session.commit(commit)
            self._lane.session.flush()
            return None

    @contextmanager
    def _checkpointing(self, memos: Mapping[str, Json] | None) -> Iterator[list[Write[EphemeralScope]]]:
        """What to commit; a commit takes along what was staged before it in its scope. The operation cannot end until
        the block has."""
        writes = [self._memo_address(name).set(value) for name, value in (memos or {}).items()]
        with self._lane._lock:
            self._check_open()
            self._write()
            self.operation._checkpoints += 1
        try:
            yield writes
        finally:
            with self._lane._lock:
                self.operation._checkpoints -= 1

    def memo(self, name: str, default: Json = None) -> Json:
        """What an earlier :meth:`checkpoint` of this invocation has left under the name, also before a crash."""
        return self._lane.session.get(self._memo_address(name), default)

    def _memo_address(self, name: str) -> Value[EphemeralScope]:
        """Where the memo stands."""
        return memo(self.operation.id, self.id, name)

    def _write(self) -> int | None:
        self._lane._hand_out()
        return self._stream.write()

    # --- settling ---------------------------------------------------------------------------------

    def _is_current(self) -> bool:
        return self._lane._has_tool(self.id, self._stream)

    def _message(self, message: Json) -> Json:
        if message is None:
            return tool_result(self.call_id, self.output, self.name, self._lane._now(), is_error=self._failed)
        if not isinstance(message, dict) or message.get("role") != "toolResult":
            raise InvalidInput("the message is no dict of role 'toolResult'", "pass a tool result message, or none")
        return message

    def _entry(self, message: Json) -> dict[str, Json]:
        return {"entryId": self.id, "message": message}

    def _leave(self) -> None:
        self._lane.state["operation"]["toolOutputs"].pop(self.id, None)
        self._lane._hand_out()
        self._lane._follow_tool(self.id, None)  # last: what was interrupted before is done again

    def _events(self, message: Json) -> list[dict[str, Json]]:
        where = {"runId": self.operation.id, "entryId": self.id, "message": message}
        return [{"type": "message_start", **where}, {"type": "message_end", **where}]
