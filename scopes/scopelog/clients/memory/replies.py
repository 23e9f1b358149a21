"""Replies as they come off the wire: capped before memory is taken, decoded strictly, and what /health said."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

Json: TypeAlias = Any
ProbeState: TypeAlias = Literal["ready", "foreign", "refused", "indeterminate"]

MAX_REPLY: Final = 64 * 1024 * 1024  # bytes of one body
MAX_HEALTH: Final = 64 * 1024  # bytes of /health, which is some hundred
PROBE_TIMEOUT: Final = 0.5  # seconds
INSTANCE: Final = re.compile(r"[0-9a-f]{32}")


class Undecodable(Exception):
    """A whole reply that is no JSON we can take; its text says why, without quoting it."""


@dataclass(frozen=True)
class Probe:
    """What one look at /health said.

    ``ready``: healthy, and the instance that was expected; ``foreign``: healthy, but another instance or one that does
    not say; ``refused``: nobody listens; ``indeterminate``: anything else. ``instance`` and ``version`` are '' where
    the server does not say, ``capabilities`` the names it sets to true.
    """

    state: ProbeState
    instance: str = ""
    version: str = ""
    capabilities: frozenset[str] = frozenset()


async def read_capped(chunks: AsyncIterator[bytes], announced: str | None, limit: int) -> bytes:
    """The body, or :class:`Undecodable` before more than ``limit`` bytes are held, announced or not."""
    if announced is not None and announced.isdigit() and int(announced[:20]) > limit:
        raise Undecodable(f"the reply is larger than {limit} bytes")
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise Undecodable(f"the reply is larger than {limit} bytes")
        parts.append(chunk)
    return b"".join(parts)


def decode(body: bytes) -> Json:
    """The one JSON value the body is, with -0 as 0. NaN, trailing text, bad UTF-8 are :class:`Undecodable`."""
    try:
        return _without_negative_zero(msgspec.json.decode(body))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise Undecodable("the reply is no JSON") from None


def judge(body: bytes, expected: str | None) -> Probe:
    """What a successful /health reply proves. Without an ``expected`` instance any JSON object is ``ready``."""
    try:
        fields = decode(body)
    except Undecodable:
        return Probe("foreign")
    if not isinstance(fields, dict):
        return Probe("foreign")
    said, version, abilities = fields.get("instance_id"), fields.get("version"), fields.get("capabilities")
    instance = said if isinstance(said, str) and INSTANCE.fullmatch(said) else ""
    # an absent or unreadable identity equals nothing that is expected
    return Probe(
        "ready" if expected is None or (instance != "" and instance == expected) else "foreign",
        instance,
        version if isinstance(version, str) else "",
        frozenset(k for k, v in abilities.items() if v is True) if isinstance(abilities, dict) else frozenset(),
    )


def _without_negative_zero(value: Json) -> Json:
    root = [value]
    todo: list[Json] = [root]
    while todo:
        item = todo.pop()
        for place, child in item.items() if isinstance(item, dict) else enumerate(item):
            if isinstance(child, (dict, list)):
                todo.append(child)
            elif isinstance(child, float) and child == 0 and math.copysign(1, child) < 0:
                item[place] = 0
    return root[0]
