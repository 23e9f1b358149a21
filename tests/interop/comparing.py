"""What the tests of interoperability compare: every function asks both sides, and fails where they differ."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final

from scopelog.clients.messages import FrameEncoder, InvalidEvent, InvalidFrame, fold, parse_streaming_json
from scopelog.delta import UNDEFINED, Decoder, Encoder, InvalidOp, PathError, UnsafePathError, apply, apply_immutable

from ..interop_rig import Driver
from .values import difference

REFUSALS: Final = {InvalidOp: "TypeError", UnsafePathError: "UnsafePathError", PathError: "PathError"}


def agree(name: str, ours: Any, real: Any) -> None:
    """Fail with the name of the case and the first place where the two differ."""
    found = difference(ours, real)
    assert found is None, f"case {name}: {found}"


def outcome(action: Callable[[], Any]) -> dict[str, Any]:
    """What the driver answers: the value, or the name of the error that the real packages raise in its place."""
    try:
        return {"value": action()}
    except (InvalidOp, UnsafePathError, PathError) as error:
        return {"error": REFUSALS[type(error)]}


def named(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer of the driver with no more of an error than its name."""
    return {"error": answer["error"]["name"]} if "error" in answer else answer


def fed(wires: list[Any]) -> Iterator[Any]:
    """Our replica of what they encoded: a copy of its value after every batch."""
    decoder, encoder, value = Decoder(), Encoder(), UNDEFINED
    immutable: Any = UNDEFINED
    for wire in wires:
        ops = decoder.decode(wire)
        agree("op for op what their encoder made of the same ops", encoder.encode(ops), wire)
        immutable = apply_immutable(immutable, copy.deepcopy(ops))
        value = apply(value, ops)
        agree("the immutable replica", value, immutable)
        yield copy.deepcopy(value)


def replicas_agree(theirs: Driver, made: list[tuple[str, list[Any], list[Any]]]) -> None:
    """Their replicas of what we encoded have our values after every batch. ``made``: names, wires, values."""
    answers = theirs.ask("replay", [{"wires": wires} for _, wires, _ in made])
    for (name, _, values), answer in zip(made, answers, strict=True):
        agree(name, values, answer.get("values", answer))


def same_application(theirs: Driver, listed: list[tuple[str, Any, list[Any]]], *, exactly: bool) -> None:
    """Names, targets, ops: both appliers agree with both of theirs, also in what is left of a refused batch.

    ``exactly``: the immutable ones also in the class of a refusal. It is no promise where an op is wrong in two ways,
    as they follow the path before they check the op.
    """
    requests = [{"ops": ops} if target is UNDEFINED else {"target": target, "ops": ops} for _, target, ops in listed]
    for (name, target, ops), answer in zip(listed, theirs.ask("apply", requests), strict=True):
        mutable, before = copy.deepcopy(target), copy.deepcopy(target)
        agree(name, outcome(lambda: apply(mutable, copy.deepcopy(ops))), named(answer["mutable"]))  # noqa: B023
        agree(name, mutable, answer["after"])
        ours, real = outcome(lambda: apply_immutable(target, copy.deepcopy(ops))), named(answer["immutable"])  # noqa: B023
        if exactly or "error" not in ours or "error" not in real:
            agree(name, ours, real)
        agree(name, target, before)
        assert answer["kept"], f"case {name}: their applyImmutable changed its target"


def same_decoding(theirs: Driver, listed: list[tuple[str, list[Any]]]) -> None:
    """Names and encoded batches: the same ops up to the same refusal."""
    for (name, wire), answer in zip(listed, theirs.ask("decode", [{"wire": wire} for _, wire in listed]), strict=True):
        decoder, batches, error = Decoder(), [], None
        for batch in copy.deepcopy(wire):
            found = outcome(lambda: decoder.decode(batch))  # noqa: B023
            if "error" in found:
                error = found["error"]
                break
            batches.append(found["value"])
        agree(
            name,
            {"batches": batches, "error": error},
            {"batches": answer["batches"], "error": named(answer).get("error")},
        )


def same_fold(theirs: Driver, listed: list[tuple[str, list[Any]]], *, prefixes: bool) -> None:
    """Names and frames: the same message or a refusal by both, of every prefix if asked."""
    answers = theirs.ask("fold", [{"frames": made, "prefixes": prefixes} for _, made in listed])
    for (name, made), found in zip(listed, answers, strict=True):
        for end, real in zip(range(0 if prefixes else len(made), len(made) + 1), found, strict=True):
            try:
                ours: Any = fold(made[:end])
            except InvalidFrame:
                assert "error" in real, f"case {name}: only ours refuses the first {end} frames"
                continue
            assert "error" not in real, f"case {name}: only theirs refuses the first {end} frames: {real['error']}"
            agree(f"{name}[:{end}]", ours, None if real["value"] is UNDEFINED else real["value"])


def same_frames(theirs: Driver, listed: list[tuple[str, list[Any]]]) -> None:
    """Names and events: the same frames up to the same refusal."""
    answers = theirs.ask("frames", [{"events": events} for _, events in listed])
    for (name, events), answer in zip(listed, answers, strict=True):
        encoder, made, refused = FrameEncoder(), [], False
        for event in events:
            try:
                made.append(encoder.encode(event))
            except InvalidEvent:
                refused = True
                break
        agree(name, {"frames": made, "refused": refused}, {"frames": answer["frames"], "refused": "error" in answer})


def same_parse(theirs: Driver, texts: list[str]) -> None:
    """Texts that may be unfinished: the same value."""
    for text, real in zip(texts, theirs.ask("parse", [{"json": text} for text in texts]), strict=True):
        agree(ascii(text), parse_streaming_json(text), real)
