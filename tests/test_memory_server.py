"""Behaviours 30 to 44: whose server it is, joining, starting and healing it. Scripted first, then real processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scopelog import HandleClosed
from scopelog.clients.memory.config import MemoryConfig
from scopelog.clients.memory.errors import EngramError, RequestRefused, ServerRefused, ServerUnavailable
from scopelog.clients.memory.processes import EngramProcess, ask
from scopelog.clients.memory.replies import Probe, ProbeState
from scopelog.clients.memory.server import ServerKeeper
from scopelog.clients.memory.transport import Transport

from .engram import EngramServer, FakeBinary, free_port, write_binary
from .memory_wire import Answer, Time, Wire, run

ID = "0123456789abcdef" * 2
OWN = ["2.0", "2.1", "3"]  # generations that say who they are


class FakeChild:
    def __init__(self, status: int | None = None) -> None:
        self.status = status
        self.terminated = False

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.terminated = True


class Rig:
    """A keeper whose probes, identity and children are scripted. The last probe of the script goes on for ever."""

    def __init__(self, *probes: ProbeState, said: bytes = ID.encode() + b"\n", status: int = 0, **config: Any) -> None:
        self.time = Time()
        self.probes = list(probes) or ["refused"]
        self.probed = 0
        self.failures = 0
        self.asked: list[list[str]] = []
        self.spawned: list[tuple[list[str], dict[str, str]]] = []
        self.child: FakeChild | OSError = FakeChild()
        self.identity: tuple[int, bytes] | OSError = (status, said)
        self.environ = {"PATH": "/bin", "ENGRAM_DATA_DIR": "/d"}
        self.config = MemoryConfig(**config)
        self.on_probe: Callable[[], Awaitable[None]] | None = None
        self.keeper = ServerKeeper(
            self.config,
            self,
            environ=self.environ,
            clock=self.time.clock,
            sleep=self.time.sleep,
            spawn=self.spawn,
            ask=self.ask,
        )

    async def probe(self, expected_instance: str | None, *, timeout: float = 0.5) -> Probe:
        assert expected_instance == (ID if self.config.url is None else None) and 0 < timeout <= 0.5
        self.probed += 1
        if self.on_probe is not None:
            await self.on_probe()
        return Probe(self.probes.pop(0) if len(self.probes) > 1 else self.probes[0])

    async def ask(self, argv: Sequence[str], environ: Mapping[str, str], limit: float) -> tuple[int, bytes]:
        assert environ == {**self.environ, "ENGRAM_NO_UPDATE_CHECK": "1"} and limit <= 10
        self.asked.append(list(argv))
        if isinstance(self.identity, OSError):
            raise self.identity
        return self.identity

    def spawn(self, argv: Sequence[str], environ: Mapping[str, str]) -> FakeChild:
        self.spawned.append((list(argv), dict(environ)))
        if isinstance(self.child, OSError):
            raise self.child
        return self.child


def test_a_server_with_the_same_id_is_joined(caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 30."""

    async def main() -> None:
        rig = Rig("ready")
        await rig.keeper.ensure()
        await rig.keeper.ensure()
        assert (rig.probed, rig.spawned, caplog.records) == (1, [], [])
        assert rig.keeper.instance == ID

    run(main)


def test_another_instance_is_refused_without_a_start() -> None:
    """Behaviour 31."""

    async def main() -> None:
        rig = Rig("foreign")
        with pytest.raises(ServerRefused, match="ownership mismatch"):
            await rig.keeper.ensure()
        assert (rig.probed, rig.spawned) == (1, [])

    run(main)


@pytest.mark.parametrize("body", [{"status": "ok", "service": "engram"}, {"instance_id": None}, b"not json"])
def test_a_server_that_does_not_say_who_it_is_is_refused(body: Any) -> None:
    """Behaviours 32 and 33."""
    pytest.importorskip("httpx2", reason="the extra engram is not installed")

    async def main() -> None:
        async with Wire(Answer(body=body)) as wire:
            rig = Rig(port=wire.port)
            transport = Transport(rig.config, environ={})
            rig.keeper._prober = transport
            with pytest.raises(ServerRefused, match="ownership mismatch"):
                await rig.keeper.ensure()
            assert len(wire.seen) == 1 and rig.spawned == []
            await transport.aclose()

    run(main)


@pytest.mark.parametrize(
    ("said", "status"),
    [(b"garbage", 0), (b"", 0), (ID.upper().encode(), 0), (ID.encode() + b"0", 0), (b"\xff" * 32, 0), (ID.encode(), 3)],
)
def test_an_identity_that_cannot_be_read_names_the_way_out(said: bytes, status: int) -> None:
    """Behaviours 34 and 35."""

    async def main() -> None:
        rig = Rig(said=said, status=status)
        with pytest.raises(ServerRefused, match=r"identity .* could not be read.*ENGRAM_URL"):
            await rig.keeper.ensure()
        assert (rig.asked, rig.probed, rig.spawned) == ([["engram", "instance-id"]], 0, [])

    run(main)


def test_a_missing_binary_names_the_way_out() -> None:
    """Behaviour 34, in intent."""

    async def main() -> None:
        rig = Rig()
        rig.identity = FileNotFoundError(2, "No such file or directory")
        with pytest.raises(ServerRefused, match=r"No such file.*ENGRAM_BIN.*ENGRAM_URL"):
            await rig.keeper.ensure()

    run(main)


def test_with_a_url_nothing_is_run_and_nothing_healed() -> None:
    """Behaviours 36 and 40."""

    async def main() -> None:
        rig = Rig(url="http://elsewhere:1")
        rig.identity = FileNotFoundError(2, "No such file or directory")
        await rig.keeper.ensure()
        assert await rig.keeper.heal() is False
        # asked once what it can do, and not who it is
        assert (rig.asked, rig.probed, rig.spawned) == ([], 1, [])

    run(main)


@pytest.mark.parametrize("url", [None, "http://elsewhere:1"])
def test_a_server_is_looked_at_again_after_a_failure_and_each_minute(url: str | None) -> None:
    """Another one may have taken its place; one that gives no healthy answer is left alone for a second."""

    async def main() -> None:
        rig = Rig("ready", url=url)
        looks = []
        for seconds, failures in ((0.0, 0), (59, 0), (1, 0), (0, 1), (0, 0), (59, 1), (0, 0), (60, 0)):
            rig.time.now += seconds
            rig.failures += failures
            await asyncio.gather(rig.keeper.ensure(), rig.keeper.ensure())
            looks.append(rig.probed)
        assert looks == [1, 1, 2, 3, 3, 4, 4, 5] and rig.spawned == []
        rig.probes, rig.failures = ["indeterminate"], 9
        for seconds in (0, 0.5, 0.5):
            rig.time.now += seconds
            await rig.keeper.ensure()
        assert rig.probed == 7
        rig.probes, rig.failures = ["foreign"], 10
        if url is None:
            for _ in range(2):
                with pytest.raises(ServerRefused, match="ownership mismatch"):
                    await rig.keeper.ensure()
        else:
            await rig.keeper.ensure()
        rig.probes = ["ready"]
        rig.time.now += 1
        await rig.keeper.ensure()

    run(main)


def test_a_refused_probe_starts_one_child_and_polls_until_ready() -> None:
    """Behaviours 37, 42 and 43: one of each, on the configured port, without a socket; the child is let live."""

    async def main() -> None:
        rig = Rig("refused", "refused", "indeterminate", "ready", port=7001, binary="/b/engram")
        rig.environ["ENGRAM_SOCKET"] = "/run/engram.sock"
        await rig.keeper.ensure()
        assert rig.asked == [["/b/engram", "instance-id"]]
        environ = {"PATH": "/bin", "ENGRAM_DATA_DIR": "/d", "ENGRAM_PORT": "7001"}
        assert rig.spawned == [(["/b/engram", "serve", "7001"], environ)]
        assert rig.time.slept == [0.1] * 3
        await rig.keeper.aclose()
        assert isinstance(rig.child, FakeChild) and not rig.child.terminated

    run(main)


def test_a_start_that_never_gets_ready_times_out_and_ends_its_child() -> None:
    """Behaviours 38 and 43."""

    async def main() -> None:
        rig = Rig("refused", startup_timeout_ms=2000)
        with pytest.raises(ServerUnavailable, match="not ready within 2000 ms"):
            await rig.keeper.ensure()
        assert 1.9 <= rig.time.now - 1000 <= 2.2
        assert isinstance(rig.child, FakeChild) and rig.child.terminated

    run(main)


def test_a_foreign_server_that_comes_up_meanwhile_ends_the_start() -> None:
    """Section 3, step 4."""

    async def main() -> None:
        rig = Rig("refused", "refused", "foreign")
        with pytest.raises(ServerRefused):
            await rig.keeper.ensure()
        assert rig.time.slept == [0.1] * 2
        assert isinstance(rig.child, FakeChild) and rig.child.terminated

    run(main)


def test_a_failed_start_is_remembered_for_a_time_that_doubles() -> None:
    """Behaviour 39."""

    async def main() -> None:
        rig = Rig("refused")
        rig.child = FakeChild(1)
        for starts, pause in enumerate([1, 2, 4, 8, 16, 32, 60, 60], 1):
            with pytest.raises(ServerUnavailable) as first:
                await rig.keeper.ensure()
            assert len(rig.spawned) == starts
            rig.time.now += pause - 0.001
            with pytest.raises(ServerUnavailable) as again:
                await rig.keeper.ensure()
            assert again.value is not first.value and str(again.value) == str(first.value)
            assert len(rig.spawned) == starts
            rig.time.now += 0.002
        rig.probes = ["refused", "ready"]
        await rig.keeper.ensure()
        assert len(rig.spawned) == 9 and len(rig.asked) == 1

    run(main)


@pytest.mark.parametrize("status", [0, 1, -9])
def test_whoever_was_quicker_is_joined_after_the_child_ended(status: int) -> None:
    """Behaviour 41: one more probe after any exit."""

    async def main() -> None:
        rig = Rig("refused", "refused", "ready")
        rig.child = FakeChild(status)
        await rig.keeper.ensure()
        assert rig.probed == 3
        rig = Rig("refused")
        rig.child = FakeChild(status)
        with pytest.raises(ServerUnavailable, match=f"ended with status {status}"):
            await rig.keeper.ensure()
        assert rig.probed == 3 and rig.time.slept == [0.1]

    run(main)


@pytest.mark.parametrize("child", [FakeChild(1), FileNotFoundError(2, "No such file or directory")])
def test_somebody_who_listens_without_answering_yet_is_waited_for(child: FakeChild | OSError) -> None:
    """Section 3, step 5: the grace of an indeterminate first probe; a refusal gets none."""

    async def main() -> None:
        rig = Rig("indeterminate", "indeterminate", "indeterminate", "indeterminate", "ready")
        rig.child = child
        await rig.keeper.ensure()
        rig = Rig("indeterminate", startup_timeout_ms=1000)
        rig.child = child
        with pytest.raises(ServerUnavailable, match=r"ended with status 1|could not be started"):
            await rig.keeper.ensure()
        assert 0.9 <= rig.time.now - 1000 <= 1.2
        rig = Rig("refused")
        rig.child = child
        with pytest.raises(ServerUnavailable):
            await rig.keeper.ensure()
        assert rig.time.now - 1000 < 0.2

    run(main)


def test_a_winner_that_does_not_answer_yet_is_waited_for() -> None:
    """Behaviour 41: the child lost the port, and who has it is not ready at the one look after the exit."""

    async def main() -> None:
        rig = Rig("refused", "refused", "indeterminate", "indeterminate", "ready")
        rig.child = FakeChild(0)
        await rig.keeper.ensure()
        assert (rig.probed, len(rig.spawned)) == (5, 1)

    run(main)


def test_concurrent_callers_share_one_start_and_its_failure() -> None:
    """Section 3: one start per process."""

    async def main() -> None:
        rig = Rig("refused", "ready")
        await asyncio.gather(*(rig.keeper.ensure() for _ in range(5)))
        assert (len(rig.asked), len(rig.spawned)) == (1, 1)
        rig = Rig("refused")
        rig.child = FakeChild(1)
        outcomes = await asyncio.gather(*(rig.keeper.ensure() for _ in range(5)), return_exceptions=True)
        assert all(isinstance(outcome, ServerUnavailable) for outcome in outcomes)
        assert len(rig.spawned) == 1

    run(main)


def test_a_cancelled_caller_does_not_stop_the_start_of_the_others() -> None:
    async def main() -> None:
        rig = Rig("refused", "refused", "ready")
        one, two = (asyncio.create_task(rig.keeper.ensure()) for _ in range(2))
        while not rig.spawned:
            await asyncio.sleep(0)
        one.cancel()
        await two
        with pytest.raises(asyncio.CancelledError):
            await one
        assert len(rig.spawned) == 1

    run(main)


def test_closing_ends_a_start_in_flight_and_its_child() -> None:
    """Behaviour 43."""

    async def main() -> None:
        rig = Rig("refused")
        task = asyncio.create_task(rig.keeper.ensure())
        while not rig.spawned:
            await asyncio.sleep(0)
        await rig.keeper.aclose()
        assert isinstance(rig.child, FakeChild) and rig.child.terminated
        with pytest.raises(HandleClosed):
            await task

    run(main)


def test_every_later_crash_is_healed_too_but_not_more_often_than_allowed() -> None:
    """Behaviour 44."""

    async def main() -> None:
        rig = Rig("ready")
        await rig.keeper.ensure()
        for crash in range(1, 4):
            rig.probes = ["refused", "ready"]
            assert await rig.keeper.heal() is True
            assert len(rig.spawned) == crash
            rig.time.now += 29
            rig.probes = ["refused"]
            assert await rig.keeper.heal() is False  # too early: one look, no start
            assert len(rig.spawned) == crash
            rig.time.now += 1
        assert len(rig.asked) == 1

    run(main)


def test_who_asks_late_finds_what_another_s_heal_brought_back() -> None:
    """Behaviour 19 for two requests that were refused together."""

    async def main() -> None:
        rig = Rig("ready")
        await rig.keeper.ensure()
        rig.probes = ["refused", "refused", "ready"]
        assert await asyncio.gather(*(rig.keeper.heal() for _ in range(3))) == [True] * 3
        assert await rig.keeper.heal() is True
        assert len(rig.spawned) == 1

    run(main)


def test_nothing_is_healed_before_a_good_start() -> None:
    """Section 3: recovery comes after a good start. Who is refused while a start runs waits for its outcome."""

    async def main() -> None:
        rig = Rig("refused", "refused", "ready")
        assert await rig.keeper.heal() is False
        assert rig.probed == 0
        started = asyncio.create_task(rig.keeper.ensure())
        while not rig.spawned:
            await asyncio.sleep(0)
        assert await rig.keeper.heal() is True
        await started
        assert len(rig.spawned) == 1

    run(main)


def test_a_heal_that_finds_a_foreign_server_closes_the_door() -> None:
    """Fail closed: the port is not ours any more, and ensure says so until it is."""

    async def main() -> None:
        rig = Rig("ready")
        await rig.keeper.ensure()
        rig.probes = ["foreign"]
        assert await rig.keeper.heal() is False
        with pytest.raises(ServerRefused):
            await rig.keeper.ensure()
        rig.time.now += 2
        rig.probes = ["ready"]
        await rig.keeper.ensure()
        assert rig.spawned == []

    run(main)


@pytest.mark.parametrize("there", [True, False])
def test_a_server_that_has_only_a_socket_is_reported_as_such(tmp_path: Path, there: bool) -> None:
    """Unix sockets are not spoken; the user is told why nothing is found."""

    async def main() -> None:
        path = os.path.relpath(tmp_path / "s")  # a socket's path must be short
        server = await asyncio.start_unix_server(lambda r, w: w.close(), path) if there else None
        rig = Rig("refused")
        rig.child = FakeChild(1)
        rig.environ["ENGRAM_SOCKET"] = path
        with pytest.raises(ServerUnavailable) as caught:
            await rig.keeper.ensure()
        assert ("listens at the socket" in str(caught.value)) is there
        if server is not None:
            server.close()
            await server.wait_closed()
        await asyncio.sleep(0)

    run(main)


# --- real processes, over the stand-in server ------------------------------------------------------


class Real:
    """Keepers as a bridge makes them, each with a transport, over one fake binary."""

    def __init__(self, folder: Path, port: int, **environ: str) -> None:
        pytest.importorskip("httpx2", reason="the extra engram is not installed")
        self.binary: FakeBinary = write_binary(folder, data_dir=folder / "data", **environ)
        self.config = MemoryConfig(binary=str(self.binary.path), port=port, startup_timeout_ms=30_000)
        self.transports: list[Transport] = []
        self.children: list[EngramProcess] = []

    def spawn(self, argv: Sequence[str], environ: Mapping[str, str]) -> EngramProcess:
        self.children.append(EngramProcess(argv, environ))
        return self.children[-1]

    def keeper(self) -> ServerKeeper:
        transport = Transport(self.config)
        keeper = ServerKeeper(self.config, transport, heal_every=0.0, spawn=self.spawn)
        transport.heal = keeper.heal
        self.transports.append(transport)
        return keeper

    async def close(self) -> None:
        for transport in self.transports:
            await transport.aclose()


def with_real(folder: Path, main: Callable[[Real], Awaitable[None]], **environ: str) -> None:
    with free_port() as port:
        real = Real(folder, port, **environ)

        async def whole() -> None:
            try:
                await main(real)
            finally:
                await real.close()

        try:
            run(whole)
        finally:
            real.binary.kill()
            for child in real.children:  # also one that has not come so far as to write itself down
                child.terminate()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("generation", OWN)
def test_two_bridges_that_start_together_end_at_one_server(generation: str, tmp_path: Path) -> None:
    """Behaviour 41, and 42: the port of the file reaches the child."""

    async def main(real: Real) -> None:
        one, two = real.keeper(), real.keeper()
        await asyncio.gather(one.ensure(), two.ensure())
        assert await real.transports[0].request("GET", "/export") is not None
        assert 1 <= len(real.children) <= 2
        await until(lambda: [child.poll() for child in real.children].count(None) == 1)  # the loser ends by itself
        serves = real.binary.invocations("serve")
        assert [line["argv"][1] for line in serves] == [str(real.config.port)] * len(real.children)
        await one.aclose()
        await two.aclose()
        assert len(real.binary.running()) == 1  # behaviour 43: it outlives both

    with_real(tmp_path, main, FAKE_ENGRAM_GENERATION=generation)


@pytest.mark.parametrize("generation", OWN)
def test_a_server_that_crashes_twice_is_healed_twice(generation: str, tmp_path: Path) -> None:
    """Behaviour 44; with 19: the write that was refused arrives, once."""

    async def main(real: Real) -> None:
        keeper = real.keeper()
        (transport,) = real.transports
        await keeper.ensure()
        for crash in (1, 2):
            assert len(real.binary.kill()) == 1
            await until(lambda: not real.binary.running())
            await transport.request("POST", "/sessions/nobody/end", body={"summary": str(crash)})
            assert len(real.binary.invocations("serve")) == crash + 1
        ends = [line for line in real.binary.served() if line["target"] == "/sessions/nobody/end"]
        assert [line["body"]["summary"] for line in ends] == ["1", "2"]
        await keeper.aclose()

    with_real(tmp_path, main, FAKE_ENGRAM_GENERATION=generation)


def test_an_abandoned_child_is_terminated(tmp_path: Path) -> None:
    """Behaviour 43; the child never binds, and the bridge closes meanwhile."""

    async def main(real: Real) -> None:
        keeper = real.keeper()
        start = asyncio.create_task(keeper.ensure())
        await until(lambda: len(real.binary.running()) == 1)
        await keeper.aclose()
        with pytest.raises(HandleClosed):
            await start
        await until(lambda: not real.binary.running())

    with_real(tmp_path, main, FAKE_ENGRAM_NEVER_BIND="1")


@pytest.mark.parametrize("generation", ["old", *OWN])
def test_a_foreign_server_is_refused_for_real(generation: str, tmp_path: Path) -> None:
    """Behaviour 31 over real HTTP; nothing but /health is asked of it, without the token."""

    async def main(real: Real) -> None:
        with EngramServer(generation, port=real.config.port) as server:
            with pytest.raises(ServerRefused):
                await real.keeper().ensure()
            assert [(one.method, one.path) for one in server.requests] == [("GET", "/health")]
            server.check_invariants()
        assert real.binary.invocations("serve") == []

    with_real(tmp_path, main)


def test_without_a_heal_a_dead_server_is_a_refusal(tmp_path: Path) -> None:
    """Behaviour 40, over a real socket."""
    pytest.importorskip("httpx2", reason="the extra engram is not installed")

    async def main() -> None:
        with free_port() as port:
            config = MemoryConfig(url=f"http://127.0.0.1:{port}", binary=str(tmp_path / "missing"))
            transport = Transport(config)
            keeper = ServerKeeper(config, transport)
            transport.heal = keeper.heal
            await keeper.ensure()
            with pytest.raises(RequestRefused):
                await transport.request("POST", "/observations", body={})
            await transport.aclose()

    run(main)


def test_a_question_to_a_program_is_bounded(tmp_path: Path) -> None:
    """Behaviours 34 and 35: it must end by itself, and not say too much."""

    async def main() -> None:
        status, said = await ask([sys.executable, "-c", "print('x' * 100_000)"], os.environ, 30.0)
        assert (status, len(said)) == (0, 4096)
        with pytest.raises(TimeoutError):
            await ask([sys.executable, "-c", "import time; time.sleep(60)"], os.environ, 0.05)
        with pytest.raises(FileNotFoundError):
            await ask(["/no/such/program"], os.environ, 1.0)
        mark = tmp_path / "pid"
        script = f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 60"
        task = asyncio.create_task(ask(["/bin/sh", "-c", script], os.environ, 60.0))
        await until(mark.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ProcessLookupError):  # killed and reaped
            os.kill(int(mark.read_text()), 0)

    run(main)


def test_a_child_is_detached_and_reaped(tmp_path: Path) -> None:
    """Behaviour 43: a session of its own, nothing of our terminal, an exit that is seen, a signal that is harmless."""
    mark = tmp_path / "mark"
    code = (
        f"import os; open({str(mark)!r}, 'w').write(f'{{os.getsid(0) == os.getpid()}} {{os.read(0, 1)}}'); os._exit(3)"
    )

    async def main() -> None:
        child = EngramProcess([sys.executable, "-c", code], os.environ)
        await until(lambda: child.poll() is not None)
        assert child.poll() == 3
        child.terminate()
        assert mark.read_text() == "True b''"
        with pytest.raises(OSError, match="No such file"):
            EngramProcess(["/no/such/program"], os.environ)

    run(main)


def test_errors_are_of_one_family() -> None:
    assert issubclass(ServerRefused, EngramError) and issubclass(ServerUnavailable, EngramError)
