"""Mutants of a session: admission, the window, storing, and who is told what."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

SESSIONS: Final = (
    Mutant(
        "acknowledge-before-writing",
        "A commit returns once it is admitted; the flusher writes it later.",
        "R commits, I1",
        (1, 3, 11),
        (
            Edit(
                "writer.py",
                "                self._admit(commit, scope, changes, level)\n            self._run(commit)\n",
                "                self._admit(commit, scope, changes, level)\n"
                "                assert commit.owner is not None\n"
                "                self._open_window(commit.owner)\n",
            ),
        ),
        ("tests/test_window.py::test_a_failed_commit_is_withdrawn_and_what_was_staged_before_it_stays",),
    ),
    Mutant(
        "acknowledge-when-taken",
        "Those who share a group commit are told that it is done as soon as somebody has it in hand.",
        "R commits, I1",
        (1, 17),
        (
            Edit(
                "storing.py",
                "        self._work.append(Work(state, pending[:count], tickets))\n",
                "        self._work.append(Work(state, pending[:count], tickets))\n"
                "        for ticket in tickets:\n"
                "            ticket.done = True\n"
                "        self._tell()\n",
            ),
        ),
        ("tests/test_threads.py::test_a_group_that_fails_is_withdrawn_whole_and_each_of_it_is_told",),
    ),
    Mutant(
        "acknowledge-before-the-sync",
        "A commit at POWER returns once it is written.",
        "R durability, I1",
        (3, 11),
        (
            Edit(
                "storing.py",
                "sync = work.sync or (log is not None and log.costly)",
                "sync = log is not None and log.costly",
            ),
        ),
        (
            "tests/test_window.py::test_after_a_failed_sync_the_outcome_is_unknown_and_the_log_takes_no_more",
            "tests/test_crash_points.py::test_every_crash_point[first window]",
        ),
    ),
    Mutant(
        "flush-syncs-nothing",
        "A flush at POWER passes by what was stored at PROCESS before it.",
        "R durability, I1",
        (3, 11),
        (
            Edit(
                "writer.py",
                "unsynced = wanted is Durability.POWER and log is not None and log.born and not log.synced",
                "unsynced = False",
            ),
        ),
        ("tests/test_window.py::test_flush_is_a_barrier_for_every_scope_and_raises_the_level_on_demand",),
    ),
    Mutant(
        "raised-level-ignored",
        "A commit that asks for more than its scope's level does not get it.",
        "R durability, I1",
        (3, 11),
        (
            Edit(
                "writer.py",
                "wanted = owner.level if level is None or level < owner.level else level",
                "wanted = owner.level",
            ),
        ),
        (
            "tests/test_window.py::test_the_unlink_waits_for_power_whatever_level_the_session_runs_at",
            "tests/test_crash_points.py::test_every_crash_point[commits]",
        ),
    ),
    Mutant(
        "staged-dropped-after-a-failure",
        "Staged elements whose flush failed are gone.",
        "R commits, I1 I8",
        (17, 19),
        (
            Edit(
                "storing.py",
                "            state.pending[:count] = kept\n",
                "            del state.pending[:count]\n",
            ),
        ),
        (
            "tests/test_window.py::test_a_failed_commit_is_withdrawn_and_what_was_staged_before_it_stays",
            "tests/test_window.py::test_a_failed_flush_keeps_its_elements_in_order_and_says_so_at_the_next_call",
        ),
    ),
    Mutant(
        "retained-window-joined-again",
        "A window that failed is joined once more when it is written, and not stored as it was shown.",
        "R window, I1",
        (17,),
        (
            Edit(
                "storing.py",
                "            if kept is None:\n                kept = staged_of(batch)\n",
                "            kept = staged_of(batch)\n",
            ),
        ),
        ("tests/test_window.py::test_a_retained_window_is_written_as_it_was_joined",),
    ),
    Mutant(
        "group-withdrawn-in-part",
        "Of a group commit that failed the first alone is told so.",
        "R commits, I1",
        (17, 19),
        (
            Edit(
                "storing.py",
                "            ticket.error = error\n"
                "            ticket.done = True\n"
                "            if ticket.waiter is not None:\n"
                "                self._woken.append(ticket.waiter)\n"
                "            elif error",
                "            ticket.error = error if ticket is work.tickets[0] else None\n"
                "            ticket.done = True\n"
                "            if ticket.waiter is not None:\n"
                "                self._woken.append(ticket.waiter)\n"
                "            elif error",
            ),
        ),
        ("tests/test_threads.py::test_a_group_that_fails_is_withdrawn_whole_and_each_of_it_is_told",),
    ),
    Mutant(
        "sequences-given-back",
        "A commit that failed gives its sequences back, though younger ones have been given meanwhile.",
        "F8, I3",
        (17, 19),
        (
            Edit(
                "storing.py",
                "            self._failures += 1\n",
                "            self._failures += 1\n"
                "            if work.commits:\n"
                "                self._sequence = work.commits[0].first - 1\n",
            ),
        ),
        (
            "tests/crash/test_mutants_found.py::test_a_commit_that_fails_gives_back_no_sequence_while_younger_ones_are_given",
        ),
    ),
    Mutant(
        "failures-of-the-flusher-swallowed",
        "Nobody is told that a window could not be stored.",
        "R commits, I8",
        (17, 28),
        (
            Edit(
                "storing.py",
                "                state.fail(error)  # nobody waits",
                "                pass  # nobody waits",
            ),
        ),
        ("tests/test_window.py::test_a_failed_flush_keeps_its_elements_in_order_and_says_so_at_the_next_call",),
    ),
    Mutant(
        "failed-window-not-tried-again",
        "A window that could not be stored waits for a call, also when there is space again.",
        "R commits, I8",
        (17,),
        (
            Edit(
                "storing.py",
                "            if state.pending and not stored:\n                self._retry_later(state)\n",
                "",
            ),
        ),
        ("tests/test_window.py::test_space_coming_back_heals_a_window_without_a_call",),
    ),
    Mutant(
        "deadline-moved-by-each-append",
        "Every append opens the window anew: an endless stream is never stored.",
        "R commits, I8",
        (28,),
        (
            Edit(
                "writer.py",
                "                    if scope.deadline is None:\n                        self._open_window(scope)",
                "                    self._open_window(scope)",
            ),
        ),
        (
            "tests/test_window.py::test_an_endless_stream_is_never_older_than_one_window",
            "tests/test_window.py::test_the_first_pending_element_opens_the_window_and_later_ones_do_not_move_it",
        ),
    ),
    Mutant(
        "window-by-the-wall-clock",
        "Windows are timed by the wall clock, which may be set.",
        "R commits, I8",
        (27,),
        (
            Edit(
                "state.py",
                "        when = self._env.clock.monotonic() + self.settings.window\n        state.deadline = when if",
                "        when = self._env.clock.wall_ms() / 1000 + self.settings.window\n"
                "        state.deadline = when if",
            ),
        ),
        ("tests/test_window.py::test_the_first_pending_element_opens_the_window_and_later_ones_do_not_move_it",),
    ),
    Mutant(
        "window-not-opened",
        "What is staged waits for a flush, a commit or the close.",
        "R commits, I1",
        (28,),
        (
            Edit(
                "writer.py",
                "                    if scope.deadline is None:\n                        self._open_window(scope)",
                "                    pass",
            ),
        ),
        ("tests/test_window.py::test_the_first_pending_element_opens_the_window_and_later_ones_do_not_move_it",),
    ),
    Mutant(
        "no-bound-on-what-waits",
        "Nothing bounds what waits in windows.",
        "R limits, I8",
        (17, 28),
        (
            Edit(
                "writer.py",
                "if state is None or state.owner is not self or state.scope.blocked or self._bytes + size > "
                "self._quota:",
                "if state is None or state.owner is not self or state.scope.blocked:",
            ),
            Edit(
                "writer.py",
                "if self._bytes + size > self._quota and not self._extend_quota(size) and self._bytes > 0:",
                "if False:",
            ),
        ),
        (
            "tests/test_window.py::test_at_the_bound_the_caller_flushes_inline",
            "tests/test_window.py::test_the_bound_of_the_store_is_shared_by_its_sessions",
        ),
    ),
    Mutant(
        "join-across-a-tag",
        "Elements are joined across a tagged one.",
        "R window, I3",
        (),
        (
            Edit(
                "staging.py",
                "            if state in runs:\n                end(runs.pop(state))\n",
                "",
            ),
        ),
        ("tests/test_window.py::test_a_join_never_crosses_a_tag",),
    ),
    Mutant(
        "join-after-a-read",
        "What a read has shown is joined later all the same.",
        "R window, I3",
        (),
        (
            Edit(
                "reading.py",
                "        if known is None or known.coalescer is None:\n            return\n        cut",
                "        return\n        cut",
            ),
        ),
        ("tests/test_window.py::test_a_read_joins_and_seals_without_a_write_and_what_was_shown_never_changes",),
    ),
    Mutant(
        "commit-shown-before-its-end",
        "A read shows what stands behind a commit that has not ended.",
        "R commits, I1",
        (35,),
        (
            Edit(
                "reading.py",
                "    return shown + state.aside if cut == len(state.pending) else shown\n",
                "    return staged_of(state.pending) + state.aside\n",
            ),
        ),
        ("tests/test_watch.py::test_watches_begin_at_every_moment_of_a_stream[none-200]",),
    ),
)
