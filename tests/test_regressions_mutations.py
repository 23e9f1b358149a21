"""What mutated bytes found: each test tells what went wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.forgeries import forge
from fuzz.mutations import apply
from fuzz.shapes import ROOT, shape
from fuzz.simdisk import SimDisk
from scopelog import CorruptLog, ManualClock, Store, list_of
from scopelog_engine.codec import compress
from scopelog_engine.layout import KIND_BATCH, KIND_INDEX
from scopelog_engine.lines import nests_deeper
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


@pytest.mark.fault(29, 30, rig="M")
def test_a_nest_beyond_the_limit_is_damage_wherever_it_is_read_from() -> None:
    """A payload of two hundred thousand brackets under good checksums exhausted the stack, and the reader said that it
    should be read from fewer calls deep: which would have helped nobody."""
    one = shape("talk")
    nest = b"[" * 200_000 + b"]" * 200_000
    for raw in (nest + b"\n", b'[1,0,[1,"]]]]\\"[",' + nest + b"]]\n"):
        data = forge(one.main, 2, compress(raw), raw_length=len(raw))
        disk = SimDisk()
        for path, content in (one.files | {MAIN: data}).items():
            disk.write_file(f"{ROOT}/{path}", content)
        with Store.open(ROOT, fs=disk, clock=ManualClock()) as store:
            [found] = unsound(store.check())
            assert (found.severity, found.offset) == ("corrupt", one.main.frames[2].offset)
            with pytest.raises(CorruptLog) as caught, store.session(CHAT) as session:
                session.read(list_of("n", "log"))
            assert caught.value.offset == one.main.frames[2].offset


@pytest.mark.fault(29, rig="M")
def test_what_nests_as_deep_as_it_may_is_told_from_what_does_not() -> None:
    for text, depth in ((b'["[[[", {"a": [1, "]"]}]', 3), (b'"\\"[[["', 0), (b"[]" * 9, 1), (b'["\\\\", []]', 2)):
        assert not nests_deeper(text, depth), text
        assert depth == 0 or nests_deeper(text, depth - 1), text


@pytest.mark.damages
@pytest.mark.fault(9, rig="M")
def test_a_turned_bit_does_not_make_a_batch_a_foreign_frame() -> None:
    """One bit of a batch frame's first byte makes its magic one of those that foreign frames have (51 and 59). In a
    closed stretch, far below the end, it was taken for one and skipped: a durable element was missing from the list,
    and no error said so. Now a foreign frame must fill its place to the byte."""
    log = shape("stretches").main
    newest = [frame for frame in log.frames if frame.kind == KIND_INDEX][-1]
    batches = [frame for frame in log.frames if frame.kind == KIND_BATCH and frame.end <= newest.offset]
    assert len(batches) > 20
    for frame in batches[1:]:  # the first one holds no element of this list
        for bit in (3, 1, 2):
            disk = SimDisk()
            for path, content in apply(shape("stretches"), f"flip:main.zst:{frame.offset}:{bit}").items():
                disk.write_file(f"{ROOT}/{path}", content)
            with Store.open(ROOT, fs=disk, clock=ManualClock()) as store, store.reader(CHAT) as reader:
                with pytest.raises(CorruptLog) as up:
                    reader.read(list_of("n", "log"))
                with pytest.raises(CorruptLog) as down:
                    reader.read(list_of("n", "log"), order="desc")
                assert up.value.offset == down.value.offset == frame.offset
