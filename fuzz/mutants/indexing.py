"""Mutants of the index: derived, disposable, and never a proof."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

INDEXING: Final = (
    Mutant(
        "index-trusted",
        "What the index says of values, lists and retirements is not held against the log.",
        "F12, I3 I5",
        (22, 23),
        (
            Edit(
                "answers.py",
                "    if entry is None or entry.sequence != sequence or entry.deleted:\n",
                "    if False:\n",
            ),
            Edit(
                "answers.py",
                "if entry is None or (entry.count, entry.first, entry.last) != run[1:] or entry.floor > found.floor:",
                "if False:",
            ),
            Edit(
                "answers.py",
                "if self._named(tree, entry.at).retired.get(entry.scope) != entry.sequence:",
                "if False:",
            ),
        ),
        ("tests/test_index.py::test_what_the_index_says_is_held_against_the_log",),
    ),
    Mutant(
        "cover-not-met",
        "A tree is used though the log does not lead to the index frame that its cover ends with.",
        "F12, I3 I5",
        (23, 32),
        (
            Edit(
                "answers.py",
                "        return frame.end == root.end and frame.checksum == root.checksum",
                "        return True",
            ),
            Edit(
                "answers.py",
                "        else:\n            return False\n        return",
                "        else:\n            return True\n        return",
            ),
        ),
        ("tests/test_index_damage.py::test_an_index_of_a_log_that_went_another_way[0]",),
    ),
    Mutant(
        "cover-extended-over-another-past",
        "A checkpoint extends a tree whose cover the log does not lead to.",
        "F12, I3 I5",
        (23, 32),
        (
            Edit(
                "logindex.py",
                "            if newer.previous != base:\n                return None\n",
                "",
            ),
            Edit(
                "logindex.py",
                "            if closed.index.end != newer.start or closed.index.checksum != tree.root.checksum:\n",
                "            if False:\n",
            ),
        ),
        ("tests/test_index_damage.py::test_an_index_of_a_log_that_went_another_way[2]",),
    ),
    Mutant(
        "checkpoint-above-the-mark",
        "The index covers what is not durable yet.",
        "F12, I5",
        (11, 23),
        (
            Edit(
                "logindex.py",
                "            if closed.index.end <= durable:\n",
                "            if True:\n",
            ),
            Edit(
                "logindex.py",
                "        limit = min(durable, view.tail.start)\n        if limit - (",
                "        limit = view.tail.start\n        if limit - (",
            ),
        ),
        ("tests/test_index.py::test_the_cover_never_reaches_above_the_durable_mark",),
    ),
    Mutant(
        "root-of-another-log",
        "A tree is used whatever log its root names.",
        "F12, I5",
        (23,),
        (
            Edit(
                "logindex.py",
                "if data is None or root is None or root.log != identity_of(view.header):",
                "if data is None or root is None:",
            ),
        ),
        ("tests/test_index_damage.py::test_a_session_that_was_deleted_and_made_again",),
    ),
    Mutant(
        "block-checksum-ignored",
        "Blocks of the index are believed whatever their checksums say.",
        "F12, I5",
        (22,),
        (
            Edit(
                "blocks.py",
                "if checksum != _checksum(key, data[:8], body):",
                "if False:",
            ),
        ),
        ("tests/test_index.py::test_a_block_is_read_back_and_any_flipped_bit_is_seen[compressed]",),
    ),
    Mutant(
        "leaf-of-another-time",
        "A leaf is used though its root names another one.",
        "F12, I3 I5",
        (22, 23),
        (
            Edit(
                "tree.py",
                "            if checksum_of(data) != checksum:\n",
                "            if False:\n",
            ),
        ),
        ("tests/test_index.py::test_what_the_index_says_is_held_against_the_log",),
    ),
    Mutant(
        "stamp-ignored",
        "A data file is opened that the stamp does not vouch for.",
        "F12, I5",
        (22, 23),
        (
            Edit(
                "lmdbfile.py",
                "        if self._stamped() != now:\n            return None\n",
                "",
            ),
        ),
        (
            "tests/test_index_damage.py::test_a_copied_store",
            "tests/test_index_damage.py::test_a_foreign_index",
        ),
    ),
    Mutant(
        "stamp-of-another-store",
        "The index of another store is used.",
        "F12, I5",
        (23,),
        (
            Edit(
                "lmdbfile.py",
                "if stamp.format != FORMAT or stamp.store != self._identity:",
                "if stamp.format != FORMAT:",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_an_index_that_was_moved_here_from_another_store_is_not_opened",),
    ),
    Mutant(
        "size-not-guarded",
        "LMDB and the reader are let at a file that is shorter than it says.",
        "F12, I5 I8",
        (22,),
        (
            Edit(
                "mdbpages.py",
                "    if (newest.last + 1) * newest.page > size:\n",
                "    if False:\n",
            ),
            Edit(
                "lmdbenv.py",
                "                if (last + 1) * page > os.path.getsize(self._data_path):\n",
                "                if False:\n",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_data_file_is_as_long_as_its_meta_page_says",),
    ),
    Mutant(
        "structure-not-proved",
        "LMDB is let at a file whose structure nobody has looked at.",
        "F12, I5 I8",
        (22,),
        (
            Edit(
                "lmdbfile.py",
                "                    verify(data.pread, _snapshot(data).meta)\n",
                "",
            ),
        ),
        (
            "tests/test_index_damage.py::test_lmdb_is_let_at_no_file_that_it_would_die_of",
            "tests/test_index_damage.py::test_pages_that_are_none_and_flipped_bits",
        ),
    ),
    Mutant(
        "structure-proved-once",
        "A file that was proved once is let at LMDB again, whatever has become of it.",
        "F12, I5 I8",
        (22,),
        (
            Edit(
                "lmdbfile.py",
                "if self._proved is None or self._proved != _looks(data):",
                "if self._proved is None:",
            ),
        ),
        ("tests/test_index_damage.py::test_damage_under_an_open_store",),
    ),
    Mutant(
        "pages-not-looked-at-again",
        "What was read while a writer committed is not held to be of one state.",
        "F12, I3 I5",
        (24,),
        (
            Edit(
                "lmdbfile.py",
                "    return read_meta(data.pread, data.size()).txnid <= state.meta.txnid + 1",
                "    return True",
            ),
        ),
        ("tests/test_index.py::test_readers_see_whole_states_while_a_writer_commits",),
    ),
    Mutant(
        "map-does-not-grow",
        "A full map is the end of the index.",
        "F12, I8",
        (24,),
        (
            Edit(
                "lmdbenv.py",
                "                    if self.map_bytes * 2 > min(_LARGEST_MAP, self._too_large - 1):\n",
                "                    if True:\n",
            ),
        ),
        ("tests/test_index_damage.py::test_a_full_map_grows",),
    ),
    Mutant(
        "failed-transaction-kept",
        "A data file stays in use after a transaction on it has failed.",
        "F12, I5",
        (22, 24),
        (
            Edit(
                "lmdbfile.py",
                "        except Failed as error:\n            self._remove_files()\n",
                "        except Failed as error:\n",
            ),
        ),
        ("tests/test_index_damage.py::test_a_transaction_that_fails_costs_the_index_alone",),
    ),
    Mutant(
        "index-written-without-its-lock",
        "Two processes write to the index at once.",
        "F12, I5",
        (24, 25),
        (
            Edit(
                "lmdbfile.py",
                "status = os.stat(path, follow_symlinks=False) if file.try_lock() else None",
                "status = os.stat(path, follow_symlinks=False)",
            ),
        ),
        ("tests/test_index_damage.py::test_a_writer_that_is_stopped_holds_nobody_up",),
    ),
    Mutant(
        "no-memory-map-is-a-failure",
        "Where LMDB cannot be opened the session fails.",
        "F12, I5 I8",
        (24, 26),
        (
            Edit(
                "lmdbenv.py",
                "            except lmdb.Error as error:  # no memory maps here",
                "            except NotImplementedError as error:  # no memory maps here",
            ),
        ),
        ("tests/test_index_damage.py::test_no_memory_maps",),
    ),
    Mutant(
        "deleted-session-stays-in-the-index",
        "A session that was deleted leaves its names in the index.",
        "F12",
        (23,),
        (
            Edit(
                "index.py",
                "                changes.remove(root_key(name))\n",
                "                pass\n",
            ),
        ),
        ("tests/test_index.py::test_a_deleted_session_leaves_nothing_in_the_index",),
    ),
    Mutant(
        "index-in-the-store-of-another-user",
        "Root makes files in the index of a store that belongs to somebody else.",
        "F12, I8",
        (21,),
        (
            Edit(
                "lmdbfile.py",
                "return os.stat(os.path.dirname(self.directory)).st_uid == os.geteuid()",
                "return True",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_no_index_is_made_in_a_store_of_somebody_else",),
    ),
)
