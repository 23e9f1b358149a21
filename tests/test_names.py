"""Ids, addresses, tags, cursors and settings: what is refused, with nothing taken; and hostile ids that are not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scopelog import (
    InvalidAddress,
    InvalidId,
    InvalidInput,
    ManualClock,
    Session,
    Store,
    ephemeral,
    list_of,
    value,
)
from scopelog_engine.layout import MAX_SEQUENCE

from .stores import DELTAS, MESSAGES, SCOPE, TITLE, assert_refused


@pytest.fixture
def session(store_path: Path) -> Iterator[Session]:
    with Store.open(store_path, clock=ManualClock()) as store, store.session("s") as session:
        session.commit([MESSAGES.append("before"), TITLE.set("before")])
        session.commit([DELTAS.append("before")])
        session.append(MESSAGES, "staged")
        yield session


BAD_IDS: dict[str, Any] = {
    "empty": "",
    "lone surrogate": "a\ud800",
    "300 characters": "x" * 300,
    "181 bytes": "x" * 181,
    "61 characters of 3 bytes encoded": " " * 61,
    "21 snowmen": "\u2603" * 21,
    "none": None,
    "bytes": b"id",
    "int": 7,
    "list": ["id"],
}
HOSTILE_IDS = [
    *(
        "..",
        ".",
        "/",
        "a/b",
        "../../etc/passwd",
        "\\",
        "\0",
        "a\0b",
        "CON",
        "con",
        "nul.txt",
        "LOCK",
        "store.zst",
        "trash",
    ),
    *(
        "main.zst",
        "a.session",
        "%2e",
        "%",
        "~",
        "-rf",
        " ",
        "a ",
        "a.",
        "\n",
        "\u2028",
        "é",
        "e\u0301",
        "\U0001f600",
        "\u202e",
    ),
    *(
        "Case",
        "case",
        "CASE",
        "x" * 180,
        "X" * 180,
        "X" * 179 + "x",
        " " * 60,
        "\u2603" * 20,
        "*" * 180,
        "0" * 16 + ".scope.zst",
    ),
]


@pytest.mark.parametrize("what", BAD_IDS)
def test_malformed_id_is_refused(what: str, session: Session, store_path: Path) -> None:
    bad = BAD_IDS[what]
    store = Store.open(store_path, clock=ManualClock())
    calls: list[Callable[[Any], object]] = [store.session, store.reader, store.delete_session, ephemeral]
    for call in calls:
        with pytest.raises(InvalidId) as caught:
            call(bad)
        assert caught.value.cause and caught.value.remedy
    assert store.sessions() == ["s"]
    assert_refused(session, store_path, lambda: store.session(bad), InvalidId)


def test_hostile_ids_are_ids_like_any_other(tmp_path: Path) -> None:
    """No id escapes the store's directory, or meets another one on a case-blind disk."""
    path = tmp_path / "deep" / "store"
    with Store.open(path, clock=ManualClock()) as store:
        for name in HOSTILE_IDS:
            with store.session(name) as session:
                session.commit([MESSAGES.append(name)])
                for scope in HOSTILE_IDS:
                    session.append(ephemeral(scope).list_of("n", "k"), [name, scope])
                session.flush()
                assert session.scopes() == sorted(HOSTILE_IDS)
                session.commit([ephemeral(scope).retire() for scope in HOSTILE_IDS[5:]])
        assert store.sessions() == sorted(HOSTILE_IDS)
        folders = [entry.name for entry in path.iterdir() if entry.is_dir()]
        assert len({folder.casefold() for folder in folders}) == len(HOSTILE_IDS) == len(set(HOSTILE_IDS))
        for folder in folders:
            assert len(folder.encode()) <= 200 and folder.isascii() and folder == folder.lower()
        assert {entry.name for entry in path.iterdir()} - {*folders} == {"store.zst"}
        assert [entry.name for entry in path.parent.iterdir()] == ["store"]
        for name in HOSTILE_IDS:
            with store.reader(name) as reader:
                assert [element.element for element in reader.read(MESSAGES)] == [name]
                assert reader.scopes() == sorted(HOSTILE_IDS[:5])
                for scope in HOSTILE_IDS[:5]:
                    [element] = reader.read(ephemeral(scope).list_of("n", "k"))
                    assert element.element == [name, scope]
        store.delete_session("..")
        assert store.sessions() == sorted(set(HOSTILE_IDS) - {".."})
        assert path.parent.is_dir()


BAD_NAMES: list[Any] = ["\ud800", "x" * 1025, "é" * 513, None, b"a", 1, ["a"]]


@pytest.mark.parametrize("bad", ["", *BAD_NAMES])
def test_malformed_namespace_or_tag_is_refused(bad: Any, session: Session, store_path: Path) -> None:
    for make in (value, list_of, SCOPE.value, SCOPE.list_of):
        with pytest.raises(InvalidAddress):
            make(bad, "key")
    calls: list[Callable[[], object]] = [lambda: MESSAGES.append(1, bad), lambda: session.append(MESSAGES, 1, bad)]
    calls.append(lambda: session.read(MESSAGES, stop_at_tag=bad))
    for call in calls:
        if bad is not None:  # no tag
            with pytest.raises(InvalidAddress):
                call()
    if bad not in (None, ""):
        for call in (lambda: session.scan(bad), lambda: session.scan("chat", bad)):
            with pytest.raises(InvalidAddress):
                call()
    assert_refused(session, store_path, lambda: list_of(bad, "key"), InvalidAddress)


@pytest.mark.parametrize("bad", BAD_NAMES)
def test_malformed_key_is_refused(bad: Any, session: Session, store_path: Path) -> None:
    for make in (value, list_of, SCOPE.value, SCOPE.list_of):
        with pytest.raises(InvalidAddress):
            make("namespace", bad)
    assert_refused(session, store_path, lambda: value("namespace", bad), InvalidAddress)


@pytest.mark.parametrize("bad", [-1, True, False, 1.0, 1.5, "1", None, b"1", MAX_SEQUENCE + 1, -(2**63), math.nan])
def test_malformed_sequence_is_refused(bad: Any, session: Session, store_path: Path) -> None:
    calls: list[Callable[[], object]] = [lambda: MESSAGES.trim(bad)]
    if bad is not None:
        calls += [lambda: session.read(MESSAGES, cursor=bad)]
        if bad != MAX_SEQUENCE + 1:
            calls += [lambda: session.read(MESSAGES, limit=bad), lambda: session.read(MESSAGES, order=bad)]
    for call in calls:
        with pytest.raises(InvalidAddress):
            call()
    assert_refused(session, store_path, calls[-1], InvalidAddress)


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, True, "1", 60_001])
def test_malformed_settings_are_refused(bad: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        Store.open(tmp_path / "refused", window_ms=bad)
    assert not (tmp_path / "refused").exists()
