"""Durability, stated: an enum with one sentence a level."""

from __future__ import annotations

from enum import IntEnum


class Durability(IntEnum):
    """What has happened when a call returns. A higher level includes the lower one.

    ``PROCESS``: handed to the operating system: survives the death of the process (kill -9), not a power loss.
    ``POWER``: synced (fdatasync; F_FULLFSYNC on macOS): survives a power loss as well.
    """

    PROCESS = 1
    POWER = 2
