"""Mutants of compaction and of copies."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

GROWING: Final = (
    Mutant(
        "compacted-file-not-synced",
        "A compacted log gets its name before it is on disk.",
        "F7, I1",
        (14,),
        (
            Edit(
                "compact.py",
                "        self._file.sync()  # a closing frame says that what is before it was synced\n",
                "",
            ),
            Edit(
                "compact.py",
                "        self._batch.close(self.end, sequence)\n        self._write()\n        self._file.sync()\n",
                "        self._batch.close(self.end, sequence)\n        self._write()\n",
            ),
            Edit(
                "compact.py",
                "        self._gather()\n        self._write()\n        self._file.sync()\n\n",
                "        self._gather()\n        self._write()\n\n",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[compaction]",),
    ),
    Mutant(
        "compacted-name-not-synced",
        "What is appended behind a compaction goes to a file whose name may be lost.",
        "F7, I1",
        (13,),
        (
            Edit(
                "compacting.py",
                "                fresh.sync_name()  #",
                "                fresh._names_synced = True  #",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[compaction of a sidecar]",),
    ),
    Mutant(
        "old-log-not-synced",
        "The new file says that all of it is durable, and the old one, which may come back, is not.",
        "F7, I1",
        (13,),
        (
            Edit(
                "compacting.py",
                "                log.sync()\n                before = log.end",
                "                before = log.end",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_what_a_compacted_log_calls_durable_is_also_if_its_name_is_lost",),
    ),
    Mutant(
        "added-meanwhile-lost",
        "What came in while a log was copied is not in the new file.",
        "F7, I1",
        (),
        (
            Edit(
                "compacting.py",
                "                rewrite.copy(log.view, lambda _: True, after=last)\n",
                "",
            ),
        ),
        ("tests/test_compaction.py::test_others_write_and_read_meanwhile",),
    ),
    Mutant(
        "compacted-in-place-of-another",
        "A writer whose log was fenced puts its compacted file in place of somebody else's.",
        "R errors, I3",
        (25,),
        (
            Edit(
                "compacting.py",
                "                self._writer_lock.check()\n",
                "",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_compaction_puts_nothing_in_place_of_a_log_that_is_somebody_elses",),
    ),
    Mutant(
        "floor-above-the-unborn",
        "The floor of a compacted main buries scopes that have staged elements and no file yet.",
        "F7, I1",
        (33,),
        (
            Edit(
                "compact.py",
                "floor = min([high, *(first - 1 for first in unborn)])",
                "floor = high",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_scope_that_was_staged_before_a_compaction_lives_on",),
    ),
    Mutant(
        "living-lives-not-named",
        "The header of a compacted main names none of the lives that go on.",
        "F3, I1",
        (33,),
        (
            Edit(
                "compact.py",
                "    return max(floor, 0), tuple(below)\n",
                "    return max(floor, 0), ()\n",
            ),
        ),
        ("tests/test_compaction.py::test_retired_scopes_do_not_come_back_whose_retirement_was_dropped",),
    ),
    Mutant(
        "floor-lowered",
        "A second compaction lowers the floor: what the first had dropped below it is told by nothing.",
        "F7, I6",
        (33,),
        (
            Edit(
                "compacting.py",
                "        if floor < old.floor:",
                "        if False:",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_floor_is_never_lowered",),
    ),
    Mutant(
        "floor-above-the-unread",
        "The floor buries a life whose file could not be read when the session was opened.",
        "F7, I1",
        (20, 21),
        (
            Edit(
                "compacting.py",
                "        unborn += [first for first in unread if first is not None]\n",
                "",
            ),
        ),
        ("tests/test_regressions_growth.py::test_a_compaction_does_not_bury_a_scope_that_could_not_be_read",),
    ),
    Mutant(
        "high-water-dropped",
        "A compacted log does not say how far its sequences had come.",
        "F3, I3",
        (11,),
        (
            Edit(
                "compacting.py",
                "            high=log.last_sequence,\n",
                "            high=old.high,\n",
            ),
        ),
        ("tests/test_follow_compacted.py::test_a_compaction_while_the_session_is_written",),
    ),
    Mutant(
        "retirements-dropped",
        "Retirements above the floor are taken for void.",
        "F7, I6",
        (33,),
        (
            Edit(
                "compacting.py",
                "return record.sequence > header.floor if record.code == RETIRE else alive.needs(record)",
                "return record.code != RETIRE and alive.needs(record)",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_retirement_above_the_floor_stays_in_a_compacted_log",),
    ),
    Mutant(
        "trimmed-elements-kept",
        "What was trimmed or deleted is still in the compacted file.",
        "F7",
        (),
        (
            Edit(
                "compact.py",
                "            return record.sequence > self.floors.get(record.address, 0)",
                "            return True",
            ),
        ),
        ("tests/test_compaction.py::test_what_was_deleted_or_trimmed_is_in_no_file",),
    ),
    Mutant(
        "older-value-kept",
        "Of a value its oldest write stays, not its last.",
        "F7, I3",
        (),
        (
            Edit(
                "compact.py",
                "            values.setdefault(address, 0 if newest.deleted else newest.sequence)",
                "            values[address] = 0 if newest.deleted else newest.sequence",
            ),
        ),
        ("tests/test_compaction.py::test_large_elements_and_many_stretches",),
    ),
    Mutant(
        "generation-not-raised",
        "A compacted log is not told from the one before it: frames of the old file are frames of the new one.",
        "F7, I3",
        (10,),
        (
            Edit(
                "compacting.py",
                "            generation=old.generation + 1,\n",
                "",
            ),
        ),
        (
            "tests/crash/test_mutants_found.py::test_what_a_disk_gives_back_of_the_file_before_a_compaction_proves_nothing",
        ),
    ),
    Mutant(
        "unknown-lines-dropped",
        "Lines that a later release wrote are dropped by a compaction.",
        "F7, I1",
        (),
        (
            Edit(
                "compact.py",
                "    if unknown:\n",
                "    if False:\n",
            ),
        ),
        ("tests/test_compaction.py::test_lines_that_a_later_release_wrote_are_not_dropped",),
    ),
    Mutant(
        "foreign-frames-dropped",
        "Skippable frames of other tools are dropped by a compaction.",
        "F7",
        (),
        (
            Edit(
                "compact.py",
                "        self._tail.defer(self._batch.carry_bytes(data), [], data)\n        self._held += len(data)",
                "        pass",
            ),
        ),
        ("tests/test_compaction.py::test_frames_that_a_later_release_wrote_are_carried_over",),
    ),
    Mutant(
        "commits-merged",
        "A compaction makes one line of several commits.",
        "F7, I2",
        (),
        (
            Edit(
                "compact.py",
                '        for text in raw.split(b"\\n"):\n'
                "            if text:\n"
                "                yield list(decode_lines(text, header.first, header.time, numbers, unknown))",
                "        yield list(decode_lines(raw, header.first, header.time, numbers, unknown))",
            ),
        ),
        ("tests/test_compaction.py::test_a_copy_is_the_session_as_it_was",),
    ),
    Mutant(
        "damage-compacted-away",
        "A log that cannot be read to its end is compacted as if it ended there.",
        "F7, I1 I4",
        (8,),
        (
            Edit(
                "compact.py",
                "                if walk.offset < source.end:\n",
                "                if False:\n",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_damaged_log_is_not_compacted_to_its_good_prefix",),
    ),
    Mutant(
        "void-part-of-a-commit-copied",
        "A copy up to a sequence inside a commit holds half of that commit.",
        "F7, I2",
        (),
        (
            Edit(
                "compact.py",
                "                if upto is not None and line and line[0].sequence <= upto < line[-1].sequence:\n",
                "                if False:\n",
            ),
            Edit(
                "compact.py",
                "kept = [record for record in line if keep(record)]",
                "kept = [record for record in line if keep(record) and (upto is None or record.sequence <= upto)]",
            ),
        ),
        ("tests/test_compaction.py::test_what_cannot_be_copied",),
    ),
)
