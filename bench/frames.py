"""The frames of a response that is all text, as a provider's adapter would give them, and the message they end in."""

from __future__ import annotations

from typing import Final

from scopelog import Json

EPOCH_MS: Final = 1_786_000_000_000  # the wall clock when a workload begins
_COUNTS: Final = ("input", "output", "cacheRead", "cacheWrite")
_MODEL: Final = {"api": "anthropic-messages", "provider": "anthropic", "model": "claude-sonnet-4-5"}


def text_message(role: str, text: str) -> Json:
    """The least a message is: what rivals store when one settles."""
    return {"role": role, "content": [{"type": "text", "text": text}]}


def opening(t: int) -> list[Json]:
    """The frames before the first delta. ``t``: virtual ms."""
    partial = {"role": "assistant", "content": [], **_MODEL, "usage": _usage(0, 0), "stopReason": "pending"}
    return [
        {"type": "start", "partial": {**partial, "timestamp": EPOCH_MS + t}},
        {"type": "text_start", "contentIndex": 0, "content": {"type": "text", "text": ""}},
    ]


def text_delta(text: str) -> Json:
    return {"type": "text_delta", "contentIndex": 0, "delta": text}


def settled_whole(streamed: Json, deltas: int) -> Json:
    """What a harness keeps of a message that has ended well. ``streamed``: the message as the frames left it."""
    return {**streamed, "usage": _usage(1_200 + deltas % 97, deltas), "stopReason": "stop"}


def _usage(read: int, written: int) -> Json:
    cost = {"input": read * 3e-6 or 0, "output": written * 15e-6 or 0, "cacheRead": 0, "cacheWrite": 0}
    counts = {**dict.fromkeys(_COUNTS, 0), "input": read, "output": written, "totalTokens": read + written}
    return {**counts, "cost": {**cost, "total": sum(cost.values())}}
