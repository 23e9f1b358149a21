"""index: deriving it again, looking at it, and doing without."""

from __future__ import annotations

import time

from scopelog_engine.check import Finding
from scopelog_engine.layout import check_id
from scopelog_engine.rebuild import Rebuilt, rebuild

from . import output
from .looking import opened, raise_unread
from .output import printable


def rebuild_index(path: str, sessions: tuple[str, ...], as_json: bool) -> None:
    """Derive the index again; each session is told when it is done. Raises for those that could not be read."""
    unreadable: list[Finding] = []
    done: list[Rebuilt] = []
    with opened(path) as store:
        wanted = [check_id("session", session) for session in sessions] or None
        started = time.monotonic()
        for one in rebuild(store._store, wanted, unreadable.append):
            done.append(one)
            if as_json:
                output.put_json({"session": one.session, "bytes": one.bytes, "covered_bytes": one.covered})
                output.flush()
            elif one.covered:
                output.put_text(
                    f"{printable(one.session)}: {one.covered:,} of {output.count(one.bytes, 'byte')} covered"
                )
                output.flush()
        seconds = time.monotonic() - started
        total = sum(one.bytes for one in done)
        if as_json:
            summary = {"sessions": len(done), "log_bytes": total, "seconds": round(seconds, 3)}
            output.put_json({"done": True, **summary, "index": store.index_state()})
        else:
            output.put_text(f"{output.count(len(done), 'session')}, {output.count(total, 'byte')} of log")
    raise_unread(unreadable)


def stat_index(path: str, as_json: bool) -> None:
    """What the index is, and what it covers."""
    with opened(path) as store:
        state = store.index_state()
        if as_json:
            output.put_json(state)
        else:
            rows = [(name, "" if value is None else str(value)) for name, value in state.items()]
            output.put_table(("", ""), rows)


def discard_index(path: str) -> None:
    """Remove the index's files; it comes back when there is need."""
    with opened(path) as store:
        store.discard_index()
        output.put_text("removed")
