"""Requests as they go on the wire: path, query and body, each without its private blocks before it is encoded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias
from urllib.parse import unquote

from scopelog.errors import InvalidInput

from .redaction import Json, redact, redact_url_value

Scalar: TypeAlias = str | int | float | bool | None
Query: TypeAlias = Mapping[str, Scalar]


def spell_path(path: str | Sequence[str]) -> str:
    """Segments of plain text, or one text that starts with a slash and may be percent-encoded, as a URL's path.

    :raises InvalidInput: an empty segment or one of dots, a query or fragment, a lone surrogate.
    """
    if isinstance(path, str):
        clean = redact(path)  # before the split: a closing tag holds a slash
        if not clean.startswith("/") or "?" in clean or "#" in clean:
            raise InvalidInput("the path is none that starts with a slash and has no query", "pass the query apart")
        segments: Sequence[str] = [unquote(segment) for segment in clean[1:].split("/")]
    else:
        segments = path
    if not segments or any(segment in ("", ".", "..") for segment in segments):
        raise InvalidInput("a segment of the path is empty or dots", "name what the request is about")
    return "".join(f"/{redact_url_value(segment)}" for segment in segments)


def spell_query(query: Query | None) -> str:
    """The query with its question mark, '' where nothing is left once None and '' are dropped."""
    pairs = [
        f"{redact_url_value(name)}={redact_url_value(_text(value))}"
        for name, value in (query or {}).items()
        if value is not None and value != ""
    ]
    return "?" + "&".join(pairs) if pairs else ""


def spell_body(body: Json) -> bytes | None:
    """The body as JSON, the same bytes for the same value; None for none.

    :raises InvalidInput: it is no JSON, or nested too deep.
    """
    if body is None:
        return None
    clean = redact(body)
    try:
        try:
            return json.dumps(clean, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:  # lone surrogates travel as escapes
            return json.dumps(clean, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the body is no JSON ({type(error).__name__})", "send plain JSON data") from None


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
