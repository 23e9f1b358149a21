"""The fault script: what goes wrong, on which route, at which match; gates; changes behind the bridge's back.

A route is named as in the route table (``"POST /observations"``), ``"*"`` for any request, or ``"connect"`` for a
connection that is closed as soon as it is accepted. Nothing here sleeps: delays wait on gates.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from . import routes
from .model import Model

Change = Callable[[Model], None]
Apply = Literal["before", "after", "never"]
HELD_TIMEOUT = 20.0  # a bound on a test that waits for a request that never comes


class Gate:
    """Holds whoever enters until it is released. Released once for all, or one at a time."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._held = 0
        self._tickets = 0
        self._open = False
        self._abandoned = False

    @property
    def held(self) -> int:
        with self._condition:
            return self._held

    def enter(self, seconds: float | None = None) -> bool:
        """Wait for the release, or for ``seconds`` of real time where a test asks so.

        False when the server was closed meanwhile: the request dies with it.
        """
        with self._condition:
            self._held += 1
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._open or self._abandoned or self._tickets > 0, seconds)
            self._held -= 1
            if not self._open and self._tickets:
                self._tickets -= 1
            self._condition.notify_all()
            return not self._abandoned or self._open

    def wait_held(self, count: int = 1, timeout: float = HELD_TIMEOUT) -> None:
        """Return once ``count`` requests are held; AssertionError when that does not come about."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._held >= count, timeout):
                raise AssertionError(f"{self._held} held, {count} expected")

    def release(self) -> None:
        """Let everybody go, now and from now on."""
        with self._condition:
            self._open = True
            self._condition.notify_all()

    def release_one(self) -> None:
        """Let one request go: the one that is held, or the next to come."""
        with self._condition:
            self._tickets += 1
            self._condition.notify_all()

    def abandon(self) -> None:
        """The server goes away: whoever is held is dropped."""
        with self._condition:
            self._abandoned = True
            self._condition.notify_all()


@dataclass(frozen=True)
class Action:
    """What happens to one request. Build it with the functions below."""

    kind: Literal["pass", "close_unread", "close", "delay", "half", "answer", "foreign"]
    apply: Apply = "never"
    status: int = 0
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    reset: bool = False
    seconds: float | None = None
    gate: Gate = field(default_factory=Gate)
    before: Change | None = None
    after: Change | None = None
    then_refuse: bool = False

    @property
    def outcome_unknown(self) -> bool:
        """The client cannot tell whether the request was applied."""
        return self.kind in ("close_unread", "close", "delay", "half")


def ok() -> Action:
    """Nothing goes wrong: lets one match pass."""
    return Action("pass", "before")


def close_unread() -> Action:
    """Reset the connection before the request's headers and body are read."""
    return Action("close_unread", reset=True)


def close_unapplied(*, reset: bool = False) -> Action:
    """Read the whole request, then close without applying it."""
    return Action("close", reset=reset)


def lose_reply(*, reset: bool = False) -> Action:
    """APPLY, then close without replying: the lost acknowledgement."""
    return Action("close", "before", reset=reset)


def delay(apply: Apply = "before", *, seconds: float | None = None) -> Action:
    """Hold the request at ``action.gate``: applied before the wait, after it, or never.

    After the release the reply is sent, except with ``never``, which closes. ``seconds`` is a real wait instead.
    """
    return Action("delay", apply, seconds=seconds)


def half_body(*, apply: bool = True) -> Action:
    """Send the full Content-Length and half of the JSON body, then close."""
    return Action("half", "before" if apply else "never")


def not_json(text: str = "<html>proxy</html>", *, status: int = 200, apply: bool = False) -> Action:
    return Action("answer", "before" if apply else "never", status, text, {"Content-Type": "text/html"})


def fail(status: int = 500, error: str = "internal error", *, applied: bool = False) -> Action:
    """An error reply, before or after the request was applied."""
    return Action("answer", "before" if applied else "never", status, {"error": error})


def unauthorized(error: str = "invalid token") -> Action:
    return Action("answer", "never", 401, {"error": error}, {"WWW-Authenticate": 'Bearer realm="engram"'})


def conflict(code: str, error: str = "conflict", **extra: Any) -> Action:
    return Action("answer", "never", 409, {"error": error, "code": code, **extra})


def redirect(location: str, *, status: int = 302) -> Action:
    return Action("answer", "never", status, {"error": "moved"}, {"Location": location})


def sick_health() -> Action:
    return fail(500, "health check failed")


def foreign(instance_id: str | None = "f" * 32) -> Action:
    """For ``GET /health``: the answer of another instance; ``None`` leaves the id out."""
    return Action("foreign", body=instance_id)


def change(before: Change | None = None, *, after: Change | None = None) -> Action:
    """Change rows just before the request is applied, or after that and before the reply."""
    return Action("pass", "before", before=before, after=after)


def then_refuse(*, reply: Literal["sent", "lost", "unapplied"] = "sent") -> Action:
    """Close the listener with this request: it is answered, or applied and not answered, or not even applied."""
    kind: Literal["pass", "close"] = "pass" if reply == "sent" else "close"
    return Action(kind, "never" if reply == "unapplied" else "before", then_refuse=True)


@dataclass
class _Rule:
    route: str
    skip: int
    actions: deque[Action]


class Faults:
    """The script of one server. ``lock`` guards the model; ``refuse`` and ``accept`` are the skin's listener."""

    def __init__(
        self, model: Model, lock: threading.RLock, *, refuse: Callable[[], None], accept: Callable[[], None]
    ) -> None:
        self._model = model
        self._lock = lock
        self._refuse = refuse
        self._accept = accept
        self._rules: list[_Rule] = []
        self._gates: list[tuple[str, bool, Gate]] = []
        self._rules_lock = threading.Lock()

    # -- the script

    def on(self, route: str, *actions: Action, nth: int = 1) -> Action:
        """From the ``nth`` match of ``route`` on, counted from now, one action a match. Returns the first action."""
        _known(route)
        if nth < 1 or not actions:
            raise ValueError("nth counts from 1, and there must be an action")
        if route == "connect" and any(action.kind not in ("close_unread", "pass") for action in actions):
            raise ValueError("a connection can only be closed unread or let pass")
        with self._rules_lock:
            self._rules.append(_Rule(route, nth - 1, deque(actions)))
        return actions[0]

    def take(self, route: str | None) -> Action | None:
        """The action for a request that arrived. Every rule of the route counts it; the first ready one acts."""
        chosen: Action | None = None
        with self._rules_lock:
            for rule in self._rules:
                if rule.route != route and not (rule.route == "*" and route != "connect"):
                    continue
                if rule.skip:
                    rule.skip -= 1
                elif chosen is None and rule.actions:
                    chosen = rule.actions.popleft()
            self._rules = [rule for rule in self._rules if rule.actions]
        return chosen

    @property
    def pending(self) -> int:
        """Actions that were scripted and not met; a test may assert that it is 0."""
        with self._rules_lock:
            return sum(len(rule.actions) for rule in self._rules)

    def clear(self) -> None:
        """Forget the script and release every gate."""
        with self._rules_lock:
            rules, self._rules = self._rules, []
            gates, self._gates = self._gates, []
        for rule in rules:
            for action in rule.actions:
                action.gate.release()
        for _, _, gate in gates:
            gate.release()

    # -- gates

    def hold(self, route: str, *, after_applying: bool = False) -> Gate:
        """Hold every request of ``route`` until released: before it is applied, or between that and its reply."""
        _known(route)
        gate = Gate()
        with self._rules_lock:
            self._gates.append((route, after_applying, gate))
        return gate

    def gates(self, route: str | None, *, after_applying: bool) -> list[Gate]:
        with self._rules_lock:
            return [gate for name, after, gate in self._gates if name in (route, "*") and after is after_applying]

    def abandon_gates(self) -> None:
        """The server goes away: its gates go with it, and what they held is dropped."""
        with self._rules_lock:
            gates, self._gates = self._gates, []
        for _, _, gate in gates:
            gate.abandon()

    # -- the listener

    def refuse(self) -> None:
        """Close the listener and every open connection: new ones are refused until ``accept``."""
        self._refuse()

    def accept(self) -> None:
        """Listen again on the same port."""
        self._accept()

    # -- changes behind the bridge's back

    def change(self, what: Change) -> None:
        with self._lock:
            what(self._model)

    def end(self, session: str, summary: str | None = None) -> None:
        self.change(lambda model: model.end_session(session, summary))

    def delete(self, session: str) -> None:
        self.change(lambda model: model.drop_session(session))

    def set_project(self, session: str, project: str) -> None:
        self.change(lambda model: model.set_project(session, project))

    def change_token(self, token: str | None) -> None:
        self.change(lambda model: setattr(model, "token", token or ""))

    def change_instance(self, instance_id: str) -> None:
        self.change(lambda model: setattr(model, "instance_id", instance_id))

    def set_sick(self, sick: bool) -> None:
        """``/health`` answers 500 until told otherwise."""
        self.change(lambda model: setattr(model, "sick", sick))

    def wipe(self) -> None:
        self.change(lambda model: model.wipe())


def _known(route: str) -> None:
    if route not in routes.NAMES and route not in ("*", "connect"):
        raise ValueError(f"no route {route}: name it as in the route table")
