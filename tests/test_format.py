"""The worked example of engine/FORMAT.md, read by the real reader; and golden stores of every released format."""

from __future__ import annotations

import re
from pathlib import Path

import zstandard

from scopelog import SESSION, Durability, Store, list_of, value
from scopelog_engine.frame import Frame, parse_frame
from scopelog_engine.header import KIND_STORE, encode_header, new_header, parse_header
from scopelog_engine.layout import MAGIC_TAIL

FORMAT = Path(__file__).resolve().parents[1] / "engine" / "FORMAT.md"
STORE = "00112233445566778899aabbccddeeff"


def _block(language: str, text: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found.group(1)


def _example() -> bytes:
    text = _block("hex", FORMAT.read_text(encoding="utf-8"))
    return bytes.fromhex("".join(line for line in text.splitlines() if not line.startswith("#")))


def _store_with(main: bytes, root: Path) -> Path:
    directory = root / "demo.session"
    directory.mkdir(parents=True)
    (root / "store.zst").write_bytes(encode_header(new_header(KIND_STORE, STORE), epoch=0, sequence=0)[0])
    (directory / "main.zst").write_bytes(main)
    return root


def test_the_example_is_read_by_the_real_reader(tmp_path: Path) -> None:
    with Store.open(_store_with(_example(), tmp_path / "store")) as store:
        assert store.id == STORE
        assert store.check() == []
        with store.reader("demo") as reader:
            records = [(r.seq, r.op, r.key, r.value, r.tag, r.retired, r.time) for r in reader.records()]
            assert records == [
                (1, "append", "messages", {"text": "hi"}, "turn-1", None, 1_764_547_200_000),
                (2, "set", "state", "idle", None, None, 1_764_547_200_000),
                (3, "retire", None, None, None, "op-1", 1_764_547_200_250),
                (4, "append", "messages", "bye", None, None, 1_764_547_200_250),
            ]
            assert reader.durable_seq(SESSION, Durability.POWER) == 4
        with store.session("demo") as session:
            assert session.recovery.clean and not session.recovery
            assert session.epoch == 2
            assert session.get(value("chat", "state")) == "idle"
            assert session.commit([list_of("chat", "messages").append("more")]).first == 5
            assert [e.element for e in session.read(list_of("chat", "messages"))] == [{"text": "hi"}, "bye", "more"]


def test_the_examples_comments_name_the_offsets() -> None:
    data = _example()
    header, first = parse_header(data, "example")
    assert header.session == "demo"
    offsets, offset = [], 0
    while offset < len(data):
        frame = parse_frame(data, offset, 0, None)
        assert isinstance(frame, Frame)
        offsets.append(offset)
        offset = frame.end
    named = re.findall(r"^# .*? at (\d+)", _block("hex", FORMAT.read_text(encoding="utf-8")), re.MULTILINE)
    assert [int(number) for number in named] == offsets
    assert first.length == offsets[1]


def test_standard_zstd_prints_the_lines_of_the_example() -> None:
    reader = zstandard.ZstdDecompressor().stream_reader(_example(), read_across_frames=True)
    assert reader.read().decode("utf-8") == _block("json", FORMAT.read_text(encoding="utf-8"))


def test_every_magic_of_the_document_is_a_skippable_frame_of_zstd() -> None:
    magics = re.findall(r"`(5[0-9A-F]) 2A 4D 18`", FORMAT.read_text(encoding="utf-8"))
    assert {"50", "51", "52", "53", "54"} <= set(magics)
    assert bytes.fromhex("2a4d18") == MAGIC_TAIL
