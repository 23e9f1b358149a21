"""Mutants of writes that fail, of files that somebody else has touched, and of closing."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

FAILING: Final = (
    Mutant(
        "no-roll-back",
        "What a failed write has left in the file stays there.",
        "F7, I2 I8",
        (17, 18, 19),
        (
            Edit(
                "logfile.py",
                "        try:\n"
                "            self._mend(file)\n"
                "        except DurabilityError:\n"
                '            _log.warning("%s could not be cut back after a failed',
                "        try:\n"
                "            self._suspect = False\n"
                "        except DurabilityError:\n"
                '            _log.warning("%s could not be cut back after a failed',
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_nothing_of_a_group_that_failed_is_left_in_the_log",),
    ),
    Mutant(
        "late-roll-back",
        "A failed write is rolled back by the next append only: until then the file holds what was told as not stored.",
        "F7, I8",
        (17, 19),
        (
            Edit(
                "logfile.py",
                "        try:\n"
                "            self._mend(file)\n"
                "        except DurabilityError:\n"
                '            _log.warning("%s could not be cut back after a failed',
                "        try:\n"
                "            pass\n"
                "        except DurabilityError:\n"
                '            _log.warning("%s could not be cut back after a failed',
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_nothing_of_a_group_that_failed_is_left_in_the_log",),
    ),
    Mutant(
        "no-roll-back-of-a-birth",
        "The file of a log whose first write failed is left there.",
        "F7, I8",
        (17, 18, 19),
        (
            Edit(
                "logfile.py",
                "        for path in (self.path + TEMP_SUFFIX, self.path):\n            self._remove(path)\n",
                "",
            ),
        ),
        (
            "tests/test_interrupted.py::test_an_exception_before_and_after_every_operation_of_the_disk[birth "
            "of a scope-MemoryError]",
        ),
    ),
    Mutant(
        "interrupted-write-not-taken-back",
        "What an interrupted append has left in the file stays there until the next append.",
        "F7, I8",
        (35,),
        (
            Edit(
                "logfile.py",
                "        if not self._suspect or self.poison is not None:\n            return\n",
                "        return\n",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_commit_that_was_interrupted_is_in_no_file[adopt]",),
    ),
    Mutant(
        "short-write-is-whole",
        "A write that wrote less than it was given counts as done.",
        "F7, I1",
        (18,),
        (
            Edit(
                "logfile.py",
                "        if file.pwrite(data, view.end) != len(data):",
                "        if file.pwrite(data, view.end) < 0:",
            ),
        ),
        ("tests/test_window.py::test_a_short_write_is_finished",),
    ),
    Mutant(
        "no-room-to-reserve-is-a-failure",
        "An append fails because no space could be reserved, though there is room for its frame.",
        "F6, I8",
        (17,),
        (
            Edit(
                "logfile.py",
                "            elif error.errno not in _NO_ROOM:\n                raise",
                "            else:\n                raise",
            ),
        ),
        ("tests/test_regressions_bytes.py::test_no_room_to_reserve_is_no_failure_while_the_frame_has_room[122]",),
    ),
    Mutant(
        "definitions-of-a-failed-append-kept",
        "Addresses that a failed append was to define count as defined: later frames name them by numbers alone.",
        "F4, I3",
        (17, 19),
        (
            Edit(
                "logfile.py",
                "        self.counters.failures += 1\n        tail.table.undo()\n",
                "        self.counters.failures += 1\n",
            ),
        ),
        (
            "tests/crash/test_mutants_found.py::test_an_address_that_a_failed_commit_was_the_first_to_name_is_spelled_out_by_the_next",
        ),
    ),
    Mutant(
        "length-not-checked",
        "A log that somebody else made longer or shorter is written to.",
        "R errors, I3",
        (36,),
        (
            Edit(
                "logfile.py",
                "            if size != self._size:\n",
                "            if False:\n",
            ),
        ),
        ("tests/test_lock.py::test_log_appended_to_or_truncated_by_somebody_else[<lambda>0-main]",),
    ),
    Mutant(
        "replaced-file-written",
        "A log whose file was closed in between and replaced by somebody is gone on with in the file that has "
        "its name.",
        "R errors, I3",
        (36,),
        (
            Edit(
                "handle.py",
                "            if file.identity() != self._identity:",
                "            if False:",
            ),
        ),
        ("tests/test_pool.py::test_a_file_that_was_replaced_while_it_was_closed_fences_the_writer[_replaced-]",),
    ),
    # --- closing ----------------------------------------------------------------------------------
    Mutant(
        "close-without-sync",
        "A closing frame says that everything is durable, and nobody has synced it.",
        "F7, I1",
        (11,),
        (
            Edit(
                "logfile.py",
                "                self._sync(file)\n                if file is not None:",
                "                if file is not None:",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[close at process]",),
    ),
    Mutant(
        "closing-frame-vouches-for-its-index-frame",
        "The mark of a closing frame lies behind an index frame that was not synced.",
        "F7, I4",
        (11,),
        (
            Edit(
                "logfile.py",
                "            closing = batch.close(view.end)  #",
                "            closing = batch.close(batch.end)  #",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[index frame]",),
    ),
)
