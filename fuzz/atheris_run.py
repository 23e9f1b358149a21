"""A fuzz target under atheris, where coverage guides: ``python -m fuzz.atheris_run TARGET [-- libFuzzer flags]``.

Needs the extra ``fuzz``. The corpus is that of the mutator, written to a directory that is thrown away, unless the
flags name directories of their own. An input that fails is written as ``crash-*`` (see ``-artifact_prefix``), and
played again with ``python -m fuzz.targets TARGET FILE``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MISSING = "atheris is missing: python -m pip install -e '.[fuzz]' in a checkout (CPython on Linux or macOS)"


def main(arguments: Sequence[str] | None = None) -> int:
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(prog="python -m fuzz.atheris_run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("target")
    chosen = parser.parse_args(given[:cut])
    flags = given[cut + 1 :]
    try:
        import atheris
    except ImportError:
        print(MISSING, file=sys.stderr)
        return 2
    logging.disable(logging.CRITICAL)
    with atheris.instrument_imports(include=["scopelog", "scopelog_engine"], enable_loader_override=False):
        from fuzz.corpus import TOKENS, seeds
        from fuzz.targets import TARGETS
    if chosen.target not in TARGETS:
        parser.error(f"no such target; there are {', '.join(TARGETS)}")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        corpus = Path(scratch) / "corpus"
        corpus.mkdir()
        for number, data in enumerate(seeds(chosen.target)):
            (corpus / f"{number:04}").write_bytes(data)
        words = Path(scratch) / "tokens"
        spelled = ["".join(f"\\x{byte:02x}" for byte in token) for token in TOKENS]
        words.write_text("".join(f'"{token}"\n' for token in spelled))
        places = [] if any(not flag.startswith("-") for flag in flags) else [str(corpus)]
        options = [f"-dict={words}", "-max_len=65536", "-timeout=60", *flags, *places]
        atheris.Setup([sys.argv[0], *options], TARGETS[chosen.target].run)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
