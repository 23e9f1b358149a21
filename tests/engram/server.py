"""``EngramServer``: the stand-in memory server of one test, over real HTTP on 127.0.0.1.

with EngramServer("3") as server:
    server.model.resolve_to("/w", "demo")
    server.faults.on("POST /observations", faults.lose_reply())
    ...
    server.check_invariants(agents={"agent-1": []}, projects={"agent-1": "demo"})
"""

from __future__ import annotations

import os
import secrets as random_source
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from .http import HOST, Skin
from .invariants import Agents, Entry, violations
from .model import Model
from .record import Exchange
from .state import Clock, Generation, ManualClock, Rows, Session

INSTANCE_FILE = ".instance-id"
ROWS_FILE = "rows.json"


def instance_of(data_dir: Path) -> str:
    """The id in the data directory: 16 random bytes as lower hex, made once. Safe against two makers at a time."""
    path = data_dir / INSTANCE_FILE
    data_dir.mkdir(parents=True, exist_ok=True)
    mine = data_dir / f"{INSTANCE_FILE}.{os.getpid()}.{random_source.token_hex(4)}"
    if not path.exists():
        mine.write_text(random_source.token_hex(16), encoding="ascii")
        try:
            os.link(mine, path)  # fails when somebody was first: then theirs counts
        except FileExistsError:
            pass
        finally:
            mine.unlink()
    return path.read_text(encoding="ascii").strip()


class EngramServer:
    """Listens from the constructor on, until ``close``.

    ``generation``: "old", "2.0", "2.1", "3" or a ``Generation``. ``clock``: a ``ManualClock`` unless given, reached as
    ``server.clock``. ``data_dir`` makes rows and identity outlive the object: they are read at the start and written
    after every applied request, before its reply. ``directory`` is the server's own working directory,
    ``process_project`` its ENGRAM_PROJECT. OSError when ``port`` is taken.
    """

    def __init__(
        self,
        generation: str | Generation = "3",
        *,
        clock: Clock | None = None,
        instance_id: str | None = None,
        token: str | None = None,
        data_dir: Path | None = None,
        port: int = 0,
        directory: str = "/srv/memory-server",
        process_project: str = "",
    ) -> None:
        self._data_dir = data_dir
        rows = None
        if data_dir is not None:
            instance_id = instance_id or instance_of(data_dir)
            if (data_dir / ROWS_FILE).exists():
                rows = Rows.from_json((data_dir / ROWS_FILE).read_text(encoding="utf-8"))
        self.model = Model(
            generation,
            clock=clock,
            instance_id=instance_id or random_source.token_hex(16),
            token=token,
            directory=directory,
            process_project=process_project,
            rows=rows,
        )
        self._skin = Skin(self.model, port=port)
        if data_dir is not None:
            self._skin.on_applied = self._save
        self.faults = self._skin.faults

    # -- life

    def __enter__(self) -> EngramServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None and self._skin.errors:
            raise AssertionError("the stand-in itself failed") from self._skin.errors[0]

    def close(self) -> None:
        """As a kill: connections drop, held requests end unanswered and what was not applied stays so. Idempotent."""
        self._skin.close()

    def restart(self) -> None:
        """Kill and start again on the same port; rows, identity and the rest of the fault script are kept."""
        self._skin.drop_all()
        self._skin.open()

    def _save(self) -> None:
        assert self._data_dir is not None
        path = self._data_dir / ROWS_FILE
        fresh = path.with_suffix(".new")
        fresh.write_text(self.model.rows.to_json(), encoding="utf-8")
        fresh.replace(path)

    # -- what it is

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def port(self) -> int:
        return self._skin.port

    @property
    def skin(self) -> Skin:
        """For hooks around replies; tests of the bridge need it not."""
        return self._skin

    @property
    def instance_id(self) -> str:
        return self.model.instance_id

    @property
    def clock(self) -> ManualClock:
        if not isinstance(self.model.clock, ManualClock):
            raise TypeError("this server runs on a clock of the test's own")
        return self.model.clock

    # -- what happened

    @property
    def requests(self) -> list[Exchange]:
        """Every request so far, in the order of arrival."""
        with self._skin.lock:
            return list(self._skin.requests)

    def seen(self, route: str) -> list[Exchange]:
        """The requests of one route, named as in the route table."""
        return [exchange for exchange in self.requests if exchange.route == route]

    def forget(self) -> None:
        """Start the record anew."""
        with self._skin.lock:
            self._skin.requests.clear()

    @property
    def dropped(self) -> int:
        """Connections closed at their acceptance by a ``connect`` fault."""
        return self._skin.dropped

    def live_candidates(self, project: str, directory: str) -> list[Session]:
        with self._skin.lock:
            return self.model.live_candidates(project, directory)

    def rows(self, agent_id: str, keys: Iterable[str] = ()) -> list[Session]:
        """The agent's session rows: its own, its ``:resume:N`` ones, and those of the rotated ``keys``."""
        wanted = {agent_id, *keys}
        with self._skin.lock:
            return [
                row
                for key, row in self.model.rows.sessions.items()
                if key in wanted or key.startswith(f"{agent_id}:resume:")
            ]

    def check_invariants(
        self,
        *,
        agents: Agents | None = None,
        projects: Mapping[str, str] | None = None,
        readers: Iterable[str] = (),
        secrets: Iterable[str] = (),
        ends: Iterable[str] = (),
        entries: Iterable[Entry] = (),
        late_writes: bool = False,
    ) -> None:
        """AssertionError with every broken invariant, one a line.

        ``agents``: agent id to its rotated keys, or to their number; any other row is one too many.
        ``projects``: agent id to the project its session resolved to.
        ``readers``: agents that only read.
        ``secrets``: planted texts that no request may carry, raw, escaped or percent-encoded.
        ``ends``: keys that ``session_end`` was called for, once per call.
        ``entries``: outbox entries; exactly one effect each on a server with operation ids, never sent again after an
        unknown outcome on the others.
        ``late_writes``: the test lets frozen entries reach a row that ended more than 60 s ago.

        Unscoped reads, an Authorization header on /health and ends that nobody asked for are always looked for.
        """
        with self._skin.lock:
            found = violations(
                self.model,
                self._skin.requests,
                agents=agents,
                projects=projects,
                readers=readers,
                secrets=secrets,
                ends=ends,
                entries=entries,
                late_writes=late_writes,
            )
        if found:
            raise AssertionError("\n".join(found))
