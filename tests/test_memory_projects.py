"""Behaviours 51 to 56, 59 and 60, as far as resolution goes: a project of the session's own directory, or none."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from scopelog import HandleClosed
from scopelog.clients.memory.config import MemoryConfig
from scopelog.clients.memory.errors import (
    EngramError,
    HttpError,
    ProjectUnresolved,
    RequestFailed,
    RequestRefused,
    RequestTimedOut,
    ServerUnavailable,
)
from scopelog.clients.memory.projects import ProjectGate, Resolution, judge_envelope, resolve_from_file, resolve_project
from scopelog.clients.memory.spelling import Query
from scopelog.clients.memory.transport import Transport

from .engram import GENERATIONS, EngramServer
from .memory_wire import Answer, Time, Wire, run

CURRENT: dict[str, Any] = {"method": "GET", "path": "/project/current"}
GOOD: dict[str, Any] = {
    "project": "demo",
    "project_source": "git_remote",
    "project_path": "/w",
    "cwd": "/w",
    "available_projects": None,
}


def http_error(status: int, body: Any = None) -> HttpError:
    return HttpError(**CURRENT, status=status, body=body)


class Asked:
    """A transport that answers from a script, its last answer for ever."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.asked: list[Query] = []

    async def request(self, method: str, path: str, *, query: Query) -> Any:
        assert (method, path) == ("GET", "/project/current")
        self.asked.append(query)
        await asyncio.sleep(0)
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.mark.parametrize("cwd", [None, "", "  ", "\t\n"])
def test_without_a_directory_nothing_is_asked(cwd: str | None) -> None:
    """Behaviours 51 and 55: the message names the directory, never the file."""

    async def main() -> None:
        asked, ready = Asked(GOOD), 0

        async def ensure() -> None:
            nonlocal ready
            ready += 1

        gate = ProjectGate(asked, cwd, ready=ensure, clock=Time().clock)
        with pytest.raises(ProjectUnresolved, match="no working directory") as caught:
            await gate.require()
        assert "config" not in str(caught.value) and gate.resolution.state == "failed"
        assert (asked.asked, ready) == ([], 0)

    run(main)


@pytest.mark.parametrize("cwd", ["w", "./w", "~/w", "/w/<private>x</private>"])
def test_a_directory_that_the_server_would_take_for_another_is_not_asked_about(cwd: str) -> None:
    """Behaviour 56 for the session's own directory: a relative one would be resolved from the server's."""

    async def main() -> None:
        asked = Asked(GOOD)
        resolution = await resolve_project(asked, cwd)
        assert (resolution.state, asked.asked) == ("failed", [])
        assert "config" not in str(resolution.error())

    run(main)


def test_a_real_directory_is_percent_encoded() -> None:
    """Behaviours 52 and 56."""
    pytest.importorskip("httpx2", reason="the extra engram is not installed")

    async def main() -> None:
        async with Wire(Answer(body=GOOD)) as wire:
            transport = Transport(MemoryConfig(port=wire.port), environ={})
            resolution = await resolve_project(transport, "/w/a b&c=ü/#1")
            assert resolution == Resolution("resolved", "demo", "git_remote")
            assert [seen.target for seen in wire.seen] == ["/project/current?cwd=%2Fw%2Fa%20b%26c%3D%C3%BC%2F%231"]
            await transport.aclose()

    run(main)


def test_transient_failures_are_tried_again_up_to_five_times() -> None:
    """Behaviour 53."""

    async def main() -> None:
        time = Time()
        asked = Asked(http_error(500), RequestTimedOut(**CURRENT, limit_ms=100), GOOD)
        assert (await resolve_project(asked, "/w", sleep=time.sleep)).state == "resolved"
        assert (len(asked.asked), time.slept) == (3, [0.2, 0.2])
        time = Time()
        body = {"error": "last reason", "available_projects": ["a", "b"]}
        asked = Asked(*[http_error(500)] * 3, RequestFailed(**CURRENT, what="x"), http_error(409, body))
        resolution = await resolve_project(asked, "/w", sleep=time.sleep)
        assert resolution == Resolution("failed", reason="last reason", candidates=("a", "b"))
        assert (len(asked.asked), time.slept) == (5, [0.2] * 4)

    run(main)


def test_nobody_listening_says_nothing_about_the_project() -> None:
    """Section 6: unset, not failed, so that the next call asks as soon as the server is back."""

    async def main() -> None:
        time, asked = Time(), Asked(RequestRefused(**CURRENT))
        gate = ProjectGate(asked, "/w", clock=time.clock, sleep=time.sleep)
        with pytest.raises(RequestRefused):
            await gate.require()
        assert (len(asked.asked), gate.resolution.state) == (5, "unset")
        asked.script = [GOOD]
        assert await gate.require() == "demo"

    run(main)


def test_an_old_server_leaves_it_to_the_file_after_one_call(tmp_path: Path) -> None:
    """Behaviour 54."""
    (tmp_path / ".engram").mkdir()
    (tmp_path / ".engram" / "config.json").write_text('{"project_name": "from-file"}')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)

    async def main() -> None:
        for cwd in (tmp_path, below, tmp_path / "a" / "missing"):
            asked = Asked(http_error(404))
            assert await resolve_project(asked, str(cwd)) == Resolution("resolved", "from-file", "config")
            assert len(asked.asked) == 1

    run(main)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (b'{"project_name": " near "}', "near"),
        (b'{"project_name": "  "}', "far"),
        (b"{}", "far"),
        (b'{"project_name": 7}', "far"),
        (b"{", "pending"),
        (b"[]", "pending"),
        (b"\xff", "pending"),
        (b"[" * 50_000, "pending"),
        (b" " * 70_000 + b"{}", "pending"),
        (b'{"project_name": "../x"}', "failed"),
        (b'{"project_name": "Unknown"}', "failed"),
    ],
)
def test_what_the_file_says(text: bytes, state: str, tmp_path: Path) -> None:
    """Behaviour 54, section 6 step 3: a broken file is no guess, a blank name is no name."""
    for folder, content in ((tmp_path, b'{"project_name": "far"}'), (tmp_path / "w", text)):
        (folder / ".engram").mkdir(parents=True)
        (folder / ".engram" / "config.json").write_bytes(content)
    found = resolve_from_file(str(tmp_path / "w"))
    assert state in (found.state, found.project)
    assert (found.state == "resolved") == (found.project != "")


def test_no_file_is_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour 54, and the remedy names the file."""
    monkeypatch.setattr("scopelog.clients.memory.projects.CONFIG_FILE", ".engram/no-such-file.json")
    found = resolve_from_file(str(tmp_path))
    assert found.state == "pending"
    assert "no-such-file.json" in found.error().remedy


@pytest.mark.parametrize(
    ("envelope", "state"),
    [
        (GOOD, "resolved"),
        ({"project": "demo"}, "resolved"),
        *[(GOOD | {"project_source": one}, "resolved") for one in ("config", "git_root", "git_child", "dir_basename")],
        (GOOD | {"warning": "slow disk"}, "resolved"),
        (GOOD | {"error_hint": "ambiguous"}, "failed"),
        (GOOD | {"project": "", "error_hint": "pick one"}, "failed"),
        (GOOD | {"project": "", "warning": "no repository"}, "failed"),
        *[
            (GOOD | {"project": one}, "failed")
            for one in ("unknown", "UNKNOWN", " Unknown ", "a/b", "a\\b", "..\\x", "/")
        ],
        *[(GOOD | {"project": one}, "failed") for one in ("a\nb", "a\0", "\x7fa", "a\x85")],
        *[(GOOD | {"project_source": one}, "failed") for one in ("ambiguous", "explicit_override", "magic", "", 7)],
        ({"project": "  "}, "pending"),
        ({"project": 7}, "pending"),
        ({"project": None, "error_hint": "", "warning": None}, "pending"),
        ({}, "pending"),
        ([], "pending"),
        ("demo", "pending"),
        (None, "pending"),
    ],
)
def test_what_a_200_amounts_to(envelope: Any, state: str) -> None:
    """Behaviour 59."""
    found = judge_envelope(envelope)
    assert found.state == state
    assert (found.project == "demo") == (state == "resolved")
    assert (found.reason == "") == (state == "resolved")


def test_an_ambiguity_lists_the_candidates_and_names_the_file() -> None:
    """Behaviour 59, section 6: the message of the gate."""
    body = {
        "project": "",
        "project_source": "ambiguous",
        "error_hint": "several repositories",
        "available_projects": ["a", 1, "b"],
    }
    error = judge_envelope(body).error()
    assert (error.reason, error.candidates) == ("several repositories", ("a", "b"))
    assert "candidates: a, b" in error.cause and ".engram/config.json" in error.remedy


def test_a_project_from_the_server_s_own_environment_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Section 6: trusted, although it is not the session's directory that decides."""
    assert judge_envelope(GOOD | {"project_source": "process_override"}).state == "resolved"
    assert "ENGRAM_PROJECT" in caplog.text


@pytest.mark.parametrize("failure", [GOOD | {"project": "", "error_hint": "no"}, {}, http_error(500)])
def test_a_failure_is_kept_for_30_seconds_and_a_success_for_ever(failure: Any) -> None:
    """Behaviour 60."""

    async def main() -> None:
        time, asked = Time(), Asked(failure)
        gate = ProjectGate(asked, "/w", clock=time.clock, sleep=time.sleep)
        first = await gate.resolve()
        calls = len(asked.asked)
        asked.script = [GOOD]
        time.now += 29.999
        assert await gate.resolve() is first
        with pytest.raises(ProjectUnresolved):
            await gate.require()
        assert len(asked.asked) == calls
        time.now += 0.002
        assert await gate.require() == "demo"
        asked.script = [failure]
        time.now += 1e9
        assert await gate.require() == "demo"
        assert len(asked.asked) == calls + 1

    run(main)


def test_concurrent_callers_share_one_question() -> None:
    """Section 6: one in-flight resolution for a session; a cancelled caller does not end it."""

    async def main() -> None:
        asked = Asked(http_error(500), GOOD)
        gate = ProjectGate(asked, "/w", sleep=Time().sleep)
        tasks = [asyncio.create_task(gate.require()) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        assert await asyncio.gather(*tasks[1:]) == ["demo"] * 4
        assert len(asked.asked) == 2
        assert gate.resolution.state == "resolved"

    run(main)


def test_a_server_that_is_not_up_leaves_the_gate_unset() -> None:
    """Section 6: tried again by the next call, without a wait."""

    async def main() -> None:
        asked, up = Asked(GOOD), False

        async def ensure() -> None:
            if not up:
                raise ServerUnavailable("no server", "start one")

        gate = ProjectGate(asked, "/w", ready=ensure)
        with pytest.raises(ServerUnavailable):
            await gate.require()
        assert (gate.resolution.state, asked.asked) == ("unset", [])
        up = True
        assert await gate.require() == "demo"

    run(main)


def test_a_failure_that_cannot_be_asked_about_again_is_forgotten() -> None:
    """Behaviour 60: after 30 s it is not known any more, and the server's return is not waited for another 30 s."""

    async def main() -> None:
        time, asked = Time(), Asked({})
        gate = ProjectGate(asked, "/w", clock=time.clock, sleep=time.sleep)
        assert (await gate.resolve()).state == "pending"
        time.now += 31
        asked.script = [RequestRefused(**CURRENT)]
        with pytest.raises(RequestRefused):
            await gate.resolve()
        assert gate.resolution.state == "unset"
        asked.script = [GOOD]
        assert await gate.require() == "demo"

    run(main)


def test_closing_gives_up_a_question_in_flight() -> None:
    async def main() -> None:
        asked = Asked(http_error(500))
        gate = ProjectGate(asked, "/w", sleep=lambda _: asyncio.sleep(3600))
        task = asyncio.create_task(gate.require())
        while not asked.asked:
            await asyncio.sleep(0)
        await gate.aclose()
        with pytest.raises(HandleClosed):
            await task

    run(main)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_resolves_and_learns_of_a_file_after_30_seconds(generation: Any, tmp_path: Path) -> None:
    """Behaviours 54, 59 and 60 over real HTTP."""
    pytest.importorskip("httpx2", reason="the extra engram is not installed")
    (tmp_path / "one" / ".git").mkdir(parents=True)
    (tmp_path / "two" / ".git").mkdir(parents=True)
    cwd = str(tmp_path)

    async def main() -> None:
        time = Time()
        with EngramServer(generation) as server:
            transport = Transport(MemoryConfig(port=server.port), environ={}, sleep=time.sleep)
            gate = ProjectGate(transport, cwd, clock=time.clock, sleep=time.sleep)
            server.model.resolve_to(
                cwd, "", source="ambiguous", error_hint="several", available_projects=["one", "two"]
            )
            with pytest.raises(ProjectUnresolved):
                await gate.require()
            (tmp_path / ".engram").mkdir()
            (tmp_path / ".engram" / "config.json").write_text(json.dumps({"project_name": "named"}))
            server.model.resolve_to(cwd, "named", source="config")
            with pytest.raises(ProjectUnresolved):
                await gate.require()
            asked = len(server.requests)
            time.now += 31
            assert await gate.require() == "named"
            assert len(server.requests) == asked + 1 == 2
            server.check_invariants()
            await transport.aclose()

    run(main)


def test_errors_are_of_one_family() -> None:
    assert issubclass(ProjectUnresolved, EngramError)
