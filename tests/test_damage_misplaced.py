"""Sidecars and main logs that do not fit each other: copied, renamed, retired, restored from a backup."""

from __future__ import annotations

from pathlib import Path

import pytest

from scopelog import (
    LogRecord,
    ManualClock,
    Store,
    ephemeral,
)

from .stores import (
    CHAT,
    DELTAS,
    MAIN,
    MESSAGES,
    TITLE,
    Image,
    bare,
    build,
    image_of,
    lay,
    records,
    sidecars_of,
)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    found = build(tmp_path_factory.mktemp("unclean") / "store", closed=False)
    return found | {MAIN: bare(found[MAIN])}


@pytest.fixture(scope="module")
def stored(image: Image, tmp_path_factory: pytest.TempPathFactory) -> list[LogRecord]:
    with Store.open(lay(tmp_path_factory.mktemp("stored") / "store", image)) as store:
        return records(store)


@pytest.mark.fault(31, rig="M")
def test_sidecar_copied_or_renamed_is_set_aside(image: Image, stored: list[LogRecord], store_path: Path) -> None:
    """Its header decides, not its name; the same life is never read twice."""
    [name] = sidecars_of(image)
    moved = f"{name.split('/')[0]}/{99:016d}.scope.zst"
    with Store.open(lay(store_path, image | {moved: image[name]}), clock=ManualClock()) as store:
        assert records(store) == stored
        with store.session(CHAT) as session:
            assert [aside.path for aside in session.recovery.set_aside] == [str(store_path / moved)]
            assert records(store) == stored
            session.commit([DELTAS.append("after")])
        assert [r.value for r in records(store)] == [r.value for r in stored] + ["after"]
    renamed = {moved if key == name else key: data for key, data in image.items()}
    with Store.open(lay(store_path, renamed), clock=ManualClock()) as store, store.session(CHAT) as session:
        assert [aside.path for aside in session.recovery.set_aside] == [str(store_path / moved)]
        assert records(store) == [record for record in stored if record.scope is None]
        assert session.commit([DELTAS.append("after")]).first > stored[-1].seq


@pytest.mark.fault(31, rig="M")
def test_sidecar_of_another_session_or_store_is_set_aside(
    image: Image, stored: list[LogRecord], store_path: Path, tmp_path: Path
) -> None:
    [name] = sidecars_of(image)
    folder = name.split("/")[0]
    with Store.open(lay(store_path, image), clock=ManualClock()) as store, store.session("other") as session:
        for number in range(9):
            session.commit([MESSAGES.append(number)])
        session.commit([DELTAS.append("of the other session")])
    foreign = image_of(store_path)
    [other] = [found for found in sidecars_of(foreign) if found.startswith("other")]
    strange = build(tmp_path / "strange", closed=False)
    guests = {
        f"{folder}/{other.split('/')[1]}": foreign[other],
        f"{folder}/{77:016d}.scope.zst": strange[sidecars_of(strange)[0]],
        f"{folder}/{78:016d}.scope.zst": image[MAIN],
    }
    with Store.open(lay(store_path, image | guests), clock=ManualClock()) as store:
        assert records(store) == stored
        with store.session(CHAT) as session:
            assert {aside.path for aside in session.recovery.set_aside} == {str(store_path / guest) for guest in guests}
            for aside in session.recovery.set_aside:
                assert Path(aside.kept).read_bytes() == guests[str(Path(aside.path).relative_to(store_path))]
                assert aside.reason
            assert records(store) == stored
            session.commit([DELTAS.append("after")])


@pytest.mark.fault(31, rig="M")
def test_sidecar_of_a_retired_life_never_comes_back(image: Image, store_path: Path) -> None:
    """Put back by a restore, or left by a lost unlink: what was retired stays retired, also beside a new life."""
    [name] = sidecars_of(image)
    with Store.open(lay(store_path, image), clock=ManualClock()) as store:
        with store.session(CHAT) as session:
            session.commit([ephemeral("op-1").retire()])
            assert not (store_path / name).exists()
            session.commit([DELTAS.append("new life")])
        after = records(store)
        for again in range(2):
            (store_path / name).write_bytes(image[name])
            assert records(store) == after
            with store.session(CHAT) as session:
                assert session.recovery.swept == [str(store_path / name)], again
                assert session.recovery.set_aside == []
                assert not (store_path / name).exists()
                assert [element.element for element in session.read(DELTAS)] == ["new life"]
        assert records(store) == after


@pytest.mark.fault(32, rig="M")
def test_main_restored_from_an_older_backup(store_path: Path) -> None:
    """Main opens at its own end; scopes that build on more than it holds are set aside; no number is used again."""
    early, late = ephemeral("early").list_of("n", "k"), ephemeral("late").list_of("n", "k")
    with Store.open(store_path, clock=ManualClock()) as store, store.session(CHAT) as session:
        session.commit([MESSAGES.append("one")])
        session.commit([early.append("e1")])
        backup = bare((store_path / MAIN).read_bytes())
        for text in ("two", "three"):
            session.commit([MESSAGES.append(text)])
        session.commit([late.append("l1")])
        last = session.commit([late.append("l2")]).last
    (store_path / MAIN).write_bytes(backup)
    with Store.open(store_path, clock=ManualClock()) as store:
        assert [record.value for record in records(store)] == ["one", "e1"]
        with store.session(CHAT) as session:
            assert session.scopes() == ["early"]
            [aside] = session.recovery.set_aside
            assert "builds on" in aside.reason
            assert [element.element for element in session.read(MESSAGES)] == ["one"]
            assert session.commit([MESSAGES.append("after"), TITLE.set("after")]).first > last
        with store.session(CHAT) as session:
            assert not session.recovery
            assert [element.element for element in session.read(MESSAGES)] == ["one", "after"]
