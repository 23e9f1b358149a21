"""The real packages, Chord and pi-ai 0.87.1 in Node, read what we write and we what they write, step by step."""

from __future__ import annotations

import copy
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from scopelog.clients.messages import FrameEncoder, apply_frame, parse_streaming_json
from scopelog.delta import UNDEFINED, Decoder, Encoder, diff_revisions, track
from scopelog.errors import InvalidInput

from .conftest import SHARED, shared
from .interop.comparing import (
    agree,
    fed,
    replicas_agree,
    same_application,
    same_decoding,
    same_fold,
    same_frames,
    same_parse,
)
from .interop.frames import cut, frames, json_text, mangled, spoiled
from .interop.scenarios import Scenario, Source, op_batches, spoiled_op, valid_op
from .interop.steps import Tracked
from .interop.values import untagged
from .interop_rig import PACKAGES, Driver, Missing, node_modules

VECTORS: Final = Path(__file__).parent / "vectors"
STREAMS: Final = sorted((SHARED / "corpus" / "streams").glob("*/*.events.jsonl"))
SEED: Final = os.environ.get("SCOPELOG_INTEROP_SEED", "0")
BLOCK: Final = 50


@pytest.fixture(scope="session")
def theirs() -> Iterator[Driver]:
    """The process, or a skip that says what is missing."""
    try:
        driver = Driver(node_modules())
    except Missing as missing:
        pytest.skip(f"NOT compared with the real packages: {missing}")
    yield driver
    driver.close()


def cases(name: str, *groups: str) -> list[Any]:
    found = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return [untagged(case) for case in found if not groups or case["group"] in groups]


def seeded(kind: str, block: int, count: int = BLOCK) -> list[tuple[str, Source]]:
    """A source for each case of a block; the name of the case makes it again."""
    names = [f"SCOPELOG_INTEROP_SEED={SEED} {kind} {number}" for number in range(block * count, (block + 1) * count)]
    return [(name, Source(name)) for name in names]


# ─── The process ─────────────────────────────────────────────────────────────


def test_it_is_the_real_thing(theirs: Driver) -> None:
    (versions,) = theirs.ask("versions", [])
    assert {"@earendil-works/chord": versions["chord"], "@earendil-works/pi-ai": versions["piAi"]} == PACKAGES
    assert tuple(map(int, versions["node"].split(".")[:2])) >= (22, 19)


def test_values_cross_unharmed(theirs: Driver) -> None:
    value = {
        "a": ["\ud83d", "\ude00\ud83d", "\U0001f600", "\u2028\0", 1e21, 5e-324, True, None],
        "__proto__": {"b": []},
    }
    ((applied,), parsed) = (
        theirs.ask("apply", [{"ops": [["r", value]]}]),
        theirs.ask("parse", [{"json": "[NaN,-Infinity,-0"}]),
    )
    agree("crossing", value, applied["mutable"]["value"])
    agree("crossing", [[float("nan"), -float("inf"), 0]], parsed)


def test_a_fault_of_the_driver_is_no_answer(theirs: Driver) -> None:
    with pytest.raises(AssertionError, match="the driver failed at nothing"):
        theirs.ask("nothing", [{}])


def test_a_hang_fails(theirs: Driver) -> None:
    driver = Driver(theirs.folder)
    try:
        driver.ask("versions", [])
        os.kill(driver.pid, signal.SIGSTOP)
        with pytest.raises(AssertionError, match="no answer to versions"):
            driver.ask("versions", [], seconds=0.1)
    finally:
        driver.close()


# ─── The vectors ─────────────────────────────────────────────────────────────


def test_vectors_apply(theirs: Driver) -> None:
    same_application(
        theirs,
        [
            (case["name"], UNDEFINED if case.get("target_undefined") else case["target"], case["ops"])
            for case in cases("delta_apply")
        ],
        exactly=True,
    )


def test_vectors_codec(theirs: Driver) -> None:
    listed = [case for case in cases("delta_codec") if case["group"] != "decode_only"]
    encoded = theirs.ask("encode", listed)
    ours = []
    for case, wire in zip(listed, encoded, strict=True):
        encoder = Encoder()
        ours.append([encoder.encode(batch) for batch in case["batches"]])
        agree(case["name"], ours[-1], wire)
        decoder = Decoder()
        agree(case["name"], [decoder.decode(batch) for batch in wire], case["batches"])
    decoded = theirs.ask("decode", [{"wire": wire} for wire in ours])
    for case, answer in zip(listed, decoded, strict=True):
        agree(case["name"], {"batches": case["batches"]}, answer)


def test_vectors_decode(theirs: Driver) -> None:
    listed = cases("delta_codec", "decode_only") + cases("delta_decode_errors")
    same_decoding(theirs, [(case["name"], case["wire"]) for case in listed])


def test_vectors_tracker(theirs: Driver) -> None:
    listed = [case for case in cases("delta_roundtrip") if "steps" in case and case["converged"]]
    played = theirs.ask("play", listed)
    made = []
    for case, answer in zip(listed, played, strict=True):
        expected = [flush["value"] for flush in case["flushes"]]
        agree(case["name"], list(fed(answer["wires"])), expected)
        agree(case["name"], answer["values"], expected)
        agree(case["name"], sorted(answer["refused"]), sorted(case["step_errors"]))
        options = case.get("options", {})
        tracked = Tracked(case["initial"], max_overlap_scan=options.get("maxOverlapScan", 65_536))
        for number, step in enumerate(case["steps"]):
            if str(number) not in case["step_errors"]:
                tracked.play(step)
        made.append((case["name"], tracked.wires, expected))
    replicas_agree(theirs, made)


def test_vectors_diff_revisions(theirs: Driver) -> None:
    """Where elements are shared, a permutation or an op that puts them elsewhere makes the second revision."""
    made, requests = [], []
    for case in cases("delta_diff_revisions"):
        if "described" in case:
            continue
        before, after = case["before"], case["after"]
        wires = [[["r", before]], Encoder().encode(diff_revisions(before, after))]
        made.append((case["name"], wires, [before, after]))
        batch = [["m", case["path"], case["perm"]]] if case.get("by_reference") and "perm" in case else case["ops"]
        requests.append({"first": before, "batches": [batch]})
    replicas_agree(theirs, made)
    for (name, _, values), answer in zip(made, theirs.ask("revise", requests), strict=True):
        agree(name, list(fed(answer["wires"])), values)


def test_vectors_fold(theirs: Driver) -> None:
    same_fold(theirs, [(case["name"], case["frames"]) for case in cases("frames_fold")], prefixes=True)


def test_vectors_frames(theirs: Driver) -> None:
    same_frames(theirs, [(case["name"], case["events"]) for case in cases("frames_encode")])


def test_vectors_streaming_json(theirs: Driver) -> None:
    same_parse(theirs, [case["input"] for case in cases("streaming_json") if "input" in case])


# ─── The real streams ────────────────────────────────────────────────────────


@pytest.fixture(params=[str(path.relative_to(path.parents[1])) for path in STREAMS] or ["none"])
def stream(request: pytest.FixtureRequest) -> tuple[str, list[Any]]:
    path = shared("corpus/streams") / str(request.param)
    lines = path.read_text(encoding="utf-8").splitlines()
    return str(request.param), [json.loads(line) for line in lines if line]


def test_stream(theirs: Driver, stream: tuple[str, list[Any]]) -> None:
    """Frames, fold, and both sides' replicas after every batch of at most a fiftieth of the frames."""
    name, events = stream
    same_frames(theirs, [(name, events)])
    encoder = FrameEncoder()
    made = [frame for frame in map(encoder.encode, events) if frame is not None]
    same_fold(theirs, [(name, made)], prefixes=False)
    random = Random(name)
    sizes: list[int] = []
    while sum(sizes) < len(made):
        sizes.append(random.randint(1, max(1, len(made) // 50)))

    (answer,) = theirs.ask("stream", [{"frames": made, "sizes": sizes}])
    agree(name, list(fed(answer["wires"])), answer["values"])

    tracker, wire = track({"streamingMessage": None, "frameState": []}), Encoder()
    taken, wires, values = 0, [], []
    for size in [0, *sizes]:
        for frame in made[taken : taken + size]:
            apply_frame(tracker.state, frame)
        taken += size
        wires.append(wire.encode(tracker.flush()))
        values.append(copy.deepcopy(tracker.target))
    replicas_agree(theirs, [(name, wires, values)])


# ─── Random scenarios ────────────────────────────────────────────────────────


@pytest.mark.parametrize("block", range(20))
def test_scenarios(theirs: Driver, block: int) -> None:
    """1,000 documents and mutations of them: made by our tracker for their replica, by theirs for ours."""
    scenarios = [(name, Scenario(name)) for name, _ in seeded("scenario", block)]
    made = []
    for name, scenario in scenarios:
        scan = scenario.options.get("maxOverlapScan", 65_536)
        tracked = Tracked(scenario.initial, buffered=scenario.buffered, max_overlap_scan=scan)
        for step in scenario.steps:
            tracked.play(step)
        agree(name, tracked.values, scenario.values)
        made.append((name, tracked.wires, scenario.values))
    replicas_agree(theirs, made)

    requests = [{"initial": each.initial, "steps": each.steps, "options": each.options} for _, each in scenarios]
    for (name, scenario), answer in zip(scenarios, theirs.ask("play", requests), strict=True):
        assert not answer["refused"], f"case {name}: {answer['refused']}"
        agree(name, scenario.values, answer["values"])
        agree(name, list(fed(answer["wires"])), answer["values"])


@pytest.mark.parametrize("block", range(8))
def test_revisions(theirs: Driver, block: int) -> None:
    """400 chains of immutable revisions that share what did not change: ours diffed for them, theirs for us."""
    made, requests = [], []
    for name, source in seeded("revisions", block):
        first = source.document()
        batches, values = op_batches(source, first)
        encoder = Encoder()
        wires = [encoder.encode([["r", first]])]
        for before, after in zip([first, *values], values, strict=False):
            wires.append(encoder.encode(diff_revisions(before, after)))
        made.append((name, wires, [first, *values]))
        requests.append({"first": first, "batches": batches})
    replicas_agree(theirs, made)
    for (name, _, values), answer in zip(made, theirs.ask("revise", requests), strict=True):
        agree(name, values, answer["values"])
        agree(name, list(fed(answer["wires"])), values)


def test_random_ops(theirs: Driver) -> None:
    """1,000 batches of ops, the last one of half of them spoiled: the same values, and the same refusals."""
    listed = []
    for number, (name, source) in enumerate(seeded("ops", 0, 1000)):
        target = source.document()
        batches, values = op_batches(source, target)
        last = values[-1]
        ops = [op for batch in batches for op in batch]
        ops.append(spoiled_op(source, last) if number % 2 else valid_op(source, last))
        listed.append((name, target, ops))
    same_application(theirs, listed, exactly=False)


def test_random_wires(theirs: Driver) -> None:
    """1,000 encoded streams, one op of most of them spoiled: the same ops, and the same refusals."""
    listed = []
    for name, source in seeded("wires", 0, 1000):
        first = source.document()
        batches, _ = op_batches(source, first)
        encoder = Encoder()
        wires = copy.deepcopy([encoder.encode([["r", first]]), *map(encoder.encode, batches)])
        batch = source.random.choice(wires)
        if batch and not source.chance(4):
            batch[source.random.randrange(len(batch))] = spoiled_op(source, first)
        listed.append((name, wires))
    same_decoding(theirs, listed)


@pytest.mark.parametrize("block", range(8))
def test_random_frames(theirs: Driver, block: int) -> None:
    """400 frame sequences and every prefix of them; every second one has a fault."""
    listed = []
    for number, (name, source) in enumerate(seeded("frames", block)):
        made = frames(source)
        listed.append((name, spoiled(source, made) if number % 2 else made))
    same_fold(theirs, listed, prefixes=True)


@pytest.mark.parametrize("block", range(10))
def test_random_prefixes(theirs: Driver, block: int) -> None:
    """5,000 beginnings of JSON texts, a third of them mangled."""
    texts = []
    for number, (_, source) in enumerate(seeded("json", block, 500)):
        text = json_text(source)
        text = mangled(source, text) if number % 3 == 0 else text
        texts.append(cut(source, text) if number % 10 else text)
    same_parse(theirs, texts)


def test_a_parse_rounds_there_and_is_exact_here(theirs: Driver) -> None:
    """The differences that are meant, and no others: integers beyond 53 bits; -0, which is 0 here."""
    assert parse_streaming_json("[9007199254740993,-0") == [9007199254740993, 0]
    assert theirs.ask("parse", [{"json": "[9007199254740993,-0"}]) == [[9007199254740992, 0]]


def test_what_cannot_be_tracked_is_refused_here(theirs: Driver) -> None:
    """Chord's tracker takes any value; ours refuses what is no JSON, so that no replica gets null for it."""
    (answer,) = theirs.ask("play", [{"initial": {}, "steps": [{"do": "set", "path": ["a"], "value": float("nan")}]}])
    assert not answer["refused"]
    with pytest.raises(InvalidInput):
        Tracked({}).play({"do": "set", "path": ["a"], "value": float("nan")})
