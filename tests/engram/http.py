"""The thin HTTP skin: listener, request recording, and the fault script applied to real connections.

Start this package with ``python -m``: as a script's folder it would hide the standard library's ``http``.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import routes
from .faults import Action, Faults, Gate
from .model import Model, parse
from .record import Exchange, encode
from .state import BAD_JSON, Reply

HOST = "127.0.0.1"
JOIN_SECONDS = 10.0


class Skin:
    """Listener and connections of one server; may be closed and opened again on the same port."""

    def __init__(self, model: Model, *, port: int = 0) -> None:
        self.model = model
        self.lock = threading.RLock()  # around every use of the model
        self.faults = Faults(model, self.lock, refuse=self.refuse, accept=self.open)
        self.requests: list[Exchange] = []
        self.errors: list[BaseException] = []
        self.dropped = 0
        self.life = 1  # counts kills; a request belongs to the life it arrived in
        self.on_applied: Callable[[], None] = lambda: None
        self.before_reply: Callable[[Exchange], None] = lambda exchange: None
        self.after_reply: Callable[[Exchange], None] = lambda exchange: None
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._waiting: set[Gate] = set()
        self._guard = threading.Lock()
        self._listener: _Listener | None = None
        self._accepting: threading.Thread | None = None
        self._reserved = _reserve(port)
        self.port = self._reserved.getsockname()[1] if self._reserved else port
        self.open()

    # -- listener

    def open(self) -> None:
        """Listen, unless already listening. OSError when the port is taken."""
        with self._guard:
            if self._listener is not None:
                return
            self._listener = _Listener((HOST, self.port), self)
            self.port = self._listener.server_address[1]
            self._accepting = threading.Thread(
                target=self._listener.serve_forever, args=(0.02,), name="memory-server", daemon=True
            )
            self._accepting.start()

    def refuse(self, *, keep: socket.socket | None = None) -> None:
        """Close the listener, then every connection but ``keep``: idle ones of a pool must not outlive it."""
        with self._guard:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown()
            listener.server_close()
        with self._guard:
            open_now = [each for each in self._connections if each is not keep]
        for connection in open_now:
            with contextlib.suppress(OSError):  # its own thread, or the client, closed it first
                connection.shutdown(socket.SHUT_RDWR)

    def drop_all(self) -> None:
        """As a killed process: listener and connections gone, held requests dropped; returns when threads ended."""
        self.refuse()
        self.faults.abandon_gates()
        with self._guard:
            self.life += 1  # under the guard: who has not entered a gate yet will find its life over
            waiting, threads = list(self._waiting), list(self._connections.values())
        for gate in waiting:
            gate.abandon()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_SECONDS)

    def close(self) -> None:
        self.drop_all()
        if self._reserved is not None:
            self._reserved.close()

    def wait(self, gate: Gate, life: int, seconds: float | None = None) -> bool:
        """Enter a gate such that ``drop_all`` finds and abandons it; False when the request's life is over."""
        with self._guard:
            if life != self.life:
                return False
            self._waiting.add(gate)
        try:
            return gate.enter(seconds)
        finally:
            if gate.held == 0:
                with self._guard:
                    self._waiting.discard(gate)

    # -- connections and records

    def track(self, connection: socket.socket, thread: threading.Thread) -> None:
        with self._guard:
            self._connections[connection] = thread

    def untrack(self, connection: socket.socket) -> None:
        with self._guard:
            self._connections.pop(connection, None)

    def record(self, method: str, target: str, route: str | None) -> Exchange:
        with self.lock:
            exchange = Exchange(len(self.requests) + 1, self.model.clock.now(), method, target, route=route)
            self.requests.append(exchange)
            return exchange

    def apply(self, exchange: Exchange) -> Reply:
        """Hand the request to the model; what it changed is persisted before anybody can be told."""
        with self.lock:
            reply = self.model.answer(exchange.method, exchange.target, exchange.raw or None, exchange.headers)
            exchange.applied = reply.applied
            if reply.applied:
                self.on_applied()
            return reply


def _reserve(port: int) -> socket.socket | None:
    """A bound socket that never listens: while the listener is closed nobody else gets the port. Linux alone."""
    if sys.platform != "linux":
        return None
    reserved = socket.socket()
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, port))
    except OSError:
        reserved.close()
        raise
    return reserved


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], skin: Skin) -> None:
        self.skin = skin
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # The base class asks the resolver for this host's name, which may be slow.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        action = self.skin.faults.take("connect")
        if action is not None and action.kind == "close_unread":
            self.skin.dropped += 1
            _reset(request)
            request.close()
            return
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name="memory-request", daemon=True
        )
        self.skin.track(request, thread)
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        # A lingering time of zero means a reset; a shutdown before it would send an orderly end first.
        try:
            lingering = request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
            if struct.unpack("ii", lingering)[0] == 0:
                super().shutdown_request(request)
            else:
                request.close()
        finally:
            self.skin.untrack(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError):
            self.skin.errors.append(error)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def log_message(self, *args: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        self.close_connection = True
        self.raw_requestline = self.rfile.readline(65537)
        parts = self.raw_requestline.decode("latin-1").split()
        if len(parts) < 2:
            return
        method, target = parts[0], parts[1]
        route, _, _ = routes.find(method, target.partition("?")[0])
        name = route.name if route else None
        skin = self.server.skin
        self._life = skin.life
        action = skin.faults.take(name)
        exchange = skin.record(method, target, name)
        exchange.fault = action.kind if action else None
        exchange.unknown = action is not None and action.outcome_unknown
        if action is not None and action.kind == "close_unread":
            _reset(self.connection)
            return
        if not self.parse_request() or not self._read_body(exchange):
            return
        if not self._pass_gates(exchange, after_applying=False):
            return
        self._act(exchange, action or Action("pass", "before"))

    def _read_body(self, exchange: Exchange) -> bool:
        """False when the client went away in the middle of its request."""
        self.close_connection = True  # parsing said otherwise; only a reply that was sent whole keeps the connection
        exchange.headers = {key.lower(): value for key, value in self.headers.items()}
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            self._send(exchange, Reply(411, "Length Required\n"))
            return False
        exchange.raw = self.rfile.read(int(length))
        parsed = parse(exchange.raw) if exchange.raw else None
        exchange.body = None if parsed is BAD_JSON else parsed
        return len(exchange.raw) == int(length)

    def _pass_gates(self, exchange: Exchange, *, after_applying: bool) -> bool:
        skin = self.server.skin
        for gate in skin.faults.gates(exchange.route, after_applying=after_applying):
            if not skin.wait(gate, self._life):
                exchange.unknown = True
                return False
            exchange.unknown = exchange.unknown or self._client_is_gone()
        return True

    def _act(self, exchange: Exchange, action: Action) -> None:
        """The order of one request: change, apply, wait, change, refuse, reply. Nothing is sent before that."""
        skin = self.server.skin
        if action.before is not None:
            skin.faults.change(action.before)
        reply = skin.apply(exchange) if action.apply == "before" else None
        if action.kind == "delay":
            if not skin.wait(action.gate, self._life, action.seconds):
                return
            if action.apply == "after":
                reply = skin.apply(exchange)
        if not self._pass_gates(exchange, after_applying=True):
            return
        if action.after is not None:
            skin.faults.change(action.after)
        if action.then_refuse:
            skin.refuse(keep=self.connection)
        if action.reset:
            _reset(self.connection)
        if action.kind == "answer":
            reply = Reply(action.status, action.body, action.headers)
        elif action.kind == "foreign":
            reply = self._foreign(exchange, action)
        elif action.kind == "close":
            reply = None
        elif action.kind == "half" and reply is None:
            reply = Reply(200, {"status": "half of an answer"})
        skin.before_reply(exchange)
        if reply is not None:
            self._send(exchange, reply, half=action.kind == "half", last=action.then_refuse)
            skin.after_reply(exchange)

    def _foreign(self, exchange: Exchange, action: Action) -> Reply:
        answer = self.server.skin.apply(exchange)
        body = {name: value for name, value in answer.body.items() if name != "instance_id"}
        return Reply(answer.status, body | ({"instance_id": action.body} if action.body is not None else {}))

    def _send(self, exchange: Exchange, reply: Reply, *, half: bool = False, last: bool = False) -> None:
        text = isinstance(reply.body, str)
        payload = reply.body.encode() if text else encode(reply.body)
        kind = "text/plain; charset=utf-8" if text else "application/json"
        headers = {"Content-Type": kind, **reply.headers, "Content-Length": str(len(payload))}
        keep = exchange.method != "HEAD" and not half and not last and self.headers.get("Connection") != "close"
        if not keep:
            headers["Connection"] = "close"
        exchange.status, exchange.reply = reply.status, reply.body
        self.send_response_only(reply.status)
        for name, value in headers.items():
            self.send_header(name, value)
        try:
            self.end_headers()
            self.wfile.write(payload[: len(payload) // 2] if half else payload)
        except OSError:
            exchange.unknown = True  # the client did not wait for the reply
            return
        self.close_connection = not keep

    def _client_is_gone(self) -> bool:
        try:
            return len(self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)) == 0
        except BlockingIOError:
            return False
        except OSError:
            return True
