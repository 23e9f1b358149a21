"""A stand-in memory server for end-to-end tests, of the standard library alone.

state        rows, the four generations, clocks            text         names, private blocks, learnings
sessions     registration, lease, end                      scoping      project of a read, detection
observations, prompts, mutations, relations, reads         routes       the table, and the names fault scripts use
model        the pure state model: one call, one reply     http         listener, recording, faults on the wire
faults       actions, gates, changes behind the back       invariants   what must hold after every test
server       EngramServer, what tests start                fake_engram  the executable; binary writes its wrapper
golden       golden.json replayed, here or on a real one
"""

from __future__ import annotations

from . import faults
from .binary import FakeBinary, free_port, write_binary
from .faults import Action, Faults, Gate
from .invariants import Entry
from .model import Model
from .record import Exchange
from .server import EngramServer
from .state import GENERATIONS, Generation, ManualClock

__all__ = [
    "GENERATIONS",
    "Action",
    "EngramServer",
    "Entry",
    "Exchange",
    "FakeBinary",
    "Faults",
    "Gate",
    "Generation",
    "ManualClock",
    "Model",
    "faults",
    "free_port",
    "write_binary",
]
