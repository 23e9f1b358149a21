"""Text rules of the server: names, private blocks, the byte cut, learnings sections, topic keys."""

from __future__ import annotations

import hashlib
import re

MARKER = "[REDACTED]"
CUT = "... [truncated]"

_PRIVATE = re.compile(r"<private>.*?</private>", re.IGNORECASE | re.DOTALL)
_HEADING = re.compile(
    r"^#{2,3}[ \t]+(?:key[ \t]+learnings?|learnings?|aprendizajes(?:[ \t]+clave)?):?[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_ANY_HEADING = re.compile(r"^#{1,3}[ \t]+\S", re.MULTILINE)
_NUMBERED = re.compile(r"^[ \t]*\d+[.)][ \t]+(.+)$", re.MULTILINE)
_BULLET = re.compile(r"^[ \t]*[-*][ \t]+(.+)$", re.MULTILINE)
MINIMUM_ITEM = 20


def normalise_name(name: str) -> str:
    return name.strip().lower()


def is_path_like(name: str) -> bool:
    """True for names with a path separator or a control character: never a project."""
    return any(c in "/\\" or ord(c) < 32 or ord(c) == 127 for c in name)


def strip_private(text: str) -> str:
    """The server's own, weaker rule: the shortest match of one pair of tags. What it lets through is a leak to see."""
    return _PRIVATE.sub(MARKER, text).strip()


def stored(text: str, limit: int) -> str:
    """Text as a row holds it: private blocks gone, trimmed, cut at ``limit`` bytes of UTF-8 with a marker."""
    clean = strip_private(text)
    raw = clean.encode("utf-8", "surrogatepass")
    if len(raw) <= limit:
        return clean
    return raw[:limit].decode("utf-8", "ignore") + CUT


def normalised_hash(text: str) -> str:
    return hashlib.sha256(" ".join(text.lower().split()).encode("utf-8", "surrogatepass")).hexdigest()


def learnings(text: str) -> list[str]:
    """Items of the last learnings section that has any: numbered ones first, bullets else, 20 characters or more."""
    for heading in reversed(list(_HEADING.finditer(text))):
        rest = text[heading.end() :]
        following = _ANY_HEADING.search(rest)
        section = rest[: following.start()] if following else rest
        for pattern in (_NUMBERED, _BULLET):
            items = [_clean(item) for item in pattern.findall(section)]
            items = [item for item in items if len(item) >= MINIMUM_ITEM]
            if items:
                return items
    return []


def _clean(item: str) -> str:
    """Markdown emphasis and code marks taken off, white space folded."""
    return " ".join(re.sub(r"[*_`]{1,2}", "", item).split())


def topic_key(kind: str, title: str, content: str) -> str:
    """A stable suggestion: a family by type, then the words of the title, or of the content."""
    family = {"bugfix": "bug", "architecture": "architecture", "decision": "decision"}.get(kind, kind or "topic")
    words = re.findall(r"[^\W_]+", (title or content).lower())[:6]
    return f"{family}/{'-'.join(words) or 'untitled'}"
