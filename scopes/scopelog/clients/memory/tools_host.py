"""What all memory tools share: the host they run over, how a tool is declared, and the check of its arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

from scopelog.errors import InvalidInput

from .errors import DeliveryUnknown, ProjectUnresolved, RequestFailed
from .redaction import Json, redact_text
from .spelling import Query

Object: TypeAlias = dict[str, Json]
Answer: TypeAlias = dict[str, Json] | list[Json]
Submission: TypeAlias = Literal["save", "summary", "learning", "prompt"]
Kind: TypeAlias = Literal["read", "write", "change"]

RELATIONS: Final = ("related", "compatible", "scoped", "conflicts_with", "supersedes", "not_conflict")
TYPE: Final = "Kind of entry, such as decision, bugfix, architecture, pattern or manual."
SCOPE: Final = "Whom the entry concerns: project or personal."
# names that Python has taken: the tool's argument, and the parameter it is passed to
_PARAMETERS: Final[Mapping[str, str]] = {"type": "kind", "id": "observation_id"}


class ToolHost(Protocol):
    """One agent session as its tools see it."""

    @property
    def agent_id(self) -> str:
        """The agent's id, the same for the session's life."""

    @property
    def cwd(self) -> str | None:
        """The session's own working directory, None where it reported none."""

    @property
    def key(self) -> str:
        """The session's memory key as it is now."""

    async def project(self) -> str:
        """The session's project.

        :raises ProjectUnresolved: there is none; nothing was sent to a memory route.
        """

    async def request(
        self, method: str, path: str | Sequence[str], *, query: Query | None = None, body: Json = None
    ) -> Json:
        """As ``Transport.request``, once the server is ensured."""

    async def submit(self, kind: Submission, payload: Object) -> Object:
        """Send through the durable outbox. Answers ``status`` (delivered, queued, unknown, parked) and ``entry``."""

    async def start(self) -> Object:
        """Register the session's row now."""

    async def end(self, summary: str | None) -> Object:
        """End the session's own row, behind what is queued."""


@dataclass(frozen=True)
class Tool:
    """A memory tool for a harness to register.

    ``description`` is for the model; ``schema`` is a JSON schema object. ``kind``: a ``read`` leaves no trace, a
    ``write`` registers the session's row, a ``change`` acts on rows that exist. ``run`` takes the host and the
    arguments as keywords; :func:`~scopelog.clients.memory.tools.call` checks and renames them.
    """

    name: str
    description: str
    schema: Mapping[str, Json]
    kind: Kind
    run: Callable[..., Awaitable[Answer]] = field(repr=False, compare=False)


# --- declaring ------------------------------------------------------------------------------------


def schema(*required: str, **properties: Object) -> Object:
    """An object schema. Further arguments are ignored, not refused, and none of them can name a project."""
    return {"type": "object", "properties": properties, "required": list(required)}


def text(description: str, *choices: str, default: str | None = None) -> Object:
    """A string, one of ``choices`` where there are any. As a required argument it must not be blank."""
    made: Object = {"type": "string", "description": description}
    if choices:
        made["enum"] = list(choices)
    return made if default is None else {**made, "default": default}


def whole(description: str, *, minimum: int = 1) -> Object:
    """An integer, ``minimum`` or more."""
    return {"type": "integer", "description": description, "minimum": minimum}


def share(description: str) -> Object:
    """A number from 0 to 1."""
    return {"type": "number", "description": description, "minimum": 0, "maximum": 1}


def flag(description: str) -> Object:
    """A boolean that is false unless given."""
    return {"type": "boolean", "description": description, "default": False}


# --- arguments ------------------------------------------------------------------------------------


def check(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the tool declares, checked, under the names of its parameters. None counts as not given.

    :raises InvalidInput: one is missing, of another type or out of bounds; the cause names the tool and the argument.
    """
    if not isinstance(arguments, Mapping):
        raise InvalidInput(f"the arguments of {tool.name} are no object", "pass them by name")
    properties, required = tool.schema["properties"], tool.schema["required"]
    checked: dict[str, Any] = {}
    for name, declared in properties.items():
        value = arguments.get(name)
        if value is None:
            if name in required:
                raise InvalidInput(f"{tool.name} needs {name}", f"pass {name}: {_expected(declared)}")
            continue
        if value == "" and name not in required and "enum" in declared:
            continue  # models fill in what they do not mean
        if not _fits(value, declared, blank=name not in required):
            raise InvalidInput(f"{tool.name} cannot use its argument {name}", f"pass {name} as {_expected(declared)}")
        checked[_PARAMETERS.get(name, name)] = value
    return checked


def _fits(value: Any, declared: Object, *, blank: bool) -> bool:
    kind = declared["type"]
    if kind == "string":
        return isinstance(value, str) and (blank or bool(value.strip())) and value in declared.get("enum", (value,))
    if kind == "boolean":
        return isinstance(value, bool)
    # a bool is not a number here, a text of digits is none either, and a float is never cut to an integer
    if type(value) is not int and not (kind == "number" and type(value) is float):
        return False
    # NaN is within no bounds
    return bool(declared["minimum"] <= value <= declared.get("maximum", value))


def _expected(declared: Object) -> str:
    kind = declared["type"]
    if "enum" in declared:
        return f"one of {', '.join(declared['enum'])}"
    if kind == "integer":
        return f"an integer of at least {declared['minimum']}"
    return {"string": "text that is not blank", "boolean": "true or false"}.get(kind, "a number from 0 to 1")


def kept(tool: str, name: str, value: str) -> str:
    """Text to be stored, trimmed: private blocks leave it here, before it enters an outbox, a body or a log line.

    :raises InvalidInput: nothing is left of it.
    """
    clean = redact_text(value)
    if not clean:
        raise InvalidInput(f"{tool} cannot use a blank {name}", f"pass {name} as text that is not blank")
    return clean


# --- requests and answers -------------------------------------------------------------------------


async def own_project(host: ToolHost) -> str:
    """The session's project, for whatever must not happen without one.

    :raises ProjectUnresolved: there is none.
    """
    project = await host.project()
    if not project.strip():  # a blank one would fall out of the query, and the server would answer for itself
        reason = "its project has no name"
        cause = f"this session has no memory project: {reason}"
        raise ProjectUnresolved(cause, "start the session anew", reason=reason)
    return project


async def ask_object(
    host: ToolHost, method: str, path: str | Sequence[str], *, query: Query | None = None, body: Json = None
) -> Object:
    """A request whose answer is a JSON object."""
    data = await host.request(method, path, query=query, body=body)
    return as_object(method, path, data)


def as_object(method: str, path: str | Sequence[str], data: Json) -> Object:
    """The answer, if it is an object.

    :raises RequestFailed: it is none, and the request a read; :raises DeliveryUnknown: and it was a write.
    """
    if not isinstance(data, dict):
        raise unusable(method, path)
    return data


def unusable(method: str, path: str | Sequence[str]) -> RequestFailed | DeliveryUnknown:
    """The error for a successful answer of a shape that the route does not have."""
    shown = path if isinstance(path, str) else f"/{'/'.join(path)}"
    kind = RequestFailed if method == "GET" else DeliveryUnknown
    return kind(method=method, path=shown, what="the answer has an unknown shape", answered=True)


def with_lists(answer: Object, *names: str) -> Object:
    """The answer with [] for the named lists that an old server leaves null when they are empty."""
    return {**answer, **{name: [] for name in names if answer.get(name) is None}}


def given(**fields: Json) -> Object:
    """A body of the fields that have a value: None and '' are left out, as in a query."""
    return {name: value for name, value in fields.items() if value is not None and value != ""}
