"""The stand-in's executable, run as the bridge would run it: identity, ports, data, and each way to misbehave."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engram import EngramServer, FakeBinary, free_port, write_binary
from tests.engram.golden import Answer, send

SESSION = {"id": "a", "project": "p", "directory": "/w", "ownership_mode": "project_owned"}


def run(binary: FakeBinary, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binary.path, *arguments], capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def serving(binary: FakeBinary, port: int) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([binary.path, "serve", str(port)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.kill()
        child.wait(60)


def until_up(child: subprocess.Popen[bytes], port: int) -> Answer:
    """Poll until somebody answers; the child's end, not a clock, is what gives up."""
    while True:
        try:
            return send(f"http://127.0.0.1:{port}", "GET", "/health")
        except OSError:
            try:
                child.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            raise


def test_the_instance_id_is_made_once(tmp_path: Path) -> None:
    binary = write_binary(tmp_path / "bin", data_dir=tmp_path / "data")
    first, second = run(binary, "instance-id"), run(binary, "instance-id")
    assert first.returncode == 0 and first.stdout == second.stdout
    assert len(first.stdout.strip()) == 32 and set(first.stdout.strip()) <= set("0123456789abcdef")
    assert [call["argv"] for call in binary.invocations("instance-id")] == [["instance-id"]] * 2
    assert binary.invocations("serve") == []
    assert binary.invocations()[0]["env"]["ENGRAM_DATA_DIR"] == str(tmp_path / "data")
    assert run(binary, "dance").returncode == 2


def test_misbehaviour_of_the_identity(tmp_path: Path) -> None:
    garbage = write_binary(tmp_path / "g", data_dir=tmp_path, FAKE_ENGRAM_ID_OUTPUT="engram v1: unknown command")
    assert run(garbage, "instance-id").stdout == "engram v1: unknown command\n"
    failing = write_binary(tmp_path / "f", data_dir=tmp_path, FAKE_ENGRAM_ID_EXIT="3")
    assert run(failing, "instance-id").returncode == 3
    old = write_binary(tmp_path / "o", data_dir=tmp_path, FAKE_ENGRAM_GENERATION="old")
    assert (run(old, "instance-id").returncode, run(old, "instance-id").stdout) == (2, "")


def test_it_serves_with_the_identity_of_its_data(tmp_path: Path) -> None:
    binary = write_binary(
        tmp_path / "bin",
        data_dir=tmp_path / "data",
        ENGRAM_PROJECT="boat",
        ENGRAM_HTTP_TOKEN="t",
        FAKE_ENGRAM_GENERATION="2.1",
    )
    identity = run(binary, "instance-id").stdout.strip()
    with free_port() as port, serving(binary, port) as child:
        body = until_up(child, port).body
        assert (body["instance_id"], body["version"]) == (identity, "2.1.0")
        url = f"http://127.0.0.1:{port}"
        assert send(url, "GET", "/project/current?cwd=/w").body["project_source"] == "process_override"
        assert send(url, "DELETE", "/sessions/none").status == 401
        again = run(binary, "serve", str(port))
        assert (again.returncode, "already" in again.stderr) == (0, True)
        other = write_binary(tmp_path / "other", data_dir=tmp_path / "other-data")
        assert run(other, "serve", str(port)).returncode == 1
        assert binary.running() == [child.pid]
        child.terminate()
        assert child.wait(60) == 0
    assert binary.running() == []
    assert [line["target"] for line in binary.served()][1:3] == ["/project/current?cwd=/w", "/sessions/none"]


def test_the_port_comes_from_the_argument_or_the_environment(tmp_path: Path) -> None:
    with EngramServer() as busy:
        binary = write_binary(tmp_path / "bin", data_dir=tmp_path, ENGRAM_PORT=str(busy.port))
        assert run(binary, "serve").returncode == 1
        assert busy.requests[0].path == "/health"
        assert run(binary, "serve", "0").returncode == 2
        assert run(binary, "serve", "x").returncode == 2


def test_ways_not_to_start(tmp_path: Path) -> None:
    with free_port() as port:
        failing = write_binary(tmp_path / "f", data_dir=tmp_path, FAKE_ENGRAM_SERVE_EXIT="7")
        assert run(failing, "serve", str(port)).returncode == 7
        owned = write_binary(tmp_path / "o", data_dir=tmp_path, FAKE_ENGRAM_PORT_OWNED="1")
        assert run(owned, "serve", str(port)).returncode == 0
        brief = write_binary(tmp_path / "b", data_dir=tmp_path, FAKE_ENGRAM_NEVER_BIND="1", FAKE_ENGRAM_LIFETIME="0.01")
        assert run(brief, "serve", str(port)).returncode == 3
        sock = write_binary(tmp_path / "s", data_dir=tmp_path, ENGRAM_SOCKET="/s", FAKE_ENGRAM_LIFETIME="0.01")
        assert run(sock, "serve", str(port)).returncode == 3
        with pytest.raises(ConnectionRefusedError):
            send(f"http://127.0.0.1:{port}", "GET", "/health")


def test_it_waits_for_a_file_before_it_binds(tmp_path: Path) -> None:
    go = tmp_path / "go"
    binary = write_binary(tmp_path / "bin", data_dir=tmp_path / "data", FAKE_ENGRAM_WAIT_FOR=str(go))
    with free_port() as port, serving(binary, port) as child:
        while not binary.invocations("serve"):
            assert child.poll() is None
        with pytest.raises(ConnectionRefusedError):
            send(f"http://127.0.0.1:{port}", "GET", "/health")
        go.touch()
        assert until_up(child, port).status == 200


def test_rows_survive_a_kill(tmp_path: Path) -> None:
    binary = write_binary(tmp_path / "bin", data_dir=tmp_path / "data")
    with free_port() as port:
        with serving(binary, port) as child:
            until_up(child, port)
            assert send(f"http://127.0.0.1:{port}", "POST", "/sessions", SESSION).status == 201
            assert binary.kill() == [child.pid]
            assert child.wait(60) == -signal.SIGKILL
        with serving(binary, port) as child:
            until_up(child, port)
            assert send(f"http://127.0.0.1:{port}", "GET", "/sessions/a").body["project"] == "p"


@pytest.mark.parametrize(("how", "answered"), [("FAKE_ENGRAM_DIE_AFTER", True), ("FAKE_ENGRAM_DIE_UNANSWERED", False)])
def test_it_dies_at_a_request(tmp_path: Path, how: str, answered: bool) -> None:
    binary = write_binary(tmp_path / "bin", data_dir=tmp_path / "data", **{how: "1"}, FAKE_ENGRAM_WAIT_FOR="/")
    with free_port() as port, serving(binary, port) as child:
        seen = None
        while seen is None and child.poll() is None:
            try:
                seen = send(f"http://127.0.0.1:{port}", "POST", "/sessions", SESSION).status
            except ConnectionRefusedError:
                continue
            except (OSError, EOFError):
                seen = 0
        assert child.wait(60) == 1
        # With DIE_AFTER the reply was written before the end; the kernel may still lose it to the reset of an exit.
        assert seen in ((201, 0) if answered else (0, None))
        assert [line["applied"] for line in binary.served()] == [True]
    with EngramServer(data_dir=tmp_path / "data") as after:
        assert list(after.model.rows.sessions) == ["a"]
    assert os.listdir(tmp_path / "data")


def test_a_death_may_count_one_route_alone(tmp_path: Path) -> None:
    settings = {"FAKE_ENGRAM_DIE_UNANSWERED": "2", "FAKE_ENGRAM_DIE_ROUTE": "POST /sessions"}
    binary = write_binary(tmp_path / "bin", data_dir=tmp_path / "data", **settings)
    with free_port() as port, serving(binary, port) as child:
        assert [until_up(child, port).status for _ in range(3)] == [200] * 3
        url = f"http://127.0.0.1:{port}"
        assert send(url, "POST", "/sessions", SESSION).status == 201
        with pytest.raises(OSError, match=r".*"):
            send(url, "POST", "/sessions", SESSION | {"id": "b"})
        assert child.wait(60) == 1
    with EngramServer(data_dir=tmp_path / "data") as after:
        assert list(after.model.rows.sessions) == ["a", "b"]
