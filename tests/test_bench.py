"""The replay that the measurements rest on: what it records, where, and in how many commits. Nothing is timed."""

from __future__ import annotations

import json
from pathlib import Path

from bench.contestants import CONTESTANTS
from bench.results import Row, table
from bench.workloads import MESSAGES, TOOL_OUTPUT_KEPT, Record, join_text, read_workload, replay, synthetic
from scopelog import ManualClock, Store, ephemeral, value
from scopelog.session import SessionReader

TOOL_RUN = [
    {"t": 0, "k": "op", "op": 0, "prompt": "List them."},
    {"t": 0, "k": "barrier", "op": 0},
    {"t": 50, "k": "delta", "op": 0, "d": "I "},
    {"t": 60, "k": "delta", "op": 0, "d": "will"},
    {"t": 300, "k": "delta", "op": 0, "d": "."},
    {"t": 310, "k": "msg", "op": 0},
    {"t": 310, "k": "barrier", "op": 0},
    {"t": 320, "k": "tool", "op": 0, "tool": 0, "cmd": "ls"},
    {"t": 320, "k": "barrier", "op": 0},
    {"t": 700, "k": "ckpt", "op": 0, "tool": 0, "out": "a" * 40_000},
    {"t": 900, "k": "ckpt", "op": 0, "tool": 0, "out": "b" * 20_000},
    {"t": 901, "k": "toolend", "op": 0, "tool": 0},
    {"t": 901, "k": "opend", "op": 0},
    {"t": 901, "k": "barrier", "op": 0},
]


def _workload(path: Path, lines: list[dict[str, object]]) -> list[Record]:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_workload(path)


def _settled(reader: SessionReader) -> list[str]:
    return [element["content"][0]["text"] for _, element, _ in reader.read(MESSAGES)]


def test_one_response_is_two_commits_and_leaves_no_scope(store_path: Path) -> None:
    records = synthetic(50)
    clock = ManualClock()
    with Store.open(store_path, window_ms=200, clock=clock) as store:
        with store.session("s") as session:
            recorder = replay(records, session, clock)
            assert recorder.commits == 2
            assert session.stats()["syncs"] == 2
            assert session.scopes() == []
        with store.reader("s") as reader:
            assert _settled(reader) == ["Write.", "".join(record.d for record in records)]
            assert reader.get(value("pi", "op/0")) == {"phase": "ended"}


def test_deltas_of_a_window_become_one_element(store_path: Path) -> None:
    records = synthetic(100, step_ms=7)  # a window is open from its first delta on for 200 ms: 29 deltas
    clock = ManualClock()
    deltas = [record for record in records if record.k == "delta"]
    with Store.open(store_path, window_ms=200, clock=clock) as store, store.session("s") as session:
        replay(records[:-3], session, clock)  # killed before the message settles
        session.flush()
        partial = session.read(ephemeral("op-0").list_of("pi", "pendingAssistantOutput"))
        assert [element["d"] for _, element, _ in partial] == [
            "".join(record.d for record in deltas[start : start + 29]) for start in range(0, 100, 29)
        ]


def test_tool_output_is_recoverable_before_it_settles(store_path: Path, tmp_path: Path) -> None:
    records = _workload(tmp_path / "tool.jsonl", TOOL_RUN)
    clock = ManualClock()
    with Store.open(store_path, window_ms=100, clock=clock) as store, store.session("s") as session:
        replay(records[:11], session, clock)  # up to the second checkpoint
        session.flush()
        progress = session.read(ephemeral("op-0").list_of("pi", "pendingToolOutput"))
        assert "".join(element["out"] for _, element, _ in progress) == "a" * 40_000 + "b" * 20_000
        assert session.get(value("pi", "op/0")) == {"phase": "tool", "tool": 0, "command": "ls"}


def test_a_tool_run_settles_message_result_and_state(store_path: Path, tmp_path: Path) -> None:
    records = _workload(tmp_path / "tool.jsonl", TOOL_RUN)
    clock = ManualClock()
    with Store.open(store_path, window_ms=100, clock=clock) as store:
        with store.session("s") as session:
            recorder = replay(records, session, clock)
            assert recorder.commits == 4  # prompt; message; tool's start; tool's result with the operation's end
            assert session.scopes() == []
        with store.reader("s") as reader:
            window = ("a" * 40_000 + "b" * 20_000)[-TOOL_OUTPUT_KEPT:]
            assert _settled(reader) == ["List them.", "I will.", window]
            assert reader.get(value("pi", "op/0")) == {"phase": "ended"}


def test_join_text_joins_adjacent_texts_alone() -> None:
    run = [{"d": "a"}, {"d": "b"}, {"other": 1}, {"d": "c"}, {"d": "d", "x": 1}]
    assert list(join_text(run)) == [({"d": "ab"}, 2), ({"other": 1}, 1), ({"d": "c"}, 1), ({"d": "d", "x": 1}, 1)]


def test_every_contestant_records_a_small_workload(tmp_path: Path) -> None:
    for number, (name, contestant) in enumerate(CONTESTANTS.items()):
        directory = tmp_path / str(number)
        directory.mkdir()
        contestant(synthetic(20), directory, 200)
        kept = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        assert (kept == 0) == (name == "nothing"), name


def test_verdicts_follow_the_direction_of_the_target() -> None:
    assert Row("W", 16, "rival", 100, "bytes", 0.16).verdict == "met"
    assert Row("W", 17, "rival", 100, "bytes", 0.16).verdict == "missed"
    assert Row("L", 300, "rival", 100, "/s", 3.0, at_least=True).verdict == "met"
    assert Row("L", 299, "rival", 100, "/s", 3.0, at_least=True).verdict == "missed"
    assert Row("L", 0.9, "", 0, "us", 1.0).verdict == "met"
    assert Row("W", 1, "rival", 2, "bytes").verdict == ""
    assert "missed" in table([Row("W", 17, "rival", 100, "bytes", 0.16)])
