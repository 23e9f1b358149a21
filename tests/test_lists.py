"""``lists``: which lists an ephemeral scope holds, stored, staged, trimmed, deleted and retired."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from scopelog import SESSION, HandleClosed, InvalidAddress, InvalidInput, ManualClock, Store, ephemeral
from scopelog.aio import AsyncSession, AsyncSessionReader

OP = ephemeral("op")


def test_lists_are_those_with_elements(store_path: Path) -> None:
    with Store.open(store_path, clock=ManualClock()) as store, store.session("s") as session:
        assert session.lists(OP, "out") == []
        lists = {key: OP.list_of("out", key) for key in ("b", "a/2", "a/1", "é")}
        last = {}
        for n in range(1500):  # several stretches
            for key, target in lists.items():
                last[key] = session.append(target, [n, "x" * 60])
        session.append(OP.list_of("other", "z"), 1)
        assert session.lists(OP, "out") == ["a/1", "a/2", "b", "é"]
        session.flush()
        session.commit([lists["b"].trim(last["b"]), lists["é"].delete(), lists["a/2"].trim(last["a/2"] - 4)])
        with store.reader("s") as reader:
            assert reader.lists(OP, "out") == session.lists(OP, "out") == ["a/1", "a/2"]
            assert reader.lists(OP, "out", "a/2") == ["a/2"] and reader.lists(ephemeral("none"), "out") == []
        session.append(lists["b"], "staged")
        assert session.lists(OP, "out") == ["a/1", "a/2", "b"]
        session.commit([OP.retire()])
        assert session.lists(OP, "out") == []
        session.append(lists["é"], "the next life")
        assert session.lists(OP, "out") == ["é"]


def test_tasks_get_the_same_answers(store_path: Path) -> None:
    async def ask(session: AsyncSession, reader: AsyncSessionReader) -> list[list[str]]:
        return [await session.lists(OP, "out"), await session.lists(OP, "out", "b"), await reader.lists(OP, "out")]

    with Store.open(store_path, clock=ManualClock()) as store, store.session("s") as session:
        session.commit([OP.list_of("out", "a").append(1)])
        session.append(OP.list_of("out", "b"), 2)
        with store.reader("s") as reader:
            assert asyncio.run(ask(AsyncSession(session), AsyncSessionReader(reader))) == [["a", "b"], ["b"], ["a"]]


def test_the_session_scope_and_nonsense_are_refused(store_path: Path) -> None:
    wrong: Any
    with Store.open(store_path) as store:
        session = store.session("s")
        for wrong in (SESSION, "op", None):
            with pytest.raises(InvalidInput, match="an ephemeral scope is wanted"):
                session.lists(wrong, "out")
        with pytest.raises(InvalidAddress):
            session.lists(OP, "\ud800")
        session.close()
        with pytest.raises(HandleClosed):
            session.lists(OP, "out")
