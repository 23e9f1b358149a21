"""A harness's sessions to an Engram memory server, through a durable outbox (extra ``engram``).

Layout::

    bridge        MemoryBridge: sessions on one side, the server on the other; blocking: the same for threads
    sessions      MemorySession: capture, tools, the queue
    outbox        what waits, durable, in order, before anything is sent
    delivery      one entry to the server, and what to believe of an unknown outcome
    registration  the session's row, and the memory key
    capture       what of prompts, results and compactions is kept; notices; the protocol text
    tools         the tools for a model (tools_read, tools_write; tools_host: what they need)
    projects      which project a working directory is
    server        finding, starting and healing ``engram serve`` (processes)
    transport     HTTP (spelling, replies; flight: work that is shared)
    redaction     private blocks
    config        settings
    errors        what can go wrong

What is exported here is the public interface; every other name may change. httpx2 is imported at the first request.
"""

from __future__ import annotations

from .blocking import BlockingMemoryBridge, BlockingMemorySession
from .bridge import MemoryBridge
from .capture import PROTOCOL, Outcome
from .config import MemoryConfig, load_config
from .errors import (
    ConfigInvalid,
    DeliveryUnknown,
    EngramError,
    HttpError,
    ProjectUnresolved,
    RequestFailed,
    RequestRefused,
    RequestTimedOut,
    ServerRefused,
    ServerUnavailable,
    TransportFailed,
)
from .outbox import Aside, Entry
from .redaction import redact, redact_text
from .sessions import MemorySession
from .tools import TOOLS

__all__ = [
    "PROTOCOL",
    "TOOLS",
    "Aside",
    "BlockingMemoryBridge",
    "BlockingMemorySession",
    "ConfigInvalid",
    "DeliveryUnknown",
    "EngramError",
    "Entry",
    "HttpError",
    "MemoryBridge",
    "MemoryConfig",
    "MemorySession",
    "Outcome",
    "ProjectUnresolved",
    "RequestFailed",
    "RequestRefused",
    "RequestTimedOut",
    "ServerRefused",
    "ServerUnavailable",
    "TransportFailed",
    "load_config",
    "redact",
    "redact_text",
]
