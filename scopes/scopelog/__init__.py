"""scopelog: the durable store that agent harnesses embed.

Layout::

    store       Store: a directory of sessions
    session     Session, SessionReader and what they return
    follow      SessionFollower and its events: what another process writes, as it becomes visible
    aio         AsyncStore, AsyncSession, AsyncSessionReader, AsyncSessionFollower: the same for asyncio, imported from
                there; aio_follow is its part
    addresses   value(), list_of(), ephemeral(); Value, List, Write and the scopes they belong to
    results     what reads return
    watching    Watch and its events: live views of a value or a list
                (aio_watching: AsyncWatch)
    sse         watches as server-sent events; imported from there
    metadata    a session's name and labels
    listing     which sessions a catalogue lists, and in which order
    errors      every error, one tree
    delta       changes of JSON values as ops: tracking, applying, encoding; imported from there
    clients     messages: assistant streams and tools, recorded and recovered; imported from there
    cli         the ``scopelog`` command (extra ``cli``)

What is exported here is the public interface; every other name may change.
"""

from __future__ import annotations

from scopelog_engine.check import Finding
from scopelog_engine.clock import ManualClock, SystemClock
from scopelog_engine.compacting import Compacted
from scopelog_engine.durability import Durability
from scopelog_engine.elements import Json
from scopelog_engine.info import SessionInfo
from scopelog_engine.position import Position
from scopelog_engine.rebuild import Rebuilt
from scopelog_engine.recovery import Recovery, SetAside, TornTail
from scopelog_engine.rescue import Lost, Missing, Unnamed
from scopelog_engine.salvage import Salvaged, SalvagedLog
from scopelog_engine.scope import Coalescer
from scopelog_engine.writer import Receipt

from .addresses import SESSION, EphemeralScope, List, Scope, SessionScope, Value, Write, ephemeral, list_of, value
from .errors import (
    CoalescerFailed,
    CorruptLog,
    DurabilityError,
    ForeignFile,
    HandleClosed,
    HandleFenced,
    HandleForked,
    HandleUnusable,
    InvalidAddress,
    InvalidElement,
    InvalidId,
    InvalidInput,
    LimitExceeded,
    LogPoisoned,
    MissingExtra,
    MixedCommit,
    NewerFormat,
    NoSuchSession,
    NotAStore,
    OpenFailed,
    OutcomeUnknown,
    ReadFailed,
    ScopelogError,
    StoreLocked,
    UnsupportedPlatform,
    WriteFailed,
)
from .follow import Base, Deleted, FollowEvent, Records, Retired, SessionFollower
from .results import Element, Entry
from .session import LogRecord, Session, SessionReader
from .store import Store
from .watching import Change, Changed, Ended, EndReason, ListBase, ValueBase, Watch

__version__ = "0.1.0"

__all__ = [
    "SESSION",
    "Base",
    "Change",
    "Changed",
    "Coalescer",
    "CoalescerFailed",
    "Compacted",
    "CorruptLog",
    "Deleted",
    "Durability",
    "DurabilityError",
    "Element",
    "EndReason",
    "Ended",
    "Entry",
    "EphemeralScope",
    "Finding",
    "FollowEvent",
    "ForeignFile",
    "HandleClosed",
    "HandleFenced",
    "HandleForked",
    "HandleUnusable",
    "InvalidAddress",
    "InvalidElement",
    "InvalidId",
    "InvalidInput",
    "Json",
    "LimitExceeded",
    "List",
    "ListBase",
    "LogPoisoned",
    "LogRecord",
    "Lost",
    "ManualClock",
    "Missing",
    "MissingExtra",
    "MixedCommit",
    "NewerFormat",
    "NoSuchSession",
    "NotAStore",
    "OpenFailed",
    "OutcomeUnknown",
    "Position",
    "ReadFailed",
    "Rebuilt",
    "Receipt",
    "Records",
    "Recovery",
    "Retired",
    "Salvaged",
    "SalvagedLog",
    "Scope",
    "ScopelogError",
    "Session",
    "SessionFollower",
    "SessionInfo",
    "SessionReader",
    "SessionScope",
    "SetAside",
    "Store",
    "StoreLocked",
    "SystemClock",
    "TornTail",
    "Unnamed",
    "UnsupportedPlatform",
    "Value",
    "ValueBase",
    "Watch",
    "Write",
    "WriteFailed",
    "ephemeral",
    "list_of",
    "value",
]
