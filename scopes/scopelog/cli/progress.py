"""What ``record`` says while it runs: a live line on a terminal, plain lines now and then, or JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from . import output
from .output import count

if TYPE_CHECKING:
    from rich.live import Live

_PLAIN_SECONDS: Final = 1.0  # between two plain lines
_LIVE_SECONDS: Final = 0.1


@dataclass
class Counts:
    """Of one recording. ``written``: lines stored at the scope's level; ``seq``: sequence of the last of them.

    ``bytes_in``: input read; ``bytes_written``: handed to the operating system, for logs and their headers;
    ``torn_bytes``: cut and kept aside when the session was opened; ``recovered``: operations that an earlier recording
    had left, settled first.
    """

    lines: int = 0
    written: int = 0
    seq: int = 0
    bytes_in: int = 0
    bytes_written: int = 0
    frames: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    torn_bytes: int = 0
    recovered: int = 0

    def text(self) -> str:
        return f"{count(self.lines, 'line')} read, {self.written:,} written (sequence {self.seq})"


class Progress(Protocol):
    """Told whenever lines were read or stored."""

    def update(self, counts: Counts) -> bool:
        """False if something is left to say later: call again though nothing may have changed."""

    def finish(self, counts: Counts, stopped: str) -> None:
        """``stopped``: end, error, SIGINT or SIGTERM."""


def progress_for(*, as_json: bool, monotonic: Callable[[], float]) -> Progress:
    """How a recording reports. ``monotonic`` throttles what is meant for eyes."""
    if as_json:
        return JsonProgress()
    if sys.stderr.isatty():
        return LiveProgress(monotonic)
    return PlainProgress(monotonic)


class JsonProgress:
    """An object a line on standard output each time more was stored, then one with ``"done": true``.

    If whoever reads them goes away the recording goes on without reports.
    """

    def __init__(self) -> None:
        self._written = 0

    def update(self, counts: Counts) -> bool:
        if counts.written > self._written:
            self._written = counts.written
            self._put(asdict(counts))
        return True

    def finish(self, counts: Counts, stopped: str) -> None:
        self.update(counts)
        self._put({"done": True, "stopped": stopped, **asdict(counts)})

    def _put(self, report: dict[str, Any]) -> None:
        try:
            output.put_json(report)
            output.flush()
        except BrokenPipeError:
            output.silence()


class PlainProgress:
    """A line on standard error at most once a second, and the totals on standard output."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._when = monotonic()
        self._said = ""

    def update(self, counts: Counts) -> bool:
        now, text = self._monotonic(), counts.text()
        if text != self._said and now - self._when >= _PLAIN_SECONDS:
            self._when, self._said = now, text
            output.say(text)
        return text == self._said

    def finish(self, counts: Counts, stopped: str) -> None:
        totals(counts, stopped)


class LiveProgress:
    """One line on the terminal that keeps changing, then the totals on standard output."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._when = float("-inf")
        self._said = ""
        self._live: Live | None = None

    def update(self, counts: Counts) -> bool:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        now, text = self._monotonic(), counts.text()
        if text == self._said or now - self._when < _LIVE_SECONDS:
            return text == self._said
        self._when, self._said = now, text
        if self._live is None:
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Text.assemble(("recording ", "bold"), text), refresh=True)
        return True

    def finish(self, counts: Counts, stopped: str) -> None:
        if self._live is not None:
            self._live.stop()
        totals(counts, stopped)


def totals(counts: Counts, stopped: str) -> None:
    how = "" if stopped == "end" else f"stopped ({stopped}): "
    if counts.recovered:
        output.put_text(f"settled {count(counts.recovered, 'operation')} that an earlier recording had left")
    output.put_text(
        f"{how}{counts.text()}; {count(counts.bytes_in, 'byte')} in, {count(counts.bytes_written, 'byte')} out, "
        f"{count(counts.frames, 'frame')}, {count(counts.syncs, 'sync')}"
    )
