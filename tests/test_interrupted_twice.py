"""Ctrl-C pressed twice: the second one arrives while the first is being dealt with."""

from __future__ import annotations

from typing import Final

import pytest

from .test_interrupted import CALLS, CLOSING, Entries, InterruptedDisk, Rig, check_closed, check_open, in_time, rig_for

DEPTH: Final = 8  # functions entered between the two, at most
BIRTHS: Final = ("birth of a scope", "birth of a scope and of main")  # may leave an empty file, which is set aside


class TwiceInterruptedDisk(InterruptedDisk):
    """After its interruption the ``second`` function that is entered is interrupted too."""

    second: Entries

    def _count(self, where: str) -> None:
        try:
            super()._count(where)
        except KeyboardInterrupt:
            self.second.__enter__()
            raise


def interrupted_twice(name: str, place: int, depth: int) -> bool:
    """False if there is no such place in the call."""
    rig: Rig = rig_for(name)
    rig.disk.__class__ = TwiceInterruptedDisk
    assert isinstance(rig.disk, TwiceInterruptedDisk)
    rig.disk.second = Entries(depth, KeyboardInterrupt)
    rig.disk.arm(place, KeyboardInterrupt)
    returned = True
    try:
        (CALLS.get(name) or CLOSING[name])(rig)
    except KeyboardInterrupt:
        returned = False
    finally:
        if rig.disk.where:
            rig.disk.second.__exit__(None, None, None)
    rig.disk.arm(0, KeyboardInterrupt)
    check = check_closed if name in CLOSING else check_open
    try:
        in_time(lambda: check(rig, name, returned))
    except BaseException as error:
        error.add_note(f"interrupted {rig.disk.where}, then in {rig.disk.second.where} (place {place}, depth {depth})")
        raise
    return bool(rig.disk.where)


@pytest.mark.parametrize("name", [name for name in (*CALLS, *CLOSING) if name not in ("append", "window", *BIRTHS)])
def test_a_second_interruption_while_the_first_is_dealt_with(name: str) -> None:
    """The leader was interrupted in a sync, and again on its way to step down: it led for ever, and every later call
    of the session hung."""
    for depth in range(1, DEPTH + 1):
        place = 1
        while interrupted_twice(name, place, depth):
            place += 1
        assert place > 2
