"""Mutants of those who read without the lock: readers, followers, positions."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

READING: Final = (
    Mutant(
        "reader-shows-the-retired",
        "A reader shows a life that main has retired.",
        "F7, I6",
        (31, 33, 38),
        (
            Edit(
                "reader.py",
                "if ended <= found.header.first and scope not in fresh.views:",
                "if scope not in fresh.views:",
            ),
        ),
        ("tests/test_damage_misplaced.py::test_sidecar_of_a_retired_life_never_comes_back",),
    ),
    Mutant(
        "reader-shows-what-main-lacks",
        "A reader shows a sidecar that builds on more of main than it has seen.",
        "F8, I6",
        (12, 32, 38),
        (
            Edit(
                "reader.py",
                "if header.first == first and max(header.base, header.after) <= main_last and not nothing_yet:",
                "if header.first == first and not nothing_yet:",
            ),
        ),
        ("tests/test_damage_misplaced.py::test_main_restored_from_an_older_backup",),
    ),
    Mutant(
        "reader-believes-a-copied-sidecar",
        "A reader shows a sidecar that was copied or renamed.",
        "F8, I6",
        (31,),
        (
            Edit(
                "reader.py",
                "if header.first == first and max(header.base",
                "if max(header.base",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_reader_says_of_a_renamed_sidecar_what_the_writer_says",),
    ),
    Mutant(
        "reader-does-not-look-again",
        "A scope whose sidecar went away under the reader is left out, though main as it was seen does not retire it.",
        "F7, I2",
        (38,),
        (
            Edit(
                "reader.py",
                "                return False  # retired since",
                "                continue  # retired since",
            ),
        ),
        (
            "tests/test_readers_live.py::test_a_reader_is_consistent_whenever_it_is_overtaken[retire_and_begin_new_lives]",
        ),
    ),
    Mutant(
        "reader-passes-by-what-it-cannot-read",
        "A scope whose sidecar could not be read is one that is not alive, to a reader.",
        "F8, I1",
        (20, 21),
        (
            Edit(
                "reader.py",
                '                fresh.undecided = ReadFailed(f"{name} could not be read ({error})", "check '
                'the disk")\n',
                "",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_reader_does_not_answer_for_a_scope_that_it_cannot_read",),
    ),
    Mutant(
        "reader-calls-a-roll-back-damage",
        "A reader that is overtaken by a roll-back says that the log is corrupt.",
        "F8, I4",
        (38,),
        (
            Edit(
                "reader.py",
                "                if not self._cut_since(error):\n"
                "                    raise\n"
                "                self.refresh()",
                "                if True:\n                    raise\n                self.refresh()",
            ),
        ),
        (
            "tests/test_regressions.py::test_a_reader_opened_between_a_write_and_its_roll_back_says_nothing_of_damage[get]",
        ),
    ),
    Mutant(
        "reader-works-in-a-child",
        "A reader goes on working in a forked child.",
        "R errors, I3",
        (25,),
        (
            Edit(
                "reader.py",
                "        if os.getpid() != self._pid:\n",
                "        if False:\n",
            ),
        ),
        ("tests/test_regressions.py::test_a_reader_that_came_through_fork_is_refused",),
    ),
    Mutant(
        "durable-reader-passes-the-mark",
        "A durable reader shows what a power cut can take back.",
        "F2, I1",
        (3, 38),
        (
            Edit(
                "reader.py",
                "bounded = survey(_Bounded(file, mark), path, judge=False)",
                "bounded = found",
            ),
        ),
        ("tests/test_follow.py::test_with_durable_what_is_told_ends_at_the_mark",),
    ),
    # --- followers ----------------------------------------------------------------------------------
    Mutant(
        "follower-passes-the-mark",
        "A durable follower tells of what a power cut can take back.",
        "F2, I1",
        (3, 38),
        (
            Edit(
                "cursor.py",
                "            if durable and frame.end > self._mark:\n                break\n",
                "",
            ),
        ),
        ("tests/test_follow.py::test_with_durable_what_is_told_ends_at_the_mark",),
    ),
    Mutant(
        "follower-does-not-look-back",
        "A follower goes on behind a frame that was rolled back and written anew.",
        "F8, I2 I3",
        (38,),
        (
            Edit(
                "cursor.py",
                "                if isinstance(found, Frame) and found.checksum == frame.checksum:\n"
                "                    return data",
                "                if isinstance(found, Frame):\n                    return data",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_follower_knows_its_last_frame_from_another_in_its_place",),
    ),
    Mutant(
        "position-of-a-lost-epoch-honoured",
        "A position is honoured where another epoch has reached the same sequence.",
        "F8, I3",
        (38,),
        (
            Edit(
                "cursor.py",
                "last = frame if frame.epoch == point.epoch else None",
                "last = frame",
            ),
        ),
        ("tests/test_follow.py::test_a_position_is_honoured_at_a_boundary_alone",),
    ),
    Mutant(
        "position-inside-a-commit-honoured",
        "A position that is no boundary of the log is honoured.",
        "F8, I2",
        (38,),
        (
            Edit(
                "cursor.py",
                "        if last is None:\n            return None\n",
                "        last = last or before\n",
            ),
        ),
        ("tests/test_follow.py::test_a_position_is_honoured_at_a_boundary_alone",),
    ),
    Mutant(
        "position-before-a-compaction-honoured",
        "A position is honoured though records behind it were compacted away.",
        "F8, I2",
        (38,),
        (
            Edit(
                "cursor.py",
                "if compacted is not None and point.sequence <= compacted.sequence and not all_of_it:",
                "if False:",
            ),
        ),
        ("tests/test_follow_compacted.py::test_who_has_seen_all_of_main_goes_on_and_who_has_not_begins_anew",),
    ),
    Mutant(
        "compacted-file-followed-blindly",
        "A follower does not notice that the file it follows was replaced.",
        "F8, I2",
        (38,),
        (
            Edit(
                "cursor.py",
                "return fetch(file, self.path, len(self._beginning), 0) == self._beginning",
                "return True",
            ),
        ),
        (
            "tests/test_follow_compacted.py::test_where_the_last_records_were_dropped",
            "tests/test_follow_compacted.py::test_who_has_seen_all_of_main_goes_on_and_who_has_not_begins_anew",
        ),
    ),
    Mutant(
        "session-made-anew-followed",
        "A follower goes on with another session of the same id.",
        "F8, I3",
        (38,),
        (
            Edit(
                "follow.py",
                "        if _identity_of(header) != self._identity:\n            raise _Gone",
                "        pass",
            ),
        ),
        ("tests/test_follow.py::test_deleted_and_made_anew_is_another_session",),
    ),
    Mutant(
        "follower-tells-of-the-dead",
        "A follower tells of a life that is over.",
        "F8, I6",
        (33, 38),
        (
            Edit(
                "follow.py",
                "elif dead_by_floor(main.header, first) or self._latest_retirement(header.scope, first) > first:",
                "elif False:",
            ),
        ),
        (
            "tests/test_follow_compacted.py::test_a_life_that_only_the_floor_says_is_over",
            "tests/test_follow.py::test_a_life_that_is_over_is_not_told_of",
        ),
    ),
    Mutant(
        "follower-tells-before-main",
        "A follower tells of a life before the retirement that it follows.",
        "F8, I6",
        (12, 38),
        (
            Edit(
                "follow.py",
                "            if max(header.base, header.after) > shown:\n"
                "                del newcomers[first]\n"
                "            elif",
                "            if",
            ),
        ),
        ("tests/test_follow.py::test_with_durable_a_new_life_waits_for_the_retirement_before_it",),
    ),
    Mutant(
        "trouble-of-a-sidecar-hides-main",
        "A sidecar that cannot be read keeps a follower from what is new in main.",
        "F8, I6",
        (20, 38),
        (
            Edit(
                "follow.py",
                "                self._trouble = error\n                continue\n            except OSError",
                "                raise\n            except OSError",
            ),
        ),
        ("tests/test_follow.py::test_trouble_in_a_sidecar_does_not_touch_main[pread]",),
    ),
    Mutant(
        "interrupted-poll-loses",
        "What an interrupted poll had read is not told again.",
        "R following, I1",
        (35, 38),
        (
            Edit(
                "follow.py",
                "            self.go_back(self._given)\n",
                "            pass\n",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_poll_that_fails_behind_what_it_has_read_reads_it_again",),
    ),
)
