"""watch: the messages of a session as another process records them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from ..clients.messages import finite
from ..clients.messages.following import (
    Change,
    FollowedMessages,
    Output,
    Over,
    Settled,
    Streaming,
    Unreadable,
)
from ..follow import Base, Deleted
from . import output
from .looking import opened
from .options import JSON, SESSION, STORE
from .output import printable

_FIELDS: Final = {"text": "text", "thinking": "thinking"}  # the field of a block that grows
_HEADS: Final = (64, 8, 1)  # characters by which the rest of a text is looked for
_STYLES: Final[Mapping[str, dict[str, Any]]] = {
    "thinking": {"dim": True, "italic": True},
    "toolCall": {"fg": "cyan"},
    "output": {"dim": True},
    "heading": {"bold": True},
}


@click.command()
@STORE
@SESSION
@click.option("--once", is_flag=True, help="End once a message has settled.")
@click.option(
    "--timeout", metavar="S", type=click.FloatRange(0, 10**9), help="End once nothing has come for S seconds."
)
@JSON
def watch(store: str, session: str, once: bool, timeout: float | None, as_json: bool) -> None:
    """Show the messages of a session while another process records them, as they grow, until it is deleted.

    What is streaming when it begins is shown as far as it has come; what had settled before is not. Takes no lock.
    Texts, thinking and tool output come as they are stored, a window at a time; a tool call once it is complete.

    With --json there is an object a line: {"streaming": ...} (operation, entry, ended, message) and {"output": ...}
    (operation, invocation, output) with all that there is so far, {"settled": ...} with lane and entry, {"over":
    OPERATION or null}, {"unreadable": ...} (operation, key, cause) and {"deleted": true}.
    """
    show: _Json | _Text = _Json() if as_json else _Text(session)
    messages = FollowedMessages()
    begun = False
    with opened(store) as there, there.follow(session) as follower:
        while (event := follower.next(timeout)) is not None:
            changes = messages.take(event)
            if isinstance(event, Base):
                event.reader.close()
                if begun:
                    show.note(f"it begins anew: {event.reason}")
                begun = True
            for change in changes:
                show.change(change)
            if isinstance(event, Deleted):
                show.deleted()
            output.flush()
            if once and any(isinstance(change, Settled) for change in changes):
                return


class _Json:
    def change(self, change: Change) -> None:
        if isinstance(change, Streaming):
            where = {"operation": change.operation, "entry": change.entry_id, "ended": list(change.ended)}
            output.put_json({"streaming": where | {"message": finite(change.message)}})
        elif isinstance(change, Output):
            where = {"operation": change.operation, "invocation": change.invocation_id}
            output.put_json({"output": where | {"output": finite(change.output)}})
        elif isinstance(change, Settled):
            output.put_json({"settled": change._asdict()})
        elif isinstance(change, Over):
            output.put_json({"over": change.operation})
        else:
            failed = {"operation": change.operation, "key": change.key, "cause": change.error.cause}
            output.put_json({"unreadable": failed})

    def note(self, text: str) -> None:
        output.say(f"note: {printable(text)}")

    def deleted(self) -> None:
        output.put_json({"deleted": True})


class _Text:
    """Prints what has come since the last time, and where it belongs whenever that changes."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._shown: dict[tuple[str, str], list[str]] = {}  # of each stream: of each block, what was printed
        self._over: list[tuple[str, str]] = []  # streams of operations that have ended
        self._at: tuple[str, str, int] | None = None  # where the cursor stands
        self._line_open = False
        self._styled = output.is_terminal()

    def change(self, change: Change) -> None:
        if isinstance(change, Streaming):
            self._message(change)
        elif isinstance(change, Output):
            heading = f"output of tool call {change.invocation_id}"
            text = change.output.get("text")
            self._grow((change.operation, change.invocation_id), 0, heading, str(text or ""), "output")
        elif isinstance(change, Settled):
            self._settled(change)
        elif isinstance(change, Over):
            for stream in self._over:
                self._shown.pop(stream, None)
            # not yet: the last message of the operation settles in the same commit
            self._over = [key for key in self._shown if change.operation in (None, key[0])]
        elif isinstance(change, Unreadable):
            self.note(f"a stream of operation {change.operation} cannot be shown: {change.error.cause}")

    def note(self, text: str) -> None:
        self._end_line()
        output.flush()
        output.say(f"note: {printable(self._session)}: {printable(text)}")

    def deleted(self) -> None:
        self.note("it was deleted")

    def _message(self, change: Streaming) -> None:
        content = change.message["content"]
        assert isinstance(content, Sequence)
        for number, (block, ended) in enumerate(zip(content, change.ended, strict=True)):
            self._block((change.operation, change.entry_id), number, block, ended)

    def _block(self, stream: tuple[str, str], number: int, block: Any, ended: bool) -> None:
        kind = str(block.get("type"))
        if kind in _FIELDS:
            heading = kind if kind != "text" else f"message {stream[1]}"
            self._grow(stream, number, heading, str(block.get(_FIELDS[kind], "")), kind)
        elif kind == "toolCall" and ended:
            arguments = output.as_json(finite(block.get("arguments"))).decode("utf-8")
            self._grow(stream, number, f"tool call {block.get('id')}: {block.get('name')}", arguments, kind)

    def _settled(self, change: Settled) -> None:
        entry_id, message = str(change.entry.get("entryId")), change.entry.get("message")
        fields: Mapping[str, Any] = message if isinstance(message, dict) else {}
        seen = any(stream[1] == entry_id for stream in self._shown)
        content = fields.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
        if not seen:  # it came and settled between two looks, or did not stream
            for number, block in enumerate(blocks):
                if isinstance(block, dict):
                    self._block(("", entry_id), number, block, True)
        self._end_line()
        how = fields.get("stopReason") or fields.get("role") or "message"
        self._put(printable(f"settled in lane {change.lane}: {entry_id} ({how})") + "\n", "heading")
        for stream in [key for key in self._shown if key[1] == entry_id]:
            del self._shown[stream]

    def _grow(self, stream: tuple[str, str], number: int, heading: str, text: str, kind: str) -> None:
        shown = self._shown.setdefault(stream, [])
        while len(shown) <= number:
            shown.append("")
        if text == shown[number]:
            return
        fresh = text.removeprefix(shown[number]) if text.startswith(shown[number]) else _behind(shown[number], text)
        place = (*stream, number)
        if self._at != place:
            self._end_line()
            self._put(f"[{printable(heading)}]\n", "heading")
            self._at = place
        shown[number] = text
        self._put("\n".join(map(printable, fresh.replace("\t", "    ").split("\n"))), kind)

    def _end_line(self) -> None:
        self._at = None
        if self._line_open:
            self._put("\n", "")

    def _put(self, text: str, kind: str) -> None:
        if not text:
            return
        self._line_open = not text.endswith("\n")
        styled = click.style(text, **_STYLES[kind]) if self._styled and kind in _STYLES else text
        output.put_raw(styled)


def _behind(shown: str, text: str) -> str:
    """What is new of a text whose beginning was dropped: what stands behind the end of the old that it still begins
    with. All of it if there is none."""
    for length in _HEADS:
        head = text[:length]
        at = shown.find(head) if head else -1
        while at >= 0:
            if text.startswith(shown[at:]):
                return text[len(shown) - at :]
            at = shown.find(head, at + 1)
    return text
