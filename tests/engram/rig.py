"""Small helpers of the stand-in's own tests: calls of the pure model, and a raw client's view of a server."""

from __future__ import annotations

import http.client
import threading
from typing import Any

from .golden import Answer, send
from .model import Model
from .server import EngramServer
from .state import ManualClock, Reply

ALL = ("old", "2.0", "2.1", "3")
OBSERVATION = {"session_id": "a", "title": "t", "content": "content <b> & é", "project": "p"}
SESSION = {"id": "a", "project": "p", "directory": "/w", "ownership_mode": "project_owned"}


def clock(model: Model) -> ManualClock:
    assert isinstance(model.clock, ManualClock)
    return model.clock


def register(model: Model, key: str = "a", project: str = "p", **extra: Any) -> Reply:
    body = {"id": key, "project": project, "directory": "/w", "ownership_mode": "project_owned"} | extra
    return model.answer("POST", "/sessions", body)


def save(model: Model, key: str = "a", **extra: Any) -> Reply:
    body = {"session_id": key, "title": "t", "content": "some content", "project": "p"} | extra
    return model.answer("POST", "/observations", body)


def made(model: Model, **extra: Any) -> int:
    reply = save(model, **extra)
    assert reply.status == 201, reply
    number: int = reply.body["id"]
    return number


def code(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.body.get("code", "") if isinstance(reply.body, dict) else "text"


def post(server: EngramServer, path: str, body: Any, **headers: str) -> Answer:
    return send(server.url, "POST", path, body, headers)


def get(server: EngramServer, path: str) -> Answer:
    return send(server.url, "GET", path)


def broken(server: EngramServer, method: str = "POST", path: str = "/observations", body: Any = OBSERVATION) -> str:
    """The kind of failure a raw client sees for one request."""
    try:
        answer = send(server.url, method, path, body)
    except http.client.RemoteDisconnected:
        return "disconnected"
    except http.client.IncompleteRead:
        return "incomplete"
    except (ConnectionResetError, BrokenPipeError):
        return "reset"
    except ConnectionRefusedError:
        return "refused"
    except ValueError:
        return "not json"
    return str(answer.status)


class Background:
    """One request on a thread of its own; ``result`` joins it."""

    def __init__(self, server: EngramServer, path: str = "/observations", body: Any = OBSERVATION) -> None:
        self._answer = ""
        self._thread = threading.Thread(target=self._run, args=(server, path, body))
        self._thread.start()

    def _run(self, server: EngramServer, path: str, body: Any) -> None:
        self._answer = broken(server, "POST", path, body)

    def result(self) -> str:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self._answer


def saved(server: EngramServer) -> int:
    return len(server.model.rows.observations)
