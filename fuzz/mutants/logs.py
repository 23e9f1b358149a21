"""Mutants of writing one log: birth, append, sync, the durable mark, poison."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

LOGS: Final = (
    Mutant(
        "no-sync",
        "Nothing is ever synced: a commit at POWER is acknowledged all the same.",
        "F7, I1",
        (3, 11),
        (
            Edit(
                "syncing.py",
                "        file.sync()\n",
                "",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[first commit]",),
    ),
    Mutant(
        "no-directory-sync",
        "The names of new files are never synced.",
        "F7, I1",
        (13,),
        (
            Edit(
                "syncing.py",
                "            self._sync_parents()\n",
                "            pass\n",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[first commit]",),
    ),
    Mutant(
        "store-directory-not-synced",
        "A session's own name in the store is not synced with its main log.",
        "F7, I1",
        (13,),
        (
            Edit(
                "store.py",
                "        self.fs.sync_dir(directory)\n        self.fs.sync_dir(self.path)\n",
                "        self.fs.sync_dir(directory)\n",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[first commit]",),
    ),
    Mutant(
        "main-named-before-it-is-synced",
        "Main gets its name before its first bytes are on disk.",
        "F7, I4",
        (14,),
        (
            Edit(
                "logfile.py",
                "            self._timed_sync(file)\n            self.fs.rename(temp, self.path)",
                "            self.fs.rename(temp, self.path)",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[first commit]",),
    ),
    Mutant(
        "main-born-in-place",
        "Main is created under its own name: a crash leaves one without a valid header.",
        "F7, I4",
        (1, 14),
        (
            Edit(
                "logfile.py",
                "temp = self.path + TEMP_SUFFIX if self._by_rename else self.path",
                "temp = self.path",
            ),
            Edit(
                "logfile.py",
                "            self.fs.rename(temp, self.path)\n",
                "",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[first commit]",),
    ),
    Mutant(
        "mains-name-not-synced",
        "The first commit of a session is acknowledged before main's name is on disk.",
        "F7, I1",
        (13,),
        (
            Edit(
                "logfile.py",
                "            self._sync_names()\n            self.durable = len(data)",
                "            self.durable = len(data)",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[first commit]",),
    ),
    Mutant(
        "sidecars-name-not-synced",
        "A sidecar's first commit at POWER syncs the file and not its name.",
        "F7, I1",
        (13,),
        (
            Edit(
                "syncing.py",
                "        if not self._names_synced:\n            self._sync_names()\n        self.durable = end",
                "        self.durable = end",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[first window]",),
    ),
    Mutant(
        "compacted-name-believed",
        "The mark in a compacted log is taken for a proof of its name as well.",
        "F2, I1",
        (13,),
        (
            Edit(
                "logfile.py",
                "log._names_synced = survey.mark > 0 and survey.header.generation == 0",
                "log._names_synced = survey.mark > 0",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[compaction]",),
    ),
    Mutant(
        "sync-tried-again",
        "A sync that failed is tried once more, and the kernel, which has dropped the pages, says yes.",
        "F7, I1",
        (15, 16),
        (
            Edit(
                "syncing.py",
                "        except OSError as error:\n"
                "            raise self._poisoned(error) from error\n"
                "        if not self._names_synced:",
                "        except OSError:\n            self._timed_sync(file)\n        if not self._names_synced:",
            ),
        ),
        (
            "tests/test_crash_points.py::test_every_crash_point[after a failed sync]",
            "tests/test_window.py::test_after_a_failed_sync_the_outcome_is_unknown_and_the_log_takes_no_more",
        ),
    ),
    Mutant(
        "no-poison",
        "A log takes more writes after a sync of it has failed.",
        "F7, I1",
        (15, 16),
        (
            Edit(
                "syncing.py",
                "        self.poison = error\n",
                "",
            ),
        ),
        (
            "tests/test_crash_points.py::test_every_crash_point[after a failed sync]",
            "tests/test_window.py::test_after_a_failed_sync_the_outcome_is_unknown_and_the_log_takes_no_more",
        ),
    ),
    Mutant(
        "failed-name-sync-forgiven",
        "The name of a log whose directory could not be synced is taken for durable.",
        "F7, I1",
        (15,),
        (
            Edit(
                "syncing.py",
                "            self._sync_parents()\n"
                "        except OSError as error:\n"
                "            raise self._poisoned(error) from error\n",
                "            self._sync_parents()\n        except OSError:\n            pass\n",
            ),
        ),
        ("tests/test_compaction.py::test_a_name_that_cannot_be_synced_ends_the_log",),
    ),
    Mutant(
        "durable-before-the-sync",
        "What is about to be synced counts as durable, whatever becomes of the sync.",
        "F2, I1",
        (15, 35),
        (
            Edit(
                "syncing.py",
                "        self._rewrite_from, self._rewritten = self.durable, False  #",
                "        self.durable = end  #",
            ),
        ),
        ("tests/test_pool.py::test_a_sync_whose_failure_was_lost_to_an_interruption_proves_nothing",),
    ),
    Mutant(
        "no-marks-written",
        "No frame says what was durable when it was written.",
        "F2 F8, I4",
        (8,),
        (
            Edit(
                "batch.py",
                "self._mark = mark or NO_MARK",
                "self._mark = NO_MARK",
            ),
        ),
        (
            "tests/test_follow.py::test_with_durable_what_is_told_ends_at_the_mark",
            "tests/test_damage.py::test_zero_hole_below_a_durable_mark_of_main",
        ),
    ),
    Mutant(
        "mark-beyond-the-sync",
        "A mark names what was written, not what was synced.",
        "F2 F8, I4",
        (7, 11),
        (
            Edit(
                "logfile.py",
                "            mark=self.durable,\n",
                "            mark=self.end,\n",
            ),
        ),
        ("tests/test_damage.py::test_zero_hole_before_valid_frames_that_no_mark_covers[sidecar]",),
    ),
    Mutant(
        "unproved-bytes-of-a-closed-file-trusted",
        "A log whose file was closed in between is gone on with as if it had stayed open.",
        "F8, I1",
        (15, 21),
        (
            Edit(
                "syncing.py",
                "            if self.durable < self._view.end:\n",
                "            if False:\n",
            ),
        ),
        (
            "tests/test_pool.py::test_unsynced_bytes_of_a_closed_file_are_written_again_before_the_next_append",
            "tests/test_pool.py::test_unsynced_bytes_of_a_closed_file_are_written_again_before_the_next_sync",
        ),
    ),
    Mutant(
        "lost-bytes-written-again",
        "What the kernel has dropped while the file was closed is read as it is and written again.",
        "F8, I3",
        (15, 21),
        (
            Edit(
                "syncing.py",
                "        if self._doubted:\n",
                "        if False:\n",
            ),
        ),
        ("tests/test_pool.py::test_unsynced_bytes_that_were_lost_while_the_file_was_closed_are_not_built_upon[1-2]",),
    ),
)
