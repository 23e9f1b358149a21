"""Mutants of retirement, of what a life builds on, of interruptions and of deletion."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

LIVES: Final = (
    Mutant(
        "unlinked-before-it-is-durable",
        "A sidecar is removed as soon as its retirement is stored, synced or not.",
        "F7, I1 I6",
        (12, 33),
        (
            Edit(
                "retiring.py",
                "due = [path for path, boundary in self._doomed if boundary <= durable]",
                "due = [path for path, boundary in self._doomed if boundary or durable]",
            ),
        ),
        ("tests/test_window.py::test_the_unlink_waits_for_power_whatever_level_the_session_runs_at",),
    ),
    Mutant(
        "unlinked-before-it-is-stored",
        "A sidecar is removed when its retirement is admitted.",
        "F7, I1 I6",
        (17, 33),
        (
            Edit(
                "retiring.py",
                "        commit.held.append(state)\n",
                "        commit.held.append(state)\n"
                "        if state.log is not None and self._env.fs.exists(state.log.path):\n"
                "            self._env.fs.unlink(state.log.path)\n",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[retirement]",),
    ),
    Mutant(
        "failed-unlink-fails-the-commit",
        "A sidecar that cannot be removed makes the commit that retired it fail.",
        "F7, I6",
        (33,),
        (
            Edit(
                "retiring.py",
                "            except OSError as error:\n",
                "            except NotImplementedError as error:\n",
            ),
        ),
        ("tests/test_window.py::test_a_failed_unlink_is_no_failure_of_the_commit_and_is_tried_again",),
    ),
    Mutant(
        "failed-unlink-forgotten",
        "A sidecar that could not be removed is not tried again.",
        "F7, I6",
        (33,),
        (
            Edit(
                "retiring.py",
                "                continue\n            gone.add(path)",
                "            gone.add(path)",
            ),
        ),
        ("tests/test_window.py::test_a_failed_unlink_is_no_failure_of_the_commit_and_is_tried_again",),
    ),
    Mutant(
        "dropped-before-the-retirement-is-stored",
        "What waits in a scope's window is dropped when its retirement is admitted, whatever becomes of that.",
        "R scopes, I1",
        (17, 33),
        (
            Edit(
                "retiring.py",
                "        state.aside += staged_of(state.pending[cut:])\n",
                "        self._release_bytes(staged_bytes(staged_of(state.pending[cut:])))\n",
            ),
        ),
        ("tests/test_window.py::test_if_the_retirement_fails_what_waited_is_put_back_in_front",),
    ),
    Mutant(
        "put-back-behind",
        "What a failed retirement had set aside is put back behind what came later.",
        "R scopes, I2",
        (17, 33),
        (
            Edit(
                "retiring.py",
                "state.pending, state.aside = [*state.pending, *state.aside], []",
                "state.pending, state.aside = [*state.pending, *state.aside[::-1]], []",
            ),
        ),
        ("tests/test_window.py::test_if_the_retirement_fails_what_waited_is_put_back_in_front",),
    ),
    Mutant(
        "retirement-in-doubt-forgotten",
        "A scope whose retiring commit met a failed sync takes more writes.",
        "R scopes, I1 I6",
        (15, 33),
        (
            Edit(
                "retiring.py",
                "                state.doubt = unknown\n",
                "                pass\n",
            ),
        ),
        (
            "tests/test_interrupted_twice.py::test_a_failed_sync_whose_outcome_was_not_noted_leaves_the_retired_scope_in_doubt",
        ),
    ),
    Mutant(
        "sidecar-without-an-anchor",
        "A sidecar counts as durable before what it builds on in main does.",
        "F7, I1 I6",
        (12, 13),
        (
            Edit(
                "storing.py",
                "        if main is not None and not (main.anchored and log.header.after <= "
                "main.durable_sequence):\n"
                "            main.sync()",
                "        pass",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[reuse, scopes above]",),
    ),
    Mutant(
        "new-life-names-no-retirement",
        "A new life does not say which retirement it follows.",
        "F3, I6",
        (12,),
        (
            Edit(
                "storing.py",
                "after=0 if main else max(self._undurable.get(state.scope, 0), self._doubtful()),",
                "after=0,",
            ),
        ),
        ("tests/test_regressions_growth.py::test_a_retirement_that_was_never_synced_is_told_before_the_next_life",),
    ),
    Mutant(
        "inherited-retirements-trusted",
        "A retirement that an earlier process left un-synced is taken for durable.",
        "F3, I6",
        (12, 33),
        (
            Edit(
                "storing.py",
                "        return 0 if main is None or main.durable_sequence >= self._inherited else self._inherited",
                "        return 0",
            ),
        ),
        ("tests/test_regressions_growth.py::test_a_retirement_that_was_never_synced_is_told_before_the_next_life",),
    ),
    Mutant(
        "base-beyond-the-sync",
        "A sidecar says that it builds on what main has written, not on what it has synced.",
        "F3, I6",
        (12,),
        (
            Edit(
                "storing.py",
                "                base = self._main.log.durable_sequence\n",
                "                base = self._main.log.last_sequence\n",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_scope_above_its_session_builds_on_what_main_has_synced",),
    ),
    # --- epochs, interruptions, deletion ------------------------------------------------------------
    Mutant(
        "epoch-shown-before-it-is-durable",
        "Sequences of an epoch are shown that no disk knows of: it may come again.",
        "F7, I3",
        (3, 11),
        (
            Edit(
                "writer.py",
                "        return not self._epoch_proved\n",
                "        return False\n",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_an_epoch_that_was_shown_never_comes_again[shown]",),
    ),
    Mutant(
        "interrupted-batch-stored-again",
        "A leader that was interrupted behind its write leaves the batch to be stored once more.",
        "R commits, I3",
        (34, 35),
        (
            Edit(
                "storing.py",
                "                if log.end > work.before:\n",
                "                if False:\n",
            ),
        ),
        (
            "tests/test_interrupted.py::test_an_exception_at_the_entry_of_every_function[commit to a "
            "scope-KeyboardInterrupt]",
        ),
    ),
    Mutant(
        "interrupted-commit-happens-later",
        "A commit that raised to its caller stays admitted, and is stored with the next one.",
        "R commits, I1",
        (34, 35),
        (
            Edit(
                "writer.py",
                "                    self._withdraw(commit)\n                    break\n",
                "                    break\n",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_commit_that_was_interrupted_is_in_no_file[pwrite]",),
    ),
    Mutant(
        "deleted-without-its-lock",
        "A session that somebody writes to is deleted under their hands.",
        "F7, I1",
        (25,),
        (
            Edit(
                "store.py",
                "        lock = WriterLock.acquire(self.fs, os.path.join(directory, LOCK_FILE))\n"
                "        try:\n"
                "            trash",
                "        lock = self.fs.open_or_create(os.path.join(directory, LOCK_FILE))\n"
                "        try:\n"
                "            trash",
            ),
            Edit(
                "store.py",
                "            self._empty(grave)\n        finally:\n            lock.release()\n",
                "            self._empty(grave)\n        finally:\n            lock.close()\n",
            ),
        ),
        ("tests/test_lock.py::test_deletion_is_refused_while_locked",),
    ),
    Mutant(
        "deletion-not-synced",
        "A session that was deleted comes back after a power cut, in part.",
        "F7, I4",
        (13,),
        (
            Edit(
                "store.py",
                "            self.fs.sync_dir(self.path)\n            self.fs.sync_dir(trash)\n",
                "",
            ),
        ),
        ("tests/test_crash_points.py::test_every_crash_point[delete]",),
    ),
    Mutant(
        "closed-with-what-was-staged",
        "Closing does not flush.",
        "R commits, I1",
        (28,),
        (
            Edit(
                "writer.py",
                "                self._flush(None)\n"
                "            except ScopelogError as error:\n"
                "                failure = error",
                "                pass\n            except ScopelogError as error:\n                failure = error",
            ),
        ),
        ("tests/test_window.py::test_close_in_the_middle_of_a_window_stores_it",),
    ),
)
