"""Mutants of the one verdict on where a log ends and why, and of what is held against its index frames."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

VERDICTS: Final = (
    Mutant(
        "any-damage-is-a-tear",
        "The log is cut at the first bad frame, though what follows proves that those bytes were durable.",
        "F8, I1 I4",
        (8, 9),
        (
            Edit(
                "survey.py",
                "if frame.mark > walk.offset:",
                "if False:",
            ),
        ),
        (
            "tests/test_damage.py::test_zero_hole_below_a_durable_mark_of_main",
            "tests/test_damage.py::test_closing_frame_behind_a_hole_proves_it",
        ),
    ),
    Mutant(
        "any-later-frame-is-a-proof",
        "A valid frame behind a hole makes it corruption, whatever its mark says: un-synced frames are written "
        "back in any order.",
        "F8, I4",
        (7, 11),
        (
            Edit(
                "survey.py",
                "if frame.mark > walk.offset:",
                "if True:",
            ),
        ),
        ("tests/test_damage.py::test_zero_hole_before_valid_frames_that_no_mark_covers[main]",),
    ),
    Mutant(
        "marks-not-honoured",
        "The durable mark that a frame carries is not looked at.",
        "F2 F8, I4",
        (8,),
        (
            Edit(
                "frame.py",
                "mark = offset - distance + 1 if distance else NO_MARK",
                "mark = NO_MARK",
            ),
        ),
        (
            "tests/test_damage.py::test_closing_frame_behind_a_hole_proves_it",
            "tests/test_damage.py::test_zero_hole_below_a_durable_mark_of_main",
        ),
    ),
    Mutant(
        "lower-frames-prove",
        "A frame behind the end that cannot have followed the chain proves something all the same.",
        "F8, I4",
        (8, 10),
        (
            Edit(
                "survey.py",
                "if frame.last < last.last or frame.epoch < last.epoch:",
                "if False:",
            ),
        ),
        ("tests/test_damage.py::test_mark_of_a_frame_that_cannot_have_followed_proves_nothing",),
    ),
    Mutant(
        "cover-is-the-end",
        "A cover is taken for the end of the log, and nothing is searched for behind it.",
        "F6 F8, I4",
        (5, 7, 8),
        (
            Edit(
                "survey.py",
                "        if judge:\n",
                "        if judge and walk.fault is not Fault.COVER:\n",
            ),
        ),
        ("tests/test_damage.py::test_garbage_behind_a_stale_cover",),
    ),
    Mutant(
        "preallocated-space-is-a-tear",
        "Untouched preallocated space is cut and kept as if something had been lost.",
        "F8, I4",
        (6,),
        (
            Edit(
                "survey.py",
                "if is_zero(file, path, start_of_zeros, size):",
                "if False:",
            ),
        ),
        ("tests/test_damage.py::test_untouched_preallocated_space_is_no_tear",),
    ),
    Mutant(
        "zeros-are-an-end",
        "Zeros behind the last frame are taken for space that nobody has used: the tear is neither kept nor told.",
        "F8, I4",
        (6,),
        (
            Edit(
                "survey.py",
                "if verdict == TORN and walk.fault is Fault.COVER:",
                "if verdict == TORN:",
            ),
        ),
        ("tests/test_damage.py::test_garbage_after_the_end[zeros-sidecar]",),
    ),
    Mutant(
        "torn-sequences-forgotten",
        "Complete records behind the end of the chain do not count: their sequences are given again.",
        "F8, I3",
        (7, 11),
        (
            Edit(
                "survey.py",
                "high, epoch = max(high, frame.last), max(epoch, frame.epoch)",
                "pass",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_sequences_go_on_above_those_of_frames_that_were_cut",),
    ),
    Mutant(
        "chain-begun-anywhere",
        "The chain is followed from the newest index frame, though nothing proves that what is before it is durable.",
        "F8, I2",
        (7, 11),
        (
            Edit(
                "survey.py",
                "        if start.offset <= run.mark:\n            return run",
                "        return run",
            ),
        ),
        ("tests/test_damage_far.py::test_hole_before_index_frames_that_no_mark_covers[400]",),
    ),
    Mutant(
        "sequences-of-a-compacted-log-forgotten",
        "A compacted log whose last record was void is taken to end before it.",
        "F3, I3",
        (11,),
        (
            Edit(
                "survey.py",
                "return max(self.last.last, self.header.high, self.header.floor)",
                "return self.last.last",
            ),
        ),
        (
            "tests/test_regressions_growth.py::test_the_high_water_mark_of_a_compacted_log_outlives_its_closing_frame[flipped-True]",
        ),
    ),
    Mutant(
        "stretches-need-not-meet",
        "An index frame is believed about where the stretch before it ends.",
        "F5, I3",
        (8, 9),
        (
            Edit(
                "answers.py",
                "        if older.index.end != newer.start:",
                "        if False:",
            ),
        ),
        ("tests/test_damage_far.py::test_index_frame_that_passes_by_what_is_there[a stretch left out]",),
    ),
    Mutant(
        "frame-length-not-held",
        "A frame that a stretch names is read whatever its length is, and what lies between goes unnoticed.",
        "F5, I3",
        (8, 9),
        (
            Edit(
                "view.py",
                "if not isinstance(found, Frame) or found.length != length:",
                "if not isinstance(found, Frame):",
            ),
        ),
        ("tests/test_damage_far.py::test_index_frame_that_passes_by_what_is_there[two frames as one]",),
    ),
)
