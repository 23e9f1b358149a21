"""What the comparison with the real packages is made of, apart from the tests.

Layout::

    driver.mjs   runs in Node: the real packages, asked over stdin and stdout
    values       JSON values as both sides know them: tags, equality, UTF-16
    steps        mutations as data, played on plain and on tracked values; driver.mjs plays the same
    scenarios    random documents, mutations of them, and ops
    comparing    both sides asked, and what fails where they differ
    frames       random frame sequences and random JSON texts

The process itself is started by ``tests/interop_rig.py``.
"""
