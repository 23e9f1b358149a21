"""scopelog follow: records as they come, from a process of its own."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import IO, Any

from scopelog import Position, Store, ephemeral, list_of
from tests.cli_rig import call, fill, objects, refused, started

LINES = list_of("record", "lines")


def line_of(stream: IO[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stream.readline())
    return found


def test_what_another_process_writes_is_printed_until_the_session_is_deleted(store_path: Path) -> None:
    fill(store_path, 1)
    with started("follow", store_path, "s", "--json", "--positions") as (child, _, out, err):
        assert line_of(out)["element"] == 1
        first = line_of(out)["position"]
        with Store.open(store_path) as store:
            with store.session("s") as session:
                session.commit([ephemeral("op").list_of("n", "x").append("a")])
                record = line_of(out)
                assert (record["scope"], record["element"], record["op"]) == ("op", "a", "append")
                assert line_of(out)["position"] != first
                session.commit([LINES.append(2), ephemeral("op").retire()])
                record = line_of(out)
                assert (record["op"], record["retired"], record["scope"]) == ("retire", "op", None)
                line_of(out)
                assert line_of(out)["element"] == 2
                last = line_of(out)["position"]
            store.delete_session("s")
        assert line_of(out) == {"deleted": True}
        assert child.wait(60) == 0 and err.read() == b""
    assert Position.parse(last).sequence == 4


def test_from_a_position_and_only_what_is_new(store_path: Path) -> None:
    fill(store_path, 1)
    found = objects(call("follow", store_path, "s", "--json", "--positions", "--timeout", "0").stdout_bytes)
    assert [record.get("element") for record in found] == [1, None]
    assert call("follow", store_path, "s", "--new", "--timeout", "0").stdout == ""
    fill(store_path, 2, 3)
    resumed = call("follow", store_path, "s", "--from", found[1]["position"], "--json", "--timeout", "0")
    assert [record["element"] for record in objects(resumed.stdout_bytes)] == [2, 3]
    wrong = str(Position.parse(found[1]["position"])._replace(sequence=77))
    restarted = objects(call("follow", store_path, "s", "--from", wrong, "--json", "--timeout", "0").stdout_bytes)
    assert "no boundary" in restarted[0]["restart"] and [r["element"] for r in restarted[1:]] == [1, 2, 3]
    plain = call("follow", store_path, "s", "--from", wrong, "--positions", "--timeout", "0")
    assert "all there is follows again" in plain.stderr
    assert plain.stdout.splitlines()[-1].startswith("position: ")
    assert plain.stdout.splitlines()[:-1] == call("cat", store_path, "s").stdout.splitlines()


def test_one_scope_and_what_is_durable(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([LINES.append(1)])
        session.commit([ephemeral("op").list_of("n", "x").append("a")])
        only = call("follow", store_path, "s", "--scope", "op", "--json", "--timeout", "0")
        assert [record["element"] for record in objects(only.stdout_bytes)] == ["a"]
        session.commit([LINES.append(2)])
        durable = call("follow", store_path, "s", "--durable", "--json", "--timeout", "0")
        assert [record["element"] for record in objects(durable.stdout_bytes)] == [1]


def test_refusals(store_path: Path) -> None:
    fill(store_path, 1)
    refused(call("follow", store_path, "s", "--from", "nonsense"), 2, "no position")
    refused(call("follow", store_path, "none"), 2, "no session")
    refused(call("follow", store_path / "elsewhere", "s"), 2, "not a scopelog store")
    assert call("follow", store_path, "s", "--timeout", "-1").exit_code == 2
    both = call("follow", store_path, "s", "--new", "--from", "x")
    assert both.exit_code == 2 and "means nothing with --from" in both.stderr


def test_an_interrupt_ends_it_quietly(store_path: Path) -> None:
    fill(store_path, 1)
    with started("follow", store_path, "s", "--json") as (child, _, out, err):
        line_of(out)
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130 and err.read() == b""


def test_a_reader_that_goes_away_ends_it_quietly(store_path: Path) -> None:
    fill(store_path, 1)
    with started("follow", store_path, "s", "--json") as (child, _, out, err):
        line_of(out)
        out.close()
        fill(store_path, 2)
        assert child.wait(60) == 141 and err.read() == b""
