"""What the measurements rest on: what is recorded, by product and rivals alike, and that every row comes out.

Nothing is timed.
"""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bench import deltas, interrupted, loops, measure, sessions, streams
from bench.contestants import CONTESTANTS
from bench.frames import opening, settled_whole, text_delta
from bench.kept import Kept
from bench.latency import records_of
from bench.op_rows import SqliteRows, record_op_rows
from bench.pi import Pi
from bench.probe import _quiet
from bench.results import Row, table
from bench.workloads import (
    TOOL_OUTPUT_KEPT,
    Record,
    Recorder,
    join_text,
    read_workload,
    replay,
    steps,
    synthetic,
    synthetic_tools,
)
from scopelog import ManualClock, Store, ephemeral, list_of, value
from scopelog.clients.messages import fold, recover
from scopelog.clients.messages.places import assistant_output, entries
from scopelog.delta import UNDEFINED, Decoder, apply
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


def _messages(reader: SessionReader) -> list[Any]:
    return [element["message"] for _, element, _ in reader.read(entries("main"))]


def _settled(reader: SessionReader) -> list[str]:
    return [message["content"][0]["text"] for message in _messages(reader)]


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
            assert recover(reader) == [] and reader.scan("pi") == []


def test_an_operation_may_end_after_its_last_settlement(store_path: Path) -> None:
    records = synthetic(5)
    records.insert(-2, records[-1])  # a barrier between them: nothing to do there
    clock = ManualClock()
    with Store.open(store_path, window_ms=200, clock=clock) as store, store.session("s") as session:
        recorder = Recorder(session)
        running = [len(recover(session)) for _ in steps(records, recorder, clock)]
        assert [record.k for record in records[-4:]] == ["msg", "barrier", "opend", "barrier"]
        assert running[-4:] == [1, 1, 0, 0]
        assert recorder.commits == 3
        assert session.scopes() == [] and session.scan("pi") == []


def test_a_whole_message_is_what_the_frames_gave_and_how_it_ended(store_path: Path) -> None:
    records = synthetic(50)
    deltas = [record for record in records if record.k == "delta"]
    clock = ManualClock()
    with Store.open(store_path, window_ms=200, clock=clock) as store:
        with store.session("s") as session:
            replay(records, session, clock, whole=True)
        with store.reader("s") as reader:
            found = _messages(reader)[1]
    frames = [*opening(deltas[0].t), *(text_delta(record.d) for record in deltas)]
    assert found == settled_whole(fold(frames), 50)
    assert found["stopReason"] == "stop" and found["usage"]["output"] == 50 and found["timestamp"]


def test_deltas_of_a_window_become_one_batch(store_path: Path) -> None:
    records = synthetic(100, step_ms=7)  # a window is open from its first delta on for 200 ms: 29 deltas
    clock = ManualClock()
    texts = [record.d for record in records if record.k == "delta"]
    with Store.open(store_path, window_ms=200, clock=clock) as store, store.session("s") as session:
        replay(records[:-3], session, clock)  # killed before the message settles
        session.flush()
        base, *batches = [element for _, element, _ in session.read(assistant_output("op-0", "r0"))]
    assert [op[0] for op in base] == ["r"]
    assert [batch[-1][-1] for batch in batches] == ["".join(texts[start : start + 29]) for start in range(0, 100, 29)]
    assert batches[-1] == [["a", 0, "".join(texts[87:])]]


def _kept(stage: list[Record]) -> str:
    return "".join(record.d + record.out for record in stage)[-TOOL_OUTPUT_KEPT:]


def _recovered(reader: SessionReader) -> tuple[list[str], str]:
    """Which operations run, and the text that streams in the last of them."""
    operations = recover(reader)
    text = ""
    for operation in operations:
        assert operation.problems == ()
        texts = [tool.output["text"] for tool in operation.tools]
        if operation.response is not None:
            texts.append(operation.response.fold["content"][0]["text"])
        assert len(texts) <= 1
        text = texts[0] if texts else ""
    return [operation.id for operation in operations], text


@pytest.mark.parametrize("window_ms", [200, 100])
@pytest.mark.parametrize("kind", ["a tool", "a response", "both"])
def test_whatever_has_streamed_comes_back_but_for_one_window(
    kind: str, window_ms: int, store_path: Path, tmp_path: Path
) -> None:
    """After each record a reader stands for the process that recovers: it sees what a kill there and then leaves."""
    if kind == "a tool":
        records = _workload(tmp_path / "tool.jsonl", TOOL_RUN)
    else:
        records = synthetic(60, step_ms=17) if kind == "a response" else synthetic_tools(2, deltas=8, checkpoints=25)
    clock = ManualClock()
    settled: list[str] = []
    stage: list[Record] = []  # of the response or tool that streams
    runs = False
    with Store.open(store_path, window_ms=window_ms, clock=clock) as store, store.session("s") as session:
        for number, record in enumerate(steps(records, Recorder(session), clock)):
            if record.k == "barrier" and records[number - 1].k == "op":
                runs = True
                settled.append(records[number - 1].prompt)
            elif record.k in ("delta", "ckpt"):
                stage.append(record)
            elif record.k in ("msg", "toolend"):
                settled.append(_kept(stage))
                stage = []
                runs = records[number + 1].k != "opend"
            if not settled:
                continue
            with store.reader("s") as reader:
                assert _settled(reader) == settled
                operations, text = _recovered(reader)
            assert operations == ([f"op-{record.op}"] if runs else [])
            stored = [n + 1 for n, r in enumerate(stage) if r.t + window_ms < record.t or record.k == "barrier"]
            assert text in [_kept(stage[:n]) for n in range(max(stored, default=0), len(stage) + 1)]


def test_a_tool_run_settles_message_result_and_state(store_path: Path, tmp_path: Path) -> None:
    records = _workload(tmp_path / "tool.jsonl", TOOL_RUN)
    clock = ManualClock()
    with Store.open(store_path, window_ms=100, clock=clock) as store:
        with store.session("s") as session:
            recorder = Recorder(session)
            for record in steps(records, recorder, clock):
                if record.k == "ckpt":
                    assert session.get(value("pi", "op-0")) == {"phase": "tool", "tool": 0, "command": "ls"}
            assert recorder.commits == 4  # prompt; message; tool's start; tool's result with the operation's end
            assert session.scopes() == []
        with store.reader("s") as reader:
            window = ("a" * 40_000 + "b" * 20_000)[-TOOL_OUTPUT_KEPT:]
            assert _settled(reader) == ["List them.", "I will.", window]
            assert recover(reader) == [] and reader.scan("pi") == []


def _rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


# --- rivals -----------------------------------------------------------------------------------------


def test_pi_writes_a_line_for_each_frame_and_the_window_for_each_checkpoint(tmp_path: Path) -> None:
    records = synthetic_tools(1, deltas=8, checkpoints=30)
    Pi(tmp_path).record(records)
    lines = [json.loads(line) for line in (tmp_path / "session.jsonl").read_text().splitlines()]
    assert lines[0]["kind"] == "header" and lines[0]["v"] == 4
    writes = [write for line in lines[1:] for write in (line if isinstance(line, list) else [line])]
    assert [write["seq"] for write in writes] == list(range(1, len(writes) + 1))
    frames = [w["value"] for w in writes if w.get("namespace") == "pi.pending.assistant_frame" and w["op"] == "append"]
    folded = fold(frames)
    assert folded is not None and folded["content"][0]["text"] == "".join(record.d for record in records)
    output = [w for w in writes if w.get("namespace") == "pi.pending.tool_output"]
    whole = "".join(record.out for record in records)
    windows = [whole[: 2_500 * n][-TOOL_OUTPUT_KEPT:] for n in range(1, 31)]
    assert [w["value"]["content"][0]["text"] for w in output[:-1]] == windows
    assert [w["op"] for w in output] == ["set"] * 30 + ["delete"]
    assert [w["message"]["content"][0]["text"] for w in writes if w["kind"] == "entry"][-1] == windows[-1]


@pytest.mark.parametrize("cut", [5, 11, 20, 44, 45])
def test_op_rows_bring_back_what_was_pending(cut: int, tmp_path: Path) -> None:
    records = synthetic_tools(1, deltas=8, checkpoints=30)[:cut]
    record_op_rows(records, SqliteRows(tmp_path), 200)
    decoder = Decoder()
    state: Any = UNDEFINED
    rows = _rows(tmp_path / "rows.db", "SELECT batch FROM ops ORDER BY id")
    for (batch,) in rows:
        state = apply(state, decoder.decode(json.loads(batch)))
    if records[-1].k in ("msg", "toolend"):
        assert rows == []
    elif cut == 5:
        assert state["streamingMessage"]["content"][0]["text"] == "".join(record.d for record in records)
    else:
        assert state == {"text": "".join(record.out for record in records)[-TOOL_OUTPUT_KEPT:]}


def test_join_text_joins_adjacent_texts_alone() -> None:
    run = [{"d": "a"}, {"d": "b"}, {"other": 1}, {"d": "c"}, {"d": "d", "x": 1}]
    assert list(join_text(run)) == [({"d": "ab"}, 2), ({"other": 1}, 1), ({"d": "c"}, 1), ({"d": "d", "x": 1}, 1)]


def test_every_contestant_records_a_small_workload(tmp_path: Path) -> None:
    for number, (name, contestant) in enumerate(CONTESTANTS.items()):
        directory = tmp_path / str(number)
        directory.mkdir()
        contestant(synthetic_tools(1, checkpoints=3), directory, 200)
        kept = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        assert (kept == 0) == (name == "nothing"), name


def test_device_bytes_are_told_if_they_are_not_noise() -> None:
    assert _quiet(100, 1_000) == 50_200
    assert _quiet(0, 0) == 0
    assert _quiet(100, 25_601) is None  # more than half of it is what the idle machine writes


def test_verdicts_follow_the_direction_of_the_target() -> None:
    assert Row("W", 16, "rival", 100, "bytes", 0.16).verdict == "met"
    assert Row("W", 17, "rival", 100, "bytes", 0.16).verdict == "missed"
    assert Row("L", 300, "rival", 100, "/s", 3.0, at_least=True).verdict == "met"
    assert Row("L", 299, "rival", 100, "/s", 3.0, at_least=True).verdict == "missed"
    assert Row("L", 0.9, "", 0, "us", 1.0).verdict == "met"
    assert Row("W", 1, "rival", 2, "bytes").verdict == ""
    assert "missed" in table([Row("W", 17, "rival", 100, "bytes", 0.16)])


# --- the rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [*measure.SECTIONS, "W"])
def test_every_row_comes_out_and_none_is_judged_when_quick(
    row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows check themselves that product and rivals read and list the same."""
    measure.main(["--quick", "--large", "--json", "--dir", str(tmp_path), row])
    said = json.loads(capsys.readouterr().out)
    assert said["rows"] or said["skipped"]
    for found in said["rows"]:
        assert found["measure"].startswith(row)
        assert math.isfinite(found["product"]) and found["verdict"] == ""
    assert list(tmp_path.iterdir()) == []


# --- long sessions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sessions.CONTESTANTS)
def test_everybody_reads_back_the_end_of_what_they_wrote(name: str, tmp_path: Path) -> None:
    if name == "rocksdict":
        pytest.importorskip("rocksdict")
    sessions.build(name, tmp_path, 300)
    found = sessions.tail(name, tmp_path, 100)
    assert found["last"] == 299
    assert found["seconds"] > 0 and found["rchar"] >= 0


def test_a_session_that_is_not_as_it_was_written_is_noticed(tmp_path: Path) -> None:
    sessions.build("JSONL", tmp_path, 100)
    file = tmp_path / "session.jsonl"
    file.write_text(file.read_text().replace("assistant", "assistent"))
    with pytest.raises(ValueError, match="not as they were written"):
        sessions.tail("JSONL", tmp_path, 50)


def test_what_was_kept_is_put_back_in_place(tmp_path: Path) -> None:
    """An index may tell a copy of its store by its files' inodes, so that they must stay the same."""
    where = tmp_path / "where"
    (where / "sub").mkdir(parents=True)
    for name in ("changed", "longer", "gone", "sub/same"):
        (where / name).write_text(name)
    inodes = {name: (where / name).stat().st_ino for name in ("changed", "longer")}
    kept = Kept(where, tmp_path / "copy")
    for _ in range(2):
        with kept.used() as used:
            (used / "changed").write_text("CHANGED")
            (used / "longer").write_text("longer than it was")
            (used / "gone").unlink()
            (used / "sub" / "new").write_text("new")
        found = {str(file.relative_to(where)): file.read_text() for file in where.rglob("*") if file.is_file()}
        assert found == {name: name for name in ("changed", "longer", "gone", "sub/same")}
        assert {name: (where / name).stat().st_ino for name in inodes} == inodes


# --- on the loop ------------------------------------------------------------------------------------


def _stored_by_scopelog(where: Path) -> list[Any]:
    with Store.open(where / "store") as store, store.reader("bench") as reader:
        return [e.element for e in reader.read(list_of("chat", "messages"))]


def _stored_by_sqlite(name: str) -> Callable[[Path], list[Any]]:
    return lambda where: [json.loads(body) for (body,) in _rows(where / name, "SELECT body FROM records")]


STORED = {
    "scopelog": _stored_by_scopelog,
    loops.ONE_BY_ONE: _stored_by_sqlite("one.db"),
    loops.EXECUTOR: _stored_by_sqlite("executor.db"),
    loops.GROUPED: _stored_by_sqlite("grouped.db"),
}


@pytest.mark.parametrize("name", STORED)
def test_tasks_store_every_record_they_commit(name: str, tmp_path: Path) -> None:
    records = records_of(50, 60)

    async def commit_all() -> None:
        async with loops.CONTESTANTS[name](tmp_path) as commit:
            assert await loops.throughput(commit, records, 16) > 0

    asyncio.run(commit_all())
    assert sorted(STORED[name](tmp_path), key=lambda record: record["seq"]) == records


@pytest.mark.parametrize("name", loops.CONTESTANTS)
def test_on_a_busy_loop_every_commit_is_counted(name: str, tmp_path: Path) -> None:
    async def commit_some() -> list[float]:
        async with loops.CONTESTANTS[name](tmp_path) as commit:
            return await loops.saturated(commit, records_of(10), 4, 0.02)

    taken = asyncio.run(commit_some())
    assert len(taken) >= 4
    if name in STORED:
        assert len(STORED[name](tmp_path)) == len(taken)


def _streamed(reader: SessionReader, operation: str) -> str:
    """The text of the response that the operation is streaming."""
    (response,) = [one.response for one in recover(reader) if one.id == operation]
    assert response is not None
    text: str = response.fold["content"][0]["text"]
    return text


def test_streams_store_the_same_whoever_stores_them(tmp_path: Path) -> None:
    count, seconds = 3, 0.1
    expected = ["".join(f" word{n * 7919 % 9973}" for n in range(int(seconds * streams.RATE)))] * count
    reduced = (streams.LANES, streams.LANE_SESSIONS, streams.FED)
    for number, name in enumerate((streams.JOINED, streams.SESSIONS, streams.PLAIN, "sqlite NORMAL, rows", *reduced)):
        where = tmp_path / str(number)
        where.mkdir()
        assert 0 < asyncio.run(streams.share(streams.CONTESTANTS[name], where, count, seconds)) < 10
        found = ["" for _ in range(count)]
        if name.startswith("sqlite"):
            for stream, body in _rows(where / "deltas.db", "SELECT stream, body FROM deltas ORDER BY id"):
                found[stream] += json.loads(body)["d"]
        else:
            with Store.open(where / "store") as store:
                for stream in range(count):
                    session = f"s-{stream}" if name in (streams.SESSIONS, streams.LANE_SESSIONS) else "bench"
                    with store.reader(session) as reader:
                        if name in reduced:
                            found[stream] = _streamed(reader, f"op-{stream}")
                            continue
                        pending = reader.read(ephemeral(f"op-{stream}").list_of("pi", "pending"))
                        found[stream] = "".join(e.element["d"] for e in pending)
        assert found == expected, name


@pytest.mark.parametrize("size", [60, 200])
def test_records_have_the_size_asked_for(size: int) -> None:
    records = records_of(100, size)
    assert {len(json.dumps(record)) for record in records} == {size}
    assert len({json.dumps(record) for record in records}) == 100


# --- messages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", deltas.CONTESTANTS)
def test_deltas_into_a_short_and_a_long_message_are_timed(name: str, tmp_path: Path) -> None:
    found = deltas.measured(name, tmp_path, 30, 300, 3)
    assert all(0 < seconds < 1 for kind in ("median", "mean") for seconds in found[kind])


def test_a_message_that_is_not_what_has_streamed_is_noticed(tmp_path: Path) -> None:
    frames = [*opening(8), *(text_delta(record.d) for record in interrupted.streaming(20) if record.k == "delta")]
    file = tmp_path / "frames.jsonl"
    file.write_text("".join(json.dumps(frame) + "\n" for frame in frames))
    assert interrupted.recovered("JSONL frames", tmp_path)["digest"] == interrupted.expected(20)
    file.write_text("".join(json.dumps(frame) + "\n" for frame in frames[:-1]))
    assert interrupted.recovered("JSONL frames", tmp_path)["digest"] != interrupted.expected(20)
