"""The bridge's settings: keys, defaults and bounds, and how a file's values and the environment make one config.

Order: unknown keys are refused, the file's values are checked, then the environment is laid over them. A valid
variable therefore never excuses a bad value in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import urlsplit

from .errors import ConfigInvalid

DEFAULT_PORT: Final = 7437
_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "port": (1, 65535),
    "request_timeout_ms": (100, 120_000),
    "startup_timeout_ms": (500, 300_000),
    "fetch_max_attempts": (1, 8),
}
_FLAGS: Final = ("capture_tool_results", "capture_prompts")
_DIGITS: Final = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class MemoryConfig:
    """Settings of the bridge, checked when made.

    ``binary`` is run as ``<binary> serve`` and ``<binary> instance-id``. With ``url`` set, that server is used as it
    is: no identity check, no start, no healing. Timeouts are milliseconds: one attempt of a request (100 to 120,000),
    a start (500 to 300,000). ``fetch_max_attempts`` (1 to 8) counts the first one.

    :raises ConfigInvalid: a value of the wrong type or out of bounds; the cause names the key.
    """

    binary: str = "engram"
    url: str | None = None
    port: int = DEFAULT_PORT
    capture_tool_results: bool = True
    capture_prompts: bool = True
    request_timeout_ms: int = 3000
    startup_timeout_ms: int = 10_000
    fetch_max_attempts: int = 3

    def __post_init__(self) -> None:
        # frozen: what is checked here is what is used, so nothing below checks again
        object.__setattr__(self, "binary", _binary(self.binary, "binary"))
        object.__setattr__(self, "url", _url(self.url, "url"))
        for key, (low, high) in _BOUNDS.items():
            _whole(getattr(self, key), key, low, high)
        for key in _FLAGS:
            if not isinstance(getattr(self, key), bool):
                raise ConfigInvalid(f"{key} is no boolean", f"set {key} to true or false")

    @property
    def base_url(self) -> str:
        """Where requests go, without a slash at its end."""
        return (self.url or f"http://127.0.0.1:{self.port}").rstrip("/")


KEYS: Final = tuple(field.name for field in fields(MemoryConfig))


def load_config(file_values: Mapping[str, Any] | None, environ: Mapping[str, str]) -> MemoryConfig:
    """The config of a file's values (None or empty: every default) under ENGRAM_BIN, ENGRAM_URL and ENGRAM_PORT.

    A variable that is blank counts as unset; a blank url counts as none.

    :raises ConfigInvalid: an unknown key, a bad value, or a malformed variable; the cause names it.
    """
    values = dict(file_values or {})
    unknown = sorted(str(key) for key in values if key not in KEYS)
    if unknown:
        raise ConfigInvalid(
            f"unknown key{'s' if len(unknown) > 1 else ''} {', '.join(map(repr, unknown))} in the memory configuration",
            f"the keys are {', '.join(KEYS)}",
        )
    MemoryConfig(**values)  # the file alone, before the environment
    for key, name in (("binary", "ENGRAM_BIN"), ("url", "ENGRAM_URL"), ("port", "ENGRAM_PORT")):
        text = environ.get(name, "").strip()
        if text:
            values[key] = _from_environment(key, name, text)
    return MemoryConfig(**values)


def _from_environment(key: str, name: str, text: str) -> str | int | None:
    if key == "binary":
        return _binary(text, name)
    if key == "url":
        return _url(text, name)
    low, high = _BOUNDS["port"]
    if not _DIGITS.fullmatch(text):
        raise ConfigInvalid(f"{name} is no port number", f"set {name} to an integer from {low} to {high}, or unset it")
    return _whole(int(text), name, low, high)


def _whole(value: Any, name: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:  # a bool is not an int here, a float is never truncated
        raise ConfigInvalid(f"{name} is no integer from {low} to {high}", f"set {name} within these bounds")
    return value


def _binary(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ConfigInvalid(f"{name} is no program name", f"set {name} to the engram program, or leave it out")
    return value.strip()


def _url(value: Any, name: str) -> str | None:
    if value is None:
        return None
    remedy = f"set {name} to something like http://host:{DEFAULT_PORT}, or leave it blank"
    if not isinstance(value, str):
        raise ConfigInvalid(f"{name} is no text", remedy)
    text = value.strip()
    if not text:
        return None
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not text.isascii() or re.search(r"[\s\\\x00-\x1f\x7f]", text):
        raise ConfigInvalid(f"{name} is no http or https address", remedy)
    if "@" in parts.netloc or "?" in text or "#" in text:  # the cause must not quote it: it may hold a password
        raise ConfigInvalid(
            f"{name} holds a user, a query or a fragment", f"{remedy}; a token goes in ENGRAM_HTTP_TOKEN"
        )
    return text
