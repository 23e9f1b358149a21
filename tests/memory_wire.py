"""A scripted HTTP/1.1 peer on a real socket, and time that only moves when told, for the memory bridge's lower half."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

Fault = Literal["reset", "close", "hang"]


class Time:
    """Monotonic seconds; ``sleep`` passes at once and is remembered."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    raw: bytes

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Answer:
    """One reply. ``body``: bytes as they are, or anything JSON. ``cut``: so many bytes of it, then the connection ends.
    ``fault``: no reply at all."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    fault: Fault | None = None


def lost(fault: Fault) -> Answer:
    return Answer(fault=fault)


class Wire:
    """Answers requests with ``script``, its last answer for ever; ``listening`` False refuses connections."""

    def __init__(self, *script: Answer, listening: bool = True) -> None:
        self.script = list(script) or [Answer()]
        self.seen: list[Seen] = []
        self.listening = listening
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))  # bound without listening: nobody else gets the port, and it refuses
        self.port: int = self._socket.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        mine = socket.socket()
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        mine.bind(("127.0.0.1", self.port))
        self._server = await asyncio.start_server(self._serve, sock=mine)

    async def refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def __aenter__(self) -> Wire:
        if self.listening:
            await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()
        for writer in self._writers:
            writer.transport.abort()
        self._socket.close()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        first, *lines = head.split("\r\n")
        headers = [(name, value[1:]) for name, _, value in (line.partition(":") for line in lines if line)]
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        method, target, _ = first.split(" ")
        self.seen.append(Seen(method, target, headers, await reader.readexactly(length)))
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if answer.fault == "hang":
            return
        if answer.fault == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if answer.fault is None:
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            given = {"Content-Length": str(len(body)), "Content-Type": "application/json"} | answer.headers
            lines = [f"HTTP/1.1 {answer.status} Text", *(f"{k}: {v}" for k, v in given.items()), "", ""]
            writer.write("\r\n".join(lines).encode() + body[: answer.cut])
        writer.close()


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run one test in a loop of its own."""

    async def whole() -> None:
        await main()

    asyncio.run(whole())
