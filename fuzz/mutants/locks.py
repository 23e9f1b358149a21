"""Mutants of the writer lock, of what a fork inherits, and of the operating system's disk."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

LOCKS: Final = (
    Mutant(
        "lockf-for-flock",
        "The lock is one that the same process is granted again, and that closing any descriptor gives up.",
        "F9, I3",
        (25,),
        (
            Edit(
                "fs.py",
                "fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
                "fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
            ),
        ),
        ("tests/test_lock.py::test_second_writer_in_this_process_is_refused[False]",),
    ),
    Mutant(
        "lock-not-looked-for-again",
        "Whoever has waited on a lock file that was deleted meanwhile owns the session beside somebody else.",
        "R errors, I3",
        (25,),
        (
            Edit(
                "lock.py",
                "        if fs.identity(path) != identity:\n",
                "        if False:\n",
            ),
        ),
        ("tests/test_lock.py::test_session_deleted_while_another_opener_waits[False]",),
    ),
    Mutant(
        "lock-unlinked-on-close",
        "Closing removes the lock file, and a second owner comes in beside one who waits on the old one.",
        "R errors, I3",
        (25,),
        (
            Edit(
                "lock.py",
                "        self._fs.pool.held.discard(self._file)\n",
                "        self._fs.pool.held.discard(self._file)\n"
                "        if self._fs.exists(self.path):\n"
                "            self._fs.unlink(self.path)\n",
            ),
        ),
        (
            "tests/test_lock.py::test_forked_child_does_not_keep_the_lock_alive",
            "tests/test_lock.py::test_handles_are_refused_in_a_forked_child",
        ),
    ),
    Mutant(
        "lock-not-checked",
        "A writer whose lock file was removed or replaced goes on writing.",
        "R errors, I3",
        (25,),
        (
            Edit(
                "storing.py",
                "            self._writer_lock.check()\n",
                "",
            ),
        ),
        ("tests/test_lock.py::test_lock_file_removed_or_replaced_fences_the_writer[_remove-commit]",),
    ),
    Mutant(
        "closing-looks-at-no-lock",
        "A closing frame is written though the lock file was removed or replaced.",
        "R errors, I1",
        (25,),
        (
            Edit(
                "writer.py",
                "fenced = self._fenced() if clean and (log.touched or not log.clean) else None",
                "fenced: ScopelogError | None = None",
            ),
        ),
        ("tests/test_regressions_mutants.py::test_closing_writes_nothing_to_a_session_that_is_somebody_elses[False]",),
    ),
    Mutant(
        "lock-kept-alive-by-a-child",
        "A forked child keeps its copies of the lock files open.",
        "R errors, I4",
        (25,),
        (
            Edit(
                "lock.py",
                "    for file in [*_copied]:\n        _let_go(file)",
                "    pass",
            ),
            Edit(
                "writer.py",
                "        self._writer_lock.release()  # the logs'",
                "        pass  # the logs'",
            ),
        ),
        ("tests/test_lock.py::test_forked_child_does_not_keep_the_lock_alive",),
    ),
    Mutant(
        "handles-go-through-fork",
        "A handle goes on working in a forked child.",
        "R errors, I3",
        (25,),
        (
            Edit(
                "writer.py",
                "        self._end(forked)\n",
                "",
            ),
        ),
        ("tests/test_lock.py::test_handles_are_refused_in_a_forked_child",),
    ),
    Mutant(
        "no-flock-no-matter",
        "A file system without flock is written to without a lock.",
        "F9, I3",
        (26,),
        (
            Edit(
                "lock.py",
                "            if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):\n"
                "                raise UnsupportedPlatform(",
                "            granted = True\n            if False:\n                raise UnsupportedPlatform(",
            ),
            Edit(
                "lock.py",
                "                ) from error\n            raise\n        if not granted:",
                "                ) from error\n        if not granted:",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_file_system_without_flock_is_refused_before_anything_is_written",),
    ),
    # --- the operating system -----------------------------------------------------------------------
    Mutant(
        "system-sync-is-nothing",
        "On a real disk a sync does nothing.",
        "F9, I1",
        (3, 11),
        (
            Edit(
                "fs.py",
                "            os.fdatasync(self.fd)",
                "            pass",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_on_a_real_disk_the_files_and_directories_that_count_are_synced",),
    ),
    Mutant(
        "system-syncs-another-directory",
        "On a real disk the directory above the one that was named is synced.",
        "F9, I1",
        (13,),
        (
            Edit(
                "fs.py",
                "        directory = self._open(path, os.O_RDONLY | os.O_DIRECTORY)",
                "        directory = self._open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_on_a_real_disk_the_files_and_directories_that_count_are_synced",),
    ),
    Mutant(
        "files-for-all-to-read",
        "Files are made for everybody to read.",
        "F1",
        (),
        (
            Edit(
                "fs.py",
                "flags | os.O_CLOEXEC, 0o600)",
                "flags | os.O_CLOEXEC, 0o644)",
            ),
        ),
        ("tests/test_permissions.py::test_files_are_private[0]",),
    ),
    Mutant(
        "links-followed",
        "A link in place of a log is followed to whatever it names.",
        "R errors, I3",
        (36,),
        (
            Edit(
                "fs.py",
                "return self._open(path, os.O_RDWR | os.O_NOFOLLOW)",
                "return self._open(path, os.O_RDWR)",
            ),
        ),
        ("tests/test_pool.py::test_a_link_in_place_of_the_file_is_not_followed",),
    ),
    Mutant(
        "no-descriptors-no-commit",
        "A process that has run out of descriptors does not close files that nobody uses.",
        "R limits, I8",
        (21,),
        (
            Edit(
                "fs.py",
                "if error.errno not in NO_DESCRIPTORS or not self.pool.shrink():\n                raise",
                "raise",
            ),
        ),
        ("tests/test_pool.py::test_a_host_that_takes_all_descriptors_costs_logs_their_files_and_no_commit",),
    ),
)
