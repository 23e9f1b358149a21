"""Where a lane's records stand in a session, and what they look like.

=====================  ==========  ==========================  ===========================================
namespace              scope       key                         holds
=====================  ==========  ==========================  ===========================================
messages.entries       session     lane                        list: ``{entryId, message}``, settled
messages.operations    session     lane                        value: the operation that runs in the lane
pendingAssistantOutput operation   entry id                    list of encoded op batches, bases tagged base
pendingToolOutput      operation   invocation id               the same of a tool's output
memo                   operation   [invocation id, name]       value: what the tool wants to find again
=====================  ==========  ==========================  ===========================================

The operation's scope is the ephemeral scope that has the operation's id: it goes when the operation ends, in the
commit that says so.
"""

from __future__ import annotations

import json
from typing import Final

from scopelog_engine.elements import Json

from ...addresses import EphemeralScope, List, SessionScope, Value, ephemeral, list_of, value
from ...delta import join_batches

ENTRIES: Final = "messages.entries"
OPERATIONS: Final = "messages.operations"
ASSISTANT_OUTPUT: Final = "pendingAssistantOutput"
TOOL_OUTPUT: Final = "pendingToolOutput"
MEMO: Final = "memo"
BASE: Final = "base"
"""Tag of a batch that replaces the whole value: where decoding may start."""


def entries(lane: str) -> List[SessionScope]:
    """The settled messages of a lane, oldest first."""
    return list_of(ENTRIES, lane)


def running(lane: str) -> Value[SessionScope]:
    """Which operation runs in the lane; not there if none does."""
    return value(OPERATIONS, lane)


def running_operation(value: Json) -> str | None:
    """The operation that a lane's value names."""
    return value if isinstance(value, str) else None


def assistant_output(operation: str, entry: str) -> List[EphemeralScope]:
    """What a response has streamed so far."""
    return ephemeral(operation).list_of(ASSISTANT_OUTPUT, entry, coalescer=join_batches)


def tool_output(operation: str, invocation: str) -> List[EphemeralScope]:
    """What a tool has put out so far."""
    return ephemeral(operation).list_of(TOOL_OUTPUT, invocation, coalescer=join_batches)


def memo(operation: str, invocation: str, name: str) -> Value[EphemeralScope]:
    """What a tool wants to find again after a crash."""
    return ephemeral(operation).value(MEMO, memo_key(invocation, name))


def memo_key(invocation: str, name: str) -> str:
    return json.dumps([invocation, name], ensure_ascii=False, separators=(",", ":"))


def memo_name(key: str) -> tuple[str, str] | None:
    """The invocation and the name in a memo's key; None if it is somebody else's."""
    try:
        found = json.loads(key)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, list) and len(found) == 2 and all(type(part) is str for part in found):
        return found[0], found[1]
    return None
