"""Mutants of opening a session: what recovery cuts, keeps, sets aside and counts."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

RECOVERING: Final = (
    Mutant(
        "torn-tail-not-cut",
        "The torn tail is kept aside, but stays in the log; appends write over it and leave its end standing.",
        "F8, I2 I7",
        (4, 5, 6),
        (
            Edit(
                "recovery.py",
                "        file.truncate(found.end)\n        file.sync()\n    log.size, log.proved = found.end, True\n",
                "        file.sync()\n    log.size, log.proved = found.size, True\n",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_torn_tail_is_cut_once[sidecar]",),
    ),
    Mutant(
        "append-behind-a-torn-tail",
        "Appends go to the end of the file, behind a torn tail that was not cut.",
        "F8, I1 I2",
        (4, 5, 6),
        (
            Edit(
                "recovery.py",
                "        file.truncate(found.end)\n        file.sync()\n    log.size, log.proved = found.end, True\n",
                "        file.sync()\n"
                "    log.survey = found._replace(end=found.size)\n"
                "    log.size, log.proved = found.size, True\n",
            ),
        ),
        (
            "tests/test_damage.py::test_last_frame_cut_at_every_byte[sidecar]",
            "tests/test_crash_points.py::test_every_crash_point[repair]",
        ),
    ),
    Mutant(
        "torn-tail-not-kept",
        "The torn tail is cut and not kept.",
        "F8, I4",
        (4, 5, 6),
        (
            Edit(
                "recovery.py",
                "kept, length = _keep(fs, file, path, found)",
                "kept, length = path + TORN_SUFFIX, found.size - found.end",
            ),
        ),
        ("tests/test_damage.py::test_last_frame_cut_at_every_byte[sidecar]",),
    ),
    Mutant(
        "torn-file-not-synced",
        "The .torn file gets its name before its bytes are on disk.",
        "F8, I4 I7",
        (2, 14),
        (
            Edit(
                "recovery.py",
                "            copy.sync()\n",
                "",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[repair]",),
    ),
    Mutant(
        "torn-name-not-synced",
        "The log is cut before the .torn file's name is on disk.",
        "F8, I4 I7",
        (2, 13),
        (
            Edit(
                "recovery.py",
                "    fs.sync_dir(os.path.dirname(path))  # also",
                "    pass  # also",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[repair]",),
    ),
    Mutant(
        "torn-file-copied-in-place",
        "The .torn file is written under its own name: cut down in the middle, what is there is taken for whole.",
        "F8, I4 I7",
        (2,),
        (
            Edit(
                "recovery.py",
                "        temp = kept + TEMP_SUFFIX\n",
                "        temp = kept\n",
            ),
            Edit(
                "recovery.py",
                "        fs.rename(temp, kept)\n",
                "",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[repair]",),
    ),
    Mutant(
        "cut-not-synced",
        "The cut counts before it is on disk, and so do the bytes before it.",
        "F8, I1 I7",
        (2, 4, 11),
        (
            Edit(
                "recovery.py",
                "        file.truncate(found.end)\n        file.sync()\n",
                "        file.truncate(found.end)\n",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_what_a_repair_calls_durable_is[False]",),
    ),
    Mutant(
        "repair-writes-nothing-again",
        "A repaired log counts as proved, though its unproved bytes were not written again before the sync.",
        "F8, I1",
        (15,),
        (
            Edit(
                "recovery.py",
                "        rewrite(file, found.mark, found.end)\n",
                "",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_what_a_repair_calls_durable_is[True]",),
    ),
    Mutant(
        "reopen-writes-nothing-again",
        "An open after anything but a cut trusts the pages: what an earlier failed sync has dropped stays a hole.",
        "F8, I1",
        (15,),
        (
            Edit(
                "logfile.py",
                "log._rewrite_from = None if proved else survey.mark",
                "log._rewrite_from = None",
            ),
        ),
        (
            "tests/test_regressions_bytes.py::test_an_open_after_an_unclean_end_writes_the_unproved_bytes_again_before_it_acknowledges",
            "tests/test_crash_points.py::test_every_crash_point[after a failed sync]",
        ),
    ),
    Mutant(
        "corrupt-main-opened",
        "Main is opened for writing and cut though its damage is proved.",
        "F8, I4",
        (8, 9),
        (
            Edit(
                "recovery.py",
                "            if found.verdict == CORRUPT:\n",
                "            if False:\n",
            ),
        ),
        ("tests/test_damage.py::test_zero_hole_below_a_durable_mark_of_main",),
    ),
    Mutant(
        "bad-sidecar-stops-main",
        "A sidecar without a valid header keeps the session from opening.",
        "F8, I4 I6",
        (9, 31),
        (
            Edit(
                "recovery.py",
                "except (CorruptLog, NewerFormat, ForeignFile, ReadFailed, OSError) as error:",
                "except (NewerFormat, ForeignFile, ReadFailed, OSError) as error:",
            ),
        ),
        (
            "tests/test_regressions.py::test_a_junk_file_with_the_name_of_a_sidecar_uses_up_no_sequences[9007199237963775]",
            "tests/test_damage.py::test_sidecar_cut_inside_its_header_or_first_batch",
        ),
    ),
    Mutant(
        "unreadable-sidecar-set-aside",
        "A sidecar that the disk will not let us read just now is taken for one that does not belong.",
        "F8, I1 I6",
        (20, 21),
        (
            Edit(
                "recovery.py",
                "if isinstance(error, OSError | ReadFailed):",
                "if False:",
            ),
            Edit(
                "recovery.py",
                "result.strange.append((path, error.cause))",
                "result.strange.append((path, str(error)))",
            ),
        ),
        ("tests/test_read_errors.py::test_sidecar_that_cannot_be_read_never_touches_main[closed-False]",),
    ),
    Mutant(
        "base-ignored",
        "A sidecar that builds on more of main than there is goes on.",
        "F8, I6",
        (12, 32, 37),
        (
            Edit(
                "recovery.py",
                "    if builds_on > main_last:",
                "    if False:",
            ),
        ),
        ("tests/test_damage_misplaced.py::test_main_restored_from_an_older_backup",),
    ),
    Mutant(
        "sidecar-name-ignored",
        "A sidecar that was copied or renamed is replayed.",
        "F8, I6",
        (31,),
        (
            Edit(
                "recovery.py",
                "    if header.first != first:",
                "    if False:",
            ),
        ),
        ("tests/test_damage_misplaced.py::test_sidecar_copied_or_renamed_is_set_aside",),
    ),
    Mutant(
        "two-lives-of-one-scope",
        "A life goes on beside an older one of its scope, whose retirement was lost with main's end.",
        "F8, I6",
        (12, 31),
        (
            Edit(
                "recovery.py",
                "builds_on = max(header.base, header.after)",
                "builds_on = header.base",
            ),
            Edit(
                "recovery.py",
                "        elif car.scope in owner:",
                "        elif False:",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_life_whose_older_one_was_never_retired_is_set_aside",),
    ),
    Mutant(
        "retired-life-replayed",
        "A sidecar whose scope was retired after it began comes back.",
        "F7 F8, I6",
        (31, 33),
        (
            Edit(
                "recovery.py",
                "        if boundary > car.first:",
                "        if False:",
            ),
        ),
        (
            "tests/test_damage_misplaced.py::test_sidecar_of_a_retired_life_never_comes_back",
            "tests/test_crash_points.py::test_every_crash_point[retirement]",
        ),
    ),
    Mutant(
        "floor-ignored",
        "A life that only the floor of a compacted main says is over comes back.",
        "F3, I6",
        (31, 33),
        (
            Edit(
                "recovery.py",
                "main.header.ended(car.first) if main is not None else 0",
                "0",
            ),
        ),
        ("tests/test_compaction.py::test_retired_scopes_do_not_come_back_whose_retirement_was_dropped",),
    ),
    Mutant(
        "sequences-of-files-set-aside-forgotten",
        "Sequences go on above the files that belong alone: those of a file set aside are given again.",
        "F8, I3",
        (12, 31),
        (
            Edit(
                "recovery.py",
                "    result.high, result.epoch = max(result.high, found.high), max(result.epoch, found.epoch)\n"
                "    reason = _why_not_ours(found, first, main_last)\n"
                "    if reason:\n"
                "        handle.close()\n"
                "        result.strange.append((path, reason))\n"
                "        return None\n",
                "    reason = _why_not_ours(found, first, main_last)\n"
                "    if reason:\n"
                "        handle.close()\n"
                "        result.strange.append((path, reason))\n"
                "        return None\n"
                "    result.high, result.epoch = max(result.high, found.high), max(result.epoch, found.epoch)\n",
            ),
        ),
        ("tests/test_damage_misplaced.py::test_main_restored_from_an_older_backup",),
    ),
    Mutant(
        "sequences-of-an-unreadable-file-given-again",
        "A sidecar that cannot be read counts as one that holds nothing.",
        "F8, I3",
        (20, 21),
        (
            Edit(
                "recovery.py",
                "            result.high = max(result.high, first + _UNKNOWN_LENGTH)",
                "            pass",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_sequences_go_on_above_those_of_a_file_that_cannot_be_read",),
    ),
    Mutant(
        "sequences-of-sidecars-forgotten",
        "Sequences go on above main's alone.",
        "F8, I3",
        (1, 11),
        (
            Edit(
                "opening.py",
                "sequence = max(sidecars.high, main.survey.high if main is not None else 0)",
                "sequence = main.survey.high if main is not None else 0",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_sequences_go_on_above_those_of_every_file",),
    ),
    Mutant(
        "epoch-of-the-lock-forgotten",
        "The epoch that the LOCK file names does not count: one whose frames were lost comes again.",
        "F7, I3",
        (3, 11),
        (
            Edit(
                "opening.py",
                "epoch = max(lock.last_epoch, sidecars.epoch,",
                "epoch = max(sidecars.epoch,",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_an_epoch_that_was_shown_never_comes_again[opened]",),
    ),
    Mutant(
        "epoch-not-raised",
        "An open for write goes on with the epoch of the one before it.",
        "F7, I3",
        (1, 11),
        (
            Edit(
                "opening.py",
                "main.survey.epoch if main is not None else 0) + 1",
                "main.survey.epoch if main is not None else 0) or 1",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_an_epoch_that_was_shown_never_comes_again[opened]",),
    ),
    Mutant(
        "leftovers-not-swept",
        "A file that never got its name is left where it is.",
        "F7, I7",
        (2, 14),
        (
            Edit(
                "opening.py",
                "if name.endswith(TEMP_SUFFIX):",
                "if False:",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_files_that_never_got_their_name_are_swept",),
    ),
)
