"""Mutations of a store's files: each has a name of one line that says what is done, and :func:`apply` does it.

``kind:file:numbers`` (several joined by ``+`` are done in turn); files by their names in the session's directory::

    flip:F:AT:BIT        one bit turned over              cut:F:LENGTH         the rest cut off
    zero:F:AT:LENGTH     zeros over what stands there     junk:F:AT:WHAT:N     N bytes of junk from there on
    swap:F:I:J           two frames change places         put:F:I:J            frame I in the place of J
    twice:F:I            a frame, and again               copy:F:I:J           frame I's bytes laid over J and further
    omit:F:I             without a frame                  over:F:I:KIN         what a kindred store has at frame I
    frame:F:I:KIN        frame I of a kindred store       splice:F:I:KIN       from frame I on a kindred store's bytes
    take:F:KIN:G         file G of a kindred store        image:F:IMAGE:G      file G of an older moment of this one
    clone:F:G            G a copy of F                    move:F:G             F renamed to G
    lose:F               without the file                 gone:N               the Nth retired life's file put back

What is generated is systematic, lazy, and the same in every run; :func:`several` joins a few at random. Frames are
those of the pristine log, at its places. A name that changes nothing gives the pristine files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from random import Random
from typing import Final

from fuzz.shapes import Files, Log, Shape
from scopelog_engine.layout import MAIN_FILE, STORE_FILE

RUNS: Final = (1, 2, 7, 8, 511, 512, 513, 4096, 65536)
"""Lengths of zeros that file systems leave: bytes, words, sectors, pages."""
JUNK: Final = ("zeros", "ones", "zstd", "foreign", "random")


def apply(shape: Shape, name: str) -> Files:
    """The files of the store after a mutation."""
    files = dict(shape.files)
    for part in name.split("+"):
        kind, *arguments = part.split(":")
        _KINDS[kind](shape, files, *arguments)
    return files


def _on_bytes(change: Callable[..., bytes]) -> Callable[..., None]:
    """A mutation of one file's bytes, which are there or else left out."""

    def act(shape: Shape, files: Files, file: str, *arguments: str) -> None:
        path = shape.path(file)
        if path in files:
            numbers = [int(text) if text.isdigit() else text for text in arguments]
            files[path] = change(shape, path, files[path], *numbers)

    return act


def _flip(_: Shape, __: str, data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 1 << bit,)) + data[at + 1 :] if at < len(data) else data


def _cut(_: Shape, __: str, data: bytes, length: int) -> bytes:
    return data[:length]


def _zero(_: Shape, __: str, data: bytes, at: int, length: int) -> bytes:
    return data[:at] + bytes(max(0, min(length, len(data) - at))) + data[at + length :]


def junk(what: str, length: int) -> bytes:
    if what == "zeros":
        return bytes(length)
    if what == "ones":
        return b"\xff" * length
    if what == "zstd":
        return (b"\x28\xb5\x2f\xfd" * length)[:length]
    if what == "foreign":  # a skippable frame of nobody's that claims 4 GiB
        return (b"\x5a\x2a\x4d\x18\xff\xff\xff\xff" * length)[:length]
    return Random(length).randbytes(length)


def _junk(_: Shape, __: str, data: bytes, at: int, what: str, length: int) -> bytes:
    return data[:at] + junk(what, length) + data[at + length :]


def _bytes_of(log: Log, number: int) -> bytes:
    frame = log.frames[number]
    return log.data[frame.offset : frame.end]


def _swap(shape: Shape, path: str, data: bytes, one: int, other: int) -> bytes:
    log = shape.logs[path]
    first, second = log.frames[one], log.frames[other]
    between = data[first.end : second.offset]
    return data[: first.offset] + _bytes_of(log, other) + between + _bytes_of(log, one) + data[second.end :]


def _put(shape: Shape, path: str, data: bytes, source: int, target: int) -> bytes:
    log = shape.logs[path]
    place = log.frames[target]
    return data[: place.offset] + _bytes_of(log, source) + data[place.end :]


def _copy(shape: Shape, path: str, data: bytes, source: int, target: int) -> bytes:
    log = shape.logs[path]
    at, frame = log.frames[target].offset, _bytes_of(log, source)
    return data[:at] + frame + data[at + len(frame) :]


def _twice(shape: Shape, path: str, data: bytes, number: int) -> bytes:
    log = shape.logs[path]
    at = log.frames[number].end
    return data[:at] + _bytes_of(log, number) + data[at:]


def _omit(shape: Shape, path: str, data: bytes, number: int) -> bytes:
    frame = shape.logs[path].frames[number]
    return data[: frame.offset] + data[frame.end :]


def kindred(shape: Shape, path: str, kin: str) -> Log:
    """The log of another store (or of an older moment) that is most like this one."""
    if kin in shape.images:
        return next(log for log in shape.old if log.path == path and log.data == shape.images[kin][path])
    other = shape.kin[kin]
    return other.logs[other.path(shape.short(path))]


def _over(shape: Shape, path: str, data: bytes, number: int, kin: str) -> bytes:
    frame = shape.logs[path].frames[number]
    return data[: frame.offset] + kindred(shape, path, kin).data[frame.offset : frame.end] + data[frame.end :]


def _frame(shape: Shape, path: str, data: bytes, number: int, kin: str) -> bytes:
    frame = shape.logs[path].frames[number]
    return data[: frame.offset] + _bytes_of(kindred(shape, path, kin), number) + data[frame.end :]


def _splice(shape: Shape, path: str, data: bytes, number: int, kin: str) -> bytes:
    at = shape.logs[path].frames[number].offset
    return data[:at] + kindred(shape, path, kin).data[at:]


def _take(shape: Shape, files: Files, file: str, kin: str, source: str) -> None:
    files[shape.path(file)] = shape.kin[kin].files[shape.kin[kin].path(source)]


def _image(shape: Shape, files: Files, file: str, image: str, source: str) -> None:
    files[shape.path(file)] = shape.images[image][shape.path(source)]


def _clone(shape: Shape, files: Files, file: str, target: str) -> None:
    files[shape.path(target)] = files[shape.path(file)]


def _move(shape: Shape, files: Files, file: str, target: str) -> None:
    files[shape.path(target)] = files.pop(shape.path(file))


def _lose(shape: Shape, files: Files, file: str) -> None:
    files.pop(shape.path(file), None)


def _put_back(shape: Shape, files: Files, number: str) -> None:
    log = shape.gone[int(number)]
    files[log.path] = log.data


_KINDS: Final[dict[str, Callable[..., None]]] = {
    "flip": _on_bytes(_flip),
    "cut": _on_bytes(_cut),
    "zero": _on_bytes(_zero),
    "junk": _on_bytes(_junk),
    "swap": _on_bytes(_swap),
    "put": _on_bytes(_put),
    "copy": _on_bytes(_copy),
    "twice": _on_bytes(_twice),
    "omit": _on_bytes(_omit),
    "over": _on_bytes(_over),
    "frame": _on_bytes(_frame),
    "splice": _on_bytes(_splice),
    "take": _take,
    "image": _image,
    "clone": _clone,
    "move": _move,
    "lose": _lose,
    "gone": _put_back,
}

# --- what is tried --------------------------------------------------------------------------------


def flips(shape: Shape, log: Log) -> Iterator[str]:
    """Every bit of the log, and of the header of what is reserved behind it."""
    file = shape.short(log.path)
    for at in range(min(log.end + 8, len(log.data))):
        for bit in range(8):
            yield f"flip:{file}:{at}:{bit}"


def zeroed(shape: Shape, log: Log) -> Iterator[str]:
    """Every byte that is not zero made so."""
    file = shape.short(log.path)
    for at in range(min(log.end + 8, len(log.data))):
        if log.data[at]:
            yield f"zero:{file}:{at}:1"


def cuts(shape: Shape, log: Log) -> Iterator[str]:
    """Every length shorter than the log; of what is reserved behind it, the first and the last few."""
    file = shape.short(log.path)
    for length in range(min(log.end + 16, len(log.data))):
        yield f"cut:{file}:{length}"
    for length in range(max(len(log.data) - 9, log.end + 16), len(log.data)):
        yield f"cut:{file}:{length}"


def holes(shape: Shape, log: Log) -> Iterator[str]:
    """Runs of zeros of all lengths: from every frame's first byte on, around it, from its payload, up to its end."""
    file = shape.short(log.path)
    for frame in log.frames:
        for length in (*RUNS, frame.length, frame.length - 1, frame.length + 1):
            places = {frame.offset, frame.offset + 1, frame.offset + 8, frame.payload_offset, frame.end - length}
            for at in sorted({*places, frame.offset - 1, frame.offset - length // 2}):
                if 0 <= at < len(log.data):
                    yield f"zero:{file}:{at}:{length}"


def tails(shape: Shape, log: Log) -> Iterator[str]:
    """Junk behind the last frame, over what is reserved there, in the middle of it, and behind all."""
    file = shape.short(log.path)
    for what in JUNK:
        for length in (*RUNS, 9, 31, 4095, 4097, 65535):
            for at in sorted({log.end, len(log.data)}):
                yield f"junk:{file}:{at}:{what}:{length}"
            if len(log.data) > log.end and what != "zeros":
                for at in (log.end + 8, log.end + 9, log.end + 4096, len(log.data) - length):
                    if at > log.end + 7:
                        yield f"junk:{file}:{at}:{what}:{length}"
                yield f"cut:{file}:{log.end}+junk:{file}:{log.end}:{what}:{length}"


def misplaced(shape: Shape, log: Log) -> Iterator[str]:
    """Frames of the log in other places of it: all pairs, in order."""
    file, count = shape.short(log.path), len(log.frames)
    for one in range(count):
        yield f"twice:{file}:{one}"
        yield f"omit:{file}:{one}"
        for other in range(count):
            if one < other:
                yield f"swap:{file}:{one}:{other}"
            if one != other:
                yield f"put:{file}:{one}:{other}"
                yield f"copy:{file}:{one}:{other}"


def foreign(shape: Shape, log: Log) -> Iterator[str]:
    """Bytes and frames of kindred stores, sessions, histories and generations, at the same places."""
    file = shape.short(log.path)
    names = [kin for kin in shape.kin if shape.kin[kin].path(file) in shape.kin[kin].logs]
    names += [image for image in shape.images if log.path in shape.images[image]]
    for kin in names:
        other = kindred(shape, log.path, kin)
        for number in range(len(log.frames)):
            yield f"over:{file}:{number}:{kin}"
            yield f"splice:{file}:{number}:{kin}"
            if number < len(other.frames):
                yield f"frame:{file}:{number}:{kin}"


FAMILIES: Final[dict[str, Callable[[Shape, Log], Iterator[str]]]] = {
    "flips": flips,
    "zeroed": zeroed,
    "cuts": cuts,
    "holes": holes,
    "tails": tails,
    "misplaced": misplaced,
    "foreign": foreign,
}


def damage(shape: Shape, log: Log, families: Sequence[str] = tuple(FAMILIES), stride: int = 1) -> Iterator[str]:
    """Every ``stride``-th of the mutations of one log's bytes."""
    for family in families:
        yield from islice(FAMILIES[family](shape, log), 0, None, stride)


def placements(shape: Shape) -> Iterator[str]:
    """Whole files copied, renamed, lost, put back, taken from elsewhere; main taken from an older moment."""
    cars = [shape.short(log.path) for log in shape.sidecars]
    numbers = sorted(int(name.split(".")[0]) for name in cars)
    for file in cars:
        first = int(file.split(".")[0])
        strange = {1, first - 1, first + 1, numbers[-1] + 5, 2**40, 2**53 - 1, 2**53, 10**16 - 1} - {first, 0}
        for number in sorted(strange):
            yield f"clone:{file}:{number:016d}.scope.zst"
            yield f"move:{file}:{number:016d}.scope.zst"
        yield from (f"clone:{file}:{other}" for other in cars if other != file)
        yield f"lose:{file}"
        yield f"clone:{MAIN_FILE}:{file}"
        yield f"move:{file}:{MAIN_FILE}"
    yield from (f"clone:{one}:x.swap+clone:{two}:{one}+move:x.swap:{two}" for one, two in pairwise(cars))
    for number in range(len(shape.gone)):
        yield f"gone:{number}"
    for kin, other in shape.kin.items():
        for source in (other.short(path) for path in other.logs):
            for target in sorted(
                {source, *cars[:1], MAIN_FILE, f"{numbers[-1] + 3:016d}.scope.zst" if cars else source}
            ):
                yield f"take:{target}:{kin}:{source}"
    yield from backups(shape)


def backups(shape: Shape) -> Iterator[str]:
    """Files of older moments beside files of now; main as short as it ever was."""
    for image, files in shape.images.items():
        for path in files:
            if path.endswith(STORE_FILE):
                continue
            yield f"image:{shape.short(path)}:{image}:{shape.short(path)}"
        yield "+".join(f"image:{shape.short(p)}:{image}:{shape.short(p)}" for p in files if not p.endswith(STORE_FILE))
    for frame in shape.main.frames[1:]:
        yield f"cut:{MAIN_FILE}:{frame.offset}"


def several(shape: Shape, random: Random) -> str:
    """Two or three mutations of any kind, of one log or of two."""
    parts = []
    for _ in range(random.choice((2, 2, 3))):
        log = random.choice([*shape.logs.values()])
        file, size = shape.short(log.path), min(len(log.data), log.end + 600)
        one, other = sorted(random.choices(range(len(log.frames)), k=2))
        kin = random.choice([k for k in shape.kin if shape.kin[k].path(file) in shape.kin[k].logs] or [""])
        choices = [
            f"flip:{file}:{random.randrange(size)}:{random.randrange(8)}",
            f"zero:{file}:{random.randrange(size)}:{random.choice(RUNS)}",
            f"zero:{file}:{log.frames[one].offset}:{random.choice((*RUNS, log.frames[one].length))}",
            f"cut:{file}:{random.randrange(size)}",
            f"junk:{file}:{random.randrange(size)}:{random.choice(JUNK)}:{random.choice(RUNS)}",
            f"junk:{file}:{size}:{random.choice(JUNK)}:{random.choice(RUNS)}",
            f"copy:{file}:{one}:{other}",
            f"twice:{file}:{one}",
            *([f"swap:{file}:{one}:{other}"] if one < other else []),
            *([f"over:{file}:{one}:{kin}", f"splice:{file}:{one}:{kin}"] if kin else []),
        ]
        parts.append(random.choice(choices))
    return "+".join(parts)
