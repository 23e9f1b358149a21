"""Replay of ``golden.json`` against any server: the stand-in, or a real one that ENGRAM_URL names."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

TABLE = Path(__file__).with_name("golden.json")


@dataclass(frozen=True)
class Answer:
    """``body`` is parsed JSON, or ``None`` with ``text`` for what is none."""

    status: int
    body: Any
    text: str
    headers: dict[str, str]


def exchanges() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))["exchanges"]
    return found


def send(
    url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 10.0
) -> Answer:
    """One request on a connection of its own. OSError and http.client errors pass through."""
    parts = urlsplit(url)
    factory = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = factory(parts.hostname or "", parts.port, timeout=timeout)
    try:
        sent = dict(headers or {})
        payload = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if payload is not None:
            sent.setdefault("Content-Type", "application/json")
        connection.request(method, parts.path.rstrip("/") + path, payload, sent)
        response = connection.getresponse()
        text = response.read().decode("utf-8")
        kept = {name.lower(): value for name, value in response.getheaders()}
        is_json = kept.get("content-type", "").startswith("application/json")
        return Answer(response.status, json.loads(text) if is_json else None, text, kept)
    finally:
        connection.close()


def replay(url: str, variables: dict[str, Any], token: str = "") -> list[str]:
    """Run the table in order; returns one line for each exchange that was answered otherwise."""
    known, wrong = dict(variables), []
    for exchange in exchanges():
        path = fill(exchange["path"], known, quoted=True)
        headers = {"Authorization": f"Bearer {token}"} if token and exchange.get("token") else {}
        answer = send(url, exchange["method"], path, fill(exchange.get("body"), known), headers)
        if answer.status != exchange["status"]:
            wrong.append(f"{exchange['name']}: status {answer.status}, expected {exchange['status']}: {answer.text}")
            continue
        got = answer.text if exchange["shape"] == "text" and answer.body is None else answer.body
        wrong += [f"{exchange['name']}: {line}" for line in differences(fill(exchange["shape"], known), got)]
        if isinstance(answer.body, dict):
            known |= {name: answer.body.get(field) for name, field in exchange.get("keep", {}).items()}
    return wrong


def fill(value: Any, variables: dict[str, Any], *, quoted: bool = False) -> Any:
    """Variables put in; a text that is one variable alone takes the variable's type."""
    if isinstance(value, dict):
        return {key: fill(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, variables) for item in value]
    if not isinstance(value, str):
        return value
    for name, content in variables.items():
        if value == f"{{{name}}}" and not quoted:
            return content
        value = value.replace(f"{{{name}}}", quote(str(content), safe="") if quoted else str(content))
    return value


KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "number": (int, float), "bool": (bool,)}


def differences(shape: Any, got: Any, where: str = "body") -> list[str]:
    """How ``got`` departs from ``shape``; one line each. A bool is no int."""
    if shape == "any":
        return []
    if shape == "text":
        return [] if isinstance(got, str) else [f"{where} is JSON, expected plain text"]
    if isinstance(shape, str):
        fits = isinstance(got, KINDS[shape]) and (shape == "bool" or not isinstance(got, bool))
        return [] if fits else [f"{where} is {got!r}, expected {shape}"]
    if "$is" in shape:
        same = got == shape["$is"] and type(got) is type(shape["$is"])
        return [] if same else [f"{where} is {got!r}, expected {shape['$is']!r}"]
    if "$list" in shape:
        if got is None:
            return []
        if not isinstance(got, list):
            return [f"{where} is {got!r}, expected a list or null"]
        return [line for n, item in enumerate(got) for line in differences(shape["$list"], item, f"{where}[{n}]")]
    if not isinstance(got, dict):
        return [f"{where} is {got!r}, expected an object"]
    lines: list[str] = []
    for key, inner in shape.items():
        name = key.removesuffix("?")
        if name in got:
            lines += differences(inner, got[name], f"{where}.{name}")
        elif name == key:
            lines.append(f"{where}.{name} is missing")
    return lines
