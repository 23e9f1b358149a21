"""The real packages in a Node process: installed once per checkout, asked over pipes, ended with the tests."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from .interop.values import tagged, untagged

NODE_MODULES: Final = "SCOPELOG_NODE_MODULES"
"""Environment variable: a ``node_modules`` folder to take as it is, so that nothing is installed."""

PACKAGES: Final = {"@earendil-works/chord": "0.87.1", "@earendil-works/pi-ai": "0.87.1"}
NODE: Final = 24
CACHE: Final = Path(__file__).resolve().parents[1] / ".interop"
DRIVER: Final = Path(__file__).parent / "interop" / "driver.mjs"
INSTALL_SECONDS: Final = 240
ANSWER_SECONDS: Final = 60
_LEAST: Final = (22, 19)  # what the packages ask for


class Missing(Exception):
    """The packages cannot be had here; the text says why, and what to do."""


def node_package() -> str:
    """The package that holds the Node binary for this machine.

    The package ``node`` itself holds none: a script of its own fetches this one, and scripts are not run here.
    """
    system = sys.platform
    machine = platform.machine().lower()
    cpu = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(machine)
    if system not in ("linux", "darwin") or cpu is None:
        raise Missing(f"there is no Node package for {system} on {machine}: set {NODE_MODULES}")
    return f"node-bin-{system}-{cpu}" if (system, cpu) == ("darwin", "arm64") else f"node-{system}-{cpu}"


def node_modules() -> Path:
    """The folder that holds the packages, installed if need be. Raises :class:`Missing`."""
    given = os.environ.get(NODE_MODULES)
    if given:
        _check_versions(Path(given))
        return Path(given)
    wanted = [f"{node_package()}@{NODE}", *(f"{name}@{version}" for name, version in PACKAGES.items())]
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run of the same checkout may be installing
        stamp = CACHE / "stamp"
        if not stamp.exists() or stamp.read_text(encoding="utf-8").split() != wanted:
            _install(wanted)
            stamp.write_text("\n".join(wanted), encoding="utf-8")
    return CACHE / "node_modules"


def _install(wanted: list[str]) -> None:
    npm = shutil.which("npm")
    remedy = f"install npm and try again, or set {NODE_MODULES} to a node_modules folder with {' '.join(wanted)}"
    if npm is None:
        raise Missing(f"npm is not installed: {remedy}")
    shutil.rmtree(CACHE / "node_modules", ignore_errors=True)
    (CACHE / "stamp").unlink(missing_ok=True)
    (CACHE / "package.json").write_text('{"private": true}\n', encoding="utf-8")
    flags = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    flags += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]  # no network is to be known soon
    command = [npm, "install", *flags, *wanted]
    try:
        done = subprocess.run(
            command, cwd=CACHE, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"npm took more than {INSTALL_SECONDS} s: see to the network, or {remedy}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-300:] or f"exit status {done.returncode}"
        raise Missing(f"npm could not install ({said}): see to the network, or {remedy}")


def _check_versions(folder: Path) -> None:
    for name, version in PACKAGES.items():
        manifest = folder / name / "package.json"
        if not manifest.exists():
            raise Missing(f"{folder} has no {name}: install {name}@{version} there, or unset {NODE_MODULES}")


def node_binary(folder: Path) -> Path:
    """The binary of an installed Node package, else one that is installed anyway and new enough."""
    places = [folder / node_package() / "bin" / "node", folder / "node" / "bin" / "node"]
    found = shutil.which("node")
    if found is not None:
        places.append(Path(found))
    for place in places:
        if place.exists() and _version(place) >= _LEAST:
            return place
    raise Missing(f"{folder} holds no Node from {_LEAST[0]}.{_LEAST[1]} on: install {node_package()}@{NODE} there")


def _version(binary: Path) -> tuple[int, ...]:
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30).stdout
        return tuple(int(part) for part in said.strip().removeprefix("v").split(".")[:2])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ()


class Driver:
    """The process. One request at a time; a request that is not answered in time ends it and fails.

    Raises :class:`Missing` if ``folder`` holds no Node, and none that is new enough is installed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        binary = node_binary(folder)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._process = subprocess.Popen(
            [binary, DRIVER, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self.pid = self._process.pid

    def ask(self, do: str, cases: Iterable[dict[str, Any]], *, seconds: float = ANSWER_SECONDS) -> list[Any]:
        """The answer to each case, as ``driver.mjs`` says. Raises AssertionError if it fails, ends or hangs."""
        listed = list(cases)
        # ASCII: lone surrogates have no other form that both sides read.
        line = json.dumps({"do": do, "cases": tagged(listed)}, allow_nan=False, ensure_ascii=True)
        answer = self._exchange(line.encode("ascii") + b"\n", do, seconds)
        if "failed" in answer:
            raise AssertionError(f"the driver failed at {do}: {answer['failed']}")
        answers: list[Any] = untagged(answer["answers"])
        assert do == "versions" or len(answers) == len(listed)
        return answers

    def _exchange(self, line: bytes, do: str, seconds: float) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        watchdog = threading.Timer(seconds, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            watchdog.cancel()
            watchdog.join()
        if not answer.endswith(b"\n"):
            self._process.kill()
            self._process.wait(10)
            self._stderr.seek(0)
            said = self._stderr.read().decode(errors="replace")[-2000:]
            raise AssertionError(f"the driver gave no answer to {do} within {seconds} s, or ended: {said}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process: it leaves when its input ends, and is killed if it does not."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process.stdout.close()
        self._stderr.close()
