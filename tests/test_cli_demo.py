"""The demonstration: it runs on any stream, and says so when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scopelog import Store, list_of
from scopelog.cli import demo


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scopelog.cli.demo", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_the_shipped_stream_is_one_of_an_assistant() -> None:
    events = [json.loads(line) for line in demo.read_stream(demo.SAMPLE)]
    assert len(events) >= 400
    kinds = {event["type"] for event in events}
    assert {"start", "text_delta", "toolcall_delta", "tool_result", "done"} <= kinds
    assert any(not event.get("delta", "").isascii() for event in events if event["type"] == "text_delta")


def test_the_demonstration_tells_what_was_kept_and_what_it_cost(tmp_path: Path) -> None:
    stream = tmp_path / "stream.jsonl"
    stream.write_bytes(b"".join(line + b"\n" for line in demo.read_stream(demo.SAMPLE)[:90]))
    for _ in range(2):  # the second one removes the store of the first
        result = run(tmp_path, str(stream))
        assert result.returncode == 0, result.stderr
        numbers = {
            line.split(maxsplit=1)[1]: line.split()[0] for line in result.stdout.splitlines() if " lines " in line
        }
        assert numbers["lines fed to the recorder"] == "45"
        assert int(numbers["lines it had reported written"]) >= 1
        assert numbers["lines in the session, as they were in the stream"] == "90"
        assert "bytes kept on disk" in result.stdout and "syncs" in result.stdout
    assert sorted(os.listdir(tmp_path)) == ["demo-store", "stream.jsonl"]


def test_the_demonstration_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_bytes(b"\n\n")
    (tmp_path / "bad.jsonl").write_bytes(b"1\nsecret\n")
    (tmp_path / "good.jsonl").write_bytes(b"1\n")
    (tmp_path / "demo-store").mkdir()
    (tmp_path / "demo-store" / "precious").touch()
    for name, message in (
        ("empty", "holds no line"),
        ("bad", "line 2 is not JSON"),
        ("missing", "No such file"),
        ("good", "is not a store: remove it yourself"),
    ):
        result = run(tmp_path, f"{name}.jsonl")
        assert result.returncode == 1
        assert message in result.stderr and "Traceback" not in result.stderr and "secret" not in result.stderr
    assert (tmp_path / "demo-store" / "precious").exists()


def test_a_missing_or_changed_line_fails_the_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open(demo.STORE) as store, store.session(demo.SESSION) as session:
        session.commit([list_of("record", "lines").append(n) for n in (1, 2, 3)])
    assert demo.recover([b"1", b"2", b"3", b"4"], fed=4, reported=3) == 3
    with pytest.raises(demo.Broken, match="4 lines had been reported written, 3 are there"):
        demo.recover([b"1", b"2", b"3", b"4"], fed=4, reported=4)
    with pytest.raises(demo.Broken, match="line 2 came back changed"):
        demo.recover([b"1", b"2.0", b"3"], fed=3, reported=3)
    with pytest.raises(demo.Broken, match="only 2 were fed"):
        demo.recover([b"1", b"2", b"3"], fed=2, reported=2)
