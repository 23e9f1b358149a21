"""How a list of sessions is chosen and arranged. Pure."""

from __future__ import annotations

import heapq
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from itertools import islice
from typing import Any, Final, Literal, TypeAlias, get_args

from scopelog_engine.errors import InvalidInput
from scopelog_engine.info import SessionInfo

Sort: TypeAlias = Literal["id", "name", "created", "updated", "commits", "elements", "frames", "bytes"]
SORTS: Final[tuple[str, ...]] = get_args(Sort)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a whole text matches a pattern of ``*``, ``?`` and ``[...]``; upper and lower case differ."""
    if not isinstance(pattern, str):
        raise InvalidInput(f"a pattern is a {type(pattern).__name__}, not a str", "pass a str such as 'chat-*'")
    if pattern == "*":
        return lambda _: True
    match = re.compile(translate(pattern)).match
    return lambda text: match(text) is not None


def check_listing(sort: str, limit: int | None) -> None:
    if sort not in SORTS:
        raise InvalidInput(f"sort is {sort!r}", f"pass one of {', '.join(SORTS)}")
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidInput(f"limit is {limit!r}", "pass an int from 0 on, or None for no limit")


def arrange(infos: Iterable[SessionInfo], sort: Sort, reverse: bool, limit: int | None) -> Iterator[SessionInfo]:
    """``infos`` come in order of ids, or in the reverse if that is what is asked for."""
    limit = None if limit is None else min(limit, sys.maxsize)
    if sort == "id":
        yield from islice(infos, limit)
        return
    place = SessionInfo._fields.index(sort)

    def key(info: SessionInfo) -> tuple[bool, Any, str]:
        found = info[place]
        return found is not None, found, info.id

    if limit is None:
        yield from sorted(infos, key=key, reverse=reverse)
    else:
        yield from (heapq.nlargest if reverse else heapq.nsmallest)(limit, infos, key=key)
