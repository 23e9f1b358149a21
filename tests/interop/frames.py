"""Random frame sequences, sound and spoiled, and random JSON texts cut anywhere; all from a seed."""

from __future__ import annotations

import json
from typing import Any

from .scenarios import WORDS, Source
from .values import rejoined

ENDS = {
    "text": ("textSignature",),
    "thinking": ("thinkingSignature", "redacted"),
    "toolCall": ("thoughtSignature", "namespace"),
}
PREFIX = {"text": "text", "thinking": "thinking", "toolCall": "toolcall"}


def json_text(source: Source) -> str:
    """JSON as models write it: any spacing, escapes in any form, sometimes a raw control character or a bad escape."""
    random = source.random
    value = source.value(source.random.randrange(2))
    spelled = json.dumps(value, ensure_ascii=random.random() < 0.5, indent=random.choice([None, None, 1]))
    numbers = ["-0", "1E5", "1e400", "-1e400", "0.1e-3", "12345678901234567890", "9007199254740993", "-", "01"]
    if source.chance(3):
        spelled = f'{{"n": {random.choice(numbers)}, "a": {spelled}}}'
    if source.chance(4):
        spelled = spelled.replace("\\n", random.choice(["\n", "\t", "\x01", "\\d", "\\u12", "\\x"]))
    return spelled


def cut(source: Source, text: str) -> str:
    """The text up to anywhere, in UTF-16 units: the end may be half a character."""
    data = text.encode("utf-16-le", "surrogatepass")
    return data[: 2 * source.random.randint(0, len(data) // 2)].decode("utf-16-le", "surrogatepass")


def mangled(source: Source, text: str) -> str:
    """The text with one character exchanged, left out or put in."""
    odd = [*'{}[]:,"\\ntfeE-.0 ', "\n", "\ufeff", "\xa0", "\x85", "\x1c", "\ud83d", "\ude00", "NaN", "-Infinity", "nul"]
    at = source.random.randint(0, len(text))
    return rejoined(text[:at] + source.random.choice(["", *odd]) + text[at + source.random.randint(0, 1) :])


def frames(source: Source) -> list[Any]:
    """The frames of one response, blocks interleaved, some without an end."""
    random = source.random
    made: list[Any] = [{"type": "start", "partial": _partial(source)}]
    blocks: dict[int, tuple[str, str]] = {}
    index = len(made[0]["partial"]["content"])
    for _ in range(random.randint(0, 25)):
        if not blocks or source.chance(6):
            kind = random.choice(["text", "thinking", "toolCall", "toolCall"])
            blocks[index] = (kind, json_text(source))
            made.append(_start(source, index, kind))
            index += 1
            continue
        at = random.choice(sorted(blocks))
        kind, left = blocks[at]
        if source.chance(8):
            del blocks[at]
            made.append(_end(source, at, kind))
        elif kind == "toolCall" and source.chance(8):
            made.append({"type": "toolcall_checkpoint", "contentIndex": at, "json": cut(source, left)})
        else:
            delta = cut(source, left) if kind == "toolCall" else source.text()
            made.append({"type": f"{PREFIX[kind]}_delta", "contentIndex": at, "delta": delta})
            if left.startswith(delta):
                blocks[at] = (kind, left[len(delta) :])
    return made


def spoiled(source: Source, made: list[Any]) -> list[Any]:
    """Frames with a fault: one doubled, lost, exchanged with its neighbour, moved to another index or unknown."""
    made = [dict(frame) for frame in made]
    at = source.random.randrange(len(made))
    match source.random.randrange(5):
        case 0:
            made.insert(at, made[at])
        case 1:
            del made[at]
        case 2 if at:
            made[at - 1], made[at] = made[at], made[at - 1]
        case 3 if "contentIndex" in made[at]:
            made[at]["contentIndex"] = source.random.choice([0, 1, 7, -1, 0.5, 1.0, None, "0", 2**53])
        case _:
            made.insert(
                at,
                {
                    "type": source.random.choice(["ping", "text_delta", "done", "constructor"]),
                    "contentIndex": 0,
                    "delta": "x",
                },
            )
    return made


def _partial(source: Source) -> dict[str, Any]:
    content = [{"type": "text", "text": source.text()}] if source.chance(6) else []
    usage = {"input": 10, "output": 0, "cost": {"input": 0.000315, "total": 0}}
    partial = {"role": "assistant", "content": content, "api": "a", "provider": "p", "model": "m", "usage": usage}
    return {**partial, "stopReason": "pending", "timestamp": 1_764_547_200_000}


def _start(source: Source, index: int, kind: str) -> dict[str, Any]:
    if kind == "toolCall":
        call = {
            "type": kind,
            "id": f"c{index}",
            "name": "bash",
            "arguments": source.random.choice([{}, {}, {"a": "x"}]),
        }
        return {"type": "toolcall_start", "contentIndex": index, "toolCall": call}
    block = {"type": kind, kind: source.random.choice(["", "", source.text()])}
    if source.chance(4):
        block[f"{kind}Signature"] = "early"
    return {"type": f"{kind}_start", "contentIndex": index, "content": block}


def _end(source: Source, index: int, kind: str) -> dict[str, Any]:
    frame: dict[str, Any] = {"type": f"{PREFIX[kind]}_end", "contentIndex": index}
    if kind == "toolCall":
        frame |= {"id": f"c{index}", "name": source.random.choice(WORDS), "arguments": {"a": source.value(1)}}
    else:
        frame["content"] = source.text(10)
    for field in ENDS[kind]:
        if source.chance(2):
            frame[field] = (
                source.random.choice([True, False]) if field == "redacted" else source.random.choice(["", "s"])
            )
    return frame
