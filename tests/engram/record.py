"""What a server keeps of each request, and how its replies are written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl


@dataclass
class Exchange:
    """One recorded request. ``status`` is ``None`` when no status line was sent."""

    order: int
    time: float
    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)  # names in lower case
    body: Any = None  # parsed; ``None`` without a body or when it is not JSON
    raw: bytes = b""
    route: str | None = None
    status: int | None = None
    applied: bool = False
    unknown: bool = False  # the client cannot know whether it was applied
    fault: str | None = None
    reply: Any = None

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        """The last value of each query parameter, decoded."""
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))


def encode(body: Any) -> bytes:
    """JSON the way Go writes it: ``<``, ``>`` and ``&`` escaped, UTF-8, a newline at the end."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return (text + "\n").encode("utf-8", "replace")
