"""The demonstration: it runs on any stream, and says so when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scopelog import Store, list_of
from scopelog.cli import demo, demo_lines, demo_messages, demo_show
from scopelog.cli.demo_replay import kind_of, replayed
from scopelog.clients.messages import Lane

from .conftest import shared
from .streams_rig import as_lines, done, events_of, folded, interrupted, responses, sample

FIRST, SECOND = responses(sample())


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scopelog.cli.demo", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def numbers_of(output: str) -> dict[str, int]:
    """What it says in lines: numbers by what follows them."""
    found = [line.split(maxsplit=1) for line in output.splitlines() if " lines " in line]
    return {text.split(":")[0]: int(number) for number, text in found if number.isdigit()}


def test_the_shipped_stream_is_one_of_an_assistant() -> None:
    frames = sample()
    assert len(frames) >= 400
    assert kind_of(frames) == "frames"
    kinds = {frame["type"] for frame in frames}
    assert {"start", "thinking_delta", "text_delta", "toolcall_delta", "toolcall_end"} <= kinds
    assert any(not frame.get("delta", "").isascii() for frame in frames if frame["type"] == "text_delta")
    assert replayed(frames, "frames").finish() == [folded(FIRST, "toolUse"), folded(SECOND, "stop")]
    cut = demo_messages.cut_of(frames)
    assert frames[cut - 1]["delta"][-1].isalpha() and frames[cut]["delta"][0].isalpha()


@pytest.mark.parametrize("kind", ["events", "frames"])
def test_the_demonstration_brings_a_message_back(tmp_path: Path, kind: str) -> None:
    elements = [*FIRST, *SECOND[:60]] if kind == "frames" else [*events_of(SECOND[:100]), done(SECOND[:100])]
    (tmp_path / "stream.jsonl").write_bytes(b"null\n".join(line + b"\n" for line in as_lines(elements)))
    result = run(tmp_path, "stream.jsonl")
    assert result.returncode == 0, result.stderr
    cut = demo_messages.cut_of(elements)
    numbers = numbers_of(result.stdout)
    assert f"a stream of {len(elements)} {kind}" in result.stdout
    assert numbers["lines fed to the recorder"] == cut
    assert cut >= numbers["lines kept"] >= numbers["lines it had reported written"] >= 1
    assert numbers["lines lost; at most a window of 100 ms and its sync may be"] == cut - numbers["lines kept"]
    assert "demo: operation record-1, lane main, entry record-1.1" in result.stdout
    assert "(unfinished)" in result.stdout
    assert "first it settled 1 interrupted operation" in result.stdout
    assert "assistant, error" in result.stdout
    assert ("assistant, stop" if kind == "events" else "assistant, toolUse") in result.stdout
    assert "bytes kept on disk" in result.stdout and "syncs" in result.stdout
    assert interrupted(tmp_path / "demo-store", "demo") == []


def test_the_demonstration_tells_what_was_kept_and_what_it_cost(tmp_path: Path) -> None:
    stream = tmp_path / "stream.jsonl"
    stream.write_bytes(b"".join(b'{"line": %d}\n' % n for n in range(90)))
    for _ in range(2):  # the second one removes the store of the first
        result = run(tmp_path, str(stream))
        assert result.returncode == 0, result.stderr
        numbers = numbers_of(result.stdout)
        assert numbers["lines fed to the recorder"] == 45
        assert numbers["lines it had reported written"] >= 1
        assert numbers["lines in the session, as they were in the stream"] == 90
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
    with Store.open(demo_show.STORE) as store, store.session(demo_show.SESSION) as session:
        session.commit([list_of("record", "lines").append(n) for n in (1, 2, 3)])
    assert demo_lines.recover([b"1", b"2", b"3", b"4"], fed=4, reported=3) == 3
    with pytest.raises(demo_show.Broken, match="4 lines had been reported written, 3 are there"):
        demo_lines.recover([b"1", b"2", b"3", b"4"], fed=4, reported=4)
    with pytest.raises(demo_show.Broken, match="line 2 came back changed"):
        demo_lines.recover([b"1", b"2.0", b"3"], fed=3, reported=3)
    with pytest.raises(demo_show.Broken, match="only 2 were fed"):
        demo_lines.recover([b"1", b"2", b"3"], fed=2, reported=2)


def test_a_message_that_comes_back_otherwise_fails_the_demonstration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open(demo_show.STORE) as store, store.session(demo_show.SESSION) as session:
        response = Lane(session).begin("op").response("op.1")
        for frame in FIRST[:20]:
            response.take(frame)
    found = demo_messages.came_back()
    assert found is not None
    for reported in (0, 20):
        assert demo_messages.compare(found, FIRST[:30], "frames", reported) == 20
    other = [*FIRST[:10], {**FIRST[10], "delta": "x"}, *FIRST[11:30]]
    for fed, reported in ((FIRST[:30], 21), (FIRST[:19], 5), (other, 0)):
        with pytest.raises(demo_show.Broken, match=f"{reported} lines had been reported written"):
            demo_messages.compare(found, fed, "frames", reported)
    assert demo_messages.compare(None, FIRST[:3], "frames", 0) == 0
    with pytest.raises(demo_show.Broken):
        demo_messages.compare(None, FIRST[:3], "frames", 1)

    with pytest.raises(demo_show.Broken, match="op is left over"):
        demo_messages.check_settled(found, [])
    with Store.open(demo_show.STORE) as store, store.session(demo_show.SESSION) as session:
        Lane(session).recover()
    assert len(demo_messages.check_settled(found, [])) == 1
    with pytest.raises(demo_show.Broken, match="did not settle as they should"):
        demo_messages.check_settled(found, [folded(FIRST, "toolUse")])
    with pytest.raises(demo_show.Broken, match="what was interrupted did not settle"):
        demo_messages.check_settled(None, [])


@pytest.mark.parametrize(
    ("elements", "kind"),
    [
        (events_of(FIRST), "events"),
        ([*events_of(FIRST), done(FIRST)], "events"),
        ([{"type": "error", "error": {}}], "events"),
        (FIRST[:1], "frames"),
        ([1, 2], None),
        ([{"type": "done"}], None),
        ([{"type": "text_delta", "contentIndex": 0, "delta": ""}], None),
        ([*FIRST[:9], {"type": "text_delta", "contentIndex": 9, "delta": ""}], None),
        ([*events_of(FIRST), done(FIRST), {"type": "tool_result"}], None),
    ],
)
def test_streams_are_told_apart(elements: list[Any], kind: str | None) -> None:
    assert kind_of(elements) == kind


def test_real_streams_are_told_apart() -> None:
    found: dict[str, int] = {"events": 0, "frames": 0}
    for path in shared("corpus/streams").glob("derived/*.jsonl"):
        lines = [json.loads(line) for line in demo.read_stream(path)]
        kind = kind_of(lines)
        assert path.name.endswith(f".{kind}.jsonl"), path
        found[str(kind)] += 1
    assert min(found.values()) >= 20
