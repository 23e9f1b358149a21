"""Behaviours 13 to 29: what goes on the wire, what is sent again, and which error says what. Over real sockets."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import Any

import pytest

from scopelog.clients.memory.config import MemoryConfig
from scopelog.clients.memory.errors import (
    ConfigInvalid,
    DeliveryUnknown,
    EngramError,
    HttpError,
    RequestFailed,
    RequestRefused,
    RequestTimedOut,
    ServerUnavailable,
    TransportFailed,
)
from scopelog.clients.memory.replies import Undecodable, decode, read_capped
from scopelog.clients.memory.spelling import Query
from scopelog.clients.memory.transport import Reply, Transport, is_refusal
from scopelog.errors import HandleClosed, InvalidInput, MissingExtra

from .memory_wire import Answer, Fault, Time, Wire, lost, run

httpx2 = pytest.importorskip("httpx2", reason="the extra engram is not installed: the transport is not tested")

SAVE = {"session_id": "s", "title": "t", "content": "c"}
ID = "0123456789abcdef" * 2


class Rig:
    """A transport to a wire, with time that is told and a heal that is scripted."""

    def __init__(self, wire: Wire, *, heals: bool | None = None, limit: int = 3000, attempts: int = 3) -> None:
        self.time = Time()
        self.environ: dict[str, str] = {}
        self.heals = 0
        self.wire = wire
        self.outcome = heals
        config = MemoryConfig(port=wire.port, request_timeout_ms=limit, fetch_max_attempts=attempts)
        self.transport = Transport(config, environ=self.environ, sleep=self.time.sleep)
        if heals is not None:
            self.transport.heal = self.heal

    async def heal(self) -> bool:
        self.heals += 1
        if self.outcome:
            await self.wire.listen()
        return bool(self.outcome)

    async def __aenter__(self) -> Rig:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.aclose()


def count_attempts(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that reach the HTTP library, refused ones too."""
    sent: list[str] = []
    wire = transport._open()
    original = wire.handle_async_request

    def handle(request: Any) -> Any:
        sent.append(request.method)
        return original(request)

    monkeypatch.setattr(wire, "handle_async_request", handle)
    return sent


def test_a_write_that_timed_out_says_that_it_may_have_been_applied() -> None:
    """Behaviour 13."""

    async def main() -> None:
        async with Wire(lost("hang")) as wire, Rig(wire, limit=100) as rig:
            with pytest.raises(RequestTimedOut, match=r"may have been applied.*verify first.*do not retry") as caught:
                await rig.transport.request("POST", "/observations", body=SAVE)
            assert caught.value.may_have_been_applied
            assert len(wire.seen) == 1 and rig.time.slept == []

    run(main)


def test_one_limit_is_set_around_a_whole_attempt_and_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviours 13 and 14: in seconds, from a setting in milliseconds."""
    limits: list[float | None] = []
    original = asyncio.timeout

    def timeout(delay: float | None) -> asyncio.Timeout:
        limits.append(delay)
        return original(delay)

    async def main() -> None:
        async with Wire() as wire, Rig(wire, limit=2500) as rig:
            with monkeypatch.context() as patch:
                patch.setattr(asyncio, "timeout", timeout)
                await rig.transport.request("GET", "/stats")
                await rig.transport.probe(ID)
            assert limits == [2.5, 0.5]

    run(main)


def test_a_read_that_timed_out_names_method_path_and_limit() -> None:
    """Behaviour 14."""

    async def main() -> None:
        async with Wire(lost("hang")) as wire, Rig(wire, limit=100) as rig:
            with pytest.raises(RequestTimedOut, match="GET /search timed out after 100 ms") as caught:
                await rig.transport.request("GET", "/search", query={"q": "x"})
            assert "applied" not in str(caught.value) and not caught.value.may_have_been_applied
            assert len(wire.seen) == 1 and rig.time.slept == []

    run(main)


@pytest.mark.parametrize(("method", "path"), [("GET", "/stats"), ("POST", "/sessions")])
@pytest.mark.parametrize("attempts", [1, 3, 4])
def test_a_refused_replayable_request_is_tried_with_growing_pauses(
    method: str, path: str, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviours 15 and 16."""

    async def main() -> None:
        async with Wire(listening=False) as wire, Rig(wire, attempts=attempts) as rig:
            sent = count_attempts(rig.transport, monkeypatch)
            with pytest.raises(RequestRefused):
                await rig.transport.request(method, path, body={} if method == "POST" else None)
            assert sent == [method] * attempts
            assert rig.time.slept == [0.25, 0.5, 1.0][: attempts - 1]

    run(main)


def test_a_refused_write_is_sent_once_and_its_error_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviours 17 and 21."""

    async def main() -> None:
        async with Wire(listening=False) as wire, Rig(wire) as rig:
            sent = count_attempts(rig.transport, monkeypatch)
            with pytest.raises(RequestRefused) as caught:
                await rig.transport.request("POST", "/observations", body=SAVE)
            assert isinstance(caught.value.__cause__, httpx2.ConnectError)
            assert not caught.value.may_have_been_applied
            assert sent == ["POST"] and rig.time.slept == []

    run(main)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_timeout_as_a_result_has_no_data_and_the_method(method: str) -> None:
    """Behaviour 18."""

    async def main() -> None:
        async with Wire(lost("hang"), Answer(body={"n": 1})) as wire, Rig(wire, limit=100) as rig:
            assert await rig.transport.request_result(method, "/sessions") == Reply(None, method)
            assert len(wire.seen) == 1
            assert await rig.transport.request_result(method, "/sessions") == Reply({"n": 1}, None)

    run(main)


@pytest.mark.parametrize(("method", "path"), [("GET", "/stats"), ("POST", "/sessions"), ("POST", "/observations")])
def test_a_refused_connection_is_healed_within_the_attempt(method: str, path: str) -> None:
    """Behaviour 19: even a write goes out again, for a refusal proves that nothing arrived."""

    async def main() -> None:
        async with Wire(Answer(201, {"id": 1}), listening=False) as wire, Rig(wire, heals=True, attempts=1) as rig:
            assert await rig.transport.request(method, path, body=SAVE if method == "POST" else None) == {"id": 1}
            assert (rig.heals, len(wire.seen), rig.time.slept) == (1, 1, [])

    run(main)


@pytest.mark.parametrize("outcome", [False, True])
def test_healing_is_tried_once_for_a_request(outcome: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour 20, also where the server refuses again after it was healed."""

    async def main() -> None:
        async with Wire(listening=False) as wire, Rig(wire) as rig:
            heals = 0

            async def heal() -> bool:
                nonlocal heals
                heals += 1
                return outcome

            rig.transport.heal = heal
            sent = count_attempts(rig.transport, monkeypatch)
            with pytest.raises(RequestRefused):
                await rig.transport.request("GET", "/stats")
            assert (heals, len(sent)) == (1, 4 if outcome else 3)
            with pytest.raises(RequestRefused):
                await rig.transport.request("POST", "/observations", body=SAVE)
            assert (heals, len(sent)) == (2, 6 if outcome else 4)

    run(main)


def test_a_heal_that_raises_leaves_the_refusal() -> None:
    """Behaviour 21, in intent."""

    async def main() -> None:
        async with Wire(listening=False) as wire, Rig(wire) as rig:

            async def heal() -> bool:
                raise ServerUnavailable("no server", "start one")

            rig.transport.heal = heal
            with pytest.raises(RequestRefused):
                await rig.transport.request("POST", "/observations", body=SAVE)

    run(main)


def test_a_write_whose_reply_is_lost_after_healing_is_unknown() -> None:
    """Behaviours 19 and 28: the second send is no longer covered by the refusal of the first."""

    async def main() -> None:
        async with Wire(lost("reset"), listening=False) as wire, Rig(wire, heals=True) as rig:
            with pytest.raises(DeliveryUnknown):
                await rig.transport.request("POST", "/observations", body=SAVE)
            assert len(wire.seen) == 1

    run(main)


def test_bodies_are_redacted_on_the_wire() -> None:
    """Behaviour 22."""

    async def main() -> None:
        async with Wire(Answer(201, {"id": 1})) as wire, Rig(wire) as rig:
            body = {"a": {"b": ["x <private>hunter2</private>", 1]}, "<private>hunter2": True}
            await rig.transport.request("POST", "/observations", body=body)
            (seen,) = wire.seen
            assert seen.body == {"a": {"b": ["x [REDACTED]", 1]}, "[REDACTED]": True}
            assert seen.header("content-type") == ["application/json"]

    run(main)


def test_a_private_query_value_is_nowhere_in_the_url(caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 23; nor in an error or a log line."""

    async def main() -> None:
        caplog.set_level(logging.DEBUG)
        async with Wire(Answer(404, b"404 page not found\n")) as wire, Rig(wire) as rig:
            query: Query = {
                "q": "<private>hunter2</private> x",
                "scope": "project",
                "limit": 10,
                "empty": "",
                "none": None,
            }
            with pytest.raises(HttpError) as caught:
                await rig.transport.request("GET", ["sessions", "a/b <private>hunter2"], query=query)
            (seen,) = wire.seen
            assert seen.target == "/sessions/a%2Fb%20%5BREDACTED%5D?q=%5BREDACTED%5D%20x&scope=project&limit=10"
            assert seen.header("content-type") == []
            assert "hunter2" not in str(caught.value) + caplog.text
            assert "scope=project" not in caplog.text  # nor what else was asked for, by whichever logger

    run(main)


def test_negative_zero_is_zero_at_any_depth() -> None:
    """Behaviour 24."""

    async def main() -> None:
        async with Wire(Answer(body=b'[{"rank":-0.0,"n":[-0,-0e3,[-0.5]]},-0.0]')) as wire, Rig(wire) as rig:
            reply = await rig.transport.request("GET", "/search")
            assert str(reply) == "[{'rank': 0, 'n': [0, 0, [-0.5]]}, 0]"

    run(main)
    assert str(decode(b"-0.0")) == "0"


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Answer(body={"instance_id": ID, "capabilities": {"a": True, "b": False, "c": 1}}), "ready"),
        (Answer(body={"instance_id": "f" * 32}), "foreign"),
        (Answer(body={"status": "ok"}), "foreign"),
        (Answer(body={"instance_id": 7}), "foreign"),
        (Answer(body=b"<html>"), "foreign"),
        (Answer(body=b"[]"), "foreign"),
        (Answer(body=b"[" * 200_000), "foreign"),
        (Answer(500, {"error": "health check failed"}), "indeterminate"),
        (Answer(302, headers={"Location": "/elsewhere"}), "indeterminate"),
        (Answer(body={"instance_id": ID}, cut=5), "indeterminate"),
        (lost("reset"), "indeterminate"),
        (lost("hang"), "indeterminate"),
    ],
)
def test_what_a_probe_finds(answer: Answer, state: str) -> None:
    """Behaviour 25, and 26: /health is never shown the token."""

    async def main() -> None:
        async with Wire(answer) as wire, Rig(wire) as rig:
            rig.environ["ENGRAM_HTTP_TOKEN"] = "token"
            probe = await rig.transport.probe(ID, timeout=0.2)
            assert probe.state == state
            assert rig.transport.capabilities == (frozenset({"a"}) if state == "ready" else None)
            assert [(seen.target, seen.header("authorization")) for seen in wire.seen] == [("/health", [])]

    run(main)


def test_a_probe_of_nobody_is_refused_and_of_no_host_indeterminate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour 25."""

    async def main() -> None:
        async with Wire(listening=False) as wire, Rig(wire) as rig:
            assert (await rig.transport.probe(ID)).state == "refused"

            def fails(*_: object, **__: object) -> Any:
                raise httpx2.ConnectError("[Errno -2] Name or service not known")

            monkeypatch.setattr(rig.transport._open(), "handle_async_request", fails)
            assert (await rig.transport.probe(ID)).state == "indeterminate"

    run(main)


def test_a_probe_without_an_expected_instance_tells_capabilities() -> None:
    """For ENGRAM_URL, where the identity is not judged but the features matter."""

    async def main() -> None:
        async with Wire(Answer(body={"version": "v", "capabilities": {"a": True}})) as wire, Rig(wire) as rig:
            probe = await rig.transport.probe(None)
            assert (probe.state, probe.version, probe.capabilities) == ("ready", "v", frozenset({"a"}))

    run(main)


def test_the_token_is_read_for_each_request_and_not_trimmed() -> None:
    """Behaviour 26."""

    async def main() -> None:
        async with Wire() as wire, Rig(wire) as rig:
            for token in (None, "one", "  two", "é", ""):
                rig.environ.clear()
                if token is not None:
                    rig.environ["ENGRAM_HTTP_TOKEN"] = token
                await rig.transport.request("DELETE", "/observations/1")
            assert [seen.header("authorization") for seen in wire.seen] == [
                [],
                ["Bearer one"],
                ["Bearer   two"],
                ["Bearer é".encode().decode("latin-1")],
                [],
            ]

    run(main)


@pytest.mark.parametrize("token", ["secret\n", "se\rcret", "secret ", "secret\0"])
def test_a_token_that_no_header_carries_is_refused_before_anything_is_sent(token: str) -> None:
    """Behaviour 26: trimming it would send another token than the one that was set."""

    async def main() -> None:
        async with Wire() as wire, Rig(wire) as rig:
            rig.environ["ENGRAM_HTTP_TOKEN"] = token
            with pytest.raises(ConfigInvalid, match="ENGRAM_HTTP_TOKEN") as caught:
                await rig.transport.request("POST", "/observations", body=SAVE)
            assert "secret" not in str(caught.value) and wire.seen == []

    run(main)


@pytest.mark.parametrize(("method", "path"), [("GET", "/stats"), ("POST", "/observations")])
def test_a_cancelled_caller_sees_its_cancellation(method: str, path: str) -> None:
    """Behaviour 27."""

    async def main() -> None:
        async with Wire(lost("hang")) as wire, Rig(wire) as rig:
            task = asyncio.create_task(rig.transport.request(method, path))
            while not wire.seen:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(wire.seen) == 1

    run(main)


@pytest.mark.parametrize(
    "answer",
    [lost("reset"), lost("close"), Answer(201, {"id": 1}, cut=3), Answer(201, b"<html>"), Answer(409, b"{}", cut=1)],
)
def test_a_write_without_a_whole_reply_is_unknown_and_sent_once(answer: Answer) -> None:
    """Behaviour 28."""

    async def main() -> None:
        async with Wire(answer) as wire, Rig(wire, heals=True) as rig:
            with pytest.raises(DeliveryUnknown, match="may have been applied") as caught:
                await rig.transport.request("POST", "/observations", body=SAVE)
            assert caught.value.may_have_been_applied
            assert (len(wire.seen), rig.heals, rig.time.slept) == (1, 0, [])

    run(main)


@pytest.mark.parametrize("fault", ["reset", "close"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/stats"), ("POST", "/sessions")])
def test_a_lost_reply_of_a_replayable_request_is_asked_for_again(method: str, path: str, fault: Fault) -> None:
    """Section 4: any transport failure but a timeout."""

    async def main() -> None:
        async with Wire(lost(fault), Answer(cut=1), Answer(body={"n": 1})) as wire, Rig(wire) as rig:
            assert await rig.transport.request(method, path) == {"n": 1}
            assert (len(wire.seen), rig.time.slept) == (3, [0.25, 0.5])
        async with Wire(lost(fault)) as wire, Rig(wire) as rig:
            with pytest.raises(RequestFailed if method == "GET" else DeliveryUnknown):
                await rig.transport.request(method, path)
            assert len(wire.seen) == 3

    run(main)


@pytest.mark.parametrize("answer", [Answer(500, {}), Answer(404, b"x"), Answer(200, b"x"), Answer(200, b'{"a":NaN}')])
def test_a_whole_answer_is_never_asked_for_again(answer: Answer) -> None:
    """Section 4, and strict decoding."""

    async def main() -> None:
        async with Wire(answer) as wire, Rig(wire) as rig:
            with pytest.raises(EngramError) as caught:
                await rig.transport.request("GET", "/stats")
            assert isinstance(caught.value, RequestFailed if answer.status == 200 else HttpError)
            assert len(wire.seen) == 1

    run(main)


@pytest.mark.parametrize("status", [404, 405])
def test_plain_text_errors_keep_their_status(status: int) -> None:
    """Behaviour 29."""

    async def main() -> None:
        text = Answer(status, b"404 page not found\n", {"Content-Type": "text/plain"})
        async with Wire(text) as wire, Rig(wire) as rig:
            with pytest.raises(HttpError, match=f"HTTP status {status}") as caught:
                await rig.transport.request("GET", "/nowhere")
            error = caught.value
            assert (error.status, error.body, error.code, error.available_projects) == (status, None, "", ())

    run(main)


@pytest.mark.parametrize(
    ("body", "code", "message", "projects"),
    [
        ({"error": "no", "code": "b", "error_code": "a", "available_projects": ["p", 1]}, "a", "no", ("p",)),
        ({"error": "no", "code": "b", "available_projects": None}, "b", "no", ()),
        ({"error": ["no"], "code": 7}, "", "HTTP status 409", ()),
        ([1], "", "HTTP status 409", ()),
    ],
)
def test_what_an_error_body_says(body: Any, code: str, message: str, projects: tuple[str, ...]) -> None:
    """Section 4: error classes."""

    async def main() -> None:
        async with Wire(Answer(409, body)) as wire, Rig(wire) as rig:
            with pytest.raises(HttpError) as caught:
                await rig.transport.request("POST", "/observations", body=SAVE)
            error = caught.value
            assert (error.code, error.message, error.available_projects, error.body) == (code, message, projects, body)
            assert len(str(error)) < 700

    run(main)


def test_redirects_are_not_followed() -> None:
    async def main() -> None:
        async with Wire(Answer(307, headers={"Location": "/elsewhere"})) as wire, Rig(wire) as rig:
            with pytest.raises(HttpError, match="redirects are not followed"):
                await rig.transport.request("POST", "/observations", body=SAVE)
            assert len(wire.seen) == 1

    run(main)


def test_the_loopback_never_goes_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)

    async def main() -> None:
        async with Wire() as wire, Rig(wire) as rig:
            await rig.transport.request("GET", "/stats")
            assert [seen.target for seen in wire.seen] == ["/stats"]

    run(main)


def test_each_request_has_its_own_connection_so_that_a_restart_is_seen_as_refused() -> None:
    """A pooled connection that the old server closed would make the next write's outcome unknown."""

    async def main() -> None:
        async with Wire() as wire, Rig(wire) as rig:
            await rig.transport.request("GET", "/stats")
            await wire.refuse()
            with pytest.raises(RequestRefused):
                await rig.transport.request("POST", "/observations", body=SAVE)
            assert [seen.header("connection") for seen in wire.seen] == [["close"]]

    run(main)


def test_replies_are_capped_before_memory_is_taken() -> None:
    async def chunks(*parts: bytes) -> Any:
        for part in parts:
            yield part
        raise AssertionError("read on")

    async def main() -> None:
        for parts, announced in (((b"abc", b"d"), None), ((), "4"), ((b"abcd",), "nonsense"), ((), "9" * 30)):
            with pytest.raises(Undecodable, match="larger than 3"):
                await read_capped(chunks(*parts), announced, 3)
        async with Wire(Answer(headers={"Content-Encoding": "gzip"})) as wire, Rig(wire) as rig:
            with pytest.raises(RequestFailed, match="compressed"):
                await rig.transport.request("GET", "/stats")
            assert wire.seen[0].header("accept-encoding") == ["identity"]
        huge = Answer(500, headers={"Content-Length": str(1 << 40)})
        async with Wire(huge) as wire, Rig(wire) as rig:
            with pytest.raises(HttpError) as caught:
                await rig.transport.request("GET", "/stats")
            assert (caught.value.status, caught.value.body) == (500, None)

    run(main)


def refusal_within(*layers: str) -> Exception:
    error: Exception = ConnectionRefusedError(111, "refused")
    for layer in layers:
        outer: Exception
        if layer == "group":
            outer = ExceptionGroup("all failed", [OSError(113, "unreachable"), error])
        elif layer == "list":
            outer = OSError("all failed", [TimeoutError(), error])
        elif layer == "argument":
            outer = OSError(error)
        else:
            outer = OSError("failed")
            outer.__cause__ = error
        error = outer
    return error


@pytest.mark.parametrize(
    "layers", [(), ("cause",), ("group",), ("list",), ("argument",), ("group", "cause", "argument", "list", "cause")]
)
def test_a_refusal_is_found_however_deep(layers: tuple[str, ...]) -> None:
    """Behaviour 25: dual-stack errors hide it in a list."""
    assert is_refusal(refusal_within(*layers))
    loop = OSError("loop")
    loop.__cause__ = ValueError(loop)
    assert not is_refusal(loop)
    assert not is_refusal(OSError("refused", ["refused"]))


def test_a_refusal_that_the_caller_is_handling_proves_nothing() -> None:
    """Behaviour 28: it becomes the context of whatever fails next, and must not pass for non-delivery."""

    async def main() -> None:
        async with Wire(lost("reset")) as wire, Rig(wire, heals=True) as rig:
            try:
                raise refusal_within("cause")
            except OSError:
                with pytest.raises(DeliveryUnknown):
                    await rig.transport.request("POST", "/observations", body=SAVE)
            assert (len(wire.seen), rig.heals) == (1, 0)

    run(main)


def test_a_dual_stack_name_is_refused_too() -> None:
    """Behaviour 25, with a name that has more than one address."""

    async def main() -> None:
        async with Wire(listening=False) as wire:
            config = MemoryConfig(url=f"http://localhost:{wire.port}")
            transport = Transport(config, environ={}, sleep=Time().sleep)
            with pytest.raises(RequestRefused):
                await transport.request("POST", "/observations", body=SAVE)
            await transport.aclose()

    run(main)


def test_a_base_url_may_have_a_path() -> None:
    async def main() -> None:
        async with Wire() as wire:
            transport = Transport(MemoryConfig(url=f"{wire.url}/base/"), environ={})
            await transport.request("GET", "/stats")
            assert wire.seen[0].target == "/base/stats"
            await transport.aclose()
            with pytest.raises(HandleClosed):
                await transport.request("GET", "/stats")

    run(main)


def test_a_query_that_no_url_holds_is_refused_before_it_is_sent() -> None:
    async def main() -> None:
        async with Wire() as wire, Rig(wire) as rig:
            with pytest.raises(InvalidInput, match="too long"):
                await rig.transport.request("GET", "/search", query={"q": "x" * 100_000})
            assert wire.seen == []

    run(main)


def test_errors_can_be_raised_again_for_other_callers() -> None:
    error = DeliveryUnknown(method="POST", path="/prompts", what="the connection failed")
    twin = error.again()
    assert isinstance(twin, TransportFailed) and (twin.method, twin.path, str(twin)) == ("POST", "/prompts", str(error))


def test_without_the_extra_the_modules_import_and_the_first_use_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types and errors need no extra."""
    names = "config, errors, projects, redaction, server, transport"
    code = f"import sys; sys.modules['httpx2'] = None; import scopelog; from scopelog.clients.memory import {names}"
    subprocess.run([sys.executable, "-c", code], check=True)

    async def main() -> None:
        monkeypatch.setitem(sys.modules, "httpx2", None)
        transport = Transport(MemoryConfig(), environ={})
        for use in (transport.request("GET", "/stats"), transport.probe(None)):
            with pytest.raises(MissingExtra, match=r"httpx2.*\[engram\]"):
                await use
        await transport.aclose()

    run(main)
