"""The story of a stream of assistant messages: the recorder is killed in the middle of a word, the message comes back.

It is broken if what comes back is not what the reducer makes of the first lines that were fed, at least of those that
had been reported written; or if the messages do not settle, or leave anything behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from scopelog_engine.elements import Json

from ..clients.messages import RecoveredOperation, places, recover
from ..store import Store
from . import interrupted, output
from .arrival import Line
from .demo_child import Recorder, pace_of
from .demo_replay import Replay, replayed, same
from .demo_show import (
    SESSION,
    STORE,
    WINDOW_MS,
    Broken,
    clean_up,
    say,
    show_cost,
    show_findings,
    step,
    title,
)
from .output import count, printable
from .recording import parse
from .streaming import LANE, Kind

_SHOWN: Final = 60  # characters of a text around the cut
_DELTAS: Final = ("text_delta", "thinking_delta", "toolcall_delta")


def run(stream: Path, lines: list[bytes], kind: Kind) -> None:
    """The whole story. Raises :class:`Broken`, :class:`ScopelogError` or :class:`OSError`."""
    elements = [parse(Line(number, line)) for number, line in enumerate(lines, 1)]
    clean_up()
    title(stream, lines, kind.removesuffix("s"))

    cut = cut_of(elements)
    step(1, f"scopelog record --from {kind}: {pace_of(cut)}, stored together by windows of {WINDOW_MS} ms")
    first = Recorder("--from", kind)
    first.feed(lines[:cut], [])
    first.kill()
    reported = int(first.last["written"])
    say(f"process {first.process.pid} was killed with SIGKILL after {count(cut, 'line')}, {where(elements, cut)}")

    step(2, f"scopelog check {STORE}")
    show_findings()

    step(3, f"scopelog recover {STORE}")
    output.flush()
    interrupted.recover(str(STORE), SESSION, as_json=False)
    output.flush()
    found = came_back()
    kept = compare(found, elements[:cut], kind, reported)
    say(f"{cut:>7,} lines fed to the recorder")
    say(f"{reported:>7,} lines it had reported written")
    say(f"{kept:>7,} lines kept: what came back is what the reducer makes of the first {kept:,}")
    say(f"{cut - kept:>7,} lines lost; at most a window of {WINDOW_MS} ms and its sync may be")
    show_edge(elements, kept, cut)

    step(4, "the harness asks again: record the whole stream, to its end")
    second = Recorder("--from", kind)
    second.feed(lines, [])
    second.finish()
    recovered, torn = int(second.last["recovered"]), int(second.last["torn_bytes"])
    say(f"first it settled {count(recovered, 'interrupted operation')}; {count(torn, 'byte')} of a torn tail were cut")
    show_settled(check_settled(found, replayed(elements, kind).finish()))
    show_findings()

    step(5, "what it cost")
    fed = [*lines[:cut], *lines]
    show_cost(sum(len(line) + 1 for line in fed), len(fed), [first.last, second.last])


# --- the cut --------------------------------------------------------------------------------------


def cut_of(elements: Sequence[Json]) -> int:
    """After how many lines to kill: from the middle on the first place that is inside a word of text, or the middle."""
    half = max(1, len(elements) // 2)
    return next((cut for cut in range(half, len(elements)) if _in_word(elements, cut)), half)


def where(elements: Sequence[Json], cut: int) -> str:
    """What the cut goes through, in words."""
    if _in_word(elements, cut):
        return f"in the middle of a word: {_quoted(_delta(elements, cut - 1) + '|' + _delta(elements, cut))}"
    return "in the middle of the stream"


def _in_word(elements: Sequence[Json], cut: int) -> bool:
    if not 0 < cut < len(elements):
        return False
    before, after = elements[cut - 1], elements[cut]
    if not isinstance(before, dict) or not isinstance(after, dict) or before.get("type") != "text_delta":
        return False
    together = all(before.get(field) == after.get(field) for field in ("type", "contentIndex"))
    return together and _delta(elements, cut - 1)[-1:].isalpha() and _delta(elements, cut)[:1].isalpha()


def _delta(elements: Sequence[Json], at: int) -> str:
    element = elements[at]
    brings = isinstance(element, dict) and element.get("type") in _DELTAS
    return str(element.get("delta", "")) if brings else ""


def show_edge(elements: Sequence[Json], kept: int, cut: int) -> None:
    """The end of what came back, and what the kill took."""
    came = "".join(_delta(elements, at) for at in range(kept))[-_SHOWN:]
    lost = "".join(_delta(elements, at) for at in range(kept, cut))
    say(f"        it ends:  {_quoted(came)}")
    say(f"        lost:     {_quoted(lost[:_SHOWN])}{' ...' if len(lost) > _SHOWN else ''}")


def _quoted(text: str) -> str:
    return f'"{printable(text)}"'


# --- what must hold -------------------------------------------------------------------------------


def came_back() -> RecoveredOperation | None:
    """What ``recover`` finds. Raises :class:`Broken` if that is more than one operation."""
    with Store.open(STORE, create=False) as store, store.reader(SESSION) as reader:
        found = recover(reader)
    if len(found) > 1:
        raise Broken(f"{len(found)} operations came back, one was begun")
    return found[0] if found else None


def compare(found: RecoveredOperation | None, fed: Sequence[Json], kind: Kind, reported: int) -> int:
    """Of how many of the lines that were fed the operation stands where the reducer does; the most that fit.

    Raises :class:`Broken` if there is no such number, from those on that had been reported written.
    """
    replay = Replay(kind)
    kept = 0 if found is None and not reported else None
    for number, element in enumerate(fed, 1):
        replay.take(element)
        if number >= reported and found is not None and _stands(found, replay):
            kept = number
    if kept is None:
        raise Broken(f"{reported} lines had been reported written; what came back is not the message of these or more")
    return kept


def _stands(found: RecoveredOperation, replay: Replay) -> bool:
    settled = [entry["message"] for entry in found.entries]
    if len(settled) != len(replay.settled) or not all(map(same, settled, replay.settled)):
        return False
    if found.response is None:
        return replay.lines <= 1  # a message that settles does so before the next one begins
    return same(found.response.fold, replay.message)


def check_settled(found: RecoveredOperation | None, expected: Sequence[Json]) -> list[dict[str, Any]]:
    """The entries of the lane, oldest first. Raises :class:`Broken` unless all that was interrupted has settled as it
    should, the stream to its end, and nothing is left of either."""
    with Store.open(STORE, create=False) as store, store.reader(SESSION) as reader:
        entries = [element.element for element in reader.read(places.entries(LANE))]
        left = [*reader.scopes(), *(operation.id for operation in recover(reader))]
    if left:
        raise Broken(f"{left[0]} is left over")
    before = len(entries) - len(expected)
    interrupted_ones = [*found.entries, *found.settlement()] if found else []
    if not same([entry["message"] for entry in entries[max(before, 0) :]], list(expected)):
        raise Broken("the messages of the stream did not settle as they should")
    if not same(entries[: max(before, 0)], interrupted_ones):
        raise Broken("what was interrupted did not settle as it came back")
    return entries


def show_settled(entries: Sequence[dict[str, Any]]) -> None:
    say("the session holds, each settled once, and no scope is left:")
    for entry in entries:
        message = entry["message"]
        blocks = message.get("content") or []
        size = sum(len(str(block.get("text", block.get("thinking", "")))) for block in blocks)
        how = f"{message['role']}, {message.get('stopReason', 'interrupted')}"
        what = f"{count(len(blocks), 'block')}, {count(size, 'character')}"
        say(f"   {printable(str(entry['entryId'])):14} {how:24} {what}")
