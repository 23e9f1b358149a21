"""memory check: whether the memory server and a directory's project can be used, and if not, why. Writes nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ..clients.memory import EngramError, MemoryConfig, ServerUnavailable, load_config
from ..clients.memory.processes import Child, EngramProcess
from ..clients.memory.projects import resolve_project
from ..clients.memory.registration import RESUME
from ..clients.memory.server import ServerKeeper
from ..clients.memory.transport import Transport, require_httpx2
from ..errors import ScopelogError
from . import output
from .output import printable

_TOLD: Final = (
    "exact: an entry whose outcome is unknown is looked up or sent again, and the server knows repeats: "
    "everything arrives once"
)
_NOT_TOLD: Final = (
    "never repeated: the server does not say that it knows repeats, so a prompt or learning whose outcome is unknown "
    "is set aside; a save is looked up, and set aside where that does not settle it"
)
_STATES: Final[Mapping[str, tuple[str, str]]] = {
    "refused": ("nobody listens at {url}", "start it, or correct ENGRAM_URL"),
    "foreign": ("what answers at {url} is no memory server", "correct ENGRAM_URL"),
    "indeterminate": ("{url} gives no healthy answer in time", "look at the server's log, or correct ENGRAM_URL"),
}


_UNSTARTED: Final[Mapping[str, tuple[str, str]]] = {
    "refused": ("no server runs at {url}", "start it with scopelog memory check --start; the bridge does so by itself"),
    "indeterminate": (
        "something listens at {url}, but gives no healthy answer",
        "stop it, choose another port with ENGRAM_PORT, or look at the server's log",
    ),
}


def check(cwd: str | None, start: bool, as_json: bool) -> None:
    """Look at server and project; raises what stands against either, once everything that is known was printed."""
    config = load_config(None, os.environ)
    require_httpx2()
    directory = os.path.abspath(os.getcwd() if cwd is None else cwd)
    found: dict[str, Any] = {
        "ok": False,
        "url": config.base_url,
        "configured": config.url is not None,
        **dict.fromkeys(("expected", "instance", "version", "capabilities", "repeats")),
        "cwd": directory,
        **dict.fromkeys(("project", "source", "error")),
    }
    failure: ScopelogError | None = None
    try:
        asyncio.run(_look(config, directory, start, found))
    except EngramError as error:
        failure = error
        found["error"] = {"cause": error.cause, "remedy": error.remedy}
    found["ok"] = failure is None
    if as_json:
        output.put_json(found)
    else:
        _show(found)
    if failure is not None:
        raise failure


async def _look(config: MemoryConfig, directory: str, start: bool, found: dict[str, Any]) -> None:
    transport = Transport(config)
    keeper = ServerKeeper(config, transport, spawn=EngramProcess if start else _spawn_nothing)
    try:
        try:
            await keeper.ensure()
        except EngramError as error:
            failed: EngramError | None = error
        else:
            failed = None
        found["expected"] = keeper.instance
        probe = await transport.probe(None)  # whoever it is: what it says of itself is shown
        found["instance"] = probe.instance or None
        found["version"] = probe.version or None
        if isinstance(failed, ServerUnavailable) and not start and probe.state in _UNSTARTED:
            cause, remedy = _UNSTARTED[probe.state]
            raise ServerUnavailable(cause.format(url=config.base_url), remedy) from failed
        if failed is not None:
            raise failed
        if probe.state != "ready":
            cause, remedy = _STATES[probe.state]
            raise ServerUnavailable(cause.format(url=config.base_url), remedy)
        found["capabilities"] = sorted(probe.capabilities)
        found["repeats"] = "exact" if RESUME in probe.capabilities else "never repeated"
        resolution = await resolve_project(transport, directory)
        if resolution.state != "resolved":
            raise replace(resolution, cwd=directory).error()
        found["project"], found["source"] = resolution.project, resolution.source or None
    finally:
        await keeper.aclose()
        await transport.aclose()


def _spawn_nothing(_argv: Sequence[str], _environ: Mapping[str, str]) -> Child:
    raise OSError(0, "without --start none is started")


def _show(found: Mapping[str, Any]) -> None:
    whose = "ENGRAM_URL: used as it is" if found["configured"] else "must be this machine's own instance"
    rows = [("server", f"{found['url']} ({whose})")]
    if found["expected"] is not None:
        rows.append(("expected instance", found["expected"]))
    if found["instance"] is not None:
        rows.append(("instance", found["instance"]))
    if found["capabilities"] is not None:
        rows += [
            ("version", found["version"] or "not told"),
            ("capabilities", ", ".join(found["capabilities"]) or "none"),
            ("repeats", _TOLD if found["repeats"] == "exact" else _NOT_TOLD),
        ]
    rows.append(("directory", found["cwd"]))
    if found["project"] is not None:
        source = f" ({found['source']})" if found["source"] else ""
        rows.append(("project", f"{found['project']}{source}"))
    for name, text in rows:
        output.put_text(f"{name}: {printable(text)}")
