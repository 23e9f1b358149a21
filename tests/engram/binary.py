"""A "binary" for start tests: a small shell wrapper around the fake executable, with its log."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .http import HOST

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class FakeBinary:
    """``path`` is what a configuration names; ``log`` and ``requests`` hold one JSON line an invocation or request."""

    path: Path
    log: Path
    requests: Path

    def invocations(self, command: str | None = None) -> list[dict[str, Any]]:
        """Each with ``argv``, ``pid`` and ``env``; all of them, or those of one subcommand."""
        return [line for line in _lines(self.log) if command is None or line["argv"][:1] == [command]]

    def served(self) -> list[dict[str, Any]]:
        """The requests its servers answered, over all processes."""
        return _lines(self.requests)

    def running(self) -> list[int]:
        """Process ids of its servers that are still alive; a process id used anew by others is not taken for one."""
        return [line["pid"] for line in self.invocations("serve") if _is_ours(line["pid"])]

    def kill(self) -> list[int]:
        """Kill what is left of its servers, by their ids from the log; call it at the end of the test."""
        pids = self.running()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return pids


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _is_ours(pid: int) -> bool:
    """Alive, no zombie, and running the fake executable."""
    shown = subprocess.run(["ps", "-o", "stat=,args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return "fake_engram" in shown.stdout and not shown.stdout.lstrip().startswith("Z")


def write_binary(folder: Path, *, data_dir: Path | None = None, **environment: str) -> FakeBinary:
    """Write the wrapper into ``folder``; keywords become environment variables of the child, beside what it inherits.

    ``data_dir`` sets ENGRAM_DATA_DIR, which otherwise is inherited; set one of the two, or the user's own is used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fake = FakeBinary(folder / "engram", folder / "invocations.jsonl", folder / "requests.jsonl")
    settings = {"FAKE_ENGRAM_LOG": str(fake.log), "FAKE_ENGRAM_REQUESTS": str(fake.requests), **environment}
    if data_dir is not None:
        settings["ENGRAM_DATA_DIR"] = str(data_dir)
    lines = ["#!/bin/sh", *(f"export {name}={shlex.quote(value)}" for name, value in settings.items())]
    lines.append(f'export PYTHONPATH={shlex.quote(str(ROOT))}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    lines.append(f'exec {shlex.quote(sys.executable)} -m tests.engram.fake_engram "$@"')
    fake.path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    fake.path.chmod(0o755)
    return fake


@contextmanager
def free_port() -> Iterator[int]:
    """A port that refuses connections and that nobody else is given meanwhile; a fake server can still bind it."""
    with socket.socket() as holder:
        if sys.platform == "linux":
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((HOST, 0))
            yield holder.getsockname()[1]
            return
        holder.bind((HOST, 0))
        port = holder.getsockname()[1]
    yield port
