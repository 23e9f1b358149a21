"""Every error scopelog raises; the tree, with causes and remedies, is documented in the engine's module."""

from __future__ import annotations

from scopelog_engine.errors import (
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


class MissingExtra(ScopelogError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


__all__ = [
    "CoalescerFailed",
    "CorruptLog",
    "DurabilityError",
    "ForeignFile",
    "HandleClosed",
    "HandleFenced",
    "HandleForked",
    "HandleUnusable",
    "InvalidAddress",
    "InvalidElement",
    "InvalidId",
    "InvalidInput",
    "LimitExceeded",
    "LogPoisoned",
    "MissingExtra",
    "MixedCommit",
    "NewerFormat",
    "NoSuchSession",
    "NotAStore",
    "OpenFailed",
    "OutcomeUnknown",
    "ReadFailed",
    "ScopelogError",
    "StoreLocked",
    "UnsupportedPlatform",
    "WriteFailed",
]
