"""What mutated bytes found: each test tells what went wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.mutations import apply
from fuzz.shapes import shape
from scopelog import CorruptLog, ManualClock, Store
from scopelog_engine.layout import KIND_INDEX
from tests.stores import CHAT, MAIN, image_of, lay, unsound


@pytest.mark.damages
@pytest.mark.fault(8, 31, rig="M")
def test_an_open_that_is_refused_for_an_old_damage_leaves_every_file_as_it_was(store_path: Path) -> None:
    """Damage in main far below its end hid which scopes were alive, and the open was refused with CorruptLog; but
    before that it had cut main's torn tail, set aside a sidecar that was copied, and swept a temporary file."""
    one = shape("stretches-lives")
    log = one.main
    old = next(frame for frame in log.frames if frame.kind == KIND_INDEX)
    name = f"zero:main.zst:{old.offset + 9}:4+twice:main.zst:{len(log.frames) - 1}"
    files = apply(one, f"{name}+clone:0000000000000001.scope.zst:0000000000000009.scope.zst")
    files[f"{MAIN}.tmp"] = b"left by a crash"
    lay(store_path, files)
    with Store.open(store_path, clock=ManualClock()) as store:
        for _ in range(2):
            with pytest.raises(CorruptLog) as caught:
                store.session(CHAT)
            assert (caught.value.path, caught.value.offset) == (str(store_path / MAIN), old.offset)
            assert {path: data for path, data in image_of(store_path).items() if "LOCK" not in path} == files


@pytest.mark.damages
@pytest.mark.fault(10, 31, rig="M")
def test_check_blames_the_file_that_is_of_another_session_and_no_other(store_path: Path) -> None:
    """Main of another session stood in the place of main: check took that session for the directory's, and called every
    sidecar, all of them sound, foreign and corrupt. A sidecar of another session beside a main without a header was
    passed over, because there was nothing to hold it against."""
    one = shape("talk")
    with Store.open(lay(store_path, apply(one, "take:main.zst:session:main.zst")), clock=ManualClock()) as store:
        assert [(f.path, f.reason) for f in unsound(store.check())] == [(str(store_path / MAIN), "foreign")]
    [car] = [one.short(log.path) for log in one.sidecars]
    files = apply(one, f"flip:main.zst:20:1+take:{car}:session:{car}")
    with Store.open(lay(store_path, files), clock=ManualClock()) as store:
        found = [(f.path, f.reason) for f in unsound(store.check())]
        assert found[0][0] == str(store_path / MAIN)
        assert found[1:] == [(str(store_path / one.path(car)), "foreign")]
