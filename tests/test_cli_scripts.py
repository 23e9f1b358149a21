"""commit and retire on the command line: one atomic commit each, refused whole or stored whole, also when killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scopelog import List, Scope, Store, ephemeral, list_of, value
from scopelog.cli import main
from scopelog_engine.fs import OsFile, OsFileSystem

from .cli_rig import call, fill, objects, refused, spawn, started
from .stores import image_of

WRITES: list[dict[str, Any]] = [
    {"op": "append", "list": "chat/messages", "element": {"text": "hi"}, "tag": "turn-1"},
    {"op": "append", "list": "short", "element": None},
    {"op": "set", "value": "chat/state", "data": ["a", 1, None]},
    {"op": "set", "value": "chat/other", "data": 2},
    {"op": "delete", "value": "chat/other"},
    {"op": "delete", "list": "chat/gone"},
    {"op": "trim", "list": "short", "upto": 0},
    {"op": "retire", "scope": "op-1"},
]


def commit(store: Path, writes: Any, *options: object, session: str = "s") -> Any:
    file = store.with_name("writes.json")
    file.write_text(writes if isinstance(writes, str) else json.dumps(writes))
    return call("commit", store, session, file, *options)


def seen(store: Path, session: str = "s") -> list[dict[str, Any]]:
    rows = objects(call("cat", store, session, "--json").stdout_bytes)
    for row in rows:
        del row["time"]
    return rows


def test_every_kind_of_write_in_one_commit(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([ephemeral("op-1").value("n", "k").set(1)])
    result = commit(store_path, WRITES)
    assert (result.exit_code, result.stdout) == (0, "committed 8 writes, sequences 2 to 9\n")
    rows = seen(store_path)
    assert [(row["seq"], row["op"]) for row in rows] == [(n + 2, write["op"]) for n, write in enumerate(WRITES)]
    assert rows[0]["element"] == {"text": "hi"} and rows[0]["tag"] == "turn-1"
    assert (rows[1]["namespace"], rows[1]["key"], rows[1]["element"]) == ("record", "short", None)
    assert (rows[4]["kind"], rows[5]["kind"], rows[6]["upto"], rows[7]["retired"]) == ("value", "list", 0, "op-1")
    [found] = objects(call("stat", store_path, "s", "--json").stdout_bytes)
    assert (found["frames"], found["commits"], found["scopes"]) == (1, 1, [])


def test_lines_and_an_array_mean_the_same(store_path: Path, tmp_path: Path) -> None:
    lines = "\n \n".join(json.dumps(write) for write in WRITES)
    file = tmp_path / "writes.jsonl"
    file.write_text(lines)
    assert objects(call("commit", store_path, "lines", file, "--json").stdout_bytes) == [
        {"first": 1, "last": 8, "writes": 8}
    ]
    assert objects(commit(store_path, "\n " + json.dumps(WRITES), "--json", session="array").stdout_bytes) == [
        {"first": 1, "last": 8, "writes": 8}
    ]
    assert seen(store_path, "lines") == seen(store_path, "array")


def test_elements_that_other_tools_lose_survive(store_path: Path) -> None:
    texts = [r'"\ud800"', r'{"\udfff":"a\u0000b"}', "1" * 60, "-0.0", "1e300", '"\u2028"']
    array = ",".join(f'"op":"append","list":"l","element":{text}' for text in texts)
    assert commit(store_path, "[{" + array.replace(',"op"', '},{"op"') + "}]").exit_code == 0
    assert [repr(row["element"]) for row in seen(store_path)] == [repr(json.loads(text)) for text in texts]


def test_a_commit_to_an_ephemeral_scope_and_its_durability(store_path: Path) -> None:
    writes = [{"op": "append", "list": "n/l", "element": 1}, {"op": "set", "value": "n/v", "data": 2}]
    result = commit(store_path, writes, "--scope", "op-1", "--json", "--durability", "power")
    assert objects(result.stdout_bytes) == [{"first": 1, "last": 2, "writes": 2}]
    assert [row["scope"] for row in seen(store_path)] == ["op-1", "op-1"]
    result = commit(store_path, [{"op": "append", "list": "n/l", "element": 3}], "--durability", "process")
    assert result.stdout == "committed 1 write, sequence 3\n"
    refused(commit(store_path, [WRITES[7]], "--scope", "op-1"), 2, "write 1 was refused: a scope is retired by")
    refused(commit(store_path, writes, "--scope", ""), 2, "the scope id is empty")


@pytest.mark.parametrize(
    ("write", "cause"),
    [
        (7, "it is a int"),
        ([], "it is a list"),
        ({}, "its op is None"),
        ({"op": "push", "list": "l"}, "its op is 'push'"),
        ({"op": ["append"], "list": "l"}, "its op is ['append']"),
        ({"op": "delete list", "list": "l"}, "its op is 'delete list'"),
        ({"op": "append", "element": 1}, "its list is missing"),
        ({"op": "append", "list": "l"}, "its element is missing"),
        ({"op": "append", "list": "l", "element": 1, "tags": "t"}, "append takes no 'tags'"),
        ({"op": "append", "list": 5, "element": 1}, "its list is a int"),
        ({"op": "append", "list": "/k", "element": 1}, "names no list"),
        ({"op": "append", "list": "l", "element": 1, "tag": ""}, "the tag is empty"),
        ({"op": "append", "list": "l", "element": 1, "tag": 5}, "the tag is a int"),
        ({"op": "append", "list": "scopelog.session/l", "element": 1}, "is scopelog's own"),
        ({"op": "append", "list": "n/" + "k" * 1025, "element": 1}, "the limit is 1024"),
        ({"op": "set", "value": "n/"}, "its data is missing"),
        ({"op": "set", "value": "n/", "data": 1}, "names no value"),
        ({"op": "delete"}, "its value is missing"),
        ({"op": "delete", "list": "l", "value": "v"}, "delete takes no 'value'"),
        ({"op": "trim", "list": "l", "upto": -1}, "upto is -1"),
        ({"op": "trim", "list": "l", "upto": "3"}, "upto is '3'"),
        ({"op": "retire", "scope": ""}, "the scope id is empty"),
        ({"op": "retire", "scope": 5}, "the scope id is a int"),
    ],
)
def test_a_malformed_write_is_named_and_nothing_is_stored(store_path: Path, write: Any, cause: str) -> None:
    fill(store_path, 1)
    before = image_of(store_path)
    result = commit(store_path, [WRITES[0], write, WRITES[1]])
    refused(result, 2, "write 2 was refused: ")
    refused(result, 2, cause)
    lines = f"{json.dumps(WRITES[0])}\n\n{json.dumps(write)}\n"
    if not isinstance(write, list):
        refused(commit(store_path, lines, session="new"), 2, "line 3 was refused: ")
    assert image_of(store_path) == before


def test_input_that_is_no_json_is_refused_before_anything_is_made(store_path: Path) -> None:
    for text, cause in (
        ("", "the commit is empty"),
        ("[]", "the commit is empty"),
        ("[1", "the array of writes is not JSON"),
        ('[{"op":"set","value":"v","data":NaN}]', "the array of writes is not JSON"),
        ('{"op":"set","value":"v","data":1}\n{"op"', "line 2 is not JSON"),
        ('{"op":"set","value":"v","data":Infinity}', "line 1 holds a number"),
        ('[{"op":"set","value":"v","data":' + "[" * 300 + "]" * 300 + "}]", "write 1 was refused: the element nests"),
        ("[" * 5000, "nested too deep"),
        ("\0", "holds a zero byte"),
    ):
        refused(commit(store_path, text), 2, cause)
        assert not (store_path / "s.session").exists()
    assert call("commit", store_path, "s", store_path / "missing").exit_code == 2
    assert call("commit", store_path, "s", "--durability", "hope").exit_code == 2
    refused(commit(store_path, WRITES, session=""), 2, "the session id is empty")


def test_a_session_in_other_hands_is_not_written_to(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        session.commit([value("n", "v").set(1)])
        for command in (["commit", store_path, "s"], ["retire", store_path, "s", "op-1"]):
            result = spawn(*command, stdin=json.dumps(WRITES).encode())
            assert result.returncode == 4 and b"error: " in result.stderr and result.stdout == b""


def test_scripts_read_from_a_pipe_of_another_program(store_path: Path) -> None:
    with started("commit", store_path, "s", "--json") as (running, stdin, stdout, _):
        for write in WRITES:
            stdin.write(json.dumps(write).encode() + b"\n")
            stdin.flush()
        stdin.close()
        assert json.loads(stdout.read()) == {"first": 1, "last": 8, "writes": 8}
        assert running.wait(timeout=60) == 0


# --- retire -----------------------------------------------------------------------------------------


def test_retire_says_what_was_alive(store_path: Path) -> None:
    with Store.open(store_path) as store, store.session("s") as session:
        for name in ("op-1", "op-2", "op 3"):
            session.commit([ephemeral(name).list_of("n", "k").append(1)])
    result = call("retire", store_path, "s", "op-1", "nobody", "op-1")
    assert (result.exit_code, result.stdout) == (0, "retired op-1\nnobody was not alive\n")
    [found] = objects(call("retire", store_path, "s", "op 3", "op-1", "--json").stdout_bytes)
    assert found == {"first": 6, "last": 7, "alive": {"op 3": True, "op-1": False}}
    [found] = objects(call("stat", store_path, "s", "--json").stdout_bytes)
    assert found["scopes"] == ["op-2"] and found["commits"] == 2
    assert not list(store_path.glob("s.session/*0001.scope.zst"))


def test_retire_refuses_what_is_not_there(store_path: Path) -> None:
    refused(call("retire", store_path, "s", "op"), 2, "is not a scopelog store")
    fill(store_path, 1)
    before = image_of(store_path)
    refused(call("retire", store_path, "nobody", "op"), 2, "there is no session")
    refused(call("retire", store_path, "s", "op", ""), 2, "the scope id is empty")
    assert call("retire", store_path, "s").exit_code == 2
    assert image_of(store_path) == before


# --- kill -9 ----------------------------------------------------------------------------------------


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """This process ends with SIGKILL instead of the disk operation of that number, or after half of it."""
    left = [step]

    def counted(call: Callable[..., Any], halve: bool) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                if halve:
                    file, data, offset = arguments
                    call(file, data[: len(data) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return wrapped

    for owner, names in (
        (OsFile, ("pwrite", "truncate", "allocate", "sync")),
        (OsFileSystem, ("create", "open_or_create", "make_dir", "rename", "unlink", "sync_dir")),
    ):
        for name in names:
            setattr(owner, name, counted(getattr(owner, name), name == "pwrite"))
    yield


@pytest.mark.parametrize("scope", [[], ["--scope", "op"]], ids=["session", "ephemeral"])
@pytest.mark.parametrize("fresh", [True, False], ids=["new", "known"])
def test_a_commit_that_is_killed_is_stored_whole_or_not_at_all(
    store_path: Path, tmp_path: Path, scope: list[str], fresh: bool
) -> None:
    """SIGKILL at every disk operation of the command, halfway through writes too. What was printed was stored."""
    writes = [{"op": "append", "list": "n/l", "element": n} for n in range(20)]
    file = tmp_path / "writes.json"
    file.write_text(json.dumps(writes))
    target: List[Scope] = ephemeral("op").list_of("n", "l") if scope else list_of("n", "l")
    stored = outcomes = 0
    for step in range(1, 200):
        root = store_path if not fresh else store_path.with_name(f"store-{step}")
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            os.dup2(write_end, 1)
            sys.stdout = os.fdopen(1, "w")
            try:
                with killed_at(step):
                    main(["commit", str(root), "s", str(file), "--json", *scope])
            except SystemExit as ended:
                os._exit(ended.code if isinstance(ended.code, int) else 0)
            os._exit(99)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            printed = pipe.read()
        status = os.waitpid(pid, 0)[1]
        before = 0 if fresh else stored
        found = 0
        if list(root.glob("*/main.zst")):
            with Store.open(root) as store, store.session("s") as session:
                elements = [element.element for element in session.read(target)]
            assert len(elements) % 20 == 0 and elements == [*range(20)] * (len(elements) // 20)
            found = len(elements)
        assert found in (before, before + 20)
        if printed:
            assert json.loads(printed)["writes"] == 20 and found == before + 20
        stored = found
        outcomes |= 1 if found > before else 2
        if status == 0:
            assert printed
            break
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    else:
        raise AssertionError("the command did not end")
    assert step > 5 and outcomes == 3
