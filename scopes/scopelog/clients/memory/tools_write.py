"""The tools that write, each through the session's durable outbox, attributed to the session's own row."""

from __future__ import annotations

from typing import Final

from .redaction import redact_text
from .tools_host import SCOPE, TYPE, Object, Tool, ToolHost, given, kept, schema, text

SUMMARY_TITLE: Final = "Session summary"
SUMMARY_TYPE: Final = "session_summary"
SOURCE: Final = "dsh-tool"  # as the reference bridge names it: the rows of both look alike


async def mem_save(
    host: ToolHost,
    title: str,
    content: str,
    *,
    kind: str | None = None,
    scope: str | None = None,
    topic_key: str | None = None,
) -> Object:
    """Save an observation; the outcome of its outbox entry."""
    payload = given(
        title=kept("mem_save", "title", title),
        content=kept("mem_save", "content", content),
        type=redact_text(kind or "") or "manual",
        scope=redact_text(scope or "") or "project",
        topic_key=redact_text(topic_key or ""),
    )
    return await host.submit("save", payload)


async def mem_session_summary(host: ToolHost, content: str) -> Object:
    """Save the session's summary, as an observation without a topic key; the outcome of its outbox entry."""
    fixed: Object = {"title": SUMMARY_TITLE, "type": SUMMARY_TYPE, "scope": "project"}
    return await host.submit("summary", {**fixed, "content": kept("mem_session_summary", "content", content)})


async def mem_capture_passive(host: ToolHost, content: str, *, source: str | None = None) -> Object:
    """Let the server take the learnings out of a text; the outcome of its outbox entry."""
    payload: Object = {
        "content": kept("mem_capture_passive", "content", content),
        "source": redact_text(source or "") or SOURCE,
    }
    return await host.submit("learning", payload)


async def mem_save_prompt(host: ToolHost, content: str) -> Object:
    """Save a prompt of the user; the outcome of its outbox entry."""
    return await host.submit("prompt", {"content": kept("mem_save_prompt", "content", content)})


async def mem_session_start(host: ToolHost) -> Object:
    """Register the session's row now rather than with its first write."""
    return await host.start()


async def mem_session_end(host: ToolHost, *, summary: str | None = None) -> Object:
    """End the session's own row, behind all that is queued; a row that is absent or ended is left alone."""
    return await host.end(redact_text(summary or "") or None)


WRITES: Final = (
    Tool(
        "mem_save",
        "Save one matter worth knowing later: a decision and why, a cause found, a convention, a wish of the user. "
        "A topic_key that exists replaces its entry.",
        schema(
            "title",
            "content",
            title=text("Short, in the words that a later search would use."),
            content=text("What, why, where, and what was learned."),
            type=text(TYPE, default="manual"),
            scope=text(SCOPE, default="project"),
            topic_key=text("Stable key of a matter that changes over time."),
        ),
        "write",
        mem_save,
    ),
    Tool(
        "mem_session_summary",
        "Save the summary of this session before the work ends: what was asked, done, learned, and what is open.",
        schema("content", content=text("The summary.")),
        "write",
        mem_session_summary,
    ),
    Tool(
        "mem_session_start",
        "Register this session with the memory now. Seldom needed: the first save does it.",
        schema(),
        "write",
        mem_session_start,
    ),
    Tool(
        "mem_session_end",
        "End this session in the memory, after all that is still on its way. Only when the work is over.",
        schema(summary=text("One or two sentences about the session.")),
        "change",
        mem_session_end,
    ),
    Tool(
        "mem_capture_passive",
        "Save each item of a learnings section: a text with a heading such as `## Key Learnings` and a list under it.",
        schema(
            "content",
            content=text("Text with the heading and its list."),
            source=text("Where the text comes from.", default=SOURCE),
        ),
        "write",
        mem_capture_passive,
    ),
    Tool(
        "mem_save_prompt",
        "Save what the user asked, in the user's own words.",
        schema("content", content=text("The prompt.")),
        "write",
        mem_save_prompt,
    ),
)
