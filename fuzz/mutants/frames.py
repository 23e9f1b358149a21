"""Mutants of the frame, of its payload, and of following and searching for frames."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

FRAMES: Final = (
    Mutant(
        "checksum-ignored",
        "A frame is believed whatever its checksum says.",
        "F2, I3",
        (5, 9),
        (
            Edit(
                "frame.py",
                'if checksum != int.from_bytes(data[stop : stop + 4], "little"):',
                "if False:",
            ),
        ),
        ("tests/test_damage_bits.py::test_every_bit_of_main",),
    ),
    Mutant(
        "envelope-not-covered",
        "The checksum covers the payload alone: a flipped bit in a mark, an epoch or a length goes unnoticed.",
        "F2, I3",
        (5, 9),
        (
            Edit(
                "frame.py",
                "crc32(payload, crc32(head, offset & 0xFFFFFFFF))",
                "crc32(payload, offset & 0xFFFFFFFF)",
            ),
            Edit(
                "frame.py",
                "checksum = crc32(memoryview(data)[position:stop], offset & 0xFFFFFFFF)",
                "checksum = crc32(memoryview(data)[at:stop], offset & 0xFFFFFFFF)",
            ),
            Edit(
                "frame.py",
                "checksum = crc32(data[position:stop], offset & 0xFFFFFFFF)",
                "checksum = offset & 0xFFFFFFFF",
            ),
        ),
        ("tests/test_damage_bits.py::test_every_bit_of_main",),
    ),
    Mutant(
        "payload-not-covered",
        "The checksum covers the envelope alone, and zstd's own, which does not cover its header, must do for "
        "the rest.",
        "F2, I3",
        (5, 9),
        (
            Edit(
                "frame.py",
                "crc32(payload, crc32(head, offset & 0xFFFFFFFF))",
                "crc32(payload if inside else b'', crc32(head, offset & 0xFFFFFFFF))",
            ),
            Edit(
                "frame.py",
                "        if payload_length:\n            checksum",
                "        if False:\n            checksum",
            ),
        ),
        ("tests/test_damage_bits.py::test_every_bit_of_main",),
    ),
    Mutant(
        "offset-not-covered",
        "The checksum does not know where its frame stands: one that was moved is still a frame.",
        "F2, I3",
        (10,),
        (
            Edit(
                "frame.py",
                "crc32(payload, crc32(head, offset & 0xFFFFFFFF))",
                "crc32(payload, crc32(head, 0))",
            ),
            Edit(
                "frame.py",
                "crc32(memoryview(data)[position:stop], offset & 0xFFFFFFFF)",
                "crc32(memoryview(data)[position:stop], 0)",
            ),
            Edit(
                "frame.py",
                "crc32(data[position:stop], offset & 0xFFFFFFFF)",
                "crc32(data[position:stop], 0)",
            ),
        ),
        ("tests/test_codecs.py::test_a_frame_at_another_offset_of_another_log_or_cut_short_is_no_frame",),
    ),
    Mutant(
        "digest-ignored",
        "A frame of another log counts as one of this log.",
        "F2, I3",
        (10,),
        (
            Edit(
                "frame.py",
                "if digest is not None and found_digest != digest:",
                "if False:",
            ),
        ),
        (
            "tests/test_codecs.py::test_a_frame_at_another_offset_of_another_log_or_cut_short_is_no_frame",
            "tests/test_damage_forged.py::test_bytes_of_another_session_of_the_same_store[20]",
        ),
    ),
    Mutant(
        "chain-ignored",
        "A frame need not name the checksum of the one before it.",
        "F2, I2",
        (7, 10),
        (
            Edit(
                "frame.py",
                "if frame.previous != before.checksum:",
                "if False:",
            ),
        ),
        (
            "tests/test_codecs.py::test_what_continues_a_chain",
            "tests/test_damage_forged.py::test_frame_that_does_not_follow[changes0]",
        ),
    ),
    Mutant(
        "epoch-may-fall",
        "A frame of an earlier open may follow one of a later open.",
        "F2, I2",
        (10,),
        (
            Edit(
                "frame.py",
                "if frame.epoch < before.epoch or (",
                "if (",
            ),
        ),
        (
            "tests/test_codecs.py::test_what_continues_a_chain",
            "tests/test_damage_forged.py::test_frame_that_does_not_follow[changes1]",
        ),
    ),
    Mutant(
        "sequences-may-repeat",
        "A frame may hold sequences that the log holds already.",
        "F2, I2",
        (10,),
        (
            Edit(
                "frame.py",
                "(frame.commits and frame.first <= before.last) or frame.last < before.last:",
                "frame.last < before.last:",
            ),
        ),
        (
            "tests/test_codecs.py::test_what_continues_a_chain",
            "tests/test_damage_forged.py::test_frame_that_does_not_follow[changes2]",
        ),
    ),
    Mutant(
        "length-believed",
        "A frame may claim any length the file is long enough for, and is read whole before anything is checked.",
        "F3, I8",
        (30,),
        (
            Edit(
                "scan.py",
                "if found.need > end - offset or found.need > cap:",
                "if found.need > end - offset:",
            ),
            Edit(
                "scan.py",
                "            if found.need > self._cap:\n                return Fault.ENVELOPE\n",
                "",
            ),
        ),
        ("tests/test_damage_forged.py::test_envelope_claiming_more_than_a_frame_may_take",),
    ),
    Mutant(
        "bomb-unpacked",
        "What a frame says it unpacks to is not held against the limit.",
        "F3, I8",
        (30,),
        (
            Edit(
                "codec.py",
                "    if raw_length > limit:",
                "    if False:",
            ),
        ),
        (
            "tests/test_damage_forged.py::test_header_claiming_a_terabyte",
            "tests/test_damage_forged.py::test_forged_sizes_and_payloads[an exabyte]",
        ),
    ),
    Mutant(
        "zstd-header-believed",
        "Memory is taken for what the zstd frame's own header claims, whatever the envelope says.",
        "F2, I8",
        (30,),
        (
            Edit(
                "codec.py",
                "if parameters.content_size != raw_length:",
                "if False:",
            ),
        ),
        ("tests/test_damage_forged.py::test_forged_sizes_and_payloads[a terabyte, by zstd alone]",),
    ),
    Mutant(
        "trailing-bytes-dropped",
        "What stands in a payload behind its one zstd frame is dropped in silence.",
        "F2, I3",
        (30,),
        (
            Edit(
                "codec.py",
                "allow_extra_data=False",
                "allow_extra_data=True",
            ),
        ),
        ("tests/test_damage_forged.py::test_forged_sizes_and_payloads[two zstd frames, the second unnamed]",),
    ),
    Mutant(
        "newer-major-read",
        "A log of a later major version is read as if it were one of this one.",
        "F3, I3",
        (9,),
        (
            Edit(
                "header.py",
                "if version[0] > FORMAT_MAJOR:",
                "if False:",
            ),
        ),
        ("tests/test_other_releases.py::test_newer_major_version_is_refused",),
    ),
    Mutant(
        "owner-ignored",
        "A log of another store or session is taken for this session's.",
        "F8, I6",
        (10, 31),
        (
            Edit(
                "header.py",
                "        if found != wanted:",
                "        if False:",
            ),
        ),
        ("tests/test_damage_forged.py::test_files_of_another_store_or_session",),
    ),
    Mutant(
        "header-digest-ignored",
        "A header need not carry the digest of what it says itself.",
        "F2, I3",
        (9, 10),
        (
            Edit(
                "header.py",
                "if digest_at(data, 0) != digest_of(header):",
                "if False:",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_header_in_the_envelope_of_another_log_is_none",),
    ),
    Mutant(
        "foreign-frames-end-the-chain",
        "A skippable frame of some other tool ends the log, and what follows it is lost.",
        "F2, I1",
        (9,),
        (
            Edit(
                "scan.py",
                "for _ in range(_OPAQUE_LIMIT):",
                "for _ in range(0):",
            ),
        ),
        (
            "tests/test_regressions_bytes.py::test_any_number_of_foreign_skippable_frames_is_skipped[40]",
            "tests/test_other_releases.py::test_unknown_lines_items_and_frames_are_skipped_and_stay",
        ),
    ),
    Mutant(
        "straddling-magic-missed",
        "The search for later frames misses one that begins in the last bytes of a piece.",
        "F8, I4",
        (8,),
        (
            Edit(
                "scan.py",
                "at = max(len(data) - 3, 1)  #",
                "at = len(data)  #",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_frame_is_found_wherever_the_pieces_of_a_search_are_cut",),
    ),
    Mutant(
        "read-error-is-an-end",
        "A read that the disk refuses is taken for the end of the file.",
        "F8, I1",
        (20,),
        (
            Edit(
                "scan.py",
                "    except OSError as error:\n        raise ReadFailed(",
                "    except OSError as error:\n        return b''\n        raise ReadFailed(",
            ),
        ),
        (
            "tests/test_read_errors.py::test_failed_read_of_a_torn_tail_does_not_cut_it[killed]",
            "tests/test_read_errors.py::test_every_read_of_main_failing_once[killed]",
        ),
    ),
    Mutant(
        "short-read-is-an-end",
        "A read that returns less than was asked for is taken for the end of the file.",
        "F8, I1",
        (20,),
        (
            Edit(
                "fs.py",
                "    while have < length:",
                "    while False:",
            ),
        ),
        ("tests/test_read_errors.py::test_short_reads_are_continued[killed-100]",),
    ),
)
