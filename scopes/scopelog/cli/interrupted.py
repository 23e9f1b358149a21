"""recover: the messages that were interrupted, for people and as JSON. Takes no lock and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ..clients.messages import RecoveredOperation, RecoveredResponse, RecoveredTool, finite
from ..clients.messages import recover as interrupted_in
from ..store import Store
from . import output
from .looking import Survey, opened, read_beside
from .output import printable

TAIL_LINES: Final = 10  # shown of a tool's output
_UNFINISHED: Final = " (unfinished)"
_TAB: Final = 4
_BODIES: Final = {"text": ("text", ""), "thinking": ("thinking", "italic dim")}  # a block's field, and its style


class Part(NamedTuple):
    """A heading and what stands below it; neither is printable as it is."""

    heading: str
    body: str = ""
    style: str = ""


def recover(path: str, session: str | None, as_json: bool) -> None:
    """What was interrupted in one session, or in each. What cannot be read is named, then raised."""
    found = 0
    with opened(path) as store:
        survey = Survey(store, session)
        for name, operations in survey.each(_interrupted):
            for operation in operations:
                found += 1
                if as_json:
                    output.put_json(finite({"session": name, **operation.as_json()}))
                else:
                    _show(name, operation)
                for problem in operation.problems:
                    survey.note(problem)
    if not found and not as_json and survey.damage is None:
        output.put_text("nothing to recover")
    survey.finish()


def _interrupted(store: Store, session: str) -> list[RecoveredOperation]:
    return read_beside(store, session, interrupted_in)


# --- for people -----------------------------------------------------------------------------------


def parts_of(session: str, operation: RecoveredOperation) -> Iterator[Part]:
    """An operation as it is shown; the first part names it."""
    response = operation.response
    entry = f", entry {response.entry_id}" if response else ""
    yield Part(f"{session}: operation {operation.id}, lane {operation.lane}{entry}", style="bold")
    if operation.entries:
        yield Part(f"{output.count(len(operation.entries), 'message')} of it had settled")
    if response is None:
        yield Part("no message was streaming")
    else:
        yield from _blocks(response)
    for tool in operation.tools:
        yield _tool(tool)
    for problem in operation.problems:
        yield Part(f"problem: {problem.cause}", style="red")


def _blocks(response: RecoveredResponse) -> Iterator[Part]:
    content = response.message["content"]
    if not content:
        yield Part("nothing of the message had come")
    for block, ended in zip(content, response.ended, strict=True):
        mark = "" if ended else _UNFINISHED
        kind = block.get("type")
        if kind in _BODIES:
            field, style = _BODIES[kind]
            yield Part(f"{kind}{mark}", str(block.get(field, "")), style)
        elif kind == "toolCall":
            arguments = output.as_json(block.get("arguments")).decode("utf-8")
            yield Part(f"tool call {block.get('id')}: {block.get('name')}{mark}", arguments, "cyan")
        else:
            yield Part(f"a block of another kind{mark}")


def _tool(tool: RecoveredTool) -> Part:
    text = str(tool.output["text"])
    lines = text.split("\n")
    complete = lines[:-1] if lines[-1] == "" else lines
    heading = f"output of tool call {tool.invocation_id}{_UNFINISHED}"
    if len(complete) > TAIL_LINES:
        heading += f", the last {TAIL_LINES} of {output.count(len(complete), 'line')}"
    return Part(heading, "\n".join(complete[-TAIL_LINES:]), "dim")


def _lines(text: str) -> list[str]:
    """A text as a terminal may have it: its lines, with tabs as blanks and everything else escaped."""
    return [printable(line.expandtabs(_TAB)) for line in text.removesuffix("\n").split("\n")] if text else []


def _show(session: str, operation: RecoveredOperation) -> None:
    show = _show_styled if output.is_terminal() else _show_plain
    for number, part in enumerate(parts_of(session, operation)):
        show(part, 0 if number == 0 else 1)


def _show_plain(part: Part, depth: int) -> None:
    output.put_text("  " * depth + printable(part.heading))
    for line in _lines(part.body):
        output.put_text(("  " * (depth + 1) + line).rstrip())


def _show_styled(part: Part, depth: int) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    output.flush()
    console = Console(highlight=False)
    console.print(Padding(Text(printable(part.heading), "bold" if depth == 0 else part.style), (0, 0, 0, 2 * depth)))
    if part.body:
        console.print(Padding(Text("\n".join(_lines(part.body)), part.style), (0, 0, 0, 2 * depth + 2)))
