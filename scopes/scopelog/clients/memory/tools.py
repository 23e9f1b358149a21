"""The tool surface of the memory bridge: what a harness registers, and the one way to call it.

tools_host   the host a tool runs over, declarations, the check of arguments
tools_read   tools that read: always scoped, never a trace
tools_write  tools that write, through the outbox
tools_change tools that change what is stored, by its id

No tool takes a project: it is always the one of the session's own working directory. Answers are plain JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from scopelog.errors import InvalidInput

from .tools_change import CHANGES
from .tools_host import RELATIONS, Answer, Kind, Object, Submission, Tool, ToolHost, check
from .tools_read import READS
from .tools_write import WRITES

# The 21 tools of the server contract, section 11, and mem_list_projects.
TOOLS: Final[Mapping[str, Tool]] = MappingProxyType({tool.name: tool for tool in (*READS, *WRITES, *CHANGES)})


async def call(host: ToolHost, name: str, arguments: Mapping[str, Any]) -> Answer:
    """Run a tool. Arguments that it does not declare are ignored, ``project`` included; None is as not given.

    :raises InvalidInput: no such tool, or an argument is missing, of another type or out of bounds. Nothing was sent.
    :raises ProjectUnresolved: the session has no project, and the tool needs one. Nothing was sent.
    :raises EngramError: whatever else goes wrong between the bridge and the server.
    """
    tool = TOOLS.get(name)
    if tool is None:
        raise InvalidInput(f"there is no memory tool {name!r}", f"use one of {', '.join(sorted(TOOLS))}")
    return await tool.run(host, **check(tool, arguments))


__all__ = ["RELATIONS", "TOOLS", "Answer", "Kind", "Object", "Submission", "Tool", "ToolHost", "call"]
