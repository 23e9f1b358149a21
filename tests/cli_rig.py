"""What the tests of the command line share: the command in this process or in one of its own, and its output."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from click.testing import CliRunner, Result

from scopelog import Store, list_of
from scopelog.cli.commands import cli

COMMAND = [sys.executable, "-m", "scopelog.cli"]


def call(*arguments: object, stdin: str | None = None) -> Result:
    """In this process, so that the consistency check sees the store."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin)


def spawn(*arguments: object, stdin: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The real thing, in a process of its own."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False, **options)


@contextlib.contextmanager
def started(*arguments: object) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes], IO[bytes]]]:
    """A child and its three pipes; it does not outlive the test."""
    child = subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdin and child.stdout and child.stderr
    try:
        yield child, child.stdin, child.stdout, child.stderr
    finally:
        child.kill()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
        child.stderr.close()
        child.wait()


def objects(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.split(b"\n") if line]


def elements(store: Path, session: str = "s") -> list[Any]:
    return [record["element"] for record in objects(call("cat", store, session, "--json").stdout_bytes)]


def lines_file(tmp_path: Path, *lines: bytes) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


def fill(store: Path, *numbers: int, session: str = "s") -> Path:
    """A session, closed cleanly, with one synced frame for each number. Returns its main log."""
    with Store.open(store) as opened, opened.session(session) as writer:
        for number in numbers:
            writer.commit([list_of("record", "lines").append(number)])
    return next(store.glob(f"{session}.session/main.zst"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x01
    path.write_bytes(data)


def refused(result: Result, code: int, cause: str) -> None:
    """One sentence of cause, one of remedy, no traceback."""
    assert result.exit_code == code, result.output
    first, second = result.stderr.splitlines()[-2:]
    assert first.startswith("error: ") and cause in first
    assert second.startswith("hint: ")
    assert "Traceback" not in result.stderr
