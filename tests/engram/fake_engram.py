"""A stand-in for the server's executable: ``python -m tests.engram.fake_engram instance-id | serve [port]``.

It honours ENGRAM_DATA_DIR, ENGRAM_PORT, ENGRAM_PROJECT and ENGRAM_HTTP_TOKEN, and logs every invocation. What goes
wrong is told by the environment:

    FAKE_ENGRAM_LOG              append one JSON line an invocation: argv, pid, chosen environment
    FAKE_ENGRAM_REQUESTS         append one JSON line a recorded request, before its reply
    FAKE_ENGRAM_GENERATION       "old", "2.0", "2.1" or "3"
    FAKE_ENGRAM_ID_OUTPUT        print this instead of the instance id
    FAKE_ENGRAM_ID_EXIT          leave ``instance-id`` with this status
    FAKE_ENGRAM_SERVE_EXIT       leave ``serve`` with this status, at once
    FAKE_ENGRAM_WAIT_FOR         bind only once this file exists
    FAKE_ENGRAM_NEVER_BIND       stay alive without binding
    FAKE_ENGRAM_PORT_OWNED       leave ``serve`` with 0 as if the same instance had the port
    FAKE_ENGRAM_DIE_AFTER        die with status 1 after the reply of the Nth request
    FAKE_ENGRAM_DIE_UNANSWERED   die with status 1 instead of the reply of the Nth request; it may be applied
    FAKE_ENGRAM_DIE_ROUTE        count the requests of this route alone, for instance "POST /observations"
    FAKE_ENGRAM_LIFETIME         seconds until it leaves on its own (120), so that a broken test leaves no process
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from .http import HOST
from .record import Exchange
from .server import EngramServer, instance_of
from .state import SystemClock

DEFAULT_PORT = 7437
LOGGED = ("ENGRAM_", "FAKE_ENGRAM_")
FILE_POLL_SECONDS = 0.01


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    _log(arguments, environment)
    command = arguments[0] if arguments else ""
    data_dir = Path(environment.get("ENGRAM_DATA_DIR") or Path.home() / ".engram")
    if command == "instance-id" and environment.get("FAKE_ENGRAM_GENERATION") != "old":
        print(environment.get("FAKE_ENGRAM_ID_OUTPUT") or instance_of(data_dir))
        return int(environment.get("FAKE_ENGRAM_ID_EXIT") or 0)
    if command == "serve":
        return _serve(arguments[1:], environment, data_dir)
    print(f"unknown command {command}", file=sys.stderr)
    return 2


def _log(arguments: list[str], environment: Mapping[str, str]) -> None:
    path = environment.get("FAKE_ENGRAM_LOG")
    if path:
        chosen = {name: value for name, value in sorted(environment.items()) if name.startswith(LOGGED)}
        _append(path, {"argv": arguments, "pid": os.getpid(), "env": chosen})


def _append(path: str, line: object) -> None:
    """One write of one line, so that two processes do not mix theirs."""
    with open(path, "ab", buffering=0) as log:
        log.write((json.dumps(line) + "\n").encode())


def _serve(arguments: list[str], environment: Mapping[str, str], data_dir: Path) -> int:
    text = arguments[0] if arguments else environment.get("ENGRAM_PORT") or str(DEFAULT_PORT)
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        print(f"invalid port {text}", file=sys.stderr)
        return 2
    if environment.get("FAKE_ENGRAM_SERVE_EXIT"):
        return int(environment["FAKE_ENGRAM_SERVE_EXIT"])
    if environment.get("FAKE_ENGRAM_PORT_OWNED"):
        return 0
    leave = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: leave.set())
    lifetime = float(environment.get("FAKE_ENGRAM_LIFETIME") or 120)
    threading.Thread(target=_end_of_life, args=(lifetime,), daemon=True).start()
    # A server on a unix socket has no TCP port at all.
    if environment.get("FAKE_ENGRAM_NEVER_BIND") or environment.get("ENGRAM_SOCKET"):
        leave.wait()
        return 0
    awaited = environment.get("FAKE_ENGRAM_WAIT_FOR")
    while awaited and not Path(awaited).exists() and not leave.wait(FILE_POLL_SECONDS):
        pass
    if leave.is_set():
        return 0
    return _listen(int(text), environment, data_dir, leave)


def _listen(port: int, environment: Mapping[str, str], data_dir: Path, leave: threading.Event) -> int:
    identity = instance_of(data_dir)
    try:
        server = EngramServer(
            environment.get("FAKE_ENGRAM_GENERATION") or "3",
            clock=SystemClock(),
            token=environment.get("ENGRAM_HTTP_TOKEN"),
            data_dir=data_dir,
            port=port,
            directory=os.getcwd(),
            process_project=environment.get("ENGRAM_PROJECT", ""),
        )
    except OSError as error:
        if _owner(port) == identity:
            print("this instance is already serving", file=sys.stderr)
            return 0
        print(f"port {port}: {error}", file=sys.stderr)
        return 1
    _hook(server, environment)
    with server:
        leave.wait()
    return 0


def _hook(server: EngramServer, environment: Mapping[str, str]) -> None:
    """Records and deaths. A death is abrupt: no clean-up, as after a kill."""
    requests = environment.get("FAKE_ENGRAM_REQUESTS")
    unanswered = int(environment.get("FAKE_ENGRAM_DIE_UNANSWERED") or 0)
    after = int(environment.get("FAKE_ENGRAM_DIE_AFTER") or 0)
    route = environment.get("FAKE_ENGRAM_DIE_ROUTE") or None

    def count(exchange: Exchange) -> int:
        """This request's number among the counted ones; 0 when it is none of them."""
        if route and exchange.route != route:
            return 0
        return sum(each.order <= exchange.order and route in (None, each.route) for each in server.requests)

    def before_reply(exchange: Exchange) -> None:
        if requests:
            line = {
                "order": exchange.order,
                "method": exchange.method,
                "target": exchange.target,
                "headers": exchange.headers,
                "body": exchange.body,
                "applied": exchange.applied,
            }
            _append(requests, line)
        if unanswered and count(exchange) >= unanswered:
            os._exit(1)

    def after_reply(exchange: Exchange) -> None:
        if after and count(exchange) >= after:
            os._exit(1)

    server.skin.before_reply, server.skin.after_reply = before_reply, after_reply


def _owner(port: int) -> str | None:
    """The instance id of whoever answers on the port."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        body = json.loads(connection.getresponse().read())
        return str(body.get("instance_id"))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _end_of_life(seconds: float) -> None:
    threading.Event().wait(seconds)
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
