"""Salvage: what it finds, what it calls by which name, and what must not come back."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

_TESTS: Final = "tests/test_salvage.py::"
SALVAGING: Final = (
    Mutant(
        "salvage-carries-names-over-any-damage",
        "Numbers keep their meaning behind damage that may hold an index frame.",
        "F5 F8, I3",
        (8, 9),
        (Edit("rescue.py", "return gap.end - _SHORTEST - self._start < shortest", "return True"),),
        (_TESTS + "test_names_are_not_carried_over_a_lost_index_frame",),
    ),
    Mutant(
        "salvage-takes-names-of-another-history",
        "A sound frame that does not follow the one before it is read with that one's names.",
        "F8, I3",
        (10,),
        (Edit("rescue.py", " or gap.end == gap.offset:", ":"),),
        (_TESTS + "test_a_frame_of_another_history_names_nothing",),
    ),
    Mutant(
        "salvage-does-not-ask-the-index-frame",
        "A damaged stretch is read without the names that its index frame repeats.",
        "F8",
        (8, 9),
        (
            Edit(
                "rescue.py",
                "        self._numbers = dict(closed.numbers)\n        self._start",
                "        self._numbers = {}\n        self._start",
            ),
        ),
        (_TESTS + "test_an_index_frame_gives_the_names_back",),
    ),
    Mutant(
        "salvage-forgets-removals",
        "What was deleted, trimmed or retired in a damaged part comes back.",
        "F8, I6",
        (8, 9),
        (Edit("rescue.py", "again, homeless = made_again(closed, seen, ranges)", "again, homeless = [], 0"),),
        (_TESTS + "test_removals_that_an_index_frame_tells_of_are_made_again",),
    ),
    Mutant(
        "salvage-takes-frames-of-the-past",
        "Behind damage any sound frame counts, also one that cannot have followed.",
        "F8, I2 I3",
        (10, 11),
        (
            Edit(
                "pieces.py",
                "if frame.epoch >= epoch and frame.last >= before and not (frame.commits and frame.first <= before):",
                "if frame.kind:",
            ),
        ),
        (_TESTS + "test_frames_of_the_past_behind_a_hole_are_left_out",),
    ),
    Mutant(
        "salvage-gives-the-name-too-early",
        "The new session has its name before its directory is durable.",
        "F8, I4",
        (13, 14),
        (Edit("salvage.py", "            fs.sync_dir(workshop)\n", ""),),
        (_TESTS + "test_a_crash_leaves_the_new_session_whole_or_not_at_all",),
    ),
    Mutant(
        "salvage-under-way-is-swept",
        "Whoever opens the store removes what is being salvaged.",
        "F8",
        (25,),
        (
            Edit(
                "store.py",
                "        except StoreLocked:\n            return\n        except FileNotFound",
                "        except StoreLocked:\n            return self._empty(directory)\n        except FileNotFound",
            ),
        ),
        (_TESTS + "test_whoever_opens_the_store_does_not_sweep_what_is_under_way",),
    ),
    Mutant(
        "salvage-stops-at-a-place-that-cannot-be-read",
        "A block that the disk does not read ends the salvage.",
        "F8, I8",
        (20,),
        (Edit("pieces.py", "            if error.errno != errno.EIO:\n                raise", "            raise"),),
        (_TESTS + "test_a_place_that_the_disk_cannot_read_is_stepped_over",),
    ),
    Mutant(
        "salvage-loses-lines-of-a-later-release",
        "Lines of an unknown kind are dropped.",
        "F4 F8",
        (8,),
        (Edit("salvage.py", "        rewrite.carry_line(item.data, item.frame)", "        pass"),),
        (_TESTS + "test_lines_of_a_later_release_come_along",),
    ),
    Mutant(
        "a-hole-is-no-kind-of-damage",
        "Zeros are not told from other bytes that are no frame.",
        "the guide, Salvage",
        (6, 7),
        (
            Edit(
                "frame.py",
                "return Fault.MAGIC if any(data[position : position + SKIPPABLE_HEADER]) else Fault.ZEROS",
                "return Fault.MAGIC",
            ),
        ),
        ("tests/test_codecs.py::test_zeros_covers_and_reserved_magics",),
    ),
    Mutant(
        "salvage-leaves-no-room-for-a-deletion",
        "A trim that is made again takes the sequence that the deletion of another list needs.",
        "F8, I6",
        (8, 9),
        (Edit("removals.py", "key=lambda item: -item[1].floor", "key=lambda item: item[1].floor"),),
        ("tests/test_regressions_salvage.py::test_a_trim_that_is_made_again_leaves_room_for_a_deletion",),
    ),
    Mutant(
        "salvage-takes-wrong-content-for-none",
        "What was removed in a frame of wrong content comes back.",
        "F8, I6",
        (9, 30),
        (Edit("rescue.py", "(isinstance(piece, Gap) or isinstance(batch, str))", "isinstance(piece, Gap)"),),
        ("tests/test_regressions_salvage.py::test_a_frame_whose_content_is_wrong_is_damage_like_any_other",),
    ),
    Mutant(
        "sweep-without-the-lock",
        "The trash is emptied though nobody holds the lock of what lies there.",
        "F8",
        (25,),
        (
            Edit(
                "store.py",
                "            self._empty(directory)\n        finally:\n            lock.release()",
                "            lock.release()\n        finally:\n            self._empty(directory)",
            ),
        ),
        ("tests/test_regressions_salvage.py::test_a_sweep_holds_the_lock_while_it_empties",),
    ),
)
