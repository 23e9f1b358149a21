"""Mutants of what may be stored: elements, limits, names."""

from __future__ import annotations

from typing import Final

from fuzz.mutants.mutant import Edit, Mutant

ELEMENTS: Final = (
    Mutant(
        "converted-in-silence",
        "What is no JSON is stored as something like it: a tuple as a list, NaN as null.",
        "R commits, I3",
        (29,),
        (
            Edit(
                "elements.py",
                "    if copy != element:\n        body",
                "    if False:\n        body",
            ),
            Edit(
                "writer.py",
                "if len(body) > SHALLOW_BYTES or copy != element:",
                "if len(body) > SHALLOW_BYTES:",
            ),
        ),
        ("tests/test_limits.py::test_element_that_is_not_json_is_refused[nan-append in a scope]",),
    ),
    Mutant(
        "nan-accepted",
        "NaN and infinities are stored.",
        "R commits, I3",
        (29,),
        (
            Edit(
                "elements.py",
                "            if not math.isfinite(item):",
                "            if False:",
            ),
            Edit(
                "elements.py",
                "allow_nan=False",
                "allow_nan=True",
            ),
            Edit(
                "elements.py",
                "        back = loads(body)\n",
                "        back = element\n",
            ),
        ),
        ("tests/test_limits.py::test_element_that_is_not_json_is_refused[infinity-append]",),
    ),
    Mutant(
        "surrogates-replaced",
        "A lone surrogate is stored as a question mark.",
        "R commits, I3",
        (29,),
        (
            Edit(
                "elements.py",
                'json.dumps(element, allow_nan=False, separators=(",", ":")).encode("ascii")',
                'json.dumps(element, allow_nan=False, separators=(",", ":"), '
                'ensure_ascii=False).encode("utf-8", "replace")',
            ),
            Edit(
                "elements.py",
                "        back = loads(body)\n",
                "        back = element\n",
            ),
        ),
        ("tests/test_exact.py::test_odd_elements_share_a_frame",),
    ),
    Mutant(
        "keys-converted",
        "Keys of a dict that are no texts are stored as texts.",
        "R commits, I3",
        (29,),
        (
            Edit(
                "elements.py",
                "                    if not isinstance(key, str):",
                "                    if False:",
            ),
            Edit(
                "elements.py",
                "        back = loads(body)\n",
                "        back = element\n",
            ),
        ),
        ("tests/test_limits.py::test_element_that_is_not_json_is_refused[int key-append]",),
    ),
    Mutant(
        "nesting-not-limited",
        "Elements may nest as deep as they like.",
        "R limits, I8",
        (29,),
        (
            Edit(
                "elements.py",
                '    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:\n        _walk(element)',
                "    return",
            ),
            Edit(
                "elements.py",
                "            if depth >= MAX_DEPTH:",
                "            if False:",
            ),
        ),
        ("tests/test_codecs.py::test_nesting_is_counted_to_the_limit",),
    ),
    Mutant(
        "element-not-limited",
        "An element may be of any length.",
        "R limits, I8",
        (29,),
        (
            Edit(
                "elements.py",
                "    if len(body) > MAX_ELEMENT_BYTES:\n        raise",
                "    if False:\n        raise",
            ),
        ),
        ("tests/test_limits.py::test_element_over_its_limit_is_refused[element0-commit]",),
    ),
    Mutant(
        "commit-not-limited",
        "A commit may be of any length.",
        "R limits, I8",
        (29,),
        (
            Edit(
                "writer.py",
                "    if size > MAX_COMMIT_BYTES:",
                "    if False:",
            ),
        ),
        ("tests/test_limits.py::test_commit_over_its_limit_is_refused",),
    ),
    Mutant(
        "refused-after-its-sequence",
        "A commit that is refused has used up sequences.",
        "R commits, I8",
        (29,),
        (
            Edit(
                "writer.py",
                "        commit = prepare(changes)\n        try:",
                "        self._sequence += len(changes)\n"
                "        commit = prepare(changes)\n"
                "        self._sequence -= len(changes)\n"
                "        try:",
            ),
        ),
        ("tests/test_limits.py::test_commit_over_its_limit_is_refused",),
    ),
    Mutant(
        "callers-element-kept",
        "A staged element that waits to be joined is the caller's own object.",
        "R window, I3",
        (),
        (
            Edit(
                "writer.py",
                "copy if state.coalescer is not None else None)",
                "element if state.coalescer is not None else None)",
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_what_waits_to_be_joined_is_not_the_callers_object",),
    ),
    Mutant(
        "upper-case-not-escaped",
        "Two ids that differ in case share a directory on a disk that does not tell them apart.",
        "F1, I3",
        (),
        (
            Edit(
                "layout.py",
                'char.isdigit() or ("a" <= char <= "z")',
                "char.isalnum()",
            ),
            Edit(
                "layout.py",
                'r"[a-z0-9_-][a-z0-9._-]*"',
                'r"[a-zA-Z0-9_-][a-zA-Z0-9._-]*"',
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_directory_is_never_hidden_and_in_one_case[aA-a%41]",),
    ),
    Mutant(
        "leading-dot-not-escaped",
        "A session's directory may be a hidden one, or lead out of the store.",
        "F1, I8",
        (),
        (
            Edit(
                "layout.py",
                '(char == "." and parts)',
                'char == "."',
            ),
        ),
        ("tests/crash/test_mutants_found.py::test_a_directory_is_never_hidden_and_in_one_case[.-%2e]",),
    ),
    Mutant(
        "id-not-limited",
        "An id may be of any length.",
        "R limits, I8",
        (29,),
        (
            Edit(
                "layout.py",
                "    if len(encoded) > MAX_ID_BYTES:",
                "    if False:",
            ),
        ),
        ("tests/test_names.py::test_malformed_id_is_refused[61 characters of 3 bytes encoded]",),
    ),
    Mutant(
        "mixed-commit-accepted",
        "Writes of a scope are stored in the log of another one.",
        "R scopes, I6",
        (),
        (
            Edit(
                "scopes/scopelog/session.py",
                "        elif write.scope_id != scope_id:\n",
                "        elif False:\n",
            ),
        ),
        ("tests/test_limits.py::test_commit_that_is_none_is_refused[scope and session]",),
    ),
)
